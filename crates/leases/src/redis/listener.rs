//! Listens for releases while a caller waits for a lock.
//!
//! Each store has one such thread, with one connection that subscribes to the channel of the store.
//! The thread starts with the first waiting caller. It ends when no caller has waited for a while,
//! or with the store. Messages that are published while it is not subscribed are lost. So after
//! each subscription all waiting callers are woken.

use std::time::{Duration, Instant};

use redis::Value;
use tourbillon::{Clock, ClockParker, ClockUnparker};

use super::errors::{CallFault, answered};
use super::link::{Limit, Link, Server};
use crate::store::{StoreError, WaitQueue};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread::Builder;
use crate::sync::{Arc, Mutex};

/// The limit for connecting and subscribing.
const CONNECT: Duration = Duration::from_secs(3);
/// The limit of one read. Within this time the thread notices that it is not needed any more.
const SLICE: Duration = Duration::from_secs(1);
/// After this time without a message the thread pings the server, since a connection that was cut
/// is silent, too. After this time without a waiting caller the thread ends.
const SILENCE: Duration = Duration::from_secs(5);
/// The first pause between two attempts to connect. It doubles up to the longest pause.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// The thread that listens for releases, and the callers that it wakes.
pub(super) struct Listener {
    server: Arc<Server>,
    channel: String,
    /// The id of this store. Messages begin with the id of the store that publishes them, and a
    /// store ignores its own.
    own: String,
    pub(super) wait_queue: WaitQueue,
    closed: AtomicBool,
    /// Ends a pause of the thread; `None` while there is no thread.
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

    /// Returns the id of this store in messages and reservations.
    pub(super) fn own(&self) -> &str {
        &self.own
    }

    /// Returns the message that announces the release of a name.
    pub(super) fn message(&self, name: &str) -> String {
        format!("{} {name}", self.own)
    }

    /// Starts the thread if there is none. Call this after a caller has entered the wait queue.
    pub(super) fn listen(self: &Arc<Self>) {
        let mut running = self.running.lock();
        if running.is_some() {
            return;
        }
        let parker = ClockParker::new(&Clock::system());
        let unparker = parker.unparker();
        let listener = Arc::clone(self);
        let thread = Builder::new().name("tb-redis".to_owned());
        // If no thread can be started, waiting callers find a release by asking again.
        if thread.spawn(move || listener.run(&parker)).is_ok() {
            *running = Some(unparker);
        }
    }

    /// Makes the thread end within about a second.
    pub(super) fn close(&self) {
        // Relaxed: nothing else is published with the flag, and the thread only has to see it some
        // time.
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

    /// Decides whether the thread ends. If so, the next waiting caller starts another thread.
    fn ends(&self) -> bool {
        let mut running = self.running.lock();
        // A waiting caller enters the wait queue first, and takes this lock afterwards. So either
        // it is seen here, or it sees that there is no thread.
        let ends = self.is_closed() || self.wait_queue.is_empty();
        if ends {
            *running = None;
        }
        ends
    }

    /// Listens until the thread is not needed any more, and connects again after each error.
    fn run(&self, parker: &ClockParker) {
        let _ended = Ended(self);
        let mut pause = PAUSE;
        loop {
            // The error is dropped: renewals and acquires meet it too, and report it.
            let heard = self.subscribed(&mut pause);
            if heard.is_ok() || self.ends() {
                return;
            }
            parker.park_for(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Listens on one connection until it fails or the thread has to end.
    fn subscribed(&self, pause: &mut Duration) -> Result<(), StoreError> {
        let limit = Limit::new(CONNECT);
        let mut link = Link::open(&self.server, limit)?;
        // Subscribe first: whatever is published from now on is received.
        let mut subscribe = redis::cmd("SUBSCRIBE");
        subscribe.arg(&self.channel);
        let commands = subscribe.get_packed_command();
        for answer in link.exchange(&self.server, &commands, 1, limit)? {
            if let Value::ServerError(error) = answer {
                return Err(answered(&error));
            }
        }
        // Releases may have been missed before the subscription.
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
                // A short silence is normal. The read ended only so that the checks below run.
                Err(CallFault::Late(_)) if heard.elapsed() < SILENCE => {}
                Err(CallFault::Late(_)) => {
                    let ping = redis::cmd("PING").get_packed_command();
                    let limit = Limit::new(SLICE);
                    link.send(&self.server, &ping, limit)?;
                    // Any message now proves that the connection works.
                    let message = link.receive(&self.server, limit)?;
                    heard = Instant::now();
                    self.hear(&message);
                }
                Err(fault) => return Err(fault.into()),
            }
            // Checked in each turn, also after a message: other stores may publish without a pause.
            if !self.wait_queue.is_empty() {
                wanted = Instant::now();
            }
            let unwanted = wanted.elapsed() >= SILENCE;
            if (unwanted || self.is_closed()) && self.ends() {
                return Ok(());
            }
        }
    }

    /// Wakes a caller that waits for the released name of this message.
    ///
    /// A message is a list of three items: `message`, the channel, and the text. Answers to other
    /// commands have other forms and are ignored.
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
        // The store that released a name has already woken one of its own callers.
        if let Some((who, name)) = text.split_once(' ')
            && who != self.own
        {
            self.wait_queue.released(name);
        }
    }
}

/// Notes on drop that there is no thread any more, if the thread panics. Otherwise `ends` has noted
/// it.
struct Ended<'a>(&'a Listener);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if crate::sync::thread::panicking() {
            *self.0.running.lock() = None;
        }
    }
}
