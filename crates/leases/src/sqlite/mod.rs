//! A store in a SQLite file.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::task::Waker;
use std::time::{Duration, Instant};

use rusqlite::TransactionBehavior::{Deferred, Immediate};

use crate::store::{
    Acquired, BlockingStore, Claim, Destination, Detach, Detached, Holder, Holding, LeaseStore,
    LockPage, LockPaging, Outcome, Released, Renewal, Resume, Resumed, StoreError, StoreFuture,
    WaitQueue, Watch, forward,
};
use crate::sync::unique_number;
use base::{Rows, SHORTEST_INTERVAL};
use file::File;

mod base;
mod clock;
mod failure;
mod file;
mod rows;
mod shares;

/// How long a page may look at rows. Other calls of the store wait meanwhile.
const LONGEST_LOOK: Duration = Duration::from_millis(100);

/// Keeps leases in a SQLite file, for the processes of one machine. Feature `sqlite`.
///
/// The file may be one that the program has anyway, such as that of durable timers. All names of the
/// leases' tables begin with `tourbillon_lease`.
///
/// ```
/// use tourbillon_leases::{Leases, LockError, SqliteStore};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = std::env::temp_dir().join(format!("leases-example-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let path = folder.join("app.db");
/// let leases = Leases::new(SqliteStore::open(&path)?)?;
/// let guard = leases.lock("report").wait()?;
/// // Another process of this machine does the same.
/// let other = Leases::new(SqliteStore::open(&path)?)?;
/// assert!(matches!(other.lock("report").at_once().wait(), Err(LockError::Held { .. })));
/// guard.release().wait()?;
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(())
/// # }
/// ```
///
/// # Clock and boots
///
/// On Linux and Android leases end by [`Clock::boottime`](tourbillon::Clock::boottime). All
/// processes of a machine read this clock, and nobody can set it. The file names the boot of the
/// machine. After a reboot no holder is left, so all leases end at once, and tokens go on growing.
/// All processes must have the same `/proc/sys/kernel/random/boot_id` and the same time namespace.
/// Containers of Docker or Podman on one machine have them. Another time namespace counts as
/// another boot.
///
/// A store can't distinguish a reboot from a program that runs with another boot. **In both cases
/// [`open`](Self::open) takes the file over, and ends all leases.** Holders with the other boot
/// rely on their leases until their next call, which fails. So never share a file between machines,
/// or with a container that has a boot of its own, such as those of systemd-nspawn or LXC.
/// [`open_existing`](Self::open_existing) takes no file over. It fails instead.
///
/// On other platforms leases end by the wall clock, and outlast a reboot. If the wall clock is set
/// forward, leases end early. If it is set back, they last longer.
///
/// # Where the file may lie
///
/// The file must lie on a disk of this machine. **A network file system is not supported**: the
/// locks of SQLite do not work between machines there, and each machine has a boot of its own.
/// `:memory:` is refused: use [`MemoryStore`](crate::MemoryStore).
///
/// If the file, its `-wal` or its `-shm` is removed or replaced while processes use it, all calls
/// of these processes fail. They fail until the same file is put back, or the processes are
/// restarted. A process that opens a store and finds no file creates one, and grants at once. So do
/// not remove the file while another process holds locks.
///
/// **Give the file one name.** SQLite derives the path of the log from the path of the file. So
/// processes that use two names of one file have two logs, and may destroy the file. A file with a
/// hard link is refused. The store can't detect a single file that is mounted into a container, so
/// mount its folder. Symbolic links are followed.
///
/// The file has a write-ahead log. Commits survive a crash of the process. On Linux and Android
/// they are not flushed to the disk one by one, since a crash of the machine ends all leases. On
/// other platforms each commit is flushed.
///
/// # Backups
///
/// Copy the file by `vacuum into 'copy.db'`, or by `.backup` of the program `sqlite3`, which is a process of
/// its own. **In a process that has a store, never open the file, its `-wal` or its `-shm` yourself**, such as
/// by [`File::open`](std::fs::File::open) or [`copy`](std::fs::copy). On Unix closing such a file cancels the
/// locks that SQLite has on it, and two processes may write at once. Connections that the same
/// SQLite library opens do no harm.
///
/// Never write a copy over a file that is in use. A process that has seen a greater token than that
/// of the copy refuses all calls. Another process goes on, and may grant tokens that were granted
/// before. To restore a copy, stop all programs, and run this statement in the copy:
/// `update tourbillon_lease_state set boot = 'restored'`. The next opening then ends all leases,
/// and goes on with greater tokens.
///
/// # Exact fencing
///
/// A lease may end while its holder writes. If the holder writes to the same file, a `select` in
/// the transaction that writes closes this gap:
///
/// ```sql
/// begin immediate;
/// select 1 from tourbillon_lease where name = 'report' and token = 1794844800000000 and secret is not null;
/// update report set state = 'sent' where id = 42;
/// commit;
/// ```
///
/// The values are the name and [`guard.token()`](crate::LeaseGuard::token). If the `select` finds no row,
/// the lock is lost: roll back. If it finds the row, nobody else gets the name before the transaction has
/// ended, even if the lease runs out meanwhile. Such a transaction stops all other writers of the file,
/// also the renewals, so keep it much shorter than the leases.
///
/// For a [read lock](crate::Acquisition::shared) or a [permit](crate::Acquisition::permit_of) the `select` is another
/// one: `select 1 from tourbillon_lease_share where name = 'report' and token = 1794844800000000 and not released`.
///
/// # What is in the file
///
/// The table `tourbillon_lease` has a row for each name that is held. Times are microseconds of the
/// machine's clock. A row whose `ends` has passed counts for nothing. It goes at the next grant of the
/// name, or within the next 1,024 grants.
///
/// | column | what |
/// |---|---|
/// | `mode` | 0 if one holder has it alone. Otherwise its holders are in `tourbillon_lease_share`: -1 readers, `n` permits of `n` |
/// | `owner` | who holds it: the [`instance`](crate::LeasesBuilder::instance), random digits, the process, and the number of the holding. It is for people, and proves nothing. If it ends with ` (released)`, nobody holds the name, but the name [stays locked](crate::Acquisition::at_least). If it is null, nobody holds the name, but the name is reserved for `waiter` |
/// | `secret` | a text by which the holder proves that it holds the name. No call of a store shows it. Everybody who may read the file sees it |
/// | `token` | the token of the grant |
/// | `ends` | when the lease ends unless it is renewed. No lease of a shared name ends later |
/// | `holds`, `data` | how many guards held it at the last renewal, and what the holder [says about itself](crate::LeasesBuilder::holder_data) |
/// | `waiter`, `since` | the store whose caller has waited longest, and since when. If this caller had waited for 20 ms or more at the release, the name is reserved for its store for 25 to 75 ms |
/// | `ticket`, `detached`, `terms` | after a [detach](crate::LeaseGuard::detach): the secret of the ticket until it is used, the length of the lease once it is resumed, and the options of the lock |
///
/// A shared name also has `asker` and `asked`, the store whose caller has asked last for another mode, and when. For
/// 1.5 s nobody joins the holders. For the store `turn` a place of a permit is reserved until `reserved`. The table
/// `tourbillon_lease_share` has a row for each holder, with the [`place`](crate::LeaseGuard::place) of a permit, and
/// `released`: whether the place only [stays taken](crate::Acquisition::at_least).
///
/// These statements take a lock from its holders, who notice that at their next renewal:
/// `delete from tourbillon_lease where name = 'report'; delete from tourbillon_lease_share where name = 'report'`. Do not change `tourbillon_lease_state`,
/// which has the last token, except to [restore](Self#backups) a copy.
///
/// # Waiting
///
/// A release wakes the waiting callers of the same store and its clones. Other stores are not
/// notified. So a waiting caller asks again every 10 ms at first, and every 50 ms after a long
/// wait. That somebody waits for another mode is written ten times a second at most. A longer [`poll`](crate::LeasesBuilder::poll) does not change that.
///
/// An attempt that comes 10 ms or more after the first one only reads while the name is held, with one
/// exception: if the file notes no waiting caller, or one with a shorter wait, the attempt notes its own.
///
/// # Limits and errors
///
/// Of all programs that use the file, only one can write at a time. A call waits for the others
/// until its limit. Calls block, so an awaited call runs on a thread of the store, as in a
/// [`BlockingStore`].
///
/// - [`StoreError::Unavailable`]: another program holds the lock of the file, the disk is full or
///   fails, or the file was removed or replaced. A waiting caller goes on waiting.
/// - [`StoreError::Refused`]: the process has no right to write to the file. Or the file is no
///   database, is corrupt, has tables that need a newer version of this crate, is also used with
///   another boot, had a hard link when it was opened, or was overwritten with an older copy.
///
/// # Forks
///
/// A store belongs to the process that created it. In a forked copy each call fails with
/// [`StoreError::Forked`] at once. If the original had opened a store, or durable timers in a
/// SQLite file, the copy can't open a store either: SQLite would rely on locks that the copy does
/// not have. The store can't detect other uses of SQLite. If the original has used SQLite by other
/// means, do not open a store in the copy. Fork first, or start another program.
///
/// Clones share one store.
#[derive(Clone)]
pub struct SqliteStore(BlockingStore<SqliteLeases>);

/// The store whose calls block.
struct SqliteLeases {
    file: File,
    /// By which the rows know this store.
    own: String,
    wait_queue: WaitQueue,
}

impl SqliteStore {
    /// Opens a file, and creates the file and the tables of the leases if they are missing.
    ///
    /// The folder of the file must exist. A relative path begins at the folder that is current now,
    /// also if the process changes its folder later.
    ///
    /// # Errors
    ///
    /// - [`StoreError::Refused`]: the path is empty, `:memory:` or a URI, or its folder is missing.
    ///   Calls are refused for [other reasons](Self#limits-and-errors), which also hold here.
    /// - [`StoreError::Unavailable`]: other programs have held the lock of the file for five
    ///   seconds, the file can't be opened, or the disk is full.
    /// - [`StoreError::Forked`]: the process is a copy of one that has opened a store, or durable timers
    ///   in a SQLite file.
    ///
    /// # Blocking
    ///
    /// It reads and writes the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::new(path.as_ref(), false)
    }

    /// Opens a file only if it has the tables of leases already. A tool uses this, so that a wrong
    /// path creates no file.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open). Also [`StoreError::Refused`] if there is no such file, if it has no
    /// tables of leases, or if its leases are of [another boot](Self#clock-and-boots). Then no
    /// lease is changed.
    ///
    /// # Blocking
    ///
    /// It reads and writes the file.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{SqliteStore, StoreError};
    ///
    /// let store = SqliteStore::open_existing("no-such-file.db");
    /// assert!(matches!(store, Err(StoreError::Refused(_))));
    /// ```
    pub fn open_existing(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::new(path.as_ref(), true)
    }

    fn new(path: &Path, only_existing: bool) -> Result<Self, StoreError> {
        // The id includes the process id, since a forked copy draws the same random keys.
        let own = RandomState::new().hash_one((std::process::id(), unique_number()));
        Ok(SqliteStore(BlockingStore::new(SqliteLeases {
            file: File::open(path, only_existing)?,
            own: format!("{own:016x}"),
            wait_queue: WaitQueue::default(),
        })))
    }
}

impl SqliteLeases {
    /// Returns the future of a call that writes, which makes it when it is polled. It blocks.
    fn write<'a, T: Send + 'a>(
        &'a self,
        limit: Duration,
        work: impl FnMut(&Rows<'_>) -> rusqlite::Result<T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move { self.transaction(Immediate, limit, work) })
    }

    /// The same for a call that reads, which waits for no writer.
    fn read<'a, T: Send + 'a>(
        &'a self,
        limit: Duration,
        work: impl FnMut(&Rows<'_>) -> rusqlite::Result<T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move { self.transaction(Deferred, limit, work) })
    }

    fn transaction<T>(
        &self,
        behavior: rusqlite::TransactionBehavior,
        limit: Duration,
        mut work: impl FnMut(&Rows<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let own = &self.own;
        self.file
            .transaction(behavior, limit, |db, now| work(&Rows { db, now, own }))
    }
}

impl LeaseStore for SqliteLeases {
    fn can_share(&self) -> bool {
        true
    }

    fn acquire<'a>(
        &'a self,
        _destination: Destination,
        batch: &'a [Claim<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Acquired, StoreError>>> {
        Box::pin(async move {
            let start = Instant::now();
            // A caller that has asked before mostly hears that nothing has changed. A look keeps nobody
            // from writing.
            if let [claim] = batch
                && claim.waits
                && claim.waited >= SHORTEST_INTERVAL
                && claim.has_permits().is_ok()
                && let Some(held) = self.transaction(Deferred, limit, |rows| rows.look(claim))?
            {
                return Ok(vec![Ok(held)]);
            }
            let limit = limit.saturating_sub(start.elapsed());
            let answers = self.transaction(Immediate, limit, |rows| {
                let grant = |claim: &Claim<'_>| match claim.has_permits() {
                    Ok(()) => rows.grant(claim).map(Ok),
                    Err(refused) => Ok(Err(refused)),
                };
                batch
                    .iter()
                    .map(grant)
                    .collect::<rusqlite::Result<Vec<_>>>()
            })?;
            let each = answers.into_iter().zip(batch);
            let answers = each.map(|(answer, claim)| {
                let (acquired, room) = answer?;
                if room {
                    self.wait_queue.released(claim.name);
                }
                Ok(acquired)
            });
            Ok(answers.collect())
        })
    }

    fn leave<'a>(&'a self, name: &'a str, _owner: &'a str, limit: Duration) -> StoreFuture<'a, ()> {
        self.write(limit, |rows| {
            // The name is reserved for this store, and others of this store may still wait for it.
            match self.wait_queue.waits_for(name) {
                true => Ok(()),
                false => rows.leave(name),
            }
        })
    }

    fn renew<'a>(
        &'a self,
        _destination: Destination,
        batch: &'a [Renewal<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Outcome>> {
        self.write(limit, |rows| {
            batch.iter().map(|renewal| rows.renew(renewal)).collect()
        })
    }

    fn release<'a>(
        &'a self,
        _destination: Destination,
        batch: &'a [Holding<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Released, StoreError>>> {
        Box::pin(async move {
            let released = self.transaction(Immediate, limit, |rows| {
                batch
                    .iter()
                    .map(|held| rows.release(held).map(Ok))
                    .collect()
            });
            // Also after an error, since the names may be free all the same.
            for held in batch {
                self.wait_queue.released(held.name);
            }
            released
        })
    }

    fn detach<'a>(&'a self, detach: &'a Detach<'a>, limit: Duration) -> StoreFuture<'a, Detached> {
        self.write(limit, |rows| rows.detach(detach))
    }

    fn resume<'a>(
        &'a self,
        resume: &'a Resume<'a>,
        limit: Duration,
    ) -> StoreFuture<'a, Option<Resumed>> {
        self.write(limit, |rows| rows.resume(resume))
    }

    fn holder_of<'a>(&'a self, name: &'a str, limit: Duration) -> StoreFuture<'a, Option<Holder>> {
        self.read(limit, |rows| rows.holder(name))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        paging: &'a LockPaging,
        limit: Duration,
    ) -> StoreFuture<'a, LockPage> {
        self.read(limit, move |rows| {
            let end = Instant::now() + (limit / 2).min(LONGEST_LOOK);
            rows.page(prefix, paging, end)
        })
    }

    fn watch(&self, name: &str, waker: &Waker) -> Option<Box<dyn Watch>> {
        Some(self.wait_queue.watch(name, waker))
    }
}

forward!([] SqliteStore, BlockingStore<SqliteLeases>, |own, ask| ask(&own.0), |call| call);

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = &self.0.get().file;
        f.debug_struct("SqliteStore")
            .field("path", &file.path)
            .finish_non_exhaustive()
    }
}
