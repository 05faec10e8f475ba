//! The one place that names `std::sync`, `std::thread`, crossbeam or a checker.
//!
//! Everything above takes its atomics, locks, parkers, deques and thread-locals from here, so that
//! the models in `loom-tests` compile the very files that ship, with loom's types underneath.
//!
//! - [`Mutex`] ignores poison: a panic under a stripe's lock can only come from a key's `Eq` or
//!   `Clone`, or from what looks at a value, and each is called before anything is changed for its
//!   entry, but for the value itself.
//! - [`Parker`] holds one token; an unpark before the park is not lost.
//! - The deque and the injector are crossbeam's. For the checker they are stand-ins that are weaker
//!   than the real ones; see `stand_in.rs`.
//! - Reference counts are std's even under the checker: no protocol here depends on them.

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

/// The process in which something was made.
///
/// A fork copies the memory of a process and only the thread that forks. A lock that another thread
/// held at that moment stays locked in the copy, and sockets are shared with the original. What must
/// not be used in a copy keeps its origin and looks at it before it takes a lock. Only the leases have
/// such parts; this one is for their models.
#[cfg(loom)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin(u32);

#[cfg(loom)]
impl Origin {
    /// The process that calls.
    pub(crate) fn here() -> Self {
        Origin(std::process::id())
    }

    /// Whether the process that calls is a forked copy. One system call. A copy of a copy may get the
    /// number of an original that has ended; nothing safe can tell those two apart.
    pub(crate) fn is_elsewhere(self) -> bool {
        std::process::id() != self.0
    }
}

/// A number that no other call of this process gets, within 4 billion of them.
pub(crate) fn unique_number() -> u32 {
    // std's atomic even under the checker, which has no statics: nothing is ordered by it.
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    // Relaxed: only the numbers must differ.
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
