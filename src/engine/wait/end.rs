//! The end of a run that was cancelled, for a thread that waits or a task that awaits.
//!
//! The token of a thread's parker makes an unpark before the park count. A poll that finds its
//! registration leaves its waker in it.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::super::limits::Limit;
use super::super::{Engine, Frontend, task_scope};
use super::Registration;
use crate::error::WaitError;
use crate::shard::{Cancelling, RunEvent, Stripe, Waiter, is_under_lock, when_unlocked};
use crate::sync::{Arc, Parker};

/// The end of a run that was cancelled. Dropping it gives up the wait.
pub(crate) struct EndOfRun<F: Frontend> {
    engine: Arc<Engine<F>>,
    wait: Wait,
    limit: Option<Limit<F>>,
}

enum Wait {
    /// The run has ended, or there was none.
    Over,
    /// Nobody can wait for it.
    Refused(WaitError),
    For(Registration),
}

impl<F: Frontend> EndOfRun<F> {
    /// Cancels, and registers with the run that is in progress, if there is one.
    pub(crate) fn cancel(
        engine: &Arc<Engine<F>>,
        stripe: usize,
        cancel: impl FnOnce(&mut Stripe<F::Key, F::Payload>) -> Cancelling<F::Key, F::Payload>,
    ) -> (Cancelling<F::Key, F::Payload>, Self) {
        let number_of_stripe = stripe;
        let (cancelling, registration) = engine.with(stripe, |stripe| {
            let cancelling = cancel(stripe);
            let run = match &cancelling {
                Cancelling::Cancelled { run, .. } => *run,
                Cancelling::Running(run) => Some(*run),
                Cancelling::NotFound => None,
            };
            // In the same hold as the cancellation: nothing can be armed in between.
            let registration = run.and_then(|run| {
                let (event, waiter) = (RunEvent::End, Waiter::Task(Waker::noop().clone()));
                let number = stripe.register(run, event, waiter).ok()?;
                Some(Registration {
                    stripe: number_of_stripe,
                    run,
                    event,
                    number,
                })
            });
            (cancelling, registration)
        });
        let wait = match registration {
            _ if engine.is_forked() => Wait::Refused(WaitError::Forked),
            // While the thread panics: nothing was looked for, so nobody knows what runs.
            _ if is_under_lock() => Wait::Refused(WaitError::WouldDeadlock),
            Some(registration) => Wait::For(registration),
            None => Wait::Over,
        };
        let end = EndOfRun {
            engine: Arc::clone(engine),
            wait,
            limit: None,
        };
        (cancelling, end)
    }

    /// Limits the wait to `span` from now. Of several limits the earliest holds.
    pub(crate) fn set_limit(&mut self, span: Duration) {
        self.limit = Some(Limit::within(&self.engine, span, self.limit.take()));
    }

    /// Blocks the thread until the run has ended, or the limit is reached.
    pub(crate) fn wait(mut self) -> Result<(), WaitError> {
        let (stripe, run) = match &self.wait {
            Wait::Over => return Ok(()),
            Wait::Refused(error) => return Err(*error),
            Wait::For(registration) => (registration.stripe, registration.run),
        };
        self.can_look()?;
        let engine = Arc::clone(&self.engine);
        // A thread in one task of the engine can be what another task waits for.
        if self.limit.is_none() && task_scope::is_inside(engine.tag()) {
            return Err(WaitError::WouldDeadlock);
        }
        let parker = Parker::new();
        if let Wait::For(registration) = &self.wait
            && !registration.leave_thread(&engine, parker.unparker())
        {
            self.wait = Wait::Over;
            return Ok(());
        }
        loop {
            let running = engine
                .shards()
                .peek(stripe, |stripe| stripe.is_running(run));
            if !running {
                self.wait = Wait::Over;
                return Ok(());
            }
            if self.limit.as_ref().is_some_and(Limit::has_passed) {
                return self.reached();
            }
            let until = self.limit.as_ref().map(Limit::until);
            engine.clock().park_until(&parker, until);
        }
    }

    /// Ends the wait at its limit.
    fn reached(&mut self) -> Result<(), WaitError> {
        match std::mem::replace(&mut self.wait, Wait::Over) {
            Wait::For(registration) if registration.withdraw(&self.engine) => {
                Err(WaitError::TimedOut)
            }
            // It ended at the last moment.
            _ => Ok(()),
        }
    }

    /// Fails if this thread can't look for the run at all.
    fn can_look(&self) -> Result<(), WaitError> {
        if self.engine.is_forked() {
            // The run was going on at the fork, and no thread of this process goes on with it.
            return Err(WaitError::Forked);
        }
        if is_under_lock() {
            // The run may go on.
            return Err(WaitError::WouldDeadlock);
        }
        Ok(())
    }
}

impl<F: Frontend> Future for EndOfRun<F> {
    type Output = Result<(), WaitError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let registration = match &this.wait {
            Wait::Over => return Poll::Ready(Ok(())),
            Wait::Refused(error) => return Poll::Ready(Err(*error)),
            Wait::For(registration) => registration,
        };
        // A future blocks nobody but the task that awaits it, which must not be the run itself.
        let run = (registration.stripe as u32, registration.run);
        if this.limit.is_none() && task_scope::may_be_inside_run(this.engine.tag(), run) {
            return Poll::Ready(Err(WaitError::WouldDeadlock));
        }
        if registration.leave(&this.engine, context.waker()) {
            let waits = (this.limit.as_mut()).is_none_or(|limit| limit.leave(context.waker()));
            return match waits {
                true => Poll::Pending,
                false => Poll::Ready(this.reached()),
            };
        }
        this.can_look()?;
        this.limit = None;
        this.wait = Wait::Over;
        Poll::Ready(Ok(()))
    }
}

impl<F: Frontend> Drop for EndOfRun<F> {
    fn drop(&mut self) {
        if let Wait::For(registration) = std::mem::replace(&mut self.wait, Wait::Over) {
            let engine = Arc::clone(&self.engine);
            when_unlocked(move || {
                registration.withdraw(&engine);
            });
        }
    }
}
