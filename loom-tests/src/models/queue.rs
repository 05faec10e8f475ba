//! The queue of a destination. Each due renewal is taken once, by a flush of the current epoch. No
//! renewal stays without a flush that will take it. `crates/leases/src/keep_alive/queue.rs` has the
//! rules, QUEUE-1 and QUEUE-2.
//!
//! In reality a registration checks its renewal again. In the model nothing does, so a renewal that
//! is forgotten is still there at the end.
//!
//! Teeth:
//! - `teeth/queue-flush-ends-without-a-look.patch`

use std::sync::atomic::{AtomicU64 as Number, AtomicUsize as Count, Ordering::Relaxed};
use std::time::Duration;

use loom::thread;

use super::check;
use crate::leases::keep_alive::queue::{DestinationQueue, QueueKey};
use crate::leases::store::Destination;
use crate::rig::{START, at};
use crate::sync::{Arc, Mutex};
use crate::tick::Time;

/// The time from which a batch is overdue.
const OVERDUE: u64 = START + 5;

const SERIES: usize = 3;

/// A queue and the timers of its flushes. The checker does not see the timers, so they order
/// nothing.
struct Rig {
    queue: DestinationQueue<usize>,
    /// The armed flushes by epoch, at most one of each. At most one flush of an epoch runs at a
    /// time.
    armed: std::sync::Mutex<Vec<u64>>,
    /// The greatest epoch so far.
    opened: Number,
    taken: [Count; SERIES],
    /// The store that gets the batches. Its operation lets the checker switch to other threads.
    peer: Mutex<()>,
}

fn end_of(registration: usize) -> Time {
    at(START + 100 + registration as u64)
}

impl Rig {
    fn new() -> Arc<Self> {
        Arc::new(Rig {
            queue: DestinationQueue::new(
                QueueKey::of(Destination::default(), Duration::from_secs(30)),
                0,
            ),
            armed: std::sync::Mutex::default(),
            opened: Number::new(0),
            taken: Default::default(),
            peer: Mutex::new(()),
        })
    }

    /// Queues a due renewal, as a registration does.
    fn due(&self, registration: usize, now: u64) {
        let end = end_of(registration);
        self.queue.put(end, registration as u64, registration);
        self.arm(now);
    }

    fn arm(&self, now: u64) {
        if let Some(epoch) = self.queue.supervise(at(now)) {
            self.opened.fetch_max(epoch, Relaxed);
            let mut armed = self.armed.lock().unwrap();
            if !armed.contains(&epoch) {
                armed.push(epoch);
            }
        }
    }

    /// Begins an armed flush that `which` accepts.
    fn begins(&self, which: impl Fn(u64) -> bool) -> Option<u64> {
        let mut armed = self.armed.lock().unwrap();
        let at = armed.iter().position(|epoch| which(*epoch))?;
        Some(armed.swap_remove(at))
    }

    fn flush(&self, epoch: u64) {
        loop {
            let given_up = self.opened.load(Relaxed) > epoch;
            let batch = self.queue.take(epoch, 1, |_| true);
            if batch.is_empty() {
                break;
            }
            assert!(!given_up, "it was given up, and takes something");
            for registration in batch {
                self.taken[registration].fetch_add(1, Relaxed);
            }
            if !self.queue.sends(epoch, at(OVERDUE)) {
                break;
            }
            drop(self.peer.lock());
        }
        if self.queue.ended(epoch) {
            self.arm(START);
        }
    }

    /// Runs the armed flushes until there are none. Then checks that all due renewals were taken.
    fn run_out(&self, due: usize) {
        while let Some(epoch) = self.begins(|_| true) {
            self.flush(epoch);
        }
        for registration in 0..due {
            assert_eq!(
                self.taken[registration].load(Relaxed),
                1,
                "series {registration}"
            );
        }
    }
}

#[test]
fn nothing_stays_behind_a_pass_that_ends() {
    check(3, || {
        let rig = Rig::new();
        rig.due(0, START);
        let rounds = [1, 2].map(|registration| {
            let rig = Arc::clone(&rig);
            thread::spawn(move || rig.due(registration, START))
        });
        rig.flush(rig.begins(|_| true).expect("it was armed"));
        for round in rounds {
            round.join().unwrap();
        }
        rig.run_out(3);
    });
}

/// The first flush is given up by the thread that finds its batch overdue. It returns at any time,
/// and may have been armed once more before that.
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
                // Another worker runs it.
                if let Some(epoch) = rig.begins(|epoch| epoch != 0) {
                    rig.flush(epoch);
                }
            })
        };
        rig.flush(rig.begins(|_| true).expect("it was armed"));
        rounds.join().unwrap();
        rig.run_out(3);
    });
}
