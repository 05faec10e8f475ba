//! Futures of the end of a run, and of its cancellation.
//!
//! A poll that finds its registration leaves its waker in it. A poll that does not find it is
//! ready.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::super::{Engine, Frontend, task_scope};
#[cfg(feature = "tokio")]
use super::Registration;
use super::WaitForEnd;
use crate::error::WaitError;
use crate::shard::{Cancelling, Stripe, Waiter, is_under_lock, when_unlocked};
#[cfg(feature = "tokio")]
use crate::shard::{EntryId, RunEvent};
use crate::sync::Arc;

/// The end of a run that was cancelled. Dropping it gives up the wait.
pub(crate) struct EndOfRun<F: Frontend> {
    engine: Arc<Engine<F>>,
    /// `None`: the run has ended.
    wait: Option<WaitForEnd>,
}

impl<F: Frontend> EndOfRun<F> {
    /// Cancels, and registers with the run that is in progress, if there is one.
    pub(crate) fn cancel(
        engine: &Arc<Engine<F>>,
        stripe: usize,
        cancel: impl FnOnce(&mut Stripe<F::Key, F::Payload>) -> Cancelling<F::Key, F::Payload>,
    ) -> (Cancelling<F::Key, F::Payload>, Self) {
        // A future blocks nobody but the task that awaits it, which must not be the run itself.
        let waiter = |run| {
            let itself = task_scope::may_be_inside_run(engine.tag(), (stripe as u32, run));
            (!itself).then(|| Waiter::Task(Waker::noop().clone()))
        };
        let (cancelling, mut wait) = engine.cancel_and_register(stripe, waiter, cancel);
        if engine.is_forked() {
            wait = Some(Err(WaitError::Forked));
        } else if is_under_lock() {
            // While the thread panics: nothing was looked for, so nobody knows what runs.
            wait = Some(Err(WaitError::WouldDeadlock));
        }
        let end = EndOfRun {
            engine: Arc::clone(engine),
            wait,
        };
        (cancelling, end)
    }
}

impl<F: Frontend> Future for EndOfRun<F> {
    type Output = Result<(), WaitError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &self.wait {
            None => return Poll::Ready(Ok(())),
            Some(Err(error)) => return Poll::Ready(Err(*error)),
            Some(Ok(registration)) => {
                if registration.leave(&self.engine, context.waker()) {
                    return Poll::Pending;
                }
            }
        }
        if self.engine.is_forked() {
            // The run was going on at the fork, and no thread of this process goes on with it.
            return Poll::Ready(Err(WaitError::Forked));
        }
        if is_under_lock() {
            // It was not looked for: the run may go on.
            return Poll::Ready(Err(WaitError::WouldDeadlock));
        }
        self.wait = None;
        Poll::Ready(Ok(()))
    }
}

impl<F: Frontend> Drop for EndOfRun<F> {
    fn drop(&mut self) {
        if let Some(Ok(registration)) = self.wait.take() {
            let engine = Arc::clone(&self.engine);
            when_unlocked(move || {
                registration.withdraw(&engine);
            });
        }
    }
}

/// The cancellation of a run, or its end. Dropping it gives up the wait.
#[cfg(feature = "tokio")]
pub(crate) struct CancellationOfRun<F: Frontend> {
    engine: Arc<Engine<F>>,
    stripe: usize,
    run: EntryId,
    /// `None` until the first poll.
    registration: Option<Registration>,
}

#[cfg(feature = "tokio")]
impl<F: Frontend> CancellationOfRun<F> {
    pub(crate) fn new(engine: &Arc<Engine<F>>, stripe: u32, run: EntryId) -> Self {
        CancellationOfRun {
            engine: Arc::clone(engine),
            stripe: stripe as usize,
            run,
            registration: None,
        }
    }
}

#[cfg(feature = "tokio")]
impl<F: Frontend> Future for CancellationOfRun<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let (stripe, run) = (this.stripe, this.run);
        if is_under_lock() {
            // Only while the thread panics. Nothing can be looked up now, so the task polls again.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(registration) = &this.registration {
            return if registration.leave(&this.engine, context.waker()) {
                Poll::Pending
            } else {
                Poll::Ready(())
            };
        }
        let event = RunEvent::Cancellation;
        let waiter = Waiter::Task(context.waker().clone());
        // A waiter that is refused is dropped without the lock.
        let registered = (this.engine).with(stripe, |stripe| stripe.register(run, event, waiter));
        let Ok(number) = registered else {
            return Poll::Ready(());
        };
        this.registration = Some(Registration {
            stripe,
            run,
            event,
            number,
        });
        Poll::Pending
    }
}

#[cfg(feature = "tokio")]
impl<F: Frontend> Drop for CancellationOfRun<F> {
    fn drop(&mut self) {
        if let Some(registration) = self.registration.take() {
            let engine = Arc::clone(&self.engine);
            when_unlocked(move || {
                registration.withdraw(&engine);
            });
        }
    }
}
