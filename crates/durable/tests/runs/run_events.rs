//! What a program that follows all runs is told.

use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use kit::gate::Gate;
use kit::{quiet, wait};
use tourbillon_durable::{
    Due, Durable, DurableBuilder, DurableEvent, Ending, QueueBuilder, RunEvent, RunInfo, RunOutcome,
};

use super::setup::{Fresh, HOUR, NOW, SECOND, ms, node_on, on_each_store, settled, soon};

on_each_store! {
    each_run_has_a_start_and_an_end_with_what_follows,
    what_does_not_start_has_neither,
    the_duration_is_that_of_the_handler_also_after_a_stop,
    a_thousand_runs_displace_no_alarm,
    a_listener_that_panics_or_calls_the_timers_goes_on,
    a_slow_run_is_an_event_and_others_are_not,
    #[cfg(feature = "tokio")]
    futures_have_events_too_and_one_whose_runtime_ends_has_failed,
    #[cfg(feature = "serde")]
    events_of_runs_can_be_serialized,
}

/// All events of runs of a node with this queue.
fn followed(
    fresh: Fresh<'_>,
    queue: impl FnOnce(DurableBuilder) -> QueueBuilder,
) -> (Durable, Receiver<RunEvent>) {
    let (sender, events) = mpsc::channel();
    let node = node_on(fresh()).on_run(move |event| drop(sender.send(event.clone())));
    (queue(node).start().unwrap(), events)
}

#[track_caller]
fn started(events: &Receiver<RunEvent>) -> RunInfo {
    match wait::next(events) {
        RunEvent::Started { run, .. } => run,
        other => panic!("no start: {other:?}"),
    }
}

#[track_caller]
fn ended(events: &Receiver<RunEvent>) -> (RunInfo, RunOutcome, Option<Duration>) {
    match wait::next(events) {
        RunEvent::Ended {
            run,
            outcome,
            next_attempt,
            ..
        } => (run, outcome, next_attempt),
        other => panic!("no end: {other:?}"),
    }
}

fn each_run_has_a_start_and_an_end_with_what_follows(fresh: Fresh<'_>) {
    quiet::hush();
    let (timers, events) = followed(fresh, |node| {
        node.handle("q", |due: &Due<String>| {
            match (due.payload().as_str(), due.attempt()) {
                ("fails", 1) => Err("an error".to_owned()),
                ("fails", _) => panic!("{}: a panic", quiet::WANTED),
                ("again", _) => Ok(Ending::Again(HOUR)),
                _ => Ok(Ending::Done),
            }
        })
        .retry(soon(2))
    });
    let schedule = |key: &str| timers.schedule("q", key, NOW, key).wait().unwrap();
    schedule("done");
    let run = started(&events);
    assert_eq!((run.queue(), run.key(), run.attempt()), ("q", "done", 1));
    assert_eq!((run.fails(), run.crashes()), (0, 0));
    assert!(run.is_held() && run.lateness() < SECOND * 60);
    let (same, outcome, next) = ended(&events);
    assert_eq!(same.token(), run.token());
    assert_eq!((outcome, next), (RunOutcome::Done, None));

    schedule("again");
    let token = started(&events).token();
    let (run, outcome, next) = ended(&events);
    assert_eq!((outcome, next), (RunOutcome::Again, Some(HOUR)));
    assert_eq!(run.token(), token);

    schedule("fails");
    assert_eq!(started(&events).attempt(), 1);
    let (_, outcome, next) = ended(&events);
    assert!(matches!(outcome, RunOutcome::Failed { error, .. } if error == "an error"));
    assert!(next.is_some_and(|next| next > NOW && next < SECOND));
    let run = started(&events);
    assert_eq!((run.attempt(), run.fails()), (2, 1));
    let (_, outcome, next) = ended(&events);
    assert!(
        matches!(&outcome, RunOutcome::Panicked { message, .. } if message == "wanted: a panic"),
        "{outcome:?}"
    );
    assert_eq!(next, None, "it is a dead letter");
}

fn what_does_not_start_has_neither(fresh: Fresh<'_>) {
    let (timers, events) = followed(fresh, |node| node.handle("q", |_: &Due<u32>| ()));
    timers.schedule("q", "text", NOW, "seven").wait().unwrap();
    wait::until("it is unreadable", || timers.stats().unreadable == 1);
    timers.schedule("q", "number", NOW, &7).wait().unwrap();
    assert_eq!(started(&events).key(), "number");
    assert_eq!(ended(&events).0.key(), "number");
}

fn the_duration_is_that_of_the_handler_also_after_a_stop(fresh: Fresh<'_>) {
    let gate = Gate::default();
    let inside = gate.clone();
    let (sender, events) = mpsc::channel();
    let timers = node_on(fresh())
        .handle("q", move |_: &Due<()>| inside.pass())
        .on_run(move |event| drop(sender.send(event.clone())))
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    let run = started(&events);
    // The event of the start comes before the call of the handler, which begins the time.
    gate.crowd(1);
    let began = std::time::Instant::now();
    // The stop does not wait for the handler, whose end comes after it.
    assert_eq!(timers.stop(NOW).wait().unwrap().unfinished, 1);
    let least = began.elapsed();
    gate.open();
    let event = wait::next(&events);
    let RunEvent::Ended {
        duration, outcome, ..
    } = event
    else {
        panic!("no end: {event:?}");
    };
    assert!(
        duration >= least && outcome == RunOutcome::Done,
        "{duration:?}"
    );
    assert!(!run.is_held(), "the node has left");
}

fn a_thousand_runs_displace_no_alarm(fresh: Fresh<'_>) {
    quiet::hush();
    let gate = Gate::default();
    let shut = gate.clone();
    let (alarms, alarm) = mpsc::channel();
    let (sender, dropped) = mpsc::channel();
    let timers = node_on(fresh())
        .handle("q", |due: &Due<bool>| match due.payload() {
            true => Ok(()),
            false => Err("an error"),
        })
        .retry(soon(1))
        .running(1_000)
        .on_event(move |event| drop(alarms.send(event.clone())))
        // The first call waits, so the others have no room.
        .on_run(move |event| {
            shut.pass();
            if let RunEvent::Dropped { events, .. } = event {
                sender.send(*events).unwrap();
            }
        })
        .start()
        .unwrap();
    let many = (0..1_500).map(|n| (n.to_string(), NOW, true));
    timers.schedule_many("q", many).wait().unwrap();
    wait::until("all have run", || timers.stats().succeeded == 1_500);
    timers.schedule("q", "alarm", NOW, &false).wait().unwrap();
    assert!(matches!(wait::next(&alarm), DurableEvent::Failed { .. }));
    assert!(matches!(wait::next(&alarm), DurableEvent::Dead { .. }));
    gate.open();
    // 3,002 events, of which 1,024 wait and one is with the listener.
    assert_eq!(wait::next(&dropped), 3_002 - 1_025);
}

fn a_listener_that_panics_or_calls_the_timers_goes_on(fresh: Fresh<'_>) {
    quiet::hush();
    let shared: std::sync::Arc<std::sync::OnceLock<Durable>> = std::sync::Arc::default();
    let own = std::sync::Arc::clone(&shared);
    let timers = node_on(fresh())
        .handle("q", |_: &Due<u32>| ())
        .on_run(move |event| {
            if let RunEvent::Ended { run, .. } = event
                && run.key() == "first"
            {
                own.wait().schedule("q", "second", NOW, &2).wait().unwrap();
            }
            panic!("{}: in the listener", quiet::WANTED);
        })
        .start()
        .unwrap();
    shared.set(timers.clone()).unwrap();
    timers.schedule("q", "first", NOW, &1).wait().unwrap();
    wait::until("both have run", || timers.stats().succeeded == 2);
    settled(&timers, "q", "second");
}

fn a_slow_run_is_an_event_and_others_are_not(fresh: Fresh<'_>) {
    let (sender, events) = mpsc::channel();
    let timers = node_on(fresh())
        .handle("slow", |_: &Due<()>| std::thread::sleep(ms(3)))
        .slow_after(ms(3))
        .handle("any", |_: &Due<()>| ())
        .slow_after(NOW)
        .handle("quick", |_: &Due<()>| ())
        .slow_after(HOUR)
        .handle("unasked", |_: &Due<()>| std::thread::sleep(ms(3)))
        .on_event(move |event| drop(sender.send(event.clone())))
        .start()
        .unwrap();
    for queue in ["quick", "unasked", "slow"] {
        timers.schedule(queue, "k", NOW, &()).wait().unwrap();
        settled(&timers, queue, "k");
    }
    let slow = wait::next(&events);
    assert!(
        matches!(&slow, DurableEvent::Slow { queue, key, attempt: 1, duration, .. }
            if queue == "slow" && key == "k" && *duration >= ms(3)),
        "{slow:?}"
    );
    timers.schedule("any", "k", NOW, &()).wait().unwrap();
    let any = wait::next(&events);
    assert!(
        matches!(&any, DurableEvent::Slow { queue, .. } if queue == "any"),
        "{any:?}"
    );
}

#[cfg(feature = "tokio")]
fn futures_have_events_too_and_one_whose_runtime_ends_has_failed(fresh: Fresh<'_>) {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).build().unwrap();
    let (timers, events) = followed(fresh, |node| {
        node.handle_tokio("q", runtime.handle().clone(), |due: Due<bool>| async move {
            if *due.payload() {
                std::future::pending::<()>().await;
            }
        })
        .retry(soon(1))
    });
    timers.schedule("q", "ends", NOW, &false).wait().unwrap();
    started(&events);
    assert_eq!(ended(&events).1, RunOutcome::Done);
    timers.schedule("q", "waits", NOW, &true).wait().unwrap();
    started(&events);
    runtime.shutdown_background();
    let (run, outcome, _) = ended(&events);
    assert_eq!(run.key(), "waits");
    assert!(
        matches!(&outcome, RunOutcome::Failed { error, .. } if error.contains("dropped")),
        "{outcome:?}"
    );
}

#[cfg(feature = "serde")]
fn events_of_runs_can_be_serialized(fresh: Fresh<'_>) {
    let (timers, events) = followed(fresh, |node| node.handle("q", |_: &Due<u32>| ()));
    timers.schedule("q", "k", NOW, &7).wait().unwrap();
    let start = serde_json::to_value(wait::next(&events)).unwrap();
    let run = &start["Started"]["run"];
    assert_eq!(
        (&run["queue"], &run["key"], &run["attempt"]),
        (&"q".into(), &"k".into(), &1.into())
    );
    assert!(
        run["token"]
            .as_str()
            .is_some_and(|token| token.starts_with("q/k/"))
    );
    let end = serde_json::to_value(wait::next(&events)).unwrap();
    assert_eq!(end["Ended"]["outcome"], "Done");
    assert!(end["Ended"]["next_attempt"].is_null());
}
