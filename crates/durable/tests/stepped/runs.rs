//! Each kind of run.

use std::sync::mpsc::channel;
use std::time::Duration;

use tourbillon_durable::{Due, Durable, Ending, RetryPolicy};

use crate::support::{
    HOUR, MINUTE, SECOND, Seen, YEAR, advance, at, keys, memory, schedule, timers,
};

#[test]
fn a_timer_runs_at_its_time_and_not_before() {
    let (timers, steps, seen) = timers();
    schedule(&timers, "order:7", 15 * MINUTE);
    schedule(&timers, "order:8", 15 * MINUTE);
    timers.cancel("q", "order:8").wait().expect("it waits");
    advance(&steps, 15 * MINUTE - Duration::from_micros(1));
    assert_eq!(keys(&seen), [""; 0]);
    advance(&steps, Duration::from_micros(1));
    let runs: Vec<Seen> = seen.try_iter().collect();
    assert_eq!(
        runs,
        [Seen {
            key: "order:7".to_owned(),
            due: at(15 * MINUTE),
            attempt: 1,
            crashes: 0,
            late: Duration::ZERO,
        }]
    );
    // Its end is in the store.
    assert_eq!(timers.get("q", "order:7").wait(), Ok(None));
    assert_eq!(timers.stats().succeeded, 1);
}

#[test]
fn runs_have_the_order_of_their_due_times_and_none_is_late() {
    let (timers, steps, seen) = timers();
    for key in (0..200_u64).rev() {
        let delay = Duration::from_millis(1 + key * 7_919 % 100_000);
        schedule(&timers, &key.to_string(), delay);
    }
    advance(&steps, 100 * SECOND);
    let runs: Vec<Seen> = seen.try_iter().collect();
    assert_eq!(runs.len(), 200);
    assert!(runs.is_sorted_by_key(|run| run.due));
    assert!(runs.iter().all(|run| run.late.is_zero()), "{runs:?}");
}

#[test]
fn what_a_handler_schedules_runs_in_the_same_call() {
    let (told, seen) = channel();
    let (handle, own) = channel::<Durable>();
    let own = std::sync::Mutex::new((own, None::<Durable>));
    let builder = Durable::builder(memory()).handle("q", move |due: &Due<u64>| {
        told.send(Seen::of(due)).expect("the test listens");
        if *due.payload() > 0 {
            let mut own = own.lock().expect("no handler panics");
            if own.1.is_none() {
                own.1 = own.0.try_recv().ok();
            }
            let timers = own.1.as_ref().expect("the test has sent them");
            let key = format!("after-{}", due.key());
            // One at once, and one later.
            let delay = Duration::from_secs(due.payload() % 2);
            let left = due.payload() - 1;
            timers
                .schedule("q", &key, delay, &left)
                .wait()
                .expect("the store takes it");
        }
    });
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    handle.send(timers.clone()).expect("the handler takes it");
    timers
        .schedule("q", "a", SECOND, &4_u64)
        .wait()
        .expect("the store takes it");
    advance(&steps, 3 * SECOND);
    let times: Vec<_> = seen.try_iter().map(|run| run.due).collect();
    assert_eq!(times, [1, 1, 2, 2, 3].map(|n| at(n * SECOND)));
    timers.stop(Duration::ZERO).wait().expect("it stops");
}

#[test]
fn retries_come_after_their_backoff_until_a_timer_is_given_up() {
    let (told, seen) = channel();
    let builder = Durable::builder(memory())
        .handle("q", move |due: &Due<u64>| {
            told.send(Seen::of(due)).expect("the test listens");
            Err::<(), _>("the receiver is down")
        })
        .retry(RetryPolicy::fixed(MINUTE).attempts(3));
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    schedule(&timers, "a", SECOND);
    advance(&steps, SECOND + MINUTE);
    let runs: Vec<_> = seen.try_iter().map(|run| (run.attempt, run.due)).collect();
    assert_eq!(runs, [(1, at(SECOND)), (2, at(SECOND + MINUTE))]);
    advance(&steps, HOUR);
    let runs: Vec<_> = seen.try_iter().map(|run| (run.attempt, run.due)).collect();
    assert_eq!(runs, [(3, at(SECOND + 2 * MINUTE))]);
    let dead = timers
        .dead("q", i64::MIN, 10)
        .wait()
        .expect("the store is there");
    assert_eq!(dead.len(), 1);
    assert_eq!(timers.stats().dead, 1);
}

#[test]
fn a_random_backoff_is_the_same_in_each_test() {
    let times = || {
        let (told, seen) = channel();
        let builder = Durable::builder(memory())
            .handle("q", move |due: &Due<u64>| {
                told.send(Seen::of(due)).expect("the test listens");
                Err::<(), _>("the receiver is down")
            })
            .retry(RetryPolicy::exponential(SECOND..=HOUR).attempts(8));
        let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
        schedule(&timers, "a", SECOND);
        advance(&steps, 10 * HOUR);
        seen.try_iter().map(|run| run.due).collect::<Vec<_>>()
    };
    let first = times();
    assert_eq!(first.len(), 8);
    assert_eq!(first, times());
}

#[test]
fn a_handler_that_panics_is_tried_again_and_the_others_go_on() {
    let (told, seen) = channel();
    let builder = Durable::builder(memory())
        .handle("q", move |due: &Due<u64>| {
            told.send(Seen::of(due)).expect("the test listens");
            assert!(due.key() != "bad" || due.attempt() > 1, "a bad one");
        })
        .retry(RetryPolicy::fixed(MINUTE));
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    for key in ["a", "bad", "c"] {
        schedule(&timers, key, SECOND);
    }
    advance(&steps, HOUR);
    assert_eq!(keys(&seen).len(), 4);
    assert_eq!((timers.stats().panicked, timers.stats().succeeded), (1, 3));
}

#[test]
fn a_repeating_timer_runs_each_time() {
    let builder = Durable::builder(memory()).handle("q", |_: &Due<u64>| Ending::Again(HOUR));
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    schedule(&timers, "hourly", HOUR);
    advance(&steps, 100 * HOUR);
    assert_eq!(timers.stats().succeeded, 100);
}

#[test]
fn years_without_timers_cost_nothing() {
    let (timers, steps, seen) = timers();
    schedule(&timers, "far", 1_000 * YEAR);
    advance(&steps, 1_000 * YEAR);
    assert_eq!(keys(&seen), ["far"]);
    // To the end of all time, and no further.
    advance(&steps, Duration::MAX);
    let end = steps.now().wait().expect("the store is there");
    advance(&steps, Duration::MAX);
    assert_eq!(steps.now().wait(), Ok(end));
    drop(timers);
}

#[test]
fn a_pace_holds_in_virtual_time() {
    let (told, seen) = channel();
    let builder = Durable::builder(memory())
        .handle("q", crate::support::telling(&told))
        .pace(10);
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    for key in 0..50 {
        schedule(&timers, &key.to_string(), MINUTE);
    }
    advance(&steps, MINUTE);
    let at_once = keys(&seen).len();
    assert!((1..=10).contains(&at_once), "{at_once}");
    advance(&steps, 10 * SECOND);
    assert_eq!(at_once + keys(&seen).len(), 50);
}

#[cfg(feature = "tokio")]
#[test]
fn a_call_waits_for_handlers_that_are_futures() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .expect("a runtime");
    let (told, seen) = channel();
    let handler = move |due: Due<u64>| {
        let told = told.clone();
        async move {
            tokio::task::yield_now().await;
            told.send(Seen::of(&due)).expect("the test listens");
        }
    };
    let builder = Durable::builder(memory()).handle_tokio("q", runtime.handle().clone(), handler);
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    for key in 0..100 {
        schedule(&timers, &key.to_string(), MINUTE);
    }
    advance(&steps, MINUTE);
    assert_eq!(keys(&seen).len(), 100);
    assert_eq!(timers.stats().succeeded, 100);
    assert_eq!(timers.counts().wait().map(|counts| counts.len()), Ok(0));
}
