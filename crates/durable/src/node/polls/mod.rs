//! Polls: what a node asks for, and when.

mod snapshot;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::adoption::Adoption;
use super::claims::Claims;
use super::interface::{Mono, Place};
use super::marks::Marks;
use super::queue::Queue;
use super::runs::HeldRuns;
use super::shards::{LAST_RANK, Part};
use super::sleep::Sleep;
use super::throttle::RingThrottle;
use crate::store::{Band, Epoch, Offset, Poll, Range, SHARDS, StoreTime};
use crate::sync::Arc;

/// The least number of timers that a poll asks for in one shard.
const LEAST_SHARE: usize = 8;
/// After a poll with a shard that is polled whole, the next such shard waits for this many times
/// the time of that poll. A shard may be full of deleted timers that the store can't remove yet.
const TURNS_WAIT: u32 = 50;
/// A timer whose nodes died this often is claimed alone.
pub(super) const SUSPECT: u32 = 2;

/// One range of the poll that is under way.
#[derive(Clone, Debug)]
struct Asked {
    queue: usize,
    part: Part,
    until: Offset,
    /// Whether it goes on where an earlier poll was cut, and so says nothing about what is due
    /// before.
    goes_on: bool,
}

/// What one queue is polled for.
struct Triggers<'a> {
    number: usize,
    everything: bool,
    /// Its known timers run out.
    hungry: bool,
    rang: bool,
    /// The parts, of all queues, that a band has woken.
    woken: &'a BTreeSet<(usize, u16)>,
    store_now: Option<StoreTime>,
}

impl Triggers<'_> {
    fn any(&self) -> bool {
        self.everything || self.hungry || self.rang || self.has_woken()
    }

    fn has_woken(&self) -> bool {
        has_any(self.woken, self.number)
    }

    fn woke(&self, part: &Part) -> bool {
        self.woken.contains(&(self.number, part.shard))
    }

    /// Whether the poll answers a ring in this part. A shard whose overdue timers are not all known
    /// has older work than what rang.
    fn answers(&self, queue: &Queue, part: &Part) -> bool {
        let unread = queue.upcoming.unread(part.shard);
        let backlog = unread.is_some_and(|unread| Some(unread.from) <= self.store_now);
        self.rang && part.rank == 0 && !backlog
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Polls {
    interval: Duration,
    /// The numbers of the queues, by their names.
    numbers_of: BTreeMap<Arc<str>, usize>,
    /// Whether a snapshot has shown the nodes. Until then there are no parts to poll.
    knows_nodes: bool,
    /// The parts of each queue.
    parts: Vec<Vec<Part>>,
    /// The nodes of the last snapshot, with their queues.
    nodes: BTreeMap<Epoch, Arc<[String]>>,
    /// Those of them that have no rank, as the parts have it.
    unranked: BTreeSet<Epoch>,
    pub(super) marks: Marks,
    sleep: Sleep,
    pub(super) adoption: Adoption,
    pub(super) throttle: RingThrottle,
    /// When the next poll of everything is due.
    next: Mono,
    /// Whether it is wanted at once.
    pub(super) soon: bool,
    /// The shard whose turn it is to be polled whole.
    turn: u16,
    /// Whether the poll that is under way reads it.
    turns: bool,
    /// When the next shard has its turn.
    next_turn: Mono,
    asked: Vec<Asked>,
    /// The places that were claimed or settled during the poll that is under way.
    touched: BTreeSet<Place>,
}

impl Polls {
    pub(super) fn new(
        interval: Duration,
        numbers_of: BTreeMap<Arc<str>, usize>,
        most_awake: usize,
        seed: u64,
    ) -> Self {
        let queues = numbers_of.len();
        Polls {
            interval,
            numbers_of,
            knows_nodes: false,
            parts: vec![Vec::new(); queues],
            nodes: BTreeMap::new(),
            unranked: BTreeSet::new(),
            marks: Marks::default(),
            sleep: Sleep::new(most_awake, queues),
            adoption: Adoption::default(),
            throttle: RingThrottle::default(),
            next: Mono::ZERO,
            soon: true,
            turn: (seed % u64::from(SHARDS)) as u16,
            turns: false,
            next_turn: Mono::ZERO,
            asked: Vec::new(),
            touched: BTreeSet::new(),
        }
    }

    /// Forgets all that the node knew in its last epoch, except who the others are.
    pub(super) fn start_anew(&mut self) {
        self.knows_nodes = false;
        self.parts.iter_mut().for_each(Vec::clear);
        self.marks.drop_all();
        self.sleep.clear();
        self.adoption.clear();
        self.soon = true;
    }

    /// The next poll of everything asks for this part.
    pub(super) fn wake(&mut self, queue: usize, shard: u16) {
        self.sleep.wake((queue, shard), &mut self.marks);
    }

    /// These places are claimed or settled now. A poll that is under way says nothing about them.
    pub(super) fn touch(&mut self, places: impl FnOnce() -> BTreeSet<Place>) {
        if !self.asked.is_empty() {
            self.touched.extend(places());
        }
    }

    /// Whether the node owns a shard of the queue, or may own one once it knows the other nodes.
    pub(super) fn may_own(&self, queue: usize) -> bool {
        let parts = &self.parts[queue];
        !self.knows_nodes || parts.iter().any(|part| part.rank == 0)
    }

    fn overdue(&self, rank: u32) -> Duration {
        overdue(self.interval, rank)
    }

    /// Whether a poll is wanted now.
    pub(super) fn is_wanted(&self, now: Mono, queues: &[Queue]) -> bool {
        self.soon
            || now >= self.next()
            || self.sleep.has_fresh()
            || queues.iter().any(Queue::is_hungry)
    }

    /// When the next poll is due at the latest.
    pub(super) fn next(&self) -> Mono {
        self.throttle.next().unwrap_or(self.next).min(self.next)
    }

    /// Writes a poll: of everything, or only of the queues whose timers run out, and the own shards
    /// of those that rang.
    pub(super) fn ask(
        &mut self,
        now: Mono,
        store_now: Option<StoreTime>,
        epoch: Epoch,
        queues: &mut [Queue],
        runs: &HeldRuns,
        claims: &Claims,
    ) -> Poll {
        let everything = self.soon || now >= self.next;
        let bands = self.begin(now, everything);
        let woken = self.sleep.take_fresh();
        let rung = self.throttle.answer(now);
        self.adoption.poll_sent();
        self.asked.clear();
        // The snapshot may be older or newer than the claim that is under way.
        self.touched = claims.places();
        let mut ranges = Vec::new();
        for (number, queue) in queues.iter_mut().enumerate() {
            let triggers = Triggers {
                number,
                everything,
                hungry: queue.is_hungry(),
                rang: rung.contains(&number),
                woken: &woken,
                store_now,
            };
            if !triggers.any() {
                continue;
            }
            if everything || triggers.hungry {
                queue.progressed = false;
            }
            if !self.has_parts_to_ask(&triggers, queue) {
                continue;
            }
            self.ask_queue(&triggers, queue, runs, claims, &mut ranges);
        }
        Poll {
            epoch,
            ranges,
            bands,
            // Only a poll of everything moves marks.
            complete: everything,
        }
    }

    /// Writes the ranges of one queue.
    fn ask_queue(
        &mut self,
        triggers: &Triggers<'_>,
        queue: &Queue,
        runs: &HeldRuns,
        claims: &Claims,
        ranges: &mut Vec<Range>,
    ) {
        let number = triggers.number;
        let whole = self.whole_shards(number);
        let mut parts = self.triggered_parts(triggers, queue);
        // The parts that follow are few, and take no share from these.
        let share = self.share(triggers, queue, &parts);
        self.add_whole(&mut parts, &whole, number, queue.paused);
        self.add_strangers(&mut parts, triggers, queue.paused);
        let (held, claiming) = (runs.in_shards(number), claims.in_shards(number));
        let refused = queue.upcoming.refused_in_shards();
        for part in parts {
            // Timers that the node knows already must not use up the limit. Refused ones count
            // twice, so that a poll finds its way past many of them soon.
            let known = queue.upcoming.in_shard(part.shard)
                + [&held, &claiming, &refused, &refused]
                    .iter()
                    .filter_map(|counts| counts.get(&part.shard))
                    .sum::<usize>();
            let is_whole = whole.contains(&part.shard);
            ranges.push(self.range(triggers, queue, part, is_whole, share, known));
        }
    }

    /// Plans the poll after this one, gives the next shard its turn, and writes the bands. The
    /// bands belong to polls of everything: a poll of some queues must stay cheap.
    fn begin(&mut self, now: Mono, everything: bool) -> Vec<Band> {
        // The first poll of an epoch shows who the nodes are. It reads no timers.
        self.turns = everything && self.knows_nodes && now >= self.next_turn;
        if self.turns {
            self.turn = (self.turn + 1) % SHARDS;
        }
        if !everything {
            self.sleep.poll_ended();
            return Vec::new();
        }
        self.soon = false;
        self.next = now + self.interval;
        let turn = self.turns.then_some(self.turn);
        self.sleep.ask(self.interval, turn, &self.marks)
    }

    /// Whether a queue has anything to ask for. Of thousands of queues nearly all end here.
    fn has_parts_to_ask(&self, triggers: &Triggers<'_>, queue: &Queue) -> bool {
        let number = triggers.number;
        !self.sleep.is_on()
            || triggers.rang
            || triggers.has_woken()
            || self.sleep.wants_queue(number)
            || queue.upcoming.has_unread()
            || has_any(self.adoption.doubtful(), number)
            || self.turns && self.sleep.is_turn_of(number)
    }

    /// The known parts of a queue that the poll asks for.
    fn triggered_parts(&self, triggers: &Triggers<'_>, queue: &Queue) -> Vec<Part> {
        if queue.paused {
            return Vec::new();
        }
        let is_triggered = |part: &&Part| {
            let has_unread = queue.upcoming.unread(part.shard).is_some();
            match triggers.everything {
                // A part that sleeps may still hold timers that an earlier poll left out.
                true => self.sleep.wants((triggers.number, part.shard)) || has_unread,
                false => {
                    triggers.answers(queue, part)
                        || triggers.woke(part)
                        || triggers.hungry && has_unread
                }
            }
        };
        let parts = self.parts[triggers.number].iter();
        parts.filter(is_triggered).copied().collect()
    }

    /// The number of new timers to read in each part.
    fn share(&self, triggers: &Triggers<'_>, queue: &Queue, parts: &[Part]) -> usize {
        let share = match triggers.everything {
            // Twice the mean, since keys do not fall evenly into the shards.
            true => 2 * queue.upcoming.limit() / own_of(&self.parts[triggers.number]),
            // Not more than there is room for: timers beyond it would have to be read again, and
            // the next poll may follow at once.
            false => (queue.upcoming.limit() - queue.upcoming.len()) / own_of(parts),
        };
        share.max(LEAST_SHARE)
    }

    /// Adds the shards that are polled whole. A pause of the queue does not hold up adoption:
    /// what the node has claimed already must be run, or given back.
    fn add_whole(&self, parts: &mut Vec<Part>, whole: &BTreeSet<u16>, queue: usize, paused: bool) {
        for shard in whole {
            let doubtful = self.adoption.doubtful().contains(&(queue, *shard));
            let present = parts.iter().any(|part| part.shard == *shard);
            if !present && (doubtful || !paused) {
                parts.push(self.part(queue, *shard));
            }
        }
    }

    /// Adds the parts of others that a band has woken. Such a part has no owner that this node is
    /// next to, so it is not among the node's parts.
    fn add_strangers(&self, parts: &mut Vec<Part>, triggers: &Triggers<'_>, paused: bool) {
        let queue = triggers.number;
        for (_, shard) in triggers.woken.range((queue, 0)..(queue + 1, 0)) {
            let part = self.part(queue, *shard);
            let present = parts.iter().any(|known| known.shard == *shard);
            if part.rank == LAST_RANK && !paused && !present {
                parts.push(part);
            }
        }
    }

    /// Writes the range of one part, which asks for `share` timers beside the `known` ones.
    fn range(
        &mut self,
        triggers: &Triggers<'_>,
        queue: &Queue,
        part: Part,
        is_whole: bool,
        share: usize,
        known: usize,
    ) -> Range {
        let until = self.until(part, is_whole);
        // An unread rest lies behind what is known. A poll that needs what is before it, to move
        // marks or to find what has just come, begins at the mark.
        let from_start = triggers.everything
            || is_whole
            || triggers.answers(queue, &part)
            || triggers.woke(&part);
        let unread = queue.upcoming.unread(part.shard);
        let goes_on = unread.filter(|_| !from_start);
        let (from, known) = match goes_on {
            // Of what is known, such a poll reads the ties again and nothing else.
            Some(unread) => (Some(unread.from), known.min(unread.ties)),
            None => {
                let place = (triggers.number, part.shard);
                (self.sleep.mark(place, &self.marks), known)
            }
        };
        self.asked.push(Asked {
            queue: triggers.number,
            part,
            until,
            goes_on: goes_on.is_some(),
        });
        Range {
            queue: queue.config.name.clone(),
            shard: part.shard,
            mark: from.filter(|_| !is_whole),
            until,
            limit: u32::try_from(share + known).unwrap_or(u32::MAX),
        }
    }

    /// Up to which due time a part is read. An owner reads ahead, to claim each timer at its due
    /// time. Another node reads only what the owner should have claimed long ago.
    fn until(&self, part: Part, is_whole: bool) -> Offset {
        match (part.rank, is_whole || self.sleep.is_on()) {
            (0, _) => Offset::Ahead(self.interval * 2),
            // A part that may sleep must be known up to the moment up to which the band shows it.
            (_, true) => Offset::Ahead(Duration::ZERO),
            (rank, false) => Offset::Overdue(self.overdue(rank)),
        }
    }

    /// The shards of a queue that are polled without a mark.
    fn whole_shards(&self, queue: usize) -> BTreeSet<u16> {
        let doubtful = self.adoption.doubtful().iter();
        let mut whole: BTreeSet<u16> = doubtful
            .filter(|(of, _)| *of == queue)
            .map(|(_, shard)| *shard)
            .collect();
        if self.turns && !self.sleep.is_on() {
            whole.insert(self.turn);
        } else if self.turns && self.sleep.is_turn_of(queue) {
            whole.extend(0..SHARDS);
        }
        whole
    }

    fn part(&self, queue: usize, shard: u16) -> Part {
        let rank = rank_of(&self.parts[queue], shard);
        Part { shard, rank }
    }

    /// The poll failed.
    pub(super) fn failed(&mut self) {
        self.asked.clear();
        self.sleep.poll_ended();
        self.soon = true;
        self.marks.drop_all();
    }
}

/// How long a timer must be overdue until a node of this rank takes it.
fn overdue(interval: Duration, rank: u32) -> Duration {
    interval * 3 / 2 * rank
}

/// The number of a node's own parts, or one.
fn own_of(parts: &[Part]) -> usize {
    parts.iter().filter(|part| part.rank == 0).count().max(1)
}

fn rank_of(parts: &[Part], shard: u16) -> u32 {
    let part = parts.iter().find(|part| part.shard == shard);
    part.map_or(LAST_RANK, |part| part.rank)
}

/// Whether a part of the queue is among these.
fn has_any(parts: &BTreeSet<(usize, u16)>, queue: usize) -> bool {
    !parts.is_empty() && parts.range((queue, 0)..(queue + 1, 0)).next().is_some()
}
