//! The server and the memory answer the same to the same calls, whatever they are.
//!
//! Both have the machine's clock, and each call reads it at another moment. So the times of the
//! calls lie hours apart, and times of the answers are compared in hours since the start.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use tourbillon_durable::store::{
    Action, Answer, Band, Call, Claim, Connection, DeadPage, Epoch, NewNode, Offset, Outcome, Page,
    Payload, Poll, Range, Run, SHARDS, Settle, Settlement, Store, StoreTime, Wanted,
};
use tourbillon_durable::{DueAt, Memory, Meta, Postgres};

use crate::cluster;
use crate::random::{meta, outcome, placed, places, writes};

const QUEUES: [&str; 2] = ["a", "b"];
const KEYS: usize = 4;
const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Clone, Debug)]
enum Step {
    /// Calls on different keys, by the numbers of queue and key.
    Write(Vec<(usize, usize, Doing)>),
    List {
        queue: usize,
        from: i64,
        until: i64,
        limit: u32,
    },
    Revive(usize),
    SetPaused(usize, bool),
    Join(i64),
    Poll {
        node: i64,
        mark: Option<i64>,
        ahead: u64,
    },
    Claim {
        node: i64,
        wanted: Vec<(usize, usize)>,
        crash_limit: u32,
        late: bool,
        adopt: Vec<usize>,
    },
    Settle {
        node: i64,
        ends: Vec<(usize, Outcome)>,
    },
    DeclareGone {
        asking: i64,
        node: i64,
        beat: i64,
    },
    Leave(i64),
}

#[derive(Clone, Debug)]
enum Doing {
    Schedule(Due, u8),
    IfAbsent(Due, u8),
    Reschedule(Due),
    Cancel,
}

#[derive(Clone, Copy, Debug)]
enum Due {
    In(u64),
    At(i64),
}

fn due() -> impl Strategy<Value = Due> {
    prop_oneof![
        3 => Just(Due::In(0)),
        1 => (1..4_u64).prop_map(Due::In),
        1 => (-3..4_i64).prop_map(Due::At),
    ]
}

fn doing() -> impl Strategy<Value = Doing> {
    prop_oneof![
        4 => (due(), any::<u8>()).prop_map(|(due, payload)| Doing::Schedule(due, payload)),
        1 => (due(), any::<u8>()).prop_map(|(due, payload)| Doing::IfAbsent(due, payload)),
        1 => due().prop_map(Doing::Reschedule),
        1 => Just(Doing::Cancel),
    ]
}

fn span() -> impl Strategy<Value = Duration> {
    (0..2_u32).prop_map(|hours| HOUR * hours)
}

fn step() -> impl Strategy<Value = Step> {
    let node = || 1..4_i64;
    prop_oneof![
        6 => writes(KEYS, doing).prop_map(Step::Write),
        1 => (0..2_usize, -4..4_i64, -4..5_i64, 0..6_u32)
            .prop_map(|(queue, from, until, limit)| Step::List { queue, from, until, limit }),
        1 => (0..3_usize).prop_map(Step::Revive),
        1 => (0..2_usize, any::<bool>()).prop_map(|(q, paused)| Step::SetPaused(q, paused)),
        3 => node().prop_map(Step::Join),
        2 => (node(), proptest::option::of(-4..4_i64), 0..4_u64)
            .prop_map(|(node, mark, ahead)| Step::Poll { node, mark, ahead }),
        6 => (node(), places(KEYS), 1..4_u32, proptest::bool::weighted(0.1), proptest::collection::vec(0..6_usize, 0..2))
            .prop_map(|(node, wanted, crash_limit, late, adopt)| Step::Claim { node, wanted, crash_limit, late, adopt }),
        6 => (node(), proptest::collection::vec((0..6_usize, outcome(span)), 1..4))
            .prop_map(|(node, ends)| Step::Settle { node, ends }),
        2 => (node(), node(), 0..3_i64)
            .prop_map(|(asking, node, beat)| Step::DeclareGone { asking, node, beat }),
        1 => node().prop_map(Step::Leave),
    ]
}

/// One of the two stores, with what has other names in each.
struct Side {
    connection: Box<dyn Connection>,
    /// The runs so far, in the order in which they were claimed.
    runs: Vec<Run>,
    /// The numbers of generations in the order in which they were seen.
    generations: HashMap<(String, i64), usize>,
    start: StoreTime,
}

impl Side {
    fn new(connection: Box<dyn Connection>, start: StoreTime) -> Self {
        Side {
            connection,
            runs: Vec::new(),
            generations: HashMap::new(),
            start,
        }
    }

    fn at(&self, hours: i64) -> StoreTime {
        // Half an hour off, so that it never lies close to a time after whole hours.
        let start = self.start.as_micros();
        StoreTime::from_micros(start + hours * 3_600_000_000 + 1_800_000_000)
    }

    /// A time in half hours since the start.
    fn halves(&self, time: StoreTime) -> i64 {
        (time.as_micros() - self.start.as_micros() + 900_000_000).div_euclid(1_800_000_000)
    }

    fn when(&self, due: Due) -> DueAt {
        match due {
            Due::In(hours) => DueAt::After(HOUR * u32::try_from(hours).expect("few")),
            Due::At(hours) => DueAt::from(self.at(hours)),
        }
    }

    fn call(&self, queue: usize, key: usize, doing: &Doing) -> Call {
        let payload = |payload: &u8| Payload {
            meta: meta(*payload),
            ..Payload::from(payload.to_string())
        };
        let action = match doing {
            Doing::Schedule(due, text) => Action::Schedule {
                when: self.when(*due),
                payload: payload(text),
            },
            Doing::IfAbsent(due, text) => Action::ScheduleIfAbsent {
                when: self.when(*due),
                payload: payload(text),
            },
            Doing::Reschedule(due) => Action::Reschedule {
                when: self.when(*due),
            },
            Doing::Cancel => Action::Cancel,
        };
        Call {
            queue: QUEUES[queue].into(),
            key: format!("k{key}").into(),
            action,
        }
    }

    fn answer(&self, answer: Answer) -> String {
        let halves = |time| self.halves(time);
        match answer {
            Answer::Scheduled {
                due,
                replaced,
                running,
                ..
            } => format!(
                "scheduled {} {:?} {running}",
                halves(due),
                replaced.map(halves)
            ),
            Answer::Exists { due, running } => format!("exists {} {running}", halves(due)),
            Answer::Moved {
                from, to, running, ..
            } => format!("moved {} {} {running}", halves(from), halves(to)),
            Answer::Cancelled { due } => format!("cancelled {}", halves(due)),
            Answer::Running { attempt, since } => format!("running {attempt} {}", halves(since)),
            answer => format!("{answer:?}"),
        }
    }

    /// A number of the generation that is the same on both sides, if they see the same.
    fn generation(&mut self, queue: &str, key: &str, generation: i64) -> usize {
        let next = self.generations.len();
        let place = (format!("{queue} {key}"), generation);
        *self.generations.entry(place).or_insert(next)
    }

    /// Makes the step, and returns the answer without what differs between stores.
    fn make(&mut self, step: &Step) -> String {
        match step {
            Step::Write(calls) => {
                let calls: Vec<Call> = calls
                    .iter()
                    .map(|(q, k, doing)| self.call(*q, *k, doing))
                    .collect();
                let answers = self.connection.write(&calls).expect("the store answers");
                let answers = answers
                    .into_iter()
                    .map(|answer| self.answer(answer.expect("it is accepted")));
                answers.collect::<Vec<_>>().join(", ")
            }
            Step::List {
                queue,
                from,
                until,
                limit,
            } => {
                let mut page = Page::first(QUEUES[*queue], *limit);
                page.from = self.at(*from);
                page.until = self.at(*until);
                self.list(&page)
            }
            Step::Revive(index) => {
                let letters = self
                    .connection
                    .dead(&DeadPage::first(QUEUES[index % 2], 100))
                    .expect("it reads");
                let id = letters.get(*index).map_or(1_000_000, |letter| letter.id);
                show(&self.connection.revive(id).expect("the store answers"))
            }
            Step::SetPaused(queue, paused) => show(
                &self
                    .connection
                    .set_paused(QUEUES[*queue], *paused)
                    .expect("the store answers"),
            ),
            Step::Join(node) => {
                let node = NewNode {
                    epoch: Epoch(*node),
                    name: "n".to_owned(),
                    queues: QUEUES.map(Into::into).into(),
                    schedules: Default::default(),
                };
                show(&self.connection.join(&node).expect("the store answers"))
            }
            Step::Poll { node, mark, ahead } => {
                self.poll(*node, *mark, HOUR * u32::try_from(*ahead).expect("few"))
            }
            Step::Claim {
                node,
                wanted,
                crash_limit,
                late,
                adopt,
            } => {
                let wanted = wanted.iter().map(|(q, k)| Wanted {
                    queue: QUEUES[*q].into(),
                    key: format!("k{k}").into(),
                    crash_limit: *crash_limit,
                });
                let claim = Claim {
                    epoch: Epoch(*node),
                    deadline: self.at(if *late { -2 } else { 2 }),
                    timers: wanted.collect(),
                    adopt: adopt
                        .iter()
                        .filter_map(|index| self.runs.iter().rev().nth(*index).cloned())
                        .collect(),
                };
                self.claim(&claim)
            }
            Step::Settle { node, ends } => {
                let mut settlements: Vec<Settlement> = Vec::new();
                for (index, outcome) in ends {
                    let Some(run) = self.runs.iter().rev().nth(*index) else {
                        continue;
                    };
                    let same = |other: &Settlement| {
                        (&other.run.queue, &other.run.key) == (&run.queue, &run.key)
                    };
                    if !settlements.iter().any(same) {
                        settlements.push(Settlement {
                            run: run.clone(),
                            outcome: placed(outcome, |hours| self.at(hours)),
                        });
                    }
                }
                let settle = Settle {
                    epoch: Epoch(*node),
                    settlements,
                };
                show(&self.connection.settle(&settle).expect("the store answers"))
            }
            Step::DeclareGone { asking, node, beat } => {
                let declared = self
                    .connection
                    .declare_gone(Epoch(*asking), Epoch(*node), *beat);
                let beat = self
                    .connection
                    .beat(Epoch(*asking))
                    .expect("the store answers");
                format!(
                    "{:?} {}",
                    declared.expect("the store answers"),
                    beat.is_some()
                )
            }
            Step::Leave(node) => show(
                &self
                    .connection
                    .leave(Epoch(*node))
                    .expect("the store answers"),
            ),
        }
    }

    fn claim(&mut self, claim: &Claim) -> String {
        let mut claimed = self.connection.claim(claim).expect("the store answers");
        claimed
            .runs
            .sort_by(|a, b| (&a.run.queue, &a.run.key).cmp(&(&b.run.queue, &b.run.key)));
        let mut shown = format!("gone {} dead {}", claimed.gone, claimed.dead);
        for run in claimed.runs {
            let generation = self.generation(&run.run.queue, &run.run.key, run.run.generation);
            let (due, planned) = (self.halves(run.due), self.halves(run.planned));
            shown += &format!(
                ", {} {} {generation} {} {due} {planned} {} {} {}",
                run.run.queue,
                run.run.key,
                run.run.attempt,
                run.fails,
                run.crashes,
                carried(&run.payload, run.payload.meta.as_ref())
            );
            if !self.runs.contains(&run.run) {
                self.runs.push(run.run);
            }
        }
        for run in claimed.over {
            let generation = self.generation(&run.queue, &run.key, run.generation);
            shown += &format!(
                ", over {} {} {generation} {}",
                run.queue, run.key, run.attempt
            );
        }
        shown
    }

    fn poll(&mut self, node: i64, mark: Option<i64>, ahead: Duration) -> String {
        // A quarter of an hour off, as above.
        let ahead = Offset::Ahead(ahead + HOUR / 4);
        let range = |(queue, shard): (usize, u16)| Range {
            queue: QUEUES[queue].into(),
            shard,
            mark: mark.map(|hours| self.at(hours)),
            until: ahead,
            limit: 100,
        };
        let ranges = (0..2).flat_map(|queue| (0..SHARDS).map(move |shard| (queue, shard)));
        let bands = (0..SHARDS).map(|shard| Band {
            shard,
            mark: mark.map(|hours| self.at(hours)),
            until: ahead,
            limit: 100,
        });
        let poll = Poll {
            epoch: Epoch(node),
            ranges: ranges.map(range).collect(),
            bands: bands.collect(),
            complete: true,
        };
        let mut snapshot = self.connection.poll(&poll).expect("the store reads");
        snapshot
            .rows
            .sort_by(|a, b| (&a.queue, &a.key).cmp(&(&b.queue, &b.key)));
        snapshot.nodes.sort_by_key(|node| node.epoch);
        snapshot.paused.sort();
        // Each store has a hash of its own, so the shards of a key differ.
        let survey = snapshot.survey.expect("each store of this crate has bands");
        let mut firsts: BTreeMap<Box<str>, StoreTime> = BTreeMap::new();
        for part in survey.parts {
            let first = firsts.entry(part.queue).or_insert(part.first);
            *first = part.first.min(*first);
        }
        let mut shown = format!(
            "{:?} {:?} {:?}",
            snapshot.nodes, snapshot.paused, snapshot.cut
        );
        for (queue, first) in firsts {
            shown += &format!(", {queue} from {}", self.halves(first));
        }
        shown += &format!(", cut {:?}", survey.cut);
        for seen in snapshot.rows {
            let generation = self.generation(&seen.queue, &seen.key, seen.generation);
            let due = self.halves(seen.due);
            shown += &format!(
                ", {} {} {due} {generation} {} {} {}",
                seen.queue, seen.key, seen.attempt, seen.crashes, seen.mine
            );
        }
        shown
    }

    fn list(&mut self, page: &Page) -> String {
        let timers = self.connection.list(page).expect("the store reads");
        let timers = timers.into_iter().map(|timer| {
            let got = self
                .connection
                .get(&timer.queue, &timer.key)
                .expect("the store reads");
            assert_eq!(got.as_ref(), Some(&timer));
            let (due, planned) = (self.halves(timer.due), self.halves(timer.planned));
            let running = timer.running.map(|since| self.halves(since));
            format!(
                "{} {due} {planned} {} {} {} {running:?} {} {} {}",
                timer.key,
                timer.attempt,
                timer.fails,
                timer.crashes,
                timer.cancelled,
                timer.follows,
                carried(&timer.payload, timer.meta.as_ref())
            )
        });
        // Times of one moment on one side are not those of one moment on the other.
        let timers: Vec<String> = timers.collect();
        timers.join(", ")
    }

    /// Everything that can be read.
    fn all(&mut self) -> String {
        let mut shown = String::new();
        for queue in QUEUES {
            shown += &format!("{queue}: {}\n", self.list(&Page::first(queue, 100)));
            for letter in self
                .connection
                .dead(&DeadPage::first(queue, 100))
                .expect("the store reads")
            {
                let (planned, at) = (self.halves(letter.planned), self.halves(letter.at));
                shown += &format!(
                    "dead {} {planned} {at} {} {} {} {} {}\n",
                    letter.key,
                    letter.attempt,
                    letter.fails,
                    letter.crashes,
                    letter.error,
                    carried(&letter.payload, letter.meta.as_ref())
                );
            }
        }
        for mut counts in self.connection.counts().expect("the store reads") {
            let oldest = counts.oldest.take().map(|due| self.halves(due.into()));
            shown += &format!("{oldest:?} {}\n", show(&counts));
        }
        shown
    }
}

fn show(value: &impl Debug) -> String {
    format!("{value:?}")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    #[cfg_attr(not(has_postgres), ignore = "needs a PostgreSQL server: apt-get install postgresql")]
    fn the_server_answers_as_the_memory(steps in proptest::collection::vec(step(), 1..40)) {
        let database = cluster::lent();
        let store = Postgres::connect(&database.url()).expect("the cluster answers");
        let start = StoreTime::from(SystemTime::now());
        let mut server = Side::new(store.connect().expect("the cluster answers"), start);
        let mut memory = Side::new(Memory::new().connect().expect("it is there"), start);
        for (index, step) in steps.iter().enumerate() {
            let (a, b) = (server.make(step), memory.make(step));
            prop_assert_eq!(a, b, "step {} {:?}", index, step);
            if index % 8 == 7 || index + 1 == steps.len() {
                let (a, b) = (server.all(), memory.all());
                prop_assert_eq!(a, b, "after step {} {:?}", index, step);
            }
        }
    }
}

/// The spaces of a meta are the store's.
fn carried(payload: &str, meta: Option<&Meta>) -> String {
    let meta = meta.map(|meta| meta.parse::<serde_json::Value>().expect("it is JSON"));
    format!("{payload} {meta:?}")
}
