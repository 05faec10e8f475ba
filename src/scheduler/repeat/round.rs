//! A task's view of its round.

use std::fmt;
use std::hash::BuildHasher;
use std::time::Duration;

use super::super::answers::TimerId;
use super::super::firing::Firing;
use super::super::handle::Handle;
use super::super::hasher::RandomState;
use crate::tick::Time;

/// A round of a repeating task, as the task sees it: the methods of its run, which is a [`Firing`],
/// and the progress of the repetition.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{Next, Period, Scheduler};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// let second = Duration::from_secs(1);
/// scheduler.handle().repeat("beat", Period::fixed_rate(second), |round| {
///     println!("{}, round {}, {:?} late", round.key(), round.number(), round.lateness());
///     if round.number() < 5 { Next::Again } else { Next::Stop }
/// })?;
/// assert_eq!(scheduler.advance(60 * second).len(), 5);
/// # Ok(())
/// # }
/// ```
pub struct Round<'a, K, S = RandomState> {
    pub(super) firing: &'a Firing<'a, K, S>,
    pub(super) number: u64,
    pub(super) missed: u64,
}

impl<'a, K, S> Round<'a, K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns the run, for functions that take a [`Firing`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{Firing, Period, Scheduler};
    ///
    /// fn log(run: &Firing<'_, &'static str>) {
    ///     println!("{} ran {:?} late", run.key(), run.lateness());
    /// }
    /// # let scheduler = Scheduler::<&'static str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// timers.repeat("beat", Period::fixed_rate(Duration::from_secs(5)), |round| {
    ///     log(round.firing());
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn firing(&self) -> &'a Firing<'a, K, S> {
        self.firing
    }

    /// As [`Firing::key`].
    #[must_use]
    pub fn key(&self) -> &K {
        self.firing.key()
    }

    /// As [`Firing::id`]: that of this round alone.
    #[must_use]
    pub fn id(&self) -> TimerId {
        self.firing.id()
    }

    /// As [`Firing::deadline`].
    #[must_use]
    pub fn deadline(&self) -> Time {
        self.firing.deadline()
    }

    /// As [`Firing::lateness`].
    #[must_use]
    pub fn lateness(&self) -> Duration {
        self.firing.lateness()
    }

    /// As [`Firing::is_cancelled`].
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.firing.is_cancelled()
    }

    /// As [`Firing::handle`].
    #[must_use]
    pub fn handle(&self) -> &Handle<K, S> {
        self.firing.handle()
    }

    /// Returns the number of this round among those that ran; the first is 1.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the number of rounds of a fixed rate that were skipped for good since the round
    /// before, or since the first point of the grid; see [`Missed`](super::Missed). All of them
    /// were due before this round's own [deadline](Firing::deadline). Rounds that are made up are
    /// not counted. The number is 0 for fixed delays and schedule functions.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

impl<K, S> fmt::Debug for Round<'_, K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Round")
            .field("firing", self.firing)
            .field("number", &self.number)
            .field("missed", &self.missed)
            .finish()
    }
}
