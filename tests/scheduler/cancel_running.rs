//! Cancelling what runs: rows `c084` to `c089` of `docs/conformance.md`. Most of it on real
//! threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use kit::drops::Drops;
use kit::steps::{SEEDS, T, for_each_seed, narrow, runs, stepped};
use kit::wait;
use tourbillon::{
    Cancel, Clock, Handle, ManualClock, ScheduleError, Scheduler, TimerState, WaitError,
};

/// Threads, and a clock that stands still.
fn threaded() -> (Scheduler<u64>, ManualClock) {
    let clock = ManualClock::new();
    let builder = Scheduler::<u64>::builder().clock(Clock::manual(&clock));
    (builder.workers(2).build().unwrap(), clock)
}

/// A run of a key that lasts until it is released.
struct Blocked {
    release: mpsc::Sender<()>,
    ended: Arc<AtomicBool>,
}

impl Blocked {
    /// Returns when the task runs.
    fn start(timers: &Handle<u64>, key: u64) -> Self {
        let (release, released) = mpsc::channel();
        let (send, started) = mpsc::channel();
        let ended = Arc::new(AtomicBool::new(false));
        let at_end = Arc::clone(&ended);
        timers
            .schedule(key, Duration::ZERO, move |_| {
                send.send(()).unwrap();
                wait::next(&released);
                at_end.store(true, Ordering::SeqCst);
            })
            .unwrap();
        wait::next(&started);
        Blocked { release, ended }
    }

    fn release(&self) {
        assert!(!self.ended.load(Ordering::SeqCst));
        self.release.send(()).unwrap();
    }
}

/// Whether arming is refused since somebody waits; otherwise what was armed is taken back, unless
/// the one who is about to wait has cancelled it already.
fn is_closing(timers: &Handle<u64>, key: u64) -> bool {
    match timers.schedule(key, Duration::MAX, |_| ()) {
        Ok(armed) => {
            timers.by_id(armed.id).cancel();
            false
        }
        Err(refused) => {
            assert!(matches!(refused, ScheduleError::Closing(_)));
            assert!(refused.is_transient());
            true
        }
    }
}

/// There was a run to wait for, and perhaps what `is_closing` had just armed.
fn met_a_run(answer: Cancel) -> bool {
    matches!(
        answer,
        Cancel::Running | Cancel::Cancelled { running: true, .. }
    )
}

#[test]
fn c084_the_answer_is_known_before_the_wait() {
    let (scheduler, _clock) = threaded();
    let timers = scheduler.handle();
    assert_eq!(timers.cancel_and_wait(&1).answer(), Cancel::NotFound);
    let deadline = timers.schedule(1, T, |_| ()).unwrap().deadline;
    let cancelled = |running| Cancel::Cancelled { deadline, running };
    assert_eq!(timers.cancel_and_wait(&1).answer(), cancelled(false));
    let blocked = Blocked::start(&timers, 1);
    timers.schedule(1, deadline, |_| ()).unwrap();
    assert_eq!(timers.cancel_and_wait(&1).answer(), cancelled(true));
    let ending = timers.cancel_and_wait(&1);
    assert_eq!(ending.answer(), Cancel::Running);
    blocked.release();
    assert_eq!(ending.wait(), Ok(Cancel::Running));
}

#[test]
fn c084_cancel_and_wait_returns_after_the_run_has_ended() {
    let (_scheduler, _clock) = threaded();
    let timers = _scheduler.handle();
    let blocked = Blocked::start(&timers, 1);
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let answer = timers.cancel_and_wait(&1).wait();
                    // The run's last deed has been done, and the key is nowhere.
                    assert!(blocked.ended.load(Ordering::SeqCst));
                    assert!(!timers.contains(&1));
                    answer
                })
            })
            .collect();
        // c086: shut as long as somebody waits, for every way to arm it. Other keys are not.
        wait::until("a waiter", || is_closing(&timers, 1));
        assert!(matches!(
            timers.schedule_if_absent(1, T, |_| ()),
            Err(ScheduleError::Closing(_))
        ));
        assert!(!is_closing(&timers, 2));
        blocked.release();
        for waiter in waiters {
            // One that came late finds nothing.
            let answer = waiter.join().unwrap().unwrap();
            assert!(met_a_run(answer) || answer == Cancel::NotFound);
        }
    });
    assert!(!timers.contains(&1));
    assert!(!is_closing(&timers, 1), "open again");
    assert!(timers.stats().balances());
}

#[test]
fn c084_cancel_and_wait_cancels_what_is_kept_for_after_the_run() {
    let (scheduler, _clock) = threaded();
    let timers = scheduler.handle();
    let blocked = Blocked::start(&timers, 1);
    let drops = Drops::default();
    let mark = drops.mark();
    let kept = timers.schedule(1, T, move |_| drop(mark)).unwrap();
    assert!(kept.after_run);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| timers.cancel_and_wait(&1).wait());
        wait::until("the cancellation", || drops.count() == 1);
        wait::until("a waiter", || is_closing(&timers, 1));
        blocked.release();
        let expected = Cancel::Cancelled {
            deadline: kept.deadline,
            running: true,
        };
        assert_eq!(waiter.join().unwrap(), Ok(expected));
    });
    assert!(timers.is_empty() && !timers.contains(&1));
    assert_eq!(timers.stats().ran, 1);
}

#[test]
fn c084_what_is_pending_needs_no_wait() {
    let (scheduler, _clock) = threaded();
    let timers = scheduler.handle();
    let armed = timers.schedule(1, T, |_| ()).unwrap();
    let expected = Cancel::Cancelled {
        deadline: armed.deadline,
        running: false,
    };
    assert_eq!(timers.cancel_and_wait(&1).wait(), Ok(expected));
    assert_eq!(timers.cancel_and_wait(&1).wait(), Ok(Cancel::NotFound));
}

#[test]
fn c084_a_limit_ends_the_wait_and_opens_the_key() {
    let (scheduler, clock) = threaded();
    let timers = scheduler.handle();
    let blocked = Blocked::start(&timers, 1);
    std::thread::scope(|scope| {
        // The limit counts from here, and not from when the thread gets to run.
        let limited = timers.cancel_and_wait(&1).within(5 * T);
        let waiter = scope.spawn(|| limited.wait());
        clock.advance(4 * T);
        assert!(is_closing(&timers, 1), "the limit has not passed");
        clock.advance(T);
        assert_eq!(waiter.join().unwrap(), Err(WaitError::TimedOut));
        // The run goes on, and the key can be armed.
        assert!(!blocked.ended.load(Ordering::SeqCst));
        assert!(!is_closing(&timers, 1));
        assert!(timers.contains(&1));
        // With a limit that is never reached it is like one without.
        let waiter = scope.spawn(|| timers.cancel_and_wait(&1).within(Duration::MAX).wait());
        wait::until("a waiter", || is_closing(&timers, 1));
        blocked.release();
        assert!(waiter.join().unwrap().is_ok_and(met_a_run));
    });
    assert!(blocked.ended.load(Ordering::SeqCst));
}

#[test]
fn c085_waiting_for_oneself_is_refused() {
    for seed in SEEDS {
        let scheduler = narrow(seed);
        let timers = scheduler.handle();
        timers.schedule(2, T, |_| ()).unwrap();
        timers
            .schedule(1, T, |firing| {
                let timers = firing.handle();
                timers.schedule(1, T, |_| panic!("cancelled")).unwrap();
                assert!(!firing.is_cancelled());
                assert_eq!(
                    timers.cancel_and_wait(&1).wait(),
                    Err(WaitError::WouldDeadlock)
                );
                // The cancellation itself was done all the same.
                assert!(firing.is_cancelled());
                let alone = TimerState::Running { next: None };
                assert_eq!(timers.get(&1).unwrap().state, alone);
                // Nobody waits, so arming is free.
                timers.schedule(1, 3 * T, |_| ()).unwrap();
                // What does not run can be waited for: there is nothing to wait for.
                if let Some(info) = timers.get(&2) {
                    let cancelled = Cancel::Cancelled {
                        deadline: info.deadline,
                        running: false,
                    };
                    assert_eq!(timers.cancel_and_wait(&2).wait(), Ok(cancelled));
                }
                assert_eq!(timers.cancel_and_wait(&3).wait(), Ok(Cancel::NotFound));
            })
            .unwrap();
        let ran = runs(&scheduler, 100 * T);
        assert_eq!(ran.last(), Some(&(4, 1)));
        assert_eq!(timers.stats().panicked, 0);
    }
}

#[test]
fn c085_waiting_for_another_run_from_inside_a_task_needs_a_limit() {
    let scheduler = Scheduler::<u64>::builder().workers(2).build().unwrap();
    let timers = scheduler.handle();
    let blocked = Blocked::start(&timers, 1);
    let (send, answers) = mpsc::channel();
    timers
        .schedule(2, Duration::ZERO, move |firing| {
            let timers = firing.handle();
            send.send(timers.cancel_and_wait(&1).wait()).unwrap();
            send.send(timers.cancel_and_wait(&1).within(T).wait())
                .unwrap();
            send.send(timers.cancel_and_wait(&2).within(T).wait())
                .unwrap();
            send.send(timers.cancel_and_wait(&1).within(Duration::MAX).wait())
                .unwrap();
        })
        .unwrap();
    assert_eq!(wait::next(&answers), Err(WaitError::WouldDeadlock));
    assert_eq!(wait::next(&answers), Err(WaitError::TimedOut));
    assert_eq!(wait::next(&answers), Err(WaitError::TimedOut));
    // The wait without an end, not one of those before it: their answers are here.
    wait::until("a waiter", || is_closing(&timers, 1));
    blocked.release();
    assert!(wait::next(&answers).is_ok_and(met_a_run));
}

#[test]
fn c085_another_schedulers_task_may_wait() {
    let (scheduler, _clock) = threaded();
    let timers = scheduler.handle();
    let blocked = Blocked::start(&timers, 1);
    let (other, _other_clock) = threaded();
    let (send, answers) = mpsc::channel();
    let waits = timers.clone();
    other
        .handle()
        .schedule(1, Duration::ZERO, move |_| {
            send.send(waits.cancel_and_wait(&1).wait()).unwrap();
        })
        .unwrap();
    wait::until("a waiter", || is_closing(&timers, 1));
    blocked.release();
    assert!(wait::next(&answers).is_ok_and(met_a_run));
}

/// A terminal cancel, against a task that arms itself again and again.
#[test]
fn c086_a_task_can_not_arm_a_key_that_is_being_shut() {
    let (scheduler, _clock) = threaded();
    let timers = scheduler.handle();
    let drops = Drops::default();
    let mark = drops.mark();
    let (send, started) = mpsc::channel();
    timers
        .schedule(1, Duration::ZERO, move |firing| {
            let _mark = mark;
            let timers = firing.handle();
            send.send(()).unwrap();
            let mut task: Box<dyn FnOnce() + Send> = Box::new(|| panic!("never accepted"));
            wait::until("the refusal", || {
                let given = std::mem::replace(&mut task, Box::new(|| ()));
                let run = timers.schedule(1, Duration::MAX, move |_| given());
                matches!(run, Err(ScheduleError::Closing(_)))
            });
        })
        .unwrap();
    wait::next(&started);
    let answer = timers.cancel_and_wait(&1).wait().unwrap();
    // Whether or not something was kept at that moment: nothing is left, and nothing came later.
    assert!(met_a_run(answer));
    assert_eq!(drops.count(), 1);
    assert!(!timers.contains(&1) && timers.is_empty());
    let stats = timers.stats();
    assert_eq!((stats.ran, stats.panicked), (1, 0));
    assert!(stats.balances());
}

/// Arms itself again at every run.
fn beat(timers: &Handle<u64>, beats: Arc<AtomicU64>) {
    let armed = timers.schedule(1, 10 * T, move |firing| {
        beats.fetch_add(1, Ordering::SeqCst);
        beat(firing.handle(), beats);
    });
    armed.unwrap();
}

#[test]
fn c087_cancelled_during_its_run_a_beating_key_stops() {
    for_each_seed(|scheduler, timers| {
        let beats = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&beats);
        timers
            .schedule(1, 10 * T, move |firing| {
                // Armed again, and then cancelled while it is out of the wheel.
                beat(firing.handle(), counted);
                assert!(firing.handle().cancel(&1).is_cancelled());
                assert!(firing.is_cancelled());
            })
            .unwrap();
        assert_eq!(runs(scheduler, 1_000 * T), [(10, 1)]);
        assert_eq!(beats.load(Ordering::SeqCst), 0);
        assert!(timers.is_empty());
    });
}

#[test]
fn c088_cancelled_between_its_runs_a_beating_key_stops() {
    for seed in SEEDS {
        for runs_before in [0, 1, 2, 7] {
            let scheduler = stepped(seed);
            let timers = scheduler.handle();
            let beats = Arc::new(AtomicU64::new(0));
            beat(&timers, Arc::clone(&beats));
            scheduler.advance((10 * runs_before + 5) * T);
            assert!(timers.cancel(&1).is_cancelled());
            assert_eq!(runs(&scheduler, 1_000 * T), []);
            assert_eq!(beats.load(Ordering::SeqCst), u64::from(runs_before));
            assert!(timers.is_empty());
            // The closure and what it shares are gone.
            assert_eq!(Arc::strong_count(&beats), 1);
        }
    }
}

#[test]
fn c089_a_run_sees_that_it_was_cancelled() {
    let (scheduler, _clock) = threaded();
    let timers = scheduler.handle();
    for by_id in [false, true] {
        let (send, events) = mpsc::channel();
        let armed = timers
            .schedule(1, Duration::ZERO, move |firing| {
                send.send(firing.is_cancelled()).unwrap();
                wait::until("the cancellation", || firing.is_cancelled());
                send.send(firing.is_cancelled()).unwrap();
            })
            .unwrap();
        assert!(!wait::next(&events));
        let answer = if by_id {
            timers.by_id(armed.id).cancel()
        } else {
            timers.cancel(&1)
        };
        assert_eq!(answer, Cancel::Running);
        assert!(wait::next(&events));
        wait::until("its end", || !timers.contains(&1));
        assert_eq!(timers.cancel(&1), Cancel::NotFound);
    }
    assert_eq!(
        timers.stats().cancelled,
        0,
        "what has started counts as ran"
    );
}

#[test]
fn c089_only_the_run_that_was_cancelled_sees_it() {
    for seed in SEEDS {
        let scheduler = narrow(seed);
        let timers = scheduler.handle();
        timers
            .schedule(1, T, |firing| {
                let timers = firing.handle();
                assert!(!firing.is_cancelled());
                timers.cancel(&2);
                assert!(!firing.is_cancelled(), "another key");
                timers.cancel(&1);
                assert!(firing.is_cancelled());
                timers
                    .schedule(1, T, |firing| assert!(!firing.is_cancelled()))
                    .unwrap();
                assert!(firing.is_cancelled(), "for good");
            })
            .unwrap();
        timers
            .schedule(2, 3 * T, |firing| assert!(!firing.is_cancelled()))
            .unwrap();
        // A cancel that came before the run does not count for a later arming, either.
        timers.schedule(3, T, |_| ()).unwrap();
        assert!(timers.cancel(&3).is_cancelled());
        timers
            .schedule(3, T, |firing| assert!(!firing.is_cancelled()))
            .unwrap();
        runs(&scheduler, 100 * T);
        assert_eq!(timers.stats().panicked, 0);
    }
}
