//! Entries in chunks that never move, addressed by number.
//!
//! A growing vector would copy all of its entries at once, hundreds of milliseconds for millions
//! of them; here at most half a chunk is copied. Which entries are free, and the generations that
//! tell users of one number apart, are the owner's business.
//!
//! A lookup takes one of two ways: a slab of one chunk has no list of chunks to read, and a greater
//! slab finds all of its entries through the list. Which way it is depends on the slab, not on the
//! number. A branch that depends on the number is mispredicted for half of the entries of a slab of
//! two chunks. It is known only when the number is, that is after a cache miss, and so each
//! misprediction also ends the overlap with the misses of the next lookups.

use std::mem;
use std::ops::{Index, IndexMut};

/// Entries of a chunk. A power of two, so that a number splits into chunk and offset by bits.
pub(crate) const CHUNK: usize = 1 << 14;

/// The highest number that is never given out, so that owners can use it for "none".
pub(crate) const NO_ENTRY: u32 = u32::MAX;

/// Entries a slab can hold at most.
const CAPACITY: u32 = u32::MAX - 1;

#[repr(C)]
pub(crate) struct Slab<E> {
    /// The only chunk, which grows like any vector, since small slabs are many. A lookup in a small
    /// slab reads one cache line less on its way to the entry. It is empty while there are several.
    only: Vec<E>,
    len: u32,
    capacity: u32,
    /// All chunks, if there are several. Those behind the first one are allocated whole, so that
    /// they never move.
    several: Vec<Vec<E>>,
}

impl<E> Slab<E> {
    pub(crate) const fn new() -> Self {
        Slab::with_capacity_limit(CAPACITY)
    }

    /// A slab that refuses more than `capacity` entries, so that tests reach the limit.
    pub(crate) const fn with_capacity_limit(capacity: u32) -> Self {
        assert!(capacity <= CAPACITY);
        Slab {
            only: Vec::new(),
            len: 0,
            capacity,
            several: Vec::new(),
        }
    }

    /// How many entries have been pushed: their numbers are those below.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is a number left.
    pub(crate) fn has_room(&self) -> bool {
        self.len < self.capacity
    }

    /// Adds an entry and returns its number, or hands it back if there are no more numbers.
    pub(crate) fn push(&mut self, entry: E) -> Result<u32, E> {
        if self.len == self.capacity {
            return Err(entry);
        }
        let id = self.len;
        if self.several.is_empty() && self.only.len() < CHUNK {
            self.only.push(entry);
        } else {
            self.chunk_with_room().push(entry);
        }
        self.len += 1;
        Ok(id)
    }

    /// Returns the last of several chunks, or a new one if that is full.
    fn chunk_with_room(&mut self) -> &mut Vec<E> {
        if self.several.is_empty() {
            self.several.push(mem::take(&mut self.only));
        }
        if self.several.last().is_none_or(|last| last.len() == CHUNK) {
            self.several.push(Vec::with_capacity(CHUNK));
        }
        let last = self.several.len() - 1;
        &mut self.several[last]
    }

    /// Takes the entry with the highest number out. The number is given out again.
    pub(crate) fn pop(&mut self) -> Option<E> {
        let entry = match self.several.last_mut() {
            Some(chunk) => {
                let entry = chunk.pop();
                if chunk.is_empty() {
                    self.several.pop();
                }
                if self.several.len() == 1 {
                    self.only = self.several.pop().unwrap_or_default();
                }
                entry
            }
            None => self.only.pop(),
        };
        self.len -= u32::from(entry.is_some());
        entry
    }

    /// Gives memory back that no entry needs. Chunks but the first one stay whole.
    pub(crate) fn shrink_to_fit(&mut self) {
        self.only.shrink_to_fit();
        self.several.shrink_to_fit();
    }

    /// For how many entries there is memory.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn room(&self) -> usize {
        self.only.capacity() + self.several.iter().map(Vec::capacity).sum::<usize>()
    }

    /// The entry with this number, if it has been pushed.
    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<&E> {
        let id = id as usize;
        match self.only.get(id) {
            Some(entry) => Some(entry),
            None => self.several.get(id / CHUNK)?.get(id % CHUNK),
        }
    }

    /// The entry with this number, if it has been pushed.
    #[inline]
    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut E> {
        let id = id as usize;
        match self.only.get_mut(id) {
            Some(entry) => Some(entry),
            None => self.several.get_mut(id / CHUNK)?.get_mut(id % CHUNK),
        }
    }

    /// All entries in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &E> {
        self.only.iter().chain(self.several.iter().flatten())
    }
}

impl<E> Index<u32> for Slab<E> {
    type Output = E;

    #[inline]
    fn index(&self, id: u32) -> &E {
        let id = id as usize;
        match self.only.get(id) {
            Some(entry) => entry,
            None => &self.several[id / CHUNK][id % CHUNK],
        }
    }
}

impl<E> IndexMut<u32> for Slab<E> {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut E {
        let id = id as usize;
        match self.only.get_mut(id) {
            Some(entry) => entry,
            None => &mut self.several[id / CHUNK][id % CHUNK],
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_up_across_chunks_and_entries_stay_where_they_are() {
        let mut slab = Slab::new();
        let count = 3 * CHUNK as u32 + 1;
        let (mut first_chunk, mut second_chunk) = (None, None);
        for n in 0..count {
            assert_eq!(slab.push(u64::from(n)), Ok(n));
            if n == CHUNK as u32 - 1 {
                first_chunk = Some(&raw const slab[0]);
            }
            if n == CHUNK as u32 {
                second_chunk = Some(&raw const slab[n]);
            }
        }
        assert_eq!(slab.len(), count);
        assert_eq!(first_chunk, Some(&raw const slab[0]));
        assert_eq!(second_chunk, Some(&raw const slab[CHUNK as u32]));
        slab[count - 1] = 7;
        assert_eq!(slab.get(count - 1), Some(&7));
        assert_eq!(slab.get(count), None);
        assert_eq!(slab.get_mut(NO_ENTRY), None);
        assert!(slab.iter().take(CHUNK + 2).copied().eq(0..CHUNK as u64 + 2));
        assert_eq!(slab.iter().count(), count as usize);
    }

    #[test]
    fn what_was_taken_from_the_end_gives_its_memory_back() {
        let mut slab = Slab::new();
        let count = 2 * CHUNK as u32 + 1;
        for n in 0..count {
            assert_eq!(slab.push(n), Ok(n));
        }
        for n in (3..count).rev() {
            assert_eq!(slab.pop(), Some(n));
            assert_eq!((slab.len(), slab.get(n)), (n, None));
        }
        slab.shrink_to_fit();
        assert!(slab.room() <= 4, "{}", slab.room());
        assert_eq!(slab.push(7), Ok(3), "the number is given out again");
        assert!(slab.iter().copied().eq([0, 1, 2, 7]));
        for n in [7, 2, 1, 0] {
            assert_eq!(slab.pop(), Some(n));
        }
        assert_eq!(slab.pop(), None);
        slab.shrink_to_fit();
        assert_eq!((slab.len(), slab.room()), (0, 0));
        assert_eq!(slab.push(9), Ok(0));
    }

    #[test]
    fn entries_are_kept_when_the_second_chunk_comes_and_goes() {
        let mut slab = Slab::new();
        let chunk = CHUNK as u32;
        for n in 0..chunk {
            assert_eq!(slab.push(n), Ok(n));
        }
        for _ in 0..3 {
            assert_eq!(slab.push(chunk), Ok(chunk));
            assert!(slab.iter().copied().eq(0..=chunk));
            assert_eq!((slab[chunk - 1], slab[chunk]), (chunk - 1, chunk));
            assert_eq!(slab.pop(), Some(chunk));
            assert!(slab.iter().copied().eq(0..chunk));
            assert_eq!((slab.get(0), slab.get(chunk)), (Some(&0), None));
        }
        assert_eq!(slab.pop(), Some(chunk - 1));
        assert_eq!(slab.push(7), Ok(chunk - 1));
        assert_eq!(slab.room(), CHUNK, "the second chunk was given back");
    }

    #[test]
    fn a_full_slab_hands_the_entry_back() {
        let mut slab = Slab::with_capacity_limit(2);
        assert_eq!(slab.push('a'), Ok(0));
        assert_eq!(slab.push('b'), Ok(1));
        assert_eq!(slab.push('c'), Err('c'));
        assert_eq!(slab.len(), 2);
    }
}
