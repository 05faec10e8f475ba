//! The calls that are awaited. They need no runtime: the store is asked on the leases' own workers,
//! and their timers wake who waits.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Poll, Waker};
use std::time::Duration;

use tourbillon::{Time, reentrancy};

use super::acquire::{AcquireLoop, AcquireStep, Acquisition, WaitPolicy};
use super::attempt::{Attempt, LEAST_CALL};
use super::error::{LockError, ReleaseError};
use super::guard::LeaseGuard;
use super::id::LeaseId;
use super::inner::LeasesInner;
use super::keep_alive::{KeepAlive, Loss};
use super::locks::Leases;
use super::oneshot::{OneshotWaker, oneshot};
use super::request::Request;
use super::store::{Destination, StoreError};
use crate::sync::Arc;

impl Leases {
    /// [`lock`](Self::lock), awaited.
    ///
    /// Needs no particular runtime. The leases' own workers call the store: at most 64 at one time
    /// for one destination, and 192 in all. If all of these calls hang, further calls wait for
    /// them.
    ///
    /// **Dropping the future** gives up: it waits no more, and what a call that is under way is
    /// granted is given back at once.
    ///
    /// **Dropping the guard** does not block, unless it is the last guard and no `Leases` are left:
    /// see [`LeasesBuilder::end_limit`]. A process that exits without this last drop may end before
    /// a dropped guard is given back. There, await [`release_async`](LeaseGuard::release_async), or
    /// call [`close`](Leases::close).
    ///
    /// [`LeasesBuilder::end_limit`]: super::LeasesBuilder::end_limit
    ///
    /// # Errors
    ///
    /// As for [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, MemoryStore};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock_async("invoices").await?;
    /// // .. work that is awaited, beside `guard.lost()`, which is a future, too
    /// guard.release_async().await?;
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub async fn lock_async(&self, name: &str) -> Result<LeaseGuard, LockError> {
        self.acquire(name).lock_async().await
    }

    /// [`try_lock`](Self::try_lock), awaited; dropping it is as for
    /// [`lock_async`](Self::lock_async).
    ///
    /// # Errors
    ///
    /// As for [`try_lock`](Self::try_lock).
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, LockError, MemoryStore};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.try_lock_async("report").await?;
    /// assert!(matches!(leases.try_lock_async("report").await, Err(LockError::Held { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn try_lock_async(&self, name: &str) -> Result<LeaseGuard, LockError> {
        self.acquire(name).try_lock_async().await
    }

    /// [`try_lock_for`](Self::try_lock_for), awaited; dropping it is as for
    /// [`lock_async`](Self::lock_async). The time counts from the first poll.
    ///
    /// # Errors
    ///
    /// As for [`try_lock_for`](Self::try_lock_for).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.try_lock_for_async("report", Duration::from_secs(5)).await?;
    /// assert!(guard.is_held());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn try_lock_for_async(
        &self,
        name: &str,
        wait: Duration,
    ) -> Result<LeaseGuard, LockError> {
        self.acquire(name).try_lock_for_async(wait).await
    }
}

impl Acquisition<'_> {
    /// See [`Leases::lock_async`].
    ///
    /// # Errors
    ///
    /// As for that.
    pub async fn lock_async(self) -> Result<LeaseGuard, LockError> {
        go(self.acquire_loop(WaitPolicy::Endless)?).await
    }

    /// See [`Leases::try_lock_async`].
    ///
    /// # Errors
    ///
    /// As for that.
    pub async fn try_lock_async(self) -> Result<LeaseGuard, LockError> {
        go(self.acquire_loop(WaitPolicy::None)?).await
    }

    /// See [`Leases::try_lock_for_async`].
    ///
    /// # Errors
    ///
    /// As for that.
    pub async fn try_lock_for_async(self, wait: Duration) -> Result<LeaseGuard, LockError> {
        let until = self.now() + wait;
        go(self.acquire_loop(WaitPolicy::Until(until))?).await
    }
}

impl LeaseGuard {
    /// [`release`](Self::release), awaited. The renewals end with the first poll; from then on the
    /// release goes on when the future is dropped.
    ///
    /// # Errors
    ///
    /// As for [`release`](Self::release).
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock_async("report").await?;
    /// guard.release_async().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn release_async(mut self) -> Result<(), ReleaseError> {
        // As in `release`.
        let _ = reentrancy::check();
        if !self.is_last() {
            return self.still_held();
        }
        let ended = self.lease().kept.end();
        let lease = Arc::clone(self.lease());
        let inner = &self.lease().inner;
        let destination = inner.destination(self.name());
        let answer = on_worker(inner, destination, move || lease.answer(ended), false).await;
        answer.unwrap_or_else(|| {
            if self.lease().kept.is_forked() {
                return Err(ReleaseError::Lost(Loss::Forked));
            }
            let what = "there is no worker any more".to_owned();
            Err(ReleaseError::Store(StoreError::Unavailable(what)))
        })
    }
}

/// In a forked copy of the process nothing wakes the future, and a lock that it would take may be held
/// for ever. So each poll looks for that first.
async fn go(mut acquire_loop: AcquireLoop) -> Result<LeaseGuard, LockError> {
    let inner = Arc::clone(&acquire_loop.inner);
    let name = acquire_loop.request.name.clone();
    let answer = {
        let mut asking = pin!(ask(&mut acquire_loop));
        poll_fn(|context| {
            if inner.keep_alive.is_forked() {
                let (name, error) = (name.clone(), StoreError::Forked);
                return Poll::Ready(Err(LockError::Store { name, error }));
            }
            asking.as_mut().poll(context)
        })
        .await
    };
    acquire_loop.ended(&answer);
    answer
}

async fn ask(acquire_loop: &mut AcquireLoop) -> Result<LeaseGuard, LockError> {
    let inner = Arc::clone(&acquire_loop.inner);
    let destination = inner.destination(&acquire_loop.request.name);
    let bell = Arc::new(OneshotWaker::default());
    let waker = Waker::from(Arc::clone(&bell));
    // All workers may be busy with calls that hang, and then its own does not even begin. Else there
    // is time for a call that begins at the end.
    let wait_policy = Arc::new(OneshotWaker::default());
    let _alarm = match acquire_loop.end() {
        Time::MAX => None,
        end => {
            let left = (end + 2 * LEAST_CALL).since(inner.clock.now());
            alarm(&inner, left, Waker::from(Arc::clone(&wait_policy)))
        }
    };
    loop {
        if acquire_loop.is_closed() {
            return Err(acquire_loop.closed());
        }
        let how = acquire_loop.ask(false);
        let (asked, request) = (Arc::clone(&inner), Arc::clone(&acquire_loop.request));
        // Should this future be dropped, the answer is.
        let attempt = move || AttemptAnswer {
            attempt: Some(asked.attempt(&request, how)),
            inner: asked,
            request,
        };
        let mut answer = pin!(on_worker(&inner, destination, attempt, true));
        let answer = poll_fn(|context| {
            if let Poll::Ready(answer) = answer.as_mut().poll(context) {
                return Poll::Ready(Some(answer));
            }
            wait_policy.poll(context).map(|()| None)
        });
        let answer = match answer.await {
            Some(Some(answer)) => answer.take(),
            Some(None) => Attempt::Ended(acquire_loop.closed()),
            None => return Err(acquire_loop.timed_out()),
        };
        match acquire_loop.after(answer, &waker) {
            AcquireStep::Ask => {}
            AcquireStep::Wait(until) => sleep(&inner, &bell, &waker, until).await,
            AcquireStep::Done(answer) => return answer,
        }
    }
}

/// What an attempt had for an answer, on its way to a future that may be gone: then a guard gives its
/// lock back by itself, and what may have been granted without our knowing is given back, too.
struct AttemptAnswer {
    attempt: Option<Attempt>,
    inner: Arc<LeasesInner>,
    request: Arc<Request>,
}

impl AttemptAnswer {
    fn take(mut self) -> Attempt {
        let attempt = self.attempt.take();
        attempt.expect("it is taken once, with the answer itself")
    }
}

impl Drop for AttemptAnswer {
    fn drop(&mut self) {
        let unknown = match &self.attempt {
            Some(Attempt::Failed(error)) => error.leaves_open(),
            Some(Attempt::Ended(_)) => true,
            _ => false,
        };
        if unknown {
            self.inner.give_back_later(self.request.give_back());
        }
    }
}

/// Until then, or until the bell rings.
async fn sleep(inner: &LeasesInner, bell: &Arc<OneshotWaker>, waker: &Waker, until: Time) {
    let delay = until.since(inner.clock.now());
    // Without a worker there will be an answer at the next attempt, and at once.
    if let Some(_alarm) = alarm(inner, delay, waker.clone()) {
        poll_fn(|context| bell.poll(context)).await;
    }
}

/// Wakes after `delay`, unless it is dropped before.
fn alarm(inner: &LeasesInner, delay: Duration, waker: Waker) -> Option<WakeUp<'_>> {
    let keep_alive = &inner.keep_alive;
    let number = keep_alive.wake(delay, waker)?;
    Some(WakeUp { keep_alive, number })
}

/// What is to happen, unless it has begun. Nothing of it is left when it is not waited for any more.
struct WakeUp<'a> {
    keep_alive: &'a KeepAlive<LeaseId>,
    number: u64,
}

impl Drop for WakeUp<'_> {
    fn drop(&mut self) {
        self.keep_alive.cancel_call(self.number);
    }
}

/// A task that is to have a turn, unless it has begun.
struct AwaitedTurn<'a> {
    inner: &'a LeasesInner,
    destination: Destination,
    number: u64,
}

impl Drop for AwaitedTurn<'_> {
    fn drop(&mut self) {
        // In a forked copy of the process nothing takes turns, and the lock may be held for ever.
        if self.inner.keep_alive.is_forked() {
            return;
        }
        self.inner.keep_alive.cancel_call(self.number);
        self.inner.turns.leave(self.destination, self.number);
    }
}

/// Runs `task` on a worker of the leases, when it is its destination's turn; `None` if there is none
/// any more. When the future is dropped, a task that has begun runs to its end, and its answer is
/// dropped; one that has not does not begin if it `may_be_left`.
async fn on_worker<T: Send + 'static>(
    inner: &Arc<LeasesInner>,
    destination: Destination,
    task: impl FnOnce() -> T + Send + 'static,
    may_be_left: bool,
) -> Option<T> {
    let (answers, end) = oneshot();
    let number = inner.keep_alive.number();
    let own = Arc::clone(inner);
    let task = Box::new(move || {
        // It may have been on its way to its turn when the future was dropped.
        if may_be_left && !answers.are_awaited() {
            return;
        }
        let answer = task();
        answers.leave(answer);
    });
    let turn = move || own.turns.run(destination, number, task);
    if !inner.keep_alive.call(number, turn) {
        return None;
    }
    let _left = may_be_left.then(|| AwaitedTurn {
        inner,
        destination,
        number,
    });
    poll_fn(|context| end.poll(context)).await
}
