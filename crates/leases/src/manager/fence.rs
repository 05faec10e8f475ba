//! The check of fencing tokens at the protected resource.

use std::fmt;

use crate::sync::atomic::{AtomicU64, Ordering};

/// Refuses the tokens of holders that have lost their lease.
///
/// A holder that was paused for longer than its lease does not know, at that moment, that
/// somebody else holds the lock. So it sends its [token](crate::LeaseGuard::token) with
/// every access to the resource. The resource refuses every token below the greatest one that it
/// has seen.
///
/// A `Fence` is that comparison, for a resource in this process. A database does the same with a
/// column: `UPDATE .. SET token = :t .. WHERE id = :id AND token <= :t`.
///
/// Admitting a token and writing must be one step for the resource, under its own lock. Otherwise a
/// write that was admitted may come after a write of the next holder.
///
/// Each lock name needs a fence of its own, since tokens of different names can't be compared. So does each
/// [place](crate::LeaseGuard::place) of a name with [permits](crate::Acquisition::permit_of): a holder who
/// was granted a permit long ago, and still has it, has a smaller token than the others. Readers and
/// writers of a name share one fence.
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
    /// Creates a fence that has seen no token.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a fence that has seen this token. A fence is lost when its process ends: start the
    /// next one with the last token that was stored with the resource.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::Fence;
    ///
    /// let fence = Fence::starting_at(33);
    /// assert!(fence.admit(32).is_err());
    /// assert!(fence.admit(33).is_ok());
    /// ```
    #[must_use]
    pub fn starting_at(token: u64) -> Self {
        Fence {
            seen: AtomicU64::new(token),
        }
    }

    /// Returns the greatest token that the fence has seen, or 0 if it has seen none. Store it with
    /// the resource, and [start](Self::starting_at) the next fence with it.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::Fence;
    ///
    /// let fence = Fence::new();
    /// assert_eq!(fence.greatest(), 0);
    /// fence.admit(34)?;
    /// assert!(fence.admit(33).is_err());
    /// assert_eq!(fence.greatest(), 34);
    /// # Ok::<(), tourbillon_leases::StaleToken>(())
    /// ```
    #[must_use]
    pub fn greatest(&self) -> u64 {
        // Acquire: who reads a token sees what the callers admitted before it did.
        self.seen.load(Ordering::Acquire)
    }

    /// Admits a token that is not below the greatest one admitted so far.
    ///
    /// # Errors
    ///
    /// [`StaleToken`] if the token is below it: the lease of the sender has passed to somebody
    /// else.
    pub fn admit(&self, token: u64) -> Result<(), StaleToken> {
        // AcqRel: an admitted caller sees what the callers admitted before it did.
        let seen = self.seen.fetch_max(token, Ordering::AcqRel);
        if token < seen {
            return Err(StaleToken { token, seen });
        }
        Ok(())
    }
}

/// The error for a token of a holder that has lost its lease.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{Fence, StaleToken};
///
/// fn write(fence: &Fence, token: u64) -> Result<(), StaleToken> {
///     fence.admit(token)?;
///     // .. write, under the lock of the resource ..
///     Ok(())
/// }
/// write(&Fence::new(), 7)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StaleToken {
    /// The token that was sent.
    pub token: u64,
    /// The greatest token that the fence has seen.
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
