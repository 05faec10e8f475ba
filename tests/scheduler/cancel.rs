//! Cancelling: rows `c070` to `c083` of `docs/conformance.md`. What concerns a run in progress is
//! in `cancel_running.rs`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use kit::drops::Drops;
use kit::steps::{SEEDS, T, for_each_seed, narrow, runs, stepped};
use kit::wait;
use tourbillon::{Cancel, Clock, Handle, ManualClock, ScheduleError, Scheduler, Time, TimerState};

fn cancelled(deadline: Time) -> Cancel {
    Cancel::Cancelled {
        deadline,
        running: false,
    }
}

#[test]
fn c070_what_is_cancelled_does_not_run() {
    for seed in SEEDS {
        for (delay, passes) in [(5, 0), (5, 4), (64, 63), (4_096, 1), (1 << 20, 700_000)] {
            let scheduler = stepped(seed);
            let timers = scheduler.handle();
            let armed = timers
                .schedule(1, delay * T, |_| panic!("cancelled"))
                .unwrap();
            assert_eq!(runs(&scheduler, passes * T), []);
            let remaining = timers.get(&1).unwrap().remaining(scheduler.now());
            assert_eq!(remaining, (delay - passes) * T);
            assert_eq!(timers.cancel(&1), cancelled(armed.deadline));
            assert!(!timers.contains(&1) && timers.is_empty());
            assert_eq!(runs(&scheduler, 2_000_000 * T), []);
            let stats = timers.stats();
            assert_eq!((stats.cancelled, stats.ran), (1, 0));
            assert!(stats.balances());
        }
    }
}

#[test]
fn c070_never_is_a_deadline_that_can_be_cancelled() {
    let scheduler = stepped(0);
    let timers = scheduler.handle();
    timers.schedule(1, Duration::MAX, |_| ()).unwrap();
    assert_eq!(timers.cancel(&1), cancelled(Time::MAX));
    assert!(timers.is_empty());
}

#[test]
fn c071_a_second_cancel_finds_nothing() {
    for_each_seed(|_, timers| {
        let armed = timers.schedule(1, 5 * T, |_| ()).unwrap();
        assert!(timers.cancel(&1).is_cancelled());
        assert_eq!(timers.cancel(&1), Cancel::NotFound);
        assert_eq!(timers.by_id(armed.id).cancel(), Cancel::NotFound);
        assert!(!timers.cancel(&1).is_cancelled());
        assert_eq!(timers.stats().cancelled, 1);
    });
}

#[test]
fn c072_cancelling_an_unknown_key_finds_nothing() {
    let scheduler = stepped(0);
    let timers = scheduler.handle();
    assert_eq!(timers.cancel(&1), Cancel::NotFound);
    timers.schedule(2, T, |_| ()).unwrap();
    assert_eq!(timers.cancel(&1), Cancel::NotFound);
    assert_eq!(timers.cancel_and_wait(&1).wait(), Ok(Cancel::NotFound));
    assert_eq!(timers.cancel_many(&[1, 3]), [Cancel::NotFound; 2]);
    assert_eq!(runs(&scheduler, 2 * T), [(1, 2)]);
}

#[test]
fn c073_cancelling_after_the_run_finds_nothing() {
    for_each_seed(|scheduler, timers| {
        let armed = timers.schedule(1, 5 * T, |_| ()).unwrap();
        assert_eq!(runs(scheduler, 5 * T), [(5, 1)]);
        assert_eq!(timers.cancel(&1), Cancel::NotFound);
        assert_eq!(timers.by_id(armed.id).cancel(), Cancel::NotFound);
        let stats = timers.stats();
        assert_eq!((stats.cancelled, stats.ran), (0, 1));
    });
}

/// Threads, the system's clock, and a cancel that is aimed at the very moment.
#[test]
fn c074_a_cancel_at_the_deadline_is_never_both() {
    let scheduler = Scheduler::<u64>::builder().build().unwrap();
    let timers = scheduler.handle();
    let (mut cancelled, mut started) = (0, 0);
    for round in 0..200_u32 {
        // Some of the delays end on a tick, some between two; some of the cancels come a little
        // early, so that all answers are met.
        let delay = T + round % 4 * T / 2;
        let early = round % 5 * Duration::from_micros(40);
        let ran = Arc::new(AtomicBool::new(false));
        let (send, ends) = mpsc::channel();
        let in_task = Arc::clone(&ran);
        let armed = timers
            .schedule(7, delay, move |_| {
                in_task.store(true, Ordering::SeqCst);
                send.send(()).unwrap();
            })
            .unwrap();
        while timers.now() + early < armed.deadline {
            std::thread::yield_now();
        }
        match timers.cancel(&7) {
            Cancel::Cancelled { deadline, running } => {
                assert_eq!((deadline, running), (armed.deadline, false));
                // The task is gone with its sender, and nothing was sent.
                assert_eq!(ends.recv(), Err(mpsc::RecvError));
                assert!(!ran.load(Ordering::SeqCst));
                cancelled += 1;
            }
            Cancel::Running | Cancel::NotFound => {
                wait::next(&ends);
                wait::until("the end of the run", || !timers.contains(&7));
                started += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    let stats = timers.stats();
    assert_eq!((stats.cancelled, stats.ran), (cancelled, started));
    assert_eq!(stats.pending, 0);
    assert!(stats.balances());
}

#[test]
fn c075_what_no_ticker_has_seen_yet_is_cancelled_as_well() {
    for_each_seed(|scheduler, timers| {
        let drops = Drops::default();
        // Nothing takes a step between these calls: the ticket of the one that is due is still
        // in the injector, and the other's moment has come without anybody looking.
        for delay in [0, 3] {
            let mark = drops.mark();
            let armed = timers
                .schedule(u64::from(delay), delay * T, move |_| drop(mark))
                .unwrap();
            scheduler.clock().advance(3 * T);
            assert_eq!(timers.cancel(&u64::from(delay)), cancelled(armed.deadline));
        }
        assert_eq!(drops.count(), 2);
        assert_eq!((timers.len(), timers.stats().queued), (0, 0));
        assert_eq!(runs(scheduler, 100 * T), []);
        assert_eq!((timers.len(), timers.stats().ran), (0, 0));
        // The places are free for others.
        timers.schedule(0, T, |_| ()).unwrap();
        assert_eq!(runs(scheduler, 100 * T).len(), 1);
    });
}

/// Eleven timers in one tick; the first to run cancels three of the others. Which ones ran.
fn siblings(scheduler: &tourbillon::test_util::Stepped<u64>) -> Vec<u64> {
    let timers = scheduler.handle();
    let first = Arc::new(AtomicBool::new(true));
    for key in 0..11 {
        let first = Arc::clone(&first);
        timers
            .schedule(key, 9 * T, move |firing| {
                if !first.swap(false, Ordering::SeqCst) {
                    return;
                }
                let rest: Vec<u64> = (0..11).filter(|key| key != firing.key()).collect();
                for other in [rest[0], rest[5], rest[9]] {
                    let answer = firing.handle().cancel(&other);
                    assert_eq!(answer, cancelled(firing.deadline()));
                }
            })
            .unwrap();
    }
    let ran = runs(scheduler, 100 * T);
    assert!(ran.iter().all(|(at, _)| *at == 9));
    assert!(timers.is_empty() && timers.stats().balances());
    assert_eq!(timers.stats().panicked, 0);
    ran.into_iter().map(|(_, key)| key).collect()
}

#[test]
fn c076_siblings_of_the_expiring_batch_can_be_cancelled() {
    for seed in SEEDS {
        // In one batch, and spread over stripes, shards and workers.
        for scheduler in [narrow(seed), stepped(seed)] {
            let ran = siblings(&scheduler);
            assert_eq!(ran.len(), 8);
            let rest: Vec<u64> = (0..11).filter(|key| *key != ran[0]).collect();
            for cancelled in [rest[0], rest[5], rest[9]] {
                assert!(!ran.contains(&cancelled));
            }
        }
    }
}

#[test]
fn c077_timers_of_later_ticks_can_be_cancelled_from_a_task() {
    for_each_seed(|scheduler, timers| {
        let last = timers.schedule(1, 20 * T, |_| ()).unwrap();
        for (key, delay) in [(2, 11), (3, 64), (4, 100_000)] {
            timers
                .schedule(key, delay * T, |_| panic!("cancelled"))
                .unwrap();
        }
        timers
            .schedule(5, 10 * T, |firing| {
                for key in [2, 3, 4] {
                    assert!(firing.handle().cancel(&key).is_cancelled());
                }
            })
            .unwrap();
        let mut ran = Vec::new();
        while let Some(fired) = scheduler.advance_to_next() {
            ran.extend(fired.into_iter().map(|fired| fired.key));
        }
        assert_eq!(ran, [5, 1]);
        // Nothing is left that anybody would wake up for.
        assert_eq!(scheduler.now(), last.deadline);
        assert_eq!(timers.stats().panicked, 0);
    });
}

/// A manual clock below real threads: tasks run on workers, time stands still meanwhile.
fn threaded(workers: usize) -> (Scheduler<u64>, ManualClock) {
    let clock = ManualClock::new();
    let builder = Scheduler::<u64>::builder().clock(Clock::manual(&clock));
    let builder = builder.workers(workers).max_running(workers);
    (builder.build().unwrap(), clock)
}

#[test]
fn c078_cancelled_while_queued_behind_a_blocked_task_each_counts_once() {
    let (scheduler, clock) = threaded(1);
    let timers = scheduler.handle();
    let (send, starts) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    for key in 0..11 {
        let (send, released) = (send.clone(), Arc::clone(&released));
        timers
            .schedule(key, 5 * T, move |firing| {
                send.send(*firing.key()).unwrap();
                released.lock().unwrap().recv().unwrap();
            })
            .unwrap();
    }
    clock.advance(5 * T);
    let runs = wait::next(&starts);
    wait::until("all are queued", || timers.stats().queued == 10);
    let rest = (0..11).filter(|key| *key != runs);
    for key in rest {
        assert_eq!(timers.get(&key).unwrap().state, TimerState::Queued);
        assert!(timers.cancel(&key).is_cancelled());
        assert_eq!(timers.cancel(&key), Cancel::NotFound);
    }
    let stats = timers.stats();
    assert_eq!((stats.pending, stats.queued, stats.running), (0, 0, 1));
    assert_eq!(timers.cancel(&runs), Cancel::Running);
    release.send(()).unwrap();
    wait::until("the end of the run", || timers.stats().running == 0);
    // Their tickets lead nowhere; what comes next runs.
    timers.schedule(99, Duration::ZERO, |_| ()).unwrap();
    wait::until("another run", || timers.stats().ran == 2);
    wait::until("its end", || timers.stats().running == 0);
    assert!(starts.try_recv().is_err());
    let stats = timers.stats();
    assert_eq!((stats.pending, stats.queued), (0, 0));
    assert_eq!((stats.cancelled, stats.ran), (10, 2));
    assert!(stats.balances());
}

/// A key that is counted, too.
#[derive(Clone)]
struct Large(
    u64,
    #[expect(dead_code, reason = "its references are counted")] Arc<()>,
);

impl PartialEq for Large {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Large {}

impl std::hash::Hash for Large {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

#[test]
fn c079_a_cancel_frees_key_and_payload_at_once() {
    for seed in SEEDS {
        let scheduler = Scheduler::<Large>::builder().build_stepped(seed).unwrap();
        let timers = scheduler.handle();
        let (keys, payloads) = (Arc::new(()), Arc::new(()));
        let arm = |number: u64, seconds: u64| {
            let payload = (Arc::clone(&payloads), vec![0_u8; 10_000]);
            let key = Large(number, Arc::clone(&keys));
            let delay = Duration::from_secs(seconds);
            timers.schedule(key, delay, move |_| drop(payload)).unwrap()
        };
        for number in 0..1_000 {
            arm(number, 3_600 * (number % 50));
        }
        let probe = |number| Large(number, Arc::new(()));
        assert_eq!(Arc::strong_count(&payloads), 1_001);
        assert_eq!(Arc::strong_count(&keys), 1_001);
        // One by one, as a batch, by id, and the rest at once; some of them are queued.
        for number in 0..100 {
            assert!(timers.cancel(&probe(number)).is_cancelled());
            assert_eq!(Arc::strong_count(&payloads), 1_000 - number as usize);
            assert_eq!(Arc::strong_count(&keys), 1_000 - number as usize);
        }
        let batch: Vec<_> = (100..200).map(probe).collect();
        assert!(timers.cancel_many(&batch).iter().all(|c| c.is_cancelled()));
        assert_eq!(Arc::strong_count(&payloads), 801);
        let id = timers.get(&probe(200)).unwrap().id;
        assert!(timers.by_id(id).cancel().is_cancelled());
        drop(timers.cancel_on_drop(timers.get(&probe(201)).unwrap().id));
        assert_eq!(Arc::strong_count(&payloads), 799);
        assert_eq!(timers.cancel_all(), 798);
        assert_eq!(Arc::strong_count(&payloads), 1);
        assert_eq!(Arc::strong_count(&keys), 1);
        // So does replacing: the old payload, and the key that is not needed twice.
        arm(1, 5);
        arm(1, 7);
        assert_eq!(Arc::strong_count(&payloads), 2);
        assert_eq!(Arc::strong_count(&keys), 2);
        scheduler.advance(Duration::from_secs(7));
        assert_eq!(Arc::strong_count(&payloads), 1);
        assert_eq!(Arc::strong_count(&keys), 1);
    }
}

fn bounded(seed: u64, bound: usize) -> tourbillon::test_util::Stepped<u64> {
    let builder = Scheduler::<u64>::builder().max_pending(bound);
    builder.build_stepped(seed).unwrap()
}

/// Whether one more is accepted; the refused task comes back.
fn accepts(timers: &Handle<u64>, key: u64, delay: Duration) -> bool {
    match timers.schedule(key, delay, |_| ()) {
        Ok(_) => true,
        Err(refused) => {
            assert!(matches!(refused, ScheduleError::Full(_)));
            assert!(refused.is_transient());
            assert!(!timers.contains(&key));
            false
        }
    }
}

#[test]
fn c081_a_cancel_frees_a_place() {
    for seed in SEEDS {
        let scheduler = bounded(seed, 2);
        let timers = scheduler.handle();
        assert!(accepts(&timers, 1, 5 * T) && accepts(&timers, 2, Duration::ZERO));
        assert!(!accepts(&timers, 3, 5 * T));
        assert!(accepts(&timers, 2, 5 * T), "replacing needs no place");
        for key in [1, 2] {
            assert!(timers.cancel(&key).is_cancelled());
            assert_eq!(timers.cancel(&key), Cancel::NotFound);
            assert!(accepts(&timers, key + 10, 5 * T), "exactly one place");
            assert!(!accepts(&timers, 3, 5 * T));
        }
        assert_eq!(timers.cancel_all(), 2);
        assert!(accepts(&timers, 3, T) && accepts(&timers, 4, T) && !accepts(&timers, 5, T));
        assert_eq!(runs(&scheduler, 100 * T).len(), 2);
        assert!(timers.stats().balances());
    }
}

#[test]
fn c082_a_start_frees_a_place() {
    for seed in SEEDS {
        let scheduler = bounded(seed, 2);
        let timers = scheduler.handle();
        timers
            .schedule(1, 5 * T, |firing| {
                // A run is not pending: there is one place, for what is kept, too.
                let timers = firing.handle();
                assert!(accepts(timers, 1, T));
                assert!(!accepts(timers, 3, T));
                assert_eq!(timers.cancel_all(), 2);
                assert!(accepts(timers, 3, T) && accepts(timers, 4, T));
                assert!(!accepts(timers, 5, T));
            })
            .unwrap();
        assert!(accepts(&timers, 2, 8 * T) && !accepts(&timers, 3, 5 * T));
        assert_eq!(runs(&scheduler, 5 * T), [(5, 1)]);
        assert!(!accepts(&timers, 5, T));
        assert_eq!(runs(&scheduler, T).len(), 2);
        assert!(accepts(&timers, 5, T) && accepts(&timers, 6, T) && !accepts(&timers, 7, T));
        assert_eq!(timers.stats().panicked, 0);
        assert!(timers.stats().balances());
    }
}

#[test]
fn c083_of_two_that_cancel_all_one_runs() {
    for seed in SEEDS {
        for scheduler in [narrow(seed), stepped(seed)] {
            let timers = scheduler.handle();
            let (send, counts) = mpsc::channel();
            for key in [1, 2] {
                let send = send.clone();
                timers
                    .schedule(key, 5 * T, move |firing| {
                        send.send(firing.handle().cancel_all()).unwrap();
                    })
                    .unwrap();
            }
            drop(send);
            assert_eq!(runs(&scheduler, 100 * T).len(), 1);
            assert_eq!(counts.iter().collect::<Vec<_>>(), [1]);
            let stats = timers.stats();
            assert_eq!((stats.ran, stats.cancelled, stats.pending), (1, 1, 0));
        }
    }
}
