//! A call that acquires a lock, with its options.

use std::future::IntoFuture;
use std::time::Duration;

use super::acquire::AcquireLoop;
use super::error::LockError;
use super::guard::LeaseGuard;
use super::lease_future::LeaseFuture;
use super::releases::UserHandle;
use super::request::{Request, WaitPolicy};
use super::stop::StopSignal;
use crate::keep_alive::KeepOptions;
use crate::store::{Mode, OwnedSecret, block_on};
use crate::sync::Arc;

/// A call that acquires a lock, with its options. Made by [`Leases::lock`](crate::Leases::lock).
///
/// [`wait`](Self::wait) blocks until the lock is acquired, and `.await` waits without a thread. Both
/// wait for as long as it takes, unless [`at_once`](Self::at_once) or [`within`](Self::within) says
/// otherwise.
///
/// # Drop
///
/// **Dropping the future** ends the wait. If a call is under way, the lock is given back in the
/// background, whether or not that call is granted. The release is repeated for a while, since the
/// call may still arrive at the store. So [`within`](Self::within) is cheaper than a timeout around
/// the future.
///
/// **A future that is kept and not polled** holds nothing for longer than a lease, since the
/// renewals begin in the poll that takes the grant. A call is given up at its limit, a third of the
/// lease after it was sent. The next poll may come later than that:
///
/// - Before half of the lease, [`at_once`](Self::at_once) fails with [`LockError::Store`], and a
///   call that waits asks again.
/// - After half of the lease, the future first gives back what may have been granted, and then asks
///   again.
///
/// A release wakes one waiting future of a process. If nobody polls that one, the others ask again
/// without it, within a second.
///
/// If [`max_hold`](Self::max_hold) is over when a grant is taken, the call fails with
/// [`LockError::Lost`].
///
/// **Dropping the guard** of an awaited call does not block, unless it is the last guard and no
/// `Leases` are left: see [`LeasesBuilder::end_limit`](crate::LeasesBuilder::end_limit). A process
/// that exits without this last drop may end before a dropped guard is given back. There, await
/// [`release`](LeaseGuard::release), or call [`close`](crate::Leases::close).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_leases::{Leases, MemoryStore};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let leases = Leases::new(MemoryStore::new())?;
/// // Renewed, but never for more than an hour, and only while the worker feeds it.
/// let guard = leases
///     .lock("nightly-report")
///     .lease(Duration::from_secs(10))
///     .fed_every(Duration::from_secs(60))
///     .max_hold(Duration::from_secs(3600))
///     .at_once()
///     .wait()?;
/// assert!(guard.feed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is acquired until it is waited for, or awaited"]
pub struct Acquisition<'a> {
    leases: &'a UserHandle,
    name: &'a str,
    terms: AcquireTerms,
    /// Ends the wait from outside, if there is somebody who may.
    stop: Option<Arc<StopSignal>>,
}

/// The options of a call.
#[derive(Clone, Copy, Debug)]
struct AcquireTerms {
    lease: Duration,
    is_renewed: bool,
    feed: Option<Duration>,
    max_hold: Option<Duration>,
    at_least: Duration,
    mode: Mode,
    patience: Patience,
}

/// How long the caller waits, from the moment at which the call is made.
#[derive(Clone, Copy, Debug)]
enum Patience {
    Endless,
    None,
    Within(Duration),
}

impl<'a> Acquisition<'a> {
    pub(super) fn new(leases: &'a UserHandle, name: &'a str) -> Self {
        Acquisition {
            leases,
            name,
            terms: AcquireTerms {
                lease: leases.lease,
                is_renewed: true,
                feed: None,
                max_hold: None,
                at_least: Duration::ZERO,
                mode: Mode::Exclusive,
                patience: Patience::Endless,
            },
            stop: None,
        }
    }

    /// Asks for a **read lock**: others may hold the same name with read locks at the same time. A call
    /// without this option asks for the whole name: it is the write lock. Overrides an earlier
    /// [`permit_of`](Self::permit_of).
    ///
    /// - Readers get in while others read, until a writer waits. Then the readers finish, and the
    ///   writer is next. A writer counts as waiting for 1.5 s after it has asked, and it asks
    ///   at least once a second.
    /// - All readers who hold the name at one time have one [token](LeaseGuard::token). It is greater
    ///   than that of the writer before them, and smaller than that of the writer after them. So a
    ///   [`Fence`](crate::Fence) works as for exclusive locks.
    /// - Each reader has a lease of its own. If it dies, a writer waits for the rest of that lease.
    /// - A reader that asks for the write lock while it keeps its read lock waits for itself. A reader
    ///   that asks for a second read lock waits for itself, too, if a writer is waiting. To use one read
    ///   lock in two places, call [`LeaseGuard::again`].
    ///
    /// # Errors
    ///
    /// The call that locks fails with [`LockError::Store`] if the store
    /// [can't share](crate::LeaseStore::can_share) names. Nothing is asked then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, LockError, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let one = leases.lock("config").shared().wait()?;
    /// let other = leases.lock("config").shared().wait()?;
    /// let write = || leases.lock("config").at_once().wait();
    /// assert!(matches!(write(), Err(LockError::Held { .. })));
    /// drop((one, other));
    /// assert!(write().is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shared(mut self) -> Self {
        self.terms.mode = Mode::Shared;
        self
    }

    /// Asks for **one of `n` permits**: up to `n` may hold the name at the same time. All callers have to
    /// name the same number. A caller with another number, or without one, waits until the name is
    /// free, and while it waits no further permit is granted. Overrides an earlier
    /// [`shared`](Self::shared).
    ///
    /// Each permit has a [place](LeaseGuard::place) from 0 to `n - 1`, the lowest that is free, and a
    /// [token](LeaseGuard::token) of its own. **The token alone fences nothing**: the holder that was
    /// granted the first place an hour ago still holds it, and has a smaller token than all others. So
    /// a resource has to keep one [`Fence`](crate::Fence), or one column, for each place.
    ///
    /// A holder of a permit that asks for a second one may wait for itself, for example while a caller
    /// with another number waits. To use one permit in two places, call [`LeaseGuard::again`].
    ///
    /// # Errors
    ///
    /// The call that locks fails with [`LockError::Permits`] if `n` is zero or more than
    /// [`Mode::MOST_PERMITS`](crate::Mode::MOST_PERMITS), and with [`LockError::Store`] if the store
    /// [can't share](crate::LeaseStore::can_share) names. Nothing is asked then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Fence, Leases, LockError, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let fences = [Fence::new(), Fence::new()]; // belong to the two GPUs
    /// let gpu = || leases.lock("gpu").permit_of(2).at_once().wait();
    /// let (one, other) = (gpu()?, gpu()?);
    /// assert!(matches!(gpu(), Err(LockError::Held { .. })));
    /// for guard in [&one, &other] {
    ///     fences[guard.place() as usize].admit(guard.token())?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn permit_of(mut self, n: u32) -> Self {
        self.terms.mode = Mode::Permit { of: n };
        self
    }

    /// Sets the length of the lease. The default is that of the [`Leases`](crate::Leases). It is
    /// renewed while the guard lives, unless it is [`not_renewed`](Self::not_renewed). Stores on
    /// Redis and PostgreSQL grant at most 30 s, unless their builder sets a greater `longest_lease`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("report").lease(Duration::from_secs(5)).wait()?;
    /// assert!(guard.remaining() <= Duration::from_secs(5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lease(mut self, lease: Duration) -> Self {
        self.terms.lease = lease;
        self
    }

    /// Demands a lease that is **not renewed**. It is lost when it has run out, unless the holder
    /// [extends](LeaseGuard::extend) it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// // The work takes ten minutes at most, so nothing has to be renewed.
    /// let ten_minutes = Duration::from_secs(600);
    /// let guard = leases.lock("report").lease(ten_minutes).not_renewed().wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn not_renewed(mut self) -> Self {
        self.terms.is_renewed = false;
        self
    }

    /// Requires that the holder calls [`LeaseGuard::feed`] within every such period. If it does
    /// not, it counts as dead: the lease is lost, is no longer renewed, and runs out in the store.
    pub fn fed_every(mut self, period: Duration) -> Self {
        self.terms.feed = Some(period);
        self
    }

    /// Sets the longest time that the lock is held in all. After that time it is no longer renewed
    /// and counts as lost. If that time is over before the grant arrives, the call that locks fails
    /// with [`LockError::Lost`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("report").max_hold(Duration::from_secs(3600)).wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.terms.max_hold = Some(most);
        self
    }

    /// Sets the shortest time for which the lock stays locked, counted from its grant. If it is
    /// released or dropped earlier, others have to wait for the rest. Example: ten
    /// nodes start a job of 5 ms at the same minute, and their clocks differ. The job runs once.
    /// Choose a time that is longer than these clocks differ, and shorter than the job's period.
    ///
    /// The rest is kept in the store: the release shortens the lease to it. So it also holds if the
    /// process ends right after the release. After the release this process has to wait like all
    /// others. While the rest lasts, [`holder`](crate::Leases::holder) returns the owner with the
    /// words ` (released)`. The place of a [read lock](Self::shared) or a [permit](Self::permit_of)
    /// stays taken.
    ///
    /// The time can't be longer than the lease, since the lock of a holder that dies is free after
    /// one lease. For a lease of more than 30 s, stores on Redis and PostgreSQL need the option `longest_lease`.
    /// Zero is the default. The lock does not stay locked if it is lost because the store has
    /// forgotten it.
    ///
    /// # Errors
    ///
    /// The call that locks fails with [`LockError::LongerThanLease`] if the lease is shorter.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{Leases, LockError, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let minute = Duration::from_secs(60);
    /// let job = || leases.lock("report").lease(minute).at_least(minute / 2).at_once().wait();
    /// job()?.release().wait()?; // the job takes no time
    /// assert!(matches!(job(), Err(LockError::Held { .. }))); // another node is a bit late
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn at_least(mut self, least: Duration) -> Self {
        self.terms.at_least = least;
        self
    }

    /// Acquires the lock only if it is free, with one call to the store. Overrides an earlier
    /// [`within`](Self::within).
    ///
    /// The call that locks then fails with [`LockError::Held`] if the lock is held, or is reserved
    /// for a caller that has waited (see [fairness](crate::Leases#fairness)), and with
    /// [`LockError::Store`] if the call to the store failed. It takes at most a third of the lease.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, LockError, MemoryStore};
    ///
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("report").at_once().wait()?;
    /// let second = leases.lock("report").at_once().wait();
    /// assert!(matches!(second, Err(LockError::Held { .. })));
    /// guard.release().wait()?;
    /// assert!(leases.lock("report").at_once().wait().is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn at_once(mut self) -> Self {
        self.terms.patience = Patience::None;
        self
    }

    /// Waits for at most `limit`, by the leases' clock. The time counts from [`wait`](Self::wait), or
    /// from the first poll. One call to the store may exceed it. Overrides an earlier
    /// [`at_once`](Self::at_once).
    ///
    /// The call that locks then fails with [`LockError::TimedOut`] if somebody else held the lock to
    /// the end, and with [`LockError::Unanswered`] if the store failed at the end.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon_leases::{Leases, LockError, MemoryStore};
    ///
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("report").wait()?;
    /// let late = leases.lock("report").within(Duration::from_millis(20)).wait();
    /// assert!(matches!(late, Err(LockError::TimedOut { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn within(mut self, limit: Duration) -> Self {
        self.terms.patience = Patience::Within(limit);
        self
    }

    pub(crate) fn stopped_by(mut self, stop: &Arc<StopSignal>) -> Self {
        self.stop = Some(Arc::clone(stop));
        self
    }

    /// Acquires the lock, and blocks until it is acquired. The call also goes on waiting while the
    /// store returns errors that may pass.
    ///
    /// # Errors
    ///
    /// [`LockError`] if the name or an option is out of range, if the store refuses for good, or if
    /// the leases are closed. [`at_once`](Self::at_once), [`within`](Self::within) and
    /// [`max_hold`](Self::max_hold) add errors of their own.
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
    /// [`LeaseStats::waiting`]: crate::LeaseStats::waiting
    ///
    /// A release wakes one waiting caller, if the store can announce releases. Waiting callers also
    /// ask again when the lease in their way has run out, and at
    /// [intervals](crate::LeasesBuilder::poll). Another caller that asks at the moment of the
    /// release may be faster, but not for long: see [fairness](crate::Leases#fairness).
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guard = leases.lock("invoices").wait()?; // waits until it is free
    /// // .. send the invoices ..
    /// guard.release().wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait(self) -> Result<LeaseGuard, LockError> {
        let (clock, address) = (&self.leases.clock, self.leases.address());
        block_on(clock, address, self.acquire())
    }

    /// Acquires the lock. A task or a waiting thread polls this.
    pub(crate) async fn acquire(self) -> Result<LeaseGuard, LockError> {
        self.acquire_loop()?.go().await
    }

    /// Checks the options and makes the request.
    pub(super) fn request(&self) -> Result<Request, LockError> {
        let terms = self.terms;
        let mut keep = KeepOptions::for_lease(terms.lease);
        if !terms.is_renewed {
            keep = keep.without_renewal();
        }
        if let Some(period) = terms.feed {
            keep = keep.fed_every(period);
        }
        if let Some(most) = terms.max_hold {
            keep = keep.max_hold(most);
        }
        self.leases.check(self.name, &keep, terms.lease)?;
        self.leases.check_mode(self.name, terms.mode)?;
        let (at_least, lease) = (terms.at_least, terms.lease);
        let name = self.name.to_owned();
        if at_least > lease {
            return Err(LockError::LongerThanLease {
                name,
                at_least,
                lease,
            });
        }
        Ok(Request {
            name,
            owner: self.leases.owner(),
            secret: OwnedSecret::random(),
            lease,
            mode: terms.mode,
            keep,
            at_least,
        })
    }

    /// Checks the options and makes the loop of attempts. The time to wait counts from now on.
    fn acquire_loop(&self) -> Result<AcquireLoop, LockError> {
        let wait_policy = match self.terms.patience {
            Patience::Endless => WaitPolicy::Endless,
            Patience::None => WaitPolicy::None,
            Patience::Within(limit) => WaitPolicy::Until(self.leases.clock.now() + limit),
        };
        // First, since a request that is refused has not begun.
        let request = self.request()?;
        let stop = self.stop.clone();
        Ok(AcquireLoop::new(self.leases, request, wait_policy, stop))
    }
}

/// An acquisition that owns what it needs.
struct OwnAcquisition {
    leases: UserHandle,
    name: String,
    terms: AcquireTerms,
    stop: Option<Arc<StopSignal>>,
}

impl OwnAcquisition {
    fn borrowed(&self) -> Acquisition<'_> {
        Acquisition {
            leases: &self.leases,
            name: &self.name,
            terms: self.terms,
            stop: self.stop.clone(),
        }
    }
}

/// Acquires the lock without a thread, on any async runtime. The errors are those of
/// [`wait`](Acquisition::wait). You may drop the future, or keep it without a poll: see
/// [above](Acquisition#drop).
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{Leases, MemoryStore};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let leases = Leases::new(MemoryStore::new())?;
/// let guard = leases.lock("invoices").await?;
/// // .. await the work together with `guard.lost()`, which is a future, too
/// guard.release().await?;
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example()).unwrap();
/// ```
impl IntoFuture for Acquisition<'_> {
    type Output = Result<LeaseGuard, LockError>;
    type IntoFuture = LeaseFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let own = OwnAcquisition {
            leases: self.leases.clone(),
            name: self.name.to_owned(),
            terms: self.terms,
            stop: self.stop,
        };
        let leases = self.leases;
        LeaseFuture::new(leases, async move { own.borrowed().acquire().await })
    }
}
