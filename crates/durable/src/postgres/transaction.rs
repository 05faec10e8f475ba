//! Calls within a transaction of the user's, whatever its driver: their statements, values and
//! answers.

use serde::Serialize;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row};

use super::failure::{Effect, is_conflict, message, refusal};
use super::rows::{one, written};
use super::values::parts;
use super::wire::{Json, Span, Time};
use crate::calls::{CallError, CompleteError, Completion, FromAnswer, Invalid, names};
use crate::store::{Action, DueAt, StoreError};
use crate::sync::Arc;

/// The values of a statement, with their types. A statement whose types are given needs one message
/// and one answer, so that it is sent as a whole or not at all.
pub(super) type Typed<'a, const N: usize> = [(&'a (dyn ToSql + Sync), Type); N];

pub(super) const WRITE_ONE: &str = "select answer, due, other, shard, running, attempt \
     from tourbillon.write_one_1($1, $2, $3, $4, $5, $6, tourbillon.rings_1())";

/// A call with good arguments.
pub(super) struct CallWithin {
    queue: Arc<str>,
    key: Box<str>,
    action: Action,
}

impl CallWithin {
    pub(super) fn schedule<T: Serialize + ?Sized>(
        queue: &str,
        key: &str,
        when: Result<DueAt, Invalid>,
        payload: &T,
    ) -> Result<Self, Invalid> {
        let payload = names::payload(payload, names::PAYLOAD_LIMIT)?;
        let when = when?;
        CallWithin::new(queue, key, Action::Schedule { when, payload })
    }

    pub(super) fn schedule_if_absent<T: Serialize + ?Sized>(
        queue: &str,
        key: &str,
        when: Result<DueAt, Invalid>,
        payload: &T,
    ) -> Result<Self, Invalid> {
        let payload = names::payload(payload, names::PAYLOAD_LIMIT)?;
        let when = when?;
        CallWithin::new(queue, key, Action::ScheduleIfAbsent { when, payload })
    }

    pub(super) fn reschedule(
        queue: &str,
        key: &str,
        when: Result<DueAt, Invalid>,
    ) -> Result<Self, Invalid> {
        CallWithin::new(queue, key, Action::Reschedule { when: when? })
    }

    pub(super) fn cancel(queue: &str, key: &str) -> Result<Self, Invalid> {
        CallWithin::new(queue, key, Action::Cancel)
    }

    fn new(queue: &str, key: &str, action: Action) -> Result<Self, Invalid> {
        Ok(CallWithin {
            queue: names::queue(queue)?,
            key: names::key(key)?,
            action,
        })
    }

    /// The values of [`WRITE_ONE`].
    pub(super) fn values(&self) -> CallValues<'_> {
        let (action, delay, at, payload) = parts(&self.action);
        CallValues {
            queue: &self.queue,
            key: &self.key,
            action,
            delay,
            at,
            payload,
        }
    }
}

/// The values of [`WRITE_ONE`].
pub(super) struct CallValues<'a> {
    queue: &'a str,
    key: &'a str,
    action: i16,
    delay: Option<Span>,
    at: Option<Time>,
    payload: Option<Json<'a>>,
}

impl CallValues<'_> {
    pub(super) fn typed(&self) -> Typed<'_, 6> {
        [
            (&self.queue, Type::TEXT),
            (&self.key, Type::TEXT),
            (&self.action, Type::INT2),
            (&self.delay, Type::INTERVAL),
            (&self.at, Type::TIMESTAMPTZ),
            (&self.payload, Type::JSONB),
        ]
    }
}

/// Reads what the server has answered to a call.
pub(super) fn answered<A: FromAnswer>(rows: Result<Vec<Row>, Error>) -> Result<A, CallError> {
    let rows = rows.map_err(|error| failed(&error))?;
    let row = one(&rows)?;
    match written(row.get(0), row, 1)? {
        Some(answer) => A::take(answer),
        None => Err(CallError::Unavailable("the row is locked".to_owned())),
    }
}

/// The values of `Postgres::COMPLETE`.
pub(super) fn completing<'a>(run: &'a Completion<'_>) -> Typed<'a, 5> {
    [
        (&run.queue, Type::TEXT),
        (&run.key, Type::TEXT),
        (&run.generation, Type::INT8),
        (&run.epoch, Type::INT8),
        (&run.attempt, Type::INT4),
    ]
}

/// Reads what the server has answered to the end of a run.
pub(super) fn completed(rows: Result<Vec<Row>, Error>) -> Result<(), CompleteError> {
    let rows = rows.map_err(|error| match error.code() {
        Some(code) if is_conflict(code) => CompleteError::Retry(message(&error)),
        _ => CompleteError::Store(failed(&error)),
    })?;
    match one(&rows)?.get(0) {
        true => Ok(()),
        false => Err(CompleteError::Fenced),
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
