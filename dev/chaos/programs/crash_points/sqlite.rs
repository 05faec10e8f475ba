//! Timers and effects in a SQLite file.

use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use chaos::proxy::Trouble;
use tourbillon_durable::rusqlite::{self, TransactionBehavior};
use tourbillon_durable::store::{NotificationListener, Store, StoreError, Subscription};
use tourbillon_durable::{Due, Sqlite};

use crate::database::{Database, Fault, Opened};
use crate::point::{Fuse, Point};

#[derive(Debug)]
pub(crate) struct SqliteFile {
    path: PathBuf,
    store: OnceLock<Sqlite>,
    /// Connections of the handlers that are not in use.
    idle: Mutex<Vec<rusqlite::Connection>>,
}

impl SqliteFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        SqliteFile {
            path,
            store: OnceLock::new(),
            idle: Mutex::default(),
        }
    }

    fn store(&self) -> Result<&Sqlite, StoreError> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let opened = Sqlite::open(&self.path)?;
        Ok(self.store.get_or_init(|| opened))
    }

    fn connection(&self) -> Result<rusqlite::Connection, rusqlite::Error> {
        let idle = self.idle.lock().expect("nothing panics under it").pop();
        if let Some(connection) = idle {
            return Ok(connection);
        }
        let connection = rusqlite::Connection::open(&self.path)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        Ok(connection)
    }
}

impl Database for SqliteFile {
    fn prepare(&self) -> Result<(), Fault> {
        self.store()?;
        let table = "create table effect(key text not null, token text not null)";
        self.connection()?.execute_batch(table)?;
        Ok(())
    }

    fn writers(&self) -> usize {
        1
    }

    fn connect(&self) -> Result<Opened, StoreError> {
        Ok(Opened {
            connection: self.store()?.connect()?,
            path: None,
        })
    }

    fn listen(&self, listener: NotificationListener) -> Option<Subscription> {
        self.store().ok()?.listen(listener)
    }

    fn effect(&self, due: &Due<u64>, fuse: &Fuse, is_fenced: bool) -> Result<(), Fault> {
        let mut connection = self.connection()?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let row = (due.key(), due.token().to_string());
        transaction.execute("insert into effect(key, token) values (?1, ?2)", row)?;
        if is_fenced {
            due.complete_in(&transaction)?;
        }
        fuse.at(Point::BeforeCommit, || ());
        transaction.commit()?;
        fuse.at(Point::AfterCommit, || ());
        let mut idle = self.idle.lock().expect("nothing panics under it");
        idle.push(connection);
        Ok(())
    }

    fn effects(&self) -> Result<Vec<(String, String)>, Fault> {
        let connection = self.connection()?;
        let mut effects = connection.prepare("select key, token from effect")?;
        let rows = effects.query_map((), |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn trouble(&self, _: Option<Trouble>) {
        unreachable!("a file has no path to a server")
    }
}
