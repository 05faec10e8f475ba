//! The background queue. Each queued release is sent, by one flush at a time. A thread that waits for
//! the releases goes on when they have been sent.
//! `crates/leases/src/manager/background.rs` has the rules, BACKGROUND-1 and BACKGROUND-2.
//!
//! Nothing checks again here, as in reality, so a release that is forgotten is still there at the
//! end. If a waiting thread is not woken, loom reports a deadlock.
//!
//! Teeth:
//! - `teeth/background-arms-before-it-queues.patch`: a release that is queued while a flush ends
//!   stays.
//! - `teeth/background-removes-a-queue-with-a-flush.patch`: two flushes of one destination send.
//! - `teeth/background-forgets-what-a-dropped-flush-leaves.patch`
//! - `teeth/background-counts-as-tried-too-early.patch`: the last drop does not wait for the
//!   store's answer.
//! - `teeth/background-waiter-registers-in-a-second-hold.patch`

use std::future::Future;
use std::sync::atomic::{
    AtomicBool as Note, AtomicU64 as Number, AtomicUsize as Count, Ordering::Relaxed,
};
use std::task::{Context, Waker};
use std::time::Duration;

use loom::thread;

use super::check;
use crate::clock::{Clock, ManualClock};
use crate::leases::keep_alive::{DestinationQueue, Flush, QueueKey};
use crate::leases::manager::background::{BackgroundQueue, Carrier, QueuedItem, Tally};
use crate::leases::store::Destination;
use crate::rig::{START, at, block_on};
use crate::sync::{Arc, Mutex};
use crate::tick::Time;

/// The limit of a thread that waits.
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
    armed: std::sync::Mutex<Vec<Arc<DestinationQueue<Item>>>>,
    numbers: Number,
    sent: [Count; 3],
    /// The number of batches that are on their way.
    sending: Count,
    /// Whether two were at one time. An assertion in a flush could be lost.
    overlap: Note,
    /// Whether a batch is never answered.
    hangs: Note,
    /// The store that gets the batches. Its operation lets the checker switch to other threads.
    store: Mutex<()>,
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

    fn arm(&self, queue: &Arc<DestinationQueue<Item>>) {
        self.armed.lock().unwrap().push(Arc::clone(queue));
    }

    async fn send(&self, _route: QueueKey, batch: Vec<Item>) {
        let others = self.sending.fetch_add(1, Relaxed);
        self.overlap.fetch_or(others > 0, Relaxed);
        if self.hangs.swap(false, Relaxed) {
            std::future::pending::<()>().await;
        }
        for item in batch {
            drop(self.store.lock());
            self.sent[item.number].fetch_add(1, Relaxed);
            drop(item.entered);
        }
        self.sending.fetch_sub(1, Relaxed);
    }
}

impl Rig {
    fn new() -> Arc<Self> {
        let hand = ManualClock::starting_at(at(START));
        Arc::new(Rig {
            background: BackgroundQueue::default(),
            tally: Arc::default(),
            clock: Clock::manual(&hand),
            hand,
            armed: std::sync::Mutex::default(),
            numbers: Number::new(0),
            sent: Default::default(),
            sending: Count::new(0),
            overlap: Note::new(false),
            hangs: Note::new(false),
            store: Mutex::new(()),
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
        let Some(queue) = self.armed.lock().unwrap().pop() else {
            return false;
        };
        if let Some(flush) = Flush::begin(&queue) {
            block_on(self.background.flush(self, flush, Time::MAX));
        }
        true
    }

    fn sent(&self) -> [usize; 3] {
        self.sent.each_ref().map(|count| count.load(Relaxed))
    }
}

/// One release is queued while the flush of another one ends.
#[test]
fn nothing_stays_behind_a_flush_that_ends() {
    check(3, || {
        let rig = Rig::new();
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

/// A flush is dropped amid a batch, which is lost with it. Those that wait are sent all the same.
#[test]
fn a_flush_that_is_dropped_amid_a_batch_leaves_the_others_to_the_next_one() {
    check(3, || {
        let rig = Rig::new();
        rig.give_back(0);
        rig.give_back(1);
        let dropping = {
            let rig = Arc::clone(&rig);
            thread::spawn(move || rig.give_back(2))
        };
        rig.hangs.store(true, Relaxed);
        let queue = rig.armed.lock().unwrap().pop();
        let flush = queue.and_then(|queue| Flush::begin(&queue));
        let flush = flush.expect("it is armed");
        {
            let sends = std::pin::pin!(rig.background.flush(&rig, flush, Time::MAX));
            let polled = sends.poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
        }
        rig.sending.store(0, Relaxed);
        while rig.runs_one() {}
        dropping.join().unwrap();
        while rig.runs_one() {}
        assert_eq!(rig.sent(), [0, 1, 1]);
        assert!(rig.background.queues().is_empty());
    });
}

/// A flush that may begin no batch any more leaves all of them to the next one.
#[test]
fn a_flush_whose_time_is_over_leaves_the_others_to_the_next_one() {
    check(3, || {
        let rig = Rig::new();
        rig.give_back(0);
        let dropping = {
            let rig = Arc::clone(&rig);
            thread::spawn(move || rig.give_back(1))
        };
        let queue = rig.armed.lock().unwrap().pop();
        if let Some(flush) = queue.and_then(|queue| Flush::begin(&queue)) {
            block_on(rig.background.flush(&rig, flush, at(START)));
        }
        dropping.join().unwrap();
        assert_eq!(rig.sent(), [0, 0, 0]);
        while rig.runs_one() {}
        assert_eq!(rig.sent(), [1, 1, 0]);
    });
}

/// The queue is removed when its flush ends, and made again, while two threads queue releases and run
/// flushes.
#[test]
fn one_flush_of_a_destination_sends_at_a_time() {
    check(3, || {
        let rig = Rig::new();
        rig.give_back(0);
        let other = {
            let rig = Arc::clone(&rig);
            thread::spawn(move || {
                rig.give_back(1);
                while rig.runs_one() {}
            })
        };
        rig.runs_one();
        rig.give_back(2);
        while rig.runs_one() {}
        other.join().unwrap();
        while rig.runs_one() {}
        assert_eq!(rig.sent(), [1, 1, 1]);
        assert!(!rig.overlap.load(Relaxed), "two flushes send");
        assert!(rig.background.queues().is_empty());
    });
}

/// The end of the program may wait for the queued releases. When it goes on, they have been sent to
/// the store.
#[test]
fn who_waits_for_the_line_goes_on_when_it_has_been_sent() {
    check(3, || {
        let rig = Rig::new();
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
        let rig = Rig::new();
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
