//! The index of a stripe: it maps hash bits to slot numbers. The keys are in the entries, so a
//! lookup asks its caller whether a slot is the right one.
//!
//! ```text
//!  bits --multiply, shift--> home row --passed > 0--> next row --passed > 0--> ..
//!
//!  row, one cache line:  | 7 x bits | used, a bitmap | 7 x slot | passed |
//! ```
//!
//! A line (hash bits and slot) is in the first row with room, from its home row on; the first row
//! follows the last one. `passed` counts the lines that passed a row because it was full, like the
//! overflow counts of Folly's F14. A lookup goes on only where some line went on, so most lookups,
//! failing ones too, read one cache line. Control bytes beside their cells would cost two.
//!
//! Removing a line lowers these counts again, and a line that passed the freed cell moves up into
//! it, as in linear probing without tombstones. F14 leaves that line where it is. Here, probe
//! sequences would then grow with every timer that comes and goes: at a load of 79 %, a failing
//! lookup reads 2.0 rows after the fill, and 16 after all lines have been replaced five times. With
//! lines moved up it stays at 2.0.
//!
//! The home row is the upper half of bits times rows, so a table may have any number of rows. Home
//! rows are in the order of the bits, so a rehash reads the old rows and writes the new ones from
//! front to back. It reads no entry, because each line has its bits.
//!
//! Invariants:
//!
//! - **INDEX-1** `passed` of a row is the number of lines that passed it on the way from their home
//!   row. A line passes a row at most once, and there are fewer lines than `u32` has numbers, so
//!   the count can't wrap.
//! - **INDEX-2** A row that was passed is full.
//! - **INDEX-3** `limit` is at most the number of cells. The number of lines is at most `limit`.
//! - **INDEX-4** No slot is in two lines.
//!
//! The caller's comparison is user code and may panic. Only [`Index::find`] calls it, and that
//! changes nothing. All other functions compare slot numbers.

mod shrinking;

/// Number of cells of a row: with 8 bytes each, the bitmap and the counter they fill a cache line.
const CELLS: usize = 7;

/// One row, in the order in which a lookup reads it.
#[derive(Clone)]
#[repr(C, align(64))]
struct Row {
    bits: [u32; CELLS],
    /// Bit *c* is set if cell *c* holds a line.
    used: u32,
    slots: [u32; CELLS],
    /// Number of lines that passed this row (INDEX-1).
    passed: u32,
}

const _: () = assert!(size_of::<Row>() == 64);

impl Row {
    const EMPTY: Row = Row {
        bits: [0; CELLS],
        used: 0,
        slots: [0; CELLS],
        passed: 0,
    };

    /// Returns the used cells whose value in `values` (the bits or the slots of this row) is
    /// `wanted`. Without branches, so that the compiler compares all of them at once.
    #[inline]
    fn cells_with(&self, values: &[u32; CELLS], wanted: u32) -> u32 {
        let mut found = 0;
        for (cell, value) in values.iter().enumerate() {
            found |= u32::from(*value == wanted) << cell;
        }
        found & self.used
    }

    /// Puts a line into a free cell. Returns false if the row is full.
    fn put(&mut self, bits: u32, slot: u32) -> bool {
        let cell = (!self.used).trailing_zeros() as usize;
        if cell >= CELLS {
            return false;
        }
        self.fill(cell, bits, slot);
        true
    }

    fn fill(&mut self, cell: usize, bits: u32, slot: u32) {
        self.bits[cell] = bits;
        self.slots[cell] = slot;
        self.used |= 1 << cell;
    }
}

#[derive(Default)]
pub(crate) struct Index {
    rows: Box<[Row]>,
    /// Number of lines: at most the number of slots.
    lines: u32,
    /// Number of lines at which the next one makes the table grow (INDEX-3).
    limit: u32,
}

impl Index {
    /// Creates an empty index, without an allocation: most stripes of a small scheduler stay empty.
    pub(crate) fn new() -> Self {
        Index::default()
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn is_empty(&self) -> bool {
        self.lines == 0
    }

    /// Returns the slot with these bits for which `is_it` returns true.
    #[inline(always)]
    pub(crate) fn find(&self, bits: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = home(bits, self.rows.len());
        // Without rows the loop does not begin. It ends before it has seen all of them: by INDEX-3
        // some row is not full, and nothing passed it.
        while let Some(row) = self.rows.get(at) {
            let mut candidates = row.cells_with(&row.bits, bits);
            while candidates != 0 {
                let slot = row.slots[candidates.trailing_zeros() as usize];
                if is_it(slot) {
                    return Some(slot);
                }
                candidates &= candidates - 1;
            }
            if row.passed == 0 {
                return None;
            }
            at = self.next(at);
        }
        None
    }

    /// Reads the row in which a line with these bits usually is.
    #[inline]
    pub(super) fn prefetch(&self, bits: u32) -> u32 {
        let at = home(bits, self.rows.len());
        self.rows.get(at).map_or(0, |row| row.used)
    }

    /// Adds a line. `slot` must not be in another line (INDEX-4).
    pub(crate) fn insert(&mut self, bits: u32, slot: u32) {
        if self.lines == self.limit {
            self.grow();
        }
        self.lines += 1;
        wheel_position(&mut self.rows, bits, slot);
    }

    /// Removes the line of `slot`, if there is one. A line that passed the freed cell moves up into
    /// it, and so on (INDEX-2).
    pub(crate) fn remove(&mut self, bits: u32, slot: u32) {
        let Some((mut row, mut cell)) = self.position(bits, slot) else {
            return;
        };
        self.rows[row].used &= !(1 << cell);
        self.lines -= 1;
        self.count_back(home(bits, self.rows.len()), row);
        while self.rows[row].passed > 0 {
            let (from, lies) = self.one_that_passed(row);
            let behind = &mut self.rows[from];
            let (bits, slot) = (behind.bits[lies], behind.slots[lies]);
            behind.used &= !(1 << lies);
            self.rows[row].fill(cell, bits, slot);
            self.count_back(row, from);
            (row, cell) = (from, lies);
        }
    }

    /// Lowers `passed` of the rows from `first` to before `end`, which a line no longer passes.
    fn count_back(&mut self, first: usize, end: usize) {
        let mut at = first;
        while at != end {
            self.rows[at].passed -= 1;
            at = self.next(at);
        }
    }

    /// Returns the row and cell of the nearest line that passed the row `passed`. INDEX-1: there is
    /// one.
    fn one_that_passed(&self, passed: usize) -> (usize, usize) {
        let rows = self.rows.len();
        let mut at = passed;
        for steps in 1..rows {
            at = self.next(at);
            let row = &self.rows[at];
            let went_by = |cell: &usize| {
                let home = home(row.bits[*cell], rows);
                let way = if home <= at {
                    at - home
                } else {
                    at + rows - home
                };
                row.used >> cell & 1 != 0 && way >= steps
            };
            if let Some(cell) = (0..CELLS).find(went_by) {
                return (at, cell);
            }
        }
        unreachable!("INDEX-1: a row that was passed has a line behind it")
    }

    /// Changes the slot in a line from `from` to `to`.
    pub(super) fn renumber(&mut self, bits: u32, from: u32, to: u32) {
        if let Some((row, cell)) = self.position(bits, from) {
            self.rows[row].slots[cell] = to;
        }
    }

    /// Returns the row and cell of the line of `slot`.
    fn position(&self, bits: u32, slot: u32) -> Option<(usize, usize)> {
        let mut at = home(bits, self.rows.len());
        for _ in 0..self.rows.len() {
            let row = &self.rows[at];
            let found = row.cells_with(&row.slots, slot);
            if found != 0 {
                return Some((at, found.trailing_zeros() as usize));
            }
            if row.passed == 0 {
                return None;
            }
            at = self.next(at);
        }
        None
    }

    fn next(&self, row: usize) -> usize {
        after(row, self.rows.len())
    }

    /// Adds rows. A table that is emptied after a peak keeps its rows until
    /// [`shrink_to_fit`](Self::shrink_to_fit), because the next peak may need them.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.rehash(more_than(self.rows.len()));
    }

    /// Moves all lines to a table of `rows` rows, which has room for them.
    fn rehash(&mut self, rows: usize) {
        let mut rehashed = vec![Row::EMPTY; rows].into_boxed_slice();
        for row in &self.rows {
            let mut used = row.used;
            while used != 0 {
                let cell = used.trailing_zeros() as usize;
                wheel_position(&mut rehashed, row.bits[cell], row.slots[cell]);
                used &= used - 1;
            }
        }
        self.rows = rehashed;
        self.limit = u32::try_from(limit_of(rows)).unwrap_or(u32::MAX);
    }
}

/// Returns the home row of a line. Without rows this is 0, which is no row.
#[inline]
fn home(bits: u32, rows: usize) -> usize {
    ((u64::from(bits) * rows as u64) >> 32) as usize
}

#[inline]
fn after(row: usize, rows: usize) -> usize {
    if row + 1 == rows { 0 } else { row + 1 }
}

/// Puts a line into the first row with room; by INDEX-3 there is one.
#[inline]
fn wheel_position(rows: &mut [Row], bits: u32, slot: u32) {
    let count = rows.len();
    let mut at = home(bits, count);
    while !rows[at].put(bits, slot) {
        rows[at].passed += 1;
        at = after(at, count);
    }
}

/// Returns the next greater number of rows. It grows by a half and not to the double: about 14
/// bytes for a line on average instead of 17, for about 10 ns more per line in a bulk insert.
fn more_than(rows: usize) -> usize {
    match rows {
        0 => 1,
        1..4 => rows * 2,
        _ => rows + rows / 2,
    }
}

/// Returns how many lines fit before the table grows: 11 in 14 cells, and all of a single row.
fn limit_of(rows: usize) -> usize {
    if rows == 1 { CELLS } else { rows * 11 / 2 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    struct Rng(u64);

    impl Rng {
        fn below(&mut self, end: u32) -> u32 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            ((u64::from((self.0 >> 32) as u32) * u64::from(end)) >> 32) as u32
        }
    }

    impl Index {
        /// Checks the invariants against the lines.
        fn check(&self) {
            let rows = self.rows.len();
            let mut passed = vec![0; rows];
            let mut slots = Vec::new();
            for (lies, row) in self.rows.iter().enumerate() {
                for cell in (0..CELLS).filter(|cell| row.used >> cell & 1 != 0) {
                    slots.push(row.slots[cell]);
                    let mut at = home(row.bits[cell], rows);
                    while at != lies {
                        passed[at] += 1;
                        at = self.next(at);
                    }
                }
            }
            for (row, passed) in self.rows.iter().zip(passed) {
                assert_eq!(row.passed, passed, "INDEX-1");
                assert!(
                    passed == 0 || row.used.count_ones() as usize == CELLS,
                    "INDEX-2"
                );
            }
            assert!(
                self.limit as usize <= rows * CELLS && self.lines <= self.limit,
                "INDEX-3"
            );
            assert_eq!(slots.len(), self.lines as usize);
            slots.sort_unstable();
            slots.dedup();
            assert_eq!(slots.len(), self.lines as usize, "INDEX-4");
        }

        /// Returns the number of rows after `lines` lines were inserted one by one.
        pub(crate) fn rows_for(lines: usize) -> usize {
            let mut rows = 0;
            while limit_of(rows) < lines {
                rows = more_than(rows);
            }
            rows
        }

        /// Returns the home row of bits.
        pub(crate) fn home_in(rows: usize, bits: u32) -> usize {
            home(bits, rows)
        }

        /// Returns the greatest number of rows that the lookup of an absent key reads, for the
        /// given number of lines with each home row. The order of insertion does not matter: the
        /// number of lines that find no room in a row does not depend on it.
        pub(crate) fn longest_way(homes: &[u32]) -> usize {
            let rows = homes.len();
            let mut passed = vec![0; rows];
            let mut carried = 0;
            // Twice around, since probe sequences wrap.
            for row in (0..rows).chain(0..rows) {
                carried = (homes[row] + carried).saturating_sub(CELLS as u32);
                passed[row] = carried;
            }
            let mut longest = 0;
            let mut way = 1;
            for row in (0..rows).chain(0..rows) {
                longest = longest.max(way);
                way = if passed[row] > 0 { way + 1 } else { 1 };
            }
            longest.min(rows)
        }

        /// Returns the same for the present rows.
        fn longest(&self) -> usize {
            let mut longest = 0;
            for mut at in 0..self.rows.len() {
                let mut read = 1;
                while self.rows[at].passed > 0 {
                    read += 1;
                    at = self.next(at);
                }
                longest = longest.max(read);
            }
            longest
        }

        /// Returns the mean number of rows that the lookup of an absent key reads.
        fn vain(&self) -> f64 {
            let rows = self.rows.len();
            let mut read = 0;
            for mut at in 0..rows {
                read += 1;
                while self.rows[at].passed > 0 {
                    read += 1;
                    at = self.next(at);
                }
            }
            f64::from(read) / rows as f64
        }
    }

    /// Runs random operations on an index and on a map from slots to bits. `bits_of` makes the bits
    /// of a random number.
    fn against_the_model(seed: u64, operations: u32, most: u32, bits_of: fn(u32) -> u32) {
        let mut rng = Rng(seed);
        let mut index = Index::new();
        let mut model = HashMap::new();
        for operation in 0..operations {
            // In waves, so that it is filled, emptied and filled again.
            let inserts = if (operation / (2 * most)).is_multiple_of(2) {
                3
            } else {
                1
            };
            let slot = rng.below(most);
            let bits = model.get(&slot).copied();
            assert_eq!(
                bits.and_then(|bits| index.find(bits, |found| found == slot)),
                bits.map(|_| slot)
            );
            match bits {
                None if rng.below(4) < inserts => {
                    let bits = bits_of(rng.below(u32::MAX));
                    assert_eq!(index.find(bits, |found| found == slot), None);
                    index.insert(bits, slot);
                    model.insert(slot, bits);
                }
                Some(bits) if rng.below(8) == 0 => {
                    let to = most + slot;
                    index.renumber(bits, slot, to);
                    assert_eq!(index.find(bits, |found| found == slot), None);
                    assert_eq!(index.find(bits, |found| found == to), Some(to));
                    index.renumber(bits, to, slot);
                }
                Some(bits) if rng.below(4) >= inserts => {
                    index.remove(bits, slot);
                    model.remove(&slot);
                    assert_eq!(index.find(bits, |found| found == slot), None);
                }
                _ => {}
            }
            if operation % 16 == 0 {
                index.check();
            }
        }
        for (slot, bits) in model {
            assert_eq!(index.find(bits, |found| found == slot), Some(slot));
            index.remove(bits, slot);
            index.check();
        }
        assert!(index.is_empty());
        assert!(index.rows.iter().all(|row| row.passed == 0));
    }

    #[test]
    fn it_does_what_a_map_does() {
        for seed in 1..=8 {
            against_the_model(seed, 6_000, 3 * seed as u32, |random| random);
            against_the_model(seed, 6_000, 400, |random| random);
        }
    }

    #[test]
    fn it_does_what_a_map_does_when_hashes_collide() {
        for seed in 1..=8 {
            for most in [15, 120] {
                against_the_model(seed, 4_000, most, |_| 0);
                against_the_model(seed, 4_000, most, |_| u32::MAX);
                against_the_model(seed, 4_000, most, |random| random % 3 * 0x5555_5555);
                // All home rows are the last one, so every probe sequence wraps.
                against_the_model(seed, 4_000, most, |random| random | 0xff00_0000);
            }
        }
    }

    #[test]
    fn it_grows_from_nothing_in_small_steps() {
        let mut index = Index::new();
        let mut sizes = vec![index.rows.len()];
        for slot in 0..70_u32 {
            index.insert(slot.wrapping_mul(0x9e37_79b9), slot);
            index.check();
            if index.rows.len() != sizes[sizes.len() - 1] {
                sizes.push(index.rows.len());
            }
        }
        assert_eq!(sizes, [0, 1, 2, 4, 6, 9, 13]);
    }

    #[test]
    fn an_empty_one_finds_nothing() {
        let mut index = Index::new();
        assert_eq!(index.find(7, |_| unreachable!()), None);
        index.remove(7, 7);
        index.renumber(7, 7, 8);
        assert!(index.is_empty() && index.rows.is_empty());
    }

    #[test]
    fn rows_are_kept_after_a_peak_until_they_are_to_be_given_back() {
        let mut rng = Rng(5);
        let bits: Vec<_> = (0..1_000).map(|_| rng.below(u32::MAX)).collect();
        for left in [0, 1, 7, 8, 100, 1_000] {
            let mut index = Index::new();
            for (slot, bits) in (0..).zip(&bits) {
                index.insert(*bits, slot);
            }
            let most = index.rows();
            for (slot, bits) in (0..).zip(&bits).skip(left) {
                index.remove(*bits, slot);
            }
            assert_eq!(index.rows(), most);
            index.shrink_to_fit();
            index.check();
            let fewer = limit_of(index.rows().saturating_sub(1) / 3 * 2);
            assert!(left == 0 && index.rows() == 0 || fewer <= left, "{left}");
            assert_eq!(index.is_empty(), left == 0);
            // The remaining lines are found, and new ones find room.
            for (slot, bits) in (0..1_000).zip(&bits) {
                let found = index.find(*bits, |found| found == slot);
                assert_eq!(found, (slot < left as u32).then_some(slot));
                if found.is_none() {
                    index.insert(*bits, slot);
                    index.check();
                }
            }
            assert_eq!(index.rows(), most);
        }
    }

    #[test]
    fn only_equal_bits_are_asked_about_and_a_panic_changes_nothing() {
        let mut index = Index::new();
        for slot in 0..40 {
            index.insert(slot % 4, slot);
        }
        let mut asked = Vec::new();
        let answer = index.find(2, |slot| {
            asked.push(slot);
            false
        });
        assert_eq!(answer, None);
        asked.sort_unstable();
        assert!(asked.iter().copied().eq((2..40).step_by(4)));
        let looking = AssertUnwindSafe(|| index.find(2, |_| panic!("Eq panics")));
        assert!(catch_unwind(looking).is_err());
        index.check();
        assert_eq!(index.find(3, |slot| slot == 39), Some(39));
    }

    #[test]
    fn the_longest_way_follows_from_the_homes() {
        let mut rng = Rng(3);
        for lines in [1, 7, 8, 40, 500, 1_000, 1_160] {
            let rows = Index::rows_for(lines);
            let mut index = Index::new();
            let mut homes = vec![0; rows];
            for slot in 0..lines as u32 {
                // Crowded, most of all at the end, where probe sequences wrap.
                let bits = rng.below(u32::MAX) | rng.below(u32::MAX) & rng.below(u32::MAX);
                index.insert(bits, slot);
                homes[home(bits, rows)] += 1;
            }
            index.check();
            assert_eq!(index.rows.len(), rows);
            assert_eq!(Index::longest_way(&homes), index.longest());
        }
    }

    #[test]
    fn lookups_stay_short_however_often_lines_come_and_go() {
        let mut rng = Rng(1);
        let mut index = Index::new();
        let mut lines = Vec::new();
        // As full as it gets before it grows.
        while index.rows.len() < 400 || index.lines < index.limit {
            let (bits, slot) = (rng.below(u32::MAX), lines.len() as u32);
            index.insert(bits, slot);
            lines.push(bits);
        }
        let before = index.vain();
        for _ in 0..10 * lines.len() {
            let slot = rng.below(lines.len() as u32);
            let bits = &mut lines[slot as usize];
            index.remove(*bits, slot);
            *bits = rng.below(u32::MAX);
            index.insert(*bits, slot);
        }
        index.check();
        assert!(before < 3.0 && index.vain() < 3.0);
    }
}
