//! The keys that one call renews.

use std::fmt;
use std::time::Duration;

use super::lease_state::InFlight;
use super::registration::Registration;
use crate::store::Destination;
use crate::sync::Arc;

/// The renewals of one call.
pub(super) type Sent<K> = Arc<Vec<(Arc<Registration<K>>, InFlight)>>;

/// The keys of one destination that are renewed by one call.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{Batch, KeepAlive, Outcome, StoreError};
///
/// async fn renew(batch: Batch<u64>) -> Result<Vec<Outcome>, StoreError> {
///     println!("to {:?}, for {:?} at most", batch.destination(), batch.limit());
///     println!("{} keys: {:?}", batch.len(), batch.keys().collect::<Vec<_>>());
///     for entry in batch.entries() {
///         println!("{} for another {:?}", entry.key(), entry.lease());
///     }
///     Ok(vec![Outcome::Renewed; batch.len()])
/// }
/// let sessions = KeepAlive::builder().build(renew)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Batch<K> {
    pub(super) destination: Destination,
    pub(super) sent: Sent<K>,
    pub(super) limit: Duration,
}

/// One key of a [`Batch`].
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{Entry, KeepAlive, Outcome};
///
/// fn renew(entry: Entry<'_, u64>) -> Outcome {
///     println!("{} for another {:?}", entry.key(), entry.lease());
///     Outcome::Renewed
/// }
/// let sessions = KeepAlive::builder()
///     .build(async |batch| Ok(batch.entries().map(renew).collect()))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Entry<'a, K> {
    key: &'a K,
    lease: Duration,
}

impl<K> Clone for Entry<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Entry<'_, K> {}

impl<'a, K> Entry<'a, K> {
    /// Returns the key to renew.
    #[must_use]
    pub fn key(&self) -> &'a K {
        self.key
    }

    /// Returns how long the lease is to be from now on.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.lease
    }
}

impl<K> Batch<K> {
    /// Returns the destination that all keys of the batch belong to.
    #[must_use]
    pub fn destination(&self) -> Destination {
        self.destination
    }

    /// Iterates over the keys to renew, with their leases. The renewal function returns its outcomes
    /// in the same order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = Entry<'_, K>> {
        self.sent.iter().map(|(registration, _)| Entry {
            key: &registration.key,
            lease: registration.lease,
        })
    }

    /// Iterates over the keys, in the order of [`entries`](Self::entries).
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &K> {
        self.sent.iter().map(|(registration, _)| &registration.key)
    }

    /// Returns the number of keys, which is at least one.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.sent.len()
    }

    /// Returns how long the call may take. At that time its future is dropped. What goes on after
    /// that must send nothing more.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.limit
    }
}

impl<K: fmt::Debug> fmt::Debug for Batch<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("destination", &self.destination)
            .field("keys", &self.keys().collect::<Vec<_>>())
            .field("limit", &self.limit)
            .finish()
    }
}
