//! PgBouncer between the driver and the server.

use chaos::servers::pgbouncer::Pooler;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection};
use tourbillon_durable_sqlx as _;

use crate::{MINUTE, bench, keys, on_one_thread};

/// In this mode a session of the server goes to another client after each transaction, so no
/// prepared statement is there in the next one. The store itself goes to the server.
#[test]
#[cfg_attr(
    not(all(has_postgres, has_pgbouncer)),
    ignore = "needs: apt-get install postgresql pgbouncer"
)]
fn a_pooler_may_give_each_transaction_another_session() {
    let (database, store) = bench();
    let more = "server_round_robin = 1\nignore_startup_parameters = extra_float_digits";
    let pooler = Pooler::start(&database, "transaction", more);
    on_one_thread(async {
        // One after another, so that both have the same session.
        for key in ["one", "other"] {
            let connected = PgConnection::connect(&pooler.url(&database)).await;
            let mut connection = connected.expect("the pooler answers");
            let mut tx = connection.begin().await.expect("it begins");
            let scheduled = store
                .in_transaction(&mut *tx)
                .schedule("q", key, MINUTE, &0);
            scheduled.await.expect("it is accepted");
            tx.commit().await.expect("it ends");
        }
        let pool = PgPoolOptions::new().max_connections(4);
        let pool = pool.connect(&pooler.url(&database)).await;
        let pool = pool.expect("the pooler answers");
        for round in 0..3 {
            // All at one time, so that each has a session of its own.
            let mut open = Vec::new();
            for number in 0..4 {
                let mut tx = pool.begin().await.expect("it begins");
                let key = format!("{round}{number}");
                for key in [&key, "same"] {
                    let (queue, key) = (format!("q{number}"), key);
                    let scheduled = store
                        .in_transaction(&mut *tx)
                        .schedule(&queue, key, MINUTE, &number);
                    scheduled.await.expect("it is accepted");
                }
                let cancelled = store
                    .in_transaction(&mut *tx)
                    .cancel(&format!("q{number}"), "same");
                assert!(cancelled.await.expect("it is accepted").is_cancelled());
                open.push(tx);
            }
            for tx in open.into_iter().rev() {
                tx.commit().await.expect("it ends");
            }
        }
        let mut tx = pool.begin().await.expect("it begins");
        let left: i64 = sqlx::query_scalar("select count(*) from pg_prepared_statements")
            .persistent(false)
            .fetch_one(&mut *tx)
            .await
            .expect("it reads");
        assert_eq!(left, 0);
        drop(tx);
        pool.close().await;
    });
    assert_eq!(
        keys(&database),
        "00 01 02 03 10 11 12 13 20 21 22 23 one other"
    );
}
