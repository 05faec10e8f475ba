//! Who holds a name, as a store tells it.

use std::time::Duration;

/// The holder of a name, by the store.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_leases::{Claim, LeaseStore, MemoryStore, Secret};
///
/// let store = MemoryStore::new();
/// let limit = Duration::from_secs(5);
/// let claim = Claim::new("report", "owner 1", Secret::new("u7Hq"), Duration::from_secs(30));
/// store.acquire(&claim, limit)?;
/// let holder = store.holder_of("report", limit)?.expect("it is held");
/// assert_eq!(holder.owner, "owner 1");
/// assert!(holder.remaining <= Duration::from_secs(30));
/// assert_eq!(store.holder_of("other", limit)?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Holder {
    /// The owner, which proves nothing: who knows it can neither renew nor release. Owners of
    /// [`Leases`](crate::Leases) begin with the [instance](crate::LeasesBuilder::instance), which
    /// is the name of the machine by default.
    pub owner: String,
    /// The token of the grant.
    pub token: u64,
    /// How long the lease still lasts, unless it is renewed.
    pub remaining: Duration,
    /// What the holder says about itself, see
    /// [`LeasesBuilder::holder_data`](crate::LeasesBuilder::holder_data). Empty by default.
    pub data: String,
}

impl Holder {
    /// Creates the answer of a store.
    #[must_use]
    pub fn new(owner: String, token: u64, remaining: Duration) -> Self {
        Holder {
            owner,
            token,
            remaining,
            data: String::new(),
        }
    }

    /// Returns the same answer, with what the holder says about itself.
    #[must_use]
    pub fn with_data(self, data: impl Into<String>) -> Self {
        Holder {
            data: data.into(),
            ..self
        }
    }
}

/// A name that is held, and who holds it. Returned by [`Leases::list`](crate::Leases::list).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HeldLock {
    /// The name of the lock.
    pub name: String,
    /// Who holds it.
    pub holder: Holder,
}

impl HeldLock {
    /// Creates one answer of a store.
    #[must_use]
    pub fn new(name: String, holder: Holder) -> Self {
        HeldLock { name, holder }
    }
}
