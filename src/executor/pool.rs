//! Worker slots, the tickers' queues, the injector, and stopping.

use std::time::Duration;

use super::queue::Queues;
use super::sleep::Sleepers;
use super::slot::{NO_THREAD, Sightings, WorkerSlot};
use crate::job::{AtLock, Ticket};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::deque::Worker as Deque;
use crate::sync::fork::Origin;
use crate::sync::{Arc, CachePadded, Mutex, Parker};

/// The sizes of a pool, validated by the builder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolConfig {
    /// Number of worker slots whose workers stay until the pool is stopped.
    pub(crate) workers: usize,
    /// Number of all worker slots. Workers in the other slots leave after `quiet`.
    pub(crate) max_workers: usize,
    /// Number of tickers that hand tickets to the pool.
    pub(crate) ticker_queues: usize,
    /// Bound on the tickets in the injector.
    pub(crate) injector_bound: usize,
    /// Time without a ticket after which an extra worker leaves.
    pub(crate) quiet: Duration,
}

/// The words that a worker writes for every ticket.
#[derive(Default)]
struct WorkerProgress {
    /// Number of tickets handed to `Claim::serve`.
    claims: AtomicU64,
    /// Set while the worker claims or completes.
    at_lock: AtLock,
}

/// State that workers and tickers share. The pool has no threads: a caller that takes a worker slot
/// brings a thread, or steps the worker by hand.
pub(crate) struct Pool {
    config: PoolConfig,
    origin: Origin,
    stopped: AtomicBool,
    /// Number of worker slots in use.
    taken: AtomicUsize,
    pub(super) queues: Queues,
    pub(super) sleep: CachePadded<Sleepers>,
    /// The words that each worker writes for every ticket, by worker slot. Only the owner of the
    /// slot writes.
    progress: Box<[CachePadded<WorkerProgress>]>,
    /// Number of tickets that tickers have served instead of the workers.
    helped: AtomicU64,
    /// Number by which the kernel knows each worker's thread; see `crew.rs`.
    pub(super) threads: Box<[AtomicU64]>,
    /// Held by the ticker that checks the workers and starts more.
    pub(super) sightings: Mutex<Sightings>,
    /// The free worker slots, by number.
    free: Mutex<Box<[Option<WorkerSlot>]>>,
}

impl Pool {
    /// Creates a pool with all worker slots free, and the owners' ends of the tickers' deques.
    pub(crate) fn new(config: PoolConfig) -> (Arc<Pool>, Vec<TickerQueue>) {
        assert!(
            config.workers > 0 || config.max_workers == 0,
            "a pool needs a worker that stays, unless a foreign executor runs all tasks"
        );
        assert!(config.max_workers >= config.workers, "more stay than fit");
        let slots: Box<[WorkerSlot]> = (0..config.max_workers)
            .map(|number| WorkerSlot {
                number,
                local: Deque::new_fifo(),
                parker: Parker::new(),
            })
            .collect();
        // First in, first out: tickets are served in the order of expiry.
        let fed: Vec<Deque<Ticket>> = (0..config.ticker_queues)
            .map(|_| Deque::new_fifo())
            .collect();
        let pool = Arc::new(Pool {
            config,
            origin: Origin::here(),
            stopped: AtomicBool::new(false),
            taken: AtomicUsize::new(0),
            queues: Queues::new(
                fed.iter().map(Deque::stealer).collect(),
                slots.iter().map(|slot| slot.local.stealer()).collect(),
                config.injector_bound,
            ),
            // Padded, since every producer reads its count; the other fields rarely change.
            sleep: CachePadded::new(Sleepers::new(
                slots
                    .iter()
                    .map(|slot| slot.parker.unparker().clone())
                    .collect(),
            )),
            // Padded, since each worker writes its own for every ticket.
            progress: slots.iter().map(|_| CachePadded::default()).collect(),
            helped: AtomicU64::new(0),
            threads: slots.iter().map(|_| AtomicU64::new(NO_THREAD)).collect(),
            sightings: Mutex::new(Sightings::default()),
            free: Mutex::new(slots.into_iter().map(Some).collect()),
        });
        let ticker_queues = fed
            .into_iter()
            .map(|deque| TickerQueue {
                deque,
                pool: Arc::clone(&pool),
            })
            .collect();
        (pool, ticker_queues)
    }

    /// Returns whether this process is a forked copy of the one that has the workers.
    #[inline]
    pub(super) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// Hands a ticket to the worker that comes first, and wakes one. Returns the ticket if the
    /// injector is full.
    ///
    /// After `stop`, a ticket is still accepted, and served if there is a worker.
    pub(crate) fn inject(&self, ticket: Ticket) -> Result<(), Ticket> {
        self.queues.inject(ticket)?;
        self.sleep.wake_one();
        Ok(())
    }

    /// Takes the free worker slot with the lowest number. Returns `None` if all are taken, or after
    /// `stop`.
    pub(super) fn take_free_slot(&self) -> Option<WorkerSlot> {
        let mut free = self.free.lock();
        if self.is_stopped() {
            return None;
        }
        let slot = free.iter_mut().find_map(Option::take)?;
        self.queues.use_local(slot.number);
        // Relaxed: written under the lock only; readers only want an estimate.
        self.taken.fetch_add(1, Ordering::Relaxed);
        drop(free);
        Some(slot)
    }

    /// Returns the number of tickers that hand tickets to the pool.
    pub(super) fn tickers(&self) -> usize {
        self.config.ticker_queues
    }

    /// Returns whether there are fewer workers that stay than tickers. Extra workers do not count.
    pub(super) fn has_fewer_workers_than_tickers(&self) -> bool {
        self.config.workers < self.config.ticker_queues
    }

    /// Frees a worker slot, and leaves the tickets in its deque to other workers.
    pub(super) fn leave(&self, slot: WorkerSlot) {
        let mut left = false;
        while let Some(ticket) = slot.local.pop() {
            left = true;
            if let Err(ticket) = self.queues.inject(ticket) {
                // No room: the rest stays in the deque. The other workers steal from it, whether
                // its slot is in use or not.
                slot.local.push(ticket);
                break;
            }
        }
        let number = slot.number;
        self.note_thread(number, NO_THREAD);
        {
            let mut free = self.free.lock();
            free[number] = Some(slot);
            // Relaxed: see `take_free_slot`.
            let before = self.taken.fetch_sub(1, Ordering::Relaxed);
            debug_assert!(before > 0, "the slot was taken");
        }
        // Another worker has to serve these tickets now.
        if left {
            self.sleep.wake_one();
        }
    }

    /// Returns how many tickets have been handed to `Claim::serve` so far.
    #[inline]
    pub(crate) fn claims(&self) -> u64 {
        // Relaxed: each counter only grows, and readers only compare sums.
        self.progress
            .iter()
            .map(|progress| progress.claims.load(Ordering::Relaxed))
            .fold(0, u64::wrapping_add)
    }

    /// Counts a ticket that a ticker has served.
    pub(crate) fn count_helped(&self) {
        // Relaxed: as for `claims`.
        self.helped.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many tickets the tickers have served.
    pub(super) fn helped(&self) -> u64 {
        // Relaxed: as above.
        self.helped.load(Ordering::Relaxed)
    }

    /// Returns how many of them the worker in this slot has served.
    pub(super) fn claims_of(&self, slot: usize) -> u64 {
        // Relaxed: as above.
        self.progress[slot].claims.load(Ordering::Relaxed)
    }

    /// Counts a claim. Only the owner of the worker slot calls this.
    #[inline]
    pub(super) fn count_claim(&self, slot: usize) {
        let count = &self.progress[slot].claims;
        // Relaxed, without a read-modify-write: the owner is the only writer, and the slot's next
        // owner sees the value through the lock of `free`.
        count.store(
            count.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
    }

    /// Returns the mark of the worker in this slot. Only its owner sets it.
    #[inline]
    pub(super) fn at_lock(&self, slot: usize) -> &AtLock {
        &self.progress[slot].at_lock
    }

    /// Returns whether a worker claims, completes or rests just now.
    pub(super) fn one_is_at_lock(&self) -> bool {
        self.progress
            .iter()
            .any(|progress| progress.at_lock.is_set())
    }

    /// Notes the number of the thread of the worker in this slot.
    pub(super) fn note_thread(&self, slot: usize, number: u64) {
        // Relaxed: a number for the kernel. No data is read through it.
        self.threads[slot].store(number, Ordering::Relaxed);
    }

    /// Returns how many workers stay until the pool is stopped.
    pub(super) fn permanent(&self) -> usize {
        self.config.workers
    }

    /// Returns how many worker slots are in use.
    pub(crate) fn workers(&self) -> usize {
        // Relaxed: callers only want an estimate.
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns how many more workers there may be.
    #[inline]
    pub(crate) fn free_slots(&self) -> usize {
        self.config.max_workers.saturating_sub(self.workers())
    }

    /// Returns how many workers sleep or are about to.
    pub(crate) fn sleeping(&self) -> usize {
        self.sleep.sleeping()
    }

    /// Takes up to `limit` tickets out of the injector, for a pool without workers.
    pub(crate) fn take_injected(&self, limit: usize) -> Vec<Ticket> {
        self.queues.take_injected(limit)
    }

    /// Returns whether a ticket waits that no ticker has sifted, not counting the tickers' deques.
    /// After a fence, like [`has_tickets`](Self::has_tickets).
    pub(crate) fn has_unsifted(&self) -> bool {
        self.queues.any_unsifted()
    }

    /// Leaves a ticket that is not light to the workers.
    pub(crate) fn put_sifted(&self, ticket: Ticket) {
        self.queues.put_sifted(ticket);
        self.sleep.wake_one();
    }

    /// Returns whether a ticket waits in any queue. After a fence, the answer includes every ticket
    /// that was pushed before the fence of its producer.
    pub(crate) fn has_tickets(&self) -> bool {
        self.queues.any()
    }

    /// Returns approximately how many tickets wait in all queues, including the workers' own. For
    /// `Debug` and the models.
    pub(crate) fn queued_hint(&self) -> usize {
        self.queues.len()
    }

    /// Stops the pool. No worker slot is given out any more, sleepers are woken, and every worker
    /// leaves when it finds no ticket. Tickets that were pushed before are served while there is a
    /// worker.
    pub(crate) fn stop(&self) {
        {
            // Under the lock, so that no worker slot is given out after this call returns.
            let _slots = self.free.lock();
            // Release pairs with the Acquire in `is_stopped`: a worker that sees the flag sees the
            // tickets that were pushed before it.
            self.stopped.store(true, Ordering::Release);
        }
        self.sleep.wake_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        // Acquire pairs with the Release in `stop`.
        self.stopped.load(Ordering::Acquire)
    }

    /// Returns how long a worker in this slot may find nothing before it leaves; `None` means that
    /// it stays.
    pub(super) fn patience(&self, slot: usize) -> Option<Duration> {
        (slot >= self.config.workers).then_some(self.config.quiet)
    }
}

/// The owner's end of a ticker's deque: the cheapest way into the pool.
pub(crate) struct TickerQueue {
    deque: Deque<Ticket>,
    pool: Arc<Pool>,
}

impl TickerQueue {
    /// Adds a ticket. No worker is woken for it before `announce`.
    #[inline]
    pub(crate) fn push(&self, ticket: Ticket) {
        self.deque.push(ticket);
    }

    /// Takes a ticket that no ticker has sifted: out of this deque, the injector or a worker's
    /// deque. The other tickers sift their deques themselves.
    pub(crate) fn take_unsifted(&self) -> Option<Ticket> {
        self.deque
            .pop()
            .or_else(|| self.pool.queues.take_unsifted())
    }

    /// Wakes one worker, after a batch of pushes. The worker that steals from the batch wakes the
    /// next one if tickets remain.
    ///
    /// Returns true if a worker slept: it looks at the batch before it sleeps again or leaves.
    /// Otherwise all workers are awake and will find the batch.
    pub(crate) fn announce(&self) -> bool {
        self.pool.sleep.wake_one()
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("workers", &self.workers())
            .field("sleeping", &self.sleeping())
            .field("queued", &self.queued_hint())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for TickerQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TickerQueue").finish_non_exhaustive()
    }
}
