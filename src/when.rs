//! When a timer is due: the one argument of all calls that arm or move a timer.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;
#[cfg(not(loom))]
use std::time::Instant;

use crate::clock::{Clock, Reading};
use crate::tick::{TickSize, Time};

/// When a timer is due. Calls that arm or move a timer take an `impl Into<When>`:
///
/// | from | the timer is due |
/// |---|---|
/// | [`Duration`] | so long after the call; zero means at once |
/// | [`Time`] | at that time of the scheduler's clock; a time in the past means at once |
/// | [`Instant`] | at that instant, converted as [`Clock::time_of`] does it |
/// | [`RangeInclusive<Duration>`](RangeInclusive) | at some time in that window, counted from the call |
/// | [`When::after`] | so long after a time that the caller has read before |
///
/// Sums saturate at [`Time::MAX`], which means *never*.
///
/// # Windows
///
/// The time in a window is chosen so that timers with overlapping windows run together, which saves
/// wake-ups. Wider windows save more. Use one for a cache refresh "in 30 s, or up to 5 s later",
/// for example. In a wide window the time may lie near the end. The timer never runs before the
/// window, and late only as any timer may be. A window that ends before it starts counts as its
/// start.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, Instant};
/// use tourbillon::{Scheduler, When};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// let timers = scheduler.handle();
/// let second = Duration::from_secs(1);
/// timers.schedule("request", 5 * second, |_| println!("timed out"))?;
/// timers.schedule("report", timers.now() + 3600 * second, |_| println!("report"))?;
/// timers.schedule("lease", Instant::now() + 30 * second, |_| println!("over"))?;
/// // Both run together.
/// let one = timers.schedule("cache 1", 30 * second..=35 * second, |_| println!("refresh"))?;
/// scheduler.advance(second);
/// let other = timers.schedule("cache 2", 30 * second..=35 * second, |_| println!("refresh"))?;
/// assert_eq!(one.deadline, other.deadline);
/// // A loop reads the clock once.
/// let now = timers.now();
/// for key in ["a", "b", "c"] {
///     timers.schedule(key, When::after(now, 5 * second), |_| println!("too slow"))?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct When(Kind);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    After(Duration),
    At(Time),
    #[cfg(not(loom))]
    AtInstant(Instant),
    Within {
        earliest: Duration,
        latest: Duration,
    },
    AfterGiven {
        now: Time,
        delay: Duration,
    },
}

impl When {
    /// Returns the moment `delay` after `now`, a time of the scheduler's clock that the caller has
    /// read before. A call with it does not read the clock, unless the delay is zero. Use it in an
    /// event loop that reads the clock once per iteration.
    ///
    /// The timer is never due before `now` plus `delay`, even if `now` is ahead of the clock. If
    /// that moment has passed already, it is due at once.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// use tourbillon::When;
    ///
    /// # let scheduler = Scheduler::<u64>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// let limit = Duration::from_secs(5);
    /// let now = timers.now();
    /// for request in 0..100 {
    ///     timers.schedule(request, When::after(now, limit), |_| println!("too slow"))?;
    /// }
    /// assert_eq!(timers.get(&99).map(|timer| timer.deadline), Some(now + limit));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use]
    pub const fn after(now: Time, delay: Duration) -> Self {
        When(Kind::AfterGiven { now, delay })
    }

    /// Returns the deadline, and a moment that is not after the present. The clock is read as
    /// exactly as the deadline needs it, and no more than once.
    #[inline(always)]
    pub(crate) fn resolve(self, clock: &Clock, ticks: TickSize) -> (Time, Time) {
        match self.0 {
            Kind::After(delay) => {
                let reading = clock.reading_for(delay);
                (reading.after(delay), reading.low())
            }
            Kind::At(at) => (at, clock.reading().for_moment(at, clock).low()),
            Kind::AfterGiven { now, delay } => {
                let deadline = now + delay;
                (deadline, Reading::low_beside(now, deadline, clock))
            }
            _ => self.resolve_exactly(clock, ticks),
        }
    }

    /// Returns the deadline, and the present.
    #[inline]
    pub(crate) fn resolve_exactly(self, clock: &Clock, ticks: TickSize) -> (Time, Time) {
        let now = clock.now();
        (self.deadline_from(now, clock, ticks), now)
    }

    /// Returns the deadline of a call that has read the clock.
    #[inline]
    pub(crate) fn deadline_from(self, now: Time, clock: &Clock, ticks: TickSize) -> Time {
        // Only an instant asks the clock.
        #[cfg(loom)]
        let _ = clock;
        match self.0 {
            Kind::After(delay) => now + delay,
            Kind::At(at) => at,
            #[cfg(not(loom))]
            Kind::AtInstant(instant) => clock.time_of(instant),
            Kind::Within { earliest, latest } => ticks.shared_between(now + earliest, now + latest),
            Kind::AfterGiven { now, delay } => now + delay,
        }
    }

    /// Returns the delay, if it counts from the call.
    #[inline(always)]
    pub(crate) fn delay(self) -> Option<Duration> {
        match self.0 {
            Kind::After(delay) => Some(delay),
            _ => None,
        }
    }
}

impl From<Duration> for When {
    #[inline(always)]
    fn from(delay: Duration) -> Self {
        When(Kind::After(delay))
    }
}

impl From<Time> for When {
    #[inline(always)]
    fn from(at: Time) -> Self {
        When(Kind::At(at))
    }
}

#[cfg(not(loom))]
impl From<Instant> for When {
    #[inline]
    fn from(instant: Instant) -> Self {
        When(Kind::AtInstant(instant))
    }
}

impl From<RangeInclusive<Duration>> for When {
    #[inline]
    fn from(window: RangeInclusive<Duration>) -> Self {
        let (earliest, latest) = window.into_inner();
        When(Kind::Within { earliest, latest })
    }
}

impl fmt::Debug for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Kind::After(delay) => write!(f, "after {delay:?}"),
            Kind::At(Time::MAX) => f.write_str("never"),
            Kind::At(at) => write!(f, "at {at:?}"),
            #[cfg(not(loom))]
            Kind::AtInstant(instant) => write!(f, "at {instant:?}"),
            Kind::Within { earliest, latest } => write!(f, "after {earliest:?} to {latest:?}"),
            Kind::AfterGiven { now, delay } => write!(f, "{delay:?} after {now:?}"),
        }
    }
}
