//! Snapshots of the counters.

use super::Timer;
use crate::health::{Dump, Health};
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

    /// Returns whether the timer is alive and ready; see [`Handle::health`](crate::Handle::health).
    #[must_use]
    pub fn health(&self) -> Health {
        self.server.engine().health()
    }

    /// Returns what is pending and what runs, for people; see [`Handle::dump`](crate::Handle::dump).
    /// Sleeps and other waits are pending, too, and never run.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Timer;
    /// # let timer = Timer::new()?;
    /// let timeout = timer.after(Duration::from_secs(30), || ())?;
    /// let dump = timer.dump();
    /// assert_eq!(dump.shards.iter().map(|shard| shard.within_minute).sum::<u64>(), 1);
    /// println!("{dump}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn dump(&self) -> Dump {
        self.server.engine().dump("timer", |()| String::new())
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
