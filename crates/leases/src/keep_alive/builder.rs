//! The options of a `KeepAlive`.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use tourbillon::metrics::nameless;
use tourbillon::{Clock, Runtime};

use super::build_error::BuildError;
use super::cadence;
#[cfg(feature = "tracing")]
use super::events::Trace;
use super::events::{Callback, Event, EventSink};
use super::renewal_loop::{Parts, Renew, RenewalLoop, Where};
use super::timers::{RunsOn, Timers};
use super::{Batch, KeepAlive};
use crate::store::{Destination, Outcome, StoreError};
use crate::sync::Arc;

/// The default size of a batch. A larger batch would hold up a server that executes one command at
/// a time.
const BATCH: usize = 100;

/// Builds a [`KeepAlive`] from its options.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::Clock;
/// use tourbillon_leases::{Destination, KeepAlive, Outcome};
///
/// let sessions = KeepAlive::<u64>::builder()
///     .name("sessions")
///     .batch(20)
///     .margin(Duration::from_millis(500))
///     .clock(Clock::boottime()) // the default
///     .destination(|session| Destination::new(session % 4)) // one of four peers
///     .alarm_after(10_000)
///     .on_event(|event| println!("{}: {}", event.key, event.what))
///     .build(|batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct KeepAliveBuilder<K> {
    clock: Option<Clock>,
    most: usize,
    margin: Option<Duration>,
    alarm_after: Option<u64>,
    destination: Box<Where<K>>,
    callback: Option<Box<Callback<K>>>,
    #[cfg(feature = "tracing")]
    trace: Trace<K>,
    name: Option<String>,
    runs_on: RunsOn,
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
            #[cfg(feature = "tracing")]
            trace: |event| super::trace::unnamed(&event.what),
            name: None,
            runs_on: RunsOn::default(),
        }
    }

    /// Sets the clock. The default is [`Clock::boottime`], which goes on while the machine is
    /// suspended.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets the name by which metrics tell this `KeepAlive` from others: the value of their label
    /// `name`. By default it is a number that no other instance of this process has.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Runs on the threads of `runtime`, which others may share. The default is the runtime of the
    /// process, or [`own_threads`](Self::own_threads) with a manual clock.
    ///
    /// A call of the renewal function occupies a worker, also while it hangs. So the
    /// [`max_workers`](tourbillon::RuntimeBuilder::max_workers) of the runtime should be more than
    /// the number of calls that may hang, and of other tasks that may block, at one time.
    ///
    /// If the runtime was shut down, [`KeepAlive::keep`] fails with
    /// [`KeepError::Runtime`](super::KeepError::Runtime).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::Runtime;
    /// use tourbillon_leases::{KeepAlive, Outcome};
    ///
    /// let runtime = Runtime::builder().tickers(1).workers(2).build()?;
    /// let sessions = KeepAlive::<u64>::builder()
    ///     .runtime(&runtime)
    ///     .build(|batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
    /// let session = sessions.keep(7, Duration::from_secs(30))?;
    /// // One for the renewals, and one for other calls in the background.
    /// assert_eq!(runtime.stats().instances, 2);
    /// # drop(session);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn runtime(mut self, runtime: &Runtime) -> Self {
        self.runs_on = RunsOn::Runtime(runtime.clone());
        self
    }

    /// Runs on threads of its own: five, two more with a callback, and more while calls block.
    /// They end with the `KeepAlive`, and with calls that hang. So renewals go on even where other
    /// tasks block all workers of a runtime and the system refuses a thread.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{KeepAlive, Outcome};
    ///
    /// let sessions = KeepAlive::<u64>::builder()
    ///     .own_threads()
    ///     .build(|batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
    /// # drop(sessions);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn own_threads(mut self) -> Self {
        self.runs_on = RunsOn::Own;
        self
    }

    /// Sets the greatest number of keys that one call renews. The default is 100.
    pub fn batch(mut self, most: usize) -> Self {
        self.most = most;
        self
    }

    /// Sets how much earlier a lease ends by the local clock than by the backend's clock.
    ///
    /// The margin covers the drift between the two clocks during one lease. The default is a
    /// hundredth of the lease plus 2 ms. If a margin is set, a lease must be at least three times
    /// as long.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    /// Returns the shortest lease that can be kept.
    pub(in super::super) fn least(&self) -> Duration {
        cadence::shortest(self.margin)
    }

    /// Requests the event [`What::HeldLong`](super::What::HeldLong) when a key has been renewed
    /// `renewals` times. By default there is no such event.
    pub fn alarm_after(mut self, renewals: u64) -> Self {
        self.alarm_after = Some(renewals);
        self
    }

    /// Sets the function that returns the destination of a key. By default all keys belong to one
    /// destination. The function runs on the thread that calls [`KeepAlive::keep`].
    pub fn destination(mut self, of: impl Fn(&K) -> Destination + Send + Sync + 'static) -> Self {
        self.destination = Box::new(of);
        self
    }

    /// Sets a callback that is called with every event. Renewals do not wait for it, so it may
    /// block or panic.
    ///
    /// - The callback gets the events of one registration in order, one at a time.
    /// - While a call hangs, up to 64 later events of the same registration wait, and up to 65,536
    ///   of all registrations. The loss always has a place. Events wait only while the `KeepAlive`
    ///   lives.
    /// - The events of other registrations go on while at most 15 calls hang.
    pub fn on_event(mut self, tell: impl Fn(&Event<K>) + Send + Sync + 'static) -> Self {
        self.callback = Some(Box::new(tell));
        self
    }

    /// Sets how warnings show a key.
    #[cfg(feature = "tracing")]
    pub(crate) fn traced(mut self, trace: Trace<K>) -> Self {
        self.trace = trace;
        self
    }

    /// Builds the [`KeepAlive`]. No thread starts yet.
    ///
    /// `renew` gets the keys that are due together and returns one outcome for each of them, in the
    /// same order. If it returns [`StoreError::Refused`] or panics, each key is tried alone.
    ///
    /// # Errors
    ///
    /// [`BuildError`] names the option that is out of range.
    pub fn build<F>(self, renew: F) -> Result<KeepAlive<K>, BuildError>
    where
        F: Fn(&Batch<'_, K>) -> Result<Vec<Outcome>, StoreError> + Send + Sync + 'static,
    {
        let clock = self.clock.clone().unwrap_or_else(Clock::boottime);
        let callbacks = self.callback.is_some();
        // A subscriber is told where callbacks run.
        #[cfg(feature = "tracing")]
        let callbacks = callbacks || super::trace::hears();
        let timers = Timers::new(clock, self.runs_on.clone(), callbacks);
        self.assemble(Arc::new(timers), Box::new(renew), random())
    }

    /// Builds a [`KeepAlive`] without threads, which a test drives by the returned
    /// [`Steps`](super::Steps). `seed` decides the order of concurrent work and the jitter.
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build).
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
    /// steps.advance(Duration::from_secs(300));
    /// assert!(session.is_kept() && session.renewals() >= 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(any(test, feature = "test-util"))]
    pub fn build_stepped<F>(
        self,
        seed: u64,
        renew: F,
    ) -> Result<(KeepAlive<K>, super::Steps), BuildError>
    where
        F: Fn(&Batch<'_, K>) -> Result<Vec<Outcome>, StoreError> + Send + Sync + 'static,
    {
        // A manual clock that was set is the one that the steps move. Otherwise they make one.
        let hand = self.clock.as_ref().and_then(Clock::as_manual);
        let steps = super::Steps::new(hand, seed)?;
        let timers = Timers::stepped(Clock::manual(&steps.clock()), steps.handle());
        Ok((
            self.assemble(Arc::new(timers), Box::new(renew), seed)?,
            steps,
        ))
    }

    /// Checks the options and puts the parts together.
    fn assemble(
        self,
        timers: Arc<Timers>,
        renew: Box<Renew<K>>,
        seed: u64,
    ) -> Result<KeepAlive<K>, BuildError> {
        if self.most == 0 {
            return Err(BuildError::Batch);
        }
        let events = EventSink::new(self.callback);
        #[cfg(feature = "tracing")]
        let events = events.traced(super::trace::hears().then_some(self.trace));
        let renewal_loop = RenewalLoop::new(Parts {
            timers,
            events: Arc::new(events),
            renew,
            destination: self.destination,
            most: self.most,
            margin: self.margin,
            alarm_after: self.alarm_after,
            seed,
            source: self.name.clone(),
            name: self.name.unwrap_or_else(nameless),
        });
        Ok(KeepAlive {
            renewal_loop: Arc::new(renewal_loop),
        })
    }
}

/// Returns a random number. The standard library seeds its hasher from the operating system.
pub(in super::super) fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

impl<K> fmt::Debug for KeepAliveBuilder<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeepAliveBuilder")
            .field("clock", &self.clock)
            .field("batch", &self.most)
            .field("margin", &self.margin)
            .field("alarm_after", &self.alarm_after)
            .field("runs_on", &self.runs_on)
            .finish_non_exhaustive()
    }
}
