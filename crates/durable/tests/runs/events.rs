//! What a node reports.

use std::sync::mpsc;

use kit::{quiet, wait};
use tourbillon_durable::{Due, DurableEvent, Memory};

use super::setup::{NOW, node, soon};

#[test]
fn failures_panics_dead_letters_and_unreadable_payloads_are_reported() {
    quiet::hush();
    let (sender, events) = mpsc::channel();
    let store = Memory::new();
    let timers = node(&store)
        .on_event(move |event| sender.send(event.clone()).unwrap())
        .handle("q", |due: &Due<u32>| -> Result<(), &str> {
            match due.attempt() {
                1 => Err("an error"),
                _ => panic!("{}: a panic", quiet::WANTED),
            }
        })
        .retry(soon(2))
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &7).wait().unwrap();
    let first = wait::next(&events);
    assert!(
        matches!(&first, DurableEvent::Failed { queue, key, attempt: 1, error, .. }
            if queue == "q" && key == "k" && error == "an error"),
        "{first:?}"
    );
    let second = wait::next(&events);
    assert!(
        matches!(&second, DurableEvent::Panicked { attempt: 2, message, .. }
            if message == "wanted: a panic"),
        "{second:?}"
    );
    let third = wait::next(&events);
    assert!(
        matches!(&third, DurableEvent::Dead { key, error, .. }
            if key == "k" && error == "the handler panicked: wanted: a panic"),
        "{third:?}"
    );
    timers.schedule("q", "text", NOW, "seven").wait().unwrap();
    let fourth = wait::next(&events);
    assert!(
        matches!(&fourth, DurableEvent::Unreadable { key, error, .. }
            if key == "text" && error.contains("invalid type")),
        "{fourth:?}"
    );
}
