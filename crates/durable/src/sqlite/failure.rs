//! Errors of SQLite, as errors of a store.

use rusqlite::ErrorCode;
use rusqlite::ffi;

use crate::store::StoreError;

/// Why a transaction ended early.
#[derive(Debug)]
pub(super) enum Failure {
    /// SQLite has failed.
    Sql(rusqlite::Error),
    /// This module has found a reason.
    Store(StoreError),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Failure::Sql(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure::Store(error)
    }
}

impl Failure {
    /// The failure of a call of which nothing was carried out.
    pub(super) fn before_commit(self) -> StoreError {
        match self {
            Failure::Sql(error) => before_commit(&error),
            Failure::Store(error) => error,
        }
    }

    /// Whether one row of a batch may be the reason, so that the others are tried without it.
    pub(super) fn may_be_of_one_row(&self) -> bool {
        matches!(self, Failure::Sql(error) if may_be_of_one_row(error))
    }

    /// Whether another connection was in the way.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Failure::Sql(error) if is_busy(error))
    }
}

/// Whether another connection was in the way, so that the same transaction may succeed later.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::FileLockingProtocolFailed
                | ErrorCode::SchemaChanged
        )
    )
}

/// Whether the error may be about one row of many: a trigger or a constraint refuses it, or its
/// values can't be read. The transaction is rolled back all the same, since SQLite may have ended
/// it.
pub(super) fn may_be_of_one_row(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        None | Some(
            ErrorCode::ConstraintViolation
                | ErrorCode::TooBig
                | ErrorCode::TypeMismatch
                | ErrorCode::Unknown
        )
    )
}

/// The error of a statement that was not a commit: the transaction is rolled back.
pub(super) fn before_commit(error: &rusqlite::Error) -> StoreError {
    let why = text(error);
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::Unavailable(format!("the disk is full: {why}")),
        Some(
            ErrorCode::SystemIoFailure
            | ErrorCode::OutOfMemory
            | ErrorCode::OperationInterrupted
            | ErrorCode::OperationAborted,
        ) => StoreError::Unavailable(why),
        _ if is_busy(error) => StoreError::Unavailable(format!(
            "another connection to the file holds its lock: {why}"
        )),
        // The file was moved or replaced: another connection may find it.
        Some(ErrorCode::ReadOnly) if extended(error) == Some(ffi::SQLITE_READONLY_DBMOVED) => {
            StoreError::Unavailable(format!("the file was moved or replaced: {why}"))
        }
        Some(ErrorCode::ReadOnly) => {
            StoreError::Refused(format!("the file and its folder must be writable: {why}"))
        }
        Some(ErrorCode::CannotOpen) => StoreError::Unavailable(format!(
            "the file, or one of the two that SQLite keeps beside it, can't be opened: {why}"
        )),
        Some(ErrorCode::NotADatabase) => {
            StoreError::Refused(format!("the file is no database of SQLite: {why}"))
        }
        Some(ErrorCode::DatabaseCorrupt) => StoreError::Refused(format!(
            "the file is corrupt; restore it, or rescue what it has with `sqlite3 FILE .recover`: \
             {why}"
        )),
        _ => StoreError::Refused(why),
    }
}

/// The error of a commit.
///
/// SQLite writes the frame that marks the commit last, and then asks the system to flush the file.
/// If a write fails, the mark is not there, so nothing was carried out. If the flush fails, the
/// mark may or may not reach the disk: this process sees the transaction as rolled back, but after
/// a crash of the machine it may be there.
pub(super) fn of_commit(error: &rusqlite::Error) -> StoreError {
    let written = match error.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) => extended(error) != Some(ffi::SQLITE_IOERR_WRITE),
        _ => false,
    };
    match written {
        true => StoreError::Unknown(text(error)),
        false => before_commit(error),
    }
}

fn extended(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code)
}

/// The text of SQLite with the number of its error, since the text alone is often the same.
fn text(error: &rusqlite::Error) -> String {
    match extended(error) {
        Some(code) => format!("{error} (SQLite's error {code})"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: i32) -> rusqlite::Error {
        rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)
    }

    #[test]
    fn only_a_commit_whose_flush_failed_may_have_happened() {
        for code in [
            ffi::SQLITE_IOERR_FSYNC,
            ffi::SQLITE_IOERR_DIR_FSYNC,
            ffi::SQLITE_IOERR_SHMMAP,
            ffi::SQLITE_IOERR,
        ] {
            assert!(
                matches!(of_commit(&error(code)), StoreError::Unknown(_)),
                "{code}"
            );
            let before = before_commit(&error(code));
            assert!(matches!(before, StoreError::Unavailable(_)), "{code}");
        }
        for code in [
            ffi::SQLITE_BUSY,
            ffi::SQLITE_BUSY_SNAPSHOT,
            ffi::SQLITE_FULL,
            ffi::SQLITE_IOERR_WRITE,
        ] {
            let failed = of_commit(&error(code));
            assert!(
                matches!(failed, StoreError::Unavailable(_)),
                "{code}: {failed}"
            );
        }
    }

    #[test]
    fn what_does_not_pass_is_refused() {
        for code in [
            ffi::SQLITE_NOTADB,
            ffi::SQLITE_CORRUPT,
            ffi::SQLITE_READONLY,
            ffi::SQLITE_ERROR,
            ffi::SQLITE_AUTH,
        ] {
            let failed = before_commit(&error(code));
            assert!(matches!(failed, StoreError::Refused(_)), "{code}: {failed}");
        }
        for code in [
            ffi::SQLITE_LOCKED,
            ffi::SQLITE_PROTOCOL,
            ffi::SQLITE_NOMEM,
            ffi::SQLITE_CANTOPEN,
            ffi::SQLITE_READONLY_DBMOVED,
        ] {
            let failed = before_commit(&error(code));
            assert!(failed.may_pass(), "{code}: {failed}");
        }
    }

    #[test]
    fn only_some_errors_may_be_about_one_row() {
        for code in [
            ffi::SQLITE_CONSTRAINT,
            ffi::SQLITE_CONSTRAINT_TRIGGER,
            ffi::SQLITE_TOOBIG,
            ffi::SQLITE_ERROR,
        ] {
            assert!(may_be_of_one_row(&error(code)), "{code}");
        }
        for code in [
            ffi::SQLITE_FULL,
            ffi::SQLITE_IOERR,
            ffi::SQLITE_BUSY,
            ffi::SQLITE_READONLY,
            ffi::SQLITE_CORRUPT,
        ] {
            assert!(!may_be_of_one_row(&error(code)), "{code}");
        }
    }
}
