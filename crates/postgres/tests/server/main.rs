//! Connections to a server of the tests' own: calls, the meaning of failures, ends of sessions, and
//! listening. The tests of the durable timers, which use these connections, cover several hosts,
//! TLS, passwords and long outages.

mod disturbed;

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::Duration;

use chaos::servers::postgres::{Database, database};
use tourbillon_postgres::tokio_postgres::error::SqlState;
use tourbillon_postgres::tokio_postgres::types::ToSql;
use tourbillon_postgres::tokio_postgres::{Error, SimpleQueryMessage};
use tourbillon_postgres::{
    Caller, Client, Connector, Effect, Failure, Heard, Link, Listening, PostgresError, Row,
    Session, check_server,
};

const PATIENCE: Duration = Duration::from_secs(60);

const CALLER: Caller = Caller {
    package: "tourbillon-postgres",
    builder: "ConnectorBuilder",
    threads: "test",
};

fn connector(database: &Database) -> Connector {
    let builder = Connector::builder(&database.url(), CALLER).expect("a URL");
    builder.build().expect("a host")
}

fn link(database: &Database, lock_limit: Duration) -> Link {
    let session = Session::usual(PATIENCE, lock_limit);
    Link::new(connector(database), session).expect("a runtime")
}

/// A database with a table of one unique column.
fn shop() -> Database {
    let database = database();
    let make = "create schema shop; \
                create table shop.lease (id bigint constraint lease_pkey primary key)";
    database.psql(make).expect("it is made");
    database
}

/// Runs a statement with a number, as stores do.
fn run(link: &mut Link, effect: Effect, sql: &'static str, id: i64) -> Result<Vec<Row>, Failure> {
    link.ready(PATIENCE, async |client: &Client| {
        check_server(client).await.map_err(Failure::from)
    })?;
    link.query(effect, PATIENCE, sql, || Cow::Borrowed(sql), &[&id])
}

const INSERT: &str = "insert into shop.lease values ($1) returning id";

/// Returns the value of a query, which leaves no prepared statement on the server.
async fn value(client: &Client, sql: &str) -> Result<Option<String>, Error> {
    let messages = client.simple_query(sql).await?;
    Ok(messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn failures_are_told_apart() {
    let database = shop();
    let mut link = link(&database, Duration::from_millis(20));
    let rows = run(&mut link, Effect::Writes, INSERT, 7).expect("it is inserted");
    assert_eq!(rows[0].get::<_, i64>(0), 7);

    let taken = run(&mut link, Effect::Writes, INSERT, 7).expect_err("it is there");
    assert!(taken.violates("shop", "lease_pkey"), "{taken:?}");
    assert!(!taken.violates("shop", "other") && !taken.violates("other", "lease_pkey"));
    assert!(
        matches!(taken.error(), PostgresError::Refused(_)),
        "{taken:?}"
    );

    let unknown = run(&mut link, Effect::Reads, "select shop.nothing($1)", 7);
    let unknown = unknown.expect_err("there is no such function");
    assert_eq!(unknown.code(), Some(&SqlState::UNDEFINED_FUNCTION));
    assert!(!unknown.error().may_pass(), "{unknown:?}");

    let mut other = database.client();
    let mut transaction = other.transaction().expect("it begins");
    let lock = transaction.execute("select from shop.lease where id = 7 for update", &[]);
    lock.expect("it is locked");
    let update = "update shop.lease set id = id where id = $1 returning id";
    let locked = run(&mut link, Effect::Writes, update, 7).expect_err("it is locked");
    assert!(locked.is_locked() && !locked.is_conflict(), "{locked:?}");
    assert!(
        matches!(locked.error(), PostgresError::Unavailable(_)),
        "{locked:?}"
    );
    transaction.rollback().expect("it ends");

    assert!(link.is_open(), "no answer of these ends the connection");
    assert!(run(&mut link, Effect::Writes, update, 7).is_ok());

    // What does not fit the statement is not sent.
    for values in [&[&"seven" as &(dyn ToSql + Sync)][..], &[]] {
        assert!(run(&mut link, Effect::Reads, "select $1::bigint", 7).is_ok());
        let unfit = link.query(
            Effect::Writes,
            PATIENCE,
            update,
            || Cow::Borrowed(update),
            values,
        );
        let unfit = unfit.expect_err("it is no number");
        assert!(!unfit.error().may_pass(), "{unfit:?}");
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_statement_is_prepared_once_on_each_connection() {
    let database = shop();
    let mut link = link(&database, PATIENCE);
    let made = Cell::new(0);
    let prepared = |link: &mut Link| {
        let ready: Result<(), PostgresError> = link.ready(PATIENCE, async |_| Ok(()));
        ready.expect("it connects");
        for _ in 0..3 {
            let text = || {
                made.set(made.get() + 1);
                Cow::Borrowed("select count(*) from shop.lease where id > $1")
            };
            let rows = link.query(Effect::Reads, PATIENCE, "more", text, &[&0_i64]);
            assert_eq!(rows.expect("it counts").len(), 1);
        }
        let prepared = "select count(*) from pg_prepared_statements";
        link.ask(PATIENCE, async |client: &Client| {
            value(client, prepared).await
        })
        .expect("it is open")
        .expect("it counts")
    };
    assert_eq!(prepared(&mut link).as_deref(), Some("1"));
    assert_eq!(made.get(), 1);
    let end = "select pg_terminate_backend(pid) from pg_stat_activity \
               where datname = current_database() and pid <> pg_backend_pid()";
    database.psql(end).expect("it is ended");
    // The end may be noticed by the next call, or by the one after it.
    while link.is_open() {
        let _ = link.batch(PATIENCE, "select 1");
    }
    assert_eq!(prepared(&mut link).as_deref(), Some("1"));
    assert_eq!(made.get(), 2);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_session_that_ends_within_a_call_leaves_it_open_whether_a_write_was_carried_out() {
    let database = shop();
    let mut link = link(&database, PATIENCE);
    let end = "select pg_terminate_backend((pg_backend_pid() + $1::bigint)::int)";
    let ended = run(&mut link, Effect::Writes, end, 0).expect_err("the session has ended");
    assert!(
        matches!(ended.error(), PostgresError::Unknown(_)),
        "{ended:?}"
    );
    assert!(!link.is_open());
    let ended = run(&mut link, Effect::Reads, end, 0).expect_err("the session has ended");
    assert!(
        matches!(ended.error(), PostgresError::Unavailable(_)),
        "{ended:?}"
    );
    // It is opened again.
    assert!(run(&mut link, Effect::Writes, INSERT, 1).is_ok());
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_connection_that_fails_its_check_is_not_used() {
    let database = shop();
    let mut link = link(&database, PATIENCE);
    for _ in 0..2 {
        let refused: Result<(), Failure> = link.ready(PATIENCE, async |_| {
            let why = "there are no tables".to_owned();
            Err(PostgresError::Refused(why).into())
        });
        let refused = refused.expect_err("the check refuses it");
        assert!(!refused.error().may_pass(), "{refused:?}");
        assert!(!link.is_open());
    }
    assert!(run(&mut link, Effect::Writes, INSERT, 1).is_ok());
}

/// Listens, and returns a channel of the events, as text.
fn listen(connector: &Connector, channel: &str, limit: Duration) -> (Listening, Receiver<String>) {
    let (sender, heard) = mpsc::channel();
    let said = move |heard: Heard<'_>| {
        let words = match heard {
            Heard::Open => "open".to_owned(),
            Heard::Notified(payload) => format!("notified {payload}"),
            Heard::Lost(why) if why.may_pass() => "lost".to_owned(),
            other => format!("{other:?}"),
        };
        let _ = sender.send(words);
    };
    let listening = connector.listen(channel, limit, said);
    (listening.expect("there is a thread"), heard)
}

/// Returns the text of a listener's next event.
fn next(heard: &Receiver<String>) -> String {
    heard.recv_timeout(PATIENCE).expect("it is heard")
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn what_is_notified_on_the_channel_is_heard_also_after_an_end_of_the_session() {
    let database = database();
    let (listening, heard) = listen(&connector(&database), "a \"bell\"", PATIENCE);
    assert_eq!(next(&heard), "open");
    let notify = "notify other, 'no'; notify \"a \"\"bell\"\"\", 'yes'";
    database.psql(notify).expect("it is sent");
    assert_eq!(next(&heard), "notified yes");
    let end = "select pg_terminate_backend(pid) from pg_stat_activity \
               where datname = current_database() and pid <> pg_backend_pid()";
    database.psql(end).expect("it is ended");
    assert_eq!(next(&heard), "lost");
    while next(&heard) != "open" {}
    database.psql(notify).expect("it is sent");
    assert_eq!(next(&heard), "notified yes");
    drop(listening);
    // The thread ends, and its channel of events with it.
    while heard.recv_timeout(PATIENCE).is_ok() {}
    assert_eq!(heard.try_recv(), Err(TryRecvError::Disconnected));
}
