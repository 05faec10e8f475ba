//! How the machine reacts to the answers to its calls.

use std::collections::BTreeMap;
use std::time::Duration;

use super::adoption::Orphan;
use super::claims::Requested;
use super::interface::{Lane, Mono, Place, Reply};
use super::lane::{LaneState, UnderWay};
use super::machine::{MOST_SETTLED, Node, Watching};
use super::polls::SUSPECT;
use super::upcoming::Expected;
use crate::store::{
    Beat, Claimed, ClaimedRun, Outcome, RefusedClaim, Settled, StoreError, StoreSnapshot, StoreTime,
};

/// The longest pause after which an end is asked for again that the store refuses, or a timer is
/// claimed again, unless polls are rarer.
const LONGEST_REFUSED: Duration = Duration::from_secs(30);

impl Node {
    /// Takes in the answer to a call.
    pub(super) fn replied(&mut self, now: Mono, id: u64, result: Result<Reply, StoreError>) {
        let is_it = |lane: &LaneState| lane.under_way.filter(|call| call.id == id);
        let found = Lane::ALL
            .into_iter()
            .find_map(|lane| is_it(self.lane(lane)).map(|call| (lane, call)));
        let Some((lane, call)) = found else {
            return;
        };
        self.lane(lane).under_way = None;
        match result {
            Ok(_) => self.lane(lane).succeeded(),
            Err(_) => {
                let random = self.numbers.next();
                let longest = self.poll_interval;
                self.lane(lane).failed(now, longest, random);
            }
        }
        let result = match call.epoch == self.membership.epoch {
            true => Some(result),
            // The epoch ended since: nothing that the answer says concerns the node any more.
            false => None,
        };
        if let Some(Err(StoreError::Replaced(_))) = result {
            self.membership.store_was_replaced(now);
            self.polls.marks.drop_all();
        }
        match lane {
            Lane::Watch => self.watch_replied(now, call, result),
            Lane::Claims => self.claim_replied(now, call, result),
            Lane::Settles => self.settle_replied(now, call, result),
        }
    }

    fn watch_replied(
        &mut self,
        now: Mono,
        call: UnderWay,
        result: Option<Result<Reply, StoreError>>,
    ) {
        let watching = std::mem::replace(&mut self.watching, Watching::Nothing);
        match (watching, result) {
            (Watching::Join, Some(Ok(_))) => {
                self.membership.joined = true;
                self.membership.next_beat = now;
                self.polls.soon = true;
            }
            (Watching::Resign, Some(Ok(_))) => {
                if let Some(stopping) = &mut self.stopping {
                    stopping.resigned = true;
                }
            }
            (Watching::Beat, Some(Ok(Reply::Beat(Some(beat))))) => self.beat(now, call, beat),
            (Watching::Beat, Some(Ok(Reply::Beat(None)))) => self.gone(),
            (Watching::Beat, Some(_)) => {
                self.membership.beat_failed(now);
                self.polls.marks.drop_all();
            }
            (Watching::Poll, Some(Ok(Reply::Snapshot(snapshot)))) => {
                self.snapshot(now, call, &snapshot);
            }
            (Watching::Poll, Some(_)) => self.polls.failed(),
            (Watching::DeclareGone(_), Some(Ok(Reply::DeclaredGone(gone)))) => {
                self.polls.soon |= gone;
            }
            (Watching::DeclareGone(epoch), Some(_)) => self.membership.declare_again(epoch),
            (Watching::Leave, Some(Ok(_))) => {
                if let Some(stopping) = &mut self.stopping {
                    stopping.left = true;
                }
            }
            _ => {}
        }
    }

    fn beat(&mut self, now: Mono, call: UnderWay, beat: Beat) {
        self.learn_time(now, call, beat.now);
        self.polls.marks.learn(beat.horizon);
        self.membership.beat_was_good(call.sent, now);
        if self.is_leaving() {
            self.membership.let_go();
        }
    }

    fn snapshot(&mut self, now: Mono, call: UnderWay, snapshot: &StoreSnapshot) {
        self.learn_time(now, call, snapshot.now);
        if !self.membership.saw(&snapshot.nodes, now) {
            // The next beat says whether the node is gone.
            self.membership.next_beat = now;
        }
        let (queues, runs) = (&mut self.queues, &self.runs);
        let membership = &self.membership;
        self.polls
            .take(call.sent, now, snapshot, membership, queues, runs);
    }

    fn learn_time(&mut self, now: Mono, call: UnderWay, store: StoreTime) {
        if !self.clock.learn(call.sent, now, store) {
            self.polls.marks.drop_all();
        }
    }

    fn claim_replied(
        &mut self,
        now: Mono,
        call: UnderWay,
        result: Option<Result<Reply, StoreError>>,
    ) {
        let requested = self.claims.take();
        let mut wanted = vec![0; self.queues.len()];
        for place in requested.places() {
            wanted[place.0] += 1;
        }
        let mut claimed = vec![0; self.queues.len()];
        match result {
            Some(Ok(Reply::Claimed(answer))) if answer.gone => self.gone(),
            Some(Ok(Reply::Claimed(answer))) => {
                self.claims.grow();
                self.learn_time(now, call, answer.now);
                self.polls.marks.learn(answer.horizon);
                let shards: BTreeMap<Place, Expected> = requested.wanted.into_iter().collect();
                let adopted: BTreeMap<Place, Orphan> = requested.adopt.into_iter().collect();
                self.claimed(now, answer, &shards, &adopted, &mut claimed);
            }
            Some(result) => {
                let is_refused = matches!(result, Err(StoreError::Refused(_)));
                self.claim_failed(now, requested, is_refused);
            }
            None => {}
        }
        // Whatever came of the claim, what it did not return is no longer on its way.
        for (number, queue) in self.queues.iter_mut().enumerate() {
            queue.taken(wanted[number], claimed[number]);
        }
    }

    /// Prepares the next claims after one that has failed, with or without an effect.
    fn claim_failed(&mut self, now: Mono, requested: Requested, is_refused: bool) {
        // One of the timers may be the reason, or the size of the answer.
        let asked = requested.wanted.len() + requested.adopt.len();
        self.claims.shrink(asked);
        if let ([((queue, key), one)], 1) = (requested.wanted.as_slice(), asked) {
            // It is claimed again when nothing else is due.
            let longest = LONGEST_REFUSED.max(self.poll_interval);
            let upcoming = &mut self.queues[*queue].upcoming;
            match is_refused {
                true => upcoming.refuse_later(key.clone(), one, now, longest),
                // An outage. The lane pauses already.
                false => upcoming.refuse(key.clone(), one),
            }
            self.polls.wake(*queue, one.shard);
        }
        self.polls.marks.drop_all();
        self.polls.soon = true;
        // The claim may have been carried out, or may still be.
        let wanted = requested.wanted.into_iter();
        let shards = wanted.map(|(place, expected)| (place.0, expected.shard));
        let adopted = requested.adopt.into_iter();
        let adopted = adopted.map(|(place, orphan)| (place.0, orphan.shard));
        for (queue, shard) in shards.chain(adopted) {
            self.polls.adoption.doubt(queue, shard);
        }
    }

    /// Takes in the runs that a claim has returned, and counts them by queues.
    fn claimed(
        &mut self,
        now: Mono,
        answer: Claimed,
        wanted: &BTreeMap<Place, Expected>,
        adopted: &BTreeMap<Place, Orphan>,
        counts: &mut [usize],
    ) {
        let mut left = wanted.clone();
        let mut bytes = vec![0; counts.len()];
        for run in answer.runs {
            let Some(place) = self.place(&run.run) else {
                continue;
            };
            let shard = match (left.remove(&place), adopted.get(&place)) {
                (Some(expected), _) => {
                    counts[place.0] += 1;
                    expected.shard
                }
                (None, Some(orphan)) => {
                    counts[place.0] += 1;
                    orphan.shard
                }
                (None, None) => continue,
            };
            bytes[place.0] += run.payload.bytes() as u64;
            self.hold(now, place, shard, run);
        }
        for run in answer.over {
            let place = self.place(&run).filter(|place| !self.runs.is_held(place));
            if let Some((place, orphan)) = place.and_then(|place| adopted.get_key_value(&place)) {
                self.runs.add_over(place.clone(), orphan, now);
            }
        }
        // A timer whose payload's length nobody knows counts as much as these.
        for (queue, (bytes, count)) in self.queues.iter_mut().zip(bytes.iter().zip(&*counts)) {
            if let Some(mean) = bytes.checked_div(*count as u64) {
                queue.usual_bytes = mean;
            }
        }
        self.not_claimed(now, answer.now, answer.refused, left);
    }

    /// Takes in what a claim did not return. A timer that was not due by the store's clock is kept.
    /// All else is forgotten: if it is still to be had, the next poll finds it.
    fn not_claimed(
        &mut self,
        now: Mono,
        store_now: StoreTime,
        refused: Vec<RefusedClaim>,
        mut left: BTreeMap<Place, Expected>,
    ) {
        let window = store_now + self.poll_interval * 2;
        let longest = LONGEST_REFUSED.max(self.poll_interval);
        for refused in refused {
            let queue = self.numbers_of.get(&refused.queue);
            let place = queue.map(|queue| (*queue, refused.key));
            if let Some((place, expected)) = place.and_then(|place| left.remove_entry(&place)) {
                self.polls.wake(place.0, expected.shard);
                let upcoming = &mut self.queues[place.0].upcoming;
                upcoming.refuse_later(place.1, &expected, now, longest);
            }
        }
        for ((queue, key), expected) in left {
            let upcoming = &mut self.queues[queue].upcoming;
            if expected.due <= store_now {
                upcoming.refuse(key, &expected);
                // A poll of its part shows whether it is still there.
                self.polls.wake(queue, expected.shard);
            } else if expected.due < window && self.stopping.is_none() {
                upcoming.insert(&key, expected);
            }
        }
    }

    fn hold(&mut self, now: Mono, place: Place, shard: u16, run: ClaimedRun) {
        if self.runs.is_held(&place) {
            return;
        }
        let suspect = run.crashes >= SUSPECT;
        self.queues[place.0].upcoming.granted(&place.1);
        self.queues[place.0].running += 1;
        self.runs.add(place, shard, suspect, run);
        if self.stopping.is_some() {
            self.give_back(now);
        }
    }

    fn settle_replied(
        &mut self,
        now: Mono,
        call: UnderWay,
        result: Option<Result<Reply, StoreError>>,
    ) {
        let ends = self.runs.take_settling();
        match result {
            Some(Ok(Reply::Settled(answers))) => {
                self.settle_limit = (self.settle_limit * 2).min(MOST_SETTLED);
                let mut answers = answers.into_iter();
                for (place, outcome) in ends {
                    match answers.next() {
                        Some(Ok(Settled::Locked)) | None => {
                            self.step_failed(&place);
                            self.runs.settle_later(place, now, self.poll_interval);
                        }
                        Some(Ok(settled)) => self.settled(now, call, &place, &outcome, settled),
                        Some(Err(_)) => {
                            self.step_failed(&place);
                            let longest = LONGEST_REFUSED.max(self.poll_interval);
                            self.runs.settle_later(place, now, longest);
                        }
                    }
                }
            }
            Some(result) => {
                // One of them may be the reason: smaller calls let the others through, and one that
                // has failed alone waits, like one that the store has refused alone.
                self.settle_limit = (ends.len() / 2).max(1);
                let is_alone = ends.len() == 1;
                let longest = match result {
                    Err(StoreError::Refused(_)) => LONGEST_REFUSED.max(self.poll_interval),
                    _ => self.poll_interval,
                };
                for (place, _) in ends {
                    self.step_failed(&place);
                    match is_alone {
                        true => self.runs.settle_later(place, now, longest),
                        false => self.runs.settle_again(place, now),
                    }
                }
            }
            None => {}
        }
    }

    /// An end was not taken. A step keeps its place for one call alone.
    fn step_failed(&mut self, place: &Place) {
        if self.runs.step_failed(place) {
            self.queues[place.0].running -= 1;
        }
    }

    /// The store knows an end. The key may be due again soon.
    fn settled(
        &mut self,
        now: Mono,
        call: UnderWay,
        place: &Place,
        outcome: &Outcome,
        settled: Settled,
    ) {
        self.polls.touch(|| [place.clone()].into());
        if let (Settled::Stepped, Outcome::Step(run)) = (settled, outcome) {
            let run = ClaimedRun {
                stepped: true,
                ..ClaimedRun::clone(run)
            };
            self.runs.wait_again(place.clone(), run);
            if self.stopping.is_some() {
                self.give_back(now);
            }
            return;
        }
        let Some(held) = self.runs.release(place) else {
            return;
        };
        if matches!(outcome, Outcome::Step(_)) {
            // It does not start after all.
            self.queues[place.0].running -= 1;
        }
        let after = match (settled, outcome) {
            (Settled::Waits, Outcome::Again(after) | Outcome::Retry(after)) => Some(*after),
            _ => None,
        };
        // The store has counted from a moment that was not later than now.
        let round_trip = now.saturating_sub(call.sent);
        let store_now = self.clock.at(now).map(|time| time + round_trip);
        let next = match (after, store_now) {
            (Some(after), Some(store_now)) if after < self.poll_interval => {
                Some((store_now + after, held.bytes))
            }
            _ => held.next,
        };
        if let Some((due, bytes)) = next.filter(|_| self.stopping.is_none()) {
            let expected = Expected {
                due,
                bytes,
                shard: held.shard,
                suspect: held.suspect && settled == Settled::Waits,
            };
            self.queues[place.0].upcoming.insert(&place.1, expected);
        }
    }
}
