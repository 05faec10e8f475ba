//! The number of connections of a process, as the guide to PostgreSQL has it.

use std::sync::mpsc;
use std::time::Duration;

use kit::wait;
use tourbillon_durable::{CallError, Due, Durable, Postgres};

use crate::cluster::{self, Database};
use crate::outages::role;
use crate::transactions::MINUTE;

/// A store whose role may have so many connections, and one that none of them is left of.
fn store(database: &Database, role: &str, most: usize, doorbell: bool) -> Postgres {
    let limit = format!("alter role {role} connection limit {most}");
    database.beside(&limit).expect("a superuser");
    let store = Postgres::builder(&database.url_of(role))
        .and_then(|builder| builder.listen(doorbell).connect())
        .expect("the cluster answers");
    until_open(database, role, 0);
    store
}

fn open(database: &Database, role: &str) -> usize {
    let asked = format!(
        "select count(*) from pg_stat_activity \
         where application_name = 'tourbillon' and usename = '{role}'"
    );
    let found = database.psql(&asked).expect("it reads");
    found.parse().expect("a number")
}

#[track_caller]
fn until_open(database: &Database, role: &str, expected: usize) {
    wait::until(&format!("{expected} are open"), || {
        open(database, role) == expected
    });
}

/// Makes each kind of call, also one that waits for a lock. `before` are open before, and two more
/// afterwards.
fn use_all(timers: &Durable, database: &Database, role: &str, before: usize) {
    until_open(database, role, before);
    let later = timers.schedule("other", "a", MINUTE, &1_u64);
    later.wait().expect("it is accepted");
    assert_eq!(open(database, role), before, "calls that write have one");
    timers.get("other", "a").wait().expect("it reads");
    timers.counts().wait().expect("it reads");
    timers.pause("paused").wait().expect("it writes");
    assert_eq!(open(database, role), before + 1, "and those that read");
    let mut client = database.client();
    let mut transaction = client.transaction().expect("it begins");
    let lock = "select from tourbillon.timer where key = 'a' for update";
    transaction.query(lock, &[]).expect("it locks");
    let refused = timers.cancel("other", "a").wait();
    assert!(
        matches!(&refused, Err(CallError::Unavailable(why)) if why.contains("lock")),
        "{refused:?}"
    );
    transaction.rollback().expect("it ends");
    assert_eq!(open(database, role), before + 2, "and those that wait");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_process_without_handlers_has_three_connections_and_begins_with_one() {
    let database = cluster::database();
    let role = role(&database);
    let store = store(&database, &role, 3, true);
    let timers = Durable::builder(store).start().expect("one is enough");
    use_all(&timers, &database, &role, 1);
    timers.stop(MINUTE).wait().expect("it ends");
    until_open(&database, &role, 0);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_process_with_handlers_has_six_connections_with_a_doorbell_seven_and_begins_with_four() {
    for doorbell in [false, true] {
        let database = cluster::database();
        let role = role(&database);
        let of_doorbell = usize::from(doorbell);
        let store = store(&database, &role, 6 + of_doorbell, doorbell);
        let (ran, runs) = mpsc::channel();
        let timers = Durable::builder(store)
            .poll_interval(Duration::from_millis(20))
            .handle("q", move |due: &Due<u64>| {
                let _ = ran.send(*due.payload());
            })
            .start()
            .expect("four are enough");
        assert!((4..=4 + of_doorbell).contains(&open(&database, &role)));
        use_all(&timers, &database, &role, 4 + of_doorbell);
        // All are used together, and no call needs another one.
        let keys: Vec<String> = (0..2_000).map(|key| key.to_string()).collect();
        for key in &keys {
            let scheduled = timers.schedule("q", key, Duration::ZERO, &1_u64);
            drop(scheduled);
            drop(timers.get("q", key));
        }
        for _ in &keys {
            wait::next(&runs);
        }
        assert_eq!(open(&database, &role), 6 + of_doorbell);
        assert_eq!(timers.stats().store_errors, 0);
        timers.stop(MINUTE).wait().expect("it ends");
        until_open(&database, &role, 0);
    }
}
