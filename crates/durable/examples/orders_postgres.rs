//! Orders that are paid in time or cancelled, with PostgreSQL and async handlers. It takes the URL
//! of a database, and makes the schemas `example_timers` and `example_shop` there, which it drops
//! at the end.
//!
//! ```sh
//! cargo run --release -p tourbillon-durable --example orders_postgres --features tokio,tokio-postgres \
//!     -- postgres://postgres@localhost/test
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::sync::Mutex;
use tourbillon_durable::tokio_postgres::{self, Client, NoTls};
use tourbillon_durable::{Due, Durable, Postgres};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const QUEUE: &str = "pay-by";

fn key(order: i64) -> String {
    format!("order:{order}")
}

/// The order and its timer exist both, or neither exists.
async fn create_order(timers: &Postgres, db: &mut Client, pay_within: Duration) -> Outcome<i64> {
    let tx = db.transaction().await?;
    let sql = "insert into example_shop.orders(state) values ('open') returning id";
    let order = tx.query_one(sql, &[]).await?.get(0);
    timers
        .in_transaction(&tx)
        .schedule(QUEUE, &key(order), pay_within, &order)
        .await?;
    tx.commit().await?;
    Ok(order)
}

/// Returns whether the payment was in time.
async fn pay(timers: &Postgres, db: &mut Client, order: i64) -> Outcome<bool> {
    let tx = db.transaction().await?;
    let sql = "update example_shop.orders set state = 'paid' where id = $1 and state = 'open'";
    if tx.execute(sql, &[&order]).await? == 0 {
        return Ok(false);
    }
    timers
        .in_transaction(&tx)
        .cancel(QUEUE, &key(order))
        .await?;
    tx.commit().await?;
    Ok(true)
}

/// The handler. If the process dies before the commit, the timer runs again; after it, never.
async fn cancel_unpaid(db: Arc<Mutex<Client>>, due: Due<i64>) -> Outcome<()> {
    let mut db = db.lock().await; // better: a client of a pool
    let tx = db.transaction().await?;
    let sql = "update example_shop.orders set state = 'cancelled' where id = $1 and state = 'open'";
    tx.execute(sql, &[due.payload()]).await?;
    due.complete_in(&tx).await?;
    tx.commit().await?;
    Ok(())
}

async fn connect(url: &str) -> Outcome<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn state(db: &Client, order: i64) -> Outcome<String> {
    let sql = "select state from example_shop.orders where id = $1";
    Ok(db.query_one(sql, &[&order]).await?.get(0))
}

async fn run(url: &str) -> Outcome<()> {
    let mut out = io::stdout();
    let mut db = connect(url).await?;
    db.batch_execute(
        "create schema example_shop;
         create table example_shop.orders(
             id bigint generated always as identity primary key, state text not null)",
    )
    .await?;

    let for_handler = Arc::new(Mutex::new(connect(url).await?));
    let store = Postgres::builder(url)?.schema("example_timers").connect()?;
    let running = Durable::builder(store.clone())
        .handle_tokio(QUEUE, Handle::current(), move |due: Due<i64>| {
            cancel_unpaid(Arc::clone(&for_handler), due)
        })
        .start()?;

    let quarter = Duration::from_secs(15 * 60);
    let paid = create_order(&store, &mut db, quarter).await?;
    let unpaid = create_order(&store, &mut db, Duration::from_millis(100)).await?;
    assert!(pay(&store, &mut db, paid).await?);
    while state(&db, unpaid).await? == "open" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!pay(&store, &mut db, unpaid).await?, "too late");
    for order in [paid, unpaid] {
        writeln!(out, "order {order} is {}", state(&db, order).await?)?;
    }

    running.stop(Duration::from_secs(10)).await?;
    db.batch_execute("drop schema example_shop cascade; drop schema example_timers cascade")
        .await?;
    Ok(())
}

fn main() -> Outcome<()> {
    let url = std::env::args()
        .nth(1)
        .ok_or("usage: orders_postgres URL")?;
    runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?
        .block_on(run(&url))
}
