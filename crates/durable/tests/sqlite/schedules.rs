//! Schedules in a shell on the file: the view, pauses, and metas that anybody may have written.

use std::collections::BTreeSet;

use rusqlite::Connection as Raw;
use serde_json::json;
use tourbillon_durable::rusqlite;
use tourbillon_durable::store::{Epoch, NewNode, Store};

use crate::folder::Folder;

const DUE: i64 = 4_000_000_000_000_000;
const LATEST: i64 = 253_402_300_799_999_999;

fn write(shell: &Raw, key: &str, meta: &str) {
    let sql =
        "insert into tourbillon_timer(queue, key, shard, due, planned, generation, payload, meta)
               values ('q', ?1, 0, ?2, ?2, 1, '7', ?3)";
    shell.execute(sql, (key, DUE, meta)).expect("written");
}

fn one<T: rusqlite::types::FromSql>(shell: &Raw, sql: &str) -> T {
    shell.query_row(sql, (), |row| row.get(0)).expect(sql)
}

#[test]
fn a_view_shows_schedules_whatever_their_metas_have() {
    let folder = Folder::new();
    let store = folder.store();
    let shell = Raw::open(folder.file()).expect("a connection");
    let last = json!({ "at": "2026-12-01T00:00:00Z", "outcome": "done" });
    let good = json!({ "cron": { "expression": "@daily", "zone": "UTC", "revision": 2, "declared": true, "last": last } });
    write(&shell, "good", &good.to_string());
    let shown = "select concat_ws('|', expression, zone, state, next_utc, last, last_ended, last_outcome, revision, paused, unnamed)
                 from tourbillon_schedules where key = 'good'";
    let of =
        |state: &str, rest: &str| format!("@daily|UTC|{state}2026-12-01T00:00:00Z|done|2|{rest}");
    let waiting = "waiting|2096-10-02 07:06:40.000000|";
    assert_eq!(one::<String>(&shell, shown), of(waiting, "0|1"));
    // A node whose program names it.
    let mut connection = store.connect().expect("a connection");
    let node = NewNode {
        epoch: Epoch(7),
        name: "shop-1".into(),
        queues: vec!["q".into()],
        schedules: [("q".to_owned(), BTreeSet::from(["good".to_owned()]))].into(),
    };
    connection.join(&node).expect("joined");
    assert_eq!(one::<String>(&shell, shown), of(waiting, "0|0"));
    connection.leave(node.epoch).expect("left");
    let change = |sql: &str| {
        shell.execute_batch(sql).expect(sql);
        one::<i64>(
            &shell,
            "select due from tourbillon_timer where key = 'good'",
        )
    };
    let pause = "update tourbillon_schedules set paused = 1 where key = 'good'";
    assert_eq!([change(pause), change(pause)], [LATEST; 2]);
    assert_eq!(one::<String>(&shell, shown), of("paused|", "1|1"));
    let resume = "update tourbillon_schedules set paused = 0 where key = 'good'";
    assert_eq!([change(resume), change(resume)], [DUE; 2]);
    assert_eq!(one::<String>(&shell, shown), of(waiting, "0|1"));

    let odd = [
        r#"{"cron": {"expression": null}}"#,
        r#"{"cron": {"expression": [1, {"a": 2}], "zone": 5, "revision": "two", "paused": "yes", "declared": 1}}"#,
        r#"{"cron": {"expression": "@daily", "last": "never", "at": {}}}"#,
        r#"{"cron": {"expression": "@daily", "last": [1], "revision": 1e300, "paused": null}}"#,
    ];
    for (number, meta) in odd.iter().enumerate() {
        write(&shell, &format!("odd{number}"), meta);
    }
    let none = ["\"@daily\"", "null", "[]", "{}", "5"];
    for (number, cron) in none.iter().enumerate() {
        write(
            &shell,
            &format!("none{number}"),
            &format!("{{\"cron\": {cron}}}"),
        );
    }
    let all = "select count(*) * 100 + count(next_utc) * 10 + max(paused) from tourbillon_schedules where key <> 'good'";
    assert_eq!(one::<i64>(&shell, all), 440);
    shell
        .execute_batch("update tourbillon_schedules set paused = 1")
        .expect("they can be paused");
    assert_eq!(
        one::<i64>(&shell, "select sum(paused) from tourbillon_schedules"),
        5
    );
    shell
        .execute_batch(
            "update tourbillon_schedules set paused = 0; delete from tourbillon_schedules",
        )
        .expect("they can be resumed and cancelled");
    assert_eq!(
        one::<i64>(
            &shell,
            "select count(*) from tourbillon_timer where due = 4000000000000000"
        ),
        5
    );
    // Names that no program has written fail no view.
    write(&shell, "k", &good.to_string());
    for names in [
        "{}",
        "[]",
        "5",
        "\"q\"",
        "{\"q\": 5}",
        "{\"q\": {\"a\": \"k\"}}",
    ] {
        shell
            .execute(
                "update tourbillon_node set gone = null, schedules = ?1",
                [names],
            )
            .expect("written");
        one::<i64>(&shell, "select unnamed from tourbillon_schedules");
        assert_eq!(
            connection.nodes().expect("the store reads").len(),
            1,
            "{names}"
        );
    }
}
