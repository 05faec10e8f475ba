//! The only module of this crate that names `std::sync`, `std::thread` or crossbeam. Beside them:
//! how user code runs that may panic, and on whose threads.

mod panics;
mod runs_on;

use std::sync::PoisonError;
#[cfg(feature = "cron")]
use std::sync::TryLockError;

pub(crate) use panics::catch_panic;
pub(crate) use runs_on::RunsOn;
pub(crate) use std::sync::{Arc, MutexGuard, OnceLock, Weak};
pub(crate) use std::thread_local;
pub(crate) use tourbillon_fork::Origin;
#[cfg(feature = "sqlite")]
pub(crate) use tourbillon_fork::SQLITE;

pub(crate) mod channel {
    pub(crate) use crossbeam_channel::{
        Receiver, RecvTimeoutError, Sender, TrySendError, bounded, unbounded,
    };
}

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
}

pub(crate) mod thread {
    pub(crate) use std::thread::{JoinHandle, Thread, current, park, park_timeout, sleep};

    /// Starts a thread with a name, which lists of threads show.
    pub(crate) fn spawn<F>(name: &str, run: F) -> std::io::Result<JoinHandle<()>>
    where
        F: FnOnce() + Send + 'static,
    {
        std::thread::Builder::new()
            .name(format!("durable-{name}"))
            .spawn(run)
    }
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

    /// The lock, unless a thread has it.
    #[cfg(feature = "cron")]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poison)) => Some(poison.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
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
