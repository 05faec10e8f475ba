//! The row against a plain model, by all sequences of a few calls.
//!
//! In the model the run and the timer that follows it lie side by side, so it is plain that neither
//! harms the other one. The row has room for one of them. Every answer, every read and every run
//! has to be the same.

use super::*;
use crate::store::{DueAt, Meta, Next};

/// The node that dies. Its next life has the next epoch.
const MORTAL: Epoch = Epoch(10);
const OTHER: Epoch = Epoch(1);
const CRASH_LIMIT: u32 = 2;

/// A timer without its place.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Plain {
    due: StoreTime,
    planned: StoreTime,
    attempt: u32,
    fails: u32,
    crashes: u32,
    payload: u32,
}

fn plain(due: StoreTime, payload: u32) -> Plain {
    Plain {
        due,
        planned: due,
        attempt: 0,
        fails: 0,
        crashes: 0,
        payload,
    }
}

/// A key, with what waits beside what runs.
#[derive(Clone, Default, Debug)]
struct Sides {
    /// What waits, also for the end of a run.
    waits: Option<Plain>,
    /// What a node has claimed.
    runs: Option<(Plain, Hold)>,
    cancelled: bool,
}

impl Sides {
    /// The node of the run has died. What waits replaces what it ran.
    fn lose_run(&mut self) {
        let Some((mut run, _)) = self.runs.take() else {
            return;
        };
        run.crashes += 1;
        if self.waits.is_none() && !self.cancelled {
            self.waits = Some(run);
        }
        self.cancelled = false;
    }

    fn shown_due(&self) -> Option<StoreTime> {
        let run = self.runs.as_ref().map(|(run, _)| run.due);
        self.waits.as_ref().map(|waits| waits.due).or(run)
    }

    fn running(&self) -> Option<Answer> {
        self.runs.as_ref().map(|(run, hold)| Answer::Running {
            attempt: run.attempt,
            since: hold.since,
        })
    }

    fn schedule(&mut self, due: StoreTime, payload: u32) -> Answer {
        self.cancelled = false;
        let replaced = self.waits.replace(plain(due, payload));
        Answer::Scheduled {
            due,
            shard: 9,
            replaced: replaced.map(|old| old.due),
            running: self.runs.is_some(),
        }
    }

    fn schedule_if_absent(&mut self, due: StoreTime, payload: u32) -> Answer {
        match self.shown_due() {
            Some(due) => Answer::Exists {
                due,
                running: self.runs.is_some(),
            },
            None => self.schedule(due, payload),
        }
    }

    fn reschedule(&mut self, to: StoreTime) -> Answer {
        let running = self.runs.is_some();
        let Some(waits) = &mut self.waits else {
            return self.running().unwrap_or(Answer::NotFound);
        };
        let from = waits.due;
        *waits = Plain {
            attempt: waits.attempt,
            ..plain(to, waits.payload)
        };
        Answer::Moved {
            from,
            to,
            shard: 9,
            running,
        }
    }

    fn cancel(&mut self) -> Answer {
        let waited = self.waits.take();
        match (self.running(), waited) {
            (Some(running), _) => {
                self.cancelled = true;
                running
            }
            (None, Some(waited)) => Answer::Cancelled { due: waited.due },
            (None, None) => Answer::NotFound,
        }
    }

    /// Returns what runs, or what became a dead letter.
    fn claim(&mut self, epoch: Epoch, now: StoreTime) -> Option<(Plain, bool)> {
        if self.runs.is_some() {
            return None;
        }
        let waits = self.waits.take()?;
        if waits.crashes >= CRASH_LIMIT {
            return Some((waits, false));
        }
        if waits.due > now {
            self.waits = Some(waits);
            return None;
        }
        let run = Plain {
            attempt: waits.attempt + 1,
            ..waits
        };
        let hold = Hold { epoch, since: now };
        self.runs = Some((run.clone(), hold));
        Some((run, true))
    }

    fn settle(&mut self, outcome: &Outcome, now: StoreTime) -> Settled {
        let (run, _) = self.runs.take().expect("it runs");
        if let Some(waits) = &mut self.waits {
            waits.due = waits.due.max(now);
            return Settled::Ended;
        }
        if std::mem::take(&mut self.cancelled) {
            return Settled::Ended;
        }
        match outcome {
            Outcome::Done => return Settled::Ended,
            Outcome::Dead(_) => return Settled::Buried,
            Outcome::Next(next) => self.waits = Some(occurrence(next, now, run.payload)),
            Outcome::DeadThen(_, next) => {
                self.waits = Some(occurrence(next, now, run.payload));
                return Settled::Buried;
            }
            Outcome::Again(after) => self.waits = Some(plain(now + *after, run.payload)),
            Outcome::Retry(after) => {
                self.waits = Some(Plain {
                    due: now + *after,
                    fails: run.fails + 1,
                    ..run
                });
            }
            Outcome::GiveBack(after) => {
                self.waits = Some(Plain {
                    due: run.due.max(now + *after),
                    ..run
                });
            }
            // A timer without a schedule is given back.
            Outcome::Step(_) => {
                self.waits = Some(Plain {
                    due: run.due.max(now),
                    ..run
                });
            }
        }
        Settled::Waits
    }
}

#[derive(Clone, Debug)]
enum Step {
    Schedule(u64),
    IfAbsent,
    Reschedule,
    Cancel,
    Claim(Epoch),
    /// The node asks for its run again, whose answer was lost.
    Adopt,
    Settle(Outcome),
    /// A late or repeated end of the first run.
    SettleFirst,
    /// The mortal node dies, and comes back under another epoch.
    Die,
}

/// The row with what surrounds it.
#[derive(Default)]
struct RowInStore {
    row: Option<Row>,
    generation: i64,
    now: i64,
    deaths: i64,
    /// All runs, each with the payload that its node has.
    runs: Vec<(Epoch, i64, u32, u32)>,
}

impl RowInStore {
    fn mortal(&self) -> Epoch {
        Epoch(MORTAL.0 + self.deaths)
    }

    fn is_live(&self, epoch: Epoch) -> bool {
        epoch == OTHER || epoch == self.mortal()
    }

    fn now(&self) -> StoreTime {
        StoreTime::from_micros(self.now)
    }

    fn decide<T>(&mut self, decide: impl FnOnce(Option<Row>, &mut StoreContext<'_>) -> T) -> T {
        let (now, mortal) = (self.now(), self.mortal());
        decide(
            self.row.clone(),
            &mut StoreContext {
                now,
                is_live: &|epoch| epoch == OTHER || epoch == mortal,
                generation: &mut || {
                    self.generation += 1;
                    self.generation
                },
            },
        )
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Keep => {}
            Change::Put(row) | Change::BuryThen { row, .. } => self.row = Some(row),
            Change::Delete | Change::Bury(..) => self.row = None,
        }
    }

    fn call(&mut self, action: Action) -> Answer {
        let (change, answer) = self.decide(|row, context| apply(row, 9, action, context));
        self.change(change);
        answer
    }

    fn claim(&mut self, epoch: Epoch) -> Option<(Plain, bool)> {
        self.row.as_ref()?;
        let claiming = self
            .decide(|row, context| claim(row.expect("it is there"), epoch, CRASH_LIMIT, context));
        match claiming {
            Claiming::Run(row) => {
                let run = as_plain(&row);
                let fence = (epoch, row.generation, row.attempt);
                let is_new = |run: &&(Epoch, i64, u32, u32)| (run.0, run.1, run.2) != fence;
                assert_eq!(self.runs.iter().filter(is_new).count(), self.runs.len());
                self.runs.push((epoch, fence.1, fence.2, run.payload));
                self.row = Some(row);
                Some((run, true))
            }
            Claiming::Not(Change::Bury(row, _)) => {
                self.row = None;
                Some((as_plain(&row), false))
            }
            Claiming::Not(change) => {
                self.change(change);
                None
            }
        }
    }

    /// The run that holds the row.
    fn held(&self) -> Option<&(Epoch, i64, u32, u32)> {
        let row = self.row.as_ref()?;
        let holds = |run: &&(Epoch, i64, u32, u32)| is_held(row, run.0, run.1, run.2);
        self.runs
            .iter()
            .find(|run| holds(run) && self.is_live(run.0))
    }

    fn settle(&mut self, outcome: &Outcome) -> Settled {
        let (change, settled) =
            self.decide(|row, context| settle(row.expect("it is held"), outcome, context));
        self.change(change);
        settled
    }
}

fn as_plain(row: &Row) -> Plain {
    Plain {
        due: row.due,
        planned: row.planned,
        attempt: row.attempt,
        fails: row.fails,
        crashes: row.crashes,
        payload: row.payload.parse().expect("it is a number"),
    }
}

fn check_reads(store: &RowInStore, sides: &Sides, history: &[Step]) {
    let read = store.row.as_ref();
    let read = read.and_then(|row| {
        timer(
            "q",
            "k",
            row,
            false,
            StoreTime::from_micros(store.now),
            &|epoch| store.is_live(epoch).then(String::new),
        )
    });
    assert_eq!(read.is_some(), sides.shown_due().is_some(), "{history:?}");
    let Some(read) = read else { return };
    let (run, waits) = (sides.runs.as_ref(), sides.waits.as_ref());
    assert_eq!(read.running, run.map(|(_, hold)| hold.since), "{history:?}");
    assert_eq!(read.cancelled, sides.cancelled, "{history:?}");
    assert_eq!(
        read.follows,
        run.is_some() && waits.is_some(),
        "{history:?}"
    );
    let counted = run.map(|(run, _)| run).or(waits).expect("there is one");
    assert_eq!(
        (read.attempt, read.fails),
        (counted.attempt, counted.fails),
        "{history:?}"
    );
    // After a cancel nobody needs the due time and the payload of the run.
    if let Some(shown) = waits.or(counted.into()).filter(|_| !sides.cancelled) {
        let payload = shown.payload.to_string();
        assert_eq!(
            (read.due, read.planned, read.payload),
            (shown.due, shown.planned, payload),
            "{history:?}"
        );
    }
}

/// Plays a sequence on both sides. Returns how many runs there were, and how many were followed.
fn play(steps: &[Step]) -> (usize, usize) {
    let (mut store, mut sides, mut followed) = (RowInStore::default(), Sides::default(), 0);
    for (number, step) in steps.iter().enumerate() {
        let history = &steps[..=number];
        store.now += 1;
        let now = store.now();
        let given = u32::try_from(number).expect("few steps");
        let payload = || Payload::from(given.to_string());
        let after = |micros| Duration::from_micros(micros);
        match step {
            Step::Schedule(micros) => {
                let when = DueAt::After(after(*micros));
                let payload = payload();
                let answer = store.call(Action::Schedule { when, payload });
                assert_eq!(
                    answer,
                    sides.schedule(now + after(*micros), given),
                    "{history:?}"
                );
            }
            Step::IfAbsent => {
                let when = DueAt::After(after(1));
                let payload = payload();
                let answer = store.call(Action::ScheduleIfAbsent { when, payload });
                match answer {
                    // A cancelled run tells the due time that the row has.
                    Answer::Exists { running, .. } if sides.cancelled => assert!(running),
                    answer => {
                        let expected = sides.schedule_if_absent(now + after(1), given);
                        assert_eq!(answer, expected, "{history:?}");
                    }
                }
            }
            Step::Reschedule => {
                let when = DueAt::After(after(1));
                let answer = store.call(Action::Reschedule { when });
                assert_eq!(answer, sides.reschedule(now + after(1)), "{history:?}");
            }
            Step::Cancel => {
                assert_eq!(store.call(Action::Cancel), sides.cancel(), "{history:?}");
            }
            Step::Claim(epoch) => {
                let epoch = match *epoch {
                    MORTAL => store.mortal(),
                    epoch => epoch,
                };
                assert_eq!(store.claim(epoch), sides.claim(epoch, now), "{history:?}");
            }
            Step::Adopt => {
                // The node gets what it claimed, and no other payload.
                if let (Some(run), Some(row)) = (store.held(), &store.row) {
                    let (own, _) = sides.runs.as_ref().expect("it runs");
                    assert_eq!(run.3, own.payload, "{history:?}");
                    let may = sides.waits.is_none() && !sides.cancelled;
                    assert_eq!(may_start(row), may, "{history:?}");
                    assert!(!may || as_plain(row) == *own, "{history:?}");
                }
            }
            Step::Settle(outcome) => {
                assert_eq!(store.held().is_some(), sides.runs.is_some(), "{history:?}");
                if store.held().is_some() {
                    followed += usize::from(sides.waits.is_some());
                    let settled = store.settle(outcome);
                    assert_eq!(settled, sides.settle(outcome, now), "{history:?}");
                }
            }
            Step::SettleFirst => {
                let first = store.runs.first().copied();
                if first.is_some() && first.as_ref() == store.held() {
                    store.settle(&Outcome::Done);
                    sides.settle(&Outcome::Done, now);
                }
            }
            Step::Die => {
                let mortal = store.mortal();
                store.deaths += 1;
                if sides
                    .runs
                    .as_ref()
                    .is_some_and(|(_, hold)| hold.epoch == mortal)
                {
                    sides.lose_run();
                }
            }
        }
        check_reads(&store, &sides, history);
    }
    (store.runs.len(), followed)
}

fn play_all(steps: &[Step], length: u32) -> (usize, usize) {
    let (mut runs, mut followed) = (0, 0);
    for sequence in 0..steps.len().pow(length) {
        let digits = (0..length).map(|place| sequence / steps.len().pow(place) % steps.len());
        let steps: Vec<Step> = digits.map(|digit| steps[digit].clone()).collect();
        let (more_runs, more_followed) = play(&steps);
        runs += more_runs;
        followed += more_followed;
    }
    (runs, followed)
}

/// The next occurrence of a schedule, which may have passed.
fn next(micros: i64) -> Box<Next> {
    Box::new(Next {
        due: StoreTime::from_micros(micros),
        meta: Meta::of_json("{}"),
    })
}

fn occurrence(next: &Next, now: StoreTime, payload: u32) -> Plain {
    Plain {
        planned: next.due,
        ..plain(next.due.max(now), payload)
    }
}

#[test]
fn one_row_says_what_two_would() {
    let second = Duration::from_micros(1);
    let all = [
        Step::Schedule(0),
        Step::Schedule(2),
        Step::IfAbsent,
        Step::Reschedule,
        Step::Cancel,
        Step::Claim(MORTAL),
        Step::Claim(OTHER),
        Step::Adopt,
        Step::Settle(Outcome::Done),
        Step::Settle(Outcome::Again(second)),
        Step::Settle(Outcome::Retry(Duration::ZERO)),
        Step::Settle(Outcome::Dead("broken".to_owned())),
        Step::Settle(Outcome::GiveBack(Duration::ZERO)),
        Step::Settle(Outcome::Next(next(0))),
        Step::SettleFirst,
        Step::Die,
    ];
    let (runs, followed) = play_all(&all, 5);
    assert!(runs > 100_000 && followed > 1_000, "{runs}, {followed}");
    let few = [0, 4, 5, 6, 8, 10, 15].map(|index| all[index].clone());
    let (runs, followed) = play_all(&few, 7);
    assert!(runs > 300_000 && followed > 10_000, "{runs}, {followed}");
}
