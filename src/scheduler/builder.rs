//! Options. Everything is checked in `build`, which names the offending value.

use std::fmt;
use std::hash::BuildHasher;
use std::marker::PhantomData;
use std::time::Duration;

use super::Scheduler;
use super::face::{Keyed, OnPanic, TaskPanic};
use super::hasher::RandomState;
use crate::clock::Clock;
use crate::config::Config;
use crate::engine::{Engine, Parts, Place, Seat, Server};
use crate::error::BuildError;
use crate::executor::Executor;
use crate::sync::{Arc, Mutex};

/// Options of a [`Scheduler`], with defaults that fit most.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{BuildError, Scheduler};
///
/// # fn main() -> Result<(), BuildError> {
/// let scheduler = Scheduler::<u64>::builder()
///     .tick(Duration::from_millis(10))
///     .shards(1)
///     .workers(2)
///     .max_pending(1_000_000)
///     .build()?;
/// # drop(scheduler);
/// let error = Scheduler::<u64>::builder().tick(Duration::ZERO).build().unwrap_err();
/// assert!(matches!(error, BuildError::Tick(_)));
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct Builder<K, S = RandomState> {
    config: Config,
    hasher: S,
    place: Place,
    on_panic: Option<OnPanic<K>>,
    keys: PhantomData<fn(K)>,
}

impl<K> Builder<K> {
    pub(super) fn new() -> Self {
        Builder {
            config: Config::new(),
            hasher: RandomState::default(),
            place: Place::Pool,
            on_panic: None,
            keys: PhantomData,
        }
    }
}

impl<K, S> Builder<K, S> {
    /// The length of a tick, from 1 us to 1 min; 1 ms by default. A task starts at most one tick,
    /// a wake-up and its time in the queue after its deadline, and never before it.
    pub fn tick(mut self, tick: Duration) -> Self {
        self.config.tick = tick;
        self
    }

    /// How many shards, each with a ticker thread of its own; by default as many as there are
    /// cores.
    pub fn shards(mut self, shards: usize) -> Self {
        self.config.shards = Some(shards);
        self
    }

    /// Over how many locks the keys are spread: a power of two, at least the number of shards; by
    /// default at least 128 and at least 8 for each core.
    pub fn stripes(mut self, stripes: usize) -> Self {
        self.config.stripes = Some(stripes);
        self
    }

    /// How many workers to start with; by default as many as there are cores.
    pub fn workers(mut self, workers: usize) -> Self {
        self.config.workers = Some(workers);
        self
    }

    /// How far the pool may grow when all workers are blocked; 64 by default, or `workers` if that
    /// is more. A worker is added when a task has waited for 2 ms and none was started in that
    /// time; workers that find nothing to do for 10 s leave again.
    pub fn max_workers(mut self, max_workers: usize) -> Self {
        self.config.max_workers = Some(max_workers);
        self
    }

    /// How many timers may be pending at most; unbounded by default. One more is refused with
    /// [`ScheduleError::Full`](crate::ScheduleError::Full), exactly then. A timer is pending until
    /// it starts, is cancelled, replaced or handed back.
    pub fn max_pending(mut self, max_pending: usize) -> Self {
        self.config.max_pending = Some(max_pending);
        self
    }

    /// For how long shutdown waits for tasks that run, by the scheduler's clock; 30 s by default.
    pub fn shutdown_limit(mut self, limit: Duration) -> Self {
        self.config.shutdown_limit = limit;
        self
    }

    /// What tells the time; [`Clock::system`] by default.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.config.clock = Some(clock);
        self
    }

    /// What hashes the keys.
    pub fn hasher<S2>(self, hasher: S2) -> Builder<K, S2> {
        Builder {
            config: self.config,
            hasher,
            place: self.place,
            on_panic: self.on_panic,
            keys: PhantomData,
        }
    }

    /// Runs tasks on somebody else's threads instead of on a pool of the scheduler's own.
    /// `workers` and `max_workers` mean nothing then.
    pub fn executor(mut self, executor: impl Executor) -> Self {
        self.place = Place::Foreign(Box::new(executor));
        self
    }

    /// Runs tasks on the ticker threads themselves, for tiny tasks that must not cost a hand-over.
    /// **The one case in which a task holds up ticks:** while one runs, nothing else of its shard
    /// expires. `workers` and `max_workers` mean nothing then.
    pub fn inline(mut self) -> Self {
        self.place = Place::Inline;
        self
    }

    /// Is told of every task that panicked, on the thread that ran it. The panic is caught and
    /// counted in any case, and the panic hook has printed it.
    pub fn on_panic(mut self, tell: impl Fn(&TaskPanic<'_, K>) + Send + Sync + 'static) -> Self {
        self.on_panic = Some(Box::new(tell));
        self
    }
}

type Built<K, S> = (Arc<Server<Keyed<K, S>>>, Vec<Seat>);

impl<K, S> Builder<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// [`BuildError`] names the value that can't be, or why a thread did not start.
    pub fn build(self) -> Result<Scheduler<K, S>, BuildError> {
        let clock = self.config.clock.clone().unwrap_or_else(Clock::system);
        let (server, seats) = self.parts(clock, None)?;
        Engine::start(&server, seats).map_err(BuildError::Spawn)?;
        Ok(Scheduler::new(server))
    }

    /// Builds a scheduler without threads, driven by the calling thread; see
    /// [`test_util`](crate::test_util). `seed` decides how shards and workers interleave.
    ///
    /// The clock starts at [`Time::ZERO`](crate::Time::ZERO), unless a manual clock was given:
    /// then that one is used.
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build).
    #[cfg(any(test, feature = "test-util"))]
    pub fn build_stepped(self, seed: u64) -> Result<crate::test_util::Stepped<K, S>, BuildError> {
        let hand = self
            .config
            .clock
            .as_ref()
            .and_then(Clock::as_manual)
            .unwrap_or_default();
        let (server, seats) = self.parts(Clock::manual(&hand), Some(seed))?;
        Ok(crate::test_util::Stepped::new(server, seats, hand, seed))
    }

    fn parts(self, clock: Clock, seed: Option<u64>) -> Result<Built<K, S>, BuildError> {
        let config = self.config.validate(num_cpus::get())?;
        let face = Keyed {
            hasher: self.hasher,
            on_panic: self.on_panic,
            log: seed.map(|_| Mutex::new(Vec::new())),
        };
        Ok(Engine::new(
            Parts {
                config,
                clock,
                place: self.place,
                stepped: seed.is_some(),
                seed,
            },
            face,
        ))
    }
}

impl<K, S> fmt::Debug for Builder<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
