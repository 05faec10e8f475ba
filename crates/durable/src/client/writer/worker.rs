//! The threads that carry calls to the store.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;

use super::batch::{self, LARGEST, WINDOW, WriteRequest};
use super::batch_sender::{BatchSender, Hints};
use super::capacity::Capacity;
use super::locked::{LockedCalls, LockedSender};
use super::reply::CallReply;
use crate::calls::CallError;
use crate::client::store_handle::StoreHandle;
use crate::events::Counters;
use crate::store::{Call, StoreError};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::channel::{Receiver, Sender, unbounded};
use crate::sync::{Arc, thread};

enum WriteMessage {
    Write(WriteRequest),
    /// No more calls come.
    Close,
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
    capacity: Arc<Capacity>,
}

impl Writers {
    /// Starts the threads, which keep `alive`. The first of them opens its connection, to see
    /// whether the store is there.
    pub(crate) fn start(
        number: usize,
        store_handle: &Arc<StoreHandle>,
        counters: &Arc<Counters>,
        hints: Option<&Hints>,
        alive: &Sender<()>,
    ) -> io::Result<(Self, oneshot::Receiver<Result<(), StoreError>>)> {
        let give_up = Arc::new(AtomicBool::new(false));
        let (opened, is_open) = oneshot::channel();
        let mut opened = Some(opened);
        let batch_sender = || BatchSender::new(store_handle, counters, hints);
        let (locked, mut calls) =
            LockedCalls::new(batch_sender(), store_handle.lock_limit(), &give_up);
        let kept = alive.clone();
        thread::spawn("locked", move || {
            calls.work();
            // The requests that are left are answered before.
            drop(calls);
            drop(kept);
        })?;
        let mut start = |at: usize| {
            let (sender, receiver) = unbounded();
            let capacity = Arc::new(Capacity::default());
            let mut worker = Worker {
                receiver,
                requests: VecDeque::new(),
                is_closed: false,
                batch_sender: batch_sender(),
                locked: locked.clone(),
                give_up: Arc::clone(&give_up),
            };
            let alive = alive.clone();
            let opened = opened.take();
            thread::spawn(&format!("write-{at}"), move || {
                if let Some(opened) = opened {
                    // The starting thread waits for it.
                    drop(opened.send(worker.batch_sender.open()));
                }
                worker.work();
                // The requests that are left are answered before.
                drop(worker);
                drop(alive);
            })?;
            Ok(WriterThread { sender, capacity })
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
    pub(crate) fn send(&self, call: Call, reply: CallReply) {
        let (at, hash) = self.place(&call);
        let thread = &self.threads[at];
        match thread.capacity.refusal() {
            None => thread.send(call, reply, hash),
            Some(why) => reply.send(Err(CallError::Unavailable(why))),
        }
    }

    /// Sends calls. The bound on waiting calls is asked once for each thread, before the first one.
    pub(crate) fn send_many(&self, calls: impl Iterator<Item = (Call, CallReply)>) {
        let mut refusals = vec![None; self.threads.len()];
        for (call, reply) in calls {
            let (at, hash) = self.place(&call);
            let thread = &self.threads[at];
            match refusals[at].get_or_insert_with(|| thread.capacity.refusal()) {
                None => thread.send(call, reply, hash),
                Some(why) => reply.send(Err(CallError::Unavailable(why.clone()))),
            }
        }
    }

    /// The index of the thread of a queue and key, and their hash.
    fn place(&self, call: &Call) -> (usize, u64) {
        let hash = self.hasher.hash_one((&call.queue, &call.key));
        ((hash % self.threads.len() as u64) as usize, hash)
    }

    /// Ends the threads when the calls that wait have been carried out.
    pub(crate) fn close(&self) {
        for thread in &self.threads {
            drop(thread.sender.send(WriteMessage::Close));
        }
    }

    /// Ends the threads without carrying out the calls that wait.
    pub(crate) fn give_up(&self) {
        // Relaxed: the message that follows orders it.
        self.give_up.store(true, Ordering::Relaxed);
        self.close();
    }
}

impl WriterThread {
    /// Sends a call to the thread. One that has ended drops it, which answers it.
    fn send(&self, call: Call, reply: CallReply, hash: u64) {
        let reservation = self.capacity.reserve(batch::bytes(&call));
        drop(self.sender.send(WriteMessage::Write(WriteRequest {
            call,
            reply,
            hash,
            reservation,
            until: None,
        })));
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Writers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.threads.iter();
        let waiting: usize = waiting.map(|thread| thread.capacity.calls()).sum();
        f.debug_struct("Writers")
            .field("threads", &self.threads.len())
            .field("waiting", &waiting)
            .finish()
    }
}

struct Worker {
    receiver: Receiver<WriteMessage>,
    requests: VecDeque<WriteRequest>,
    is_closed: bool,
    batch_sender: BatchSender,
    locked: LockedSender,
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
            // Take the calls that came during the last commit.
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
            let batch = batch::take(&mut self.requests, LARGEST);
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
        let batch = self.locked.divert(batch);
        if !batch.is_empty() {
            let locked = self.batch_sender.send(batch);
            let locked = locked.into_iter().map(|(request, _)| request);
            self.locked.detain(locked.collect());
        }
    }
}
