//! Waiting for the end of a run: `cancel_and_wait`.
//!
//! The waiter registers its parker with the run under the stripe's lock, in the same hold as the
//! cancellation. From then on arming the key is refused. Settling takes the run off the list under
//! the same lock and unparks the registered ones afterwards; the token makes an unpark before the
//! park count. So a waiter that finds its run on the list is registered with it and will be woken:
//! no timeout is needed.

use super::{Engine, Face, inside};
use crate::error::WaitError;
use crate::shard::EntryId;
use crate::sync::Parker;
use crate::tick::Time;

impl<F: Face> Engine<F> {
    /// Waits for the run `run`, as the waiter `number`.
    pub(crate) fn wait_for_run(
        &self,
        stripe: usize,
        run: EntryId,
        number: u64,
        until: Option<Time>,
        parker: &Parker,
    ) -> Result<(), WaitError> {
        loop {
            let running = self.shards().peek(stripe, |stripe| stripe.is_running(run));
            if !running {
                return Ok(());
            }
            // In an engine that a test steps, nothing goes on while its thread waits in a task.
            let in_vain = self.is_stepped() && self.is_inside();
            if in_vain || until.is_some_and(|until| self.now() >= until) {
                let still = self.with(stripe, |stripe| stripe.give_up_waiting(run, number));
                return if still {
                    Err(WaitError::TimedOut)
                } else {
                    Ok(())
                };
            }
            self.clock().park_until(parker, until);
        }
    }

    /// Whether the calling thread is in one of this engine's tasks.
    pub(crate) fn is_inside(&self) -> bool {
        inside::is_inside(self.tag())
    }
}
