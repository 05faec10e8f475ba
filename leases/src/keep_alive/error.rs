//! Why something can't be kept.

use std::fmt;
use std::io;
use std::time::Duration;

/// Why something can't be kept.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeepError {
    /// The lease is too short to be renewed in time, or, with the margin, nearly empty.
    TooShort {
        /// What was asked for.
        lease: Duration,
        /// The shortest that is possible.
        least: Duration,
    },
    /// To be fed in no time at all, which no holder could.
    ZeroFeed,
    /// To be held for no time at all.
    ZeroHold,
    /// The watchdog is closed, for good.
    Closed,
    /// Its threads could not be started.
    Spawn(io::Error),
    /// This process was forked after the watchdog was made, and the watchdog's threads belong to
    /// the original. Make another watchdog in this process.
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
            KeepError::Closed => f.write_str("the watchdog is closed"),
            KeepError::Spawn(error) => write!(f, "a thread could not be started: {error}"),
            KeepError::Forked => f.write_str(
                "the watchdog was made before this process was forked: make it after the fork",
            ),
        }
    }
}

impl std::error::Error for KeepError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            KeepError::Spawn(error) => Some(error),
            _ => None,
        }
    }
}
