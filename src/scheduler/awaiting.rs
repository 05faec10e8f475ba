//! Cancels, and waits for the end of a run, as a thread or as a task.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::answers::Cancel;
use super::frontend::SchedulerFrontend;
use super::handle::Handle;
use super::hasher::RandomState;
use crate::coop::YieldPoint;
use crate::engine::EndOfRun;
use crate::error::WaitError;
use crate::job::drop_catching;

/// The answer of [`Handle::cancel_and_wait`]: wait for it, or await it. The timer is cancelled
/// already.
///
/// Until it has answered or is dropped, arming the key is refused with
/// [`ScheduleError::Closing`](crate::ScheduleError::Closing) while the run is in progress. Dropping
/// it ends the wait. If it is dropped under a lock of this crate, the wait ends when that lock is
/// released.
///
/// # Errors
///
/// Both waits, and the future, fail with:
///
/// - [`WaitError::TimedOut`] at the limit of [`within`](Self::within). The run continues, and the
///   key can be armed again.
/// - [`WaitError::WouldDeadlock`] if there is a run to wait for, no limit, and the wait could be
///   for itself. For [`wait`](Self::wait), that is inside any task of this scheduler. For the
///   future, it is inside that run, and inside any task that is a closure, since a closure's run
///   can't be identified there. A run that waits for itself by way of another task is not detected.
/// - [`WaitError::Forked`] in a forked copy of the process.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Scheduler;
/// use tourbillon::WaitError;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// # let scheduler = Scheduler::<&str>::new()?;
/// # let timers = scheduler.handle();
/// timers.schedule("import", Duration::ZERO, |_| { /* may take long */ })?;
/// match timers.cancel_and_wait("import").within(Duration::from_secs(1)).await {
///     Ok(cancel) => println!("nothing runs any more: {cancel:?}"),
///     Err(WaitError::TimedOut) => println!("the import is still running"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the timer is cancelled, but nothing waits for the run without `.wait()` or `.await`"]
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
    /// Cancels like [`cancel`](Self::cancel), and returns what waits for the end of a run in
    /// progress: `.wait()` blocks the thread, `.await` does not, and `.within(limit)` before either
    /// limits the wait. A future of it needs no particular runtime.
    ///
    /// While it waits, arming the key is refused with
    /// [`ScheduleError::Closing`](crate::ScheduleError::Closing). So when it has answered, nothing
    /// runs for the key, and only timers armed after the end of the run are pending.
    ///
    /// # Blocking
    ///
    /// As for [`cancel`](Self::cancel). [`CancelAndWait::wait`] blocks.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::new()?;
    /// # let timers = scheduler.handle();
    /// timers.schedule("import", Duration::ZERO, |_| { /* reads a file */ })?;
    /// timers.cancel_and_wait("import").wait()?;
    /// // The task is not running and never will, so the file can be deleted.
    /// assert!(!timers.contains("import"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "join")]
    pub fn cancel_and_wait<Q>(&self, key: &Q) -> CancelAndWait<K, S>
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

impl<K, S> CancelAndWait<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Limits the wait to `limit` from now, by the scheduler's clock. Of several limits the
    /// earliest holds. A limited wait is also allowed inside a task.
    ///
    /// When the scheduler has ended, a future's limit is reached at once: nobody measures it any
    /// more.
    pub fn within(mut self, limit: Duration) -> Self {
        self.run.set_limit(limit);
        self
    }

    /// Returns what the call has found, without a wait: what the wait will answer, if it does not
    /// fail. After [`Cancel::Running`], or with `running`, a run was in progress at the call.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::new()?;
    /// # let timers = scheduler.handle();
    /// timers.schedule("import", Duration::from_secs(60), |_| { /* reads a file */ })?;
    /// let ending = timers.cancel_and_wait("import");
    /// if !ending.answer().is_cancelled() {
    ///     println!("waits for the import that runs");
    /// }
    /// assert!(ending.wait()?.is_cancelled());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn answer(&self) -> Cancel {
        self.answer
    }

    /// Waits for the end of the run.
    ///
    /// # Errors
    ///
    /// See [`CancelAndWait`].
    ///
    /// # Blocking
    ///
    /// Blocks until the run has ended, or the limit is reached.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::new()?;
    /// # let timers = scheduler.handle();
    /// timers.schedule("import", Duration::ZERO, |_| { /* reads a file */ })?;
    /// timers.cancel_and_wait("import").within(Duration::from_secs(60)).wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait(self) -> Result<Cancel, WaitError> {
        let answer = self.answer;
        self.run.wait().map(|()| answer)
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
