//! Rows that are given back after a peak.

use super::{Index, limit_of, more_than};

impl Index {
    /// Gives rows back that the lines do not need.
    pub(crate) fn shrink_to_fit(&mut self) {
        let mut rows = 0;
        while limit_of(rows) < self.lines as usize {
            rows = more_than(rows);
        }
        if rows < self.rows.len() {
            self.rehash(rows);
        }
    }

    /// How many rows there are.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }
}
