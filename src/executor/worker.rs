//! A worker: one step, and the loop that a thread runs around it.

use super::pool::Pool;
use super::queue::Found;
use super::seat::{Seat, UNKNOWN_THREAD};
use crate::clock::Clock;
use crate::job::{Claim, Ticket};
use crate::sync::deque::Worker as Deque;
use crate::sync::{Arc, thread};
use crate::tick::Time;

/// At every so many tickets the injector is looked at before anything else.
const INJECTOR_EVERY: u32 = 32;

/// A steal takes this many from a deque at most: crossbeam-deque moves 32, and returns one more.
const BATCH: usize = 33;

/// A batch of fewer is not worth a look ahead. In the models, whose batches are small, each one is.
const LOOK_AHEAD_FROM: usize = if cfg!(loom) { 2 } else { 4 };

/// At every so many looks a worker asks whether another ticker needs it.
const ASK_EVERY: usize = 4;

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
    /// Per ticker: how much its own worker had claimed when this one last asked.
    seen: Box<[u64]>,
}

impl Pool {
    /// Takes the free seat with the lowest number. `None` when all are taken, or after `stop`.
    ///
    /// Dropping the worker gives the seat back, whether it ran or not.
    pub(crate) fn seat(self: &Arc<Pool>) -> Option<Worker> {
        Some(Worker {
            seat: Some(self.take_seat()?),
            since_injector: 0,
            looks: 0,
            seen: vec![0; self.tickers()].into(),
            pool: Arc::clone(self),
        })
    }
}

impl Worker {
    /// Which ticker to begin with. Its own: workers that take from one ticker get tickets of the
    /// same stripe, and meet at its lock. But a ticker whose own worker has claimed nothing since
    /// this one last asked, for that is in a long task, must not be the last for everybody. And
    /// where there are fewer workers than tickers, which then don't have one each, all have their
    /// turn.
    fn start(&mut self) -> usize {
        let own = self.seat().number;
        if self.pool.has_fewer_workers_than_tickers() {
            return own.wrapping_add(self.looks);
        }
        if !self.looks.is_multiple_of(ASK_EVERY) {
            return own;
        }
        let other = own.wrapping_add(self.looks / ASK_EVERY) % self.seen.len();
        let claims = self.pool.claims_of(other);
        if std::mem::replace(&mut self.seen[other], claims) == claims {
            other
        } else {
            own
        }
    }

    fn seat(&self) -> &Seat {
        self.seat.as_ref().expect("a seat until the drop")
    }

    /// The seat's number, from 0: the first `workers` stay, those above are extra.
    pub(crate) fn number(&self) -> usize {
        self.seat().number
    }

    /// By which number its thread is known to the kernel, for looks at it; see `crew.rs`.
    pub(crate) fn is_known_as(&self, thread: Option<u64>) {
        let number = thread.unwrap_or(UNKNOWN_THREAD);
        self.pool.note_thread(self.number(), number);
    }

    /// Serves what it finds first, and up to 31 more from its own deque. False if it found nothing.
    /// Never blocks, but for the tasks themselves.
    pub(crate) fn step<C: Claim + ?Sized>(&mut self, claim: &C) -> bool {
        let injector_first = self.since_injector >= INJECTOR_EVERY;
        if injector_first {
            self.since_injector = 0;
        }
        self.looks = self.looks.wrapping_add(1);
        let start = self.start();
        let seat = self.seat.as_ref().expect("a seat until the drop");
        let pool = &*self.pool;
        let found = pool
            .queues
            .find(seat.number, &seat.local, injector_first, start);
        let Some(Found { ticket, stolen }) = found else {
            return false;
        };
        if stolen {
            look_ahead(claim, ticket, &seat.local);
            // The steal may have made tickets visible in its own deque, and this worker is about to
            // disappear into a task: the next sleeper has to look after whatever waits, wherever it
            // waits. SLEEP-7 in `sleep.rs` says why it is not enough to look at the two deques of
            // this steal.
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

    /// Serves tickets and sleeps in between, until the pool is stopped and nothing is found any
    /// more; an extra worker also leaves when it has found nothing for the quiet period.
    pub(crate) fn run<C: Claim + ?Sized>(mut self, claim: &C, clock: &Clock) {
        self.is_known_as(thread::own_number());
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

/// Has all that a stolen batch stands for read at once. The batch goes through the deque and back
/// into it, in its order: nothing but the deque may keep a ticket while a task runs, since others
/// must find it there.
fn look_ahead<C: Claim + ?Sized>(claim: &C, first: Ticket, local: &Deque<Ticket>) {
    if local.len() + 1 < LOOK_AHEAD_FROM {
        return;
    }
    let mut batch = [first; BATCH];
    let mut len = 1;
    for (place, ticket) in batch[1..]
        .iter_mut()
        .zip(std::iter::from_fn(|| local.pop()))
    {
        *place = ticket;
        len += 1;
    }
    for ticket in &batch[1..len] {
        local.push(*ticket);
    }
    claim.look_ahead(&batch[..len]);
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
