//! The machine: inputs in, commands out.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::node::claims::{Claims, Term};
use crate::node::clock::Estimate;
use crate::node::coming::Expected;
use crate::node::interface::{Command, Input, Lane, Mono, Near, NodeConfig, Reply, StoreCall};
use crate::node::lane::{LaneState, UnderWay};
use crate::node::looks::{Looks, SUSPECT};
use crate::node::membership::Membership;
use crate::node::numbers::Numbers;
use crate::node::queue::Queue;
use crate::node::runs::{Place, Runs};
use crate::node::stopping::Stopping;
use crate::store::{
    Beat, Claimed, ClaimedRun, Epoch, NewNode, Outcome, Run, Settle, Settled, Sight, StoreError,
};
use crate::sync::Arc;
use crate::time::StoreTime;

/// The greatest number of settlements in a call.
const MOST_SETTLED: usize = 1_000;
/// The pause after which a locked row is asked for again.
const LOCKED_PAUSE: Duration = Duration::from_millis(20);

/// The state machine of a node. See the module [`node`](crate::node).
#[derive(Debug)]
pub(crate) struct Node {
    name: String,
    look: Duration,
    names: Vec<Arc<str>>,
    numbers_of: BTreeMap<Arc<str>, usize>,
    numbers: Numbers,
    membership: Membership,
    clock: Estimate,
    queues: Vec<Queue>,
    looks: Looks,
    claims: Claims,
    runs: Runs,
    watch: LaneState,
    claiming: LaneState,
    settling: LaneState,
    /// What the call of the watch lane was.
    watching: Watching,
    settle_limit: usize,
    last_id: u64,
    stopping: Option<Stopping>,
    ended: bool,
    wake: Option<Mono>,
}

/// The call that is under way on the watch lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Watching {
    Nothing,
    Join,
    /// A join without queues.
    Resign,
    Beat,
    Look,
    DeclareGone(Epoch),
    Leave,
}

impl Node {
    /// Makes a node. Its first step sends its first call.
    pub(crate) fn new(config: NodeConfig) -> Self {
        let mut numbers = Numbers::new(config.seed);
        let epoch = new_epoch(&mut numbers);
        let names: Vec<Arc<str>> = config
            .queues
            .iter()
            .map(|queue| queue.name.clone())
            .collect();
        let turn = numbers.next();
        Node {
            name: config.name,
            look: config.look,
            numbers_of: names.iter().cloned().zip(0..).collect(),
            looks: Looks::new(config.look, names.len(), turn),
            names,
            numbers,
            membership: Membership::new(epoch, config.term),
            clock: Estimate::default(),
            queues: config
                .queues
                .into_iter()
                .map(|queue| Queue::new(queue, config.look))
                .collect(),
            claims: Claims::new(),
            runs: Runs::default(),
            watch: LaneState::default(),
            claiming: LaneState::default(),
            settling: LaneState::default(),
            watching: Watching::Nothing,
            settle_limit: MOST_SETTLED,
            last_id: 0,
            stopping: None,
            ended: false,
            wake: Some(Mono::ZERO),
        }
    }

    /// The epoch of the node's claims. It changes when the node was declared gone.
    pub(crate) fn epoch(&self) -> Epoch {
        self.membership.epoch
    }

    /// When the node's term ends. `None` if it has none.
    pub(crate) fn term_end(&self) -> Option<Mono> {
        self.membership.term_end()
    }

    /// Whether the node may start runs, and its claims are live.
    pub(crate) fn is_held(&self, now: Mono) -> bool {
        self.membership.is_held(now)
    }

    /// The number of timers that are due soon and are held in memory.
    pub(crate) fn coming(&self) -> usize {
        self.queues.iter().map(|queue| queue.coming.len()).sum()
    }

    /// When the next step is due at the latest, even without an input. `None`: only with an input.
    pub(crate) fn next_wake(&self) -> Option<Mono> {
        self.wake
    }

    /// Takes an input, and adds what is to be done. Times must not go back.
    pub(crate) fn step(&mut self, now: Mono, input: Input, out: &mut Vec<Command>) {
        if self.ended {
            return;
        }
        match input {
            Input::Wake => {}
            Input::Reply { id, result } => self.replied(now, id, result),
            Input::Near(near) => self.near(now, near),
            Input::Finished { run, outcome } => self.finished(now, &run, outcome),
            Input::LookNow => self.looks.soon = true,
            Input::Stop { grace } => self.stop(now, grace),
        }
        self.go_on(now, out);
    }

    /// Sends what can be sent, and notes when something else can be.
    fn go_on(&mut self, now: Mono, out: &mut Vec<Command>) {
        self.wake = None;
        if self.go_on_stopping(now, out) {
            return;
        }
        self.start_runs(now, out);
        self.use_watch(now, out);
        self.use_claims(now, out);
        self.use_settles(now, out);
    }

    fn wake_at(&mut self, time: Option<Mono>) {
        self.wake = self.wake.into_iter().chain(time).min();
    }

    fn send(&mut self, now: Mono, call: StoreCall, out: &mut Vec<Command>) {
        self.last_id += 1;
        let under_way = UnderWay {
            id: self.last_id,
            sent: now,
            epoch: self.membership.epoch,
        };
        self.lane(call.lane()).under_way = Some(under_way);
        let id = self.last_id;
        out.push(Command::Ask { id, call });
    }

    fn lane(&mut self, lane: Lane) -> &mut LaneState {
        match lane {
            Lane::Watch => &mut self.watch,
            Lane::Claims => &mut self.claiming,
            Lane::Settles => &mut self.settling,
        }
    }

    // === what is sent ===

    fn start_runs(&mut self, now: Mono, out: &mut Vec<Command>) {
        if self.stopping.is_some() {
            return;
        }
        while self.membership.is_held(now) {
            let Some(run) = self.runs.start_next() else {
                return;
            };
            out.push(Command::Start(run));
        }
    }

    fn use_watch(&mut self, now: Mono, out: &mut Vec<Command>) {
        if let Err(time) = self.watch.is_free(now) {
            return self.wake_at(time);
        }
        let epoch = self.membership.epoch;
        if self.is_leaving() {
            self.membership.let_go();
            self.watching = Watching::Leave;
            return self.send(now, StoreCall::Leave(epoch), out);
        }
        if !self.membership.joined {
            if self.stopping.is_none() {
                self.membership.join_sent = true;
                self.watching = Watching::Join;
                let call = self.join(self.names.clone());
                self.send(now, call, out);
            }
            return;
        }
        if now >= self.membership.next_beat {
            self.watching = Watching::Beat;
            return self.send(now, StoreCall::Beat(epoch), out);
        }
        if self
            .stopping
            .as_ref()
            .is_some_and(|stopping| !stopping.resigned)
        {
            self.watching = Watching::Resign;
            let call = self.join(Vec::new());
            return self.send(now, call, out);
        }
        if self.stopping.is_none() {
            if let Some((silent, beat)) = self.membership.take_silent(now) {
                self.watching = Watching::DeclareGone(silent);
                let call = StoreCall::DeclareGone {
                    asking: epoch,
                    epoch: silent,
                    beat,
                };
                return self.send(now, call, out);
            }
            if self.looks.is_wanted(now, &self.queues) {
                self.watching = Watching::Look;
                let in_claim = self.claims.places();
                let (queues, runs) = (&mut self.queues, &self.runs);
                let look = self.looks.ask(now, epoch, queues, runs, &in_claim);
                return self.send(now, StoreCall::Look(look), out);
            }
            self.wake_at(Some(self.looks.next));
        }
        self.wake_at(Some(self.membership.next_beat));
    }

    fn join(&self, queues: Vec<Arc<str>>) -> StoreCall {
        StoreCall::Join(NewNode {
            epoch: self.membership.epoch,
            name: self.name.clone(),
            queues,
        })
    }

    fn use_claims(&mut self, now: Mono, out: &mut Vec<Command>) {
        let term_end = self.membership.term_end().filter(|end| now < *end);
        let Some(end) = term_end.filter(|_| self.stopping.is_none()) else {
            return;
        };
        if let Err(time) = self.claiming.is_free(now) {
            return self.wake_at(time);
        }
        let epoch = self.membership.epoch;
        let asked = self.claims.ask(
            Term { epoch, now, end },
            &self.clock,
            &mut self.queues,
            &self.runs,
            &mut self.looks.adoption,
        );
        match asked {
            Ok(claim) => {
                self.looks.touch(self.claims.places());
                self.send(now, StoreCall::Claim(claim), out);
            }
            Err(time) => self.wake_at(time),
        }
    }

    fn use_settles(&mut self, now: Mono, out: &mut Vec<Command>) {
        if let Err(time) = self.settling.is_free(now) {
            return self.wake_at(time);
        }
        let settlements = self.runs.take_ended(now, self.settle_limit, &self.names);
        if settlements.is_empty() {
            return self.wake_at(self.runs.next_settle());
        }
        let settle = Settle {
            epoch: self.membership.epoch,
            settlements,
        };
        self.send(now, StoreCall::Settle(settle), out);
    }

    // === what is answered ===

    fn replied(&mut self, now: Mono, id: u64, result: Result<Reply, StoreError>) {
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
                let longest = self.look;
                self.lane(lane).failed(now, longest, random);
            }
        }
        let result = match call.epoch == self.membership.epoch {
            true => Some(result),
            // The epoch ended since: nothing that the answer says concerns the node any more.
            false => None,
        };
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
                self.looks.soon = true;
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
                self.looks.marks.drop_all();
            }
            (Watching::Look, Some(Ok(Reply::Sight(sight)))) => self.sight(now, call, &sight),
            (Watching::Look, Some(_)) => self.looks.failed(),
            (Watching::DeclareGone(_), Some(Ok(Reply::DeclaredGone(gone)))) => {
                self.looks.soon |= gone;
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
        self.looks.marks.learn(beat.horizon);
        self.membership.beat_was_good(call.sent, now);
        if self.is_leaving() {
            self.membership.let_go();
        }
    }

    fn sight(&mut self, now: Mono, call: UnderWay, sight: &Sight) {
        self.learn_time(now, call, sight.now);
        if !self.membership.saw(&sight.nodes, now) {
            // The next beat says whether the node is gone.
            self.membership.next_beat = now;
        }
        let epoch = self.membership.epoch;
        self.looks.take(sight, epoch, &mut self.queues, &self.runs);
    }

    fn learn_time(&mut self, now: Mono, call: UnderWay, store: StoreTime) {
        if !self.clock.learn(call.sent, now, store) {
            self.looks.marks.drop_all();
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
        for ((queue, _), _) in &requested.wanted {
            wanted[*queue] += 1;
        }
        let mut claimed = vec![0; self.queues.len()];
        match result {
            Some(Ok(Reply::Claimed(answer))) if answer.gone => self.gone(),
            Some(Ok(Reply::Claimed(answer))) => {
                self.claims.grow();
                self.learn_time(now, call, answer.now);
                self.looks.marks.learn(answer.horizon);
                let shards: BTreeMap<Place, Expected> = requested.wanted.into_iter().collect();
                let adopted = requested.adopt.into_iter();
                let adopted: BTreeMap<Place, u16> = adopted
                    .map(|(place, orphan)| (place, orphan.shard))
                    .collect();
                self.claimed(now, answer, &shards, &adopted, &mut claimed);
            }
            Some(result) => {
                if matches!(result, Err(StoreError::Refused(_))) {
                    self.claims.shrink(requested.wanted.len());
                }
                self.looks.marks.drop_all();
                self.looks.soon = true;
                // The claim may have been carried out, or may still be.
                let wanted = requested.wanted.into_iter();
                let shards = wanted.map(|(place, expected)| (place.0, expected.shard));
                let adopted = requested.adopt.into_iter();
                let adopted = adopted.map(|(place, orphan)| (place.0, orphan.shard));
                for (queue, shard) in shards.chain(adopted) {
                    self.looks.adoption.doubt(queue, shard);
                }
            }
            None => {}
        }
        for (number, queue) in self.queues.iter_mut().enumerate() {
            queue.taken(wanted[number], claimed[number]);
        }
    }

    /// Takes in the runs that a claim has returned, and counts those that were wanted, by queues.
    fn claimed(
        &mut self,
        now: Mono,
        answer: Claimed,
        wanted: &BTreeMap<Place, Expected>,
        adopted: &BTreeMap<Place, u16>,
        counts: &mut [usize],
    ) {
        let mut left = wanted.clone();
        for run in answer.runs {
            let Some(place) = self.place(&run.run) else {
                continue;
            };
            let shard = match (left.remove(&place), adopted.get(&place)) {
                (Some(expected), _) => {
                    counts[place.0] += 1;
                    expected.shard
                }
                (None, Some(shard)) => *shard,
                (None, None) => continue,
            };
            self.hold(now, place, shard, run);
        }
        // A timer that was not due by the store's clock is kept. All else that was not returned is
        // forgotten: if it is still to be had, the next look finds it.
        let window = answer.now + self.look * 2;
        for ((queue, key), expected) in left {
            if expected.due > answer.now && expected.due < window && self.stopping.is_none() {
                self.queues[queue].coming.insert(&key, expected);
            }
        }
    }

    fn hold(&mut self, now: Mono, place: Place, shard: u16, run: ClaimedRun) {
        if self.runs.is_held(&place) {
            return;
        }
        let suspect = run.crashes >= SUSPECT;
        self.queues[place.0].coming.remove(&place.1);
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
                        Some(Settled::Locked) | None => {
                            self.runs.settle_again(place, now + LOCKED_PAUSE);
                        }
                        Some(settled) => self.settled(now, call, &place, &outcome, settled),
                    }
                }
            }
            Some(result) => {
                if matches!(result, Err(StoreError::Refused(_))) {
                    // One of them may be the reason: smaller calls let the others through.
                    self.settle_limit = (ends.len() / 2).max(1);
                }
                for (place, _) in ends {
                    self.runs.settle_again(place, now);
                }
            }
            None => {}
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
        let Some(held) = self.runs.release(place) else {
            return;
        };
        let after = match (settled, outcome) {
            (Settled::Waits, Outcome::Again(after) | Outcome::Retry(after)) => Some(*after),
            _ => None,
        };
        // The store has counted from a moment that was not later than now.
        let round_trip = now.saturating_sub(call.sent);
        let store_now = self.clock.at(now).map(|time| time + round_trip);
        let due = match (after, store_now) {
            (Some(after), Some(store_now)) if after < self.look => Some(store_now + after),
            _ => held.next_due,
        };
        if let Some(due) = due.filter(|_| self.stopping.is_none()) {
            let expected = Expected {
                due,
                shard: held.shard,
                suspect: false,
            };
            self.queues[place.0].coming.insert(&place.1, expected);
        }
    }

    // === other inputs ===

    fn place(&self, run: &Run) -> Option<Place> {
        let queue = self.numbers_of.get(&run.queue)?;
        Some((*queue, run.key.clone()))
    }

    fn near(&mut self, now: Mono, near: Vec<Near>) {
        let soon = self.clock.at(now).map(|time| time + self.look * 2);
        for near in near {
            let Some(number) = self.numbers_of.get(&near.queue).copied() else {
                continue;
            };
            let is_soon = soon.is_some_and(|soon| near.due < soon);
            if !is_soon || self.queues[number].paused || self.stopping.is_some() {
                continue;
            }
            let place = (number, near.key);
            if self.runs.is_held(&place) || self.claims.contains(&place) {
                self.runs.set_next_due(&place, near.due);
                continue;
            }
            let expected = Expected {
                due: near.due,
                shard: near.shard,
                suspect: false,
            };
            self.queues[number].coming.insert(&place.1, expected);
        }
    }

    fn finished(&mut self, now: Mono, run: &Run, outcome: Outcome) {
        if let Some(place) = self.place(run) {
            let queue = place.0;
            if self.runs.finish(place, run, outcome, now) {
                self.queues[queue].running -= 1;
            }
        }
    }

    /// The node is gone: its claims count as none. It comes back as another one.
    fn gone(&mut self) {
        if let Some(stopping) = &mut self.stopping {
            stopping.stopped.unfinished += self.runs.going_on();
        }
        for queue in self.runs.drop_all() {
            self.queues[queue].running -= 1;
        }
        for queue in &mut self.queues {
            queue.coming.clear();
        }
        self.looks.start_anew();
        let epoch = new_epoch(&mut self.numbers);
        self.membership.start_anew(epoch);
    }

    // === the end ===

    fn stop(&mut self, now: Mono, grace: Duration) {
        let extra = self.look;
        match &mut self.stopping {
            Some(stopping) => stopping.hurry(now, grace, extra),
            None => {
                self.stopping = Some(Stopping::new(now, grace, extra));
                for queue in &mut self.queues {
                    queue.coming.clear();
                }
                self.looks.adoption.clear();
                self.give_back(now);
            }
        }
    }

    /// Gives back what has not started.
    fn give_back(&mut self, now: Mono) {
        for queue in self.runs.give_back_waiting(now) {
            self.queues[queue].running -= 1;
        }
    }

    /// Whether all that is left is to leave.
    fn is_leaving(&self) -> bool {
        self.stopping.is_some()
            && self.membership.join_sent
            && self.runs.going_on() == 0
            && self.runs.unsettled() == 0
            && self.claiming.under_way.is_none()
    }

    /// Returns whether the node has ended.
    fn go_on_stopping(&mut self, now: Mono, out: &mut Vec<Command>) -> bool {
        let Some(stopping) = &mut self.stopping else {
            return false;
        };
        if now >= stopping.grace_end {
            stopping.stopped.unfinished += self.runs.abandon();
        }
        let next = match now >= stopping.grace_end {
            true => stopping.last,
            false => stopping.grace_end,
        };
        let idle = self.watch.under_way.is_none() && self.runs.going_on() == 0;
        let outside = !self.membership.join_sent && idle;
        let (left, over) = (stopping.left, now >= stopping.last);
        if left || outside || over {
            self.ended = true;
            out.push(Command::Stopped(stopping.stopped));
            return true;
        }
        self.wake_at(Some(next));
        false
    }
}

/// A random number of 63 bits.
fn new_epoch(numbers: &mut Numbers) -> Epoch {
    Epoch((numbers.next() >> 1).cast_signed())
}
