//! A slot of level 0 that has been taken out and expires entry by entry.

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
}
