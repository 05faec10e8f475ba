//! What each call does on a key that runs, with and without a successor, by key and by id. The row
//! "Running" of the table in `src/shard/entry.rs` is the summary.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use kit::drops::Drops;
use kit::steps::{SEEDS, T, for_each_seed, narrow, runs, stepped};
use kit::wait;
use tourbillon::{
    Cancel, Firing, PullIn, Reschedule, ScheduleError, Scheduled, Scheduler, Time, TimerId,
    TimerState,
};

/// Calls `during` in a run of key 1 that starts at tick 1, and returns which runs came after it.
/// With a kept arming, that one is due at tick 11.
fn after<F>(kept: bool, during: F) -> Vec<(u64, u64)>
where
    F: Fn(&Firing<'_, u64>, Option<Scheduled>) + Copy + Send + 'static,
{
    let mut all = SEEDS.map(|seed| {
        let scheduler = stepped(seed);
        let timers = scheduler.handle();
        timers
            .schedule(1, T, move |firing| {
                let kept = kept.then(|| firing.handle().schedule(1, 10 * T, |_| ()).unwrap());
                during(firing, kept);
            })
            .unwrap();
        let mut ran = runs(&scheduler, 1_000_000 * T);
        assert_eq!(ran.remove(0), (1, 1));
        assert!(timers.is_empty() && !timers.contains(&1));
        let stats = timers.stats();
        assert_eq!((stats.panicked, stats.running), (0, 0));
        assert_eq!(stats.ran, 1 + ran.len() as u64);
        assert!(stats.balances());
        ran
    });
    let first = all.next().unwrap();
    assert!(all.all(|ran| ran == first));
    first
}

/// The id of an arming of key 1 that was kept, and replaced or cancelled since.
fn gone(firing: &Firing<'_, u64>) -> TimerId {
    let timers = firing.handle();
    let gone = timers.schedule(1, T, |_| ()).unwrap().id;
    assert!(timers.by_id(gone).cancel().is_cancelled());
    gone
}

// === schedule, schedule_if_absent ===

#[test]
fn schedule_without_a_kept_arming_keeps_it() {
    let ran = after(false, |firing, _| {
        let timers = firing.handle();
        let armed = timers.schedule(1, 4 * T, |_| ()).unwrap();
        assert_eq!((armed.replaced, armed.after_run), (None, true));
        assert_eq!(armed.deadline, firing.handle().now() + 4 * T);
        assert_eq!((timers.len(), timers.stats().running), (1, 1));
    });
    assert_eq!(ran, [(5, 1)]);
}

#[test]
fn schedule_with_a_kept_arming_replaces_that() {
    let ran = after(true, |firing, kept| {
        let kept = kept.unwrap();
        let armed = firing.handle().schedule(1, 4 * T, |_| ()).unwrap();
        assert_eq!(armed.replaced, Some(kept.deadline));
        assert!(armed.after_run);
        assert_ne!(armed.id, kept.id);
        assert_eq!(firing.handle().by_id(kept.id).get(), None);
        assert_eq!(firing.handle().stats().replaced, 1);
        assert_eq!(firing.handle().len(), 1);
    });
    assert_eq!(ran, [(5, 1)]);
}

#[test]
fn schedule_if_absent_without_a_kept_arming_keeps_it() {
    let ran = after(false, |firing, _| {
        let timers = firing.handle();
        let armed = timers.schedule_if_absent(1, 4 * T, |_| ()).unwrap();
        assert_eq!((armed.replaced, armed.after_run), (None, true));
    });
    assert_eq!(ran, [(5, 1)]);
}

#[test]
fn schedule_if_absent_with_a_kept_arming_is_refused() {
    let ran = after(true, |firing, kept| {
        let refused = firing.handle().schedule_if_absent(1, 4 * T, |_| ());
        assert!(matches!(refused, Err(ScheduleError::Occupied(_))));
        assert!(firing.handle().by_id(kept.unwrap().id).get().is_some());
    });
    assert_eq!(ran, [(11, 1)]);
}

// === reschedule, pull_in ===

#[test]
fn moving_without_a_kept_arming_answers_running() {
    let ran = after(false, |firing, _| {
        let timers = firing.handle();
        assert_eq!(timers.reschedule(&1, T), Reschedule::Running);
        assert_eq!(timers.reschedule(&1, Time::ZERO), Reschedule::Running);
        assert_eq!(timers.pull_in(&1, Duration::ZERO), PullIn::Running);
        assert_eq!(timers.reschedule_many(&[1], T), [Reschedule::Running]);
        let alone = TimerState::Running { next: None };
        assert_eq!(timers.get(&1).unwrap().state, alone);
    });
    assert_eq!(ran, []);
}

#[test]
fn moving_with_a_kept_arming_moves_that() {
    for (later, tick) in [(30, 31), (3, 4), (0, 1)] {
        let ran = after(true, move |firing, kept| {
            let kept = kept.unwrap();
            let timers = firing.handle();
            let delay = later * T;
            let before = kept.deadline;
            assert_eq!(timers.reschedule(&1, 20 * T), Reschedule::Moved { before });
            let before = timers.now() + 20 * T;
            let many = timers.reschedule_many(&[1], delay);
            assert_eq!(many, [Reschedule::Moved { before }]);
            let info = timers.by_id(kept.id).get().unwrap();
            assert_eq!(info.deadline, timers.now() + delay);
        });
        assert_eq!(ran, [(tick, 1)]);
    }
}

#[test]
fn pull_in_with_a_kept_arming_pulls_that_in() {
    let ran = after(true, |firing, kept| {
        let kept = kept.unwrap();
        let timers = firing.handle();
        let deadline = kept.deadline;
        assert_eq!(timers.pull_in(&1, 20 * T), PullIn::Unchanged { deadline });
        assert_eq!(timers.pull_in(&1, 10 * T), PullIn::Unchanged { deadline });
        let before = deadline;
        assert_eq!(timers.pull_in(&1, 2 * T), PullIn::Moved { before });
    });
    assert_eq!(ran, [(3, 1)]);
}

#[test]
fn a_kept_arming_moved_into_the_past_runs_right_after_the_run() {
    let ran = after(true, |firing, _| {
        let moved = firing.handle().reschedule(&1, Time::ZERO);
        assert!(matches!(moved, Reschedule::Moved { .. }));
    });
    assert_eq!(ran, [(1, 1)]);
}

// === cancel ===

#[test]
fn cancel_without_a_kept_arming_tells_the_run() {
    let ran = after(false, |firing, _| {
        assert!(!firing.is_cancelled());
        assert_eq!(firing.handle().cancel(&1), Cancel::Running);
        assert!(firing.is_cancelled());
        assert_eq!(firing.handle().stats().cancelled, 0);
    });
    assert_eq!(ran, []);
}

#[test]
fn cancel_with_a_kept_arming_cancels_that_and_tells_the_run() {
    let ran = after(true, |firing, kept| {
        let timers = firing.handle();
        let expected = Cancel::Cancelled {
            deadline: kept.unwrap().deadline,
            running: true,
        };
        assert_eq!(timers.cancel(&1), expected);
        assert!(firing.is_cancelled());
        assert_eq!((timers.len(), timers.stats().cancelled), (0, 1));
        assert_eq!(timers.cancel(&1), Cancel::Running);
    });
    assert_eq!(ran, []);
}

#[test]
fn cancel_many_is_cancel_for_each() {
    let ran = after(true, |firing, kept| {
        let expected = Cancel::Cancelled {
            deadline: kept.unwrap().deadline,
            running: true,
        };
        let answers = firing.handle().cancel_many(&[1, 1, 2]);
        assert_eq!(answers, [expected, Cancel::Running, Cancel::NotFound]);
        assert!(firing.is_cancelled());
    });
    assert_eq!(ran, []);
}

#[test]
fn cancel_all_takes_what_is_kept_and_lets_runs_go_on() {
    let ran = after(true, |firing, kept| {
        let timers = firing.handle();
        assert_eq!(timers.cancel_all(), 1);
        assert_eq!(timers.by_id(kept.unwrap().id).get(), None);
        let alone = TimerState::Running { next: None };
        assert_eq!(timers.get(&1).unwrap().state, alone);
        assert!(!firing.is_cancelled());
        assert_eq!(timers.cancel_all(), 0);
    });
    assert_eq!(ran, []);
}

// === get ===

#[test]
fn get_without_a_kept_arming_shows_the_run() {
    let ran = after(false, |firing, _| {
        let timers = firing.handle();
        let info = timers.get(&1).unwrap();
        assert_eq!((info.id, info.deadline), (firing.id(), firing.deadline()));
        assert_eq!(info.state, TimerState::Running { next: None });
        assert!(timers.contains(&1));
        assert!(timers.is_empty(), "what runs is not pending");
    });
    assert_eq!(ran, []);
}

#[test]
fn get_with_a_kept_arming_shows_both() {
    let ran = after(true, |firing, kept| {
        let kept = kept.unwrap();
        let timers = firing.handle();
        let info = timers.get(&1).unwrap();
        assert_eq!((info.id, info.deadline), (firing.id(), firing.deadline()));
        let next = Some((kept.id, kept.deadline));
        assert_eq!(info.state, TimerState::Running { next });
        assert_eq!(timers.len(), 1);
    });
    assert_eq!(ran, [(11, 1)]);
}

// === by id ===

#[test]
fn the_running_id_answers_running_and_leaves_what_is_kept() {
    for kept in [false, true] {
        let ran = after(kept, |firing, kept| {
            let timers = firing.handle();
            let by_id = timers.by_id(firing.id());
            assert_eq!(by_id.reschedule(T), Reschedule::Running);
            assert_eq!(by_id.reschedule(Time::ZERO), Reschedule::Running);
            assert_eq!(by_id.pull_in(Duration::ZERO), PullIn::Running);
            let next = kept.map(|kept| (kept.id, kept.deadline));
            let info = by_id.get().unwrap();
            assert_eq!((info.id, info.deadline), (firing.id(), firing.deadline()));
            assert_eq!(info.state, TimerState::Running { next });
            assert!(!firing.is_cancelled());
            assert_eq!(by_id.cancel(), Cancel::Running);
            assert!(firing.is_cancelled(), "the run is told");
            assert_eq!(by_id.get().unwrap().state, TimerState::Running { next });
        });
        assert_eq!(ran, if kept { vec![(11, 1)] } else { vec![] });
    }
}

#[test]
fn the_kept_id_acts_like_that_of_a_pending_timer() {
    let ran = after(true, |firing, kept| {
        let kept = kept.unwrap();
        let timers = firing.handle();
        let by_id = timers.by_id(kept.id);
        let info = by_id.get().unwrap();
        assert_eq!((info.id, info.deadline), (kept.id, kept.deadline));
        assert_eq!(info.state, TimerState::Pending);
        let before = kept.deadline;
        assert_eq!(by_id.reschedule(20 * T), Reschedule::Moved { before });
        let before = timers.now() + 20 * T;
        let unchanged = PullIn::Unchanged { deadline: before };
        assert_eq!(by_id.pull_in(30 * T), unchanged);
        assert_eq!(by_id.pull_in(6 * T), PullIn::Moved { before });
        let before = timers.now() + 6 * T;
        let to = timers.now() + 7 * T;
        assert_eq!(by_id.reschedule(to), Reschedule::Moved { before });
        assert_eq!(by_id.get().unwrap().deadline, to);
    });
    assert_eq!(ran, [(8, 1)]);
}

#[test]
fn cancelling_the_kept_id_leaves_the_run_alone() {
    let ran = after(true, |firing, kept| {
        let kept = kept.unwrap();
        let timers = firing.handle();
        let expected = Cancel::Cancelled {
            deadline: kept.deadline,
            running: true,
        };
        assert_eq!(timers.by_id(kept.id).cancel(), expected);
        assert!(!firing.is_cancelled(), "the id means that arming alone");
        assert_eq!(timers.by_id(kept.id).cancel(), Cancel::NotFound);
        assert!(timers.contains(&1) && timers.is_empty());
    });
    assert_eq!(ran, []);
}

#[test]
fn other_ids_of_the_key_are_not_found() {
    for kept in [false, true] {
        let ran = after(kept, |firing, kept| {
            let timers = firing.handle();
            let others = if let Some(kept) = kept {
                // The kept one replaced, which brings its task and its time along.
                let replaced = kept.id;
                timers.schedule(1, 10 * T, |_| ()).unwrap();
                vec![replaced]
            } else {
                vec![gone(firing), gone(firing)]
            };
            for id in others {
                let by_id = timers.by_id(id);
                assert_eq!(by_id.reschedule(T), Reschedule::NotFound);
                assert_eq!(by_id.reschedule(Time::ZERO), Reschedule::NotFound);
                assert_eq!(by_id.pull_in(Duration::ZERO), PullIn::NotFound);
                assert_eq!(by_id.cancel(), Cancel::NotFound);
                assert_eq!(by_id.get(), None);
            }
            assert!(!firing.is_cancelled());
        });
        assert_eq!(ran, if kept { vec![(11, 1)] } else { vec![] });
    }
}

// === after the run ===

#[test]
fn a_kept_arming_that_is_due_before_the_end_runs_after_it() {
    for seed in SEEDS {
        let scheduler = narrow(seed);
        let timers = scheduler.handle();
        let clock = scheduler.clock();
        timers
            .schedule(1, T, move |firing| {
                let kept = firing.handle().schedule(1, 2 * T, |_| ()).unwrap();
                // The run lasts for ten ticks.
                clock.advance(10 * T);
                let info = firing.handle().by_id(kept.id).get().unwrap();
                assert_eq!(info.state, TimerState::Pending);
            })
            .unwrap();
        let fired = scheduler.advance(T);
        assert_eq!(fired.len(), 2);
        assert_eq!(fired[1].deadline, Time::ZERO + 3 * T);
        assert_eq!(fired[1].at, Time::ZERO + 11 * T);
        assert_eq!(timers.stats().panicked, 0);
    }
}

#[test]
fn a_kept_arming_outlives_a_run_that_panics() {
    for seed in SEEDS {
        let scheduler = narrow(seed);
        let timers = scheduler.handle();
        timers
            .schedule(1, T, |firing| {
                firing.handle().schedule(1, 4 * T, |_| ()).unwrap();
                panic!("a run that panics: wanted");
            })
            .unwrap();
        assert_eq!(runs(&scheduler, 100 * T), [(1, 1), (5, 1)]);
        let stats = timers.stats();
        assert_eq!((stats.ran, stats.panicked), (2, 1));
        assert!(stats.balances());
    }
}

#[test]
fn the_kept_id_becomes_the_running_one() {
    for_each_seed(|scheduler, timers| {
        let (send, ids) = mpsc::channel();
        timers
            .schedule(1, T, move |firing| {
                let inner = send.clone();
                let kept = firing
                    .handle()
                    .schedule(1, T, move |firing| inner.send(firing.id()).unwrap());
                send.send(kept.unwrap().id).unwrap();
            })
            .unwrap();
        let fired = scheduler.advance(10 * T);
        let ids: Vec<_> = ids.iter().collect();
        assert_eq!(ids, [fired[1].id; 2]);
        assert_ne!(fired[0].id, fired[1].id);
    });
}

#[test]
fn a_kept_arming_ends_once() {
    for seed in SEEDS {
        let scheduler = narrow(seed);
        let timers = scheduler.handle();
        let drops = Drops::default();
        let counter = drops.clone();
        timers
            .schedule(1, T, move |firing| {
                let timers = firing.handle();
                for round in 0..10 {
                    let mark = counter.mark();
                    timers.schedule(1, T, move |_| drop(mark)).unwrap();
                    assert_eq!(counter.count(), round, "the one before, at once");
                }
                assert!(timers.cancel(&1).is_cancelled());
                assert_eq!(counter.count(), 10);
            })
            .unwrap();
        assert_eq!(runs(&scheduler, 100 * T), [(1, 1)]);
        assert_eq!(drops.count(), 10);
        let stats = timers.stats();
        assert_eq!((stats.replaced, stats.cancelled, stats.ran), (9, 1, 1));
        assert!(stats.balances() && stats.panicked == 0);
    }
}

/// On real threads: a key that is armed again and again while it runs, with nothing to wait for.
#[test]
fn runs_of_one_key_never_overlap() {
    const ROUNDS: usize = 2_000;
    let builder = Scheduler::<u64>::builder().workers(4).max_running(4);
    let scheduler = builder.build().unwrap();
    let timers = scheduler.handle();
    let running = Arc::new(AtomicBool::new(false));
    let overlaps = Arc::new(AtomicUsize::new(0));
    for round in 0..ROUNDS {
        let (running, overlaps) = (Arc::clone(&running), Arc::clone(&overlaps));
        let task = move |firing: &Firing<'_, u64>| {
            if running.swap(true, Ordering::SeqCst) {
                overlaps.fetch_add(1, Ordering::SeqCst);
            }
            // So that another worker would have the time to come across.
            for _ in 0..round % 8 {
                std::thread::yield_now();
            }
            assert!(matches!(
                firing.handle().get(firing.key()).unwrap().state,
                TimerState::Running { .. }
            ));
            running.store(false, Ordering::SeqCst);
        };
        timers.schedule(1, Duration::ZERO, task).unwrap();
        if round % 3 == 0 {
            std::thread::yield_now();
        }
    }
    wait::until("the last run", || {
        let stats = timers.stats();
        stats.pending == 0 && stats.running == 0
    });
    assert_eq!(overlaps.load(Ordering::SeqCst), 0);
    let stats = timers.stats();
    assert_eq!(stats.ran + stats.replaced, ROUNDS as u64);
    assert_eq!(stats.panicked, 0);
    assert!(stats.balances());
}
