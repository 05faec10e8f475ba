//! The task of a timer without a key, in a box that its worker can prefetch.

use crate::job::prefetch;

/// A task in its box.
pub(crate) trait TimerTask: Send {
    /// Reads the task into the cache. Runs no user code.
    fn prefetch(&mut self);

    fn run(self: Box<Self>);

    /// Returns the task as a report hands it back.
    fn into_closure(self: Box<Self>) -> Box<dyn FnOnce() + Send>;
}

impl<F> TimerTask for F
where
    F: FnOnce() + Send + 'static,
{
    fn prefetch(&mut self) {
        prefetch(self);
    }

    fn run(self: Box<Self>) {
        self();
    }

    fn into_closure(self: Box<Self>) -> Box<dyn FnOnce() + Send> {
        self
    }
}
