//! One step of a worker in a pool.

use super::pool::{Pool, WorkerSlot};
use super::queue::FoundTicket;
use crate::job::{AtLock, Claim, Ticket};
use crate::sync::Arc;
use crate::sync::deque::Worker as Deque;

/// After this many tickets, the injector is looked at before anything else.
const INJECTOR_EVERY: u32 = 32;

/// Greatest number of tickets that one steal takes: crossbeam-deque moves 32, and returns one more.
const BATCH: usize = 33;

/// Smallest batch that is worth a prefetch. In the models, whose batches are small, each batch is
/// prefetched.
const LOOK_AHEAD_FROM: usize = if cfg!(loom) { 2 } else { 4 };

/// Number of looks after which a worker asks whether another ticker needs it.
const ASK_EVERY: usize = 4;

/// A worker in a slot of a pool. A thread takes one for a visit (`workers.rs`). The deterministic
/// scheduler, an inline ticker and the models keep one, and call [`Worker::step`].
pub(crate) struct Worker {
    pool: Arc<Pool>,
    /// The worker slot. It is present until the drop, which gives it back.
    slot: Option<WorkerSlot>,
    /// Whether it has looked at all queues since it has the slot (SLEEP-3).
    has_looked: bool,
}

impl Pool {
    /// Takes the free worker slot with the lowest number. Returns `None` if all are taken.
    ///
    /// Dropping the worker frees its slot, whether the worker ran or not.
    pub(crate) fn take_slot(self: &Arc<Pool>) -> Option<Worker> {
        Some(Worker {
            slot: Some(self.take_free_slot()?),
            has_looked: false,
            pool: Arc::clone(self),
        })
    }
}

impl WorkerSlot {
    /// Returns the ticker to begin with.
    ///
    /// - Usually this is the worker's own ticker. Workers that took from the same ticker would get
    ///   tickets of the same stripe, and meet at its lock.
    /// - A ticker whose own worker has claimed nothing since this worker last asked comes first now
    ///   and then. Its worker is in a long task, and the ticker must not be last for all other
    ///   workers.
    /// - If there are fewer workers than tickers, not every ticker has a worker of its own. Then
    ///   all tickers have their turn.
    fn start(&mut self, pool: &Pool) -> usize {
        let own = self.number;
        if pool.has_fewer_workers_than_tickers() {
            return own.wrapping_add(self.looks);
        }
        if !self.looks.is_multiple_of(ASK_EVERY) {
            return own;
        }
        let other = own.wrapping_add(self.looks / ASK_EVERY) % self.seen.len();
        let claims = pool.queues.claims_of(other);
        if std::mem::replace(&mut self.seen[other], claims) == claims {
            other
        } else {
            own
        }
    }
}

impl Worker {
    #[cfg(test)]
    pub(crate) fn number(&self) -> usize {
        self.slot
            .as_ref()
            .expect("a worker slot until the drop")
            .number
    }

    /// Serves the first ticket that it finds, and up to 31 more from its own deque. Returns false
    /// if it finds nothing. Never blocks, except inside the tasks.
    pub(crate) fn step<C: Claim + ?Sized>(&mut self, claim: &C) -> bool {
        // No ticker checks the thread of a worker that is stepped by hand, so the mark is read by
        // nobody.
        self.step_while(claim, &AtLock::default(), || true)
    }

    /// Like [`step`](Self::step), for a thread with this mark. Asks before each further ticket
    /// whether to go on.
    #[inline]
    pub(crate) fn step_while<C: Claim + ?Sized>(
        &mut self,
        claim: &C,
        at_lock: &AtLock,
        go_on: impl Fn() -> bool,
    ) -> bool {
        let slot = self.slot.as_mut().expect("a worker slot until the drop");
        let pool = &*self.pool;
        let injector_first = slot.since_injector >= INJECTOR_EVERY;
        if injector_first {
            slot.since_injector = 0;
        }
        slot.looks = slot.looks.wrapping_add(1);
        let start = slot.start(pool);
        let found = pool
            .queues
            .find(slot.number, &slot.local, injector_first, start);
        let Some(FoundTicket { ticket, stolen }) = found else {
            return false;
        };
        if stolen || !self.has_looked {
            self.has_looked = true;
            let waits = at_lock.enter();
            prefetch_claims(claim, ticket, &slot.local);
            // After the prefetch, which empties the deque for a moment.
            pool.queues.mark_local(slot.number, &slot.local);
            // The steal may have made tickets visible in this worker's own deque, and the worker is
            // about to be busy with a task. So the next worker has to serve all waiting tickets.
            // SLEEP-7 in `workers.rs` explains why checking the two deques of this steal is not
            // enough.
            pool.list_if_any();
            drop(waits);
        }
        slot.count_claim();
        slot.since_injector += 1;
        claim.dispatch(ticket, at_lock, &mut || {
            // Back to the queues, since it is the injector's turn.
            if slot.since_injector >= INJECTOR_EVERY || !go_on() {
                return None;
            }
            let ticket = slot.local.pop()?;
            slot.count_claim();
            slot.since_injector += 1;
            Some(ticket)
        });
        true
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
            // SLEEP-3, also if a panic has ended the visit.
            self.pool.list_if_any();
        }
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}
