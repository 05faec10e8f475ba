//! The one place that names `std::sync`, `std::thread`, crossbeam and `parking_lot`.
//!
//! All other modules take their atomics, locks, parkers, deques and thread-locals from here. The
//! models in `loom-tests` compile the same files that ship, with another module of this name: its
//! items have the same names, and loom's types underneath.
//!
//! - [`Mutex`] has no poison. A panic under a stripe's lock can only come from a key's `Eq` or
//!   `Clone`, or from a closure that gets a value. Each of them is called before anything is
//!   changed for its entry, except by the closure itself.
//! - [`Parker`] holds one token. An unpark before the park is not lost.
//! - In a forked copy of a process, a [`Mutex`] is polled and never parks: another thread of the
//!   original may have had a lock of `parking_lot`'s own table of parked threads, which stays
//!   locked in the copy, and that table leads to threads that are gone. Nothing locks a mutex of
//!   before the fork there.
//! - The deque and the injector are those of crossbeam. The stand-ins of the models are weaker.

mod bell;
mod number;
mod thread_state;

use std::time::Duration;

pub(crate) use bell::{Bell, Ring, Sleeper};
pub(crate) use crossbeam_utils::CachePadded;
pub(crate) use crossbeam_utils::sync::{Parker, Unparker};
pub(crate) use number::unique_number;
pub(crate) use parking_lot::MutexGuard;
pub(crate) use std::sync::{Arc, OnceLock, Weak};
pub(crate) use std::thread_local;

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
}

pub(crate) mod deque {
    pub(crate) use crossbeam_deque::{Injector, Steal, Stealer, Worker};
}

/// Whether this process is a forked copy, and the word of a thread that a fork changes.
pub(crate) mod fork {
    pub(crate) use tourbillon_fork::{Origin, UNCHECKED, forks, is_copy, set_word, word};
}

pub(crate) mod channel {
    // Public as `tourbillon::channel`.
    pub use crossbeam_channel::{
        IntoIter, Iter, Receiver, RecvError, RecvTimeoutError, Select, SelectTimeoutError,
        SelectedOperation, TryIter, TryRecvError, TrySelectError, never, select,
    };
    pub(crate) use crossbeam_channel::{Sender, bounded};
}

pub(crate) mod thread {
    pub(crate) use super::thread_state::{own_number, waits, wake_exactly};
    pub(crate) use std::thread::{Builder, panicking};
}

/// A lock without poison.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Mutex(parking_lot::Mutex::new(value))
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        if fork::is_copy() {
            return self.lock_in_copy();
        }
        self.0.lock()
    }

    /// Takes the lock for a caller that knows that this process is no forked copy.
    #[inline(always)]
    pub(crate) fn lock_in_original(&self) -> MutexGuard<'_, T> {
        self.0.lock()
    }

    #[cold]
    fn lock_in_copy(&self) -> MutexGuard<'_, T> {
        let backoff = crossbeam_utils::Backoff::new();
        loop {
            if let Some(guard) = self.0.try_lock() {
                return guard;
            }
            if backoff.is_completed() {
                std::thread::sleep(Duration::from_micros(50));
            } else {
                backoff.snooze();
            }
        }
    }

    /// Takes the lock if it is free.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock()
    }
}

/// Parks for at most `limit`; returns early when unparked, and possibly for no reason.
pub(crate) fn park_for(parker: &Parker, limit: Duration) {
    parker.park_timeout(limit);
}
