//! A waker that remembers that it was woken.

use std::task::{Context, Poll, Wake, Waker};

use crate::sync::{Arc, Mutex, catch_panic};

/// A waker that wakes a task and remembers it, so that a wake-up before the first poll is not lost.
///
/// A watch keeps one waker for the whole wait of a caller. This waker wakes the task that polled
/// last, whichever that is.
#[derive(Default)]
pub(crate) struct Bell(Mutex<(bool, Option<Waker>)>);

impl Bell {
    /// Returns ready if the bell was woken since the last time. Otherwise leaves the task's waker.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        // Cloned before the lock is taken, and the one before is dropped after it: a waker is a
        // runtime's code.
        let waker = context.waker().clone();
        let mut state = self.0.lock();
        if std::mem::take(&mut state.0) {
            return Poll::Ready(());
        }
        let before = state.1.replace(waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let waker = {
            let mut state = self.0.lock();
            state.0 = true;
            state.1.take()
        };
        if let Some(waker) = waker {
            // A waker is a runtime's code and may panic.
            let _ = catch_panic(|| waker.wake());
        }
    }
}
