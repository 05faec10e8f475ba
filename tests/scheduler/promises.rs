//! The promises of the README, one test each (the sixth is in `tests/wake`, which can see
//! wake-ups). The files beside this one go into the details.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kit::wait::{next, until};
use tourbillon::{
    Cancel, Clock, Firing, Handle, ManualClock, Reschedule, ScheduleError, Scheduler, Shutdown,
    Time, TimerState,
};

const TICK: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn promise_1_never_early() {
    // Delays from below a tick to years, none a multiple of anything: each starts at the first tick
    // at or after its deadline.
    for seed in 0..10 {
        let scheduler = Scheduler::<u64>::builder().build_stepped(seed).unwrap();
        let timers = scheduler.handle();
        let mut nanos = 1;
        let mut count = 0;
        while nanos < 70_000_000_000_000_000 {
            timers
                .schedule(count, Duration::from_nanos(nanos), |_| ())
                .unwrap();
            nanos = nanos * 3 / 2 + 7;
            count += 1;
        }
        let fired = scheduler.advance(Duration::from_secs(100_000_000));
        assert_eq!(fired.len() as u64, count);
        for fired in fired {
            assert!(fired.at >= fired.deadline && fired.at < fired.deadline + TICK);
        }
    }
}

#[test]
fn promise_1_never_early_by_the_clocks_of_real_time() {
    // As the task itself sees it, and as a thread sees it that read the time before the call. The
    // delays of one half lie around a second, from which on a call may read the clock in a cheap
    // way.
    for clock in kit::clocks::real() {
        let builder = Scheduler::<u64>::builder().clock(clock);
        let scheduler = builder.build().unwrap();
        let timers = scheduler.handle();
        let (tell, told) = channel();
        for key in 0..600 {
            let tell = tell.clone();
            let begun = Instant::now();
            let delay = Duration::from_micros(37 * key + if key < 300 { 0 } else { 990_000 });
            let task = move |firing: &Firing<'_, u64>| {
                let now = firing.handle().now();
                let is_early = now < firing.deadline() || begun.elapsed() < delay;
                tell.send(!is_early).unwrap();
            };
            timers.schedule(key, delay, task).unwrap();
        }
        assert!((0..600).all(|_| next(&told)));
    }
}

#[test]
fn promise_1_a_deadline_is_at_most_a_millisecond_later_than_its_delay() {
    for clock in kit::clocks::real() {
        let builder = Scheduler::<u64>::builder().clock(clock);
        let scheduler = builder.build().unwrap();
        let timers = scheduler.handle();
        for millis in (0..2_000).chain(998..1_002) {
            let delay = TICK * millis;
            let begun = timers.now();
            let deadline = timers.schedule(1, delay, |_| ()).unwrap().deadline;
            let ended = timers.now();
            let most = if delay >= Duration::from_secs(1) {
                TICK
            } else {
                Duration::ZERO
            };
            assert!(deadline >= begun + delay && deadline <= ended + delay + most);
        }
    }
}

#[test]
fn promise_2_exactly_one_end() {
    let scheduler = Scheduler::<u32>::builder().build_stepped(2).unwrap();
    let timers = scheduler.handle();
    let balanced = |pending: u64| {
        let stats = timers.stats();
        assert!(stats.balances() && stats.pending == pending, "{stats:?}");
        stats
    };
    for key in 0..10 {
        timers.schedule(key, TICK * (key + 1), |_| ()).unwrap();
    }
    balanced(10);
    timers.schedule(9, HOUR, |_| ()).unwrap();
    balanced(10);
    assert!(timers.cancel(&0).is_cancelled());
    balanced(9);
    assert_eq!(scheduler.advance(TICK * 5).len(), 4);
    balanced(5);
    let report = scheduler.shutdown(Shutdown::HandBack);
    assert_eq!(report.handed_back.len(), 5);
    let stats = balanced(0);
    assert_eq!(stats.scheduled, 11);
    assert_eq!((stats.ran, stats.cancelled), (4, 1));
    assert_eq!((stats.replaced, stats.handed_back), (1, 5));
}

/// One worker, which is in a task until the sender is used or dropped.
fn with_a_busy_worker() -> (
    Scheduler<u32>,
    Handle<u32>,
    ManualClock,
    std::sync::mpsc::SyncSender<()>,
) {
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u32>::builder()
        .clock(Clock::manual(&hand))
        .workers(1)
        .max_running(1)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let (release, released) = sync_channel::<()>(1);
    let (tell, told) = channel();
    let released = Mutex::new(released);
    timers
        .schedule(0, Duration::ZERO, move |_| {
            tell.send(()).unwrap();
            let _ = released.lock().unwrap().recv();
        })
        .unwrap();
    next(&told);
    (scheduler, timers, hand, release)
}

#[test]
fn promise_3_the_answer_is_the_truth() {
    let (scheduler, timers, hand, release) = with_a_busy_worker();
    let ran = Arc::new(AtomicUsize::new(0));
    for key in [1, 2] {
        let ran = Arc::clone(&ran);
        timers
            .schedule(key, TICK, move |_| {
                ran.fetch_add(1, Ordering::SeqCst);
            })
            .unwrap();
    }
    hand.advance(TICK);
    // Both are due and wait for the worker.
    let queued = |key| {
        timers
            .get(&key)
            .is_some_and(|info| info.state == TimerState::Queued)
    };
    until("both are queued", || queued(1) && queued(2));
    let deadline = Time::ZERO + TICK;
    let running = false;
    assert_eq!(timers.cancel(&1), Cancel::Cancelled { deadline, running });
    let before = deadline;
    assert_eq!(timers.reschedule(&2, HOUR), Reschedule::Moved { before });
    release.send(()).unwrap();
    until("the worker is free", || timers.stats().running == 0);
    // Whatever was handed over before finds nothing.
    let (tell, told) = channel();
    timers
        .schedule(3, Duration::ZERO, move |_| tell.send(()).unwrap())
        .unwrap();
    next(&told);
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    hand.advance(HOUR);
    until("the moved one ran", || ran.load(Ordering::SeqCst) == 1);
    drop(scheduler);
}

#[test]
fn promise_4_one_key_one_run() {
    const ROUNDS: usize = 2_000;
    fn again(firing: &Firing<'_, u32>, inside: &Arc<AtomicBool>, left: &Arc<AtomicUsize>) {
        assert!(!inside.swap(true, Ordering::SeqCst), "two runs at once");
        if left.fetch_sub(1, Ordering::SeqCst) > 1 {
            let (inside, left) = (Arc::clone(inside), Arc::clone(left));
            let task = move |firing: &Firing<'_, u32>| again(firing, &inside, &left);
            let kept = firing
                .handle()
                .schedule(*firing.key(), Duration::ZERO, task);
            assert!(kept.unwrap().after_run);
        }
        std::thread::yield_now();
        inside.store(false, Ordering::SeqCst);
    }
    for clock in kit::clocks::real() {
        let builder = Scheduler::<u32>::builder().workers(4).clock(clock);
        let scheduler = builder.build().unwrap();
        let timers = scheduler.handle();
        let inside = Arc::new(AtomicBool::new(false));
        let left = Arc::new(AtomicUsize::new(ROUNDS));
        let (in_task, left_in_task) = (Arc::clone(&inside), Arc::clone(&left));
        timers
            .schedule(7, Duration::ZERO, move |firing| {
                again(firing, &in_task, &left_in_task);
            })
            .unwrap();
        until("all rounds ran", || {
            timers.stats().ran as usize == ROUNDS && timers.stats().running == 0
        });
        assert_eq!(timers.stats().panicked, 0);
    }
}

#[test]
fn promise_5_tasks_never_hold_up_ticks() {
    for clock in kit::clocks::real() {
        let builder = Scheduler::<u32>::builder().workers(2).clock(clock);
        let scheduler = builder.build().unwrap();
        let timers = scheduler.handle();
        let (release, released) = channel::<()>();
        let released = Arc::new(Mutex::new(released));
        // More than there are workers, and they wait for what comes after them.
        for key in 0..5 {
            let released = Arc::clone(&released);
            timers
                .schedule(key, TICK, move |_| {
                    let _ = released.lock().unwrap().recv();
                })
                .unwrap();
        }
        let (tell, told) = channel();
        for key in 100..1_100 {
            let tell = tell.clone();
            timers
                .schedule(key, TICK * 2, move |_| tell.send(()).unwrap())
                .unwrap();
        }
        for _ in 0..1_000 {
            next(&told);
        }
        assert!(timers.stats().workers > 2, "the pool has grown");
        drop(release);
        let report = scheduler.shutdown(Shutdown::RunNow).wait().unwrap();
        assert_eq!((report.handed_back.len(), report.still_running), (0, 0));
    }
}

#[test]
fn promise_7_flat_memory() {
    let scheduler = Scheduler::<u32>::builder().build_stepped(7).unwrap();
    let timers = scheduler.handle();
    let payload = Arc::new(());
    let held = Arc::clone(&payload);
    timers.schedule(1, HOUR, move |_| drop(held)).unwrap();
    for round in 0..1_000 {
        assert!(matches!(
            timers.reschedule(&1, HOUR + TICK * round),
            Reschedule::Moved { .. }
        ));
        scheduler.advance(TICK);
    }
    assert_eq!((timers.len(), timers.pending().count()), (1, 1));
    assert_eq!(Arc::strong_count(&payload), 2);
    // Replacing frees what was there, cancelling frees at once.
    let held = Arc::clone(&payload);
    timers.schedule(1, HOUR, move |_| drop(held)).unwrap();
    assert_eq!(Arc::strong_count(&payload), 2);
    assert!(timers.cancel(&1).is_cancelled());
    assert_eq!((Arc::strong_count(&payload), timers.len()), (1, 0));
}

#[test]
fn promise_7_queues_of_expired_work_are_bounded() {
    // Of all that is due, so much is on its way to workers per ticker; the rest waits in the wheel.
    const BOUND: u64 = 65_536;
    const TIMERS: u32 = 150_000;
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u32>::builder()
        .clock(Clock::manual(&hand))
        .shards(1)
        // One lock: the number of queued ones is read at one moment, also while they run.
        .stripes(1)
        .workers(1)
        .max_running(1)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let (started, starts) = channel();
    let (release, released) = channel::<()>();
    timers
        .schedule(u32::MAX, Duration::ZERO, move |_| {
            started.send(()).unwrap();
            let _ = released.recv();
        })
        .unwrap();
    next(&starts);
    for key in 0..TIMERS {
        timers.schedule(key, TICK, |_| ()).unwrap();
    }
    hand.advance(TICK);
    until("the queue is full", || timers.stats().queued == BOUND);
    for _ in 0..50 {
        hand.advance(TICK);
        std::thread::yield_now();
        assert_eq!(timers.stats().queued, BOUND);
    }
    // What could not be queued is cancelled and moved like anything that is pending.
    let waits = |key: &u32| timers.get(key).unwrap().state == TimerState::Pending;
    let cancelled = (0..TIMERS).rev().find(waits).unwrap();
    assert!(timers.cancel(&cancelled).is_cancelled());
    drop(release);
    until("all ran", || {
        let stats = timers.stats();
        assert!(stats.queued <= BOUND);
        stats.pending == 0 && stats.running == 0
    });
    let stats = timers.stats();
    assert_eq!((stats.ran, stats.cancelled), (u64::from(TIMERS), 1));
}

#[test]
fn promise_8_refusals_are_values() {
    let scheduler = Scheduler::<u32>::builder()
        .max_pending(3)
        .build_stepped(8)
        .unwrap();
    let timers = scheduler.handle();
    scheduler.advance(HOUR);
    timers.schedule(1, Duration::ZERO, |_| ()).unwrap();
    timers.schedule(2, Time::ZERO, |_| ()).unwrap();
    timers.schedule(3, Duration::MAX, |_| ()).unwrap();
    let witness = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&witness);
    let refused = timers.schedule(4, TICK, move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let Err(ScheduleError::Full(task)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(scheduler.settle().len(), 2);
    // The very task that was refused is accepted once there is room.
    timers.schedule(4, TICK, task).unwrap();
    scheduler.advance(TICK);
    assert_eq!(witness.load(Ordering::SeqCst), 1);
    assert!(timers.cancel(&3).is_cancelled(), "never is far, not lost");
    scheduler.shutdown(Shutdown::HandBack);
    let closed = timers.schedule(5, TICK, |_| ());
    assert!(matches!(closed, Err(ScheduleError::Closed(_))));
}
