//! The types that run in production, from std and crossbeam.

use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

pub(crate) use crossbeam_utils::CachePadded;
pub(crate) use crossbeam_utils::sync::{Parker, Unparker};
pub(crate) use std::sync::MutexGuard;
pub(crate) use std::thread_local;

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
}

pub(crate) mod deque {
    pub(crate) use crossbeam_deque::{Injector, Steal, Stealer, Worker};
}

pub(crate) mod channel {
    pub(crate) use crossbeam_channel::{Receiver, Sender, TryRecvError, TrySendError, bounded};
}

pub(crate) mod thread {
    pub(crate) use crate::sync::thread_state::{own_number, waits};
    pub(crate) use std::thread::{Builder, panicking};
}

/// A lock that ignores poison.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock if it is free.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Parks for at most `limit`; returns early when unparked, and possibly for no reason.
pub(crate) fn park_for(parker: &Parker, limit: Duration) {
    parker.park_timeout(limit);
}
