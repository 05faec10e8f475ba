//! What a stripe's operations answer. Keys and values to be dropped travel in the answers, so that
//! they are dropped outside the lock.

use std::any::Any;
use std::mem::needs_drop;

use super::super::waiter::Waiter;
use super::EntryId;
use crate::tick::Time;

/// Why an arming is refused, before the task was even looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    Closed,
    Closing,
    Occupied,
    /// No permit at hand: unlock, collect, try again.
    NoPermit,
    /// The stripe has no slot number left.
    NoSlot,
    /// The call came from under a lock, while the thread panics.
    UnderLock,
}

/// The answer to "may this key be armed", good while the lock is held.
#[derive(Debug)]
pub(crate) struct Admission(pub(super) Target);

impl Admission {
    /// Whether nothing is known of the key.
    #[inline]
    pub(crate) fn is_vacant(&self) -> bool {
        matches!(self.0, Target::Vacant)
    }
}

/// The same for what has no key.
#[derive(Debug)]
pub(crate) struct Keyless(pub(super) ());

#[derive(Debug)]
pub(super) enum Target {
    Vacant,
    Armed(u32),
    Running(usize),
}

/// An accepted arming.
#[derive(Debug)]
pub(crate) struct Arming<K, V> {
    pub(crate) id: EntryId,
    pub(crate) replaced: Option<Time>,
    pub(crate) after_run: bool,
    /// To be dropped outside the lock.
    pub(crate) dropped: (Option<K>, Option<V>),
}

/// What a move did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moving {
    Moved { before: Time },
    Unchanged { deadline: Time },
    Running,
    NotFound,
}

/// What a cancel did.
#[derive(Debug)]
pub(crate) enum Cancelling<K, V> {
    /// `run`: a run of the key is in progress, this was the arming kept for after it.
    Cancelled {
        deadline: Time,
        run: Option<EntryId>,
        dropped: (Option<K>, Option<V>),
    },
    Running(EntryId),
    NotFound,
}

/// What is known of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sight {
    pub(crate) id: EntryId,
    pub(crate) deadline: Time,
    pub(crate) phase: SightPhase,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SightPhase {
    Pending,
    Queued,
    Running { kept: Option<(EntryId, Time)> },
}

/// A claim's outcome.
#[derive(Debug)]
pub(crate) enum Claimed<K, V> {
    /// Cancelled or moved meanwhile.
    Nothing,
    Run {
        key: K,
        value: V,
        id: EntryId,
        deadline: Time,
        started: Time,
    },
    /// The key's `Clone` panicked: the arming counts as ran and panicked.
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
    /// It runs, and that is its end.
    Once,
    /// It runs, and may run again. The run bears this deadline, which is not later than the
    /// present: of rounds that were missed, only the latest may be run.
    Round(Time),
    /// It does not run now: it is pending again, until then.
    PutOff(Time),
}

/// A payload that has run and may run again.
#[derive(Debug)]
pub(crate) struct Stays<V> {
    pub(crate) value: V,
    /// When it is to run; `None`: not again.
    pub(crate) next: Option<Time>,
}

/// What a settled run leaves to be done outside the lock.
#[derive(Debug)]
pub(crate) struct Settled<K> {
    pub(crate) key: Option<K>,
    pub(crate) waiters: Vec<(u64, Waiter)>,
}

impl<K> Settled<K> {
    /// Whether user code follows: the drop of a key, or a task's waker.
    #[inline]
    pub(crate) fn leaves_user_code(&self) -> bool {
        (needs_drop::<K>() && self.key.is_some()) || !self.waiters.is_empty()
    }
}

/// A pending arming that was taken out at the end: key, deadline, payload.
pub(crate) type Taken<K, V> = (Option<K>, Time, V);
