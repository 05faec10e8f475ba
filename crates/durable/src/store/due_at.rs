//! When a timer is to be due, as the caller says it.

use std::time::{Duration, SystemTime};

use super::time::StoreTime;

/// When a timer is to be due: after a span, or at a point in time.
///
/// A call takes whatever turns into it:
///
/// | argument | the timer is due |
/// |---|---|
/// | [`Duration`] | after this span, which counts from the moment at which the store carries out the call, by the store's clock |
/// | [`SystemTime`] | at this time, by the store's clock |
/// | `jiff::Timestamp`, `jiff::Zoned` (feature `jiff`) | at this time, by the store's clock; of a `Zoned` only the moment is kept, not the time zone |
///
/// So a delay of 15 minutes in a call that waits for the end of an outage begins after the outage.
/// A point in time stays where it is. If the clocks of this machine and of the store differ, a
/// delay is exact, and a time is that of the store.
///
/// - A timer that is due in the past, also before 1970, and one with a delay of zero are due at
///   once: [`ScheduleAnswer::due`](crate::ScheduleAnswer::due) is then the store's present time.
/// - The store keeps microseconds, rounded up, so that nothing is due early.
/// - A time after the year 9999 is refused with [`Invalid::TooFar`](crate::Invalid::TooFar). So is
///   a delay that ends later than that by the clock of this machine, such as [`Duration::MAX`].
///
/// # Examples
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tourbillon_durable::{Durable, Memory};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let timers = Durable::builder(Memory::new()).start()?;
/// let quarter = Duration::from_secs(15 * 60);
/// timers.schedule("pay-by", "order:7", quarter, &7).wait()?;
/// let deadline = SystemTime::now() + quarter;
/// let scheduled = timers.schedule("pay-by", "order:8", deadline, &8).wait()?;
/// assert!(scheduled.due >= deadline);
/// # Ok(())
/// # }
/// ```
///
/// With the feature `jiff`, at nine in the morning of the next day, where the user lives:
///
/// ```
/// # #[cfg(feature = "jiff")] {
/// use jiff::{ToSpan, Zoned};
/// use tourbillon_durable::{Durable, Memory};
///
/// # fn remind(now: Zoned) -> Result<(), Box<dyn std::error::Error>> {
/// # let timers = Durable::builder(Memory::new()).start()?;
/// let morning = now.checked_add(1.day())?.with().hour(9).minute(0).second(0).build()?;
/// timers.schedule("digest", "anna", morning, &()).wait()?;
/// # Ok(())
/// # }
/// # remind(Zoned::now()).unwrap();
/// # }
/// ```
#[doc(alias("delay", "eta", "run_at"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DueAt {
    /// After this span, from the moment at which the store reads its clock.
    After(Duration),
    /// At this time. One that has passed is due at once.
    At(SystemTime),
}

impl DueAt {
    /// Returns the due time of a call that reads the store's clock at `now`. It is never in the
    /// past.
    #[doc(hidden)]
    #[must_use]
    pub fn due(self, now: StoreTime) -> StoreTime {
        match self {
            DueAt::After(span) => (now + span).min(StoreTime::LATEST),
            DueAt::At(time) => StoreTime::from(time).max(now).min(StoreTime::LATEST),
        }
    }
}

impl From<Duration> for DueAt {
    fn from(span: Duration) -> Self {
        DueAt::After(span)
    }
}

#[doc(hidden)]
impl From<StoreTime> for DueAt {
    fn from(time: StoreTime) -> Self {
        DueAt::At(time.into())
    }
}

impl From<SystemTime> for DueAt {
    fn from(time: SystemTime) -> Self {
        DueAt::At(time)
    }
}

#[cfg(feature = "jiff")]
#[cfg_attr(docsrs, doc(cfg(feature = "jiff")))]
impl From<jiff::Timestamp> for DueAt {
    fn from(time: jiff::Timestamp) -> Self {
        // Rounded up. All years of that library have a number of microseconds.
        let (micros, rest) = (time.as_microsecond(), time.subsec_nanosecond() % 1_000);
        StoreTime::from_micros(micros + i64::from(rest > 0)).into()
    }
}

#[cfg(feature = "jiff")]
#[cfg_attr(docsrs, doc(cfg(feature = "jiff")))]
impl From<&jiff::Zoned> for DueAt {
    fn from(time: &jiff::Zoned) -> Self {
        time.timestamp().into()
    }
}

#[cfg(feature = "jiff")]
#[cfg_attr(docsrs, doc(cfg(feature = "jiff")))]
impl From<jiff::Zoned> for DueAt {
    fn from(time: jiff::Zoned) -> Self {
        time.timestamp().into()
    }
}
