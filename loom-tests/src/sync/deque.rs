//! Stand-ins for the deque and the injector of crossbeam.
//!
//! - `is_empty`, `len` and a steal read a length with `Relaxed`. The length may be out of date in
//!   either direction, unless the reader and the writer are ordered by other means.
//! - A steal returns `Retry` if the length changes during the steal, also by a push, and if it has
//!   read an old length.
//! - Only one thing is ordered: the thread that takes an item sees what the pushing thread did
//!   before the push. A thief that finds nothing is ordered with no other thread. An owner is not
//!   ordered with the thieves.
//!
//! `models/litmus.rs` shows each of these weaknesses.

use std::collections::VecDeque;
use std::sync::PoisonError;

use super::Arc;
use super::atomic::{AtomicUsize, Ordering};

/// The largest number of items that a steal of a batch takes. It is two, so that a steal also
/// leaves an item in the local deque in models with few items.
const BATCH: usize = 2;

/// The result of a steal, with the names of crossbeam.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Steal<T> {
    Empty,
    Success(T),
    Retry,
}

#[derive(Debug)]
struct Queue<T> {
    /// Changed together with `items`: the checker can't interrupt a thread between the two changes.
    length: AtomicUsize,
    /// The checker does not see this lock, so it orders no threads. It is never contended: the
    /// checker runs one thread at a time, and switches only at its own operations.
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

    /// Takes one item if the length is still `seen`. Otherwise returns the current length.
    fn take(&self, seen: usize) -> Result<T, usize> {
        // Acquire pairs with the Release in `push`. Relaxed on failure, and no Release on
        // success: a thief publishes nothing to other threads.
        self.length
            .compare_exchange(seen, seen - 1, Ordering::Acquire, Ordering::Relaxed)?;
        let item = self
            .items
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front();
        Ok(item.expect("as many items as the length says"))
    }

    /// Takes an item as the owner does, which never fails while there is one.
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

/// The end of the owner.
#[derive(Debug)]
pub(crate) struct Worker<T>(Arc<Queue<T>>);

/// The end of a thief.
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
