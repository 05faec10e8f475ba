//! Calls for many keys: answers in the caller's order, one reading of the clock, and the same
//! effect as the calls one by one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::drops::Drops;
use kit::steps::{SEEDS, T, for_each_seed, narrow, runs, stepped};
use tourbillon::{
    Cancel, Firing, Handle, Reschedule, ScheduleError, Scheduler, Shutdown, Time, TimerState,
};

/// In an order that has nothing to do with stripes; every third key is unknown.
fn shuffled(count: u64) -> Vec<u64> {
    let mut keys: Vec<u64> = (0..count).collect();
    keys.sort_by_key(|key| key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    keys
}

fn arm(timers: &Handle<u64>, key: u64, delay: Duration) -> Time {
    timers.schedule(key, delay, |_| ()).unwrap().deadline
}

/// A task.
fn nothing(_: &Firing<'_, u64>) {}

#[test]
fn reschedule_many_answers_in_the_callers_order() {
    for seed in SEEDS {
        for scheduler in [narrow(seed), stepped(seed)] {
            let timers = scheduler.handle();
            let keys = shuffled(1_000);
            // Each has a deadline of its own, so that an answer tells which key it is about.
            for key in (0..1_000).filter(|key| key % 3 != 0) {
                arm(&timers, key, (10_000 + key as u32) * T);
            }
            let answers = timers.reschedule_many(&keys, 70 * T);
            assert_eq!(answers.len(), keys.len());
            for (key, answer) in keys.iter().zip(answers) {
                let expected = if key % 3 == 0 {
                    Reschedule::NotFound
                } else {
                    let before = Time::ZERO + (10_000 + *key as u32) * T;
                    Reschedule::Moved { before }
                };
                assert_eq!(answer, expected, "{key}");
            }
            let ran = runs(&scheduler, 100_000 * T);
            assert_eq!(ran.len(), 666);
            assert!(ran.iter().all(|(at, _)| *at == 70));
        }
    }
}

#[test]
fn schedule_many_answers_in_the_callers_order() {
    for seed in SEEDS {
        for scheduler in [narrow(seed), stepped(seed)] {
            let timers = scheduler.handle();
            let keys = shuffled(1_000);
            for key in (0..1_000).filter(|key| key % 3 == 0) {
                arm(&timers, key, (10_000 + key as u32) * T);
            }
            let delay = |key: u64| (1 + key as u32 % 50) * T;
            let answers = timers.schedule_many(keys.iter().map(|key| (*key, delay(*key), nothing)));
            assert_eq!(answers.len(), keys.len());
            for (key, answer) in keys.iter().zip(answers) {
                let scheduled = answer.unwrap();
                assert_eq!(scheduled.deadline, Time::ZERO + delay(*key));
                let before = (key % 3 == 0).then(|| Time::ZERO + (10_000 + *key as u32) * T);
                assert_eq!(scheduled.replaced, before, "{key}");
                assert_eq!(timers.get(key).unwrap().id, scheduled.id);
            }
            let ran = runs(&scheduler, 100_000 * T);
            assert_eq!(ran.len(), 1_000);
            assert!(ran.iter().all(|(at, key)| *at == 1 + key % 50));
            assert!(timers.stats().balances());
        }
    }
}

/// Zero, in the past, soon and never: each as by a call of its own.
#[test]
fn a_batch_is_scheduled_for_all_kinds_of_times() {
    for seed in SEEDS {
        for scheduler in [narrow(seed), stepped(seed)] {
            let timers = scheduler.handle();
            scheduler.advance(3 * T);
            let times = [
                Time::ZERO,
                scheduler.now(),
                scheduler.now() + 5 * T,
                Time::MAX,
            ];
            let keys = shuffled(400);
            let items = keys
                .iter()
                .map(|key| (*key, times[*key as usize % 4], nothing));
            assert!(timers.schedule_many(items).iter().all(Result::is_ok));
            let ran = runs(&scheduler, Duration::ZERO);
            assert_eq!(ran.len(), 200, "what is due at once waits for no tick");
            assert_eq!(runs(&scheduler, 5 * T).len(), 100);
            assert_eq!(timers.len(), 100);
            assert!(timers.stats().balances());
        }
    }
}

#[test]
fn of_a_key_twice_in_one_batch_the_last_timer_remains() {
    for_each_seed(|scheduler, timers| {
        let ran = Arc::new(Mutex::new(Vec::new()));
        let drops = Drops::default();
        // More often than one hold of a lock serves, with other keys in between.
        let items = (0..300_u32).map(|number| {
            let (ran, mark) = (Arc::clone(&ran), drops.mark());
            let task = move |_: &Firing<'_, u64>| {
                ran.lock().unwrap().push(number);
                drop(mark);
            };
            (u64::from(number % 3), (1 + number) * T, task)
        });
        let answers = timers.schedule_many(items);
        for (number, answer) in answers.iter().enumerate() {
            let before = number.checked_sub(3);
            let before = before.map(|before| scheduler.now() + (1 + before as u32) * T);
            assert_eq!(answer.as_ref().unwrap().replaced, before, "{number}");
        }
        assert_eq!(drops.count(), 297, "what was replaced is dropped");
        assert_eq!(runs(scheduler, 1_000 * T).len(), 3);
        assert_eq!(*ran.lock().unwrap(), [297, 298, 299]);
        let stats = timers.stats();
        assert_eq!((stats.scheduled, stats.replaced), (300, 297));
    });
}

#[test]
fn a_batch_that_does_not_fit_is_scheduled_as_far_as_it_does() {
    for bound in [1, 7, 100, 20_000] {
        let builder = Scheduler::<u64>::builder().stripes(8).max_pending(bound);
        let scheduler = builder.build_stepped(1).unwrap();
        let timers = scheduler.handle();
        let count = bound as u64 + 100;
        let keys = shuffled(count);
        let answers = timers.schedule_many(keys.iter().map(|key| {
            let key = *key;
            (key, T, move |_: &Firing<'_, u64>| assert_ne!(key, u64::MAX))
        }));
        let mut refused = 0;
        for (key, answer) in keys.iter().zip(answers) {
            assert_eq!(answer.is_ok(), timers.contains(key));
            refused += usize::from(matches!(answer, Err(ScheduleError::Full(_))));
        }
        assert_eq!((timers.len(), refused), (bound, 100));
        // Keys that are there need no room.
        let there: Vec<_> = timers.pending().map(|(key, _)| key).collect();
        let answers = timers.schedule_many(there.iter().map(|key| (*key, 2 * T, nothing)));
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(runs(&scheduler, 2 * T).len(), bound);
        assert!(timers.stats().balances());
    }
}

#[test]
fn a_batch_for_a_closed_scheduler_comes_back() {
    let scheduler = stepped(1);
    let timers = scheduler.handle();
    let _ = scheduler.shutdown(Shutdown::HandBack);
    let answers = timers.schedule_many((0..300).map(|key| (key, T, nothing)));
    assert_eq!(answers.len(), 300);
    let closed = |answer| matches!(answer, Err(ScheduleError::Closed(_)));
    assert!(answers.into_iter().all(closed));
}

/// A batch during a run of its keys: each timer waits for that run.
#[test]
fn a_batch_may_be_scheduled_while_its_keys_run() {
    for seed in SEEDS {
        let scheduler = narrow(seed);
        let timers = scheduler.handle();
        let first = timers.schedule(7, T, |firing| {
            let timers = firing.handle();
            let keys = [7, 8, 7];
            let answers = timers.schedule_many(keys.map(|key| (key, T, nothing)));
            let after: Vec<_> = answers
                .iter()
                .map(|a| a.as_ref().unwrap().after_run)
                .collect();
            assert_eq!(after, [true, false, true]);
        });
        first.unwrap();
        let ran: Vec<_> = runs(&scheduler, 10 * T);
        assert_eq!(ran.len(), 3, "{ran:?}");
        assert_eq!(timers.stats().panicked, 0);
    }
}

#[test]
fn cancel_many_answers_in_the_callers_order_and_frees_at_once() {
    for seed in SEEDS {
        for scheduler in [narrow(seed), stepped(seed)] {
            let timers = scheduler.handle();
            let keys = shuffled(1_000);
            let drops = Drops::default();
            for key in (0..1_000).filter(|key| key % 3 != 0) {
                let mark = drops.mark();
                let delay = (key as u32 % 7) * T;
                timers.schedule(key, delay, move |_| drop(mark)).unwrap();
            }
            let answers = timers.cancel_many(&keys[..900]);
            for (key, answer) in keys.iter().zip(answers) {
                let expected = if key % 3 == 0 {
                    Cancel::NotFound
                } else {
                    Cancel::Cancelled {
                        deadline: Time::ZERO + (*key as u32 % 7) * T,
                        running: false,
                    }
                };
                assert_eq!(answer, expected, "{key}");
            }
            let left = keys[900..].iter().filter(|key| *key % 3 != 0).count();
            assert_eq!(timers.len(), left);
            assert_eq!(drops.count(), 666 - left);
            assert_eq!(runs(&scheduler, 100 * T).len(), left);
            assert_eq!(drops.count(), 666);
            assert!(timers.stats().balances());
        }
    }
}

#[test]
fn a_key_twice_in_one_batch_is_settled_in_order() {
    for_each_seed(|scheduler, timers| {
        let before = arm(timers, 1, 5 * T);
        let to = scheduler.now() + 9 * T;
        assert_eq!(
            timers.reschedule_many(&[1, 2, 1, 1], 9 * T),
            [
                Reschedule::Moved { before },
                Reschedule::NotFound,
                Reschedule::Moved { before: to },
                Reschedule::Moved { before: to },
            ]
        );
        let deadline = to;
        let cancelled = Cancel::Cancelled {
            deadline,
            running: false,
        };
        assert_eq!(
            timers.cancel_many(&[2, 1, 1, 2]),
            [
                Cancel::NotFound,
                cancelled,
                Cancel::NotFound,
                Cancel::NotFound
            ]
        );
        assert_eq!(timers.stats().cancelled, 1);
        // More often than one hold of a lock serves.
        arm(timers, 1, 5 * T);
        assert_eq!(timers.reschedule_many(&[1; 300], 3 * T).len(), 300);
        let answers = timers.cancel_many(&[1; 300]);
        assert!(answers[0].is_cancelled());
        assert!(
            answers[1..]
                .iter()
                .all(|answer| *answer == Cancel::NotFound)
        );
        assert_eq!(runs(scheduler, 100 * T), []);
    });
}

#[test]
fn a_batch_that_is_due_at_once_runs_each_once() {
    for seed in SEEDS {
        for scheduler in [narrow(seed), stepped(seed)] {
            let timers = scheduler.handle();
            scheduler.advance(3 * T);
            // Filed, queued, and "never".
            for key in 0..300 {
                let delay = [500 * T, Duration::ZERO, Duration::MAX][key as usize % 3];
                arm(&timers, key, delay);
            }
            let keys = shuffled(300);
            let moved = |answer: &Reschedule| matches!(answer, Reschedule::Moved { .. });
            for _ in 0..2 {
                assert!(
                    timers
                        .reschedule_many(&keys, Duration::ZERO)
                        .iter()
                        .all(moved)
                );
                let stats = timers.stats();
                assert_eq!((stats.pending, stats.queued), (300, 300));
            }
            let ran = runs(&scheduler, Duration::ZERO);
            let mut ran: Vec<_> = ran.into_iter().map(|(_, key)| key).collect();
            ran.sort_unstable();
            assert_eq!(ran, (0..300).collect::<Vec<_>>());
            assert_eq!(runs(&scheduler, 1_000 * T), []);
            assert!(timers.stats().balances());
        }
    }
}

#[test]
fn a_batch_can_be_put_off_for_ever_and_back() {
    for_each_seed(|scheduler, timers| {
        let keys = shuffled(300);
        for key in &keys {
            arm(timers, *key, 5 * T);
        }
        timers.reschedule_many(&keys, Duration::MAX);
        assert_eq!(runs(scheduler, 1_000_000 * T), []);
        assert_eq!(timers.len(), 300);
        timers.reschedule_many(&keys, T);
        assert_eq!(runs(scheduler, T).len(), 300);
    });
}

#[test]
fn empty_batches_do_nothing() {
    let scheduler = stepped(0);
    let timers = scheduler.handle();
    assert_eq!(timers.reschedule_many::<u64>(&[], T), []);
    assert_eq!(timers.reschedule_many::<u64>(&[], Duration::ZERO), []);
    assert_eq!(timers.cancel_many::<u64>(&[]), []);
    let none = std::iter::empty::<(u64, Duration, fn(&Firing<'_, u64>))>();
    assert!(timers.schedule_many(none).is_empty());
    assert_eq!(timers.cancel_all(), 0);
    arm(&timers, 1, T);
    assert_eq!(timers.cancel_many::<u64>(&[]), []);
    assert_eq!(runs(&scheduler, T), [(1, 1)]);
}

#[test]
fn cancel_all_takes_everything_that_has_not_started() {
    for seed in SEEDS {
        for scheduler in [narrow(seed), stepped(seed)] {
            let timers = scheduler.handle();
            let drops = Drops::default();
            // More than one hold takes, on every level, queued ones and "never" included.
            for key in 0..1_000_u64 {
                let mark = drops.mark();
                let delays = [Duration::ZERO, 3 * T, 100 * T, 1_000_000 * T, Duration::MAX];
                let delay = delays[key as usize % 5];
                timers.schedule(key, delay, move |_| drop(mark)).unwrap();
            }
            for key in 0..10 {
                timers.cancel(&key);
            }
            assert_eq!(timers.cancel_all(), 990);
            assert_eq!(drops.count(), 1_000);
            assert!(timers.is_empty() && timers.pending().next().is_none());
            assert_eq!(timers.cancel_all(), 0);
            assert_eq!(runs(&scheduler, 2_000_000 * T), []);
            // Everything can be used again.
            for key in 0..1_000 {
                arm(&timers, key, 2 * T);
            }
            assert_eq!(runs(&scheduler, 2 * T).len(), 1_000);
            let stats = timers.stats();
            assert_eq!(
                (stats.scheduled, stats.cancelled, stats.ran),
                (2_000, 1_000, 1_000)
            );
            assert!(stats.balances());
        }
    }
}

#[test]
fn batches_look_keys_up_by_what_they_borrow() {
    let scheduler = Scheduler::<String>::builder().build_stepped(0).unwrap();
    let timers = scheduler.handle();
    let keys: Vec<String> = (0..10).map(|key| format!("session-{key}")).collect();
    for key in &keys {
        timers.schedule(key.clone(), T, |_| ()).unwrap();
    }
    assert!(matches!(
        timers.reschedule(keys[0].as_str(), 2 * T),
        Reschedule::Moved { .. }
    ));
    let answers = timers.reschedule_many(&keys, 2 * T);
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Reschedule::Moved { .. }))
    );
    assert!(
        timers
            .cancel_many(&keys)
            .iter()
            .all(|answer| answer.is_cancelled())
    );
}

/// During a shutdown that runs everything at once, whatever is moved is due at once: a batch that
/// is put off has then more than one ticket to hand over, and none of them may get lost.
#[test]
fn a_batch_that_is_put_off_while_all_is_run_at_once_runs() {
    for seed in SEEDS {
        let scheduler = narrow(seed);
        let timers = scheduler.handle();
        let keys = Arc::new(shuffled(2_000));
        for key in keys.iter() {
            let all = Arc::clone(&keys);
            timers
                .schedule(*key, 1_000 * T, move |firing| {
                    let timers = firing.handle();
                    // By the first one that runs, while most are not even collected.
                    if timers.stats().ran == 1 {
                        let filed = timers.pending().filter(|(_, info)| {
                            assert_ne!(info.deadline, Time::MAX);
                            info.state == TimerState::Pending
                        });
                        assert!(filed.count() > 1_000);
                        timers.reschedule_many(all.iter(), Duration::MAX);
                    }
                })
                .unwrap();
        }
        let report = scheduler.shutdown(Shutdown::RunNow);
        let stats = timers.stats();
        assert_eq!(stats.panicked, 0);
        assert_eq!((stats.ran, report.handed_back.len()), (2_000, 0));
        assert_eq!(
            scheduler.now(),
            Time::ZERO,
            "nobody had to wait for a limit"
        );
        assert!(stats.balances());
    }
}
