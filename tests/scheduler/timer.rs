//! The keyless face through its public API, on the manual clock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tourbillon::{
    BuildError, Cancel, Clock, Lifecycle, ManualClock, Reschedule, ScheduleError, Shutdown, Time,
    Timer,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn timer_on(hand: &ManualClock) -> Timer {
    Timer::builder()
        .clock(Clock::manual(hand))
        .build()
        .expect("a timer")
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_timeout_runs_once_its_deadline_has_come_and_says_so() {
    let hand = ManualClock::new();
    let timer = timer_on(&hand);
    let (send, receive) = mpsc::channel();
    let at = hand.clone();
    let timeout = timer
        .after(SECOND, move || send.send(at.now()).unwrap())
        .unwrap();
    assert!(!timeout.is_expired() && !timeout.is_cancelled());
    assert_eq!(timeout.remaining(), Some(SECOND));
    hand.advance(SECOND / 4);
    assert_eq!(timeout.remaining(), Some(SECOND * 3 / 4));
    hand.advance(SECOND);
    let ran_at = receive.recv_timeout(PATIENCE).expect("it runs");
    assert!(ran_at >= Time::ZERO + SECOND);
    assert!(timeout.is_expired() && !timeout.is_cancelled());
    assert_eq!(timeout.remaining(), None);
    let _ = timer.shutdown(Shutdown::HandBack).wait().unwrap();
    assert_eq!(timeout.cancel(), Cancel::NotFound);
    assert_eq!(timeout.reschedule(SECOND), Reschedule::NotFound);
    assert!(timeout.is_expired(), "its end is not forgotten");
}

#[test]
fn a_cancelled_timeout_never_runs_also_when_its_place_is_used_again() {
    let hand = ManualClock::new();
    let timer = timer_on(&hand);
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let timeout = timer
        .after(SECOND, move || {
            count.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    let deadline = Time::ZERO + SECOND;
    let expected = Cancel::Cancelled {
        deadline,
        running: false,
    };
    assert_eq!(timeout.cancel(), expected);
    assert_eq!(Arc::strong_count(&ran), 1, "the task is dropped at once");
    assert_eq!(timeout.cancel(), Cancel::NotFound);
    let (send, receive) = mpsc::channel();
    let next = timer
        .after(SECOND * 2, move || send.send(()).unwrap())
        .unwrap();
    assert!(timeout.is_cancelled() && !timeout.is_expired());
    assert_eq!(timeout.reschedule(SECOND), Reschedule::NotFound);
    hand.advance(SECOND * 3);
    receive.recv_timeout(PATIENCE).expect("the next one runs");
    assert!(next.is_expired());
    assert_eq!(ran.load(Ordering::Relaxed), 0);
    assert!(timer.stats().balances());
}

#[test]
fn a_moved_timeout_runs_at_the_new_time_only() {
    let hand = ManualClock::new();
    let timer = timer_on(&hand);
    let (send, receive) = mpsc::channel();
    let at = hand.clone();
    let moved = timer
        .after(SECOND, move || send.send(at.now()).unwrap())
        .unwrap();
    let before = Time::ZERO + SECOND;
    assert_eq!(moved.reschedule(SECOND * 5), Reschedule::Moved { before });
    let (send, passed) = mpsc::channel();
    let _ = timer
        .after(SECOND * 2, move || send.send(()).unwrap())
        .unwrap();
    hand.advance(SECOND * 2);
    passed.recv_timeout(PATIENCE).expect("the witness runs");
    assert!(receive.try_recv().is_err() && !moved.is_expired());
    hand.advance(SECOND * 3);
    assert_eq!(
        receive.recv_timeout(PATIENCE).unwrap(),
        Time::ZERO + SECOND * 5
    );
}

#[test]
fn a_running_timeout_counts_as_expired_and_cannot_be_stopped() {
    let timer = Timer::new().unwrap();
    let (started, start) = mpsc::channel();
    let (finish, finished) = mpsc::channel::<()>();
    let finished = Mutex::new(finished);
    let timeout = timer
        .after(Duration::ZERO, move || {
            started.send(()).unwrap();
            finished.lock().unwrap().recv().unwrap();
        })
        .unwrap();
    start.recv_timeout(PATIENCE).expect("zero delay runs");
    assert!(timeout.is_expired() && !timeout.is_cancelled());
    assert_eq!(timeout.remaining(), None);
    assert_eq!(timeout.cancel(), Cancel::Running);
    assert_eq!(timeout.reschedule(SECOND), Reschedule::Running);
    finish.send(()).unwrap();
    let report = timer.shutdown(Shutdown::HandBack).wait().unwrap();
    assert_eq!(report.still_running, 0);
}

#[test]
fn shutdown_hands_back_and_marks_as_cancelled() {
    let hand = ManualClock::new();
    let timer = timer_on(&hand);
    let ran = Arc::new(AtomicUsize::new(0));
    let timeouts: Vec<_> = (1..=5)
        .map(|seconds| {
            let count = Arc::clone(&ran);
            timer
                .after(SECOND * seconds, move || {
                    count.fetch_add(1, Ordering::Relaxed);
                })
                .unwrap()
        })
        .collect();
    let report = timer.shutdown(Shutdown::HandBack).wait().unwrap();
    assert_eq!(timer.state(), Lifecycle::Closed);
    assert_eq!(report.handed_back.len(), 5);
    assert!(timeouts.iter().all(|timeout| timeout.is_cancelled()));
    let mut deadlines: Vec<_> = report
        .handed_back
        .iter()
        .map(|back| back.deadline)
        .collect();
    deadlines.sort();
    assert_eq!(deadlines[4], Time::ZERO + SECOND * 5);
    for back in report.handed_back {
        (back.task)();
    }
    assert_eq!(ran.load(Ordering::Relaxed), 5, "the very tasks come back");
    assert!(
        timer
            .shutdown(Shutdown::HandBack)
            .wait()
            .unwrap()
            .already_closed
    );
    let refused = timer.after(SECOND, || ()).unwrap_err();
    assert!(matches!(refused, ScheduleError::Closed(_)));
    assert_eq!(timer.stats().handed_back, 5);
    assert!(timer.stats().balances());
}

#[test]
fn dropping_the_timer_drops_its_tasks_and_marks_them_as_cancelled() {
    let hand = ManualClock::new();
    let timer = timer_on(&hand);
    let payload = Arc::new(());
    let held = Arc::clone(&payload);
    let timeout = timer.after(SECOND, move || drop(held)).unwrap();
    drop(timer);
    assert_eq!(Arc::strong_count(&payload), 1);
    assert!(timeout.is_cancelled() && !timeout.is_expired());
    assert_eq!(timeout.remaining(), None);
}

#[test]
fn a_full_timer_refuses_and_returns_the_task() {
    let hand = ManualClock::new();
    let timer = Timer::builder()
        .clock(Clock::manual(&hand))
        .max_pending(2)
        .build()
        .unwrap();
    let first = timer.after(SECOND, || ()).unwrap();
    let _second = timer.after(SECOND, || ()).unwrap();
    let payload = Arc::new(7);
    let refused = timer.after(SECOND, {
        let payload = Arc::clone(&payload);
        move || assert_eq!(*payload, 7)
    });
    let Err(ScheduleError::Full(task)) = refused else {
        panic!("the third is refused");
    };
    task();
    assert_eq!(Arc::strong_count(&payload), 1);
    assert!(first.cancel().is_cancelled());
    assert!(timer.after(SECOND, || ()).is_ok(), "a place is free again");
}

#[test]
fn bad_options_are_named() {
    let error = Timer::builder().workers(0).build().unwrap_err();
    assert!(matches!(error, BuildError::Workers(0)));
}
