//! The moment of a call: exact, or cheap and a little early.
//!
//! - **READING-1** `low` is never after the present.
//! - **READING-2** `low` plus the margin is never before the moment at which the call began. So a
//!   deadline that is counted from there is never early.
//! - **READING-3** An exact reading has no margin. Whether a moment has come is decided by an exact
//!   reading, unless the moment is far from the cheap one.
//! - **READING-4** A quick reading is a cheap reading, the moment of a manual clock, or a moment
//!   that the caller gives. Delays from a second to 146 years are counted from it. It can show that
//!   a moment has not come, and never that one has. A call for which this is not enough begins
//!   anew, with a reading.
//! - **READING-5** A moment that the caller gives may be old, or ahead of the clock. Deadlines are
//!   counted from it, and nothing else: it neither makes a deadline due nor moves a wheel.
//! - **READING-6** A claim has a cheap reading, and makes it exact as soon as something is decided by
//!   it: which rounds were missed, whether a shutdown runs a timer before its deadline, and whether
//!   what follows a run is due. What nothing is decided by is only reported: the start of a run that
//!   begins once. That is raised to the deadline, so no lateness is negative, and it may be up to a
//!   margin too small.

use std::time::Duration;

use super::Clock;
use crate::tick::Time;

/// How much later a deadline is that is counted from a cheap reading.
///
/// A cheap reading lies before the call: by at most 0.0125 ms because the counter is taken to be
/// slow (see `anchors/`), and by as long as the processor executed `rdtsc` before the reads that
/// come first in the program. It does so even across a fence. In 2.5 billion hand-overs on one
/// machine the sum was 0.016 ms at most, and on another one 0.127 ms.
///
/// What bounds the second part is the number of instructions that a processor keeps in flight, which
/// is 512 at most. If each of them waits for memory, one after the other and for a microsecond, that
/// is 0.5 ms. So half a millisecond would leave no reserve, and this margin is twice that. With it no
/// deadline lies before the call plus its delay.
pub(super) const MARGIN: u64 = 1_000_000;

/// Delays from this one on are counted from a cheap reading. To a shorter one the margin would
/// matter.
const LONG: u64 = 1_000_000_000;

/// 146 years. A moment and a delay below this have a sum below `Time::MAX`.
const LONGEST: u64 = 1 << 62;

/// A moment that is less than this away from a cheap reading may have come.
const NEAR: u64 = 2 * MARGIN;

/// What a call knows of its moment (READING-1 to READING-3). Two words, so that it is returned in
/// registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    low: Time,
    margin: u64,
}

impl Reading {
    #[inline]
    pub(super) fn new(low: Time, margin: u64) -> Self {
        Reading { low, margin }
    }

    #[inline]
    pub(super) fn exact(now: Time) -> Self {
        Reading::new(now, 0)
    }

    /// A moment that a caller has read and may have kept for a while. Delays are counted from it,
    /// and nothing else (READING-5).
    #[inline]
    pub(crate) fn given(now: Time) -> Self {
        Reading::exact(now)
    }

    /// Returns a moment that is not after the present, for a call that counts `deadline` from the
    /// moment `given` by its caller. The clock is read if the deadline is not after that moment,
    /// because then it may have come. Otherwise the clock's start is all that is known (READING-5).
    #[inline]
    pub(crate) fn low_beside(given: Time, deadline: Time, clock: &Clock) -> Time {
        if deadline > given {
            return Time::ZERO;
        }
        Self::read_again(clock).low
    }

    /// Returns a reading that is good enough to count `delay` nanoseconds from.
    #[inline]
    pub(crate) fn for_delay(self, delay: u64, clock: &Clock) -> Self {
        self.sharpened_if(|_| delay < LONG, clock)
    }

    /// Returns a reading that is good enough to decide whether `moment` has come.
    #[inline]
    pub(crate) fn for_moment(self, moment: Time, clock: &Clock) -> Self {
        self.sharpened_if(|reading| reading.is_near(moment), clock)
    }

    /// Returns a reading that is good enough for both.
    #[inline]
    pub(crate) fn for_both(self, delay: u64, moment: Time, clock: &Clock) -> Self {
        self.sharpened_if(|reading| delay < LONG || reading.is_near(moment), clock)
    }

    /// Returns whether `moment` has come.
    #[inline]
    pub(crate) fn has_come(self, moment: Time, clock: &Clock) -> bool {
        moment <= self.for_moment(moment, clock).low
    }

    #[inline]
    fn is_near(self, moment: Time) -> bool {
        moment.as_nanos().saturating_sub(self.low.as_nanos()) < NEAR
    }

    /// Returns an exact reading, made now if this one is cheap, where an exact one is needed.
    #[inline]
    fn sharpened_if(self, needed: impl FnOnce(Self) -> bool, clock: &Clock) -> Self {
        if self.margin == 0 || !needed(self) {
            return self;
        }
        Self::read_again(clock)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn read_again(clock: &Clock) -> Self {
        Reading::exact(clock.now())
    }

    /// Returns a moment that is not after the present.
    #[inline]
    pub(crate) fn low(self) -> Time {
        self.low
    }

    /// Returns the moment that is `delay` after the call, or up to a margin later.
    #[inline]
    pub(crate) fn after(self, delay: Duration) -> Time {
        self.after_nanos(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Returns the moment that is so many nanoseconds after the call, or up to a margin later;
    /// `u64::MAX` means forever.
    #[inline]
    pub(crate) fn after_nanos(self, delay: u64) -> Time {
        let from = self.low.as_nanos().saturating_add(self.margin);
        Time::from_nanos(from.saturating_add(delay))
    }
}

/// What a claim knows of its moment (READING-6).
#[derive(Debug)]
pub(crate) struct ClaimReading<'a> {
    reading: Reading,
    clock: &'a Clock,
}

impl<'a> ClaimReading<'a> {
    #[inline]
    pub(crate) fn new(clock: &'a Clock) -> Self {
        ClaimReading {
            reading: clock.reading(),
            clock,
        }
    }

    /// Returns a moment that is not after the present, and that nothing may be decided by. It is the
    /// exact one if that is known.
    #[inline]
    pub(crate) fn low(&self) -> Time {
        self.reading.low
    }

    /// Returns the present, by which something is decided. It is read by the first call, and stays
    /// the same for what follows in the same claim.
    #[inline]
    pub(crate) fn exact(&mut self) -> Time {
        self.reading = self.reading.sharpened_if(|_| true, self.clock);
        self.reading.low
    }
}

/// What a usual call knows of its moment (READING-4). All other calls have a [`Reading`].
///
/// It is made with both moments, so a call does not keep the margin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuickReading {
    low: Time,
    /// `low` plus the margin.
    start: Time,
}

impl QuickReading {
    /// Makes a reading from which delays count from `start` on, which is below [`LONGEST`]. `start`
    /// minus `margin` is not after the present, unless a caller gave `start`.
    #[inline(always)]
    pub(super) fn new(start: Time, margin: u64) -> Self {
        debug_assert!(start.as_nanos() < LONGEST, "{start:?}");
        QuickReading {
            low: Time::from_nanos(start.as_nanos().saturating_sub(margin)),
            start,
        }
    }

    /// Makes a reading without a margin, of the present or of a moment that the caller gives.
    /// Returns `None` from [`LONGEST`] on, where sums could overflow.
    #[inline(always)]
    pub(crate) fn exact(now: Time) -> Option<Self> {
        (now.as_nanos() < LONGEST).then(|| QuickReading::new(now, 0))
    }

    /// Returns whether a delay of this length, in nanoseconds, can be counted from a quick reading.
    #[inline(always)]
    pub(crate) fn counts(delay: u64) -> bool {
        (LONG..LONGEST).contains(&delay)
    }

    /// Converts a delay to nanoseconds, if it [can be counted](Self::counts) and is shorter than
    /// 136 years: longer ones have more than 32 bits of seconds, and need more steps.
    #[inline(always)]
    pub(crate) fn counted(delay: Duration) -> Option<u64> {
        let seconds = u32::try_from(delay.as_secs()).ok()?;
        let nanos = u64::from(seconds) * 1_000_000_000 + u64::from(delay.subsec_nanos());
        (seconds > 0).then_some(nanos)
    }

    /// Returns a moment that is not after the present, unless a caller gave it.
    #[inline(always)]
    pub(crate) fn low(self) -> Time {
        self.low
    }

    /// Returns the moment that is `delay` nanoseconds after the call, or up to a margin later, if
    /// the reading [counts](Self::counts) such a delay.
    #[inline(always)]
    pub(crate) fn after_nanos(self, delay: u64) -> Option<Time> {
        Self::counts(delay).then(|| self.after_counted(delay))
    }

    /// Returns the moment that is `delay` nanoseconds after the call, or up to a margin later. The
    /// reading is known to count such a delay. The result is not `Time::MAX`, and it lies in the
    /// future, unless a caller gave the moment of the reading.
    #[inline(always)]
    pub(crate) fn after_counted(self, delay: u64) -> Time {
        debug_assert!(Self::counts(delay), "{delay}");
        Time::from_nanos(self.start.as_nanos().wrapping_add(delay))
    }

    /// Returns whether it is certain that `moment` has not come.
    #[inline(always)]
    pub(crate) fn is_well_before(self, moment: Time) -> bool {
        // No overflow, as for every sum here.
        moment.as_nanos() >= self.start.as_nanos().wrapping_add(NEAR)
    }
}

/// Returns whether a delay may be counted from a cheap reading.
#[inline]
pub(super) fn is_long(delay: Duration) -> bool {
    // The whole seconds: this is on the path of every call.
    delay.as_secs() >= LONG / 1_000_000_000
}
