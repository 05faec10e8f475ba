//! What users build today: a `tokio_util` `DelayQueue` and a map from the caller's key to the
//! queue's, behind one mutex; a task on a runtime of one thread polls the queue. Or the queue
//! alone, for callers that keep its key. Or, as the queue's own documentation shows it, a map of
//! values beside their keys in the queue.
//!
//! The eight bytes that a timer keeps are the key alone, which the task needs anyway to clean up
//! the map: less than what ours keeps. The queue itself wakes the task when a new timer is the
//! earliest. The clock is read before the mutex is locked, which favours this peer. Tasks that may
//! block go to the runtime's blocking pool.

use std::collections::hash_map::Entry;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

use super::by_number::{self, ByNumber};
use super::on_tokio;
use crate::system::{Handles, Payload, System, Tasks};

pub(crate) type WithMap = by_number::ByKey<Polled<()>>;
pub(crate) type SessionMap = by_number::SessionMap<Polled<u64>>;

/// Without the map.
pub(crate) struct Bare(Polled<()>);

pub(crate) struct Polled<V> {
    shared: Arc<Shared<V>>,
    runtime: Handle,
}

struct Shared<V> {
    inner: Mutex<Inner<V>>,
    keyed: bool,
    tasks: Tasks,
}

#[derive(Default)]
struct Inner<V> {
    /// Empty without keys.
    keys: FxHashMap<u64, (Key, V)>,
    queue: DelayQueue<u64>,
}

impl<V> Inner<V> {
    /// In the place of what is there.
    fn insert(&mut self, key: u64, value: V, deadline: Instant) {
        match self.keys.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert((self.queue.insert_at(key, deadline), value));
            }
            Entry::Occupied(mut occupied) => {
                self.queue.reset_at(&occupied.get().0, deadline);
                occupied.get_mut().1 = value;
            }
        }
    }

    fn remove(&mut self, key: u64) -> Option<V> {
        let (queued, value) = self.keys.remove(&key)?;
        self.queue.remove(&queued);
        Some(value)
    }

    fn touch(&mut self, key: u64, deadline: Instant) -> bool {
        let Some((queued, _)) = self.keys.get(&key) else {
            return false;
        };
        self.queue.reset_at(queued, deadline);
        true
    }
}

impl<V: Payload> Shared<V> {
    fn lock(&self) -> MutexGuard<'_, Inner<V>> {
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
                on_tokio::fire(value, self.tasks);
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
            let queued = expired.into_inner();
            if !self.keyed {
                values.push(queued);
            } else if let Some((_, value)) = inner.keys.remove(&queued) {
                values.push(value.value(queued));
            }
        }
    }
}

/// So many are taken out at a time.
const BATCH: usize = 256;

impl<V: Payload> Polled<V> {
    fn with(keyed: bool, tasks: Tasks) -> Self {
        let shared = Arc::new(Shared {
            inner: Mutex::default(),
            keyed,
            tasks,
        });
        let poller = Arc::clone(&shared);
        let runtime = on_tokio::run(|| poll_fn(move |context| poller.poll(context)));
        Polled { shared, runtime }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<V>> {
        self.shared.lock()
    }
}

impl<V: Payload> ByNumber<V> for Polled<V> {
    const NAME: &'static str = "DelayQueue";
    const ABOUT: &'static str = "tokio_util DelayQueue + FxHash map in a mutex, a polling task";

    fn new(tasks: Tasks) -> Self {
        Polled::with(true, tasks)
    }

    fn pending(&self) -> usize {
        self.lock().queue.len()
    }

    fn start(&self, key: u64, value: V, delay: Duration) {
        let deadline = Instant::now() + delay;
        self.lock().insert(key, value, deadline);
    }

    fn remove(&self, key: u64) -> Option<V> {
        self.lock().remove(key)
    }

    fn touch(&self, key: u64, delay: Duration) -> bool {
        let deadline = Instant::now() + delay;
        self.lock().touch(key, deadline)
    }

    fn get(&self, key: u64) -> Option<V> {
        self.lock().keys.get(&key).map(|(_, value)| *value)
    }

    /// Under one hold of the mutex, and by one reading of the clock.
    fn touch_many(&self, keys: &[u64], delay: Duration) -> usize {
        let deadline = Instant::now() + delay;
        let mut inner = self.lock();
        let touched = keys.iter().filter(|key| inner.touch(**key, deadline));
        touched.count()
    }

    /// The polling task was woken before.
    fn settle(&self) {
        on_tokio::settle(&self.runtime);
    }

    /// The queue makes its sleep in the caller's context.
    fn on_thread<R>(&self, work: impl FnOnce() -> R) -> R {
        let _runtime = self.runtime.enter();
        work()
    }
}

impl System for Bare {
    const NAME: &'static str = "DelayQueue-bare";
    const ABOUT: &'static str = "tokio_util DelayQueue in a mutex, by its own keys";

    fn pending(&self) -> usize {
        self.0.pending()
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

    fn new(tasks: Tasks) -> Self {
        Bare(Polled::with(false, tasks))
    }

    fn start(&self, value: u64, delay: Duration) -> Key {
        let deadline = Instant::now() + delay;
        self.0.lock().queue.insert_at(value, deadline)
    }

    /// A key of the queue may be given out again after its timer fired, so a caller of this peer
    /// has to know that by itself; here nothing that is stopped has fired but by a rare accident.
    fn stop(&self, timeout: Key) -> bool {
        self.0.lock().queue.try_remove(&timeout).is_some()
    }
}
