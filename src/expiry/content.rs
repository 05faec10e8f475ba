//! The content of an entry of a map: the value, and the times from which the deadline is made.

use super::Expiry;
use super::tag::Tag;
use crate::clock::{Clock, QuickReading, Reading};
use crate::shard::{KeyHash, splitmix64};
use crate::tick::Time;

/// The content of an entry besides its key. The times come last, next to the fields that a touch
/// reads.
#[repr(C)]
pub(crate) struct MapEntry<V, T> {
    /// The entry's membership in its group. The entry leaves the group before the value is dropped.
    pub(super) tag: T,
    pub(super) value: V,
    /// In nanoseconds; `u64::MAX` means forever.
    idle: u64,
    /// The end of the entry's lifetime.
    pub(super) end: Time,
}

/// An entry, its deadline, and what the call knows of the present.
pub(super) type MadeEntry<V, T> = (MapEntry<V, T>, Time, Reading);

impl<V, T: Tag> MapEntry<V, T> {
    /// Makes an entry that is in no group. The hash of its key seeds its jitter.
    pub(super) fn new(
        value: V,
        expiry: Expiry,
        hash: KeyHash,
        reading: Reading,
        clock: &Clock,
    ) -> MadeEntry<V, T> {
        let ((idle, lifetime), reading) = expiry.drawn_for(hash, reading, clock);
        let end = reading.after_nanos(lifetime);
        let entry = MapEntry {
            tag: T::default(),
            value,
            idle,
            end,
        };
        (entry, reading.after_nanos(idle).min(end), reading)
    }
}

impl<V, T: Tag> MapEntry<V, T> {
    /// Restarts the times of the entry, as drawn from another expiry, and returns its deadline.
    #[inline]
    pub(super) fn restart(&mut self, (idle, lifetime): (u64, u64), reading: Reading) -> Time {
        self.tag.touch(reading.low());
        self.idle = idle;
        self.end = reading.after_nanos(lifetime);
        reading.after_nanos(idle).min(self.end)
    }

    /// Makes an entry that is in no group, of the times that [`times`](Self::times) returns.
    #[cfg(feature = "serde")]
    pub(super) fn of_times(value: V, idle: u64, end: Time) -> Self {
        let tag = T::default();
        MapEntry {
            tag,
            value,
            idle,
            end,
        }
    }

    /// Returns the time to idle in nanoseconds, `u64::MAX` for none, and the end of the lifetime.
    #[cfg(feature = "serde")]
    pub(super) fn times(&self) -> (u64, Time) {
        (self.idle, self.end)
    }

    /// Returns whether the entry's lifetime is not over.
    #[inline]
    pub(super) fn lives(&self, reading: Reading, clock: &Clock) -> bool {
        // The usual entry has no lifetime, so nothing has to be compared with its end.
        self.end == Time::MAX || !reading.has_come(self.end, clock)
    }

    /// Returns whether the entry's lifetime is not over now. The clock is not asked if there is no
    /// lifetime.
    #[inline]
    pub(super) fn lives_now(&self, clock: &Clock) -> bool {
        self.end == Time::MAX || self.lives(clock.reading(), clock)
    }

    /// Touches the entry at `now` and returns its new deadline, unless its lifetime is over. `now`
    /// may be old, so it does not tell that, but it is not `Time::MAX`. The clock is not asked if
    /// there is no lifetime.
    #[inline]
    pub(super) fn touched_at(&mut self, now: Time, clock: &Clock) -> Option<Time> {
        if !self.lives_now(clock) {
            return None;
        }
        self.tag.touch(now);
        Some(Reading::given(now).after_nanos(self.idle).min(self.end))
    }

    /// Touches the entry and returns its new deadline, unless its lifetime is over.
    #[inline]
    pub(super) fn touched(&mut self, reading: Reading, clock: &Clock) -> Option<Time> {
        // The usual entry has no lifetime, so nothing has to be compared with its end.
        if self.end == Time::MAX {
            let reading = reading.for_delay(self.idle, clock);
            self.tag.touch(reading.low());
            return Some(reading.after_nanos(self.idle));
        }
        let reading = reading.for_both(self.idle, self.end, clock);
        if reading.low() >= self.end {
            return None;
        }
        self.tag.touch(reading.low());
        Some(reading.after_nanos(self.idle).min(self.end))
    }

    /// Returns the deadline of an entry that is touched, if a quick reading is good enough for it.
    #[inline(always)]
    pub(super) fn after_touch(&self, reading: QuickReading) -> Option<Time> {
        let deadline = reading.after_nanos(self.idle)?;
        let lives = reading.is_well_before(self.end);
        lives.then(|| deadline.min(self.end))
    }

    /// Returns the deadline of an entry that is touched at a given moment, if quick readings are
    /// good enough for it. The clock is not asked if there is no lifetime. If there is one, and the
    /// clock has no quick readings, it is read exactly here: otherwise each such call would begin
    /// anew.
    #[inline(always)]
    pub(super) fn after_touch_at(&self, given: QuickReading, clock: &Clock) -> Option<Time> {
        let deadline = given.after_nanos(self.idle)?;
        let lives = self.end == Time::MAX || {
            let exact = || QuickReading::exact(clock.now());
            let reading = clock.quick_reading().or_else(exact)?;
            reading.is_well_before(self.end)
        };
        lives.then(|| deadline.min(self.end))
    }

    /// Ends the entry's lifetime, for calls that have read the clock at any time.
    pub(super) fn end_now(&mut self) {
        self.end = Time::ZERO;
    }
}

/// The new times of an entry, counted from a quick reading.
#[derive(Clone, Copy)]
pub(super) struct QuickTimes {
    reading: QuickReading,
    idle: u64,
    end: Time,
    deadline: Time,
}

impl QuickTimes {
    /// Counts the times of an expiry, as [`Expiry::quick`] returns them.
    #[inline(always)]
    pub(super) fn of((idle, lifetime): (u64, u64), reading: QuickReading) -> Self {
        let end = match lifetime {
            u64::MAX => Time::MAX,
            _ => reading.after_counted(lifetime),
        };
        QuickTimes {
            reading,
            idle,
            end,
            deadline: reading.after_counted(idle).min(end),
        }
    }

    /// Returns the deadline that `entry` gets, if it is certain that its lifetime is not over.
    #[inline(always)]
    pub(super) fn deadline_of<V, T>(&self, entry: &MapEntry<V, T>) -> Option<Time> {
        self.reading
            .is_well_before(entry.end)
            .then_some(self.deadline)
    }

    /// Writes the times down.
    #[inline(always)]
    pub(super) fn restart<V, T: Tag>(self, entry: &mut MapEntry<V, T>) {
        entry.tag.touch(self.reading.low());
        entry.idle = self.idle;
        entry.end = self.end;
    }
}

impl Expiry {
    /// Returns the times to idle and to live in nanoseconds, if a quick reading counts both. The
    /// second one may also be `u64::MAX`, which means forever. Returns `None` if there is jitter.
    #[inline(always)]
    pub(super) fn quick(&self) -> Option<(u64, u64)> {
        self.steady().filter(|(idle, lifetime)| {
            QuickReading::counts(*idle)
                && (*lifetime == u64::MAX || QuickReading::counts(*lifetime))
        })
    }

    /// Returns the times to idle and to live of an entry that starts now, and a reading that is
    /// good enough to count them from. The hash of the entry's key seeds its jitter.
    #[inline]
    pub(super) fn drawn_for(
        &self,
        hash: KeyHash,
        reading: Reading,
        clock: &Clock,
    ) -> ((u64, u64), Reading) {
        // The seed differs from key to key and from time to time, and a simulation repeats it.
        let seed = || splitmix64(hash.0 ^ reading.low().as_nanos());
        let (idle, lifetime) = self.drawn(seed);
        let reading = reading.for_delay(idle.min(lifetime), clock);
        ((idle, lifetime), reading)
    }
}
