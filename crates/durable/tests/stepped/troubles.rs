//! Stores that fail, and handlers that do what they should not.

use std::sync::mpsc::{channel, sync_channel};
use std::time::Duration;

use tourbillon_durable::{Due, Durable, MemoryCall, MemoryFault, StoreError};

use crate::support::{HOUR, MINUTE, SECOND, Seen, advance, at, keys, memory, schedule, telling};

#[test]
fn time_passes_during_an_outage_and_runs_come_after_it() {
    let store = memory();
    let (told, seen) = channel();
    let builder = Durable::builder(store.clone()).handle("q", telling(&told));
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    schedule(&timers, "a", MINUTE);
    store.inject(|_| MemoryFault::Fail(StoreError::Unavailable("an outage".into())));
    advance(&steps, 2 * MINUTE);
    assert_eq!(keys(&seen), [""; 0]);
    assert!(timers.schedule("q", "b", MINUTE, &7).wait().is_err());
    assert!(timers.stats().store_errors > 0);
    store.heal();
    // The attempts have a pause of up to a second.
    advance(&steps, 2 * SECOND);
    let runs: Vec<Seen> = seen.try_iter().collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert_eq!(runs[0].due, at(MINUTE));
    assert!(runs[0].late >= MINUTE, "{runs:?}");
}

#[test]
fn an_end_whose_answer_is_lost_is_settled_once() {
    let store = memory();
    let (told, seen) = channel();
    let builder = Durable::builder(store.clone()).handle("q", telling(&told));
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    schedule(&timers, "a", MINUTE);
    store.inject(|call| match call {
        MemoryCall::Settle(_) => MemoryFault::LoseAnswer(StoreError::Unknown("cut".into())),
        _ => MemoryFault::None,
    });
    advance(&steps, 2 * MINUTE);
    store.heal();
    advance(&steps, HOUR);
    assert_eq!(keys(&seen), ["a"]);
    assert_eq!(timers.counts().wait().map(|counts| counts.len()), Ok(0));
}

#[test]
fn a_store_that_hangs_holds_up_no_time() {
    let store = memory();
    let (told, seen) = channel();
    let builder = Durable::builder(store.clone()).handle("q", telling(&told));
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    schedule(&timers, "a", MINUTE);
    store.inject(|call| match call {
        MemoryCall::Claim(_) => MemoryFault::Hang,
        _ => MemoryFault::None,
    });
    advance(&steps, 61 * SECOND);
    assert_eq!(keys(&seen), [""; 0]);
    store.heal();
    advance(&steps, MINUTE);
    assert_eq!(keys(&seen), ["a"]);
    drop(timers);
}

#[test]
fn steps_within_a_handler_panic_and_harm_nobody() {
    let (send, receive) = sync_channel(1);
    let receive = std::sync::Mutex::new(receive);
    let (told, messages) = channel();
    let builder = Durable::builder(memory())
        .handle("q", move |_: &Due<u64>| {
            let receive = receive.lock().expect("no panic holds it");
            let steps: tourbillon_durable::test_util::DurableSteps =
                receive.recv().expect("the test has sent it");
            drop(receive);
            drop(steps.advance(SECOND));
        })
        .on_event(move |event| drop(told.send(format!("{event:?}"))));
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    schedule(&timers, "a", MINUTE);
    send.send(steps.clone()).expect("the handler takes it");
    advance(&steps, MINUTE);
    assert_eq!(timers.stats().panicked, 1);
    let told = messages.recv().expect("an event");
    assert!(told.contains("inside one of their handlers"), "{told}");
    assert_eq!(steps.now().wait(), Ok(at(MINUTE)));
}

#[test]
fn a_handler_that_blocks_holds_up_its_call_alone() {
    let (go, wait) = channel::<()>();
    let (begun, begins) = channel();
    let wait = std::sync::Mutex::new(wait);
    let builder = Durable::builder(memory()).handle("q", move |_: &Due<u64>| {
        begun.send(()).expect("the test listens");
        wait.lock()
            .expect("no panic")
            .recv()
            .expect("the test lets it go on");
    });
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    schedule(&timers, "a", MINUTE);
    let answer = steps.advance(HOUR);
    begins.recv().expect("it has begun");
    // The answer is not there, and calls of users go on.
    assert!(
        timers
            .get("q", "a")
            .wait()
            .is_ok_and(|found| found.is_some())
    );
    schedule(&timers, "b", 2 * HOUR);
    go.send(()).expect("the handler waits");
    answer.wait().expect("the clock is the test's");
    assert_eq!(timers.stats().succeeded, 1);
    assert_eq!(steps.now().wait(), Ok(at(HOUR)));
}

#[test]
fn timers_that_are_dropped_during_a_call_leave() {
    let (handle, own) = channel::<Durable>();
    let own = std::sync::Mutex::new(own);
    let store = memory();
    let builder = Durable::builder(store.clone()).handle("q", move |_: &Due<u64>| {
        // The last clone, within a handler.
        drop(
            own.lock()
                .expect("no panic")
                .recv()
                .expect("the test has sent it"),
        );
    });
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    schedule(&timers, "a", MINUTE);
    schedule(&timers, "b", 2 * MINUTE);
    handle.send(timers).expect("the handler takes it");
    advance(&steps, HOUR);
    let (reader, _) = Durable::builder(store)
        .start_stepped()
        .expect("the clock is the test's");
    let nodes = reader.nodes().wait().expect("the store is there");
    assert!(nodes.iter().all(|node| node.gone.is_some()), "{nodes:?}");
    assert!(
        reader
            .get("q", "b")
            .wait()
            .is_ok_and(|found| found.is_some())
    );
}

#[test]
fn a_paused_queue_holds_up_no_time() {
    let store = memory();
    let (told, seen) = channel();
    let builder = Durable::builder(store)
        .handle("q", telling(&told))
        .handle("other", |_: &Due<u64>| ());
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    schedule(&timers, "a", MINUTE);
    timers.pause("q").wait().expect("the store is there");
    timers
        .schedule("nobody", "x", MINUTE, &7)
        .wait()
        .expect("the store takes it");
    advance(&steps, 1_000 * HOUR);
    assert_eq!(keys(&seen), [""; 0]);
    timers.resume("q").wait().expect("the store is there");
    advance(&steps, Duration::ZERO);
    assert_eq!(keys(&seen), ["a"]);
}
