//! The only module of this crate that names `std::sync`, `std::thread` or crossbeam.
//!
//! All other modules take their atomics, locks and channels from here. So the models in
//! `loom-tests` compile the very files that ship, with loom's types in this place. Threads wait
//! with [`ClockParker`](tourbillon::ClockParker), which uses loom's types in the models, too.
//! Beside them: how user code runs that may panic.

mod origin;
mod panics;

use std::sync::PoisonError;

pub(crate) use origin::Origin;
pub(crate) use panics::catch_panic;
pub(crate) use std::sync::{Arc, MutexGuard, OnceLock, Weak};
pub(crate) use std::thread_local;
#[cfg(feature = "sqlite")]
pub(crate) use tourbillon_fork::{Origin as ForkOrigin, SQLITE};

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
}

pub(crate) mod channel {
    pub(crate) use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
}

pub(crate) mod thread {
    pub(crate) use std::thread::Builder;
    #[cfg(feature = "sqlite")]
    pub(crate) use std::thread::sleep;
}

/// A mutex that ignores poison. That is sound because no user code runs under the lock, and code
/// that panics under it has not changed anything yet.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a number that differs from those of the last 4 billion calls in this process.
#[cfg(any(
    test,
    feature = "postgres",
    feature = "redis",
    feature = "sqlite",
    feature = "test-util"
))]
pub(crate) fn unique_number() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    // Relaxed: the numbers must differ, and nothing else depends on their order.
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
