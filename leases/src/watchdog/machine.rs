//! The renewal machine: series, lanes, passes.
//!
//! ```text
//!  a series' round --due--> its lane's queue --window--> pass --batch--> renew()
//!     ^   (looks after itself: next round armed         |
//!     |    whatever becomes of the pass)                 '--> outcomes: land on each term,
//!     '---------------- moved to the next renewal <----------  or the next attempt, or lost
//! ```
//!
//! - **RENEW-1** A series has one timer, a repeating one, from its start to its end. A round only
//!   looks, queues, and says when the next one is; what may hang or panic runs elsewhere. So
//!   nothing that happens to a pass can end a series, and a pass that never answers is noticed by
//!   the rounds.
//! - **RENEW-2** Right before a batch is sent the clock is read again, and what has ended by then
//!   stays behind: after a pause of the process the loss comes first.
//! - **RENEW-3** The lease is counted from a moment that was read before the request was sent.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tourbillon::reentrancy::when_unlocked;
use tourbillon::{Next, Time};

use super::super::store::{Destination, Outcome, StoreError};
use super::events::{Teller, What};
use super::lane::{Lane, Route};
use super::rhythm;
use super::rhythm::mix;
use super::term::{Loss, Standing, Stopped, Term, UnderWay};
use super::timers::{Alarm, Timers};
use super::{Batch, Keep, KeepError, WatchdogStats};
use crate::panics::contain;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex, Origin, Weak};

/// What renews a batch.
pub(super) type Renew<K> = dyn Fn(&Batch<'_, K>) -> Result<Vec<Outcome>, StoreError> + Send + Sync;
/// Where a key's renewals go.
pub(super) type Where<K> = dyn Fn(&K) -> Destination + Send + Sync;

pub(super) struct Machine<K> {
    pub(super) timers: Arc<Timers>,
    pub(super) teller: Arc<Teller<K>>,
    pub(super) renew: Box<Renew<K>>,
    destination: Box<Where<K>>,
    pub(super) most: usize,
    margin: Option<Duration>,
    pub(super) alarm_after: Option<u64>,
    registry: Mutex<Registry<K>>,
    numbers: AtomicU64,
    /// Passes that run.
    pub(super) passes: AtomicUsize,
    seed: u64,
    pub(super) counts: Counts,
    origin: Origin,
}

pub(super) type SharedLane<K> = Arc<Lane<Arc<Series<K>>>>;

struct Registry<K> {
    closed: bool,
    series: HashMap<u64, Arc<Series<K>>>,
    /// With the number of their series. One stays for as long as a pass of it has not come back.
    lanes: HashMap<Route, (SharedLane<K>, usize)>,
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

/// One key that is kept, from its start to its end.
pub(super) struct Series<K> {
    pub(super) number: u64,
    pub(super) key: K,
    pub(super) lease: Duration,
    pub(super) renewed: bool,
    pub(super) lane: SharedLane<K>,
    pub(super) term: Arc<Term>,
    pub(super) plan: Mutex<Plan>,
    /// The loss was told, after which nothing is.
    told: Mutex<bool>,
}

pub(super) struct Plan {
    /// When the next renewal, or attempt, is due.
    pub(super) due: Time,
    /// Attempts that failed since the last success.
    pub(super) failed: u32,
    /// Told of the risk since the last success.
    pub(super) warned: bool,
    /// In the lane's queue, under this end.
    pub(super) queued: Option<Time>,
    /// It is not to be queued any more.
    ended: bool,
}

/// What a machine is made of.
pub(super) struct Parts<K> {
    pub(super) timers: Arc<Timers>,
    pub(super) teller: Arc<Teller<K>>,
    pub(super) renew: Box<Renew<K>>,
    pub(super) destination: Box<Where<K>>,
    pub(super) most: usize,
    pub(super) margin: Option<Duration>,
    pub(super) alarm_after: Option<u64>,
    pub(super) seed: u64,
}

impl<K: Clone + Send + Sync + 'static> Machine<K> {
    pub(super) fn new(parts: Parts<K>) -> Self {
        Machine {
            timers: parts.timers,
            teller: parts.teller,
            renew: parts.renew,
            destination: parts.destination,
            most: parts.most,
            margin: parts.margin,
            alarm_after: parts.alarm_after,
            registry: Mutex::new(Registry {
                closed: false,
                series: HashMap::new(),
                lanes: HashMap::new(),
            }),
            numbers: AtomicU64::new(0),
            passes: AtomicUsize::new(0),
            seed: parts.seed,
            counts: Counts::default(),
            origin: Origin::here(),
        }
    }

    /// Whether this process is a forked copy of the one that made it. There neither locks nor timers
    /// can be used.
    pub(super) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    pub(super) fn now(&self) -> Time {
        self.timers.clock().now()
    }

    /// Whether a lease of this length can be kept, and everything that takes.
    pub(super) fn check(&self, keep: &Keep) -> Result<(), KeepError> {
        if self.is_forked() {
            return Err(KeepError::Forked);
        }
        let least = rhythm::shortest(self.margin);
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
        self.timers.start().map_err(KeepError::Spawn)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_forked() || self.registry.lock().closed
    }

    pub(super) fn margin(&self, lease: Duration) -> Duration {
        self.margin.unwrap_or_else(|| rhythm::margin(lease))
    }

    /// How long a lease is by the local clock. Not a moment less a margin: it may be for ever.
    pub(super) fn good_for(&self, lease: Duration) -> Duration {
        lease.saturating_sub(self.margin(lease))
    }

    /// A number that no other series, and no other call, of this machine has.
    pub(super) fn number(&self) -> u64 {
        // Relaxed: only the numbers must differ.
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn random(&self, of: u64) -> u64 {
        mix(self.seed ^ mix(of) ^ self.now().as_nanos())
    }

    /// Keeps a key from now on: a new generation, whatever is or was kept of it.
    pub(super) fn keep(self: &Arc<Self>, key: K, keep: &Keep) -> Result<Arc<Series<K>>, KeepError> {
        self.check(keep)?;
        let number = self.number();
        let now = self.now();
        let sent = keep.since.map_or(now, |since| since.min(now));
        let until = sent + self.good_for(keep.lease);
        let cap = keep.max_hold.map_or(Time::MAX, |most| sent + most);
        let route = Route::of((self.destination)(&key), keep.lease);
        let due = rhythm::next(sent, keep.lease, self.random(number));
        let machine: Weak<Self> = Arc::downgrade(self);
        let on_loss = Box::new(move |loss| {
            if let Some(machine) = machine.upgrade() {
                // A look at a guard may find the loss, and the guard may be a value of a map.
                when_unlocked(move || machine.lost(number, loss));
            }
        });
        let series = {
            let mut registry = self.registry.lock();
            if registry.closed {
                return Err(KeepError::Closed);
            }
            let lane_number = self.number();
            let (lane, members) = registry
                .lanes
                .entry(route)
                .or_insert_with(|| (Arc::new(Lane::new(route, lane_number)), 0));
            *members += 1;
            let series = Arc::new(Series {
                number,
                key,
                lease: keep.lease,
                renewed: keep.renewed,
                lane: Arc::clone(lane),
                term: Arc::new(Term::new(now, until, cap, keep.feed, on_loss)),
                plan: Mutex::new(Plan {
                    due,
                    failed: 0,
                    warned: false,
                    queued: None,
                    ended: false,
                }),
                told: Mutex::new(false),
            });
            registry.series.insert(number, Arc::clone(&series));
            series
        };
        let machine = Arc::downgrade(self);
        let own = Arc::clone(&series);
        let first = match series.term.look(now) {
            Standing::Kept { ends, .. } if keep.renewed => due.min(ends),
            Standing::Kept { ends, .. } => ends,
            _ => now,
        };
        let armed = self
            .timers
            .repeat(number, first, move || match machine.upgrade() {
                Some(machine) => machine.round(&own),
                None => Next::Stop,
            });
        if armed {
            // It may have ended before its timer was there to be cancelled.
            if !self.registry.lock().series.contains_key(&number) {
                self.timers.cancel(Alarm::Series(number));
            }
            Ok(series)
        } else {
            series.term.end(Loss::Closed);
            Err(KeepError::Closed)
        }
    }

    /// The holder gives it up. Nothing of this series departs any more.
    pub(super) fn stop(&self, series: &Series<K>) -> Result<(), Loss> {
        if self.is_forked() {
            return Err(Loss::Forked);
        }
        let stopped = series.term.stop(self.now());
        self.remove(series.number);
        match stopped {
            Stopped::Lost(loss) => Err(loss),
            _ => Ok(()),
        }
    }

    /// Everything is lost, and nothing is kept any more.
    pub(super) fn close(&self) -> Vec<Arc<Series<K>>> {
        if self.is_forked() {
            return Vec::new();
        }
        let all: Vec<_> = {
            let mut registry = self.registry.lock();
            registry.closed = true;
            registry.series.values().cloned().collect()
        };
        let mut kept = Vec::new();
        for series in all {
            if matches!(series.term.look(self.now()), Standing::Kept { .. }) {
                series.term.end(Loss::Closed);
                kept.push(series);
            }
        }
        kept
    }

    fn remove(&self, number: u64) -> Option<Arc<Series<K>>> {
        let series = {
            let mut registry = self.registry.lock();
            let series = registry.series.remove(&number)?;
            if let Some((_, members)) = registry.lanes.get_mut(&series.lane.route) {
                *members -= 1;
            }
            series
        };
        self.sweep(&series.lane);
        self.timers.cancel(Alarm::Series(number));
        let queued = {
            let mut plan = series.plan.lock();
            plan.ended = true;
            plan.queued.take()
        };
        if let Some(until) = queued {
            series.lane.take_out(until, number);
        }
        Some(series)
    }

    /// A lane that nobody needs goes. Not one whose passes hang: as many more could.
    pub(super) fn sweep(&self, lane: &SharedLane<K>) {
        let mut registry = self.registry.lock();
        let unused = |(present, members): &(SharedLane<K>, usize)| {
            *members == 0 && Arc::ptr_eq(present, lane) && lane.is_idle()
        };
        if registry.lanes.get(&lane.route).is_some_and(unused) {
            registry.lanes.remove(&lane.route);
        }
    }

    /// Told by the term, once.
    fn lost(&self, number: u64, loss: Loss) {
        count(&self.counts.lost);
        if let Some(series) = self.remove(number) {
            self.tell(&series, What::Lost(loss));
        }
    }

    pub(super) fn tell(&self, series: &Series<K>, what: What) {
        let last = matches!(what, What::Lost(_));
        // A key's `Clone` and `Drop` are user code: a panic costs the event, and no other series its
        // renewal.
        let told = contain(|| {
            let now = self.now();
            let Some(event) = self.teller.prepare(&series.key, now, what) else {
                return;
            };
            let mut told = series.told.lock();
            if !*told {
                *told = last;
                let left = self.teller.post(&self.timers, series.number, event);
                drop(told);
                drop(left);
            }
        });
        if told.is_err() {
            self.teller.miss(1);
        }
    }

    // === rounds ===

    /// A series looks after itself: RENEW-1.
    fn round(self: &Arc<Self>, series: &Arc<Series<K>>) -> Next {
        let now = self.now();
        let Standing::Kept { until, ends } = series.term.look(now) else {
            return Next::Stop;
        };
        if !series.renewed {
            return Next::At(ends);
        }
        let under_way = series.term.under_way(now);
        if under_way == UnderWay::GivenUp {
            count(&self.counts.given_up);
            let limit = rhythm::call_limit(series.lease);
            let error =
                StoreError::Unavailable(format!("no answer within {} ms", limit.as_millis()));
            self.failed(series, error, now);
        }
        let mut next = ends;
        let mut tell = None;
        let mut queue = false;
        {
            let mut plan = series.plan.lock();
            let risk = rhythm::at_risk(until, series.lease);
            if plan.warned {
            } else if now >= risk {
                plan.warned = true;
                let remaining = until.since(now);
                tell = Some(What::AtRisk { remaining });
            } else {
                next = next.min(risk);
            }
            match under_way {
                UnderWay::Until(limit) => next = next.min(limit),
                _ if now < plan.due => next = next.min(plan.due),
                _ => {
                    // Looked at again, should the pass hang.
                    next = next.min(now + rhythm::call_limit(series.lease));
                    queue = true;
                    if plan.queued.is_none() && !plan.ended {
                        plan.queued = Some(until);
                        series.lane.put(until, series.number, Arc::clone(series));
                    }
                }
            }
        }
        if let Some(what) = tell {
            self.tell(series, what);
        }
        if queue {
            let remaining = until.since(now);
            let window = rhythm::window(series.lease).min(remaining / 20);
            self.arm_pass(&series.lane, now, window);
        }
        Next::At(next)
    }

    pub(super) fn stats(&self) -> WatchdogStats {
        if self.is_forked() {
            return WatchdogStats::default();
        }
        // Relaxed: counters.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let registry = self.registry.lock();
        let series: Vec<_> = registry.series.values().cloned().collect();
        let destinations: HashSet<_> = registry.lanes.keys().map(|lane| lane.destination).collect();
        drop(registry);
        let most = series.iter().map(|series| series.term.renewals()).max();
        WatchdogStats {
            kept: series.len(),
            armed: self.timers.armed(),
            destinations: destinations.len(),
            renewed: read(&self.counts.renewed),
            failed: read(&self.counts.failed),
            lost: read(&self.counts.lost),
            batches: read(&self.counts.batches),
            sent_alone: read(&self.counts.alone),
            late: read(&self.counts.late),
            given_up: read(&self.counts.given_up),
            events_missed: self.teller.missed(),
            most_renewals: most.unwrap_or(0),
        }
    }
}

/// What is queued would keep its lane, and the lane what is queued.
impl<K> Drop for Machine<K> {
    fn drop(&mut self) {
        // In a forked copy a lane's lock may be held for ever: the cycle stays.
        if self.origin.is_elsewhere() {
            return;
        }
        let lanes = std::mem::take(&mut self.registry.lock().lanes);
        lanes.values().for_each(|(lane, _)| lane.clear());
    }
}
