//! Limits of waits. Threads bound their wait themselves, and tasks are woken by a wheel.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tourbillon::{BuildError, Sleep, SleepError, Timer};

use super::errors::CallError;
use crate::sync::{Arc, OnceLock, RunsOn};

/// Wakes the tasks whose wait has a limit. It starts with the first of them that is pending, and
/// ends with its last clone.
#[derive(Clone, Debug)]
pub(crate) struct Alarm(Arc<AlarmState>);

#[derive(Debug)]
struct AlarmState {
    timer: OnceLock<Timer>,
    runs_on: RunsOn,
}

impl Alarm {
    pub(crate) fn new(runs_on: RunsOn) -> Self {
        let timer = OnceLock::new();
        Alarm(Arc::new(AlarmState { timer, runs_on }))
    }

    fn sleep(&self, span: Duration) -> Result<Sleep, CallError> {
        let timer = match self.0.timer.get() {
            Some(timer) => timer,
            None => {
                let built = self.0.build().map_err(|error| not_kept(&error))?;
                // If another thread was faster, its timer stays, and this one ends.
                self.0.timer.get_or_init(|| built)
            }
        };
        Ok(timer.sleep(span))
    }
}

impl AlarmState {
    fn build(&self) -> Result<Timer, BuildError> {
        let builder = Timer::builder().shards(1);
        match self.runs_on {
            // It only calls wakers, for which one thread will do.
            RunsOn::Own => builder.inline().build(),
            RunsOn::Usual | RunsOn::Runtime(_) => self.runs_on.tell(builder).build(),
        }
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
