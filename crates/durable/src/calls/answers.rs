//! The answers to calls, in the time of the system.

use std::time::SystemTime;

use super::errors::CallError;
use crate::store::Answer;

/// The answer to a [`schedule`](crate::Durable::schedule).
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon_durable::{Durable, Memory};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let timers = Durable::builder(Memory::new()).start()?;
/// # let minute = Duration::from_secs(60);
/// timers.schedule("pay-by", "order:7", 15 * minute, &7).wait()?;
/// let answer = timers.schedule("pay-by", "order:7", 30 * minute, &7).wait()?;
/// assert!(answer.replaced.is_some_and(|before| before < answer.due));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ScheduleAnswer {
    /// When the timer is due, by the store's clock.
    pub due: SystemTime,
    /// When the timer that it replaced was due. That one will not run.
    pub replaced: Option<SystemTime>,
    /// Whether a run of the same key is under way, or was when its process died. The new timer
    /// starts after it, and that run is not repeated.
    pub running: bool,
}

/// The answer to a [`schedule_if_absent`](crate::Durable::schedule_if_absent).
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon_durable::{Durable, Memory, IfAbsentAnswer};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let timers = Durable::builder(Memory::new()).start()?;
/// # let minute = Duration::from_secs(60);
/// assert!(timers.schedule_if_absent("welcome", "anna", minute, &()).wait()?.is_scheduled());
/// match timers.schedule_if_absent("welcome", "anna", minute, &()).wait()? {
///     IfAbsentAnswer::Exists { running, .. } => assert!(!running),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum IfAbsentAnswer {
    /// There was no timer with the key, and now there is.
    Scheduled(ScheduleAnswer),
    /// There is one, which was left as it is.
    #[non_exhaustive]
    Exists {
        /// When it is due, or was due if it runs. If another timer follows the run, when that one is
        /// due.
        due: SystemTime,
        /// Whether it runs.
        running: bool,
    },
}

impl IfAbsentAnswer {
    /// Whether this call has scheduled the timer.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// # let minute = Duration::from_secs(60);
    /// let once = || timers.schedule_if_absent("welcome", "anna", minute, &()).wait();
    /// assert!(once()?.is_scheduled());
    /// assert!(!once()?.is_scheduled());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_scheduled(&self) -> bool {
        matches!(self, IfAbsentAnswer::Scheduled(_))
    }
}

/// The answer to a [`reschedule`](crate::Durable::reschedule).
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon_durable::{Durable, Memory, RescheduleAnswer};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let timers = Durable::builder(Memory::new()).start()?;
/// # let minute = Duration::from_secs(60);
/// timers.schedule("pay-by", "order:7", 15 * minute, &7).wait()?;
/// match timers.reschedule("pay-by", "order:7", 30 * minute).wait()? {
///     RescheduleAnswer::Moved { from, to, .. } => assert!(from < to),
///     RescheduleAnswer::Running { .. } => println!("too late: its handler runs"),
///     other => println!("there is no timer: {other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RescheduleAnswer {
    /// The timer runs at the new time only.
    #[non_exhaustive]
    Moved {
        /// When it was due.
        from: SystemTime,
        /// When it is due now.
        to: SystemTime,
        /// Whether it waits for the end of a run of the same key.
        running: bool,
    },
    /// The timer runs, and nothing was changed.
    #[non_exhaustive]
    Running {
        /// The number of the run, from 1.
        attempt: u32,
        /// Since when a node has been running it, by the store's clock.
        since: SystemTime,
    },
    /// There is no such timer.
    NotFound,
}

impl RescheduleAnswer {
    /// Whether the timer was moved.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// # let minute = Duration::from_secs(60);
    /// timers.schedule("pay-by", "order:7", 15 * minute, &7).wait()?;
    /// assert!(timers.reschedule("pay-by", "order:7", 30 * minute).wait()?.is_moved());
    /// assert!(!timers.reschedule("pay-by", "order:8", 30 * minute).wait()?.is_moved());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_moved(&self) -> bool {
        matches!(self, RescheduleAnswer::Moved { .. })
    }
}

/// The answer to a [`cancel`](crate::Durable::cancel).
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon_durable::{Durable, Memory, CancelAnswer};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let timers = Durable::builder(Memory::new()).start()?;
/// # let minute = Duration::from_secs(60);
/// timers.schedule("pay-by", "order:7", 15 * minute, &7).wait()?;
/// match timers.cancel("pay-by", "order:7").wait()? {
///     CancelAnswer::Cancelled { .. } => println!("it never starts"),
///     CancelAnswer::Running { attempt, .. } => println!("run {attempt} is under way, no other follows"),
///     other => println!("there is no timer: {other:?}"),
/// }
/// assert_eq!(timers.cancel("pay-by", "order:7").wait()?, CancelAnswer::NotFound);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CancelAnswer {
    /// The timer has not started with this due time, and never will.
    #[non_exhaustive]
    Cancelled {
        /// When it was due.
        due: SystemTime,
    },
    /// The timer runs. No other run follows, whatever becomes of this one.
    #[non_exhaustive]
    Running {
        /// The number of the run, from 1.
        attempt: u32,
        /// Since when a node has been running it, by the store's clock.
        since: SystemTime,
    },
    /// There is no such timer.
    NotFound,
}

impl CancelAnswer {
    /// Whether the timer was cancelled before it started.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// # let minute = Duration::from_secs(60);
    /// timers.schedule("pay-by", "order:7", 15 * minute, &7).wait()?;
    /// assert!(timers.cancel("pay-by", "order:7").wait()?.is_cancelled());
    /// assert!(!timers.cancel("pay-by", "order:7").wait()?.is_cancelled()); // nothing is left
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self, CancelAnswer::Cancelled { .. })
    }
}

/// An answer of a store in the form of the call that it belongs to.
pub(crate) trait FromAnswer: Sized {
    fn from_answer(answer: Answer) -> Option<Self>;

    /// Takes an answer of a store. One that does not belong to the call is an error of the store.
    fn take(answer: Answer) -> Result<Self, CallError> {
        Self::from_answer(answer).ok_or_else(|| {
            CallError::Unknown(format!(
                "the store gave the answer of another call: {answer:?}"
            ))
        })
    }
}

impl FromAnswer for ScheduleAnswer {
    fn from_answer(answer: Answer) -> Option<Self> {
        match answer {
            Answer::Scheduled {
                due,
                replaced,
                running,
                ..
            } => Some(ScheduleAnswer {
                due: due.into(),
                replaced: replaced.map(Into::into),
                running,
            }),
            _ => None,
        }
    }
}

impl FromAnswer for IfAbsentAnswer {
    fn from_answer(answer: Answer) -> Option<Self> {
        match answer {
            Answer::Exists { due, running } => Some(IfAbsentAnswer::Exists {
                due: due.into(),
                running,
            }),
            answer => ScheduleAnswer::from_answer(answer).map(IfAbsentAnswer::Scheduled),
        }
    }
}

impl FromAnswer for RescheduleAnswer {
    fn from_answer(answer: Answer) -> Option<Self> {
        match answer {
            Answer::Moved {
                from, to, running, ..
            } => Some(RescheduleAnswer::Moved {
                from: from.into(),
                to: to.into(),
                running,
            }),
            Answer::Running { attempt, since } => Some(RescheduleAnswer::Running {
                attempt,
                since: since.into(),
            }),
            Answer::NotFound => Some(RescheduleAnswer::NotFound),
            _ => None,
        }
    }
}

impl FromAnswer for CancelAnswer {
    fn from_answer(answer: Answer) -> Option<Self> {
        match answer {
            Answer::Cancelled { due } => Some(CancelAnswer::Cancelled { due: due.into() }),
            Answer::Running { attempt, since } => Some(CancelAnswer::Running {
                attempt,
                since: since.into(),
            }),
            Answer::NotFound => Some(CancelAnswer::NotFound),
            _ => None,
        }
    }
}
