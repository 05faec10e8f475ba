//! The results of a stripe's operations. Keys and values to be dropped are parts of the results, so
//! that they are dropped outside the lock.

use std::any::Any;
use std::mem::needs_drop;

use super::super::waiter::Waiter;
use super::EntryId;
use super::index::Vacancy;
use crate::tick::Time;

/// The reason why an arming is refused. The stripe decides before the task is touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The engine is shut down.
    Closed,
    /// A call waits for the end of the key's run.
    Closing,
    /// The key is pending already.
    Occupied,
    /// The stripe got no permit. The caller unlocks, collects permits and tries again.
    NoPermit,
    /// The stripe has no slot number left.
    NoSlot,
    /// The call was made under a lock, while the thread panics.
    UnderLock,
    /// This process is a forked copy of the one that built the engine.
    Forked,
}

/// The permission to arm a key, with the state of that key. It is valid while the lock is held.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Admission {
    /// The key is absent.
    Vacant(Option<Vacancy>),
    /// The key is armed or runs.
    Present(Present),
}

/// The permission to arm a key that is armed in this slot, or that runs with this index.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Present {
    Armed(u32),
    Running(usize),
}

/// The permission to arm a timer without a key. It is valid while the lock is held.
#[derive(Debug)]
pub(crate) struct KeylessAdmission(pub(super) ());

/// An accepted arming.
#[derive(Debug)]
pub(crate) struct Arming<K, V> {
    pub(crate) id: EntryId,
    /// The deadline of the arming that was replaced.
    pub(crate) replaced: Option<Time>,
    /// Whether the arming is a successor, which waits for the end of a run.
    pub(crate) after_run: bool,
    /// The key and payload that are not needed; drop them after unlocking.
    pub(crate) dropped: (Option<K>, Option<V>),
}

/// Result of moving a deadline. `Unchanged`: the call only moves to an earlier deadline, and the
/// present one is not later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moving {
    Moved { before: Time },
    Unchanged { deadline: Time },
    Running,
    NotFound,
}

/// Result of moving a payload that a closure judges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum JudgedMove {
    /// The key has no entry.
    NotFound,
    /// The closure refused, or no payload of the key is pending.
    Refused,
    /// The payload keeps this deadline.
    Stays(Time),
    /// The payload has this deadline now.
    Moved(Time),
}

/// The old and the new deadline of an entry that was put off. They may be equal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PutOff {
    pub(crate) before: Time,
    pub(crate) deadline: Time,
}

/// Result of a cancellation.
#[derive(Debug)]
pub(crate) enum Cancelling<K, V> {
    /// A pending arming was cancelled. If it was the successor of a run, `run` is that run.
    Cancelled {
        deadline: Time,
        run: Option<EntryId>,
        dropped: (Option<K>, Option<V>),
    },
    Running(EntryId),
    NotFound,
}

impl<K, V> Cancelling<K, V> {
    /// Returns the result for an entry that was Pending or Queued.
    pub(super) fn of_armed((deadline, key, value): (Time, K, V)) -> Self {
        Cancelling::Cancelled {
            deadline,
            run: None,
            dropped: (Some(key), Some(value)),
        }
    }
}

/// Entry info: id, deadline and phase of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryInfo {
    pub(crate) id: EntryId,
    pub(crate) deadline: Time,
    pub(crate) phase: EntryPhase,
}

/// Phase of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EntryPhase {
    Pending,
    Queued,
    Running { successor: Option<(EntryId, Time)> },
}

/// Result of a claim.
#[derive(Debug)]
pub(crate) enum Claimed<K, V> {
    /// The timer was cancelled or moved meanwhile.
    Nothing,
    /// The task runs now.
    Run {
        key: K,
        value: V,
        id: EntryId,
        deadline: Time,
        started: Time,
    },
    /// The key's `Clone` panicked. The arming counts as one that ran and panicked.
    KeyPanicked {
        panic: Box<dyn Any + Send>,
        key: K,
        value: V,
        deadline: Time,
    },
}

/// How a claimed payload starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Start {
    /// It runs exactly once.
    Once,
    /// It runs, and may run again. The run gets this deadline, which is not later than the present:
    /// if rounds were missed, only the latest one may run.
    Round(Time),
    /// It does not run now, and is pending again until this deadline.
    PutOff(Time),
}

/// The parts of a completed run that the caller handles after unlocking.
#[derive(Debug)]
pub(crate) struct Completed<K> {
    /// The key, unless the entry goes on with a successor.
    pub(crate) key: Option<K>,
    /// Threads and tasks to wake.
    pub(crate) waiters: Vec<(u64, Waiter)>,
}

impl<K> Completed<K> {
    /// Returns whether user code must run: the drop of a key, or the waker of a task.
    #[inline]
    pub(crate) fn leaves_user_code(&self) -> bool {
        (needs_drop::<K>() && self.key.is_some()) || !self.waiters.is_empty()
    }
}

/// A pending arming that was taken out by a shutdown: key, deadline, payload.
pub(crate) type Taken<K, V> = (Option<K>, Time, V);
