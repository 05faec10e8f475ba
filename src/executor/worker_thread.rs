//! The loop that the thread of a worker runs.

use std::cell::Cell;
use std::time::Duration;

use super::pool::{Listing, Pool, PoolWorkers};
use super::workers::{Desk, NextAction, UNKNOWN_THREAD};
use crate::job::catch_panic;
use crate::sync::{Arc, CachePadded, Parker, thread};

/// How long a visit goes on while another pool is listed.
pub(super) const VISIT: Duration = Duration::from_millis(1);

/// A worker. A thread calls [`WorkerThread::run`].
pub(crate) struct WorkerThread {
    workers: Arc<PoolWorkers>,
    number: usize,
    parker: Parker,
    desk: Arc<CachePadded<Desk>>,
}

impl WorkerThread {
    /// Takes a worker. Returns `None` if there are enough, unless it is a spare one, or after the
    /// stop.
    ///
    /// Dropping it frees its number, whether it ran or not.
    pub(crate) fn take(workers: &Arc<PoolWorkers>, is_spare: bool) -> Option<Self> {
        let workers = Arc::clone(workers);
        let (number, parker, desk) = workers.take(is_spare)?;
        Some(WorkerThread {
            workers,
            number,
            parker,
            desk,
        })
    }

    /// Returns the worker's number, from 0. The first `wanted` workers stay, those above are extra.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Notes the number by which the kernel knows the worker's thread; see `crew.rs`.
    pub(crate) fn is_known_as(&self, thread: Option<u64>) {
        let number = thread.unwrap_or(UNKNOWN_THREAD);
        self.desk.is_known_as(number);
    }

    /// Visits the pools that are listed and sleeps in between, until the workers are stopped and
    /// the list is empty. An extra worker also leaves when it has found nothing for the quiet
    /// period.
    pub(crate) fn run(self) {
        self.is_known_as(thread::own_number());
        let patience = self.workers.patience(self.number);
        let mut idle_since = None;
        let clock = self.workers.clock();
        loop {
            // A waker takes this worker out of the sleepers first, and may then be stopped by the
            // kernel before it wakes it.
            let able = self.desk.at_lock.enter();
            // The clock is read only when a worker finds nothing, and only if the time matters.
            let next = self.workers.next(self.number, || match patience {
                None => (false, None),
                Some(quiet) => {
                    let now = clock.now();
                    let leave_at = *idle_since.get_or_insert(now) + quiet;
                    (now >= leave_at, Some(leave_at))
                }
            });
            match next {
                NextAction::Visit(listing) => {
                    idle_since = None;
                    if self.visit(&listing, able) == Visited::Forked {
                        // A task that this thread ran forked, and has returned in the copy. There
                        // the thread ends. Its number stays taken, because the lock for its return
                        // may be locked forever.
                        return std::mem::forget(self);
                    }
                }
                NextAction::Sleep(until) => clock.park_until(&self.parker, until),
                NextAction::Leave => return,
            }
        }
    }

    /// Serves the tickets of a pool, until it finds no more or another pool has waited for long
    /// enough. The worker is `able` until it has a slot.
    fn visit(&self, listing: &Arc<Listing>, able: impl Sized) -> Visited {
        let Some(pool) = listing.begin_visit() else {
            return Visited::Left;
        };
        let Some(mut worker) = Pool::take_slot(&pool) else {
            // SLEEP-4.
            return Visited::Left;
        };
        // CLOSE-POOL: in the slot, so that a shutdown waits for it.
        let Some(claim) = listing.claim() else {
            // Nobody is left who would serve what waits.
            pool.close();
            return Visited::Left;
        };
        drop(able);
        let at_lock = &self.desk.at_lock;
        let clock = self.workers.clock();
        let others_since = Cell::new(None);
        let go_on = || {
            // This pool may be listed for other workers.
            if self.workers.listed() <= usize::from(listing.is_listed()) {
                return true;
            }
            let now = clock.now();
            let since = others_since.get().unwrap_or(now);
            others_since.set(Some(since));
            // A clock that was set back says nothing.
            now < since || now.since(since) < VISIT
        };
        while worker.step_while(&*claim, at_lock, go_on) {
            if pool.is_forked() {
                std::mem::forget((worker, pool, claim));
                return Visited::Forked;
            }
            if !go_on() {
                break;
            }
        }
        let waits = at_lock.enter();
        // This may be the last owner of the engine, whose drop runs code of the user. A panic there
        // must not end a thread that serves others.
        let _ = catch_panic(|| drop(claim));
        drop(worker);
        drop(waits);
        Visited::Left
    }
}

impl Drop for WorkerThread {
    fn drop(&mut self) {
        self.workers.free(self.number);
    }
}

/// How a visit has ended.
#[derive(PartialEq, Eq)]
enum Visited {
    Left,
    /// In a forked copy of the process.
    Forked,
}

impl std::fmt::Debug for WorkerThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerThread")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}
