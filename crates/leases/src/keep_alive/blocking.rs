//! Renewal functions that block.

use super::batch::Batch;
use crate::store::{
    BACKGROUND_BOUNDS, Lane, Outcome, StoreError, StoreFuture, StoreThreads, is_waited_for,
};
use crate::sync::Arc;

/// Returns a renewal function that calls `renew`, which may block, on threads of its own.
///
/// A thread starts when a call needs it, and ends after ten seconds without a call. At most 192 calls
/// run at one time, at most three of them for one [`Destination`](crate::Destination). A call that
/// gets no thread within its [limit](Batch::limit) is not made, and fails with
/// [`StoreError::Unavailable`]. A call that hangs occupies its thread, and has failed when its limit is
/// reached. So if up to 63 destinations hang, the others still get threads.
///
/// A `KeepAlive` that a test [steps](crate::KeepAliveBuilder::build_stepped) calls the function in
/// place.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_leases::{KeepAlive, Outcome, blocking};
///
/// let sessions = KeepAlive::<u64>::builder().build(blocking(|batch| {
///     // .. one request to the peer, which blocks this thread for at most batch.limit() ..
///     Ok(vec![Outcome::Renewed; batch.len()])
/// }))?;
/// let session = sessions.keep(7, Duration::from_secs(30))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn blocking<K, F>(
    renew: F,
) -> impl Fn(Batch<K>) -> StoreFuture<'static, Vec<Outcome>> + Send + Sync + 'static
where
    K: Send + Sync + 'static,
    F: Fn(&Batch<K>) -> Result<Vec<Outcome>, StoreError> + Send + Sync + 'static,
{
    let (renew, threads) = (Arc::new(renew), StoreThreads::new(BACKGROUND_BOUNDS));
    let threads = Arc::new(threads);
    move |mut batch: Batch<K>| {
        let (renew, threads) = (Arc::clone(&renew), Arc::clone(&threads));
        Box::pin(async move {
            if is_waited_for().await {
                return renew(&batch);
            }
            let (lane, limit) = (Lane::To(batch.destination()), batch.limit());
            let call = threads.call(lane, limit, move |left| {
                // A thread may begin late.
                batch.limit = left;
                renew(&batch)
            });
            call.await
        })
    }
}
