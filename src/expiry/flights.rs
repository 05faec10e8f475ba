//! Single flight: of all callers that lack the value of a key, one computes it and the others wait.
//!
//! ```text
//!  look in the map ---- found ------------------------------------> the value
//!        | absent
//!  join, under the shard's lock
//!        |-- no flight of the key: LEAD --- look again --- found -> the value
//!        |                                     | absent
//!        |                                  compute, insert, complete
//!        |                                                 '-----> the own answer
//!        '-- a flight: WAIT in a seat --- the lead's answer -----> that answer
//!                                    |--- none: begin again
//!                                    '--- shutdown ------------> an error
//! ```
//!
//! The lead computes without any lock, and the map knows nothing of flights. A flight ends with an
//! answer, or without one: the computation has failed or panicked, or its future was dropped. Then
//! all waiting callers begin again, and the first of them becomes the lead. The lead is not handed
//! over, because a task that is not polled would keep the others waiting.
//!
//! - **FLIGHT-1** A caller that finds a flight takes its seat in the same hold of the shard's lock.
//!   The end takes the flight out of the table, with all of its seats, under that lock. So every
//!   seat gets an answer, or learns that there is none.
//! - **FLIGHT-2** A lead looks in the map after it has entered its flight, and its entry is in the
//!   map before the flight ends. So a caller that has looked too early, and then finds no flight,
//!   finds the entry of the flight that has just ended.
//! - **FLIGHT-3** A seat is written once, under its own lock. A waiting caller reads it, and leaves
//!   its waker, under that lock. A thread parks with a token. So no wake-up is lost.
//! - **FLIGHT-5** A shutdown closes every shard under its lock, and takes all seats out there. A
//!   caller that takes its seat earlier finds its seat ended, and one that comes later finds the
//!   shard closed. So nobody waits for a computation, which may hang, of a map that is shut down.
//!   The flights themselves stay until their leads end them.
//! - **FLIGHT-4** Under a shard's lock a key's `Eq` and `Clone` run, and no other user code. A call
//!   of the map from there panics, as it does from under a stripe's lock (STRIPE-2). No other lock
//!   is taken inside of it. Answers are cloned, wakers woken, and keys dropped without a lock.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::job::catch_panic;
use crate::shard::{KeyHash, ReentrancyGuard, Waiter, is_under_lock, when_unlocked};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::fork::Origin;
use crate::sync::{Arc, CachePadded, Mutex, thread_local, unique_number};
use crate::waker::leave;

/// The number of locks that the flights are spread over; a power of two.
const SHARDS: usize = 64;

/// The flights of a map. A waiting caller gets an `A`.
pub(super) struct Flights<K, A> {
    /// In a copy of this process no lock of a shard or a seat is taken, and every flight has ended
    /// without an answer (FORK-1).
    origin: Origin,
    shards: Box<[FlightShard<K, A>]>,
}

/// A 64th of the computations in progress. A key's `Eq` and `Clone` run under this lock, and no
/// other lock is taken inside of it (FLIGHT-4).
type FlightShard<K, A> = CachePadded<Mutex<FlightTable<K, A>>>;

/// The flights of one shard.
struct FlightTable<K, A> {
    flights: Vec<Flight<K, A>>,
    /// Nobody may wait any more (FLIGHT-5).
    closed: bool,
}

/// A computation in progress, and the callers that wait for it.
struct Flight<K, A> {
    hash: KeyHash,
    key: K,
    mark: Arc<FlightMark>,
    seats: Vec<SharedSeat<A>>,
}

/// The place of one waiting caller.
enum Seat<A> {
    Waiting(Waiter),
    /// The wait has ended, with the answer until the caller takes it.
    Ended(WaitEnd<A>),
}

/// How the wait for a computation ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitEnd<A> {
    /// The computing caller has this answer.
    Answered(A),
    /// The flight has ended without an answer. The caller begins again.
    Unanswered,
    /// The map is shut down (FLIGHT-5).
    Closed,
}

/// The answer, or the waker, of one caller that waits. The innermost lock: wake after unlocking.
type SharedSeat<A> = Arc<Mutex<Seat<A>>>;

/// The identity of a flight. It says which thread is inside of the computation, so that a
/// computation that waits for itself is noticed: the thread's number plus 1, times 2, plus 1 if the
/// computation is a future. 0 while no thread is inside.
struct FlightMark {
    inside: AtomicU64,
    /// Whether the computation has asked for its own value.
    asked_itself: AtomicBool,
}

/// How a caller waits, and computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CallMode {
    Blocking,
    Awaited,
}

thread_local! {
    static OWN_NUMBER: Cell<Option<u32>> = const { Cell::new(None) };
}

fn own_number() -> u64 {
    OWN_NUMBER.with(|own| {
        let number = own.get().unwrap_or_else(unique_number);
        own.set(Some(number));
        u64::from(number) + 1
    })
}

impl FlightMark {
    /// Returns whether a caller on this thread would wait for a computation that can't go on before
    /// the caller does.
    fn would_wait_for_itself(&self, mode: CallMode) -> bool {
        // Relaxed: only what this thread has written itself matters.
        let inside = self.inside.load(Ordering::Relaxed);
        // A computation that blocks may run other tasks, which may await it.
        let would = inside / 2 == own_number() && (mode == CallMode::Blocking || inside % 2 == 1);
        if would {
            // Relaxed: the lead reads it after this call, which its own computation has made.
            self.asked_itself.store(true, Ordering::Relaxed);
        }
        would
    }
}

/// The answer of [`Flights::join`].
pub(super) enum Joined<K: 'static, A: 'static, V> {
    /// The value has come since the caller looked last.
    Found(V),
    /// The caller computes the value.
    Leads(FlightLead<K, A>),
    Waits(FlightWait<K, A>),
    /// The caller is inside the computation of this flight.
    Recursive,
    /// Another caller computes, and the map is shut down.
    Closed,
    /// The thread panics under a lock, or the flights belong to the original of this process.
    Refused,
}

impl<K, A> Flights<K, A> {
    pub(super) fn new() -> Self {
        Flights::with_shards(SHARDS)
    }

    /// Makes a table with this number of locks, a power of two.
    pub(super) fn with_shards(shards: usize) -> Self {
        let table = || FlightTable {
            flights: Vec::new(),
            closed: false,
        };
        let shard = || CachePadded::new(Mutex::new(table()));
        Flights {
            origin: Origin::here(),
            shards: (0..shards).map(|_| shard()).collect(),
        }
    }

    fn shard(&self, hash: KeyHash) -> &FlightShard<K, A> {
        &self.shards[(hash.0 >> 48) as usize & (self.shards.len() - 1)]
    }

    /// Takes a seat in the flight of `key`, or begins a flight. `look` looks for the value in the
    /// map, where the caller has not found it.
    pub(super) fn join<V>(
        self: &Arc<Self>,
        hash: KeyHash,
        key: &K,
        mode: CallMode,
        waiter: Waiter,
        look: impl FnOnce() -> Option<V>,
    ) -> Joined<K, A, V>
    where
        K: Eq + Clone,
    {
        let joined = self.enter(hash, key, mode, waiter);
        // Looks once more (FLIGHT-2). If the value is there, the drop of the lead makes callers
        // that wait already begin again, and they find it, too.
        if matches!(joined, Joined::Leads(_))
            && let Some(value) = look()
        {
            return Joined::Found(value);
        }
        joined
    }

    /// Takes a seat, or begins a flight, under one hold of the shard's lock (FLIGHT-1).
    fn enter<V>(
        self: &Arc<Self>,
        hash: KeyHash,
        key: &K,
        mode: CallMode,
        waiter: Waiter,
    ) -> Joined<K, A, V>
    where
        K: Eq + Clone,
    {
        if self.origin.is_elsewhere() {
            return Joined::Refused;
        }
        // Dropped after the shard's lock.
        let user_code = ReentrancyGuard::begin();
        if user_code.is_inert() {
            return Joined::Refused;
        }
        let mut shard = self.shard(hash).lock();
        let FlightTable { flights, closed } = &mut *shard;
        let mut others = flights.iter_mut();
        let flight = others.find(|flight| flight.hash == hash && flight.key == *key);
        if let Some(flight) = flight {
            if flight.mark.would_wait_for_itself(mode) {
                return Joined::Recursive;
            }
            if *closed {
                return Joined::Closed;
            }
            let seat = Arc::new(Mutex::new(Seat::Waiting(waiter)));
            flight.seats.push(Arc::clone(&seat));
            return Joined::Waits(FlightWait {
                flights: Arc::clone(self),
                hash,
                mark: Arc::clone(&flight.mark),
                seat,
            });
        }
        let mark = Arc::new(FlightMark {
            inside: AtomicU64::new(0),
            asked_itself: AtomicBool::new(false),
        });
        flights.push(Flight {
            hash,
            key: key.clone(),
            mark: Arc::clone(&mark),
            seats: Vec::new(),
        });
        Joined::Leads(FlightLead {
            flights: Arc::clone(self),
            hash,
            mark,
        })
    }

    /// Takes a flight out of the table (FLIGHT-1). `None` if it has ended.
    fn take(&self, hash: KeyHash, mark: &Arc<FlightMark>) -> Option<Flight<K, A>> {
        if self.origin.is_elsewhere() {
            return None;
        }
        let flights = &mut self.shard(hash).lock().flights;
        let at = flights
            .iter()
            .position(|one| Arc::ptr_eq(&one.mark, mark))?;
        Some(flights.swap_remove(at))
    }

    /// Ends all waits, and lets nobody wait any more (FLIGHT-5). Called without a lock.
    pub(super) fn close(&self) {
        if self.origin.is_elsewhere() {
            return;
        }
        for shard in &self.shards {
            let mut seats = Vec::new();
            {
                let mut shard = shard.lock();
                shard.closed = true;
                for flight in &mut shard.flights {
                    seats.append(&mut flight.seats);
                }
            }
            for seat in seats {
                end_seat(seat, WaitEnd::Closed);
            }
        }
    }

    /// Takes a seat back. None is found if the flight has ended.
    fn leave_seat(&self, hash: KeyHash, mark: &Arc<FlightMark>, seat: &SharedSeat<A>) {
        if self.origin.is_elsewhere() {
            return;
        }
        let mut shard = self.shard(hash).lock();
        let mut flights = shard.flights.iter_mut();
        if let Some(flight) = flights.find(|flight| Arc::ptr_eq(&flight.mark, mark)) {
            flight.seats.retain(|one| !Arc::ptr_eq(one, seat));
        }
    }
}

impl<K, A> Flight<K, A> {
    /// Ends each seat as `answer` says. If that panics, the remaining seats get no answer, so that
    /// their callers begin again.
    fn end(self, mut answer: impl FnMut() -> WaitEnd<A>) {
        // A panic of the key's drop must not keep anybody waiting.
        let _ = catch_panic(|| drop(self.key));
        let mut seats = RemainingSeats(self.seats.into_iter());
        while !seats.0.as_slice().is_empty() {
            let answer = answer();
            if let Some(seat) = seats.0.next() {
                end_seat(seat, answer);
            }
        }
    }
}

/// The seats that have no answer yet. They get none if it is dropped.
struct RemainingSeats<A>(std::vec::IntoIter<SharedSeat<A>>);

impl<A> Drop for RemainingSeats<A> {
    fn drop(&mut self) {
        for seat in self.0.by_ref() {
            end_seat(seat, WaitEnd::Unanswered);
        }
    }
}

/// Writes a seat, and wakes its caller (FLIGHT-3).
fn end_seat<A>(seat: SharedSeat<A>, end: WaitEnd<A>) {
    let before = std::mem::replace(&mut *seat.lock(), Seat::Ended(end));
    // A waker is code of its runtime, and so is the drop of an answer whose caller has gone.
    let _ = catch_panic(|| drop(seat));
    if let Seat::Waiting(waiter) = before {
        let _ = catch_panic(|| waiter.wake());
    }
}

/// The caller that computes. Dropping it ends the flight without an answer.
pub(super) struct FlightLead<K: 'static, A: 'static> {
    flights: Arc<Flights<K, A>>,
    hash: KeyHash,
    mark: Arc<FlightMark>,
}

impl<K, A> FlightLead<K, A> {
    /// Runs the computation, or a part of it.
    pub(super) fn compute<R>(&self, mode: CallMode, run: impl FnOnce() -> R) -> R {
        struct Inside<'a>(&'a FlightMark, u64);
        impl Drop for Inside<'_> {
            fn drop(&mut self) {
                // Relaxed: see `would_wait_for_itself`.
                self.0.inside.store(self.1, Ordering::Relaxed);
            }
        }
        let inside = own_number() * 2 + u64::from(mode == CallMode::Awaited);
        // Relaxed: see `would_wait_for_itself`.
        let _inside = Inside(&self.mark, self.mark.inside.swap(inside, Ordering::Relaxed));
        run()
    }

    /// Returns whether the computation has asked for its own value.
    pub(super) fn asked_itself(&self) -> bool {
        // Relaxed: see `would_wait_for_itself`.
        self.mark.asked_itself.load(Ordering::Relaxed)
    }

    /// Ends the flight. Each waiting caller gets what `answer` returns. The value is in the map, or
    /// was refused there (FLIGHT-2). If `answer` panics, the callers that have nothing yet begin
    /// again. So do all of them if this thread panics under a lock: then nothing was inserted, and
    /// the drop ends the flight after the lock is released.
    pub(super) fn complete(self, mut answer: impl FnMut() -> A) {
        if is_under_lock() {
            return;
        }
        if let Some(flight) = self.flights.take(self.hash, &self.mark) {
            flight.end(|| WaitEnd::Answered(answer()));
        }
    }
}

impl<K, A> Drop for FlightLead<K, A> {
    fn drop(&mut self) {
        let (flights, hash) = (Arc::clone(&self.flights), self.hash);
        let mark = Arc::clone(&self.mark);
        when_unlocked(move || {
            // Nothing is found after `complete`.
            if let Some(flight) = flights.take(hash, &mark) {
                flight.end(|| WaitEnd::Unanswered);
            }
        });
    }
}

/// A seat in a flight. Dropping it gives up the wait.
///
/// As a future it is ready when the wait has ended.
pub(super) struct FlightWait<K: 'static, A: 'static> {
    flights: Arc<Flights<K, A>>,
    hash: KeyHash,
    mark: Arc<FlightMark>,
    seat: SharedSeat<A>,
}

impl<K, A> FlightWait<K, A> {
    /// Blocks until the wait has ended, or `park` returns false because the caller gives up. `park`
    /// blocks until the seat's waiter is woken, or a little less.
    pub(super) fn block(self, mut park: impl FnMut() -> bool) -> Option<WaitEnd<A>> {
        loop {
            let ended = self.ended();
            if ended.is_some() || !park() {
                return ended;
            }
        }
    }

    /// Takes the answer if the wait has ended.
    fn ended(&self) -> Option<WaitEnd<A>> {
        if self.flights.origin.is_elsewhere() {
            return Some(WaitEnd::Unanswered);
        }
        match &mut *self.seat.lock() {
            Seat::Waiting(_) => None,
            Seat::Ended(end) => Some(std::mem::replace(end, WaitEnd::Unanswered)),
        }
    }
}

impl<K, A> Future for FlightWait<K, A> {
    type Output = WaitEnd<A>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<WaitEnd<A>> {
        if self.flights.origin.is_elsewhere() {
            return Poll::Ready(WaitEnd::Unanswered);
        }
        let waits = leave(context.waker(), |show| {
            if let Seat::Waiting(Waiter::Task(left)) = &mut *self.seat.lock() {
                show(left);
            }
        });
        if waits {
            return Poll::Pending;
        }
        Poll::Ready(self.ended().unwrap_or(WaitEnd::Unanswered))
    }
}

impl<K, A> Drop for FlightWait<K, A> {
    fn drop(&mut self) {
        if self.flights.origin.is_elsewhere() || matches!(*self.seat.lock(), Seat::Ended(_)) {
            return;
        }
        let (flights, hash) = (Arc::clone(&self.flights), self.hash);
        let (mark, seat) = (Arc::clone(&self.mark), Arc::clone(&self.seat));
        when_unlocked(move || flights.leave_seat(hash, &mark, &seat));
    }
}
