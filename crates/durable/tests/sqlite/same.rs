//! The file and the memory answer the same to the same calls, whatever they are.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::time::Duration;

use proptest::prelude::*;
use tourbillon_durable::store::{
    Action, Answer, Band, Call, Claim, Claimed, Connection, DeadPage, Epoch, NewNode, Offset,
    Outcome, Page, Payload, Poll, Range, Run, SHARDS, Settle, Settlement, Store, StoreError,
    StoreSnapshot, StoreTime, Wanted,
};
use tourbillon_durable::{DueAt, Memory, WallClock};

use crate::folder::{Folder, call};
use crate::random::{meta, outcome, placed, places, writes};

const QUEUES: [&str; 2] = ["a", "b"];
const KEYS: usize = 5;
const NODES: i64 = 3;

/// The start of the clock: far from both ends.
const START: StoreTime = StoreTime::from_micros(1_700_000_000_000_000);

#[derive(Clone, Debug)]
enum Step {
    /// Calls on different keys, by the numbers of queue and key.
    Write(Vec<(usize, usize, Action)>),
    Get(usize, usize),
    List {
        queue: usize,
        from: i64,
        until: i64,
        limit: u32,
        /// Whether to go on after the last timer of this page.
        next: bool,
    },
    Revive(i64),
    SetPaused(usize, bool),
    Join(i64),
    Beat(i64),
    Poll {
        node: i64,
        mark: Option<i64>,
        until: Offset,
        limit: u32,
    },
    Claim {
        node: i64,
        wanted: Vec<(usize, usize)>,
        crash_limit: u32,
        deadline: i64,
        /// The numbers of earlier runs to adopt, counted from the last one.
        adopt: Vec<usize>,
    },
    Settle {
        node: i64,
        /// The numbers of runs, counted from the last one, with their ends.
        ends: Vec<(usize, Outcome)>,
    },
    DeclareGone {
        asking: i64,
        node: i64,
        beat: i64,
    },
    Leave(i64),
    /// Moves the clock, forward or back.
    Clock(i64),
}

fn seconds() -> impl Strategy<Value = i64> {
    prop_oneof![
        8 => -5_i64..30,
        1 => Just(-100),
        1 => Just(90_000),
    ]
}

fn span() -> impl Strategy<Value = Duration> {
    (0_u64..10).prop_map(Duration::from_secs)
}

fn when() -> impl Strategy<Value = DueAt> {
    prop_oneof![
        span().prop_map(DueAt::After),
        (-10_i64..20).prop_map(|after| DueAt::from(from_start(after))),
    ]
}

fn payload() -> impl Strategy<Value = Payload> {
    (0..100_u8).prop_map(|number| Payload {
        meta: meta(number),
        ..Payload::from(number.to_string())
    })
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (when(), payload()).prop_map(|(when, payload)| Action::Schedule { when, payload }),
        1 => (when(), payload())
            .prop_map(|(when, payload)| Action::ScheduleIfAbsent { when, payload }),
        1 => when().prop_map(|when| Action::Reschedule { when }),
        1 => Just(Action::Cancel),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let node = || 0..NODES;
    let until = prop_oneof![
        span().prop_map(Offset::Ahead),
        span().prop_map(Offset::Overdue)
    ];
    prop_oneof![
        6 => writes(KEYS, action).prop_map(Step::Write),
        1 => (0..2_usize, 0..KEYS).prop_map(|(q, k)| Step::Get(q, k)),
        1 => (0..2_usize, -20_i64..20, 0_i64..40, 0..6_u32, any::<bool>()).prop_map(
            |(queue, from, until, limit, next)| Step::List { queue, from, until, limit, next }
        ),
        1 => (1..6_i64).prop_map(Step::Revive),
        1 => (0..2_usize, any::<bool>()).prop_map(|(q, paused)| Step::SetPaused(q, paused)),
        2 => node().prop_map(Step::Join),
        1 => node().prop_map(Step::Beat),
        2 => (node(), proptest::option::of(-20_i64..20), until, 0..4_u32).prop_map(
            |(node, mark, until, limit)| Step::Poll { node, mark, until, limit }
        ),
        6 => (node(), places(KEYS), 1..4_u32, -1_i64..10, proptest::collection::vec(0..6_usize, 0..2))
            .prop_map(|(node, wanted, crash_limit, deadline, adopt)| Step::Claim {
                node, wanted, crash_limit, deadline, adopt
            }),
        5 => (node(), proptest::collection::vec((0..6_usize, outcome(span)), 1..4))
            .prop_map(|(node, ends)| Step::Settle { node, ends }),
        2 => (node(), node(), 0..3_i64)
            .prop_map(|(asking, node, beat)| Step::DeclareGone { asking, node, beat }),
        1 => node().prop_map(Step::Leave),
        4 => seconds().prop_map(Step::Clock),
    ]
}

fn from_start(seconds: i64) -> StoreTime {
    StoreTime::from_micros(START.as_micros() + seconds * 1_000_000)
}

/// Both stores, and what is known of the runs of both.
struct Pair {
    clock: WallClock,
    memory: Box<dyn Connection>,
    file: Box<dyn Connection>,
    keys: Vec<String>,
    /// Epochs: a node that is gone joins with another one.
    epochs: [i64; 3],
    /// The runs that were claimed, in the numbers of both stores.
    runs: Vec<(Run, Run)>,
    /// The generations of the file by those of the memory, and the other way round.
    generations: (HashMap<i64, i64>, HashMap<i64, i64>),
    /// The epochs that have left or are gone. No node joins under one of them again.
    over: BTreeSet<Epoch>,
    _folder: Folder,
}

impl Pair {
    fn new() -> Self {
        let folder = Folder::new();
        let clock = WallClock::manual(START.into());
        let memory = Memory::with_clock(clock.clone());
        let file = folder.store().with_clock(clock.clone());
        Pair {
            clock,
            memory: memory.connect().expect("a connection"),
            file: file.connect().expect("a connection"),
            keys: keys(),
            epochs: [0, 1, 2],
            over: BTreeSet::new(),
            runs: Vec::new(),
            generations: (HashMap::new(), HashMap::new()),
            _folder: folder,
        }
    }

    fn both<T: PartialEq + Debug>(
        &mut self,
        call: impl Fn(&mut dyn Connection) -> Result<T, StoreError>,
    ) -> T {
        let memory = call(&mut *self.memory).expect("an answer of the memory");
        let file = call(&mut *self.file).expect("an answer of the file");
        assert_eq!(memory, file);
        file
    }

    fn epoch(&self, node: i64) -> Epoch {
        Epoch(self.epochs[usize::try_from(node).expect("a node")])
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Write(calls) => {
                let calls: Vec<Call> = calls
                    .into_iter()
                    .map(|(q, k, action)| call(QUEUES[q], &self.keys[k], action))
                    .collect();
                self.both(|connection| connection.write(&calls));
            }
            Step::Get(q, k) => {
                let key = self.keys[k].clone();
                self.both(|connection| connection.get(QUEUES[q], &key));
            }
            Step::List {
                queue,
                from,
                until,
                limit,
                next,
            } => {
                let mut page = Page::first(QUEUES[queue], limit);
                page.from = from_start(from);
                page.until = from_start(from + until);
                let timers = self.both(|connection| connection.list(&page));
                if let (true, Some(last)) = (next, timers.last()) {
                    page.after = Some((last.due, last.queue.clone(), last.key.clone()));
                    self.both(|connection| connection.list(&page));
                }
            }
            Step::Revive(letter) => {
                self.both(|connection| connection.revive(letter));
            }
            Step::SetPaused(q, paused) => {
                self.both(|connection| connection.set_paused(QUEUES[q], paused));
            }
            Step::Join(node) => {
                let node = NewNode {
                    epoch: self.epoch(node),
                    name: "a node".to_owned(),
                    queues: QUEUES.map(Into::into).to_vec(),
                    schedules: Default::default(),
                };
                if !self.over.contains(&node.epoch) {
                    self.both(|connection| connection.join(&node));
                }
            }
            Step::Beat(node) => {
                let epoch = self.epoch(node);
                let beat = self.both(|connection| {
                    let beat = connection.beat(epoch)?;
                    Ok(beat.map(|beat| beat.now))
                });
                if beat.is_none() {
                    let node = usize::try_from(node).expect("a node");
                    self.epochs[node] += NODES;
                }
            }
            Step::Poll {
                node,
                mark,
                until,
                limit,
            } => {
                self.poll(self.epoch(node), mark.map(from_start), until, limit);
            }
            Step::Claim {
                node,
                wanted,
                crash_limit,
                deadline,
                adopt,
            } => {
                let timers = wanted.iter().map(|(q, k)| Wanted {
                    queue: QUEUES[*q].into(),
                    key: self.keys[*k].as_str().into(),
                    crash_limit,
                });
                let claim = Claim {
                    epoch: self.epoch(node),
                    deadline: StoreTime::from(self.clock.now()) + Duration::from_secs(1),
                    timers: timers.collect(),
                    adopt: Vec::new(),
                };
                let deadline = StoreTime::from_micros(self.micros() + deadline * 1_000_000);
                self.claim(Claim { deadline, ..claim }, &adopt);
            }
            Step::Settle { node, ends } => self.settle(self.epoch(node), ends),
            Step::DeclareGone { asking, node, beat } => {
                let (asking, epoch) = (self.epoch(asking), self.epoch(node));
                if self.both(|connection| connection.declare_gone(asking, epoch, beat)) {
                    self.over.insert(epoch);
                }
            }
            Step::Leave(node) => {
                let epoch = self.epoch(node);
                self.both(|connection| connection.leave(epoch));
                self.over.insert(epoch);
            }
            Step::Clock(seconds) => {
                let now = self.micros() + seconds * 1_000_000;
                self.clock.set(StoreTime::from_micros(now).into());
            }
        }
    }

    /// The time of the clock.
    fn micros(&self) -> i64 {
        StoreTime::from(self.clock.now()).as_micros()
    }

    fn poll(&mut self, epoch: Epoch, mark: Option<StoreTime>, until: Offset, limit: u32) {
        let ranges = QUEUES.iter().flat_map(|queue| {
            (0..SHARDS).map(move |shard| Range {
                queue: (*queue).into(),
                shard,
                mark,
                until,
                limit,
            })
        });
        // Which one of the timers of one moment a limit cuts is left open, so the first bands have
        // none.
        let limits = [1_000, limit].into_iter();
        let bands = limits.flat_map(|limit| {
            (0..SHARDS).map(move |shard| Band {
                shard,
                mark,
                until,
                limit,
            })
        });
        let poll = Poll {
            epoch,
            ranges: ranges.collect(),
            bands: bands.collect(),
            complete: true,
        };
        let memory = self.memory.poll(&poll).expect("a snapshot");
        let mut file = self.file.poll(&poll).expect("a snapshot");
        for (memory, file) in memory.rows.iter().zip(&mut file.rows) {
            self.same_generation(memory.generation, file.generation);
            file.generation = memory.generation;
        }
        let plain = |mut snapshot: StoreSnapshot| {
            let survey = snapshot.survey.iter_mut();
            survey.for_each(|survey| survey.parts.retain(|part| part.band < SHARDS.into()));
            StoreSnapshot {
                complete: None,
                ..snapshot
            }
        };
        assert_eq!(plain(memory), plain(file));
    }

    fn claim(&mut self, claim: Claim, adopt: &[usize]) {
        let runs = adopt
            .iter()
            .filter_map(|back| self.runs.iter().nth_back(*back));
        let (memory_runs, file_runs) = runs.cloned().unzip();
        let (mut of_memory, mut of_file) = (claim.clone(), claim);
        of_memory.adopt = memory_runs;
        of_file.adopt = file_runs;
        let memory = self.memory.claim(&of_memory).expect("a claim");
        let mut file = self.file.claim(&of_file).expect("a claim");
        for (memory, file) in memory.runs.iter().zip(&mut file.runs) {
            let pair = (memory.run.clone(), file.run.clone());
            self.same_generation(pair.0.generation, pair.1.generation);
            file.run.generation = memory.run.generation;
            if !self.runs.contains(&pair) {
                self.runs.push(pair);
            }
        }
        for (memory, file) in memory.over.iter().zip(&mut file.over) {
            self.same_generation(memory.generation, file.generation);
            file.generation = memory.generation;
        }
        let plain = |claimed: Claimed| Claimed {
            horizon: None,
            ..claimed
        };
        assert_eq!(plain(memory), plain(file));
    }

    fn settle(&mut self, epoch: Epoch, ends: Vec<(usize, Outcome)>) {
        let mut memory = Vec::new();
        let mut file: Vec<Settlement> = Vec::new();
        for (back, outcome) in ends {
            let Some((of_memory, of_file)) = self.runs.iter().nth_back(back).cloned() else {
                continue;
            };
            // No two runs of one settlement concern the same key.
            let is_same = |other: &Settlement| {
                (&other.run.queue, &other.run.key) == (&of_file.queue, &of_file.key)
            };
            if file.iter().any(is_same) {
                continue;
            }
            let outcome = placed(&outcome, from_start);
            memory.push(Settlement {
                run: of_memory,
                outcome: outcome.clone(),
            });
            file.push(Settlement {
                run: of_file,
                outcome,
            });
        }
        let settle = |settlements| Settle { epoch, settlements };
        assert_eq!(
            self.memory.settle(&settle(memory)),
            self.file.settle(&settle(file))
        );
    }

    /// A generation of one store always stands for the same one of the other.
    fn same_generation(&mut self, memory: i64, file: i64) {
        let (forth, back) = &mut self.generations;
        assert_eq!(*forth.entry(memory).or_insert(file), file);
        assert_eq!(*back.entry(file).or_insert(memory), memory);
    }

    /// Both stores hold the same.
    fn compare(&mut self) {
        for queue in QUEUES {
            self.both(|connection| connection.list(&Page::first(queue, 100)));
            self.both(|connection| connection.dead(&DeadPage::first(queue, 100)));
            let mut page = DeadPage::first(queue, 1);
            page.after = 2;
            self.both(|connection| connection.dead(&page));
        }
        self.both(|connection| connection.counts());
    }
}

/// Three keys of one shard, and two others.
fn keys() -> Vec<String> {
    let mut connection = Memory::new().connect().expect("a connection");
    let mut shard_of = |key: &str| {
        let action = Action::Schedule {
            when: DueAt::After(Duration::ZERO),
            payload: "1".into(),
        };
        match connection.write(&[call("q", key, action)]).as_deref() {
            Ok([Ok(Answer::Scheduled { shard, .. })]) => *shard,
            other => panic!("{other:?}"),
        }
    };
    let wanted = shard_of("k0");
    let mut keys: Vec<String> = (0..)
        .map(|number| format!("k{number}"))
        .filter(|key| shard_of(key) == wanted)
        .take(3)
        .collect();
    keys.extend(["x".to_owned(), "y".to_owned()]);
    keys
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_file_answers_as_the_memory_does(
        steps in proptest::collection::vec(step(), 1..60)
    ) {
        let mut pair = Pair::new();
        // Most of what follows needs nodes.
        for node in 0..NODES {
            pair.take(Step::Join(node));
        }
        for (number, step) in steps.into_iter().enumerate() {
            pair.take(step);
            if number % 4 == 0 {
                pair.compare();
            }
        }
        pair.compare();
    }
}
