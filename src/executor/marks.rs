//! Which deques of a pool have tickets: a bit for each, so that a worker need not look at each of
//! them. On a machine with many cores almost all of them are empty.
//!
//! ```text
//! who pushes into the deque            who finds it empty
//!   push                                 clear the mark
//!   set the mark                         the deque is not empty: set the mark
//! ```
//!
//! - **MARK-1** A mark stands for its deque wherever it is asked whether there are tickets. Both
//!   sides change one word. If the clearing comes first, the mark is set afterwards. If the setting
//!   comes first, the push is visible to the second look. So when both are through, the mark of a
//!   deque with tickets is set.
//! - Between the clearing and the second look, others may miss a ticket. Who clears is in a visit,
//!   and owes a look at all queues at its end (SLEEP-3).
//! - A mark may be set though its deque is empty. Who takes the last ticket clears it, so that it
//!   does not wake a worker for nothing.

use crate::sync::atomic::{AtomicU64, Ordering};

/// The marks of all deques of a pool, by number.
#[derive(Debug)]
pub(super) struct Marks(Box<[AtomicU64]>);

const BITS: usize = u64::BITS as usize;

impl Marks {
    pub(super) fn new(deques: usize) -> Self {
        Marks(
            (0..deques.div_ceil(BITS))
                .map(|_| AtomicU64::new(0))
                .collect(),
        )
    }

    /// Marks a deque, after a push into it.
    #[inline]
    pub(super) fn set(&self, deque: usize) {
        // Release pairs with the Acquire in `clear`: who clears this mark sees the push. All
        // changes are read-modify-writes, so the marks of other deques do not come between.
        self.0[deque / BITS].fetch_or(1 << (deque % BITS), Ordering::Release);
    }

    /// Clears the mark of a deque that is empty, unless a push came in between (MARK-1).
    #[inline]
    pub(super) fn clear(&self, deque: usize, is_empty: impl Fn() -> bool) {
        if !is_empty() {
            return;
        }
        // Acquire: see `set`.
        self.0[deque / BITS].fetch_and(!(1 << (deque % BITS)), Ordering::Acquire);
        if !is_empty() {
            self.set(deque);
        }
    }

    /// Returns whether this deque is marked.
    #[inline]
    pub(super) fn is_set(&self, deque: usize) -> bool {
        // Relaxed: for the owner of the deque, who has set it, or a hint.
        self.0[deque / BITS].load(Ordering::Relaxed) >> (deque % BITS) & 1 > 0
    }

    /// Returns whether any deque is marked. After a fence, the answer includes each deque into
    /// which a ticket was pushed before the fence of its producer, and is still in it.
    #[inline]
    pub(super) fn any(&self) -> bool {
        // Relaxed: ordered by the fences.
        self.0.iter().any(|word| word.load(Ordering::Relaxed) > 0)
    }

    /// Returns the marked deques from `first` to before `end`, beginning with `start`, which is one
    /// of them. Each word is read when the iteration comes to it.
    #[inline]
    pub(super) fn from(
        &self,
        start: usize,
        first: usize,
        end: usize,
    ) -> impl Iterator<Item = usize> + '_ {
        self.between(start, end).chain(self.between(first, start))
    }

    fn between(&self, mut at: usize, end: usize) -> impl Iterator<Item = usize> + '_ {
        let mut left = 0;
        let mut next_word = at / BITS;
        std::iter::from_fn(move || {
            while left == 0 {
                if at >= end || next_word * BITS >= end {
                    return None;
                }
                // Relaxed: a steal decides.
                left = self.0[next_word].load(Ordering::Relaxed);
                left &= u64::MAX << (at % BITS);
                at = next_word * BITS + BITS;
                next_word += 1;
            }
            let deque = (next_word - 1) * BITS + left.trailing_zeros() as usize;
            left &= left - 1;
            (deque < end).then_some(deque)
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn marked(deques: usize, set: &[usize]) -> Marks {
        let marks = Marks::new(deques);
        for deque in set {
            marks.set(*deque);
        }
        marks
    }

    #[test]
    fn all_that_are_marked_are_found_from_any_start() {
        for deques in [1, 2, 63, 64, 65, 128, 200] {
            for step in [1, 3, 64] {
                let set: Vec<_> = (0..deques).step_by(step).collect();
                let marks = marked(deques, &set);
                for (first, end) in [(0, deques), (deques / 2, deques), (0, deques.div_ceil(2))] {
                    for start in first..end {
                        let found: Vec<_> = marks.from(start, first, end).collect();
                        let all = (start..end).chain(first..start);
                        let expected: Vec<_> = all.filter(|deque| deque % step == 0).collect();
                        assert_eq!(found, expected, "{deques} {step} {first} {start} {end}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_mark_is_cleared_unless_a_push_comes_between() {
        let marks = marked(70, &[3, 69]);
        marks.clear(3, || false);
        assert!(marks.is_set(3));
        marks.clear(3, || true);
        assert!(!marks.is_set(3) && marks.is_set(69) && marks.any());
        let looks = std::cell::Cell::new(0);
        marks.clear(69, || looks.replace(looks.get() + 1) == 0);
        assert!(marks.is_set(69));
        marks.clear(69, || true);
        assert!(!marks.any());
    }
}
