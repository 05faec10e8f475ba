//! The threads that carry calls to the store.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::time::{Duration, SystemTime};

use super::batch::{self, WINDOW, WriteRequest};
use super::reply::Answering;
use crate::errors::CallError;
use crate::reach::{Reach, StoreLink};
use crate::stats::Counters;
use crate::store::{Action, Answer, Call, StoreError, When};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::channel::{Receiver, Sender, unbounded};
use crate::sync::thread;
use crate::time::StoreTime;

/// The number of calls that may wait for one thread. A batch of calls that comes while fewer wait is
/// taken as a whole.
const MOST_WAITING: usize = 65_536;

enum WriteMessage {
    Write(WriteRequest),
    /// No more calls come.
    Close,
}

/// A timer that is due soon, as [`Hints`] report it.
pub(crate) struct NearTimer {
    pub(crate) queue: Arc<str>,
    pub(crate) key: Box<str>,
    pub(crate) shard: u16,
    pub(crate) due: StoreTime,
}

/// Who wants to know of timers that were scheduled and are due soon.
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
            | Action::Reschedule { when } => match when {
                When::In(span) => *span <= self.within,
                // By the local clock: this is a hint only.
                When::At(time) => *time <= StoreTime::from(SystemTime::now()) + self.within,
            },
            Action::Cancel => false,
        };
        let is_near = is_near && self.queues.contains(&call.queue);
        is_near.then(|| NearTimer {
            queue: Arc::clone(&call.queue),
            key: call.key.clone(),
            shard,
            due,
        })
    }
}

/// The threads that carry calls, each with a connection of its own.
pub(crate) struct Writers {
    threads: Box<[WriterThread]>,
    hasher: RandomState,
    /// Set when the calls that still wait are not to be carried out any more.
    give_up: Arc<AtomicBool>,
}

struct WriterThread {
    sender: Sender<WriteMessage>,
    waiting: Arc<AtomicUsize>,
}

impl Writers {
    /// Starts the threads, which keep `alive`. The first of them opens its connection, to see whether the store is there.
    pub(crate) fn start(
        number: usize,
        reach: &Arc<Reach>,
        counters: &Arc<Counters>,
        hints: Option<&Hints>,
        alive: &Sender<()>,
    ) -> io::Result<(Self, oneshot::Receiver<Result<(), StoreError>>)> {
        let give_up = Arc::new(AtomicBool::new(false));
        let (opened, is_open) = oneshot::channel();
        let mut opened = Some(opened);
        let mut start = |at: usize| {
            let (sender, receiver) = unbounded();
            let waiting = Arc::new(AtomicUsize::new(0));
            let mut worker = Worker {
                receiver,
                waiting: Arc::clone(&waiting),
                requests: VecDeque::new(),
                is_closed: false,
                link: StoreLink::new(reach),
                counters: Arc::clone(counters),
                hints: hints.cloned(),
                give_up: Arc::clone(&give_up),
            };
            let alive = alive.clone();
            let opened = opened.take();
            thread::spawn(&format!("write-{at}"), move || {
                if let Some(opened) = opened {
                    // The starting thread waits for it.
                    drop(opened.send(worker.link.open().map(drop)));
                }
                worker.work();
                // The requests that are left are answered before.
                drop(worker);
                drop(alive);
            })?;
            Ok(WriterThread { sender, waiting })
        };
        // Threads that have started end when their senders are dropped.
        let threads = (0..number.max(1))
            .map(&mut start)
            .collect::<io::Result<_>>()?;
        let writers = Writers {
            threads,
            hasher: RandomState::new(),
            give_up,
        };
        Ok((writers, is_open))
    }

    /// Sends a call to the thread of its queue and key. It never blocks.
    pub(crate) fn send(&self, call: Call, answering: Answering) {
        self.send_many(std::iter::once((call, answering)));
    }

    /// Sends calls. The bound on waiting calls is asked once for each thread, before the first one.
    pub(crate) fn send_many(&self, calls: impl Iterator<Item = (Call, Answering)>) {
        let mut is_full = vec![None; self.threads.len()];
        for (call, answering) in calls {
            let hash = self.hasher.hash_one((&call.queue, &call.key));
            let at = (hash % self.threads.len() as u64) as usize;
            let way = &self.threads[at];
            // Relaxed, here and below: the number is a bound on memory, and need not be exact.
            let is_full = *is_full[at]
                .get_or_insert_with(|| way.waiting.load(Ordering::Relaxed) >= MOST_WAITING);
            if is_full {
                answering.send(Err(CallError::Unavailable(format!(
                    "{MOST_WAITING} calls wait for the store already"
                ))));
                continue;
            }
            // Relaxed: see above.
            way.waiting.fetch_add(1, Ordering::Relaxed);
            // A thread that has ended drops the call, which answers it.
            drop(way.sender.send(WriteMessage::Write(WriteRequest {
                call,
                answering,
                hash,
            })));
        }
    }

    /// Ends the threads when the calls that wait have been carried out.
    pub(crate) fn close(&self) {
        for way in &self.threads {
            drop(way.sender.send(WriteMessage::Close));
        }
    }

    /// Ends the threads without carrying out the calls that wait.
    pub(crate) fn give_up(&self) {
        // Relaxed: the message that follows orders it.
        self.give_up.store(true, Ordering::Relaxed);
        self.close();
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Writers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: a number to look at.
        let waiting = self.threads.iter();
        let waiting: usize = waiting.map(|way| way.waiting.load(Ordering::Relaxed)).sum();
        f.debug_struct("Writers")
            .field("threads", &self.threads.len())
            .field("waiting", &waiting)
            .finish()
    }
}

struct Worker {
    receiver: Receiver<WriteMessage>,
    waiting: Arc<AtomicUsize>,
    requests: VecDeque<WriteRequest>,
    is_closed: bool,
    link: StoreLink,
    counters: Arc<Counters>,
    hints: Option<Hints>,
    give_up: Arc<AtomicBool>,
}

impl Worker {
    fn work(&mut self) {
        loop {
            if self.requests.is_empty() && !self.is_closed {
                match self.receiver.recv() {
                    Ok(message) => self.take(message),
                    Err(_) => return,
                }
            }
            // What has come while the last commit was under way.
            while self.requests.len() < WINDOW {
                match self.receiver.try_recv() {
                    Ok(message) => self.take(message),
                    Err(_) => break,
                }
            }
            // Relaxed: a thread that sees it late carries out one batch more.
            let gives_up = self.give_up.load(Ordering::Relaxed);
            if gives_up || (self.is_closed && self.requests.is_empty()) {
                return;
            }
            let batch = batch::take(&mut self.requests);
            if !batch.is_empty() {
                self.write(batch);
            }
        }
    }

    fn take(&mut self, message: WriteMessage) {
        match message {
            WriteMessage::Write(request) => self.requests.push_back(request),
            WriteMessage::Close => self.is_closed = true,
        }
    }

    fn write(&mut self, batch: Vec<WriteRequest>) {
        let number = batch.len();
        let (calls, answerings): (Vec<Call>, Vec<Answering>) = batch
            .into_iter()
            .map(|request| (request.call, request.answering))
            .unzip();
        let result = self.link.call(|connection| {
            let answers = connection.write(&calls)?;
            match answers.len() == calls.len() {
                true => Ok(answers),
                false => Err(StoreError::Unknown(format!(
                    "the store gave {} answers to {} calls",
                    answers.len(),
                    calls.len()
                ))),
            }
        });
        // Before the answers: a caller that waits for one sends the next call into a free place.
        // Relaxed: see `send_many`.
        self.waiting.fetch_sub(number, Ordering::Relaxed);
        match result {
            Ok(answers) => {
                self.counters.commits.increment();
                // The node first: a timer that is due now should not wait for the callers.
                if let Some(hints) = &self.hints {
                    let near: Vec<NearTimer> = calls
                        .iter()
                        .zip(&answers)
                        .filter_map(|(call, answer)| hints.of(call, answer.as_ref().ok()?))
                        .collect();
                    if !near.is_empty() {
                        (hints.tell)(near);
                    }
                }
                for (answering, answer) in answerings.into_iter().zip(answers) {
                    self.count(answer.as_ref().ok());
                    answering.send(answer.map_err(CallError::from));
                }
            }
            Err(error) => {
                let error = CallError::from(error);
                self.counters.failed_calls.add(number as u64);
                for answering in answerings {
                    answering.send(Err(error.clone()));
                }
            }
        }
    }

    fn count(&self, answer: Option<&Answer>) {
        let counters = &self.counters;
        match answer {
            Some(Answer::Scheduled { .. }) => counters.scheduled.increment(),
            Some(Answer::Moved { .. }) => counters.moved.increment(),
            Some(Answer::Cancelled { .. }) => counters.cancelled.increment(),
            Some(_) => {}
            None => counters.failed_calls.increment(),
        }
    }
}
