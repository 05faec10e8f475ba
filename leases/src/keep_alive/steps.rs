//! Leases that a test drives from its own thread.

use std::fmt;
use std::time::Duration;

use tourbillon::test_util::Stepped;
use tourbillon::{Clock, Handle, ManualClock, Scheduler, Time};

use super::super::build_error::BuildError;
use super::timers::TimerKey;

/// Drives [`Leases`](crate::Leases) or a [`KeepAlive`](super::Watchdog) that was built stepped:
/// renewals, events and retries run in [`advance`](Self::advance) and its siblings, on the calling
/// thread, on a manual clock, and the same way again with the same seed.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_leases::{Leases, MemoryStore};
/// use tourbillon::{Clock, ManualClock};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let hand = ManualClock::new();
/// let clock = Clock::manual(&hand);
/// let store = MemoryStore::with_clock(clock.clone());
/// let (leases, steps) = Leases::builder(store).clock(clock).build_stepped(1)?;
/// let guard = leases.try_lock("report")?;
/// steps.advance(Duration::from_secs(300));
/// assert!(guard.is_held());
/// steps.jump_to(steps.now() + Duration::from_secs(31)); // the process stands still
/// assert!(!guard.is_held());
/// # Ok(())
/// # }
/// ```
pub struct Steps {
    stepped: Stepped<TimerKey>,
}

impl Steps {
    pub(super) fn new(hand: Option<ManualClock>, seed: u64) -> Result<Self, BuildError> {
        let hand = hand.unwrap_or_default();
        let stepped = Scheduler::builder()
            .shards(1)
            .stripes(1)
            .workers(2)
            .clock(Clock::manual(&hand))
            .build_stepped(seed)?;
        Ok(Steps { stepped })
    }

    pub(super) fn handle(&self) -> Handle<TimerKey> {
        self.stepped.handle()
    }

    /// The moment that the clock shows.
    #[must_use]
    pub fn now(&self) -> Time {
        self.stepped.now()
    }

    /// The hand of the clock.
    #[must_use]
    pub fn clock(&self) -> ManualClock {
        self.stepped.clock()
    }

    /// Lets `by` pass, stopping at every moment at which something is due.
    ///
    /// # Panics
    ///
    /// From inside of what runs in here.
    pub fn advance(&self, by: Duration) {
        self.stepped.advance(by);
    }

    /// Sets the clock to `to` without stopping in between, as if the process had stood still, and
    /// runs what is due.
    ///
    /// # Panics
    ///
    /// From inside of what runs in here.
    pub fn jump_to(&self, to: Time) {
        self.stepped.jump_to(to);
    }

    /// Runs what is due at this moment.
    ///
    /// # Panics
    ///
    /// From inside of what runs in here.
    pub fn settle(&self) {
        self.stepped.settle();
    }
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps")
            .field("now", &self.now())
            .finish_non_exhaustive()
    }
}
