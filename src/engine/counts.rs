//! What is counted in the stripes, summed up.

use super::{Engine, Frontend};
use crate::stats::LatenessSums;

impl<F: Frontend> Engine<F> {
    /// Counts the armings that have not started. Locks one stripe after the other, so the result is
    /// no snapshot.
    pub(crate) fn pending(&self) -> usize {
        self.stripes_of(None)
            .map(|stripe| {
                self.shards
                    .peek(stripe, |stripe| stripe.counters().pending as usize)
            })
            .sum()
    }

    /// Returns whether no arming is pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.stripes_of(None)
            .all(|stripe| (self.shards).peek(stripe, |stripe| stripe.counters().pending == 0))
    }

    /// Merges the lateness of all stripes of one shard, or of all shards.
    pub(crate) fn latenesses(&self, shard: Option<usize>) -> LatenessSums {
        let mut sum = LatenessSums::new();
        for stripe in self.stripes_of(shard) {
            self.shards.peek(stripe, |stripe| {
                if let Some(lateness) = stripe.lateness() {
                    sum.add(lateness);
                }
            });
        }
        sum
    }
}
