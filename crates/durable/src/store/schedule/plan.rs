//! Which occurrence of a schedule runs, and which one follows it.

use std::collections::VecDeque;
use std::time::SystemTime;

use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{CronSchedule, Members, Next, close, has_pause, open};
use crate::store::{Meta, StoreTime};
use crate::sync::OnceLock;

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
            return Some(self.earliest_of_last(at, now, made_up.max(1)));
        };
        // One at this time or before is missed.
        let grace = SignedDuration::from_secs(i64::try_from(grace).unwrap_or(i64::MAX));
        let Some(missed) = now.checked_sub(grace).ok().filter(|missed| at <= *missed) else {
            return Some(at);
        };
        let fresh = self.first_after(missed)?;
        match made_up {
            0 => Some(fresh),
            most => Some(fresh.min(self.earliest_of_last(at, now, most))),
        }
    }
}

pub(super) fn store_time(at: Timestamp) -> StoreTime {
    StoreTime::from_micros(at.as_microsecond())
}

fn timestamp(time: StoreTime) -> Timestamp {
    Timestamp::from_microsecond(time.as_micros()).unwrap_or(Timestamp::MAX)
}

pub(super) fn time_of(members: &Members, name: &str) -> Result<Option<Timestamp>, String> {
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
    /// The same, since occurrences were missed, of which this is the first.
    Missed(StoreTime, Next),
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
    /// The time from which on another occurrence is due, once somebody has asked. A handler that may
    /// be replaced asks often.
    following: OnceLock<Option<Timestamp>>,
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
                following: OnceLock::new(),
            };
            return run.wait_for(run.calendar.first_after(planned_at));
        };
        let last = match members.get("last") {
            Some(Value::Object(last)) => time_of(last, "at")?,
            _ => None,
        };
        // Whoever runs a paused schedule wants a run now, and its occurrence when it is resumed.
        let is_paused = has_pause(&members);
        let run = CronRun {
            calendar,
            others,
            members,
            at,
            extra: (is_paused || planned_at < at).then_some(planned),
            following: OnceLock::new(),
        };
        if is_paused {
            return Ok(Begin::Run(run));
        }
        if let Some(last) = last.filter(|last| at <= *last) {
            return run.wait_for(run.calendar.first_after(run.end().max(last)));
        }
        // One that was moved to a later time is not missed.
        if run.extra.is_some() || !is_new || planned_at > at {
            return Ok(Begin::Run(run));
        }
        match run.calendar.due(at, now) {
            Some(due) if due == at => Ok(Begin::Run(run)),
            Some(due) => Ok(Begin::Missed(store_time(at), run.step(due, None))),
            None => run.wait_for(None),
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
        *self.following.get_or_init(|| match self.extra {
            Some(_) => Some(self.at),
            None => self.calendar.first_after(self.end()),
        })
    }

    /// Whether this run has to give way at that time. What is paused when it is claimed has nothing to
    /// give way to.
    pub(crate) fn is_replaced(&self, now: StoreTime) -> bool {
        self.calendar.schedule.is_replaced()
            && !has_pause(&self.members)
            && self
                .following()
                .is_some_and(|following| store_time(following) <= now)
    }

    /// What follows the run if it ends now. `None` if no date is left, or the zone's data have gone.
    pub(crate) fn next(&self, now: StoreTime, outcome: &str) -> Option<Next> {
        let mut next = self.following()?;
        let skips = self.calendar.schedule.skips_overlaps() && !has_pause(&self.members);
        if skips && store_time(next) <= now {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use tourbillon::Missed;

    use super::super::Overlap;
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("it is a time")
    }

    fn daily() -> CronSchedule {
        CronSchedule::new("0 6 * * *", "UTC").expect("it is good")
    }

    fn calendar(schedule: CronSchedule) -> Calendar {
        Calendar::new(schedule).expect("there are data of the zone")
    }

    /// The meta of a schedule at an occurrence.
    fn meta(schedule: &CronSchedule, at: &str, more: &[(&str, Value)]) -> Meta {
        let mut members = schedule.members();
        members.insert("at".to_owned(), json!(at));
        members.insert("offset".to_owned(), json!(0));
        for (name, value) in more {
            members.insert((*name).to_owned(), value.clone());
        }
        close(Members::new(), members)
    }

    fn begin(meta: &Meta, planned: &str, is_new: bool, now: &str) -> Begin {
        let (planned, now) = (store_time(at(planned)), store_time(at(now)));
        let begin = CronRun::begin(Some(meta), planned, is_new, now);
        begin.expect("it is a schedule").expect("it is readable")
    }

    fn run(begin: Begin) -> CronRun {
        match begin {
            Begin::Run(run) => run,
            other => panic!("it waits: {other:?}"),
        }
    }

    fn waits_for(begin: Begin) -> Timestamp {
        match begin {
            Begin::Wait(next) | Begin::Missed(_, next) => {
                assert_eq!(
                    member(&next.meta, "at"),
                    json!(timestamp(next.due).to_string())
                );
                timestamp(next.due)
            }
            Begin::Run(run) => panic!("it runs: {run:?}"),
        }
    }

    fn member(meta: &Meta, name: &str) -> Value {
        open(Some(meta)).expect("it is a schedule").1[name].clone()
    }

    /// What `due` says, by all occurrences one after the other.
    fn due_of_all(calendar: &Calendar, first: Timestamp, now: Timestamp) -> Timestamp {
        let schedule = &calendar.schedule;
        let mut come = vec![first];
        come.extend(calendar.after(first).take_while(|at| *at <= now));
        let fresh = |at: Timestamp| match schedule.grace_seconds() {
            Some(grace) => now.duration_since(at).as_secs() < i64::try_from(grace).unwrap(),
            None => at == *come.last().unwrap(),
        };
        let fresh = come.iter().filter(|at| fresh(**at)).count();
        let made_up = usize::try_from(schedule.made_up().unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let left_out = come.len() - fresh.max(made_up).min(come.len());
        match come.get(left_out) {
            Some(at) => *at,
            None => calendar.first_after(now).unwrap(),
        }
    }

    proptest! {
        #[test]
        fn what_runs_is_what_a_list_of_all_occurrences_says(
            expression in prop::sample::select(vec!["* * * * *", "*/7 * * * *", "0 6 * * *", "0 6 * * MON", "30 2 29 * *"]),
            zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "Australia/Lord_Howe"]),
            missed in prop::sample::select(vec![
                Missed::Skip, Missed::Once, Missed::AtMost(0), Missed::AtMost(3), Missed::AtMost(100), Missed::All,
            ]),
            grace in prop::option::of(prop::sample::select(vec![0_u64, 1, 59, 60, 3_600, 86_400])),
            from in 0_i64..40_000_000,
            late in prop_oneof![0_i64..200, 0_i64..100_000, 0_i64..5_000_000],
        ) {
            let mut schedule = CronSchedule::new(expression, zone).unwrap().missed(missed);
            if let Some(grace) = grace {
                schedule = schedule.grace(Duration::from_secs(grace));
            }
            let calendar = calendar(schedule);
            let from = Timestamp::from_second(1_750_000_000 + from).unwrap();
            let first = calendar.first_after(from).unwrap();
            let now = first.checked_add(SignedDuration::from_secs(late)).unwrap();
            let expected = due_of_all(&calendar, first, now);
            prop_assert_eq!(calendar.due(first, now), Some(expected));
        }
    }

    #[test]
    fn a_century_of_seconds_is_searched_in_no_time() {
        let (first, now) = (at("1970-01-01T00:00:00Z"), at("2070-01-01T00:00:00Z"));
        for (missed, due) in [
            (Missed::AtMost(5), "2069-12-31T23:59:56Z"),
            // No more than a thousand are counted.
            (Missed::AtMost(u64::MAX), "2069-12-31T23:43:21Z"),
            (Missed::All, "1970-01-01T00:00:00Z"),
        ] {
            let schedule = CronSchedule::new("* * * * * *", "UTC").unwrap();
            let calendar = calendar(schedule.missed(missed).grace(Duration::from_secs(1)));
            assert_eq!(calendar.due(first, now), Some(at(due)), "{missed:?}");
        }
    }

    #[test]
    fn an_occurrence_that_began_or_was_moved_runs_whatever_the_policy() {
        let schedule = daily().grace(Duration::ZERO);
        let occurrence = "2026-12-01T06:00:00Z";
        let plain = meta(&schedule, occurrence, &[]);
        let late = "2026-12-01T06:00:01Z";
        assert_eq!(
            waits_for(begin(&plain, occurrence, true, late)),
            at("2026-12-02T06:00:00Z")
        );
        let again = run(begin(&plain, occurrence, false, "2027-01-01T00:00:00Z"));
        assert_eq!(again.scheduled_for(), store_time(at(occurrence)));
        let moved = run(begin(
            &plain,
            "2026-12-01T09:00:00Z",
            true,
            "2026-12-01T09:00:01Z",
        ));
        assert_eq!(moved.scheduled_for(), store_time(at(occurrence)));
    }

    #[test]
    fn an_extra_run_leaves_its_occurrence_to_come() {
        let last = json!({ "at": "2026-11-30T06:00:00Z", "outcome": "done" });
        let schedule = meta(&daily(), "2026-12-01T06:00:00Z", &[("last", last)]);
        let now = "2026-11-30T12:00:00Z";
        let run = run(begin(&schedule, now, true, "2026-11-30T12:00:01Z"));
        assert_eq!(run.scheduled_for(), store_time(at(now)));
        let next = run
            .next(store_time(at("2026-11-30T12:00:05Z")), "done")
            .unwrap();
        assert_eq!(timestamp(next.due), at("2026-12-01T06:00:00Z"));
        let expected = json!({
            "at": "2026-11-30T06:00:00Z", "ended": "2026-11-30T12:00:05Z", "outcome": "done",
        });
        assert_eq!(member(&next.meta, "last"), expected);
    }

    #[test]
    fn overlaps_wait_are_left_out_or_replace() {
        let occurrence = "2026-12-01T06:00:00Z";
        let ended = store_time(at("2026-12-03T12:00:00Z"));
        for (overlap, following, replaced) in [
            (Overlap::Wait, "2026-12-02T06:00:00Z", false),
            (Overlap::Skip, "2026-12-04T06:00:00Z", false),
            (Overlap::Replace, "2026-12-02T06:00:00Z", true),
        ] {
            let meta = meta(&daily().overlap(overlap), occurrence, &[]);
            let run = run(begin(&meta, occurrence, true, occurrence));
            let next = run.next(ended, "dead").unwrap();
            assert_eq!(timestamp(next.due), at(following), "{overlap:?}");
            assert_eq!(member(&next.meta, "last")["at"], occurrence);
            assert_eq!(member(&next.meta, "last")["outcome"], "dead");
            assert!(!run.is_replaced(store_time(at("2026-12-02T05:59:59Z"))));
            // It is reckoned once for all questions.
            assert_eq!(run.following.get(), Some(&Some(at("2026-12-02T06:00:00Z"))));
            assert_eq!(
                run.is_replaced(store_time(at("2026-12-02T06:00:00Z"))),
                replaced
            );
        }
    }

    #[test]
    fn no_occurrence_comes_back() {
        // It has ended, and nobody has told the next one.
        let last = json!({ "at": "2026-12-01T06:00:00Z" });
        let ended = meta(&daily(), "2026-12-01T06:00:00Z", &[("last", last.clone())]);
        let begun = begin(&ended, "2026-12-01T06:00:09Z", true, "2026-12-01T06:00:09Z");
        assert_eq!(waits_for(begun), at("2026-12-02T06:00:00Z"));
        // A declaration by a clock that is behind.
        let older = meta(&daily(), "2026-11-29T06:00:00Z", &[("last", last)]);
        let begun = begin(&older, "2026-11-29T06:00:00Z", true, "2026-12-01T06:00:09Z");
        assert_eq!(waits_for(begun), at("2026-12-02T06:00:00Z"));
    }

    #[test]
    fn other_zone_data_run_no_time_of_the_calendar_twice() {
        let berlin = CronSchedule::new("0 6 * * *", "Europe/Berlin").unwrap();
        // By the data of another process the zone was two hours ahead, and not one. Both have the
        // same time of the calendar, which has run an hour earlier.
        let occurrence = "2026-12-01T04:00:00Z";
        let meta = meta(&berlin, occurrence, &[("offset", json!(7200))]);
        let run = run(begin(&meta, occurrence, true, occurrence));
        let next = run
            .next(store_time(at("2026-12-01T04:00:01Z")), "done")
            .unwrap();
        assert_eq!(timestamp(next.due), at("2026-12-02T05:00:00Z"));
        assert_eq!(member(&next.meta, "offset"), json!(3600));
    }

    #[test]
    fn a_schedule_of_sql_begins_with_its_first_occurrence() {
        let made = json!({ "cron": { "expression": "@daily", "zone": "UTC", "missed": 3, "grace": 5, "overlap": "skip" } });
        let made = Meta::of_json(made.to_string());
        let begun = begin(
            &made,
            "2026-12-01T06:00:00.5Z",
            true,
            "2026-12-01T06:00:01Z",
        );
        assert_eq!(waits_for(begun), at("2026-12-02T00:00:00Z"));
    }

    #[test]
    fn what_can_not_be_read_is_told() {
        for (cron, what) in [
            (json!({ "expression": 5 }), "\"expression\" is no text"),
            (json!({ "expression": "@daily" }), "\"zone\" is no text"),
            (
                json!({ "expression": "nope", "zone": "UTC" }),
                "no cron expression",
            ),
            (
                json!({ "expression": "@daily", "zone": "Mars/Base" }),
                "Mars/Base",
            ),
            (
                json!({ "expression": "@daily", "zone": "UTC", "at": "soon" }),
                "\"at\" is \"soon\"",
            ),
            (
                json!({ "expression": "@daily", "zone": "UTC", "at": 5 }),
                "\"at\" is 5",
            ),
            (
                json!({ "expression": "@daily", "zone": "UTC", "missed": -1 }),
                "\"missed\" is -1",
            ),
            (
                json!({ "expression": "@daily", "zone": "UTC", "missed": "some" }),
                "\"missed\"",
            ),
            (
                json!({ "expression": "@daily", "zone": "UTC", "overlap": 1 }),
                "\"overlap\" is 1",
            ),
            (
                json!({ "expression": "@daily", "zone": "UTC", "grace": "5 s" }),
                "\"grace\"",
            ),
        ] {
            let meta = Meta::of_json(json!({ "cron": cron }).to_string());
            let now = store_time(at("2026-12-01T06:00:00Z"));
            let begun = CronRun::begin(Some(&meta), now, true, now).expect("it is a schedule");
            let why = begun.expect_err("it is not readable");
            assert!(why.contains(what), "{why}");
        }
        let plain = Meta::of_json(r#"{"cron":"nightly"}"#);
        let now = store_time(at("2026-12-01T06:00:00Z"));
        assert!(CronRun::begin(Some(&plain), now, true, now).is_none());
        assert!(CronRun::begin(None, now, true, now).is_none());
    }
}
