//! What people and scripts do with timers on PostgreSQL.

use std::sync::mpsc;
use std::time::Duration;

use chaos::servers::postgres::{self as cluster, Cluster, Database, Lent};
use kit::wait;
use serde_json::{Value, json};
use tourbillon_durable::{Due, Durable, DurableEvent, Postgres, RetryPolicy};

use crate::command::{call, code, command, text};
use crate::fails;

pub(crate) const NOW: Duration = Duration::ZERO;
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// A database with empty tables.
pub(crate) fn lent() -> Lent {
    cluster::lent(|url| drop(store(url)))
}

fn store(url: &str) -> Postgres {
    Postgres::connect(url).expect("the cluster answers")
}

pub(crate) fn timers(database: &Database) -> Durable {
    let timers = Durable::builder(store(&database.url())).start();
    timers.expect("it starts")
}

/// What a command prints that does what it is asked for.
#[track_caller]
fn ok(database: &Database, words: &[&str]) -> String {
    let url = database.url();
    let all = [&["--url", &*url], words].concat();
    let output = call(&all);
    let ended = (code(&output), text(&output.stderr));
    assert_eq!(ended, (0, String::new()), "{words:?}");
    text(&output.stdout)
}

#[track_caller]
fn json_of(database: &Database, words: &[&str]) -> Value {
    let all = [&["--json"], words].concat();
    serde_json::from_str(&ok(database, &all)).expect("it is JSON")
}

/// The values of one name in a list of objects.
fn each<'a>(list: &'a Value, name: &str) -> Vec<&'a Value> {
    let list = list.as_array().expect("a list");
    list.iter().map(|object| &object[name]).collect()
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn timers_are_listed_shown_moved_hurried_and_cancelled() {
    let database = lent();
    let timers = timers(&database);
    for key in ["customer:7:1", "customer:7:2", "customer:8"] {
        let scheduled = timers.schedule("pay-by", key, HOUR, &key);
        scheduled.wait().expect("it is accepted");
    }
    let list = ok(&database, &["list"]);
    let first = list.lines().nth(1).expect("a line");
    assert!(first.contains("waiting  pay-by  customer:7:1"), "{list}");
    let found = json_of(&database, &["list", "pay-by", "--keys", "customer:7:"]);
    assert_eq!(each(&found, "key"), ["customer:7:1", "customer:7:2"]);
    assert_eq!(
        json_of(&database, &["list", "--state", "overdue"]),
        json!([])
    );
    assert_eq!(ok(&database, &["list", "--limit", "2"]).lines().count(), 3);
    let shown = ok(&database, &["show", "pay-by", "customer:8"]);
    assert!(shown.contains("payload     \"customer:8\""), "{shown}");
    let time = "2031-12-24T18:00:00Z";
    let moved = json_of(&database, &["move", "pay-by", "customer:8", time]);
    assert_eq!(moved["due"], time);
    ok(&database, &["move", "pay-by", "customer:8", "30m"]);
    ok(&database, &["run-now", "pay-by", "customer:8"]);
    let shown = json_of(&database, &["show", "pay-by", "customer:8"]);
    assert_eq!(
        (&shown["state"], &shown["payload"]),
        (&json!("overdue"), &json!("customer:8"))
    );
    let many = ["pay-by", "--keys", "customer:7:", "--yes"];
    let hurried = json_of(&database, &[&["run-now"], &many[..]].concat());
    assert_eq!(hurried["done"], 2);
    let found = json_of(&database, &["list", "--state", "overdue"]);
    assert_eq!(each(&found, "key").len(), 3);
    ok(&database, &["cancel", "pay-by", "customer:8", "--yes"]);
    let cancelled = json_of(&database, &[&["cancel"], &many[..]].concat());
    assert_eq!(cancelled["done"], 2);
    assert_eq!(json_of(&database, &["list"]), json!([]));
    let url = database.url();
    for words in [
        &["show", "q", "k"][..],
        &["run-now", "q", "k"],
        &["cancel", "q", "k", "--yes"],
        &["move", "q", "k", "1h"],
    ] {
        let (code, error) = fails(&[&["--url", &*url], words].concat());
        assert_eq!(code, 1, "{words:?}: {error}");
        assert!(error.contains("there is no such timer"), "{error}");
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn queues_nodes_and_checks_tell_why_a_timer_has_not_run() {
    let database = lent();
    let timers = timers(&database);
    assert_eq!(ok(&database, &["check"]), "ok: 0 queues, 0 processes\n");
    let scheduled = timers.schedule("pay-by", "k", NOW, &1);
    scheduled.wait().expect("it is accepted");
    let check = call(&["check", "--url", &database.url()]);
    assert_eq!(code(&check), 1);
    let said = text(&check.stdout);
    assert!(said.contains("no process handles the queue"), "{said}");
    assert_eq!(json_of(&database, &["pause", "pay-by"])["paused"], true);
    assert!(ok(&database, &["queues"]).contains("paused"));
    assert_eq!(json_of(&database, &["list"])[0]["state"], "paused");
    assert_eq!(json_of(&database, &["check"])["ok"], true);
    let (sender, ran) = mpsc::channel();
    let node = Durable::builder(store(&database.url()))
        .name("shop-1")
        .poll_interval(Duration::from_millis(20))
        .handle("pay-by", move |_: &Due<u64>| sender.send(()))
        .start()
        .expect("it starts");
    wait::until("it has joined", || {
        each(&json_of(&database, &["nodes"]), "name") == ["shop-1"]
    });
    assert!(ok(&database, &["nodes"]).contains("pay-by"));
    let drawn = ok(&database, &["watch", "--times", "1"]);
    assert!(
        drawn.contains("shop-1") && drawn.contains("paused"),
        "{drawn}"
    );
    assert_eq!(ok(&database, &["resume", "pay-by"]), "pay-by goes on\n");
    wait::next(&ran);
    wait::until("it is settled", || {
        json_of(&database, &["list"]) == json!([])
    });
    assert!(ok(&database, &["check"]).starts_with("ok: "));
    node.stop(HOUR).wait().expect("it stops");
    assert_eq!(json_of(&database, &["nodes"]), json!([]));
    let all = json_of(&database, &["nodes", "--all"]);
    assert_eq!(each(&all, "name"), ["shop-1"]);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn dead_letters_are_shown_revived_and_discarded() {
    let database = lent();
    let (sender, dead) = mpsc::channel();
    let timers = Durable::builder(store(&database.url()))
        .poll_interval(Duration::from_millis(20))
        .on_event(move |event| {
            if let DurableEvent::Dead { .. } = event {
                let _ = sender.send(());
            }
        })
        .handle("mail", |_: &Due<u64>| {
            Err::<(), _>("no such\u{1b}[2J address\u{9b}2J")
        })
        .retry(RetryPolicy::never())
        .start()
        .expect("it starts");
    for key in ["a", "b", "c", "x:1", "x:2"] {
        let scheduled = timers.schedule("mail", key, NOW, &7_u64);
        scheduled.wait().expect("it is accepted");
        wait::next(&dead);
    }
    timers.stop(HOUR).wait().expect("it stops");
    // Neither form writes to a terminal.
    for words in [&["dead"][..], &["dead", "--json"]] {
        let dead = ok(&database, words);
        assert!(!dead.contains(['\u{1b}', '\u{9b}']), "{dead}");
    }
    let letters = json_of(&database, &["dead", "--queue", "mail"]);
    assert_eq!(each(&letters, "key"), ["a", "b", "c", "x:1", "x:2"]);
    assert_eq!(letters[0]["error"], "no such\u{1b}[2J address\u{9b}2J");
    let id = |n: usize| letters[n]["id"].to_string();
    let after = json_of(&database, &["dead", "--after", &id(2), "--limit", "1"]);
    assert_eq!(each(&after, "key"), ["x:1"]);
    assert_eq!(
        json_of(&database, &["dead", "--older-than", "1h"]),
        json!([])
    );
    assert_eq!(json_of(&database, &["revive", &id(0)])["key"], "a");
    let url = database.url();
    let (code, error) = fails(&["--url", &url, "revive", &id(0)]);
    assert_eq!((code, error.contains("no such dead letter")), (1, true));
    let report = json_of(&database, &["revive", "--keys", "x:", "--yes"]);
    assert_eq!(report, json!({"revived": 2, "exist": 0}));
    ok(&database, &["discard", &id(1), "--yes"]);
    let report = json_of(&database, &["discard", "--all", "--yes"]);
    assert_eq!(report["discarded"], 1);
    assert_eq!(json_of(&database, &["dead"]), json!([]));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_role_that_may_only_read_is_refused_with_the_rights_that_it_needs() {
    let database = cluster::database();
    drop(timers(&database));
    let roles = "create role cli_stranger login; create role cli_reader login; \
                 grant usage on schema tourbillon to cli_reader; \
                 grant select on all tables in schema tourbillon to cli_reader";
    database.psql(roles).expect("a superuser");
    for words in [
        &["list"][..],
        &["queues"],
        &["run-now", "q", "k"],
        &["pause", "q"],
        &["watch", "--times", "1"],
    ] {
        for (role, missing) in [
            ("cli_reader", "insert on tourbillon.timer"),
            ("cli_stranger", "permission denied for the schema"),
        ] {
            let url = database.url_of(role);
            let (code, error) = fails(&[&["--url", &*url], words].concat());
            assert_eq!(code, 3, "{error}");
            let next = "the role needs usage on the schema of the timers, and select, insert";
            assert!(error.contains(missing) && error.contains(next), "{error}");
        }
    }
    let grant = "grant insert, update, delete on all tables in schema tourbillon to cli_reader";
    database.psql(grant).expect("a superuser");
    let output = call(&["queues", "--url", &database.url_of("cli_reader")]);
    assert_eq!((code(&output), text(&output.stderr)), (0, String::new()));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_database_without_tables_is_refused_and_stays_as_it_is() {
    let database = cluster::database();
    let url = database.url();
    for (schema, said) in [
        ("tourbillon", "no tables of timers in the schema tourbillon"),
        ("shop", "no tables of timers in the schema shop"),
        // Not one of ours.
        ("pg_catalog", "schema"),
        ("a b", "schema"),
        ("", "schema"),
    ] {
        let (code, error) = fails(&["queues", "--url", &url, "--schema", schema]);
        assert_eq!(code, 3, "{error}");
        assert!(error.contains(said), "{error}");
    }
    let schemas = "select count(*) from pg_namespace where nspname in ('tourbillon', 'shop')";
    assert_eq!(database.psql(schemas).as_deref(), Ok("0"));
    // The SQL of the command makes them.
    let sql = text(&call(&["schema", "--schema", "shop"]).stdout);
    database.client().batch_execute(&sql).expect("it is SQL");
    let output = call(&["queues", "--url", &url, "--schema", "shop"]);
    assert_eq!((code(&output), text(&output.stderr)), (0, String::new()));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_wrong_password_or_database_is_refused_and_nobody_sees_the_password() {
    let cluster = Cluster::start();
    let database = cluster.database();
    drop(timers(&database));
    let role = "create role app login superuser password 'p:w'";
    database.psql(role).expect("a superuser");
    cluster.admit("host all app 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n");
    let url = |user: &str| database.url_of(user);
    for (url, said) in [
        (url("app:sesame"), "28P01"),
        (url("app"), "password missing"),
        (url("nobody:sesame"), "28000"),
        (
            url("postgres:sesame").replace(database.name(), "nowhere"),
            "3D000",
        ),
        ("postgres://app:sesame@127.0.0.1:x/".to_owned(), "URL"),
        ("http://app:sesame@127.0.0.1/".to_owned(), "URL"),
        ("sesame".to_owned(), "URL"),
    ] {
        let (code, error) = fails(&["list", "--url", &url]);
        assert_eq!(code, 3, "{url}: {error}");
        assert!(error.contains(said), "{url}: {error}");
        assert!(!error.contains("sesame"), "{error}");
    }
    // The right one, from the environment.
    let mut list = command();
    list.env("PGPASSWORD", "p:w")
        .env("TOURBILLON_URL", url("app"));
    let output = list.arg("list").output().expect("it starts");
    assert_eq!((code(&output), text(&output.stderr)), (0, String::new()));
}
