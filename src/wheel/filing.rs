//! What the core wheel and its owner tell each other: where an entry lies, when it is due, how much
//! may be done, and how far that went.

use std::num::NonZeroU16;

use super::level::SLOTS;
use crate::tick::Tick;

pub(super) const LEVELS: usize = 6;

/// Where an entry lies. The entry keeps it for the wheel; together with the position in the
/// slot it makes removal one exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WheelPosition(NonZeroU16);

impl WheelPosition {
    /// Not filed.
    pub(crate) const NONE: WheelPosition = WheelPosition(NonZeroU16::MAX);
    /// In the list being drained, after everything was made due. (What an ordinary drain takes
    /// keeps the place of its slot: writing a new one would touch every entry once more.)
    pub(super) const DRAINING: WheelPosition =
        WheelPosition(NonZeroU16::new(u16::MAX - 1).unwrap());
    /// Beyond the top level.
    pub(super) const FAR: WheelPosition = WheelPosition(NonZeroU16::new(u16::MAX - 2).unwrap());
    /// Kept by the owner, and not in the wheel: for owners that file later. The wheel never sees
    /// it.
    pub(crate) const STAGED: WheelPosition = WheelPosition(NonZeroU16::new(u16::MAX - 3).unwrap());

    #[inline]
    pub(super) fn slot(level: usize, slot: u32) -> WheelPosition {
        debug_assert!(level < LEVELS && (slot as usize) < SLOTS);
        let number = (level * SLOTS) as u16 + slot as u16;
        // Counted from one, so that an owner's enum finds room for its tag in the zero.
        WheelPosition(NonZeroU16::MIN.saturating_add(number))
    }

    #[inline]
    pub(super) fn level_and_slot(self) -> (usize, u32) {
        let number = self.0.get() - 1;
        debug_assert!((number as usize) < LEVELS * SLOTS);
        (number as usize / SLOTS, u32::from(number) % SLOTS as u32)
    }
}

/// What the wheel reads and writes of its owner's entries.
pub(crate) trait EntryStore {
    /// When the entry is due now. It may have been pushed out since it was filed, without telling
    /// the wheel; after pulling it in before [`super::CoreWheel::filed_floor`] it must be filed
    /// anew.
    fn due(&self, id: u32) -> Tick;
    /// What `set_wheel_position` wrote last, or [`WheelPosition::NONE`] and anything.
    fn wheel_position(&self, id: u32) -> (WheelPosition, u32);
    /// Keeps the entry's place and its position there.
    fn set_wheel_position(&mut self, id: u32, wheel_position: WheelPosition, pos: u32);
}

/// What one call of [`super::CoreWheel::advance`] may do, and after it what it has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Budget {
    /// Entries taken from due slots: expired, or found pushed out and filed again.
    pub(crate) expired: usize,
    /// Of those, the ones that may expire. What is due beyond that is held back: it stays where it
    /// is, and what comes after it waits.
    pub(crate) allowed: usize,
    /// Entries filed again on their way down.
    pub(crate) cascaded: usize,
}

/// How far [`super::CoreWheel::advance`] came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum CoreProgress {
    /// All is done up to the tick asked for.
    Done,
    /// More slots are due.
    Expired,
    /// What is due next is not allowed to expire.
    Held,
    /// No slot is due, but there are entries to cascade, which may be due.
    Cascade,
}
