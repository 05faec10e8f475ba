//! Awaits with a limit: `cancel_and_wait(..).within(..)`.

use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use kit::runtimes::on_all;
use kit::wait::{self, until};
use kit::wakes::{Wakes, poll};
use tourbillon::{Cancel, Clock, Handle, ManualClock, ScheduleError, Scheduler, WaitError};

const SECOND: Duration = Duration::from_secs(1);

fn scheduler() -> (ManualClock, Scheduler<u32>) {
    let hand = ManualClock::new();
    let scheduler = Scheduler::builder()
        .shards(2)
        .workers(1)
        .clock(Clock::manual(&hand))
        .build()
        .unwrap();
    (hand, scheduler)
}

/// A run of key 7 that lasts until the sender is dropped.
fn running(timers: &Handle<u32>) -> mpsc::Sender<()> {
    let (hold, held) = mpsc::channel::<()>();
    let (send, began) = mpsc::channel();
    timers
        .schedule(7, Duration::ZERO, move |_| {
            send.send(()).unwrap();
            let _ = held.recv();
        })
        .unwrap();
    wait::next(&began);
    hold
}

fn is_closing(timers: &Handle<u32>) -> bool {
    match timers.schedule(7, Duration::MAX, |_| ()) {
        Ok(armed) => !timers.by_id(armed.id).cancel().is_cancelled(),
        Err(refused) => matches!(refused, ScheduleError::Closing(_)),
    }
}

#[test]
fn a_limit_ends_an_await_and_opens_the_key() {
    let (hand, scheduler) = scheduler();
    let timers = scheduler.handle();
    let hold = running(&timers);
    let wakes = Wakes::new();
    // The earlier limit is the later one to begin, so the ticker has to be told of it.
    let mut long = timers.cancel_and_wait(&7).within(9 * SECOND);
    assert!(poll(&mut long, &wakes).is_pending());
    let mut short = timers.cancel_and_wait(&7).within(5 * SECOND);
    assert!(poll(&mut short, &wakes).is_pending());
    hand.advance(5 * SECOND - Duration::from_nanos(1));
    assert!(poll(&mut short, &wakes).is_pending());
    assert_eq!(wakes.count(), 0);
    hand.advance(Duration::from_nanos(1));
    until("the limit", || wakes.count() == 1);
    let timed_out = Poll::Ready(Err(WaitError::TimedOut));
    assert_eq!(poll(&mut short, &wakes), timed_out);
    drop(short);
    assert!(is_closing(&timers), "the other one waits");
    hand.advance(4 * SECOND);
    until("the other limit", || wakes.count() == 2);
    assert_eq!(poll(&mut long, &wakes), timed_out);
    assert!(!is_closing(&timers));
    drop(hold);
}

#[test]
fn the_end_of_the_run_comes_before_the_limit() {
    let (hand, scheduler) = scheduler();
    let timers = scheduler.handle();
    for limit in [SECOND, 1_000_000 * SECOND, Duration::MAX] {
        let hold = running(&timers);
        let wakes = Wakes::new();
        let mut end = timers.cancel_and_wait(&7).within(limit);
        assert!(poll(&mut end, &wakes).is_pending());
        drop(hold);
        until("the end of the run", || wakes.count() == 1);
        assert_eq!(poll(&mut end, &wakes), Poll::Ready(Ok(Cancel::Running)));
        // Its limit is gone with it.
        hand.advance(2 * SECOND);
        assert_eq!(wakes.count(), 1);
    }
}

#[test]
fn the_earliest_limit_holds_and_a_limit_of_zero_asks_once() {
    let (hand, scheduler) = scheduler();
    let timers = scheduler.handle();
    let timed_out = Poll::Ready(Err(WaitError::TimedOut));
    let nothing = timers.cancel_and_wait(&7).within(Duration::ZERO).wait();
    assert_eq!(nothing, Ok(Cancel::NotFound));

    let hold = running(&timers);
    let wakes = Wakes::new();
    let mut end = timers.cancel_and_wait(&7).within(Duration::ZERO);
    assert_eq!(poll(&mut end, &wakes), timed_out);
    let blocking = timers.cancel_and_wait(&7).within(Duration::ZERO).wait();
    assert_eq!(blocking, Err(WaitError::TimedOut));

    let mut end = timers.cancel_and_wait(&7).within(9 * SECOND);
    assert!(poll(&mut end, &wakes).is_pending());
    let mut end = end.within(3 * SECOND).within(5 * SECOND);
    assert!(poll(&mut end, &wakes).is_pending());
    hand.advance(3 * SECOND);
    until("the limit", || wakes.count() == 1);
    assert_eq!(poll(&mut end, &wakes), timed_out);
    // The other limits were taken back: at their time nobody is woken.
    hand.advance(9 * SECOND);
    let mut other = timers.cancel_and_wait(&7).within(SECOND);
    let others = Wakes::new();
    assert!(poll(&mut other, &others).is_pending());
    hand.advance(SECOND);
    until("the ticker has looked", || others.count() == 1);
    assert_eq!(wakes.count(), 1);
    drop(other);

    // A wait that was given up leaves nothing behind.
    let mut end = timers.cancel_and_wait(&7).within(SECOND);
    assert!(poll(&mut end, &wakes).is_pending());
    drop(end);
    assert_eq!(std::sync::Arc::strong_count(&wakes), 1);
    // Polled first, and then waited for by a thread.
    let mut end = timers.cancel_and_wait(&7).within(SECOND);
    assert!(poll(&mut end, &wakes).is_pending());
    let waits = std::thread::spawn(move || end.wait());
    hand.advance(SECOND);
    assert_eq!(waits.join().unwrap(), Err(WaitError::TimedOut));
    drop(hold);
}

#[test]
fn the_end_of_the_scheduler_ends_a_limited_await() {
    let (_hand, scheduler) = scheduler();
    let timers = scheduler.handle();
    let hold = running(&timers);
    let wakes = Wakes::new();
    let mut end = timers.cancel_and_wait(&7).within(SECOND);
    assert!(poll(&mut end, &wakes).is_pending());
    let mut endless = timers.cancel_and_wait(&7);
    assert!(poll(&mut endless, &Wakes::new()).is_pending());
    drop(scheduler);
    until("the end of the scheduler", || wakes.count() == 1);
    let timed_out = Poll::Ready(Err(WaitError::TimedOut));
    assert_eq!(poll(&mut end, &wakes), timed_out);
    let mut late = timers.cancel_and_wait(&7).within(SECOND);
    assert_eq!(poll(&mut late, &wakes), timed_out);
    // The run goes on, and its end is told.
    drop(hold);
    assert_eq!(endless.wait(), Ok(Cancel::Running));
}

#[test]
fn a_limit_holds_on_every_runtime() {
    on_all(|| async {
        let scheduler = Scheduler::<u32>::builder().workers(1).build().unwrap();
        let timers = scheduler.handle();
        let hold = running(&timers);
        let limit = Duration::from_millis(20);
        let before = timers.now();
        let waited = timers.cancel_and_wait(&7).within(limit).await;
        assert_eq!(waited, Err(WaitError::TimedOut));
        assert!(timers.now() >= before + limit);
        drop(hold);
        assert!(timers.cancel_and_wait(&7).within(60 * SECOND).await.is_ok());
    });
}

#[test]
fn virtual_time_reaches_the_limit() {
    let scheduler = Scheduler::<u32>::builder().build_stepped(1).unwrap();
    let timers = scheduler.handle();
    let waits = timers.clone();
    timers
        .schedule(7, SECOND, move |_| {
            // It waits for itself, which only a limit ends.
            let limited = waits.cancel_and_wait(&7).within(SECOND);
            assert_eq!(limited.wait(), Err(WaitError::TimedOut));
        })
        .unwrap();
    assert_eq!(scheduler.advance(2 * SECOND).len(), 1);
    assert_eq!(timers.stats().panicked, 0);
}
