//! What users and operators read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, SystemTime};

use super::payload::Meta;
use super::time::StoreTime;

/// A page of timers or dead letters ends when its payloads have this many bytes. It has one of them
/// at least.
pub const PAGE_BYTES: u64 = 8 * 1024 * 1024;

/// The greatest number in [`QueueCounts`], so that nobody has to read all timers.
pub const MOST_COUNTED: u64 = 10_000;

/// A timer as it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Timer {
    /// The queue.
    pub queue: String,
    /// The key within the queue.
    pub key: String,
    /// When it is due next.
    pub due: StoreTime,
    /// When it was due first, before retries.
    pub planned: StoreTime,
    /// The number of runs so far.
    pub attempt: u32,
    /// The number of runs that returned an error.
    pub fails: u32,
    /// The number of runs whose node died.
    pub crashes: u32,
    /// What it does at the moment.
    pub state: StoredState,
    /// Since when a node has been running it.
    pub running: Option<StoreTime>,
    /// The name of this node.
    pub node: Option<String>,
    /// Whether it was cancelled during its run.
    pub cancelled: bool,
    /// Whether it was scheduled during its run: the due times and the payload are those of the
    /// timer that follows.
    pub follows: bool,
    /// The payload, as JSON.
    pub payload: String,
    /// The meta that it was scheduled with.
    pub meta: Option<Meta>,
}

/// What a timer does at the moment, in [`StoredTimer`](crate::StoredTimer).
///
/// # Examples
///
/// ```
/// use tourbillon_durable::StoredState;
///
/// assert_eq!(StoredState::Overdue.as_str(), "overdue");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum StoredState {
    /// It waits for its due time.
    Waiting,
    /// It is due, and no node has claimed it.
    Overdue,
    /// A node runs it.
    Running,
    /// It is not claimed, due or not, since its queue is paused.
    Paused,
}

impl StoredState {
    /// The state of a timer that no node runs.
    pub(crate) fn of_idle(is_paused: bool, due: StoreTime, now: StoreTime) -> Self {
        match (is_paused, due <= now) {
            (true, _) => StoredState::Paused,
            (false, true) => StoredState::Overdue,
            (false, false) => StoredState::Waiting,
        }
    }

    /// The state as a word in lower case: `waiting`, `overdue`, `running` or `paused`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            StoredState::Waiting => "waiting",
            StoredState::Overdue => "overdue",
            StoredState::Running => "running",
            StoredState::Paused => "paused",
        }
    }
}

impl fmt::Display for StoredState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The timers that [`Connection::list`](super::Connection::list) reads.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Page {
    /// The queue, or `None` for all queues.
    pub queue: Option<String>,
    /// What the keys begin with.
    pub prefix: String,
    /// The state, or `None` for all of them.
    pub state: Option<StoredState>,
    /// Only timers with a schedule.
    pub schedules: bool,
    /// The least due time.
    pub from: StoreTime,
    /// Timers that are due at this time or later are not read.
    pub until: StoreTime,
    /// The due time, queue and key of the last timer of the page before.
    pub after: Option<(StoreTime, String, String)>,
    /// The greatest number of timers. There may be more although there are fewer in the page: see
    /// [`PAGE_BYTES`].
    pub limit: u32,
}

impl Page {
    /// The first timers of a queue, at most `limit`, whenever they are due.
    #[must_use]
    pub fn first(queue: &str, limit: u32) -> Self {
        Page {
            queue: Some(queue.to_owned()),
            ..Page::of_all(limit)
        }
    }

    /// The first timers of all queues, at most `limit`, whenever they are due.
    #[must_use]
    pub fn of_all(limit: u32) -> Self {
        Page {
            queue: None,
            prefix: String::new(),
            state: None,
            schedules: false,
            from: StoreTime::from_micros(i64::MIN),
            until: StoreTime::from_micros(i64::MAX),
            after: None,
            limit,
        }
    }
}

/// The least text that is greater than each name of up to 512 bytes with this prefix, in the order of
/// bytes. Each name between the two has the prefix.
#[cfg(any(feature = "sqlite", feature = "tokio-postgres"))]
pub(crate) fn end_of_prefix(prefix: &str) -> String {
    // The rest of a name has 512 bytes at most, and this character has four.
    format!("{prefix}{}", "\u{10ffff}".repeat(129))
}

/// The dead letters that [`Connection::dead`](super::Connection::dead) reads.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeadPage {
    /// The queue, or `None` for all queues.
    pub queue: Option<String>,
    /// What the keys begin with.
    pub prefix: String,
    /// Only those that were given up so long ago, or longer.
    pub older_than: Option<Duration>,
    /// Dead letters with a greater number are read.
    pub after: i64,
    /// The greatest number of dead letters. There may be more although there are fewer in the page:
    /// see [`PAGE_BYTES`].
    pub limit: u32,
}

impl DeadPage {
    /// The first dead letters of a queue, at most `limit`.
    #[must_use]
    pub fn first(queue: &str, limit: u32) -> Self {
        DeadPage {
            queue: Some(queue.to_owned()),
            ..DeadPage::of_all(limit)
        }
    }

    /// The first dead letters of all queues, at most `limit`.
    #[must_use]
    pub fn of_all(limit: u32) -> Self {
        DeadPage {
            queue: None,
            prefix: String::new(),
            older_than: None,
            after: i64::MIN,
            limit,
        }
    }
}

/// The numbers of timers of one queue, and how far it is behind. [`Durable::counts`] has an example.
///
/// Each number goes up to [`MOST`](Self::MOST), which means that many or more.
///
/// [`Durable::counts`]: crate::Durable::counts
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct QueueCounts {
    /// The queue.
    pub queue: String,
    /// Timers that wait for their due time.
    pub waiting: u64,
    /// Those of them that are due within a minute.
    pub within_minute: u64,
    /// Those of them that are due within ten minutes.
    pub within_ten_minutes: u64,
    /// Timers that are due and not claimed.
    pub overdue: u64,
    /// Timers that a node runs. If a queue on PostgreSQL has thousands of timers, only those are counted
    /// that are among its first ones by due time: the first 256 of each of its 64 shards.
    pub running: u64,
    /// The earliest due time of those that wait or are overdue. If it has passed, the queue is
    /// behind by the time since then.
    pub oldest: Option<SystemTime>,
    /// Dead letters.
    pub dead: u64,
    /// Whether the queue is paused.
    pub paused: bool,
}

impl QueueCounts {
    /// The greatest number: it means that many or more.
    pub const MOST: u64 = MOST_COUNTED;
}

/// A timer that has been given up.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Its number, by which [`Connection::revive`](super::Connection::revive) finds it.
    pub id: i64,
    /// The queue.
    pub queue: String,
    /// The key within the queue.
    pub key: String,
    /// When it was due first.
    pub planned: StoreTime,
    /// When it was given up.
    pub at: StoreTime,
    /// The number of runs.
    pub attempt: u32,
    /// The number of runs that returned an error.
    pub fails: u32,
    /// The number of runs whose node died.
    pub crashes: u32,
    /// Why it was given up.
    pub error: String,
    /// Whether there is a timer with its queue and key.
    pub has_timer: bool,
    /// The payload, as JSON.
    pub payload: String,
    /// The meta that it was scheduled with.
    pub meta: Option<Meta>,
}

/// What became of a dead letter. [`Durable::revive`] has an example.
///
/// [`Durable::revive`]: crate::Durable::revive
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Revived {
    /// It is a timer again, due now.
    Revived {
        /// Its queue.
        queue: String,
        /// Its key.
        key: String,
    },
    /// There is a timer with its key, so it was left as it is.
    Exists,
    /// There is no such dead letter.
    NotFound,
}

/// A process with handlers, as the store knows it. [`Durable::nodes`] has an example.
///
/// [`Durable::nodes`]: crate::Durable::nodes
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct StoredNode {
    /// A number that it has from its join to its end.
    pub id: i64,
    /// A name for people: that of the builder.
    pub name: String,
    /// The queues that it handles. A node that stops handles none.
    pub queues: Vec<String>,
    /// When it joined.
    pub joined: SystemTime,
    /// The time since it has shown last that it lives. A node does so each fifth of its lease.
    pub silent_for: Duration,
    /// Since when it has been gone: it has left, or others have declared it gone.
    pub gone: Option<SystemTime>,
    /// The schedules that its program names, with `QueueBuilder::cron`: the keys by their queues.
    pub schedules: BTreeMap<String, BTreeSet<String>>,
}
