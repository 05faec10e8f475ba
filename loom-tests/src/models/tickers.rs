//! A thread that serves several tickers: nobody who is rung or has come is slept through, and the
//! thread ends. `src/tickers/mod.rs` and `src/sync/bell.rs` have the rules.
//!
//! If a ticker is forgotten, or the thread does not end, loom reports a deadlock.
//!
//! Teeth:
//! - `teeth/tickers-bell-wakes-before-it-notes.patch`: BELL-1, a ring is found by nobody.
//! - `teeth/tickers-bell-flag-falls-without-the-lock.patch`: BELL-1, the flag of a number that came
//!   meanwhile falls.
//! - `teeth/tickers-bell-is-not-heard-after-a-park.patch`: BELL-1, no look follows a park.
//! - `teeth/tickers-sleep-forgets-who-was-rung.patch`: a number is taken before its ticker sleeps.
//! - `teeth/tickers-who-comes-counts-as-awake.patch`: TICKERS-1, nobody gives a new ticker its turn.
//! - `teeth/tickers-end-forgets-who-has-come.patch`: TICKERS-2, the thread ends too early.
//! - `teeth/tickers-end-wakes-nobody.patch`: TICKERS-2, the thread does not end.
//! - `teeth/tickers-alarm-looks-first.patch`: the clock moves before it knows the alarm.

use std::sync::atomic::{AtomicUsize as Count, Ordering::Relaxed};

use loom::thread;

use super::check;
use crate::clock::{Clock, ManualClock};
use crate::rig::{START, at};
use crate::shard::Doorbell;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::tick::Time;
use crate::tickers::{TickerStep, TickerThread, Ticks};

/// A ticker that does each piece of work that is published, and stops after the last one.
struct Worker {
    shared: Arc<Shared>,
    done: usize,
}

struct Shared {
    clock: Clock,
    bell: Doorbell,
    published: AtomicUsize,
    /// The moment from which the work may be done.
    from: Time,
    most: usize,
    /// Gets a piece of work for each that this one does.
    next: Option<Arc<Shared>>,
    /// Of std: it must not order anything.
    done: Count,
}

impl Shared {
    fn new(clock: &Clock, from: Time, most: usize) -> Arc<Self> {
        Arc::new(Shared {
            clock: clock.clone(),
            bell: Doorbell::new(),
            published: AtomicUsize::new(0),
            from,
            most,
            next: None,
            done: Count::new(0),
        })
    }

    fn publish(&self) {
        // Relaxed: ordered by the doorbell's fences.
        self.published.fetch_add(1, Ordering::Relaxed);
        self.bell.ring_for(Time::ZERO);
    }

    fn join(self: &Arc<Self>, thread: &TickerThread) {
        thread.add(|ring| {
            self.bell.rings(ring);
            let shared = Arc::clone(self);
            Box::new(Worker { shared, done: 0 })
        });
    }
}

impl Ticks for Worker {
    fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    fn step(&mut self) -> Option<TickerStep> {
        let shared = &self.shared;
        shared.bell.awake();
        // Relaxed: as in `publish`.
        let look = || shared.published.load(Ordering::Relaxed);
        if self.done < look() && shared.clock.now() >= shared.from {
            self.done += 1;
            shared.done.fetch_add(1, Relaxed);
            if let Some(next) = &shared.next {
                next.publish();
            }
        }
        if self.done == shared.most {
            return Some(TickerStep::Stop);
        }
        let at = match self.done < look() {
            true => shared.from,
            false => Time::MAX,
        };
        shared.bell.promise(at);
        if self.done < look() && (at == Time::MAX || shared.clock.now() >= shared.from) {
            shared.bell.awake();
            return Some(TickerStep::Worked);
        }
        Some(TickerStep::SleepUntil(at))
    }

    fn stop(self: Box<Self>) {}

    fn is_forked(&self) -> bool {
        false
    }
}

fn begin() -> (Arc<TickerThread>, thread::JoinHandle<()>) {
    let (tickers, ticker_loop) = TickerThread::new();
    (tickers, thread::spawn(move || ticker_loop.run()))
}

/// Each of two tickers has a producer.
#[test]
fn nobody_who_is_rung_is_slept_through() {
    check(2, || {
        let clock = Clock::manual(&ManualClock::new());
        let workers = [1, 1].map(|most| Shared::new(&clock, Time::ZERO, most));
        let (tickers, runs) = begin();
        for worker in &workers {
            worker.join(&tickers);
        }
        tickers.end();
        let producer = {
            let worker = Arc::clone(&workers[0]);
            thread::spawn(move || worker.publish())
        };
        workers[1].publish();
        producer.join().unwrap();
        runs.join().unwrap();
        for worker in &workers {
            assert_eq!(worker.done.load(Relaxed), 1);
        }
    });
}

/// The first ticker goes to sleep, and has work once the second one has come.
#[test]
fn nobody_who_comes_to_others_is_slept_through() {
    check(3, || {
        let clock = Clock::manual(&ManualClock::new());
        let first = Shared::new(&clock, Time::ZERO, 1);
        let second = Shared {
            next: Some(Arc::clone(&first)),
            ..Arc::into_inner(Shared::new(&clock, Time::ZERO, 1)).expect("it is new")
        };
        let second = Arc::new(second);
        let (tickers, runs) = begin();
        first.join(&tickers);
        second.join(&tickers);
        second.publish();
        tickers.end();
        runs.join().unwrap();
        assert_eq!(first.done.load(Relaxed), 1);
    });
}

/// The second piece of work comes while the ticker does the first, or goes to sleep.
#[test]
fn a_ticker_is_rung_once_more() {
    check(3, || {
        let clock = Clock::manual(&ManualClock::new());
        let worker = Shared::new(&clock, Time::ZERO, 2);
        let (tickers, runs) = begin();
        worker.join(&tickers);
        worker.publish();
        worker.publish();
        tickers.end();
        runs.join().unwrap();
        assert_eq!(worker.done.load(Relaxed), 2);
    });
}

/// A ticker comes while the thread goes to sleep, and nobody comes after it.
#[test]
fn the_thread_ends_after_those_who_have_come() {
    check(3, || {
        let clock = Clock::manual(&ManualClock::new());
        let worker = Shared::new(&clock, Time::ZERO, 0);
        let stopped = Arc::downgrade(&worker);
        let (tickers, runs) = begin();
        worker.join(&tickers);
        tickers.end();
        runs.join().unwrap();
        drop(worker);
        assert!(stopped.upgrade().is_none(), "it was served");
    });
}

/// Somebody else moves the clock to the moment for which the ticker goes to sleep.
#[test]
fn a_moment_of_the_clock_is_not_slept_through() {
    check(3, || {
        let hand = ManualClock::starting_at(at(START));
        let worker = Shared::new(&Clock::manual(&hand), at(START + 1), 1);
        let (tickers, runs) = begin();
        worker.join(&tickers);
        worker.publish();
        tickers.end();
        hand.set(at(START + 1));
        runs.join().unwrap();
        assert_eq!(worker.done.load(Relaxed), 1);
    });
}
