//! The same as `sqlite.rs` on a PostgreSQL server, in a schema of its own.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use postgres::{Client, NoTls, Transaction};
use tourbillon_durable::{Due, Durable, Postgres, RetryPolicy};

use crate::database::{
    Audit, Books, Cancellation, Database, Fault, NODE_LEASE, OTHER_WORK, PAY_WITHIN, POLL, PayBy,
    Progress, QUEUE, Shop, key,
};
use crate::worker;

/// The orders and timers of each run are dropped by the next one, and nothing else is.
const TABLES: &str = "
    drop schema if exists order_timeout cascade;
    create schema order_timeout;
    create table order_timeout.orders(
        id bigint primary key generated always as identity, created timestamptz not null default now());
    create table order_timeout.payment(
        id bigint primary key generated always as identity, ordered bigint not null);
    create table order_timeout.cancellation(
        id bigint primary key generated always as identity, ordered bigint not null,
        late_us bigint not null, attempt bigint not null);
    create index on order_timeout.payment(ordered);
    create index on order_timeout.cancellation(ordered);
";

/// The number of connections of the handlers of a worker.
const CONNECTIONS: usize = 4;

pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) sabotage: bool,
}

fn open(url: &str) -> Result<Client, Fault> {
    Ok(Client::connect(url, NoTls)?)
}

/// The timers. They are in the schema of the orders: the database may have those of another
/// program, whose queue may have the same name.
fn timers(url: &str) -> Result<Postgres, Fault> {
    Ok(Postgres::builder(url)?.schema("order_timeout").connect()?)
}

/// Locks an order to the end of the transaction, so that its payment and its cancellation do not
/// overlap.
fn lock(tx: &mut Transaction<'_>, order: i64) -> Result<bool, Fault> {
    let sql = "select 1 from order_timeout.orders where id = $1 for update";
    Ok(tx.query_opt(sql, &[&order])?.is_some())
}

fn is_in(tx: &mut Transaction<'_>, journal: &str, order: i64) -> Result<bool, Fault> {
    let sql = format!("select 1 from order_timeout.{journal} where ordered = $1 limit 1");
    Ok(tx.query_opt(&sql, &[&order])?.is_some())
}

impl Database for Server {
    fn describe(&self) -> String {
        "PostgreSQL".to_owned()
    }

    fn prepare(&self) -> Result<(), Fault> {
        open(&self.url)?.batch_execute(TABLES)?;
        // The first to open the store creates the tables of the timers.
        timers(&self.url)?;
        Ok(())
    }

    fn shop(&self) -> Result<Box<dyn Shop>, Fault> {
        Ok(Box::new(Counter {
            timers: timers(&self.url)?,
            client: open(&self.url)?,
            sabotage: self.sabotage,
        }))
    }

    fn books(&self) -> Result<Box<dyn Books>, Fault> {
        let client = open(&self.url)?;
        Ok(Box::new(Reader { client, seen: 0 }))
    }

    fn timers(&self) -> Result<Durable, Fault> {
        Ok(Durable::builder(timers(&self.url)?).name("page").start()?)
    }

    fn work(&self, name: &str) -> Result<Durable, Fault> {
        let pool: Result<Vec<Client>, Fault> = (0..CONNECTIONS).map(|_| open(&self.url)).collect();
        let pool: Vec<Mutex<Client>> = pool?.into_iter().map(Mutex::new).collect();
        let sabotage = self.sabotage;
        let cancel_unpaid = move |due: &Due<PayBy>| -> Result<(), Fault> {
            thread::sleep(OTHER_WORK);
            let order = due.payload().order;
            let client = &pool[order.unsigned_abs() as usize % CONNECTIONS];
            let mut client = client.lock().unwrap_or_else(PoisonError::into_inner);
            let mut tx = client.transaction()?;
            if lock(&mut tx, order)? && (sabotage || !is_in(&mut tx, "payment", order)?) {
                cancel(&mut tx, due)?;
            }
            due.complete_in(&mut tx)?;
            tx.commit()?;
            Ok(())
        };
        let retry = RetryPolicy::exponential(Duration::from_millis(50)..=Duration::from_secs(2));
        let timers = Durable::builder(timers(&self.url)?)
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

/// Cancels an order. It does not look for an earlier cancellation: see `sqlite.rs`.
fn cancel(tx: &mut Transaction<'_>, due: &Due<PayBy>) -> Result<(), Fault> {
    let late = i64::try_from(due.lateness().as_micros()).unwrap_or(i64::MAX);
    let sql =
        "insert into order_timeout.cancellation(ordered, late_us, attempt) values ($1, $2, $3)";
    let attempt = i64::from(due.attempt());
    tx.execute(sql, &[&due.payload().order, &late, &attempt])?;
    Ok(())
}

struct Counter {
    timers: Postgres,
    client: Client,
    sabotage: bool,
}

impl Shop for Counter {
    fn order(&mut self) -> Result<i64, Fault> {
        let mut tx = self.client.transaction()?;
        let sql = "insert into order_timeout.orders default values returning id";
        let order: i64 = tx.query_one(sql, &[])?.get(0);
        self.timers.in_transaction(&mut tx).schedule(
            QUEUE,
            &key(order),
            PAY_WITHIN,
            &PayBy { order },
        )?;
        tx.commit()?;
        Ok(order)
    }

    fn pay(&mut self, order: i64) -> Result<bool, Fault> {
        let mut tx = self.client.transaction()?;
        lock(&mut tx, order)?;
        if !self.sabotage && is_in(&mut tx, "cancellation", order)? {
            return Ok(false);
        }
        let sql = "insert into order_timeout.payment(ordered) values ($1)";
        tx.execute(sql, &[&order])?;
        if !self.sabotage {
            // A timer that runs already is left to its handler, which sees the payment.
            self.timers
                .in_transaction(&mut tx)
                .cancel(QUEUE, &key(order))?;
        }
        tx.commit()?;
        Ok(true)
    }
}

struct Reader {
    client: Client,
    /// The last cancellation that was returned.
    seen: i64,
}

impl Books for Reader {
    fn progress(&mut self) -> Result<Progress, Fault> {
        let sql = "select (select count(*) from order_timeout.orders),
                          (select count(*) from order_timeout.payment),
                          (select count(*) from order_timeout.cancellation)";
        let row = self.client.query_one(sql, &[])?;
        let mut progress = Progress {
            orders: row.get(0),
            paid: row.get(1),
            cancelled: row.get(2),
            fresh: Vec::new(),
        };
        // Commits may come in another order than the numbers: then the line misses one.
        let sql = "select id, late_us, attempt from order_timeout.cancellation
                   where id > $1 order by id";
        for row in self.client.query(sql, &[&self.seen])? {
            self.seen = row.get(0);
            progress.fresh.push(Cancellation {
                lateness: Duration::from_micros(row.get::<_, i64>(1).unsigned_abs()),
                attempt: u32::try_from(row.get::<_, i64>(2)).unwrap_or(u32::MAX),
            });
        }
        Ok(progress)
    }

    fn audit(&mut self) -> Result<Audit, Fault> {
        let sql = "
            with ends as (
                select (select count(*) from order_timeout.payment where ordered = o.id) as paid,
                       (select count(*) from order_timeout.cancellation where ordered = o.id) as cancelled
                from order_timeout.orders o)
            select count(*), coalesce(sum(paid), 0)::bigint, coalesce(sum(cancelled), 0)::bigint,
                   count(*) filter (where paid > 0 and cancelled > 0),
                   count(*) filter (where paid = 0 and cancelled = 0),
                   coalesce(sum(greatest(paid - 1, 0) + greatest(cancelled - 1, 0)), 0)::bigint
            from ends";
        let row = self.client.query_one(sql, &[])?;
        Ok(Audit {
            orders: row.get(0),
            paid: row.get(1),
            cancelled: row.get(2),
            both: row.get(3),
            neither: row.get(4),
            doubled: row.get(5),
        })
    }
}
