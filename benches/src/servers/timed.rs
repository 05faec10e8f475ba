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

impl Connection for TimedConnection {
    fn write(&mut self, calls: &[Call]) -> Result<Vec<Result<Answer, StoreError>>, StoreError> {
        self.connection.write(calls)
    }

    fn get(&mut self, queue: &str, key: &str) -> Result<Option<Timer>, StoreError> {
        self.connection.get(queue, key)
    }

    fn list(&mut self, page: &Page) -> Result<Vec<Timer>, StoreError> {
        self.connection.list(page)
    }

    fn counts(&mut self) -> Result<Vec<QueueCounts>, StoreError> {
        self.connection.counts()
    }

    fn dead(&mut self, page: &DeadPage) -> Result<Vec<DeadLetter>, StoreError> {
        self.connection.dead(page)
    }

    fn discard(&mut self, letters: &[i64]) -> Result<u64, StoreError> {
        self.connection.discard(letters)
    }

    fn discard_old(&mut self, age: Duration, limit: u32) -> Result<u64, StoreError> {
        self.connection.discard_old(age, limit)
    }

    fn nodes(&mut self) -> Result<Vec<StoredNode>, StoreError> {
        self.connection.nodes()
    }

    fn revive(&mut self, letter: i64) -> Result<Revived, StoreError> {
        self.connection.revive(letter)
    }

    fn set_paused(&mut self, queue: &str, paused: bool) -> Result<(), StoreError> {
        self.connection.set_paused(queue, paused)
    }

    fn join(&mut self, node: &NewNode) -> Result<(), StoreError> {
        self.connection.join(node)
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

    fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.connection.claim(claim)
    }

    fn settle(&mut self, settle: &Settle) -> Result<Vec<Result<Settled, StoreError>>, StoreError> {
        self.connection.settle(settle)
    }

    fn declare_gone(&mut self, asking: Epoch, epoch: Epoch, beat: i64) -> Result<bool, StoreError> {
        self.connection.declare_gone(asking, epoch, beat)
    }

    fn leave(&mut self, epoch: Epoch) -> Result<(), StoreError> {
        self.connection.leave(epoch)
    }
}
