//! Calls that are tried again, in virtual time.

use std::cell::Cell;
use std::error::Error;
use std::future::{pending, ready};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use kit::wait::until;
use kit::wakes::{Wakes, poll};
use tourbillon::retry::{Backoff, GaveUp, Retry, RetryBudget, RetryError, Verdict};
use tourbillon::test_util::SteppedTimer;
use tourbillon::{Clock, Lifecycle, ManualClock, Shutdown, Time, Timer};

const S: Duration = Duration::from_secs(1);

type Outcome = Result<u32, RetryError<&'static str>>;

fn stepped() -> SteppedTimer {
    Timer::builder().build_stepped(1).unwrap()
}

fn doubling() -> Retry<&'static str> {
    Retry::new(Backoff::exponential(S..=10 * S))
}

/// Runs a call whose attempts fail until the one of this number, and returns when it has ended.
fn run(policy: Retry<&'static str>, succeeds: u32) -> (Outcome, Duration) {
    let stepped = stepped();
    let timer = stepped.timer();
    let mut attempts = 0;
    let outcome = stepped.run_until(timer.retry(policy, || {
        attempts += 1;
        ready(if attempts == succeeds {
            Ok(attempts)
        } else {
            Err("busy")
        })
    }));
    assert_eq!(timer.stats().pending, 0, "nothing is left behind");
    (outcome, stepped.now().since(Time::ZERO))
}

#[test]
fn the_attempts_come_exactly_when_the_delays_are_over() {
    // 0, 1, 3, 7, 15, 25, 35 s.
    for (succeeds, seconds) in [(1, 0), (2, 1), (3, 3), (5, 15), (7, 35)] {
        assert_eq!(run(doubling(), succeeds), (Ok(succeeds), seconds * S));
    }
}

#[test]
fn each_limit_ends_the_call_and_is_named() {
    let gives_up = |policy, reason, attempts, seconds| {
        let (outcome, ended) = run(policy, u32::MAX);
        let error = outcome.unwrap_err();
        assert_eq!(
            (error.error, error.reason, error.attempts),
            ("busy", reason, attempts)
        );
        assert_eq!((error.elapsed, ended), (seconds * S, seconds * S));
        error
    };
    let error = gives_up(doubling().attempts(4), GaveUp::Attempts, 4, 7);
    let text = "gave up after 4 attempts in 7s: no further attempt is allowed";
    assert_eq!(error.to_string(), text);
    for attempts in [0, 1] {
        let error = gives_up(doubling().attempts(attempts), GaveUp::Attempts, 1, 0);
        assert!(error.to_string().contains("1 attempt in"));
    }
    // The attempt at 7 s is the last one before 10 s; nobody waits for the end of the time.
    gives_up(doubling().within(10 * S), GaveUp::Time, 4, 7);
    gives_up(doubling().within(7 * S), GaveUp::Time, 4, 7);
    gives_up(doubling().within(Duration::ZERO), GaveUp::Time, 1, 0);
    let judged = doubling().judge(|_| Verdict::GiveUp);
    gives_up(judged, GaveUp::Permanent, 1, 0);
    let budget = RetryBudget::new(3, 0.0);
    gives_up(doubling().budget(&budget), GaveUp::Budget, 4, 7);
    // A call that may not be tried again takes no token.
    let budget = RetryBudget::new(9, 0.0);
    gives_up(
        doubling().budget(&budget).attempts(3),
        GaveUp::Attempts,
        3,
        3,
    );
    assert_eq!(budget.available(), 7);
}

#[test]
fn a_delay_that_the_server_asks_for_is_kept() {
    let judge = |error: &&str| match *error {
        "busy" => Verdict::After(5 * S),
        _ => Verdict::Again,
    };
    // 5, 5, 5, then the delays of 8 and 10 s are the longer ones.
    assert_eq!(run(doubling().judge(judge), 6), (Ok(6), 33 * S));
}

#[test]
fn calls_share_a_budget_and_fill_it_again() {
    let budget = RetryBudget::new(2, 0.5);
    let policy = doubling().budget(&budget);
    assert_eq!(run(policy.clone(), u32::MAX).0.unwrap_err().attempts, 3);
    let mut retries = 0;
    for _ in 0..100 {
        retries += run(policy.clone(), u32::MAX).0.unwrap_err().attempts - 1;
    }
    assert_eq!(retries, 50, "half a retry for each call");
}

#[test]
fn the_error_has_the_last_one_as_its_source() {
    let parse = |_| "x".parse::<u8>().map(drop);
    let stepped = stepped();
    let policy = Retry::new(Backoff::fixed(S)).attempts(2);
    let error = stepped.run_until(stepped.timer().retry(policy, || ready(parse(()))));
    let error = error.unwrap_err();
    assert_eq!(
        error.source().unwrap().to_string(),
        "invalid digit found in string"
    );
}

#[test]
fn an_attempt_is_dropped_before_the_wait_and_a_dropped_call_leaves_nothing() {
    let stepped = stepped();
    let timer = stepped.timer();
    let alive = Rc::new(Cell::new(0));
    struct Counted(Rc<Cell<i32>>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.set(self.0.get() - 1);
        }
    }
    let attempt = || {
        alive.set(alive.get() + 1);
        let counted = Counted(Rc::clone(&alive));
        async move {
            let _counted = counted;
            Err::<(), _>("busy")
        }
    };
    let mut call = Box::pin(timer.retry(doubling(), attempt));
    assert_eq!(alive.get(), 0, "nothing happens before the first poll");
    let wakes = Wakes::new();
    assert!(poll(&mut call, &wakes).is_pending());
    assert_eq!((alive.get(), timer.stats().pending), (0, 1));
    stepped.advance(S);
    assert_eq!(wakes.count(), 1);
    assert!(poll(&mut call, &wakes).is_pending());
    drop(call);
    assert_eq!(timer.stats().pending, 0);
    // One that waits for its attempt has nothing in the timer.
    let mut call = Box::pin(timer.retry(doubling(), pending::<Result<(), &'static str>>));
    assert!(poll(&mut call, &wakes).is_pending());
    assert_eq!(timer.stats().pending, 0);
}

#[test]
fn the_time_of_an_attempt_counts_and_the_delay_follows_it() {
    let stepped = stepped();
    let timer = stepped.timer();
    let attempts = AtomicU32::new(0);
    let begun = stepped.now();
    let error = stepped.run_until(timer.retry(doubling().within(20 * S), || async {
        attempts.fetch_add(1, Ordering::Relaxed);
        timer.sleep(4 * S).await.unwrap();
        Err::<(), _>("slow")
    }));
    // 0 to 4, 5 to 9, 11 to 15, 19 to 23 s; the next one would begin at 31 s.
    let error = error.unwrap_err();
    assert_eq!((error.attempts, error.elapsed), (4, 23 * S));
    assert_eq!(stepped.now(), begun + 23 * S);
    assert_eq!(attempts.into_inner(), 4);
}

#[test]
fn a_timer_that_cannot_wait_ends_the_call() {
    let stepped = Timer::builder().max_pending(1).build_stepped(1).unwrap();
    let timer = stepped.timer();
    let _other = timer.after(60 * S, || ()).unwrap();
    let fail = || ready(Err::<(), _>("busy"));
    let error = stepped
        .run_until(timer.retry(doubling(), fail))
        .unwrap_err();
    assert_eq!(
        (error.error, error.reason, error.attempts),
        ("busy", GaveUp::Timer, 1)
    );
    let _ = stepped.shutdown(Shutdown::HandBack);
    let error = stepped
        .run_until(timer.retry(doubling(), fail))
        .unwrap_err();
    assert!(error.to_string().ends_with("the timer is full or closed"));
}

#[test]
fn the_blocking_call_waits_on_the_clock_of_the_timer() {
    let hand = ManualClock::new();
    let timer = Timer::builder()
        .clock(Clock::manual(&hand))
        .build()
        .unwrap();
    let attempts = AtomicU32::new(0);
    let attempt = || match attempts.fetch_add(1, Ordering::SeqCst) {
        3 => Ok("done"),
        _ => Err("busy"),
    };
    thread::scope(|scope| {
        let call = scope.spawn(|| timer.retry_blocking(doubling(), attempt));
        for (seconds, made) in [(1, 1), (2, 2), (4, 3)] {
            until("it waits", || timer.stats().pending == 1);
            assert_eq!(attempts.load(Ordering::SeqCst), made);
            hand.advance(seconds * S - Duration::from_millis(1));
            hand.advance(Duration::from_millis(1));
            until("the next attempt", || {
                attempts.load(Ordering::SeqCst) == made + 1
            });
        }
        assert_eq!(call.join().unwrap(), Ok("done"));
    });
}

#[test]
fn the_end_of_the_timer_ends_a_blocking_wait() {
    let hand = ManualClock::new();
    let timer = Timer::builder()
        .clock(Clock::manual(&hand))
        .build()
        .unwrap();
    thread::scope(|scope| {
        let call = scope.spawn(|| timer.retry_blocking(doubling(), || Err::<(), _>("busy")));
        until("it waits", || timer.stats().pending == 1);
        timer.shutdown(Shutdown::HandBack).wait().unwrap();
        assert_eq!(call.join().unwrap().unwrap_err().reason, GaveUp::Timer);
    });
    assert_eq!(timer.state(), Lifecycle::Closed);
}
