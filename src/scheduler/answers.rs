//! What calls answer. Every answer is settled: it says what has happened, not what may happen.

use std::time::Duration;

use crate::error::ScheduleError;
use crate::shard::{EntryId, Moving, Refusal, Sight, SightPhase};
use crate::tick::Time;

/// Names one arming of one scheduler: 16 bytes, `Copy`, opaque.
///
/// An id whose arming has ended answers `NotFound` everywhere, also when its place is in use again,
/// and so does the id of another scheduler. Moving a timer keeps its id; replacing it gives a new
/// one, and each round of a repeating timer has one of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TimerId {
    pub(crate) tag: u32,
    pub(crate) stripe: u32,
    pub(crate) entry: EntryId,
}

const _: () = assert!(size_of::<TimerId>() == 16);

/// An accepted timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Scheduled {
    /// Names this arming.
    pub id: TimerId,
    /// When it is due.
    pub deadline: Time,
    /// The deadline of the pending timer that this one took the place of. That one never runs.
    pub replaced: Option<Time>,
    /// The key is running: this one waits for its deadline and for the end of that run.
    pub after_run: bool,
}

/// What `reschedule` did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[must_use = "a timer that was not moved runs at its old time, or not at all"]
pub enum Reschedule {
    /// It will run at the new time only. Of a repeating timer whose round runs: the next round.
    Moved {
        /// When it was due before: of a round to come, when an earlier move said, or else the round
        /// that runs.
        before: Time,
    },
    /// It has started and nothing else is pending for the key.
    Running,
    /// Nothing is known of it, and nothing was created.
    NotFound,
}

/// What `pull_in` did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[must_use = "a timer that was not moved runs at its old time, or not at all"]
pub enum PullIn {
    /// It will run at the new, earlier time only. Of a repeating timer whose round runs: the next
    /// round, at the new time at the latest.
    Moved {
        /// When it was due before: of a round to come, when an earlier move said, or else the round
        /// that runs.
        before: Time,
    },
    /// It is due no later than that already.
    Unchanged {
        /// When it is due.
        deadline: Time,
    },
    /// It has started and nothing else is pending for the key.
    Running,
    /// Nothing is known of it, and nothing was created.
    NotFound,
}

/// What `cancel` did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Cancel {
    /// It has not started and never will. Its task was dropped before the call returned.
    Cancelled {
        /// When it would have been due.
        deadline: Time,
        /// An earlier arming of the key is running; what was cancelled is the one that waited for
        /// that run's end. The run is told, see `Firing::is_cancelled`.
        running: bool,
    },
    /// It has started and nothing else is pending for the key. The run is told, and no further
    /// round of a repeating timer follows it.
    Running,
    /// Nothing is known of it.
    NotFound,
}

impl Cancel {
    /// Whether something was cancelled.
    #[must_use]
    pub fn is_cancelled(self) -> bool {
        matches!(self, Cancel::Cancelled { .. })
    }
}

/// What is known of a timer, at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TimerInfo {
    /// Names the arming.
    pub id: TimerId,
    /// When it is due, or was.
    pub deadline: Time,
    /// How far it is.
    pub state: TimerState,
}

impl TimerInfo {
    /// How long from `now` until the deadline; zero if it has passed.
    #[must_use]
    pub fn remaining(&self, now: Time) -> Duration {
        self.deadline.since(now)
    }
}

/// How far a timer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TimerState {
    /// Waits for its deadline.
    Pending,
    /// Its deadline has passed, no worker has started it: it can still be moved or cancelled.
    Queued,
    /// Its task has started and has not ended.
    Running {
        /// The arming of the key that was accepted meanwhile, and its deadline.
        next: Option<(TimerId, Time)>,
    },
}

impl From<Moving> for Reschedule {
    fn from(moving: Moving) -> Self {
        match moving {
            Moving::Moved { before } => Reschedule::Moved { before },
            Moving::Running => Reschedule::Running,
            Moving::NotFound => Reschedule::NotFound,
            Moving::Unchanged { .. } => unreachable!("only a pull-in leaves a timer unchanged"),
        }
    }
}

impl From<Moving> for PullIn {
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
    pub(crate) fn new(tag: u32, stripe: u32, sight: Sight) -> Self {
        let id = |entry| TimerId { tag, stripe, entry };
        TimerInfo {
            id: id(sight.id),
            deadline: sight.deadline,
            state: match sight.phase {
                SightPhase::Pending => TimerState::Pending,
                SightPhase::Queued => TimerState::Queued,
                SightPhase::Running { kept } => TimerState::Running {
                    next: kept.map(|(entry, deadline)| (id(entry), deadline)),
                },
            },
        }
    }
}

/// The error that gives the task back.
pub(super) fn refused<F>(refusal: Refusal, task: F) -> ScheduleError<F> {
    match refusal {
        Refusal::Closed => ScheduleError::Closed(task),
        Refusal::Closing => ScheduleError::Closing(task),
        Refusal::Occupied => ScheduleError::Occupied(task),
        Refusal::NoPermit | Refusal::NoSlot => ScheduleError::Full(task),
        Refusal::UnderLock => ScheduleError::UnderLock(task),
    }
}
