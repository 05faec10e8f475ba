//! The queue of a destination. Each due renewal is taken once, by the only flush. No renewal stays
//! without a flush that will take it. `crates/leases/src/keep_alive/queue.rs` has the rules, QUEUE-1
//! and QUEUE-2.
//!
//! In reality a registration checks its renewal again. In the model nothing does, so a renewal that
//! is forgotten is still there at the end.
//!
//! Teeth:
//! - `teeth/queue-flush-ends-in-a-second-hold.patch`: a renewal is queued in between.
//! - `teeth/queue-two-flushes-run.patch`
//! - `teeth/queue-a-dropped-flush-stays.patch`

use std::sync::atomic::{AtomicUsize as Count, Ordering::Relaxed};
use std::time::Duration;

use loom::thread;

use super::check;
use crate::leases::keep_alive::queue::{DestinationQueue, Flush, QueueKey};
use crate::leases::store::Destination;
use crate::rig::{START, at};
use crate::sync::{Arc, Mutex};

const SERIES: usize = 3;

/// A queue and the timers of its flushes. The checker does not see the timers, so they order
/// nothing.
struct Rig {
    queue: Arc<DestinationQueue<usize>>,
    /// Whether a flush is armed. Two timers of one queue are one.
    armed: std::sync::Mutex<bool>,
    taken: [Count; SERIES],
    /// The number of flushes that have a batch.
    sending: Count,
    /// The store that gets the batches. Its operation lets the checker switch to other threads.
    peer: Mutex<()>,
}

impl Rig {
    fn new() -> Arc<Self> {
        let queue_key = QueueKey::of(Destination::default(), Duration::from_secs(30));
        Arc::new(Rig {
            queue: Arc::new(DestinationQueue::new(queue_key, 0)),
            armed: std::sync::Mutex::default(),
            taken: Default::default(),
            sending: Count::new(0),
            peer: Mutex::new(()),
        })
    }

    /// Queues a due renewal, as a registration does.
    fn due(&self, registration: usize) {
        let end = at(START + 100 + registration as u64);
        self.queue.put(end, registration as u64, registration);
        if self.queue.arms(at(START + registration as u64)) {
            *self.armed.lock().unwrap() = true;
        }
    }

    /// Runs the armed flush on this thread. Returns whether there was one.
    fn runs_one(&self) -> bool {
        let was_armed = std::mem::take(&mut *self.armed.lock().unwrap());
        if was_armed && let Some(mut flush) = Flush::begin(&self.queue) {
            loop {
                let batch = flush.take(1, |_| true);
                if batch.is_empty() {
                    break;
                }
                assert_eq!(self.sending.fetch_add(1, Relaxed), 0, "two flushes send");
                for registration in batch {
                    self.taken[registration].fetch_add(1, Relaxed);
                }
                drop(self.peer.lock());
                self.sending.fetch_sub(1, Relaxed);
            }
        }
        was_armed
    }

    /// Runs the armed flushes until there are none. Then checks that all due renewals were taken.
    fn run_out(&self, due: usize) {
        while self.runs_one() {}
        for registration in 0..due {
            let taken = self.taken[registration].load(Relaxed);
            assert_eq!(taken, 1, "series {registration}");
        }
    }
}

#[test]
fn nothing_stays_behind_a_flush_that_ends() {
    check(3, || {
        let rig = Rig::new();
        rig.due(0);
        let rounds = [1, 2].map(|registration| {
            let rig = Arc::clone(&rig);
            thread::spawn(move || rig.due(registration))
        });
        assert!(rig.runs_one());
        for round in rounds {
            round.join().unwrap();
        }
        rig.run_out(3);
    });
}

/// Another worker runs whatever is armed while the first flush sends.
#[test]
fn one_flush_runs_at_a_time() {
    check(3, || {
        let rig = Rig::new();
        rig.due(0);
        let other = {
            let rig = Arc::clone(&rig);
            thread::spawn(move || {
                rig.due(1);
                // A timer that was moved may come although a flush runs.
                *rig.armed.lock().unwrap() = true;
                rig.runs_one();
            })
        };
        rig.runs_one();
        other.join().unwrap();
        rig.run_out(2);
    });
}

/// The renewals that wait behind a batch whose flush is dropped have the next flush, which the next
/// round arms.
#[test]
fn a_flush_that_is_dropped_amid_a_batch_is_over() {
    check(3, || {
        let rig = Rig::new();
        rig.due(0);
        rig.due(1);
        let mut flush = Flush::begin(&rig.queue).expect("no other one runs");
        *rig.armed.lock().unwrap() = false;
        let other = {
            let rig = Arc::clone(&rig);
            thread::spawn(move || {
                drop(rig.peer.lock());
                rig.runs_one();
            })
        };
        for registration in flush.take(1, |_| true) {
            rig.taken[registration].fetch_add(1, Relaxed);
        }
        drop(rig.peer.lock());
        drop(flush);
        rig.due(2);
        other.join().unwrap();
        rig.run_out(3);
    });
}
