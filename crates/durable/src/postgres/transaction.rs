//! Calls within a transaction of the user's, whatever its driver: their statements, values and
//! answers.

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tourbillon_postgres::Effect;
use tourbillon_postgres::failure::{is_conflict, message};

use super::Postgres;
use super::failure::refusal;
use super::rows::{Columns, one, written};
use super::values::parts;
use super::wire::{Json, Span, Time};
use crate::calls::{CallError, CompleteError, Completion, InTransaction, TakesCalls};
use crate::store::{Answer, Call, StoreError};

impl Postgres {
    /// Returns the calls within a transaction on the database of this store, by any connection of
    /// the user's. An order and its timer are stored together, or not at all.
    ///
    /// | crate | `timers` is the `Postgres` |
    /// |---|---|
    /// | `tokio-postgres` 0.7 | `timers.in_transaction(&tx).schedule(..).await?` |
    /// | `deadpool-postgres` | `timers.in_transaction(&*tx).schedule(..).await?` |
    /// | `sqlx` 0.9, by the crate `tourbillon-durable-sqlx` | `timers.in_transaction(&mut *tx).schedule(..).await?` |
    /// | `postgres` 0.19, with the feature `postgres` | `timers.in_transaction(&mut tx).schedule(..)?` |
    /// | others | [the published statements](#associatedconstant.SCHEDULE) |
    ///
    /// If `tx` is a `&mut Transaction`, as the argument of a function, pass `&mut *tx`.
    ///
    /// [`InTransaction`] has the calls and their errors. In addition:
    ///
    /// - A delay counts from the moment at which the server carries out the call.
    /// - Until the transaction ends, no node starts a timer that it has changed.
    /// - In a transaction with the isolation `repeatable read` or `serializable`, a timer that was
    ///   scheduled after its snapshot is not found.
    /// - After an error other than [`CallError::Invalid`] the transaction can't go on: roll it back.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::error::Error;
    /// use std::time::Duration;
    /// use tourbillon_durable::{Postgres, tokio_postgres};
    ///
    /// async fn order(
    ///     timers: &Postgres,
    ///     client: &mut tokio_postgres::Client,
    ///     number: i64,
    /// ) -> Result<(), Box<dyn Error>> {
    ///     let tx = client.transaction().await?;
    ///     tx.execute("insert into orders (number) values ($1)", &[&number]).await?;
    ///     let (key, delay) = (format!("order:{number}"), Duration::from_secs(15 * 60));
    ///     timers.in_transaction(&tx).schedule("pay-by", &key, delay, &number).await?;
    ///     tx.commit().await?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// With a driver whose calls block:
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")] {
    /// use std::error::Error;
    /// use std::time::Duration;
    /// use tourbillon_durable::Postgres;
    ///
    /// fn order(
    ///     timers: &Postgres,
    ///     client: &mut postgres::Client,
    ///     number: i64,
    /// ) -> Result<(), Box<dyn Error>> {
    ///     let mut tx = client.transaction()?;
    ///     tx.execute("insert into orders (number) values ($1)", &[&number])?;
    ///     let (key, delay) = (format!("order:{number}"), Duration::from_secs(15 * 60));
    ///     timers.in_transaction(&mut tx).schedule("pay-by", &key, delay, &number)?;
    ///     tx.commit()?;
    ///     Ok(())
    /// }
    /// # }
    /// ```
    ///
    /// A transaction on another database is refused by the compiler:
    ///
    /// ```compile_fail,E0277
    /// # use tourbillon_durable::{Postgres, rusqlite};
    /// fn order(timers: &Postgres, tx: &rusqlite::Transaction<'_>) {
    ///     let _ = timers.in_transaction(tx);
    /// }
    /// ```
    ///
    /// It warns of a call that is not awaited:
    ///
    /// ```compile_fail
    /// #![deny(unused_must_use)]
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Postgres, tokio_postgres};
    /// async fn order(timers: &Postgres, tx: &tokio_postgres::Transaction<'_>) {
    ///     timers.in_transaction(tx).cancel("pay-by", "order:7");
    /// }
    /// ```
    pub fn in_transaction<X: TakesCalls<Self, D>, D>(
        &self,
        tx: X,
    ) -> InTransaction<'_, Self, X, D> {
        InTransaction::new(self, tx)
    }
}

/// The values of a statement, with their types. A statement whose types are given needs one message
/// and one answer, so that it is sent as a whole or not at all.
pub(super) type Typed<'a, const N: usize> = [(&'a (dyn ToSql + Sync), Type); N];

pub(super) const WRITE_ONE: &str = "select answer, due, other, shard, running, attempt \
     from tourbillon.write_one_1($1, $2, $3, $4, $5, $6, $7, $8 or tourbillon.rings_1())";

/// The values of [`WRITE_ONE`].
pub(super) struct CallValues<'a> {
    queue: &'a str,
    key: &'a str,
    action: i16,
    delay: Option<Span>,
    at: Option<Time>,
    payload: Option<Json<'a>>,
    meta: Option<Json<'a>>,
    /// Whether the store announces timers. The setting of the session may ask for it, too.
    notify: bool,
}

impl<'a> CallValues<'a> {
    pub(super) fn of(call: &'a Call, notify: bool) -> Self {
        let (action, delay, at, payload, meta) = parts(&call.action);
        CallValues {
            queue: &call.queue,
            key: &call.key,
            action,
            delay,
            at,
            payload,
            meta,
            notify,
        }
    }

    pub(super) fn typed(&self) -> Typed<'_, 8> {
        [
            (&self.queue, Type::TEXT),
            (&self.key, Type::TEXT),
            (&self.action, Type::INT2),
            (&self.delay, Type::INTERVAL),
            (&self.at, Type::TIMESTAMPTZ),
            (&self.payload, Type::JSONB),
            (&self.meta, Type::JSONB),
            (&self.notify, Type::BOOL),
        ]
    }
}

/// Why a driver has no rows.
#[derive(Debug)]
pub(super) struct NoRows {
    /// The server's code, if the server has answered.
    pub(super) code: Option<SqlState>,
    pub(super) why: String,
}

impl From<Error> for NoRows {
    fn from(error: Error) -> Self {
        NoRows {
            code: error.code().cloned(),
            why: message(&error),
        }
    }
}

/// Reads what the server has answered to a call.
pub(super) fn answered<A>(
    rows: Result<Vec<impl Columns>, impl Into<NoRows>>,
    read: fn(Answer) -> Result<A, CallError>,
) -> Result<A, CallError> {
    let rows = rows.map_err(|error| refused(error.into()))?;
    let row = one(&rows)?;
    match written(row.value(0), row, 1)? {
        Some(answer) => read(answer),
        None => Err(CallError::Unavailable("the row is locked".to_owned())),
    }
}

/// The values of `Postgres::COMPLETE`.
#[derive(Debug)]
pub(super) struct CompletionValues<'a> {
    run: &'a Completion<'a>,
    next: Option<Time>,
}

impl<'a> CompletionValues<'a> {
    pub(super) fn of(run: &'a Completion<'a>) -> Self {
        CompletionValues {
            run,
            next: run.next.map(|next| Time(next.into())),
        }
    }

    pub(super) fn typed(&self) -> Typed<'_, 7> {
        [
            (&self.run.queue, Type::TEXT),
            (&self.run.key, Type::TEXT),
            (&self.run.generation, Type::INT8),
            (&self.run.epoch, Type::INT8),
            (&self.run.attempt, Type::INT4),
            (&self.next, Type::TIMESTAMPTZ),
            (&self.run.next_meta, Type::TEXT),
        ]
    }
}

/// Reads what the server has answered to the end of a run.
pub(super) fn completed(
    rows: Result<Vec<impl Columns>, impl Into<NoRows>>,
) -> Result<(), CompleteError> {
    let rows = rows.map_err(|error| match error.into() {
        NoRows {
            code: Some(code),
            why,
        } if is_conflict(&code) => CompleteError::Retry(why),
        other => CompleteError::Store(refused(other)),
    })?;
    match one(&rows)?.value(0) {
        true => Ok(()),
        false => Err(CompleteError::Fenced),
    }
}

/// An error within a transaction: nothing of it is carried out, whatever was sent before.
fn refused(NoRows { code, why }: NoRows) -> StoreError {
    match code {
        Some(SqlState::IN_FAILED_SQL_TRANSACTION) => StoreError::Refused(
            "an earlier statement of this transaction has failed: roll the transaction back"
                .to_owned(),
        ),
        Some(code) => refusal(Effect::Reads, &code, why),
        // The transaction ends with its connection.
        None => StoreError::Unavailable(why),
    }
}
