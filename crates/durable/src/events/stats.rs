//! Counters and gauges.

use std::collections::BTreeMap;

use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Counters since the start, and gauges, of one [`Durable`](crate::Durable) with its clones.
///
/// Each number is exact, but they are not read at one moment.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon_durable::{Durable, Memory};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let timers = Durable::builder(Memory::new()).start()?;
/// # let minute = Duration::from_secs(60);
/// timers.schedule("pay-by", "order:7", 15 * minute, &7).wait()?;
/// let stats = timers.stats();
/// println!("{} runs, {} dead letters, {} at work", stats.runs, stats.dead, stats.running);
/// assert_eq!((stats.scheduled, stats.stopped_work), (1, 0));
/// # Ok(())
/// # }
/// ```
#[doc(alias("metrics", "counters", "prometheus"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DurableStats {
    /// Timers that were scheduled by calls of this value. Calls within a transaction of the user's
    /// are not counted, here and in the next two: the process does not know whether they committed.
    pub scheduled: u64,
    /// Timers that were moved.
    pub moved: u64,
    /// Timers that were cancelled before they started.
    pub cancelled: u64,
    /// Calls that were not carried out, or whose answer was lost, because of the store.
    pub failed_calls: u64,
    /// Commits that carried the calls.
    pub commits: u64,
    /// Runs whose handler was started.
    pub runs: u64,
    /// Runs whose handler succeeded.
    pub succeeded: u64,
    /// Runs whose handler returned an error, without panics.
    pub failed: u64,
    /// Runs whose handler panicked.
    pub panicked: u64,
    /// Runs that failed and are tried again.
    pub retried: u64,
    /// Timers that became dead letters.
    pub dead: u64,
    /// Runs that have ended when the timer was no longer this node's.
    pub fenced: u64,
    /// Timers that were given back since their payload does not parse.
    pub unreadable: u64,
    /// Timers that were too late to start. They are counted as dead, too.
    pub expired: u64,
    /// Timers that were given back before they started, at the end of a lease or at a stop.
    pub given_back: u64,
    /// How often the store has refused to claim or to settle one timer. See
    /// [`DurableEvent::Refused`](crate::DurableEvent::Refused).
    pub refused: u64,
    /// Calls of the node to the store that failed, refusals among them.
    pub store_errors: u64,
    /// How many kinds of [work](crate::StoreWork) with the store have stopped now. It is not 0 from
    /// [`StoreDown`](crate::DurableEvent::StoreDown) until
    /// [`StoreUp`](crate::DurableEvent::StoreUp).
    pub stopped_work: u64,
    /// Calls, of users and of the node, that found [another
    /// store](crate::DurableEvent::StoreReplaced) than the one that was opened.
    pub replaced: u64,
    /// How often others have declared this node gone.
    pub gone: u64,
    /// Rings of the store's doorbell that concerned a queue of this node.
    pub rings: u64,
    /// How many handlers run now.
    pub running: u64,
    /// How many timers that are due soon the node holds in memory now.
    pub coming: u64,
}

macro_rules! counters {
    ($(#[$meta:meta])* $Type:ident: $($name:ident),*) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        pub(crate) struct $Type {
            $(pub(crate) $name: Counter,)*
        }

        impl $Type {
            /// Adds the numbers to those that have the same names.
            fn add_to(&self, stats: &mut DurableStats) {
                $(stats.$name += self.$name.get();)*
            }
        }
    };
}

counters!(
    /// The numbers behind [`DurableStats`] that belong to no queue of the node.
    NodeCounters:
    scheduled, moved, cancelled, failed_calls, commits, store_errors, stopped_work, replaced, gone,
    rings, coming
);

counters!(
    /// The numbers behind [`DurableStats`] of one queue that the node handles.
    QueueCounters:
    runs, succeeded, failed, panicked, retried, dead, fenced, unreadable, expired, given_back,
    refused, running
);

/// All numbers behind [`DurableStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) node: NodeCounters,
    /// Dead letters of claims. The store does not say of which queues.
    pub(crate) dead_by_crashes: Counter,
    /// The queues with handlers.
    queues: BTreeMap<Arc<str>, Arc<QueueCounters>>,
    /// What a store says about other queues. No store should.
    others: Arc<QueueCounters>,
}

impl Counters {
    pub(crate) fn new(queues: impl Iterator<Item = Arc<str>>) -> Self {
        Counters {
            queues: queues.map(|queue| (queue, Arc::default())).collect(),
            ..Counters::default()
        }
    }

    /// The numbers of one queue.
    pub(crate) fn of(&self, queue: &str) -> &Arc<QueueCounters> {
        self.queues.get(queue).unwrap_or(&self.others)
    }

    /// The queues with handlers and their numbers, by name.
    pub(crate) fn queues(&self) -> impl Iterator<Item = (&str, &QueueCounters)> {
        let queues = self.queues.iter();
        queues.map(|(queue, counters)| (&**queue, &**counters))
    }

    /// How many handlers run now.
    pub(crate) fn running(&self) -> u64 {
        self.queues().map(|(_, queue)| queue.running.get()).sum()
    }

    pub(crate) fn stats(&self) -> DurableStats {
        let mut stats = DurableStats::default();
        self.node.add_to(&mut stats);
        stats.dead += self.dead_by_crashes.get();
        for queue in self.queues.values().chain([&self.others]) {
            queue.add_to(&mut stats);
        }
        stats
    }
}

/// One number.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, number: u64) {
        // Relaxed: nothing else is read by way of a counter.
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    pub(crate) fn increment(&self) {
        self.add(1);
    }

    pub(crate) fn decrement(&self) {
        // Relaxed: nothing else is read by way of a counter.
        let before = self.0.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "what is counted down was counted before");
    }

    pub(crate) fn set(&self, number: u64) {
        // Relaxed: nothing else is read by way of a gauge.
        self.0.store(number, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        // Relaxed: nothing else is read by way of a counter.
        self.0.load(Ordering::Relaxed)
    }
}
