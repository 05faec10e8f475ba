//! Hears of releases, as long as somebody waits for one.
//!
//! One thread for a store, with one connection that is subscribed to the one channel. It starts
//! with the first who waits, and ends when nobody has waited for a while, or with the store. What
//! is published while it is not subscribed is lost, so whenever it has subscribed everybody looks.

use std::time::{Duration, Instant};

use redis::Value;
use tourbillon::{Clock, ClockParker, ClockUnparker};

use super::errors::{CallFault, answered};
use super::link::{Limit, Link, Server};
use crate::store::StoreError;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread::Builder;
use crate::sync::{Arc, Mutex};
use crate::wait_queue::WaitQueue;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(3);
/// How long a read lasts: within this time the thread notices that it is not needed any more.
const SLICE: Duration = Duration::from_secs(1);
/// After so long without a word the server is asked for one, since a connection that was cut in the
/// middle says nothing either; and without anybody who waits the thread ends.
const SILENCE: Duration = Duration::from_secs(5);
/// Between two attempts to connect, at first and at most.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

pub(super) struct Listener {
    server: Arc<Server>,
    channel: String,
    /// Who publishes: messages begin with it, and those of this store are not news here.
    own: String,
    pub(super) wait_queue: WaitQueue,
    closed: AtomicBool,
    /// What ends a pause of the thread, while there is one.
    running: Mutex<Option<ClockUnparker>>,
}

impl Listener {
    pub(super) fn new(server: Arc<Server>, channel: String, own: String) -> Self {
        Listener {
            server,
            channel,
            own,
            wait_queue: WaitQueue::default(),
            closed: AtomicBool::new(false),
            running: Mutex::new(None),
        }
    }

    /// The store, as messages and reservations name it.
    pub(super) fn own(&self) -> &str {
        &self.own
    }

    /// What the release of a name is announced with.
    pub(super) fn message(&self, name: &str) -> String {
        format!("{} {name}", self.own)
    }

    /// Sees to it that a thread listens; to be called when somebody waits in the hub.
    pub(super) fn listen(self: &Arc<Self>) {
        let mut running = self.running.lock();
        if running.is_some() {
            return;
        }
        let parker = ClockParker::new(&Clock::system());
        let unparker = parker.unparker();
        let listener = Arc::clone(self);
        let thread = Builder::new().name("tb-redis".to_owned());
        // Without a thread the waiters ask every now and then.
        if thread.spawn(move || listener.run(&parker)).is_ok() {
            *running = Some(unparker);
        }
    }

    /// Ends the thread, within a second or so.
    pub(super) fn close(&self) {
        // Nothing else is published with it: the thread only has to see it some time.
        self.closed.store(true, Ordering::Relaxed);
        if let Some(unparker) = &*self.running.lock() {
            unparker.unpark();
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.lock().is_some()
    }

    fn is_closed(&self) -> bool {
        // Pairs with nothing: `close` publishes nothing else.
        self.closed.load(Ordering::Relaxed)
    }

    /// Whether the thread has ended: then who waits next starts another one.
    fn ends(&self) -> bool {
        let mut running = self.running.lock();
        // Who waits enters the hub first and takes this lock afterwards: either it is seen here, or
        // it sees that there is no thread.
        let ends = self.is_closed() || self.wait_queue.is_empty();
        if ends {
            *running = None;
        }
        ends
    }

    fn run(&self, parker: &ClockParker) {
        let _ended = Ended(self);
        let mut pause = PAUSE;
        loop {
            // What went wrong is of no interest: renewals and acquires meet it too, and tell.
            let heard = self.subscribed(&mut pause);
            if heard.is_ok() || self.ends() {
                return;
            }
            parker.park_for(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Listens on one connection, until the thread has ended.
    fn subscribed(&self, pause: &mut Duration) -> Result<(), StoreError> {
        let limit = Limit::new(CONNECT);
        let mut link = Link::open(&self.server, limit)?;
        let mut subscribe = redis::cmd("SUBSCRIBE");
        subscribe.arg(&self.channel);
        let commands = subscribe.get_packed_command();
        for answer in link.exchange(&self.server, &commands, 1, limit)? {
            if let Value::ServerError(error) = answer {
                return Err(answered(&error));
            }
        }
        self.wait_queue.all_may_be_free();
        *pause = PAUSE;
        let mut heard = Instant::now();
        let mut wanted = heard;
        loop {
            match link.receive(&self.server, Limit::new(SLICE)) {
                Ok(message) => {
                    heard = Instant::now();
                    self.hear(&message);
                }
                Err(CallFault::Late(_)) if heard.elapsed() < SILENCE => {}
                Err(CallFault::Late(_)) => {
                    let ping = redis::cmd("PING").get_packed_command();
                    let limit = Limit::new(SLICE);
                    link.send(&self.server, &ping, limit)?;
                    // Whatever it says now, it lives.
                    let message = link.receive(&self.server, limit)?;
                    heard = Instant::now();
                    self.hear(&message);
                }
                Err(fault) => return Err(fault.into()),
            }
            // Others may have much to say all the time.
            if !self.wait_queue.is_empty() {
                wanted = Instant::now();
            }
            let unwanted = wanted.elapsed() >= SILENCE;
            if (unwanted || self.is_closed()) && self.ends() {
                return Ok(());
            }
        }
    }

    /// Messages are lists: `message`, the channel, the text. Answers to other commands are not.
    fn hear(&self, message: &Value) {
        let Value::Array(words) = message else {
            return;
        };
        let [Value::BulkString(kind), _, Value::BulkString(text)] = &words[..] else {
            return;
        };
        let (b"message", Ok(text)) = (&kind[..], std::str::from_utf8(text)) else {
            return;
        };
        // The store that released a name has woken one of its own already.
        if let Some((who, name)) = text.split_once(' ')
            && who != self.own
        {
            self.wait_queue.released(name);
        }
    }
}

/// Says that there is no thread any more, also after a panic.
struct Ended<'a>(&'a Listener);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if crate::sync::thread::panicking() {
            *self.0.running.lock() = None;
        }
    }
}
