//! A slot of level 0 that has been taken out and expires entry by entry.

use super::filing::{Budget, EntryStore};
use super::slab::NO_ENTRY;
use crate::tick::Tick;

/// The slot that is being drained.
#[derive(Default)]
pub(super) struct Drain {
    /// In the order they expire. Those removed meanwhile are `NO_ENTRY`.
    pub(super) ids: Vec<u32>,
    /// Position of the next one.
    pub(super) next: usize,
    /// How many are left, without the removed ones.
    pub(super) live: usize,
    /// They expire whatever their due tick.
    pub(super) forced: bool,
}

impl Drain {
    /// Whether `id` is still to come, at this position.
    #[inline]
    pub(super) fn holds(&self, id: u32, pos: u32) -> bool {
        self.live > 0 && pos as usize >= self.next && self.ids.get(pos as usize) == Some(&id)
    }

    /// Reads when the next ones are due, and says how many of them the budget lets pass.
    #[inline]
    pub(super) fn read(
        &self,
        dues: &mut [Tick],
        now: Tick,
        budget: &Budget,
        entries: &impl EntryStore,
    ) -> usize {
        let next = &self.ids[self.next..];
        let count = next.len().min(dues.len()).min(budget.expired);
        for (due, &id) in dues.iter_mut().zip(&next[..count]) {
            if id != NO_ENTRY {
                *due = entries.due(id);
            }
        }
        if budget.allowed < count {
            return self.allowed(&dues[..count], now, budget.allowed);
        }
        count
    }

    /// Of the next ones, which are due at these ticks: how many come before the first one that
    /// would expire at `now` and is not `allowed` to any more.
    #[cold]
    fn allowed(&self, dues: &[Tick], now: Tick, mut allowed: usize) -> usize {
        for (count, (&id, &due)) in self.ids[self.next..].iter().zip(dues).enumerate() {
            if id != NO_ENTRY && (due <= now || self.forced) {
                if allowed == 0 {
                    return count;
                }
                allowed -= 1;
            }
        }
        dues.len()
    }
}
