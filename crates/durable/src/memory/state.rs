//! The tables of the store in memory. All calls happen under one lock.

mod counts;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use super::queue_row::QueueRow;
use crate::row::{self, Change, Claiming, Row, StoreContext, shard};
use crate::store::{
    Answer, Band, Beat, Call, Claim, Claimed, ClaimedRun, Complete, DeadLetter, DeadPage, Epoch,
    Horizon, NamedSchedules, NewNode, PAGE_BYTES, Page, Payload, Poll, Range, Revived, Run, SHARDS,
    Seen, SeenNode, Settle, Settled, Settlement, StoreSnapshot, StoreTime, StoredNode, Survey,
    SurveyedPart, Timer, schedule,
};
use crate::sync::Arc;

/// The time for which a gone node is kept.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// Everything that is stored.
#[derive(Default)]
pub(super) struct MemoryState {
    queues: BTreeMap<Arc<str>, QueueRow>,
    nodes: BTreeMap<Epoch, NodeRow>,
    /// The dead letters, by their numbers.
    letters: BTreeMap<i64, DeadLetter>,
    paused: BTreeSet<String>,
    /// The last generation. All keys share one sequence.
    generation: i64,
    /// The number of the last dead letter.
    letter: i64,
    /// The number of the last write: what a [`Horizon`] counts.
    writes: u64,
}

/// A node, gone or not.
struct NodeRow {
    name: String,
    joined: StoreTime,
    beat: i64,
    beat_at: StoreTime,
    queues: Arc<[String]>,
    schedules: NamedSchedules,
    gone: Option<StoreTime>,
}

type Nodes = BTreeMap<Epoch, NodeRow>;

fn is_live(nodes: &Nodes, epoch: Epoch) -> bool {
    nodes.get(&epoch).is_some_and(|node| node.gone.is_none())
}

impl MemoryState {
    // === users ===

    pub(super) fn write(&mut self, calls: &[Call], now: StoreTime) -> Vec<Answer> {
        self.writes += 1;
        calls.iter().map(|call| self.apply(call, now)).collect()
    }

    fn apply(&mut self, call: &Call, now: StoreTime) -> Answer {
        let row = self.row(&call.queue, &call.key).cloned();
        let shard = shard::of_key(&call.key);
        let (change, answer) = self.decide(now, |context| {
            row::apply(row, shard, call.action.clone(), context)
        });
        self.change(&call.queue, &call.key, change, now);
        answer
    }

    pub(super) fn get(&self, queue: &str, key: &str, now: StoreTime) -> Option<Timer> {
        self.timer(queue, key, self.row(queue, key)?, now)
    }

    fn timer(&self, queue: &str, key: &str, row: &Row, now: StoreTime) -> Option<Timer> {
        let is_paused = self.paused.contains(queue);
        let name = |epoch| {
            let node = self.nodes.get(&epoch).filter(|node| node.gone.is_none());
            node.map(|node| node.name.clone())
        };
        row::timer(queue, key, row, is_paused, now, &name)
    }

    pub(super) fn list(&self, page: &Page, now: StoreTime) -> Vec<Timer> {
        let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
        let mut timers = Vec::new();
        for (name, queue) in &self.queues {
            if page.queue.as_ref().is_some_and(|only| **only != **name) {
                continue;
            }
            // The page has no more of a shard than the page's limit.
            for shard in 0..SHARDS {
                let after = page.after.as_ref();
                let from = after.map_or(page.from, |(due, ..)| page.from.max(*due));
                let rows = queue
                    .due(shard, from, page.until)
                    .filter(|(key, row)| {
                        key.starts_with(&page.prefix)
                            && after.is_none_or(|(due, queue, last)| {
                                (row.due, &**name, &***key) > (*due, queue, last)
                            })
                    })
                    .filter_map(|(key, row)| self.timer(name, key, row, now))
                    .filter(|timer| page.state.is_none_or(|state| timer.state == state))
                    .filter(|timer| !page.schedules || schedule::is_schedule(timer.meta.as_ref()));
                timers.extend(rows.take(limit));
            }
        }
        timers.sort_unstable_by(|a, b| (a.due, &a.queue, &a.key).cmp(&(b.due, &b.queue, &b.key)));
        timers.truncate(limit);
        end_page(&mut timers, |timer| timer.payload.len());
        timers
    }

    pub(super) fn dead(&self, page: &DeadPage, now: StoreTime) -> Vec<DeadLetter> {
        let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
        let latest = page.older_than.map(|age| now.back_by(age));
        let letters = self
            .letters
            .range((Bound::Excluded(page.after), Bound::Unbounded))
            .map(|(_, letter)| letter)
            .filter(|letter| {
                page.queue
                    .as_ref()
                    .is_none_or(|queue| letter.queue == *queue)
                    && letter.key.starts_with(&page.prefix)
                    && latest.is_none_or(|latest| letter.at <= latest)
            })
            .map(|letter| DeadLetter {
                has_timer: self.get(&letter.queue, &letter.key, now).is_some(),
                ..letter.clone()
            });
        let mut letters = letters.take(limit).collect();
        end_page(&mut letters, |letter| letter.payload.len());
        letters
    }

    pub(super) fn discard(&mut self, letters: &[i64]) -> u64 {
        self.writes += 1;
        let found = letters
            .iter()
            .filter(|id| self.letters.remove(id).is_some());
        found.count() as u64
    }

    pub(super) fn discard_old(&mut self, latest: StoreTime, limit: u32) -> u64 {
        let first = self.letters.values().take(limit as usize);
        let old = first.filter(|letter| letter.at <= latest);
        let old: Vec<i64> = old.map(|letter| letter.id).collect();
        self.discard(&old)
    }

    pub(super) fn revive(&mut self, letter: i64, now: StoreTime) -> Revived {
        let Some(found) = self.letters.get(&letter) else {
            return Revived::NotFound;
        };
        let (queue, key) = (found.queue.clone(), found.key.clone());
        let payload = Payload {
            json: found.payload.clone().into(),
            meta: found.meta.clone(),
        };
        let row = self.row(&queue, &key).cloned();
        let revived = self.decide(now, |context| {
            row::revive(row, shard::of_key(&key), payload, context)
        });
        let Some(row) = revived else {
            return Revived::Exists;
        };
        self.writes += 1;
        self.letters.remove(&letter);
        self.change(&queue, &key, Change::Put(row), now);
        Revived::Revived { queue, key }
    }

    pub(super) fn set_paused(&mut self, queue: &str, paused: bool) {
        self.writes += 1;
        match paused {
            true => self.paused.insert(queue.to_owned()),
            false => self.paused.remove(queue),
        };
    }

    pub(super) fn pause_schedule(
        &mut self,
        queue: &str,
        key: &str,
        paused: bool,
        now: StoreTime,
    ) -> bool {
        self.writes += 1;
        let row = self.row(queue, key).cloned();
        let change = self.decide(now, |context| row::pause(row, paused, context));
        match change {
            Some(change) => {
                self.change(queue, key, change, now);
                true
            }
            None => false,
        }
    }

    // === nodes ===

    pub(super) fn join(&mut self, node: &NewNode, now: StoreTime) {
        self.writes += 1;
        let queues = node.queues.iter().map(|queue| (**queue).to_owned());
        let queues: Arc<[String]> = queues.collect();
        let row = self.nodes.entry(node.epoch);
        row.and_modify(|row| row.queues = Arc::clone(&queues))
            .or_insert_with(|| NodeRow {
                name: node.name.clone(),
                joined: now,
                beat: 0,
                beat_at: now,
                queues,
                schedules: node.schedules.clone(),
                gone: None,
            });
    }

    pub(super) fn nodes(&self, now: StoreTime) -> Vec<StoredNode> {
        let nodes = self.nodes.iter().map(|(epoch, node)| StoredNode {
            id: epoch.0,
            name: node.name.clone(),
            queues: node.queues.to_vec(),
            joined: node.joined.into(),
            silent_for: now.since(node.beat_at),
            gone: node.gone.map(Into::into),
            schedules: node.schedules.clone(),
        });
        let mut nodes: Vec<StoredNode> = nodes.collect();
        nodes.sort_by_key(|node| (node.joined, node.id));
        nodes
    }

    pub(super) fn beat(&mut self, epoch: Epoch, now: StoreTime) -> Option<Beat> {
        let horizon = self.horizon(now);
        let node = self.nodes.get_mut(&epoch)?;
        if node.gone.is_some() {
            return None;
        }
        node.beat += 1;
        node.beat_at = now;
        Some(Beat { now, horizon })
    }

    /// Takes the number of a write. The clock was read before, and the lock keeps others away.
    fn horizon(&mut self, now: StoreTime) -> Option<Horizon> {
        self.writes += 1;
        Some(Horizon {
            number: self.writes,
            at: now,
        })
    }

    pub(super) fn poll(&self, poll: &Poll, now: StoreTime) -> StoreSnapshot {
        let mut snapshot = StoreSnapshot {
            now,
            // All writes so far are in this snapshot.
            complete: poll.complete.then_some(Complete {
                below: self.writes + 1,
                at: now,
            }),
            paused: self.paused.iter().cloned().collect(),
            ..StoreSnapshot::default()
        };
        for (index, range) in poll.ranges.iter().enumerate() {
            if self.poll_part(range, poll.epoch, now, &mut snapshot.rows) {
                snapshot.cut.push(index);
            }
        }
        let mut survey = Survey::default();
        for (index, band) in poll.bands.iter().enumerate() {
            if self.survey(index, band, poll.epoch, now, &mut survey.parts) {
                survey.cut.push(index);
            }
        }
        snapshot.survey = Some(survey);
        let live = self.nodes.iter().filter(|(_, node)| node.gone.is_none());
        let seen = live.map(|(epoch, node)| SeenNode {
            epoch: *epoch,
            beat: node.beat,
            queues: Arc::clone(&node.queues),
        });
        snapshot.nodes = seen.collect();
        snapshot
    }

    /// Adds the timers of a range, and returns whether its limit has cut it.
    fn poll_part(&self, range: &Range, epoch: Epoch, now: StoreTime, rows: &mut Vec<Seen>) -> bool {
        let Some(queue) = self.queues.get(&range.queue) else {
            return false;
        };
        let from = range.mark.unwrap_or(StoreTime::from_micros(i64::MIN));
        let mut left = range.limit;
        for (key, row) in queue.due(range.shard, from, range.until.from(now)) {
            let holder = self.holder(row);
            if holder.is_some_and(|holder| holder != epoch) {
                continue;
            }
            if left == 0 {
                return true;
            }
            left -= 1;
            rows.push(Seen {
                queue: Arc::clone(&range.queue),
                key: Box::from(&**key),
                shard: row.shard,
                due: row.due,
                generation: row.generation,
                attempt: row.attempt,
                crashes: row.crashes,
                mine: holder.is_some(),
                bytes: row.payload.bytes() as u64,
            });
        }
        false
    }

    /// The live node that holds a row.
    fn holder(&self, row: &Row) -> Option<Epoch> {
        let holder = row.claim.map(|hold| hold.epoch);
        holder.filter(|holder| is_live(&self.nodes, *holder))
    }

    /// Adds the queues that have timers in a band, and returns whether its limit has cut it.
    fn survey(
        &self,
        index: usize,
        band: &Band,
        epoch: Epoch,
        now: StoreTime,
        parts: &mut Vec<SurveyedPart>,
    ) -> bool {
        let from = band.mark.unwrap_or(StoreTime::from_micros(i64::MIN));
        let mut found = Vec::new();
        for (name, queue) in &self.queues {
            let due = queue.due(band.shard, from, band.until.from(now));
            let is_shown = |row: &Row| self.holder(row).is_none_or(|holder| holder == epoch);
            let shown = due.filter(|(_, row)| is_shown(row));
            found.extend(shown.map(|(_, row)| (row.due, name)));
        }
        found.sort_unstable();
        let is_cut = found.len() > band.limit as usize;
        found.truncate(band.limit as usize);
        let mut firsts: BTreeMap<&str, StoreTime> = BTreeMap::new();
        for (due, name) in found {
            firsts.entry(name).or_insert(due);
        }
        parts.extend(firsts.into_iter().map(|(queue, first)| SurveyedPart {
            band: index,
            queue: queue.into(),
            first,
        }));
        is_cut
    }

    pub(super) fn claim(&mut self, claim: &Claim, now: StoreTime) -> Claimed {
        let mut claimed = Claimed {
            now,
            ..Claimed::default()
        };
        if !is_live(&self.nodes, claim.epoch) {
            claimed.gone = true;
            return claimed;
        }
        claimed.horizon = self.horizon(now);
        if now >= claim.deadline {
            return claimed;
        }
        for wanted in &claim.timers {
            if self.paused.contains(&*wanted.queue) {
                continue;
            }
            let Some(row) = self.row(&wanted.queue, &wanted.key).cloned() else {
                continue;
            };
            let claiming = self.decide(now, |context| {
                row::claim(row, claim.epoch, wanted.crash_limit, context)
            });
            let change = match claiming {
                Claiming::Run(row) => {
                    claimed.runs.push(run(&wanted.queue, &wanted.key, &row));
                    Change::Put(row)
                }
                Claiming::Not(change) => change,
            };
            claimed.dead += u32::from(matches!(change, Change::Bury(..)));
            self.change(&wanted.queue, &wanted.key, change, now);
        }
        for adopted in &claim.adopt {
            match self.held(adopted, claim.epoch) {
                Some(row) if row::may_start(row) => {
                    claimed.runs.push(run(&adopted.queue, &adopted.key, row));
                }
                Some(_) => claimed.over.push(adopted.clone()),
                None => {}
            }
        }
        claimed
    }

    pub(super) fn settle(&mut self, settle: &Settle, now: StoreTime) -> Vec<Settled> {
        self.writes += 1;
        let live = is_live(&self.nodes, settle.epoch);
        let settle_one = |settlement: &Settlement| match live {
            true => self.settle_one(settlement, settle.epoch, now),
            false => Settled::Fenced,
        };
        settle.settlements.iter().map(settle_one).collect()
    }

    fn settle_one(&mut self, settlement: &Settlement, epoch: Epoch, now: StoreTime) -> Settled {
        let run = &settlement.run;
        let Some(row) = self.held(run, epoch).cloned() else {
            return Settled::Fenced;
        };
        let (change, settled) = self.decide(now, |context| {
            row::settle(row, &settlement.outcome, context)
        });
        self.change(&run.queue, &run.key, change, now);
        settled
    }

    /// The row of a run, if the node still holds it. The node is live.
    fn held(&self, run: &Run, epoch: Epoch) -> Option<&Row> {
        let row = self.row(&run.queue, &run.key)?;
        row::is_held(row, epoch, run.generation, run.attempt).then_some(row)
    }

    pub(super) fn declare_gone(
        &mut self,
        asking: Epoch,
        epoch: Epoch,
        beat: i64,
        now: StoreTime,
    ) -> bool {
        self.writes += 1;
        if asking == epoch || !is_live(&self.nodes, asking) {
            return false;
        }
        let silent = self.nodes.get_mut(&epoch);
        let silent = silent.filter(|node| node.gone.is_none() && node.beat == beat);
        let declared = silent.is_some();
        if let Some(node) = silent {
            node.gone = Some(now);
        }
        self.forget_nodes(now);
        declared
    }

    /// Removes nodes that have been gone for a day, and that no timer refers to.
    fn forget_nodes(&mut self, now: StoreTime) {
        let is_old = |node: &NodeRow| node.gone.is_some_and(|gone| gone + KEPT <= now);
        if !self.nodes.values().any(is_old) {
            return;
        }
        let rows = self.queues.values().flat_map(|queue| queue.rows.values());
        let claims = rows.filter_map(|row| row.claim);
        let holders: BTreeSet<Epoch> = claims.map(|hold| hold.epoch).collect();
        self.nodes
            .retain(|epoch, node| !is_old(node) || holders.contains(epoch));
    }

    pub(super) fn leave(&mut self, epoch: Epoch, now: StoreTime) {
        self.writes += 1;
        if let Some(node) = self.nodes.get_mut(&epoch) {
            node.gone.get_or_insert(now);
        }
    }

    // === rows ===

    /// Lets one of the functions of [`row`] decide.
    fn decide<T>(&mut self, now: StoreTime, decide: impl FnOnce(&mut StoreContext<'_>) -> T) -> T {
        let (nodes, last) = (&self.nodes, &mut self.generation);
        decide(&mut StoreContext {
            now,
            is_live: &|epoch| is_live(nodes, epoch),
            generation: &mut || {
                *last += 1;
                *last
            },
        })
    }

    fn row(&self, queue: &str, key: &str) -> Option<&Row> {
        self.queues.get(queue)?.rows.get(key)
    }

    fn change(&mut self, queue: &str, key: &str, change: Change, now: StoreTime) {
        let of_queue = match self.queues.get_mut(queue) {
            Some(of_queue) => of_queue,
            None => self.queues.entry(Arc::from(queue)).or_default(),
        };
        match change {
            Change::Keep => {}
            Change::Put(row) => of_queue.put(key, row),
            Change::Delete => of_queue.delete(key),
            Change::Bury(row, error) => {
                of_queue.delete(key);
                self.bury(queue, key.to_owned(), row, error, now);
            }
            Change::BuryThen { dead, error, row } => {
                of_queue.put(key, row);
                let (key, meta) = schedule::letter(key, dead.payload.meta.as_ref());
                let payload = Payload {
                    meta,
                    ..dead.payload
                };
                self.bury(queue, key, Row { payload, ..dead }, error, now);
            }
        }
        // A queue without timers takes no memory.
        if self
            .queues
            .get(queue)
            .is_some_and(|queue| queue.rows.is_empty())
        {
            self.queues.remove(queue);
        }
    }

    fn bury(&mut self, queue: &str, key: String, row: Row, error: String, now: StoreTime) {
        self.letter += 1;
        let letter = DeadLetter {
            id: self.letter,
            queue: queue.to_owned(),
            key,
            planned: row.planned,
            at: now,
            attempt: row.attempt,
            fails: row.fails,
            crashes: row.crashes,
            error,
            // Decided when it is read.
            has_timer: false,
            payload: row.payload.json.into(),
            meta: row.payload.meta,
        };
        self.letters.insert(letter.id, letter);
    }
}

/// Ends a page where its payloads have [`PAGE_BYTES`].
fn end_page<T>(page: &mut Vec<T>, bytes: impl Fn(&T) -> usize) {
    let mut before = 0;
    page.retain(|entry| {
        let is_in = before < PAGE_BYTES;
        before += bytes(entry) as u64;
        is_in
    });
}

fn run(queue: &Arc<str>, key: &str, row: &Row) -> ClaimedRun {
    ClaimedRun {
        run: Run {
            queue: Arc::clone(queue),
            key: Box::from(key),
            generation: row.generation,
            attempt: row.attempt,
        },
        due: row.due,
        planned: row.planned,
        fails: row.fails,
        crashes: row.crashes,
        stepped: false,
        payload: row.payload.clone(),
    }
}
