//! A task's view of its round.

use std::hash::BuildHasher;

use super::super::firing::{Firing, round_view};
use super::super::hasher::RandomState;
use super::cadence::RoundInfo;

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
    pub(super) progress: RoundInfo,
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
}

round_view!(Round<'_, K, S>, "Round");
