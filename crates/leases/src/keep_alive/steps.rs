//! Runs leases on the thread of a test.

use std::fmt;
use std::time::Duration;

use tourbillon::test_util::Stepped;
use tourbillon::{Clock, Handle, ManualClock, Scheduler, Time};

use super::build_error::BuildError;
use super::timer_key::TimerKey;

/// Drives [`Leases`](crate::Leases) or a [`KeepAlive`](super::KeepAlive) from the thread of a test.
///
/// Renewals, events and retries run on a manual clock and on the thread that calls
/// [`advance`](Self::advance), [`jump_to`](Self::jump_to) or [`settle`](Self::settle). With the
/// same seed they run in the same order again.
///
/// A call that [hangs](crate::Fault::Hang) in the background ends at its limit when the clock gets
/// there. [`stop`](crate::KeepGuard::stop) and the release of a lock do not wait for it. But a thread
/// that itself `wait()`s for a call that hangs, or for a lock that another owner holds, goes on only
/// if another thread moves the clock or heals the store.
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
/// let guard = leases.lock("report").at_once().wait()?;
/// steps.settle(); // what is due now
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
    ///     .build_stepped(1, async |batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
    /// let session = sessions.keep(7, Duration::from_secs(30))?;
    /// steps.advance(Duration::from_secs(60));
    /// assert!(session.is_kept() && session.renewals() > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn advance(&self, by: Duration) {
        self.stepped.advance(by);
    }

    /// Returns a future that drives the leases by the clock of the present tokio runtime, for tests
    /// under `#[tokio::test(start_paused = true)]`; needs the feature `tokio`. Spawn it, and await
    /// the calls of the leases as in production. While all tasks wait, tokio's clock jumps to the
    /// next deadline, whether it is one of tokio or one of the leases.
    ///
    /// From this call on the manual clock moves with tokio's clock, so a store on the same clock
    /// grants and ends its leases by it. Several `Leases` of one runtime, with a clock each, stand for
    /// several processes. Renewals and releases in the background are polled inside the poll of this
    /// future. One that is pending goes on when it is woken, and ends at its limit by tokio's clock. A
    /// paused clock jumps to that limit while all tasks wait, so a store that asks a server gets no
    /// time: use a [`MemoryStore`](crate::MemoryStore). A [`BlockingStore`](crate::BlockingStore) makes
    /// all calls of these leases in place, and blocks their tasks.
    ///
    /// Drop the future, or abort its task, to let the process stand still: nothing is renewed from
    /// then on, and waiting tasks of these leases are not woken.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside of a tokio runtime. The future panics in a runtime without
    /// timers.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "tokio")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use tourbillon::{Clock, ManualClock};
    /// use tourbillon_leases::{Fault, Leases, MemoryStore, StoreError};
    ///
    /// let clock = Clock::manual(&ManualClock::new());
    /// let store = MemoryStore::with_clock(clock.clone());
    /// let (leases, steps) = Leases::builder(store.clone()).clock(clock).build_stepped(1)?;
    /// tokio::spawn(steps.follow_tokio());
    ///
    /// let guard = leases.lock("report").await?;
    /// tokio::time::sleep(Duration::from_secs(3_600)).await;
    /// assert!(guard.is_held() && guard.renewals() > 0);
    /// store.inject(|_| Fault::Fail(StoreError::Unavailable("cut off".into())));
    /// guard.lost().await; // half a minute later, in no time
    /// assert!(!guard.is_held());
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "tokio"))]
    /// # fn main() {}
    /// ```
    #[cfg(feature = "tokio")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
    pub fn follow_tokio(self) -> impl Future<Output = ()> + Send + 'static {
        self.stepped.follow_tokio()
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
