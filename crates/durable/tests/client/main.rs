//! The calls of a client: answers, refusals, faults of the store, group commit and futures.

mod answers;
mod awaited;
mod commit;
#[cfg(feature = "jiff")]
mod due_times;
mod faults;
mod meta;
mod refusals;
mod support;
mod trace_context;
mod waits;
