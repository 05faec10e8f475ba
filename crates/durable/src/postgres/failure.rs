//! Errors of the server as those of a store.

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::store::{REMEDY, StoreError};

/// The grants of the role of a node. Roles of programs that only schedule need fewer.
pub(super) const GRANTS: &str = "the role needs usage on the schema of the timers, and select, insert, update and delete \
     on all tables in it";

/// Whether a call can be repeated without harm if its answer is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    Reads,
    Writes,
}

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

impl Failure {
    /// A failure that the server has not answered with.
    pub(super) fn of(error: StoreError) -> Self {
        Failure {
            code: None,
            is_taken: false,
            error,
        }
    }

    /// The server has ended the statement in favour of another one.
    pub(super) fn is_conflict(&self) -> bool {
        self.code.as_ref().is_some_and(is_conflict) || self.is_taken
    }

    /// The statement has waited too long for a lock, or somebody else was quicker again and again.
    pub(super) fn is_locked(&self) -> bool {
        self.code.as_ref() == Some(&SqlState::LOCK_NOT_AVAILABLE) || self.is_taken
    }

    /// The server does not accept a value.
    pub(super) fn is_bad_value(&self) -> bool {
        let class = self.code.as_ref().map(|code| &code.code()[..2]);
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
            !ends_connection(code) && !matches!(&code.code()[..2], "25" | "53" | "57")
        }) && !matches!(self.error, StoreError::Replaced(_))
    }
}

/// Whether an error says that a key of a timer is taken.
pub(super) fn is_of_key(error: &Error, schema: &str) -> bool {
    error.as_db_error().is_some_and(|error| {
        *error.code() == SqlState::UNIQUE_VIOLATION
            && error.schema() == Some(schema)
            && error.constraint() == Some("timer_pkey")
    })
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

pub(super) fn is_conflict(code: &SqlState) -> bool {
    *code == SqlState::T_R_SERIALIZATION_FAILURE || *code == SqlState::T_R_DEADLOCK_DETECTED
}

pub(super) fn lost(effect: Effect, why: String) -> Failure {
    let error = match effect {
        Effect::Reads => StoreError::Unavailable(why),
        Effect::Writes => StoreError::Unknown(why),
    };
    Failure::of(error)
}

/// The server's message with its detail and hint, or that of the client.
pub(super) fn message(error: &Error) -> String {
    let Some(db) = error.as_db_error() else {
        let mut text = error.to_string();
        if let Some(source) = std::error::Error::source(error) {
            text = format!("{text}: {source}");
        }
        return text;
    };
    described(db.message(), db.code(), [db.detail(), db.hint()])
}

/// A message of the server with its detail and hint.
pub(super) fn described(message: &str, code: &SqlState, more: [Option<&str>; 2]) -> String {
    let mut text = format!("{message} ({})", code.code());
    for more in more.into_iter().flatten() {
        text = format!("{text}; {more}");
    }
    text
}

/// Translates an error of the server, for a statement that is a transaction of its own.
pub(super) fn refusal(effect: Effect, code: &SqlState, why: String) -> StoreError {
    let text = code.code();
    match (&text[..2], text) {
        // The session was ended from outside, perhaps while it waited for a standby's receipt.
        (_, "57P01" | "57P02" | "57P05") | ("08", _) => lost(effect, why).error,
        (_, "25006") => StoreError::Refused(format!(
            "{why}: this server is a standby, or a read-only one; connect to the primary"
        )),
        (_, "42501") if why.contains("row-level security") => StoreError::Refused(format!(
            "{why}: row-level security would hide timers; give the role `bypassrls`, or disable it on the \
             tables of tourbillon"
        )),
        // The function `same_1`.
        (_, "TB001") => StoreError::Replaced(format!("{why}; {REMEDY}")),
        (_, "42501") => StoreError::Refused(format!("{why}: {}", GRANTS)),
        (_, "3F000" | "42P01" | "42883" | "42703") => StoreError::Refused(format!(
            "{why}: the tables of tourbillon are not those that this version of the crate knows"
        )),
        // The server accepts no writes until it was vacuumed. Where a row is the reason, the caller
        // says so.
        (_, "54000") => StoreError::Unavailable(why),
        // A plan that a migration has made invalid, and statements that a proxy has lost.
        (_, "0A000" | "26000") => StoreError::Unavailable(why),
        ("40" | "53" | "55" | "57" | "58" | "XX", _) => StoreError::Unavailable(why),
        _ => StoreError::Refused(why),
    }
}

pub(super) fn ends_connection(code: &SqlState) -> bool {
    let text = code.code();
    matches!(&text[..2], "08" | "XX" | "58")
        || matches!(
            text,
            // A primary that has become a standby: another connection may find the new one.
            "57P01" | "57P02" | "57P03" | "57P05" | "0A000" | "26000" | "25006"
        )
}

/// Translates the error of an attempt to connect.
pub(super) fn not_connected(error: &Error) -> StoreError {
    #[cfg(feature = "postgres-tls")]
    if let Some(why) = super::tls::refusal(error) {
        return StoreError::Refused(why);
    }
    let why = message(error);
    // The driver has no other sign of it. What is missing, such as a password, will be missing
    // again.
    if error.to_string().starts_with("invalid configuration") {
        return StoreError::Refused(why);
    }
    match error.code().map(|code| &code.code()[..2]) {
        // Wrong user or password, no such database, no right to connect.
        Some("28" | "3D" | "42" | "22") => StoreError::Refused(why),
        _ => StoreError::Unavailable(why),
    }
}
