//! What stores on a server have in common: a runtime for their connections, and calls that run there.
//!
//! A call runs as a task where the connections are, and a future waits for its answer. So the future
//! may be polled anywhere, on any runtime or on none. If it is dropped, the task ends where it stands.

mod driven;
mod fork_safe;
mod io;
mod job;
mod limit;
mod turn;

pub(crate) use fork_safe::ForkSafe;
pub(crate) use io::Io;
pub(crate) use job::Task;
pub(crate) use limit::Limit;

use crate::store::StoreError;

/// The error of a call whose runtime does not answer.
pub(crate) fn no_runtime(what: &str) -> StoreError {
    StoreError::Unavailable(format!(
        "{what}: the runtime of its connections has ended, or lacks its I/O or its timers; build one for \
         a store with `enable_all`, and keep it for as long as the store"
    ))
}
