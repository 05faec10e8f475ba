//! Runtimes: threads that schedulers, maps and timers share.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | what users see of it |
//! | `threads.rs` | ticker threads and workers, who is served by them, and how they end |
//! | `process.rs` | the runtime of the process |

mod process;
mod threads;

pub(crate) use process::of_process;
pub(crate) use threads::{Alive, Life, NotServed, ServedEngine, Threads, ThreadsConfig};

use std::fmt;
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::config::{EXTRA_WORKER_QUIET, THREADS_MAX};
use crate::error::BuildError;
use crate::sync::Arc;

/// The threads that any number of schedulers, maps and timers share.
///
/// A runtime has *tickers*, which make timers due, and *workers*, which run tasks. Each scheduler,
/// map or timer has its own queues, and its tasks wait only for each other:
///
/// - A ticker serves all that are on it in turns, one short step each.
/// - A worker that serves one of them goes to another one that waits within 1 ms, or when its task
///   ends.
/// - If a task has waited for 2 ms, and all workers are in tasks of others, a worker is started,
///   even above `max_workers`. If it waits behind blocked tasks of its own scheduler, one is started
///   up to `max_workers`, whatever the workers do elsewhere.
///
/// A clone is another handle of the same runtime. The threads end when the last handle is dropped
/// and everything that was built on it has ended; the drop does not wait for that.
///
/// # Forks
///
/// In a forked copy of the process nothing can be built on a runtime of the original.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{ExpiryMap, Runtime, Scheduler};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = Runtime::builder().name("shop").workers(2).build()?;
/// let orders = Scheduler::<u64>::builder().runtime(&runtime).build()?;
/// let carts = ExpiryMap::<u64, &str>::builder()
///     .runtime(&runtime)
///     .time_to_live(Duration::from_secs(600))
///     .build(|_, _expired| ())?;
/// assert_eq!(runtime.stats().instances, 2);
/// # drop((orders, carts));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Runtime {
    threads: Arc<Threads>,
}

/// Options of a [`Runtime`].
///
/// # Examples
///
/// ```
/// use tourbillon::Runtime;
///
/// let runtime = Runtime::builder().tickers(1).workers(2).max_workers(100).build()?;
/// assert_eq!(runtime.stats().tickers, 1);
/// # Ok::<(), tourbillon::BuildError>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
#[derive(Clone, Debug)]
pub struct RuntimeBuilder {
    name: String,
    tickers: Option<usize>,
    workers: Option<usize>,
    max_workers: Option<usize>,
    stack_size: Option<usize>,
}

/// What a runtime has at this moment.
///
/// # Examples
///
/// ```
/// use tourbillon::{Runtime, Scheduler};
///
/// let runtime = Runtime::builder().workers(2).build()?;
/// let scheduler = Scheduler::<u64>::builder().runtime(&runtime).build()?;
/// let stats = runtime.stats();
/// assert_eq!((stats.instances, stats.workers), (1, 2));
/// # drop(scheduler);
/// # Ok::<(), tourbillon::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeStats {
    /// Number of ticker threads.
    pub tickers: usize,
    /// Number of workers.
    pub workers: usize,
    /// Number of workers that sleep since they have nothing to do.
    pub idle_workers: usize,
    /// Number of schedulers, maps and timers that were built on it and have not ended.
    pub instances: usize,
}

/// The reason why [`Runtime::shut_down`] did not end all threads in time.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{Runtime, RuntimeInUse, Timer};
///
/// let runtime = Runtime::builder().build()?;
/// let timer = Timer::builder().runtime(&runtime).build()?;
/// let refused = runtime.shut_down(Duration::ZERO);
/// assert!(matches!(refused, Err(RuntimeInUse { instances: 1, .. })));
/// # drop(timer);
/// # Ok::<(), tourbillon::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeInUse {
    /// Number of schedulers, maps and timers that have not ended. If it is 0, a task has not.
    pub instances: usize,
}

impl fmt::Display for RuntimeInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.instances {
            0 => f.write_str("a task on the runtime has not ended; try again later"),
            instances => write!(
                f,
                "schedulers, maps or timers on the runtime: {instances}; shut them down or drop them first"
            ),
        }
    }
}

impl std::error::Error for RuntimeInUse {}

impl Runtime {
    /// Returns a builder with the default options.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder {
            name: "tb".to_owned(),
            tickers: None,
            workers: None,
            max_workers: None,
            stack_size: None,
        }
    }

    /// Returns what the runtime has at this moment.
    ///
    /// # Complexity
    ///
    /// Reads four counters.
    #[must_use]
    pub fn stats(&self) -> RuntimeStats {
        let workers = self.threads.workers();
        RuntimeStats {
            tickers: self.threads.tickers(),
            workers: workers.taken(),
            idle_workers: workers.sleeping(),
            instances: self.threads.engines(),
        }
    }

    /// Ends the threads, and waits until they have ended. For tests and tools that must leave no
    /// thread behind.
    ///
    /// From this call on, nothing can be built on the runtime. What was built on it goes on, and
    /// the threads end after it: shut it down or drop it before this call. If this is the runtime
    /// of the process, the next build starts another one.
    ///
    /// In a forked copy of the process there are no threads, and this returns at once.
    ///
    /// # Blocking
    ///
    /// Blocks for `limit` at most. A task of the runtime that calls this waits for itself, and so
    /// for the limit.
    ///
    /// # Errors
    ///
    /// [`RuntimeInUse`] if the limit has passed. The call can be repeated.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Runtime, Scheduler};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let scheduler = Scheduler::<u64>::builder().runtime(&runtime).build()?;
    /// let refused = runtime.shut_down(Duration::from_millis(1)).unwrap_err();
    /// assert_eq!(refused.instances, 1);
    /// drop(scheduler);
    /// runtime.shut_down(Duration::from_secs(60))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shut_down(&self, limit: Duration) -> Result<(), RuntimeInUse> {
        if self.threads.is_forked() || self.threads.end(Instant::now().checked_add(limit)) {
            return Ok(());
        }
        Err(RuntimeInUse {
            instances: self.threads.engines(),
        })
    }

    pub(crate) fn threads(&self) -> &Arc<Threads> {
        &self.threads
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if self.threads.is_forked() {
            // RT-FORK: the drop of what is inside would take locks.
            std::mem::forget(Arc::clone(&self.threads));
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Runtime").field(&self.stats()).finish()
    }
}

impl RuntimeBuilder {
    /// Sets the name with which the names of the threads begin: `shop-tick-0`, `shop-work-0`. The
    /// default is `tb`. Linux shows the first 15 bytes of a thread's name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the number of ticker threads, from 1 to 1,024. The default is the number of cores.
    pub fn tickers(mut self, tickers: usize) -> Self {
        self.tickers = Some(tickers);
        self
    }

    /// Sets the number of workers that stay, from 1 to 1,024. The runtime keeps this number of
    /// workers unblocked while tasks wait. The default is the number of cores.
    #[doc(alias("thread_pool", "concurrency"))]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Sets up to how many workers there may be when workers are blocked, at most 1,024. The
    /// default is 1,024. How many tasks of one scheduler run at a time is bounded by its
    /// [`max_running`](crate::SchedulerBuilder::max_running), which also says when workers are
    /// added.
    pub fn max_workers(mut self, max_workers: usize) -> Self {
        self.max_workers = Some(max_workers);
        self
    }

    /// Sets the size of each thread's stack, in bytes. The default is that of
    /// [`std::thread`]. The system may choose a larger one.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// Starts the threads and returns the runtime.
    ///
    /// # Errors
    ///
    /// [`BuildError`] names the value that is not allowed, or why a thread did not start.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::{BuildError, Runtime};
    ///
    /// let refused = Runtime::builder().tickers(0).build();
    /// assert!(matches!(refused, Err(BuildError::Tickers(0))));
    /// ```
    pub fn build(self) -> Result<Runtime, BuildError> {
        let config = self.validate(num_cpus::get())?;
        let threads = Threads::start(config).map_err(BuildError::Spawn)?;
        Ok(Runtime { threads })
    }

    /// Checks all options, and fills in the defaults for a machine with this many cores.
    fn validate(self, cores: usize) -> Result<ThreadsConfig, BuildError> {
        let cores = cores.clamp(1, THREADS_MAX);
        if self.name.contains('\0') {
            return Err(BuildError::ThreadName(self.name));
        }
        let tickers = self.tickers.unwrap_or(cores);
        if !(1..=THREADS_MAX).contains(&tickers) {
            return Err(BuildError::Tickers(tickers));
        }
        let workers = self.workers.unwrap_or(cores);
        if !(1..=THREADS_MAX).contains(&workers) {
            return Err(BuildError::Workers(workers));
        }
        let max_workers = self.max_workers.unwrap_or(THREADS_MAX);
        if !(workers..=THREADS_MAX).contains(&max_workers) {
            return Err(BuildError::MaxWorkers {
                max_workers,
                workers,
            });
        }
        Ok(ThreadsConfig {
            name: self.name,
            stack_size: self.stack_size,
            tickers,
            workers,
            max_workers,
            quiet: EXTRA_WORKER_QUIET,
            clock: Clock::system(),
        })
    }
}
