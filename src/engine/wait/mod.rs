//! Waiting for a run: for its end (`cancel_and_wait`), or for its cancellation.
//!
//! A thread and a task wait in the same way. Each has a [`Waiter`] with the run, under the lock of
//! the run's stripe: a thread leaves its unparker there, a task its waker. The event takes all of
//! its waiters out of the run under the same lock, and wakes them after unlocking. So a waiter that
//! finds its [`Registration`] will be woken, and no timeout is needed. A registration that is gone
//! means that the event has occurred.
//!
//! A wait for the end of a run registers in the same hold of the lock as its cancellation, with a
//! waker that does nothing: it is not known yet who is going to wait. From then on arming the key
//! is refused. A wait for the cancellation keeps nobody from arming the key.
//!
//! A thread looks for its limit itself, a task has it in the engine's list (`limits.rs`).
//!
//! | file | what |
//! |---|---|
//! | `end.rs` | the end of a run that was cancelled |
//! | `cancellation.rs` | the cancellation of a run, or its end |

#[cfg(feature = "tokio")]
mod cancellation;
mod end;

#[cfg(feature = "tokio")]
pub(crate) use cancellation::CancellationOfRun;
pub(crate) use end::EndOfRun;

use std::mem::replace;
use std::task::Waker;

use super::{Engine, Frontend};
use crate::shard::{EntryId, RunEvent, Waiter};
use crate::sync::Unparker;
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

    /// Leaves a thread's handle in the registration. False: the event has occurred.
    fn leave_thread<F: Frontend>(&self, engine: &Engine<F>, thread: &Unparker) -> bool {
        // The waker that was there is dropped without the lock.
        let before = engine.with(self.stripe, |stripe| {
            let waiter = stripe.waiter(self.run, self.event, self.number)?;
            Some(replace(waiter, Waiter::Thread(thread.clone())))
        });
        before.is_some()
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
