//! Errors. Every refusal of a task contains the task.

use std::fmt;
use std::time::Duration;

/// The reason why a scheduler can't be built, with the offending value and the valid range.
///
/// # Examples
///
/// ```
/// use tourbillon::{BuildError, Scheduler};
///
/// let error = Scheduler::<u64>::builder().shards(0).build().unwrap_err();
/// assert!(matches!(error, BuildError::Shards(0)));
/// assert_eq!(error.to_string(), "0 shards: choose between 1 and 1,024");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The tick is shorter than 1 us or longer than 1 min.
    Tick(Duration),
    /// The number of shards is not between 1 and 1,024.
    Shards(usize),
    /// The number of stripes is not a power of two between the number of shards and 65,536.
    #[non_exhaustive]
    Stripes {
        /// The requested number of stripes.
        stripes: usize,
        /// The number of shards.
        shards: usize,
    },
    /// The number of workers is not between 1 and 1,024.
    Workers(usize),
    /// The greatest number of workers is smaller than the initial number, or above 1,024.
    #[non_exhaustive]
    MaxRunning {
        /// The requested greatest number of workers.
        max_running: usize,
        /// The initial number of workers.
        workers: usize,
    },
    /// The bound on pending timers is zero, so that no timer could be scheduled.
    MaxPending,
    /// The bound on the entries of a group is zero.
    MaxPerGroup,
    /// The pace is zero expirations per second, so that no timer could expire.
    Pace,
    /// The greatest size of a batch is zero.
    Batch,
    /// The greatest number of futures at a time is zero.
    Concurrency,
    /// The number of ticker threads of a runtime is not between 1 and 1,024.
    Tickers(usize),
    /// The greatest number of workers of a runtime is smaller than the number that stays, or above
    /// 1,024.
    #[non_exhaustive]
    MaxWorkers {
        /// The requested greatest number of workers.
        max_workers: usize,
        /// The number of workers that stay.
        workers: usize,
    },
    /// A name for threads contains a zero byte.
    ThreadName(String),
    /// A number of workers was set together with a runtime, which has its own workers.
    WorkersOfRuntime,
    /// Inline tasks were chosen together with a runtime. They need tickers of their own.
    NotOnRuntime,
    /// The runtime was shut down.
    RuntimeEnded,
    /// The runtime of the process runs already.
    RuntimeRuns,
    /// This process is a forked copy of the one that built the runtime.
    Forked,
    /// A thread could not be started. Threads that had been started were stopped again.
    Spawn(std::io::Error),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::Tick(tick) => {
                write!(f, "a tick of {tick:?}: choose one between 1 us and 1 min")
            }
            BuildError::Shards(shards) => {
                write!(f, "{shards} shards: choose between 1 and 1,024")
            }
            BuildError::Stripes { stripes, shards } => write!(
                f,
                "{stripes} stripes for {shards} shards: choose a power of two between the number \
                 of shards and 65,536"
            ),
            BuildError::Workers(workers) => {
                write!(f, "{workers} workers: choose between 1 and 1,024")
            }
            BuildError::MaxRunning {
                max_running,
                workers,
            } => write!(
                f,
                "max_running of {max_running} with {workers} workers: choose between {workers} and 1,024"
            ),
            BuildError::MaxPending => {
                f.write_str("at most 0 pending timers: choose at least 1, or leave it unbounded")
            }
            BuildError::MaxPerGroup => f.write_str(
                "at most 0 entries in a group: choose at least 1, or leave it unbounded",
            ),
            BuildError::Pace => {
                f.write_str("a pace of 0 expirations per second: choose at least 1, or set none")
            }
            BuildError::Batch => f.write_str("batches of at most 0 entries: choose at least 1"),
            BuildError::Concurrency => {
                f.write_str("at most 0 futures at a time: choose at least 1")
            }
            BuildError::Tickers(tickers) => {
                write!(f, "{tickers} tickers: choose between 1 and 1,024")
            }
            BuildError::MaxWorkers {
                max_workers,
                workers,
            } => write!(
                f,
                "max_workers of {max_workers} with {workers} workers: choose between {workers} and 1,024"
            ),
            BuildError::ThreadName(name) => {
                write!(
                    f,
                    "a thread can't be named {name:?}: leave the zero byte out"
                )
            }
            BuildError::WorkersOfRuntime => f.write_str(
                "the workers are those of the runtime: set their number when you build that, or \
                 choose `own_threads`",
            ),
            BuildError::NotOnRuntime => f.write_str(
                "`inline` runs tasks on tickers of its own: leave out `runtime` or `inline`",
            ),
            BuildError::RuntimeEnded => f.write_str("the runtime was shut down; build another one"),
            BuildError::RuntimeRuns => f.write_str(
                "the runtime of the process runs already: set it up before anything is built",
            ),
            BuildError::Forked => f.write_str(
                "the process that built the runtime has forked; build another one in this copy",
            ),
            BuildError::Spawn(error) => write!(f, "a thread could not be started: {error}"),
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // The text has that of the inner error, so the chain goes on after it.
            BuildError::Spawn(error) => error.source(),
            _ => None,
        }
    }
}

/// Message of all errors with a variant `UnderLock`.
pub(crate) const UNDER_LOCK: &str = "the thread panics while it holds a lock of this crate; \
                                     try again when the panic has released it";

/// Message of all errors with a variant `Forked`.
pub(crate) const FORKED: &str = "it was made before this process was forked, and belongs to the \
                                 original process: make a new one after the fork";

/// The reason why a task was not accepted. Nothing was changed, and the error contains the task.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{ScheduleError, Scheduler};
///
/// let scheduler = Scheduler::<u64>::builder().max_pending(1).build()?;
/// let timers = scheduler.handle();
/// timers.schedule(7, Duration::from_secs(5), |_| ())?;
/// let error = timers.schedule(8, Duration::from_secs(5), |_| ()).unwrap_err();
/// assert!(matches!(error, ScheduleError::Full(_)) && error.is_transient());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
pub enum ScheduleError<F> {
    /// `max_pending` timers are pending, or repeat and run just now. The error passes when a timer
    /// that runs once starts, or any timer is cancelled or ends.
    ///
    /// Also returned when a stripe holds four billion entries, its limit without a bound.
    Full(F),
    /// The scheduler is closing or closed. This is permanent.
    Closed(F),
    /// Somebody waits for the end of a run of this key, by `cancel_and_wait`. The error passes when
    /// the run has ended, or when the wait ends otherwise.
    Closing(F),
    /// The key is pending already, or repeats. Only returned by `schedule_if_absent`.
    Occupied(F),
    /// The period is zero, which no timer can keep. Only returned by `repeat`, and permanent.
    ZeroPeriod(F),
    /// The schedule function or the calendar returned no first time, so nothing was armed. Only
    /// returned by `repeat`.
    NoRound(F),
    /// The period has no such option: [`missed`](crate::Period::missed) and
    /// [`grace`](crate::Period::grace) are for a fixed rate or a calendar,
    /// [`random_phase`](crate::Period::random_phase) is for a fixed rate or a fixed delay, and
    /// [`jitter`](crate::Period::jitter) is not for a calendar. Only returned by `repeat`, and
    /// permanent.
    PeriodOption(F),
    /// The calling thread is panicking and holds a lock of this crate. This happens only in panic
    /// hooks and in drops; see [panic hooks](crate#panic-hooks). The error passes when the panic
    /// has left the call that took the lock.
    UnderLock(F),
    /// This process is a forked copy of the one that built the scheduler, and has none of its
    /// threads; see [forks](crate::guide::shutdown#forks). This is permanent.
    Forked(F),
}

impl<F> ScheduleError<F> {
    /// Returns the refused task.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<u64>::builder().max_pending(1).build()?;
    /// # let timers = scheduler.handle();
    /// timers.schedule(7, Duration::from_secs(5), |_| ())?;
    /// let refused = timers.schedule(8, Duration::from_secs(5), |_| println!("8 timed out"));
    /// let task = refused.unwrap_err().into_task();
    /// timers.cancel(&7);
    /// timers.schedule(8, Duration::from_secs(5), task)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_task(self) -> F {
        match self {
            ScheduleError::Full(task)
            | ScheduleError::Closed(task)
            | ScheduleError::Closing(task)
            | ScheduleError::Occupied(task)
            | ScheduleError::ZeroPeriod(task)
            | ScheduleError::NoRound(task)
            | ScheduleError::PeriodOption(task)
            | ScheduleError::UnderLock(task)
            | ScheduleError::Forked(task) => task,
        }
    }

    /// Drops the refused task, and keeps the reason as an error.
    ///
    /// The reason can be passed on by `?` as `anyhow::Error` or `Box<dyn Error + Send + Sync>`.
    /// This error itself can't be passed on if the task is not `Sync`, which many closures are not.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::error::Error;
    /// use std::time::Duration;
    /// use tourbillon::{Handle, ScheduleError};
    ///
    /// fn later(timers: &Handle<u64>, f: Box<dyn FnOnce() + Send>) -> Result<(), Box<dyn Error + Send + Sync>> {
    ///     let armed = timers.schedule(7, Duration::from_secs(5), move |_| f());
    ///     armed.map_err(ScheduleError::into_reason)?;
    ///     Ok(())
    /// }
    /// # let scheduler = tourbillon::Scheduler::<u64>::new()?;
    /// # let timers = scheduler.handle();
    /// # drop(scheduler);
    /// let refused = later(&timers, Box::new(|| ())).unwrap_err();
    /// assert_eq!(refused.to_string(), "the scheduler is closed");
    /// # Ok::<(), Box<dyn Error>>(())
    /// ```
    #[must_use]
    pub fn into_reason(self) -> ScheduleError<()> {
        self.with_task(())
    }

    /// Returns the same error about `task`, and drops the refused one.
    pub(crate) fn with_task<G>(self, task: G) -> ScheduleError<G> {
        match self {
            ScheduleError::Full(_) => ScheduleError::Full(task),
            ScheduleError::Closed(_) => ScheduleError::Closed(task),
            ScheduleError::Closing(_) => ScheduleError::Closing(task),
            ScheduleError::Occupied(_) => ScheduleError::Occupied(task),
            ScheduleError::ZeroPeriod(_) => ScheduleError::ZeroPeriod(task),
            ScheduleError::NoRound(_) => ScheduleError::NoRound(task),
            ScheduleError::PeriodOption(_) => ScheduleError::PeriodOption(task),
            ScheduleError::UnderLock(_) => ScheduleError::UnderLock(task),
            ScheduleError::Forked(_) => ScheduleError::Forked(task),
        }
    }

    /// Returns whether trying again later can succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            ScheduleError::Full(_)
            | ScheduleError::Closing(_)
            | ScheduleError::Occupied(_)
            | ScheduleError::UnderLock(_) => true,
            ScheduleError::Closed(_)
            | ScheduleError::ZeroPeriod(_)
            | ScheduleError::NoRound(_)
            | ScheduleError::PeriodOption(_)
            | ScheduleError::Forked(_) => false,
        }
    }

    /// Returns the name of the variant.
    fn what(&self) -> &'static str {
        match self {
            ScheduleError::Full(_) => "Full",
            ScheduleError::Closed(_) => "Closed",
            ScheduleError::Closing(_) => "Closing",
            ScheduleError::Occupied(_) => "Occupied",
            ScheduleError::ZeroPeriod(_) => "ZeroPeriod",
            ScheduleError::NoRound(_) => "NoRound",
            ScheduleError::PeriodOption(_) => "PeriodOption",
            ScheduleError::UnderLock(_) => "UnderLock",
            ScheduleError::Forked(_) => "Forked",
        }
    }
}

impl<F> fmt::Debug for ScheduleError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(self.what()).finish_non_exhaustive()
    }
}

impl<F> fmt::Display for ScheduleError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ScheduleError::Full(_) => {
                "max_pending timers are pending already; try again when one has started or ended"
            }
            ScheduleError::Closed(_) => "the scheduler is closed",
            ScheduleError::Closing(_) => {
                "a cancel_and_wait of this key is in progress; try again when it has returned"
            }
            ScheduleError::Occupied(_) => "the key is pending already; `schedule` would replace it",
            ScheduleError::ZeroPeriod(_) => "the period is zero; choose a longer one",
            ScheduleError::NoRound(_) => {
                "the schedule function or calendar returned no first time: let it return a later one"
            }
            ScheduleError::PeriodOption(_) => {
                "the period has no such option: leave `missed` and `grace` out unless it is a \
                 `fixed_rate` or a `calendar`, `random_phase` if it is a `schedule` or a \
                 `calendar`, and `jitter` if it is a `calendar`"
            }
            ScheduleError::UnderLock(_) => UNDER_LOCK,
            ScheduleError::Forked(_) => FORKED,
        })
    }
}

impl<F> std::error::Error for ScheduleError<F> {}

/// The reason why `cancel_and_wait` did not wait for the end of the run. The cancellation itself
/// was done nevertheless: a pending timer is cancelled, and the run in progress is marked as
/// cancelled.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon::{Scheduler, WaitError};
///
/// # let scheduler = Scheduler::<&str>::new()?;
/// # let timers = scheduler.handle();
/// timers.schedule("a", Duration::ZERO, |firing| {
///     // This would wait for itself.
///     let refused = firing.handle().cancel_and_wait("a").wait();
///     assert_eq!(refused, Err(WaitError::WouldDeadlock));
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitError {
    /// The wait was made inside a task of the same scheduler, without a limit: it could wait for
    /// itself. A future returns this only for its own run, where that is known.
    ///
    /// Also returned while the thread panics under a lock of this crate ([panic
    /// hooks](crate#panic-hooks)). Then nothing was cancelled.
    WouldDeadlock,
    /// The run had not ended when the limit had passed.
    TimedOut,
    /// This process is a forked copy of the one that built the scheduler. Nothing was cancelled,
    /// and nothing runs here; see [forks](crate::guide::shutdown#forks).
    Forked,
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WaitError::WouldDeadlock => {
                "a task that waits for a run of its own scheduler needs a limit"
            }
            WaitError::TimedOut => "the run had not ended when the limit had passed",
            WaitError::Forked => FORKED,
        })
    }
}

impl std::error::Error for WaitError {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_gives_the_task_back() {
        for error in [
            ScheduleError::Full(7),
            ScheduleError::Closed(7),
            ScheduleError::Closing(7),
            ScheduleError::Occupied(7),
            ScheduleError::ZeroPeriod(7),
            ScheduleError::NoRound(7),
            ScheduleError::UnderLock(7),
            ScheduleError::Forked(7),
        ] {
            let for_good = matches!(
                error,
                ScheduleError::Closed(_)
                    | ScheduleError::ZeroPeriod(_)
                    | ScheduleError::NoRound(_)
                    | ScheduleError::Forked(_)
            );
            assert_eq!(error.is_transient(), !for_good);
            assert!(format!("{error:?}").contains('('));
            assert!(!error.to_string().is_empty());
            assert_eq!(error.into_task(), 7);
        }
    }
}
