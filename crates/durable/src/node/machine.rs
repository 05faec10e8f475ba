//! The machine: inputs in, commands out.

use std::collections::BTreeMap;
use std::time::Duration;

use super::claims::{ClaimTerm, Claims};
use super::clock::Estimate;
use super::interface::{Command, Input, Lane, Mono, Near, NodeConfig, Place, StoreCall};
use super::lane::{LaneState, UnderWay};
use super::membership::Membership;
use super::numbers::Numbers;
use super::polls::Polls;
use super::queue::Queue;
use super::runs::HeldRuns;
use super::stopping::Stopping;
use super::upcoming::Expected;
use crate::store::{Epoch, NamedSchedules, NewNode, Outcome, Run, Settle, StoreTime};
use crate::sync::Arc;

/// The greatest number of settlements in a call.
pub(super) const MOST_SETTLED: usize = 1_000;

/// How long a node that stops waits for the store after the grace, or the lease if that is shorter.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);

/// The state machine of a node. See the module [`node`](crate::node).
#[derive(Debug)]
pub(crate) struct Node {
    pub(super) name: String,
    /// The schedules that the program names.
    pub(super) schedules: NamedSchedules,
    pub(super) poll_interval: Duration,
    pub(super) names: Vec<Arc<str>>,
    pub(super) numbers_of: BTreeMap<Arc<str>, usize>,
    pub(super) numbers: Numbers,
    pub(super) membership: Membership,
    pub(super) clock: Estimate,
    pub(super) queues: Vec<Queue>,
    pub(super) polls: Polls,
    pub(super) claims: Claims,
    pub(super) runs: HeldRuns,
    pub(super) watch: LaneState,
    pub(super) claiming: LaneState,
    pub(super) settling: LaneState,
    /// The kind of the last call of the watch lane.
    pub(super) watching: Watching,
    pub(super) settle_limit: usize,
    pub(super) last_id: u64,
    pub(super) stopping: Option<Stopping>,
    pub(super) ended: bool,
    pub(super) wake: Option<Mono>,
}

/// The call that is under way on the watch lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Watching {
    Nothing,
    Join,
    /// A join without queues.
    Resign,
    Beat,
    Poll,
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
        let numbers_of: BTreeMap<Arc<str>, usize> = names.iter().cloned().zip(0..).collect();
        Node {
            name: config.name,
            schedules: config.schedules,
            poll_interval: config.poll_interval,
            polls: Polls::new(
                config.poll_interval,
                numbers_of.clone(),
                config.most_awake,
                turn,
            ),
            numbers_of,
            names,
            numbers,
            membership: Membership::new(epoch, config.node_lease),
            clock: Estimate::default(),
            queues: config
                .queues
                .into_iter()
                .map(|queue| Queue::new(queue, config.poll_interval))
                .collect(),
            claims: Claims::new(),
            runs: HeldRuns::default(),
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

    /// When the node's lease ends. `None` if it has none.
    pub(crate) fn lease_end(&self) -> Option<Mono> {
        self.membership.lease_end()
    }

    /// Whether the node may start runs, and its claims are live.
    #[cfg(test)]
    pub(crate) fn is_held(&self, now: Mono) -> bool {
        self.membership.is_held(now)
    }

    /// The number of timers that are due soon and are held in memory.
    pub(crate) fn upcoming(&self) -> usize {
        self.queues.iter().map(|queue| queue.upcoming.len()).sum()
    }

    /// When the first timer is due that is held in memory and may be claimed. Those of paused queues
    /// may not.
    pub(crate) fn first_due(&self) -> Option<StoreTime> {
        let queues = self.queues.iter().filter(|queue| !queue.paused);
        let kinds = queues.flat_map(|queue| [false, true].map(|kind| queue.upcoming.first(kind)));
        kinds.flatten().min()
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
            Input::Rang(queue) => self.rang(queue.as_deref()),
            Input::PollNow => self.polls.soon = true,
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

    pub(super) fn lane(&mut self, lane: Lane) -> &mut LaneState {
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
        match &self.stopping {
            None => self.watch_others(now, out),
            Some(stopping) if !stopping.resigned => {
                self.watching = Watching::Resign;
                let call = self.join(Vec::new());
                self.send(now, call, out);
            }
            Some(_) => self.wake_at(Some(self.membership.next_beat)),
        }
    }

    /// Declares a silent node gone, or polls. The former comes first: it frees the timers that the
    /// poll then shows.
    fn watch_others(&mut self, now: Mono, out: &mut Vec<Command>) {
        let epoch = self.membership.epoch;
        if let Some((silent, beat)) = self.membership.take_silent(now) {
            self.watching = Watching::DeclareGone(silent);
            let call = StoreCall::DeclareGone {
                asking: epoch,
                epoch: silent,
                beat,
            };
            return self.send(now, call, out);
        }
        // A node may have died: a poll shows whether its next beat is there.
        let overdue = self.membership.next_overdue();
        self.polls.soon |= overdue.is_some_and(|at| at <= now);
        if self.polls.is_wanted(now, &self.queues) {
            self.watching = Watching::Poll;
            let (queues, runs) = (&mut self.queues, &self.runs);
            let store_now = self.clock.at(now);
            let claims = &self.claims;
            let poll = self.polls.ask(now, store_now, epoch, queues, runs, claims);
            return self.send(now, StoreCall::Poll(poll), out);
        }
        self.wake_at(Some(self.polls.next()));
        self.wake_at(overdue);
        self.wake_at(Some(self.membership.next_beat));
    }

    fn join(&self, queues: Vec<Arc<str>>) -> StoreCall {
        StoreCall::Join(NewNode {
            epoch: self.membership.epoch,
            name: self.name.clone(),
            queues,
            schedules: self.schedules.clone(),
        })
    }

    fn use_claims(&mut self, now: Mono, out: &mut Vec<Command>) {
        let lease_end = self.membership.lease_end().filter(|end| now < *end);
        let Some(end) = lease_end.filter(|_| self.stopping.is_none()) else {
            return;
        };
        if let Err(time) = self.claiming.is_free(now) {
            return self.wake_at(time);
        }
        let epoch = self.membership.epoch;
        let asked = self.claims.ask(
            ClaimTerm { epoch, now, end },
            &self.clock,
            &mut self.queues,
            &self.runs,
            &mut self.polls.adoption,
        );
        match asked {
            Ok(claim) => {
                self.polls.touch(|| self.claims.places());
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

    // === other inputs ===

    pub(super) fn place(&self, run: &Run) -> Option<Place> {
        let queue = self.numbers_of.get(&run.queue)?;
        Some((*queue, run.key.clone()))
    }

    fn near(&mut self, now: Mono, near: Vec<Near>) {
        let soon = self.clock.at(now).map(|time| time + self.poll_interval * 2);
        for near in near {
            let Some(number) = self.numbers_of.get(&near.queue).copied() else {
                continue;
            };
            let is_soon = soon.is_some_and(|soon| near.due < soon);
            if !is_soon || self.queues[number].paused || self.stopping.is_some() {
                continue;
            }
            let place = (number, near.key);
            let queue = &mut self.queues[number];
            let known = near.bytes.or_else(|| queue.upcoming.bytes_of(&place.1));
            let bytes = known.unwrap_or(queue.usual_bytes);
            if self.runs.is_held(&place) || self.claims.contains(&place) {
                self.runs.set_next(&place, near.due, bytes);
                continue;
            }
            let expected = Expected {
                due: near.due,
                shard: near.shard,
                suspect: false,
                bytes,
            };
            queue.upcoming.insert(&place.1, expected);
        }
    }

    fn rang(&mut self, queue: Option<&str>) {
        let rung = match queue {
            Some(queue) => {
                let number = self.numbers_of.get(queue).copied();
                number.map_or(0..0, |number| number..number + 1)
            }
            None => 0..self.queues.len(),
        };
        for number in rung {
            // A poll that finds out about a resume reads the whole queue.
            let wanted = self.stopping.is_none() && !self.queues[number].paused;
            if wanted && self.polls.may_own(number) {
                self.polls.throttle.ring(number);
            }
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
    pub(super) fn gone(&mut self) {
        if let Some(stopping) = &mut self.stopping {
            stopping.stopped.unfinished += self.runs.going_on();
        }
        for queue in self.runs.drop_all() {
            self.queues[queue].running -= 1;
        }
        for queue in &mut self.queues {
            queue.upcoming.clear();
        }
        self.polls.start_anew();
        let epoch = new_epoch(&mut self.numbers);
        self.membership.start_anew(epoch);
    }

    // === the end ===

    fn stop(&mut self, now: Mono, grace: Duration) {
        // Others wait for the lease if the node can't say that it leaves.
        let extra = LEAVE_LIMIT
            .min(self.membership.node_lease())
            .max(self.poll_interval);
        match &mut self.stopping {
            Some(stopping) => stopping.hurry(now, grace, extra),
            None => {
                self.stopping = Some(Stopping::new(now, grace, extra));
                for queue in &mut self.queues {
                    queue.upcoming.clear();
                }
                self.polls.adoption.clear();
                self.give_back(now);
            }
        }
    }

    /// Gives back what has not started.
    pub(super) fn give_back(&mut self, now: Mono) {
        for queue in self.runs.give_back_waiting(now) {
            self.queues[queue].running -= 1;
        }
    }

    /// Whether all that is left is to leave.
    pub(super) fn is_leaving(&self) -> bool {
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
