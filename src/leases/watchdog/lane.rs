//! One destination: what is due for it, and the pass that sends it.
//!
//! A pass takes from the queue, the most urgent first, a batch at a time, and sends each batch on the
//! thread it runs on. Passes of one destination follow each other, so one that hangs would stop all
//! that is due there. Hence each batch has a limit, and whoever finds it overdue opens the next
//! *epoch*: the pass that hangs takes nothing more from the queue, and another one may begin. Only so
//! many may hang at one time; then the destination waits for one of them to come back.
//!
//! - **L1** What is in the queue is taken by one pass only, that of the present epoch.
//! - **L2** Something is in the queue and no pass runs: one is armed. Who puts something in arms it,
//!   and so does every series that looks after itself and finds its renewal still in the queue.

use std::collections::BTreeMap;

use super::super::store::Destination;
use crate::sync::{Arc, Mutex};
use crate::tick::Time;

/// So many passes of one destination may hang.
const HANGING: usize = 4;

pub(crate) struct Lane<T> {
    pub(crate) destination: Destination,
    /// No other lane's, not even that of an earlier one of this destination.
    pub(crate) number: u64,
    state: Mutex<State<T>>,
}

struct State<T> {
    /// By the end of the lease, then by number.
    queue: BTreeMap<(Time, u64), Arc<T>>,
    epoch: u64,
    /// The pass of this epoch runs, and its batch is overdue from then on.
    overdue: Option<Time>,
    /// The epochs that were given up, until their pass comes back.
    hanging: Vec<u64>,
}

impl<T> Lane<T> {
    pub(crate) fn new(destination: Destination, number: u64) -> Self {
        Lane {
            destination,
            number,
            state: Mutex::new(State {
                queue: BTreeMap::new(),
                epoch: 0,
                overdue: None,
                hanging: Vec::new(),
            }),
        }
    }

    /// Something is due. The epoch whose pass is to send it.
    pub(crate) fn put(&self, until: Time, number: u64, series: Arc<T>) -> u64 {
        let mut state = self.state.lock();
        state.queue.insert((until, number), series);
        state.epoch
    }

    /// It is not to be sent any more. Whether it was in the queue.
    pub(crate) fn take_out(&self, until: Time, number: u64) -> bool {
        let taken = self.state.lock().queue.remove(&(until, number));
        taken.is_some()
    }

    /// The epoch, if no pass of it runs, or after the one that ran was given up.
    pub(crate) fn supervise(&self, now: Time) -> Option<u64> {
        let mut state = self.state.lock();
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

    /// A pass takes the next batch, as `choose` picks from what is most urgent. Nothing for a pass
    /// that was given up.
    pub(crate) fn take(
        &self,
        epoch: u64,
        most: usize,
        mut choose: impl FnMut(Time) -> bool,
    ) -> Vec<Arc<T>> {
        let mut batch = Vec::new();
        let mut state = self.state.lock();
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

    /// The pass sends a batch, which is overdue from then on. False if it was given up.
    pub(crate) fn sends(&self, epoch: u64, overdue: Time) -> bool {
        let mut state = self.state.lock();
        let present = state.epoch == epoch;
        if present {
            state.overdue = Some(overdue);
        }
        present
    }

    /// The pass has ended. Whether something is left for another one. One that was given up may end
    /// twice: it was armed once more before that, and runs after it has come back.
    pub(crate) fn ended(&self, epoch: u64) -> bool {
        let mut state = self.state.lock();
        if state.epoch == epoch {
            state.overdue = None;
            !state.queue.is_empty()
        } else {
            state.hanging.retain(|hanging| *hanging != epoch);
            false
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    fn lane(until: &[u64]) -> Lane<u64> {
        let lane = Lane::new(Destination::new(7), 0);
        for (number, until) in until.iter().enumerate() {
            lane.put(at(*until), number as u64, Arc::new(*until));
        }
        lane
    }

    fn taken(lane: &Lane<u64>, epoch: u64, most: usize) -> Vec<u64> {
        let batch = lane.take(epoch, most, |_| true);
        batch.iter().map(|series| **series).collect()
    }

    #[test]
    fn r18_the_most_urgent_go_first() {
        let lane = lane(&[30, 10, 20, 10]);
        assert_eq!(taken(&lane, 0, 3), [10, 10, 20]);
        assert!(lane.take_out(at(30), 0));
        assert!(!lane.take_out(at(30), 0));
        assert!(taken(&lane, 0, 3).is_empty());
    }

    #[test]
    fn a_pass_that_hangs_is_given_up_and_takes_nothing_more() {
        let lane = lane(&[1, 2, 3]);
        assert_eq!(lane.supervise(at(5)), Some(0));
        assert!(lane.sends(0, at(10)));
        assert_eq!(taken(&lane, 0, 1), [1]);
        assert_eq!(lane.supervise(at(9)), None);
        assert_eq!(lane.supervise(at(10)), Some(1));
        assert!(taken(&lane, 0, 1).is_empty());
        assert!(!lane.sends(0, at(99)));
        assert!(!lane.ended(0));
        assert_eq!(taken(&lane, 1, 1), [2]);
        assert!(lane.ended(1));
    }

    #[test]
    fn so_many_may_hang_and_then_it_waits_for_one() {
        let lane = lane(&[1]);
        for epoch in 0..HANGING as u64 {
            assert!(lane.sends(epoch, at(10)));
            assert_eq!(lane.supervise(at(10)), Some(epoch + 1));
        }
        let last = HANGING as u64;
        assert!(lane.sends(last, at(20)));
        assert_eq!(lane.supervise(at(99)), None);
        lane.ended(0);
        assert_eq!(lane.supervise(at(99)), Some(last + 1));
    }

    #[test]
    fn a_pass_that_runs_once_more_after_it_was_given_up_comes_back_once() {
        let lane = lane(&[1]);
        for epoch in 0..HANGING as u64 {
            assert!(lane.sends(epoch, at(10)));
            assert_eq!(lane.supervise(at(10)), Some(epoch + 1));
        }
        let last = HANGING as u64;
        assert!(lane.sends(last, at(10)));
        assert!(!lane.ended(0));
        assert!(!lane.ended(0));
        assert_eq!(lane.supervise(at(10)), Some(last + 1));
        assert!(lane.sends(last + 1, at(10)));
        // As many hang as may, still.
        assert_eq!(lane.supervise(at(10)), None);
    }
}
