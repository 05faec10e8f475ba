//! What ends a run within a transaction of the user's.

use std::fmt;

use crate::store::{Epoch, Run, StoreError};

/// A transaction that can end a run, so that the end is committed together with the effect.
///
/// It is implemented for the transactions of the drivers that the features of this crate name.
/// [`Due::complete_in`](crate::Due::complete_in) calls it.
pub trait CompletesRun {
    /// Ends the run within the transaction. The timer is deleted, or its successor takes its place,
    /// when the transaction commits.
    ///
    /// # Errors
    ///
    /// The run is no longer that of the node, or the transaction can't go on. Either way the
    /// transaction must be rolled back.
    fn complete(self, epoch: Epoch, run: &Run) -> Result<(), CompleteError>;
}

/// The reason why a run could not be ended within a transaction. Roll the transaction back.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CompleteError {
    /// The run is no longer that of this node, which was silent for longer than its term. Another
    /// node runs the timer, or has run it, or will.
    Fenced,
    /// The database has stopped the transaction in favour of another one. The same work may succeed
    /// in a new transaction.
    Retry(String),
    /// The transaction of SQLite has begun as a deferred one and has read. Begin it as
    /// `TransactionBehavior::Immediate`.
    Deferred,
    /// The database can't be reached, or refuses.
    Store(StoreError),
}

impl fmt::Display for CompleteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CompleteError::Fenced => f.write_str(
                "the run is fenced: its node was silent for longer than its term, and the timer is \
                 no longer its own; roll the transaction back",
            ),
            CompleteError::Retry(why) => write!(
                f,
                "the database has stopped the transaction, run it again: {why}"
            ),
            CompleteError::Deferred => f.write_str(
                "the transaction has begun as a deferred one, and others have written since: begin \
                 it with `TransactionBehavior::Immediate`",
            ),
            CompleteError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CompleteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CompleteError::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl From<StoreError> for CompleteError {
    fn from(error: StoreError) -> Self {
        CompleteError::Store(error)
    }
}
