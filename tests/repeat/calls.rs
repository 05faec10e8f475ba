//! What calls do to a key that repeats: before its first round, between two rounds, while one waits
//! for a worker, and during one.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use kit::drops::Drops;
use kit::gate::Gate;
use kit::rounds::{Beats, at, beating};
use kit::steps::{SEEDS, T, runs, stepped};
use kit::wait;
use tourbillon::test_util::Stepped;
use tourbillon::{
    Cancel, Clock, Executor, Job, ManualClock, Missed, Next, Period, PullIn, Reschedule, Round,
    ScheduleError, Scheduler, Shutdown, Time, TimerState,
};

fn rate() -> Period {
    Period::fixed_rate(10 * T)
}

/// Calls `during` in the second round, at tick 20, of a key that repeats every ten ticks. When the
/// rounds of the key started, and what ran of all keys after that tick.
fn in_the_second_round<R>(during: R) -> (Vec<u64>, Vec<(u64, u64)>)
where
    R: Fn(&Round<'_, u64>) -> Next + Copy + Send + 'static,
{
    let mut all = SEEDS.map(|seed| {
        let drops = Drops::default();
        let mark = drops.mark();
        let (scheduler, beats) = beating(seed, rate(), move |round| {
            let _ = &mark;
            if round.number() == 2 {
                during(round)
            } else {
                Next::Again
            }
        });
        assert_eq!(runs(&scheduler, 20 * T)[..2], [(10, 1), (20, 1)]);
        let ran = runs(&scheduler, 45 * T);
        let timers = scheduler.handle();
        let stats = timers.stats();
        assert_eq!((stats.panicked, stats.running), (0, 0));
        assert!(stats.balances());
        // Cancelled or replaced, the closure is gone; or its next round is pending.
        let alive = drops.count() == 0;
        let starts = beats.starts();
        assert_eq!(alive, starts.iter().any(|start| *start > 20));
        (starts, ran)
    });
    let first = all.next().unwrap();
    assert!(all.all(|one| one == first));
    first
}

// === cancel ===

#[test]
fn c087_cancelled_during_its_run_there_is_no_further_one() {
    // Whatever the round answers.
    for next in [
        Next::Again,
        Next::After(Duration::ZERO),
        Next::At(Time::ZERO),
        Next::Stop,
    ] {
        let cancels: [fn(&Round<'_, u64>); 4] = [
            |round| assert_eq!(round.handle().cancel(&1), Cancel::Running),
            |round| {
                let by_id = round.handle().by_id(round.id());
                assert_eq!(by_id.cancel(), Cancel::Running);
            },
            |round| assert_eq!(round.handle().cancel_many(&[1]), [Cancel::Running]),
            |round| assert_eq!(round.handle().cancel_all(), 0),
        ];
        for cancel in cancels {
            let (starts, ran) = in_the_second_round(move |round| {
                assert!(!round.is_cancelled());
                cancel(round);
                assert!(round.is_cancelled());
                // From here on there is no next round to be moved.
                let timers = round.handle();
                assert_eq!(timers.reschedule(&1, T), Reschedule::Running);
                assert_eq!(timers.pull_in(&1, T), PullIn::Running);
                next
            });
            assert_eq!(starts, [10, 20]);
            assert_eq!(ran, []);
        }
    }
}

#[test]
fn c087_moved_and_then_cancelled_it_is_cancelled() {
    let (starts, _) = in_the_second_round(|round| {
        let moved = round.handle().reschedule(&1, T);
        assert!(matches!(moved, Reschedule::Moved { .. }));
        assert_eq!(round.handle().cancel(&1), Cancel::Running);
        Next::Again
    });
    assert_eq!(starts, [10, 20]);
}

#[test]
fn c088_cancelled_in_the_initial_delay_or_between_two_rounds() {
    for seed in SEEDS {
        for rounds in [0_u32, 1, 2, 7] {
            for late in [1, 9] {
                let drops = Drops::default();
                let mark = drops.mark();
                let (scheduler, beats) = beating(seed, rate(), move |_| {
                    let _ = &mark;
                });
                let timers = scheduler.handle();
                scheduler.advance((10 * rounds + late) * T);
                assert_eq!(beats.take().len(), rounds as usize);
                let expected = Cancel::Cancelled {
                    deadline: at(10 * (rounds + 1)),
                    running: false,
                };
                assert_eq!(timers.cancel(&1), expected);
                assert_eq!(drops.count(), 1, "dropped before the call returned");
                assert_eq!(timers.cancel(&1), Cancel::NotFound);
                assert_eq!(runs(&scheduler, 1_000 * T), []);
                let stats = timers.stats();
                assert_eq!((stats.ran, stats.cancelled), (u64::from(rounds), 1));
                assert!(timers.is_empty() && !timers.contains(&1) && stats.balances());
            }
        }
    }
}

/// Due, and handed to a worker that has not come to it.
#[test]
fn c088_cancelled_while_a_round_is_queued() {
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u64>::builder()
        .clock(Clock::manual(&hand))
        .workers(1)
        .max_running(1)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let gate = Gate::default();
    let passing = gate.clone();
    timers
        .schedule(2, Duration::ZERO, move |_| passing.pass())
        .unwrap();
    gate.crowd(1);
    let drops = Drops::default();
    let mark = drops.mark();
    let armed = timers.repeat(1, rate().first(Duration::ZERO), move |_| {
        let _ = &mark;
    });
    let deadline = armed.unwrap().deadline;
    assert_eq!(timers.get(&1).unwrap().state, TimerState::Queued);
    let expected = Cancel::Cancelled {
        deadline,
        running: false,
    };
    assert_eq!(timers.cancel(&1), expected);
    assert_eq!(drops.count(), 1);
    gate.open();
    wait::until("all has ended", || timers.stats().running == 0);
    assert_eq!(timers.stats().ran, 1);
}

#[test]
fn who_waits_for_the_run_finds_the_closure_gone() {
    for _ in 0..20 {
        let scheduler = Scheduler::<u64>::builder().workers(2).build().unwrap();
        let timers = scheduler.handle();
        let drops = Drops::default();
        let mark = drops.mark();
        let (send, started) = mpsc::channel();
        let period = Period::fixed_rate(T).first(Duration::ZERO);
        let armed = timers.repeat(1, period, move |round| {
            let _ = &mark;
            let _ = send.send(());
            while !round.is_cancelled() {
                thread::yield_now();
            }
        });
        armed.unwrap();
        wait::next(&started);
        assert_eq!(timers.cancel_and_wait(&1).wait(), Ok(Cancel::Running));
        assert_eq!(drops.count(), 1);
        assert!(!timers.contains(&1));
        assert_eq!(timers.stats().ran, 1);
        // The key is free.
        assert!(timers.repeat(1, rate(), |_| ()).is_ok());
    }
}

// === reschedule, pull_in ===

#[test]
fn c103_moved_between_two_rounds_the_grid_begins_anew() {
    for seed in SEEDS {
        for (delay, starts) in [
            (3, [18, 28, 38, 48]),
            (33, [48, 58, 68, 78]),
            (0, [15, 25, 35, 45]),
        ] {
            let (scheduler, beats) = beating(seed, rate(), |_| ());
            let timers = scheduler.handle();
            scheduler.advance(15 * T);
            assert_eq!(beats.starts(), [10]);
            let before = at(20);
            let moved = timers.reschedule(&1, delay * T);
            assert_eq!(moved, Reschedule::Moved { before });
            scheduler.advance((delay + 35) * T);
            assert_eq!(beats.starts()[..4], starts);
        }
        // To a time that has passed: at once, and from there.
        let (scheduler, beats) = beating(seed, rate(), |_| ());
        scheduler.advance(35 * T);
        let _ = scheduler.handle().reschedule(&1, Time::ZERO);
        scheduler.advance(25 * T);
        assert_eq!(beats.told()[3..], [(35, 0), (45, 0), (55, 0)]);
    }
}

#[test]
fn c103_moved_during_a_round_the_next_one_is_due_then() {
    // Whatever the round answers, since "moved" was said.
    for next in [
        Next::Again,
        Next::After(Duration::ZERO),
        Next::At(at(33)),
        Next::Stop,
    ] {
        let (starts, _) = in_the_second_round(move |round| {
            let timers = round.handle();
            let before = round.deadline();
            assert_eq!(timers.reschedule(&1, 3 * T), Reschedule::Moved { before });
            // Once more, by id and by many.
            let before = at(23);
            let by_id = timers.by_id(round.id());
            assert_eq!(by_id.reschedule(9 * T), Reschedule::Moved { before });
            let before = at(29);
            let many = timers.reschedule_many(&[1], 4 * T);
            assert_eq!(many, [Reschedule::Moved { before }]);
            next
        });
        assert_eq!(starts, [10, 20, 24, 34, 44, 54, 64]);
    }
}

#[test]
fn moved_during_a_round_into_the_past_the_next_one_follows_at_once() {
    let (starts, _) = in_the_second_round(|round| {
        let moved = round.handle().reschedule(&1, Time::ZERO);
        assert!(matches!(moved, Reschedule::Moved { .. }));
        Next::Again
    });
    assert_eq!(starts, [10, 20, 20, 30, 40, 50, 60]);
}

#[test]
fn pulled_in_during_a_round_the_next_one_is_due_then_or_earlier() {
    // Earlier than the period says.
    let (starts, _) = in_the_second_round(|round| {
        let before = round.deadline();
        let pulled = round.handle().pull_in(&1, 3 * T);
        assert_eq!(pulled, PullIn::Moved { before });
        let again = round.handle().pull_in(&1, 5 * T);
        assert_eq!(again, PullIn::Unchanged { deadline: at(23) });
        Next::Again
    });
    assert_eq!(starts, [10, 20, 23, 33, 43, 53, 63]);
    // Later: it never delays.
    let (starts, _) = in_the_second_round(|round| {
        let pulled = round.handle().pull_in(&1, 30 * T);
        assert!(matches!(pulled, PullIn::Moved { .. }));
        Next::Again
    });
    assert_eq!(starts, [10, 20, 30, 40, 50, 60]);
    // There is one, since it was said.
    let (starts, _) = in_the_second_round(|round| {
        let _ = round.handle().pull_in(&1, 30 * T);
        Next::Stop
    });
    assert_eq!(starts, [10, 20, 50, 60]);
    // A move that was answered is pulled in like any.
    let (starts, _) = in_the_second_round(|round| {
        let _ = round.handle().reschedule(&1, 30 * T);
        let pulled = round.handle().pull_in(&1, 25 * T);
        assert_eq!(pulled, PullIn::Moved { before: at(50) });
        Next::After(T)
    });
    assert_eq!(starts, [10, 20, 45, 55, 65]);
}

// === arming the key ===

#[test]
fn armed_anew_between_two_rounds_the_repetition_is_replaced() {
    for seed in SEEDS {
        let drops = Drops::default();
        let mark = drops.mark();
        let (scheduler, beats) = beating(seed, rate(), move |_| {
            let _ = &mark;
        });
        let timers = scheduler.handle();
        scheduler.advance(25 * T);
        let refused = timers.schedule_if_absent(1, T, |_| ());
        assert!(matches!(refused, Err(ScheduleError::Occupied(_))));
        let armed = timers.schedule(1, 3 * T, |_| ()).unwrap();
        assert_eq!((armed.replaced, drops.count()), (Some(at(30)), 1));
        assert_eq!(runs(&scheduler, 1_000 * T), [(28, 1)]);
        assert_eq!(beats.starts(), [10, 20]);
        assert!(timers.is_empty());
    }
}

#[test]
fn armed_anew_during_a_round_the_repetition_is_replaced() {
    let (starts, ran) = in_the_second_round(|round| {
        let armed = round.handle().schedule(1, 3 * T, |_| ()).unwrap();
        assert_eq!((armed.replaced, armed.after_run), (None, true));
        Next::Again
    });
    assert_eq!((starts, ran), (vec![10, 20], vec![(23, 1)]));
    // By another repetition.
    let (starts, ran) = in_the_second_round(|round| {
        let armed = round.handle().repeat(1, Period::fixed_rate(20 * T), |_| ());
        assert!(armed.unwrap().after_run);
        Next::Again
    });
    assert_eq!((starts, ran), (vec![10, 20], vec![(40, 1), (60, 1)]));
}

#[test]
fn what_replaced_it_and_was_cancelled_by_id_leaves_it_alone() {
    let (starts, _) = in_the_second_round(|round| {
        let timers = round.handle();
        let armed = timers.schedule(1, 3 * T, |_| ()).unwrap();
        assert!(timers.by_id(armed.id).cancel().is_cancelled());
        assert!(!round.is_cancelled());
        Next::Again
    });
    assert_eq!(starts, [10, 20, 30, 40, 50, 60]);
    // By key, the round is told, too.
    let (starts, _) = in_the_second_round(|round| {
        let timers = round.handle();
        timers.schedule(1, 3 * T, |_| ()).unwrap();
        assert!(timers.cancel(&1).is_cancelled());
        assert!(round.is_cancelled());
        Next::Again
    });
    assert_eq!(starts, [10, 20]);
}

#[test]
fn during_a_round_the_key_is_occupied() {
    let (starts, ran) = in_the_second_round(|round| {
        let refused = round.handle().schedule_if_absent(1, T, |_| ());
        assert!(matches!(refused, Err(ScheduleError::Occupied(_))));
        Next::Again
    });
    assert_eq!(starts, [10, 20, 30, 40, 50, 60]);
    assert_eq!(ran.len(), 4);
    // No more, when it was cancelled.
    let (starts, ran) = in_the_second_round(|round| {
        assert_eq!(round.handle().cancel(&1), Cancel::Running);
        let armed = round.handle().schedule_if_absent(1, T, |_| ());
        assert!(armed.unwrap().after_run);
        Next::Again
    });
    assert_eq!((starts, ran), (vec![10, 20], vec![(21, 1)]));
}

// === max_pending ===

#[test]
fn with_a_bound_a_repeating_key_keeps_its_place() {
    for seed in SEEDS {
        let scheduler = Scheduler::<u64>::builder()
            .max_pending(1)
            .build_stepped(seed)
            .unwrap();
        let timers = scheduler.handle();
        let armed = timers.repeat(1, rate(), |round| {
            let timers = round.handle();
            assert_eq!(timers.len(), 0);
            let other = timers.schedule(2, T, |_| ());
            assert!(matches!(other, Err(ScheduleError::Full(_))));
            match round.number() {
                3 => {
                    // For its own key there is room, and so there is after that was cancelled.
                    let own = timers.schedule(1, T, |_| ()).unwrap();
                    assert!(matches!(
                        timers.schedule(2, T, |_| ()),
                        Err(ScheduleError::Full(_))
                    ));
                    assert!(timers.by_id(own.id).cancel().is_cancelled());
                    Next::Again
                }
                5 => Next::Stop,
                _ => Next::Again,
            }
        });
        armed.unwrap();
        assert!(matches!(
            timers.schedule(2, T, |_| ()),
            Err(ScheduleError::Full(_))
        ));
        assert_eq!(runs(&scheduler, 100 * T).len(), 5);
        assert_eq!(timers.stats().panicked, 0);
        // It is free again.
        assert!(timers.schedule(2, T, |_| ()).is_ok());
        assert!(matches!(
            timers.schedule(3, T, |_| ()),
            Err(ScheduleError::Full(_))
        ));
        assert_eq!(runs(&scheduler, T).len(), 1);
        // Also after a cancel between two rounds, or during one.
        for during in [false, true] {
            let armed = timers.repeat(1, rate(), move |round| {
                if during {
                    assert_eq!(round.handle().cancel(&1), Cancel::Running);
                }
            });
            armed.unwrap();
            scheduler.advance(15 * T);
            assert_eq!(timers.cancel(&1).is_cancelled(), !during);
            assert!(timers.is_empty());
            assert!(timers.schedule(2, T, |_| ()).is_ok());
            scheduler.advance(T);
        }
        assert!(timers.stats().balances());
    }
}

// === one at a time ===

#[test]
fn c096_c113_rounds_of_one_key_never_overlap() {
    const KEYS: usize = 4;
    const ROUNDS: u64 = 300;
    let scheduler = Scheduler::<u64>::builder()
        .shards(2)
        .workers(8)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let inside: Arc<[AtomicBool]> = (0..KEYS).map(|_| AtomicBool::new(false)).collect();
    let overlaps = Arc::new(AtomicUsize::new(0));
    let (send, ended) = mpsc::channel();
    for key in 0..KEYS {
        let (inside, overlaps) = (Arc::clone(&inside), Arc::clone(&overlaps));
        let send = send.clone();
        let period = Period::fixed_rate(T).missed(Missed::All);
        let armed = timers.repeat(key as u64, period, move |round| {
            let was = inside[key].swap(true, Ordering::SeqCst);
            // Longer than the period, now and then, so that the next one is due already.
            let until = round.handle().now() + T * (round.number() as u32 % 3);
            while round.handle().now() < until {
                thread::yield_now();
            }
            let is = inside[key].swap(false, Ordering::SeqCst);
            overlaps.fetch_add(usize::from(was || !is), Ordering::SeqCst);
            if round.number() < ROUNDS {
                return Next::Again;
            }
            send.send(()).unwrap();
            Next::Stop
        });
        armed.unwrap();
    }
    drop(send);
    // Meanwhile others move them, also in their runs.
    thread::scope(|scope| {
        scope.spawn(|| {
            while timers.stats().ran <= 500 {
                for key in 0..KEYS as u64 {
                    let _ = timers.reschedule(&key, Duration::ZERO);
                    let _ = timers.pull_in(&key, Duration::ZERO);
                }
                thread::yield_now();
            }
        });
    });
    assert_eq!(wait::all(&ended).len(), KEYS);
    assert_eq!(overlaps.load(Ordering::SeqCst), 0);
    wait::until("all is settled", || timers.stats().running == 0);
    let stats = timers.stats();
    assert_eq!(stats.ran, KEYS as u64 * ROUNDS);
    assert_eq!((stats.scheduled, stats.pending), (stats.ran, 0));
}

#[test]
fn c113_in_a_stepped_pool_rounds_go_to_any_worker_in_order() {
    for seed in 0..20 {
        let scheduler = Scheduler::<u64>::builder()
            .shards(2)
            .stripes(4)
            .workers(4)
            .build_stepped(seed)
            .unwrap();
        let timers = scheduler.handle();
        let beats: Vec<_> = (0..20)
            .map(|key| {
                let beats = Beats::default();
                let noted = beats.clone();
                let armed = timers.repeat(key, rate().missed(Missed::All), move |round| {
                    noted.note(round);
                });
                armed.unwrap();
                beats
            })
            .collect();
        scheduler.jump_to(at(95));
        scheduler.jump_to(at(200));
        for beats in beats {
            let beats = beats.take();
            assert_eq!(beats.len(), 20);
            for (beat, number) in beats.iter().zip(1..) {
                assert_eq!((beat.number, beat.due), (number, 10 * number));
            }
        }
    }
}

// === wherever tasks run ===

/// Loses every third job.
struct Forgetful(AtomicUsize);

impl Executor for Forgetful {
    fn execute(&self, job: Job) -> Result<(), Job> {
        match self.0.fetch_add(1, Ordering::SeqCst) % 3 {
            0 => drop(job),
            1 => return Err(job),
            _ => job.run(),
        }
        Ok(())
    }
}

#[test]
fn on_tickers_and_on_other_executors_rounds_follow_each_other() {
    for seed in SEEDS {
        for missed in [Missed::Skip, Missed::All] {
            let inline = Scheduler::<u64>::builder().inline();
            let foreign = Scheduler::<u64>::builder().executor(Forgetful(AtomicUsize::new(0)));
            for builder in [inline, foreign] {
                let scheduler = builder.build_stepped(seed).unwrap();
                let beats = Beats::default();
                let noted = beats.clone();
                let period = rate().missed(missed);
                let armed = scheduler.handle().repeat(1, period, move |round| {
                    noted.note(round);
                    if round.number() % 4 == 0 {
                        Next::After(Duration::ZERO)
                    } else {
                        Next::Again
                    }
                });
                armed.unwrap();
                scheduler.advance(100 * T);
                scheduler.jump_to(at(200));
                scheduler.advance(100 * T);
                let told = beats.take();
                for (beat, number) in told.iter().zip(1..) {
                    assert_eq!(beat.number, number);
                    assert!(beat.at >= beat.due);
                }
                assert!(told.len() > 20);
                let stats = scheduler.handle().stats();
                assert_eq!(stats.ran, told.len() as u64);
                assert_eq!((stats.scheduled, stats.pending), (stats.ran + 1, 1));
                assert!(scheduler.handle().cancel(&1).is_cancelled());
                assert!(scheduler.handle().stats().balances());
            }
        }
    }
}

/// A guard means one arming, and a round is one.
#[test]
fn a_guard_of_a_round_means_that_round() {
    let (scheduler, beats) = beating(1, rate(), |_| ());
    let timers = scheduler.handle();
    let first = timers.get(&1).unwrap().id;
    scheduler.advance(15 * T);
    drop(timers.cancel_on_drop(first));
    assert!(timers.contains(&1), "it has run");
    let second = timers.get(&1).unwrap().id;
    drop(timers.cancel_on_drop(second));
    scheduler.advance(100 * T);
    assert_eq!((beats.starts(), timers.contains(&1)), (vec![10], false));
}

// === shutdown ===

fn beating_marked(seed: u64) -> (Stepped<u64>, Beats, Drops) {
    let drops = Drops::default();
    let mark = drops.mark();
    let (scheduler, beats) = beating(seed, rate(), move |_| {
        let _ = &mark;
    });
    scheduler.advance(25 * T);
    assert_eq!(beats.starts(), [10, 20]);
    (scheduler, beats, drops)
}

#[test]
fn c124_a_repeating_key_is_handed_back_or_runs_once_more() {
    for seed in SEEDS {
        let (scheduler, beats, drops) = beating_marked(seed);
        let report = scheduler.shutdown(Shutdown::HandBack);
        assert_eq!(report.handed_back.len(), 1);
        let back = &report.handed_back[0];
        assert_eq!((back.key, back.deadline), (1, at(30)));
        assert_eq!((drops.count(), beats.starts()), (0, vec![]));
        let stats = scheduler.handle().stats();
        assert_eq!((stats.scheduled, stats.ran, stats.handed_back), (3, 2, 1));
        drop(report);
        assert_eq!(drops.count(), 1);

        // Its pending round still runs, and none after it.
        let limit = 1_000 * T;
        for (mode, start) in [(Shutdown::Drain { limit }, 30), (Shutdown::RunNow, 25)] {
            let (scheduler, beats, drops) = beating_marked(seed);
            let report = scheduler.shutdown(mode);
            assert!(report.handed_back.is_empty() && report.still_running == 0);
            assert_eq!(scheduler.now(), at(start), "no longer than for that");
            assert_eq!((beats.starts(), drops.count()), (vec![u64::from(start)], 1));
            let stats = scheduler.handle().stats();
            assert_eq!((stats.ran, stats.pending), (3, 0));
            assert!(stats.balances());
        }

        // Not within the limit: handed back.
        let (scheduler, _, _) = beating_marked(seed);
        let report = scheduler.shutdown(Shutdown::Drain { limit: 4 * T });
        assert_eq!(report.handed_back.len(), 1);

        // Dropped: cancelled.
        let (scheduler, beats, drops) = beating_marked(seed);
        let timers = scheduler.handle();
        drop(scheduler);
        assert_eq!((drops.count(), beats.starts()), (1, vec![]));
        assert_eq!(timers.stats().cancelled, 1);
        let refused = timers.repeat(1, rate(), |_| ());
        assert!(matches!(refused, Err(ScheduleError::Closed(_))));
    }
}

#[test]
fn c124_a_round_that_ends_after_closing_is_the_last_one_and_comes_back_if_asked() {
    for mode in [
        Shutdown::HandBack,
        Shutdown::Drain { limit: T * 1_000 },
        Shutdown::RunNow,
    ] {
        let scheduler = Scheduler::<u64>::builder().workers(2).build().unwrap();
        let timers = scheduler.handle();
        let gate = Gate::default();
        let drops = Drops::default();
        let (passing, mark) = (gate.clone(), drops.mark());
        let period = Period::fixed_rate(T).first(Duration::ZERO);
        let armed = timers.repeat(1, period, move |_| {
            let _ = &mark;
            passing.pass();
        });
        armed.unwrap();
        gate.crowd(1);
        let report = thread::scope(|scope| {
            let closing = scope.spawn(|| scheduler.shutdown(mode).wait().unwrap());
            wait::until("it is closing", || {
                let refused = timers.schedule_if_absent(1, T, |_| ());
                matches!(refused, Err(ScheduleError::Closed(_)))
            });
            let moved = timers.reschedule(&1, Duration::from_secs(60));
            let hands_back = mode == Shutdown::HandBack;
            assert_eq!(matches!(moved, Reschedule::Moved { .. }), hands_back);
            assert_eq!(moved == Reschedule::Running, !hands_back);
            gate.open();
            closing.join().unwrap()
        });
        assert_eq!(report.still_running, 0);
        let back = usize::from(mode == Shutdown::HandBack);
        assert_eq!((report.handed_back.len(), drops.count()), (back, 1 - back));
        let in_a_while = timers.now() + Duration::from_secs(30);
        let timer = report.handed_back.first();
        assert!(timer.is_none_or(|timer| timer.key == 1 && timer.deadline > in_a_while));
        let stats = timers.stats();
        assert_eq!(stats.handed_back, back as u64);
        assert!(!timers.contains(&1) && stats.balances());
    }
}

#[test]
fn what_was_handed_back_goes_on_under_another_scheduler() {
    let (before, beats, _) = beating_marked(1);
    let mut report = before.shutdown(Shutdown::HandBack);
    let mut task = report.handed_back.remove(0).task;
    let after = stepped(2);
    let armed = after.handle().repeat(1, rate(), move |round| {
        task.run_round(round.firing()).unwrap_or(Next::Stop)
    });
    armed.unwrap();
    after.advance(30 * T);
    assert_eq!(
        beats
            .take()
            .iter()
            .map(|beat| beat.number)
            .collect::<Vec<_>>(),
        [3, 4, 5]
    );

    // One that runs once has no rounds, and one that repeats can run once.
    let before = stepped(1);
    before
        .handle()
        .schedule(1, T, |_| panic!("not run"))
        .unwrap();
    let mut report = before.shutdown(Shutdown::HandBack);
    let mut once = report.handed_back.remove(0).task;
    let (before, beats, drops) = beating_marked(1);
    let mut report = before.shutdown(Shutdown::HandBack);
    let many = report.handed_back.remove(0).task;
    let armed = after.handle().schedule(2, T, move |firing| {
        assert_eq!(once.run_round(firing), None);
        many.run(firing);
    });
    armed.unwrap();
    after.advance(T);
    assert_eq!((beats.take().len(), drops.count()), (1, 1));
    assert_eq!(after.handle().stats().panicked, 0);
}
