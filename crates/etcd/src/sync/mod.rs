//! The only module of this crate that names `std::sync` or `std::thread`.

pub(crate) use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
pub(crate) use tourbillon_fork::Origin;

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
}

pub(crate) mod channel {
    pub(crate) use std::sync::mpsc::{RecvTimeoutError, channel};
}

pub(crate) mod thread {
    /// Starts a thread with this name.
    pub(crate) fn spawn<F>(name: &str, run: F) -> std::io::Result<()>
    where
        F: FnOnce() + Send + 'static,
    {
        let builder = std::thread::Builder::new().name(name.to_owned());
        builder.spawn(run).map(drop)
    }
}

/// Locks, also after a panic of another thread: no state here is left half-changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
