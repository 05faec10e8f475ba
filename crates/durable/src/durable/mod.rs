//! Timers that survive their process: the start, the calls, and the stop.

mod builder;
mod calls;
mod health;
mod many;
mod metrics;
mod reads;
#[cfg(feature = "test-util")]
mod stepped;
mod stop;
mod stop_state;
mod with_meta;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, SystemTime};

use tourbillon::Timer;

use self::stop::Stopper;
use crate::calls::{Alarm, Invalid, Sent, StartError, names};
use crate::client::{Hints, NearTimer, Outages, Reader, StoreHandle, Writers};
use crate::events::{Counters, DurableStats, EventSink};
use crate::node::{MOST_AWAKE, Near, NodeConfig, QueueConfig};
use crate::run::{
    self, LocalClock, Message, NodeEnd, NodeParts, NodeSender, NodeSigns, Plan, RunEvent, Runs,
    StoreClock, TraceContext,
};
use crate::store::{Meta, Store, StoreError, is_traceparent};
use crate::sync::atomic::AtomicBool;
use crate::sync::channel::{Receiver, Sender, bounded};
use crate::sync::{Arc, Origin, Weak, catch_panic};
use stop_state::StopState;

pub use self::reads::RevivedDead;
pub use self::with_meta::WithMeta;
pub use builder::{DurableBuilder, QueueBuilder};
pub use stop_state::StopReport;

/// Timers that survive restarts and dead machines. Clones share them.
///
/// A timer has a *queue*, which says what handles it, and a *key* within the queue, by which it is
/// moved and cancelled. At its due time, by the store's clock, one node that handles the queue runs
/// it. It is deleted when the handler has succeeded.
///
/// **Dropping the last clone** stops without a grace: see [`stop`](Self::stop). It waits for a
/// quarter of a second at most until the store knows, and not at all within a handler or, with the
/// feature `tokio`, within a runtime. A program that is about to exit should call `stop`.
///
/// A handler that has captured a clone keeps the timers alive until `stop` is called.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use serde::{Deserialize, Serialize};
/// use tourbillon_durable::{Due, Durable, Memory};
///
/// #[derive(Serialize, Deserialize)]
/// struct PayBy {
///     order: u64,
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let timers = Durable::builder(Memory::new())
///     .handle("pay-by", |due: &Due<PayBy>| println!("order {} is cancelled", due.payload().order))
///     .start()?;
/// timers.schedule("pay-by", "order:7", Duration::from_secs(900), &PayBy { order: 7 }).wait()?;
/// // The customer gets five minutes more ..
/// assert!(timers.reschedule("pay-by", "order:7", Duration::from_secs(1_200)).wait()?.is_moved());
/// // .. and pays.
/// assert!(timers.cancel("pay-by", "order:7").wait()?.is_cancelled());
/// timers.stop(Duration::from_secs(5)).wait()?;
/// # Ok(())
/// # }
/// ```
#[doc(alias("job queue", "task queue", "delayed job", "delay queue", "scheduler"))]
#[derive(Clone)]
pub struct Durable(Arc<Owner>);

/// Stops when the last `Durable` is dropped.
struct Owner(Arc<Inner>);

/// The state that all clones share with the thread that stops them.
struct Inner {
    writers: Writers,
    reader: Reader,
    node: Option<NodeLink>,
    counters: Arc<Counters>,
    outages: Arc<Outages>,
    /// For its clock.
    store: Arc<dyn Store>,
    /// The label `name` of metrics.
    label: String,
    alarm: Alarm,
    payload_limit: usize,
    trace_context: Option<TraceContext>,
    node_lease: Duration,
    /// The queues with handlers, so that their names need not be copied for each call.
    queues: Arc<HashSet<Arc<str>>>,
    stop: StopState,
    stopper: Stopper,
    /// In a forked copy of this process calls fail, and nothing is dropped.
    origin: Origin,
    /// Set when calls are refused.
    is_closed: AtomicBool,
    /// Disconnected when the threads that carry calls have ended.
    threads: Receiver<()>,
    /// Whether a test moves the clock.
    #[cfg(feature = "test-util")]
    is_stepped: bool,
}

struct NodeLink {
    sender: NodeSender,
    runs: Arc<Runs>,
    signs: Arc<NodeSigns>,
    /// The pool that runs closures, until the node has ended.
    pool: Option<Weak<Timer>>,
    /// Gets one message when the node has ended.
    end: Receiver<NodeEnd>,
}

impl Durable {
    /// Returns a builder for timers in this store. One that is chosen at run time is a `Box<dyn`
    /// [`Store`]`>`, with an example there.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::{Durable, Memory};
    ///
    /// // Without handlers: a client, which schedules what other processes run.
    /// let timers = Durable::builder(Memory::new()).start()?;
    /// # drop(timers);
    /// # Ok::<(), tourbillon_durable::StartError>(())
    /// ```
    pub fn builder(store: impl Store) -> DurableBuilder {
        DurableBuilder::new(Arc::new(store))
    }

    /// Returns counters since the start, and gauges, of this process.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// timers.schedule("pay-by", "order:7", Duration::from_secs(900), &7).wait()?;
    /// assert_eq!(timers.stats().scheduled, 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn stats(&self) -> DurableStats {
        self.0.0.counters.stats()
    }

    fn inner(&self) -> &Inner {
        &self.0.0
    }

    pub(crate) fn start(mut plan: Plan) -> Result<Self, StartError> {
        // Before threads start: a copy may be unable to start one, and would wait for it. A store
        // that panics here refuses nothing.
        if let Ok(Some(refusal)) = catch_panic(|| plan.store.refusal()) {
            return Err(StartError::Store(refusal));
        }
        let names = plan.queues.iter().map(|queue| Arc::clone(&queue.name));
        let counters = Arc::new(Counters::new(names));
        let events = EventSink::start(plan.listener.take()).map_err(StartError::Spawn)?;
        let run_events = EventSink::start(plan.run_listener.take()).map_err(StartError::Spawn)?;
        let outages = Outages::new(&counters, &events);
        let is_client = plan.queues.is_empty();
        let store_handle =
            StoreHandle::new(Arc::clone(&plan.store), Arc::clone(&outages), is_client);
        let names = plan.queues.iter().map(|queue| Arc::clone(&queue.name));
        let queues: Arc<HashSet<Arc<str>>> = Arc::new(names.collect());
        let node = (!is_client).then(NodeSender::new);

        // The threads that carry calls. The first one opens its connection.
        let hints = node.as_ref().map(|(sender, _)| Hints {
            queues: Arc::clone(&queues),
            within: plan.poll_interval * 2,
            tell: {
                let sender = sender.clone();
                Arc::new(move |near| sender.near(near.into_iter().map(Near::from).collect()))
            },
        });
        let alarm = Alarm::new(plan.runs_on.clone());
        let stopper = Stopper::start().map_err(StartError::Spawn)?;
        let (alive, threads) = bounded(0);
        let number = plan.store.writers();
        let (writers, is_open) =
            Writers::start(number, &store_handle, &counters, hints.as_ref(), &alive)
                .map_err(StartError::Spawn)?;
        let is_open = is_open.recv();
        is_open
            .unwrap_or_else(|_| Err(StoreError::Unavailable("the thread has ended".to_owned())))
            .map_err(StartError::Store)?;
        let reader = Reader::start(&store_handle, &alarm, alive).map_err(StartError::Spawn)?;

        #[cfg(feature = "test-util")]
        let is_stepped = plan.hand.is_some();
        let store = Arc::clone(&plan.store);
        #[cfg(feature = "cron")]
        let named = plan.take_named();
        let (payload_limit, node_lease) = (plan.payload_limit, plan.node_lease);
        let label = std::mem::take(&mut plan.label);
        let trace_context = plan.trace_context.take();
        let node = node
            .map(|channel| start_node(plan, channel, store_handle, &counters, (events, run_events)))
            .transpose()?;
        let timers = Durable(Arc::new(Owner(Arc::new(Inner {
            writers,
            reader,
            node,
            counters,
            outages,
            store,
            label,
            alarm,
            payload_limit,
            trace_context,
            node_lease,
            queues,
            stop: StopState::default(),
            stopper,
            origin: Origin::here(),
            is_closed: AtomicBool::new(false),
            threads,
            #[cfg(feature = "test-util")]
            is_stepped,
        }))));
        #[cfg(feature = "cron")]
        timers.declare(named)?;
        Ok(timers)
    }
}

/// Starts the node, which runs the timers of the plan's queues.
fn start_node(
    mut plan: Plan,
    (sender, receiver): (NodeSender, Receiver<Message>),
    store_handle: Arc<StoreHandle>,
    counters: &Arc<Counters>,
    (events, run_events): (EventSink, EventSink<RunEvent>),
) -> Result<NodeLink, StartError> {
    #[cfg(feature = "test-util")]
    let is_stepped = plan.hand.is_some();
    #[cfg(feature = "test-util")]
    let clock = match &plan.hand {
        Some(hand) => LocalClock::on(tourbillon::Clock::manual(hand)),
        None => LocalClock::start(),
    };
    #[cfg(not(feature = "test-util"))]
    let clock = LocalClock::start();
    let signs = NodeSigns::new(clock.clone());
    let runs = Runs::new(
        Arc::clone(counters),
        events,
        run_events,
        std::mem::take(&mut plan.layers).into(),
        Arc::new(StoreClock::new(clock.clone())),
        store_handle.namespace(),
        {
            let sender = sender.clone();
            Box::new(move |run, outcome| sender.finished(run, outcome))
        },
    );
    let queues = plan.queues.iter().map(|queue| QueueConfig {
        name: Arc::clone(&queue.name),
        running: queue.options.running,
        pace: queue.options.pace,
        crash_limit: queue.options.crash_limit,
    });
    let config = NodeConfig {
        name: plan.name,
        schedules: plan.schedules,
        node_lease: plan.node_lease,
        poll_interval: plan.poll_interval,
        queues: queues.collect(),
        most_awake: MOST_AWAKE,
        // Epochs come from it, so no two nodes may have the same seed.
        seed: RandomState::new().hash_one(std::process::id()),
    };
    let handlers = plan.queues.into_iter();
    let queues: HashMap<_, _> = handlers
        .map(|mut queue| {
            queue.options.counters = Arc::clone(counters.of(&queue.name));
            (queue.name, (Arc::new(queue.options), queue.handler))
        })
        .collect();
    let (ended, end): (Sender<NodeEnd>, _) = bounded(1);
    let pool = run::start(NodeParts {
        config,
        queues,
        sender: sender.clone(),
        receiver,
        store_handle,
        runs: Arc::clone(&runs),
        signs: Arc::clone(&signs),
        clock,
        runs_on: plan.runs_on,
        keep_dead_for: plan.keep_dead_for,
        #[cfg(feature = "test-util")]
        is_stepped,
        on_end: Box::new(move |end| {
            // Nobody waits for it if the timers were dropped.
            let _ = ended.send(end);
        }),
    })?;
    Ok(NodeLink {
        sender,
        runs,
        signs,
        pool,
        end,
    })
}

impl Inner {
    /// Returns a call that was sent. If a test moves the clock, a task finds the answer there: the
    /// paused clock of tokio would jump while the task waits for a thread that tokio does not know.
    fn sent<T>(&self, sent: Sent<T>) -> Sent<T> {
        #[cfg(feature = "test-util")]
        if self.is_stepped && stop::is_in_runtime() {
            return Sent::known(sent.wait());
        }
        sent
    }

    /// The time by which schedules begin. A store that panics here has the time of the system.
    fn wall_clock(&self) -> Option<SystemTime> {
        catch_panic(|| self.store.wall_clock()).unwrap_or_else(|_| Some(SystemTime::now()))
    }

    /// Checks the name of a queue.
    fn queue(&self, name: &str) -> Result<Arc<str>, Invalid> {
        match self.queues.get(name) {
            Some(known) => Ok(Arc::clone(known)),
            None => names::queue(name),
        }
    }

    /// Adds the caller's trace context to the meta of a call. It asks code of the user, which can't
    /// make a call fail: what panics, is of no good form or has no room is left out.
    fn traced(&self, meta: Option<&Meta>) -> Option<Meta> {
        let added = self.trace_context.as_ref().and_then(|ask| {
            let traceparent = catch_panic(ask).ok()??;
            is_traceparent(&traceparent)
                .then(|| Meta::traced(meta, &traceparent, names::META_LIMIT))?
        });
        added.or_else(|| meta.cloned())
    }
}

impl From<NearTimer> for Near {
    fn from(near: NearTimer) -> Self {
        Near {
            queue: near.queue,
            key: near.key,
            shard: near.shard,
            due: near.due,
            bytes: near.bytes,
        }
    }
}

impl DurableBuilder {
    /// Opens the store and starts. Without handlers there is no node, only a client: it schedules
    /// and cancels, and other processes run the timers.
    ///
    /// # Errors
    ///
    /// [`StartError`] names the option that is not allowed, or says why the store could not be
    /// opened or a thread not be started. With handlers that includes a store that refuses any of
    /// the calls of a node: each is tried once, with nothing to do.
    ///
    /// # Blocking
    ///
    /// Waits until a connection is open, and with handlers until those of the node are.
    pub fn start(self) -> Result<Durable, StartError> {
        Durable::start(self.plan()?)
    }
}

impl QueueBuilder {
    /// Opens the store and starts: see [`DurableBuilder::start`].
    ///
    /// # Errors
    ///
    /// As for [`DurableBuilder::start`].
    ///
    /// # Blocking
    ///
    /// As for [`DurableBuilder::start`].
    pub fn start(self) -> Result<Durable, StartError> {
        self.into_builder().start()
    }
}

impl fmt::Debug for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner();
        f.debug_struct("Durable")
            .field("queues", &inner.queues)
            .field("writers", &inner.writers)
            .field("reader", &inner.reader)
            .field("is_stopping", &inner.stop.is_begun())
            .finish_non_exhaustive()
    }
}

const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    const fn is_sent<T: Send>() {}
    is_shared::<Durable>();
    is_sent::<crate::calls::Sent<crate::calls::ScheduleAnswer>>();
    is_sent::<crate::run::Due<()>>();
    is_shared::<crate::run::Due<()>>();
    is_sent::<DurableBuilder>();
};
