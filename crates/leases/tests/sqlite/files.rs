//! Files that are wrong, locked, removed or full.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use kit::wait;
use rusqlite::TransactionBehavior;
use tourbillon_leases::{
    Acquired, Destination, Leases, Outcome, Renewal, Secret, SqliteStore, StoreError,
};

use crate::calls::Calls;
use crate::folder::{Folder, LEASE, LIMIT, MS, claim, granted, held, number, renew};

#[track_caller]
fn refused(answer: Result<SqliteStore, StoreError>, word: &str) {
    let Err(StoreError::Refused(why)) = answer else {
        panic!("it is refused: {answer:?}");
    };
    assert!(why.contains(word), "{word}: {why}");
}

#[test]
fn paths_where_no_other_process_finds_the_file_are_refused() {
    let folder = Folder::new();
    for (path, word) in [
        ("", "name a file"),
        (":memory:", "MemoryStore"),
        ("file:app.db", "URI"),
        ("/no/such/folder/app.db", "no folder"),
        ("/", "a folder"),
    ] {
        refused(SqliteStore::open(path), word);
        refused(SqliteStore::open_existing(path), "");
    }
    refused(SqliteStore::open(folder.path()), "name a file");
    refused(SqliteStore::open_existing(folder.file()), "no such file");
    assert!(!folder.file().exists());
    // A file of somebody else's.
    folder
        .plain()
        .execute_batch("create table shop(id)")
        .unwrap();
    refused(SqliteStore::open_existing(folder.file()), "no tables");
    let tables = "select count(*) from sqlite_master";
    assert_eq!(number(&folder.plain(), tables), 1);
    let mode: String = folder
        .plain()
        .query_row("pragma journal_mode", (), |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "delete");
    let store = folder.store();
    let token = granted(&store, "x", "a:1");
    let existing = SqliteStore::open_existing(folder.file()).unwrap();
    let holder = existing.holder_of("x", LIMIT).unwrap().unwrap();
    assert_eq!(holder.token, token);
    let shown = format!("{existing:?}");
    assert!(shown.contains("app.db"), "{shown}");
}

#[test]
fn tables_that_need_a_newer_version_are_refused_in_words() {
    let folder = Folder::new();
    drop(folder.store());
    let set = |version: i64, oldest_ok: i64| {
        let sql = "update tourbillon_lease_state set version = ?1, oldest_ok = ?2";
        folder.plain().execute(sql, (version, oldest_ok)).unwrap();
    };
    // Newer tables are used while they admit this version.
    set(5, 1);
    granted(&folder.store(), "x", "a:1");
    set(5, 2);
    let opened = SqliteStore::open(folder.file());
    refused(opened, "use a newer version of tourbillon-leases");
}

#[test]
fn files_that_are_no_database_or_corrupt_are_refused_and_left_alone() {
    let folder = Folder::new();
    let text = "no database, ".repeat(1_000);
    fs::write(folder.file(), &text).unwrap();
    refused(SqliteStore::open(folder.file()), "no database of SQLite");
    assert_eq!(fs::read_to_string(folder.file()).unwrap(), text);
    fs::remove_file(folder.file()).unwrap();
    drop(folder.store());
    // The head is left, and nothing of the tables.
    let mut bytes = fs::read(folder.file()).unwrap();
    bytes[100..].fill(0xff);
    fs::write(folder.file(), bytes).unwrap();
    refused(SqliteStore::open(folder.file()), "corrupt");
}

#[test]
fn tables_that_are_dropped_or_emptied_are_told_and_grant_nothing() {
    for (sql, word) in [
        ("delete from tourbillon_lease_state", "is empty"),
        ("drop table tourbillon_lease_state", "no such table"),
        ("drop table tourbillon_lease", "no such table"),
    ] {
        let folder = Folder::new();
        let store = folder.store();
        folder.plain().execute_batch(sql).unwrap();
        let answer = store.acquire(&claim("x", "a:1"), LIMIT);
        let error = answer.expect_err("nothing is there").to_string();
        assert!(error.contains(word), "{error}");
        drop(store);
        // A table that is gone alone is not made anew over what is left.
        match SqliteStore::open(folder.file()) {
            Err(StoreError::Refused(_)) => {}
            Ok(store) => {
                let answer = store.acquire(&claim("x", "a:1"), LIMIT);
                assert!(answer.is_err(), "{sql}: {answer:?}");
            }
            other => panic!("{sql}: {other:?}"),
        }
    }
}

#[test]
fn a_lock_of_the_file_is_waited_for_until_the_limit_of_each_call() {
    let folder = Folder::new();
    let (store, mut user) = (folder.store(), folder.plain());
    granted(&store, "x", "a:1");
    let transaction = user
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    thread::scope(|scope| {
        let patient = scope.spawn(|| store.acquire(&claim("y", "a:1"), LIMIT));
        // A call behind one that waits for long has its own limit.
        let start = Instant::now();
        let answer = store.acquire(&claim("y", "a:2"), 200 * MS);
        let Err(StoreError::Unavailable(why)) = answer else {
            panic!("{answer:?}");
        };
        assert!(why.contains("holds the lock"), "{why}");
        assert!(start.elapsed() < LIMIT / 2);
        let renewal = [Renewal::new("x", Secret::new("a:1"), LEASE)];
        let renewed = store.renew(Destination::default(), &renewal, 50 * MS);
        assert!(matches!(renewed, Err(StoreError::Unavailable(_))));
        // Reads wait for nobody.
        assert!(store.holder_of("x", 500 * MS).unwrap().is_some());
        transaction.commit().unwrap();
        let granted = patient.join().unwrap();
        assert!(
            matches!(granted, Ok(Acquired::Granted { .. })),
            "{granted:?}"
        );
    });
}

#[test]
fn an_opening_waits_for_the_lock_of_the_file_for_five_seconds_at_most() {
    let folder = Folder::new();
    let mut user = folder.plain();
    user.execute_batch("pragma journal_mode = wal; create table shop(id)")
        .unwrap();
    let transaction = user
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    let start = Instant::now();
    let opened = SqliteStore::open(folder.file());
    assert!(
        matches!(opened, Err(StoreError::Unavailable(_))),
        "{opened:?}"
    );
    assert!(start.elapsed() > Duration::from_secs(4));
    transaction.rollback().unwrap();
    folder.store();
    // One that finds its tables waits for nobody.
    let _transaction = user
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    folder.store();
}

#[test]
fn a_renewal_outlives_a_short_lock_and_a_long_one_ends_the_lease() {
    let folder = Folder::new();
    let (store, mut user) = (folder.store(), folder.plain());
    let leases = Leases::builder(store).lease(600 * MS).build().unwrap();
    let guard = leases.lock("x").wait().unwrap();
    let before = guard.renewals();
    wait::until("it is renewed", || guard.renewals() > before);
    let transaction = user
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    wait::until("it is lost", || !guard.is_held());
    transaction.rollback().unwrap();
    assert!(guard.release().wait().is_err());
    leases.lock("x").wait().unwrap().release().wait().unwrap();
}

/// Moves a file with its log, as somebody does who does not know that it is open.
#[cfg(unix)]
fn move_file(from: &Path, to: &Path) {
    for end in ["", "-wal", "-shm"] {
        let name = |path: &Path| format!("{}{end}", path.display());
        fs::rename(name(from), name(to)).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn a_file_that_is_removed_grants_nothing_more_and_takes_nothing_along() {
    let folder = Folder::new();
    let away = folder.path().join("away.db");
    let store = folder.store();
    granted(&store, "x", "a:1");
    move_file(&folder.file(), &away);
    let gone = |store: &SqliteStore| {
        let answer = store.acquire(&claim("y", "a:1"), LIMIT);
        let Err(StoreError::Unavailable(why)) = answer else {
            panic!("{answer:?}");
        };
        assert!(why.contains("removed or replaced"), "{why}");
        let renewal = [Renewal::new("x", Secret::new("a:1"), LEASE)];
        let renewed = store.renew(Destination::default(), &renewal, LIMIT);
        assert!(renewed.is_err(), "{renewed:?}");
        assert!(store.holder_of("x", LIMIT).is_err());
    };
    gone(&store);
    // No file is made in its place. Another process makes one.
    assert!(!folder.file().exists());
    let other = folder.store();
    granted(&other, "z", "b:1");
    gone(&store);
    drop(store);
    // The end of the old one has left the log of the new one.
    held(&folder.store(), &claim("z", "c:1"));
    drop(other);
    held(&folder.store(), &claim("z", "c:1"));
}

#[cfg(unix)]
#[test]
fn a_process_without_its_log_writes_nothing_to_the_file_that_others_use() {
    let folder = Folder::new();
    let store = folder.store();
    granted(&store, "x", "a:1");
    for end in ["-wal", "-shm"] {
        fs::remove_file(format!("{}{end}", folder.file().display())).unwrap();
    }
    let before = fs::read(folder.file()).unwrap();
    // SQLite would copy a log of 1,000 pages to the file.
    for at in 0..1_500 {
        let name = format!("{at:>1000}");
        let answer = store.acquire(&claim(&name, "a:1"), LIMIT);
        assert!(
            matches!(answer, Err(StoreError::Unavailable(_))),
            "{answer:?}"
        );
        assert!(fs::read(folder.file()).unwrap() == before, "after {at}");
    }
    drop(store);
    assert!(fs::read(folder.file()).unwrap() == before);
}

#[cfg(unix)]
#[test]
fn a_file_with_two_names_is_used_by_neither() {
    let folder = Folder::new();
    let second = folder.path().join("second.db");
    let store = folder.store();
    let token = granted(&store, "x", "a:1");
    fs::hard_link(folder.file(), &second).unwrap();
    for path in [&second, &folder.file()] {
        refused(SqliteStore::open(path), "hard link");
        refused(SqliteStore::open_existing(path), "hard link");
    }
    let log = folder.path().join("second.db-wal");
    assert!(!log.exists());
    let Err(StoreError::Unavailable(why)) = store.acquire(&claim("y", "a:1"), LIMIT) else {
        panic!("it has two names");
    };
    assert!(why.contains("hard link"), "{why}");
    assert!(store.holder_of("x", LIMIT).is_err());
    // A program that makes links for a backup may remove them again.
    fs::remove_file(&second).unwrap();
    assert!(granted(&store, "y", "a:1") > token);
}

#[test]
fn an_older_copy_that_is_written_over_the_file_is_noticed() {
    let folder = Folder::new();
    let (one, other) = (folder.store(), folder.store());
    granted(&one, "x", "a:1");
    let copy = folder.path().join("copy.db");
    let db = folder.plain();
    let save = "vacuum into ?1";
    db.execute(save, [copy.to_str().unwrap()]).unwrap();
    let last = granted(&one, "y", "a:1");
    // As a restore by the tools of SQLite does.
    db.execute("attach ?1 as copy", [copy.to_str().unwrap()])
        .unwrap();
    let restore = "delete from tourbillon_lease; delete from tourbillon_lease_state;
        insert into tourbillon_lease select * from copy.tourbillon_lease;
        insert into tourbillon_lease_state select * from copy.tourbillon_lease_state;";
    db.execute_batch(restore).unwrap();
    let is_told = |answer: Result<(), StoreError>| {
        let Err(StoreError::Refused(why)) = answer else {
            panic!("{answer:?}");
        };
        assert!(why.contains("older copy"), "{why}");
    };
    is_told(one.acquire(&claim("z", "a:1"), LIMIT).map(drop));
    is_told(one.holder_of("x", LIMIT).map(drop));
    // One that has seen none of the later tokens can't tell.
    other.holder_of("x", LIMIT).unwrap();
    drop((one, other));
    // As the documentation says.
    db.execute_batch("update tourbillon_lease_state set boot = 'restored'")
        .unwrap();
    let store = folder.store();
    assert_eq!(store.holder_of("x", LIMIT), Ok(None));
    assert!(granted(&store, "x", "b:1") > last);
}

#[cfg(unix)]
#[test]
fn a_file_that_comes_back_is_used_again() {
    let folder = Folder::new();
    let away = folder.path().join("away.db");
    let store = folder.store();
    granted(&store, "x", "a:1");
    move_file(&folder.file(), &away);
    assert!(store.holder_of("x", LIMIT).is_err());
    move_file(&away, &folder.file());
    let renewal = [Renewal::new("x", Secret::new("a:1"), LEASE)];
    assert_eq!(renew(&store, &renewal), [Outcome::Renewed]);
    // Without its log it is not the same file.
    fs::remove_file(format!("{}-wal", folder.file().display())).unwrap();
    assert!(store.holder_of("x", LIMIT).is_err());
}

#[cfg(unix)]
#[test]
fn a_link_leads_to_the_same_locks_and_its_log_is_that_of_the_file() {
    let folder = Folder::new();
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink(folder.file(), &link).unwrap();
    let (linked, store) = (SqliteStore::open(&link).unwrap(), folder.store());
    granted(&linked, "x", "a:1");
    held(&store, &claim("x", "b:1"));
    fs::remove_file(format!("{}-wal", folder.file().display())).unwrap();
    assert!(linked.holder_of("x", LIMIT).is_err());
    drop((linked, store));
    let linked = SqliteStore::open(&link).unwrap();
    linked.holder_of("x", LIMIT).unwrap();
    // The link itself may lead elsewhere.
    fs::remove_file(&link).unwrap();
    assert!(linked.holder_of("x", LIMIT).is_err());
}

#[test]
fn the_file_may_have_the_tables_of_others_and_be_written_by_them() {
    let folder = Folder::new();
    let user = folder.plain();
    user.execute_batch("create table shop(id); insert into shop values (1)")
        .unwrap();
    let store = folder.store();
    thread::scope(|scope| {
        let writes = scope.spawn(move || {
            for _ in 0..200 {
                user.busy_timeout(LIMIT).unwrap();
                user.execute("update shop set id = id + 1", ()).unwrap();
            }
        });
        for _ in 0..200 {
            granted(&store, "x", "a:1");
            crate::folder::release(&store, "x", "a:1");
        }
        writes.join().unwrap();
    });
    assert_eq!(number(&folder.plain(), "select id from shop"), 201);
    let others = "select count(*) from sqlite_master where name not like 'tourbillon_lease%'
        and tbl_name not like 'tourbillon_lease%'";
    assert_eq!(number(&folder.plain(), others), 1);
}
