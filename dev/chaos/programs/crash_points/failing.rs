//! A store whose process dies at a point, or loses an answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chaos::journal::Journal;
use chaos::proxy::{Trouble, Way};
use tourbillon_durable::store::{
    Action, Answer, Beat, Call, Claim, Claimed, Connection, DeadLetter, DeadPage, Epoch, NewNode,
    NotificationListener, Page, Poll, QueueCounts, Revived, Settle, Settled, Store, StoreError,
    StoreSnapshot, StoredNode, Subscription, Timer,
};

use crate::database::{Database, Opened};
use crate::entry::Entry;
use crate::point::{Fuse, Point};

/// Passes all calls on, and does at a point what the round is about.
pub(crate) struct Failing {
    pub(crate) database: Arc<dyn Database>,
    pub(crate) fuse: Arc<Fuse>,
    pub(crate) journal: Arc<Journal>,
}

impl fmt::Debug for Failing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Failing").field(&self.database).finish()
    }
}

impl Store for Failing {
    fn connect(&self) -> Result<Box<dyn Connection>, StoreError> {
        Ok(Box::new(FailingConnection {
            opened: self.database.connect()?,
            fuse: Arc::clone(&self.fuse),
            journal: Arc::clone(&self.journal),
        }))
    }

    fn writers(&self) -> usize {
        self.database.writers()
    }

    fn listen(&self, listener: NotificationListener) -> Option<Subscription> {
        self.database.listen(listener)
    }
}

struct FailingConnection {
    opened: Opened,
    fuse: Arc<Fuse>,
    journal: Arc<Journal>,
}

impl FailingConnection {
    /// Makes the call. At this point its answer is lost.
    fn losing<T>(
        &mut self,
        point: Point,
        call: impl FnOnce(&mut dyn Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let Opened { connection, path } = &mut self.opened;
        let Some(path) = path.as_ref().filter(|_| self.fuse.burns(point)) else {
            return call(&mut **connection);
        };
        path.begin(Trouble::CutAfter(0), Way::Down);
        let result = call(&mut **connection);
        path.end();
        if matches!(result, Err(StoreError::Unknown(_))) {
            self.fuse.happens();
        }
        result
    }
}

impl Connection for FailingConnection {
    fn write(&mut self, calls: &[Call]) -> Result<Vec<Result<Answer, StoreError>>, StoreError> {
        self.fuse.at(Point::BeforeWrite, || {
            for call in calls {
                if let Action::Schedule { .. } = call.action {
                    let key = call.key.to_string();
                    self.journal.write(&Entry::Never { key });
                }
            }
        });
        let answers = self.losing(Point::LostWrite, |connection| connection.write(calls))?;
        self.fuse.at(Point::AfterWrite, || ());
        Ok(answers)
    }

    fn poll(&mut self, poll: &Poll) -> Result<StoreSnapshot, StoreError> {
        let snapshot = self.opened.connection.poll(poll)?;
        if !snapshot.rows.is_empty() {
            self.fuse.at(Point::AfterPoll, || ());
        }
        Ok(snapshot)
    }

    fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.fuse.at(Point::BeforeClaim, || ());
        let claimed = self.losing(Point::LostClaim, |connection| connection.claim(claim))?;
        if !claimed.runs.is_empty() {
            self.fuse.at(Point::AfterClaim, || ());
        }
        Ok(claimed)
    }

    fn settle(&mut self, settle: &Settle) -> Result<Vec<Result<Settled, StoreError>>, StoreError> {
        self.fuse.at(Point::BeforeSettle, || ());
        let settled = self.losing(Point::LostSettle, |connection| connection.settle(settle))?;
        self.fuse.at(Point::AfterSettle, || ());
        Ok(settled)
    }

    fn get(&mut self, queue: &str, key: &str) -> Result<Option<Timer>, StoreError> {
        self.opened.connection.get(queue, key)
    }

    fn list(&mut self, page: &Page) -> Result<Vec<Timer>, StoreError> {
        self.opened.connection.list(page)
    }

    fn counts(&mut self) -> Result<Vec<QueueCounts>, StoreError> {
        self.opened.connection.counts()
    }

    fn dead(&mut self, page: &DeadPage) -> Result<Vec<DeadLetter>, StoreError> {
        self.opened.connection.dead(page)
    }

    fn discard(&mut self, letters: &[i64]) -> Result<u64, StoreError> {
        self.opened.connection.discard(letters)
    }

    fn discard_old(&mut self, age: Duration, limit: u32) -> Result<u64, StoreError> {
        self.opened.connection.discard_old(age, limit)
    }

    fn nodes(&mut self) -> Result<Vec<StoredNode>, StoreError> {
        self.opened.connection.nodes()
    }

    fn revive(&mut self, letter: i64) -> Result<Revived, StoreError> {
        self.opened.connection.revive(letter)
    }

    fn set_paused(&mut self, queue: &str, paused: bool) -> Result<(), StoreError> {
        self.opened.connection.set_paused(queue, paused)
    }

    fn pause_schedule(&mut self, queue: &str, key: &str, paused: bool) -> Result<bool, StoreError> {
        self.opened.connection.pause_schedule(queue, key, paused)
    }

    fn join(&mut self, node: &NewNode) -> Result<(), StoreError> {
        self.opened.connection.join(node)
    }

    fn beat(&mut self, epoch: Epoch) -> Result<Option<Beat>, StoreError> {
        self.opened.connection.beat(epoch)
    }

    fn declare_gone(&mut self, asking: Epoch, epoch: Epoch, beat: i64) -> Result<bool, StoreError> {
        self.opened.connection.declare_gone(asking, epoch, beat)
    }

    fn leave(&mut self, epoch: Epoch) -> Result<(), StoreError> {
        self.opened.connection.leave(epoch)
    }
}
