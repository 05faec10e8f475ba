//! The options of a `KeepAlive`.

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use tourbillon::metrics::nameless;
use tourbillon::{Clock, Runtime};

use super::KeepAlive;
use super::batch::Batch;
use super::build_error::BuildError;
use super::cadence;
#[cfg(feature = "tracing")]
use super::events::Trace;
use super::events::{Callback, Event, EventSink};
use super::renewal_loop::{Parts, RenewalLoop, Where};
use super::timers::{RunsOn, Timers};
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
///     .build(async |batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
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
    /// The future of a renewal occupies a worker only while it is polled. So the
    /// [`max_workers`](tourbillon::RuntimeBuilder::max_workers) of the runtime should be more than
    /// the number of other tasks that may block at one time.
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
    ///     .build(async |batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
    /// let session = sessions.keep(7, Duration::from_secs(30))?;
    /// assert_eq!(runtime.stats().instances, 1);
    /// # drop(session);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn runtime(mut self, runtime: &Runtime) -> Self {
        self.runs_on = RunsOn::Runtime(runtime.clone());
        self
    }

    /// Runs on threads of its own: three, two more with a callback, and more while callbacks block.
    /// They end with the `KeepAlive`. A thread whose callback hangs ends after that callback. So
    /// renewals go on even if other tasks block all workers of a runtime and the system refuses a
    /// thread.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{KeepAlive, Outcome};
    ///
    /// let sessions = KeepAlive::<u64>::builder()
    ///     .own_threads()
    ///     .build(async |batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
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
    /// `renew` gets the keys that are due together, and its future returns one outcome for each of
    /// them, in the same order. If the future returns [`StoreError::Refused`] or panics, each key is
    /// tried alone. At the [limit](Batch::limit) of the call, by the clock of the `KeepAlive`, the
    /// future is dropped.
    ///
    /// Workers poll the future, so its polls must not block. Wrap a function that blocks in
    /// [`blocking`](super::blocking). If a client needs a tokio runtime, call the client in a task of
    /// that runtime, and let the future await the `JoinHandle` of the task.
    ///
    /// # Errors
    ///
    /// [`BuildError`] names the option that is out of range.
    pub fn build<F, R>(self, renew: F) -> Result<KeepAlive<K>, BuildError>
    where
        F: Fn(Batch<K>) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Vec<Outcome>, StoreError>> + Send + 'static,
    {
        let clock = self.clock.clone().unwrap_or_else(Clock::boottime);
        let callbacks = self.callback.is_some();
        // A subscriber is told where callbacks run.
        #[cfg(feature = "tracing")]
        let callbacks = callbacks || super::trace::hears();
        let timers = Timers::new(clock, self.runs_on.clone(), callbacks);
        self.assemble(Arc::new(timers), renew, random())
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
    ///     .build_stepped(1, async |batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
    /// let session = sessions.keep(7, Duration::from_secs(30))?;
    /// steps.advance(Duration::from_secs(300));
    /// assert!(session.is_kept() && session.renewals() >= 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(any(test, feature = "test-util"))]
    pub fn build_stepped<F, R>(
        self,
        seed: u64,
        renew: F,
    ) -> Result<(KeepAlive<K>, super::Steps), BuildError>
    where
        F: Fn(Batch<K>) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Vec<Outcome>, StoreError>> + Send + 'static,
    {
        // A manual clock that was set is the one that the steps move. Otherwise they make one.
        let hand = self.clock.as_ref().and_then(Clock::as_manual);
        let steps = super::Steps::new(hand, seed)?;
        let timers = Timers::stepped(Clock::manual(&steps.clock()), steps.handle());
        Ok((self.assemble(Arc::new(timers), renew, seed)?, steps))
    }

    /// Checks the options and puts the parts together.
    fn assemble<F, R>(
        self,
        timers: Arc<Timers>,
        renew: F,
        seed: u64,
    ) -> Result<KeepAlive<K>, BuildError>
    where
        F: Fn(Batch<K>) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Vec<Outcome>, StoreError>> + Send + 'static,
    {
        if self.most == 0 {
            return Err(BuildError::Batch);
        }
        let events = EventSink::new(self.callback);
        #[cfg(feature = "tracing")]
        let events = events.traced(super::trace::hears().then_some(self.trace));
        let renewal_loop = RenewalLoop::new(Parts {
            timers,
            events: Arc::new(events),
            renew: Box::new(move |batch| Box::pin(renew(batch))),
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
