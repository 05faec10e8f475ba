use std::thread::{JoinHandle, spawn, yield_now};
use std::time::{Duration, Instant};

use super::turns::Turns;
use super::{TickerStep, TickerThread, Ticks};
use crate::clock::{Clock, ManualClock};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::channel::bounded;
use crate::sync::{Arc, Bell, Mutex, Parker, Ring};
use crate::tick::Time;

/// A ticker whose steps a test makes.
struct Stub<S> {
    clock: Clock,
    step: S,
}

impl<S: FnMut() -> TickerStep + Send> Ticks for Stub<S> {
    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn step(&mut self) -> Option<TickerStep> {
        Some((self.step)())
    }

    fn stop(self: Box<Self>) {}

    fn is_forked(&self) -> bool {
        false
    }
}

fn begin() -> (Arc<TickerThread>, JoinHandle<()>) {
    let (thread, ticker_loop) = TickerThread::new();
    (thread, spawn(move || ticker_loop.run()))
}

fn add(
    thread: &TickerThread,
    clock: &Clock,
    step: impl FnMut() -> TickerStep + Send + 'static,
) -> Ring {
    let mut given = None;
    thread.add(|ring| {
        given = Some(ring);
        let clock = clock.clone();
        Box::new(Stub { clock, step })
    });
    let ring = given.expect("it was made");
    // Nothing else gives it its first turn.
    ring.ring();
    ring
}

fn end(thread: &TickerThread, runs: JoinHandle<()>) {
    thread.end();
    runs.join().expect("it does not panic");
}

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

#[test]
fn those_that_have_work_take_turns() {
    let (thread, runs) = begin();
    let log = Arc::new(Mutex::new(Vec::new()));
    let (go, wait) = bounded::<()>(1);
    let clock = Clock::system();
    for name in 0..3 {
        let (log, wait) = (Arc::clone(&log), wait.clone());
        let mut steps = 0;
        add(&thread, &clock, move || {
            if log.lock().is_empty() {
                // Until all have come.
                let _ = wait.recv();
            }
            log.lock().push(name);
            steps += 1;
            if steps < 50 {
                TickerStep::Worked
            } else {
                TickerStep::Stop
            }
        });
    }
    drop(go);
    end(&thread, runs);
    let log = log.lock();
    assert_eq!(log.len(), 150);
    for (place, name) in log.iter().enumerate() {
        assert_eq!(*name, place % 3, "{log:?}");
    }
}

#[test]
fn a_manual_clock_rings_once_its_moment_has_come() {
    let (thread, runs) = begin();
    let hand = ManualClock::new();
    let until = Arc::new(Mutex::new(at(1)));
    let (send, steps) = bounded(0);
    add(&thread, &Clock::manual(&hand), {
        let (hand, until) = (hand.clone(), Arc::clone(&until));
        move || {
            let until = *until.lock();
            if hand.now() < until {
                return TickerStep::SleepUntil(until);
            }
            match send.send(hand.now()) {
                Ok(()) => TickerStep::Worked,
                Err(_) => TickerStep::Stop,
            }
        }
    });
    for seconds in [1, 3, 60, 61] {
        let moment = at(seconds);
        hand.set(moment);
        while steps.recv().expect("it is there") < moment {}
        // What comes before this is a step at the moment that has come.
        *until.lock() = at(seconds + 1);
        let _ = steps.try_recv();
    }
    // After a move backwards it looks again, here for an earlier moment.
    *until.lock() = at(10_000);
    while hand.waiting() == 0 {
        let _ = steps.try_recv();
    }
    *until.lock() = at(2);
    hand.set(at(5));
    assert_eq!(steps.recv().expect("it is there"), at(5));
    drop(steps);
    end(&thread, runs);
    assert_eq!(hand.waiting(), 0);
}

#[test]
fn one_thread_serves_clocks_of_all_kinds() {
    let (thread, runs) = begin();
    let hand = ManualClock::new();
    let (send, come) = bounded(4);
    let manual = Clock::manual(&hand);
    let clocks = [manual, Clock::system(), Clock::fast(), Clock::boottime()];
    for clock in &clocks {
        let (send, own) = (send.clone(), clock.clone());
        let until = clock.now() + Duration::from_millis(3);
        add(&thread, clock, move || {
            let now = own.now();
            if now < until {
                return TickerStep::SleepUntil(until);
            }
            let _ = send.send(own.as_manual().is_some());
            TickerStep::Stop
        });
    }
    // The manual clock stands still.
    for _ in 0..3 {
        assert_eq!(come.recv(), Ok(false));
    }
    hand.advance(Duration::from_millis(3));
    assert_eq!(come.recv(), Ok(true));
    end(&thread, runs);
}

/// Tickers of these clocks, of which each has had a turn.
fn turns_of(clocks: &[Clock]) -> (Turns, Parker) {
    let (mut turns, parker) = (Turns::new(), Parker::new());
    let bell = Arc::new(Bell::new(parker.unparker().clone()));
    for (number, clock) in clocks.iter().enumerate() {
        let stub = Stub {
            clock: clock.clone(),
            step: || TickerStep::Stop,
        };
        turns.add(Ring::new(&bell, number), Box::new(stub));
        assert_eq!(turns.next(), Some(number));
    }
    (turns, parker)
}

#[test]
fn those_that_sleep_come_in_the_order_of_their_moments() {
    // The moment by the first one may be a little later than asked for, so it is the last.
    let clocks = [
        Clock::boottime(),
        Clock::system(),
        Clock::fast(),
        Clock::system(),
    ];
    let (mut turns, parker) = turns_of(&clocks);
    let base = Instant::now();
    for (number, ms) in [(0, 6), (1, 0), (2, 4), (3, 2)] {
        let at = clocks[number].time_of(base + Duration::from_millis(ms));
        turns.sleep(number, at);
    }
    let order = [1, 3, 2, 0].map(|_| {
        loop {
            if let Some(number) = turns.next() {
                turns.sleep(number, Time::MAX);
                return number;
            }
            turns.park(&parker);
            turns.wake_first();
        }
    });
    assert_eq!(order, [1, 3, 2, 0]);
    assert_eq!(turns.next(), None);
    // Rung, and rung again.
    assert!(turns.wake(2) && turns.wake(2) && !turns.wake(4));
    assert_eq!((turns.next(), turns.next()), (Some(2), None));
}

#[test]
fn those_that_sleep_are_rung_in_any_order() {
    let clock = Clock::system();
    let (mut turns, _) = turns_of(&[0; 5].map(|_| clock.clone()));
    let hour = clock.now() + Duration::from_secs(3_600);
    // Two sleep until the same moment.
    for (number, seconds) in [(0, 3), (1, 1), (2, 2), (3, 1), (4, 0)] {
        turns.sleep(number, hour + Duration::from_secs(seconds));
    }
    for number in [3, 0, 2] {
        assert!(turns.wake(number));
    }
    // Nobody's moment has come.
    let rung: Vec<_> = std::iter::from_fn(|| turns.next()).collect();
    assert_eq!(rung, [3, 0, 2]);
    // More often than there are any.
    for _ in 0..3 {
        turns.wake_first();
    }
    let rest: Vec<_> = std::iter::from_fn(|| turns.next()).collect();
    assert_eq!(rest, [4, 1]);
}

#[test]
fn a_ticker_that_failed_pauses_while_others_go_on() {
    // Its own clock stands still.
    let stopped = Clock::manual(&ManualClock::new());
    let (mut turns, parker) = turns_of(&[stopped, Clock::system()]);
    turns.pause(0);
    turns.again(1);
    assert_eq!(turns.next(), Some(1));
    turns.sleep(1, Time::MAX);
    turns.park(&parker);
    turns.wake_first();
    assert_eq!((turns.next(), turns.next()), (Some(0), None));
}

#[test]
fn a_number_is_used_again_and_a_late_ring_does_no_harm() {
    let (thread, runs) = begin();
    let steps = Arc::new(AtomicUsize::new(0));
    let mut late: Option<Ring> = None;
    for round in 0..100 {
        let stops = Arc::new(AtomicUsize::new(0));
        let ring = add(&thread, &Clock::system(), {
            let (steps, stops) = (Arc::clone(&steps), Arc::clone(&stops));
            move || {
                // Relaxed: counts.
                steps.fetch_add(1, Ordering::Relaxed);
                match stops.load(Ordering::Relaxed) {
                    0 => TickerStep::SleepUntil(Time::MAX),
                    _ => TickerStep::Stop,
                }
            }
        });
        assert_eq!(ring.number(), 0);
        if let Some(late) = &late {
            late.ring();
        }
        // Relaxed: as above, and the ring orders it.
        stops.store(1, Ordering::Relaxed);
        ring.ring();
        late = Some(ring);
        while thread.arrivals.lock().free.is_empty() {
            yield_now();
        }
        // Relaxed: as above.
        assert!(steps.load(Ordering::Relaxed) > round);
    }
    // Nobody has the number.
    late.expect("there was a ticker").ring();
    end(&thread, runs);
}
