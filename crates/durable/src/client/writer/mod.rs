//! Group commit: calls of many threads travel together.
//!
//! Each writer thread takes the calls that have come while it was busy, and sends them to the store
//! in one commit. A call that comes alone goes alone and at once: no timer waits for company.
//!
//! - **WRITER-1** Calls on one queue and key are carried out in the order in which they were sent.
//!   They go to the same thread, no batch has two of them, and the next batch begins with those
//!   that were left.
//! - **WRITER-2** Each call gets exactly one answer. A call that is dropped before it was sent to
//!   the store answers that the timers are stopped.
//! - **WRITER-3** A call whose row others have locked is *detained*: it goes to a thread with a
//!   connection of its own, which sends it again until it is carried out or the store's limit is
//!   over. Later calls on the same key follow it there, so WRITER-1 holds. All other calls of its
//!   batch are answered at once, and none waits for it.
//! - **WRITER-4** The calls that wait for one thread are bounded by their number and by the bytes
//!   of their keys and payloads. A batch is bounded by both too, and has at least one call.

mod batch;
mod batch_sender;
mod capacity;
mod locked;
mod reply;
mod worker;

pub(crate) use batch_sender::{Hints, NearTimer};
pub(crate) use reply::{CallReply, Collector};
pub(crate) use worker::Writers;
