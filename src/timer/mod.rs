//! The keyless front end: timers that run once and are named by a handle, like `newTimeout` of
//! Netty's `HashedWheelTimer`. There is no index and no hash: the timers of one thread go into a
//! few stripes in turn. `sleep.rs` has the same for tasks that await, and `batch.rs` calls for many.

mod batch;
mod builder;
mod interval;
mod sleep;
mod stats;
mod stripes;
mod task;
mod timeout;

pub use builder::TimerBuilder;
pub use interval::{Interval, NextTick};
pub use sleep::{Sleep, SleepError};
pub use timeout::{Timeout, TimeoutError};

use std::fmt;
use std::time::Duration;

use crate::clock::Clock;
use crate::engine::{
    Ending, Engine, Frontend, FrontendTypes, Lifecycle, RunInfo, Server, Shutdown,
};
use crate::error::{BuildError, ScheduleError};
use crate::job::drop_catching;
use crate::scheduler::{Cancel, Closing, Reschedule, next_deadline};
use crate::shard::Taken;
use crate::shard::{Cancelling, End, EntryId, EntryPhase, Refusal, is_under_lock};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, CachePadded};
use crate::tick::Time;
use crate::when::When;
use stripes::next_stripe_of_thread;
use task::TimerTask;

/// Timers without keys, each with a [`TimerHandle`] to cancel or move it by.
///
/// A `Timer` has the same engine as [`Scheduler`](crate::Scheduler), with the same promises.
/// Without a key there is nothing to hash and nothing to look up, so starting and stopping a timer
/// is cheaper. To find a timer again, the caller keeps its [`TimerHandle`].
///
/// Dropping the `Timer` closes it without waiting, like dropping a scheduler. A `Timer` is not
/// [`Clone`]: put it into an [`Arc`](std::sync::Arc) to share it between threads or tasks.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::Timer;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let timer = Timer::new()?;
/// let timeout = timer.after(Duration::from_secs(5), || eprintln!("no answer in 5 s"))?;
/// // .. the answer came ..
/// assert!(timeout.cancel().is_cancelled());
/// assert!(timeout.is_cancelled() && !timeout.is_expired());
/// # Ok(())
/// # }
/// ```
#[doc(alias("timeout", "delay"))]
pub struct Timer {
    server: Arc<Server<TimerFrontend>>,
    /// One link per stripe. Each timeout keeps the engine alive. With a single reference count,
    /// threads that start and stop timers on different stripes would contend for its cache line.
    links: Box<[Link]>,
}

/// Keeps the engine alive, with a reference count of its own on a cache line of its own.
type Link = Arc<CachePadded<Arc<Engine<TimerFrontend>>>>;

type BoxedTask = Box<dyn TimerTask>;

/// The action of a due timer.
pub(crate) enum TimerAction {
    Run(BoxedTask),
    Wake(sleep::WakeUp),
}

/// The front end of timers without keys.
#[derive(Debug)]
pub(crate) struct TimerFrontend;

impl FrontendTypes for TimerFrontend {
    type Key = ();
    type Payload = TimerAction;
    type Access = ();
}

impl Frontend for TimerFrontend {
    const HAS_WAKE_UPS: bool = true;
    const LIGHT: bool = true;

    fn access(_: &Arc<Engine<Self>>) {}

    fn prefetch(due: &mut TimerAction) {
        if let TimerAction::Run(task) = due {
            task.prefetch();
        }
    }

    fn is_wake_up(due: &TimerAction) -> bool {
        matches!(due, TimerAction::Wake(_))
    }

    fn wake_up((): &(), due: TimerAction) {
        if let TimerAction::Wake(wake_up) = due {
            wake_up.wake();
        }
    }

    fn run((): &(), _: &RunInfo<'_, ()>, due: TimerAction) {
        match due {
            TimerAction::Run(task) => task.run(),
            // `is_wake_up` names these. A drop wakes the task as well.
            TimerAction::Wake(wake_up) => drop(wake_up),
        }
    }

    fn panicked((): &(), _: &RunInfo<'_, ()>, _message: &str) {
        // It does not know its engine, but a span around it does.
        #[cfg(feature = "tracing")]
        if crate::trace::hears_warnings() {
            let source = crate::trace::Source::<()> {
                kind: "timer",
                name: None,
                key: None,
            };
            crate::trace::panicked(&source, _message);
        }
    }

    /// Removes the sleeps. The drop of a [`sleep::WakeUp`] wakes its task and catches the waker's
    /// panic.
    fn keep_back(&self, taken: &mut Vec<Taken<(), TimerAction>>, _: bool) {
        taken.retain(|(_, _, due)| matches!(due, TimerAction::Run(_)));
    }
}

impl Timer {
    /// Starts a timer with default options.
    ///
    /// # Errors
    ///
    /// [`BuildError::Spawn`] if a thread did not start.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::Timer;
    ///
    /// let timer = Timer::new()?;
    /// let _ = timer.after(Duration::from_secs(5), || println!("5 s have passed"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new() -> Result<Self, BuildError> {
        Self::builder().build()
    }

    /// Makes the timer of an assembled engine.
    pub(crate) fn of(server: Arc<Server<TimerFrontend>>) -> Self {
        let link = || Arc::new(CachePadded::new(Arc::clone(server.engine())));
        let links = (0..server.engine().shards().stripes())
            .map(|_| link())
            .collect();
        Timer { server, links }
    }

    /// Returns a builder with default options.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::Timer;
    ///
    /// let timer = Timer::builder().workers(1).max_pending(1_000).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder() -> TimerBuilder {
        TimerBuilder::new()
    }

    /// Runs `task` once, at or after the time that `when` means: a delay from now, or one of the
    /// other forms of [`When`]. Dropping the returned value changes nothing.
    ///
    /// # Errors
    ///
    /// The error contains the task: [`Full`](ScheduleError::Full) at `max_pending`,
    /// [`Closed`](ScheduleError::Closed) after shutdown.
    ///
    /// # Blocking
    ///
    /// Takes one stripe's lock for well under a microsecond.
    ///
    /// # Complexity
    ///
    /// Constant.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Timer;
    /// # let timer = Timer::new()?;
    /// let timeout = timer.after(Duration::from_secs(5), || eprintln!("no answer in 5 s"))?;
    /// assert!(!timeout.is_expired());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("setTimeout", "delay", "defer"))]
    // Inlined, as `TimerHandle::cancel` is. Otherwise the `TimerHandle` passes through memory.
    #[inline]
    pub fn after<F>(&self, when: impl Into<When>, task: F) -> Result<TimerHandle, ScheduleError<F>>
    where
        F: FnOnce() + Send + 'static,
    {
        let engine = self.server.engine();
        let (deadline, now) = engine.resolve(when.into());
        let stripe = next_stripe_of_thread(engine);
        let task = Box::new(task);
        let action = |task: Box<F>| TimerAction::Run(task);
        match engine.arm_keyless(stripe, task, action, deadline, now) {
            Ok(id) => Ok(TimerHandle {
                link: Arc::clone(&self.links[stripe]),
                stripe,
                id,
                cancelled: AtomicBool::new(false),
            }),
            Err((Refusal::NoPermit | Refusal::NoSlot, task)) => Err(ScheduleError::Full(*task)),
            Err((Refusal::UnderLock, task)) => Err(ScheduleError::UnderLock(*task)),
            Err((Refusal::Forked, task)) => Err(ScheduleError::Forked(*task)),
            Err((_, task)) => Err(ScheduleError::Closed(*task)),
        }
    }

    /// Returns the current time of the timer's clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.server.engine().now()
    }

    /// Returns the timer's clock; see [`Handle::clock`](crate::Handle::clock).
    #[must_use]
    pub fn clock(&self) -> &Clock {
        self.server.engine().clock()
    }

    /// Returns the earliest deadline that is still to come, or `None` if there is none; see
    /// [`Handle::next_deadline`](crate::Handle::next_deadline).
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        next_deadline(self.server.engine())
    }

    /// Returns the stage of the timer's life.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::{Lifecycle, Shutdown, Timer};
    ///
    /// let stepped = Timer::builder().build_stepped(1)?;
    /// let timer = stepped.timer();
    /// assert_eq!(timer.state(), Lifecycle::Running);
    /// stepped.shutdown(Shutdown::HandBack);
    /// assert_ne!(timer.state(), Lifecycle::Running);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn state(&self) -> Lifecycle {
        self.server.engine().lifecycle()
    }

    /// Closes the timer, treats pending timers as `mode` says, and returns a report; see
    /// [`Scheduler::shutdown`](crate::Scheduler::shutdown).
    ///
    /// # Panics
    ///
    /// Panics if a test drives the timer, unless it follows a runtime. Its driver has a `shutdown`
    /// of its own.
    ///
    /// # Blocking
    ///
    /// As for [`Scheduler::shutdown`](crate::Scheduler::shutdown).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{Shutdown, Timer};
    ///
    /// let timer = Timer::new()?;
    /// let timeout = timer.after(Duration::from_secs(60), || println!("run at the end"))?;
    /// let report = timer.shutdown(Shutdown::HandBack).wait()?;
    /// for handed_back in report.handed_back {
    ///     (handed_back.task)();
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shutdown(&self, mode: Shutdown) -> Closing<TimerReport> {
        assert!(
            !self.server.engine().is_shut_down_by_driver(),
            "a test drives this timer; call `shutdown` of its driver"
        );
        Closing::begin(&self.server, mode, TimerReport::of)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        Engine::abandon_anywhere(self.server.engine());
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer")
            .field("engine", self.server.engine())
            .finish_non_exhaustive()
    }
}

/// One timer of a [`Timer`]. Dropping it changes nothing.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Timer;
/// # let timer = Timer::new()?;
/// let timeout = timer.after(Duration::from_secs(5), || eprintln!("no answer in 5 s"))?;
/// // A part of the answer came, so the 5 s start again.
/// let _ = timeout.reschedule(Duration::from_secs(5));
/// // The rest came.
/// assert!(timeout.cancel().is_cancelled());
/// assert!(!timeout.is_expired());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "without it the timer can't be cancelled; `let _ =` says that this is meant"]
pub struct TimerHandle {
    link: Link,
    stripe: usize,
    id: EntryId,
    /// Whether this value cancelled the timer. The slot may be in use again since, so the stripe
    /// may not know.
    cancelled: AtomicBool,
}

impl TimerHandle {
    /// Cancels the timer and drops its task. [`Cancel::Cancelled`] means that the task has not
    /// started and never will.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{Cancel, Timer};
    ///
    /// let timer = Timer::new()?;
    /// let timeout = timer.after(Duration::from_secs(5), || ())?;
    /// assert!(timeout.cancel().is_cancelled());
    /// assert_eq!(timeout.cancel(), Cancel::NotFound);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("clearTimeout", "abort"))]
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    #[inline]
    pub fn cancel(&self) -> Cancel {
        let mut stripe = self.link.lock(self.stripe);
        let Some((deadline, (), task)) = stripe.cancel_armed_id(self.id) else {
            return match stripe.cancel_run(self.id) {
                Cancelling::Running(_) => Cancel::Running,
                Cancelling::NotFound => Cancel::NotFound,
                Cancelling::Cancelled { .. } => {
                    unreachable!("a timer without a key has no successor")
                }
            };
        };
        // Set under the lock, and read under it in `fate`: from here on another timer may use the
        // slot. Relaxed: the lock orders it.
        self.cancelled.store(true, Ordering::Relaxed);
        stripe.unlock();
        // If the thread panics already, a panic of the task's drop would end the process; this
        // catches it.
        drop_catching(((), task));
        Cancel::Cancelled {
            deadline,
            running: false,
        }
    }

    /// Moves the timer; [`When`] says what `when` may be.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{Reschedule, Timer};
    ///
    /// let timer = Timer::new()?;
    /// let timeout = timer.after(Duration::from_secs(5), || ())?;
    /// let moved = timeout.reschedule(Duration::from_secs(60));
    /// assert!(matches!(moved, Reschedule::Moved { .. }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    // Inlined, as usual calls are.
    #[inline(always)]
    pub fn reschedule(&self, when: impl Into<When>) -> Reschedule {
        self.link.reschedule_id(self.stripe, self.id, when.into())
    }

    /// Returns whether the task has started.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.fate() == Fate::Expired
    }

    /// Returns whether the task has not started and never will: it was cancelled, handed back at
    /// shutdown, or dropped with the timer.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.fate() == Fate::Cancelled
    }

    /// Returns the time until the deadline; zero if the deadline has passed and no worker has
    /// started the task; `None` once the timer is expired or cancelled.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Timer;
    /// # let timer = Timer::new()?;
    /// let timeout = timer.after(Duration::from_secs(60), || ())?;
    /// assert!(timeout.remaining().is_some_and(|left| left < Duration::from_secs(61)));
    /// timeout.cancel();
    /// assert_eq!(timeout.remaining(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        let entry_info = self
            .link
            .shards()
            .peek(self.stripe, |stripe| stripe.get_id(self.id))?;
        (!matches!(entry_info.phase, EntryPhase::Running { .. }))
            .then(|| entry_info.deadline.since(self.link.now()))
    }

    /// Decides what happened to the timer.
    fn fate(&self) -> Fate {
        let (cancelled, entry_info, end) = self.link.shards().peek(self.stripe, |stripe| {
            // Relaxed: the lock orders it.
            let cancelled = self.cancelled.load(Ordering::Relaxed);
            (cancelled, stripe.get_id(self.id), stripe.end_of(self.id))
        });
        if cancelled {
            return Fate::Cancelled;
        }
        if is_under_lock() || self.link.is_forked() {
            // No stripe was searched: the thread panics under a lock, or the timer is in another
            // process. Nothing is known.
            return Fate::Pending;
        }
        match (entry_info.map(|entry_info| entry_info.phase), end) {
            (Some(EntryPhase::Running { .. }), _) => Fate::Expired,
            (Some(_), _) => Fate::Pending,
            (None, Some(End::Cancelled | End::HandedBack)) => Fate::Cancelled,
            // The slot was used again, so the timer was not closed. Only this value could have
            // cancelled the arming, and it did not. So the task has started.
            (None, Some(End::Ran) | None) => Fate::Expired,
        }
    }
}

/// What happened to a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Pending,
    Expired,
    Cancelled,
}

impl fmt::Debug for TimerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerHandle")
            .field("fate", &self.fate())
            .field("remaining", &self.remaining())
            .finish()
    }
}

/// The result of the shutdown of a [`Timer`].
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon::{Shutdown, Timer};
///
/// let timer = Timer::new()?;
/// let timeout = timer.after(Duration::from_secs(60), || println!("too late"))?;
/// let report = timer.shutdown(Shutdown::HandBack).wait()?;
/// assert_eq!((report.handed_back.len(), report.still_running), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct TimerReport {
    /// The timers that had not started, in no particular order. Sleeps are not included: their
    /// tasks are woken before the shutdown waits for running tasks. The counters count sleeps as
    /// handed back.
    pub handed_back: Vec<TimerHandedBack>,
    /// The number of threads that were still in user code when the limit had passed: in a task, or
    /// in code that follows one (a waker). If there was no such thread, the number of threads in a
    /// foreign executor that was given a batch. These threads end when that code ends.
    pub still_running: usize,
    /// Whether another call had begun the shutdown. That call gets the report.
    pub already_closed: bool,
}

/// A timer that did not run and was not cancelled.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon::{Shutdown, Timer};
///
/// let timer = Timer::new()?;
/// let timeout = timer.after(Duration::from_secs(60), || println!("run at the end"))?;
/// let mut report = timer.shutdown(Shutdown::HandBack).wait()?;
/// let handed_back = report.handed_back.pop().expect("the timer had not started");
/// (handed_back.task)();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
pub struct TimerHandedBack {
    /// When the timer was due.
    pub deadline: Time,
    /// The task.
    pub task: Box<dyn FnOnce() + Send>,
}

impl Default for TimerReport {
    /// Makes the report of every call except the first.
    fn default() -> Self {
        TimerReport {
            handed_back: Vec::new(),
            still_running: 0,
            already_closed: true,
        }
    }
}

impl TimerReport {
    pub(crate) fn of(ending: Option<Ending<(), TimerAction>>) -> Self {
        let Some(ending) = ending else {
            return TimerReport::default();
        };
        TimerReport {
            handed_back: ending
                .taken
                .into_iter()
                .filter_map(|(_, deadline, due)| match due {
                    TimerAction::Run(task) => Some(TimerHandedBack {
                        deadline,
                        task: task.into_closure(),
                    }),
                    // `keep_back` has removed these.
                    TimerAction::Wake(_) => None,
                })
                .collect(),
            still_running: ending.still_running,
            already_closed: false,
        }
    }
}

impl fmt::Debug for TimerHandedBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerHandedBack")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
