//! The future of the async calls.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tourbillon::coop::YieldPoint;

/// The future of a call whose name ends with `_async`, such as
/// [`Leases::lock_async`](crate::Leases::lock_async), with what it returns.
///
/// It owns what it needs: it can be stored in a struct, sent to another thread or spawned as a
/// task, and awaited by reference without being pinned. Nothing happens before its first poll. Each
/// call says what its drop does.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{LeaseFuture, LeaseGuard, Leases, LockError, MemoryStore};
///
/// struct Job {
///     number: u64,
///     lock: LeaseFuture<Result<LeaseGuard, LockError>>,
/// }
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// let leases = Leases::new(MemoryStore::new())?;
/// let mut job = Job { number: 7, lock: leases.lock_async("report") };
/// let guard = (&mut job.lock).await?;
/// println!("job {} holds {}", job.number, guard.name());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "futures do nothing unless they are awaited"]
pub struct LeaseFuture<T> {
    call: Pin<Box<dyn Future<Output = T> + Send>>,
    yield_point: YieldPoint,
}

impl<T> LeaseFuture<T> {
    pub(crate) fn new(call: impl Future<Output = T> + Send + 'static) -> Self {
        LeaseFuture {
            call: Box::pin(call),
            yield_point: YieldPoint::default(),
        }
    }
}

impl<T> Future for LeaseFuture<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // A call that is refused is ready at once, and may be made in a loop.
        let this = &mut *self;
        let call = this.call.as_mut();
        this.yield_point.poll(context, |context| call.poll(context))
    }
}

impl<T> fmt::Debug for LeaseFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseFuture").finish_non_exhaustive()
    }
}
