//! The connections of a store, and calls on them.

use std::collections::HashMap;

use redis::Value;

use super::errors::Fault;
use super::link::{Limit, Link, Server};
use super::scripts::{By, Call};
use crate::leases::{Destination, StoreError};
use crate::sync::channel::{Receiver, Sender, bounded};
use crate::sync::{Arc, Mutex, Origin};

/// Connections that nobody uses just now, and turns for those who want one.
pub(super) struct Pool {
    server: Arc<Server>,
    most: usize,
    /// The one used last is used next, so that those beyond what is needed stay unused.
    idle: Mutex<Vec<Link>>,
    /// Of each destination: one that hangs keeps its own, and no others.
    turns: Mutex<HashMap<Destination, Turns>>,
    origin: Origin,
}

type Turns = (Sender<()>, Receiver<()>);

/// Whose call it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// One of the user's threads, of which there may be any number. It goes to this destination.
    User(Destination),
    /// A pass's, of renewals or releases. There are few at a time, and they must not stand in line
    /// behind the others.
    Pass,
}

/// A turn, until it is dropped.
struct Turn(Receiver<()>);

impl Drop for Turn {
    fn drop(&mut self) {
        // There is one of ours in it.
        let _ = self.0.try_recv();
    }
}

impl Pool {
    pub(super) fn new(server: Arc<Server>, most: usize) -> Self {
        Pool {
            server,
            most,
            idle: Mutex::new(Vec::new()),
            turns: Mutex::default(),
            origin: Origin::here(),
        }
    }

    /// Whether this process is a forked copy of the one that made it. The copy has the same
    /// connections, and would take the answers that the original waits for.
    pub(super) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    pub(super) fn idle(&self) -> usize {
        self.idle.lock().len()
    }

    /// Calls scripts, all in one round trip, and answers with what each of them answered.
    ///
    /// If a connection that had been idle turns out to be gone, all of it is sent once more on a new
    /// one. What was sent first may have been executed all the same, and that makes nobody believe what is not so, since the owner is the
    /// same: a second acquire grants again, a second renewal renews again, and a second release finds
    /// nothing, which is what it says. Only if what was sent first arrives when all is over, an acquire
    /// takes the name for nobody, for a lease.
    pub(super) fn call(
        &self,
        whose: Whose,
        calls: &[Call<'_>],
        limit: Limit,
    ) -> Result<Vec<Value>, StoreError> {
        if self.is_forked() {
            return Err(StoreError::Forked);
        }
        let _turn = match whose {
            Whose::User(destination) => Some(self.turn(destination, limit)?),
            Whose::Pass => None,
        };
        let mut idle = self.idle.lock().pop();
        loop {
            let reused = idle.is_some();
            let answers = match idle.take() {
                Some(link) => self.call_on(link, calls, limit),
                None => Link::open(&self.server, limit)
                    .and_then(|link| self.call_on(link, calls, limit)),
            };
            let fault = match answers {
                Ok(answers) => return Ok(answers),
                Err(fault) => fault,
            };
            if reused {
                // The others were idle for longer: whatever befell this one befell them.
                let others = std::mem::take(&mut *self.idle.lock());
                drop(others);
            }
            match fault {
                Fault::Lost(_) if reused => {}
                fault => return Err(fault.into()),
            }
        }
    }

    fn turn(&self, destination: Destination, limit: Limit) -> Result<Turn, StoreError> {
        let left = limit.left().ok_or_else(|| Fault::late(&*self.server))?;
        let (enter, leave) = {
            let mut turns = self.turns.lock();
            let turns = turns.entry(destination);
            turns.or_insert_with(|| bounded(self.most)).clone()
        };
        if enter.send_timeout((), left).is_err() {
            return Err(StoreError::Unavailable(format!(
                "{}: {} calls are under way, and none of them ended in time",
                self.server, self.most
            )));
        }
        Ok(Turn(leave))
    }

    /// Calls on one connection, which is kept if all went well.
    fn call_on(
        &self,
        mut link: Link,
        calls: &[Call<'_>],
        limit: Limit,
    ) -> Result<Vec<Value>, Fault> {
        let mut answers = self.send(&mut link, calls.iter(), By::Hash, limit)?;
        let again: Vec<usize> = (0..calls.len())
            .filter(|&at| code(&answers[at]) == Some("NOSCRIPT"))
            .collect();
        if !again.is_empty() {
            let calls = again.iter().map(|&at| &calls[at]);
            let better = self.send(&mut link, calls, By::Text, limit)?;
            for (at, answer) in again.into_iter().zip(better) {
                answers[at] = answer;
            }
        }
        // After a failover the name of the host may lead to another server.
        let demoted = |answer: &Value| match answer {
            // Servers before version 7 say it in the words of an `ERR`.
            Value::ServerError(error) => {
                let words = error.details().unwrap_or_default();
                error.code() == "READONLY" || words.contains("-READONLY")
            }
            _ => false,
        };
        let mut idle = self.idle.lock();
        if idle.len() < self.most && !answers.iter().any(demoted) {
            idle.push(link);
        }
        Ok(answers)
    }

    fn send<'a>(
        &self,
        link: &mut Link,
        calls: impl ExactSizeIterator<Item = &'a Call<'a>>,
        by: By,
        limit: Limit,
    ) -> Result<Vec<Value>, Fault> {
        let answers = calls.len();
        let mut commands = Vec::new();
        for call in calls {
            call.write(by, &mut commands);
        }
        link.exchange(&self.server, &commands, answers, limit)
    }
}

/// The code of an answer that is an error.
fn code(answer: &Value) -> Option<&str> {
    match answer {
        Value::ServerError(error) => Some(error.code()),
        _ => None,
    }
}
