//! The runs of a node: claimed, started, ended and not yet settled.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::adoption::Orphan;
use super::interface::{Mono, Place};
use super::load::Load;
use crate::store::{ClaimedRun, Next, Outcome, Run, Settlement, StoreTime};
use crate::sync::Arc;

/// The first pause after which the end of a run is asked for again whose row is locked or refused.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// A run that the node holds.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) generation: i64,
    pub(super) attempt: u32,
    pub(super) shard: u16,
    pub(super) suspect: bool,
    /// The length of its payload.
    pub(super) bytes: u64,
    /// When the timer that waits for the end of the run is due, and the length of its payload, as
    /// far as the node knows.
    pub(super) next: Option<(StoreTime, u64)>,
    /// How often its end has met a locked row, or was refused.
    tries: u32,
    state: RunState,
}

#[derive(Debug)]
enum RunState {
    /// Claimed. It starts when the node holds its lease.
    Waits(ClaimedRun),
    Runs,
    /// It has ended, and the store does not know it yet.
    Ended(Outcome),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HeldRuns {
    held: BTreeMap<Place, Held>,
    waiting: VecDeque<Place>,
    /// Ends to settle, by the time from which on they are sent.
    ended: BTreeMap<(Mono, u64), Place>,
    numbered: u64,
    /// The number of ends that the store does not know, by queues.
    unsettled: BTreeMap<usize, usize>,
    /// Runs of earlier epochs that still go on. Their ends are dropped.
    dropped: BTreeSet<(usize, Box<str>, i64, u32)>,
    /// The runs that go on, and are a suspect's.
    suspects: usize,
    /// The runs that have started and not ended, without the dropped ones.
    going_on: usize,
    /// The ends in the call that is under way.
    settling: Vec<(Place, Outcome)>,
}

impl HeldRuns {
    pub(super) fn is_held(&self, place: &Place) -> bool {
        self.held.contains_key(place)
    }

    /// A timer of a key that is held was scheduled.
    pub(super) fn set_next(&mut self, place: &Place, due: StoreTime, bytes: u64) {
        if let Some(held) = self.held.get_mut(place) {
            held.next = Some((due, bytes));
        }
    }

    /// The number of runs of a queue that are held, by shards.
    pub(super) fn in_shards(&self, queue: usize) -> BTreeMap<u16, usize> {
        let mut counts = BTreeMap::new();
        for (_, held) in self
            .held
            .range((queue, Box::from(""))..(queue + 1, "".into()))
        {
            *counts.entry(held.shard).or_default() += 1;
        }
        counts
    }

    pub(super) fn suspects(&self) -> usize {
        self.suspects
    }

    /// The number of ends that the store does not know.
    pub(super) fn unsettled(&self) -> usize {
        self.ended.len() + self.settling.len()
    }

    /// The same of one queue.
    pub(super) fn unsettled_of(&self, queue: usize) -> usize {
        self.unsettled.get(&queue).copied().unwrap_or(0)
    }

    pub(super) fn going_on(&self) -> usize {
        self.going_on
    }

    /// Adds a claimed run, which waits for its start.
    pub(super) fn add(&mut self, place: Place, shard: u16, suspect: bool, run: ClaimedRun) {
        let held = Held {
            generation: run.run.generation,
            attempt: run.run.attempt,
            shard,
            suspect,
            bytes: run.payload.bytes() as u64,
            next: None,
            tries: 0,
            state: RunState::Waits(run),
        };
        self.suspects += usize::from(suspect);
        self.waiting.push_back(place.clone());
        self.held.insert(place, held);
    }

    /// Adds a claimed run that must not start any more, and so ends at once.
    pub(super) fn add_over(&mut self, place: Place, orphan: &Orphan, now: Mono) {
        let held = Held {
            generation: orphan.generation,
            attempt: orphan.attempt,
            shard: orphan.shard,
            suspect: false,
            bytes: orphan.bytes,
            next: None,
            tries: 0,
            state: RunState::Runs,
        };
        self.held.insert(place.clone(), held);
        self.end(place, Outcome::GiveBack(Duration::ZERO), now);
    }

    /// Starts the run that has waited longest.
    pub(super) fn start_next(&mut self) -> Option<ClaimedRun> {
        let place = self.waiting.pop_front()?;
        let held = self.held.get_mut(&place)?;
        match std::mem::replace(&mut held.state, RunState::Runs) {
            RunState::Waits(run) => {
                self.going_on += 1;
                Some(run)
            }
            other => {
                held.state = other;
                None
            }
        }
    }

    /// Ends all runs that have not started. Returns their queues.
    pub(super) fn give_back_waiting(&mut self, now: Mono) -> Vec<usize> {
        let waiting = std::mem::take(&mut self.waiting);
        waiting
            .into_iter()
            .map(|place| {
                let queue = place.0;
                self.end(place, Outcome::GiveBack(Duration::ZERO), now);
                queue
            })
            .collect()
    }

    /// A run has ended. Returns whether it counts as running no more.
    pub(super) fn finish(&mut self, place: Place, run: &Run, outcome: Outcome, now: Mono) -> bool {
        let dropped = (place.0, place.1.clone(), run.generation, run.attempt);
        if self.dropped.remove(&dropped) {
            return true;
        }
        let is_this = self.held.get(&place).is_some_and(|held| {
            matches!(held.state, RunState::Runs)
                && held.generation == run.generation
                && held.attempt == run.attempt
        });
        if !is_this {
            return false;
        }
        // It keeps its place until the store has said whether it starts after all.
        let is_over = !matches!(outcome, Outcome::Step(_));
        self.going_on -= 1;
        self.end(place, outcome, now);
        is_over
    }

    /// A step was not taken at once. Then the row waits for the later occurrence, and what is asked
    /// for says so, whether the store has taken the step or not. Returns whether it was a step, whose
    /// place is free now.
    pub(super) fn step_failed(&mut self, place: &Place) -> bool {
        let Some(held) = self.held.get_mut(place) else {
            return false;
        };
        let RunState::Ended(Outcome::Step(run)) = &held.state else {
            return false;
        };
        let next = run
            .payload
            .meta
            .clone()
            .map(|meta| Next { due: run.due, meta });
        // A step always has a meta: its schedule is there.
        let next = next.map_or(Outcome::GiveBack(Duration::ZERO), |next| {
            Outcome::Next(Box::new(next))
        });
        held.state = RunState::Ended(next);
        true
    }

    /// The store has moved a run to a later occurrence, and the node still holds it.
    pub(super) fn wait_again(&mut self, place: Place, run: ClaimedRun) {
        let Some(held) = self.held.get_mut(&place) else {
            return;
        };
        held.tries = 0;
        held.bytes = run.payload.bytes() as u64;
        held.state = RunState::Waits(run);
        self.suspects += usize::from(held.suspect);
        if let Some(unsettled) = self.unsettled.get_mut(&place.0) {
            *unsettled -= 1;
        }
        self.waiting.push_back(place);
    }

    fn end(&mut self, place: Place, outcome: Outcome, now: Mono) {
        if let Some(held) = self.held.get_mut(&place) {
            held.state = RunState::Ended(outcome);
            self.suspects -= usize::from(held.suspect);
            *self.unsettled.entry(place.0).or_default() += 1;
            self.ask(place, now);
        }
    }

    /// Queues an end to be settled from `at` on.
    fn ask(&mut self, place: Place, at: Mono) {
        self.numbered += 1;
        self.ended.insert((at, self.numbered), place);
    }

    /// When the next end can be settled.
    pub(super) fn next_settle(&self) -> Option<Mono> {
        self.ended.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes up to `limit` ends for a call, with the rows of as many bytes as a call may carry.
    /// `names` has the names of the queues.
    pub(super) fn take_ended(
        &mut self,
        now: Mono,
        limit: usize,
        names: &[Arc<str>],
    ) -> Vec<Settlement> {
        let mut settlements = Vec::new();
        let mut load = Load::default();
        while settlements.len() < limit {
            let Some(entry) = self
                .ended
                .first_entry()
                .filter(|entry| entry.key().0 <= now)
            else {
                break;
            };
            let Some(held) = self.held.get(entry.get()) else {
                entry.remove();
                continue;
            };
            if !load.take(held.bytes) {
                break;
            }
            let place = entry.remove();
            let (RunState::Ended(outcome), Some(queue)) = (&held.state, names.get(place.0)) else {
                continue;
            };
            settlements.push(Settlement {
                run: Run {
                    queue: queue.clone(),
                    key: place.1.clone(),
                    generation: held.generation,
                    attempt: held.attempt,
                },
                outcome: outcome.clone(),
            });
            self.settling.push((place, outcome.clone()));
        }
        settlements
    }

    /// The ends of the call that was answered, in its order.
    pub(super) fn take_settling(&mut self) -> Vec<(Place, Outcome)> {
        std::mem::take(&mut self.settling)
    }

    /// An end is to be asked for again.
    pub(super) fn settle_again(&mut self, place: Place, at: Mono) {
        self.ask(place, at);
    }

    /// An end has met a locked row, or was refused. It is asked for again after a pause, which
    /// doubles each time up to `longest`, so that many of them leave time for other ends.
    pub(super) fn settle_later(&mut self, place: Place, now: Mono, longest: Duration) {
        let Some(held) = self.held.get_mut(&place) else {
            return;
        };
        let pause = FIRST_PAUSE.saturating_mul(1 << held.tries.min(31));
        held.tries = held.tries.saturating_add(1);
        self.ask(place, now + pause.min(longest).max(FIRST_PAUSE));
    }

    /// The store knows the end.
    pub(super) fn release(&mut self, place: &Place) -> Option<Held> {
        let held = self.held.remove(place)?;
        if let Some(unsettled) = self.unsettled.get_mut(&place.0) {
            *unsettled -= 1;
        }
        Some(held)
    }

    /// Drops all: their claims count as none any more. Returns, for each run that has not started
    /// and counts as running, its queue. Those that go on are counted until they end.
    pub(super) fn drop_all(&mut self) -> Vec<usize> {
        let mut freed = Vec::new();
        for ((queue, key), held) in std::mem::take(&mut self.held) {
            match held.state {
                RunState::Waits(_) | RunState::Ended(Outcome::Step(_)) => freed.push(queue),
                RunState::Runs => {
                    self.dropped
                        .insert((queue, key, held.generation, held.attempt));
                }
                RunState::Ended(_) => {}
            }
        }
        self.waiting.clear();
        self.ended.clear();
        self.unsettled.clear();
        self.settling.clear();
        self.suspects = 0;
        self.going_on = 0;
        freed
    }

    /// Stops waiting for the runs that go on. Returns their number.
    pub(super) fn abandon(&mut self) -> usize {
        let abandoned = self.going_on;
        self.held
            .retain(|_, held| !matches!(held.state, RunState::Runs));
        self.going_on = 0;
        abandoned
    }
}
