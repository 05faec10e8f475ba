//! Futures that workers poll.
//!
//! - **TASK-1** After each wake-up, a new poll begins. A wake-up sets a mark. It also asks a worker to
//!   poll, unless a worker polls already or is about to. A poll clears the mark before it begins.
//!   After a poll, the worker takes the lock once to check the mark again, and to note that nobody
//!   polls if the mark is not set. So wake-ups that come together cost one poll.
//! - **TASK-2** One thread polls at a time. The future is neither polled nor dropped under the lock,
//!   nor in a wake-up.
//!
//! Its wakers keep a task. If none are left, nothing can go on, and the future is dropped.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};

use crate::store::poll_in_background;
use crate::sync::{Arc, Mutex, Origin, catch_panic};

/// The threads that poll a task.
pub(crate) trait TaskWorkers: Send + Sync + 'static {
    /// Makes a worker call [`WorkerTask::poll`] soon. May be called under a lock of somebody else.
    fn poll_soon(&self, task: Arc<WorkerTask<Self>>)
    where
        Self: Sized;
}

type TaskFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A future that workers poll whenever it is woken.
pub(crate) struct WorkerTask<W> {
    workers: W,
    state: Mutex<TaskState>,
    origin: Origin,
}

struct TaskState {
    /// `None` while it is polled, and after its end.
    future: Option<TaskFuture>,
    /// Whether it was woken since the last poll began.
    is_woken: bool,
    /// Whether a worker polls, or is about to. Stays true after the end.
    is_served: bool,
}

impl<W: TaskWorkers> WorkerTask<W> {
    /// Returns a task that somebody [polls](Self::poll) first.
    pub(crate) fn new(workers: W, future: impl Future<Output = ()> + Send + 'static) -> Arc<Self> {
        Arc::new(WorkerTask {
            workers,
            state: Mutex::new(TaskState {
                future: Some(Box::pin(future)),
                is_woken: false,
                is_served: true,
            }),
            origin: Origin::here(),
        })
    }

    /// Polls the future on this thread.
    pub(crate) fn poll(self: &Arc<Self>) {
        let future = {
            let mut state = self.state.lock();
            state.is_woken = false;
            state.future.take()
        };
        let Some(mut future) = future else {
            return;
        };
        let waker = Waker::from(Arc::clone(self));
        let polled = catch_panic(|| {
            poll_in_background(|| future.as_mut().poll(&mut Context::from_waker(&waker)))
        });
        if polled != Ok(Poll::Pending) {
            // Its drop may be user code, such as that of a key.
            let _ = catch_panic(|| drop(future));
            return;
        }
        let again = {
            let mut state = self.state.lock();
            state.future = Some(future);
            state.is_served = state.is_woken;
            state.is_woken
        };
        // Not in a loop: others wait for this worker.
        if again {
            self.workers.poll_soon(Arc::clone(self));
        }
    }
}

impl<W: TaskWorkers> Wake for WorkerTask<W> {
    fn wake(self: Arc<Self>) {
        // A forked copy has no workers, and the lock may stay locked there.
        if self.origin.is_elsewhere() {
            return;
        }
        let is_served = {
            let mut state = self.state.lock();
            state.is_woken = true;
            std::mem::replace(&mut state.is_served, true)
        };
        if !is_served {
            self.workers.poll_soon(Arc::clone(&self));
        }
    }
}

/// In a forked copy the future is leaked: what its drop would lock may stay locked forever.
impl<W> Drop for WorkerTask<W> {
    fn drop(&mut self) {
        if self.origin.is_elsewhere() {
            let none = Mutex::new(TaskState {
                future: None,
                is_woken: false,
                is_served: true,
            });
            std::mem::forget(std::mem::replace(&mut self.state, none));
        }
    }
}
