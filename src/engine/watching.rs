//! Waiting until a run is told that it was cancelled, as a future.
//!
//! As in `awaiting.rs`: a poll that finds its place leaves its waker there, and who cancels, or
//! settles, takes all places out under the same lock and wakes afterwards.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::{Engine, Face};
use crate::shard::{EntryId, Waiter, is_under_a_lock, when_unlocked};
use crate::sync::Arc;
use crate::waker::leave;

/// Ready when the run is told, or over. Dropping it gives up.
pub(crate) struct Watching<F: Face> {
    engine: Arc<Engine<F>>,
    stripe: usize,
    run: EntryId,
    number: Option<u64>,
}

impl<F: Face> Watching<F> {
    pub(crate) fn new(engine: &Arc<Engine<F>>, stripe: u32, run: EntryId) -> Self {
        Watching {
            engine: Arc::clone(engine),
            stripe: stripe as usize,
            run,
            number: None,
        }
    }
}

impl<F: Face> Future for Watching<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let (stripe, run) = (this.stripe, this.run);
        if is_under_a_lock() {
            // Only while the thread panics. Nobody can be asked now, so it is to look again.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let Some(number) = this.number else {
            let waiter = Waiter::Task(context.waker().clone());
            // What comes back is dropped without the lock.
            let noted = (this.engine).with(stripe, |stripe| stripe.watch(run, waiter));
            this.number = noted.as_ref().ok().copied();
            return match noted {
                Ok(_) => Poll::Pending,
                Err(_) => Poll::Ready(()),
            };
        };
        let waits = leave(context.waker(), |show| {
            this.engine.with(stripe, |stripe| {
                if let Some(Waiter::Task(left)) = stripe.watcher(run, number) {
                    show(left);
                }
            });
        });
        if waits {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }
}

impl<F: Face> Drop for Watching<F> {
    fn drop(&mut self) {
        let Some(number) = self.number else {
            return;
        };
        let (stripe, run) = (self.stripe, self.run);
        let engine = Arc::clone(&self.engine);
        when_unlocked(move || {
            // Dropped without the lock.
            let _waiter = engine.with(stripe, |stripe| stripe.unwatch(run, number));
        });
    }
}
