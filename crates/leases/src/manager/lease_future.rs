//! The answer of a call, which is waited for or awaited.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tourbillon::coop::YieldPoint;
use tourbillon::{Clock, reentrancy};

use super::inner::LeasesInner;
use crate::store::block_on;

/// The answer of a call. [`wait`](Self::wait) blocks until it is there, and `.await` waits for it
/// without a thread.
///
/// The call is made by `wait`, on this thread, or by the first poll. Before that nothing happens.
/// **A call that is dropped unused is not made.** A guard that was passed to it is dropped with it,
/// so that [`release`](crate::LeaseGuard::release) then gives the lock back in the background, as
/// the drop of the guard does. After the first poll, the drop ends the call. The store may execute
/// it all the same, unless the docs of the call say more.
///
/// The thread of `wait`, or the task that awaits the call, also polls the store. So a store must not
/// block: wrap one whose client blocks in a [`BlockingStore`](crate::BlockingStore). A thread that
/// waits for one call after the other may also drive the connections of the store meanwhile, and
/// thereby the calls of others. A call ends at its limit by the clock of the leases.
///
/// The future owns what it needs: it can be stored in a struct, sent to another thread or spawned
/// as a task, and awaited by reference without being pinned. It needs no particular runtime.
///
/// [`Acquisition`](crate::Acquisition) and [`LockAll`](crate::LockAll) have `wait` and `.await`
/// themselves. Their `into_future()` returns this type.
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
/// let mut job = Job { number: 7, lock: leases.lock("report").into_future() };
/// let guard = (&mut job.lock).await?;
/// println!("job {} holds {}", job.number, guard.name());
/// guard.release().await?; // or .wait() on a thread that may block
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing happens until it is waited for, or awaited"]
pub struct LeaseFuture<T> {
    future: Pin<Box<dyn Future<Output = T> + Send>>,
    /// The clock by which `wait` waits.
    clock: Clock,
    /// The address of the leases to which the clock belongs.
    leases: usize,
    yield_point: YieldPoint,
}

impl<T> LeaseFuture<T> {
    /// Returns the answer of a call, which `future` makes.
    pub(super) fn new(
        leases: &LeasesInner,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Self {
        LeaseFuture {
            future: Box::pin(future),
            clock: leases.clock.clone(),
            leases: leases.address(),
            yield_point: YieldPoint::default(),
        }
    }

    /// Makes the call on this thread, and blocks until the answer is there. Each call says how long
    /// that takes at most. A call that was polled before goes on from there. Do not wait on a
    /// thread that the store needs, such as the thread of a current-thread runtime, nor under a lock
    /// that the waker of another task takes: the thread may wake tasks while it waits.
    ///
    /// # Panics
    ///
    /// Panics if a poll has returned the answer, or within a closure that runs under a lock of
    /// `tourbillon`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("report").wait()?;
    /// guard.release().wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait(self) -> T {
        // A call that was polled has made its own check before, and would block here.
        let _ = reentrancy::check();
        block_on(&self.clock, self.leases, self.future)
    }
}

impl<T> Future for LeaseFuture<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        let future = this.future.as_mut();
        // A call that is refused is ready at once, and may be made in a loop.
        this.yield_point
            .poll(context, |context| future.poll(context))
    }
}

impl<T> fmt::Debug for LeaseFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseFuture").finish_non_exhaustive()
    }
}
