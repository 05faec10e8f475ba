//! The holder's side of one kept key.

use std::fmt;
use std::task::Waker;
use std::time::Duration;

use tourbillon::reentrancy::when_unlocked;
use tourbillon::{Clock, Time};

use super::lease_state::{InFlight, InFlightStatus, LeaseState, LeaseStatus, Loss, RenewalOutcome};
use super::lost::Lost;
use super::registration::Registration;
use super::renewal_loop::RenewalLoop;
use crate::store::{Outcome, StoreError};
use crate::sync::Arc;

/// A key that a [`KeepAlive`](super::KeepAlive) keeps. Dropping the guard stops the renewals, and
/// the lease runs out.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon_leases::{KeepAlive, Outcome};
/// # let sessions = KeepAlive::<u64>::builder()
/// #     .build(async |batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
/// let session = sessions.keep(7, Duration::from_secs(30))?;
/// assert!(session.is_kept());
/// assert_eq!(*session.key(), 7);
/// assert!(session.feed() && !session.lost().is_lost());
/// println!("for {:?}, renewed {} times", session.remaining(), session.renewals());
/// session.stop()?; // or drop it
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping it stops the renewals"]
pub struct KeepGuard<K: Clone + Send + Sync + 'static> {
    pub(super) renewal_loop: Arc<RenewalLoop<K>>,
    pub(super) registration: Arc<Registration<K>>,
}

impl<K: Clone + Send + Sync + 'static> KeepGuard<K> {
    /// Returns the key.
    pub fn key(&self) -> &K {
        &self.registration.key
    }

    /// Returns whether the key is still kept, by the local clock.
    ///
    /// After the first `false` it never returns `true` again. In a forked copy of the process it
    /// always returns `false`.
    ///
    /// # Complexity
    ///
    /// One read of the clock, one system call (for the process id), and one lock that is nearly
    /// always free.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{KeepAlive, Outcome};
    /// # let sessions = KeepAlive::<u64>::builder()
    /// #     .build(async |batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
    /// let session = sessions.keep(7, Duration::from_secs(30))?;
    /// assert!(session.is_kept());
    /// sessions.close();
    /// assert!(!session.is_kept());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_kept(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Returns how long the key stays kept if nothing renews it, or zero if it has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let now = self.renewal_loop.now();
        match self.registration.lease_state.look(now) {
            LeaseStatus::Held { ends, .. } => ends.since(now),
            _ => Duration::ZERO,
        }
    }

    /// Returns how the holder learns of the loss: a flag, a channel and a future.
    #[must_use]
    pub fn lost(&self) -> Lost {
        Lost::new(
            &self.registration.lease_state,
            self.renewal_loop.timers.clock(),
        )
    }

    /// Reports that the holder is alive, see
    /// [`KeepOptions::fed_every`](super::KeepOptions::fed_every). Returns false if the key is no
    /// longer kept.
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn feed(&self) -> bool {
        self.registration.lease_state.feed(self.renewal_loop.now())
    }

    /// Returns how often the key was renewed.
    #[must_use]
    pub fn renewals(&self) -> u64 {
        self.registration.lease_state.renewals()
    }

    /// Stops the renewals.
    ///
    /// After this call has returned, the renewal function is not called for this guard's key again.
    /// There is one exception: a thread that is about to call it, has read the clock, and is then
    /// held up for longer than the limit of the call.
    ///
    /// # Errors
    ///
    /// The [`Loss`], if the key was lost before.
    ///
    /// # Blocking
    ///
    /// While a call for this key is in flight, but no longer than the limit of that call. If a test
    /// [steps](crate::Steps) the renewals, it waits for no call.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{KeepAlive, Outcome};
    /// # let sessions = KeepAlive::<u64>::builder()
    /// #     .build(async |batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
    /// let session = sessions.keep(7, Duration::from_secs(30))?;
    /// session.stop()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stop(self) -> Result<(), Loss> {
        let ended = self.end();
        self.settled();
        ended
    }

    /// Whether this process is a forked copy of the process that keeps the key.
    pub(in super::super) fn is_forked(&self) -> bool {
        self.registration.lease_state.is_forked()
    }

    /// Whether the lease is renewed in the background.
    pub(in super::super) fn is_renewed(&self) -> bool {
        self.registration.renewed
    }

    /// Begins an extension, after which the lease lasts for `lease` from now on. Its call may take
    /// `limit`.
    pub(in super::super) fn begin_extension(
        &self,
        lease: Duration,
        limit: Duration,
    ) -> Result<Extending<'_>, Unextended> {
        let (state, now) = (&self.registration.lease_state, self.renewal_loop.now());
        let length = self.renewal_loop.good_for(lease);
        match state.look(now) {
            LeaseStatus::Held { until, .. } if now + length <= until => {
                return Ok(Extending::Needless);
            }
            LeaseStatus::Held { .. } => {}
            LeaseStatus::Lost(loss) => return Err(Unextended::Lost(loss)),
            // The call was made after the last guard had gone.
            LeaseStatus::Stopped => return Err(Unextended::Lost(Loss::NotHeld)),
        }
        // This gives up a call that hangs at its limit. A lease that is not renewed has no rounds
        // that would do so.
        if let InFlightStatus::Until(_) = state.in_flight_status(now) {
            return Ok(Extending::Busy);
        }
        Ok(match state.begin_renewal(now, now + limit) {
            Some(in_flight) => Extending::Begun(Extension {
                clock: self.renewal_loop.timers.clock(),
                state,
                in_flight: Some(in_flight),
                until: now + length,
            }),
            None => Extending::Busy,
        })
    }

    /// Returns the limit of the renewal that is in flight, or `None` if there is none. The waker is
    /// woken when that renewal has an outcome, or is given up.
    pub(in super::super) fn in_flight_until(&self, waker: &Waker) -> Option<Time> {
        let now = || self.renewal_loop.now();
        self.registration.lease_state.in_flight_until(now, waker)
    }

    /// Stops the renewals without waiting for one that is in flight.
    pub(in super::super) fn end(&self) -> Result<(), Loss> {
        self.renewal_loop.stop(&self.registration)
    }

    /// Waits until no renewal is in flight any more, or until its limit. If a test drives the timers,
    /// nothing would end the wait.
    pub(in super::super) fn settled(&self) {
        let timers = &self.renewal_loop.timers;
        if !timers.is_stepped() {
            let state = &self.registration.lease_state;
            state.wait_for_in_flight(timers.clock());
        }
    }
}

/// How an extension begins.
pub(in super::super) enum Extending<'a> {
    /// The lease lasts that long already.
    Needless,
    /// A renewal is in flight.
    Busy,
    Begun(Extension<'a>),
}

/// An extension whose call is under way. If it is dropped, it has failed.
pub(in super::super) struct Extension<'a> {
    state: &'a LeaseState,
    clock: &'a Clock,
    /// `None` once it has ended.
    in_flight: Option<InFlight>,
    /// When the lease ends if the call succeeds.
    until: Time,
}

impl Extension<'_> {
    /// Applies the outcome of the call.
    pub(in super::super) fn ends(mut self, outcome: Outcome) -> Result<(), Unextended> {
        let (outcome, error) = match outcome {
            Outcome::Renewed => (RenewalOutcome::Renewed { until: self.until }, None),
            Outcome::NotHeld => (RenewalOutcome::NotHeld, None),
            Outcome::Failed(error) => (RenewalOutcome::Failed, Some(error)),
        };
        let now = self.clock.now();
        let is_held = self.completes(now, outcome);
        if !is_held && let LeaseStatus::Lost(loss) = self.state.look(now) {
            return Err(Unextended::Lost(loss));
        }
        error.map_or(Ok(()), |error| Err(Unextended::Failed(error)))
    }

    fn completes(&mut self, now: Time, outcome: RenewalOutcome) -> bool {
        let in_flight = self.in_flight.take();
        in_flight.is_some_and(|begun| self.state.complete_renewal(begun, now, outcome))
    }
}

impl Drop for Extension<'_> {
    fn drop(&mut self) {
        // In a forked copy of the process the lock may stay locked forever.
        if self.in_flight.is_some() && !self.state.is_forked() {
            self.completes(self.clock.now(), RenewalOutcome::Failed);
        }
    }
}

/// Why a lease was not extended.
pub(in super::super) enum Unextended {
    Lost(Loss),
    Failed(StoreError),
}

impl<K: Clone + Send + Sync + 'static> Drop for KeepGuard<K> {
    fn drop(&mut self) {
        let (renewal_loop, registration) = (
            Arc::clone(&self.renewal_loop),
            Arc::clone(&self.registration),
        );
        // The guard may be a value of a map and be dropped under that map's lock, where the timer
        // of the key can't be cancelled.
        when_unlocked(move || {
            let _ = renewal_loop.stop(&registration);
        });
    }
}

impl<K: Clone + Send + Sync + fmt::Debug + 'static> fmt::Debug for KeepGuard<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeepGuard")
            .field("key", self.key())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
