//! Where the answer to a call goes.

use crate::calls::{AnswerList, CallError, ReplySender, sent};
use crate::store::Answer;
use crate::sync::{Arc, Mutex};

/// Sends the answer to the caller.
pub(crate) struct CallReply(Option<ReplyTo>);

enum ReplyTo {
    One(ReplySender<Answer>),
    Part(Arc<Collector>, usize),
}

impl CallReply {
    pub(crate) fn one(reply: ReplySender<Answer>) -> Self {
        CallReply(Some(ReplyTo::One(reply)))
    }

    /// One of several calls that are answered together.
    pub(crate) fn part(collector: &Arc<Collector>, index: usize) -> Self {
        CallReply(Some(ReplyTo::Part(Arc::clone(collector), index)))
    }

    pub(crate) fn send(mut self, result: Result<Answer, CallError>) {
        self.send_once(result);
    }

    fn send_once(&mut self, result: Result<Answer, CallError>) {
        match self.0.take() {
            Some(ReplyTo::One(reply)) => sent::send(reply, result),
            Some(ReplyTo::Part(collector, index)) => collector.put(index, result),
            None => {}
        }
    }
}

/// A call that is dropped without an answer was stopped before it was carried out (WRITER-2).
impl Drop for CallReply {
    fn drop(&mut self) {
        self.send_once(Err(CallError::Stopped));
    }
}

/// Collects the answers of several calls, and sends them when all are there.
pub(crate) struct Collector(Mutex<Collected>);

struct Collected {
    answers: AnswerList,
    left: usize,
    reply: Option<ReplySender<AnswerList>>,
}

impl Collector {
    /// Collects the answers of `calls`, which are at least one.
    pub(crate) fn new(calls: usize, reply: ReplySender<AnswerList>) -> Arc<Self> {
        Arc::new(Collector(Mutex::new(Collected {
            answers: vec![Err(CallError::Stopped); calls],
            left: calls,
            reply: Some(reply),
        })))
    }

    fn put(&self, index: usize, result: Result<Answer, CallError>) {
        let complete = {
            let mut collected = self.0.lock();
            if let Some(place) = collected.answers.get_mut(index) {
                *place = result;
            }
            collected.left = collected.left.saturating_sub(1);
            match collected.left {
                0 => collected
                    .reply
                    .take()
                    .map(|reply| (reply, std::mem::take(&mut collected.answers))),
                _ => None,
            }
        };
        // Without the lock: the waker of a runtime is called.
        if let Some((reply, answers)) = complete {
            sent::send(reply, Ok(answers));
        }
    }
}
