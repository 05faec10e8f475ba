//! What the application hears of its leases, without ever holding up a renewal.
//!
//! A channel gets what it has room for; what it has no room for is counted. A callback runs on
//! workers of its own. The events of one series reach it in their order and one at a time; those of
//! others go on beside one that hangs. What waits for it is bounded, but for the losses, of which each
//! series has one.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::time::Duration;

use tourbillon::Time;

use super::super::store::StoreError;
use super::lease_state::Loss;
use super::timers::{TimerKey, Timers};
use crate::panics::catch_panic;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::channel::{Receiver, Sender, TrySendError, bounded};
use crate::sync::{Arc, Mutex, Weak};

/// So many events of one series wait for a callback that is behind.
const MAILBOX: usize = 64;
/// And so many of all series.
const MAIL: usize = 65_536;

/// Something happened to what a [`KeepAlive`](super::Watchdog) keeps.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Event<K> {
    /// What it is about.
    pub key: K,
    /// When, by the watchdog's clock.
    pub at: Time,
    /// What happened.
    pub what: What,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum What {
    /// It was renewed.
    #[non_exhaustive]
    Renewed {
        /// Good until then by the local clock.
        until: Time,
        /// How often it has been.
        renewals: u64,
    },
    /// An attempt failed, and there will be another one.
    #[non_exhaustive]
    Failed {
        /// Why.
        error: StoreError,
        /// How many have failed in a row.
        attempts: u32,
        /// What is left.
        remaining: Duration,
    },
    /// A third of the lease is left, or less, and it is still being tried to renew it. Told once until
    /// that succeeds; not of a lease that is not renewed, nor before the end of a feeding period or of
    /// the longest hold.
    #[non_exhaustive]
    AtRisk {
        /// What is left.
        remaining: Duration,
    },
    /// It is lost, for good: the last event of this series.
    Lost(Loss),
    /// A caller of [`Leases`](super::super::Leases) is waiting for a lock. This event comes after
    /// one second, and again after pauses of 2 s, 4 s, 8 s and so on, until the call returns. The
    /// event's key has the name of the lock and the owner that asks for it. Its token is 0, since
    /// nothing has been granted. A [`KeepAlive`](super::Watchdog) without leases has no such event.
    #[non_exhaustive]
    Waiting {
        /// When the wait began.
        since: Time,
        /// Why the store does not grant the lock: the error of its last answer, or an error that
        /// says that a call has had no answer for a while. `None` while somebody else holds the
        /// lock.
        error: Option<StoreError>,
    },
    /// A renewal began so long after it was due. The machine is busy, or the process was stopped.
    #[non_exhaustive]
    Late {
        /// By how much.
        by: Duration,
    },
    /// It has been renewed so often as `alarm_after` says: has somebody forgotten it?
    #[non_exhaustive]
    HeldLong {
        /// How often.
        renewals: u64,
    },
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Renewed { renewals, .. } => write!(f, "renewal {renewals}"),
            What::Failed {
                error,
                attempts,
                remaining,
            } => write!(
                f,
                "attempt {attempts} failed, {} ms are left: {error}",
                remaining.as_millis()
            ),
            What::AtRisk { remaining } => {
                write!(f, "at risk: {} ms are left", remaining.as_millis())
            }
            What::Lost(loss) => write!(f, "lost: {loss}"),
            What::Waiting { error: None, .. } => f.write_str("waiting: somebody else holds it"),
            What::Waiting {
                error: Some(error), ..
            } => write!(f, "waiting: {error}"),
            What::Late { by } => write!(f, "a renewal began {} ms late", by.as_millis()),
            What::HeldLong { renewals } => write!(f, "held long: renewed {renewals} times"),
        }
    }
}

pub(super) type Callback<K> = dyn Fn(&Event<K>) + Send + Sync;

/// An event, once for each who gets it.
pub(super) struct Prepared<K> {
    channels: Vec<(Sender<Event<K>>, Event<K>)>,
    mail: Option<Event<K>>,
}

/// What waits for the callback.
struct Post<K> {
    /// By series. None is empty, but for one whose last event is with the callback just now.
    boxes: HashMap<u64, VecDeque<Event<K>>>,
    /// In all of them.
    waiting: usize,
}

/// Tells them.
pub(super) struct EventSink<K> {
    callback: Option<Box<Callback<K>>>,
    /// Relaxed hint that there is somebody to tell.
    heard: AtomicBool,
    channels: Mutex<Vec<Sender<Event<K>>>>,
    mailboxes: Mutex<Post<K>>,
    missed: AtomicU64,
}

impl<K: Clone + Send + Sync + 'static> EventSink<K> {
    pub(super) fn new(callback: Option<Box<Callback<K>>>) -> Self {
        EventSink {
            heard: AtomicBool::new(callback.is_some()),
            callback,
            channels: Mutex::new(Vec::new()),
            mailboxes: Mutex::new(Post {
                boxes: HashMap::new(),
                waiting: 0,
            }),
            missed: AtomicU64::new(0),
        }
    }

    pub(super) fn subscribe(&self, capacity: usize) -> Receiver<Event<K>> {
        let (sender, receiver) = bounded(capacity.max(1));
        self.channels.lock().push(sender);
        // Relaxed: who subscribes gets what is told from some moment on.
        self.heard.store(true, Ordering::Relaxed);
        receiver
    }

    /// How many events had no room.
    pub(super) fn missed(&self) -> u64 {
        // Relaxed: a counter.
        self.missed.load(Ordering::Relaxed)
    }

    pub(super) fn miss(&self, events: u64) {
        // Relaxed: a counter.
        self.missed.fetch_add(events, Ordering::Relaxed);
    }

    /// Copies of an event for all who want it; `None` if nobody does. Runs the key's `Clone`.
    pub(super) fn prepare(&self, key: &K, at: Time, what: What) -> Option<Prepared<K>> {
        // Relaxed: see `subscribe`.
        if !self.heard.load(Ordering::Relaxed) {
            return None;
        }
        let event = Event {
            key: key.clone(),
            at,
            what,
        };
        let channels = self.channels.lock().clone();
        let channels = channels.into_iter();
        let channels = channels.map(|channel| (channel, event.clone())).collect();
        let mail = self.callback.is_some().then_some(event);
        Some(Prepared { channels, mail })
    }

    /// Never blocks, and runs no code of others. What found no room comes back.
    pub(super) fn post(
        self: &Arc<Self>,
        timers: &Timers,
        registration: u64,
        event: Prepared<K>,
    ) -> Vec<Event<K>> {
        let mut left = Vec::new();
        for (channel, event) in event.channels {
            match channel.try_send(event) {
                Ok(()) => {}
                Err(TrySendError::Full(event)) => {
                    self.miss(1);
                    left.push(event);
                }
                Err(TrySendError::Disconnected(event)) => {
                    left.push(event);
                    let mut channels = self.channels.lock();
                    channels.retain(|other| !other.same_channel(&channel));
                }
            }
        }
        if let Some(event) = event.mail {
            left.extend(self.mail(timers, registration, event));
        }
        left
    }

    fn mail(
        self: &Arc<Self>,
        timers: &Timers,
        registration: u64,
        event: Event<K>,
    ) -> Option<Event<K>> {
        let lost = matches!(event.what, What::Lost(_));
        let mut post = self.mailboxes.lock();
        let first = !post.boxes.contains_key(&registration);
        let waiting = post.waiting;
        let mailbox = post.boxes.entry(registration).or_default();
        if !lost && (mailbox.len() >= MAILBOX || waiting >= MAIL) {
            if first {
                post.boxes.remove(&registration);
            }
            drop(post);
            self.miss(1);
            return Some(event);
        }
        mailbox.push_back(event);
        post.waiting += 1;
        drop(post);
        if first {
            let events: Weak<Self> = Arc::downgrade(self);
            let posted = timers.tell(TimerKey::Tell(registration), move || {
                if let Some(events) = events.upgrade() {
                    events.empty(registration);
                }
            });
            if !posted {
                while self.next(registration).is_some() {
                    self.miss(1);
                }
            }
        }
        None
    }

    /// The next event of a series; its mailbox goes with the last one.
    fn next(&self, registration: u64) -> Option<Event<K>> {
        let mut post = self.mailboxes.lock();
        let next = post
            .boxes
            .get_mut(&registration)
            .and_then(VecDeque::pop_front);
        match next {
            Some(_) => post.waiting -= 1,
            None => {
                post.boxes.remove(&registration);
            }
        }
        next
    }

    /// On a worker: as long as there is a mailbox, one of these runs or is about to.
    fn empty(&self, registration: u64) {
        while let (Some(event), Some(callback)) = (self.next(registration), &self.callback) {
            // Its panic is its own; the panic hook has printed it.
            let _ = catch_panic(move || callback(&event));
        }
    }
}
