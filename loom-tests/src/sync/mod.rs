//! The names of `src/sync` for the checker: loom's types, and stand-ins for crossbeam's
//! deque, injector, parker and bounded channel.
//!
//! The stand-ins promise less than crossbeam's types. So a protocol that is correct with the
//! stand-ins is correct with crossbeam. `Arc` is that of std, since no protocol depends on
//! reference counts.

#[path = "../../../src/sync/bell.rs"]
mod bell;
pub(crate) mod channel;
pub(crate) mod deque;
#[path = "../../../src/sync/number.rs"]
mod number;
#[path = "../../../crates/leases/src/sync/origin.rs"]
mod origin;
#[path = "../../../crates/leases/src/sync/panics.rs"]
mod panics;

use std::time::Duration;

pub(crate) use bell::{Bell, Ring, Sleeper};
pub(crate) use loom::sync::MutexGuard;
pub(crate) use number::unique_number;
pub(crate) use origin::Origin;
pub(crate) use panics::catch_panic;
pub(crate) use std::sync::{Arc, OnceLock, Weak};

pub(crate) mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
}

pub(crate) mod thread {
    pub(crate) use loom::thread::yield_now;
    /// Std's works here, since only the running thread asks.
    pub(crate) use std::thread::panicking;

    /// The number of a thread that waits. Models choose the numbers; all other threads run.
    pub(crate) const WAITING: u64 = 7;

    /// Returns the number of a running thread, since a worker waits only in the pool.
    pub(crate) fn own_number() -> Option<u64> {
        Some(1)
    }

    pub(crate) fn waits(number: u64) -> Option<bool> {
        Some(number == WAITING)
    }

    pub(crate) fn wake_exactly() {}
}

/// As in the crate, except that the word of a thread is one of loom's, whose threads are no threads
/// of the system. No model forks.
pub(crate) mod fork {
    use std::cell::Cell;

    pub(crate) use tourbillon_fork::{Origin, UNCHECKED, is_copy};

    loom::thread_local! { static WORD: Cell<u32> = Cell::new(UNCHECKED); }

    pub(crate) fn word() -> u32 {
        WORD.with(Cell::get)
    }

    pub(crate) fn set_word(word: u32) {
        WORD.with(|cell| cell.set(word));
    }
}

/// Adapts loom's macro to the syntax of std's, since loom's does not know `const { .. }`.
macro_rules! checked_thread_local {
    (static $name:ident: $type:ty = const $init:block;) => {
        loom::thread_local! { static $name: $type = $init; }
    };
}
pub(crate) use checked_thread_local as thread_local;

/// A mutex that ignores poison.
#[derive(Debug)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        match self.0.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    pub(crate) fn lock_in_original(&self) -> MutexGuard<'_, T> {
        self.lock()
    }

    /// Tries to lock. An error means that the mutex is locked, since loom's mutex has no poison.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

/// A stand-in without padding, since the checker has no caches.
#[derive(Debug, Default)]
pub(crate) struct CachePadded<T>(T);

impl<T> CachePadded<T> {
    pub(crate) fn new(value: T) -> Self {
        CachePadded(value)
    }
}

impl<T> std::ops::Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> std::ops::DerefMut for CachePadded<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

#[derive(Debug)]
struct Token {
    set: loom::sync::Mutex<bool>,
    arrived: loom::sync::Condvar,
}

/// A parker with one token and one owner.
#[derive(Debug)]
pub(crate) struct Parker(Unparker);

/// Sets the token of a [`Parker`].
#[derive(Clone, Debug)]
pub(crate) struct Unparker(Arc<Token>);

impl Parker {
    pub(crate) fn new() -> Self {
        Parker(Unparker(Arc::new(Token {
            set: loom::sync::Mutex::new(false),
            arrived: loom::sync::Condvar::new(),
        })))
    }

    pub(crate) fn unparker(&self) -> &Unparker {
        &self.0
    }

    pub(crate) fn park(&self) {
        let token = &self.0.0;
        let mut set = token.set.lock().unwrap();
        while !*set {
            set = token.arrived.wait(set).unwrap();
        }
        *set = false;
    }
}

impl Unparker {
    pub(crate) fn unpark(&self) {
        *self.0.set.lock().unwrap() = true;
        self.0.arrived.notify_one();
    }
}

/// Parks without a timeout. A timeout is only one more reason to wake up, and no protocol may need
/// it.
pub(crate) fn park_for(parker: &Parker, _limit: Duration) {
    parker.park();
}
