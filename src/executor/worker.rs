//! A worker: one step, and the loop that a thread runs around it.

use super::pool::Pool;
use super::queue::Found;
use crate::clock::Clock;
use crate::job::{Claim, Ticket};
use crate::sync::deque::Worker as Deque;
use crate::sync::{Arc, Parker};
use crate::tick::Time;

/// At every so many tickets the injector is looked at before anything else.
const INJECTOR_EVERY: u32 = 32;

/// At every so many looks a worker begins with the tickers of others.
const AWAY_EVERY: usize = 4;

/// What belongs to a place in the pool and is handed from one worker to the next.
pub(super) struct Seat {
    pub(super) number: usize,
    pub(super) local: Deque<Ticket>,
    pub(super) parker: Parker,
}

/// A worker of the pool. A thread calls [`Worker::run`]; the deterministic scheduler and the models
/// call [`Worker::step`].
pub(crate) struct Worker {
    pool: Arc<Pool>,
    /// Always there until the drop, which hands it back.
    seat: Option<Seat>,
    /// Tickets since the injector came first.
    since_injector: u32,
    /// Counts the looks for tickets.
    looks: usize,
}

impl Worker {
    pub(super) fn new(pool: Arc<Pool>, seat: Seat) -> Self {
        Worker {
            pool,
            seat: Some(seat),
            since_injector: 0,
            looks: 0,
        }
    }

    /// Which ticker to begin with. Mostly its own: workers that take from one ticker get tickets of
    /// the same stripe, and meet at its lock. But every fourth time another one, so that none is
    /// always the last; and every time where there are fewer workers than tickers, whose own are not
    /// all of them then.
    fn start(&self) -> usize {
        let away = match self.looks {
            looks if self.pool.has_fewer_workers_than_tickers() => looks,
            looks if looks.is_multiple_of(AWAY_EVERY) => looks / AWAY_EVERY,
            _ => 0,
        };
        self.seat().number.wrapping_add(away)
    }

    fn seat(&self) -> &Seat {
        self.seat.as_ref().expect("a seat until the drop")
    }

    /// The seat's number, from 0: the first `workers` stay, those above are extra.
    pub(crate) fn number(&self) -> usize {
        self.seat().number
    }

    /// Serves what it finds first, and up to 31 more from its own deque. False if it found nothing.
    /// Never blocks, but for the tasks themselves.
    pub(crate) fn step<C: Claim + ?Sized>(&mut self, claim: &C) -> bool {
        let injector_first = self.since_injector >= INJECTOR_EVERY;
        if injector_first {
            self.since_injector = 0;
        }
        self.looks = self.looks.wrapping_add(1);
        let seat = self.seat.as_ref().expect("a seat until the drop");
        let pool = &*self.pool;
        let found = pool
            .queues
            .find(seat.number, &seat.local, injector_first, self.start());
        let Some(Found { ticket, stolen }) = found else {
            return false;
        };
        if stolen {
            // The steal may have made tickets visible in its own deque, and this worker is about to
            // disappear into a task: the next sleeper has to look after whatever waits, wherever it
            // waits. P7 in `sleep.rs` says why it is not enough to look at the two deques of this
            // steal.
            pool.sleep.wake_one_if(|| pool.queues.any());
        }
        pool.count_claim(seat.number);
        let since = &mut self.since_injector;
        *since += 1;
        claim.serve(ticket, &mut || {
            if *since >= INJECTOR_EVERY {
                return None;
            }
            let ticket = seat.local.pop()?;
            pool.count_claim(seat.number);
            *since += 1;
            Some(ticket)
        });
        true
    }

    /// Serves tickets and sleeps in between, until the pool is stopped and nothing is found any more;
    /// an extra worker also leaves when it has found nothing for the quiet period.
    pub(crate) fn run<C: Claim + ?Sized>(mut self, claim: &C, clock: &Clock) {
        let patience = self.pool.patience(self.number());
        let mut idle_since = None;
        loop {
            if self.step(claim) {
                idle_since = None;
                continue;
            }
            // The clock is read when a worker finds nothing, and only if the time matters.
            let leave_at =
                patience.map(|quiet| *idle_since.get_or_insert_with(|| clock.now()) + quiet);
            if self.rest(clock, leave_at) == Rested::Leave {
                return;
            }
        }
    }

    /// Sleeps until there is something to look at. The protocol is in `sleep.rs`.
    fn rest(&self, clock: &Clock, leave_at: Option<Time>) -> Rested {
        let pool = &*self.pool;
        let seat = self.seat();
        pool.sleep.announce(seat.number);
        // The flag before the queues: what was pushed before `stop` is then seen by the look.
        let stopped = pool.is_stopped();
        let leave = if pool.queues.any() {
            false
        } else if stopped || leave_at.is_some_and(|moment| clock.now() >= moment) {
            true
        } else {
            clock.park_until(&seat.parker, leave_at);
            false
        };
        let chosen = pool.sleep.retract(seat.number);
        if leave && !chosen {
            Rested::Leave
        } else {
            // Whoever was chosen looks again, even if it was about to leave: its waker relies on it.
            Rested::LookAgain
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(seat) = self.seat.take() {
            self.pool.leave(seat);
        }
    }
}

#[derive(PartialEq, Eq)]
enum Rested {
    LookAgain,
    Leave,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}
