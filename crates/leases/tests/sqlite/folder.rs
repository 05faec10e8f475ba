//! A folder of its own for each test, and the usual calls of a store.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use tourbillon_leases::{
    Acquired, Claim, Destination, Outcome, Released, Renewal, Secret, SqliteStore,
};

use crate::calls::Calls;

/// Nothing that answers takes so long.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const MS: Duration = Duration::from_millis(1);

/// A folder that ends with its test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only the number matters.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("leases-{}-{number}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        // What a process with the same id has left behind.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        Folder(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.join("app.db")
    }

    pub(crate) fn store(&self) -> SqliteStore {
        SqliteStore::open(self.file()).expect("a store")
    }

    /// A connection of a user's, beside those of stores.
    pub(crate) fn plain(&self) -> Connection {
        Connection::open(self.file()).expect("a connection")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn claim<'a>(name: &'a str, owner: &'a str) -> Claim<'a> {
    Claim::new(name, owner, Secret::new(owner), LEASE)
}

/// Takes what has to be free.
#[track_caller]
pub(crate) fn granted(store: &SqliteStore, name: &str, owner: &str) -> u64 {
    match store.acquire(&claim(name, owner), LIMIT) {
        Ok(Acquired::Granted { token, .. }) => token,
        other => panic!("{name} is not granted: {other:?}"),
    }
}

/// Asks for what somebody else has, and returns how long it is held.
#[track_caller]
pub(crate) fn held(store: &SqliteStore, claim: &Claim<'_>) -> Duration {
    match store.acquire(claim, LIMIT) {
        Ok(Acquired::Held { remaining }) => remaining,
        other => panic!("{} is held: {other:?}", claim.name),
    }
}

pub(crate) fn renew(store: &SqliteStore, batch: &[Renewal<'_>]) -> Vec<Outcome> {
    let outcomes = store.renew(Destination::default(), batch, LIMIT);
    outcomes.expect("the file is there")
}

pub(crate) fn release(store: &SqliteStore, name: &str, owner: &str) -> Released {
    let released = store.release(name, Secret::new(owner), LIMIT);
    released.expect("the file is there")
}

/// The number that a query returns.
#[track_caller]
pub(crate) fn number(db: &Connection, sql: &str) -> i64 {
    let number = db.query_row(sql, (), |row| row.get(0));
    number.expect("the statement is good")
}
