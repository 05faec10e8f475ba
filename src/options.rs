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

        /// How many workers to start with; by default as many as there are cores.
        pub fn workers(mut self, workers: usize) -> Self {
            self.config.workers = Some(workers);
            self
        }

        /// How far the pool may grow when all workers are blocked; 64 by default, or `workers` if
        /// that is more. A worker is added when a task has waited for 2 ms and none was started in
        /// that time; workers that find nothing to do for 10 s leave again.
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
