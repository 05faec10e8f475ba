//! Returning rows after a peak.

use super::{Index, limit_of, more_than};

impl Index {
    /// Returns rows that the lines do not need.
    pub(crate) fn shrink_to_fit(&mut self) {
        // The number of rows that growing would have chosen for these lines.
        let mut rows = 0;
        while limit_of(rows) < self.lines as usize {
            rows = more_than(rows);
        }
        if rows < self.rows.len() {
            self.rehash(rows);
        }
    }

    /// Returns the number of rows.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }
}
