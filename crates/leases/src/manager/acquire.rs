//! Acquires a lock: the loop of attempts.
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
//!
//! The renewals of a lock begin in the poll that takes the grant. So a future that nobody polls
//! holds nothing after its lease. A poll after half of a lease gives back what may have been
//! granted, and asks anew.

use std::task::Waker;
use std::time::Duration;

use tourbillon::Time;

use super::attempt::{AcquireStep, Attempt, Last, RUSHED};
use super::drop_wait;
use super::error::LockError;
use super::guard::LeaseGuard;
use super::id::LeaseId;
use super::inner::LeasesInner;
use super::request::{AttemptOptions, Request, WaitPolicy};
use super::stop::StopSignal;
use crate::keep_alive::{FIRST_WAIT, Waits, call_limit, spread};
use crate::store::{Bell, OwnedSecret, Released, StoreError, Watch};
use crate::sync::{Arc, catch_panic};

/// The attempts of one caller, a thread or a task, to acquire a lock.
pub(super) struct AcquireLoop {
    inner: Arc<LeasesInner>,
    request: Arc<Request>,
    stop: Option<Arc<StopSignal>>,
    wait_policy: WaitPolicy,
    /// The number of attempts.
    asked: u64,
    /// `None` until the caller waits.
    watch: Option<Watching>,
    last: Last,
    /// Whether an attempt without an answer may have been granted, or may still be.
    unsure: bool,
    /// Whether an attempt is under way.
    is_asking: bool,
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
    /// Rung by the watches below. It wakes the task or the thread that polled last.
    bell: Arc<Bell>,
    /// Wakes the caller when the name may be free. `None` if the store can't announce it.
    told: Option<Box<dyn Watch>>,
    /// Wakes the caller when the leases are closed.
    _closed: Box<dyn Watch>,
    _stopped: Option<Box<dyn Watch>>,
}

impl AcquireLoop {
    /// Makes the loop of a request that has been checked.
    pub(super) fn new(
        inner: &Arc<LeasesInner>,
        request: Request,
        wait_policy: WaitPolicy,
        stop: Option<Arc<StopSignal>>,
    ) -> Self {
        let mut acquire_loop = AcquireLoop {
            request: Arc::new(request),
            inner: Arc::clone(inner),
            stop,
            wait_policy,
            asked: 0,
            watch: None,
            last: Last::None,
            unsure: false,
            is_asking: false,
            noted: false,
            rushed: false,
            waits: None,
            ended: false,
        };
        inner.asks.begin();
        acquire_loop.announce();
        acquire_loop
    }

    /// Prepares the next attempt, and returns its options.
    fn ask(&mut self, drop_waits: bool) -> AttemptOptions {
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

    /// Decides what follows an answer.
    fn after(&mut self, answer: Attempt) -> AcquireStep {
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
                self.watch();
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
                self.watch();
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

    /// Gives back what may have been granted while nobody polled, and begins anew.
    ///
    /// That release may be sent more than once. So the next attempts have another secret.
    async fn begin_again(&mut self) {
        let back = self.request.give_back();
        // If the future is dropped meanwhile, its drop gives the name back.
        let was_unsure = std::mem::replace(&mut self.unsure, true);
        let inner = Arc::clone(&self.inner);
        let destination = inner.destination(&back.name);
        let limit = call_limit(back.lease);
        let released = inner.release_batch(destination, &[&back], limit).await;
        if was_unsure || released != [Ok(Released::Released)] {
            inner.give_back_later(back);
        }
        if std::mem::take(&mut self.noted) {
            inner.leave_later(&self.request);
        }
        self.request = Arc::new(Request {
            owner: inner.owner(),
            secret: OwnedSecret::random(),
            ..Request::clone(&self.request)
        });
        // The time before this does not count as a wait.
        self.watch = None;
        // All earlier attempts had the secret that is given back.
        self.unsure = false;
        self.last = Last::None;
    }

    fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.is_stopped())
    }

    /// Whether the leases are closed or the wait is stopped, which both wake a waiting caller.
    fn is_closed(&self) -> bool {
        self.inner.keep_alive.is_closed() || self.is_stopped()
    }

    /// Returns the error for a wait that is over, by the last answer of the store.
    fn timed_out(&self) -> LockError {
        let name = self.name();
        let error = match &self.last {
            Last::Held => return LockError::TimedOut { name },
            Last::Failed(error) => error.clone(),
            Last::None => StoreError::Unavailable("no call has been answered in time".to_owned()),
        };
        LockError::Unanswered { name, error }
    }

    fn closed(&self) -> LockError {
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
            let key = move || LeaseId::new(&request, 0, 0, Time::default());
            self.waits = Some(self.inner.keep_alive.waits(key));
        }
    }

    /// Ends the events and counts the result.
    fn ended(&mut self, answer: &Result<LeaseGuard, LockError>) {
        self.waits = None;
        self.ended = true;
        self.inner.asks.end(answer);
    }

    /// Returns when the time to wait is over.
    fn end(&self) -> Time {
        match self.wait_policy {
            WaitPolicy::Until(until) => until,
            _ => Time::MAX,
        }
    }

    /// Registers the watches, unless that is done already.
    fn watch(&mut self) {
        if self.watch.is_none() {
            let bell = Arc::new(Bell::default());
            let waker = Waker::from(Arc::clone(&bell));
            let told = catch_panic(|| self.inner.store.watch(&self.request.name, &waker));
            self.watch = Some(Watching {
                since: self.inner.clock.now(),
                told: told.ok().flatten(),
                _closed: self.inner.waiting.watch(&self.request.owner, &waker),
                _stopped: self.stop.as_ref().map(|stop| stop.watch(&waker)),
                bell,
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

    /// Acquires the lock, and counts the result.
    pub(super) async fn go(mut self) -> Result<LeaseGuard, LockError> {
        let answer = self.run().await;
        self.ended(&answer);
        answer
    }

    /// Asks and waits until there is a result.
    async fn run(&mut self) -> Result<LeaseGuard, LockError> {
        let inner = Arc::clone(&self.inner);
        let blocks = drop_wait::acquires().await;
        loop {
            if self.is_closed() {
                return Err(self.closed());
            }
            let (how, request) = (self.ask(blocks), Arc::clone(&self.request));
            // Until there is an answer, a drop of the future gives back what may be granted.
            self.is_asking = true;
            let answer = inner.attempt(&request, how).await;
            self.is_asking = false;
            let Some(answer) = answer else {
                self.begin_again().await;
                continue;
            };
            if let Some(error) = Self::ended_by_options(&answer) {
                return Err(error);
            }
            match self.after(answer) {
                AcquireStep::Ask => {}
                AcquireStep::Wait(until) => {
                    let watch = self.watch.as_ref().expect("who waits has watches");
                    let bell = Arc::clone(&watch.bell);
                    if !inner.sleep(&bell, until).await {
                        return Err(self.without_end());
                    }
                }
                AcquireStep::Done(answer) => return answer,
            }
        }
    }

    /// Returns the error if the options have ended the lease before its grant arrived. They would
    /// end the next one, too. The drop of the guard gives the lock back.
    fn ended_by_options(answer: &Attempt) -> Option<LockError> {
        let Attempt::Granted(guard) = answer else {
            return None;
        };
        let loss = guard.ended_by_options()?;
        let name = guard.name().to_owned();
        Some(LockError::Lost { name, loss })
    }

    /// Returns the error for a wait that nothing could end.
    fn without_end(&self) -> LockError {
        let name = self.name();
        match self.inner.keep_alive.is_forked() {
            true => LockError::Store {
                name,
                error: StoreError::Forked,
            },
            false => LockError::Closed { name },
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
        if self.unsure || self.is_asking {
            self.inner.give_back_later(self.request.give_back());
        }
        if self.noted {
            // First the place in the queue, so that the store sees who is left.
            self.watch = None;
            self.inner.leave_later(&self.request);
        }
    }
}
