//! The due work of one destination for leases of similar length, and the flush that sends it.
//!
//! Leases of different length have different queues, since a call for long leases may take longer
//! than short leases last.
//!
//! A *flush* takes batches from the queue, the most urgent items first, and sends each batch on its
//! own thread. The flushes of one queue follow each other, so a flush that hangs would stop the
//! whole queue. Hence each batch has a limit. A caller that finds a batch overdue opens the next
//! *epoch*: the flush that hangs takes nothing more from the queue, and another flush may begin.
//! The number of flushes that may hang is bounded. At the bound the queue waits until one of them
//! returns.
//!
//! - **QUEUE-1** Only the flush of the present epoch takes items from the queue.
//! - **QUEUE-2** While items are in the queue and no flush runs, a flush is armed. Whoever queues
//!   an item arms a flush. So does every round of a registration that finds its renewal still
//!   queued. Releases have no rounds, so `background.rs` replaces this rule by one of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use tourbillon::Time;

use crate::store::Destination;
use crate::sync::Mutex;

/// The number of flushes of one queue that may be given up because they hang. Each of them keeps a
/// thread. The flush after them may hang, too, and is not given up.
const HANGING: usize = 2;

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
    epoch: u64,
    /// `None` if no flush of this epoch runs, else the moment from which its batch is overdue.
    overdue: Option<Time>,
    /// The epochs whose flush was given up and has not returned yet.
    hanging: Vec<u64>,
}

impl<T> DestinationQueue<T> {
    pub(crate) fn new(queue_key: QueueKey, number: u64) -> Self {
        DestinationQueue {
            queue_key,
            number,
            state: Mutex::new(QueueState {
                queue: BTreeMap::new(),
                epoch: 0,
                overdue: None,
                hanging: Vec::new(),
            }),
        }
    }

    /// Queues an item. Returns the epoch whose flush has to send it.
    pub(crate) fn put(&self, until: Time, number: u64, item: T) -> u64 {
        let mut state = self.state.lock();
        state.queue.insert((until, number), item);
        state.epoch
    }

    /// Removes an item, and returns whether it was in the queue.
    pub(crate) fn take_out(&self, until: Time, number: u64) -> bool {
        let taken = self.state.lock().queue.remove(&(until, number));
        taken.is_some()
    }

    /// Returns the epoch of a flush that may begin now, or `None`. If the running flush is overdue
    /// and fewer flushes hang than may, gives it up and opens the next epoch.
    pub(crate) fn supervise(&self, now: Time) -> Option<u64> {
        let mut state = self.state.lock();
        // No timer watches a flush. It is given up by the first caller that wants another one and
        // finds it overdue.
        match state.overdue {
            None => Some(state.epoch),
            Some(overdue) if now >= overdue && state.hanging.len() < HANGING => {
                let given_up = state.epoch;
                state.hanging.push(given_up);
                state.epoch += 1;
                state.overdue = None;
                Some(state.epoch)
            }
            Some(_) => None,
        }
    }

    /// Takes the next batch for the flush of an epoch: the most urgent items, up to the first one
    /// that `choose` refuses. The batch is empty if the flush was given up.
    pub(crate) fn take(
        &self,
        epoch: u64,
        most: usize,
        mut choose: impl FnMut(Time) -> bool,
    ) -> Vec<T> {
        let mut batch = Vec::new();
        let mut state = self.state.lock();
        // A flush that was given up may still run. The items belong to the next one (QUEUE-1).
        if state.epoch != epoch {
            return batch;
        }
        while batch.len() < most
            && let Some(first) = state.queue.first_entry()
            && choose(first.key().0)
        {
            batch.push(first.remove());
        }
        batch
    }

    /// Notes that the flush of an epoch runs, and when its present batch is overdue. Returns false
    /// if the flush was given up.
    pub(crate) fn sends(&self, epoch: u64, overdue: Time) -> bool {
        let mut state = self.state.lock();
        let present = state.epoch == epoch;
        if present {
            state.overdue = Some(overdue);
        }
        present
    }

    /// Notes that the flush of an epoch has ended. Returns whether items are left for another one.
    ///
    /// A flush that was given up may end twice. It may have been armed once more before, and then
    /// runs again after it has returned.
    pub(crate) fn ended(&self, epoch: u64) -> bool {
        let mut state = self.state.lock();
        if state.epoch == epoch {
            state.overdue = None;
            !state.queue.is_empty()
        } else {
            // It hangs no longer, so the queue may give up another flush. The next flush is not
            // this one's concern: callers of the present epoch arm it.
            state.hanging.retain(|hanging| *hanging != epoch);
            false
        }
    }

    /// Whether no items are queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().queue.is_empty()
    }

    /// Whether no flush runs and none hangs.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.overdue.is_none() && state.hanging.is_empty()
    }

    /// Drops all items, since nothing will be sent any more.
    pub(crate) fn clear(&self) {
        let queue = std::mem::take(&mut self.state.lock().queue);
        // Without the lock: the drop of an item may be user code.
        drop(queue);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    fn queue(until: &[u64]) -> DestinationQueue<u64> {
        let queue = DestinationQueue::new(
            QueueKey::of(Destination::new(7), Duration::from_secs(30)),
            0,
        );
        for (number, until) in until.iter().enumerate() {
            queue.put(at(*until), number as u64, *until);
        }
        queue
    }

    fn taken(queue: &DestinationQueue<u64>, epoch: u64, most: usize) -> Vec<u64> {
        queue.take(epoch, most, |_| true)
    }

    #[test]
    fn r18_the_most_urgent_go_first() {
        let queue = queue(&[30, 10, 20, 10]);
        assert_eq!(taken(&queue, 0, 3), [10, 10, 20]);
        assert!(queue.take_out(at(30), 0));
        assert!(!queue.take_out(at(30), 0));
        assert!(taken(&queue, 0, 3).is_empty());
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
        let shortest = queue(&[]);
        assert!(shortest.is_idle());
        assert!(shortest.sends(0, at(1)) && !shortest.is_idle());
        shortest.ended(0);
        assert!(shortest.is_idle());
    }

    #[test]
    fn a_pass_that_hangs_is_given_up_and_takes_nothing_more() {
        let queue = queue(&[1, 2, 3]);
        assert_eq!(queue.supervise(at(5)), Some(0));
        assert!(queue.sends(0, at(10)));
        assert_eq!(taken(&queue, 0, 1), [1]);
        assert_eq!(queue.supervise(at(9)), None);
        assert_eq!(queue.supervise(at(10)), Some(1));
        assert!(taken(&queue, 0, 1).is_empty());
        assert!(!queue.sends(0, at(99)));
        assert!(!queue.ended(0));
        assert_eq!(taken(&queue, 1, 1), [2]);
        assert!(queue.ended(1));
    }

    #[test]
    fn so_many_may_hang_and_then_it_waits_for_one() {
        let queue = queue(&[1]);
        for epoch in 0..HANGING as u64 {
            assert!(queue.sends(epoch, at(10)));
            assert_eq!(queue.supervise(at(10)), Some(epoch + 1));
        }
        let last = HANGING as u64;
        assert!(queue.sends(last, at(20)));
        assert_eq!(queue.supervise(at(99)), None);
        queue.ended(0);
        assert_eq!(queue.supervise(at(99)), Some(last + 1));
    }

    #[test]
    fn a_pass_that_runs_once_more_after_it_was_given_up_comes_back_once() {
        let queue = queue(&[1]);
        for epoch in 0..HANGING as u64 {
            assert!(queue.sends(epoch, at(10)));
            assert_eq!(queue.supervise(at(10)), Some(epoch + 1));
        }
        let last = HANGING as u64;
        assert!(queue.sends(last, at(10)));
        assert!(!queue.ended(0));
        assert!(!queue.ended(0));
        assert_eq!(queue.supervise(at(10)), Some(last + 1));
        assert!(queue.sends(last + 1, at(10)));
        // The number of hanging flushes is at its bound again.
        assert_eq!(queue.supervise(at(10)), None);
    }
}
