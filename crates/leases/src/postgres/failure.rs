//! What errors of connections and of the server mean for a lease.

use tourbillon_postgres::failure::{described, message, refusal};
use tourbillon_postgres::tokio_postgres::Error;
use tourbillon_postgres::tokio_postgres::error::SqlState;
use tourbillon_postgres::{Effect, Failure, PostgresError};

use crate::store::StoreError;

/// The rights of a program.
pub(super) const GRANTS: &str = "the role needs usage on the schema of the leases, select, insert, update and delete \
     on all tables in it, and execute on all functions in it";

/// What leads away from a server that accepts no writes.
pub(super) const STANDBY: &str = "this server is a standby, or a read-only one: connect to the primary, for instance \
     by several hosts and target_session_attrs=read-write in the URL";

/// The error of a connection.
pub(super) fn of_connection(error: PostgresError) -> StoreError {
    match error {
        PostgresError::Unavailable(why) | PostgresError::Unknown(why) => {
            StoreError::Unavailable(why)
        }
        PostgresError::Refused(why) => StoreError::Refused(why),
        PostgresError::Forked => StoreError::Forked,
    }
}

/// The error of a call.
pub(super) fn of_answer(error: Error) -> StoreError {
    match error.code() {
        Some(code) => of_code(code, shown(&error)),
        None => of_connection(Failure::of(Effect::Writes, error).into_error()),
    }
}

/// The server's message. Its detail is left out, since it may quote a row, and with it a secret.
pub(super) fn shown(error: &Error) -> String {
    match error.as_db_error() {
        Some(db) => described(db.message(), db.code(), [None, db.hint()]),
        None => message(error),
    }
}

fn of_code(code: &SqlState, why: String) -> StoreError {
    match code.code() {
        "42501" => StoreError::Refused(format!("{why}: {GRANTS}")),
        // During a failover this passes.
        "25006" => StoreError::Unavailable(format!("{why}: {STANDBY}")),
        _ if names_what_is_missing(code) => StoreError::Unavailable(format!(
            "{why}: the tables of the leases are gone, or are not those that this version of the crate knows"
        )),
        _ => of_connection(refusal(Effect::Writes, code, why)),
    }
}

/// Whether something that the statement names is missing: a schema, a table, a function or a column.
/// A new connection finds out what.
pub(super) fn names_what_is_missing(code: &SqlState) -> bool {
    // The table `meta` without its row, too.
    matches!(code.code(), "3F000" | "42P01" | "42883" | "42703" | "P0002")
}

/// The rights that are missing on the schema.
pub(super) fn no_usage(schema: &str) -> StoreError {
    StoreError::Refused(format!(
        "permission denied for the schema {schema}: {GRANTS}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_say_whether_the_call_may_succeed_later() {
        let may_pass = |code: &SqlState| of_code(code, "why".to_owned()).may_pass();
        for code in [
            SqlState::LOCK_NOT_AVAILABLE,
            SqlState::QUERY_CANCELED,
            SqlState::ADMIN_SHUTDOWN,
            SqlState::UNDEFINED_TABLE,
            SqlState::READ_ONLY_SQL_TRANSACTION,
            SqlState::DISK_FULL,
        ] {
            assert!(may_pass(&code), "{code:?}");
        }
        for code in [SqlState::INSUFFICIENT_PRIVILEGE, SqlState::SYNTAX_ERROR] {
            assert!(!may_pass(&code), "{code:?}");
        }
        let denied = of_code(&SqlState::INSUFFICIENT_PRIVILEGE, "why".to_owned());
        assert!(denied.to_string().contains("needs usage"), "{denied}");
        assert_eq!(of_connection(PostgresError::Forked), StoreError::Forked);
        let unknown = of_connection(PostgresError::Unknown("why".to_owned()));
        assert_eq!(unknown, StoreError::Unavailable("why".to_owned()));
    }
}
