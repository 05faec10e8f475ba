//! A oneshot channel from a worker to a future, and a waker that remembers that it was woken.
//!
//! - **ONESHOT-1** An answer is taken by the future, or dropped. The drop of the future drops an
//!   answer that is there, and a worker that comes later drops its answer itself.
//! - **ONESHOT-2** The sender is dropped when there is an answer, and when there never will be one.
//!   Either way the future is woken, since it leaves its waker under the lock under which it has
//!   checked for an answer.
//! - **ONESHOT-3** An answer that is withdrawn was not taken, and is not taken after that: both
//!   happen under the lock, and only one of them finds it.

use std::task::{Context, Poll, Wake, Waker};

use crate::sync::{Arc, Mutex, Origin, catch_panic};

/// Returns the two ends of a new channel.
pub(crate) fn oneshot<T>() -> (OneshotSender<T>, OneshotReceiver<T>) {
    let oneshot = Arc::new(Mutex::new(OneshotState {
        answer: None,
        gone: false,
        abandoned: false,
        withdrawn: false,
        waker: None,
    }));
    (
        OneshotSender(Arc::clone(&oneshot)),
        OneshotReceiver(oneshot, Origin::here()),
    )
}

struct OneshotState<T> {
    answer: Option<T>,
    /// Whether the sender was dropped.
    gone: bool,
    /// Whether the receiver was dropped.
    abandoned: bool,
    /// Whether the answer was there, and was dropped since nobody took it.
    withdrawn: bool,
    waker: Option<Waker>,
}

/// The worker's end. It is dropped when the task has run, has panicked, or will not run.
pub(crate) struct OneshotSender<T>(Arc<Mutex<OneshotState<T>>>);

/// The future's end. In a forked copy of the process there will never be an answer, and a worker's
/// lock may stay locked forever.
pub(crate) struct OneshotReceiver<T>(Arc<Mutex<OneshotState<T>>>, Origin);

impl<T> OneshotSender<T> {
    /// Whether the receiver still exists.
    pub(crate) fn are_awaited(&self) -> bool {
        !self.0.lock().abandoned
    }

    /// Sends the answer, or drops it if the receiver is gone. The future is woken only when the
    /// sender is dropped.
    pub(crate) fn leave(&self, answer: T) {
        let mut state = self.0.lock();
        if state.abandoned {
            // The drop of an answer may give a lease back, so it runs without the lock.
            drop(state);
            drop(answer);
            return;
        }
        state.answer = Some(answer);
    }

    /// Returns what can withdraw the answer later.
    pub(crate) fn withdrawal(&self) -> Withdrawal<T> {
        Withdrawal(Arc::clone(&self.0))
    }
}

/// Drops an answer that nobody has taken. It keeps nobody waiting: it is no sender.
pub(crate) struct Withdrawal<T>(Arc<Mutex<OneshotState<T>>>);

impl<T> Withdrawal<T> {
    pub(crate) fn withdraw(self) {
        let answer = {
            let mut state = self.0.lock();
            let answer = state.answer.take();
            state.withdrawn |= answer.is_some();
            answer
        };
        // Without the lock, as in `leave`.
        drop(answer);
    }
}

impl<T> Drop for OneshotSender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.0.lock();
            state.gone = true;
            state.waker.take()
        };
        wake(waker);
    }
}

impl<T> OneshotReceiver<T> {
    /// Returns the answer, or `None` if there never will be one.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Option<T>> {
        if self.1.is_elsewhere() {
            return Poll::Ready(None);
        }
        // Cloned before the lock is taken: a waker is a runtime's code. For the same reason the one
        // that it replaces is dropped after it.
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

    /// Whether there was an answer, which nobody took in time.
    pub(crate) fn is_withdrawn(&self) -> bool {
        !self.1.is_elsewhere() && self.0.lock().withdrawn
    }
}

impl<T> Drop for OneshotReceiver<T> {
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

/// A waker that wakes a task and remembers it, so that a wake-up before the first poll is not lost.
#[derive(Default)]
pub(crate) struct OneshotWaker(Mutex<(bool, Option<Waker>)>);

impl OneshotWaker {
    /// Returns ready if it was woken since it was last ready. Otherwise leaves the task's waker.
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

impl Wake for OneshotWaker {
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
        // A waker is a runtime's code and may panic.
        let _ = catch_panic(|| waker.wake());
    }
}
