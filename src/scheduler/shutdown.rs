//! Shutdown as the user sees it. `engine/closing.rs` has the order of its steps.

use std::fmt;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::hasher::RandomState;
use super::task::Task;
use crate::bounded_channel::{BoundedReceiver, bounded_channel};
use crate::engine::Ending;
use crate::sync::channel::TryRecvError;
use crate::tick::Time;

/// The result of a shutdown.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon::{Scheduler, Shutdown};
///
/// let scheduler = Scheduler::<&str>::new()?;
/// let timers = scheduler.handle();
/// timers.schedule("report", Duration::from_secs(60), |_| ())?;
/// let report = scheduler.shutdown(Shutdown::HandBack).expect("not called from a task");
/// for timer in &report.handed_back {
///     println!("{} was due at {:?}", timer.key, timer.deadline);
/// }
/// assert_eq!(report.handed_back.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
pub struct Report<K, S = RandomState> {
    /// The timers that had not started, in no particular order.
    pub handed_back: Vec<HandedBack<K, S>>,
    /// The number of threads that were still in user code when the limit had passed: in a task, or
    /// in code that follows one (the drop of its key, the handler of its panic, a waker). If there
    /// was no such thread, the number of threads in a foreign executor that was given a batch.
    /// These threads end when that code ends.
    pub still_running: usize,
    /// Whether another call had begun the shutdown. That call gets the report.
    pub already_closed: bool,
}

/// A timer that did not run and was not cancelled.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon::{Scheduler, Shutdown};
///
/// let scheduler = Scheduler::<&str>::new()?;
/// let timers = scheduler.handle();
/// timers.schedule("report", Duration::from_secs(60), |_| ())?;
/// let mut report = scheduler.shutdown(Shutdown::HandBack).expect("not called from a task");
/// let timer = report.handed_back.pop().expect("the timer had not started");
/// assert_eq!(timer.key, "report");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
pub struct HandedBack<K, S = RandomState> {
    /// The key of the timer.
    pub key: K,
    /// When the timer was due.
    pub deadline: Time,
    /// The task. The task of a repeating timer can continue by [`Task::run_round`].
    pub task: Task<K, S>,
}

/// Yields the report of a shutdown that was called from inside a task, or that was only begun. It
/// is also a future.
///
/// # Examples
///
/// ```
/// use tourbillon::{Scheduler, Shutdown};
///
/// let scheduler = Scheduler::<&str>::new()?;
/// let ticket = scheduler.begin_shutdown(Shutdown::HandBack);
/// // .. close everything else meanwhile ..
/// let report = ticket.wait();
/// assert_eq!(report.still_running, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the report holds what did not run"]
pub struct ReportTicket<R>(BoundedReceiver<R>);

impl<R: Default> ReportTicket<R> {
    pub(crate) fn new(report: BoundedReceiver<R>) -> Self {
        ReportTicket(report)
    }

    /// Makes the ticket for a call that comes after the end: it yields an empty report.
    pub(crate) fn done() -> Self {
        let (_, nothing) = bounded_channel(1);
        ReportTicket(nothing)
    }

    /// Waits for the report and returns it.
    ///
    /// # Blocking
    ///
    /// Blocks until the shutdown has ended. In the task that called for the shutdown, that is at
    /// its limit.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{Scheduler, Shutdown};
    ///
    /// let scheduler = Scheduler::<&str>::new()?;
    /// let timers = scheduler.handle();
    /// timers.schedule("report", Duration::from_secs(60), |_| ())?;
    /// let report = scheduler.begin_shutdown(Shutdown::HandBack).wait();
    /// assert_eq!(report.handed_back.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn wait(self) -> R {
        self.0.recv().unwrap_or_default()
    }

    /// Returns the report if it is there.
    ///
    /// # Errors
    ///
    /// Returns the ticket while the shutdown is in progress.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::{Scheduler, Shutdown};
    ///
    /// let scheduler = Scheduler::<&str>::new()?;
    /// let timers = scheduler.handle();
    /// match scheduler.begin_shutdown(Shutdown::HandBack).try_wait() {
    ///     Ok(report) => println!("{} timers came back", report.handed_back.len()),
    ///     Err(ticket) => drop(ticket), // or ask again later
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_wait(self) -> Result<R, Self> {
        match self.0.try_recv() {
            Ok(report) => Ok(report),
            Err(TryRecvError::Empty) => Err(self),
            Err(TryRecvError::Disconnected) => Ok(R::default()),
        }
    }
}

/// Yields the report. Dropping the future changes nothing. It must not be polled again after it was
/// ready.
impl<R: Default> Future for ReportTicket<R> {
    type Output = R;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<R> {
        self.0.poll(context).map(Option::unwrap_or_default)
    }
}

impl<K, S> Default for Report<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Makes the report of every call except the first.
    fn default() -> Self {
        Report {
            handed_back: Vec::new(),
            still_running: 0,
            already_closed: true,
        }
    }
}

impl<K, S> Report<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    pub(crate) fn of(ending: Option<Ending<K, Task<K, S>>>) -> Self {
        let Some(ending) = ending else {
            return Report::default();
        };
        Report {
            handed_back: ending
                .taken
                .into_iter()
                // A timer whose key could not be cloned has no key. It counts as cancelled.
                .filter_map(|(key, deadline, task)| {
                    key.map(|key| HandedBack {
                        key,
                        deadline,
                        task,
                    })
                })
                .collect(),
            still_running: ending.still_running,
            already_closed: false,
        }
    }
}

impl<K, S> fmt::Debug for Report<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Report")
            .field("handed_back", &self.handed_back.len())
            .field("still_running", &self.still_running)
            .field("already_closed", &self.already_closed)
            .finish()
    }
}

impl<K, S> fmt::Debug for HandedBack<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandedBack")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl<R> fmt::Debug for ReportTicket<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReportTicket(..)")
    }
}
