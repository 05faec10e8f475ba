//! All texts of errors, as a user gets them. `UPDATE_EXPECT=1 cargo test error_texts` writes
//! `error_texts.txt` anew; read it before it is committed: a text says what is wrong, and what to
//! do if anything can be done.

use std::error::Error;
use std::fmt::Write;
use std::io;
use std::time::Duration;

use expect_test::expect_file;

use crate::calls::{CallError, CompleteError, Invalid, StartError};
use crate::store::StoreError;
#[cfg(feature = "cron")]
use crate::store::schedule::UnreadableSchedule;

/// Adds the values, their texts, and the texts of their sources.
fn add<E: Error>(texts: &mut String, name: &str, errors: impl IntoIterator<Item = E>) {
    writeln!(texts, "\n{name}").unwrap();
    for error in errors {
        writeln!(texts, "{error:?}\n    {error}").unwrap();
        let mut source = error.source();
        while let Some(error) = source {
            writeln!(texts, "    from: {error}").unwrap();
            source = error.source();
        }
    }
}

#[test]
fn the_texts_of_errors_are_those_that_were_read() {
    let mut texts = String::from("Written by the test beside this file.\n");
    let io = || io::Error::other("no thread left");
    let why = || "why".to_owned();
    let invalid = [
        Invalid::QueueLength(65),
        Invalid::QueueNul,
        Invalid::KeyLength(0),
        Invalid::KeyNul,
        Invalid::PayloadSize(65_536),
        Invalid::PayloadDepth,
        Invalid::PayloadText,
        Invalid::PayloadJson("key must be a string".to_owned()),
        Invalid::MetaCron,
        Invalid::NoOccurrence(why()),
        Invalid::TooFar,
        Invalid::SameKey("order 7".to_owned()),
        Invalid::PageLimit(0),
    ];
    add(&mut texts, "Invalid", invalid);
    let call = [
        CallError::Invalid(Invalid::KeyNul),
        CallError::Unavailable(why()),
        CallError::Unknown(why()),
        CallError::TimedOut(Duration::from_millis(1_500)),
        CallError::Refused(why()),
        CallError::Replaced(why()),
        CallError::Stopped,
        CallError::Forked,
    ];
    add(&mut texts, "CallError", call);
    let start = [
        StartError::Queue(Invalid::QueueNul),
        StartError::SameQueue("orders".to_owned()),
        StartError::Option("a bad option".to_owned()),
        StartError::Store(StoreError::Refused(why())),
        StartError::Spawn(io()),
        StartError::Runtime(tourbillon::BuildError::RuntimeEnded),
        StartError::Runtime(tourbillon::BuildError::Forked),
    ];
    add(&mut texts, "StartError", start);
    let complete = [
        CompleteError::Fenced,
        CompleteError::Retry(why()),
        CompleteError::Deferred,
        CompleteError::Store(StoreError::Forked),
    ];
    add(&mut texts, "CompleteError", complete);
    let store = [
        StoreError::Unavailable(why()),
        StoreError::Unknown(why()),
        StoreError::Refused(why()),
        StoreError::Replaced(why()),
        StoreError::Locked(why()),
        StoreError::Forked,
    ];
    add(&mut texts, "StoreError", store);
    expect_file!["error_texts.txt"].assert_eq(&texts);
}

#[cfg(feature = "cron")]
#[test]
fn the_texts_of_errors_of_schedules_are_those_that_were_read() {
    let (queue, key) = ("orders".to_owned(), "daily".to_owned());
    let same = StartError::SameSchedule {
        queue: queue.clone(),
        key: key.clone(),
    };
    let error = CallError::Refused("the table is read-only".to_owned());
    let refused = StartError::Schedule { queue, key, error };
    let unreadable = UnreadableSchedule("\"zone\" is no text".to_owned());
    let texts = [
        same.to_string(),
        refused.to_string(),
        unreadable.to_string(),
    ];
    let expected = [
        "two schedules of the queue \"orders\" have the key \"daily\": keep one",
        "the schedule \"daily\" of the queue \"orders\": the store refuses the call: the table is read-only",
        "its schedule can't be followed: \"zone\" is no text; schedule the timer anew, or cancel it",
    ];
    assert_eq!(texts, expected);
}
