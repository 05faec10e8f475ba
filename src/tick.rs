//! `Time` is what users see: nanoseconds of a clock. `Tick` is what wheels turn by. The conversion
//! rounds so that nothing is ever early: a deadline goes up to the next tick, the clock goes down.

use core::fmt;
use core::time::Duration;

/// A moment of a scheduler's clock: nanoseconds since the clock's start.
///
/// Times of two clocks have nothing to do with each other. All arithmetic saturates.
/// [`Time::MAX`] means *never*: a timer with that deadline is kept and can be moved or cancelled,
/// and does not run.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::Time;
///
/// let t = Time::from_nanos(1_500) + Duration::from_micros(1);
/// assert_eq!(t.as_nanos(), 2_500);
/// assert_eq!(t.since(Time::from_nanos(500)), Duration::from_micros(2));
/// assert_eq!(t + Duration::MAX, Time::MAX);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The clock's start.
    pub const ZERO: Time = Time(0);
    /// Never: about 584 years after the clock's start.
    pub const MAX: Time = Time(u64::MAX);

    /// The moment `nanos` nanoseconds after the clock's start.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Time(nanos)
    }

    /// Nanoseconds since the clock's start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long this moment lies after `earlier`; zero if it does not.
    #[must_use]
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl core::ops::Add<Duration> for Time {
    type Output = Time;

    fn add(self, delay: Duration) -> Time {
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(nanos))
    }
}

impl core::ops::Sub<Duration> for Time {
    type Output = Time;

    fn sub(self, delay: Duration) -> Time {
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_sub(nanos))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Time::MAX {
            f.write_str("never")
        } else {
            write!(f, "{:?}", Duration::from_nanos(self.0))
        }
    }
}

/// A number of ticks since a clock's start: the unit in which wheels turn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Tick(u64);

impl Tick {
    /// Tick number zero.
    pub const ZERO: Tick = Tick(0);
    /// The last tick there is.
    pub const MAX: Tick = Tick(u64::MAX);

    /// Tick number `number`.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Tick(number)
    }

    /// The tick's number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The length of a tick in nanoseconds; never zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TickSize(u64);

impl TickSize {
    pub(crate) fn from_nanos(nanos: u64) -> Self {
        assert!(nanos > 0, "a tick has a length");
        TickSize(nanos)
    }

    /// The first tick at or after `time`: what is due at `time` expires with this tick.
    pub(crate) fn at_or_after(self, time: Time) -> Tick {
        Tick(time.0.div_ceil(self.0))
    }

    /// The last tick that has begun at `now`.
    pub(crate) fn begun_by(self, now: Time) -> Tick {
        Tick(now.0 / self.0)
    }

    /// When `tick` begins.
    pub(crate) fn start_of(self, tick: Tick) -> Time {
        Time(tick.0.saturating_mul(self.0))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_rounds_up_and_the_clock_rounds_down() {
        let size = TickSize::from_nanos(1_000);
        for (nanos, up, down) in [
            (0, 0, 0),
            (1, 1, 0),
            (999, 1, 0),
            (1_000, 1, 1),
            (1_001, 2, 1),
        ] {
            let time = Time::from_nanos(nanos);
            assert_eq!(size.at_or_after(time), Tick::new(up), "{nanos}");
            assert_eq!(size.begun_by(time), Tick::new(down), "{nanos}");
        }
    }

    #[test]
    fn the_numeric_end_saturates() {
        let size = TickSize::from_nanos(1_000_000);
        assert_eq!(size.start_of(size.at_or_after(Time::MAX)), Time::MAX);
        assert_eq!(Time::MAX + Duration::from_nanos(1), Time::MAX);
        assert_eq!(Time::ZERO - Duration::MAX, Time::ZERO);
    }
}
