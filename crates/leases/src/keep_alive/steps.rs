//! Runs leases on the thread of a test.

use std::fmt;
use std::time::Duration;

use tourbillon::test_util::Stepped;
use tourbillon::{Clock, Handle, ManualClock, Scheduler, Time};

use super::build_error::BuildError;
use super::timers::TimerKey;

/// Drives [`Leases`](crate::Leases) or a [`KeepAlive`](super::KeepAlive) from the thread of a test.
///
/// Renewals, events and retries run on a manual clock and on the thread that calls
/// [`advance`](Self::advance), [`jump_to`](Self::jump_to) or [`settle`](Self::settle). With the
/// same seed they run in the same order again.
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

    /// Returns the present moment of the clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.stepped.now()
    }

    /// Returns the manual clock.
    #[must_use]
    pub fn clock(&self) -> ManualClock {
        self.stepped.clock()
    }

    /// Advances the clock by `by`, and stops at every moment at which something is due.
    ///
    /// # Panics
    ///
    /// Panics if it is called from something that it runs.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon_leases::{KeepAlive, Outcome};
    ///
    /// let (sessions, steps) = KeepAlive::<u64>::builder()
    ///     .build_stepped(1, |batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
    /// let session = sessions.keep(7, Duration::from_secs(30))?;
    /// steps.advance(Duration::from_secs(60));
    /// assert!(session.is_kept() && session.renewals() > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn advance(&self, by: Duration) {
        self.stepped.advance(by);
    }

    /// Sets the clock to `to` without stopping in between, as if the process had been paused, and
    /// runs everything that is due.
    ///
    /// # Panics
    ///
    /// Panics if it is called from something that it runs.
    pub fn jump_to(&self, to: Time) {
        self.stepped.jump_to(to);
    }

    /// Runs everything that is due now.
    ///
    /// # Panics
    ///
    /// Panics if it is called from something that it runs.
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
