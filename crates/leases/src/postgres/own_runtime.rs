//! The thread of a store, with a runtime on its stack that drives all connections and calls.
//!
//! A future that waits for a call can be polled anywhere, since it only waits for a task of this
//! runtime. In a forked copy of the process there is no such thread. A copy leaves everything as it
//! is: the sockets of the runtime are the original's, too.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::store::StoreError;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Mutex, Origin, thread};

/// The longest limit of a call: a later end may be none that the clock knows.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);

/// A thread with a runtime, which starts when it is needed and ends with this.
pub(super) struct OwnRuntime {
    origin: Origin,
    // Not dropped in a forked copy, where the lock may stay locked forever.
    running: ManuallyDrop<Mutex<Option<Running>>>,
}

struct Running {
    handle: Handle,
    /// The thread ends when this is dropped.
    _end: oneshot::Sender<Infallible>,
}

impl OwnRuntime {
    pub(super) fn new() -> Self {
        OwnRuntime {
            origin: Origin::here(),
            running: ManuallyDrop::new(Mutex::new(None)),
        }
    }

    pub(super) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// Returns the runtime. Starts it if it does not run, and carries out `first` on it then.
    pub(super) fn handle(&self, first: impl FnOnce(&Handle)) -> Result<Handle, StoreError> {
        if self.is_forked() {
            return Err(StoreError::Forked);
        }
        let mut running = self.running.lock();
        if let Some(running) = &*running {
            return Ok(running.handle.clone());
        }
        let refused = |error| {
            let why = format!("a thread for the connections could not be started: {error}");
            StoreError::Unavailable(why)
        };
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(refused)?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<Infallible>();
        let run = move || {
            let _ = runtime.block_on(ended);
            // The search for the address of a host may still go on. Nobody waits for it.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("tb-postgres".to_owned());
        thread.spawn(run).map_err(refused)?;
        first(&handle);
        *running = Some(Running {
            handle: handle.clone(),
            _end: end,
        });
        Ok(handle)
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if !self.is_forked() {
            let running = self.running.lock().take();
            drop(running);
        }
    }
}

/// Until when a call may send something.
#[derive(Clone)]
pub(super) struct CallEnd {
    pub(super) limit: Duration,
    at: Instant,
    /// Set when nobody waits for the answer any more.
    gone: Arc<AtomicBool>,
}

impl CallEnd {
    pub(super) fn after(limit: Duration) -> Self {
        CallEnd {
            limit,
            at: Instant::now() + limit.min(LONGEST),
            gone: Arc::new(AtomicBool::new(false)),
        }
    }

    /// How much time is left.
    pub(super) fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Whether nothing may be sent any more.
    pub(super) fn is_over(&self) -> bool {
        // Relaxed: it only has to be seen some time. What was sent just before is answered to nobody.
        self.gone.load(Ordering::Relaxed) || self.left().is_zero()
    }
}

/// A call on the runtime of a store. Once it is sent it goes on without this, until its limit.
pub(super) struct Job<T> {
    origin: Origin,
    task: Option<JoinHandle<Result<T, StoreError>>>,
    gone: Arc<AtomicBool>,
}

impl<T: Send + 'static> Job<T> {
    pub(super) fn start(
        handle: &Handle,
        end: &CallEnd,
        call: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Self {
        Job {
            origin: Origin::here(),
            task: Some(handle.spawn(call)),
            gone: Arc::clone(&end.gone),
        }
    }
}

impl<T> Future for Job<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.origin.is_elsewhere() {
            return Poll::Ready(Err(StoreError::Forked));
        }
        let Some(task) = &mut self.task else {
            return Poll::Ready(Err(StoreError::no_answer()));
        };
        Pin::new(task).poll(context).map(|answer| {
            answer.unwrap_or_else(|ended| {
                let why = match ended.is_panic() {
                    true => "the call has panicked",
                    false => "the store has ended",
                };
                Err(StoreError::Unavailable(why.to_owned()))
            })
        })
    }
}

impl<T> Drop for Job<T> {
    fn drop(&mut self) {
        // Relaxed: see `CallEnd::is_over`.
        self.gone.store(true, Ordering::Relaxed);
        if self.origin.is_elsewhere() {
            std::mem::forget(self.task.take());
        }
    }
}

impl fmt::Debug for OwnRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnRuntime").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::block_on;
    use tourbillon::Clock;

    fn wait<T>(future: impl Future<Output = T>) -> T {
        block_on(&Clock::boottime(), 0, future)
    }

    #[test]
    fn a_call_runs_on_the_thread_of_the_store_and_a_panic_is_its_answer() {
        let runtime = OwnRuntime::new();
        let mut first = 0;
        let handle = runtime.handle(|_| first += 1).unwrap();
        runtime.handle(|_| first += 1).unwrap();
        assert_eq!(first, 1);
        let end = CallEnd::after(Duration::MAX);
        assert!(!end.is_over());
        let call = async { Ok(std::thread::current().name().map(str::to_owned)) };
        let name = wait(Job::start(&handle, &end, call));
        assert_eq!(name, Ok(Some("tb-postgres".to_owned())));
        assert!(end.is_over(), "nobody waits for it any more");
        let end = CallEnd::after(Duration::MAX);
        let panics = async { panic!("on purpose") };
        let answer: Result<(), _> = wait(Job::start(&handle, &end, panics));
        assert!(answer.is_err_and(|error| error.may_pass()));
        assert!(CallEnd::after(Duration::ZERO).is_over());
    }

    #[test]
    fn a_call_ends_with_the_store() {
        let runtime = OwnRuntime::new();
        let handle = runtime.handle(|_| ()).unwrap();
        let end = CallEnd::after(Duration::MAX);
        let job = Job::start(&handle, &end, std::future::pending());
        drop(runtime);
        let answer: Result<(), _> = wait(job);
        let ended = answer.expect_err("nobody answers it");
        assert!(ended.to_string().contains("has ended"), "{ended}");
    }
}
