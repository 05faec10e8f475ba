//! Timers that repeat: when their rounds are due, what a round is told, and what it may answer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::drops::Drops;
use kit::quiet::{WANTED, hush};
use kit::rounds;
use kit::rounds::{Beat, Beats, at, beating, ticks};
use kit::steps::{SEEDS, T, for_each_seed, runs, stepped};
use tourbillon::{
    AfterPanic, Clock, IntoNext, ManualClock, Missed, Next, Period, ScheduleError, Scheduler, Time,
    TimerState,
};

// === when rounds are due ===

#[test]
fn c091_the_first_round_has_a_delay_of_its_own() {
    for seed in SEEDS {
        for first in [0, 3, 25] {
            let rate = Period::fixed_rate(10 * T).first(first * T);
            let delay = Period::fixed_delay(10 * T).first(first * T);
            for period in [rate, delay] {
                let (scheduler, beats) = beating(seed, period, |_| ());
                scheduler.advance(100 * T);
                let expected: Vec<u64> = (u64::from(first)..=100).step_by(10).collect();
                assert_eq!(beats.starts(), expected);
            }
        }
        // By default it is the period.
        for period in [Period::fixed_rate(10 * T), Period::fixed_delay(10 * T)] {
            let (scheduler, beats) = beating(seed, period, |_| ());
            scheduler.advance(35 * T);
            assert_eq!(beats.starts(), [10, 20, 30]);
        }
    }
}

#[test]
fn c092_eight_rounds_of_a_fixed_rate_take_seven_to_eight_periods() {
    // Also of one that is no multiple of a tick.
    for period in [10 * T, Duration::from_micros(10_300), T, T / 2] {
        for seed in SEEDS {
            let scheduler = stepped(seed);
            let starts = Arc::new(Mutex::new(Vec::new()));
            let noted = Arc::clone(&starts);
            let armed = scheduler.handle().repeat(
                1,
                Period::fixed_rate(period).missed(Missed::All),
                move |round| noted.lock().unwrap().push(round.handle().now()),
            );
            let first = armed.unwrap().deadline;
            scheduler.advance(8 * period);
            scheduler.advance(T);
            let starts = starts.lock().unwrap();
            assert!(starts[7] >= first + 7 * period);
            assert!(starts[7] < Time::ZERO + 8 * period + T);
        }
    }
}

#[test]
fn c093_a_fixed_delay_counts_from_the_end() {
    for seed in SEEDS {
        for takes in [0, 1, 5, 30] {
            let scheduler = stepped(seed);
            let spans = Arc::new(Mutex::new(Vec::new()));
            let noted = Arc::clone(&spans);
            let hand = scheduler.clock();
            let period = Period::fixed_delay(10 * T);
            let armed = scheduler.handle().repeat(1, period, move |round| {
                let start = round.handle().now();
                hand.advance(takes * T);
                noted.lock().unwrap().push((start, hand.now()));
                assert_eq!(round.missed(), 0);
            });
            armed.unwrap();
            scheduler.advance(1_000 * T);
            let spans = spans.lock().unwrap();
            assert!(spans.len() >= 20);
            for pair in spans.windows(2) {
                let gap = pair[1].0.since(pair[0].1);
                assert!(gap >= 10 * T && gap < 20 * T, "{gap:?}");
            }
            assert_eq!(scheduler.handle().stats().panicked, 0);
        }
    }
}

#[test]
fn c094_two_hundred_rounds_of_fifty_milliseconds_take_ten_seconds() {
    for seed in SEEDS {
        let period = Duration::from_millis(50);
        let (scheduler, beats) = beating(seed, Period::fixed_rate(period), |_| ());
        scheduler.advance(Duration::from_secs(10));
        let beats = beats.take();
        assert_eq!(beats.len(), 200);
        assert_eq!(beats[199].at, 10_000);

        // No multiple of a tick: each starts within a tick of its point, and that never adds up.
        let (scheduler, beats) = beating(
            seed,
            Period::fixed_rate(Duration::from_micros(3_300)),
            |_| (),
        );
        scheduler.advance(Duration::from_millis(3_300));
        let beats = beats.take();
        assert_eq!(beats.len(), 1_000);
        for beat in beats {
            assert_eq!(beat.at, (beat.number * 3_300).div_ceil(1_000));
            assert_eq!(beat.missed, 0);
        }
    }
}

#[test]
fn c095_a_long_run_does_not_move_the_grid() {
    for seed in SEEDS {
        for (policy, expected) in [
            (Missed::Skip, [(60, 3), (70, 0), (80, 0), (90, 0)].to_vec()),
            (Missed::Once, [(50, 2), (60, 0), (70, 0), (80, 0)].to_vec()),
            (
                Missed::AtMost(2),
                [(50, 1), (50, 0), (60, 0), (70, 0)].to_vec(),
            ),
            (
                Missed::All,
                [(50, 0), (50, 0), (50, 0), (60, 0), (70, 0)].to_vec(),
            ),
        ] {
            let scheduler = stepped(seed);
            let beats = Beats::default();
            let noted = beats.clone();
            let long = rounds::takes(&scheduler, 30 * T);
            let period = Period::fixed_rate(10 * T).missed(policy);
            let armed = scheduler.handle().repeat(1, period, move |round| {
                noted.note(round);
                if round.number() == 2 {
                    // Three periods: its own, and two whole ones.
                    long();
                }
            });
            armed.unwrap();
            scheduler.advance(20 * T);
            assert_eq!(scheduler.now(), at(50));
            scheduler.advance(50 * T);
            let told = beats.told();
            assert_eq!(told[..2], [(10, 0), (20, 0)]);
            assert_eq!(told[2..2 + expected.len()], expected, "{policy:?}");
        }
    }
}

#[test]
fn a_run_that_takes_less_than_two_periods_makes_the_next_one_late() {
    for seed in SEEDS {
        let scheduler = stepped(seed);
        let beats = Beats::default();
        let noted = beats.clone();
        let long = rounds::takes(&scheduler, 15 * T);
        let armed = scheduler
            .handle()
            .repeat(1, Period::fixed_rate(10 * T), move |round| {
                noted.note(round);
                if round.number() == 1 {
                    long();
                }
            });
        armed.unwrap();
        scheduler.advance(40 * T);
        assert_eq!(beats.told(), [(10, 0), (25, 0), (30, 0), (40, 0)]);
    }
}

#[test]
fn c099_a_schedule_function_without_a_first_time() {
    for_each_seed(|scheduler, timers| {
        timers.schedule(1, 5 * T, |_| ()).unwrap();
        let drops = Drops::default();
        let mark = drops.mark();
        let refused = timers.repeat(1, Period::schedule(|_| None), move |_| {
            let _ = &mark;
        });
        let Err(ScheduleError::NoRound(task)) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(drops.count(), 0, "it came back");
        drop(task);
        assert_eq!(drops.count(), 1);
        // Nothing was changed.
        let stats = timers.stats();
        assert_eq!((stats.scheduled, stats.replaced, stats.pending), (1, 0, 1));
        assert_eq!(runs(scheduler, 100 * T), [(5, 1)]);
    });
}

#[test]
fn c099_a_schedule_function_that_knows_no_more() {
    for seed in SEEDS {
        let drops = Drops::default();
        let (task, function) = (drops.mark(), drops.mark());
        let three = Period::schedule(move |so_far| {
            let _ = &function;
            (so_far.rounds < 3).then(|| so_far.now + 10 * T)
        });
        let (scheduler, beats) = beating(seed, three, move |_| {
            let _ = &task;
        });
        scheduler.advance(29 * T);
        assert_eq!((beats.starts(), drops.count()), (vec![10, 20], 0));
        scheduler.advance(1_000 * T);
        assert_eq!((beats.starts(), drops.count()), (vec![30], 2));
        let timers = scheduler.handle();
        assert_eq!(timers.get(&1), None);
        let stats = timers.stats();
        assert_eq!((stats.scheduled, stats.ran, stats.running), (3, 3, 0));
        assert!(timers.is_empty() && stats.balances());
    }
}

#[test]
fn c100_an_irregular_schedule() {
    for seed in SEEDS {
        let mut intervals = [1, 4, 5, 40, 50, 400, 500].into_iter();
        let irregular = Period::schedule(move |so_far| {
            let from = so_far.deadline.unwrap_or(so_far.now);
            intervals.next().map(|interval| from + interval * T)
        });
        let (scheduler, beats) = beating(seed, irregular, |_| ());
        scheduler.advance(10_000 * T);
        assert_eq!(beats.starts(), [1, 5, 10, 50, 100, 500, 1_000]);
        assert!(!scheduler.handle().contains(&1));
    }
}

#[test]
fn a_schedule_function_sees_what_has_been() {
    for seed in SEEDS {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&seen);
        let scheduler = stepped(seed);
        let takes = rounds::takes(&scheduler, 3 * T);
        let period = Period::schedule(move |so_far| {
            let deadline = so_far.deadline.map(ticks);
            let now = ticks(so_far.now);
            noted.lock().unwrap().push((so_far.rounds, deadline, now));
            // In the past from the third on: due at once.
            (so_far.rounds < 4).then(|| at(10 * (so_far.rounds as u32 % 2 + 1)))
        });
        let armed = scheduler.handle().repeat(1, period, move |_| takes());
        armed.unwrap();
        scheduler.advance(100 * T);
        assert_eq!(
            *seen.lock().unwrap(),
            [
                (0, None, 0),
                (1, Some(10), 13),
                (2, Some(20), 23),
                (3, Some(10), 26),
                (4, Some(20), 29),
            ]
        );
    }
}

// === phase and jitter ===

/// The deadlines of the first rounds of some keys.
fn deadlines(seed: u64, period: impl Fn() -> Period) -> Vec<Vec<Time>> {
    let scheduler = stepped(seed);
    let timers = scheduler.handle();
    let seen: Vec<_> = (0..10)
        .map(|key| {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let noted = Arc::clone(&seen);
            let armed = timers.repeat(key, period(), move |round| {
                noted.lock().unwrap().push(round.deadline());
            });
            armed.unwrap();
            seen
        })
        .collect();
    scheduler.advance(1_000 * T);
    let seen = seen.iter().map(|seen| seen.lock().unwrap().clone());
    seen.collect()
}

#[test]
fn a_random_phase_spreads_keys_and_repeats_with_the_seed() {
    let period = || Period::fixed_rate(100 * T).random_phase();
    let all: Vec<_> = SEEDS.map(|seed| deadlines(seed, period)).collect();
    for (seed, keys) in SEEDS.zip(&all) {
        assert_eq!(deadlines(seed, period), *keys);
        for key in keys {
            assert!(key[0] < at(100) && key.len() == 10);
            for pair in key.windows(2) {
                assert_eq!(pair[1].since(pair[0]), 100 * T, "on a grid of its own");
            }
        }
        let mut firsts: Vec<_> = keys.iter().map(|key| key[0]).collect();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), 10, "no two are the same");
    }
    assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn jitter_is_drawn_for_each_round_and_repeats_with_the_seed() {
    let period = || Period::fixed_rate(100 * T).jitter(20 * T);
    for seed in SEEDS {
        let keys = deadlines(seed, period);
        assert_eq!(deadlines(seed, period), keys);
        let (mut early, mut late) = (0, 0);
        for key in &keys {
            for (point, deadline) in (1..).zip(key) {
                let point = at(100 * point);
                early += u32::from(*deadline < point);
                late += u32::from(*deadline > point);
                let off = deadline.since(point).max(point.since(*deadline));
                assert!(off <= 20 * T);
            }
        }
        assert!(early > 25 && late > 25, "{early} {late}");
    }
}

// === what a round is told, and answers ===

#[test]
fn a_round_is_a_firing_and_has_a_number() {
    for_each_seed(|scheduler, timers| {
        let ids = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&ids);
        let armed = timers.repeat(1, Period::fixed_rate(10 * T), move |round| {
            assert_eq!((*round.key(), round.missed()), (1, 0));
            assert_eq!(round.deadline(), at(10 * round.number() as u32));
            assert_eq!(round.firing().id(), round.id());
            assert!(!round.is_cancelled() && round.lateness().is_zero());
            let running = round.handle().get(&1).unwrap();
            assert_eq!(running.state, TimerState::Running { next: None });
            assert_eq!(
                (running.id, running.deadline),
                (round.id(), round.deadline())
            );
            noted.lock().unwrap().push(round.id());
        });
        let armed = armed.unwrap();
        assert_eq!((armed.deadline, armed.replaced), (at(10), None));
        assert!(!armed.after_run);
        scheduler.advance(25 * T);
        let info = timers.get(&1).unwrap();
        assert_eq!((info.deadline, info.state), (at(30), TimerState::Pending));
        assert_eq!(timers.len(), 1);
        scheduler.advance(T * 1_000);
        // Each round is an arming of its own.
        let ids = ids.lock().unwrap();
        assert_eq!((ids[0], ids[2]), (armed.id, info.id));
        assert!(ids.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(ids.iter().all(|id| timers.by_id(*id).get().is_none()));
        let stats = timers.stats();
        assert_eq!((stats.panicked, stats.pending), (0, 1));
        assert_eq!((stats.scheduled, stats.ran), (103, 102));
        assert!(stats.balances());
    });
}

#[test]
fn c111_who_asks_to_go_on_runs_again_at_once_and_the_others_keep_their_order() {
    for seed in SEEDS {
        let scheduler = Scheduler::<u64>::builder()
            .shards(1)
            .stripes(1)
            .workers(1)
            .build_stepped(seed)
            .unwrap();
        let timers = scheduler.handle();
        for key in 1..=5 {
            if key == 3 {
                let period = Period::fixed_rate(10 * T);
                let armed = timers.repeat(3, period, |round| match round.number() {
                    1..=3 => {
                        assert_eq!(round.handle().stats().running, 1);
                        Next::After(Duration::ZERO)
                    }
                    _ => Next::Again,
                });
                armed.unwrap();
            } else {
                timers.schedule(key, 10 * T, |_| ()).unwrap();
            }
        }
        let ran = runs(&scheduler, 10 * T);
        assert!(ran.iter().all(|(tick, _)| *tick == 10));
        let others: Vec<u64> = ran
            .iter()
            .map(|ran| ran.1)
            .filter(|key| *key != 3)
            .collect();
        assert_eq!(others, [1, 2, 4, 5]);
        assert_eq!(ran.iter().filter(|ran| ran.1 == 3).count(), 4);
        // It is kept, and its grid begins where it ran last.
        assert_eq!((timers.len(), timers.contains(&3)), (1, true));
        assert_eq!(runs(&scheduler, 15 * T), [(20, 3)]);
        assert!(timers.stats().balances());
    }
}

#[test]
fn a_round_answers_when_the_next_one_is_due() {
    for seed in SEEDS {
        let (scheduler, beats) = beating(seed, Period::fixed_rate(10 * T), |round| {
            match round.number() {
                2 => Next::After(3 * T),
                4 => Next::At(at(77)),
                5 => Next::At(Time::ZERO),
                7 => Next::Stop,
                _ => Next::Again,
            }
        });
        scheduler.advance(1_000 * T);
        assert_eq!(beats.starts(), [10, 20, 23, 33, 77, 77, 87]);
        assert!(!scheduler.handle().contains(&1));

        let (scheduler, beats) = beating(seed, Period::fixed_delay(10 * T), |round| {
            match round.number() {
                1 => Next::After(3 * T),
                _ => Next::Again,
            }
        });
        scheduler.advance(30 * T);
        assert_eq!(beats.starts(), [10, 13, 23]);

        // Never is pending, and can be moved.
        let never = Period::fixed_rate(10 * T);
        let (scheduler, beats) = beating(seed, never, |_| Next::At(Time::MAX));
        scheduler.advance(1_000 * T);
        assert_eq!((beats.starts(), scheduler.handle().len()), (vec![10], 1));
        let _ = scheduler.handle().reschedule(&1, T);
        scheduler.advance(1_000 * T);
        assert_eq!(beats.starts(), [1_001]);
    }
}

/// A type of one's own as an answer.
struct Left(u64);

impl IntoNext for Left {
    fn into_next(self) -> Next {
        if self.0 == 0 { Next::Stop } else { Next::Again }
    }
}

#[test]
fn an_answer_may_be_nothing_or_a_type_of_ones_own() {
    let (scheduler, beats) = beating(1, Period::fixed_rate(T), |round| Left(3 - round.number()));
    scheduler.advance(100 * T);
    assert_eq!(beats.starts(), [1, 2, 3]);
    let (scheduler, beats) = beating(1, Period::fixed_rate(T), |_| ());
    scheduler.advance(100 * T);
    assert_eq!(beats.starts().len(), 100);
}

// === zero and huge periods ===

#[test]
fn an_option_that_the_period_does_not_have_is_refused_and_the_task_comes_back() {
    let scheduler = stepped(1);
    let timers = scheduler.handle();
    for period in [
        Period::schedule(|so_far| Some(so_far.now + T)).missed(Missed::All),
        Period::schedule(|so_far| Some(so_far.now + T)).random_phase(),
        Period::fixed_delay(T).grace(T),
    ] {
        let Err(error) = timers.repeat(1, period, |_| ()) else {
            panic!("it was accepted");
        };
        assert!(matches!(error, ScheduleError::PeriodOption(_)) && !error.is_transient());
        assert!(error.to_string().contains("no such option"), "{error}");
        assert!(timers.is_empty());
        timers
            .repeat(2, Period::fixed_rate(T), error.into_task())
            .unwrap();
        timers.cancel(&2);
    }
}

#[test]
fn c097_a_period_of_zero_is_refused_and_the_task_comes_back() {
    for seed in SEEDS {
        for zero in [
            || Period::fixed_rate(Duration::ZERO),
            || Period::fixed_delay(Duration::ZERO).first(T),
        ] {
            let scheduler = stepped(seed);
            let timers = scheduler.handle();
            timers.schedule(1, 5 * T, |_| ()).unwrap();
            let drops = Drops::default();
            let mark = drops.mark();
            let refused = timers.repeat(1, zero(), move |_| {
                let _ = &mark;
            });
            let Err(error) = refused else {
                panic!("it was accepted");
            };
            assert!(matches!(error, ScheduleError::ZeroPeriod(_)));
            assert!(!error.is_transient());
            let task = error.into_task();
            assert_eq!(drops.count(), 0);
            assert_eq!((timers.len(), timers.stats().scheduled), (1, 1));
            // The same task with another period.
            assert!(timers.repeat(2, Period::fixed_rate(4 * T), task).is_ok());
            assert_eq!(runs(&scheduler, 8 * T), [(4, 2), (5, 1), (8, 2)]);
        }
    }
}

#[test]
fn huge_periods_are_ordinary() {
    for seed in SEEDS {
        for period in [Period::fixed_rate, Period::fixed_delay] {
            let (scheduler, beats) = beating(
                seed,
                period(Duration::MAX).first(T).jitter(Duration::MAX),
                |_| (),
            );
            scheduler.advance(Duration::from_secs(1 << 30));
            let beats = beats.take();
            assert!(beats.len() <= 1);
            assert_eq!(scheduler.handle().len(), 1);
            assert!(scheduler.handle().cancel(&1).is_cancelled());
        }
    }
}

// === where the numbers turn ===

/// Periods of a level's span and one tick beside it, from moments at which levels turn or 32 bits
/// end; and time that passes in steps that are no ticks.
#[test]
fn rounds_at_the_borders_of_levels_come_in_their_ticks() {
    let starts = [
        0,
        (1 << 12) - 1,
        (1 << 18) - 3,
        (1 << 30) - 70,
        (1 << 31) - 100,
        (1_u64 << 32) - 100,
        (1 << 36) - 5,
    ];
    for start in starts {
        for span in [64_u32, 2 * 64, 4_096, 3 * 4_096, 262_144] {
            for period in [span - 1, span, span + 1] {
                let hand = ManualClock::new();
                hand.set(Time::ZERO + Duration::from_millis(start));
                let scheduler = Scheduler::<u64>::builder()
                    .shards(1)
                    .stripes(1)
                    .clock(Clock::manual(&hand))
                    .build_stepped(start + u64::from(period))
                    .unwrap();
                let timers = scheduler.handle();
                // A far one beside it.
                timers.schedule(2, T * u32::MAX, |_| ()).unwrap();
                let beats = Beats::default();
                let noted = beats.clone();
                let armed = timers.repeat(1, Period::fixed_rate(T * period), move |round| {
                    noted.note(round);
                });
                armed.unwrap();
                scheduler.advance(5 * period * T);
                let expected: Vec<u64> = (1..=5).map(|n| start + n * u64::from(period)).collect();
                let told: Vec<_> = beats.take();
                let at: Vec<u64> = told.iter().map(|beat| beat.at).collect();
                assert_eq!(at, expected, "{start} {period}");
                assert!(
                    told.iter()
                        .all(|beat| beat.due == beat.at && beat.missed == 0)
                );
            }
        }
    }
}

#[test]
fn polled_at_another_pace_no_round_is_missed() {
    for seed in SEEDS {
        for pace in [9, 18] {
            let (scheduler, beats) = beating(seed, Period::fixed_rate(10 * T), |_| ());
            let mut now = Time::ZERO;
            while now < at(1_000) {
                now = now + T * pace / 10;
                scheduler.jump_to(now);
            }
            let beats = beats.take();
            assert_eq!(beats.len(), 100);
            for (beat, number) in beats.iter().zip(1..) {
                assert_eq!(
                    (beat.number, beat.due, beat.missed),
                    (number, 10 * number, 0)
                );
                // At the first look at or after its time.
                assert!((beat.due..beat.due + 2).contains(&beat.at));
            }
        }
    }
}

// === panics ===

#[test]
fn c098_after_a_panic_it_goes_on_by_default() {
    hush();
    for seed in SEEDS {
        let told = Arc::new(AtomicU64::new(0));
        let heard = Arc::clone(&told);
        let scheduler = Scheduler::<u64>::builder()
            .on_panic(move |panic| {
                assert_eq!((*panic.key, panic.message), (1, WANTED));
                heard.fetch_add(1, Ordering::SeqCst);
            })
            .build_stepped(seed)
            .unwrap();
        let timers = scheduler.handle();
        let drops = Drops::default();
        let mark = drops.mark();
        let mut sum = 0;
        let armed = timers.repeat(1, Period::fixed_rate(10 * T), move |round| {
            let _ = &mark;
            // What it captured outlives its panics.
            sum += 1;
            assert_eq!(sum, round.number());
            assert!(round.number() % 2 == 0, "{WANTED}");
        });
        armed.unwrap();
        assert_eq!(runs(&scheduler, 105 * T).len(), 10);
        let stats = timers.stats();
        assert_eq!((stats.ran, stats.panicked), (10, 5));
        assert_eq!((stats.scheduled, stats.pending), (11, 1));
        assert!(stats.balances());
        assert_eq!((told.load(Ordering::SeqCst), drops.count()), (5, 0));
        assert!(timers.cancel(&1).is_cancelled());
        assert_eq!(drops.count(), 1);
    }
}

#[test]
fn c098_after_a_panic_it_stops_if_that_was_chosen() {
    hush();
    for seed in SEEDS {
        let drops = Drops::default();
        let mark = drops.mark();
        let period = Period::fixed_rate(10 * T).on_panic(AfterPanic::Stop);
        let (scheduler, beats) = beating(seed, period, move |round| {
            let _ = &mark;
            assert!(round.number() < 3, "{WANTED}");
        });
        scheduler.advance(1_000 * T);
        assert_eq!((beats.starts(), drops.count()), (vec![10, 20, 30], 1));
        let timers = scheduler.handle();
        let stats = timers.stats();
        assert_eq!((stats.ran, stats.panicked, stats.pending), (3, 1, 0));
        assert!(!timers.contains(&1) && stats.balances());
    }
}

#[test]
fn c098_after_a_panic_it_backs_off_if_that_was_chosen() {
    hush();
    for seed in SEEDS {
        let back_off = AfterPanic::BackOff {
            first: 15 * T,
            most: 40 * T,
        };
        let period = Period::fixed_rate(10 * T).on_panic(back_off);
        let (scheduler, beats) = beating(seed, period, |round| {
            assert!([5, 6].contains(&round.number()), "{WANTED}");
        });
        scheduler.advance(250 * T);
        let told = beats.told();
        let starts: Vec<u64> = told.iter().map(|told| told.0).collect();
        assert_eq!(starts, [10, 30, 60, 100, 140, 150, 160, 180, 210, 250]);
        assert!(told.iter().all(|told| told.1 == 0), "none was missed");
        assert_eq!(scheduler.handle().stats().panicked, 8);
    }
}

#[test]
fn a_schedule_function_that_panics_is_the_end() {
    hush();
    for seed in SEEDS {
        let period = Period::schedule(|so_far| {
            assert!(so_far.rounds < 2, "{WANTED}");
            Some(so_far.now + 10 * T)
        });
        let (scheduler, beats) = beating(seed, period, |_| ());
        scheduler.advance(1_000 * T);
        assert_eq!(beats.starts(), [10, 20]);
        let stats = scheduler.handle().stats();
        assert_eq!((stats.ran, stats.panicked, stats.pending), (2, 1, 0));
        assert!(!scheduler.handle().contains(&1) && stats.balances());
    }
}

#[test]
fn a_drop_that_panics_ends_only_its_own_repetition() {
    struct Brittle;
    impl Drop for Brittle {
        fn drop(&mut self) {
            panic!("{WANTED}: in the drop");
        }
    }
    hush();
    for seed in SEEDS {
        let brittle = Brittle;
        let (scheduler, beats) = beating(seed, Period::fixed_rate(10 * T), move |round| {
            let _ = &brittle;
            if round.number() < 3 {
                Next::Again
            } else {
                Next::Stop
            }
        });
        let other = scheduler
            .handle()
            .repeat(2, Period::fixed_rate(10 * T), |_| ());
        other.unwrap();
        scheduler.advance(100 * T);
        assert_eq!(beats.starts(), [10, 20, 30]);
        let stats = scheduler.handle().stats();
        assert_eq!((stats.ran, stats.running, stats.pending), (13, 0, 1));
        assert!(stats.balances());
    }
}

#[test]
fn a_beat_is_what_it_says() {
    let (scheduler, beats) = beating(1, Period::fixed_rate(10 * T), |_| ());
    scheduler.jump_to(at(13));
    let first = Beat {
        number: 1,
        missed: 0,
        due: 10,
        at: 13,
    };
    assert_eq!(beats.take(), [first]);
}
