//! Extends leases that are not renewed.

use std::task::Waker;
use std::time::Duration;

use tourbillon::reentrancy;

use super::error::LockError;
use super::guard::{Lease, LeaseGuard};
use super::lease_future::LeaseFuture;
use crate::keep_alive::{Extending, Unextended, call_limit, without_threads};
use crate::store::{Outcome, Renewal, StoreError};
use crate::sync::Arc;

impl LeaseGuard {
    /// Extends a lease that is [not renewed](crate::Acquisition::not_renewed): from now on it lasts
    /// for `lease`. If it lasts longer already, nothing changes and the store is not asked. The
    /// [longest hold](crate::Acquisition::max_hold) stays as it is.
    ///
    /// Several calls at one time follow each other. Each successful call counts as a
    /// [renewal](Self::renewals). If the future is dropped after its first poll, the call has
    /// failed: the guard counts with the lease as it was, even if the store executes the call.
    ///
    /// # Errors
    ///
    /// - [`LockError::Lost`] if the lease has run out, or the store answers that it is not held.
    /// - [`LockError::Renewed`] if the lease is renewed in the background.
    /// - [`LockError::TooLong`] if the store grants no leases of this length.
    /// - [`LockError::Store`] if the store failed. The lease lasts as long as before, and the call
    ///   may be repeated.
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
        let own = Arc::clone(self.lease());
        LeaseFuture::new(&self.lease().inner, async move { own.extend(lease).await })
    }
}

impl Lease {
    async fn extend(&self, lease: Duration) -> Result<(), LockError> {
        // Under a lock of the crate this panics before the store is asked.
        let _ = reentrancy::check();
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
        let ended = |why| match why {
            Unextended::Lost(loss) => LockError::Lost { name: name(), loss },
            Unextended::Failed(error) => LockError::Store {
                name: name(),
                error,
            },
        };
        let extension = loop {
            match self.kept.begin_extension(lease, limit).map_err(ended)? {
                Extending::Needless => return Ok(()),
                Extending::Begun(extension) => break extension,
                // Another extension is under way. It is given up at its limit.
                Extending::Busy => {
                    let look = |waker: &Waker| self.kept.in_flight_until(waker);
                    if !self.inner.wait_for(look).await {
                        return Err(ended(Unextended::Failed(without_threads())));
                    }
                }
            }
        };
        // Before the call: even without an answer the store may hold the lock for this long.
        id.may_last(lease);
        let renewal = Renewal::new(id.name(), id.secret(), lease).in_mode(id.mode());
        let renewal = [renewal.never_shortening()];
        let destination = self.inner.destination(id.name());
        let call = self
            .inner
            .call_store(limit, |store| store.renew(destination, &renewal, limit));
        let none = || Outcome::Failed(StoreError::no_answer());
        let outcome = match call.await {
            Ok(outcomes) => outcomes.into_iter().next().unwrap_or_else(none),
            // Nothing of the original may be touched.
            Err(StoreError::Forked) => return Err(ended(Unextended::Failed(StoreError::Forked))),
            Err(error) => Outcome::Failed(error),
        };
        extension.ends(outcome).map_err(ended)
    }
}
