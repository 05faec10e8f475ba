//! Schedules in `psql`: the view, pauses, and metas that anybody may have written.

use std::collections::BTreeSet;

use tourbillon_durable::Postgres;
use tourbillon_durable::store::{Epoch, NewNode, Store};

use crate::cluster::{self, Database};

fn ok(database: &Database, sql: &str) -> String {
    database
        .psql(sql)
        .unwrap_or_else(|error| panic!("{sql}: {error}"))
}

fn schedule(database: &Database, key: &str, cron: &str) {
    let sql = format!(
        "select tourbillon.schedule('q', '{key}', interval '1 h', '7', '{{\"cron\": {cron}}}')"
    );
    ok(database, &sql);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_view_shows_schedules_whatever_their_metas_have() {
    let database = cluster::lent();
    let last =
        r#"{"at": "2026-12-01T00:00:00Z", "ended": "2026-12-01T00:00:07Z", "outcome": "done"}"#;
    let good = format!(
        r#"{{"expression": "@daily", "zone": "UTC", "revision": 2, "declared": true, "last": {last}}}"#
    );
    schedule(&database, "good", &good);
    let shown = "select expression, zone, state, next > clock_timestamp(), last, last_ended, last_outcome, revision, \
                 paused, unnamed from tourbillon.schedules where key = 'good'";
    let of = |state: &str, rest: &str| {
        format!("@daily|UTC|{state}|2026-12-01T00:00:00Z|2026-12-01T00:00:07Z|done|2|{rest}")
    };
    assert_eq!(ok(&database, shown), of("waiting|t", "f|t"));
    // A node whose program names it.
    let store = Postgres::connect(&database.url()).expect("the cluster answers");
    let mut connection = store.connect().expect("the cluster answers");
    let node = NewNode {
        epoch: Epoch(7),
        name: "shop-1".into(),
        queues: vec!["q".into()],
        schedules: [("q".to_owned(), BTreeSet::from(["good".to_owned()]))].into(),
    };
    connection.join(&node).expect("joined");
    assert_eq!(ok(&database, shown), of("waiting|t", "f|f"));
    connection.leave(node.epoch).expect("left");
    assert_eq!(ok(&database, shown), of("waiting|t", "f|t"));
    assert_eq!(ok(&database, "select tourbillon.pause('q', 'good')"), "t");
    assert_eq!(ok(&database, shown), of("paused|", "t|t"));
    let timers = "select state, due from tourbillon.timers where key = 'good'";
    assert!(ok(&database, timers).starts_with("paused|9999-12-31 "));
    assert_eq!(ok(&database, "select tourbillon.resume('q', 'good')"), "t");
    assert_eq!(ok(&database, shown), of("waiting|t", "f|t"));

    let odd = [
        r#"{"expression": null}"#,
        r#"{"expression": [1, {"a": 2}], "zone": 5, "revision": "two", "paused": "yes", "declared": 1}"#,
        r#"{"expression": "@daily", "last": "never", "at": {}}"#,
        r#"{"expression": "@daily", "last": [1], "revision": 1e300, "paused": null}"#,
    ];
    for (number, cron) in odd.iter().enumerate() {
        schedule(&database, &format!("odd{number}"), cron);
    }
    for (number, cron) in [r#""@daily""#, "null", "[]", "{}", "5"].iter().enumerate() {
        schedule(&database, &format!("none{number}"), cron);
    }
    let plain = "select tourbillon.schedule('q', 'plain', interval '1 h', '7')";
    ok(&database, plain);
    let all = "select count(*), count(next), bool_or(paused) from tourbillon.schedules where key <> 'good'";
    assert_eq!(ok(&database, all), "4|4|f");
    for key in ["odd0", "odd1", "odd2", "odd3"] {
        for verb in ["pause", "resume"] {
            let sql = format!("select tourbillon.{verb}('q', '{key}')");
            assert_eq!(ok(&database, &sql), "t", "{sql}");
            let paused = format!("select paused from tourbillon.schedules where key = '{key}'");
            let expected = if verb == "pause" { "t" } else { "f" };
            assert_eq!(ok(&database, &paused), expected, "{sql}");
        }
    }
    for key in ["none0", "none3", "plain", "nothing"] {
        let sql = format!("select tourbillon.pause('q', '{key}'), tourbillon.resume('q', '{key}')");
        assert_eq!(ok(&database, &sql), "f|f", "{sql}");
    }
    let refused = database.psql("select tourbillon.pause('q', '')");
    assert!(
        refused
            .expect_err("no key")
            .contains("a key has 1 to 512 bytes")
    );
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_pause_and_a_resume_wait_for_each_other() {
    let database = cluster::lent();
    schedule(&database, "k", r#"{"expression": "@daily", "zone": "UTC"}"#);
    let due = "select due from tourbillon.timer where key = 'k'";
    let before = ok(&database, due);
    std::thread::scope(|scope| {
        for verb in ["pause", "resume"].repeat(4) {
            let database = &database;
            scope.spawn(move || {
                for _ in 0..10 {
                    ok(database, &format!("select tourbillon.{verb}('q', 'k')"));
                }
            });
        }
    });
    ok(&database, "select tourbillon.resume('q', 'k')");
    assert_eq!(ok(&database, due), before);
    let meta = "select meta from tourbillon.timer where key = 'k'";
    assert!(!ok(&database, meta).contains("paused"));
}
