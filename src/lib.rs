#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
//! Keyed timers on sharded hierarchical wheels.

mod clock;
mod executor;
mod job;
mod scheduler;
mod shard;
mod stats;
mod sync;
#[cfg(any(test, feature = "test-util"))]
pub mod test_util;
mod tick;
pub mod wheel;

pub use clock::{Clock, ManualClock};
pub use executor::{Executor, Job};
pub use tick::Time;
