//! How a store is opened, and how long its answer may take.

use std::fmt;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tourbillon_durable::{Durable, Postgres, Sqlite, Store};
use tourbillon_leases::{LeaseStore, Leases, PostgresStore, RedisStore, SqliteStore};

use crate::args::{LocksArgs, StoreArgs};
use crate::failure::Failure;

/// Does what waits for a store, and gives it up after `limit`. A server that accepts a connection and
/// never answers, or a name that nobody looks up, would hold it for longer.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let (sender, answer) = mpsc::channel();
    // It ends with the process.
    let spawned = thread::Builder::new().spawn(move || drop(sender.send(work())));
    spawned.map_err(|error| Failure::Store(format!("a thread could not be started: {error}")))?;
    answer.recv_timeout(limit).unwrap_or_else(|_| {
        Err(Failure::Store(format!(
            "the store did not answer within {limit:?}: is the address right? `--timeout` waits longer"
        )))
    })
}

/// Opens the store of the command line. It makes neither a file nor tables.
pub(crate) fn open(args: &StoreArgs) -> Result<Durable, Failure> {
    let limit = args.timeout;
    let args = args.clone();
    within(limit, move || open_now(&args))
}

fn open_now(args: &StoreArgs) -> Result<Durable, Failure> {
    let store: Box<dyn Store> = match (&args.url, &args.file) {
        (Some(url), None) => {
            let builder = Postgres::builder(url)?.schema(&args.schema);
            let builder = builder
                .statement_limit(args.timeout)
                .scan_limit(args.timeout);
            Box::new(builder.create_tables(false).connect()?)
        }
        (None, Some(file)) => {
            let file = Sqlite::open_existing(file, &args.prefix)?;
            Box::new(file.with_busy_limit(args.timeout))
        }
        _ => {
            return Err(Failure::Usage(
                "which store? Name a SQLite file by --file, or a PostgreSQL server by --url"
                    .to_owned(),
            ));
        }
    };
    Ok(Durable::builder(store).name("tourbillon").start()?)
}

/// Opens the store of locks, if the command line names one. It makes neither a file nor tables.
pub(crate) fn locks(args: &LocksArgs) -> Result<Option<Arc<dyn LeaseStore>>, Failure> {
    let refused = |error: &dyn fmt::Display| Failure::Store(error.to_string());
    let Some(url) = &args.locks else {
        return Ok(None);
    };
    let is_postgres = ["postgres://", "postgresql://"]
        .iter()
        .any(|scheme| url.starts_with(scheme));
    Ok(Some(if let Some(path) = url.strip_prefix("sqlite:") {
        if args.locks_in.is_some() {
            return Err(Failure::Usage(
                "the tables of locks in a SQLite file have one name: leave --locks-in out"
                    .to_owned(),
            ));
        }
        Arc::new(SqliteStore::open_existing(path).map_err(|error| refused(&error))?)
    } else if is_postgres {
        let mut builder = PostgresStore::builder(url).create_tables(false);
        if let Some(schema) = &args.locks_in {
            builder = builder.schema(schema);
        }
        Arc::new(builder.build().map_err(|error| refused(&error))?)
    } else {
        let mut builder = RedisStore::builder(url);
        if let Some(prefix) = &args.locks_in {
            builder = builder.prefix(prefix);
        }
        Arc::new(builder.build().map_err(|error| refused(&error))?)
    }))
}

/// Leases on a store, of which only its locks are asked for.
pub(crate) fn leases(store: Arc<dyn LeaseStore>, timeout: Duration) -> Result<Leases, Failure> {
    // A call to the server takes at most a third of the lease.
    let leases = Leases::builder(store).lease(timeout.max(Duration::from_secs(3)) * 3);
    leases
        .build()
        .map_err(|error| Failure::Store(error.to_string()))
}
