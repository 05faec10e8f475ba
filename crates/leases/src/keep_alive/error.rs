//! The error of [`KeepAlive::keep`](super::KeepAlive::keep).

use std::fmt;
use std::io;
use std::time::Duration;

use tourbillon::BuildError;

/// Why a key can't be kept.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon_leases::{KeepAlive, KeepError, Outcome};
///
/// # let sessions = KeepAlive::<u64>::builder()
/// #     .build(async |batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
/// let refused = sessions.keep(7, Duration::from_millis(1));
/// assert!(matches!(refused, Err(KeepError::TooShort { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum KeepError {
    /// The lease is too short to be renewed in time, or the margin takes too much of it.
    TooShort {
        /// The lease that was asked for.
        lease: Duration,
        /// The shortest lease that is possible.
        least: Duration,
    },
    /// The feeding period is zero.
    ZeroFeed,
    /// The longest hold is zero.
    ZeroHold,
    /// The [`KeepAlive`](super::KeepAlive) is closed, for good.
    Closed,
    /// The threads could not be started.
    Spawn(io::Error),
    /// The [runtime](super::KeepAliveBuilder::runtime) was shut down, or belongs to the process from
    /// which this one was forked.
    Runtime(BuildError),
    /// This process was forked after the [`KeepAlive`](super::KeepAlive) was built. Its threads
    /// belong to the original process. Build another one in this process.
    Forked,
}

impl fmt::Display for KeepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeepError::TooShort { lease, least } => {
                write!(
                    f,
                    "a lease of {lease:?}: choose at least {least:?}, or a smaller margin"
                )
            }
            KeepError::ZeroHold => f.write_str("to be held for 0 ns: choose a longer time"),
            KeepError::ZeroFeed => f.write_str("to be fed every 0 ns: choose a longer period"),
            KeepError::Closed => f.write_str("the `KeepAlive` is closed: build another one"),
            KeepError::Spawn(error) => write!(f, "a thread could not be started: {error}"),
            KeepError::Runtime(error) => write!(f, "{error}, and the `KeepAlive` on it"),
            KeepError::Forked => f.write_str(
                "the `KeepAlive` was built before this process was forked: build it after the fork",
            ),
        }
    }
}

impl std::error::Error for KeepError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // The text has that of the inner error, so the chain goes on after it.
            KeepError::Spawn(error) => error.source(),
            KeepError::Runtime(error) => error.source(),
            _ => None,
        }
    }
}
