//! Timers that repeat.

mod calendar;
mod calls;
#[cfg(feature = "cron")]
mod cron;
mod missed;
mod rounds;
mod run_now;
