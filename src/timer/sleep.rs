//! Sleeping on the wheel: the payload is the waker itself, and nothing is boxed.
//!
//! A sleep is armed when it is first polled, under the polling thread's stripe. From then on its
//! stripe's lock decides: a poll that finds the entry leaves its waker there, and whoever takes the
//! entry out (a run, a shutdown, a drop of the timer) drops the waker, which wakes. So the waker of
//! the last poll is woken in every case, and a poll that does not find the entry is ready.
//! **TIMER-1**
//!
//! Only the sleep itself cancels without waking. Wakers are the runtime's code: they are cloned,
//! woken and dropped without a lock.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{Due, Link, Timer, stripe_of_thread};
use crate::engine::Lifecycle;
use crate::error::UNDER_LOCK;
use crate::job::{contain, drop_pair};
use crate::shard::{Cancelling, EntryId, Moving, Refusal, is_under_a_lock, when_unlocked};
use crate::sync::Arc;
use crate::tick::Time;
use crate::waker::leave;

/// Wakes a task when it is dropped, unless it was disarmed.
pub(super) struct WakeUp(Option<Waker>);

impl WakeUp {
    pub(super) fn wake(mut self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }
}

impl Drop for WakeUp {
    fn drop(&mut self) {
        if let Some(waker) = self.0.take() {
            // The runtime's code.
            let _ = contain(|| waker.wake());
        }
    }
}

/// A future that is ready at a moment; see [`Timer::sleep`].
///
/// Dropping it cancels its timer. If it is dropped by user code that runs under a lock of this
/// crate, the thread cancels the timer as soon as the lock is released. A sleep can be
/// [reset](Self::reset), also when it is over. The first poll arms it. Further polls neither
/// allocate nor clone a waker, unless the task has moved.
#[must_use = "futures do nothing unless they are awaited"]
pub struct Sleep {
    link: Link,
    deadline: Time,
    armed: Option<(usize, EntryId)>,
}

/// Why a sleep ended before its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SleepError {
    /// `max_pending` timers are pending. Passes when one of them ends. (Also when a stripe holds
    /// four billion, its limit without a bound.)
    Full,
    /// The timer is closed, for good.
    Closed,
    /// The sleep was polled while the thread was panicking under a lock of this crate, see
    /// [panic hooks](crate#panic-hooks). The error passes when the panic has released the lock.
    UnderLock,
}

impl fmt::Display for SleepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SleepError::Full => {
                "as many timers are pending as max_pending allows; try again when one has ended"
            }
            SleepError::Closed => "the timer is closed",
            SleepError::UnderLock => UNDER_LOCK,
        })
    }
}

impl std::error::Error for SleepError {}

/// Why [`Timer::timeout`] has no output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TimeoutError {
    /// The time was over before the future was ready.
    Elapsed,
    /// There was nothing to measure the time with, and the future was not ready at once.
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

impl Timer {
    /// A future that is ready at or after `delay` from now. It needs no particular runtime.
    ///
    /// The time runs from this call on; nothing is armed before the first poll. Each sleep that is
    /// polled counts as one pending timer. It wakes its task on the timer's workers; for very many
    /// sleeps a timer that is built [`inline`](super::TimerBuilder::inline) saves the hand-over.
    ///
    /// # Errors
    ///
    /// The future's: [`Full`](SleepError::Full) at `max_pending`, [`Closed`](SleepError::Closed) if
    /// the timer is shut down or dropped before the sleep is over. A shutdown wakes the sleeping
    /// tasks before it waits for running ones. A sleep that is polled only after its deadline is
    /// ready without an error, whatever became of the timer. With
    /// [`Shutdown::Drain`](crate::Shutdown::Drain) the sleeps go on to their end.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::Timer;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// let timer = Timer::new()?;
    /// timer.sleep(Duration::from_millis(20)).await?;
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn sleep(&self, delay: Duration) -> Sleep {
        self.sleep_until(self.now() + delay)
    }

    /// Like [`sleep`](Self::sleep), until a moment of the timer's clock.
    pub fn sleep_until(&self, deadline: Time) -> Sleep {
        let stripe = stripe_of_thread(self.server.engine());
        Sleep {
            link: Arc::clone(&self.links[stripe]),
            deadline,
            armed: None,
        }
    }

    /// The output of `future`, if it is ready within `limit` from now. If both are ready at the
    /// same poll it is the output.
    ///
    /// Cancel-safe: dropping it drops `future` and cancels the timer. So does its end by time.
    ///
    /// # Errors
    ///
    /// The future's: [`TimeoutError`].
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
    pub fn timeout<F: Future>(
        &self,
        limit: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, TimeoutError>> + use<F> {
        let mut sleep = self.sleep(limit);
        async move {
            let mut future = pin!(future);
            poll_fn(|context| {
                if let Poll::Ready(output) = future.as_mut().poll(context) {
                    return Poll::Ready(Ok(output));
                }
                Pin::new(&mut sleep).poll(context).map(|slept| {
                    Err(slept.map_or_else(TimeoutError::Sleep, |()| TimeoutError::Elapsed))
                })
            })
            .await
        }
    }
}

impl Sleep {
    /// When it is over.
    #[must_use]
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// Whether its moment has come.
    #[must_use]
    pub fn is_elapsed(&self) -> bool {
        self.link.now() >= self.deadline
    }

    /// Lets it begin anew: it is over at `delay` from now. Constant, and for a later moment a
    /// single write, so a connection that is idle too late can be told by one sleep that each
    /// message resets.
    pub fn reset(&mut self, delay: Duration) {
        self.reset_until(self.link.now() + delay);
    }

    /// Like [`reset`](Self::reset), to a moment of the timer's clock.
    pub fn reset_until(&mut self, deadline: Time) {
        self.deadline = deadline;
        let Some((stripe, id)) = self.armed else {
            return;
        };
        let now = self.link.now();
        let moved = self.link.with(stripe, |stripe| {
            stripe.reschedule_id(id, deadline, now, false)
        });
        if !matches!(moved, Moving::Moved { .. }) {
            // It has woken its task already: the next poll arms it. So it does when the thread
            // panics under a lock, and the timer could not be looked for.
            if is_under_a_lock() {
                self.cancel();
            }
            self.armed = None;
        }
    }

    fn arm(&mut self, context: &Context<'_>, now: Time) -> Poll<Result<(), SleepError>> {
        let engine = &**self.link;
        let stripe = stripe_of_thread(engine);
        let mut given = Some(WakeUp(Some(context.waker().clone())));
        let answer = engine.arm(
            stripe,
            &mut given,
            |stripe, _| stripe.admit_keyless(),
            |stripe, admission, wake_up| {
                stripe.arm_keyless(admission, (), Due::Wake(wake_up), self.deadline, now)
            },
        );
        if let Some(mut unused) = given {
            drop(unused.0.take());
        }
        match answer {
            Ok(id) => {
                self.armed = Some((stripe, id));
                Poll::Pending
            }
            Err(Refusal::NoPermit | Refusal::NoSlot) => Poll::Ready(Err(SleepError::Full)),
            Err(Refusal::UnderLock) => Poll::Ready(Err(SleepError::UnderLock)),
            Err(_) => Poll::Ready(Err(SleepError::Closed)),
        }
    }

    /// Takes the timer back without waking anybody. Under a lock, as soon as that is released.
    fn cancel(&mut self) {
        let Some((stripe, id)) = self.armed.take() else {
            return;
        };
        if !is_under_a_lock() {
            return take_back(&self.link, stripe, id);
        }
        let link = Arc::clone(&self.link);
        when_unlocked(move || take_back(&link, stripe, id));
    }
}

fn take_back(link: &Link, stripe: usize, id: EntryId) {
    let mut wake_up = None;
    link.with(stripe, |stripe| {
        if let Cancelling::Cancelled { dropped, .. } = stripe.cancel_id(id) {
            wake_up = dropped.1;
        }
    });
    if let Some(Due::Wake(mut wake_up)) = wake_up {
        // Also while the thread panics, when another panic would end the process.
        drop_pair(((), wake_up.0.take()));
    }
}

impl Future for Sleep {
    type Output = Result<(), SleepError>;

    /// Ready again at once if it is polled after its end.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let now = self.link.now();
        if now >= self.deadline {
            self.cancel();
            return Poll::Ready(Ok(()));
        }
        let Some((stripe, id)) = self.armed else {
            return self.arm(context, now);
        };
        let waits = leave(context.waker(), |show| {
            self.link.with(stripe, |stripe| {
                if let Some(Due::Wake(WakeUp(Some(left)))) = stripe.unclaimed_of(id) {
                    show(left);
                }
            });
        });
        if waits {
            return Poll::Pending;
        }
        if is_under_a_lock() {
            // It was not looked for: it may well be there.
            return Poll::Ready(Err(SleepError::UnderLock));
        }
        self.armed = None;
        // It is over, maybe by a clock that was set back since; or the timer closed before.
        let is_over = self.is_elapsed() || self.link.closing().state() == Lifecycle::Running;
        Poll::Ready(if is_over {
            Ok(())
        } else {
            Err(SleepError::Closed)
        })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep")
            .field("deadline", &self.deadline)
            .field("armed", &self.armed.is_some())
            .finish_non_exhaustive()
    }
}
