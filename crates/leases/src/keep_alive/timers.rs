//! The small schedulers that leases run on. They start with the first lease.
//!
//! - One scheduler runs the renewals, and everything else that polls the store in the background.
//!   Others may run on the same threads, but its queues are its own. So neither a storm of expiring
//!   entries nor blocking tasks of the application delay a renewal.
//! - One scheduler runs the callbacks, which are user code. It exists only if there is a callback.

use std::future::Future;
use std::task::Waker;
use std::time::Duration;

use tourbillon::metrics::Distribution;
use tourbillon::reentrancy::when_unlocked;
use tourbillon::{
    AfterPanic, BuildError, Clock, Handle, Health, Next, Period, Runtime, Scheduler, Time,
};

use super::KeepError;
use super::polls::{PollSlots, PollsTask};
use super::task::WorkerTask;
use super::timer_key::TimerKey;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, OnceLock, Origin};

/// The rounds, polls and wake-ups that run at one time. None of them block, unless polls of a user's
/// store do, which are fewer.
const MAX_WORK: usize = 320;
/// The callbacks that run at one time. If all of them hang, further callbacks wait, but renewals do
/// not.
const MAX_CALLBACKS: usize = 16;

/// Whose threads the schedulers run on.
#[derive(Clone, Debug, Default)]
pub(super) enum RunsOn {
    /// Nothing was said: the runtime of the process, or with a manual clock threads of their own.
    #[default]
    Usual,
    Runtime(Runtime),
    Own,
}

/// The schedulers of one [`KeepAlive`](super::KeepAlive).
pub(crate) struct Timers {
    clock: Clock,
    runs_on: RunsOn,
    callbacks: bool,
    started: OnceLock<Started>,
    /// Held by the thread that starts the schedulers, so that only one does.
    starting: Mutex<()>,
    /// The next number of a registration, a queue, a task or a wake-up.
    numbers: AtomicU64,
    /// Whether a test drives the scheduler, so that nothing happens while a caller waits.
    stepped: bool,
    slots: Arc<PollSlots>,
    origin: Origin,
}

/// The schedulers, once they have started.
struct Started {
    work: Handle<TimerKey>,
    tell: Option<Handle<TimerKey>>,
    /// The schedulers to shut down at the end. Empty if a test drives the scheduler.
    owners: Vec<Scheduler<TimerKey>>,
}

impl Timers {
    pub(super) fn new(clock: Clock, runs_on: RunsOn, callbacks: bool) -> Self {
        Timers {
            clock,
            runs_on,
            callbacks,
            started: OnceLock::new(),
            starting: Mutex::new(()),
            numbers: AtomicU64::new(0),
            stepped: false,
            slots: Arc::default(),
            origin: Origin::here(),
        }
    }

    /// Returns timers on a scheduler that a test drives.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn stepped(clock: Clock, work: Handle<TimerKey>) -> Self {
        let mut timers = Timers::new(clock, RunsOn::Usual, true);
        timers.stepped = true;
        let started = Started {
            tell: Some(work.clone()),
            work,
            owners: Vec::new(),
        };
        // Nothing is set yet, so this can't fail.
        let _ = timers.started.set(started);
        timers
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Whether this process is a forked copy of the process that built them. A copy has none of the
    /// threads, and the locks of the schedulers may stay locked there.
    pub(super) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    pub(crate) fn is_stepped(&self) -> bool {
        self.stepped
    }

    /// Returns a number that nothing else on these timers has.
    pub(super) fn number(&self) -> u64 {
        // Relaxed: only the numbers must differ.
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a number that identifies these timers.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Starts the schedulers, unless they run already.
    pub(super) fn start(&self) -> Result<(), KeepError> {
        if self.started.get().is_some() {
            return Ok(());
        }
        let _one = self.starting.lock();
        // Another thread may have started them while this one waited for the lock.
        if self.started.get().is_some() {
            return Ok(());
        }
        let started = self.build().map_err(|error| match error {
            BuildError::Spawn(error) => KeepError::Spawn(error),
            error => KeepError::Runtime(error),
        })?;
        let _ = self.started.set(started);
        Ok(())
    }

    /// Builds the schedulers. If a later one can't start, the drop of the earlier ones ends them.
    fn build(&self) -> Result<Started, BuildError> {
        let work = self.scheduler(2, MAX_WORK)?;
        let tell = self
            .callbacks
            .then(|| self.scheduler(1, MAX_CALLBACKS))
            .transpose()?;
        Ok(Started {
            work: work.handle(),
            tell: tell.as_ref().map(Scheduler::handle),
            owners: [Some(work), tell].into_iter().flatten().collect(),
        })
    }

    /// Builds one of them. `workers` is the number of its own workers, if it has threads of its own.
    ///
    /// The schedulers share none then. So callbacks that hang leave the workers of the renewals alone,
    /// also where the system refuses a thread, and on a manual clock that stands still.
    fn scheduler(
        &self,
        workers: usize,
        max_running: usize,
    ) -> Result<Scheduler<TimerKey>, BuildError> {
        let builder = Scheduler::builder()
            .shards(1)
            .stripes(8)
            .max_running(max_running)
            .clock(self.clock.clone());
        let builder = match &self.runs_on {
            RunsOn::Runtime(runtime) => builder.runtime(runtime),
            RunsOn::Usual if self.clock.as_manual().is_none() => builder,
            RunsOn::Usual | RunsOn::Own => builder.own_threads().workers(workers),
        };
        builder.build()
    }

    fn work(&self) -> Option<&Handle<TimerKey>> {
        self.started.get().map(|started| &started.work)
    }

    /// Arms the repeating timer of a registration. The first round is at `first`, and each round
    /// returns when the next one is. Returns false if the schedulers are not running.
    pub(super) fn repeat(
        &self,
        registration: u64,
        first: Time,
        mut round: impl FnMut() -> Next + Send + 'static,
    ) -> bool {
        let Some(work) = self.work() else {
            return false;
        };
        // Each round returns its own next time, so this period is only a placeholder. A panic of a
        // round must not end the renewals.
        let period = Period::fixed_delay(Duration::from_secs(1))
            .first(first.since(self.clock.now()))
            .on_panic(AfterPanic::BackOff {
                first: Duration::from_millis(1),
                most: Duration::from_millis(100),
            });
        let armed = work.repeat(TimerKey::Registration(registration), period, move |_| {
            round()
        });
        armed.is_ok()
    }

    /// Moves the next round of a registration. Does nothing if the registration has ended.
    pub(super) fn move_to(&self, registration: u64, at: Time) {
        if let Some(work) = self.work() {
            // A round that runs just now is followed by one at this time.
            let _ = work.reschedule(&TimerKey::Registration(registration), at);
        }
    }

    /// Cancels a timer. Drops call this, also under a lock.
    pub(super) fn cancel(&self, alarm: TimerKey) {
        if let Some(work) = self.work() {
            let work = work.clone();
            when_unlocked(move || {
                let _ = work.cancel(&alarm);
            });
        }
    }

    /// Runs `task` after `delay`. Replaces the timer that was armed under this key.
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

    /// Runs a flush after `delay`, or earlier if one of this key is armed already. If one runs,
    /// this one follows it.
    pub(super) fn flush(
        &self,
        alarm: TimerKey,
        delay: Duration,
        task: impl FnOnce() + Send + 'static,
    ) {
        if let Some(work) = self.work() {
            let armed = work.schedule_if_absent(alarm, delay, move |_| task());
            if armed.is_err() {
                // The armed one may be for renewals that can wait longer.
                let _ = work.pull_in(&alarm, delay);
            }
        }
    }

    /// Makes workers poll `future` until it is ready. Returns false if there are no workers, and none
    /// can be started.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> bool {
        self.task_workers().is_some_and(|workers| {
            let (work, alarm) = (workers.work.clone(), workers.alarm);
            let slots = Arc::clone(&self.slots);
            let task = WorkerTask::new(workers, future);
            let armed = work.schedule(alarm, Duration::ZERO, move |_| slots.poll(task));
            armed.is_ok()
        })
    }

    /// Polls `future` on this thread, unless too many polls run. Workers go on if it is pending.
    pub(crate) fn poll_here(&self, future: impl Future<Output = ()> + Send + 'static) {
        if let Some(workers) = self.task_workers() {
            self.slots.poll(WorkerTask::new(workers, future));
        }
    }

    fn task_workers(&self) -> Option<PollsTask> {
        if self.is_forked() || self.start().is_err() {
            return None;
        }
        self.work().map(|work| PollsTask {
            work: work.clone(),
            alarm: TimerKey::Call(self.number()),
            slots: Arc::clone(&self.slots),
        })
    }

    /// Runs `task` on a worker for callbacks. Returns false if there is none.
    pub(super) fn tell(&self, alarm: TimerKey, task: impl FnOnce() + Send + 'static) -> bool {
        let tell = self.started.get().and_then(|started| started.tell.as_ref());
        tell.is_some_and(|tell| {
            tell.schedule(alarm, Duration::ZERO, move |_| task())
                .is_ok()
        })
    }

    /// Wakes a task after `delay`. Returns the number that [`cancel_wake`](Self::cancel_wake) needs,
    /// or `None` if there are no workers, and none can be started.
    pub(crate) fn wake(&self, delay: Duration, waker: Waker) -> Option<u64> {
        if self.is_forked() || self.start().is_err() {
            return None;
        }
        let number = self.number();
        let armed = self
            .work()?
            .schedule(TimerKey::Call(number), delay, move |_| waker.wake());
        armed.is_ok().then_some(number)
    }

    /// Cancels a wake-up that has not begun.
    pub(crate) fn cancel_wake(&self, number: u64) {
        if !self.is_forked() {
            self.cancel(TimerKey::Call(number));
        }
    }

    /// Returns how late the timers of the renewals were.
    pub(super) fn lateness(&self) -> Distribution {
        self.work().map_or_else(Distribution::default, |work| {
            work.metrics().histogram("tourbillon_lateness_seconds")
        })
    }

    /// Returns the health of each scheduler that runs, and what it is for.
    pub(super) fn health(&self) -> Vec<(&'static str, Health)> {
        let Some(started) = self.started.get() else {
            return Vec::new();
        };
        let mut found = vec![("renewals", started.work.health())];
        // As for `armed`.
        if !started.owners.is_empty() {
            found.extend((started.tell.iter()).map(|tell| ("callbacks", tell.health())));
        }
        found
    }

    /// Returns the number of armed timers.
    pub(super) fn armed(&self) -> usize {
        let Some(started) = self.started.get() else {
            return 0;
        };
        let mut armed = started.work.len();
        // A test drives only one scheduler, whose handle is both.
        if !started.owners.is_empty() {
            armed += started.tell.as_ref().map_or(0, Handle::len);
        }
        armed
    }
}

/// Leaks the schedulers in a forked copy: it has none of their threads to end, and their locks may
/// stay locked forever.
impl Drop for Timers {
    fn drop(&mut self) {
        if self.origin.is_elsewhere() {
            std::mem::forget(self.started.take());
        }
    }
}
