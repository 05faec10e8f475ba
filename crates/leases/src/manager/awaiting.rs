//! The async calls. They need no particular runtime: the workers of the leases call the store, and
//! the timers of the leases wake the waiting tasks.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Poll, Waker};
use std::time::Duration;

use tourbillon::{Time, reentrancy};

use super::acquire::{AcquireLoop, AcquireStep, Acquisition};
use super::attempt::{Attempt, LEAST_CALL};
use super::error::{LockError, ReleaseError};
use super::guard::LeaseGuard;
use super::id::LeaseId;
use super::inner::LeasesInner;
use super::lease_future::LeaseFuture;
use super::locks::Leases;
use super::oneshot::{OneshotWaker, oneshot};
use super::request::{Request, WaitPolicy};
use crate::keep_alive::{KeepAlive, Loss};
use crate::store::{Destination, Holder, StoreError};
use crate::sync::Arc;

impl Leases {
    /// Acquires the lock like [`lock`](Self::lock), as a future.
    ///
    /// The future needs no particular runtime. The workers of the leases call the store: at most 64
    /// at one time for one destination, and 192 in all. If all of these calls hang, further calls
    /// wait for them.
    ///
    /// **Dropping the future** ends the wait. If a call that is in flight is granted after that,
    /// the lock is given back at once.
    ///
    /// **Dropping the guard** does not block, unless it is the last guard and no `Leases` are left:
    /// see [`LeasesBuilder::end_limit`]. A process that exits without this last drop may end before
    /// a dropped guard is given back. There, await [`release_async`](LeaseGuard::release_async), or
    /// call [`close`](Leases::close).
    ///
    /// [`LeasesBuilder::end_limit`]: crate::LeasesBuilder::end_limit
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
    /// // .. await the work together with `guard.lost()`, which is a future, too
    /// guard.release_async().await?;
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub fn lock_async(&self, name: &str) -> LeaseFuture<Result<LeaseGuard, LockError>> {
        self.acquire(name).lock_async()
    }

    /// Acquires the lock if it is free, like [`try_lock`](Self::try_lock), as a future. It may be
    /// dropped like that of [`lock_async`](Self::lock_async).
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
    pub fn try_lock_async(&self, name: &str) -> LeaseFuture<Result<LeaseGuard, LockError>> {
        self.acquire(name).try_lock_async()
    }

    /// Acquires the lock and waits for at most `wait`, like [`try_lock_for`](Self::try_lock_for),
    /// as a future. The time counts from the first poll. The future may be dropped like that of
    /// [`lock_async`](Self::lock_async).
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
    pub fn try_lock_for_async(
        &self,
        name: &str,
        wait: Duration,
    ) -> LeaseFuture<Result<LeaseGuard, LockError>> {
        self.acquire(name).try_lock_for_async(wait)
    }
}

impl Leases {
    /// Asks the store who holds a lock, like [`holder`](Self::holder), as a future.
    ///
    /// # Errors
    ///
    /// As for [`holder`](Self::holder).
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock_async("report").await?;
    /// let holder = leases.holder_async("report").await?.expect("the lock is held");
    /// assert_eq!(holder.token, guard.fencing_token());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn holder_async(&self, name: &str) -> LeaseFuture<Result<Option<Holder>, LockError>> {
        self.on_worker(name, |inner, name| inner.holder(name))
    }

    /// Runs a call about a lock on a worker.
    pub(super) fn on_worker<T: Send + 'static>(
        &self,
        name: &str,
        call: impl FnOnce(&Arc<LeasesInner>, &str) -> Result<T, LockError> + Send + 'static,
    ) -> LeaseFuture<Result<T, LockError>> {
        let (leases, name) = (self.inner.clone(), name.to_owned());
        LeaseFuture::new(async move {
            // Under a lock of the crate this panics before the store is asked.
            let _ = reentrancy::check();
            let (own, asked) = (Arc::clone(&leases), name.clone());
            on_worker_or(&leases, &name, move || call(&own, &asked)).await
        })
    }
}

impl Acquisition<'_> {
    /// Acquires the lock and waits for it, like [`Leases::lock_async`].
    ///
    /// # Errors
    ///
    /// As for [`lock`](Self::lock).
    pub fn lock_async(self) -> LeaseFuture<Result<LeaseGuard, LockError>> {
        self.in_future(|_| WaitPolicy::Endless, go)
    }

    /// Acquires the lock if it is free, like [`Leases::try_lock_async`].
    ///
    /// # Errors
    ///
    /// As for [`try_lock`](Self::try_lock).
    pub fn try_lock_async(self) -> LeaseFuture<Result<LeaseGuard, LockError>> {
        self.in_future(|_| WaitPolicy::None, go)
    }

    /// Acquires the lock and waits for it for at most `wait`, like [`Leases::try_lock_for_async`].
    ///
    /// # Errors
    ///
    /// As for [`try_lock_for`](Self::try_lock_for).
    pub fn try_lock_for_async(self, wait: Duration) -> LeaseFuture<Result<LeaseGuard, LockError>> {
        self.in_future(move |own| WaitPolicy::Until(own.now() + wait), go)
    }
}

impl LeaseGuard {
    /// Gives the lock back like [`release`](Self::release), as a future. The renewals end with the
    /// first poll. If the future is dropped after that, the release goes on.
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
    pub fn release_async(self) -> LeaseFuture<Result<(), ReleaseError>> {
        LeaseFuture::new(self.go_back())
    }

    async fn go_back(mut self) -> Result<(), ReleaseError> {
        // Under a lock of the crate this panics before anything is changed, as in `release`.
        let _ = reentrancy::check();
        if !self.is_last() {
            return self.still_held();
        }
        // The renewals end here, before the first await: from now on a dropped future changes
        // nothing.
        let ended = self.lease().kept.end();
        let lease = Arc::clone(self.lease());
        let inner = &self.lease().inner;
        let destination = inner.destination(self.name());
        let answer = on_worker(inner, destination, move || lease.answer(ended), false).await;
        answer.unwrap_or_else(|| {
            if self.lease().kept.is_forked() {
                return Err(ReleaseError::Lost(Loss::Forked));
            }
            let what = "no worker is left".to_owned();
            Err(ReleaseError::Store(StoreError::Unavailable(what)))
        })
    }
}

/// Acquires the lock as a future, and counts the result.
///
/// In a forked copy of the process nothing wakes the future, and a lock that it would take may stay
/// locked forever. So each poll checks for a copy first.
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

/// Asks on a worker and waits, until there is a result.
async fn ask(acquire_loop: &mut AcquireLoop) -> Result<LeaseGuard, LockError> {
    let inner = Arc::clone(&acquire_loop.inner);
    let destination = inner.destination(&acquire_loop.request.name);
    // One waker for the whole wait, since the store's watch keeps it. It rings for the future's
    // present task, whichever that is.
    let bell = Arc::new(OneshotWaker::default());
    let waker = Waker::from(Arc::clone(&bell));
    // If all workers are busy with hanging calls, this caller's own call does not even begin. Then
    // only this alarm ends the wait. It comes after the end, so that a call which begins at the
    // end has time for its answer.
    let alarm_bell = Arc::new(OneshotWaker::default());
    let _alarm = match acquire_loop.end() {
        Time::MAX => None,
        end => {
            let left = (end + 2 * LEAST_CALL).since(inner.clock.now());
            alarm(&inner, left, Waker::from(Arc::clone(&alarm_bell)))
        }
    };
    loop {
        if acquire_loop.is_closed() {
            return Err(acquire_loop.closed());
        }
        let how = acquire_loop.ask(false);
        let (asked, request) = (Arc::clone(&inner), Arc::clone(&acquire_loop.request));
        // If this future is dropped, the answer is dropped too, and gives back what was granted.
        let attempt = move || AttemptAnswer {
            attempt: Some(asked.attempt(&request, how)),
            inner: asked,
            request,
        };
        // Waits for the answer or the alarm. The answer comes first if both are there.
        let mut answer = pin!(on_worker(&inner, destination, attempt, true));
        let answer = poll_fn(|context| {
            if let Poll::Ready(answer) = answer.as_mut().poll(context) {
                return Poll::Ready(Some(answer));
            }
            alarm_bell.poll(context).map(|()| None)
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

/// The result of an attempt, on its way to a future that may be gone.
///
/// If the future is gone, the drop gives the lock back. A guard does that by itself. For an attempt
/// that may have been granted without an answer, this type does it.
struct AttemptAnswer {
    attempt: Option<Attempt>,
    inner: Arc<LeasesInner>,
    request: Arc<Request>,
}

impl AttemptAnswer {
    fn take(mut self) -> Attempt {
        let attempt = self.attempt.take();
        attempt.expect("`take` consumes the answer, so the attempt is still there")
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

/// Waits until `until`, or until the bell rings.
pub(super) async fn sleep(
    inner: &LeasesInner,
    bell: &Arc<OneshotWaker>,
    waker: &Waker,
    until: Time,
) {
    let delay = until.since(inner.clock.now());
    // Without workers the next attempt fails at once, so there is no need to wait.
    if let Some(_alarm) = alarm(inner, delay, waker.clone()) {
        poll_fn(|context| bell.poll(context)).await;
    }
}

/// Wakes `waker` after `delay`, unless the returned value is dropped before. Returns `None` if
/// there are no workers.
fn alarm(inner: &LeasesInner, delay: Duration, waker: Waker) -> Option<WakeUp<'_>> {
    let keep_alive = &inner.keep_alive;
    let number = keep_alive.wake(delay, waker)?;
    Some(WakeUp { keep_alive, number })
}

/// A wake-up by a timer. The drop cancels the timer.
struct WakeUp<'a> {
    keep_alive: &'a KeepAlive<LeaseId>,
    number: u64,
}

impl Drop for WakeUp<'_> {
    fn drop(&mut self) {
        self.keep_alive.cancel_call(self.number);
    }
}

/// A task that waits for a worker or a turn. The drop removes it, unless it has begun.
struct AwaitedTurn<'a> {
    inner: &'a LeasesInner,
    destination: Destination,
    number: u64,
}

impl Drop for AwaitedTurn<'_> {
    fn drop(&mut self) {
        // In a forked copy of the process nothing takes turns, and the lock may stay locked
        // forever.
        if self.inner.keep_alive.is_forked() {
            return;
        }
        self.inner.keep_alive.cancel_call(self.number);
        self.inner.turns.leave(self.destination, self.number);
    }
}

/// Runs a call about a lock on a worker, like [`on_worker`]. Without workers the leases are closed.
/// If the future is dropped before the call has begun, the call is not made.
pub(super) async fn on_worker_or<T: Send + 'static>(
    inner: &Arc<LeasesInner>,
    name: &str,
    task: impl FnOnce() -> Result<T, LockError> + Send + 'static,
) -> Result<T, LockError> {
    LockError::check_length(name)?;
    // In a forked copy nothing would wake the future.
    if inner.keep_alive.is_forked() {
        let (name, error) = (name.to_owned(), StoreError::Forked);
        return Err(LockError::Store { name, error });
    }
    // This may be the first call of these leases.
    let started = inner.keep_alive.start();
    started.map_err(|error| LockError::of_keep(name, error))?;
    let destination = inner.destination(name);
    let answer = on_worker(inner, destination, task, true).await;
    answer.unwrap_or_else(|| {
        let name = name.to_owned();
        Err(LockError::Closed { name })
    })
}

/// Runs `task` on a worker of the leases when its destination has a free turn. Returns `None` if no
/// worker is left.
///
/// If the future is dropped, a task that has begun runs to its end, and its answer is dropped. A
/// task that has not begun is removed if it `may_be_left`. Otherwise it runs all the same.
pub(super) async fn on_worker<T: Send + 'static>(
    inner: &Arc<LeasesInner>,
    destination: Destination,
    task: impl FnOnce() -> T + Send + 'static,
    may_be_left: bool,
) -> Option<T> {
    let (sender, receiver) = oneshot();
    let number = inner.keep_alive.number();
    let own = Arc::clone(inner);
    let task = Box::new(move || {
        // The future may have been dropped while the task was on its way to its turn.
        if may_be_left && !sender.are_awaited() {
            return;
        }
        let answer = task();
        sender.leave(answer);
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
    poll_fn(|context| receiver.poll(context)).await
}
