//! A store that counts the calls of a node, and how long its polls take.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tourbillon_durable::store::{
    Answer, Beat, Call, Claim, Claimed, Connection, DeadLetter, DeadPage, Epoch, NewNode,
    NotificationListener, Page, Poll, QueueCounts, Revived, Settle, Settled, Store, StoreError,
    StoreSnapshot, StoredNode, Subscription, Timer,
};

#[derive(Clone, Debug)]
pub(super) struct Timed {
    store: Arc<dyn Store>,
    pub(super) calls: Arc<Calls>,
}

#[derive(Debug, Default)]
pub(super) struct Calls {
    pub(super) beats: AtomicU64,
    polls: Mutex<Vec<Duration>>,
}

impl Calls {
    /// The durations of the polls since the last call.
    pub(super) fn take_polls(&self) -> Vec<Duration> {
        std::mem::take(&mut *self.polls.lock().expect("no panic under the lock"))
    }
}

impl Timed {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        let calls = Arc::new(Calls::default());
        Timed { store, calls }
    }
}

impl Store for Timed {
    fn connect(&self) -> Result<Box<dyn Connection>, StoreError> {
        Ok(Box::new(TimedConnection {
            connection: self.store.connect()?,
            calls: Arc::clone(&self.calls),
        }))
    }

    fn writers(&self) -> usize {
        self.store.writers()
    }

    fn listen(&self, listener: NotificationListener) -> Option<Subscription> {
        self.store.listen(listener)
    }
}

struct TimedConnection {
    connection: Box<dyn Connection>,
    calls: Arc<Calls>,
}

/// Calls that are handed on as they are.
macro_rules! hand_on {
    ($($call:ident($($given:ident: $type:ty),*) -> $answer:ty;)+) => {
        $(fn $call(&mut self, $($given: $type),*) -> Result<$answer, StoreError> {
            self.connection.$call($($given),*)
        })+
    };
}

impl Connection for TimedConnection {
    hand_on! {
        write(calls: &[Call]) -> Vec<Result<Answer, StoreError>>;
        get(queue: &str, key: &str) -> Option<Timer>;
        list(page: &Page) -> Vec<Timer>;
        counts() -> Vec<QueueCounts>;
        dead(page: &DeadPage) -> Vec<DeadLetter>;
        discard(letters: &[i64]) -> u64;
        discard_old(age: Duration, limit: u32) -> u64;
        nodes() -> Vec<StoredNode>;
        revive(letter: i64) -> Revived;
        set_paused(queue: &str, paused: bool) -> ();
        pause_schedule(queue: &str, key: &str, paused: bool) -> bool;
        join(node: &NewNode) -> ();
        claim(claim: &Claim) -> Claimed;
        settle(settle: &Settle) -> Vec<Result<Settled, StoreError>>;
        declare_gone(asking: Epoch, epoch: Epoch, beat: i64) -> bool;
        leave(epoch: Epoch) -> ();
    }

    fn beat(&mut self, epoch: Epoch) -> Result<Option<Beat>, StoreError> {
        self.calls.beats.fetch_add(1, Ordering::Relaxed);
        self.connection.beat(epoch)
    }

    fn poll(&mut self, poll: &Poll) -> Result<StoreSnapshot, StoreError> {
        let start = Instant::now();
        let snapshot = self.connection.poll(poll);
        let took = start.elapsed();
        let mut polls = self.calls.polls.lock().expect("no panic under the lock");
        polls.push(took);
        drop(polls);
        snapshot
    }
}
