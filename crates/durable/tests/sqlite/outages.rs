//! Each outage of a node on a file has one event when it begins and one when it ends.

use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use kit::wait;
use rusqlite::{Connection, TransactionBehavior};
use tourbillon_durable::StoreError;
use tourbillon_durable::{Due, Durable, DurableEvent, Sqlite, StartError, rusqlite};

use crate::folder::Folder;
use crate::told::{Told, is_slow};

/// A node that reports what it runs, and outages.
pub(crate) fn node(store: Sqlite) -> Result<(Durable, Receiver<u64>, Told), StartError> {
    let (ran, runs) = mpsc::channel();
    let (happened, events) = mpsc::channel();
    let timers = Durable::builder(store)
        .poll_interval(Duration::from_millis(100))
        .node_lease(Duration::from_secs(60))
        .on_event(move |event| {
            if let DurableEvent::StoreDown { .. } | DurableEvent::StoreUp = event {
                happened.send(event.clone()).expect("the test listens");
            }
        })
        .handle("q", move |due: &Due<u64>| {
            let _ = ran.send(*due.payload());
        })
        .start()?;
    Ok((timers, runs, Told::new(events)))
}

/// It fails again and again, without another event.
pub(crate) fn stays_down(timers: &Durable, told: &Told) {
    let before = timers.stats().store_errors;
    wait::until("it fails again and again", || {
        timers.stats().store_errors > before + 3
    });
    assert_eq!(told.events.try_recv().ok(), None);
}

/// What breaks the tables, what mends them, and the reason.
const CASES: [(&str, &str, &str); 3] = [
    (
        "alter table tourbillon_queue rename to elsewhere",
        "alter table elsewhere rename to tourbillon_queue",
        "tourbillon_queue",
    ),
    (
        "alter table tourbillon_node rename to elsewhere",
        "alter table elsewhere rename to tourbillon_node",
        "tourbillon_node",
    ),
    (
        "alter table tourbillon_dead rename to elsewhere; alter table tourbillon_meta rename to other",
        "alter table elsewhere rename to tourbillon_dead; alter table other rename to tourbillon_meta",
        "no tables of timers",
    ),
];

#[test]
fn tables_that_are_broken_stop_a_node_and_are_told_once() {
    for (breaks, mends, reason) in CASES {
        let folder = Folder::new();
        let (timers, runs, told) = node(folder.store()).expect("it works");
        let shop = Connection::open(folder.file()).expect("a connection");
        shop.busy_timeout(Duration::from_secs(60)).expect("set");
        loop {
            shop.execute_batch(breaks).expect("the file may be written");
            let down = told.down(&timers);
            stays_down(&timers, &told);
            shop.execute_batch(mends).expect("the file may be written");
            told.up(&timers);
            if let Some((_, why)) = down {
                assert!(why.contains(reason), "{breaks}: {why}");
                break;
            }
        }
        let now = Duration::ZERO;
        timers
            .schedule("q", "k", now, &7_u64)
            .wait()
            .expect("accepted");
        assert_eq!(wait::next(&runs), 7);
        told.ends(timers);
    }
}

#[test]
fn a_start_on_broken_tables_fails() {
    for (breaks, ..) in CASES {
        let folder = Folder::new();
        let store = folder.store();
        let shop = Connection::open(folder.file()).expect("a connection");
        shop.execute_batch(breaks).expect("the file may be written");
        let error = node(store).map(drop).expect_err("it can't work");
        assert!(
            matches!(
                error,
                StartError::Store(StoreError::Refused(_) | StoreError::Replaced(_))
            ),
            "{breaks}: {error:?}"
        );
    }
}

#[test]
fn a_write_transaction_that_stays_open_is_an_outage_after_a_second() {
    let folder = Folder::new();
    let (timers, runs, told) = node(folder.store()).expect("it works");
    let mut shop = Connection::open(folder.file()).expect("a connection");
    shop.busy_timeout(Duration::from_secs(60)).expect("set");
    // Polls only read, and beats are rare. The claim of this timer has to write.
    timers
        .schedule("q", "k", Duration::from_millis(300), &9_u64)
        .wait()
        .expect("accepted");
    let begin = TransactionBehavior::Immediate;
    let transaction = shop.transaction_with_behavior(begin).expect("it begins");
    let down = wait::next(&told.events);
    assert!(
        matches!(&down, DurableEvent::StoreDown { error, .. } if is_slow(error)),
        "{down:?}"
    );
    transaction.commit().expect("a commit");
    told.up(&timers);
    assert_eq!(wait::next(&runs), 9);
    told.ends(timers);
}
