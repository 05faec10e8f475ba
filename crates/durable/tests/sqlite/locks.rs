//! Locks of others, and steps of the clock.

use std::fs;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rusqlite::{Connection, TransactionBehavior};
use tourbillon_durable::store::{
    Claim, Epoch, NewNode, Offset, Outcome, Page, Poll, Range, Run, SHARDS, Settle, Settled,
    Settlement, Store, StoreError, StoreTime, Wanted,
};
use tourbillon_durable::{Sqlite, WallClock, rusqlite};

use crate::folder::{Folder, schedule_in};

const HOUR: Duration = Duration::from_secs(3600);
const NODE: Epoch = Epoch(7);

type Conn = Box<dyn tourbillon_durable::store::Connection>;

fn connect(store: &Sqlite) -> Conn {
    store.connect().expect("a connection")
}

fn join(connection: &mut Conn, epoch: Epoch) {
    let node = NewNode {
        epoch,
        name: "a node".into(),
        queues: vec!["q".into()],
        schedules: Default::default(),
    };
    connection.join(&node).expect("joined");
}

fn schedule(connection: &mut Conn, key: &str, delay: Duration) {
    let answers = connection.write(&[schedule_in("q", key, delay)]);
    assert!(answers.expect("answers")[0].is_ok());
}

fn claim(connection: &mut Conn, key: &str) -> Vec<Run> {
    let claim = Claim {
        epoch: NODE,
        deadline: StoreTime::LATEST,
        timers: vec![Wanted {
            queue: "q".into(),
            key: key.into(),
            crash_limit: 10,
        }],
        adopt: Vec::new(),
    };
    let claimed = connection.claim(&claim).expect("a claim");
    claimed.runs.into_iter().map(|run| run.run).collect()
}

fn seen(connection: &mut Conn, limit: u32) -> Vec<Box<str>> {
    let range = |shard| Range {
        queue: "q".into(),
        shard,
        mark: None,
        until: Offset::Ahead(Duration::from_secs(2)),
        limit,
    };
    let poll = Poll {
        epoch: NODE,
        ranges: (0..SHARDS).map(range).collect(),
        bands: Vec::new(),
        complete: true,
    };
    let snapshot = connection.poll(&poll).expect("a snapshot");
    snapshot.rows.into_iter().map(|row| row.key).collect()
}

// === locks ===

#[test]
fn every_call_that_writes_gives_up_after_the_limit_and_reads_go_on() {
    let folder = Folder::new();
    let limit = Duration::from_millis(30);
    let store = folder.store().with_busy_limit(limit);
    let mut connection = connect(&store);
    schedule(&mut connection, "k", HOUR);
    let mut foreign = Connection::open(folder.file()).expect("a connection");
    let tx = foreign
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .expect("a transaction");
    let begun = Instant::now();
    let errors = [
        connection.write(&[schedule_in("q", "l", HOUR)]).err(),
        connection.beat(NODE).err(),
        connection.leave(NODE).err(),
        connection.set_paused("q", true).err(),
        connection.revive(1).err(),
        connection.declare_gone(NODE, Epoch(8), 0).err(),
    ];
    assert!(begun.elapsed() >= 6 * limit);
    for error in errors {
        let Some(StoreError::Unavailable(why)) = error else {
            panic!("{error:?}");
        };
        assert!(why.contains("holds its lock"), "{why}");
    }
    assert!(connection.get("q", "k").expect("an answer").is_some());
    assert_eq!(seen(&mut connection, 10).len(), 0);
    drop(tx);
    schedule(&mut connection, "l", HOUR);
}

#[test]
fn threads_with_connections_of_their_own_all_get_their_turn() {
    let folder = Folder::new();
    let store = folder.store();
    let threads = 8;
    let together = Barrier::new(threads);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (store, together) = (&store, &together);
            scope.spawn(move || {
                let mut connection = connect(store);
                together.wait();
                for number in 0..25 {
                    schedule(&mut connection, &format!("{thread} {number}"), HOUR);
                }
            });
        }
    });
    let timers = connect(&store).list(&Page::first("q", 1_000));
    assert_eq!(timers.expect("a list").len(), 25 * threads);
}

#[test]
fn stores_of_one_file_that_do_not_share_a_line_all_get_their_turn() {
    let folder = Folder::new();
    // As in different processes: each has opened the file by itself.
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let folder = &folder;
            scope.spawn(move || {
                let mut connection = connect(&folder.store());
                for number in 0..25 {
                    schedule(&mut connection, &format!("{thread} {number}"), HOUR);
                }
            });
        }
    });
    let timers = connect(&folder.store()).list(&Page::first("q", 1_000));
    assert_eq!(timers.expect("a list").len(), 100);
}

#[test]
fn the_log_shrinks_after_a_long_read_has_made_it_grow() {
    let folder = Folder::new();
    let store = folder.store();
    let mut connection = connect(&store);
    schedule(&mut connection, "first", HOUR);
    let log = folder.path().join("timers.db-wal");
    let size = || fs::metadata(&log).expect("a log").len();
    let mut foreign = Connection::open(folder.file()).expect("a connection");
    let reading = foreign.transaction().expect("a transaction");
    let count = "select count(*) from tourbillon_timer";
    let timers = |connection: &Connection| connection.query_row(count, (), |row| row.get(0));
    assert_eq!(timers(&reading), Ok(1));
    let payload = format!("{:?}", "x".repeat(60_000));
    let write_all = |connection: &mut Conn| {
        for batch in 0..15 {
            let calls: Vec<_> = (0..100)
                .map(|number| {
                    let action = tourbillon_durable::store::Action::Schedule {
                        when: tourbillon_durable::DueAt::After(HOUR),
                        payload: payload.as_str().into(),
                    };
                    crate::folder::call("q", &format!("{batch} {number}"), action)
                })
                .collect();
            connection.write(&calls).expect("answers");
        }
    };
    write_all(&mut connection);
    // The reader still sees its moment, and the log keeps it for the reader.
    assert_eq!(timers(&reading), Ok(1));
    let limit = 64 * 1024 * 1024;
    assert!(size() > limit);
    drop(reading);
    // The next commit copies the log into the file, and the one after it begins the log anew.
    schedule(&mut connection, "last", HOUR);
    schedule(&mut connection, "last", HOUR);
    assert!(size() <= limit, "{}", size());
}

// === the clock ===

/// A clock in the year 2023.
fn clock() -> WallClock {
    WallClock::manual(StoreTime::from_micros(1_700_000_000_000_000).into())
}

#[test]
fn a_clock_that_is_set_back_delays_timers_and_starts_none_early() {
    let folder = Folder::new();
    let clock = clock();
    let mut connection = connect(&folder.store().with_clock(clock.clone()));
    join(&mut connection, NODE);
    schedule(&mut connection, "k", Duration::from_secs(60));
    let due = clock.now() + Duration::from_secs(60);
    clock.set(clock.now() - HOUR);
    assert!(seen(&mut connection, 10).is_empty());
    assert!(claim(&mut connection, "k").is_empty());
    // A timer that is scheduled now is due by the clock of now.
    schedule(&mut connection, "l", Duration::ZERO);
    assert_eq!(claim(&mut connection, "l").len(), 1);
    clock.set(due - Duration::from_micros(1));
    assert!(claim(&mut connection, "k").is_empty());
    clock.set(due);
    assert_eq!(claim(&mut connection, "k").len(), 1);
}

#[test]
fn a_clock_that_is_set_forward_makes_timers_due_and_keeps_claims() {
    let folder = Folder::new();
    let clock = clock();
    let mut connection = connect(&folder.store().with_clock(clock.clone()));
    join(&mut connection, NODE);
    schedule(&mut connection, "k", HOUR);
    schedule(&mut connection, "l", Duration::ZERO);
    let runs = claim(&mut connection, "l");
    clock.advance(100 * 24 * HOUR);
    // The claim does not end by the age of anything.
    assert!(claim(&mut connection, "l").is_empty());
    assert_eq!(seen(&mut connection, 10).len(), 2);
    assert_eq!(claim(&mut connection, "k").len(), 1);
    clock.set(clock.now() - 200 * 24 * HOUR);
    let settle = Settle {
        epoch: NODE,
        settlements: vec![Settlement {
            run: runs[0].clone(),
            outcome: Outcome::Done,
        }],
    };
    assert_eq!(connection.settle(&settle), Ok(vec![Ok(Settled::Ended)]));
}

#[test]
fn a_node_that_is_gone_is_forgotten_after_a_day_and_after_its_last_claim() {
    let folder = Folder::new();
    let clock = clock();
    let mut connection = connect(&folder.store().with_clock(clock.clone()));
    let plain = Connection::open(folder.file()).expect("a connection");
    let nodes = || {
        let sql = "select count(*) from tourbillon_node";
        plain.query_row(sql, (), |row| row.get::<_, i64>(0))
    };
    for epoch in [NODE, Epoch(8), Epoch(9)] {
        join(&mut connection, epoch);
    }
    schedule(&mut connection, "k", Duration::ZERO);
    assert_eq!(claim(&mut connection, "k").len(), 1);
    connection.leave(NODE).expect("left");
    connection.leave(Epoch(8)).expect("left");
    clock.advance(23 * HOUR);
    connection
        .declare_gone(Epoch(9), NODE, 0)
        .expect("an answer");
    assert_eq!(nodes(), Ok(3));
    clock.advance(HOUR);
    connection
        .declare_gone(Epoch(9), NODE, 0)
        .expect("an answer");
    // The claim of the first one is still there.
    assert_eq!(nodes(), Ok(2));
    let cancel = tourbillon_durable::store::Action::Cancel;
    let cancelled = connection.write(&[crate::folder::call("q", "k", cancel)]);
    assert!(cancelled.expect("answers")[0].is_ok());
    connection
        .declare_gone(Epoch(9), NODE, 0)
        .expect("an answer");
    assert_eq!(nodes(), Ok(1));
}

#[test]
fn the_claims_of_a_node_are_found_by_an_index() {
    let folder = Folder::new();
    drop(connect(&folder.store()));
    let plain = Connection::open(folder.file()).expect("a connection");
    let sql = "explain query plan select 1 from tourbillon_timer where claim = 7";
    let plan: Result<String, _> = plain.query_row(sql, (), |row| row.get(3));
    let plan = plan.expect("a plan");
    assert!(plan.contains("tourbillon_timer_claim (claim=?)"), "{plan}");
}
