//! The view that a task has of its run.

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

/// Defines the methods by which a task sees its run: those of [`Firing`], of the rounds, and of what
/// futures have in the place of both. `$firing` is the field with the run, in the view of a round.
macro_rules! run_methods {
    ($View:ty $(, $firing:ident)?) => {
        impl<K, S> $View
        where
            K: Clone + Send + 'static,
            S: std::hash::BuildHasher + Send + Sync + 'static,
        {
            /// Returns the key under which the task was scheduled.
            #[must_use]
            pub fn key(&self) -> &K {
                &self$(.$firing)?.key
            }

            /// Returns the id of the arming that runs. Each round of a repeating timer is an arming
            /// of its own.
            ///
            /// # Examples
            ///
            /// A closure that finds itself:
            ///
            /// ```
            /// # use std::time::Duration;
            /// # use tourbillon::Scheduler;
            /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
            /// let timers = scheduler.handle();
            /// timers.schedule("poll", Duration::from_secs(1), |firing| {
            ///     let running = firing.handle().get("poll").map(|info| info.id);
            ///     assert_eq!(running, Some(firing.id()));
            /// })?;
            /// assert_eq!(scheduler.advance(Duration::from_secs(1)).len(), 1);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            #[must_use]
            pub fn id(&self) -> $crate::scheduler::answers::TimerId {
                self$(.$firing)?.id
            }

            /// Returns when the task was due.
            ///
            /// # Examples
            ///
            /// A closure that runs again a minute after it was due, however late it is:
            ///
            /// ```
            /// # use std::time::Duration;
            /// # use tourbillon::Scheduler;
            /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
            /// let timers = scheduler.handle();
            /// let minute = Duration::from_secs(60);
            /// timers.schedule("poll", minute, move |firing| {
            ///     let _ = firing.handle().schedule("poll", firing.deadline() + minute, |_| ());
            /// })?;
            /// assert_eq!(scheduler.advance(2 * minute).len(), 2);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            #[must_use]
            pub fn deadline(&self) -> $crate::tick::Time {
                self$(.$firing)?.deadline
            }

            /// Returns how long after its deadline the task started, or its future was spawned. Never
            /// negative. With the default clock it may be up to 1 ms too small, as
            /// [`Clock::fast`](crate::Clock::fast) says.
            ///
            /// # Examples
            ///
            /// A closure that says when it is late:
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
            pub fn lateness(&self) -> std::time::Duration {
                let run = &self$(.$firing)?;
                run.started.since(run.deadline)
            }

            /// Returns whether the key was cancelled since this run started. A long task may check
            /// this and end early. A repeating task that was cancelled gets no further round.
            /// Returns false when the run has ended. Takes one stripe's lock for a moment.
            ///
            /// # Examples
            ///
            /// A closure that ends early:
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
                let run = &self$(.$firing)?;
                run.handle.is_run_cancelled(run.id)
            }

            /// Returns the scheduler that runs the task.
            ///
            /// # Examples
            ///
            /// A closure that runs once more, after twice the pause:
            ///
            /// ```
            /// # use std::time::Duration;
            /// # use tourbillon::Scheduler;
            /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
            /// let timers = scheduler.handle();
            /// timers.schedule("poll", Duration::from_secs(1), |firing| {
            ///     let _ = firing.handle().schedule("poll", Duration::from_secs(2), |_| ());
            /// })?;
            /// assert_eq!(scheduler.advance(Duration::from_secs(3)).len(), 2);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            #[must_use]
            pub fn handle(&self) -> &$crate::scheduler::handle::Handle<K, S> {
                &self$(.$firing)?.handle
            }
        }
    };
}

/// The same for the view of a whole run, with its `Debug`.
macro_rules! run_view {
    ($View:ty, $name:literal) => {
        $crate::scheduler::firing::run_methods!($View);

        impl<K, S> std::fmt::Debug for $View {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct($name)
                    .field("id", &self.id)
                    .field("deadline", &self.deadline)
                    .field("started", &self.started)
                    .finish_non_exhaustive()
            }
        }
    };
}

/// The same for the view of a round, with the progress of the repetition.
macro_rules! round_view {
    ($View:ty, $name:literal) => {
        $crate::scheduler::firing::run_methods!($View, firing);

        impl<K, S> $View
        where
            K: Clone + Send + 'static,
            S: std::hash::BuildHasher + Send + Sync + 'static,
        {
            /// Returns the number of this round among those that ran; the first is 1.
            #[must_use]
            pub fn number(&self) -> u64 {
                self.progress.number
            }

            /// Returns the number of rounds of a fixed rate that were skipped for good since the
            /// round before, or since the first point of the grid; see [`Missed`](crate::Missed).
            /// All of them were due before this round's own [deadline](Self::deadline). Rounds that
            /// are made up are not counted. The number is 0 for fixed delays and schedule
            /// functions.
            #[must_use]
            pub fn missed(&self) -> u64 {
                self.progress.missed
            }

            /// Returns the date that this round stands for, exactly as the
            /// [calendar](crate::Period::calendar) gave it, however late the round has started.
            /// Returns `None` for other periods, and for a round that stands for no date: one by
            /// [`first`](crate::Period::first) or [`run_now`](crate::Handle::run_now), one that a
            /// call or the task has moved, and one that a shutdown runs early.
            #[must_use]
            pub fn scheduled_for(&self) -> Option<std::time::SystemTime> {
                self.progress.scheduled_for
            }
        }

        impl<K, S> std::fmt::Debug for $View {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct($name)
                    .field("firing", &self.firing)
                    .field("number", &self.progress.number)
                    .field("missed", &self.progress.missed)
                    .finish()
            }
        }
    };
}

#[cfg(feature = "tokio")]
pub(super) use run_view;
pub(super) use {round_view, run_methods};

run_view!(Firing<'_, K, S>, "Firing");
