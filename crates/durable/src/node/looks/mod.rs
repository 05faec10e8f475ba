//! Looks: what a node asks for, and what it makes of a sight.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::adoption::{Adoption, Orphan};
use super::claims::Claims;
use super::interface::Mono;
use super::marks::Marks;
use super::membership::Membership;
use super::queue::Queue;
use super::runs::{HeldRuns, Place};
use super::shards::{self, LAST_RANK, Part};
use super::sleep::{Shown, Sleep, Took};
use super::throttle::RingThrottle;
use super::upcoming::{Expected, Unread, UpcomingTimers};
use crate::store::{
    Band, Complete, Epoch, Look, Offset, Range, SHARDS, Seen, SeenNode, Sight, StoreTime,
};
use crate::sync::Arc;

/// The least number of timers that a look asks for in one shard.
const LEAST_SHARE: usize = 8;
/// After a look with a shard that is looked at whole, the next such shard waits for this many times
/// the time of that look. A shard may be full of deleted timers that the store can't remove yet.
const TURNS_WAIT: u32 = 50;
/// A timer whose nodes died this often is claimed alone.
pub(super) const SUSPECT: u32 = 2;

/// One range of the look that is under way.
#[derive(Clone, Debug)]
struct Asked {
    queue: usize,
    part: Part,
    until: Offset,
    /// Whether it goes on where an earlier look was cut, and so says nothing about what is due
    /// before.
    goes_on: bool,
}

/// What one queue is looked at for.
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

    /// Whether the look answers a ring in this part. A shard whose overdue timers are not all known
    /// has older work than what rang.
    fn answers(&self, queue: &Queue, part: &Part) -> bool {
        let unread = queue.upcoming.unread(part.shard);
        let backlog = unread.is_some_and(|unread| Some(unread.from) <= self.store_now);
        self.rang && part.rank == 0 && !backlog
    }
}

/// What one range of a sight has shown, in the order of due times.
struct ReadRange<'a> {
    asked: &'a Asked,
    rows: Vec<&'a Seen>,
    /// Whether its limit has left timers out.
    cut: bool,
    /// The store's time of the sight.
    now: StoreTime,
}

impl ReadRange<'_> {
    /// Notes where the next look has to go on, and forgets the refused timers that are gone.
    fn learn_rest(&self, upcoming: &mut UpcomingTimers) {
        let Asked { part, goes_on, .. } = *self.asked;
        // A part of the last rank is not among the node's parts, so no look would read its rest.
        if part.rank < LAST_RANK {
            let unread = self.rows.last().filter(|_| self.cut).map(|last| Unread {
                from: last.due,
                ties: self.rows.iter().filter(|row| row.due == last.due).count(),
            });
            upcoming.set_unread(part.shard, unread);
        }
        // What lies before the start of such a range was not asked for, and may still be there.
        if !goes_on {
            let shown: BTreeSet<&str> = self.rows.iter().map(|row| &*row.key).collect();
            upcoming.keep_refused(part.shard, |key| shown.contains(key));
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Looks {
    interval: Duration,
    /// The numbers of the queues, by their names.
    numbers_of: BTreeMap<Arc<str>, usize>,
    /// Whether a sight has shown the nodes. Until then there are no parts to look at.
    knows_nodes: bool,
    /// The parts of each queue.
    parts: Vec<Vec<Part>>,
    /// The nodes of the last sight, with their queues.
    nodes: BTreeMap<Epoch, Arc<[String]>>,
    /// Those of them that have no rank, as the parts have it.
    unranked: BTreeSet<Epoch>,
    pub(super) marks: Marks,
    sleep: Sleep,
    pub(super) adoption: Adoption,
    pub(super) throttle: RingThrottle,
    /// When the next look at everything is due.
    next: Mono,
    /// Whether it is wanted at once.
    pub(super) soon: bool,
    /// The shard whose turn it is to be looked at whole.
    turn: u16,
    /// Whether the look that is under way reads it.
    turns: bool,
    /// When the next shard has its turn.
    next_turn: Mono,
    asked: Vec<Asked>,
    /// The places that were claimed or settled during the look that is under way.
    touched: BTreeSet<Place>,
}

impl Looks {
    pub(super) fn new(
        interval: Duration,
        numbers_of: BTreeMap<Arc<str>, usize>,
        most_awake: usize,
        seed: u64,
    ) -> Self {
        let queues = numbers_of.len();
        Looks {
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

    /// The next look at everything asks for this part.
    pub(super) fn wake(&mut self, queue: usize, shard: u16) {
        self.sleep.wake((queue, shard), &mut self.marks);
    }

    /// These places are claimed or settled now. A look that is under way says nothing about them.
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

    /// Whether a look is wanted now.
    pub(super) fn is_wanted(&self, now: Mono, queues: &[Queue]) -> bool {
        self.soon
            || now >= self.next()
            || self.sleep.has_fresh()
            || queues.iter().any(Queue::is_hungry)
    }

    /// When the next look is due at the latest.
    pub(super) fn next(&self) -> Mono {
        self.throttle.next().unwrap_or(self.next).min(self.next)
    }

    /// Writes a look: at everything, or only at the queues whose timers run out, and the own shards
    /// of those that rang.
    pub(super) fn ask(
        &mut self,
        now: Mono,
        store_now: Option<StoreTime>,
        epoch: Epoch,
        queues: &mut [Queue],
        runs: &HeldRuns,
        claims: &Claims,
    ) -> Look {
        let everything = self.soon || now >= self.next;
        let bands = self.begin(now, everything);
        let woken = self.sleep.take_fresh();
        let rung = self.throttle.answer(now);
        self.adoption.look_sent();
        self.asked.clear();
        // The sight may be older or newer than the claim that is under way.
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
        Look {
            epoch,
            ranges,
            bands,
            // Only a look at everything moves marks.
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
            // twice, so that a look finds its way past many of them soon.
            let known = queue.upcoming.in_shard(part.shard)
                + [&held, &claiming, &refused, &refused]
                    .iter()
                    .filter_map(|counts| counts.get(&part.shard))
                    .sum::<usize>();
            let is_whole = whole.contains(&part.shard);
            ranges.push(self.range(triggers, queue, part, is_whole, share, known));
        }
    }

    /// Plans the look after this one, gives the next shard its turn, and writes the bands. The
    /// bands belong to looks at everything: a look at some queues must stay cheap.
    fn begin(&mut self, now: Mono, everything: bool) -> Vec<Band> {
        // The first look of an epoch shows who the nodes are. It reads no timers.
        self.turns = everything && self.knows_nodes && now >= self.next_turn;
        if self.turns {
            self.turn = (self.turn + 1) % SHARDS;
        }
        if !everything {
            self.sleep.look_ended();
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

    /// The known parts of a queue that the look asks for.
    fn triggered_parts(&self, triggers: &Triggers<'_>, queue: &Queue) -> Vec<Part> {
        if queue.paused {
            return Vec::new();
        }
        let is_triggered = |part: &&Part| {
            let has_unread = queue.upcoming.unread(part.shard).is_some();
            match triggers.everything {
                // A part that sleeps may still hold timers that an earlier look left out.
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
            // the next look may follow at once.
            false => (queue.upcoming.limit() - queue.upcoming.len()) / own_of(parts),
        };
        share.max(LEAST_SHARE)
    }

    /// Adds the shards that are looked at whole. A pause of the queue does not hold up adoption:
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
        // An unread rest lies behind what is known. A look that needs what is before it, to move
        // marks or to find what has just come, begins at the mark.
        let from_start = triggers.everything
            || is_whole
            || triggers.answers(queue, &part)
            || triggers.woke(&part);
        let unread = queue.upcoming.unread(part.shard);
        let goes_on = unread.filter(|_| !from_start);
        let (from, known) = match goes_on {
            // Of what is known, such a look reads the ties again and nothing else.
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

    /// The shards of a queue that are looked at without a mark.
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

    /// The look failed.
    pub(super) fn failed(&mut self) {
        self.asked.clear();
        self.sleep.look_ended();
        self.soon = true;
        self.marks.drop_all();
    }

    /// Takes in a sight, which arrives at `now` and was asked for at `sent`.
    pub(super) fn take(
        &mut self,
        sent: Mono,
        now: Mono,
        sight: &Sight,
        membership: &Membership,
        queues: &mut [Queue],
        runs: &HeldRuns,
    ) {
        if self.turns {
            self.next_turn = now + now.saturating_sub(sent) * TURNS_WAIT;
        }
        let asked = std::mem::take(&mut self.asked);
        let vanished = self.learn_nodes(sight, membership, queues);
        let bound = self.bound(vanished, sight.complete);
        // Before the rows: a paused queue expects none of them.
        self.learn_paused(sight, queues);
        let number_of = |name: &str| self.numbers_of.get(name).copied();
        let shown = self.sleep.read(sight, number_of, &self.marks);
        // A band that was cut says nothing for sure. The next look asks for each part instead.
        self.soon |= shown.is_cut;
        let by_range = by_range(&asked, sight, &self.numbers_of);
        let mut refused = Vec::new();
        for (index, (asked, rows)) in asked.iter().zip(by_range).enumerate() {
            let Some(queue) = queues.get_mut(asked.queue) else {
                continue;
            };
            let range = ReadRange {
                asked,
                rows,
                cut: sight.cut.contains(&index),
                now: sight.now,
            };
            self.move_mark(&range, bound, &shown);
            range.learn_rest(&mut queue.upcoming);
            let orphans = self.take_rows(&range, now, queue, runs, &mut refused);
            // A range that goes on does not show all claims of its part.
            if !asked.goes_on {
                let shard = asked.part.shard;
                self.soon |= self.adoption.saw(asked.queue, shard, orphans, !range.cut);
            }
        }
        // After all new timers: a refused one takes only the room that they leave.
        for ((number, key), expected) in refused {
            queues[number].upcoming.try_again(&key, expected);
        }
        self.wake_shown(&shown, bound, sight.now, queues);
    }

    /// The moment before which this sight shows all that is due, if marks may move.
    fn bound(&mut self, vanished: bool, complete: Option<Complete>) -> Option<StoreTime> {
        if !vanished {
            return self.marks.bound(complete);
        }
        // The claims of a node that has ended may be older than the marks.
        self.marks.drop_marks();
        self.soon = true;
        None
    }

    /// Moves the mark of a part as far as its range has shown that nothing is due before, and lets
    /// the part sleep if it is empty.
    fn move_mark(&mut self, range: &ReadRange<'_>, bound: Option<StoreTime>, shown: &Shown) {
        let (asked, rows) = (range.asked, &range.rows);
        // Also a range that its limit has cut shows that nothing is due before its first timer.
        let bound = bound.filter(|_| !(asked.goes_on || range.cut && rows.is_empty()));
        let mark = bound.map(|bound| {
            let oldest = rows.first().map_or(bound, |row| row.due);
            bound.min(oldest).min(asked.until.from(range.now))
        });
        self.sleep.took(
            (asked.queue, asked.part.shard),
            Took {
                is_empty: rows.is_empty() && !range.cut,
                is_last_rank: asked.part.rank == LAST_RANK,
                mark,
            },
            shown,
            &mut self.marks,
        );
    }

    /// Notes the timers of a range that the node shall claim. Returns those that it has claimed
    /// already without knowing it, and adds to `refused` those that a claim has refused before.
    fn take_rows(
        &self,
        range: &ReadRange<'_>,
        now: Mono,
        queue: &mut Queue,
        runs: &HeldRuns,
        refused: &mut Vec<(Place, Expected)>,
    ) -> Vec<(Place, Orphan)> {
        let mut orphans = Vec::new();
        let rank = range.asked.part.rank;
        let late_enough = range.now.back_by(self.overdue(rank));
        for row in &range.rows {
            let place = (range.asked.queue, row.key.clone());
            if runs.is_held(&place) || self.touched.contains(&place) {
                continue;
            }
            if row.mine {
                let orphan = Orphan {
                    generation: row.generation,
                    attempt: row.attempt,
                    shard: row.shard,
                    bytes: row.bytes,
                };
                orphans.push((place, orphan));
            } else if !queue.paused && (rank == 0 || row.due <= late_enough) {
                let expected = Expected {
                    due: row.due,
                    shard: row.shard,
                    suspect: row.crashes >= SUSPECT,
                    bytes: row.bytes,
                };
                match queue.upcoming.refused_until(&row.key, row.due) {
                    Some(pause_end) if now < pause_end => {}
                    Some(_) => refused.push((place, expected)),
                    None => queue.upcoming.insert(&row.key, expected),
                }
            }
        }
        orphans
    }

    /// Wakes the parts whose first timers the bands have shown, if this node is to take them now.
    fn wake_shown(
        &mut self,
        shown: &Shown,
        bound: Option<StoreTime>,
        store_now: StoreTime,
        queues: &[Queue],
    ) {
        let (parts, interval) = (&self.parts, self.interval);
        let late_enough = |(number, shard): (usize, u16), whole: bool| {
            let rank = rank_of(&parts[number], shard);
            let concerns = !queues[number].paused && (whole || rank < LAST_RANK);
            concerns.then(|| match rank {
                0 => StoreTime::LATEST,
                rank => store_now.back_by(overdue(interval, rank)),
            })
        };
        // The next look at everything is up to one interval away, and its answer takes time.
        let soon = store_now + self.interval * 3 / 2;
        let (sleep, marks) = (&mut self.sleep, &mut self.marks);
        sleep.finish(shown, bound, soon, late_enough, marks);
    }

    /// Learns who the nodes are. Returns whether one has ended.
    fn learn_nodes(&mut self, sight: &Sight, membership: &Membership, queues: &[Queue]) -> bool {
        let unranked = membership.unranked();
        let same = self.shows_same_nodes(sight) && *unranked == self.unranked;
        if same && self.knows_nodes {
            return false;
        }
        let nodes: BTreeMap<Epoch, Arc<[String]>> = sight
            .nodes
            .iter()
            .map(|node| (node.epoch, Arc::clone(&node.queues)))
            .collect();
        let vanished = self.nodes.keys().any(|epoch| !nodes.contains_key(epoch));
        self.knows_nodes = true;
        self.move_parts(&nodes, membership, queues);
        self.nodes = nodes;
        self.unranked.clone_from(unranked);
        vanished
    }

    /// Whether a sight shows the nodes that are known. Nodes seldom change, and a look may show
    /// hundreds of them, so the comparison copies nothing.
    fn shows_same_nodes(&self, sight: &Sight) -> bool {
        let is_known = |node: &SeenNode| {
            let known = self.nodes.get(&node.epoch);
            // Its names may be thousands, and are mostly the very same ones.
            known.is_some_and(|known| Arc::ptr_eq(known, &node.queues) || *known == node.queues)
        };
        sight.nodes.len() == self.nodes.len() && sight.nodes.iter().all(is_known)
    }

    /// Divides the shards of each queue among the nodes that handle it.
    fn move_parts(
        &mut self,
        nodes: &BTreeMap<Epoch, Arc<[String]>>,
        membership: &Membership,
        queues: &[Queue],
    ) {
        let me = membership.epoch;
        let mut changed = false;
        let handlers = self.handlers(nodes, membership, queues.len());
        for ((parts, queue), mut all) in self.parts.iter_mut().zip(queues).zip(handlers) {
            all.push(me);
            let moved = shards::parts(&queue.config.name, me, &all);
            // A node that has ended may leave due timers behind in its shards, so look at once.
            self.soon |= moved.iter().any(|part| {
                let before = parts.iter().find(|before| before.shard == part.shard);
                before.is_none_or(|before| before.rank > part.rank)
            });
            changed |= *parts != moved;
            *parts = moved;
        }
        if changed {
            self.sleep.parts_changed(&self.parts, &mut self.marks);
        }
    }

    /// The other nodes of each queue that have a rank.
    fn handlers(
        &self,
        nodes: &BTreeMap<Epoch, Arc<[String]>>,
        membership: &Membership,
        queues: usize,
    ) -> Vec<Vec<Epoch>> {
        let mut handlers: Vec<Vec<Epoch>> = vec![Vec::new(); queues];
        let (me, unranked) = (membership.epoch, membership.unranked());
        let is_ranked_other = |epoch: &Epoch| *epoch != me && !unranked.contains(epoch);
        for (epoch, handled) in nodes.iter().filter(|(epoch, _)| is_ranked_other(epoch)) {
            let numbers = handled
                .iter()
                .filter_map(|name| self.numbers_of.get(&**name));
            for number in numbers {
                // A node handles each of its queues once, however often it names it.
                if handlers[*number].last() != Some(epoch) {
                    handlers[*number].push(*epoch);
                }
            }
        }
        handlers
    }

    fn learn_paused(&mut self, sight: &Sight, queues: &mut [Queue]) {
        let all: BTreeSet<&str> = sight.paused.iter().map(String::as_str).collect();
        for (number, queue) in queues.iter_mut().enumerate() {
            let paused = !all.is_empty() && all.contains(&*queue.config.name);
            if paused != queue.paused {
                queue.paused = paused;
                queue.upcoming.clear();
                self.marks.drop_queue(number);
                self.sleep.paused(number, paused, &self.parts[number]);
                self.soon |= !paused;
            }
        }
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

/// Sorts the rows of a sight by the ranges that they belong to, each in the order of due times.
fn by_range<'a>(
    asked: &[Asked],
    sight: &'a Sight,
    numbers_of: &BTreeMap<Arc<str>, usize>,
) -> Vec<Vec<&'a Seen>> {
    let ranges: BTreeMap<(usize, u16), usize> = asked
        .iter()
        .enumerate()
        .map(|(index, range)| ((range.queue, range.part.shard), index))
        .collect();
    let mut sorted = vec![Vec::new(); asked.len()];
    for row in &sight.rows {
        let number = numbers_of.get(&*row.queue);
        let index = number.and_then(|number| ranges.get(&(*number, row.shard)));
        if let Some(rows) = index.and_then(|index| sorted.get_mut(*index)) {
            rows.push(row);
        }
    }
    for rows in &mut sorted {
        rows.sort_by_key(|row: &&Seen| row.due);
    }
    sorted
}
