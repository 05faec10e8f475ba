//! Who waits for the end of a run: a thread, or a task.

use std::task::Waker;

use crate::sync::Unparker;

/// Wakes who waits.
#[derive(Clone, Debug)]
pub(crate) enum Waiter {
    Thread(Unparker),
    Task(Waker),
}

impl Waiter {
    /// Without a lock: a task's waker is its runtime's code. Its panic is the caller's.
    pub(crate) fn wake(self) {
        match self {
            Waiter::Thread(thread) => thread.unpark(),
            Waiter::Task(task) => task.wake(),
        }
    }
}
