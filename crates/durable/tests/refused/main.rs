//! What happens when the system starts no further thread. One test, since the limit holds for the
//! whole process, and a thread of another test must not start meanwhile.
#![cfg(target_os = "linux")]

use std::sync::mpsc;
use std::time::Duration;

use kit::gate::Gate;
use kit::refusal::{refuse_threads, starts_threads};
use kit::wait;
use tourbillon::Runtime;
use tourbillon_durable::{
    CallError, Due, Durable, DurableBuilder, Memory, MemoryFault, StartError,
};

const MINUTE: Duration = Duration::from_secs(60);

/// A case, for timers on this runtime, or on threads of their own.
type Case = fn(Option<&Runtime>);

#[test]
fn nothing_is_lost_when_threads_are_refused() {
    let cases: [(&str, Case); 4] = [
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
    let runtime = Runtime::builder().tickers(1).workers(1);
    let runtime = runtime.build_global().unwrap();
    for (name, case) in cases {
        println!("{name}");
        case(Some(&runtime));
    }
    runtime.shut_down(MINUTE).unwrap();
    for (name, case) in cases {
        println!("{name}, with own threads");
        case(None);
    }
}

/// Timers on the runtime of the process, which is this one, or on threads of their own.
fn builder(store: &Memory, runtime: Option<&Runtime>) -> DurableBuilder {
    let builder = Durable::builder(store.clone());
    match runtime {
        Some(_) => builder,
        None => builder.own_threads(),
    }
}

/// The threads that are there without timers: two of the tests, and those of the runtime.
fn at_rest(runtime: Option<&Runtime>) -> usize {
    2 + runtime.map_or(0, |_| 2)
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// A node whose run waits for a gate.
fn at_work(store: &Memory, runtime: Option<&Runtime>) -> (Durable, Gate) {
    let gate = Gate::default();
    let (began, begins) = mpsc::channel();
    let within = gate.clone();
    let timers = builder(store, runtime)
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

fn a_stop_waits_for_its_runs(runtime: Option<&Runtime>) {
    let store = Memory::new();
    let (timers, gate) = at_work(&store, runtime);
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

fn a_stop_that_nobody_waits_for_goes_on(runtime: Option<&Runtime>) {
    let store = Memory::new();
    let (timers, gate) = at_work(&store, runtime);
    let refusal = refuse_threads();
    drop(timers.stop(MINUTE));
    gate.open();
    wait::until("it has stopped", || {
        timers.schedule("q", "k", MINUTE, &1).wait().is_err()
    });
    drop(refusal);
    assert_eq!(timers.stop(MINUTE).wait().unwrap().unfinished, 0);
}

fn a_start_that_gets_no_threads_fails_and_leaves_none(runtime: Option<&Runtime>) {
    let store = Memory::new();
    wait::until("those of the cases before have ended", || {
        threads() <= at_rest(runtime)
    });
    let before = threads();
    let refusal = refuse_threads();
    let start = || {
        builder(&store, runtime)
            .handle("q", |_: &Due<u32>| ())
            .start()
    };
    let refused = start().map(drop);
    drop(refusal);
    assert!(matches!(refused, Err(StartError::Spawn(_))), "{refused:?}");
    wait::until("its threads have ended", || threads() == before);
    start().unwrap().stop(Duration::ZERO).wait().unwrap();
}

fn a_limit_needs_a_thread_only_if_a_task_awaits_it(runtime: Option<&Runtime>) {
    let store = Memory::new();
    wait::until("those of the cases before have ended", || {
        threads() <= at_rest(runtime)
    });
    let timers = builder(&store, runtime).start().unwrap();
    let with_the_client = threads();
    store.inject(|_| MemoryFault::Hang);
    let schedule = |limit| timers.schedule("q", "k", MINUTE, &1).within(limit);
    let short = Duration::from_millis(5);
    let over = Err(CallError::TimedOut(short));
    assert_eq!(schedule(short).wait(), over);
    assert_eq!(threads(), with_the_client);

    let tokio = tokio::runtime::Builder::new_current_thread();
    let tokio = { tokio }.build().unwrap();
    let refusal = refuse_threads();
    // On a runtime the limit needs no thread.
    let within = if runtime.is_some() { short } else { MINUTE };
    let refused = tokio.block_on(schedule(within));
    drop(refusal);
    match runtime {
        Some(_) => assert_eq!(refused, over),
        None => assert!(matches!(refused, Err(CallError::Unknown(_))), "{refused:?}"),
    }
    // The next one has its thread, and all others share it.
    let with_limits = with_the_client + usize::from(runtime.is_none());
    for _ in 0..3 {
        assert_eq!(tokio.block_on(schedule(short)), over);
        assert_eq!(threads(), with_limits);
    }
    let kept = schedule(MINUTE);
    store.heal();
    drop(timers);
    kept.wait().unwrap();
    wait::until("all threads have ended", || threads() <= at_rest(runtime));
}
