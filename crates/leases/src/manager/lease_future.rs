//! The answer of a call, which is waited for or awaited.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tourbillon::coop::YieldPoint;
use tourbillon::{Clock, ClockParker, Time, reentrancy};

use crate::sync::Arc;

/// The answer of a call. [`wait`](Self::wait) blocks until it is there, and `.await` waits for it
/// without a thread.
///
/// The call is made by `wait`, on this thread, or by the first poll. Before that nothing happens. **A call that is dropped unused is not made.** A guard that was passed to it is
/// dropped with it, so that [`release`](crate::LeaseGuard::release) then gives the lock back in the
/// background, as the drop of the guard does. After a poll, a call
/// that has not begun is not made, and one that has begun runs to its end, unless its docs say more.
///
/// It owns what it needs: it can be stored in a struct, sent to another thread or spawned as a
/// task, and awaited by reference without being pinned. It needs no particular runtime. The workers
/// of the leases call the store: at most 64 at one time for one destination, and 192 in all. If all
/// of these calls hang, further calls wait for them.
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
    /// Taken by the first poll.
    call: Option<Box<dyn UnmadeCall<T>>>,
    /// The call, once it was polled.
    polled: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    yield_point: YieldPoint,
}

/// A call that has not begun.
trait UnmadeCall<T>: Send {
    /// Makes it on this thread.
    fn wait(self: Box<Self>) -> T;

    /// Turns it into a future, which makes it.
    fn into_future(self: Box<Self>) -> Pin<Box<dyn Future<Output = T> + Send>>;
}

/// A call that needs `own`, and both ways to make it.
struct TwoWays<A, W, G> {
    own: A,
    wait: W,
    go: G,
}

impl<T, A, W, G, F> UnmadeCall<T> for TwoWays<A, W, G>
where
    A: Send,
    W: FnOnce(A) -> T + Send,
    G: FnOnce(A) -> F + Send,
    F: Future<Output = T> + Send + 'static,
{
    fn wait(self: Box<Self>) -> T {
        (self.wait)(self.own)
    }

    fn into_future(self: Box<Self>) -> Pin<Box<dyn Future<Output = T> + Send>> {
        Box::pin((self.go)(self.own))
    }
}

impl<T> LeaseFuture<T> {
    /// Returns the answer of a call that needs `own`: `wait` makes it on this thread, and `go` as a
    /// future.
    pub(crate) fn new<A, F>(
        own: A,
        wait: impl FnOnce(A) -> T + Send + 'static,
        go: impl FnOnce(A) -> F + Send + 'static,
    ) -> Self
    where
        A: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        LeaseFuture {
            call: Some(Box::new(TwoWays { own, wait, go })),
            polled: None,
            yield_point: YieldPoint::default(),
        }
    }

    /// Makes the call on this thread, and blocks until the answer is there. Each call says how long
    /// that takes at most. A call that was polled before goes on where it is: the workers make it,
    /// and this thread sleeps. So do not wait for such a call on a thread that its store needs, as
    /// that of a current-thread runtime.
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
        if let Some(call) = self.call {
            return call.wait();
        }
        // A call that begins here has checked this itself.
        let _ = reentrancy::check();
        let mut polled = self.polled.expect("a call that has begun is a future");
        // The clock does not matter: the future alone wakes this thread.
        let parker = ClockParker::new(&Clock::boottime());
        let waker = Waker::from(Arc::new(parker.unparker()));
        loop {
            if let Poll::Ready(answer) = polled.as_mut().poll(&mut Context::from_waker(&waker)) {
                return answer;
            }
            parker.park_until(Time::MAX);
        }
    }
}

impl<T> Future for LeaseFuture<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let LeaseFuture {
            call,
            polled,
            yield_point,
        } = &mut *self;
        // A call that is refused is ready at once, and may be made in a loop.
        yield_point.poll(context, |context| {
            if let Some(call) = call.take() {
                *polled = Some(call.into_future());
            }
            let polled = polled.as_mut().expect("a call that has begun is a future");
            polled.as_mut().poll(context)
        })
    }
}

impl<T> fmt::Debug for LeaseFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseFuture").finish_non_exhaustive()
    }
}
