//! Answers that are on their way.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};

use tourbillon::coop::YieldPoint;

use super::errors::CallError;
use crate::store::Answer;
use crate::sync::{Arc, Origin, catch_panic, thread};

/// The result of a call, on its way.
///
/// The call has been sent when this exists, also if it is never awaited. **Dropping it does not
/// undo the call**, and nothing then tells whether it succeeded.
///
/// It is a future for any runtime. A thread can [`wait`](Self::wait) for it.
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
/// let one = timers.schedule_async("pay-by", "order:1", Duration::from_secs(60), &1);
/// let two = timers.schedule_async("pay-by", "order:2", Duration::from_secs(60), &2);
/// one.wait()?;
/// two.wait()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "only the result says whether the call succeeded"]
pub struct Sent<T> {
    state: SentState<T>,
    yield_point: YieldPoint,
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
    fn of(state: SentState<T>) -> Self {
        Sent {
            state,
            yield_point: YieldPoint::default(),
        }
    }

    /// Returns a result that is known already.
    pub(crate) fn known(result: Result<T, CallError>) -> Self {
        Self::of(SentState::Known(Some(result)))
    }

    /// Returns the sender of a store's answer, and what waits for it.
    pub(crate) fn answer(take: Take<T>) -> (ReplySender<Answer>, Self) {
        let (sender, receiver) = oneshot::channel();
        let state = SentState::Answer(Channel::new(receiver), take);
        (sender, Self::of(state))
    }

    /// Returns the sender of several answers, and what waits for them.
    pub(crate) fn answers(take: TakeAll<T>) -> (ReplySender<AnswerList>, Self) {
        let (sender, receiver) = oneshot::channel();
        let state = SentState::Answers(Channel::new(receiver), take);
        (sender, Self::of(state))
    }

    /// Returns the sender of a result, and what waits for it.
    pub(crate) fn value() -> (ReplySender<T>, Self) {
        let (sender, receiver) = oneshot::channel();
        let state = SentState::Value(Channel::new(receiver));
        (sender, Self::of(state))
    }

    /// Waits for the result.
    ///
    /// # Errors
    ///
    /// Those of the call.
    ///
    /// # Panics
    ///
    /// The result was taken before, by awaiting it.
    ///
    /// # Blocking
    ///
    /// Blocks until the store has answered. Within a runtime for async tasks, await it instead, or
    /// no other task of the same thread goes on meanwhile.
    pub fn wait(self) -> Result<T, CallError> {
        match self.state {
            SentState::Known(result) => result.expect("the result was taken before"),
            SentState::Answer(channel, take) => channel.wait().and_then(take),
            SentState::Answers(channel, take) => channel.wait().map(take),
            SentState::Value(channel) => channel.wait(),
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

    fn wait(mut self) -> Received<T> {
        if self.origin.is_elsewhere() {
            return Err(CallError::Forked);
        }
        match self.take() {
            ChannelState::Fresh(receiver) => receiver.recv().unwrap_or_else(|_| Err(lost())),
            polled => {
                self.state = polled;
                block_on(self)
            }
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
fn block_on<T>(mut channel: Channel<T>) -> Received<T> {
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
        thread::park();
    }
}

/// Yields the result. It must not be polled again after that.
impl<T: Unpin> Future for Sent<T> {
    type Output = Result<T, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A call that is refused is known at once, and may be made in a loop.
        let Sent { state, yield_point } = &mut *self;
        yield_point.poll(context, |context| state.poll(context))
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
