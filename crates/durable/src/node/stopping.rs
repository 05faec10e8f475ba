//! The end of a node.

use std::time::Duration;

use super::interface::{Mono, Stopped};

/// A node that takes no more timers. It waits for its runs up to the grace, lets the store know
/// their ends, and leaves.
#[derive(Debug)]
pub(super) struct Stopping {
    /// When runs are no longer waited for.
    pub(super) grace_end: Mono,
    /// When the store is no longer waited for.
    pub(super) last: Mono,
    pub(super) stopped: Stopped,
    /// Whether the others know that the node handles no queue any more.
    pub(super) resigned: bool,
    pub(super) left: bool,
}

impl Stopping {
    pub(super) fn new(now: Mono, grace: Duration, extra: Duration) -> Self {
        let grace_end = now.saturating_add(grace);
        Stopping {
            grace_end,
            last: grace_end.saturating_add(extra),
            stopped: Stopped::default(),
            resigned: false,
            left: false,
        }
    }

    /// A second stop may only shorten the grace.
    pub(super) fn hurry(&mut self, now: Mono, grace: Duration, extra: Duration) {
        let other = Stopping::new(now, grace, extra);
        self.grace_end = self.grace_end.min(other.grace_end);
        self.last = self.last.min(other.last);
    }
}
