//! Refused calls, and what a shutdown does with values that have not run.

use std::sync::{Arc, OnceLock};

use kit::quiet::hush;
use kit::steps::{SEEDS, T, stepped};
use tourbillon::keyed::{Debounce, Edges, Throttle};
use tourbillon::{ScheduleError, Scheduler, Shutdown};

use super::{Runs, until};

#[test]
fn a_full_scheduler_refuses_a_new_window_and_takes_calls_of_open_ones() {
    let runs = Runs::default();
    let builder = Scheduler::<u64>::builder().shards(1).max_pending(1);
    let scheduler = builder.build_stepped(1).unwrap();
    let debounce = Debounce::builder(&scheduler.handle(), 10 * T).build(runs.noting());
    debounce.call(1, 1).unwrap();
    let refused = debounce.call(2, 7).unwrap_err();
    assert!(matches!(refused, ScheduleError::Full(7)), "{refused}");
    debounce.call(1, 2).unwrap();
    until(&scheduler, 100);
    debounce.call(2, 8).unwrap();
    until(&scheduler, 200);
    assert_eq!(runs.take(), [(10, 2), (110, 8)]);
}

#[test]
fn each_shutdown_runs_or_leaves_every_value() {
    let drain = Shutdown::Drain { limit: 60_000 * T };
    for mode in [drain, Shutdown::RunNow, Shutdown::HandBack] {
        for seed in SEEDS {
            let (scheduler, runs) = (stepped(seed), Runs::default());
            let debounce = Debounce::builder(&scheduler.handle(), 10 * T).build(runs.noting());
            for key in 0..5 {
                debounce.call(key, key).unwrap();
                debounce.call(key, 100 + key).unwrap();
            }
            let _report = scheduler.shutdown(mode);
            assert!(matches!(debounce.call(9, 9), Err(ScheduleError::Closed(9))));
            let mut values: Vec<_> = runs.take().into_iter().map(|(_, value)| value).collect();
            let ran = values.len();
            values.extend(debounce.take_pending().into_iter().map(|(_, value)| value));
            values.sort_unstable();
            assert_eq!(values, [100, 101, 102, 103, 104], "{mode:?}");
            assert_eq!(ran, if mode == Shutdown::HandBack { 0 } else { 5 });
            assert!(debounce.take_pending().is_empty());
        }
    }
}

#[test]
fn the_values_of_a_key_are_left_in_their_order() {
    let (scheduler, runs) = (stepped(1), Runs::default());
    let throttle = Throttle::builder(&scheduler.handle(), 10 * T).build(runs.noting());
    throttle.call(1, 1).unwrap();
    throttle.call(1, 2).unwrap();
    // Before the leading run has started.
    assert_eq!(throttle.take_pending(), [(1, 1), (1, 2)]);
    until(&scheduler, 100);
    assert_eq!(runs.take(), []);
    throttle.call(1, 3).unwrap();
    until(&scheduler, 101);
    throttle.call(1, 4).unwrap();
    let _report = scheduler.shutdown(Shutdown::HandBack);
    assert_eq!(runs.take(), [(100, 3)]);
    assert_eq!(throttle.take_pending(), [(1, 4)]);
}

#[test]
fn values_that_were_taken_never_run_and_the_next_call_is_a_first_one() {
    let (scheduler, runs) = (stepped(1), Runs::default());
    let throttle = Throttle::builder(&scheduler.handle(), 10 * T)
        .edges(Edges::Both)
        .build(runs.noting());
    throttle.call(1, 1).unwrap();
    until(&scheduler, 2);
    throttle.call(1, 2).unwrap();
    assert_eq!(throttle.take_pending(), [(1, 2)]);
    throttle.call(1, 3).unwrap();
    until(&scheduler, 100);
    assert_eq!(runs.take(), [(0, 1), (2, 3)]);
    assert!(scheduler.handle().is_empty());
}

#[test]
fn the_builders_and_the_types_can_be_shown() {
    let scheduler = stepped(1);
    let handle = scheduler.handle();
    let debounce = Debounce::<u64, u64>::builder(&handle, T);
    assert!(format!("{debounce:?}").starts_with("DebounceBuilder { wait: 1ms"));
    assert!(format!("{:?}", debounce.build(|_, _| ())).starts_with("Debounce"));
    let throttle = Throttle::<u64, u64>::builder(&handle, T);
    assert!(format!("{throttle:?}").starts_with("ThrottleBuilder { wait: 1ms"));
    assert!(format!("{:?}", throttle.build(|_, _| ())).starts_with("Throttle"));
}

#[test]
fn a_merge_that_calls_the_crate_panics_and_nothing_is_lost() {
    hush();
    let (scheduler, runs) = (stepped(1), Runs::default());
    let own = Arc::new(OnceLock::<Debounce<u64, u64>>::new());
    let seen = Arc::clone(&own);
    let debounce = Debounce::builder(&scheduler.handle(), 10 * T)
        .merge(move |_, more| {
            let debounce = seen.get().expect("it is set");
            let _ = debounce.call(2, more);
        })
        .build(runs.noting());
    assert!(own.set(debounce.clone()).is_ok());
    debounce.call(1, 1).unwrap();
    let call = std::panic::AssertUnwindSafe(|| debounce.call(1, 2));
    let panic = std::panic::catch_unwind(call).unwrap_err();
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    assert!(text.is_some_and(|text| text.contains("lock")), "{text:?}");
    until(&scheduler, 100);
    assert_eq!(runs.take(), [(10, 1)]);
}
