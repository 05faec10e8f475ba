//! How handlers end, and what becomes of their timers.

use std::fmt;
use std::sync::mpsc;

use kit::gate::Gate;
use kit::{quiet, wait};
use tourbillon_durable::Revived;
use tourbillon_durable::{
    CancelAnswer, Due, Durable, Ending, Memory, RescheduleAnswer, RetryPolicy,
};

use super::setup::{HOUR, NOW, SECOND, ms, node, settled, soon};

/// Waits for the dead letter of a queue.
#[track_caller]
fn dead(timers: &Durable, queue: &str) -> tourbillon_durable::DeadTimer {
    wait::until("there is a dead letter", || {
        !timers.dead(queue, 0, 10).wait().unwrap().is_empty()
    });
    timers.dead(queue, 0, 10).wait().unwrap().remove(0)
}

#[test]
fn all_kinds_of_answers_are_handlers() {
    let store = Memory::new();
    let timers = node(&store)
        .handle("unit", |_: &Due<()>| ())
        .handle("ending", |_: &Due<()>| Ending::Done)
        .handle("result", |_: &Due<()>| -> Result<(), std::io::Error> {
            Ok(())
        })
        .handle("both", |_: &Due<()>| -> Result<Ending, String> {
            Ok(Ending::Done)
        })
        .start()
        .unwrap();
    for queue in ["unit", "ending", "result", "both"] {
        timers.schedule(queue, "k", NOW, &()).wait().unwrap();
        settled(&timers, queue, "k");
    }
    assert_eq!(timers.stats().succeeded, 4);
}

#[test]
fn an_error_is_retried_and_then_a_dead_letter() {
    let store = Memory::new();
    let timers = node(&store)
        .handle("q", |due: &Due<String>| match due.payload().as_str() {
            "good" => Ok(()),
            text => Err(format!("no {text}")),
        })
        .retry(soon(3))
        .start()
        .unwrap();
    let scheduled = timers.schedule("q", "k", NOW, "luck").wait().unwrap();
    let letter = dead(&timers, "q");
    assert_eq!((letter.queue.as_str(), letter.key.as_str()), ("q", "k"));
    assert_eq!((letter.attempt, letter.fails, letter.crashes), (3, 3, 0));
    assert_eq!(letter.error, "no luck");
    assert_eq!(letter.planned, scheduled.due);
    assert_eq!(letter.payload_as::<String>().unwrap(), "luck");
    assert!(letter.at >= letter.planned);
    assert_eq!(timers.get("q", "k").wait().unwrap(), None);
    wait::until("it is counted", || timers.stats().dead == 1);
    let stats = timers.stats();
    assert_eq!((stats.runs, stats.failed, stats.retried), (3, 3, 2));

    // A letter that is revived runs again, and is no letter any more.
    let revived = timers.revive(letter.id).wait().unwrap();
    assert_eq!(
        revived,
        Revived::Revived {
            queue: "q".into(),
            key: "k".into()
        }
    );
    wait::until("it is dead again", || {
        let letters = timers.dead("q", letter.id, 10).wait().unwrap();
        letters.len() == 1 && letters[0].fails == 3
    });
    assert_eq!(timers.revive(letter.id).wait().unwrap(), Revived::NotFound);
}

#[test]
fn a_backoff_moves_the_due_time_and_keeps_the_planned_one() {
    let store = Memory::new();
    let timers = node(&store)
        .handle("q", |_: &Due<()>| Err::<(), _>("no"))
        .retry(RetryPolicy::exponential(HOUR..=HOUR * 2).jitter(0.5))
        .start()
        .unwrap();
    let scheduled = timers.schedule("q", "k", NOW, &()).wait().unwrap();
    wait::until("it has failed", || {
        timers
            .get("q", "k")
            .wait()
            .unwrap()
            .is_some_and(|timer| timer.fails == 1)
    });
    let timer = timers.get("q", "k").wait().unwrap().unwrap();
    assert_eq!(timer.planned, scheduled.due);
    assert_eq!(timer.running, None);
    let backoff = timer.due.duration_since(scheduled.due).unwrap();
    assert!(backoff >= HOUR / 2 && backoff < HOUR * 2, "{backoff:?}");
}

#[test]
fn a_panic_is_an_error_of_its_run() {
    quiet::hush();
    let store = Memory::new();
    let timers = node(&store)
        .handle("q", |due: &Due<u32>| {
            if *due.payload() == 0 {
                std::panic::panic_any(quiet::Bomb);
            }
            assert!(
                *due.payload() > 9,
                "{}: payload {}",
                quiet::WANTED,
                due.payload()
            );
        })
        .retry(soon(2))
        .start()
        .unwrap();
    timers.schedule("q", "panics", NOW, &7).wait().unwrap();
    let letter = dead(&timers, "q");
    assert_eq!(letter.error, "the handler panicked: wanted: payload 7");
    assert_eq!(letter.fails, 2);
    timers.schedule("q", "bomb", NOW, &0).wait().unwrap();
    wait::until("it is dead, too", || {
        timers.dead("q", letter.id, 10).wait().unwrap().len() == 1
    });
    // The threads go on.
    timers.schedule("q", "good", NOW, &10).wait().unwrap();
    settled(&timers, "q", "good");
    wait::until("all are counted", || timers.stats().dead == 2);
    let stats = timers.stats();
    assert_eq!((stats.panicked, stats.failed, stats.running), (4, 0, 0));
}

#[test]
fn errors_are_stored_with_their_sources_and_not_in_full_length() {
    #[derive(Debug)]
    struct Outer(std::io::Error);
    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("can't pay\0")
        }
    }
    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }
    let store = Memory::new();
    let timers = node(&store)
        .handle("sources", |_: &Due<()>| {
            Err::<(), _>(Outer(std::io::Error::other("the bank is closed")))
        })
        .retry(RetryPolicy::never())
        .handle("long", |_: &Due<()>| Err::<(), _>("é".repeat(10_000)))
        .retry(RetryPolicy::never())
        .start()
        .unwrap();
    timers.schedule("sources", "k", NOW, &()).wait().unwrap();
    timers.schedule("long", "k", NOW, &()).wait().unwrap();
    let letter = dead(&timers, "sources");
    assert_eq!(letter.error, "can't pay\u{FFFD}: the bank is closed");
    assert_eq!(dead(&timers, "long").error, "é".repeat(2_048));
}

#[test]
fn a_handler_may_ask_to_run_again() {
    let (sender, receiver) = mpsc::channel();
    let store = Memory::new();
    let timers = node(&store)
        .handle("q", move |_: &Due<()>| -> Result<Ending, String> {
            sender.send(()).unwrap();
            Ok(Ending::Again(ms(1)))
        })
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    for _ in 0..5 {
        wait::next(&receiver);
    }
    // Cancelled while it waits or while it runs: no other run follows.
    wait::until("it is cancelled", || {
        timers.cancel("q", "k").wait().unwrap() == CancelAnswer::NotFound
    });
}

#[test]
fn calls_on_a_running_key_answer_running() {
    let gate = Gate::default();
    let pass = gate.clone();
    let (sender, receiver) = mpsc::channel();
    let store = Memory::new();
    let timers = node(&store)
        .handle("q", move |due: &Due<u32>| {
            sender.send(*due.payload()).unwrap();
            pass.pass();
            Err::<(), _>("no")
        })
        .retry(soon(20))
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &1).wait().unwrap();
    timers.schedule("q", "c", NOW, &3).wait().unwrap();
    gate.crowd(2);
    let cancelled = timers.cancel("q", "c").wait().unwrap();
    assert!(matches!(
        cancelled,
        CancelAnswer::Running { attempt: 1, .. }
    ));
    let moved = timers.reschedule("q", "k", SECOND).wait().unwrap();
    assert!(matches!(
        moved,
        RescheduleAnswer::Running { attempt: 1, .. }
    ));
    assert!(
        timers
            .get("q", "k")
            .wait()
            .unwrap()
            .unwrap()
            .running
            .is_some()
    );
    assert!(
        !timers
            .schedule_if_absent("q", "k", NOW, &9)
            .wait()
            .unwrap()
            .is_scheduled()
    );
    // What follows takes the place of the retry.
    let next = timers.schedule("q", "k", HOUR, &2).wait().unwrap();
    assert!(next.running && next.replaced.is_none());
    let moved = timers.reschedule("q", "k", HOUR * 2).wait().unwrap();
    assert!(matches!(
        moved,
        RescheduleAnswer::Moved { running: true, .. }
    ));
    gate.open();
    settled(&timers, "q", "c");
    wait::until("what follows waits alone", || {
        timers
            .get("q", "k")
            .wait()
            .unwrap()
            .is_some_and(|timer| timer.running.is_none())
    });
    let timer = timers.get("q", "k").wait().unwrap().unwrap();
    assert_eq!(timer.payload_as::<u32>().unwrap(), 2);
    assert_eq!((timer.attempt, timer.fails), (0, 0));
    let mut seen: Vec<u32> = receiver.try_iter().collect();
    seen.sort_unstable();
    assert_eq!(seen, [1, 3]);
}

#[test]
fn a_payload_that_does_not_parse_is_left_in_the_store() {
    quiet::hush();
    #[derive(Debug)]
    struct Panics;
    impl<'de> serde::Deserialize<'de> for Panics {
        fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            panic!("{}: in deserialize", quiet::WANTED)
        }
    }
    let store = Memory::new();
    let timers = node(&store)
        .handle("q", |_: &Due<u32>| ())
        .handle("panics", |_: &Due<Panics>| ())
        .start()
        .unwrap();
    for (queue, expected) in [("q", 1), ("panics", 2)] {
        let scheduled = timers
            .schedule(queue, "k", NOW, "not a number")
            .wait()
            .unwrap();
        wait::until("it was given back", || {
            timers.get(queue, "k").wait().unwrap().unwrap().due > scheduled.due
        });
        let timer = timers.get(queue, "k").wait().unwrap().unwrap();
        assert!(timer.due.duration_since(scheduled.due).unwrap() >= SECOND * 60);
        assert_eq!((timer.planned, timer.fails), (scheduled.due, 0));
        assert_eq!(timers.stats().unreadable, expected);
    }
    assert_eq!(timers.stats().runs, 0);
}

#[test]
fn a_queue_without_a_handler_is_left_alone() {
    let (sender, receiver) = mpsc::channel();
    let store = Memory::new();
    let timers = node(&store)
        .handle("known", move |_: &Due<()>| sender.send(()).unwrap())
        .start()
        .unwrap();
    timers.schedule("unknown", "k", NOW, &()).wait().unwrap();
    timers.schedule("known", "k", ms(50), &()).wait().unwrap();
    wait::next(&receiver);
    let timer = timers.get("unknown", "k").wait().unwrap().unwrap();
    assert_eq!((timer.attempt, timer.running), (0, None));
}
