//! The small scheduler that leases run on, and the workers of callbacks. Both start at the first
//! lease.
//!
//! A scheduler of their own, so that neither a storm of expiring sessions nor tasks that block keep a
//! renewal waiting; and other workers for callbacks, which are the user's.

use std::io;
use std::time::Duration;

use crate::clock::Clock;
use crate::error::BuildError;
use crate::scheduler::{AfterPanic, Handle, Next, Period, Scheduler};
use crate::sync::{Mutex, OnceLock};
use crate::tick::Time;

/// What is armed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Alarm {
    /// The series of this number looks after itself: one repeating timer each.
    Series(u64),
    /// A lane's renewals go out. The second number changes when a pass is given up.
    Pass(u64, u64),
    /// A call to the store that nobody waits for on this thread.
    Call(u64),
    /// A callback.
    Tell(u64),
}

/// The threads of passes and of calls that hang at one time.
const MAX_WORKERS: usize = 64;
/// Callbacks that hang at one time; one more waits, and renewals don't.
const MAX_CALLBACKS: usize = 16;

pub(crate) struct Timers {
    clock: Clock,
    callbacks: bool,
    started: OnceLock<Started>,
    starting: Mutex<()>,
}

struct Started {
    work: Handle<Alarm>,
    tell: Option<Handle<Alarm>>,
    /// None for what is stepped.
    _owners: Vec<Scheduler<Alarm>>,
}

impl Timers {
    pub(super) fn new(clock: Clock, callbacks: bool) -> Self {
        Timers {
            clock,
            callbacks,
            started: OnceLock::new(),
            starting: Mutex::new(()),
        }
    }

    /// On a scheduler that somebody else drives.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn stepped(clock: Clock, work: Handle<Alarm>) -> Self {
        let timers = Timers::new(clock, true);
        let started = Started {
            tell: Some(work.clone()),
            work,
            _owners: Vec::new(),
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
        let tell = self
            .callbacks
            .then(|| self.scheduler(1, MAX_CALLBACKS))
            .transpose()?;
        let _ = self.started.set(Started {
            work: work.handle(),
            tell: tell.as_ref().map(Scheduler::handle),
            _owners: [Some(work), tell].into_iter().flatten().collect(),
        });
        Ok(())
    }

    fn scheduler(&self, workers: usize, max_workers: usize) -> io::Result<Scheduler<Alarm>> {
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

    fn work(&self) -> Option<&Handle<Alarm>> {
        self.started.get().map(|started| &started.work)
    }

    /// Arms a series: a round then, and when it says.
    pub(super) fn repeat(
        &self,
        series: u64,
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
        let armed = work.repeat(Alarm::Series(series), period, move |_| round());
        armed.is_ok()
    }

    /// Moves the next round of a series; nothing if it has ended.
    pub(super) fn move_to(&self, series: u64, at: Time) {
        if let Some(work) = self.work() {
            let _ = work.reschedule_at(&Alarm::Series(series), at);
        }
    }

    pub(super) fn cancel(&self, alarm: Alarm) {
        if let Some(work) = self.work() {
            let _ = work.cancel(&alarm);
        }
    }

    /// Runs a pass after `delay`. Whether one of this name will run, or runs and will once more.
    pub(super) fn pass(&self, alarm: Alarm, delay: Duration, task: impl FnOnce() + Send + 'static) {
        if let Some(work) = self.work() {
            let _ = work.schedule_if_absent(alarm, delay, move |_| task());
        }
    }

    /// Runs `task` on a worker after `delay`. False after the end, or before the beginning.
    pub(crate) fn call(
        &self,
        number: u64,
        delay: Duration,
        task: impl FnOnce() + Send + 'static,
    ) -> bool {
        let Some(work) = self.work() else {
            return false;
        };
        work.schedule(Alarm::Call(number), delay, move |_| task())
            .is_ok()
    }

    /// Runs `task` on a worker for callbacks.
    pub(super) fn tell(&self, alarm: Alarm, task: impl FnOnce() + Send + 'static) -> bool {
        let tell = self.started.get().and_then(|started| started.tell.as_ref());
        tell.is_some_and(|tell| {
            tell.schedule(alarm, Duration::ZERO, move |_| task())
                .is_ok()
        })
    }

    /// How many timers are armed.
    pub(super) fn armed(&self) -> usize {
        self.work().map_or(0, Handle::len)
    }
}
