//! Calls within a transaction of `tokio_postgres`, whose calls are futures.

use serde::Serialize;
use std::future::poll_fn;
use std::task::Poll;
use tokio_postgres::Transaction;
use tourbillon::coop::YieldPoint;

use super::Postgres;
use super::transaction::{CallWithin, WRITE_ONE, answered, completed, completing};
use crate::calls::{
    CallError, CancelAnswer, CompleteError, CompletesRunAsync, Completion, FromAnswer,
    IfAbsentAnswer, Invalid, RescheduleAnswer, ScheduleAnswer, names,
};
use crate::store::{DueAt, Epoch, Run};

/// # Calls within a transaction of `tokio_postgres`
///
/// These are calls of the feature `tokio-postgres`, with the rules of those whose names have no
/// `_async`. They return futures that do nothing until they are awaited, on any runtime that
/// `tokio_postgres` runs on. They never block a thread: while another transaction holds the timer,
/// the future waits. The payload is written as JSON before the future is returned.
///
/// A future that was dropped early has sent its whole call or nothing. If it was sent, the server
/// carries it out within the transaction, and its answer is lost. So roll such a transaction back;
/// the drop of a `tokio_postgres::Transaction` does.
impl Postgres {
    /// Schedules a timer, and replaces one with the same key.
    ///
    /// # Errors
    ///
    /// The arguments are [invalid](CallError::Invalid), and nothing was sent. Otherwise the
    /// transaction must be rolled back. [`CallError::Unavailable`] means that the same transaction
    /// may succeed if it is run again.
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
    ///     let transaction = client.transaction().await?;
    ///     transaction.execute("insert into orders (number) values ($1)", &[&number]).await?;
    ///     let key = format!("order:{number}");
    ///     let delay = Duration::from_secs(15 * 60);
    ///     timers.schedule_in_async(&transaction, "pay-by", &key, delay, &number).await?;
    ///     transaction.commit().await?;
    ///     Ok(())
    /// }
    /// ```
    pub fn schedule_in_async<'t, 'c, W: Into<DueAt>, T: Serialize + ?Sized>(
        &self,
        transaction: &'t Transaction<'c>,
        queue: &str,
        key: &str,
        when: W,
        payload: &T,
    ) -> impl Future<Output = Result<ScheduleAnswer, CallError>> + Send + use<'t, 'c, W, T> {
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
    /// Those of [`Postgres::schedule_in_async`].
    pub fn schedule_if_absent_in_async<'t, 'c, W: Into<DueAt>, T: Serialize + ?Sized>(
        &self,
        transaction: &'t Transaction<'c>,
        queue: &str,
        key: &str,
        when: W,
        payload: &T,
    ) -> impl Future<Output = Result<IfAbsentAnswer, CallError>> + Send + use<'t, 'c, W, T> {
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
    /// Those of [`Postgres::schedule_in_async`].
    pub fn reschedule_in_async<'t, 'c, W: Into<DueAt>>(
        &self,
        transaction: &'t Transaction<'c>,
        queue: &str,
        key: &str,
        when: W,
    ) -> impl Future<Output = Result<RescheduleAnswer, CallError>> + Send + use<'t, 'c, W> {
        let when = names::when(when);
        call(self, transaction, CallWithin::reschedule(queue, key, when))
    }

    /// Cancels a timer. If it [was cancelled](CancelAnswer::Cancelled) and the transaction commits,
    /// it never starts.
    ///
    /// # Errors
    ///
    /// Those of [`Postgres::schedule_in_async`].
    pub fn cancel_in_async<'t, 'c>(
        &self,
        transaction: &'t Transaction<'c>,
        queue: &str,
        key: &str,
    ) -> impl Future<Output = Result<CancelAnswer, CallError>> + Send + use<'t, 'c> {
        call(self, transaction, CallWithin::cancel(queue, key))
    }
}

/// Makes one call within the transaction.
fn call<'t, 'c, A: FromAnswer>(
    store: &Postgres,
    transaction: &'t Transaction<'c>,
    call: Result<CallWithin, Invalid>,
) -> impl Future<Output = Result<A, CallError>> + Send + use<'t, 'c, A> {
    // The future outlives the store.
    let sql = store.0.schema.fill(WRITE_ONE).into_owned();
    async move {
        // Invalid arguments are known at once, and a loop may ask again.
        let mut yield_point = YieldPoint::default();
        poll_fn(|context| yield_point.poll(context, |_| Poll::Ready(()))).await;
        let call = call?;
        let values = call.values();
        answered(transaction.query_typed(&sql, &values.typed()).await)
    }
}

impl CompletesRunAsync for &Transaction<'_> {
    async fn complete(self, namespace: &str, epoch: Epoch, run: &Run) -> Result<(), CompleteError> {
        let sql = Postgres::in_schema(Postgres::COMPLETE, namespace)?;
        let run = Completion::of(epoch, run);
        let values = completing(&run);
        completed(self.query_typed(&sql, &values).await)
    }
}
