//! Schedules in words, for the page and the command, and as JSON.

use std::time::SystemTime;

use serde_json::{Value, json};
use tourbillon_durable::{LastRun, Missed, Overlap, StoredNode, StoredSchedule, StoredTimer};

use crate::times::{distance, time};

/// The number of dates that are shown after the next occurrence.
const FURTHER: usize = 4;

/// The expression and the zone, or what is wrong. Empty for a timer that runs once.
#[must_use]
pub fn expression(timer: &StoredTimer) -> String {
    match timer.schedule() {
        None => String::new(),
        Some(Ok(schedule)) if schedule.paused => format!("{}, paused", of(&schedule)),
        Some(Ok(schedule)) => of(&schedule),
        Some(Err(_)) => "unreadable schedule".to_owned(),
    }
}

/// What people ask about the schedule of a timer, as names and texts. Nothing for a timer that runs
/// once.
#[must_use]
pub fn facts(
    timer: &StoredTimer,
    nodes: Option<&[StoredNode]>,
    now: SystemTime,
) -> Vec<(&'static str, String)> {
    let schedule = match timer.schedule() {
        None => return Vec::new(),
        Some(Err(unreadable)) => return vec![("Schedule", unreadable.to_string())],
        Some(Ok(schedule)) => schedule,
    };
    let next = match schedule.occurrence {
        _ if schedule.paused => "none until the schedule is resumed".to_owned(),
        Some(next) => format!("{} ({})", time(next), distance(next, now)),
        None => "the next process that claims the timer reckons it".to_owned(),
    };
    let mut facts = vec![
        ("Schedule", of(&schedule)),
        ("Policies", policies(&schedule)),
        ("Occurrence", next),
        ("Then", further(&schedule, now).join(", ")),
    ];
    if let Some(last) = &schedule.last {
        facts.push(("Last run", ended(last)));
    }
    // Without an answer nobody knows.
    if nodes.is_some_and(|nodes| timer.is_unnamed(nodes)) {
        facts.push(("Named by", "no process that runs".to_owned()));
    }
    facts
}

/// The schedule of a timer, or null. With `nodes` it says whether no process names it, and with `dates`
/// it has the next ones.
#[must_use]
pub fn json(timer: &StoredTimer, nodes: Option<&[StoredNode]>, dates: Option<SystemTime>) -> Value {
    let schedule = match timer.schedule() {
        None => return Value::Null,
        Some(Err(unreadable)) => return json!({ "error": unreadable.to_string() }),
        Some(Ok(schedule)) => schedule,
    };
    let last = schedule.last.as_ref().map(|last| {
        json!({"scheduled_for": last.scheduled_for.map(time), "ended": last.ended.map(time),
            "outcome": last.outcome})
    });
    let mut object = json!({"expression": schedule.cron.expression(), "zone": schedule.cron.zone(),
        "revision": schedule.revision, "occurrence": schedule.occurrence.map(time), "last": last,
        "paused": schedule.paused});
    if let Some(nodes) = nodes {
        object["unnamed"] = json!(timer.is_unnamed(nodes));
    }
    if let Some(now) = dates {
        object["then"] = json!(further(&schedule, now));
    }
    object
}

fn of(schedule: &StoredSchedule) -> String {
    format!("{} in {}", schedule.cron.expression(), schedule.cron.zone())
}

fn further(schedule: &StoredSchedule, now: SystemTime) -> Vec<String> {
    // After a long pause the occurrence lies in the past.
    let from = schedule.occurrence.map_or(now, |at| at.max(now));
    let dates = schedule.cron.times_after(from);
    dates.take(FURTHER).map(time).collect()
}

fn policies(schedule: &StoredSchedule) -> String {
    let missed = match schedule.missed {
        Missed::Once => "the last missed occurrence is made up".to_owned(),
        Missed::AtMost(most) => format!("up to {most} missed occurrences are made up"),
        Missed::All => "all missed occurrences are made up".to_owned(),
        _ => "missed occurrences are left out".to_owned(),
    };
    let overlap = match schedule.overlap {
        Overlap::Skip => "one that comes during a run is left out",
        Overlap::Replace => "one that comes during a run replaces it",
        _ => "one that comes during a run waits",
    };
    let grace = schedule.grace.map_or(String::new(), |grace| {
        format!(", those later than {} s are missed", grace.as_secs())
    });
    format!("{missed}{grace}, {overlap}; revision {}", schedule.revision)
}

fn ended(last: &LastRun) -> String {
    let of = last.scheduled_for.map_or("the first one".to_owned(), |of| {
        format!("that of {}", time(of))
    });
    match (&last.outcome, last.ended) {
        (Some(outcome), Some(ended)) => format!("{of}: {outcome}, {}", time(ended)),
        (Some(outcome), None) => format!("{of}: {outcome}"),
        (None, _) => format!("{of}: how it ended was not told"),
    }
}
