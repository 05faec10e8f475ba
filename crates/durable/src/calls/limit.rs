//! Limits of waits. Threads bound their wait themselves, and tasks are woken by a wheel.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tourbillon::{Sleep, SleepError, Timer};

use super::errors::CallError;
use crate::sync::{Arc, OnceLock};

/// Wakes the tasks whose wait has a limit. It starts its thread when the first of them is pending,
/// and ends it with its last clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alarm(Arc<OnceLock<Timer>>);

impl Alarm {
    fn sleep(&self, span: Duration) -> Result<Sleep, CallError> {
        let timer = match self.0.get() {
            Some(timer) => timer,
            None => {
                let built = Timer::builder().inline().shards(1).build();
                let built = built.map_err(|error| not_kept(&error))?;
                // If another thread was faster, its timer stays, and this one ends.
                self.0.get_or_init(|| built)
            }
        };
        Ok(timer.sleep(span))
    }
}

fn not_kept(error: &dyn std::error::Error) -> CallError {
    CallError::Unknown(format!("the limit of the wait can't be kept: {error}"))
}

/// The end of a wait.
pub(crate) struct Limit {
    span: Duration,
    end: Instant,
    /// Armed by the first poll.
    sleep: Option<Sleep>,
}

impl Limit {
    /// A limit that begins now. `None` if it ends later than the clock can say, which is never.
    pub(super) fn new(span: Duration) -> Option<Self> {
        let end = Instant::now().checked_add(span)?;
        Some(Limit {
            span,
            end,
            sleep: None,
        })
    }

    pub(super) fn end(&self) -> Instant {
        self.end
    }

    /// The error of a wait that has reached its limit.
    pub(super) fn error(&self) -> CallError {
        CallError::TimedOut(self.span)
    }

    /// Sets the end to that of another limit, if it is earlier.
    pub(super) fn shorten(&mut self, other: Limit) {
        if other.end < self.end {
            *self = other;
        }
    }

    /// Is ready when the limit is reached, and wakes the task then.
    pub(super) fn poll(&mut self, alarm: &Alarm, context: &mut Context<'_>) -> Poll<CallError> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            self.sleep = None;
            return Poll::Ready(self.error());
        }
        let sleep = match &mut self.sleep {
            Some(sleep) => sleep,
            empty => match alarm.sleep(left) {
                Ok(sleep) => empty.insert(sleep),
                Err(error) => return Poll::Ready(error),
            },
        };
        Pin::new(sleep).poll(context).map(|slept| match slept {
            Ok(()) => self.error(),
            Err(SleepError::Forked) => CallError::Forked,
            Err(error) => not_kept(&error),
        })
    }
}
