//! Stores whose calls need a tokio runtime.

use std::fmt;
use std::future::poll_fn;

use tokio::runtime::Handle;

use super::StoreFuture;

/// A store whose calls are polled in the context of a tokio runtime.
///
/// The threads of leases and of their callers poll the calls of a store, and most of them belong to
/// no runtime. A store whose calls use tokio's I/O or timers is wrapped in this type. The runtime
/// then drives what the calls wait for. So it must have a thread that runs: with a current-thread
/// runtime, one that is in `block_on`.
///
/// After the runtime has shut down, calls fail as the store makes them, or at their limit. So close
/// the leases first.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tokio::runtime::Handle;
/// use tourbillon_leases::{
///     Acquired, Claim, Destination, Holding, LeaseStore, Leases, Outcome, Released, Renewal,
///     StoreError, StoreFuture, TokioStore,
/// };
/// # use tourbillon_leases::MemoryStore;
/// # struct Client(MemoryStore);
///
/// struct MyStore {
///     client: Client, // the async client of some database
/// }
///
/// impl LeaseStore for MyStore {
///     fn acquire<'a>(
///         &'a self,
///         destination: Destination,
///         batch: &'a [Claim<'a>],
///         limit: Duration,
///     ) -> StoreFuture<'a, Vec<Result<Acquired, StoreError>>> {
///         Box::pin(async move {
///             // ..
/// #           tokio::time::sleep(Duration::from_millis(1)).await;
/// #           self.client.0.acquire(destination, batch, limit).await
///         })
///     }
///
///     fn renew<'a>(
///         &'a self,
///         destination: Destination,
///         batch: &'a [Renewal<'a>],
///         limit: Duration,
///     ) -> StoreFuture<'a, Vec<Outcome>> {
///         Box::pin(async move {
///             // ..
/// #           self.client.0.renew(destination, batch, limit).await
///         })
///     }
///
///     fn release<'a>(
///         &'a self,
///         destination: Destination,
///         batch: &'a [Holding<'a>],
///         limit: Duration,
///     ) -> StoreFuture<'a, Vec<Result<Released, StoreError>>> {
///         Box::pin(async move {
///             // ..
/// #           self.client.0.release(destination, batch, limit).await
///         })
///     }
/// }
///
/// # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
/// # runtime.block_on(async {
/// # let store = MyStore { client: Client(MemoryStore::new()) };
/// let leases = Leases::new(TokioStore::new(store, Handle::current()))?;
/// let guard = leases.lock_async("report").await?;
/// guard.release_async().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TokioStore<S: ?Sized> {
    runtime: Handle,
    pub(super) store: S,
}

impl<S> TokioStore<S> {
    /// Wraps a store, whose calls are then polled in the context of `runtime`.
    pub fn new(store: S, runtime: Handle) -> Self {
        TokioStore { runtime, store }
    }
}

impl<S: ?Sized> TokioStore<S> {
    /// Returns the same call, polled in the context of the runtime.
    pub(super) fn within<'a, T: 'a>(&self, mut call: StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        let runtime = self.runtime.clone();
        Box::pin(poll_fn(move |context| {
            let _context = runtime.enter();
            call.as_mut().poll(context)
        }))
    }
}

impl<S: fmt::Debug + ?Sized> fmt::Debug for TokioStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TokioStore").field(&&self.store).finish()
    }
}
