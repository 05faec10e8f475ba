//! Limits of waits that tasks await. A thread that waits parks until its limit; for a task, the
//! ticker of the first shard watches the clock.
//!
//! The limits stand in a list, under a lock. A limit that is reached leaves it, and its task is
//! woken; a wait that finds its limit gone has reached it. `earliest` is written under the lock and
//! read by the ticker without it. It is one more thing that is published for a ticker
//! (`shard/doorbell.rs`): the task lowers it and rings, the ticker promises and reads it again. So
//! no ticker sleeps past a limit. **LIMIT-1**
//!
//! When the engine stops, nobody watches the clock any more. So all limits count as reached, also
//! those of later waits. **LIMIT-2**

use std::collections::BTreeMap;
use std::task::Waker;

use super::{Engine, Frontend};
use crate::job::catch_panic;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::tick::Time;
use crate::waker::leave;

/// The shard whose ticker watches the limits.
const WATCHING: usize = 0;

/// The limits of an engine.
#[derive(Debug)]
pub(crate) struct Limits {
    /// The earliest one, in nanoseconds of the clock.
    earliest: AtomicU64,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    wakers: BTreeMap<LimitId, Waker>,
    seen: u64,
    closed: bool,
}

/// A limit in the list: its moment, and its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct LimitId(Time, u64);

impl Limits {
    pub(super) fn new() -> Self {
        Limits {
            earliest: AtomicU64::new(u64::MAX),
            list: Mutex::default(),
        }
    }

    fn earliest(&self) -> Time {
        // Relaxed: ordered by the fences of the doorbell (LIMIT-1).
        Time::from_nanos(self.earliest.load(Ordering::Relaxed))
    }

    /// Changes the list, and publishes what is the earliest limit then.
    fn change<R>(&self, change: impl FnOnce(&mut List) -> R) -> R {
        let mut list = self.list.lock();
        let answer = change(&mut list);
        let earliest = (list.wakers.first_key_value()).map_or(Time::MAX, |(LimitId(at, _), _)| *at);
        // Relaxed: as for the load.
        self.earliest.store(earliest.as_nanos(), Ordering::Relaxed);
        answer
    }

    /// Takes all limits out that are reached at `now`, and wakes their tasks.
    #[cold]
    #[inline(never)]
    fn wake_reached(&self, now: Time) {
        let mut reached = self.change(|list| {
            let later = list.wakers.split_off(&LimitId(now, u64::MAX));
            std::mem::replace(&mut list.wakers, later)
        });
        // Without the lock, since a waker is code of its runtime.
        while let Some((_, waker)) = reached.pop_first() {
            let _ = catch_panic(|| waker.wake());
        }
    }

    /// LIMIT-2.
    pub(super) fn close(&self) {
        self.change(|list| list.closed = true);
        self.wake_reached(Time::MAX);
    }
}

impl<F: Frontend> Engine<F> {
    /// Begins a limit. `None`: it is reached already.
    pub(crate) fn begin_limit(&self, until: Time) -> Option<LimitId> {
        if self.now() >= until {
            return None;
        }
        let begun = self.limits.change(|list| {
            list.seen += 1;
            let id = LimitId(until, list.seen);
            (!list.closed).then(|| {
                list.wakers.insert(id, Waker::noop().clone());
                id
            })
        });
        // LIMIT-1.
        self.shards().shard(WATCHING).bell.ring_for(until);
        begun
    }

    /// Leaves the waker of the task that waits. False: the limit is reached.
    pub(crate) fn leave_at_limit(&self, id: LimitId, waker: &Waker) -> bool {
        leave(waker, |show| {
            if let Some(left) = self.limits.list.lock().wakers.get_mut(&id) {
                show(left);
            }
        })
    }

    /// Takes a limit back, if it is not reached.
    pub(crate) fn end_limit(&self, id: LimitId) {
        // Another thread may have had the lock at the fork.
        if self.is_forked() {
            return;
        }
        // Dropped without the lock.
        drop(self.limits.change(|list| list.wakers.remove(&id)));
    }

    /// Wakes the tasks whose limit is reached, if this shard's ticker watches them.
    #[inline]
    pub(crate) fn wake_at_limits(&self, shard: usize, now: Time) {
        if shard == WATCHING && self.limits.earliest() <= now {
            self.limits.wake_reached(now);
        }
    }

    /// Returns the earliest limit that this shard's ticker watches.
    #[inline]
    pub(crate) fn next_limit(&self, shard: usize) -> Time {
        if shard == WATCHING {
            self.limits.earliest()
        } else {
            Time::MAX
        }
    }
}
