//! What the tickers note for `health` and `dump`, in each step and not for each timer.

use crate::executor::OldTickets;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::tick::Time;

/// The signs of life of one ticker.
#[derive(Debug)]
pub(super) struct LifeSigns {
    /// When it took its last step. Before the first one, when the engine was built.
    stepped: AtomicU64,
    /// What its last look at the pool has found. The lock is a leaf, held for a copy.
    old_tickets: Mutex<Option<OldTickets>>,
}

impl LifeSigns {
    pub(super) fn new(now: Time) -> Self {
        LifeSigns {
            stepped: AtomicU64::new(now.as_nanos()),
            old_tickets: Mutex::new(None),
        }
    }

    #[inline]
    pub(super) fn steps(&self, now: Time) {
        // Relaxed: only read for people and probes. Only the ticker writes it.
        self.stepped.store(now.as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn stepped(&self) -> Time {
        // Relaxed: as above.
        Time::from_nanos(self.stepped.load(Ordering::Relaxed))
    }

    pub(super) fn finds(&self, old_tickets: Option<OldTickets>) {
        *self.old_tickets.lock() = old_tickets;
    }

    pub(super) fn found(&self) -> Option<OldTickets> {
        *self.old_tickets.lock()
    }
}
