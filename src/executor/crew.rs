//! What a ticker can see of a pool's workers when it decides whether to start more.
//!
//! Each worker's thread notes a number by which the kernel knows it. A ticker whose tickets have
//! grown old asks the kernel which of these threads wait. That costs the workers nothing, and works
//! while a task runs, however long that is.
//!
//! Tickers take turns: one looks and starts workers before the next one looks. A worker that was
//! just started counts as able until its thread says who it is. So two tickers never start a worker
//! each for what one of them would have put right, and a pool that only computes gets one extra
//! worker, not one per ticker. A ticker that does not get the turn does not wait for it: it looks
//! again a little later.

use super::growth::{BLIND_GAP, Crew, Look};
use super::pool::Pool;
use super::seat::{NO_THREAD, Sightings, UNKNOWN_THREAD};
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;
use crate::sync::thread::waits;
use crate::tick::Time;

/// So many threads are looked at in one look, at most: a ticker has timers to see to. If there are
/// more, the others are taken to be like those, and the next look begins with them.
const MOST_THREADS: usize = 32;

/// A pool as one ticker sees it, for one decision. The turn ends with its drop.
pub(crate) struct PoolCrew<'a, U> {
    pool: &'a Pool,
    unclaimed: U,
    turn: Option<MutexGuard<'a, Sightings>>,
}

impl<'a, U: Fn() -> usize> PoolCrew<'a, U> {
    /// `unclaimed`: how many tickets wait, in all queues of the pool.
    pub(crate) fn new(pool: &'a Pool, unclaimed: U) -> Self {
        PoolCrew {
            pool,
            unclaimed,
            turn: None,
        }
    }
}

impl<U: Fn() -> usize> Crew for PoolCrew<'_, U> {
    fn claims(&self) -> u64 {
        self.pool.claims()
    }

    fn unclaimed(&self) -> usize {
        (self.unclaimed)()
    }

    fn free_seats(&self) -> usize {
        self.pool.free_seats()
    }

    fn wanted(&self) -> usize {
        self.pool.permanent()
    }

    fn look(&mut self) -> Look {
        let Some(turn) = self.pool.sightings.try_lock() else {
            return Look::Later;
        };
        let turn = self.turn.insert(turn);
        able(self.pool, &mut turn.begin).map_or(Look::Blind, Look::Able)
    }

    fn may_start_blindly(&mut self, now: Time) -> bool {
        // Without the turn it would not be one worker in that time.
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

/// How many workers of the pool are able. `None` if that cannot be found out.
fn able(pool: &Pool, begin: &mut usize) -> Option<usize> {
    // First: a worker that leaves meanwhile then counts as able, and nobody is started in its place
    // by mistake.
    let workers = pool.workers();
    if pool.sleeping() > 0 {
        // It waits for a ticket and gets the next one: nobody else is needed.
        return Some(workers);
    }
    let numbers: Vec<u64> = pool
        .threads
        .iter()
        // Relaxed: see `Pool::note_thread`.
        .map(|number| number.load(Ordering::Relaxed))
        .filter(|number| *number != NO_THREAD)
        .collect();
    let looked_at = numbers.len().min(MOST_THREADS);
    let first = begin.checked_rem(numbers.len()).unwrap_or(0);
    *begin = first + looked_at;
    let mut waiting = 0;
    for number in numbers.iter().cycle().skip(first).take(looked_at) {
        if *number == UNKNOWN_THREAD {
            return None;
        }
        waiting += usize::from(waits(*number)?);
    }
    // Exact if all were looked at.
    let waiting_in_all = waiting * numbers.len() / looked_at.max(1);
    Some(workers.saturating_sub(waiting_in_all))
}

impl<U> std::fmt::Debug for PoolCrew<'_, U> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolCrew")
            .field("pool", &self.pool)
            .field("has_turn", &self.turn.is_some())
            .finish_non_exhaustive()
    }
}
