//! What stores outside of the process have in common: limits and forks. Those on a server also share a
//! runtime for their connections, and calls that run there.
//!
//! A call runs as a task where the connections are, and a future waits for its answer. So the future
//! may be polled anywhere, on any runtime or on none. If it is dropped, the task ends where it stands.

#[cfg(any(feature = "postgres", feature = "redis"))]
mod driven;
mod fork_safe;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod io;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod job;
mod limit;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod turn;

pub(crate) use fork_safe::ForkSafe;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use io::Io;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use job::Task;
pub(crate) use limit::Limit;

#[cfg(any(feature = "postgres", feature = "redis"))]
use crate::store::StoreError;

/// The error of a call whose runtime does not answer.
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) fn no_runtime(what: &str) -> StoreError {
    StoreError::Unavailable(format!(
        "{what}: the runtime of its connections has ended, or lacks its I/O or its timers; build one for \
         a store with `enable_all`, and keep it for as long as the store"
    ))
}
