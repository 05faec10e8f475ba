//! Calls that are tried again when they fail.
//!
//! [`Timer::retry`] tries a call again as a [`Retry`] says, and a [`RetryBudget`] bounds the
//! retries of many callers together. A [`Backoff`] alone makes the delays between attempts.

mod budget;
mod policy;

pub use crate::backoff::{Backoff, Delays};
pub use budget::RetryBudget;
pub use policy::{GaveUp, Retry, RetryError, Verdict};

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::clock::Clock;
use crate::timer::{Sleep, Timer};
use policy::Course;

impl Timer {
    /// Calls `attempt` and awaits its future, again and again, until the output is `Ok` or `policy`
    /// gives up. It waits between the attempts on this timer, on any runtime.
    ///
    /// Nothing happens before the first poll. Attempts that fail at once and are tried again
    /// without a delay still [give the runtime its turns](crate::coop), so a timeout or a `select!`
    /// can end the call. Dropping the returned future drops the attempt that runs, and leaves
    /// nothing behind. The futures of attempts are not limited in time; put each into a
    /// [`timeout`](Self::timeout) for that.
    ///
    /// # Errors
    ///
    /// A [`RetryError`] with the error of the last attempt.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::retry::{Backoff, GaveUp, Retry};
    /// use tourbillon::Timer;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stepped = Timer::builder().build_stepped(1)?;
    /// # let timer = stepped.timer();
    /// # stepped.run_until(async {
    /// async fn ask(attempt: u32) -> Result<&'static str, &'static str> {
    ///     if attempt < 3 { Err("busy") } else { Ok("done") }
    /// }
    ///
    /// let second = Duration::from_secs(1);
    /// let policy = Retry::new(Backoff::exponential(second..=60 * second)).attempts(5);
    /// let mut attempt = 0;
    /// let answer = timer.retry(policy.clone(), || {
    ///     attempt += 1;
    ///     ask(attempt)
    /// });
    /// assert_eq!(answer.await.unwrap(), "done"); // after 1 s and 2 s more
    ///
    /// let error = timer.retry(policy, || async { Err::<(), _>("busy") }).await.unwrap_err();
    /// assert_eq!((error.error, error.reason, error.attempts), ("busy", GaveUp::Attempts, 5));
    /// # });
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "backoff")]
    pub fn retry<A, F, T, E>(&self, policy: Retry<E>, attempt: A) -> Retrying<A, F, E>
    where
        A: FnMut() -> F,
        F: Future<Output = Result<T, E>>,
    {
        Retrying {
            attempt,
            sleep: self.sleep(Duration::ZERO),
            clock: self.clock().clone(),
            policy: Some(policy),
            course: None,
            stage: Stage::Begins,
        }
    }

    /// Like [`retry`](Self::retry), for a closure that blocks.
    ///
    /// # Errors
    ///
    /// As for [`retry`](Self::retry).
    ///
    /// # Blocking
    ///
    /// Blocks until the closure succeeds or `policy` gives up, or until the timer is closed. Do not
    /// call it on the thread that drives a stepped timer, whose time passes only between two calls.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::TcpStream;
    /// use std::time::Duration;
    /// use tourbillon::retry::{Backoff, Retry};
    /// use tourbillon::Timer;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr()?;
    /// let timer = Timer::new()?;
    /// let backoff = Backoff::exponential(Duration::from_millis(50)..=Duration::from_secs(2));
    /// let policy = Retry::new(backoff.jitter(0.5)).within(Duration::from_secs(10));
    /// let stream = timer.retry_blocking(policy, || TcpStream::connect(address))?;
    /// # drop(stream);
    /// # Ok(())
    /// # }
    /// ```
    pub fn retry_blocking<T, E>(
        &self,
        policy: Retry<E>,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, RetryError<E>> {
        let mut course = Course::begin(policy, self.now());
        loop {
            let error = match attempt() {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let reason = match course.after(&error, self.now()) {
                Ok(next) => match self.sleep(next).block() {
                    Ok(()) => continue,
                    Err(_) => GaveUp::Timer,
                },
                Err(reason) => reason,
            };
            return Err(course.give_up(reason, error, self.now()));
        }
    }
}

/// The future of [`Timer::retry`].
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon::Timer;
/// use tourbillon::retry::{Backoff, Retry};
///
/// # let stepped = Timer::builder().build_stepped(1)?;
/// # let timer = stepped.timer();
/// let policy = Retry::new(Backoff::fixed(Duration::from_millis(100)));
/// // Nothing is called before the first poll.
/// let call = timer.retry(policy, async || Ok::<_, &str>(7));
/// assert_eq!(stepped.run_until(call).unwrap(), 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a future does nothing unless it is awaited"]
pub struct Retrying<A, F, E> {
    attempt: A,
    sleep: Sleep,
    clock: Clock,
    /// Until the first poll.
    policy: Option<Retry<E>>,
    /// From the first poll on.
    course: Option<Course<E>>,
    stage: Stage<F, E>,
}

enum Stage<F, E> {
    Begins,
    /// Boxed, since each attempt has a future of its own, and a future must not move.
    Attempt(Pin<Box<F>>),
    /// Waits after this error.
    Waits(E),
    Ended,
}

// No field is pinned in place: the future of an attempt has a box.
impl<A, F, E> Unpin for Retrying<A, F, E> {}

impl<A, F, T, E> Future for Retrying<A, F, E>
where
    A: FnMut() -> F,
    F: Future<Output = Result<T, E>>,
{
    type Output = Result<T, RetryError<E>>;

    /// Must not be polled again after it was ready.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.policy.is_some() {
            // The first attempt may be ready at once. Between further attempts the sleep does this.
            ready!(this.sleep.poll_yield(context));
        }
        if let Some(policy) = this.policy.take() {
            this.course = Some(Course::begin(policy, this.clock.now()));
        }
        let course = this.course.as_mut().expect("made at the first poll");
        loop {
            match &mut this.stage {
                Stage::Begins => this.stage = Stage::Attempt(Box::pin((this.attempt)())),
                Stage::Attempt(future) => {
                    let output = ready!(future.as_mut().poll(context));
                    // The attempt ends here: what it holds is free while the next one is waited
                    // for.
                    this.stage = Stage::Ended;
                    let error = match output {
                        Ok(value) => return Poll::Ready(Ok(value)),
                        Err(error) => error,
                    };
                    let now = this.clock.now();
                    match course.after(&error, now) {
                        Ok(next) => {
                            this.sleep.reset(next);
                            this.stage = Stage::Waits(error);
                        }
                        Err(reason) => {
                            return Poll::Ready(Err(course.give_up(reason, error, now)));
                        }
                    }
                }
                Stage::Waits(_) => {
                    let slept = ready!(Pin::new(&mut this.sleep).poll(context));
                    let Stage::Waits(error) = std::mem::replace(&mut this.stage, Stage::Begins)
                    else {
                        unreachable!("it was this stage just now");
                    };
                    if slept.is_err() {
                        this.stage = Stage::Ended;
                        let now = this.clock.now();
                        return Poll::Ready(Err(course.give_up(GaveUp::Timer, error, now)));
                    }
                }
                Stage::Ended => panic!("polled again after it was ready"),
            }
        }
    }
}

impl<A, F, E> fmt::Debug for Retrying<A, F, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retrying").finish_non_exhaustive()
    }
}
