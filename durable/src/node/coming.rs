//! The timers of one queue that are due soon, as far as the node knows them. They are hints: a timer
//! may have been cancelled, moved or claimed since, and the claim decides.

use std::collections::{BTreeMap, BTreeSet};

use crate::store::SHARDS;
use crate::time::StoreTime;

/// A timer that is due soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Expected {
    pub(super) due: StoreTime,
    pub(super) shard: u16,
    /// Whether its nodes died so often that it is claimed alone.
    pub(super) suspect: bool,
}

/// Timers by their due times. The number is bounded; the earliest are kept.
#[derive(Debug)]
pub(super) struct Coming {
    limit: usize,
    by_key: BTreeMap<Box<str>, Expected>,
    by_due: BTreeSet<(StoreTime, Box<str>)>,
    suspects: BTreeSet<(StoreTime, Box<str>)>,
    in_shard: Vec<u32>,
    /// Shards of which not all timers are known that are due within the window of a look, and where
    /// what was left out begins.
    unread: BTreeMap<u16, Unread>,
}

/// Where to go on reading a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unread {
    /// What was left out is due at this time or later.
    pub(super) from: StoreTime,
    /// Timers that are due at exactly this time and were read. A look that goes on reads them again.
    pub(super) ties: usize,
}

impl Coming {
    pub(super) fn new(limit: usize) -> Self {
        Coming {
            limit,
            by_key: BTreeMap::new(),
            by_due: BTreeSet::new(),
            suspects: BTreeSet::new(),
            in_shard: vec![0; usize::from(SHARDS)],
            unread: BTreeMap::new(),
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

    /// Whether less than a half is left, and there may be more to read.
    pub(super) fn runs_out(&self) -> bool {
        !self.unread.is_empty() && self.len() < self.limit / 2
    }

    /// Adds a timer, or takes its new due time. If there are too many, the latest one is left out,
    /// and its shard is noted as unread.
    pub(super) fn insert(&mut self, key: &str, expected: Expected) {
        self.remove(key);
        // Suspects run one by one, so that many of them wait for long. They leave room for the others.
        if expected.suspect && self.suspects.len() >= self.limit / 4 {
            self.leave_out(expected);
            return;
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
        self.order(expected.suspect).remove(&(expected.due, key));
        if let Some(count) = self.in_shard.get_mut(usize::from(expected.shard)) {
            *count -= 1;
        }
        Some(expected)
    }

    /// The due time of the earliest timer.
    pub(super) fn first(&self, suspect: bool) -> Option<StoreTime> {
        let order = match suspect {
            true => &self.suspects,
            false => &self.by_due,
        };
        order.first().map(|(due, _)| *due)
    }

    /// Takes the earliest timer, if it is due at `now`.
    pub(super) fn take_due(
        &mut self,
        now: StoreTime,
        suspect: bool,
    ) -> Option<(Box<str>, Expected)> {
        let (_, key) = self.order(suspect).first().filter(|(due, _)| *due <= now)?;
        let key = key.clone();
        let expected = self.remove(&key)?;
        Some((key, expected))
    }

    pub(super) fn clear(&mut self) {
        *self = Coming::new(self.limit);
    }
}
