//! Notifies a holder of the loss of its lease.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tourbillon::Clock;
use tourbillon::coop::YieldPoint;

use super::lease_state::{LeaseState, LeaseStatus, Loss};
use crate::sync::Arc;
use crate::sync::channel::Receiver;

/// The loss of a lease, as a flag, a channel and a future.
///
/// All three report the loss, whatever the backend does. If the lease runs out by the local clock:
///
/// - The flag changes at that very moment.
/// - The channel and the future follow with the next tick of the `KeepAlive`. After a suspension of
///   the machine they follow when the rest of the ticker's sleep is over.
///
/// A lease that is given up is never lost. Then the channel is disconnected, and the future returns
/// `None`.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_leases::{Leases, Loss, MemoryStore};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let leases = Leases::new(MemoryStore::new())?;
/// let lease = Duration::from_millis(60);
/// let guard = leases.lock("report").lease(lease).not_renewed().wait()?;
/// assert!(!guard.lost().is_lost());
/// assert_eq!(guard.lost().channel().recv(), Ok(Loss::Expired));
/// assert!(guard.lost().is_lost());
/// # Ok(())
/// # }
/// ```
pub struct Lost {
    lease_state: Arc<LeaseState>,
    clock: Clock,
    /// The number under which this future has left its waker.
    place: Option<u64>,
    yield_point: YieldPoint,
}

impl Lost {
    pub(crate) fn new(lease_state: &Arc<LeaseState>, clock: &Clock) -> Self {
        Lost {
            lease_state: Arc::clone(lease_state),
            clock: clock.clone(),
            place: None,
            yield_point: YieldPoint::default(),
        }
    }

    /// Returns whether the lease is lost, by the local clock.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// Returns why the lease was lost, or `None` if it is not lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{Leases, Loss, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("report").wait()?;
    /// let lost = guard.lost();
    /// assert_eq!(lost.loss(), None);
    /// leases.close(Duration::from_secs(1));
    /// assert_eq!(lost.loss(), Some(Loss::Closed));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        match self.lease_state.look(self.clock.now()) {
            LeaseStatus::Lost(loss) => Some(loss),
            _ => None,
        }
    }

    /// Returns a [channel](crate::channel) that gets the loss when it happens.
    ///
    /// If the lease is lost already, the channel has the loss at once. If the lease is given up,
    /// the channel is disconnected. Each call makes another channel, which is kept until the lease
    /// ends: call this once, before a loop.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("report").wait()?;
    /// let lost = guard.lost().channel();
    /// while lost.try_recv().is_err() {
    ///     // .. a portion of work ..
    /// #   break;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn channel(&self) -> Receiver<Loss> {
        self.lease_state.loss_channel()
    }
}

impl Clone for Lost {
    fn clone(&self) -> Self {
        Lost::new(&self.lease_state, &self.clock)
    }
}

/// Becomes ready with the loss, or with `None` when the lease is given up.
impl Future for Lost {
    type Output = Option<Loss>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Loss>> {
        let mut yield_point = std::mem::take(&mut self.yield_point);
        let loss = yield_point.poll(context, |context| self.poll_loss(context));
        self.yield_point = yield_point;
        loss
    }
}

impl Lost {
    /// Polls for the loss, which is never put off.
    pub(crate) fn poll_loss(&mut self, context: &mut Context<'_>) -> Poll<Option<Loss>> {
        // Checks a second time after the waker is left: a loss in between would wake nobody.
        for last in [false, true] {
            match self.lease_state.look(self.clock.now()) {
                LeaseStatus::Lost(loss) => return Poll::Ready(Some(loss)),
                LeaseStatus::Stopped => return Poll::Ready(None),
                LeaseStatus::Held { .. } if last => {}
                LeaseStatus::Held { .. } => {
                    let mut place = self.place;
                    self.lease_state.leave_waker(&mut place, context.waker());
                    self.place = place;
                }
            }
        }
        Poll::Pending
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.lease_state.take_waker(place);
        }
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lost").field(&self.loss()).finish()
    }
}
