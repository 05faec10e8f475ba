//! Repeating timers whose rounds are futures: `OnTokio::repeat`.

use std::hash::{BuildHasher, Hash};

use tokio::runtime;

use super::super::answers::Scheduled;
use super::super::firing::Firing;
use super::super::handle::Upsert;
use super::super::repeat::{Cadence, IntoNext, Next, Period};
use super::super::task::{Rounds, RunTask, Task};
use super::carry::{AsyncRounds, Boxed, spawn_round};
use super::round::AsyncRound;
use super::{AsyncFiring, OnTokio};
use crate::clock::ClaimReading;
use crate::error::ScheduleError;
use crate::job::prefetch;
use crate::shard::Start;
use crate::tick::Time;

impl<K, S> OnTokio<K, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Like [`Handle::repeat`](crate::Handle::repeat): calls `make` for each round, and awaits the
    /// future that it returns. Both run on the runtime. The future's output says whether and when
    /// the next round follows.
    ///
    /// A round lasts until its future is ready, has panicked, or was dropped by its runtime. So
    /// rounds of one key never overlap. All calls act as in the table of `Handle::repeat`. A
    /// cancelled round continues, but is notified: select on [`AsyncFiring::cancelled`].
    ///
    /// A runtime that has been shut down drops the future before it is ready. That ends the
    /// repetition, since no later round could run.
    ///
    /// A closure `async |round| ..` that captures something does not compile here, also after
    /// `move`: *async closure does not implement `FnMut` because it captures state from its
    /// environment*. Its futures would borrow from it. The way out is a closure that clones what a
    /// round needs, and returns an `async move` block, as in the example. State that rounds change
    /// belongs into an `Arc`.
    ///
    /// A shutdown hands the task back only between two rounds. Its
    /// [`run`](crate::Task::run) spawns one more round, and
    /// [`run_round`](crate::Task::run_round) returns `None`.
    ///
    /// # Errors
    ///
    /// As for [`Handle::repeat`](crate::Handle::repeat). The error contains `make`.
    ///
    /// # Panics
    ///
    /// As for [`Handle::repeat`](crate::Handle::repeat).
    ///
    /// # Complexity
    ///
    /// As for [`Handle::repeat`](crate::Handle::repeat). Each round is spawned, and its future is
    /// boxed.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Next, Period, Scheduler};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// let scheduler = Scheduler::<&str>::builder().workers(1).build()?;
    /// let timers = scheduler.handle().on_tokio(tokio::runtime::Handle::current());
    /// let (send, mut beats) = tokio::sync::mpsc::channel(1);
    /// let period = Period::fixed_rate(Duration::from_millis(20));
    /// timers.repeat("heartbeat", period, move |round| {
    ///     let send = send.clone();
    ///     async move {
    ///         match send.send(round.number()).await {
    ///             Ok(()) => Next::Again,
    ///             Err(_) => Next::Stop,
    ///         }
    ///     }
    /// })?;
    /// assert_eq!(beats.recv().await, Some(1));
    /// assert_eq!(beats.recv().await, Some(2));
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn repeat<F, R>(
        &self,
        key: K,
        period: Period,
        make: F,
    ) -> Result<Scheduled, ScheduleError<F>>
    where
        F: FnMut(AsyncRound<K, S>) -> R + Send + 'static,
        R: Future<Output: IntoNext> + Send + 'static,
    {
        let (begun, make) = self.handle.begin_cadence(&key, period, make)?;
        let task = SpawnRounds {
            make,
            cadence: begun.cadence,
            runtime: self.runtime.clone(),
        };
        let (deadline, now) = (begun.deadline, begun.now);
        (self.handle).arm_task(key, task, deadline, now, Upsert::Always, |task| task.make)
    }
}

/// Makes and spawns the future of each round.
struct SpawnRounds<F> {
    make: F,
    cadence: Cadence,
    runtime: runtime::Handle,
}

impl<K, S, F, R> RunTask<K, S> for SpawnRounds<F>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    F: FnMut(AsyncRound<K, S>) -> R + Send + 'static,
    R: Future<Output: IntoNext> + Send + 'static,
{
    fn start(&mut self, deadline: Time, present: &mut ClaimReading<'_>) -> Start {
        self.cadence.start(deadline, present.exact())
    }

    fn run_now(&mut self, kept: Time, at: Time) {
        self.cadence.run_now(kept, at);
    }

    fn prefetch(&mut self) {
        prefetch(&mut self.make);
    }

    fn only_spawns(&self) -> bool {
        // A calendar is user code, which must not hold up a ticker.
        !self.cadence.has_calendar()
    }

    fn rounds(&self) -> Rounds {
        match self.cadence.has_calendar() {
            true => Rounds::ByCalendar,
            false => Rounds::None,
        }
    }

    fn calendar(&mut self) -> Option<&mut Cadence> {
        Some(&mut self.cadence).filter(|cadence| cadence.has_calendar())
    }

    /// Spawns a round. To the worker this is a task that runs once and continues elsewhere, so
    /// `RunTask::cadence` has none. The end of the round arms the next one.
    fn run(mut self: Box<Self>, firing: &Firing<'_, K, S>, detached: Option<&mut bool>) {
        let progress = self.cadence.begin_round();
        let runtime = self.runtime.clone();
        spawn_round(&runtime, AsyncFiring::of(firing), progress, detached, self);
    }
}

impl<K, S, F, R> AsyncRounds<K, S> for SpawnRounds<F>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    F: FnMut(AsyncRound<K, S>) -> R + Send + 'static,
    R: Future<Output: IntoNext> + Send + 'static,
{
    fn make(&mut self, round: AsyncRound<K, S>) -> Boxed<Next> {
        let future = (self.make)(round);
        Box::pin(async move { future.await.into_next() })
    }

    fn cadence(&mut self) -> &mut Cadence {
        &mut self.cadence
    }

    fn into_task(self: Box<Self>) -> Task<K, S> {
        Task::of(self)
    }
}
