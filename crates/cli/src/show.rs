//! What the store answers, as a table and as JSON.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tourbillon_durable::{DeadTimer, QueueCounts, StoredNode, StoredTimer};

use crate::table;
use crate::times::{distance, short, time};

/// So wide that no line is cut: others may search the output.
pub(crate) const ANY_WIDTH: usize = usize::MAX;

/// A silent node is shown in words after this time: three times the usual interval of beats.
const SILENT: Duration = Duration::from_secs(9);

/// A number of [`QueueCounts`].
pub(crate) fn number(number: u64) -> String {
    match number < QueueCounts::MOST {
        true => number.to_string(),
        false => format!("{number}+"),
    }
}

pub(crate) fn write_queues(
    out: &mut impl Write,
    counts: &[QueueCounts],
    width: usize,
) -> io::Result<()> {
    let now = SystemTime::now();
    let rows: Vec<[String; 9]> = counts
        .iter()
        .map(|counts| {
            let behind = counts
                .oldest
                .and_then(|oldest| now.duration_since(oldest).ok());
            [
                counts.queue.clone(),
                number(counts.waiting),
                number(counts.within_minute),
                number(counts.within_ten_minutes),
                number(counts.overdue),
                number(counts.running),
                number(counts.dead),
                behind
                    .filter(|_| counts.overdue > 0)
                    .map(short)
                    .unwrap_or_default(),
                if counts.paused {
                    "paused".to_owned()
                } else {
                    String::new()
                },
            ]
        })
        .collect();
    let names = [
        "QUEUE", "WAITING", "<1M", "<10M", "OVERDUE", "RUNNING", "DEAD", "BEHIND", "",
    ];
    table::write(out, names, &rows, width)
}

pub(crate) fn write_timers(
    out: &mut impl Write,
    timers: &[StoredTimer],
    width: usize,
) -> io::Result<()> {
    let now = SystemTime::now();
    let rows: Vec<[String; 6]> = timers
        .iter()
        .map(|timer| {
            [
                distance(timer.due, now),
                timer.state.as_str().to_owned(),
                timer.queue.clone(),
                timer.key.clone(),
                if timer.fails > 0 {
                    format!("{} errors", timer.fails)
                } else {
                    String::new()
                },
                timer.node.clone().unwrap_or_default(),
            ]
        })
        .collect();
    table::write(
        out,
        ["DUE", "STATE", "QUEUE", "KEY", "", "NODE"],
        &rows,
        width,
    )
}

pub(crate) fn write_letters(out: &mut impl Write, letters: &[DeadTimer]) -> io::Result<()> {
    let now = SystemTime::now();
    let rows: Vec<[String; 6]> = letters
        .iter()
        .map(|letter| {
            [
                letter.id.to_string(),
                distance(letter.at, now),
                letter.queue.clone(),
                letter.key.clone(),
                if letter.has_timer {
                    "scheduled again".to_owned()
                } else {
                    String::new()
                },
                letter.error.clone(),
            ]
        })
        .collect();
    table::write(
        out,
        ["ID", "GIVEN UP", "QUEUE", "KEY", "", "ERROR"],
        &rows,
        ANY_WIDTH,
    )
}

pub(crate) fn write_nodes(
    out: &mut impl Write,
    nodes: &[StoredNode],
    width: usize,
) -> io::Result<()> {
    let rows: Vec<[String; 4]> = nodes
        .iter()
        .map(|node| {
            let seen = match (node.gone, node.silent_for) {
                (Some(gone), _) => format!("gone since {}", time(gone)),
                (None, silent) if silent >= SILENT => format!("silent for {}", short(silent)),
                (None, silent) => format!("{} ago", short(silent)),
            };
            [
                node.name.clone(),
                seen,
                time(node.joined),
                node.queues.join(" "),
            ]
        })
        .collect();
    table::write(out, ["NODE", "SEEN", "JOINED", "QUEUES"], &rows, width)
}

/// JSON of the store, or the text itself if it is none.
pub(crate) fn of_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

pub(crate) fn queue_json(counts: &QueueCounts) -> Value {
    json!({"queue": counts.queue, "waiting": counts.waiting, "within_minute": counts.within_minute,
        "within_ten_minutes": counts.within_ten_minutes, "overdue": counts.overdue, "running": counts.running,
        "dead": counts.dead, "oldest": counts.oldest.map(time), "paused": counts.paused})
}

pub(crate) fn timer_json(timer: &StoredTimer) -> Value {
    json!({"queue": timer.queue, "key": timer.key, "state": timer.state.as_str(), "due": time(timer.due),
        "planned": time(timer.planned), "attempts": timer.attempt, "errors": timer.fails, "crashes": timer.crashes,
        "node": timer.node, "running_since": timer.running.map(time), "cancelled": timer.cancelled,
        "follows": timer.follows})
}

pub(crate) fn letter_json(letter: &DeadTimer) -> Value {
    json!({"id": letter.id, "queue": letter.queue, "key": letter.key, "given_up": time(letter.at),
        "planned": time(letter.planned), "attempts": letter.attempt, "errors": letter.fails, "crashes": letter.crashes,
        "error": letter.error, "has_timer": letter.has_timer, "payload": of_json(&letter.payload)})
}

pub(crate) fn node_json(node: &StoredNode) -> Value {
    json!({"id": node.id, "name": node.name, "queues": node.queues, "joined": time(node.joined),
        "silent_ms": node.silent_for.as_millis() as u64, "gone": node.gone.map(time)})
}
