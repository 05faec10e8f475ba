//! The schedule of a stored timer, as users read it.

use std::error::Error;
use std::fmt;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tourbillon::{Cron, Missed};

use super::plan::time_of;
use super::{CronSchedule, Members, Overlap, has_pause, open, revision};
use crate::store::Meta;

/// The schedule of a [`StoredTimer`](crate::StoredTimer), as it was when the timer was read.
///
/// # Examples
///
/// ```
/// use std::time::SystemTime;
/// use tourbillon_durable::{Cron, Durable, Memory};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let timers = Durable::builder(Memory::new()).start()?;
/// let daily = Cron::new("0 9 * * *", "America/New_York")?;
/// timers.schedule("remind", "customer:7", daily, &7).wait()?;
/// let timer = timers.get("remind", "customer:7").wait()?.expect("it was scheduled");
/// let schedule = timer.schedule().expect("it has one")?;
/// assert_eq!(schedule.cron.expression(), "0 9 * * *");
/// assert_eq!(schedule.occurrence, Some(timer.due));
/// assert_eq!(schedule.last, None); // it has not run yet
/// for next in schedule.cron.times_after(SystemTime::now()).take(3) {
///     println!("{next:?}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
#[non_exhaustive]
pub struct StoredSchedule {
    /// Expression and zone. [`Cron::times_after`] lists the dates.
    pub cron: Cron,
    /// How many missed occurrences are made up.
    pub missed: Missed,
    /// How late an occurrence may start.
    pub grace: Option<Duration>,
    /// What becomes of an occurrence that comes while an earlier one still runs.
    pub overlap: Overlap,
    /// The number of the definition.
    pub revision: u64,
    /// The occurrence that the timer waits for, or runs. `None` if it was made by SQL, and no process
    /// has claimed it yet.
    pub occurrence: Option<SystemTime>,
    /// The last run that has ended.
    pub last: Option<LastRun>,
    /// Whether it is [paused](crate::Durable::pause_schedule).
    pub paused: bool,
}

/// How the last run of a [`StoredSchedule`] ended.
///
/// # Examples
///
/// ```
/// use tourbillon_durable::LastRun;
///
/// fn shown(last: &LastRun) -> String {
///     format!("{:?}: {}", last.scheduled_for, last.outcome.as_deref().unwrap_or("unknown"))
/// }
/// # let _ = shown;
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
#[non_exhaustive]
pub struct LastRun {
    /// The last occurrence that has ended. A run in addition to the occurrences leaves it as it is.
    pub scheduled_for: Option<SystemTime>,
    /// When the run ended. `None` if it ended without naming the next occurrence, or a new schedule
    /// replaced it during the run.
    pub ended: Option<SystemTime>,
    /// How it ended: `done`, or `dead` if it was given up.
    pub outcome: Option<String>,
}

/// The schedule of a timer can't be followed: a user of SQL has written it so, or this machine has no
/// data of its zone.
///
/// # Examples
///
/// ```
/// use tourbillon_durable::{StoredTimer, UnreadableSchedule};
///
/// fn expression(timer: &StoredTimer) -> Result<Option<String>, UnreadableSchedule> {
///     let schedule = timer.schedule().transpose()?;
///     Ok(schedule.map(|schedule| schedule.cron.expression().to_owned()))
/// }
/// # let _ = expression;
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
pub struct UnreadableSchedule(pub(crate) String);

impl fmt::Display for UnreadableSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "its schedule can't be followed: {}; schedule the timer anew, or cancel it",
            self.0
        )
    }
}

impl Error for UnreadableSchedule {}

impl StoredSchedule {
    /// The schedule of a meta, if it has one.
    pub(crate) fn of(meta: Option<&Meta>) -> Option<Result<Self, UnreadableSchedule>> {
        let (_, members) = open(meta)?;
        members.contains_key("expression").then_some(())?;
        Some(Self::read(&members).map_err(UnreadableSchedule))
    }

    fn read(members: &Members) -> Result<Self, String> {
        let schedule = CronSchedule::read(members)?;
        let last = match members.get("last") {
            Some(Value::Object(last)) => Some(LastRun {
                scheduled_for: time_of(last, "at")?.map(SystemTime::from),
                // No node reads these two.
                ended: time_of(last, "ended").ok().flatten().map(SystemTime::from),
                outcome: last
                    .get("outcome")
                    .and_then(Value::as_str)
                    .map(str::to_owned),
            }),
            _ => None,
        };
        Ok(StoredSchedule {
            occurrence: time_of(members, "at")?.map(SystemTime::from),
            last,
            paused: has_pause(members),
            revision: revision(members),
            missed: schedule.missed,
            grace: schedule.grace,
            overlap: schedule.overlap,
            cron: schedule.cron,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(cron: &Value) -> Option<Result<StoredSchedule, UnreadableSchedule>> {
        let meta = Meta::of_json(json!({ "tenant": 1, "cron": cron }).to_string());
        StoredSchedule::of(Some(&meta))
    }

    fn time(text: &str) -> SystemTime {
        let time: jiff::Timestamp = text.parse().expect("it is a time");
        time.into()
    }

    #[test]
    fn a_schedule_is_read_with_all_that_its_row_has() {
        let schedule = read(&json!({
            "expression": "0 6 * * *", "zone": "UTC", "missed": 3, "grace": 60, "overlap": "skip",
            "revision": 5_000_000_000_u64, "at": "2026-12-02T06:00:00Z", "offset": 0,
            "last": { "at": "2026-12-01T06:00:00Z", "ended": "2026-12-01T06:00:07Z", "outcome": "dead" },
        }));
        let schedule = schedule.expect("it has one").expect("it is readable");
        assert_eq!(schedule.cron.expression(), "0 6 * * *");
        assert_eq!(schedule.cron.zone(), "UTC");
        assert_eq!(schedule.missed, Missed::AtMost(3));
        assert_eq!(schedule.grace, Some(Duration::from_secs(60)));
        assert_eq!(schedule.overlap, Overlap::Skip);
        assert_eq!(schedule.revision, 5_000_000_000);
        assert_eq!(schedule.occurrence, Some(time("2026-12-02T06:00:00Z")));
        let last = LastRun {
            scheduled_for: Some(time("2026-12-01T06:00:00Z")),
            ended: Some(time("2026-12-01T06:00:07Z")),
            outcome: Some("dead".to_owned()),
        };
        assert_eq!(schedule.last, Some(last));
    }

    #[test]
    fn what_sql_has_written_is_read_or_told() {
        let bare = read(&json!({ "expression": "@daily", "zone": "UTC", "revision": "two" }));
        let bare = bare.expect("it has one").expect("it is readable");
        assert_eq!((bare.occurrence, bare.last, bare.revision), (None, None, 0));
        let odd = json!({ "at": null, "ended": [1], "outcome": { "a": 1 } });
        let odd = read(&json!({ "expression": "@daily", "zone": "UTC", "last": odd }));
        let last = odd.expect("it has one").expect("it is readable").last;
        let nothing = LastRun {
            scheduled_for: None,
            ended: None,
            outcome: None,
        };
        assert_eq!(last, Some(nothing));
        for (cron, what) in [
            (json!({ "expression": 5 }), "\"expression\" is no text"),
            (
                json!({ "expression": "", "zone": "UTC" }),
                "cron expression",
            ),
            (
                json!({ "expression": "@daily", "zone": "Mars/Base" }),
                "Mars/Base",
            ),
            (
                json!({ "expression": "@daily", "zone": "UTC", "at": 5 }),
                "\"at\" is 5",
            ),
            (
                json!({ "expression": "@daily", "zone": "UTC", "last": { "at": "soon" } }),
                "\"at\" is \"soon\"",
            ),
        ] {
            let told = read(&cron)
                .expect("it has one")
                .expect_err("it is not readable");
            let told = told.to_string();
            assert!(
                told.contains(what) && told.contains("schedule the timer anew"),
                "{told}"
            );
        }
        for none in [
            json!(null),
            json!([]),
            json!("@daily"),
            json!({ "zone": "UTC" }),
        ] {
            assert!(read(&none).is_none(), "{none}");
        }
        assert!(StoredSchedule::of(Some(&Meta::of_json("cron"))).is_none());
        assert!(StoredSchedule::of(None).is_none());
    }
}
