//! Cron expressions in time zones.
//!
//! The crate `croner` reads an expression and finds the next date that it matches on a calendar
//! without a zone. What happens where a zone changes its clocks is decided here, since croner does
//! otherwise: it gives up at a gap of more than two hours, such as the day that Apia left out, and a
//! list of hours, such as `0 1,2 * * *`, would lose the round of an hour that does not exist.
//!
//! A zone is a row of stretches with one offset each. Within a stretch, the dates are those of the
//! calendar. Between two stretches the clocks of the zone go forward over a gap, or back over times
//! that come again.

use std::fmt;
use std::time::{Duration, SystemTime};

use croner::parser::{CronParser, Year};
use jiff::civil::DateTime;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};

use super::period::Period;
use crate::sync::Arc;

/// How far a search goes. 29 February is a Monday, or any other day of the week, at least once in
/// forty years.
const SEARCH: SignedDuration = SignedDuration::from_hours(100 * 366 * 24);

/// A greater gap is a correction of the calendar, whose times nobody waits for. Vixie's cron takes
/// three hours, too.
const GREATEST_GAP: SignedDuration = SignedDuration::from_hours(3);

const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// A cron expression in a time zone: a calendar for [`Period::cron`], whose dates can be listed.
///
/// # The dialect
///
/// Five fields, or six with seconds in front, separated by blanks:
///
/// | field | values | also |
/// |---|---|---|
/// | second, which may be left out and is 0 then | 0 to 59 | |
/// | minute | 0 to 59 | |
/// | hour | 0 to 23 | |
/// | day of the month | 1 to 31 | `L`: the last day; `15W`: the weekday nearest to the 15th, in the same month |
/// | month | 1 to 12, `JAN` to `DEC` | |
/// | day of the week | 0 to 7, `SUN` to `SAT`; 0 and 7 are Sunday | `FRI#2`: the second Friday of the month; `FRI#L`: the last one |
///
/// - Each field takes `*`, lists (`1,15`), ranges (`MON-FRI`) and steps (`*/15`, `8-18/2`). Names are
///   in upper or lower case.
/// - If both day fields are restricted, either of them is enough, as in Vixie's cron: `0 0 13 * FRI`
///   matches each Friday and each 13th. With a `+` before the day of the week both must match:
///   `0 0 13 * +FRI`.
/// - `?` is `*` in the day fields.
/// - `@yearly` (or `@annually`), `@monthly`, `@weekly`, `@daily` and `@hourly` stand for whole
///   expressions. There is no `@reboot`, and no field for years.
///
/// # Where the clocks of the zone change
///
/// As in Vixie's cron, it matters whether the second, the minute or the hour has a `*`:
///
/// | | without `*`, such as `30 2 * * *` | with `*`, such as `*/15 * * * *` |
/// |---|---|---|
/// | a time that does not exist, as the clocks go forward | runs once, at the end of the gap; not if the gap is longer than three hours | does not run |
/// | a time that exists twice, as the clocks go back | runs once, the first time | runs both times |
///
/// # Zone data
///
/// They come from the system: from `/usr/share/zoneinfo` or where the variable `TZDIR` says, and on
/// Windows from a copy in the program. Each look at the calendar asks for the zone anew. The crate
/// `jiff` keeps what it has read for five minutes, and then reads data that were replaced. In an image without zone data, add the crate `jiff` with its
/// feature `tzdb-bundle-always` to your program; `UTC` works without data.
///
/// # Complexity
///
/// A step to the next date takes microseconds. It takes more if dates are years apart, at most some
/// milliseconds.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tourbillon::Cron;
///
/// let cron = Cron::new("30 6 * * MON-FRI", "UTC")?;
/// // The next ten times.
/// let times: Vec<_> = cron.times_after(SystemTime::UNIX_EPOCH).take(10).collect();
/// let half_past_six = Duration::from_secs(6 * 3600 + 1800);
/// assert_eq!(times[0], SystemTime::UNIX_EPOCH + half_past_six); // 1970 began on a Thursday
/// assert_eq!(times[2].duration_since(times[1])?, Duration::from_secs(3 * 86_400));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
pub struct Cron(Arc<Parsed>);

struct Parsed {
    expression: String,
    zone: String,
    pattern: croner::Cron,
    /// Whether no second, minute or hour has a `*`.
    is_fixed: bool,
    zones: TimeZoneDatabase,
}

/// Says why a cron expression in a zone is no calendar.
///
/// # Examples
///
/// ```
/// use tourbillon::{Cron, CronError};
///
/// let refused = Cron::new("0 0 30 2 *", "UTC").unwrap_err();
/// assert!(matches!(refused, CronError::Never { .. }));
/// assert!(refused.to_string().contains("matches no date"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
pub enum CronError {
    /// The expression is not of the [dialect](Cron#the-dialect).
    Expression {
        /// The expression.
        expression: String,
        /// What is wrong with it.
        reason: String,
    },
    /// There are no data of this zone.
    Zone {
        /// The name of the zone.
        zone: String,
        /// What the database says.
        reason: String,
    },
    /// The expression matches no date within a hundred years, such as 30 February.
    Never {
        /// The expression.
        expression: String,
    },
}

impl fmt::Display for CronError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CronError::Expression { expression, reason } => write!(
                f,
                "{expression:?} is no cron expression of five or six fields: {reason}"
            ),
            CronError::Zone { zone, reason } => write!(
                f,
                "no data of the time zone {zone:?}, which should be a name such as Europe/Berlin \
                 or UTC: {reason}"
            ),
            CronError::Never { expression } => write!(
                f,
                "the cron expression {expression:?} matches no date within a hundred years; \
                 correct its day and month"
            ),
        }
    }
}

impl std::error::Error for CronError {}

impl Period {
    /// Makes a [`calendar`](Self::calendar) by a cron expression in a time zone, which is named as in
    /// the IANA database: `Europe/Berlin`, `UTC`. [`Cron`] says which expressions there are, and what
    /// happens where the clocks of the zone change.
    ///
    /// # Errors
    ///
    /// As for [`Cron::new`]. It is no date of the present that decides, so a test finds the same
    /// error.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Period, Scheduler};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?; // `build` in a program
    /// let period = Period::cron("30 2 * * *", "UTC")?;
    /// scheduler.handle().repeat("report", period, |round| {
    ///     println!("the report of {:?}", round.scheduled_for());
    /// })?;
    /// let day = Duration::from_secs(86_400);
    /// assert_eq!(scheduler.advance(7 * day).len(), 7);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
    pub fn cron(expression: &str, zone: &str) -> Result<Self, CronError> {
        Cron::new(expression, zone).map(Period::from)
    }
}

impl From<Cron> for Period {
    fn from(cron: Cron) -> Self {
        Period::calendar(move |after| cron.times_after(after).next())
    }
}

impl Cron {
    /// Reads an expression of the [dialect](Self#the-dialect), in the zone of that name.
    ///
    /// # Errors
    ///
    /// - [`CronError::Expression`]: the expression is not of the dialect.
    /// - [`CronError::Zone`]: there are no data of the zone.
    /// - [`CronError::Never`]: no date within the hundred years from 1970 on matches.
    ///
    /// # Blocking
    ///
    /// It reads the zone's data from files, unless the process has done so in the last minutes.
    pub fn new(expression: &str, zone: &str) -> Result<Self, CronError> {
        Self::with_zones(expression, zone, jiff::tz::db())
    }

    fn with_zones(
        expression: &str,
        zone: &str,
        zones: &TimeZoneDatabase,
    ) -> Result<Self, CronError> {
        let refused = |reason: String| CronError::Expression {
            expression: expression.to_owned(),
            reason,
        };
        let fields: Vec<&str> = expression.split_whitespace().collect();
        let is_nickname = fields.len() == 1 && fields[0].starts_with('@');
        if !is_nickname && !matches!(fields.len(), 5 | 6) {
            return Err(refused(format!("it has {} fields", fields.len())));
        }
        let parser = CronParser::builder().year(Year::Disallowed).build();
        let pattern = parser.parse(expression);
        let pattern = pattern.map_err(|error| refused(error.to_string()))?;
        let is_fixed = match is_nickname {
            true => !fields[0].eq_ignore_ascii_case("@hourly"),
            // Minute and hour are the second and third of six fields, and the first of five.
            false => !fields[..fields.len() - 3]
                .iter()
                .any(|field| field.contains('*')),
        };
        zones.get(zone).map_err(|error| CronError::Zone {
            zone: zone.to_owned(),
            reason: error.to_string(),
        })?;
        let cron = Cron(Arc::new(Parsed {
            expression: expression.to_owned(),
            zone: zone.to_owned(),
            pattern,
            is_fixed,
            zones: zones.clone(),
        }));
        if cron.times_after(SystemTime::UNIX_EPOCH).next().is_none() {
            return Err(CronError::Never {
                expression: expression.to_owned(),
            });
        }
        Ok(cron)
    }

    /// Returns the dates after `after` that the expression matches, in their order. The iterator
    /// ends where the next date is more than a hundred years away or after the year 9999, and if the
    /// data of the zone have gone.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::SystemTime;
    /// use tourbillon::Cron;
    ///
    /// let cron = Cron::new("@daily", "UTC")?;
    /// let days: Vec<_> = cron.times_after(SystemTime::now()).take(10).collect();
    /// assert_eq!(days.len(), 10);
    /// # Ok::<(), tourbillon::CronError>(())
    /// ```
    pub fn times_after(&self, after: SystemTime) -> impl Iterator<Item = SystemTime> + use<> {
        let parsed = Arc::clone(&self.0);
        // Once for all dates: one list is by one version of the data.
        let zone = parsed.zones.get(&parsed.zone).ok();
        let mut after = floor(after);
        std::iter::from_fn(move || {
            let next = parsed.next(zone.as_ref()?, after?);
            after = next;
            next.map(SystemTime::from)
        })
    }

    /// Returns the expression.
    ///
    /// # Examples
    ///
    /// ```
    /// let cron = tourbillon::Cron::new("@daily", "UTC")?;
    /// assert_eq!((cron.expression(), cron.zone()), ("@daily", "UTC"));
    /// # Ok::<(), tourbillon::CronError>(())
    /// ```
    #[must_use]
    pub fn expression(&self) -> &str {
        &self.0.expression
    }

    /// Returns the name of the zone.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(tourbillon::Cron::new("@daily", "UTC")?.zone(), "UTC");
    /// # Ok::<(), tourbillon::CronError>(())
    /// ```
    #[must_use]
    pub fn zone(&self) -> &str {
        &self.0.zone
    }
}

/// Returns the whole second in which `time` lies. A date is a whole second, so the same dates follow.
fn floor(time: SystemTime) -> Option<Timestamp> {
    let seconds = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).ok()?,
        Err(before) => {
            let before = before.duration() + Duration::from_nanos(999_999_999);
            -i64::try_from(before.as_secs()).ok()?
        }
    };
    Timestamp::from_second(seconds).ok()
}

impl Parsed {
    /// Returns the first date after `after`, which is a whole second.
    fn next(&self, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
        let limit = after.checked_add(SEARCH).unwrap_or(Timestamp::MAX);
        let mut offset = zone.to_offset(after);
        // The search goes on after this time of the zone's clocks.
        let mut shown = offset.to_datetime(after);
        // Times before this one have been shown before, in the stretch before this one.
        let mut new_from = DateTime::MIN;
        if self.is_fixed
            && let Some(began) = zone.preceding(after.checked_add(SECOND).ok()?).next()
        {
            new_from = self.shown_before(zone, began.timestamp())?;
        }
        let mut changes = zone.following(after);
        loop {
            let from = shown.max(new_from.checked_sub(SECOND).unwrap_or(DateTime::MIN));
            let matched = self.pattern.find_next_occurrence(&from, false).ok()?;
            let date = offset.to_timestamp(matched);
            let change = changes.next();
            // A date that the calendar can't hold is after all changes.
            let is_before = |at| date.as_ref().is_ok_and(|date| *date < at);
            let Some(change) = change.filter(|change| !is_before(change.timestamp())) else {
                return date.ok().filter(|date| *date <= limit);
            };
            let at = change.timestamp();
            if at > limit {
                return None;
            }
            let (ends, begins) = (offset.to_datetime(at), change.offset().to_datetime(at));
            let gap = begins.duration_since(ends);
            if self.is_fixed && matched < begins && gap <= GREATEST_GAP {
                return Some(at);
            }
            offset = change.offset();
            new_from = if self.is_fixed { ends } else { DateTime::MIN };
            shown = begins.checked_sub(SECOND).ok()?;
        }
    }

    /// Returns the time that the zone's clocks showed right before the change `at`.
    fn shown_before(&self, zone: &TimeZone, at: Timestamp) -> Option<DateTime> {
        let before = zone.to_offset(at.checked_sub(SECOND).ok()?);
        Some(before.to_datetime(at))
    }
}

impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cron")
            .field("expression", &self.expression())
            .field("zone", &self.zone())
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Scheduler;
    use crate::sync::Mutex;

    /// The data of a zone with one offset, as `zic` writes them.
    fn zone_data(hours_ahead: i32) -> Vec<u8> {
        let mut data = Vec::new();
        for _ in 0..2 {
            data.extend_from_slice(b"TZif2");
            data.extend_from_slice(&[0; 15]);
            for count in [0_u32, 0, 0, 0, 1, 4] {
                data.extend_from_slice(&count.to_be_bytes());
            }
            data.extend_from_slice(&(hours_ahead * 3600).to_be_bytes());
            data.extend_from_slice(&[0, 0]);
            data.extend_from_slice(b"XXX\0");
        }
        data.extend_from_slice(format!("\nXXX{}\n", -hours_ahead).as_bytes());
        data
    }

    /// A folder with the data of one zone, which is removed at the end.
    struct Data(std::path::PathBuf);

    impl Data {
        fn new(hours_ahead: i32) -> Self {
            let name = format!("tourbillon-zones-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&folder).unwrap();
            let data = Data(folder);
            data.replace(hours_ahead);
            data
        }

        fn replace(&self, hours_ahead: i32) {
            std::fs::write(self.0.join("Office"), zone_data(hours_ahead)).unwrap();
        }
    }

    impl Drop for Data {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_texts_of_errors_are_those_that_were_read() {
        for (expression, zone, text) in [
            (
                "30 2 * *",
                "UTC",
                "\"30 2 * *\" is no cron expression of five or six fields: it has 4 fields",
            ),
            (
                "0 0 30 2 *",
                "UTC",
                "the cron expression \"0 0 30 2 *\" matches no date within a hundred years; \
                 correct its day and month",
            ),
        ] {
            assert_eq!(Cron::new(expression, zone).unwrap_err().to_string(), text);
        }
        // The ends of these are texts of other crates.
        for (expression, zone, text) in [
            (
                "60 2 * * *",
                "UTC",
                "\"60 2 * * *\" is no cron expression of five or six fields: ",
            ),
            (
                "@daily",
                "Berlin",
                "no data of the time zone \"Berlin\", which should be a name such as \
                 Europe/Berlin or UTC: ",
            ),
        ] {
            let error = Cron::new(expression, zone).unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }
    }

    #[test]
    fn changed_zone_data_move_a_pending_round_and_missing_data_end_it() {
        const HOUR: Duration = Duration::from_secs(3600);
        let data = Data::new(1);
        let zones = TimeZoneDatabase::from_dir(&data.0).unwrap();
        let cron = Cron::with_zones("0 18 * * *", "Office", &zones).unwrap();
        let scheduler = Scheduler::<u64>::builder().build_stepped(1).unwrap();
        let dates = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&dates);
        let armed = scheduler
            .handle()
            .repeat(1, Period::from(cron), move |round| {
                let date = round.scheduled_for().unwrap();
                noted
                    .lock()
                    .push(date.duration_since(SystemTime::UNIX_EPOCH).unwrap());
            });
        assert!(armed.is_ok());
        scheduler.advance(12 * HOUR);
        assert_eq!(*dates.lock(), []);
        // At 12:00 by UTC: the office moves three hours east, where 18:00 is earlier.
        data.replace(4);
        zones.reset();
        scheduler.advance(12 * HOUR);
        assert_eq!(*dates.lock(), [14 * HOUR]);
        data.replace(-2);
        zones.reset();
        scheduler.advance(24 * HOUR);
        assert_eq!(*dates.lock(), [14 * HOUR, (24 + 20) * HOUR]);
        std::fs::remove_file(data.0.join("Office")).unwrap();
        zones.reset();
        scheduler.advance(2 * HOUR);
        assert!(!scheduler.handle().contains(&1));
    }
}
