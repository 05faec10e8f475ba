//! When a call is tried again, and when it is given up.

use std::fmt;
use std::time::Duration;

use super::RetryBudget;
use crate::backoff::{Backoff, Delays};
use crate::sync::Arc;
use crate::tick::Time;

/// What a [judge](Retry::judge) makes of an error.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use std::io::{Error, ErrorKind};
/// use tourbillon::retry::{Backoff, Retry, Verdict};
///
/// let policy = Retry::new(Backoff::fixed(Duration::from_millis(100)))
///     .judge(|error: &Error| match error.kind() {
///         ErrorKind::PermissionDenied => Verdict::GiveUp,
///         ErrorKind::WouldBlock => Verdict::After(Duration::from_secs(1)),
///         _ => Verdict::Again,
///     });
/// # drop(policy);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// The error may pass: try again after the delay of the backoff.
    Again,
    /// The error may pass: try again after this delay or that of the backoff, whichever is longer.
    /// This is for servers that say when to come back, as by `Retry-After`.
    After(Duration),
    /// The error is permanent: give up.
    GiveUp,
}

/// The reason why a call was given up.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon::Timer;
/// use tourbillon::retry::{Backoff, GaveUp, Retry};
///
/// # let stepped = Timer::builder().build_stepped(1)?;
/// # let timer = stepped.timer();
/// let policy = Retry::new(Backoff::fixed(Duration::from_millis(100))).attempts(3);
/// let call = timer.retry(policy, async || Err::<(), _>("no route"));
/// let error = stepped.run_until(call).unwrap_err();
/// assert_eq!((error.reason, error.attempts), (GaveUp::Attempts, 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum GaveUp {
    /// The judge said that the error is permanent.
    Permanent,
    /// All [attempts](Retry::attempts) have failed.
    Attempts,
    /// The next attempt would have begun after the [time](Retry::within) was over.
    Time,
    /// The [budget](Retry::budget) had no token left.
    Budget,
    /// The timer could not wait: it is full, or closed.
    Timer,
}

/// When a call is tried again: the delays, and the limits. A call goes on until one of the limits
/// is reached, and without a limit until it succeeds.
///
/// See [`Timer::retry`](crate::Timer::retry).
///
/// # Examples
///
/// ```
/// use std::io::{Error, ErrorKind};
/// use std::time::Duration;
/// use tourbillon::retry::{Backoff, Retry, Verdict};
///
/// let backoff = Backoff::exponential(Duration::from_millis(100)..=Duration::from_secs(5));
/// let retry = Retry::new(backoff.jitter(0.5))
///     .attempts(5)
///     .within(Duration::from_secs(30))
///     .judge(|error: &Error| match error.kind() {
///         ErrorKind::NotFound => Verdict::GiveUp,
///         _ => Verdict::Again,
///     });
/// # drop(retry);
/// ```
#[must_use = "a policy does nothing until it is given to `Timer::retry`"]
pub struct Retry<E> {
    backoff: Backoff,
    attempts: u32,
    within: Duration,
    budget: Option<RetryBudget>,
    judge: Option<Judge<E>>,
}

type Judge<E> = Arc<dyn Fn(&E) -> Verdict + Send + Sync>;

impl<E> Retry<E> {
    /// Creates a policy without limits.
    pub const fn new(backoff: Backoff) -> Self {
        Retry {
            backoff,
            attempts: u32::MAX,
            within: Duration::MAX,
            budget: None,
            judge: None,
        }
    }

    /// Sets the greatest number of attempts, the first one included. Zero counts as one: the first
    /// attempt is always made.
    pub const fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Sets a time, counted from the call, after which no attempt begins. A wait that would end
    /// later is not begun: the call is given up at once. An attempt that runs then is not
    /// interrupted; limit the attempts themselves by [`Timer::timeout`](crate::Timer::timeout).
    pub const fn within(mut self, limit: Duration) -> Self {
        self.within = limit;
        self
    }

    /// Sets a bound on the retries of all calls that share the budget.
    pub fn budget(mut self, budget: &RetryBudget) -> Self {
        self.budget = Some(budget.clone());
        self
    }

    /// Sets what decides whether an error may pass. Without it, every error may.
    pub fn judge(mut self, judge: impl Fn(&E) -> Verdict + Send + Sync + 'static) -> Self {
        self.judge = Some(Arc::new(judge));
        self
    }
}

impl<E> Clone for Retry<E> {
    fn clone(&self) -> Self {
        Retry {
            backoff: self.backoff.clone(),
            attempts: self.attempts,
            within: self.within,
            budget: self.budget.clone(),
            judge: self.judge.clone(),
        }
    }
}

impl<E> fmt::Debug for Retry<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry")
            .field("backoff", &self.backoff)
            .field("attempts", &self.attempts)
            .field("within", &self.within)
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}

/// One call under a policy. It decides after each failed attempt; it waits for nothing itself.
pub(super) struct Course<E> {
    retry: Retry<E>,
    delays: Delays,
    begun: Time,
    attempts: u32,
}

impl<E> Course<E> {
    /// Begins a call.
    pub(super) fn begin(retry: Retry<E>, now: Time) -> Self {
        if let Some(budget) = &retry.budget {
            budget.deposit();
        }
        Course {
            delays: retry.backoff.iter(),
            retry,
            begun: now,
            attempts: 0,
        }
    }

    /// Returns when the next attempt begins, after one that has ended with `error`.
    pub(super) fn after(&mut self, error: &E, now: Time) -> Result<Time, GaveUp> {
        self.attempts = self.attempts.saturating_add(1);
        let least = match self.retry.judge.as_ref().map(|judge| judge(error)) {
            Some(Verdict::GiveUp) => return Err(GaveUp::Permanent),
            Some(Verdict::After(delay)) => delay,
            Some(Verdict::Again) | None => Duration::ZERO,
        };
        if self.attempts >= self.retry.attempts {
            return Err(GaveUp::Attempts);
        }
        let delay = self.delays.next().unwrap_or(Duration::MAX).max(least);
        let next = now + delay;
        if next > self.begun + self.retry.within {
            return Err(GaveUp::Time);
        }
        // Last, so that only a retry that is made takes a token.
        if self
            .retry
            .budget
            .as_ref()
            .is_some_and(|budget| !budget.withdraw())
        {
            return Err(GaveUp::Budget);
        }
        Ok(next)
    }

    /// Makes the error of a call that is given up at `now`.
    pub(super) fn give_up(&self, reason: GaveUp, error: E, now: Time) -> RetryError<E> {
        RetryError {
            error,
            reason,
            attempts: self.attempts,
            elapsed: now.since(self.begun),
        }
    }
}

/// The error of a call that was given up.
///
/// # Examples
///
/// ```
/// use tourbillon::retry::RetryError;
///
/// fn log(error: &RetryError<std::io::Error>) {
///     eprintln!("{error}; the last of {} errors: {}", error.attempts, error.error);
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RetryError<E> {
    /// The error of the last attempt.
    pub error: E,
    /// Why there was no further attempt.
    pub reason: GaveUp,
    /// The number of attempts that were made.
    pub attempts: u32,
    /// The time from the call until it was given up, by the timer's clock.
    pub elapsed: Duration,
}

impl<E> fmt::Display for RetryError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (attempts, elapsed) = (self.attempts, self.elapsed);
        let ending = if attempts == 1 { "" } else { "s" };
        let reason = match self.reason {
            GaveUp::Permanent => "the error is permanent",
            GaveUp::Attempts => "no further attempt is allowed",
            GaveUp::Time => "the next attempt would begin too late",
            GaveUp::Budget => "the budget of retries is used up",
            GaveUp::Timer => "the timer is full or closed",
        };
        write!(
            f,
            "gave up after {attempts} attempt{ending} in {elapsed:?}: {reason}"
        )
    }
}

impl<E: std::error::Error + 'static> std::error::Error for RetryError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
