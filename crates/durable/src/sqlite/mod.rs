//! Timers in a SQLite file.

mod connection;
mod failure;
mod link;
mod original;
mod path;
mod reading;
mod schema;
mod tables;
mod within;
mod write_queue;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use self::connection::SqliteConnection;
use self::link::{BUSY_LIMIT, Link, Shared, has_tables};
use self::schema::Prefix;
use crate::store::{Beats, Connection, DEFAULT, Store, StoreError, WallClock};
use crate::sync::Arc;

/// A store in a file of SQLite.
///
/// Timers lie in tables whose names begin with `tourbillon_`, or with a prefix of the user's choice
/// ([`open_with_prefix`](Sqlite::open_with_prefix)), beside those of the user. So an order and its
/// timer can be committed together: [`in_transaction`](Sqlite::in_transaction). People read them with
/// any tool for SQLite: `select * from tourbillon_timers`.
///
/// # Durability
///
/// A call returns after its commit was flushed to the disk: the file has a write-ahead log, and
/// every connection of the store uses `synchronous = full`. What was accepted survives a crash of
/// the process, of the system, and a loss of power, if the disk flushes what it says it has
/// flushed.
///
/// # Several processes
///
/// Processes of one machine may share the file, each with a `Sqlite` of its own. Within a process,
/// clones of one `Sqlite` should be used: their calls form a queue, so each gets its turn in order.
/// Other processes, and the user's own connections, take turns by trying again each half
/// millisecond, and a process that has met another one leaves the lock free for a moment between
/// its transactions.
///
/// - One transaction writes at a time. A user's transaction that stays open stops all others, the
///   renewals of nodes too. Keep such transactions shorter than a part of the node's lease.
/// - Reads never wait for writes. A read transaction that stays open makes the log beside the file
///   grow until it ends. Afterwards the log shrinks to at most 64 MB.
/// - There is no doorbell between processes. A timer that another process has scheduled, or one
///   that was scheduled in a user's transaction, is found at the next poll of a node: a timer that
///   is due within the time between two polls may be late by that time.
/// - All processes go by the clock of the machine. If it is set back, timers wait for their time
///   once more. None starts before the clock shows its due time.
///
/// # Where the file may lie
///
/// On a disk of this machine. Locks and shared memory do not work between machines, so a network
/// file system is refused where it can be seen: on Linux NFS, SMB, CIFS, AFS, Ceph, Lustre, sshfs
/// and some more. On other systems, and for folders that a virtual machine shares with its host,
/// this is not seen. Copy the file with `sqlite3 FILE ".backup COPY"`, or with the log that lies
/// beside it.
///
/// # A file that is replaced
///
/// Each transaction looks whether the path still leads to the file that was opened. Once another
/// one is there, or none, or one that was emptied, calls fail with [`StoreError::Replaced`], and
/// nodes run nothing. It looks again after its commit. So a call that was answered with `Ok` is in
/// the file that the path led to at that moment. The same holds for the `-wal` and `-shm` beside
/// it. Should the right file come back, calls succeed again. Never copy over the file in its place,
/// by `cp`, while processes use it: only a file with other tables is noticed. A file that is older
/// than it was, with the same tables, is noticed by the next poll of a process with handlers, if it
/// lacks one of the beats of that process. There is one each fifth of the
/// [node lease](crate::DurableBuilder::node_lease).
///
/// # Versions
///
/// [`open`](Sqlite::open) brings the tables to the version of this crate. Processes with the
/// version before go on during a deploy while the new tables admit them, and get a
/// [`StoreError::Refused`] that says so when they do not.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_durable::{Durable, Sqlite};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = std::env::temp_dir().join(format!("sqlite-example-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let path = folder.join("timers.db");
/// let timers = Durable::builder(Sqlite::open(&path)?).start()?;
/// timers.schedule("pay-by", "order:7", Duration::from_secs(60), &7).wait()?;
/// timers.stop(Duration::ZERO).wait()?;
///
/// // The timer is there after a restart.
/// let timers = Durable::builder(Sqlite::open(&path)?).start()?;
/// assert!(timers.get("pay-by", "order:7").wait()?.is_some());
/// # timers.stop(Duration::ZERO).wait()?;
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Sqlite {
    path: PathBuf,
    shared: Shared,
}

impl Sqlite {
    /// Opens a file. It creates the file and the tables of the timers, or brings them to the
    /// version of this crate.
    ///
    /// Its folder must be there. A path that is not absolute begins at the current folder of this
    /// moment.
    ///
    /// # Errors
    ///
    /// - [`StoreError::Refused`]: the path is empty, `:memory:` or a URI; the folder is missing, or
    ///   lies on a network; the file or its folder can't be written, the file is no database, is
    ///   corrupt, or has tables that need a newer version of the crate, or that a version before
    ///   its first release has made.
    /// - [`StoreError::Unavailable`]: others have held the lock of the file for five seconds, or
    ///   the disk is full.
    ///
    /// # Blocking
    ///
    /// It reads and writes the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Sqlite::open_with_prefix(path, DEFAULT)
    }

    /// Opens a file whose tables of timers have names that begin with another word than
    /// `tourbillon`.
    ///
    /// Programs that use one file and know nothing of each other take a prefix each. Otherwise they
    /// share queues by name: each runs the timers of the other one in queues that both have. With
    /// the prefix `shop` the tables are `shop_timer` and so on. They have nothing in common with
    /// those of other prefixes but the lock of the file.
    ///
    /// A prefix has 1 to 48 bytes: the letters a to z, digits and underscores, and no digit in
    /// front.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Sqlite::open), and [`StoreError::Refused`] if the prefix is another one.
    ///
    /// # Blocking
    ///
    /// It reads and writes the file.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::Sqlite;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = std::env::temp_dir().join(format!("sqlite-prefix-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # let path = folder.join("timers.db");
    /// let shop = Sqlite::open_with_prefix(&path, "shop")?;
    /// let mail = Sqlite::open_with_prefix(&path, "mail")?;
    /// # drop((shop, mail));
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_with_prefix(path: impl AsRef<Path>, prefix: &str) -> Result<Self, StoreError> {
        Sqlite::opened(Prefix::new(prefix)?, path::check(path.as_ref())?)
    }

    /// Opens a file that has tables of timers already, for programs that only look after them. It
    /// neither creates a file nor tables; it brings older tables to the version of this crate.
    ///
    /// `prefix` is what the names of the tables begin with: `tourbillon`, unless they were made by
    /// [`open_with_prefix`](Sqlite::open_with_prefix).
    ///
    /// # Errors
    ///
    /// Those of [`open`](Sqlite::open), and [`StoreError::Refused`] if there is no such file, or if it
    /// has no such tables.
    ///
    /// # Blocking
    ///
    /// It reads and writes the file.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::{Sqlite, StoreError};
    ///
    /// let refused = Sqlite::open_existing("no-such-file.db", "tourbillon");
    /// assert!(matches!(refused, Err(StoreError::Refused(_))));
    /// ```
    pub fn open_existing(path: impl AsRef<Path>, prefix: &str) -> Result<Self, StoreError> {
        let prefix = Prefix::new(prefix)?;
        let path = path::check(path.as_ref())?;
        let refuse = |why: &str| {
            let path = path.display();
            Err(StoreError::Refused(format!("{path}: {why}")))
        };
        if !path.exists() {
            return refuse("there is no such file");
        }
        // Before anything else is done to a file that may be somebody else's.
        if !has_tables(&path, &prefix)? {
            let prefix = prefix.name();
            return refuse(&format!(
                "the file has no tables of timers with the prefix {prefix}"
            ));
        }
        Sqlite::opened(prefix, path)
    }

    fn opened(prefix: Prefix, path: PathBuf) -> Result<Self, StoreError> {
        let shared = Shared {
            prefix,
            clock: WallClock::system(),
            busy_limit: BUSY_LIMIT,
            write_queue: Arc::default(),
            original: Arc::default(),
            // Each commit is flushed before it is confirmed, so a process that lives has lost none.
            beats: Arc::new(Beats::new(Duration::ZERO)),
        };
        let mut link = Link::open(&path, true, shared.clone())?;
        if !link.is_current()? {
            link.migrate(schema::MIGRATIONS)?;
        }
        link.remember()?;
        Ok(Sqlite { path, shared })
    }

    /// Sets the store's clock. It is the system's, unless a test sets another one here.
    ///
    /// Calls within a user's transaction ([`in_transaction`](Sqlite::in_transaction)) go by it, too.
    /// The views of the tables show the system's.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use tourbillon_durable::{Durable, Sqlite, WallClock};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = std::env::temp_dir().join(format!("sqlite-clock-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # let path = folder.join("timers.db");
    ///
    /// let clock = WallClock::manual(SystemTime::now());
    /// let store = Sqlite::open(&path)?.with_clock(clock.clone());
    /// let timers = Durable::builder(store).start()?;
    /// timers.schedule("pay-by", "order:7", Duration::from_secs(60), &7).wait()?;
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(timers.counts().wait()?[0].overdue, 1);
    /// # timers.stop(Duration::ZERO).wait()?;
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_clock(mut self, clock: WallClock) -> Self {
        self.shared.clock = clock;
        self
    }

    /// Sets how long a call waits while others hold the lock of the file: five seconds, unless it
    /// is set here. After this time the call fails with [`StoreError::Unavailable`], and was not
    /// carried out.
    ///
    /// It should be less than the lease of the nodes.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon_durable::Sqlite;
    ///
    /// # fn open() -> Result<Sqlite, tourbillon_durable::StoreError> {
    /// Ok(Sqlite::open("shop.db")?.with_busy_limit(Duration::from_secs(2)))
    /// # }
    /// ```
    #[doc(alias = "busy timeout")]
    #[must_use]
    pub fn with_busy_limit(mut self, limit: Duration) -> Self {
        self.shared.busy_limit = limit;
        self
    }

    /// Returns the absolute path of the file.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::Sqlite;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = std::env::temp_dir().join(format!("sqlite-path-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # let path = folder.join("timers.db");
    ///
    /// let store = Sqlite::open(&path)?;
    /// println!("timers are in {}", store.path().display());
    /// assert!(store.path().is_absolute());
    /// # drop(store);
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Store for Sqlite {
    fn connect(&self) -> Result<Box<dyn Connection>, StoreError> {
        let link = Link::open(&self.path, false, self.shared.clone())?;
        Ok(Box::new(SqliteConnection(link)))
    }

    fn refusal(&self) -> Option<StoreError> {
        link::refusal()
    }

    fn namespace(&self) -> &str {
        self.shared.prefix.name()
    }

    fn wall_clock(&self) -> Option<SystemTime> {
        Some(self.shared.clock.now())
    }
}
