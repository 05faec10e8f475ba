//! The thread of the calls whose rows others have locked.
//!
//! ```text
//!   caller -> writer thread -> store: carried out -> answer
//!                 |              |
//!                 |              +- locked -> this thread, which sends it again until it is carried
//!                 +- same key as a call here -^                          out, or the limit is over
//! ```
//!
//! A key is *detained* while this thread has calls on it. See WRITER-3.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use super::batch::{self, LARGEST, WriteRequest};
use super::batch_sender::BatchSender;
use crate::store::StoreError;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use crate::sync::{Arc, Mutex, thread};

/// The first pause between two attempts. Most transactions are short.
const FIRST_PAUSE: Duration = Duration::from_millis(2);

/// The longest pause between two attempts, and about how long a call waits after the end of the
/// lock.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// The size of a batch is divided by this after an attempt that has carried out nothing. Locked
/// calls may hide others of their batch, and those of a small batch hide few.
const SHRINK: usize = 8;

/// The number of calls of each hash that are detained.
type Detained = Arc<Mutex<HashMap<u64, usize>>>;

/// Sends calls to this thread. The thread ends when all senders are dropped.
#[derive(Clone)]
pub(super) struct LockedSender {
    sender: Sender<WriteRequest>,
    detained: Detained,
    limit: Duration,
}

impl LockedSender {
    /// Takes over calls that were found locked.
    pub(super) fn detain(&self, locked: Vec<WriteRequest>) {
        if locked.is_empty() {
            return;
        }
        let mut detained = self.detained.lock();
        for request in locked {
            self.send(&mut detained, request);
        }
    }

    /// Takes over the calls that must not overtake detained ones, and returns the others.
    pub(super) fn divert(&self, batch: Vec<WriteRequest>) -> Vec<WriteRequest> {
        let mut detained = self.detained.lock();
        if detained.is_empty() {
            return batch;
        }
        let mut free = Vec::with_capacity(batch.len());
        for request in batch {
            match detained.contains_key(&request.hash) {
                true => self.send(&mut detained, request),
                false => free.push(request),
            }
        }
        free
    }

    /// Sends under the lock, so that the order of the calls on one key is kept.
    fn send(&self, detained: &mut HashMap<u64, usize>, mut request: WriteRequest) {
        request.until = Some(Instant::now() + self.limit);
        *detained.entry(request.hash).or_default() += 1;
        // The thread ends after its writers. If it did not, the drop of the request would answer
        // it.
        drop(self.sender.send(request));
    }
}

/// The thread itself.
pub(super) struct LockedCalls {
    receiver: Receiver<WriteRequest>,
    detained: Detained,
    waiting: VecDeque<WriteRequest>,
    /// The size of the next batch.
    most: usize,
    batch_sender: BatchSender,
    give_up: Arc<AtomicBool>,
}

impl LockedCalls {
    /// Returns the sender to the thread, and what it works on.
    pub(super) fn new(
        batch_sender: BatchSender,
        limit: Duration,
        give_up: &Arc<AtomicBool>,
    ) -> (LockedSender, Self) {
        let (sender, receiver) = unbounded();
        let detained = Detained::default();
        let sender = LockedSender {
            sender,
            detained: Arc::clone(&detained),
            limit,
        };
        let calls = LockedCalls {
            receiver,
            detained,
            waiting: VecDeque::new(),
            most: LARGEST,
            batch_sender,
            give_up: Arc::clone(give_up),
        };
        (sender, calls)
    }

    /// Works until all senders are dropped and no call is left, or until the calls are given up.
    pub(super) fn work(&mut self) {
        let mut pause = FIRST_PAUSE;
        // Relaxed: a thread that sees it late makes one attempt more.
        while self.take(pause) && !self.give_up.load(Ordering::Relaxed) {
            (pause, self.most) = match self.attempt() {
                true => (FIRST_PAUSE, (self.most * 2).min(LARGEST)),
                false => (
                    (pause * 2).min(LONGEST_PAUSE),
                    (self.most / SHRINK).max(SHRINK),
                ),
            };
        }
    }

    /// Waits for the next attempt. The result is false if there will be none.
    fn take(&mut self, pause: Duration) -> bool {
        if self.waiting.is_empty() {
            match self.receiver.recv() {
                Ok(request) => self.waiting.push_back(request),
                Err(_) => return false,
            }
        }
        // Calls that come do not shorten the pause: each of them was refused just now.
        let end = Instant::now() + pause;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            match self.receiver.recv_timeout(left) {
                Ok(request) => self.waiting.push_back(request),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => {
                    thread::sleep(left);
                    break;
                }
            }
        }
        true
    }

    /// Sends calls again. The result says whether one of them has an answer now.
    fn attempt(&mut self) -> bool {
        let batch = batch::take(&mut self.waiting, self.most);
        let sent: Vec<u64> = batch.iter().map(|request| request.hash).collect();
        let locked = self.batch_sender.send(batch);
        let now = Instant::now();
        let mut kept = Vec::new();
        for (request, why) in locked {
            match request.until.is_some_and(|until| now < until) {
                true => kept.push(request),
                false => self.batch_sender.fail(request, StoreError::Locked(why)),
            }
        }
        let mut detained = self.detained.lock();
        // No batch has two calls with one hash, so each hash that was sent and not kept has an
        // answer.
        let mut left = kept.iter().map(|request| request.hash).peekable();
        for hash in &sent {
            if left.next_if_eq(hash).is_some() {
                continue;
            }
            if let Some(number) = detained.get_mut(hash) {
                *number -= 1;
                if *number == 0 {
                    detained.remove(hash);
                }
            }
        }
        drop(detained);
        let has_answered = kept.len() < sent.len();
        // Before the later calls on the same keys. Calls on other keys that did not fit into the
        // batch have their turn first, or a thousand locked ones would keep them out.
        let keys: HashSet<u64> = kept.iter().map(|request| request.hash).collect();
        let (same, others): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|request| keys.contains(&request.hash));
        self.waiting = others;
        self.waiting.extend(kept);
        self.waiting.extend(same);
        has_answered
    }
}
