//! What is due at a destination is taken once, by a pass of the present epoch, and nothing stays
//! there without a pass that will take it. `leases/watchdog/lane.rs` has the rules, LANE-1 and
//! LANE-2.
//!
//! Nobody looks again here by himself, as a series does in truth: what stays shows at the end.
//!
//! Teeth:
//! - `teeth/lane-pass-ends-without-a-look.patch`

use std::sync::atomic::{AtomicU64 as Number, AtomicUsize as Count, Ordering::Relaxed};
use std::time::Duration;

use loom::thread;

use super::check;
use crate::leases::store::Destination;
use crate::leases::watchdog::lane::{Lane, Route};
use crate::rig::{START, at};
use crate::sync::{Arc, Mutex};
use crate::tick::Time;

/// When a batch is overdue.
const OVERDUE: u64 = START + 5;

const SERIES: usize = 3;

/// A lane and the timers of its passes. The checker does not see them: they order nobody.
struct Rig {
    lane: Lane<usize>,
    /// The passes that will run, by epoch: one of each at most. Of one epoch one runs at a time.
    armed: std::sync::Mutex<Vec<u64>>,
    /// The greatest epoch that somebody knows of.
    opened: Number,
    taken: [Count; SERIES],
    /// What a batch is sent to, with which the checker lets others in between.
    peer: Mutex<()>,
}

fn end_of(series: usize) -> Time {
    at(START + 100 + series as u64)
}

impl Rig {
    fn new() -> Arc<Self> {
        Arc::new(Rig {
            lane: Lane::new(
                Route::of(Destination::default(), Duration::from_secs(30)),
                0,
            ),
            armed: std::sync::Mutex::default(),
            opened: Number::new(0),
            taken: Default::default(),
            peer: Mutex::new(()),
        })
    }

    /// A series' round.
    fn due(&self, series: usize, now: u64) {
        let end = end_of(series);
        self.lane.put(end, series as u64, series);
        self.arm(now);
    }

    fn arm(&self, now: u64) {
        if let Some(epoch) = self.lane.supervise(at(now)) {
            self.opened.fetch_max(epoch, Relaxed);
            let mut armed = self.armed.lock().unwrap();
            if !armed.contains(&epoch) {
                armed.push(epoch);
            }
        }
    }

    /// One that is armed, as `which` chooses, begins.
    fn begins(&self, which: impl Fn(u64) -> bool) -> Option<u64> {
        let mut armed = self.armed.lock().unwrap();
        let at = armed.iter().position(|epoch| which(*epoch))?;
        Some(armed.swap_remove(at))
    }

    fn pass(&self, epoch: u64) {
        loop {
            let given_up = self.opened.load(Relaxed) > epoch;
            let batch = self.lane.take(epoch, 1, |_| true);
            if batch.is_empty() {
                break;
            }
            assert!(!given_up, "it was given up, and takes something");
            for series in batch {
                self.taken[series].fetch_add(1, Relaxed);
            }
            if !self.lane.sends(epoch, at(OVERDUE)) {
                break;
            }
            drop(self.peer.lock());
        }
        if self.lane.ended(epoch) {
            self.arm(START);
        }
    }

    /// What is armed runs, until nothing is; then all of these have been taken.
    fn run_out(&self, due: usize) {
        while let Some(epoch) = self.begins(|_| true) {
            self.pass(epoch);
        }
        for series in 0..due {
            assert_eq!(self.taken[series].load(Relaxed), 1, "series {series}");
        }
    }
}

#[test]
fn nothing_stays_behind_a_pass_that_ends() {
    check(3, || {
        let rig = Rig::new();
        rig.due(0, START);
        let rounds = [1, 2].map(|series| {
            let rig = Arc::clone(&rig);
            thread::spawn(move || rig.due(series, START))
        });
        rig.pass(rig.begins(|_| true).expect("it was armed"));
        for round in rounds {
            round.join().unwrap();
        }
        rig.run_out(3);
    });
}

/// The first pass is given up by whoever finds its batch overdue, and comes back whenever it does;
/// it may have been armed once more before that.
#[test]
fn a_pass_that_was_given_up_takes_nothing_and_keeps_nothing() {
    check(3, || {
        let rig = Rig::new();
        rig.due(0, START);
        let rounds = {
            let rig = Arc::clone(&rig);
            thread::spawn(move || {
                rig.due(1, START);
                rig.due(2, OVERDUE);
                // Another worker.
                if let Some(epoch) = rig.begins(|epoch| epoch != 0) {
                    rig.pass(epoch);
                }
            })
        };
        rig.pass(rig.begins(|_| true).expect("it was armed"));
        rounds.join().unwrap();
        rig.run_out(3);
    });
}
