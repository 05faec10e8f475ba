//! What happens when the system starts no further thread. One test, since the limit holds for the
//! whole process, and a thread of another test must not start meanwhile.
#![cfg(target_os = "linux")]

use std::sync::mpsc;
use std::time::Duration;

use kit::gate::Gate;
use kit::refusal::{refuse_threads, starts_threads};
use kit::wait;
use tourbillon_durable::{CallError, Due, Durable, Memory, MemoryFault, StartError};

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn nothing_is_lost_when_threads_are_refused() {
    let cases: [(&str, fn()); 4] = [
        ("a_stop_waits_for_its_runs", a_stop_waits_for_its_runs),
        (
            "a_stop_that_nobody_waits_for_goes_on",
            a_stop_that_nobody_waits_for_goes_on,
        ),
        (
            "a_start_that_gets_no_threads_fails_and_leaves_none",
            a_start_that_gets_no_threads_fails_and_leaves_none,
        ),
        (
            "a_limit_needs_a_thread_only_if_a_task_awaits_it",
            a_limit_needs_a_thread_only_if_a_task_awaits_it,
        ),
    ];
    for (name, case) in cases {
        println!("{name}");
        case();
    }
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// A node whose run waits for a gate.
fn at_work(store: &Memory) -> (Durable, Gate) {
    let gate = Gate::default();
    let (began, begins) = mpsc::channel();
    let within = gate.clone();
    let timers = Durable::builder(store.clone())
        .handle("q", move |_: &Due<u32>| {
            began.send(()).unwrap();
            within.pass();
        })
        .start()
        .unwrap();
    timers
        .schedule("q", "k", Duration::ZERO, &1)
        .wait()
        .unwrap();
    wait::next(&begins);
    (timers, gate)
}

fn a_stop_waits_for_its_runs() {
    let store = Memory::new();
    let (timers, gate) = at_work(&store);
    let refusal = refuse_threads();
    assert!(!starts_threads());
    let end = timers.stop(MINUTE);
    // Calls go on meanwhile, since the handler may need them.
    timers.schedule("q", "next", MINUTE, &1).wait().unwrap();
    gate.open();
    let report = end.wait().unwrap();
    drop(refusal);
    assert_eq!((report.unfinished, report.has_left), (0, true));
    assert!(timers.schedule("q", "late", MINUTE, &1).wait().is_err());
}

fn a_stop_that_nobody_waits_for_goes_on() {
    let store = Memory::new();
    let (timers, gate) = at_work(&store);
    let refusal = refuse_threads();
    drop(timers.stop(MINUTE));
    gate.open();
    wait::until("it has stopped", || {
        timers.schedule("q", "k", MINUTE, &1).wait().is_err()
    });
    drop(refusal);
    assert_eq!(timers.stop(MINUTE).wait().unwrap().unfinished, 0);
}

fn a_start_that_gets_no_threads_fails_and_leaves_none() {
    let store = Memory::new();
    wait::until("those of the cases before have ended", || threads() <= 2);
    let before = threads();
    let refusal = refuse_threads();
    let builder = Durable::builder(store.clone()).handle("q", |_: &Due<u32>| ());
    let refused = builder.start().map(drop);
    drop(refusal);
    assert!(matches!(refused, Err(StartError::Spawn(_))), "{refused:?}");
    wait::until("its threads have ended", || threads() == before);
    let again = Durable::builder(store).handle("q", |_: &Due<u32>| ());
    again.start().unwrap().stop(Duration::ZERO).wait().unwrap();
}

fn a_limit_needs_a_thread_only_if_a_task_awaits_it() {
    let store = Memory::new();
    wait::until("those of the cases before have ended", || threads() <= 2);
    let timers = Durable::builder(store.clone()).start().unwrap();
    let with_the_client = threads();
    store.inject(|_| MemoryFault::Hang);
    let schedule = |limit| timers.schedule("q", "k", MINUTE, &1).within(limit);
    let short = Duration::from_millis(5);
    let over = Err(CallError::TimedOut(short));
    assert_eq!(schedule(short).wait(), over);
    assert_eq!(threads(), with_the_client);

    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.build().unwrap();
    let refusal = refuse_threads();
    let refused = runtime.block_on(schedule(MINUTE));
    drop(refusal);
    assert!(matches!(refused, Err(CallError::Unknown(_))), "{refused:?}");
    // The next one has its thread, and all others share it.
    for _ in 0..3 {
        assert_eq!(runtime.block_on(schedule(short)), over);
        assert_eq!(threads(), with_the_client + 1);
    }
    let kept = schedule(MINUTE);
    store.heal();
    drop(timers);
    kept.wait().unwrap();
    wait::until("all threads have ended", || threads() <= 2);
}
