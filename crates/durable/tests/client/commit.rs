//! Group commit: calls of many threads travel together.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use kit::gate::Gate;
use tourbillon_durable::store::{
    Answer, Beat, Call, Claim, Claimed, Connection, DeadLetter, DeadPage, Epoch, NewNode, Page,
    Poll, QueueCounts, Revived, Settle, Settled, Store, StoreError, StoreSnapshot, StoredNode,
    Timer,
};
use tourbillon_durable::{CallError, CancelAnswer, Durable, Memory};

const SECOND: Duration = Duration::from_secs(1);

/// A memory with several writers, which notes its commits and refuses keys that begin with `bad`.
#[derive(Clone, Debug, Default)]
struct Watched {
    memory: Memory,
    writers: usize,
    /// Each commit passes, unless it is open.
    gate: Gate,
    commits: Arc<Mutex<Vec<Vec<String>>>>,
    /// How many answers too few a commit returns.
    too_few: usize,
    /// The keys whose rows a transaction of somebody else holds.
    locked: Arc<Mutex<HashSet<String>>>,
    lock_limit: Duration,
}

impl Watched {
    fn commits(&self) -> Vec<Vec<String>> {
        self.commits.lock().unwrap().clone()
    }

    fn lock(&self, keys: &[&str]) {
        let keys = keys.iter().map(|key| (*key).to_owned());
        self.locked.lock().unwrap().extend(keys);
    }

    fn unlock(&self) {
        self.locked.lock().unwrap().clear();
    }

    /// Waits until this key was sent a number of times.
    #[track_caller]
    fn sent(&self, key: &str, times: usize) {
        let start = Instant::now();
        let number = || {
            let commits = self.commits();
            commits.iter().flatten().filter(|one| *one == key).count()
        };
        while number() < times {
            assert!(start.elapsed() < SECOND * 60, "{key} was sent too rarely");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Store for Watched {
    fn connect(&self) -> Result<Box<dyn Connection>, StoreError> {
        let inner = self.memory.connect()?;
        Ok(Box::new(WatchedConnection(self.clone(), inner)))
    }

    fn writers(&self) -> usize {
        self.writers
    }

    fn lock_limit(&self) -> Duration {
        self.lock_limit
    }
}

struct WatchedConnection(Watched, Box<dyn Connection>);

impl Connection for WatchedConnection {
    fn write(&mut self, calls: &[Call]) -> Result<Vec<Result<Answer, StoreError>>, StoreError> {
        let keys = calls.iter().map(|call| call.key.to_string()).collect();
        self.0.commits.lock().unwrap().push(keys);
        self.0.gate.pass();
        let good: Vec<Call> = calls
            .iter()
            .filter(|call| !call.key.starts_with("bad"))
            .cloned()
            .collect();
        let mut answers = self.1.write(&good)?.into_iter();
        let mut all: Vec<_> = calls
            .iter()
            .map(|call| match call.key.starts_with("bad") {
                true => Err(StoreError::Refused("a bad key".into())),
                false => answers.next().unwrap(),
            })
            .collect();
        all.truncate(calls.len() - self.0.too_few);
        Ok(all)
    }

    fn try_write(&mut self, calls: &[Call]) -> Result<Vec<Result<Answer, StoreError>>, StoreError> {
        let locked = self.0.locked.lock().unwrap().clone();
        if locked.is_empty() {
            return self.write(calls);
        }
        let is_locked = |call: &Call| locked.contains(&*call.key);
        let free: Vec<Call> = calls
            .iter()
            .filter(|call| !is_locked(call))
            .cloned()
            .collect();
        let sent = calls.iter().filter(|call| is_locked(call));
        let sent: Vec<String> = sent.map(|call| call.key.to_string()).collect();
        if !sent.is_empty() {
            self.0.commits.lock().unwrap().push(sent);
        }
        let mut answers = match free.is_empty() {
            true => Vec::new().into_iter(),
            false => self.write(&free)?.into_iter(),
        };
        let answers = calls.iter().map(|call| match is_locked(call) {
            true => Err(StoreError::Locked("it is held".into())),
            false => answers.next().unwrap(),
        });
        Ok(answers.collect())
    }

    fn get(&mut self, queue: &str, key: &str) -> Result<Option<Timer>, StoreError> {
        self.1.get(queue, key)
    }
    fn list(&mut self, page: &Page) -> Result<Vec<Timer>, StoreError> {
        self.1.list(page)
    }
    fn counts(&mut self) -> Result<Vec<QueueCounts>, StoreError> {
        self.1.counts()
    }
    fn dead(&mut self, page: &DeadPage) -> Result<Vec<DeadLetter>, StoreError> {
        self.1.dead(page)
    }

    fn discard(&mut self, letters: &[i64]) -> Result<u64, StoreError> {
        self.1.discard(letters)
    }

    fn discard_old(&mut self, age: Duration, limit: u32) -> Result<u64, StoreError> {
        self.1.discard_old(age, limit)
    }

    fn nodes(&mut self) -> Result<Vec<StoredNode>, StoreError> {
        self.1.nodes()
    }
    fn revive(&mut self, letter: i64) -> Result<Revived, StoreError> {
        self.1.revive(letter)
    }
    fn pause_schedule(&mut self, queue: &str, key: &str, paused: bool) -> Result<bool, StoreError> {
        self.1.pause_schedule(queue, key, paused)
    }

    fn set_paused(&mut self, queue: &str, paused: bool) -> Result<(), StoreError> {
        self.1.set_paused(queue, paused)
    }
    fn join(&mut self, node: &NewNode) -> Result<(), StoreError> {
        self.1.join(node)
    }
    fn beat(&mut self, epoch: Epoch) -> Result<Option<Beat>, StoreError> {
        self.1.beat(epoch)
    }
    fn poll(&mut self, poll: &Poll) -> Result<StoreSnapshot, StoreError> {
        self.1.poll(poll)
    }
    fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.1.claim(claim)
    }
    fn settle(&mut self, settle: &Settle) -> Result<Vec<Result<Settled, StoreError>>, StoreError> {
        self.1.settle(settle)
    }
    fn declare_gone(&mut self, asking: Epoch, epoch: Epoch, beat: i64) -> Result<bool, StoreError> {
        self.1.declare_gone(asking, epoch, beat)
    }
    fn leave(&mut self, epoch: Epoch) -> Result<(), StoreError> {
        self.1.leave(epoch)
    }
}

/// A store at whose gate the first commit waits, with a call in that commit.
fn held_up() -> (Watched, Durable, tourbillon_durable::Sent<CancelAnswer>) {
    held_up_on(Watched::default())
}

fn held_up_on(store: Watched) -> (Watched, Durable, tourbillon_durable::Sent<CancelAnswer>) {
    let timers = Durable::builder(store.clone()).start().unwrap();
    let first = timers.cancel("q", "first");
    store.gate.crowd(1);
    (store, timers, first)
}

#[test]
fn calls_that_come_during_a_commit_share_the_next_one() {
    let (store, timers, first) = held_up();
    let threads: Vec<_> = (0..8)
        .map(|n| {
            let timers = timers.clone();
            thread::spawn(move || {
                let calls: Vec<_> = (0..10)
                    .map(|m| timers.schedule("q", &format!("{n}-{m}"), SECOND, &m))
                    .collect();
                // All are on their way.
                calls
            })
        })
        .collect();
    let calls: Vec<_> = threads
        .into_iter()
        .flat_map(|one| one.join().unwrap())
        .collect();
    store.gate.open();
    first.wait().unwrap();
    for call in calls {
        call.wait().unwrap();
    }
    let commits = store.commits();
    assert_eq!(commits.len(), 2);
    assert_eq!(commits[1].len(), 80);
    assert_eq!(timers.stats().commits, 2);
}

#[test]
fn a_commit_has_at_most_a_thousand_calls() {
    let (store, timers, first) = held_up();
    let calls: Vec<_> = (0..2_300)
        .map(|n| timers.schedule("q", &n.to_string(), SECOND, &n))
        .collect();
    store.gate.open();
    first.wait().unwrap();
    for call in calls {
        call.wait().unwrap();
    }
    let sizes: Vec<usize> = store.commits().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, 1_000, 1_000, 300]);
}

#[test]
fn calls_on_one_key_are_carried_out_in_their_order() {
    let (store, timers, first) = held_up();
    let (mut calls, mut others) = (Vec::new(), Vec::new());
    for n in 1..=20_u32 {
        calls.push(timers.schedule("q", "k", SECOND * 1_000 * n, &n));
        others.push(timers.schedule("q", &format!("other-{n}"), SECOND, &n));
    }
    store.gate.open();
    first.wait().unwrap();
    let mut before = None;
    for call in calls {
        let scheduled = call.wait().unwrap();
        assert_eq!(scheduled.replaced, before);
        before = Some(scheduled.due);
    }
    for other in others {
        other.wait().unwrap();
    }
    let last = timers.get("q", "k").wait().unwrap().unwrap();
    assert_eq!(last.payload_as::<u32>().unwrap(), 20);
    let commits = store.commits();
    for commit in &commits {
        let keys: HashSet<&String> = commit.iter().collect();
        assert_eq!(keys.len(), commit.len(), "a key twice in a commit");
    }
    // The others did not wait for all calls on the one key.
    assert_eq!(commits[1].len(), 21);
}

#[test]
fn the_same_key_of_two_queues_is_two_timers() {
    let (store, timers, first) = held_up();
    let calls = ["a", "b"].map(|queue| timers.schedule(queue, "k", SECOND, queue));
    store.gate.open();
    first.wait().unwrap();
    for call in calls {
        assert_eq!(call.wait().unwrap().replaced, None);
    }
    assert_eq!(store.commits()[1].len(), 2);
}

#[test]
fn a_bad_call_fails_alone() {
    let (store, timers, first) = held_up();
    let keys = ["a", "bad", "b", "bad-2", "c"];
    let calls = keys.map(|key| (key, timers.schedule("q", key, SECOND, &())));
    store.gate.open();
    first.wait().unwrap();
    for (key, call) in calls {
        match key.starts_with("bad") {
            true => assert_eq!(call.wait(), Err(CallError::Refused("a bad key".into()))),
            false => assert!(call.wait().is_ok()),
        }
    }
    assert_eq!(store.commits().len(), 2);
    let stats = timers.stats();
    assert_eq!((stats.scheduled, stats.failed_calls), (3, 2));
}

#[test]
fn an_answer_too_few_is_an_unknown_end() {
    let store = Watched {
        too_few: 1,
        ..Watched::default()
    };
    store.gate.open();
    let timers = Durable::builder(store).start().unwrap();
    let error = timers.schedule("q", "k", SECOND, &()).wait().unwrap_err();
    assert!(matches!(error, CallError::Unknown(_)));
}

#[test]
fn a_single_call_waits_for_no_company() {
    let store = Watched::default();
    store.gate.open();
    let timers = Durable::builder(store.clone()).start().unwrap();
    let mut fastest = Duration::MAX;
    for n in 0..200_u32 {
        let start = Instant::now();
        timers.schedule("q", "k", SECOND, &n).wait().unwrap();
        fastest = fastest.min(start.elapsed());
    }
    // A timer that collects calls for a millisecond would delay each of them.
    assert!(fastest < Duration::from_millis(1), "{fastest:?}");
    assert!(store.commits().iter().all(|commit| commit.len() == 1));
}

#[test]
fn several_writers_keep_the_order_of_each_key() {
    let store = Watched {
        writers: 4,
        ..Watched::default()
    };
    store.gate.open();
    let timers = Durable::builder(store).start().unwrap();
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let timers = timers.clone();
            thread::spawn(move || {
                for round in 1..=50_u32 {
                    let calls: Vec<_> = (0..8)
                        .map(|key| {
                            let key = format!("{thread}-{key}");
                            timers.schedule("q", &key, SECOND * round, &round)
                        })
                        .collect();
                    for call in calls {
                        assert_eq!(call.wait().unwrap().replaced.is_some(), round > 1);
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    for thread in 0..4 {
        for key in 0..8 {
            let timer = timers
                .get("q", &format!("{thread}-{key}"))
                .wait()
                .unwrap()
                .unwrap();
            assert_eq!(timer.payload_as::<u32>().unwrap(), 50);
        }
    }
    let many = (0..500).map(|n| (format!("many-{n}"), SECOND, n));
    let results = timers.schedule_many("q", many).wait().unwrap();
    assert!(results.iter().all(Result::is_ok));
}

/// An open store with some locked keys, whose calls wait for them for this time.
fn locking(keys: &[&str], lock_limit: Duration) -> Watched {
    let store = Watched {
        lock_limit,
        ..Watched::default()
    };
    store.gate.open();
    store.lock(keys);
    store
}

fn with_locked(keys: &[&str], lock_limit: Duration) -> (Watched, Durable) {
    let store = locking(keys, lock_limit);
    let timers = Durable::builder(store.clone()).start().unwrap();
    (store, timers)
}

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn a_locked_call_holds_up_no_other_key_and_is_carried_out_after_the_lock() {
    let (store, timers) = with_locked(&["held"], HOUR);
    let held = timers.schedule("q", "held", SECOND, &1);
    store.sent("held", 3);
    let many: Vec<_> = (0..1_000)
        .map(|n| timers.schedule("q", &n.to_string(), SECOND, &n))
        .collect();
    for call in many {
        call.wait().unwrap();
    }
    assert_eq!(timers.get("q", "held").wait().unwrap(), None);
    assert_eq!(timers.stats().failed_calls, 0);
    store.unlock();
    held.wait().unwrap();
    assert!(timers.get("q", "held").wait().unwrap().is_some());
    // It goes straight to its writer again.
    timers.schedule("q", "held", SECOND, &2).wait().unwrap();
}

#[test]
fn calls_behind_a_locked_one_keep_their_order() {
    let (store, timers) = with_locked(&["k"], HOUR);
    let mut calls = Vec::new();
    for n in 1..=20_u32 {
        calls.push(timers.schedule("q", "k", SECOND * 1_000 * n, &n));
        // Some are in the batch of the first one, and some come later.
        if n % 5 == 0 {
            store.sent("k", n as usize);
        }
    }
    timers.schedule("q", "other", SECOND, &0).wait().unwrap();
    store.unlock();
    let mut before = None;
    for call in calls {
        let scheduled = call.wait().unwrap();
        assert_eq!(scheduled.replaced, before);
        before = Some(scheduled.due);
    }
    let last = timers.get("q", "k").wait().unwrap().unwrap();
    assert_eq!(last.payload_as::<u32>().unwrap(), 20);
}

#[test]
fn a_locked_call_fails_after_the_limit() {
    let limit = Duration::from_millis(50);
    let (store, timers) = with_locked(&["k"], limit);
    let start = Instant::now();
    let calls = [1, 2].map(|n| timers.schedule("q", "k", SECOND, &n));
    for call in calls {
        let error = call.wait().unwrap_err();
        assert_eq!(error, CallError::Unavailable("it is held".into()));
        assert!(start.elapsed() >= limit);
    }
    let stats = timers.stats();
    assert_eq!((stats.failed_calls, stats.commits), (2, 0));
    store.unlock();
    timers.schedule("q", "k", SECOND, &3).wait().unwrap();
    assert_eq!(timers.stats().commits, 1);
}

#[test]
fn a_stop_ends_the_wait_for_a_lock() {
    let store = locking(&["k"], HOUR);
    // A stop gives up the calls after the lease.
    let builder = Durable::builder(store.clone())
        .poll_interval(SECOND / 50)
        .node_lease(SECOND / 5);
    let timers = builder.start().unwrap();
    let calls = [1, 2].map(|n| timers.schedule("q", "k", SECOND, &n));
    store.sent("k", 2);
    timers.stop(Duration::from_millis(10)).wait().unwrap();
    for call in calls {
        assert_eq!(call.wait(), Err(CallError::Stopped));
    }
}

#[test]
fn more_locked_calls_than_a_commit_holds_keep_out_no_free_one() {
    let keys: Vec<String> = (0..1_000).map(|n| format!("held-{n}")).collect();
    let store = Watched {
        lock_limit: HOUR,
        ..Watched::default()
    };
    store.lock(&keys.iter().map(String::as_str).collect::<Vec<_>>());
    store.lock(&["late"]);
    let (store, timers, first) = held_up_on(store);
    let held: Vec<_> = keys
        .iter()
        .map(|key| timers.schedule("q", key, SECOND, &()))
        .collect();
    let late = timers.schedule("q", "late", SECOND, &());
    store.gate.open();
    first.wait().unwrap();
    store.sent("late", 1);
    store.locked.lock().unwrap().remove("late");
    late.wait().unwrap();
    store.unlock();
    for call in held {
        call.wait().unwrap();
    }
}

#[test]
fn batches_of_locked_calls_shrink_until_one_is_carried_out_and_then_grow() {
    let store = Watched {
        lock_limit: HOUR,
        ..Watched::default()
    };
    let keys: Vec<String> = (0..300).map(|n| format!("held-{n}")).collect();
    store.lock(&keys.iter().map(String::as_str).collect::<Vec<_>>());
    let (store, timers, first) = held_up_on(store);
    let held: Vec<_> = keys
        .iter()
        .map(|key| timers.schedule("q", key, SECOND, &()))
        .collect();
    store.gate.open();
    first.wait().unwrap();
    let sizes = || -> Vec<usize> { store.commits().iter().map(Vec::len).collect() };
    kit::wait::until("the batches are small", || sizes().ends_with(&[8, 8, 8]));
    // After the two commits of the writer. The first attempt may begin before all calls have come.
    for (size, most) in sizes()[2..].iter().zip([1_000, 125, 15, 8, 8]) {
        assert!(*size <= most, "{:?}", sizes());
    }
    store.unlock();
    for call in held {
        call.wait().unwrap();
    }
    let sizes = sizes();
    let end = sizes.iter().rposition(|size| *size == 8).unwrap();
    assert_eq!(sizes[end..end + 5], [8, 16, 32, 64, 128], "{sizes:?}");
}

#[test]
fn a_commit_has_at_most_eight_mebibytes() {
    let (store, timers, first) = held_up();
    let payload = "x".repeat(60_000);
    let calls: Vec<_> = (0..300)
        .map(|n| timers.schedule("q", &format!("{n:03}"), SECOND, &payload))
        .collect();
    store.gate.open();
    first.wait().unwrap();
    for call in calls {
        call.wait().unwrap();
    }
    // A payload has two quotation marks, and a key three letters.
    let most = (8 << 20) / 60_005;
    let sizes: Vec<usize> = store.commits().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, most, most, 300 - 2 * most]);
}

#[test]
fn waiting_calls_are_bounded_by_their_bytes() {
    let (store, timers, first) = held_up();
    let payload = "x".repeat(60_000);
    let schedule = |n: usize| timers.schedule("q", &format!("{n:04}"), SECOND, &payload);
    let most = (64_usize << 20).div_ceil(60_006);
    let mut calls: Vec<_> = (0..most - 2).map(schedule).collect();
    // The bound is not reached yet, so the whole batch is accepted.
    let many = (0..4).map(|n| (format!("many-{n}"), SECOND, &payload));
    let many = timers.schedule_many("q", many);
    let refused = schedule(9_999).wait().unwrap_err();
    assert!(matches!(&refused, CallError::Unavailable(why) if why.contains("64 MiB")));
    store.gate.open();
    first.wait().unwrap();
    for call in calls.drain(..) {
        call.wait().unwrap();
    }
    assert!(many.wait().unwrap().iter().all(Result::is_ok));
    schedule(9_999).wait().unwrap();
}
