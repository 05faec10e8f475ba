//! Errors of SQLite, as errors of a store.

use rusqlite::{Error, ErrorCode};

use crate::store::StoreError;

/// Why a transaction ended early.
#[derive(Debug)]
pub(super) enum Failure {
    /// SQLite has failed.
    Sql(Error),
    /// This module has found a reason.
    Store(StoreError),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Sql(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure::Store(error)
    }
}

impl Failure {
    /// Whether another connection was in the way, so that the same transaction may succeed later.
    pub(super) fn is_busy(&self) -> bool {
        use ErrorCode::{DatabaseBusy, DatabaseLocked, FileLockingProtocolFailed, SchemaChanged};
        let Failure::Sql(error) = self else {
            return false;
        };
        matches!(
            error.sqlite_error_code(),
            Some(DatabaseBusy | DatabaseLocked | FileLockingProtocolFailed | SchemaChanged)
        )
    }

    /// The error of a call.
    pub(super) fn of_call(self) -> StoreError {
        let is_busy = self.is_busy();
        let error = match self {
            Failure::Sql(error) => error,
            Failure::Store(error) => return error,
        };
        let why = text(&error);
        match error.sqlite_error_code() {
            _ if is_busy => StoreError::Unavailable(format!(
                "another connection holds the lock of the file: {why}"
            )),
            Some(ErrorCode::DiskFull) => {
                StoreError::Unavailable(format!("the disk is full: {why}"))
            }
            Some(
                ErrorCode::SystemIoFailure
                | ErrorCode::OutOfMemory
                | ErrorCode::OperationInterrupted
                | ErrorCode::OperationAborted,
            ) => StoreError::Unavailable(why),
            Some(ErrorCode::CannotOpen) => StoreError::Unavailable(format!(
                "the file, or one of the two that SQLite keeps beside it, can't be opened: {why}"
            )),
            Some(ErrorCode::ReadOnly) => {
                StoreError::Refused(format!("the file and its folder must be writable: {why}"))
            }
            Some(ErrorCode::NotADatabase) => {
                StoreError::Refused(format!("the file is no database of SQLite: {why}"))
            }
            Some(ErrorCode::DatabaseCorrupt) => {
                StoreError::Refused(format!("the file is corrupt: {why}"))
            }
            _ => StoreError::Refused(why),
        }
    }
}

/// The text of SQLite with the number of its error, since the text alone is often the same.
fn text(error: &Error) -> String {
    match error.sqlite_error() {
        Some(code) => format!("{error} (SQLite's error {})", code.extended_code),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    fn of(code: i32) -> Failure {
        Error::SqliteFailure(ffi::Error::new(code), None).into()
    }

    #[test]
    fn what_may_pass_is_apart_from_what_does_not() {
        for code in [
            ffi::SQLITE_BUSY,
            ffi::SQLITE_BUSY_SNAPSHOT,
            ffi::SQLITE_LOCKED,
            ffi::SQLITE_PROTOCOL,
        ] {
            assert!(of(code).is_busy(), "{code}");
            assert!(of(code).of_call().may_pass(), "{code}");
        }
        for code in [
            ffi::SQLITE_FULL,
            ffi::SQLITE_IOERR_WRITE,
            ffi::SQLITE_NOMEM,
            ffi::SQLITE_CANTOPEN,
        ] {
            assert!(!of(code).is_busy(), "{code}");
            assert!(of(code).of_call().may_pass(), "{code}");
        }
        for code in [
            ffi::SQLITE_NOTADB,
            ffi::SQLITE_CORRUPT,
            ffi::SQLITE_READONLY,
            ffi::SQLITE_ERROR,
        ] {
            let failed = of(code).of_call();
            assert!(matches!(failed, StoreError::Refused(_)), "{code}: {failed}");
        }
    }
}
