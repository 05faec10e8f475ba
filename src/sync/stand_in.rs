//! What the checker sees: loom's types, and stand-ins for crossbeam's deque, injector, parker and
//! bounded channel.
//!
//! A protocol that is right on the stand-ins is right on crossbeam's, since they promise less:
//!
//! - `is_empty`, `len` and a steal read a length with `Relaxed`. It may be out of date in either
//!   direction unless the reader and whoever changed it have ordered themselves by other means.
//! - A steal answers `Retry` whenever the length changed under it, also by a push, and whenever it
//!   had read an old length.
//! - Only one thing is ordered: who takes an item sees what its pusher did before the push. A thief
//!   that finds nothing is ordered with nobody, and neither is an owner with those who stole.
//!
//! `loom-tests/src/models/litmus.rs` shows each of these weaknesses.

use std::collections::VecDeque;
use std::time::Duration;

use super::Arc;

pub(crate) use loom::sync::MutexGuard;

pub(crate) mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
}

pub(crate) mod thread {
    pub(crate) use loom::thread::yield_now;
    /// Only ever asked by the thread that is running.
    pub(crate) use std::thread::panicking;

    /// Models give the numbers: a thread with this one waits, and all others run.
    pub(crate) const WAITING: u64 = 7;

    /// A worker's own loop never waits but in the pool.
    pub(crate) fn own_number() -> Option<u64> {
        Some(1)
    }

    pub(crate) fn waits(number: u64) -> Option<bool> {
        Some(number == WAITING)
    }
}

/// loom's macro with the syntax of std's: it does not know `const { .. }`.
macro_rules! checked_thread_local {
    (static $name:ident: $type:ty = const $init:block;) => {
        loom::thread_local! { static $name: $type = $init; }
    };
}
pub(crate) use checked_thread_local as thread_local;

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

    /// Loom's does not poison.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Mutex::new(T::default())
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
    use std::sync::PoisonError;

    use super::atomic::{AtomicUsize, Ordering};
    use super::{Arc, VecDeque};

    /// How many items a steal of a batch takes at most. Two, so that models with few items still
    /// leave a rest in the local deque.
    const BATCH: usize = 2;

    /// What a steal answers; the names are crossbeam's.
    #[derive(Debug, PartialEq, Eq)]
    pub(crate) enum Steal<T> {
        Empty,
        Success(T),
        Retry,
    }

    #[derive(Debug)]
    struct Queue<T> {
        /// Changed together with `items`: nothing that the checker could interrupt lies between.
        length: AtomicUsize,
        /// A lock that the checker does not see, so that it orders nobody. The checker runs one
        /// thread at a time and switches at its own operations only, so it is never contended.
        items: std::sync::Mutex<VecDeque<T>>,
    }

    impl<T> Queue<T> {
        fn new() -> Arc<Self> {
            Arc::new(Queue {
                length: AtomicUsize::new(0),
                items: std::sync::Mutex::new(VecDeque::new()),
            })
        }

        fn push(&self, item: T) {
            // Release pairs with the Acquire in `take`: the one ordering that crossbeam promises.
            self.length.fetch_add(1, Ordering::Release);
            self.items
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push_back(item);
        }

        /// Takes one item, if there are still as many as `seen`; else says how many there are.
        fn take(&self, seen: usize) -> Result<T, usize> {
            // Acquire pairs with the Release in `push`. Relaxed on failure, and no Release on
            // success: a thief tells nobody anything.
            self.length
                .compare_exchange(seen, seen - 1, Ordering::Acquire, Ordering::Relaxed)?;
            let item = self
                .items
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop_front();
            Ok(item.expect("as many items as the length says"))
        }

        /// The owner's, who never fails while there is an item.
        fn pop(&self) -> Option<T> {
            let mut seen = self.len();
            while seen > 0 {
                match self.take(seen) {
                    Ok(item) => return Some(item),
                    Err(now) => seen = now,
                }
            }
            None
        }

        fn steal(&self) -> Steal<T> {
            match self.len() {
                0 => Steal::Empty,
                seen => self.take(seen).map_or(Steal::Retry, Steal::Success),
            }
        }

        fn steal_batch_and_pop(&self, into: &Worker<T>, limit: usize) -> Steal<T> {
            let first = self.steal();
            if let Steal::Success(_) = &first {
                for _ in 1..limit.min(BATCH) {
                    if let Steal::Success(item) = self.steal() {
                        into.push(item);
                    }
                }
            }
            first
        }

        fn len(&self) -> usize {
            // Relaxed: weaker than the real one on purpose.
            self.length.load(Ordering::Relaxed)
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
            self.0.pop()
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.0.len() == 0
        }

        pub(crate) fn len(&self) -> usize {
            self.0.len()
        }
    }

    impl<T> Clone for Stealer<T> {
        fn clone(&self) -> Self {
            Stealer(Arc::clone(&self.0))
        }
    }

    impl<T> Stealer<T> {
        pub(crate) fn is_empty(&self) -> bool {
            self.0.len() == 0
        }

        pub(crate) fn len(&self) -> usize {
            self.0.len()
        }

        pub(crate) fn steal(&self) -> Steal<T> {
            self.0.steal()
        }

        pub(crate) fn steal_batch_and_pop(&self, into: &Worker<T>) -> Steal<T> {
            self.0.steal_batch_and_pop(into, BATCH)
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
            self.0.len() == 0
        }

        pub(crate) fn len(&self) -> usize {
            self.0.len()
        }

        pub(crate) fn steal(&self) -> Steal<T> {
            self.0.steal()
        }

        pub(crate) fn steal_batch_and_pop(&self, into: &Worker<T>) -> Steal<T> {
            self.0.steal_batch_and_pop(into, BATCH)
        }

        pub(crate) fn steal_batch_with_limit_and_pop(
            &self,
            into: &Worker<T>,
            limit: usize,
        ) -> Steal<T> {
            self.0.steal_batch_and_pop(into, limit)
        }
    }
}

/// A bounded channel with a place at least: a lock and two conditions.
pub(crate) mod channel {
    use std::collections::VecDeque;

    use super::Arc;

    #[derive(Debug)]
    struct State<T> {
        items: VecDeque<T>,
        senders: usize,
        receivers: usize,
    }

    #[derive(Debug)]
    struct Channel<T> {
        capacity: usize,
        state: super::Mutex<State<T>>,
        /// Notified of everything, since it is few who wait.
        changed: loom::sync::Condvar,
    }

    impl<T> Channel<T> {
        fn wait<'a>(
            &self,
            state: super::MutexGuard<'a, State<T>>,
        ) -> super::MutexGuard<'a, State<T>> {
            self.changed.wait(state).unwrap()
        }
    }

    #[derive(Debug)]
    pub(crate) struct Sender<T>(Arc<Channel<T>>);

    #[derive(Debug)]
    pub(crate) struct Receiver<T>(Arc<Channel<T>>);

    /// The item that nobody receives.
    #[derive(Debug)]
    pub(crate) struct SendError<T>(pub(crate) T);

    /// All senders are gone, and nothing is left.
    #[derive(Debug)]
    pub(crate) struct RecvError;

    #[derive(Debug, PartialEq, Eq)]
    pub(crate) enum TryRecvError {
        Empty,
        Disconnected,
    }

    pub(crate) fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
        assert!(capacity > 0, "the stand-in has no rendezvous");
        let channel = Arc::new(Channel {
            capacity,
            state: super::Mutex::new(State {
                items: VecDeque::new(),
                senders: 1,
                receivers: 1,
            }),
            changed: loom::sync::Condvar::new(),
        });
        (Sender(Arc::clone(&channel)), Receiver(channel))
    }

    impl<T> Sender<T> {
        pub(crate) fn send(&self, item: T) -> Result<(), SendError<T>> {
            let mut state = self.0.state.lock();
            while state.receivers > 0 && state.items.len() == self.0.capacity {
                state = self.0.wait(state);
            }
            if state.receivers == 0 {
                return Err(SendError(item));
            }
            state.items.push_back(item);
            self.0.changed.notify_all();
            Ok(())
        }
    }

    impl<T> Clone for Sender<T> {
        fn clone(&self) -> Self {
            self.0.state.lock().senders += 1;
            Sender(Arc::clone(&self.0))
        }
    }

    impl<T> Drop for Sender<T> {
        fn drop(&mut self) {
            self.0.state.lock().senders -= 1;
            self.0.changed.notify_all();
        }
    }

    impl<T> Receiver<T> {
        pub(crate) fn recv(&self) -> Result<T, RecvError> {
            let mut state = self.0.state.lock();
            loop {
                if let Some(item) = state.items.pop_front() {
                    self.0.changed.notify_all();
                    return Ok(item);
                }
                if state.senders == 0 {
                    return Err(RecvError);
                }
                state = self.0.wait(state);
            }
        }

        pub(crate) fn try_recv(&self) -> Result<T, TryRecvError> {
            let mut state = self.0.state.lock();
            if let Some(item) = state.items.pop_front() {
                self.0.changed.notify_all();
                return Ok(item);
            }
            Err(if state.senders == 0 {
                TryRecvError::Disconnected
            } else {
                TryRecvError::Empty
            })
        }

        pub(crate) fn len(&self) -> usize {
            self.0.state.lock().items.len()
        }
    }

    impl<T> Clone for Receiver<T> {
        fn clone(&self) -> Self {
            self.0.state.lock().receivers += 1;
            Receiver(Arc::clone(&self.0))
        }
    }

    impl<T> Drop for Receiver<T> {
        fn drop(&mut self) {
            self.0.state.lock().receivers -= 1;
            self.0.changed.notify_all();
        }
    }
}
