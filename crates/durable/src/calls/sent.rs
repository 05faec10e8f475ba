//! Answers that are on their way.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use oneshot::RecvTimeoutError;
use tourbillon::coop::YieldPoint;

use super::errors::CallError;
use super::limit::{Alarm, Limit};
use crate::store::Answer;
use crate::sync::{Arc, Origin, catch_panic, thread};

/// A call that has been sent, and its answer, which is on its way.
///
/// Each call of [`Durable`](crate::Durable) that needs the store returns it, and does not block.
/// The answer comes in one of two ways:
///
/// - `timers.cancel("pay-by", "order:7").wait()?` blocks the thread until it is there.
/// - `timers.cancel("pay-by", "order:7").await?` is a future for any runtime.
///
/// [`within`](Self::within) before either of them bounds the wait.
///
/// **The call is sent when this exists**, whether or not anybody waits or polls. Calls that were
/// made one after the other travel together, and need not be awaited in turn. An answer that is not
/// asked for is lost, also if it is an error, so the compiler warns.
///
/// **Dropping it does not undo the call.** It is carried out, and nobody hears how it ended. So it
/// is with a future that `select!` drops, and with a wait that has reached its limit.
///
/// # Cost
///
/// One allocation for the way of the answer. A call that is refused at once, since its arguments
/// are invalid for example, needs none.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_durable::{Durable, Memory};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let timers = Durable::builder(Memory::new()).start()?;
/// // Both are on their way at once, and may be committed together.
/// let one = timers.schedule("pay-by", "order:1", Duration::from_secs(60), &1);
/// let two = timers.schedule("pay-by", "order:2", Duration::from_secs(60), &2);
/// one.wait()?;
/// two.wait()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the call is sent, but its answer is lost: end with `.wait()?` or `.await?`"]
pub struct Sent<T> {
    state: SentState<T>,
    yield_point: YieldPoint,
    /// What wakes a task at the end of a limit, unless the answer is known.
    alarm: Option<Alarm>,
    limit: Option<Box<Limit>>,
}

/// Turns a store's answer into the answer to the call.
type Take<T> = fn(Answer) -> Result<T, CallError>;

/// The store's answers to several calls.
pub(crate) type AnswerList = Vec<Result<Answer, CallError>>;

/// Turns them into the answer to the caller.
type TakeAll<T> = fn(AnswerList) -> T;

enum SentState<T> {
    /// The result is known, unless it was taken.
    Known(Option<Result<T, CallError>>),
    /// A store's answer to a call.
    Answer(Channel<Answer>, Take<T>),
    /// A store's answers to several calls.
    Answers(Channel<AnswerList>, TakeAll<T>),
    /// The result of anything else.
    Value(Channel<T>),
}

/// The sender of a result.
pub(crate) type ReplySender<T> = oneshot::Sender<Result<T, CallError>>;

/// Sends a result. The waker of a runtime is called, whose panic must not end a thread of this
/// crate.
pub(crate) fn send<T>(reply: ReplySender<T>, result: Result<T, CallError>) {
    drop(catch_panic(|| drop(reply.send(result))));
}

type Received<T> = Result<T, CallError>;

struct Channel<T> {
    state: ChannelState<T>,
    /// In a forked copy of this process no answer comes, and the drop of a receiver might wait.
    origin: Origin,
}

enum ChannelState<T> {
    /// Nobody has polled.
    Fresh(oneshot::Receiver<Received<T>>),
    Polled(oneshot::AsyncReceiver<Received<T>>),
    Taken,
}

impl<T> Sent<T> {
    fn of(state: SentState<T>, alarm: Option<&Alarm>) -> Self {
        Sent {
            state,
            yield_point: YieldPoint::default(),
            alarm: alarm.cloned(),
            limit: None,
        }
    }

    /// Returns a result that is known already.
    pub(crate) fn known(result: Result<T, CallError>) -> Self {
        Self::of(SentState::Known(Some(result)), None)
    }

    /// Returns the sender of a store's answer, and what waits for it.
    pub(crate) fn answer(alarm: &Alarm, take: Take<T>) -> (ReplySender<Answer>, Self) {
        let (sender, receiver) = oneshot::channel();
        let state = SentState::Answer(Channel::new(receiver), take);
        (sender, Self::of(state, Some(alarm)))
    }

    /// Returns the sender of several answers, and what waits for them.
    pub(crate) fn answers(alarm: &Alarm, take: TakeAll<T>) -> (ReplySender<AnswerList>, Self) {
        let (sender, receiver) = oneshot::channel();
        let state = SentState::Answers(Channel::new(receiver), take);
        (sender, Self::of(state, Some(alarm)))
    }

    /// Returns the sender of a result, and what waits for it.
    pub(crate) fn value(alarm: &Alarm) -> (ReplySender<T>, Self) {
        let (sender, receiver) = oneshot::channel();
        let state = SentState::Value(Channel::new(receiver));
        (sender, Self::of(state, Some(alarm)))
    }

    /// Bounds the wait that follows: without an answer in this time, [`wait`](Self::wait) and
    /// `.await` end with [`CallError::TimedOut`].
    ///
    /// **The limit ends the wait, not the call.** The call has been sent, so it may have been
    /// carried out, or may still be. To repeat it is as safe as after [`CallError::Unknown`].
    ///
    /// The time counts from this call of `within`, by the clock of this machine. An answer that is
    /// there is returned, however late the wait begins: so zero asks whether it is there. A time
    /// that is too long for the clock, such as [`Duration::MAX`], is no limit. Of several limits
    /// the one that ends first holds.
    ///
    /// # Cost
    ///
    /// One allocation. The first task of a [`Durable`](crate::Durable) that awaits a limit builds a
    /// timer on the [runtime](crate::DurableBuilder::runtime), or with
    /// [`own_threads`](crate::DurableBuilder::own_threads) starts a thread. It wakes all such tasks,
    /// and ends with the `Durable` and its calls. If it can't be had, such a task gets
    /// [`CallError::Unknown`]. A thread that waits needs neither.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{CallError, Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// let minute = Duration::from_secs(60);
    /// let answer = timers.schedule("pay-by", "order:7", minute, &7).within(minute / 4).wait();
    /// match answer {
    ///     Ok(scheduled) => println!("due at {:?}", scheduled.due),
    ///     Err(CallError::TimedOut(limit)) => println!("no answer in {limit:?}: may be scheduled"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn within(mut self, limit: Duration) -> Self {
        // Without an alarm the answer is known.
        if self.alarm.is_some()
            && let Some(limit) = Limit::new(limit)
        {
            match &mut self.limit {
                Some(present) => present.shorten(limit),
                empty => *empty = Some(Box::new(limit)),
            }
        }
        self
    }

    /// Waits for the answer.
    ///
    /// # Errors
    ///
    /// Those of the call, and [`CallError::TimedOut`] after a limit.
    ///
    /// # Panics
    ///
    /// The answer was taken before, by awaiting it.
    ///
    /// # Blocking
    ///
    /// Blocks until the store has answered, or until the [limit](Self::within). Without one it
    /// waits as long as the store takes, in an outage too, unless the timers are stopped.
    ///
    /// Within a runtime for async tasks it does not panic, but no other task of the same thread
    /// goes on meanwhile: await there instead. A handler that is a closure may wait, also for calls
    /// on its own queue: the pool starts another thread if others have to run.
    pub fn wait(self) -> Result<T, CallError> {
        let limit = self.limit.as_deref();
        match self.state {
            SentState::Known(result) => result.expect("the result was taken before"),
            SentState::Answer(channel, take) => channel.wait(limit).and_then(take),
            SentState::Answers(channel, take) => channel.wait(limit).map(take),
            SentState::Value(channel) => channel.wait(limit),
        }
    }
}

/// The sender was dropped: the thread that had the call has ended.
fn lost() -> CallError {
    CallError::Unknown("the thread that had the call has ended".to_owned())
}

impl<T> Channel<T> {
    fn new(receiver: oneshot::Receiver<Received<T>>) -> Self {
        Channel {
            state: ChannelState::Fresh(receiver),
            origin: Origin::here(),
        }
    }

    fn take(&mut self) -> ChannelState<T> {
        std::mem::replace(&mut self.state, ChannelState::Taken)
    }

    fn wait(mut self, limit: Option<&Limit>) -> Received<T> {
        if self.origin.is_elsewhere() {
            return Err(CallError::Forked);
        }
        let receiver = match self.take() {
            ChannelState::Fresh(receiver) => receiver,
            polled => {
                self.state = polled;
                return block_on(self, limit);
            }
        };
        let Some(limit) = limit else {
            return receiver.recv().unwrap_or_else(|_| Err(lost()));
        };
        match receiver.recv_deadline(limit.end()) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(limit.error()),
            Err(RecvTimeoutError::Disconnected) => Err(lost()),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Received<T>> {
        if self.origin.is_elsewhere() {
            return Poll::Ready(Err(CallError::Forked));
        }
        let mut receiver = match self.take() {
            ChannelState::Fresh(receiver) => receiver.into_future(),
            ChannelState::Polled(receiver) => receiver,
            ChannelState::Taken => panic!("the result was taken before"),
        };
        match Pin::new(&mut receiver).poll(context) {
            Poll::Ready(result) => Poll::Ready(result.unwrap_or_else(|_| Err(lost()))),
            Poll::Pending => {
                self.state = ChannelState::Polled(receiver);
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Channel<T> {
    fn drop(&mut self) {
        if self.origin.is_elsewhere() {
            std::mem::forget(self.take());
        }
    }
}

/// Waits on this thread for a channel that a task has polled before.
fn block_on<T>(mut channel: Channel<T>, limit: Option<&Limit>) -> Received<T> {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(result) = channel.poll(&mut context) {
            return result;
        }
        let Some(limit) = limit else {
            thread::park();
            continue;
        };
        match limit.end().checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => thread::park_timeout(left),
            _ => return Err(limit.error()),
        }
    }
}

/// Yields the answer. After that it must not be polled again, except after
/// [`CallError::TimedOut`]: then it yields the answer if it has come since, or the same error.
impl<T: Unpin> Future for Sent<T> {
    type Output = Result<T, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A call that is refused is known at once, and may be made in a loop.
        let Sent {
            state,
            yield_point,
            alarm,
            limit,
        } = &mut *self;
        yield_point.poll(context, |context| {
            match (state.poll(context), alarm, limit) {
                (Poll::Pending, Some(alarm), Some(limit)) => limit.poll(alarm, context).map(Err),
                (polled, ..) => polled,
            }
        })
    }
}

impl<T> SentState<T> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Received<T>> {
        match self {
            SentState::Known(result) => {
                Poll::Ready(result.take().expect("the result was taken before"))
            }
            SentState::Answer(channel, take) => {
                let take = *take;
                channel.poll(context).map(|result| result.and_then(take))
            }
            SentState::Answers(channel, take) => {
                let take = *take;
                channel.poll(context).map(|result| result.map(take))
            }
            SentState::Value(channel) => channel.poll(context),
        }
    }
}

impl<T> fmt::Debug for Sent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sent").finish_non_exhaustive()
    }
}
