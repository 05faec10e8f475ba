//! A set of ticker threads and workers, and how it ends.
//!
//! An engine with threads of its own has such a set to itself. A [`Runtime`](super::Runtime) is one
//! that engines share. Each engine gets its tickers served, and its pool is listed for the workers.
//!
//! - **RT-ADD** Tickers are added under the lock of `open`, and only while it is open. So nobody is
//!   added to a ticker thread that was told to end (TICKERS-2).
//! - **RT-END** Nothing here waits but [`Life::wait`]. The last owner of a set may be one of its own
//!   threads, so a drop only tells the threads to end. Each ends when it serves nobody any more.
//! - **RT-FORK** A forked copy has none of the threads. It takes none of the locks, which a thread
//!   of the original may have had.

use std::convert::Infallible;
use std::io;
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::executor::{PoolWorkers, WorkerThread};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use crate::sync::fork::Origin;
use crate::sync::{Arc, Mutex, Ring, thread};
use crate::tickers::{TickerThread, Ticks};

/// A life sign: a sender that never sends. It is dropped when what it stands for ends.
pub(crate) type Alive = Sender<Infallible>;

/// Whether any of several things is alive.
#[derive(Debug)]
pub(crate) struct Life {
    /// `None` once nothing begins any more.
    first: Mutex<Option<Alive>>,
    gone: Receiver<Infallible>,
}

impl Life {
    pub(crate) fn new() -> Self {
        let (first, gone) = bounded(0);
        Life {
            first: Mutex::new(Some(first)),
            gone,
        }
    }

    /// Returns a life sign, unless nothing begins any more.
    pub(crate) fn sign(&self) -> Option<Alive> {
        self.first.lock().clone()
    }

    /// Gives no signs any more.
    pub(crate) fn close(&self) {
        *self.first.lock() = None;
    }

    /// Blocks until all signs that were given are dropped, or until `until`. Gives none any more.
    /// Returns whether they are.
    pub(crate) fn wait(&self, until: Option<Instant>) -> bool {
        self.close();
        // Nothing is ever sent, so only the drop of the last sender ends this, or the limit.
        match until {
            None => self.gone.recv().is_err(),
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                matches!(
                    self.gone.recv_timeout(left),
                    Err(RecvTimeoutError::Disconnected)
                )
            }
        }
    }
}

/// The options of such a set.
#[derive(Clone, Debug)]
pub(crate) struct ThreadsConfig {
    /// The names of threads begin with it.
    pub(crate) name: String,
    pub(crate) stack_size: Option<usize>,
    pub(crate) tickers: usize,
    /// Number of workers that there are always.
    pub(crate) workers: usize,
    /// Number of workers up to which there may be more.
    pub(crate) max_workers: usize,
    /// Time without work after which an extra worker leaves, by `clock`.
    pub(crate) quiet: Duration,
    pub(crate) clock: Clock,
}

#[derive(Debug)]
pub(crate) struct Threads {
    name: String,
    stack_size: Option<usize>,
    origin: Origin,
    tickers: Vec<Arc<TickerThread>>,
    workers: Arc<PoolWorkers>,
    /// The ticker thread that serves the next shard.
    next: AtomicUsize,
    /// Whether tickers may be added.
    open: Mutex<bool>,
    /// Number of engines that are served.
    engines: Arc<AtomicUsize>,
    engines_life: Life,
    tickers_life: Life,
    workers_life: Life,
}

/// An engine that is served by [`Threads`]. Its tickers share it.
#[derive(Debug)]
pub(crate) struct ServedEngine {
    engines: Arc<AtomicUsize>,
    _alive: Alive,
}

impl Drop for ServedEngine {
    fn drop(&mut self) {
        // Relaxed: a count for people. Whoever waits for the engines does so by the life signs.
        self.engines.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The reason why nobody is added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotServed {
    Ended,
    Forked,
}

impl Threads {
    /// Starts the tickers' threads and the workers that stay. After an error, those that were
    /// started end.
    pub(crate) fn start(config: ThreadsConfig) -> io::Result<Arc<Self>> {
        let workers = PoolWorkers::new(
            config.workers,
            config.max_workers,
            config.quiet,
            config.clock,
        );
        let mut threads = Threads {
            name: config.name,
            stack_size: config.stack_size,
            origin: Origin::here(),
            tickers: Vec::new(),
            workers: Arc::new(workers),
            next: AtomicUsize::new(0),
            open: Mutex::new(true),
            engines: Arc::default(),
            engines_life: Life::new(),
            tickers_life: Life::new(),
            workers_life: Life::new(),
        };
        for number in 0..config.tickers {
            threads.start_ticker(number)?;
        }
        for _ in 0..config.workers {
            threads.start_worker(false)?;
        }
        Ok(Arc::new(threads))
    }

    fn start_ticker(&mut self, number: usize) -> io::Result<()> {
        let alive = self.tickers_life.sign();
        let (ticker_thread, ticker_loop) = TickerThread::new();
        self.spawn("tick", number, move || {
            thread::wake_exactly();
            ticker_loop.run();
            drop(alive);
        })?;
        self.tickers.push(ticker_thread);
        Ok(())
    }

    /// Starts one more worker, unless there are enough; a spare one also then. After the end this
    /// starts nothing.
    pub(crate) fn start_worker(&self, is_spare: bool) -> io::Result<()> {
        // The sign comes first: whoever waits for the workers has closed their life, and then none
        // starts any more.
        let Some(alive) = self.workers_life.sign() else {
            return Ok(());
        };
        let Some(worker) = WorkerThread::take(&self.workers, is_spare) else {
            return Ok(());
        };
        self.spawn("work", worker.number(), move || {
            worker.run();
            drop(alive);
        })
    }

    fn spawn(
        &self,
        kind: &str,
        number: usize,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let mut builder = thread::Builder::new().name(format!("{}-{kind}-{number}", self.name));
        if let Some(size) = self.stack_size {
            builder = builder.stack_size(size);
        }
        builder.spawn(run).map(drop)
    }

    /// Adds the tickers of an engine, which `make` makes of `states`. Each goes to another thread,
    /// as long as there are enough.
    pub(crate) fn serve<S>(
        &self,
        states: Vec<S>,
        mut make: impl FnMut(S, Ring, Arc<ServedEngine>) -> Box<dyn Ticks>,
    ) -> Result<(), NotServed> {
        if self.is_forked() {
            return Err(NotServed::Forked);
        }
        let open = self.open.lock();
        let alive = self.engines_life.sign().filter(|_| *open);
        let served = Arc::new(ServedEngine {
            _alive: alive.ok_or(NotServed::Ended)?,
            engines: Arc::clone(&self.engines),
        });
        // Relaxed, twice: a count for people, and a number that only spreads.
        self.engines.fetch_add(1, Ordering::Relaxed);
        let first = self.next.fetch_add(states.len(), Ordering::Relaxed);
        for (number, state) in states.into_iter().enumerate() {
            let ticker_thread = &self.tickers[first.wrapping_add(number) % self.tickers.len()];
            let served = Arc::clone(&served);
            ticker_thread.add(|ring| make(state, ring, served));
        }
        Ok(())
    }

    /// Adds nobody any more. Each ticker thread ends when it serves nobody.
    pub(crate) fn close(&self) {
        let mut open = self.open.lock();
        if std::mem::replace(&mut *open, false) {
            self.engines_life.close();
            for ticker_thread in &self.tickers {
                ticker_thread.end();
            }
        }
    }

    /// Returns whether somebody may be added.
    pub(super) fn is_open(&self) -> bool {
        *self.open.lock()
    }

    /// Ends all threads that serve nobody any more. Does not wait.
    pub(crate) fn stop(&self) {
        self.close();
        self.workers.stop();
    }

    /// Blocks until the ticker threads have ended, and `workers_too` the workers.
    pub(crate) fn join(&self, tickers_too: bool, workers_too: bool) {
        if tickers_too {
            self.tickers_life.wait(None);
        }
        if workers_too {
            self.workers_life.wait(None);
        }
    }

    /// Stops when nobody is served any more, and waits for the end of all threads, until `until`.
    pub(super) fn end(&self, until: Option<Instant>) -> bool {
        self.close();
        if !self.engines_life.wait(until) {
            return false;
        }
        self.stop();
        self.tickers_life.wait(until) && self.workers_life.wait(until)
    }

    pub(crate) fn workers(&self) -> &Arc<PoolWorkers> {
        &self.workers
    }

    /// Returns the number of ticker threads.
    pub(crate) fn tickers(&self) -> usize {
        self.tickers.len()
    }

    /// Returns the number of engines that are served.
    pub(super) fn engines(&self) -> usize {
        // Relaxed: as in `serve`.
        self.engines.load(Ordering::Relaxed)
    }

    /// Returns whether this process is a forked copy of the one that has the threads (RT-FORK).
    pub(crate) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if !self.is_forked() {
            self.stop();
        }
    }
}
