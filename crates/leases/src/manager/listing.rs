//! Lists the locks that are held.

use std::time::Duration;

use tourbillon::reentrancy;

use super::error::LockError;
use super::inner::LeasesInner;
use super::lease_future::LeaseFuture;
use super::locks::Leases;
use crate::store::{LockPage, LockPaging};

impl Leases {
    /// How long a call of [`list`](Self::list) takes at most. It has nothing to do with the lease.
    pub const LIST_LIMIT: Duration = Duration::from_secs(5);

    /// Asks the store which locks are held whose names begin with `prefix`, and by whom. The answer
    /// is one page of them, sorted by name, and [how to ask for the next one](LockPage::next). The
    /// empty prefix is that of all locks.
    ///
    /// A page may be short, or empty, although others follow: the store looks at a bounded number of
    /// its keys for each page. A memory store returns the pages in the order of the names, and a
    /// Redis server in no particular order. There a name may come in several pages, mainly if the store
    /// has several destinations: each of them is a walk over the keys of its node.
    ///
    /// Like that of [`holder`](Self::holder), the answer may be outdated when it arrives, and
    /// nothing may be decided by it. Locks that are acquired or released between the first page and
    /// the last one may be left out.
    ///
    /// # Errors
    ///
    /// [`LockError::Store`], with the prefix as the name, if the store could not be asked,
    /// [can't tell](crate::LeaseStore::list), or does not know the place of the page.
    ///
    /// # Blocking
    ///
    /// [`wait`](LeaseFuture::wait) blocks for at most [`LIST_LIMIT`](Self::LIST_LIMIT). A Redis
    /// store returns what it has found after half of that time.
    ///
    /// # Complexity
    ///
    /// A memory store looks at all of its names. For all pages together a Redis server looks at all
    /// of its keys, a thousand in a step, and serves others between the steps.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, LockPaging, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("orders/42").wait()?;
    /// let _other = leases.lock("invoices/7").wait()?;
    /// let page = leases.list("orders/", &LockPaging::first(100)).wait()?;
    /// assert_eq!(page.locks.len(), 1);
    /// assert_eq!(page.locks[0].name, "orders/42");
    /// assert_eq!(page.locks[0].holder.owner, guard.id().owner());
    /// assert_eq!(page.next, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn list(
        &self,
        prefix: &str,
        paging: &LockPaging,
    ) -> LeaseFuture<Result<LockPage, LockError>> {
        let (leases, prefix) = (self.inner.clone(), prefix.to_owned());
        let paging = paging.clone();
        self.answer(async move { leases.list(&prefix, &paging).await })
    }
}

impl LeasesInner {
    async fn list(&self, prefix: &str, paging: &LockPaging) -> Result<LockPage, LockError> {
        // Under a lock of the crate this panics before the store is asked.
        let _ = reentrancy::check();
        LockError::check_length(prefix)?;
        let limit = Leases::LIST_LIMIT;
        let call = self.ask_store(prefix, limit, |store| store.list(prefix, paging, limit));
        let mut page = call.await?;
        let locks = &mut page.locks;
        locks.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(page)
    }
}
