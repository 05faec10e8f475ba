//! The answer of a call on its way from a thread of a store to a future.
//!
//! - **ANSWER-1** An answer is taken by the future, or dropped with the last of the two ends.
//! - **ANSWER-2** The sender is dropped when it has an answer, and when there never will be one.
//!   Either drop wakes the future, since the future looks for an answer and leaves its waker under
//!   one lock. The drop of the future removes its waker.

use std::task::{Context, Poll, Waker};

use crate::sync::{Arc, Mutex, Origin, catch_panic};

/// Returns the two ends of a new channel.
pub(crate) fn call_answer<T>() -> (AnswerSender<T>, AnswerReceiver<T>) {
    let answer = Arc::new(Mutex::new(AnswerState {
        answer: None,
        gone: false,
        waker: None,
    }));
    (
        AnswerSender(Arc::clone(&answer), None),
        AnswerReceiver(answer, Origin::here()),
    )
}

struct AnswerState<T> {
    answer: Option<T>,
    /// Whether the sender was dropped.
    gone: bool,
    waker: Option<Waker>,
}

/// The thread's end, with the answer once it is there. It is dropped when the call has returned,
/// has panicked, or will not be made.
pub(crate) struct AnswerSender<T>(Arc<Mutex<AnswerState<T>>>, Option<T>);

/// The future's end. In a forked copy of the process there will never be an answer, and a thread's
/// lock may stay locked forever.
pub(crate) struct AnswerReceiver<T>(Arc<Mutex<AnswerState<T>>>, Origin);

impl<T> AnswerSender<T> {
    /// Notes the answer. The drop of the sender hands it over and wakes the future.
    pub(crate) fn send(&mut self, answer: T) {
        self.1 = Some(answer);
    }
}

impl<T> Drop for AnswerSender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.0.lock();
            state.answer = self.1.take();
            state.gone = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            // A waker is a runtime's code and may panic.
            let _ = catch_panic(|| waker.wake());
        }
    }
}

impl<T> AnswerReceiver<T> {
    pub(crate) fn is_forked(&self) -> bool {
        self.1.is_elsewhere()
    }

    /// Returns the answer, or `None` if there never will be one.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Option<T>> {
        if self.is_forked() {
            return Poll::Ready(None);
        }
        // Cloned before the lock is taken: a waker is a runtime's code. For the same reason the
        // waker that it replaces is dropped after the unlock.
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

impl<T> Drop for AnswerReceiver<T> {
    fn drop(&mut self) {
        if !self.is_forked() {
            let waker = self.0.lock().waker.take();
            drop(waker);
        }
    }
}
