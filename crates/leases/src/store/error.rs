//! The errors of a backend that stores leases.

use std::fmt;
use std::time::Duration;

/// The reason why a call to a backend failed.
///
/// No error ends a lease: a renewal is tried again until the lease has run out by the local clock.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::StoreError;
///
/// let error = StoreError::Unavailable("connection refused".to_owned());
/// assert!(error.may_pass());
/// assert!(!StoreError::Forked.may_pass());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The backend can't be reached, is busy, loading or failing over, or did not answer in time.
    /// The error may pass. The call may have been executed.
    Unavailable(String),
    /// The backend refused the call and did not execute it. Examples are a batch that it can't take
    /// as a whole, a missing permission, and a key of another type. The same call will be refused
    /// again.
    Refused(String),
    /// The backend has restarted and grants nothing yet, since holders may still rely on leases
    /// from before the restart.
    Restarted {
        /// How long it grants nothing.
        wait: Duration,
    },
    /// This process was forked after the store was created, and the store belongs to the original
    /// process. Nothing was sent. Every later call fails, too: create another store in this
    /// process.
    Forked,
    /// The store is new or has lost its data, and grants nothing yet: holders may still rely on
    /// leases that it does not know.
    Emptied {
        /// How long it grants nothing.
        wait: Duration,
        /// Whether the store has evicted keys to save memory, which may be the reason.
        evicted: bool,
    },
    /// The store works, but may delete locks that are held, to save memory. Only a
    /// check of a `RedisStore` returns this.
    Evicts {
        /// The policy by which it chooses what it deletes.
        policy: String,
    },
}

impl StoreError {
    /// A store has returned fewer answers than it was asked for.
    pub(crate) fn no_answer() -> Self {
        StoreError::Unavailable("its answer is missing".to_owned())
    }

    /// A call was dropped at its limit.
    pub(crate) fn unanswered(limit: Duration) -> Self {
        StoreError::Unavailable(format!("no answer within {limit:?}"))
    }

    /// An item of a batch was not sent.
    pub(crate) fn batch_too_slow() -> Self {
        let why = "the items before it in the batch took all of its time";
        StoreError::Unavailable(why.to_owned())
    }

    /// A store can't tell who holds a name.
    pub(crate) fn no_holder(name: &str) -> Self {
        StoreError::Refused(format!("this store can't tell who holds {name:?}"))
    }

    /// A store can't list names.
    pub(crate) fn no_list(prefix: &str) -> Self {
        let why = format!("this store can't list the names that begin with {prefix:?}");
        StoreError::Refused(why)
    }

    /// A store can't share names, and was asked to.
    pub(crate) fn no_sharing(name: &str) -> Self {
        let why = format!("this store can't share {name:?}: its locks have one holder each");
        StoreError::Refused(why)
    }

    /// A store can't hand names over.
    pub(crate) fn no_hand_over(name: &str) -> Self {
        StoreError::Refused(format!("this store can't hand {name:?} over"))
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        !matches!(
            self,
            StoreError::Refused(_) | StoreError::Forked | StoreError::Evicts { .. }
        )
    }

    /// Returns whether the call may have been executed all the same.
    pub(crate) fn leaves_open(&self) -> bool {
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
                "the store has restarted and grants nothing for about {wait:?}, since holders from \
                 before may still rely on their leases; wait, or build it as durable if the server \
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
                    "the store {why} and grants nothing for about {wait:?}, since holders from \
                     before may still rely on their leases; wait, or build it with `starts_empty` if \
                     the server starts empty on purpose"
                )
            }
            StoreError::Evicts { policy } => write!(
                f,
                "the store may delete locks that are held when its memory is full: its \
                 maxmemory-policy is {policy}; set it to noeviction, or give the locks a server of \
                 their own"
            ),
        }
    }
}

impl std::error::Error for StoreError {}
