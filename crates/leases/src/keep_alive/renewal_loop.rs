//! The renewal loop: registrations and their rounds.
//!
//! ```text
//!   round of a registration --due--> DestinationQueue --window--> flush --batch--> renew()
//!     ^                                                                               |
//!     |                                            complete_renewal on each LeaseState
//!     |                                                                               |
//!     '---- timer moved to the next renewal or attempt <------------------------------+--> lost
//! ```
//!
//! - **RENEW-1** A registration has one repeating timer from its start to its end. A round only
//!   checks the lease, queues a due renewal, and returns when the next round is. Everything that
//!   may take long or panic runs elsewhere. So nothing that happens to a flush can end a
//!   registration.
//! - **RENEW-2** Right before a batch is sent, the clock is read again. A lease that has ended by
//!   then is not sent. So after a pause of the process the loss comes first.
//! - **RENEW-3** A lease is counted from a moment that was read before its request was sent.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ahash::RandomState;
use tourbillon::reentrancy::when_unlocked;
use tourbillon::{Next, Time};

use super::batch::Batch;
use super::cadence;
use super::cadence::splitmix64;
use super::events::{EventSink, What};
use super::lease_state::{InFlightStatus, LeaseState, LeaseStatus, Loss, Stopped};
use super::queue::{DestinationQueue, QueueKey};
use super::registration::{Plan, Registration, SharedQueue};
use super::timer_key::TimerKey;
use super::timers::Timers;
use super::{KeepAliveStats, KeepError, KeepOptions};
use crate::store::{Destination, Outcome, StoreError, StoreFuture};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, Origin, Weak, catch_panic};

/// The function that renews a batch.
pub(super) type Renew<K> = dyn Fn(Batch<K>) -> StoreFuture<'static, Vec<Outcome>> + Send + Sync;
/// The function that returns the destination of a key.
pub(super) type Where<K> = dyn Fn(&K) -> Destination + Send + Sync;

/// The part of a [`KeepAlive`](super::KeepAlive) that its clones and guards share.
pub(super) struct RenewalLoop<K> {
    pub(super) timers: Arc<Timers>,
    pub(super) events: Arc<EventSink<K>>,
    pub(super) renew: Box<Renew<K>>,
    destination: Box<Where<K>>,
    /// The greatest number of keys in one batch.
    pub(super) most: usize,
    margin: Option<Duration>,
    pub(super) alarm_after: Option<u64>,
    /// All registrations, and the queues of all destinations.
    registry: Mutex<Registry<K>>,
    seed: u64,
    /// The label `name` of metrics.
    pub(super) name: String,
    /// The name that the builder was given.
    pub(super) source: Option<String>,
    pub(super) counts: Counts,
    origin: Origin,
}

/// The present registrations and their queues.
struct Registry<K> {
    closed: bool,
    registrations: HashMap<u64, Arc<Registration<K>>, RandomState>,
    /// Each queue with the number of its registrations. A queue stays until its flush has ended.
    queues: HashMap<QueueKey, (SharedQueue<K>, usize), RandomState>,
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) renewed: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) batches: AtomicU64,
    pub(super) alone: AtomicU64,
    pub(super) late: AtomicU64,
    pub(super) given_up: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64) {
    // Relaxed: a counter.
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The parts that the builder of a [`KeepAlive`](super::KeepAlive) puts together.
pub(super) struct Parts<K> {
    pub(super) timers: Arc<Timers>,
    pub(super) events: Arc<EventSink<K>>,
    pub(super) renew: Box<Renew<K>>,
    pub(super) destination: Box<Where<K>>,
    pub(super) most: usize,
    pub(super) margin: Option<Duration>,
    pub(super) alarm_after: Option<u64>,
    pub(super) seed: u64,
    pub(super) name: String,
    pub(super) source: Option<String>,
}

impl<K: Clone + Send + Sync + 'static> RenewalLoop<K> {
    pub(super) fn new(parts: Parts<K>) -> Self {
        RenewalLoop {
            timers: parts.timers,
            events: parts.events,
            renew: parts.renew,
            destination: parts.destination,
            most: parts.most,
            margin: parts.margin,
            alarm_after: parts.alarm_after,
            registry: Mutex::new(Registry {
                closed: false,
                registrations: HashMap::default(),
                queues: HashMap::default(),
            }),
            seed: parts.seed,
            name: parts.name,
            source: parts.source,
            counts: Counts::default(),
            origin: Origin::here(),
        }
    }

    /// Whether this process is a forked copy of the process that built it. In a copy neither locks
    /// nor timers can be used.
    pub(super) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    pub(super) fn now(&self) -> Time {
        self.timers.clock().now()
    }

    /// Checks whether a key can be kept with these options, and starts the schedulers.
    pub(super) fn check(&self, keep: &KeepOptions) -> Result<(), KeepError> {
        if self.is_forked() {
            return Err(KeepError::Forked);
        }
        let least = cadence::shortest(self.margin);
        if keep.lease < least {
            return Err(KeepError::TooShort {
                lease: keep.lease,
                least,
            });
        }
        if keep.feed.is_some_and(|feed| feed.is_zero()) {
            return Err(KeepError::ZeroFeed);
        }
        if keep.max_hold.is_some_and(|most| most.is_zero()) {
            return Err(KeepError::ZeroHold);
        }
        if self.is_closed() {
            return Err(KeepError::Closed);
        }
        self.timers.start()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_forked() || self.registry.lock().closed
    }

    /// Returns the margin that was set, or the default for this lease.
    pub(super) fn margin(&self, lease: Duration) -> Duration {
        self.margin.unwrap_or_else(|| cadence::margin(lease))
    }

    /// Returns how long a lease of this length is held by the local clock. The margin is taken from
    /// the length and not from the end: the end of a very long lease saturates at [`Time::MAX`].
    pub(super) fn good_for(&self, lease: Duration) -> Duration {
        lease.saturating_sub(self.margin(lease))
    }

    /// Returns a number that nothing else of this loop has.
    pub(super) fn number(&self) -> u64 {
        self.timers.number()
    }

    /// Returns a number that looks random, drawn from the seed, the time and `of`.
    pub(super) fn random(&self, of: u64) -> u64 {
        self.random_at(of, self.now())
    }

    /// Returns the [random](Self::random) number of a moment.
    pub(super) fn random_at(&self, of: u64, now: Time) -> u64 {
        splitmix64(self.seed ^ splitmix64(of) ^ now.as_nanos())
    }

    /// Registers a key and arms its timer. The same key may be registered more than once.
    pub(super) fn keep(
        self: &Arc<Self>,
        key: K,
        keep: &KeepOptions,
    ) -> Result<Arc<Registration<K>>, KeepError> {
        self.check(keep)?;
        let number = self.number();
        let now = self.now();
        // The lease, the cap and the first interval count from before the request, as for every
        // renewal (RENEW-3). `since` is the caller's, so a moment in the future is not believed.
        let sent = keep.since.map_or(now, |since| since.min(now));
        let until = sent + self.good_for(keep.lease);
        let cap = keep.max_hold.map_or(Time::MAX, |most| sent + most);
        let queue_key = QueueKey::of((self.destination)(&key), keep.lease);
        let due = cadence::next(sent, keep.lease, self.random(number));
        // Weak here and in the timer: a registration must not keep its own loop alive.
        let renewal_loop: Weak<Self> = Arc::downgrade(self);
        let on_loss = Box::new(move |loss| {
            if let Some(renewal_loop) = renewal_loop.upgrade() {
                // A check of the guard may be what finds the loss. The guard may be a value of a
                // map, and the check may run under that map's lock.
                when_unlocked(move || renewal_loop.lost(number, loss));
            }
        });
        // A close sets the flag and collects the registrations under one hold of the lock. So this
        // registration is either refused here or seen by the close.
        let registration = {
            let mut registry = self.registry.lock();
            if registry.closed {
                return Err(KeepError::Closed);
            }
            let queue_number = self.number();
            let (queue, members) = registry
                .queues
                .entry(queue_key)
                .or_insert_with(|| (Arc::new(DestinationQueue::new(queue_key, queue_number)), 0));
            *members += 1;
            let registration = Arc::new(Registration {
                number,
                key,
                lease: keep.lease,
                renewed: keep.renewed,
                queue: Arc::clone(queue),
                lease_state: Arc::new(LeaseState::new(now, until, cap, keep.feed, on_loss)),
                plan: Mutex::new(Plan {
                    due,
                    failed: 0,
                    failing: None,
                    warned: false,
                    queued: None,
                    ended: false,
                }),
                told: Mutex::new(false),
            });
            registry
                .registrations
                .insert(number, Arc::clone(&registration));
            registration
        };
        // The timer is armed without the lock of the registry, since the scheduler has its own.
        let renewal_loop = Arc::downgrade(self);
        let own = Arc::clone(&registration);
        // The lease may be over already, if `since` lies far back. Then the first round is now, and
        // reports the loss.
        let first = match registration.lease_state.look(now) {
            LeaseStatus::Held { ends, .. } if keep.renewed => due.min(ends),
            LeaseStatus::Held { ends, .. } => ends,
            _ => now,
        };
        let armed = self
            .timers
            .repeat(number, first, move || match renewal_loop.upgrade() {
                Some(renewal_loop) => renewal_loop.round(&own),
                None => Next::Stop,
            });
        if armed {
            // It may have ended before there was a timer to cancel.
            if !self.registry.lock().registrations.contains_key(&number) {
                self.timers.cancel(TimerKey::Registration(number));
            }
            Ok(registration)
        } else {
            registration.lease_state.end(Loss::Closed);
            Err(KeepError::Closed)
        }
    }

    /// Stops a registration for its holder. No renewal of it begins after this call.
    pub(super) fn stop(&self, registration: &Registration<K>) -> Result<(), Loss> {
        if self.is_forked() {
            return Err(Loss::Forked);
        }
        let stopped = registration.lease_state.stop(self.now());
        self.remove(registration.number);
        match stopped {
            Stopped::Lost(loss) => Err(loss),
            _ => Ok(()),
        }
    }

    /// Closes the loop. Returns the registrations that were held, and are lost now.
    pub(super) fn close(&self) -> Vec<Arc<Registration<K>>> {
        if self.is_forked() {
            return Vec::new();
        }
        let all: Vec<_> = {
            let mut registry = self.registry.lock();
            registry.closed = true;
            registry.registrations.values().cloned().collect()
        };
        // Each loss removes its registration, which takes the lock of the registry again. So the
        // registrations are ended after it is released.
        let mut kept = Vec::new();
        for registration in all {
            if matches!(
                registration.lease_state.look(self.now()),
                LeaseStatus::Held { .. }
            ) {
                registration.lease_state.end(Loss::Closed);
                kept.push(registration);
            }
        }
        kept
    }

    /// Removes a registration with its timer and its queued renewal. Returns it if it was there.
    fn remove(&self, number: u64) -> Option<Arc<Registration<K>>> {
        let registration = {
            let mut registry = self.registry.lock();
            let registration = registry.registrations.remove(&number)?;
            if let Some((_, members)) = registry.queues.get_mut(&registration.queue.queue_key) {
                *members -= 1;
            }
            registration
        };
        self.sweep(&registration.queue);
        self.timers.cancel(TimerKey::Registration(number));
        // A round may be running. `ended` and the queued renewal change under one hold of the lock,
        // so the round either queues before this, and the renewal is taken out, or does not queue.
        let queued = {
            let mut plan = registration.plan.lock();
            plan.ended = true;
            plan.queued.take()
        };
        if let Some(until) = queued {
            registration.queue.take_out(until, number);
        }
        Some(registration)
    }

    /// Removes a queue that has no registrations. A queue whose flush runs stays, since a new queue of
    /// the same key would have a second flush.
    pub(super) fn sweep(&self, queue: &SharedQueue<K>) {
        let mut registry = self.registry.lock();
        let unused = |(present, members): &(SharedQueue<K>, usize)| {
            *members == 0 && Arc::ptr_eq(present, queue) && queue.is_idle()
        };
        if registry.queues.get(&queue.queue_key).is_some_and(unused) {
            registry.queues.remove(&queue.queue_key);
        }
    }

    /// Removes a registration that is lost and posts the loss. The lease state calls this once.
    fn lost(&self, number: u64, loss: Loss) {
        count(&self.counts.lost);
        if let Some(registration) = self.remove(number) {
            self.tell(&registration, What::Lost(loss));
        }
    }

    /// Posts an event of a registration, unless its loss was posted before.
    pub(super) fn tell(&self, registration: &Registration<K>, what: What) {
        if !self.events.hears(&what) {
            return;
        }
        let last = matches!(what, What::Lost(_));
        // A key's `Clone` and `Drop` are user code. A panic costs this event, but no other
        // registration its renewal.
        let told = catch_panic(|| {
            let now = self.now();
            let Some(event) = self.events.prepare(&registration.key, now, what) else {
                return;
            };
            // The event is posted under the lock, so that none follows the loss. Copies without
            // room are dropped after it.
            let mut told = registration.told.lock();
            if !*told {
                *told = last;
                let left = self.events.post(&self.timers, registration.number, event);
                drop(told);
                drop(left);
            }
        });
        if told.is_err() {
            self.events.miss(1);
        }
    }

    // === rounds ===

    /// Runs one round of a registration: checks the lease, queues a due renewal, and returns when
    /// the next round is (RENEW-1).
    fn round(self: &Arc<Self>, registration: &Arc<Registration<K>>) -> Next {
        let now = self.now();
        let LeaseStatus::Held { until, ends } = registration.lease_state.status(now) else {
            return Next::Stop;
        };
        if !registration.renewed {
            return Next::At(ends);
        }
        // Its flush does the same at the same moment, unless a poll of the store blocks.
        let in_flight_status = self.given_up(registration, now);
        // The next round is at the earliest of: the end, the risk, the limit of the renewal in
        // flight, and the next attempt. Events and flushes follow without the lock.
        let mut next = ends;
        let mut tell = None;
        let mut queue = false;
        {
            let mut plan = registration.plan.lock();
            let risk = cadence::at_risk(until, registration.lease);
            if plan.warned {
            } else if now >= risk {
                plan.warned = true;
                let remaining = until.since(now);
                tell = Some(What::AtRisk { remaining });
            } else {
                next = next.min(risk);
            }
            match in_flight_status {
                InFlightStatus::Until(limit) => next = next.min(limit),
                _ if now < plan.due => next = next.min(plan.due),
                _ => {
                    // If its flush is dropped, the next round arms another one.
                    next = next.min(now + cadence::call_limit(registration.lease));
                    queue = true;
                    if plan.queued.is_none() && !plan.ended {
                        plan.queued = Some(until);
                        registration.queue.put(
                            until,
                            registration.number,
                            Arc::clone(registration),
                        );
                    }
                }
            }
        }
        if let Some(what) = tell {
            self.tell(registration, what);
        }
        if queue {
            // The flush waits for others to fill its batch, but not for long if the lease is near
            // its end.
            let remaining = until.since(now);
            let window = cadence::window(registration.lease).min(remaining / 20);
            self.arm_flush(&registration.queue, now, window);
        }
        Next::At(next)
    }

    /// Gives a call up that has no answer at its limit. It counts as a failed attempt, once.
    pub(super) fn given_up(&self, registration: &Registration<K>, now: Time) -> InFlightStatus {
        let in_flight_status = registration.lease_state.in_flight_status(now);
        if in_flight_status == InFlightStatus::GivenUp {
            count(&self.counts.given_up);
            let limit = cadence::call_limit(registration.lease);
            let error =
                StoreError::Unavailable(format!("no answer within {} ms", limit.as_millis()));
            self.failed(registration, error, now);
        }
        in_flight_status
    }

    /// Returns all registrations: copied out, so that who asks them takes their locks without that of
    /// the registry.
    pub(super) fn registrations(&self) -> Vec<Arc<Registration<K>>> {
        self.registry
            .lock()
            .registrations
            .values()
            .cloned()
            .collect()
    }

    pub(super) fn stats(&self) -> KeepAliveStats {
        if self.is_forked() {
            return KeepAliveStats::default();
        }
        // Relaxed: counters.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let registry = self.registry.lock();
        let destinations: HashSet<_> = registry
            .queues
            .keys()
            .map(|queue| queue.destination)
            .collect();
        drop(registry);
        let registrations = self.registrations();
        let most = registrations
            .iter()
            .map(|registration| registration.lease_state.renewals())
            .max();
        KeepAliveStats {
            kept: registrations.len(),
            armed: self.timers.armed(),
            destinations: destinations.len(),
            renewed: read(&self.counts.renewed),
            failed: read(&self.counts.failed),
            lost: read(&self.counts.lost),
            batches: read(&self.counts.batches),
            sent_alone: read(&self.counts.alone),
            late: read(&self.counts.late),
            given_up: read(&self.counts.given_up),
            events_missed: self.events.missed(),
            most_renewals: most.unwrap_or(0),
        }
    }
}

/// Empties the queues. A queued registration owns its queue, and the queue owns the registration.
impl<K> Drop for RenewalLoop<K> {
    fn drop(&mut self) {
        // In a forked copy the lock of a queue may stay locked forever. There the cycle leaks.
        if self.origin.is_elsewhere() {
            return;
        }
        let queues = std::mem::take(&mut self.registry.lock().queues);
        queues.values().for_each(|(queue, _)| queue.clear());
    }
}
