//! A worker: one step, and the loop that a thread runs around it.

use super::pool::Pool;
use super::queue::FoundTicket;
use super::slot::{UNKNOWN_THREAD, WorkerSlot};
use crate::clock::Clock;
use crate::job::{Claim, Ticket};
use crate::sync::deque::Worker as Deque;
use crate::sync::{Arc, thread};
use crate::tick::Time;

/// After this many tickets, the injector is looked at before anything else.
const INJECTOR_EVERY: u32 = 32;

/// Greatest number of tickets that one steal takes: crossbeam-deque moves 32, and returns one more.
const BATCH: usize = 33;

/// Smallest batch that is worth a prefetch. In the models, whose batches are small, each batch is
/// prefetched.
const LOOK_AHEAD_FROM: usize = if cfg!(loom) { 2 } else { 4 };

/// Number of looks after which a worker asks whether another ticker needs it.
const ASK_EVERY: usize = 4;

/// A worker of the pool. A thread calls [`Worker::run`]; the deterministic scheduler and the models
/// call [`Worker::step`].
pub(crate) struct Worker {
    pool: Arc<Pool>,
    /// The worker slot. It is present until the drop, which gives it back.
    slot: Option<WorkerSlot>,
    /// Number of tickets since the injector came first.
    since_injector: u32,
    /// Number of looks for tickets.
    looks: usize,
    /// For each ticker: the number of claims of its own worker when this one last asked.
    seen: Box<[u64]>,
}

impl Pool {
    /// Takes the free worker slot with the lowest number. Returns `None` if all are taken, or after
    /// `stop`.
    ///
    /// Dropping the worker frees its slot, whether the worker ran or not.
    pub(crate) fn take_slot(self: &Arc<Pool>) -> Option<Worker> {
        Some(Worker {
            slot: Some(self.take_free_slot()?),
            since_injector: 0,
            looks: 0,
            seen: vec![0; self.tickers()].into(),
            pool: Arc::clone(self),
        })
    }
}

impl Worker {
    /// Returns the ticker to begin with.
    ///
    /// - Usually this is the worker's own ticker. Workers that took from the same ticker would get
    ///   tickets of the same stripe, and meet at its lock.
    /// - A ticker whose own worker has claimed nothing since this worker last asked comes first now
    ///   and then. Its worker is in a long task, and the ticker must not be last for all other
    ///   workers.
    /// - If there are fewer workers than tickers, not every ticker has a worker of its own. Then
    ///   all tickers have their turn.
    fn start(&mut self) -> usize {
        let own = self.slot().number;
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

    fn slot(&self) -> &WorkerSlot {
        self.slot.as_ref().expect("a worker slot until the drop")
    }

    /// Returns the number of the worker slot, from 0. The first `workers` stay, those above are
    /// extra.
    pub(crate) fn number(&self) -> usize {
        self.slot().number
    }

    /// Notes the number by which the kernel knows the worker's thread; see `crew.rs`.
    pub(crate) fn is_known_as(&self, thread: Option<u64>) {
        let number = thread.unwrap_or(UNKNOWN_THREAD);
        self.pool.note_thread(self.number(), number);
    }

    /// Serves the first ticket that it finds, and up to 31 more from its own deque. Returns false
    /// if it finds nothing. Never blocks, except inside the tasks.
    pub(crate) fn step<C: Claim + ?Sized>(&mut self, claim: &C) -> bool {
        self.step_while(claim, || true)
    }

    /// Like [`step`](Self::step), but asks before each further ticket whether to go on.
    #[inline]
    pub(crate) fn step_while<C: Claim + ?Sized>(
        &mut self,
        claim: &C,
        go_on: impl Fn() -> bool,
    ) -> bool {
        let injector_first = self.since_injector >= INJECTOR_EVERY;
        if injector_first {
            self.since_injector = 0;
        }
        self.looks = self.looks.wrapping_add(1);
        let start = self.start();
        let slot = self.slot.as_ref().expect("a worker slot until the drop");
        let pool = &*self.pool;
        let found = pool
            .queues
            .find(slot.number, &slot.local, injector_first, start);
        let Some(FoundTicket { ticket, stolen }) = found else {
            return false;
        };
        if stolen {
            let waits = pool.at_lock(slot.number).enter();
            prefetch_claims(claim, ticket, &slot.local);
            drop(waits);
            // The steal may have made tickets visible in this worker's own deque, and the worker is
            // about to be busy with a task. So the next sleeper has to serve all waiting tickets.
            // SLEEP-7 in `sleep.rs` explains why checking the two deques of this steal is not
            // enough.
            pool.sleep.wake_one_if(|| pool.queues.any());
        }
        pool.count_claim(slot.number);
        let since = &mut self.since_injector;
        *since += 1;
        claim.serve(ticket, pool.at_lock(slot.number), &mut || {
            // Back to the queues, since it is the injector's turn.
            if *since >= INJECTOR_EVERY || !go_on() {
                return None;
            }
            let ticket = slot.local.pop()?;
            pool.count_claim(slot.number);
            *since += 1;
            Some(ticket)
        });
        true
    }

    /// Serves tickets and sleeps in between, until the pool is stopped and no ticket is found. An
    /// extra worker also leaves when it has found nothing for the quiet period.
    pub(crate) fn run<C: Claim + ?Sized>(mut self, claim: &C, clock: &Clock) {
        self.is_known_as(thread::own_number());
        let patience = self.pool.patience(self.number());
        let mut idle_since = None;
        loop {
            let worked = self.step(claim);
            if self.pool.is_forked() {
                // A task that this thread ran forked, and has returned in the copy. There the
                // thread ends. Its slot stays taken, because the lock for its return may be locked
                // forever.
                return std::mem::forget(self);
            }
            if worked {
                idle_since = None;
                continue;
            }
            // The clock is read only when a worker finds nothing, and only if the time matters.
            let leave_at =
                patience.map(|quiet| *idle_since.get_or_insert_with(|| clock.now()) + quiet);
            if self.rest(clock, leave_at) == Rested::Leave {
                return;
            }
        }
    }

    /// Sleeps until there may be tickets. The protocol is in `sleep.rs`.
    fn rest(&self, clock: &Clock, leave_at: Option<Time>) -> Rested {
        let pool = &*self.pool;
        let slot = self.slot();
        // A waker takes this worker out of the list first, and may then be stopped by the kernel
        // before it wakes it.
        let _able = pool.at_lock(slot.number).enter();
        pool.sleep.announce(slot.number);
        // The flag is read before the queues, so that the check sees all tickets that were pushed
        // before `stop`.
        let stopped = pool.is_stopped();
        let leave = if pool.queues.any() {
            false
        } else if stopped || leave_at.is_some_and(|moment| clock.now() >= moment) {
            true
        } else {
            clock.park_until(&slot.parker, leave_at);
            false
        };
        let chosen = pool.sleep.retract(slot.number);
        if leave && !chosen {
            Rested::Leave
        } else {
            // A chosen worker looks again even if it was about to leave, because its waker relies
            // on it.
            Rested::LookAgain
        }
    }
}

/// Prefetches the entries of a stolen batch. The tickets go out of the deque and back into it, in
/// the same order. Only the deque may keep a ticket while a task runs, because other workers must
/// find it there.
fn prefetch_claims<C: Claim + ?Sized>(claim: &C, first: Ticket, local: &Deque<Ticket>) {
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
    claim.prefetch_claims(&batch[..len]);
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.pool.leave(slot);
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
