//! Keyed timers on sharded hierarchical wheels.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod clock;
mod executor;
mod job;
mod sync;
mod tick;

pub use clock::{Clock, ManualClock};
pub use executor::{Executor, Job};
pub use tick::Time;
