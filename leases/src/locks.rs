//! The lock manager: what acquires, waits, and gives back.

use std::fmt;
use std::time::Duration;

use tourbillon::{Time, reentrancy};

use super::acquire::Acquisition;
use super::error::LockError;
use super::guard::LeaseGuard;
use super::id::LeaseId;
use super::inner::LeasesInner;
use super::keep_alive::Event;
use super::releases::UserHandle;
use super::request::PendingRelease;
use super::stats::LeaseStats;
use crate::sync::Arc;
use crate::sync::channel::Receiver;

/// Locks that end by themselves, over a [`LeaseStore`](super::LeaseStore).
///
/// A lock that is acquired is *leased*: the store forgets it after a while unless it is renewed, which
/// happens in the background for as long as its [`LeaseGuard`] lives. If the holder dies, is cut off
/// or stands still, others get the lock when the lease has run out, and the holder, if there is
/// still one, learns of it by its own clock.
///
/// Clones are one manager. Its threads start with the first attempt, and end when the last clone and
/// the last guard are gone. There are five, two more with a callback, and one more
/// for each call of the store or callback that hangs, up to a bound.
///
/// Nothing here is reentrant by thread: a holder that asks for its lock again waits for itself.
/// [`enter_again`](Self::enter_again) makes a second guard of one holding.
///
/// # Fairness
///
/// A released lock goes to the caller that asks first. That is fast, but a caller that locks and
/// unlocks in a loop could keep all others out forever. So callers that have waited for 20 ms take
/// turns. The next release reserves the lock for them for 5 to 25 ms; the longer the wait, the
/// longer the reservation. During that time all other callers are told that the lock is held. If
/// the waiting process has died, the lock is free again when the reservation ends.
///
/// - [`try_lock`](Self::try_lock) right after a release may fail with [`LockError::Held`], although
///   nobody holds the lock at that moment. This happens only while others wait.
/// - Among processes that share a Redis server, the process whose caller has waited longest is
///   next. Callers of one process are woken in the order in which they began to wait.
/// - Callers that have waited for less than 20 ms get the lock in no particular order.
///
/// # Drop
///
/// The drop of the last clone, or of the last guard if that lives longer, waits until the store has
/// been asked for every queued release, but for [one second](super::LeasesBuilder::end_limit) at most. So
/// a program may end right after it has dropped its guards. If the dropping thread belongs to a
/// runtime and must not block, keep a clone, or [`close`](Self::close) the leases on another thread
/// before. Releases that are still queued after that second go on in the background while the
/// process lives.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_leases::{Leases, MemoryStore};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let leases = Leases::builder(MemoryStore::new())
///     .lease(Duration::from_secs(10))
///     .on_event(|event| eprintln!("{}: {}", event.key.name(), event.what))
///     .build()?;
///
/// let guard = leases.lock("invoices")?; // waits until it is free
/// while guard.is_held() {
///     // .. a portion of work, with guard.fencing_token()
/// #   break;
/// }
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Leases {
    pub(super) inner: UserHandle,
}

impl Leases {
    pub(super) fn of(inner: LeasesInner) -> Self {
        Leases {
            inner: UserHandle::new(&Arc::new(inner)),
        }
    }

    /// Begins to acquire a lock with options of its own: a lease of another length, one that is not
    /// renewed, a holder that must feed it, a longest hold.
    pub fn acquire<'a>(&'a self, name: &'a str) -> Acquisition<'a> {
        Acquisition::new(&self.inner, name)
    }

    /// Acquires the lock, and waits for as long as that takes. Errors of the store that may pass are
    /// waited out, too.
    ///
    /// # Errors
    ///
    /// [`LockError`]: bad input, a store that refuses for good, closed leases.
    ///
    /// # Blocking
    ///
    /// Until the lock is free and the store grants it. Without a server that is forever. After one
    /// second the event [`What::Waiting`] says why, and again after pauses that double.
    /// [`LeaseStats::waiting`] counts waiting callers.
    ///
    /// A Redis server that has just started, has lost its data, or is new to the store grants
    /// nothing for up to 31 s by default. A store that is built as durable does not wait. One that
    /// starts empty waits only for a server that has restarted with its data.
    ///
    /// [`What::Waiting`]: super::What::Waiting
    ///
    /// A release wakes one waiting caller, if the store can announce releases. Waiting callers also
    /// ask again when the lease in their way has run out, and at [intervals](super::LeasesBuilder::poll).
    /// Another caller that asks at the moment of the release may be faster, but not for long: see
    /// [fairness](Self#fairness).
    pub fn lock(&self, name: &str) -> Result<LeaseGuard, LockError> {
        self.acquire(name).lock()
    }

    /// Acquires the lock if it is free, with one call to the store.
    ///
    /// # Errors
    ///
    /// [`LockError::Held`] if the lock is held, or is reserved for a caller that has waited (see
    /// [fairness](Self#fairness)). [`LockError::Store`] if the call to the store failed. The other
    /// errors are those of [`lock`](Self::lock).
    ///
    /// # Blocking
    ///
    /// For the call, a third of the lease at most.
    pub fn try_lock(&self, name: &str) -> Result<LeaseGuard, LockError> {
        self.acquire(name).try_lock()
    }

    /// Acquires the lock, and waits for it for at most `wait`.
    ///
    /// # Errors
    ///
    /// [`LockError::TimedOut`] if somebody else held the lock to the end,
    /// [`LockError::Unanswered`] if the store failed at the end, and the errors of
    /// [`lock`](Self::lock).
    ///
    /// # Blocking
    ///
    /// For `wait` by the leases' clock, or for one call to the store, of which there is at least one.
    pub fn try_lock_for(&self, name: &str, wait: Duration) -> Result<LeaseGuard, LockError> {
        self.acquire(name).try_lock_for(wait)
    }

    /// One more guard of a lock that is held: it is given back when the last one is. The count is
    /// kept here and nowhere else, and renewals don't depend on it.
    ///
    /// # Errors
    ///
    /// [`LockError::ForeignGuard`] if other `Leases` acquired it, [`LockError::Lost`] if it is held no
    /// more.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, LockError, MemoryStore};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let leases = Leases::new(MemoryStore::new())?;
    /// let outer = leases.lock("ledger")?;
    /// let inner = leases.enter_again(&outer)?;
    /// outer.release()?;
    /// assert!(inner.is_held());
    /// inner.release()?;
    ///
    /// let others = Leases::new(MemoryStore::new())?;
    /// let foreign = others.lock("ledger")?;
    /// assert!(matches!(leases.enter_again(&foreign), Err(LockError::ForeignGuard { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn enter_again(&self, guard: &LeaseGuard) -> Result<LeaseGuard, LockError> {
        if !guard.belongs_to(&self.inner) {
            let name = guard.name().to_owned();
            return Err(LockError::ForeignGuard { name });
        }
        match guard.lost().loss() {
            Some(loss) => {
                let name = guard.name().to_owned();
                Err(LockError::Lost { name, loss })
            }
            None => Ok(guard.again()),
        }
    }

    /// A channel of events from now on. Events for which it has no room are left out and counted in
    /// [`LeaseStats::events_missed`]. There is room for at least one event.
    #[must_use]
    pub fn events(&self, capacity: usize) -> Receiver<Event<LeaseId>> {
        self.inner.keep_alive.events(capacity)
    }

    /// Counters and gauges.
    ///
    /// # Complexity
    ///
    /// Linear in the number of locks that are held.
    #[must_use]
    pub fn stats(&self) -> LeaseStats {
        self.inner.stats()
    }

    /// The present moment of the leases' clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.inner.clock.now()
    }

    /// Acquires nothing from now on, and gives back what is held: all of it is lost, with
    /// [`Loss::Closed`](super::Loss::Closed), and then the store is asked for it, in batches. Who
    /// waits for a lock gets [`LockError::Closed`]. Returns how many were held.
    ///
    /// # Blocking
    ///
    /// Until the store has answered, or failed, for each lock that was held and each release that
    /// was queued before. No longer than `limit` by the leases' clock. The remaining locks are
    /// given back in the background while the process lives; otherwise their leases run out.
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn close(&self, limit: Duration) -> usize {
        if self.inner.keep_alive.is_forked() {
            return 0;
        }
        // Under a lock this panics before anything is changed.
        let _ = reentrancy::check();
        let until = self.now() + limit;
        let held = self.inner.keep_alive.close_all();
        self.inner.waiting.all_may_be_free();
        let back = |id: &LeaseId| PendingRelease {
            name: id.name().to_owned(),
            owner: id.owner().to_owned(),
            lease: id.lease(),
            sure: true,
        };
        self.inner.give_all_back_later(held.iter().map(back));
        self.inner.settle(&self.inner.clock, until);
        held.len()
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
