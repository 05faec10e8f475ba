//! What a node makes of a snapshot.

use std::collections::{BTreeMap, BTreeSet};

use super::{Asked, Polls, SUSPECT, TURNS_WAIT, overdue, rank_of};
use crate::node::adoption::Orphan;
use crate::node::interface::{Mono, Place};
use crate::node::membership::Membership;
use crate::node::queue::Queue;
use crate::node::runs::HeldRuns;
use crate::node::shards::{self, LAST_RANK};
use crate::node::sleep::{Shown, Took};
use crate::node::upcoming::{Expected, Unread, UpcomingTimers};
use crate::store::{Complete, Epoch, Seen, SeenNode, StoreSnapshot, StoreTime};
use crate::sync::Arc;

/// What one range of a snapshot has shown, in the order of due times.
struct ReadRange<'a> {
    asked: &'a Asked,
    rows: Vec<&'a Seen>,
    /// Whether its limit has left timers out.
    cut: bool,
    /// The store's time of the snapshot.
    now: StoreTime,
}

impl ReadRange<'_> {
    /// Notes where the next poll has to go on, and forgets the refused timers that are gone.
    fn learn_rest(&self, upcoming: &mut UpcomingTimers) {
        let Asked { part, goes_on, .. } = *self.asked;
        // A part of the last rank is not among the node's parts, so no poll would read its rest.
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

impl Polls {
    /// Takes in a snapshot, which arrives at `now` and was asked for at `sent`.
    pub(in crate::node) fn take(
        &mut self,
        sent: Mono,
        now: Mono,
        snapshot: &StoreSnapshot,
        membership: &Membership,
        queues: &mut [Queue],
        runs: &HeldRuns,
    ) {
        if self.turns {
            self.next_turn = now + now.saturating_sub(sent) * TURNS_WAIT;
        }
        let asked = std::mem::take(&mut self.asked);
        let vanished = self.learn_nodes(snapshot, membership, queues);
        let bound = self.bound(vanished, snapshot.complete);
        // Before the rows: a paused queue expects none of them.
        self.learn_paused(snapshot, queues);
        let number_of = |name: &str| self.numbers_of.get(name).copied();
        let shown = self.sleep.read(snapshot, number_of, &self.marks);
        // A band that was cut says nothing for sure. The next poll asks for each part instead.
        self.soon |= shown.is_cut;
        let by_range = by_range(&asked, snapshot, &self.numbers_of);
        let mut refused = Vec::new();
        for (index, (asked, rows)) in asked.iter().zip(by_range).enumerate() {
            let Some(queue) = queues.get_mut(asked.queue) else {
                continue;
            };
            let range = ReadRange {
                asked,
                rows,
                cut: snapshot.cut.contains(&index),
                now: snapshot.now,
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
        self.wake_shown(&shown, bound, snapshot.now, queues);
    }

    /// The moment before which this snapshot shows all that is due, if marks may move.
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
        // The next poll of everything is up to one interval away, and its answer takes time.
        let soon = store_now + self.interval * 3 / 2;
        let (sleep, marks) = (&mut self.sleep, &mut self.marks);
        sleep.finish(shown, bound, soon, late_enough, marks);
    }

    /// Learns who the nodes are. Returns whether one has ended.
    fn learn_nodes(
        &mut self,
        snapshot: &StoreSnapshot,
        membership: &Membership,
        queues: &[Queue],
    ) -> bool {
        let unranked = membership.unranked();
        let same = self.shows_same_nodes(snapshot) && *unranked == self.unranked;
        if same && self.knows_nodes {
            return false;
        }
        let nodes: BTreeMap<Epoch, Arc<[String]>> = snapshot
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

    /// Whether a snapshot shows the nodes that are known. Nodes seldom change, and a poll may show
    /// hundreds of them, so the comparison copies nothing.
    fn shows_same_nodes(&self, snapshot: &StoreSnapshot) -> bool {
        let is_known = |node: &SeenNode| {
            let known = self.nodes.get(&node.epoch);
            // Its names may be thousands, and are mostly the very same ones.
            known.is_some_and(|known| Arc::ptr_eq(known, &node.queues) || *known == node.queues)
        };
        snapshot.nodes.len() == self.nodes.len() && snapshot.nodes.iter().all(is_known)
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
            // A node that has ended may leave due timers behind in its shards, so poll at once.
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

    fn learn_paused(&mut self, snapshot: &StoreSnapshot, queues: &mut [Queue]) {
        let all: BTreeSet<&str> = snapshot.paused.iter().map(String::as_str).collect();
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

/// Sorts the rows of a snapshot by the ranges that they belong to, each in the order of due times.
fn by_range<'a>(
    asked: &[Asked],
    snapshot: &'a StoreSnapshot,
    numbers_of: &BTreeMap<Arc<str>, usize>,
) -> Vec<Vec<&'a Seen>> {
    let ranges: BTreeMap<(usize, u16), usize> = asked
        .iter()
        .enumerate()
        .map(|(index, range)| ((range.queue, range.part.shard), index))
        .collect();
    let mut sorted = vec![Vec::new(); asked.len()];
    for row in &snapshot.rows {
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
