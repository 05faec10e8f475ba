//! Spans and events of the crate `tracing`.
//!
//! A test crate of its own, because a process has one subscriber.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use kit::traces::{self, Span, Told};
use kit::{quiet, wait};
use tourbillon_durable::{
    Due, Durable, DurableBuilder, Ending, Memory, MemoryCall, MemoryFault, Meta, NextLayer,
    RetryPolicy, StoreError,
};
use tracing::Level;

const NOW: Duration = Duration::ZERO;
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn node(store: &Memory) -> DurableBuilder {
    traces::listen();
    Durable::builder(store.clone())
        .poll_interval(Duration::from_millis(20))
        .node_lease(Duration::from_secs(60))
}

/// The closed spans of the runs of this key, when there are as many.
#[track_caller]
fn closed(key: &str, count: usize) -> Vec<Span> {
    let traces = traces::listen();
    let find = || traces.spans("key", key).into_iter().map(|(_, span)| span);
    wait::until("the spans are closed", || {
        find().filter(|span| span.is_closed).count() == count
    });
    assert_eq!(find().count(), count);
    find().collect()
}

#[track_caller]
fn event(field: &str, value: &str) -> Told {
    let traces = traces::listen();
    wait::until("it is told", || !traces.events(field, value).is_empty());
    traces.events(field, value).remove(0)
}

#[test]
fn a_run_has_a_span_with_its_outcome_and_the_context_of_its_caller() {
    let timers = node(&Memory::new())
        .trace_context(|| Some(PARENT.to_owned()))
        .handle("q", |due: &Due<String>| match due.payload().as_str() {
            "done" => Ok(Ending::Done),
            "again" => Ok(Ending::Again(Duration::from_secs(60))),
            "failed" => Err("an error"),
            _ => panic!("{}: a panic", quiet::WANTED),
        })
        .retry(RetryPolicy::never())
        .start()
        .unwrap();
    for outcome in ["done", "again", "failed", "panicked"] {
        let key = format!("outcome {outcome}");
        timers.schedule("q", &key, NOW, outcome).wait().unwrap();
        let span = closed(&key, 1).remove(0);
        assert_eq!(
            (span.level, span.target),
            (Level::INFO, "tourbillon_durable")
        );
        let field = |name: &str| span.fields.get(name).map(String::as_str);
        assert_eq!(field("outcome"), Some(outcome));
        assert_eq!((field("queue"), field("attempt")), (Some("q"), Some("1")));
        assert_eq!(field("traceparent"), Some(PARENT));
        assert!(field("lateness").is_some());
        assert_eq!((span.entered, span.exited), (1, 1), "{outcome}");
    }
}

#[test]
fn a_traceparent_of_another_form_is_in_no_span() {
    let timers = node(&Memory::new())
        .handle("q", |_: &Due<()>| ())
        .start()
        .unwrap();
    let meta = std::collections::BTreeMap::from([("traceparent", "wrong")]);
    let meta = Meta::new(&meta).unwrap();
    timers
        .meta(&meta)
        .schedule("q", "wrong parent", NOW, &())
        .wait()
        .unwrap();
    let span = closed("wrong parent", 1).remove(0);
    assert!(!span.fields.contains_key("traceparent"), "{span:?}");
}

#[test]
fn handlers_and_layers_are_in_the_span_and_a_layer_has_it_before() {
    let (sender, seen) = mpsc::channel();
    let told = sender.clone();
    let timers = node(&Memory::new())
        .around(move |run| {
            let id = run.span().id().map(|id| id.into_u64());
            told.send((id, traces::current())).unwrap();
            let told = told.clone();
            move |next: NextLayer<'_>| {
                told.send((id, traces::current())).unwrap();
                next.run()
            }
        })
        .handle("q", move |_: &Due<()>| {
            sender.send((None, traces::current())).unwrap();
        })
        .start()
        .unwrap();
    timers.schedule("q", "layers", NOW, &()).wait().unwrap();
    let (id, current) = wait::next(&seen);
    assert!(id.is_some());
    assert_ne!(current, id, "it is not entered yet");
    assert_eq!(wait::next(&seen), (id, id));
    assert_eq!(wait::next(&seen), (None, id));
    closed("layers", 1);
}

#[test]
fn a_future_is_in_its_span_at_each_poll() {
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(1).build().unwrap();
    let (sender, seen) = mpsc::channel();
    let timers = node(&Memory::new())
        .handle_tokio("q", runtime.handle().clone(), move |_: Due<()>| {
            let (sender, made) = (sender.clone(), traces::current());
            async move {
                let first = traces::current();
                tokio::task::yield_now().await;
                sender.send([made, first, traces::current()]).unwrap();
            }
        })
        .start()
        .unwrap();
    timers.schedule("q", "polls", NOW, &()).wait().unwrap();
    let [made, first, second] = wait::next(&seen);
    assert!(made.is_some() && made == first && first == second);
    let span = closed("polls", 1).remove(0);
    assert_eq!((span.entered, span.exited), (2, 2));
}

#[test]
fn a_run_whose_runtime_ends_closes_its_span_as_failed() {
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(1).build().unwrap();
    let (sender, started) = mpsc::channel();
    let timers = node(&Memory::new())
        .handle_tokio("q", runtime.handle().clone(), move |_: Due<()>| {
            let sender = sender.clone();
            async move {
                sender.send(()).unwrap();
                std::future::pending::<()>().await;
            }
        })
        .retry(RetryPolicy::never())
        .start()
        .unwrap();
    timers
        .schedule("q", "runtime ends", NOW, &())
        .wait()
        .unwrap();
    wait::next(&started);
    runtime.shutdown_background();
    assert_eq!(closed("runtime ends", 1)[0].fields["outcome"], "failed");
}

#[test]
fn a_listener_of_runs_that_lags_keeps_no_span_open() {
    let gate = kit::gate::Gate::default();
    let shut = gate.clone();
    let timers = node(&Memory::new())
        .handle("q", |_: &Due<()>| ())
        .on_run(move |_| shut.pass())
        .start()
        .unwrap();
    timers.schedule("q", "lags", NOW, &()).wait().unwrap();
    closed("lags", 1);
    gate.open();
}

#[test]
fn a_subscriber_that_panics_keeps_no_run_from_its_end() {
    for call in ["new_span", "enter", "exit", "try_close", "event"] {
        let queue = traces::panics_at(call);
        let (sender, events) = mpsc::channel();
        let timers = node(&Memory::new())
            .handle(queue.clone(), |due: &Due<bool>| match due.payload() {
                true => Ok(()),
                false => Err("an error"),
            })
            .retry(RetryPolicy::never())
            .on_event(move |event| drop(sender.send(event.clone())))
            .start()
            .unwrap();
        timers.schedule(&queue, "good", NOW, &true).wait().unwrap();
        wait::until("it succeeds", || timers.stats().succeeded == 1);
        timers.schedule(&queue, "bad", NOW, &false).wait().unwrap();
        wait::until("it is dead", || timers.stats().dead == 1);
        let stats = timers.stats();
        assert_eq!((stats.panicked, stats.running), (0, 0), "{call}");
        // The listener gets its events all the same.
        wait::next(&events);
        wait::next(&events);
    }
}

#[test]
fn events_of_operators_are_events_of_the_subscriber_without_a_listener() {
    let timers = node(&Memory::new())
        .handle("events", |due: &Due<u32>| {
            assert!(*due.payload() == 1, "{}: told", quiet::WANTED);
            Err::<(), _>("an error")
        })
        .retry(RetryPolicy::never())
        .slow_after(NOW)
        .start()
        .unwrap();
    timers.schedule("events", "fails", NOW, &1).wait().unwrap();
    let failed = event("key", "fails");
    assert_eq!(
        (failed.level, failed.target),
        (Level::WARN, "tourbillon_durable")
    );
    assert_eq!(failed.fields["message"], "a handler has failed");
    assert_eq!(
        (&*failed.fields["error"], &*failed.fields["attempt"]),
        ("an error", "1")
    );
    // No thread of the node, nor that of a handler.
    assert_eq!(failed.thread, "durable-events");
    wait::until("all are told", || {
        traces::listen().events("key", "fails").len() == 3
    });
    let told = traces::listen().events("key", "fails");
    let messages: Vec<_> = told.iter().map(|told| &*told.fields["message"]).collect();
    assert!(messages.contains(&"a run was slow"), "{messages:?}");
    let dead = told
        .iter()
        .find(|told| told.fields["message"] == "a timer was given up");
    assert_eq!(dead.map(|dead| dead.level), Some(Level::ERROR));
    timers.schedule("events", "panics", NOW, &2).wait().unwrap();
    assert_eq!(event("key", "panics").fields["panic"], "wanted: told");
    timers
        .schedule("events", "text", NOW, "seven")
        .wait()
        .unwrap();
    assert!(event("key", "text").fields["error"].contains("invalid type"));
}

#[test]
fn an_outage_is_an_error_and_its_end_an_information() {
    let store = Memory::new();
    let timers = node(&store).handle("q", |_: &Due<()>| ()).start().unwrap();
    let has_failed = AtomicBool::new(false);
    store.inject(move |call| match call {
        // Relaxed: one call fails.
        MemoryCall::Poll(_) if !has_failed.swap(true, Ordering::Relaxed) => {
            MemoryFault::Fail(StoreError::Unavailable("an outage".to_owned()))
        }
        _ => MemoryFault::None,
    });
    let down = event("message", "an outage of the store has begun");
    assert_eq!(down.level, Level::ERROR);
    assert!(down.fields.contains_key("work"), "{down:?}");
    assert_eq!(
        event("message", "the outage of the store is over").level,
        Level::INFO
    );
    drop(timers);
}
