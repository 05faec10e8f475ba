//! Steps the shards and workers of any engine, on one thread and with a manual clock.

use std::cell::RefCell;
use std::fmt;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};

use crate::clock::ManualClock;
#[cfg(feature = "tokio")]
use crate::engine::Engine;
use crate::engine::{Ending, Frontend, FrontendTypes, Owner, Server, Shutdown, TickerState};
use crate::executor::Worker;
use crate::job::AtLock;
use crate::shard::splitmix64;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::tick::Time;
use crate::tickers::TickerStep;

/// What takes steps on a manual clock: one driver, or several together.
pub trait Steps {
    /// Returns the clock that the steps follow.
    fn hand(&self) -> &ManualClock;

    /// Lets shards and workers take steps until none of them has anything to do. The seed decides
    /// the order. Returns whether a step did something.
    fn settle(&self) -> bool;

    /// Returns the exact next time at which a wheel has something to do, or a task's wait reaches
    /// its limit, if it is not after `limit`.
    fn next_due(&self, limit: Time) -> Option<Time>;

    /// Returns the time that the clock shows.
    fn now(&self) -> Time {
        self.hand().now()
    }

    /// Lets time pass until `to`. It stops at every time at which something is due.
    fn advance_to(&self, to: Time) {
        self.settle();
        while let Some(next) = self.next_due(to) {
            // Never backwards: a task may have set the clock ahead.
            self.hand().set(next.max(self.now()));
            self.settle();
        }
        self.hand().set(to.max(self.now()));
        self.settle();
    }

    /// Polls `future` until it is ready. While it waits, takes all steps, and then lets time pass
    /// until something is due.
    fn run_until<T>(&self, future: impl Future<Output = T>) -> T
    where
        Self: Sized,
    {
        let mut future = pin!(future);
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        loop {
            self.settle();
            // AcqRel: pairs with the Release in `wake_by_ref`, so that the poll sees what the
            // waking thread did before. The flag falls before the poll, which may raise it again.
            if woken.0.swap(false, Ordering::AcqRel) {
                if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                    return output;
                }
                continue;
            }
            let Some(next) = self.next_due(Time::MAX) else {
                panic!(
                    "the future is not ready at {:?}, nothing has woken it, and no timer is \
                     pending that could: it would wait forever",
                    self.now()
                );
            };
            self.hand().set(next.max(self.now()));
        }
    }
}

/// Drives a stepped engine. Dropping it closes the engine.
pub(super) struct Driver<F: FrontendTypes> {
    /// Closes the engine. The first field, so that it is dropped first.
    _owner: Owner<F>,
    server: Arc<Server<F>>,
    hand: ManualClock,
    /// Whether runs may wait for room.
    needs_room: bool,
    actors: RefCell<Actors>,
}

/// The parts of an engine that take steps.
struct Actors {
    tickers: Vec<TickerState>,
    /// Until when each ticker would sleep, according to its last step.
    asleep: Vec<Time>,
    workers: Vec<Worker>,
    random: u64,
}

impl<F: Frontend> Driver<F> {
    pub(super) fn new(
        server: Arc<Server<F>>,
        tickers: Vec<TickerState>,
        hand: ManualClock,
        seed: u64,
    ) -> Self {
        let pool = server.engine().pool();
        let workers = (0..pool.threads().wanted())
            .map_while(|_| pool.take_slot())
            .collect();
        Driver {
            _owner: Owner::new(server.engine()),
            hand,
            needs_room: server.engine().frontend.room().is_some(),
            actors: RefCell::new(Actors {
                asleep: vec![Time::MAX; tickers.len()],
                tickers,
                workers,
                random: splitmix64(seed),
            }),
            server,
        }
    }

    pub(super) fn server(&self) -> &Arc<Server<F>> {
        &self.server
    }

    /// Takes steps until nothing is left to do, then asks `enough`. While the answer is no, lets
    /// time pass until something is due, and repeats. Returns false if nothing pending will ever be
    /// due.
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

    /// Shuts down, and lets time pass where the mode waits for it. Returns `None` if another call
    /// has shut down before.
    pub(super) fn shut_down(&self, mode: Shutdown) -> Option<Ending<F::Key, F::Payload>> {
        let engine = self.server.engine();
        if engine.is_forked() {
            return None;
        }
        self.settle();
        if !engine.closing().begin(mode == Shutdown::HandBack) {
            return None;
        }
        engine.closing().began_at(self.now());
        Some(engine.end(mode, self.now(), &mut |limit| {
            self.settle();
            // Like `advance_to`, but only until nothing is pending or running.
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

#[cfg(feature = "tokio")]
impl<F: Frontend> Driver<F> {
    /// Makes the bells of all shards wake this task, which has to settle afterwards.
    pub(super) fn wakes(&self, task: &Waker) {
        let shards = self.server.engine().shards();
        for shard in 0..shards.shards() {
            shards.shard(shard).bell.wakes(task);
        }
    }

    /// Returns until when the tickers sleep if nothing wakes them: until the next time at which
    /// something is due, or earlier.
    pub(super) fn asleep_until(&self) -> Time {
        let asleep = self.actors.borrow().asleep.iter().copied().min();
        asleep.unwrap_or(Time::MAX)
    }

    /// Returns how many entries are due and wait for room in a channel, after the last step.
    pub(super) fn waiting_for_room(&self) -> usize {
        self.server.engine().shards().unclaimed()
    }

    pub(super) fn engine(&self) -> &Arc<Engine<F>> {
        self.server.engine()
    }
}

impl<F: Frontend> Steps for Driver<F> {
    fn hand(&self) -> &ManualClock {
        &self.hand
    }

    fn settle(&self) -> bool {
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
        let mut any = false;
        while idle_count < count {
            // The random actor, or the next one that may have something to do.
            *random = splitmix64(*random);
            let mut at = (*random % count as u64) as usize;
            while idle[at] {
                at = (at + 1) % count;
            }
            let worked = if at < tickers.len() {
                let engine = self.server.engine();
                let step = engine.ticker_step(&self.server, &mut tickers[at], &mut |_| true);
                if let TickerStep::SleepUntil(until) = step {
                    asleep[at] = until;
                }
                step == TickerStep::Worked
            } else {
                let (worker, server) = (&mut workers[at - tickers.len()], self.server.as_ref());
                if self.needs_room {
                    // A worker that waited for room in a channel would wait for this thread.
                    let has_room = || server.engine().frontend.room() != Some(false);
                    has_room() && worker.step_while(server, &AtLock::default(), has_room)
                } else {
                    worker.step(server)
                }
            };
            if worked {
                any = true;
                // The step may have made work for the others.
                idle.fill(false);
                idle_count = 0;
            } else {
                idle[at] = true;
                idle_count += 1;
            }
        }
        any
    }

    fn next_due(&self, limit: Time) -> Option<Time> {
        let engine = self.server.engine();
        let shards = engine.shards();
        // A task may wait until then, whatever is due. The first ticker watches the clock for it.
        let wait = engine.next_limit(0);
        // The published times may be early after a cancellation, but are never late. So in most
        // cases they answer without a look at every stripe.
        let no_earlier = (0..shards.shards()).map(|shard| shards.shard(shard).least_due());
        let mut next = Time::MAX;
        if no_earlier.min().is_some_and(|time| time <= limit) {
            let stripes = engine.stripes_of(None);
            let due = stripes.map(|stripe| shards.peek(stripe, |stripe| stripe.next_due()));
            next = due.min().unwrap_or(Time::MAX);
        }
        if next <= self.now() {
            // Nothing is left to do now, so this entry is held back, and its ticker knows until
            // when. That is forever if nobody claims tickets that were handed to a foreign
            // executor.
            let asleep = self.actors.borrow();
            next = asleep.asleep.iter().copied().min().unwrap_or(Time::MAX);
        }
        let next = if wait > self.now() {
            next.min(wait)
        } else {
            next
        };
        (next <= limit && next != Time::MAX).then_some(next)
    }
}

/// Whether the future that a driver polls has been woken since its last poll.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release pairs with the AcqRel in `Steps::run_until`.
        self.0.store(true, Ordering::Release);
    }
}

impl<F: Frontend> fmt::Debug for Driver<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("now", &self.now())
            .field("engine", self.server.engine())
            .finish_non_exhaustive()
    }
}
