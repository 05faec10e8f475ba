//! Calls that are awaited. They need no particular runtime: the workers of the leases call the
//! store, and the timers of the leases wake the waiting tasks.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Poll, Waker};
use std::time::Duration;

use tourbillon::{Time, reentrancy};

use super::acquire::AcquireLoop;
use super::attempt::{AcquireStep, Attempt, LEAST_CALL};
use super::error::{LockError, ReleaseError};
use super::guard::LeaseGuard;
use super::id::LeaseId;
use super::inner::LeasesInner;
use super::lease_future::LeaseFuture;
use super::oneshot::{OneshotWaker, oneshot};
use super::releases::UserHandle;
use super::request::Request;
use crate::keep_alive::{KeepAlive, Loss, TimerKey};
use crate::store::{Destination, StoreError};
use crate::sync::Arc;

/// Returns the answer of a call about a lock. If it is awaited, the call runs on a worker.
pub(super) fn answer_of<T, C>(
    leases: &UserHandle,
    name: &str,
    call: C,
) -> LeaseFuture<Result<T, LockError>>
where
    T: Send + 'static,
    C: FnOnce(&Arc<LeasesInner>, &str) -> Result<T, LockError> + Send + 'static,
{
    let own = (leases.clone(), name.to_owned(), call);
    // Under a lock of the crate both ways panic before the store is asked.
    let wait = |(leases, name, call): (UserHandle, String, C)| {
        let _ = reentrancy::check();
        call(&leases, &name)
    };
    LeaseFuture::new(own, wait, |(leases, name, call)| async move {
        let _ = reentrancy::check();
        let (own, asked) = (Arc::clone(&leases), name.clone());
        on_worker_or(&leases, &name, move || call(&own, &asked), |_| None).await
    })
}

impl LeaseGuard {
    /// Releases the lock on a worker, if this is the last guard. If the future is dropped after its
    /// first poll, the release goes on.
    pub(super) async fn go_back(mut self) -> Result<(), ReleaseError> {
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
pub(super) async fn acquire(mut acquire_loop: AcquireLoop) -> Result<LeaseGuard, LockError> {
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
    let mut last_alarm = LastAlarm::new(&inner, acquire_loop.end());
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
        let mut answer = pin!(run(
            &inner,
            destination,
            attempt,
            true,
            AttemptAnswer::lease
        ));
        let answer = poll_fn(|context| {
            if let Poll::Ready(answer) = answer.as_mut().poll(context) {
                return Poll::Ready(Some(answer));
            }
            last_alarm.bell.poll(context).map(|()| None)
        });
        let answer = match answer.await {
            Some(Fetched::Answer(answer)) => answer.take(),
            Some(Fetched::TooLate) => {
                acquire_loop.begin_again();
                last_alarm = LastAlarm::new(&inner, acquire_loop.end());
                continue;
            }
            Some(Fetched::NoWorker) => Attempt::Ended(acquire_loop.closed()),
            None => return Err(acquire_loop.timed_out()),
        };
        // A lease may also end while its grant waits for this poll.
        if let Attempt::Granted(guard) = &answer
            && !guard.is_held()
        {
            let loss = guard.lost().loss();
            drop(answer);
            acquire_loop.begin_again();
            if let Some(loss @ (Loss::NotFed | Loss::HeldTooLong)) = loss {
                // These options would end the next lease, too.
                let name = acquire_loop.request.name.clone();
                return Err(LockError::Lost { name, loss });
            }
            last_alarm = LastAlarm::new(&inner, acquire_loop.end());
            continue;
        }
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
    /// Returns the lease of a lock that was granted.
    fn lease(&self) -> Option<Duration> {
        match &self.attempt {
            Some(Attempt::Granted(guard)) => Some(guard.id().lease()),
            _ => None,
        }
    }

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

/// Ends a wait of limited time if nothing else does.
///
/// If all workers are busy with hanging calls, the caller's own call does not even begin. The alarm
/// comes after the end of the wait, so that a call which begins at the end has time for its answer.
pub(super) struct LastAlarm<'a> {
    pub(super) bell: Arc<OneshotWaker>,
    _alarm: Option<WakeUp<'a>>,
}

impl<'a> LastAlarm<'a> {
    pub(super) fn new(inner: &'a LeasesInner, end: Time) -> Self {
        let bell = Arc::new(OneshotWaker::default());
        let alarm = match end {
            Time::MAX => None,
            end => {
                let left = end.since(inner.clock.now()) + 2 * LEAST_CALL;
                alarm(inner, left, Waker::from(Arc::clone(&bell)))
            }
        };
        LastAlarm {
            bell,
            _alarm: alarm,
        }
    }
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

/// A task that waits for a worker or a turn. The drop removes it, unless it has begun, and the timer
/// that would withdraw its answer.
struct AwaitedTurn<'a> {
    inner: &'a LeasesInner,
    destination: Destination,
    number: u64,
    withdrawal: TimerKey,
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
        self.inner.keep_alive.cancel(self.withdrawal);
    }
}

/// The answer of a worker, or why there is none.
enum Fetched<T> {
    Answer(T),
    /// It held a lock for too long, and was dropped.
    TooLate,
    /// No worker is left.
    NoWorker,
}

/// Runs a call about a lock on a worker, like [`on_worker`]. Without workers the leases are closed.
/// If the future is dropped before the call has begun, the call is not made.
///
/// `lease_of` returns the lease of the locks that an answer holds. Such an answer waits for the next
/// poll for half of that lease. If it is dropped then, the error is [`LockError::Lost`].
pub(super) async fn on_worker_or<T: Send + 'static>(
    inner: &Arc<LeasesInner>,
    name: &str,
    task: impl FnOnce() -> Result<T, LockError> + Send + 'static,
    lease_of: fn(&Result<T, LockError>) -> Option<Duration>,
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
    let own_name = || name.to_owned();
    match run(inner, destination, task, true, lease_of).await {
        Fetched::Answer(answer) => answer,
        Fetched::TooLate => Err(LockError::Lost {
            name: own_name(),
            loss: Loss::Expired,
        }),
        Fetched::NoWorker if inner.keep_alive.is_forked() => {
            let (name, error) = (own_name(), StoreError::Forked);
            Err(LockError::Store { name, error })
        }
        Fetched::NoWorker => Err(LockError::Closed { name: own_name() }),
    }
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
    match run(inner, destination, task, may_be_left, |_| None).await {
        Fetched::Answer(answer) => Some(answer),
        Fetched::TooLate | Fetched::NoWorker => None,
    }
}

/// Runs `task` like [`on_worker`]. An answer that holds locks, by `lease_of`, is dropped if the
/// future has not taken it after half of their lease: nobody knows whether it is polled ever again.
async fn run<T: Send + 'static>(
    inner: &Arc<LeasesInner>,
    destination: Destination,
    task: impl FnOnce() -> T + Send + 'static,
    may_be_left: bool,
    lease_of: fn(&T) -> Option<Duration>,
) -> Fetched<T> {
    let (sender, receiver) = oneshot();
    let number = inner.keep_alive.number();
    let withdrawal = TimerKey::Call(inner.keep_alive.number());
    let (own, timers) = (Arc::clone(inner), Arc::clone(inner));
    let task = Box::new(move || {
        // The future may have been dropped while the task was on its way to its turn.
        if may_be_left && !sender.are_awaited() {
            return;
        }
        let answer = task();
        let Some(lease) = lease_of(&answer) else {
            return sender.leave(answer);
        };
        let late = sender.withdrawal();
        let keep_alive = &timers.keep_alive;
        sender.leave(answer);
        // Only now: a timer that came before the answer would withdraw nothing.
        keep_alive.after(withdrawal, lease / 2, move || late.withdraw());
        // The answer may have been taken, or the future dropped, before the timer was armed.
        if !sender.are_awaited() {
            keep_alive.cancel(withdrawal);
        }
    });
    let turn = move || own.turns.run(destination, number, task);
    if !inner.keep_alive.call(number, turn) {
        return Fetched::NoWorker;
    }
    let _left = may_be_left.then(|| AwaitedTurn {
        inner,
        destination,
        number,
        withdrawal,
    });
    // It is dropped before the turn: a worker that still finds it leaves the timer to that drop.
    let receiver = receiver;
    match poll_fn(|context| receiver.poll(context)).await {
        Some(answer) => Fetched::Answer(answer),
        None if receiver.is_withdrawn() => Fetched::TooLate,
        None => Fetched::NoWorker,
    }
}
