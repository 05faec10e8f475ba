//! What a node asks a store to show, and what it sees.

use std::time::Duration;

use super::{Epoch, StoreTime};
use crate::sync::Arc;

/// What a node wants to see.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Poll {
    /// The node.
    pub epoch: Epoch,
    /// The parts of queues, each with its own limit.
    pub ranges: Vec<Range>,
    /// Shards in which all queues are asked at once whether they have anything: a [`Survey`].
    pub bands: Vec<Band>,
    /// Whether the snapshot has to say which writes it contains. That may cost the store another
    /// statement.
    pub complete: bool,
}

/// Timers of one shard of one queue, in the order of their due times: those that no live claim
/// holds, and those that the node itself has claimed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Range {
    /// The queue.
    pub queue: Arc<str>,
    /// The shard.
    pub shard: u16,
    /// Timers that are due earlier need not be read: there are none.
    pub mark: Option<StoreTime>,
    /// Only timers that are due before the store's clock and this are wanted.
    pub until: Offset,
    /// The greatest number of timers.
    pub limit: u32,
}

/// One shard of all queues. A poll tells which queues have timers in it such as a [`Range`] shows,
/// and not the timers. So a node need not ask for each of many queues that have nothing due.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Band {
    /// The shard.
    pub shard: u16,
    /// Timers that are due earlier need not be read.
    pub mark: Option<StoreTime>,
    /// Only timers that are due before the store's clock and this count.
    pub until: Offset,
    /// The greatest number of timers that are read, in the order of their due times.
    pub limit: u32,
}

/// A distance from the store's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offset {
    /// Later than the clock.
    Ahead(Duration),
    /// Earlier than the clock.
    Overdue(Duration),
}

impl Offset {
    /// Returns the time at this distance from `now`.
    #[must_use]
    pub fn from(self, now: StoreTime) -> StoreTime {
        match self {
            Offset::Ahead(span) => now + span,
            Offset::Overdue(span) => now.back_by(span),
        }
    }
}

/// What a node sees.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StoreSnapshot {
    /// The store's clock.
    pub now: StoreTime,
    /// The timers of all ranges.
    pub rows: Vec<Seen>,
    /// The indices of the ranges that their limits cut.
    pub cut: Vec<usize>,
    /// What the bands have shown. `None`: the store can't say, and the node asks for each queue.
    pub survey: Option<Survey>,
    /// All nodes that are not gone, with the one that asks.
    pub nodes: Vec<SeenNode>,
    /// The queues that are paused.
    pub paused: Vec<String>,
    /// Which writes it contains, if the poll has asked for that and the store has
    /// [horizons](super::Horizon).
    pub complete: Option<Complete>,
}

impl StoreSnapshot {
    /// The beat of a node, unless it is gone.
    #[cfg(any(feature = "sqlite", feature = "tokio-postgres"))]
    pub(crate) fn beat_of(&self, epoch: Epoch) -> Option<i64> {
        let node = self.nodes.iter().find(|node| node.epoch == epoch);
        node.map(|node| node.beat)
    }
}

/// The queues that have timers in the [bands](Band) of a poll.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Survey {
    /// The parts of queues that have timers.
    pub parts: Vec<SurveyedPart>,
    /// The indices of the bands that their limits cut. There may be timers of other queues behind
    /// the limit.
    pub cut: Vec<usize>,
}

/// A shard of a queue that has timers in a [`Band`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SurveyedPart {
    /// The index of the band.
    pub band: usize,
    /// The queue.
    pub queue: Box<str>,
    /// When its first timer in the band is due.
    pub first: StoreTime,
}

/// Which writes a snapshot contains: each write that is not in it, and was not undone, has a number
/// of at least `below`, or read the clock at `at` or later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Complete {
    /// The least number of the writes that were open before the snapshot.
    pub below: u64,
    /// The clock, read before the open writes were. A write that began later read the clock later.
    pub at: StoreTime,
}

/// A timer that is due soon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The queue.
    pub queue: Arc<str>,
    /// The key within the queue.
    pub key: Box<str>,
    /// The shard.
    pub shard: u16,
    /// When it is due.
    pub due: StoreTime,
    /// The generation.
    pub generation: i64,
    /// The number of runs so far.
    pub attempt: u32,
    /// The number of runs whose node died.
    pub crashes: u32,
    /// Whether the node that asks has claimed it.
    pub mine: bool,
    /// The length of its payload and its meta. A node bounds its claims by it.
    pub bytes: u64,
}

/// A node that is not gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeenNode {
    /// Its epoch.
    pub epoch: Epoch,
    /// Its beat.
    pub beat: i64,
    /// The queues that it handles. They are shared, since a poll may show hundreds of nodes.
    pub queues: Arc<[String]>,
}
