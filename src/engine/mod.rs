//! The engine: shards and an executor, generic over a front end that chooses the payload.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | operations on stripes, and the deferred actions that follow them outside the lock |
//! | `frontend.rs` | what a front end defines, and what it is told of a run |
//! | `moment.rs` | what a call knows of its moment, and the deadline that it asks for |
//! | `by_id.rs` | moves of one arming by its id |
//! | `serve.rs` | claims a ticket, runs its task and completes the run |
//! | `detached.rs` | runs that continue on an async runtime |
//! | `threadless.rs` | the shutdown of an engine for which the system starts no thread |
//! | `followed.rs` | the shutdown of an engine that a task steps |
//! | `submission.rs` | batches for a foreign executor, and what comes back |
//! | `traced.rs` | spans of runs, and warnings of faults |
//! | `faults.rs` | counters of what goes wrong without a caller to tell |
//! | `drive.rs` | one step of a ticker: collect, hand over, watch the pool, promise |
//! | `admission.rs` | armings that are refused until unused permits were collected |
//! | `pace.rs` | the limit of expirations per second, and the turns of the tickers |
//! | `closing.rs` | the order of the steps of a shutdown |
//! | `runs_on.rs` | where an engine runs: its executor and its threads |
//! | `threads.rs` | the tickers on their threads, and the end of an engine |
//! | `wait/` | waits for the end of a run, or for its cancellation |
//! | `limits.rs` | the limits of waits that tasks await |
//! | `counts.rs` | what is counted in the stripes, summed up |
//! | `signs.rs`, `health.rs`, `dump.rs` | what tickers note; what probes and people are told |
//! | `user_code.rs` | counts user code that belongs to no run |
//! | `task_scope.rs` | records which engines' tasks the current thread is in |

mod admission;
mod batch;
mod by_id;
mod closing;
mod counts;
#[cfg(feature = "tokio")]
mod detached;
mod drive;
#[cfg(not(loom))]
mod dump;
mod faults;
#[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
mod followed;
mod frontend;
#[cfg(not(loom))]
mod health;
mod limits;
mod moment;
mod pace;
#[cfg(not(loom))]
mod runs_on;
mod serve;
mod signs;
mod submission;
pub(crate) mod task_scope;
mod threadless;
#[cfg(not(loom))]
mod threads;
#[cfg(feature = "tracing")]
mod traced;
mod user_code;
mod wait;

pub(crate) use batch::Items;
pub(crate) use closing::{Asked, ClosingState, Ending};
pub use closing::{Lifecycle, Shutdown};
#[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
pub(crate) use closing::{StepTaken, WindingDown};
#[cfg(feature = "tokio")]
pub(crate) use detached::Detached;
pub(crate) use drive::TickerState;
#[cfg(not(loom))]
pub(crate) use dump::show_key;
#[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
pub(crate) use followed::Follower;
pub(crate) use frontend::{Batched, Frontend, FrontendTypes, RunInfo, RunOutcome};
#[cfg(all(any(test, feature = "test-util"), not(loom)))]
pub(crate) use runs_on::BuiltStepped;
#[cfg(not(loom))]
pub(crate) use runs_on::RunsOn;
pub(crate) use serve::Server;
pub(crate) use threadless::{Attended, Concluding};
#[cfg(not(loom))]
pub(crate) use threads::{MakeReport, Owner};
#[cfg(feature = "tokio")]
pub(crate) use wait::CancellationOfRun;
pub(crate) use wait::EndOfRun;

use crate::clock::Clock;
use crate::config::Valid;
use crate::executor::{Executor, Pool, PoolConfig, PoolWorkers};
use crate::job::{Claim, Ticket, catch_panic};
use crate::shard::batch::{Groups, Located};
use crate::shard::{
    DeferredActions, EntryId, Layout, Refusal, RunDeferred, Shards, Stripe, StripeGuard, Ticker,
};
use crate::sync::{Arc, CachePadded, OnceLock, Weak, unique_number};
use crate::tick::{TickSize, Time};
use faults::Faults;
pub(crate) use limits::Limit;
use limits::Limits;
use pace::Pace;
use signs::LifeSigns;
use std::time::Duration;
use threadless::Threadless;
#[cfg(not(loom))]
use threads::EngineThreads;

/// How long a ticket may stay unclaimed before the pool may grow. Half of it, the time between two
/// checks, is not below `FRESH` in `executor/growth`.
pub(crate) const GROWTH_LIMIT: Duration = Duration::from_millis(2);

/// Where claimed tasks run.
pub(crate) enum ExecutorKind {
    /// The workers of this engine's own pool.
    Pool,
    /// The tickers themselves.
    Inline,
    /// An executor given by the user, to which the workers of the pool pass batches.
    Foreign(Box<dyn Executor>),
}

/// The state that handles, tickers and workers share.
pub(crate) struct Engine<F: FrontendTypes> {
    /// Distinguishes the ids of this engine from those of others.
    tag: u32,
    clock: Clock,
    shards: Shards<F::Key, F::Payload>,
    executor_kind: ExecutorKind,
    pool: Arc<Pool>,
    closing: ClosingState,
    pace: Option<Pace>,
    limits: Limits,
    tick: TickSize,
    shutdown_limit: Duration,
    /// Whether its workers serve other engines, too, and do not end with it.
    shares_workers: bool,
    stepped: bool,
    /// The server, which owns this engine. It lives while a thread or an owner holds it.
    server: OnceLock<Weak<Server<F>>>,
    faults: Faults,
    /// One for each ticker.
    signs: Box<[CachePadded<LifeSigns>]>,
    #[cfg(feature = "tracing")]
    told: traced::Told,
    /// From which duration on a task is reported.
    #[cfg(feature = "tracing")]
    slow_task: Option<Duration>,
    threadless: Threadless<F>,
    /// Present once a task steps this engine.
    #[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
    follower: OnceLock<Follower<F>>,
    #[cfg(not(loom))]
    threads: EngineThreads,
    /// The value of the label `name` of metrics, if it was chosen.
    name: Option<String>,
    pub(crate) frontend: F,
}

/// A stripe of an engine under its lock.
pub(crate) type LockedBy<'a, F> =
    StripeGuard<'a, <F as FrontendTypes>::Key, <F as FrontendTypes>::Payload, Engine<F>>;

/// The arguments of [`Engine::assemble`] besides the front end.
pub(crate) struct EngineParts {
    pub(crate) config: Valid,
    pub(crate) clock: Clock,
    pub(crate) executor_kind: ExecutorKind,
    /// Makes hashes and wheel origins repeatable. By default they differ from engine to engine.
    pub(crate) seed: Option<u64>,
    /// Whether a test's thread drives the engine, so that it has no threads of its own.
    pub(crate) stepped: bool,
    /// Those that serve its pool.
    pub(crate) workers: Arc<PoolWorkers>,
    /// Whether these serve other engines, too, and do not end with it.
    pub(crate) shares_workers: bool,
}

impl<F: Frontend> Engine<F> {
    /// Builds the engine and the state of its tickers. Nothing runs yet.
    pub(crate) fn assemble(parts: EngineParts, frontend: F) -> (Arc<Server<F>>, Vec<TickerState>) {
        let EngineParts {
            config,
            clock,
            executor_kind,
            workers: pool_workers,
            shares_workers,
            ..
        } = parts;
        let tag = unique_number();
        // The seed is random unless the engine is to be repeatable.
        let shards = Shards::new(&Layout {
            shards: config.shards,
            stripes: config.stripes,
            tick: config.tick,
            now: clock.now(),
            backlog: config.backlog,
            max_pending: config.max_pending,
            paced: config.pace.is_some(),
            seed: parts.seed.unwrap_or_else(random_seed),
        });
        let (workers, max_workers) = match &executor_kind {
            // Each ticker is a worker and needs one worker slot.
            ExecutorKind::Inline => (config.shards, config.shards),
            ExecutorKind::Pool | ExecutorKind::Foreign(_) => {
                (pool_workers.wanted(), config.max_running)
            }
        };
        let pool_config = PoolConfig {
            workers,
            max_workers,
            ticker_queues: config.shards,
            injector_bound: config.injector,
            shares_workers,
        };
        let (pool, ticker_queues) = Pool::new(pool_config, pool_workers);
        let ticker_states = ticker_queues
            .into_iter()
            .enumerate()
            .map(|(number, ticker_queue)| {
                let inline = matches!(executor_kind, ExecutorKind::Inline)
                    .then(|| pool.take_slot())
                    .flatten();
                let stripes = shards.stripes_of(number);
                TickerState::new(
                    Ticker::new(number, stripes),
                    ticker_queue,
                    inline,
                    GROWTH_LIMIT,
                )
            })
            .collect();
        let signs = (0..config.shards)
            .map(|_| CachePadded::new(LifeSigns::new(clock.now())))
            .collect();
        let engine = Arc::new(Engine {
            tag,
            clock,
            closing: ClosingState::new(config.stripes),
            pace: (config.pace).map(|per_second| Pace::new(per_second, config.shards)),
            limits: Limits::new(),
            shards,
            executor_kind,
            pool,
            tick: config.tick,
            shutdown_limit: config.shutdown_limit,
            shares_workers,
            stepped: parts.stepped,
            server: OnceLock::new(),
            faults: Faults::default(),
            signs,
            #[cfg(feature = "tracing")]
            told: traced::Told::default(),
            #[cfg(feature = "tracing")]
            slow_task: config.slow_task,
            threadless: Threadless::new(),
            #[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
            follower: OnceLock::new(),
            #[cfg(not(loom))]
            threads: EngineThreads::new(),
            name: config.name,
            frontend,
        });
        let server = Server::new(&engine);
        // The cell was created empty a few lines above, so this cannot fail.
        let _ = engine.server.set(Arc::downgrade(&server));
        let claim: Weak<dyn Claim> = Arc::downgrade(&server) as _;
        engine.pool.is_served_by(claim);
        (server, ticker_states)
    }

    pub(crate) fn tag(&self) -> u32 {
        self.tag
    }

    /// Returns the name for metrics that the builder was given.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    #[inline]
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn shards(&self) -> &Shards<F::Key, F::Payload> {
        &self.shards
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub(crate) fn closing(&self) -> &ClosingState {
        &self.closing
    }

    /// Returns whether this process is a forked copy of the one that built the engine (FORK-1).
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.shards.is_forked()
    }

    /// Returns the stage of the engine's life. In a forked copy of the process it is closed.
    pub(crate) fn lifecycle(&self) -> Lifecycle {
        if self.is_forked() {
            return Lifecycle::Closed;
        }
        self.closing.state()
    }

    pub(crate) fn faults(&self) -> &Faults {
        &self.faults
    }

    pub(crate) fn is_inline(&self) -> bool {
        matches!(self.executor_kind, ExecutorKind::Inline)
    }

    pub(crate) fn is_stepped(&self) -> bool {
        self.stepped
    }

    #[inline]
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    // === operations ===

    /// Runs `operate` under the stripe's lock, then does the deferred actions after unlocking.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        stripe: usize,
        operate: impl FnOnce(&mut Stripe<F::Key, F::Payload>) -> R,
    ) -> R {
        self.shards.with(stripe, operate, |deferred| {
            self.run_deferred(stripe, deferred);
        })
    }

    /// Serves items that are sorted by stripe, at most `per_stripe` under one hold of a lock.
    #[inline]
    pub(crate) fn groups<'s, 'p, T>(
        &'s self,
        located: &'p [Located<T>],
        per_stripe: usize,
    ) -> Groups<'s, 'p, F::Key, F::Payload, Self, T> {
        Groups::new(self, located, per_stripe)
    }

    /// Runs `operate` under the locks of two stripes, or of one if both numbers are the same, and
    /// then does the deferred actions.
    pub(crate) fn with_pair<R>(
        &self,
        numbers: [usize; 2],
        operate: impl FnOnce(
            &mut Stripe<F::Key, F::Payload>,
            Option<&mut Stripe<F::Key, F::Payload>>,
        ) -> R,
    ) -> R {
        let run_deferred = |stripe, deferred: DeferredActions| self.run_deferred(stripe, deferred);
        self.shards.with_pair(numbers, operate, run_deferred)
    }

    /// Takes the stripe's lock. The guard's drop does the deferred actions after unlocking.
    #[inline]
    pub(crate) fn lock(&self, stripe: usize) -> LockedBy<'_, F> {
        StripeGuard::lock(self, stripe)
    }

    /// Returns the stripes for a usual call that reads the clock, if the clock has quick readings.
    /// Asked before the key is hashed, so that calls on other clocks do nothing twice.
    #[inline(always)]
    pub(crate) fn usual(&self) -> Option<&Shards<F::Key, F::Payload>> {
        self.clock.has_quick_readings().then_some(&self.shards)
    }

    // === hand-over ===

    /// Hands over a ticket that is due at once. Runs on the caller's thread.
    fn inject(&self, ticket: Ticket) {
        let shard = self.shards.shard_of(ticket.stripe as usize);
        shard.backlog.issue(1);
        match self.pool.inject(ticket) {
            // Inline, the ticker runs it: a task must never run inside the call that armed it. In
            // a stepped engine, what steps the ticker steps the workers, too.
            Ok(()) if self.stepped || self.is_inline() => {
                shard.bell.ring_for(Time::ZERO);
            }
            // All workers may be blocked while the ticker sleeps for long. It is woken to watch
            // them.
            Ok(()) => shard.bell.ring_for(self.clock.now() + GROWTH_LIMIT),
            Err(ticket) => self.take_back(&[ticket]),
        }
    }

    /// Returns the server that the threads use, while there is one.
    pub(crate) fn server(&self) -> Option<Arc<Server<F>>> {
        self.server.get().and_then(Weak::upgrade)
    }

    /// Releases unused memory of each stripe, one lock after the other.
    pub(crate) fn shrink_to_fit(&self) {
        for stripe in self.stripes_of(None) {
            self.with(stripe, Stripe::shrink_to_fit);
        }
    }

    /// Iterates over the numbers of one shard's stripes, or of all stripes.
    pub(crate) fn stripes_of(&self, shard: Option<usize>) -> impl Iterator<Item = usize> + use<F> {
        let step = shard.map_or(1, |_| self.shards.shards());
        (shard.unwrap_or(0)..self.shards.stripes()).step_by(step)
    }
}

impl<F: Frontend<Key = ()>> Engine<F> {
    /// Arms a timer without a key. `payload` makes the payload of an arming that is accepted; a
    /// refusal returns `value` as it is.
    #[inline]
    pub(crate) fn arm_keyless<T>(
        &self,
        number: usize,
        value: T,
        payload: impl FnOnce(T) -> F::Payload,
        deadline: Time,
        now: Time,
    ) -> Result<EntryId, (Refusal, T)> {
        match self.admit(number, Stripe::admit_keyless) {
            Ok((mut stripe, admission)) => {
                let id = stripe.arm_keyless(admission, (), || payload(value), deadline, now);
                stripe.unlock();
                Ok(id)
            }
            Err(refusal) => Err((refusal, value)),
        }
    }
}

impl<F: Frontend> RunDeferred<F::Key, F::Payload> for Engine<F> {
    fn shards(&self) -> &Shards<F::Key, F::Payload> {
        &self.shards
    }

    #[inline(never)]
    fn run_deferred(&self, stripe: usize, deferred: DeferredActions) {
        if let Some(slot) = deferred.ticket {
            self.inject(Ticket {
                stripe: u32::try_from(stripe).unwrap_or(u32::MAX),
                slot,
            });
        }
        #[cfg(feature = "tokio")]
        for (_, waiter) in deferred.to_notify {
            // A task's waker is code of its runtime.
            let _ = catch_panic(|| waiter.wake());
        }
        if deferred.emptied {
            // USER-1: counted before the stripe reports itself empty, since the engine may look
            // quiet from then on.
            let _user_code = F::ENDS.then(|| self.after_run(stripe));
            if self.closing.stripe_emptied() {
                let _ = catch_panic(|| self.frontend.ended());
            }
        }
    }
}

/// Derives a seed from the process's random hash keys.
fn random_seed() -> u64 {
    ahash::RandomState::new().hash_one(unique_number())
}

impl<F: Frontend> std::fmt::Debug for Engine<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("tag", &self.tag)
            .field("shards", &self.shards)
            .field("pool", &self.pool)
            .field("closing", &self.closing)
            .finish_non_exhaustive()
    }
}
