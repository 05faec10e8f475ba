//! Schedules by a cron expression, as users make them.

use std::time::Duration;

use serde_json::{Value, json};
use tourbillon::{Cron, CronError, Missed};

use super::{Members, Schedule, When, parsed};

/// The greatest number of missed occurrences that are made up, unless all are. Each claim counts them.
const MOST_MADE_UP: u64 = 1_000;

/// A schedule by a cron expression in a time zone, with its policies.
///
/// [`schedule`](crate::Durable::schedule) takes it in the place of a time, and
/// [`QueueBuilder::cron`](crate::QueueBuilder::cron) gives a queue a schedule with a name. A [`Cron`]
/// alone is one with the policies that stand below as defaults.
///
/// The timer stays one row. Each occurrence runs once, whatever the number of processes. The step to
/// the next one and the end of the run are one commit, also with
/// [`complete_in`](crate::Due::complete_in). Occurrences of one schedule never run at the same time.
///
/// # What becomes of an occurrence
///
/// | | |
/// |---|---|
/// | all processes were down, or the queue was paused | [`missed`](Self::missed) and [`grace`](Self::grace) decide |
/// | an earlier one still runs, or is tried again | [`overlap`](Self::overlap) decides |
/// | its run fails | it is tried again as the [`RetryPolicy`](crate::RetryPolicy) of the queue says. Given up, it becomes a dead letter with the key `KEY@TIME`, and the schedule goes on |
/// | its process dies | it runs again |
/// | the timer was moved to an earlier time, as [`run_now`](crate::Durable::run_now) does | it runs then in addition, and the occurrence is still to come |
/// | the timer was moved to a later time | the occurrence runs later |
///
/// # Zone data
///
/// Each process computes the next occurrence by its own data: see [`Cron`]. The row has the offset
/// from UTC by which an occurrence was computed, so a process with other data runs no time of the
/// zone's calendar a second time. A process that has no data of the zone gives the timer back for a
/// minute, and reports [`Unreadable`](crate::DurableEvent::Unreadable).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_durable::{CronSchedule, Due, Durable, Memory, Missed, Overlap};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let monthly = CronSchedule::new("0 6 1 * *", "UTC")?
///     .missed(Missed::Once)
///     .grace(Duration::from_secs(60))
///     .overlap(Overlap::Skip)
///     .revision(2);
/// let timers = Durable::builder(Memory::new())
///     .handle("invoices", |due: &Due<String>| println!("{:?}: {}", due.scheduled_for(), due.payload()))
///     .cron("monthly", monthly, "all customers")
///     .start()?;
/// let timer = timers.get("invoices", "monthly").wait()?;
/// assert!(timer.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[doc(alias("recurring", "repeat", "calendar", "interval"))]
#[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
#[must_use]
pub struct CronSchedule {
    pub(super) cron: Cron,
    pub(super) missed: Missed,
    pub(super) grace: Option<Duration>,
    pub(super) overlap: Overlap,
    revision: u32,
}

/// What becomes of an occurrence of a [`CronSchedule`] that comes while an earlier one still runs, or
/// waits to be tried again.
///
/// # Examples
///
/// ```
/// use tourbillon_durable::{CronSchedule, Overlap};
///
/// let every_minute = CronSchedule::new("* * * * *", "UTC")?.overlap(Overlap::Skip);
/// # let _ = every_minute;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(alias("concurrency policy"))]
#[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
#[non_exhaustive]
pub enum Overlap {
    /// It runs when the earlier one has ended, if it is not [missed](CronSchedule::missed) by then.
    #[default]
    Wait,
    /// It is left out. The next one is the first after the end of the earlier one.
    Skip,
    /// The earlier one gives way: from that time on its [`Due::is_held`](crate::Due::is_held) is
    /// false, and if it fails then it is not tried again, and becomes a dead letter. This one starts
    /// when the earlier one has returned.
    Replace,
}

impl CronSchedule {
    /// Reads a cron expression in the time zone of that name: see [`Cron`] for the dialect.
    ///
    /// # Errors
    ///
    /// As for [`Cron::new`].
    ///
    /// # Blocking
    ///
    /// It reads the zone's data from files, unless the process has done so in the last minutes.
    pub fn new(expression: &str, zone: &str) -> Result<Self, CronError> {
        Cron::new(expression, zone).map(CronSchedule::from)
    }

    /// Sets how many missed occurrences are made up. The default is [`Missed::Skip`]: none.
    /// [`Missed::AtMost`] makes up no more than 1,000, whatever its number.
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// Sets how late an occurrence may start without counting as missed, in whole seconds. Without a
    /// grace, that is until the next occurrence: then the latest one that has passed always runs.
    #[doc(alias("misfire threshold", "startingDeadlineSeconds"))]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Sets what becomes of an occurrence that comes while an earlier one still runs. The default is
    /// [`Overlap::Wait`].
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// Sets the number of the definition, for a schedule that
    /// [`QueueBuilder::cron`](crate::QueueBuilder::cron) names. The default is 0.
    ///
    /// A process that starts with a lower revision than the stored one leaves the schedule as it is.
    /// So raise it with each change of the definition, if processes of the old version may still
    /// start after one of the new version.
    pub fn revision(mut self, revision: u32) -> Self {
        self.revision = revision;
        self
    }

    /// The members of the schedule in the meta of its timer, without an occurrence.
    pub(super) fn members(&self) -> Members {
        let missed = match self.missed {
            Missed::Once => json!("once"),
            Missed::AtMost(most) => json!(most),
            Missed::All => json!("all"),
            _ => json!("skip"),
        };
        let mut members = Members::from_iter([
            ("expression".to_owned(), json!(self.cron.expression())),
            ("zone".to_owned(), json!(self.cron.zone())),
            ("missed".to_owned(), missed),
            ("overlap".to_owned(), json!(self.overlap.word())),
        ]);
        if let Some(grace) = self.grace {
            members.insert("grace".to_owned(), json!(grace.as_secs()));
        }
        if self.revision > 0 {
            members.insert("revision".to_owned(), json!(self.revision));
        }
        members
    }

    /// Reads what [`members`](Self::members) has written, or a user of SQL.
    pub(super) fn read(members: &Members) -> Result<Self, String> {
        let text = |name: &str| match members.get(name) {
            Some(Value::String(text)) => Ok(text.as_str()),
            _ => Err(format!("its member \"{name}\" is no text")),
        };
        let cron = parsed::read(text("expression")?, text("zone")?);
        let mut schedule = Self::from(cron.map_err(|error| error.to_string())?);
        schedule.missed = match members.get("missed") {
            None => Missed::Skip,
            Some(Value::Number(most)) if most.is_u64() => {
                Missed::AtMost(most.as_u64().unwrap_or_default())
            }
            Some(missed) => match missed.as_str() {
                Some("skip") => Missed::Skip,
                Some("once") => Missed::Once,
                Some("all") => Missed::All,
                _ => {
                    return Err(format!(
                        "\"missed\" is {missed}, and not \"skip\", \"once\", \"all\" or a number"
                    ));
                }
            },
        };
        schedule.overlap = match members.get("overlap") {
            None => Overlap::Wait,
            Some(overlap) => {
                Overlap::of(overlap.as_str().unwrap_or_default()).ok_or_else(|| {
                    format!("\"overlap\" is {overlap}, and not \"wait\", \"skip\" or \"replace\"")
                })?
            }
        };
        schedule.grace = match members.get("grace") {
            None => None,
            Some(grace) => {
                Some(Duration::from_secs(grace.as_u64().ok_or_else(|| {
                    format!("\"grace\" is {grace}, and no number of seconds")
                })?))
            }
        };
        Ok(schedule)
    }

    pub(super) fn is_replaced(&self) -> bool {
        self.overlap == Overlap::Replace
    }

    pub(super) fn skips_overlaps(&self) -> bool {
        self.overlap == Overlap::Skip
    }

    pub(super) fn grace_seconds(&self) -> Option<u64> {
        self.grace.map(|grace| grace.as_secs())
    }

    /// How many missed occurrences are made up. `None`: all.
    pub(super) fn made_up(&self) -> Option<u64> {
        match self.missed {
            Missed::Once => Some(1),
            Missed::AtMost(most) => Some(most.min(MOST_MADE_UP)),
            Missed::All => None,
            _ => Some(0),
        }
    }
}

impl From<Cron> for CronSchedule {
    fn from(cron: Cron) -> Self {
        CronSchedule {
            cron,
            missed: Missed::default(),
            grace: None,
            overlap: Overlap::default(),
            revision: 0,
        }
    }
}

#[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
impl From<CronSchedule> for Schedule {
    fn from(schedule: CronSchedule) -> Self {
        Schedule(When::Cron(schedule))
    }
}

#[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
impl From<Cron> for Schedule {
    fn from(cron: Cron) -> Self {
        CronSchedule::from(cron).into()
    }
}

impl Overlap {
    fn word(self) -> &'static str {
        match self {
            Overlap::Wait => "wait",
            Overlap::Skip => "skip",
            Overlap::Replace => "replace",
        }
    }

    fn of(word: &str) -> Option<Self> {
        let all = [Overlap::Wait, Overlap::Skip, Overlap::Replace];
        all.into_iter().find(|overlap| overlap.word() == word)
    }
}
