//! Counts what lookups of keys have found.
//!
//! Each lookup counts, so the counters lie in the line of the stripe's lock, which the call has in
//! its cache anyway. There is room for one byte each. Every 256th count is carried to a wide
//! counter.

use std::cell::Cell;

use super::Stripe;

/// What a lookup has found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lookup {
    /// A touch that found an entry that lives on.
    Touched,
    /// A read that found an entry.
    Found,
    /// A touch or a read that found none.
    Missed,
}

/// The number of kinds.
const KINDS: usize = 3;

/// The lowest byte of each count. In cells, since reads have no exclusive access to the stripe.
#[derive(Debug, Default)]
pub(super) struct NarrowCounts([Cell<u8>; KINDS]);

/// The rest of each count.
#[derive(Debug, Default)]
pub(super) struct WideCounts([Cell<u64>; KINDS]);

impl<K, V> Stripe<K, V> {
    /// Counts a lookup.
    #[inline(always)]
    pub(crate) fn count_lookup(&self, lookup: Lookup) {
        let narrow = &self.narrow.0[lookup as usize];
        let next = narrow.get().wrapping_add(1);
        narrow.set(next);
        if next == 0 {
            self.carry(lookup);
        }
    }

    #[cold]
    #[inline(never)]
    fn carry(&self, lookup: Lookup) {
        let wide = &self.wide.0[lookup as usize];
        wide.set(wide.get() + 256);
    }

    /// Returns the number of lookups.
    pub(crate) fn lookups(&self, lookup: Lookup) -> u64 {
        let at = lookup as usize;
        self.wide.0[at].get() + u64::from(self.narrow.0[at].get())
    }
}
