//! Ends the waits of one caller, while everything else of the same leases goes on.

use std::task::Waker;
use std::time::Duration;

use tourbillon::ClockParker;

use super::awaiting::sleep;
use super::locks::Leases;
use super::oneshot::OneshotWaker;
use crate::store::{WaitQueue, Watch};
use crate::sync::Arc;
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

impl Leases {
    /// Waits for `pause`, until the stop, or until the leases are closed. May return earlier.
    pub(crate) fn pause(&self, pause: Duration, stop: &StopSignal) {
        let parker = ClockParker::new(&self.inner.clock);
        let waker = Waker::from(Arc::new(parker.unparker()));
        let _watches = self.ends_of_pause(stop, &waker);
        if !self.is_over(stop) {
            parker.park_until(self.inner.clock.now() + pause);
        }
    }

    /// Waits like [`pause`](Self::pause), as a future.
    pub(crate) async fn pause_async(&self, pause: Duration, stop: &StopSignal) {
        let bell = Arc::new(OneshotWaker::default());
        let waker = Waker::from(Arc::clone(&bell));
        let _watches = self.ends_of_pause(stop, &waker);
        if !self.is_over(stop) {
            let until = self.inner.clock.now() + pause;
            sleep(&self.inner, &bell, &waker, until).await;
        }
    }

    fn ends_of_pause(&self, stop: &StopSignal, waker: &Waker) -> [Box<dyn Watch>; 2] {
        [stop.watch(waker), self.inner.waiting.watch("", waker)]
    }

    /// Whether there is nothing to wait for any more.
    pub(crate) fn is_over(&self, stop: &StopSignal) -> bool {
        stop.is_stopped() || self.inner.keep_alive.is_closed()
    }
}
