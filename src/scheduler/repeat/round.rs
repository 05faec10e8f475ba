//! A task's view of its round.

use std::fmt;
use std::hash::BuildHasher;
use std::ops::Deref;

use super::super::firing::Firing;
use super::super::hasher::RandomState;

/// A round of a repeating task, as the task sees it. It dereferences to the [`Firing`] of the run
/// and adds the progress of the repetition.
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
    /// Returns the run: key, id, deadline, lateness, whether it was cancelled, and the scheduler's
    /// handle.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{Period, Scheduler};
    ///
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// timers.repeat("beat", Period::fixed_rate(Duration::from_secs(5)), |round| {
    ///     println!("{} ran {:?} late", round.firing().key(), round.firing().lateness());
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn firing(&self) -> &'a Firing<'a, K, S> {
        self.firing
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

impl<'a, K, S> Deref for Round<'a, K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    type Target = Firing<'a, K, S>;

    fn deref(&self) -> &Firing<'a, K, S> {
        self.firing
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
