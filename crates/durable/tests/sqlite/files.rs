//! Files that can't be used, and tables of other versions: each is a clear error.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use tourbillon_durable::store::{Store, StoreError, StoreTime};
use tourbillon_durable::{Durable, Sqlite, WallClock, rusqlite};

use crate::folder::{Folder, schedule_in};

const MINUTE: Duration = Duration::from_secs(60);

#[track_caller]
fn refused(path: impl AsRef<Path>) -> String {
    match Sqlite::open(path) {
        Err(StoreError::Refused(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn has(text: &str, word: &str) {
    assert!(text.contains(word), "{text}");
}

#[test]
fn a_database_without_a_file_is_refused_with_a_hint() {
    has(&refused(""), "Memory");
    has(&refused(":memory:"), "Memory");
    has(
        &refused("file:timers.db?mode=memory"),
        "the path of the file alone",
    );
}

#[test]
fn a_missing_folder_a_folder_and_a_path_with_nul_are_refused() {
    let folder = Folder::new();
    has(
        &refused(folder.path().join("no/timers.db")),
        "there is no folder",
    );
    has(&refused(folder.path()), "is a folder");
    has(&refused(folder.path().join("a\0b")), "nul byte");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let folder = Folder::new();
    let text = "these are notes, not a database\n".repeat(100);
    fs::write(folder.file(), &text).expect("a file");
    has(&refused(folder.file()), "no database of SQLite");
    assert_eq!(fs::read_to_string(folder.file()).expect("a file"), text);
}

#[test]
fn an_empty_file_becomes_a_store() {
    let folder = Folder::new();
    fs::write(folder.file(), "").expect("a file");
    let mut connection = folder.store().connect().expect("a connection");
    let answers = connection.write(&[schedule_in("q", "k", MINUTE)]);
    assert!(answers.expect("answers")[0].is_ok());
}

#[test]
fn a_corrupt_file_is_refused_when_its_damage_is_met() {
    let folder = Folder::new();
    let mut connection = folder.store().connect().expect("a connection");
    let calls: Vec<_> = (0..2_000)
        .map(|number| schedule_in("q", &format!("key {number}"), MINUTE))
        .collect();
    connection.write(&calls).expect("answers");
    // The last connection moves all pages into the file.
    drop(connection);
    let mut bytes = fs::read(folder.file()).expect("a file");
    // All pages but the first, which has the schema's root.
    bytes[4096..].fill(0x5a);
    fs::write(folder.file(), bytes).expect("a file");
    has(&refused(folder.file()), "corrupt");
}

#[test]
fn a_file_that_has_vanished_is_not_created_anew() {
    let folder = Folder::new();
    let store = folder.store();
    fs::remove_file(folder.file()).expect("removed");
    let Err(error) = store.connect() else {
        panic!("connected");
    };
    assert!(matches!(&error, StoreError::Replaced(why) if why.contains("not there any more")));
    assert!(!folder.file().exists());
}

#[test]
fn a_store_is_found_after_the_process_has_changed_its_folder() {
    let folder = Folder::new();
    let store = folder.store();
    assert!(store.path().is_absolute());
    assert_eq!(
        store.path(),
        std::path::absolute(folder.file()).expect("a path")
    );
}

#[test]
fn the_tables_lie_beside_those_of_the_user() {
    let folder = Folder::new();
    let shop = Connection::open(folder.file()).expect("a connection");
    shop.execute_batch(
        "create table orders(id integer primary key); insert into orders values (7)",
    )
    .expect("an order");
    let mut connection = folder.store().connect().expect("a connection");
    connection
        .write(&[schedule_in("q", "k", MINUTE)])
        .expect("answers");
    let sql = "select count(*) from sqlite_schema
               where type in ('table', 'view') and name not like 'tourbillon_%'
                 and name not like 'sqlite_%'";
    let count = |sql| shop.query_row(sql, (), |row| row.get::<_, i64>(0));
    assert_eq!(count(sql), Ok(1));
    assert_eq!(count("select id from orders"), Ok(7));
}

#[test]
fn people_see_timers_with_readable_times() {
    let folder = Folder::new();
    let clock = WallClock::manual(StoreTime::from_micros(1_700_000_000_123_456).into());
    let store = folder.store().with_clock(clock);
    let mut connection = store.connect().expect("a connection");
    connection
        .write(&[schedule_in("pay", "order:7", MINUTE)])
        .expect("answers");
    let plain = Connection::open(folder.file()).expect("a connection");
    let sql = "select queue, key, due_utc, state, payload ->> '$' from tourbillon_timers";
    let found = plain.query_row(sql, (), |row| {
        Ok([
            row.get(0)?,
            row.get(1)?,
            row.get(2)?,
            row.get(3)?,
            row.get(4)?,
        ])
    });
    let wanted = [
        "pay",
        "order:7",
        "2023-11-14 22:14:20.123456",
        // By the clock of the machine, whatever that of the store is.
        "overdue",
        "{}",
    ];
    assert_eq!(found, Ok(wanted.map(str::to_owned)));
    let check = plain.query_row("pragma integrity_check", (), |row| row.get::<_, String>(0));
    assert_eq!(check.as_deref(), Ok("ok"));
}

// === versions ===

fn set_version(folder: &Folder, version: i64, oldest_ok: i64) {
    let plain = Connection::open(folder.file()).expect("a connection");
    let sql = "update tourbillon_meta set version = ?1, oldest_ok = ?2";
    plain.execute(sql, (version, oldest_ok)).expect("set");
}

#[test]
fn a_program_goes_on_while_newer_tables_admit_it() {
    let folder = Folder::new();
    let store = folder.store();
    let mut connection = store.connect().expect("a connection");
    set_version(&folder, 2, 1);
    let calls = [schedule_in("q", "k", MINUTE)];
    connection.write(&calls).expect("answers");
    // It also starts anew during a deploy, and leaves the version alone.
    let mut other = folder.store().connect().expect("a connection");
    other.write(&calls).expect("answers");
    let plain = Connection::open(folder.file()).expect("a connection");
    let version = plain.query_row("select version from tourbillon_meta", (), |row| row.get(0));
    assert_eq!(version, Ok(2));
}

#[test]
fn a_program_that_newer_tables_do_not_admit_is_told_to_update() {
    let folder = Folder::new();
    let store = folder.store();
    let mut connection = store.connect().expect("a connection");
    let calls = [schedule_in("q", "k", MINUTE)];
    connection.write(&calls).expect("answers");
    set_version(&folder, 3, 2);
    has(&refused(folder.file()), "update it");
    // The calls of open connections end with the same words, those that read and those that write.
    for error in [
        connection.write(&calls).expect_err("refused"),
        connection.get("q", "k").expect_err("refused"),
    ] {
        assert!(
            matches!(&error, StoreError::Refused(why) if why.contains("update it")),
            "{error}"
        );
    }
    set_version(&folder, 1, 1);
    assert!(connection.get("q", "k").expect("an answer").is_some());
}

#[test]
fn tables_older_than_the_program_are_refused_until_they_are_migrated() {
    let folder = Folder::new();
    let mut connection = folder.store().connect().expect("a connection");
    set_version(&folder, 0, 0);
    let error = connection.get("q", "k").expect_err("refused");
    assert!(
        matches!(&error, StoreError::Refused(why) if why.contains("Sqlite::open")),
        "{error}"
    );
}

#[test]
fn tables_without_their_version_are_refused() {
    let folder = Folder::new();
    drop(folder.store());
    let plain = Connection::open(folder.file()).expect("a connection");
    plain
        .execute("delete from tourbillon_meta", ())
        .expect("deleted");
    has(&refused(folder.file()), "tourbillon_meta");
    plain
        .execute_batch("drop table tourbillon_meta")
        .expect("dropped");
    // It does not guess what the other tables are.
    has(&refused(folder.file()), "already exists");
}

#[test]
fn tables_of_an_earlier_version_are_refused_with_the_column_that_they_lack() {
    let folder = Folder::new();
    drop(folder.store());
    let plain = Connection::open(folder.file()).expect("a connection");
    let all = "select t.name, c.name from sqlite_schema t join pragma_table_info(t.name) c \
               where t.type = 'table' and t.name glob 'tourbillon_*' and t.name <> 'tourbillon_meta'";
    let mut all = plain.prepare(all).expect("SQL");
    let all = all.query_map((), |row| Ok((row.get(0)?, row.get(1)?)));
    let all: Vec<(String, String)> = all.expect("rows").map(|row| row.expect("texts")).collect();
    assert!(all.contains(&("tourbillon_node".to_owned(), "beat_at".to_owned())));
    // Those of an earlier version name other columns.
    for view in ["schedules", "timers", "dead_letters", "queues", "nodes"] {
        let drop = format!("drop view tourbillon_{view}");
        plain.execute_batch(&drop).expect("dropped");
    }
    for (table, column) in &all {
        let rename = |from: &str, to: &str| {
            let sql = format!("alter table {table} rename column \"{from}\" to \"{to}\"");
            plain.execute_batch(&sql).expect("renamed");
        };
        rename(column, "elsewhere");
        let looked_after = Sqlite::open_existing(folder.file(), "tourbillon");
        let looked_after = looked_after.expect_err("it lacks a column").to_string();
        for why in [&*refused(folder.file()), &looked_after] {
            has(why, &format!("no such column: {}.{column}", &table[11..12]));
            has(why, "earlier version");
            has(
                why,
                "make them anew, in another file or with another prefix",
            );
            assert!(!why.contains("select"), "{why}");
        }
        rename("elsewhere", column);
    }
    let mut connection = folder.store().connect().expect("a connection");
    let calls = [schedule_in("q", "k", MINUTE)];
    connection.write(&calls).expect("answers");
    plain
        .execute_batch("alter table tourbillon_queue rename to elsewhere")
        .expect("renamed");
    has(&refused(folder.file()), "no such table: tourbillon_queue");
}

#[test]
fn a_file_that_is_looked_after_is_neither_made_nor_changed() {
    let folder = Folder::new();
    let refused = |path: &std::path::Path, prefix: &str| match Sqlite::open_existing(path, prefix) {
        Err(StoreError::Refused(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(refused(&folder.file(), "tourbillon").contains("there is no such file"));
    assert!(!folder.file().exists());
    // A file of somebody else's stays as it is, to the byte.
    let plain = rusqlite::Connection::open(folder.file()).expect("a connection");
    plain.execute_batch("create table mine(a)").expect("made");
    drop(plain);
    let before = std::fs::read(folder.file()).expect("it is there");
    assert!(refused(&folder.file(), "tourbillon").contains("no tables of timers"));
    assert_eq!(std::fs::read(folder.file()).expect("it is there"), before);
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("a folder").count(),
        1
    );
    // No database at all, and a folder.
    let text = folder.path().join("text");
    std::fs::write(&text, "x".repeat(5_000)).expect("written");
    refused(&text, "tourbillon");
    assert!(Sqlite::open_existing(folder.path(), "tourbillon").is_err());
    // The right one, and the wrong prefix.
    drop(folder.store());
    assert!(refused(&folder.file(), "shop").contains("prefix shop"));
    let opened = Sqlite::open_existing(folder.file(), "tourbillon").expect("it has tables");
    let timers = Durable::builder(opened).start().expect("it starts");
    assert_eq!(timers.counts().wait(), Ok(vec![]));
}
