//! The options of one queue.

use std::fmt;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tourbillon::Runtime;

use super::DurableBuilder;
use crate::events::DurableEvent;
use crate::run::{
    Due, IntoEnding, Late, NextLayer, QueueOptions, Ran, RetryPolicy, RunEvent, RunInfo,
};

/// Options of the queue that was named last, and all methods of [`DurableBuilder`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_durable::{Due, Durable, Late, Memory, RetryPolicy};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let second = Duration::from_secs(1);
/// let timers = Durable::builder(Memory::new())
///     .handle("mail", |due: &Due<String>| println!("to {}", due.payload()))
///     .retry(RetryPolicy::exponential(second..=60 * second).attempts(5))
///     .pace(100)
///     .handle("offer", |_: &Due<u64>| ())
///     .late(Late::ExpireAfter(Duration::from_secs(3_600)))
///     // Those of the node may come last, too.
///     .name(format!("shop {}", std::process::id()))
///     .on_event(|event| eprintln!("{event:?}"))
///     .payload_limit(100)
///     .poll_interval(Duration::from_millis(250))
///     .node_lease(Duration::from_secs(30))
///     .keep_dead_for(Duration::from_secs(7 * 24 * 60 * 60))
///     .on_run(|event| println!("{event:?}"))
///     .around(|run| {
///         println!("{} starts", run.key());
///         |next| next.run()
///     })
///     .trace_context(|| None) // no library of traces
///     .own_threads()
///     .start()?;
/// let long = "x".repeat(200);
/// assert!(timers.schedule("mail", "anna", second, &long).wait().is_err());
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until `start`"]
pub struct QueueBuilder(pub(super) DurableBuilder);

impl QueueBuilder {
    fn options(mut self, set: impl FnOnce(&mut QueueOptions)) -> Self {
        // Each `QueueBuilder` comes from a call that has added a queue.
        if let Some((_, options, _)) = self.0.queues.last_mut() {
            set(options);
        }
        self
    }

    /// Sets when a run that failed is tried again. The default is [`RetryPolicy::default`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Due, Durable, Memory, RetryPolicy};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new())
    ///     .handle("mail", |due: &Due<String>| println!("to {}", due.payload()))
    ///     .retry(RetryPolicy::fixed(Duration::from_secs(60)).attempts(5))
    ///     .start()?;
    /// # drop(timers);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "backoff")]
    pub fn retry(self, retry: RetryPolicy) -> Self {
        self.options(|options| options.retry = retry)
    }

    /// Sets what becomes of timers that are far too late. The default is [`Late::Run`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Due, Durable, Late, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new())
    ///     .handle("mail", |due: &Due<String>| println!("to {}", due.payload()))
    ///     .late(Late::ExpireAfter(Duration::from_secs(3_600)))
    ///     .start()?;
    /// # drop(timers);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "misfire")]
    pub fn late(self, late: Late) -> Self {
        self.options(|options| options.late = late)
    }

    /// Sets how many timers of this queue may run at one time on this node, from 1 to 10,000. The
    /// default is 64. At most 1,024 closures of all queues run at one time, each on a worker of the
    /// [runtime](DurableBuilder::runtime): if more of them block, further runs wait for a worker.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Due, Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new())
    ///     .handle("mail", |due: &Due<String>| println!("to {}", due.payload()))
    ///     .running(8) // the mail server takes eight connections
    ///     .start()?;
    /// # drop(timers);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("concurrency", "parallelism"))]
    pub fn running(self, running: usize) -> Self {
        self.options(|options| options.running = running)
    }

    /// Sets how many timers of this queue may start within a second on this node. The default is no
    /// bound. Those beyond it wait in the store, where other nodes may take them.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Due, Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new())
    ///     .handle("mail", |due: &Due<String>| println!("to {}", due.payload()))
    ///     .pace(10) // ten mails a second
    ///     .start()?;
    /// # drop(timers);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("rate limit", "throttle"))]
    pub fn pace(self, per_second: u32) -> Self {
        self.options(|options| options.pace = Some(per_second))
    }

    /// Sets after how many crashes a timer becomes a dead letter: the process that ran it ended
    /// during the run. The default is 10.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Due, Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new())
    ///     .handle("mail", |due: &Due<String>| println!("to {}", due.payload()))
    ///     .crash_limit(3)
    ///     .start()?;
    /// # drop(timers);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("poison", "poison pill"))]
    pub fn crash_limit(self, crashes: u32) -> Self {
        self.options(|options| options.crash_limit = crashes)
    }

    /// Sets from which duration on a run of this queue is reported as a
    /// [`DurableEvent::Slow`]. The default is no bound, which costs nothing.
    ///
    /// It is reported at the end of the run. A handler that never returns shows in
    /// [`DurableStats::running`](crate::DurableStats::running).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Due, Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new())
    ///     .handle("mail", |due: &Due<String>| println!("to {}", due.payload()))
    ///     .slow_after(Duration::from_secs(10))
    ///     .on_event(|event| eprintln!("{event:?}"))
    ///     .start()?;
    /// # drop(timers);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("timeout", "warning", "stuck"))]
    pub fn slow_after(self, bound: Duration) -> Self {
        self.options(|options| options.slow_after = Some(bound))
    }

    /// Sets the [name](DurableBuilder::name) of this node.
    pub fn name(self, name: impl Into<String>) -> Self {
        QueueBuilder(self.0.name(name))
    }

    /// Sets the [node lease](DurableBuilder::node_lease) of this node.
    pub fn node_lease(self, lease: Duration) -> Self {
        QueueBuilder(self.0.node_lease(lease))
    }

    /// Sets the [time between two polls](DurableBuilder::poll_interval).
    pub fn poll_interval(self, interval: Duration) -> Self {
        QueueBuilder(self.0.poll_interval(interval))
    }

    /// Sets [how long dead letters are kept](DurableBuilder::keep_dead_for).
    pub fn keep_dead_for(self, time: Duration) -> Self {
        QueueBuilder(self.0.keep_dead_for(time))
    }

    /// Sets the greatest [length of a payload](DurableBuilder::payload_limit).
    pub fn payload_limit(self, bytes: usize) -> Self {
        QueueBuilder(self.0.payload_limit(bytes))
    }

    /// Sets the [runtime](DurableBuilder::runtime) of the handlers.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon::Runtime;
    /// # use tourbillon_durable::{Due, Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = Runtime::builder().workers(2).build()?;
    /// let timers = Durable::builder(Memory::new())
    ///     .handle("mail", |due: &Due<String>| println!("to {}", due.payload()))
    ///     .runtime(&runtime)
    ///     .start()?;
    /// # drop(timers);
    /// # Ok(())
    /// # }
    /// ```
    pub fn runtime(self, runtime: &Runtime) -> Self {
        QueueBuilder(self.0.runtime(runtime))
    }

    /// Runs handlers on [threads of their own](DurableBuilder::own_threads).
    pub fn own_threads(self) -> Self {
        QueueBuilder(self.0.own_threads())
    }

    /// Sets what is called with each [`DurableEvent`]: see [`DurableBuilder::on_event`].
    pub fn on_event(self, listener: impl Fn(&DurableEvent) + Send + Sync + 'static) -> Self {
        QueueBuilder(self.0.on_event(listener))
    }

    /// Sets what is called with each [`RunEvent`]: see [`DurableBuilder::on_run`].
    pub fn on_run(self, listener: impl Fn(&RunEvent) + Send + Sync + 'static) -> Self {
        QueueBuilder(self.0.on_run(listener))
    }

    /// Adds a layer around the handlers of all queues: see [`DurableBuilder::around`].
    pub fn around<L, W>(self, layer: L) -> Self
    where
        L: Fn(&RunInfo) -> W + Send + Sync + 'static,
        W: FnMut(NextLayer<'_>) -> Ran<'_> + Send + 'static,
    {
        QueueBuilder(self.0.around(layer))
    }

    /// Sets a function that returns the trace context of the caller: see
    /// [`DurableBuilder::trace_context`].
    pub fn trace_context(
        self,
        present: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        QueueBuilder(self.0.trace_context(present))
    }

    /// Adds another queue: see [`DurableBuilder::handle`].
    pub fn handle<T, F, R>(self, queue: impl Into<String>, handler: F) -> QueueBuilder
    where
        T: DeserializeOwned + 'static,
        F: Fn(&Due<T>) -> R + Send + Sync + 'static,
        R: IntoEnding,
    {
        self.0.handle(queue, handler)
    }

    /// Adds another queue: see [`DurableBuilder::handle_tokio`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Due, Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
    /// # let (sender, receiver) = std::sync::mpsc::channel();
    /// let timers = Durable::builder(Memory::new())
    ///     .handle("mail", |due: &Due<String>| println!("to {}", due.payload()))
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
        self,
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
        self.0.handle_tokio(queue, runtime, handler)
    }

    /// Ends the options of the queue.
    pub(crate) fn into_builder(self) -> DurableBuilder {
        self.0
    }
}

impl fmt::Debug for QueueBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
