//! The errors of acquiring and releasing a lock.

use std::fmt;
use std::io;
use std::time::Duration;

use tourbillon::BuildError;

use crate::keep_alive::{KeepError, Loss};
use crate::store::{LONGEST_NAME, Mode, StoreError};

/// The number of bytes that an error shows of a name that is too long.
const SHOWN: usize = 64;

/// The reason why a lock was not acquired.
///
/// All variants except [`EmptyName`](Self::EmptyName) have the name of the lock, or its beginning, and
/// their messages begin with it.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{Leases, LockError, MemoryStore};
///
/// # let leases = Leases::new(MemoryStore::new())?;
/// match leases.lock("report").at_once().wait() {
///     Ok(guard) => println!("token {}", guard.token()),
///     Err(LockError::Held { remaining, .. }) => println!("held for another {remaining:?}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum LockError {
    /// Somebody else holds the lock, or it is [reserved](crate::Leases#fairness) for a waiting
    /// caller. Only calls that do not wait return this.
    #[non_exhaustive]
    Held {
        /// The lock.
        name: String,
        /// How long that lease still lasts, unless it is renewed.
        remaining: Duration,
    },
    /// The time to wait is over, and the store's last answer was that somebody else holds the lock.
    #[non_exhaustive]
    TimedOut {
        /// The lock.
        name: String,
    },
    /// The time to wait is over, and the last call to the store failed. Whether the lock is held is
    /// unknown.
    #[non_exhaustive]
    Unanswered {
        /// The lock.
        name: String,
        /// How the last call failed.
        error: StoreError,
    },
    /// The name is empty.
    EmptyName,
    /// The name is longer than [`Leases::LONGEST_NAME`](crate::Leases::LONGEST_NAME).
    #[non_exhaustive]
    LongName {
        /// Its beginning. An error that had all of it could be of any size.
        start: String,
        /// The length of the name in bytes.
        bytes: usize,
    },
    /// The lease is zero, or too short to be renewed in time.
    #[non_exhaustive]
    TooShort {
        /// The lock.
        name: String,
        /// The lease that was asked for.
        lease: Duration,
        /// The shortest possible lease.
        least: Duration,
    },
    /// The lease is longer than the store grants. Stores on Redis and PostgreSQL grant at most the
    /// `longest_lease` of their builder, which is 30 s by default.
    #[non_exhaustive]
    TooLong {
        /// The lock.
        name: String,
        /// The lease that was asked for.
        lease: Duration,
        /// The longest lease that the store grants.
        most: Duration,
    },
    /// The feeding period is zero.
    #[non_exhaustive]
    ZeroFeed {
        /// The lock.
        name: String,
    },
    /// The longest hold is zero.
    #[non_exhaustive]
    ZeroHold {
        /// The lock.
        name: String,
    },
    /// The lock was to stay locked for longer than its lease.
    #[non_exhaustive]
    LongerThanLease {
        /// The lock.
        name: String,
        /// How long it was to stay locked.
        at_least: Duration,
        /// The lease that was asked for.
        lease: Duration,
    },
    /// The number of [permits](crate::Acquisition::permit_of) is zero, or greater than
    /// [`Mode::MOST_PERMITS`](crate::Mode::MOST_PERMITS).
    #[non_exhaustive]
    Permits {
        /// The lock.
        name: String,
        /// The number of permits.
        of: u32,
    },
    /// The lease was to be extended, but is renewed in the background.
    #[non_exhaustive]
    Renewed {
        /// The lock.
        name: String,
    },
    /// The lease is lost. `again`, `extend` and `resume` return this, and so does an acquire whose
    /// [`max_hold`](crate::Acquisition::max_hold) was over before its grant arrived.
    #[non_exhaustive]
    Lost {
        /// The lock.
        name: String,
        /// Why its lease was lost.
        loss: Loss,
    },
    /// The store failed. A call that waits returns this only if the error will not pass.
    #[non_exhaustive]
    Store {
        /// The lock.
        name: String,
        /// How it failed.
        error: StoreError,
    },
    /// The leases are closed, for good.
    #[non_exhaustive]
    Closed {
        /// The lock.
        name: String,
    },
    /// The candidate of an election was [stopped](crate::Election::stop), for good.
    #[non_exhaustive]
    Stopped {
        /// The election.
        name: String,
    },
    /// The threads for renewals could not be started. Nothing was acquired.
    #[non_exhaustive]
    Spawn {
        /// The lock.
        name: String,
        /// Why no thread could be started.
        error: io::Error,
    },
    /// The [runtime](crate::LeasesBuilder::runtime) was shut down, or belongs to the process from
    /// which this one was forked. Nothing was acquired.
    #[non_exhaustive]
    Runtime {
        /// The lock.
        name: String,
        /// Why nothing can run there.
        error: BuildError,
    },
}

impl LockError {
    /// Returns the name of the lock that was not acquired.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, MemoryStore};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let leases = Leases::new(MemoryStore::new())?;
    /// let _guard = leases.lock("invoices").at_once().wait()?;
    /// let error = leases.lock("invoices").at_once().wait().unwrap_err();
    /// assert_eq!(error.name(), "invoices");
    /// assert!(error.to_string().starts_with("lock \"invoices\": "));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            LockError::EmptyName => "",
            LockError::LongName { start, .. } => start,
            LockError::Held { name, .. }
            | LockError::TimedOut { name }
            | LockError::Unanswered { name, .. }
            | LockError::TooShort { name, .. }
            | LockError::TooLong { name, .. }
            | LockError::ZeroFeed { name }
            | LockError::ZeroHold { name }
            | LockError::LongerThanLease { name, .. }
            | LockError::Permits { name, .. }
            | LockError::Renewed { name }
            | LockError::Lost { name, .. }
            | LockError::Store { name, .. }
            | LockError::Closed { name }
            | LockError::Stopped { name }
            | LockError::Spawn { name, .. }
            | LockError::Runtime { name, .. } => name,
        }
    }

    /// Checks the length of a name, or of the beginning of names.
    pub(super) fn check_length(name: &str) -> Result<(), Self> {
        if name.len() <= LONGEST_NAME {
            return Ok(());
        }
        let start = name.char_indices().map_while(|(at, character)| {
            let is_shown = at + character.len_utf8() <= SHOWN;
            is_shown.then_some(character)
        });
        Err(LockError::LongName {
            start: start.collect(),
            bytes: name.len(),
        })
    }

    /// Turns an error of the keep-alive into an error of this lock.
    pub(super) fn of_keep(name: &str, error: KeepError) -> Self {
        let name = name.to_owned();
        match error {
            KeepError::TooShort { lease, least } => LockError::TooShort { name, lease, least },
            KeepError::ZeroFeed => LockError::ZeroFeed { name },
            KeepError::ZeroHold => LockError::ZeroHold { name },
            KeepError::Closed => LockError::Closed { name },
            KeepError::Spawn(error) => LockError::Spawn { name, error },
            KeepError::Runtime(error) => LockError::Runtime { name, error },
            KeepError::Forked => LockError::Store {
                name,
                error: StoreError::Forked,
            },
        }
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {:?}: ", self.name())?;
        match self {
            LockError::Held { remaining, .. } => write!(
                f,
                "somebody else holds it, for another {remaining:?} unless it is renewed"
            ),
            LockError::TimedOut { .. } => {
                f.write_str("not acquired in time: somebody else holds it")
            }
            LockError::Unanswered { error, .. } => write!(
                f,
                "not acquired in time, and whether somebody else holds it is unknown: {error}"
            ),
            LockError::EmptyName => f.write_str("a lock needs a name"),
            LockError::LongName { bytes, .. } => write!(
                f,
                "this is the beginning of a name of {bytes} bytes: choose one of at most {}",
                LONGEST_NAME
            ),
            LockError::TooShort { lease, least, .. } => {
                write!(
                    f,
                    "a lease of {lease:?}: choose at least {least:?}, or a smaller margin"
                )
            }
            LockError::TooLong { lease, most, .. } => write!(
                f,
                "a lease of {lease:?}: the store grants at most {most:?}; choose less, or build the \
                 store with a greater `longest_lease`, if it has one"
            ),
            LockError::ZeroHold { .. } => f.write_str("to be held for 0 ns: choose a longer time"),
            LockError::ZeroFeed { .. } => {
                f.write_str("to be fed every 0 ns: choose a longer period")
            }
            LockError::LongerThanLease {
                at_least, lease, ..
            } => write!(
                f,
                "to be held for at least {at_least:?} with a lease of {lease:?}: choose a lease of at least \
                 {at_least:?}"
            ),
            LockError::Permits { of, .. } => write!(
                f,
                "one of {of} permits: choose a number from 1 to {}",
                Mode::MOST_PERMITS
            ),
            LockError::Renewed { .. } => f.write_str(
                "its lease is renewed in the background, so it can't be extended: acquire it with \
                 `not_renewed`",
            ),
            LockError::Lost { loss, .. } => write!(f, "its lease is lost: {loss}"),
            LockError::Store { error, .. } => error.fmt(f),
            LockError::Closed { .. } => f.write_str("the leases are closed"),
            LockError::Stopped { .. } => f.write_str("its candidate was stopped"),
            LockError::Spawn { error, .. } => {
                write!(f, "a thread could not be started: {error}")
            }
            LockError::Runtime { error, .. } => write!(f, "{error}, and the leases on it"),
        }
    }
}

impl std::error::Error for LockError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // The text has that of the inner error, so the chain goes on after it.
            LockError::Spawn { error, .. } => error.source(),
            LockError::Runtime { error, .. } => error.source(),
            _ => None,
        }
    }
}

/// The reason why a release did not find its lease held.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon_leases::{Leases, Loss, MemoryStore, ReleaseError};
///
/// # let leases = Leases::new(MemoryStore::new())?;
/// let guard = leases.lock("report").wait()?;
/// leases.close(Duration::from_secs(1));
/// assert!(matches!(guard.release().wait(), Err(ReleaseError::Lost(Loss::Closed))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The lease had been lost before, by the local clock or by an answer of the store.
    Lost(Loss),
    /// The lease was not lost by the local clock, but the store answers that this holder did not
    /// hold the lock any more.
    NotHeld,
    /// The store failed. The release is tried again in the background until the lease would have
    /// run out.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_message_stays_on_one_line_of_a_log_whatever_the_name_contains() {
        let name = "a\nb".to_owned();
        assert!(!LockError::Closed { name }.to_string().contains('\n'));
    }

    #[test]
    fn what_can_not_be_kept_is_told_in_the_words_of_the_watchdog() {
        let (lease, least) = (S, 2 * S);
        let spawn = || KeepError::Spawn(io::Error::other("no thread left"));
        let same: [fn() -> KeepError; 3] = [
            || KeepError::TooShort {
                lease: S,
                least: 2 * S,
            },
            || KeepError::ZeroFeed,
            || KeepError::ZeroHold,
        ];
        for same in same {
            let text = LockError::of_keep("a", same()).to_string();
            assert_eq!(text, format!("lock \"a\": {}", same()));
        }
        let short = LockError::of_keep("a", KeepError::TooShort { lease, least });
        assert!(matches!(short, LockError::TooShort { .. }));
        let closed = LockError::of_keep("a", KeepError::Closed);
        assert!(matches!(closed, LockError::Closed { .. }));
        assert!(matches!(
            LockError::of_keep("a", spawn()),
            LockError::Spawn { .. }
        ));
    }
}
