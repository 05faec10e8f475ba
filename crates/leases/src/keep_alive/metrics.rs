//! The metrics of renewals.

use tourbillon::metrics::{Collector, Distribution, Metrics};

use super::{KeepAlive, KeepAliveStats};

impl<K: Clone + Send + Sync + 'static> KeepAlive<K> {
    /// Returns the gauges and counters, and a histogram, as a list with names for a metrics system.
    ///
    /// It has the metrics of [`Leases::metrics`](crate::Leases::metrics), except those of acquires
    /// and releases. Their label `type` is `keep_alive`.
    ///
    /// # Complexity
    ///
    /// As for [`stats`](Self::stats).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{KeepAlive, Outcome};
    /// let sessions = KeepAlive::<u64>::builder()
    ///     .name("sessions")
    ///     .build(async |batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
    /// let session = sessions.keep(7, Duration::from_secs(30))?;
    /// let text = sessions.metrics().to_string();
    /// assert!(text.contains("tourbillon_leases_kept{type=\"keep_alive\",name=\"sessions\"} 1\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let mut collector = self.collector("keep_alive");
        self.collect(&mut collector, &self.stats());
        collector.done()
    }

    /// Begins a list.
    pub(in super::super) fn collector(&self, kind: &str) -> Collector {
        let name = self.renewal_loop.name.clone();
        Collector::new([("type", kind.to_owned()), ("name", name)])
    }

    /// Adds the metrics of renewals.
    pub(in super::super) fn collect(&self, c: &mut Collector, stats: &KeepAliveStats) {
        c.gauge(
            "tourbillon_leases_kept",
            "Locks or other keys that are kept.",
            stats.kept as u64,
        );
        c.gauge(
            "tourbillon_leases_armed",
            "Timers that are armed.",
            stats.armed as u64,
        );
        c.gauge(
            "tourbillon_leases_destinations",
            "Destinations of what is kept.",
            stats.destinations as u64,
        );
        c.counter(
            "tourbillon_leases_renewed_total",
            "Renewals that succeeded.",
            stats.renewed,
        );
        c.counter(
            "tourbillon_leases_failed_total",
            "Attempts to renew that failed.",
            stats.failed,
        );
        c.counter(
            "tourbillon_leases_lost_total",
            "Locks or other keys that were lost.",
            stats.lost,
        );
        c.counter(
            "tourbillon_leases_batches_total",
            "Calls that renewed one or more keys.",
            stats.batches,
        );
        c.counter(
            "tourbillon_leases_sent_alone_total",
            "Batches that were refused as a whole and tried key by key.",
            stats.sent_alone,
        );
        c.counter(
            "tourbillon_leases_late_total",
            "Calls to renew that began late, by more than a sixth of a lease.",
            stats.late,
        );
        c.counter(
            "tourbillon_leases_given_up_total",
            "Renewals whose call did not return in time.",
            stats.given_up,
        );
        c.counter(
            "tourbillon_leases_events_missed_total",
            "Events that were left out, since a channel was full or a callback was behind.",
            stats.events_missed,
        );
        c.gauge(
            "tourbillon_leases_most_renewals",
            "Renewals of the kept key that was renewed most often.",
            stats.most_renewals,
        );
        // A forked copy of the process has no timers, and their locks may stay locked there.
        let lateness = match self.is_forked() {
            true => Distribution::default(),
            false => self.renewal_loop.timers.lateness(),
        };
        c.histogram("tourbillon_leases_timer_lateness_seconds", "Start of what a timer of the leases does, such as to queue a renewal, minus its deadline.", lateness);
    }
}
