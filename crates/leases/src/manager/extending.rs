//! Extends leases that are not renewed.

use std::time::Duration;

use tourbillon::reentrancy;

use super::awaiting::on_worker_or;
use super::error::LockError;
use super::guard::{Lease, LeaseGuard};
use super::lease_future::LeaseFuture;
use crate::keep_alive::{Unextended, call_limit};
use crate::store::{Outcome, Renewal, StoreError};
use crate::sync::Arc;

impl LeaseGuard {
    /// Extends a lease that is [not renewed](crate::Acquisition::not_renewed): from now on it lasts
    /// for `lease`. If it lasts longer already, nothing changes and the store is not asked. The
    /// [longest hold](crate::Acquisition::max_hold) stays as it is.
    ///
    /// Several calls at one time follow each other. Each successful call counts as a
    /// [renewal](Self::renewals). If the future is dropped, a call that has begun goes on.
    ///
    /// # Errors
    ///
    /// - [`LockError::Lost`] if the lease has run out, or the store answers that it is not held.
    /// - [`LockError::Renewed`] if the lease is renewed in the background.
    /// - [`LockError::TooLong`] if the store grants no leases of this length.
    /// - [`LockError::Store`] if the store failed. The lease lasts as long as before, and the call
    ///   may be repeated.
    /// - [`LockError::Closed`] if it is awaited, and the leases are closed.
    ///
    /// A call that is made after the last guard has gone fails with [`LockError::Lost`].
    ///
    /// # Blocking
    ///
    /// [`wait`](LeaseFuture::wait) blocks for one call to the store, for at most a sixth of the
    /// longest length that the lease had so far, and for another extension that is under way.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let minute = Duration::from_secs(60);
    /// let guard = leases.lock("report").lease(minute).not_renewed().wait()?;
    /// for page in 1..=3 {
    ///     guard.extend(minute).wait()?; // each page takes less than a minute
    ///     println!("page {page}");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn extend(&self, lease: Duration) -> LeaseFuture<Result<(), LockError>> {
        let own = (Arc::clone(self.lease()), lease);
        // Under a lock of the crate both ways panic before the store is asked.
        let wait = |(own, lease): (Arc<Lease>, Duration)| {
            let _ = reentrancy::check();
            own.extend(lease)
        };
        LeaseFuture::new(own, wait, |(own, lease)| async move {
            let _ = reentrancy::check();
            let called = Arc::clone(&own);
            let name = own.kept.key().name();
            on_worker_or(&own.inner, name, move || called.extend(lease), |_| None).await
        })
    }
}

impl Lease {
    fn extend(&self, lease: Duration) -> Result<(), LockError> {
        let id = self.kept.key();
        let name = || id.name().to_owned();
        if self.kept.is_forked() {
            let error = StoreError::Forked;
            return Err(LockError::Store {
                name: name(),
                error,
            });
        }
        if self.kept.is_renewed() {
            return Err(LockError::Renewed { name: name() });
        }
        let most = self.inner.store.longest_lease();
        if lease > most {
            return Err(LockError::TooLong {
                name: name(),
                lease,
                most,
            });
        }
        let limit = call_limit(id.lease());
        let call = || {
            // Before the call: even without an answer the store may hold the lock for this long.
            id.may_last(lease);
            let renewal = [Renewal::new(id.name(), id.secret(), lease).never_shortening()];
            let destination = self.inner.destination(id.name());
            let inner = &self.inner;
            let outcomes =
                inner.call_store(limit, |store| store.renew(destination, &renewal, limit));
            let none = || Outcome::Failed(StoreError::no_answer());
            match outcomes {
                Ok(outcomes) => outcomes.into_iter().next().unwrap_or_else(none),
                Err(error) => Outcome::Failed(error),
            }
        };
        let extended = self.kept.extend(lease, limit, call);
        extended.map_err(|why| match why {
            Unextended::Lost(loss) => LockError::Lost { name: name(), loss },
            Unextended::Failed(error) => LockError::Store {
                name: name(),
                error,
            },
        })
    }
}
