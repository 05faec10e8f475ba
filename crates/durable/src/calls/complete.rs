//! The end of a run within a transaction of the user.

use std::fmt;

use crate::store::{Epoch, Run, StoreError};

/// A transaction that can end a run, so that the end is committed together with the effect.
///
/// It is implemented for the transactions of the drivers that the features of this crate name.
/// [`Due::complete_in`](crate::Due::complete_in) calls it.
pub trait CompletesRun {
    /// Ends the run within the transaction. The timer is deleted, or its successor takes its place,
    /// when the transaction commits. `namespace` is that of the
    /// [store](crate::store::Store::namespace).
    ///
    /// # Errors
    ///
    /// The run is no longer that of the node, or the transaction can't go on. Either way the
    /// transaction must be rolled back.
    fn complete(self, namespace: &str, epoch: Epoch, run: &Run) -> Result<(), CompleteError>;
}

/// A transaction that can end a run, for drivers whose calls are futures.
///
/// It is implemented for `tokio_postgres`.
/// [`Due::complete_in_async`](crate::Due::complete_in_async) calls it.
pub trait CompletesRunAsync {
    /// Ends the run within the transaction, as [`CompletesRun::complete`] does. A future that is
    /// dropped early must leave a transaction that can be rolled back.
    ///
    /// # Errors
    ///
    /// Those of [`CompletesRun::complete`].
    fn complete(
        self,
        namespace: &str,
        epoch: Epoch,
        run: &Run,
    ) -> impl Future<Output = Result<(), CompleteError>> + Send;
}

/// The arguments of the SQL function `tourbillon.complete` for one run, with their types in
/// PostgreSQL.
///
/// [`Due::completion`](crate::Due::completion) returns it, with an example.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Completion<'a> {
    /// The queue: `text`.
    pub queue: &'a str,
    /// The key within the queue: `text`.
    pub key: &'a str,
    /// The generation of the timer: `bigint`.
    pub generation: i64,
    /// The epoch of the node that runs it: `bigint`.
    pub epoch: i64,
    /// The number of the run, from 1: `int`.
    pub attempt: i32,
}

impl<'a> Completion<'a> {
    pub(crate) fn of(epoch: Epoch, run: &'a Run) -> Self {
        Completion {
            queue: &run.queue,
            key: &run.key,
            generation: run.generation,
            epoch: epoch.0,
            attempt: i32::try_from(run.attempt).unwrap_or(i32::MAX),
        }
    }
}

/// The reason why a run could not be ended within a transaction. Roll the transaction back.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CompleteError {
    /// The run is no longer that of this node, which was silent for longer than its lease. Another
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
                "the run is fenced: its node was silent for longer than its lease, and the timer is \
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

// Without a source: the text has that of the inner error, which has no cause.
impl std::error::Error for CompleteError {}

impl From<StoreError> for CompleteError {
    fn from(error: StoreError) -> Self {
        CompleteError::Store(error)
    }
}
