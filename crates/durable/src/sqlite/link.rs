//! A connection to the file, and its transactions.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, MAIN_DB, OpenFlags};

use super::failure::{self, Failure};
use super::original::{self, Original};
use super::schema::{self, Migration, Prefix};
use super::tables::Tables;
use super::write_queue::WriteQueue;
use crate::store::{Beats, StoreError, WallClock};
use crate::sync::{Arc, Origin, SQLITE, thread};

/// The state that all connections of one store share.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    /// What the names of the tables begin with.
    pub(super) prefix: Prefix,
    pub(super) clock: WallClock,
    /// How long a call waits for the lock of the file.
    pub(super) busy_limit: Duration,
    /// The file that the first connection opened.
    pub(super) original: Arc<Original>,
    pub(super) beats: Arc<Beats>,
    /// The queue of the writers.
    pub(super) write_queue: Arc<WriteQueue>,
}

/// A connection to the file.
pub(super) struct Link {
    connection: Connection,
    path: PathBuf,
    /// Whether it has the log open, since its first transaction.
    has_log: Cell<bool>,
    shared: Shared,
}

/// The pause between two attempts to get the lock that another process holds, at first.
const POLL: Duration = Duration::from_micros(500);

/// The greatest pause between two attempts.
const LONGEST_POLL: Duration = Duration::from_millis(5);

/// After this number of short pauses they become longer.
const SHORT_POLLS: u32 = 40;

/// How long the lock is left to other processes between two transactions of this one, if they want
/// it. It is longer than the pause between their attempts.
const LEAVE: Duration = Duration::from_micros(700);

/// The number of prepared statements that a connection keeps. There are fewer.
const STATEMENTS: usize = 64;

/// - A commit returns after the file was flushed: WAL with `synchronous = FULL`.
/// - The cache holds the upper pages of the trees of 10 million timers.
/// - The log is copied to the file every 16 MB: with random keys each timer changes a page of its
///   own, and fewer copies write each page less often. The log shrinks to 64 MB when somebody's
///   long read has made it grow.
/// - Sorting never writes files.
const SETTINGS: &str = "
pragma synchronous = full;
pragma cache_size = -16384;
pragma wal_autocheckpoint = 4096;
pragma journal_size_limit = 67108864;
pragma temp_store = memory;
";

/// Returns why this process can't open a file, if it is a copy of one that has opened one.
pub(super) fn refusal() -> Option<StoreError> {
    let is_copy = SQLITE.get().is_some_and(|opened| opened.is_elsewhere());
    is_copy.then_some(StoreError::Forked)
}

/// How long a call waits for the lock of the file, unless an option says otherwise.
pub(super) const BUSY_LIMIT: Duration = Duration::from_secs(5);

/// Whether a file has tables of timers. It is opened for reading alone.
pub(super) fn has_tables(path: &Path, prefix: &Prefix) -> Result<bool, StoreError> {
    if let Some(refusal) = refusal() {
        return Err(refusal);
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(path, flags);
    let opened = opened.map_err(|error| of_file(path, not_opened(path, &error)))?;
    opened
        .busy_timeout(BUSY_LIMIT)
        .and_then(|()| schema::has_tables(&opened, prefix))
        .map_err(|error| of_file(path, failure::before_commit(&error)))
}

impl Link {
    /// Opens the file. With `create` it is created if it is not there.
    pub(super) fn open(path: &Path, create: bool, shared: Shared) -> Result<Self, StoreError> {
        if SQLITE.get_or_init(Origin::here).is_elsewhere() {
            return Err(StoreError::Forked);
        }
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        if create {
            flags |= OpenFlags::SQLITE_OPEN_CREATE;
        }
        // Before SQLite sees it: an end of the connection could remove what lies beside another
        // file.
        let original = &shared.original;
        let is_file = original
            .is_file(path)
            .and_then(|()| original.is_log(path, false))
            .and_then(|()| original.is_content(path, &shared.prefix));
        is_file.map_err(|error| of_file(path, error))?;
        let opened = Connection::open_with_flags(path, flags);
        let connection = opened.map_err(|error| of_file(path, not_opened(path, &error)))?;
        let mut link = Link {
            connection,
            path: path.to_owned(),
            has_log: Cell::new(false),
            shared,
        };
        link.set_up().map_err(|error| of_file(path, error))?;
        if link.shared.original.is_known() {
            link.read(|_| Ok(()))?;
        }
        Ok(link)
    }

    #[cfg(feature = "test-util")]
    pub(super) fn clock(&self) -> &WallClock {
        &self.shared.clock
    }

    pub(super) fn beats(&self) -> &Beats {
        &self.shared.beats
    }

    /// Whether no node of this process has found that the file is older than it was.
    pub(super) fn is_right(&self) -> Result<(), StoreError> {
        self.beats().are_right().map_err(|error| self.named(error))
    }

    /// Names the file in an error.
    pub(super) fn named(&self, error: StoreError) -> StoreError {
        of_file(&self.path, error)
    }

    fn set_up(&mut self) -> Result<(), StoreError> {
        let connection = &self.connection;
        // The attempts are made here, so that their pauses are short and the line is kept.
        connection
            .busy_timeout(Duration::ZERO)
            .and_then(|()| {
                // Without it SQLite compiles a statement anew whenever its limit is bound, since
                // the planner looks at it: 17 µs for each range of a poll.
                connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)
            })
            .map_err(|error| failure::before_commit(&error))?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        let mode: String = self.retry(|connection| {
            connection.execute_batch(SETTINGS)?;
            if connection.is_readonly(MAIN_DB)? {
                return Err(StoreError::Refused(
                    "this process may not write to the file".to_owned(),
                )
                .into());
            }
            let mode = connection.query_row("pragma journal_mode = wal", (), |row| row.get(0));
            Ok(mode?)
        })?;
        if mode != "wal" {
            return Err(StoreError::Refused(format!(
                "the file system does not let SQLite keep a write-ahead log: it uses {mode:?}"
            )));
        }
        Ok(())
    }

    /// Checks the columns, and remembers the file and its tables as those that this store has opened.
    pub(super) fn remember(&mut self) -> Result<(), StoreError> {
        let prefix = &self.shared.prefix;
        let meta = self.retry(|connection| {
            schema::check_columns(connection, prefix)?;
            schema::read(connection, prefix, original::missing)
        })?;
        self.shared.original.remember(&self.path, meta.identity)
    }

    /// Whether the file is still the one that was opened, and nobody has written over it. It is
    /// asked within a transaction, or after one.
    fn is_untouched(&self) -> Result<(), StoreError> {
        let (path, shared) = (&self.path, &self.shared);
        let original = &shared.original;
        original
            .is_file(path)
            .and_then(|()| original.is_log(path, !self.has_log.replace(true)))
            .and_then(|()| original.is_content(path, &shared.prefix))
    }

    /// Creates or migrates the tables.
    pub(super) fn migrate(&mut self, migrations: &[Migration]) -> Result<(), StoreError> {
        let prefix = self.shared.prefix.clone();
        self.write_with(
            |connection, _| schema::migrate(connection, &prefix, migrations),
            &WriteQueue::default(),
        )
        .map_err(Failure::before_commit)
    }

    /// Whether the tables are there, and need no migration.
    pub(super) fn is_current(&mut self) -> Result<bool, StoreError> {
        let prefix = &self.shared.prefix;
        self.retry(|connection| schema::is_current(connection, prefix))
    }

    /// Carries out a transaction that writes. It has the lock of the file before it reads anything,
    /// and is repeated if another connection is in the way all the same.
    pub(super) fn write<T>(
        &mut self,
        work: impl FnMut(&mut Tables<'_>) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        self.try_write(work).map_err(Failure::before_commit)
    }

    /// Carries out `work` for each of the rows, in one transaction that writes. If that fails, and
    /// one of them may be the reason, then halves of them are tried, so that such a row fails
    /// alone.
    pub(super) fn write_rows<I, T>(
        &mut self,
        rows: &[I],
        mut work: impl FnMut(&mut Tables<'_>, &I) -> Result<T, Failure>,
    ) -> Result<Vec<Result<T, StoreError>>, StoreError> {
        let mut answers = Vec::with_capacity(rows.len());
        let mut halves = vec![rows];
        let mut committed = false;
        while let Some(part) = halves.pop() {
            let result = self.try_write(|tables| {
                let each = part.iter().map(|row| work(tables, row));
                each.collect::<Result<Vec<T>, Failure>>()
            });
            match (result, part) {
                (Ok(values), _) => {
                    committed = true;
                    answers.extend(values.into_iter().map(Ok));
                }
                (Err(failure), [_]) if failure.may_be_of_one_row() => {
                    answers.push(Err(failure.before_commit()));
                }
                (Err(failure), _) if failure.may_be_of_one_row() => {
                    let (first, second) = part.split_at(part.len() / 2);
                    halves.extend([second, first]);
                }
                (Err(failure), _) => {
                    let error = failure.before_commit();
                    if !committed {
                        return Err(error);
                    }
                    // The answers so far are those of commits.
                    answers.resize_with(rows.len(), || Err(error.clone()));
                    return Ok(answers);
                }
            }
        }
        Ok(answers)
    }

    pub(super) fn try_write<T>(
        &mut self,
        mut work: impl FnMut(&mut Tables<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let queue = Arc::clone(&self.shared.write_queue);
        let prefix = self.shared.prefix.clone();
        let first = Arc::clone(&self.shared.original);
        self.write_with(
            |connection, clock| {
                let meta = schema::read(connection, &prefix, original::missing)?;
                first.is_identity(meta.identity)?;
                let mut tables = Tables::new(connection, &prefix, &meta, clock.store_time());
                work(&mut tables)
            },
            &queue,
        )
    }

    fn write_with<T>(
        &mut self,
        mut work: impl FnMut(&Connection, &WallClock) -> Result<T, Failure>,
        queue: &WriteQueue,
    ) -> Result<T, Failure> {
        let begun = Instant::now();
        let limit = self.shared.busy_limit;
        let Some(turn) = queue.take(limit) else {
            let why = format!("other connections of this process have held the file for {limit:?}");
            return Err(StoreError::Unavailable(why).into());
        };
        sleep(turn.pause());
        let mut attempt = 0;
        loop {
            match self.write_once(&mut work) {
                Ok(Ok(answer)) => {
                    turn.released(LEAVE);
                    return Ok(answer);
                }
                Ok(Err(error)) => return Err(error),
                Err(busy) if begun.elapsed() >= limit => {
                    return Err(Failure::Sql(busy));
                }
                Err(_) => {
                    turn.met_another();
                    sleep(poll(attempt));
                    attempt += 1;
                }
            }
        }
    }

    /// One attempt. The outer error is that another connection is in the way.
    fn write_once<T>(
        &mut self,
        work: &mut impl FnMut(&Connection, &WallClock) -> Result<T, Failure>,
    ) -> Result<Result<T, Failure>, rusqlite::Error> {
        let connection = &self.connection;
        let done = statement(connection, "begin immediate")
            .map_err(Failure::from)
            .and_then(|()| Ok(self.is_untouched()?))
            .and_then(|()| work(connection, &self.shared.clock));
        let failure = match done {
            Ok(answer) => match statement(connection, "commit") {
                // Else it lies in a file that nobody reads.
                Ok(()) => {
                    let untouched = self.is_untouched();
                    return Ok(untouched
                        .map_err(|error| of_file(&self.path, error).into())
                        .map(|()| answer));
                }
                Err(error) if failure::is_busy(&error) => Failure::Sql(error),
                // A constraint that is checked here: nothing was carried out.
                Err(error) if failure::may_be_of_one_row(&error) => Failure::Sql(error),
                Err(error) => Failure::Store(failure::of_commit(&error)),
            },
            Err(failure) => failure,
        };
        if let Err(error) = self.roll_back() {
            return Ok(Err(error.into()));
        }
        match failure {
            Failure::Sql(error) if failure::is_busy(&error) => Err(error),
            failure => Ok(Err(self.explain(failure))),
        }
    }

    /// Ends the transaction, if SQLite has not ended it already, as it does when the disk is full.
    fn roll_back(&self) -> Result<(), StoreError> {
        if self.connection.is_autocommit() {
            return Ok(());
        }
        statement(&self.connection, "rollback").map_err(|error| {
            // The caller drops the connection, which ends the transaction.
            StoreError::Unavailable(format!("the transaction can't be rolled back: {error}"))
        })
    }

    /// Reads within one transaction: all that `work` reads is of one moment.
    pub(super) fn read<T>(
        &mut self,
        mut work: impl FnMut(&mut Tables<'_>) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let (clock, prefix) = (&self.shared.clock, &self.shared.prefix);
        let answer = self.retry(|connection| {
            statement(connection, "begin")?;
            // The first read takes the snapshot, and the clock comes after it.
            let meta = schema::read(connection, prefix, original::missing)?;
            self.shared.original.is_identity(meta.identity)?;
            self.is_untouched()?;
            work(&mut Tables::new(
                connection,
                prefix,
                &meta,
                clock.store_time(),
            ))
        });
        let ended = self.roll_back();
        let answer = answer?;
        ended?;
        Ok(answer)
    }

    /// Repeats what another connection is in the way of.
    fn retry<T>(
        &self,
        mut work: impl FnMut(&Connection) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let begun = Instant::now();
        let mut attempt = 0;
        loop {
            match work(&self.connection) {
                Ok(answer) => return Ok(answer),
                Err(failure) if failure.is_busy() && begun.elapsed() < self.shared.busy_limit => {
                    self.roll_back()?;
                    sleep(poll(attempt));
                    attempt += 1;
                }
                Err(failure) => return Err(self.explain(failure).before_commit()),
            }
        }
    }

    /// The failure of a call of which nothing was carried out. What becomes of the file may be the
    /// reason.
    fn explain(&self, failure: Failure) -> Failure {
        let failure = match failure {
            Failure::Sql(_) if self.shared.original.is_known() => match self.is_untouched() {
                Err(replaced @ StoreError::Replaced(_)) => Failure::Store(replaced),
                _ => match schema::has_tables(&self.connection, &self.shared.prefix) {
                    Ok(false) => Failure::Store(original::missing()),
                    _ => failure,
                },
            },
            failure => failure,
        };
        match failure {
            Failure::Store(error @ StoreError::Replaced(_)) => of_file(&self.path, error).into(),
            failure => failure,
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.is_untouched().is_err() {
            // The end of the last connection to a file removes the log at its path, which may be
            // that of another file by now.
            let keep = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
            let _ = self.connection.set_db_config(keep, true);
        }
        if self.has_log.get() {
            self.shared.original.close();
        }
    }
}

/// Carries out a statement without parameters.
fn statement(connection: &Connection, sql: &str) -> Result<(), rusqlite::Error> {
    connection.prepare_cached(sql)?.execute(())?;
    Ok(())
}

/// The pause after an attempt.
fn poll(attempt: u32) -> Duration {
    POLL.saturating_mul(1 + attempt / SHORT_POLLS)
        .min(LONGEST_POLL)
}

fn sleep(span: Duration) {
    if !span.is_zero() {
        thread::sleep(span);
    }
}

/// The reason why a file was not opened. SQLite does not say it, so the system is asked again, and
/// the file is not opened for that: its end would take the locks of this process's other
/// connections along.
fn not_opened(path: &Path, error: &rusqlite::Error) -> StoreError {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{Access, access};
        let rights = Access::READ_OK | Access::WRITE_OK;
        if access(path, Access::EXISTS).is_ok()
            && access(path, rights) == Err(rustix::io::Errno::ACCESS)
        {
            return StoreError::Refused("this process may not read and write the file".to_owned());
        }
    }
    let _ = path;
    failure::before_commit(error)
}

/// Names the file in an error of its opening.
fn of_file(path: &Path, error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable(why) => StoreError::Unavailable(format!("{path:?}: {why}")),
        StoreError::Unknown(why) => StoreError::Unknown(format!("{path:?}: {why}")),
        StoreError::Refused(why) => StoreError::Refused(format!("{path:?}: {why}")),
        StoreError::Replaced(why) => StoreError::Replaced(format!("{path:?}: {why}")),
        StoreError::Locked(why) => StoreError::Locked(format!("{path:?}: {why}")),
        StoreError::Forked => StoreError::Forked,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sqlite;
    use super::super::connection::SqliteConnection;
    use super::*;
    use crate::store::{Action, Call, Connection as _, DueAt};

    #[test]
    fn a_file_that_may_not_grow_accepts_all_or_nothing_of_a_batch() {
        let name = format!("tourbillon-pages-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("timers.db");
        let shared = Sqlite::open(&path).expect("a store").shared;
        let link = Link::open(&path, false, shared).expect("a link");
        link.connection
            .execute_batch("pragma max_page_count = 100")
            .expect("set");
        let mut connection = SqliteConnection(link);
        let batch = |number: u32| -> Vec<Call> {
            let call = |part| Call {
                queue: "q".into(),
                key: format!("{number} {part}").into(),
                action: Action::Schedule {
                    when: DueAt::After(Duration::from_secs(60)),
                    payload: format!("{:?}", "x".repeat(1_000)).into(),
                },
            };
            (0..20).map(call).collect()
        };
        let mut accepted = 0;
        let error = loop {
            match connection.write(&batch(accepted)) {
                Ok(answers) => assert!(answers.iter().all(Result::is_ok)),
                Err(error) => break error,
            }
            accepted += 1;
        };
        let full = StoreError::Unavailable(String::new());
        assert_eq!(
            std::mem::discriminant(&error),
            std::mem::discriminant(&full)
        );
        assert!(error.to_string().contains("the disk is full"), "{error}");
        assert!(accepted > 0);
        for number in 0..=accepted {
            for call in batch(number) {
                let found = connection.get("q", &call.key).expect("an answer");
                assert_eq!(found.is_some(), number < accepted);
            }
        }
        // Timers that end make room.
        for call in batch(0) {
            let action = Action::Cancel;
            assert!(connection.write(&[Call { action, ..call }]).is_ok());
        }
        assert!(connection.write(&batch(0)[..5]).is_ok());
        drop(connection);
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
