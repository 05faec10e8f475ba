//! Spans and warnings of the crate `tracing`.
//!
//! A test crate of its own, because a process has one subscriber.

mod faults;
mod spans;
mod warnings;
