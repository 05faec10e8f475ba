//! URLs with several hosts.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use tourbillon_durable::Postgres;
use tourbillon_durable::store::{Connection, Epoch, Store, StoreError};

use crate::cluster::{self, Cluster, Database};

/// A port that accepts connections and says nothing.
pub(crate) fn silent() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

/// The URL of a host that is tried before that of the database.
fn after(port: u16, database: &Database, more: &str) -> String {
    let (own, name) = (database.port(), database.name());
    format!("postgres://postgres@127.0.0.1:{port},127.0.0.1:{own}/{name}?connect_timeout=1{more}")
}

fn works(connection: &mut dyn Connection) {
    let beat = connection.beat(Epoch(1)).expect("the store answers");
    assert_eq!(beat, None, "it has no such node");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_host_that_never_answers_does_not_hide_the_next_one_whatever_the_statement_limit() {
    let database = cluster::lent();
    let (_listener, port) = silent();
    let builder = Postgres::builder(&after(port, &database, "")).expect("a URL");
    let start = Instant::now();
    // Less than the time for the first host.
    let store = builder
        .statement_limit(Duration::from_millis(500))
        .connect()
        .expect("the second host answers");
    let mut connection = store.connect().expect("the second host answers");
    works(&mut *connection);
    let ended = format!(
        "select count(pg_terminate_backend(pid, 10000)) from pg_stat_activity \
         where datname = '{}' and application_name = 'tourbillon'",
        database.name()
    );
    assert_eq!(database.psql(&ended).as_deref(), Ok("1"));
    works(&mut *connection);
    // Three connections, with a second for the first host each.
    assert!((3..45).contains(&start.elapsed().as_secs()));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_host_that_refuses_is_passed_over() {
    let database = cluster::lent();
    let (listener, port) = silent();
    drop(listener);
    let store = Postgres::connect(&after(port, &database, "")).expect("the second host answers");
    works(&mut *store.connect().expect("the second host answers"));
}

#[test]
fn if_no_host_answers_the_error_names_them_all() {
    let ((_silent, first), (refusing, second)) = (silent(), silent());
    drop(refusing);
    let url = format!("postgres://x@127.0.0.1:{first},localhost:{second}/x?connect_timeout=1");
    let error = Postgres::connect(&url).expect_err("nobody answers");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    let text = error.to_string();
    for part in [
        format!("127.0.0.1:{first}: no connection within 1s"),
        format!("localhost:{second}: "),
        "refused".to_owned(),
    ] {
        assert!(text.contains(&part), "{part} in {text}");
    }
    let error = Postgres::connect("postgres://x@no.such.name.invalid/x?connect_timeout=1")
        .expect_err("no such name");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_standby_is_refused_and_the_primary_behind_it_is_found() {
    let database = cluster::lent();
    Postgres::connect(&database.url()).expect("the cluster answers");
    let mut standby = Cluster::start();
    // A database with tables, and one of the name that the URLs have. They may be the same one.
    let with_tables = standby.database();
    Postgres::connect(&with_tables.url()).expect("it makes the tables");
    if with_tables.name() != database.name() {
        let made = format!("create database {}", database.name());
        with_tables.psql(&made).expect("it may");
    }
    standby.stand_by();
    let url = |more: &str| after(standby.port(), &database, more);
    let store = Postgres::connect(&url("&target_session_attrs=read-write"));
    works(
        &mut *store
            .and_then(|store| store.connect())
            .expect("the primary"),
    );
    // Without it the first host that answers is taken.
    for refused in [url(""), with_tables.url()] {
        let error = Postgres::connect(&refused).expect_err("it is a standby");
        assert!(
            matches!(&error, StoreError::Refused(why) if why.contains("standby")),
            "{error:?}"
        );
    }
}
