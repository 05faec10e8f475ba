//! Options that the builders of all faces share.

/// The options that every face of the engine has, as setters of a builder with the fields `config`
/// and `place`.
macro_rules! engine_options {
    () => {
        /// The length of a tick, from 1 us to 1 min; 1 ms by default. A task starts at most one
        /// tick, a wake-up and its time in the queue after its deadline, and never before it.
        pub fn tick(mut self, tick: std::time::Duration) -> Self {
            self.config.tick = tick;
            self
        }

        /// How many shards, each with a ticker thread of its own; by default as many as there are
        /// cores.
        pub fn shards(mut self, shards: usize) -> Self {
            self.config.shards = Some(shards);
            self
        }

        /// Over how many locks the keys are spread: a power of two, at least the number of shards;
        /// by default at least 128 and at least 8 for each core.
        pub fn stripes(mut self, stripes: usize) -> Self {
            self.config.stripes = Some(stripes);
            self
        }

        /// The number of workers at the start, and the number that the pool keeps unblocked while
        /// tasks wait. The default is the number of cores. See [`max_workers`](Self::max_workers).
        pub fn workers(mut self, workers: usize) -> Self {
            self.config.workers = Some(workers);
            self
        }

        /// How far the pool may grow when workers are blocked; 64 by default, or `workers` if that
        /// is more. Extra workers that find nothing to do for 10 s leave again.
        ///
        /// Workers are added when two things come together: a task that is due has waited for 2 ms,
        /// and fewer than `workers` workers are unblocked. A worker is blocked while its task
        /// sleeps or waits for I/O, a lock or a message. It is not blocked while its task computes,
        /// even if other processes use all cores. While the added workers are blocked too, the
        /// number of workers doubles every 2 ms.
        ///
        /// Tasks that only compute add one worker at most. It is added when no task at all has
        /// started for 2 ms, so that a few long tasks don't hold up all short ones.
        ///
        /// All these times are by the scheduler's clock. On Linux and Android the pool reads from
        /// `/proc` which threads are blocked. On other systems, or if `/proc` can't be read, it
        /// adds one worker every 10 ms while a task has waited for 2 ms, whatever the tasks do.
        pub fn max_workers(mut self, max_workers: usize) -> Self {
            self.config.max_workers = Some(max_workers);
            self
        }

        /// How many timers, or entries of a map, may be pending at most; unbounded by default. One
        /// more is refused, exactly then: with [`ScheduleError::Full`](crate::ScheduleError::Full)
        /// or [`InsertRefusal::Full`](crate::InsertRefusal::Full). It is pending until it starts,
        /// is cancelled, replaced or handed back; a timer that repeats keeps its place also while a
        /// round of it runs.
        pub fn max_pending(mut self, max_pending: usize) -> Self {
            self.config.max_pending = Some(max_pending);
            self
        }

        /// How many timers, or entries of a map, may expire in a second at most, over all shards;
        /// unbounded by default. For masses that are due at one moment, after an outage or for
        /// being made in one go: what their tasks load, a database perhaps, is to get it bit by
        /// bit.
        ///
        /// What is due beyond that is *held back*. It stays where it is: it can be cancelled, moved
        /// and touched like what is not due yet, it is pending and not queued. It runs late, and
        /// lateness says by how much; [`Stats::held_back`](crate::Stats::held_back) says that it
        /// happens.
        ///
        /// **The bound.** In any window of a length of `T`, by the scheduler's clock, no more
        /// expire than the pace allows in `T` and a millisecond, and one *share*, and one share for
        /// each shard. A share is `per_second / 1_000 / shards`, rounded down, but at least 1: what
        /// the pace allows in a millisecond, divided by the shards. Nothing else is saved up in
        /// quiet times. Bounded is the hand-over to the workers, to the executor, or to the ticker
        /// itself when it runs tasks inline. Tasks that then wait, since all workers are blocked,
        /// may start close together. Tasks that hold up a ticker make it slower than this: what it
        /// is behind by more than a millisecond is lost. So are turns that pass while 65,536
        /// tickets of a shard wait for workers.
        ///
        /// **Whose turn it is.** Shards that hold something back take turns, a share each, however
        /// much each of them has; a shard with few timers waits for a share of each other one.
        /// Within a shard the same goes for stripes, and within a stripe the earliest deadline
        /// comes first, but for what is armed for the past while others are held back.
        ///
        /// **Nothing evades it.** What is due when it is armed, moved or settled (a zero delay)
        /// goes through its ticker, with the next tick, instead of to the workers at once. A
        /// [`Shutdown`](crate::Shutdown) keeps the pace as well, `RunNow` too: the limit should
        /// leave time for what is pending, divided by `per_second`; the rest is handed back. A
        /// batch that an executor refuses expires once more. A round of a timer that
        /// [repeats](crate::Handle::repeat) is as late as it is, for whatever reason: beyond its
        /// grace it is missed. Only a clock that is set back lets the pace begin anew, rather than
        /// stop.
        ///
        /// Zero is refused. Without a pace nothing costs more than it did.
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
        ///     // All at one moment, and then a thousand in a second: the last one a minute later.
        ///     timers.schedule(session, Duration::from_secs(30), |_| { /* a query */ })?;
        /// }
        /// // Also when it was held back, it has not started and never will.
        /// assert!(timers.cancel(&59_999).is_cancelled());
        /// # Ok(())
        /// # }
        /// ```
        pub fn pace(mut self, per_second: u32) -> Self {
            self.config.pace = Some(per_second);
            self
        }

        /// For how long shutdown waits for tasks that run, by the scheduler's clock; 30 s by
        /// default.
        pub fn shutdown_limit(mut self, limit: std::time::Duration) -> Self {
            self.config.shutdown_limit = limit;
            self
        }

        /// What tells the time; [`Clock::system`]($crate::clock::Clock::system) by default.
        pub fn clock(mut self, clock: $crate::clock::Clock) -> Self {
            self.config.clock = Some(clock);
            self
        }

        /// Runs tasks on somebody else's threads instead of on a pool of the scheduler's own.
        /// `workers` and `max_workers` mean nothing then.
        pub fn executor(mut self, executor: impl $crate::executor::Executor) -> Self {
            self.place = $crate::engine::Place::Foreign(Box::new(executor));
            self
        }

        /// Runs tasks on the ticker threads themselves, for tiny tasks that must not cost a
        /// hand-over. **The one case in which a task holds up ticks:** while one runs, nothing else
        /// of its shard expires. `workers` and `max_workers` mean nothing then.
        pub fn inline(mut self) -> Self {
            self.place = $crate::engine::Place::Inline;
            self
        }
    };
}

pub(crate) use engine_options;
