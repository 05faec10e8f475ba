//! What the application hears of its leases, without ever holding up a renewal.
//!
//! A channel gets what it has room for; what it has no room for is counted. A callback runs on
//! workers of its own. The events of one series reach it in their order and one at a time; those of
//! others go on beside one that hangs. What waits for it is bounded, but for the loss, of which there
//! is one.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::super::store::StoreError;
use super::term::Loss;
use super::timers::{Alarm, Timers};
use crate::job::contain;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::channel::{Receiver, Sender, TrySendError, bounded};
use crate::sync::{Arc, Mutex, Weak};
use crate::tick::Time;

/// So many events of one series wait for a callback that is behind.
const MAILBOX: usize = 64;

/// Something happened to what a [`Watchdog`](super::Watchdog) keeps.
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
    Renewed {
        /// Good until then by the local clock.
        until: Time,
        /// How often it has been.
        renewals: u64,
    },
    /// An attempt failed, and there will be another one.
    Failed {
        /// Why.
        error: StoreError,
        /// How many have failed in a row.
        attempts: u32,
        /// What is left.
        remaining: Duration,
    },
    /// A third of the lease is left, or less, and it is still being tried. Told once until it
    /// succeeds.
    AtRisk {
        /// What is left.
        remaining: Duration,
    },
    /// It is lost, for good: the last event of this series.
    Lost(Loss),
    /// A renewal began so long after it was due. The machine is busy, or the process was stopped.
    Late {
        /// By how much.
        by: Duration,
    },
    /// It has been renewed so often as `alarm_after` says: has somebody forgotten it?
    HeldLong {
        /// How often.
        renewals: u64,
    },
}

pub(super) type Callback<K> = dyn Fn(&Event<K>) + Send + Sync;

/// Tells them.
pub(super) struct Teller<K> {
    callback: Option<Box<Callback<K>>>,
    /// Relaxed hint that there is somebody to tell.
    heard: AtomicBool,
    channels: Mutex<Vec<Sender<Event<K>>>>,
    mailboxes: Mutex<HashMap<u64, VecDeque<Event<K>>>>,
    missed: AtomicU64,
}

impl<K: Clone + Send + Sync + 'static> Teller<K> {
    pub(super) fn new(callback: Option<Box<Callback<K>>>) -> Self {
        Teller {
            heard: AtomicBool::new(callback.is_some()),
            callback,
            channels: Mutex::new(Vec::new()),
            mailboxes: Mutex::new(HashMap::new()),
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

    fn miss(&self, events: u64) {
        // Relaxed: a counter.
        self.missed.fetch_add(events, Ordering::Relaxed);
    }

    /// Never blocks. The only code of others that runs is the clone of a key; if that panics, the
    /// event is missed.
    pub(super) fn tell(
        self: &Arc<Self>,
        timers: &Timers,
        series: u64,
        key: &K,
        at: Time,
        what: What,
    ) {
        // Relaxed: see `subscribe`.
        if !self.heard.load(Ordering::Relaxed) {
            return;
        }
        let told = contain(|| {
            let key = key.clone();
            let event = Event { key, at, what };
            self.channels.lock().retain(|channel| {
                let refused = channel.try_send(event.clone()).err();
                let full = refused.as_ref().is_some_and(TrySendError::is_full);
                self.miss(u64::from(full));
                // Else there was room, or nobody listens any more.
                refused.is_none() || full
            });
            if self.callback.is_some() {
                self.post(timers, series, event);
            }
        });
        if told.is_err() {
            self.miss(1);
        }
    }

    fn post(self: &Arc<Self>, timers: &Timers, series: u64, event: Event<K>) {
        let mut mailboxes = self.mailboxes.lock();
        let first = !mailboxes.contains_key(&series);
        let mailbox = mailboxes.entry(series).or_default();
        let lost = matches!(event.what, What::Lost(_));
        if mailbox.len() < MAILBOX || lost {
            mailbox.push_back(event);
        } else {
            self.miss(1);
        }
        drop(mailboxes);
        if first {
            let teller: Weak<Self> = Arc::downgrade(self);
            let posted = timers.tell(Alarm::Tell(series), move || {
                if let Some(teller) = teller.upgrade() {
                    teller.empty(series);
                }
            });
            if !posted {
                let left = self.mailboxes.lock().remove(&series);
                self.miss(left.map_or(0, |left| left.len() as u64));
            }
        }
    }

    /// On a worker: as long as there is a mailbox, one of these runs or is about to.
    fn empty(&self, series: u64) {
        loop {
            let event = {
                let mut mailboxes = self.mailboxes.lock();
                let next = mailboxes.get_mut(&series).and_then(VecDeque::pop_front);
                if next.is_none() {
                    mailboxes.remove(&series);
                }
                next
            };
            let (Some(event), Some(callback)) = (event, &self.callback) else {
                return;
            };
            // Its panic is its own; the panic hook has printed it.
            let _ = contain(|| callback(&event));
        }
    }
}
