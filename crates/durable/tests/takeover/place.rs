//! The store that the processes share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tourbillon_durable::store::{Connection, Store};
use tourbillon_durable::{Sqlite, rusqlite};

#[cfg(feature = "postgres")]
use crate::cluster::{self, Database};

pub(crate) struct Place {
    store: Arc<dyn Store>,
    kind: Kind,
}

enum Kind {
    Sqlite(Folder),
    #[cfg(feature = "postgres")]
    Postgres(Database),
}

/// A folder that ends with its test.
struct Folder(PathBuf);

impl Folder {
    fn file(&self) -> PathBuf {
        self.0.join("timers.db")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Place {
    pub(crate) fn sqlite() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only the number matters.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("takeover-{}-{number}", std::process::id());
        let folder = Folder(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        // What a process with the same id has left behind.
        let _ = std::fs::remove_dir_all(&folder.0);
        std::fs::create_dir_all(&folder.0).expect("a folder");
        Place {
            store: Arc::new(Sqlite::open(folder.file()).expect("a store")),
            kind: Kind::Sqlite(folder),
        }
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn postgres() -> Self {
        let database = cluster::database();
        let store = tourbillon_durable::Postgres::connect(&database.url());
        Place {
            store: Arc::new(store.expect("the cluster answers")),
            kind: Kind::Postgres(database),
        }
    }

    /// What [`Process`](crate::process::Process) opens it by.
    pub(crate) fn task(&self) -> String {
        match &self.kind {
            Kind::Sqlite(folder) => format!("sqlite|{}", folder.file().display()),
            #[cfg(feature = "postgres")]
            Kind::Postgres(database) => format!("postgres|{}", database.url()),
        }
    }

    pub(crate) fn connect(&self) -> Box<dyn Connection> {
        self.store.connect().expect("the store answers")
    }

    /// Does something while no transaction of another process holds a lock that others need.
    pub(crate) fn while_nobody_writes(&self, work: impl FnOnce()) {
        match &self.kind {
            Kind::Sqlite(folder) => {
                let connection = rusqlite::Connection::open(folder.file()).expect("a connection");
                connection
                    .busy_timeout(std::time::Duration::from_secs(60))
                    .expect("set");
                connection.execute_batch("begin immediate").expect("a turn");
                work();
                connection.execute_batch("rollback").expect("undone");
            }
            // Each statement is a transaction, and the server ends it by itself.
            #[cfg(feature = "postgres")]
            Kind::Postgres(_) => work(),
        }
    }
}
