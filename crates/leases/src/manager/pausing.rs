//! Pauses that a stop and the close of the leases end.

use std::task::Waker;
use std::time::Duration;

use tourbillon::ClockParker;

use super::awaiting::sleep;
use super::locks::Leases;
use super::oneshot::OneshotWaker;
use super::stop::StopSignal;
use crate::store::Watch;
use crate::sync::Arc;

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
