#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
//! Durable timers within transactions of `sqlx`, on PostgreSQL: an order and its timer are committed
//! together, and so are the effect of a run and its end.
//!
//! This crate brings the transactions of `sqlx` 0.9 to [`Postgres::in_transaction`] and
//! [`Due::complete_in`]. They take two types, and `&mut *tx` is one of them, as it is in queries of
//! `sqlx`:
//!
//! | type | |
//! |---|---|
//! | `&mut sqlx::Transaction` | what `begin` returns, also a savepoint |
//! | `&mut sqlx::PgConnection` | its connection. One without a transaction is refused: [`CallError::Refused`] |
//!
//! The calls are awaited. What [`InTransaction`] and [`Awaited`] say holds here too. A call costs
//! two round trips, since `sqlx` prepares each statement first.
//!
//! Nothing of this crate has to be named. An import tells the compiler to use it:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use tourbillon_durable::{Due, Postgres};
//! use tourbillon_durable_sqlx as _;
//!
//! async fn order(timers: &Postgres, db: &sqlx::PgPool, number: i64) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut tx = db.begin().await?;
//!     sqlx::query("insert into orders (number) values ($1)").bind(number).execute(&mut *tx).await?;
//!     let (key, delay) = (format!("order:{number}"), Duration::from_secs(15 * 60));
//!     timers.in_transaction(&mut *tx).schedule("pay-by", &key, delay, &number).await?;
//!     tx.commit().await?;
//!     Ok(())
//! }
//! ```
//!
//! A pool, which queries of `sqlx` take as well, is refused by the compiler:
//!
//! ```compile_fail,E0277
//! # use tourbillon_durable::Postgres;
//! # use tourbillon_durable_sqlx as _;
//! fn order(timers: &Postgres, db: &sqlx::PgPool) {
//!     let _ = timers.in_transaction(db);
//! }
//! ```
//!
//! # Poolers
//!
//! The connections of `sqlx` may come through a pooler in transaction mode, such as PgBouncer with
//! `pool_mode = transaction`: no call leaves a prepared statement on the server. Your own queries
//! need `persistent(false)` there. The store itself goes to the server, or to a pooler in session
//! mode.
//!
//! [`InTransaction`]: tourbillon_durable::InTransaction
//! [`Due::complete_in`]: tourbillon_durable::Due::complete_in

use sqlx::encode::{Encode, IsNull};
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgArguments, PgConnection, PgRow, PgTypeInfo};
use sqlx::{Arguments, AssertSqlSafe, Connection, Executor, Row, Transaction, Type, ValueRef};
use tourbillon_durable::driver::{self, AnsweredRow, Statement, Value};
use tourbillon_durable::{
    Awaited, CallError, CallWithin, CompleteError, CompletesRun, Completion, Invalid, Postgres,
    TakesCalls,
};

/// The parameter `D` of [`TakesCalls`] and [`CompletesRun`] for the transactions of `sqlx`. The
/// compiler finds it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Sqlx;

/// The connection must be in a transaction that `begin` has begun.
impl<'t> TakesCalls<Postgres, Sqlx> for &'t mut PgConnection {
    type Answer<A> = Awaited<'t, Result<A, CallError>>;

    fn call<A: Send + 'static>(
        self,
        store: &Postgres,
        call: Result<CallWithin<A>, Invalid>,
    ) -> Self::Answer<A> {
        let statement = driver::call(store, call);
        Awaited::new(async move { run(self, statement?).await })
    }
}

impl<'t> TakesCalls<Postgres, Sqlx> for &'t mut Transaction<'_, sqlx::Postgres> {
    type Answer<A> = Awaited<'t, Result<A, CallError>>;

    fn call<A: Send + 'static>(
        self,
        store: &Postgres,
        call: Result<CallWithin<A>, Invalid>,
    ) -> Self::Answer<A> {
        (&mut **self).call(store, call)
    }
}

/// The connection must be in a transaction that `begin` has begun.
impl<'t> CompletesRun<Sqlx> for &'t mut PgConnection {
    type Answer = Awaited<'t, Result<(), CompleteError>>;

    fn complete(self, run: &Completion<'_>) -> Self::Answer {
        let statement = driver::complete(run);
        Awaited::new(async move { self::run(self, statement?).await })
    }
}

impl<'t> CompletesRun<Sqlx> for &'t mut Transaction<'_, sqlx::Postgres> {
    type Answer = Awaited<'t, Result<(), CompleteError>>;

    fn complete(self, run: &Completion<'_>) -> Self::Answer {
        (&mut **self).complete(run)
    }
}

/// Runs a statement within the transaction that the connection is in.
async fn run<R>(tx: &mut PgConnection, statement: Statement<R>) -> R {
    if !tx.is_in_transaction() {
        let why = "the connection is in no transaction: make the call in what `begin` returns";
        return statement.refused("25P01", why, [None, None]);
    }
    match fetch(tx, &statement.sql, &statement.values).await {
        Ok(rows) => statement.answered(rows),
        Err(error) => match error.as_database_error() {
            Some(refusal) => {
                let refusal = refusal.downcast_ref::<sqlx::postgres::PgDatabaseError>();
                let more = [refusal.detail(), refusal.hint()];
                statement.refused(refusal.code(), refusal.message(), more)
            }
            None => statement.failed(error.to_string()),
        },
    }
}

async fn fetch(
    tx: &mut PgConnection,
    sql: &str,
    values: &[Value],
) -> Result<Vec<AnsweredRow>, sqlx::Error> {
    let mut arguments = PgArguments::default();
    for value in values {
        arguments.add(Raw(value)).map_err(sqlx::Error::Encode)?;
    }
    // The text is one of the crate's own. Only the name of the schema varies, which was checked.
    let sql = AssertSqlSafe(sql);
    // A pooler may give the next transaction of this connection a session of the server that does
    // not have the statement.
    let query = sqlx::query_with(sql, arguments).persistent(false);
    let rows = tx.fetch_all(query).await?;
    rows.iter().map(answered_row).collect()
}

fn answered_row(row: &PgRow) -> Result<AnsweredRow, sqlx::Error> {
    let columns = (0..row.len()).map(|column| {
        let value = row.try_get_raw(column)?;
        Ok(Value {
            type_number: value.type_info().oid().map_or(0, |number| number.0),
            bytes: match value.is_null() {
                true => None,
                false => Some(value.as_bytes().map_err(sqlx::Error::Decode)?.to_vec()),
            },
        })
    });
    columns.collect::<Result<_, _>>().map(AnsweredRow)
}

/// A value that is in the server's format already.
struct Raw<'v>(&'v Value);

impl Encode<'_, sqlx::Postgres> for Raw<'_> {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let Some(bytes) = &self.0.bytes else {
            return Ok(IsNull::Yes);
        };
        buffer.extend_from_slice(bytes);
        Ok(IsNull::No)
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(PgTypeInfo::with_oid(Oid(self.0.type_number)))
    }
}

impl Type<sqlx::Postgres> for Raw<'_> {
    /// Each value has its own.
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(0))
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
