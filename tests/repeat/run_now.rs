//! `run_now`: an extra round, and the rhythm goes on as if it had not been there.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::steps::{SEEDS, T, runs, stepped};
use tourbillon::test_util::Stepped;
use tourbillon::{AfterPanic, Clock, ManualClock, Next, Period, PullIn, Scheduler, Time};

use kit::quiet::hush;

fn tick(number: u32) -> Time {
    Time::ZERO + number * T
}

/// The starts of the rounds of key 1, in ticks, up to `until`.
fn starts(scheduler: &Stepped<u64>, until: u32) -> Vec<u64> {
    let by = tick(until).since(scheduler.now());
    runs(scheduler, by).into_iter().map(|run| run.0).collect()
}

#[test]
fn an_extra_round_keeps_the_rhythm_of_every_period() {
    let kinds: [fn() -> Period; 5] = [
        || Period::fixed_rate(10 * T),
        || Period::fixed_delay(10 * T),
        // One that counts from its last deadline, which an extra round would move.
        || Period::schedule(|so_far| Some(so_far.deadline.unwrap_or(so_far.now) + 10 * T)),
        || Period::fixed_rate(10 * T).first(10 * T).grace(2 * T),
        || Period::fixed_delay(10 * T).on_panic(AfterPanic::Stop),
    ];
    for seed in SEEDS {
        for kind in kinds {
            let scheduler = stepped(seed);
            let timers = scheduler.handle();
            timers.repeat(1, kind(), |_| ()).unwrap();
            assert_eq!(starts(&scheduler, 14), [10]);
            let before = tick(20);
            assert_eq!(timers.run_now(&1), PullIn::Moved { before });
            // It is due already.
            assert_eq!(timers.run_now(&1), PullIn::Unchanged { deadline: tick(14) });
            assert_eq!(timers.get(&1).unwrap().deadline, tick(14));
            assert_eq!(starts(&scheduler, 17), [14]);
            assert_eq!(timers.get(&1).unwrap().deadline, before);
            assert_eq!(timers.run_now(&1), PullIn::Moved { before });
            assert_eq!(starts(&scheduler, 45), [17, 20, 30, 40]);
            assert!(timers.stats().balances());
        }
    }
}

#[test]
fn jitter_moves_the_same_rounds_with_and_without_an_extra_round() {
    for seed in SEEDS {
        let all: Vec<_> = [false, true]
            .into_iter()
            .map(|extra| {
                let scheduler = stepped(seed);
                let timers = scheduler.handle();
                let period = Period::fixed_rate(100 * T).jitter(20 * T);
                timers.repeat(1, period, |_| ()).unwrap();
                let mut all = starts(&scheduler, 150);
                if extra {
                    assert!(matches!(timers.run_now(&1), PullIn::Moved { .. }));
                    assert_eq!(starts(&scheduler, 151), [150]);
                }
                all.extend(starts(&scheduler, 1_000));
                all
            })
            .collect();
        assert_eq!(all[0], all[1]);
    }
}

#[test]
fn a_key_that_runs_once_runs_now_and_others_are_told_apart() {
    let scheduler = stepped(1);
    let timers = scheduler.handle();
    assert_eq!(timers.run_now(&1), PullIn::NotFound);
    let armed = timers.schedule(1, 50 * T, |_| ()).unwrap();
    let before = armed.deadline;
    assert_eq!(timers.run_now(&1), PullIn::Moved { before });
    assert_eq!(scheduler.settle().len(), 1);
    assert_eq!(timers.run_now(&1), PullIn::NotFound);
    // What is never due is due now.
    timers.schedule(2, Duration::MAX, |_| ()).unwrap();
    assert_eq!(timers.run_now(&2), PullIn::Moved { before: Time::MAX });
    assert_eq!(scheduler.settle().len(), 1);
    assert_eq!(timers.len(), 0);
}

#[test]
fn a_round_that_runs_is_no_round_that_is_pending() {
    let scheduler = stepped(1);
    let timers = scheduler.handle();
    timers
        .repeat(1, Period::fixed_rate(10 * T), |round| {
            let timers = round.firing().handle();
            assert_eq!(timers.run_now(&1), PullIn::Running);
        })
        .unwrap();
    assert_eq!(starts(&scheduler, 35), [10, 20, 30]);
    // A timer that waits for the end of the run runs right after it.
    let armed = scheduler.handle();
    timers
        .repeat(1, Period::fixed_rate(10 * T), move |_| {
            let before = armed.schedule(1, 50 * T, |_| ()).unwrap().deadline;
            assert_eq!(armed.run_now(&1), PullIn::Moved { before });
        })
        .unwrap();
    assert_eq!(starts(&scheduler, 200), [45, 45]);
    assert!(timers.is_empty() && timers.stats().balances());
}

#[test]
fn the_answer_of_an_extra_round_is_obeyed() {
    for (answer, then) in [
        (Next::Again, vec![20, 30]),
        (Next::After(3 * T), vec![17, 27, 37]),
        (Next::At(tick(21)), vec![21, 31]),
        (Next::Stop, vec![]),
    ] {
        let scheduler = stepped(1);
        let timers = scheduler.handle();
        timers
            .repeat(1, Period::fixed_rate(10 * T), move |round| {
                if round.number() == 2 {
                    answer
                } else {
                    Next::Again
                }
            })
            .unwrap();
        assert_eq!(starts(&scheduler, 14), [10]);
        let _ = timers.run_now(&1);
        assert_eq!(starts(&scheduler, 14), [14]);
        assert_eq!(starts(&scheduler, 38), then, "{answer:?}");
    }
}

#[test]
fn an_extra_round_that_panics_keeps_the_rhythm_unless_the_policy_says_otherwise() {
    hush();
    for (policy, then) in [
        (AfterPanic::Continue, vec![20, 30]),
        (AfterPanic::Stop, vec![]),
        (
            AfterPanic::BackOff {
                first: 2 * T,
                most: 50 * T,
            },
            vec![20, 30],
        ),
        (
            AfterPanic::BackOff {
                first: 12 * T,
                most: 50 * T,
            },
            vec![30],
        ),
    ] {
        let scheduler = stepped(1);
        let timers = scheduler.handle();
        let period = Period::fixed_rate(10 * T).on_panic(policy);
        timers
            .repeat(1, period, |round| {
                assert!(round.number() != 2, "{}", kit::quiet::WANTED);
            })
            .unwrap();
        assert_eq!(starts(&scheduler, 14), [10]);
        let _ = timers.run_now(&1);
        assert_eq!(starts(&scheduler, 14), [14]);
        assert_eq!(starts(&scheduler, 35), then, "{policy:?}");
    }
}

#[test]
fn an_extra_round_that_takes_longer_than_the_rest_of_the_period_delays_the_pending_round_alone() {
    let hand = ManualClock::new();
    let builder = Scheduler::<u64>::builder().clock(Clock::manual(&hand));
    let scheduler = builder.build_stepped(1).unwrap();
    let timers = scheduler.handle();
    let told = Arc::new(Mutex::new(Vec::new()));
    let rounds = Arc::clone(&told);
    timers
        .repeat(1, Period::fixed_rate(10 * T), move |round| {
            let at = round.firing().handle().now();
            rounds.lock().unwrap().push((at, round.missed()));
            if round.number() == 2 {
                hand.advance(9 * T);
            }
        })
        .unwrap();
    scheduler.advance(14 * T);
    let _ = timers.run_now(&1);
    scheduler.settle();
    scheduler.advance(20 * T);
    let expected = [10, 14, 23, 30, 40].map(|at| (tick(at), 0));
    assert_eq!(*told.lock().unwrap(), expected);
}

#[test]
fn a_move_or_a_cancellation_of_an_extra_round_is_an_ordinary_one() {
    for cancel in [false, true] {
        let scheduler = stepped(1);
        let timers = scheduler.handle();
        timers
            .repeat(1, Period::fixed_rate(10 * T), |_| ())
            .unwrap();
        assert_eq!(starts(&scheduler, 14), [10]);
        let _ = timers.run_now(&1);
        if cancel {
            assert!(timers.cancel(&1).is_cancelled());
            assert!(starts(&scheduler, 100).is_empty());
        } else {
            let _ = timers.reschedule(&1, 3 * T);
            // The grid begins anew there.
            assert_eq!(starts(&scheduler, 40), [17, 27, 37]);
        }
    }
}

#[test]
fn a_shutdown_treats_an_extra_round_as_the_pending_round_that_it_is() {
    use tourbillon::Shutdown;
    for (mode, handed_back) in [(Shutdown::HandBack, 1), (Shutdown::RunNow, 0)] {
        let scheduler = stepped(1);
        let timers = scheduler.handle();
        timers
            .repeat(1, Period::fixed_rate(10 * T), |_| ())
            .unwrap();
        let _ = timers.run_now(&1);
        let report = scheduler.shutdown(mode);
        assert_eq!(report.handed_back.len(), handed_back);
        assert_eq!(timers.run_now(&1), PullIn::NotFound);
        assert!(timers.stats().balances());
    }
}
