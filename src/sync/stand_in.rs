//! What the checker sees: loom's types, and stand-ins for crossbeam's deque, injector and parker.
//!
//! The stand-ins are deliberately weaker than the real ones: `is_empty` reads a length with
//! `Relaxed`, which may be out of date in either direction, and a steal may answer `Retry` for no
//! reason. A protocol that is right on these is right on crossbeam's. `loom-tests` has litmus tests
//! that show the weakness.

use std::collections::VecDeque;
use std::time::Duration;

use super::Arc;

pub(crate) use loom::sync::MutexGuard;
pub(crate) use loom::thread_local;

pub(crate) mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
}

pub(crate) mod thread {
    pub(crate) use loom::thread::yield_now;
}

/// A lock that ignores poison.
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
}

/// No padding: the checker has no caches.
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

/// One token, one owner.
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

/// A timeout is only another waker, and no protocol may need one: the checker parks for good.
pub(crate) fn park_for(parker: &Parker, _limit: Duration) {
    parker.park();
}

pub(crate) mod deque {
    use super::atomic::{AtomicBool, AtomicUsize, Ordering};
    use super::{Arc, Mutex, VecDeque};

    /// What a steal answers; the names are crossbeam's.
    #[derive(Debug, PartialEq, Eq)]
    pub(crate) enum Steal<T> {
        Empty,
        Success(T),
        Retry,
    }

    #[derive(Debug)]
    struct Queue<T> {
        items: Mutex<VecDeque<T>>,
        length: AtomicUsize,
        /// The first steal of an execution may be refused: `contend` arms it.
        contended: AtomicBool,
    }

    impl<T> Queue<T> {
        fn new() -> Arc<Self> {
            Arc::new(Queue {
                items: Mutex::new(VecDeque::new()),
                length: AtomicUsize::new(0),
                contended: AtomicBool::new(false),
            })
        }

        fn push(&self, item: T) {
            let mut items = self.items.lock();
            items.push_back(item);
            let length = items.len();
            // The length is stored outside the lock on purpose, as late as crossbeam's is visible.
            drop(items);
            let _ = length;
            // Relaxed: weaker than the real one on purpose, nothing may rely on it without a fence.
            self.length.fetch_add(1, Ordering::Relaxed);
        }

        fn take(&self) -> Option<T> {
            let item = self.items.lock().pop_front();
            if item.is_some() {
                // Relaxed: see `push`. The count may pass below zero for a moment and wraps.
                self.length.fetch_sub(1, Ordering::Relaxed);
            }
            item
        }

        fn steal(&self) -> Steal<T> {
            // Relaxed: only makes one answer `Retry`, orders nothing.
            if self.contended.swap(false, Ordering::Relaxed) {
                return Steal::Retry;
            }
            self.take().map_or(Steal::Empty, Steal::Success)
        }

        fn is_empty(&self) -> bool {
            // Relaxed: weaker than the real one on purpose.
            self.length.load(Ordering::Relaxed) == 0
        }
    }

    /// The owner's end.
    #[derive(Debug)]
    pub(crate) struct Worker<T>(Arc<Queue<T>>);

    /// A thief's end.
    #[derive(Debug)]
    pub(crate) struct Stealer<T>(Arc<Queue<T>>);

    /// A shared queue.
    #[derive(Debug)]
    pub(crate) struct Injector<T>(Arc<Queue<T>>);

    impl<T> Worker<T> {
        pub(crate) fn new_fifo() -> Self {
            Worker(Queue::new())
        }

        pub(crate) fn stealer(&self) -> Stealer<T> {
            Stealer(Arc::clone(&self.0))
        }

        pub(crate) fn push(&self, item: T) {
            self.0.push(item);
        }

        pub(crate) fn pop(&self) -> Option<T> {
            self.0.take()
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.0.is_empty()
        }
    }

    impl<T> Clone for Stealer<T> {
        fn clone(&self) -> Self {
            Stealer(Arc::clone(&self.0))
        }
    }

    impl<T> Stealer<T> {
        pub(crate) fn is_empty(&self) -> bool {
            self.0.is_empty()
        }

        pub(crate) fn steal(&self) -> Steal<T> {
            self.0.steal()
        }

        /// Takes up to two, so that models with few items still have a rest in the local deque.
        pub(crate) fn steal_batch_and_pop(&self, into: &Worker<T>) -> Steal<T> {
            let first = self.0.steal();
            if let Steal::Success(_) = &first
                && let Some(second) = self.0.take()
            {
                into.push(second);
            }
            first
        }

        /// Makes the next steal answer `Retry`.
        pub(crate) fn contend(&self) {
            // Relaxed: see `steal`.
            self.0.contended.store(true, Ordering::Relaxed);
        }
    }

    impl<T> Injector<T> {
        pub(crate) fn new() -> Self {
            Injector(Queue::new())
        }

        pub(crate) fn push(&self, item: T) {
            self.0.push(item);
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.0.is_empty()
        }

        pub(crate) fn steal(&self) -> Steal<T> {
            self.0.steal()
        }

        pub(crate) fn steal_batch_and_pop(&self, into: &Worker<T>) -> Steal<T> {
            let first = self.0.steal();
            if let Steal::Success(_) = &first
                && let Some(second) = self.0.take()
            {
                into.push(second);
            }
            first
        }
    }
}
