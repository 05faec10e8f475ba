//! The reason why a call to a store failed.

use std::fmt;

/// The reason why a call to a store failed.
///
/// # Examples
///
/// ```
/// use tourbillon_durable::StoreError;
///
/// let error = StoreError::Unavailable("the server is gone".into());
/// assert!(error.may_pass());
/// assert!(!StoreError::Refused("permission denied".into()).may_pass());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The store can't be reached, or is busy, and the call was not carried out. It may pass.
    Unavailable(String),
    /// The answer was lost: the call may have been carried out.
    Unknown(String),
    /// The store refused the call and did not carry it out. The same call will be refused again.
    Refused(String),
    /// The store is not the one that this process has opened: it was replaced, removed or emptied,
    /// or is older than it was. Nothing more is carried out on it. The text says what to do. Should
    /// the right store come back, calls succeed again.
    Replaced(String),
    /// Another transaction has locked the timer's row, and the call was not carried out. It may
    /// pass when that transaction ends.
    Locked(String),
    /// This process was forked after the store was opened, and the store belongs to the original
    /// process. Open it after the fork. A `Sqlite` can't be opened in a copy of a
    /// process that has opened one.
    Forked,
}

impl StoreError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        !matches!(
            self,
            StoreError::Refused(_) | StoreError::Replaced(_) | StoreError::Forked
        )
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Unavailable(why) => write!(f, "the store is unavailable: {why}"),
            StoreError::Unknown(why) => write!(
                f,
                "the store's answer was lost, and the call may have been carried out, so look before you \
                 repeat it: {why}"
            ),
            StoreError::Refused(why) => write!(f, "the store refuses the call: {why}"),
            StoreError::Replaced(why) => write!(f, "this is not the store as it was: {why}"),
            StoreError::Locked(why) => write!(f, "the timer is locked: {why}"),
            StoreError::Forked => f.write_str(
                "a store was opened before this process was forked, and belongs to the original \
                 process: open stores after the fork only",
            ),
        }
    }
}

impl std::error::Error for StoreError {}
