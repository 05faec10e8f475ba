//! Staging of timers that were armed a moment ago and are not filed in the wheel yet.
//!
//! Most request timeouts are cancelled soon, and filing them would be wasted work: a wheel has
//! hundreds of slots, and the memory of a slot is usually not in the cache. So a new timer goes
//! into one of a few places in the stripe instead. A call that finds all places taken files these
//! timers together, so that the cache misses of their slots overlap.
//!
//! Staged timers that become due are filed right before the wheel advances, so the order of expiry
//! is that of the wheel. All schemes of Varghese and Lauck (1987) pay for the filing at the start;
//! deferring it is what a "lazy" or "buffered" priority queue does.
//!
//! - **STAGE-1** An entry whose place is
//!   [`WheelPosition::STAGED`](crate::wheel::WheelPosition::STAGED) lies at its position here, and
//!   only such entries do.
//! - **STAGE-2** The deadline kept here is not later than that of the entry. A later deadline is
//!   written to the entry only, as in the wheel.

use crate::tick::Time;

/// Number of places: the number of bits of a mask. With 128 stripes, this is enough for some 4,000
/// keyed requests under way at a time; for timers without a key each thread has 32 places.
const PLACES: usize = 32;

/// The staging area of one stripe.
#[repr(C)]
pub(super) struct Staging {
    /// One bit for each place that is taken.
    taken: u32,
    /// One bit for each place that may be used: all of them, except in tests that limit the places.
    usable: u32,
    places: [Staged; PLACES],
}

#[derive(Clone, Copy)]
struct Staged {
    deadline: Time,
    slot: u32,
}

impl Staging {
    pub(super) const fn new() -> Self {
        Staging {
            taken: 0,
            usable: u32::MAX,
            places: [Staged {
                deadline: Time::MAX,
                slot: 0,
            }; PLACES],
        }
    }

    /// Returns the position of a free place, or `None` if all places are taken.
    #[inline]
    pub(super) fn free_place(&self) -> Option<u32> {
        let free = self.usable & !self.taken;
        (free != 0).then(|| free.trailing_zeros())
    }

    /// Takes a free place.
    #[inline]
    pub(super) fn put(&mut self, position: u32, slot: u32, deadline: Time) {
        debug_assert!(self.taken >> position & 1 == 0, "STAGE-1");
        self.taken |= 1 << position;
        self.places[position as usize] = Staged { deadline, slot };
    }

    /// Frees a place.
    #[inline]
    pub(super) fn remove(&mut self, position: u32) {
        debug_assert!(self.taken >> position & 1 != 0, "STAGE-1");
        self.taken &= !(1 << position);
    }

    /// Lowers the deadline at a place to `deadline`, if that is earlier (STAGE-2).
    #[inline]
    pub(super) fn lower(&mut self, position: u32, deadline: Time) {
        let staged = &mut self.places[position as usize].deadline;
        *staged = deadline.min(*staged);
    }

    /// Returns the earliest staged deadline, or [`Time::MAX`].
    #[inline]
    pub(super) fn earliest(&self) -> Time {
        self.iter()
            .map(|(_, _, deadline)| deadline)
            .min()
            .unwrap_or(Time::MAX)
    }

    /// Returns the staged timers as (position, slot, deadline).
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32, Time)> + use<'_> {
        positions_of(self.taken).map(|position| {
            let Staged { deadline, slot } = self.places[position as usize];
            (position, slot, deadline)
        })
    }

    /// Returns the positions of the timers that are due by `moment`, as a mask.
    #[inline]
    pub(super) fn due_by(&self, moment: Time) -> u32 {
        // Without branches, so that the compiler compares several places at once. Bits of free
        // places are masked afterwards.
        let mut due = 0;
        for (position, staged) in self.places.iter().enumerate() {
            due |= u32::from(staged.deadline <= moment) << position;
        }
        due & self.taken
    }

    /// Returns the positions of all staged timers, as a mask.
    pub(super) fn all(&self) -> u32 {
        self.taken
    }

    /// Returns the slot of the timer at a place.
    pub(super) fn slot(&self, position: u32) -> u32 {
        self.places[position as usize].slot
    }

    /// Raises the deadline at a place to that of its entry.
    pub(super) fn raise(&mut self, position: u32, deadline: Time) {
        self.places[position as usize].deadline = deadline;
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn limit_to(&mut self, places: u32) {
        assert!(self.taken == 0 && places <= PLACES as u32);
        self.usable = u32::MAX.checked_shr(u32::BITS - places).unwrap_or(0);
    }
}

/// Returns the positions of the bits that are set in `mask`.
pub(super) fn positions_of(mut mask: u32) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let position = mask.trailing_zeros();
        (mask != 0).then(|| {
            mask &= mask - 1;
            position
        })
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[test]
    fn places_are_taken_and_freed() {
        let mut staging = Staging::new();
        assert_eq!(staging.earliest(), Time::MAX);
        for slot in 0..PLACES as u32 {
            assert_eq!(staging.stage(slot, at(100 - u64::from(slot))), Some(slot));
        }
        assert_eq!(staging.stage(99, at(1)), None);
        assert_eq!(staging.earliest(), at(100 - 31));
        staging.remove(31);
        staging.remove(7);
        assert_eq!(staging.earliest(), at(100 - 30));
        assert_eq!(staging.stage(99, at(1)), Some(7));
        assert_eq!((staging.slot(7), staging.earliest()), (99, at(1)));
        assert_eq!(staging.iter().count(), PLACES - 1);
        assert!(!staging.iter().any(|(_, slot, _)| slot == 31));
        staging.limit_to_nothing_more();
        assert_eq!(staging.stage(5, at(5)), None);
    }

    #[test]
    fn what_is_due_is_what_was_not_removed_and_is_early_enough() {
        let mut staging = Staging::new();
        for (slot, nanos) in [(0, 10), (1, 20), (2, 10), (3, 30)] {
            staging.stage(slot, at(nanos));
        }
        staging.remove(2);
        assert_eq!(staging.due_by(at(9)), 0);
        assert_eq!(staging.due_by(at(10)), 0b0001);
        assert_eq!(staging.due_by(at(25)), 0b0011);
        staging.lower(3, at(40));
        staging.lower(1, at(5));
        assert_eq!(staging.due_by(at(5)), 0b0010);
        staging.raise(1, at(50));
        assert_eq!(staging.due_by(at(30)), 0b1001);
        assert_eq!(staging.all(), 0b1011);
    }

    impl Staging {
        /// Takes a free place, if there is one, and returns its position.
        fn stage(&mut self, slot: u32, deadline: Time) -> Option<u32> {
            let position = self.free_place()?;
            self.put(position, slot, deadline);
            Some(position)
        }

        fn limit_to_nothing_more(&mut self) {
            self.usable = self.taken;
        }
    }
}
