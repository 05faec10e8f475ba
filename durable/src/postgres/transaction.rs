//! Calls within a transaction of the user's.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use crate::answers::{Cancelled, FromAnswer, Moved, Scheduled};
use crate::complete::{CompleteError, CompletesRun};
use crate::errors::CallError;
use crate::names;
use crate::postgres::Postgres;
use crate::postgres::calls::parts;
use crate::postgres::failure::{Effect, is_conflict, message, refusal};
use crate::postgres::rows::written;
use crate::store::{Action, Epoch, Run, StoreError};

const WRITE_ONE: &str = "select answer, due, other, shard, running, attempt \
     from tourbillon.write_one_1($1, $2, $3, $4, $5, $6, tourbillon.rings_1())";

const COMPLETE: &str = "select tourbillon.complete($1, $2, $3, $4, $5)";

impl Postgres {
    /// Schedules a timer within a transaction: it exists once the transaction commits.
    ///
    /// Otherwise it does what `Durable::schedule` does. The delay counts from this call.
    ///
    /// # Errors
    ///
    /// Bad arguments, or the transaction can't go on and must be rolled back.
    /// [`CallError::Unavailable`] means that the same transaction may succeed if it is run again.
    ///
    /// # Blocking
    ///
    /// It waits for the server, and for another transaction that has changed the same timer.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tourbillon_durable::Postgres;
    ///
    /// fn order(client: &mut postgres::Client, number: i64) -> Result<(), Box<dyn std::error::Error>> {
    ///     let mut transaction = client.transaction()?;
    ///     transaction.execute("insert into orders (number) values ($1)", &[&number])?;
    ///     let key = format!("order:{number}");
    ///     let delay = Duration::from_secs(15 * 60);
    ///     Postgres::schedule_in(&mut transaction, "pay-by", &key, delay, &number)?;
    ///     transaction.commit()?;
    ///     Ok(())
    /// }
    /// ```
    pub fn schedule_in<T: Serialize + ?Sized>(
        transaction: &mut postgres::Transaction<'_>,
        queue: &str,
        key: &str,
        delay: Duration,
        payload: &T,
    ) -> Result<Scheduled, CallError> {
        let when = names::delay(delay)?;
        let payload = names::payload(payload, names::PAYLOAD_LIMIT)?;
        call(transaction, queue, key, &Action::Schedule { when, payload })
    }

    /// Schedules a timer for a point in time within a transaction. See [`Postgres::schedule_in`].
    ///
    /// # Errors
    ///
    /// Those of [`Postgres::schedule_in`].
    ///
    /// # Blocking
    ///
    /// It waits for the server, and for another transaction that has changed the same timer.
    pub fn schedule_at_in<T: Serialize + ?Sized>(
        transaction: &mut postgres::Transaction<'_>,
        queue: &str,
        key: &str,
        at: SystemTime,
        payload: &T,
    ) -> Result<Scheduled, CallError> {
        let when = names::at(at)?;
        let payload = names::payload(payload, names::PAYLOAD_LIMIT)?;
        call(transaction, queue, key, &Action::Schedule { when, payload })
    }

    /// Moves a timer within a transaction. See [`Postgres::schedule_in`].
    ///
    /// In a transaction with the isolation `repeatable read` or `serializable` a timer that was
    /// scheduled after its snapshot is not found.
    ///
    /// # Errors
    ///
    /// Those of [`Postgres::schedule_in`].
    ///
    /// # Blocking
    ///
    /// It waits for the server, and for another transaction that has changed the same timer.
    pub fn reschedule_in(
        transaction: &mut postgres::Transaction<'_>,
        queue: &str,
        key: &str,
        delay: Duration,
    ) -> Result<Moved, CallError> {
        let when = names::delay(delay)?;
        call(transaction, queue, key, &Action::Reschedule { when })
    }

    /// Cancels a timer within a transaction. See [`Postgres::schedule_in`].
    ///
    /// Until the transaction ends, no node starts the timer. In a transaction with the isolation
    /// `repeatable read` or `serializable` a timer that was scheduled after its snapshot is not found.
    ///
    /// # Errors
    ///
    /// Those of [`Postgres::schedule_in`].
    ///
    /// # Blocking
    ///
    /// It waits for the server, and for another transaction that has changed the same timer.
    pub fn cancel_in(
        transaction: &mut postgres::Transaction<'_>,
        queue: &str,
        key: &str,
    ) -> Result<Cancelled, CallError> {
        call(transaction, queue, key, &Action::Cancel)
    }
}

/// Makes one call within the transaction.
fn call<A: FromAnswer>(
    transaction: &mut postgres::Transaction<'_>,
    queue: &str,
    key: &str,
    action: &Action,
) -> Result<A, CallError> {
    let queue = &*names::queue(queue)?;
    let key = &*names::key(key)?;
    let (number, delay, at, payload) = parts(action);
    let values: [&(dyn ToSql + Sync); 6] = [&queue, &key, &number, &delay, &at, &payload];
    let row = transaction
        .query_one(WRITE_ONE, &values)
        .map_err(|error| CallError::from(failed(&error)))?;
    match written(row.get(0), &row, 1)? {
        Some(answer) => A::take(answer),
        None => Err(CallError::Unavailable("the row is locked".to_owned())),
    }
}

impl CompletesRun for &mut postgres::Transaction<'_> {
    fn complete(self, epoch: Epoch, run: &Run) -> Result<(), CompleteError> {
        let attempt = i32::try_from(run.attempt).unwrap_or(i32::MAX);
        let (queue, key) = (&*run.queue, &*run.key);
        let values: [&(dyn ToSql + Sync); 5] = [&queue, &key, &run.generation, &epoch.0, &attempt];
        let row = self.query_one(COMPLETE, &values).map_err(|error| {
            let failed = failed(&error);
            match error.code() {
                Some(code) if is_conflict(code) => CompleteError::Retry(message(&error)),
                _ => CompleteError::Store(failed),
            }
        })?;
        match row.get(0) {
            true => Ok(()),
            false => Err(CompleteError::Fenced),
        }
    }
}

/// An error within a transaction: nothing of it is carried out, whatever was sent before.
fn failed(error: &Error) -> StoreError {
    match error.code() {
        Some(code) if *code == SqlState::IN_FAILED_SQL_TRANSACTION => StoreError::Refused(
            "an earlier statement of this transaction has failed: roll the transaction back"
                .to_owned(),
        ),
        Some(code) => refusal(Effect::Reads, code, message(error)),
        // The transaction ends with its connection.
        None => StoreError::Unavailable(message(error)),
    }
}
