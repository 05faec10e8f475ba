//! Moving: reschedule and pull in. With `keys.rs`, rows `c044` to `c069` of `docs/conformance.md`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kit::steps::{SEEDS, T, for_each_seed, narrow, runs, stepped};
use tourbillon::{PullIn, Reschedule, Scheduler, Time, TimerState};

fn moved(before: Time) -> Reschedule {
    Reschedule::Moved { before }
}

#[test]
fn c047_moved_later_it_runs_at_the_new_time_only() {
    for_each_seed(|scheduler, timers| {
        let old = timers.schedule(1, 4 * T, |_| ()).unwrap().deadline;
        assert_eq!(timers.reschedule(&1, 7 * T), moved(old));
        assert_eq!(runs(scheduler, 6 * T), []);
        assert_eq!(timers.get(&1).unwrap().state, TimerState::Pending);
        assert_eq!(runs(scheduler, 100 * T), [(7, 1)]);
    });
}

#[test]
fn c048_moved_earlier_it_runs_at_the_new_time_only() {
    for_each_seed(|scheduler, timers| {
        let old = timers.schedule(1, 4 * T, |_| ()).unwrap().deadline;
        assert_eq!(timers.reschedule(&1, 2 * T), moved(old));
        assert_eq!(runs(scheduler, 100 * T), [(2, 1)]);
        assert_eq!(timers.reschedule(&1, 2 * T), Reschedule::NotFound);
    });
}

#[test]
fn c049_moved_to_under_a_tick_it_runs_once() {
    for seed in SEEDS {
        for delay in [T / 2, Duration::from_nanos(1), Duration::ZERO] {
            let scheduler = stepped(seed);
            let timers = scheduler.handle();
            scheduler.advance(10 * T + T / 4);
            let old = timers.schedule(1, 4 * T, |_| ()).unwrap().deadline;
            assert_eq!(timers.reschedule(&1, delay), moved(old));
            let fired = scheduler.advance(100 * T);
            assert_eq!(fired.len(), 1, "{delay:?}");
            assert!(fired[0].at >= fired[0].deadline);
            assert!(fired[0].at.since(fired[0].deadline) <= T);
        }
    }
}

/// Delays around the ends of the levels, whose slots are 1, 64 and 4,096 ticks long.
const AROUND: [u32; 14] = [
    1, 3, 5, 10, 62, 63, 64, 65, 127, 128, 4_095, 4_096, 4_097, 262_144,
];

#[test]
fn c050_of_two_moves_the_last_one_counts_for_all_pairs() {
    for_each_seed(|scheduler, timers| {
        // The wheels stand somewhere inside their slots.
        scheduler.advance(37 * T);
        let mut expected = Vec::new();
        for (key, (first, second, third)) in triples().enumerate() {
            let key = key as u64;
            let armed = timers.schedule(key, first * T, |_| ()).unwrap();
            assert_eq!(timers.reschedule(&key, second * T), moved(armed.deadline));
            let second = scheduler.now() + second * T;
            assert_eq!(timers.reschedule(&key, third * T), moved(second));
            assert_eq!(timers.get(&key).unwrap().id, armed.id);
            expected.push((u64::from(37 + third), key));
        }
        let mut ran = runs(scheduler, 600_000 * T);
        ran.sort_unstable();
        expected.sort_unstable();
        assert_eq!(ran, expected);
        assert!(timers.is_empty() && timers.stats().balances());
    });
}

fn triples() -> impl Iterator<Item = (u32, u32, u32)> {
    let pairs = AROUND.into_iter().flat_map(|a| AROUND.map(|b| (a, b)));
    pairs.flat_map(|(a, b)| AROUND.map(|c| (a, b, c)))
}

#[test]
fn c051_a_move_counts_from_the_call() {
    for seed in SEEDS {
        for before in [0, 1, 5, 63, 64, 1_000] {
            for between in 0..4 {
                let scheduler = stepped(seed);
                let timers = scheduler.handle();
                scheduler.advance(before * T);
                let armed = timers.schedule(1, 4 * T, |_| ()).unwrap();
                assert_eq!(armed.deadline, Time::ZERO + (before + 4) * T);
                assert_eq!(runs(&scheduler, between * T), []);
                assert_eq!(timers.reschedule(&1, 7 * T), moved(armed.deadline));
                let due = u64::from(before + between + 7);
                assert_eq!(runs(&scheduler, 100 * T), [(due, 1)]);
            }
        }
    }
}

#[test]
fn c052_a_move_across_levels_fires_at_its_time() {
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    for seed in SEEDS {
        for tick in [T, Duration::from_secs(1)] {
            for (from, to) in [(15, 120), (120, 15), (1, 60 * 24), (60 * 24 * 30, 2)] {
                let builder = Scheduler::<u64>::builder().tick(tick);
                let scheduler = builder.build_stepped(seed).unwrap();
                let timers = scheduler.handle();
                let old = timers.schedule(1, minutes(from), |_| ()).unwrap().deadline;
                assert_eq!(timers.reschedule(&1, minutes(to)), moved(old));
                let info = timers.get(&1).unwrap();
                assert_eq!(info.remaining(scheduler.now()), minutes(to));
                assert!(scheduler.advance(minutes(to) - tick).is_empty());
                let fired = scheduler.advance(tick);
                assert_eq!(fired.len(), 1, "{from} to {to} min at {tick:?}");
                assert_eq!(fired[0].at, fired[0].deadline);
                assert!(scheduler.advance(minutes(60 * 24 * 60)).is_empty());
            }
        }
    }
}

#[test]
fn c053_a_move_within_the_tick_changes_what_remains() {
    for_each_seed(|scheduler, timers| {
        let armed = timers.schedule(1, 3 * T + T / 4, |_| ()).unwrap();
        for quarters in [3, 2, 1, 4] {
            let before = timers.get(&1).unwrap().deadline;
            let delay = 3 * T + quarters * T / 4;
            assert_eq!(timers.reschedule(&1, delay), moved(before));
            let info = timers.get(&1).unwrap();
            assert_eq!(info.id, armed.id);
            assert_eq!(info.remaining(scheduler.now()), delay);
        }
        assert_eq!(runs(scheduler, 100 * T), [(4, 1)]);
    });
}

#[test]
fn c054_moving_an_unknown_key_creates_nothing() {
    for_each_seed(|scheduler, timers| {
        let fired = timers.schedule(1, T, |_| ()).unwrap().id;
        assert_eq!(runs(scheduler, 2 * T), [(1, 1)]);
        let cancelled = timers.schedule(2, T, |_| ()).unwrap().id;
        assert!(timers.cancel(&2).is_cancelled());
        let before = timers.stats();
        for key in [1, 2, 3] {
            assert_eq!(timers.reschedule(&key, T), Reschedule::NotFound);
            assert_eq!(timers.reschedule(&key, Time::ZERO), Reschedule::NotFound);
            assert_eq!(timers.pull_in(&key, Duration::ZERO), PullIn::NotFound);
            assert!(!timers.contains(&key));
            assert_eq!(timers.get(&key), None);
        }
        for id in [fired, cancelled] {
            assert_eq!(timers.by_id(id).reschedule(T), Reschedule::NotFound);
            assert_eq!(timers.by_id(id).pull_in(T), PullIn::NotFound);
        }
        assert_eq!(timers.stats().scheduled, before.scheduled);
        assert_eq!(timers.len(), 0);
        assert_eq!(timers.pending().count(), 0);
        // c056
        assert_eq!(runs(scheduler, 1_000_000 * T), []);
    });
}

#[test]
fn c055_pull_in_only_ever_goes_earlier() {
    for_each_seed(|scheduler, timers| {
        let armed = timers.schedule(1, 2 * T, |_| ()).unwrap();
        let unchanged = PullIn::Unchanged {
            deadline: armed.deadline,
        };
        assert_eq!(timers.pull_in(&1, 5 * T), unchanged);
        assert_eq!(timers.pull_in(&1, Duration::MAX), unchanged);
        assert_eq!(timers.pull_in(&1, 2 * T), unchanged);
        assert_eq!(timers.by_id(armed.id).pull_in(3 * T), unchanged);
        let before = armed.deadline;
        assert_eq!(timers.pull_in(&1, T), PullIn::Moved { before });
        assert_eq!(runs(scheduler, 100 * T), [(1, 1)]);

        // What is queued can't get any earlier; from "never" everything is earlier.
        let queued = timers.schedule(2, Duration::ZERO, |_| ()).unwrap();
        let deadline = queued.deadline;
        assert_eq!(
            timers.pull_in(&2, Duration::ZERO),
            PullIn::Unchanged { deadline }
        );
        timers.schedule(3, Duration::MAX, |_| ()).unwrap();
        let before = Time::MAX;
        assert_eq!(timers.pull_in(&3, 4 * T), PullIn::Moved { before });
        let ran = runs(scheduler, 100 * T);
        assert_eq!(ran.len(), 2);
        assert_eq!((ran[0].1, ran[1]), (2, (100 + 4, 3)));
    });
}

#[test]
fn c057_moved_into_the_past_it_runs_at_once() {
    for_each_seed(|scheduler, timers| {
        scheduler.advance(50 * T);
        let (one, past) = (Time::ZERO + T, Time::ZERO + 20 * T);
        timers.schedule(1, 4 * T, |_| ()).unwrap();
        timers.schedule(2, 4 * T, |_| ()).unwrap();
        let undisturbed = timers.schedule(3, 4 * T, |_| ()).unwrap();
        for (key, to) in [(1, past), (2, one)] {
            let Reschedule::Moved { before } = timers.reschedule(&key, to) else {
                panic!("it was pending");
            };
            assert_eq!(before, undisturbed.deadline);
            assert_eq!(timers.get(&key).unwrap().deadline, to);
        }
        let fired = scheduler.settle();
        let at: Vec<_> = fired.iter().map(|fired| fired.at).collect();
        assert_eq!(at, [scheduler.now(); 2]);
        let mut deadlines: Vec<_> = fired.iter().map(|fired| fired.deadline).collect();
        deadlines.sort_unstable();
        assert_eq!(deadlines, [one, past]);
        assert_eq!(runs(scheduler, 100 * T), [(54, 3)]);
    });
}

#[test]
fn c058_moved_then_cancelled_nothing_runs_when_the_old_slot_passes() {
    for_each_seed(|scheduler, timers| {
        timers.schedule(1, 8 * T, |_| ()).unwrap();
        scheduler.advance(6 * T);
        let Reschedule::Moved { .. } = timers.reschedule(&1, 7 * T) else {
            panic!("it was pending");
        };
        // The old slot passes at 8.
        assert_eq!(runs(scheduler, 3 * T), []);
        assert!(timers.cancel(&1).is_cancelled());
        assert_eq!(runs(scheduler, T), []);
        // A new one under the same key is another timer.
        timers.schedule(1, 5 * T, |_| ()).unwrap();
        assert_eq!(runs(scheduler, 1_000 * T), [(15, 1)]);
        assert!(timers.is_empty());
    });
}

#[test]
fn c068_moving_does_not_change_the_count() {
    for_each_seed(|scheduler, timers| {
        let count = |expected: usize| {
            assert_eq!(timers.len(), expected);
            assert_eq!(timers.is_empty(), expected == 0);
            let stats = timers.stats();
            assert_eq!(stats.pending, expected as u64);
            assert!(stats.balances());
        };
        for key in 0..10 {
            timers.schedule(key, 5_000 * T, |_| ()).unwrap();
        }
        for (round, delay) in [5, 300, 20_000, 0, 64, 0, 1 << 20, 70]
            .into_iter()
            .enumerate()
        {
            for key in 0..10 {
                let Reschedule::Moved { .. } = timers.reschedule(&key, delay * T) else {
                    panic!("round {round}: it was pending");
                };
                count(10);
            }
        }
        for key in 0..10 {
            assert!(timers.cancel(&key).is_cancelled());
        }
        count(0);
        assert_eq!(runs(scheduler, 2_000_000 * T), []);
        count(0);
    });
}

#[test]
fn a_touch_wins_over_an_expiry_whose_task_has_not_started() {
    for seed in SEEDS {
        let scheduler = narrow(seed);
        let timers = scheduler.handle();
        let ran = Arc::new(AtomicU64::new(0));
        // All are queued together; the first to start touches all others, by key and by id.
        for key in 0..10 {
            let ran = Arc::clone(&ran);
            timers
                .schedule(key, 5 * T, move |firing| {
                    if ran.fetch_add(1, Ordering::SeqCst) > 0 {
                        return;
                    }
                    let timers = firing.handle();
                    for other in (0..10).filter(|other| other != firing.key()) {
                        let info = timers.get(&other).unwrap();
                        assert_eq!(info.state, TimerState::Queued);
                        let answer = match other % 2 {
                            0 => timers.reschedule(&other, 3 * T),
                            _ => timers.by_id(info.id).reschedule(3 * T),
                        };
                        assert_eq!(answer, moved(firing.deadline()));
                    }
                })
                .unwrap();
        }
        assert_eq!(runs(&scheduler, 5 * T).len(), 1);
        assert_eq!(timers.len(), 9);
        let rest = runs(&scheduler, 100 * T);
        assert_eq!(rest.len(), 9);
        assert!(rest.iter().all(|(at, _)| *at == 8));
        assert_eq!(timers.stats().panicked, 0);
    }
}
