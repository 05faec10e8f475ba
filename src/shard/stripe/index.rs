//! The index of a stripe: from hash bits to slot numbers. The keys lie in the entries, so a lookup
//! asks its caller whether a slot is the one it means.
//!
//! ```text
//!  bits --multiply, shift--> home row --passed > 0--> next row --passed > 0--> ..
//!
//!  row, one cache line:  | 7 x bits | used, a bitmap | 7 x slot | passed |
//! ```
//!
//! A line (bits and slot) lies in the first row with room, from its home row on; the row after the
//! last is the first. `passed` counts the lines that went by a row because it was full, as in
//! Folly's F14: a lookup goes on only where somebody went on before it. So nearly every lookup,
//! vain ones too, reads one cache line, where control bytes beside their cells cost two. Removing
//! counts the way back down: there are no tombstones, and no line ever moves but in a rehash.
//!
//! A home row is the upper half of bits times rows. So a table may have any number of rows; and
//! since home rows come in the order of the bits, a rehash reads the old rows and writes the new
//! ones from front to back. It reads no entry, because a line has its bits.
//!
//! Invariants:
//!
//! - **I1** `passed` of a row is the number of lines that lie behind it on the way from their home.
//!   No line comes by a row twice, and there are fewer lines than `u32` has numbers: it can't wrap.
//! - **I2** A line's way is without a gap: rows that it went by were full then, and count it.
//! - **I3** `limit` is at most the number of cells, and the number of lines at most `limit`.
//! - **I4** No slot is in two lines.
//!
//! The caller's question is user code and may panic. It is asked in [`Index::find`] alone, which
//! changes nothing; the others go by number.

/// Cells of a row: with 8 bytes each, the bitmap and the counter they fill a cache line.
const CELLS: usize = 7;

/// A row in the order in which a lookup reads it.
#[derive(Clone)]
#[repr(C, align(64))]
struct Row {
    bits: [u32; CELLS],
    /// Bit *c* is set if cell *c* holds a line.
    used: u32,
    slots: [u32; CELLS],
    /// I1.
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

    /// The used cells in which `values`, the bits or the slots of this row, are `wanted`. Without
    /// branches, so that the compiler compares all of them at once.
    #[inline]
    fn cells_with(&self, values: &[u32; CELLS], wanted: u32) -> u32 {
        let mut found = 0;
        for (cell, value) in values.iter().enumerate() {
            found |= u32::from(*value == wanted) << cell;
        }
        found & self.used
    }

    /// Puts the line into a cell, if there is room.
    fn put(&mut self, bits: u32, slot: u32) -> bool {
        let cell = (!self.used).trailing_zeros() as usize;
        if cell >= CELLS {
            return false;
        }
        self.bits[cell] = bits;
        self.slots[cell] = slot;
        self.used |= 1 << cell;
        true
    }
}

#[derive(Default)]
pub(super) struct Index {
    rows: Box<[Row]>,
    lines: usize,
    /// I3. With this many lines the next one brings more rows.
    limit: usize,
}

impl Index {
    /// Nothing is allocated for an empty index: most stripes of a small scheduler stay so.
    pub(super) fn new() -> Self {
        Index::default()
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn is_empty(&self) -> bool {
        self.lines == 0
    }

    /// The slot with these bits that `is_it` says is the one.
    #[inline]
    pub(super) fn find(&self, bits: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = home(bits, self.rows.len());
        // A bound is needed: in a small table every row may have been passed.
        for _ in 0..self.rows.len() {
            let row = &self.rows[at];
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

    /// Adds a line. `slot` must not be in one (I4).
    pub(super) fn insert(&mut self, bits: u32, slot: u32) {
        if self.lines == self.limit {
            self.grow();
        }
        self.lines += 1;
        place(&mut self.rows, bits, slot);
    }

    /// Takes the line of `slot` out, if there is one.
    pub(super) fn remove(&mut self, bits: u32, slot: u32) {
        let Some((lies, cell)) = self.position(bits, slot) else {
            return;
        };
        self.rows[lies].used &= !(1 << cell);
        self.lines -= 1;
        let mut at = home(bits, self.rows.len());
        while at != lies {
            self.rows[at].passed -= 1;
            at = self.next(at);
        }
    }

    /// The key in slot `from` is in slot `to` now.
    pub(super) fn renumber(&mut self, bits: u32, from: u32, to: u32) {
        if let Some((row, cell)) = self.position(bits, from) {
            self.rows[row].slots[cell] = to;
        }
    }

    /// Row and cell of the line of `slot`.
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

    /// A table emptied after a peak keeps its rows: what was needed once may be needed again.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let rows = more_than(self.rows.len());
        let mut grown = vec![Row::EMPTY; rows].into_boxed_slice();
        for row in &self.rows {
            let mut used = row.used;
            while used != 0 {
                let cell = used.trailing_zeros() as usize;
                place(&mut grown, row.bits[cell], row.slots[cell]);
                used &= used - 1;
            }
        }
        self.rows = grown;
        self.limit = limit_of(rows);
    }
}

/// Where the way of a line begins. With no rows it is 0, which is no row.
#[inline]
fn home(bits: u32, rows: usize) -> usize {
    ((u64::from(bits) * rows as u64) >> 32) as usize
}

#[inline]
fn after(row: usize, rows: usize) -> usize {
    if row + 1 == rows { 0 } else { row + 1 }
}

/// Puts a line into the first row with room: there is one, by I3.
#[inline]
fn place(rows: &mut [Row], bits: u32, slot: u32) {
    let count = rows.len();
    let mut at = home(bits, count);
    while !rows[at].put(bits, slot) {
        rows[at].passed += 1;
        at = after(at, count);
    }
}

/// The number of rows that follows on `rows`.
fn more_than(rows: usize) -> usize {
    match rows {
        0 => 1,
        1..4 => rows * 2,
        _ => rows + rows / 2,
    }
}

/// How many lines so many rows hold before there are more: 6 in 7, and all in the first row.
fn limit_of(rows: usize) -> usize {
    if rows == 1 { CELLS } else { rows * 6 }
}
