//! Options of a watchdog.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use tourbillon::Clock;

use super::super::build_error::BuildError;
use super::super::store::{Destination, Outcome, StoreError};
use super::cadence;
use super::events::{Callback, Event, EventSink};
use super::renewal_loop::{Parts, Renew, RenewalLoop, Where};
use super::timers::Timers;
use super::{Batch, KeepAlive};
use crate::sync::Arc;

/// More would hold up a server that does one thing at a time.
const BATCH: usize = 100;

/// Options of a [`KeepAlive`].
#[must_use = "a builder does nothing until `build`"]
pub struct KeepAliveBuilder<K> {
    clock: Option<Clock>,
    most: usize,
    margin: Option<Duration>,
    alarm_after: Option<u64>,
    destination: Box<Where<K>>,
    callback: Option<Box<Callback<K>>>,
}

impl<K: Clone + Send + Sync + 'static> KeepAliveBuilder<K> {
    pub(super) fn new() -> Self {
        KeepAliveBuilder {
            clock: None,
            most: BATCH,
            margin: None,
            alarm_after: None,
            destination: Box::new(|_| Destination::default()),
            callback: None,
        }
    }

    /// What tells the time. By default [`Clock::boottime`], which goes on while the machine is
    /// suspended.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// How many keys are renewed by one call at most; 100 by default.
    pub fn batch(mut self, most: usize) -> Self {
        self.most = most;
        self
    }

    /// How much earlier than by the backend a lease ends by the local clock, for what the two clocks
    /// may drift apart during a lease. By default a hundredth of the lease and 2 ms. A lease has to
    /// be three times as long at least.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    /// The shortest lease that can be kept.
    pub(in super::super) fn least(&self) -> Duration {
        cadence::shortest(self.margin)
    }

    /// Tells [`What::HeldLong`](super::What::HeldLong) when something was renewed as often as this.
    pub fn alarm_after(mut self, renewals: u64) -> Self {
        self.alarm_after = Some(renewals);
        self
    }

    /// Which destination a key belongs to; one for all by default. It runs on the thread that keeps
    /// the key.
    pub fn destination(mut self, of: impl Fn(&K) -> Destination + Send + Sync + 'static) -> Self {
        self.destination = Box::new(of);
        self
    }

    /// Is told of every event, on threads of its own: it may block, and panic. The events of one
    /// generation come one after the other; while one of them hangs, 64 of its later ones are kept,
    /// and the loss in any case, while the watchdog lives. Those of others go on, as long as no more
    /// than 15 hang.
    pub fn on_event(mut self, tell: impl Fn(&Event<K>) + Send + Sync + 'static) -> Self {
        self.callback = Some(Box::new(tell));
        self
    }

    /// Makes it. `renew` gets what is due together, and answers with an outcome for each, in that
    /// order. After [`StoreError::Refused`], or a panic, each is tried alone. No thread starts yet.
    ///
    /// # Errors
    ///
    /// [`BuildError`] names the value that can't be.
    pub fn build<F>(self, renew: F) -> Result<KeepAlive<K>, BuildError>
    where
        F: Fn(&Batch<'_, K>) -> Result<Vec<Outcome>, StoreError> + Send + Sync + 'static,
    {
        let clock = self.clock.clone().unwrap_or_else(Clock::boottime);
        let timers = Timers::new(clock, self.callback.is_some());
        self.assemble(Arc::new(timers), Box::new(renew), random())
    }

    /// Makes one without threads, which `steps` drive from the thread of a test. `seed` decides how
    /// things interleave, and the jitter.
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build).
    #[cfg(any(test, feature = "test-util"))]
    pub fn build_stepped<F>(
        self,
        seed: u64,
        renew: F,
    ) -> Result<(KeepAlive<K>, super::Steps), BuildError>
    where
        F: Fn(&Batch<'_, K>) -> Result<Vec<Outcome>, StoreError> + Send + Sync + 'static,
    {
        let hand = self.clock.as_ref().and_then(Clock::as_manual);
        let steps = super::Steps::new(hand, seed)?;
        let timers = Timers::stepped(Clock::manual(&steps.clock()), steps.handle());
        Ok((
            self.assemble(Arc::new(timers), Box::new(renew), seed)?,
            steps,
        ))
    }

    fn assemble(
        self,
        timers: Arc<Timers>,
        renew: Box<Renew<K>>,
        seed: u64,
    ) -> Result<KeepAlive<K>, BuildError> {
        if self.most == 0 {
            return Err(BuildError::Batch);
        }
        let renewal_loop = RenewalLoop::new(Parts {
            timers,
            events: Arc::new(EventSink::new(self.callback)),
            renew,
            destination: self.destination,
            most: self.most,
            margin: self.margin,
            alarm_after: self.alarm_after,
            seed,
        });
        Ok(KeepAlive {
            renewal_loop: Arc::new(renewal_loop),
        })
    }
}

/// Of the operating system's, through std's hasher.
pub(in super::super) fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

impl<K> fmt::Debug for KeepAliveBuilder<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchdogBuilder")
            .field("clock", &self.clock)
            .field("batch", &self.most)
            .field("margin", &self.margin)
            .field("alarm_after", &self.alarm_after)
            .finish_non_exhaustive()
    }
}
