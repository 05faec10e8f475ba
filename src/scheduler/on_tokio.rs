//! Tasks that are futures, on a tokio runtime.

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime;

use super::answers::{Scheduled, TimerId, refused};
use super::face::Keyed;
use super::firing::Firing;
use super::handle::{Handle, Upsert};
use super::hasher::RandomState;
use super::task::{After, Rounds, Task, Work};
use crate::engine::{CancellationOfRun, Detached};
use crate::error::ScheduleError;
use crate::job::contain;
use crate::shard::Start;
use crate::tick::Time;

/// Schedules tasks that are futures; see [`Handle::on_tokio`].
pub struct OnTokio<K, S = RandomState>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    handle: Handle<K, S>,
    runtime: runtime::Handle,
}

/// A run of a future, as the future sees it: a [`Firing`] that can be kept. Clones stand for the
/// same run.
pub struct AsyncFiring<K, S = RandomState>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
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
    /// This handle for tasks that are futures, which run on `runtime`. Needs the feature `tokio`;
    /// of the runtime neither the time driver nor the other one is needed.
    ///
    /// A key *runs* from the moment that its future is spawned until that is ready, dropped by its
    /// runtime, or has panicked, and all promises hold for that run: two of one key never overlap,
    /// `cancel_and_wait` waits for its end, shutdown waits for it and counts it. A run that is
    /// cancelled goes on, but is told: [`AsyncFiring::cancelled`] is what to select on. Workers
    /// only spawn, so that few of them serve any number of futures.
    ///
    /// Keys, ids and everything else are those of this handle: both schedule into the same
    /// scheduler.
    ///
    /// # Blocking
    ///
    /// A runtime that nobody drives runs nothing. So on its own threads, and always on that of a
    /// current-thread runtime, await the end of a run by
    /// [`cancel_and_wait_async`](Self::cancel_and_wait_async), and a shutdown by
    /// [`begin_shutdown`](crate::Scheduler::begin_shutdown): the calls that block wait for futures
    /// that can't go on meanwhile. For the same reason a scheduler that a test steps does not wait
    /// for them: let the runtime run between two steps.
    ///
    /// A runtime that has been shut down drops the future unpolled: that is an end of its run like
    /// any other, and it counts as one that *ran*.
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
    #[must_use]
    pub fn on_tokio(&self, runtime: runtime::Handle) -> OnTokio<K, S> {
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
    /// Like [`Handle::schedule`]: spawns what `make` makes, once, at or after `delay` from now.
    /// `make` itself runs on the runtime, too.
    ///
    /// # Errors
    ///
    /// As for [`Handle::schedule`].
    pub fn schedule<F, R>(
        &self,
        key: K,
        delay: Duration,
        make: F,
    ) -> Result<Scheduled, ScheduleError<F>>
    where
        F: FnOnce(AsyncFiring<K, S>) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let now = self.handle.now();
        self.arm(key, now + delay, now, Upsert::Always, make)
    }

    /// Like [`Handle::schedule_at`].
    ///
    /// # Errors
    ///
    /// As for [`Handle::schedule`].
    pub fn schedule_at<F, R>(
        &self,
        key: K,
        at: Time,
        make: F,
    ) -> Result<Scheduled, ScheduleError<F>>
    where
        F: FnOnce(AsyncFiring<K, S>) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        self.arm(key, at, self.handle.now(), Upsert::Always, make)
    }

    /// Like [`Handle::schedule_if_absent`].
    ///
    /// # Errors
    ///
    /// As for [`Handle::schedule_if_absent`].
    pub fn schedule_if_absent<F, R>(
        &self,
        key: K,
        delay: Duration,
        make: F,
    ) -> Result<Scheduled, ScheduleError<F>>
    where
        F: FnOnce(AsyncFiring<K, S>) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let now = self.handle.now();
        self.arm(key, now + delay, now, Upsert::IfAbsent, make)
    }

    fn arm<F, R>(
        &self,
        key: K,
        deadline: Time,
        now: Time,
        upsert: Upsert,
        make: F,
    ) -> Result<Scheduled, ScheduleError<F>>
    where
        F: FnOnce(AsyncFiring<K, S>) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let runtime = self.runtime.clone();
        let mut given = Some((key, Box::new(Spawn { make, runtime })));
        let answer =
            (self.handle).arm_boxed(&mut given, deadline, now, upsert, |task| Task::of(task));
        match (answer, given) {
            (Ok(scheduled), _) => Ok(scheduled),
            (Err(refusal), Some((_key, task))) => Err(refused(refusal, task.make)),
            (Err(_), None) => unreachable!("what is refused is not taken"),
        }
    }
}

impl<K, S> OnTokio<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// The handle for everything else.
    #[must_use]
    pub fn handle(&self) -> &Handle<K, S> {
        &self.handle
    }
}

/// The future of [`AsyncFiring::cancelled`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct Cancelled<K, S = RandomState>(CancellationOfRun<Keyed<K, S>>)
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
        Pin::new(&mut self.0).poll(context)
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

/// Makes a future and has it run.
struct Spawn<F> {
    make: F,
    runtime: runtime::Handle,
}

impl<K, S, F, R> Work<K, S> for Spawn<F>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    F: FnOnce(AsyncFiring<K, S>) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    fn start(&mut self, _: Time, _: Time) -> Start {
        Start::Once
    }

    fn run(self: Box<Self>, firing: &Firing<'_, K, S>, after: &mut After<K, S>) {
        let told = AsyncFiring {
            handle: firing.handle.clone(),
            key: firing.key.clone(),
            id: firing.id,
            deadline: firing.deadline,
            started: firing.started,
        };
        let for_future = told.clone();
        let run = match after {
            After::Ends => {
                let engine = firing.handle.engine();
                let run = Detached::new(engine, firing.id.stripe, firing.id.entry);
                *after = After::Left;
                Some(run)
            }
            _ => None,
        };
        let Spawn { make, runtime } = *self;
        drop(runtime.spawn(Carry {
            future: Some(Box::pin(async move { make(for_future).await })),
            told,
            run,
        }));
    }

    fn rounds(&mut self) -> Option<&mut dyn Rounds<K, S>> {
        None
    }
}

type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs the future to its end.
struct Carry<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Until it is ready, or dropped.
    future: Option<Boxed>,
    told: AsyncFiring<K, S>,
    run: Option<Detached<Keyed<K, S>>>,
}

impl<K, S> Carry<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Does a part of the run, which is user code.
    fn proceed<R>(&mut self, part: impl FnOnce(&mut Option<Boxed>) -> R) -> Option<R> {
        let Carry { future, told, run } = self;
        let part = || {
            let ended = contain(|| part(future));
            if let Err(message) = &ended {
                let AsyncFiring {
                    handle,
                    key,
                    deadline,
                    ..
                } = told;
                let _ = contain(|| Keyed::tell_panic(handle, key, *deadline, message));
            }
            ended.ok()
        };
        let ended = match run {
            Some(run) => run.proceed(part),
            None => part(),
        };
        if let (None, Some(run)) = (&ended, run) {
            run.panicked();
        }
        ended
    }
}

/// The future goes before the run is settled, in every case: who waits for the run's end finds it
/// gone.
impl<K, S> Drop for Carry<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn drop(&mut self) {
        self.proceed(|future| *future = None);
    }
}

impl<K, S> Future for Carry<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let poll = |future: &mut Option<Boxed>| {
            let polled = (future.as_mut()).map_or(Poll::Ready(()), |f| f.as_mut().poll(context));
            if polled.is_ready() {
                *future = None;
            }
            polled
        };
        // After a panic there is nothing more to be done.
        self.get_mut().proceed(poll).unwrap_or(Poll::Ready(()))
    }
}

/// A key is moved, never pinned.
impl<K, S> Unpin for Carry<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
}

impl<K, S> AsyncFiring<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// The key under which the task was scheduled.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Names the arming that runs.
    #[must_use]
    pub fn id(&self) -> TimerId {
        self.id
    }

    /// When it was due.
    #[must_use]
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// How long after its deadline it was spawned.
    #[must_use]
    pub fn lateness(&self) -> Duration {
        self.started.since(self.deadline)
    }

    /// Like [`Firing::is_cancelled`]. False when the run has ended.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.handle.is_run_cancelled(self.id)
    }

    /// Ready when somebody has cancelled the key since this run started, or when the run has ended:
    /// what a run that may take long selects on, beside whatever it awaits.
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
    /// assert!(timers.handle().cancel_and_wait_async(&7).await.is_ok());
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn cancelled(&self) -> Cancelled<K, S> {
        let id = self.id;
        Cancelled(CancellationOfRun::new(
            self.handle.engine(),
            id.stripe,
            id.entry,
        ))
    }

    /// The scheduler that runs the task.
    #[must_use]
    pub fn handle(&self) -> &Handle<K, S> {
        &self.handle
    }
}

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

impl<K, S> fmt::Debug for AsyncFiring<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncFiring")
            .field("id", &self.id)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
