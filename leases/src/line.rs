//! The line of what is given back: a lane for each destination, passes that send what is in it in
//! batches, and a tally of what has not been tried yet.
//!
//! The lanes are those of the renewals. A series looks after its renewal again and again; nobody
//! looks after a release. So the line has a rule of its own in the place of LANE-2:
//!
//! - **LINE-1** While something is in a lane, a pass of it runs or is armed, or a look is armed, or
//!   as many passes hang as may. Who puts something in arms a pass. So does a pass that comes back
//!   and leaves something, also one that was given up. And before a pass sends a batch, it arms a
//!   look for the moment from which that batch is overdue: the look gives a pass up that hangs.
//! - **LINE-2** Who waits for the line goes on when everything that entered before has been tried.
//!   What enters is counted before it is in a lane, and until the store has answered. Who waits
//!   leaves its parker in the hold of the lock in which it looked.

use std::collections::BTreeMap;
use std::time::Duration;

use tourbillon::{Clock, ClockParker, ClockUnparker, Time};

use super::watchdog::{Lane, Route};
use crate::panics::contain;
use crate::sync::{Arc, Mutex};

/// What a line needs of those around it. None of it is called under a lock.
pub(crate) trait Carrier<T> {
    fn now(&self) -> Time;

    /// A number that nothing else of this carrier has.
    fn number(&self) -> u64;

    /// How much goes into one batch.
    fn most(&self) -> usize;

    /// How long the call for a batch may take.
    fn limit(&self, route: Route) -> Duration;

    /// Has [`Line::pass`] run soon, on a thread that may block. Of one lane and epoch one runs at a
    /// time, and one that is armed while another one runs follows it.
    fn arm(&self, lane: &Arc<Lane<T>>, epoch: u64);

    /// Has [`Line::look`] run then, unless [`stops_looking`](Self::stops_looking) comes first.
    fn looks_at(&self, lane: &Arc<Lane<T>>, epoch: u64, at: Time);

    fn stops_looking(&self, lane: &Arc<Lane<T>>, epoch: u64);

    /// Sends a batch. It may block, and hang.
    fn send(&self, route: Route, batch: Vec<T>, limit: Duration);
}

pub(crate) struct Line<T> {
    /// Ordered, so that those who drive the passes themselves do so in the same order each time.
    lanes: Mutex<BTreeMap<Route, Arc<Lane<T>>>>,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Line {
            lanes: Mutex::new(BTreeMap::new()),
        }
    }
}

impl<T> Line<T> {
    /// All of these are to be sent. What is of use for the shortest time goes first.
    pub(crate) fn put(&self, carrier: &impl Carrier<T>, items: Vec<(Route, Time, T)>) {
        let mut into = BTreeMap::new();
        for (route, until, item) in items {
            let number = carrier.number();
            let lane_number = carrier.number();
            let mut lanes = self.lanes.lock();
            let lane = lanes
                .entry(route)
                .or_insert_with(|| Arc::new(Lane::new(route, lane_number)));
            // In this hold: a lane goes only while it is empty.
            lane.put(until, number, item);
            into.insert(route, Arc::clone(lane));
        }
        // After all of them, so that they fill their batches.
        for lane in into.values() {
            Self::arm(carrier, lane);
        }
    }

    fn arm(carrier: &impl Carrier<T>, lane: &Arc<Lane<T>>) {
        if let Some(epoch) = lane.supervise(carrier.now()) {
            carrier.arm(lane, epoch);
        }
    }

    /// Sends what is in a lane, batch by batch, but begins none after `until`.
    pub(crate) fn pass(
        &self,
        carrier: &impl Carrier<T>,
        lane: &Arc<Lane<T>>,
        epoch: u64,
        until: Time,
    ) {
        // Whatever happens, the pass comes back to its lane.
        let _ = contain(|| Self::send_all(carrier, lane, epoch, until));
        carrier.stops_looking(lane, epoch);
        lane.ended(epoch);
        if lane.is_empty() {
            self.sweep(lane);
        } else {
            Self::arm(carrier, lane);
        }
    }

    fn send_all(carrier: &impl Carrier<T>, lane: &Arc<Lane<T>>, epoch: u64, until: Time) {
        let limit = carrier.limit(lane.route);
        loop {
            let now = carrier.now();
            let overdue = now + limit;
            if now >= until || !lane.sends(epoch, overdue) {
                return;
            }
            let batch = lane.take(epoch, carrier.most(), |_| true);
            if batch.is_empty() {
                return;
            }
            carrier.looks_at(lane, epoch, overdue);
            carrier.send(lane.route, batch, limit);
        }
    }

    /// Gives the present pass of a lane up if its batch is overdue and others wait behind it.
    pub(crate) fn look(&self, carrier: &impl Carrier<T>, lane: &Arc<Lane<T>>) {
        if !lane.is_empty() {
            Self::arm(carrier, lane);
        }
    }

    /// A lane that nobody needs goes. Not one whose passes hang: as many more could.
    fn sweep(&self, lane: &Arc<Lane<T>>) {
        let mut lanes = self.lanes.lock();
        let present = lanes.get(&lane.route);
        if present.is_some_and(|present| Arc::ptr_eq(present, lane))
            && lane.is_empty()
            && lane.is_idle()
        {
            lanes.remove(&lane.route);
        }
    }

    /// Makes the passes on this thread, where no other thread does.
    pub(crate) fn pass_here(&self, carrier: &impl Carrier<T>, until: Time) {
        let lanes: Vec<_> = self.lanes.lock().values().cloned().collect();
        for lane in lanes {
            if let Some(epoch) = lane.supervise(carrier.now()) {
                self.pass(carrier, &lane, epoch, until);
            }
        }
    }
}

/// Counts what has entered the line and is not done, and who waits for it.
#[derive(Default)]
pub(crate) struct Tally(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    entered: usize,
    untried: usize,
    waiting: Vec<ClockUnparker>,
}

impl Tally {
    /// Something enters the line, and stays until the answer is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> Entered {
        let mut counts = self.0.lock();
        counts.entered += 1;
        counts.untried += 1;
        drop(counts);
        Entered {
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
pub(crate) struct Entered {
    tally: Arc<Tally>,
    tried: bool,
}

impl Entered {
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

impl Drop for Entered {
    fn drop(&mut self) {
        self.tried();
        self.tally.0.lock().entered -= 1;
    }
}
