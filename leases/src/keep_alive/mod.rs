//! The watchdog: keeps alive whatever ends unless it is renewed.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs`, `builder.rs` | `KeepAlive`, `KeepGuard`, options |
//! | `error.rs` | why something can't be kept |
//! | `renewal_loop.rs` | series and their rounds |
//! | `flush.rs` | what goes out, and what came of it |
//! | `lease_state.rs` | one generation: kept, under way, stopped, lost |
//! | `queue.rs` | one destination: what is due, and which pass sends it |
//! | `cadence.rs` | when: jitter, retries, limits |
//! | `events.rs`, `lost.rs` | what the application hears |
//! | `waits.rs` | what it hears of callers that wait |
//! | `timers.rs` | the scheduler that it all runs on |
//! | `steps.rs` | a scheduler that a test drives |

mod builder;
mod cadence;
mod error;
mod events;
mod flush;
mod lease_state;
mod lost;
mod queue;
mod renewal_loop;
#[cfg(any(test, feature = "test-util"))]
mod steps;
mod timers;
mod waits;

pub use builder::KeepAliveBuilder;
pub use error::KeepError;
pub use events::{Event, What};
pub use lease_state::Loss;
pub use lost::Lost;
#[cfg(any(test, feature = "test-util"))]
pub use steps::Steps;

pub(super) use builder::random;
pub(super) use cadence::{call_limit, spread};
pub(super) use queue::{DestinationQueue, QueueKey};
pub(super) use timers::TimerKey;
pub(super) use waits::{FIRST as FIRST_WAIT, Waits};

use std::fmt;
use std::time::Duration;

use tourbillon::Time;
use tourbillon::reentrancy::when_unlocked;

use super::store::Destination;
use crate::sync::Arc;
use crate::sync::channel::{Receiver, bounded};
use lease_state::LeaseStatus;
use renewal_loop::{Registration, RenewalLoop};

/// Keeps things alive that end unless they are renewed: a session at a peer, a registration of a
/// service, a lock.
///
/// Each key is renewed after a third of its lease, by a function that gets all keys of one
/// destination that are due together. What fails is tried again, early and often, until the lease has
/// run out by the local clock; then it is lost, for good, and the application hears it.
///
/// - The function runs on workers of the watchdog's own. Leases of one destination and of about one
///   length (between two powers of two) are renewed by one call at a time, unless one has not returned
///   in time. A call that hangs or panics delays no other destination, and ends no series; only when
///   240 hang at one time, three of a destination and length at most, others wait for them.
/// - The workers and a ticker start with the first key, and end when the watchdog's last clone and
///   the last [`KeepGuard`] are gone.
/// - Events reach a [callback](WatchdogBuilder::on_event) or a [channel](Self::events), and none of
///   them can hold up a renewal.
///
/// [`Leases`](super::Leases) is this for locks.
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
///     .build(|batch| {
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

/// What [`KeepAlive::keep_with`] keeps, and how.
#[derive(Clone, Debug)]
#[must_use = "nothing is kept until `keep_with`"]
pub struct KeepOptions {
    lease: Duration,
    since: Option<Time>,
    renewed: bool,
    feed: Option<Duration>,
    max_hold: Option<Duration>,
}

impl KeepOptions {
    /// Something that ends after this time, unless it is renewed.
    pub fn for_lease(lease: Duration) -> Self {
        KeepOptions {
            lease,
            since: None,
            renewed: true,
            feed: None,
            max_hold: None,
        }
    }

    /// The lease counts from this moment of the watchdog's clock: the one *before* the request was
    /// sent that created it. By default it counts from the call; a later moment is taken for that.
    pub fn since(mut self, sent: Time) -> Self {
        self.since = Some(sent);
        self
    }

    /// It is not renewed: it is lost when the lease has run out.
    pub fn without_renewal(mut self) -> Self {
        self.renewed = false;
        self
    }

    /// The holder has to call [`KeepGuard::feed`] within every such period, or it counts as dead and the
    /// lease as lost.
    pub fn fed_every(mut self, period: Duration) -> Self {
        self.feed = Some(period);
        self
    }

    /// It is renewed no more, and counts as lost, when it was held for so long in all.
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.max_hold = Some(most);
        self
    }
}

/// What is due together at one destination.
#[derive(Debug)]
pub struct Batch<'a, K> {
    destination: Destination,
    entries: &'a [Entry<'a, K>],
    limit: Duration,
}

/// One of a batch.
#[derive(Debug)]
pub struct Entry<'a, K> {
    key: &'a K,
    lease: Duration,
}

impl<K> Clone for Batch<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Batch<'_, K> {}

impl<K> Clone for Entry<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Entry<'_, K> {}

impl<'a, K> Entry<'a, K> {
    /// What is to be renewed.
    #[must_use]
    pub fn key(&self) -> &'a K {
        self.key
    }

    /// How long its lease is to be from now on.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.lease
    }
}

impl<'a, K> Batch<'a, K> {
    /// Where all of them are.
    #[must_use]
    pub fn destination(&self) -> Destination {
        self.destination
    }

    /// What is to be renewed. The outcomes are expected in this order.
    #[must_use]
    pub fn entries(&self) -> &'a [Entry<'a, K>] {
        self.entries
    }

    /// Only the keys.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &'a K> {
        self.entries.iter().map(|entry| entry.key)
    }

    /// How many they are; at least one.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// How long the call may take. After that nothing must be sent, and the answer is not waited for
    /// any more.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.limit
    }
}

/// Counters and gauges of a watchdog.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct KeepAliveStats {
    /// Gauge: what is kept at present.
    pub kept: usize,
    /// Gauge: timers that are armed. That is one for each series that is kept, plus those of
    /// passes, of callbacks that have not started, of releases that are tried again, and of waiting
    /// callers.
    pub armed: usize,
    /// Gauge: destinations of what is kept.
    pub destinations: usize,
    /// Renewals that succeeded.
    pub renewed: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// What was lost.
    pub lost: u64,
    /// Calls of the renewal function.
    pub batches: u64,
    /// Batches that were refused as a whole, or panicked, and were tried one by one.
    pub sent_alone: u64,
    /// Calls of the renewal function that began late for one of their keys: by more than a sixth of
    /// its lease.
    pub late: u64,
    /// Renewals whose call did not return in time.
    pub given_up: u64,
    /// Events for which a channel, or a callback that is behind, had no room.
    pub events_missed: u64,
    /// Gauge: how often that one was renewed that was renewed most often of all that are kept. One
    /// that grows for ever belongs to a holder that has forgotten it.
    pub most_renewals: u64,
}

impl<K: Clone + Send + Sync + 'static> KeepAlive<K> {
    /// Options with their defaults.
    pub fn builder() -> KeepAliveBuilder<K> {
        KeepAliveBuilder::new()
    }

    /// Keeps `key` from now on: it is renewed until the answer is stopped or dropped, or it is lost.
    ///
    /// Each call begins a generation of its own, whatever was or is kept of the same key.
    ///
    /// # Errors
    ///
    /// [`KeepError`]: a lease below 50 ms, a closed watchdog, threads that can't be had.
    ///
    /// # Blocking
    ///
    /// Not at all, but for the start of the threads by the first call.
    pub fn keep(&self, key: K, lease: Duration) -> Result<KeepGuard<K>, KeepError> {
        self.keep_with(key, &KeepOptions::for_lease(lease))
    }

    /// [`keep`](Self::keep) with options.
    ///
    /// # Errors
    ///
    /// As for [`keep`](Self::keep), and for a feeding period or a longest hold of zero.
    pub fn keep_with(&self, key: K, keep: &KeepOptions) -> Result<KeepGuard<K>, KeepError> {
        Ok(KeepGuard {
            registration: self.renewal_loop.keep(key, keep)?,
            renewal_loop: Arc::clone(&self.renewal_loop),
        })
    }

    /// A channel of events from now on. What it has no room for is left out and counted in
    /// [`KeepAliveStats::events_missed`]; at least one has room.
    #[must_use]
    pub fn events(&self, capacity: usize) -> Receiver<Event<K>> {
        if self.is_forked() {
            return bounded(0).1;
        }
        self.renewal_loop.events.subscribe(capacity)
    }

    /// Counters and gauges.
    ///
    /// # Complexity
    ///
    /// Linear in what is kept.
    #[must_use]
    pub fn stats(&self) -> KeepAliveStats {
        self.renewal_loop.stats()
    }

    /// The present moment of the watchdog's clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.renewal_loop.now()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.renewal_loop.is_closed()
    }

    /// Whether this process is a forked copy of the one that made it.
    pub(super) fn is_forked(&self) -> bool {
        self.renewal_loop.is_forked()
    }

    /// Keeps nothing from now on. What was kept is lost, with [`Loss::Closed`]; returns how many there were.
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn close(&self) -> usize {
        self.close_all().len()
    }

    /// Like [`close`](Self::close): what was lost.
    pub(super) fn close_all(&self) -> Vec<K> {
        let lost = self.renewal_loop.close();
        lost.iter()
            .map(|registration| registration.key.clone())
            .collect()
    }

    /// Whether something could be kept so; starts the threads.
    pub(super) fn check(&self, keep: &KeepOptions) -> Result<(), KeepError> {
        self.renewal_loop.check(keep)
    }

    pub(super) fn good_for(&self, lease: Duration) -> Duration {
        self.renewal_loop.good_for(lease)
    }

    /// Tells of a wait that begins now, until the answer is dropped.
    pub(super) fn waits(&self, key: impl Fn() -> K + Send + 'static) -> Waits {
        self.renewal_loop.waits(key)
    }

    /// A number that nothing else of this watchdog has.
    pub(super) fn number(&self) -> u64 {
        self.renewal_loop.number()
    }

    pub(super) fn random(&self, of: u64) -> u64 {
        self.renewal_loop.random(of)
    }

    /// How much goes into one batch.
    pub(super) fn most(&self) -> usize {
        self.renewal_loop.most
    }

    /// Runs `task` on a worker for calls, under a [`number`](Self::number). False if there is none.
    pub(super) fn call(&self, number: u64, task: impl FnOnce() + Send + 'static) -> bool {
        !self.is_forked() && self.renewal_loop.timers.call(number, task)
    }

    /// Runs a pass of somebody else's on a worker for renewals: see [`timers`].
    pub(super) fn flush(
        &self,
        alarm: TimerKey,
        delay: Duration,
        task: impl FnOnce() + Send + 'static,
    ) {
        if !self.is_forked() {
            self.renewal_loop.timers.flush(alarm, delay, task);
        }
    }

    /// Runs `task` on a worker for renewals after `delay`, in the place of what was armed under this
    /// alarm.
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

    pub(super) fn cancel(&self, alarm: TimerKey) {
        if !self.is_forked() {
            self.renewal_loop.timers.cancel(alarm);
        }
    }

    /// Wakes after `delay`. The number to cancel it by.
    pub(super) fn wake(&self, delay: Duration, waker: std::task::Waker) -> Option<u64> {
        if self.is_forked() {
            return None;
        }
        let number = self.renewal_loop.number();
        let armed = self.renewal_loop.timers.wake(number, delay, waker);
        armed.then_some(number)
    }

    /// A call that has not begun does not.
    pub(super) fn cancel_call(&self, number: u64) {
        if !self.is_forked() {
            self.renewal_loop.timers.cancel_call(number);
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
        f.debug_struct("Watchdog")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Something that a [`KeepAlive`] keeps. Dropping it stops the renewals; what was renewed runs out.
#[must_use = "dropping it stops the renewals"]
pub struct KeepGuard<K: Clone + Send + Sync + 'static> {
    renewal_loop: Arc<RenewalLoop<K>>,
    registration: Arc<Registration<K>>,
}

impl<K: Clone + Send + Sync + 'static> KeepGuard<K> {
    /// What is kept.
    pub fn key(&self) -> &K {
        &self.registration.key
    }

    /// Whether it has not ended, by a look at the clock. Once it says no it never says yes again. In a
    /// forked copy of the process it always says no.
    ///
    /// # Complexity
    ///
    /// One read of the clock, one system call (for the process id), and one lock that is nearly
    /// always free.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long it lasts if nothing renews it; zero if it has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let now = self.renewal_loop.now();
        match self.registration.lease_state.look(now) {
            LeaseStatus::Held { ends, .. } => ends.since(now),
            _ => Duration::ZERO,
        }
    }

    /// How it is learnt that it was lost.
    #[must_use]
    pub fn lost(&self) -> Lost {
        Lost::new(
            &self.registration.lease_state,
            self.renewal_loop.timers.clock(),
        )
    }

    /// The holder is alive; see [`KeepOptions::fed_every`]. False if it has ended.
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn feed(&self) -> bool {
        self.registration.lease_state.feed(self.renewal_loop.now())
    }

    /// How often it was renewed.
    #[must_use]
    pub fn renewals(&self) -> u64 {
        self.registration.lease_state.renewals()
    }

    /// Stops the renewals. When this returns, no call of the renewal function for this generation
    /// begins any more; unless a thread was held up, for longer than the limit, between its last look at
    /// the clock and the call.
    ///
    /// # Errors
    ///
    /// Why it was lost, if it was.
    ///
    /// # Blocking
    ///
    /// While a call for it is under way, and no longer than until the limit of that call.
    pub fn stop(self) -> Result<(), Loss> {
        let ended = self.end();
        self.settled();
        ended
    }

    /// Whether this process is a forked copy of the one that keeps it.
    pub(super) fn is_forked(&self) -> bool {
        self.registration.lease_state.is_forked()
    }

    /// Stops without waiting for what is under way.
    pub(super) fn end(&self) -> Result<(), Loss> {
        self.renewal_loop.stop(&self.registration)
    }

    /// Waits for what is under way.
    pub(super) fn settled(&self) {
        self.registration
            .lease_state
            .wait_for_in_flight(self.renewal_loop.timers.clock());
    }
}

impl<K: Clone + Send + Sync + 'static> Drop for KeepGuard<K> {
    fn drop(&mut self) {
        let (renewal_loop, registration) = (
            Arc::clone(&self.renewal_loop),
            Arc::clone(&self.registration),
        );
        // It may be a value of a map, and be dropped under that map's lock.
        when_unlocked(move || {
            let _ = renewal_loop.stop(&registration);
        });
    }
}

impl<K: Clone + Send + Sync + fmt::Debug + 'static> fmt::Debug for KeepGuard<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept")
            .field("key", self.key())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
