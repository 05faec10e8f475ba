//! Tickers that overslept, loops that were late, clocks that jumped: what is due is made up for, in
//! order and within bounds, and what is armed meanwhile is not taken for overdue.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tourbillon::test_util::{Fired, Stepped};
use tourbillon::wheel::{Tick, Wheel};
use tourbillon::{Clock, ManualClock, ScheduleError, Scheduler, Shutdown, Time, TimerState};

/// How long a test waits for a thread before it fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// One tick.
const T: Duration = Duration::from_millis(1);
/// Slots per level.
const SLOTS: u32 = 64;

fn at(ticks: u32) -> Time {
    Time::ZERO + T * ticks
}

fn stepped(seed: u64) -> Stepped<u64> {
    Scheduler::builder()
        .tick(T)
        .shards(2)
        .stripes(4)
        .workers(2)
        .build_stepped(seed)
        .unwrap()
}

/// All timers in one stripe, served by one worker: the order of the runs is that of the wheel.
fn narrow(seed: u64) -> Stepped<u64> {
    Scheduler::builder()
        .tick(T)
        .shards(1)
        .stripes(1)
        .workers(1)
        .build_stepped(seed)
        .unwrap()
}

fn keys(fired: &[Fired<u64>]) -> Vec<u64> {
    fired.iter().map(|fired| fired.key).collect()
}

fn sorted(fired: &[Fired<u64>]) -> Vec<u64> {
    let mut keys = keys(fired);
    keys.sort_unstable();
    keys
}

#[test]
fn c033_several_overdue_slots_run_in_one_wake_up() {
    for seed in 0..20 {
        // Armed in another order than they are due in; in the wheel's first slots and far up.
        for offset in [0, 60, 5_000] {
            let scheduler = narrow(seed);
            let timers = scheduler.handle();
            for key in [3, 1, 4, 2, 13, 11, 14, 12] {
                let slot = key as u32 % 10;
                timers.schedule(key, T * (offset + slot), |_| ()).unwrap();
            }
            let fired = scheduler.jump_to(at(offset + 4) + T / 2);
            let slots: Vec<_> = fired.iter().map(|fired| fired.key % 10).collect();
            assert_eq!(slots, [1, 1, 2, 2, 3, 3, 4, 4], "{seed} {offset}");
            assert!(fired.iter().all(|fired| fired.at == scheduler.now()));
        }
        // Over several stripes the same runs, in no particular order.
        let scheduler = stepped(seed);
        for key in 1..=4 {
            let accepted = scheduler.handle().schedule(key, T * key as u32, |_| ());
            accepted.unwrap();
        }
        assert_eq!(sorted(&scheduler.jump_to(at(4) + T / 2)), [1, 2, 3, 4]);
    }
}

#[test]
fn c034_what_was_due_in_earlier_ticks_runs_at_the_first_look() {
    for seed in 0..20 {
        let scheduler = stepped(seed);
        scheduler.handle().schedule(1, T * 15, |_| ()).unwrap();
        let fired = scheduler.jump_to(at(32));
        assert_eq!(keys(&fired), [1]);
        assert_eq!((fired[0].deadline, fired[0].at), (at(15), at(32)));
        let stats = scheduler.handle().stats();
        assert_eq!(stats.lateness().max, T * 17);
    }
}

#[test]
fn c035_what_is_armed_while_the_ticker_oversleeps_has_its_whole_delay() {
    for seed in 0..20 {
        for overslept in [1, 5, SLOTS - 1, SLOTS, SLOTS + 5, SLOTS * SLOTS + 5] {
            for others in [0, 1, 40] {
                let scheduler = stepped(seed);
                let timers = scheduler.handle();
                for other in 0..others {
                    let delay = T * (2 + other as u32 * 7);
                    timers.schedule(100 + other, delay, |_| ()).unwrap();
                }
                // The hand moves, and no ticker has looked yet.
                scheduler.clock().set(at(overslept));
                timers.schedule(1, T * 3, |_| ()).unwrap();
                let fired = scheduler.settle();
                assert!(!keys(&fired).contains(&1), "{overslept}: at once");
                let early = scheduler.advance_to(at(overslept + 3) - Duration::from_nanos(1));
                assert!(!keys(&early).contains(&1), "{overslept}: early");
                let fired = scheduler.advance_to(at(overslept + 3));
                let run = fired.iter().find(|fired| fired.key == 1);
                assert_eq!(run.expect("it is due").at, at(overslept + 3));
            }
        }
    }
}

#[test]
fn c036_a_long_delay_after_an_overslept_one_is_not_early() {
    let span = u64::from(SLOTS);
    for level in 1..=6 {
        for slept in [1, 2, 63, 64, 65, 4_096] {
            for seed in 0..4 {
                let scheduler = Scheduler::<u64>::builder()
                    .tick(Duration::from_micros(1))
                    .shards(1)
                    .stripes(1)
                    .build_stepped(seed)
                    .unwrap();
                let tick = Duration::from_micros(1);
                let timers = scheduler.handle();
                timers.schedule(1, tick, |_| ()).unwrap();
                scheduler.clock().advance(tick * slept);
                // One less than the level spans, counted from now: the ticker's wheel stands where
                // it fell asleep.
                let delay = Duration::from_micros(span.pow(level) - 1);
                let due = timers.schedule(2, delay, |_| ()).unwrap().deadline;
                assert_eq!(keys(&scheduler.settle()), [1]);
                assert_eq!(scheduler.jump_to(due - Duration::from_nanos(1)), []);
                let fired = scheduler.jump_to(due);
                assert_eq!((keys(&fired), fired[0].at), (vec![2], due));
            }
        }
    }
}

#[test]
fn c037_a_slow_task_on_the_ticker_that_arms_another() {
    for seed in 0..20 {
        let scheduler = Scheduler::<u64>::builder()
            .tick(T)
            .shards(2)
            .stripes(4)
            .inline()
            .build_stepped(seed)
            .unwrap();
        let timers = scheduler.handle();
        let hand = scheduler.clock();
        timers
            .schedule(1, T, move |firing| {
                // It takes five ticks, and the ticker with it.
                hand.advance(T * 5);
                let again = firing.handle().schedule(2, T, |_| ()).unwrap();
                assert_eq!(again.deadline, firing.deadline() + T * 6);
            })
            .unwrap();
        timers.schedule(3, T * 3, |_| ()).unwrap();
        timers.schedule(4, T * 50, |_| ()).unwrap();
        let fired = scheduler.advance(T);
        let one = fired.iter().find(|fired| fired.key == 1).unwrap();
        assert_eq!(one.at, at(1));
        // What became due meanwhile is late, and nothing else is wrong with it.
        let three = fired.iter().find(|fired| fired.key == 3).unwrap();
        assert_eq!(three.at, at(6));
        assert_eq!((fired.len(), scheduler.now()), (2, at(6)));
        let info = timers.get(&2).unwrap();
        assert_eq!((info.state, info.deadline), (TimerState::Pending, at(7)));
        let fired = scheduler.advance(T);
        assert_eq!((keys(&fired), fired[0].at), (vec![2], at(7)));
        assert_eq!(keys(&scheduler.advance(T * 100)), [4]);
        let stats = timers.stats();
        assert!(timers.is_empty() && stats.balances() && stats.panicked == 0);
    }
}

#[test]
fn c038_what_one_call_expires_is_bounded() {
    for budget in [1, 2, 7, 64, 100, 256] {
        let mut wheel = Wheel::new();
        for value in 0..=2 * budget {
            wheel.insert(Tick::new(10), value);
        }
        wheel.insert(Tick::new(11), usize::MAX);
        let mut seen = Vec::new();
        let mut counts = Vec::new();
        for left in [budget + 1, 1, 0] {
            let progress = wheel.advance(Tick::new(10), budget, |it| seen.push(it.value));
            counts.push(progress.expired);
            assert_eq!(progress.more, left > 0);
            assert_eq!(wheel.len(), left + 1);
            // The wheel does not claim more than was done.
            assert_eq!(wheel.now(), Tick::new(10));
            let wake = if left > 0 { 10 } else { 11 };
            assert_eq!(wheel.next_wake(), Some(Tick::new(wake)));
        }
        assert_eq!(counts, [budget, budget, 1]);
        assert!(seen.into_iter().eq(0..=2 * budget));
    }
}

#[test]
fn c038_a_scheduler_catches_up_in_portions_and_forgets_nothing() {
    // More than a ticker takes under one hold of a lock, twice and one more, in one stripe.
    let count = 2 * 256 + 1;
    let scheduler = narrow(3);
    let timers = scheduler.handle();
    for key in 0..count {
        timers.schedule(key, T * 10, |_| ()).unwrap();
    }
    timers.schedule(count, T * 11, |_| ()).unwrap();
    let fired = scheduler.jump_to(at(10));
    assert!(sorted(&fired).into_iter().eq(0..count));
    assert_eq!(timers.len(), 1);
    assert_eq!(keys(&scheduler.jump_to(at(11))), [count]);
}

#[test]
fn c039_a_budget_goes_on_over_slots() {
    let budget = 10;
    for slots in [[5, 6, 7], [61, 62, 63], [5, 70, 5_000], [63, 64, 65]] {
        let mut wheel = Wheel::new();
        // Seven a slot: no slot ends where a budget does.
        for (number, due) in slots.into_iter().enumerate() {
            for _ in 0..7 {
                wheel.insert(Tick::new(due), number);
            }
        }
        let target = Tick::new(10_000);
        let (mut seen, mut sum) = (Vec::new(), 0);
        let mut calls = 0;
        loop {
            let progress = wheel.advance(target, budget, |it| seen.push(it.value));
            assert!(progress.expired <= budget);
            sum += progress.expired;
            calls += 1;
            if !progress.more {
                break;
            }
            assert!(wheel.now() < target, "it has not come so far");
            assert!(calls < 100, "every call does something");
        }
        assert_eq!((sum, wheel.len(), wheel.now()), (21, 0, target));
        let expected: Vec<_> = [[0; 7], [1; 7], [2; 7]].concat();
        // Where the budget cuts a cascade off (14 values between two borders), what has moved down
        // comes before the rest.
        if slots != [63, 64, 65] {
            assert_eq!(seen, expected, "in the order of the slots");
        }
        seen.sort_unstable();
        assert_eq!(seen, expected);
    }
}

#[test]
fn c040_a_flood_of_inserts_does_not_hold_up_what_is_due() {
    let scheduler = Scheduler::<u64>::builder()
        .shards(1)
        .stripes(1)
        .workers(1)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let stop = Arc::new(AtomicBool::new(false));
    // It takes the one stripe's lock again and again, all the time.
    let flood = {
        let (timers, stop) = (timers.clone(), Arc::clone(&stop));
        thread::spawn(move || {
            let mut inserted = 0_u64;
            // Relaxed: a flag, and nothing else is read by it.
            while !stop.load(Ordering::Relaxed) {
                let key = 1_000 + inserted % 50_000;
                timers
                    .schedule(key, Duration::from_secs(3_600), |_| ())
                    .unwrap();
                inserted += 1;
            }
            inserted
        })
    };
    let (send, ran) = mpsc::channel();
    for key in 0..200 {
        let send = send.clone();
        timers
            .schedule(key, T * (key as u32 % 50), move |firing| {
                send.send(*firing.key()).unwrap();
            })
            .unwrap();
    }
    // They have all run while the flood goes on: it ends only now.
    let mut seen: Vec<_> = (0..200)
        .map(|_| ran.recv_timeout(PATIENCE).expect("the due ones run"))
        .collect();
    // Relaxed: a flag.
    stop.store(true, Ordering::Relaxed);
    assert!(flood.join().unwrap() > 0);
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..200));
    assert!(timers.stats().balances());
}

#[test]
fn c041_a_million_inserts_while_closing() {
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u64>::builder()
        .clock(Clock::manual(&hand))
        .shards(2)
        .stripes(2)
        .workers(2)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let ran = Arc::new(AtomicU64::new(0));
    let attempted = Arc::new(AtomicU64::new(0));
    let (half, reached) = mpsc::channel();
    let (producers, each) = (4, 250_000);
    let threads: Vec<_> = (0..producers)
        .map(|producer| {
            let timers = timers.clone();
            let (ran, attempted) = (Arc::clone(&ran), Arc::clone(&attempted));
            let half = half.clone();
            thread::spawn(move || {
                let (mut accepted, mut refused) = (0_u64, 0_u64);
                for number in 0..each {
                    let ran = Arc::clone(&ran);
                    let key = producer * each + number;
                    let delay = T * (number as u32 % 1_000 + 1);
                    let answer = timers.schedule(key, delay, move |_| {
                        // Relaxed: read when all threads have ended.
                        ran.fetch_add(1, Ordering::Relaxed);
                    });
                    match answer {
                        Ok(_) => accepted += 1,
                        Err(ScheduleError::Closed(_)) => refused += 1,
                        Err(other) => panic!("{other}"),
                    }
                    // Relaxed: a count.
                    if attempted.fetch_add(1, Ordering::Relaxed) == producers * each / 2 {
                        half.send(()).unwrap();
                    }
                }
                (accepted, refused)
            })
        })
        .collect();
    reached.recv_timeout(PATIENCE).expect("they insert");
    let report = scheduler.shutdown(Shutdown::RunNow).wait().unwrap();
    let (mut accepted, mut refused) = (0, 0);
    for thread in threads {
        let (yes, no) = thread.join().unwrap();
        accepted += yes;
        refused += no;
    }
    assert_eq!(accepted + refused, producers * each);
    assert!(accepted >= producers * each / 2);
    assert_eq!((report.handed_back.len(), report.still_running), (0, 0));
    // Relaxed: all threads have ended.
    assert_eq!(ran.load(Ordering::Relaxed), accepted);
    let stats = timers.stats();
    assert_eq!((stats.scheduled, stats.ran), (accepted, accepted));
    assert!(stats.balances());
}

#[test]
fn c042_the_first_insert_after_an_idle_hour() {
    let hour = Duration::from_secs(3_600);
    for seed in 0..20 {
        let scheduler = stepped(seed);
        let timers = scheduler.handle();
        assert_eq!(scheduler.advance_to_next(), None, "no tick without a timer");
        // The hand moves alone: while there is nothing to do no ticker looks at it.
        scheduler.clock().advance(hour);
        assert_eq!(scheduler.advance_to_next(), None);
        for delay in [1, 5, 63] {
            let now = scheduler.now();
            timers.schedule(delay, T * delay as u32, |_| ()).unwrap();
            let fired = scheduler.advance_to_next().expect("it is due");
            let due = now + T * delay as u32;
            assert_eq!((keys(&fired), fired[0].at), (vec![delay], due));
            scheduler.clock().advance(hour);
        }
        // Idle again by a cancel, not by a run.
        timers.schedule(1, hour, |_| ()).unwrap();
        timers.cancel(&1);
        scheduler.clock().advance(hour * 2);
        timers.schedule(2, T, |_| ()).unwrap();
        let now = scheduler.now();
        assert_eq!(scheduler.settle(), [], "not overdue");
        assert_eq!(scheduler.advance_to_next().unwrap()[0].at, now + T);
    }
    // The wheel of a loop of one's own: an hour is one step, and what is inserted then lies on the
    // lowest level, since the next wake-up is the due tick itself and not a cascade.
    let mut wheel = Wheel::new();
    assert_eq!(wheel.next_wake(), None);
    let now = Tick::new(3_600_000);
    assert_eq!(wheel.advance(now, 1, drop).expired, 0);
    for ahead in [1, 5, 31] {
        let due = Tick::new(now.get() + ahead);
        let key = wheel.insert(due, ());
        assert_eq!(wheel.next_wake(), Some(due));
        wheel.remove(key);
        assert_eq!(wheel.next_wake(), None);
    }
}

#[test]
fn c043_after_a_suspension_one_shots_fire_once() {
    // The clock jumps while the threads sleep: so it looks when a machine or a process was stopped.
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u64>::builder()
        .clock(Clock::manual(&hand))
        .shards(2)
        .workers(2)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let (send, ran) = mpsc::channel();
    for key in 0..1_000 {
        let send = send.clone();
        // Up to 20 s: half of them are due after the suspension.
        let delay = T * 20 * (key as u32 + 1);
        timers
            .schedule(key, delay, move |firing| {
                let late = firing.lateness();
                assert!(firing.handle().now() >= firing.deadline());
                send.send((*firing.key(), late)).unwrap();
            })
            .unwrap();
    }
    hand.advance(Duration::from_secs(10));
    let mut seen: Vec<_> = (0..500)
        .map(|_| ran.recv_timeout(PATIENCE).expect("what is due runs"))
        .collect();
    seen.sort_unstable();
    for (key, (ran, late)) in (0..).zip(seen) {
        assert_eq!(ran, key);
        assert_eq!(late, Duration::from_secs(10) - T * 20 * (key as u32 + 1));
    }
    assert_eq!(timers.len(), 500, "those after it wait");
    let report = scheduler.shutdown(Shutdown::HandBack).wait().unwrap();
    assert_eq!(report.handed_back.len(), 500);
    assert!(ran.try_recv().is_err(), "and none has run twice");
    let stats = timers.stats();
    assert_eq!((stats.ran, stats.panicked), (500, 0));
}
