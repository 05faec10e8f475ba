//! Acquires a lock: the options, and the loop of attempts.
//!
//! A caller that waits asks the store, registers a watch, and asks again. Then it waits for the
//! first of these events:
//!
//! - The store announces that the name may be free.
//! - The lease that is in the way has run out.
//! - The next attempt is due, which is made in any case.
//! - The caller's time to wait is over.
//!
//! All attempts of a caller have the same secret. If the answer to a granted attempt was lost, the
//! next attempt is granted again. If there is no next attempt, the name is given back.

use std::future::Future;
use std::task::Waker;
use std::time::Duration;

use tourbillon::{ClockParker, Time};

use super::attempt::{AcquireStep, Attempt, Last, RUSHED};
use super::drop_wait;
use super::error::LockError;
use super::guard::LeaseGuard;
use super::id::LeaseId;
use super::inner::LeasesInner;
use super::lease_future::LeaseFuture;
use super::releases::UserHandle;
use super::request::{AttemptOptions, Request, WaitPolicy};
use super::stop::StopSignal;
use crate::keep_alive::{FIRST_WAIT, KeepOptions, Waits, spread};
use crate::store::{OwnedSecret, StoreError, Watch};
use crate::sync::{Arc, catch_panic};

/// The options of an acquire. Made by [`Leases::acquire`](crate::Leases::acquire).
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
    terms: AcquireTerms,
    /// Ends the wait from outside, if there is somebody who may.
    stop: Option<Arc<StopSignal>>,
}

/// What is asked for, apart from the name.
#[derive(Clone, Copy, Debug)]
struct AcquireTerms {
    lease: Duration,
    keep: fn(Duration) -> KeepOptions,
    feed: Option<Duration>,
    max_hold: Option<Duration>,
    at_least: Duration,
}

impl<'a> Acquisition<'a> {
    pub(super) fn new(leases: &'a UserHandle, name: &'a str) -> Self {
        Acquisition {
            leases,
            name,
            terms: AcquireTerms {
                lease: leases.lease,
                keep: KeepOptions::for_lease,
                feed: None,
                max_hold: None,
                at_least: Duration::ZERO,
            },
            stop: None,
        }
    }

    /// Sets the length of the lease, which is **renewed** while the guard lives. Overrides the
    /// default of the [`Leases`](crate::Leases) and an earlier call of
    /// [`fixed_lease`](Self::fixed_lease). `RedisStore` grants at most 30 s, unless its builder is
    /// told another `longest_lease`.
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
        self.terms.lease = lease;
        self.terms.keep = KeepOptions::for_lease;
        self
    }

    /// Sets the length of a lease that is **not renewed**. It is lost when it has run out.
    /// Overrides an earlier call of [`lease`](Self::lease).
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
        self.terms.lease = lease;
        self.terms.keep = |lease| KeepOptions::for_lease(lease).without_renewal();
        self
    }

    /// Requires that the holder calls [`LeaseGuard::feed`] within every such period. If it does
    /// not, it counts as dead: the lease is lost, is no longer renewed, and runs out in the store.
    pub fn fed_every(mut self, period: Duration) -> Self {
        self.terms.feed = Some(period);
        self
    }

    /// Sets the longest time that the lock is held in all. After that time it is no longer renewed
    /// and counts as lost.
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
        self.terms.max_hold = Some(most);
        self
    }

    /// Sets the shortest time for which the lock stays locked, counted from its grant. If it is
    /// released or dropped earlier, others have to wait for the rest. So a job of 5 ms that ten
    /// nodes begin at the same minute, by clocks that differ, runs once. Choose a time that is
    /// longer than these clocks differ, and shorter than the job's period.
    ///
    /// The rest is kept in the store: the release shortens the lease to it. So it also holds if the
    /// process ends right after the release. After the release this process has to wait like all
    /// others. While the rest lasts, [`holder`](crate::Leases::holder) returns the owner with the
    /// words ` (released)`.
    ///
    /// The time can't be longer than the lease, since the lock of a holder that dies is free after
    /// one lease. For a lease of more than 30 s, `RedisStore` needs the option `longest_lease`.
    /// Zero is the default. The lock does not stay locked if it is lost because the store has
    /// forgotten it.
    ///
    /// # Errors
    ///
    /// The call that locks fails with [`LockError::LongerThanLease`] if the lease is shorter.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{Leases, LockError, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let minute = Duration::from_secs(60);
    /// let job = || leases.acquire("report").lease(minute).at_least(minute / 2).try_lock();
    /// job()?.release()?; // the job takes no time
    /// assert!(matches!(job(), Err(LockError::Held { .. }))); // another node is a bit late
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn at_least(mut self, least: Duration) -> Self {
        self.terms.at_least = least;
        self
    }

    pub(crate) fn stopped_by(mut self, stop: &Arc<StopSignal>) -> Self {
        self.stop = Some(Arc::clone(stop));
        self
    }

    /// Acquires the lock and waits for it, like [`Leases::lock`](crate::Leases::lock).
    ///
    /// # Errors
    ///
    /// As for [`Leases::lock`](crate::Leases::lock), and for options that are out of range.
    pub fn lock(self) -> Result<LeaseGuard, LockError> {
        self.acquire_loop(WaitPolicy::Endless)?.go()
    }

    /// Acquires the lock if it is free, like [`Leases::try_lock`](crate::Leases::try_lock).
    ///
    /// # Errors
    ///
    /// As for [`Leases::try_lock`](crate::Leases::try_lock), and for options that are out of range.
    pub fn try_lock(self) -> Result<LeaseGuard, LockError> {
        self.acquire_loop(WaitPolicy::None)?.go()
    }

    /// Acquires the lock and waits for it for at most `wait`, like
    /// [`Leases::try_lock_for`](crate::Leases::try_lock_for).
    ///
    /// # Errors
    ///
    /// As for [`Leases::try_lock_for`](crate::Leases::try_lock_for), and for options that are out
    /// of range.
    pub fn try_lock_for(self, wait: Duration) -> Result<LeaseGuard, LockError> {
        let until = self.now() + wait;
        self.acquire_loop(WaitPolicy::Until(until))?.go()
    }

    pub(super) fn now(&self) -> Time {
        self.leases.clock.now()
    }

    /// Returns a future that acquires the lock by `go`, and owns what it needs for that.
    pub(super) fn in_future<F>(
        self,
        wait_policy: impl FnOnce(&Acquisition<'_>) -> WaitPolicy + Send + 'static,
        go: impl FnOnce(AcquireLoop) -> F + Send + 'static,
    ) -> LeaseFuture<Result<LeaseGuard, LockError>>
    where
        F: Future<Output = Result<LeaseGuard, LockError>> + Send + 'static,
    {
        let (leases, name) = (self.leases.clone(), self.name.to_owned());
        let (terms, stop) = (self.terms, self.stop);
        LeaseFuture::new(async move {
            let acquire_loop = {
                let (leases, name) = (&leases, &*name);
                let own = Acquisition {
                    leases,
                    name,
                    terms,
                    stop,
                };
                own.acquire_loop(wait_policy(&own))?
            };
            go(acquire_loop).await
        })
    }

    /// Checks the options and makes the request.
    pub(super) fn request(&self) -> Result<Request, LockError> {
        let terms = self.terms;
        let mut keep = (terms.keep)(terms.lease);
        if let Some(period) = terms.feed {
            keep = keep.fed_every(period);
        }
        if let Some(most) = terms.max_hold {
            keep = keep.max_hold(most);
        }
        self.leases.check(self.name, &keep, terms.lease)?;
        let (at_least, lease) = (terms.at_least, terms.lease);
        let name = self.name.to_owned();
        if at_least > lease {
            return Err(LockError::LongerThanLease {
                name,
                at_least,
                lease,
            });
        }
        Ok(Request {
            name,
            owner: self.leases.owner(),
            secret: OwnedSecret::random(),
            lease,
            keep,
            at_least,
        })
    }

    /// Checks the options and makes the loop of attempts.
    pub(super) fn acquire_loop(&self, wait_policy: WaitPolicy) -> Result<AcquireLoop, LockError> {
        let inner: &Arc<LeasesInner> = self.leases;
        let mut acquire_loop = AcquireLoop {
            request: Arc::new(self.request()?),
            inner: Arc::clone(inner),
            stop: self.stop.clone(),
            wait_policy,
            asked: 0,
            watch: None,
            last: Last::None,
            unsure: false,
            noted: false,
            rushed: false,
            waits: None,
            ended: false,
        };
        // Only now: a request that is refused above has not begun.
        inner.asks.begin();
        acquire_loop.announce();
        Ok(acquire_loop)
    }
}

/// The attempts of one caller to acquire a lock. It knows neither threads nor tasks.
pub(super) struct AcquireLoop {
    pub(super) inner: Arc<LeasesInner>,
    pub(super) request: Arc<Request>,
    stop: Option<Arc<StopSignal>>,
    wait_policy: WaitPolicy,
    /// The number of attempts.
    asked: u64,
    /// `None` until the caller waits.
    watch: Option<Watching>,
    last: Last,
    /// Whether an attempt without an answer may have been granted, or may still be.
    unsure: bool,
    /// Whether the store may have noted this caller, to reserve the name for it.
    noted: bool,
    /// Whether the present call began at the very end of the wait. Then a failure says little.
    rushed: bool,
    /// Posts events about the wait. `None` if the wait is too short for one.
    waits: Option<Waits>,
    /// Whether the result has been counted.
    ended: bool,
}

/// What wakes a waiting caller in addition to the clock.
struct Watching {
    /// When the wait began.
    since: Time,
    /// Wakes the caller when the name may be free. `None` if the store can't announce it.
    told: Option<Box<dyn Watch>>,
    /// Wakes the caller when the leases are closed.
    _closed: Box<dyn Watch>,
    _stopped: Option<Box<dyn Watch>>,
}

impl AcquireLoop {
    /// Prepares the next attempt, and returns its options.
    pub(super) fn ask(&mut self, drop_waits: bool) -> AttemptOptions {
        self.asked += 1;
        let now = self.inner.clock.now();
        self.rushed = self.end().since(now) < RUSHED;
        if let Some(waits) = &self.waits {
            waits.asks(now);
        }
        // Before the call is sent: a release after this wakes the caller again.
        if let Some(watch) = self.watch.as_ref().and_then(|watch| watch.told.as_ref()) {
            watch.looks();
        }
        // No wait follows the last call, so the store need not note this caller.
        let waits = self.watch.is_some() && now < self.end();
        let since = self.watch.as_ref().map(|watch| watch.since);
        let waited = since.map_or(Duration::ZERO, |since| now.since(since));
        self.noted |= waits;
        AttemptOptions {
            waits,
            waited,
            until: self.end(),
            unsure: self.unsure,
            drop_waits,
        }
    }

    /// Decides what follows an answer. `waker` is woken when the name may be free.
    pub(super) fn after(&mut self, answer: Attempt, waker: &Waker) -> AcquireStep {
        let waits = !matches!(self.wait_policy, WaitPolicy::None);
        let pause = match answer {
            Attempt::Granted(guard) => {
                // The guard knows about earlier attempts and gives the name back for them, too.
                self.unsure = false;
                self.noted = false;
                return AcquireStep::Done(Ok(guard));
            }
            // It was granted and can't be kept, so the drop of the loop gives it back.
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
                // A release between this answer and the first watch would be missed, so the store
                // is asked once more before the wait.
                let watched = self.watch.is_some();
                self.watch(waker);
                if !watched && self.inner.clock.now() < self.end() && !self.is_closed() {
                    return AcquireStep::Ask;
                }
                let told = self
                    .watch
                    .as_ref()
                    .is_some_and(|watch| watch.told.is_some());
                // The lease that is in the way may run out first. The extra millisecond puts the
                // attempt after that moment.
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
                    // The store says how long, but it may be asked before that: its clock may be
                    // set back meanwhile, and another process may shorten the time.
                    StoreError::Restarted { wait } | StoreError::Emptied { wait, .. } => {
                        wait.min(self.pause(true))
                    }
                    // A store that fails may announce nothing, so it is asked often.
                    _ => self.pause(false),
                };
                self.answered(Some(error));
                pause
            }
        };
        // Checked after the watch is registered: a close after this check wakes the caller.
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

    /// Begins anew after a grant that was given back, since nobody took it in time.
    ///
    /// The release of that grant may be sent again later. So what follows has another secret.
    pub(super) fn begin_again(&mut self) {
        self.request = Arc::new(Request {
            owner: self.inner.owner(),
            secret: OwnedSecret::random(),
            ..Request::clone(&self.request)
        });
        // The time before the grant does not count as a wait.
        self.watch = None;
        // The guard has given the name back for the earlier attempts, too.
        self.unsure = false;
        self.noted = false;
        self.last = Last::None;
    }

    fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.is_stopped())
    }

    /// Whether the leases are closed or the wait is stopped, which both wake a waiting caller.
    pub(super) fn is_closed(&self) -> bool {
        self.inner.keep_alive.is_closed() || self.is_stopped()
    }

    /// Returns the error for a wait that is over, by the last answer of the store.
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
        let name = self.name();
        match self.is_stopped() {
            true => LockError::Stopped { name },
            false => LockError::Closed { name },
        }
    }

    fn name(&self) -> String {
        self.request.name.clone()
    }

    /// Notes the store's answer for the events and for the error at the end of the wait.
    fn answered(&mut self, error: Option<StoreError>) {
        if let Some(waits) = &self.waits {
            waits.answered(error.clone());
        }
        StopSignal::hears(self.stop.as_deref(), error.as_ref(), self.inner.clock.now());
        self.last = match error {
            None => Last::Held,
            // An earlier answer says more than a failure of a rushed call.
            Some(_) if self.rushed && !matches!(self.last, Last::None) => return,
            Some(error) => Last::Failed(error),
        };
    }

    /// Starts the events about the wait, if it may last until the first one.
    fn announce(&mut self) {
        let longest = match self.wait_policy {
            WaitPolicy::None => Duration::ZERO,
            WaitPolicy::Until(until) => until.since(self.inner.clock.now()),
            WaitPolicy::Endless => Duration::MAX,
        };
        if longest > FIRST_WAIT {
            let request = Arc::clone(&self.request);
            let key = move || LeaseId::new(&request, 0, Time::default());
            self.waits = Some(self.inner.keep_alive.waits(key));
        }
    }

    /// Ends the events and counts the result.
    pub(super) fn ended(&mut self, answer: &Result<LeaseGuard, LockError>) {
        self.waits = None;
        self.ended = true;
        self.inner.asks.end(answer);
    }

    /// Returns when the time to wait is over.
    pub(super) fn end(&self) -> Time {
        match self.wait_policy {
            WaitPolicy::Until(until) => until,
            _ => Time::MAX,
        }
    }

    /// Registers the watches, unless that is done already.
    fn watch(&mut self, waker: &Waker) {
        if self.watch.is_none() {
            let told = catch_panic(|| self.inner.store.watch(&self.request.name, waker));
            self.watch = Some(Watching {
                since: self.inner.clock.now(),
                told: told.ok().flatten(),
                _closed: self.inner.waiting.watch(&self.request.owner, waker),
                _stopped: self.stop.as_ref().map(|stop| stop.watch(waker)),
            });
        }
    }

    /// Returns the pause before the next attempt. `told` says whether the store can announce
    /// releases.
    fn pause(&self, told: bool) -> Duration {
        // With the jitter of a fifth this is less than a second.
        let mean = self.inner.poll.unwrap_or(if told {
            Duration::from_millis(800)
        } else {
            Duration::from_millis(100)
        });
        spread(mean, self.inner.keep_alive.random(self.asked))
    }

    /// Acquires the lock on this thread, and counts the result.
    fn go(mut self) -> Result<LeaseGuard, LockError> {
        drop_wait::acquires();
        let answer = self.run();
        self.ended(&answer);
        answer
    }

    /// Asks and waits on this thread until there is a result.
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

/// Gives back an attempt that may have been granted. Otherwise a name could be held without a
/// guard.
impl Drop for AcquireLoop {
    fn drop(&mut self) {
        if !self.ended {
            self.inner.asks.abandon();
        }
        if self.unsure {
            self.inner.give_back_later(self.request.give_back());
        }
        if self.noted {
            // First the place in the queue, so that the store sees who is left.
            self.watch = None;
            self.inner.leave_later(&self.request);
        }
    }
}
