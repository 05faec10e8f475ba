//! Pauses that a stop and the close of the leases end.

use std::task::Waker;
use std::time::Duration;

use super::locks::Leases;
use super::stop::StopSignal;
use crate::store::Bell;
use crate::sync::Arc;

impl Leases {
    /// Waits for `pause`, until the stop, or until the leases are closed. May return earlier.
    /// Returns false if nothing could end the wait.
    pub(crate) async fn pause(&self, pause: Duration, stop: &StopSignal) -> bool {
        let bell = Arc::new(Bell::default());
        let waker = Waker::from(Arc::clone(&bell));
        let _watches = [stop.watch(&waker), self.inner.waiting.watch("", &waker)];
        // Checked after the watches are registered.
        self.is_over(stop) || self.inner.sleep(&bell, self.now() + pause).await
    }

    /// Whether there is nothing to wait for any more.
    pub(crate) fn is_over(&self, stop: &StopSignal) -> bool {
        stop.is_stopped() || self.inner.keep_alive.is_closed()
    }
}
