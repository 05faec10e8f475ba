//! What users build today: a `tokio_util` `DelayQueue` and a map from the caller's key to the
//! queue's, behind one mutex; a task on a runtime of one thread polls the queue.
//!
//! The eight bytes that a timer keeps are the key alone, which the task needs anyway to clean up
//! the map: less than what ours keeps. The queue itself wakes the task when a new timer is the
//! earliest.

use std::collections::hash_map::Entry;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::runtime::{Builder, Handle};
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue;

use super::{System, fired};

pub(crate) struct DelayQueueMap {
    shared: Arc<Shared>,
    runtime: Handle,
}

struct Shared(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    keys: FxHashMap<u64, delay_queue::Key>,
    queue: DelayQueue<u64>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fires what is due. Never ready: the queue wakes the task when there is something.
    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.lock();
        while let Poll::Ready(Some(expired)) = inner.queue.poll_expired(context) {
            let key = expired.into_inner();
            inner.keys.remove(&key);
            fired(key);
        }
        Poll::Pending
    }
}

impl System for DelayQueueMap {
    const NAME: &'static str = "DelayQueue";
    const ABOUT: &'static str = "tokio_util DelayQueue + FxHash map in a mutex, a polling task";

    fn new() -> Self {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime without I/O needs nothing");
        let handle = runtime.handle().clone();
        let shared = Arc::new(Shared(Mutex::default()));
        let poller = Arc::clone(&shared);
        thread::spawn(move || runtime.block_on(poll_fn(|context| poller.poll(context))));
        DelayQueueMap {
            shared,
            runtime: handle,
        }
    }

    fn start(&self, key: u64, delay: Duration) {
        let mut inner = self.shared.lock();
        let Inner { keys, queue } = &mut *inner;
        match keys.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(queue.insert(key, delay));
            }
            Entry::Occupied(occupied) => queue.reset(occupied.get(), delay),
        }
    }

    fn stop(&self, key: u64) -> bool {
        let mut inner = self.shared.lock();
        let Some(queued) = inner.keys.remove(&key) else {
            return false;
        };
        inner.queue.remove(&queued);
        true
    }

    fn touch(&self, key: u64, delay: Duration) -> bool {
        let mut inner = self.shared.lock();
        let Inner { keys, queue } = &mut *inner;
        let Some(queued) = keys.get(&key) else {
            return false;
        };
        queue.reset(queued, delay);
        true
    }

    fn pending(&self) -> usize {
        self.shared.lock().queue.len()
    }

    /// A task that is spawned now runs after the polling task that was woken before; the second one
    /// covers a wake-up that came between the two.
    fn settle(&self) {
        for _ in 0..2 {
            let (done, wait) = mpsc::channel();
            self.runtime.spawn(async move { done.send(()) });
            let _ = wait.recv();
        }
    }

    /// The queue makes its sleep in the caller's context.
    fn on_thread<R>(&self, work: impl FnOnce() -> R) -> R {
        let _runtime = self.runtime.enter();
        work()
    }
}
