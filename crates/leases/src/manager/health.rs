//! Whether leases are alive and ready: what the renewals find, and how acquires fare.

use std::time::Duration;

use tourbillon::{Finding, FindingKind, Health, Time};

use super::locks::Leases;
use crate::keep_alive::fails;

/// For how long an acquire that failed says something about the store, if none follows.
const RECENT: Duration = Duration::from_secs(30);

impl Leases {
    /// Returns whether these leases are alive and ready, and the reasons if not:
    ///
    /// - [`StoreFails`](FindingKind::StoreFails): the last renewal of a lock that is held has failed,
    ///   or the last acquire has, within the last 30 s. A warning, and not ready if nothing has
    ///   succeeded for 10 s.
    /// - [`RenewalAtRisk`](FindingKind::RenewalAtRisk): a lock has a third of its lease left or less,
    ///   and was not renewed. A warning.
    /// - [`ShutDown`](FindingKind::ShutDown): they were closed.
    /// - What the schedulers find on which they run; see
    ///   [`Handle::health`](tourbillon::Handle::health).
    ///
    /// This asks no store. While no lock is held and none is acquired, nothing is known of the store,
    /// and that is no reason. A lock that is lost is no reason any more: it has an
    /// [event](crate#events).
    ///
    /// # Complexity
    ///
    /// Linear in the number of locks that are held, as for [`stats`](Self::stats).
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("report").wait()?;
    /// let health = leases.health();
    /// assert!(health.is_alive() && health.is_ready(), "{health}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn health(&self) -> Health {
        let mut health = self.inner.keep_alive.health();
        if self.inner.keep_alive.is_forked() {
            return health;
        }
        let now = self.inner.clock.now();
        if let Some(failures) = self.inner.acquire_failures.get()
            && now.since(failures.last) < RECENT
        {
            let kind = FindingKind::StoreFails;
            let impact = fails(failures.last.since(failures.first));
            let since = Some(now.since(failures.first));
            let mut finding = self.inner.keep_alive.finding(kind, impact, since);
            finding.detail = format!("acquires fail: {}", failures.error);
            health.extend([finding]);
        }
        health
    }

    /// Makes a finding about a store that fails since then.
    pub(crate) fn store_fails(&self, since: Time, detail: String) -> Finding {
        let since = self.inner.clock.now().since(since);
        let (kind, impact) = (FindingKind::StoreFails, fails(since));
        let mut finding = self.inner.keep_alive.finding(kind, impact, Some(since));
        finding.detail = detail;
        finding
    }
}
