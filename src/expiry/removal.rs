//! The listener that is called with each entry that leaves the map.

use super::content::MapEntry;
use super::frontend::{OnRemoval, Reason};
use super::{ExpiryMap, ExpiryMapBuilder, MapHasher};

impl<K, V, S> ExpiryMapBuilder<K, V, S> {
    /// Sets a function that is called with each entry that leaves the map, and the reason. It is
    /// for whatever must follow *every* end of an entry, such as a count or the release of
    /// something outside; the handler, channel or stream gets only entries that expire. Maps
    /// without a listener pay nothing for it.
    ///
    /// Each entry that was inserted leaves exactly once:
    ///
    /// | reason | the entry | called by |
    /// |---|---|---|
    /// | [`Idle`](Reason::Idle), [`Lifetime`](Reason::Lifetime), [`GroupFull`](Reason::GroupFull), [`Shutdown`](Reason::Shutdown) | is delivered next | the worker, before the delivery |
    /// | [`Removed`](Reason::Removed), [`Replaced`](Reason::Replaced), [`Cleared`](Reason::Cleared) | comes back, or is dropped | the thread that removed it, before its call returns |
    /// | [`HandedBack`](Reason::HandedBack) | is in the report of a shutdown | the thread of the shutdown |
    /// | [`Dropped`](Reason::Dropped) | is dropped with the map | the thread that dropped it |
    ///
    /// If an entry whose lifetime is over, or that was evicted, is replaced before it is delivered,
    /// the reason says so: `Lifetime` or `GroupFull`.
    ///
    /// The function runs without a lock and may call the map. It must not wait for the map's
    /// shutdown. If two threads end two entries of one key at about the same time, their calls may
    /// come in any order, or at once. A panic of the function is caught and otherwise ignored. The
    /// function is not called for a key whose `Clone` has panicked.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use tourbillon::{ExpiryMap, Reason};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bytes = Arc::new(AtomicUsize::new(0));
    /// let freed = Arc::clone(&bytes);
    /// let uploads = ExpiryMap::<u64, Vec<u8>>::builder()
    ///     .time_to_idle(Duration::from_secs(60))
    ///     .on_removal(move |_, upload, _| {
    ///         freed.fetch_sub(upload.len(), Ordering::Relaxed);
    ///     })
    ///     .build(|_, expired| println!("upload {} was given up", expired.key))?;
    ///
    /// bytes.fetch_add(1_000, Ordering::Relaxed);
    /// uploads.insert(7, vec![0; 1_000])?;
    /// uploads.remove(&7); // or expired, or replaced, or cleared
    /// assert_eq!(bytes.load(Ordering::Relaxed), 0);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "eviction_listener")]
    pub fn on_removal(mut self, tell: impl Fn(&K, &V, Reason) + Send + Sync + 'static) -> Self {
        self.on_removal = Some(OnRemoval::new(tell));
        self
    }
}

impl<K, V, S: MapHasher> ExpiryMap<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
{
    /// Returns the value that an insertion replaced, after it has told the listener.
    #[inline]
    pub(super) fn replaced(&self, key: Option<&K>, old: Option<MapEntry<V, S::Tag>>) -> Option<V> {
        let old = old?;
        if let (Some(tell), Some(key)) = (&self.engine.frontend.on_removal, key) {
            let reason = old.replaced_for(self.engine.clock());
            tell.removed(key, &old.value, reason);
        }
        Some(old.value)
    }

    /// Whether there is a listener.
    #[inline]
    pub(super) fn listens(&self) -> bool {
        self.engine.frontend.on_removal.is_some()
    }
}

impl<K, V, S: MapHasher> ExpiryMap<K, V, S> {
    /// Tells the listener, if there is one. Called without a lock.
    #[inline]
    pub(super) fn removed(&self, key: &K, value: &V, reason: Reason) {
        if let Some(tell) = &self.engine.frontend.on_removal {
            tell.removed(key, value, reason);
        }
    }
}
