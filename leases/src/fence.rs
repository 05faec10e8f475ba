//! Tokens at the resource.

use std::fmt;

use crate::sync::atomic::{AtomicU64, Ordering};

/// Keeps the tokens of holders that have lost their lease away from a resource.
///
/// A holder that was paused for longer than its lease does not know, at that very moment, that
/// somebody else holds it. So it sends its [token](super::LeaseGuard::fencing_token) with whatever it
/// does to the resource, and the resource admits nothing with a token below the greatest that it has
/// seen. This is that comparison, for a resource that lives in this process; a database does the same
/// with a column: `UPDATE .. SET token = :t .. WHERE id = :id AND token <= :t`.
///
/// Admitting and writing have to be one step for the resource, under its own lock, or a write that was
/// admitted may come after one of the next holder.
///
/// One for each lock name, since tokens of different names have nothing to do with each other.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::Fence;
///
/// let fence = Fence::new();
/// fence.admit(33)?;
/// fence.admit(33)?; // the same holder again
/// fence.admit(34)?; // the next one
/// let stale = fence.admit(33).unwrap_err();
/// assert_eq!((stale.token, stale.seen), (33, 34));
/// # Ok::<(), tourbillon_leases::StaleToken>(())
/// ```
#[derive(Debug, Default)]
pub struct Fence {
    seen: AtomicU64,
}

impl Fence {
    /// One that has seen no token.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One that has seen this token. A fence forgets when its process ends: begin the next one with the
    /// last token that was stored with the resource.
    #[must_use]
    pub fn starting_at(token: u64) -> Self {
        Fence {
            seen: AtomicU64::new(token),
        }
    }

    /// Admits a token that is not below the greatest one admitted so far.
    ///
    /// # Errors
    ///
    /// [`StaleToken`] if it is: the lease of who sent it has passed to somebody else.
    pub fn admit(&self, token: u64) -> Result<(), StaleToken> {
        // AcqRel: who is admitted sees what those admitted before did.
        let seen = self.seen.fetch_max(token, Ordering::AcqRel);
        if token < seen {
            return Err(StaleToken { token, seen });
        }
        Ok(())
    }
}

/// A token of a holder that has lost its lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StaleToken {
    /// What it sent.
    pub token: u64,
    /// The greatest one seen.
    pub seen: u64,
}

impl fmt::Display for StaleToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "token {} is stale: {} has been seen, so the lease has passed to another holder",
            self.token, self.seen
        )
    }
}

impl std::error::Error for StaleToken {}
