//! Helpers that the tests of several packages share.
//!
//! What only the tests of leases need is beside those tests.

pub mod clocks;
pub mod drops;
pub mod gate;
pub mod ledger;
pub mod map;
pub mod metrics;
#[cfg(target_os = "linux")]
pub mod naps;
#[cfg(unix)]
pub mod pause;
pub mod program;
pub mod quiet;
#[cfg(target_os = "linux")]
pub mod refusal;
pub mod rounds;
#[cfg(feature = "tokio")]
pub mod runtimes;
pub mod steps;
#[cfg(feature = "traces")]
pub mod traces;
pub mod wait;
pub mod wakes;
pub mod ways;
