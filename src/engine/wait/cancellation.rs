//! A future of the cancellation of a run, or of its end.
//!
//! A poll that finds its registration leaves its waker in it. A poll that does not find it is
//! ready.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::super::{Engine, Frontend};
use super::Registration;
use crate::shard::{EntryId, RunEvent, Waiter, is_under_lock, when_unlocked};
use crate::sync::Arc;

/// The cancellation of a run, or its end. Dropping it gives up the wait.
pub(crate) struct CancellationOfRun<F: Frontend> {
    engine: Arc<Engine<F>>,
    stripe: usize,
    run: EntryId,
    /// `None` until the first poll.
    registration: Option<Registration>,
}

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
