//! Options that the builders of all front ends share.

/// Defines the setters of these options, for a builder with the fields `config` and `runs_on`.
macro_rules! engine_options {
    () => {
        /// Sets the length of a tick, from 1 us to 1 min. The default is 1 ms. A task never starts
        /// before its deadline. It starts at most one tick later, plus a wake-up and its time in
        /// the queue.
        ///
        /// # Examples
        ///
        /// ```
        /// use std::time::Duration;
        /// use tourbillon::Scheduler;
        ///
        /// let scheduler = Scheduler::<u64>::builder().tick(Duration::from_millis(10)).build()?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn tick(mut self, tick: std::time::Duration) -> Self {
            self.config.tick = tick;
            self
        }

        /// Sets the number of shards. The default is the number of ticker threads: those of the
        /// [runtime](crate::Runtime), which is one for each core unless you say otherwise, or with
        /// [`own_threads`](Self::own_threads) one for each core.
        ///
        /// | | a shard | `workers` | `max_running` |
        /// |---|---|---|---|
        /// | nothing is said | is served by a ticker thread of the process's runtime | chooses `own_threads` | bounds the tasks that run at one time |
        /// | [`runtime`](Self::runtime) | is served by a ticker thread of that runtime | is an error: they are the runtime's | as above |
        /// | [`own_threads`](Self::own_threads), or a manual clock | has a ticker thread | sets the workers that there are always | bounds the tasks, and with them the workers |
        /// | [`inline`](Self::inline) | has a ticker thread, which runs its tasks | has no effect | has no effect |
        /// | [`executor`](Self::executor) | is served as without it | as without it | bounds the calls of the executor at one time |
        ///
        /// # Examples
        ///
        /// ```
        /// use tourbillon::Scheduler;
        ///
        /// // The tickers of the runtime serve one shard only.
        /// let scheduler = Scheduler::<u64>::builder().shards(1).build()?;
        /// assert_eq!(scheduler.handle().stats().shards.len(), 1);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn shards(mut self, shards: usize) -> Self {
            self.config.shards = Some(shards);
            self
        }

        /// Sets the number of locks over which the keys are spread. It must be a power of two, and
        /// at least the number of shards. The default is at least 128, and at least 8 for each
        /// core.
        ///
        /// # Examples
        ///
        /// ```
        /// use tourbillon::{BuildError, Scheduler};
        ///
        /// let scheduler = Scheduler::<u64>::builder().stripes(1_024).build()?;
        /// let refused = Scheduler::<u64>::builder().stripes(1_000).build();
        /// assert!(refused.is_err());
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn stripes(mut self, stripes: usize) -> Self {
            self.config.stripes = Some(stripes);
            self
        }

        /// Sets the number of workers, and so chooses [`own_threads`](Self::own_threads). The pool
        /// also keeps this number of workers unblocked while tasks wait. The default is the number
        /// of cores, or `max_running` if that is less. On a [`runtime`](Self::runtime) this is an
        /// error, since its workers are set when it is built. See
        /// [`max_running`](Self::max_running).
        ///
        /// # Examples
        ///
        /// ```
        /// use tourbillon::Scheduler;
        ///
        /// let scheduler = Scheduler::<u64>::builder().workers(2).build()?;
        /// assert_eq!(scheduler.handle().stats().workers, 2);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        #[doc(alias("thread_pool", "concurrency"))]
        pub fn workers(mut self, workers: usize) -> Self {
            self.config.workers = Some(workers);
            self
        }

        /// Sets how many tasks may run at one time. The default is 64, or `workers` if that is more.
        /// Up to this number, workers are added when workers are blocked. Extra workers leave when
        /// they have found nothing to do for 10 s.
        ///
        /// Workers are added when two conditions hold: a due task has waited for 2 ms, and fewer
        /// than `workers` workers are unblocked. On a runtime, these are the workers of the
        /// [runtime](crate::RuntimeBuilder::workers). A worker is blocked while its task sleeps or waits
        /// for I/O, a lock or a message. It is not blocked while its task computes, even if other
        /// processes use all cores. While the added workers are blocked too, the number of workers
        /// doubles every 2 ms.
        ///
        /// Tasks that only compute add one worker at most. It is added when no task at all has
        /// started for 2 ms, so that a few long tasks don't delay all short ones.
        ///
        /// All these times are measured by the scheduler's clock. On Linux and Android, the pool
        /// reads from `/proc` which threads are blocked. On other systems, or if `/proc` can't be
        /// read, it adds one worker every 10 ms while a task has waited for 2 ms, whatever the
        /// tasks do.
        ///
        /// If the system refuses a thread, the pool asks again after 10 ms. With each further
        /// refusal this pause doubles, up to 1 s.
        ///
        /// # Examples
        ///
        /// ```
        /// use tourbillon::Scheduler;
        ///
        /// // Each task waits for a server that takes 200 calls at a time.
        /// let scheduler = Scheduler::<u64>::builder().max_running(200).build()?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn max_running(mut self, max_running: usize) -> Self {
            self.config.max_running = Some(max_running);
            self
        }

        /// Sets how many timers, or entries of a map, may be pending at most. The default is no
        /// bound.
        ///
        /// The bound is exact: a call is refused only if it would exceed the bound. It then returns
        /// [`ScheduleError::Full`](crate::ScheduleError::Full) or
        /// [`InsertRefusal::Full`](crate::InsertRefusal::Full). A timer is pending until it starts,
        /// is cancelled, replaced or handed back. A timer that repeats also counts while a round of
        /// it runs.
        ///
        /// # Examples
        ///
        /// ```
        /// use std::time::Duration;
        /// use tourbillon::{ScheduleError, Scheduler};
        ///
        /// let scheduler = Scheduler::<u64>::builder().max_pending(1).build()?;
        /// let timers = scheduler.handle();
        /// timers.schedule(7, Duration::from_secs(5), |_| ())?;
        /// let refused = timers.schedule(8, Duration::from_secs(5), |_| ());
        /// assert!(matches!(refused, Err(ScheduleError::Full(_))));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn max_pending(mut self, max_pending: usize) -> Self {
            self.config.max_pending = Some(max_pending);
            self
        }

        /// Sets how many timers, or entries of a map, may expire per second at most, over all
        /// shards. The default is no bound. Use a pace if many timers are due at one moment, after
        /// an outage or because they were made together, and their tasks load a resource such as a
        /// database.
        ///
        /// Due timers beyond the pace are *held back*. A timer that is held back is pending and not
        /// queued: it can be cancelled, moved and touched like one that is not due. It runs late,
        /// and its lateness is recorded. [`Stats::held_back`](crate::Stats::held_back) counts how
        /// often this happens.
        ///
        /// **The bound.** In any window of length `T`, measured by the scheduler's clock, the
        /// number of expirations is at most the sum of
        ///
        /// - the number that the pace allows in `T` plus one millisecond,
        /// - one *share*,
        /// - one share for each shard.
        ///
        /// A share is the number that the pace allows in a millisecond, divided by the shards:
        /// `per_second / 1_000 / shards`, rounded down, but at least 1. Nothing else is saved up in
        /// quiet times.
        ///
        /// The pace bounds the hand-over of timers to the workers, to the executor, or to the
        /// ticker itself if it runs tasks inline. If tasks then wait because all workers are
        /// blocked, they may start close together. The real pace is lower if tasks delay a ticker,
        /// because a delay of more than a millisecond is not made up for. The same holds for turns
        /// that pass while 65,536 tickets of a shard wait for workers.
        ///
        /// **Turns.** Shards that hold timers back take turns of one share each, however many
        /// timers each of them has. So a shard with few timers waits for one share of each other
        /// shard. The same holds for the stripes of a shard. Within a stripe, the earliest deadline
        /// comes first, except for timers that are armed for the past while others are held back.
        ///
        /// **Scope.** The pace applies to all timers:
        ///
        /// - A timer that is due when it is armed, moved or completed (a zero delay) expires with
        ///   the next tick of its ticker, instead of going to the workers at once.
        /// - A [`Shutdown`](crate::Shutdown) keeps the pace as well, also with `RunNow`. Its limit
        ///   should be at least the number of pending timers divided by `per_second`. Timers that
        ///   have not started then are handed back.
        /// - A batch that an executor refuses expires again, and counts again.
        /// - A round of a timer that [repeats](crate::Handle::repeat) may be late for this reason,
        ///   too. Beyond its grace it is missed.
        ///
        /// If the clock is set back, the pace starts anew, so that it does not stop.
        ///
        /// Building fails if the pace is zero. Without a pace, there is no additional cost.
        ///
        /// # Examples
        ///
        /// ```
        /// use std::time::Duration;
        /// use tourbillon::Scheduler;
        ///
        /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// let scheduler = Scheduler::<u32>::builder().pace(1_000).build()?;
        /// let timers = scheduler.handle();
        /// for session in 0..60_000 {
        ///     // All are due at one moment. 1,000 expire per second, the last one a minute later.
        ///     timers.schedule(session, Duration::from_secs(30), |_| { /* a query */ })?;
        /// }
        /// // A timer that is held back can be cancelled, and then never starts.
        /// assert!(timers.cancel(&59_999).is_cancelled());
        /// # Ok(())
        /// # }
        /// ```
        #[doc(alias("rate_limit", "throttle"))]
        pub fn pace(mut self, per_second: u32) -> Self {
            self.config.pace = Some(per_second);
            self
        }

        /// Sets the name by which [metrics](crate::metrics) tell this scheduler, map or timer from
        /// others: the value of their label `name`. By default it is a number that no other
        /// instance of this process has, and that may be another one in the next process.
        ///
        /// # Examples
        ///
        /// ```
        /// use tourbillon::Scheduler;
        ///
        /// let scheduler = Scheduler::<u64>::builder().name("requests").build()?;
        /// let text = scheduler.handle().metrics().to_string();
        /// assert!(text.contains("tourbillon_pending{type=\"scheduler\",name=\"requests\"} 0\n"));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn name(mut self, name: impl Into<String>) -> Self {
            self.config.name = Some(name.into());
            self
        }

        /// Sets from which duration on a task is reported, by a warning of the crate `tracing`. The
        /// default is no bound. Needs the feature `tracing`.
        ///
        /// The duration is measured by the scheduler's clock, and reported at the end of the task. A
        /// task that never ends is not reported; it shows in `running` of the statistics. Tasks that
        /// are futures and batches of a map are not measured.
        ///
        /// # Examples
        ///
        /// ```
        /// use std::time::Duration;
        /// use tourbillon::Scheduler;
        ///
        /// let scheduler = Scheduler::<u64>::builder().slow_task(Duration::from_secs(1)).build()?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        #[cfg(feature = "tracing")]
        #[cfg_attr(docsrs, doc(cfg(feature = "tracing")))]
        #[doc(alias("warning", "watchdog"))]
        pub fn slow_task(mut self, bound: std::time::Duration) -> Self {
            self.config.slow_task = Some(bound);
            self
        }

        /// Sets how long a shutdown waits for running tasks, measured by the scheduler's clock. The
        /// default is 30 s.
        pub fn shutdown_limit(mut self, limit: std::time::Duration) -> Self {
            self.config.shutdown_limit = limit;
            self
        }

        /// Sets the clock. The default is [`Clock::fast`]($crate::clock::Clock::fast).
        ///
        /// # Examples
        ///
        /// ```
        /// use tourbillon::{Clock, Scheduler};
        ///
        /// let scheduler = Scheduler::<u64>::builder().clock(Clock::boottime()).build()?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn clock(mut self, clock: $crate::clock::Clock) -> Self {
            self.config.clock = Some(clock);
            self
        }

        /// Runs on the threads of `runtime`, which others may share. The default is the runtime of
        /// the process.
        ///
        /// # Examples
        ///
        /// ```
        /// use tourbillon::{Runtime, Scheduler};
        ///
        /// let runtime = Runtime::builder().workers(2).build()?;
        /// let scheduler = Scheduler::<u64>::builder().runtime(&runtime).build()?;
        /// assert_eq!(runtime.stats().instances, 1);
        /// # drop(scheduler);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn runtime(mut self, runtime: &$crate::runtime::Runtime) -> Self {
            self.runs_on.on_runtime(runtime);
            self
        }

        /// Runs on threads of its own, which end with it: a ticker for each shard, and
        /// [`workers`](Self::workers). The default is the [runtime](crate::Runtime) of the process.
        /// A scheduler with a manual clock or with [`inline`](Self::inline) has threads of its own
        /// in any case.
        ///
        /// # Examples
        ///
        /// ```
        /// use tourbillon::Scheduler;
        ///
        /// let scheduler = Scheduler::<u64>::builder().own_threads().shards(1).build()?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn own_threads(mut self) -> Self {
            self.runs_on.on_own_threads();
            self
        }

        /// Runs tasks on the threads of `executor`. Workers only hand them over:
        /// [`max_running`](Self::max_running) is the number of its calls at a time.
        ///
        /// # Examples
        ///
        /// ```
        /// use std::sync::mpsc::{Sender, channel};
        /// use std::time::Duration;
        /// use tourbillon::{Executor, Job, Scheduler};
        ///
        /// struct Queue(Sender<Job>);
        ///
        /// impl Executor for Queue {
        ///     fn execute(&self, job: Job) -> Result<(), Job> {
        ///         self.0.send(job).map_err(|refused| refused.0)
        ///     }
        /// }
        ///
        /// let (sender, jobs) = channel();
        /// let scheduler = Scheduler::<u64>::builder().executor(Queue(sender)).build()?;
        /// scheduler.handle().schedule(7, Duration::ZERO, |_| println!("on my thread"))?;
        /// jobs.recv()?.run();
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        #[doc(alias = "thread_pool")]
        pub fn executor(mut self, executor: impl $crate::executor::Executor) -> Self {
            self.runs_on.on_executor(Box::new(executor));
            self
        }

        /// Runs tasks on the ticker threads themselves, for tiny tasks that must not cost a
        /// hand-over. The options `workers` and `max_running` have no effect then.
        ///
        /// **This is the only mode in which a task delays ticks:** while a task runs, nothing else
        /// of its shard expires.
        ///
        /// # Examples
        ///
        /// ```
        /// use std::time::Duration;
        /// use tourbillon::Scheduler;
        ///
        /// let scheduler = Scheduler::<u64>::builder().inline().build()?;
        /// let (sender, receiver) = std::sync::mpsc::channel();
        /// scheduler.handle().schedule(7, Duration::from_millis(20), move |_| {
        ///     let _ = sender.send(7);
        /// })?;
        /// assert_eq!(receiver.recv()?, 7);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn inline(mut self) -> Self {
            self.runs_on.inline();
            self
        }
    };
}

pub(crate) use engine_options;
