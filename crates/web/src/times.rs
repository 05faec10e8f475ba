//! Times and spans, as people type and read them.

use std::time::{Duration, SystemTime};

use jiff::{Span, SpanRelativeTo, Timestamp, Unit};

/// When a timer is to be due.
#[derive(Clone, Copy, Debug)]
pub enum Moment {
    After(Duration),
    At(SystemTime),
}

/// Reads a span such as `15m`, `2h30m` or `30d`. A day has 24 hours.
pub fn span(text: &str) -> Result<Duration, String> {
    let span: Span = text
        .parse()
        .map_err(|_| "write a span such as 15m, 2h30m or 30d".to_owned())?;
    let span = span
        .to_duration(SpanRelativeTo::days_are_24_hours())
        .map_err(|_| "the length of months and years depends on the date: write days".to_owned())?;
    Duration::try_from(span).map_err(|_| "the span is negative".to_owned())
}

/// Reads a span, or a time such as `2031-12-24T18:00:00Z`.
pub fn moment(text: &str) -> Result<Moment, String> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(Moment::At(time.into()));
    }
    span(text)
        .map(Moment::After)
        .map_err(|error| format!("{error}, or a time with a zone such as 2031-12-24T18:00:00Z"))
}

/// A time in UTC, to the second.
pub fn time(time: SystemTime) -> String {
    match Timestamp::try_from(time).and_then(|time| time.round(Unit::Second)) {
        Ok(time) => time.to_string(),
        Err(_) => "far away".to_owned(),
    }
}

/// How far a time lies from now, in short: `in 5m`, `3h 2m ago`.
pub fn distance(time: SystemTime, now: SystemTime) -> String {
    match time.duration_since(now) {
        Ok(ahead) => format!("in {}", short(ahead)),
        Err(behind) => format!("{} ago", short(behind.duration())),
    }
}

/// A span with its two greatest units.
pub fn short(span: Duration) -> String {
    let seconds = span.as_secs();
    let units = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
    let Some(first) = units.iter().position(|(_, unit)| seconds >= *unit) else {
        return format!("{}ms", span.as_millis());
    };
    let (name, unit) = units[first];
    let mut text = format!("{}{name}", seconds / unit);
    if let Some((name, next)) = units.get(first + 1) {
        match seconds % unit / next {
            0 => {}
            rest => text += &format!(" {rest}{name}"),
        }
    }
    text
}

/// A time in microseconds since 1970.
#[must_use]
pub fn micros(time: SystemTime) -> i64 {
    let micros = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => micros(after),
        Err(before) => -micros(before.duration()),
    }
}

/// The time so many microseconds after 1970, or 1970 if it can't be expressed.
#[must_use]
pub fn of_micros(micros: i64) -> SystemTime {
    let span = Duration::from_micros(micros.unsigned_abs());
    let time = match micros < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(span),
        false => SystemTime::UNIX_EPOCH.checked_add(span),
    };
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_shown() {
        let shown = |text| span(text).map(short);
        for (text, expected) in [
            ("15m", "15m"),
            ("2h30m", "2h 30m"),
            ("90s", "1m 30s"),
            ("30d", "30d"),
            ("1d 1s", "1d"),
            ("250ms", "250ms"),
            ("0s", "0ms"),
        ] {
            assert_eq!(shown(text).as_deref(), Ok(expected), "{text}");
        }
        for bad in [
            "",
            "soon",
            "15",
            "-5m",
            "1 month",
            "1y",
            "9999999999999999d",
        ] {
            assert!(span(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn moments_are_spans_or_times_with_a_zone() {
        assert!(matches!(moment("15m"), Ok(Moment::After(_))));
        let Ok(Moment::At(at)) = moment("2031-12-24T18:00:00+01:00") else {
            panic!("a time");
        };
        assert_eq!(time(at), "2031-12-24T17:00:00Z");
        for bad in ["2031-12-24", "2031-12-24T18:00:00", "tomorrow"] {
            let error = moment(bad).unwrap_err();
            assert!(error.contains("2031-12-24T18:00:00Z"), "{error}");
        }
    }
}
