//! Debounce: which calls run, and when.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kit::quiet::{WANTED, hush};
use kit::steps::{SEEDS, T, stepped};
use tourbillon::Scheduler;
use tourbillon::keyed::{Debounce, DebounceBuilder, Edges};

use super::{Runs, until};

const EDGES: [Edges; 3] = [Edges::Leading, Edges::Trailing, Edges::Both];

/// Calls key 1 at the given ticks, each with its tick as the value. Returns the runs until tick
/// 1,000.
fn runs_of(
    calls: &[u64],
    options: impl Fn(DebounceBuilder<u64, u64>) -> DebounceBuilder<u64, u64>,
) -> Vec<(u64, u64)> {
    let mut first = None;
    for seed in SEEDS {
        let (scheduler, runs) = (stepped(seed), Runs::default());
        let builder = Debounce::builder(&scheduler.handle(), 10 * T);
        let debounce = options(builder).build(runs.noting());
        for &at in calls {
            until(&scheduler, at);
            debounce.call(1, at).unwrap();
        }
        until(&scheduler, 1_000);
        assert!(!debounce.is_pending(&1));
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
    assert_eq!(runs_of(&[5], |builder| builder), [(15, 5)]);
}

#[test]
fn two_calls_are_two_runs_only_with_both_edges() {
    for second in [5, 6, 14] {
        let of = |edges| runs_of(&[5, second], |builder| builder.edges(edges));
        assert_eq!(of(Edges::Leading), [(5, 5)]);
        assert_eq!(of(Edges::Trailing), [(second + 10, second)]);
        assert_eq!(of(Edges::Both), [(5, 5), (second + 10, second)]);
    }
}

#[test]
fn each_call_extends_the_window_and_the_latest_value_wins() {
    let calls: Vec<u64> = (0..20).map(|call| 9 * call).collect();
    let of = |edges| runs_of(&calls, |builder| builder.edges(edges));
    assert_eq!(of(Edges::Leading), [(0, 0)]);
    assert_eq!(of(Edges::Trailing), [(181, 171)]);
    assert_eq!(of(Edges::Both), [(0, 0), (181, 171)]);
}

#[test]
fn a_call_at_or_after_the_end_opens_a_new_window() {
    for gap in [10, 11, 30] {
        let of = |edges| runs_of(&[5, 5 + gap], |builder| builder.edges(edges));
        assert_eq!(of(Edges::Leading), [(5, 5), (5 + gap, 5 + gap)]);
        assert_eq!(of(Edges::Trailing), [(15, 5), (15 + gap, 5 + gap)]);
        assert_eq!(of(Edges::Both), [(5, 5), (5 + gap, 5 + gap)]);
    }
}

#[test]
fn an_endless_stream_runs_at_the_maximum_wait() {
    let calls: Vec<u64> = (0..100).collect();
    let of = |edges| runs_of(&calls, |builder| builder.edges(edges).max_wait(25 * T));
    // A call at the tick of a run comes after it.
    assert_eq!(
        of(Edges::Trailing),
        [(25, 24), (50, 49), (75, 74), (100, 99)]
    );
    assert_eq!(
        of(Edges::Both),
        [(0, 0), (25, 24), (50, 49), (75, 74), (100, 99)]
    );
    // The window ends, and the next call leads.
    assert_eq!(of(Edges::Leading), [(0, 0), (25, 25), (50, 50), (75, 75)]);
}

#[test]
fn the_last_calls_of_a_stream_run_after_the_wait() {
    let calls: Vec<u64> = (0..30).collect();
    let runs = runs_of(&calls, |builder| builder.max_wait(25 * T));
    assert_eq!(runs, [(25, 24), (39, 29)]);
    // After the run at the maximum wait nothing waits, so nothing follows.
    let calls: Vec<u64> = (0..25).collect();
    let runs = runs_of(&calls, |builder| builder.max_wait(25 * T));
    assert_eq!(runs, [(25, 24)]);
    // The window is open until the wait after the last call. So a call does not lead.
    let calls: Vec<u64> = (0..25).chain([30]).collect();
    let runs = runs_of(&calls, |builder| {
        builder.edges(Edges::Both).max_wait(25 * T)
    });
    assert_eq!(runs, [(0, 0), (25, 24), (40, 30)]);
}

#[test]
fn a_maximum_below_the_wait_counts_as_the_wait() {
    for most in [Duration::ZERO, 3 * T] {
        let runs = runs_of(&[0, 3, 6, 9], |builder| builder.max_wait(most));
        assert_eq!(runs, [(10, 9)]);
    }
}

#[test]
fn a_merge_gets_the_values_in_their_order_and_never_that_of_a_leading_run() {
    let of = |edges| {
        runs_of(&[1, 2, 3], |builder| {
            builder
                .edges(edges)
                .merge(|so_far, more| *so_far = *so_far * 10 + more)
        })
    };
    assert_eq!(of(Edges::Trailing), [(13, 123)]);
    assert_eq!(of(Edges::Both), [(1, 1), (13, 23)]);
    assert_eq!(of(Edges::Leading), [(1, 1)]);
}

#[test]
fn a_wait_of_zero_ends_with_the_next_tick_and_a_huge_one_never() {
    let scheduler = stepped(1);
    let runs = Runs::default();
    let zero = Debounce::builder(&scheduler.handle(), Duration::ZERO).build(runs.noting());
    zero.call(1, 7).unwrap();
    zero.call(1, 8).unwrap();
    until(&scheduler, 1);
    assert_eq!(runs.take(), [(1, 8)]);
    let huge = Debounce::builder(&scheduler.handle(), Duration::MAX).build(runs.noting());
    huge.call(2, 7).unwrap();
    huge.call(2, 8).unwrap();
    scheduler.advance(Duration::from_secs(1 << 30));
    assert!(huge.is_pending(&2) && runs.take().is_empty());
    assert!(huge.flush(&2));
    scheduler.settle();
    assert_eq!(runs.all().len(), 1);
}

#[test]
fn keys_are_independent() {
    for seed in SEEDS {
        let (scheduler, runs) = (stepped(seed), Runs::default());
        let debounce = Debounce::builder(&scheduler.handle(), 10 * T).build(runs.noting());
        for key in 0..100 {
            until(&scheduler, key);
            debounce.call(key, key + 1_000).unwrap();
        }
        until(&scheduler, 200);
        let expected: Vec<_> = (0..100).map(|key| (key + 10, key, key + 1_000)).collect();
        assert_eq!(runs.all(), expected);
    }
}

#[test]
fn a_call_during_the_run_opens_the_next_window() {
    for (edges, expected) in [
        (Edges::Trailing, vec![(10, 1), (20, 2)]),
        // The leading run of tick 0 is inside of the window, so its call waits.
        (Edges::Both, vec![(0, 1), (10, 2)]),
        (Edges::Leading, vec![(0, 1)]),
    ] {
        for seed in SEEDS {
            let (scheduler, runs) = (stepped(seed), Runs::default());
            let own: Arc<std::sync::OnceLock<Debounce<u64, u64>>> = Arc::default();
            let (inside, noted) = (Arc::clone(&own), runs.clone());
            let debounce = Debounce::builder(&scheduler.handle(), 10 * T)
                .edges(edges)
                .build(move |firing, value| {
                    noted.note(firing, value);
                    if value == 1 {
                        let debounce = inside.get().unwrap();
                        assert!(!debounce.is_pending(&1), "the value has been taken");
                        debounce.call(1, 2).unwrap();
                    }
                });
            own.set(debounce.clone()).unwrap();
            debounce.call(1, 1).unwrap();
            until(&scheduler, 100);
            assert_eq!(runs.take(), expected, "{edges:?}");
            assert!(scheduler.handle().is_empty());
        }
    }
}

#[test]
fn a_cancelled_value_never_runs_and_the_next_call_is_a_first_one() {
    for edges in EDGES {
        for seed in SEEDS {
            let (scheduler, runs) = (stepped(seed), Runs::default());
            let debounce = Debounce::builder(&scheduler.handle(), 10 * T)
                .edges(edges)
                .build(runs.noting());
            assert!(!debounce.cancel(&1), "{edges:?}: no window");
            debounce.call(1, 1).unwrap();
            assert!(debounce.is_pending(&1));
            assert!(debounce.cancel(&1), "{edges:?}: before the leading run");
            assert!(!debounce.is_pending(&1) && !debounce.cancel(&1));
            debounce.call(1, 2).unwrap();
            until(&scheduler, 5);
            debounce.call(1, 3).unwrap();
            let waits = edges != Edges::Leading;
            assert_eq!(debounce.cancel(&1), waits, "{edges:?}");
            debounce.call(1, 4).unwrap();
            until(&scheduler, 100);
            let expected: &[(u64, u64)] = match edges {
                Edges::Trailing => &[(15, 4)],
                _ => &[(0, 2), (5, 4)],
            };
            assert_eq!(runs.take(), expected, "{edges:?}");
            assert!(scheduler.handle().is_empty());
        }
    }
}

#[test]
fn a_cancelled_window_leaves_no_timer() {
    let (scheduler, runs) = (stepped(1), Runs::default());
    let debounce = Debounce::builder(&scheduler.handle(), 10 * T).build(runs.noting());
    debounce.call(1, 1).unwrap();
    assert_eq!(scheduler.handle().len(), 1);
    assert!(debounce.cancel(&1));
    scheduler.settle();
    assert!(scheduler.handle().is_empty() && runs.take().is_empty());
}

#[test]
fn a_flush_runs_the_waiting_value_once() {
    for edges in EDGES {
        for seed in SEEDS {
            let (scheduler, runs) = (stepped(seed), Runs::default());
            let debounce = Debounce::builder(&scheduler.handle(), 10 * T)
                .edges(edges)
                .build(runs.noting());
            assert!(!debounce.flush(&1));
            debounce.call(1, 1).unwrap();
            debounce.call(1, 2).unwrap();
            assert!(debounce.flush(&1));
            scheduler.settle();
            assert!(!debounce.is_pending(&1) && !debounce.flush(&1));
            // The window is open until the wait after the last call.
            until(&scheduler, 4);
            debounce.call(1, 3).unwrap();
            until(&scheduler, 100);
            let expected: &[(u64, u64)] = match edges {
                Edges::Trailing => &[(0, 2), (14, 3)],
                Edges::Leading => &[(0, 1)],
                _ => &[(0, 1), (0, 2), (14, 3)],
            };
            assert_eq!(runs.take(), expected, "{edges:?}");
        }
    }
}

#[test]
fn a_call_after_a_flush_joins_its_run() {
    let (scheduler, runs) = (stepped(1), Runs::default());
    let debounce = Debounce::builder(&scheduler.handle(), 10 * T).build(runs.noting());
    debounce.call(1, 1).unwrap();
    assert!(debounce.flush(&1));
    debounce.call(1, 2).unwrap();
    until(&scheduler, 100);
    assert_eq!(runs.take(), [(0, 2)]);
}

#[test]
fn a_panic_in_a_run_changes_nothing_for_later_calls() {
    hush();
    for edges in EDGES {
        for seed in SEEDS {
            let (scheduler, runs) = (stepped(seed), Runs::default());
            let noted = runs.clone();
            let debounce = Debounce::builder(&scheduler.handle(), 10 * T)
                .edges(edges)
                .build(move |firing, value| {
                    noted.note(firing, value);
                    assert!(value != 1, "{WANTED}");
                });
            debounce.call(1, 1).unwrap();
            until(&scheduler, 5);
            debounce.call(1, 2).unwrap();
            until(&scheduler, 50);
            debounce.call(1, 3).unwrap();
            until(&scheduler, 100);
            let (expected, panics): (&[(u64, u64)], _) = match edges {
                Edges::Trailing => (&[(15, 2), (60, 3)], 0),
                Edges::Leading => (&[(0, 1), (50, 3)], 1),
                _ => (&[(0, 1), (15, 2), (50, 3)], 1),
            };
            assert_eq!(runs.take(), expected, "{edges:?}");
            assert_eq!(scheduler.handle().stats().panicked, panics);
            assert!(scheduler.handle().is_empty());
        }
    }
}

#[test]
fn a_late_run_takes_the_calls_that_came_before_it() {
    let (scheduler, runs) = (stepped(1), Runs::default());
    let debounce = Debounce::builder(&scheduler.handle(), 10 * T).build(runs.noting());
    debounce.call(1, 1).unwrap();
    // As if no worker had been free.
    scheduler.clock().advance(30 * T);
    debounce.call(1, 2).unwrap();
    until(&scheduler, 100);
    assert_eq!(runs.take(), [(40, 2)]);
}

#[test]
fn the_run_belongs_to_the_scheduler_and_not_to_the_debounce() {
    let (scheduler, runs) = (stepped(1), Runs::default());
    let debounce = Debounce::builder(&scheduler.handle(), 10 * T).build(runs.noting());
    debounce.clone().call(1, 1).unwrap();
    drop(debounce);
    until(&scheduler, 100);
    assert_eq!(runs.take(), [(10, 1)]);
}

#[test]
fn runs_on_real_threads() {
    let scheduler = Scheduler::<u64>::new().unwrap();
    let (done, was_done) = (Arc::new(AtomicBool::new(false)), kit::gate::Gate::default());
    let (noted, open) = (Arc::clone(&done), was_done.clone());
    let debounce = Debounce::builder(&scheduler.handle(), T).build(move |_, value| {
        assert_eq!(value, 7);
        noted.store(true, Ordering::SeqCst);
        open.open();
    });
    debounce.call(1, 7).unwrap();
    was_done.pass();
    assert!(done.load(Ordering::SeqCst));
}
