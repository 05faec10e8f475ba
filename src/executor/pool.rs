//! Seats, feeders, the injector, and the end.

use std::time::Duration;

use super::queue::Queues;
use super::seat::{NO_THREAD, Seat, Sightings};
use super::sleep::Sleep;
use crate::job::Ticket;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::deque::Worker as Deque;
use crate::sync::{Arc, CachePadded, Mutex, Parker};

/// The sizes of a pool, all validated by the builder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolConfig {
    /// Seats whose workers stay until the pool is stopped.
    pub(crate) workers: usize,
    /// All seats. Workers on the others leave after `quiet`.
    pub(crate) max_workers: usize,
    /// How many tickers feed the pool.
    pub(crate) feeders: usize,
    /// How many tickets the injector takes.
    pub(crate) injector_bound: usize,
    /// How long an extra worker finds nothing before it leaves.
    pub(crate) quiet: Duration,
}

/// What workers and tickers share. It has no threads: whoever takes a seat brings one, or steps the
/// worker by hand.
pub(crate) struct Pool {
    config: PoolConfig,
    stopped: AtomicBool,
    taken: AtomicUsize,
    pub(super) queues: Queues,
    pub(super) sleep: CachePadded<Sleep>,
    /// Tickets handed to `Claim::serve`, by seat. Only the owner of the seat writes.
    claims: Box<[CachePadded<AtomicU64>]>,
    /// By which number each worker's thread is known; see `crew.rs`.
    pub(super) threads: Box<[AtomicU64]>,
    /// Held by the ticker that looks at the workers and starts more.
    pub(super) sightings: Mutex<Sightings>,
    /// The seats that nobody has, by number.
    free: Mutex<Box<[Option<Seat>]>>,
}

impl Pool {
    /// A pool with all seats free, and the owners' ends of the tickers' deques.
    pub(crate) fn new(config: PoolConfig) -> (Arc<Pool>, Vec<Feeder>) {
        assert!(
            config.workers > 0 || config.max_workers == 0,
            "somebody has to stay, unless a foreign executor does all the work"
        );
        assert!(config.max_workers >= config.workers, "all have a seat");
        let seats: Box<[Seat]> = (0..config.max_workers)
            .map(|number| Seat {
                number,
                local: Deque::new_fifo(),
                parker: Parker::new(),
            })
            .collect();
        let fed: Vec<Deque<Ticket>> = (0..config.feeders).map(|_| Deque::new_fifo()).collect();
        let pool = Arc::new(Pool {
            config,
            stopped: AtomicBool::new(false),
            taken: AtomicUsize::new(0),
            queues: Queues::new(
                fed.iter().map(Deque::stealer).collect(),
                seats.iter().map(|seat| seat.local.stealer()).collect(),
                config.injector_bound,
            ),
            sleep: CachePadded::new(Sleep::new(
                seats
                    .iter()
                    .map(|seat| seat.parker.unparker().clone())
                    .collect(),
            )),
            claims: seats
                .iter()
                .map(|_| CachePadded::new(AtomicU64::new(0)))
                .collect(),
            threads: seats.iter().map(|_| AtomicU64::new(NO_THREAD)).collect(),
            sightings: Mutex::new(Sightings::default()),
            free: Mutex::new(seats.into_iter().map(Some).collect()),
        });
        let feeders = fed
            .into_iter()
            .map(|deque| Feeder {
                deque,
                pool: Arc::clone(&pool),
            })
            .collect();
        (pool, feeders)
    }

    /// Hands a ticket to whichever worker comes first, and wakes one. Gives it back when the
    /// injector is full.
    ///
    /// After `stop` it is accepted still, and served if a worker is there.
    pub(crate) fn inject(&self, ticket: Ticket) -> Result<(), Ticket> {
        self.queues.inject(ticket)?;
        self.sleep.wake_one();
        Ok(())
    }

    /// Takes the free seat with the lowest number. `None` when all are taken, or after `stop`.
    pub(super) fn take_seat(&self) -> Option<Seat> {
        let mut free = self.free.lock();
        if self.is_stopped() {
            return None;
        }
        let seat = free.iter_mut().find_map(Option::take)?;
        self.queues.use_local(seat.number);
        // Relaxed: written under the lock only, read as a figure.
        self.taken.fetch_add(1, Ordering::Relaxed);
        drop(free);
        Some(seat)
    }

    pub(super) fn tickers(&self) -> usize {
        self.config.feeders
    }

    /// Extra workers, who come and go, not counted.
    pub(super) fn has_fewer_workers_than_tickers(&self) -> bool {
        self.config.workers < self.config.feeders
    }

    /// Takes a seat back, and leaves what is in its deque to others.
    pub(super) fn leave(&self, seat: Seat) {
        let mut left = false;
        while let Some(ticket) = seat.local.pop() {
            left = true;
            if let Err(ticket) = self.queues.inject(ticket) {
                // No room: the rest stays in the deque, which the others steal from whether
                // somebody sits there or not.
                seat.local.push(ticket);
                break;
            }
        }
        let number = seat.number;
        self.note_thread(number, NO_THREAD);
        {
            let mut free = self.free.lock();
            free[number] = Some(seat);
            // Relaxed: see `take_seat`.
            self.taken.fetch_sub(1, Ordering::Relaxed);
        }
        if left {
            self.sleep.wake_one();
        }
    }

    /// How many tickets have been handed to `Claim::serve` so far.
    pub(crate) fn claims(&self) -> u64 {
        // Relaxed: each counter only grows, and the reader only asks whether the sum has.
        self.claims
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .fold(0, u64::wrapping_add)
    }

    /// How many of them by the worker on this seat.
    pub(super) fn claims_of(&self, seat: usize) -> u64 {
        // Relaxed: as above.
        self.claims[seat].load(Ordering::Relaxed)
    }

    /// Called by the owner of the seat only.
    pub(super) fn count_claim(&self, seat: usize) {
        let count = &self.claims[seat];
        // Relaxed, without a read-modify-write: the owner is the only writer, and the seat's next
        // owner gets it through the lock of `free`.
        count.store(
            count.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
    }

    /// By which number the thread of the worker on this seat is known.
    pub(super) fn note_thread(&self, seat: usize, number: u64) {
        // Relaxed: a number to ask the kernel about. Nothing is read through it.
        self.threads[seat].store(number, Ordering::Relaxed);
    }

    /// How many workers stay.
    pub(super) fn permanent(&self) -> usize {
        self.config.workers
    }

    /// How many seats are taken.
    pub(crate) fn workers(&self) -> usize {
        // Relaxed: a figure.
        self.taken.load(Ordering::Relaxed)
    }

    /// How many more workers there could be.
    pub(crate) fn free_seats(&self) -> usize {
        self.config.max_workers.saturating_sub(self.workers())
    }

    /// How many workers sleep or are about to.
    pub(crate) fn sleeping(&self) -> usize {
        self.sleep.sleeping()
    }

    /// Takes up to `limit` tickets out of the injector, for a pool without workers.
    pub(crate) fn take_injected(&self, limit: usize) -> Vec<Ticket> {
        self.queues.take_injected(limit)
    }

    /// Whether a ticket waits in any queue. After a fence that is true of everything pushed before
    /// the fence of whoever pushed it.
    pub(crate) fn has_tickets(&self) -> bool {
        self.queues.any()
    }

    /// About how many tickets wait in all queues, the workers' own included; for `Debug` and the
    /// models.
    pub(crate) fn queued_hint(&self) -> usize {
        self.queues.len()
    }

    /// Ends the pool: no seat is given out any more, sleepers are woken, and every worker leaves as
    /// soon as it finds nothing. What was pushed before this is served as long as a worker is
    /// there.
    pub(crate) fn stop(&self) {
        {
            // Under the lock, so that no seat is given out once this has returned.
            let _seats = self.free.lock();
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

    /// How long a worker on this seat may find nothing; `None` means that it stays.
    pub(super) fn patience(&self, seat: usize) -> Option<Duration> {
        (seat >= self.config.workers).then_some(self.config.quiet)
    }
}

/// A ticker's end of its own deque: the cheapest way into the pool.
pub(crate) struct Feeder {
    deque: Deque<Ticket>,
    pool: Arc<Pool>,
}

impl Feeder {
    /// Adds a ticket. Nobody is woken for it before `announce`.
    pub(crate) fn push(&self, ticket: Ticket) {
        self.deque.push(ticket);
    }

    /// Wakes one worker, after a batch of pushes. The worker that steals from the batch wakes the
    /// next one if there is more. True if somebody slept: that worker looks at the batch before it
    /// sleeps again or leaves. Otherwise those that are there are awake and come by.
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

impl std::fmt::Debug for Feeder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feeder").finish_non_exhaustive()
    }
}
