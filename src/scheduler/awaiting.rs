//! Calls of a handle that are awaited instead of blocking the thread.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::pin::Pin;
use std::task::{Context, Poll};

use super::answers::Cancel;
use super::frontend::SchedulerFrontend;
use super::handle::Handle;
use super::hasher::RandomState;
use crate::coop::YieldPoint;
use crate::engine::EndOfRun;
use crate::error::WaitError;
use crate::job::drop_catching;

/// The future of [`Handle::cancel_and_wait_async`]. Dropping it ends the wait. If it is dropped
/// under a lock of this crate, the wait ends when that lock is released.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::Scheduler;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// # let scheduler = Scheduler::<&str>::new()?;
/// # let timers = scheduler.handle();
/// let cancelled = timers.cancel_and_wait_async("import");
/// // Any timeout can limit the wait, such as that of this crate.
/// let timer = tourbillon::Timer::new()?;
/// assert!(timer.timeout(Duration::from_secs(1), cancelled).await.is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "it cancels without being awaited, and does not wait"]
pub struct CancelAndWait<K, S = RandomState>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    answer: Cancel,
    run: EndOfRun<SchedulerFrontend<K, S>>,
    yield_point: YieldPoint,
}

impl<K, S> Handle<K, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Like [`cancel_and_wait`](Self::cancel_and_wait), for a task: it cancels at once, and the
    /// returned future is ready when the run in progress has ended. Until the future is ready or
    /// dropped, arming the key is refused while that run is in progress. It needs no particular
    /// runtime.
    ///
    /// Dropping the future ends the wait; cancelled timers stay cancelled. To set a limit, put the
    /// future into a timeout.
    ///
    /// # Errors
    ///
    /// The future returns [`WaitError::WouldDeadlock`] from inside the run that it would wait for.
    /// It also returns it from inside any task that is a closure, since a closure's run can't be
    /// identified there. A run that waits for itself by way of another task is not detected.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// # let scheduler = Scheduler::<&str>::new()?;
    /// # let timers = scheduler.handle();
    /// timers.schedule("import", Duration::ZERO, |_| { /* reads a file */ })?;
    /// timers.cancel_and_wait_async("import").await?;
    /// // The task is not running and never will, so the file can be deleted.
    /// assert!(!timers.contains("import"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel_and_wait_async<Q>(&self, key: &Q) -> CancelAndWait<K, S>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        let (cancelling, run) =
            EndOfRun::cancel(self.engine(), stripe, |stripe| stripe.cancel(hash, key));
        let (answer, dropped) = Self::cancel_answer(cancelling);
        // Dropped before the wait: the run may wait for something that this drop releases. If the
        // drop panics, `run` is dropped and ends the wait.
        drop_catching(dropped);
        CancelAndWait {
            answer,
            run,
            yield_point: YieldPoint::default(),
        }
    }
}

impl<K, S> Future for CancelAndWait<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    type Output = Result<Cancel, WaitError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let run = Pin::new(&mut this.run);
        let ended = (this.yield_point).poll(context, |context| run.poll(context));
        ended.map(|ended| ended.map(|()| this.answer))
    }
}

impl<K, S> fmt::Debug for CancelAndWait<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelAndWait")
            .field("answer", &self.answer)
            .finish_non_exhaustive()
    }
}
