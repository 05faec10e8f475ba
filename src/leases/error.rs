//! Why a lock was not had, or not given back.

use std::fmt;
use std::io;
use std::time::Duration;

use super::store::StoreError;
use super::watchdog::{KeepError, Loss};

/// Why a lock was not acquired. Its name is not in there: add it where you log.
#[derive(Debug)]
#[non_exhaustive]
pub enum LockError {
    /// Somebody else holds it: only from calls that don't wait.
    Held {
        /// What is left of that lease, unless it is renewed.
        remaining: Duration,
    },
    /// The time to wait is over.
    TimedOut {
        /// What the store answered last, if it was an error.
        last: Option<StoreError>,
    },
    /// The name is empty.
    EmptyName,
    /// The lease is zero, or too short to be renewed in time.
    TooShort {
        /// What was asked for.
        lease: Duration,
        /// The shortest that is possible.
        least: Duration,
    },
    /// The lease is longer than the store grants.
    TooLong {
        /// What was asked for.
        lease: Duration,
        /// The longest that is possible.
        most: Duration,
    },
    /// To be fed in no time at all.
    ZeroFeed,
    /// To be held for no time at all.
    ZeroHold,
    /// The guard belongs to other `Leases`.
    ForeignGuard,
    /// The guard to enter once more has lost its lease.
    Lost(Loss),
    /// The store failed.
    Store(StoreError),
    /// The leases are closed, for good.
    Closed,
    /// The threads that renew could not be started; nothing was acquired.
    Spawn(io::Error),
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockError::Held { remaining } => write!(
                f,
                "somebody else holds it, for another {remaining:?} unless it is renewed"
            ),
            LockError::TimedOut { last: None } => {
                f.write_str("not acquired in time: somebody else holds it")
            }
            LockError::TimedOut { last: Some(error) } => {
                write!(f, "not acquired in time; at last, {error}")
            }
            LockError::EmptyName => f.write_str("a lock needs a name"),
            LockError::TooShort { lease, least } => {
                write!(
                    f,
                    "a lease of {lease:?}: choose at least {least:?}, or a smaller margin"
                )
            }
            LockError::TooLong { lease, most } => write!(
                f,
                "a lease of {lease:?}: the store grants at most {most:?}; choose less, or let the \
                 store grant longer ones"
            ),
            LockError::ZeroHold => f.write_str("to be held for 0 ns: choose a longer time"),
            LockError::ZeroFeed => f.write_str("to be fed every 0 ns: choose a longer period"),
            LockError::ForeignGuard => {
                f.write_str("the guard belongs to other leases: enter it where it was acquired")
            }
            LockError::Lost(loss) => write!(f, "the guard has lost its lease: {}", loss),
            LockError::Store(error) => error.fmt(f),
            LockError::Closed => f.write_str("the leases are closed"),
            LockError::Spawn(error) => write!(f, "a thread could not be started: {error}"),
        }
    }
}

impl std::error::Error for LockError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LockError::Spawn(error) => Some(error),
            _ => None,
        }
    }
}

impl From<KeepError> for LockError {
    fn from(error: KeepError) -> Self {
        match error {
            KeepError::TooShort { lease, least } => LockError::TooShort { lease, least },
            KeepError::ZeroFeed => LockError::ZeroFeed,
            KeepError::ZeroHold => LockError::ZeroHold,
            KeepError::Closed => LockError::Closed,
            KeepError::Spawn(error) => LockError::Spawn(error),
            KeepError::Forked => LockError::Store(StoreError::Forked),
        }
    }
}

/// What became of a release that did not find its lease held.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReleaseError {
    /// It had been lost before, by the local clock or the store's word.
    Lost(Loss),
    /// It was believed to be held, and the store says that it was not.
    NotHeld,
    /// The store failed. It is tried again in the background until the lease would have run out.
    Store(StoreError),
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReleaseError::Lost(loss) => write!(f, "the lease was lost before: {}", loss),
            ReleaseError::NotHeld => f.write_str("the store says that it was not held any more"),
            ReleaseError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReleaseError {}
