//! The keyless face: one-shots with a handle, the `newTimeout` of Netty's `HashedWheelTimer`. No
//! index, no hash: a thread's timers go into one stripe. `sleep.rs` has the same for tasks that
//! await.

mod sleep;

pub use sleep::{Sleep, SleepError, TimeoutError};

use std::fmt;
use std::time::Duration;

use crate::clock::Clock;
use crate::config::Config;
use crate::engine::{Ending, Engine, Face, Fire, Lifecycle, Parts, Place, Server, Shutdown};
use crate::error::{BuildError, ScheduleError};
use crate::job::drop_pair;
use crate::options::engine_options;
use crate::scheduler::{Cancel, ReportTicket, Reschedule, Stats, collect_stats};
use crate::shard::Taken;
use crate::shard::{Cancelling, End, EntryId, Refusal, SightPhase, is_under_a_lock};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, CachePadded, thread_local, unique_number};
use crate::tick::Time;

/// Timers without keys, each with a [`Timeout`] to cancel or move it by.
///
/// The same engine as [`Scheduler`](crate::Scheduler), with the same promises. Without a key there
/// is nothing to hash and nothing to look up: starting and stopping a timer is cheaper, and finding
/// one again is the caller's business.
///
/// Dropping the `Timer` closes it without waiting, like dropping a scheduler.
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
pub struct Timer {
    server: Arc<Server<Keyless>>,
    /// One per stripe: a timeout keeps the engine alive, and threads that start and stop timers on
    /// different stripes would pass the one reference count to and fro.
    links: Box<[Link]>,
}

/// Keeps the engine alive; with a count of its own, on a line of its own.
type Link = Arc<CachePadded<Arc<Engine<Keyless>>>>;

type BoxedTask = Box<dyn FnOnce() + Send>;

/// What is done when a timer is due.
enum Due {
    Run(BoxedTask),
    Wake(sleep::WakeUp),
}

#[derive(Debug)]
struct Keyless;

impl Face for Keyless {
    type Key = ();
    type Payload = Due;
    type Access = ();

    fn access(_: &Arc<Engine<Self>>) {}

    fn run((): &(), _: &Fire<'_, ()>, due: Due) {
        match due {
            Due::Run(task) => task(),
            Due::Wake(wake_up) => wake_up.wake(),
        }
    }

    fn panicked((): &(), _: &Fire<'_, ()>, _: &str) {}

    /// Sleepers: the drop of a [`sleep::WakeUp`] wakes its task, and contains the waker's panic.
    fn keep_back(&self, taken: &mut Vec<Taken<(), Due>>) {
        taken.retain(|(_, _, due)| matches!(due, Due::Run(_)));
    }
}

thread_local! {
    /// Spreads threads over stripes.
    static THREAD_NUMBER: u32 = unique_number();
}

fn stripe_of_thread(engine: &Engine<Keyless>) -> usize {
    let number = THREAD_NUMBER.with(|number| *number);
    number as usize % engine.shards().stripes()
}

/// Options of a [`Timer`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::Timer;
///
/// # fn main() -> Result<(), tourbillon::BuildError> {
/// let timer = Timer::builder().tick(Duration::from_millis(10)).workers(1).build()?;
/// # drop(timer);
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct TimerBuilder {
    config: Config,
    place: Place,
}

impl TimerBuilder {
    engine_options!();

    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// [`BuildError`] names the value that can't be, or why a thread did not start.
    pub fn build(self) -> Result<Timer, BuildError> {
        let clock = self.config.clock.clone().unwrap_or_else(Clock::system);
        let (server, seats) = Engine::assemble(
            Parts {
                config: self.config.validate(num_cpus::get())?,
                clock,
                place: self.place,
                seed: None,
                stepped: false,
            },
            Keyless,
        );
        Engine::start(&server, seats).map_err(BuildError::Spawn)?;
        let link = || Arc::new(CachePadded::new(Arc::clone(server.engine())));
        let links = (0..server.engine().shards().stripes())
            .map(|_| link())
            .collect();
        Ok(Timer { server, links })
    }
}

impl fmt::Debug for TimerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerBuilder")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Timer {
    /// A timer with default options.
    ///
    /// # Errors
    ///
    /// [`BuildError::Spawn`] if a thread did not start.
    pub fn new() -> Result<Self, BuildError> {
        Self::builder().build()
    }

    /// Options with their defaults.
    pub fn builder() -> TimerBuilder {
        TimerBuilder {
            config: Config::new(),
            place: Place::Pool,
        }
    }

    /// Runs `task` once, at or after `delay` from now. Dropping the answer changes nothing.
    ///
    /// # Errors
    ///
    /// The task comes back in the error: [`Full`](ScheduleError::Full) at `max_pending`,
    /// [`Closed`](ScheduleError::Closed) after shutdown.
    ///
    /// # Blocking
    ///
    /// One stripe's lock, for well under a microsecond.
    ///
    /// # Complexity
    ///
    /// Constant.
    pub fn after<F>(&self, delay: Duration, task: F) -> Result<Timeout, ScheduleError<F>>
    where
        F: FnOnce() + Send + 'static,
    {
        let engine = self.server.engine();
        let now = engine.now();
        let deadline = now + delay;
        let stripe = stripe_of_thread(engine);
        let mut given = Some(Box::new(task));
        let answer = engine.arm(
            stripe,
            &mut given,
            |stripe, _| stripe.admit_keyless(),
            |stripe, admission, task| {
                stripe.arm_keyless(admission, (), Due::Run(task), deadline, now)
            },
        );
        match (answer, given) {
            (Ok(id), _) => Ok(Timeout {
                link: Arc::clone(&self.links[stripe]),
                stripe,
                id,
                cancelled: AtomicBool::new(false),
            }),
            (Err(Refusal::NoPermit | Refusal::NoSlot), Some(task)) => {
                Err(ScheduleError::Full(*task))
            }
            (Err(Refusal::UnderLock), Some(task)) => Err(ScheduleError::UnderLock(*task)),
            (Err(_), Some(task)) => Err(ScheduleError::Closed(*task)),
            (Err(_), None) => unreachable!("what is refused is not taken"),
        }
    }

    /// The present moment of the timer's clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.server.engine().now()
    }

    /// How far the timer's life has come.
    #[must_use]
    pub fn state(&self) -> Lifecycle {
        self.server.engine().closing().state()
    }

    /// Counters, queue depth and lateness.
    #[must_use]
    pub fn stats(&self) -> Stats {
        collect_stats(self.server.engine())
    }

    /// Closes the timer, deals with what is pending as `mode` says, and reports; see
    /// [`Scheduler::shutdown`](crate::Scheduler::shutdown).
    ///
    /// # Errors
    ///
    /// From inside one of its own tasks: the ticket yields the report later.
    ///
    /// # Blocking
    ///
    /// As [`Scheduler::shutdown`](crate::Scheduler::shutdown).
    pub fn shutdown(&self, mode: Shutdown) -> Result<TimerReport, ReportTicket<TimerReport>> {
        Engine::shut_down(&self.server, mode, TimerReport::of).map_err(ReportTicket::new)
    }

    /// Like [`shutdown`](Self::shutdown), without waiting for it; see
    /// [`Scheduler::begin_shutdown`](crate::Scheduler::begin_shutdown).
    pub fn begin_shutdown(&self, mode: Shutdown) -> ReportTicket<TimerReport> {
        ReportTicket::new(Engine::begin_shutdown(&self.server, mode, TimerReport::of))
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
#[must_use = "without it the timer can't be cancelled; `let _ =` says that this is meant"]
pub struct Timeout {
    link: Link,
    stripe: usize,
    id: EntryId,
    /// Cancelled by way of this value: the place in the stripe may be in use again by now.
    cancelled: AtomicBool,
}

impl Timeout {
    /// Cancels the timer and drops its task. [`Cancel::Cancelled`] means that the task has not
    /// started and never will.
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn cancel(&self) -> Cancel {
        // Dropped outside the lock.
        let mut task = None;
        let answer = self.link.with(self.stripe, |stripe| {
            match stripe.cancel_id(self.id) {
                Cancelling::Cancelled {
                    deadline, dropped, ..
                } => {
                    // Under the lock, like the look in `fate`: from here on the place can be used
                    // again. Relaxed: the lock orders it.
                    self.cancelled.store(true, Ordering::Relaxed);
                    task = dropped.1;
                    Cancel::Cancelled {
                        deadline,
                        running: false,
                    }
                }
                Cancelling::Running(_) => Cancel::Running,
                Cancelling::NotFound => Cancel::NotFound,
            }
        });
        // Also while the thread panics, when another panic would end the process.
        drop_pair(((), task));
        answer
    }

    /// Moves the timer to `delay` from now.
    pub fn reschedule(&self, delay: Duration) -> Reschedule {
        let now = self.link.now();
        self.link
            .with(self.stripe, |stripe| {
                stripe.reschedule_id(self.id, now + delay, now, false)
            })
            .into()
    }

    /// Whether the task has started.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.fate() == Fate::Expired
    }

    /// Whether the task never started and never will: it was cancelled, handed back at shutdown,
    /// or dropped with the timer.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.fate() == Fate::Cancelled
    }

    /// How long until the deadline, zero if it has passed and no worker has started the task;
    /// `None` once it is expired or cancelled.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        let sight = self
            .link
            .shards()
            .peek(self.stripe, |stripe| stripe.get_id(self.id))?;
        (!matches!(sight.phase, SightPhase::Running { .. }))
            .then(|| sight.deadline.since(self.link.now()))
    }

    fn fate(&self) -> Fate {
        let (cancelled, sight, end) = self.link.shards().peek(self.stripe, |stripe| {
            // Relaxed: the lock orders it.
            let cancelled = self.cancelled.load(Ordering::Relaxed);
            (cancelled, stripe.get_id(self.id), stripe.end_of(self.id))
        });
        if cancelled {
            return Fate::Cancelled;
        }
        if is_under_a_lock() {
            // While the thread panics: it was not looked for, and nothing is known.
            return Fate::Pending;
        }
        match (sight.map(|sight| sight.phase), end) {
            (Some(SightPhase::Running { .. }), _) => Fate::Expired,
            (Some(_), _) => Fate::Pending,
            (None, Some(End::Cancelled | End::HandedBack)) => Fate::Cancelled,
            // The place is in use again, so nothing was closed; and it was not cancelled by this
            // value, the only one that could.
            (None, Some(End::Ran) | None) => Fate::Expired,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Pending,
    Expired,
    Cancelled,
}

impl fmt::Debug for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeout")
            .field("fate", &self.fate())
            .field("remaining", &self.remaining())
            .finish()
    }
}

/// What the shutdown of a [`Timer`] left.
#[derive(Debug)]
#[non_exhaustive]
pub struct TimerReport {
    /// The timers that had not started, in no order. Sleeps are not among them: their tasks are
    /// woken before the shutdown waits for running tasks. The counters count sleeps as handed back.
    pub handed_back: Vec<TimerHandedBack>,
    /// How many threads were still in user code when the limit had passed: in a task, or in what
    /// follows one (a waker). If there was no such thread, the number of threads in a foreign
    /// executor that was given a batch. These threads end with that code.
    pub still_running: usize,
    /// Another call had begun the shutdown; it has the report.
    pub already_closed: bool,
}

/// A timer that did not run and was not cancelled.
#[non_exhaustive]
pub struct TimerHandedBack {
    /// When it was due.
    pub deadline: Time,
    /// Its task.
    pub task: Box<dyn FnOnce() + Send>,
}

impl Default for TimerReport {
    /// The report of every call but the first.
    fn default() -> Self {
        TimerReport {
            handed_back: Vec::new(),
            still_running: 0,
            already_closed: true,
        }
    }
}

impl TimerReport {
    fn of(ending: Option<Ending<(), Due>>) -> Self {
        let Some(ending) = ending else {
            return TimerReport::default();
        };
        TimerReport {
            handed_back: ending
                .taken
                .into_iter()
                .filter_map(|(_, deadline, due)| match due {
                    Due::Run(task) => Some(TimerHandedBack { deadline, task }),
                    // `keep_back` has taken these out.
                    Due::Wake(_) => None,
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
