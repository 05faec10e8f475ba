//! Ends the waits of one caller, while everything else of the same leases goes on.

use std::task::Waker;

use crate::store::{WaitQueue, Watch};
use crate::sync::atomic::{AtomicBool, Ordering};

/// Ends waits, for good.
#[derive(Debug, Default)]
pub(crate) struct StopSignal {
    stopped: AtomicBool,
    waiting: WaitQueue,
}

impl StopSignal {
    pub(crate) fn stop(&self) {
        // Release: whoever sees it also sees what was done before. The flag is set before the
        // waiting callers are woken, and they look at it after they have registered. The lock of
        // the queue puts the two in an order, so a caller is woken or sees the flag.
        self.stopped.store(true, Ordering::Release);
        self.waiting.all_may_be_free();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        // Acquire: pairs with the Release in `stop`.
        self.stopped.load(Ordering::Acquire)
    }

    /// Wakes `waker` at the stop, until the returned value is dropped.
    pub(super) fn watch(&self, waker: &Waker) -> Box<dyn Watch> {
        self.waiting.watch("", waker)
    }
}
