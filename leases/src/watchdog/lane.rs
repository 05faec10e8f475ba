//! One destination, and leases of about one length: what is due there, and the pass that sends it.
//! Lengths are apart since a call for long leases may take longer than short ones last.
//!
//! A pass takes from the queue, the most urgent first, a batch at a time, and sends each batch on the
//! thread it runs on. Passes of one destination follow each other, so one that hangs would stop all
//! that is due there. Hence each batch has a limit, and whoever finds it overdue opens the next
//! *epoch*: the pass that hangs takes nothing more from the queue, and another one may begin. Only so
//! many may hang at one time; then the destination waits for one of them to come back.
//!
//! - **LANE-1** What is in the queue is taken by one pass only, that of the present epoch.
//! - **LANE-2** Something is in the queue and no pass runs: one is armed. Who puts something in
//!   arms it, and so does every series that looks after itself and finds its renewal still in the
//!   queue. For releases, which nobody looks after, `line.rs` has a rule of its own in this one's
//!   place.

use std::collections::BTreeMap;
use std::time::Duration;

use tourbillon::Time;

use super::super::store::Destination;
use crate::sync::Mutex;

/// So many passes of one lane may hang. Each has a thread of its own.
const HANGING: usize = 2;

/// What has a lane of its own: a destination, and leases from a power of two up to the next one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Route {
    pub(crate) destination: Destination,
    length: u32,
}

impl Route {
    pub(crate) fn of(destination: Destination, lease: Duration) -> Self {
        Route {
            destination,
            length: lease.as_millis().max(1).ilog2(),
        }
    }

    /// The shortest lease there.
    pub(crate) fn shortest(self) -> Duration {
        1_u64
            .checked_shl(self.length)
            .map_or(Duration::MAX, Duration::from_millis)
    }
}

pub(crate) struct Lane<T> {
    pub(crate) route: Route,
    /// No other lane's, not even that of an earlier one of this destination.
    pub(crate) number: u64,
    state: Mutex<State<T>>,
}

struct State<T> {
    /// By the end of the lease, then by number.
    queue: BTreeMap<(Time, u64), T>,
    epoch: u64,
    /// The pass of this epoch runs, and its batch is overdue from then on.
    overdue: Option<Time>,
    /// The epochs that were given up, until their pass comes back.
    hanging: Vec<u64>,
}

impl<T> Lane<T> {
    pub(crate) fn new(route: Route, number: u64) -> Self {
        Lane {
            route,
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
    pub(crate) fn put(&self, until: Time, number: u64, item: T) -> u64 {
        let mut state = self.state.lock();
        state.queue.insert((until, number), item);
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
    ) -> Vec<T> {
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

    /// The pass runs, and what it does just now is overdue from then on. False if it was given up.
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

    /// Whether there is nothing in the queue.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().queue.is_empty()
    }

    /// Whether no pass runs, and none hangs.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.overdue.is_none() && state.hanging.is_empty()
    }

    /// Nobody will send anything any more.
    pub(crate) fn clear(&self) {
        let queue = std::mem::take(&mut self.state.lock().queue);
        drop(queue);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    fn lane(until: &[u64]) -> Lane<u64> {
        let lane = Lane::new(Route::of(Destination::new(7), Duration::from_secs(30)), 0);
        for (number, until) in until.iter().enumerate() {
            lane.put(at(*until), number as u64, *until);
        }
        lane
    }

    fn taken(lane: &Lane<u64>, epoch: u64, most: usize) -> Vec<u64> {
        lane.take(epoch, most, |_| true)
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
    fn leases_of_about_one_length_share_a_lane() {
        let of = |millis| Route::of(Destination::new(1), Duration::from_millis(millis));
        assert_eq!(of(16_384), of(30_000));
        assert_ne!(of(16_383), of(16_384));
        assert_eq!(of(30_000).shortest(), Duration::from_millis(16_384));
        assert_eq!(of(0), of(1));
        let longest = Route::of(Destination::new(1), Duration::MAX);
        assert!(longest.shortest() > Duration::from_secs(1 << 40));
        let shortest = lane(&[]);
        assert!(shortest.is_idle());
        assert!(shortest.sends(0, at(1)) && !shortest.is_idle());
        shortest.ended(0);
        assert!(shortest.is_idle());
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
