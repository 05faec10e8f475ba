//! Calls to the store, and waits, as futures of the leases. The task or the thread that waits for
//! the answer polls them.
//!
//! - **CALL-1** A call ends at its limit by the clock of the leases. The store's future is dropped
//!   then, and is not polled at the limit or later, since such a poll might send something.
//! - **CALL-2** A future that waits is woken at the end of its wait. A timer of the leases wakes a
//!   task. A thread needs no timer: it parks until that moment.
//!
//! In a forked copy of the process nothing wakes a future, and a lock may stay locked forever. So
//! each poll that may follow a fork checks for a copy first.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tourbillon::Time;

use super::inner::LeasesInner;
use crate::store::{Bell, LeaseStore, StoreError, StoreFuture, parks_until, poll_in_place};
use crate::sync::{Arc, catch_panic};

/// The result of a call.
pub(super) enum Called<T> {
    Answered(Result<T, StoreError>),
    Panicked(String),
    /// The limit was over when the future was polled.
    Unanswered,
}

impl<T> Called<T> {
    /// Returns the answer. A panic counts as an error.
    pub(super) fn answer(self, limit: Duration) -> Result<T, StoreError> {
        match self {
            Called::Answered(answer) => answer,
            Called::Panicked(panic) => {
                let what = format!("the store panicked: {panic}");
                Err(StoreError::Unavailable(what))
            }
            Called::Unanswered => Err(StoreError::unanswered(limit)),
        }
    }
}

impl LeasesInner {
    /// Calls the store, and waits for the answer until `limit`. A panic counts as an error.
    pub(super) async fn call_store<'a, T>(
        &'a self,
        limit: Duration,
        make: impl FnOnce(&'a dyn LeaseStore) -> StoreFuture<'a, T>,
    ) -> Result<T, StoreError> {
        let called = self.call(self.clock.now(), limit, make).await;
        called.answer(limit)
    }

    /// Calls the store, and waits for the answer until `limit` after `sent`, which is the present
    /// moment. In a forked copy of the process this fails without a call.
    pub(super) async fn call<'a, T>(
        &'a self,
        sent: Time,
        limit: Duration,
        make: impl FnOnce(&'a dyn LeaseStore) -> StoreFuture<'a, T>,
    ) -> Called<T> {
        if self.keep_alive.is_forked() {
            return Called::Answered(Err(StoreError::Forked));
        }
        if limit.is_zero() {
            return Called::Unanswered;
        }
        let call = match catch_panic(|| make(self.store.as_ref())) {
            Ok(call) => call,
            Err(panic) => return Called::Panicked(panic),
        };
        let limited = LimitedCall {
            alarm: Alarm::new(self),
            end: sent + limit,
            call: Some(call),
            was_polled: false,
        };
        limited.await
    }

    /// Waits until `until`, or until the bell rings. Returns false if nothing could end the wait,
    /// since the leases have no workers any more, or this is a forked copy of the process.
    pub(super) async fn sleep(&self, bell: &Arc<Bell>, until: Time) -> bool {
        let mut alarm = Alarm::new(self);
        poll_fn(|context| {
            if self.keep_alive.is_forked() {
                return Poll::Ready(false);
            }
            if bell.poll(context).is_ready() || self.clock.now() >= until {
                return Poll::Ready(true);
            }
            match alarm.wake_at(context, until) {
                true => Poll::Pending,
                false => Poll::Ready(false),
            }
        })
        .await
    }

    /// Waits until `look` returns `None`. Otherwise `look` has left the waker where it is woken,
    /// and returns the latest end of the wait. Returns false if nothing could end the wait.
    pub(super) async fn wait_for(&self, look: impl Fn(&Waker) -> Option<Time>) -> bool {
        let mut alarm = Alarm::new(self);
        poll_fn(|context| match look(context.waker()) {
            None => Poll::Ready(true),
            Some(until) if alarm.wake_at(context, until) => Poll::Pending,
            Some(_) => Poll::Ready(false),
        })
        .await
    }

    /// Returns a number that identifies these leases.
    pub(super) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// The error of a wait that nothing would end.
pub(super) fn without_threads() -> StoreError {
    let what = "the leases have no threads, and nothing would end the call";
    StoreError::Unavailable(what.to_owned())
}

/// A call that ends at its limit (CALL-1).
struct LimitedCall<'a, T> {
    alarm: Alarm<'a>,
    end: Time,
    /// `None` once it has ended.
    call: Option<StoreFuture<'a, T>>,
    was_polled: bool,
}

impl<T> LimitedCall<'_, T> {
    /// Ends the call, whose drop is code of the store.
    fn ends(&mut self) {
        if let Some(call) = self.call.take() {
            let _ = catch_panic(|| drop(call));
        }
    }
}

impl<T> Future for LimitedCall<'_, T> {
    type Output = Called<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Called<T>> {
        let this = &mut *self;
        let inner = this.alarm.inner;
        // The first poll comes right after `call` has checked for a fork, and its caller has read
        // the clock.
        if std::mem::replace(&mut this.was_polled, true) {
            if inner.keep_alive.is_forked() {
                return Poll::Ready(Called::Answered(Err(StoreError::Forked)));
            }
            if inner.clock.now() >= this.end {
                this.ends();
                return Poll::Ready(Called::Unanswered);
            }
        }
        let call = &mut this.call;
        let polled = catch_panic(|| {
            let future = call.as_mut().expect("a future is not polled again");
            let polled = match inner.stepped {
                true => poll_in_place(future.as_mut(), context.waker()),
                false => future.as_mut().poll(context),
            };
            if polled.is_ready() {
                // Its drop is code of the store, too.
                *call = None;
            }
            polled
        });
        let called = match polled {
            Ok(Poll::Ready(answer)) => return Poll::Ready(Called::Answered(answer)),
            Ok(Poll::Pending) if this.alarm.wake_at(context, this.end) => return Poll::Pending,
            Ok(Poll::Pending) => Called::Answered(Err(without_threads())),
            Err(panic) => Called::Panicked(panic),
        };
        this.ends();
        Poll::Ready(called)
    }
}

/// In a forked copy of the process the call is leaked: what it would lock may stay locked forever.
impl<T> Drop for LimitedCall<'_, T> {
    fn drop(&mut self) {
        if self.call.is_some() {
            match self.alarm.inner.keep_alive.is_forked() {
                true => std::mem::forget(self.call.take()),
                false => self.ends(),
            }
        }
    }
}

/// Wakes the task of a future at some moment (CALL-2). The drop cancels that.
struct Alarm<'a> {
    inner: &'a LeasesInner,
    armed: Option<Armed>,
}

struct Armed {
    number: u64,
    at: Time,
    waker: Waker,
}

impl<'a> Alarm<'a> {
    fn new(inner: &'a LeasesInner) -> Self {
        Alarm { inner, armed: None }
    }

    /// Wakes the task of this poll at `at`. Returns false if nothing could.
    fn wake_at(&mut self, context: &Context<'_>, at: Time) -> bool {
        if parks_until(context.waker(), self.inner.address(), at) {
            return true;
        }
        // The future may have moved to another task, which needs an alarm of its own. An alarm for
        // this moment is still armed, since no timer is early.
        let same = |armed: &Armed| armed.at == at && armed.waker.will_wake(context.waker());
        if self.armed.as_ref().is_some_and(same) {
            return true;
        }
        self.disarm();
        let (waker, delay) = (context.waker().clone(), at.since(self.inner.clock.now()));
        let number = self.inner.keep_alive.wake(delay, waker.clone());
        self.armed = number.map(|number| Armed { number, at, waker });
        number.is_some()
    }

    fn disarm(&mut self) {
        if let Some(armed) = self.armed.take() {
            self.inner.keep_alive.cancel_call(armed.number);
        }
    }
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.disarm();
    }
}
