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
//! - **INDEX-5** The slot of a free cell is `NO_ENTRY`. The bits of the line that was there remain.
//!
//! The caller's comparison is user code and may panic. Only [`Index::search`] calls it, and that
//! changes nothing. All other functions compare slot numbers. A caller with many keys asks for
//! candidates, and compares the keys itself.
//!
//! A search ends at a line or at a vacancy, and either of them is a place to go on from: the line
//! can be removed and the vacancy filled without a second search. Both are valid until the index
//! changes.

mod shrinking;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::wheel::NO_ENTRY;

/// Number of cells of a row: with 8 bytes each, the bitmap and the counter they fill a cache line.
const CELLS: usize = 7;

/// Number of words that are compared at once: the cells, and the word behind them.
const LANES: usize = CELLS + 1;

/// The bit of the first cell in a bitmap of cells. The compiler compares all lanes with two
/// instructions if each comparison is shifted; one that is shifted by zero is treated apart, and
/// three others with it.
const FIRST: u32 = 8;

/// Returns the bit of a cell in a bitmap.
const fn bit(cell: usize) -> u32 {
    1 << (cell as u32 + FIRST)
}

/// Returns the first cell of a bitmap that is not empty.
#[inline]
fn first_cell(cells: u32) -> usize {
    // The remainder is the difference, since the bits are FIRST to FIRST + CELLS - 1. The compiler
    // sees that it is a lane.
    (cells.trailing_zeros() % FIRST) as usize
}

/// One row, in the order in which a lookup reads it.
#[derive(Clone)]
#[repr(C, align(64))]
struct Row {
    /// The bits in each cell. Behind them is the bitmap of the cells that hold a line.
    bits: [u32; LANES],
    /// The slot in each cell. Behind them is the number of lines that passed this row (INDEX-1).
    slots: [u32; LANES],
}

const _: () = assert!(size_of::<Row>() == 64);

impl Row {
    const EMPTY: Row = Row {
        bits: [0; LANES],
        slots: Row::NO_SLOTS,
    };

    /// Free cells (INDEX-5), and no line that passed.
    const NO_SLOTS: [u32; LANES] = {
        let mut slots = [NO_ENTRY; LANES];
        slots[CELLS] = 0;
        slots
    };

    #[inline]
    fn used(&self) -> u32 {
        self.bits[CELLS]
    }

    #[inline]
    fn used_mut(&mut self) -> &mut u32 {
        &mut self.bits[CELLS]
    }

    #[inline]
    fn passed(&self) -> u32 {
        self.slots[CELLS]
    }

    #[inline]
    fn passed_mut(&mut self) -> &mut u32 {
        &mut self.slots[CELLS]
    }

    /// Returns the used cells with these bits.
    #[inline]
    fn cells_with_bits(&self, bits: u32) -> u32 {
        lanes_equal(&self.bits, bits) & self.used()
    }

    /// Returns the used cells with this slot.
    #[inline]
    fn cells_with_slot(&self, slot: u32) -> u32 {
        lanes_equal(&self.slots, slot) & self.used()
    }

    /// Returns the slot in the cell with these bits, or `NO_ENTRY` if no cell has them. Two cells
    /// with these bits make a number that may be any slot but not `NO_ENTRY`.
    ///
    /// Each slot is joined to the others, or left out, with all lanes at once. So no branch depends
    /// on the row, and nothing waits for the number of the cell. The last lane is no cell. If the
    /// bitmap happens to be the bits, the number is another slot.
    #[inline(always)]
    fn candidate(&self, bits: u32) -> u32 {
        // The complements, since `NO_ENTRY` in a free cell is then zero (INDEX-5).
        let mut joined = 0;
        for (other, slot) in self.bits.iter().zip(&self.slots) {
            joined |= u32::from(*other == bits).wrapping_neg() & !slot;
        }
        !joined
    }

    /// Returns the first free cell, if there is one.
    #[inline]
    fn free_cell(&self) -> Option<usize> {
        let free = !self.used() & (bit(CELLS) - bit(0));
        (free != 0).then(|| first_cell(free))
    }

    #[inline]
    fn fill(&mut self, cell: usize, bits: u32, slot: u32) {
        self.bits[cell] = bits;
        self.slots[cell] = slot;
        *self.used_mut() |= bit(cell);
    }

    /// Makes the cell free.
    #[inline]
    fn clear(&mut self, cell: usize) {
        self.slots[cell] = NO_ENTRY;
        *self.used_mut() &= !bit(cell);
    }
}

/// Returns the lanes that are `wanted`, as a bitmap. The last lane is no cell: its bit is in no
/// bitmap of used cells.
#[inline]
fn lanes_equal(lanes: &[u32; LANES], wanted: u32) -> u32 {
    let mut equal = 0;
    for (lane, value) in lanes.iter().enumerate() {
        equal |= u32::from(*value == wanted) << (lane as u32 + FIRST);
    }
    equal
}

/// A line that a search has found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    row: usize,
    cell: usize,
    pub(crate) slot: u32,
}

/// Why the entry of a key was not found by the first line with its bits in its home row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotUsual {
    /// The home row shows that the key is absent.
    Absent,
    /// The key may have another line, or its payload runs.
    Unknown,
}

/// A free cell in the home row of a key that is absent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vacancy {
    row: usize,
    cell: usize,
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
            let mut candidates = row.cells_with_bits(bits);
            while candidates != 0 {
                let slot = row.slots[first_cell(candidates)];
                if is_it(slot) {
                    return Some(slot);
                }
                candidates &= candidates - 1;
            }
            if row.passed() == 0 {
                break;
            }
            at = self.next(at);
        }
        None
    }

    /// Returns where the line of a key with these bits can be added, if the home row shows that the
    /// key is absent and has room. Nearly always it does, if the key is absent.
    #[inline(always)]
    pub(crate) fn vacancy(&self, bits: u32) -> Result<Vacancy, NotUsual> {
        let at = home(bits, self.rows.len());
        let Some(row) = self.rows.get(at) else {
            return Err(NotUsual::Absent);
        };
        if row.cells_with_bits(bits) != 0 || row.passed() > 0 {
            return Err(NotUsual::Unknown);
        }
        match row.free_cell() {
            Some(cell) if self.lines < self.limit => Ok(Vacancy { row: at, cell }),
            _ => Err(NotUsual::Absent),
        }
    }

    /// Returns the first line with these bits in their home row. That is nearly always the only
    /// one.
    #[inline(always)]
    pub(crate) fn first_at_home(&self, bits: u32) -> Result<Line, NotUsual> {
        let at = home(bits, self.rows.len());
        let Some(row) = self.rows.get(at) else {
            return Err(NotUsual::Absent);
        };
        let candidates = row.cells_with_bits(bits);
        if candidates == 0 {
            return Err(match row.passed() {
                0 => NotUsual::Absent,
                _ => NotUsual::Unknown,
            });
        }
        let cell = first_cell(candidates);
        Ok(Line {
            row: at,
            cell,
            slot: row.slots[cell],
        })
    }

    /// Reads the row in which a line with these bits usually is.
    #[inline]
    pub(super) fn prefetch(&self, bits: u32) -> u32 {
        let at = home(bits, self.rows.len());
        self.rows.get(at).map_or(0, |row| row.used())
    }

    /// Returns the slot of the line with these bits in their home row, or `NO_ENTRY` if there is
    /// none. If there are two, the number may be any slot, so the caller has to see whether the key
    /// is in it.
    ///
    /// A search finds out which cells are in use, and goes on in a loop. This takes fewer
    /// instructions, and no branch waits for the row. So more calls in a row overlap.
    #[inline(always)]
    pub(super) fn candidate(&self, bits: u32) -> u32 {
        let row = self.rows.get(home(bits, self.rows.len()));
        row.map_or(NO_ENTRY, |row| row.candidate(bits))
    }

    /// Returns the slot of the line with these bits in the rows behind their home row, or
    /// `NO_ENTRY`.
    pub(super) fn candidate_behind(&self, bits: u32) -> u32 {
        let mut at = home(bits, self.rows.len());
        while let Some(row) = self.rows.get(at)
            && row.passed() > 0
        {
            at = self.next(at);
            let candidate = self.rows[at].candidate(bits);
            if candidate != NO_ENTRY {
                return candidate;
            }
        }
        NO_ENTRY
    }

    /// Adds a line to a vacancy. No other line was added since, and `slot` must not be in another
    /// one (INDEX-4).
    #[inline(always)]
    pub(crate) fn fill(&mut self, vacancy: Vacancy, bits: u32, slot: u32) {
        self.lines += 1;
        self.rows[vacancy.row].fill(vacancy.cell, bits, slot);
    }

    /// Adds a line. `slot` must not be in another line (INDEX-4).
    #[inline(never)]
    pub(crate) fn insert(&mut self, bits: u32, slot: u32) {
        if self.lines == self.limit {
            self.grow();
        }
        self.lines += 1;
        put_line(&mut self.rows, bits, slot);
    }

    /// Removes the line of `slot`, if there is one.
    #[inline]
    pub(crate) fn remove(&mut self, bits: u32, slot: u32) {
        // Timers without a key have no lines.
        if self.lines > 0 {
            self.remove_slot(bits, slot);
        }
    }

    #[inline(never)]
    fn remove_slot(&mut self, bits: u32, slot: u32) {
        if let Some(line) = self.line_of(bits, slot) {
            self.remove_line(line, home(bits, self.rows.len()));
        }
    }

    /// Removes a line that was found in its home row.
    #[inline(always)]
    pub(crate) fn remove_at_home(&mut self, line: Line) {
        self.remove_line(line, line.row);
    }

    /// Removes a line that was found.
    #[inline(always)]
    fn remove_line(&mut self, line: Line, home: usize) {
        let row = &mut self.rows[line.row];
        row.clear(line.cell);
        self.lines -= 1;
        if row.passed() > 0 || line.row != home {
            self.close_gap(line.row, line.cell, home);
        }
    }

    /// Corrects the counts after a line with this home row was removed. A line that passed the
    /// freed cell moves up into it, and so on (INDEX-2).
    #[inline(never)]
    fn close_gap(&mut self, mut row: usize, mut cell: usize, home: usize) {
        self.count_back(home, row);
        while self.rows[row].passed() > 0 {
            let (from, lies) = self.one_that_passed(row);
            let behind = &mut self.rows[from];
            let (bits, slot) = (behind.bits[lies], behind.slots[lies]);
            behind.clear(lies);
            self.rows[row].fill(cell, bits, slot);
            self.count_back(row, from);
            (row, cell) = (from, lies);
        }
    }

    /// Lowers `passed` of the rows from `first` to before `end`, which a line no longer passes.
    fn count_back(&mut self, first: usize, end: usize) {
        let mut at = first;
        while at != end {
            *self.rows[at].passed_mut() -= 1;
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
                row.used() & bit(*cell) != 0 && way >= steps
            };
            if let Some(cell) = (0..CELLS).find(went_by) {
                return (at, cell);
            }
        }
        unreachable!("INDEX-1: a row that was passed has a line behind it")
    }

    /// Changes the slot in a line from `from` to `to`.
    pub(super) fn renumber(&mut self, bits: u32, from: u32, to: u32) {
        if let Some(line) = self.line_of(bits, from) {
            self.rows[line.row].slots[line.cell] = to;
        }
    }

    /// Returns the line of `slot`.
    #[inline]
    fn line_of(&self, bits: u32, slot: u32) -> Option<Line> {
        let mut at = home(bits, self.rows.len());
        while let Some(row) = self.rows.get(at) {
            let found = row.cells_with_slot(slot);
            if found != 0 {
                let cell = first_cell(found);
                return Some(Line {
                    row: at,
                    cell,
                    slot,
                });
            }
            if row.passed() == 0 {
                break;
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
            let mut used = row.used();
            while used != 0 {
                let cell = first_cell(used);
                put_line(&mut rehashed, row.bits[cell], row.slots[cell]);
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
fn put_line(rows: &mut [Row], bits: u32, slot: u32) {
    let count = rows.len();
    let mut at = home(bits, count);
    loop {
        let row = &mut rows[at];
        if let Some(cell) = row.free_cell() {
            return row.fill(cell, bits, slot);
        }
        *row.passed_mut() += 1;
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
