//! Errors of connections and of the server as those of a store.

use tokio_postgres::error::SqlState;
use tourbillon_postgres::failure::{self, ends_connection, message};
use tourbillon_postgres::{Effect, PostgresError};

use crate::store::{REMEDY, StoreError};

/// The grants of the role of a node. Roles of programs that only schedule need fewer.
pub(super) const GRANTS: &str = "the role needs usage on the schema of the timers, and select, insert, update and delete \
     on all tables in it";

/// A call that failed.
#[derive(Debug)]
pub(super) struct Failure {
    /// The server's reason, if the server has answered.
    pub(super) code: Option<SqlState>,
    /// Whether somebody else has inserted a key that was new when the statement began. Other rows
    /// may have the same code.
    pub(super) is_taken: bool,
    pub(super) error: StoreError,
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

impl From<PostgresError> for Failure {
    fn from(error: PostgresError) -> Self {
        Failure::of(of_connection(error))
    }
}

impl Failure {
    /// A failure that the server has not answered with.
    pub(super) fn of(error: StoreError) -> Self {
        Failure {
            code: None,
            is_taken: false,
            error,
        }
    }

    /// A failure of a statement on the tables in this schema.
    pub(super) fn of_statement(
        effect: Effect,
        failure: tourbillon_postgres::Failure,
        schema: &str,
    ) -> Self {
        let is_taken = failure.violates(schema, "timer_pkey");
        let code = failure.code().cloned();
        let error = match (&code, failure.answer()) {
            (Some(code), Some(answer)) => refusal(effect, code, message(answer)),
            _ => of_connection(failure.into_error()),
        };
        Failure {
            code,
            is_taken,
            error,
        }
    }

    /// The server has ended the statement in favour of another one.
    pub(super) fn is_conflict(&self) -> bool {
        self.code.as_ref().is_some_and(failure::is_conflict) || self.is_taken
    }

    /// The statement has waited too long for a lock, or somebody else was quicker again and again.
    pub(super) fn is_locked(&self) -> bool {
        self.code.as_ref() == Some(&SqlState::LOCK_NOT_AVAILABLE) || self.is_taken
    }

    /// The server does not accept a value.
    pub(super) fn is_bad_value(&self) -> bool {
        let class = self.code.as_ref().map(failure::class);
        matches!(class, Some("22" | "23")) && !self.is_taken
    }

    /// The server has met one of its limits. A value may be the reason: JSON that is nested too
    /// deep (54001), or has a part that is too long (54000). So may the server itself, if it has no
    /// numbers for transactions any more (54000). The other codes of this class, too many columns
    /// (54011) or arguments (54023), are those of a function or a trigger, whatever the values are:
    /// see [`is_general`].
    pub(super) fn is_limit(&self) -> bool {
        self.code.as_ref().is_some_and(is_limit)
    }

    /// Whether something that the statement names is missing: a schema, a table or a function.
    pub(super) fn names_what_is_missing(&self) -> bool {
        let code = self.code.as_ref().map(SqlState::code);
        matches!(code, Some("3F000" | "42P01" | "42883"))
    }

    /// The error where a row is the reason: the same call will be refused again.
    pub(super) fn of_the_row(self) -> StoreError {
        match self.error {
            StoreError::Unavailable(why) => StoreError::Refused(why),
            error => error,
        }
    }

    /// One row of a batch may be the reason, for instance since a trigger of the user's refuses it.
    /// The others must not fail with it.
    pub(super) fn may_be_of_one_row(&self) -> bool {
        self.code.as_ref().is_some_and(|code| {
            !ends_connection(code) && !matches!(failure::class(code), "25" | "53" | "57")
        }) && !matches!(self.error, StoreError::Replaced(_))
    }
}

/// Errors that are hardly ever about one row: missing rights, tables and functions, and functions
/// with more columns or arguments than there may be.
pub(super) fn is_general(code: &SqlState) -> bool {
    matches!(
        code.code(),
        "42501" | "3F000" | "42P01" | "42883" | "42703" | "54011" | "54023"
    )
}

/// See [`Failure::is_limit`].
pub(super) fn is_limit(code: &SqlState) -> bool {
    matches!(code.code(), "54000" | "54001")
}

/// The error of a connection as that of a store.
pub(super) fn of_connection(error: PostgresError) -> StoreError {
    match error {
        PostgresError::Unavailable(why) => StoreError::Unavailable(why),
        PostgresError::Unknown(why) => StoreError::Unknown(why),
        PostgresError::Refused(why) => StoreError::Refused(why),
        PostgresError::Forked => StoreError::Forked,
    }
}

/// Translates an error of the server, for a statement that is a transaction of its own.
pub(super) fn refusal(effect: Effect, code: &SqlState, why: String) -> StoreError {
    match code.code() {
        "42501" if why.contains("row-level security") => StoreError::Refused(format!(
            "{why}: row-level security would hide timers; give the role `bypassrls`, or disable it on the \
             tables of tourbillon"
        )),
        // The function `same_1`.
        "TB001" => StoreError::Replaced(format!("{why}; {REMEDY}")),
        "42501" => StoreError::Refused(format!("{why}: {GRANTS}")),
        "3F000" | "42P01" | "42883" | "42703" => StoreError::Refused(format!(
            "{why}: the tables of tourbillon are not those that this version of the crate knows"
        )),
        _ => of_connection(failure::refusal(effect, code, why)),
    }
}
