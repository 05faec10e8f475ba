//! The identity of a held lock.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use tourbillon::Time;

use super::request::{PendingRelease, Request};
use crate::store::{Holding, Mode, OwnedSecret, Secret};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Identifies one grant of a lock by its name, its owner and its token. Cheap to clone.
///
/// It is the key of the [events](crate::Leases::events).
///
/// # Examples
///
/// ```
/// # use tourbillon_leases::{Leases, MemoryStore, Mode};
/// # let leases = Leases::new(MemoryStore::new())?;
/// let guard = leases.lock("report").wait()?;
/// let id = guard.id();
/// assert_eq!(id.name(), "report");
/// println!("{} holds it", id.owner());
/// assert_eq!((id.token(), id.holds()), (guard.token(), 1));
/// assert_eq!((id.mode(), id.place()), (Mode::Exclusive, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct LeaseId(Arc<Id>);

/// The data that the clones of an id share.
struct Id {
    name: String,
    owner: String,
    secret: OwnedSecret,
    token: u64,
    mode: Mode,
    /// The place of a permit.
    place: u32,
    /// The greatest length of the lease so far, in nanoseconds.
    lease: AtomicU64,
    /// Until when the name stays locked for others, if that was asked for.
    stays: Option<Time>,
    /// The number of guards.
    holds: AtomicUsize,
}

impl LeaseId {
    /// Creates the id of a grant that was answered at `now`.
    pub(super) fn new(request: &Request, token: u64, place: u32, now: Time) -> Self {
        LeaseId(Arc::new(Id {
            name: request.name.clone(),
            owner: request.owner.clone(),
            secret: request.secret,
            token,
            mode: request.mode,
            place,
            lease: AtomicU64::new(nanos(request.lease)),
            // The store counts from its grant, which came before `now`.
            stays: (!request.at_least.is_zero()).then(|| now + request.at_least),
            holds: AtomicUsize::new(1),
        }))
    }

    /// Counts one more guard.
    pub(super) fn add_hold(&self) {
        // Relaxed: the guard that is being copied keeps the count above zero.
        self.0.holds.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one guard fewer. Returns whether it was the last one.
    pub(super) fn remove_hold(&self) -> bool {
        // AcqRel: the last guard sees everything that was done under the guards before it.
        let before = self.0.holds.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "a guard is counted once");
        before == 1
    }

    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the owner, as the store knows it. No other grant, in any process, has the same
    /// owner. It proves nothing: the store compares a secret, which the crate keeps to itself.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.0.owner
    }

    /// Returns what proves to the store that this grant is held.
    pub(super) fn secret(&self) -> Secret<'_> {
        self.0.secret.get()
    }

    /// Returns the same, to be given to somebody else.
    pub(super) fn owned_secret(&self) -> OwnedSecret {
        self.0.secret
    }

    /// Returns the fencing token; see
    /// [`LeaseGuard::token`](crate::LeaseGuard::token).
    #[must_use]
    pub fn token(&self) -> u64 {
        self.0.token
    }

    /// Returns how the lock is held.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.0.mode
    }

    /// Returns the place of a permit; see [`LeaseGuard::place`](crate::LeaseGuard::place).
    #[must_use]
    pub fn place(&self) -> u32 {
        self.0.place
    }

    /// Takes the last guard from the count. Returns false if there are others.
    pub(super) fn remove_only_hold(&self) -> bool {
        // AcqRel: as in `remove_hold`. Relaxed on failure: nothing has happened.
        let only = self
            .0
            .holds
            .compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed);
        only.is_ok()
    }

    /// Returns the greatest length that the lease had so far.
    pub(super) fn lease(&self) -> Duration {
        // Relaxed: a stale length only makes the retries of a release end earlier.
        Duration::from_nanos(self.0.lease.load(Ordering::Relaxed))
    }

    /// Notes that the lease may have this length from now on.
    pub(super) fn may_last(&self, lease: Duration) {
        // Relaxed: as above.
        self.0.lease.fetch_max(nanos(lease), Ordering::Relaxed);
    }

    /// Returns until when the name stays locked for others, if that was asked for.
    pub(super) fn stays(&self) -> Option<Time> {
        self.0.stays
    }

    /// Returns the release of this grant.
    pub(super) fn back(&self, sure: bool) -> PendingRelease {
        PendingRelease {
            name: self.0.name.clone(),
            secret: self.0.secret,
            lease: self.lease(),
            mode: self.0.mode,
            sure,
            stays: self.0.stays,
        }
    }

    /// Returns what the store is asked to release. `now` is only called if the name stays locked.
    pub(super) fn holding(&self, now: impl FnOnce() -> Time) -> Holding<'_> {
        let rest = self
            .0
            .stays
            .map_or(Duration::ZERO, |stays| stays.since(now()));
        Holding::new(&self.0.name, self.secret())
            .after(rest)
            .in_mode(self.0.mode)
    }

    /// Returns the number of guards.
    #[must_use]
    pub fn holds(&self) -> usize {
        // Relaxed: the count is only shown, and nothing is decided by it.
        self.0.holds.load(Ordering::Relaxed)
    }
}

/// Returns a length in nanoseconds, of which the greatest stands for all that are longer.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl PartialEq for LeaseId {
    fn eq(&self, other: &Self) -> bool {
        self.0.owner == other.0.owner
    }
}

impl Eq for LeaseId {}

impl Hash for LeaseId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.owner.hash(state);
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseId")
            .field("name", &self.name())
            .field("owner", &self.owner())
            .field("token", &self.token())
            .finish_non_exhaustive()
    }
}
