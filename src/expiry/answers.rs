//! What calls answer. Every answer is settled: it says what has happened, not what may happen.

use std::fmt;

use super::face::Session;
use crate::engine::Ending;
use crate::error::UNDER_LOCK;
use crate::shard::Refusal;
use crate::tick::Time;

/// What an insertion did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Inserted<V> {
    /// There was nothing under the key.
    New,
    /// This was under the key. It is not delivered.
    Replaced(V),
}

impl<V> Inserted<V> {
    /// What was replaced, as `HashMap::insert` tells it.
    pub fn replaced(self) -> Option<V> {
        match self {
            Inserted::New => None,
            Inserted::Replaced(value) => Some(value),
        }
    }
}

/// What `get_or_insert_with` found.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Found<V> {
    /// A clone of the value that was there.
    Present(V),
    /// There was none: the one that was made has been inserted.
    Inserted {
        /// A clone of it.
        value: V,
        /// An entry whose lifetime was over and that had not been delivered yet. It is not
        /// delivered any more.
        replaced: Option<V>,
    },
}

impl<V> Found<V> {
    /// The value under the key, found or inserted.
    pub fn into_value(self) -> V {
        match self {
            Found::Present(value) | Found::Inserted { value, .. } => value,
        }
    }
}

/// What a touch did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Touch {
    /// The entry lives on, until this moment at least.
    Touched {
        /// Its new deadline.
        deadline: Time,
    },
    /// There is an entry, and the touch does not move its deadline: it is the end of its lifetime
    /// already, or it was touched at the same moment or by somebody else a moment later, or it
    /// never expires.
    Unchanged {
        /// Its deadline.
        deadline: Time,
    },
    /// Too late: its delivery has begun and not ended, or its lifetime is over.
    Expired,
    /// Nothing is known of it.
    NotFound,
}

impl Touch {
    /// Whether there is an entry.
    #[must_use]
    pub fn is_alive(self) -> bool {
        matches!(self, Touch::Touched { .. } | Touch::Unchanged { .. })
    }
}

/// What `remove` did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Removed<V> {
    /// The entry is out of the map, and is not delivered.
    Removed {
        /// Its value.
        value: V,
        /// When it would have expired.
        deadline: Time,
    },
    /// Too late: its delivery has begun and not ended.
    Expired,
    /// Nothing is known of it.
    NotFound,
}

impl<V> Removed<V> {
    /// The value, if there was an entry.
    pub fn value(self) -> Option<V> {
        match self {
            Removed::Removed { value, .. } => Some(value),
            Removed::Expired | Removed::NotFound => None,
        }
    }
}

/// An insertion that was refused. Nothing was changed, and what was to be inserted is inside.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InsertError<K, V> {
    /// The key.
    pub key: K,
    /// The value.
    pub value: V,
    /// Why.
    pub refusal: InsertRefusal,
}

/// Why an insertion was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InsertRefusal {
    /// There are `max_pending` entries. Passes when one of them ends. (Also when a stripe holds
    /// four billion entries, its limit without a bound.)
    Full,
    /// The map is closing or closed, for good.
    Closed,
    /// There is an entry for the key: only from `insert_if_absent`.
    Occupied,
    /// The group has `max_per_group` entries: only from `insert_in` and `insert_in_with`. Passes
    /// when one of them ends.
    GroupFull,
    /// The calling thread is panicking and has a lock of this crate. This happens only in panic
    /// hooks and in drops, see [panic hooks](crate#panic-hooks). The error passes when the panic
    /// has left the call that took the lock.
    UnderLock,
}

impl InsertRefusal {
    pub(super) fn of(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Closed => InsertRefusal::Closed,
            Refusal::Occupied => InsertRefusal::Occupied,
            Refusal::NoPermit | Refusal::NoSlot => InsertRefusal::Full,
            Refusal::UnderLock => InsertRefusal::UnderLock,
            Refusal::Closing => unreachable!("nobody waits for a run of a map"),
        }
    }
}

impl<K, V> fmt::Display for InsertError<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.refusal {
            InsertRefusal::Full => {
                "there are as many entries as max_pending allows; try again when one has ended"
            }
            InsertRefusal::Closed => "the map is closed",
            InsertRefusal::Occupied => "there is an entry for the key already",
            InsertRefusal::UnderLock => UNDER_LOCK,
            InsertRefusal::GroupFull => {
                "the group has as many entries as max_per_group allows; try again when one has ended"
            }
        })
    }
}

impl<K, V> fmt::Debug for InsertError<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InsertError")
            .field("refusal", &self.refusal)
            .finish_non_exhaustive()
    }
}

impl<K, V> std::error::Error for InsertError<K, V> {}

/// What the shutdown of a map left.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExpiryReport<K, V> {
    /// What had not been delivered, in no order.
    pub handed_back: Vec<ExpiryHandedBack<K, V>>,
    /// How many threads were still in user code when the limit had passed: in a handler, or in what
    /// follows one (the drop of a key, the handler of a panic). These threads end with that code.
    pub still_running: usize,
    /// Another call had begun the shutdown; it has the report.
    pub already_closed: bool,
}

/// An entry that did not expire.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ExpiryHandedBack<K, V> {
    /// Its key.
    pub key: K,
    /// Its value.
    pub value: V,
    /// When it would have expired.
    pub deadline: Time,
}

impl<K, V> Default for ExpiryReport<K, V> {
    /// The report of every call but the first.
    fn default() -> Self {
        ExpiryReport {
            handed_back: Vec::new(),
            still_running: 0,
            already_closed: true,
        }
    }
}

impl<K, V> ExpiryReport<K, V> {
    pub(crate) fn of<T>(ending: Option<Ending<K, Session<V, T>>>) -> Self {
        let Some(ending) = ending else {
            return ExpiryReport::default();
        };
        let hand_back = |(key, deadline, session): (Option<K>, Time, Session<V, T>)| {
            key.map(|key| ExpiryHandedBack {
                key,
                value: session.value,
                deadline,
            })
        };
        ExpiryReport {
            handed_back: ending.taken.into_iter().filter_map(hand_back).collect(),
            still_running: ending.still_running,
            already_closed: false,
        }
    }
}

impl<K, V> fmt::Debug for ExpiryReport<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpiryReport")
            .field("handed_back", &self.handed_back.len())
            .field("still_running", &self.still_running)
            .field("already_closed", &self.already_closed)
            .finish()
    }
}
