//! The doorbell of the store: which queues rang, and when a poll may answer.

use std::collections::BTreeSet;
use std::time::Duration;

use super::interface::Mono;

/// The least time between two polls that rings have caused. So a storm of rings costs 50 polls a
/// second at most, and a ring waits for 20 ms at most while the store answers.
const SPAN: Duration = Duration::from_millis(20);

/// Bounds how often rings cause polls.
#[derive(Debug, Default)]
pub(super) struct RingThrottle {
    /// The queues that rang since the last poll of them was sent.
    rung: BTreeSet<usize>,
    /// From when on a poll may answer.
    free_at: Mono,
}

impl RingThrottle {
    pub(super) fn ring(&mut self, queue: usize) {
        self.rung.insert(queue);
    }

    /// When the rings are to be answered. `None` if there are none.
    pub(super) fn next(&self) -> Option<Mono> {
        (!self.rung.is_empty()).then_some(self.free_at)
    }

    /// A poll is sent. Returns the queues that rang.
    pub(super) fn answer(&mut self, now: Mono) -> BTreeSet<usize> {
        if !self.rung.is_empty() {
            self.free_at = now + SPAN;
        }
        std::mem::take(&mut self.rung)
    }
}
