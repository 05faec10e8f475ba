//! The timers of one queue that are due soon, as far as the node knows them. They are hints: a
//! timer may have been cancelled, moved or claimed since, and the claim decides.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::interface::Mono;
use crate::store::{SHARDS, StoreTime};

/// A timer that is due soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Expected {
    pub(super) due: StoreTime,
    pub(super) shard: u16,
    /// Whether its nodes died so often that it is claimed alone.
    pub(super) suspect: bool,
    /// The length of its payload.
    pub(super) bytes: u64,
}

/// Timers by their due times. The number is bounded; the earliest are kept.
#[derive(Debug)]
pub(super) struct UpcomingTimers {
    limit: usize,
    by_key: BTreeMap<Box<str>, Expected>,
    by_due: BTreeSet<(StoreTime, Box<str>)>,
    suspects: BTreeSet<(StoreTime, Box<str>)>,
    /// Timers that a claim has not returned. They are tried again when all others that are due have
    /// been claimed.
    again: BTreeSet<(StoreTime, Box<str>)>,
    in_shard: Vec<u32>,
    /// Shards with further timers that are due within the window of a poll and are not known here,
    /// and the place where these begin.
    unread: BTreeMap<u16, Unread>,
    /// Due timers that a claim did not return. Their rows are locked or gone, or the store refuses
    /// them. They must not hide the timers behind them.
    refused: BTreeMap<Box<str>, NotReturned>,
}

/// A due timer that a claim did not return.
#[derive(Clone, Copy, Debug)]
struct NotReturned {
    shard: u16,
    /// When it was due. A timer of the same key with another due time is not refused.
    due: StoreTime,
    /// How often the store has refused it.
    tries: u32,
    /// It is not claimed before.
    pause_end: Mono,
}

/// The first pause after which a timer is claimed again that the store refuses.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The greatest number of timers that are known as refused.
const MOST_REFUSED: usize = 2_000;

/// Where to go on reading a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unread {
    /// The timers that the poll left out are due at this time or later.
    pub(super) from: StoreTime,
    /// Timers that are due at exactly this time and were read. A poll that goes on reads them
    /// again.
    pub(super) ties: usize,
}

impl UpcomingTimers {
    pub(super) fn new(limit: usize) -> Self {
        UpcomingTimers {
            limit,
            by_key: BTreeMap::new(),
            by_due: BTreeSet::new(),
            suspects: BTreeSet::new(),
            again: BTreeSet::new(),
            in_shard: vec![0; usize::from(SHARDS)],
            unread: BTreeMap::new(),
            refused: BTreeMap::new(),
        }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn in_shard(&self, shard: u16) -> usize {
        self.in_shard
            .get(usize::from(shard))
            .map_or(0, |n| *n as usize)
    }

    /// Where to go on reading a shard of which not all is known.
    pub(super) fn unread(&self, shard: u16) -> Option<Unread> {
        self.unread.get(&shard).copied()
    }

    /// Whether there is a shard of which not all is known.
    pub(super) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Notes from where on the timers of a shard within the window were not read. `None`: all were.
    pub(super) fn set_unread(&mut self, shard: u16, unread: Option<Unread>) {
        match unread {
            Some(unread) => self.unread.insert(shard, unread),
            None => self.unread.remove(&shard),
        };
    }

    /// A timer is left out.
    fn leave_out(&mut self, expected: Expected) {
        let from = expected.due;
        let unread = self.unread.get(&expected.shard);
        if unread.is_none_or(|unread| from < unread.from) {
            self.unread.insert(expected.shard, Unread { from, ties: 0 });
        }
    }

    /// A claim did not return a timer that was due. The next poll that shows it makes it claimed
    /// again.
    pub(super) fn refuse(&mut self, key: Box<str>, expected: &Expected) {
        self.note_refused(key, expected, 0, Mono::ZERO);
    }

    /// The store refuses a timer. It is claimed again after a pause, which doubles each time up to
    /// `longest`, so that many of them leave time for others.
    pub(super) fn refuse_later(
        &mut self,
        key: Box<str>,
        expected: &Expected,
        now: Mono,
        longest: Duration,
    ) {
        let known = self.refused.get(&key);
        let tries = known
            .filter(|known| known.due == expected.due)
            .map_or(0, |known| known.tries);
        let pause = FIRST_PAUSE.saturating_mul(1 << tries.min(31));
        let pause_end = now + pause.min(longest).max(FIRST_PAUSE);
        self.note_refused(key, expected, tries.saturating_add(1), pause_end);
    }

    fn note_refused(&mut self, key: Box<str>, expected: &Expected, tries: u32, pause_end: Mono) {
        if self.refused.len() < MOST_REFUSED || self.refused.contains_key(&key) {
            let refused = NotReturned {
                shard: expected.shard,
                due: expected.due,
                tries,
                pause_end,
            };
            self.refused.insert(key, refused);
        }
    }

    /// A claim returned a timer.
    pub(super) fn granted(&mut self, key: &str) {
        self.remove(key);
        self.refused.remove(key);
    }

    /// Until when a timer that a poll shows is not claimed, since it was refused before. `None`: it
    /// was not.
    pub(super) fn refused_until(&self, key: &str, due: StoreTime) -> Option<Mono> {
        let refused = self.refused.get(key)?;
        (refused.due == due).then_some(refused.pause_end)
    }

    /// The number of refused timers, by shards.
    pub(super) fn refused_in_shards(&self) -> BTreeMap<u16, usize> {
        let mut counts = BTreeMap::new();
        for refused in self.refused.values() {
            *counts.entry(refused.shard).or_default() += 1;
        }
        counts
    }

    /// A poll has shown a shard from its beginning. Refused timers that it did not show are
    /// forgotten.
    pub(super) fn keep_refused(&mut self, shard: u16, is_shown: impl Fn(&str) -> bool) {
        self.refused
            .retain(|key, of| of.shard != shard || is_shown(key));
    }

    /// Adds a refused timer, which is tried again when nothing else is due. It takes no room from
    /// others.
    pub(super) fn try_again(&mut self, key: &str, expected: Expected) {
        if self.len() >= self.limit / 2 {
            return;
        }
        self.insert(key, expected);
        if self.by_due.remove(&(expected.due, key.into())) {
            self.again.insert((expected.due, key.into()));
        }
    }

    /// Whether less than a half is left, and there may be more to read.
    pub(super) fn runs_out(&self) -> bool {
        !self.unread.is_empty() && self.len() - self.again.len() < self.limit / 2
    }

    /// Adds a timer, or takes its new due time. If there are too many, the latest one is left out,
    /// and its shard is noted as unread.
    pub(super) fn insert(&mut self, key: &str, expected: Expected) {
        self.remove(key);
        // Suspects run one by one, so that many of them wait for long. They leave room for the
        // others.
        if expected.suspect && self.suspects.len() >= self.limit / 4 {
            self.leave_out(expected);
            return;
        }
        if self.len() >= self.limit
            && let Some((_, key)) = self.again.last().cloned()
        {
            self.remove(&key);
        }
        if self.len() >= self.limit {
            let latest = self
                .by_due
                .last()
                .max(self.suspects.last())
                .filter(|(due, _)| *due > expected.due)
                .map(|(_, key)| key.clone());
            let Some(latest) = latest else {
                self.leave_out(expected);
                return;
            };
            if let Some(left_out) = self.remove(&latest) {
                self.leave_out(left_out);
            }
        }
        self.by_key.insert(key.into(), expected);
        self.order(expected.suspect)
            .insert((expected.due, key.into()));
        if let Some(count) = self.in_shard.get_mut(usize::from(expected.shard)) {
            *count += 1;
        }
    }

    fn order(&mut self, suspect: bool) -> &mut BTreeSet<(StoreTime, Box<str>)> {
        match suspect {
            true => &mut self.suspects,
            false => &mut self.by_due,
        }
    }

    pub(super) fn remove(&mut self, key: &str) -> Option<Expected> {
        let (key, expected) = self.by_key.remove_entry(key)?;
        let entry = (expected.due, key);
        if !self.order(expected.suspect).remove(&entry) {
            self.again.remove(&entry);
        }
        if let Some(count) = self.in_shard.get_mut(usize::from(expected.shard)) {
            *count -= 1;
        }
        Some(expected)
    }

    /// The earliest timer, except those that are tried again.
    fn next(&self, suspect: bool) -> Option<&(StoreTime, Box<str>)> {
        match suspect {
            true => self.suspects.first(),
            false => self.by_due.first(),
        }
    }

    /// The due time of the earliest timer.
    pub(super) fn first(&self, suspect: bool) -> Option<StoreTime> {
        let again = self.again.first().filter(|_| !suspect);
        let first = self.next(suspect).into_iter().chain(again).min();
        first.map(|(due, _)| *due)
    }

    /// The earliest timer that is due at `now`. Those that are tried again are the last.
    fn first_due(&self, now: StoreTime, suspect: bool) -> Option<&str> {
        let is_due = |entry: &&(StoreTime, Box<str>)| entry.0 <= now;
        let again = self.again.first().filter(|_| !suspect);
        let next = self.next(suspect).filter(is_due);
        let (_, key) = next.or(again).filter(is_due)?;
        Some(key)
    }

    /// The length of the payload of a timer that is known.
    pub(super) fn bytes_of(&self, key: &str) -> Option<u64> {
        Some(self.by_key.get(key)?.bytes)
    }

    /// The length of the payload of the timer that [`take_due`](Self::take_due) takes.
    pub(super) fn due_bytes(&self, now: StoreTime, suspect: bool) -> Option<u64> {
        self.bytes_of(self.first_due(now, suspect)?)
    }

    /// Takes the earliest timer that is due at `now`. Those that are tried again are the last.
    pub(super) fn take_due(
        &mut self,
        now: StoreTime,
        suspect: bool,
    ) -> Option<(Box<str>, Expected)> {
        let key: Box<str> = self.first_due(now, suspect)?.into();
        let expected = self.remove(&key)?;
        Some((key, expected))
    }

    pub(super) fn clear(&mut self) {
        *self = UpcomingTimers::new(self.limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due_at(micros: i64) -> Expected {
        Expected {
            due: StoreTime::from_micros(micros),
            shard: 3,
            suspect: false,
            bytes: 4,
        }
    }

    #[test]
    fn a_shard_is_read_on_from_the_first_timer_that_was_left_out() {
        let mut upcoming = UpcomingTimers::new(1);
        for (due, from) in [(10, None), (5, Some(10)), (7, Some(7)), (20, Some(7))] {
            upcoming.insert(&format!("k{due}"), due_at(due));
            let unread = upcoming.unread(3).map(|unread| unread.from);
            assert_eq!(unread, from.map(StoreTime::from_micros), "{due}");
        }
    }

    #[test]
    fn timers_that_are_tried_again_do_not_keep_the_others_from_running_out() {
        let mut upcoming = UpcomingTimers::new(8);
        let from = StoreTime::from_micros(100);
        upcoming.set_unread(3, Some(Unread { from, ties: 0 }));
        for due in 0..3 {
            upcoming.try_again(&format!("again{due}"), due_at(due));
        }
        for due in 0..4 {
            assert!(upcoming.runs_out(), "{due} others");
            upcoming.insert(&format!("k{due}"), due_at(due));
        }
        assert!(!upcoming.runs_out(), "a half is left");
    }
}
