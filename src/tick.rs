//! `Time`, which users see, counts the nanoseconds of a clock. `Tick` is the unit in which wheels
//! advance. The conversion rounds such that no timer is early: deadlines are rounded up to the next
//! tick, and the present is rounded down.

use core::fmt;
use core::time::Duration;

/// A moment of a scheduler's clock: nanoseconds since the clock's start.
///
/// Times of two clocks can't be compared, unless both clocks are
/// [`Clock::boottime`](crate::Clock::boottime) of one machine. All arithmetic saturates.
/// [`Time::MAX`] means *never*: a timer with that deadline is kept and can be moved or cancelled,
/// and does not run. With the feature `serde` it serializes as the number of nanoseconds.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::Time;
///
/// let t = Time::from_nanos(1_500) + Duration::from_micros(1);
/// assert_eq!(t.as_nanos(), 2_500);
/// assert_eq!(t - Time::from_nanos(500), Duration::from_micros(2));
/// assert_eq!(t - Time::MAX, Duration::ZERO);
/// assert_eq!(t + Duration::MAX, Time::MAX);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Time(u64);

impl Time {
    /// The clock's start.
    pub const ZERO: Time = Time(0);
    /// The moment that means *never*: about 584 years after the clock's start.
    pub const MAX: Time = Time(u64::MAX);

    /// Creates the moment `nanos` nanoseconds after the clock's start.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::Time;
    ///
    /// assert_eq!(Time::from_nanos(1_000), Time::ZERO + Duration::from_micros(1));
    /// ```
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Time(nanos)
    }

    /// Returns the nanoseconds since the clock's start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to this moment, or zero if `earlier` is later.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::Time;
    ///
    /// let later = Time::ZERO + Duration::from_secs(3);
    /// assert_eq!(later.since(Time::ZERO), Duration::from_secs(3));
    /// assert_eq!(Time::ZERO.since(later), Duration::ZERO);
    /// ```
    #[must_use]
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time from `now` until this deadline: zero if it has passed, and `Duration::MAX`
    /// if it is *never*.
    pub(crate) fn remaining(self, now: Time) -> Duration {
        match self {
            Time::MAX => Duration::MAX,
            deadline => deadline.since(now),
        }
    }
}

impl core::ops::Add<Duration> for Time {
    type Output = Time;

    #[inline]
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

/// Returns how long `self` is after the other moment, or zero, like [`Time::since`].
impl core::ops::Sub for Time {
    type Output = Duration;

    #[inline]
    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
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

/// A number of ticks since a clock's start: the unit in which wheels advance.
///
/// # Examples
///
/// ```
/// use tourbillon::wheel::{Tick, Wheel};
///
/// let mut wheel = Wheel::new();
/// wheel.insert(Tick::new(10), "due");
/// let mut expired = Vec::new();
/// let _ = wheel.advance(Tick::new(9), 16, |value| expired.push(value.due));
/// let _ = wheel.advance(Tick::new(10), 16, |value| expired.push(value.due));
/// assert_eq!(expired, [Tick::new(10)]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Tick(u64);

impl Tick {
    /// Tick number zero.
    pub const ZERO: Tick = Tick(0);
    /// The last tick there is.
    pub const MAX: Tick = Tick(u64::MAX);

    /// Creates the tick with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Tick(number)
    }

    /// Returns the tick's number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The length of a tick, which is never zero.
///
/// Every arming divides by it. A division by a number that is known only at run time takes several
/// times as long as the multiplication that replaces it here (Granlund and Montgomery 1994, figure
/// 4.1). The result is exact for all numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TickSize {
    nanos: u64,
    /// The low 64 bits of a factor of 65 bits, whose highest bit is one.
    factor: u64,
    /// The first shift of the product, by at most one bit.
    first: u32,
    /// The second shift of the product, by the remaining bits.
    rest: u32,
}

impl TickSize {
    pub(crate) fn from_nanos(nanos: u64) -> Self {
        assert!(nanos > 0, "a tick must not be empty");
        // The binary logarithm of the length, rounded up.
        let bits = u64::BITS - (nanos - 1).leading_zeros();
        let above = (1_u128 << bits) - u128::from(nanos);
        TickSize {
            nanos,
            factor: ((above << u64::BITS) / u128::from(nanos) + 1) as u64,
            first: bits.min(1),
            rest: bits.saturating_sub(1),
        }
    }

    pub(crate) fn length(self) -> Duration {
        Duration::from_nanos(self.nanos)
    }

    /// Returns `nanos` divided by the tick's length, rounded down.
    #[inline]
    fn ticks_in(self, nanos: u64) -> u64 {
        let high = ((u128::from(self.factor) * u128::from(nanos)) >> u64::BITS) as u64;
        // Not `high + nanos`, which may take 65 bits.
        (((nanos - high) >> self.first) + high) >> self.rest
    }

    /// Returns the first tick at or after `time`. An entry that is due at `time` expires with this
    /// tick.
    #[inline]
    pub(crate) fn at_or_after(self, time: Time) -> Tick {
        let ticks = self.ticks_in(time.0);
        Tick(ticks + u64::from(ticks * self.nanos != time.0))
    }

    /// Returns the last tick that has begun at `now`.
    #[inline]
    pub(crate) fn begun_by(self, now: Time) -> Tick {
        Tick(self.ticks_in(now.0))
    }

    /// Returns a moment from `earliest` to `latest` that other windows are likely to share: the
    /// start of the tick whose number is divisible by the greatest power of two. If no tick starts
    /// in the window, returns `latest`.
    pub(crate) fn shared_between(self, earliest: Time, latest: Time) -> Time {
        let first = self.at_or_after(earliest).0;
        let mut tick = self.begun_by(latest).0;
        if tick < first {
            return latest.max(earliest);
        }
        // Clears the lowest set bit while the result stays in the window.
        while tick != 0 && tick & (tick - 1) >= first {
            tick &= tick - 1;
        }
        self.start_of(Tick(tick))
    }

    /// Returns the moment at which `tick` begins.
    #[inline]
    pub(crate) fn start_of(self, tick: Tick) -> Time {
        Time(tick.0.saturating_mul(self.nanos))
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
    fn division_is_exact() {
        let edges = |at: u64| [at.saturating_sub(1), at, at.saturating_add(1)];
        let mut state = 7_u64;
        // splitmix64, with numbers of all lengths.
        let mut random = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) >> (state >> 58)
        };
        let powers = (0..64).flat_map(|bits| edges(1 << bits));
        let lengths = [1_000, 1_000_000, 1_000_000_000, 60_000_000_000, u64::MAX];
        let mut sizes: Vec<u64> = powers.clone().chain(lengths).collect();
        sizes.extend((0..500).map(|_| random()));
        for nanos in sizes.into_iter().filter(|&nanos| nanos > 0) {
            let size = TickSize::from_nanos(nanos);
            let last = u64::MAX / nanos * nanos;
            let multiples = (0..100).map(|_| random() / nanos * nanos).chain([
                0,
                nanos,
                nanos.saturating_mul(2),
                last,
                u64::MAX,
            ]);
            for time in multiples.flat_map(edges).chain(powers.clone()) {
                let at = Time(time);
                assert_eq!(size.begun_by(at).0, time / nanos, "{time} / {nanos}");
                assert_eq!(size.at_or_after(at).0, time.div_ceil(nanos));
            }
        }
    }

    #[test]
    fn windows_that_overlap_mostly_share_a_moment() {
        let size = TickSize::from_nanos(10);
        for (earliest, latest, shared) in [
            (0, 0, 0),
            (0, 1_000, 0),
            (1, 1_000, 640),
            (641, 1_000, 960),
            (639, 1_000, 640),
            (951, 1_000, 960),
            (961, 1_000, 1_000),
            (961, 999, 980),
            (981, 999, 990),
            (991, 999, 999),
            (50, 50, 50),
            (51, 51, 51),
            (60, 50, 60),
            (u64::MAX, u64::MAX, u64::MAX),
        ] {
            let [from, to] = [earliest, latest].map(Time::from_nanos);
            let found = size.shared_between(from, to);
            assert_eq!(found, Time::from_nanos(shared), "{earliest} to {latest}");
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
