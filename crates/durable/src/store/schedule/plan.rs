//! Which occurrence of a schedule runs, and which one follows it.

use std::collections::VecDeque;
use std::time::SystemTime;

use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{CronSchedule, Members, Next, close, open};
use crate::store::{Meta, StoreTime};

/// A schedule with the data of its zone.
#[derive(Clone, Debug)]
pub(super) struct Calendar {
    schedule: CronSchedule,
    zone: TimeZone,
}

impl Calendar {
    pub(super) fn new(schedule: CronSchedule) -> Result<Self, String> {
        let zone = TimeZone::get(schedule.cron.zone()).map_err(|error| error.to_string())?;
        Ok(Calendar { schedule, zone })
    }

    fn after(&self, after: Timestamp) -> impl Iterator<Item = Timestamp> + use<> {
        let times = self.schedule.cron.times_after(SystemTime::from(after));
        times.map_while(|time| Timestamp::try_from(time).ok())
    }

    pub(super) fn first_after(&self, after: Timestamp) -> Option<Timestamp> {
        self.after(after).next()
    }

    /// How many seconds the zone is ahead of UTC.
    pub(super) fn offset(&self, at: Timestamp) -> i32 {
        self.zone.to_offset(at).seconds()
    }

    /// The end of an occurrence, after which the next one is searched. If it was computed by other
    /// data of the zone, that is where these data have the same time of the zone's calendar, unless
    /// it has passed by then.
    fn end_of(&self, at: Timestamp, offset: Option<i32>) -> Timestamp {
        let Some(offset) = offset.filter(|offset| *offset != self.offset(at)) else {
            return at;
        };
        let shown = Offset::from_seconds(offset).map(|offset| offset.to_datetime(at));
        let here = shown.and_then(|shown| self.zone.to_timestamp(shown));
        here.map_or(at, |here| here.max(at))
    }

    /// The earliest of the last `most` occurrences up to `until`, of which `first` is one.
    fn earliest_of_last(&self, first: Timestamp, until: Timestamp, most: u64) -> Timestamp {
        let most = usize::try_from(most).unwrap_or(usize::MAX).max(1);
        let mut window = SignedDuration::from_mins(1);
        loop {
            let from = until.checked_sub(window).unwrap_or(first).max(first);
            let mut last = VecDeque::new();
            if from == first {
                last.push_back(first);
            }
            for at in self.after(from).take_while(|at| *at <= until) {
                if last.len() == most {
                    last.pop_front();
                }
                last.push_back(at);
            }
            match last.front() {
                Some(at) if last.len() == most || from == first => return *at,
                // An occurrence is a minute or a year before: the search goes further each time.
                _ => window = window.checked_mul(16).unwrap_or(SignedDuration::MAX),
            }
        }
    }

    /// The occurrence that runs now in the place of `at`, which was not before its time; or the one
    /// to wait for, if none runs now.
    fn due(&self, at: Timestamp, now: Timestamp) -> Option<Timestamp> {
        if at >= now {
            return Some(at);
        }
        // `None`: all are made up.
        let Some(made_up) = self.schedule.made_up() else {
            return Some(at);
        };
        let Some(grace) = self.schedule.grace_seconds() else {
            // The latest one is not missed.
            return Some(self.earliest_of_last(at, now, made_up.saturating_add(1)));
        };
        // One at this time or before is missed.
        let grace = SignedDuration::from_secs(i64::try_from(grace).unwrap_or(i64::MAX));
        let Some(missed) = now.checked_sub(grace).ok().filter(|missed| at <= *missed) else {
            return Some(at);
        };
        match made_up {
            0 => self.first_after(missed),
            most => Some(self.earliest_of_last(at, missed, most)),
        }
    }
}

pub(super) fn store_time(at: Timestamp) -> StoreTime {
    StoreTime::from_micros(at.as_microsecond())
}

fn timestamp(time: StoreTime) -> Timestamp {
    Timestamp::from_microsecond(time.as_micros()).unwrap_or(Timestamp::MAX)
}

fn time_of(members: &Members, name: &str) -> Result<Option<Timestamp>, String> {
    match members.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => match text.parse() {
            Ok(time) => Ok(Some(time)),
            Err(error) => Err(format!("its member \"{name}\" is {text:?}: {error}")),
        },
        Some(other) => Err(format!("its member \"{name}\" is {other}, and no time")),
    }
}

/// The time of the occurrence that a timer without a schedule stands for: one that was a dead letter.
pub(crate) fn scheduled_for(meta: Option<&Meta>) -> Option<StoreTime> {
    let (_, schedule) = open(meta)?;
    time_of(&schedule, "at").ok().flatten().map(store_time)
}

/// What a process does with a timer of a schedule that it has claimed.
#[derive(Debug)]
pub(crate) enum Begin {
    /// It runs.
    Run(CronRun),
    /// It waits for another occurrence.
    Wait(Next),
}

/// A run of a timer with a schedule.
#[derive(Clone, Debug)]
pub(crate) struct CronRun {
    calendar: Calendar,
    /// The members of the meta beside the schedule.
    others: Members,
    members: Members,
    at: Timestamp,
    /// When it was planned, if that is before its occurrence: it runs in addition (CRON-1).
    extra: Option<StoreTime>,
}

impl CronRun {
    /// Decides about a claimed timer. `None` if it has no schedule. `is_new` says that the occurrence
    /// has not begun to run before.
    ///
    /// # Errors
    ///
    /// The schedule can't be read, or this process has no data of its zone.
    pub(crate) fn begin(
        meta: Option<&Meta>,
        planned: StoreTime,
        is_new: bool,
        now: StoreTime,
    ) -> Option<Result<Begin, String>> {
        let (others, members) = open(meta)?;
        members.contains_key("expression").then_some(())?;
        Some(Self::decide(others, members, planned, is_new, now))
    }

    fn decide(
        others: Members,
        members: Members,
        planned: StoreTime,
        is_new: bool,
        now: StoreTime,
    ) -> Result<Begin, String> {
        let calendar = Calendar::new(CronSchedule::read(&members)?)?;
        let (planned_at, now) = (timestamp(planned), timestamp(now));
        let Some(at) = time_of(&members, "at")? else {
            // It was made by SQL, and begins with the first occurrence.
            let run = CronRun {
                calendar,
                others,
                members,
                at: planned_at,
                extra: None,
            };
            return run.wait_for(run.calendar.first_after(planned_at));
        };
        let last = match members.get("last") {
            Some(Value::Object(last)) => time_of(last, "at")?,
            _ => None,
        };
        let run = CronRun {
            calendar,
            others,
            members,
            at,
            extra: (planned_at < at).then_some(planned),
        };
        if let Some(last) = last.filter(|last| at <= *last) {
            return run.wait_for(run.calendar.first_after(run.end().max(last)));
        }
        // One that was moved to a later time is not missed.
        if run.extra.is_some() || !is_new || planned_at > at {
            return Ok(Begin::Run(run));
        }
        match run.calendar.due(at, now) {
            Some(due) if due == at => Ok(Begin::Run(run)),
            other => run.wait_for(other),
        }
    }

    fn wait_for(&self, at: Option<Timestamp>) -> Result<Begin, String> {
        match at {
            Some(at) => Ok(Begin::Wait(self.step(at, None))),
            None => Err("it has no date that is left".to_owned()),
        }
    }

    /// After this time the next occurrence is searched.
    fn end(&self) -> Timestamp {
        let offset = self.members.get("offset").and_then(Value::as_i64);
        let offset = offset.and_then(|offset| i32::try_from(offset).ok());
        self.calendar.end_of(self.at, offset)
    }

    /// The time that the run stands for.
    pub(crate) fn scheduled_for(&self) -> StoreTime {
        self.extra.unwrap_or_else(|| store_time(self.at))
    }

    /// The time from which on another occurrence is due.
    fn following(&self) -> Option<Timestamp> {
        match self.extra {
            Some(_) => Some(self.at),
            None => self.calendar.first_after(self.end()),
        }
    }

    /// Whether this run has to give way at that time.
    pub(crate) fn is_replaced(&self, now: StoreTime) -> bool {
        self.calendar.schedule.is_replaced()
            && self
                .following()
                .is_some_and(|following| store_time(following) <= now)
    }

    /// What follows the run if it ends now. `None` if no date is left, or the zone's data have gone.
    pub(crate) fn next(&self, now: StoreTime, outcome: &str) -> Option<Next> {
        let mut next = self.following()?;
        if self.calendar.schedule.skips_overlaps() && store_time(next) <= now {
            next = self.calendar.first_after(timestamp(now))?;
        }
        let mut last = Members::from_iter([
            ("ended".to_owned(), json!(timestamp(now).to_string())),
            ("outcome".to_owned(), json!(outcome)),
        ]);
        let at = match self.extra {
            None => self.members.get("at"),
            // The occurrence is still to come.
            Some(_) => self.members.get("last").and_then(|last| last.get("at")),
        };
        if let Some(at) = at {
            last.insert("at".to_owned(), at.clone());
        }
        Some(self.step(next, Some(last)))
    }

    fn step(&self, at: Timestamp, last: Option<Members>) -> Next {
        let mut members = self.members.clone();
        members.insert("at".to_owned(), json!(at.to_string()));
        members.insert("offset".to_owned(), json!(self.calendar.offset(at)));
        if let Some(last) = last {
            members.insert("last".to_owned(), Value::Object(last));
        }
        Next {
            due: store_time(at),
            meta: close(self.others.clone(), members),
        }
    }
}
