//! Snapshots of the counters.

use super::Timer;
use crate::metrics::Metrics;
use crate::scheduler::{Stats, collect_stats, metrics_of};

impl Timer {
    /// Returns counters, queue depth and lateness.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Timer;
    /// # let timer = Timer::new()?;
    /// let timeout = timer.after(Duration::from_secs(60), || ())?;
    /// let stats = timer.stats();
    /// assert_eq!((stats.scheduled, stats.pending), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        collect_stats(self.server.engine())
    }

    /// Returns counters, gauges and histograms of lateness as a list, with names for a metrics
    /// system; see [`Handle::metrics`](crate::Handle::metrics).
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon::Timer;
    /// let timer = Timer::builder().name("timeouts").build()?;
    /// let text = timer.metrics().to_string();
    /// assert!(text.contains("tourbillon_scheduled_total{type=\"timer\",name=\"timeouts\"} 0\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        metrics_of(self.server.engine(), "timer")
    }
}
