//! A store that shows each call to a test, which may hold it up.

#![allow(dead_code, reason = "each test uses a part of the kit")]

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tourbillon_durable::store::{
    Answer, Beat, Call, Claim, Claimed, Connection, DeadLetter, DeadPage, Epoch, NewNode, Page,
    Poll, QueueCounts, Revived, Settle, Settled, Store, StoreError, StoreSnapshot, StoredNode,
    Timer,
};

/// A call of a node.
pub(crate) enum Seen<'a> {
    Beat,
    Poll(&'a Poll),
    /// The answer to a poll. It is shown after the call.
    Snapshot(&'a Poll, &'a StoreSnapshot),
    Claim(&'a Claim),
    Settle,
    Other,
}

#[derive(Clone)]
pub(crate) struct Watched<S> {
    store: S,
    see: Arc<dyn Fn(&Seen<'_>) + Send + Sync>,
}

impl<S: Store + Clone> Watched<S> {
    /// Calls `see` before each call of a node, and with each snapshot. It may block.
    pub(crate) fn new(store: S, see: impl Fn(&Seen<'_>) + Send + Sync + 'static) -> Self {
        Watched {
            store,
            see: Arc::new(see),
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for Watched<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").finish_non_exhaustive()
    }
}

impl<S: Store + Clone> Store for Watched<S> {
    fn connect(&self) -> Result<Box<dyn Connection>, StoreError> {
        let connection = self.store.connect()?;
        Ok(Box::new(WatchedConnection {
            see: Arc::clone(&self.see),
            connection,
        }))
    }

    fn wall_clock(&self) -> Option<SystemTime> {
        self.store.wall_clock()
    }

    fn writers(&self) -> usize {
        self.store.writers()
    }
}

struct WatchedConnection {
    see: Arc<dyn Fn(&Seen<'_>) + Send + Sync>,
    connection: Box<dyn Connection>,
}

impl Connection for WatchedConnection {
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
    fn pause_schedule(&mut self, queue: &str, key: &str, paused: bool) -> Result<bool, StoreError> {
        self.connection.pause_schedule(queue, key, paused)
    }

    fn set_paused(&mut self, queue: &str, paused: bool) -> Result<(), StoreError> {
        self.connection.set_paused(queue, paused)
    }
    fn join(&mut self, node: &NewNode) -> Result<(), StoreError> {
        (self.see)(&Seen::Other);
        self.connection.join(node)
    }
    fn beat(&mut self, epoch: Epoch) -> Result<Option<Beat>, StoreError> {
        (self.see)(&Seen::Beat);
        self.connection.beat(epoch)
    }
    fn poll(&mut self, poll: &Poll) -> Result<StoreSnapshot, StoreError> {
        (self.see)(&Seen::Poll(poll));
        let snapshot = self.connection.poll(poll)?;
        (self.see)(&Seen::Snapshot(poll, &snapshot));
        Ok(snapshot)
    }
    fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        (self.see)(&Seen::Claim(claim));
        self.connection.claim(claim)
    }
    fn settle(&mut self, settle: &Settle) -> Result<Vec<Result<Settled, StoreError>>, StoreError> {
        (self.see)(&Seen::Settle);
        self.connection.settle(settle)
    }
    fn declare_gone(&mut self, asking: Epoch, epoch: Epoch, beat: i64) -> Result<bool, StoreError> {
        (self.see)(&Seen::Other);
        self.connection.declare_gone(asking, epoch, beat)
    }
    fn leave(&mut self, epoch: Epoch) -> Result<(), StoreError> {
        (self.see)(&Seen::Other);
        self.connection.leave(epoch)
    }
}
