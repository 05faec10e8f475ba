//! A file that is moved, replaced, removed, emptied or written over while a process uses it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use kit::wait;
use rusqlite::Connection;
use tourbillon_durable::store::{self, Epoch, NewNode, Store, StoreError};
use tourbillon_durable::{CallError, Due, Durable, DurableEvent, Sqlite, rusqlite};

use crate::folder::Folder;

const HOUR: Duration = Duration::from_secs(3_600);

/// A node on the file, its events, and the keys that it ran.
fn node(store: &Sqlite) -> (Durable, Receiver<DurableEvent>, Receiver<String>) {
    node_with(store, Duration::from_secs(60))
}

fn node_with(
    store: &Sqlite,
    node_lease: Duration,
) -> (Durable, Receiver<DurableEvent>, Receiver<String>) {
    let (tell, events) = mpsc::channel();
    let (ran, runs) = mpsc::channel();
    let timers = Durable::builder(store.clone())
        .poll_interval(Duration::from_millis(20))
        .node_lease(node_lease)
        .on_event(move |event: &DurableEvent| drop(tell.send(event.clone())))
        .handle("q", move |due: &Due<u64>| {
            drop(ran.send(due.key().to_owned()));
        })
        .start();
    (timers.expect("a node"), events, runs)
}

fn beside(file: &Path, end: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// Another store, with a timer that is due, as a file that nobody uses.
fn other(folder: &Folder) -> PathBuf {
    let path = folder.path().join("copy.db");
    let timers = Durable::builder(Sqlite::open(&path).expect("a store")).start();
    let timers = timers.expect("a store");
    timers
        .schedule("q", "foreign", Duration::ZERO, &1)
        .wait()
        .expect("accepted");
    timers.stop(Duration::ZERO).wait().unwrap();
    drop(timers);
    path
}

/// What follows the event of the exchange is part of one outage.
#[track_caller]
fn is_one_outage(more: &[DurableEvent]) {
    let again = |event: &DurableEvent| {
        matches!(
            event,
            DurableEvent::StoreReplaced { .. } | DurableEvent::StoreUp | DurableEvent::NodeGone
        )
    };
    assert!(!more.iter().any(again), "{more:?}");
    let downs = more
        .iter()
        .filter(|event| matches!(event, DurableEvent::StoreDown { .. }));
    assert!(downs.count() <= 1, "{more:?}");
}

/// Exchanges the file under a node, and checks that the node and the calls notice it, and that
/// nothing was done on what lies there now.
#[track_caller]
fn is_noticed(exchange: impl FnOnce(&Folder, &Path)) -> (Folder, Durable, Receiver<String>) {
    let folder = Folder::new();
    let copy = other(&folder);
    let store = folder.store();
    let (timers, events, runs) = node(&store);
    timers
        .schedule("q", "before", Duration::ZERO, &1)
        .wait()
        .expect("accepted");
    assert_eq!(wait::next(&runs), "before");
    timers
        .schedule("q", "kept", HOUR, &1)
        .wait()
        .expect("accepted");
    exchange(&folder, &copy);
    let refused = timers.schedule("q", "lost", HOUR, &1).wait();
    let Err(CallError::Replaced(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(
        why.contains("timers.db") && why.contains("start them again"),
        "{why}"
    );
    assert!(matches!(
        timers.get("q", "kept").wait(),
        Err(CallError::Replaced(_))
    ));
    wait::until(
        "the node says what to do",
        || matches!(wait::next(&events), DurableEvent::StoreReplaced { error, .. } if error.contains("start them again")),
    );
    let before = timers.stats();
    wait::until("the node polls again and again", || {
        timers.stats().store_errors > before.store_errors + 3
    });
    assert!(timers.stats().replaced > 3);
    let more: Vec<DurableEvent> = events.try_iter().collect();
    is_one_outage(&more);
    assert_eq!(runs.try_recv().ok(), None);
    // Somebody who opens the store anew does so on purpose; a connection of this one never makes
    // tables.
    let Err(error) = store.connect() else {
        panic!("connected");
    };
    assert!(matches!(error, StoreError::Replaced(_)), "{error}");
    (folder, timers, runs)
}

#[test]
fn another_file_in_its_place_is_noticed_and_the_right_one_is_used_again() {
    let (folder, timers, runs) = is_noticed(|folder, copy| {
        // With its log, which a move of the file alone would leave to the other one.
        for end in ["", "-wal", "-shm"] {
            let away = beside(&folder.path().join("away.db"), end);
            fs::rename(beside(&folder.file(), end), away).expect("moved");
        }
        fs::rename(copy, folder.file()).expect("moved");
    });
    // The other one has its timer still, and is whole.
    let plain = Connection::open(folder.file()).expect("a connection");
    let sql =
        "select (select count(*) from tourbillon_timer) || (select * from pragma_integrity_check)";
    assert_eq!(
        plain.query_row(sql, (), |row| row.get(0)),
        Ok("1ok".to_owned())
    );
    drop(plain);
    // The file last: without its log beside it, it would count as one that has lost it.
    for end in ["-wal", "-shm", ""] {
        let away = beside(&folder.path().join("away.db"), end);
        fs::rename(away, beside(&folder.file(), end)).expect("moved back");
    }
    // The connections that are still open have the log open that is back.
    wait::until("the store is used again", || {
        timers
            .get("q", "kept")
            .wait()
            .is_ok_and(|timer| timer.is_some())
    });
    wait::until("it accepts", || {
        timers
            .schedule("q", "after", Duration::ZERO, &1)
            .wait()
            .is_ok()
    });
    assert_eq!(wait::next(&runs), "after");
    timers.stop(Duration::ZERO).wait().unwrap();
}

#[test]
fn another_file_over_it_is_noticed_and_its_log_is_left_alone() {
    let (folder, timers, _) = is_noticed(|folder, copy| {
        fs::rename(copy, folder.file()).expect("moved");
    });
    // Somebody else uses the new one. The old log must be removed by hand, as the guide says.
    let (wal, shm) = (
        beside(&folder.file(), "-wal"),
        beside(&folder.file(), "-shm"),
    );
    fs::remove_file(wal).expect("removed");
    fs::remove_file(shm).expect("removed");
    let next = Durable::builder(folder.store()).start().expect("a store");
    next.schedule("q", "new", HOUR, &1)
        .wait()
        .expect("accepted");
    // The end of the old process removes nothing of it.
    timers.stop(Duration::ZERO).wait().unwrap();
    drop(timers);
    let fresh = Durable::builder(folder.store()).start().expect("a store");
    assert!(fresh.get("q", "new").wait().expect("an answer").is_some());
    assert!(
        fresh
            .get("q", "foreign")
            .wait()
            .expect("an answer")
            .is_some()
    );
    assert!(next.get("q", "new").wait().expect("an answer").is_some());
}

#[test]
fn a_file_that_was_removed_is_noticed_and_not_made_anew() {
    let (folder, timers, _) =
        is_noticed(|folder, _| fs::remove_file(folder.file()).expect("removed"));
    timers.stop(Duration::ZERO).wait().unwrap();
    drop(timers);
    assert!(!folder.file().exists());
}

#[test]
fn a_file_that_was_emptied_is_noticed() {
    let (folder, timers, _) = is_noticed(|folder, _| {
        let file = fs::File::options().write(true).open(folder.file());
        // Leaked: its end would take the locks of this process along, unlike those of another
        // program.
        let file = std::mem::ManuallyDrop::new(file.expect("a file"));
        file.set_len(0).expect("emptied");
    });
    timers.stop(Duration::ZERO).wait().unwrap();
    drop(timers);
    let length = fs::metadata(folder.file()).expect("a file").len();
    assert_eq!(length, 0);
}

#[test]
fn a_log_that_was_removed_is_noticed() {
    for end in ["-wal", "-shm"] {
        is_noticed(|folder, _| fs::remove_file(beside(&folder.file(), end)).expect("removed"));
    }
}

#[test]
fn another_file_that_is_written_over_it_is_noticed() {
    is_noticed(|folder, copy| {
        let bytes = fs::read(copy).expect("a file");
        let copied = std::process::Command::new("cp")
            .arg(copy)
            .arg(folder.file())
            .status();
        assert!(copied.expect("cp is in the PATH").success());
        assert_eq!(
            fs::metadata(folder.file()).expect("a file").len(),
            bytes.len() as u64
        );
    });
}

#[test]
fn a_link_that_leads_elsewhere_is_noticed() {
    let folder = Folder::new();
    let copy = other(&folder);
    let link = folder.path().join("link.db");
    drop(folder.store());
    std::os::unix::fs::symlink(folder.file(), &link).expect("a link");
    let timers = Durable::builder(Sqlite::open(&link).expect("a store")).start();
    let timers = timers.expect("a store");
    timers
        .schedule("q", "k", HOUR, &1)
        .wait()
        .expect("accepted");
    fs::remove_file(&link).expect("removed");
    std::os::unix::fs::symlink(copy, &link).expect("a link");
    let refused = timers.schedule("q", "k", HOUR, &1).wait();
    assert!(
        matches!(refused, Err(CallError::Replaced(_))),
        "{refused:?}"
    );
}

const ME: Epoch = Epoch(7);

/// A connection of a node that has beaten ten times, and one of somebody else.
fn joined(folder: &Folder) -> (Sqlite, Box<dyn store::Connection>, Connection) {
    let store = folder.store();
    let mut open = store.connect().expect("a connection");
    let node = NewNode {
        epoch: ME,
        name: "a node".into(),
        queues: vec!["q".into()],
        schedules: Default::default(),
    };
    open.join(&node).expect("joined");
    for _ in 0..10 {
        open.beat(ME).expect("an answer").expect("it lives");
    }
    let plain = Connection::open(folder.file()).expect("a connection");
    (store, open, plain)
}

#[test]
fn a_file_that_is_older_by_one_beat_is_refused_and_never_catches_up() {
    let folder = Folder::new();
    let (store, mut open, mut plain) = joined(&folder);
    let other = Connection::open(folder.file()).expect("a connection");
    let set = |sql: &str| other.execute_batch(sql).expect("set");
    let refused = |open: &mut dyn store::Connection| {
        for result in [open.beat(ME).map(drop), open.get("q", "k").map(drop)] {
            assert!(
                matches!(&result, Err(StoreError::Replaced(why)) if why.contains("timers.db")),
                "{result:?}"
            );
        }
    };
    // What was confirmed can't be missing, whatever else the row says.
    for gone in ["null", "7"] {
        set(&format!(
            "update tourbillon_node set beat = 9, gone = {gone}"
        ));
        for _ in 0..3 {
            refused(&mut *open);
        }
        let beat = other.query_row("select beat from tourbillon_node", (), |row| row.get(0));
        assert_eq!(beat, Ok(9));
    }
    set("create table kept as select * from tourbillon_node; delete from tourbillon_node");
    refused(&mut *open);
    let tx = plain.transaction().expect("a transaction");
    let result = store
        .in_transaction(&tx)
        .schedule("q", "k", HOUR, &1)
        .map(drop);
    assert!(matches!(result, Err(CallError::Replaced(_))), "{result:?}");
    drop(tx);
    set("insert into tourbillon_node select * from kept;
         update tourbillon_node set beat = 10, gone = null");
    assert!(open.beat(ME).expect("the right one").is_some());
    assert_eq!(open.get("q", "k"), Ok(None));
    // A node that is declared gone has its beats.
    set("update tourbillon_node set gone = 7");
    assert_eq!(open.beat(ME), Ok(None));
    assert_eq!(open.get("q", "k"), Ok(None));
}

#[test]
fn a_claim_that_finds_no_row_of_its_node_finds_the_older_file() {
    let folder = Folder::new();
    let (_, mut open, plain) = joined(&folder);
    plain
        .execute("delete from tourbillon_node", ())
        .expect("deleted");
    let claim = store::Claim {
        epoch: ME,
        deadline: tourbillon_durable::store::StoreTime::LATEST,
        timers: Vec::new(),
        adopt: Vec::new(),
    };
    let result = open.claim(&claim).map(drop);
    assert!(matches!(result, Err(StoreError::Replaced(_))), "{result:?}");
}

#[test]
fn a_poll_alone_finds_the_older_file_and_the_right_one() {
    let folder = Folder::new();
    let (_, mut open, plain) = joined(&folder);
    let set = |beat: u32| {
        let sql = "update tourbillon_node set beat = ?1";
        plain.execute(sql, [beat]).expect("set");
    };
    let poll = store::Poll {
        epoch: ME,
        ranges: Vec::new(),
        bands: Vec::new(),
        complete: false,
    };
    set(9);
    for result in [open.poll(&poll).map(drop), open.get("q", "k").map(drop)] {
        assert!(matches!(result, Err(StoreError::Replaced(_))), "{result:?}");
    }
    set(10);
    assert_eq!(open.poll(&poll).map(drop), Ok(()));
    assert_eq!(open.get("q", "k"), Ok(None));
}

#[test]
fn a_beat_whose_commit_fails_is_not_confirmed() {
    let folder = Folder::new();
    let (_, mut open, plain) = joined(&folder);
    // A constraint that is checked by the commit.
    plain
        .execute_batch(
            "create table other(id integer primary key) strict;
             create table checked(id integer references other(id) deferrable initially deferred) strict;
             create trigger t after update on tourbillon_node when new.beat > 10
             begin insert into checked values (1); end;",
        )
        .expect("set");
    open.beat(ME).map(drop).expect_err("the commit fails");
    plain.execute_batch("drop trigger t").expect("set");
    assert!(open.beat(ME).expect("an answer").is_some());
}

#[test]
fn a_node_notices_an_older_file_by_its_next_poll() {
    let states = [
        (
            "update tourbillon_node set beat = beat - 1",
            "update tourbillon_node set beat = beat + 1",
        ),
        (
            "update tourbillon_node set beat = beat - 1, gone = 7",
            "update tourbillon_node set beat = beat + 1, gone = null",
        ),
        (
            "create table kept as select * from tourbillon_node; delete from tourbillon_node",
            "insert into tourbillon_node select * from kept",
        ),
    ];
    for (older, back) in states {
        let folder = Folder::new();
        let store = folder.store();
        // The next beat comes after 12 minutes.
        let (timers, events, runs) = node_with(&store, HOUR);
        timers
            .schedule("q", "before", Duration::ZERO, &1)
            .wait()
            .expect("accepted");
        assert_eq!(wait::next(&runs), "before");
        let plain = Connection::open(folder.file()).expect("a connection");
        plain.busy_timeout(Duration::from_secs(60)).expect("set");
        plain.execute_batch(older).expect("set");
        wait::until(
            "the node says what to do",
            || matches!(wait::next(&events), DurableEvent::StoreReplaced { error, .. } if error.contains("start them again")),
        );
        let refused = timers.schedule("q", "lost", HOUR, &1).wait();
        assert!(
            matches!(refused, Err(CallError::Replaced(_))),
            "{refused:?}"
        );
        // A process that opens it now schedules there.
        let other = Durable::builder(folder.store()).start().expect("a store");
        other
            .schedule("q", "due", Duration::ZERO, &1)
            .wait()
            .expect("accepted");
        let before = timers.stats().store_errors;
        wait::until("the node polls again", || {
            timers.stats().store_errors > before + 3
        });
        assert_eq!(runs.try_recv().ok(), None, "the lease has ended");
        is_one_outage(&events.try_iter().collect::<Vec<_>>());
        plain.execute_batch(back).expect("set");
        assert_eq!(wait::next(&runs), "due");
        timers
            .schedule("q", "after", HOUR, &1)
            .wait()
            .expect("accepted");
        timers.stop(Duration::ZERO).wait().unwrap();
    }
}

#[test]
fn a_transaction_on_the_file_of_another_store_is_refused() {
    let folder = Folder::new();
    let copy = other(&folder);
    let store = folder.store();
    let mut shop = Connection::open(copy).expect("a connection");
    let tx = shop.transaction().expect("a transaction");
    let refused = store.in_transaction(&tx).schedule("q", "k", HOUR, &1);
    assert!(
        matches!(refused, Err(CallError::Replaced(_))),
        "{refused:?}"
    );
}

#[test]
fn tables_that_are_dropped_or_made_anew_in_the_file_are_noticed() {
    for anew in [false, true] {
        let (folder, timers, _) = is_noticed(|folder, _| {
            let mut plain = Connection::open(folder.file()).expect("a connection");
            plain.busy_timeout(Duration::from_secs(60)).expect("set");
            let tx = plain.transaction().expect("a transaction");
            let drop = "drop view tourbillon_timers; drop table tourbillon_timer; drop table tourbillon_dead;
                        drop table tourbillon_queue; drop table tourbillon_node;
                        drop table tourbillon_meta";
            tx.execute_batch(drop).expect("dropped");
            tx.commit().expect("a commit");
            if anew {
                // Another process makes them.
                std::mem::drop(folder.store());
            }
        });
        timers.stop(Duration::ZERO).wait().unwrap();
        let plain = Connection::open(folder.file()).expect("a connection");
        let sql = "select count(*) from sqlite_schema where name = 'tourbillon_timer'";
        assert_eq!(
            plain.query_row(sql, (), |row| row.get(0)),
            Ok(i64::from(anew))
        );
    }
}
