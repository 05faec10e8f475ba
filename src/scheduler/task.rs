//! The task of a key: a closure that runs once, or one that may run again.

use std::fmt;
use std::hash::BuildHasher;

use super::firing::Firing;
use super::hasher::RandomState;
use super::repeat::{Next, Rhythm};
use crate::shard::Start;
use crate::tick::Time;

/// A boxed task, as reports hand it back.
pub struct Task<K, S = RandomState>(Box<dyn Work<K, S>>)
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static;

/// What is in the box. Two kinds behind one pointer: a tag beside it would make the entry of every
/// timer larger.
pub(crate) trait Work<K, S>: Send
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// How it starts. Asked under the stripe's lock, so no user code.
    fn start(&mut self, deadline: Time, now: Time) -> Start;

    /// Runs. What may run again puts itself into `after` before: there a panic does not reach it.
    fn run(self: Box<Self>, firing: &Firing<'_, K, S>, after: &mut After<K, S>);

    /// Itself, if it may run again.
    fn rounds(&mut self) -> Option<&mut dyn Rounds<K, S>>;
}

/// A task that may run again.
pub(crate) trait Rounds<K, S>: Work<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Runs a round. The rhythm knows the answer afterwards; or that there is none, if it panics.
    fn round(&mut self, firing: &Firing<'_, K, S>);

    fn rhythm(&mut self) -> &mut Rhythm;
}

/// What becomes of a run when the call that began it has returned.
pub(crate) enum After<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// It has ended, unless it says otherwise.
    Ends,
    /// It has ended, whatever it says: it is part of another one.
    MustEnd,
    /// So has this one, and the task may run again.
    Stays(Box<dyn Rounds<K, S>>),
    /// It goes on, and whoever has it now settles it.
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
            _ => unreachable!("it was put there"),
        }
    }
}

/// Runs once.
pub(super) struct Once<F>(pub(super) F);

impl<K, S, F> Work<K, S> for Once<F>
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
    pub(super) fn of(work: Box<dyn Work<K, S>>) -> Self {
        Task(work)
    }

    /// How it starts; under the stripe's lock.
    pub(super) fn start(&mut self, deadline: Time, now: Time) -> Start {
        self.0.start(deadline, now)
    }

    /// Runs it. What may run again is in `after` afterwards, also if it panics.
    pub(super) fn run_staying(self, firing: &Firing<'_, K, S>, after: &mut After<K, S>) {
        self.0.run(firing, after);
    }

    /// Runs the task; for one that was handed back, from within a new one. Of a repeating task this
    /// is one more round, whose answer is dropped with the task. A task that is a future is spawned
    /// on its runtime, and the run around it does not wait for it.
    ///
    /// # Panics
    ///
    /// If the task does.
    pub fn run(self, firing: &Firing<'_, K, S>) {
        // The run is that of the task around it, which ends as it likes.
        self.0.run(firing, &mut After::MustEnd);
    }

    /// Runs one round of a task that was given to [`Handle::repeat`](crate::Handle::repeat), and
    /// keeps it: what was handed back goes on under another scheduler, by its answer. It goes on
    /// counting its rounds; what was missed under the other scheduler it is not told. `None` for a
    /// task that runs once; it has not run.
    ///
    /// # Panics
    ///
    /// If the task does; it can run again then.
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
        rounds.rhythm().take_answer()
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
