//! Acquiring: options, and the wait.
//!
//! Who waits asks, lets the store watch, asks again, and then waits for whatever comes first: the
//! store's word, the end of the lease that is in the way, the next time to ask anyway, the end of its
//! patience. All attempts are made by one owner, so an attempt whose answer was lost is made good by
//! the next one; and if there is none, the name is given back.

use std::task::Waker;
use std::time::Duration;

use tourbillon::{ClockParker, Time};

use super::attempt::Attempt;
use super::error::LockError;
use super::guard::LeaseGuard;
use super::id::LeaseId;
use super::inner::LeasesInner;
use super::keep_alive::{FIRST_WAIT, KeepOptions, Waits, spread};
use super::releases::UserHandle;
use super::request::{AttemptOptions, Request};
use super::store::{StoreError, Watch};
use crate::panics::catch_panic;
use crate::sync::Arc;

/// How a lock is acquired. Begun by [`Leases::acquire`](super::Leases::acquire).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_leases::{Leases, MemoryStore};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let leases = Leases::new(MemoryStore::new())?;
/// // Renewed, but never for more than an hour, and only while the worker feeds it.
/// let guard = leases
///     .acquire("nightly-report")
///     .lease(Duration::from_secs(10))
///     .fed_every(Duration::from_secs(60))
///     .max_hold(Duration::from_secs(3600))
///     .try_lock()?;
/// assert!(guard.feed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is acquired until one of its `lock`s is called"]
pub struct Acquisition<'a> {
    leases: &'a UserHandle,
    name: &'a str,
    lease: Duration,
    keep: fn(Duration) -> KeepOptions,
    feed: Option<Duration>,
    max_hold: Option<Duration>,
}

impl<'a> Acquisition<'a> {
    pub(super) fn new(leases: &'a UserHandle, name: &'a str) -> Self {
        Acquisition {
            leases,
            name,
            lease: leases.lease,
            keep: KeepOptions::for_lease,
            feed: None,
            max_hold: None,
        }
    }

    /// A lease of this length instead of the leases' own, **renewed** as ever. Of this and
    /// [`fixed_lease`](Self::fixed_lease) the last one counts.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.acquire("report").lease(Duration::from_secs(5)).lock()?;
    /// assert!(guard.remaining() <= Duration::from_secs(5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self.keep = KeepOptions::for_lease;
        self
    }

    /// A lease of this length that is **not renewed**: it is lost when it has run out.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// // The work takes ten minutes at most, so nothing has to be renewed.
    /// let guard = leases.acquire("report").fixed_lease(Duration::from_secs(600)).lock()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fixed_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self.keep = |lease| KeepOptions::for_lease(lease).without_renewal();
        self
    }

    /// The holder has to call [`LeaseGuard::feed`] within every such period, or it counts as dead:
    /// the lease is lost, is renewed no more, and runs out in the store.
    pub fn fed_every(mut self, period: Duration) -> Self {
        self.feed = Some(period);
        self
    }

    /// It is renewed no more, and counts as lost, when it was held for so long in all.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.acquire("report").max_hold(Duration::from_secs(3600)).lock()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.max_hold = Some(most);
        self
    }

    /// See [`Leases::lock`](super::Leases::lock).
    ///
    /// # Errors
    ///
    /// As for that.
    pub fn lock(self) -> Result<LeaseGuard, LockError> {
        self.acquire_loop(WaitPolicy::Endless)?.go()
    }

    /// See [`Leases::try_lock`](super::Leases::try_lock).
    ///
    /// # Errors
    ///
    /// As for that.
    pub fn try_lock(self) -> Result<LeaseGuard, LockError> {
        self.acquire_loop(WaitPolicy::None)?.go()
    }

    /// See [`Leases::try_lock_for`](super::Leases::try_lock_for).
    ///
    /// # Errors
    ///
    /// As for that.
    pub fn try_lock_for(self, wait: Duration) -> Result<LeaseGuard, LockError> {
        let until = self.now() + wait;
        self.acquire_loop(WaitPolicy::Until(until))?.go()
    }

    pub(super) fn now(&self) -> Time {
        self.leases.clock.now()
    }

    pub(super) fn acquire_loop(&self, wait_policy: WaitPolicy) -> Result<AcquireLoop, LockError> {
        let mut keep = (self.keep)(self.lease);
        if let Some(period) = self.feed {
            keep = keep.fed_every(period);
        }
        if let Some(most) = self.max_hold {
            keep = keep.max_hold(most);
        }
        let inner: &Arc<LeasesInner> = self.leases;
        let mut acquire_loop = AcquireLoop {
            request: Arc::new(inner.request(self.name, keep, self.lease)?),
            inner: Arc::clone(inner),
            wait_policy,
            asked: 0,
            watch: None,
            last: Last::None,
            unsure: false,
            rushed: false,
            waits: None,
            ended: false,
        };
        inner.asks.begin();
        acquire_loop.announce();
        Ok(acquire_loop)
    }
}

/// For how long somebody waits.
#[derive(Clone, Copy, Debug)]
pub(super) enum WaitPolicy {
    None,
    Until(Time),
    Endless,
}

/// What comes next.
#[derive(Debug)]
pub(super) enum AcquireStep {
    Ask,
    Wait(Time),
    Done(Result<LeaseGuard, LockError>),
}

/// Somebody who wants a lock. It knows neither threads nor tasks.
pub(super) struct AcquireLoop {
    pub(super) inner: Arc<LeasesInner>,
    pub(super) request: Arc<Request>,
    wait_policy: WaitPolicy,
    asked: u64,
    /// `None` until it waits.
    watch: Option<Watching>,
    last: Last,
    /// An attempt that had no answer may have been granted, or may still be.
    unsure: bool,
    /// The call under way began at the very end of the patience: that it fails says little.
    rushed: bool,
    /// Tells of the wait; `None` if that may not last for long enough.
    waits: Option<Waits>,
    /// Its answer has been counted.
    ended: bool,
}

/// What the store answered last.
enum Last {
    None,
    Held,
    Failed(StoreError),
}

/// A call that has less time than this may fail though the store is well.
const RUSHED: Duration = Duration::from_millis(100);

/// What wakes who waits, beside the clock.
struct Watching {
    /// Since when it waits.
    since: Time,
    /// The name may be free; `None` if the store can't tell.
    told: Option<Box<dyn Watch>>,
    /// The leases are closed.
    _closed: Box<dyn Watch>,
}

impl AcquireLoop {
    /// About to ask.
    pub(super) fn ask(&mut self, drop_waits: bool) -> AttemptOptions {
        self.asked += 1;
        let now = self.inner.clock.now();
        self.rushed = self.end().since(now) < RUSHED;
        if let Some(waits) = &self.waits {
            waits.asks(now);
        }
        if let Some(watch) = self.watch.as_ref().and_then(|watch| watch.told.as_ref()) {
            watch.looks();
        }
        AttemptOptions {
            // The last call is followed by no wait, so nothing is noted of it.
            waits: self.watch.is_some() && now < self.end(),
            waited: self
                .watch
                .as_ref()
                .map_or(Duration::ZERO, |watch| now.since(watch.since)),
            until: self.end(),
            unsure: self.unsure,
            drop_waits,
        }
    }

    /// What follows an answer. `waker` is to be woken when the name may be free.
    pub(super) fn after(&mut self, answer: Attempt, waker: &Waker) -> AcquireStep {
        let waits = !matches!(self.wait_policy, WaitPolicy::None);
        let pause = match answer {
            Attempt::Granted(guard) => {
                // It knows of earlier attempts.
                self.unsure = false;
                return AcquireStep::Done(Ok(guard));
            }
            Attempt::Ended(error) => {
                self.unsure = true;
                return AcquireStep::Done(Err(error));
            }
            Attempt::Held(remaining) if !waits => {
                let name = self.name();
                return AcquireStep::Done(Err(LockError::Held { name, remaining }));
            }
            Attempt::Held(remaining) => {
                self.answered(None);
                // A release between the answer and the watch would be missed.
                let watched = self.watch.is_some();
                self.watch(waker);
                if !watched && self.inner.clock.now() < self.end() && !self.is_closed() {
                    return AcquireStep::Ask;
                }
                let told = self
                    .watch
                    .as_ref()
                    .is_some_and(|watch| watch.told.is_some());
                self.pause(told)
                    .min(remaining.saturating_add(Duration::from_millis(1)))
            }
            Attempt::Failed(error) => {
                self.unsure |= error.leaves_open();
                if !waits || !error.may_pass() {
                    let name = self.name();
                    return AcquireStep::Done(Err(LockError::Store { name, error }));
                }
                self.watch(waker);
                let pause = match error {
                    // Its clock may be set back meanwhile, and others may make it shorter.
                    StoreError::Restarted { wait } | StoreError::Emptied { wait, .. } => {
                        wait.min(self.pause(true))
                    }
                    // It tells of nothing, either.
                    _ => self.pause(false),
                };
                self.answered(Some(error));
                pause
            }
        };
        if self.is_closed() {
            return AcquireStep::Done(Err(self.closed()));
        }
        let now = self.inner.clock.now();
        let end = self.end();
        if now >= end {
            return AcquireStep::Done(Err(self.timed_out()));
        }
        AcquireStep::Wait((now + pause.max(Duration::from_millis(1))).min(end))
    }

    /// Who waits is woken when they are closed, and asks no more.
    pub(super) fn is_closed(&self) -> bool {
        self.inner.keep_alive.is_closed()
    }

    pub(super) fn timed_out(&self) -> LockError {
        let name = self.name();
        let error = match &self.last {
            Last::Held => return LockError::TimedOut { name },
            Last::Failed(error) => error.clone(),
            Last::None => StoreError::Unavailable("no call has been answered in time".to_owned()),
        };
        LockError::Unanswered { name, error }
    }

    pub(super) fn closed(&self) -> LockError {
        LockError::Closed { name: self.name() }
    }

    fn name(&self) -> String {
        self.request.name.clone()
    }

    /// Notes what the store answered, for the events and for the end of the patience.
    fn answered(&mut self, error: Option<StoreError>) {
        if let Some(waits) = &self.waits {
            waits.answered(error.clone());
        }
        self.last = match error {
            None => Last::Held,
            // What was known before says more.
            Some(_) if self.rushed && !matches!(self.last, Last::None) => return,
            Some(error) => Last::Failed(error),
        };
    }

    /// Has the wait told, if it may last until the first event.
    fn announce(&mut self) {
        let wait_policy = match self.wait_policy {
            WaitPolicy::None => Duration::ZERO,
            WaitPolicy::Until(until) => until.since(self.inner.clock.now()),
            WaitPolicy::Endless => Duration::MAX,
        };
        if wait_policy > FIRST_WAIT {
            let request = Arc::clone(&self.request);
            let key = move || LeaseId::new(&request, 0);
            self.waits = Some(self.inner.keep_alive.waits(key));
        }
    }

    /// It has its answer: no event tells of it any more.
    pub(super) fn ended(&mut self, answer: &Result<LeaseGuard, LockError>) {
        self.waits = None;
        self.ended = true;
        self.inner.asks.end(answer);
    }

    /// When its patience is over.
    pub(super) fn end(&self) -> Time {
        match self.wait_policy {
            WaitPolicy::Until(until) => until,
            _ => Time::MAX,
        }
    }

    fn watch(&mut self, waker: &Waker) {
        if self.watch.is_none() {
            let told = catch_panic(|| self.inner.store.watch(&self.request.name, waker));
            self.watch = Some(Watching {
                since: self.inner.clock.now(),
                told: told.ok().flatten(),
                _closed: self.inner.waiting.watch(&self.request.owner, waker),
            });
        }
    }

    /// The time to ask anyway.
    fn pause(&self, told: bool) -> Duration {
        // With what is drawn on top, less than a second.
        let mean = self.inner.poll.unwrap_or(if told {
            Duration::from_millis(800)
        } else {
            Duration::from_millis(100)
        });
        spread(mean, self.inner.keep_alive.random(self.asked))
    }

    /// Asks and waits on this thread.
    fn go(mut self) -> Result<LeaseGuard, LockError> {
        let answer = self.run();
        self.ended(&answer);
        answer
    }

    fn run(&mut self) -> Result<LeaseGuard, LockError> {
        let parker = ClockParker::new(&self.inner.clock);
        let waker = Waker::from(Arc::new(parker.unparker()));
        loop {
            if self.is_closed() {
                return Err(self.closed());
            }
            let how = self.ask(true);
            let answer = self.inner.attempt(&self.request, how);
            match self.after(answer, &waker) {
                AcquireStep::Ask => {}
                AcquireStep::Wait(until) => parker.park_until(until),
                AcquireStep::Done(answer) => return answer,
            }
        }
    }
}

/// An attempt that may have been granted is given back: nothing is held by nobody.
impl Drop for AcquireLoop {
    fn drop(&mut self) {
        if !self.ended {
            self.inner.asks.abandon();
        }
        if self.unsure {
            self.inner.give_back_later(self.request.give_back());
        }
    }
}
