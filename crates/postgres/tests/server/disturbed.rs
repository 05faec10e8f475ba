//! Disturbed connections: poolers, missing rights, servers that hang or start again, odd names and
//! limits, work that ends in the middle, and other threads at the same time.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Instant;

use chaos::proxy::{Proxy, Trouble, Way};
use chaos::servers::pgbouncer::Pooler;
use chaos::servers::postgres::Cluster;
use tourbillon_postgres::Open;

use super::*;

fn by_url(url: &str) -> Connector {
    let builder = Connector::builder(url, CALLER).expect("a URL");
    builder.build().expect("a host")
}

fn ready(link: &mut Link) -> Result<(), PostgresError> {
    link.ready(PATIENCE, async |client: &Client| check_server(client).await)
}

/// The value that a query returns on an open connection.
fn ask(link: &Link, sql: &str) -> Option<String> {
    let asked = link.ask(PATIENCE, async |client: &Client| value(client, sql).await);
    asked.expect("it is open").expect("it reads")
}

#[test]
#[cfg_attr(
    not(all(has_postgres, has_pgbouncer)),
    ignore = "needs: apt-get install postgresql pgbouncer"
)]
fn a_pooler_of_sessions_loses_no_setting_and_one_of_transactions_is_refused() {
    let database = database();
    let session = || Session::usual(Duration::from_secs(7), PATIENCE);
    for more in ["", "ignore_startup_parameters = options"] {
        let pooler = Pooler::start(&database, "session", more);
        let connector = by_url(&pooler.url(&database));
        let mut link = Link::new(connector.clone(), session()).expect("a runtime");
        assert_eq!(ready(&mut link), Ok(()));
        assert_eq!(ask(&link, "show statement_timeout").as_deref(), Some("7s"));
        let (_listening, heard) = listen(&connector, "bell", PATIENCE);
        assert_eq!(next(&heard), "open");
        database.psql("notify bell, 'yes'").expect("it is sent");
        assert_eq!(next(&heard), "notified yes");
    }
    let pooler = Pooler::start(&database, "transaction", "");
    let mut link = Link::new(by_url(&pooler.url(&database)), session()).expect("a runtime");
    let refused = ready(&mut link).expect_err("it shares connections");
    assert!(!refused.may_pass(), "{refused}");
    assert!(refused.to_string().contains("pool_mode"), "{refused}");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn missing_rights_are_refused_and_too_many_connections_may_pass() {
    let database = shop();
    let make = "create role disturbed_stranger nologin; create role disturbed_guest login connection limit 1";
    database.psql(make).expect("a superuser");

    let stranger = by_url(&database.url_of("disturbed_stranger"));
    let usual = || Session::usual(PATIENCE, PATIENCE);
    let mut link = Link::new(stranger.clone(), usual()).expect("a runtime");
    let refused = ready(&mut link).expect_err("it may not connect");
    assert!(!refused.may_pass(), "{refused}");
    let (_listening, heard) = listen(&stranger, "bell", PATIENCE);
    let lost = next(&heard);
    assert!(lost.contains("Refused") && lost.contains("28000"), "{lost}");

    let guest = by_url(&database.url_of("disturbed_guest"));
    let mut link = Link::new(guest.clone(), usual()).expect("a runtime");
    let refused = run(&mut link, Effect::Writes, INSERT, 1).expect_err("it has no grant");
    assert_eq!(refused.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));
    assert!(!refused.error().may_pass(), "{refused:?}");
    assert!(link.is_open());

    let mut second = Link::new(guest, usual()).expect("a runtime");
    let full = ready(&mut second).expect_err("there is one connection");
    assert!(
        full.may_pass() && full.to_string().contains("53300"),
        "{full}"
    );
    // The drop ends the session, and makes room.
    drop(link);
    while ready(&mut second).is_err() {}
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_server_that_hangs_costs_the_limit_and_is_used_again_when_it_answers() {
    let database = shop();
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, database.port()));
    let proxy = Proxy::before(server, Duration::ZERO).expect("a port");
    let url = format!("{}&connect_timeout=1", database.url_by(proxy.port()));
    let connector = by_url(&url);
    let usual = Session::usual(PATIENCE, PATIENCE);
    let mut link = Link::new(connector.clone(), usual.clone()).expect("a runtime");
    assert!(run(&mut link, Effect::Writes, INSERT, 1).is_ok());
    let (_listening, heard) = listen(&connector, "bell", Duration::ZERO);
    assert_eq!(next(&heard), "open");

    proxy.begin(Trouble::Hold, Way::Down);
    assert!(
        link.ask(Duration::ZERO, async |client: &Client| value(
            client, "select 1"
        )
        .await
        .is_ok())
            .is_none()
    );
    assert!(link.is_open(), "nothing follows from a question");
    let insert = |link: &mut Link, id: i64| {
        link.query(
            Effect::Writes,
            Duration::ZERO,
            INSERT,
            || INSERT.into(),
            &[&id],
        )
    };
    let lost = insert(&mut link, 2).expect_err("there is no answer");
    assert!(
        matches!(lost.error(), PostgresError::Unknown(_)),
        "{lost:?}"
    );
    assert!(!link.is_open());
    // It was carried out, although the client got no answer.
    while database.psql("select count(*) from shop.lease").as_deref() != Ok("2") {}
    let silent = ready(&mut link).expect_err("there is no answer");
    assert!(
        silent.may_pass() && silent.to_string().contains("within 1s"),
        "{silent}"
    );
    assert_eq!(next(&heard), "lost");

    proxy.end();
    // A server that hangs after it has accepted the connection.
    let hangs: Result<(), PostgresError> = link.ready(Duration::ZERO, async |client: &Client| {
        proxy.begin(Trouble::Hold, Way::Down);
        check_server(client).await
    });
    let hangs = hangs.expect_err("there is no answer");
    assert!(
        hangs.may_pass() && hangs.to_string().contains("checked"),
        "{hangs}"
    );
    assert!(!link.is_open());

    proxy.end();
    let taken = run(&mut link, Effect::Writes, INSERT, 2).expect_err("it is there");
    assert!(taken.violates("shop", "lease_pkey"), "{taken:?}");
    while next(&heard) != "open" {}
    database.psql("notify bell, 'yes'").expect("it is sent");
    while next(&heard) != "notified yes" {}
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn after_a_restart_of_the_server_everything_goes_on() {
    let mut cluster = Cluster::start();
    let database = cluster.database();
    let mut link = link(&database, PATIENCE);
    assert_eq!(ready(&mut link), Ok(()));
    let (_listening, heard) = listen(&connector(&database), "bell", PATIENCE);
    assert_eq!(next(&heard), "open");
    cluster.crash();
    assert_eq!(next(&heard), "lost");
    let down = ready(&mut link).expect_err("there is no server");
    assert!(down.may_pass() && !link.is_open(), "{down}");
    cluster.restart();
    assert_eq!(ready(&mut link), Ok(()));
    assert_eq!(ask(&link, "select 1").as_deref(), Some("1"));
    while next(&heard) != "open" {}
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn odd_names_and_values_are_what_they_say() {
    let database = database();
    let name = r#"a "b'; -- ü\"#;
    let quoted = name.replace('"', "\"\"");
    // In the cluster, which no other program uses.
    database
        .beside(&format!("create database \"{quoted}\""))
        .expect("a superuser");
    let encoded: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let url = format!(
        "postgres://postgres@127.0.0.1:{}/{encoded}?options=-c%20statement_timeout%3D1",
        database.port()
    );
    let connector = by_url(&url);
    assert_eq!(connector.database(), Some(name));
    let note = "it's \\ a\t\n\x0b\"note\"; select 1; ü";
    let session = Session::usual(Duration::ZERO, Duration::MAX)
        .and([("shop.note", note), ("shop.empty", "")]);
    let statements = session.statements();
    let mut link = Link::new(connector.clone(), session).expect("a runtime");
    assert_eq!(ready(&mut link), Ok(()));
    let check = |link: &Link| {
        assert_eq!(
            ask(link, "select current_setting('shop.note')").as_deref(),
            Some(note)
        );
        assert_eq!(
            ask(link, "select current_setting('shop.empty')").as_deref(),
            Some("")
        );
        // The limit of the session counts, and not that of the URL.
        assert_eq!(ask(link, "show statement_timeout").as_deref(), Some("10ms"));
        assert_eq!(ask(link, "show lock_timeout").as_deref(), Some("1d"));
    };
    check(&link);
    // As a pooler in session mode gets them, whatever a backslash means to the server.
    for conforming in ["on", "off"] {
        let reset = format!("set standard_conforming_strings = {conforming}; set shop.note = ''");
        link.batch(Duration::MAX, &reset).expect("it is set");
        link.batch(Duration::MAX, &statements)
            .expect("they are set");
        check(&link);
    }

    let longest = "N".repeat(63);
    for channel in [name, "Bell", "bell", "a.b", longest.as_str()] {
        for limit in [Duration::ZERO, Duration::MAX] {
            let (_listening, heard) = listen(&connector, channel, limit);
            assert_eq!(next(&heard), "open");
            let notify = |channel: &str, payload: &str| {
                let sql = format!("notify \"{}\", '{payload}'", channel.replace('"', "\"\""));
                link.ask(PATIENCE, async |client: &Client| {
                    client.batch_execute(&sql).await
                })
                .expect("it is open")
                .expect("it is sent");
            };
            notify("BELL", "no");
            notify(channel, "");
            assert_eq!(next(&heard), "notified ");
        }
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn work_that_ends_in_the_middle_leaves_no_transaction_to_the_next_call() {
    let database = shop();
    let others = "select count(*) from pg_stat_activity \
                  where datname = current_database() and pid <> pg_backend_pid()";
    // Without a limit of the server for a transaction that idles.
    let session = Session::new([("statement_timeout", "60000".to_owned())]);
    let mut link = Link::new(connector(&database), session).expect("a runtime");
    let insert = |link: &mut Link| run(link, Effect::Writes, INSERT, 1);
    assert_eq!(ready(&mut link), Ok(()));
    // After a panic the connection is given up, and with it the row and its lock.
    let panics = catch_unwind(AssertUnwindSafe(|| {
        link.run(Effect::Writes, PATIENCE, async |open: &mut Open| {
            let begin = "begin; insert into shop.lease values (1)";
            open.client().batch_execute(begin).await?;
            assert!(!begin.contains("begin"), "in the middle");
            Ok(())
        })
    }));
    assert!(panics.is_err() && !link.is_open());
    // It does not wait for the next call.
    let began = Instant::now();
    while database.psql(others).as_deref() != Ok("0") {
        assert!(began.elapsed() < PATIENCE, "the session goes on");
    }
    assert!(insert(&mut link).is_ok());

    // After an error the next call meets the failed transaction, and the one after it works again.
    let failed = link.run(Effect::Writes, PATIENCE, async |open: &mut Open| {
        open.client().batch_execute("begin").await?;
        open.client().batch_execute("select 1 / 0").await
    });
    let failed = failed.expect_err("it divides by zero");
    assert_eq!(failed.code(), Some(&SqlState::DIVISION_BY_ZERO));
    let told = insert(&mut link).expect_err("the transaction has failed");
    assert_eq!(told.code(), Some(&SqlState::IN_FAILED_SQL_TRANSACTION));
    assert!(!link.is_open());
    let taken = insert(&mut link).expect_err("it is there");
    assert!(taken.violates("shop", "lease_pkey"), "{taken:?}");

    // The drop ends the session.
    assert_eq!(database.psql(others).as_deref(), Ok("1"));
    drop(link);
    while database.psql(others).as_deref() != Ok("0") {}
}

#[test]
fn an_attempt_to_connect_that_is_dropped_leaves_no_connection() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let connector = by_url(&format!(
        "postgres://x@127.0.0.1:{port}/x?connect_timeout=3600"
    ));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let attempt = runtime.spawn(async move {
        let session = Session::usual(PATIENCE, PATIENCE);
        connector.open(&session, "", |_, _| ()).await.map(drop)
    });
    let accepted = runtime.block_on(async move {
        let accepted = tokio::task::spawn_blocking(move || silent.accept()).await;
        attempt.abort();
        assert!(attempt.await.is_err_and(|ended| ended.is_cancelled()));
        accepted
    });
    let (mut stream, _) = accepted.expect("it is awaited").expect("it connects");
    // The connection ends after the bytes that were sent before.
    stream
        .read_to_end(&mut Vec::new())
        .expect("the end of the stream");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn many_links_and_questions_at_a_time_do_not_mix() {
    let database = shop();
    database
        .psql("insert into shop.lease values (0)")
        .expect("it is inserted");
    let connector = connector(&database);
    let update = "update shop.lease set id = id + $1 returning id";
    let mut seen: Vec<i64> = thread::scope(|scope| {
        let add = || {
            let session = Session::usual(PATIENCE, PATIENCE);
            let mut link = Link::new(connector.clone(), session).expect("a runtime");
            let mut seen = Vec::new();
            for _ in 0..25 {
                let rows = run(&mut link, Effect::Writes, update, 1).expect("it is updated");
                seen.push(rows[0].get(0));
            }
            seen
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(add)).collect();
        let seen = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        seen.flatten().collect()
    });
    seen.sort_unstable();
    assert_eq!(seen, Vec::from_iter(1..=100));

    let mut link = link(&database, PATIENCE);
    assert_eq!(ready(&mut link), Ok(()));
    let link = &link;
    thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || {
                for _ in 0..25 {
                    let answer = ask(link, &format!("select {number}"));
                    assert_eq!(answer, Some(number.to_string()));
                }
            });
        }
    });
}
