//! The events that the application gets, none of which can hold up a renewal.
//!
//! - A channel gets an event if it has room. An event without room is dropped and counted.
//! - A callback runs on workers of its own. It gets the events of one registration in order, one at
//!   a time. While one call hangs, the events of other registrations go on.
//! - The number of events that wait for the callback is bounded. Losses are not counted against the
//!   bound, since each registration has at most one.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::time::Duration;

use tourbillon::Time;

use super::lease_state::Loss;
use super::timer_key::TimerKey;
use super::timers::Timers;
use crate::store::StoreError;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::channel::{Receiver, Sender, TrySendError, bounded};
use crate::sync::{Arc, Mutex, Weak, catch_panic};

/// The number of events of one registration that may wait for a callback that is behind.
const MAILBOX: usize = 64;
/// The number of events of all registrations that may wait for the callback.
const MAIL: usize = 65_536;

/// An event about a key of a [`KeepAlive`](super::KeepAlive) or a lock of
/// [`Leases`](crate::Leases).
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon_leases::{KeepAlive, Outcome};
/// # let sessions = KeepAlive::<u64>::builder()
/// #     .build(async |batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
/// let events = sessions.events(64);
/// let session = sessions.keep(7, Duration::from_secs(30))?;
/// for event in events.try_iter() {
///     println!("session {} at {:?}: {}", event.key, event.at, event.what);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Event<K> {
    /// The key or lock that the event is about.
    pub key: K,
    /// The moment of the event, by the clock of the `KeepAlive` or the `Leases`.
    pub at: Time,
    /// What happened.
    pub what: What,
}

/// The kind of an [`Event`].
///
/// # Examples
///
/// ```
/// use tourbillon_leases::What;
///
/// fn is_urgent(what: &What) -> bool {
///     matches!(what, What::AtRisk { .. } | What::Lost(_))
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum What {
    /// The lease was renewed.
    #[non_exhaustive]
    Renewed {
        /// The end of the renewed lease by the local clock.
        until: Time,
        /// The number of renewals so far.
        renewals: u64,
    },
    /// An attempt to renew failed. Another one will follow.
    #[non_exhaustive]
    Failed {
        /// How the attempt failed.
        error: StoreError,
        /// The number of attempts that have failed in a row.
        attempts: u32,
        /// The time until the lease is lost if no attempt succeeds.
        remaining: Duration,
    },
    /// A third of the lease or less is left, and no attempt since the last renewal has succeeded.
    ///
    /// The event is posted once, and again only after a renewal has succeeded. There is no such
    /// event for a lease that is not renewed, and none for the end of a feeding period or of the
    /// longest hold.
    #[non_exhaustive]
    AtRisk {
        /// The rest of the lease.
        remaining: Duration,
    },
    /// The lease is lost, for good. This is the last event of the registration.
    Lost(Loss),
    /// A caller of [`Leases`](crate::Leases) is waiting for a lock.
    ///
    /// This event comes after one second, and again after pauses of 2 s, 4 s, 8 s and so on, until
    /// the call returns. The event's key has the name of the lock and the owner that asks for it.
    /// Its token is 0, since nothing has been granted. A [`KeepAlive`](super::KeepAlive) that is
    /// used without `Leases` has no such event.
    #[non_exhaustive]
    Waiting {
        /// When the wait began.
        since: Time,
        /// Why the store does not grant the lock: the error of its last answer, or an error that
        /// says that a call has had no answer for a while. `None` while somebody else holds the
        /// lock.
        error: Option<StoreError>,
    },
    /// A renewal began late. The machine is busy, or the process was stopped.
    #[non_exhaustive]
    Late {
        /// How long after it was due the renewal began.
        by: Duration,
    },
    /// The lease has been renewed as often as
    /// [`alarm_after`](super::KeepAliveBuilder::alarm_after) says. Perhaps a holder has forgotten
    /// its guard.
    #[non_exhaustive]
    HeldLong {
        /// The number of renewals so far.
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

#[cfg(feature = "tracing")]
impl What {
    /// Whether it says that something goes wrong.
    fn is_warning(&self) -> bool {
        !matches!(self, What::Renewed { .. } | What::Lost(Loss::Closed))
    }
}

/// Warns of an event.
#[cfg(feature = "tracing")]
pub(crate) type Trace<K> = fn(&Event<K>);

pub(super) type Callback<K> = dyn Fn(&Event<K>) + Send + Sync;

/// Copies of one event, one for each receiver.
pub(super) struct Prepared<K> {
    channels: Vec<(Sender<Event<K>>, Event<K>)>,
    mail: Option<Event<K>>,
}

/// The events that wait for the callback.
struct Post<K> {
    /// The mailbox of each registration that has one. A mailbox is empty only while the callback
    /// runs with its last event.
    boxes: HashMap<u64, VecDeque<Event<K>>>,
    /// The number of events in all mailboxes.
    waiting: usize,
}

/// Posts events to the channels and to the callback.
pub(super) struct EventSink<K> {
    callback: Option<Box<Callback<K>>>,
    #[cfg(feature = "tracing")]
    trace: Option<Trace<K>>,
    /// Whether there is a receiver. A Relaxed hint: once true, it stays true.
    heard: AtomicBool,
    /// The subscribers.
    channels: Mutex<Vec<Sender<Event<K>>>>,
    /// The events that wait for the callback.
    mailboxes: Mutex<Post<K>>,
    missed: AtomicU64,
}

impl<K: Clone + Send + Sync + 'static> EventSink<K> {
    pub(super) fn new(callback: Option<Box<Callback<K>>>) -> Self {
        EventSink {
            heard: AtomicBool::new(callback.is_some()),
            callback,
            #[cfg(feature = "tracing")]
            trace: None,
            channels: Mutex::new(Vec::new()),
            mailboxes: Mutex::new(Post {
                boxes: HashMap::new(),
                waiting: 0,
            }),
            missed: AtomicU64::new(0),
        }
    }

    /// Sets how warnings are written, if they are to be.
    #[cfg(feature = "tracing")]
    pub(super) fn traced(mut self, trace: Option<Trace<K>>) -> Self {
        self.trace = trace;
        self
    }

    /// Returns a new channel of events with at least one place.
    pub(super) fn subscribe(&self, capacity: usize) -> Receiver<Event<K>> {
        let (sender, receiver) = bounded(capacity.max(1));
        self.channels.lock().push(sender);
        // Relaxed: a subscriber is promised the events from some moment on, not from this one.
        self.heard.store(true, Ordering::Relaxed);
        receiver
    }

    /// Returns the number of events that had no room.
    pub(super) fn missed(&self) -> u64 {
        // Relaxed: a counter.
        self.missed.load(Ordering::Relaxed)
    }

    /// Counts events that had no room.
    pub(super) fn miss(&self, events: u64) {
        // Relaxed: a counter.
        self.missed.fetch_add(events, Ordering::Relaxed);
    }

    /// Whether there is a receiver of this event.
    pub(super) fn hears(&self, what: &What) -> bool {
        // Relaxed: see `subscribe`.
        self.heard.load(Ordering::Relaxed) || self.traces(what)
    }

    fn traces(&self, what: &What) -> bool {
        #[cfg(feature = "tracing")]
        return self.trace.is_some() && what.is_warning();
        #[cfg(not(feature = "tracing"))]
        {
            let _ = what;
            false
        }
    }

    /// Makes the copies of an event for all receivers. Returns `None` if there are none. Runs the
    /// key's `Clone`, so it must be called without a lock.
    pub(super) fn prepare(&self, key: &K, at: Time, what: What) -> Option<Prepared<K>> {
        if !self.hears(&what) {
            return None;
        }
        let is_traced = self.traces(&what);
        // The key is cloned only here, after the hint, so that leases without receivers cost
        // nothing.
        let event = Event {
            key: key.clone(),
            at,
            what,
        };
        let channels = self.channels.lock().clone();
        let channels = channels.into_iter();
        let channels = channels.map(|channel| (channel, event.clone())).collect();
        let mail = (is_traced || self.callback.is_some()).then_some(event);
        Some(Prepared { channels, mail })
    }

    /// Posts the copies without blocking. Returns those that found no room: their drop is user
    /// code, and the caller may hold a lock.
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
                    // A receiver that is gone is removed, or the list could grow without end.
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

    /// Puts an event into the mailbox of its registration. Returns it if there is no room.
    fn mail(
        self: &Arc<Self>,
        timers: &Timers,
        registration: u64,
        event: Event<K>,
    ) -> Option<Event<K>> {
        let lost = matches!(event.what, What::Lost(_));
        let mut post = self.mailboxes.lock();
        // A mailbox exists while the callback works for this registration. So a new one needs a
        // timer, and an existing one is emptied by the worker that is there.
        let first = !post.boxes.contains_key(&registration);
        let waiting = post.waiting;
        let mailbox = post.boxes.entry(registration).or_default();
        // The loss always has room: it is the one event that no holder may miss.
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
        // The timer is armed without the lock, since the scheduler has locks of its own.
        drop(post);
        if first {
            let events: Weak<Self> = Arc::downgrade(self);
            let posted = timers.tell(TimerKey::Tell(registration), move || {
                if let Some(events) = events.upgrade() {
                    events.empty(registration);
                }
            });
            if !posted {
                // There is no worker any more. Events that other threads have added meanwhile would
                // wait for it in vain, so all of them are taken out and counted.
                while self.next(registration).is_some() {
                    self.miss(1);
                }
            }
        }
        None
    }

    /// Takes the next event of a registration. Removes the mailbox if it is empty.
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

    /// Calls the callback with the events of one registration until its mailbox is empty. Runs on a
    /// worker. While there is a mailbox, one such call runs or is about to run.
    fn empty(&self, registration: u64) {
        while let Some(event) = self.next(registration) {
            // The panic hook has reported a panic already. The next events are due all the same.
            #[cfg(feature = "tracing")]
            if let Some(trace) = self.trace.filter(|_| event.what.is_warning()) {
                let _ = catch_panic(|| trace(&event));
            }
            let _ = catch_panic(move || {
                if let Some(callback) = &self.callback {
                    callback(&event);
                }
            });
        }
    }
}
