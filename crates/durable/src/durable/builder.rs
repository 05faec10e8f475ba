//! Options, handlers, and the start.

#[cfg(feature = "cron")]
mod cron;
mod queue;

pub use queue::QueueBuilder;

use std::fmt;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tourbillon::Runtime;
use tourbillon::metrics::nameless;

use crate::calls::{StartError, names};
use crate::events::{DurableEvent, Listener};
use crate::run::{
    Due, Handler, IntoEnding, Layer, NextLayer, Plan, QueueOptions, QueuePlan, Ran, RunEvent,
    RunInfo, TraceContext,
};
use crate::store::Store;
use crate::sync::{Arc, RunsOn};

/// Options of timers. [`Durable::builder`](crate::Durable::builder) makes it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_durable::{Due, Durable, Memory};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let timers = Durable::builder(Memory::new())
///     .name("shop 1")
///     .node_lease(Duration::from_secs(30))
///     .on_event(|event| eprintln!("{event:?}"))
///     .handle("pay-by", |due: &Due<u64>| println!("order {} is cancelled", due.payload()))
///     .start()?;
/// # drop(timers);
/// # Ok(())
/// # }
/// ```
#[doc(alias("worker", "job runner"))]
#[must_use = "a builder does nothing until `start`"]
pub struct DurableBuilder {
    store: Arc<dyn Store>,
    name: Option<String>,
    node_lease: Duration,
    poll_interval: Duration,
    keep_dead_for: Duration,
    payload_limit: usize,
    listener: Option<Listener>,
    run_listener: Option<Listener<RunEvent>>,
    layers: Vec<Layer>,
    trace_context: Option<TraceContext>,
    runs_on: RunsOn,
    queues: Vec<(String, QueueOptions, Handler)>,
    #[cfg(feature = "cron")]
    named: Vec<crate::run::Named>,
}

impl DurableBuilder {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        DurableBuilder {
            store,
            name: None,
            node_lease: Duration::from_secs(15),
            poll_interval: Duration::from_secs(1),
            keep_dead_for: Duration::from_secs(30 * 24 * 60 * 60),
            payload_limit: names::PAYLOAD_LIMIT,
            listener: None,
            run_listener: None,
            layers: Vec::new(),
            trace_context: None,
            runs_on: RunsOn::default(),
            queues: Vec::new(),
            #[cfg(feature = "cron")]
            named: Vec::new(),
        }
    }

    /// Sets the name of this node in the table of nodes, for people. The default is the number of
    /// the process. It is also the label `name` of [metrics](crate::Durable::metrics), which by default is
    /// a number that no other instance of this process has: the number of a process would make new
    /// series with each restart.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Due, Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new())
    ///     .name(format!("{} of the shop", std::process::id()))
    ///     .start()?;
    /// # drop(timers);
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets how long this node may be silent, by its own clock, before others take over what it
    /// runs. The default is 15 s, the least is 100 ms and the greatest an hour. It must be at least
    /// four times [`poll_interval`](Self::poll_interval). All nodes on one store should have the
    /// same lease. On PostgreSQL it should be at least twice the limit of a statement and four
    /// seconds: see `PostgresBuilder::statement_limit`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Due, Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new())
    ///     .node_lease(Duration::from_secs(30)) // rides out longer pauses, and takes over later
    ///     .start()?;
    /// # drop(timers);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("visibility timeout", "heartbeat", "lock timeout"))]
    pub fn node_lease(mut self, lease: Duration) -> Self {
        self.node_lease = lease;
        self
    }

    /// Sets the time between two polls of the store, from 10 ms to a minute. The default is 1 s.
    ///
    /// A poll covers the next two intervals. A timer that was scheduled less than one poll before
    /// it is due may be up to one poll late, if another process, a transaction of the user's or an
    /// SQL function has scheduled it. All others start on time. A doorbell spares the wait:
    /// `PostgresBuilder::notify`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Due, Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new())
    ///     .poll_interval(Duration::from_millis(200))
    ///     .start()?;
    /// # drop(timers);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "polling")]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }

    /// Sets how long dead letters of all queues are kept, by the store's clock. The default is 30 days.
    /// `Duration::MAX` keeps them for ever.
    ///
    /// A process with handlers looks for older ones once a minute, and deletes up to 100 of them a
    /// second, the oldest first. Of several processes, the shortest time holds. One without handlers
    /// deletes none.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Due, Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new())
    ///     .keep_dead_for(Duration::from_secs(365 * 24 * 60 * 60))
    ///     .handle("pay-by", |due: &Due<u64>| println!("order {} is cancelled", due.payload()))
    ///     .start()?;
    /// # drop(timers);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("retention", "prune", "purge"))]
    pub fn keep_dead_for(mut self, time: Duration) -> Self {
        self.keep_dead_for = time;
        self
    }

    /// Sets the greatest length of a payload as JSON, in bytes, up to 16 MiB. The default is 64
    /// KiB.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Due, Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new())
    ///     .payload_limit(1024 * 1024)
    ///     .start()?;
    /// # drop(timers);
    /// # Ok(())
    /// # }
    /// ```
    pub fn payload_limit(mut self, bytes: usize) -> Self {
        self.payload_limit = bytes;
        self
    }

    /// Sets what is called with each [`DurableEvent`]. A second listener replaces the first.
    ///
    /// It is called on a thread of its own, so it may be slow, and may call the timers. If 1,024
    /// events wait for it, further ones are dropped, and [`DurableEvent::Dropped`] says how many.
    /// Its panics are caught.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::{Durable, DurableEvent, Memory};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new())
    ///     .on_event(|event: &DurableEvent| eprintln!("{event:?}"))
    ///     .start()?;
    /// # drop(timers);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_event(mut self, listener: impl Fn(&DurableEvent) + Send + Sync + 'static) -> Self {
        self.listener = Some(Box::new(listener));
        self
    }

    /// Sets what is called at the start and at the end of each run, with a [`RunEvent`]. A second
    /// listener replaces the first.
    ///
    /// It is called on a thread of its own, beside that of [`on_event`](Self::on_event): however
    /// many runs there are, no other event is dropped for them. If 1,024 events of runs wait for it,
    /// further ones are dropped, and [`RunEvent::Dropped`] says how many. Its panics are caught.
    /// Without a listener nothing is made or timed.
    ///
    /// What has to be on the handler's thread, such as a span or a context, is a layer:
    /// [`around`](Self::around).
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::{Due, Durable, Memory, RunEvent};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new())
    ///     .on_run(|event| match event {
    ///         RunEvent::Ended { run, duration, outcome, next_attempt, .. } => {
    ///             println!("{} {duration:?} {outcome:?}, again after {next_attempt:?}", run.token());
    ///         }
    ///         _ => {}
    ///     })
    ///     .handle("mail", |due: &Due<String>| println!("to {}", due.payload()))
    ///     .start()?;
    /// # drop(timers);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("audit", "trace", "hook"))]
    pub fn on_run(mut self, listener: impl Fn(&RunEvent) + Send + Sync + 'static) -> Self {
        self.run_listener = Some(Box::new(listener));
        self
    }

    /// Adds a layer around the handlers of all queues, for spans, contexts, timing and the like.
    ///
    /// `layer` is called once at the start of each run, on the thread of the handler. It returns a
    /// closure, which lives as long as the run, and is called for each step of it: once for a handler
    /// that is a closure, and at each poll of one that is a future. The closure calls
    /// [`NextLayer::run`], which runs the step, and returns what it got. It can't do otherwise, since
    /// nothing else makes a [`Ran`]. The first layer that was added is the outermost one.
    ///
    /// A layer that panics counts as a panic of the handler, also if the handler has succeeded. A
    /// panic of the handler does not reach the layers: [`Ran::error`] has its message. If the
    /// runtime of a future is shut down during a run, the closure is dropped without a last step.
    /// A panic in the drop of the closure is caught, and changes nothing.
    ///
    /// # Blocking
    ///
    /// A layer may block where its handler may.
    ///
    /// # Examples
    ///
    /// A context that code within the handlers reads, and the time that each run takes:
    ///
    /// ```
    /// use std::cell::RefCell;
    /// use std::time::{Duration, Instant};
    /// use tourbillon_durable::{Due, Durable, Memory};
    ///
    /// thread_local! {
    ///     static RUN: RefCell<String> = RefCell::default();
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (sender, receiver) = std::sync::mpsc::channel();
    /// let timers = Durable::builder(Memory::new())
    ///     .around(|run| {
    ///         let (started, token) = (Instant::now(), run.token().to_string());
    ///         move |next| {
    ///             let before = RUN.replace(token.clone());
    ///             let ran = next.run();
    ///             RUN.set(before);
    ///             if ran.is_ended() {
    ///                 println!("{token}: {:?} after {:?}", ran.error(), started.elapsed());
    ///             }
    ///             ran
    ///         }
    ///     })
    ///     .handle("mail", move |due: &Due<String>| {
    ///         println!("{}: to {}", RUN.with_borrow(String::clone), due.payload());
    /// #       drop(sender.send(RUN.with_borrow(String::clone)));
    ///     })
    ///     .start()?;
    /// timers.schedule("mail", "welcome:7", Duration::ZERO, "anna@example.com").wait()?;
    /// # assert!(receiver.recv()?.starts_with("mail/welcome:7/"));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("middleware", "interceptor", "wrap", "span", "tower"))]
    pub fn around<L, W>(mut self, layer: L) -> Self
    where
        L: Fn(&RunInfo) -> W + Send + Sync + 'static,
        W: FnMut(NextLayer<'_>) -> Ran<'_> + Send + 'static,
    {
        self.layers.push(Box::new(move |run| Box::new(layer(run))));
        self
    }

    /// Sets a function that returns the trace context of the caller, as
    /// [W3C](https://www.w3.org/TR/trace-context/#traceparent-header) writes a `traceparent`. Each
    /// timer that a call of this value schedules carries it in its [`Meta`](crate::Meta), as the
    /// member `traceparent`. A run has it by [`Meta::traceparent`](crate::Meta::traceparent), also in
    /// another process and after a restart.
    ///
    /// The function is called on the thread of the caller, once for each call that schedules, and
    /// for [`schedule_many`](crate::Durable::schedule_many) once for all. It is code that must not
    /// make a call fail. So nothing is added if it panics, if it returns a text of another form, or
    /// if the meta would be longer than 8,192 bytes with it. A meta of the call that has such a
    /// member keeps its own. Calls within a transaction of yours belong to the store, and do not ask
    /// the function: give them a [meta](crate::InTransaction::meta) with that member.
    ///
    /// The guide `traces` shows it with OpenTelemetry.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon_durable::{Due, Durable, Memory, Meta};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (sender, receiver) = std::sync::mpsc::channel();
    /// // Where a tracing library would have the context of the present request.
    /// let present = || Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned());
    /// let timers = Durable::builder(Memory::new())
    ///     .trace_context(present)
    ///     .handle("mail", move |due: &Due<String>| {
    ///         let caller = due.meta().and_then(Meta::traceparent);
    ///         println!("to {}, asked for by {caller:?}", due.payload());
    /// #       drop(sender.send(caller));
    ///     })
    ///     .start()?;
    /// timers.schedule("mail", "welcome:7", Duration::ZERO, "anna@example.com").wait()?;
    /// # assert_eq!(receiver.recv()?, present());
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("traceparent", "opentelemetry", "propagation", "baggage"))]
    pub fn trace_context(
        mut self,
        present: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.trace_context = Some(Box::new(present));
        self
    }

    /// Runs handlers that are closures on the threads of `runtime`, which others may share. The
    /// default is the runtime of the process. Tasks whose wait has a [limit](crate::Sent::within)
    /// are woken there, too. Each connection and the node have threads of their own in any case.
    ///
    /// A handler that blocks occupies a worker. So the
    /// [`max_workers`](tourbillon::RuntimeBuilder::max_workers) of the runtime should be at least
    /// the number of timers that may [run](QueueBuilder::running) at one time.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::Runtime;
    /// use tourbillon_durable::{Due, Durable, Memory};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = Runtime::builder().name("mail").workers(2).build()?;
    /// let timers = Durable::builder(Memory::new())
    ///     .runtime(&runtime)
    ///     .handle("mail", |due: &Due<String>| println!("to {}", due.payload()))
    ///     .start()?;
    /// // The pool of the handlers.
    /// assert_eq!(runtime.stats().instances, 1);
    /// # drop(timers);
    /// # Ok(())
    /// # }
    /// ```
    pub fn runtime(mut self, runtime: &Runtime) -> Self {
        self.runs_on = RunsOn::Runtime(runtime.clone());
        self
    }

    /// Runs handlers that are closures on threads of their own, which end with the node: a ticker,
    /// a worker for each core, and more while handlers block. The default is the runtime of the
    /// process.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::{Due, Durable, Memory};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new())
    ///     .own_threads()
    ///     .handle("mail", |due: &Due<String>| println!("to {}", due.payload()))
    ///     .start()?;
    /// # drop(timers);
    /// # Ok(())
    /// # }
    /// ```
    pub fn own_threads(mut self) -> Self {
        self.runs_on = RunsOn::Own;
        self
    }

    /// Runs the due timers of a queue by a closure, on a pool of workers that grows while handlers
    /// block. The setters that follow are this queue's.
    ///
    /// The payload is read from JSON as `T`. One that does not have this type is left in the store
    /// for a minute, [counted](crate::DurableStats::unreadable) and reported, and then tried again:
    /// it may be for a newer version of the program.
    ///
    /// A timer runs at least once. An error or a panic is retried by the
    /// [`RetryPolicy`](crate::RetryPolicy) of the queue.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon_durable::{Due, Durable, Memory};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (sent, mails) = std::sync::mpsc::channel();
    /// let timers = Durable::builder(Memory::new())
    ///     .handle("mail", move |due: &Due<String>| {
    ///         if due.attempt() > 3 {
    ///             eprintln!("{} is tried for the {}th time", due.key(), due.attempt());
    ///         }
    ///         sent.send(due.payload().clone())
    ///     })
    ///     .start()?;
    /// timers.schedule("mail", "welcome:7", Duration::ZERO, "anna@example.com").wait()?;
    /// assert_eq!(mails.recv()?, "anna@example.com");
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("consumer", "subscribe", "job handler"))]
    pub fn handle<T, F, R>(mut self, queue: impl Into<String>, handler: F) -> QueueBuilder
    where
        T: DeserializeOwned + 'static,
        F: Fn(&Due<T>) -> R + Send + Sync + 'static,
        R: IntoEnding,
    {
        let handler = Handler::closure(handler);
        self.queues
            .push((queue.into(), QueueOptions::default(), handler));
        QueueBuilder(self)
    }

    /// Runs the due timers of a queue by futures, which are spawned on a tokio runtime. The setters
    /// that follow are this queue's. All else is as for [`handle`](Self::handle).
    ///
    /// If the runtime is shut down during a run, the run counts as failed.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon_durable::{Due, Durable, Memory};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// let timers = Durable::builder(Memory::new())
    ///     .handle_tokio("greet", runtime.handle().clone(), move |due: Due<String>| {
    ///         let sender = sender.clone();
    ///         async move { drop(sender.send(due.payload().clone())) }
    ///     })
    ///     .start()?;
    /// timers.schedule("greet", "world", Duration::ZERO, "hello").wait()?;
    /// assert_eq!(receiver.recv()?, "hello");
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tokio")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
    pub fn handle_tokio<T, F, U, R>(
        mut self,
        queue: impl Into<String>,
        runtime: tokio::runtime::Handle,
        handler: F,
    ) -> QueueBuilder
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(Due<T>) -> U + Send + Sync + 'static,
        U: Future<Output = R> + Send + 'static,
        R: IntoEnding + 'static,
    {
        let handler = Handler::future(runtime, handler);
        self.queues
            .push((queue.into(), QueueOptions::default(), handler));
        QueueBuilder(self)
    }

    /// Checks all options.
    pub(crate) fn plan(self) -> Result<Plan, StartError> {
        let refuse = |what: String| Err(StartError::Option(what));
        let (node_lease, interval) = (self.node_lease, self.poll_interval);
        if !(Duration::from_millis(10)..=Duration::from_secs(60)).contains(&interval) {
            return refuse(format!(
                "a poll each {interval:?}: choose between 10 ms and 1 min"
            ));
        }
        if !(Duration::from_millis(100)..=Duration::from_secs(3_600)).contains(&node_lease)
            || node_lease < interval * 4
        {
            return refuse(format!(
                "a node lease of {node_lease:?} with a poll each {interval:?}: choose between 100 ms and 1 h, and at \
                 least four polls"
            ));
        }
        if !(1..=16 * 1024 * 1024).contains(&self.payload_limit) {
            let bytes = self.payload_limit;
            return refuse(format!(
                "payloads of up to {bytes} bytes: choose between 1 and 16 MiB"
            ));
        }
        #[cfg(feature = "cron")]
        self.check_named()?;
        let mut queues: Vec<QueuePlan> = Vec::new();
        for (name, options, handler) in self.queues {
            let checked = names::queue(&name).map_err(StartError::Queue)?;
            if queues.iter().any(|other| other.name == checked) {
                return Err(StartError::SameQueue(name));
            }
            if let Err(what) = options.check() {
                return refuse(format!("the queue {name:?}: {what}"));
            }
            queues.push(QueuePlan {
                name: checked,
                options,
                handler,
            });
        }
        let label = self.name.clone().unwrap_or_else(nameless);
        let process = || format!("process {}", std::process::id());
        let name = self.name.unwrap_or_else(process);
        Ok(Plan {
            store: self.store,
            label,
            // Some stores can't keep NUL characters.
            name: name.replace('\0', " "),
            node_lease,
            poll_interval: interval,
            payload_limit: self.payload_limit,
            keep_dead_for: self.keep_dead_for,
            listener: self.listener,
            run_listener: self.run_listener,
            layers: self.layers,
            trace_context: self.trace_context,
            runs_on: self.runs_on,
            #[cfg(feature = "test-util")]
            hand: None,
            queues,
            #[cfg(feature = "cron")]
            named: self.named,
            schedules: Default::default(),
        })
    }
}

impl fmt::Debug for DurableBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queues: Vec<_> = self.queues.iter().map(|(name, ..)| name).collect();
        f.debug_struct("DurableBuilder")
            .field("store", &self.store)
            .field("name", &self.name)
            .field("node_lease", &self.node_lease)
            .field("poll_interval", &self.poll_interval)
            .field("keep_dead_for", &self.keep_dead_for)
            .field("runs_on", &self.runs_on)
            .field("queues", &queues)
            .finish_non_exhaustive()
    }
}
