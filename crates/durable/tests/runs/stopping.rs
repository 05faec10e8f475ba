//! Stops, drops and their races.

use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use kit::gate::Gate;
use kit::{runtimes, wait};
use tourbillon_durable::{CallError, Due, Durable, Memory, MemoryCall, MemoryFault};

use super::setup::{HOUR, NOW, SECOND, ms, node, settled, short_node};

/// A node whose lease is an hour: only its leave lets others go on.
fn hour_node(store: &Memory) -> tourbillon_durable::DurableBuilder {
    node(store).node_lease(HOUR)
}

#[test]
fn a_stop_waits_for_its_runs() {
    let gate = Gate::default();
    let pass = gate.clone();
    let store = Memory::new();
    let timers = node(&store)
        .handle("q", move |_: &Due<()>| pass.pass())
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    gate.crowd(1);
    let stop = timers.stop(HOUR);
    // The calls go on while handlers run.
    timers.schedule("q", "other", HOUR, &()).wait().unwrap();
    gate.open();
    let report = stop.wait().unwrap();
    assert_eq!(report.unfinished, 0);
    assert!(report.has_left);
    assert_eq!(timers.get("q", "k").wait(), Err(CallError::Stopped));
    assert_eq!(timers.stats().succeeded, 1);
    let client = Durable::builder(store).start().unwrap();
    assert_eq!(client.get("q", "k").wait().unwrap(), None);
    assert!(client.get("q", "other").wait().unwrap().is_some());
}

#[test]
fn others_go_on_at_once_with_what_a_stop_has_left() {
    let gate = Gate::default();
    let pass = gate.clone();
    let store = Memory::new();
    let first = hour_node(&store)
        .handle("q", move |_: &Due<()>| pass.pass())
        .running(2)
        .start()
        .unwrap();
    let many = (0..10).map(|n| (n.to_string(), NOW, ()));
    first.schedule_many("q", many).wait().unwrap();
    gate.crowd(2);
    let second = hour_node(&store)
        .handle("q", |_: &Due<()>| ())
        .start()
        .unwrap();
    let report = first.stop(Duration::ZERO).wait().unwrap();
    assert_eq!((report.unfinished, report.has_left), (2, true));
    wait::until("all have run elsewhere", || {
        second
            .counts()
            .wait()
            .unwrap()
            .iter()
            .all(|counts| counts.waiting + counts.overdue + counts.running == 0)
    });
    assert_eq!(second.stats().succeeded, 10);
    gate.open();
}

#[test]
fn a_stop_twice_and_from_several_threads_is_harmless() {
    let store = Memory::new();
    let timers = node(&store).handle("q", |_: &Due<()>| ()).start().unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    settled(&timers, "q", "k");
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let timers = timers.clone();
            thread::spawn(move || timers.stop(SECOND).wait().unwrap())
        })
        .collect();
    let reports: Vec<_> = threads.into_iter().map(|one| one.join().unwrap()).collect();
    assert!(
        reports
            .iter()
            .all(|report| *report == reports[0] && report.has_left)
    );
    assert_eq!(timers.stop(SECOND).wait(), Ok(reports[0]));
}

#[test]
fn a_second_stop_may_shorten_the_grace() {
    let gate = Gate::default();
    let pass = gate.clone();
    let store = Memory::new();
    let timers = node(&store)
        .handle("q", move |_: &Due<()>| pass.pass())
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    gate.crowd(1);
    let patient = timers.stop(Duration::MAX);
    let report = timers.stop(Duration::ZERO).wait().unwrap();
    assert_eq!(report.unfinished, 1);
    assert_eq!(patient.wait(), Ok(report));
    gate.open();
}

#[test]
fn a_limit_ends_the_wait_for_a_stop_and_not_the_stop() {
    let gate = Gate::default();
    let pass = gate.clone();
    let store = Memory::new();
    let timers = node(&store)
        .handle("q", move |_: &Due<()>| pass.pass())
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    gate.crowd(1);
    let over = Err(CallError::TimedOut(ms(20)));
    assert_eq!(timers.stop(HOUR).within(ms(20)).wait(), over);
    runtimes::on_all_in_turn(|runtime| {
        assert_eq!(runtime.block_on(timers.stop(HOUR).within(ms(20))), over);
    });
    gate.open();
    let report = timers.stop(HOUR).within(HOUR).wait().unwrap();
    assert_eq!((report.unfinished, report.has_left), (0, true));
}

#[test]
fn a_stop_within_a_handler_returns_at_once() {
    let (sender, receiver) = mpsc::channel();
    let shared: Arc<OnceLock<Durable>> = Arc::default();
    let own = Arc::clone(&shared);
    let store = Memory::new();
    let timers = node(&store)
        .handle("q", move |_: &Due<()>| {
            let report = own.wait().stop(HOUR).wait().unwrap();
            sender.send(report.unfinished).unwrap();
        })
        .start()
        .unwrap();
    shared.set(timers.clone()).unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    assert_eq!(wait::next(&receiver), 1);
    // The run ends, and with it the stop.
    let report = timers.stop(HOUR).wait().unwrap();
    assert_eq!((report.unfinished, report.has_left), (0, true));
    let client = Durable::builder(store).start().unwrap();
    assert_eq!(client.get("q", "k").wait().unwrap(), None);
}

#[test]
fn a_handler_may_stop_other_timers_and_wait() {
    let (sender, receiver) = mpsc::channel();
    let store = Memory::new();
    let other = node(&store)
        .handle("other", |_: &Due<()>| ())
        .start()
        .unwrap();
    let stopped = other.clone();
    let timers = node(&store)
        .handle("q", move |_: &Due<()>| {
            sender.send(stopped.stop(SECOND).wait().unwrap()).unwrap();
        })
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    assert!(wait::next(&receiver).has_left);
    assert_eq!(other.get("q", "k").wait(), Err(CallError::Stopped));
}

#[test]
fn a_drop_leaves_as_a_stop_does() {
    let store = Memory::new();
    let gate = Gate::default();
    let pass = gate.clone();
    let first = hour_node(&store)
        .handle("q", move |_: &Due<()>| pass.pass())
        .start()
        .unwrap();
    first.schedule("q", "k", NOW, &()).wait().unwrap();
    gate.crowd(1);
    drop(first);
    let second = hour_node(&store)
        .handle("q", |_: &Due<()>| ())
        .start()
        .unwrap();
    settled(&second, "q", "k");
    assert_eq!(second.stats().succeeded, 1);
    gate.open();
}

#[test]
fn the_last_clone_may_be_dropped_in_a_handler() {
    let (sender, receiver) = mpsc::channel();
    let slot: Arc<std::sync::Mutex<Option<Durable>>> = Arc::default();
    let own = Arc::clone(&slot);
    let gate = Gate::default();
    let pass = gate.clone();
    let store = Memory::new();
    let timers = hour_node(&store)
        .handle("q", move |_: &Due<()>| {
            pass.pass();
            let last = own.lock().unwrap().take();
            drop(last);
            sender.send(()).unwrap();
        })
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    *slot.lock().unwrap() = Some(timers);
    gate.open();
    wait::next(&receiver);
    // The node has left: another one goes on within the hour.
    let second = hour_node(&store)
        .handle("q", |_: &Due<()>| ())
        .start()
        .unwrap();
    second.schedule("q", "last", NOW, &()).wait().unwrap();
    settled(&second, "q", "last");
    settled(&second, "q", "k");
}

#[test]
fn a_store_that_hangs_does_not_hold_up_a_stop_for_good() {
    let store = Memory::new();
    let timers = short_node(&store)
        .handle("q", |_: &Due<()>| ())
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    settled(&timers, "q", "k");
    store.inject(|_| MemoryFault::Hang);
    let hangs = timers.schedule("q", "hangs", SECOND, &());
    let waits = timers.schedule("q", "waits", SECOND, &());
    let start = Instant::now();
    let report = timers.stop(ms(10)).wait().unwrap();
    assert!(!report.has_left);
    assert!(start.elapsed() < SECOND * 30, "{:?}", start.elapsed());
    store.heal();
    // It was under way, and is carried out. The other one is not.
    hangs.wait().unwrap();
    let waits = waits.wait();
    assert!(
        matches!(waits, Err(CallError::Stopped) | Ok(_)),
        "{waits:?}"
    );
}

#[test]
fn what_waits_for_a_thread_is_given_back_by_a_stop() {
    let gate = Gate::default();
    let pass = gate.clone();
    let store = Memory::new();
    let timers = node(&store)
        .handle("q", move |_: &Due<()>| pass.pass())
        .running(5_000)
        .start()
        .unwrap();
    // The pool has 1,024 threads at most; the others wait for one.
    let many = (0..1_500).map(|n| (n.to_string(), NOW, ()));
    timers.schedule_many("q", many).wait().unwrap();
    wait::until("all are claimed", || {
        timers.counts().wait().unwrap()[0].running == 1_500
    });
    let stop = timers.stop(HOUR);
    gate.open();
    let report = stop.wait().unwrap();
    assert_eq!(report.unfinished, 0);
    let stats = timers.stats();
    assert_eq!(stats.succeeded + stats.given_back, 1_500);
    let client = Durable::builder(store).start().unwrap();
    let counts = client.counts().wait().unwrap();
    let left: u64 = counts
        .iter()
        .map(|counts| counts.overdue + counts.waiting)
        .sum();
    assert_eq!(left, stats.given_back);
    assert!(counts.iter().all(|counts| counts.running == 0));
}

#[test]
fn a_client_joins_no_nodes() {
    let (sender, receiver) = mpsc::channel();
    let store = Memory::new();
    store.inject(move |call| {
        if let MemoryCall::Join(_) | MemoryCall::Poll(_) | MemoryCall::Leave(_) = call {
            sender.send(format!("{call:?}")).unwrap();
        }
        MemoryFault::None
    });
    let client = Durable::builder(store).start().unwrap();
    client.schedule("q", "k", NOW, &()).wait().unwrap();
    let report = client.stop(SECOND).wait().unwrap();
    assert_eq!((report.unfinished, report.has_left), (0, false));
    assert_eq!(receiver.try_iter().count(), 0);
}
