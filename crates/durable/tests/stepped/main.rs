//! Timers in virtual time: what a call of the steps waits for, and what troubles change.

mod clocks;
#[cfg(feature = "sqlite")]
mod orders;
mod processes;
mod runs;
#[cfg(feature = "cron")]
mod schedules;
#[cfg(feature = "cron")]
mod simulated;
mod support;
mod troubles;
