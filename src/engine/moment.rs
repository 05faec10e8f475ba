//! What a call knows of its moment, and the deadline that it asks for.

use super::{Engine, Frontend};
use crate::clock::{Clock, Reading};
use crate::tick::Time;
use crate::when::When;

impl<F: Frontend> Engine<F> {
    /// Returns the moment of a call, read in the cheapest way that the clock has.
    #[inline]
    pub(crate) fn reading(&self) -> Reading {
        self.clock().reading()
    }

    /// Returns the moment of a call, and the clock, which tells more than an inexact reading.
    #[inline]
    pub(crate) fn clock_and_reading(&self) -> (&Clock, Reading) {
        (self.clock(), self.clock().reading())
    }

    /// Returns the moment of a call that decides whether `moment` has come.
    #[inline]
    pub(crate) fn reading_until(&self, moment: Time) -> Reading {
        self.clock().reading().for_moment(moment, self.clock())
    }

    /// Returns the deadline that a call asks for, and a moment that is not after the present.
    #[inline(always)]
    pub(crate) fn resolve(&self, when: When) -> (Time, Time) {
        when.resolve(self.clock(), self.tick)
    }

    /// Returns the deadline that a call asks for, which has read the clock.
    pub(crate) fn deadline_from(&self, now: Time, when: When) -> Time {
        when.deadline_from(now, self.clock(), self.tick)
    }

    /// Returns the deadline that a call asks for, and the present.
    #[inline]
    pub(crate) fn resolve_exactly(&self, when: When) -> (Time, Time) {
        when.resolve_exactly(self.clock(), self.tick)
    }
}
