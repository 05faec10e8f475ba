//! Orders and timers in one SQLite file. This is what a user of durable timers writes.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tourbillon_durable::rusqlite::{self, Connection, Transaction, TransactionBehavior, params};
use tourbillon_durable::{Due, Durable, RetryPolicy, Sqlite};

use crate::database::{
    Audit, Books, Cancellation, Database, Fault, NODE_LEASE, OTHER_WORK, PAY_WITHIN, POLL, PayBy,
    Progress, QUEUE, Shop, key,
};
use crate::worker;

/// Neither journal has a key that would refuse a second entry: it is the timers that keep it out.
const TABLES: &str = "
    create table if not exists orders(id integer primary key, created text default current_timestamp);
    create table if not exists payment(id integer primary key, ordered integer not null);
    create table if not exists cancellation(id integer primary key, ordered integer not null,
        late_us integer not null, attempt integer not null);
    create index if not exists payment_ordered on payment(ordered);
    create index if not exists cancellation_ordered on cancellation(ordered);
";

/// How long a connection waits for the file's one writer.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) sabotage: bool,
}

fn open(path: &Path) -> Result<Connection, Fault> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(PATIENCE)?;
    Ok(connection)
}

/// The timers. They have tables of their own, since the file may have those of another program,
/// whose queue may have the same name.
fn timers(path: &Path) -> Result<Sqlite, Fault> {
    Ok(Sqlite::open_with_prefix(path, "order_timeout")?)
}

/// Begins a transaction that writes. A deferred one could find that others have written since it
/// has read, and would have to be repeated.
fn begin(connection: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate)
}

impl Database for File {
    fn describe(&self) -> String {
        format!("SQLite, {}", self.path.display())
    }

    fn prepare(&self) -> Result<(), Fault> {
        // The first to open the store creates the tables of the timers.
        let timers = Durable::builder(timers(&self.path)?).start()?;
        timers.stop(Duration::ZERO).wait()?;
        open(&self.path)?.execute_batch(TABLES)?;
        Ok(())
    }

    fn shop(&self) -> Result<Box<dyn Shop>, Fault> {
        Ok(Box::new(Counter {
            timers: timers(&self.path)?,
            connection: open(&self.path)?,
            sabotage: self.sabotage,
        }))
    }

    fn books(&self) -> Result<Box<dyn Books>, Fault> {
        let connection = open(&self.path)?;
        let sql = "select coalesce(max(id), 0) from cancellation";
        let seen = connection.query_row(sql, [], |row| row.get(0))?;
        Ok(Box::new(Reader { connection, seen }))
    }

    fn timers(&self) -> Result<Durable, Fault> {
        Ok(Durable::builder(timers(&self.path)?).name("page").start()?)
    }

    fn work(&self, name: &str) -> Result<Durable, Fault> {
        // SQLite has one writer, so one connection is enough for all handlers of a process.
        let connection = Mutex::new(open(&self.path)?);
        let sabotage = self.sabotage;
        let cancel_unpaid = move |due: &Due<PayBy>| -> Result<(), Fault> {
            thread::sleep(OTHER_WORK);
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            let tx = begin(&mut connection)?;
            if sabotage || !is_paid(&tx, due.payload().order)? {
                cancel(&tx, due)?;
            }
            // The run ends in the transaction of its effect: both are committed, or none.
            due.complete_in(&tx)?;
            tx.commit()?;
            Ok(())
        };
        let retry = RetryPolicy::exponential(Duration::from_millis(50)..=Duration::from_secs(2));
        let timers = Durable::builder(timers(&self.path)?)
            .name(name)
            .node_lease(NODE_LEASE)
            .poll_interval(POLL)
            .on_event(|event| worker::note(format!("{event:?}")))
            .handle(QUEUE, cancel_unpaid)
            .running(16)
            .retry(retry)
            .start()?;
        Ok(timers)
    }
}

fn is_paid(tx: &Transaction<'_>, order: i64) -> rusqlite::Result<bool> {
    let sql = "select exists (select 1 from payment where ordered = ?1)";
    tx.query_row(sql, [order], |row| row.get(0))
}

fn is_cancelled(tx: &Transaction<'_>, order: i64) -> rusqlite::Result<bool> {
    let sql = "select exists (select 1 from cancellation where ordered = ?1)";
    tx.query_row(sql, [order], |row| row.get(0))
}

/// Cancels an order. It does not look for an earlier cancellation: a run that has ended never runs
/// again, and a run that was killed has left none.
fn cancel(tx: &Transaction<'_>, due: &Due<PayBy>) -> rusqlite::Result<()> {
    let late = i64::try_from(due.lateness().as_micros()).unwrap_or(i64::MAX);
    let sql = "insert into cancellation(ordered, late_us, attempt) values (?1, ?2, ?3)";
    tx.execute(sql, params![due.payload().order, late, due.attempt()])?;
    Ok(())
}

struct Counter {
    timers: Sqlite,
    connection: Connection,
    sabotage: bool,
}

impl Shop for Counter {
    fn order(&mut self) -> Result<i64, Fault> {
        let tx = begin(&mut self.connection)?;
        tx.execute("insert into orders default values", [])?;
        let order = tx.last_insert_rowid();
        self.timers.in_transaction(&tx).schedule(
            QUEUE,
            &key(order),
            PAY_WITHIN,
            &PayBy { order },
        )?;
        tx.commit()?;
        Ok(order)
    }

    fn pay(&mut self, order: i64) -> Result<bool, Fault> {
        let tx = begin(&mut self.connection)?;
        if !self.sabotage && is_cancelled(&tx, order)? {
            return Ok(false);
        }
        tx.execute("insert into payment(ordered) values (?1)", [order])?;
        if !self.sabotage {
            // A timer that runs already is left to its handler, which sees the payment.
            self.timers.in_transaction(&tx).cancel(QUEUE, &key(order))?;
        }
        tx.commit()?;
        Ok(true)
    }
}

struct Reader {
    connection: Connection,
    /// The last cancellation that was returned.
    seen: i64,
}

impl Books for Reader {
    fn progress(&mut self) -> Result<Progress, Fault> {
        let sql = "select (select count(*) from orders), (select count(*) from payment),
                          (select count(*) from cancellation)";
        let mut progress = self.connection.query_row(sql, [], |row| {
            Ok(Progress {
                orders: row.get(0)?,
                paid: row.get(1)?,
                cancelled: row.get(2)?,
                fresh: Vec::new(),
            })
        })?;
        let sql = "select id, late_us, attempt from cancellation where id > ?1 order by id";
        let mut statement = self.connection.prepare(sql)?;
        let mut rows = statement.query([self.seen])?;
        while let Some(row) = rows.next()? {
            self.seen = row.get(0)?;
            progress.fresh.push(Cancellation {
                lateness: Duration::from_micros(row.get::<_, i64>(1)?.unsigned_abs()),
                attempt: row.get(2)?,
            });
        }
        Ok(progress)
    }

    fn audit(&mut self) -> Result<Audit, Fault> {
        let sql = "
            with ends as (
                select (select count(*) from payment where ordered = orders.id) as paid,
                       (select count(*) from cancellation where ordered = orders.id) as cancelled
                from orders)
            select count(*), coalesce(sum(paid), 0), coalesce(sum(cancelled), 0),
                   coalesce(sum(paid > 0 and cancelled > 0), 0),
                   coalesce(sum(paid = 0 and cancelled = 0), 0),
                   coalesce(sum(max(paid - 1, 0) + max(cancelled - 1, 0)), 0)
            from ends";
        let audit = self.connection.query_row(sql, [], |row| {
            Ok(Audit {
                orders: row.get(0)?,
                paid: row.get(1)?,
                cancelled: row.get(2)?,
                both: row.get(3)?,
                neither: row.get(4)?,
                doubled: row.get(5)?,
            })
        })?;
        Ok(audit)
    }
}
