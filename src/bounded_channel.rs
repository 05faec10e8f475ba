//! A bounded channel whose receiver can be a thread or a task.
//!
//! A thread uses the receiver of the channel itself. A task leaves its waker in the single place
//! for one: it checks for an item, leaves the waker, and checks again. A sender sends first and
//! takes the waker afterwards; so does a call that ends the channel, and the drop of the sender.
//! Both sides take the lock of that place. So either the second check finds the item, or the sender
//! finds the waker. **CHANNEL-1**
//!
//! A send that waits for room holds no lock. So the channel can be ended meanwhile, and it is
//! disconnected when the last send has returned. **CHANNEL-2**
//!
//! An item without a receiver is returned to its sender and counted. A receiver that is gone never
//! returns, and the count is one read-modify-write, so exactly one of these items is the first. The
//! sender of that item reports the loss. **CHANNEL-3**
//!
//! In a forked copy of the process, a receiver of before the fork finds the channel ended, and
//! takes no lock. An item that was in the channel is received in the original alone. **CHANNEL-4**

use std::task::{Context, Poll, Waker};

use crate::job::{catch_panic, drop_catching};
use crate::sync::atomic::{AtomicU64, Ordering};
#[cfg(all(any(test, feature = "test-util"), not(loom)))]
use crate::sync::channel::Select;
use crate::sync::channel::{Receiver, Sender, TryRecvError, bounded};
use crate::sync::fork::Origin;
use crate::sync::{Arc, Mutex};
use crate::waker::leave;

/// The bounded sender.
#[derive(Debug)]
pub(crate) struct BoundedSender<T> {
    /// The sender of the channel; `None` after the end.
    sender: Mutex<Option<Sender<T>>>,
    /// Number of items that were returned to their senders.
    unsent: AtomicU64,
    signal: Arc<Signal>,
}

/// An item that was returned, because there is no receiver any more or the channel was ended.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Unsent<T> {
    pub(crate) item: T,
    /// Whether it is the first item that was returned.
    pub(crate) is_first: bool,
}

/// The receiver.
#[derive(Debug)]
pub(crate) struct BoundedReceiver<T> {
    /// Present until the drop.
    receiver: Option<Receiver<T>>,
    signal: Arc<Signal>,
    origin: Origin,
}

/// The place for the waker of a waiting task.
#[derive(Debug)]
struct Signal {
    waker: Mutex<Waker>,
}

/// Creates a channel of this capacity.
pub(crate) fn bounded_channel<T>(capacity: usize) -> (BoundedSender<T>, BoundedReceiver<T>) {
    let (sender, receiver) = bounded(capacity);
    let signal = Arc::new(Signal {
        waker: Mutex::new(Waker::noop().clone()),
    });
    let receiver = BoundedReceiver {
        receiver: Some(receiver),
        signal: Arc::clone(&signal),
        origin: Origin::here(),
    };
    let sender = BoundedSender {
        sender: Mutex::new(Some(sender)),
        unsent: AtomicU64::new(0),
        signal,
    };
    (sender, receiver)
}

impl<T> BoundedSender<T> {
    /// Sends an item. Waits while the channel is full.
    ///
    /// # Errors
    ///
    /// Returns the item if there is no receiver any more, or after the end.
    pub(crate) fn send(&self, item: T) -> Result<(), Unsent<T>> {
        // CHANNEL-2: the item is not sent under the lock.
        let sender = self.sender.lock().clone();
        let Some(sender) = sender else {
            return Err(self.came_back(item));
        };
        let sent = sender.send(item).map_err(|error| error.0);
        // Dropped before the signal: the channel may have been ended meanwhile, and the receiver
        // must see that.
        drop(sender);
        self.signal.wake();
        sent.map_err(|item| self.came_back(item))
    }

    /// Counts an item that is returned to its sender.
    fn came_back(&self, item: T) -> Unsent<T> {
        // CHANNEL-3. Relaxed: one step on a count, so each caller gets a different value.
        let before = self.unsent.fetch_add(1, Ordering::Relaxed);
        Unsent {
            item,
            is_first: before == 0,
        }
    }

    /// Returns whether a [`send`](Self::send) would return at once, with or without an error.
    #[cfg(all(any(test, feature = "test-util"), not(loom)))]
    pub(crate) fn is_ready(&self) -> bool {
        let sender = self.sender.lock();
        sender.as_ref().is_none_or(|sender| {
            let mut select = Select::new();
            select.send(sender);
            select.try_ready().is_ok()
        })
    }

    /// Returns how many items were returned by [`send`](Self::send).
    pub(crate) fn unsent(&self) -> u64 {
        // Relaxed: a count.
        self.unsent.load(Ordering::Relaxed)
    }

    /// Ends the channel: nothing is sent from now on, and the items in it can still be received.
    /// Without a receiver, the items are dropped with the last sender. That is not done under the
    /// lock, because their drop is user code.
    pub(crate) fn end(&self) {
        let sender = self.sender.lock().take();
        drop(sender);
        self.signal.wake();
    }
}

impl<T> Drop for BoundedSender<T> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<T> BoundedReceiver<T> {
    /// Returns the receiver, unless this process is a copy of the one that has it (CHANNEL-4).
    fn here(&self) -> Option<&Receiver<T>> {
        self.receiver
            .as_ref()
            .filter(|_| !self.origin.is_elsewhere())
    }

    /// Returns the receiver of the channel, for a thread.
    pub(crate) fn into_receiver(self) -> Receiver<T> {
        self.receiver.clone().expect("a receiver until the drop")
    }

    /// Waits for an item. Returns `None` at the end.
    pub(crate) fn recv(&self) -> Option<T> {
        self.here()?.recv().ok()
    }

    /// Returns an item, if there is one.
    pub(crate) fn try_recv(&self) -> Result<T, TryRecvError> {
        self.here()
            .map_or(Err(TryRecvError::Disconnected), Receiver::try_recv)
    }

    /// Returns the number of waiting items.
    #[cfg(feature = "stream")]
    pub(crate) fn len(&self) -> usize {
        self.here().map_or(0, Receiver::len)
    }

    /// Returns an item, or `None` at the end. Otherwise, the task is woken when there is an item or
    /// the channel ends.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Option<T>> {
        match self.try_recv() {
            Err(TryRecvError::Empty) => {}
            Ok(item) => return Poll::Ready(Some(item)),
            Err(TryRecvError::Disconnected) => return Poll::Ready(None),
        }
        leave(context.waker(), |show| show(&mut self.signal.waker.lock()));
        // CHANNEL-1: the second check.
        match self.try_recv() {
            Err(TryRecvError::Empty) => Poll::Pending,
            Ok(item) => Poll::Ready(Some(item)),
            Err(TryRecvError::Disconnected) => Poll::Ready(None),
        }
    }
}

/// Drops the waker of a waiting task: it is not woken any more.
impl<T> Drop for BoundedReceiver<T> {
    fn drop(&mut self) {
        if self.origin.is_elsewhere() {
            // CHANNEL-4: the drop of the last receiver takes a lock.
            std::mem::forget(self.receiver.take());
            return;
        }
        drop_catching(((), self.signal.take()));
    }
}

impl Signal {
    fn take(&self) -> Waker {
        std::mem::replace(&mut *self.waker.lock(), Waker::noop().clone())
    }

    fn wake(&self) {
        let waker = self.take();
        // A waker is code of its runtime, and may panic.
        let _ = catch_panic(|| waker.wake());
    }
}
