#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
//! Keyed timers on sharded hierarchical wheels.

mod clock;
mod config;
mod engine;
mod error;
mod executor;
mod job;
mod options;
mod scheduler;
mod shard;
mod stats;
mod sync;
#[cfg(any(test, feature = "test-util"))]
pub mod test_util;
mod tick;
mod timer;
pub mod wheel;

pub use clock::{Clock, ManualClock};
pub use engine::{Lifecycle, Shutdown};
pub use error::{BuildError, ScheduleError, WaitError};
pub use executor::{Executor, Job};
pub use scheduler::{
    Builder, ById, Cancel, CancelGuard, Firing, HandedBack, Handle, KeyHasher, Pending, PullIn,
    RandomState, Report, ReportTicket, Reschedule, Scheduled, Scheduler, ShardStats, Stats, Task,
    TaskPanic, TimerId, TimerInfo, TimerState,
};
pub use stats::Lateness;
pub use tick::Time;
pub use timer::{Timeout, Timer, TimerBuilder, TimerHandedBack, TimerReport};
