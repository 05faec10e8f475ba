//! Calls of a handle that are awaited instead of blocking.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

use super::answers::Cancel;
use super::handle::Handle;
use crate::engine::Awaiting;
use crate::error::WaitError;
use crate::job::drop_pair;

impl<K, S> Handle<K, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Like [`cancel_and_wait`](Self::cancel_and_wait), for a task: it cancels at once, and the
    /// future is ready when the run in progress has ended. From this call on, and until the future
    /// is ready or dropped, arming the key is refused while that run is in progress. Needs the
    /// feature `futures`, and no particular runtime.
    ///
    /// Dropping the future gives up waiting; what is cancelled stays so. Put it into a timeout for
    /// a limit.
    ///
    /// # Errors
    ///
    /// As for [`cancel_and_wait`](Self::cancel_and_wait).
    pub fn cancel_and_wait_async<Q>(
        &self,
        key: &Q,
    ) -> impl Future<Output = Result<Cancel, WaitError>> + Send + use<K, S, Q>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        let (cancelling, awaiting) =
            Awaiting::cancel(self.engine(), stripe, |stripe| stripe.cancel(hash, key));
        let (answer, dropped) = Self::settled(cancelling);
        // Before anything is awaited: the run may wait for what this drop lets go. If it panics,
        // nobody waits.
        drop_pair(dropped);
        async move { awaiting.await.map(|()| answer) }
    }
}
