//! What a page shows: stores of durable timers, locks, and parts of this process.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tourbillon::metrics::Metrics;
use tourbillon::{ExpiryMap, Handle, Health, MapHasher, Timer};
use tourbillon_durable::{
    CallError, DeadFilter, DeadTimer, Durable, Paging, QueueCounts, StoredNode, StoredState,
    StoredTimer, TimerFilter,
};
use tourbillon_leases::{HeldLock, Leases, LockPaging};

use crate::samples::Samples;
use crate::snapshots::{Seen, Snapshots};

/// How long the page waits for one answer of a store.
const LIMIT: Duration = Duration::from_secs(5);

/// The shortest time between two questions for the metrics of the queues.
const METRICS_EVERY: Duration = Duration::from_secs(30);

/// How many questions to a store are under way at one time.
const AT_ONE_TIME: usize = 2;

/// A part of this process that has metrics and health.
///
/// # Examples
///
/// ```
/// use tourbillon::{Scheduler, Timer};
/// use tourbillon_web::Page;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let requests = Scheduler::<u64>::builder().name("requests").build()?;
/// let timeouts = Timer::builder().name("timeouts").build()?;
/// let page = Page::new().instance(requests.handle().clone()).instance(timeouts);
/// # Ok(())
/// # }
/// ```
pub trait Instance: Send + Sync + 'static {
    /// Its metrics. One of their labels is its name.
    fn metrics(&self) -> Metrics;
    /// Whether it is alive and ready.
    fn health(&self) -> Health;
}

impl<K, S> Instance for Handle<K, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn metrics(&self) -> Metrics {
        Handle::metrics(self)
    }

    fn health(&self) -> Health {
        Handle::health(self)
    }
}

impl<K, V, S> Instance for ExpiryMap<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
    S: MapHasher + Sync,
{
    fn metrics(&self) -> Metrics {
        ExpiryMap::metrics(self)
    }

    fn health(&self) -> Health {
        ExpiryMap::health(self)
    }
}

impl Instance for Timer {
    fn metrics(&self) -> Metrics {
        Timer::metrics(self)
    }

    fn health(&self) -> Health {
        Timer::health(self)
    }
}

impl Instance for Durable {
    fn metrics(&self) -> Metrics {
        Durable::metrics(self)
    }

    fn health(&self) -> Health {
        Durable::health(self)
    }
}

impl Instance for Leases {
    fn metrics(&self) -> Metrics {
        Leases::metrics(self)
    }

    fn health(&self) -> Health {
        Leases::health(self)
    }
}

/// Which timers a page lists.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct ListQuery {
    pub(crate) queue: Option<String>,
    pub(crate) keys: String,
    pub(crate) state: Option<StoredState>,
    /// Only timers with a schedule.
    pub(crate) schedules: bool,
    /// The last timer of the page before: due, in microseconds since 1970, queue and key.
    pub(crate) after: Option<(i64, String, String)>,
    pub(crate) limit: u32,
}

/// Which dead letters a page lists.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct DeadQuery {
    pub(crate) queue: Option<String>,
    pub(crate) keys: String,
    pub(crate) older_than: Option<Duration>,
    pub(crate) after: i64,
    pub(crate) limit: u32,
}

impl DeadQuery {
    pub(crate) fn filter(&self) -> DeadFilter {
        let filter = self.queue.as_deref();
        let filter = filter.map_or_else(DeadFilter::all, DeadFilter::queue);
        let filter = filter.prefix(&self.keys);
        match self.older_than {
            Some(age) => filter.older_than(age),
            None => filter,
        }
    }
}

/// Durable timers, and the last answers of their store.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) name: String,
    pub(crate) timers: Durable,
    pub(crate) samples: Samples,
    turns: Arc<Semaphore>,
    counts: Snapshots<(), Vec<QueueCounts>>,
    nodes: Snapshots<(), Vec<StoredNode>>,
    metrics: Snapshots<(), Metrics>,
    lists: Snapshots<ListQuery, Vec<StoredTimer>>,
    single: Snapshots<(String, String), Option<StoredTimer>>,
    dead: Snapshots<DeadQuery, Vec<DeadTimer>>,
}

impl Store {
    pub(crate) fn new(name: String, timers: Durable) -> Self {
        Store {
            name,
            timers,
            samples: Samples::default(),
            turns: Arc::new(Semaphore::new(AT_ONE_TIME)),
            counts: Snapshots::default(),
            nodes: Snapshots::default(),
            metrics: Snapshots::every(METRICS_EVERY),
            lists: Snapshots::default(),
            single: Snapshots::default(),
            dead: Snapshots::default(),
        }
    }

    /// Shows what an action has changed on the next page.
    pub(crate) fn renew(&self) {
        self.counts.renew();
        self.lists.renew();
        self.single.renew();
        self.dead.renew();
    }

    pub(crate) async fn counts(&self) -> Seen<Vec<QueueCounts>> {
        let timers = self.timers.clone();
        let ask = async move || timers.counts().within(LIMIT).await.map_err(words);
        self.counts.get((), &self.turns, ask).await
    }

    /// The nodes that are not gone.
    pub(crate) async fn nodes(&self) -> Seen<Vec<StoredNode>> {
        let timers = self.timers.clone();
        let ask = async move || {
            let mut nodes = timers.nodes().within(LIMIT).await.map_err(words)?;
            nodes.retain(|node| node.gone.is_none());
            Ok(nodes)
        };
        self.nodes.get((), &self.turns, ask).await
    }

    /// The metrics of the queues.
    pub(crate) async fn metrics(&self) -> Seen<Metrics> {
        let timers = self.timers.clone();
        let ask = async move || timers.store_metrics().within(LIMIT).await.map_err(words);
        self.metrics.get((), &self.turns, ask).await
    }

    pub(crate) async fn list(&self, query: ListQuery) -> Seen<Vec<StoredTimer>> {
        let (timers, asked) = (self.timers.clone(), query.clone());
        let ask = async move || {
            let filter = asked.queue.as_deref();
            let filter = filter.map_or_else(TimerFilter::all, TimerFilter::queue);
            let mut filter = filter.prefix(&asked.keys);
            if let Some(state) = asked.state {
                filter = filter.state(state);
            }
            if asked.schedules {
                filter = filter.schedules();
            }
            let paging = match asked.after {
                Some((due, queue, key)) => {
                    Paging::behind(crate::times::of_micros(due), queue, key, asked.limit)
                }
                None => Paging::first(asked.limit),
            };
            let found = timers.list(filter, &paging).within(LIMIT);
            let mut found = found.await.map_err(words)?;
            // Lists show no payloads, and of metas the schedules alone. Many lists are kept.
            for timer in &mut found {
                timer.payload = String::new();
                if timer.schedule().is_none() {
                    timer.meta = None;
                }
            }
            Ok(found)
        };
        self.lists.get(query, &self.turns, ask).await
    }

    pub(crate) async fn timer(&self, queue: &str, key: &str) -> Seen<Option<StoredTimer>> {
        let timers = self.timers.clone();
        let name = (queue.to_owned(), key.to_owned());
        let (queue, key) = name.clone();
        let ask = async move || timers.get(&queue, &key).within(LIMIT).await.map_err(words);
        self.single.get(name, &self.turns, ask).await
    }

    /// Dead letters, without their payloads if nobody may see them.
    pub(crate) async fn dead(
        &self,
        query: DeadQuery,
        shows_payloads: bool,
    ) -> Seen<Vec<DeadTimer>> {
        let (timers, asked) = (self.timers.clone(), query.clone());
        let ask = async move || {
            let found = timers.dead(asked.filter(), asked.after, asked.limit);
            let mut found = found.within(LIMIT).await.map_err(words)?;
            for letter in &mut found {
                letter.meta = None;
                if !shows_payloads {
                    letter.payload = String::new();
                }
            }
            Ok(found)
        };
        self.dead.get(query, &self.turns, ask).await
    }
}

/// Leases, and the last answers of their server.
#[derive(Debug)]
pub(crate) struct Locks {
    pub(crate) name: String,
    pub(crate) leases: Leases,
    turns: Arc<Semaphore>,
    /// With the locks, whether there are more.
    held: Snapshots<(String, usize), (Vec<HeldLock>, bool)>,
}

impl Locks {
    pub(crate) fn new(name: String, leases: Leases) -> Self {
        Locks {
            name,
            leases,
            turns: Arc::new(Semaphore::new(AT_ONE_TIME)),
            held: Snapshots::default(),
        }
    }

    pub(crate) async fn held(&self, names: &str, most: usize) -> Seen<(Vec<HeldLock>, bool)> {
        let (leases, prefix) = (self.leases.clone(), names.to_owned());
        let ask = async move || {
            // By name: a name may come in several pages.
            let (began, mut held) = (Instant::now(), BTreeMap::new());
            let mut paging = LockPaging::first(most);
            let more = loop {
                let page = leases.list(&prefix, &paging).await;
                let page = page.map_err(|error| format!("The server does not answer: {error}"))?;
                held.extend(page.locks.into_iter().map(|lock| (lock.name.clone(), lock)));
                let Some(next) = page.next else {
                    break held.len() > most;
                };
                // The reader waits. What was found until then is shown.
                if held.len() >= most || began.elapsed() >= LIMIT {
                    break true;
                }
                paging = next;
            };
            Ok((held.into_values().take(most).collect(), more))
        };
        self.held
            .get((names.to_owned(), most), &self.turns, ask)
            .await
    }
}

fn words(error: CallError) -> String {
    match error {
        CallError::Invalid(invalid) => format!("The question can't be asked: {invalid}"),
        error => format!("The store does not answer: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use tourbillon_durable::Memory;

    use super::*;

    #[tokio::test]
    async fn lists_keep_no_payloads() {
        let timers = Durable::builder(Memory::new()).start().unwrap();
        let far = Duration::from_secs(3_600);
        timers.schedule("mail", "7", far, "secret").wait().unwrap();
        let store = Store::new("shop".to_owned(), timers);
        let query = ListQuery {
            limit: 10,
            ..ListQuery::default()
        };
        let list = store.list(query).await;
        assert_eq!(list.get().unwrap()[0].payload, "");
        let single = store.timer("mail", "7").await;
        let single = single.get().unwrap().as_ref().unwrap();
        assert_eq!(single.payload, "\"secret\"");
    }
}
