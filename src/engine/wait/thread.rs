//! A thread that waits for the end of a run.
//!
//! The token of its parker makes an unpark before the park count.

use super::super::{Engine, Frontend};
use super::WaitForEnd;
use crate::error::WaitError;
use crate::shard::{Cancelling, Stripe, Waiter};
use crate::sync::Parker;
use crate::tick::Time;

/// A run that was cancelled, and the thread that waits for its end.
#[derive(Debug)]
pub(crate) struct BlockingWait {
    wait: WaitForEnd,
    parker: Parker,
    until: Option<Time>,
}

impl<F: Frontend> Engine<F> {
    /// Cancels, and registers the thread with the run that is in progress, if there is one.
    pub(crate) fn cancel_to_wait(
        &self,
        stripe: usize,
        until: Option<Time>,
        cancel: impl FnOnce(&mut Stripe<F::Key, F::Payload>) -> Cancelling<F::Key, F::Payload>,
    ) -> (Cancelling<F::Key, F::Payload>, Option<BlockingWait>) {
        let may_wait = until.is_some() || !self.is_inside();
        let parker = Parker::new();
        let waiter = |_| may_wait.then(|| Waiter::Thread(parker.unparker().clone()));
        let (cancelling, wait) = self.cancel_and_register(stripe, waiter, cancel);
        let waiting = wait.map(|wait| BlockingWait {
            wait,
            parker,
            until,
        });
        (cancelling, waiting)
    }

    /// Takes the waiter back without waiting, so that the key can be armed again.
    pub(crate) fn give_up(&self, waiting: &BlockingWait) {
        if let Ok(registration) = &waiting.wait {
            registration.withdraw(self);
        }
    }

    /// Waits for the end of the run.
    pub(crate) fn wait_for_run(&self, waiting: BlockingWait) -> Result<(), WaitError> {
        let BlockingWait {
            wait,
            parker,
            until,
        } = waiting;
        let registration = wait?;
        let (stripe, run) = (registration.stripe, registration.run);
        loop {
            let running = self.shards().peek(stripe, |stripe| stripe.is_running(run));
            if !running {
                return Ok(());
            }
            // In an engine that a test steps, nothing goes on while its thread waits in a task.
            let in_vain = self.is_stepped() && self.is_inside();
            if in_vain || until.is_some_and(|until| self.now() >= until) {
                return if registration.withdraw(self) {
                    Err(WaitError::TimedOut)
                } else {
                    Ok(())
                };
            }
            self.clock().park_until(&parker, until);
        }
    }
}
