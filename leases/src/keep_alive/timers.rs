//! The small schedulers that leases run on. They start at the first lease.
//!
//! One for the renewals and for batches of releases, so that neither a storm of expiring sessions
//! nor tasks that block keep one waiting; another one for calls to the store that are awaited, of
//! which there may be any number at one time; and workers for callbacks, which are the user's.

use std::io;
use std::time::Duration;

use tourbillon::reentrancy::when_unlocked;
use tourbillon::{AfterPanic, BuildError, Clock, Handle, Next, Period, Scheduler, Time};

use crate::sync::{Mutex, OnceLock, Origin};

/// What is armed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum TimerKey {
    /// The series of this number looks after itself: one repeating timer each.
    Registration(u64),
    /// What is due in a lane goes out. The second number changes when a pass is given up.
    Flush(u64, u64),
    /// Whether this pass of a lane hangs.
    Look(u64, u64),
    /// A call to the store that somebody awaits, or releases that are tried again.
    Call(u64),
    /// A callback.
    Tell(u64),
}

/// Passes that hang at one time; beyond those the ones that look after the series find a worker.
pub(super) const MAX_FLUSHES: usize = 240;
/// Passes of renewals, those of releases, of which there are 64, and rounds.
const MAX_WORKERS: usize = 320;
/// Calls that hang at one time; one more waits, and renewals don't. Those of one destination have
/// turns, so that it takes several that hang to use all of these.
const MAX_CALLS: usize = 192;
/// Callbacks that hang at one time; one more waits, and renewals don't.
const MAX_CALLBACKS: usize = 16;

pub(crate) struct Timers {
    clock: Clock,
    callbacks: bool,
    started: OnceLock<Started>,
    starting: Mutex<()>,
    origin: Origin,
}

struct Started {
    work: Handle<TimerKey>,
    calls: Handle<TimerKey>,
    tell: Option<Handle<TimerKey>>,
    /// None for what is stepped.
    owners: Vec<Scheduler<TimerKey>>,
}

impl Timers {
    pub(super) fn new(clock: Clock, callbacks: bool) -> Self {
        Timers {
            clock,
            callbacks,
            started: OnceLock::new(),
            starting: Mutex::new(()),
            origin: Origin::here(),
        }
    }

    /// On a scheduler that somebody else drives.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn stepped(clock: Clock, work: Handle<TimerKey>) -> Self {
        let timers = Timers::new(clock, true);
        let started = Started {
            tell: Some(work.clone()),
            calls: work.clone(),
            work,
            owners: Vec::new(),
        };
        let _ = timers.started.set(started);
        timers
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Starts the threads, unless they run.
    pub(super) fn start(&self) -> io::Result<()> {
        if self.started.get().is_some() {
            return Ok(());
        }
        let _one = self.starting.lock();
        if self.started.get().is_some() {
            return Ok(());
        }
        let work = self.scheduler(2, MAX_WORKERS)?;
        let calls = self.scheduler(1, MAX_CALLS)?;
        let tell = self
            .callbacks
            .then(|| self.scheduler(1, MAX_CALLBACKS))
            .transpose()?;
        let _ = self.started.set(Started {
            work: work.handle(),
            calls: calls.handle(),
            tell: tell.as_ref().map(Scheduler::handle),
            owners: [Some(work), Some(calls), tell]
                .into_iter()
                .flatten()
                .collect(),
        });
        Ok(())
    }

    fn scheduler(&self, workers: usize, max_workers: usize) -> io::Result<Scheduler<TimerKey>> {
        let built = Scheduler::builder()
            .shards(1)
            .stripes(8)
            .workers(workers)
            .max_workers(max_workers)
            .clock(self.clock.clone())
            .build();
        built.map_err(|error| match error {
            BuildError::Spawn(error) => error,
            other => io::Error::other(other),
        })
    }

    fn work(&self) -> Option<&Handle<TimerKey>> {
        self.started.get().map(|started| &started.work)
    }

    /// Arms a series: a round then, and when it says.
    pub(super) fn repeat(
        &self,
        registration: u64,
        first: Time,
        mut round: impl FnMut() -> Next + Send + 'static,
    ) -> bool {
        let Some(work) = self.work() else {
            return false;
        };
        let period = Period::fixed_delay(Duration::from_secs(1))
            .first_after(first.since(self.clock.now()))
            .on_panic(AfterPanic::BackOff {
                first: Duration::from_millis(1),
                most: Duration::from_millis(100),
            });
        let armed = work.repeat(TimerKey::Registration(registration), period, move |_| {
            round()
        });
        armed.is_ok()
    }

    /// Moves the next round of a series; nothing if it has ended.
    pub(super) fn move_to(&self, registration: u64, at: Time) {
        if let Some(work) = self.work() {
            let _ = work.reschedule_at(&TimerKey::Registration(registration), at);
        }
    }

    /// Drops call this, also under a lock.
    pub(super) fn cancel(&self, alarm: TimerKey) {
        if let Some(work) = self.work() {
            let work = work.clone();
            when_unlocked(move || {
                let _ = work.cancel(&alarm);
            });
        }
    }

    /// Runs `task` after `delay`, in the place of what was armed under this alarm.
    pub(super) fn after(
        &self,
        alarm: TimerKey,
        delay: Duration,
        task: impl FnOnce() + Send + 'static,
    ) {
        if let Some(work) = self.work() {
            let _ = work.schedule(alarm, delay, move |_| task());
        }
    }

    /// Runs a pass after `delay`, or earlier if one of this name is armed; one that runs is followed by
    /// another one.
    pub(super) fn flush(
        &self,
        alarm: TimerKey,
        delay: Duration,
        task: impl FnOnce() + Send + 'static,
    ) {
        if let Some(work) = self.work() {
            let armed = work.schedule_if_absent(alarm, delay, move |_| task());
            if armed.is_err() {
                // It is for others who can wait longer, perhaps.
                let _ = work.pull_in(&alarm, delay);
            }
        }
    }

    /// Runs `task` on a worker for calls. False after the end, or before the beginning.
    pub(super) fn call(&self, number: u64, task: impl FnOnce() + Send + 'static) -> bool {
        self.started.get().is_some_and(|started| {
            let alarm = TimerKey::Call(number);
            let called = started
                .calls
                .schedule(alarm, Duration::ZERO, move |_| task());
            called.is_ok()
        })
    }

    /// Runs `task` on a worker for callbacks.
    pub(super) fn tell(&self, alarm: TimerKey, task: impl FnOnce() + Send + 'static) -> bool {
        let tell = self.started.get().and_then(|started| started.tell.as_ref());
        tell.is_some_and(|tell| {
            tell.schedule(alarm, Duration::ZERO, move |_| task())
                .is_ok()
        })
    }

    /// A call that has not begun does not. Drops call this, also under a lock.
    pub(super) fn cancel_call(&self, number: u64) {
        if let Some(started) = self.started.get() {
            let (calls, work) = (started.calls.clone(), started.work.clone());
            when_unlocked(move || {
                let _ = calls.cancel(&TimerKey::Call(number));
                let _ = work.cancel(&TimerKey::Call(number));
            });
        }
    }

    /// Wakes a task after `delay`: among the renewals, since calls may keep all of their workers.
    pub(super) fn wake(&self, number: u64, delay: Duration, waker: std::task::Waker) -> bool {
        self.work().is_some_and(|work| {
            let armed = work.schedule(TimerKey::Call(number), delay, move |_| waker.wake());
            armed.is_ok()
        })
    }

    /// How many timers are armed.
    pub(super) fn armed(&self) -> usize {
        let Some(started) = self.started.get() else {
            return 0;
        };
        let mut armed = started.work.len();
        // Stepped, they are one.
        if !started.owners.is_empty() {
            armed += started.tell.as_ref().map_or(0, Handle::len);
            armed += started.calls.len();
        }
        armed
    }
}

/// In a forked copy there are no threads to end, and their locks may be held for ever.
impl Drop for Timers {
    fn drop(&mut self) {
        if self.origin.is_elsewhere() {
            std::mem::forget(self.started.take());
        }
    }
}
