//! Waiting for a run: for its end (`cancel_and_wait`), or for its cancellation.
//!
//! A thread and a task wait in the same way. Each leaves a [`Waiter`] with the run, under the lock
//! of the run's stripe: a thread leaves its unparker, a task its waker. The event takes all of its
//! waiters out of the run under the same lock, and wakes them after unlocking. So a waiter that
//! finds its [`Registration`] will be woken, and no timeout is needed. A registration that is gone
//! means that the event has occurred.
//!
//! A wait for the end of a run registers in the same hold of the lock as its cancellation. From
//! then on arming the key is refused. A wait for the cancellation keeps nobody from arming the key.
//!
//! | file | what |
//! |---|---|
//! | `thread.rs` | a thread that waits for the end of a run |
//! | `task.rs` | futures of both events |

mod task;
mod thread;

#[cfg(feature = "tokio")]
pub(crate) use task::CancellationOfRun;
pub(crate) use task::EndOfRun;

use std::task::Waker;

use super::{Engine, Frontend, task_scope};
use crate::error::WaitError;
use crate::shard::{Cancelling, EntryId, RunEvent, Stripe, Waiter};
use crate::waker::leave;

/// A waiter that is registered with a run.
#[derive(Debug)]
struct Registration {
    stripe: usize,
    run: EntryId,
    event: RunEvent,
    number: u64,
}

impl Registration {
    /// Leaves the task's waker in the registration. False: the event has occurred.
    fn leave<F: Frontend>(&self, engine: &Engine<F>, waker: &Waker) -> bool {
        leave(waker, |show| {
            engine.with(self.stripe, |stripe| {
                let waiter = stripe.waiter(self.run, self.event, self.number);
                if let Some(Waiter::Task(left)) = waiter {
                    show(left);
                }
            });
        })
    }

    /// Takes the waiter back. False: the event has occurred.
    fn withdraw<F: Frontend>(&self, engine: &Engine<F>) -> bool {
        // Dropped without the lock.
        let waiter = engine.with(self.stripe, |stripe| {
            stripe.unregister(self.run, self.event, self.number)
        });
        waiter.is_some()
    }
}

/// A wait for the end of a run, or the error if the caller must not wait.
type WaitForEnd = Result<Registration, WaitError>;

impl<F: Frontend> Engine<F> {
    /// Cancels, and registers with the run that is in progress, if there is one. `waiter` returns
    /// `None` if the caller must not wait for that run.
    fn cancel_and_register(
        &self,
        stripe: usize,
        waiter: impl FnOnce(EntryId) -> Option<Waiter>,
        cancel: impl FnOnce(&mut Stripe<F::Key, F::Payload>) -> Cancelling<F::Key, F::Payload>,
    ) -> (Cancelling<F::Key, F::Payload>, Option<WaitForEnd>) {
        let number_of_stripe = stripe;
        let event = RunEvent::End;
        self.with(stripe, |stripe| {
            let cancelling = cancel(stripe);
            let run = match &cancelling {
                Cancelling::Cancelled { run, .. } => *run,
                Cancelling::Running(run) => Some(*run),
                Cancelling::NotFound => None,
            };
            // In the same hold as the cancellation: nothing can be armed in between.
            let wait = run.map(|run| {
                let number =
                    waiter(run).and_then(|waiter| stripe.register(run, event, waiter).ok());
                let number = number.ok_or(WaitError::WouldDeadlock)?;
                Ok(Registration {
                    stripe: number_of_stripe,
                    run,
                    event,
                    number,
                })
            });
            (cancelling, wait)
        })
    }

    /// Whether the calling thread is in one of this engine's tasks.
    pub(crate) fn is_inside(&self) -> bool {
        task_scope::is_inside(self.tag())
    }
}
