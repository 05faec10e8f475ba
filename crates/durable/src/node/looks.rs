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
use super::sleep::{Sleep, Took};
use super::throttle::RingThrottle;
use super::upcoming::{Expected, Unread};
use crate::store::{Epoch, Look, Offset, Range, SHARDS, Seen, SeenNode, Sight, StoreTime};
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
        self.turns = everything && self.knows_nodes && now >= self.next_turn;
        if everything {
            self.soon = false;
            self.next = now + self.interval;
        }
        if self.turns {
            self.turn = (self.turn + 1) % SHARDS;
        }
        let bands = match everything {
            true => {
                let turn = self.turns.then_some(self.turn);
                self.sleep.ask(self.interval, turn, &self.marks)
            }
            false => {
                self.sleep.look_ended();
                Vec::new()
            }
        };
        let fresh = self.sleep.take_fresh();
        let rung = self.throttle.answer(now);
        self.adoption.look_sent();
        self.asked.clear();
        self.touched = claims.places();
        let mut ranges = Vec::new();
        for (number, queue) in queues.iter_mut().enumerate() {
            let (hungry, rang) = (queue.is_hungry(), rung.contains(&number));
            let woken = has_any(&fresh, number);
            if !everything && !hungry && !rang && !woken {
                continue;
            }
            if everything || hungry {
                queue.progressed = false;
            }
            // Of thousands of queues nearly all end here.
            let is_wanted = self.sleep.wants_queue(number)
                || queue.upcoming.has_unread()
                || has_any(self.adoption.doubtful(), number)
                || self.turns && self.sleep.is_turn_of(number);
            if self.sleep.is_on() && !is_wanted && !rang && !woken {
                continue;
            }
            let is_woken = |part: &Part| fresh.contains(&(number, part.shard));
            // A shard whose overdue timers are not all known has older work than what rang.
            let answers = |queue: &Queue, part: &Part| {
                let unread = queue.upcoming.unread(part.shard);
                let backlog = unread.is_some_and(|unread| Some(unread.from) <= store_now);
                rang && part.rank == 0 && !backlog
            };
            let whole = self.whole_shards(number);
            let held = runs.in_shards(number);
            let claiming = claims.in_shards(number);
            let refused = queue.upcoming.refused_in_shards();
            let mut asked: Vec<Part> = match (queue.paused, everything) {
                (true, _) => Vec::new(),
                (false, true) => {
                    let parts = self.parts[number].iter().filter(|part| {
                        self.sleep.wants((number, part.shard))
                            || queue.upcoming.unread(part.shard).is_some()
                    });
                    parts.copied().collect()
                }
                (false, false) => self.parts[number]
                    .iter()
                    .filter(|part| {
                        answers(queue, part)
                            || is_woken(part)
                            || hungry && queue.upcoming.unread(part.shard).is_some()
                    })
                    .copied()
                    .collect(),
            };
            let share = match everything {
                // Twice the mean, since keys do not fall evenly into the shards.
                true => 2 * queue.upcoming.limit() / own_of(&self.parts[number]),
                // Not more than there is room for: timers beyond it would have to be read again,
                // and the next look may follow at once.
                false => (queue.upcoming.limit() - queue.upcoming.len()) / own_of(&asked),
            };
            let share = share.max(LEAST_SHARE);
            for shard in &whole {
                let doubtful = self.adoption.doubtful().contains(&(number, *shard));
                let present = asked.iter().any(|part| part.shard == *shard);
                if !present && (doubtful || !queue.paused) {
                    asked.push(self.part(number, *shard));
                }
            }
            // A part that only a band has shown has no owner that this node is next to.
            let strangers = fresh.range((number, 0)..(number + 1, 0));
            let strangers: Vec<u16> = strangers.map(|(_, shard)| *shard).collect();
            for shard in strangers {
                let part = self.part(number, shard);
                if part.rank == LAST_RANK
                    && !queue.paused
                    && !asked.iter().any(|asked| asked.shard == shard)
                {
                    asked.push(part);
                }
            }
            for part in asked {
                let is_whole = whole.contains(&part.shard);
                // A part that may sleep must be known up to the moment up to which the band shows
                // it.
                let until = match (part.rank, is_whole || self.sleep.is_on()) {
                    (0, _) => Offset::Ahead(self.interval * 2),
                    (_, true) => Offset::Ahead(Duration::ZERO),
                    (rank, false) => Offset::Overdue(self.overdue(rank)),
                };
                // Timers that the node knows already must not use up the limit. Refused ones count
                // twice, so that a look finds its way past many of them soon.
                let known = queue.upcoming.in_shard(part.shard)
                    + [&held, &claiming, &refused, &refused]
                        .iter()
                        .filter_map(|counts| counts.get(&part.shard))
                        .sum::<usize>();
                let unread = queue.upcoming.unread(part.shard);
                let from_start = everything || is_whole || answers(queue, &part) || is_woken(&part);
                let goes_on = unread.filter(|_| !from_start);
                let (from, known) = match goes_on {
                    Some(unread) => (Some(unread.from), known.min(unread.ties)),
                    None => {
                        let mark = self.sleep.mark((number, part.shard), &self.marks);
                        (mark, known)
                    }
                };
                ranges.push(Range {
                    queue: queue.config.name.clone(),
                    shard: part.shard,
                    mark: from.filter(|_| !is_whole),
                    until,
                    limit: u32::try_from(share + known).unwrap_or(u32::MAX),
                });
                self.asked.push(Asked {
                    queue: number,
                    part,
                    until,
                    goes_on: goes_on.is_some(),
                });
            }
        }
        Look {
            epoch,
            ranges,
            bands,
            // Only a look at everything moves marks.
            complete: everything,
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
        let bound = match vanished {
            // The claims of a node that has ended may be older than the marks.
            true => {
                self.marks.drop_marks();
                self.soon = true;
                None
            }
            false => self.marks.bound(sight.complete),
        };
        self.learn_paused(sight, queues);
        let number_of = |name: &str| self.numbers_of.get(name).copied();
        let shown = self.sleep.read(sight, number_of, &self.marks);
        self.soon |= shown.is_cut;
        let by_range = by_range(&asked, sight, &self.numbers_of);
        let mut refused = Vec::new();
        for (index, (range, rows)) in asked.iter().zip(by_range).enumerate() {
            let (number, part) = (range.queue, range.part);
            let Some(queue) = queues.get_mut(number) else {
                continue;
            };
            let cut = sight.cut.contains(&index);
            // Also a range that its limit has cut shows that nothing is due before its first timer.
            let bound = bound.filter(|_| !(range.goes_on || cut && rows.is_empty()));
            let mark = bound.map(|bound| {
                let oldest = rows.first().map_or(bound, |row| row.due);
                bound.min(oldest).min(range.until.from(sight.now))
            });
            self.sleep.took(
                (number, part.shard),
                Took {
                    is_empty: rows.is_empty() && !cut,
                    is_last_rank: part.rank == LAST_RANK,
                    mark,
                },
                &shown,
                &mut self.marks,
            );
            if part.rank < LAST_RANK {
                let unread = rows.last().filter(|_| cut).map(|last| Unread {
                    from: last.due,
                    ties: rows.iter().filter(|row| row.due == last.due).count(),
                });
                queue.upcoming.set_unread(part.shard, unread);
            }
            if !range.goes_on {
                let shown: BTreeSet<&str> = rows.iter().map(|row| &*row.key).collect();
                let is_shown = |key: &str| shown.contains(key);
                queue.upcoming.keep_refused(part.shard, is_shown);
            }
            let mut orphans = Vec::new();
            let late_enough = sight.now.back_by(self.overdue(part.rank));
            for row in rows {
                let place = (number, row.key.clone());
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
                } else if !queue.paused && (part.rank == 0 || row.due <= late_enough) {
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
            if range.goes_on {
                continue;
            }
            if self.adoption.saw(number, part.shard, orphans, !cut) {
                self.soon = true;
            }
        }
        for ((number, key), expected) in refused {
            queues[number].upcoming.try_again(&key, expected);
        }
        let (parts, interval) = (&self.parts, self.interval);
        let late_enough = |(number, shard): (usize, u16), whole: bool| {
            let rank = rank_of(&parts[number], shard);
            let concerns = !queues[number].paused && (whole || rank < LAST_RANK);
            concerns.then(|| match rank {
                0 => StoreTime::LATEST,
                rank => sight.now.back_by(overdue(interval, rank)),
            })
        };
        let soon = sight.now + self.interval * 3 / 2;
        let (sleep, marks) = (&mut self.sleep, &mut self.marks);
        sleep.finish(&shown, bound, soon, late_enough, marks);
    }

    /// Learns who the nodes are. Returns whether one has ended.
    fn learn_nodes(&mut self, sight: &Sight, membership: &Membership, queues: &[Queue]) -> bool {
        let (me, unranked) = (membership.epoch, membership.unranked());
        // Nodes seldom change, and a look may show hundreds of them: compare first, then copy.
        let known = |node: &SeenNode| {
            let known = self.nodes.get(&node.epoch);
            // Its names may be thousands, and are mostly the very same ones.
            known.is_some_and(|known| Arc::ptr_eq(known, &node.queues) || *known == node.queues)
        };
        let same = sight.nodes.len() == self.nodes.len()
            && sight.nodes.iter().all(known)
            && *unranked == self.unranked;
        if same && self.knows_nodes {
            return false;
        }
        let nodes: BTreeMap<Epoch, Arc<[String]>> = sight
            .nodes
            .iter()
            .map(|node| (node.epoch, Arc::clone(&node.queues)))
            .collect();
        let vanished = self.nodes.keys().any(|epoch| !nodes.contains_key(epoch));
        let first = !std::mem::replace(&mut self.knows_nodes, true);
        if first || !same {
            // A node handles each of its queues once, however often it names it.
            let mut handlers: Vec<Vec<Epoch>> = vec![Vec::new(); queues.len()];
            let ranked = nodes.iter().filter(|(epoch, _)| !unranked.contains(epoch));
            for (epoch, handled) in ranked.filter(|(epoch, _)| **epoch != me) {
                let numbers = handled
                    .iter()
                    .filter_map(|name| self.numbers_of.get(&**name));
                for number in numbers {
                    if handlers[*number].last() != Some(epoch) {
                        handlers[*number].push(*epoch);
                    }
                }
            }
            let mut changed = false;
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
            self.nodes = nodes;
            self.unranked.clone_from(unranked);
        }
        vanished
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
