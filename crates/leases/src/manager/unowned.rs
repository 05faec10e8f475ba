//! What runs in the background on the workers of leases, and does not keep the leases.
//!
//! The drop of the last handle of a user waits for the releases. So a task in the background has no
//! such handle, not even for a moment: then its end, at any time and on a worker, would be the last
//! one. It does not own the inner part, either, except while it asks the store.

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use tourbillon::{Time, reentrancy};

use super::error::LockError;
use super::inner::LeasesInner;
use super::locks::Leases;
use crate::store::{Holder, StoreError};
use crate::sync::{Arc, Weak};

/// Leases for a task in the background.
#[derive(Clone)]
pub(crate) struct UnownedLeases(Weak<LeasesInner>);

impl Leases {
    /// Returns these leases for a task in the background that asks about a name. Starts what it
    /// runs on.
    pub(crate) fn unowned(&self, name: &str) -> Result<UnownedLeases, LockError> {
        // Under a lock of the crate this panics before anything is changed.
        let _ = reentrancy::check();
        let inner: &Arc<LeasesInner> = &self.inner;
        let own_name = || name.to_owned();
        if inner.keep_alive.is_forked() {
            return Err(LockError::Store {
                name: own_name(),
                error: StoreError::Forked,
            });
        }
        if name.is_empty() {
            return Err(LockError::EmptyName);
        }
        LockError::check_length(name)?;
        if inner.keep_alive.is_closed() {
            return Err(LockError::Closed { name: own_name() });
        }
        let started = inner.keep_alive.start();
        started.map_err(|error| LockError::of_keep(name, error))?;
        Ok(UnownedLeases(Arc::downgrade(inner)))
    }
}

impl UnownedLeases {
    /// Runs a future on the workers, until it is ready or the leases are gone. Returns false if there
    /// are no workers.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> bool {
        let inner = self.0.upgrade();
        inner.is_some_and(|inner| inner.keep_alive.timers().spawn(future))
    }

    /// Asks the store who holds a name. Returns `None` if the leases are closed or gone.
    pub(crate) async fn holder(&self, name: &str) -> Option<Result<Option<Holder>, LockError>> {
        let inner = self.0.upgrade()?;
        if inner.keep_alive.is_closed() {
            return None;
        }
        Some(inner.holder(name).await)
    }

    /// Returns the present moment, or `None` if the leases are gone.
    pub(crate) fn now(&self) -> Option<Time> {
        Some(self.0.upgrade()?.clock.now())
    }

    /// Waits for `pause`. Returns false if the leases are gone or have no workers.
    pub(crate) async fn sleep(&self, pause: Duration) -> bool {
        let mut until = None;
        poll_fn(|context| {
            let Some(inner) = self.0.upgrade() else {
                return Poll::Ready(false);
            };
            let now = inner.clock.now();
            let until = *until.get_or_insert(now + pause);
            if now >= until {
                return Poll::Ready(true);
            }
            // Not cancelled by a drop: it would only wake a task that is gone.
            let timers = inner.keep_alive.timers();
            let alarm = timers.wake(until.since(now), context.waker().clone());
            match alarm {
                Some(_) => Poll::Pending,
                None => Poll::Ready(false),
            }
        })
        .await
    }
}
