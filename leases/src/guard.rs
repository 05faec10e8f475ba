//! What holds a lock.

use std::fmt;
use std::time::Duration;

use tourbillon::reentrancy::{self, when_unlocked};

use super::error::ReleaseError;
use super::id::LeaseId;
use super::inner::LeasesInner;
use super::keep_alive::{KeepGuard, Loss, Lost};
use super::releases::UserHandle;
use super::request::PendingRelease;
use super::store::Released;
use crate::sync::Arc;
use crate::sync::channel::bounded;

/// A lock that is held, until this is released or dropped, or the lease is lost.
///
/// It is renewed in the background. Nothing is tied to a thread: it can be sent to another one, and
/// what counts is where it is.
///
/// **Dropping it** gives the lock back as well as can be: the renewals end at once, and a worker
/// asks the store, for which the drop waits for a tenth of a second at most; not at all if the
/// guard was acquired by an async call. If this is the last guard, and all clones of its
/// [`Leases`](super::Leases) are gone, the drop waits [longer](super::LeasesBuilder::end_limit). If
/// the store fails, it is asked again until the lease would have run out. To learn the result, call
/// [`release`](Self::release).
#[must_use = "dropping it gives the lock back"]
pub struct LeaseGuard {
    lease: Arc<Lease>,
    /// Its hold has been taken back.
    done: bool,
}

/// What the guards of one holding share.
pub(super) struct Lease {
    pub(super) inner: UserHandle,
    pub(super) kept: KeepGuard<LeaseId>,
    /// An earlier attempt may still arrive, and be granted to the same owner.
    unsure: bool,
    /// Whether a drop waits for the store.
    waits: bool,
}

impl Lease {
    fn id(&self) -> &LeaseId {
        self.kept.key()
    }

    /// Ends it, and asks the store. On a thread that may block.
    pub(super) fn give_back(&self) -> Result<(), ReleaseError> {
        let ended = self.kept.end();
        self.answer(ended)
    }

    fn back(&self, sure: bool) -> PendingRelease {
        let id = self.id();
        PendingRelease {
            name: id.name().to_owned(),
            owner: id.owner().to_owned(),
            lease: id.lease(),
            sure,
        }
    }

    /// Ends it, and has the store asked in the background.
    fn dropped(&self) {
        // From here on nothing is renewed, whatever becomes of the rest.
        let held = self.kept.end().is_ok();
        let (tells, tried) = bounded(1);
        // What is lost the store may know for longer than the local clock does.
        self.inner
            .give_back(self.back(!self.unsure), held, Some(tells));
        let limit = self.inner.drop_limit;
        if held && self.waits && !limit.is_zero() {
            // Nothing is sent: it is dropped when the store has been asked.
            let _ = tried.recv_timeout(limit);
        }
    }

    /// After [`KeepGuard::end`].
    pub(super) fn answer(&self, ended: Result<(), Loss>) -> Result<(), ReleaseError> {
        if self.kept.is_forked() {
            // It is the original's to give back.
            return Err(ReleaseError::Lost(Loss::Forked));
        }
        let id = self.id();
        let later = |sure| self.inner.give_back_later(self.back(sure));
        if let Err(loss) = ended {
            // The store may know it for longer than the local clock does, or have executed a renewal
            // whose answer never came.
            later(!self.unsure);
            self.kept.settled();
            return Err(ReleaseError::Lost(loss));
        }
        let released = self.inner.release_once(id.name(), id.owner(), id.lease());
        // The store was asked first, so that nobody waits for an answer that does not come.
        self.kept.settled();
        if self.unsure {
            later(false);
        }
        match released {
            Ok(Released::Released) => Ok(()),
            Ok(Released::NotHeld) => Err(ReleaseError::NotHeld),
            Err(error) => {
                if !self.unsure {
                    later(true);
                }
                Err(ReleaseError::Store(error))
            }
        }
    }
}

impl LeaseGuard {
    pub(super) fn new(
        inner: &Arc<LeasesInner>,
        kept: KeepGuard<LeaseId>,
        unsure: bool,
        waits: bool,
    ) -> Self {
        LeaseGuard {
            lease: Arc::new(Lease {
                inner: UserHandle::new(inner),
                kept,
                unsure,
                waits,
            }),
            done: false,
        }
    }

    /// One more guard of the same holding.
    pub(super) fn again(&self) -> LeaseGuard {
        self.id().add_hold();
        LeaseGuard {
            lease: Arc::clone(&self.lease),
            done: false,
        }
    }

    pub(super) fn belongs_to(&self, inner: &Arc<LeasesInner>) -> bool {
        Arc::ptr_eq(&self.lease.inner, inner)
    }

    /// This holding.
    pub fn id(&self) -> &LeaseId {
        self.lease.id()
    }

    /// What is held.
    pub fn name(&self) -> &str {
        self.id().name()
    }

    /// A number that is greater than that of every earlier holding of this name. Send it with
    /// whatever you do to the resource that the lock protects, and let the resource refuse smaller
    /// ones: see [`Fence`](super::Fence) and the [guide](super#what-a-lease-can-and-cannot-promise).
    #[must_use]
    pub fn fencing_token(&self) -> u64 {
        self.id().token()
    }

    /// Whether it is held, by a look at the local clock and at nothing else: no call to the store, and
    /// right also while the store does not answer, and after the process stood still. Once it says no
    /// it never says yes again. In a forked copy of the process it always says no.
    ///
    /// # Complexity
    ///
    /// One read of the clock, one system call (for the process id), and one lock that is nearly
    /// always free.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.lease.kept.is_kept()
    }

    /// For how long it is held if nothing renews it; zero if it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lease.kept.remaining()
    }

    /// How its loss is learnt: a flag, a channel, a future.
    #[must_use]
    pub fn lost(&self) -> Lost {
        self.lease.kept.lost()
    }

    /// The holder is alive; see [`Acquisition::fed_every`](super::Acquisition::fed_every). False if the lease
    /// is lost.
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn feed(&self) -> bool {
        self.lease.kept.feed()
    }

    /// How often it was renewed.
    #[must_use]
    pub fn renewals(&self) -> u64 {
        self.lease.kept.renewals()
    }

    /// Gives this guard's hold back, and the lock with the last one. When this returns, no renewal of
    /// it is sent any more.
    ///
    /// # Errors
    ///
    /// Whatever the error is, it is held no more. [`ReleaseError::Lost`] and
    /// [`NotHeld`](ReleaseError::NotHeld): it was not to the end, so somebody else may have had it
    /// meanwhile. [`Store`](ReleaseError::Store): the store did not answer, and others may have to
    /// wait until the lease has run out.
    ///
    /// # Blocking
    ///
    /// For one call to the store and for a renewal that is under way, each no longer than its limit, a
    /// sixth of the lease. A guard that is not the last one does not block.
    pub fn release(mut self) -> Result<(), ReleaseError> {
        // Under a lock this panics before anything is changed, and the drop gives the lock back.
        let _ = reentrancy::check();
        if self.is_last() {
            self.lease.give_back()
        } else {
            self.still_held()
        }
    }

    /// For a guard that is not the last one.
    pub(super) fn still_held(&self) -> Result<(), ReleaseError> {
        self.lost()
            .loss()
            .map_or(Ok(()), |loss| Err(ReleaseError::Lost(loss)))
    }

    /// Takes this guard's hold back. Whether it was the last one.
    pub(super) fn is_last(&mut self) -> bool {
        let first = !std::mem::replace(&mut self.done, true);
        first && self.id().remove_hold()
    }

    pub(super) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        // In a forked copy of the process it is the original's to give back.
        if !self.is_last() || self.lease.kept.is_forked() {
            return;
        }
        let lease = Arc::clone(&self.lease);
        // A guard may be a value of a map, and be dropped under that map's lock.
        when_unlocked(move || lease.dropped());
    }
}

impl fmt::Debug for LeaseGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseGuard")
            .field("id", self.id())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
