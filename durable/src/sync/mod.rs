//! The only module of this crate that names `std::sync`, `std::thread` or crossbeam.

use std::sync::PoisonError;

pub(crate) use std::sync::{Arc, MutexGuard};

pub(crate) mod channel {
    pub(crate) use crossbeam_channel::{Receiver, Sender, unbounded};
}

#[cfg(feature = "sqlite")]
pub(crate) mod thread {
    pub(crate) use std::thread::sleep;
}

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicI64, Ordering};
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

/// A condition variable for a [`Mutex`] of this module. Wake-ups without a reason happen.
#[derive(Debug, Default)]
pub(crate) struct Condvar(std::sync::Condvar);

impl Condvar {
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
