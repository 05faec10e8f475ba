//! A client whose requests have timeouts.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use tourbillon::Handle;

/// The number of times a request is sent before it is given up.
pub(crate) const ATTEMPTS: u32 = 3;

/// Returns how long the client waits for an answer: twice as long each time.
pub(crate) fn patience(attempt: u32) -> Duration {
    Duration::from_millis(300) * 2_u32.pow(attempt - 1)
}

/// A request to the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) attempt: u32,
}

const UNDECIDED: u8 = 0;
const ANSWERED: u8 = 1;
const TIMED_OUT: u8 = 2;

/// The state that the sender, the reader of answers and the timeouts share.
pub(crate) struct Client {
    pub(crate) timers: Handle<u64>,
    /// The result of each request, by its id.
    outcomes: Box<[AtomicU8]>,
    /// The number of requests that ended twice. It stays zero.
    twice: AtomicU64,
    retries: AtomicU64,
    pub(crate) late_answers: AtomicU64,
}

impl Client {
    pub(crate) fn new(timers: Handle<u64>, requests: u64) -> Self {
        Client {
            timers,
            outcomes: (0..requests).map(|_| AtomicU8::new(UNDECIDED)).collect(),
            twice: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            late_answers: AtomicU64::new(0),
        }
    }

    pub(crate) fn send(self: &Arc<Self>, network: &Sender<Request>, id: u64) {
        self.attempt(network, Request { id, attempt: 1 });
    }

    /// Arms the timeout and then sends, since an answer may arrive before the send returns.
    fn attempt(self: &Arc<Self>, network: &Sender<Request>, request: Request) {
        let (client, resend) = (Arc::clone(self), network.clone());
        let timeout = self
            .timers
            .schedule(request.id, patience(request.attempt), move |_| {
                client.timed_out(&resend, request);
            });
        match timeout {
            Ok(_) => {
                // If the server is gone, no answer comes, and the timeout ends the request.
                let _ = network.send(request);
            }
            // The scheduler is full or closed. Without a timeout the request could wait forever, so
            // it is given up at once.
            Err(_) => self.end(request.id, TIMED_OUT),
        }
    }

    /// Runs when a timeout ends. The key belongs to this run until it returns, so the retry, under
    /// the same key, can't time out before. An answer that comes meanwhile still cancels the retry.
    fn timed_out(self: &Arc<Self>, network: &Sender<Request>, request: Request) {
        if request.attempt == ATTEMPTS {
            self.end(request.id, TIMED_OUT);
            return;
        }
        // Relaxed, here and below: the counters are read when all threads that count have ended.
        self.retries.fetch_add(1, Ordering::Relaxed);
        let attempt = request.attempt + 1;
        self.attempt(network, Request { attempt, ..request });
    }

    /// Handles an answer. If its timeout was cancelled, the timeout has not run and never will: the
    /// request is answered. Otherwise the timeout or an answer to another attempt came first.
    pub(crate) fn answered(&self, id: u64) {
        if self.timers.cancel(&id).is_cancelled() {
            self.end(id, ANSWERED);
        } else {
            self.late_answers.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn end(&self, id: u64, outcome: u8) {
        let cell = usize::try_from(id)
            .ok()
            .and_then(|id| self.outcomes.get(id));
        let before = cell.map(|cell| cell.swap(outcome, Ordering::Relaxed));
        if before != Some(UNDECIDED) {
            self.twice.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the results.
    pub(crate) fn summary(&self) -> Summary {
        let count = |outcome| {
            let cells = self.outcomes.iter();
            cells
                .filter(|cell| cell.load(Ordering::Relaxed) == outcome)
                .count() as u64
        };
        Summary {
            requests: self.outcomes.len() as u64,
            answered: count(ANSWERED),
            timed_out: count(TIMED_OUT),
            retries: self.retries.load(Ordering::Relaxed),
            late_answers: self.late_answers.load(Ordering::Relaxed),
            twice: self.twice.load(Ordering::Relaxed),
        }
    }
}

/// The results of all requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Summary {
    pub(crate) requests: u64,
    pub(crate) answered: u64,
    pub(crate) timed_out: u64,
    pub(crate) retries: u64,
    pub(crate) late_answers: u64,
    pub(crate) twice: u64,
}

impl Summary {
    /// Returns the conditions that should hold and do not.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.answered + self.timed_out != self.requests {
            wrong.push("each request ends".to_owned());
        }
        if self.twice > 0 {
            wrong.push("no request ends twice".to_owned());
        }
        wrong
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "requests {} answered {} timed_out {} retries {} late_answers {}",
            self.requests, self.answered, self.timed_out, self.retries, self.late_answers
        )
    }
}
