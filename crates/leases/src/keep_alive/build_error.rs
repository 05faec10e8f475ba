//! The error of building leases.

use std::fmt;
use std::time::Duration;

/// The reason why [`Leases`](crate::Leases) or a [`KeepAlive`](crate::KeepAlive) can't be built. It
/// names the invalid value and the valid ones.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_leases::{BuildError, Leases, MemoryStore};
///
/// let error = Leases::builder(MemoryStore::new()).lease(Duration::ZERO).build().unwrap_err();
/// assert!(matches!(error, BuildError::Lease { .. }));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The largest batch has no entries.
    Batch,
    /// The lease is too short to be renewed in time, or longer than the store grants.
    #[non_exhaustive]
    Lease {
        /// The lease that was asked for.
        lease: Duration,
        /// The shortest possible lease.
        least: Duration,
        /// The longest lease that the store grants.
        most: Duration,
    },
    /// The [holder data](crate::LeasesBuilder::holder_data) are too long.
    #[non_exhaustive]
    HolderData {
        /// Their length.
        bytes: usize,
        /// The greatest length.
        most: usize,
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
                "leases of {lease:?}: choose between {least:?} and {most:?}, or another margin, or build the \
                 store with a greater `longest_lease`, if it has one"
            ),
            BuildError::HolderData { bytes, most } => {
                write!(f, "holder data of {bytes} bytes: choose at most {most}")
            }
            BuildError::Scheduler(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // This error shows the message of the inner one, so the chain goes on after the inner
            // one.
            BuildError::Scheduler(error) => error.source(),
            BuildError::Batch | BuildError::Lease { .. } | BuildError::HolderData { .. } => None,
        }
    }
}

impl From<tourbillon::BuildError> for BuildError {
    fn from(error: tourbillon::BuildError) -> Self {
        BuildError::Scheduler(error)
    }
}
