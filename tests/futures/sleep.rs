//! `Timer::sleep` and `timeout`: futures on the timer's wheel.

use std::future::{pending, ready};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use kit::gate::Gate;
use kit::quiet;
use kit::runtimes::{on_all, on_all_in_turn};
use kit::wait;
use kit::wait::until;
use kit::wakes::{Wakes, poll};
use tokio::sync::Notify;
use tourbillon::{
    Cancel, Clock, Lifecycle, ManualClock, Shutdown, SleepError, Stats, Time, TimeoutError, Timer,
    TimerBuilder, TimerHandle,
};

const SECOND: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(20);

fn manual() -> (ManualClock, TimerBuilder) {
    let hand = ManualClock::new();
    let builder = Timer::builder().clock(Clock::manual(&hand));
    (hand, builder)
}

fn timer() -> (ManualClock, Timer) {
    let (hand, builder) = manual();
    (hand, builder.build().unwrap())
}

/// Scheduled, pending, ran, cancelled.
fn counts(stats: &Stats) -> (u64, u64, u64, u64) {
    (stats.scheduled, stats.pending, stats.ran, stats.cancelled)
}

#[test]
fn a_sleep_is_over_at_its_moment_and_not_before_on_every_runtime() {
    on_all(|| async {
        for builder in [Timer::builder(), Timer::builder().inline()] {
            let timer = builder.build().unwrap();
            let start = Instant::now();
            timer.sleep(MOMENT).await.unwrap();
            assert!(start.elapsed() >= MOMENT);
            timer.sleep(Duration::ZERO).await.unwrap();
        }
    });
}

#[test]
fn many_sleeps_on_every_runtime_all_end() {
    on_all_in_turn(|runtime| {
        let timer = Timer::new().unwrap();
        let sleeps: Vec<_> = (0..1_000)
            .map(|number| runtime.spawn(timer.sleep(Duration::from_micros(number * 17))))
            .collect();
        runtime.block_on(async {
            for sleep in sleeps {
                sleep.await.unwrap().unwrap();
            }
        });
        assert_eq!(timer.stats().pending, 0);
    });
}

#[test]
fn the_clock_decides_and_the_task_is_woken_once() {
    let (hand, timer) = timer();
    let wakes = Wakes::new();
    let mut sleep = timer.sleep(SECOND);
    assert_eq!(sleep.deadline(), Time::ZERO + SECOND);
    // Nothing is armed before the first poll.
    assert_eq!(counts(&timer.stats()), (0, 0, 0, 0));
    assert!(poll(&mut sleep, &wakes).is_pending());
    assert_eq!(counts(&timer.stats()), (1, 1, 0, 0));
    hand.set(Time::ZERO + SECOND - Duration::from_nanos(1));
    assert!(poll(&mut sleep, &wakes).is_pending());
    assert!(!sleep.is_elapsed());
    hand.set(Time::ZERO + SECOND);
    until("it wakes", || wakes.count() == 1);
    assert!(sleep.is_elapsed());
    // Also after its end.
    for _ in 0..2 {
        assert_eq!(poll(&mut sleep, &wakes), Poll::Ready(Ok(())));
    }
    assert_eq!(counts(&timer.stats()), (1, 0, 1, 0));
    assert_eq!(wakes.count(), 1);
}

#[test]
fn the_time_runs_from_the_call_on() {
    let (hand, timer) = timer();
    let mut sleep = timer.sleep(SECOND);
    hand.advance(SECOND);
    assert_eq!(poll(&mut sleep, &Wakes::new()), Poll::Ready(Ok(())));
    assert_eq!(timer.stats().scheduled, 0);
    let mut now = timer.sleep(timer.now());
    assert_eq!(poll(&mut now, &Wakes::new()), Poll::Ready(Ok(())));
}

#[test]
fn the_task_of_the_last_poll_is_woken() {
    let (hand, timer) = timer();
    let (first, second) = (Wakes::new(), Wakes::new());
    let mut sleep = timer.sleep(SECOND);
    assert!(poll(&mut sleep, &first).is_pending());
    assert!(poll(&mut sleep, &second).is_pending());
    // The first one's waker is gone.
    assert_eq!(Arc::strong_count(&first), 1);
    hand.advance(SECOND);
    until("it wakes", || second.count() == 1);
    assert_eq!(first.count(), 0);
}

#[test]
fn dropping_a_sleep_cancels_its_timer_and_wakes_nobody() {
    let (hand, timer) = timer();
    let wakes = Wakes::new();
    let mut sleep = timer.sleep(SECOND);
    assert!(poll(&mut sleep, &wakes).is_pending());
    drop(sleep);
    assert_eq!(counts(&timer.stats()), (1, 0, 0, 1));
    assert_eq!((wakes.count(), Arc::strong_count(&wakes)), (0, 1));
    // One that was never polled has nothing to cancel.
    drop(timer.sleep(SECOND));
    assert_eq!(timer.stats().scheduled, 1);
    hand.advance(SECOND * 2);
    timer.shutdown(Shutdown::RunNow).wait().unwrap();
    assert_eq!(wakes.count(), 0);
}

/// A poll that comes between the deadline and the run takes the timer back.
#[test]
fn a_poll_after_the_deadline_is_ready_without_the_worker() {
    let (hand, builder) = manual();
    let timer = builder.workers(1).max_running(1).build().unwrap();
    let (held, hold) = mpsc::channel::<()>();
    let (runs, running) = mpsc::channel();
    let _ = timer
        .after(Duration::ZERO, move || {
            runs.send(()).unwrap();
            let _ = hold.recv();
        })
        .unwrap();
    wait::next(&running);
    let wakes = Wakes::new();
    let mut sleep = timer.sleep(SECOND);
    assert!(poll(&mut sleep, &wakes).is_pending());
    hand.advance(SECOND);
    // The only worker is busy.
    assert_eq!(poll(&mut sleep, &wakes), Poll::Ready(Ok(())));
    drop(held);
    until("it is cancelled", || timer.stats().cancelled == 1);
    assert_eq!(wakes.count(), 0);
}

#[test]
fn a_full_timer_refuses_the_sleep_at_its_first_poll() {
    let (_hand, builder) = manual();
    let timer = builder.max_pending(1).build().unwrap();
    let wakes = Wakes::new();
    let mut one = timer.sleep(SECOND);
    let mut other = timer.sleep(SECOND);
    assert!(poll(&mut one, &wakes).is_pending());
    assert_eq!(poll(&mut other, &wakes), Poll::Ready(Err(SleepError::Full)));
    assert_eq!(Arc::strong_count(&wakes), 2, "one waker waits");
    drop(one);
    // It can try again.
    assert!(poll(&mut other, &wakes).is_pending());
    assert_eq!(wakes.count(), 0);
    assert!(SleepError::Full.to_string().contains("max_pending"));
}

#[test]
fn who_sleeps_is_told_when_the_timer_closes() {
    for end in 0..4 {
        let (_hand, timer) = timer();
        let wakes = Wakes::new();
        let mut sleep = timer.sleep(SECOND);
        let mut unpolled = timer.sleep(SECOND);
        assert!(poll(&mut sleep, &wakes).is_pending());
        match end {
            0 => drop(timer),
            1 => {
                let report = timer.shutdown(Shutdown::HandBack).wait().unwrap();
                assert!(
                    report.handed_back.is_empty(),
                    "there is no task to hand back"
                );
            }
            2 => drop(timer.shutdown(Shutdown::HandBack)),
            _ => drop(timer.shutdown(Shutdown::RunNow).wait().unwrap()),
        }
        let closed = Poll::Ready(Err(SleepError::Closed));
        assert_eq!(poll(&mut unpolled, &wakes), closed, "end {end}");
        until("it is woken", || wakes.count() == 1);
        assert_eq!(poll(&mut sleep, &wakes), closed, "end {end}");
    }
    assert_eq!(SleepError::Closed.to_string(), "the timer is closed");
}

#[test]
fn who_sleeps_is_woken_before_a_shutdown_waits_for_running_tasks() {
    for mode in [Shutdown::HandBack, Shutdown::Drain { limit: SECOND }] {
        let (hand, builder) = manual();
        let timer = builder.workers(1).max_running(1).build().unwrap();
        let gate = Gate::default();
        let at_gate = gate.clone();
        let _running = timer.after(Duration::ZERO, move || at_gate.pass()).unwrap();
        gate.crowd(1);
        let (woken, woken_late) = (Wakes::new(), Wakes::new());
        let mut in_time = timer.sleep(SECOND * 10);
        let mut late = timer.sleep(SECOND);
        assert!(poll(&mut in_time, &woken).is_pending());
        assert!(poll(&mut late, &woken_late).is_pending());
        let closing = timer.shutdown(mode);
        if mode != Shutdown::HandBack {
            // The limit of the drain. The only worker is busy, so nobody claims the sleep.
            hand.advance(SECOND);
        }
        until("both are woken", || {
            (woken.count(), woken_late.count()) == (1, 1)
        });
        assert_eq!(gate.waiting(), 1, "the shutdown still waits for the task");
        assert_eq!(timer.state(), Lifecycle::Closing);
        let closed = Poll::Ready(Err(SleepError::Closed));
        assert_eq!(poll(&mut in_time, &woken), closed);
        // What counts is the deadline at the poll, not when the task was woken.
        hand.set(Time::ZERO + SECOND);
        assert_eq!(poll(&mut late, &woken_late), Poll::Ready(Ok(())));
        gate.open();
        let report = closing.wait().unwrap();
        assert_eq!((report.handed_back.len(), report.still_running), (0, 0));
        assert_eq!((woken.count(), woken_late.count()), (1, 1), "woken once");
        let stats = timer.stats();
        assert_eq!((stats.handed_back, stats.ran), (2, 1));
    }
}

#[test]
fn a_drain_lets_sleeps_end() {
    let (hand, timer) = timer();
    let wakes = Wakes::new();
    let mut sleep = timer.sleep(SECOND);
    assert!(poll(&mut sleep, &wakes).is_pending());
    let closing = timer.shutdown(Shutdown::Drain { limit: SECOND * 2 });
    assert!(poll(&mut sleep, &wakes).is_pending());
    hand.advance(SECOND);
    until("it wakes", || wakes.count() == 1);
    assert_eq!(poll(&mut sleep, &wakes), Poll::Ready(Ok(())));
    assert!(!closing.wait().unwrap().already_closed);
    assert_eq!(timer.state(), Lifecycle::Closed);
}

#[test]
fn a_sleep_can_be_reset_in_every_state() {
    let (hand, timer) = timer();
    let wakes = Wakes::new();
    // Not polled yet.
    let mut sleep = timer.sleep(SECOND);
    sleep.reset(SECOND * 4);
    assert!(poll(&mut sleep, &wakes).is_pending());
    // To a later moment, and to an earlier one.
    sleep.reset(SECOND * 5);
    hand.advance(SECOND * 4);
    assert!(poll(&mut sleep, &wakes).is_pending());
    sleep.reset(SECOND / 2);
    assert_eq!(sleep.deadline(), Time::ZERO + SECOND * 9 / 2);
    assert_eq!((wakes.count(), timer.stats().scheduled), (0, 1));
    hand.advance(SECOND / 2);
    until("it wakes", || wakes.count() == 1);
    // When it has woken its task, before that has polled it.
    sleep.reset(SECOND);
    assert!(poll(&mut sleep, &wakes).is_pending());
    hand.advance(SECOND);
    until("it wakes again", || wakes.count() == 2);
    assert_eq!(poll(&mut sleep, &wakes), Poll::Ready(Ok(())));
    // And after its end.
    sleep.reset(hand.now() + SECOND);
    assert!(poll(&mut sleep, &wakes).is_pending());
    drop(sleep);
    assert_eq!(counts(&timer.stats()), (3, 0, 2, 1));
}

#[test]
fn a_clock_that_is_set_back_makes_no_difference_to_what_was_due() {
    let (hand, timer) = timer();
    let wakes = Wakes::new();
    let mut sleep = timer.sleep(SECOND);
    assert!(poll(&mut sleep, &wakes).is_pending());
    hand.set(Time::ZERO + SECOND);
    until("it wakes", || wakes.count() == 1);
    hand.set(Time::ZERO);
    assert_eq!(poll(&mut sleep, &wakes), Poll::Ready(Ok(())));
}

#[test]
fn a_waker_that_panics_harms_nobody_else() {
    struct Bad;
    impl Wake for Bad {
        fn wake(self: Arc<Self>) {
            panic!("{}: a waker", quiet::WANTED);
        }
    }
    quiet::hush();
    let (hand, timer) = timer();
    let bad = Waker::from(Arc::new(Bad));
    let wakes = Wakes::new();
    let mut sleeps = (
        timer.sleep(SECOND),
        timer.sleep(SECOND),
        timer.sleep(SECOND * 9),
    );
    let bad = &mut Context::from_waker(&bad);
    assert!(std::pin::Pin::new(&mut sleeps.0).poll(bad).is_pending());
    assert!(std::pin::Pin::new(&mut sleeps.2).poll(bad).is_pending());
    assert!(poll(&mut sleeps.1, &wakes).is_pending());
    hand.advance(SECOND);
    until("both are done", || {
        (wakes.count(), timer.stats().panicked) == (1, 1)
    });
    assert_eq!(timer.stats().ran, 2);
    // At the end of the timer, too.
    timer.shutdown(Shutdown::HandBack).wait().unwrap();
}

/// Sleeps of one stripe are claimed together, but a task behind them keeps its exact answer.
#[test]
fn a_task_behind_sleeps_can_be_cancelled_while_they_are_woken() {
    #[derive(Default)]
    struct Cancels(Mutex<(Option<TimerHandle>, Vec<Cancel>)>);
    impl Wake for Cancels {
        fn wake(self: Arc<Self>) {
            let (timeout, answers) = &mut *self.0.lock().unwrap();
            answers.push(timeout.as_ref().unwrap().cancel());
        }
    }
    let (hand, builder) = manual();
    // One worker takes all of it along.
    let builder = builder.shards(1).stripes(1).workers(1).max_running(1);
    let timer = builder.build().unwrap();
    let cancels = Arc::new(Cancels::default());
    let waker = Waker::from(Arc::clone(&cancels));
    let mut sleeps = [(); 3].map(|()| timer.sleep(SECOND));
    for sleep in &mut sleeps {
        let polled = std::pin::Pin::new(sleep).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
    }
    let task = timer.after(SECOND, || panic!("it was cancelled"));
    cancels.0.lock().unwrap().0 = Some(task.unwrap());
    hand.advance(SECOND);
    until("all are woken", || cancels.0.lock().unwrap().1.len() == 3);
    until("it is over", || timer.stats().queued == 0);
    let answers = &cancels.0.lock().unwrap().1;
    assert!(answers[0].is_cancelled());
    assert_eq!(answers[1..], [Cancel::NotFound, Cancel::NotFound]);
    assert_eq!(counts(&timer.stats()), (4, 0, 3, 1));
    assert_eq!(timer.stats().panicked, 0);
}

#[test]
fn a_timeout_yields_the_output_or_says_that_the_time_is_over() {
    on_all(|| async {
        let timer = Timer::new().unwrap();
        assert_eq!(timer.timeout(MOMENT, ready(7)).await, Ok(7));
        // Both at the same poll.
        assert_eq!(timer.timeout(Duration::ZERO, ready(7)).await, Ok(7));
        let elapsed = timer.timeout(MOMENT, pending::<()>()).await;
        assert_eq!(elapsed, Err(TimeoutError::Elapsed));
        let bell = Arc::new(Notify::new());
        let ringer = Arc::clone(&bell);
        let _ = timer.after(MOMENT, move || ringer.notify_one()).unwrap();
        assert_eq!(timer.timeout(SECOND * 60, bell.notified()).await, Ok(()));
        assert_eq!(timer.stats().pending, 0, "its timer is cancelled");
    });
}

#[test]
fn a_timeout_that_is_dropped_drops_its_future_and_cancels_its_timer() {
    let (_hand, timer) = timer();
    let held = Arc::new(());
    let inner = Arc::clone(&held);
    let mut timeout = Box::pin(timer.timeout(SECOND, async move {
        let _inner = inner;
        pending::<()>().await;
    }));
    let wakes = Wakes::new();
    assert!(poll(&mut timeout, &wakes).is_pending());
    assert_eq!(timer.stats().pending, 1);
    drop(timeout);
    assert_eq!(Arc::strong_count(&held), 1);
    assert_eq!(counts(&timer.stats()), (1, 0, 0, 1));
}

#[test]
fn a_timeout_without_a_timer_yields_what_is_ready_and_says_why_not() {
    let (_hand, timer) = timer();
    let timeout = |at_once: bool| {
        let future = async move { if at_once { 7 } else { pending().await } };
        Box::pin(timer.timeout(SECOND, future))
    };
    timer.shutdown(Shutdown::HandBack).wait().unwrap();
    let wakes = Wakes::new();
    assert_eq!(poll(&mut timeout(true), &wakes), Poll::Ready(Ok(7)));
    let error = TimeoutError::Sleep(SleepError::Closed);
    assert_eq!(poll(&mut timeout(false), &wakes), Poll::Ready(Err(error)));
    let source = std::error::Error::source(&error).map(ToString::to_string);
    assert_eq!(source.as_deref(), Some("the timer is closed"));
    assert!(error.to_string().contains("could not be measured"));
    assert!(std::error::Error::source(&TimeoutError::Elapsed).is_none());
    assert!(TimeoutError::Elapsed.to_string().contains("over"));
}

/// One sleep tells that a connection is idle; each message resets it.
#[test]
fn a_sleep_that_each_message_resets_ends_when_none_comes() {
    on_all(|| async {
        let (hand, timer) = timer();
        let (send, mut messages) = tokio::sync::mpsc::channel(1);
        let clock = hand.clone();
        let sender = tokio::spawn(async move {
            for number in 0..50 {
                clock.advance(SECOND * 9 / 10);
                send.send(number).await.unwrap();
                // Until it is received, and the sleep is reset.
                let _ = send.reserve().await.unwrap();
            }
            clock.advance(SECOND);
            send
        });
        let mut idle = timer.sleep(SECOND);
        let mut count = 0;
        loop {
            tokio::select! {
                biased;
                message = messages.recv() => {
                    assert_eq!(message, Some(count));
                    count += 1;
                    idle.reset(Time::ZERO + SECOND * 9 / 10 * count + SECOND);
                }
                slept = &mut idle => {
                    slept.unwrap();
                    break;
                }
            }
        }
        assert_eq!(count, 50);
        drop(sender.await.unwrap());
    });
}

/// When its entry is queued, and when it is being woken; and when there was no room.
#[test]
fn a_sleep_can_be_reset_when_it_is_due() {
    struct Blocks(mpsc::Sender<()>, Mutex<mpsc::Receiver<()>>);
    impl Wake for Blocks {
        fn wake(self: Arc<Self>) {
            self.0.send(()).unwrap();
            let _ = self.1.lock().unwrap().recv();
        }
    }
    let (hand, builder) = manual();
    let builder = builder.workers(1).max_running(1).max_pending(2);
    let timer = builder.build().unwrap();
    let (wakes_up, woken) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let blocks = Waker::from(Arc::new(Blocks(wakes_up, Mutex::new(released))));
    let wakes = Wakes::new();
    let mut first = timer.sleep(SECOND);
    let mut second = timer.sleep(SECOND);
    let context = &mut Context::from_waker(&blocks);
    assert!(std::pin::Pin::new(&mut first).poll(context).is_pending());
    assert!(poll(&mut second, &wakes).is_pending());
    let mut third = timer.sleep(SECOND);
    let full = Poll::Ready(Err(SleepError::Full));
    assert_eq!(poll(&mut third, &wakes), full);
    hand.advance(SECOND);
    wait::next(&woken);
    // The only worker is about to wake the first one's task; the second one's entry waits, or was
    // woken before.
    until("both were collected", || {
        let stats = timer.stats();
        stats.ran + stats.queued == 2
    });
    for sleep in [&mut first, &mut second, &mut third] {
        sleep.reset(SECOND);
        assert!(!sleep.is_elapsed());
    }
    release.send(()).unwrap();
    let before = wakes.count();
    for sleep in [&mut first, &mut second] {
        assert!(poll(sleep, &wakes).is_pending());
    }
    hand.advance(SECOND);
    until("both wake", || wakes.count() == before + 2);
    for sleep in [&mut first, &mut second, &mut third] {
        assert_eq!(poll(sleep, &wakes), Poll::Ready(Ok(())));
    }
    timer.shutdown(Shutdown::HandBack).wait().unwrap();
    third.reset(SECOND);
    let closed = Poll::Ready(Err(SleepError::Closed));
    assert_eq!(poll(&mut third, &wakes), closed);
}

#[test]
fn futures_can_be_sent_and_shared() {
    fn check<T: Send + Sync + Unpin>(_: &T) {}
    let (_hand, timer) = timer();
    let sleep = timer.sleep(SECOND);
    check(&sleep);
    assert!(format!("{sleep:?}").contains("armed: false"));
    fn send<T: Send>(_: &T) {}
    send(&timer.timeout(SECOND, ready(1)));
}
