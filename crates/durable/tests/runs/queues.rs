//! The options of queues: pauses, limits, pace, lateness, crashes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use kit::gate::Gate;
use kit::wait;
use tourbillon_durable::{Due, Durable, Late, Memory};

use super::setup::{HOUR, NOW, SECOND, ms, node, settled, short_node};

#[test]
fn a_paused_queue_does_not_run_until_it_is_resumed() {
    let (sender, receiver) = mpsc::channel();
    let other = sender.clone();
    let store = Memory::new();
    let timers = node(&store)
        .handle("paused", move |_: &Due<()>| sender.send("paused").unwrap())
        .handle("other", move |_: &Due<()>| other.send("other").unwrap())
        .start()
        .unwrap();
    timers.pause("paused").wait().unwrap();
    timers.schedule("paused", "k", NOW, &()).wait().unwrap();
    timers.schedule("other", "k", ms(100), &()).wait().unwrap();
    assert_eq!(wait::next(&receiver), "other");
    assert!(timers.get("paused", "k").wait().unwrap().is_some());
    timers.resume("paused").wait().unwrap();
    assert_eq!(wait::next(&receiver), "paused");
    settled(&timers, "paused", "k");
}

#[test]
fn a_pause_outlives_its_process() {
    let (sender, receiver) = mpsc::channel();
    let store = Memory::new();
    let client = Durable::builder(store.clone()).start().unwrap();
    client.pause("q").wait().unwrap();
    client.stop(SECOND).wait().unwrap();
    let other = sender.clone();
    let timers = node(&store)
        .handle("q", move |_: &Due<()>| sender.send("q").unwrap())
        .handle("other", move |_: &Due<()>| other.send("other").unwrap())
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    timers.schedule("other", "k", ms(50), &()).wait().unwrap();
    assert_eq!(wait::next(&receiver), "other");
    timers.resume("q").wait().unwrap();
    assert_eq!(wait::next(&receiver), "q");
}

#[test]
fn no_more_runs_than_the_limit_at_one_time() {
    let gate = Gate::default();
    let pass = gate.clone();
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (in_run, greatest) = (Arc::clone(&now), Arc::clone(&most));
    let store = Memory::new();
    let timers = node(&store)
        .handle("q", move |_: &Due<()>| {
            greatest.fetch_max(in_run.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            pass.pass();
            in_run.fetch_sub(1, Ordering::SeqCst);
        })
        .running(3)
        .handle("other", |_: &Due<()>| ())
        .start()
        .unwrap();
    let many = (0..30).map(|n| (n.to_string(), NOW, ()));
    timers.schedule_many("q", many).wait().unwrap();
    gate.crowd(3);
    // Another queue goes on meanwhile.
    timers.schedule("other", "k", ms(50), &()).wait().unwrap();
    settled(&timers, "other", "k");
    assert_eq!((gate.waiting(), timers.stats().running), (3, 3));
    gate.open();
    wait::until("all have run", || timers.stats().succeeded == 31);
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

#[test]
fn handlers_that_block_get_their_threads() {
    let gate = Gate::default();
    let pass = gate.clone();
    let store = Memory::new();
    let timers = node(&store)
        .handle("q", move |_: &Due<()>| pass.pass())
        .running(200)
        .start()
        .unwrap();
    let many = (0..200).map(|n| (n.to_string(), NOW, ()));
    timers.schedule_many("q", many).wait().unwrap();
    gate.crowd(200);
    gate.open();
    wait::until("all have run", || timers.stats().succeeded == 200);
}

#[test]
fn a_pace_spreads_what_is_due_together() {
    let store = Memory::new();
    let timers = node(&store)
        .handle("q", |_: &Due<()>| ())
        .running(1_000)
        .pace(100)
        .start()
        .unwrap();
    let start = Instant::now();
    let many = (0..300).map(|n| (n.to_string(), NOW, ()));
    timers.schedule_many("q", many).wait().unwrap();
    wait::until("all have run", || timers.stats().succeeded == 300);
    // Some may be saved up for the start, but never more than a second's.
    assert!(start.elapsed() >= ms(1_900), "{:?}", start.elapsed());
}

#[test]
fn a_timer_that_is_too_late_becomes_a_dead_letter() {
    let store = Memory::new();
    let client = Durable::builder(store.clone()).start().unwrap();
    client.schedule("q", "late", NOW, &()).wait().unwrap();
    let planned = client.get("q", "late").wait().unwrap().unwrap().planned;
    wait::until("it is late", || {
        planned.elapsed().is_ok_and(|late| late > ms(100))
    });
    let timers = node(&store)
        .handle("q", |_: &Due<()>| ())
        .late(Late::ExpireAfter(ms(50)))
        .handle("patient", |_: &Due<()>| ())
        .late(Late::ExpireAfter(HOUR))
        .start()
        .unwrap();
    wait::until("it is dead", || timers.stats().dead == 1);
    let letters = timers.dead("q", 0, 10).wait().unwrap();
    assert_eq!((letters.len(), letters[0].key.as_str()), (1, "late"));
    assert!(
        letters[0].error.contains("after its planned time"),
        "{}",
        letters[0].error
    );
    timers.schedule("patient", "k", NOW, &()).wait().unwrap();
    settled(&timers, "patient", "k");
    let stats = timers.stats();
    assert_eq!((stats.expired, stats.runs, stats.failed), (1, 1, 0));
}

#[test]
fn a_timer_that_kills_its_processes_becomes_a_dead_letter() {
    let store = Memory::new();
    let client = Durable::builder(store.clone()).start().unwrap();
    client.schedule("q", "poison", NOW, &()).wait().unwrap();
    let gate = Gate::default();
    let mut killed = Vec::new();
    for crashes in 0..2 {
        let (sender, receiver) = mpsc::channel();
        let pass = gate.clone();
        let timers = short_node(&store)
            .handle("q", move |due: &Due<()>| {
                sender.send((due.crashes(), due.attempt())).unwrap();
                pass.pass();
            })
            .crash_limit(2)
            .start()
            .unwrap();
        assert_eq!(wait::next(&receiver), (crashes, crashes + 1));
        timers.crash();
        killed.push(timers);
    }
    let last = short_node(&store)
        .handle("q", |_: &Due<()>| -> () { panic!("it must not run again") })
        .crash_limit(2)
        .start()
        .unwrap();
    wait::until("it is dead", || last.stats().dead == 1);
    let letters = client.dead("q", 0, 10).wait().unwrap();
    assert_eq!((letters[0].crashes, letters[0].fails), (2, 0));
    assert!(letters[0].error.contains("2 times"), "{}", letters[0].error);
    assert_eq!(last.stats().runs, 0);
    gate.open();
}
