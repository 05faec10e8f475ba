//! A future with a time limit, which is measured on the wheel.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::Timer;
use super::sleep::{Sleep, SleepError};
use crate::tick::Time;
use crate::when::When;

/// The reason why [`Timer::timeout`] has no output.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon::{Timer, TimeoutError};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// let timer = Timer::new()?;
/// let answer = std::future::pending::<u32>();
/// match timer.timeout(Duration::from_millis(20), answer).await {
///     Ok(answer) => println!("the answer is {answer}"),
///     Err(TimeoutError::Elapsed) => println!("no answer in 20 ms"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TimeoutError {
    /// The limit was reached before the future was ready.
    Elapsed,
    /// The time could not be measured, and the future was not ready at once.
    Sleep(SleepError),
}

impl fmt::Display for TimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TimeoutError::Elapsed => f.write_str("the time was over before the future was ready"),
            TimeoutError::Sleep(_) => f.write_str("the time could not be measured"),
        }
    }
}

impl std::error::Error for TimeoutError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TimeoutError::Elapsed => None,
            TimeoutError::Sleep(error) => Some(error),
        }
    }
}

pin_project! {
    /// The future of [`Timer::timeout`], which can be stored in a struct.
    ///
    /// Dropping it drops the inner future and cancels the timer.
    ///
    /// # Panics
    ///
    /// Panics if it is polled after it was ready.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::future::{Ready, ready};
    /// use std::time::Duration;
    /// use tourbillon::{Timer, Timeout};
    ///
    /// struct Request {
    ///     number: u64,
    ///     answer: Timeout<Ready<&'static str>>,
    /// }
    ///
    /// # let stepped = Timer::builder().build_stepped(1)?;
    /// # let timer = stepped.timer();
    /// let limit = Duration::from_secs(5);
    /// let request = Request { number: 7, answer: timer.timeout(limit, ready("done")) };
    /// # stepped.run_until(async {
    /// assert_eq!(request.answer.await, Ok("done"));
    /// # });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "futures do nothing unless they are awaited"]
    pub struct Timeout<F> {
        // `None` when the output was returned or the limit was reached.
        #[pin]
        future: Option<F>,
        sleep: Sleep,
    }
}

impl Timer {
    /// Returns the output of `future` if it is ready within `limit`: a delay from now, or one of
    /// the other forms of [`When`]. If both are ready at the same poll, the output wins.
    ///
    /// This is cancel-safe: dropping the returned future drops `future` and cancels the timer. So
    /// does reaching the limit.
    ///
    /// The limit ends `future` between two of its polls. The futures of this crate return to the
    /// runtime now and then, even if they are ready [without end](crate::coop). Code that blocks,
    /// or never returns from a poll, can't be ended.
    ///
    /// # Errors
    ///
    /// The returned future yields a [`TimeoutError`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Timer, TimeoutError};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// let timer = Timer::new()?;
    /// let limit = Duration::from_millis(20);
    /// assert_eq!(timer.timeout(limit, async { 7 }).await, Ok(7));
    /// let never = std::future::pending::<()>();
    /// assert_eq!(timer.timeout(limit, never).await, Err(TimeoutError::Elapsed));
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    #[doc(alias = "deadline")]
    pub fn timeout<F: Future>(&self, limit: impl Into<When>, future: F) -> Timeout<F> {
        Timeout {
            future: Some(future),
            sleep: self.sleep(limit),
        }
    }
}

impl<F> Timeout<F> {
    /// Returns when the limit is reached.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Timer;
    /// # let stepped = Timer::builder().build_stepped(1)?;
    /// # let timer = stepped.timer();
    /// let answer = timer.timeout(Duration::from_secs(5), async { 7 });
    /// assert_eq!(answer.deadline(), timer.now() + Duration::from_secs(5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn deadline(&self) -> Time {
        self.sleep.deadline()
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, TimeoutError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let future = (this.future.as_mut().as_pin_mut())
            .expect("a future with a timeout must not be polled after it was ready");
        // The future may be ready without having waited.
        ready!(this.sleep.poll_yield(context));
        // The future comes before the limit, so that its output wins.
        let output = match future.poll(context) {
            Poll::Ready(output) => Ok(output),
            Poll::Pending => match Pin::new(&mut *this.sleep).poll(context) {
                Poll::Ready(Ok(())) => Err(TimeoutError::Elapsed),
                Poll::Ready(Err(error)) => Err(TimeoutError::Sleep(error)),
                Poll::Pending => return Poll::Pending,
            },
        };
        // Nothing is left of them when the caller continues, also if this value is kept.
        this.future.set(None);
        this.sleep.cancel();
        Poll::Ready(output)
    }
}

impl<F> fmt::Debug for Timeout<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeout")
            .field("deadline", &self.deadline())
            .finish_non_exhaustive()
    }
}
