//! The engine: shards below, executor below, and one payload type that a face chooses.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | operations on stripes, and what follows them outside the lock |
//! | `serve.rs` | claim, run, settle |
//! | `detached.rs` | runs that go on elsewhere |
//! | `drive.rs` | a ticker's step: collect, hand over, watch growth, promise |
//! | `pace.rs` | how many may expire in a second, and the turns of the tickers |
//! | `closing.rs` | closing, emptying, handing back; see its head for the order of steps |
//! | `threads.rs` | threads around the steps, and their end |
//! | `wait` | waiting for the end of a run, or for its cancellation |
//! | `outside.rs` | user code that belongs to no run |
//! | `inside.rs` | which engines' tasks the present thread is in |

mod closing;
#[cfg(feature = "tokio")]
mod detached;
mod drive;
mod inside;
mod outside;
mod pace;
mod serve;
#[cfg(not(loom))]
mod threads;
mod wait;

pub(crate) use closing::{Closing, Ending};
pub use closing::{Lifecycle, Shutdown};
#[cfg(feature = "tokio")]
pub(crate) use detached::Detached;
pub(crate) use drive::{Seat, Step};
pub(crate) use serve::{Batched, Ended, Fire, Server};
#[cfg(not(loom))]
pub(crate) use threads::Threads;
#[cfg(feature = "tokio")]
pub(crate) use wait::CancellationOfRun;
pub(crate) use wait::EndOfRun;

use crate::clock::Clock;
use crate::config::Valid;
use crate::executor::{Executor, Job, Pool, PoolConfig};
use crate::job::{Claim, Ticket, contain};
use crate::shard::batch::{self, Group};
use crate::shard::{Aftermath, Layout, Refusal, Shards, Start, Stripe, Taken, Ticker};
use crate::stats::Latenesses;
use crate::sync::atomic::AtomicU64;
use crate::sync::{Arc, OnceLock, Weak, unique_number};
use crate::tick::{TickSize, Time};
use pace::Pace;
use std::num::NonZeroUsize;
use std::time::Duration;

/// With a ticket unclaimed for so long the pool may grow.
pub(crate) const GROWTH_LIMIT: Duration = Duration::from_millis(2);

/// What a face of the engine brings: the payload, and how it is run.
pub(crate) trait Face: Send + Sync + Sized + 'static {
    /// `()` where timers have no key.
    type Key: Clone + Send + 'static;
    /// What an entry holds, inline.
    type Payload: Send + 'static;
    /// What running needs of the engine, made once; a handle, for instance.
    type Access: Send + Sync + 'static;

    /// Whether [`ended`](Self::ended) does anything.
    const ENDS: bool = false;

    fn access(engine: &Arc<Engine<Self>>) -> Self::Access;

    /// How what is claimed starts. Asked under the stripe's lock, so no user code.
    fn start(_: &mut Self::Payload, _deadline: Time, _now: Time) -> Start {
        Start::Once
    }

    /// Runs user code: outside every lock, under `catch_unwind`.
    fn run(access: &Self::Access, fire: &Fire<'_, Self::Key>, payload: Self::Payload);

    /// How many at most run at once, if this face takes several at a time by
    /// [`run_batch`](Self::run_batch).
    fn batch(_: &Self::Access) -> Option<NonZeroUsize> {
        None
    }

    /// The same for several, which are never none. A panic is told of the first of them.
    fn run_batch(access: &Self::Access, batch: Vec<Batched<Self::Key, Self::Payload>>) {
        let _ = (access, batch);
        unreachable!("only asked of a face that takes batches");
    }

    /// A run with all that belongs to it; where payloads may run again, with what is left of this
    /// one. Outside every lock, and never panics.
    #[inline]
    fn run_to_its_end(
        access: &Self::Access,
        fire: &Fire<'_, Self::Key>,
        payload: Self::Payload,
    ) -> Ended<Self::Payload> {
        let ended = contain(|| Self::run(access, fire, payload));
        let panicked = ended.is_err();
        if let Err(message) = ended {
            let _ = contain(|| Self::panicked(access, fire, &message));
        }
        Ended {
            panicked,
            stays: None,
            left: false,
        }
    }

    /// A run panicked. Also under `catch_unwind`.
    fn panicked(access: &Self::Access, fire: &Fire<'_, Self::Key>, message: &str);

    /// Takes what must not wait for running tasks out of what a shutdown hands back. Called once,
    /// before the shutdown waits for them, and without a lock. Must not panic.
    fn keep_back(&self, taken: &mut Vec<Taken<Self::Key, Self::Payload>>) {
        let _ = taken;
    }

    /// How many runs found nobody to receive what they delivered.
    fn unreceived(&self) -> u64 {
        0
    }

    /// The engine is closed, and nothing is pending or runs any more. User code may run in here:
    /// without a lock, and its panic is contained.
    fn ended(&self) {}
}

/// Where claimed tasks run.
pub(crate) enum Place {
    /// Our own workers.
    Pool,
    /// The tickers themselves are the workers.
    Inline,
    /// Somebody else's threads.
    Foreign(Box<dyn Executor>),
}

/// Shared by handles, tickers and workers.
pub(crate) struct Engine<F: Face> {
    /// Tells this engine's ids from those of others.
    tag: u32,
    clock: Clock,
    shards: Shards<F::Key, F::Payload>,
    place: Place,
    pool: Arc<Pool>,
    closing: Closing,
    pace: Option<Pace>,
    tick: TickSize,
    shutdown_limit: Duration,
    workers: usize,
    stepped: bool,
    server: OnceLock<Weak<Server<F>>>,
    faults: Faults,
    #[cfg(not(loom))]
    threads: Threads,
    pub(crate) face: F,
}

/// Things that should not happen, counted.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Threads that growth could not start.
    pub(crate) spawn: AtomicU64,
    /// Batches that a foreign executor refused or dropped.
    pub(crate) refused: AtomicU64,
    /// Panics on a ticker's thread, each followed by a restart of its loop.
    pub(crate) ticker: AtomicU64,
    /// Tickers that find the pool at its greatest size while tasks wait.
    pub(crate) saturated: AtomicU64,
}

/// What goes into [`Engine::assemble`] besides the face.
pub(crate) struct Parts {
    pub(crate) config: Valid,
    pub(crate) clock: Clock,
    pub(crate) place: Place,
    /// Makes hashes and origins repeat; by default they differ from engine to engine.
    pub(crate) seed: Option<u64>,
    /// Driven by a test's thread: no thread of its own.
    pub(crate) stepped: bool,
}

impl<F: Face> Engine<F> {
    /// The engine and its tickers' seats; nothing runs yet.
    pub(crate) fn assemble(parts: Parts, face: F) -> (Arc<Server<F>>, Vec<Seat>) {
        let Parts {
            config,
            clock,
            place,
            seed,
            stepped,
        } = parts;
        let tag = unique_number();
        let (shards, parkers) = Shards::new(&Layout {
            shards: config.shards,
            stripes: config.stripes,
            tick: config.tick,
            now: clock.now(),
            backlog: config.backlog,
            max_pending: config.max_pending,
            paced: config.pace.is_some(),
            seed: seed.unwrap_or_else(random_seed),
        });
        let (workers, max_workers) = match &place {
            Place::Pool => (config.workers, config.max_workers),
            // One seat for each ticker.
            Place::Inline => (config.shards, config.shards),
            Place::Foreign(_) => (0, 0),
        };
        let (pool, feeders) = Pool::new(PoolConfig {
            workers,
            max_workers,
            feeders: config.shards,
            injector_bound: config.injector,
            quiet: config.quiet,
        });
        let seats = feeders
            .into_iter()
            .zip(parkers)
            .enumerate()
            .map(|(number, (feeder, parker))| {
                let inline = matches!(place, Place::Inline)
                    .then(|| pool.seat())
                    .flatten();
                let stripes = shards.stripes_of(number);
                Seat::new(
                    Ticker::new(number, stripes),
                    parker,
                    feeder,
                    inline,
                    GROWTH_LIMIT,
                )
            })
            .collect();
        let engine = Arc::new(Engine {
            tag,
            clock,
            closing: Closing::new(config.stripes),
            pace: (config.pace).map(|per_second| Pace::new(per_second, config.shards)),
            shards,
            place,
            pool,
            tick: config.tick,
            shutdown_limit: config.shutdown_limit,
            workers,
            stepped,
            server: OnceLock::new(),
            faults: Faults::default(),
            #[cfg(not(loom))]
            threads: Threads::new(),
            face,
        });
        let server = Server::new(&engine);
        // Set once, right here.
        let _ = engine.server.set(Arc::downgrade(&server));
        (server, seats)
    }

    pub(crate) fn tag(&self) -> u32 {
        self.tag
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn shards(&self) -> &Shards<F::Key, F::Payload> {
        &self.shards
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub(crate) fn closing(&self) -> &Closing {
        &self.closing
    }

    pub(crate) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// How often something due was held back for the pace.
    pub(crate) fn held_back(&self) -> u64 {
        self.pace.as_ref().map_or(0, Pace::held_back)
    }

    pub(crate) fn is_inline(&self) -> bool {
        matches!(self.place, Place::Inline)
    }

    pub(crate) fn is_stepped(&self) -> bool {
        self.stepped
    }

    /// Workers to start with.
    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    pub(crate) fn tick_size(&self) -> TickSize {
        self.tick
    }

    #[inline]
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    // === operations ===

    /// Runs `operate` under the stripe's lock and then does what it left to be done.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        stripe: usize,
        operate: impl FnOnce(&mut Stripe<F::Key, F::Payload>) -> R,
    ) -> R {
        self.shards
            .with(stripe, operate, |after| self.act(stripe, after))
    }

    /// The same for places that are sorted by stripe, under the locks of several stripes at a time.
    pub(crate) fn with_groups<'k, Q: ?Sized>(
        &self,
        places: &[batch::Place<'k, Q>],
        serve: impl FnMut(&mut Group<'_, '_, '_, 'k, F::Key, F::Payload, Q>),
    ) {
        let act = |stripe, after: Aftermath| self.act(stripe, after);
        self.shards.with_groups(places, serve, act);
    }

    #[inline(never)]
    fn act(&self, stripe: usize, after: Aftermath) {
        if let Some(slot) = after.ticket {
            self.inject(Ticket {
                stripe: u32::try_from(stripe).unwrap_or(u32::MAX),
                slot,
            });
        }
        #[cfg(feature = "tokio")]
        for (_, waiter) in after.told {
            // A task's waker is its runtime's code.
            let _ = contain(|| waiter.wake());
        }
        if after.emptied {
            // Before the stripe is counted: from then on the engine may look quiet.
            let _user_code = F::ENDS.then(|| self.after_run(stripe));
            if self.closing.stripe_emptied() {
                let _ = contain(|| self.face.ended());
            }
        }
    }

    /// Admits and arms under one hold of the lock. `given` is taken only if the arming is accepted.
    #[inline]
    pub(crate) fn arm<T, A, R>(
        &self,
        stripe: usize,
        given: &mut Option<T>,
        admit: impl Fn(&mut Stripe<F::Key, F::Payload>, &T) -> Result<A, Refusal>,
        mut arm: impl FnMut(&mut Stripe<F::Key, F::Payload>, A, T) -> R,
    ) -> Result<R, Refusal> {
        loop {
            let answer = self.with(stripe, |stripe| {
                let Some(value) = given.as_ref() else {
                    unreachable!("given is there until it is armed");
                };
                let admission = admit(stripe, value)?;
                let Some(value) = given.take() else {
                    unreachable!("it was there a moment ago");
                };
                Ok(arm(stripe, admission, value))
            });
            match answer {
                Err(Refusal::NoPermit) if self.shards.collect_permits() => {}
                answer => return answer,
            }
        }
    }

    // === hand-over ===

    /// Hands over what is due at once, on the caller's thread.
    fn inject(&self, ticket: Ticket) {
        let shard = self.shards.shard_of(ticket.stripe as usize);
        shard.backlog.issue(1);
        match self.pool.inject(ticket) {
            // Their tickers hand over what is injected: a task never runs in the call that armed
            // it.
            Ok(()) if !matches!(self.place, Place::Pool) => shard.bell.ring_for(Time::ZERO),
            // All workers may be blocked, and the ticker asleep for long: it is woken to watch.
            Ok(()) => shard.bell.ring_for(self.clock.now() + GROWTH_LIMIT),
            Err(ticket) => self.take_back(&[ticket]),
        }
    }

    /// Hands a batch to a foreign executor. What it refuses or drops comes back by the job's
    /// `Drop`.
    fn submit(&self, executor: &dyn Executor, tickets: Vec<Ticket>) {
        let Some(server) = self.server() else {
            self.take_back(&tickets);
            return;
        };
        // USER-3: once everything is taken out, a batch stands for nothing.
        let first = tickets.first().map_or(0, |ticket| ticket.stripe as usize);
        let Some(_user_code) = self.hand_over_of(first) else {
            self.take_back(&tickets);
            return;
        };
        let claim: Arc<dyn Claim> = server;
        let job = Job::new(claim, tickets);
        // Waiting for runs to end would wait for this thread.
        let _inside = inside::Inside::enter(self.tag);
        // Refused, dropped or lost in a panic: the job's drop gives back and counts what is left.
        let _ = contain(|| drop(executor.execute(job)));
    }

    /// Tickets that nobody will claim: their timers come again with the next tick.
    fn take_back(&self, tickets: &[Ticket]) {
        let now = self.clock.now();
        for ticket in tickets {
            let stripe = ticket.stripe as usize;
            self.with(stripe, |stripe| stripe.give_back(ticket.slot, now));
            let shard = self.shards.shard_of(stripe);
            shard.backlog.claimed(&shard.bell);
        }
    }

    /// How many armings have not started; one stripe after the other, so no snapshot.
    pub(crate) fn pending(&self) -> usize {
        self.stripes_of(None)
            .map(|stripe| {
                self.shards
                    .peek(stripe, |stripe| stripe.counters().pending as usize)
            })
            .sum()
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.stripes_of(None)
            .all(|stripe| (self.shards).peek(stripe, |stripe| stripe.counters().pending == 0))
    }

    /// What the threads serve, while there are any.
    pub(crate) fn server(&self) -> Option<Arc<Server<F>>> {
        self.server.get().and_then(Weak::upgrade)
    }

    /// The lateness of one shard's stripes, or of all.
    pub(crate) fn latenesses(&self, shard: Option<usize>) -> Latenesses {
        let mut sum = Latenesses::new();
        for stripe in self.stripes_of(shard) {
            self.shards.peek(stripe, |stripe| {
                if let Some(lateness) = stripe.lateness() {
                    sum.merge(lateness);
                }
            });
        }
        sum
    }

    /// Each stripe gives memory back, one lock after the other.
    pub(crate) fn shrink_to_fit(&self) {
        for stripe in self.stripes_of(None) {
            self.with(stripe, Stripe::shrink_to_fit);
        }
    }

    /// The numbers of one shard's stripes, or of all.
    pub(crate) fn stripes_of(&self, shard: Option<usize>) -> impl Iterator<Item = usize> + use<F> {
        let step = shard.map_or(1, |_| self.shards.shards());
        (shard.unwrap_or(0)..self.shards.stripes()).step_by(step)
    }
}

/// From the process's random hash keys.
fn random_seed() -> u64 {
    ahash::RandomState::new().hash_one(unique_number())
}

impl<F: Face> std::fmt::Debug for Engine<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("tag", &self.tag)
            .field("shards", &self.shards)
            .field("pool", &self.pool)
            .field("closing", &self.closing)
            .finish_non_exhaustive()
    }
}
