//! Throttle: which calls run, and when.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kit::quiet::{WANTED, hush};
use kit::steps::{SEEDS, T, stepped};
use tourbillon::keyed::{Edges, Throttle, ThrottleBuilder};

use super::{Runs, until};

/// Calls key 1 at the given ticks, each with its tick as the value. Returns the runs until tick
/// 1,000.
fn runs_of(
    calls: &[u64],
    options: impl Fn(ThrottleBuilder<u64, u64>) -> ThrottleBuilder<u64, u64>,
) -> Vec<(u64, u64)> {
    let mut first = None;
    for seed in SEEDS {
        let (scheduler, runs) = (stepped(seed), Runs::default());
        let builder = Throttle::builder(&scheduler.handle(), 10 * T);
        let throttle = options(builder).build(runs.noting());
        for &at in calls {
            until(&scheduler, at);
            throttle.call(1, at).unwrap();
        }
        until(&scheduler, 1_000);
        assert!(!throttle.is_pending(&1));
        assert!(scheduler.handle().is_empty(), "a window without calls ends");
        let runs = runs.take();
        assert_eq!(*first.get_or_insert_with(|| runs.clone()), runs);
    }
    first.unwrap()
}

#[test]
fn one_call_is_one_run_at_each_edge() {
    let of = |edges| runs_of(&[5], |builder| builder.edges(edges));
    assert_eq!(of(Edges::Leading), [(5, 5)]);
    assert_eq!(of(Edges::Trailing), [(15, 5)]);
    assert_eq!(of(Edges::Both), [(5, 5)]);
    // The default.
    assert_eq!(runs_of(&[5], |builder| builder), [(5, 5)]);
}

#[test]
fn further_calls_do_not_move_the_window_and_the_latest_value_wins() {
    let of = |edges| runs_of(&[5, 7, 9, 14], |builder| builder.edges(edges));
    assert_eq!(of(Edges::Leading), [(5, 5)]);
    assert_eq!(of(Edges::Trailing), [(15, 14)]);
    assert_eq!(of(Edges::Both), [(5, 5), (15, 14)]);
}

#[test]
fn an_endless_stream_runs_once_per_window() {
    let calls: Vec<u64> = (0..40).collect();
    let of = |edges| runs_of(&calls, |builder| builder.edges(edges));
    let both = [(0, 0), (10, 9), (20, 19), (30, 29), (40, 39)];
    assert_eq!(of(Edges::Both), both);
    assert_eq!(of(Edges::Leading), [(0, 0), (10, 10), (20, 20), (30, 30)]);
    assert_eq!(of(Edges::Trailing), both[1..]);
}

#[test]
fn a_trailing_run_opens_a_window_and_a_call_after_the_window_leads() {
    // The window of the run at 15 ends at 25.
    assert_eq!(
        runs_of(&[5, 6, 16], |builder| builder),
        [(5, 5), (15, 6), (25, 16)]
    );
    assert_eq!(
        runs_of(&[5, 6, 25], |builder| builder),
        [(5, 5), (15, 6), (25, 25)]
    );
    assert_eq!(runs_of(&[5, 15], |builder| builder), [(5, 5), (15, 15)]);
    // A trailing window is counted from its first call.
    let runs = runs_of(&[5, 14, 16], |builder| builder.edges(Edges::Trailing));
    assert_eq!(runs, [(15, 14), (25, 16)]);
}

#[test]
fn a_merge_gets_the_values_of_one_run() {
    let runs = runs_of(&[1, 2, 3, 11, 12], |builder| {
        builder.merge(|so_far, more| *so_far = *so_far * 100 + more)
    });
    assert_eq!(runs, [(1, 1), (11, 203), (21, 1_112)]);
}

#[test]
fn keys_are_independent() {
    let (scheduler, runs) = (stepped(1), Runs::default());
    let throttle = Throttle::builder(&scheduler.handle(), 10 * T).build(runs.noting());
    for key in 1..=3 {
        until(&scheduler, 2 * key);
        throttle.call(key, key).unwrap();
        throttle.call(key, 10 * key).unwrap();
    }
    until(&scheduler, 100);
    let mut all = runs.all();
    all.sort_unstable();
    let expected = [
        (2, 1, 1),
        (4, 2, 2),
        (6, 3, 3),
        (12, 1, 10),
        (14, 2, 20),
        (16, 3, 30),
    ];
    assert_eq!(all, expected);
}

#[test]
fn a_call_during_the_run_waits_for_the_next_window() {
    for seed in SEEDS {
        let (scheduler, runs) = (stepped(seed), Runs::default());
        let again = Arc::new(std::sync::OnceLock::<Throttle<u64, u64>>::new());
        let (noted, own) = (runs.clone(), Arc::clone(&again));
        let throttle =
            Throttle::builder(&scheduler.handle(), 10 * T).build(move |firing, value| {
                noted.note(firing, value);
                if value < 3 {
                    let throttle = own.get().expect("it is set");
                    throttle.call(*firing.key(), value + 1).unwrap();
                }
            });
        assert!(again.set(throttle.clone()).is_ok());
        throttle.call(1, 1).unwrap();
        until(&scheduler, 100);
        assert_eq!(runs.take(), [(0, 1), (10, 2), (20, 3)]);
    }
}

#[test]
fn a_late_run_counts_its_window_from_its_start() {
    let (scheduler, runs) = (stepped(1), Runs::default());
    let throttle = Throttle::builder(&scheduler.handle(), 10 * T).build(runs.noting());
    throttle.call(1, 1).unwrap();
    until(&scheduler, 1);
    throttle.call(1, 2).unwrap();
    // As if no worker had been free.
    scheduler.clock().advance(30 * T);
    throttle.call(1, 3).unwrap();
    until(&scheduler, 35);
    throttle.call(1, 4).unwrap();
    until(&scheduler, 100);
    assert_eq!(runs.take(), [(0, 1), (31, 3), (41, 4)]);
}

#[test]
fn a_cancelled_value_never_runs_and_the_window_stays() {
    for seed in SEEDS {
        let (scheduler, runs) = (stepped(seed), Runs::default());
        let throttle = Throttle::builder(&scheduler.handle(), 10 * T).build(runs.noting());
        assert!(!throttle.cancel(&1));
        throttle.call(1, 1).unwrap();
        until(&scheduler, 3);
        throttle.call(1, 2).unwrap();
        assert!(throttle.cancel(&1));
        assert!(!throttle.is_pending(&1) && !throttle.cancel(&1));
        // Still in the window of the run at 0.
        throttle.call(1, 3).unwrap();
        until(&scheduler, 100);
        assert_eq!(runs.take(), [(0, 1), (10, 3)]);
        // Cancelled before it ran: there was no run, so nothing is too early.
        throttle.call(1, 4).unwrap();
        assert!(throttle.cancel(&1));
        until(&scheduler, 101);
        throttle.call(1, 5).unwrap();
        until(&scheduler, 200);
        assert_eq!(runs.take(), [(101, 5)]);
        assert!(scheduler.handle().is_empty());
    }
}

#[test]
fn a_flush_runs_the_waiting_value_at_once_and_opens_a_window() {
    let (scheduler, runs) = (stepped(1), Runs::default());
    let throttle = Throttle::builder(&scheduler.handle(), 10 * T).build(runs.noting());
    assert!(!throttle.flush(&1));
    throttle.call(1, 1).unwrap();
    until(&scheduler, 3);
    assert!(!throttle.flush(&1));
    throttle.call(1, 2).unwrap();
    assert!(throttle.flush(&1));
    until(&scheduler, 4);
    throttle.call(1, 3).unwrap();
    until(&scheduler, 100);
    assert_eq!(runs.take(), [(0, 1), (3, 2), (13, 3)]);
}

#[test]
fn a_panic_in_a_run_leaves_the_window_as_it_is() {
    hush();
    for seed in SEEDS {
        let (scheduler, runs) = (stepped(seed), Runs::default());
        let noted = runs.clone();
        let throttle =
            Throttle::builder(&scheduler.handle(), 10 * T).build(move |firing, value| {
                noted.note(firing, value);
                assert!(value != 1, "{WANTED}");
            });
        throttle.call(1, 1).unwrap();
        until(&scheduler, 3);
        throttle.call(1, 2).unwrap();
        until(&scheduler, 100);
        assert_eq!(runs.take(), [(0, 1), (10, 2)]);
        assert_eq!(scheduler.handle().stats().panicked, 1);
        assert!(scheduler.handle().is_empty());
    }
}

#[test]
fn a_panic_of_the_merge_reaches_the_caller_and_changes_nothing_else() {
    hush();
    let (scheduler, runs) = (stepped(1), Runs::default());
    let panics = Arc::new(AtomicBool::new(true));
    let now = Arc::clone(&panics);
    let throttle = Throttle::builder(&scheduler.handle(), 10 * T)
        .edges(Edges::Trailing)
        .merge(move |so_far: &mut u64, more| {
            assert!(!now.load(Ordering::SeqCst), "{WANTED}");
            *so_far += more;
        })
        .build(runs.noting());
    throttle.call(1, 1).unwrap();
    let call = std::panic::AssertUnwindSafe(|| throttle.call(1, 2));
    assert!(std::panic::catch_unwind(call).is_err());
    panics.store(false, Ordering::SeqCst);
    throttle.call(1, 4).unwrap();
    until(&scheduler, 100);
    assert_eq!(runs.take(), [(10, 5)]);
}
