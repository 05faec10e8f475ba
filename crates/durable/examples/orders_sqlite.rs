//! Orders that are paid in time or cancelled, with SQLite. The order and its timer are one
//! transaction, and so are the cancellation and the end of its timer.
//!
//! ```sh
//! cargo run --release -p tourbillon-durable --example orders_sqlite
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior::Immediate};
use serde::{Deserialize, Serialize};
use tourbillon_durable::{Due, Durable, Sqlite};

/// Any error that can cross threads, as handlers return it.
type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// What the timer carries. Fields can be added later, with `#[serde(default)]`.
#[derive(Serialize, Deserialize)]
struct PayBy {
    order: i64,
}

const QUEUE: &str = "pay-by";

fn key(order: i64) -> String {
    format!("order:{order}")
}

/// The order and its timer exist both, or neither exists.
fn create_order(timers: &Sqlite, db: &mut Connection, pay_within: Duration) -> Outcome<i64> {
    let tx = db.transaction_with_behavior(Immediate)?;
    tx.execute("insert into orders(state) values ('open')", [])?;
    let order = tx.last_insert_rowid();
    timers
        .in_transaction(&tx)
        .schedule(QUEUE, &key(order), pay_within, &PayBy { order })?;
    tx.commit()?;
    Ok(order)
}

/// Returns whether the payment was in time.
fn pay(timers: &Sqlite, db: &mut Connection, order: i64) -> Outcome<bool> {
    let tx = db.transaction_with_behavior(Immediate)?;
    let sql = "update orders set state = 'paid' where id = ?1 and state = 'open'";
    if tx.execute(sql, [order])? == 0 {
        return Ok(false);
    }
    timers.in_transaction(&tx).cancel(QUEUE, &key(order))?;
    tx.commit()?;
    Ok(true)
}

/// The handler. If the process dies before the commit, the timer runs again; after it, never.
fn cancel_unpaid(db: &Mutex<Connection>, due: &Due<PayBy>) -> Outcome<()> {
    let mut db = db.lock().unwrap_or_else(PoisonError::into_inner);
    let tx = db.transaction_with_behavior(Immediate)?;
    let sql = "update orders set state = 'cancelled' where id = ?1 and state = 'open'";
    tx.execute(sql, [due.payload().order])?;
    due.complete_in(&tx)?;
    tx.commit()?;
    Ok(())
}

fn open(file: &Path) -> Outcome<Connection> {
    let db = Connection::open(file)?;
    // The file has one writer at a time.
    db.busy_timeout(Duration::from_secs(10))?;
    db.execute_batch(
        "create table if not exists orders(id integer primary key, state text not null)",
    )?;
    Ok(db)
}

fn state(db: &Connection, order: i64) -> Outcome<String> {
    Ok(
        db.query_row("select state from orders where id = ?1", [order], |row| {
            row.get(0)
        })?,
    )
}

fn main() -> Outcome<()> {
    let mut out = io::stdout();
    let folder = std::env::temp_dir().join(format!("orders-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let file = folder.join("shop.db");

    let for_handler = Mutex::new(open(&file)?);
    let store = Sqlite::open(&file)?;
    let running = Durable::builder(store.clone())
        .handle(QUEUE, move |due: &Due<PayBy>| {
            cancel_unpaid(&for_handler, due)
        })
        .start()?;

    // The shop. It may be another process, which starts no handler.
    let mut db = open(&file)?;
    let quarter = Duration::from_secs(15 * 60);
    let paid = create_order(&store, &mut db, quarter)?;
    let unpaid = create_order(&store, &mut db, Duration::from_millis(100))?;
    assert!(pay(&store, &mut db, paid)?);
    while state(&db, unpaid)? == "open" {
        thread::sleep(Duration::from_millis(10));
    }
    assert!(!pay(&store, &mut db, unpaid)?, "too late");
    for order in [paid, unpaid] {
        writeln!(out, "order {order} is {}", state(&db, order)?)?;
    }

    running.stop(Duration::from_secs(10)).wait()?; // waits for handlers that run
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
