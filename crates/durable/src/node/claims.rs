//! Claims: which timers a node asks for, and when.

use std::collections::{BTreeMap, BTreeSet};

use super::adoption::{Adoption, Orphan};
use super::clock::Estimate;
use super::interface::{Mono, Place};
use super::load::Load;
use super::queue::Queue;
use super::runs::HeldRuns;
use super::upcoming::Expected;
use crate::store::{Claim, Epoch, Run, StoreTime, Wanted};

/// The greatest number of timers in a claim.
const MOST_CLAIMED: usize = 1_000;
/// With this many ends of a queue that the store does not know, nothing of it is claimed.
const MOST_UNSETTLED: usize = 4_000;

/// The lease that a claim is sent in.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClaimTerm {
    pub(super) epoch: Epoch,
    pub(super) now: Mono,
    pub(super) end: Mono,
}

/// The claim that is under way.
#[derive(Debug, Default)]
pub(super) struct Claims {
    wanted: Vec<(Place, Expected)>,
    adopt: Vec<(Place, Orphan)>,
    /// Whether the last claim was that of a suspect, so that the next one is not.
    was_suspect: bool,
    /// Whether the last claim adopted runs, so that the next one takes due timers first.
    was_adoption: bool,
    /// The queue whose turn it is to be first.
    turn: usize,
    /// The greatest number of timers in the next claim.
    limit: usize,
}

/// The answer to a claim concerns these.
#[derive(Debug)]
pub(super) struct Requested {
    pub(super) wanted: Vec<(Place, Expected)>,
    pub(super) adopt: Vec<(Place, Orphan)>,
}

impl Requested {
    pub(super) fn places(&self) -> impl Iterator<Item = &Place> {
        let wanted = self.wanted.iter().map(|(place, _)| place);
        wanted.chain(self.adopt.iter().map(|(place, _)| place))
    }
}

impl Claims {
    pub(super) fn new() -> Self {
        Claims {
            limit: MOST_CLAIMED,
            ..Claims::default()
        }
    }

    /// The places that the claim that is under way may change.
    pub(super) fn places(&self) -> BTreeSet<Place> {
        let wanted = self.wanted.iter().map(|(place, _)| place);
        let adopt = self.adopt.iter().map(|(place, _)| place);
        wanted.chain(adopt).cloned().collect()
    }

    /// The number of timers of a queue in the claim that is under way, by shards.
    pub(super) fn in_shards(&self, queue: usize) -> BTreeMap<u16, usize> {
        let wanted = self.wanted.iter().map(|(place, one)| (place, one.shard));
        let adopt = self.adopt.iter().map(|(place, one)| (place, one.shard));
        let mut counts = BTreeMap::new();
        for (place, shard) in wanted.chain(adopt) {
            if place.0 == queue {
                *counts.entry(shard).or_default() += 1;
            }
        }
        counts
    }

    pub(super) fn is_under_way(&self) -> bool {
        !self.wanted.is_empty() || !self.adopt.is_empty()
    }

    pub(super) fn contains(&self, place: &Place) -> bool {
        self.wanted.iter().any(|(wanted, _)| wanted == place)
    }

    /// The claim was answered, or failed.
    pub(super) fn take(&mut self) -> Requested {
        Requested {
            wanted: std::mem::take(&mut self.wanted),
            adopt: std::mem::take(&mut self.adopt),
        }
    }

    /// A claim was refused: one of its timers may be the reason.
    pub(super) fn shrink(&mut self, size: usize) {
        self.limit = (size / 2).max(1);
    }

    /// A claim succeeded.
    pub(super) fn grow(&mut self) {
        self.limit = (self.limit * 2).min(MOST_CLAIMED);
    }

    /// Writes a claim of what is due, or returns the time at which something is.
    pub(super) fn ask(
        &mut self,
        ClaimTerm { epoch, now, end }: ClaimTerm,
        clock: &Estimate,
        queues: &mut [Queue],
        runs: &HeldRuns,
        adoption: &mut Adoption,
    ) -> Result<Claim, Option<Mono>> {
        let Some(store_now) = clock.at(now) else {
            return Err(None);
        };
        for (number, queue) in queues.iter_mut().enumerate() {
            queue.is_clogged = runs.unsettled_of(number) >= MOST_UNSETTLED;
        }
        self.choose(now, store_now, queues, runs, adoption);
        if !self.is_under_way() {
            return Err(next(clock, now, queues, runs));
        }
        Ok(Claim {
            epoch,
            // The estimate is not later than the store's clock, so this moment is not later than
            // the end of the lease. If the store's clock runs slower, it is later by a round trip
            // at most, and others wait for longer than the lease by more than that.
            deadline: store_now + end.saturating_sub(now),
            timers: self.timers(queues),
            adopt: self.runs_to_adopt(queues),
        })
    }

    /// Chooses what to claim. Runs to adopt and due timers come first in turn, so that a backlog of
    /// one kind never keeps the other one out. So do suspects and all else.
    fn choose(
        &mut self,
        now: Mono,
        store_now: StoreTime,
        queues: &mut [Queue],
        runs: &HeldRuns,
        adoption: &mut Adoption,
    ) {
        self.wanted.clear();
        self.adopt.clear();
        let mut load = Load::default();
        let adopts_first = !self.was_adoption;
        if adopts_first {
            self.adopt(now, queues, runs, adoption, &mut load);
        }
        // A suspect is claimed alone: it may kill the process, and all that was claimed with it.
        if !self.was_suspect && self.adopt.is_empty() {
            self.pick_suspect(now, store_now, queues, runs);
        }
        self.was_suspect = !self.wanted.is_empty();
        if self.wanted.is_empty() {
            self.pick(now, store_now, queues, runs, &mut load);
            if !adopts_first {
                self.adopt(now, queues, runs, adoption, &mut load);
            }
        }
        self.was_adoption = !self.adopt.is_empty() && adopts_first;
        // It was not the turn of suspects, but there is nothing else.
        if self.wanted.is_empty() && self.adopt.is_empty() && !self.was_suspect {
            self.pick_suspect(now, store_now, queues, runs);
            self.was_suspect = !self.wanted.is_empty();
        }
    }

    /// The timers to claim, as the store knows them.
    fn timers(&self, queues: &[Queue]) -> Vec<Wanted> {
        let wanted = self.wanted.iter().filter_map(|((number, key), _)| {
            let queue = &queues.get(*number)?.config;
            Some(Wanted {
                queue: queue.name.clone(),
                key: key.clone(),
                crash_limit: queue.crash_limit,
            })
        });
        wanted.collect()
    }

    /// The runs to adopt. Their generations and attempts are the fence: a row that has changed
    /// since the poll is left alone.
    fn runs_to_adopt(&self, queues: &[Queue]) -> Vec<Run> {
        let adopt = self.adopt.iter().filter_map(|((number, key), orphan)| {
            Some(Run {
                queue: queues.get(*number)?.config.name.clone(),
                key: key.clone(),
                generation: orphan.generation,
                attempt: orphan.attempt,
            })
        });
        adopt.collect()
    }

    /// Takes runs to adopt.
    fn adopt(
        &mut self,
        now: Mono,
        queues: &mut [Queue],
        runs: &HeldRuns,
        adoption: &mut Adoption,
        load: &mut Load,
    ) {
        let room = queues.iter().map(Queue::free).collect();
        let limit = self.limit.saturating_sub(self.wanted.len());
        self.adopt = adoption.take_sure(limit, room, load);
        self.adopt.retain(|(place, _)| !runs.is_held(place));
        for ((number, _), _) in &self.adopt {
            queues[*number].take(now, 1);
        }
    }

    /// Picks due timers of all queues in turn, so that none keeps another one out. A queue whose
    /// next payload does not fit waits for the next claim, and is the first one there.
    fn pick(
        &mut self,
        now: Mono,
        store_now: StoreTime,
        queues: &mut [Queue],
        runs: &HeldRuns,
        load: &mut Load,
    ) {
        let count = queues.len();
        let mut next_turn = None;
        let mut startable: Vec<usize> = queues.iter().map(|queue| queue.startable(now)).collect();
        let mut open = count;
        while open > 0 && self.wanted.len() < self.limit {
            open = 0;
            for step in 0..count {
                let number = (self.turn + step) % count;
                if startable[number] == 0 || self.wanted.len() >= self.limit {
                    continue;
                }
                let bytes = queues[number].upcoming.due_bytes(store_now, false);
                if bytes.is_some_and(|bytes| !load.fits(bytes)) {
                    startable[number] = 0;
                    next_turn.get_or_insert(number);
                    continue;
                }
                if let Some((key, expected)) = queues[number].upcoming.take_due(store_now, false) {
                    open += 1;
                    let place = (number, key);
                    // The run of a held key ends first. The next poll finds the key again.
                    if !runs.is_held(&place) {
                        startable[number] -= 1;
                        queues[number].take(now, 1);
                        load.take(expected.bytes);
                        self.wanted.push((place, expected));
                    }
                }
            }
        }
        self.turn = next_turn.unwrap_or((self.turn + 1) % count.max(1));
    }

    /// Picks one timer whose nodes have died too often, if no other one runs.
    fn pick_suspect(
        &mut self,
        now: Mono,
        store_now: StoreTime,
        queues: &mut [Queue],
        runs: &HeldRuns,
    ) {
        if runs.suspects() > 0 {
            return;
        }
        let first = queues
            .iter()
            .enumerate()
            .filter(|(_, queue)| queue.startable(now) > 0)
            .filter_map(|(number, queue)| Some((queue.upcoming.first(true)?, number)))
            .min();
        let Some((_, number)) = first else {
            return;
        };
        while let Some((key, expected)) = queues[number].upcoming.take_due(store_now, true) {
            let place = (number, key);
            if !runs.is_held(&place) {
                queues[number].take(now, 1);
                self.wanted.push((place, expected));
                return;
            }
        }
    }
}

/// The time at which a timer can be claimed.
fn next(clock: &Estimate, now: Mono, queues: &[Queue], runs: &HeldRuns) -> Option<Mono> {
    let with_room = queues.iter().filter(|queue| queue.room() > 0);
    let times = with_room.flat_map(|queue| {
        let suspect = queue.upcoming.first(true).filter(|_| runs.suspects() == 0);
        let first = queue.upcoming.first(false).into_iter().chain(suspect).min();
        let due = first.and_then(|due| clock.when(due));
        due.map(|due| due.max(queue.next_free()))
    });
    times.min().map(|time| time.max(now))
}
