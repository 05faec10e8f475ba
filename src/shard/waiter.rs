//! A thread or a task that waits for the end of a run.

use std::task::Waker;

use crate::sync::Unparker;

/// The handle that wakes a waiting thread or task.
#[derive(Clone, Debug)]
pub(crate) enum Waiter {
    Thread(Unparker),
    Task(Waker),
}

impl Waiter {
    /// Wakes the thread or task. The caller holds no lock, because a task's waker is code of its
    /// runtime. A panic of the waker reaches the caller.
    pub(crate) fn wake(self) {
        match self {
            Waiter::Thread(thread) => thread.unpark(),
            Waiter::Task(task) => task.wake(),
        }
    }
}
