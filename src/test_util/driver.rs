//! Steps shards and workers of an engine of whatever face, on one thread and the manual clock.

use std::cell::RefCell;
use std::fmt;

use crate::clock::ManualClock;
use crate::engine::{Ending, Engine, Face, Seat, Server, Shutdown, Step};
use crate::executor::Worker;
use crate::shard::mix;
use crate::sync::Arc;
use crate::tick::Time;

/// What drives a stepped engine. Dropping it closes the engine.
pub(super) struct Driver<F: Face> {
    server: Arc<Server<F>>,
    hand: ManualClock,
    actors: RefCell<Actors>,
}

struct Actors {
    tickers: Vec<Seat>,
    /// Until when each of them would sleep, by its last step.
    asleep: Vec<Time>,
    workers: Vec<Worker>,
    random: u64,
}

impl<F: Face> Driver<F> {
    pub(super) fn new(
        server: Arc<Server<F>>,
        tickers: Vec<Seat>,
        hand: ManualClock,
        seed: u64,
    ) -> Self {
        let pool = server.engine().pool();
        let workers = (0..server.engine().workers())
            .map_while(|_| pool.seat())
            .collect();
        Driver {
            hand,
            actors: RefCell::new(Actors {
                asleep: vec![Time::MAX; tickers.len()],
                tickers,
                workers,
                random: mix(seed),
            }),
            server,
        }
    }

    pub(super) fn server(&self) -> &Arc<Server<F>> {
        &self.server
    }

    pub(super) fn now(&self) -> Time {
        self.hand.now()
    }

    pub(super) fn hand(&self) -> &ManualClock {
        &self.hand
    }

    /// Lets the time pass until `to`, stopping at every moment at which something is due.
    pub(super) fn advance_to(&self, to: Time) {
        self.settle();
        while let Some(next) = self.next_due(to) {
            self.hand.set(next.max(self.now()));
            self.settle();
        }
        self.hand.set(to.max(self.now()));
        self.settle();
    }

    /// Settles; if `enough` then says no, lets the time pass until the next moment at which
    /// something is due, and so on. False: nothing is pending that ever will be.
    pub(super) fn advance_until(&self, mut enough: impl FnMut() -> bool) -> bool {
        loop {
            self.settle();
            if enough() {
                return true;
            }
            let Some(next) = self.next_due(Time::MAX) else {
                return false;
            };
            self.hand.set(next.max(self.now()));
        }
    }

    /// Lets each shard and each worker take steps in an order that the seed decides, until none of
    /// them has anything to do.
    pub(super) fn settle(&self) {
        let mut actors = self
            .actors
            .try_borrow_mut()
            .expect("a stepped scheduler can't be driven from inside one of its tasks");
        let Actors {
            tickers,
            asleep,
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
                if let Step::SleepUntil(until) = step {
                    asleep[at] = until;
                }
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
        let mut next = engine
            .stripes_of(None)
            .map(|stripe| shards.peek(stripe, |stripe| stripe.next_due()))
            .min()?;
        if next <= self.now() {
            // All is settled, so that is held back, and its ticker knows until when. For ever, if
            // nobody claims what was handed to somebody else's threads.
            next = self.actors.borrow().asleep.iter().copied().min()?;
        }
        (next <= limit && next != Time::MAX).then_some(next)
    }

    /// Shuts down, letting the time pass where the mode waits for it. `None`: it was done before.
    pub(super) fn shut_down(&self, mode: Shutdown) -> Option<Ending<F::Key, F::Payload>> {
        self.settle();
        let engine = self.server.engine();
        if !engine.closing().begin() {
            return None;
        }
        Some(engine.end(mode, self.now(), &mut |limit| {
            self.settle();
            while !engine.closing().is_quiet() {
                let Some(next) = self.next_due(limit) else {
                    self.hand.set(limit.max(self.now()));
                    self.settle();
                    break;
                };
                self.hand.set(next.max(self.now()));
                self.settle();
            }
        }))
    }
}

impl<F: Face> Drop for Driver<F> {
    fn drop(&mut self) {
        Engine::abandon_anywhere(self.server.engine());
    }
}

impl<F: Face> fmt::Debug for Driver<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("now", &self.now())
            .field("engine", self.server.engine())
            .finish_non_exhaustive()
    }
}
