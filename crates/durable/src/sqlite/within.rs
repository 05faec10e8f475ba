//! Calls within a transaction of the user's: they are committed together with the user's own
//! changes.

use rusqlite::{Connection, MAIN_DB, Transaction, TransactionState};

use super::Sqlite;
use super::connection;
use super::failure::{self, Failure};
use super::original::Original;
use super::schema::{self, Prefix};
use super::tables::Tables;
use crate::calls::{
    CallError, CallWithin, CompleteError, CompletesRun, Completion, InTransaction, Invalid,
    TakesCalls,
};
use crate::store::{Outcome, Settled, Settlement, StoreError, WallClock};

impl Sqlite {
    /// Returns the calls within a transaction on the file of this store: `&tx` of `rusqlite`. An
    /// order and its timer are stored together, or not at all.
    ///
    /// - The transaction should begin with [`Immediate`](rusqlite::TransactionBehavior::Immediate).
    ///   One that has begun as a deferred one and has read is refused, since SQLite would let it
    ///   fail whenever another connection writes.
    /// - The timer is as durable as the commit of the user's connection, whose `pragma synchronous`
    ///   should be `full`, the default.
    /// - While the transaction is open no other connection can write, neither those of nodes. It
    ///   should be short. One that lasts longer than the lease of a node stops its renewals.
    /// - The time is that of the store's clock, which is the system's, as the transaction sees it when
    ///   it has the lock of the file.
    /// - After an error nothing of the call was carried out, and the user decides whether the
    ///   transaction goes on. If SQLite itself has rolled it back, which it does when the disk is
    ///   full, the next call says so.
    ///
    /// [`InTransaction`] has the calls and their errors. [`CallError::Refused`] also means that the
    /// transaction is a deferred one that has read, was rolled back, or belongs to a file without
    /// timers, and [`CallError::Unavailable`] that the file is locked, or the disk is full.
    ///
    /// # Blocking
    ///
    /// A call blocks within an immediate transaction for the time of some reads and writes of
    /// pages. In a deferred one that has not read, it waits until the lock is there, as long as the
    /// connection's [`busy_timeout`](rusqlite::Connection::busy_timeout) says.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use rusqlite::{Connection, TransactionBehavior};
    /// use tourbillon_durable::{Sqlite, rusqlite};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = std::env::temp_dir().join(format!("in-transaction-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # let path = folder.join("shop.db");
    /// let timers = Sqlite::open(&path)?;
    /// let mut shop = Connection::open(&path)?;
    /// shop.execute_batch("create table orders(id integer primary key, state text)")?;
    ///
    /// let tx = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
    /// tx.execute("insert into orders values (7, 'open')", ())?;
    /// timers.in_transaction(&tx).schedule("pay-by", "order:7", Duration::from_secs(900), &7)?;
    /// tx.commit()?;
    /// # drop((timers, shop));
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A transaction on another database is refused by the compiler:
    ///
    /// ```compile_fail,E0277
    /// # use std::time::Duration;
    /// # use tourbillon_durable::Sqlite;
    /// # fn order(timers: &Sqlite, tx: &mut Vec<u8>) {
    /// let _ = timers.in_transaction(tx);
    /// # }
    /// ```
    pub fn in_transaction<X: TakesCalls<Self, D>, D>(
        &self,
        tx: X,
    ) -> InTransaction<'_, Self, X, D> {
        InTransaction::new(self, tx)
    }
}

/// The calls block.
impl TakesCalls<Sqlite> for &Transaction<'_> {
    type Answer<A> = Result<A, CallError>;

    fn call<A: Send + 'static>(
        self,
        store: &Sqlite,
        call: Result<CallWithin<A>, Invalid>,
    ) -> Result<A, CallError> {
        let CallWithin { call, answer } = call?;
        let shared = &store.shared;
        shared.beats.are_right()?;
        let original: Option<&Original> = Some(&shared.original);
        let done = within(self, &shared.prefix, original, &shared.clock, |tables| {
            connection::apply(tables, &call)
        });
        answer(done.map_err(|refused| match refused {
            Refused::Deferred => StoreError::Refused(CompleteError::Deferred.to_string()),
            Refused::Failed(failure) => failure.before_commit(),
        })?)
    }
}

/// A run is ended by the transaction that also has its effect. The file is the one of the timers.
///
/// [`CompleteError::Deferred`] is the answer to a transaction that has begun as a deferred one and
/// has read.
impl CompletesRun for &Transaction<'_> {
    type Answer = Result<(), CompleteError>;

    fn complete(self, run: &Completion<'_>) -> Result<(), CompleteError> {
        let prefix = Prefix::new(run.namespace)?;
        let clock = WallClock::system();
        // A transaction does not know the store, and so not its clock.
        #[cfg(all(feature = "test-util", feature = "sqlite"))]
        let clock = match run.now {
            Some(now) => WallClock::manual(now.into()),
            None => clock,
        };
        let outcome = match run.next() {
            Some(next) => Outcome::Next(Box::new(next)),
            None => Outcome::Done,
        };
        let (epoch, run) = run.parts();
        let settlement = Settlement { run, outcome };
        let settled = within(self, &prefix, None, &clock, |tables| {
            match tables.is_live(epoch)? {
                true => connection::settle_one(tables, &settlement, epoch),
                false => Ok(Settled::Fenced),
            }
        });
        match settled {
            Ok(Settled::Fenced) => Err(CompleteError::Fenced),
            Ok(_) => Ok(()),
            Err(Refused::Deferred) => Err(CompleteError::Deferred),
            Err(Refused::Failed(failure)) if failure.is_busy() => {
                let why = failure.before_commit().to_string();
                Err(CompleteError::Retry(why))
            }
            Err(Refused::Failed(failure)) => Err(CompleteError::Store(failure.before_commit())),
        }
    }
}

/// Why nothing was done in a transaction of the user's.
enum Refused {
    /// It has begun as a deferred one, and has read.
    Deferred,
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for Refused {
    fn from(error: E) -> Self {
        Refused::Failed(error.into())
    }
}

/// Works on the tables of the transaction, which has the lock of the file then.
fn within<T>(
    tx: &Transaction<'_>,
    prefix: &Prefix,
    original: Option<&Original>,
    clock: &WallClock,
    work: impl FnOnce(&mut Tables<'_>) -> Result<T, Failure>,
) -> Result<T, Refused> {
    let connection: &Connection = tx;
    if connection.is_autocommit() {
        // Without this each statement would be a transaction of its own.
        return Err(StoreError::Refused(
            "the transaction has ended: SQLite has rolled it back after an error, or a statement \
             has committed it"
                .to_owned(),
        )
        .into());
    }
    match connection.transaction_state(Some(MAIN_DB))? {
        TransactionState::Write => {}
        TransactionState::None => take_lock(connection, prefix)?,
        _ => return Err(Refused::Deferred),
    }
    let meta = schema::read(connection, prefix, schema::missing)?;
    if let Some(original) = original {
        original.is_identity(meta.identity)?;
    }
    let mut tables = Tables::new(connection, prefix, &meta, clock.store_time());
    Ok(work(&mut tables)?)
}

/// Takes the lock of the file for a transaction that has done nothing yet.
fn take_lock(connection: &Connection, prefix: &Prefix) -> Result<(), Refused> {
    // It changes no row, but SQLite takes the lock before it looks for one.
    let sql = "update tourbillon_meta set version = version where id = 0";
    let locked = connection
        .prepare_cached(&prefix.fill(sql))
        .and_then(|mut statement| statement.execute(()));
    match locked {
        Ok(_) => Ok(()),
        Err(error) if failure::is_busy(&error) || schema::has_tables(connection, prefix)? => {
            Err(error.into())
        }
        Err(_) => Err(schema::missing().into()),
    }
}
