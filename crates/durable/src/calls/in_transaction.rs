//! Calls within a transaction of the user's, whatever its driver.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use serde::Serialize;
use tourbillon::coop::YieldPoint;

use super::answers::{CancelAnswer, FromAnswer, IfAbsentAnswer, RescheduleAnswer, ScheduleAnswer};
use super::errors::CallError;
use super::names::{self, Invalid};
use crate::store::schedule::Schedule;
use crate::store::{Action, Answer, Call, DueAt, Meta, Payload, Store};

/// The calls within one transaction of the user's. They are committed together with the user's own
/// changes, or not at all.
///
/// `Sqlite::in_transaction` and `Postgres::in_transaction` return it, with examples for each driver.
/// They also say what holds for transactions on the one and the other.
///
/// The calls take what the same calls of [`Durable`](crate::Durable) take, and answer the same. One
/// receiver makes one call. It is [`Copy`] if the transaction is given as `&tx`, and so can be kept
/// for several calls.
///
/// # What a call returns
///
/// That is a matter of the driver:
///
/// | transaction | returns |
/// |---|---|
/// | `&rusqlite::Transaction`, `&mut postgres::Transaction` | a `Result`, when the call was carried out |
/// | `&tokio_postgres::Transaction`, and `&mut sqlx::Transaction` by the crate `tourbillon-durable-sqlx` | the future [`Awaited`], with such a `Result` |
///
/// # Differences to the calls of `Durable`
///
/// - The timer is there once the transaction commits. No process is told about the commit. Nodes
///   find the timer at their next poll, so one that is due at once may be late by the time between
///   two polls: a second by default.
/// - The payload has at most 64 KiB as JSON.
///
/// # Errors
///
/// - [`CallError::Invalid`]: the arguments are refused, and the transaction can go on.
/// - [`CallError::Unavailable`]: the same work may succeed in a new transaction.
/// - [`CallError::Refused`] and [`CallError::Replaced`]: it will not. The text says why.
///
/// On PostgreSQL a transaction must be rolled back after all of them but the first.
///
/// # Blocking
///
/// With a driver whose calls block, a call waits for the database, and for another transaction that
/// has changed the same timer. A future never blocks a thread.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "sqlite")] {
/// use std::time::Duration;
/// use tourbillon_durable::{CallError, Sqlite, rusqlite};
///
/// fn paid(timers: &Sqlite, tx: &rusqlite::Transaction<'_>, order: u64) -> Result<(), CallError> {
///     let (key, week) = (format!("order:{order}"), Duration::from_secs(7 * 86_400));
///     let calls = timers.in_transaction(tx);
///     calls.cancel("pay-by", &key)?;
///     calls.schedule("ask-for-review", &key, week, &order)?;
///     Ok(())
/// }
/// # }
/// ```
#[doc(alias("outbox", "transactional outbox"))]
#[must_use = "a transaction alone does nothing: make a call in it"]
pub struct InTransaction<'s, S, X, D = ()> {
    store: &'s S,
    tx: X,
    meta: Option<&'s Meta>,
    driver: PhantomData<fn() -> D>,
}

impl<'s, S: Store, X: TakesCalls<S, D>, D> InTransaction<'s, S, X, D> {
    #[cfg(any(feature = "sqlite", feature = "tokio-postgres"))]
    pub(crate) fn new(store: &'s S, tx: X) -> Self {
        InTransaction {
            store,
            tx,
            meta: None,
            driver: PhantomData,
        }
    }

    /// Gives the timer of the next `schedule` or `schedule_if_absent` a meta. Other calls do not
    /// need it.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")] {
    /// # use std::time::Duration;
    /// use tourbillon_durable::{CallError, Sqlite, rusqlite, Meta};
    ///
    /// fn create(timers: &Sqlite, tx: &rusqlite::Transaction<'_>, of: &Meta) -> Result<(), CallError> {
    ///     let quarter = Duration::from_secs(15 * 60);
    ///     timers.in_transaction(tx).meta(of).schedule("pay-by", "order:7", quarter, &7)?;
    ///     Ok(())
    /// }
    /// # let _ = create;
    /// # }
    /// ```
    pub fn meta<'m>(self, meta: &'m Meta) -> InTransaction<'m, S, X, D>
    where
        's: 'm,
    {
        InTransaction {
            meta: Some(meta),
            ..self
        }
    }

    /// Schedules a timer, and replaces one with the same key.
    pub fn schedule<T: Serialize + ?Sized>(
        self,
        queue: &str,
        key: &str,
        when: impl Into<Schedule>,
        payload: &T,
    ) -> X::Answer<ScheduleAnswer> {
        let action = self.scheduled(when, payload);
        self.call(
            queue,
            key,
            action.map(|(when, payload)| Action::Schedule { when, payload }),
        )
    }

    /// Schedules a timer, unless one with the same key waits or runs.
    ///
    /// On PostgreSQL, with the isolation `repeatable read` or `serializable`, a timer that was
    /// scheduled after the snapshot of the transaction is a conflict: [`CallError::Unavailable`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")] {
    /// # use std::time::Duration;
    /// use tourbillon_durable::{CallError, Sqlite, rusqlite};
    ///
    /// fn sign_up(timers: &Sqlite, tx: &rusqlite::Transaction<'_>, user: &str) -> Result<bool, CallError> {
    ///     let day = Duration::from_secs(86_400);
    ///     let answer = timers.in_transaction(tx).schedule_if_absent("welcome", user, day, &())?;
    ///     Ok(answer.is_scheduled())
    /// }
    /// # let _ = sign_up;
    /// # }
    /// ```
    pub fn schedule_if_absent<T: Serialize + ?Sized>(
        self,
        queue: &str,
        key: &str,
        when: impl Into<Schedule>,
        payload: &T,
    ) -> X::Answer<IfAbsentAnswer> {
        let action = self.scheduled(when, payload);
        self.call(
            queue,
            key,
            action.map(|(when, payload)| Action::ScheduleIfAbsent { when, payload }),
        )
    }

    /// Moves a timer, so that it is due then.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")] {
    /// # use std::time::Duration;
    /// use tourbillon_durable::{CallError, Sqlite, rusqlite};
    ///
    /// fn more_time(timers: &Sqlite, tx: &rusqlite::Transaction<'_>, key: &str) -> Result<bool, CallError> {
    ///     let hour = Duration::from_secs(3_600);
    ///     Ok(timers.in_transaction(tx).reschedule("pay-by", key, hour)?.is_moved())
    /// }
    /// # let _ = more_time;
    /// # }
    /// ```
    pub fn reschedule(
        self,
        queue: &str,
        key: &str,
        when: impl Into<DueAt>,
    ) -> X::Answer<RescheduleAnswer> {
        let when = names::when(when);
        self.call(queue, key, when.map(|when| Action::Reschedule { when }))
    }

    /// Cancels a timer. If it [was cancelled](CancelAnswer::Cancelled) and the transaction commits,
    /// it never starts.
    pub fn cancel(self, queue: &str, key: &str) -> X::Answer<CancelAnswer> {
        self.call(queue, key, Ok(Action::Cancel))
    }

    /// Checks what a call schedules, and writes the payload.
    fn scheduled<T: Serialize + ?Sized>(
        &self,
        when: impl Into<Schedule>,
        payload: &T,
    ) -> Result<(DueAt, Payload), Invalid> {
        names::scheduled(when, payload, names::PAYLOAD_LIMIT, self.meta, || {
            self.store.wall_clock()
        })
    }

    fn call<A: FromAnswer + Send + 'static>(
        self,
        queue: &str,
        key: &str,
        action: Result<Action, Invalid>,
    ) -> X::Answer<A> {
        let call = action.and_then(|action| {
            let (queue, key) = (names::queue(queue)?, names::key(key)?);
            Ok(Call { queue, key, action })
        });
        let answer = A::take;
        self.tx
            .call(self.store, call.map(|call| CallWithin { call, answer }))
    }
}

impl<S, X: Copy, D> Copy for InTransaction<'_, S, X, D> {}

impl<S, X: Copy, D> Clone for InTransaction<'_, S, X, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: fmt::Debug, X, D> fmt::Debug for InTransaction<'_, S, X, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InTransaction")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

/// A transaction of the user's that takes calls of the store `S`.
///
/// It is implemented for the transactions that [`InTransaction`] lists, and can't be implemented
/// elsewhere: what its call takes is no public interface. With another driver for PostgreSQL, run
/// the published statements, such as `Postgres::SCHEDULE`.
///
/// `D` is found by the compiler. It is `()` here, and a type of its own in a crate for another
/// driver, which could not implement the trait otherwise.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no transaction that takes calls of the store `{S}`",
    label = "no transaction of a driver for `{S}`",
    note = "`Sqlite` takes `&tx` of `rusqlite`; `Postgres` takes `&tx` of `tokio_postgres`, `&*tx` of \
            `deadpool_postgres`, and with the feature `postgres` `&mut tx` of `postgres`",
    note = "for `&mut *tx` of `sqlx`, add the crate `tourbillon-durable-sqlx`, and \
            `use tourbillon_durable_sqlx as _;`"
)]
pub trait TakesCalls<S, D = ()>: Sized {
    /// What a call with the answer `A` returns: `Result<A, CallError>`, or a future with that.
    type Answer<A>;

    // No public interface: `CallWithin` is not documented, and may change.
    #[doc(hidden)]
    fn call<A: Send + 'static>(
        self,
        store: &S,
        call: Result<CallWithin<A>, Invalid>,
    ) -> Self::Answer<A>;
}

/// A call with good arguments, whose answer is an `A`.
///
/// It is no public interface. It is visible for the crates of this repository that bring the calls
/// to other drivers, and may change at any time.
#[doc(hidden)]
#[derive(Debug)]
pub struct CallWithin<A> {
    #[cfg_attr(
        not(any(feature = "sqlite", feature = "tokio-postgres")),
        expect(dead_code, reason = "no store with transactions reads it")
    )]
    pub(crate) call: Call,
    #[cfg_attr(
        not(any(feature = "sqlite", feature = "tokio-postgres")),
        expect(dead_code, reason = "no store with transactions reads it")
    )]
    pub(crate) answer: fn(Answer) -> Result<A, CallError>,
}

/// The answer of a transaction whose driver is awaited: of a call in
/// [`InTransaction`], and of [`Due::complete_in`](crate::Due::complete_in).
///
/// The future does nothing until it is awaited, on any runtime that the driver runs on. It is
/// [`Send`], and has a copy of all arguments but the transaction. Now and then it yields, so that a
/// loop of calls with wrong arguments leaves the thread to others.
///
/// One that was dropped early has sent its whole statement or nothing. If it was sent, the server
/// carries it out within the transaction, and its answer is lost. So roll such a transaction back;
/// the drop of a transaction of `tokio_postgres` or `sqlx` does.
///
/// # Examples
///
/// ```
/// use tourbillon_durable::{Awaited, CompleteError, CompletesRun, Completion, Due};
///
/// /// A transaction of a driver that is awaited.
/// struct Mine<'t>(&'t mut Vec<String>);
///
/// impl<'t> CompletesRun for Mine<'t> {
///     type Answer = Awaited<'t, Result<(), CompleteError>>;
///
///     fn complete(self, run: &Completion<'_>) -> Self::Answer {
///         let statement = format!("complete {:?} {:?}", run.queue, run.key);
///         Awaited::new(async move {
///             self.0.push(statement); // .. send it, and await its answer ..
///             Ok(())
///         })
///     }
/// }
///
/// async fn handler(due: &Due<u64>, statements: &mut Vec<String>) -> Result<(), CompleteError> {
///     due.complete_in(Mine(statements)).await
/// }
/// # let _ = handler;
/// ```
#[must_use = "nothing is sent until it is awaited"]
pub struct Awaited<'t, R>(Pin<Box<dyn Future<Output = R> + Send + 't>>);

impl<'t, R> Awaited<'t, R> {
    /// Makes the answer of a driver, for those who implement
    /// [`CompletesRun`](crate::CompletesRun).
    pub fn new(answer: impl Future<Output = R> + Send + 't) -> Self {
        Awaited(Box::pin(async {
            // Wrong arguments are known at once, and a loop may ask again.
            let mut yield_point = YieldPoint::default();
            std::future::poll_fn(|context| yield_point.poll(context, |_| Poll::Ready(()))).await;
            answer.await
        }))
    }
}

impl<R> Future for Awaited<'_, R> {
    type Output = R;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<R> {
        self.0.as_mut().poll(context)
    }
}

impl<R> fmt::Debug for Awaited<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Awaited").finish_non_exhaustive()
    }
}
