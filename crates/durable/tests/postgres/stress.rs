//! Schedulers, movers, transactions of users and nodes that die, all at one time: nothing is early,
//! lost or done twice, and no key has two runs.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tourbillon_durable::store::{
    Action, Answer, Call, Claim, ClaimedRun, Connection, Epoch, NewNode, Offset, Outcome, Page,
    Poll, Range, SHARDS, Settle, Settled, Settlement, Store, StoreTime, Wanted,
};
use tourbillon_durable::{DueAt, Postgres};

use crate::cluster::{self, Database};

const QUEUE: &str = "stress";
const SCHEDULERS: usize = 3;
const NODES: usize = 3;
const KEYS: usize = 12;
const ROUNDS: usize = 120;
const HOUR: Duration = Duration::from_secs(3_600);

/// What became of one payload, whose number is its key here.
#[derive(Debug, Default)]
struct Life {
    /// The due times that were accepted.
    accepted: HashSet<StoreTime>,
    /// The due times that its runs were planned for.
    planned: HashSet<StoreTime>,
    /// Settled as done.
    done: u32,
    /// The answer said that it never starts any more.
    ended: bool,
    /// Something else was scheduled, or it was cancelled, while it ran.
    superseded: bool,
    /// Its transaction was rolled back.
    undone: bool,
    /// Its key was not found later.
    missed: bool,
}

/// What all threads write down.
#[derive(Default)]
struct Journal {
    lives: Mutex<HashMap<i64, Life>>,
    /// The runs that have begun and are not about to be settled.
    active: Mutex<HashMap<Box<str>, Epoch>>,
    /// How often each node left, was declared gone, or is being declared gone. A node that lives
    /// has 0 in the end.
    gone: Mutex<HashMap<Epoch, u32>>,
    payload: AtomicI64,
    epoch: AtomicI64,
    crashes: AtomicUsize,
    schedulers: AtomicUsize,
    stop: AtomicBool,
}

impl Journal {
    fn life(&self, payload: i64, change: impl FnOnce(&mut Life)) {
        change(self.lives.lock().unwrap().entry(payload).or_default());
    }

    fn may_be_gone(&self, epoch: Epoch) {
        *self.gone.lock().unwrap().entry(epoch).or_default() += 1;
    }

    fn lives_after_all(&self, epoch: Epoch) {
        *self
            .gone
            .lock()
            .unwrap()
            .get_mut(&epoch)
            .expect("it was noted") -= 1;
    }

    fn payload(&self) -> i64 {
        self.payload.fetch_add(1, Ordering::SeqCst) + 1
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % end
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// What a scheduler knows of a key of its own.
#[derive(Clone, Copy, Default)]
struct Known {
    /// The payload that was scheduled last.
    last: Option<i64>,
}

/// Notes the answer to a call on a key that this thread alone uses.
fn note(journal: &Journal, known: &mut Known, new: Option<i64>, answer: Answer) {
    match answer {
        Answer::Scheduled {
            due,
            replaced,
            running,
            ..
        } => {
            if let Some(last) = known.last {
                journal.life(last, |life| match (running, replaced) {
                    (true, None) => life.superseded = true,
                    (_, Some(_)) => life.ended = true,
                    (false, None) => life.missed = true,
                });
            }
            let new = new.expect("it was a schedule");
            journal.life(new, |life| {
                life.accepted.insert(due);
            });
            known.last = Some(new);
        }
        Answer::Moved { to, .. } => journal.life(known.last.expect("there is one"), |life| {
            life.accepted.insert(to);
        }),
        Answer::Cancelled { .. } => {
            journal.life(known.last.expect("there is one"), |life| life.ended = true);
            known.last = None;
        }
        Answer::Running { .. } | Answer::Exists { .. } => {}
        Answer::NotFound => {
            if let Some(last) = known.last.take() {
                journal.life(last, |life| life.missed = true);
            }
        }
        answer => panic!("{answer:?}"),
    }
}

fn schedule(when: DueAt, payload: i64) -> Action {
    Action::Schedule {
        when,
        payload: payload.to_string().into(),
    }
}

fn scheduler(store: &Postgres, journal: &Journal, number: usize) {
    let mut connection = store.connect().expect("the store answers");
    let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ (number as u64 + 1));
    let mut known = [Known::default(); KEYS];
    for round in 0..=ROUNDS {
        let last = round == ROUNDS;
        let mut calls = Vec::new();
        for key in 0..KEYS {
            if !last && !random.chance(50) {
                continue;
            }
            let when = match random.below(4) {
                0 => DueAt::After(HOUR),
                1 => DueAt::After(Duration::from_millis(random.below(20) as u64)),
                _ => DueAt::After(Duration::ZERO),
            };
            // The call after the last round leaves nothing that waits for an hour.
            let (action, new) = match random.below(if last { 1 } else { 10 }) {
                0 => (Action::Cancel, None),
                1 | 2 => (Action::Reschedule { when }, None),
                _ => {
                    let new = journal.payload();
                    (schedule(when, new), Some(new))
                }
            };
            calls.push((key, action, new));
        }
        let sent: Vec<Call> = calls
            .iter()
            .map(|(key, action, _)| Call {
                queue: QUEUE.into(),
                key: format!("{number}:{key}").into(),
                action: action.clone(),
            })
            .collect();
        let answers = connection.write(&sent).expect("the store answers");
        for ((key, _, new), answer) in calls.into_iter().zip(answers) {
            match answer {
                Ok(Answer::Running { .. })
                    if matches!(sent_action(&sent, number, key), Action::Cancel) =>
                {
                    if let Some(last) = known[key].last {
                        journal.life(last, |life| life.superseded = true);
                    }
                }
                Ok(answer) => note(journal, &mut known[key], new, answer),
                Err(refusal) => panic!("{refusal:?}"),
            }
        }
    }
    journal.schedulers.fetch_sub(1, Ordering::SeqCst);
}

fn sent_action(sent: &[Call], number: usize, key: usize) -> &Action {
    let name = format!("{number}:{key}");
    let call = sent.iter().find(|call| *call.key == *name);
    &call.expect("it was sent").action
}

/// Schedules within transactions, half of which are rolled back, and holds the locks for a while.
fn user(store: &Postgres, database: &Database, journal: &Journal) {
    let mut client = database.client();
    let mut random = Random(77);
    let mut known = [Known::default(); KEYS];
    for _ in 0..ROUNDS {
        let mut transaction = client.transaction().expect("the server answers");
        let key = random.below(KEYS);
        let name = format!("user:{key}");
        let new = journal.payload();
        let delay = Duration::from_millis(random.below(3) as u64);
        let answer = store
            .in_transaction(&mut transaction)
            .schedule(QUEUE, &name, delay, &new);
        let answer = answer.expect("the server answers");
        if random.chance(50) {
            transaction.rollback().expect("the server answers");
            journal.life(new, |life| life.undone = true);
            continue;
        }
        transaction.commit().expect("the server answers");
        let answer = Answer::Scheduled {
            due: answer.due.into(),
            shard: 0,
            replaced: answer.replaced.map(StoreTime::from),
            running: answer.running,
        };
        note(journal, &mut known[key], Some(new), answer);
    }
    journal.schedulers.fetch_sub(1, Ordering::SeqCst);
}

fn join(connection: &mut dyn Connection, journal: &Journal) -> Epoch {
    let epoch = Epoch(journal.epoch.fetch_add(1, Ordering::SeqCst) + 1);
    let node = NewNode {
        epoch,
        name: "stress".to_owned(),
        queues: vec![QUEUE.into()],
        schedules: Default::default(),
    };
    connection.join(&node).expect("the store answers");
    epoch
}

/// Notes that a run begins: no node that may live runs the key.
///
/// Whoever declares a node gone writes that down before. So if another node has claimed the run
/// since, `epoch` stands among those that are gone, and what begins here is the run of a node that
/// is late.
fn begin(journal: &Journal, run: &ClaimedRun, epoch: Epoch, now: StoreTime) {
    assert!(run.due <= now, "early by {:?}", run.due.since(now));
    let payload: i64 = run.payload.parse().expect("a number");
    journal.life(payload, |life| {
        life.planned.insert(run.planned);
    });
    let mut active = journal.active.lock().unwrap();
    // Read under the lock of the runs: a run that is seen there was claimed before.
    let gone = journal.gone.lock().unwrap();
    let is_gone = |epoch| gone.get(epoch).is_some_and(|&times| times > 0);
    if is_gone(&epoch) {
        return;
    }
    if let Some(before) = active.insert(run.run.key.clone(), epoch) {
        assert!(
            is_gone(&before),
            "{:?} runs on two nodes: {before:?} and {epoch:?}",
            run.run
        );
    }
}

fn node(store: &Postgres, journal: &Journal, number: usize) {
    let mut connection = store.connect().expect("the store answers");
    let connection = &mut *connection;
    let mut random = Random(0xD1B5_4A32_D192_ED03 ^ (number as u64 + 1));
    let mut epoch = join(connection, journal);
    let ranges = || {
        let range = |shard| Range {
            queue: QUEUE.into(),
            shard,
            mark: None,
            until: Offset::Ahead(Duration::from_millis(5)),
            limit: 20,
        };
        (0..SHARDS).map(range).collect()
    };
    while !journal.stop.load(Ordering::SeqCst) {
        let poll = Poll {
            epoch,
            ranges: ranges(),
            bands: Vec::new(),
            complete: true,
        };
        let snapshot = connection.poll(&poll).expect("the store answers");
        let wanted = snapshot
            .rows
            .iter()
            .filter(|seen| !seen.mine)
            .map(|seen| Wanted {
                queue: seen.queue.clone(),
                key: seen.key.clone(),
                crash_limit: 1_000,
            });
        let claim = Claim {
            epoch,
            deadline: snapshot.now + Duration::from_secs(60),
            timers: wanted.collect(),
            adopt: Vec::new(),
        };
        let claimed = connection.claim(&claim).expect("the store answers");
        for run in &claimed.runs {
            begin(journal, run, epoch, claimed.now);
        }
        if claimed.gone {
            epoch = join(connection, journal);
            continue;
        }
        if random.chance(5) {
            // Another node is declared gone in the middle of its work.
            let others: Vec<_> = snapshot
                .nodes
                .iter()
                .filter(|node| node.epoch != epoch)
                .collect();
            if !others.is_empty() {
                let other = others[random.below(others.len())];
                journal.may_be_gone(other.epoch);
                let declared = connection.declare_gone(epoch, other.epoch, other.beat);
                if declared.expect("the store answers") {
                    journal.crashes.fetch_add(1, Ordering::SeqCst);
                } else {
                    journal.lives_after_all(other.epoch);
                }
            }
        }
        if random.chance(5) {
            // This one dies with its claims.
            journal.may_be_gone(epoch);
            connection.leave(epoch).expect("the store answers");
            epoch = join(connection, journal);
            continue;
        }
        connection.beat(epoch).expect("the store answers");
        settle(connection, journal, &mut random, epoch, &claimed.runs);
    }
}

fn settle(
    connection: &mut dyn Connection,
    journal: &Journal,
    random: &mut Random,
    epoch: Epoch,
    runs: &[ClaimedRun],
) {
    let mut settlements = Vec::new();
    for run in runs {
        let mut active = journal.active.lock().unwrap();
        if active.get(&run.run.key) == Some(&epoch) {
            active.remove(&run.run.key);
        }
        drop(active);
        let outcome = match random.below(10) {
            0 => Outcome::Retry(Duration::ZERO),
            1 => Outcome::GiveBack(Duration::ZERO),
            _ => Outcome::Done,
        };
        let run = run.run.clone();
        settlements.push(Settlement { run, outcome });
    }
    while !settlements.is_empty() {
        let ends = Settle { epoch, settlements };
        let settled = connection.settle(&ends).expect("the store answers");
        settlements = Vec::new();
        for (end, settled) in ends.settlements.into_iter().zip(settled) {
            let run = runs
                .iter()
                .find(|run| run.run == end.run)
                .expect("it was claimed");
            match settled.expect("not refused") {
                Settled::Locked => settlements.push(end),
                Settled::Ended if end.outcome == Outcome::Done => {
                    let payload = run.payload.parse().expect("a number");
                    journal.life(payload, |life| life.done += 1);
                }
                _ => {}
            }
        }
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn nothing_is_early_lost_or_done_twice_among_many() {
    let database = Arc::new(cluster::database());
    let store = Postgres::connect(&database.url()).expect("the cluster answers");
    let journal = Arc::new(Journal::default());
    journal.schedulers.store(SCHEDULERS + 1, Ordering::SeqCst);
    let mut threads = Vec::new();
    for number in 0..SCHEDULERS {
        let (store, journal) = (store.clone(), Arc::clone(&journal));
        threads.push(thread::spawn(move || scheduler(&store, &journal, number)));
    }
    let (of_user, to_user) = (Arc::clone(&database), Arc::clone(&journal));
    let own = store.clone();
    threads.push(thread::spawn(move || user(&own, &of_user, &to_user)));
    for number in 0..NODES {
        let (store, journal) = (store.clone(), Arc::clone(&journal));
        threads.push(thread::spawn(move || node(&store, &journal, number)));
    }
    let mut connection = store.connect().expect("the store answers");
    kit::wait::until("all timers have run", || {
        let failed = threads
            .iter()
            .any(|thread| thread.is_finished() && journal.schedulers.load(Ordering::SeqCst) > 0)
            && threads.iter().filter(|thread| thread.is_finished()).count()
                > SCHEDULERS + 1 - journal.schedulers.load(Ordering::SeqCst);
        let ended = journal.schedulers.load(Ordering::SeqCst) == 0
            && journal.crashes.load(Ordering::SeqCst) > 0;
        failed
            || ended
                && connection
                    .list(&Page::first(QUEUE, 1))
                    .expect("it reads")
                    .is_empty()
    });
    journal.stop.store(true, Ordering::SeqCst);
    for thread in threads {
        thread.join().expect("no thread has found a fault");
    }

    let lives = journal.lives.lock().unwrap();
    let mut done = 0;
    for (payload, life) in lives.iter() {
        assert!(life.done <= 1, "{payload} is done twice: {life:?}");
        let is_ended = life.ended && !life.superseded;
        assert!(
            !life.undone || life.planned.is_empty(),
            "{payload} was rolled back: {life:?}"
        );
        assert!(
            life.planned.is_subset(&life.accepted),
            "{payload} was planned for another time: {life:?}"
        );
        if !life.undone && !is_ended && !life.superseded {
            assert_eq!(life.done, 1, "{payload} is lost: {life:?}");
        }
        if is_ended {
            assert_eq!(life.done, 0, "{payload} was done after its end: {life:?}");
        }
        done += life.done;
    }
    let crashes = journal.crashes.load(Ordering::SeqCst);
    println!(
        "{} payloads, {done} done, {crashes} nodes declared gone",
        lives.len()
    );
    assert!(done > 0);
}
