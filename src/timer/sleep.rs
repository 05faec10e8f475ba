//! Sleeping on the wheel. The payload is the waker itself, so nothing is boxed.
//!
//! A sleep is armed in the polling thread's stripe when it is first polled. From then on the lock
//! of that stripe decides. A poll that finds the entry leaves its waker there. Whoever takes the
//! entry out (a run, a shutdown, a drop of the timer) drops the waker, which wakes the task. So the
//! waker of the last poll is woken in every case, and a poll that does not find the entry is ready.
//! **TIMER-1**
//!
//! Only the sleep itself cancels without waking. Wakers are code of their runtime, so they are
//! cloned, woken and dropped without a lock.

use std::fmt;
use std::mem::replace;
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker, ready};

use super::stripes::stripe_of_sleeps;
use super::{Link, Timer, TimerAction};
use crate::coop;
use crate::engine::Lifecycle;
use crate::error::{FORKED, UNDER_LOCK};
use crate::job::{catch_panic, drop_catching};
use crate::shard::{EntryId, Moving, Refusal, is_under_lock, when_unlocked};
use crate::sync::{Arc, Parker, Unparker};
use crate::tick::Time;
use crate::waker::leave;
use crate::when::When;

/// Wakes a task when it is dropped, unless it was disarmed.
pub(crate) struct WakeUp(Option<Waker>);

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
            // A waker is code of its runtime.
            let _ = catch_panic(|| waker.wake());
        }
    }
}

/// A future that is ready at a given time; see [`Timer::sleep`].
///
/// Dropping it cancels its timer. If user code drops it under a lock of this crate, the thread
/// cancels the timer after the lock is released. A sleep can be [reset](Self::reset), even after
/// its end. The first poll arms it. Further polls neither allocate nor clone a waker, unless the
/// task has moved.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Timer;
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// # let timer = Timer::new()?;
/// // One sleep for the whole connection, which each message resets.
/// let mut idle = timer.sleep(Duration::from_millis(20));
/// idle.reset(Duration::from_millis(20));
/// idle.await?;
/// println!("nothing came for 20 ms");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "futures do nothing unless they are awaited"]
pub struct Sleep {
    link: Link,
    deadline: Time,
    state: SleepState,
}

enum SleepState {
    Idle,
    /// Not armed, and the next poll may be ready, since the runtime had its turn.
    Yielded,
    /// The stripe and the entry.
    Armed(usize, EntryId),
}

/// The reason why a sleep ended early.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon::{SleepError, Timer};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// let timer = Timer::new()?;
/// let sleep = timer.sleep(Duration::from_secs(3600));
/// drop(timer);
/// assert_eq!(sleep.await, Err(SleepError::Closed));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SleepError {
    /// `max_pending` timers are pending, or a stripe holds four billion timers. The error passes
    /// when one of them ends.
    Full,
    /// The timer is closed. The error is permanent.
    Closed,
    /// The sleep was polled while the thread was panicking under a lock of this crate, see
    /// [panic hooks](crate#panic-hooks). The error passes when the panic has released the lock.
    UnderLock,
    /// This process is a forked copy of the one that built the timer; see
    /// [forks](crate::guide::shutdown#forks). This is permanent.
    Forked,
}

impl fmt::Display for SleepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SleepError::Full => {
                "as many timers are pending as max_pending allows; try again when one has ended"
            }
            SleepError::Closed => "the timer is closed",
            SleepError::UnderLock => UNDER_LOCK,
            SleepError::Forked => FORKED,
        })
    }
}

impl std::error::Error for SleepError {}

impl Timer {
    /// Returns a future that is ready at or after the time that `when` means: a delay from now, or
    /// one of the other forms of [`When`]. It needs no particular runtime.
    ///
    /// A delay counts from this call, but nothing is armed before the first poll. Each sleep that
    /// was polled counts as one pending timer. The timer's workers wake the task. While all of them
    /// are in long tasks, a thread of the shard wakes it instead,
    /// so a sleep ends although tasks hang. A waker should not block. For very many sleeps, a timer
    /// that is built [`inline`](super::TimerBuilder::inline) saves the hand-over.
    ///
    /// # Errors
    ///
    /// The future returns [`Full`](SleepError::Full) at `max_pending`, and
    /// [`Closed`](SleepError::Closed) if the timer is shut down or dropped before the sleep is
    /// over.
    ///
    /// A shutdown wakes the sleeping tasks before it waits for running ones. With
    /// [`Shutdown::Drain`](crate::Shutdown::Drain) the sleeps continue to their end. A sleep that
    /// is polled only after its deadline is ready without an error, whatever happened to the timer.
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
    #[doc(alias = "delay")]
    pub fn sleep(&self, when: impl Into<When>) -> Sleep {
        let (deadline, _) = self.server.engine().resolve(when.into());
        let stripe = stripe_of_sleeps(self.server.engine());
        Sleep {
            link: Arc::clone(&self.links[stripe]),
            deadline,
            state: SleepState::Idle,
        }
    }
}

impl Sleep {
    /// Returns when the sleep is over.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Timer;
    /// # let stepped = Timer::builder().build_stepped(1)?;
    /// # let timer = stepped.timer();
    /// let nap = timer.sleep(Duration::from_secs(60));
    /// assert_eq!(nap.deadline(), timer.now() + Duration::from_secs(60));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// Returns whether the deadline has come.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Timer;
    /// # let timer = Timer::new()?;
    /// assert!(!timer.sleep(Duration::from_secs(60)).is_elapsed());
    /// assert!(timer.sleep(Duration::ZERO).is_elapsed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_elapsed(&self) -> bool {
        self.link.reading_until(self.deadline).low() >= self.deadline
    }

    /// Restarts the sleep with another end; [`When`] says what `when` may be. This takes constant
    /// time, and a single write for a later deadline. So one sleep that each message resets can
    /// report an idle connection.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Timer;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// # let timer = Timer::new()?;
    /// let mut sleep = timer.sleep(Duration::from_secs(3600));
    /// sleep.reset(Duration::from_millis(20));
    /// sleep.await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reset(&mut self, when: impl Into<When>) {
        let (deadline, now) = self.link.resolve(when.into());
        self.deadline = deadline;
        let SleepState::Armed(stripe, id) = self.state else {
            return;
        };
        let moved = self.link.with(stripe, |stripe| {
            stripe.reschedule_id(id, deadline, now, false)
        });
        if !matches!(moved, Moving::Moved { .. }) {
            // The entry is gone and its task was woken, so the next poll arms the sleep again. But
            // while the thread panics under a lock, no stripe was searched, and the entry has to go
            // later.
            if is_under_lock() {
                self.cancel();
            }
            self.state = SleepState::Idle;
        }
    }

    /// Gives the runtime a turn if there have been too many answers without one; see
    /// [`coop`](crate::coop). A sleep that was armed has waited, so it is not counted. Neither is
    /// one that has yielded, until it is ready or [cancelled](Self::cancel).
    pub(crate) fn poll_yield(&mut self, context: &Context<'_>) -> Poll<()> {
        if let SleepState::Idle = self.state {
            // Before the waker is called, which is code of its runtime.
            self.state = SleepState::Yielded;
            ready!(coop::count(context));
            self.state = SleepState::Idle;
        }
        Poll::Ready(())
    }

    /// Returns the current time.
    pub(super) fn now(&self) -> Time {
        self.link.now()
    }

    /// Blocks the calling thread until the sleep is over.
    pub(crate) fn block(mut self) -> Result<(), SleepError> {
        let parker = Parker::new();
        let waker = Waker::from(Arc::new(WakeThread(parker.unparker().clone())));
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(slept) = Pin::new(&mut self).poll(&mut context) {
                return slept;
            }
            parker.park();
        }
    }

    /// Arms the sleep with the waker of the current poll.
    fn arm(&mut self, context: &Context<'_>, now: Time) -> Poll<Result<(), SleepError>> {
        let engine = &**self.link;
        let stripe = stripe_of_sleeps(engine);
        let wake_up = WakeUp(Some(context.waker().clone()));
        let armed = engine.arm_keyless(stripe, wake_up, TimerAction::Wake, self.deadline, now);
        match armed {
            Ok(id) => {
                self.state = SleepState::Armed(stripe, id);
                Poll::Pending
            }
            Err((refusal, unused)) => self.refused(context, refusal, unused),
        }
    }

    /// The answer to a poll whose entry was refused.
    #[cold]
    #[inline(never)]
    fn refused(
        &mut self,
        context: &Context<'_>,
        refusal: Refusal,
        mut unused: WakeUp,
    ) -> Poll<Result<(), SleepError>> {
        // The waker is dropped without waking: the poll reports the error itself.
        drop(unused.0.take());
        ready!(self.poll_yield(context));
        self.state = SleepState::Idle;
        Poll::Ready(Err(match refusal {
            Refusal::NoPermit | Refusal::NoSlot => SleepError::Full,
            Refusal::UnderLock => SleepError::UnderLock,
            Refusal::Forked => SleepError::Forked,
            _ => SleepError::Closed,
        }))
    }

    /// The end of a sleep whose entry was not found, before the deadline.
    #[cold]
    #[inline(never)]
    fn ended_early(&mut self) -> Result<(), SleepError> {
        if self.link.is_forked() {
            self.state = SleepState::Idle;
            return Err(SleepError::Forked);
        }
        if is_under_lock() {
            // The thread panics under a lock: no stripe was searched, and the entry may be there.
            return Err(SleepError::UnderLock);
        }
        self.state = SleepState::Idle;
        // The entry is gone. Either the sleep is over, even if the clock was set back since, or the
        // timer was closed.
        if self.is_elapsed() || self.link.lifecycle() == Lifecycle::Running {
            Ok(())
        } else {
            Err(SleepError::Closed)
        }
    }

    /// Cancels the timer without waking the task. Under a lock, this happens when the lock is
    /// released.
    pub(super) fn cancel(&mut self) {
        let SleepState::Armed(stripe, id) = replace(&mut self.state, SleepState::Idle) else {
            return;
        };
        if !is_under_lock() {
            return take_back(&self.link, stripe, id);
        }
        let link = Arc::clone(&self.link);
        when_unlocked(move || take_back(&link, stripe, id));
    }
}

/// The waker of a thread.
struct WakeThread(Unparker);

impl Wake for WakeThread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// Takes the entry out and drops its waker without waking the task.
fn take_back(link: &Link, stripe: usize, id: EntryId) {
    let mut stripe = link.lock(stripe);
    // A wake-up never runs: it ends with its claim. So the entry is armed, or gone.
    let Some((_, (), action)) = stripe.cancel_armed_id(id) else {
        return stripe.unlock();
    };
    stripe.unlock();
    if let TimerAction::Wake(mut wake_up) = action {
        // If the thread panics already, a panic of the waker's drop would end the process; this
        // catches it.
        drop_catching(((), wake_up.0.take()));
    }
}

impl Future for Sleep {
    type Output = Result<(), SleepError>;

    /// Polls the sleep. After its end it stays ready, and still gives the runtime its turns.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let now = self.link.reading_until(self.deadline).low();
        // The clock decides first, so a poll after the deadline never reports an error.
        if now >= self.deadline {
            ready!(self.poll_yield(context));
            self.cancel();
            return Poll::Ready(Ok(()));
        }
        let SleepState::Armed(stripe, id) = self.state else {
            return self.arm(context, now);
        };
        let waits = leave(context.waker(), |show| {
            self.link.with(stripe, |stripe| {
                if let Some(TimerAction::Wake(WakeUp(Some(left)))) =
                    stripe.pending_payload_by_id(id)
                {
                    show(left);
                }
            });
        });
        if waits {
            return Poll::Pending;
        }
        Poll::Ready(self.ended_early())
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
            .field("armed", &matches!(self.state, SleepState::Armed(..)))
            .finish_non_exhaustive()
    }
}
