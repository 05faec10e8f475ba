//! Keeps alive whatever ends unless it is renewed. It knows nothing of locks: it may use `sync`,
//! and of `store` the words in which a store answers.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs`, `builder.rs` | `KeepAlive`, and its options |
//! | `guard.rs`, `options.rs` | `KeepGuard`, and how one key is kept |
//! | `error.rs`, `build_error.rs` | why something can't be kept, or its keeper not built |
//! | `renewal_loop.rs`, `registration.rs` | the registrations, and the timer of each |
//! | `flush.rs`, `batch.rs` | how a batch is sent, and what its outcomes change |
//! | `blocking.rs` | renewal functions that block |
//! | `lease_state/` | the state machine of one lease: held, stopped, lost |
//! | `queue.rs` | the due renewals of one destination, and the flush that sends them |
//! | `task.rs`, `limited.rs` | futures that workers poll, and calls that end at their limit |
//! | `cadence.rs` | the times: renewals, jitter, retries, limits |
//! | `events.rs`, `lost.rs` | how the application is notified |
//! | `metrics.rs` | the statistics with names for a metrics system |
//! | `health.rs` | whether the renewals are alive and ready |
//! | `waits.rs` | the events about waiting callers |
//! | `timers.rs` | the schedulers that everything runs on |
//! | `steps.rs` | the scheduler that a test drives |

mod batch;
mod blocking;
mod build_error;
mod builder;
mod cadence;
mod error;
mod events;
mod flush;
mod guard;
mod health;
mod lease_state;
mod limited;
mod lost;
mod metrics;
mod options;
mod polls;
mod queue;
mod registration;
mod renewal_loop;
#[cfg(any(test, feature = "test-util"))]
mod steps;
mod task;
mod timer_key;
mod timers;
#[cfg(feature = "tracing")]
pub(crate) mod trace;
mod waits;

pub use batch::{Batch, Entry};
pub use blocking::blocking;
pub use build_error::BuildError;
pub use builder::KeepAliveBuilder;
pub use error::KeepError;
pub use events::{Event, What};
pub use guard::KeepGuard;
pub use lease_state::Loss;
pub use lost::Lost;
pub use options::KeepOptions;
#[cfg(any(test, feature = "test-util"))]
pub use steps::Steps;

pub(super) use builder::random;
pub(super) use cadence::{call_limit, spread};
pub(super) use guard::{Extending, Unextended};
pub(super) use health::fails;
pub(super) use limited::{Alarm, Called, LimitedCall, without_threads};
pub(super) use queue::{DestinationQueue, Flush, QueueKey};
pub(super) use timer_key::TimerKey;
pub(super) use timers::Timers;
pub(super) use waits::{FIRST as FIRST_WAIT, Waits};

use std::fmt;
use std::time::Duration;

use tourbillon::Time;

use crate::sync::Arc;
use crate::sync::channel::{Receiver, bounded};
use renewal_loop::RenewalLoop;

/// Keeps things alive that end unless they are renewed: a session at a peer, the registration of a
/// service, a lock.
///
/// Each key is renewed after about a third of its lease. One call of the renewal function renews
/// all due keys of one destination. A renewal that fails is tried again, early and often, until the
/// lease has run out by the local clock. Then the key is lost for good, and the application is
/// notified.
///
/// - The renewal function returns a future, which workers poll. For leases of one destination and of
///   similar length (between two powers of two), one call is under way at a time. At the
///   [limit](Batch::limit) of the call, its future is dropped, and its renewals have failed. So a
///   call that hangs or panics neither delays another destination nor ends the renewals.
/// - Wrap a function that blocks in [`blocking`], which calls it on threads of its own.
/// - A `KeepAlive` has no threads of its own, and runs on the [runtime](tourbillon::Runtime) of the
///   process. [Its builder](KeepAliveBuilder::own_threads) can change that. A scheduler starts with
///   the first key, and another one for a callback. They end after the drop of the last clone of the
///   `KeepAlive` and of the last [`KeepGuard`], and after a call that is under way.
/// - Events reach a [callback](KeepAliveBuilder::on_event) or a [channel](Self::events). No event
///   can hold up a renewal.
///
/// [`Leases`](crate::Leases) does the same for locks.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_leases::{Outcome, KeepAlive};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sessions = KeepAlive::<u64>::builder()
///     .on_event(|event| println!("{event:?}"))
///     .build(async |batch| {
///         // One request to the peer for all of them.
///         println!("renewing {:?}", batch.keys().collect::<Vec<_>>());
///         Ok(vec![Outcome::Renewed; batch.len()])
///     })?;
/// let session = sessions.keep(7, Duration::from_secs(30))?;
/// assert!(session.is_kept());
/// session.stop()?; // or drop it
/// # Ok(())
/// # }
/// ```
pub struct KeepAlive<K> {
    renewal_loop: Arc<RenewalLoop<K>>,
}

/// A snapshot of the gauges and counters of a [`KeepAlive`].
///
/// A gauge is a current value. A counter starts at zero and only grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct KeepAliveStats {
    /// Gauge: keys that are kept.
    pub kept: usize,
    /// Gauge: timers that are armed. Each kept key has one. Others belong to flushes, to polls and
    /// callbacks that have not started, to the limits of calls that have no answer yet, to releases
    /// that are tried again, and to waiting callers.
    pub armed: usize,
    /// Gauge: destinations of the keys that are kept.
    pub destinations: usize,
    /// Counter: renewals that succeeded.
    pub renewed: u64,
    /// Counter: attempts to renew that failed.
    pub failed: u64,
    /// Counter: keys that were lost.
    pub lost: u64,
    /// Counter: calls of the renewal function.
    pub batches: u64,
    /// Counter: batches that were refused as a whole, or whose call panicked, and that were tried
    /// one by one.
    pub sent_alone: u64,
    /// Counter: calls of the renewal function that began late. A call is late if one of its keys
    /// was due more than a sixth of its lease ago.
    pub late: u64,
    /// Counter: renewals whose call had no answer at its limit.
    pub given_up: u64,
    /// Counter: events that were left out, since a channel was full or a callback was behind.
    pub events_missed: u64,
    /// Gauge: the number of renewals of the kept key that was renewed most often. If it grows
    /// without end, some holder may have forgotten its guard.
    pub most_renewals: u64,
}

impl<K: Clone + Send + Sync + 'static> KeepAlive<K> {
    /// Returns a builder with default options.
    pub fn builder() -> KeepAliveBuilder<K> {
        KeepAliveBuilder::new()
    }

    /// Keeps `key` from now on: renews it until the returned guard is stopped or dropped, or the
    /// key is lost.
    ///
    /// Each call makes a registration of its own, even if the same key is kept already.
    ///
    /// # Errors
    ///
    /// [`KeepError`] if the lease is shorter than 50 ms or than three
    /// [margins](KeepAliveBuilder::margin), if the `KeepAlive` is closed, or if it could not
    /// be started on its [runtime](KeepAliveBuilder::runtime).
    ///
    /// # Blocking
    ///
    /// Does not block, except that the first call may start threads.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{KeepAlive, Outcome};
    /// # let sessions = KeepAlive::<u64>::builder()
    /// #     .build(async |batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
    /// let session = sessions.keep(7, Duration::from_secs(30))?;
    /// assert!(session.remaining() <= Duration::from_secs(30));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keep(&self, key: K, lease: Duration) -> Result<KeepGuard<K>, KeepError> {
        self.keep_with(key, &KeepOptions::for_lease(lease))
    }

    /// Keeps a key like [`keep`](Self::keep), with options.
    ///
    /// # Errors
    ///
    /// As for [`keep`](Self::keep). A feeding period or a longest hold of zero is an error, too.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{KeepAlive, KeepOptions, Outcome};
    /// # let sessions = KeepAlive::<u64>::builder()
    /// #     .build(async |batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
    /// let sent = sessions.now();
    /// // .. open the session at the peer ..
    /// let options = KeepOptions::for_lease(Duration::from_secs(30)).since(sent);
    /// let session = sessions.keep_with(7, &options)?;
    /// assert!(session.is_kept());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keep_with(&self, key: K, keep: &KeepOptions) -> Result<KeepGuard<K>, KeepError> {
        Ok(KeepGuard {
            registration: self.renewal_loop.keep(key, keep)?,
            renewal_loop: Arc::clone(&self.renewal_loop),
        })
    }

    /// Returns a channel of events from now on. Events for which it has no room are left out and
    /// counted in [`KeepAliveStats::events_missed`]. There is room for at least one event.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{KeepAlive, Outcome};
    /// # let sessions = KeepAlive::<u64>::builder()
    /// #     .build(async |batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
    /// let events = sessions.events(64);
    /// let session = sessions.keep(7, Duration::from_secs(30))?;
    /// for event in events.try_iter() {
    ///     println!("{}: {}", event.key, event.what);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn events(&self, capacity: usize) -> Receiver<Event<K>> {
        if self.is_forked() {
            // The sender is dropped, so the channel is disconnected.
            return bounded(0).1;
        }
        self.renewal_loop.events.subscribe(capacity)
    }

    /// Returns a snapshot of the gauges and counters.
    ///
    /// # Complexity
    ///
    /// Linear in the number of keys that are kept.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{KeepAlive, Outcome};
    /// # let sessions = KeepAlive::<u64>::builder()
    /// #     .build(async |batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
    /// let session = sessions.keep(7, Duration::from_secs(30))?;
    /// assert_eq!(sessions.stats().kept, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> KeepAliveStats {
        self.renewal_loop.stats()
    }

    /// Returns the present moment of the clock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{KeepAlive, Outcome};
    /// # let sessions = KeepAlive::<u64>::builder()
    /// #     .build(async |batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
    /// let before = sessions.now();
    /// assert!(sessions.now() >= before);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn now(&self) -> Time {
        self.renewal_loop.now()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.renewal_loop.is_closed()
    }

    /// Whether this process is a forked copy of the process that built the `KeepAlive`.
    pub(super) fn is_forked(&self) -> bool {
        self.renewal_loop.is_forked()
    }

    /// Closes for good: all kept keys are lost, with [`Loss::Closed`], and no key can be kept any
    /// more. Returns how many keys were kept.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{KeepAlive, Outcome};
    /// # let sessions = KeepAlive::<u64>::builder()
    /// #     .build(async |batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
    /// let session = sessions.keep(7, Duration::from_secs(30))?;
    /// assert_eq!(sessions.close(), 1);
    /// assert!(sessions.keep(8, Duration::from_secs(30)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn close(&self) -> usize {
        self.close_all().len()
    }

    /// Closes like [`close`](Self::close), and returns the keys that were lost.
    pub(super) fn close_all(&self) -> Vec<K> {
        let lost = self.renewal_loop.close();
        lost.iter()
            .map(|registration| registration.key.clone())
            .collect()
    }

    /// Checks whether a key could be kept with these options, and starts the schedulers.
    pub(super) fn check(&self, keep: &KeepOptions) -> Result<(), KeepError> {
        self.renewal_loop.check(keep)
    }

    /// Starts the schedulers, if they do not run.
    pub(super) fn start(&self) -> Result<(), KeepError> {
        self.renewal_loop.timers.start()
    }

    /// Returns how long a lease of this length is held by the local clock: the lease less a margin.
    pub(super) fn good_for(&self, lease: Duration) -> Duration {
        self.renewal_loop.good_for(lease)
    }

    /// Posts events about a wait that begins now, until the returned value is dropped.
    pub(super) fn waits(&self, key: impl Fn() -> K + Send + 'static) -> Waits {
        self.renewal_loop.waits(key)
    }

    /// Returns a number that nothing else of this `KeepAlive` has.
    pub(super) fn number(&self) -> u64 {
        self.renewal_loop.number()
    }

    /// Returns a number that looks random, drawn from the seed, the time and `of`.
    pub(super) fn random(&self, of: u64) -> u64 {
        self.renewal_loop.random(of)
    }

    /// Returns the greatest number of keys in one batch.
    pub(super) fn most(&self) -> usize {
        self.renewal_loop.most
    }

    /// The timers on which everything runs.
    pub(super) fn timers(&self) -> &Timers {
        &self.renewal_loop.timers
    }

    /// Runs a flush of another part of the crate on a worker for renewals: see [`timers`].
    pub(super) fn flush(
        &self,
        alarm: TimerKey,
        delay: Duration,
        task: impl FnOnce() + Send + 'static,
    ) {
        // A forked copy has none of the threads, and the locks of the scheduler may stay locked
        // there. The methods below check for the same reason.
        if !self.is_forked() {
            self.renewal_loop.timers.flush(alarm, delay, task);
        }
    }

    /// Runs `task` on a worker for renewals after `delay`. Replaces the timer that was armed under
    /// this key.
    pub(super) fn after(
        &self,
        alarm: TimerKey,
        delay: Duration,
        task: impl FnOnce() + Send + 'static,
    ) {
        if !self.is_forked() {
            self.renewal_loop.timers.after(alarm, delay, task);
        }
    }

    /// Cancels the timer of this key on the workers for renewals.
    pub(super) fn cancel(&self, alarm: TimerKey) {
        if !self.is_forked() {
            self.renewal_loop.timers.cancel(alarm);
        }
    }
}

impl<K> Clone for KeepAlive<K> {
    fn clone(&self) -> Self {
        KeepAlive {
            renewal_loop: Arc::clone(&self.renewal_loop),
        }
    }
}

impl<K: Clone + Send + Sync + 'static> fmt::Debug for KeepAlive<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeepAlive")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
