//! The one place that names `std::sync`, `std::thread`, crossbeam or a checker.
//!
//! All other modules take their atomics, locks, parkers, deques and thread-locals from here. So the
//! models in `loom-tests` compile the same files that ship, with loom's types underneath.
//!
//! - [`Mutex`] ignores poison. A panic under a stripe's lock can only come from a key's `Eq` or
//!   `Clone`, or from a closure that gets a value. Each of them is called before anything is
//!   changed for its entry, except by the closure itself.
//! - [`Parker`] holds one token. An unpark before the park is not lost.
//! - The deque and the injector are those of crossbeam. The checker uses stand-ins that are weaker
//!   than the real ones; see `stand_in.rs`.
//! - Reference counts are std's even under the checker, because no protocol here depends on them.

#[cfg(not(loom))]
mod real;
#[cfg(loom)]
mod stand_in;
#[cfg(not(loom))]
mod thread_state;

#[cfg(not(loom))]
pub(crate) use real::*;
#[cfg(loom)]
pub(crate) use stand_in::*;

pub(crate) use std::sync::{Arc, OnceLock, Weak};

/// The process in which a value was made.
///
/// A fork copies the memory of a process, but only the thread that forks. A lock that another
/// thread held at that moment stays locked in the copy, and sockets are shared with the original. A
/// value that must not be used in a copy keeps its origin and checks it before it takes a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin(u32);

impl Origin {
    /// Returns the calling process.
    pub(crate) fn here() -> Self {
        Origin(std::process::id())
    }

    /// Returns whether the calling process is a forked copy. Costs one system call. A copy of a
    /// copy may get the process number of an original that has ended; no safe function can tell
    /// those two apart.
    pub(crate) fn is_elsewhere(self) -> bool {
        std::process::id() != self.0
    }
}

/// Returns a number that no other call in this process gets, within 4 billion calls.
pub(crate) fn unique_number() -> u32 {
    // std's atomic even under the checker, which has no statics: nothing is ordered by it.
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    // Relaxed: only the numbers must differ.
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
