//! The queues of one engine, its worker slots, and when its tickets are made known to the workers.
//!
//! # The end of a pool
//!
//! Workers go on when one of their pools ends.
//!
//! - **CLOSE-POOL** A closed pool gives no slot. Slots are given and freed under one lock, which who
//!   waits for the last worker takes, too. A worker holds the engine only while it has a slot. So
//!   when no slot is in use any more, no worker runs anything of the engine, or owns it.

use super::queue::Queues;
use super::workers::{Desk, Listed, Workers};
use crate::job::{Claim, Ticket};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use crate::sync::deque::Worker as Deque;
use crate::sync::fork::Origin;
use crate::sync::{Arc, CachePadded, Mutex, OnceLock, Parker, Unparker, Weak};

/// The sizes of a pool, validated by the builder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolConfig {
    /// Number of workers that there are usually.
    pub(crate) workers: usize,
    /// Number of worker slots: so many workers serve the pool at one time.
    pub(crate) max_workers: usize,
    /// Number of tickers that hand tickets to the pool.
    pub(crate) ticker_queues: usize,
    /// Bound on the tickets in the injector.
    pub(crate) injector_bound: usize,
    /// Whether its workers may serve other pools, too.
    pub(crate) shares_workers: bool,
}

/// What [`Workers`] needs to know of a pool.
pub(crate) struct Listing {
    /// Whether the pool is in the list, or is about to be put into it; see `workers.rs`.
    pub(super) listed: AtomicBool,
    /// Number of worker slots in use.
    visitors: AtomicUsize,
    /// Whether a spare worker was started for the pool.
    spare: AtomicBool,
    pool: Weak<Pool>,
    /// What serves the tickets.
    claim: OnceLock<Weak<dyn Claim>>,
}

impl Listed for Arc<Listing> {
    fn is_visited(&self) -> bool {
        // Relaxed: it decides the order only, or is read under the lock under which it is written.
        self.visitors.load(Ordering::Relaxed) > 0
    }

    fn key(&self) -> usize {
        Arc::as_ptr(self).addr()
    }

    fn takes_spare(&self) -> bool {
        // Relaxed: a hint. Under the lock of the workers, so that one of them takes it.
        self.spare.load(Ordering::Relaxed) && self.spare.swap(false, Ordering::Relaxed)
    }
}

impl Listing {
    /// Returns whether the pool is in the list.
    #[inline]
    pub(super) fn is_listed(&self) -> bool {
        // Relaxed: an estimate.
        self.listed.load(Ordering::Relaxed)
    }

    /// Notes that the pool was taken off the list. Returns the pool, unless it is gone. From then
    /// on the caller owes a look at its queues, by [`Pool::list_if_any`] (SLEEP-3).
    pub(super) fn begin_visit(&self) -> Option<Arc<Pool>> {
        // Relaxed: ordered by the fence before that look.
        self.listed.store(false, Ordering::Relaxed);
        self.pool.upgrade()
    }

    /// Returns what serves the tickets, unless it is gone.
    pub(super) fn claim(&self) -> Option<Arc<dyn Claim>> {
        self.claim.get()?.upgrade()
    }
}

/// The threads that serve pools.
pub(crate) type PoolWorkers = Workers<Arc<Listing>>;

/// A worker slot of a pool: the state that passes from one visit to the next one in this slot.
pub(super) struct WorkerSlot {
    pub(super) number: usize,
    pub(super) local: Deque<Ticket>,
    /// Number of tickets handed to `Claim::serve`.
    claims: Arc<CachePadded<AtomicU64>>,
    /// Number of tickets since the injector came first.
    pub(super) since_injector: u32,
    /// Number of looks for tickets.
    pub(super) looks: usize,
    /// For each ticker: the number of claims of its own worker when this one last asked.
    pub(super) seen: Box<[u64]>,
}

impl WorkerSlot {
    /// Counts a claim.
    #[inline]
    pub(super) fn count_claim(&self) {
        // Relaxed, without a read-modify-write: the slot's owner is the only writer, and its next
        // owner sees the value through the lock of the slots.
        let count = self.claims.load(Ordering::Relaxed).wrapping_add(1);
        self.claims.store(count, Ordering::Relaxed);
    }
}

/// State that workers and tickers share. A worker slot is made when it is taken for the first time.
pub(crate) struct Pool {
    config: PoolConfig,
    origin: Origin,
    pub(super) queues: Queues,
    /// The threads that serve this pool.
    workers: Arc<PoolWorkers>,
    listing: Arc<Listing>,
    /// Number of tickets that tickers have served instead of the workers.
    helped: AtomicU64,
    slots: Mutex<PoolSlots>,
}

/// The worker slots of a pool.
#[derive(Default)]
struct PoolSlots {
    /// Those that were made, by number; `None` where it is in use.
    made: Vec<Option<WorkerSlot>>,
    /// Whether no slot is given any more.
    closed: bool,
    /// The threads that wait until no slot is in use.
    waiting: Vec<Unparker>,
}

impl Pool {
    /// Creates a pool with all worker slots free, and the owners' ends of the tickers' deques.
    pub(crate) fn new(
        config: PoolConfig,
        workers: Arc<PoolWorkers>,
    ) -> (Arc<Pool>, Vec<TickerQueue>) {
        assert!(config.workers > 0, "a pool needs a worker that stays");
        // First in, first out: tickets are served in the order of expiry.
        let fed: Vec<Deque<Ticket>> = (0..config.ticker_queues)
            .map(|_| Deque::new_fifo())
            .collect();
        let pool = Arc::new_cyclic(|pool| Pool {
            config,
            origin: Origin::here(),
            queues: Queues::new(
                fed.iter().map(Deque::stealer).collect(),
                config.max_workers,
                config.injector_bound,
            ),
            workers,
            listing: Arc::new(Listing {
                listed: AtomicBool::new(false),
                visitors: AtomicUsize::new(0),
                spare: AtomicBool::new(false),
                pool: Weak::clone(pool),
                claim: OnceLock::new(),
            }),
            helped: AtomicU64::new(0),
            slots: Mutex::default(),
        });
        let ticker_queues = fed
            .into_iter()
            .enumerate()
            .map(|(number, deque)| TickerQueue {
                deque,
                number,
                pool: Arc::clone(&pool),
            })
            .collect();
        (pool, ticker_queues)
    }

    /// Says what serves the tickets. Without it, only those find tickets who step a worker by hand.
    pub(crate) fn is_served_by(&self, claim: Weak<dyn Claim>) {
        // A second call changes nothing: all workers of a pool have the same claim.
        let _ = self.listing.claim.set(claim);
    }

    /// Returns the threads that serve this pool.
    pub(crate) fn threads(&self) -> &Arc<PoolWorkers> {
        &self.workers
    }

    /// Returns whether this process is a forked copy of the one that has the workers.
    #[inline]
    pub(super) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// Hands a ticket to the worker that comes first, and wakes one. Returns the ticket if the
    /// injector is full.
    pub(crate) fn inject(&self, ticket: Ticket) -> Result<(), Ticket> {
        self.queues.inject(ticket)?;
        self.list();
        Ok(())
    }

    /// Lists the pool, after a ticket was made visible.
    pub(super) fn list(&self) {
        self.list_if(|| true);
    }

    /// Lists the pool if there is a ticket in any queue. For a worker, which owes this (SLEEP-3).
    pub(super) fn list_if_any(&self) {
        self.list_if(|| self.queues.any());
    }

    pub(super) fn list_if(&self, reason: impl FnOnce() -> bool) {
        // Pairs with itself (SLEEP-1): the look of a worker that has lowered the flag sees the
        // tickets, or the lowered flag is seen here.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fences. A busy pool pays for the fence and two reads.
        let again = self.listing.listed.load(Ordering::Relaxed);
        if again && self.workers.sleeping() == 0 || !reason() {
            return;
        }
        // Relaxed: the lock that follows orders it before the visit, which lowers the flag.
        self.listing.listed.store(true, Ordering::Relaxed);
        self.workers.list(Arc::clone(&self.listing), again);
    }

    /// Lowers the flag, as a worker does that takes the pool off the list. Returns whether it was
    /// raised.
    #[cfg(all(test, not(loom)))]
    pub(super) fn take_listing(&self) -> bool {
        // Relaxed: a test's only thread.
        self.listing.listed.swap(false, Ordering::Relaxed)
    }

    /// Takes the free worker slot with the lowest number, or makes one.
    pub(super) fn take_free_slot(&self) -> Option<WorkerSlot> {
        let mut slots = self.slots.lock();
        if slots.closed {
            return None;
        }
        let made = &mut slots.made;
        let slot = match made.iter_mut().find_map(Option::take) {
            Some(slot) => slot,
            None if made.len() == self.config.max_workers => return None,
            None => {
                let number = made.len();
                let local = Deque::new_fifo();
                // Padded, since each worker writes its own for every ticket.
                let claims = Arc::new(CachePadded::default());
                self.queues
                    .add_local(number, local.stealer(), Arc::clone(&claims));
                made.push(None);
                WorkerSlot {
                    number,
                    local,
                    claims,
                    since_injector: 0,
                    looks: 0,
                    seen: vec![0; self.config.ticker_queues].into(),
                }
            }
        };
        // Relaxed: written under the lock only; readers only want an estimate.
        self.listing.visitors.fetch_add(1, Ordering::Relaxed);
        Some(slot)
    }

    /// Returns whether there are fewer workers that stay than tickers. Extra workers do not count.
    pub(super) fn has_fewer_workers_than_tickers(&self) -> bool {
        self.config.workers < self.config.ticker_queues
    }

    /// Frees a worker slot. Tickets in its deque stay there: other workers steal from it, whether
    /// its slot is in use or not.
    pub(super) fn leave(&self, slot: WorkerSlot) {
        let waiting = {
            let mut slots = self.slots.lock();
            let number = slot.number;
            slots.made[number] = Some(slot);
            // Relaxed: see `take_free_slot`.
            let before = self.listing.visitors.fetch_sub(1, Ordering::Relaxed);
            debug_assert!(before > 0, "the slot was taken");
            if before > 1 {
                return;
            }
            std::mem::take(&mut slots.waiting)
        };
        for unparker in waiting {
            unparker.unpark();
        }
    }

    /// Gives no slot any more. What waits in the queues stays there.
    pub(crate) fn close(&self) {
        self.slots.lock().closed = true;
    }

    /// Blocks until no worker is in this pool. After [`close`](Self::close), none comes again.
    pub(crate) fn wait_until_left(&self) {
        let parker = Parker::new();
        loop {
            {
                // CLOSE-POOL: a slot is given and freed under this lock.
                let mut slots = self.slots.lock();
                if !self.is_visited() {
                    return;
                }
                slots.waiting.push(parker.unparker().clone());
            }
            parker.park();
        }
    }

    /// Returns whether no worker is in this pool, and each is in another one (RT-ONE).
    pub(super) fn is_left_alone(&self) -> bool {
        self.config.shares_workers && !self.is_visited() && self.workers.all_visit()
    }

    /// Returns the desks of the workers that are in this pool, if it shares them.
    pub(super) fn visitors(&self) -> Vec<Arc<CachePadded<Desk>>> {
        if self.config.shares_workers {
            self.workers.desks_in(self.listing.key())
        } else {
            Vec::new()
        }
    }

    /// Asks for the spare worker that is started next.
    pub(crate) fn ask_for_spare(&self) {
        // Relaxed: see `takes_spare`. The start of the thread orders it.
        self.listing.spare.store(true, Ordering::Relaxed);
    }

    fn is_visited(&self) -> bool {
        self.listing.is_visited()
    }

    /// Returns how many tickets have been handed to `Claim::serve` so far.
    #[inline]
    pub(crate) fn claims(&self) -> u64 {
        self.queues.claims()
    }

    /// Counts a ticket that a ticker has served.
    pub(crate) fn count_helped(&self) {
        // Relaxed: as for `claims`.
        self.helped.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many tickets the tickers have served.
    pub(crate) fn helped(&self) -> u64 {
        // Relaxed: as above.
        self.helped.load(Ordering::Relaxed)
    }

    /// Returns how many workers there are: threads, or slots that a caller steps by hand.
    pub(crate) fn workers(&self) -> usize {
        // Relaxed: callers only want an estimate.
        let stepped = self.listing.visitors.load(Ordering::Relaxed);
        self.workers.taken().max(stepped)
    }

    /// Returns how many more workers there may be for this pool.
    #[inline]
    pub(crate) fn free_slots(&self) -> usize {
        // Relaxed: an estimate.
        let visitors = self.listing.visitors.load(Ordering::Relaxed);
        let free = self.config.max_workers.saturating_sub(visitors);
        free.min(self.workers.free_places())
    }

    /// Returns how many workers sleep or are about to.
    pub(crate) fn sleeping(&self) -> usize {
        self.workers.sleeping()
    }

    /// Returns whether a ticket waits that no ticker has sifted, not counting the tickers' deques.
    /// After a fence, like [`has_tickets`](Self::has_tickets).
    pub(crate) fn has_unsifted(&self) -> bool {
        self.queues.any_unsifted()
    }

    /// Leaves a ticket that is not light to the workers.
    pub(crate) fn put_sifted(&self, ticket: Ticket) {
        self.queues.put_sifted(ticket);
        self.list();
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

    /// Ends the workers. What is listed before is served, while there is a worker.
    pub(crate) fn stop(&self) {
        self.workers.stop();
    }
}

/// The owner's end of a ticker's deque: the cheapest way into the pool.
pub(crate) struct TickerQueue {
    deque: Deque<Ticket>,
    number: usize,
    pool: Arc<Pool>,
}

impl TickerQueue {
    /// Adds a ticket. No worker learns of it before `announce`.
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

    /// Makes a batch of pushes known to the workers, and wakes one. The worker that steals from the
    /// batch wakes the next one if tickets remain.
    pub(crate) fn announce(&self) {
        self.pool.queues.mark_ticker(self.number);
        self.pool.list();
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
