//! One machine whose store is a script: the tests give the answers.

use std::collections::VecDeque;
use std::time::Duration;

use crate::node::tests::world::{START, options};
use crate::node::{Command, Input, Mono, Node, NodeConfig, Reply, Stopped, StoreCall};
use crate::store::{
    Beat, Claim, Claimed, ClaimedRun, Epoch, Outcome, Poll, Run, Seen, SeenNode, Settle,
    StoreError, StoreSnapshot, StoreTime, Wanted,
};

pub(super) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(super) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The store's clock at a local time. Answers take no time here.
pub(super) fn store(at: Mono) -> StoreTime {
    START + at
}

/// A machine, and what it has asked for.
pub(super) struct Script {
    pub(super) node: Node,
    pub(super) asks: VecDeque<(u64, StoreCall)>,
    pub(super) starts: Vec<Run>,
    pub(super) stopped: Option<Stopped>,
    pub(super) now: Mono,
    /// Other nodes that the store knows.
    pub(super) others: Vec<SeenNode>,
    pub(super) rows: Vec<Seen>,
    pub(super) paused: Vec<String>,
    /// Whether polls are answered within their limits.
    pub(super) is_limited: bool,
}

impl Script {
    /// A node that has joined, has the first good beat, and knows that it is alone.
    pub(super) fn joined(config: NodeConfig) -> Self {
        let mut script = Script::new(config);
        script.quiet(Mono::ZERO);
        script
    }

    pub(super) fn new(config: NodeConfig) -> Self {
        Script {
            node: Node::new(config),
            asks: VecDeque::new(),
            starts: Vec::new(),
            stopped: None,
            now: Mono::ZERO,
            others: Vec::new(),
            rows: Vec::new(),
            paused: Vec::new(),
            is_limited: false,
        }
    }

    pub(super) fn input(&mut self, input: Input) {
        let mut out = Vec::new();
        self.node.step(self.now, input, &mut out);
        for command in out {
            match command {
                Command::Ask { id, call } => self.asks.push_back((id, call)),
                Command::Start(run) => self.starts.push(run.run),
                Command::Stopped(stopped) => self.stopped = Some(stopped),
            }
        }
    }

    pub(super) fn reply(&mut self, id: u64, reply: Reply) {
        self.input(Input::Reply {
            id,
            result: Ok(reply),
        });
    }

    pub(super) fn fail(&mut self, id: u64) {
        let result = Err(StoreError::Unavailable("down".into()));
        self.input(Input::Reply { id, result });
    }

    pub(super) fn snapshot(&self) -> StoreSnapshot {
        let mine = SeenNode {
            epoch: self.node.epoch(),
            beat: 1,
            queues: ["a".into(), "b".into()].into(),
        };
        StoreSnapshot {
            now: store(self.now),
            rows: self.rows.clone(),
            nodes: self.others.iter().cloned().chain([mine]).collect(),
            paused: self.paused.clone(),
            ..StoreSnapshot::default()
        }
    }

    /// What a poll shows, with its limits.
    fn limited(&self, poll: &Poll) -> StoreSnapshot {
        let mut snapshot = self.snapshot();
        snapshot.rows.clear();
        for (index, range) in poll.ranges.iter().enumerate() {
            let from = range.mark.unwrap_or(StoreTime::from_micros(i64::MIN));
            let until = range.until.from(store(self.now));
            let of_range = self.rows.iter().filter(|row| {
                row.queue == range.queue
                    && row.shard == range.shard
                    && (from..until).contains(&row.due)
            });
            let mut rows: Vec<&Seen> = of_range.collect();
            rows.sort_by_key(|row| row.due);
            if rows.len() > range.limit as usize {
                snapshot.cut.push(index);
            }
            snapshot
                .rows
                .extend(rows.into_iter().take(range.limit as usize).cloned());
        }
        snapshot
    }

    /// Answers one call as an undisturbed store does. Claims and settles are left for the test.
    pub(super) fn answer(&mut self, id: u64, call: &StoreCall) {
        let reply = match call {
            StoreCall::Join(_) => Reply::Joined,
            StoreCall::Beat(_) => Reply::Beat(Some(Beat {
                now: store(self.now),
                horizon: None,
            })),
            StoreCall::Poll(poll) if self.is_limited => Reply::Snapshot(self.limited(poll)),
            StoreCall::Poll(_) => Reply::Snapshot(self.snapshot()),
            StoreCall::DeclareGone { .. } => Reply::DeclaredGone(true),
            StoreCall::Leave(_) => Reply::Left,
            other => panic!("{other:?}"),
        };
        self.reply(id, reply);
    }

    /// Answers all calls of the watch lane until this time, and returns those of the other lanes.
    pub(super) fn quiet(&mut self, until: Mono) -> Vec<(u64, StoreCall)> {
        let mut others = Vec::new();
        loop {
            while let Some((id, call)) = self.asks.pop_front() {
                match call {
                    StoreCall::Claim(_) | StoreCall::Settle(_) => others.push((id, call)),
                    call => self.answer(id, &call),
                }
            }
            let wake = self.node.next_wake().filter(|wake| *wake <= until);
            match wake.filter(|_| self.stopped.is_none()) {
                Some(wake) => self.now = self.now.max(wake),
                None if self.now < until => self.now = until,
                None if self.asks.is_empty() => return others,
                None => continue,
            }
            self.input(Input::Wake);
        }
    }

    /// Goes on until a claim is sent.
    pub(super) fn claim(&mut self, until: Mono) -> (u64, Claim) {
        let calls = self.quiet(until);
        let mut claims = calls.into_iter().filter_map(|(id, call)| match call {
            StoreCall::Claim(claim) => Some((id, claim)),
            _ => None,
        });
        let claim = claims.next().expect("a claim");
        assert!(claims.next().is_none(), "one claim at a time");
        claim
    }

    /// Goes on until a settle is sent.
    pub(super) fn settle(&mut self, until: Mono) -> (u64, Settle) {
        let calls = self.quiet(until);
        let mut settles = calls.into_iter().filter_map(|(id, call)| match call {
            StoreCall::Settle(settle) => Some((id, settle)),
            _ => None,
        });
        settles.next().expect("a settle")
    }

    /// A poll, whatever else is asked.
    pub(super) fn poll(&mut self) -> (u64, Poll) {
        self.input(Input::PollNow);
        let position = self.asks.iter();
        let mut position = position
            .enumerate()
            .filter_map(|(index, (_, call))| match call {
                StoreCall::Poll(_) => Some(index),
                _ => None,
            });
        let index = position.next().expect("a poll");
        match self.asks.remove(index) {
            Some((id, StoreCall::Poll(poll))) => (id, poll),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn grant(&mut self, id: u64, wanted: &[Wanted]) -> Vec<Run> {
        let runs: Vec<ClaimedRun> = wanted.iter().map(|wanted| claimed(wanted, 1)).collect();
        let granted = runs.iter().map(|run| run.run.clone()).collect();
        let answer = Claimed {
            now: store(self.now),
            runs,
            ..Claimed::default()
        };
        self.reply(id, Reply::Claimed(answer));
        granted
    }

    pub(super) fn finish(&mut self, run: &Run, outcome: Outcome) {
        self.input(Input::Finished {
            run: run.clone(),
            outcome,
        });
    }

    /// Claims what is due, and starts it.
    pub(super) fn run_all(&mut self, until: Mono) -> Vec<Run> {
        self.input(Input::PollNow);
        let (id, claim) = self.claim(until);
        self.grant(id, &claim.timers)
    }
}

pub(super) fn claimed(wanted: &Wanted, attempt: u32) -> ClaimedRun {
    ClaimedRun {
        run: Run {
            queue: wanted.queue.clone(),
            key: wanted.key.clone(),
            generation: 1,
            attempt,
        },
        due: START,
        planned: START,
        fails: 0,
        crashes: 0,
        stepped: false,
        payload: "null".into(),
    }
}

pub(super) fn row(queue: &str, key: &str, due: StoreTime) -> Seen {
    Seen {
        queue: queue.into(),
        key: key.into(),
        shard: 3,
        due,
        generation: 1,
        attempt: 0,
        crashes: 0,
        mine: false,
        bytes: 4,
    }
}

pub(super) fn alone() -> NodeConfig {
    options(&[("a", 4, None), ("b", 4, None)])
}

pub(super) fn other(beat: i64) -> SeenNode {
    SeenNode {
        epoch: Epoch(77),
        beat,
        queues: ["a".into()].into(),
    }
}
