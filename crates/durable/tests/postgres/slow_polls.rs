//! A node beats and polls by one connection. So a poll, or the declaration that another node is
//! gone, holds up the next beat. It must not cost a healthy node its lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use kit::wait;
use tourbillon_durable::{Due, Durable, DurableEvent, Postgres, StoreWork};

use crate::cluster::{self, Database};
use crate::stopped::Stopped;

/// The limit of a statement. The connection is given up two seconds later.
const LIMIT: Duration = Duration::from_millis(500);

/// The shortest lease that fits to it.
const LEASE: Duration = Duration::from_secs(5);

/// Often, so that a beat comes behind a poll.
const POLLS: Duration = Duration::from_millis(100);

/// More than a lease.
const BEATS: i64 = 7;

/// A node with a handler that asks all the time whether the lease is held.
struct Node {
    timers: Durable,
    events: Receiver<DurableEvent>,
    was_lost: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
}

impl Node {
    fn start(database: &Database, name: &str, limit: Duration, lease: Duration) -> Node {
        let store = Postgres::builder(&database.url())
            .and_then(|builder| {
                let builder = builder.lock_limit(limit / 5);
                builder.statement_limit(limit).connect()
            })
            .expect("the cluster answers");
        let (began, begins) = mpsc::channel();
        let (happened, events) = mpsc::channel();
        let (was_lost, ends) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let (lost, end) = (Arc::clone(&was_lost), Arc::clone(&ends));
        let timers = Durable::builder(store)
            .name(name)
            .poll_interval(POLLS)
            .node_lease(lease)
            .on_event(move |event| drop(happened.send(event.clone())))
            .handle(name, move |due: &Due<u64>| {
                let _ = began.send(());
                while !end.load(Ordering::Relaxed) {
                    if !due.is_held() {
                        lost.store(true, Ordering::Relaxed);
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            })
            .start()
            .expect("the cluster answers");
        let scheduled = timers.schedule(name, "a", Duration::ZERO, &1_u64);
        scheduled.wait().expect("it is accepted");
        wait::next(&begins);
        Node {
            timers,
            events,
            was_lost,
            ends,
        }
    }

    /// The lease was held all the time, and nobody has declared the node gone.
    #[track_caller]
    fn has_lost_nothing(self, what: &str) {
        let was_lost = self.was_lost.load(Ordering::Relaxed);
        self.ends.store(true, Ordering::Relaxed);
        assert!(!was_lost, "{what}: the lease was over for a while");
        assert_eq!(self.timers.stats().gone, 0, "{what}");
    }
}

/// The number of the last beat of a node.
fn beats(database: &Database, name: &str) -> i64 {
    let sql = format!("select beat from tourbillon.node where name = '{name}' and gone is null");
    let beat = database.psql(&sql).expect("it reads");
    beat.parse().expect("the node is not gone")
}

/// Waits for a part of the work to fail, then for more than a lease, and checks that nothing was lost.
fn two_nodes_beat_on(
    what: &str,
    database: &Database,
    stops: Option<StoreWork>,
    begin: impl FnOnce(),
) {
    let nodes = ["a", "b"].map(|name| Node::start(database, name, LIMIT, LEASE));
    begin();
    if let Some(stops) = stops {
        let down = |event| matches!(event, DurableEvent::StoreDown { work, .. } if work == stops);
        for node in &nodes {
            while !down(wait::next(&node.events)) {}
        }
    }
    let before = ["a", "b"].map(|name| beats(database, name));
    wait::until(what, || {
        let now = ["a", "b"].map(|name| beats(database, name));
        (0..2).all(|node| now[node] >= before[node] + BEATS)
    });
    for node in nodes {
        node.has_lost_nothing(what);
    }
}

/// Runs statements as the owner.
fn run(database: &Database, sql: &str) {
    database.psql(sql).expect("a superuser");
}

/// A process that has died long ago.
const DEAD: &str = "insert into tourbillon.node (epoch, name, queues) values (7, 'dead', '{}')";

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn nodes_whose_polls_wait_for_a_lock_of_the_table_keep_their_leases() {
    let database = cluster::lent();
    let mut client = database.client();
    let mut held = None;
    two_nodes_beat_on("a lock", &database, Some(StoreWork::Poll), || {
        let mut transaction = client.transaction().expect("it begins");
        let lock = "lock table tourbillon.timer in access exclusive mode";
        transaction.batch_execute(lock).expect("it locks");
        held = Some(transaction);
    });
    drop(held);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn nodes_whose_polls_are_slow_keep_their_leases() {
    // A poll that ends in time, and one that the server ends.
    for (seconds, stops) in [(0.4, None), (60.0, Some(StoreWork::Poll))] {
        let database = cluster::database();
        two_nodes_beat_on("slow polls", &database, stops, || {
            // Polls alone read this table.
            let sql = format!(
                "alter table tourbillon.queue rename to kept; create view tourbillon.queue as \
                 select k.name, k.paused from tourbillon.kept k union all \
                 select 'x', true from pg_sleep({seconds})"
            );
            run(&database, &sql);
        });
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn nodes_whose_declarations_are_slow_keep_their_leases() {
    let database = cluster::database();
    two_nodes_beat_on(
        "slow declarations",
        &database,
        Some(StoreWork::DeclareGone),
        || {
            let sql = "create or replace function \
                       tourbillon.declare_gone_1(p_asking bigint, p_epoch bigint, p_beat bigint) \
                       returns boolean language plpgsql as $$ begin \
                       perform from tourbillon.node d where d.epoch = p_epoch for update; \
                       perform pg_sleep(60); return false; end $$";
            run(&database, sql);
            run(&database, DEAD);
        },
    );
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn nodes_that_cannot_lock_the_row_of_a_dead_one_keep_their_leases() {
    let database = cluster::database();
    let mut client = database.client();
    let mut held = None;
    let stops = Some(StoreWork::DeclareGone);
    two_nodes_beat_on("a locked row", &database, stops, || {
        run(&database, DEAD);
        let mut transaction = client.transaction().expect("it begins");
        let lock = "select from tourbillon.node where epoch = 7 for update";
        transaction.batch_execute(lock).expect("it locks");
        held = Some(transaction);
    });
    drop(held);
}

/// The process of the server that serves the polls, if it does nothing at this moment.
fn idle_watch(database: &Database) -> Option<String> {
    let sql = "select pid from pg_stat_activity where datname = current_database() \
               and state = 'idle' and query like '%unnest($13::bigint[]%'";
    let found = database.psql(sql).expect("it reads");
    Some(found).filter(|found| !found.is_empty())
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_node_whose_poll_has_no_answer_keeps_its_lease_with_the_defaults() {
    let database = cluster::database();
    let (limit, lease) = (Duration::from_secs(5), Duration::from_secs(15));
    let node = Node::start(&database, "a", limit, lease);
    let before = beats(&database, "a");
    wait::until("a beat", || beats(&database, "a") > before);
    // The poll that has no answer is one of the last before the next beat: the worst moment.
    let late = lease / 5 - 2 * POLLS;
    let beat = Instant::now();
    let mut found = None;
    wait::until("a poll", || {
        found = idle_watch(&database).filter(|_| beat.elapsed() > late);
        found.is_some()
    });
    let process = found.expect("it was found");
    let stopped = Stopped::new(&process);
    let before = beats(&database, "a");
    wait::until("the next beat", || beats(&database, "a") > before);
    assert!(
        beat.elapsed() > limit,
        "a poll without an answer comes before the next beat"
    );
    node.has_lost_nothing("no answer");
    drop(stopped);
}
