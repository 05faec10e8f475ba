//! Whether the file is still the one that was opened.
//!
//! A process that has a file open goes on writing to it when another file takes its place, and all
//! of that is lost. SQLite does not look, so each transaction does: whether the path still leads to
//! the open file, and the names beside it to the open log and its index. A file that was written
//! over in its place keeps its number, so the identity that the tables have is read from it again
//! whenever the file has changed.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::schema::{self, Prefix};
use crate::store::{REMEDY, StoreError};
use crate::sync::{Mutex, OnceLock};

/// What a store remembers of its file.
#[derive(Debug, Default)]
pub(super) struct Original {
    first: OnceLock<First>,
    log: Mutex<Log>,
    /// The length and the time of the last change at which the identity was read from the file.
    verified: Mutex<Option<FileState>>,
}

/// The write-ahead log and its index. While one of the connections is open, SQLite does not remove
/// them.
#[derive(Debug, Default)]
struct Log {
    /// The number of connections that have it open.
    connections: usize,
    files: Beside,
    /// They were removed under an open connection. What they had is lost to all connections that
    /// come later, so the processes have to start anew.
    is_lost: bool,
}

type FileState = (u64, Option<SystemTime>);

#[derive(Debug)]
struct First {
    file: FileId,
    identity: i64,
}

/// What names a file on this machine, whatever its path. Other systems than Unix do not let anybody
/// replace a file that is open.
type FileId = (u64, u64);

#[cfg(unix)]
fn id(metadata: &Metadata) -> FileId {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

#[cfg(not(unix))]
fn id(_: &Metadata) -> FileId {
    (0, 0)
}

type Beside = [Option<FileId>; 2];

impl Original {
    /// Remembers the file and its tables, which this store has opened first.
    pub(super) fn remember(&self, path: &Path, identity: i64) -> Result<(), StoreError> {
        let metadata = metadata(path)?;
        let file = id(&metadata);
        self.first.get_or_init(|| First { file, identity });
        Ok(())
    }

    /// Whether the file was opened once, with its tables.
    pub(super) fn is_known(&self) -> bool {
        self.first.get().is_some()
    }

    /// Compares the identity of the tables.
    pub(super) fn is_identity(&self, identity: i64) -> Result<(), StoreError> {
        match self.first.get() {
            Some(first) if first.identity != identity => {
                Err(other("has the timers of another store"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the path leads to the file that was opened first.
    pub(super) fn is_file(&self, path: &Path) -> Result<(), StoreError> {
        if let Some(first) = self.first.get() {
            let metadata = metadata(path)?;
            if id(&metadata) != first.file {
                return Err(other("has taken the place of the one that was opened"));
            }
            if metadata.len() == 0 {
                return Err(other("is empty"));
            }
        }
        Ok(())
    }

    /// Whether the log and its index beside the file are those that the connections of this store
    /// have open. `is_new`: the caller is a further connection, whose end calls
    /// [`Original::close`].
    pub(super) fn is_log(&self, path: &Path, is_new: bool) -> Result<(), StoreError> {
        let mut log = self.log.lock();
        let now = beside(path);
        if log.connections == 0 && is_new {
            log.files = now;
        }
        log.connections += usize::from(is_new);
        if log.connections == 0 {
            return Ok(());
        }
        let same = |(was, is): (&Option<FileId>, &Option<FileId>)| was.is_none() || was == is;
        if !log.files.iter().zip(&now).all(same) {
            // Else the file is being moved, with its log after it.
            self.is_file(path)?;
            log.is_lost = true;
        }
        match log.is_lost {
            true => Err(other("has lost its `-wal` or `-shm`, which belong to it")),
            false => Ok(()),
        }
    }

    /// A connection that had the log open has ended.
    pub(super) fn close(&self) {
        self.log.lock().connections -= 1;
    }

    /// Whether nobody has written over the file in its place. It is read anew if it has changed
    /// since the last time, by the log that was written back to it, or by somebody else.
    pub(super) fn is_content(&self, path: &Path, prefix: &Prefix) -> Result<(), StoreError> {
        if self.first.get().is_none() {
            return Ok(());
        }
        let metadata = metadata(path)?;
        let change = (metadata.len(), metadata.modified().ok());
        if *self.verified.lock() == Some(change) {
            return Ok(());
        }
        // A connection without a cache, so that it reads the file. The row never changes, so it is
        // not in the log. By SQLite, since a file that is closed by other means takes the locks of
        // the process along.
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let Ok(fresh) = Connection::open_with_flags(path, flags) else {
            return Ok(());
        };
        // It leaves the log alone, should it be the last one.
        let _ = fresh.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        match schema::identity(&fresh, prefix) {
            Ok(Some(identity)) => self.is_identity(identity)?,
            Ok(None) => return Err(missing()),
            // It is locked, or being written. The next transaction looks again.
            Err(_) => return Ok(()),
        }
        *self.verified.lock() = Some(change);
        Ok(())
    }
}

/// The log and its index beside a file, as they are now.
fn beside(path: &Path) -> Beside {
    ["-wal", "-shm"].map(|end| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        let metadata = std::fs::metadata(PathBuf::from(name)).ok();
        metadata.as_ref().map(id)
    })
}

fn metadata(path: &Path) -> Result<Metadata, StoreError> {
    std::fs::metadata(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => other("is not there any more"),
        _ => StoreError::Unavailable(format!("{path:?}: {error}")),
    })
}

/// The error where the tables are not there any more.
pub(super) fn missing() -> StoreError {
    other("has no tables of timers any more")
}

fn other(what: &str) -> StoreError {
    StoreError::Replaced(format!("the file {what}; {REMEDY}"))
}
