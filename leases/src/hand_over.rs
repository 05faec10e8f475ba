//! Hands a held lock over to another process.

use std::fmt;
use std::time::Duration;

use tourbillon::reentrancy;

use super::error::LockError;
use super::guard::LeaseGuard;
use super::id::LeaseId;
use super::inner::LeasesInner;
use super::keep_alive::{KeepOptions, Loss};
use super::lease_future::LeaseFuture;
use super::locks::Leases;
use super::request::Request;
use super::store::{Outcome, Renewal, StoreError};
use super::ticket::LeaseTicket;
use crate::sync::Arc;

/// The reason why a guard could not be detached.
///
/// # Examples
///
/// ```
/// # use tourbillon_leases::{DetachError, Leases, MemoryStore};
/// # let leases = Leases::new(MemoryStore::new())?;
/// let outer = leases.lock("report")?;
/// let inner = leases.enter_again(&outer)?;
/// let Err(DetachError::Entered(outer)) = outer.detach() else {
///     panic!("there are two guards");
/// };
/// drop(inner);
/// let ticket = outer.detach()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum DetachError {
    /// Other guards hold the lock, too. The guard comes back, and still holds it.
    Entered(LeaseGuard),
    /// The lease was lost before.
    Lost(Loss),
}

impl fmt::Display for DetachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DetachError::Entered(guard) => write!(
                f,
                "lock {:?}: it has other guards: end them, and detach the last one",
                guard.name()
            ),
            DetachError::Lost(loss) => write!(f, "the lease was lost before: {loss}"),
        }
    }
}

impl std::error::Error for DetachError {}

impl LeaseGuard {
    /// Ends this guard without releasing the lock, and returns a ticket with which another process
    /// can [resume](Leases::resume) it, under the same owner and token.
    ///
    /// The lease is not renewed while the lock is detached. If nobody resumes it in time, it runs
    /// out, at the latest one lease after this call. A ticket that is dropped, or was written as
    /// text, changes nothing about that. So a detached lock of a process that dies is free after
    /// one lease.
    ///
    /// # Errors
    ///
    /// [`DetachError::Lost`] if the lease is lost, and [`DetachError::Entered`] if this is not the
    /// only guard.
    ///
    /// # Blocking
    ///
    /// Does not ask the store, and does not wait for a renewal that is under way.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// let store = MemoryStore::new();
    /// let before = Leases::new(store.clone())?;
    /// let guard = before.lock("report")?;
    /// let token = guard.fencing_token();
    /// let text = guard.detach()?.to_string();
    ///
    /// // In another process, with a store of its own:
    /// let after = Leases::new(store)?;
    /// let guard = after.resume(&text.parse()?)?;
    /// assert!(guard.is_held() && guard.fencing_token() == token);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn detach(mut self) -> Result<LeaseTicket, DetachError> {
        if self.lease().kept.is_forked() {
            return Err(DetachError::Lost(Loss::Forked));
        }
        // Under a lock of the crate this panics before anything changes.
        let _ = reentrancy::check();
        if !self.is_only() {
            return Err(DetachError::Entered(self));
        }
        let (lease, id) = (self.lease(), self.id());
        if let Err(loss) = lease.kept.end() {
            // The store may still hold it: its clock differs from the local one.
            lease.inner.give_back_later(id.back(!lease.unsure));
            return Err(DetachError::Lost(loss));
        }
        let now = lease.inner.clock.now();
        let terms = lease.keep.terms();
        Ok(LeaseTicket {
            name: id.name().to_owned(),
            owner: id.owner().to_owned(),
            token: id.token(),
            lease: id.lease(),
            renewed: terms.renewed,
            unsure: lease.unsure,
            stays: id.stays().map_or(Duration::ZERO, |stays| stays.since(now)),
            feed: terms.feed,
            // Not zero: that would mean that there is no limit.
            max_hold: terms
                .ends
                .map(|ends| ends.since(now).max(Duration::from_nanos(1))),
        })
    }
}

impl Leases {
    /// Takes over a lock that was [detached](LeaseGuard::detach), under the same owner and token.
    /// The lease is renewed by this call for its full length, and from then on in the background,
    /// unless it is fixed.
    ///
    /// The options of the acquire stay: the length of the lease, whether it is renewed, the feeding
    /// period, and the rests of the [longest](super::Acquisition::max_hold) and
    /// [shortest hold](super::Acquisition::at_least). Both rests stand still while the lock is
    /// detached.
    ///
    /// **Use a ticket once.** Nobody else can have the lock before its lease has run out, but the
    /// store can't tell two users of one ticket apart: if two processes resume it, both succeed,
    /// both believe that they hold the lock, and both have the same token, so a
    /// [`Fence`](super::Fence) does not help. The first release ends the lock for both. The other
    /// one learns of that at its next renewal. Let the process that detaches the lock give the
    /// ticket to one other, and forget it.
    ///
    /// # Errors
    ///
    /// - [`LockError::Lost`] if the lease has run out meanwhile, or was released.
    /// - [`LockError::Store`] if the store failed. The ticket may be used again.
    /// - [`LockError::TooLong`], [`LockError::TooShort`], [`LockError::EmptyName`] and
    ///   [`LockError::Closed`] as for [`lock`](Self::lock).
    ///
    /// # Blocking
    ///
    /// Blocks for one call to the store, for at most a third of the lease.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{LockError, Leases, MemoryStore};
    ///
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let ticket = leases.lock("report")?.detach()?;
    /// leases.resume(&ticket)?.release()?;
    /// // A ticket is of no use after the release.
    /// assert!(matches!(leases.resume(&ticket), Err(LockError::Lost { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume(&self, ticket: &LeaseTicket) -> Result<LeaseGuard, LockError> {
        self.inner.resume(ticket, true)
    }

    /// Takes over a lock like [`resume`](Self::resume), as a future. If the future is dropped while
    /// its call is under way, the lock is released.
    ///
    /// # Errors
    ///
    /// As for [`resume`](Self::resume).
    pub fn resume_async(&self, ticket: &LeaseTicket) -> LeaseFuture<Result<LeaseGuard, LockError>> {
        let copy = ticket.copy();
        self.on_worker(ticket.name(), move |inner, _| inner.resume(&copy, false))
    }
}

impl LeasesInner {
    fn resume(
        self: &Arc<Self>,
        ticket: &LeaseTicket,
        drop_waits: bool,
    ) -> Result<LeaseGuard, LockError> {
        let (name, lease) = (&ticket.name, ticket.lease);
        let mut keep = KeepOptions::for_lease(lease);
        if !ticket.renewed {
            keep = keep.without_renewal();
        }
        if let Some(feed) = ticket.feed {
            keep = keep.fed_every(feed);
        }
        if let Some(most) = ticket.max_hold {
            keep = keep.max_hold(most);
        }
        self.check(name, &keep, lease)?;
        let lost = |loss| LockError::Lost {
            name: name.clone(),
            loss,
        };
        // The lease counts from before the request is sent.
        let sent = self.clock.now();
        let renewal = Renewal::new(name, &ticket.owner, lease).never_shortening();
        self.ask_store(name, |store| {
            let outcomes = store.renew(store.destination(name), &[renewal], lease / 3)?;
            Ok(outcomes
                .into_iter()
                .next()
                .unwrap_or(Outcome::Failed(StoreError::no_answer())))
        })
        .and_then(|outcome| match outcome {
            Outcome::Renewed => Ok(()),
            Outcome::NotHeld => Err(lost(Loss::NotHeld)),
            Outcome::Failed(error) => {
                let name = name.clone();
                Err(LockError::Store { name, error })
            }
        })?;
        let now = self.clock.now();
        if now >= sent + self.keep_alive.good_for(lease) {
            let what = "the answer arrived after its lease had run out".to_owned();
            let (name, error) = (name.clone(), StoreError::Unavailable(what));
            return Err(LockError::Store { name, error });
        }
        let keep = keep.since(sent);
        let request = Request {
            name: name.clone(),
            owner: ticket.owner.clone(),
            lease,
            keep: keep.clone(),
            at_least: ticket.stays,
        };
        let id = LeaseId::new(&request, ticket.token, now);
        let kept = self.keep_alive.keep_with(id, &keep);
        let kept = kept.map_err(|error| LockError::of_keep(name, error))?;
        Ok(LeaseGuard::new(self, kept, keep, ticket.unsure, drop_waits))
    }
}
