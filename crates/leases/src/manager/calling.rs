//! Calls to the store, and waits, as futures of the leases. The task or the thread that waits for
//! the answer polls them. `limited.rs` of `keep_alive` has their rules, CALL-1 and CALL-2.

use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::Duration;

use tourbillon::Time;

use super::inner::LeasesInner;
use crate::keep_alive::{Alarm, LimitedCall};
use crate::store::{Bell, LeaseStore, StoreError, StoreFuture, may_block};
use crate::sync::Arc;

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

    /// Calls the store, as [`Timers::call`](crate::keep_alive::Timers::call) says.
    pub(super) fn call<'a, T>(
        &'a self,
        sent: Time,
        limit: Duration,
        make: impl FnOnce(&'a dyn LeaseStore) -> StoreFuture<'a, T>,
    ) -> LimitedCall<'a, T> {
        let timers = self.keep_alive.timers();
        timers.call(sent, limit, || make(self.store.as_ref()))
    }

    /// Waits until `until`, or until the bell rings. Returns false if nothing could end the wait,
    /// since the leases have no workers any more, or this is a forked copy of the process.
    pub(super) async fn sleep(&self, bell: &Arc<Bell>, until: Time) -> bool {
        let mut alarm = Alarm::new(self.keep_alive.timers());
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
        let timers = self.keep_alive.timers();
        let mut alarm = Alarm::new(timers);
        poll_fn(|context| match look(context.waker()) {
            None => Poll::Ready(true),
            // This thread may be the only one that moves the clock.
            Some(_) if timers.is_stepped() && may_block(context.waker()) => Poll::Ready(false),
            Some(until) if alarm.wake_at(context, until) => Poll::Pending,
            Some(_) => Poll::Ready(false),
        })
        .await
    }

    /// Returns a number that identifies these leases.
    pub(super) fn address(&self) -> usize {
        self.keep_alive.timers().address()
    }
}
