//! Timers that repeat against a plain model, in whole ticks: random periods, policies and pauses,
//! with moves, cancellations and one-shots in between.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use tourbillon::test_util::Stepped;
use tourbillon::{Cancel, Missed, Next, Period, Reschedule, Scheduler, Time};

const T: Duration = Duration::from_millis(1);

type Key = u64;

#[derive(Clone, Debug)]
enum Step {
    Repeat {
        key: Key,
        kind: Kind,
        first: u32,
        grace: Option<u32>,
        policy: Missed,
        answers: Vec<Answer>,
    },
    Schedule(Key, u32),
    Reschedule(Key, u32),
    Cancel(Key),
    Advance(u32),
    Jump(u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Rate(u32),
    Delay(u32),
}

/// What a round does before it answers, by turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Again,
    After(u32),
    Stop,
    /// Moves itself, and answers that it stops.
    Move(u32),
    Cancel,
    /// Arms a one-shot in its place.
    Replace(u32),
}

/// Key, when it was due and when it ran; for a round its number and what it was told was missed.
type Ran = (Key, u64, u64, Option<(u64, u64)>);

// === the model ===

#[derive(Clone, Debug)]
struct Timer {
    due: u64,
    rhythm: Option<Rhythm>,
}

#[derive(Clone, Debug)]
struct Rhythm {
    kind: Kind,
    grace: u64,
    policy: Missed,
    answers: Vec<Answer>,
    /// When it wants to run next, unless somebody moved it.
    asked: Option<u64>,
    point: u64,
    number: u64,
    missed: u64,
    put_off: u32,
}

#[derive(Default)]
struct Model {
    now: u64,
    timers: BTreeMap<Key, Timer>,
    ran: Vec<Ran>,
    scheduled: u64,
    cancelled: u64,
    replaced: u64,
}

impl Model {
    fn arm(&mut self, key: Key, timer: Timer) {
        self.scheduled += 1;
        self.replaced += u64::from(self.timers.insert(key, timer).is_some());
    }

    fn settle(&mut self) {
        loop {
            let due = self.timers.iter().find(|(_, timer)| timer.due <= self.now);
            let Some((&key, _)) = due else {
                return;
            };
            let timer = self.timers.remove(&key).expect("it was found");
            self.run(key, timer);
        }
    }

    fn run(&mut self, key: Key, timer: Timer) {
        let (now, mut due) = (self.now, timer.due);
        let Some(mut rhythm) = timer.rhythm else {
            self.ran.push((key, due, now, None));
            return;
        };
        let late = now - due;
        if let Kind::Rate(period) = rhythm.kind {
            let period = u64::from(period);
            if rhythm.asked != Some(due) {
                rhythm.point = period + if late >= rhythm.grace { now } else { due };
                rhythm.put_off = 0;
            } else if late < rhythm.grace {
                rhythm.point += period;
                rhythm.put_off = 0;
            } else {
                let come = (rhythm.point..=now).step_by(period as usize).count() as u64;
                let made = match rhythm.policy {
                    Missed::Skip | Missed::AtMost(0) => u64::from(rhythm.put_off == 3),
                    Missed::Once => 1,
                    Missed::AtMost(most) => come.min(most),
                    _ => come,
                };
                rhythm.missed += come - made;
                if made == 0 {
                    rhythm.put_off += 1;
                    rhythm.point += come * period;
                    rhythm.asked = Some(rhythm.point);
                    let timer = Timer {
                        due: rhythm.point,
                        rhythm: Some(rhythm),
                    };
                    self.timers.insert(key, timer);
                    return;
                }
                rhythm.put_off = 0;
                // The latest ones are made up for, each with a deadline of its own.
                due += (come - made) * period;
                rhythm.point += (come - made + 1) * period;
            }
        }
        rhythm.number += 1;
        let missed = std::mem::take(&mut rhythm.missed);
        self.ran
            .push((key, due, now, Some((rhythm.number, missed))));
        rhythm.asked = None;
        let answer = rhythm.answers[rhythm.number as usize % rhythm.answers.len()];
        let next = match answer {
            Answer::Again => {
                let next = match rhythm.kind {
                    Kind::Rate(_) => rhythm.point,
                    Kind::Delay(delay) => now + u64::from(delay),
                };
                rhythm.asked = Some(next);
                next
            }
            Answer::After(delay) | Answer::Move(delay) => now + u64::from(delay),
            Answer::Stop | Answer::Cancel => return,
            Answer::Replace(delay) => {
                let due = now + u64::from(delay);
                self.arm(key, Timer { due, rhythm: None });
                return;
            }
        };
        self.arm(
            key,
            Timer {
                due: next,
                rhythm: Some(rhythm),
            },
        );
    }
}

// === both ===

struct Pair {
    scheduler: Stepped<Key>,
    ran: Arc<Mutex<Vec<Ran>>>,
    model: Model,
}

fn ticks(time: Time) -> u64 {
    assert_eq!(u128::from(time.as_nanos()) % T.as_nanos(), 0);
    u64::try_from(u128::from(time.as_nanos()) / T.as_nanos()).unwrap()
}

impl Pair {
    fn new(seed: u64) -> Self {
        let scheduler = Scheduler::<Key>::builder().shards(2).stripes(2);
        Pair {
            scheduler: scheduler.build_stepped(seed).unwrap(),
            ran: Arc::default(),
            model: Model::default(),
        }
    }

    fn schedule(&self, key: Key, delay: u32) {
        let ran = Arc::clone(&self.ran);
        let timers = self.scheduler.handle();
        let armed = timers.schedule(key, delay * T, move |firing| {
            let at = firing.deadline() + firing.lateness();
            let line = (key, ticks(firing.deadline()), ticks(at), None);
            ran.lock().unwrap().push(line);
        });
        armed.unwrap();
    }

    fn repeat(&self, key: Key, period: Period, answers: Vec<Answer>) {
        let ran = Arc::clone(&self.ran);
        let armed = self.scheduler.handle().repeat(key, period, move |round| {
            let at = round.deadline() + round.lateness();
            let told = Some((round.number(), round.missed()));
            let line = (key, ticks(round.deadline()), ticks(at), told);
            ran.lock().unwrap().push(line);
            let timers = round.handle();
            match answers[round.number() as usize % answers.len()] {
                Answer::Again => Next::Again,
                Answer::After(delay) => Next::After(delay * T),
                Answer::Stop => Next::Stop,
                Answer::Move(delay) => {
                    let before = round.deadline();
                    let moved = timers.reschedule(&key, delay * T);
                    assert_eq!(moved, Reschedule::Moved { before });
                    Next::Stop
                }
                Answer::Cancel => {
                    assert_eq!(timers.cancel(&key), Cancel::Running);
                    Next::Again
                }
                Answer::Replace(delay) => {
                    let ran = Arc::clone(&ran);
                    let armed = timers.schedule(key, delay * T, move |firing| {
                        let at = firing.deadline() + firing.lateness();
                        let line = (key, ticks(firing.deadline()), ticks(at), None);
                        ran.lock().unwrap().push(line);
                    });
                    assert!(armed.unwrap().after_run);
                    Next::Again
                }
            }
        });
        armed.unwrap();
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Repeat {
                key,
                kind,
                first,
                grace,
                policy,
                answers,
            } => {
                let (length, mut period) = match kind {
                    Kind::Rate(length) => (length, Period::fixed_rate(length * T)),
                    Kind::Delay(length) => (length, Period::fixed_delay(length * T)),
                };
                period = period.first(first * T);
                // A delay has neither.
                if let Kind::Rate(_) = kind {
                    period = period.missed(policy);
                    if let Some(grace) = grace {
                        period = period.grace(grace * T);
                    }
                }
                let due = self.model.now + u64::from(first);
                let rhythm = Rhythm {
                    kind,
                    grace: u64::from(grace.unwrap_or(length).max(2)),
                    policy,
                    answers: answers.clone(),
                    asked: Some(due),
                    point: due,
                    number: 0,
                    missed: 0,
                    put_off: 0,
                };
                let rhythm = Some(rhythm);
                self.model.arm(key, Timer { due, rhythm });
                self.repeat(key, period, answers);
            }
            Step::Schedule(key, delay) => {
                let due = self.model.now + u64::from(delay);
                self.model.arm(key, Timer { due, rhythm: None });
                self.schedule(key, delay);
            }
            Step::Reschedule(key, delay) => {
                let due = self.model.now + u64::from(delay);
                let known = self.model.timers.get_mut(&key);
                let before = known.map(|timer| std::mem::replace(&mut timer.due, due));
                let expected = match before {
                    Some(before) => Reschedule::Moved { before: at(before) },
                    None => Reschedule::NotFound,
                };
                let moved = self.scheduler.handle().reschedule(&key, delay * T);
                assert_eq!(moved, expected);
            }
            Step::Cancel(key) => {
                let known = self.model.timers.remove(&key);
                self.model.cancelled += u64::from(known.is_some());
                let expected = match known {
                    Some(timer) => Cancel::Cancelled {
                        deadline: at(timer.due),
                        running: false,
                    },
                    None => Cancel::NotFound,
                };
                assert_eq!(self.scheduler.handle().cancel(&key), expected);
            }
            Step::Advance(by) => {
                let to = self.model.now + u64::from(by);
                while self.model.now < to {
                    self.model.settle();
                    self.model.now += 1;
                }
                self.scheduler.advance(by * T);
            }
            Step::Jump(by) => {
                // What is due when the pause begins has run by then.
                self.model.settle();
                self.scheduler.settle();
                self.model.now += u64::from(by);
                self.scheduler.jump_to(at(self.model.now));
            }
        }
        self.model.settle();
        self.scheduler.settle();
        self.look();
    }

    fn look(&mut self) {
        // Of what runs at one moment the order is not defined, but for the rounds of one key.
        let mut ran = std::mem::take(&mut *self.ran.lock().unwrap());
        let mut expected = std::mem::take(&mut self.model.ran);
        ran.sort_by_key(|ran| (ran.2, ran.0));
        expected.sort_by_key(|ran| (ran.2, ran.0));
        assert_eq!(ran, expected);
        let timers = self.scheduler.handle();
        let found: BTreeMap<Key, u64> = timers
            .pending()
            .map(|(key, info)| (key, ticks(info.deadline)))
            .collect();
        let known = self.model.timers.iter();
        let known: BTreeMap<Key, u64> = known.map(|(key, timer)| (*key, timer.due)).collect();
        assert_eq!(found, known);
        let stats = timers.stats();
        assert!(stats.balances());
        assert_eq!((stats.panicked, stats.running), (0, 0));
        assert_eq!(stats.scheduled, self.model.scheduled);
        assert_eq!(stats.cancelled, self.model.cancelled);
        assert_eq!(stats.replaced, self.model.replaced);
        assert_eq!(stats.pending, known.len() as u64);
    }
}

fn at(ticks: u64) -> Time {
    Time::ZERO + Duration::from_millis(ticks)
}

fn key() -> impl Strategy<Value = Key> {
    0..3_u64
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        12 => Just(Answer::Again),
        2 => (1..30_u32).prop_map(Answer::After),
        1 => Just(Answer::Stop),
        2 => (1..30_u32).prop_map(Answer::Move),
        1 => Just(Answer::Cancel),
        1 => (0..30_u32).prop_map(Answer::Replace),
    ]
}

fn repeat() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        4 => (1..20_u32).prop_map(Kind::Rate),
        1 => (1..20_u32).prop_map(Kind::Delay),
    ];
    let policies = [
        Missed::Skip,
        Missed::Once,
        Missed::AtMost(0),
        Missed::AtMost(3),
        Missed::All,
    ];
    let grace = proptest::option::of(0..50_u32);
    let answers = prop::collection::vec(answer(), 1..8);
    (
        key(),
        kind,
        0..30_u32,
        grace,
        select(policies.to_vec()),
        answers,
    )
        .prop_map(|(key, kind, first, grace, policy, answers)| Step::Repeat {
            key,
            kind,
            first,
            grace,
            policy,
            answers,
        })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => repeat(),
        1 => (key(), 0..50_u32).prop_map(|(key, delay)| Step::Schedule(key, delay)),
        2 => (key(), 0..50_u32).prop_map(|(key, delay)| Step::Reschedule(key, delay)),
        1 => key().prop_map(Step::Cancel),
        4 => (0..100_u32).prop_map(Step::Advance),
        4 => (0..300_u32).prop_map(Step::Jump),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn repeating_timers_are_what_the_model_says(
        seed in 0..100_u64,
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut pair = Pair::new(seed);
        for step in steps {
            pair.step(step);
        }
    }
}
