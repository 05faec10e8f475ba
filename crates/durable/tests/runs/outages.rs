//! An outage of the store, whatever its cause: one event at its begin and one at its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use kit::wait;
use tourbillon_durable::StoreError;
use tourbillon_durable::{
    Due, Durable, DurableEvent, Memory, MemoryCall, MemoryFault, StartError, StoreWork,
};

use super::setup::{HOUR, NOW, SECOND, ms, node, settled, short_node};

/// Whether a call is of the kind that fails.
type IsIt = fn(&MemoryCall<'_>) -> bool;

fn refused() -> StoreError {
    StoreError::Refused("no rights".into())
}

/// A node, and what it reports of the store.
fn start(store: &Memory) -> (Durable, Receiver<DurableEvent>) {
    let (sender, events) = mpsc::channel();
    let timers = node(store)
        .on_event(move |event| {
            if matches!(
                event,
                DurableEvent::StoreDown { .. } | DurableEvent::StoreUp
            ) {
                sender.send(event.clone()).unwrap();
            }
        })
        .handle("q", |_: &Due<u32>| ())
        .start()
        .unwrap();
    timers.schedule("q", "first", NOW, &0).wait().unwrap();
    settled(&timers, "q", "first");
    (timers, events)
}

#[track_caller]
fn goes_down(events: &Receiver<DurableEvent>, of: StoreWork, why: &str) {
    let down = wait::next(events);
    assert!(
        matches!(&down, DurableEvent::StoreDown { work, error, .. } if *work == of && error.contains(why)),
        "{of:?}: {down:?}"
    );
}

/// Refuses one kind of calls.
fn refuse(store: &Memory, is_it: impl Fn(&MemoryCall<'_>) -> bool + Send + Sync + 'static) {
    store.inject(move |call| match is_it(call) {
        true => MemoryFault::Fail(refused()),
        false => MemoryFault::None,
    });
}

#[test]
fn each_part_of_the_work_that_is_refused_is_an_outage_with_one_begin_and_one_end() {
    let parts: [(StoreWork, IsIt); 4] = [
        (StoreWork::Poll, |call| matches!(call, MemoryCall::Poll(_))),
        (StoreWork::Claim, |call| {
            matches!(call, MemoryCall::Claim(_))
        }),
        (StoreWork::Settle, |call| {
            matches!(call, MemoryCall::Settle(_))
        }),
        (StoreWork::Beat, |call| matches!(call, MemoryCall::Beat(_))),
    ];
    for (work, is_it) in parts {
        let store = Memory::new();
        let (sender, events) = mpsc::channel();
        // Beats each 60 ms.
        let timers = short_node(&store)
            .on_event(move |event| sender.send(event.clone()).unwrap())
            .handle("q", |_: &Due<u32>| ())
            .start()
            .unwrap();
        refuse(&store, is_it);
        timers.schedule("q", "k", NOW, &0).wait().unwrap();
        let mut seen = vec![wait::next(&events)];
        let errors = timers.stats().store_errors;
        wait::until("it is refused again and again", || {
            timers.stats().store_errors > errors + 5
        });
        assert_eq!(timers.stats().stopped_work, 1, "{work:?}");
        store.heal();
        settled(&timers, "q", "k");
        wait::until("all works again", || timers.stats().stopped_work == 0);
        timers.stop(SECOND).wait().unwrap();
        drop(timers);
        seen.extend(wait::all(&events));
        let is_of_store = |event: &DurableEvent| {
            matches!(
                event,
                DurableEvent::StoreDown { .. } | DurableEvent::StoreUp
            )
        };
        seen.retain(is_of_store);
        assert!(
            matches!(&seen[..], [DurableEvent::StoreDown { work: stopped, error, .. }, DurableEvent::StoreUp]
                if *stopped == work && error.contains("no rights")),
            "{work:?}: {seen:?}"
        );
    }
}

#[test]
fn a_connection_that_is_refused_is_an_outage_of_the_work_that_needs_it() {
    let store = Memory::new();
    let (timers, events) = start(&store);
    // The password was changed, and the server has ended the connections.
    let (cut, cuts) = mpsc::channel();
    let cut = std::sync::Mutex::new(cut);
    store.inject(move |call| match call {
        MemoryCall::Connect => MemoryFault::Fail(refused()),
        MemoryCall::Poll(_) => {
            let _ = cut.lock().unwrap().send(());
            MemoryFault::Fail(StoreError::Unavailable("the connection has ended".into()))
        }
        _ => MemoryFault::None,
    });
    wait::next(&cuts);
    goes_down(&events, StoreWork::Poll, "the connection has ended");
    let errors = timers.stats().store_errors;
    wait::until("it tries again", || {
        timers.stats().store_errors > errors + 3
    });
    store.heal();
    assert_eq!(wait::next(&events), DurableEvent::StoreUp);
    timers.schedule("q", "k", NOW, &0).wait().unwrap();
    settled(&timers, "q", "k");
    drop(timers);
    assert_eq!(wait::all(&events), []);
}

#[test]
fn a_call_without_an_answer_is_told_within_a_second() {
    let parts: [(StoreWork, IsIt); 3] = [
        (StoreWork::Poll, |call| matches!(call, MemoryCall::Poll(_))),
        (StoreWork::Claim, |call| {
            matches!(call, MemoryCall::Claim(_))
        }),
        (StoreWork::Settle, |call| {
            matches!(call, MemoryCall::Settle(_))
        }),
    ];
    for (work, is_it) in parts {
        let store = Memory::new();
        let (timers, events) = start(&store);
        store.inject(move |call| match is_it(call) {
            true => MemoryFault::Hang,
            false => MemoryFault::None,
        });
        timers.schedule("q", "k", NOW, &0).wait().unwrap();
        goes_down(&events, work, "no answer for 1s");
        store.heal();
        assert_eq!(wait::next(&events), DurableEvent::StoreUp);
        drop(timers);
        assert_eq!(wait::all(&events), []);
    }
}

#[test]
fn an_outage_of_claims_ends_although_nothing_is_left_to_claim() {
    let store = Memory::new();
    let (timers, events) = start(&store);
    refuse(&store, |call| matches!(call, MemoryCall::Claim(_)));
    timers.schedule("q", "k", NOW, &0).wait().unwrap();
    goes_down(&events, StoreWork::Claim, "no rights");
    assert!(timers.cancel("q", "k").wait().unwrap().is_cancelled());
    assert_eq!(timers.stats().stopped_work, 1);
    store.heal();
    assert_eq!(wait::next(&events), DurableEvent::StoreUp);
    drop(timers);
    assert_eq!(wait::all(&events), []);
}

#[test]
fn several_parts_are_one_outage() {
    let store = Memory::new();
    let (timers, events) = start(&store);
    timers.schedule("q", "k", ms(100), &0).wait().unwrap();
    refuse(&store, |_| true);
    wait::until("several parts have stopped", || {
        timers.stats().stopped_work > 1
    });
    // One after the other comes back.
    refuse(&store, |call| matches!(call, MemoryCall::Claim(_)));
    wait::until("all others work", || timers.stats().stopped_work == 1);
    store.heal();
    settled(&timers, "q", "k");
    wait::until("all works", || timers.stats().stopped_work == 0);
    drop(timers);
    let seen = wait::all(&events);
    assert!(
        matches!(
            &seen[..],
            [DurableEvent::StoreDown { .. }, DurableEvent::StoreUp]
        ),
        "{seen:?}"
    );
}

#[test]
fn a_poll_that_was_under_way_at_an_exchange_does_not_make_it_two() {
    let store = Memory::new();
    let (sender, events) = mpsc::channel();
    let timers = node(&store)
        .on_event(move |event| {
            if matches!(event, DurableEvent::StoreReplaced { .. }) {
                sender.send(event.clone()).unwrap();
            }
        })
        .handle("q", |_: &Due<u32>| ())
        .start()
        .unwrap();
    // A poll has been carried out, and its answer is on its way.
    let (polls, polled) = mpsc::channel();
    let (answer, answers) = mpsc::channel::<()>();
    let held = std::sync::Mutex::new(Some((polls, answers)));
    store.inject(move |call| match call {
        MemoryCall::Poll(_) => match held.lock().unwrap().take() {
            Some((polls, answers)) => MemoryFault::Then(Box::new(move || {
                polls.send(()).unwrap();
                let _ = answers.recv();
            })),
            None => MemoryFault::None,
        },
        _ => MemoryFault::None,
    });
    wait::next(&polled);
    store.inject(|_| MemoryFault::Fail(StoreError::Replaced("another one".into())));
    timers.schedule("q", "k", HOUR, &0).wait().unwrap_err();
    wait::next(&events);
    drop(answer);
    let before = timers.stats().replaced;
    wait::until("the node finds it too", || {
        timers.stats().replaced > before + 3
    });
    store.heal();
    wait::until("all works again", || timers.stats().stopped_work == 0);
    timers.stop(SECOND).wait().unwrap();
    drop(timers);
    assert_eq!(wait::all(&events), []);
}

#[test]
fn a_start_that_cannot_work_fails() {
    let parts: [IsIt; 4] = [
        |call| matches!(call, MemoryCall::Poll(_)),
        |call| matches!(call, MemoryCall::Beat(_)),
        |call| matches!(call, MemoryCall::Claim(_)),
        |call| matches!(call, MemoryCall::Settle(_)),
    ];
    for is_it in parts {
        let store = Memory::new();
        refuse(&store, is_it);
        let (sender, events) = mpsc::channel();
        let builder = node(&store).on_event(move |event| sender.send(event.clone()).unwrap());
        let failed = builder.handle("q", |_: &Due<u32>| ()).start();
        let error = failed.map(drop).unwrap_err();
        assert!(
            matches!(&error, StartError::Store(StoreError::Refused(why)) if why == "no rights"),
            "{error:?}"
        );
        // The error is enough.
        assert_eq!(wait::all(&events), []);
        // A client makes none of these calls.
        Durable::builder(store).start().unwrap();
    }
}

#[test]
fn what_users_are_refused_is_no_outage_of_a_node() {
    let store = Memory::new();
    let (timers, events) = start(&store);
    refuse(&store, |call| matches!(call, MemoryCall::Write(_)));
    assert!(timers.schedule("q", "k", HOUR, &0).wait().is_err());
    assert_eq!(timers.stats().failed_calls, 1);
    store.heal();
    drop(timers);
    assert_eq!(wait::all(&events), []);
}

#[test]
fn the_calls_of_a_client_tell_of_an_outage() {
    let store = Memory::new();
    let (sender, events) = mpsc::channel();
    let client = Durable::builder(store.clone())
        .on_event(move |event| sender.send(event.clone()).unwrap())
        .start()
        .unwrap();
    refuse(&store, |call| matches!(call, MemoryCall::Write(_)));
    for _ in 0..3 {
        client.schedule("q", "k", HOUR, &0).wait().unwrap_err();
        client.get("q", "k").wait().unwrap();
    }
    goes_down(&events, StoreWork::Write, "no rights");
    store.heal();
    client.schedule("q", "k", HOUR, &0).wait().unwrap();
    assert_eq!(wait::next(&events), DurableEvent::StoreUp);
    drop(client);
    assert_eq!(wait::all(&events), []);
}

#[test]
fn an_outage_at_the_join_is_told_and_ends() {
    let store = Memory::new();
    refuse(&store, |call| matches!(call, MemoryCall::Join(_)));
    let (sender, events) = mpsc::channel();
    let timers = node(&store)
        .on_event(move |event| sender.send(event.clone()).unwrap())
        .handle("q", |_: &Due<u32>| ())
        .start()
        .unwrap();
    goes_down(&events, StoreWork::Join, "no rights");
    store.heal();
    assert_eq!(wait::next(&events), DurableEvent::StoreUp);
    timers
        .schedule("q", "k", Duration::ZERO, &0)
        .wait()
        .unwrap();
    settled(&timers, "q", "k");
}

#[test]
fn a_lost_claim_whose_key_was_scheduled_for_later_ends_with_a_cancel() {
    let store = Memory::new();
    let (sender, started) = mpsc::channel();
    let timers = node(&store)
        .handle("q", move |due: &Due<u32>| {
            sender.send(*due.payload()).unwrap();
        })
        .start()
        .unwrap();
    // The node can't look before the key was scheduled again.
    let is_lost = AtomicBool::new(false);
    store.inject(move |call| match call {
        MemoryCall::Claim(_) => {
            is_lost.store(true, Ordering::SeqCst);
            MemoryFault::LoseAnswer(StoreError::Unknown("cut".into()))
        }
        MemoryCall::Poll(_) if is_lost.load(Ordering::SeqCst) => MemoryFault::Fail(refused()),
        _ => MemoryFault::None,
    });
    timers.schedule("q", "k", NOW, &1).wait().unwrap();
    let read = || timers.get("q", "k").wait().unwrap();
    wait::until("it is claimed", || {
        read().is_some_and(|timer| timer.running.is_some())
    });
    let later = timers.schedule("q", "k", HOUR, &2).wait().unwrap();
    assert!(later.running);
    store.heal();
    // A timer that is scheduled now runs, so the node has polled, and knows nothing of the other.
    timers.schedule("q", "other", NOW, &3).wait().unwrap();
    assert_eq!(wait::next(&started), 3);
    assert!(read().is_some_and(|timer| timer.follows && timer.running.is_some()));
    assert!(!timers.cancel("q", "k").wait().unwrap().is_cancelled());
    settled(&timers, "q", "k");
    drop(timers);
    assert!(wait::all(&started).is_empty());
}
