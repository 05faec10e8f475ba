//! The guard of a held lock.

use std::fmt;
use std::task::Waker;
use std::time::Duration;

use tourbillon::reentrancy::{self, when_unlocked};

use super::drop_wait;
use super::error::{LockError, ReleaseError};
use super::id::LeaseId;
use super::inner::LeasesInner;
use super::lease_future::LeaseFuture;
use super::releases::UserHandle;
use crate::keep_alive::{KeepGuard, KeepOptions, Loss, Lost};
use crate::store::{OwnedSecret, Released, StoreError};
use crate::sync::channel::bounded;
use crate::sync::{Arc, OnceLock};

/// Holds a lock until the guard is released or dropped, or the lease is lost.
///
/// The lease is renewed in the background. A guard is not tied to a thread: it can be sent to
/// another one.
///
/// **Dropping it** releases the lock as well as possible, in these steps:
///
/// - The renewals end at once.
/// - A worker asks the store to release the lock. The drop waits for at most a tenth of a second,
///   or not at all if the call that acquired the guard was awaited. Drops that follow each other
///   on one thread share this tenth of a second, until the thread acquires a lock or drops no guard
///   for as long. [`release_many`](crate::Leases::release_many) releases many locks at once.
/// - If this is the last guard, and all clones of its [`Leases`](crate::Leases) are gone, the drop
///   waits [longer](crate::LeasesBuilder::end_limit).
/// - If the store fails, it is asked again until the lease would have run out.
///
/// To learn the result, call [`release`](Self::release).
///
/// # Examples
///
/// ```
/// # use tourbillon_leases::{Leases, MemoryStore};
/// # let leases = Leases::new(MemoryStore::new())?;
/// let guard = leases.lock("invoices").wait()?;
/// for invoice in 1..=3 {
///     if !guard.is_held() {
///         break; // somebody else may have the lock
///     }
///     println!("sending invoice {invoice}");
/// }
/// println!("{} was held by {}", guard.name(), guard.id().owner());
/// println!("its lease was renewed {} times", guard.renewals());
/// guard.release().wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping it gives the lock back"]
pub struct LeaseGuard {
    lease: Arc<Lease>,
    /// Whether this guard has already been taken from the count of guards.
    done: bool,
}

/// The state that all guards of one held lock share.
pub(super) struct Lease {
    pub(super) inner: UserHandle,
    pub(super) kept: KeepGuard<LeaseId>,
    /// The options under which the lock is kept.
    pub(super) keep: KeepOptions,
    /// Whether an earlier attempt may still arrive at the store, and be granted to the same secret.
    pub(super) unsure: bool,
    /// Whether a drop waits for the store.
    waits: bool,
    /// The secret of its ticket, once it was to be detached. If that failed, the next attempt has
    /// the same one: a request of the first attempt may still arrive.
    pub(super) ticket: OnceLock<OwnedSecret>,
}

impl Lease {
    fn id(&self) -> &LeaseId {
        self.kept.key()
    }

    pub(super) fn is_of(&self, inner: &Arc<LeasesInner>) -> bool {
        Arc::ptr_eq(&self.inner, inner)
    }

    /// Ends the lease, and releases the lock in the background.
    fn dropped(&self) {
        // First end the renewals: from here on nothing is renewed, even if the release fails.
        let held = self.kept.end().is_ok();
        let (tells, tried) = bounded(1);
        // A lease that is lost by the local clock may still exist in the store, so it is released
        // too.
        self.inner
            .give_back(self.id().back(!self.unsure), held, Some(tells));
        let limit = self.inner.drop_limit;
        if held && self.waits && !limit.is_zero() {
            // Nothing is sent on this channel. Its sender is dropped after the first attempt.
            drop_wait::wait_at_most(limit, |limit| {
                let _ = tried.recv_timeout(limit);
            });
        }
    }

    /// Releases the lock after [`KeepGuard::end`], whose result is `ended`. If the future is
    /// dropped, the release goes on in the background.
    pub(super) async fn answer(&self, ended: Result<(), Loss>) -> Result<(), ReleaseError> {
        if self.kept.is_forked() {
            // The original process holds the lock, and will release it.
            return Err(ReleaseError::Lost(Loss::Forked));
        }
        if let Err(loss) = ended {
            // The lock may still be held in the store: its clock differs from the local clock, or
            // it has executed a renewal whose answer never came.
            self.gives_back_later(!self.unsure);
            self.settled().await;
            return Err(ReleaseError::Lost(loss));
        }
        let unasked = Unasked::new(self);
        let released = self.inner.release_once(self.id()).await;
        unasked.was_asked(&released);
        self.released(released).await
    }

    /// Returns the result of a release that the store has answered. The answer was
    /// [noted](Unasked::was_asked), and the renewals have ended before.
    pub(super) async fn released(
        &self,
        released: Result<Released, StoreError>,
    ) -> Result<(), ReleaseError> {
        // The wait for a renewal under way comes after the release. So a renewal that gets no
        // answer does not keep the lock from others.
        self.settled().await;
        match released {
            Ok(Released::Released) => Ok(()),
            Ok(Released::NotHeld) => Err(ReleaseError::NotHeld),
            Err(StoreError::Forked) => Err(ReleaseError::Lost(Loss::Forked)),
            Err(error) => Err(ReleaseError::Store(error)),
        }
    }

    fn gives_back_later(&self, sure: bool) {
        self.inner.give_back_later(self.id().back(sure));
    }

    /// Waits until no renewal is in flight.
    async fn settled(&self) {
        let look = |waker: &Waker| self.kept.in_flight_until(waker);
        self.inner.wait_for(look).await;
    }
}

/// A lock whose renewals have ended, and whose release has no answer. If this is dropped, the lock
/// is released in the background.
pub(super) struct Unasked<'a>(Option<&'a Lease>);

impl<'a> Unasked<'a> {
    pub(super) fn new(lease: &'a Lease) -> Self {
        Unasked(Some(lease))
    }

    /// Leaves the release to the code that asks for it next.
    pub(super) fn asks_elsewhere(mut self) {
        self.0 = None;
    }

    /// Notes the answer of the store. Releases the lock once more if it may be held all the same.
    pub(super) fn was_asked(mut self, released: &Result<Released, StoreError>) {
        if let Some(lease) = self.0.take()
            && (lease.unsure || released.is_err())
        {
            lease.gives_back_later(!lease.unsure);
        }
    }
}

impl Drop for Unasked<'_> {
    fn drop(&mut self) {
        if let Some(lease) = self.0 {
            lease.gives_back_later(!lease.unsure);
        }
    }
}

impl LeaseGuard {
    pub(super) fn new(
        inner: &Arc<LeasesInner>,
        kept: KeepGuard<LeaseId>,
        keep: KeepOptions,
        unsure: bool,
        waits: bool,
    ) -> Self {
        LeaseGuard {
            lease: Arc::new(Lease {
                inner: UserHandle::new(inner),
                kept,
                keep,
                unsure,
                waits,
                ticket: OnceLock::new(),
            }),
            done: false,
        }
    }

    /// Returns one more guard of the same lock. The lock is released with its last guard. The guards
    /// are counted in this process only, and renewals don't depend on the count.
    ///
    /// # Errors
    ///
    /// [`LockError::Lost`] if the lease is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let outer = leases.lock("ledger").wait()?;
    /// let inner = outer.again()?;
    /// outer.release().wait()?;
    /// assert!(inner.is_held());
    /// inner.release().wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn again(&self) -> Result<LeaseGuard, LockError> {
        match self.lost().loss() {
            Some(loss) => {
                let name = self.name().to_owned();
                Err(LockError::Lost { name, loss })
            }
            None => Ok(self.one_more()),
        }
    }

    /// Returns one more guard of the same lock, whether or not its lease is lost.
    pub(super) fn one_more(&self) -> LeaseGuard {
        self.id().add_hold();
        LeaseGuard {
            lease: Arc::clone(&self.lease),
            done: false,
        }
    }

    /// Returns the id of this held lock.
    pub fn id(&self) -> &LeaseId {
        self.lease.id()
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &str {
        self.id().name()
    }

    /// Returns a number that is greater than that of every earlier grant of this name. Readers who hold
    /// it at one time have one token, and each permit has its own. Send it with
    /// every access to the resource that the lock protects, and let the resource refuse smaller
    /// numbers: see [`Fence`](crate::Fence) and the
    /// [guide](crate#what-a-lease-can-and-cannot-promise).
    ///
    /// Databases often have no `u64`. Tokens of this crate's stores fit in an `i64`, for which
    /// `i64::try_from(guard.token())?` is the safe conversion. The guide to locks has an example for
    /// PostgreSQL.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let first = leases.lock("report").wait()?;
    /// let token = first.token();
    /// first.release().wait()?;
    /// assert!(leases.lock("report").wait()?.token() > token);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn token(&self) -> u64 {
        self.id().token()
    }

    /// Returns the place of a [permit](crate::Acquisition::permit_of), from 0 to one less than the
    /// number of permits. No other holder has this place at this time. For all other locks it is 0.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let first = leases.lock("gpu").permit_of(2).wait()?;
    /// let second = leases.lock("gpu").permit_of(2).wait()?;
    /// assert_eq!((first.place(), second.place()), (0, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn place(&self) -> u32 {
        self.id().place()
    }

    /// Returns whether the lock is held, by the local clock and without a call to the store.
    ///
    /// The answer is also right while the store does not answer, and after the process stood still.
    /// After the first `false` it is always `false`. In a forked copy of the process it is always
    /// `false`.
    ///
    /// # Complexity
    ///
    /// One read of the clock, one system call (for the process id), and one lock that is nearly
    /// always free.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("report").wait()?;
    /// assert!(guard.is_held());
    /// leases.close(Duration::from_secs(1));
    /// assert!(!guard.is_held());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.lease.kept.is_kept()
    }

    /// Returns how long the lock is held if nothing renews the lease; zero if the lease is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("report").wait()?;
    /// assert!(guard.remaining() > Duration::from_secs(20)); // of 30 s
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lease.kept.remaining()
    }

    /// Returns a [`Lost`], which reports the loss of the lease as a flag, a channel or a future.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("report").wait()?;
    /// let lost = guard.lost();
    /// // Another thread can watch it.
    /// std::thread::spawn(move || assert!(!lost.is_lost())).join().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn lost(&self) -> Lost {
        self.lease.kept.lost()
    }

    /// Reports that the holder is alive; see
    /// [`Acquisition::fed_every`](crate::Acquisition::fed_every). Returns false if the lease is
    /// lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("report").fed_every(Duration::from_secs(60)).wait()?;
    /// for page in 1..=3 {
    ///     println!("page {page}");
    ///     assert!(guard.feed()); // the worker is alive
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn feed(&self) -> bool {
        self.lease.kept.feed()
    }

    /// Returns how often the lease was renewed.
    #[must_use]
    pub fn renewals(&self) -> u64 {
        self.lease.kept.renewals()
    }

    /// Ends this guard. The last guard releases the lock. After that no renewal of the lease is
    /// sent any more.
    ///
    /// The first poll ends the renewals. If the future is dropped after that, the release goes on.
    /// If it is kept and not polled again, the lock is free after its lease at the latest. **If it
    /// is dropped unused**, the guard is dropped with it: the lock is given back in the background,
    /// and nobody learns of an error. Until then, a future that is kept unused keeps the lock.
    ///
    /// # Errors
    ///
    /// After any error this guard no longer holds the lock.
    ///
    /// - [`ReleaseError::Lost`] and [`NotHeld`](ReleaseError::NotHeld): the lock was not held to
    ///   the end, so somebody else may have held it meanwhile.
    /// - [`Store`](ReleaseError::Store): the store failed, and others may have to wait until the
    ///   lease has run out.
    ///
    /// # Blocking
    ///
    /// [`wait`](LeaseFuture::wait) blocks for one call to the store and for a renewal that is under
    /// way, each for at most its limit, a sixth of the lease. A guard that is not the last one does
    /// not block.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, MemoryStore, ReleaseError};
    ///
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("report").wait()?;
    /// match guard.release().wait() {
    ///     Ok(()) => println!("the lock was held to the end"),
    ///     Err(ReleaseError::Store(error)) => println!("others may have to wait: {error}"),
    ///     Err(error) => println!("somebody else may have had the lock: {error}"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn release(self) -> LeaseFuture<Result<(), ReleaseError>> {
        let lease = Arc::clone(&self.lease);
        LeaseFuture::new(&lease.inner, self.go_back())
    }

    /// Releases the lock, if this is the last guard.
    async fn go_back(mut self) -> Result<(), ReleaseError> {
        // If this thread holds a lock of a map or a scheduler, the check panics before anything
        // changes, and the drop of `self` releases the lock.
        let _ = reentrancy::check();
        if !self.is_last() {
            return self.still_held();
        }
        // The renewals end here, before the first await: from now on a dropped future changes
        // nothing.
        let ended = self.lease.kept.end();
        self.lease.answer(ended).await
    }

    /// Returns the result of releasing a guard that is not the last one.
    fn still_held(&self) -> Result<(), ReleaseError> {
        self.lost()
            .loss()
            .map_or(Ok(()), |loss| Err(ReleaseError::Lost(loss)))
    }

    /// Returns the loss if the options of the lock have ended its lease.
    pub(super) fn ended_by_options(&self) -> Option<Loss> {
        self.lease.keep.terms().ends?;
        // It counts as fed when the renewals begin.
        self.lost().loss().filter(|loss| *loss == Loss::HeldTooLong)
    }

    /// Takes this guard from the count of guards. Returns whether it was the last one.
    pub(super) fn is_last(&mut self) -> bool {
        let first = !std::mem::replace(&mut self.done, true);
        first && self.id().remove_hold()
    }

    /// Takes this guard from the count of guards if it is the only one.
    pub(super) fn is_only(&mut self) -> bool {
        let only = self.id().remove_only_hold();
        self.done |= only;
        only
    }

    pub(super) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        // In a forked copy of the process the lock belongs to the original, which will release it.
        if !self.is_last() || self.lease.kept.is_forked() {
            return;
        }
        let lease = Arc::clone(&self.lease);
        // A guard may be a value of a map, and be dropped under the lock of that map. Releasing
        // must wait until the map is unlocked.
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
