//! Marks: the times behind which a shard has no timers that a look could find.
//!
//! They spare a look the index entries of timers that were deleted. A mark is exact, by these steps:
//!
//! 1. A beat or a claim returns a horizon: its write read the clock (`at`), and then took its number.
//! 2. A sight says that it contains every write with a number below `complete_below`. If that is not
//!    below the horizon's number, then a write that is not in the sight took a later number than the
//!    horizon. It read its clock after that, so what it wrote is due at `at` or later (ROW-2).
//! 3. So the shard has nothing that is due before `at`, except what is in the sight, and what live
//!    nodes have claimed. Timers of the latter kind come back only when their node ends, and it is
//!    then missing from a sight: all marks are dropped.
//!
//! Two seconds are taken off, for a clock that is set back by less than a node notices. A clock that
//! falls behind by more, within the life of a mark, drops all marks: see the module `clock`. If that is
//! noticed too late, then each shard is still looked at whole when its turn comes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::node::clock::LEAST_STEP;
use crate::store::Horizon;
use crate::time::StoreTime;

/// How far a mark stays behind its horizon.
const MARGIN: Duration = Duration::from_secs(2);

const _: () = assert!(MARGIN.as_micros() > LEAST_STEP as u128);

/// The marks of all shards that a node looks at, by queue and shard.
#[derive(Debug, Default)]
pub(super) struct Marks {
    marks: BTreeMap<(usize, u16), StoreTime>,
    /// The latest horizon that a sight was beyond.
    reached: Option<Horizon>,
    /// A horizon that no sight was beyond yet. It is not replaced, so that it is reached even if new
    /// ones come all the time.
    awaited: Option<Horizon>,
}

impl Marks {
    pub(super) fn get(&self, queue: usize, shard: u16) -> Option<StoreTime> {
        self.marks.get(&(queue, shard)).copied()
    }

    pub(super) fn learn(&mut self, horizon: Option<Horizon>) {
        if self.awaited.is_none() {
            self.awaited = horizon;
        }
    }

    /// A sight has everything below this number. Returns how far marks may go by it.
    pub(super) fn bound(&mut self, complete_below: Option<u64>) -> Option<StoreTime> {
        let complete = complete_below?;
        if let Some(horizon) = self.awaited.filter(|horizon| complete >= horizon.number) {
            self.reached = Some(horizon);
            self.awaited = None;
        }
        let reached = self.reached.filter(|horizon| complete >= horizon.number)?;
        Some(reached.at.back_by(MARGIN))
    }

    pub(super) fn set(&mut self, queue: usize, shard: u16, mark: StoreTime) {
        self.marks.insert((queue, shard), mark);
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
    }
}
