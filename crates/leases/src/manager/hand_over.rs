//! Hands a held lock over to another process.

use std::fmt;
use std::time::Duration;

use tourbillon::reentrancy;

use super::drop_wait;
use super::error::LockError;
use super::guard::{Lease, LeaseGuard};
use super::id::{LeaseId, nanos};
use super::inner::LeasesInner;
use super::lease_future::LeaseFuture;
use super::locks::Leases;
use super::request::{PendingRelease, Request};
use super::ticket::{Claimant, LeaseTicket};
use crate::keep_alive::{KeepOptions, Loss, call_limit};
use crate::store::{Detach, Detached, Mode, OwnedSecret, Resume, Resumed, StoreError};
use crate::sync::Arc;

/// The reason why a guard could not be detached.
///
/// # Examples
///
/// ```
/// # use tourbillon_leases::{DetachError, Leases, MemoryStore};
/// # let leases = Leases::new(MemoryStore::new())?;
/// let outer = leases.lock("report").wait()?;
/// let inner = outer.again()?;
/// let Err(DetachError::OtherGuards(outer)) = outer.detach().wait() else {
///     panic!("there are two guards");
/// };
/// drop(inner);
/// let ticket = outer.detach().wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum DetachError {
    /// Other guards hold the lock, too. The guard comes back, and still holds it.
    OtherGuards(LeaseGuard),
    /// The lease was lost before.
    Lost(Loss),
    /// The store failed, or can't hand locks over. The guard comes back, and still holds the lock.
    Store(LeaseGuard, StoreError),
}

impl fmt::Display for DetachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DetachError::OtherGuards(guard) => write!(
                f,
                "lock {:?}: it has other guards: end them, and detach the last one",
                guard.name()
            ),
            DetachError::Lost(loss) => write!(f, "the lease was lost before: {loss}"),
            DetachError::Store(guard, error) => {
                write!(f, "lock {:?} is still held: {error}", guard.name())
            }
        }
    }
}

impl std::error::Error for DetachError {}

impl LeaseGuard {
    /// Ends this guard without releasing the lock. The answer is a ticket with which another process
    /// can [resume](Leases::resume) it, once, under the same token. If the future is dropped before
    /// its answer is there, the lock is released. A future that is kept unfinished keeps the guard, and
    /// with it the renewals.
    ///
    /// The store keeps a random secret and the options of the acquire with the lock. The ticket
    /// contains the same secret.
    ///
    /// The lease is not renewed while the lock is detached. If nobody resumes it in time, it runs
    /// out, at the latest one lease after this call. A ticket that is dropped, or was written as
    /// text, changes nothing about that. So a detached lock of a process that dies is free after
    /// one lease.
    ///
    /// # Errors
    ///
    /// - [`DetachError::Lost`] if the lease is lost.
    /// - [`DetachError::OtherGuards`] if this is not the only guard.
    /// - [`DetachError::Store`] if the store failed or [can't](crate::LeaseStore::detach) hand
    ///   locks over. The lock is held as before, and the call may be repeated.
    /// - [`DetachError::Store`] if the lock is [shared](crate::Acquisition::shared) or a
    ///   [permit](crate::Acquisition::permit_of): only exclusive locks can be handed over. Nothing is
    ///   asked.
    ///
    /// # Blocking
    ///
    /// [`wait`](LeaseFuture::wait) blocks for one call to the store, for at most a sixth of the
    /// lease. It does not wait for a renewal that is under way.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// let store = MemoryStore::new();
    /// let before = Leases::new(store.clone())?;
    /// let guard = before.lock("report").wait()?;
    /// let token = guard.token();
    /// let text = guard.detach().wait()?.to_string();
    ///
    /// // In another process, with a store of its own:
    /// let after = Leases::new(store)?;
    /// let guard = after.resume(&text.parse()?).wait()?;
    /// assert!(guard.is_held() && guard.token() == token);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn detach(self) -> LeaseFuture<Result<LeaseTicket, DetachError>> {
        let lease = Arc::clone(self.lease());
        LeaseFuture::new(&lease.inner, async move {
            let guard = self.may_be_detached()?;
            let asked = guard.lease().ask_to_detach().await;
            guard.detached(asked)
        })
    }

    /// Checks whether the lock can be detached, before the store is asked.
    fn may_be_detached(self) -> Result<Self, DetachError> {
        if self.lease().kept.is_forked() {
            return Err(DetachError::Lost(Loss::Forked));
        }
        // Under a lock of the crate this panics before anything changes.
        let _ = reentrancy::check();
        // Nobody else can make another guard, since this one is the only one, and is owned here.
        if self.id().holds() > 1 {
            return Err(DetachError::OtherGuards(self));
        }
        let mode = self.id().mode();
        if mode != Mode::Exclusive {
            let what = "only exclusive locks can be handed over";
            let error = StoreError::Refused(format!("{what}, and this one is held as {mode}"));
            return Err(DetachError::Store(self, error));
        }
        match self.lost().loss() {
            Some(loss) => Err(self.no_more(loss)),
            None => Ok(self),
        }
    }

    /// Ends this guard of a detached lock.
    fn detached(mut self, asked: Result<Detached, StoreError>) -> Result<LeaseTicket, DetachError> {
        match asked {
            Ok(Detached::Detached) => {}
            Ok(Detached::NotHeld) => return Err(self.no_more(Loss::NotHeld)),
            Err(StoreError::Forked) => return Err(DetachError::Lost(Loss::Forked)),
            Err(error) => return Err(DetachError::Store(self, error)),
        }
        // Only now: until the store has answered, this guard holds the lock.
        if let Err(loss) = self.lease().kept.end() {
            return Err(self.no_more(loss));
        }
        let only = self.is_only();
        debug_assert!(only, "no other guard was made meanwhile");
        let secret = self.lease().ticket();
        Ok(LeaseTicket::new(self.name().to_owned(), secret))
    }

    /// Ends this guard of a lock that is lost. The store may still hold it: its clock differs from
    /// the local one.
    fn no_more(mut self, loss: Loss) -> DetachError {
        let lease = Arc::clone(self.lease());
        let loss = lease.kept.end().err().unwrap_or(loss);
        if self.is_last() {
            let back = lease.kept.key().back(!lease.unsure);
            lease.inner.give_back_later(back);
        }
        DetachError::Lost(loss)
    }
}

impl Lease {
    /// Returns the secret of the ticket, which is drawn by the first call.
    fn ticket(&self) -> OwnedSecret {
        *self.ticket.get_or_init(OwnedSecret::random)
    }

    /// Asks the store to detach the lock.
    async fn ask_to_detach(&self) -> Result<Detached, StoreError> {
        let (id, now) = (self.kept.key(), self.inner.clock.now());
        let options = self.keep.terms();
        let terms = DetachedTerms {
            lease: id.lease(),
            renewed: options.renewed,
            stays: id.stays().map_or(Duration::ZERO, |stays| stays.since(now)),
            feed: options.feed,
            // Not zero: that would mean that there is no limit.
            max_hold: options
                .ends
                .map(|ends| ends.since(now).max(Duration::from_nanos(1))),
            unsure: self.unsure.then(|| id.owned_secret()),
        };
        let (ticket, text) = (self.ticket(), terms.to_string());
        let detach = Detach::new(id.name(), id.secret(), ticket.get(), terms.lease);
        let detach = detach.with_terms(&text);
        let limit = call_limit(id.lease());
        let call = self
            .inner
            .call_store(limit, |store| store.detach(&detach, limit));
        call.await
    }
}

/// What the store keeps for the next holder of a detached lock.
#[derive(PartialEq, Debug)]
struct DetachedTerms {
    lease: Duration,
    renewed: bool,
    /// How long the lock stays locked for others in any case.
    stays: Duration,
    feed: Option<Duration>,
    /// The rest of the longest hold.
    max_hold: Option<Duration>,
    /// The secret of the holder before, if an attempt of it to acquire the lock may still arrive at
    /// the store.
    unsure: Option<OwnedSecret>,
}

/// The first field of the terms. The number is that of the format.
const FORMAT: &str = "1";

impl fmt::Display for DetachedTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{FORMAT},{},", u8::from(self.renewed))?;
        for time in [Some(self.lease), Some(self.stays), self.feed, self.max_hold] {
            write!(f, "{},", time.map_or(0, nanos))?;
        }
        let unsure = self.unsure.as_ref();
        f.write_str(unsure.map_or("", |secret| secret.get().reveal()))
    }
}

impl DetachedTerms {
    fn read(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.split(',').collect();
        let [FORMAT, renewed, lease, stays, feed, max_hold, unsure] = fields[..] else {
            return None;
        };
        let time = |field: &str| Some(Duration::from_nanos(field.parse().ok()?));
        let some = |time: Duration| (!time.is_zero()).then_some(time);
        let lease = time(lease)?;
        Some(DetachedTerms {
            lease,
            renewed: match renewed {
                "0" => false,
                "1" => true,
                _ => return None,
            },
            // As for an acquire, it is at most a lease.
            stays: time(stays)?.min(lease),
            feed: some(time(feed)?),
            max_hold: some(time(max_hold)?),
            unsure: match unsure {
                "" => None,
                secret => Some(OwnedSecret::read(secret)?),
            },
        })
    }

    fn keep(&self) -> KeepOptions {
        let mut keep = KeepOptions::for_lease(self.lease);
        if !self.renewed {
            keep = keep.without_renewal();
        }
        if let Some(feed) = self.feed {
            keep = keep.fed_every(feed);
        }
        if let Some(most) = self.max_hold {
            keep = keep.max_hold(most);
        }
        keep
    }
}

impl Leases {
    /// Takes over a lock that was [detached](LeaseGuard::detach), under the same token and a new
    /// owner. The lease is renewed by this call for its full length, and from then on in the
    /// background, unless it is [not renewed](crate::Acquisition::not_renewed).
    ///
    /// A ticket is of use once: the store deletes its secret in the step in which it gives the lock
    /// to the new owner. If two processes resume it at one time, one of them gets the lock. Only a
    /// lock that is detached at this moment can be resumed.
    ///
    /// Everything but the name and the secret comes from the store: the token, the length of the
    /// lease, whether it is renewed, the feeding period, and the rests of the
    /// [longest](crate::Acquisition::max_hold) and [shortest hold](crate::Acquisition::at_least).
    /// Both rests stand still while the lock is detached.
    ///
    /// If the future is dropped amid its call, a lock that the call has resumed is released. If the
    /// store has not executed the call, the ticket is still good. If the next poll comes more than
    /// a third of the default lease after the call was sent, the call fails with
    /// [`LockError::Store`], and a lock that it has resumed is free after its lease.
    ///
    /// # Errors
    ///
    /// - [`LockError::Lost`] if no lock is detached with this ticket: its lease has run out
    ///   meanwhile, or somebody has resumed or released it, or the ticket is made up.
    /// - [`LockError::Store`] if the store failed. This ticket value may be used again, whether or
    ///   not the call was executed. A ticket that is read from its text again works only if the
    ///   call was not executed.
    /// - [`LockError::TooLong`] and [`LockError::TooShort`] if these leases can't have the lease of
    ///   the lock. It is released then.
    /// - [`LockError::Closed`] if the leases are closed.
    ///
    /// # Blocking
    ///
    /// [`wait`](LeaseFuture::wait) blocks for one call to the store, for at most a third of the
    /// default lease.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{LockError, Leases, MemoryStore};
    ///
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let ticket = leases.lock("report").wait()?.detach().wait()?;
    /// let guard = leases.resume(&ticket).wait()?;
    /// // A ticket is of use once.
    /// assert!(matches!(leases.resume(&ticket).wait(), Err(LockError::Lost { .. })));
    /// assert!(guard.is_held());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume(&self, ticket: &LeaseTicket) -> LeaseFuture<Result<LeaseGuard, LockError>> {
        let (leases, ticket) = (self.inner.clone(), ticket.copy());
        self.answer(async move { leases.resume(&ticket).await })
    }
}

impl LeasesInner {
    async fn resume(self: &Arc<Self>, ticket: &LeaseTicket) -> Result<LeaseGuard, LockError> {
        let blocks = drop_wait::acquires().await;
        // The lease of the lock is not known yet.
        self.check(
            ticket.name(),
            &KeepOptions::for_lease(self.lease),
            self.lease,
        )?;
        // Taken, and not copied: if two threads resume one ticket at one time, each of them is
        // another claimant.
        let tried = ticket.tried().lock().take();
        let claimant = tried.unwrap_or_else(|| Claimant {
            owner: self.owner(),
            secret: OwnedSecret::random(),
        });
        let resumed = self.resume_for(ticket, &claimant, blocks).await;
        if let Err(LockError::Store { error, .. }) = &resumed
            && error.leaves_open()
        {
            *ticket.tried().lock() = Some(claimant);
        }
        resumed
    }

    async fn resume_for(
        self: &Arc<Self>,
        ticket: &LeaseTicket,
        claimant: &Claimant,
        drop_waits: bool,
    ) -> Result<LeaseGuard, LockError> {
        let name = ticket.name();
        let (secret, owner) = (claimant.secret.get(), &claimant.owner);
        let resume = Resume::new(name, ticket.secret().get(), owner, secret);
        let resume = resume.with_data(&self.holder_data);
        // The lease counts from before the request is sent.
        let (sent, limit) = (self.clock.now(), self.lease / 3);
        let unanswered = Unanswered(self, ticket, claimant);
        let call = self.ask_store(name, limit, |store| store.resume(&resume, limit));
        let resumed = call.await;
        std::mem::forget(unanswered);
        let Some(Resumed { token, terms, .. }) = resumed? else {
            let loss = Loss::NotHeld;
            let name = name.to_owned();
            return Err(LockError::Lost { name, loss });
        };
        let now = self.clock.now();
        let give_back = |lease, secret, sure| {
            let name = name.to_owned();
            self.give_back_later(PendingRelease {
                name,
                secret,
                lease,
                mode: Mode::Exclusive,
                sure,
                stays: None,
            });
        };
        let failed = |error| {
            let name = name.to_owned();
            LockError::Store { name, error }
        };
        let Some(terms) = DetachedTerms::read(&terms) else {
            give_back(self.lease, claimant.secret, true);
            let what = "what it keeps for the next holder was not written by this version";
            return Err(failed(StoreError::Refused(what.to_owned())));
        };
        let (keep, lease) = (terms.keep(), terms.lease);
        if let Err(error) = self.check(name, &keep, lease) {
            give_back(lease, claimant.secret, true);
            return Err(error);
        }
        if now >= sent + self.keep_alive.good_for(lease) {
            let what = "the answer arrived after its lease had run out".to_owned();
            return Err(failed(StoreError::Unavailable(what)));
        }
        // An attempt of the holder before that arrives later must not lock the name for nobody.
        if let Some(secret) = terms.unsure {
            give_back(lease, secret, false);
        }
        let keep = keep.since(sent);
        let request = Request {
            name: name.to_owned(),
            owner: owner.clone(),
            secret: claimant.secret,
            lease,
            mode: Mode::Exclusive,
            keep: keep.clone(),
            at_least: terms.stays,
        };
        let id = LeaseId::new(&request, token, 0, now);
        match self.keep_alive.keep_with(id, &keep) {
            Ok(kept) => Ok(LeaseGuard::new(self, kept, keep, false, drop_waits)),
            Err(error) => {
                give_back(lease, claimant.secret, true);
                Err(LockError::of_keep(name, error))
            }
        }
    }
}

/// A resume whose future may be dropped. If it is, the lock may have been resumed, and is given
/// back.
struct Unanswered<'a>(&'a Arc<LeasesInner>, &'a LeaseTicket, &'a Claimant);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let Unanswered(leases, ticket, claimant) = *self;
        leases.give_back_later(PendingRelease {
            name: ticket.name().to_owned(),
            secret: claimant.secret,
            // The lease of the lock is not known.
            lease: leases.lease,
            mode: Mode::Exclusive,
            sure: false,
            stays: None,
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn terms() -> DetachedTerms {
        DetachedTerms {
            lease: Duration::from_secs(30),
            renewed: true,
            stays: Duration::from_millis(7),
            feed: Some(Duration::from_millis(5)),
            max_hold: Some(Duration::from_nanos(1)),
            unsure: Some(OwnedSecret::random()),
        }
    }

    #[test]
    fn terms_survive_their_text() {
        let fixed = DetachedTerms {
            renewed: false,
            stays: Duration::ZERO,
            feed: None,
            max_hold: None,
            unsure: None,
            ..terms()
        };
        for terms in [terms(), fixed] {
            assert_eq!(DetachedTerms::read(&terms.to_string()), Some(terms));
        }
        // The longest times are cut to what can be written.
        let long = DetachedTerms {
            max_hold: Some(Duration::MAX),
            ..terms()
        };
        let read = DetachedTerms::read(&long.to_string()).unwrap();
        assert_eq!(read.max_hold, Some(Duration::from_nanos(u64::MAX)));
    }

    #[test]
    fn every_hostile_field_is_refused_or_bounded() {
        let text = terms().to_string();
        let fields: Vec<&str> = text.split(',').collect();
        for at in 0..fields.len() {
            for hostile in ["x", "-1", "18446744073709551616", "2 ", "\0"] {
                let mut wrong = fields.clone();
                wrong[at] = hostile;
                assert_eq!(
                    DetachedTerms::read(&wrong.join(",")),
                    None,
                    "{at}: {hostile}"
                );
            }
        }
        for wrong in ["", "1", &fields[..6].join(","), &format!("{text},")] {
            assert_eq!(DetachedTerms::read(wrong), None, "{wrong}");
        }
        // No longer than the lease.
        let mut long = fields.clone();
        long[3] = "18446744073709551615";
        assert_eq!(
            DetachedTerms::read(&long.join(",")).unwrap().stays,
            terms().lease
        );
    }
}
