//! Cron expressions: what happens where a zone changes its clocks, in virtual time, and which dates
//! match, beside a search minute by minute.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};
use kit::steps::stepped;
use tourbillon::{Cron, CronError, Period};

/// The date at which the zone's clocks show `shown` for the first time.
fn date(zone: &str, shown: &str) -> SystemTime {
    let shown: DateTime = shown.parse().unwrap();
    let zone = TimeZone::get(zone).unwrap();
    let date = zone.to_ambiguous_zoned(shown).earlier().unwrap();
    date.timestamp().into()
}

/// What the zone's clocks show at `date`, and their distance from UTC.
fn shown(zone: &str, date: SystemTime) -> String {
    let date = jiff::Timestamp::try_from(date).unwrap();
    let zone = TimeZone::get(zone).unwrap();
    let offset = zone.to_offset(date);
    format!("{} {offset}", offset.to_datetime(date))
}

/// Lets virtual time pass from `from` for so many hours. Returns the dates of the rounds, after a
/// check that each began at its date.
fn rounds(expression: &str, zone: &'static str, from: &str, hours: u32) -> Vec<String> {
    let scheduler = stepped(1);
    let hand = scheduler.clock();
    hand.set_wall(date(zone, from));
    let dates = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&dates);
    let period = Period::cron(expression, zone).unwrap();
    let armed = scheduler.handle().repeat(1, period, move |round| {
        let date = round.scheduled_for().expect("nobody has moved it");
        let late = hand.wall().duration_since(date).expect("no round is early");
        assert!(late < Duration::from_millis(10), "{late:?}");
        noted.lock().unwrap().push(shown(zone, date));
    });
    assert!(armed.is_ok());
    scheduler.advance(hours * Duration::from_secs(3600));
    std::mem::take(&mut dates.lock().unwrap())
}

/// A day on which a zone changes its clocks, and the rounds of an expression around it.
struct Row(
    &'static str,
    &'static str,
    &'static str,
    u32,
    &'static [&'static str],
);

fn check(rows: &[Row]) {
    for Row(zone, expression, from, hours, expected) in rows {
        let dates = rounds(expression, zone, from, *hours);
        assert_eq!(&dates, expected, "{zone} {expression}");
    }
}

const BERLIN: &str = "Europe/Berlin";
const NEW_YORK: &str = "America/New_York";
const LORD_HOWE: &str = "Australia/Lord_Howe";
const CASABLANCA: &str = "Africa/Casablanca";
const APIA: &str = "Pacific/Apia";

#[test]
fn a_time_that_does_not_exist_runs_once_at_the_end_of_the_gap() {
    check(&[
        // Forward by an hour at two.
        Row(
            BERLIN,
            "30 2 * * *",
            "2026-03-28T00:00",
            72,
            &[
                "2026-03-28T02:30:00 +01",
                "2026-03-29T03:00:00 +02",
                "2026-03-30T02:30:00 +02",
            ],
        ),
        Row(
            NEW_YORK,
            "30 2 * * *",
            "2026-03-08T00:00",
            36,
            &["2026-03-08T03:00:00 -04", "2026-03-09T02:30:00 -04"],
        ),
        // Forward by half an hour at two.
        Row(
            LORD_HOWE,
            "15 2 * * *",
            "2026-10-03T12:00",
            48,
            &["2026-10-04T02:30:00 +11", "2026-10-05T02:15:00 +11"],
        ),
        // Forward by an hour at two, at the end of Ramadan.
        Row(
            CASABLANCA,
            "30 2 * * *",
            "2026-03-21T12:00",
            48,
            &["2026-03-22T03:00:00 +01", "2026-03-23T02:30:00 +01"],
        ),
        // Several that do not exist are one, also with one that does.
        Row(
            BERLIN,
            "0,30 2,3 * * *",
            "2026-03-29T00:00",
            12,
            &["2026-03-29T03:00:00 +02", "2026-03-29T03:30:00 +02"],
        ),
        // A list without a star is fixed.
        Row(
            BERLIN,
            "0 1,2 * * *",
            "2026-03-29T00:00",
            12,
            &["2026-03-29T01:00:00 +01", "2026-03-29T03:00:00 +02"],
        ),
        Row(
            "UTC",
            "30 2 * * *",
            "2026-03-28T12:00",
            36,
            &["2026-03-29T02:30:00 +00"],
        ),
        Row(
            APIA,
            "30 3 * * *",
            "2012-09-29T12:00",
            48,
            &["2012-09-30T04:00:00 +14", "2012-10-01T03:30:00 +14"],
        ),
    ]);
}

#[test]
fn of_a_day_that_did_not_exist_nothing_runs() {
    // After 29 December came 31 December.
    for expression in ["30 2 * * *", "30 2-3/2 * * *"] {
        check(&[Row(
            APIA,
            expression,
            "2011-12-29T00:00",
            48,
            &["2011-12-29T02:30:00 -10", "2011-12-31T02:30:00 +14"],
        )]);
    }
    check(&[
        Row(
            APIA,
            "0 */12 * * *",
            "2011-12-29T10:00",
            30,
            &[
                "2011-12-29T12:00:00 -10",
                "2011-12-31T00:00:00 +14",
                "2011-12-31T12:00:00 +14",
            ],
        ),
        Row(APIA, "0 9 30 12 *", "2011-12-29T00:00", 96, &[]),
    ]);
}

#[test]
fn with_a_star_a_time_that_does_not_exist_does_not_run() {
    check(&[
        Row(
            BERLIN,
            "*/30 * * * *",
            "2026-03-29T01:10",
            1,
            &["2026-03-29T01:30:00 +01", "2026-03-29T03:00:00 +02"],
        ),
        Row(NEW_YORK, "*/20 2 * * *", "2026-03-08T00:00", 24, &[]),
        Row(
            LORD_HOWE,
            "*/15 * * * *",
            "2026-10-04T01:40",
            1,
            &[
                "2026-10-04T01:45:00 +10:30",
                "2026-10-04T02:30:00 +11",
                "2026-10-04T02:45:00 +11",
                "2026-10-04T03:00:00 +11",
            ],
        ),
        Row(
            CASABLANCA,
            "*/30 * * * *",
            "2026-03-22T01:10",
            1,
            &["2026-03-22T01:30:00 +00", "2026-03-22T03:00:00 +01"],
        ),
        Row(
            APIA,
            "*/30 * * * *",
            "2012-09-30T02:10",
            1,
            &["2012-09-30T02:30:00 +13", "2012-09-30T04:00:00 +14"],
        ),
        Row(
            "UTC",
            "*/30 * * * *",
            "2026-03-29T02:10",
            1,
            &["2026-03-29T02:30:00 +00", "2026-03-29T03:00:00 +00"],
        ),
    ]);
}

#[test]
fn a_time_that_exists_twice_runs_the_first_time() {
    check(&[
        // Back by an hour at three.
        Row(
            BERLIN,
            "30 2 * * *",
            "2026-10-24T12:00",
            48,
            &["2026-10-25T02:30:00 +02", "2026-10-26T02:30:00 +01"],
        ),
        // Back by an hour at two.
        Row(
            NEW_YORK,
            "30 1 * * *",
            "2026-10-31T12:00",
            48,
            &["2026-11-01T01:30:00 -04", "2026-11-02T01:30:00 -05"],
        ),
        // Back by half an hour at two.
        Row(
            LORD_HOWE,
            "45 1 * * *",
            "2026-04-04T12:00",
            48,
            &["2026-04-05T01:45:00 +11", "2026-04-06T01:45:00 +10:30"],
        ),
        // Back by an hour at three, at the begin of Ramadan.
        Row(
            CASABLANCA,
            "30 2 * * *",
            "2026-02-14T12:00",
            48,
            &["2026-02-15T02:30:00 +01", "2026-02-16T02:30:00 +00"],
        ),
        Row(
            APIA,
            "30 3 * * *",
            "2012-03-31T12:00",
            48,
            &["2012-04-01T03:30:00 +14", "2012-04-02T03:30:00 +13"],
        ),
        Row(
            "UTC",
            "30 2 * * *",
            "2026-10-24T12:00",
            48,
            &["2026-10-25T02:30:00 +00", "2026-10-26T02:30:00 +00"],
        ),
    ]);
}

#[test]
fn with_a_star_a_time_that_exists_twice_runs_both_times() {
    check(&[
        Row(
            BERLIN,
            "30 * * * *",
            "2026-10-25T02:00",
            3,
            &[
                "2026-10-25T02:30:00 +02",
                "2026-10-25T02:30:00 +01",
                "2026-10-25T03:30:00 +01",
            ],
        ),
        Row(
            LORD_HOWE,
            "*/20 * * * *",
            "2026-04-05T01:30",
            1,
            &[
                "2026-04-05T01:40:00 +11",
                "2026-04-05T01:40:00 +10:30",
                "2026-04-05T02:00:00 +10:30",
            ],
        ),
        Row(
            NEW_YORK,
            "30 * * * *",
            "2026-11-01T01:00",
            3,
            &[
                "2026-11-01T01:30:00 -04",
                "2026-11-01T01:30:00 -05",
                "2026-11-01T02:30:00 -05",
            ],
        ),
        Row(
            CASABLANCA,
            "30 * * * *",
            "2026-02-15T02:00",
            3,
            &[
                "2026-02-15T02:30:00 +01",
                "2026-02-15T02:30:00 +00",
                "2026-02-15T03:30:00 +00",
            ],
        ),
        Row(
            APIA,
            "30 * * * *",
            "2012-04-01T03:00",
            3,
            &[
                "2012-04-01T03:30:00 +14",
                "2012-04-01T03:30:00 +13",
                "2012-04-01T04:30:00 +13",
            ],
        ),
        Row(
            "UTC",
            "30 * * * *",
            "2026-10-25T02:00",
            3,
            &[
                "2026-10-25T02:30:00 +00",
                "2026-10-25T03:30:00 +00",
                "2026-10-25T04:30:00 +00",
            ],
        ),
    ]);
}

// === the dialect ===

/// The next dates by UTC, from the start of 2026, as text.
fn next(expression: &str, count: usize) -> Vec<String> {
    let cron = Cron::new(expression, "UTC").unwrap();
    let dates = cron.times_after(date("UTC", "2026-01-01T00:00"));
    let texts = dates.take(count).map(|date| shown("UTC", date));
    texts.map(|text| text.replace(" +00", "")).collect()
}

#[test]
fn each_part_of_the_dialect_means_what_the_documentation_says() {
    for (expression, expected) in [
        ("5 * * * *", ["2026-01-01T00:05:00", "2026-01-01T01:05:00"]),
        (
            "30 5 * * * *",
            ["2026-01-01T00:05:30", "2026-01-01T01:05:30"],
        ),
        (
            "* * * * * *",
            ["2026-01-01T00:00:01", "2026-01-01T00:00:02"],
        ),
        (
            "0 0 * * MON-FRI",
            ["2026-01-02T00:00:00", "2026-01-05T00:00:00"],
        ),
        (
            "0 0 * * mon",
            ["2026-01-05T00:00:00", "2026-01-12T00:00:00"],
        ),
        ("0 0 * * 0", ["2026-01-04T00:00:00", "2026-01-11T00:00:00"]),
        ("0 0 * * 7", ["2026-01-04T00:00:00", "2026-01-11T00:00:00"]),
        (
            "0 8-18/5 * * *",
            ["2026-01-01T08:00:00", "2026-01-01T13:00:00"],
        ),
        (
            "0 0 1,15 JUN *",
            ["2026-06-01T00:00:00", "2026-06-15T00:00:00"],
        ),
        ("0 0 L * *", ["2026-01-31T00:00:00", "2026-02-28T00:00:00"]),
        // 15 February 2026 is a Sunday, and 1 February, too.
        (
            "0 0 15W 2-3 *",
            ["2026-02-16T00:00:00", "2026-03-16T00:00:00"],
        ),
        (
            "0 0 1W 2,4 *",
            ["2026-02-02T00:00:00", "2026-04-01T00:00:00"],
        ),
        (
            "0 0 * * FRI#2",
            ["2026-01-09T00:00:00", "2026-02-13T00:00:00"],
        ),
        (
            "0 0 * * FRI#L",
            ["2026-01-30T00:00:00", "2026-02-27T00:00:00"],
        ),
        // Either of two restricted day fields, as in Vixie's cron.
        (
            "0 0 13 * FRI",
            ["2026-01-02T00:00:00", "2026-01-09T00:00:00"],
        ),
        (
            "0 0 13 * +FRI",
            ["2026-02-13T00:00:00", "2026-03-13T00:00:00"],
        ),
        (
            "0 0 ? * FRI",
            ["2026-01-02T00:00:00", "2026-01-09T00:00:00"],
        ),
        ("@yearly", ["2027-01-01T00:00:00", "2028-01-01T00:00:00"]),
        ("@annually", ["2027-01-01T00:00:00", "2028-01-01T00:00:00"]),
        ("@monthly", ["2026-02-01T00:00:00", "2026-03-01T00:00:00"]),
        ("@weekly", ["2026-01-04T00:00:00", "2026-01-11T00:00:00"]),
        ("@DAILY", ["2026-01-02T00:00:00", "2026-01-03T00:00:00"]),
        ("@hourly", ["2026-01-01T01:00:00", "2026-01-01T02:00:00"]),
        ("0 0 29 2 *", ["2028-02-29T00:00:00", "2032-02-29T00:00:00"]),
        // Each 29 February that is a Monday: forty years apart at the end of a century.
        (
            "0 0 29 2 +MON",
            ["2044-02-29T00:00:00", "2072-02-29T00:00:00"],
        ),
    ] {
        assert_eq!(next(expression, 2), expected, "{expression}");
    }
    let either = next("0 0 13 * FRI", 3);
    assert_eq!(either[2], "2026-01-13T00:00:00", "no Friday");
}

#[test]
fn the_next_ten_times_can_be_listed() {
    let cron = Cron::new("30 2 * * *", BERLIN).unwrap();
    let dates: Vec<_> = cron
        .times_after(date(BERLIN, "2026-03-28T00:00"))
        .take(10)
        .collect();
    assert_eq!(dates.len(), 10);
    assert_eq!(shown(BERLIN, dates[1]), "2026-03-29T03:00:00 +02");
    assert!(dates.is_sorted());
    assert_eq!((cron.expression(), cron.zone()), ("30 2 * * *", BERLIN));
    assert!(format!("{cron:?}").contains("30 2"));
}

#[test]
fn what_is_no_expression_of_the_dialect_is_refused() {
    let long = "1,".repeat(100_000) + "1 * * * *";
    for expression in [
        "",
        " ",
        "*",
        "* * * *",
        "* * * * * * *",
        "0 0 0 1 1 * 2030",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "60 * * * * *",
        "-1 * * * *",
        "5-1 * * * *",
        "*/0 * * * *",
        "a * * * *",
        "@reboot",
        "@never",
        "@daily @daily",
        "0/10 * * * *",
        "* * * FOO *",
        "1\u{0}2 * * * *",
        "５ * * * *",
        "* * * * MON#6",
        "99999999999999999999 * * * *",
    ] {
        let refused = Cron::new(expression, "UTC").err();
        let is_refused = matches!(refused, Some(CronError::Expression { .. }));
        assert!(is_refused, "{expression:?} {refused:?}");
        assert!(Period::cron(expression, "UTC").is_err());
    }
    // Long, and right.
    assert!(Cron::new(&long, "UTC").is_ok());
}

#[test]
fn a_zone_without_data_is_refused() {
    for zone in [
        "",
        "Berlin",
        "Europe/Atlantis",
        "../../etc/passwd",
        "/etc/passwd",
        "a\0b",
        "CEST+2",
    ] {
        let refused = Cron::new("@daily", zone).unwrap_err();
        assert!(
            matches!(refused, CronError::Zone { .. }),
            "{zone} {refused:?}"
        );
    }
}

#[test]
fn an_expression_that_never_matches_is_refused() {
    for expression in [
        "0 0 30 2 *",
        "0 0 31 2,4,6,9,11 *",
        "* * 31 9 *",
        "0 0 30 2 +MON",
    ] {
        let refused = Period::cron(expression, BERLIN).unwrap_err();
        let never = CronError::Never {
            expression: expression.to_owned(),
        };
        assert_eq!(refused, never);
    }
}

#[test]
fn at_the_ends_of_the_calendar_there_is_no_next_date() {
    let cron = Cron::new("0 0 1 1 *", "UTC").unwrap();
    let before = date("UTC", "1900-06-01T12:00") - Duration::from_nanos(1);
    let first = cron.times_after(before).next().unwrap();
    assert_eq!(shown("UTC", first), "1901-01-01T00:00:00 +00");
    let last = cron.times_after(date("UTC", "9998-06-01T00:00"));
    assert!(last.count() <= 1);
    let beyond = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40);
    assert_eq!(cron.times_after(beyond).next(), None);
}

// === beside a search minute by minute ===

/// An expression, and which values of its fields match, made independently of the parser.
struct Sample {
    expression: String,
    minutes: Vec<bool>,
    hours: Vec<bool>,
    days: Vec<bool>,
    months: Vec<bool>,
    weekdays: Vec<bool>,
    day_has_star: bool,
    weekday_has_star: bool,
    is_fixed: bool,
}

/// A random number generator, so that a seed names all samples.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// Makes a field of the values `low..=high`: its text, and what matches.
    fn field(&mut self, low: u64, high: u64) -> (String, Vec<bool>) {
        let mut matches = vec![false; usize::try_from(high).unwrap() + 1];
        let mut set = |value: u64| matches[usize::try_from(value).unwrap()] = true;
        let a = low + self.below(high - low + 1);
        let b = a + self.below(high - a + 1);
        let step = 1 + self.below(7);
        let text = match self.below(6) {
            0 | 1 => {
                set(a);
                a.to_string()
            }
            2 => {
                (low..=high).for_each(set);
                "*".to_owned()
            }
            3 => {
                (low..=high)
                    .step_by(usize::try_from(step).unwrap())
                    .for_each(set);
                format!("*/{step}")
            }
            4 => {
                (a..=b)
                    .step_by(usize::try_from(step).unwrap())
                    .for_each(set);
                format!("{a}-{b}/{step}")
            }
            _ => {
                set(a);
                set(b);
                format!("{a},{b}")
            }
        };
        (text, matches)
    }

    /// Makes a field of the values `low..=high`, often one that all of them match.
    fn often_all(&mut self, low: u64, high: u64) -> (String, Vec<bool>) {
        match self.below(3) {
            0 => self.field(low, high),
            _ => (
                "*".to_owned(),
                vec![true; usize::try_from(high).unwrap() + 1],
            ),
        }
    }

    fn sample(&mut self) -> Sample {
        let (minute, minutes) = self.field(0, 59);
        // Often an hour in which zones change their clocks.
        let (hour, hours) = match self.below(2) {
            0 => self.field(0, 23),
            _ => {
                let (text, mut matches) = self.field(0, 3);
                let is_star = text.starts_with('*');
                let step = text
                    .strip_prefix("*/")
                    .map_or(1, |step| step.parse().unwrap());
                matches.resize(24, false);
                if is_star {
                    (0..24).for_each(|hour| matches[hour] = hour % step == 0);
                }
                (text, matches)
            }
        };
        let (day, days) = self.often_all(1, 31);
        let (month, months) = self.often_all(1, 12);
        let (weekday, mut weekdays) = self.often_all(0, 6);
        weekdays.resize(7, false);
        let is_fixed = !minute.contains('*') && !hour.contains('*');
        Sample {
            expression: format!("{minute} {hour} {day} {month} {weekday}"),
            minutes,
            hours,
            days,
            months,
            weekdays,
            day_has_star: day == "*",
            weekday_has_star: weekday == "*",
            is_fixed,
        }
    }
}

impl Sample {
    fn matches(&self, shown: DateTime) -> bool {
        let index = |value: i8| usize::try_from(value).unwrap();
        if !self.minutes[index(shown.minute())]
            || !self.hours[index(shown.hour())]
            || !self.months[index(shown.month())]
        {
            return false;
        }
        let day = self.days[index(shown.day())];
        let weekday = self.weekdays[index(shown.weekday().to_sunday_zero_offset())];
        if self.day_has_star || self.weekday_has_star {
            day && weekday
        } else {
            day || weekday
        }
    }

    /// Returns all dates of these minutes, by a look at each one.
    fn search(&self, minutes: &[Minute]) -> Vec<i64> {
        let is_due = |minute: &&Minute| {
            if self.is_fixed {
                let is_new = !minute.is_repeated && self.matches(minute.shown);
                is_new || minute.left_out.iter().any(|shown| self.matches(*shown))
            } else {
                self.matches(minute.shown)
            }
        };
        minutes.iter().filter(is_due).map(|m| m.at).collect()
    }
}

/// A minute of a zone, in seconds since 1970, and what its clocks show then.
struct Minute {
    at: i64,
    shown: DateTime,
    /// The clocks have shown this or a later time before.
    is_repeated: bool,
    /// The minutes that the clocks have left out just before, in a gap of up to three hours.
    left_out: Vec<DateTime>,
}

/// Returns each minute after `from` up to `until`.
fn minutes_of(zone: &TimeZone, from: i64, until: i64) -> Vec<Minute> {
    // What the clocks show, in seconds since 1970 began on them, and as a date.
    let local = |at: i64| {
        let offset = zone.to_offset(jiff::Timestamp::from_second(at).unwrap());
        at + i64::from(offset.seconds())
    };
    let date = |local: i64| Offset::UTC.to_datetime(jiff::Timestamp::from_second(local).unwrap());
    // The latest time that the clocks have shown so far.
    let mut latest = local(from);
    let mut minutes = Vec::new();
    for at in (from + 60..=until).step_by(60) {
        let shown = local(at);
        let mut left_out = Vec::new();
        if shown - latest <= 181 * 60 {
            left_out.extend((latest + 60..shown).step_by(60).map(date));
        }
        minutes.push(Minute {
            at,
            shown: date(shown),
            is_repeated: shown <= latest,
            left_out,
        });
        latest = latest.max(shown);
    }
    minutes
}

/// Thirty zones: with changes of an hour, of half an hour, of two hours, at Ramadan, none, and odd
/// distances from UTC.
const ZONES: [&str; 30] = [
    "UTC",
    BERLIN,
    NEW_YORK,
    LORD_HOWE,
    CASABLANCA,
    APIA,
    "Europe/London",
    "Europe/Dublin",
    "Europe/Istanbul",
    "Europe/Moscow",
    "America/Los_Angeles",
    "America/St_Johns",
    "America/Sao_Paulo",
    "America/Santiago",
    "America/Havana",
    "America/Asuncion",
    "America/Nuuk",
    "America/Caracas",
    "Antarctica/Troll",
    "Africa/Cairo",
    "Africa/El_Aaiun",
    "Asia/Kathmandu",
    "Asia/Kolkata",
    "Asia/Tehran",
    "Asia/Gaza",
    "Asia/Pyongyang",
    "Asia/Tokyo",
    "Australia/Adelaide",
    "Pacific/Chatham",
    "Pacific/Kiritimati",
];

/// Compares the dates of random expressions with those of the search. The stretches together cover
/// the time from `from` for so many days, once for each zone.
fn beside_the_search(seed: u64, from: i64, days: i64, stretch: i64, samples: u64) {
    let mut random = Random(seed);
    for name in ZONES {
        let zone = TimeZone::get(name).unwrap();
        for day in (0..days).step_by(usize::try_from(stretch).unwrap()) {
            let (from, until) = (from + day * 86_400, from + (day + stretch) * 86_400);
            let minutes = minutes_of(&zone, from, until);
            for _ in 0..samples {
                let sample = random.sample();
                let Ok(cron) = Cron::new(&sample.expression, name) else {
                    // 31 February: nothing may match.
                    assert_eq!(sample.search(&minutes), [], "{}", sample.expression);
                    continue;
                };
                let start = u64::try_from(from).unwrap();
                let dates = cron.times_after(SystemTime::UNIX_EPOCH + Duration::from_secs(start));
                let seconds = dates.map(|date| {
                    let since = date.duration_since(SystemTime::UNIX_EPOCH).unwrap();
                    i64::try_from(since.as_secs()).unwrap()
                });
                let found: Vec<i64> = seconds.take_while(|at| *at <= until).collect();
                let expected = sample.search(&minutes);
                let at = found.iter().zip(&expected).position(|(a, b)| a != b);
                assert!(
                    found == expected,
                    "seed {seed}, {name}, {:?} from {from}: {} and {} dates, which differ at {:?}",
                    sample.expression,
                    found.len(),
                    expected.len(),
                    at.map(|at| (found[at], expected[at])),
                );
            }
        }
    }
}

/// 2025-01-01T00:00 by UTC.
const NEW_YEAR_2025: i64 = 1_735_689_600;

/// Two years of all zones. `CRON_YEARS=20`, best with `--release`, takes ten times as long.
#[test]
fn dates_are_those_of_a_search_minute_by_minute() {
    let years = std::env::var("CRON_YEARS").map_or(2, |years| years.parse().unwrap());
    // Twenty years begin before Apia left out a day.
    let from = if years > 2 {
        1_230_768_000
    } else {
        NEW_YEAR_2025
    };
    beside_the_search(0x5eed, from, years * 366, 61, 2);
}
