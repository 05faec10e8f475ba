//! The interface between leases and the backend that stores them, and what backends share: the
//! store in memory, the queue of waiting callers, and the context of a runtime. A store knows
//! nothing of those who use it. It may use `sync` alone.

mod bell;
#[cfg(not(loom))]
mod blocking_store;
mod call;
pub(crate) mod call_answer;
pub(crate) mod call_threads;
mod claim;
mod error;
mod fault;
mod forward;
mod group;
mod handed;
mod holder;
mod memory;
mod memory_state;
mod mode;
#[cfg(not(loom))]
mod owned;
mod secret;
// It needs tokio, which the models do without.
#[cfg(all(feature = "tokio", not(loom)))]
mod tokio_store;
mod wait_queue;

use std::future::ready;
use std::task::Waker;
use std::time::Duration;

pub(crate) use bell::Bell;
#[cfg(not(loom))]
pub use blocking_store::BlockingStore;
#[cfg(not(loom))]
pub(crate) use blocking_store::{BACKGROUND_BOUNDS, StoreThreads};
pub use call::StoreFuture;
#[cfg(any(loom, feature = "postgres", feature = "redis"))]
pub(crate) use call::complete;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use call::{Driver, may_drive};
pub(crate) use call::{
    block_on, is_waited_for, may_block, only, parks_until, poll_in_background, poll_in_place,
    waker_address,
};
#[cfg(not(loom))]
pub(crate) use call_threads::Lane;
pub(crate) use claim::LONGEST_NAME;
pub use claim::{Acquired, Claim};
pub use error::StoreError;
#[cfg(feature = "sqlite")]
pub(crate) use forward::forward;
pub use handed::{Detach, Detached, Resume, Resumed};
pub use holder::{HeldLock, Holder, LockPage, LockPaging};
pub use memory::{Fault, MemoryStore, StoreCall};
pub use mode::Mode;
pub(crate) use secret::OwnedSecret;
pub use secret::Secret;
#[cfg(all(feature = "tokio", not(loom)))]
pub use tokio_store::TokioStore;
pub use wait_queue::WaitQueue;

/// A backend that stores leases: which owner holds which name, and until when.
///
/// [`MemoryStore`](crate::MemoryStore) keeps leases in memory. The example `own_store` is a backend
/// of some hundred lines, with a client that blocks.
///
/// # Calls
///
/// Each call is a [future](StoreFuture), which `Box::pin(async move { .. })` makes. Most calls take a
/// batch. All items of a batch belong to one destination.
///
/// - A future is polled by the task that awaits a call of the leases, by the thread that waits for
///   the call, or, for renewals and other calls in the background, by workers of the leases. If it
///   needs the I/O or the timers of a tokio runtime, `TokioStore` (feature `tokio`) polls it in the
///   context of that runtime. Without `TokioStore` awaited calls work in a task of tokio, but
///   renewals fail.
/// - A poll must not block. Wrap a store whose client blocks in a [`BlockingStore`]. Each poll in the
///   background that blocks occupies a worker of the leases, and no limit ends the call. If 240 such
///   polls block at one time, the leases poll nothing else in the background, and locks are lost. The
///   leases still apply the limits of callers, and still report losses.
/// - For leases of similar length, each destination has one call for renewals and one for releases
///   in the background at one time. At most eight further calls note that a caller has
///   [left](Self::leave), and each follower of a lock has one further call. Pending calls do not delay
///   calls to other destinations, whatever their number.
/// - A future that is pending when its `limit` is over is dropped, and the call counts as
///   [`StoreError::Unavailable`]. A future is also dropped with the task that awaits the call. It
///   must be safe to drop it at each `await`: a connection in the middle of an exchange must not be
///   used again.
///
/// # What a backend promises
///
/// - A name is granted to one owner at a time, unless the store [can share](Self::can_share) names
///   and the claims have another [mode](Claim::mode). The lease begins when the backend executes the call.
///   That is after the caller has sent it. So a lease never ends later by the caller's clock than
///   by the backend's clock.
/// - The tokens of a name strictly increase from holder to holder. Readers who hold the name at one
///   time have one token.
/// - An acquire with the [secret](Secret) that already holds the name is granted again, for a full
///   lease, with the same token or a greater one. A call whose answer was lost is repeated with the
///   same secret.
/// - Renewals, releases and detaches change only what is held with their secret. The owner proves
///   nothing, since [`holder_of`](Self::holder_of) and [`list`](Self::list) show it to everybody.
///   No call and no error shows a secret.
/// - A call sends nothing after its limit, nor after its future is dropped. Only a
///   [`BlockingStore`] finishes a call that one of its threads has begun.
///
/// A name has at most 1,024 bytes, [`Leases`](crate::Leases) sees to that.
///
/// An owner and a secret are never used twice: every acquire of a [`Leases`](crate::Leases) has its
/// own.
///
/// A store that wraps another store must forward every method, including those with a default here.
/// With the defaults, all names share one destination, the length of leases has no bound, nothing is
/// shared, and waiting callers are not woken.
///
/// # Panics
///
/// A panic in a call counts as [`StoreError::Unavailable`].
///
/// # Examples
///
/// Leases make these calls. A test of a backend may make them, too:
///
/// ```
/// use std::task::Waker;
/// use std::time::Duration;
/// use tourbillon_leases::{
///     Acquired, Claim, Detach, Holding, LeaseStore, LockPaging, MemoryStore, Outcome, Released,
///     Renewal, Resume, Secret,
/// };
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let store = MemoryStore::new();
/// let (to, limit) = (store.destination("report"), Duration::from_secs(5));
/// let (lease, secret) = (Duration::from_secs(30), Secret::new("u7Hq"));
/// assert!(lease <= store.longest_lease());
/// let claim = Claim::new("report", "owner 1", secret, lease);
/// let answers = store.acquire(to, &[claim], limit).await?;
/// assert!(matches!(answers[..], [Ok(Acquired::Granted { .. })]));
/// let renewal = Renewal::new("report", secret, lease);
/// assert_eq!(store.renew(to, &[renewal], limit).await?, [Outcome::Renewed]);
///
/// let holder = store.holder_of("report", limit).await?.expect("it is held");
/// let page = store.list("rep", &LockPaging::first(10), limit).await?;
/// assert_eq!(page.locks[0].holder.owner, holder.owner);
/// let watch = store.watch("report", Waker::noop()).expect("it can announce releases");
///
/// let ticket = Secret::new("9vLz");
/// store.detach(&Detach::new("report", secret, ticket, lease), limit).await?;
/// let secret = Secret::new("e4Wd");
/// let resume = Resume::new("report", ticket, "owner 2", secret);
/// assert!(store.resume(&resume, limit).await?.is_some());
/// let holding = Holding::new("report", secret);
/// assert_eq!(store.release(to, &[holding], limit).await?, [Ok(Released::Released)]);
/// drop(watch);
/// store.leave("report", "owner 3", limit).await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait LeaseStore: Send + Sync + 'static {
    /// Returns the destination of `name`. Names of one destination are renewed together. A
    /// destination that is slow or gone delays no other destination. The result is always the same
    /// for a name.
    fn destination(&self, name: &str) -> Destination {
        let _ = name;
        Destination::default()
    }

    /// Returns the longest lease that this store grants.
    fn longest_lease(&self) -> Duration {
        Duration::MAX
    }

    /// Returns whether names can be held in other [modes](Mode) than exclusively. The default is
    /// `false`. Then the leases refuse other modes before any call.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{LeaseStore, MemoryStore};
    ///
    /// assert!(MemoryStore::new().can_share());
    /// ```
    fn can_share(&self) -> bool {
        false
    }

    /// Acquires those names of one destination that nobody holds. A name that is shared or held with
    /// permits may have further holders in the same [mode](Mode). Returns one answer for each item of
    /// `batch`, in the same order. A missing answer counts as a failure.
    ///
    /// # Errors
    ///
    /// If all items have failed. After [`StoreError::Unavailable`] it is unknown whether names were
    /// granted, so the caller releases them. After any other error none was granted. If several
    /// items are [refused](StoreError::Refused) together, each one is tried alone. The error of a
    /// single item means the same for that item.
    fn acquire<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Claim<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Acquired, StoreError>>>;

    /// Notes that a caller which was [waiting](Claim::waits) for `name` gives up. A store that
    /// reserves names for such callers need not reserve this one for `owner` any more. The default
    /// does nothing: this backend reserves nothing, or lets the reservation run out.
    ///
    /// # Errors
    ///
    /// If the backend could not be asked. The reservation then runs out.
    fn leave<'a>(&'a self, name: &'a str, owner: &'a str, limit: Duration) -> StoreFuture<'a, ()> {
        let _ = (name, owner, limit);
        Box::pin(ready(Ok(())))
    }

    /// Renews leases of one destination, each for its full length from now on. Returns one outcome
    /// for each item of `batch`, in the same order. A missing outcome counts as a failure.
    ///
    /// # Errors
    ///
    /// If all renewals have failed. After [`StoreError::Refused`] each one is tried alone.
    fn renew<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Renewal<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Outcome>>;

    /// Releases those names of one destination that are held with the secret of their item, and
    /// wakes callers that [watch](Self::watch) them. Returns one answer for each item of `batch`, in
    /// the same order. A missing answer counts as a failure.
    ///
    /// An item with a [rest](Holding::rest) stays locked for that time, and no longer. The backend
    /// forgets its secret, so that a renewal that arrives later is [`NotHeld`](Outcome::NotHeld).
    ///
    /// # Errors
    ///
    /// If all items have failed. Any of them may have been released all the same. If several items
    /// are [refused](StoreError::Refused) together, each one is tried again alone.
    fn release<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Holding<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Released, StoreError>>>;

    /// Detaches a name from the caller that holds it, so that whoever has the ticket can
    /// [resume](Self::resume) it.
    ///
    /// The store writes the ticket, the length of the lease and the terms beside the name, in the
    /// place of those of an earlier detach. Everything else stays, also the secret of the holder,
    /// until the name is resumed. A name that is held in another mode than exclusively is
    /// [`NotHeld`](Detached::NotHeld) here. The default refuses the call: this backend can't hand names
    /// over.
    ///
    /// # Errors
    ///
    /// After [`StoreError::Unavailable`] it is unknown whether the name is detached. The caller
    /// still holds it.
    fn detach<'a>(&'a self, detach: &'a Detach<'a>, limit: Duration) -> StoreFuture<'a, Detached> {
        let _ = limit;
        Box::pin(ready(Err(StoreError::no_hand_over(detach.name))))
    }

    /// Gives a name that is detached with this ticket to another owner, for the full lease that was
    /// written when it was detached. Returns `None` if the name is not detached with this ticket.
    ///
    /// The store compares the ticket, deletes it, and writes the new owner and secret, all in one
    /// step. So each ticket is of use once, also if two callers resume at one time. If the name is
    /// held with the secret of `resume` already, the call is a repetition of one whose answer was
    /// lost, and is answered again. The default refuses the call, as [`detach`](Self::detach) does.
    ///
    /// # Errors
    ///
    /// After [`StoreError::Unavailable`] it is unknown whether the name was resumed. After any
    /// other error the ticket is still of use.
    fn resume<'a>(
        &'a self,
        resume: &'a Resume<'a>,
        limit: Duration,
    ) -> StoreFuture<'a, Option<Resumed>> {
        let _ = limit;
        Box::pin(ready(Err(StoreError::no_hand_over(resume.name))))
    }

    /// Returns who holds `name` by the store's clock, or `None` if nobody does. The answer may be
    /// outdated when it arrives. The default refuses the call: this backend can't tell.
    ///
    /// # Errors
    ///
    /// If the backend could not be asked, or can't tell.
    fn holder_of<'a>(&'a self, name: &'a str, limit: Duration) -> StoreFuture<'a, Option<Holder>> {
        let _ = limit;
        Box::pin(ready(Err(StoreError::no_holder(name))))
    }

    /// Returns a page of the names that begin with `prefix` and are held by the store's clock, with
    /// their holders. An empty prefix is that of all names. The pages may come in any order, and
    /// [`LockPaging::after`] is whatever the store has put into the page before. Each name that is
    /// held all the time is in at least one of the pages, unless the server of the names restarts, or
    /// is replaced, between two pages.
    ///
    /// A backend that has to look at much returns what it has found when about half of `limit` has
    /// passed, and where it goes on. So the number of its other keys makes no call fail. The default
    /// refuses the call: this backend can't tell.
    ///
    /// # Errors
    ///
    /// If the backend could not be asked, can't tell, or does not know the place.
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        paging: &'a LockPaging,
        limit: Duration,
    ) -> StoreFuture<'a, LockPage> {
        let _ = (paging, limit);
        Box::pin(ready(Err(StoreError::no_list(prefix))))
    }

    /// Wakes `waker` when `name` may be free, until the returned value is dropped. The default
    /// returns `None`: this backend can't announce releases. A backend that can keeps the waiting
    /// callers in a [`WaitQueue`].
    ///
    /// Wake-ups may be spurious, and the backend may miss a release. So a waiting caller also asks
    /// again at intervals, and when the lease in its way has run out.
    fn watch(&self, name: &str, waker: &Waker) -> Option<Box<dyn Watch>> {
        let _ = (name, waker);
        None
    }
}

/// A registered wait for a name.
///
/// Dropping it ends the wait and leaves nothing behind. If the waiting caller was woken and has not
/// [asked](Self::looks) since, the drop passes the wake-up on to the next waiting caller.
///
/// # Examples
///
/// ```
/// use std::task::Waker;
/// use tourbillon_leases::{LeaseStore, MemoryStore};
///
/// let store = MemoryStore::new();
/// let watch = store.watch("report", Waker::noop()).expect("it can announce releases");
/// watch.looks();
/// // .. ask for the name ..
/// drop(watch);
/// ```
pub trait Watch: Send + Sync {
    /// Reports that the waiting caller is about to ask for the name. This consumes the last
    /// wake-up, and the caller may be woken again from now on.
    fn looks(&self);
}

/// Identifies a part of a backend that can fail on its own, such as a node, a shard or a peer.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{Destination, LeaseStore, MemoryStore};
///
/// // A memory store has one destination by default.
/// assert_eq!(MemoryStore::new().destination("report"), Destination::new(0));
/// assert_eq!(Destination::new(7).get(), 7);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Destination(u64);

impl Destination {
    /// Creates the destination with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Destination(number)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// One lease of a batch of renewals.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_leases::{Renewal, Secret};
///
/// let renewal = Renewal::new("report", Secret::new("u7Hq"), Duration::from_secs(30));
/// assert!(renewal.never_shortening().never_shortens);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Renewal<'a> {
    /// The name that is held.
    pub name: &'a str,
    /// The secret with which it was acquired.
    pub secret: Secret<'a>,
    /// The length of the lease from now on.
    pub lease: Duration,
    /// The number of guards of this lease. It is shown to people who look at the backend, and
    /// decides nothing.
    pub holds: u32,
    /// Whether more than `lease` stays if it is left already. A request that arrives late must not
    /// shorten what a later [extension](crate::LeaseGuard::extend) has granted.
    pub never_shortens: bool,
    /// The mode in which it was acquired. A store may find the holder by the secret alone.
    pub mode: Mode,
}

impl<'a> Renewal<'a> {
    /// Creates the renewal of a lease with one guard.
    #[must_use]
    pub fn new(name: &'a str, secret: Secret<'a>, lease: Duration) -> Self {
        Renewal {
            name,
            secret,
            lease,
            holds: 1,
            never_shortens: false,
            mode: Mode::Exclusive,
        }
    }

    /// Returns the same renewal, of a lease that was acquired in this mode.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon_leases::{Mode, Renewal, Secret};
    ///
    /// let renewal = Renewal::new("report", Secret::new("u7Hq"), Duration::from_secs(30));
    /// assert_eq!(renewal.in_mode(Mode::Shared).mode, Mode::Shared);
    /// ```
    #[must_use]
    pub fn in_mode(self, mode: Mode) -> Self {
        Renewal { mode, ..self }
    }

    /// Returns the same renewal, which [never shortens](Self::never_shortens) the lease.
    #[must_use]
    pub fn never_shortening(self) -> Self {
        Renewal {
            never_shortens: true,
            ..self
        }
    }
}

/// The result of one renewal.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// The lease has its full length again, counted from a moment after the call was sent.
    Renewed,
    /// The name is not held with this secret, and never will be again.
    NotHeld,
    /// The result is unknown. The renewal is tried again while the lease lasts.
    Failed(StoreError),
}

/// One name of a batch of releases.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_leases::{Holding, Secret};
///
/// let second = Duration::from_secs(1);
/// let holding = Holding::new("report", Secret::new("u7Hq")).after(second);
/// assert_eq!(holding.rest, second); // the name stays locked for so long
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Holding<'a> {
    /// The name to release.
    pub name: &'a str,
    /// The secret with which it was acquired.
    pub secret: Secret<'a>,
    /// How long the name stays locked from now on, after which it is free. Usually zero. See
    /// [`Acquisition::at_least`](crate::Acquisition::at_least).
    pub rest: Duration,
    /// The mode in which it was acquired. A store may find the holder by the secret alone.
    pub mode: Mode,
}

impl<'a> Holding<'a> {
    /// Creates the release of `name`, which succeeds if it is held with `secret`.
    #[must_use]
    pub fn new(name: &'a str, secret: Secret<'a>) -> Self {
        Holding {
            name,
            secret,
            rest: Duration::ZERO,
            mode: Mode::Exclusive,
        }
    }

    /// Returns the same release, of a name that was acquired in this mode.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Holding, Mode, Secret};
    ///
    /// let holding = Holding::new("report", Secret::new("u7Hq")).in_mode(Mode::Shared);
    /// assert_eq!(holding.mode, Mode::Shared);
    /// ```
    #[must_use]
    pub fn in_mode(self, mode: Mode) -> Self {
        Holding { mode, ..self }
    }

    /// Returns the same release, after which the name stays locked for `rest`.
    #[must_use]
    pub fn after(self, rest: Duration) -> Self {
        Holding { rest, ..self }
    }
}

/// The result of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Released {
    /// The name is free, or the place of this holder.
    Released,
    /// The name was not held with this secret any more.
    NotHeld,
}
