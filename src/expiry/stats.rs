//! A snapshot of a map's counters, in the map's own words.

use super::frontend::{Expired, Reason};
use super::{ExpiryMap, MapHasher};
use crate::engine::show_key;
use crate::health::{Dump, Health};
use crate::metrics::Metrics;
use crate::scheduler::{
    ShardStats, Stats, collect_with_lateness, common_metrics, metrics_collector, named_values,
};
use crate::shard::Lookup;
use crate::stats::{Lateness, LatenessSums};
use crate::sync::atomic::Ordering;

/// Counters and gauges of an [`ExpiryMap`] at one moment; see [`ExpiryMap::stats`].
///
/// The entries balance: `inserted = expired + evicted + removed + replaced + handed_back +
/// pending`. An entry that is renamed while the counters are read may count as pending twice, or
/// not at all.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::ExpiryMap;
/// let stepped = ExpiryMap::<u64, &str>::builder()
///     .time_to_idle(Duration::from_secs(60))
///     .build_stepped(1, |_, _| ())?;
/// let map = stepped.map();
/// map.insert(7, "Ada")?;
/// map.insert(8, "Grace")?;
/// map.remove(&7);
/// stepped.advance(Duration::from_secs(60));
/// let stats = map.stats();
/// assert_eq!((stats.inserted, stats.removed, stats.expired), (2, 1, 1));
/// assert!(stats.balances());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ExpiryStats {
    /// Counter: accepted insertions.
    pub inserted: u64,
    /// Counter: entries whose delivery began, except evicted ones. Entries that a shutdown delivers
    /// count here, too.
    pub expired: u64,
    /// Counter: entries whose delivery began since their [group was
    /// full](crate::Reason::GroupFull). An evicted entry counts as `pending` until then.
    pub evicted: u64,
    /// Counter: entries that were removed, cleared, or dropped with the map.
    pub removed: u64,
    /// Counter: entries replaced by a later insertion of the same key.
    pub replaced: u64,
    /// Counter: entries handed back at shutdown.
    pub handed_back: u64,
    /// Gauge: entries in the map, including those that are due and wait for a worker.
    pub pending: u64,
    /// Gauge: entries that are due and wait for a worker.
    pub queued: u64,
    /// Gauge: deliveries in progress.
    pub running: u64,
    /// Counter: deliveries that panicked.
    pub panicked: u64,
    /// Counter: entries that expired when the channel or stream had no receiver any more, or the
    /// runtime of the handler's futures had ended, and were dropped. They also count as `expired`.
    /// Entries that were in the channel when its last receiver was dropped are not counted here.
    pub unreceived: u64,
    /// Counter: touches that found an entry that lives on.
    pub touched: u64,
    /// Counter: reads of an entry that found one, such as `get`, `with`, `update` and `contains`.
    pub found: u64,
    /// Counter: touches and reads that found none. A caller of
    /// [`or_compute`](crate::Entry::or_compute) counts here each time that it looks and finds none,
    /// also if it then gets a value that another caller has computed.
    pub missed: u64,
    /// Counter: how often a ticker held due entries back until its next share of the
    /// [`pace`](crate::ExpiryMapBuilder::pace). All entries that waited for one share count once.
    pub held_back: u64,
    /// Gauge: threads of the pool.
    pub workers: u64,
    /// Gauge: threads of the pool that wait for work.
    pub idle_workers: u64,
    /// Counter: how often a ticker began to find entries waiting while the pool was at its maximum
    /// size.
    pub saturated: u64,
    /// Counter: how often the system refused a thread to the pool; see
    /// [`max_running`](crate::ExpiryMapBuilder::max_running).
    pub failed_spawns: u64,
    /// Counter: batches that the executor given to the builder refused or dropped. Their entries
    /// expire again with the next tick.
    pub refused: u64,
    /// Counter: panics on a ticker thread, which continues after each of them. Always 0, unless
    /// this crate has a bug.
    pub ticker_panics: u64,
    /// The numbers of each shard.
    pub shards: Vec<ShardStats>,
    lateness: Lateness,
}

named_values! {
    ExpiryStats {
        inserted, expired, evicted, removed, replaced, handed_back, pending, queued, running, panicked,
        touched, found, missed, unreceived, held_back, workers, idle_workers, saturated, failed_spawns, refused, ticker_panics
    }
}

impl ExpiryStats {
    /// Returns whether every inserted entry is accounted for.
    #[must_use]
    pub fn balances(&self) -> bool {
        let left = self.expired + self.evicted + self.removed + self.replaced + self.handed_back;
        self.inserted == left + self.pending
    }

    /// Returns the start of each delivery minus the deadline of its entry, over all shards.
    #[must_use]
    pub fn lateness(&self) -> Lateness {
        self.lateness
    }

    /// Iterates over the names and values of all counters and gauges, for a metrics system. The
    /// gauges are `pending`, `queued`, `running`, `workers` and `idle_workers`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, &str>::builder().build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// map.insert(7, "Ada")?;
    /// for (name, value) in map.stats().iter() {
    ///     println!("sessions_{name} {value}");
    /// }
    /// assert!(map.stats().iter().any(|value| value == ("inserted", 1)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        self.named()
    }
}

impl<K, V, S> ExpiryMap<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Returns counters, queue depth and lateness.
    ///
    /// # Complexity
    ///
    /// Takes one lock per stripe, five times: about ten microseconds in all.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// map.insert(7, "Ada")?;
    /// map.insert(8, "Grace")?;
    /// map.remove(&7);
    /// let stats = map.stats();
    /// assert_eq!((stats.inserted, stats.removed, stats.pending), (2, 1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> ExpiryStats {
        self.collect().0
    }

    /// Returns whether the map is alive and ready; see [`Handle::health`](crate::Handle::health).
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon::ExpiryMap;
    /// let sessions = ExpiryMap::<u64, &str>::builder().build(|_, _| ())?;
    /// assert!(sessions.health().is_ready());
    /// # Ok::<(), tourbillon::BuildError>(())
    /// ```
    #[must_use]
    pub fn health(&self) -> Health {
        self.engine.health()
    }

    /// Returns what is pending by shard and time, and which handlers run, for people; see
    /// [`Handle::dump`](crate::Handle::dump). An entry is pending until its delivery begins.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// let idle = Duration::from_secs(1800);
    /// let sessions = ExpiryMap::<u64, &str>::builder().time_to_idle(idle).build(|_, _| ())?;
    /// sessions.insert(7, "Ada")?;
    /// let dump = sessions.dump();
    /// assert_eq!(dump.shards.iter().map(|shard| shard.within_hour).sum::<u64>(), 1);
    /// println!("{dump}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn dump(&self) -> Dump
    where
        K: std::fmt::Debug,
    {
        self.engine.dump("map", show_key)
    }

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
    /// # use tourbillon::ExpiryMap;
    /// let sessions = ExpiryMap::<u64, &str>::builder().name("sessions").build(|_, _| ())?;
    /// sessions.insert(7, "Ada")?;
    /// let text = sessions.metrics().to_string();
    /// assert!(text.contains("tourbillon_inserted_total{type=\"map\",name=\"sessions\"} 1\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let (map, stats, lateness) = self.collect();
        let mut collector = metrics_collector(&self.engine, "map");
        let c = &mut collector;
        c.counter(
            "tourbillon_inserted_total",
            "Entries that were inserted.",
            map.inserted,
        );
        c.counter(
            "tourbillon_expired_total",
            "Entries whose delivery began, except evicted ones.",
            map.expired,
        );
        c.counter(
            "tourbillon_evicted_total",
            "Entries whose delivery began since their group was full.",
            map.evicted,
        );
        c.counter(
            "tourbillon_removed_total",
            "Entries that were removed, cleared, or dropped with the map.",
            map.removed,
        );
        c.counter(
            "tourbillon_touched_total",
            "Touches that found an entry.",
            map.touched,
        );
        c.counter(
            "tourbillon_found_total",
            "Reads that found an entry.",
            map.found,
        );
        c.counter(
            "tourbillon_missed_total",
            "Touches and reads that found no entry.",
            map.missed,
        );
        c.counter(
            "tourbillon_unreceived_total",
            "Entries that expired when nobody received them any more.",
            map.unreceived,
        );
        common_metrics(c, &stats, &lateness);
        collector.done()
    }

    /// Collects the statistics in the words of a map and in those of the engine.
    fn collect(&self) -> (ExpiryStats, Stats, LatenessSums) {
        let frontend = &self.engine.frontend;
        // Read first: an evicted entry is counted after its start, so `ran` contains it. Acquire
        // pairs with the Release in `leaves`.
        let evicted = frontend.evicted.load(Ordering::Acquire);
        let (stats, all) = collect_with_lateness(&self.engine);
        let shards = self.engine.shards();
        let lookups = |lookup| {
            let stripes = 0..shards.stripes();
            let each = stripes.map(|at| shards.peek(at, |stripe| stripe.lookups(lookup)));
            each.sum()
        };
        let map = ExpiryStats {
            inserted: stats.scheduled,
            expired: stats.ran - evicted,
            evicted,
            removed: stats.cancelled,
            replaced: stats.replaced,
            handed_back: stats.handed_back,
            pending: stats.pending,
            queued: stats.queued,
            running: stats.running,
            panicked: stats.panicked,
            unreceived: frontend.unreceived(),
            touched: lookups(Lookup::Touched),
            found: lookups(Lookup::Found),
            // Relaxed: a count orders nothing.
            missed: lookups(Lookup::Missed) + frontend.missed.load(Ordering::Relaxed),
            held_back: stats.held_back,
            workers: stats.workers,
            idle_workers: stats.idle_workers,
            saturated: stats.saturated,
            failed_spawns: stats.failed_spawns,
            refused: stats.refused,
            ticker_panics: stats.ticker_panics,
            lateness: stats.lateness(),
            shards: stats.shards.clone(),
        };
        (map, stats, all)
    }
}

impl<K, V, S: MapHasher> ExpiryMap<K, V, S> {
    /// Tells the listener about an entry that is delivered next, and counts it if it was evicted.
    pub(super) fn leaves(&self, expired: &Expired<K, V>) {
        if expired.reason == Reason::GroupFull {
            self.engine.frontend.evicted.fetch_add(1, Ordering::Release);
        }
        self.removed(&expired.key, &expired.value, expired.reason);
    }
}
