//! A snapshot of the counters.

use std::hash::BuildHasher;

use super::handle::Handle;
use crate::engine::{Engine, Face};
use crate::stats::{Counters, Lateness};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Counters and gauges of a scheduler, at one moment; see [`Handle::stats`].
///
/// The armings balance: `scheduled = ran + cancelled + replaced + handed_back + pending`. Each
/// stripe is read under its lock, so the sum is exact even while the scheduler runs.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Counter: accepted armings.
    pub scheduled: u64,
    /// Counter: started tasks, those that run or panicked included.
    pub ran: u64,
    /// Counter: cancelled before they started, or dropped with the scheduler.
    pub cancelled: u64,
    /// Counter: replaced by a later arming of the same key before they started.
    pub replaced: u64,
    /// Counter: handed back at shutdown.
    pub handed_back: u64,
    /// Counter: runs that panicked.
    pub panicked: u64,
    /// Gauge: not started yet, queued ones included.
    pub pending: u64,
    /// Gauge: of those, the ones whose deadline has passed and that wait for a worker.
    pub queued: u64,
    /// Gauge: tasks that run.
    pub running: u64,
    /// Gauge: threads of the pool.
    pub workers: u64,
    /// Gauge: of those, the ones that wait for work.
    pub idle_workers: u64,
    /// Counter: how often a ticker found tasks waiting and the pool at its greatest size, with
    /// none of its tasks ending.
    pub saturated: u64,
    /// Counter: workers that could not be started.
    pub failed_spawns: u64,
    /// Counter: batches that the executor given to the builder refused or dropped. Their timers
    /// come again with the next tick.
    pub refused: u64,
    /// Counter: how often a ticker held back what was due for the [`pace`](crate::Builder::pace),
    /// until its next share. Counted once for all that waited for that share.
    pub held_back: u64,
    /// Counter: entries of an [`ExpiryMap`](crate::ExpiryMap) that expired when its channel or
    /// stream had no receiver any more, and were dropped. `ran` counts them, too. Entries that lay
    /// in the channel when its last receiver was dropped are not counted here.
    pub unreceived: u64,
    /// Counter: panics on a ticker thread, after each of which it went on. Always 0, unless there
    /// is a bug in this crate.
    pub ticker_panics: u64,
    /// Per shard.
    pub shards: Vec<ShardStats>,
    lateness: Lateness,
}

/// What one shard contributes.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct ShardStats {
    /// Gauge: timers not started yet.
    pub pending: u64,
    /// Gauge: of those, the ones that wait for a worker.
    pub queued: u64,
    /// Start minus deadline of every task that started.
    pub lateness: Lateness,
    /// Of that, until it was queued: by the ticker, or by the call that found it due already.
    pub tick_lag: Lateness,
    /// Of that, from then until a worker started it.
    pub queue_lag: Lateness,
}

impl Stats {
    /// Whether every accepted arming is accounted for.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.scheduled
            == self.ran + self.cancelled + self.replaced + self.handed_back + self.pending
    }

    /// Start minus deadline of every task that started, over all shards.
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
    /// Counters, queue depth and lateness.
    ///
    /// # Complexity
    ///
    /// One lock per stripe, twice: some ten microseconds in all. Counting itself costs the calls
    /// nothing shared.
    #[must_use]
    pub fn stats(&self) -> Stats {
        collect(self.engine())
    }
}

pub(crate) fn collect<F: Face>(engine: &Engine<F>) -> Stats {
    let mut stats = Stats::default();
    let mut all = crate::stats::Latenesses::new();
    for shard in 0..engine.shards().shards() {
        let mut sum = Counters::default();
        for stripe in engine.stripes_of(Some(shard)) {
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
    stats.unreceived = engine.face.unreceived();
    let faults = engine.faults();
    // Relaxed: counts.
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    stats.saturated = count(&faults.saturated);
    stats.failed_spawns = count(&faults.spawn);
    stats.refused = count(&faults.refused);
    stats.ticker_panics = count(&faults.ticker);
    stats
}
