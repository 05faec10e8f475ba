//! The end of a run within a transaction of the user.

use std::fmt;

use std::time::SystemTime;

#[cfg(feature = "sqlite")]
use crate::store::Meta;
use crate::store::{Epoch, Next, Run, StoreError};
use crate::sync::Arc;

/// A transaction that can end a run, so that the end is committed together with the effect.
///
/// It is implemented for the transactions of the drivers that the features of this crate name, and
/// by the crate `tourbillon-durable-sqlx`. [`Due::complete_in`](crate::Due::complete_in) calls it.
///
/// Implement it for a type that has a transaction of another driver. `D` is found by the compiler.
/// Leave it out, unless neither the transaction's type nor this trait is of your crate: then
/// implement `CompletesRun<YourType>`, with any type of your own.
///
/// # Examples
///
/// This driver has text alone. `Postgres::COMPLETE` is the statement for others.
///
/// ```
/// use tourbillon_durable::{CompleteError, CompletesRun, Completion, Due};
///
/// struct Shop<'t>(&'t mut Vec<String>); // the statements of a transaction
///
/// impl CompletesRun for Shop<'_> {
///     type Answer = Result<(), CompleteError>;
///
///     fn complete(self, run: &Completion<'_>) -> Self::Answer {
///         let Completion { queue, key, generation, epoch, attempt, .. } = run;
///         self.0.push(format!("complete {queue:?} {key:?} {generation} {epoch} {attempt}"));
///         Ok(())
///     }
/// }
///
/// fn handler(due: &Due<u64>) -> Result<(), CompleteError> {
///     let mut statements = vec![format!("cancel order {}", due.payload())];
///     due.complete_in(Shop(&mut statements))
/// }
/// # let _ = handler;
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no transaction that can end a run",
    label = "no transaction of a known driver",
    note = "it is `&tx` of `rusqlite` and `tokio_postgres`, `&*tx` of `deadpool_postgres`, and with the \
            feature `postgres` `&mut tx` of `postgres`",
    note = "for `&mut *tx` of `sqlx`, add the crate `tourbillon-durable-sqlx`, and \
            `use tourbillon_durable_sqlx as _;`"
)]
pub trait CompletesRun<D = ()> {
    /// What [`complete`](Self::complete) returns: `Result<(), CompleteError>` if the driver blocks,
    /// and a future with that if it is awaited, such as [`Awaited`](crate::Awaited).
    type Answer;

    /// Ends the run within the transaction. The timer is deleted, or the one that follows waits,
    /// when the transaction commits. A future that is dropped early must leave a transaction that
    /// can be rolled back.
    ///
    /// The answer is an error if the run is no longer that of the node, or if the transaction can't
    /// go on. Either way the transaction must be rolled back.
    fn complete(self, run: &Completion<'_>) -> Self::Answer;
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
    /// When the next occurrence of a timer with a schedule is due: `timestamptz`. `None` for all other
    /// timers.
    pub next: Option<SystemTime>,
    /// The meta that the timer has then, as JSON: `text`.
    pub next_meta: Option<&'a str>,
    /// The schema that has the timers in PostgreSQL, or the prefix of their tables in SQLite. It is
    /// no argument of the function.
    pub namespace: &'a str,
    /// The store's clock, if a test moves it.
    #[cfg(all(feature = "test-util", feature = "sqlite"))]
    pub(crate) now: Option<crate::store::StoreTime>,
}

impl<'a> Completion<'a> {
    /// It is no public interface, but visible for tests of this repository.
    #[doc(hidden)]
    pub fn of(namespace: &'a str, epoch: Epoch, run: &'a Run) -> Self {
        Completion {
            queue: &run.queue,
            key: &run.key,
            generation: run.generation,
            epoch: epoch.0,
            attempt: i32::try_from(run.attempt).unwrap_or(i32::MAX),
            next: None,
            next_meta: None,
            namespace,
            #[cfg(all(feature = "test-util", feature = "sqlite"))]
            now: None,
        }
    }

    /// The same at this time, which a test has set.
    #[cfg(all(feature = "test-util", feature = "sqlite"))]
    pub(crate) fn at(self, now: Option<crate::store::StoreTime>) -> Self {
        Completion { now, ..self }
    }

    /// The same with the next occurrence of a timer with a schedule.
    pub(crate) fn then(self, next: Option<&'a Next>) -> Self {
        Completion {
            next: next.map(|next| next.due.into()),
            next_meta: next.map(|next| next.meta.as_str()),
            ..self
        }
    }

    /// The next occurrence.
    #[cfg(feature = "sqlite")]
    pub(crate) fn next(&self) -> Option<Next> {
        Some(Next {
            due: self.next?.into(),
            meta: Meta::of_json(self.next_meta?),
        })
    }

    /// It is no public interface, but visible for tests of this repository.
    #[doc(hidden)]
    pub fn parts(&self) -> (Epoch, Run) {
        let run = Run {
            queue: Arc::from(self.queue),
            key: Box::from(self.key),
            generation: self.generation,
            attempt: u32::try_from(self.attempt).unwrap_or(0),
        };
        (Epoch(self.epoch), run)
    }
}

/// The reason why a run could not be ended within a transaction. Roll the transaction back.
///
/// # Examples
///
/// ```
/// use tourbillon_durable::CompleteError;
///
/// /// Whether the handler should report the error. It rolls its transaction back in any case.
/// fn is_of_interest(error: &CompleteError) -> bool {
///     match error {
///         CompleteError::Fenced => false, // another process runs the timer
///         CompleteError::Retry(_) => false, // so does this one, a little later
///         _ => true,
///     }
/// }
/// # assert!(is_of_interest(&CompleteError::Deferred));
/// ```
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
