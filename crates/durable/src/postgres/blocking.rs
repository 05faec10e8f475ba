//! Calls within a transaction of the crate `postgres`, whose calls block.

use postgres::Transaction;
use serde::Serialize;

use super::Postgres;
use super::transaction::{CallWithin, WRITE_ONE, answered, completed, completing};
use crate::calls::{
    CallError, CancelAnswer, CompleteError, CompletesRun, Completion, FromAnswer, IfAbsentAnswer,
    Invalid, RescheduleAnswer, ScheduleAnswer, names,
};
use crate::store::{DueAt, Epoch, Run};

/// # Calls within a transaction of the crate `postgres`
///
/// These are calls of the feature `postgres`. The transaction is one on the database of this store,
/// by any connection of the user's. An order and its timer are stored together, or not at all. The
/// calls take what the same calls of `Durable` take, and answer the same. In addition:
///
/// - The timer is there once the transaction commits. Nodes find it at their next poll, so a timer
///   that is due at once may be late by the time between two polls: a second by default.
/// - A delay counts from the moment at which the server carries out the call.
/// - The payload has at most 64 KiB as JSON.
/// - Until the transaction ends, no node starts a timer that it has changed.
/// - In a transaction with the isolation `repeatable read` or `serializable`, a timer that was
///   scheduled after its snapshot is not found.
/// - After an error other than [`CallError::Invalid`] the transaction can't go on: roll it back.
#[cfg_attr(docsrs, doc(cfg(feature = "postgres")))]
impl Postgres {
    /// Schedules a timer, and replaces one with the same key.
    ///
    /// # Errors
    ///
    /// The arguments are [invalid](CallError::Invalid), and nothing was sent. Otherwise the
    /// transaction must be rolled back. [`CallError::Unavailable`] means that the same transaction
    /// may succeed if it is run again.
    ///
    /// # Blocking
    ///
    /// It waits for the server, and for another transaction that has changed the same timer. Like
    /// all calls of the crate `postgres` it panics within an asynchronous runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tourbillon_durable::Postgres;
    ///
    /// fn order(
    ///     timers: &Postgres,
    ///     client: &mut postgres::Client,
    ///     number: i64,
    /// ) -> Result<(), Box<dyn std::error::Error>> {
    ///     let mut transaction = client.transaction()?;
    ///     transaction.execute("insert into orders (number) values ($1)", &[&number])?;
    ///     let key = format!("order:{number}");
    ///     let delay = Duration::from_secs(15 * 60);
    ///     timers.schedule_in(&mut transaction, "pay-by", &key, delay, &number)?;
    ///     transaction.commit()?;
    ///     Ok(())
    /// }
    /// ```
    pub fn schedule_in<T: Serialize + ?Sized>(
        &self,
        transaction: &mut Transaction<'_>,
        queue: &str,
        key: &str,
        when: impl Into<DueAt>,
        payload: &T,
    ) -> Result<ScheduleAnswer, CallError> {
        let when = names::when(when);
        call(
            self,
            transaction,
            CallWithin::schedule(queue, key, when, payload),
        )
    }

    /// Schedules a timer, unless one with the same key waits or runs.
    ///
    /// In a transaction with the isolation `repeatable read` or `serializable`, a timer that was
    /// scheduled after its snapshot is a conflict: [`CallError::Unavailable`].
    ///
    /// # Errors
    ///
    /// Those of [`Postgres::schedule_in`].
    ///
    /// # Blocking
    ///
    /// As for [`Postgres::schedule_in`].
    pub fn schedule_if_absent_in<T: Serialize + ?Sized>(
        &self,
        transaction: &mut Transaction<'_>,
        queue: &str,
        key: &str,
        when: impl Into<DueAt>,
        payload: &T,
    ) -> Result<IfAbsentAnswer, CallError> {
        let when = names::when(when);
        call(
            self,
            transaction,
            CallWithin::schedule_if_absent(queue, key, when, payload),
        )
    }

    /// Moves a timer, so that it is due then.
    ///
    /// # Errors
    ///
    /// Those of [`Postgres::schedule_in`].
    ///
    /// # Blocking
    ///
    /// As for [`Postgres::schedule_in`].
    pub fn reschedule_in(
        &self,
        transaction: &mut Transaction<'_>,
        queue: &str,
        key: &str,
        when: impl Into<DueAt>,
    ) -> Result<RescheduleAnswer, CallError> {
        let when = names::when(when);
        call(self, transaction, CallWithin::reschedule(queue, key, when))
    }

    /// Cancels a timer. If it [was cancelled](CancelAnswer::Cancelled) and the transaction commits,
    /// it never starts.
    ///
    /// # Errors
    ///
    /// Those of [`Postgres::schedule_in`].
    ///
    /// # Blocking
    ///
    /// As for [`Postgres::schedule_in`].
    pub fn cancel_in(
        &self,
        transaction: &mut Transaction<'_>,
        queue: &str,
        key: &str,
    ) -> Result<CancelAnswer, CallError> {
        call(self, transaction, CallWithin::cancel(queue, key))
    }
}

/// Makes one call within the transaction.
fn call<A: FromAnswer>(
    store: &Postgres,
    transaction: &mut Transaction<'_>,
    call: Result<CallWithin, Invalid>,
) -> Result<A, CallError> {
    let call = call?;
    let values = call.values();
    let sql = store.0.schema.fill(WRITE_ONE);
    answered(transaction.query_typed(&sql, &values.typed()))
}

/// It blocks, and panics within an asynchronous runtime, as all calls of the crate `postgres` do.
#[cfg_attr(docsrs, doc(cfg(feature = "postgres")))]
impl CompletesRun for &mut Transaction<'_> {
    fn complete(self, namespace: &str, epoch: Epoch, run: &Run) -> Result<(), CompleteError> {
        let sql = Postgres::in_schema(Postgres::COMPLETE, namespace)?;
        let run = Completion::of(epoch, run);
        completed(self.query_typed(&sql, &completing(&run)))
    }
}
