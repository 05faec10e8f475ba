//! The worker threads: which pools have tickets for them, and who sleeps.
//!
//! A pool that has tickets is *listed*. A worker takes a pool off the list and *visits* it: it takes
//! one of the pool's slots, serves what it finds, and leaves again. A worker sleeps only while the
//! list is empty. The list and the sleepers are under one lock, so a worker can't miss a
//! pool that is listed. What needs an argument is that a pool with a ticket is listed.
//!
//! ```text
//!   thread that makes a ticket visible           worker
//!     push                                         lock: take the pool off the list, or sleep
//!     fence(SeqCst)                                listed = false
//!     listed, and nobody sleeps: done              take a ticket
//!     listed = true                                fence(SeqCst)
//!     lock: into the list, choose a sleeper        listed and nobody sleeps, or no ticket left: done
//!     unpark the sleeper                           list the pool again, as on the left
//! ```
//!
//! The threads that make tickets visible are a ticker that announces a batch, a caller of `inject`,
//! a ticker that leaves a sifted ticket to the workers, and a thief, whose steal may have moved
//! tickets into its own deque.
//!
//! # Why nothing is lost
//!
//! - **SLEEP-1** For a push and a visit, the two fences have an order. If the producer's is first,
//!   the worker's look sees the push, or that the ticket has been taken meanwhile. If the worker's
//!   is first, the producer reads the flag as the worker lowered it, and lists the pool, or as a
//!   later producer raised it, which lists the pool.
//! - **SLEEP-2** Who raises the flag lists the pool afterwards. Who finds it raised and no worker
//!   asleep relies on that. If a worker sleeps, the pool is listed once more, since two batches are
//!   work for two workers. So it is in the list at most once for each worker that was chosen, and
//!   once for the others.
//! - **SLEEP-3** Who takes a pool off the list owes a look at all of its queues. It looks before it
//!   begins its first task, and after each further steal (SLEEP-7). A search may end without a
//!   ticket although there is one. So who leaves looks once more, after another fence.
//! - **SLEEP-4** A worker that finds no free slot in the pool owes nothing. All slots are taken
//!   then, and who frees one does that under the lock of the slots, and looks afterwards.
//! - **SLEEP-5** Who lists a pool takes one sleeper out of the sleepers under the lock, so the next
//!   one takes another. If there is none, all workers are awake, and each looks at the list before
//!   it sleeps. A sleeper that was chosen may find that another worker was faster. Then there is
//!   nothing left for it to do.
//! - **SLEEP-6** `stop` sets its flag under the lock, and wakes all sleepers. A worker leaves only
//!   when the list is empty. So what was listed before the stop is served.
//!
//! # Why no ticket waits while a worker sleeps
//!
//! A listing wakes one worker, and tasks may take long. So that a batch of ten occupies ten
//! workers, each worker wakes the next one:
//!
//! - **SLEEP-7** While a ticket waits and a worker sleeps, the pool is listed, or some worker is
//!   *looking*: it visits the pool and is in no task. A looking worker either finds nothing, or
//!   steals, and then lists the pool if a ticket remains in *any* of its queues. Popping a worker's
//!   own deque needs no listing, because its tickets came with a steal.
//!
//! It is not enough to check the queue that the worker stole from and its own deque. Take three
//! tickets. A steals two of them, keeps one in its deque, lists the pool and starts its task. B
//! steals the third ticket, and sees nothing left there. Then the ticket in A's deque waits for A's
//! task while C sleeps.
//!
//! # Which pool comes first
//!
//! Pools share workers, and no pool waits for the tickets of another one. A pool that no worker is
//! in comes first, so the storm of a pool that has workers does not delay it. Every fourth time it
//! is the turn of a pool that has a worker, so that many pools with a few tickets each do not keep
//! further workers from one with many. A visit goes on while no other pool is listed, and then for
//! [`VISIT`](super::worker_thread::VISIT) at most; what the worker leaves in its deque is found by
//! the next one.
//!
//! # Spare workers
//!
//! A pool whose tickets wait while all workers are in other pools, or blocked in its own tasks, gets
//! one more worker (RT-ONE and RT-STUCK in `growth/`). It is *spare*: it visits pools that no worker
//! is in, and those that have asked for one, and leaves when it finds none. Otherwise a storm of
//! long tasks would take one spare worker after the other for itself.
//!
//! - **SPARE-1** A spare worker never sleeps, so nobody relies on it. What it leaves behind is
//!   listed, and it looks once more itself.
//!
//! # Which worker comes first
//!
//! The worker with the lowest number is chosen first. Extra workers have the highest numbers, so
//! they sleep while the others suffice, and leave.

use std::collections::VecDeque;
use std::time::Duration;

use super::growth::Sightings;
use crate::clock::Clock;
use crate::job::AtLock;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, CachePadded, Mutex, Parker, Unparker};
use crate::tick::Time;

/// The worker has no thread yet.
pub(super) const NO_THREAD: u64 = 0;
/// The worker has a thread that the kernel can't be asked about.
pub(super) const UNKNOWN_THREAD: u64 = u64::MAX;

/// The state of a worker that tickers read.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// The number by which the kernel knows the thread; see `crew.rs`.
    number: AtomicU64,
    /// Set while the worker claims, completes or rests.
    pub(super) at_lock: AtLock,
}

impl Desk {
    pub(super) fn is_known_as(&self, thread: u64) {
        // Relaxed: a number for the kernel. No data is read through it.
        self.number.store(thread, Ordering::Relaxed);
    }

    pub(super) fn thread(&self) -> u64 {
        // Relaxed: as above.
        self.number.load(Ordering::Relaxed)
    }
}

/// A place for a worker.
#[derive(Debug)]
struct SeatedWorker {
    desk: Arc<CachePadded<Desk>>,
    unparker: Unparker,
    /// Whether the worker sleeps, or is about to, and was not chosen yet.
    sleeps: bool,
    /// The key of the pool that the worker visits, or is about to.
    visits: Option<usize>,
    /// Whether it has not looked for a pool yet.
    is_new: bool,
    is_spare: bool,
}

/// What a worker needs to know of a pool.
pub(crate) trait Listed {
    /// Returns whether a worker is in the pool.
    fn is_visited(&self) -> bool;

    /// Returns a number that no other pool has at the same time.
    fn key(&self) -> usize;

    /// Returns whether the pool has asked for a spare worker, which is then on its way.
    fn takes_spare(&self) -> bool;
}

struct State<L> {
    /// The pools that had no worker when they were listed, in the order of their listing.
    unvisited: VecDeque<L>,
    /// The other pools that have tickets.
    visited: VecDeque<L>,
    /// Number of pools that were taken out of `unvisited` while others waited.
    overtaken: u32,
    /// The workers, by number.
    seats: Vec<Option<SeatedWorker>>,
    /// Number of seats with `is_spare`.
    spare: usize,
    /// Number of seats with `visits`.
    visiting: usize,
    stopped: bool,
}

/// State that the workers share with those who have work for them. It has no threads: a caller that
/// takes a worker brings a thread.
pub(crate) struct Workers<L> {
    /// Number of workers that stay until the stop.
    wanted: usize,
    /// Greatest number of workers.
    most: usize,
    /// Time without a ticket after which an extra worker leaves.
    quiet: Duration,
    /// The clock of the workers' own waits. Their pools may have others.
    clock: Clock,
    /// Number of workers. Written under the lock only.
    taken: AtomicUsize,
    /// Number of seats with `sleeps`. Written under the lock only.
    sleeping: AtomicUsize,
    /// Number of pools in the list. Written under the lock only.
    listed: AtomicUsize,
    state: Mutex<State<L>>,
    /// Held by the ticker that checks the workers and starts more.
    pub(super) sightings: Mutex<Sightings>,
}

/// Greatest number of pools without a worker that are visited before a pool that has one.
const OVERTAKEN_AT_MOST: u32 = 3;

/// What a worker does next.
pub(super) enum NextAction<L> {
    Visit(L),
    /// Sleep until it is unparked, or until this moment.
    Sleep(Option<Time>),
    Leave,
}

impl<L: Listed> Workers<L> {
    pub(crate) fn new(wanted: usize, most: usize, quiet: Duration, clock: Clock) -> Self {
        Workers {
            wanted,
            most,
            quiet,
            clock,
            taken: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
            listed: AtomicUsize::new(0),
            state: Mutex::new(State {
                unvisited: VecDeque::new(),
                visited: VecDeque::new(),
                overtaken: 0,
                seats: Vec::new(),
                spare: 0,
                visiting: 0,
                stopped: false,
            }),
            sightings: Mutex::default(),
        }
    }

    /// Puts a pool into the list, and wakes a worker. The caller has raised the pool's flag. A pool
    /// that is listed already is listed again if there is a worker to wake.
    pub(super) fn list(&self, listing: L, again: bool) {
        let chosen = {
            let mut state = self.state.lock();
            let chosen = self.choose(&mut state);
            if chosen.is_some() || !again {
                let list = if listing.is_visited() {
                    &mut state.visited
                } else {
                    &mut state.unvisited
                };
                list.push_back(listing);
                self.add_to(&self.listed, 1);
            }
            chosen
        };
        // Outside the lock, because a woken worker takes that lock first.
        if let Some(unparker) = chosen {
            unparker.unpark();
        }
    }

    /// Takes the sleeper with the lowest number out of the sleepers.
    fn choose(&self, state: &mut State<L>) -> Option<Unparker> {
        if self.sleeping() == 0 {
            return None;
        }
        let mut seats = state.seats.iter_mut().flatten();
        let seat = seats.find(|seat| seat.sleeps)?;
        seat.sleeps = false;
        let unparker = seat.unparker.clone();
        self.add_to(&self.sleeping, -1);
        Some(unparker)
    }

    /// Takes a sleeper out of the sleepers without waking it, as a waker does that is held up.
    #[cfg(all(test, not(loom)))]
    pub(super) fn choose_sleeper(&self) -> Option<Unparker> {
        self.choose(&mut self.state.lock())
    }

    /// Takes the free number that is the lowest. Returns `None` if there are enough workers, or
    /// after the stop. A spare worker is taken also if there are enough.
    pub(super) fn take(&self, is_spare: bool) -> Option<(usize, Parker, Arc<CachePadded<Desk>>)> {
        let mut state = self.state.lock();
        if state.stopped || (self.taken() - state.spare >= self.most && !is_spare) {
            return None;
        }
        let parker = Parker::new();
        let desk = Arc::new(CachePadded::new(Desk::default()));
        let worker = Some(SeatedWorker {
            desk: Arc::clone(&desk),
            unparker: parker.unparker().clone(),
            sleeps: false,
            visits: None,
            is_new: true,
            is_spare,
        });
        let number = match state.seats.iter().position(Option::is_none) {
            Some(free) => {
                state.seats[free] = worker;
                free
            }
            None => {
                state.seats.push(worker);
                state.seats.len() - 1
            }
        };
        state.spare += usize::from(is_spare);
        self.add_to(&self.taken, 1);
        Some((number, parker, desk))
    }

    /// Frees the number of a worker that is awake.
    pub(super) fn free(&self, number: usize) {
        let mut state = self.state.lock();
        if let Some(seat) = state.seats[number].take() {
            state.visiting -= usize::from(seat.visits.is_some());
            state.spare -= usize::from(seat.is_spare);
        }
        self.add_to(&self.taken, -1);
    }

    /// Returns how long this worker may find nothing before it leaves; `None` means that it stays.
    pub(super) fn patience(&self, number: usize) -> Option<Duration> {
        (number >= self.wanted).then_some(self.quiet)
    }

    /// Decides what this worker does next: takes the first pool off the list, if there is one.
    /// `leave_at` is asked only if there is none, and returns when the worker leaves.
    pub(super) fn next(
        &self,
        number: usize,
        leave_at: impl FnOnce() -> (bool, Option<Time>),
    ) -> NextAction<L> {
        let mut state = self.state.lock();
        let (is_spare, is_new) = self.wake(&mut state, number);
        let listing = if is_spare {
            self.take_unvisited(&mut state)
        } else {
            self.take_listed(&mut state, is_new)
        };
        Self::visits(&mut state, number, listing.as_ref().map(L::key));
        if let Some(listing) = listing {
            return NextAction::Visit(listing);
        }
        if is_spare {
            return NextAction::Leave;
        }
        let (leave, until) = leave_at();
        if leave || state.stopped {
            return NextAction::Leave;
        }
        if let Some(seat) = &mut state.seats[number] {
            seat.sleeps = true;
            self.add_to(&self.sleeping, 1);
        }
        NextAction::Sleep(until)
    }

    /// Takes a pool off the list that no worker is in, or that has asked for a spare one.
    fn take_unvisited(&self, state: &mut State<L>) -> Option<L> {
        let State {
            unvisited, visited, ..
        } = state;
        // A pool of either list may have been visited or left since.
        let listing = [unvisited, visited].into_iter().find_map(|list| {
            let mut pools = list.iter();
            // Asked in this order: a request that is met must not stand for the next spare worker.
            let at = pools.position(|listing| listing.takes_spare() || !listing.is_visited())?;
            list.remove(at)
        })?;
        self.add_to(&self.listed, -1);
        Some(listing)
    }

    /// Takes the next pool off the list: one that no worker is in, and now and then another one,
    /// except for a worker that is new.
    fn take_listed(&self, state: &mut State<L>, is_new: bool) -> Option<L> {
        let is_turn = is_new || state.visited.is_empty() || state.overtaken < OVERTAKEN_AT_MOST;
        let listing = if is_turn && let Some(listing) = state.unvisited.pop_front() {
            state.overtaken += 1;
            Some(listing)
        } else {
            state.overtaken = 0;
            state
                .visited
                .pop_front()
                .or_else(|| state.unvisited.pop_front())
        };
        if listing.is_some() {
            self.add_to(&self.listed, -1);
        }
        listing
    }

    /// Returns how many pools are in the list.
    #[inline]
    pub(super) fn listed(&self) -> usize {
        // Relaxed: as for `taken`.
        self.listed.load(Ordering::Relaxed)
    }

    /// Notes that this worker is awake. Returns whether it is spare, and whether it is new.
    fn wake(&self, state: &mut State<L>, number: usize) -> (bool, bool) {
        let Some(seat) = &mut state.seats[number] else {
            return (false, false);
        };
        if std::mem::replace(&mut seat.sleeps, false) {
            self.add_to(&self.sleeping, -1);
        }
        (seat.is_spare, std::mem::replace(&mut seat.is_new, false))
    }

    /// Notes which pool this worker visits, if any.
    fn visits(state: &mut State<L>, number: usize, visits: Option<usize>) {
        if let Some(seat) = &mut state.seats[number] {
            let before = std::mem::replace(&mut seat.visits, visits);
            let (now, before) = (visits.is_some(), before.is_some());
            state.visiting = state.visiting + usize::from(now) - usize::from(before);
        }
    }

    /// Returns the desks of the workers that visit the pool with this key.
    pub(super) fn desks_in(&self, key: usize) -> Vec<Arc<CachePadded<Desk>>> {
        let state = self.state.lock();
        let seats = state.seats.iter().flatten();
        let there = seats.filter(|seat| seat.visits == Some(key));
        there.map(|seat| Arc::clone(&seat.desk)).collect()
    }

    /// Ends the workers: each one leaves when the list is empty. None is taken any more.
    pub(crate) fn stop(&self) {
        let sleepers: Vec<Unparker> = {
            let mut state = self.state.lock();
            state.stopped = true;
            std::iter::from_fn(|| self.choose(&mut state)).collect()
        };
        for unparker in sleepers {
            unparker.unpark();
        }
    }

    /// Returns how many workers there are.
    pub(crate) fn taken(&self) -> usize {
        // Relaxed: exact under the lock; other callers only want an estimate.
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns how many workers sleep or are about to.
    pub(crate) fn sleeping(&self) -> usize {
        // Relaxed: as above.
        self.sleeping.load(Ordering::Relaxed)
    }

    /// Returns whether each worker visits a pool.
    pub(super) fn all_visit(&self) -> bool {
        self.state.lock().visiting == self.taken()
    }

    /// Returns how many workers there are that are not spare.
    pub(super) fn regular(&self) -> usize {
        let state = self.state.lock();
        self.taken() - state.spare
    }

    /// Returns how many more workers there may be.
    pub(super) fn free_places(&self) -> usize {
        // Those that are spare count, too: without the lock this is an estimate.
        self.most.saturating_sub(self.taken())
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns how many workers should be able to serve.
    pub(crate) fn wanted(&self) -> usize {
        self.wanted
    }

    /// Returns the desks of all workers that are not spare.
    pub(super) fn desks(&self) -> Vec<Arc<CachePadded<Desk>>> {
        let state = self.state.lock();
        let seats = state.seats.iter().flatten().filter(|seat| !seat.is_spare);
        seats.map(|seat| Arc::clone(&seat.desk)).collect()
    }

    /// Changes a count. The caller holds the lock.
    fn add_to(&self, count: &AtomicUsize, by: isize) {
        // Relaxed, twice: the lock makes this the only writer, and readers want an estimate.
        let before = count.load(Ordering::Relaxed);
        debug_assert!(before.checked_add_signed(by).is_some(), "{before} and {by}");
        count.store(before.wrapping_add_signed(by), Ordering::Relaxed);
    }
}

impl<L: Listed> std::fmt::Debug for Workers<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workers")
            .field("taken", &self.taken())
            .field("sleeping", &self.sleeping())
            .finish_non_exhaustive()
    }
}
