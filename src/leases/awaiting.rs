//! The calls that are awaited. They need no runtime: the store is asked on the leases' own workers,
//! and their timers wake who waits.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::acquire::{Acquisition, Patience, Quest, Step};
use super::error::{LockError, ReleaseError};
use super::guard::{LeaseGuard, LeaseId};
use super::locks::{Attempt, Inner, Leases, Request};
use super::store::StoreError;
use super::watchdog::Watchdog;
use crate::job::contain;
use crate::sync::{Arc, Mutex};
use crate::tick::Time;

impl Leases {
    /// [`lock`](Self::lock), awaited.
    ///
    /// **Dropping the future** gives up: it waits no more, and what a call that is under way is
    /// granted is given back at once. A guard that was acquired so does not block when it is dropped.
    ///
    /// # Errors
    ///
    /// As for [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::leases::{Leases, MemoryStore};
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
    pub async fn try_lock_async(&self, name: &str) -> Result<LeaseGuard, LockError> {
        self.acquire(name).try_lock_async().await
    }

    /// [`try_lock_for`](Self::try_lock_for), awaited; dropping it is as for
    /// [`lock_async`](Self::lock_async). The time counts from the first poll.
    ///
    /// # Errors
    ///
    /// As for [`try_lock_for`](Self::try_lock_for).
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
        go(self.quest(Patience::Endless)?).await
    }

    /// See [`Leases::try_lock_async`].
    ///
    /// # Errors
    ///
    /// As for that.
    pub async fn try_lock_async(self) -> Result<LeaseGuard, LockError> {
        go(self.quest(Patience::None)?).await
    }

    /// See [`Leases::try_lock_for_async`].
    ///
    /// # Errors
    ///
    /// As for that.
    pub async fn try_lock_for_async(self, wait: Duration) -> Result<LeaseGuard, LockError> {
        let until = self.leases().now() + wait;
        go(self.quest(Patience::Until(until))?).await
    }
}

impl LeaseGuard {
    /// [`release`](Self::release), awaited. The renewals end with the first poll; from then on the
    /// release goes on when the future is dropped.
    ///
    /// # Errors
    ///
    /// As for [`release`](Self::release).
    pub async fn release_async(mut self) -> Result<(), ReleaseError> {
        if !self.is_last() {
            return self.still_held();
        }
        let ended = self.lease().kept.end();
        let lease = Arc::clone(self.lease());
        let answer = on_worker(&self.lease().inner, move || lease.answer(ended)).await;
        answer.unwrap_or_else(|| {
            let what = "there is no worker any more".to_owned();
            Err(ReleaseError::Store(StoreError::Unavailable(what)))
        })
    }
}

async fn go(mut quest: Quest) -> Result<LeaseGuard, LockError> {
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    loop {
        let (waits, limit) = quest.ask();
        let (inner, request) = (Arc::clone(&quest.inner), Arc::clone(&quest.request));
        // Should this future be dropped, the answer is: a guard with it, which gives its lock back.
        let answer = on_worker(&quest.inner, move || {
            let answer = inner.attempt(&request, waits, limit, false);
            Tried(Some(answer), inner, request)
        });
        let answer = answer.await.and_then(|mut tried| tried.0.take());
        match quest.after(answer.unwrap_or(Attempt::Ended(LockError::Closed)), &waker) {
            Step::Ask => {}
            Step::Wait(until) => sleep(&quest, &bell, &waker, until).await,
            Step::Done(answer) => return answer,
        }
    }
}

/// An answer. If nobody takes it, what may have been granted without an answer is given back.
struct Tried(Option<Attempt>, Arc<Inner>, Arc<Request>);

impl Drop for Tried {
    fn drop(&mut self) {
        let Tried(answer, inner, request) = self;
        if let Some(Attempt::Failed(error)) = answer
            && error.leaves_open()
        {
            inner.give_back_later(&request.name, &request.owner, request.lease);
        }
    }
}

/// Until then, or until the bell rings.
async fn sleep(quest: &Quest, bell: &Arc<Bell>, waker: &Waker, until: Time) {
    let waker = waker.clone();
    let watchdog = &quest.inner.watchdog;
    let delay = until.since(quest.inner.clock.now());
    // Without a worker there will be an answer at the next attempt, and at once.
    if let Some(number) = watchdog.call(delay, move || waker.wake()) {
        let _alarm = Alarm { watchdog, number };
        poll_fn(|context| bell.poll(context)).await;
    }
}

/// The time to ask again. Nothing of it is left when it is not waited for any more.
struct Alarm<'a> {
    watchdog: &'a Watchdog<LeaseId>,
    number: u64,
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.watchdog.cancel_call(self.number);
    }
}

/// Runs `task` on a worker of the leases; `None` if there is none any more. When the future is
/// dropped, the task runs all the same, and its answer is dropped.
async fn on_worker<T: Send + 'static>(
    inner: &Inner,
    task: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let desk = Arc::new(Desk::default());
    let answers = Answers(Arc::clone(&desk));
    let called = inner.call(Duration::ZERO, move || {
        let answer = task();
        answers.0.leave(answer);
    });
    if !called {
        return None;
    }
    let mut end = pin!(End(desk));
    poll_fn(|context| end.as_mut().0.poll(context)).await
}

/// Where an answer is left.
struct Desk<T> {
    state: Mutex<Left<T>>,
}

struct Left<T> {
    answer: Option<T>,
    /// Nobody will leave one any more.
    gone: bool,
    /// Nobody will take it.
    abandoned: bool,
    waker: Option<Waker>,
}

impl<T> Default for Desk<T> {
    fn default() -> Self {
        Desk {
            state: Mutex::new(Left {
                answer: None,
                gone: false,
                abandoned: false,
                waker: None,
            }),
        }
    }
}

impl<T> Desk<T> {
    fn leave(&self, answer: T) {
        let mut state = self.state.lock();
        if state.abandoned {
            drop(state);
            drop(answer);
            return;
        }
        state.answer = Some(answer);
    }

    fn poll(&self, context: &Context<'_>) -> Poll<Option<T>> {
        let waker = context.waker().clone();
        let mut state = self.state.lock();
        if let Some(answer) = state.answer.take() {
            return Poll::Ready(Some(answer));
        }
        if state.gone {
            return Poll::Ready(None);
        }
        let before = state.waker.replace(waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

/// The worker's end: dropped when the task has run, panicked, or will not run.
struct Answers<T>(Arc<Desk<T>>);

impl<T> Drop for Answers<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.0.state.lock();
            state.gone = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            // A runtime's code.
            let _ = contain(|| waker.wake());
        }
    }
}

/// The future's end.
struct End<T>(Arc<Desk<T>>);

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        let left = {
            let mut state = self.0.state.lock();
            state.abandoned = true;
            (state.answer.take(), state.waker.take())
        };
        drop(left);
    }
}

/// Wakes a task, and remembers that it did.
#[derive(Default)]
struct Bell(Mutex<(bool, Option<Waker>)>);

impl Bell {
    fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let waker = context.waker().clone();
        let mut state = self.0.lock();
        if std::mem::take(&mut state.0) {
            return Poll::Ready(());
        }
        let before = state.1.replace(waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let waker = {
            let mut state = self.0.lock();
            state.0 = true;
            state.1.take()
        };
        if let Some(waker) = waker {
            // A runtime's code.
            let _ = contain(|| waker.wake());
        }
    }
}
