//! The due work of one destination for leases of similar length, and the flush that sends it.
//!
//! Leases of different length have different queues, since a call for long leases may take longer
//! than short leases last.
//!
//! A *flush* is a future that takes batches from the queue, the most urgent items first, and sends
//! one after the other. Each call ends at its limit, so a store that hangs ends no flush, and holds
//! up nothing but this queue.
//!
//! - **QUEUE-1** A queue has one flush at a time, and only this flush takes items from it.
//! - **QUEUE-2** While items are in the queue, a flush runs or is armed. Whoever queues an item arms
//!   a flush, unless one runs. A flush takes the lock once to find the queue empty and to end. The
//!   exception is a flush that is dropped in the middle of a batch: then its owner takes care of the
//!   remaining items. For renewals, the next round of each registration arms another flush. For
//!   releases, BACKGROUND-1 holds.

use std::collections::BTreeMap;
use std::time::Duration;

use tourbillon::Time;

use crate::store::Destination;
use crate::sync::{Arc, Mutex};

/// Names a queue: a destination, and a range of leases from one power of two up to the next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct QueueKey {
    pub(crate) destination: Destination,
    length: u32,
}

impl QueueKey {
    pub(crate) fn of(destination: Destination, lease: Duration) -> Self {
        QueueKey {
            destination,
            // At least 1, since zero has no logarithm.
            length: lease.as_millis().max(1).ilog2(),
        }
    }

    /// Returns the shortest lease of the range.
    pub(crate) fn shortest(self) -> Duration {
        1_u64
            .checked_shl(self.length)
            .map_or(Duration::MAX, Duration::from_millis)
    }
}

/// The queued items of one [`QueueKey`].
pub(crate) struct DestinationQueue<T> {
    pub(crate) queue_key: QueueKey,
    /// A number that no other queue has, not even an earlier queue of the same key.
    pub(crate) number: u64,
    /// The due renewals or releases (QUEUE-1, QUEUE-2).
    state: Mutex<QueueState<T>>,
}

struct QueueState<T> {
    /// The items by the end of their lease, then by number.
    queue: BTreeMap<(Time, u64), T>,
    flush: FlushState,
}

/// Whether there is a flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FlushState {
    None,
    /// A timer begins it at this time.
    Armed(Time),
    Runs,
}

impl<T> DestinationQueue<T> {
    pub(crate) fn new(queue_key: QueueKey, number: u64) -> Self {
        DestinationQueue {
            queue_key,
            number,
            state: Mutex::new(QueueState {
                queue: BTreeMap::new(),
                flush: FlushState::None,
            }),
        }
    }

    /// Queues an item. The caller then [arms](Self::arms) a flush.
    pub(crate) fn put(&self, until: Time, number: u64, item: T) {
        self.state.lock().queue.insert((until, number), item);
    }

    /// Removes an item, and returns whether it was in the queue.
    pub(crate) fn take_out(&self, until: Time, number: u64) -> bool {
        let taken = self.state.lock().queue.remove(&(until, number));
        taken.is_some()
    }

    /// Returns whether the caller has to arm a flush for `at`: none runs, and none is armed for this
    /// time or an earlier one.
    pub(crate) fn arms(&self, at: Time) -> bool {
        let mut state = self.state.lock();
        let arms = match state.flush {
            FlushState::None => true,
            FlushState::Armed(earlier) => at < earlier,
            FlushState::Runs => false,
        };
        if arms {
            state.flush = FlushState::Armed(at);
        }
        arms
    }

    /// Whether no items are queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().queue.is_empty()
    }

    /// Whether no flush runs.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.lock().flush != FlushState::Runs
    }

    /// Drops all items, since nothing will be sent any more.
    pub(crate) fn clear(&self) {
        let queue = std::mem::take(&mut self.state.lock().queue);
        // Without the lock: the drop of an item may be user code.
        drop(queue);
    }
}

/// The flush of a queue, which may take items until it has found the queue empty (QUEUE-1).
pub(crate) struct Flush<T> {
    queue: Arc<DestinationQueue<T>>,
    runs: bool,
}

impl<T> Flush<T> {
    /// Begins a flush. Returns `None` if another one runs, which takes everything.
    pub(crate) fn begin(queue: &Arc<DestinationQueue<T>>) -> Option<Self> {
        let before = std::mem::replace(&mut queue.state.lock().flush, FlushState::Runs);
        (before != FlushState::Runs).then(|| Flush {
            queue: Arc::clone(queue),
            runs: true,
        })
    }

    pub(crate) fn queue(&self) -> &Arc<DestinationQueue<T>> {
        &self.queue
    }

    /// Takes the next batch: the most urgent items, up to the first one that `choose` refuses. It
    /// does not refuse the very first one. If the batch is empty, the flush is over.
    pub(crate) fn take(&mut self, most: usize, mut choose: impl FnMut(Time) -> bool) -> Vec<T> {
        let mut batch = Vec::new();
        // Another flush may have begun.
        if !self.runs {
            return batch;
        }
        let mut state = self.queue.state.lock();
        batch.reserve(most.min(state.queue.len()));
        while batch.len() < most
            && let Some(first) = state.queue.first_entry()
            && choose(first.key().0)
        {
            batch.push(first.remove());
        }
        if batch.is_empty() {
            // Under the lock of the look, so that nothing is queued in between (QUEUE-2).
            state.flush = FlushState::None;
            self.runs = false;
        }
        batch
    }
}

/// A flush that is dropped amid a batch leaves the queue to the next one.
impl<T> Drop for Flush<T> {
    fn drop(&mut self) {
        if self.runs {
            self.queue.state.lock().flush = FlushState::None;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    fn queue(until: &[u64]) -> Arc<DestinationQueue<u64>> {
        let queue = DestinationQueue::new(
            QueueKey::of(Destination::new(7), Duration::from_secs(30)),
            0,
        );
        for (number, until) in until.iter().enumerate() {
            queue.put(at(*until), number as u64, *until);
        }
        Arc::new(queue)
    }

    fn begin(queue: &Arc<DestinationQueue<u64>>) -> Flush<u64> {
        Flush::begin(queue).expect("no other one runs")
    }

    #[test]
    fn r18_the_most_urgent_go_first() {
        let queue = queue(&[30, 10, 20, 10]);
        let mut flush = begin(&queue);
        assert_eq!(flush.take(3, |_| true), [10, 10, 20]);
        assert!(queue.take_out(at(30), 0));
        assert!(!queue.take_out(at(30), 0));
        assert!(flush.take(3, |_| true).is_empty());
    }

    #[test]
    fn leases_of_about_one_length_share_a_lane() {
        let of = |millis| QueueKey::of(Destination::new(1), Duration::from_millis(millis));
        assert_eq!(of(16_384), of(30_000));
        assert_ne!(of(16_383), of(16_384));
        assert_eq!(of(30_000).shortest(), Duration::from_millis(16_384));
        assert_eq!(of(0), of(1));
        let longest = QueueKey::of(Destination::new(1), Duration::MAX);
        assert!(longest.shortest() > Duration::from_secs(1 << 40));
    }

    #[test]
    fn a_flush_is_armed_once_for_its_earliest_time_and_by_nobody_while_it_runs() {
        let queue = queue(&[1]);
        assert!(queue.arms(at(10)) && !queue.arms(at(10)) && !queue.arms(at(11)));
        assert!(queue.arms(at(9)) && queue.is_idle());
        let mut flush = begin(&queue);
        assert!(!queue.arms(at(1)) && !queue.is_idle() && Flush::begin(&queue).is_none());
        // An empty batch is its end. From then on another one may run.
        assert_eq!(flush.take(9, |_| true), [1]);
        assert!(flush.take(9, |_| true).is_empty());
        assert!(queue.arms(at(20)));
        queue.put(at(2), 0, 2);
        let mut next = begin(&queue);
        assert!(flush.take(9, |_| true).is_empty());
        drop(flush);
        assert!(Flush::begin(&queue).is_none());
        assert_eq!(next.take(9, |_| true), [2]);
    }

    #[test]
    fn a_flush_that_is_dropped_amid_a_batch_leaves_the_others_to_the_next_one() {
        let queue = queue(&[1, 2]);
        let mut flush = begin(&queue);
        assert_eq!(flush.take(1, |_| true), [1]);
        drop(flush);
        assert!(queue.is_idle() && queue.arms(at(5)));
        assert_eq!(begin(&queue).take(9, |_| true), [2]);
    }
}
