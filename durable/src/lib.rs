#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
//! Timers that survive restarts and dead machines.

mod memory;
#[allow(dead_code, reason = "its state machine follows")]
mod node;
pub mod row;
mod shard;
pub mod store;
mod sync;
mod time;

pub use memory::{Fault, Memory, MemoryCall};
pub use time::{StoreTime, WallClock};
