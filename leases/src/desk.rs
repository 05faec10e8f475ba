//! Where a future waits for a worker's answer, and a bell that wakes it meanwhile.
//!
//! - **DESK-1** What is left on a desk is taken by the future, or dropped: by the future's drop, or
//!   by whoever comes too late.
//! - **DESK-2** The worker's end is dropped when there is an answer, and when there never will be.
//!   Either way the future is woken: it leaves its waker in the hold of the lock in which it
//!   looked.

use std::task::{Context, Poll, Wake, Waker};

use crate::panics::contain;
use crate::sync::{Arc, Mutex, Origin};

/// A desk's two ends.
pub(crate) fn desk<T>() -> (Answers<T>, End<T>) {
    let desk = Arc::new(Mutex::new(Left {
        answer: None,
        gone: false,
        abandoned: false,
        waker: None,
    }));
    (Answers(Arc::clone(&desk)), End(desk, Origin::here()))
}

struct Left<T> {
    answer: Option<T>,
    /// Nobody will leave one any more.
    gone: bool,
    /// Nobody will take it.
    abandoned: bool,
    waker: Option<Waker>,
}

/// The worker's end: dropped when the task has run, panicked, or will not run.
pub(crate) struct Answers<T>(Arc<Mutex<Left<T>>>);

/// The future's end. In a forked copy of the process there will never be an answer, and the worker's
/// end may hold the lock for ever.
pub(crate) struct End<T>(Arc<Mutex<Left<T>>>, Origin);

impl<T> Answers<T> {
    /// Whether the future is still there.
    pub(crate) fn are_awaited(&self) -> bool {
        !self.0.lock().abandoned
    }

    /// The future is woken when this end is dropped.
    pub(crate) fn leave(&self, answer: T) {
        let mut state = self.0.lock();
        if state.abandoned {
            drop(state);
            drop(answer);
            return;
        }
        state.answer = Some(answer);
    }
}

impl<T> Drop for Answers<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.0.lock();
            state.gone = true;
            state.waker.take()
        };
        wake(waker);
    }
}

impl<T> End<T> {
    /// The answer, or `None` if there never will be one.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Option<T>> {
        if self.1.is_elsewhere() {
            return Poll::Ready(None);
        }
        let waker = context.waker().clone();
        let mut state = self.0.lock();
        if let Some(answer) = state.answer.take() {
            return Poll::Ready(Some(answer));
        }
        if state.gone {
            return Poll::Ready(None);
        }
        let before = state.waker.replace(waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        if self.1.is_elsewhere() {
            return;
        }
        let left = {
            let mut state = self.0.lock();
            state.abandoned = true;
            (state.answer.take(), state.waker.take())
        };
        drop(left);
    }
}

/// Wakes a task, and remembers that it did.
#[derive(Default)]
pub(crate) struct Bell(Mutex<(bool, Option<Waker>)>);

impl Bell {
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<()> {
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
        wake(waker);
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        // A runtime's code.
        let _ = contain(|| waker.wake());
    }
}
