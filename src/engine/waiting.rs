//! Waiting for the end of a run: `cancel_and_wait`.
//!
//! The waiter registers its parker with the run under the stripe's lock, in the same hold as the
//! cancellation. From then on arming the key is refused. Settling takes the run off the list under
//! the same lock and unparks the registered ones afterwards; the token makes an unpark before the
//! park count. So a waiter that finds its run on the list is registered with it and will be woken:
//! no timeout is needed.

use super::{Engine, Face, inside};
use crate::error::WaitError;
use crate::shard::{Cancelling, EntryId, Stripe, Waiter};
use crate::sync::Parker;
use crate::tick::Time;

/// A run that somebody has told to end and wants to see ended.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(super) stripe: usize,
    pub(super) run: EntryId,
    /// `None`: the caller must not wait.
    pub(super) number: Option<u64>,
}

/// The same with the thread that waits for it.
#[derive(Debug)]
pub(crate) struct Waiting {
    registered: Registered,
    parker: Parker,
    until: Option<Time>,
}

impl<F: Face> Engine<F> {
    /// Cancels, and registers with the run that is in progress, if there is one.
    pub(crate) fn cancel_to_wait(
        &self,
        stripe: usize,
        until: Option<Time>,
        cancel: impl FnOnce(&mut Stripe<F::Key, F::Payload>) -> Cancelling<F::Key, F::Payload>,
    ) -> (Cancelling<F::Key, F::Payload>, Option<Waiting>) {
        let may_wait = until.is_some() || !self.is_inside();
        let parker = Parker::new();
        let waiter = |_| may_wait.then(|| Waiter::Thread(parker.unparker().clone()));
        let (cancelling, registered) = self.cancel_and_register(stripe, waiter, cancel);
        let waiting = registered.map(|registered| Waiting {
            registered,
            parker,
            until,
        });
        (cancelling, waiting)
    }

    /// Without a waiter for the run the caller must not wait.
    pub(super) fn cancel_and_register(
        &self,
        stripe: usize,
        waiter: impl FnOnce(EntryId) -> Option<Waiter>,
        cancel: impl FnOnce(&mut Stripe<F::Key, F::Payload>) -> Cancelling<F::Key, F::Payload>,
    ) -> (Cancelling<F::Key, F::Payload>, Option<Registered>) {
        let number_of_stripe = stripe;
        self.with(stripe, |stripe| {
            let cancelling = cancel(stripe);
            let run = match &cancelling {
                Cancelling::Cancelled { run, .. } => *run,
                Cancelling::Running(run) => Some(*run),
                Cancelling::NotFound => None,
            };
            // In the same hold as the cancellation: nothing can be armed in between.
            let registered = run.map(|run| Registered {
                stripe: number_of_stripe,
                run,
                number: waiter(run).and_then(|waiter| stripe.wait_for(run, waiter)),
            });
            (cancelling, registered)
        })
    }

    /// Does not wait after all.
    pub(crate) fn give_up(&self, waiting: &Waiting) {
        self.give_up_waiting(&waiting.registered);
    }

    /// Waits for the end of the run.
    pub(crate) fn wait_for_run(&self, waiting: &Waiting) -> Result<(), WaitError> {
        let Waiting {
            registered:
                Registered {
                    stripe,
                    run,
                    number,
                },
            until,
            ref parker,
        } = *waiting;
        if number.is_none() {
            return Err(WaitError::WouldDeadlock);
        }
        loop {
            let running = self.shards().peek(stripe, |stripe| stripe.is_running(run));
            if !running {
                return Ok(());
            }
            // In an engine that a test steps, nothing goes on while its thread waits in a task.
            let in_vain = self.is_stepped() && self.is_inside();
            if in_vain || until.is_some_and(|until| self.now() >= until) {
                return if self.give_up_waiting(&waiting.registered) {
                    Err(WaitError::TimedOut)
                } else {
                    Ok(())
                };
            }
            self.clock().park_until(parker, until);
        }
    }

    /// Takes the waiter back, so that the key can be armed again. Whether the run goes on.
    pub(super) fn give_up_waiting(&self, registered: &Registered) -> bool {
        let Some(number) = registered.number else {
            return true;
        };
        // Dropped without the lock.
        let waiter = self.with(registered.stripe, |stripe| {
            stripe.give_up_waiting(registered.run, number)
        });
        waiter.is_some()
    }

    /// Whether the calling thread is in one of this engine's tasks.
    pub(crate) fn is_inside(&self) -> bool {
        inside::is_inside(self.tag())
    }
}
