//! The keyed front end: a closure per key.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | `Scheduler`, the owner of the threads |
//! | `builder.rs` | the options |
//! | `handle/`, `batch.rs`, `pending.rs` | the calls by key |
//! | `by_id.rs` | the calls on armings |
//! | `awaiting.rs`, `on_tokio/` | calls that are awaited; tasks that are futures |
//! | `answers.rs`, `firing.rs`, `guard.rs` | results of calls; a task's view of its run; a guard |
//! | `task.rs`, `repeat/` | closures that run once; timers that repeat |
//! | `frontend.rs` | the payload, and how it runs |
//! | `shutdown.rs`, `stats.rs`, `metrics.rs` | the reports |

mod answers;
mod awaiting;
mod batch;
mod builder;
mod by_id;
mod firing;
mod frontend;
mod guard;
mod handle;
mod hasher;
mod metrics;
#[cfg(feature = "tokio")]
mod on_tokio;
mod pending;
mod repeat;
mod shrinking;
mod shutdown;
mod stats;
mod task;

pub use answers::{Cancel, PullIn, Reschedule, Scheduled, TimerId, TimerInfo, TimerState};
pub use awaiting::CancelAndWait;
pub use builder::SchedulerBuilder;
pub use by_id::{ById, ByIds};
pub use firing::Firing;
#[cfg(any(test, feature = "test-util"))]
pub use frontend::Fired;
pub use frontend::TaskPanic;
pub use guard::CancelGuard;
pub use handle::Handle;
pub(crate) use hasher::hash_of;
pub use hasher::{KeyHasher, RandomState};
#[cfg(feature = "tokio")]
pub use on_tokio::{AsyncFiring, AsyncRound, Cancelled, OnTokio};
pub use pending::Pending;
pub use repeat::{AfterPanic, IntoNext, Missed, Next, Period, Round, SoFar};
#[cfg(feature = "cron")]
pub use repeat::{Cron, CronError};
pub(crate) use repeat::{DueRound, PUT_OFF_AT_MOST, plan};
pub use shutdown::{Closing, HandedBack, InsideTaskError, Report};
pub use stats::{ShardStats, Stats};
pub use task::Task;

pub(crate) use frontend::{OnPanic, SchedulerFrontend};
pub(crate) use metrics::{collector as metrics_collector, common as common_metrics, metrics_of};
pub(crate) use pending::next_deadline;
pub(crate) use stats::collect as collect_stats;
pub(crate) use stats::collect_with_lateness;
pub(crate) use stats::named_values;

use std::fmt;
use std::hash::BuildHasher;

use crate::engine::{Owner, Server, Shutdown};
use crate::error::BuildError;
use crate::sync::Arc;

/// Owns the threads of a keyed scheduler. Timers are scheduled through a [`Handle`].
///
/// Dropping a scheduler closes it without waiting, also inside one of its own tasks:
///
/// - Pending timers count as cancelled and are dropped.
/// - Running tasks continue to their end.
/// - Handles answer [`Closed`](crate::ScheduleError::Closed) from then on.
///
/// To wait, or to get the pending tasks back, use [`shutdown`](Self::shutdown).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{Scheduler, Shutdown};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let scheduler = Scheduler::<String>::builder().build()?;
/// let timers = scheduler.handle();
/// timers.schedule("session-7".to_owned(), Duration::from_secs(1800), |firing| {
///     println!("{} expired", firing.key());
/// })?;
/// timers.reschedule("session-7", Duration::from_secs(1800));
/// timers.cancel("session-7");
/// let report = scheduler.shutdown(Shutdown::HandBack).wait()?;
/// assert!(report.handed_back.is_empty());
/// # Ok(())
/// # }
/// ```
#[doc(alias("job", "cron", "DelayQueue"))]
pub struct Scheduler<K, S = RandomState> {
    /// Closes the scheduler. The first field, so that it is dropped first.
    _owner: Owner<SchedulerFrontend<K, S>>,
    server: Arc<Server<SchedulerFrontend<K, S>>>,
    handle: Handle<K, S>,
}

impl<K> Scheduler<K>
where
    K: Clone + Send + 'static,
{
    /// Starts a scheduler with default options, like `Scheduler::builder().build()`.
    ///
    /// # Errors
    ///
    /// [`BuildError::Spawn`] if a thread did not start.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::Scheduler;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let scheduler = Scheduler::<u64>::new()?;
    /// scheduler.handle().schedule(7, Duration::from_secs(5), |_| println!("too late"))?;
    /// assert!(scheduler.handle().cancel(&7).is_cancelled());
    /// # Ok(())
    /// # }
    /// ```
    pub fn new() -> Result<Self, BuildError> {
        Self::builder().build()
    }

    /// Returns a builder with default options.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::Scheduler;
    ///
    /// let scheduler = Scheduler::<u64>::builder()
    ///     .tick(Duration::from_millis(10))
    ///     .max_pending(1_000_000)
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder() -> SchedulerBuilder<K> {
        SchedulerBuilder::new()
    }
}

impl<K, S> Scheduler<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Makes the owner of a started engine.
    pub(crate) fn of(server: Arc<Server<SchedulerFrontend<K, S>>>) -> Self {
        let handle = Handle::new(Arc::clone(server.engine()));
        Scheduler {
            _owner: Owner::new(server.engine()),
            server,
            handle,
        }
    }

    /// Returns a handle, which any thread may use.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// let scheduler = Scheduler::<u64>::new()?;
    /// let timers = scheduler.handle();
    /// let timers = scheduler.handle();
    /// timers.schedule(7, Duration::from_secs(5), |_| println!("5 s have passed"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn handle(&self) -> Handle<K, S> {
        self.handle.clone()
    }

    /// Closes the scheduler, treats pending timers as `mode` says, and returns a report. Only the
    /// first call does this. Every later call, from any thread, returns an empty report at once,
    /// with [`Report::already_closed`] set.
    ///
    /// The shutdown runs on a thread of its own, which this call starts. So any thread may call it,
    /// also inside a task. The returned [`Closing`] yields the report: to a thread that waits for
    /// it, or to a task that awaits it.
    ///
    /// If the system refuses that thread, the threads of the shards end the scheduler, and the
    /// thread in [`Closing::wait`] helps them. Modes and limits are the same. There is one
    /// difference: with [`inline`](crate::SchedulerBuilder::inline) or an
    /// [`executor`](crate::SchedulerBuilder::executor), the threads of all shards may be in user
    /// code. Then the limits hold for a thread that waits, and a shutdown that nobody waits for, or
    /// that a task awaits, goes on when that user code returns.
    ///
    /// # Blocking
    ///
    /// Does not wait for a task. [`Closing::wait`] does, but no longer than the limits in `mode`
    /// and in the builder's `shutdown_limit`, both by the scheduler's clock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{Scheduler, Shutdown};
    ///
    /// let scheduler = Scheduler::<u64>::new()?;
    /// let timers = scheduler.handle();
    /// timers.schedule(7, Duration::ZERO, |_| println!("done"))?;
    /// // Pending timers still run. After 10 s the rest is handed back.
    /// let limit = Duration::from_secs(10);
    /// let closing = scheduler.shutdown(Shutdown::Drain { limit });
    /// assert!(timers.schedule(8, Duration::ZERO, |_| ()).is_err());
    /// assert!(closing.wait()?.handed_back.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shutdown(&self, mode: Shutdown) -> Closing<Report<K, S>> {
        Closing::begin(&self.server, mode, Report::of)
    }
}

impl<K, S> fmt::Debug for Scheduler<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler")
            .field("engine", self.server.engine())
            .finish_non_exhaustive()
    }
}
