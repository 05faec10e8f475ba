//! The background queue of pending releases: one queue for each destination and range of leases,
//! flushes that send the queued items in batches, and a tally of items that were not tried yet.
//!
//! The queues and their flushes are of the same types as those of the renewals (QUEUE-1, QUEUE-2).
//!
//! - **BACKGROUND-1** Each queued item is sent. Whoever queues it arms a flush, after it is in the
//!   queue. A queue is removed under the lock under which items are queued, and only if it is empty
//!   and no flush of it runs.
//! - **BACKGROUND-2** A thread that waits for the queue goes on when every item that entered before
//!   has been tried. An item is counted before it is queued, and until the store has answered. The
//!   thread leaves its unparker under the lock under which it has checked the count.

use std::collections::BTreeMap;
use std::future::Future;

use tourbillon::{Clock, ClockParker, ClockUnparker, Time};

use crate::keep_alive::{DestinationQueue, Flush, QueueKey};
use crate::sync::{Arc, Mutex};

/// What a [`BackgroundQueue`] needs from its owner. No method is called under a lock.
pub(crate) trait Carrier<T> {
    /// Returns the present moment.
    fn now(&self) -> Time;

    /// Returns a number that nothing else of this carrier has.
    fn number(&self) -> u64;

    /// Returns the greatest number of items in one batch.
    fn most(&self) -> usize;

    /// Makes a worker begin a flush of the queue soon, which is a [`BackgroundQueue::flush`]. May be
    /// called in a drop under a lock of somebody else.
    fn arm(&self, queue: &Arc<DestinationQueue<T>>);

    /// Sends a batch.
    fn send(&self, queue_key: QueueKey, batch: Vec<T>) -> impl Future<Output = ()> + Send;
}

/// The items to send in the background, by destination.
pub(crate) struct BackgroundQueue<T> {
    /// Ordered, so that a test without threads flushes in the same order each time.
    queues: Mutex<BTreeMap<QueueKey, Arc<DestinationQueue<T>>>>,
}

impl<T> Default for BackgroundQueue<T> {
    fn default() -> Self {
        BackgroundQueue {
            queues: Mutex::new(BTreeMap::new()),
        }
    }
}

impl<T> BackgroundQueue<T> {
    /// Queues items, each with its queue and the moment until which it is useful. The items that
    /// are useful for the shortest time are sent first.
    pub(crate) fn put(&self, carrier: &impl Carrier<T>, items: Vec<(QueueKey, Time, T)>) {
        let mut into = BTreeMap::new();
        for (queue_key, until, item) in items {
            let number = carrier.number();
            let queue_number = carrier.number();
            let mut queues = self.queues.lock();
            let queue = queues
                .entry(queue_key)
                .or_insert_with(|| Arc::new(DestinationQueue::new(queue_key, queue_number)));
            // Under the lock of all queues: a queue is removed only while it is empty.
            queue.put(until, number, item);
            into.insert(queue_key, Arc::clone(queue));
        }
        // The flushes are armed after all items are queued, so that batches are full.
        for queue in into.values() {
            Self::arm(carrier, queue);
        }
    }

    fn arm(carrier: &impl Carrier<T>, queue: &Arc<DestinationQueue<T>>) {
        if queue.arms(carrier.now()) {
            carrier.arm(queue);
        }
    }

    /// Sends the items of a queue batch by batch, until it is empty. Begins no batch after `until`,
    /// and leaves those to another flush.
    pub(crate) async fn flush(&self, carrier: &impl Carrier<T>, flush: Flush<T>, until: Time) {
        let mut running = RunningFlush {
            background: self,
            carrier,
            queue: Arc::clone(flush.queue()),
            flush: Some(flush),
        };
        while carrier.now() < until
            && let Some(flush) = &mut running.flush
        {
            let batch = flush.take(carrier.most(), |_| true);
            if batch.is_empty() {
                break;
            }
            carrier.send(running.queue.queue_key, batch).await;
        }
    }

    /// Removes an empty queue, unless a flush of it runs: a new queue of the same key would have a
    /// second one.
    fn sweep(&self, queue: &Arc<DestinationQueue<T>>) {
        let mut queues = self.queues.lock();
        let present = queues.get(&queue.queue_key);
        if present.is_some_and(|present| Arc::ptr_eq(present, queue))
            && queue.is_empty()
            && queue.is_idle()
        {
            queues.remove(&queue.queue_key);
        }
    }

    /// Returns all queues.
    pub(crate) fn queues(&self) -> Vec<Arc<DestinationQueue<T>>> {
        self.queues.lock().values().cloned().collect()
    }
}

/// A flush under way. However it ends, the items that it leaves are sent by another flush
/// (BACKGROUND-1).
struct RunningFlush<'a, T, C: Carrier<T>> {
    background: &'a BackgroundQueue<T>,
    carrier: &'a C,
    queue: Arc<DestinationQueue<T>>,
    flush: Option<Flush<T>>,
}

impl<T, C: Carrier<T>> Drop for RunningFlush<'_, T, C> {
    fn drop(&mut self) {
        self.flush = None;
        match self.queue.is_empty() {
            true => self.background.sweep(&self.queue),
            false => BackgroundQueue::arm(self.carrier, &self.queue),
        }
    }
}

/// Counts the items that are not done, and has the threads that wait for them.
#[derive(Default)]
pub(crate) struct Tally(Mutex<QueueCounts>);

#[derive(Default)]
struct QueueCounts {
    /// The number of items that have entered and are not done.
    entered: usize,
    /// The number of these that have not been tried once.
    untried: usize,
    /// The threads that wait until `untried` is zero.
    waiting: Vec<ClockUnparker>,
}

impl Tally {
    /// Counts an item, until the returned value is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> QueuedItem {
        let mut counts = self.0.lock();
        counts.entered += 1;
        counts.untried += 1;
        drop(counts);
        QueuedItem {
            tally: Arc::clone(self),
            tried: false,
        }
    }

    /// Returns the number of items that have entered and are not done.
    pub(crate) fn entered(&self) -> usize {
        self.0.lock().entered
    }

    /// Waits until each item has been tried once, or until `until` by this clock.
    pub(crate) fn settled(&self, clock: &Clock, until: Time) {
        let parker = ClockParker::new(clock);
        loop {
            {
                let mut counts = self.0.lock();
                if counts.untried == 0 || clock.now() >= until {
                    return;
                }
                // Under the lock of the check, so that no wake-up is missed (BACKGROUND-2).
                counts.waiting.push(parker.unparker());
            }
            parker.park_until(until);
        }
    }
}

/// Counts one item of the background queue. Dropped when the item is done.
pub(crate) struct QueuedItem {
    tally: Arc<Tally>,
    tried: bool,
}

impl QueuedItem {
    /// Notes that the item was tried: the store has answered, or the call has failed.
    pub(crate) fn tried(&mut self) {
        if std::mem::replace(&mut self.tried, true) {
            return;
        }
        let waiting = {
            let mut counts = self.tally.0.lock();
            counts.untried -= 1;
            match counts.untried {
                0 => std::mem::take(&mut counts.waiting),
                _ => Vec::new(),
            }
        };
        // Without the lock, which the woken threads take at once.
        for one in waiting {
            one.unpark();
        }
    }
}

impl Drop for QueuedItem {
    fn drop(&mut self) {
        self.tried();
        self.tally.0.lock().entered -= 1;
    }
}
