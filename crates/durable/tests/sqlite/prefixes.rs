//! Several sets of tables beside each other in one file.

use std::sync::mpsc;
use std::time::Duration;

use kit::wait;
use rusqlite::{Connection, TransactionBehavior};
use tourbillon_durable::StoreError;
use tourbillon_durable::{Due, Durable, Sqlite, rusqlite};

use crate::folder::Folder;

#[test]
fn programs_with_queues_of_one_name_run_their_own_timers_alone() {
    let folder = Folder::new();
    let (say, heard) = mpsc::channel();
    let programs = ["tourbillon", "shop", "my_tourbillon"].map(|prefix| {
        let store = Sqlite::open_with_prefix(folder.file(), prefix).expect("a store");
        let (say, file) = (say.clone(), folder.file());
        let run = move |due: &Due<String>| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            let mut shop = Connection::open(&file)?;
            shop.busy_timeout(Duration::from_secs(60))?;
            let tx = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
            due.complete_in(&tx)?;
            tx.commit()?;
            say.send(format!("{prefix} {}", due.payload()))?;
            Ok(())
        };
        let timers = Durable::builder(store.clone())
            .poll_interval(Duration::from_millis(20))
            .node_lease(Duration::from_secs(60))
            .handle("pay-by", run)
            .start();
        (prefix, store, timers.expect("a store"))
    });
    let mut shop = Connection::open(folder.file()).expect("a connection");
    shop.busy_timeout(Duration::from_secs(60)).expect("set");
    for (prefix, store, timers) in &programs {
        let scheduled = timers.schedule("pay-by", "k", Duration::ZERO, "own").wait();
        scheduled.expect("it is accepted");
        assert_eq!(wait::next(&heard), format!("{prefix} own"));
        let tx = shop.transaction_with_behavior(TransactionBehavior::Immediate);
        let tx = tx.expect("a transaction");
        let scheduled = store
            .in_transaction(&tx)
            .schedule("pay-by", "k", Duration::ZERO, "within");
        scheduled.expect("it is accepted");
        tx.commit().expect("a commit");
        assert_eq!(wait::next(&heard), format!("{prefix} within"));
    }
    for (prefix, _, timers) in &programs {
        wait::until("its runs are settled", || {
            timers.get("pay-by", "k").wait() == Ok(None)
        });
        let stats = timers.stats();
        assert_eq!(
            (stats.runs, stats.fenced, stats.failed),
            (2, 0, 0),
            "{prefix}"
        );
    }
}

#[test]
fn all_names_begin_with_the_prefix_and_a_bad_one_is_refused() {
    let folder = Folder::new();
    for bad in ["", "Shop", "a b", "a'b", "a;--", "sqlite_x", "1a", "\u{e4}"] {
        let refused = Sqlite::open_with_prefix(folder.file(), bad);
        assert!(
            matches!(&refused, Err(StoreError::Refused(why)) if why.contains("prefix")),
            "{refused:?}"
        );
        assert!(!folder.file().exists());
    }
    drop(Sqlite::open_with_prefix(folder.file(), "shop").expect("a store"));
    let plain = Connection::open(folder.file()).expect("a connection");
    let sql = "select count(*), sum(name glob 'shop_*' or name glob 'sqlite_*'),
                      sum(coalesce(sql, '') like '%tourbillon%')
               from sqlite_schema";
    let found = plain.query_row(sql, (), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let (all, own, foreign): (i64, i64, i64) = found.expect("it reads");
    assert!(all > 8);
    assert_eq!((own, foreign), (all, 0));
    // Names that two prefixes would share are an error, and nothing is made.
    let refused = Sqlite::open_with_prefix(folder.file(), "shop_dead");
    assert!(
        matches!(&refused, Err(StoreError::Refused(why)) if why.contains("already")),
        "{refused:?}"
    );
    let sql = "select count(*) from sqlite_schema where name glob 'shop_dead_*'";
    assert_eq!(plain.query_row(sql, (), |row| row.get(0)), Ok(4));
}
