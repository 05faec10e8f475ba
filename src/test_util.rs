//! A scheduler that a test drives from its own thread: no thread of its own, no waiting, and the
//! same interleaving again with the same seed.
//!
//! The API is that of production: the same [`Handle`], the same builder, with
//! [`build_stepped`](crate::Builder::build_stepped) instead of `build`. Time passes only in
//! [`advance`](Stepped::advance) and its siblings, and tasks run in there, on the calling thread.
//! Each call returns when everything is settled: nothing due is left, nothing runs.
//!
//! # Examples
//!
//! ```
//! use std::time::Duration;
//! use tourbillon::Scheduler;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let scheduler = Scheduler::<&str>::builder().build_stepped(42)?;
//! let timers = scheduler.handle();
//! timers.schedule("b", Duration::from_secs(2), |_| ())?;
//! timers.schedule("a", Duration::from_secs(1), |_| ())?;
//!
//! assert!(scheduler.advance(Duration::from_millis(999)).is_empty());
//! let fired = scheduler.advance(Duration::from_secs(2));
//! let keys: Vec<_> = fired.iter().map(|fired| fired.key).collect();
//! assert_eq!(keys, ["a", "b"]);
//! # Ok(())
//! # }
//! ```

use std::cell::RefCell;
use std::fmt;
use std::hash::BuildHasher;
use std::time::Duration;

use crate::clock::ManualClock;
use crate::engine::{Seat, Server, Shutdown, Step};
use crate::executor::Worker;
pub use crate::scheduler::Fired;
use crate::scheduler::{Handle, Keyed, RandomState, Report};
use crate::shard::mix;
use crate::sync::Arc;
use crate::tick::Time;

/// A scheduler without threads; see the [module](self).
///
/// It is driven by one thread at a time and is not `Sync`; its handles are. Calling `advance` and
/// its siblings from inside a task panics.
pub struct Stepped<K, S = RandomState>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    server: Arc<Server<Keyed<K, S>>>,
    handle: Handle<K, S>,
    hand: ManualClock,
    actors: RefCell<Actors>,
}

struct Actors {
    tickers: Vec<Seat>,
    workers: Vec<Worker>,
    random: u64,
}

impl<K, S> Stepped<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    pub(crate) fn new(
        server: Arc<Server<Keyed<K, S>>>,
        tickers: Vec<Seat>,
        hand: ManualClock,
        seed: u64,
    ) -> Self {
        let pool = server.engine().pool();
        let workers = (0..server.engine().workers())
            .map_while(|_| pool.seat())
            .collect();
        Stepped {
            handle: Handle::new(Arc::clone(server.engine())),
            hand,
            actors: RefCell::new(Actors {
                tickers,
                workers,
                random: mix(seed),
            }),
            server,
        }
    }

    /// A handle, for any thread.
    #[must_use]
    pub fn handle(&self) -> Handle<K, S> {
        self.handle.clone()
    }

    /// The moment that the clock shows.
    #[must_use]
    pub fn now(&self) -> Time {
        self.hand.now()
    }

    /// The hand of the clock. Moving it fires nothing by itself; [`settle`](Self::settle) does.
    #[must_use]
    pub fn clock(&self) -> ManualClock {
        self.hand.clone()
    }

    /// Lets `by` pass; see [`advance_to`](Self::advance_to).
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn advance(&self, by: Duration) -> Vec<Fired<K>> {
        self.advance_to(self.now() + by)
    }

    /// Lets the time pass until `to`, stopping at every moment at which something is due: each
    /// timer runs at its own tick, what it schedules runs in its turn, and the result is in the
    /// order of the runs. A moment that has passed changes nothing but settles.
    ///
    /// # Panics
    ///
    /// From inside a task.
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn advance_to(&self, to: Time) -> Vec<Fired<K>> {
        self.settle_quietly();
        while let Some(next) = self.next_due(to) {
            self.hand.set(next.max(self.now()));
            self.settle_quietly();
        }
        self.hand.set(to.max(self.now()));
        self.settle()
    }

    /// Lets the time pass until something runs, and settles. `None` if nothing is pending that
    /// ever will.
    ///
    /// # Panics
    ///
    /// From inside a task.
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn advance_to_next(&self) -> Option<Vec<Fired<K>>> {
        loop {
            let fired = self.settle();
            if !fired.is_empty() {
                return Some(fired);
            }
            let next = self.next_due(Time::MAX)?;
            self.hand.set(next.max(self.now()));
        }
    }

    /// Sets the clock to `to` without stopping in between, as if every thread had slept through,
    /// and settles. Also backwards.
    ///
    /// # Panics
    ///
    /// From inside a task.
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn jump_to(&self, to: Time) -> Vec<Fired<K>> {
        self.hand.set(to);
        self.settle()
    }

    /// Runs everything that is due at this moment, and returns what ran since the last call that
    /// returned runs.
    ///
    /// # Panics
    ///
    /// From inside a task.
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn settle(&self) -> Vec<Fired<K>> {
        self.settle_quietly();
        self.server
            .engine()
            .face
            .log
            .as_ref()
            .map(|log| std::mem::take(&mut *log.lock()))
            .unwrap_or_default()
    }

    /// Lets each shard and each worker take steps in an order that the seed decides, until none of
    /// them has anything to do.
    fn settle_quietly(&self) {
        let mut actors = self
            .actors
            .try_borrow_mut()
            .expect("a stepped scheduler can't be driven from inside one of its tasks");
        let Actors {
            tickers,
            workers,
            random,
        } = &mut *actors;
        let count = tickers.len() + workers.len();
        let mut idle = vec![false; count];
        let mut idle_count = 0;
        while idle_count < count {
            *random = mix(*random);
            let mut at = (*random % count as u64) as usize;
            while idle[at] {
                at = (at + 1) % count;
            }
            let worked = if at < tickers.len() {
                let engine = self.server.engine();
                let step = engine.ticker_step(&self.server, &mut tickers[at], &mut |_| ());
                step == Step::Worked
            } else {
                workers[at - tickers.len()].step(self.server.as_ref())
            };
            if worked {
                // Whatever it did may be work for the others.
                idle.fill(false);
                idle_count = 0;
            } else {
                idle[at] = true;
                idle_count += 1;
            }
        }
    }

    /// The exact next moment at which a wheel has something to do, if it is not after `limit`.
    fn next_due(&self, limit: Time) -> Option<Time> {
        let engine = self.server.engine();
        let shards = engine.shards();
        // What the tickers go by may be early, after a cancellation, and is never late: mostly it
        // answers without a look at every stripe.
        let no_earlier = (0..shards.shards()).map(|shard| shards.shard(shard).least_due());
        if no_earlier.min().is_none_or(|time| time > limit) {
            return None;
        }
        engine
            .stripes_of(None)
            .map(|stripe| shards.peek(stripe, |stripe| stripe.next_due()))
            .min()
            .filter(|time| *time <= limit && *time != Time::MAX)
    }

    /// Shuts down, letting the time pass where the mode waits for it. A second call returns an
    /// empty report.
    ///
    /// # Panics
    ///
    /// From inside a task.
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn shutdown(&self, mode: Shutdown) -> Report<K, S> {
        self.settle_quietly();
        let engine = self.server.engine();
        if !engine.closing().begin() {
            return Report::default();
        }
        Report::of(Some(engine.end(mode, self.now(), &mut |limit| {
            self.settle_quietly();
            while !engine.closing().is_quiet() {
                let Some(next) = self.next_due(limit) else {
                    self.hand.set(limit.max(self.now()));
                    self.settle_quietly();
                    break;
                };
                self.hand.set(next.max(self.now()));
                self.settle_quietly();
            }
        })))
    }
}

impl<K, S> Drop for Stepped<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn drop(&mut self) {
        self.server.engine().abandon();
    }
}

impl<K, S> fmt::Debug for Stepped<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stepped")
            .field("now", &self.now())
            .field("engine", self.server.engine())
            .finish_non_exhaustive()
    }
}
