//! Calls to a store that end at their limit, and what wakes a future that waits.
//!
//! - **CALL-1** A call ends at its limit by the clock of the leases. The store's future is dropped
//!   then, and is not polled at the limit or later, since such a poll might send something.
//! - **CALL-2** A future that waits is woken at the end of its wait. A timer of the leases wakes a
//!   task. A thread needs no timer: it parks until that moment.
//!
//! In a forked copy of the process nothing wakes a future, and a lock may stay locked forever. So
//! each poll that may follow a fork checks for a copy first.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tourbillon::Time;

use super::timers::Timers;
use crate::store::{StoreError, StoreFuture, parks_until, poll_in_place, waker_address};
use crate::sync::catch_panic;

/// The result of a call.
pub(crate) enum Called<T> {
    Answered(Result<T, StoreError>),
    Panicked(String),
    /// The limit was over when the future was polled.
    Unanswered,
}

impl<T> Called<T> {
    /// Returns the answer. A panic counts as an error.
    pub(crate) fn answer(self, limit: Duration) -> Result<T, StoreError> {
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

/// The error of a wait that nothing would end.
pub(crate) fn without_threads() -> StoreError {
    let what = "the leases have no threads, and nothing would end the call";
    StoreError::Unavailable(what.to_owned())
}

impl Timers {
    /// Returns a call that waits for its answer until `limit` after `sent`. `sent` must be the
    /// present moment, and the caller must await the call at once. In a forked copy of the process
    /// the call fails.
    pub(crate) fn call<'a, T>(
        &'a self,
        sent: Time,
        limit: Duration,
        make: impl FnOnce() -> StoreFuture<'a, T>,
    ) -> LimitedCall<'a, T> {
        let made = if self.is_forked() {
            Err(Called::Answered(Err(StoreError::Forked)))
        } else if limit.is_zero() {
            Err(Called::Unanswered)
        } else {
            catch_panic(make).map_err(Called::Panicked)
        };
        let (call, failed) = match made {
            Ok(call) => (Some(call), None),
            Err(failed) => (None, Some(failed)),
        };
        LimitedCall {
            alarm: Alarm::new(self),
            end: sent + limit,
            call,
            failed,
            was_polled: false,
        }
    }
}

/// A call that ends at its limit (CALL-1).
#[must_use = "a call is made when it is awaited"]
pub(crate) struct LimitedCall<'a, T> {
    alarm: Alarm<'a>,
    end: Time,
    /// `None` once it has ended.
    call: Option<StoreFuture<'a, T>>,
    /// Why there is no call.
    failed: Option<Called<T>>,
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

/// Only the store's future is pinned, which is boxed.
impl<T> Unpin for LimitedCall<'_, T> {}

impl<T> Future for LimitedCall<'_, T> {
    type Output = Called<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Called<T>> {
        let this = &mut *self;
        if let Some(failed) = this.failed.take() {
            return Poll::Ready(failed);
        }
        let timers = this.alarm.timers;
        // The first poll comes right after the check for a fork, and after its caller has read the
        // clock.
        if std::mem::replace(&mut this.was_polled, true) {
            if timers.is_forked() {
                return Poll::Ready(Called::Answered(Err(StoreError::Forked)));
            }
            if timers.clock().now() >= this.end {
                this.ends();
                return Poll::Ready(Called::Unanswered);
            }
        }
        let call = &mut this.call;
        let polled = catch_panic(|| {
            let future = call.as_mut().expect("a future is not polled again");
            let polled = match timers.is_stepped() {
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
            match self.alarm.timers.is_forked() {
                true => std::mem::forget(self.call.take()),
                false => self.ends(),
            }
        }
    }
}

/// Wakes the task of a future at some moment (CALL-2). The drop cancels that.
pub(crate) struct Alarm<'a> {
    timers: &'a Timers,
    armed: Option<Armed>,
}

struct Armed {
    number: u64,
    at: Time,
    /// Which waker the timer has. A clone of it here would keep the task that has this alarm.
    waker: (usize, usize),
}

impl<'a> Alarm<'a> {
    pub(crate) fn new(timers: &'a Timers) -> Self {
        Alarm {
            timers,
            armed: None,
        }
    }

    /// Wakes the task of this poll at `at`. Returns false if nothing could.
    pub(crate) fn wake_at(&mut self, context: &Context<'_>, at: Time) -> bool {
        if parks_until(context.waker(), self.timers.address(), at) {
            return true;
        }
        // The future may have moved to another task, which needs an alarm of its own. A timer for
        // this moment is still armed, since no timer is early. So that timer still has its waker.
        let same = |armed: &Armed| armed.at == at && armed.waker == waker_address(context.waker());
        if self.armed.as_ref().is_some_and(same) {
            return true;
        }
        self.disarm();
        let (waker, delay) = (context.waker(), at.since(self.timers.clock().now()));
        let number = self.timers.wake(delay, waker.clone());
        let waker = waker_address(waker);
        self.armed = number.map(|number| Armed { number, at, waker });
        number.is_some()
    }

    fn disarm(&mut self) {
        if let Some(armed) = self.armed.take() {
            self.timers.cancel_wake(armed.number);
        }
    }
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.disarm();
    }
}
