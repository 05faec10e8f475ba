//! Timers in a SQLite file.

mod connection;
mod failure;
mod link;
mod place;
mod reading;
mod schema;
mod tables;
mod turn;
mod within;

use std::path::{Path, PathBuf};
use std::time::Duration;

use self::connection::SqliteConnection;
use self::link::{Link, Shared};
use crate::store::{Connection, Store, StoreError};
use crate::sync::Arc;
use crate::time::WallClock;

/// A store in a file of SQLite.
#[derive(Clone, Debug)]
pub struct Sqlite {
    path: PathBuf,
    shared: Shared,
}

/// How long a call waits for the lock of the file, unless an option says otherwise.
const BUSY_LIMIT: Duration = Duration::from_secs(5);

impl Sqlite {
    /// Opens a file, and creates it, its tables, or what a newer version of the crate needs.
    ///
    /// # Errors
    ///
    /// The file can't be used.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = place::check(path.as_ref())?;
        let shared = Shared {
            clock: WallClock::system(),
            busy_limit: BUSY_LIMIT,
            turn: Arc::default(),
        };
        let mut link = Link::open(&path, true, shared.clone())?;
        if !link.is_current()? {
            link.migrate(schema::STEPS)?;
        }
        Ok(Sqlite { path, shared })
    }

    /// Sets the store's clock.
    #[must_use]
    pub fn with_clock(mut self, clock: WallClock) -> Self {
        self.shared.clock = clock;
        self
    }

    /// Sets how long a call waits while others hold the lock of the file.
    #[must_use]
    pub fn with_busy_limit(mut self, limit: Duration) -> Self {
        self.shared.busy_limit = limit;
        self
    }

    /// Returns the absolute path of the file.
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
}
