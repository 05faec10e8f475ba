//! How many tickets of one shard nobody has claimed, and the bound at which its ticker stops
//! collecting.
//!
//! The ticker stalls at the bound: what else is due waits in the wheel, where cancel and touch are
//! ordinary. The claim that brings the number down to half of the bound rings the doorbell.
//!
//! ```text
//! ticker (stalled)                         worker
//!  promise                                  unclaimed -= 1; came to half of the bound:
//!  fence(SeqCst)                            fence(SeqCst), read promise, ring
//!  unclaimed <= half: do not sleep
//! ```
//!
//! The doorbell's argument holds: either the worker sees the promise, or the ticker, in its last
//! step, sees the number. Between half and the bound the ticker may sleep, since the claim that
//! comes to half is still ahead.

use super::doorbell::Doorbell;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::tick::Time;

/// The count and its bound.
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

    /// Tickets are about to be handed over. Before the hand-over, so that the count is never below
    /// the truth.
    pub(crate) fn issue(&self, tickets: usize) {
        // Relaxed: whoever sleeps on it looks after a fence (doorbell).
        self.unclaimed.fetch_add(tickets, Ordering::Relaxed);
    }

    /// A ticket came back: claimed, or given back.
    pub(crate) fn claimed(&self, bell: &Doorbell) {
        // Relaxed: the fence in `ring_for` orders it before the look at the promise.
        let before = self.unclaimed.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a ticket is claimed once");
        if before == self.bound / 2 + 1 {
            bell.ring_for(Time::ZERO);
        }
    }

    /// How many tickets the ticker may issue now.
    pub(crate) fn room(&self) -> usize {
        self.bound.saturating_sub(self.unclaimed())
    }

    /// Whether a stalled ticker should go on instead of sleeping.
    pub(crate) fn recovered(&self) -> bool {
        self.unclaimed() <= self.bound / 2
    }

    pub(crate) fn unclaimed(&self) -> usize {
        // Relaxed: see `issue`.
        self.unclaimed.load(Ordering::Relaxed)
    }
}
