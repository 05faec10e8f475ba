//! The metrics that schedulers, maps and timers have in common, and those of schedulers.

use std::hash::BuildHasher;

use super::handle::Handle;
use super::stats::{Stats, collect_with_lateness};
use crate::engine::{Engine, Frontend};
use crate::metrics::{Collector, Distribution, Metrics};
use crate::stats::LatenessSums;

impl<K, S> Handle<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns counters, gauges and histograms of lateness as a list, with names for a metrics
    /// system. The guide has a [table](crate::guide::metrics) of them.
    ///
    /// # Complexity
    ///
    /// As for [`stats`](Self::stats), and some allocations.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon::Scheduler;
    /// let scheduler = Scheduler::<u64>::builder().name("requests").build()?;
    /// let mut page = String::new();
    /// scheduler.handle().metrics().openmetrics(&mut page);
    /// assert!(page.contains("tourbillon_ran_total{type=\"scheduler\",name=\"requests\"} 0\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        metrics_of(self.engine(), "scheduler")
    }
}

/// The metrics of an engine whose payloads are tasks.
pub(crate) fn metrics_of<F: Frontend>(engine: &Engine<F>, kind: &'static str) -> Metrics {
    let (stats, lateness) = collect_with_lateness(engine);
    let mut collector = collector(engine, kind);
    let c = &mut collector;
    c.counter(
        "tourbillon_scheduled_total",
        "Timers that were scheduled, with each round of a repeating one.",
        stats.scheduled,
    );
    c.counter(
        "tourbillon_ran_total",
        "Tasks that were started.",
        stats.ran,
    );
    c.counter(
        "tourbillon_cancelled_total",
        "Timers that were cancelled before they started.",
        stats.cancelled,
    );
    common(c, &stats, &lateness);
    collector.done()
}

/// Begins the list of an engine.
pub(crate) fn collector<F: Frontend>(engine: &Engine<F>, kind: &'static str) -> Collector {
    let name = match engine.name() {
        Some(name) => name.to_owned(),
        None => engine.tag().to_string(),
    };
    Collector::new([("type", kind.to_owned()), ("name", name)])
}

/// Adds the metrics that all engines have.
pub(crate) fn common(c: &mut Collector, stats: &Stats, lateness: &LatenessSums) {
    c.counter(
        "tourbillon_replaced_total",
        "Timers or entries that were replaced by another one of their key.",
        stats.replaced,
    );
    c.counter(
        "tourbillon_handed_back_total",
        "Timers or entries that a shutdown handed back.",
        stats.handed_back,
    );
    c.counter(
        "tourbillon_panicked_total",
        "Tasks or handlers that panicked.",
        stats.panicked,
    );
    c.gauge(
        "tourbillon_pending",
        "Timers or entries that have not started, including queued ones.",
        stats.pending,
    );
    c.gauge(
        "tourbillon_queued",
        "Timers or entries that are due and wait for a worker.",
        stats.queued,
    );
    c.gauge(
        "tourbillon_running",
        "Tasks or handlers that run.",
        stats.running,
    );
    c.gauge(
        "tourbillon_workers",
        "Workers, on a runtime those that it shares with others.",
        stats.workers,
    );
    c.gauge(
        "tourbillon_idle_workers",
        "Workers that wait for work, on a runtime those that it shares with others.",
        stats.idle_workers,
    );
    c.counter(
        "tourbillon_saturated_total",
        "Times that a ticker began to find tasks waiting while no worker could be added.",
        stats.saturated,
    );
    c.counter(
        "tourbillon_failed_spawns_total",
        "Threads that the system refused to the pool.",
        stats.failed_spawns,
    );
    c.counter(
        "tourbillon_refused_total",
        "Batches that the executor of the program refused or dropped.",
        stats.refused,
    );
    c.counter(
        "tourbillon_held_back_total",
        "Times that a ticker held due timers or entries back for the pace.",
        stats.held_back,
    );
    c.counter(
        "tourbillon_ticker_panics_total",
        "Panics on ticker threads, which are bugs of the crate.",
        stats.ticker_panics,
    );
    let of = Distribution::of;
    c.histogram(
        "tourbillon_lateness_seconds",
        "Start of a task or handler minus its deadline.",
        of(&lateness.total),
    );
    c.histogram(
        "tourbillon_tick_lag_seconds",
        "The part of the lateness until the timer or entry was queued.",
        of(&lateness.tick),
    );
    c.histogram(
        "tourbillon_queue_lag_seconds",
        "The part of the lateness in the queue of the pool.",
        of(&lateness.queue),
    );
}
