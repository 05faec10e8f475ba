//! What a backend is asked for.

use std::fmt;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::sync::Arc;

/// Where leases live: who holds which name, and until when.
///
/// [`MemoryStore`](super::MemoryStore) is the embedded one, and shows how to write another.
///
/// # What a backend promises
///
/// - A name is granted to one owner at a time. The lease begins when the backend executes the call,
///   which lies after the moment at which the caller sent it: by the caller's reckoning a lease
///   never ends later than by the backend's.
/// - Tokens of a name strictly increase from grant to grant.
/// - Acquiring by the owner that holds the name already is granted once more, for a full lease: a
///   call whose answer was lost is repeated with the same owner.
/// - Renewing and releasing touch nothing but what the named owner holds.
/// - A call sends nothing after its `limit`, and returns soon after it. A call that returns much
///   later delays no call of another destination, but it keeps a thread. There are at most 240
///   threads for renewals, 64 for batches of releases, and 192 for awaited calls, 64 of these for
///   one destination.
///
/// Owners are never used twice: every acquire of a [`Leases`](super::Leases) has one of its own.
///
/// What wraps another store passes every call on, those with a default here as well: without them
/// all names share one destination, leases have no bound, and who waits is not woken.
///
/// # Panics
///
/// A panic of a call counts as [`StoreError::Unavailable`].
pub trait LeaseStore: Send + Sync + 'static {
    /// What `name` shares its fate with: names of one destination are renewed together, and a
    /// destination that is slow or gone delays no other. Always the same for a name.
    fn destination(&self, name: &str) -> Destination {
        let _ = name;
        Destination::default()
    }

    /// The longest lease that may be asked for.
    fn longest_lease(&self) -> Duration {
        Duration::MAX
    }

    /// Takes a name, if nobody holds it.
    ///
    /// # Errors
    ///
    /// After [`StoreError::Unavailable`] it is unknown whether the name was granted, and it is given
    /// back; after the others it was not.
    fn acquire(&self, claim: &Claim<'_>, limit: Duration) -> Result<Acquired, StoreError>;

    /// Prolongs leases of one destination, each for its full length from now on. One outcome for
    /// each of `batch`, in the same order; those that are missing count as failed.
    ///
    /// # Errors
    ///
    /// If all have failed. After [`StoreError::Refused`] each is tried alone.
    fn renew(
        &self,
        destination: Destination,
        batch: &[Renewal<'_>],
        limit: Duration,
    ) -> Result<Vec<Outcome>, StoreError>;

    /// Gives a name back, if this owner holds it, and wakes who [watches](Self::watch) it.
    ///
    /// # Errors
    ///
    /// After an error it is unknown whether the name was given back.
    fn release(&self, name: &str, owner: &str, limit: Duration) -> Result<Released, StoreError>;

    /// Gives names of one destination back, each as [`release`](Self::release) does. Returns one
    /// answer for each item of `batch`, in the same order. A missing answer counts as a failure.
    ///
    /// The locks of dropped guards and of closed leases are given back by this call, at most
    /// [`LeasesBuilder::batch`](super::LeasesBuilder::batch) of them at a time. The default calls
    /// [`release`](Self::release) for one item after the other, until `limit` is over. A backend on
    /// a network should send them together. Otherwise each lock costs a round trip.
    ///
    /// # Errors
    ///
    /// If all items have failed. Then any of them may have been given back or not. After
    /// [`StoreError::Refused`] each is tried again in a batch of its own.
    fn release_many(
        &self,
        destination: Destination,
        batch: &[Holding<'_>],
        limit: Duration,
    ) -> Result<Vec<Result<Released, StoreError>>, StoreError> {
        let _ = destination;
        let start = Instant::now();
        let release = |held: &Holding<'_>| {
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                let why = "the releases before it in the batch took all of its time";
                return Err(StoreError::Unavailable(why.to_owned()));
            }
            self.release(held.name, held.owner, left)
        };
        Ok(batch.iter().map(release).collect())
    }

    /// Wakes `waker` when `name` may be free, until the answer is dropped. `None`, the default, if
    /// the backend can't tell. It may wake for nothing, and it may miss something: who waits asks
    /// again every now and then, and when the lease that is in the way has run out.
    fn watch(&self, name: &str, waker: &Waker) -> Option<Box<dyn Watch>> {
        let _ = (name, waker);
        None
    }
}

/// Somebody who waits for a name. Dropping it ends that, and leaves nothing behind; who was woken and
/// has not [looked](Self::looks) since passes that on to the next one who waits.
pub trait Watch: Send + Sync {
    /// The waiter is about to ask for the name: what woke it before has been heard, and it may be
    /// woken again from now on.
    fn looks(&self);
}

/// Whoever shares a store, or chooses one when the program runs.
macro_rules! pass_on {
    ($pointer:ident) => {
        impl<S: LeaseStore + ?Sized> LeaseStore for $pointer<S> {
            fn destination(&self, name: &str) -> Destination {
                (**self).destination(name)
            }

            fn longest_lease(&self) -> Duration {
                (**self).longest_lease()
            }

            fn acquire(&self, claim: &Claim<'_>, limit: Duration) -> Result<Acquired, StoreError> {
                (**self).acquire(claim, limit)
            }

            fn renew(
                &self,
                destination: Destination,
                batch: &[Renewal<'_>],
                limit: Duration,
            ) -> Result<Vec<Outcome>, StoreError> {
                (**self).renew(destination, batch, limit)
            }

            fn release(
                &self,
                name: &str,
                owner: &str,
                limit: Duration,
            ) -> Result<Released, StoreError> {
                (**self).release(name, owner, limit)
            }

            fn release_many(
                &self,
                destination: Destination,
                batch: &[Holding<'_>],
                limit: Duration,
            ) -> Result<Vec<Result<Released, StoreError>>, StoreError> {
                (**self).release_many(destination, batch, limit)
            }

            fn watch(&self, name: &str, waker: &Waker) -> Option<Box<dyn Watch>> {
                (**self).watch(name, waker)
            }
        }
    };
}

pass_on!(Arc);
pass_on!(Box);

/// What leases share their fate with: a node, a shard, a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Destination(u64);

impl Destination {
    /// The destination of this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Destination(number)
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// What a name is acquired with.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Claim<'a> {
    /// What is to be held.
    pub name: &'a str,
    /// Who is to hold it.
    pub owner: &'a str,
    /// For how long, from the moment of the grant.
    pub lease: Duration,
    /// Whether the caller will wait if somebody holds it, so that the release is to be announced.
    pub waits: bool,
    /// For how long the caller has waited. A fair store reserves a released name, for a few
    /// milliseconds, for callers that [are due](Claim::is_due). Otherwise a caller that asks again
    /// right after its own release is always faster than callers that have to be woken.
    pub waited: Duration,
}

impl<'a> Claim<'a> {
    /// The wait after which a caller is due: 20 ms. Until then the caller that asks first gets the
    /// name, which is fast. From then on callers take turns. 20 ms is long compared with the cost
    /// of handing a name over, so the throughput stays high, and short for a caller that waits.
    pub const TURN: Duration = Duration::from_millis(20);

    /// A claim that does not wait.
    #[must_use]
    pub fn new(name: &'a str, owner: &'a str, lease: Duration) -> Self {
        Claim {
            name,
            owner,
            lease,
            waits: false,
            waited: Duration::ZERO,
        }
    }

    /// The same, and the caller will wait.
    #[must_use]
    pub fn waiting(self) -> Self {
        Claim {
            waits: true,
            ..self
        }
    }

    /// The same claim, by a caller that has waited for `waited`.
    #[must_use]
    pub fn waited(self, waited: Duration) -> Self {
        Claim { waited, ..self }
    }

    /// Whether the caller has waited for a [turn](Claim::TURN) or longer. A reserved name is
    /// granted to such a caller. If it goes on [waiting](Claim::waits), the next release reserves
    /// the name for it.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.waited >= Claim::TURN
    }
}

/// What became of an acquire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Acquired {
    /// It is the owner's for a full lease.
    Granted {
        /// Greater than that of every earlier grant of the name.
        token: u64,
    },
    /// Somebody else has it.
    Held {
        /// What is left of that lease, unless it is prolonged.
        remaining: Duration,
    },
}

/// One lease of a batch of renewals.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Renewal<'a> {
    /// What is held.
    pub name: &'a str,
    /// Who holds it.
    pub owner: &'a str,
    /// How long the lease is to be from now on.
    pub lease: Duration,
    /// How many guards hold it; for whoever looks at the backend, it decides nothing.
    pub holds: u32,
}

impl<'a> Renewal<'a> {
    /// The renewal of a lease that one guard holds.
    #[must_use]
    pub fn new(name: &'a str, owner: &'a str, lease: Duration) -> Self {
        Renewal {
            name,
            owner,
            lease,
            holds: 1,
        }
    }
}

/// What became of one renewal.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// It lasts for a full lease again, from a moment after the call was sent.
    Renewed,
    /// This owner does not hold it, and never will again.
    NotHeld,
    /// Nobody knows. It is tried again for as long as the lease lasts.
    Failed(StoreError),
}

/// One name of a batch of releases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Holding<'a> {
    /// The name that is given back.
    pub name: &'a str,
    /// The owner that gives it back.
    pub owner: &'a str,
}

impl<'a> Holding<'a> {
    /// The name `name`, which is given back if `owner` holds it.
    #[must_use]
    pub fn new(name: &'a str, owner: &'a str) -> Self {
        Holding { name, owner }
    }
}

/// What became of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Released {
    /// It is free.
    Released,
    /// This owner did not hold it any more.
    NotHeld,
}

/// Why a backend did not do what it was asked for.
///
/// None of them ends a lease: a renewal is tried again until the lease has run out by the local
/// clock.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// It can't be reached, is busy, loading, or failing over, or did not answer in time. May pass.
    Unavailable(String),
    /// It does not do that, and has not: a batch that it can't take as a whole, a permission, a key of another
    /// type. The same call will be refused again.
    Refused(String),
    /// It grants nothing yet, since leases of before its restart may still be believed in.
    Restarted {
        /// For how long.
        wait: Duration,
    },
    /// This process was forked after the store was made, and the store belongs to the original.
    /// Nothing was sent. Every later call fails, too: make another store in this process.
    Forked,
    /// The store is new or has lost its data, and grants nothing yet: holders may still believe in
    /// leases that it does not know.
    Emptied {
        /// For how long.
        wait: Duration,
        /// The store has evicted keys to save memory. That may be the reason.
        evicted: bool,
    },
}

impl StoreError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        !matches!(self, StoreError::Refused(_) | StoreError::Forked)
    }

    /// Whether the call may have been executed all the same.
    pub(super) fn leaves_open(&self) -> bool {
        matches!(self, StoreError::Unavailable(_))
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Unavailable(why) => write!(f, "the store is unavailable: {why}"),
            StoreError::Refused(why) => write!(f, "the store refuses the call: {why}"),
            StoreError::Restarted { wait } => write!(
                f,
                "the store has restarted and grants nothing for another {wait:?}, since holders from \
                 before may still believe in their leases; wait, or build it as durable if the server \
                 loses nothing"
            ),
            StoreError::Forked => f.write_str(
                "the store was made before this process was forked: make the store and its leases \
                 after the fork",
            ),
            StoreError::Emptied { wait, evicted } => {
                let why = match evicted {
                    false => "is new, or lost its data,",
                    true => "evicted keys to save memory (maxmemory-policy has to be noeviction)",
                };
                write!(
                    f,
                    "the store {why} and grants nothing for another {wait:?}, since holders from \
                     before may still believe in their leases; wait, or tell it that the server \
                     starts empty on purpose"
                )
            }
        }
    }
}

impl std::error::Error for StoreError {}
