//! Lists the locks that are held.

use tourbillon::reentrancy;

use super::error::LockError;
use super::inner::LeasesInner;
use super::lease_future::LeaseFuture;
use super::locks::Leases;
use crate::store::HeldLock;
use crate::sync::Arc;

impl Leases {
    /// Asks the store which locks are held whose names begin with `prefix`, and by whom. Returns at
    /// most `most` of them, sorted by name. If there are more, it is not said which ones are
    /// returned. The empty prefix is that of all locks.
    ///
    /// Like that of [`holder`](Self::holder), the answer may be outdated when it arrives, and
    /// nothing may be decided by it. Locks that are acquired or released during the call may be
    /// left out.
    ///
    /// # Errors
    ///
    /// [`LockError::Store`], with the prefix as the name, if the store could not be asked,
    /// [can't tell](crate::LeaseStore::list), or did not come to the end in time.
    ///
    /// # Blocking
    ///
    /// Blocks for at most a third of the default lease.
    ///
    /// # Complexity
    ///
    /// A memory store looks at all of its names. A Redis server looks at all of its keys, in steps,
    /// between which it serves others.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("orders/42")?;
    /// let _other = leases.lock("invoices/7")?;
    /// let held = leases.list("orders/", 100)?;
    /// assert_eq!(held.len(), 1);
    /// assert_eq!(held[0].name, "orders/42");
    /// assert_eq!(held[0].holder.owner, guard.id().owner());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn list(&self, prefix: &str, most: usize) -> Result<Vec<HeldLock>, LockError> {
        // Under a lock of the crate this panics before the store is asked.
        let _ = reentrancy::check();
        self.inner.list(prefix, most)
    }

    /// Lists the locks that are held, like [`list`](Self::list), as a future.
    ///
    /// # Errors
    ///
    /// As for [`list`](Self::list), and [`LockError::Closed`] if the leases are closed.
    pub fn list_async(
        &self,
        prefix: &str,
        most: usize,
    ) -> LeaseFuture<Result<Vec<HeldLock>, LockError>> {
        let list = move |inner: &Arc<LeasesInner>, prefix: &str| inner.list(prefix, most);
        self.on_worker(prefix, list, |_| None)
    }
}

impl LeasesInner {
    fn list(&self, prefix: &str, most: usize) -> Result<Vec<HeldLock>, LockError> {
        LockError::check_length(prefix)?;
        let limit = self.lease / 3;
        let mut held = self.ask_store(prefix, |store| store.list(prefix, most, limit))?;
        held.truncate(most);
        held.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(held)
    }
}
