//! A database that is dropped, made anew, restored or exchanged while a process uses it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use kit::wait;
use tourbillon_durable::store::{
    Claim, Connection, DeadPage, Epoch, NewNode, Poll, Store, StoreError,
};
use tourbillon_durable::{CallError, Due, Durable, DurableEvent, Postgres};

use crate::cluster::{self, Cluster, Database};

const HOUR: Duration = Duration::from_secs(3_600);

struct Node {
    timers: Durable,
    events: Receiver<DurableEvent>,
    runs: Receiver<String>,
}

fn node(store: Postgres) -> Node {
    node_with(store, Duration::from_secs(60))
}

fn node_with(store: Postgres, node_lease: Duration) -> Node {
    let (tell, events) = mpsc::channel();
    let (ran, runs) = mpsc::channel();
    let timers = Durable::builder(store)
        .poll_interval(Duration::from_millis(50))
        .node_lease(node_lease)
        .on_event(move |event: &DurableEvent| drop(tell.send(event.clone())))
        .handle("q", move |due: &Due<u64>| {
            drop(ran.send(due.key().to_owned()));
        })
        .start();
    Node {
        timers: timers.expect("the cluster answers"),
        events,
        runs,
    }
}

/// A node that has run a timer, and has another one.
fn at_work(url: &str) -> Node {
    working(Postgres::connect(url).expect("the cluster answers"))
}

fn working(store: Postgres) -> Node {
    let node = node(store);
    node.is_at_work();
    node
}

impl Node {
    /// It runs a timer, and has another one.
    fn is_at_work(&self) {
        let accepted = self
            .timers
            .schedule("q", "before", Duration::ZERO, &1)
            .wait();
        accepted.expect("it is accepted");
        assert_eq!(wait::next(&self.runs), "before");
        let accepted = self.timers.schedule("q", "kept", HOUR, &1).wait();
        accepted.expect("it is accepted");
    }

    /// The node and all calls notice it.
    #[track_caller]
    fn notices(&self) {
        wait::until("the node says what to do", || {
            let told = wait::next(&self.events);
            matches!(&told, DurableEvent::StoreReplaced { error, .. } if error.contains("start them again"))
        });
        let writes = self
            .timers
            .schedule("q", "lost", HOUR, &1)
            .wait()
            .map(|_| ());
        assert!(matches!(writes, Err(CallError::Replaced(_))), "{writes:?}");
        let reads = self.timers.get("q", "kept").wait().map(|_| ());
        assert!(matches!(reads, Err(CallError::Replaced(_))), "{reads:?}");
        let before = self.timers.stats();
        wait::until("the node polls again", || {
            self.timers.stats().store_errors > before.store_errors + 3
        });
        assert!(before.replaced >= 3);
        assert_eq!(self.runs.try_recv().ok(), None);
        // What follows is part of one outage.
        let more: Vec<DurableEvent> = self.events.try_iter().collect();
        let again = |event: &DurableEvent| {
            matches!(
                event,
                DurableEvent::StoreReplaced { .. } | DurableEvent::StoreUp | DurableEvent::NodeGone
            )
        };
        assert!(!more.iter().any(again), "{more:?}");
        let is_down = |event: &&DurableEvent| matches!(event, DurableEvent::StoreDown { .. });
        assert!(more.iter().filter(is_down).count() <= 1, "{more:?}");
    }
}

fn program(name: &str, words: &[&str]) -> std::process::Output {
    let mut command = std::process::Command::new(cluster::programs().join(name));
    command
        .args(words)
        .output()
        .expect("it comes with the server")
}

/// Drops a database of the cluster and makes it again, empty.
fn make_anew(database: &Database) {
    let name = database.name();
    let (drop, create) = (
        format!("drop database {name} with (force)"),
        format!("create database {name}"),
    );
    let other = cluster::database();
    other.psql(&drop).expect("a superuser");
    other.psql(&create).expect("a superuser");
}

const SCHEMAS: &str = "select count(*) from pg_namespace where nspname = 'tourbillon'";

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_database_that_is_made_anew_stays_empty_until_its_backup_is_restored() {
    let database = cluster::database();
    let node = at_work(&database.url());
    let file =
        std::env::temp_dir().join(format!("{}-{}.dump", database.name(), std::process::id()));
    let file = file.to_str().expect("text");
    let url = database.url();
    let dumped = program(
        "pg_dump",
        &["--format", "custom", "--file", file, "--dbname", &url],
    );
    assert!(dumped.status.success(), "{dumped:?}");
    make_anew(&database);
    node.notices();
    assert_eq!(database.psql(SCHEMAS).as_deref(), Ok("0"));
    let restored = program("pg_restore", &["--exit-on-error", "--dbname", &url, file]);
    let _ = std::fs::remove_file(file);
    assert!(restored.status.success(), "{restored:?}");
    // It is the right one again.
    wait::until("the node goes on", || {
        node.timers
            .schedule("q", "after", Duration::ZERO, &1)
            .wait()
            .is_ok()
    });
    assert_eq!(wait::next(&node.runs), "after");
    assert!(
        node.timers
            .get("q", "kept")
            .wait()
            .expect("an answer")
            .is_some()
    );
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn tables_that_are_made_anew_under_open_connections_are_noticed() {
    let database = cluster::database();
    let node = at_work(&database.url());
    // In one transaction: there is no moment without tables.
    let sql = format!(
        "begin; drop schema tourbillon cascade; {} commit",
        Postgres::SCHEMA
    );
    database.client().batch_execute(&sql).expect("a superuser");
    node.notices();
    let found =
        "select (select count(*) from tourbillon.timer) + (select count(*) from tourbillon.node)";
    assert_eq!(database.psql(found).as_deref(), Ok("0"));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn every_call_of_an_open_connection_notices_other_tables_and_changes_nothing_in_them() {
    let database = cluster::database();
    let store = Postgres::connect(&database.url()).expect("the cluster answers");
    let node = NewNode {
        epoch: Epoch(7),
        name: "n".to_owned(),
        queues: vec!["q".into()],
        schedules: Default::default(),
    };
    let mut open = store.connect().expect("the cluster answers");
    open.join(&node).expect("it joins");
    database
        .psql("update tourbillon.meta set identity = identity + 1; delete from tourbillon.node")
        .expect("a superuser");
    let claim = tourbillon_durable::store::Claim {
        epoch: Epoch(7),
        deadline: tourbillon_durable::store::StoreTime::LATEST,
        timers: Vec::new(),
        adopt: Vec::new(),
    };
    let settle = tourbillon_durable::store::Settle {
        epoch: Epoch(7),
        settlements: Vec::new(),
    };
    let poll = tourbillon_durable::store::Poll {
        epoch: Epoch(7),
        ranges: Vec::new(),
        bands: Vec::new(),
        complete: true,
    };
    let call = tourbillon_durable::store::Call {
        queue: "q".into(),
        key: "k".into(),
        action: tourbillon_durable::store::Action::Cancel,
    };
    let page = tourbillon_durable::store::Page::first("q", 1);
    let results = [
        ("write", open.write(std::slice::from_ref(&call)).map(drop)),
        ("try_write", open.try_write(&[call]).map(drop)),
        ("get", open.get("q", "k").map(drop)),
        ("list", open.list(&page).map(drop)),
        ("counts", open.counts().map(drop)),
        ("dead", open.dead(&DeadPage::first("q", 1)).map(drop)),
        ("revive", open.revive(1).map(drop)),
        ("set_paused", open.set_paused("q", true)),
        ("join", open.join(&node)),
        ("beat", open.beat(Epoch(7)).map(drop)),
        ("poll", open.poll(&poll).map(drop)),
        ("claim", open.claim(&claim).map(drop)),
        ("settle", open.settle(&settle).map(drop)),
        (
            "declare_gone",
            open.declare_gone(Epoch(7), Epoch(8), 0).map(drop),
        ),
        ("leave", open.leave(Epoch(7))),
    ];
    for (call, result) in results {
        assert!(
            matches!(result, Err(StoreError::Replaced(_))),
            "{call}: {result:?}"
        );
    }
    let found =
        "select (select count(*) from tourbillon.node) + (select count(*) from tourbillon.queue)";
    assert_eq!(database.psql(found).as_deref(), Ok("0"));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn tables_that_are_removed_are_noticed_and_not_made_anew() {
    let database = cluster::database();
    let node = at_work(&database.url());
    let drop = "drop schema tourbillon cascade";
    database.psql(drop).expect("a superuser");
    node.notices();
    assert_eq!(database.psql(SCHEMAS).as_deref(), Ok("0"));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_switch_to_an_empty_server_is_noticed_and_the_way_back_too() {
    let (database, other) = (cluster::database(), Cluster::start());
    let proxy = Proxy::start(database.port());
    // Both servers have a database of this name.
    let create = format!("create database {}", database.name());
    other.psql(&create).expect("a superuser");
    let node = at_work(&database.url_by(proxy.port));
    proxy.lead_to(other.port());
    node.notices();
    let schemas = other.psql("select count(*) from pg_stat_database where datname ~ 'test'");
    assert_eq!(schemas.as_deref(), Ok("1"));
    proxy.lead_to(database.port());
    wait::until("the node goes on", || {
        node.timers
            .schedule("q", "after", Duration::ZERO, &1)
            .wait()
            .is_ok()
    });
    assert_eq!(wait::next(&node.runs), "after");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_state_that_is_older_by_one_beat_is_refused_and_never_catches_up() {
    let database = cluster::database();
    let (_, mut open) = joined(&database, Duration::ZERO);
    let set = |sql: &str| database.psql(sql).expect("a superuser");
    let refused = |open: &mut dyn Connection| {
        let result = open.beat(ME).map(drop);
        assert!(matches!(result, Err(StoreError::Replaced(_))), "{result:?}");
        let result = open.get("q", "k").map(drop);
        assert!(matches!(result, Err(StoreError::Replaced(_))), "{result:?}");
    };
    // What was confirmed can't be missing, whatever else the row says.
    for gone in ["null", "now()"] {
        set(&format!(
            "update tourbillon.node set beat = 9, gone = {gone}"
        ));
        for _ in 0..3 {
            refused(&mut *open);
        }
        assert_eq!(set("select beat from tourbillon.node"), "9");
    }
    set("create table kept as table tourbillon.node; truncate tourbillon.node");
    refused(&mut *open);
    // A claim finds it too: its node must not join the older state as another one.
    let claim = Claim {
        epoch: ME,
        deadline: tourbillon_durable::store::StoreTime::LATEST,
        timers: Vec::new(),
        adopt: Vec::new(),
    };
    let result = open.claim(&claim).map(drop);
    assert!(matches!(result, Err(StoreError::Replaced(_))), "{result:?}");
    set(
        "insert into tourbillon.node table kept; update tourbillon.node set beat = 10, gone = null",
    );
    assert!(open.beat(ME).expect("the right one").is_some());
    assert_eq!(open.get("q", "k"), Ok(None));
    // A node that is declared gone has its beats.
    set("update tourbillon.node set gone = now()");
    assert_eq!(open.beat(ME), Ok(None));
    assert_eq!(open.get("q", "k"), Ok(None));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_loss_within_the_limit_is_a_failover() {
    let database = cluster::database();
    let (_, mut open) = joined(&database, HOUR);
    let set = |sql: &str| database.psql(sql).expect("a superuser");
    set("update tourbillon.node set beat = beat - 5");
    assert!(open.beat(ME).expect("a standby's").is_some());
    assert_eq!(set("select beat from tourbillon.node"), "6");
    // The standby has not even the row of a young node.
    set("truncate tourbillon.node");
    assert_eq!(open.beat(ME), Ok(None));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_claim_that_finds_no_row_of_its_node_finds_the_older_state() {
    let database = cluster::database();
    let (_, mut open) = joined(&database, Duration::ZERO);
    database
        .psql("truncate tourbillon.node")
        .expect("a superuser");
    let claim = Claim {
        epoch: ME,
        deadline: tourbillon_durable::store::StoreTime::LATEST,
        timers: Vec::new(),
        adopt: Vec::new(),
    };
    let result = open.claim(&claim).map(drop);
    assert!(matches!(result, Err(StoreError::Replaced(_))), "{result:?}");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_poll_alone_finds_the_older_state_and_the_right_one() {
    let database = cluster::database();
    let (_, mut open) = joined(&database, Duration::ZERO);
    let set = |beat: u32| {
        let sql = format!("update tourbillon.node set beat = {beat}");
        database.psql(&sql).expect("a superuser");
    };
    let poll = Poll {
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
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_node_notices_an_older_state_by_its_next_poll() {
    let states = [
        (
            "update tourbillon.node set beat = beat - 1",
            "update tourbillon.node set beat = beat + 1",
        ),
        (
            "update tourbillon.node set beat = beat - 1, gone = now()",
            "update tourbillon.node set beat = beat + 1, gone = null",
        ),
        (
            "create table kept as table tourbillon.node; delete from tourbillon.node",
            "insert into tourbillon.node table kept",
        ),
    ];
    for (older, back) in states {
        let database = cluster::database();
        let store = Postgres::builder(&database.url()).expect("a URL");
        let store = store.loss_limit(Duration::ZERO).connect();
        // The next beat comes after 12 minutes.
        let node = node_with(store.expect("the cluster answers"), HOUR);
        node.is_at_work();
        database.psql(older).expect("a superuser");
        node.notices();
        let due = "select tourbillon.schedule('q', 'due', interval '0', '1')";
        database.psql(due).expect("a superuser");
        let before = node.timers.stats().store_errors;
        wait::until("the node polls again", || {
            node.timers.stats().store_errors > before + 3
        });
        assert_eq!(node.runs.try_recv().ok(), None, "the lease has ended");
        database.psql(back).expect("a superuser");
        assert_eq!(wait::next(&node.runs), "due");
        wait::until("calls succeed", || {
            node.timers.get("q", "kept").wait().is_ok()
        });
        let told = node.events.try_iter();
        let told: Vec<DurableEvent> = told
            .filter(|event| {
                matches!(
                    event,
                    DurableEvent::NodeGone | DurableEvent::StoreReplaced { .. }
                )
            })
            .collect();
        assert_eq!(told, []);
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_backup_that_is_restored_under_a_node_is_noticed() {
    let database = cluster::database();
    let url = database.url();
    let store = Postgres::builder(&url).expect("a URL");
    let store = store.loss_limit(Duration::ZERO).connect();
    // Beats each second.
    let node = node_with(store.expect("the cluster answers"), Duration::from_secs(5));
    node.timers
        .schedule("q", "kept", HOUR, &1)
        .wait()
        .expect("it is accepted");
    let file =
        std::env::temp_dir().join(format!("{}-{}.dump", database.name(), std::process::id()));
    let file = file.to_str().expect("text");
    let beat = || {
        let beat = database.psql("select beat from tourbillon.node");
        beat.expect("a superuser").parse().unwrap_or(0_i64)
    };
    wait::until("it beats", || beat() > 0);
    let dump = ["--format", "custom", "--file", file, "--dbname", &url];
    let dumped = program("pg_dump", &dump);
    assert!(dumped.status.success(), "{dumped:?}");
    let then = beat();
    wait::until("it beats again", || beat() > then + 1);
    // The same tables, without a moment in which they are not there.
    let restore = ["--clean", "--single-transaction", "--dbname", &url, file];
    let restored = program("pg_restore", &restore);
    let _ = std::fs::remove_file(file);
    assert!(restored.status.success(), "{restored:?}");
    node.notices();
    // The beats do not catch up.
    assert!(beat() <= then);
}

const ME: Epoch = Epoch(7);

/// A connection of a node that has beaten ten times.
fn joined(database: &Database, loss: Duration) -> (Postgres, Box<dyn Connection>) {
    let store = Postgres::builder(&database.url()).expect("a URL");
    let store = store.loss_limit(loss).connect();
    let store = store.expect("the cluster answers");
    let mut open = store.connect().expect("the cluster answers");
    open.join(&NewNode {
        epoch: ME,
        name: "n".to_owned(),
        queues: vec!["q".into()],
        schedules: Default::default(),
    })
    .expect("it joins");
    for _ in 0..10 {
        open.beat(ME).expect("an answer").expect("it lives");
    }
    (store, open)
}

/// A port that leads to a server, and later to another one.
struct Proxy {
    port: u16,
    target: Arc<AtomicU16>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    fn start(target: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let proxy = Proxy {
            port: listener.local_addr().expect("an address").port(),
            target: Arc::new(AtomicU16::new(target)),
            open: Arc::default(),
        };
        let (target, open) = (Arc::clone(&proxy.target), Arc::clone(&proxy.open));
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let port = target.load(Ordering::SeqCst);
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else {
                    continue;
                };
                let copies = [&client, &server].map(|stream| stream.try_clone().expect("a copy"));
                let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
                open.extend(copies);
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone(), to.try_clone());
                    let (from, to) = (from.expect("a copy"), to.expect("a copy"));
                    thread::spawn(move || pass(from, to));
                }
            }
        });
        proxy
    }

    /// New connections go to another server, and those that are open end.
    fn lead_to(&self, port: u16) {
        self.target.store(port, Ordering::SeqCst);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in open.drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 8_192];
    while let Ok(number @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..number]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}
