//! The way of calls to a store: connections that are made again, the threads that carry what users
//! write and read, and the notes of outages.
//!
//! May use `calls`, `events` and `store`. It knows no particular store, and nothing of runs.

mod outages;
mod reader;
mod store_handle;
mod writer;

pub(crate) use outages::{Attempt, Outages, SLOW};
pub(crate) use reader::Reader;
pub(crate) use store_handle::{ReconnectingConnection, StoreHandle};
pub(crate) use writer::{CallReply, Collector, Hints, NearTimer, Writers};
