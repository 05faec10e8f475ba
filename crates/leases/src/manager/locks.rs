//! The lock manager, which acquires and releases locks.

use std::fmt;
use std::time::Duration;

use tourbillon::{Time, reentrancy};

use super::acquire::Acquisition;
use super::error::LockError;
use super::guard::LeaseGuard;
use super::id::LeaseId;
use super::inner::LeasesInner;
use super::releases::UserHandle;
use super::stats::LeaseStats;
use crate::keep_alive::{Event, spread};
use crate::store::{Holder, LONGEST_NAME};
use crate::sync::Arc;
use crate::sync::channel::Receiver;

/// Manages locks that expire, in a [`LeaseStore`](crate::LeaseStore).
///
/// A lock is acquired with a *lease*: the store forgets the lock when the lease has run out. A
/// background thread renews the lease while its [`LeaseGuard`] lives. If the holder dies, is cut
/// off or stands still, others get the lock when the lease has run out. A holder that still exists
/// learns of the loss by its own clock.
///
/// Clones share one manager. It has no threads of its own, and runs on the
/// [runtime](tourbillon::Runtime) of the process, unless its builder is told of [another
/// one](crate::LeasesBuilder::runtime) or to have [its own](crate::LeasesBuilder::own_threads).
/// Each call of the store or the callback that hangs adds a worker, up to a bound.
///
/// Locks are not reentrant: a thread that asks again for a lock that it holds waits for itself.
/// [`enter_again`](Self::enter_again) creates a second guard of a held lock.
///
/// # Fairness
///
/// A released lock goes to the caller that asks first. That is fast, but a caller that locks and
/// unlocks in a loop could keep all others out forever. So callers that have waited for 20 ms take
/// turns. The next release reserves the lock for them for 5 to 25 ms; the longer the wait, the
/// longer the reservation. During that time the lock counts as held for all other callers. If
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
/// The drop of the last clone, or of the last guard if that lives longer, waits until every queued
/// release has been sent to the store, for at most [one second](crate::LeasesBuilder::end_limit).
/// So a program may end right after it has dropped its guards.
///
/// If the dropping thread belongs to a runtime and must not block, keep a clone, or
/// [`close`](Self::close) the leases on another thread before. Releases that are still queued after
/// that second go on in the background while the process lives.
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
    /// The length of the longest name of a lock, in bytes.
    pub const LONGEST_NAME: usize = LONGEST_NAME;

    pub(crate) fn is_forked(&self) -> bool {
        self.inner.keep_alive.is_forked()
    }

    pub(crate) fn default_lease(&self) -> Duration {
        self.inner.lease
    }

    /// Returns a pause around `mean`, so that many do not ask at one moment.
    pub(crate) fn spread(&self, mean: Duration) -> Duration {
        let keep_alive = &self.inner.keep_alive;
        spread(mean, keep_alive.random(keep_alive.number()))
    }

    pub(super) fn of(inner: LeasesInner) -> Self {
        Leases {
            inner: UserHandle::new(&Arc::new(inner)),
        }
    }

    /// Returns a builder that acquires a lock with other options: a lease of another length, a
    /// lease without renewals, a holder that must feed the lease, or a longest hold.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.acquire("report").lease(Duration::from_secs(10)).try_lock()?;
    /// assert!(guard.remaining() <= Duration::from_secs(10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn acquire<'a>(&'a self, name: &'a str) -> Acquisition<'a> {
        Acquisition::new(&self.inner, name)
    }

    /// Acquires the lock, and waits until it is free. The call also goes on waiting while the store
    /// returns errors that may pass.
    ///
    /// # Errors
    ///
    /// [`LockError`] if the input is invalid, if the store refuses for good, or if the leases are
    /// closed.
    ///
    /// # Blocking
    ///
    /// Blocks until the lock is free and the store grants it. Without a server that is forever.
    /// After one second the event [`What::Waiting`] says why, and again after pauses that double.
    /// [`LeaseStats::waiting`] counts waiting callers.
    ///
    /// A Redis server that has just started, has lost its data, or is new to the store grants
    /// nothing for up to 31 s by default. A store that is built as durable does not wait. One that
    /// starts empty waits only for a server that has restarted with its data.
    ///
    /// [`What::Waiting`]: crate::What::Waiting
    ///
    /// A release wakes one waiting caller, if the store can announce releases. Waiting callers also
    /// ask again when the lease in their way has run out, and at
    /// [intervals](crate::LeasesBuilder::poll). Another caller that asks at the moment of the
    /// release may be faster, but not for long: see [fairness](Self#fairness).
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("invoices")?; // waits until it is free
    /// // .. send the invoices ..
    /// guard.release()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    /// Blocks for the call, at most a third of the lease.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, LockError, MemoryStore};
    ///
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.try_lock("report")?;
    /// assert!(matches!(leases.try_lock("report"), Err(LockError::Held { .. })));
    /// guard.release()?;
    /// assert!(leases.try_lock("report").is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_lock(&self, name: &str) -> Result<LeaseGuard, LockError> {
        self.acquire(name).try_lock()
    }

    /// Acquires the lock, and waits for at most `wait` until it is free.
    ///
    /// # Errors
    ///
    /// [`LockError::TimedOut`] if somebody else held the lock to the end,
    /// [`LockError::Unanswered`] if the store failed at the end, and the errors of
    /// [`lock`](Self::lock).
    ///
    /// # Blocking
    ///
    /// Blocks for at most `wait` by the leases' clock, or for one call to the store if that takes
    /// longer: the store is asked at least once.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon_leases::{Leases, LockError, MemoryStore};
    ///
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("report")?;
    /// let late = leases.try_lock_for("report", Duration::from_millis(20));
    /// assert!(matches!(late, Err(LockError::TimedOut { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_lock_for(&self, name: &str, wait: Duration) -> Result<LeaseGuard, LockError> {
        self.acquire(name).try_lock_for(wait)
    }

    /// Creates one more guard of a held lock. The lock is released with its last guard. The guards
    /// are counted in this process only, and renewals don't depend on the count.
    ///
    /// # Errors
    ///
    /// [`LockError::ForeignGuard`] if other `Leases` acquired the lock, and [`LockError::Lost`] if
    /// the lease is lost.
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

    /// Returns a channel that receives all events from now on. Events for which it has no room are
    /// discarded and counted in [`LeaseStats::events_missed`]. There is room for at least one
    /// event.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let events = leases.events(64);
    /// let guard = leases.lock("report")?;
    /// for event in events.try_iter() {
    ///     println!("{}: {}", event.key.name(), event.what);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn events(&self, capacity: usize) -> Receiver<Event<LeaseId>> {
        self.inner.keep_alive.events(capacity)
    }

    /// Returns counters and gauges.
    ///
    /// # Complexity
    ///
    /// Linear in the number of locks that are held.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("report")?;
    /// let stats = leases.stats();
    /// println!("{} callers wait for a lock", stats.waiting);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> LeaseStats {
        self.inner.stats()
    }

    /// Asks the store who holds a lock. Returns `None` if nobody does.
    ///
    /// The answer may be outdated when it arrives. So it is for people who look, and nothing may be
    /// decided by it: to learn whether this process holds a lock, ask its
    /// [guard](LeaseGuard::is_held).
    ///
    /// # Errors
    ///
    /// [`LockError::EmptyName`], and [`LockError::Store`] if the store could not be asked or
    /// [can't tell](crate::LeaseStore::holder_of).
    ///
    /// # Blocking
    ///
    /// Blocks for one call to the store, for at most a third of the default lease.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("report")?;
    /// let holder = leases.holder("report")?.expect("the lock is held");
    /// assert_eq!((holder.owner.as_str(), holder.token), (guard.id().owner(), guard.fencing_token()));
    /// assert!(!leases.is_locked("other")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn holder(&self, name: &str) -> Result<Option<Holder>, LockError> {
        // Under a lock of the crate this panics before the store is asked.
        let _ = reentrancy::check();
        self.inner.holder(name)
    }

    /// Asks the store whether anybody holds a lock, as [`holder`](Self::holder) does.
    ///
    /// # Errors
    ///
    /// As for [`holder`](Self::holder).
    pub fn is_locked(&self, name: &str) -> Result<bool, LockError> {
        Ok(self.holder(name)?.is_some())
    }

    /// Returns the current time of the leases' clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.inner.clock.now()
    }

    /// Closes the leases and releases all held locks. Returns how many locks were held.
    ///
    /// Nothing is acquired from now on. Every held lock is lost with
    /// [`Loss::Closed`](crate::Loss::Closed), and is then released in batches. A waiting caller
    /// gets [`LockError::Closed`].
    ///
    /// # Blocking
    ///
    /// Blocks until the store has answered, or failed, for each lock that was held and for each
    /// release that was queued before. It blocks for at most `limit` by the leases' clock. The
    /// remaining locks are released in the background while the process lives. If it ends before,
    /// their leases run out.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon_leases::{Leases, LockError, MemoryStore};
    ///
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("report")?;
    /// assert_eq!(leases.close(Duration::from_secs(1)), 1);
    /// assert!(!guard.is_held());
    /// assert!(matches!(leases.lock("report"), Err(LockError::Closed { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn close(&self, limit: Duration) -> usize {
        if self.inner.keep_alive.is_forked() {
            return 0;
        }
        // If this thread holds a lock of a map or a scheduler, the check panics before anything
        // changes.
        let _ = reentrancy::check();
        let until = self.now() + limit;
        // Close first, so that a woken caller finds the leases closed and does not ask again.
        let held = self.inner.keep_alive.close_all();
        self.inner.waiting.all_may_be_free();
        let back = held.iter().map(|id| id.back(true));
        self.inner.give_all_back_later(back);
        self.inner.settle(&self.inner.clock, until);
        held.len()
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
