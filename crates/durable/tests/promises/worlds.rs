//! Stores, and a database of effects within each of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tourbillon_durable::store::{Connection, Outcome, Settle, Settled, Settlement, Store};
use tourbillon_durable::{
    CompleteError, CompletesRun, Completion, Due, Durable, DurableBuilder, Memory,
};

/// A store that tests open any number of times, and what is in it beside the timers.
pub(crate) trait World: Clone + Send + Sync + 'static {
    type Store: Store + Clone;

    fn store(&self) -> Self::Store;

    /// Has the effect of a run, and ends the run in the same commit.
    fn effect(&self, due: &Due<()>) -> Result<(), CompleteError>;

    /// Returns how often each key has had its effect.
    fn effects(&self) -> HashMap<String, u32>;

    fn client(&self) -> Durable {
        Durable::builder(self.store()).start().unwrap()
    }

    /// A node with this lease, which polls 20 times a second.
    fn node(&self, node_lease: Duration) -> DurableBuilder {
        let builder = Durable::builder(self.store());
        builder
            .poll_interval(Duration::from_millis(50))
            .node_lease(node_lease)
    }
}

// === memory ===

#[derive(Clone, Default)]
pub(crate) struct MemoryWorld {
    memory: Memory,
    effects: Arc<Mutex<HashMap<String, u32>>>,
}

/// What stands for a transaction here: the lock of the effects is held until the run has ended.
struct Transaction(Box<dyn Connection>);

impl CompletesRun for Transaction {
    type Answer = Result<(), CompleteError>;

    fn complete(mut self, run: &Completion<'_>) -> Result<(), CompleteError> {
        let (epoch, run) = run.parts();
        let settlement = Settlement {
            run,
            outcome: Outcome::Done,
        };
        let settle = Settle {
            epoch,
            settlements: vec![settlement],
        };
        match self.0.settle(&settle)?.remove(0)? {
            Settled::Fenced => Err(CompleteError::Fenced),
            _ => Ok(()),
        }
    }
}

impl World for MemoryWorld {
    type Store = Memory;

    fn store(&self) -> Memory {
        self.memory.clone()
    }

    fn effect(&self, due: &Due<()>) -> Result<(), CompleteError> {
        let mut effects = self.effects.lock().unwrap();
        due.complete_in(Transaction(self.memory.connect()?))?;
        *effects.entry(due.key().to_owned()).or_default() += 1;
        Ok(())
    }

    fn effects(&self) -> HashMap<String, u32> {
        self.effects.lock().unwrap().clone()
    }
}

// === SQLite ===

#[cfg(feature = "sqlite")]
pub(crate) use sqlite::SqliteWorld;

#[cfg(feature = "sqlite")]
mod sqlite {
    use std::collections::HashMap;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::Duration;

    use tourbillon_durable::rusqlite::{Connection, Error, TransactionBehavior};
    use tourbillon_durable::{CompleteError, Due, Sqlite};

    use super::World;
    use crate::folder::Folder;

    #[derive(Clone)]
    pub(crate) struct SqliteWorld(Arc<Folder>);

    impl SqliteWorld {
        pub(crate) fn new() -> Self {
            let world = SqliteWorld(Arc::new(Folder::new("promises")));
            drop(world.store());
            let table = "create table effect(key text not null)";
            world.connect().unwrap().execute(table, []).unwrap();
            world
        }

        fn file(&self) -> PathBuf {
            self.0.path().join("timers.db")
        }

        fn connect(&self) -> Result<Connection, Error> {
            let connection = Connection::open(self.file())?;
            connection.busy_timeout(Duration::from_secs(30))?;
            Ok(connection)
        }
    }

    fn failed(error: &Error) -> CompleteError {
        CompleteError::Retry(error.to_string())
    }

    impl World for SqliteWorld {
        type Store = Sqlite;

        fn store(&self) -> Sqlite {
            Sqlite::open(self.file()).unwrap()
        }

        fn effect(&self, due: &Due<()>) -> Result<(), CompleteError> {
            let mut connection = self.connect().map_err(|error| failed(&error))?;
            let transaction = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(|error| failed(&error))?;
            let insert = "insert into effect(key) values (?1)";
            transaction
                .execute(insert, [due.key()])
                .map_err(|error| failed(&error))?;
            due.complete_in(&transaction)?;
            transaction.commit().map_err(|error| failed(&error))
        }

        fn effects(&self) -> HashMap<String, u32> {
            let connection = self.connect().unwrap();
            let count = "select key, count(*) from effect group by key";
            let mut statement = connection.prepare(count).unwrap();
            let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
            rows.unwrap().map(Result::unwrap).collect()
        }
    }
}

// === PostgreSQL ===

#[cfg(feature = "postgres")]
pub(crate) use postgres::PostgresWorld;

#[cfg(feature = "postgres")]
mod postgres {
    use std::collections::HashMap;
    use std::sync::Arc;

    use postgres::{Client, Error};
    use tourbillon_durable::{CompleteError, Due, Postgres};

    use super::World;
    use crate::cluster::{self, Database};

    #[derive(Clone)]
    pub(crate) struct PostgresWorld(Arc<Database>);

    impl PostgresWorld {
        pub(crate) fn new() -> Self {
            let world = PostgresWorld(Arc::new(cluster::database()));
            drop(world.store());
            let table = "create table effect(key text not null)";
            world.connect().batch_execute(table).unwrap();
            world
        }

        fn connect(&self) -> Client {
            self.0.client()
        }
    }

    fn failed(error: &Error) -> CompleteError {
        CompleteError::Retry(error.to_string())
    }

    impl World for PostgresWorld {
        type Store = Postgres;

        fn store(&self) -> Postgres {
            Postgres::connect(&self.0.url()).unwrap()
        }

        fn effect(&self, due: &Due<()>) -> Result<(), CompleteError> {
            let mut client = self.connect();
            let mut transaction = client.transaction().map_err(|error| failed(&error))?;
            let insert = "insert into effect(key) values ($1)";
            transaction
                .execute(insert, &[&due.key()])
                .map_err(|error| failed(&error))?;
            due.complete_in(&mut transaction)?;
            transaction.commit().map_err(|error| failed(&error))
        }

        fn effects(&self) -> HashMap<String, u32> {
            let count = "select key, count(*) from effect group by key";
            let rows = self.connect().query(count, &[]).unwrap();
            let number = |count: i64| u32::try_from(count).unwrap();
            rows.iter()
                .map(|row| (row.get(0), number(row.get(1))))
                .collect()
        }
    }
}
