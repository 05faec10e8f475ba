//! The results of calls. Every result is final: it says what has happened, not what may happen.

use std::time::Duration;

use crate::error::ScheduleError;
use crate::shard::{EntryId, EntryInfo, EntryPhase, Moving, Refusal};
use crate::tick::Time;

/// The name of one arming of one scheduler: 16 bytes, `Copy`, opaque.
///
/// The id of an arming that has ended answers `NotFound` everywhere, even when its slot is in use
/// again. So does the id of another scheduler. Moving a timer keeps its id. Replacing it gives a
/// new id, and each round of a repeating timer has its own.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Scheduler;
/// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// # let timers = scheduler.handle();
/// let first = timers.schedule("request 7", Duration::from_secs(5), |_| ())?;
/// let second = timers.schedule("request 7", Duration::from_secs(5), |_| ())?;
/// assert_ne!(first.id, second.id);
/// assert!(!timers.by_id(first.id).cancel().is_cancelled());
/// assert!(timers.by_id(second.id).cancel().is_cancelled());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TimerId {
    pub(crate) tag: u32,
    pub(crate) stripe: u32,
    pub(crate) entry: EntryId,
}

const _: () = assert!(size_of::<TimerId>() == 16);

/// A text of 32 hexadecimal digits.
#[cfg(feature = "serde")]
impl serde::Serialize for TimerId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let TimerId { tag, stripe, entry } = self;
        let EntryId { slot, generation } = entry;
        serializer.collect_str(&format_args!(
            "{tag:08x}{stripe:08x}{slot:08x}{generation:08x}"
        ))
    }
}

/// An accepted timer.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Scheduler;
/// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// # let timers = scheduler.handle();
/// let first = timers.schedule("request 7", Duration::from_secs(5), |_| ())?;
/// let second = timers.schedule("request 7", Duration::from_secs(9), |_| ())?;
/// assert_eq!(second.replaced, Some(first.deadline));
/// assert!(!second.after_run);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Scheduled {
    /// The id of this arming.
    pub id: TimerId,
    /// When the timer is due.
    pub deadline: Time,
    /// The deadline of the pending timer that this one replaced. That timer never runs.
    pub replaced: Option<Time>,
    /// Whether the key is running. If so, this timer waits for its deadline and for the end of that
    /// run.
    pub after_run: bool,
}

/// The result of `reschedule`.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Scheduler;
/// use tourbillon::Reschedule;
///
/// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// # let timers = scheduler.handle();
/// match timers.reschedule("connection 7", Duration::from_secs(30)) {
///     Reschedule::Moved { .. } => println!("it has 30 s again"),
///     Reschedule::Running => println!("too late, it is being closed"),
///     _ => println!("unknown connection"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[must_use = "a timer that was not moved runs at its old time, or not at all"]
pub enum Reschedule {
    /// The timer runs at the new time only. If a round of a repeating timer is running, this is
    /// about the next round.
    Moved {
        /// The deadline before the move. While a round runs, it is the time that an earlier move
        /// set for the next round, or else the deadline of the running round.
        before: Time,
    },
    /// The task has started, and nothing else is pending for the key.
    Running,
    /// Nothing is known of the key or id, and nothing was created.
    NotFound,
}

/// The result of `pull_in`.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Scheduler;
/// use tourbillon::PullIn;
///
/// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// # let timers = scheduler.handle();
/// let answer = timers.pull_in("sync", Duration::from_secs(5));
/// assert_eq!(answer, PullIn::NotFound);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[must_use = "a timer that was not moved runs at its old time, or not at all"]
pub enum PullIn {
    /// The timer runs at the new, earlier time only. If a round of a repeating timer is running,
    /// the next round runs at the new time at the latest.
    Moved {
        /// The deadline before the move. While a round runs, it is the time that an earlier move
        /// set for the next round, or else the deadline of the running round.
        before: Time,
    },
    /// The timer is due no later than that already.
    Unchanged {
        /// When the timer is due.
        deadline: Time,
    },
    /// The task has started, and nothing else is pending for the key.
    Running,
    /// Nothing is known of the key or id, and nothing was created.
    NotFound,
}

/// The result of `cancel`.
///
/// # Examples
///
/// ```
/// # use tourbillon::Scheduler;
/// use tourbillon::Cancel;
///
/// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// # let timers = scheduler.handle();
/// match timers.cancel("request 7") {
///     Cancel::Cancelled { .. } => println!("it will not time out"),
///     Cancel::Running => println!("too late, its task has started"),
///     _ => println!("unknown request"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Cancel {
    /// The task has not started and never will. It was dropped before the call returned.
    Cancelled {
        /// When the timer would have been due.
        deadline: Time,
        /// Whether an earlier arming of the key is running. If so, the cancelled timer waited for
        /// the end of that run, and the run is notified; see `Firing::is_cancelled`.
        running: bool,
    },
    /// The task has started, and nothing else is pending for the key. The run is notified, and no
    /// further round of a repeating timer follows it.
    Running,
    /// Nothing is known of the key or id.
    NotFound,
}

impl Cancel {
    /// Returns whether a timer was cancelled.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// timers.schedule("request 7", Duration::from_secs(5), |_| ())?;
    /// assert!(timers.cancel("request 7").is_cancelled());
    /// assert!(!timers.cancel("request 7").is_cancelled());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_cancelled(self) -> bool {
        matches!(self, Cancel::Cancelled { .. })
    }
}

/// The facts known of a timer at one moment.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Scheduler;
/// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// # let timers = scheduler.handle();
/// let timer = timers.schedule("request 7", Duration::from_secs(5), |_| ())?;
/// let info = timers.get("request 7").expect("the timer is pending");
/// assert_eq!((info.id, info.deadline), (timer.id, timer.deadline));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct TimerInfo {
    /// The id of the arming.
    pub id: TimerId,
    /// When the timer is due, or was due.
    pub deadline: Time,
    /// The state of the timer.
    pub state: TimerState,
}

impl TimerInfo {
    /// Returns the time from `now` until the deadline: zero if the deadline has passed, and
    /// `Duration::MAX` for a timer that never runs.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// timers.schedule("request 7", Duration::from_secs(5), |_| ())?;
    /// let info = timers.get("request 7").expect("the timer is pending");
    /// assert_eq!(info.remaining(timers.now()), Duration::from_secs(5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn remaining(&self, now: Time) -> Duration {
        self.deadline.remaining(now)
    }
}

/// The state of a timer.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Scheduler;
/// use tourbillon::TimerState;
///
/// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// # let timers = scheduler.handle();
/// timers.schedule("request 7", Duration::from_secs(5), |_| ())?;
/// let info = timers.get("request 7").expect("the timer is pending");
/// assert_eq!(info.state, TimerState::Pending);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum TimerState {
    /// The timer waits for its deadline.
    Pending,
    /// The deadline has passed and no worker has started the task. It can still be moved or
    /// cancelled.
    Queued,
    /// The task has started and has not ended.
    Running {
        /// The arming of the key that was accepted during the run, and its deadline.
        next: Option<(TimerId, Time)>,
    },
}

impl From<Moving> for Reschedule {
    #[inline]
    fn from(moving: Moving) -> Self {
        match moving {
            Moving::Moved { before } => Reschedule::Moved { before },
            Moving::Running => Reschedule::Running,
            Moving::NotFound => Reschedule::NotFound,
            Moving::Unchanged { .. } => unreachable!("only `pull_in` leaves a timer unchanged"),
        }
    }
}

impl From<Moving> for PullIn {
    #[inline]
    fn from(moving: Moving) -> Self {
        match moving {
            Moving::Moved { before } => PullIn::Moved { before },
            Moving::Unchanged { deadline } => PullIn::Unchanged { deadline },
            Moving::Running => PullIn::Running,
            Moving::NotFound => PullIn::NotFound,
        }
    }
}

impl TimerInfo {
    pub(crate) fn new(tag: u32, stripe: u32, entry_info: EntryInfo) -> Self {
        let id = |entry| TimerId { tag, stripe, entry };
        TimerInfo {
            id: id(entry_info.id),
            deadline: entry_info.deadline,
            state: match entry_info.phase {
                EntryPhase::Pending => TimerState::Pending,
                EntryPhase::Queued => TimerState::Queued,
                EntryPhase::Running { successor } => TimerState::Running {
                    next: successor.map(|(entry, deadline)| (id(entry), deadline)),
                },
            },
        }
    }
}

/// Makes the error that returns the task.
pub(super) fn refused<F>(refusal: Refusal, task: F) -> ScheduleError<F> {
    match refusal {
        Refusal::Closed => ScheduleError::Closed(task),
        Refusal::Closing => ScheduleError::Closing(task),
        Refusal::Occupied => ScheduleError::Occupied(task),
        Refusal::NoPermit | Refusal::NoSlot => ScheduleError::Full(task),
        Refusal::UnderLock => ScheduleError::UnderLock(task),
        Refusal::Forked => ScheduleError::Forked(task),
    }
}
