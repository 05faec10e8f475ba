//! A store whose process dies at a point.

use std::sync::Arc;

use tourbillon_durable::store::{
    Action, Answer, Beat, Call, Claim, Claimed, Connection, DeadLetter, Epoch, Look, NewNode, Page,
    QueueCounts, Revived, Settle, Settled, Sight, Store, StoreError, Timer,
};

use crate::journal::{Entry, Journal};
use crate::point::{Fuse, Point};

/// Passes all calls on, and ends the process at a point.
#[derive(Debug)]
pub(crate) struct Failing<S> {
    pub(crate) store: S,
    pub(crate) fuse: Arc<Fuse>,
    pub(crate) journal: Arc<Journal>,
}

impl<S: Store> Store for Failing<S> {
    fn connect(&self) -> Result<Box<dyn Connection>, StoreError> {
        Ok(Box::new(FailingConnection {
            connection: self.store.connect()?,
            fuse: Arc::clone(&self.fuse),
            journal: Arc::clone(&self.journal),
        }))
    }

    fn writers(&self) -> usize {
        self.store.writers()
    }
}

struct FailingConnection {
    connection: Box<dyn Connection>,
    fuse: Arc<Fuse>,
    journal: Arc<Journal>,
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
        let answers = self.connection.write(calls)?;
        self.fuse.at(Point::AfterWrite, || ());
        Ok(answers)
    }

    fn look(&mut self, look: &Look) -> Result<Sight, StoreError> {
        let sight = self.connection.look(look)?;
        if !sight.rows.is_empty() {
            self.fuse.at(Point::AfterLook, || ());
        }
        Ok(sight)
    }

    fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.fuse.at(Point::BeforeClaim, || ());
        let claimed = self.connection.claim(claim)?;
        if !claimed.runs.is_empty() {
            self.fuse.at(Point::AfterClaim, || ());
        }
        Ok(claimed)
    }

    fn settle(&mut self, settle: &Settle) -> Result<Vec<Settled>, StoreError> {
        self.fuse.at(Point::BeforeSettle, || ());
        let settled = self.connection.settle(settle)?;
        self.fuse.at(Point::AfterSettle, || ());
        Ok(settled)
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

    fn dead(&mut self, queue: &str, after: i64, limit: u32) -> Result<Vec<DeadLetter>, StoreError> {
        self.connection.dead(queue, after, limit)
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
        self.connection.beat(epoch)
    }

    fn declare_gone(&mut self, asking: Epoch, epoch: Epoch, beat: i64) -> Result<bool, StoreError> {
        self.connection.declare_gone(asking, epoch, beat)
    }

    fn leave(&mut self, epoch: Epoch) -> Result<(), StoreError> {
        self.connection.leave(epoch)
    }
}
