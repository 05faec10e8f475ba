//! Calls within a transaction of the user's: they are committed together with the user's own
//! changes.

use rusqlite::{Connection, MAIN_DB, Transaction, TransactionState};
use serde::Serialize;

use super::Sqlite;
use super::connection;
use super::failure::{self, Failure};
use super::original::Original;
use super::schema::{self, Prefix};
use super::tables::Tables;
use crate::calls::{
    CallError, CancelAnswer, CompleteError, CompletesRun, FromAnswer, IfAbsentAnswer,
    RescheduleAnswer, ScheduleAnswer, names,
};
use crate::store::{
    Action, Call, DueAt, Epoch, Outcome, Run, Settled, Settlement, StoreError, WallClock,
};

/// # Calls within a transaction of the user's
///
/// An order and its timer are stored together, or not at all. The file is the same for both: that
/// of this store.
///
/// These calls take what the same calls of `Durable` take, and answer the same. In addition:
///
/// - The transaction should begin with [`Immediate`](rusqlite::TransactionBehavior::Immediate). One
///   that has begun as a deferred one and has read is refused, since SQLite would let it fail
///   whenever another connection writes.
/// - The timer is there once the transaction commits. It is as durable as the commit of the user's
///   connection, whose `pragma synchronous` should be `full`, the default.
/// - No node is told about the commit. Nodes find the timer at their next poll, so a timer that is
///   due at once may be late by the time between two polls: a second by default.
/// - While the transaction is open no other connection can write, neither those of nodes. It should
///   be short. One that lasts longer than the lease of a node stops its renewals.
/// - The time is that of the system's clock, as the transaction sees it when it has the lock of the
///   file.
/// - The payload has at most 64 KiB as JSON.
/// - After an error nothing of the call was carried out, and the user decides whether the
///   transaction goes on. If SQLite itself has rolled it back, which it does when the disk is full,
///   the next call says so.
impl Sqlite {
    /// Schedules a timer, and replaces one with the same key.
    ///
    /// # Errors
    ///
    /// The arguments are [invalid](CallError::Invalid). The transaction is a deferred one that has
    /// read, was rolled back, or belongs to a file without timers: [`CallError::Refused`]. The file
    /// is locked, or the disk is full: [`CallError::Unavailable`].
    ///
    /// # Blocking
    ///
    /// Within an immediate transaction for the time of some reads and writes of pages. In a
    /// deferred one that has not read, until the lock is there, as long as the connection's
    /// [`busy_timeout`](rusqlite::Connection::busy_timeout) says.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use rusqlite::{Connection, TransactionBehavior};
    /// use tourbillon_durable::{Sqlite, rusqlite};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = std::env::temp_dir().join(format!("schedule-in-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # let path = folder.join("shop.db");
    /// let timers = Sqlite::open(&path)?;
    /// let mut shop = Connection::open(&path)?;
    /// shop.execute_batch("create table orders(id integer primary key, state text)")?;
    ///
    /// let tx = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
    /// tx.execute("insert into orders values (7, 'open')", ())?;
    /// timers.schedule_in(&tx, "pay-by", "order:7", Duration::from_secs(900), &7)?;
    /// tx.commit()?;
    /// # drop((timers, shop));
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn schedule_in<T: Serialize + ?Sized>(
        &self,
        tx: &Transaction<'_>,
        queue: &str,
        key: &str,
        when: impl Into<DueAt>,
        payload: &T,
    ) -> Result<ScheduleAnswer, CallError> {
        schedule(self, tx, queue, key, names::when(when)?, payload)
    }

    /// Schedules a timer, unless one with the same key waits or runs.
    ///
    /// # Errors
    ///
    /// As for [`schedule_in`](Sqlite::schedule_in).
    pub fn schedule_if_absent_in<T: Serialize + ?Sized>(
        &self,
        tx: &Transaction<'_>,
        queue: &str,
        key: &str,
        when: impl Into<DueAt>,
        payload: &T,
    ) -> Result<IfAbsentAnswer, CallError> {
        let when = names::when(when)?;
        let payload = names::payload(payload, names::PAYLOAD_LIMIT)?;
        call(
            self,
            tx,
            queue,
            key,
            Action::ScheduleIfAbsent { when, payload },
        )
    }

    /// Moves a timer, so that it is due then.
    ///
    /// # Errors
    ///
    /// As for [`schedule_in`](Sqlite::schedule_in).
    pub fn reschedule_in(
        &self,
        tx: &Transaction<'_>,
        queue: &str,
        key: &str,
        when: impl Into<DueAt>,
    ) -> Result<RescheduleAnswer, CallError> {
        let when = names::when(when)?;
        call(self, tx, queue, key, Action::Reschedule { when })
    }

    /// Cancels a timer. If it [was cancelled](CancelAnswer::Cancelled) and the transaction commits,
    /// it never starts.
    ///
    /// # Errors
    ///
    /// As for [`schedule_in`](Sqlite::schedule_in).
    pub fn cancel_in(
        &self,
        tx: &Transaction<'_>,
        queue: &str,
        key: &str,
    ) -> Result<CancelAnswer, CallError> {
        call(self, tx, queue, key, Action::Cancel)
    }
}

fn schedule<T: Serialize + ?Sized>(
    store: &Sqlite,
    tx: &Transaction<'_>,
    queue: &str,
    key: &str,
    when: DueAt,
    payload: &T,
) -> Result<ScheduleAnswer, CallError> {
    let payload = names::payload(payload, names::PAYLOAD_LIMIT)?;
    call(store, tx, queue, key, Action::Schedule { when, payload })
}

fn call<A: FromAnswer>(
    store: &Sqlite,
    tx: &Transaction<'_>,
    queue: &str,
    key: &str,
    action: Action,
) -> Result<A, CallError> {
    let call = Call {
        queue: names::queue(queue)?,
        key: names::key(key)?,
        action,
    };
    let shared = &store.shared;
    shared.beats.are_right()?;
    let done = within(tx, &shared.prefix, Some(&shared.original), |tables| {
        connection::apply(tables, &call)
    });
    let answer = done.map_err(|refused| match refused {
        Refused::Deferred => StoreError::Refused(CompleteError::Deferred.to_string()),
        Refused::Failed(failure) => failure.before_commit(),
    })?;
    A::take(answer)
}

/// A run is ended by the transaction that also has its effect. The file is the one of the timers.
///
/// [`CompleteError::Deferred`] is the answer to a transaction that has begun as a deferred one and
/// has read.
impl CompletesRun for &Transaction<'_> {
    fn complete(self, namespace: &str, epoch: Epoch, run: &Run) -> Result<(), CompleteError> {
        let prefix = Prefix::new(namespace)?;
        let settlement = Settlement {
            run: run.clone(),
            outcome: Outcome::Done,
        };
        let settled = within(self, &prefix, None, |tables| {
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
    let mut tables = Tables::new(connection, prefix, &meta, WallClock::system().now());
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
