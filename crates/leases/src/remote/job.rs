//! A task on the runtime of a store, and the future that waits for it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::JoinHandle;

use super::driven::Driven;
use super::fork_safe::ForkSafe;
use crate::store::{Driver, StoreError, may_drive};
use crate::sync::{Arc, Weak};

/// A task that ends when this is dropped.
pub(crate) struct Task<T = ()>(JoinHandle<T>);

impl<T> Task<T> {
    pub(crate) fn new(handle: JoinHandle<T>) -> Self {
        Task(handle)
    }

    /// Whether the task has ended, has panicked, or has lost its runtime.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_finished()
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The answer of a task. In a forked copy of the process there will never be one, and nothing that
/// belongs to a runtime is touched.
pub(crate) struct Job<T>(ForkSafe<OnRuntime<T>>);

/// A task, and the runtime on which it is, unless that is one of the user.
struct OnRuntime<T> {
    task: Task<T>,
    driven: Weak<Driven>,
}

impl<T> Job<T> {
    pub(super) fn new(task: Task<T>, driven: Weak<Driven>) -> Self {
        Job(ForkSafe::new(OnRuntime { task, driven }))
    }
}

impl<T> Future for Job<T> {
    /// `None` if the task has panicked, or its runtime has ended.
    type Output = Result<Option<T>, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let OnRuntime { task, driven } = match self.0.get_mut() {
            Ok(called) => called,
            Err(forked) => return Poll::Ready(Err(forked)),
        };
        let polled = Pin::new(&mut task.0).poll(context);
        if polled.is_pending()
            && let Some(driven) = driven.upgrade()
        {
            let driver: Arc<dyn Driver> = driven.clone();
            if !may_drive(context.waker(), driver) {
                driven.wants();
            }
        }
        polled.map(|answer| Ok(answer.ok()))
    }
}
