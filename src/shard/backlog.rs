//! The number of unclaimed tickets of one shard, and the bound at which its ticker stops
//! collecting.
//!
//! The ticker stalls at the bound. Further due entries wait in the wheel, where they can still be
//! cancelled and moved like any pending entry. The claim that lowers the number to half of the
//! bound rings the doorbell.
//!
//! ```text
//! ticker (stalled)                         worker
//!  promise                                  unclaimed -= 1; came to half of the bound:
//!  fence(SeqCst)                            fence(SeqCst), read promise, ring
//!  unclaimed <= half: do not sleep
//! ```
//!
//! The argument of `doorbell.rs` applies: either the worker sees the promise, or the ticker sees
//! the number in its last step. While the number is between half of the bound and the bound, the
//! ticker may sleep, because the claim that reaches half is still to come.

use super::doorbell::Doorbell;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::tick::Time;

/// The number of unclaimed tickets of one shard, and its bound.
#[derive(Debug)]
pub(crate) struct Backlog {
    unclaimed: AtomicUsize,
    bound: usize,
}

impl Backlog {
    pub(crate) fn new(bound: usize) -> Self {
        assert!(bound >= 2, "a backlog has room for two tickets");
        Backlog {
            unclaimed: AtomicUsize::new(0),
            bound,
        }
    }

    /// Counts tickets that are about to be handed over. The count is raised before the hand-over,
    /// so that it is never below the truth.
    pub(crate) fn issue(&self, tickets: usize) {
        // Relaxed: a ticker that is going to sleep reads it after the doorbell's fence.
        self.unclaimed.fetch_add(tickets, Ordering::Relaxed);
    }

    /// Counts down for a ticket that was claimed or given back, and rings at half of the bound.
    #[inline]
    pub(crate) fn claimed(&self, bell: &Doorbell) {
        // Relaxed: the fence in `ring_for` orders it before the read of the promise.
        let before = self.unclaimed.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a ticket is claimed exactly once");
        // Only the claim that reaches half rings, so a shard that stays below half pays for no
        // fence.
        if before == self.bound / 2 + 1 {
            bell.ring_for(Time::ZERO);
        }
    }

    /// Returns how many tickets the ticker may issue now.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.bound.saturating_sub(self.unclaimed())
    }

    /// Returns whether a stalled ticker should go on instead of sleeping.
    pub(crate) fn recovered(&self) -> bool {
        self.unclaimed() <= self.bound / 2
    }

    /// Returns the number of unclaimed tickets.
    #[inline]
    pub(crate) fn unclaimed(&self) -> usize {
        // Relaxed: see `issue`.
        self.unclaimed.load(Ordering::Relaxed)
    }
}
