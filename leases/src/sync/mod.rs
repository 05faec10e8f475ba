//! The one place of this crate that names `std::sync`, `std::thread` or crossbeam.
//!
//! Everything else takes its atomics, locks and channels from here, so that the models in `loom-tests`
//! compile the very files that ship, with loom's types in this place. Threads wait with
//! [`ClockParker`](tourbillon::ClockParker), which has loom's types underneath there, too.

mod origin;

use std::sync::PoisonError;

pub(crate) use origin::Origin;
pub(crate) use std::sync::{Arc, MutexGuard, OnceLock, Weak};

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
}

pub(crate) mod channel {
    pub(crate) use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
}

#[cfg(feature = "redis")]
pub(crate) mod thread {
    pub(crate) use std::thread::{Builder, panicking};
}

/// A lock that ignores poison: no user code runs under it, and what panics under it has changed
/// nothing yet.
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

/// A number that no other call of this process gets, within 4 billion of them.
#[cfg(any(test, feature = "redis", feature = "test-util"))]
pub(crate) fn unique_number() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    // Relaxed: only the numbers must differ.
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
