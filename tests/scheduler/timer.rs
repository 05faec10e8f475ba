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

// === many timers ===

#[test]
fn many_timeouts_are_answered_in_the_callers_order() {
    let hand = ManualClock::new();
    let (timer, other) = (timer_on(&hand), timer_on(&hand));
    let ran = Arc::new(AtomicUsize::new(0));
    let arm = |timer: &Timer, number: u32| {
        let count = Arc::clone(&ran);
        // Each has a deadline of its own, so that an answer tells which timer it is about.
        let delay = SECOND + Duration::from_nanos(u64::from(number));
        let task = move || {
            count.fetch_add(1, Ordering::Relaxed);
        };
        timer.after(delay, task).unwrap()
    };
    // More than one stripe takes in a row, and the last one belongs to another timer.
    let mut handles: Vec<_> = (0..1_000).map(|number| arm(&timer, number)).collect();
    for handle in handles.iter().step_by(3) {
        assert!(handle.cancel().is_cancelled());
    }
    handles.push(arm(&other, 1_000));
    let order: Vec<usize> = (0..1_001).map(|number| number * 8 % 1_001).collect();
    let in_order = || order.iter().map(|number| &handles[*number]);

    let answers = timer.reschedule_many(in_order(), 2 * SECOND);
    assert_eq!(answers.len(), 1_001);
    for (number, answer) in order.iter().zip(answers) {
        let before = Time::ZERO + SECOND + Duration::from_nanos(*number as u64);
        let expected = match number {
            1_000 => Reschedule::NotFound,
            number if number % 3 == 0 => Reschedule::NotFound,
            _ => Reschedule::Moved { before },
        };
        assert_eq!(answer, expected, "{number}");
    }
    let deadline = Time::ZERO + 2 * SECOND;
    let running = false;
    for (number, answer) in order.iter().zip(timer.cancel_many(in_order())) {
        let expected = match number {
            1_000 => Cancel::NotFound,
            number if number % 3 == 0 => Cancel::NotFound,
            _ => Cancel::Cancelled { deadline, running },
        };
        assert_eq!(answer, expected, "{number}");
    }
    assert!(handles[..1_000].iter().all(|handle| handle.is_cancelled()));
    assert!(!handles[1_000].is_cancelled());
    assert!(other.cancel_many([&handles[1_000]; 2])[0].is_cancelled());
    assert!(timer.cancel_many([]).is_empty());
    assert!(timer.reschedule_many([], Duration::ZERO).is_empty());
    assert_eq!(Arc::strong_count(&ran), 1, "all tasks are dropped");
    let stats = timer.stats();
    assert_eq!((stats.cancelled, stats.pending), (1_000, 0));
}

#[test]
fn many_timeouts_that_are_moved_to_now_run_once_each() {
    let timer = Timer::new().unwrap();
    let (send, receive) = mpsc::channel();
    let arm = |number: u32| {
        let send = send.clone();
        let task = move || send.send(number).unwrap();
        timer.after(Duration::from_secs(3_600), task).unwrap()
    };
    let handles: Vec<_> = (0..300).map(arm).collect();
    timer.reschedule_many(&handles, Duration::ZERO);
    let ran = (0..300).map(|_| receive.recv_timeout(PATIENCE).expect("it runs"));
    let mut ran: Vec<_> = ran.collect();
    ran.sort_unstable();
    assert_eq!(ran, (0..300).collect::<Vec<_>>());
    let _ = timer.shutdown(Shutdown::HandBack).wait().unwrap();
    let ends = timer.cancel_many(&handles);
    assert!(ends.iter().all(|answer| *answer == Cancel::NotFound));
    assert!(handles.iter().all(|handle| handle.is_expired()));
    assert_eq!(timer.stats().ran, 300);
}
