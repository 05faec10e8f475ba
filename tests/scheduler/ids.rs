//! Ids: one arming of one scheduler each. What has ended answers not found, whatever has taken its
//! place since.

use std::collections::HashSet;
use std::time::Duration;

use kit::steps::{SEEDS, T, for_each_seed, narrow, runs, stepped};
use tourbillon::{Cancel, Handle, PullIn, Reschedule, Scheduler, Time, TimerId, TimerState};

/// All calls by a stale id; none of them finds or changes anything.
#[track_caller]
fn assert_stale(timers: &Handle<u64>, id: TimerId) {
    let before: HashSet<_> = timers
        .pending()
        .map(|(k, i)| (k, i.id, i.deadline))
        .collect();
    let by_id = timers.by_id(id);
    assert_eq!(by_id.get(), None);
    assert_eq!(by_id.reschedule(T), Reschedule::NotFound);
    assert_eq!(by_id.reschedule(Time::ZERO), Reschedule::NotFound);
    assert_eq!(by_id.pull_in(Duration::ZERO), PullIn::NotFound);
    assert_eq!(by_id.cancel(), Cancel::NotFound);
    let by_ids = timers.by_ids([id, id]);
    assert_eq!(by_ids.reschedule(T), [Reschedule::NotFound; 2]);
    assert_eq!(by_ids.cancel(), [Cancel::NotFound; 2]);
    assert_eq!(timers.cancel_on_drop(id).cancel(), Cancel::NotFound);
    drop(timers.cancel_on_drop(id));
    let after: HashSet<_> = timers
        .pending()
        .map(|(k, i)| (k, i.id, i.deadline))
        .collect();
    assert_eq!(before, after);
}

#[test]
fn an_id_acts_like_its_key() {
    for_each_seed(|scheduler, timers| {
        let armed = timers.schedule(1, 5 * T, |_| ()).unwrap();
        let by_id = timers.by_id(armed.id);
        assert_eq!(by_id.get(), timers.get(&1));
        let before = armed.deadline;
        assert_eq!(by_id.reschedule(9 * T), Reschedule::Moved { before });
        let before = scheduler.now() + 9 * T;
        assert_eq!(by_id.pull_in(7 * T), PullIn::Moved { before });
        assert_eq!(by_id.get(), timers.get(&1));
        assert_eq!(runs(scheduler, 100 * T), [(7, 1)]);

        let armed = timers.schedule(1, Duration::ZERO, |_| ()).unwrap();
        let by_id = timers.by_id(armed.id);
        assert_eq!(by_id.get().unwrap().state, TimerState::Queued);
        let expected = Cancel::Cancelled {
            deadline: armed.deadline,
            running: false,
        };
        assert_eq!(by_id.cancel(), expected);
        assert_eq!(runs(scheduler, 100 * T), []);
    });
}

#[test]
fn an_id_outlives_moves_and_dies_with_its_arming() {
    for_each_seed(|scheduler, timers| {
        let armed = timers.schedule(1, 5 * T, |_| ()).unwrap();
        for delay in [9, 2, 0, 4_096, 64, 3] {
            let moved = timers.reschedule(&1, delay * T);
            assert!(matches!(moved, Reschedule::Moved { .. }));
            assert_eq!(timers.get(&1).unwrap().id, armed.id);
            assert!(timers.by_id(armed.id).get().is_some());
        }
        assert_eq!(runs(scheduler, 100 * T), [(3, 1)]);
        assert_stale(timers, armed.id);

        let first = timers.schedule(1, 5 * T, |_| ()).unwrap().id;
        let second = timers.schedule(1, 6 * T, |_| ()).unwrap().id;
        assert_stale(timers, first);
        assert!(timers.by_id(second).cancel().is_cancelled());
        assert_stale(timers, second);
        let third = timers.schedule(1, 6 * T, |_| ()).unwrap().id;
        for old in [armed.id, first, second] {
            assert_stale(timers, old);
        }
        assert_eq!(runs(scheduler, 5 * T), []);
        assert_eq!(timers.get(&1).unwrap().id, third);
        assert_eq!(runs(scheduler, T).len(), 1);
    });
}

#[test]
fn a_slot_that_is_used_again_gives_new_ids() {
    for seed in SEEDS {
        let scheduler = narrow(seed);
        let timers = scheduler.handle();
        let mut seen = HashSet::new();
        let mut last: Option<TimerId> = None;
        for round in 0..2_000_u64 {
            // One timer at a time: always the same slot, under another key.
            let armed = timers.schedule(round, T, |_| ()).unwrap();
            assert!(seen.insert(armed.id), "an id is given out once");
            if let Some(old) = last.replace(armed.id) {
                assert_stale(&timers, old);
            }
            match round % 4 {
                0 => assert!(timers.cancel(&round).is_cancelled()),
                1 => assert!(timers.by_id(armed.id).cancel().is_cancelled()),
                2 => assert_eq!(timers.cancel_all(), 1),
                _ => assert_eq!(runs(&scheduler, T).len(), 1),
            }
            assert_stale(&timers, armed.id);
        }
        let stats = timers.stats();
        assert_eq!((stats.ran, stats.cancelled), (500, 1_500));
    }
}

#[test]
fn a_slot_whose_ticket_is_under_way_is_not_used_again() {
    for seed in SEEDS {
        let scheduler = narrow(seed);
        let timers = scheduler.handle();
        // Its ticket lies in the injector when it is cancelled and the next one is armed.
        let old = timers
            .schedule(1, Duration::ZERO, |_| panic!("cancelled"))
            .unwrap();
        assert!(timers.cancel(&1).is_cancelled());
        let new = timers.schedule(2, 5 * T, |_| ()).unwrap();
        assert_stale(&timers, old.id);
        assert_eq!(runs(&scheduler, 4 * T), [], "the old ticket starts nothing");
        assert_eq!(timers.get(&2).unwrap().id, new.id);
        // Now that the ticket is back the slot can be used.
        let third = timers.schedule(3, T, |_| ()).unwrap();
        assert_stale(&timers, old.id);
        assert_ne!(third.id, old.id);
        assert_eq!(runs(&scheduler, 100 * T), [(5, 2), (5, 3)]);
        assert_eq!(timers.stats().panicked, 0);
    }
}

#[test]
fn ids_of_another_scheduler_are_not_found() {
    for seed in SEEDS {
        // Of the same shape and with the same seed: their slots and generations are the same.
        let (here, there) = (narrow(seed), narrow(seed));
        let (timers, others) = (here.handle(), there.handle());
        for key in 0..10 {
            let own = timers.schedule(key, 5 * T, |_| ()).unwrap();
            let foreign = others.schedule(key, 5 * T, |_| ()).unwrap();
            assert_ne!(own.id, foreign.id);
            assert_stale(&timers, foreign.id);
            assert_stale(&others, own.id);
        }
        assert_eq!(timers.len(), 10);
        // One whose stripe this one does not even have.
        let wide = stepped(seed);
        for key in 0..100 {
            let foreign = wide.handle().schedule(key, T, |_| ()).unwrap();
            assert_stale(&timers, foreign.id);
        }
        assert_eq!(runs(&here, 100 * T).len(), 10);
        assert_eq!(runs(&there, 100 * T).len(), 10);
    }
}

#[test]
fn a_run_shows_the_id_that_scheduling_gave() {
    for_each_seed(|scheduler, timers| {
        let mut ids = HashSet::new();
        for key in 0..200_u32 {
            let armed = timers
                .schedule(u64::from(key), key % 9 * T, |firing| {
                    let info = firing.handle().by_id(firing.id()).get().unwrap();
                    assert_eq!((info.id, info.deadline), (firing.id(), firing.deadline()));
                    assert_eq!(info.state, TimerState::Running { next: None });
                })
                .unwrap();
            ids.insert(armed.id);
        }
        let fired = scheduler.advance(100 * T);
        assert_eq!(fired.iter().map(|f| f.id).collect::<HashSet<_>>(), ids);
        assert_eq!(timers.stats().panicked, 0);
        for id in ids {
            assert_stale(timers, id);
        }
    });
}

#[test]
fn ids_are_stale_after_the_end_of_the_scheduler() {
    let scheduler = stepped(0);
    let timers = scheduler.handle();
    let armed = timers.schedule(1, T, |_| ()).unwrap();
    drop(scheduler);
    assert_stale(&timers, armed.id);
    assert_eq!(timers.stats().cancelled, 1);
}

#[test]
fn a_guard_cancels_its_arming_and_no_other() {
    for_each_seed(|scheduler, timers| {
        let first = timers.schedule(1, 5 * T, |_| ()).unwrap();
        let guard = timers.cancel_on_drop(first.id);
        // Moved: it is the same arming.
        assert!(matches!(
            timers.reschedule(&1, 9 * T),
            Reschedule::Moved { .. }
        ));
        drop(guard);
        assert!(!timers.contains(&1));

        let first = timers.schedule(1, 5 * T, |_| ()).unwrap();
        let guard = timers.cancel_on_drop(first.id);
        let second = timers.schedule(1, 6 * T, |_| ()).unwrap();
        drop(guard);
        assert_eq!(timers.get(&1).unwrap().id, second.id);
        timers.cancel_on_drop(second.id).disarm();
        assert_eq!(runs(scheduler, 100 * T), [(6, 1)]);

        let third = timers.schedule(1, 5 * T, |_| ()).unwrap();
        let expected = Cancel::Cancelled {
            deadline: third.deadline,
            running: false,
        };
        assert_eq!(timers.cancel_on_drop(third.id).cancel(), expected);
    });
}

/// Ids are plain data: they can be kept in maps and sent around without the scheduler.
#[test]
fn ids_are_small_and_plain() {
    fn plain<I: Copy + Eq + std::hash::Hash + std::fmt::Debug + Send + Sync + 'static>() {}
    plain::<TimerId>();
    assert_eq!(size_of::<TimerId>(), 16);
    let scheduler = Scheduler::<&str>::builder().build_stepped(0).unwrap();
    let armed = scheduler.handle().schedule("a", T, |_| ()).unwrap();
    let there = std::thread::spawn({
        let timers = scheduler.handle();
        move || timers.by_id(armed.id).cancel().is_cancelled()
    });
    assert!(there.join().unwrap());
}

// === many ids ===

/// In an order that has nothing to do with stripes.
fn armed(timers: &Handle<u64>, count: u64) -> Vec<(u64, TimerId)> {
    let mut keys: Vec<u64> = (0..count).collect();
    keys.sort_by_key(|key| key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let arm = |key| {
        // Each has a deadline of its own, so that an answer tells which timer it is about.
        let delay = (10_000 + key as u32) * T;
        (key, timers.schedule(key, delay, |_| ()).unwrap().id)
    };
    keys.into_iter().map(arm).collect()
}

#[test]
fn many_ids_are_answered_in_the_callers_order() {
    for seed in SEEDS {
        for scheduler in [narrow(seed), stepped(seed)] {
            let timers = scheduler.handle();
            let foreign = stepped(seed);
            let foreign = armed(&foreign.handle(), 10);
            let own = armed(&timers, 1_000);
            for (key, id) in &own {
                if key % 3 == 0 {
                    assert!(timers.by_id(*id).cancel().is_cancelled());
                }
            }
            let ids: Vec<TimerId> = own.iter().chain(&foreign).map(|(_, id)| *id).collect();
            let at = |key: u64| Time::ZERO + (10_000 + key as u32) * T;
            let by_ids = timers.by_ids(ids);
            let answers = by_ids.reschedule(70 * T);
            assert_eq!(answers.len(), 1_010);
            for ((key, _), answer) in own.iter().zip(&answers) {
                let before = at(*key);
                let expected = match key % 3 {
                    0 => Reschedule::NotFound,
                    _ => Reschedule::Moved { before },
                };
                assert_eq!(*answer, expected, "{key}");
            }
            assert_eq!(answers[1_000..], [Reschedule::NotFound; 10]);
            let deadline = Time::ZERO + 70 * T;
            let running = false;
            for ((key, _), answer) in own.iter().zip(by_ids.cancel()) {
                let expected = match key % 3 {
                    0 => Cancel::NotFound,
                    _ => Cancel::Cancelled { deadline, running },
                };
                assert_eq!(answer, expected, "{key}");
            }
            assert_eq!(runs(&scheduler, 100_000 * T), []);
            assert!(timers.stats().balances());
        }
    }
}

#[test]
fn an_id_twice_among_many_is_settled_in_order() {
    for_each_seed(|scheduler, timers| {
        let timer = timers.schedule(1, 5 * T, |_| ()).unwrap();
        let (before, moved) = (timer.deadline, scheduler.now() + 9 * T);
        // More often than one hold of a lock serves.
        let by_ids = timers.by_ids([timer.id; 300]);
        let answers = by_ids.reschedule(9 * T);
        assert_eq!(answers[0], Reschedule::Moved { before });
        let again = Reschedule::Moved { before: moved };
        assert!(answers[1..].iter().all(|answer| *answer == again));
        let answers = by_ids.cancel();
        assert!(answers[0].is_cancelled());
        assert_eq!(answers[1..], [Cancel::NotFound; 299]);
        assert!(timers.by_ids([]).cancel().is_empty());
        assert!(timers.by_ids([]).reschedule(Duration::ZERO).is_empty());
    });
}

#[test]
fn many_ids_that_are_moved_to_now_run_once_each() {
    for seed in SEEDS {
        for scheduler in [narrow(seed), stepped(seed)] {
            let timers = scheduler.handle();
            let ids: Vec<TimerId> = armed(&timers, 300).into_iter().map(|(_, id)| id).collect();
            let by_ids = timers.by_ids(ids);
            for _ in 0..2 {
                by_ids.reschedule(Duration::ZERO);
            }
            let mut ran: Vec<_> = runs(&scheduler, Duration::ZERO);
            ran.sort_unstable();
            assert_eq!(ran, (0..300).map(|key| (0, key)).collect::<Vec<_>>());
            assert_eq!(by_ids.cancel(), [Cancel::NotFound; 300]);
        }
    }
}

/// The ids of a run and of its successor mean different armings.
#[test]
fn a_run_and_its_successor_are_told_apart_among_many() {
    for seed in SEEDS {
        let scheduler = narrow(seed);
        let timers = scheduler.handle();
        let first = timers.schedule(7, T, |firing| {
            let timers = firing.handle();
            let next = timers.schedule(7, 5 * T, |_| ()).unwrap();
            let deadline = next.deadline;
            let running = true;
            assert_eq!(
                timers.by_ids([firing.id(), next.id]).cancel(),
                [Cancel::Running, Cancel::Cancelled { deadline, running }]
            );
            assert!(firing.is_cancelled());
        });
        first.unwrap();
        assert_eq!(runs(&scheduler, 100 * T), [(1, 7)]);
        assert_eq!(timers.stats().panicked, 0);
    }
}
