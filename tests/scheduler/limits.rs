//! Bounds: what the builder refuses, and `max_pending`, which refuses exactly at its bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use kit::gate::Gate;
use kit::ledger::Ledger;
use kit::wait::until;
use tourbillon::{
    BuildError, Clock, ManualClock, ScheduleError, Scheduler, SchedulerBuilder, Shutdown,
};

const TICK: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

// === the builder ===

fn refused(set: impl Fn(SchedulerBuilder<u32>) -> SchedulerBuilder<u32>) -> BuildError {
    match set(Scheduler::builder()).build() {
        Err(error) => error,
        Ok(_) => panic!("it was built"),
    }
}

fn accepted(set: impl Fn(SchedulerBuilder<u32>) -> SchedulerBuilder<u32>) {
    set(Scheduler::builder()).build_stepped(1).unwrap();
}

#[test]
fn c116_the_builder_refuses_what_cannot_be_and_names_it() {
    for tick in [
        Duration::ZERO,
        Duration::from_nanos(999),
        Duration::from_nanos(60_000_000_001),
        Duration::MAX,
    ] {
        let error = refused(|b| b.tick(tick));
        assert!(matches!(error, BuildError::Tick(named) if named == tick));
        assert!(error.to_string().contains(&format!("{tick:?}")));
    }
    for shards in [0, 1_025, usize::MAX] {
        let error = refused(|b| b.shards(shards));
        assert!(matches!(error, BuildError::Shards(named) if named == shards));
    }
    for (stripes, shards) in [
        (0, 1),
        (3, 1),
        (100, 1),
        (2, 4),
        (1 << 17, 1),
        (usize::MAX, 1),
    ] {
        let error = refused(|b| b.stripes(stripes).shards(shards));
        assert!(
            matches!(error, BuildError::Stripes { stripes: s, shards: n, .. } if (s, n) == (stripes, shards))
        );
    }
    for workers in [0, 1_025, usize::MAX] {
        let error = refused(|b| b.workers(workers));
        assert!(matches!(error, BuildError::Workers(named) if named == workers));
    }
    for (max_running, workers) in [(0, 1), (3, 4), (1_025, 4), (usize::MAX, 4)] {
        let error = refused(|b| b.workers(workers).max_running(max_running));
        assert!(
            matches!(error, BuildError::MaxRunning { max_running: m, workers: w, .. } if (m, w) == (max_running, workers))
        );
    }
    assert!(matches!(
        refused(|b| b.max_pending(0)),
        BuildError::MaxPending
    ));
}

#[test]
fn c116_the_builder_accepts_every_bound_itself() {
    accepted(|b| b.tick(Duration::from_micros(1)));
    accepted(|b| b.tick(Duration::from_secs(60)));
    accepted(|b| b.stripes(1).shards(1));
    accepted(|b| b.stripes(1_024).shards(1_024));
    accepted(|b| b.shards(3).stripes(4));
    accepted(|b| b.workers(1).max_running(1));
    accepted(|b| b.workers(1_024));
    accepted(|b| b.max_pending(1));
    accepted(|b| b.max_pending(usize::MAX));
    accepted(|b| b.shutdown_limit(Duration::ZERO));
    accepted(|b| b.shutdown_limit(Duration::MAX));
}

#[test]
fn c117_what_was_built_can_be_read_back() {
    let shown = |builder: &SchedulerBuilder<u32>| format!("{builder:?}");
    // The defaults, as documented.
    let builder = Scheduler::<u32>::builder();
    let text = shown(&builder);
    assert!(text.contains("tick: 1ms"), "{text}");
    assert!(text.contains("max_pending: None"), "{text}");
    assert!(text.contains("shutdown_limit: 30s"), "{text}");
    let scheduler = builder.build().unwrap();
    let timers = scheduler.handle();
    let cores = num_cpus::get();
    assert_eq!(timers.stats().shards.len(), cores, "a shard for each core");
    assert_eq!(timers.stats().workers, cores as u64, "a worker as well");
    drop(scheduler);

    let builder = Scheduler::<u32>::builder()
        .tick(Duration::from_millis(5))
        .max_pending(77)
        .shards(3)
        .workers(5);
    assert!(shown(&builder).contains("max_pending: Some(77)"));
    let scheduler = builder.build().unwrap();
    let timers = scheduler.handle();
    let stats = timers.stats();
    assert_eq!((stats.shards.len(), stats.workers), (3, 5));
    assert!(format!("{scheduler:?}").contains("shards: 3"));
}

// === max_pending ===

#[test]
fn c119_the_one_too_many_is_refused_and_its_task_comes_back() {
    let scheduler = Scheduler::<u32>::builder()
        .max_pending(2)
        .build_stepped(1)
        .unwrap();
    let timers = scheduler.handle();
    timers.schedule(1, HOUR, |_| ()).unwrap();
    timers.schedule(2, HOUR, |_| ()).unwrap();
    let captured = Arc::new(AtomicUsize::new(0));
    let inner = Arc::clone(&captured);
    let (tell, told) = channel();
    let task = move |_: &tourbillon::Firing<'_, u32>| {
        inner.fetch_add(1, Ordering::SeqCst);
        tell.send(Arc::clone(&inner)).unwrap();
    };
    let error = timers.schedule(3, TICK, task).unwrap_err();
    assert!(matches!(error, ScheduleError::Full(_)));
    assert!(error.is_transient());
    assert_eq!(timers.len(), 2);
    assert!(!timers.contains(&3));
    let stats = timers.stats();
    assert_eq!((stats.scheduled, stats.pending), (2, 2));
    assert_eq!(
        Arc::strong_count(&captured),
        2,
        "nothing was copied or kept"
    );

    // The very closure: accepted as it is, once there is room, and it has what it captured.
    let task = error.into_task();
    assert!(timers.cancel(&1).is_cancelled());
    timers.schedule(3, TICK, task).unwrap();
    assert_eq!(scheduler.advance(TICK).len(), 1);
    assert!(Arc::ptr_eq(&told.recv().unwrap(), &captured));
    assert_eq!(captured.load(Ordering::SeqCst), 1);
    assert_eq!(timers.len(), 1);
}

#[test]
fn c119_every_call_that_arms_is_refused_and_a_replacement_needs_no_place() {
    let scheduler = Scheduler::<u32>::builder()
        .max_pending(2)
        .build_stepped(1)
        .unwrap();
    let timers = scheduler.handle();
    timers.schedule(1, HOUR, |_| ()).unwrap();
    timers.schedule(2, HOUR, |_| ()).unwrap();
    assert!(matches!(
        timers.schedule(3, HOUR, |_| ()),
        Err(ScheduleError::Full(_))
    ));
    assert!(matches!(
        timers.schedule(3, timers.now(), |_| ()),
        Err(ScheduleError::Full(_))
    ));
    assert!(matches!(
        timers.schedule_if_absent(3, HOUR, |_| ()),
        Err(ScheduleError::Full(_))
    ));
    for _ in 0..10 {
        assert!(timers.schedule(1, TICK, |_| ()).unwrap().replaced.is_some());
        assert!(timers.schedule(2, HOUR, |_| ()).unwrap().replaced.is_some());
        assert!(matches!(
            timers.schedule_if_absent(1, HOUR, |_| ()),
            Err(ScheduleError::Occupied(_))
        ));
    }
    assert_eq!(timers.len(), 2);
    // What runs is pending no more, so the kept arming of a running key takes a place of its own.
    timers
        .schedule(1, TICK, |firing| {
            let timers = firing.handle();
            timers.schedule(3, HOUR, |_| ()).unwrap();
            assert!(matches!(
                timers.schedule(1, HOUR, |_| ()),
                Err(ScheduleError::Full(_))
            ));
            assert!(timers.cancel(&3).is_cancelled());
            assert!(timers.schedule(1, HOUR, |_| ()).unwrap().after_run);
            assert!(timers.schedule(1, TICK, |_| ()).unwrap().replaced.is_some());
            assert!(matches!(
                timers.schedule(3, HOUR, |_| ()),
                Err(ScheduleError::Full(_))
            ));
        })
        .unwrap();
    assert_eq!(scheduler.advance(TICK).len(), 1);
    assert_eq!(timers.len(), 2);
    assert_eq!(scheduler.advance(TICK).len(), 1);
    assert_eq!(timers.len(), 1);
    timers.schedule(3, HOUR, |_| ()).unwrap();
    assert_eq!(timers.cancel_all(), 2);
    for key in 4..6 {
        timers.schedule(key, HOUR, |_| ()).unwrap();
    }
    assert!(matches!(
        timers.schedule(6, HOUR, |_| ()),
        Err(ScheduleError::Full(_))
    ));
    assert!(timers.stats().balances());
}

#[test]
fn c119_queued_ones_hold_their_place_until_they_start() {
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u32>::builder()
        .clock(Clock::manual(&hand))
        .workers(1)
        .max_running(1)
        .max_pending(3)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let gate = Gate::default();
    let at_gate = gate.clone();
    timers
        .schedule(0, Duration::ZERO, move |_| at_gate.pass())
        .unwrap();
    gate.crowd(1);
    for key in 1..4 {
        timers.schedule(key, TICK, |_| ()).unwrap();
    }
    hand.advance(TICK);
    until("they are queued", || timers.stats().queued == 3);
    assert!(matches!(
        timers.schedule(9, HOUR, |_| ()),
        Err(ScheduleError::Full(_))
    ));
    gate.open();
    until("they have started", || timers.stats().ran == 4);
    for key in 10..13 {
        timers.schedule(key, HOUR, |_| ()).unwrap();
    }
    assert!(timers.schedule(13, HOUR, |_| ()).is_err());
}

/// Below and above the bound from which permits are held in blocks.
const BOUNDS: [usize; 5] = [1, 100, 9_999, 10_000, 25_600];

#[test]
fn c119_under_concurrency_exactly_so_many_are_accepted() {
    const THREADS: usize = 4;
    for bound in BOUNDS {
        let hand = ManualClock::new();
        let scheduler = Scheduler::<usize>::builder()
            .clock(Clock::manual(&hand))
            .workers(1)
            .max_pending(bound)
            .build()
            .unwrap();
        let timers = scheduler.handle();
        let accepted: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|number| {
                    let timers = timers.clone();
                    scope.spawn(move || {
                        let mut accepted = 0;
                        for key in (number..).step_by(THREADS) {
                            match timers.schedule(key, HOUR, |_| ()) {
                                Ok(_) => accepted += 1,
                                Err(ScheduleError::Full(_)) => break,
                                Err(other) => panic!("{other:?}"),
                            }
                        }
                        accepted
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(accepted, bound);
        assert_eq!(timers.len(), bound);
        // One goes, one comes: wherever the permit was, it is found.
        for key in 0..50.min(bound) {
            let going = timers.pending().next().unwrap().0;
            assert!(timers.cancel(&going).is_cancelled());
            timers.schedule(1_000_000 + key, HOUR, |_| ()).unwrap();
            assert!(timers.schedule(2_000_000, HOUR, |_| ()).is_err());
        }
        assert_eq!(timers.cancel_all(), bound);
        assert!(timers.stats().balances());
    }
}

#[test]
fn c119_no_refusal_while_there_is_a_place() {
    // Each thread holds at most its share of the bound. However the permits lie about in the
    // stripes, there is one for everybody.
    const THREADS: usize = 4;
    const ROUNDS: usize = 6;
    for bound in [100, 10_000] {
        let share = bound / THREADS;
        let hand = ManualClock::new();
        let scheduler = Scheduler::<usize>::builder()
            .clock(Clock::manual(&hand))
            .workers(1)
            .max_pending(bound)
            .build()
            .unwrap();
        let timers = scheduler.handle();
        thread::scope(|scope| {
            for number in 0..THREADS {
                let timers = timers.clone();
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        // Other keys in each round: other stripes.
                        let first = (round * THREADS + number) * share;
                        for key in first..first + share {
                            timers.schedule(key, HOUR, |_| ()).unwrap();
                        }
                        for key in first..first + share {
                            assert!(timers.cancel(&key).is_cancelled());
                        }
                    }
                });
            }
        });
        assert!(timers.is_empty());
        let stats = timers.stats();
        assert_eq!(stats.cancelled as usize, ROUNDS * THREADS * share);
    }
}

#[test]
fn c119_the_bound_holds_while_timers_come_and_go() {
    const THREADS: usize = 4;
    const BOUND: usize = 16;
    // With one stripe the number of pending timers is read at one moment.
    for stripes in [1, 128] {
        let scheduler = Scheduler::<usize>::builder()
            .shards(1)
            .stripes(stripes)
            .workers(2)
            .max_pending(BOUND)
            .build()
            .unwrap();
        let timers = scheduler.handle();
        thread::scope(|scope| {
            for number in 0..THREADS {
                let timers = timers.clone();
                scope.spawn(move || {
                    for round in 0..3_000 {
                        let key = (round % 40) * THREADS + number;
                        let delay = TICK * (key as u32 % 2);
                        if timers.schedule(key, delay, |_| ()).is_err() {
                            timers.cancel(&(key + THREADS));
                        }
                        assert!(stripes > 1 || timers.len() <= BOUND);
                    }
                });
            }
        });
        until("all ran", || timers.is_empty());
        // No permit was lost on the way, and none was made.
        let accepted = (0..=BOUND)
            .filter(|key| timers.schedule(*key, HOUR, |_| ()).is_ok())
            .count();
        assert_eq!(accepted, BOUND);
        assert!(timers.stats().balances());
    }
}

#[test]
fn c119_permits_of_what_is_handed_back_ran_or_panicked_come_back() {
    for seed in 0..10 {
        let scheduler = Scheduler::<u32>::builder()
            .max_pending(10)
            .build_stepped(seed)
            .unwrap();
        let timers = scheduler.handle();
        for round in 0..5 {
            for key in 0..10 {
                let task = move |_: &tourbillon::Firing<'_, u32>| assert!(key % 2 == 0, "{round}");
                timers.schedule(key, TICK, task).unwrap();
            }
            assert!(timers.schedule(10, TICK, |_| ()).is_err());
            assert_eq!(scheduler.advance(TICK).len(), 10);
        }
        assert_eq!(timers.stats().panicked, 25);
    }
}

#[test]
fn c120_the_count_of_pending_timers_follows_every_end() {
    for seed in 0..20 {
        let scheduler = Scheduler::<u32>::builder().build_stepped(seed).unwrap();
        let timers = scheduler.handle();
        assert_eq!((timers.len(), timers.is_empty()), (0, true));
        let ledger = Ledger::new(3);
        for number in 0..3 {
            let token = ledger.token(number);
            timers
                .schedule(number as u32, TICK * 5, move |_| token.run())
                .unwrap();
            assert_eq!(timers.len(), number + 1);
        }
        timers.cancel(&0);
        assert_eq!(timers.len(), 2);
        timers.cancel(&0);
        assert_eq!(timers.len(), 2, "a second cancel counts nothing");
        timers.cancel(&1);
        assert_eq!(timers.len(), 1);
        let _ = timers.reschedule(&2, TICK * 7);
        assert_eq!(timers.len(), 1);
        scheduler.advance(TICK * 6);
        assert_eq!(timers.len(), 1);
        scheduler.advance(TICK);
        assert_eq!((timers.len(), timers.is_empty()), (0, true));
        assert_eq!(timers.pending().count(), 0);
        assert_eq!(ledger.sums(), (1, 3));
        let stats = timers.stats();
        assert_eq!((stats.scheduled, stats.ran, stats.cancelled), (3, 1, 2));
        timers.schedule(9, HOUR, |_| ()).unwrap();
        assert_eq!(scheduler.shutdown(Shutdown::HandBack).handed_back.len(), 1);
        assert_eq!(timers.len(), 0);
        assert_eq!(timers.stats().handed_back, 1);
    }
}
