//! Waiting for the end of a run as a future: `waiting.rs` with a waker for a parker.
//!
//! A poll that finds its registration leaves its waker in it; settling takes the registration out
//! under the same lock and wakes afterwards. So a poll that does not find it knows that the run has
//! ended, and one that does is woken.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::waiting::Registered;
use super::{Engine, Face, inside};
use crate::error::WaitError;
use crate::shard::{Cancelling, EntryId, Stripe, Waiter, is_under_a_lock, when_unlocked};
use crate::sync::Arc;
use crate::waker::leave;

/// A run that somebody has told to end and awaits the end of. Dropping it gives up.
pub(crate) struct Awaiting<F: Face> {
    engine: Arc<Engine<F>>,
    /// Until the run has ended.
    registered: Option<Registered>,
}

impl<F: Face> Awaiting<F> {
    /// Cancels, and registers with the run that is in progress, if there is one.
    pub(crate) fn cancel(
        engine: &Arc<Engine<F>>,
        stripe: usize,
        cancel: impl FnOnce(&mut Stripe<F::Key, F::Payload>) -> Cancelling<F::Key, F::Payload>,
    ) -> (Cancelling<F::Key, F::Payload>, Self) {
        // A future blocks nobody but the task that awaits it, which must not be the run itself.
        let waiter = |run| {
            let itself = inside::may_be_inside_run(engine.tag(), (stripe as u32, run));
            (!itself).then(|| Waiter::Task(Waker::noop().clone()))
        };
        let (cancelling, mut registered) = engine.cancel_and_register(stripe, waiter, cancel);
        if is_under_a_lock() {
            // While the thread panics: nothing was looked for, so nobody knows what runs.
            registered = Some(Registered {
                stripe,
                run: EntryId::gone(0),
                number: None,
            });
        }
        let awaiting = Awaiting {
            engine: Arc::clone(engine),
            registered,
        };
        (cancelling, awaiting)
    }
}

impl<F: Face> Future for Awaiting<F> {
    type Output = Result<(), WaitError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(registered) = &self.registered else {
            return Poll::Ready(Ok(()));
        };
        let Some(number) = registered.number else {
            return Poll::Ready(Err(WaitError::WouldDeadlock));
        };
        let waits = leave(context.waker(), |show| {
            self.engine.with(registered.stripe, |stripe| {
                if let Some(Waiter::Task(left)) = stripe.waiter(registered.run, number) {
                    show(left);
                }
            });
        });
        if waits {
            return Poll::Pending;
        }
        if is_under_a_lock() {
            // It was not looked for: the run may go on.
            return Poll::Ready(Err(WaitError::WouldDeadlock));
        }
        self.registered = None;
        Poll::Ready(Ok(()))
    }
}

impl<F: Face> Drop for Awaiting<F> {
    fn drop(&mut self) {
        if let Some(registered) = self.registered.take() {
            let engine = Arc::clone(&self.engine);
            when_unlocked(move || {
                engine.give_up_waiting(&registered);
            });
        }
    }
}
