//! The gauges and counters of [`Leases`](crate::Leases).

use tourbillon::Time;

use super::error::LockError;
use crate::keep_alive::KeepAliveStats;
use crate::store::StoreError;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// A snapshot of the gauges and counters of [`Leases`](crate::Leases).
///
/// A gauge is a current value. A counter starts at zero and only grows. The fields are read one
/// after the other while calls go on, so they may not match exactly.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{Leases, MemoryStore};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let leases = Leases::new(MemoryStore::new())?;
/// let guard = leases.lock("invoices").at_once().wait()?;
/// assert_eq!(leases.stats().kept, 1);
/// guard.release().wait()?;
/// let stats = leases.stats();
/// assert_eq!((stats.kept, stats.released, stats.releases_queued), (0, 1, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LeaseStats {
    /// Gauge: locks that are held.
    pub kept: usize,
    /// Gauge: timers that are armed, see [`KeepAliveStats::armed`].
    pub armed: usize,
    /// Gauge: destinations of the locks that are held.
    pub destinations: usize,
    /// Counter: renewals that succeeded.
    pub renewed: u64,
    /// Counter: attempts to renew that failed.
    pub failed: u64,
    /// Counter: locks that were lost.
    pub lost: u64,
    /// Counter: calls to the store that renewed one or more locks.
    pub batches: u64,
    /// Counter: batches of renewals that the store refused as a whole and that were tried one by
    /// one.
    pub sent_alone: u64,
    /// Counter: calls to renew that began late, see [`KeepAliveStats::late`].
    pub late: u64,
    /// Counter: renewals whose call did not return in time.
    pub given_up: u64,
    /// Counter: events that were left out, since a channel was full or a callback was behind.
    pub events_missed: u64,
    /// Gauge: the number of renewals of the held lock that was renewed most often.
    pub most_renewals: u64,
    /// Gauge: releases that nobody waits for and that the store has not answered yet.
    pub releases_queued: usize,
    /// Counter: locks that the store gave back when these leases asked it to.
    pub released: u64,
    /// Counter: acquires that began, by any of the methods that lock. An acquire with a wrong name
    /// or option is refused before that and is not counted. `asked` is the sum of the next five
    /// fields.
    pub asked: u64,
    /// Counter: acquires that returned a guard.
    pub granted: u64,
    /// Counter: acquires that ended with [`LockError::Held`] or [`LockError::TimedOut`], since
    /// somebody else held the lock.
    ///
    /// [`LockError::Held`]: crate::LockError::Held
    /// [`LockError::TimedOut`]: crate::LockError::TimedOut
    pub refused: u64,
    /// Counter: acquires that ended with any other error.
    pub acquires_failed: u64,
    /// Counter: acquires whose future was dropped before it was ready.
    pub abandoned: u64,
    /// Gauge: acquires that have not returned yet, by calls that wait and by calls that do not.
    pub waiting: u64,
}

/// Counts acquires by how they end.
#[derive(Default)]
pub(super) struct Asks {
    asked: AtomicU64,
    granted: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    abandoned: AtomicU64,
}

impl Asks {
    /// Counts an acquire that begins.
    pub(super) fn begin(&self) {
        // Relaxed, here and below: counters, which are read only for snapshots.
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an acquire that returns.
    pub(super) fn end<T>(&self, answer: &Result<T, LockError>) {
        let counter = match answer {
            Ok(_) => &self.granted,
            Err(LockError::Held { .. } | LockError::TimedOut { .. }) => &self.refused,
            Err(_) => &self.failed,
        };
        // Relaxed: a counter.
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an acquire whose future was dropped before it was ready.
    pub(super) fn abandon(&self) {
        // Relaxed: a counter.
        self.abandoned.fetch_add(1, Ordering::Relaxed);
    }

    /// Fills in the counters of acquires.
    pub(super) fn fill(&self, stats: LeaseStats) -> LeaseStats {
        // Relaxed: counters.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [granted, refused, failed, abandoned] =
            [&self.granted, &self.refused, &self.failed, &self.abandoned].map(read);
        // Read last, so that acquires that began meanwhile count as waiting. A Relaxed read may
        // still miss some of them, hence the `max`: the sum has to hold.
        let ended = granted + refused + failed + abandoned;
        let asked = read(&self.asked).max(ended);
        LeaseStats {
            asked,
            granted,
            refused,
            acquires_failed: failed,
            abandoned,
            waiting: asked - ended,
            ..stats
        }
    }
}

/// How the store has failed acquires since the last one that it answered.
#[derive(Default)]
pub(super) struct AcquireFailures(Mutex<Option<Failures>>);

#[derive(Clone)]
pub(super) struct Failures {
    pub(super) first: Time,
    pub(super) last: Time,
    pub(super) error: String,
}

impl AcquireFailures {
    /// Notes the answer to an acquire.
    pub(super) fn note(&self, error: Option<&StoreError>, now: Time) {
        let mut failures = self.0.lock();
        *failures = error.map(|error| Failures {
            first: failures.as_ref().map_or(now, |before| before.first),
            last: now,
            error: error.to_string(),
        });
    }

    /// Returns the failures since the last answer, if there are any.
    pub(super) fn get(&self) -> Option<Failures> {
        self.0.lock().clone()
    }
}

impl LeaseStats {
    /// Takes over the statistics of the renewals. The fields that the leases count are zero.
    pub(super) fn of(renewals: KeepAliveStats) -> Self {
        LeaseStats {
            kept: renewals.kept,
            armed: renewals.armed,
            destinations: renewals.destinations,
            renewed: renewals.renewed,
            failed: renewals.failed,
            lost: renewals.lost,
            batches: renewals.batches,
            sent_alone: renewals.sent_alone,
            late: renewals.late,
            given_up: renewals.given_up,
            events_missed: renewals.events_missed,
            most_renewals: renewals.most_renewals,
            ..LeaseStats::default()
        }
    }
}
