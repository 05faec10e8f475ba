//! Where the timers and their effects are: a SQLite file, or a PostgreSQL server.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use chaos::proxy::{Proxy, Trouble};
use tourbillon_durable::Due;
use tourbillon_durable::store::{Connection, NotificationListener, StoreError, Subscription};

use crate::point::{Fuse, Point};
use crate::postgres::Server;
use crate::sqlite::SqliteFile;

pub(crate) type Fault = Box<dyn Error + Send + Sync>;

/// A connection of the store, and the path that it takes if something can happen to that.
pub(crate) struct Opened {
    pub(crate) connection: Box<dyn Connection>,
    pub(crate) path: Option<Arc<Proxy>>,
}

/// What the rounds need of a database.
pub(crate) trait Database: fmt::Debug + Send + Sync {
    /// Makes the tables, and removes what an earlier run has left.
    fn prepare(&self) -> Result<(), Fault>;

    /// The number of writers of the store.
    fn writers(&self) -> usize;

    /// Opens a connection of the store.
    fn connect(&self) -> Result<Opened, StoreError>;

    /// Listens to the doorbell of the store, if it has one.
    fn listen(&self, listener: NotificationListener) -> Option<Subscription>;

    /// Has the effect of a run, and ends the run in the same commit unless the fence is taken out.
    fn effect(&self, due: &Due<u64>, fuse: &Fuse, is_fenced: bool) -> Result<(), Fault>;

    /// Reads the keys and tokens of all effects.
    fn effects(&self) -> Result<Vec<(String, String)>, Fault>;

    /// Begins a trouble on all paths to the server, or ends it.
    fn trouble(&self, trouble: Option<Trouble>);
}

/// Opens the database of an argument: the URL of a server, or the path of a file.
pub(crate) fn open(argument: &str, point: Point) -> Result<Arc<dyn Database>, Fault> {
    if argument.starts_with("postgres") {
        return Ok(Arc::new(Server::new(argument, point)?));
    }
    Ok(Arc::new(SqliteFile::new(PathBuf::from(argument))))
}
