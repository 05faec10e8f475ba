//! A snapshot of the counters.

use std::hash::BuildHasher;

use super::handle::Handle;
use crate::engine::{Engine, Frontend};
use crate::stats::{Counters, Lateness, LatenessSums};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Counters and gauges of a scheduler at one moment; see [`Handle::stats`].
///
/// The armings balance: `scheduled = ran + cancelled + replaced + handed_back + pending`. Each
/// stripe is read under its lock, so the sum is exact even while the scheduler runs.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Scheduler;
/// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// let timers = scheduler.handle();
/// timers.schedule("a", Duration::from_secs(1), |_| ())?;
/// timers.schedule("b", Duration::from_secs(2), |_| ())?;
/// scheduler.advance(Duration::from_secs(1));
/// let stats = timers.stats();
/// assert_eq!((stats.scheduled, stats.ran, stats.pending), (2, 1, 1));
/// assert!(stats.balances());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// Counter: accepted armings.
    pub scheduled: u64,
    /// Counter: started tasks, including those that still run and those that panicked.
    pub ran: u64,
    /// Counter: armings cancelled before they started, or dropped with the scheduler.
    pub cancelled: u64,
    /// Counter: armings replaced by a later arming of the same key before they started.
    pub replaced: u64,
    /// Counter: armings handed back at shutdown.
    pub handed_back: u64,
    /// Counter: runs that panicked.
    pub panicked: u64,
    /// Gauge: armings not started yet, including queued ones.
    pub pending: u64,
    /// Gauge: pending armings whose deadline has passed and that wait for a worker.
    pub queued: u64,
    /// Gauge: running tasks.
    pub running: u64,
    /// Gauge: workers, on a runtime those that it shares with others.
    pub workers: u64,
    /// Gauge: workers that wait for work.
    pub idle_workers: u64,
    /// Counter: how often a ticker began to find tasks waiting while no worker could be added.
    pub saturated: u64,
    /// Counter: how often the system refused a thread to the pool; see
    /// [`max_running`](crate::SchedulerBuilder::max_running).
    pub failed_spawns: u64,
    /// Counter: batches that the executor given to the builder refused or dropped. Their timers
    /// expire again with the next tick.
    pub refused: u64,
    /// Counter: how often a ticker held due entries back until its next share of the
    /// [`pace`](crate::SchedulerBuilder::pace). All entries that waited for one share count once.
    pub held_back: u64,
    /// Counter: panics on a ticker thread, which continues after each of them. Always 0, unless
    /// this crate has a bug.
    pub ticker_panics: u64,
    /// The numbers of each shard.
    pub shards: Vec<ShardStats>,
    lateness: Lateness,
}

/// The numbers of one shard.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Scheduler;
/// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// # let timers = scheduler.handle();
/// timers.schedule("a", Duration::from_secs(1), |_| ())?;
/// let stats = timers.stats();
/// assert_eq!(stats.shards.iter().map(|shard| shard.pending).sum::<u64>(), stats.pending);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ShardStats {
    /// Gauge: armings not started yet.
    pub pending: u64,
    /// Gauge: pending armings that wait for a worker.
    pub queued: u64,
    /// Start minus deadline of every task that started.
    pub lateness: Lateness,
    /// The part of the lateness until the task was queued, by the ticker or by the call that found
    /// it due.
    pub tick_lag: Lateness,
    /// The part of the lateness from then until a worker started the task.
    pub queue_lag: Lateness,
}

/// Gives a type a private method `named`, which iterates over the names and values of these fields.
macro_rules! named_values {
    ($Type:ident { $($field:ident),+ $(,)? }) => {
        impl $Type {
            fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($field), self.$field)),+].into_iter()
            }
        }
    };
}
pub(crate) use named_values;

named_values! {
    Stats {
        scheduled, ran, cancelled, replaced, handed_back, panicked, pending, queued, running, workers,
        idle_workers, saturated, failed_spawns, refused, held_back, ticker_panics
    }
}

impl Stats {
    /// Iterates over the names and values of all counters and gauges, for a metrics system. The
    /// gauges are `pending`, `queued`, `running`, `workers` and `idle_workers`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::new()?;
    /// for (name, value) in scheduler.handle().stats().iter() {
    ///     println!("timers_{name} {value}");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        self.named()
    }

    /// Returns whether every accepted arming is accounted for.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.scheduled
            == self.ran + self.cancelled + self.replaced + self.handed_back + self.pending
    }

    /// Returns start minus deadline of every task that started, over all shards.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// timers.schedule("a", Duration::from_secs(1), |_| ())?;
    /// scheduler.advance(Duration::from_secs(1));
    /// let lateness = timers.stats().lateness();
    /// println!("99 % started within {:?} of their deadline", lateness.p99);
    /// assert_eq!(lateness.count, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn lateness(&self) -> Lateness {
        self.lateness
    }
}

impl<K, S> Handle<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns counters, queue depth and lateness.
    ///
    /// # Complexity
    ///
    /// Takes one lock per stripe, twice: about ten microseconds in all. The counters are kept per
    /// stripe, so other calls pay nothing shared for them.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::new()?;
    /// # let timers = scheduler.handle();
    /// let stats = timers.stats();
    /// println!("{} pending, {} queued, {} panicked", stats.pending, stats.queued, stats.panicked);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        collect(self.engine())
    }
}

/// Sums the counters of all stripes.
pub(crate) fn collect<F: Frontend>(engine: &Engine<F>) -> Stats {
    collect_with_lateness(engine).0
}

/// Sums the counters of all stripes, and their histograms.
pub(crate) fn collect_with_lateness<F: Frontend>(engine: &Engine<F>) -> (Stats, LatenessSums) {
    let mut stats = Stats::default();
    let mut all = LatenessSums::new();
    for shard in 0..engine.shards().shards() {
        let mut sum = Counters::default();
        for stripe in engine.stripes_of(Some(shard)) {
            // All counters of a stripe are read under one hold of its lock, so that they balance.
            let (counters, running) = engine
                .shards()
                .peek(stripe, |stripe| (stripe.counters(), stripe.running()));
            sum.add(&counters);
            stats.running += running as u64;
        }
        stats.scheduled += sum.scheduled;
        stats.ran += sum.ran;
        stats.cancelled += sum.cancelled;
        stats.replaced += sum.replaced;
        stats.handed_back += sum.handed_back;
        stats.panicked += sum.panicked;
        stats.pending += sum.pending;
        stats.queued += sum.queued;
        let latenesses = engine.latenesses(Some(shard));
        all.merge(&latenesses);
        stats.shards.push(ShardStats {
            pending: sum.pending,
            queued: sum.queued,
            lateness: latenesses.total.summary(),
            tick_lag: latenesses.tick.summary(),
            queue_lag: latenesses.queue.summary(),
        });
    }
    stats.lateness = all.total.summary();
    stats.workers = engine.pool().workers() as u64;
    stats.idle_workers = engine.pool().sleeping() as u64;
    stats.held_back = engine.held_back();
    let faults = engine.faults();
    // Relaxed: counts.
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    stats.saturated = count(&faults.saturated);
    stats.failed_spawns = count(&faults.spawn);
    stats.refused = count(&faults.refused);
    stats.ticker_panics = count(&faults.ticker);
    (stats, all)
}
