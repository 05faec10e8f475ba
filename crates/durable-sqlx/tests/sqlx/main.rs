//! Calls within transactions of `sqlx`, on a server of the tests' own.

use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tourbillon_durable::Postgres;

#[path = "../../../durable/tests/kit/postgres.rs"]
mod cluster;

mod calls;
mod completing;
mod dropped;
mod pooler;

use cluster::{Database, Lent};

const MINUTE: Duration = Duration::from_secs(60);

/// Each test has a runtime with one thread: a call that blocked it would wait for itself.
fn on_one_thread<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(work)
}

/// A database with empty tables, and a store on it.
fn bench() -> (Lent, Postgres) {
    let database = cluster::lent();
    let store = Postgres::connect(&database.url()).expect("the cluster answers");
    (database, store)
}

async fn connect(database: &Database) -> PgConnection {
    let connected = PgConnection::connect(&database.url()).await;
    connected.expect("the cluster answers")
}

/// The keys of the timers that are committed.
fn keys(database: &Database) -> String {
    let rows = "select string_agg(key, ' ' order by key) from tourbillon.timer";
    database.psql(rows).expect("it reads")
}

/// Waits until a statement waits for a lock.
async fn one_waits(database: &Database) {
    let mut connection = connect(database).await;
    let asked = "select count(*) from pg_stat_activity \
                 where datname = current_database() and wait_event_type = 'Lock'";
    loop {
        let waiting: i64 = sqlx::query_scalar(asked)
            .fetch_one(&mut connection)
            .await
            .expect("it reads");
        if waiting > 0 {
            break;
        }
        tokio::task::yield_now().await;
    }
}
