//! Keys: upsert, use from inside a task, query. With `moves.rs`, rows `c044` to `c069` of
//! `docs/conformance.md`.

use std::sync::mpsc;
use std::time::Duration;

use kit::drops;
use kit::drops::Drops;
use kit::steps::{SEEDS, T, for_each_seed, narrow, runs, stepped};
use tourbillon::{Cancel, TimerState};

#[test]
fn c044_scheduling_a_key_again_replaces() {
    for_each_seed(|scheduler, timers| {
        let (send, receive) = mpsc::channel();
        let other = send.clone();
        let first = timers
            .schedule(1, 4 * T, move |_| other.send(3).unwrap())
            .unwrap();
        assert_eq!((first.replaced, first.after_run), (None, false));
        let second = timers
            .schedule(1, 7 * T, move |_| send.send(5).unwrap())
            .unwrap();
        assert_eq!(second.replaced, Some(first.deadline));
        assert_ne!(first.id, second.id);
        assert_eq!(timers.len(), 1);
        assert_eq!(runs(scheduler, 6 * T), []);
        assert_eq!(runs(scheduler, 100 * T), [(7, 1)]);
        assert_eq!(receive.iter().collect::<Vec<_>>(), [5]);
        let stats = timers.stats();
        assert_eq!((stats.scheduled, stats.replaced, stats.ran), (2, 1, 1));
        assert!(stats.balances());
    });
}

#[test]
fn c044_an_earlier_replacement_does_not_wait_for_the_old_time() {
    for_each_seed(|scheduler, timers| {
        timers.schedule(1, 5_000 * T, |_| ()).unwrap();
        timers.schedule(1, 3 * T, |_| ()).unwrap();
        assert_eq!(runs(scheduler, 10_000 * T), [(3, 1)]);
    });
}

#[test]
fn c045_what_is_replaced_while_queued_never_runs() {
    for seed in SEEDS {
        let scheduler = narrow(seed);
        let timers = scheduler.handle();
        let old = Drops::default();
        // Both are queued together; whichever starts first replaces the other.
        for key in [0, 1] {
            let (mark, old) = (old.mark(), old.clone());
            timers
                .schedule(key, 5 * T, move |firing| {
                    let _mark = mark;
                    let timers = firing.handle();
                    let other = 1 - firing.key();
                    let info = timers.get(&other).unwrap();
                    assert_eq!(info.state, TimerState::Queued);
                    let new = timers.schedule(other, 3 * T, |_| ()).unwrap();
                    assert_eq!(new.replaced, Some(firing.deadline()));
                    assert!(!new.after_run);
                    assert_eq!(old.count(), 1, "the queued task is dropped at once");
                })
                .unwrap();
        }
        let at_five = runs(&scheduler, 5 * T);
        assert_eq!(at_five.len(), 1);
        let other = 1 - at_five[0].1;
        assert_eq!(runs(&scheduler, 100 * T), [(8, other)]);
        let stats = timers.stats();
        assert_eq!((stats.replaced, stats.ran, stats.panicked), (1, 2, 0));
        assert!(stats.balances());
    }
}

#[test]
fn c045_a_queued_zero_delay_is_replaced_as_well() {
    for_each_seed(|scheduler, timers| {
        let old = timers
            .schedule(1, Duration::ZERO, |_| panic!("replaced"))
            .unwrap();
        assert_eq!(timers.get(&1).unwrap().state, TimerState::Queued);
        let new = timers.schedule(1, 4 * T, |_| ()).unwrap();
        assert_eq!(new.replaced, Some(old.deadline));
        assert_eq!(timers.get(&1).unwrap().state, TimerState::Pending);
        assert_eq!(timers.stats().queued, 0);
        assert_eq!(runs(scheduler, 3 * T), []);
        assert_eq!(runs(scheduler, 9 * T), [(4, 1)]);

        // By one that is due at once itself: the old ticket runs the new task, once.
        timers
            .schedule(2, Duration::ZERO, |_| panic!("old"))
            .unwrap();
        timers.schedule(2, Duration::ZERO, |_| ()).unwrap();
        assert_eq!(runs(scheduler, 9 * T).len(), 1);
        let stats = timers.stats();
        assert_eq!((stats.replaced, stats.ran, stats.panicked), (2, 2, 0));
        assert!(stats.balances());
    });
}

/// Its drop asks the scheduler, which would panic under a stripe's lock.
struct Nosy {
    _mark: drops::Mark,
    timers: tourbillon::Handle<u64>,
}

impl Drop for Nosy {
    fn drop(&mut self) {
        assert!(self.timers.contains(&1), "the key is in use again by now");
        assert!(self.timers.stats().balances());
    }
}

#[test]
fn c046_what_is_replaced_is_dropped_once_and_outside_locks() {
    for_each_seed(|scheduler, timers| {
        let drops = Drops::default();
        let nosy = || Nosy {
            _mark: drops.mark(),
            timers: timers.clone(),
        };
        for (round, delay) in [7, 0, 3, 9].into_iter().enumerate() {
            let payload = nosy();
            timers
                .schedule(1, delay * T, move |_| drop(payload))
                .unwrap();
            assert_eq!(drops.count(), round, "pending or queued, at once");
        }
        // Nor is it dropped again when the old times pass.
        let payload = nosy();
        let inner = nosy();
        let counter = drops.clone();
        timers
            .schedule(1, 20 * T, move |firing| {
                let timers = firing.handle();
                assert_eq!(counter.count(), 4);
                timers.schedule(1, T, move |_| drop(inner)).unwrap();
                timers.schedule(1, T, |_| ()).unwrap();
                assert_eq!(counter.count(), 5, "what was kept, at once");
                drop(payload);
            })
            .unwrap();
        assert_eq!(runs(scheduler, 100 * T), [(20, 1), (21, 1)]);
        assert_eq!(drops.count(), 6);
        assert_eq!(timers.stats().panicked, 0);
    });
}

#[test]
fn c059_cancelled_and_scheduled_at_once_the_new_one_runs_once() {
    for seed in SEEDS {
        for (old, new) in [(8, 8), (8, 5), (8, 9), (8, 200), (0, 3), (0, 0)] {
            let scheduler = narrow(seed);
            let timers = scheduler.handle();
            let first = timers
                .schedule(1, old * T, |_| panic!("cancelled"))
                .unwrap();
            assert!(timers.cancel(&1).is_cancelled());
            let second = timers.schedule(1, new * T, |_| ()).unwrap();
            assert_ne!(first.id, second.id);
            assert_eq!(second.replaced, None);
            assert_eq!(runs(&scheduler, 1_000 * T), [(u64::from(new), 1)]);
            let stats = timers.stats();
            assert_eq!((stats.ran, stats.cancelled, stats.panicked), (1, 1, 0));
        }
    }
}

#[test]
fn c060_a_task_that_schedules_its_own_key_arms_it_anew() {
    for seed in SEEDS {
        for delay in [0, 1, 3, 100] {
            let scheduler = stepped(seed);
            let timers = scheduler.handle();
            timers
                .schedule(1, 5 * T, move |firing| {
                    let again = firing.handle().schedule(1, delay * T, |_| ()).unwrap();
                    assert!(again.after_run && again.replaced.is_none());
                    assert_ne!(again.id, firing.id());
                })
                .unwrap();
            assert_eq!(runs(&scheduler, 4 * T), []);
            let mut ran = runs(&scheduler, T);
            if delay > 0 {
                // The end of the old body has not removed the new arming.
                assert_eq!(timers.get(&1).unwrap().state, TimerState::Pending);
                assert_eq!(timers.len(), 1);
            }
            ran.extend(runs(&scheduler, 1_000 * T));
            assert_eq!(ran, [(5, 1), (u64::from(5 + delay), 1)]);
            assert_eq!(timers.stats().panicked, 0);
        }
    }
}

#[test]
fn c061_a_task_that_cancels_its_own_key_hears_that_it_runs() {
    for_each_seed(|scheduler, timers| {
        timers
            .schedule(1, T, |firing| {
                let timers = firing.handle();
                assert_eq!(timers.cancel(&1), Cancel::Running);
                let again = timers.schedule(1, T, |_| panic!("cancelled")).unwrap();
                let cancelled = Cancel::Cancelled {
                    deadline: again.deadline,
                    running: true,
                };
                assert_eq!(timers.cancel(&1), cancelled);
                assert_eq!(timers.cancel(&1), Cancel::Running);
            })
            .unwrap();
        assert_eq!(runs(scheduler, 100 * T), [(1, 1)]);
        assert_eq!(timers.cancel(&1), Cancel::NotFound);
        let stats = timers.stats();
        assert_eq!((stats.ran, stats.cancelled, stats.panicked), (1, 1, 0));
        assert!(stats.balances());
    });
}

#[test]
fn c062_get_says_what_remains() {
    for_each_seed(|scheduler, timers| {
        assert_eq!(timers.get(&1), None);
        let armed = timers.schedule(1, 10 * T, |_| ()).unwrap();
        for passed in 0..10 {
            let info = timers.get(&1).unwrap();
            assert_eq!((info.id, info.deadline), (armed.id, armed.deadline));
            assert_eq!(info.state, TimerState::Pending);
            assert_eq!(info.remaining(scheduler.now()), (10 - passed) * T);
            assert_eq!(runs(scheduler, T).len(), usize::from(passed == 9));
        }
        assert_eq!(timers.get(&1), None);
        assert!(!timers.contains(&1));
    });
}

#[test]
fn c063_what_remains_reads_the_same_from_another_thread() {
    let scheduler = stepped(0);
    let timers = scheduler.handle();
    timers.schedule(1, 10 * T, |_| ()).unwrap();
    scheduler.advance(3 * T);
    let here = timers.get(&1);
    std::thread::scope(|scope| {
        let (ask, asked) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let there = timers.clone();
        scope.spawn(move || {
            for () in asked {
                tell.send((there.get(&1), there.now())).unwrap();
            }
        });
        let read = || {
            ask.send(()).unwrap();
            told.recv_timeout(Duration::from_secs(60)).unwrap()
        };
        let (info, now) = read();
        assert_eq!(info, here);
        assert_eq!(info.unwrap().remaining(now), 7 * T);
        scheduler.advance(T);
        let (info, now) = read();
        assert_eq!(info.unwrap().remaining(now), 6 * T);
        assert!(timers.cancel(&1).is_cancelled());
        assert_eq!(read().0, None);
        drop(ask);
    });
}

#[test]
fn c064_ids_from_iteration_are_usable() {
    for_each_seed(|scheduler, timers| {
        for key in 0..1_000 {
            timers.schedule(key, T * (key as u32 % 7), |_| ()).unwrap();
        }
        for (key, info) in timers.pending() {
            assert_eq!(timers.get(&key), Some(info));
            assert!(timers.by_id(info.id).cancel().is_cancelled());
            assert!(!timers.contains(&key));
        }
        assert!(timers.is_empty());
        assert_eq!(runs(scheduler, 100 * T), []);
        assert_eq!(timers.stats().cancelled, 1_000);
    });
}

#[test]
fn c065_iteration_shows_all_with_their_deadlines() {
    for_each_seed(|_, timers| {
        // Different turns of every level, one that is queued, one beyond all levels, one "never".
        let delays = [0, 3, 64 + 3, 128 + 3, 4_096 + 3, 1 << 20, 1 << 31].map(|n| T * n);
        let far = [Duration::from_secs(100_000_000_000), Duration::MAX];
        let mut expected = Vec::new();
        for (key, delay) in delays.into_iter().chain(far).enumerate() {
            let key = key as u64;
            let armed = timers.schedule(key, delay, |_| ()).unwrap();
            let state = if delay.is_zero() {
                TimerState::Queued
            } else {
                TimerState::Pending
            };
            expected.push((key, armed.id, armed.deadline, state));
        }
        let mut seen: Vec<_> = timers
            .pending()
            .map(|(key, info)| (key, info.id, info.deadline, info.state))
            .collect();
        seen.sort_unstable_by_key(|(key, ..)| *key);
        assert_eq!(seen, expected);
    });
}

#[test]
fn c065_iteration_from_a_task_shows_the_run_and_what_is_kept() {
    let scheduler = narrow(0);
    let timers = scheduler.handle();
    timers
        .schedule(1, T, |firing| {
            let timers = firing.handle();
            let kept = timers.schedule(1, 5 * T, |_| ()).unwrap();
            let seen: Vec<_> = timers.pending().collect();
            assert_eq!(seen.len(), 1);
            assert_eq!((seen[0].0, seen[0].1.id), (1, firing.id()));
            let next = Some((kept.id, kept.deadline));
            assert_eq!(seen[0].1.state, TimerState::Running { next });
        })
        .unwrap();
    assert_eq!(runs(&scheduler, 100 * T), [(1, 1), (6, 1)]);
    assert_eq!(timers.stats().panicked, 0);
}

#[test]
fn schedule_if_absent_leaves_what_is_pending() {
    for_each_seed(|scheduler, timers| {
        let drops = Drops::default();
        let armed = timers.schedule_if_absent(1, 2 * T, |_| ()).unwrap();
        let mark = drops.mark();
        let refused = timers
            .schedule_if_absent(1, T, move |_| drop(mark))
            .unwrap_err();
        assert!(matches!(refused, tourbillon::ScheduleError::Occupied(_)));
        assert!(refused.is_transient());
        assert_eq!(drops.count(), 0, "the task comes back");
        assert_eq!(timers.get(&1).unwrap().id, armed.id);
        assert_eq!(runs(scheduler, 10 * T), [(2, 1)]);
        // The very task can be used once the key is free.
        timers
            .schedule_if_absent(1, T, refused.into_task())
            .unwrap();
        assert_eq!(runs(scheduler, 10 * T), [(11, 1)]);
        assert_eq!(drops.count(), 1);
        let stats = timers.stats();
        assert_eq!((stats.scheduled, stats.replaced, stats.ran), (2, 0, 2));
    });
}
