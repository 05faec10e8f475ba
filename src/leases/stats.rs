//! What [`Leases`](super::Leases) count.

use super::watchdog::WatchdogStats;

/// A snapshot of the gauges and counters of [`Leases`](super::Leases).
///
/// A gauge is a number of the moment. A counter starts at zero and only grows. The fields are read
/// one after the other while the leases go on, so they need not fit together to the last unit.
///
/// # Examples
///
/// ```
/// use tourbillon::leases::{Leases, MemoryStore};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let leases = Leases::new(MemoryStore::new())?;
/// let guard = leases.try_lock("invoices")?;
/// assert_eq!(leases.stats().kept, 1);
/// guard.release()?;
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
    /// Gauge: timers that are armed: see [`WatchdogStats::armed`].
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
    /// Counter: batches of renewals that were refused as a whole and were tried one by one.
    pub sent_alone: u64,
    /// Counter: calls to renew that began late: see [`WatchdogStats::late`].
    pub late: u64,
    /// Counter: renewals whose call did not return in time.
    pub given_up: u64,
    /// Counter: events for which a channel, or a callback that is behind, had no room.
    pub events_missed: u64,
    /// Gauge: the renewals of the held lock that was renewed most often.
    pub most_renewals: u64,
    /// Gauge: releases that nobody waits for and that the store has not answered yet.
    pub releases_queued: usize,
    /// Counter: locks that the store gave back when these leases asked it to.
    pub released: u64,
}

impl LeaseStats {
    /// With the renewals' share; what the leases count themselves is zero.
    pub(super) fn of(renewals: WatchdogStats) -> Self {
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
