//! The doorbell: timers that others schedule for the next moments start at once.

use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use kit::wait;
use tourbillon_durable::{Due, Durable, DurableEvent, Postgres, PostgresBuilder};

use crate::cluster::{self, Database};
use crate::stopped::Stopped;

/// Less than the time between two polls.
const SOON: Duration = Duration::from_secs(30);

struct Node {
    timers: Durable,
    runs: Receiver<String>,
    events: Receiver<DurableEvent>,
}

impl Node {
    /// A node that would find nothing within a minute without the doorbell.
    fn start(builder: PostgresBuilder) -> Node {
        let (ran, runs) = mpsc::channel();
        let (happened, events) = mpsc::channel();
        let timers = Durable::builder(builder.connect().expect("the cluster answers"))
            .poll_interval(Duration::from_secs(60))
            .node_lease(Duration::from_secs(3_600))
            .on_event(move |event| drop(happened.send(event.clone())))
            .handle("q", move |due: &Due<u32>| {
                drop(ran.send(due.key().to_owned()));
            })
            .start()
            .expect("the cluster answers");
        Node {
            timers,
            runs,
            events,
        }
    }

    #[track_caller]
    fn runs_soon(&self, key: &str) {
        assert_eq!(self.runs.recv_timeout(SOON).as_deref(), Ok(key));
    }
}

fn builder(database: &Database) -> PostgresBuilder {
    Postgres::builder(&database.url()).expect("a URL")
}

/// A program that knows SQL schedules a timer for the next moment.
fn schedule(database: &Database, key: &str) {
    let sql = format!(
        "set tourbillon.notify = on; \
         select due from tourbillon.schedule('q', '{key}', interval '20 ms', '7')"
    );
    database.psql(&sql).expect("it is accepted");
}

/// The number of a process that listens.
fn listener(database: &Database) -> Option<String> {
    let sql = format!(
        "select pid from pg_stat_activity where datname = '{}' and state = 'idle' \
         and query like '%listen \"tourbillon\"'",
        database.name()
    );
    let found = database.psql(&sql).expect("it reads");
    assert!(!found.contains('\n'), "one process listens: {found}");
    Some(found).filter(|found| !found.is_empty())
}

#[track_caller]
fn until_heard(database: &Database) -> String {
    let mut found = None;
    wait::until("a process listens", || {
        found = listener(database);
        found.is_some()
    });
    found.expect("a process listens")
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_timer_that_psql_schedules_runs_at_once_and_a_stop_ends_the_connection() {
    let database = cluster::lent();
    let node = Node::start(builder(&database).listen(true));
    until_heard(&database);
    schedule(&database, "a");
    node.runs_soon("a");
    // The first poll of all, after the connection was made, may have found it.
    for number in 0..20 {
        let key = number.to_string();
        schedule(&database, &key);
        node.runs_soon(&key);
    }
    assert!(node.timers.stats().rings >= 20);
    let report = node.timers.stop(Duration::ZERO).wait().unwrap();
    assert!(report.has_left);
    wait::until("nobody listens", || listener(&database).is_none());
    let Node { timers, events, .. } = node;
    drop(timers);
    assert_eq!(wait::all(&events), []);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_timer_of_another_process_runs_at_once_if_both_announce() {
    let database = cluster::lent();
    let node = Node::start(builder(&database).notify(true));
    until_heard(&database);
    let store = builder(&database).notify(true).connect();
    let client = Durable::builder(store.expect("the cluster answers")).start();
    let client = client.expect("the cluster answers");
    for number in 0..20 {
        let key = number.to_string();
        let scheduled = client
            .schedule("q", &key, Duration::from_millis(20), &number)
            .wait();
        scheduled.expect("it is accepted");
        node.runs_soon(&key);
    }
    assert!(node.timers.stats().rings >= 20);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_timer_of_a_transaction_runs_at_its_commit_if_its_store_announces() {
    let database = cluster::lent();
    let node = Node::start(builder(&database).listen(true));
    until_heard(&database);
    let store = builder(&database).notify(true).connect();
    let store = store.expect("the cluster answers");
    let mut client = database.client();
    for number in 0..20 {
        let key = number.to_string();
        let mut tx = client.transaction().expect("the cluster answers");
        let calls = store.in_transaction(&mut tx);
        let scheduled = calls.schedule("q", &key, Duration::ZERO, &number);
        scheduled.expect("it is accepted");
        tx.commit().expect("the cluster answers");
        node.runs_soon(&key);
    }
    assert!(node.timers.stats().rings >= 20);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn nobody_listens_where_nobody_is_asked_to() {
    let database = cluster::lent();
    for builder in [
        builder(&database),
        builder(&database).notify(true).listen(false),
    ] {
        let node = Node::start(builder);
        let scheduled = node.timers.schedule("q", "k", Duration::ZERO, &7).wait();
        scheduled.expect("it is accepted");
        node.runs_soon("k");
        assert_eq!(listener(&database), None);
        assert_eq!(node.timers.stats().rings, 0);
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_doorbell_whose_connection_is_ended_comes_back() {
    let database = cluster::lent();
    let node = Node::start(builder(&database).listen(true));
    for number in 0..3 {
        let process = until_heard(&database);
        let end = format!("select pg_terminate_backend({process}, 10000)");
        assert_eq!(database.psql(&end).as_deref(), Ok("t"));
        // Perhaps nobody listens at this moment: the first poll after that finds it.
        let key = number.to_string();
        schedule(&database, &key);
        node.runs_soon(&key);
        let down = wait::next(&node.events);
        assert!(
            matches!(&down, DurableEvent::DoorbellDown { error, .. } if error.contains("57P01")),
            "{down:?}"
        );
        assert_eq!(wait::next(&node.events), DurableEvent::DoorbellUp);
        assert_ne!(until_heard(&database), process);
        schedule(&database, "again");
        node.runs_soon("again");
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_doorbell_whose_server_says_nothing_any_more_is_given_up() {
    let database = cluster::lent();
    let limited = builder(&database).statement_limit(Duration::from_millis(200));
    let node = Node::start(limited.listen(true));
    let stopped = until_heard(&database);
    let stopped = Stopped::new(&stopped);
    let down = wait::next(&node.events);
    assert!(
        matches!(&down, DurableEvent::DoorbellDown { error, .. } if error.contains("no answer within")),
        "{down:?}"
    );
    assert_eq!(wait::next(&node.events), DurableEvent::DoorbellUp);
    schedule(&database, "a");
    node.runs_soon("a");
    drop(stopped);
}
