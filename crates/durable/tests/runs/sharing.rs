//! Several nodes on one store: shared work, crashes, silence.

use std::sync::mpsc;

use kit::gate::Gate;
use kit::wait;
use tourbillon_durable::{Due, Durable, DurableEvent, Memory, MemoryCall, MemoryFault};

use super::setup::{NOW, SECOND, ms, node, settled, short_node};

#[test]
fn two_nodes_share_the_work() {
    let (sender, receiver) = mpsc::channel();
    let store = Memory::new();
    let _nodes: Vec<Durable> = (0..2)
        .map(|number| {
            let sender = sender.clone();
            node(&store)
                .name(format!("node {number}"))
                .handle("q", move |due: &Due<u32>| {
                    sender.send((*due.payload(), number)).unwrap();
                })
                .start()
                .unwrap()
        })
        .collect();
    let client = Durable::builder(store.clone()).start().unwrap();
    let (mut seen, mut by) = (Vec::new(), [0; 2]);
    // In rounds, since a node that has just come sees the other one only at its next poll.
    wait::until("both have run some", || {
        let start = u32::try_from(seen.len()).unwrap();
        let many = (start..start + 200).map(|n| (n.to_string(), ms(200), n));
        client.schedule_many("q", many).wait().unwrap();
        for _ in 0..200 {
            let (payload, number) = wait::next(&receiver);
            seen.push(payload);
            by[number] += 1;
        }
        by.iter().all(|count| *count > 0)
    });
    let count = u32::try_from(seen.len()).unwrap();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..count), "each timer runs once");
}

#[test]
fn a_crashed_node_is_taken_over() {
    let store = Memory::new();
    let gate = Gate::default();
    let pass = gate.clone();
    let first = short_node(&store)
        .handle("q", move |_: &Due<()>| pass.pass())
        .start()
        .unwrap();
    first.schedule("q", "runs", NOW, &()).wait().unwrap();
    gate.crowd(1);
    first.schedule("q", "waits", ms(400), &()).wait().unwrap();
    first.crash();
    let (sender, receiver) = mpsc::channel();
    let second = short_node(&store)
        .handle("q", move |due: &Due<()>| {
            sender
                .send((due.key().to_owned(), due.crashes(), due.attempt()))
                .unwrap();
        })
        .start()
        .unwrap();
    let mut seen = [wait::next(&receiver), wait::next(&receiver)];
    seen.sort();
    assert_eq!(seen[0], ("runs".to_owned(), 1, 2));
    assert_eq!(seen[1].0, "waits");
    settled(&second, "q", "runs");
    gate.open();
    // The old run has ended meanwhile, and has settled nothing.
    wait::until("the old run has ended", || first.stats().running == 0);
    wait::until("both have succeeded", || second.stats().succeeded == 2);
}

#[test]
fn a_silent_node_holds_nothing_any_more_and_comes_back() {
    let store = Memory::new();
    let (sender, events) = mpsc::channel();
    let (holds, held) = mpsc::channel();
    let gate = Gate::default();
    let pass = gate.clone();
    let silent = short_node(&store)
        .name("silent")
        .on_event(move |event| sender.send(event.clone()).unwrap())
        .handle("q", move |due: &Due<()>| {
            if due.crashes() > 0 {
                return;
            }
            holds.send(due.is_held()).unwrap();
            pass.pass();
            wait::until("the lease ends", || !due.is_held());
            holds.send(due.is_held()).unwrap();
        })
        .start()
        .unwrap();
    silent.schedule("q", "k", NOW, &()).wait().unwrap();
    assert!(wait::next(&held));
    gate.crowd(1);
    // From now on its beats get lost. It is the only node that has one.
    store.inject(|call| match call {
        MemoryCall::Beat(_) | MemoryCall::Join(_) => MemoryFault::Hang,
        _ => MemoryFault::None,
    });
    gate.open();
    assert!(!wait::next(&held));
    // Its calls go on, and another node takes its timer.
    store.heal();
    wait::until("the timer is settled", || {
        silent.get("q", "k").wait().unwrap().is_none()
    });
    silent.stop(SECOND).wait().unwrap();
    drop(silent);
    let events = wait::all(&events);
    assert!(
        !events
            .iter()
            .any(|event| matches!(event, DurableEvent::Panicked { .. })),
        "{events:?}"
    );
}

#[test]
fn a_node_that_was_declared_gone_is_fenced_and_goes_on_anew() {
    let store = Memory::new();
    let (sender, events) = mpsc::channel();
    let gate = Gate::default();
    let pass = gate.clone();
    let first = short_node(&store)
        .on_event(move |event| sender.send(event.clone()).unwrap())
        .handle("q", move |due: &Due<()>| {
            if due.attempt() == 1 {
                pass.pass();
                assert!(!due.is_held(), "another epoch does not hold this run");
            }
        })
        .start()
        .unwrap();
    first.schedule("q", "k", NOW, &()).wait().unwrap();
    gate.crowd(1);
    let epoch = std::sync::Arc::new(std::sync::OnceLock::new());
    let silent = std::sync::Arc::clone(&epoch);
    // The first node that beats from now on hangs: the second one does not exist yet.
    store.inject(move |call| match call {
        MemoryCall::Beat(one) if silent.get_or_init(|| *one) == one => MemoryFault::Hang,
        _ => MemoryFault::None,
    });
    wait::until("a beat hangs", || epoch.get().is_some());
    let second = short_node(&store)
        .handle("q", |_: &Due<()>| ())
        .start()
        .unwrap();
    settled(&second, "q", "k");
    assert_eq!(second.stats().succeeded, 1);
    store.heal();
    let mut seen = Vec::new();
    while !seen.contains(&DurableEvent::NodeGone) {
        seen.push(wait::next(&events));
    }
    assert_eq!(first.stats().gone, 1);
    gate.open();
    wait::until("the old run has ended", || first.stats().running == 0);
    assert_eq!(first.stats().panicked, 0);
    // It works again, under its new epoch.
    second.stop(SECOND).wait().unwrap();
    first.schedule("q", "again", NOW, &()).wait().unwrap();
    settled(&first, "q", "again");
}

#[test]
fn a_store_that_was_down_loses_no_timer() {
    let store = Memory::new();
    let (sender, receiver) = mpsc::channel();
    let timers = short_node(&store)
        .handle("q", move |due: &Due<u32>| {
            sender.send(*due.payload()).unwrap();
        })
        .start()
        .unwrap();
    let many = (0..50_u32).map(|n| (n.to_string(), ms(u64::from(n) * 10), n));
    timers.schedule_many("q", many).wait().unwrap();
    let mut seen = vec![wait::next(&receiver)];
    let down = || tourbillon_durable::StoreError::Unavailable("down".into());
    store.inject(move |_| MemoryFault::Fail(down()));
    wait::until("the node has noticed", || timers.stats().store_errors > 5);
    store.heal();
    wait::until("all have run", || {
        seen.extend(receiver.try_iter());
        (0..50).all(|n| seen.contains(&n))
    });
    wait::until("all are settled", || {
        timers
            .counts()
            .wait()
            .unwrap()
            .iter()
            .all(|counts| counts.waiting + counts.overdue + counts.running == 0)
    });
}
