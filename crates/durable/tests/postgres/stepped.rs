//! Virtual time on a server: a clock that only the test's schema has.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tourbillon_durable::{Due, Durable, Postgres, RetryPolicy, StartError};

use crate::cluster::{self, Database};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3_600);

type Failed = Box<dyn Error + Send + Sync>;

/// The store of a test, in a schema of its own. Databases are lent to one test after the other.
fn store(database: &Database, schema: &str) -> Postgres {
    psql(database, &format!("drop schema if exists {schema} cascade"));
    let builder = Postgres::builder(&database.url()).expect("a good URL");
    let store = builder.schema(schema).test_clock().connect();
    store.expect("the cluster answers")
}

fn psql(database: &Database, sql: &str) -> String {
    let printed = database.psql(sql);
    printed
        .unwrap_or_else(|error| panic!("{sql}: {error}"))
        .trim()
        .to_owned()
}

/// The handler of a program: the order is cancelled, and the run has ended, in one commit.
fn cancel_unpaid(client: &mut postgres::Client, due: &Due<i64>) -> Result<(), Failed> {
    let mut tx = client.transaction()?;
    let cancel =
        "update test_orders.orders set state = 'cancelled' where id = $1 and state = 'open'";
    tx.execute(cancel, &[due.payload()])?;
    if due.attempt() == 1 && *due.payload() == 9 {
        return Err("the connection was lost".into());
    }
    due.complete_in(&mut tx)?;
    Ok(tx.commit()?)
}

fn states(database: &Database, schema: &str) -> String {
    let each = "string_agg(id || ' ' || state, ', ' order by id)";
    psql(database, &format!("select {each} from {schema}.orders"))
}

/// Leaves the database as it was lent.
fn remove(database: &Database, schema: &str) {
    psql(database, &format!("drop schema {schema} cascade"));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn fifteen_minutes_later_an_order_is_cancelled() {
    let database = Arc::new(cluster::lent());
    let store = store(&database, "test_orders");
    psql(
        &database,
        "create table test_orders.orders (id bigint primary key, state text not null)",
    );
    let shared = Arc::clone(&database);
    let builder = Durable::builder(store.clone())
        .handle("pay-by", move |due: &Due<i64>| {
            cancel_unpaid(&mut shared.client(), due)
        })
        .retry(RetryPolicy::fixed(MINUTE));
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");

    // By a transaction of the program, by a call, and by SQL.
    let mut client = database.client();
    let mut tx = client.transaction().expect("a transaction");
    tx.execute(
        "insert into test_orders.orders values (7, 'open'), (8, 'open'), (9, 'open')",
        &[],
    )
    .expect("new orders");
    let within = store.in_transaction(&mut tx);
    within
        .schedule("pay-by", "order:7", 15 * MINUTE, &7_i64)
        .expect("the store takes it");
    tx.commit().expect("a commit");
    timers
        .schedule("pay-by", "order:8", 15 * MINUTE, &8_i64)
        .wait()
        .expect("the store takes it");
    psql(
        &database,
        "select test_orders.schedule('pay-by', 'order:9', interval '15 min', '9')",
    );
    timers.cancel("pay-by", "order:8").wait().expect("it waits");

    let start = steps.now().wait().expect("the server answers");
    steps
        .advance(15 * MINUTE - Duration::from_micros(1))
        .wait()
        .expect("the server answers");
    assert_eq!(states(&database, "test_orders"), "7 open, 8 open, 9 open");
    steps
        .advance(Duration::from_micros(1))
        .wait()
        .expect("the server answers");
    assert_eq!(
        states(&database, "test_orders"),
        "7 cancelled, 8 open, 9 open"
    );
    assert_eq!(steps.now().wait(), Ok(start + 15 * MINUTE));
    steps.advance(MINUTE).wait().expect("the server answers");
    assert_eq!(
        states(&database, "test_orders"),
        "7 cancelled, 8 open, 9 cancelled"
    );
    let stats = timers.stats();
    assert_eq!((stats.succeeded, stats.failed, stats.fenced), (2, 1, 0));
    assert_eq!(timers.counts().wait().map(|counts| counts.len()), Ok(0));
    drop(timers);
    remove(&database, "test_orders");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn only_the_schema_of_the_test_has_the_clock() {
    let database = cluster::lent();
    let store = store(&database, "test_clocks");
    let builder = Durable::builder(store).handle("q", |_: &Due<i64>| ());
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    steps.advance(400 * DAY).wait().expect("the server answers");
    timers
        .schedule("q", "a", DAY, &1_i64)
        .wait()
        .expect("the store takes it");
    // The views and the functions of the schema go by it.
    let view = "select state from test_clocks.timers";
    assert_eq!(psql(&database, view), "waiting");
    steps.advance(DAY).wait().expect("the server answers");
    assert_eq!(timers.stats().succeeded, 1);
    steps
        .jump_to(SystemTime::UNIX_EPOCH + DAY)
        .wait()
        .expect("the server answers");
    timers
        .schedule("q", "a", DAY, &1_i64)
        .wait()
        .expect("the store takes it");
    steps.advance(DAY).wait().expect("the server answers");
    assert_eq!(timers.stats().succeeded, 2);

    // Those beside it are as they were.
    let production = Durable::builder(Postgres::connect(&database.url()).expect("it answers"));
    let production = production.handle("q", |_: &Due<i64>| ());
    let refused = production.start_stepped();
    let Err(StartError::Store(error)) = refused else {
        panic!("{refused:?}");
    };
    assert!(error.to_string().contains("test_clock"), "{error}");
    let named = "select count(*) from pg_proc p join pg_namespace n on n.oid = p.pronamespace \
                 where n.nspname = 'tourbillon' and p.prosrc like '%test_time%'";
    assert_eq!(psql(&database, named), "0");
    let of_test = named.replace("'tourbillon'", "'test_clocks'");
    assert_ne!(psql(&database, &of_test), "0");
    let left = of_test.replace("test_time", "clock_timestamp");
    assert_eq!(psql(&database, &left), "0");
    // A schema that goes by the server's clock is not given another one.
    let refused = Postgres::builder(&database.url()).expect("a good URL");
    let refused = refused
        .test_clock()
        .connect()
        .expect_err("it has no such clock");
    assert!(refused.to_string().contains("the test's own"), "{refused}");
    drop(timers);
    remove(&database, "test_clocks");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn steps_can_be_awaited_on_the_runtime_of_the_handlers() {
    let database = cluster::lent();
    let store = store(&database, "test_futures");
    psql(
        &database,
        "create table test_futures.orders (id bigint primary key, state text not null)",
    );
    psql(
        &database,
        "insert into test_futures.orders values (7, 'open')",
    );
    let url = database.url();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let handler = move |due: Due<i64>| {
            let url = url.clone();
            async move {
                let (mut client, connection) =
                    tourbillon_durable::tokio_postgres::connect(&url, postgres::NoTls).await?;
                let driver = tokio::spawn(connection);
                let tx = client.transaction().await?;
                let cancel = "update test_futures.orders set state = 'cancelled' where id = $1";
                tx.execute(cancel, &[due.payload()]).await?;
                due.complete_in(&tx).await?;
                tx.commit().await?;
                drop(client);
                driver.await??;
                Ok::<_, Failed>(())
            }
        };
        let runtime = tokio::runtime::Handle::current();
        let builder = Durable::builder(store).handle_tokio("pay-by", runtime, handler);
        let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
        let sent = timers.schedule("pay-by", "order:7", 15 * MINUTE, &7_i64);
        sent.await.expect("the store takes it");
        steps
            .advance(15 * MINUTE)
            .await
            .expect("the server answers");
        assert_eq!(states(&database, "test_futures"), "7 cancelled");
        assert_eq!(timers.stats().succeeded, 1);
        let report = timers.stop(Duration::ZERO).await.expect("it stops");
        assert!(report.has_left);
    });
    remove(&database, "test_futures");
}

#[test]
#[cfg(feature = "cron")]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_schedule_goes_by_the_clock_of_the_test() {
    use tourbillon_durable::Cron;

    let database = cluster::lent();
    let (told, seen) = std::sync::mpsc::channel();
    let builder = Durable::builder(store(&database, "test_cron"))
        .handle("invoices", move |due: &Due<()>| {
            told.send(due.scheduled_for()).expect("the test listens");
        })
        .cron(
            "daily",
            Cron::new("0 6 * * *", "UTC").expect("it is good"),
            &(),
        );
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    steps.advance(DAY * 400).wait().expect("the server answers");
    let days: Vec<SystemTime> = seen.try_iter().collect();
    assert_eq!(days.len(), 400);
    assert!(days.windows(2).all(|pair| pair[1] == pair[0] + DAY));
    drop((timers, steps));
    remove(&database, "test_cron");
}
