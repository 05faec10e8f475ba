//! Metrics of a process, and of a store.

use std::time::{Duration, SystemTime};

use tourbillon::metrics::{Collector, Distribution, Metrics};

use super::{Durable, Inner};
use crate::calls::Sent;
use crate::events::{DurableStats, QueueCounters};
use crate::store::QueueCounts;
use crate::sync::Weak;

/// # Metrics
impl Durable {
    /// Returns the counters and gauges of this process, and a histogram, as a list with names for a
    /// metrics system. The store is not asked. The page on [operation](crate::guide::operation) has a
    /// table of them.
    ///
    /// What concerns runs is counted for each queue that has a handler here, with the label
    /// `queue`. The list can be joined with those of other instances, also of the crate
    /// `tourbillon`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Due, Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new())
    ///     .name("shop")
    ///     .handle("mail", |due: &Due<String>| println!("to {}", due.payload()))
    ///     .start()?;
    /// let mut page = String::new();
    /// timers.metrics().openmetrics(&mut page);
    /// assert!(page.contains("tourbillon_durable_runs_total{name=\"shop\",queue=\"mail\"} 0\n"));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("prometheus", "openmetrics"))]
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let inner = self.inner();
        let mut collector = Collector::new([("name", inner.label.clone())]);
        of_process(&mut collector, inner);
        for (queue, counters) in inner.counters.queues() {
            let name = inner.label.clone();
            collector.labels([("name", name), ("queue", queue.to_owned())]);
            of_queue(&mut collector, counters);
        }
        collector.done()
    }

    /// Asks the store for [`counts`](Self::counts), and returns them as a list with names for a metrics
    /// system: what waits, is overdue or runs in each queue, on all nodes together, and its dead
    /// letters.
    ///
    /// The store reads all timers for that. Call it once a minute, keep the list, and join it with
    /// [`metrics`](Self::metrics) for each answer.
    ///
    /// # Errors
    ///
    /// [`CallError`](crate::CallError) says why they can't be read.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has read it: see [`Sent::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).name("shop").start()?;
    /// timers.schedule("mail", "welcome:7", Duration::from_secs(60), "anna@example.com").wait()?;
    /// let mut metrics = timers.metrics();
    /// metrics.extend(timers.store_metrics().wait()?);
    /// let text = metrics.to_string();
    /// assert!(text.contains("tourbillon_durable_queue_waiting{name=\"shop\",queue=\"mail\"} 1\n"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn store_metrics(&self) -> Sent<Metrics> {
        let name = self.inner().label.clone();
        self.read(Ok(()), move |(), connection| {
            let (counts, now) = (connection.counts()?, SystemTime::now());
            let mut collector = Collector::new([]);
            for queue in &counts {
                collector.labels([("name", name.clone()), ("queue", queue.queue.clone())]);
                of_counts(&mut collector, queue, now);
            }
            Ok(collector.done())
        })
    }
}

/// What belongs to no queue with a handler.
fn of_process(c: &mut Collector, inner: &Inner) {
    let stats: DurableStats = inner.counters.stats();
    let dead_by_crashes = inner.counters.dead_by_crashes.get();
    c.counter(
        "tourbillon_durable_scheduled_total",
        "Timers that were scheduled by calls.",
        stats.scheduled,
    );
    c.counter(
        "tourbillon_durable_moved_total",
        "Timers that were moved by calls.",
        stats.moved,
    );
    c.counter(
        "tourbillon_durable_cancelled_total",
        "Timers that were cancelled by calls before they started.",
        stats.cancelled,
    );
    c.counter(
        "tourbillon_durable_failed_calls_total",
        "Calls that the store did not carry out, or whose answer was lost.",
        stats.failed_calls,
    );
    c.counter(
        "tourbillon_durable_commits_total",
        "Commits that carried calls.",
        stats.commits,
    );
    c.counter(
        "tourbillon_durable_dead_by_crashes_total",
        "Timers that became dead letters since their nodes died too often.",
        dead_by_crashes,
    );
    c.counter(
        "tourbillon_durable_store_errors_total",
        "Calls of the node to the store that failed.",
        stats.store_errors,
    );
    c.gauge(
        "tourbillon_durable_stopped_work",
        "Kinds of work with the store that have stopped, 0 without an outage.",
        stats.stopped_work,
    );
    c.counter(
        "tourbillon_durable_replaced_total",
        "Calls that found another store than the one that was opened.",
        stats.replaced,
    );
    c.counter(
        "tourbillon_durable_gone_total",
        "Times that others have declared this node gone.",
        stats.gone,
    );
    c.counter(
        "tourbillon_durable_rings_total",
        "Rings of the store's doorbell for queues of this node.",
        stats.rings,
    );
    c.gauge(
        "tourbillon_durable_coming",
        "Timers due soon that the node holds in memory.",
        stats.coming,
    );
    // A forked copy has no pool, and its locks may stay locked there.
    let pool = inner.node.as_ref().and_then(|node| node.pool.as_ref());
    let pool = pool.filter(|_| !inner.origin.is_elsewhere());
    let delay = pool
        .and_then(Weak::upgrade)
        .map_or_else(Distribution::default, |pool| {
            pool.metrics().histogram("tourbillon_lateness_seconds")
        });
    c.histogram(
        "tourbillon_durable_start_delay_seconds",
        "Time that claimed runs of closures waited for a worker.",
        delay,
    );
}

/// The counters of one queue that has a handler.
fn of_queue(c: &mut Collector, queue: &QueueCounters) {
    c.counter(
        "tourbillon_durable_runs_total",
        "Runs whose handler was started.",
        queue.runs.get(),
    );
    c.counter(
        "tourbillon_durable_succeeded_total",
        "Runs whose handler succeeded.",
        queue.succeeded.get(),
    );
    c.counter(
        "tourbillon_durable_failed_total",
        "Runs whose handler returned an error.",
        queue.failed.get(),
    );
    c.counter(
        "tourbillon_durable_panicked_total",
        "Runs whose handler panicked.",
        queue.panicked.get(),
    );
    c.counter(
        "tourbillon_durable_retried_total",
        "Runs that failed and are tried again.",
        queue.retried.get(),
    );
    c.counter(
        "tourbillon_durable_dead_total",
        "Timers that became dead letters after errors, or since they were too late.",
        queue.dead.get(),
    );
    c.counter(
        "tourbillon_durable_fenced_total",
        "Runs that ended when the timer was no longer that of the node.",
        queue.fenced.get(),
    );
    c.counter(
        "tourbillon_durable_unreadable_total",
        "Timers that were given back since their payload does not parse.",
        queue.unreadable.get(),
    );
    c.counter(
        "tourbillon_durable_expired_total",
        "Timers that were too late to start.",
        queue.expired.get(),
    );
    c.counter(
        "tourbillon_durable_given_back_total",
        "Timers that were given back before they started.",
        queue.given_back.get(),
    );
    c.counter(
        "tourbillon_durable_refused_total",
        "Refusals of the store to claim or to settle one timer.",
        queue.refused.get(),
    );
    c.gauge(
        "tourbillon_durable_running",
        "Handlers that run in this process.",
        queue.running.get(),
    );
}

/// What a store says about a queue.
fn of_counts(c: &mut Collector, queue: &QueueCounts, now: SystemTime) {
    c.gauge(
        "tourbillon_durable_queue_waiting",
        "Timers in the store that wait for their due time.",
        queue.waiting,
    );
    c.gauge(
        "tourbillon_durable_queue_overdue",
        "Timers in the store that are due and not claimed.",
        queue.overdue,
    );
    c.gauge(
        "tourbillon_durable_queue_running",
        "Timers in the store that any node runs.",
        queue.running,
    );
    c.gauge(
        "tourbillon_durable_queue_dead_letters",
        "Dead letters in the store.",
        queue.dead,
    );
    c.gauge(
        "tourbillon_durable_queue_paused",
        "Whether the queue is paused: 1 or 0.",
        queue.paused.into(),
    );
    let behind = queue
        .oldest
        .and_then(|oldest| now.duration_since(oldest).ok());
    c.seconds("tourbillon_durable_queue_behind_seconds", "Time since the earliest due time of timers that are not claimed, by the clock of this machine.", behind.unwrap_or(Duration::ZERO));
}
