//! Sends a batch to the store, and its answers to the callers.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use super::batch::WriteRequest;
use crate::calls::CallError;
use crate::client::store_handle::{ReconnectingConnection, StoreHandle};
use crate::events::Counters;
use crate::store::{Action, Answer, Call, DueAt, StoreError, StoreTime};
use crate::sync::Arc;

/// A timer that is due soon, as [`Hints`] report it.
pub(crate) struct NearTimer {
    pub(crate) queue: Arc<str>,
    pub(crate) key: Box<str>,
    pub(crate) shard: u16,
    pub(crate) due: StoreTime,
    /// The length of its payload. A call that moves it does not know it.
    pub(crate) bytes: Option<u64>,
}

/// The way to the node for timers that this process has just scheduled, and that are due soon.
#[derive(Clone)]
pub(crate) struct Hints {
    /// The queues that this process handles.
    pub(crate) queues: Arc<HashSet<Arc<str>>>,
    /// Timers that are due within this span.
    pub(crate) within: Duration,
    pub(crate) tell: Arc<dyn Fn(Vec<NearTimer>) + Send + Sync>,
}

impl Hints {
    fn of(&self, call: &Call, answer: &Answer) -> Option<NearTimer> {
        let (due, shard) = match *answer {
            Answer::Scheduled { due, shard, .. } => (due, shard),
            Answer::Moved { to, shard, .. } => (to, shard),
            _ => return None,
        };
        let is_near = match &call.action {
            Action::Schedule { when, .. }
            | Action::ScheduleIfAbsent { when, .. }
            | Action::Declare { when, .. }
            | Action::Reschedule { when } => match when {
                DueAt::After(span) => *span <= self.within,
                // By the local clock: this is a hint only.
                DueAt::At(time) => *time <= SystemTime::now() + self.within,
            },
            Action::Cancel => false,
        };
        let is_near = is_near && self.queues.contains(&call.queue);
        let bytes = match &call.action {
            Action::Schedule { payload, .. }
            | Action::ScheduleIfAbsent { payload, .. }
            | Action::Declare { payload, .. } => Some(payload.bytes() as u64),
            Action::Reschedule { .. } | Action::Cancel => None,
        };
        is_near.then(|| NearTimer {
            queue: Arc::clone(&call.queue),
            key: call.key.clone(),
            shard,
            due,
            bytes,
        })
    }
}

/// A connection that sends calls.
pub(super) struct BatchSender {
    connection: ReconnectingConnection,
    counters: Arc<Counters>,
    hints: Option<Hints>,
}

impl BatchSender {
    /// The connection is opened when it is needed.
    pub(super) fn new(
        store_handle: &Arc<StoreHandle>,
        counters: &Arc<Counters>,
        hints: Option<&Hints>,
    ) -> Self {
        BatchSender {
            connection: ReconnectingConnection::new(store_handle),
            counters: Arc::clone(counters),
            hints: hints.cloned(),
        }
    }

    pub(super) fn open(&mut self) -> Result<(), StoreError> {
        self.connection.open().map(drop)
    }

    /// Sends a batch, and answers its calls except those that are locked. It returns these, in
    /// their order and each with the store's reason.
    pub(super) fn send(&mut self, batch: Vec<WriteRequest>) -> Vec<(WriteRequest, String)> {
        let mut calls = Vec::with_capacity(batch.len());
        let mut rests = Vec::with_capacity(batch.len());
        for request in batch {
            rests.push((
                request.reply,
                request.hash,
                request.reservation,
                request.until,
            ));
            calls.push(request.call);
        }
        let answers = self.write(&calls);
        let mut locked = Vec::new();
        let mut answered = Vec::with_capacity(calls.len());
        for ((call, rest), answer) in calls.into_iter().zip(rests).zip(answers) {
            let (reply, hash, reservation, until) = rest;
            match answer {
                Err(StoreError::Locked(why)) => {
                    let request = WriteRequest {
                        call,
                        reply,
                        hash,
                        reservation,
                        until,
                    };
                    locked.push((request, why));
                }
                // The reservation ends before the answers: a caller that waits for one sends the
                // next call into a free place.
                answer => answered.push((reply, answer)),
            }
        }
        for (reply, answer) in answered {
            self.count(answer.as_ref().ok());
            reply.send(answer.map_err(CallError::from));
        }
        locked
    }

    /// Carries out calls, and returns an answer to each. A failure of the batch is one of each
    /// call.
    fn write(&mut self, calls: &[Call]) -> Vec<Result<Answer, StoreError>> {
        let result = self.connection.call(|connection| {
            let answers = connection.try_write(calls)?;
            // Answers belong to calls by their places, so with another number nothing is known.
            match answers.len() == calls.len() {
                true => Ok(answers),
                false => Err(StoreError::Unknown(format!(
                    "the store gave {} answers to {} calls",
                    answers.len(),
                    calls.len()
                ))),
            }
        });
        let answers = match result {
            Ok(answers) => answers,
            Err(error) => return vec![Err(error); calls.len()],
        };
        let is_locked = |answer| matches!(answer, &Err(StoreError::Locked(_)));
        if !answers.iter().all(is_locked) {
            self.counters.node.commits.increment();
        }
        // The node first: a timer that is due now should not wait for the callers.
        self.hint(calls, &answers);
        answers
    }

    /// Answers a call that is not sent again.
    pub(super) fn fail(&self, request: WriteRequest, error: StoreError) {
        self.count(None);
        drop(request.reservation);
        request.reply.send(Err(error.into()));
    }

    fn hint(&self, calls: &[Call], answers: &[Result<Answer, StoreError>]) {
        let Some(hints) = &self.hints else {
            return;
        };
        let near: Vec<NearTimer> = calls
            .iter()
            .zip(answers)
            .filter_map(|(call, answer)| hints.of(call, answer.as_ref().ok()?))
            .collect();
        if !near.is_empty() {
            (hints.tell)(near);
        }
    }

    fn count(&self, answer: Option<&Answer>) {
        let counters = &self.counters.node;
        match answer {
            Some(Answer::Scheduled { .. }) => counters.scheduled.increment(),
            Some(Answer::Moved { .. }) => counters.moved.increment(),
            Some(Answer::Cancelled { .. }) => counters.cancelled.increment(),
            Some(_) => {}
            None => counters.failed_calls.increment(),
        }
    }
}
