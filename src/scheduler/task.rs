//! The task of a key: a closure that runs once, or one that may run again.

use std::fmt;
use std::hash::BuildHasher;

use super::firing::Firing;
use super::hasher::RandomState;
use super::repeat::{Cadence, Next};
use crate::clock::ClaimReading;
use crate::job::prefetch;
use crate::shard::Start;
use crate::tick::Time;

/// A boxed task, as reports return it.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon::{Scheduler, Shutdown, Task};
///
/// let scheduler = Scheduler::<&str>::new()?;
/// let timers = scheduler.handle();
/// timers.schedule("report", Duration::from_secs(60), |_| println!("report"))?;
/// let report = scheduler.shutdown(Shutdown::HandBack).wait()?;
/// let tasks: Vec<Task<&str>> = report.handed_back.into_iter().map(|timer| timer.task).collect();
/// // Another scheduler can run the tasks.
/// let other = Scheduler::<&str>::new()?;
/// for task in tasks {
///     other.handle().schedule("report", Duration::ZERO, |firing| task.run(firing))?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Task<K, S = RandomState>(Box<dyn RunTask<K, S>>);

const _: () = assert!(size_of::<Task<u64>>() == 16);

/// The content of the box. The two kinds of tasks are behind one pointer, since a tag next to it
/// would make the entry of every timer larger.
pub(crate) trait RunTask<K, S>: Send {
    /// Decides how the task starts. Called under the stripe's lock, so it must not run user code.
    fn start(&mut self, deadline: Time, present: &mut ClaimReading<'_>) -> Start;

    /// Makes the pending round of a task that repeats, which is due at `kept`, an extra round that
    /// is due at `at`. Called under the stripe's lock, so it must not run user code. Does nothing
    /// for other tasks.
    fn run_now(&mut self, kept: Time, at: Time) {
        let _ = (kept, at);
    }

    /// Reads the task, so that it is in the cache of this processor. Called under the stripe's
    /// lock, so it must not run user code.
    fn prefetch(&mut self);

    /// Returns whether the task only spawns a future.
    fn only_spawns(&self) -> bool {
        false
    }

    /// Runs the task for the last time. A task that continues after this call takes the run along
    /// and sets `detached`. `None` means that the run is part of another run, which the task must
    /// leave alone.
    fn run(self: Box<Self>, firing: &Firing<'_, K, S>, detached: Option<&mut bool>);

    /// Runs a round of a task that may run again. Afterwards the cadence knows the answer, or that
    /// there is none because the round panicked. Does nothing for other tasks.
    fn round(&mut self, _: &Firing<'_, K, S>) {}

    /// Returns the cadence of a task that may run again.
    fn cadence(&mut self) -> Option<&mut Cadence> {
        None
    }

    /// Returns how the worker runs it. One call, since it is on the way of each run.
    fn rounds(&self) -> Rounds {
        Rounds::None
    }

    /// Returns the cadence of a task whose rounds a calendar says (REPEAT-5).
    fn calendar(&mut self) -> Option<&mut Cadence> {
        None
    }
}

/// How a worker runs a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rounds {
    /// Once.
    None,
    /// In rounds.
    Here,
    /// A calendar is asked first (REPEAT-5).
    ByCalendar,
}

/// A task that runs once.
pub(super) struct Once<F>(pub(super) F);

impl<K, S, F> RunTask<K, S> for Once<F>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    F: FnOnce(&Firing<'_, K, S>) + Send + 'static,
{
    fn start(&mut self, _: Time, _: &mut ClaimReading<'_>) -> Start {
        Start::Once
    }

    fn prefetch(&mut self) {
        prefetch(&mut self.0);
    }

    fn run(self: Box<Self>, firing: &Firing<'_, K, S>, _: Option<&mut bool>) {
        let Once(task) = *self;
        task(firing);
    }
}

impl<K, S> Task<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    pub(super) fn of(work: Box<dyn RunTask<K, S>>) -> Self {
        Task(work)
    }

    /// Decides how the task starts. Called under the stripe's lock.
    pub(super) fn start(&mut self, deadline: Time, present: &mut ClaimReading<'_>) -> Start {
        self.0.start(deadline, present)
    }

    /// Makes the pending round of a task that repeats an extra round. Called under the stripe's
    /// lock.
    pub(super) fn run_now(&mut self, kept: Time, at: Time) {
        self.0.run_now(kept, at);
    }

    /// Returns whether the task only spawns a future. Called under the stripe's lock.
    pub(super) fn only_spawns(&self) -> bool {
        self.0.only_spawns()
    }

    /// Reads the task into the cache. Called under the stripe's lock.
    pub(super) fn prefetch(&mut self) {
        self.0.prefetch();
    }

    /// Runs a task that runs once, and sets `detached` if the run continues.
    pub(super) fn run_once(self, firing: &Firing<'_, K, S>, detached: &mut bool) {
        self.0.run(firing, Some(detached));
    }

    /// Runs a round of a task that may run again.
    pub(super) fn round(&mut self, firing: &Firing<'_, K, S>) {
        self.0.round(firing);
    }

    /// Returns the cadence of a task that may run again.
    pub(super) fn cadence(&mut self) -> Option<&mut Cadence> {
        self.0.cadence()
    }

    pub(super) fn rounds(&self) -> Rounds {
        self.0.rounds()
    }

    pub(super) fn calendar(&mut self) -> Option<&mut Cadence> {
        self.0.calendar()
    }

    /// Runs the task. Use it to run a task that was handed back from inside a new task. For a
    /// repeating task, this runs one more round, then drops the task and the round's answer. A task
    /// that is a future is spawned on its runtime, and the run around it does not wait for it.
    ///
    /// # Panics
    ///
    /// Panics if the task does.
    pub fn run(self, firing: &Firing<'_, K, S>) {
        // The run belongs to the task around this one, and ends when that task returns.
        self.0.run(firing, None);
    }

    /// Runs one round of a task that was given to [`Handle::repeat`](crate::Handle::repeat), keeps
    /// the task and returns its answer. With this, a task that was handed back can continue under
    /// another scheduler. The task continues to count its rounds. It does not learn which rounds
    /// were missed under the other scheduler. Returns `None` for a task that runs once, and does
    /// not run it.
    ///
    /// # Panics
    ///
    /// Panics if the task does. The task can run again afterwards.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Next, Period, Scheduler, Shutdown};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let second = Duration::from_secs(1);
    /// let before = Scheduler::<&str>::builder().build_stepped(1)?;
    /// before.handle().repeat("beat", Period::fixed_rate(second), |_| ())?;
    /// let mut report = before.shutdown(Shutdown::HandBack);
    /// let mut task = report.handed_back.remove(0).task;
    ///
    /// let after = Scheduler::<&str>::builder().build_stepped(1)?;
    /// after.handle().repeat("beat", Period::fixed_rate(second), move |round| {
    ///     task.run_round(round.firing()).unwrap_or(Next::Stop)
    /// })?;
    /// assert_eq!(after.advance(3 * second).len(), 3);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "the answer says whether and when the task wants to run again"]
    pub fn run_round(&mut self, firing: &Firing<'_, K, S>) -> Option<Next> {
        // A task that runs once does nothing here, and has no cadence.
        self.0.round(firing);
        self.0.cadence()?.take_answer()
    }
}

impl<K, S> fmt::Debug for Task<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Task(..)")
    }
}
