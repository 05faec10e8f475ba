//! The task of a key: a closure that runs once, or one that may run again.

use std::fmt;
use std::hash::BuildHasher;

use super::firing::Firing;
use super::hasher::RandomState;
use super::repeat::{Cadence, Next};
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
/// let report = scheduler.shutdown(Shutdown::HandBack).expect("not called from a task");
/// let tasks: Vec<Task<&str>> = report.handed_back.into_iter().map(|timer| timer.task).collect();
/// // Another scheduler can run the tasks.
/// let other = Scheduler::<&str>::new()?;
/// for task in tasks {
///     other.handle().schedule("report", Duration::ZERO, |firing| task.run(firing))?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Task<K, S = RandomState>(Box<dyn RunTask<K, S>>);

/// The content of the box. The two kinds of tasks are behind one pointer, since a tag next to it
/// would make the entry of every timer larger.
pub(crate) trait RunTask<K, S>: Send {
    /// Decides how the task starts. Called under the stripe's lock, so it must not run user code.
    fn start(&mut self, deadline: Time, now: Time) -> Start;

    /// Runs the task. A task that may run again first moves into `after`, where a panic does not
    /// reach it.
    fn run(self: Box<Self>, firing: &Firing<'_, K, S>, after: &mut After<K, S>);

    /// Returns the task itself if it may run again.
    fn rounds(&mut self) -> Option<&mut dyn Rounds<K, S>>;
}

/// A task that may run again.
pub(crate) trait Rounds<K, S>: RunTask<K, S> {
    /// Runs a round. Afterwards the cadence knows the answer, or that there is none because the
    /// round panicked.
    fn round(&mut self, firing: &Firing<'_, K, S>);

    /// Returns the cadence.
    fn cadence(&mut self) -> &mut Cadence;
}

/// The state of a run when the call that began it has returned.
pub(crate) enum After<K, S> {
    /// The run has ended, unless the task changes this.
    Ends,
    /// The run has ended, whatever the task says, since it is part of another run.
    MustEnd,
    /// The run has ended, and the task may run again.
    Stays(Box<dyn Rounds<K, S>>),
    /// The run continues. Whoever holds it now completes it.
    #[cfg(feature = "tokio")]
    Left,
}

impl<K, S> After<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Keeps a task that may run again.
    pub(super) fn stay(&mut self, rounds: Box<dyn Rounds<K, S>>) -> &mut dyn Rounds<K, S> {
        *self = After::Stays(rounds);
        match self {
            After::Stays(rounds) => rounds.as_mut(),
            _ => unreachable!("the line above put it there"),
        }
    }
}

/// A task that runs once.
pub(super) struct Once<F>(pub(super) F);

impl<K, S, F> RunTask<K, S> for Once<F>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    F: FnOnce(&Firing<'_, K, S>) + Send + 'static,
{
    fn start(&mut self, _: Time, _: Time) -> Start {
        Start::Once
    }

    fn run(self: Box<Self>, firing: &Firing<'_, K, S>, _: &mut After<K, S>) {
        let Once(task) = *self;
        task(firing);
    }

    fn rounds(&mut self) -> Option<&mut dyn Rounds<K, S>> {
        None
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
    pub(super) fn start(&mut self, deadline: Time, now: Time) -> Start {
        self.0.start(deadline, now)
    }

    /// Runs the task. A task that may run again is in `after` afterwards, even if it panics.
    pub(super) fn run_staying(self, firing: &Firing<'_, K, S>, after: &mut After<K, S>) {
        self.0.run(firing, after);
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
        self.0.run(firing, &mut After::MustEnd);
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
    ///     task.run_round(round).unwrap_or(Next::Stop)
    /// })?;
    /// assert_eq!(after.advance(3 * second).len(), 3);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "the answer says whether and when the task wants to run again"]
    pub fn run_round(&mut self, firing: &Firing<'_, K, S>) -> Option<Next> {
        let rounds = self.0.rounds()?;
        rounds.round(firing);
        rounds.cadence().take_answer()
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
