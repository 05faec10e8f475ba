//! Tests of one machine whose store is a script.

use std::collections::VecDeque;
use std::time::Duration;

use crate::node::tests::world::{START, options};
use crate::node::{
    Command, Input, Mono, Near, Node, NodeConfig, QueueConfig, Reply, Stopped, StoreCall,
};
use crate::store::{
    Beat, Claim, Claimed, ClaimedRun, Epoch, Horizon, Look, Offset, Outcome, Run, Seen, SeenNode,
    Settle, Settled, Sight, StoreError, Wanted,
};
use crate::time::StoreTime;

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The store's clock at a local time. Answers take no time here.
fn store(at: Mono) -> StoreTime {
    START + at
}

/// A machine, and what it has asked for.
struct Script {
    node: Node,
    asks: VecDeque<(u64, StoreCall)>,
    starts: Vec<Run>,
    stopped: Option<Stopped>,
    now: Mono,
    /// Other nodes that the store knows.
    others: Vec<SeenNode>,
    rows: Vec<Seen>,
    paused: Vec<String>,
}

impl Script {
    /// A node that has joined, has the first good beat, and knows that it is alone.
    fn joined(config: NodeConfig) -> Self {
        let mut script = Script::new(config);
        script.quiet(Mono::ZERO);
        script
    }

    fn new(config: NodeConfig) -> Self {
        Script {
            node: Node::new(config),
            asks: VecDeque::new(),
            starts: Vec::new(),
            stopped: None,
            now: Mono::ZERO,
            others: Vec::new(),
            rows: Vec::new(),
            paused: Vec::new(),
        }
    }

    fn input(&mut self, input: Input) {
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

    fn reply(&mut self, id: u64, reply: Reply) {
        self.input(Input::Reply {
            id,
            result: Ok(reply),
        });
    }

    fn fail(&mut self, id: u64) {
        let result = Err(StoreError::Unavailable("down".into()));
        self.input(Input::Reply { id, result });
    }

    fn sight(&self) -> Sight {
        let mine = SeenNode {
            epoch: self.node.epoch(),
            beat: 1,
            queues: vec!["a".into(), "b".into()],
        };
        Sight {
            now: store(self.now),
            rows: self.rows.clone(),
            nodes: self.others.iter().cloned().chain([mine]).collect(),
            paused: self.paused.clone(),
            ..Sight::default()
        }
    }

    /// Answers one call as an undisturbed store does. Claims and settles are left for the test.
    fn answer(&mut self, id: u64, call: &StoreCall) {
        let reply = match call {
            StoreCall::Join(_) => Reply::Joined,
            StoreCall::Beat(_) => Reply::Beat(Some(Beat {
                now: store(self.now),
                horizon: None,
            })),
            StoreCall::Look(_) => Reply::Sight(self.sight()),
            StoreCall::DeclareGone { .. } => Reply::DeclaredGone(true),
            StoreCall::Leave(_) => Reply::Left,
            other => panic!("{other:?}"),
        };
        self.reply(id, reply);
    }

    /// Answers all calls of the watch lane until this time, and returns those of the other lanes.
    fn quiet(&mut self, until: Mono) -> Vec<(u64, StoreCall)> {
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
    fn claim(&mut self, until: Mono) -> (u64, Claim) {
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
    fn settle(&mut self, until: Mono) -> (u64, Settle) {
        let calls = self.quiet(until);
        let mut settles = calls.into_iter().filter_map(|(id, call)| match call {
            StoreCall::Settle(settle) => Some((id, settle)),
            _ => None,
        });
        settles.next().expect("a settle")
    }

    /// A look, whatever else is asked.
    fn look(&mut self) -> (u64, Look) {
        self.input(Input::LookNow);
        let position = self.asks.iter();
        let mut position = position
            .enumerate()
            .filter_map(|(index, (_, call))| match call {
                StoreCall::Look(_) => Some(index),
                _ => None,
            });
        let index = position.next().expect("a look");
        match self.asks.remove(index) {
            Some((id, StoreCall::Look(look))) => (id, look),
            other => panic!("{other:?}"),
        }
    }

    fn grant(&mut self, id: u64, wanted: &[Wanted]) -> Vec<Run> {
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

    fn finish(&mut self, run: &Run, outcome: Outcome) {
        self.input(Input::Finished {
            run: run.clone(),
            outcome,
        });
    }

    /// Claims what is due, and starts it.
    fn run_all(&mut self, until: Mono) -> Vec<Run> {
        self.input(Input::LookNow);
        let (id, claim) = self.claim(until);
        self.grant(id, &claim.timers)
    }
}

fn claimed(wanted: &Wanted, attempt: u32) -> ClaimedRun {
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
        payload: "null".into(),
    }
}

fn row(queue: &str, key: &str, due: StoreTime) -> Seen {
    Seen {
        queue: queue.into(),
        key: key.into(),
        shard: 3,
        due,
        generation: 1,
        attempt: 0,
        crashes: 0,
        mine: false,
    }
}

fn alone() -> NodeConfig {
    options(&[("a", 4, None), ("b", 4, None)])
}

fn other(beat: i64) -> SeenNode {
    SeenNode {
        epoch: Epoch(77),
        beat,
        queues: vec!["a".into()],
    }
}

// === the term ===

#[test]
fn the_term_counts_from_the_sending_of_the_last_good_beat() {
    let mut script = Script::new(alone());
    script.input(Input::Wake);
    let (id, _) = script.asks.pop_front().unwrap();
    script.now = secs(1);
    script.reply(id, Reply::Joined);
    let (id, call) = script.asks.pop_front().unwrap();
    assert!(matches!(call, StoreCall::Beat(_)));
    assert_eq!(script.node.term_end(), None);
    script.now = secs(4);
    let beat = Beat {
        now: store(secs(2)),
        horizon: None,
    };
    script.reply(id, Reply::Beat(Some(beat)));
    assert_eq!(script.node.term_end(), Some(secs(16)));
    assert!(script.node.is_held(secs(16) - millis(1)));
    assert!(!script.node.is_held(secs(16)));
}

#[test]
fn a_run_that_is_claimed_at_the_end_of_the_term_waits_for_the_next_good_beat() {
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", store(secs(2)))];
    let (id, claim) = script.claim(secs(2));
    let end = script.node.term_end().unwrap();
    assert!(claim.deadline <= store(end), "{claim:?}");
    script.rows.clear();
    // The answer comes when the term is over.
    script.now = end;
    script.grant(id, &claim.timers);
    assert_eq!(script.starts, []);
    let (id, call) = script.asks.pop_front().unwrap();
    assert!(matches!(call, StoreCall::Beat(_)), "{call:?}");
    script.answer(id, &call);
    assert_eq!(script.starts.len(), 1);
}

#[test]
fn nothing_is_claimed_after_the_end_of_the_term() {
    let mut script = Script::joined(alone());
    let end = script.node.term_end().unwrap();
    let due = store(end) + secs(1);
    script.now = end - millis(500);
    script.input(Input::Near(vec![Near {
        queue: "a".into(),
        key: "k".into(),
        shard: 0,
        due,
    }]));
    script.now = end + secs(2);
    script.input(Input::Wake);
    let claims = script.asks.iter();
    let claims = claims.filter(|(_, call)| matches!(call, StoreCall::Claim(_)));
    assert_eq!(claims.count(), 0);
    assert_eq!(script.claim(end + secs(2)).1.timers.len(), 1);
}

#[test]
fn a_node_that_is_gone_joins_as_another_one_and_drops_the_ends_of_its_runs() {
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", store(secs(1)))];
    let runs = script.run_all(secs(1));
    script.rows.clear();
    let before = script.node.epoch();
    script.now = secs(4);
    script.input(Input::Wake);
    let (id, call) = script.asks.pop_front().unwrap();
    assert!(matches!(call, StoreCall::Beat(_)), "{call:?}");
    script.reply(id, Reply::Beat(None));
    assert!(!script.node.is_held(secs(4)));
    assert_ne!(script.node.epoch(), before);
    let (id, call) = script.asks.pop_front().unwrap();
    assert!(matches!(&call, StoreCall::Join(node) if node.epoch != before));
    script.answer(id, &call);
    script.finish(&runs[0], Outcome::Done);
    assert!(script.quiet(secs(8)).is_empty(), "nothing is settled");
}

#[test]
fn a_claim_that_says_gone_ends_the_epoch() {
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", store(secs(1)))];
    let (id, _) = script.claim(secs(1));
    let before = script.node.epoch();
    let gone = Claimed {
        gone: true,
        ..Claimed::default()
    };
    script.reply(id, Reply::Claimed(gone));
    assert_ne!(script.node.epoch(), before);
    assert!(!script.node.is_held(script.now));
}

// === the others ===

/// Runs until a node is declared gone, or until this time. The store answers all.
fn declared(script: &mut Script, until: Mono) -> Option<Mono> {
    loop {
        while let Some((id, call)) = script.asks.pop_front() {
            if matches!(call, StoreCall::DeclareGone { .. }) {
                return Some(script.now);
            }
            script.answer(id, &call);
        }
        let wake = script.node.next_wake().expect("beats and looks");
        if wake > until {
            return None;
        }
        script.now = wake;
        script.input(Input::Wake);
    }
}

#[test]
fn a_silent_node_is_declared_gone_after_sixteen_seconds() {
    let mut script = Script::new(alone());
    script.others = vec![other(5)];
    script.input(Input::Wake);
    let at = declared(&mut script, secs(60)).expect("declared gone");
    assert!(at >= secs(16) && at <= secs(18), "{at:?}");
}

#[test]
fn a_node_that_beats_is_never_declared_gone() {
    let mut script = Script::new(alone());
    script.input(Input::Wake);
    for beat in 0..10 {
        script.others = vec![other(beat)];
        assert_eq!(declared(&mut script, secs(14 * (beat as u64 + 1))), None);
    }
}

#[test]
fn an_outage_longer_than_the_term_makes_nobody_gone() {
    let mut script = Script::new(alone());
    script.others = vec![other(5)];
    script.input(Input::Wake);
    assert_eq!(declared(&mut script, secs(10)), None);
    // The store is down for 30 s: nobody can beat.
    while script.now < secs(40) {
        while let Some((id, _)) = script.asks.pop_front() {
            script.fail(id);
        }
        script.now = script.node.next_wake().expect("it tries again");
        script.input(Input::Wake);
    }
    let at = declared(&mut script, secs(100)).expect("it does not come back");
    assert!(at >= secs(40 + 16), "{at:?}");
}

#[test]
fn one_failed_beat_begins_the_observation_anew() {
    let mut script = Script::new(alone());
    script.others = vec![other(5)];
    script.input(Input::Wake);
    assert_eq!(declared(&mut script, secs(12) - millis(1)), None);
    script.now = secs(12);
    script.input(Input::Wake);
    let (id, call) = script.asks.pop_front().unwrap();
    assert!(matches!(call, StoreCall::Beat(_)), "{call:?}");
    script.fail(id);
    let at = declared(&mut script, secs(100)).expect("it does not come back");
    assert!(at >= secs(12 + 16), "{at:?}");
}

#[test]
fn a_node_that_stood_still_observes_anew() {
    let mut script = Script::new(alone());
    script.others = vec![other(5)];
    script.input(Input::Wake);
    assert_eq!(declared(&mut script, secs(12)), None);
    // The whole machine stood still, the other node with it.
    script.now = secs(42);
    script.input(Input::Wake);
    let at = declared(&mut script, secs(100)).expect("it does not come back");
    assert!(at >= secs(42 + 16), "{at:?}");
}

// === lost answers ===

fn mine(key: &str) -> Seen {
    Seen {
        attempt: 1,
        mine: true,
        ..row("a", key, START)
    }
}

#[test]
fn a_claimed_row_that_is_not_held_is_adopted_after_two_looks() {
    let mut script = Script::joined(alone());
    script.rows = vec![mine("k")];
    let (id, _) = script.look();
    let sight = script.sight();
    script.reply(id, Reply::Sight(sight));
    let claims = |script: &Script| {
        let asks = script.asks.iter();
        asks.filter(|(_, call)| matches!(call, StoreCall::Claim(_)))
            .count()
    };
    assert_eq!(claims(&script), 0, "one look is no proof");
    let (id, _) = script.look();
    let sight = script.sight();
    script.reply(id, Reply::Sight(sight));
    assert_eq!(claims(&script), 1);
    let (id, call) = script.asks.pop_back().unwrap();
    let StoreCall::Claim(claim) = call else {
        panic!("{call:?}");
    };
    assert_eq!((claim.timers.len(), claim.adopt.len()), (0, 1));
    let wanted = Wanted {
        queue: "a".into(),
        key: "k".into(),
        crash_limit: 3,
    };
    script.grant(id, &[wanted]);
    assert_eq!(script.starts, claim.adopt);
}

#[test]
fn what_is_adopted_waits_until_its_queue_has_room() {
    let mut script = Script::joined(options(&[("a", 2, None)]));
    script.rows = vec![mine("k"), mine("l"), mine("m")];
    for _ in 0..2 {
        let (id, _) = script.look();
        let sight = script.sight();
        script.reply(id, Reply::Sight(sight));
    }
    let (id, first) = script.claim(script.now);
    assert_eq!((first.timers.len(), first.adopt.len()), (0, 2));
    let runs: Vec<ClaimedRun> = first.adopt.iter().map(adopted).collect();
    let answer = |script: &Script, runs: Vec<ClaimedRun>| {
        Reply::Claimed(Claimed {
            now: store(script.now),
            runs,
            ..Claimed::default()
        })
    };
    let reply = answer(&script, runs);
    script.reply(id, reply);
    assert_eq!(script.starts, first.adopt);
    let claims = script.asks.iter();
    let claims = claims.filter(|(_, call)| matches!(call, StoreCall::Claim(_)));
    assert_eq!(claims.count(), 0, "the queue is full");
    script.finish(&first.adopt[0], Outcome::Done);
    let (id, second) = script.claim(script.now);
    assert_eq!(second.adopt.len(), 1);
    assert!(!first.adopt.contains(&second.adopt[0]));
    let reply = answer(&script, second.adopt.iter().map(adopted).collect());
    script.reply(id, reply);
    assert_eq!(script.starts.len(), 3);
}

/// What a store returns for a run that is to be adopted.
fn adopted(run: &Run) -> ClaimedRun {
    ClaimedRun {
        run: run.clone(),
        due: START,
        planned: START,
        fails: 0,
        crashes: 0,
        payload: "0".into(),
    }
}

#[test]
fn a_look_that_saw_a_claim_under_way_is_no_proof() {
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", store(secs(1)))];
    let (claim, _) = script.claim(secs(1));
    // Two looks see the row of the claim whose answer is still on its way.
    script.rows = vec![mine("k")];
    for _ in 0..2 {
        script.asks.clear();
        let (id, _) = script.look();
        let sight = script.sight();
        script.reply(id, Reply::Sight(sight));
    }
    let wanted = Wanted {
        queue: "a".into(),
        key: "k".into(),
        crash_limit: 3,
    };
    script.grant(claim, &[wanted]);
    assert_eq!(script.starts.len(), 1);
    let later = script.quiet(secs(3));
    assert!(later.is_empty(), "{later:?}");
}

#[test]
fn a_shard_of_a_lost_claim_is_looked_at_until_nothing_is_in_doubt() {
    let mut script = Script::new(alone());
    // There are a hundred other nodes, so this one is not likely to look at shard 3.
    script.others = (0..100)
        .map(|number| SeenNode {
            epoch: Epoch(1_000 + number),
            beat: 1,
            queues: vec!["a".into(), "b".into()],
        })
        .collect();
    script.quiet(Mono::ZERO);
    script.input(Input::Near(vec![Near {
        queue: "a".into(),
        key: "k".into(),
        shard: 3,
        due: store(millis(100)),
    }]));
    let (id, _) = script.claim(millis(100));
    script.rows = vec![mine("k")];
    script.fail(id);
    let later = script.claim(secs(1)).1;
    assert_eq!(later.adopt.len(), 1);
}

// === claims ===

#[test]
fn suspects_are_claimed_alone_and_one_at_a_time() {
    let mut script = Script::joined(alone());
    let suspect = |key| Seen {
        crashes: 2,
        ..row("a", key, store(secs(1)))
    };
    script.rows = vec![
        row("a", "x", store(secs(1))),
        suspect("s"),
        suspect("t"),
        row("b", "y", store(secs(1))),
    ];
    let (id, first) = script.claim(secs(1));
    assert_eq!(first.timers.len(), 1);
    assert_eq!(&*first.timers[0].key, "s");
    let mut run = claimed(&first.timers[0], 3);
    run.crashes = 2;
    let answer = Claimed {
        now: store(secs(1)),
        runs: vec![run.clone()],
        ..Claimed::default()
    };
    script.rows.retain(|row| &*row.key != "s");
    script.reply(id, Reply::Claimed(answer));
    let (id, second) = script.claim(secs(1));
    let keys: Vec<&str> = second.timers.iter().map(|timer| &*timer.key).collect();
    assert_eq!((keys.len(), keys.contains(&"t")), (2, false));
    script.grant(id, &second.timers);
    script.rows = vec![suspect("t")];
    assert!(script.quiet(secs(3)).is_empty(), "one suspect runs");
    script.finish(&run.run, Outcome::Done);
    let calls = script.quiet(secs(3));
    let claims = calls.iter().filter_map(|(_, call)| match call {
        StoreCall::Claim(claim) => Some(claim.timers.len()),
        _ => None,
    });
    assert_eq!(claims.collect::<Vec<_>>(), [1]);
}

#[test]
fn a_backlog_in_one_queue_keeps_no_other_queue_out_of_a_claim() {
    let config = options(&[("a", 5_000, None), ("b", 5_000, None)]);
    let mut script = Script::joined(config);
    let backlog = (0..2_000).map(|number| row("a", &format!("k{number:04}"), START));
    script.rows = backlog.chain([row("b", "x", store(millis(900)))]).collect();
    let (_, claim) = script.claim(secs(1));
    assert_eq!(claim.timers.len(), 1_000);
    assert!(claim.timers.iter().any(|timer| &*timer.queue == "b"));
}

#[test]
fn the_limits_of_a_look_do_not_depend_on_what_is_stored() {
    let mut script = Script::joined(alone());
    script.rows = (0..30_000)
        .map(|number| row("a", &format!("k{number}"), START))
        .collect();
    let (id, look) = script.look();
    let limits = |look: &Look| {
        look.ranges
            .iter()
            .map(|range| u64::from(range.limit))
            .sum::<u64>()
    };
    assert!(limits(&look) <= 2 * 4_100, "{}", limits(&look));
    let sight = script.sight();
    script.reply(id, Reply::Sight(sight));
    script.asks.clear();
    script.now = secs(1);
    let (_, look) = script.look();
    // What it knows already is read again, and not more.
    assert!(
        limits(&look) <= 2 * 4_100 + 64 * 2_000 + 64 * 1_000,
        "{}",
        limits(&look)
    );
}

#[test]
fn no_more_than_its_limit_runs_in_a_queue_and_an_end_frees_a_place_before_it_is_settled() {
    let mut script = Script::joined(alone());
    script.rows = (0..9)
        .map(|number| row("a", &format!("k{number}"), START))
        .collect();
    let runs = script.run_all(millis(1));
    assert_eq!(runs.len(), 4);
    script.rows.drain(..4);
    assert!(script.quiet(secs(3)).is_empty());
    script.finish(&runs[0], Outcome::Done);
    let calls = script.quiet(secs(3));
    assert!(matches!(&calls[0].1, StoreCall::Claim(claim) if claim.timers.len() == 1));
    assert!(matches!(&calls[1].1, StoreCall::Settle(settle) if settle.settlements.len() == 1));
}

#[test]
fn the_greatest_pace_starts_what_is_due() {
    let mut script = Script::joined(options(&[("a", 4, Some(u32::MAX))]));
    script.rows = vec![row("a", "k", START), row("a", "l", START)];
    script.input(Input::LookNow);
    let (_, claim) = script.claim(millis(1));
    assert_eq!(claim.timers.len(), 2);
}

#[test]
fn a_pace_bounds_the_starts_within_any_second() {
    let mut script = Script::joined(options(&[("a", 1_000, Some(100))]));
    let mut starts: Vec<Mono> = Vec::new();
    let mut next = 0;
    let mut refill = |script: &mut Script, known: &mut Vec<Seen>| {
        known.clear();
        known.extend((next..next + 300).map(|number| row("a", &format!("k{number:06}"), START)));
        next += 300;
        script.rows.clone_from(known);
    };
    let mut known = Vec::new();
    refill(&mut script, &mut known);
    script.input(Input::LookNow);
    while script.now < secs(5) {
        let until = script.now + millis(10);
        for (id, call) in script.quiet(until) {
            match call {
                StoreCall::Claim(claim) => {
                    let runs = script.grant(id, &claim.timers);
                    starts.extend(runs.iter().map(|_| script.now));
                    script
                        .rows
                        .retain(|row| !runs.iter().any(|run| run.key == row.key));
                    for run in runs {
                        script.finish(&run, Outcome::Done);
                    }
                    if script.rows.len() < 150 {
                        refill(&mut script, &mut known);
                    }
                }
                StoreCall::Settle(settle) => {
                    let ends = vec![Settled::Ended; settle.settlements.len()];
                    script.reply(id, Reply::Settled(ends));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(starts.len() >= 450, "{}", starts.len());
    for (index, start) in starts.iter().enumerate() {
        let within = starts[index..]
            .iter()
            .take_while(|other| **other - *start < secs(1));
        assert!(within.count() <= 106);
    }
}

#[test]
fn a_timer_that_is_not_due_by_the_stores_clock_is_asked_for_again() {
    let mut script = Script::joined(alone());
    let due = store(secs(1));
    script.rows = vec![row("a", "k", due)];
    let (id, _) = script.claim(secs(1));
    script.rows.clear();
    // The store's clock is slower than it was.
    let answer = Claimed {
        now: due.back_by(millis(2)),
        ..Claimed::default()
    };
    script.reply(id, Reply::Claimed(answer));
    assert!(script.quiet(secs(1) + millis(1)).is_empty());
    let (_, again) = script.claim(secs(1) + millis(3));
    assert_eq!(again.timers.len(), 1);
}

#[test]
fn a_hint_is_claimed_without_a_look() {
    let mut script = Script::joined(alone());
    let looks = script.asks.len();
    script.input(Input::Near(vec![Near {
        queue: "b".into(),
        key: "k".into(),
        shard: 9,
        due: store(millis(50)),
    }]));
    assert_eq!(script.asks.len(), looks);
    let (_, claim) = script.claim(millis(50));
    assert_eq!((claim.timers.len(), script.now), (1, millis(50)));
}

#[test]
fn a_timer_that_was_scheduled_during_a_run_of_its_key_is_claimed_after_the_run() {
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", START)];
    let runs = script.run_all(millis(1));
    script.rows.clear();
    script.input(Input::Near(vec![Near {
        queue: "a".into(),
        key: "k".into(),
        shard: 3,
        due: store(millis(100)),
    }]));
    assert!(script.quiet(millis(200)).is_empty());
    script.finish(&runs[0], Outcome::Done);
    let (id, _) = script.settle(millis(201));
    script.reply(id, Reply::Settled(vec![Settled::Ended]));
    assert_eq!(script.claim(millis(202)).1.timers.len(), 1);
}

#[test]
fn a_paused_queue_is_not_asked_for_until_it_is_resumed() {
    let mut script = Script::joined(alone());
    script.paused = vec!["a".into()];
    let (id, _) = script.look();
    let sight = script.sight();
    script.reply(id, Reply::Sight(sight));
    script.asks.clear();
    script.now = secs(1);
    let (id, look) = script.look();
    assert!(look.ranges.iter().all(|range| &*range.queue == "b"));
    script.paused.clear();
    script.rows = vec![row("a", "k", START)];
    let mut sight = script.sight();
    sight.rows.clear();
    script.reply(id, Reply::Sight(sight));
    // The next look is at once.
    assert_eq!(script.claim(secs(1)).1.timers.len(), 1);
}

// === ends ===

#[test]
fn locked_ends_are_asked_for_again_and_fenced_ones_are_done() {
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", START), row("a", "l", START)];
    let runs = script.run_all(millis(1));
    script.rows.clear();
    script.finish(&runs[0], Outcome::Done);
    let (first, settle) = script.settle(millis(2));
    assert_eq!(settle.settlements.len(), 1);
    // What ends in the meantime travels with the next call.
    script.finish(&runs[1], Outcome::Done);
    script.reply(first, Reply::Settled(vec![Settled::Locked]));
    let (second, settle) = script.settle(millis(3));
    assert_eq!(settle.settlements[0].run, runs[1]);
    script.reply(second, Reply::Settled(vec![Settled::Fenced]));
    let (third, settle) = script.settle(millis(40));
    assert_eq!(settle.settlements.len(), 1);
    assert_eq!(settle.settlements[0].run, runs[0]);
    script.reply(third, Reply::Settled(vec![Settled::Ended]));
    assert!(script.quiet(secs(2)).is_empty());
}

#[test]
fn an_end_whose_answer_was_lost_is_asked_for_again_until_it_is_answered() {
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", START)];
    let runs = script.run_all(millis(1));
    script.rows.clear();
    script.finish(&runs[0], Outcome::Retry(secs(9)));
    let mut asked = 0;
    let (mut id, _) = script.settle(millis(1));
    while script.now < secs(5) {
        script.fail(id);
        let until = script.now + secs(1);
        (id, _) = script.settle(until);
        asked += 1;
    }
    assert_eq!(asked, 5);
    script.reply(id, Reply::Settled(vec![Settled::Waits]));
    assert!(script.quiet(secs(6)).is_empty());
}

#[test]
fn an_end_that_the_store_refuses_does_not_hold_up_the_others() {
    let mut script = Script::joined(options(&[("a", 64, None)]));
    script.rows = (0..40)
        .map(|number| row("a", &format!("k{number}"), START))
        .collect();
    let runs = script.run_all(millis(1));
    script.rows.clear();
    for run in &runs {
        script.finish(run, Outcome::Done);
    }
    let bad = &runs[17];
    let mut done = 0;
    while done < 39 && script.now < secs(60) {
        let until = script.now + millis(50);
        for (id, call) in script.quiet(until) {
            let StoreCall::Settle(settle) = call else {
                panic!("{call:?}");
            };
            if settle.settlements.iter().any(|end| end.run == *bad) {
                let result = Err(StoreError::Refused("bad".into()));
                script.input(Input::Reply { id, result });
            } else {
                done += settle.settlements.len();
                let ends = vec![Settled::Ended; settle.settlements.len()];
                script.reply(id, Reply::Settled(ends));
            }
        }
    }
    assert_eq!(done, 39);
}

// === marks ===

/// The mark of a shard of queue `b`, if it is looked at.
fn mark(look: &Look, shard: u16) -> Option<StoreTime> {
    let mut ranges = look.ranges.iter();
    let range = ranges.find(|range| range.shard == shard && &*range.queue == "b");
    range.expect("the shard is looked at").mark
}

#[test]
fn a_mark_stays_behind_the_horizon_and_the_oldest_timer_and_falls_when_a_node_ends() {
    let mut script = Script::new(alone());
    script.others = vec![other(1)];
    script.input(Input::Wake);
    let (id, join) = script.asks.pop_front().unwrap();
    script.answer(id, &join);
    let (id, _) = script.asks.pop_front().unwrap();
    let horizon = Some(Horizon {
        number: 10,
        at: START,
    });
    let now = START;
    script.reply(id, Reply::Beat(Some(Beat { now, horizon })));
    let (id, first) = script.asks.pop_front().unwrap();
    script.answer(id, &first);

    let old = START.back_by(secs(60));
    script.rows = vec![Seen {
        shard: 5,
        ..row("b", "k", old)
    }];
    let look = |script: &mut Script, complete| {
        script
            .asks
            .retain(|(_, call)| matches!(call, StoreCall::Look(_)));
        let (id, look) = match script.asks.pop_front() {
            Some((id, StoreCall::Look(look))) => (id, look),
            _ => script.look(),
        };
        let mut sight = script.sight();
        sight.complete_below = complete;
        script.reply(id, Reply::Sight(sight));
        look
    };
    for complete in [None, Some(9), Some(10)] {
        let asked = look(&mut script, complete);
        assert_eq!((mark(&asked, 5), mark(&asked, 40)), (None, None));
    }
    let asked = look(&mut script, Some(10));
    assert_eq!(mark(&asked, 5), Some(old));
    assert_eq!(mark(&asked, 40), Some(START.back_by(secs(2))));
    // The other node may have held timers that are older than the marks.
    script.others.clear();
    look(&mut script, Some(10));
    let asked = look(&mut script, Some(10));
    assert!(asked.ranges.iter().all(|range| range.mark.is_none()));
}

#[test]
fn a_shard_that_a_limit_has_cut_gets_no_mark_and_an_error_drops_all_marks() {
    let mut script = Script::new(alone());
    script.input(Input::Wake);
    let (id, join) = script.asks.pop_front().unwrap();
    script.answer(id, &join);
    let (id, _) = script.asks.pop_front().unwrap();
    let horizon = Some(Horizon {
        number: 10,
        at: START,
    });
    let now = START;
    script.reply(id, Reply::Beat(Some(Beat { now, horizon })));
    let (id, first) = script.asks.pop_front().unwrap();
    script.answer(id, &first);
    let Some((id, StoreCall::Look(asked))) = script.asks.pop_front() else {
        panic!("a look");
    };
    let ranges = asked.ranges.iter();
    let cut = ranges.enumerate().filter(|(_, range)| range.shard == 40);
    let sight = Sight {
        complete_below: Some(11),
        cut: cut.map(|(index, _)| index).collect(),
        ..script.sight()
    };
    script.reply(id, Reply::Sight(sight));
    let (id, asked) = script.look();
    assert_eq!(mark(&asked, 40), None);
    assert_eq!(mark(&asked, 41), Some(START.back_by(secs(2))));
    script.fail(id);
    script.now = secs(1);
    let (_, asked) = script.look();
    assert!(asked.ranges.iter().all(|range| range.mark.is_none()));
}

#[test]
fn others_shards_are_looked_at_for_what_is_overdue() {
    let mut script = Script::new(alone());
    script.others = vec![other(1)];
    script.quiet(Mono::ZERO);
    script.now = secs(1);
    let (_, look) = script.look();
    let of = |queue: &str, until| {
        let ranges = look.ranges.iter();
        ranges
            .filter(|range| &*range.queue == queue && range.until == until)
            .count()
    };
    // The other node handles only the queue `a`.
    assert_eq!(of("b", Offset::Ahead(secs(2))), 64);
    let own = of("a", Offset::Ahead(secs(2)));
    assert!((20..45).contains(&own), "{own}");
    assert!(of("a", Offset::Overdue(millis(1_500))) >= 64 - own - 1);
}

// === outages ===

#[test]
fn a_node_whose_store_is_down_does_not_spin() {
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", START)];
    let runs = script.run_all(millis(1));
    script.finish(&runs[0], Outcome::Done);
    let mut calls = 0;
    let mut steps = 0;
    while script.now < secs(60) {
        while let Some((id, _)) = script.asks.pop_front() {
            script.fail(id);
            calls += 1;
        }
        let wake = script.node.next_wake().expect("it tries again");
        assert!(wake >= script.now);
        script.now = wake;
        script.input(Input::Wake);
        steps += 1;
    }
    // Two lanes with a call each half to whole second, after the first few.
    assert!((100..300).contains(&calls), "{calls}");
    assert!(steps < 2 * calls, "{steps}");
}

// === the end ===

#[test]
fn a_stop_gives_back_what_has_not_started_waits_for_the_rest_and_leaves() {
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", START)];
    let runs = script.run_all(millis(1));
    script.rows = vec![row("a", "l", START)];
    script.input(Input::LookNow);
    let (claim, wanted) = script.claim(millis(2));
    script.input(Input::Stop { grace: secs(10) });
    script.grant(claim, &wanted.timers);
    assert_eq!(script.starts, runs, "nothing new starts");
    let (id, settle) = script.settle(millis(3));
    assert_eq!(
        settle.settlements[0].outcome,
        Outcome::GiveBack(Duration::ZERO)
    );
    script.reply(id, Reply::Settled(vec![Settled::Waits]));
    assert!(script.quiet(secs(5)).is_empty());
    assert!(
        script.node.is_held(secs(5)),
        "it beats as long as something runs"
    );
    // A second stop with a longer grace changes nothing.
    script.input(Input::Stop { grace: secs(100) });
    script.finish(&runs[0], Outcome::Done);
    let (id, _) = script.settle(secs(5));
    assert_eq!(script.stopped, None);
    script.reply(id, Reply::Settled(vec![Settled::Ended]));
    let left = script
        .asks
        .iter()
        .any(|(_, call)| matches!(call, StoreCall::Leave(_)));
    assert!(left && !script.node.is_held(secs(5)));
    script.quiet(secs(5));
    assert_eq!(script.stopped, Some(Stopped { unfinished: 0 }));
}

#[test]
fn a_stop_tells_the_others_at_once_that_the_node_handles_no_queue() {
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", START)];
    script.run_all(millis(1));
    script.input(Input::Stop { grace: secs(10) });
    let joins = script.asks.iter().filter_map(|(_, call)| match call {
        StoreCall::Join(node) => Some((node.epoch, node.queues.len())),
        _ => None,
    });
    assert_eq!(joins.collect::<Vec<_>>(), [(script.node.epoch(), 0)]);
}

#[test]
fn runs_that_outlast_the_grace_are_left_to_the_others() {
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", START)];
    script.run_all(millis(1));
    script.input(Input::Stop { grace: secs(2) });
    script.quiet(secs(2));
    assert_eq!(script.stopped, None);
    script.quiet(secs(2) + millis(1));
    assert_eq!(script.stopped, Some(Stopped { unfinished: 1 }));
}

#[test]
fn a_stop_ends_soon_after_the_grace_even_if_the_store_is_down() {
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", START)];
    script.run_all(millis(1));
    script.input(Input::Stop { grace: secs(2) });
    while script.stopped.is_none() {
        while let Some((id, _)) = script.asks.pop_front() {
            script.fail(id);
        }
        if script.stopped.is_none() {
            script.now = script.node.next_wake().expect("it ends");
            script.input(Input::Wake);
        }
    }
    // 5 s after the grace.
    assert_eq!(script.now, secs(7) + millis(1));
    assert_eq!(script.node.next_wake(), None);
    script.input(Input::Wake);
    assert!(script.asks.is_empty());
}

#[test]
fn a_node_that_never_joined_stops_at_once() {
    let mut script = Script::new(alone());
    script.input(Input::Stop { grace: secs(2) });
    assert_eq!(script.stopped, Some(Stopped::default()));
    assert!(script.asks.is_empty());
}

#[test]
fn no_queue_has_a_limit_of_zero_places_that_blocks_another_one() {
    let mut config = alone();
    config.queues.push(QueueConfig {
        name: "c".into(),
        running: 0,
        pace: None,
        crash_limit: 3,
    });
    let mut script = Script::joined(config);
    script.rows = vec![row("c", "x", START), row("a", "k", START)];
    script.input(Input::LookNow);
    let (_, claim) = script.claim(millis(1));
    assert_eq!(claim.timers.len(), 1);
}
