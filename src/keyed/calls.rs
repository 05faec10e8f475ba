//! The windows of all keys, and the timer of each of them.
//!
//! The windows are in a table, behind 64 locks. A key that has a window has one repeating timer of
//! the scheduler, whose rounds look at the window: they run the value that is due, and decide when
//! to look again. A call of an open window only writes to it. So a stream of calls moves no timer:
//! the round that comes too early asks for a later one.
//!
//! - **CALLS-1** A window enters the table under its lock, in the same hold in which its timer is
//!   armed. It leaves the table under its lock, at the end of the last round. So a window has a
//!   timer until the scheduler is closed, and a call that was accepted is seen by a later round.
//! - **CALLS-2** The timer is armed with the whole wait as its delay, so nothing is handed to an
//!   executor under the lock. A leading run is pulled in after unlocking. So is a flush.
//! - **CALLS-3** A round may come too early, never too late: its deadline is at most the end of the
//!   window. An additional round does no harm, so `pull_in` needs no lock.
//! - **CALLS-4** The value is taken under the lock, and runs without it. Rounds of one key never
//!   overlap, so neither do runs.
//! - **CALLS-5** A round that starts after the scheduler has begun to close is the last one of its
//!   key. It removes the window and runs all of its values.
//! - **CALLS-6** A table's lock is taken before a stripe's lock, never inside of it. Under the
//!   table's lock a key's `Hash`, `Eq` and `Clone` run, and the merging closure. Values are dropped
//!   without it.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use crate::engine::Lifecycle;
use crate::error::ScheduleError;
use crate::scheduler::{Firing, Handle, Period, RandomState, Round, Scheduled};
use crate::shard::{Barrier, ReentrancyGuard, is_under_lock, refuse};
use crate::sync::{Arc, CachePadded, Mutex};
use crate::tick::Time;

use super::window::{Merge, Window, WindowRules, WindowValues};

/// The number of locks that the windows are spread over; a power of two.
const TABLES: usize = 64;

type WindowTable<K, V> = CachePadded<Mutex<HashMap<K, Window<V>, RandomState>>>;

type RunValue<K, V, S> = dyn Fn(&Firing<'_, K, S>, V) + Send + Sync;

/// The calls of one debounce or throttle.
pub(super) struct Calls<K, V, S> {
    rules: WindowRules,
    merge: Option<Box<Merge<V>>>,
    run: Box<RunValue<K, V, S>>,
    handle: Handle<K, S>,
    hasher: RandomState,
    tables: Box<[WindowTable<K, V>]>,
}

impl<K, V, S> Calls<K, V, S> {
    pub(super) fn rules(&self) -> &WindowRules {
        &self.rules
    }
}

impl<K, V, S> Calls<K, V, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    pub(super) fn new(
        rules: WindowRules,
        merge: Option<Box<Merge<V>>>,
        run: Box<RunValue<K, V, S>>,
        handle: Handle<K, S>,
    ) -> Arc<Self> {
        let hasher = RandomState::default();
        let table = || CachePadded::new(Mutex::new(HashMap::with_hasher(hasher.clone())));
        Arc::new(Calls {
            rules,
            merge,
            run,
            handle,
            tables: (0..TABLES).map(|_| table()).collect(),
            hasher,
        })
    }

    /// Returns whether the thread must not take a lock: it panics under one, or the locks belong to
    /// the original of this process. Panics if it is under a lock and does not panic.
    fn is_refused(&self) -> bool {
        let refused = is_under_lock();
        if refused {
            refuse();
        }
        refused || self.is_forked()
    }

    fn is_forked(&self) -> bool {
        self.handle.engine().is_forked()
    }

    fn no_windows(&self) -> HashMap<K, Window<V>, RandomState> {
        HashMap::with_hasher(self.hasher.clone())
    }

    fn table<Q>(&self, key: &Q) -> &WindowTable<K, V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        &self.tables[(self.hasher.hash_one(key) >> 48) as usize & (TABLES - 1)]
    }

    /// Calls `act` with the window of `key`, if there is one, under its lock.
    fn with_window<Q, R>(&self, key: &Q, act: impl FnOnce(&mut Window<V>) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if self.is_forked() {
            return None;
        }
        let table = self.table(key);
        let _barrier = Barrier::begin();
        let mut windows = table.lock();
        let _under = ReentrancyGuard::begin();
        windows.get_mut(key).map(act)
    }

    /// Takes the window of `key` out of the table if `is_last` says so.
    fn remove_if(
        &self,
        key: &K,
        is_last: impl FnOnce(&mut Window<V>) -> bool,
    ) -> Option<Window<V>> {
        if self.is_forked() {
            return None;
        }
        let table = self.table(key);
        let removed = {
            let _barrier = Barrier::begin();
            let mut windows = table.lock();
            let _under = ReentrancyGuard::begin();
            if !is_last(windows.get_mut(key)?) {
                return None;
            }
            windows.remove_entry(key)
        };
        // The key is dropped without the lock.
        removed.map(|(_, window)| window)
    }

    pub(super) fn call(self: &Arc<Self>, key: &K, value: V) -> Result<(), ScheduleError<V>> {
        if self.is_refused() {
            return Err(if self.is_forked() {
                ScheduleError::Forked(value)
            } else {
                ScheduleError::UnderLock(value)
            });
        }
        if self.handle.state() != Lifecycle::Running {
            return Err(ScheduleError::Closed(value));
        }
        let (unneeded, is_ready) = self.enter(key, value)?;
        if is_ready {
            // CALLS-2.
            let _ = self.handle.pull_in(key, Duration::ZERO);
        }
        drop(unneeded);
        Ok(())
    }

    /// Adds `value` to the window of `key`, or opens one. Returns the value that is not needed any
    /// more, and whether a run has to start at once.
    fn enter(self: &Arc<Self>, key: &K, value: V) -> Result<(Option<V>, bool), ScheduleError<V>> {
        let now = self.handle.now();
        let refused = {
            let table = self.table(key);
            let _barrier = Barrier::begin();
            let mut windows = table.lock();
            let under = ReentrancyGuard::begin();
            if let Some(window) = windows.get_mut(key) {
                let was_ready = window.is_ready();
                let unneeded = window.add(&self.rules, value, now, self.merge.as_deref());
                return Ok((unneeded, window.is_ready() && !was_ready));
            }
            let (key_of_window, key_of_timer, key_of_period) =
                (key.clone(), key.clone(), key.clone());
            // The scheduler marks the thread itself.
            drop(under);
            match self.arm(key_of_timer, key_of_period) {
                Ok(armed) => {
                    // By the timer's own reading of the clock (CALLS-3).
                    let opened = armed.deadline - self.rules.wait();
                    let window = Window::open(&self.rules, value, opened);
                    let is_ready = window.is_ready();
                    let _under = ReentrancyGuard::begin();
                    windows.insert(key_of_window, window);
                    return Ok((None, is_ready));
                }
                Err(refused) => refused,
            }
        };
        Err(refused.with_task(value))
    }

    /// Arms the timer of a new window of the key, which is given twice.
    fn arm(
        self: &Arc<Self>,
        key: K,
        key_of_period: K,
    ) -> Result<Scheduled, ScheduleError<impl Sized + use<K, V, S>>> {
        let wait = self.rules.wait();
        let (looking, running) = (Arc::clone(self), Arc::clone(self));
        let period = Period::schedule(move |so_far| match so_far.deadline {
            None => Some(so_far.now + wait),
            Some(_) => looking.next(&key_of_period, so_far.now),
        });
        let round = move |round: &Round<'_, K, S>| running.round(round.firing());
        self.handle.repeat(key, period, round)
    }

    /// Runs the value that is due.
    fn round(&self, firing: &Firing<'_, K, S>) {
        let key = firing.key();
        let WindowValues(leading, trailing) = if self.handle.state() == Lifecycle::Running {
            let now = self.handle.now();
            let due = self.with_window(key, |window| window.take(&self.rules, now));
            WindowValues(due.flatten(), None)
        } else {
            // CALLS-5.
            self.remove_if(key, |_| true)
                .map_or(WindowValues(None, None), Window::into_values)
        };
        let run = |value| (self.run)(firing, value);
        let ended = leading.map(|value| catch_unwind(AssertUnwindSafe(|| run(value))));
        if let Some(value) = trailing {
            run(value);
        }
        if let Some(Err(panic)) = ended {
            resume_unwind(panic);
        }
    }

    /// Returns when the next round is due. If the window is over, this removes it.
    fn next(&self, key: &K, now: Time) -> Option<Time> {
        let mut next = None;
        let removed = self.remove_if(key, |window| {
            next = window.next(now);
            next.is_none()
        });
        drop(removed);
        next
    }

    pub(super) fn is_pending<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        !self.is_refused() && self.with_window(key, |window| window.is_pending()) == Some(true)
    }

    pub(super) fn flush<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if self.is_refused() {
            return false;
        }
        let follows = self.with_window(key, Window::flush) == Some(true);
        if follows {
            let _ = self.handle.pull_in(key, Duration::ZERO);
        }
        follows
    }

    pub(super) fn cancel<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if self.is_refused() {
            return false;
        }
        let now = self.handle.now();
        let cancelled = self.with_window(key, |window| {
            let values = window.cancel(&self.rules, now);
            (values, window.next(now).is_none())
        });
        let Some((values, is_over)) = cancelled else {
            return false;
        };
        if is_over {
            // The round finds nothing, and removes the window.
            let _ = self.handle.pull_in(key, Duration::ZERO);
        }
        !values.is_empty()
    }

    pub(super) fn take_pending(&self) -> Vec<(K, V)> {
        let mut pending = Vec::new();
        if self.is_refused() {
            return pending;
        }
        for table in &self.tables {
            let windows = std::mem::replace(&mut *table.lock(), self.no_windows());
            for (key, window) in windows {
                match window.into_values() {
                    WindowValues(Some(leading), Some(trailing)) => {
                        pending.push((key.clone(), leading));
                        pending.push((key, trailing));
                    }
                    WindowValues(one, other) => {
                        pending.extend(one.or(other).map(|value| (key, value)));
                    }
                }
            }
        }
        pending
    }
}
