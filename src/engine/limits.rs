//! Limits of waits. A thread parks until its limit; for a task, the ticker of the first shard
//! watches the clock.
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
use std::time::Duration;

use super::{Engine, Frontend, task_scope};
use crate::job::catch_panic;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex};
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
struct LimitId(Time, u64);

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
    /// Puts a limit into the list. `None`: nobody watches the clock any more.
    fn begin_limit(&self, until: Time) -> Option<LimitId> {
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

/// The limit of one wait, of a thread or of a task. Dropping it takes it back.
pub(crate) struct Limit<F: Frontend> {
    engine: Arc<Engine<F>>,
    until: Time,
    /// In the engine's list, once a task waits.
    id: Option<LimitId>,
}

impl<F: Frontend> Limit<F> {
    /// Returns a limit of `span` from now, or `present` if that is reached earlier.
    pub(crate) fn within(engine: &Arc<Engine<F>>, span: Duration, present: Option<Self>) -> Self {
        let until = engine.now() + span;
        match present {
            Some(limit) if limit.until <= until => limit,
            _ => Limit {
                engine: Arc::clone(engine),
                until,
                id: None,
            },
        }
    }

    /// When a thread's wait ends.
    pub(crate) fn until(&self) -> Time {
        self.until
    }

    /// Whether a thread must wait no longer.
    pub(crate) fn has_passed(&self) -> bool {
        // In an engine that a test steps, nothing goes on while its thread waits in a task.
        let in_vain = self.engine.is_stepped() && task_scope::is_inside(self.engine.tag());
        in_vain || self.engine.now() >= self.until
    }

    /// Takes the limit out of the list, so that it wakes nobody.
    pub(crate) fn take_back(&mut self) {
        let Some(id) = self.id.take().filter(|_| !self.engine.is_forked()) else {
            return;
        };
        let waker = self.engine.limits.change(|list| list.wakers.remove(&id));
        // Dropped without the lock, since a waker is code of its runtime.
        let _ = catch_panic(|| drop(waker));
    }

    /// Leaves the waker of the task that waits. False: the limit is reached.
    pub(crate) fn leave(&mut self, waker: &Waker) -> bool {
        if self.until == Time::MAX {
            return true;
        }
        // In a forked copy another thread may have had the lock of the list.
        if self.engine.is_forked() {
            return false;
        }
        if self.id.is_none() && self.engine.now() < self.until {
            self.id = self.engine.begin_limit(self.until);
        }
        let Some(id) = self.id else {
            return false;
        };
        leave(waker, |show| {
            if let Some(left) = self.engine.limits.list.lock().wakers.get_mut(&id) {
                show(left);
            }
        })
    }
}

impl<F: Frontend> Drop for Limit<F> {
    fn drop(&mut self) {
        self.take_back();
    }
}
