//! The lock manager, which acquires and releases locks.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use tourbillon::{Time, reentrancy};

use super::acquisition::Acquisition;
use super::error::LockError;
use super::id::LeaseId;
use super::inner::LeasesInner;
use super::lease_future::LeaseFuture;
use super::releases::UserHandle;
use super::stats::LeaseStats;
use crate::keep_alive::{Event, spread};
use crate::store::{Holder, LONGEST_NAME, block_on};
use crate::sync::Arc;
use crate::sync::channel::Receiver;

/// Manages locks that expire, in a [`LeaseStore`](crate::LeaseStore).
///
/// A lock is acquired with a *lease*: the store forgets the lock when the lease has run out. A
/// background thread renews the lease while its [`LeaseGuard`](crate::LeaseGuard) lives. If the
/// holder dies, is cut off or stands still, others get the lock when the lease has run out. A holder
/// that still exists learns of the loss by its own clock.
///
/// Clones share one manager. It has no threads of its own, and runs on the
/// [runtime](tourbillon::Runtime) of the process, unless its builder is told of [another
/// one](crate::LeasesBuilder::runtime) or to have [its own](crate::LeasesBuilder::own_threads).
/// A renewal or a release occupies a worker only while its future is polled, and a callback until it
/// returns.
///
/// Locks are not reentrant: a thread that asks again for a lock that it holds waits for itself.
/// [`LeaseGuard::again`](crate::LeaseGuard::again) creates a second guard of a held lock.
///
/// # Fairness
///
/// A released lock goes to the caller that asks first. That is fast, but a caller that locks and
/// unlocks in a loop could keep all others out forever. So callers that have waited for 20 ms take
/// turns. The next release reserves the lock for them for 5 to 25 ms; the longer the wait, the
/// longer the reservation. During that time the lock counts as held for all other callers. If
/// the waiting process has died, the lock is free again when the reservation ends.
///
/// - A call that asks [once](Acquisition::at_once) right after a release may fail with
///   [`LockError::Held`], although nobody holds the lock at that moment. This happens only while
///   others wait.
/// - Among processes that share a Redis server, the process whose caller has waited longest is
///   next. Callers of one process are woken in the order in which they began to wait.
/// - Callers that have waited for less than 20 ms get the lock in no particular order.
/// - [Readers](Acquisition::shared) and [permits](Acquisition::permit_of) do not join the holders while a
///   caller waits that can't join them, such as a writer.
///
/// # Drop
///
/// The drop of the last clone, guard, election or unfinished call, whichever lives longest, waits until every queued
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
/// let guard = leases.lock("invoices").wait()?; // waits until it is free
/// while guard.is_held() {
///     // .. a portion of work, with guard.token()
/// #   break;
/// }
/// guard.release().wait()?;
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

    /// Returns the answer of a call, which `future` makes.
    pub(crate) fn answer<T>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> LeaseFuture<T> {
        LeaseFuture::new(&self.inner, future)
    }

    /// Waits for a future of these leases on this thread.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        block_on(&self.inner.clock, self.inner.address(), future)
    }

    /// Returns a call that acquires the lock of this name. Set its options, and then call
    /// [`wait`](Acquisition::wait), or await it. The options are how long it waits, the length of
    /// the lease, whether it is renewed, whether the holder must feed it, and how long it is held.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon_leases::{Leases, LockError, MemoryStore};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("invoices").wait()?; // blocks until it is free
    /// let second = leases.lock("invoices").at_once().wait();
    /// assert!(matches!(second, Err(LockError::Held { .. })));
    /// guard.release().wait()?;
    ///
    /// // In async code. The lease is renewed, as it is by default.
    /// let guard = leases.lock("invoices").lease(Duration::from_secs(10)).await?;
    /// guard.release().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock<'a>(&'a self, name: &'a str) -> Acquisition<'a> {
        Acquisition::new(&self.inner, name)
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
    /// let guard = leases.lock("report").wait()?;
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
    /// let guard = leases.lock("report").wait()?;
    /// let stats = leases.stats();
    /// println!("{} callers wait for a lock", stats.waiting);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> LeaseStats {
        self.inner.stats()
    }

    /// Asks the store who holds a lock. The answer is `None` if nobody does. If several hold it, with read
    /// locks or permits, it is the one whose lease ends last.
    ///
    /// It may be outdated when it arrives. So it is for people who look, and nothing may be decided
    /// by it: to learn whether this process holds a lock, ask its
    /// [guard](crate::LeaseGuard::is_held).
    ///
    /// # Errors
    ///
    /// [`LockError::EmptyName`], [`LockError::LongName`], and [`LockError::Store`] if the store
    /// could not be asked or [can't tell](crate::LeaseStore::holder_of).
    ///
    /// # Blocking
    ///
    /// [`wait`](LeaseFuture::wait) blocks for one call to the store, for at most a third of the
    /// default lease.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("report").wait()?;
    /// let holder = leases.holder("report").wait()?.expect("the lock is held");
    /// assert_eq!((holder.owner.as_str(), holder.token), (guard.id().owner(), guard.token()));
    /// assert!(leases.holder("other").wait()?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn holder(&self, name: &str) -> LeaseFuture<Result<Option<Holder>, LockError>> {
        let (leases, name) = (self.inner.clone(), name.to_owned());
        self.answer(async move { leases.holder(&name).await })
    }

    /// Returns the current time of the leases' clock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let before = leases.now();
    /// let guard = leases.lock("report").wait()?;
    /// println!("acquired in {:?}", leases.now().since(before));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    /// let guard = leases.lock("report").wait()?;
    /// assert_eq!(leases.close(Duration::from_secs(1)), 1);
    /// assert!(!guard.is_held());
    /// assert!(matches!(leases.lock("report").wait(), Err(LockError::Closed { .. })));
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
