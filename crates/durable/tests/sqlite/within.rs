//! Calls within a transaction of the user's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tourbillon_durable::store::{Claim, Epoch, NewNode, Run, Store, StoreError, StoreTime, Wanted};
use tourbillon_durable::{
    CallError, CancelAnswer, CompleteError, CompletesRun, Completion, IfAbsentAnswer, Invalid,
    Meta, RescheduleAnswer, Sqlite, rusqlite,
};

use crate::folder::{Folder, call, schedule_in};

const MINUTE: Duration = Duration::from_secs(60);
const NODE: Epoch = Epoch(7);

/// A user's file that also has the tables of the timers.
fn shop() -> (Folder, Sqlite, Connection) {
    let folder = Folder::new();
    let store = folder.store();
    let shop = Connection::open(folder.file()).expect("a connection");
    shop.execute_batch("create table orders(id integer primary key, state text)")
        .expect("a table");
    (folder, store, shop)
}

fn immediate(shop: &mut Connection) -> Transaction<'_> {
    shop.transaction_with_behavior(TransactionBehavior::Immediate)
        .expect("a transaction")
}

fn order(tx: &Transaction<'_>, id: i64) {
    tx.execute("insert into orders values (?1, 'open')", [id])
        .expect("an order");
}

fn orders(shop: &Connection) -> i64 {
    shop.query_row("select count(*) from orders", (), |row| row.get(0))
        .expect("a number")
}

/// Schedules a timer that is due at once, and lets a node claim it.
fn claimed(store: &Sqlite) -> Run {
    let mut connection = store.connect().expect("a connection");
    let node = NewNode {
        epoch: NODE,
        name: "a node".into(),
        queues: vec!["pay".into()],
        schedules: Default::default(),
    };
    connection.join(&node).expect("joined");
    let answers = connection.write(&[schedule_in("pay", "7", Duration::ZERO)]);
    assert!(answers.expect("answers")[0].is_ok());
    claim(store)
}

fn claim(store: &Sqlite) -> Run {
    let mut connection = store.connect().expect("a connection");
    let claim = Claim {
        epoch: NODE,
        deadline: StoreTime::LATEST,
        timers: vec![Wanted {
            queue: "pay".into(),
            key: "7".into(),
            crash_limit: 10,
        }],
        adopt: Vec::new(),
    };
    let claimed = connection.claim(&claim).expect("a claim");
    claimed.runs[0].run.clone()
}

fn get(store: &Sqlite, key: &str) -> Option<tourbillon_durable::store::Timer> {
    let mut connection = store.connect().expect("a connection");
    connection.get("pay", key).expect("an answer")
}

#[test]
fn an_order_and_its_timer_are_committed_together() {
    let (_folder, store, mut shop) = shop();
    let tx = immediate(&mut shop);
    order(&tx, 7);
    let before = SystemTime::now();
    let scheduled = store
        .in_transaction(&tx)
        .schedule("pay", "7", MINUTE, &7)
        .expect("scheduled");
    assert!(scheduled.due >= before + MINUTE && !scheduled.running);
    assert_eq!(scheduled.replaced, None);
    assert_eq!(get(&store, "7"), None);
    tx.commit().expect("a commit");
    let timer = get(&store, "7").expect("a timer");
    assert_eq!(SystemTime::from(timer.due), scheduled.due);
    assert_eq!(timer.payload, "7");
    assert_eq!(orders(&shop), 1);
}

#[cfg(feature = "cron")]
#[test]
fn a_schedule_is_made_with_the_order_or_not_at_all() {
    let (_folder, store, mut shop) = shop();
    let hourly = tourbillon_durable::Cron::new("@hourly", "UTC").expect("it is good");
    for commits in [false, true] {
        let tx = immediate(&mut shop);
        order(&tx, 7);
        let scheduled = store
            .in_transaction(&tx)
            .schedule("remind", "7", hourly.clone(), &7)
            .expect("scheduled");
        match commits {
            true => tx.commit().expect("a commit"),
            false => tx.rollback().expect("a rollback"),
        }
        let mut connection = store.connect().expect("a connection");
        let timer = connection.get("remind", "7").expect("the store reads");
        assert_eq!(timer.is_some(), commits);
        if let Some(timer) = timer {
            assert_eq!(SystemTime::from(timer.due), scheduled.due);
            let meta: serde_json::Value = timer.meta.expect("it has one").parse().expect("JSON");
            assert_eq!(meta["cron"]["expression"], "@hourly");
            assert!(meta["cron"]["declared"].is_null());
        }
    }
}

#[test]
fn a_rollback_undoes_the_order_and_its_timer() {
    let (_folder, store, mut shop) = shop();
    let tx = immediate(&mut shop);
    order(&tx, 7);
    store
        .in_transaction(&tx)
        .schedule("pay", "7", MINUTE, &7)
        .expect("scheduled");
    tx.rollback().expect("a rollback");
    assert_eq!(get(&store, "7"), None);
    assert_eq!(orders(&shop), 0);
}

#[test]
fn all_calls_answer_within_a_transaction_as_outside() {
    let (_folder, store, mut shop) = shop();
    let tx = immediate(&mut shop);
    let at = SystemTime::now() + 2 * MINUTE;
    let first = store
        .in_transaction(&tx)
        .schedule("pay", "7", at, "x")
        .expect("scheduled");
    let second = store
        .in_transaction(&tx)
        .schedule("pay", "7", MINUTE, "y")
        .expect("scheduled");
    assert_eq!(second.replaced, Some(first.due));
    let absent = store
        .in_transaction(&tx)
        .schedule_if_absent("pay", "7", MINUTE, "z")
        .expect("an answer");
    assert!(matches!(absent, IfAbsentAnswer::Exists { due, .. } if due == second.due));
    let moved = store
        .in_transaction(&tx)
        .reschedule("pay", "7", 3 * MINUTE)
        .expect("moved");
    assert!(matches!(moved, RescheduleAnswer::Moved { from, .. } if from == second.due));
    let moved = store
        .in_transaction(&tx)
        .reschedule("pay", "7", at)
        .expect("moved");
    assert!(matches!(moved, RescheduleAnswer::Moved { to, .. } if to == first.due));
    let cancelled = store
        .in_transaction(&tx)
        .cancel("pay", "7")
        .expect("cancelled");
    assert!(matches!(cancelled, CancelAnswer::Cancelled { due, .. } if due == first.due));
    assert_eq!(
        store.in_transaction(&tx).cancel("pay", "7"),
        Ok(CancelAnswer::NotFound)
    );
    assert_eq!(
        store.in_transaction(&tx).reschedule("pay", "7", MINUTE),
        Ok(RescheduleAnswer::NotFound)
    );
    let absent = store
        .in_transaction(&tx)
        .schedule_if_absent("pay", "7", MINUTE, "z")
        .expect("an answer");
    assert!(absent.is_scheduled());
    tx.commit().expect("a commit");
    assert_eq!(get(&store, "7").expect("a timer").payload, "\"z\"");
}

#[test]
fn a_running_timer_is_seen_within_a_transaction() {
    let (_folder, store, mut shop) = shop();
    claimed(&store);
    let tx = immediate(&mut shop);
    let moved = store
        .in_transaction(&tx)
        .reschedule("pay", "7", MINUTE)
        .expect("an answer");
    assert!(matches!(
        moved,
        RescheduleAnswer::Running { attempt: 1, .. }
    ));
    let scheduled = store
        .in_transaction(&tx)
        .schedule("pay", "7", MINUTE, "next")
        .expect("scheduled");
    assert!(scheduled.running);
    let cancelled = store
        .in_transaction(&tx)
        .cancel("pay", "7")
        .expect("an answer");
    assert!(matches!(
        cancelled,
        CancelAnswer::Running { attempt: 1, .. }
    ));
    tx.commit().expect("a commit");
    assert!(get(&store, "7").expect("a timer").cancelled);
}

#[test]
fn generations_within_transactions_and_outside_differ() {
    let (_folder, store, mut shop) = shop();
    let mut drawn = BTreeSet::new();
    for _ in 0..3 {
        let tx = immediate(&mut shop);
        store
            .in_transaction(&tx)
            .schedule("pay", "a", MINUTE, "x")
            .expect("scheduled");
        store
            .in_transaction(&tx)
            .schedule("pay", "b", MINUTE, "x")
            .expect("scheduled");
        tx.commit().expect("a commit");
        let mut connection = store.connect().expect("a connection");
        let calls = ["c", "d"].map(|key| schedule_in("pay", key, MINUTE));
        connection.write(&calls).expect("answers");
        let mut statement = shop
            .prepare("select generation from tourbillon_timer")
            .expect("a statement");
        let rows = statement.query_map((), |row| row.get::<_, i64>(0));
        drawn.extend(rows.expect("rows").map(|row| row.expect("a number")));
    }
    assert_eq!(drawn.len(), 12);
}

#[test]
fn invalid_arguments_are_refused_and_the_transaction_goes_on() {
    let (_folder, store, mut shop) = shop();
    let tx = immediate(&mut shop);
    let refused = store.in_transaction(&tx).schedule("", "7", MINUTE, "x");
    assert_eq!(refused, Err(CallError::Invalid(Invalid::QueueLength(0))));
    let refused = store
        .in_transaction(&tx)
        .schedule("pay", "7\0", MINUTE, "x");
    assert_eq!(refused, Err(CallError::Invalid(Invalid::KeyNul)));
    let refused = store
        .in_transaction(&tx)
        .schedule("pay", "7", Duration::MAX, "x");
    assert_eq!(refused, Err(CallError::Invalid(Invalid::TooFar)));
    let long = "x".repeat(70_000);
    let refused = store
        .in_transaction(&tx)
        .schedule("pay", "7", MINUTE, &long);
    assert!(matches!(
        refused,
        Err(CallError::Invalid(Invalid::PayloadSize(_)))
    ));
    store
        .in_transaction(&tx)
        .schedule("pay", "7", MINUTE, "good")
        .expect("scheduled");
    tx.commit().expect("a commit");
    assert_eq!(get(&store, "7").expect("a timer").payload, "\"good\"");
}

#[test]
fn a_run_is_ended_together_with_its_effect() {
    let (_folder, store, mut shop) = shop();
    let run = claimed(&store);
    let tx = immediate(&mut shop);
    order(&tx, 7);
    assert_eq!(
        tx.complete(&Completion::of("tourbillon", NODE, &run)),
        Ok(())
    );
    // It is ended once.
    assert_eq!(
        tx.complete(&Completion::of("tourbillon", NODE, &run)),
        Err(CompleteError::Fenced)
    );
    tx.rollback().expect("a rollback");
    assert!(get(&store, "7").expect("a timer").running.is_some());

    let tx = immediate(&mut shop);
    order(&tx, 7);
    assert_eq!(
        tx.complete(&Completion::of("tourbillon", NODE, &run)),
        Ok(())
    );
    tx.commit().expect("a commit");
    assert_eq!(get(&store, "7"), None);
    assert_eq!(orders(&shop), 1);
}

#[test]
fn a_timer_of_a_transaction_may_have_a_meta() {
    let (_folder, store, mut shop) = shop();
    let meta = Meta::new(&BTreeMap::from([("tenant", "acme")])).expect("an object");
    let tx = immediate(&mut shop);
    let calls = store.in_transaction(&tx);
    let with = calls.meta(&meta).schedule("pay", "with", MINUTE, "p");
    with.expect("scheduled");
    let absent = calls
        .meta(&meta)
        .schedule_if_absent("pay", "absent", MINUTE, "p");
    absent.expect("scheduled");
    calls
        .schedule("pay", "without", MINUTE, "p")
        .expect("scheduled");
    tx.commit().expect("a commit");
    for (key, meta) in [
        ("with", Some(&meta)),
        ("absent", Some(&meta)),
        ("without", None),
    ] {
        let timer = get(&store, key).expect("a timer");
        assert_eq!(timer.meta.as_ref(), meta, "{key}");
    }
    // SQL reads it, and can store nothing else than an object.
    let tenant: String = shop
        .query_row(
            "select meta ->> 'tenant' from tourbillon_timers where key = 'with'",
            (),
            |row| row.get(0),
        )
        .expect("a row");
    assert_eq!(tenant, "acme");
    for bad in ["[]", "1", "null", "\"{}\"", "{", ""] {
        let sql = "update tourbillon_timer set meta = ?1 where key = 'with'";
        shop.execute(sql, [bad]).expect_err(bad);
    }
}

#[test]
fn the_end_of_a_run_frees_what_follows_it() {
    let (_folder, store, mut shop) = shop();
    let run = claimed(&store);
    let tx = immediate(&mut shop);
    store
        .in_transaction(&tx)
        .schedule("pay", "7", MINUTE, "next")
        .expect("scheduled");
    assert_eq!(
        tx.complete(&Completion::of("tourbillon", NODE, &run)),
        Ok(())
    );
    tx.commit().expect("a commit");
    let timer = get(&store, "7").expect("a timer");
    assert_eq!((timer.attempt, timer.running), (0, None));
    assert_eq!(timer.payload, "\"next\"");
}

#[test]
fn a_run_of_a_node_that_is_gone_is_fenced() {
    let (_folder, store, mut shop) = shop();
    let run = claimed(&store);
    let mut connection = store.connect().expect("a connection");
    connection.leave(NODE).expect("left");
    let tx = immediate(&mut shop);
    assert_eq!(
        tx.complete(&Completion::of("tourbillon", NODE, &run)),
        Err(CompleteError::Fenced)
    );
}

#[test]
fn a_run_that_another_one_has_replaced_is_fenced() {
    let (_folder, store, mut shop) = shop();
    let run = claimed(&store);
    let other = Run {
        attempt: 2,
        ..run.clone()
    };
    let tx = immediate(&mut shop);
    assert_eq!(
        tx.complete(&Completion::of("tourbillon", NODE, &other)),
        Err(CompleteError::Fenced)
    );
    let other = Run {
        generation: run.generation + 1,
        ..run.clone()
    };
    assert_eq!(
        tx.complete(&Completion::of("tourbillon", NODE, &other)),
        Err(CompleteError::Fenced)
    );
    assert_eq!(
        tx.complete(&Completion::of("tourbillon", Epoch(8), &run)),
        Err(CompleteError::Fenced)
    );
    assert_eq!(
        tx.complete(&Completion::of("tourbillon", NODE, &run)),
        Ok(())
    );
}

#[test]
fn a_deferred_transaction_that_has_read_is_refused_with_a_hint() {
    let (_folder, store, mut shop) = shop();
    let run = claimed(&store);
    let tx = shop.transaction().expect("a transaction");
    assert_eq!(orders(&tx), 0);
    assert_eq!(
        tx.complete(&Completion::of("tourbillon", NODE, &run)),
        Err(CompleteError::Deferred)
    );
    let refused = store.in_transaction(&tx).schedule("pay", "8", MINUTE, "x");
    let Err(CallError::Refused(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.contains("TransactionBehavior::Immediate"), "{why}");
}

#[test]
fn a_deferred_transaction_that_has_not_read_takes_the_lock() {
    let (_folder, store, mut shop) = shop();
    let run = claimed(&store);
    let tx = shop.transaction().expect("a transaction");
    assert_eq!(
        tx.complete(&Completion::of("tourbillon", NODE, &run)),
        Ok(())
    );
    order(&tx, 7);
    tx.commit().expect("a commit");
    assert_eq!(get(&store, "7"), None);
}

#[test]
fn a_locked_file_is_an_error_that_passes() {
    let (folder, store, mut shop) = shop();
    let run = claimed(&store);
    let mut other = Connection::open(folder.file()).expect("a connection");
    let locking = immediate(&mut other);
    shop.busy_timeout(Duration::from_millis(1)).expect("set");
    let tx = shop.transaction().expect("a transaction");
    let refused = tx.complete(&Completion::of("tourbillon", NODE, &run));
    assert!(
        matches!(refused, Err(CompleteError::Retry(_))),
        "{refused:?}"
    );
    let refused = store.in_transaction(&tx).schedule("pay", "8", MINUTE, "x");
    assert!(
        matches!(refused, Err(CallError::Unavailable(_))),
        "{refused:?}"
    );
    drop(locking);
    assert_eq!(
        tx.complete(&Completion::of("tourbillon", NODE, &run)),
        Ok(())
    );
    tx.commit().expect("a commit");
}

#[test]
fn a_transaction_that_was_rolled_back_is_refused() {
    let (_folder, store, mut shop) = shop();
    let run = claimed(&store);
    let tx = immediate(&mut shop);
    order(&tx, 7);
    // What SQLite does by itself when the disk is full.
    let failed = tx.execute("insert or rollback into orders values (7, 'twice')", ());
    assert!(failed.is_err());
    let refused = tx.complete(&Completion::of("tourbillon", NODE, &run));
    let Err(CompleteError::Store(StoreError::Refused(why))) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.contains("rolled it back"), "{why}");
    let refused = store.in_transaction(&tx).schedule("pay", "8", MINUTE, "x");
    assert!(matches!(refused, Err(CallError::Refused(_))), "{refused:?}");
    drop(tx);
    assert_eq!(get(&store, "8"), None);
    assert!(get(&store, "7").expect("a timer").running.is_some());
}

#[test]
fn a_file_without_timers_is_refused_with_a_hint() {
    let (folder, other) = (Folder::new(), Folder::new());
    let store = other.store();
    let mut shop = Connection::open(folder.file()).expect("a connection");
    shop.execute_batch("create table orders(id integer primary key, state text)")
        .expect("a table");
    for behavior in [
        TransactionBehavior::Deferred,
        TransactionBehavior::Immediate,
    ] {
        let tx = shop.transaction_with_behavior(behavior).expect("begun");
        let refused = store.in_transaction(&tx).schedule("pay", "7", MINUTE, "x");
        let Err(CallError::Refused(why)) = refused else {
            panic!("{refused:?}");
        };
        assert!(why.contains("Sqlite::open"), "{why}");
        order(&tx, 7);
        tx.rollback().expect("a rollback");
    }
}

#[test]
fn a_savepoint_undoes_a_timer_alone() {
    let (_folder, store, mut shop) = shop();
    let tx = immediate(&mut shop);
    store
        .in_transaction(&tx)
        .schedule("pay", "a", MINUTE, "x")
        .expect("scheduled");
    tx.execute_batch("savepoint s").expect("a savepoint");
    store
        .in_transaction(&tx)
        .schedule("pay", "b", MINUTE, "x")
        .expect("scheduled");
    tx.execute_batch("rollback to s").expect("undone");
    store
        .in_transaction(&tx)
        .schedule("pay", "c", MINUTE, "x")
        .expect("scheduled");
    tx.commit().expect("a commit");
    assert!(get(&store, "a").is_some() && get(&store, "c").is_some());
    assert_eq!(get(&store, "b"), None);
    let cancel = call("pay", "a", tourbillon_durable::store::Action::Cancel);
    let mut connection = store.connect().expect("a connection");
    assert!(connection.write(&[cancel]).expect("answers")[0].is_ok());
}
