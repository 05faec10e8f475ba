//! The lock manager: what acquires, waits, and gives back.

use std::fmt;
use std::time::Duration;

use super::acquire::Acquisition;
use super::builder::LeasesBuilder;
use super::error::LockError;
use super::guard::{LeaseGuard, LeaseId};
use super::hub::Hub;
use super::line::{Line, Tally};
use super::releases::{GiveBack, Queued, UserHandle};
use super::stats::{Asks, LeaseStats};
use super::store::{Acquired, Claim, LeaseStore, Outcome, Released, Renewal, StoreError};
use super::watchdog::{Batch, Event, Keep, Watchdog, call_limit};
use super::{store::Destination, turns::Turns};
use crate::clock::Clock;
use crate::job::contain;
use crate::shard::NoCalls;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::channel::Receiver;
use crate::tick::Time;

/// Locks that end by themselves, over a [`LeaseStore`].
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
/// been asked for every queued release, but for [one second](LeasesBuilder::end_limit) at most. So
/// a program may end right after it has dropped its guards. If the dropping thread belongs to a
/// runtime and must not block, keep a clone, or [`close`](Self::close) the leases on another thread
/// before. Releases that are still queued after that second go on in the background while the
/// process lives.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::leases::{Leases, MemoryStore};
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

pub(super) struct Inner {
    pub(super) store: Arc<dyn LeaseStore>,
    pub(super) watchdog: Watchdog<LeaseId>,
    pub(super) clock: Clock,
    pub(super) instance: String,
    pub(super) lease: Duration,
    pub(super) poll: Option<Duration>,
    pub(super) drop_limit: Duration,
    /// Who waits for a lock, to be told of the end.
    pub(super) waiting: Hub,
    /// What is to be given back, and how much that is.
    pub(super) line: Line<Queued>,
    pub(super) releases: Arc<Tally>,
    /// Passes of the line that run.
    pub(super) release_passes: AtomicUsize,
    /// Names that the store gave back.
    pub(super) released: AtomicU64,
    pub(super) asks: Asks,
    /// How many users' handles there are.
    pub(super) handles: AtomicUsize,
    /// How long the drop of the last one waits.
    pub(super) end_limit: Duration,
    /// Without threads: nothing happens while somebody waits.
    pub(super) stepped: bool,
    /// Calls that somebody awaits.
    pub(super) turns: Turns<Destination>,
}

/// A call takes this long at least, however little patience is left.
pub(super) const LEAST_CALL: Duration = Duration::from_millis(10);
/// What is to be acquired, checked.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) name: String,
    pub(super) owner: String,
    pub(super) lease: Duration,
    pub(super) keep: Keep,
}

/// How an attempt is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    /// The release is to be announced.
    pub(super) waits: bool,
    /// For how long it has waited.
    pub(super) waited: Duration,
    /// When it is of no use any more.
    pub(super) until: Time,
    /// An earlier one may still arrive.
    pub(super) unsure: bool,
    /// A drop of the guard may wait for the store.
    pub(super) drop_waits: bool,
}

/// What an attempt had for an answer.
#[derive(Debug)]
pub(super) enum Attempt {
    Granted(LeaseGuard),
    Held(Duration),
    Failed(StoreError),
    /// It was granted, and could not be kept.
    Ended(LockError),
}

impl Leases {
    /// Leases of 30 s on this store, with default options.
    ///
    /// # Errors
    ///
    /// As for [`LeasesBuilder::build`].
    pub fn new(store: impl LeaseStore) -> Result<Self, crate::error::BuildError> {
        Self::builder(store).build()
    }

    pub(super) fn of(inner: Inner) -> Self {
        Leases {
            inner: UserHandle::new(&Arc::new(inner)),
        }
    }

    /// Options with their defaults.
    pub fn builder(store: impl LeaseStore) -> LeasesBuilder {
        LeasesBuilder::new(Arc::new(store))
    }

    /// Begins to acquire a lock with options of its own: a lease of another length, one that is not
    /// renewed, a holder that must feed it, a longest hold.
    pub fn acquire<'a>(&'a self, name: &'a str) -> Acquisition<'a> {
        Acquisition::new(self, name)
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
    /// ask again when the lease in their way has run out, and at [intervals](LeasesBuilder::poll).
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
    /// use tourbillon::leases::{Leases, LockError, MemoryStore};
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
        self.inner.watchdog.events(capacity)
    }

    /// Counters and gauges.
    ///
    /// # Complexity
    ///
    /// Linear in the number of locks that are held.
    #[must_use]
    pub fn stats(&self) -> LeaseStats {
        self.inner.asks.fill(LeaseStats {
            // A forked copy has no line, and its lock may be held for ever.
            releases_queued: match self.inner.watchdog.is_forked() {
                true => 0,
                false => self.inner.releases.entered(),
            },
            // Relaxed: a counter.
            released: self.inner.released.load(Ordering::Relaxed),
            ..LeaseStats::of(self.inner.watchdog.stats())
        })
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
        if self.inner.watchdog.is_forked() {
            return 0;
        }
        // Under a lock this panics before anything is changed.
        drop(NoCalls::begin());
        let until = self.now() + limit;
        let held = self.inner.watchdog.close_all();
        self.inner.waiting.all_may_be_free();
        let back = |id: &LeaseId| GiveBack {
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
        f.debug_struct("Leases")
            .field("instance", &self.inner.instance)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Inner {
    /// A request that can be sent, and the threads to keep what it will be granted.
    pub(super) fn request(
        &self,
        name: &str,
        keep: Keep,
        lease: Duration,
    ) -> Result<Request, LockError> {
        if self.watchdog.is_forked() {
            return Err(LockError::Store {
                name: name.to_owned(),
                error: StoreError::Forked,
            });
        }
        // Under a lock this panics before the store is asked. While the thread panics it does not, and
        // what would be granted could not be kept.
        if NoCalls::begin().is_inert() {
            let why = "called from a panic under a lock of the crate; nothing was asked".to_owned();
            return Err(LockError::Store {
                name: name.to_owned(),
                error: StoreError::Refused(why),
            });
        }
        if name.is_empty() {
            return Err(LockError::EmptyName);
        }
        let most = self.store.longest_lease();
        if lease > most {
            let name = name.to_owned();
            return Err(LockError::TooLong { name, lease, most });
        }
        let checked = self.watchdog.check(&keep);
        checked.map_err(|error| LockError::of_keep(name, error))?;
        Ok(Request {
            name: name.to_owned(),
            // The process by its number of now: it may be a copy of the one that made the leases.
            owner: format!(
                "{}:{}:{}",
                self.instance,
                std::process::id(),
                self.watchdog.number()
            ),
            lease,
            keep,
        })
    }

    /// Asks the store once. Whatever panics, the answer is that nobody knows.
    pub(super) fn attempt(self: &Arc<Self>, request: &Request, how: How) -> Attempt {
        contain(|| self.ask(request, how)).unwrap_or_else(|panic| {
            let what = format!("the store panicked: {panic}");
            Attempt::Failed(StoreError::Unavailable(what))
        })
    }

    fn ask(self: &Arc<Self>, request: &Request, how: How) -> Attempt {
        // The lease counts from before the request is sent.
        let sent = self.clock.now();
        let claim = Claim::new(&request.name, &request.owner, request.lease);
        let mut claim = claim.waited(how.waited);
        if how.waits {
            claim = claim.waiting();
        }
        let limit = (request.lease / 3)
            .min(how.until.since(sent))
            .max(LEAST_CALL);
        let token = match self.store.acquire(&claim, limit) {
            Ok(Acquired::Granted { token }) => token,
            Ok(Acquired::Held { remaining }) => return Attempt::Held(remaining),
            Err(error) => return Attempt::Failed(error),
        };
        let until = sent + self.watchdog.good_for(request.lease);
        if self.clock.now() >= until {
            let what = "the grant came when its lease had run out".to_owned();
            return Attempt::Failed(StoreError::Unavailable(what));
        }
        let id = LeaseId::new(request, token);
        match self
            .watchdog
            .keep_with(id, &request.keep.clone().since(sent))
        {
            Ok(kept) => Attempt::Granted(LeaseGuard::new(self, kept, how.unsure, how.drop_waits)),
            Err(error) => Attempt::Ended(LockError::of_keep(&request.name, error)),
        }
    }

    pub(super) fn renew(
        store: &dyn LeaseStore,
        batch: &Batch<'_, LeaseId>,
    ) -> Result<Vec<Outcome>, StoreError> {
        let renewals: Vec<_> = batch
            .entries()
            .iter()
            .map(|entry| {
                let id = entry.key();
                let mut renewal = Renewal::new(id.name(), id.owner(), entry.lease());
                renewal.holds = u32::try_from(id.holds()).unwrap_or(u32::MAX);
                renewal
            })
            .collect();
        store.renew(batch.destination(), &renewals, batch.limit())
    }

    /// Asks the store once to give a name back.
    pub(super) fn release_once(
        &self,
        name: &str,
        owner: &str,
        lease: Duration,
    ) -> Result<Released, StoreError> {
        let limit = call_limit(lease);
        let answer = contain(|| self.store.release(name, owner, limit)).unwrap_or_else(|panic| {
            let what = format!("the store panicked: {panic}");
            Err(StoreError::Unavailable(what))
        });
        if let Ok(answer) = &answer {
            self.count_released(*answer);
        }
        answer
    }
}
