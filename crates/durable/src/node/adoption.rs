//! Claims whose answers were lost: rows that the node has claimed and does not hold.
//!
//! One poll is no proof, since it may be older than a claim or a settlement whose answer has
//! arrived in the meantime. Two polls in a row are, if no claim of the key was under way from the
//! sending of each to its answer: the second one was sent after all that the first one could have
//! missed.

use std::collections::{BTreeMap, BTreeSet};

use super::interface::Place;
use super::load::Load;

/// The generation and attempt of a row that the node has claimed, and its shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Orphan {
    pub(super) generation: i64,
    pub(super) attempt: u32,
    pub(super) shard: u16,
    /// The length of the payload.
    pub(super) bytes: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Adoption {
    /// Seen in the last poll of their shard.
    seen_once: BTreeMap<Place, Orphan>,
    /// Seen in the last two polls of their shard.
    sure: BTreeMap<Place, Orphan>,
    /// Shards that are polled whole, whoever owns them, until nothing is in doubt there.
    doubtful: BTreeSet<(usize, u16)>,
    /// Shards that came into doubt after the current poll was sent. Its answer says nothing about
    /// them.
    new_doubts: BTreeSet<(usize, u16)>,
    /// Whether a claim was lost, so that the next polls are made at once. An orphan that can't be
    /// adopted, since its row is locked, must not keep the node polling.
    eager: bool,
}

impl Adoption {
    pub(super) fn doubtful(&self) -> &BTreeSet<(usize, u16)> {
        &self.doubtful
    }

    pub(super) fn doubt(&mut self, queue: usize, shard: u16) {
        self.doubtful.insert((queue, shard));
        self.new_doubts.insert((queue, shard));
        self.eager = true;
    }

    /// A poll is sent.
    pub(super) fn poll_sent(&mut self) {
        self.new_doubts.clear();
    }

    /// Takes a poll of one shard: the orphans that it showed, and whether it showed all. Returns
    /// whether another poll is needed at once.
    pub(super) fn saw(
        &mut self,
        queue: usize,
        shard: u16,
        orphans: Vec<(Place, Orphan)>,
        complete: bool,
    ) -> bool {
        let before: Vec<Place> = self
            .seen_once
            .iter()
            .filter(|(place, orphan)| place.0 == queue && orphan.shard == shard)
            .map(|(place, _)| place.clone())
            .collect();
        let mut before: BTreeMap<Place, Orphan> = before
            .into_iter()
            .filter_map(|place| self.seen_once.remove_entry(&place))
            .collect();
        self.sure
            .retain(|place, orphan| place.0 != queue || orphan.shard != shard);
        let is_new = self.new_doubts.contains(&(queue, shard));
        match orphans.is_empty() && complete && !is_new {
            true => self.doubtful.remove(&(queue, shard)),
            false => !orphans.is_empty() && self.doubtful.insert((queue, shard)),
        };
        self.eager &= !self.doubtful.is_empty();
        let mut again = false;
        for (place, orphan) in orphans {
            if before.remove(&place) == Some(orphan) {
                self.sure.insert(place.clone(), orphan);
            } else {
                again = self.eager;
            }
            self.seen_once.insert(place, orphan);
        }
        again
    }

    /// Takes up to `limit` orphans for a claim, and of each queue no more than there is `room` for.
    /// Their payloads fit into `load`, which then has them. The others stay: the node has claimed
    /// them, so nobody else takes them meanwhile.
    pub(super) fn take_sure(
        &mut self,
        limit: usize,
        mut room: Vec<usize>,
        load: &mut Load,
    ) -> Vec<(Place, Orphan)> {
        self.eager &= self.sure.is_empty();
        let fitting = self.sure.iter().filter_map(|(place, orphan)| {
            let left = &mut room[place.0];
            let fits = *left > 0 && load.take(orphan.bytes);
            *left -= usize::from(fits);
            fits.then_some(place)
        });
        let fitting: Vec<Place> = fitting.take(limit).cloned().collect();
        let taken = fitting.into_iter().filter_map(|place| {
            // Only two further polls make it sure again.
            self.seen_once.remove(&place);
            self.sure.remove_entry(&place)
        });
        taken.collect()
    }

    pub(super) fn clear(&mut self) {
        *self = Adoption::default();
    }
}
