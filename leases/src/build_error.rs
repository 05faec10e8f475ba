//! Why leases can't be built.

use std::fmt;
use std::time::Duration;

/// Why [`Leases`](super::Leases) or a [`KeepAlive`](super::Watchdog) can't be built. Names the
/// offending value and what it may be.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// Batches of no key at all.
    Batch,
    /// A lease that is shorter than can be renewed in time, or longer than the store grants.
    #[non_exhaustive]
    Lease {
        /// What was asked for.
        lease: Duration,
        /// The shortest that is possible.
        least: Duration,
        /// The longest that the store grants.
        most: Duration,
    },
    /// The scheduler for the timers could not be built.
    Scheduler(tourbillon::BuildError),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::Batch => f.write_str("batches of at most 0 entries: choose at least 1"),
            BuildError::Lease { lease, least, most } => write!(
                f,
                "leases of {lease:?}: choose between {least:?} and {most:?}, or another margin, or let the \
                 store grant longer ones"
            ),
            BuildError::Scheduler(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // Its message is this one's, so what follows is its source.
            BuildError::Scheduler(error) => error.source(),
            BuildError::Batch | BuildError::Lease { .. } => None,
        }
    }
}

impl From<tourbillon::BuildError> for BuildError {
    fn from(error: tourbillon::BuildError) -> Self {
        BuildError::Scheduler(error)
    }
}
