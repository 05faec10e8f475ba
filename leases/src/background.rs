//! The line of what is given back: a lane for each destination, passes that send what is in it in
//! batches, and a tally of what has not been tried yet.
//!
//! The lanes are those of the renewals. A series looks after its renewal again and again; nobody
//! looks after a release. So the line has a rule of its own in the place of QUEUE-2:
//!
//! - **BACKGROUND-1** While something is in a lane, a pass of it runs or is armed, or a look is armed, or
//!   as many passes hang as may. Who puts something in arms a pass. So does a pass that comes back
//!   and leaves something, also one that was given up. And before a pass sends a batch, it arms a
//!   look for the moment from which that batch is overdue: the look gives a pass up that hangs.
//! - **BACKGROUND-2** Who waits for the line goes on when everything that entered before has been tried.
//!   What enters is counted before it is in a lane, and until the store has answered. Who waits
//!   leaves its parker in the hold of the lock in which it looked.

use std::collections::BTreeMap;
use std::time::Duration;

use tourbillon::{Clock, ClockParker, ClockUnparker, Time};

use super::keep_alive::{DestinationQueue, QueueKey};
use crate::panics::catch_panic;
use crate::sync::{Arc, Mutex};

/// What a line needs of those around it. None of it is called under a lock.
pub(crate) trait Carrier<T> {
    fn now(&self) -> Time;

    /// A number that nothing else of this carrier has.
    fn number(&self) -> u64;

    /// How much goes into one batch.
    fn most(&self) -> usize;

    /// How long the call for a batch may take.
    fn limit(&self, queue_key: QueueKey) -> Duration;

    /// Has [`BackgroundQueue::flush`] run soon, on a thread that may block. Of one lane and epoch one runs at a
    /// time, and one that is armed while another one runs follows it.
    fn arm(&self, queue: &Arc<DestinationQueue<T>>, epoch: u64);

    /// Has [`BackgroundQueue::look`] run then, unless [`stops_looking`](Self::stops_looking) comes first.
    fn looks_at(&self, queue: &Arc<DestinationQueue<T>>, epoch: u64, at: Time);

    fn stops_looking(&self, queue: &Arc<DestinationQueue<T>>, epoch: u64);

    /// Sends a batch. It may block, and hang.
    fn send(&self, queue_key: QueueKey, batch: Vec<T>, limit: Duration);
}

pub(crate) struct BackgroundQueue<T> {
    /// Ordered, so that those who drive the passes themselves do so in the same order each time.
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
    /// All of these are to be sent. What is of use for the shortest time goes first.
    pub(crate) fn put(&self, carrier: &impl Carrier<T>, items: Vec<(QueueKey, Time, T)>) {
        let mut into = BTreeMap::new();
        for (queue_key, until, item) in items {
            let number = carrier.number();
            let queue_number = carrier.number();
            let mut queues = self.queues.lock();
            let queue = queues
                .entry(queue_key)
                .or_insert_with(|| Arc::new(DestinationQueue::new(queue_key, queue_number)));
            // In this hold: a lane goes only while it is empty.
            queue.put(until, number, item);
            into.insert(queue_key, Arc::clone(queue));
        }
        // After all of them, so that they fill their batches.
        for queue in into.values() {
            Self::arm(carrier, queue);
        }
    }

    fn arm(carrier: &impl Carrier<T>, queue: &Arc<DestinationQueue<T>>) {
        if let Some(epoch) = queue.supervise(carrier.now()) {
            carrier.arm(queue, epoch);
        }
    }

    /// Sends what is in a lane, batch by batch, but begins none after `until`.
    pub(crate) fn flush(
        &self,
        carrier: &impl Carrier<T>,
        queue: &Arc<DestinationQueue<T>>,
        epoch: u64,
        until: Time,
    ) {
        // Whatever happens, the pass comes back to its lane.
        let _ = catch_panic(|| Self::send_all(carrier, queue, epoch, until));
        carrier.stops_looking(queue, epoch);
        queue.ended(epoch);
        if queue.is_empty() {
            self.sweep(queue);
        } else {
            Self::arm(carrier, queue);
        }
    }

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
            carrier.looks_at(queue, epoch, overdue);
            carrier.send(queue.queue_key, batch, limit);
        }
    }

    /// Gives the present pass of a lane up if its batch is overdue and others wait behind it.
    pub(crate) fn look(&self, carrier: &impl Carrier<T>, queue: &Arc<DestinationQueue<T>>) {
        if !queue.is_empty() {
            Self::arm(carrier, queue);
        }
    }

    /// A lane that nobody needs goes. Not one whose passes hang: as many more could.
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

    /// Makes the passes on this thread, where no other thread does.
    pub(crate) fn flush_here(&self, carrier: &impl Carrier<T>, until: Time) {
        let queues: Vec<_> = self.queues.lock().values().cloned().collect();
        for queue in queues {
            if let Some(epoch) = queue.supervise(carrier.now()) {
                self.flush(carrier, &queue, epoch, until);
            }
        }
    }
}

/// Counts what has entered the line and is not done, and who waits for it.
#[derive(Default)]
pub(crate) struct Tally(Mutex<QueueCounts>);

#[derive(Default)]
struct QueueCounts {
    entered: usize,
    untried: usize,
    waiting: Vec<ClockUnparker>,
}

impl Tally {
    /// Something enters the line, and stays until the answer is dropped.
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

    /// How many have entered and are not done.
    pub(crate) fn entered(&self) -> usize {
        self.0.lock().entered
    }

    /// Waits until each of them has been tried once, or `until` has come by this clock.
    pub(crate) fn settled(&self, clock: &Clock, until: Time) {
        let parker = ClockParker::new(clock);
        loop {
            {
                let mut counts = self.0.lock();
                if counts.untried == 0 || clock.now() >= until {
                    return;
                }
                counts.waiting.push(parker.unparker());
            }
            parker.park_until(until);
        }
    }
}

/// One that is in the line.
pub(crate) struct QueuedItem {
    tally: Arc<Tally>,
    tried: bool,
}

impl QueuedItem {
    /// The store has said something about it, be it that it failed.
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
