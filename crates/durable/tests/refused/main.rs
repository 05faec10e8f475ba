//! What happens when the system starts no further thread. One test, since the limit holds for the
//! whole process, and a thread of another test must not start meanwhile.
#![cfg(target_os = "linux")]

use std::sync::mpsc;
use std::time::Duration;

use kit::gate::Gate;
use kit::refusal::{refuse_threads, starts_threads};
use kit::wait;
use tourbillon_durable::{Due, Durable, Memory, StartError};

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn nothing_is_lost_when_threads_are_refused() {
    let cases: [(&str, fn()); 3] = [
        ("a_stop_waits_for_its_runs", a_stop_waits_for_its_runs),
        (
            "a_stop_that_nobody_waits_for_goes_on",
            a_stop_that_nobody_waits_for_goes_on,
        ),
        (
            "a_start_that_gets_no_threads_fails_and_leaves_none",
            a_start_that_gets_no_threads_fails_and_leaves_none,
        ),
    ];
    for (name, case) in cases {
        println!("{name}");
        case();
    }
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
    timers.schedule("q", "k", Duration::ZERO, &1).unwrap();
    wait::next(&begins);
    (timers, gate)
}

fn a_stop_waits_for_its_runs() {
    let store = Memory::new();
    let (timers, gate) = at_work(&store);
    let refusal = refuse_threads();
    assert!(!starts_threads());
    let end = timers.stop_async(MINUTE);
    // Calls go on meanwhile, since the handler may need them.
    timers.schedule("q", "next", MINUTE, &1).unwrap();
    gate.open();
    let report = end.wait().unwrap();
    drop(refusal);
    assert_eq!((report.unfinished, report.has_left), (0, true));
    assert!(timers.schedule("q", "late", MINUTE, &1).is_err());
}

fn a_stop_that_nobody_waits_for_goes_on() {
    let store = Memory::new();
    let (timers, gate) = at_work(&store);
    let refusal = refuse_threads();
    drop(timers.stop_async(MINUTE));
    gate.open();
    wait::until("it has stopped", || {
        timers.schedule("q", "k", MINUTE, &1).is_err()
    });
    drop(refusal);
    assert_eq!(timers.stop(MINUTE).unfinished, 0);
}

fn a_start_that_gets_no_threads_fails_and_leaves_none() {
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
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
    again.start().unwrap().stop(Duration::ZERO);
}
