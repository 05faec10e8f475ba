//! Tasks that are futures, on a tokio runtime.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | the calls, and a future's view of its run |
//! | `carry.rs` | the spawned future, which completes the run at its end |
//! | `repeat.rs` | repeating timers whose rounds are futures |
//! | `round.rs` | a future's view of its round |

mod carry;
mod repeat;
mod round;

pub use round::AsyncRound;

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime;

use super::answers::{Scheduled, TimerId};
use super::firing::{Firing, run_view};
use super::frontend::SchedulerFrontend;
use super::handle::{Handle, Upsert};
use super::hasher::RandomState;
use super::task::RunTask;
use crate::clock::ClaimReading;
use crate::coop::YieldPoint;
use crate::engine::CancellationOfRun;
use crate::error::ScheduleError;
use crate::job::prefetch;
use crate::shard::Start;
use crate::sync::atomic::Ordering;
use crate::tick::Time;
use crate::when::When;

/// Schedules tasks that are futures; see [`Handle::on_tokio`].
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Scheduler;
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # let scheduler = Scheduler::<u64>::new()?;
/// let timers = scheduler.handle().on_tokio(runtime.handle().clone());
/// timers.schedule(7, Duration::from_secs(5), async |_| println!("5 s have passed"))?;
/// // The other calls are those of the handle.
/// assert!(timers.handle().cancel(&7).is_cancelled());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct OnTokio<K, S = RandomState> {
    handle: Handle<K, S>,
    runtime: runtime::Handle,
}

/// A run of a future, as the future sees it: like a [`Firing`], but it can be kept. Clones stand
/// for the same run.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Scheduler;
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # let scheduler = Scheduler::<u64>::new()?;
/// let timers = scheduler.handle().on_tokio(runtime.handle().clone());
/// timers.schedule(7, Duration::from_secs(5), async |firing| {
///     println!("request {} timed out, {:?} late", firing.key(), firing.lateness());
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct AsyncFiring<K, S = RandomState> {
    handle: Handle<K, S>,
    key: K,
    id: TimerId,
    deadline: Time,
    started: Time,
}

impl<K, S> Handle<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns a handle that schedules futures, which run on `runtime`. Needs the feature `tokio`.
    /// The runtime needs neither its time driver nor its I/O driver for this.
    ///
    /// A key *runs* from the moment that its future is spawned until the future is ready, was
    /// dropped by its runtime, or has panicked. That run is a run like any other:
    ///
    /// - Two runs of one key never overlap.
    /// - `cancel_and_wait` waits for its end. A shutdown waits for it and counts it.
    /// - A cancelled run continues, but is notified: select on [`AsyncFiring::cancelled`].
    ///
    /// The workers only spawn, so a few of them serve any number of futures. While all of them are
    /// in long tasks of this scheduler, or if an executor runs its tasks, a thread of the shard
    /// spawns, which clones the key. So a future is spawned although other tasks hang. Keys and ids
    /// are those of this handle: both handles schedule into the same scheduler.
    ///
    /// # Blocking
    ///
    /// A runtime runs nothing while nobody drives it. The blocking calls would wait for futures
    /// that can't proceed meanwhile. So on the runtime's own threads, and always on the thread of a
    /// current-thread runtime, await instead: the end of a run by
    /// [`cancel_and_wait`](Self::cancel_and_wait), and a
    /// [`shutdown`](crate::Scheduler::shutdown). For the same reason a scheduler that a test steps
    /// does not wait for futures: let the runtime run between two steps, or let the scheduler
    /// follow the runtime by `test_util::Stepped::follow_tokio`.
    ///
    /// A runtime that has been shut down drops the future without polling it. That ends the run,
    /// which counts as one that *ran*.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::Scheduler;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// let scheduler = Scheduler::<u64>::builder().workers(1).build()?;
    /// let timers = scheduler.handle().on_tokio(tokio::runtime::Handle::current());
    /// let (send, answer) = tokio::sync::oneshot::channel();
    /// timers.schedule(7, Duration::from_millis(20), async move |firing| {
    ///     // .. await whatever it takes ..
    ///     let _ = send.send(*firing.key());
    /// })?;
    /// assert_eq!(answer.await?, 7);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    #[doc(alias("async", "spawn"))]
    #[must_use]
    pub fn on_tokio(&self, runtime: runtime::Handle) -> OnTokio<K, S> {
        // Relaxed: see `SchedulerFrontend::has_light`.
        (self.engine().frontend.spawns).store(true, Ordering::Relaxed);
        OnTokio {
            handle: self.clone(),
            runtime,
        }
    }
}

impl<K, S> OnTokio<K, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Like [`Handle::schedule`]: spawns the future that `make` returns. `make` itself runs on the
    /// runtime, too.
    ///
    /// # Errors
    ///
    /// As for [`Handle::schedule`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # let scheduler = Scheduler::<u64>::new()?;
    /// let timers = scheduler.handle().on_tokio(runtime.handle().clone());
    /// timers.schedule(7, Duration::from_secs(5), async |firing| {
    ///     // .. await whatever it takes ..
    ///     println!("request {} has timed out", firing.key());
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn schedule<F, R>(
        &self,
        key: K,
        when: impl Into<When>,
        make: F,
    ) -> Result<Scheduled, ScheduleError<F>>
    where
        F: FnOnce(AsyncFiring<K, S>) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        self.arm(key, when.into(), Upsert::Always, make)
    }

    /// Like [`Handle::schedule_if_absent`].
    ///
    /// # Errors
    ///
    /// As for [`Handle::schedule_if_absent`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::{ScheduleError, Scheduler};
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # let scheduler = Scheduler::<u64>::new()?;
    /// let timers = scheduler.handle().on_tokio(runtime.handle().clone());
    /// timers.schedule_if_absent(7, Duration::from_secs(5), async |_| println!("first"))?;
    /// let second = timers.schedule_if_absent(7, Duration::from_secs(9), async |_| println!("second"));
    /// assert!(matches!(second, Err(ScheduleError::Occupied(_))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn schedule_if_absent<F, R>(
        &self,
        key: K,
        when: impl Into<When>,
        make: F,
    ) -> Result<Scheduled, ScheduleError<F>>
    where
        F: FnOnce(AsyncFiring<K, S>) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        self.arm(key, when.into(), Upsert::IfAbsent, make)
    }

    /// Boxes the closure and arms it.
    fn arm<F, R>(
        &self,
        key: K,
        when: When,
        upsert: Upsert,
        make: F,
    ) -> Result<Scheduled, ScheduleError<F>>
    where
        F: FnOnce(AsyncFiring<K, S>) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let (deadline, now) = self.handle.engine().resolve(when);
        let runtime = self.runtime.clone();
        let task = Spawn { make, runtime };
        (self.handle).arm_task(key, task, deadline, now, upsert, |task| task.make)
    }
}

impl<K, S> OnTokio<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns the handle for all other calls.
    #[must_use]
    pub fn handle(&self) -> &Handle<K, S> {
        &self.handle
    }
}

/// The future of [`AsyncFiring::cancelled`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{AsyncFiring, Scheduler, Timer};
///
/// async fn import(firing: AsyncFiring<u64>) {
///     let timer = Timer::new().expect("a thread starts");
///     // Works for a minute, or until the key is cancelled.
///     let _ = timer.timeout(Duration::from_secs(60), firing.cancelled()).await;
/// }
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # let scheduler = Scheduler::<u64>::new()?;
/// let timers = scheduler.handle().on_tokio(runtime.handle().clone());
/// timers.schedule(7, Duration::from_secs(5), import)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "futures do nothing unless they are awaited"]
pub struct Cancelled<K, S = RandomState>(CancellationOfRun<SchedulerFrontend<K, S>>, YieldPoint)
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static;

impl<K, S> Future for Cancelled<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Cancelled(cancellation, yield_point) = &mut *self;
        yield_point.poll(context, |context| Pin::new(cancellation).poll(context))
    }
}

impl<K, S> fmt::Debug for Cancelled<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cancelled(..)")
    }
}

/// Makes a future and spawns it on the runtime.
struct Spawn<F> {
    make: F,
    runtime: runtime::Handle,
}

impl<K, S, F, R> RunTask<K, S> for Spawn<F>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    F: FnOnce(AsyncFiring<K, S>) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    fn start(&mut self, _: Time, _: &mut ClaimReading<'_>) -> Start {
        Start::Once
    }

    fn prefetch(&mut self) {
        prefetch(&mut self.make);
    }

    fn only_spawns(&self) -> bool {
        true
    }

    fn run(self: Box<Self>, firing: &Firing<'_, K, S>, detached: Option<&mut bool>) {
        let told = AsyncFiring::of(firing);
        let for_future = told.clone();
        let Spawn { make, runtime } = *self;
        // `make` is called inside the future, so that it runs on the runtime.
        let future = Box::pin(async move { make(for_future).await });
        carry::spawn_once(&runtime, told, detached, future);
    }
}

impl<K, S> AsyncFiring<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Makes the view of a future, which may outlive the worker's call. So it has values of its own
    /// instead of references.
    fn of(firing: &Firing<'_, K, S>) -> Self {
        AsyncFiring {
            handle: firing.handle.clone(),
            key: firing.key.clone(),
            id: firing.id,
            deadline: firing.deadline,
            started: firing.started,
        }
    }

    /// Returns a future that is ready when the key has been cancelled since this run started, or
    /// when the run has ended. A long run can select on it together with whatever it awaits.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::Scheduler;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// let scheduler = Scheduler::<u64>::builder().build()?;
    /// let timers = scheduler.handle().on_tokio(tokio::runtime::Handle::current());
    /// let (send, began) = tokio::sync::oneshot::channel();
    /// timers.schedule(7, Duration::ZERO, async move |firing| {
    ///     let _ = send.send(());
    ///     // Or, while it awaits an answer: one branch of a `select!`.
    ///     firing.cancelled().await;
    /// })?;
    /// began.await?;
    /// assert!(timers.handle().cancel_and_wait(&7).await.is_ok());
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn cancelled(&self) -> Cancelled<K, S> {
        let id = self.id;
        let cancellation = CancellationOfRun::new(self.handle.engine(), id.stripe, id.entry);
        Cancelled(cancellation, YieldPoint::default())
    }
}

run_view!(AsyncFiring<K, S>, "AsyncFiring");

impl<K, S> Clone for OnTokio<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn clone(&self) -> Self {
        self.handle.on_tokio(self.runtime.clone())
    }
}

impl<K, S> Clone for AsyncFiring<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn clone(&self) -> Self {
        AsyncFiring {
            handle: self.handle.clone(),
            key: self.key.clone(),
            id: self.id,
            deadline: self.deadline,
            started: self.started,
        }
    }
}

impl<K, S> fmt::Debug for OnTokio<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnTokio")
            .field("handle", &self.handle)
            .finish_non_exhaustive()
    }
}
