//! Buffers that are given back after a peak.

use super::{Buffers, CoreWheel, Level};

impl CoreWheel {
    /// Gives memory back that is not needed for what is filed.
    pub(crate) fn shrink_to_fit(&mut self) {
        self.levels.iter_mut().for_each(Level::shrink_to_fit);
        if self.drain.live == 0 {
            self.drain.ids.shrink_to_fit();
        }
        self.far.shrink_to_fit();
        self.far_debt.shrink_to_fit();
        self.buffers = Buffers::default();
    }

    /// For how many numbers there is memory.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn room(&self) -> usize {
        let levels: usize = self.levels.iter().map(Level::room).sum();
        let lists = [&self.drain.ids, &self.far, &self.far_debt];
        let kept = self.buffers.spare.iter().chain(&self.buffers.reusable);
        levels
            + lists
                .into_iter()
                .chain(kept)
                .map(Vec::capacity)
                .sum::<usize>()
    }
}
