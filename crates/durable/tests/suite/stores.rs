//! The stores that the cases run on.

#[cfg(feature = "sqlite")]
use std::path::{Path, PathBuf};
#[cfg(feature = "postgres")]
use std::sync::LazyLock;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use std::sync::atomic::{AtomicU32, Ordering};

use tourbillon_durable::Postgres;
#[cfg(feature = "sqlite")]
use tourbillon_durable::Sqlite;
#[cfg(feature = "postgres")]
use tourbillon_durable::store::StoreTime;
use tourbillon_durable::{Memory, WallClock};

use crate::client::Bench;

/// A day of 2026, with microseconds.
fn clock() -> WallClock {
    WallClock::manual(StoreTime::from_micros(1_790_000_000_123_456).into())
}

pub(crate) fn memory() -> Bench {
    let clock = clock();
    Bench {
        store: Box::new(Memory::with_clock(clock.clone())),
        clock: Some(clock),
        _kept: Box::new(()),
    }
}

/// A folder that ends with its case.
#[cfg(feature = "sqlite")]
struct Folder(PathBuf);

#[cfg(feature = "sqlite")]
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(feature = "sqlite")]
pub(crate) fn sqlite() -> Bench {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only the number matters.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("suite-{}-{number}", std::process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // What a process with the same id has left behind.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    let clock = clock();
    // With the default prefix it is in the tests of SQLite alone.
    let file = Sqlite::open_with_prefix(folder.join("timers.db"), "of_suite");
    let file = file.expect("a new file");
    Bench {
        store: Box::new(file.with_clock(clock.clone())),
        clock: Some(clock),
        _kept: Box::new(Folder(folder)),
    }
}

#[cfg(feature = "postgres")]
pub(crate) fn postgres() -> Bench {
    static DATABASE: LazyLock<crate::cluster::Database> = LazyLock::new(crate::cluster::database);
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only the number matters.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // All cases beside each other in one database, each in a schema of its own.
    let store = Postgres::builder(&DATABASE.url());
    let store = store.and_then(|builder| builder.schema(format!("case_{number}")).connect());
    Bench {
        store: Box::new(store.expect("the cluster answers")),
        clock: None,
        _kept: Box::new(()),
    }
}
