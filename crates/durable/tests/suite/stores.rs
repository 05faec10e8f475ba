//! The stores that the cases run on.

#[cfg(feature = "postgres")]
use std::sync::LazyLock;
#[cfg(feature = "postgres")]
use std::sync::atomic::{AtomicU32, Ordering};

use tourbillon_durable::Postgres;
#[cfg(feature = "sqlite")]
use tourbillon_durable::Sqlite;
#[cfg(feature = "postgres")]
use tourbillon_durable::store::StoreTime;
use tourbillon_durable::{Memory, WallClock};

use crate::client::Bench;
#[cfg(feature = "sqlite")]
use crate::folder::Folder;

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

#[cfg(feature = "sqlite")]
pub(crate) fn sqlite() -> Bench {
    let folder = Folder::new("suite");
    let clock = clock();
    // With the default prefix it is in the tests of SQLite alone.
    let file = Sqlite::open_with_prefix(folder.path().join("timers.db"), "of_suite");
    let file = file.expect("a new file");
    Bench {
        store: Box::new(file.with_clock(clock.clone())),
        clock: Some(clock),
        _kept: Box::new(folder),
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
