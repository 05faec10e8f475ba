//! The way of calls to a store: connections that are made again, the threads that carry what users
//! write and read, and the notes of outages.
//!
//! May use `calls`, `events` and `store`. It knows no particular store, and nothing of runs.

mod outages;
mod reach;
mod reader;
mod writer;

pub(crate) use outages::{Attempt, Outages, SLOW};
pub(crate) use reach::{Reach, StoreLink};
pub(crate) use reader::Reader;
pub(crate) use writer::{CallReply, Collector, Hints, NearTimer, Writers};
