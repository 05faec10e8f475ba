//! Shutdown as the user sees it. `engine/closing.rs` has the order of its steps.

use std::fmt;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::hasher::RandomState;
use super::task::Task;
use crate::bounded_channel::{BoundedReceiver, bounded_channel};
use crate::coop::YieldPoint;
use crate::engine::{Ending, Engine, Frontend, MakeReport, Server, Shutdown, task_scope};
use crate::shard::ReentrancyGuard;
use crate::sync::Arc;
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
/// let report = scheduler.shutdown(Shutdown::HandBack).wait()?;
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
    /// was none, threads that are still inside a foreign executor's `execute` are counted instead.
    /// These threads end when that code ends. With [`HandBack`](crate::Shutdown::HandBack), a run
    /// that ends just then is counted here, and what follows it is in `handed_back`, too.
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
/// let mut report = scheduler.shutdown(Shutdown::HandBack).wait()?;
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

/// A shutdown in progress, which yields the report.
///
/// A thread [waits](Self::wait) for the report, and a task awaits it. Dropping a `Closing` does not
/// stop the shutdown; what would have been handed back is then dropped.
///
/// # Examples
///
/// ```
/// use tourbillon::{ExpiryMap, Scheduler, Shutdown};
///
/// let scheduler = Scheduler::<&str>::new()?;
/// let sessions = ExpiryMap::<u64, &str>::builder().build(|_, _| ())?;
/// // Both end at the same time.
/// let timers = scheduler.shutdown(Shutdown::HandBack);
/// let entries = sessions.shutdown(Shutdown::HandBack);
/// assert_eq!(timers.wait()?.still_running, 0);
/// assert!(entries.wait()?.handed_back.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the report holds what did not run; `wait` for it, or await it"]
pub struct Closing<R> {
    report: BoundedReceiver<R>,
    /// `None` if it has ended.
    engine: Option<EndingEngine>,
    yield_point: YieldPoint,
}

/// The engine that ends.
struct EndingEngine {
    tag: u32,
    /// [`Engine::help_to_end`], while the engine has threads.
    help: Box<dyn Fn() + Send + Sync>,
}

impl<R: Default> Closing<R> {
    /// Begins to end an engine. `make_report` turns the ending into the report of its front end.
    pub(crate) fn begin<F: Frontend>(
        server: &Arc<Server<F>>,
        mode: Shutdown,
        make_report: MakeReport<F, R>,
    ) -> Self
    where
        R: Send + 'static,
    {
        let ends = Arc::downgrade(server);
        let help = move || {
            if let Some(server) = ends.upgrade() {
                server.engine().help_to_end();
            }
        };
        Closing {
            report: Engine::shut_down(server, mode, make_report),
            engine: Some(EndingEngine {
                tag: server.engine().tag(),
                help: Box::new(help),
            }),
            yield_point: YieldPoint::default(),
        }
    }

    /// Returns the answer to a call that comes after the end: it yields an empty report.
    pub(crate) fn done() -> Self {
        let (_, report) = bounded_channel(1);
        Closing {
            report,
            engine: None,
            yield_point: YieldPoint::default(),
        }
    }

    /// Waits for the report and returns it. If the system has refused the thread of the shutdown,
    /// the calling thread does its work.
    ///
    /// # Errors
    ///
    /// [`InsideTaskError`] if this is called inside a task of the scheduler, timer or map that
    /// ends, or inside a map's handler, and the shutdown has not ended. It would wait for that
    /// task. The shutdown goes on, and the error gives the `Closing` back. The same holds in a
    /// [panic hook](crate#panic-hooks).
    ///
    /// # Blocking
    ///
    /// Blocks until the shutdown has ended. That is when its work is done, running tasks have ended
    /// and their keys are dropped, and at its limits at the latest. User code under a lock, such as
    /// a key's `Eq`, can delay it further.
    ///
    /// # Panics
    ///
    /// Panics if it is called by user code under a lock of this crate. The shutdown goes on.
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
    /// let report = scheduler.shutdown(Shutdown::HandBack).wait()?;
    /// assert_eq!(report.handed_back.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait(self) -> Result<R, InsideTaskError<R>> {
        // In a panic hook the thread may have a lock that the shutdown needs; the guard is inert
        // then.
        let under_lock = ReentrancyGuard::begin().is_inert();
        let engine = self.engine.as_ref();
        if under_lock || engine.is_some_and(|engine| task_scope::is_inside(engine.tag)) {
            return self.try_wait().map_err(InsideTaskError);
        }
        if let Some(engine) = engine {
            (engine.help)();
        }
        Ok(self.report.recv().unwrap_or_default())
    }

    /// Returns the report if it is there.
    ///
    /// # Errors
    ///
    /// Returns itself while the shutdown is in progress.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::{Scheduler, Shutdown};
    ///
    /// let scheduler = Scheduler::<&str>::new()?;
    /// match scheduler.shutdown(Shutdown::HandBack).try_wait() {
    ///     Ok(report) => println!("{} timers came back", report.handed_back.len()),
    ///     Err(closing) => drop(closing), // or ask again later
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_wait(self) -> Result<R, Self> {
        match self.report.try_recv() {
            Ok(report) => Ok(report),
            Err(TryRecvError::Empty) => Err(self),
            Err(TryRecvError::Disconnected) => Ok(R::default()),
        }
    }
}

// A report is moved, never pinned.
impl<R> Unpin for Closing<R> {}

/// Yields the report. Dropping the future changes nothing. It must not be polled again after it was
/// ready. A task does not do the work of a shutdown whose thread was refused; see
/// [`Scheduler::shutdown`](crate::Scheduler::shutdown).
///
/// A future that runs as a task of the scheduler that ends gets the report when the limits have
/// passed, since the shutdown waits for that task.
impl<R: Default> Future for Closing<R> {
    type Output = R;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<R> {
        let this = self.get_mut();
        let poll = |context: &mut Context<'_>| this.report.poll(context);
        (this.yield_point.poll(context, poll)).map(Option::unwrap_or_default)
    }
}

/// The error of [`Closing::wait`] inside a task that the shutdown waits for.
///
/// # Examples
///
/// ```
/// use std::sync::{Arc, mpsc};
/// use std::time::Duration;
/// use tourbillon::{Scheduler, Shutdown};
///
/// let scheduler = Arc::new(Scheduler::<&str>::new()?);
/// let (send, receive) = mpsc::channel();
/// let own = Arc::clone(&scheduler);
/// scheduler.handle().schedule("end", Duration::ZERO, move |_| {
///     let Err(inside) = own.shutdown(Shutdown::HandBack).wait() else { return };
///     // The shutdown goes on. Another thread may wait for it.
///     let _ = send.send(inside.into_closing());
/// })?;
/// let report = receive.recv()?.wait()?;
/// assert_eq!(report.still_running, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the error holds the `Closing`, whose report holds what did not run"]
pub struct InsideTaskError<R>(Closing<R>);

impl<R> InsideTaskError<R> {
    /// Returns the shutdown, so that another thread can wait for it.
    pub fn into_closing(self) -> Closing<R> {
        self.0
    }
}

impl<R> fmt::Debug for InsideTaskError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InsideTaskError(..)")
    }
}

impl<R> fmt::Display for InsideTaskError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a task can't wait for the shutdown of its own scheduler, which waits for the task; \
             the shutdown goes on: wait for it on another thread",
        )
    }
}

impl<R> std::error::Error for InsideTaskError<R> {}

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

impl<R> fmt::Debug for Closing<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Closing(..)")
    }
}
