#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
//! Timers that survive restarts and dead machines.

mod answers;
mod builder;
mod complete;
mod due;
mod durable;
mod ending;
mod errors;
mod event_sink;
mod events;
mod handler;
mod late;
mod memory;
mod names;
mod node;
mod panics;
mod pending;
mod plan;
#[cfg(feature = "postgres")]
mod postgres;
mod queue_options;
mod reach;
mod reader;
mod retry;
pub mod row;
mod shard;
mod shell;
#[cfg(feature = "sqlite")]
mod sqlite;
mod stats;
mod stop_state;
pub mod store;
mod sync;
mod task;
mod term;
mod time;
mod timer_info;
mod writer;

pub use answers::{Cancelled, IfAbsent, Moved, Scheduled};
pub use builder::{Builder, QueueBuilder};
pub use complete::{CompleteError, CompletesRun};
pub use due::{Due, Token};
pub use durable::Durable;
pub use ending::{Ending, IntoEnding};
pub use errors::{CallError, StartError};
pub use events::Event;
pub use late::Late;
pub use memory::{Fault, Memory, MemoryCall};
pub use names::Invalid;
pub use pending::Pending;
#[cfg(feature = "postgres")]
#[cfg_attr(docsrs, doc(cfg(feature = "postgres")))]
pub use postgres::{Postgres, PostgresBuilder};
pub use retry::Retry;
#[cfg(feature = "sqlite")]
#[cfg_attr(docsrs, doc(cfg(feature = "sqlite")))]
pub use rusqlite;
#[cfg(feature = "sqlite")]
#[cfg_attr(docsrs, doc(cfg(feature = "sqlite")))]
pub use sqlite::Sqlite;
pub use stats::Stats;
pub use stop_state::StopReport;
pub use time::{StoreTime, WallClock};
pub use timer_info::{DeadTimer, Paging, TimerInfo};
