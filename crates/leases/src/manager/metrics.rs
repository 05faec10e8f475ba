//! The metrics of locks.

use tourbillon::metrics::Metrics;

use super::locks::Leases;

impl Leases {
    /// Returns the gauges and counters, and a histogram, as a list with names for a metrics system.
    /// The guide has a table of them.
    ///
    /// Their label `type` is `leases`, and `name` is the [name](crate::LeasesBuilder::name) of the
    /// builder. The list can be joined with those of other instances, also of the crate
    /// `tourbillon`.
    ///
    /// # Complexity
    ///
    /// As for [`stats`](Self::stats).
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// let leases = Leases::builder(MemoryStore::new()).name("invoices").build()?;
    /// let guard = leases.lock("report").wait()?;
    /// let mut page = String::new();
    /// leases.metrics().openmetrics(&mut page);
    /// assert!(page.contains("tourbillon_leases_kept{type=\"leases\",name=\"invoices\"} 1\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("prometheus", "openmetrics"))]
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let keep_alive = &self.inner.keep_alive;
        let renewals = keep_alive.stats();
        let stats = self.inner.stats_with(renewals);
        let mut collector = keep_alive.collector("leases");
        let c = &mut collector;
        keep_alive.collect(c, &renewals);
        c.gauge(
            "tourbillon_leases_releases_queued",
            "Releases that nobody waits for and that the store has not answered yet.",
            stats.releases_queued as u64,
        );
        c.counter(
            "tourbillon_leases_released_total",
            "Locks that the store gave back when it was asked to.",
            stats.released,
        );
        c.counter(
            "tourbillon_leases_asked_total",
            "Acquires that began.",
            stats.asked,
        );
        c.counter(
            "tourbillon_leases_granted_total",
            "Acquires that returned a guard.",
            stats.granted,
        );
        c.counter(
            "tourbillon_leases_refused_total",
            "Acquires that ended since somebody else held the lock.",
            stats.refused,
        );
        c.counter(
            "tourbillon_leases_acquires_failed_total",
            "Acquires that ended with another error.",
            stats.acquires_failed,
        );
        c.counter(
            "tourbillon_leases_abandoned_total",
            "Acquires whose future was dropped before it was ready.",
            stats.abandoned,
        );
        c.gauge(
            "tourbillon_leases_waiting",
            "Acquires that have not returned yet.",
            stats.waiting,
        );
        collector.done()
    }
}
