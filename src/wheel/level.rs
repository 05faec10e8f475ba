//! One level of the wheel: 64 slots, each a vector of entry numbers, and a bitmap of those that
//! hold something. It knows neither ticks nor entries.

use super::buffers::{Buffers, FiledBy};

/// Slots of a level; one bit of `occupied` each.
pub(super) const SLOTS: usize = 64;

/// A slot emptied with room for more numbers than this does not keep its buffer. Six levels of
/// such slots hold at most 400 kB when nothing is filed (and the wheel 32 kB for all), and growing
/// anew to a larger size costs less than a nanosecond per entry filed there.
pub(super) const KEPT_CAPACITY: usize = 256;

/// A buffer larger than this gives memory back when three quarters of it have been removed, so
/// that one timer left behind by a million cancelled ones does not keep their place.
const SHRUNK_CAPACITY: usize = 4096;

#[derive(Default)]
pub(super) struct Level {
    /// Bit *s* is set exactly if slot *s* holds something.
    occupied: u64,
    /// Allocated when the level is first used: most wheels never use the upper ones.
    slots: Option<Box<[Vec<u32>; SLOTS]>>,
}

impl Level {
    pub(super) fn is_empty(&self) -> bool {
        self.occupied == 0
    }

    pub(super) fn is_occupied(&self, slot: u32) -> bool {
        self.occupied >> slot & 1 != 0
    }

    /// The first occupied slot at or after `slot`.
    pub(super) fn first_from(&self, slot: u32) -> Option<u32> {
        let ahead = self.occupied & (u64::MAX << slot);
        (ahead != 0).then(|| ahead.trailing_zeros())
    }

    /// What `slot` holds.
    pub(super) fn ids(&self, slot: u32) -> &[u32] {
        match &self.slots {
            Some(slots) => &slots[slot as usize],
            None => &[],
        }
    }

    /// Adds `id` to `slot` and returns its position there. A full slot gets its room from
    /// `buffers`.
    #[inline]
    pub(super) fn push(&mut self, slot: u32, id: u32, buffers: &mut Buffers, by: FiledBy) -> u32 {
        let slots = self.slots.get_or_insert_with(Self::empty_slots);
        let pos = buffers.push(&mut slots[slot as usize], id, by);
        self.occupied |= 1 << slot;
        pos
    }

    #[cold]
    fn empty_slots() -> Box<[Vec<u32>; SLOTS]> {
        Box::new(std::array::from_fn(|_| Vec::new()))
    }

    /// Removes the number at `pos`. The last one takes its place and is returned if it moved.
    /// A large buffer that is empty now is put into `emptied`.
    #[inline]
    pub(super) fn swap_remove(
        &mut self,
        slot: u32,
        pos: u32,
        emptied: &mut Option<Vec<u32>>,
    ) -> Option<u32> {
        let ids = self.ids_mut(slot);
        let moved = swap_remove(ids, pos);
        if ids.is_empty() {
            *emptied = take_if_large(ids);
            self.occupied &= !(1 << slot);
        }
        moved
    }

    /// Exchanges all that `slot` holds for the empty `buffer`.
    pub(super) fn swap_out(&mut self, slot: u32, buffer: &mut Vec<u32>) {
        debug_assert!(buffer.is_empty());
        std::mem::swap(self.ids_mut(slot), buffer);
        self.occupied &= !(1 << slot);
    }

    /// Moves up to `chunk.len()` numbers from the end of `slot` into `chunk` and returns how many.
    /// A large buffer that is empty now is put into `emptied`.
    pub(super) fn pop_chunk(
        &mut self,
        slot: u32,
        chunk: &mut [u32],
        emptied: &mut Option<Vec<u32>>,
    ) -> usize {
        let ids = self.ids_mut(slot);
        let count = pop_chunk(ids, chunk);
        if ids.is_empty() {
            *emptied = take_if_large(ids);
            self.occupied &= !(1 << slot);
        }
        count
    }

    /// Gives memory back that is not needed for what the slots hold.
    pub(super) fn shrink_to_fit(&mut self) {
        if self.occupied == 0 {
            self.slots = None;
        } else if let Some(slots) = &mut self.slots {
            slots.iter_mut().for_each(Vec::shrink_to_fit);
        }
    }

    /// For how many numbers there is memory.
    #[cfg(all(test, not(loom)))]
    pub(super) fn room(&self) -> usize {
        let slots = self.slots.iter().flat_map(|slots| slots.iter());
        slots.map(Vec::capacity).sum()
    }

    #[inline]
    fn ids_mut(&mut self, slot: u32) -> &mut Vec<u32> {
        let slots = self.slots.as_mut().expect("a level in use has its slots");
        &mut slots[slot as usize]
    }
}

/// Removes the number at `pos`. The last one takes its place and is returned if it moved.
#[inline]
pub(super) fn swap_remove(ids: &mut Vec<u32>, pos: u32) -> Option<u32> {
    ids.swap_remove(pos as usize);
    if ids.capacity() > SHRUNK_CAPACITY && ids.len() < ids.capacity() / 4 {
        ids.shrink_to(ids.capacity() / 2);
    }
    ids.get(pos as usize).copied()
}

/// Moves up to `chunk.len()` numbers from the end of `ids` into `chunk` and returns how many.
pub(super) fn pop_chunk(ids: &mut Vec<u32>, chunk: &mut [u32]) -> usize {
    let count = chunk.len().min(ids.len());
    let left = ids.len() - count;
    chunk[..count].copy_from_slice(&ids[left..]);
    ids.truncate(left);
    count
}

/// Takes the buffer out of the empty `ids` if it is too large to be kept.
pub(super) fn take_if_large(ids: &mut Vec<u32>) -> Option<Vec<u32>> {
    debug_assert!(ids.is_empty());
    (ids.capacity() > KEPT_CAPACITY).then(|| std::mem::take(ids))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::buffers::GROWN_BY_A_QUARTER;
    use super::*;

    fn push(level: &mut Level, slot: u32, id: u32) -> u32 {
        level.push(slot, id, &mut Buffers::default(), FiledBy::Call)
    }

    #[test]
    fn the_bitmap_follows_the_slots() {
        let mut level = Level::default();
        assert!(level.is_empty());
        assert_eq!(level.first_from(0), None);
        assert_eq!(level.ids(7), []);
        for slot in [0, 7, 63] {
            assert_eq!(push(&mut level, slot, slot), 0);
            assert_eq!(push(&mut level, slot, slot + 100), 1);
        }
        assert_eq!(level.first_from(0), Some(0));
        assert_eq!(level.first_from(1), Some(7));
        assert_eq!(level.first_from(8), Some(63));
        let mut emptied = None;
        assert_eq!(level.swap_remove(7, 0, &mut emptied), Some(107));
        assert!(level.is_occupied(7));
        assert_eq!(level.swap_remove(7, 0, &mut emptied), None);
        assert!(!level.is_occupied(7));
        let mut buffer = Vec::new();
        level.swap_out(63, &mut buffer);
        assert_eq!(buffer, [63, 163]);
        assert_eq!(level.first_from(1), None);
        let mut chunk = [0; 8];
        assert_eq!(level.pop_chunk(0, &mut chunk, &mut emptied), 2);
        assert_eq!(chunk[..2], [0, 100]);
        assert!(level.is_empty());
        assert_eq!(emptied, None, "small buffers stay");
    }

    #[test]
    fn a_slot_without_a_buffer_takes_one_that_is_there() {
        let mut level = Level::default();
        let mut buffers = Buffers::default();
        buffers.set_aside(Some(Vec::with_capacity(300)));
        level.push(3, 1, &mut buffers, FiledBy::Call);
        assert_eq!(level.ids_mut(3).capacity(), 300);
        buffers.set_aside(Some(Vec::with_capacity(400)));
        level.push(3, 2, &mut buffers, FiledBy::Call);
        assert_eq!((buffers.reusable.len(), level.ids(3).len()), (1, 2));
    }

    #[test]
    fn a_large_buffer_has_room_for_a_quarter_more_at_most() {
        let mut level = Level::default();
        let mut copies = 0;
        for id in 0..10_000 {
            let before = level.room();
            push(&mut level, 3, id);
            copies += usize::from(level.room() > before);
            let len = id as usize + 1;
            assert!(level.room() <= (len + len / 4).max(2 * GROWN_BY_A_QUARTER));
        }
        assert!(copies < 35, "{copies}");
    }

    #[test]
    fn large_buffers_are_handed_out_and_shrink() {
        let mut level = Level::default();
        let many = 10 * SHRUNK_CAPACITY as u32;
        for id in 0..many {
            push(&mut level, 3, id);
        }
        let mut emptied = None;
        for _ in 1..many {
            level.swap_remove(3, 0, &mut emptied);
            assert_eq!(emptied, None);
        }
        assert!(level.ids_mut(3).capacity() <= SHRUNK_CAPACITY);
        level.swap_remove(3, 0, &mut emptied);
        assert!(emptied.is_some_and(|buffer| buffer.capacity() > KEPT_CAPACITY));
        assert_eq!(level.ids_mut(3).capacity(), 0);
    }

    #[test]
    fn a_buffer_is_kept_up_to_a_certain_size() {
        for (size, is_taken) in [(KEPT_CAPACITY, false), (KEPT_CAPACITY + 1, true)] {
            let mut ids = Vec::new();
            ids.reserve_exact(size);
            assert_eq!(ids.capacity(), size);
            assert_eq!(take_if_large(&mut ids).is_some(), is_taken);
            assert_eq!(ids.capacity() == 0, is_taken);
        }
    }
}
