//! The schedule of a timer that runs again and again: a member of its meta.
//!
//! A timer with a schedule is one row. Its meta has the member `cron`, with the expression, the
//! zone, the policies, and the *occurrence* that the row waits for, or runs. The end of a run that
//! would delete the row moves it to the next occurrence instead, in the same commit.
//!
//! - **CRON-1** The time of an occurrence is the member `at`, which only a step to another one
//!   changes. A timer that was moved to before it runs in addition: the occurrence is still to come.
//! - **CRON-2** Occurrences ascend. A step never goes to one that is not after the last that has
//!   ended, whatever the clocks and the zone data of the process say.
//! - **CRON-3** An end without a next occurrence leaves the row due at once, with the mark that its
//!   occurrence has ended. The next process that claims it, and knows the zone, steps on.
//! - **CRON-4** Only a node computes times by the calendar. So the functions of this module, which
//!   stores use, need no zone data, and PostgreSQL has the same ones in SQL.
//! - **CRON-5** A paused schedule has the mark `paused`, which the row alone decides about: a step takes
//!   the mark that the row has at that moment. What comes back to be polled is due at the end of
//!   all times, and its planned time stays, so that the end of the pause knows it.

#[cfg(feature = "cron")]
mod argument;
#[cfg(feature = "cron")]
mod cron;
#[cfg(feature = "cron")]
mod parsed;
#[cfg(feature = "cron")]
mod plan;
#[cfg(feature = "cron")]
mod stored;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

#[cfg(feature = "cron")]
pub use self::cron::{CronSchedule, Overlap};
#[cfg(feature = "cron")]
pub(crate) use self::plan::{Begin, CronRun, scheduled_for};
#[cfg(feature = "cron")]
pub use self::stored::{LastRun, StoredSchedule, UnreadableSchedule};
use super::{DueAt, Meta, StoreTime};

/// The member of a meta that has the schedule.
pub(crate) const MEMBER: &str = "cron";

/// The members of a schedule that are not its definition.
const STATE: [&str; 4] = ["at", "offset", "last", PAUSED];

/// The member that says that the schedule is paused.
const PAUSED: &str = "paused";

/// The member that says that a program has named the schedule.
#[cfg(feature = "cron")]
const DECLARED: &str = "declared";

/// The keys of schedules by their queues: those that a program names.
pub type NamedSchedules = BTreeMap<String, BTreeSet<String>>;

/// Schedules as they are kept in the table of nodes.
#[cfg(any(feature = "sqlite", feature = "tokio-postgres"))]
pub(crate) fn names_to_json(schedules: &NamedSchedules) -> String {
    serde_json::to_string(schedules).expect("names are text")
}

/// Reads them. What is none of them is left out.
#[cfg(any(feature = "sqlite", feature = "tokio-postgres"))]
pub(crate) fn names_of_json(json: &str) -> NamedSchedules {
    serde_json::from_str(json).unwrap_or_default()
}

type Members = Map<String, Value>;

/// The next occurrence of a timer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Next {
    /// When it is due.
    pub due: StoreTime,
    /// The meta that the timer has then.
    pub meta: Meta,
}

/// The schedule within a meta, and the other members.
fn open(meta: Option<&Meta>) -> Option<(Members, Members)> {
    let meta = meta?;
    // Most metas have none, and need not be read.
    if !meta.as_str().contains(MEMBER) {
        return None;
    }
    let mut members: Members = meta.parse().ok()?;
    match members.remove(MEMBER) {
        Some(Value::Object(schedule)) => Some((members, schedule)),
        _ => None,
    }
}

fn close(mut members: Members, schedule: Members) -> Meta {
    members.insert(MEMBER.to_owned(), Value::Object(schedule));
    Meta::of_json(Value::Object(members).to_string())
}

/// Whether a timer with this meta has a schedule.
pub(crate) fn is_schedule(meta: Option<&Meta>) -> bool {
    open(meta).is_some_and(|(_, schedule)| schedule.contains_key("expression"))
}

fn has_pause(schedule: &Members) -> bool {
    schedule.contains_key("expression") && schedule.get(PAUSED) == Some(&Value::Bool(true))
}

/// Whether a timer with this meta has a schedule that is paused.
pub(crate) fn is_paused(meta: Option<&Meta>) -> bool {
    open(meta).is_some_and(|(_, schedule)| has_pause(&schedule))
}

/// The meta with its schedule paused, or not. `None` if it has none.
pub(crate) fn with_pause(meta: Option<&Meta>, paused: bool) -> Option<Meta> {
    let (others, mut schedule) = open(meta)?;
    if !schedule.contains_key("expression") {
        return None;
    }
    match paused {
        true => schedule.insert(PAUSED.to_owned(), Value::Bool(true)),
        false => schedule.remove(PAUSED),
    };
    Some(close(others, schedule))
}

/// The meta without a schedule.
pub(crate) fn without(meta: Option<&Meta>) -> Option<Meta> {
    match open(meta) {
        None => meta.cloned(),
        Some((others, _)) => Some(Meta::of_json(Value::Object(others).to_string())),
    }
}

/// The definition of a schedule: all but what the runs change.
fn definition(schedule: &Members) -> Members {
    let mut schedule = schedule.clone();
    for state in STATE {
        schedule.remove(state);
    }
    schedule
}

fn revision(schedule: &Members) -> u64 {
    let revision = schedule.get("revision").and_then(Value::as_u64);
    revision.unwrap_or(0)
}

/// Whether a schedule stays as it is when a process starts that has it by name: it has the same
/// definition, or a greater revision. `same_payload` says whether both have the same payload.
pub(crate) fn stays(new: Option<&Meta>, old: Option<&Meta>, same_payload: bool) -> bool {
    let (Some((_, new)), Some((_, old))) = (open(new), open(old)) else {
        return false;
    };
    if !old.contains_key("expression") {
        return false;
    }
    same_payload && definition(&new) == definition(&old) || revision(&new) < revision(&old)
}

/// The meta of a schedule that a program names.
#[cfg(feature = "cron")]
pub(crate) fn declared(meta: &Meta) -> Meta {
    let Some((others, mut schedule)) = open(Some(meta)) else {
        return meta.clone();
    };
    schedule.insert(DECLARED.to_owned(), Value::Bool(true));
    close(others, schedule)
}

/// Whether a program has named the schedule of this meta.
#[cfg(feature = "cron")]
pub(crate) fn is_declared(meta: Option<&Meta>) -> bool {
    open(meta).is_some_and(|(_, schedule)| {
        schedule.contains_key("expression") && schedule.get(DECLARED) == Some(&Value::Bool(true))
    })
}

/// The meta of a schedule that takes the place of another one. It keeps what that one knows of its
/// last occurrence (CRON-2). One that runs at this moment counts as ended.
pub(crate) fn inherit(new: Option<&Meta>, old: Option<&Meta>, runs: bool) -> Option<Meta> {
    let (Some((others, mut schedule)), Some((_, old))) = (open(new), open(old)) else {
        return new.cloned();
    };
    let last = match runs {
        true => Some(json!({ "at": old.get("at") })),
        false => old.get("last").cloned(),
    };
    if let Some(last) = last {
        schedule.insert("last".to_owned(), last);
    }
    if has_pause(&old) {
        schedule.insert(PAUSED.to_owned(), Value::Bool(true));
    }
    Some(close(others, schedule))
}

/// The meta of a timer whose run has ended without a next occurrence (CRON-3). `None` if it has no
/// schedule.
pub(crate) fn ended(meta: Option<&Meta>) -> Option<Meta> {
    let (others, mut schedule) = open(meta)?;
    if !schedule.contains_key("expression") {
        return None;
    }
    let last = json!({ "at": schedule.get("at") });
    schedule.insert("last".to_owned(), last);
    Some(close(others, schedule))
}

/// The dead letter of an occurrence: its key, and its meta, which has nothing of the schedule but the
/// time of the occurrence. So it is revived as a timer of its own, beside the schedule.
pub(crate) fn letter(key: &str, meta: Option<&Meta>) -> (String, Option<Meta>) {
    let Some((others, mut schedule)) = open(meta) else {
        return (key.to_owned(), meta.cloned());
    };
    let at = schedule.remove("at").unwrap_or(Value::Null);
    let key = format!("{key}@{}", at.as_str().unwrap_or_default());
    let schedule = Members::from_iter([("at".to_owned(), at)]);
    (key, Some(close(others, schedule)))
}

/// When a timer runs: once, at a time or after a span, or each time that a calendar says.
///
/// [`schedule`](crate::Durable::schedule) takes whatever turns into it: a
/// [`Duration`](std::time::Duration), a [`SystemTime`](std::time::SystemTime), and all else that a
/// [`DueAt`] is made of; with the feature `cron` also a `Cron` and a `CronSchedule`.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tourbillon_durable::{DueAt, Schedule};
///
/// let minute = Duration::from_secs(60);
/// let once = [Schedule::from(minute), Schedule::from(SystemTime::now()), DueAt::After(minute).into()];
/// println!("{once:?}");
/// ```
#[derive(Clone, Debug)]
pub struct Schedule(pub(crate) When);

/// What a [`Schedule`] is.
#[derive(Clone, Debug)]
pub(crate) enum When {
    Once(DueAt),
    #[cfg(feature = "cron")]
    Cron(CronSchedule),
}

impl<T: Into<DueAt>> From<T> for Schedule {
    fn from(when: T) -> Self {
        Schedule(When::Once(when.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(json: &Value) -> Meta {
        Meta::of_json(json.to_string())
    }

    fn members(meta: &Meta) -> Value {
        meta.parse().expect("it is JSON")
    }

    #[test]
    fn only_an_object_with_an_expression_is_a_schedule() {
        assert!(!is_schedule(None));
        for other in [
            json!({}),
            json!({ "cron": true }),
            json!({ "cron": { "at": "2026-12-01T05:00:00Z" } }),
            json!({ "tags": { "cron": { "expression": "@daily" } } }),
        ] {
            assert!(!is_schedule(Some(&meta(&other))), "{other}");
            assert_eq!(ended(Some(&meta(&other))), None, "{other}");
        }
        assert!(!is_schedule(Some(&Meta::of_json("cron"))));
        assert!(is_schedule(Some(&meta(
            &json!({ "cron": { "expression": "@daily" } })
        ))));
    }

    #[test]
    fn a_letter_is_a_timer_of_its_own() {
        let schedule =
            json!({ "a": 1, "cron": { "expression": "@daily", "at": "2026-12-01T00:00:00Z" } });
        let (key, letter_meta) = letter("report", Some(&meta(&schedule)));
        assert_eq!(key, "report@2026-12-01T00:00:00Z");
        let letter_meta = letter_meta.expect("it has one");
        assert!(!is_schedule(Some(&letter_meta)));
        let expected = json!({ "a": 1, "cron": { "at": "2026-12-01T00:00:00Z" } });
        assert_eq!(members(&letter_meta), expected);
        assert_eq!(letter("plain", None), ("plain".to_owned(), None));
    }
}
