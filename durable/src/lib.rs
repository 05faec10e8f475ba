#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
//! Timers that survive restarts and dead machines.

mod answers;
mod complete;
mod errors;
mod memory;
#[allow(dead_code, reason = "the calls that need it follow")]
mod names;
#[allow(dead_code, reason = "its state machine follows")]
mod node;
pub mod row;
mod shard;
#[cfg(feature = "sqlite")]
mod sqlite;
pub mod store;
mod sync;
mod time;

pub use answers::{Cancelled, IfAbsent, Moved, Scheduled};
pub use complete::{CompleteError, CompletesRun};
pub use errors::{CallError, StartError};
pub use memory::{Fault, Memory, MemoryCall};
pub use names::Invalid;
#[cfg(feature = "sqlite")]
#[cfg_attr(docsrs, doc(cfg(feature = "sqlite")))]
pub use rusqlite;
#[cfg(feature = "sqlite")]
#[cfg_attr(docsrs, doc(cfg(feature = "sqlite")))]
pub use sqlite::Sqlite;
pub use time::{StoreTime, WallClock};
