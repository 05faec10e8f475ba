//! Orders and their timers in one file of SQLite, with the handler and the transactions of a program.

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use rusqlite::{Connection, TransactionBehavior};
use tourbillon_durable::{Due, Durable, RetryPolicy, Sqlite, WallClock, rusqlite};

use crate::support::{HOUR, MINUTE, SECOND, YEAR, advance, at};

type Failed = Box<dyn Error + Send + Sync>;

/// A file that is removed with its folder.
struct File(PathBuf);

impl File {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // Relaxed: the number alone counts.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("stepped-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        File(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.join("shop.db")
    }

    fn shop(&self) -> Connection {
        let shop = Connection::open(self.path()).expect("the file is there");
        shop.execute_batch("create table if not exists orders(id integer primary key, state text)")
            .expect("a table");
        shop
    }

    fn state(&self, order: i64) -> String {
        let sql = "select state from orders where id = ?1";
        let state = self.shop().query_row(sql, [order], |row| row.get(0));
        state.expect("the order is there")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// The handler of the program: the order is cancelled, and the run has ended, in one commit.
fn cancel_unpaid(shop: &mut Connection, due: &Due<i64>) -> Result<(), Failed> {
    let tx = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let cancel = "update orders set state = 'cancelled' where id = ?1 and state = 'open'";
    tx.execute(cancel, [due.payload()])?;
    if due.attempt() == 1 && *due.payload() == 9 {
        return Err("the connection was lost".into());
    }
    due.complete_in(&tx)?;
    Ok(tx.commit()?)
}

/// The program that takes orders: an order and its timer in one commit.
fn order(shop: &mut Connection, store: &Sqlite, id: i64) {
    let tx = shop
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .expect("nobody else writes");
    tx.execute("insert into orders values (?1, 'open')", [id])
        .expect("a new order");
    let key = format!("order:{id}");
    let timers = store.in_transaction(&tx);
    timers
        .schedule("pay-by", &key, 15 * MINUTE, &id)
        .expect("the store takes it");
    tx.commit().expect("a commit");
}

#[test]
fn fifteen_minutes_later_an_order_is_cancelled() {
    // Far from the system's clock on both sides.
    for start in [at(YEAR), at(500 * YEAR)] {
        let file = File::new();
        let store = Sqlite::open(file.path()).expect("a new file");
        let store = store.with_clock(WallClock::manual(start));
        let mut shop = file.shop();
        let path = file.path();
        let builder = Durable::builder(store.clone())
            .handle("pay-by", move |due: &Due<i64>| {
                cancel_unpaid(&mut Connection::open(&path)?, due)
            })
            .retry(RetryPolicy::fixed(MINUTE));
        let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
        for id in [7, 8, 9] {
            order(&mut shop, &store, id);
        }
        shop.execute("update orders set state = 'paid' where id = 8", ())
            .expect("paid");
        timers.cancel("pay-by", "order:8").wait().expect("it waits");

        advance(&steps, 15 * MINUTE - SECOND);
        assert_eq!([7, 8, 9].map(|id| file.state(id)), ["open", "paid", "open"]);
        advance(&steps, SECOND);
        assert_eq!(
            [7, 8, 9].map(|id| file.state(id)),
            ["cancelled", "paid", "open"]
        );
        advance(&steps, MINUTE);
        assert_eq!(
            [7, 8, 9].map(|id| file.state(id)),
            ["cancelled", "paid", "cancelled"]
        );
        assert_eq!(timers.counts().wait().map(|counts| counts.len()), Ok(0));
        let stats = timers.stats();
        assert_eq!((stats.succeeded, stats.failed, stats.fenced), (2, 1, 0));
    }
}

#[test]
fn a_timer_that_follows_a_run_has_the_time_of_the_test() {
    let file = File::new();
    let store = Sqlite::open(file.path()).expect("a new file");
    let store = store.with_clock(WallClock::manual(at(YEAR)));
    drop(file.shop());
    let (path, again) = (file.path(), store.clone());
    let builder =
        Durable::builder(store).handle("pay-by", move |due: &Due<i64>| -> Result<(), Failed> {
            let mut shop = Connection::open(&path)?;
            let tx = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
            if *due.payload() < 3 {
                let next = due.payload() + 1;
                again
                    .in_transaction(&tx)
                    .schedule(due.queue(), due.key(), HOUR, &next)?;
            }
            due.complete_in(&tx)?;
            Ok(tx.commit()?)
        });
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    timers
        .schedule("pay-by", "a", HOUR, &1_i64)
        .wait()
        .expect("the store takes it");
    advance(&steps, 2 * HOUR);
    assert_eq!(timers.stats().runs, 2);
    advance(&steps, HOUR);
    assert_eq!(timers.stats().runs, 3);
    assert_eq!(timers.counts().wait().map(|counts| counts.len()), Ok(0));
}

#[test]
fn a_process_that_dies_after_its_commit_leaves_nothing_to_repeat() {
    let file = File::new();
    let store = Sqlite::open(file.path()).expect("a new file");
    let store = store.with_clock(WallClock::manual(at(YEAR)));
    let mut shop = file.shop();
    let path = file.path();
    let handler = move |due: &Due<i64>| cancel_unpaid(&mut Connection::open(&path)?, due);
    let builder = Durable::builder(store.clone()).handle("pay-by", handler.clone());
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    order(&mut shop, &store, 7);
    steps.crash_after_run(&timers);
    advance(&steps, HOUR);
    assert_eq!(file.state(7), "cancelled");
    let builder = Durable::builder(store).handle("pay-by", handler);
    let other = builder.start_beside(&steps).expect("the file is there");
    advance(&steps, HOUR);
    assert_eq!(other.stats().runs, 0);
}
