//! What a crate needs that brings the calls to another driver for PostgreSQL: the statement of a
//! call, its values as bytes, and what the server's answer means.
//!
//! **It is no public interface**, so its documentation is hidden: any release may change it. The
//! crates of this repository use it. Other programs have the published statements, such as
//! [`Postgres::SCHEDULE`].

use std::fmt;

use bytes::BytesMut;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, IsNull, Type};
use tourbillon_postgres::failure::described;

use super::Postgres;
use super::rows::Columns;
use super::transaction::{
    CallValues, CompletionValues, NoRows, Typed, WRITE_ONE, answered, completed,
};
use crate::calls::{CallError, CallWithin, CompleteError, Completion, Invalid};
use crate::store::StoreError;

/// A statement of one call, to be run once within the transaction. `R` is what the caller is told.
///
/// The types of the parameters belong to it: without them the server might choose others.
pub struct Statement<R> {
    /// The text, with the parameters `$1`, `$2` and so on.
    pub sql: String,
    /// The values of the parameters.
    pub values: Vec<Value>,
    read: Box<dyn FnOnce(Result<Vec<AnsweredRow>, NoRows>) -> R + Send>,
}

impl<R> Statement<R> {
    fn new<const N: usize>(
        sql: String,
        values: Typed<'_, N>,
        read: impl FnOnce(Result<Vec<AnsweredRow>, NoRows>) -> R + Send + 'static,
    ) -> Result<Self, StoreError> {
        let values = values.into_iter().map(|(value, type_)| {
            let mut bytes = BytesMut::new();
            // What a call holds was checked before.
            let written = value.to_sql_checked(&type_, &mut bytes);
            let written = written.map_err(|error| StoreError::Refused(error.to_string()))?;
            Ok(Value {
                type_number: type_.oid(),
                bytes: matches!(written, IsNull::No).then(|| bytes.to_vec()),
            })
        });
        Ok(Statement {
            sql,
            values: values.collect::<Result<_, StoreError>>()?,
            read: Box::new(read),
        })
    }

    /// Reads the rows that the server has answered with.
    pub fn answered(self, rows: Vec<AnsweredRow>) -> R {
        (self.read)(Ok(rows))
    }

    /// Reads the server's refusal of the statement: its code, such as `40001`, its message, and its
    /// detail and hint.
    pub fn refused(self, code: &str, message: &str, more: [Option<&str>; 2]) -> R {
        let code = SqlState::from_code(code);
        (self.read)(Err(NoRows {
            why: described(message, &code, more),
            code: Some(code),
        }))
    }

    /// The driver has no answer of the server, for instance since the connection was lost.
    pub fn failed(self, why: String) -> R {
        (self.read)(Err(NoRows { code: None, why }))
    }
}

impl<R> fmt::Debug for Statement<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Statement")
            .field("sql", &self.sql)
            .field("values", &self.values)
            .finish_non_exhaustive()
    }
}

/// A value of PostgreSQL: a parameter, or what a row has in a column.
#[derive(Clone, Debug)]
pub struct Value {
    /// The number of its type, which is the same on all servers.
    pub type_number: u32,
    /// The value in the binary format; `None` is `null`.
    pub bytes: Option<Vec<u8>>,
}

/// A row of the server's answer.
#[derive(Clone, Debug)]
pub struct AnsweredRow(pub Vec<Value>);

impl Columns for AnsweredRow {
    fn value<'a, T: FromSql<'a>>(&'a self, column: usize) -> T {
        let Value { type_number, bytes } = &self.0[column];
        let type_ = Type::from_oid(*type_number).filter(T::accepts);
        let type_ = type_.expect("the functions of the schema have these types");
        T::from_sql_nullable(&type_, bytes.as_deref()).expect("the server sends valid values")
    }
}

/// Returns the statement of a call.
///
/// # Errors
///
/// The arguments are refused.
pub fn call<A: Send + 'static>(
    store: &Postgres,
    call: Result<CallWithin<A>, Invalid>,
) -> Result<Statement<Result<A, CallError>>, CallError> {
    let CallWithin { call, answer } = call?;
    let sql = store.0.schema.fill(WRITE_ONE).into_owned();
    let values = CallValues::of(&call, store.0.notify);
    Ok(Statement::new(sql, values.typed(), move |rows| {
        answered(rows, answer)
    })?)
}

/// Returns the statement that ends a run.
///
/// # Errors
///
/// The timers are not in a schema of PostgreSQL.
pub fn complete(
    run: &Completion<'_>,
) -> Result<Statement<Result<(), CompleteError>>, CompleteError> {
    let sql = Postgres::in_schema(Postgres::COMPLETE, run.namespace)?;
    let values = CompletionValues::of(run);
    Ok(Statement::new(sql, values.typed(), completed)?)
}
