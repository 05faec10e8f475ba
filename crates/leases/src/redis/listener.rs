//! Listens for releases while a caller waits for a lock.
//!
//! Each store has one such task, with one connection that subscribes to the channel of the store.
//! The task starts with the first waiting caller. It ends when no caller has waited for a while,
//! or with the store. Messages that are published while it is not subscribed are lost. So after
//! each subscription all waiting callers are woken.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use redis::aio::PubSub;
use redis::{Msg, Value};
use tokio::time::{sleep, timeout};

use super::address::Seeds;
use super::errors::CallFault;
use super::server::Server;
use crate::remote::{ForkSafe, Io, Limit, Task};
use crate::store::{StoreError, WaitQueue};
use crate::sync::{Arc, Mutex};

/// The limit for connecting and subscribing.
const CONNECT: Duration = Duration::from_secs(3);
/// The longest wait for a message. Within this time the task notices that it is not needed any more.
const SLICE: Duration = Duration::from_secs(1);
/// After this time without a message the task pings the server, since a connection that was cut
/// is silent, too. After this time without a waiting caller the task ends.
const SILENCE: Duration = Duration::from_secs(5);
/// The first pause between two attempts to connect. It doubles up to the longest pause.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// The task that listens for releases, and the callers that it wakes.
pub(super) struct Listener {
    server: Arc<Server>,
    channel: String,
    /// The id of this store. Messages begin with the id of the store that publishes them, and a
    /// store ignores its own.
    own: String,
    pub(super) wait_queue: WaitQueue,
    /// `None` while there is no task.
    running: Mutex<Option<ForkSafe<Task>>>,
}

impl Listener {
    pub(super) fn new(server: Arc<Server>, channel: String, own: String) -> Self {
        Listener {
            server,
            channel,
            own,
            wait_queue: WaitQueue::default(),
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

    /// Starts the task if there is none. Call this after a caller has entered the wait queue.
    pub(super) fn listen(self: &Arc<Self>, io: &Io) {
        let mut running = self.running.lock();
        if !is_running(running.as_ref()) {
            let listener = Arc::clone(self);
            // If no thread can be started, waiting callers find a release by asking again.
            let task = io.start(async move { listener.run().await });
            *running = task.ok().map(ForkSafe::new);
        }
    }

    /// Ends the task.
    pub(super) fn close(&self) {
        let task = self.running.lock().take();
        drop(task);
    }

    pub(super) fn is_running(&self) -> bool {
        is_running(self.running.lock().as_ref())
    }

    /// Decides whether the task ends. If so, the next waiting caller starts another task.
    fn ends(&self) -> bool {
        let mut running = self.running.lock();
        // A waiting caller enters the wait queue first, and takes this lock afterwards. So either
        // it is seen here, or it sees that there is no task.
        let ends = self.wait_queue.is_empty();
        if ends {
            *running = None;
        }
        ends
    }

    /// Listens until the task is not needed any more, and connects again after each error.
    async fn run(&self) {
        let mut pause = PAUSE;
        loop {
            // The error is dropped: renewals and acquires meet it too, and report it.
            let heard = self.subscribed(&mut pause).await;
            if heard.is_ok() || self.ends() {
                return;
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Listens on one connection until it fails or the task has to end.
    async fn subscribed(&self, pause: &mut Duration) -> Result<(), StoreError> {
        let late = |_| StoreError::from(CallFault::late(&*self.server));
        let failed = |error| StoreError::from(CallFault::of(&error, &*self.server));
        let masters = || self.server.seeds().map(Seeds::masters);
        let known = masters();
        // Subscribe first: whatever is published from now on is received.
        let (at, opened) = self.subscribes().await?;
        let (mut sink, mut messages) = opened.split();
        // Releases may have been missed before the subscription.
        self.wait_queue.all_may_be_free();
        *pause = PAUSE;
        let mut heard = Instant::now();
        let mut wanted = heard;
        loop {
            match timeout(SLICE, messages.next()).await {
                Ok(Some(message)) => {
                    heard = Instant::now();
                    self.hear(&message);
                }
                Ok(None) => {
                    let why = format!("{}: the server has closed the connection", self.server);
                    return Err(StoreError::Unavailable(why));
                }
                // A short silence is normal. The wait ended only so that the checks below run.
                Err(_) if heard.elapsed() < SILENCE => {}
                Err(_) => {
                    let pinged = timeout(SLICE, sink.ping::<Value>()).await;
                    pinged.map_err(late)?.map_err(failed)?;
                    heard = Instant::now();
                }
            }
            // Checked in each turn, also after a message: other stores may publish without a pause.
            if !self.wait_queue.is_empty() {
                wanted = Instant::now();
            }
            if wanted.elapsed() >= SILENCE && self.ends() {
                return Ok(());
            }
            // A node that left the cluster hears of no releases any more.
            if let (Some(at), Some(now)) = (&at, masters())
                && !now.contains(at)
                && known.as_ref() != Some(&now)
            {
                let why = format!("{}: {}:{} is no master any more", self.server, at.0, at.1);
                return Err(StoreError::Unavailable(why));
            }
        }
    }

    /// Connects and subscribes. In a cluster any node will do, and one that hangs leaves time for others.
    async fn subscribes(&self) -> Result<(Option<(String, u16)>, PubSub), CallFault> {
        let seeds = self.server.seeds().map(Seeds::to_listen);
        let places = seeds.map_or_else(|| vec![None], |all| all.into_iter().map(Some).collect());
        let (whole, number) = (Limit::new(CONNECT), places.len() as u32);
        let mut fault = CallFault::late(&*self.server);
        for (tried, at) in (0..).zip(places) {
            let share = Limit::new(whole.left() / (number - tried));
            let subscribes = async {
                let mut opened = self.server.open_listener(at.as_ref(), share).await?;
                let subscribed = opened.subscribe(&self.channel).await;
                subscribed.map_err(|error| CallFault::of(&error, &*self.server))?;
                Ok::<_, CallFault>(opened)
            };
            fault = match timeout(share.left(), subscribes).await {
                Ok(Ok(opened)) => return Ok((at, opened)),
                Ok(Err(other)) => other,
                Err(_) => CallFault::late(&*self.server),
            };
        }
        Err(fault)
    }

    /// Wakes a caller that waits for the released name of this message.
    fn hear(&self, message: &Msg) {
        let Ok(text) = std::str::from_utf8(message.get_payload_bytes()) else {
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

fn is_running(task: Option<&ForkSafe<Task>>) -> bool {
    task.is_some_and(|task| task.get().is_ok_and(|task| !task.is_over()))
}
