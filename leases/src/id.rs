//! What names a holding.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use super::request::Request;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// One holding of a lock: its name, who holds it, and its token. Cheap to clone.
///
/// It is the key of the [events](super::Leases::events).
#[derive(Clone)]
pub struct LeaseId(Arc<Id>);

struct Id {
    name: String,
    owner: String,
    token: u64,
    lease: Duration,
    /// How many guards there are.
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

    /// One more guard holds it.
    pub(super) fn add_hold(&self) {
        // Relaxed: the guard that is there keeps the count from falling to zero.
        self.0.holds.fetch_add(1, Ordering::Relaxed);
    }

    /// A guard holds it no more. Whether it was the last one.
    pub(super) fn remove_hold(&self) -> bool {
        // AcqRel: the last one has seen what those before it did.
        self.0.holds.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// What is held.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Who holds it, as the store knows it: no other holding, of whatever process, has the same.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.0.owner
    }

    /// See [`LeaseGuard::fencing_token`](super::LeaseGuard::fencing_token).
    #[must_use]
    pub fn token(&self) -> u64 {
        self.0.token
    }

    /// How long its lease is whenever it begins anew.
    pub(super) fn lease(&self) -> Duration {
        self.0.lease
    }

    /// How many guards hold it.
    #[must_use]
    pub fn holds(&self) -> usize {
        // Relaxed: only to be looked at.
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
