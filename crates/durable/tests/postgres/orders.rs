//! Orders and their timers in one database: each order is paid or cancelled, and never both.

use std::error::Error;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tourbillon_durable::{CancelAnswer, Due, Durable, Postgres, RetryPolicy};

use crate::cluster::{self, Database};

const ORDERS: i64 = 120;

/// Connections of the program's own.
#[derive(Clone)]
struct Pool {
    database: Arc<cluster::Lent>,
    free: Arc<Mutex<Vec<postgres::Client>>>,
}

impl Pool {
    fn with<T>(&self, work: impl FnOnce(&mut postgres::Client) -> T) -> T {
        let free = self.free.lock().expect("no panic under it").pop();
        let mut client = free.unwrap_or_else(|| self.database.client());
        let value = work(&mut client);
        self.free.lock().expect("no panic under it").push(client);
        value
    }
}

type Failed = Box<dyn Error + Send + Sync>;

/// What the timer of an order does: it cancels the order unless it was paid.
fn expire(pool: &Pool, due: &Due<i64>) -> Result<(), Failed> {
    pool.with(|client| {
        let mut transaction = client.transaction()?;
        transaction.execute(
            "update orders set cancelled = cancelled + 1 where number = $1 and paid = 0",
            &[due.payload()],
        )?;
        // Some transactions are lost on the way: the run is repeated, and has its effect once.
        if due.attempt() == 1 && due.payload() % 5 == 0 {
            transaction.rollback()?;
            return Err("the connection was lost".into());
        }
        due.complete_in(&mut transaction)?;
        transaction.commit()?;
        Ok(())
    })
}

fn node(database: &Database, pool: &Pool, name: &str) -> Durable {
    let store = Postgres::connect(&database.url()).expect("the cluster answers");
    let pool = pool.clone();
    Durable::builder(store)
        .name(name)
        .node_lease(Duration::from_secs(2))
        .poll_interval(Duration::from_millis(50))
        .handle("pay-by", move |due: &Due<i64>| expire(&pool, due))
        .retry(
            RetryPolicy::exponential(Duration::from_millis(1)..=Duration::from_millis(20))
                .attempts(10),
        )
        .start()
        .expect("the node starts")
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn each_order_is_paid_or_cancelled_and_never_both() {
    let database = Arc::new(cluster::lent());
    let tables = "create table if not exists orders (number bigint primary key, paid int not null default 0, \
                  cancelled int not null default 0); truncate orders";
    database.psql(tables).expect("it may");
    let pool = Pool {
        database: Arc::clone(&database),
        free: Arc::default(),
    };
    let store = Postgres::connect(&database.url()).expect("the cluster answers");
    let nodes = ["one", "two"].map(|name| node(&database, &pool, name));
    for number in 0..ORDERS {
        let key = format!("order:{number}");
        pool.with(|client| {
            let mut transaction = client.transaction().expect("it begins");
            transaction
                .execute("insert into orders (number) values ($1)", &[&number])
                .expect("a new number");
            match number % 2 {
                0 => {
                    let delay = Duration::from_millis(u64::try_from(number).expect("a number") % 30);
                    store.in_transaction(&mut transaction).schedule("pay-by", &key, delay, &number)
                        .expect("it is accepted");
                }
                _ => {
                    let sql = "select tourbillon.schedule('pay-by', $1, interval '20 ms', to_jsonb($2::bigint))";
                    transaction.execute(sql, &[&key, &number]).expect("it is accepted");
                }
            }
            transaction.commit().expect("it is committed");
        });
        // Every third one is paid, while its timer may be about to run.
        if number % 3 == 0 {
            pool.with(|client| {
                let mut transaction = client.transaction().expect("it begins");
                let cancelled = store
                    .in_transaction(&mut transaction)
                    .cancel("pay-by", &key);
                match cancelled.expect("it is accepted") {
                    CancelAnswer::Cancelled { .. } => {
                        let paid =
                            "update orders set paid = paid + 1 where number = $1 and cancelled = 0";
                        transaction.execute(paid, &[&number]).expect("it is there");
                        transaction.commit().expect("it is committed");
                    }
                    // Too late: the timer decides.
                    _ => transaction.rollback().expect("it ends"),
                }
            });
        }
    }
    kit::wait::until("no timer is left", || {
        let counts = nodes[0].counts().wait().expect("the store reads");
        counts
            .iter()
            .all(|queue| queue.waiting + queue.overdue + queue.running == 0)
    });
    let count = |what: &str| {
        let count = database.psql(&format!("select count(*) from orders where {what}"));
        count.expect("it reads").parse::<i64>().expect("a number")
    };
    assert_eq!(count("paid + cancelled = 1"), ORDERS);
    assert!(count("paid = 1") > 0 && count("cancelled = 1") > 0);
    for node in nodes {
        node.stop(Duration::from_secs(10)).wait().unwrap();
    }
    let living = database.psql("select count(*) from tourbillon.node where gone is null");
    assert_eq!(living.as_deref(), Ok("0"));
}

/// The example for users, as it is.
#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_example_cancels_what_is_not_paid() {
    let database = cluster::database();
    for run in 1..=2 {
        let output = Command::new(kit::program::example("orders_postgres"))
            .arg(database.url())
            .output()
            .expect("the example is built");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!((output.status.code(), &*err), (Some(0), ""), "run {run}");
        assert_eq!(out, "order 1 is paid\norder 2 is cancelled\n", "run {run}");
    }
    // It has dropped its own schemas, and there were no others.
    let left =
        "select count(*) from pg_namespace where nspname like 'example%' or nspname = 'tourbillon'";
    let left: i64 = database
        .client()
        .query_one(left, &[])
        .expect("an answer")
        .get(0);
    assert_eq!(left, 0);
}
