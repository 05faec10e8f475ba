//! The file of a store: how it is opened, and its transactions.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, MAIN_DB, OpenFlags, OptionalExtension, Row, Transaction};
use rusqlite::{TransactionBehavior, TransactionBehavior::Deferred};

use super::clock::{MachineClock, wall};
use super::failure::Failure;
use crate::remote::{ForkSafe, Limit};
use crate::store::StoreError;
use crate::sync::channel::{Receiver, Sender, bounded};
use crate::sync::{ForkOrigin, SQLITE, thread};

/// The version of the tables that this version of the crate makes and knows.
const VERSION: i64 = 1;

/// The first opening of a boot adds this to the last token in the file. The boot before may have
/// granted further tokens that were not on the disk when the machine lost its power.
const TOKENS_OF_A_BOOT: i64 = 1 << 32;

/// How long an opening waits for the lock of the file.
const OPEN_LIMIT: Duration = Duration::from_secs(5);

/// The pause between two attempts to get the lock that another connection holds, at first.
const PAUSE: Duration = Duration::from_micros(500);

/// The greatest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// After this number of short pauses they become longer.
const SHORT_PAUSES: u32 = 40;

/// A file with leases.
pub(super) struct File {
    pub(super) path: PathBuf,
    clock: MachineClock,
    open: ForkSafe<OneByOne<OpenFile>>,
}

impl File {
    /// Opens a file. Creates the file and its tables if they are missing, or fails if
    /// `only_existing`.
    pub(super) fn open(path: &Path, only_existing: bool) -> Result<Self, StoreError> {
        if SQLITE.get_or_init(ForkOrigin::here).is_elsewhere() {
            return Err(StoreError::Forked);
        }
        let path = checked(path, only_existing)?;
        let clock = MachineClock::new()?;
        let opened = OpenFile::open(&path, &clock, only_existing);
        Ok(File {
            open: ForkSafe::new(OneByOne::new(
                opened.map_err(|error| of_file(&path, error))?,
            )),
            path,
            clock,
        })
    }

    /// Runs `work` in a transaction. Its second argument is the time in microseconds, which is read
    /// after the snapshot is taken. An `Immediate` transaction is the only one that writes. It
    /// waits for other writers until the limit.
    pub(super) fn transaction<T>(
        &self,
        behavior: TransactionBehavior,
        limit: Duration,
        mut work: impl FnMut(&Connection, i64) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let (own, limit) = (self.open.get()?, Limit::new(limit));
        let answer = retry(limit, || {
            // It is free between two attempts, so that a caller behind this one has its own limit.
            let mut open = match own.take(limit) {
                Some(open) if !limit.is_near() => open,
                _ => {
                    let why = "the calls before it took all of its time";
                    return Err(StoreError::Unavailable(why.to_owned()).into());
                }
            };
            let transaction = Transaction::new_unchecked(&open.connection, behavior)?;
            if self.clock.last_token(&transaction)? < open.token {
                let why = "an older copy was written over the file while this process uses it: stop all \
                    programs that use it, and follow the documentation of `SqliteStore` on restoring";
                return Err(StoreError::Refused(why.to_owned()).into());
            }
            let answer = work(&transaction, self.clock.now())?;
            let token = self.clock.last_token(&transaction)?;
            // A commit may copy the log to the file. A log that other processes do not use any more
            // would destroy the file.
            open.is_in_place()?;
            transaction.commit()?;
            open.token = token;
            // Otherwise the commit is in a file that no other process reads.
            open.is_in_place()?;
            Ok(answer)
        });
        answer.map_err(|error| of_file(&self.path, error))
    }
}

impl MachineClock {
    /// Returns the last token of a file, if its boot is this one. An older boot has been replaced when
    /// the file was opened.
    fn last_token(&self, db: &Connection) -> Result<i64, Failure> {
        let mut asked = db.prepare_cached("select boot = ?1, token from tourbillon_lease_state")?;
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let why = match asked.query_row([&self.boot], read).optional()? {
            Some((true, token)) => return Ok(token),
            Some((false, _)) => {
                "another machine uses the file too, or a container with a boot of its own: keep the file \
                 on a disk of one machine, and start its programs anew"
            }
            None => "its table tourbillon_lease_state is empty: drop the tables of the leases",
        };
        Err(StoreError::Refused(why.to_owned()).into())
    }
}

/// A connection.
struct OpenFile {
    connection: Connection,
    path: PathBuf,
    /// Where the links of the path lead to. SQLite keeps its log beside that.
    target: PathBuf,
    files: Files,
    /// The last token of the last transaction. A file that has a smaller one is an older copy.
    token: i64,
}

impl OpenFile {
    fn open(path: &Path, clock: &MachineClock, only_existing: bool) -> Result<Self, StoreError> {
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        if !only_existing {
            flags |= OpenFlags::SQLITE_OPEN_CREATE;
        }
        let opened = Connection::open_with_flags(path, flags);
        let connection = opened.map_err(|error| Failure::Sql(error).of_call())?;
        // More than there are, so that each is prepared once.
        connection.set_prepared_statement_cache_capacity(64);
        let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if files(path, &target).has_links {
            return Err(StoreError::Refused(LINKS.to_owned()));
        }
        retry(Limit::new(OPEN_LIMIT), || {
            set_up(&connection, clock, only_existing)
        })?;
        Ok(OpenFile {
            connection,
            files: files(path, &target),
            path: path.to_owned(),
            target,
            token: 0,
        })
    }

    /// Whether the path still leads to the file that was opened, with the log and its index beside
    /// it. Other processes find the leases of no other file.
    fn is_in_place(&self) -> Result<(), StoreError> {
        let files = files(&self.path, &self.target);
        let why = if files == self.files {
            return Ok(());
        } else if files.has_links {
            LINKS
        } else {
            "the file, or its `-wal` or `-shm`, was removed or replaced under this process: put it back, or \
             start all programs that use it anew"
        };
        Err(StoreError::Unavailable(why.to_owned()))
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if self.is_in_place().is_err() {
            // The end of the last connection to a file removes the log at its path, which may be
            // that of another file by now.
            let keep = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
            let _ = self.connection.set_db_config(keep, true);
        }
    }
}

/// Prepares a connection, and the tables. The leases of an earlier boot end here.
fn set_up(db: &Connection, clock: &MachineClock, only_existing: bool) -> Result<(), Failure> {
    // The attempts are made by `retry`.
    db.busy_timeout(Duration::ZERO)?;
    if db.is_readonly(MAIN_DB)? {
        let why = "this process may not write to the file";
        return Err(StoreError::Refused(why.to_owned()).into());
    }
    // This check comes first, so that a file without leases is not changed.
    if only_existing && !has_tables(db)? {
        let why = "the file has no tables of leases: is it the right file?";
        return Err(StoreError::Refused(why.to_owned()).into());
    }
    // Flushes the commit below, which has the new last token at the first opening of a boot.
    db.execute_batch("pragma synchronous = full")?;
    let mode: String = db.query_row("pragma journal_mode = wal", (), |row| row.get(0))?;
    if mode != "wal" {
        return Err(StoreError::Refused(format!(
            "the file system does not let SQLite keep a write-ahead log: it uses {mode:?}"
        ))
        .into());
    }
    // It writes only if it has to, so that an opening seldom waits for others.
    let transaction = Transaction::new_unchecked(db, Deferred)?;
    if !has_tables(&transaction)? {
        transaction.execute_batch(include_str!("tables.sql"))?;
    }
    let asked = "select version, oldest_ok, boot <> ?1 from tourbillon_lease_state";
    let row = transaction.query_row(asked, [&clock.boot], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get::<_, bool>(2)?))
    });
    if let Some((version, oldest_ok, is_another_boot)) = row.optional()? {
        check_version(version, oldest_ok)?;
        if is_another_boot && only_existing {
            let why = "no program has opened the file since this machine started, so all of its locks are \
                over; or it belongs to another machine or to a container with a boot of its own";
            return Err(StoreError::Refused(why.to_owned()).into());
        }
        if is_another_boot {
            // The wall clock lets the tokens of a new file go on where those of a deleted one ended, unless
            // that one has seen many boots.
            let begins = "update tourbillon_lease_state set boot = ?1, token = max(token + ?2, ?3)";
            transaction.execute(begins, (&clock.boot, TOKENS_OF_A_BOOT, wall()))?;
            transaction.execute("delete from tourbillon_lease", ())?;
            transaction.execute("delete from tourbillon_lease_share", ())?;
        }
    }
    clock.last_token(&transaction)?;
    transaction.commit()?;
    if clock.tells_boots() {
        // A lease need not outlive the power of the machine, and the next boot begins beyond the tokens
        // of this one. So commits are not flushed one by one.
        db.execute_batch("pragma synchronous = normal")?;
    }
    Ok(())
}

fn has_tables(db: &Connection) -> rusqlite::Result<bool> {
    let asked = "select exists (select 1 from sqlite_master where name = 'tourbillon_lease_state')";
    db.query_row(asked, (), |row| row.get(0))
}

fn check_version(version: i64, oldest_ok: i64) -> Result<(), StoreError> {
    match oldest_ok > VERSION {
        true => Err(StoreError::Refused(format!(
            "the tables of the leases have the version {version} and admit programs that know version \
             {oldest_ok} or later, and this one knows version {VERSION}: use a newer version of \
             tourbillon-leases"
        ))),
        false => Ok(()),
    }
}

/// Repeats `work` until no other connection blocks it, or until the limit.
fn retry<T>(limit: Limit, mut work: impl FnMut() -> Result<T, Failure>) -> Result<T, StoreError> {
    let mut attempt = 0;
    loop {
        match work() {
            Err(failure) if failure.is_busy() => {
                let pause = PAUSE.saturating_mul(1 + attempt / SHORT_PAUSES);
                thread::sleep(pause.min(LONGEST_PAUSE).min(limit.left()));
                if limit.is_near() {
                    return Err(failure.of_call());
                }
                attempt += 1;
            }
            answer => return answer.map_err(Failure::of_call),
        }
    }
}

/// Returns the absolute path of a file, if leases can be kept there.
fn checked(path: &Path, only_existing: bool) -> Result<PathBuf, StoreError> {
    let text = path.as_os_str().as_encoded_bytes();
    let why = if text.is_empty() || text == b":memory:" {
        "no other process finds a database without a file: name a file, or use `MemoryStore`"
    } else if text.starts_with(b"file:") {
        "it is a URI of SQLite: give the path of the file alone"
    } else if path.is_dir() {
        "it is a folder: name a file"
    } else if only_existing && !path.exists() {
        "there is no such file"
    } else {
        // The file is found even if the process has changed its folder.
        match std::path::absolute(path) {
            Ok(path) if path.parent().is_some_and(Path::is_dir) => return Ok(path),
            _ => "there is no folder for the file: create it",
        }
    };
    Err(of_file(path, StoreError::Refused(why.to_owned())))
}

/// Names the file in an error.
fn of_file(path: &Path, error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable(why) => StoreError::Unavailable(format!("{path:?}: {why}")),
        StoreError::Refused(why) => StoreError::Refused(format!("{path:?}: {why}")),
        error => error,
    }
}

/// Why a file with hard links is not used.
const LINKS: &str = "the file has a second name, a hard link: processes that open it by another name have \
                     another log, and destroy it: remove one of the names";

/// What names a file on this machine, whatever its path.
type FileId = (u64, u64);

/// A file, its log and the index of the log. While a connection is open, SQLite removes none of them.
#[derive(PartialEq)]
struct Files {
    ids: [Option<FileId>; 3],
    /// Whether the file has other names than that of the path.
    has_links: bool,
}

/// Returns the identities of the file, its log and its index as they are now.
fn files(path: &Path, target: &Path) -> Files {
    let files = [(path, ""), (target, "-wal"), (target, "-shm")].map(|(path, end)| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        std::fs::metadata(name).ok()
    });
    Files {
        has_links: files[0].as_ref().is_some_and(has_links),
        ids: files.map(|file| file.as_ref().map(id)),
    }
}

#[cfg(unix)]
fn id(metadata: &std::fs::Metadata) -> FileId {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

#[cfg(unix)]
fn has_links(metadata: &std::fs::Metadata) -> bool {
    std::os::unix::fs::MetadataExt::nlink(metadata) > 1
}

/// Other systems do not let anybody replace a file that is open.
#[cfg(not(unix))]
fn id(_: &std::fs::Metadata) -> FileId {
    (0, 0)
}

#[cfg(not(unix))]
fn has_links(_: &std::fs::Metadata) -> bool {
    false
}

/// A value that one caller has at a time. Others wait no longer than their limits.
struct OneByOne<T> {
    back: Sender<T>,
    next: Receiver<T>,
}

impl<T> OneByOne<T> {
    fn new(value: T) -> Self {
        let (back, next) = bounded(1);
        let _ = back.send(value);
        OneByOne { back, next }
    }

    /// Takes the value, or returns `None` at the limit.
    fn take(&self, limit: Limit) -> Option<Taken<'_, T>> {
        let value = self.next.recv_timeout(limit.left()).ok();
        value.map(|value| Taken(Some(value), &self.back))
    }
}

/// The value, which goes back when this is dropped.
struct Taken<'a, T>(Option<T>, &'a Sender<T>);

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is here until the drop")
    }
}

impl<T> DerefMut for Taken<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("it is here until the drop")
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        // There is room, since it was taken.
        let _ = self.0.take().map(|value| self.1.send(value));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Opens a file in a folder of its own for `test`.
    fn with_file(test: &str, clock: MachineClock, work: impl FnOnce(&File)) {
        let folder = std::env::temp_dir().join(format!("leases-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("app.db");
        let open = OpenFile::open(&path, &clock, false).expect("a file");
        let open = ForkSafe::new(OneByOne::new(open));
        work(&File { path, clock, open });
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn commits_are_flushed_one_by_one_where_a_reboot_cannot_be_told() {
        let synchronous = |file: &File| {
            let asked = file.transaction(Deferred, LIMIT, |db, _| {
                db.query_row("pragma synchronous", (), |row| row.get::<_, i64>(0))
            });
            asked.expect("it answers")
        };
        let (normal, full) = (1, 2);
        with_file("wall", MachineClock::wall(), |file| {
            assert_eq!(synchronous(file), full);
        });
        let machine = MachineClock::new().expect("a clock");
        let expected = if machine.tells_boots() { normal } else { full };
        with_file("boot", machine, |file| {
            assert_eq!(synchronous(file), expected);
        });
    }

    #[test]
    fn a_call_behind_one_that_hangs_ends_at_its_own_limit() {
        with_file("hangs", MachineClock::wall(), |file| {
            let (began, begins) = channel();
            let (end, ends) = channel::<()>();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let answer = file.transaction(Deferred, LIMIT, |_, _| {
                        let _ = began.send(());
                        // As a disk does that does not answer.
                        let _ = ends.recv_timeout(LIMIT / 6);
                        Ok(())
                    });
                    answer.expect("it ends at last");
                });
                begins.recv().expect("it has begun");
                let start = Instant::now();
                let limit = Duration::from_millis(100);
                let answer = file.transaction(Deferred, limit, |_, _| Ok(()));
                assert!(matches!(answer, Err(StoreError::Unavailable(_))));
                assert!(start.elapsed() < LIMIT / 12);
                drop(end);
                file.transaction(Deferred, LIMIT, |_, _| Ok(()))
                    .expect("its turn comes");
            });
        });
    }
}
