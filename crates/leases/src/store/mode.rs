//! The modes in which a name is held. All stores that [share](crate::LeaseStore::can_share) names keep
//! these rules:
//!
//! - **SHARE-1** All holders of a name hold it in the same mode: one holder alone, readers, or permits
//!   with the same `of`. A caller in another mode waits until the last holder has gone.
//! - **SHARE-2** No two permits have the same place. A new permit gets the lowest free place.
//! - **SHARE-3** A waiting caller counts as waiting for 1.5 s after it has asked
//!   ([`Claim::RECENT`](crate::Claim::RECENT)). While a caller in another mode waits, nobody joins the
//!   holders. So readers that come one after the other do not keep a writer out. A store makes a caller
//!   that waits for a shared name ask again within a second, even if the name will be held for longer.
//! - **SHARE-4** A grant that leaves room for others wakes the next waiting caller. So if one waiting
//!   reader gets in, all of them do, and waiting callers get all free permits.
//! - **SHARE-5** While at least one reader holds the name, all readers have the token of the first of
//!   them. Each permit has a token of its own. These tokens are greater than those of earlier holders.
//! - **SHARE-6** Each holder has a lease of its own. When it has run out, its place is free.

use std::fmt;

/// How a name is held: by one holder alone, by readers, or with permits.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{Leases, MemoryStore, Mode};
///
/// let leases = Leases::new(MemoryStore::new())?;
/// let gpu = leases.lock("gpu").permit_of(4).wait()?;
/// assert_eq!(gpu.id().mode(), Mode::Permit { of: 4 });
/// assert_eq!(gpu.id().mode().to_string(), "permit of 4");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Mode {
    /// By one holder alone. The default.
    #[default]
    Exclusive,
    /// By any number of readers. See [`Acquisition::shared`](crate::Acquisition::shared).
    Shared,
    /// By at most this number of holders. See
    /// [`Acquisition::permit_of`](crate::Acquisition::permit_of).
    Permit {
        /// The number of permits in all, from 1 to [`MOST_PERMITS`](Mode::MOST_PERMITS).
        of: u32,
    },
}

impl Mode {
    /// The greatest number of permits of one name.
    pub const MOST_PERMITS: u32 = 10_000;

    /// Returns whether the number of permits is one that a store has to grant.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::Mode;
    ///
    /// assert!(Mode::Shared.is_possible());
    /// assert!(!Mode::Permit { of: 0 }.is_possible());
    /// ```
    #[must_use]
    pub fn is_possible(self) -> bool {
        match self {
            Mode::Exclusive | Mode::Shared => true,
            Mode::Permit { of } => (1..=Mode::MOST_PERMITS).contains(&of),
        }
    }

    /// The mode in the tables of a database: 0, -1, or the number of permits.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn number(self) -> i32 {
        match self {
            Mode::Exclusive => 0,
            Mode::Shared => -1,
            Mode::Permit { of } => i32::try_from(of).unwrap_or(i32::MAX),
        }
    }

    /// The mode that has this number.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn of_number(number: i32) -> Self {
        match u32::try_from(number) {
            Ok(0) => Mode::Exclusive,
            Ok(of) => Mode::Permit { of },
            Err(_) => Mode::Shared,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Exclusive => f.write_str("exclusive"),
            Mode::Shared => f.write_str("shared"),
            Mode::Permit { of } => write!(f, "permit of {of}"),
        }
    }
}
