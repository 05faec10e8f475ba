//! The background queue of pending releases: one queue for each destination and range of leases,
//! flushes that send the queued items in batches, and a tally of items that were not tried yet.
//!
//! The queues are of the same type as those of the renewals. The rounds of a registration check its
//! renewal again and again, but nothing checks a release. So this module has a rule of its own in
//! the place of QUEUE-2:
//!
//! - **BACKGROUND-1** While items are queued, a flush of their queue runs or is armed, or a check
//!   is armed, or the number of hanging flushes is at its bound. Three calls keep this rule.
//!   Whoever queues an item arms a flush. So does a flush that returns and leaves items, also one
//!   that was given up. And before a flush sends a batch, it arms a check for the moment from which
//!   that batch is overdue. The check gives up a flush that hangs.
//! - **BACKGROUND-2** A thread that waits for the queue goes on when every item that entered before
//!   has been tried. An item is counted before it is queued, and until the store has answered. The
//!   thread leaves its unparker under the lock under which it has checked the count.

use std::collections::BTreeMap;
use std::time::Duration;

use tourbillon::{Clock, ClockParker, ClockUnparker, Time};

use crate::keep_alive::{DestinationQueue, QueueKey};
use crate::sync::{Arc, Mutex, catch_panic};

/// What a [`BackgroundQueue`] needs from its owner. No method is called under a lock.
pub(crate) trait Carrier<T> {
    /// Returns the present moment.
    fn now(&self) -> Time;

    /// Returns a number that nothing else of this carrier has.
    fn number(&self) -> u64;

    /// Returns the greatest number of items in one batch.
    fn most(&self) -> usize;

    /// Returns how long the call for a batch may take.
    fn limit(&self, queue_key: QueueKey) -> Duration;

    /// Arms [`BackgroundQueue::flush`] to run soon, on a thread that may block. For one queue and
    /// epoch only one flush runs at a time. A flush that is armed while another one runs follows
    /// it.
    fn arm(&self, queue: &Arc<DestinationQueue<T>>, epoch: u64);

    /// Arms [`BackgroundQueue::look`] to run at `at`, unless
    /// [`stops_looking`](Self::stops_looking) comes first.
    fn looks_at(&self, queue: &Arc<DestinationQueue<T>>, epoch: u64, at: Time);

    /// Cancels what [`looks_at`](Self::looks_at) has armed.
    fn stops_looking(&self, queue: &Arc<DestinationQueue<T>>, epoch: u64);

    /// Sends a batch. It may block or hang.
    fn send(&self, queue_key: QueueKey, batch: Vec<T>, limit: Duration);
}

/// The items to send in the background, by destination.
pub(crate) struct BackgroundQueue<T> {
    /// Ordered, so that [`flush_here`](Self::flush_here) flushes in the same order each time.
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

    /// Arms a flush, unless one runs. Gives up one that hangs.
    fn arm(carrier: &impl Carrier<T>, queue: &Arc<DestinationQueue<T>>) {
        if let Some(epoch) = queue.supervise(carrier.now()) {
            carrier.arm(queue, epoch);
        }
    }

    /// Sends the items of a queue batch by batch. Begins no batch after `until`.
    pub(crate) fn flush(
        &self,
        carrier: &impl Carrier<T>,
        queue: &Arc<DestinationQueue<T>>,
        epoch: u64,
        until: Time,
    ) {
        // A panic must not keep the flush from reporting its end to the queue.
        let _ = catch_panic(|| Self::send_all(carrier, queue, epoch, until));
        carrier.stops_looking(queue, epoch);
        queue.ended(epoch);
        // Not by the answer of `ended`: a flush that was given up also has to arm another one,
        // since the bound of hanging flushes may have held one back (BACKGROUND-1).
        if queue.is_empty() {
            self.sweep(queue);
        } else {
            Self::arm(carrier, queue);
        }
    }

    /// Sends batches until the queue is empty, `until` has come, or the flush is given up.
    fn send_all(
        carrier: &impl Carrier<T>,
        queue: &Arc<DestinationQueue<T>>,
        epoch: u64,
        until: Time,
    ) {
        let limit = carrier.limit(queue.queue_key);
        loop {
            let now = carrier.now();
            let overdue = now + limit;
            if now >= until || !queue.sends(epoch, overdue) {
                return;
            }
            let batch = queue.take(epoch, carrier.most(), |_| true);
            if batch.is_empty() {
                return;
            }
            // Armed before the call that may hang. Nothing would notice it otherwise.
            carrier.looks_at(queue, epoch, overdue);
            carrier.send(queue.queue_key, batch, limit);
        }
    }

    /// Gives up the present flush of a queue if its batch is overdue and other items wait.
    pub(crate) fn look(&self, carrier: &impl Carrier<T>, queue: &Arc<DestinationQueue<T>>) {
        if !queue.is_empty() {
            Self::arm(carrier, queue);
        }
    }

    /// Removes an empty queue. A queue with hanging flushes stays, since a new queue of the same
    /// key would allow as many flushes to hang once more.
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

    /// Runs the flushes on this thread. For leases that have no threads.
    pub(crate) fn flush_here(&self, carrier: &impl Carrier<T>, until: Time) {
        let queues: Vec<_> = self.queues.lock().values().cloned().collect();
        for queue in queues {
            if let Some(epoch) = queue.supervise(carrier.now()) {
                self.flush(carrier, &queue, epoch, until);
            }
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
