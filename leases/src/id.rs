//! The identity of a held lock.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use super::request::Request;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// Identifies one grant of a lock by its name, its owner and its token. Cheap to clone.
///
/// It is the key of the [events](super::Leases::events).
///
/// # Examples
///
/// ```
/// # use tourbillon_leases::{Leases, MemoryStore};
/// # let leases = Leases::new(MemoryStore::new())?;
/// let guard = leases.lock("report")?;
/// let id = guard.id();
/// assert_eq!(id.name(), "report");
/// assert_eq!((id.token(), id.holds()), (guard.fencing_token(), 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct LeaseId(Arc<Id>);

/// The data that the clones of an id share.
struct Id {
    name: String,
    owner: String,
    token: u64,
    lease: Duration,
    /// The number of guards.
    holds: AtomicUsize,
}

impl LeaseId {
    pub(super) fn new(request: &Request, token: u64) -> Self {
        LeaseId(Arc::new(Id {
            name: request.name.clone(),
            owner: request.owner.clone(),
            token,
            lease: request.lease,
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
        self.0.holds.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the owner, as the store knows it. No other grant, in any process, has the same
    /// owner.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.0.owner
    }

    /// Returns the fencing token; see
    /// [`LeaseGuard::fencing_token`](super::LeaseGuard::fencing_token).
    #[must_use]
    pub fn token(&self) -> u64 {
        self.0.token
    }

    /// Returns the full length of the lease.
    pub(super) fn lease(&self) -> Duration {
        self.0.lease
    }

    /// Returns the number of guards.
    #[must_use]
    pub fn holds(&self) -> usize {
        // Relaxed: the count is only shown, and nothing is decided by it.
        self.0.holds.load(Ordering::Relaxed)
    }
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
