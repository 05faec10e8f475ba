//! PgBouncer between the crate and the server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use chaos::servers::pgbouncer::Pooler;
use kit::wait;
use tourbillon_durable::store::{Store, StoreError};
use tourbillon_durable::{Due, Durable, Postgres};

use crate::cluster::{self, Database};

/// The settings and prepared statements that other programs meet on each connection of the
/// pool.
fn strangers(pooler: &Pooler, database: &Database) -> Vec<String> {
    // All at one time, so that each has a connection of the server's.
    let mut clients: Vec<_> = (0..5)
        .map(|_| pooler.client(database).expect("the pooler answers"))
        .collect();
    let asked = "begin; select current_setting('search_path') || current_setting('enable_seqscan') \
                 || current_setting('statement_timeout') \
                 || coalesce(current_setting('tourbillon.session', true), '-') \
                 || (select count(*) from pg_prepared_statements) \
                 || (select count(*) from pg_listening_channels())";
    let found = clients.iter_mut().map(|client| {
        let messages = client.simple_query(asked).expect("the pooler answers");
        let row = messages.iter().find_map(|message| match message {
            postgres::SimpleQueryMessage::Row(row) => row.get(0).map(ToOwned::to_owned),
            _ => None,
        });
        row.expect("a row")
    });
    found.collect()
}

/// What a stranger finds on an untouched connection.
const UNTOUCHED: &str = "\"$user\", publicon0-00";

#[test]
#[cfg_attr(
    not(all(has_postgres, has_pgbouncer)),
    ignore = "needs: apt-get install postgresql pgbouncer"
)]
fn a_pool_that_gives_each_session_its_connection_works() {
    for more in ["", "ignore_startup_parameters = options"] {
        let database = cluster::database();
        let pooler = Pooler::start(&database, "session", more);
        let (ran, runs) = mpsc::channel();
        let store = Postgres::builder(&pooler.url(&database)).expect("a URL");
        let store = store.notify(true).connect().expect("the pooler answers");
        let timers = Durable::builder(store)
            .poll_interval(Duration::from_millis(100))
            .handle("q", move |due: &Due<u32>| {
                let _ = ran.send(*due.payload());
            })
            .start()
            .expect("it works");
        for number in 0..20 {
            let key = number.to_string();
            let now = Duration::ZERO;
            timers
                .schedule("q", &key, now, &number)
                .wait()
                .expect("accepted");
        }
        let mut seen: Vec<u32> = (0..20).map(|_| wait::next(&runs)).collect();
        seen.sort_unstable();
        assert_eq!(seen, Vec::from_iter(0..20));
        timers.counts().wait().expect("it reads");
        assert_eq!(timers.stats().store_errors, 0);
        timers.stop(Duration::from_secs(5)).wait().unwrap();
        drop(timers);
        // The pooler resets what a session leaves behind.
        assert!(
            strangers(&pooler, &database)
                .iter()
                .all(|found| found == UNTOUCHED)
        );
    }
}

#[test]
#[cfg_attr(
    not(all(has_postgres, has_pgbouncer)),
    ignore = "needs: apt-get install postgresql pgbouncer"
)]
fn a_pool_that_shares_connections_is_refused_and_nobody_notices() {
    for (mode, more) in [
        ("transaction", ""),
        ("transaction", "ignore_startup_parameters = options"),
        ("transaction", "server_round_robin = 1"),
        ("transaction", "default_pool_size = 1"),
        ("statement", ""),
    ] {
        let database = cluster::database();
        // The tables are there, so that nothing else can be the reason.
        Postgres::connect(&database.url()).expect("the cluster answers");
        let pooler = Pooler::start(&database, mode, more);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Other programs use the pool meanwhile.
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut client = pooler.client(&database).expect("the pooler answers");
                    while !is_over.load(Ordering::Relaxed) {
                        let asked = "select current_setting('search_path')";
                        let row = client.simple_query(asked).expect("it reads");
                        let found = format!("{row:?}");
                        assert!(!found.contains("pg_catalog"), "{found}");
                    }
                });
            }
            for _ in 0..5 {
                let error = Postgres::connect(&pooler.url(&database)).map(drop);
                let error = error.expect_err("it is refused");
                assert!(
                    matches!(&error, StoreError::Refused(why) if why.contains("pool_mode = session")),
                    "{mode} {more}: {error:?}"
                );
            }
            is_over.store(true, Ordering::Relaxed);
        });
        if mode == "transaction" && !more.contains("pool_size") {
            assert!(
                strangers(&pooler, &database)
                    .iter()
                    .all(|found| found == UNTOUCHED)
            );
        }
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_settings_of_a_connection_come_with_its_start() {
    let database = cluster::database();
    let url = format!(
        "{}&options=-c%20geqo%3Doff&application_name=mine",
        database.url()
    );
    let store = Postgres::connect(&url).expect("the cluster answers");
    let mut connection = store.connect().expect("the cluster answers");
    // A function of the schema tells what it was called with.
    let tell = "create table public.told as select name, setting, source from pg_settings where false; \
                create function public.tell() returns trigger language plpgsql as $$ begin \
                insert into public.told select name, setting, source from pg_catalog.pg_settings \
                where name in ('search_path', 'statement_timeout', 'geqo', 'row_security'); return new; end $$; \
                create trigger tell after insert on tourbillon.queue for each row execute function public.tell()";
    database.psql(tell).expect("a superuser");
    connection.set_paused("q", true).expect("it is accepted");
    let told = database.psql("select name, setting, source from public.told order by name");
    assert_eq!(
        told.as_deref(),
        Ok("geqo|off|client\nrow_security|off|client\n\
            search_path|pg_catalog, pg_temp|client\nstatement_timeout|5000|client")
    );
}
