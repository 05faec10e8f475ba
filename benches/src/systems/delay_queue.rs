//! What users build today: a `tokio_util` `DelayQueue` and a map from the caller's key to the
//! queue's, behind one mutex; a task on a runtime of one thread polls the queue. Or the queue alone,
//! for callers that keep its key.
//!
//! The eight bytes that a timer keeps are the key alone, which the task needs anyway to clean up
//! the map: less than what ours keeps. The queue itself wakes the task when a new timer is the
//! earliest. Tasks that may block go to the runtime's blocking pool.

use std::collections::hash_map::Entry;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::runtime::{Builder, Handle};
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

use super::{Handles, Keyed, System, Tasks};
use crate::recorder::fired;

/// With the map.
pub(crate) struct WithMap(Polled);

/// Without.
pub(crate) struct Bare(Polled);

struct Polled {
    shared: Arc<Shared>,
    runtime: Handle,
}

struct Shared {
    inner: Mutex<Inner>,
    keyed: bool,
    tasks: Tasks,
}

#[derive(Default)]
struct Inner {
    /// Empty without keys.
    keys: FxHashMap<u64, Key>,
    queue: DelayQueue<u64>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fires what is due, outside the mutex. Never ready: the queue wakes the task when there is
    /// something.
    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut values = Vec::with_capacity(BATCH);
        loop {
            self.take_due(context, &mut values);
            let more = values.len() == BATCH;
            for value in values.drain(..) {
                match self.tasks {
                    Tasks::Short => fired(value),
                    Tasks::MayBlock => drop(tokio::task::spawn_blocking(move || fired(value))),
                }
            }
            if !more {
                return Poll::Pending;
            }
        }
    }

    /// Up to a batch of what is due. If it is less, the queue knows whom to wake.
    fn take_due(&self, context: &mut Context<'_>, values: &mut Vec<u64>) {
        let mut inner = self.lock();
        while values.len() < BATCH {
            let Poll::Ready(Some(expired)) = inner.queue.poll_expired(context) else {
                return;
            };
            let value = expired.into_inner();
            if self.keyed {
                inner.keys.remove(&value);
            }
            values.push(value);
        }
    }
}

/// So many are taken out at a time.
const BATCH: usize = 256;

impl Polled {
    fn new(keyed: bool, tasks: Tasks) -> Self {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime without I/O needs nothing");
        let handle = runtime.handle().clone();
        let shared = Arc::new(Shared {
            inner: Mutex::default(),
            keyed,
            tasks,
        });
        let poller = Arc::clone(&shared);
        thread::spawn(move || runtime.block_on(poll_fn(|context| poller.poll(context))));
        Polled {
            shared,
            runtime: handle,
        }
    }

    /// A task that is spawned now runs after the polling task that was woken before; the second one
    /// covers a wake-up that came between the two.
    fn settle(&self) {
        for _ in 0..2 {
            let (done, wait) = mpsc::channel();
            self.runtime.spawn(async move { done.send(()) });
            wait.recv().expect("the polling thread runs");
        }
    }

    /// The queue makes its sleep in the caller's context.
    fn on_thread<R>(&self, work: impl FnOnce() -> R) -> R {
        let _runtime = self.runtime.enter();
        work()
    }
}

impl System for WithMap {
    const NAME: &'static str = "DelayQueue";
    const ABOUT: &'static str = "tokio_util DelayQueue + FxHash map in a mutex, a polling task";

    fn new(tasks: Tasks) -> Self {
        WithMap(Polled::new(true, tasks))
    }

    fn pending(&self) -> usize {
        self.0.shared.lock().queue.len()
    }

    fn settle(&self) {
        self.0.settle();
    }

    fn on_thread<R>(&self, work: impl FnOnce() -> R) -> R {
        self.0.on_thread(work)
    }
}

impl Keyed for WithMap {
    fn start(&self, key: u64, delay: Duration) {
        let mut inner = self.0.shared.lock();
        let Inner { keys, queue } = &mut *inner;
        match keys.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(queue.insert(key, delay));
            }
            Entry::Occupied(occupied) => queue.reset(occupied.get(), delay),
        }
    }

    fn stop(&self, key: u64) -> bool {
        let mut inner = self.0.shared.lock();
        let Some(queued) = inner.keys.remove(&key) else {
            return false;
        };
        inner.queue.remove(&queued);
        true
    }

    fn touch(&self, key: u64, delay: Duration) -> bool {
        let mut inner = self.0.shared.lock();
        let Inner { keys, queue } = &mut *inner;
        let Some(queued) = keys.get(&key) else {
            return false;
        };
        queue.reset(queued, delay);
        true
    }
}

impl System for Bare {
    const NAME: &'static str = "DelayQueue-bare";
    const ABOUT: &'static str = "tokio_util DelayQueue in a mutex, by its own keys";

    fn new(tasks: Tasks) -> Self {
        Bare(Polled::new(false, tasks))
    }

    fn pending(&self) -> usize {
        self.0.shared.lock().queue.len()
    }

    fn settle(&self) {
        self.0.settle();
    }

    fn on_thread<R>(&self, work: impl FnOnce() -> R) -> R {
        self.0.on_thread(work)
    }
}

impl Handles for Bare {
    type Timeout = Key;

    fn start(&self, value: u64, delay: Duration) -> Key {
        self.0.shared.lock().queue.insert(value, delay)
    }

    /// A key of the queue may be given out again after its timer fired, so a caller of this peer has
    /// to know that by itself; here nothing that is stopped has fired but by a rare accident.
    fn stop(&self, timeout: Key) -> bool {
        self.0.shared.lock().queue.try_remove(&timeout).is_some()
    }
}
