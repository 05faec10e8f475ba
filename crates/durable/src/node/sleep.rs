//! Parts that sleep: a node with many queues does not ask for each of them.
//!
//! A *part* is a shard of a queue. With few parts all are awake, and each poll asks for each of
//! them by a range. With more than [`MOST_AWAKE`] they sleep until they have something due. A poll
//! at everything then asks for the parts that are awake, and has a *band* for each shard, which
//! shows the parts that have timers within three intervals. So what an idle node costs does not
//! depend on the number of its queues.
//!
//! ```text
//!            a band or a range shows a timer
//!   asleep ---------------------------------> awake
//!     ^   one mark for all of a shard           |  a mark and a range of its own
//!     '-----------------------------------------'
//!       its range is empty, and the band of the same snapshot does not show it
//! ```
//!
//! The mark of a shard holds for each part in it that sleeps: none has a timer that is due before
//! the mark, except what live nodes have claimed. The module `marks` says why a mark of one part is
//! right. This one is right too:
//!
//! 1. A band begins at the mark of its shard, and its snapshot shows what a range of each part
//!    would show there. So a part that sleeps and is not shown has nothing before the bound of that
//!    snapshot, and the mark may go there.
//! 2. A part that is shown wakes. Its own mark is not later than its first timer.
//! 3. A node that is not the owner takes only what is overdue. A part of it that has such a timer,
//!    and is not overdue enough, holds up the mark of the shard. It is overdue enough within three
//!    intervals.
//! 4. A part goes to sleep by a snapshot that moves the mark of its shard, or while there is none,
//!    if neither its range nor the band shows anything of it.
//! 5. A band that its limit has cut shows nothing for sure: then the next poll asks for each part
//!    of the shard, and so do some further ones, since the next band would be cut as well. Such a
//!    poll also moves the mark of the shard: each part of it was asked.
//! 6. When the parts change, and when marks are dropped, the mark of each shard is dropped. A
//!    paused queue has no part that is awake. When it goes on, all its parts are.
//!
//! The mistakes that a whole shard in turn would mend are mended twice. The band of that shard
//! begins without a mark. And some queues, in turn, are polled whole in all their shards.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::marks::Marks;
use super::shards::Part;
use crate::store::{Band, Offset, SHARDS, StoreSnapshot, StoreTime};

/// The greatest number of parts that are all awake: 16 queues of a node that is alone.
pub(crate) const MOST_AWAKE: usize = 1_024;

/// The number of polls that ask for each part of a shard whose band was cut.
const FULL_POLLS: u8 = 8;

/// The greatest number of queues that are polled whole at one time, and the part of the queues
/// that they are at most. A node whose parts sleep has 17 queues at least.
const WHOLE_QUEUES: usize = 8;
const WHOLE_PART: usize = 16;

/// The number of timers that are read in the bands of a poll, as a part of the number of parts, and
/// the bounds for one band. A timer is read in about the time of a range, or less. So a survey that
/// is cut costs little beside the poll of all parts that follows.
const LIMIT_PART: usize = 4;
const LEAST_LIMIT: usize = 64;
const MOST_LIMIT: usize = 1_024;

const _: () = assert!(
    SHARDS as u32 == u64::BITS,
    "a queue has a bit for each shard"
);

/// A queue, by its number, and a shard.
pub(super) type PartName = (usize, u16);

/// One band of the poll that is under way.
#[derive(Clone, Copy, Debug)]
struct AskedBand {
    shard: u16,
    mark: Option<StoreTime>,
    /// Whether it is the band of the shard whose turn it is, and begins without a mark.
    whole: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Sleep {
    most_awake: usize,
    /// The number of parts, if some may sleep.
    parts: Option<usize>,
    /// The shards of each queue that are awake.
    awake: Vec<u64>,
    /// The number of polls that ask for each part of a shard.
    full: Vec<u8>,
    /// Parts that a band has woken and that the next poll must show, since they are due before
    /// another one.
    fresh: BTreeSet<PartName>,
    asked: Vec<AskedBand>,
    /// The shards of which the poll that is under way asks for each part.
    asked_full: u64,
    /// Whether the parts have changed since the poll was sent.
    stale: bool,
    /// The first one of the queues that are polled whole.
    turn: usize,
}

/// What a survey has shown of the parts of the node's queues.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// The parts that have timers within three intervals, and the first one of each.
    firsts: BTreeMap<PartName, StoreTime>,
    /// The same of the band that begins without a mark.
    whole: BTreeMap<PartName, StoreTime>,
    /// The shards whose marks the snapshot may move.
    sure: u64,
    /// Whether a band was cut.
    pub(super) is_cut: bool,
}

/// What a range has shown of its part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Took {
    /// Whether it has shown that there is nothing.
    pub(super) is_empty: bool,
    /// Whether the node is none of those that poll the part each time.
    pub(super) is_last_rank: bool,
    /// What the snapshot says of the part's mark, if it moves marks.
    pub(super) mark: Option<StoreTime>,
}

fn bit(shard: u16) -> u64 {
    1 << (shard % SHARDS)
}

fn shards_of(parts: &[Part]) -> u64 {
    parts
        .iter()
        .fold(0, |shards, part| shards | bit(part.shard))
}

impl Sleep {
    pub(super) fn new(most_awake: usize, queues: usize) -> Self {
        Sleep {
            most_awake,
            parts: None,
            awake: vec![0; queues],
            full: vec![0; usize::from(SHARDS)],
            fresh: BTreeSet::new(),
            asked: Vec::new(),
            asked_full: 0,
            stale: false,
            turn: 0,
        }
    }

    /// Whether parts may sleep.
    pub(super) fn is_on(&self) -> bool {
        self.parts.is_some()
    }

    fn is_asleep(&self, (queue, shard): PartName) -> bool {
        self.is_on() && self.awake[queue] & bit(shard) == 0
    }

    /// Forgets all that it knew.
    pub(super) fn clear(&mut self) {
        let turn = self.turn;
        *self = Sleep {
            turn,
            ..Sleep::new(self.most_awake, self.awake.len())
        };
    }

    /// The parts have changed. `parts` has those of each queue now.
    pub(super) fn parts_changed(&mut self, parts: &[Vec<Part>], marks: &mut Marks) {
        let was_on = self.is_on();
        let count = parts.iter().map(Vec::len).sum();
        self.parts = (count > self.most_awake).then_some(count);
        if self.is_on() != was_on {
            self.awake.fill(0);
            self.full.fill(0);
            self.fresh.clear();
        }
        for (awake, parts) in self.awake.iter_mut().zip(parts) {
            *awake &= shards_of(parts);
        }
        self.stale = true;
        marks.drop_shards();
    }

    /// The mark from which on a part is asked for.
    pub(super) fn mark(&self, part: PartName, marks: &Marks) -> Option<StoreTime> {
        match self.is_asleep(part) {
            true => marks.of_shard(part.1),
            false => marks.get(part.0, part.1),
        }
    }

    /// Whether a poll of everything asks for a part of this queue.
    pub(super) fn wants_queue(&self, queue: usize) -> bool {
        self.awake[queue] != 0 || self.asked_full != 0
    }

    /// Whether a poll of everything asks for this part.
    pub(super) fn wants(&self, part: PartName) -> bool {
        !self.is_asleep(part) || self.asked_full & bit(part.1) != 0
    }

    /// Whether a part was woken that the next poll must show.
    pub(super) fn has_fresh(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// The parts that were woken and that the next poll must show.
    pub(super) fn take_fresh(&mut self) -> BTreeSet<PartName> {
        std::mem::take(&mut self.fresh)
    }

    /// Whether it is the turn of this queue to be polled whole.
    pub(super) fn is_turn_of(&self, queue: usize) -> bool {
        let count = self.awake.len();
        (queue + count - self.turn) % count < self.whole_queues()
    }

    fn whole_queues(&self) -> usize {
        (self.awake.len() / WHOLE_PART).min(WHOLE_QUEUES)
    }

    /// The poll is over, or it failed.
    pub(super) fn poll_ended(&mut self) {
        self.asked.clear();
        self.asked_full = 0;
        self.stale = false;
    }

    /// Begins a poll of everything. `turn` is the shard that is polled whole.
    pub(super) fn ask(
        &mut self,
        interval: Duration,
        turn: Option<u16>,
        marks: &Marks,
    ) -> Vec<Band> {
        self.poll_ended();
        let Some(parts) = self.parts else {
            return Vec::new();
        };
        let limit = parts / LIMIT_PART / usize::from(SHARDS);
        let limit = limit.clamp(LEAST_LIMIT, MOST_LIMIT) as u32;
        let mut bands = Vec::new();
        for shard in 0..SHARDS {
            let full = &mut self.full[usize::from(shard)];
            if *full > 0 {
                *full -= 1;
                self.asked_full |= bit(shard);
                continue;
            }
            let mark = marks.of_shard(shard);
            let whole = false;
            self.asked.push(AskedBand { shard, mark, whole });
            bands.push(Band {
                shard,
                mark,
                until: Offset::Ahead(interval * 3),
                limit,
            });
        }
        if let Some(shard) = turn {
            self.turn = (self.turn + self.whole_queues()) % self.awake.len().max(1);
            self.asked.push(AskedBand {
                shard,
                mark: None,
                whole: true,
            });
            bands.push(Band {
                shard,
                mark: None,
                until: Offset::Ahead(Duration::ZERO),
                limit,
            });
        }
        bands
    }

    /// Reads the survey of a snapshot.
    pub(super) fn read(
        &mut self,
        snapshot: &StoreSnapshot,
        number_of: impl Fn(&str) -> Option<usize>,
        marks: &Marks,
    ) -> Shown {
        let mut shown = Shown {
            sure: self.asked_full,
            ..Shown::default()
        };
        for (index, band) in self.asked.iter().enumerate() {
            let is_cut = snapshot
                .survey
                .as_ref()
                .is_none_or(|survey| survey.cut.contains(&index));
            if is_cut && !band.whole {
                self.full[usize::from(band.shard)] = FULL_POLLS;
                shown.is_cut = true;
            }
            // The mark may have been dropped since.
            let is_sure = !is_cut && !band.whole && band.mark == marks.of_shard(band.shard);
            shown.sure |= if is_sure { bit(band.shard) } else { 0 };
        }
        if self.stale {
            shown.sure = 0;
        }
        for part in snapshot.survey.iter().flat_map(|survey| &survey.parts) {
            let (Some(number), Some(band)) = (number_of(&part.queue), self.asked.get(part.band))
            else {
                continue;
            };
            let firsts = match band.whole {
                true => &mut shown.whole,
                false => &mut shown.firsts,
            };
            firsts.insert((number, band.shard), part.first);
        }
        shown
    }

    /// Takes in what a range has shown.
    pub(super) fn took(
        &mut self,
        part: PartName,
        Took {
            is_empty,
            is_last_rank,
            mark,
        }: Took,
        shown: &Shown,
        marks: &mut Marks,
    ) {
        if !self.is_on() {
            if let Some(mark) = mark {
                marks.set(part.0, part.1, mark);
            }
            return;
        }
        // Without a mark of the shard nothing depends on it.
        let is_marked = mark.is_some() || marks.of_shard(part.1).is_none();
        let is_sure = is_marked && shown.sure & bit(part.1) != 0;
        let is_quiet = is_empty && !shown.firsts.contains_key(&part);
        if is_last_rank || is_quiet && is_sure {
            self.awake[part.0] &= !bit(part.1);
            marks.drop_part(part);
        } else if !is_empty || !self.is_asleep(part) {
            self.wake(part, marks);
            if let Some(mark) = mark {
                marks.set(part.0, part.1, mark);
            }
        }
    }

    /// Wakes a part. Its own mark is the one that it had as it slept.
    pub(super) fn wake(&mut self, part: PartName, marks: &mut Marks) {
        if !self.is_asleep(part) {
            return;
        }
        self.awake[part.0] |= bit(part.1);
        match marks.of_shard(part.1) {
            Some(mark) => marks.set(part.0, part.1, mark),
            None => marks.drop_part(part),
        }
    }

    /// Wakes all parts of a queue that goes on after a pause, without marks, or lets all of them
    /// sleep.
    pub(super) fn paused(&mut self, queue: usize, paused: bool, parts: &[Part]) {
        self.awake[queue] = if paused { 0 } else { shards_of(parts) };
    }

    /// Wakes the parts that the survey has shown, and moves the marks of the shards to `bound`.
    /// `late_enough` returns the time before which a part's timer must be due for this node to take
    /// it, or `None` for a part that it has nothing to do with now. Timers that are due before
    /// `soon` must be seen at once.
    pub(super) fn finish(
        &mut self,
        shown: &Shown,
        bound: Option<StoreTime>,
        soon: StoreTime,
        late_enough: impl Fn(PartName, bool) -> Option<StoreTime>,
        marks: &mut Marks,
    ) {
        let mut holds: BTreeMap<u16, StoreTime> = BTreeMap::new();
        for (part, first) in &shown.firsts {
            let Some(late) = late_enough(*part, false) else {
                continue;
            };
            if !self.is_asleep(*part) {
                continue;
            }
            if *first > late {
                let hold = holds.entry(part.1).or_insert(*first);
                *hold = (*hold).min(*first);
                continue;
            }
            self.wake(*part, marks);
            if let Some(bound) = bound.filter(|_| shown.sure & bit(part.1) != 0) {
                marks.set(part.0, part.1, bound.min(*first));
            }
            if *first < soon {
                self.fresh.insert(*part);
            }
        }
        for (part, first) in &shown.whole {
            let late = late_enough(*part, true);
            if late.is_none_or(|late| *first > late) {
                continue;
            }
            let is_hidden = self.mark(*part, marks).is_some_and(|mark| *first < mark);
            if self.is_asleep(*part) || is_hidden {
                self.wake(*part, marks);
                marks.drop_part(*part);
                self.fresh.insert(*part);
            }
        }
        if let Some(bound) = bound {
            for shard in (0..SHARDS).filter(|shard| shown.sure & bit(*shard) != 0) {
                let hold = holds.get(&shard).copied();
                marks.set_shard(shard, hold.map_or(bound, |hold| hold.min(bound)));
            }
        }
        self.poll_ended();
    }
}
