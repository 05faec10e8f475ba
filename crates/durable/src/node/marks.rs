//! Marks: the times behind which a shard has no timers that a poll could find.
//!
//! They spare a poll the index entries of timers that were deleted. A mark is exact, by these
//! steps:
//!
//! 1. A beat or a claim returns a [`Horizon`]: its write read the clock, and then took its number.
//! 2. A snapshot returns [`Complete`]. Take a write that is not in the snapshot. If it read the
//!    clock at `complete.at` or later, then what it wrote is due at that time or later (ROW-2).
//!    Otherwise it has at least the number `complete.below`. If that is not below the horizon's
//!    number, then the write took its number after the horizon's. It read the clock after that
//!    (STORE-1), so what it wrote is due at `horizon.at` or later.
//! 3. So the shard has nothing that is due before the earlier one of both times, except what is in
//!    the snapshot, and what live nodes have claimed. Timers of the latter kind come back only when
//!    their node ends, and it is then missing from a snapshot: all marks are dropped.
//!
//! A margin is taken off, for a clock that is set back by less than a node notices. A clock that
//! falls behind by more, within the life of a mark, drops all marks: see the module `clock`. If
//! that is noticed too late, then each shard is still polled whole when its turn comes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::clock::LEAST_STEP;
use crate::store::{Complete, Horizon, StoreTime};

/// How far a mark stays behind its bound. A node notices a step back that is longer than
/// [`LEAST_STEP`] and a tenth of the time between two answers together.
pub(super) const MARGIN: Duration = Duration::from_millis(500);

const _: () = assert!(MARGIN.as_micros() > 4 * LEAST_STEP as u128);

/// The time between two horizons that are kept.
const SPACING: Duration = Duration::from_millis(20);
/// The greatest number of horizons that no snapshot was beyond yet.
const MOST_HORIZONS: usize = 64;

/// The marks of all shards that a node polls, by queue and shard.
#[derive(Debug, Default)]
pub(super) struct Marks {
    marks: BTreeMap<(usize, u16), StoreTime>,
    /// The marks of the shards, for all parts that sleep: see the module `sleep`.
    shards: BTreeMap<u16, StoreTime>,
    /// The latest horizon that a snapshot was beyond.
    reached: Option<Horizon>,
    /// Horizons that no snapshot was beyond yet, in the order in which they came. The first one is
    /// not replaced, so that it is reached even if new ones come all the time.
    awaited: VecDeque<Horizon>,
}

impl Marks {
    pub(super) fn get(&self, queue: usize, shard: u16) -> Option<StoreTime> {
        self.marks.get(&(queue, shard)).copied()
    }

    pub(super) fn learn(&mut self, horizon: Option<Horizon>) {
        let last = self.awaited.back();
        let far_enough =
            |horizon: &Horizon| last.is_none_or(|last| horizon.at >= last.at + SPACING);
        self.awaited.extend(horizon.filter(far_enough));
        if self.awaited.len() > MOST_HORIZONS {
            self.awaited.remove(1);
        }
    }

    /// Returns how far marks may go by a snapshot.
    pub(super) fn bound(&mut self, complete: Option<Complete>) -> Option<StoreTime> {
        let complete = complete?;
        let is_reached = |horizon: &Horizon| horizon.number <= complete.below;
        if let Some(last) = self.awaited.iter().rposition(is_reached) {
            self.reached = self.awaited.drain(..=last).next_back();
        }
        let reached = self.reached.filter(is_reached)?;
        Some(reached.at.min(complete.at).back_by(MARGIN))
    }

    pub(super) fn set(&mut self, queue: usize, shard: u16, mark: StoreTime) {
        self.marks.insert((queue, shard), mark);
    }

    /// The mark of a shard.
    pub(super) fn of_shard(&self, shard: u16) -> Option<StoreTime> {
        self.shards.get(&shard).copied()
    }

    pub(super) fn set_shard(&mut self, shard: u16, mark: StoreTime) {
        self.shards.insert(shard, mark);
    }

    /// Forgets the marks of the shards.
    pub(super) fn drop_shards(&mut self) {
        self.shards.clear();
    }

    pub(super) fn drop_part(&mut self, part: (usize, u16)) {
        self.marks.remove(&part);
    }

    pub(super) fn drop_queue(&mut self, queue: usize) {
        self.marks.retain(|(of, _), _| *of != queue);
    }

    /// Forgets all: after an error the next answer may be another server's.
    pub(super) fn drop_all(&mut self) {
        *self = Marks::default();
    }

    /// Forgets the marks, but not the horizons.
    pub(super) fn drop_marks(&mut self) {
        self.marks.clear();
        self.shards.clear();
    }
}
