//! The view that a ticker has of a pool's workers when it decides whether to start more.
//!
//! The thread of each worker notes a number by which the kernel knows it. A ticker whose tickets
//! have grown old asks the kernel which of these threads wait. That costs the workers nothing, and
//! it works while a task runs, however long that takes.
//!
//! A worker that waits for a stripe's lock looks like one that waits inside a task. It soon has the
//! lock, and one more worker would only wait for that lock, too. So a worker marks itself while it
//! claims or completes (`AtLock` in `job.rs`), and counts as able then. So does one that rests: a
//! waker takes it out of the list of sleepers a moment before it wakes it. The mark is a hint, and
//! nothing is ordered by it:
//!
//! - It is set, and the thread waits inside a task. That task began after one of the two reads, so
//!   it is a moment old. The next check finds it.
//! - It is not set, and the thread waits for a lock. It came there after the first read, or the
//!   holder has just released the lock. Only if the next check finds the same, a worker is started
//!   that was not needed.
//!
//! Tickers take turns: one checks the workers and starts new ones before the next one checks. A
//! worker that was just started counts as able until its thread has noted its number. This has two
//! effects:
//!
//! - Two tickers never start one worker each where one worker would have been enough.
//! - A pool that only computes gets one extra worker, not one for each ticker.
//!
//! A ticker that does not get the turn does not wait for it. It checks again a little later. What
//! one was told by the kernel stands for all others for [`FRESH`], unless it has started workers.

use super::growth::{BLIND_GAP, Crew, FRESH, Look, REFUSED_AT_MOST, REFUSED_FIRST, Sightings};
use super::pool::Pool;
use super::workers::{Desk, NO_THREAD};
use crate::sync::thread::waits;
use crate::sync::{Arc, CachePadded, MutexGuard};
use crate::tick::Time;

/// Greatest number of threads that are checked at once, since a ticker has timers to serve. If
/// there are more, the others are assumed to be like these, and the next check begins with them.
const MOST_THREADS: usize = 32;

/// A pool from the point of view of one ticker, for one decision. Dropping it ends the ticker's
/// turn.
pub(crate) struct PoolCrew<'a, U> {
    pool: &'a Pool,
    unclaimed: U,
    turn: Option<MutexGuard<'a, Sightings>>,
}

impl<'a, U: Fn() -> usize> PoolCrew<'a, U> {
    /// Creates the view. `unclaimed` returns how many tickets wait in all queues of the pool.
    pub(crate) fn new(pool: &'a Pool, unclaimed: U) -> Self {
        PoolCrew {
            pool,
            unclaimed,
            turn: None,
        }
    }

    /// Notes whether the system gave the threads that this ticker has asked for at `now`. If it
    /// refused one, returns when the ticker may ask again.
    pub(crate) fn asked_for_threads(&mut self, now: Time, all_started: bool) -> Option<Time> {
        // Whoever asks for threads has the turn.
        let turn = self.turn.as_mut()?;
        turn.able = None;
        turn.refused = (!all_started).then(|| {
            let pause = turn.refused.map_or(REFUSED_FIRST, |(_, pause)| pause * 2);
            (
                self.pool.threads().clock().now(),
                pause.min(REFUSED_AT_MOST),
            )
        });
        turn.refused.map(|(_, pause)| now + pause)
    }
}

impl<U: Fn() -> usize> Crew for PoolCrew<'_, U> {
    fn claims(&self) -> u64 {
        self.pool.claims()
    }

    fn helped(&self) -> u64 {
        self.pool.helped()
    }

    fn unclaimed(&self) -> usize {
        (self.unclaimed)()
    }

    fn free_slots(&self) -> usize {
        self.pool.free_slots()
    }

    fn is_left_alone(&self) -> bool {
        self.pool.is_left_alone()
    }

    fn is_stuck(&self) -> bool {
        let mut visitors = self.pool.visitors();
        visitors.truncate(MOST_THREADS);
        !visitors.is_empty()
            && visitors
                .iter()
                .all(|desk| waits_in_task(desk) == Some(true))
    }

    fn wanted(&self) -> usize {
        self.pool.threads().wanted()
    }

    fn one_claims(&self) -> bool {
        let desks = self.pool.threads().desks();
        desks.iter().any(|desk| desk.at_lock.is_set())
    }

    fn look(&mut self, now: Time) -> Look {
        let Some(turn) = self.pool.threads().sightings.try_lock() else {
            return Look::Later;
        };
        // The turn lasts until this view is dropped, after the ticker has started workers.
        let turn = self.turn.insert(turn);
        // The tickers' clocks may differ, so what they share is measured by the workers' one.
        let shared = self.pool.threads().clock().now();
        if let Some((since, pause)) = turn.refused
            && shared >= since
            && shared < since + pause
        {
            return Look::Refused(now + (since + pause).since(shared));
        }
        if let Some((at, able)) = turn.able
            && shared >= at
            && shared.since(at) < FRESH
        {
            return Look::Able(able);
        }
        let able = able(self.pool, &mut turn.begin);
        turn.able = able.map(|able| (shared, able));
        able.map_or(Look::Blind, Look::Able)
    }

    fn may_start_blindly(&mut self) -> bool {
        let now = self.pool.threads().clock().now();
        // Without the turn, several tickers could each start a worker in that time.
        let Some(turn) = &mut self.turn else {
            return false;
        };
        let last = turn.last_blind;
        let may = last.is_none_or(|last| now < last || now.since(last) >= BLIND_GAP);
        if may {
            turn.last_blind = Some(now);
        }
        may
    }
}

/// The workers of a pool at one moment, for people.
#[derive(Debug)]
pub(crate) struct Headcount {
    pub(crate) workers: usize,
    pub(crate) idle: usize,
    /// Number of workers that wait inside a task, if that can be found out.
    pub(crate) blocked: Option<usize>,
}

impl Headcount {
    /// Counts. Asks the kernel about up to [`MOST_THREADS`] threads.
    pub(crate) fn of(pool: &Pool) -> Self {
        let desks = pool.threads().desks();
        Headcount {
            workers: pool.workers(),
            idle: pool.sleeping(),
            blocked: waiting(&desks, &mut 0),
        }
    }
}

impl std::fmt::Display for Headcount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} workers, {} idle", self.workers, self.idle)?;
        match self.blocked {
            Some(blocked) => write!(f, ", {blocked} blocked in tasks"),
            None => Ok(()),
        }
    }
}

/// Returns how many workers of the pool are able, or `None` if that can't be found out.
fn able(pool: &Pool, begin: &mut usize) -> Option<usize> {
    // Read first: a worker that leaves meanwhile then counts as able, and no worker is started in
    // its place by mistake.
    let workers = pool.threads().regular();
    if pool.sleeping() > 0 {
        // A sleeping worker gets the next ticket, so no further worker is needed.
        return Some(workers);
    }
    let waiting = waiting(&pool.threads().desks(), begin)?;
    Some(workers.saturating_sub(waiting))
}

/// Returns how many of these workers wait inside a task, or `None` if that can't be found out. The
/// look begins with the thread of number `begin`, which is moved on.
fn waiting(desks: &[Arc<CachePadded<Desk>>], begin: &mut usize) -> Option<usize> {
    let known = desks.iter().filter(|desk| desk.thread() != NO_THREAD);
    let known: Vec<_> = known.collect();
    let looked_at = known.len().min(MOST_THREADS);
    let first = begin.checked_rem(known.len()).unwrap_or(0);
    *begin = first + looked_at;
    let mut waiting = 0;
    for desk in known.iter().cycle().skip(first).take(looked_at) {
        waiting += usize::from(waits_in_task(desk)?);
    }
    // Exact if all threads were checked, else an estimate.
    Some(waiting * known.len() / looked_at.max(1))
}

/// Returns whether this worker waits inside a task, or `None` if that can't be found out.
fn waits_in_task(desk: &Desk) -> Option<bool> {
    // Read on both sides of the question to the kernel, which knows neither `NO_THREAD` nor
    // `UNKNOWN_THREAD`. A worker that has entered or left a task meanwhile is not blocked either.
    let was_at_lock = desk.at_lock.is_set();
    Some(waits(desk.thread())? && !was_at_lock && !desk.at_lock.is_set())
}

impl<U> std::fmt::Debug for PoolCrew<'_, U> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolCrew")
            .field("pool", &self.pool)
            .field("has_turn", &self.turn.is_some())
            .finish_non_exhaustive()
    }
}
