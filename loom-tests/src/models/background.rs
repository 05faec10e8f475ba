//! The background queue. Each queued release is sent, even if a flush hangs or is given up. A
//! thread that waits for the releases goes on when they have been sent.
//! `crates/leases/src/manager/background.rs` has the rules, BACKGROUND-1 and BACKGROUND-2.
//!
//! Nothing checks again here, as in reality, so a release that is forgotten is still there at the
//! end. If a waiting thread is not woken, loom reports a deadlock.
//!
//! Teeth:
//! - `teeth/background-flush-comes-back-without-a-look.patch`: a release that is queued while a
//!   flush ends stays.
//! - `teeth/background-looks-at-nothing.patch`: a release behind a flush that hangs stays.
//! - `teeth/background-counts-as-tried-too-early.patch`: the last drop does not wait for the
//!   store's answer.
//! - `teeth/background-waiter-registers-in-a-second-hold.patch`

use std::sync::atomic::{AtomicU64 as Number, AtomicUsize as Count, Ordering::Relaxed};
use std::time::Duration;

use loom::thread;

use super::check;
use crate::clock::{Clock, ManualClock};
use crate::leases::keep_alive::{DestinationQueue, QueueKey};
use crate::leases::manager::background::{BackgroundQueue, Carrier, QueuedItem, Tally};
use crate::leases::store::Destination;
use crate::rig::{START, at};
use crate::sync::{Arc, Mutex};
use crate::tick::Time;

/// The longest time of a call.
const LIMIT: u64 = 5;

/// A release.
struct Item {
    number: usize,
    entered: QueuedItem,
}

/// A background queue, its timers, and the store. The checker does not see the timers, so they
/// order nothing.
struct Rig {
    background: BackgroundQueue<Item>,
    tally: Arc<Tally>,
    hand: ManualClock,
    clock: Clock,
    armed: std::sync::Mutex<Vec<(Arc<DestinationQueue<Item>>, u64)>>,
    looks: std::sync::Mutex<Vec<(Arc<DestinationQueue<Item>>, u64)>>,
    numbers: Number,
    sent: [Count; 3],
    /// The store that gets the batches. Its operation lets the checker switch to other threads.
    store: Mutex<()>,
    /// The call for this release does not return until the test lets it.
    hangs: Option<usize>,
    hanging: std::sync::Mutex<Vec<Item>>,
    /// How often the second release was sent while the first one hung.
    passed_by: Count,
}

impl Carrier<Item> for Arc<Rig> {
    fn now(&self) -> Time {
        self.clock.now()
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Relaxed)
    }

    fn most(&self) -> usize {
        1
    }

    fn limit(&self, _route: QueueKey) -> Duration {
        Duration::from_nanos(LIMIT)
    }

    fn arm(&self, queue: &Arc<DestinationQueue<Item>>, epoch: u64) {
        let mut armed = self.armed.lock().unwrap();
        if !armed.iter().any(|(_, other)| *other == epoch) {
            armed.push((Arc::clone(queue), epoch));
        }
    }

    fn looks_at(&self, queue: &Arc<DestinationQueue<Item>>, epoch: u64, _at: Time) {
        self.stops_looking(queue, epoch);
        self.looks.lock().unwrap().push((Arc::clone(queue), epoch));
    }

    fn stops_looking(&self, _lane: &Arc<DestinationQueue<Item>>, epoch: u64) {
        self.looks
            .lock()
            .unwrap()
            .retain(|(_, other)| *other != epoch);
    }

    fn send(&self, _route: QueueKey, batch: Vec<Item>, _limit: Duration) {
        for item in batch {
            drop(self.store.lock());
            if self.hangs == Some(item.number) {
                self.hanging.lock().unwrap().push(item);
                self.hand.set(at(START + LIMIT));
                let looks = std::mem::take(&mut *self.looks.lock().unwrap());
                for (queue, _) in looks {
                    self.background.look(self, &queue);
                }
                // The other workers go on while this call hangs.
                while self.runs_one() {}
                // Noted for the test: an assertion here would be lost, since a flush catches
                // panics.
                self.passed_by.store(self.sent()[1], Relaxed);
                continue;
            }
            self.sent[item.number].fetch_add(1, Relaxed);
            drop(item.entered);
        }
    }
}

impl Rig {
    fn new(hangs: Option<usize>) -> Arc<Self> {
        let hand = ManualClock::starting_at(at(START));
        Arc::new(Rig {
            background: BackgroundQueue::default(),
            tally: Arc::default(),
            clock: Clock::manual(&hand),
            hand,
            armed: std::sync::Mutex::default(),
            looks: std::sync::Mutex::default(),
            numbers: Number::new(0),
            sent: Default::default(),
            store: Mutex::new(()),
            hangs,
            hanging: std::sync::Mutex::default(),
            passed_by: Count::new(0),
        })
    }

    fn give_back(self: &Arc<Self>, number: usize) {
        let item = Item {
            number,
            entered: self.tally.enter(),
        };
        let queue_key = QueueKey::of(Destination::default(), Duration::from_secs(30));
        self.background
            .put(self, vec![(queue_key, at(START + 100), item)]);
    }

    /// Runs an armed flush on this thread. Returns whether there was one.
    fn runs_one(self: &Arc<Self>) -> bool {
        let Some((queue, epoch)) = self.armed.lock().unwrap().pop() else {
            return false;
        };
        self.background.flush(self, &queue, epoch, Time::MAX);
        true
    }

    fn sent(&self) -> [usize; 3] {
        self.sent.each_ref().map(|count| count.load(Relaxed))
    }
}

/// One release is queued while the flush of another one ends.
#[test]
fn nothing_stays_behind_a_pass_that_ends() {
    check(3, || {
        let rig = Rig::new(None);
        rig.give_back(0);
        let dropping = {
            let rig = Arc::clone(&rig);
            thread::spawn(move || rig.give_back(1))
        };
        assert!(rig.runs_one());
        dropping.join().unwrap();
        while rig.runs_one() {}
        assert_eq!(rig.sent(), [1, 1, 0]);
        assert_eq!(rig.tally.entered(), 0);
    });
}

/// The call for the first release hangs, with the second release behind it. Meanwhile a third one
/// is queued.
#[test]
fn what_is_behind_a_pass_that_hangs_is_sent_by_the_next_one() {
    check(3, || {
        let rig = Rig::new(Some(0));
        rig.give_back(0);
        rig.give_back(1);
        let dropping = {
            let rig = Arc::clone(&rig);
            thread::spawn(move || rig.give_back(2))
        };
        let (queue, epoch) = rig.armed.lock().unwrap().pop().expect("it was armed");
        rig.background.flush(&rig, &queue, epoch, Time::MAX);
        dropping.join().unwrap();
        while rig.runs_one() {}
        assert_eq!(rig.sent(), [0, 1, 1]);
        let passed_by = rig.passed_by.load(Relaxed);
        assert_eq!(passed_by, 1, "it waits behind what hangs");
        rig.hanging.lock().unwrap().clear();
        assert_eq!(rig.tally.entered(), 0);
    });
}

/// The end of the program may wait for the queued releases. When it goes on, they have been sent to
/// the store.
#[test]
fn who_waits_for_the_line_goes_on_when_it_has_been_sent() {
    check(3, || {
        let rig = Rig::new(None);
        rig.give_back(0);
        rig.give_back(1);
        let worker = {
            let rig = Arc::clone(&rig);
            thread::spawn(move || while rig.runs_one() {})
        };
        rig.tally.settled(&rig.clock, Time::MAX);
        assert_eq!(rig.sent(), [1, 1, 0]);
        worker.join().unwrap();
    });
}

/// The waiting thread stops at its limit, and the release is sent all the same.
#[test]
fn who_waits_for_the_line_waits_no_longer_than_it_may() {
    check(3, || {
        let rig = Rig::new(None);
        rig.give_back(0);
        let clock = {
            let rig = Arc::clone(&rig);
            thread::spawn(move || rig.hand.set(at(START + LIMIT)))
        };
        rig.tally.settled(&rig.clock, at(START + LIMIT));
        assert_eq!(rig.hand.now(), at(START + LIMIT));
        clock.join().unwrap();
        while rig.runs_one() {}
        assert_eq!(rig.sent(), [1, 0, 0]);
    });
}
