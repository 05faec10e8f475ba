//! Servers that end, restart, hang or refuse.

use std::net::TcpListener;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use tourbillon_durable::store::{
    Action, Answer, Call, Connection, Epoch, NewNode, Store, StoreError,
};
use tourbillon_durable::{DueAt, Postgres};

use crate::cluster::{self, Cluster};
use crate::stopped::Stopped;

fn schedule(connection: &mut dyn Connection, key: &str) -> Result<Answer, StoreError> {
    let call = Call {
        queue: "q".into(),
        key: key.into(),
        action: Action::Schedule {
            when: DueAt::After(Duration::from_secs(60)),
            payload: "1".into(),
        },
    };
    let answers = connection.write(&[call])?;
    Ok(answers
        .into_iter()
        .next()
        .expect("one answer")
        .expect("it is accepted"))
}

fn connect(url: &str) -> (Postgres, Box<dyn Connection>) {
    let store = Postgres::connect(url).expect("the cluster answers");
    let connection = store.connect().expect("the cluster answers");
    (store, connection)
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_connection_that_ended_while_idle_is_opened_again() {
    let database = cluster::lent();
    let (_store, mut connection) = connect(&database.url());
    schedule(&mut *connection, "a").expect("it is accepted");
    let ended = format!(
        "select count(pg_terminate_backend(pid, 10000)) from pg_stat_activity \
         where datname = '{}' and application_name = 'tourbillon'",
        database.name()
    );
    let ended = database.psql(&ended).expect("it may end them");
    assert!(ended.parse::<u32>().expect("a number") >= 1);
    schedule(&mut *connection, "b").expect("nothing was sent before the end was seen");
    assert!(connection.get("q", "b").expect("it reads").is_some());
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_shortest_and_the_longest_limits_are_accepted() {
    let database = cluster::lent();
    for limit in [Duration::ZERO, Duration::MAX] {
        let store = Postgres::builder(&database.url()).expect("a good URL");
        let store = store.lock_limit(limit).loss_limit(limit);
        // A statement of 10 ms may fail on a busy machine, so only the longest ones are tried.
        let store = match limit.is_zero() {
            true => store,
            false => store.statement_limit(limit).scan_limit(limit),
        };
        let store = store.connect().expect("the server takes the limits");
        let mut connection = store.connect().expect("the cluster answers");
        schedule(&mut *connection, "k").expect("it is accepted");
        assert_eq!(connection.counts().expect("it counts").len(), 1);
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_connection_that_ends_during_a_call_is_an_unknown_outcome() {
    let database = cluster::lent();
    let (_store, mut connection) = connect(&database.url());
    schedule(&mut *connection, "a").expect("it is accepted");
    // The call waits for the lock of another transaction.
    let mut client = database.client();
    let mut transaction = client.transaction().expect("it begins");
    transaction
        .execute("update tourbillon.timer set fails = 0", &[])
        .expect("it is there");
    let call = thread::spawn(move || {
        let result = schedule(&mut *connection, "a");
        (result, connection)
    });
    let end = format!(
        "select count(pg_terminate_backend(pid, 10000)) from pg_stat_activity \
         where datname = '{}' and application_name = 'tourbillon' and wait_event_type = 'Lock'",
        database.name()
    );
    kit::wait::until("the call waits, and is ended", || {
        database.psql(&end).expect("it may end it") == "1"
    });
    let (result, mut connection) = call.join().expect("it does not panic");
    assert!(matches!(result, Err(StoreError::Unknown(_))), "{result:?}");
    transaction.rollback().expect("it ends");
    schedule(&mut *connection, "a").expect("the connection is opened again");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_server_that_crashes_has_what_it_accepted_and_is_found_again() {
    let mut cluster = Cluster::durable();
    let database = cluster.database();
    let (store, mut connection) = connect(&database.url());
    schedule(&mut *connection, "a").expect("it is accepted");
    cluster.crash();
    let down = schedule(&mut *connection, "b").expect_err("nobody answers");
    assert!(down.may_pass(), "{down}");
    assert!(
        store
            .connect()
            .is_err_and(|error| matches!(error, StoreError::Unavailable(_)))
    );
    cluster.restart();
    assert!(connection.get("q", "a").expect("it reads").is_some());
    schedule(&mut *connection, "c").expect("it is accepted");
    assert!(connection.get("q", "b").expect("it reads").is_none());
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_server_that_does_not_answer_is_given_up() {
    // It accepts connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let builder = Postgres::builder(&format!(
        "postgres://x@127.0.0.1:{port}/x?connect_timeout=1"
    ))
    .expect("a URL");
    let start = Instant::now();
    let error = builder
        .statement_limit(Duration::from_millis(50))
        .connect()
        .expect_err("nobody answers");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn an_answer_that_never_comes_is_an_unknown_outcome() {
    let database = cluster::lent();
    let builder = Postgres::builder(&database.url()).expect("a URL");
    let store = builder
        .statement_limit(Duration::from_millis(200))
        .connect()
        .expect("the cluster answers");
    let mut connection = store.connect().expect("the cluster answers");
    schedule(&mut *connection, "a").expect("it is accepted");
    let process = format!(
        "select pid from pg_stat_activity where datname = '{}' and application_name = 'tourbillon'",
        database.name()
    );
    let process = database.psql(&process).expect("it reads");
    let stopped = Stopped::new(&process);
    let error = schedule(&mut *connection, "b").expect_err("the process stands still");
    assert!(matches!(error, StoreError::Unknown(_)), "{error:?}");
    let answer = schedule(&mut *connection, "c").expect("another process answers");
    assert!(matches!(answer, Answer::Scheduled { .. }), "{answer:?}");
    drop(stopped);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_server_ends_a_statement_that_takes_too_long() {
    let database = cluster::lent();
    let (_store, mut connection) = connect(&database.url());
    schedule(&mut *connection, "a").expect("it is accepted");
    let builder = Postgres::builder(&database.url()).expect("a URL");
    let limited = builder
        .statement_limit(Duration::from_millis(50))
        .lock_limit(Duration::from_secs(10))
        .connect()
        .expect("the cluster answers");
    let mut limited = limited.connect().expect("the cluster answers");
    let mut client = database.client();
    let mut transaction = client.transaction().expect("it begins");
    transaction
        .batch_execute("lock table tourbillon.node in access exclusive mode")
        .expect("it locks");
    let error = limited.beat(Epoch(1)).expect_err("the table is locked");
    assert!(
        matches!(&error, StoreError::Unavailable(why) if why.contains("57014")),
        "{error:?}"
    );
    transaction.rollback().expect("it ends");
    assert_eq!(
        limited.beat(Epoch(1)).expect("the connection goes on"),
        None
    );
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn many_first_connections_make_the_tables_once() {
    let database = cluster::database();
    let start = Arc::new(Barrier::new(8));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (start, url) = (Arc::clone(&start), database.url());
            thread::spawn(move || {
                start.wait();
                Postgres::connect(&url).map(drop)
            })
        })
        .collect();
    for thread in threads {
        thread
            .join()
            .expect("it does not panic")
            .expect("the tables are there");
    }
    let versions = database.psql("select version, oldest_ok from tourbillon.meta");
    assert_eq!(versions.as_deref(), Ok("1|1"));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_published_statements_make_the_tables_too() {
    let database = cluster::database();
    let mut client = database.client();
    client
        .batch_execute(Postgres::SCHEMA)
        .expect("they are statements");
    let (_store, mut connection) = connect(&database.url());
    schedule(&mut *connection, "a").expect("it is accepted");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_newer_schema_is_used_while_it_admits_this_version() {
    let database = cluster::database();
    let (store, mut connection) = connect(&database.url());
    database
        .psql("update tourbillon.meta set version = 2")
        .expect("it may");
    Postgres::connect(&database.url()).expect("version 2 admits version 1");
    database
        .psql("update tourbillon.meta set oldest_ok = 2")
        .expect("it may");
    let error = store
        .connect()
        .map(drop)
        .expect_err("version 1 is no longer admitted");
    assert!(
        !error.may_pass() && error.to_string().contains("newer version"),
        "{error}"
    );
    schedule(&mut *connection, "a").expect("an open connection goes on");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn tables_of_an_earlier_version_are_refused_with_the_column_that_they_lack() {
    let database = cluster::database();
    let (store, _) = connect(&database.url());
    let all = "select c.table_name, c.column_name from information_schema.columns c \
               join information_schema.tables t using (table_schema, table_name) \
               where c.table_schema = 'tourbillon' and t.table_type = 'BASE TABLE' and c.table_name <> 'meta'";
    let all = database.psql(all).expect("a superuser");
    assert!(all.contains("node|beat_at"), "{all}");
    for line in all.lines() {
        let (table, column) = line.split_once('|').expect("two columns");
        let rename = |from: &str, to: &str| {
            let sql =
                format!("alter table tourbillon.{table} rename column \"{from}\" to \"{to}\"");
            database.psql(&sql).expect("a superuser");
        };
        rename(column, "elsewhere");
        let refused = Postgres::connect(&database.url()).expect_err("it lacks a column");
        rename("elsewhere", column);
        assert!(!refused.may_pass(), "{refused}");
        let missing = format!("column {}.{column} does not exist", &table[..1]);
        for words in [
            &missing,
            "schema tourbillon were made by an earlier version",
            "make them anew",
        ] {
            let refused = refused.to_string();
            assert!(refused.contains(words), "{line}: {refused}");
        }
    }
    store.connect().expect("all are there");
    let (_store, mut connection) = connect(&database.url());
    schedule(&mut *connection, "a").expect("it is accepted");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn what_can_never_work_is_refused_with_the_reason() {
    let database = cluster::database();
    let port = database.url();
    let port = port
        .split(':')
        .nth(2)
        .and_then(|rest| rest.split('/').next())
        .expect("a port");
    let url = |rest: &str| format!("postgres://postgres@127.0.0.1:{port}/{rest}");
    let role = "create role nobody_here login";
    database.psql(role).expect("it may");
    database
        .psql("create database latin encoding 'LATIN1' template template0")
        .expect("it may");
    let cases = [
        ("no url".to_owned(), "the URL"),
        (url("nowhere"), "does not exist"),
        (url("latin"), "LATIN1"),
        (database.url_of("nobody_at_all"), "does not exist"),
        // It may not make the tables.
        (database.url_of("nobody_here"), "may not make them"),
    ];
    for (url, expected) in cases {
        let error = Postgres::connect(&url).expect_err("it is refused");
        let text = error.to_string();
        assert!(
            !error.may_pass() && text.contains(expected),
            "{url}: {text}"
        );
    }
    database.psql("drop role nobody_here").expect("it may");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn connect_does_not_panic_inside_a_runtime() {
    let database = cluster::lent();
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("a runtime");
    let store = runtime.block_on(async { Postgres::connect(&database.url()) });
    store.expect("the cluster answers");
}

#[test]
fn a_password_is_not_shown() {
    let builder = Postgres::builder("postgres://me:secret@127.0.0.1/db").expect("a URL");
    assert!(!format!("{builder:?}").contains("secret"));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_rows_of_old_nodes_have_half_a_second_and_may_stay() {
    let database = cluster::lent();
    let patience = Duration::from_secs(60);
    let builder = Postgres::builder(&database.url()).expect("a URL");
    let store = builder.statement_limit(patience).lock_limit(patience);
    let store = store.connect().expect("the cluster answers");
    let mut connection = store.connect().expect("the cluster answers");
    let me = NewNode {
        epoch: Epoch(1),
        name: "me".to_owned(),
        queues: vec!["q".into()],
        schedules: Default::default(),
    };
    connection.join(&me).expect("the store answers");
    let old = "insert into tourbillon.node (epoch, name, queues, gone) \
               values (2, 'old', '{}', clock_timestamp() - interval '2 days')";
    database.psql(old).expect("it may");
    let left =
        || database.psql("select string_agg(epoch::text, ' ' order by epoch) from tourbillon.node");

    let mut client = database.client();
    let mut transaction = client.transaction().expect("it begins");
    let lock = "select from tourbillon.node where epoch = 2 for update";
    transaction.execute(lock, &[]).expect("it locks");
    let start = Instant::now();
    let declared = connection.declare_gone(Epoch(1), Epoch(3), 0);
    assert!(!declared.expect("the store answers"));
    // Beats wait for it.
    assert!(start.elapsed() < patience / 2, "{:?}", start.elapsed());
    assert_eq!(left().as_deref(), Ok("1 2"));
    transaction.rollback().expect("it ends");
    let declared = connection.declare_gone(Epoch(1), Epoch(3), 0);
    assert!(!declared.expect("the store answers"));
    assert_eq!(left().as_deref(), Ok("1"));
}

/// The time until the system asks the other end of an idle connection whether it is still there.
/// `/proc/net/tcp` has it in hundredths of a second.
#[cfg(target_os = "linux")]
fn until_keepalive(local: u16, remote: u16) -> Option<Duration> {
    const KEEPALIVE: &str = "02";
    let connections = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    let ports = (format!(":{local:04X}"), format!(":{remote:04X}"));
    connections.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, from, to, _, _, timer, ..] = fields[..] else {
            return None;
        };
        let (kind, left) = timer.split_once(':')?;
        let is_it = from.ends_with(&ports.0) && to.ends_with(&ports.1) && kind == KEEPALIVE;
        let left = u64::from_str_radix(left, 16).ok()?;
        is_it.then(|| Duration::from_millis(left * 10))
    })
}

#[cfg(target_os = "linux")]
#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn an_idle_connection_is_kept_alive_each_minute_or_more_often_if_the_url_says_so() {
    let database = cluster::lent();
    let url = database.url();
    for (url, seconds) in [
        (url.clone(), 60),
        (format!("{url}&keepalives_idle=7200"), 60),
        (format!("{url}&keepalives_idle=20"), 20),
    ] {
        let (_store, mut connection) = connect(&url);
        connection.beat(Epoch(1)).expect("the store answers");
        let port = "select client_port from pg_stat_activity \
                    where datname = current_database() and application_name = 'tourbillon'";
        let port = database.psql(port).expect("it reads");
        let port = port.parse().expect("one connection");
        let mut left = None;
        kit::wait::until("the connection is idle", || {
            left = until_keepalive(port, database.port());
            left.is_some()
        });
        let left = left.expect("it is idle");
        // The machine may have stood still since the connection was made.
        let span = Duration::from_secs(seconds);
        assert!(left <= span + Duration::from_secs(1), "{left:?}");
        assert!(left > span / 4, "{left:?}");
        drop(connection);
        kit::wait::until("the connection has ended", || {
            database.psql("select count(*) from pg_stat_activity where application_name = 'tourbillon' and datname = current_database()").as_deref() == Ok("0")
        });
    }
}
