//! Group commit: calls of many threads travel together.
//!
//! Each writer thread takes the calls that have come while it was busy, and sends them to the store
//! in one commit. A call that comes alone goes alone and at once: no timer waits for company.
//!
//! - **WRITER-1** Calls on one queue and key are carried out in the order in which they were sent.
//!   They go to the same thread, no batch has two of them, and the next batch begins with those that
//!   were left.
//! - **WRITER-2** Each call gets exactly one answer. A call that is dropped before it was sent to the
//!   store answers that the timers are stopped.

mod batch;
mod reply;
mod worker;

pub(crate) use reply::{Answering, Collector};
pub(crate) use worker::{Hints, NearTimer, Writers};
