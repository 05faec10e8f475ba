//! A bounded channel at whose end a thread can wait, or a task.
//!
//! The thread's side is the channel's own. A task leaves its waker in a place of which there is
//! one: it looks, leaves the waker, and looks again. Who sends, sends first and takes the waker
//! afterwards; so does who ends it, or drops it. Both go through the lock of that place, so either
//! the second look finds what was sent, or the sender finds the waker. **OUTLET-1**
//!
//! A send that waits for room holds no lock: the end can be told meanwhile, and it is disconnected
//! when the last send is through. **OUTLET-2**
//!
//! An item that finds no receiver comes back to its sender and is counted. A receiver that is gone
//! never returns, and the count is one read-modify-write, so exactly one of these items is the
//! first: its sender reports the loss. **OUTLET-3**

use std::task::{Context, Poll, Waker};

use crate::job::{contain, drop_pair};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::channel::{Receiver, Sender, TryRecvError, bounded};
use crate::sync::{Arc, Mutex};
use crate::waker::leave;

/// The sending end.
#[derive(Debug)]
pub(crate) struct Outlet<T> {
    /// Until the end.
    sender: Mutex<Option<Sender<T>>>,
    /// How many items came back.
    unsent: AtomicU64,
    signal: Arc<Signal>,
}

/// An item that came back: nobody receives any more, or the end has come.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Unsent<T> {
    pub(crate) item: T,
    /// Whether it is the first one.
    pub(crate) is_first: bool,
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Intake<T> {
    receiver: Receiver<T>,
    signal: Arc<Signal>,
}

/// The place for a waker.
#[derive(Debug)]
struct Signal {
    waker: Mutex<Waker>,
}

/// A channel of this capacity.
pub(crate) fn outlet<T>(capacity: usize) -> (Outlet<T>, Intake<T>) {
    let (sender, receiver) = bounded(capacity);
    let signal = Arc::new(Signal {
        waker: Mutex::new(Waker::noop().clone()),
    });
    let intake = Intake {
        receiver,
        signal: Arc::clone(&signal),
    };
    let outlet = Outlet {
        sender: Mutex::new(Some(sender)),
        unsent: AtomicU64::new(0),
        signal,
    };
    (outlet, intake)
}

impl<T> Outlet<T> {
    /// Sends; waits while the channel is full.
    ///
    /// # Errors
    ///
    /// The item, if nobody receives any more, or after the end.
    pub(crate) fn send(&self, item: T) -> Result<(), Unsent<T>> {
        // OUTLET-2: not sent under the lock.
        let sender = self.sender.lock().clone();
        let Some(sender) = sender else {
            return Err(self.came_back(item));
        };
        let sent = sender.send(item).map_err(|error| error.0);
        // Before the signal: the end may have come meanwhile, and is to be seen then.
        drop(sender);
        self.signal.wake();
        sent.map_err(|item| self.came_back(item))
    }

    fn came_back(&self, item: T) -> Unsent<T> {
        // OUTLET-3. Relaxed: a count, whose values differ for each caller since this is one step.
        let before = self.unsent.fetch_add(1, Ordering::Relaxed);
        Unsent {
            item,
            is_first: before == 0,
        }
    }

    /// How many items came back from [`send`](Self::send).
    pub(crate) fn unsent(&self) -> u64 {
        // Relaxed: a count.
        self.unsent.load(Ordering::Relaxed)
    }

    /// Nothing is sent from now on. What was sent can be received. Without receivers it goes with
    /// the last sender: not under the lock, since its drop is user code.
    pub(crate) fn end(&self) {
        let sender = self.sender.lock().take();
        drop(sender);
        self.signal.wake();
    }
}

impl<T> Drop for Outlet<T> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<T> Intake<T> {
    /// The thread's side alone.
    pub(crate) fn into_receiver(self) -> Receiver<T> {
        self.receiver.clone()
    }

    /// Waits for an item; `None` at the end.
    pub(crate) fn recv(&self) -> Option<T> {
        self.receiver.recv().ok()
    }

    /// An item, if there is one.
    pub(crate) fn try_recv(&self) -> Result<T, TryRecvError> {
        self.receiver.try_recv()
    }

    /// How many items wait.
    #[cfg(feature = "stream")]
    pub(crate) fn len(&self) -> usize {
        self.receiver.len()
    }

    /// An item, or `None` at the end; or else the task is woken when there is one of the two.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Option<T>> {
        match self.try_recv() {
            Err(TryRecvError::Empty) => {}
            Ok(item) => return Poll::Ready(Some(item)),
            Err(TryRecvError::Disconnected) => return Poll::Ready(None),
        }
        leave(context.waker(), |show| show(&mut self.signal.waker.lock()));
        // OUTLET-1: the second look.
        match self.try_recv() {
            Err(TryRecvError::Empty) => Poll::Pending,
            Ok(item) => Poll::Ready(Some(item)),
            Err(TryRecvError::Disconnected) => Poll::Ready(None),
        }
    }
}

/// The task that was told to wait, if any, is not woken any more.
impl<T> Drop for Intake<T> {
    fn drop(&mut self) {
        drop_pair(((), self.signal.take()));
    }
}

impl Signal {
    fn take(&self) -> Waker {
        std::mem::replace(&mut *self.waker.lock(), Waker::noop().clone())
    }

    fn wake(&self) {
        let waker = self.take();
        // The runtime's code.
        let _ = contain(|| waker.wake());
    }
}
