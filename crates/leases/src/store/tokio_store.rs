//! Stores whose calls need a tokio runtime.

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

use super::call::is_amid_wait;
use super::{StoreError, StoreFuture};
use crate::sync::catch_panic;

/// A store whose calls are made, polled and dropped in the context of a tokio runtime.
///
/// The calls of a store are polled in tasks, on threads that wait, and on workers of the leases.
/// The workers and most waiting threads belong to no tokio runtime. So a store whose calls use
/// tokio's I/O or timers is wrapped in this type. Without it awaited calls work in a task of tokio,
/// but renewals fail. The runtime drives what the calls wait for. A current-thread runtime does
/// this only while a thread is in its `block_on`.
///
/// In async code, await the calls of [`Leases`](crate::Leases). A call that
/// [`wait`](crate::LeaseFuture::wait) makes on a thread that runs tasks fails with
/// [`StoreError::Refused`].
///
/// After the runtime has shut down, each call fails with the error of the store, or at its limit. So
/// close the leases first.
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
/// let guard = leases.lock("report").await?;
/// guard.release().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TokioStore<S: ?Sized> {
    runtime: Handle,
    pub(super) store: S,
}

impl<S> TokioStore<S> {
    /// Wraps a store, whose calls are then made in the context of `runtime`.
    pub fn new(store: S, runtime: Handle) -> Self {
        TokioStore { runtime, store }
    }
}

impl<S: ?Sized> TokioStore<S> {
    /// Asks the store in the context of the runtime.
    pub(super) fn enter<'a, R>(&'a self, ask: impl FnOnce(&'a S) -> R) -> R {
        let _context = self.runtime.enter();
        ask(&self.store)
    }

    /// Returns the same call, in the context of the runtime until its drop.
    pub(super) fn within<'a, T: 'a>(&self, call: StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        Box::pin(CallWithin {
            runtime: self.runtime.clone(),
            call: Some(call),
            may_wait: false,
        })
    }
}

/// A call that is polled and dropped in the context of a runtime.
struct CallWithin<'a, T> {
    runtime: Handle,
    /// `None` after the drop has begun.
    call: Option<StoreFuture<'a, T>>,
    /// Whether the thread that waits for it may do so.
    may_wait: bool,
}

impl<T> Future for CallWithin<'_, T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        // A task that awaits the call blocks no thread, so it needs no check.
        if is_amid_wait() {
            // A thread that polls tasks may not wait for a call: with one thread nothing would answer
            // it. Others of tokio's threads may, such as those of `spawn_blocking`, and only a trial
            // tells them apart.
            this.may_wait = this.may_wait
                || Handle::try_current().is_err()
                || catch_panic(|| this.runtime.block_on(ready(()))).is_ok();
            if !this.may_wait {
                let why =
                    "this thread runs tasks of tokio and can't wait for a store: await the call";
                return Poll::Ready(Err(StoreError::Refused(why.to_owned())));
            }
        }
        let _context = this.runtime.enter();
        let call = this.call.as_mut().expect("it is there until the drop");
        call.as_mut().poll(context)
    }
}

impl<T> Drop for CallWithin<'_, T> {
    fn drop(&mut self) {
        // What a client drops may be a task or a connection that spawns one.
        let _context = self.runtime.enter();
        self.call = None;
    }
}

impl<S: fmt::Debug + ?Sized> fmt::Debug for TokioStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TokioStore").field(&&self.store).finish()
    }
}
