//! The buffers of a wheel that no slot uses. Some are kept for the next slots. The others are set
//! aside for the wheel's owner (in a shard, the ticker), which frees them later.

/// Buffers set aside for the owner; more are freed on the spot.
const SPARE: usize = 64;
/// Buffers kept for other slots, and how large they may be: 32 kB in all.
const REUSABLE: usize = 8;
const REUSABLE_CAPACITY: usize = 1024;

/// A buffer from this capacity on grows by a quarter. A smaller one is doubled, since it is copied
/// in no time.
pub(super) const GROWN_BY_A_QUARTER: usize = 64;

/// The caller that files an entry. It decides how a full list gets more room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FiledBy {
    /// A call that arms: the buffer grows.
    Call,
    /// `advance`: the entries move to a larger buffer, and the old one is left to the owner.
    ///
    /// The old buffer was allocated by the thread that armed the timers. If it grew, glibc might
    /// first merge all blocks of that thread's memory that other threads have freed. After some
    /// 100,000 boxed tasks that takes 30 to 100 ms, and the wheel is locked meanwhile.
    Advance,
}

#[derive(Default)]
pub(super) struct Buffers {
    /// Emptied buffers of middling size, for the next slots that need one: a wheel in steady use
    /// neither allocates nor frees.
    pub(super) reusable: Vec<Vec<u32>>,
    /// Buffers that are left to the owner.
    pub(super) spare: Vec<Vec<u32>>,
}

impl Buffers {
    /// Adds `id` to `ids` and returns its position there.
    #[inline]
    pub(super) fn push(&mut self, ids: &mut Vec<u32>, id: u32, by: FiledBy) -> u32 {
        if ids.len() == ids.capacity() {
            self.make_room(ids, by);
        }
        ids.push(id);
        (ids.len() - 1) as u32
    }

    /// Gives the full `ids` more room: one of the reusable buffers if it has none, twice as much if
    /// it is small, and a quarter more if it is large. A vector would double that, too, and
    /// millions of timers wait in such slots.
    #[cold]
    fn make_room(&mut self, ids: &mut Vec<u32>, by: FiledBy) {
        let capacity = ids.capacity();
        if capacity == 0 {
            // Without one, the vector takes the least that it allocates.
            if let Some(buffer) = self.reusable.pop() {
                *ids = buffer;
            }
            return;
        }
        let more = if capacity < GROWN_BY_A_QUARTER {
            capacity
        } else {
            capacity / 4
        };
        match by {
            FiledBy::Call => ids.reserve_exact(more),
            FiledBy::Advance => self.exchange(ids, capacity + more),
        }
    }

    /// Moves `ids` into a buffer of at least this capacity.
    fn exchange(&mut self, ids: &mut Vec<u32>, capacity: usize) {
        let fits = self
            .reusable
            .last()
            .is_some_and(|buffer| buffer.capacity() >= capacity);
        let larger = if fits { self.reusable.pop() } else { None };
        let mut larger = larger.unwrap_or_else(|| Vec::with_capacity(capacity));
        larger.append(ids);
        self.leave(std::mem::replace(ids, larger));
    }

    /// Keeps an emptied buffer for the next slots or for the owner.
    pub(super) fn set_aside(&mut self, buffer: Option<Vec<u32>>) {
        let Some(buffer) = buffer else {
            return;
        };
        if buffer.capacity() <= REUSABLE_CAPACITY && self.reusable.len() < REUSABLE {
            self.reusable.push(buffer);
        } else {
            self.leave(buffer);
        }
    }

    /// Leaves a buffer to the owner.
    fn leave(&mut self, buffer: Vec<u32>) {
        if self.spare.len() < SPARE {
            self.spare.push(buffer);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn full(capacity: usize) -> Vec<u32> {
        let mut ids = Vec::with_capacity(capacity);
        ids.extend(0..capacity as u32);
        assert_eq!(ids.capacity(), capacity);
        ids
    }

    #[test]
    fn a_call_lets_a_buffer_grow() {
        let mut buffers = Buffers::default();
        let mut ids = full(1_000);
        buffers.make_room(&mut ids, FiledBy::Call);
        assert_eq!((ids.capacity(), buffers.spare.len()), (1_250, 0));
    }

    #[test]
    fn advance_leaves_the_buffer_to_the_owner() {
        let mut buffers = Buffers::default();
        let mut ids = full(1_000);
        let before = ids.as_ptr();
        buffers.make_room(&mut ids, FiledBy::Advance);
        assert_eq!((ids.len(), ids.capacity()), (1_000, 1_250));
        assert!(ids.iter().copied().eq(0..1_000));
        assert_eq!(buffers.spare[0].as_ptr(), before);
    }

    #[test]
    fn advance_takes_a_reusable_buffer_that_is_large_enough() {
        for (there, taken) in [(400, false), (500, true)] {
            let mut buffers = Buffers::default();
            buffers.set_aside(Some(Vec::with_capacity(there)));
            let mut ids = full(400);
            buffers.make_room(&mut ids, FiledBy::Advance);
            assert_eq!((ids.len(), ids.capacity()), (400, 500));
            assert_eq!(buffers.reusable.is_empty(), taken);
        }
    }

    #[test]
    fn a_small_buffer_is_doubled() {
        for by in [FiledBy::Call, FiledBy::Advance] {
            let mut buffers = Buffers::default();
            let mut ids = full(GROWN_BY_A_QUARTER - 1);
            buffers.make_room(&mut ids, by);
            assert_eq!(ids.capacity(), 2 * (GROWN_BY_A_QUARTER - 1));
            assert_eq!(buffers.spare.len(), usize::from(by == FiledBy::Advance));
        }
    }
}
