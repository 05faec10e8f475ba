//! The view that a task has of its run.

use std::fmt;
use std::hash::BuildHasher;
use std::time::Duration;

use super::answers::TimerId;
use super::handle::Handle;
use super::hasher::RandomState;
use crate::tick::Time;

/// A run of a task, as the task sees it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::Scheduler;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// let timers = scheduler.handle();
/// timers.schedule("beat", Duration::from_secs(1), |firing| {
///     assert_eq!(*firing.key(), "beat");
///     // Runs again in a second; the run in progress ends first.
///     let again = firing.handle().schedule("beat", Duration::from_secs(1), |_| ());
///     assert!(again.unwrap().after_run);
/// })?;
/// assert_eq!(scheduler.advance(Duration::from_secs(3)).len(), 2);
/// # Ok(())
/// # }
/// ```
pub struct Firing<'a, K, S = RandomState> {
    pub(super) handle: &'a Handle<K, S>,
    pub(super) key: &'a K,
    pub(super) id: TimerId,
    pub(super) deadline: Time,
    pub(super) started: Time,
}

impl<K, S> Firing<'_, K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns the key under which the task was scheduled.
    #[must_use]
    pub fn key(&self) -> &K {
        self.key
    }

    /// Returns the id of the arming that runs.
    #[must_use]
    pub fn id(&self) -> TimerId {
        self.id
    }

    /// Returns when the task was due.
    #[must_use]
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// Returns how long after its deadline the task started.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::new()?;
    /// # let timers = scheduler.handle();
    /// timers.schedule("report", Duration::from_secs(60), |firing| {
    ///     if firing.lateness() > Duration::from_secs(1) {
    ///         eprintln!("{} is {:?} late", firing.key(), firing.lateness());
    ///     }
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn lateness(&self) -> Duration {
        self.started.since(self.deadline)
    }

    /// Returns whether the key was cancelled since this run started. A long task may check this and
    /// end early. A repeating task that was cancelled gets no further round. Takes one stripe's
    /// lock for a moment.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::new()?;
    /// # let timers = scheduler.handle();
    /// timers.schedule("import", Duration::ZERO, |firing| {
    ///     for _row in 0..1_000_000 {
    ///         if firing.is_cancelled() {
    ///             return;
    ///         }
    ///         // .. import the row ..
    ///     }
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.handle.is_run_cancelled(self.id)
    }

    /// Returns the scheduler that runs the task.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// timers.schedule("poll", Duration::from_secs(1), |firing| {
    ///     // Twice the pause after the first attempt.
    ///     let _ = firing.handle().schedule("poll", Duration::from_secs(2), |_| ());
    /// })?;
    /// assert_eq!(scheduler.advance(Duration::from_secs(3)).len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn handle(&self) -> &Handle<K, S> {
        self.handle
    }
}

impl<K, S> fmt::Debug for Firing<'_, K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Firing")
            .field("id", &self.id)
            .field("deadline", &self.deadline)
            .field("started", &self.started)
            .finish_non_exhaustive()
    }
}
