//! The end of a run that was cancelled, for a thread that waits or a task that awaits.
//!
//! The token of a thread's parker makes an unpark before the park count. A poll that finds its
//! registration leaves its waker in it.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::super::limits::LimitId;
use super::super::{Engine, Frontend, task_scope};
use super::Registration;
use crate::error::WaitError;
use crate::shard::{Cancelling, RunEvent, Stripe, Waiter, is_under_lock, when_unlocked};
use crate::sync::{Arc, Parker};
use crate::tick::Time;

/// The end of a run that was cancelled. Dropping it gives up the wait.
pub(crate) struct EndOfRun<F: Frontend> {
    engine: Arc<Engine<F>>,
    wait: Wait,
    /// When the wait ends, if it has a limit.
    until: Option<Time>,
    /// The limit in the engine's list, from the first poll on.
    limit: Option<LimitId>,
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
            until: None,
            limit: None,
        };
        (cancelling, end)
    }

    /// Limits the wait to `limit` from now. The last limit counts.
    pub(crate) fn set_limit(&mut self, limit: Duration) {
        self.end_limit();
        self.until = Some(self.engine.now() + limit);
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
        if self.until.is_none() && task_scope::is_inside(engine.tag()) {
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
            // In an engine that a test steps, nothing goes on while its thread waits in a task.
            let in_vain = engine.is_stepped() && task_scope::is_inside(engine.tag());
            if in_vain || self.until.is_some_and(|until| engine.now() >= until) {
                return self.reached();
            }
            engine.clock().park_until(&parker, self.until);
        }
    }

    /// Ends the wait at its limit.
    fn reached(&mut self) -> Result<(), WaitError> {
        self.end_limit();
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

    fn end_limit(&mut self) {
        if let Some(limit) = self.limit.take() {
            self.engine.end_limit(limit);
        }
    }

    /// Returns whether the limit is reached, and leaves the waker in it if not.
    fn is_reached(&mut self, waker: &Waker) -> bool {
        let Some(until) = self.until.filter(|until| *until != Time::MAX) else {
            return false;
        };
        if self.limit.is_none() {
            self.limit = self.engine.begin_limit(until);
        }
        match self.limit {
            None => true,
            Some(limit) => !self.engine.leave_at_limit(limit, waker),
        }
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
        if this.until.is_none() && task_scope::may_be_inside_run(this.engine.tag(), run) {
            return Poll::Ready(Err(WaitError::WouldDeadlock));
        }
        if registration.leave(&this.engine, context.waker()) {
            if !this.is_reached(context.waker()) {
                return Poll::Pending;
            }
            return Poll::Ready(this.reached());
        }
        this.can_look()?;
        this.end_limit();
        this.wait = Wait::Over;
        Poll::Ready(Ok(()))
    }
}

impl<F: Frontend> Drop for EndOfRun<F> {
    fn drop(&mut self) {
        self.end_limit();
        if let Wait::For(registration) = std::mem::replace(&mut self.wait, Wait::Over) {
            let engine = Arc::clone(&self.engine);
            when_unlocked(move || {
                registration.withdraw(&engine);
            });
        }
    }
}
