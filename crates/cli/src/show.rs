//! What the store answers, as a table.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use tourbillon_durable::{DeadTimer, QueueCounts, StoredNode, StoredTimer};

use crate::table;
use tourbillon_web::schedules;
use tourbillon_web::times::{distance, short, time};

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
    nodes: Option<&[StoredNode]>,
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
                notes(timer, nodes),
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

fn notes(timer: &StoredTimer, nodes: Option<&[StoredNode]>) -> String {
    let mut notes = Vec::new();
    if timer.fails > 0 {
        notes.push(format!("{} errors", timer.fails));
    }
    notes.extend(Some(schedules::expression(timer)).filter(|schedule| !schedule.is_empty()));
    if nodes.is_some_and(|nodes| timer.is_unnamed(nodes)) {
        notes.push("no process that runs names it".to_owned());
    }
    notes.join(", ")
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
