//! Each outage of a node has one event when it begins and one when it ends, whatever stopped the
//! work.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kit::wait;
use tourbillon_durable::StoreError;
use tourbillon_durable::{
    CallError, Due, Durable, DurableEvent, Postgres, PostgresBuilder, StartError, StoreWork,
};

use crate::cluster::{self, Cluster, Database};

/// A role of its own with the rights of a node. Roles belong to the whole cluster.
pub(crate) fn role(database: &Database) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let role = format!("app_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    Postgres::connect(&database.url()).expect("the tables are made");
    let grants = format!(
        "create role {role} login; grant usage on schema tourbillon to {role}; \
         grant select, insert, update, delete on all tables in schema tourbillon to {role}; \
         grant usage on all sequences in schema tourbillon to {role}"
    );
    database.psql(&grants).expect("a superuser");
    role
}

struct Node {
    timers: Durable,
    runs: Receiver<u64>,
    events: Receiver<DurableEvent>,
    scheduled: u64,
}

impl Node {
    fn start(builder: PostgresBuilder) -> Result<Node, StartError> {
        let (ran, runs) = mpsc::channel();
        let (happened, events) = mpsc::channel();
        let timers = Durable::builder(builder.connect().map_err(StartError::Store)?)
            .poll_interval(Duration::from_millis(100))
            .node_lease(Duration::from_secs(60))
            .on_event(move |event| {
                if let DurableEvent::StoreDown { .. } | DurableEvent::StoreUp = event {
                    drop(happened.send(event.clone()));
                }
            })
            .handle("q", move |due: &Due<u64>| {
                let _ = ran.send(*due.payload());
            })
            .start()?;
        Ok(Node {
            timers,
            runs,
            events,
            scheduled: 0,
        })
    }

    /// Schedules a timer from outside that is due now.
    fn schedule(&mut self, database: &Database) {
        self.scheduled += 1;
        let n = self.scheduled;
        let sql = format!("select due from tourbillon.schedule('q', '{n}', interval '0', '{n}')");
        database.psql(&sql).expect("a superuser");
    }

    /// Waits until that timer has run.
    #[track_caller]
    fn runs(&self) {
        while wait::next(&self.runs) != self.scheduled {}
    }

    /// Waits for an outage, and returns its first reason. Calls without an answer for a second are
    /// outages too, and on a machine with other work there may be some: those that pass are left
    /// out. `None` if one of them has become the outage that was waited for, which has no event of
    /// its own then.
    #[track_caller]
    fn goes_down(&self) -> Option<(StoreWork, String)> {
        loop {
            let down = wait::next(&self.events);
            if !is_slow(&down) {
                let DurableEvent::StoreDown { work, error, .. } = down else {
                    panic!("{down:?}");
                };
                return Some((work, error));
            }
            match self.events.recv_timeout(PASSES) {
                Ok(DurableEvent::StoreUp) => {}
                Ok(other) => panic!("{other:?}"),
                Err(_) => return None,
            }
        }
    }

    /// Ends the node. There are no events but those that were taken, and outages of slow calls.
    #[track_caller]
    fn has_said_all(self) {
        wait::until("all works", || self.timers.stats().stopped_work == 0);
        drop(self.timers);
        let rest = wait::all(&self.events);
        // The node may end during the last one.
        let is_slow = |pair: &[DurableEvent]| {
            let passes = |next: &DurableEvent| *next == DurableEvent::StoreUp;
            is_slow(&pair[0]) && pair.get(1).is_none_or(passes)
        };
        assert!(rest.chunks(2).all(is_slow), "{rest:?}");
    }
}

/// Whether an outage has begun with a call that had no answer for a second.
fn is_slow(event: &DurableEvent) -> bool {
    matches!(event, DurableEvent::StoreDown { error, .. } if error.starts_with("no answer for"))
}

/// After this time a slow call has passed, or something else has stopped its work.
const PASSES: Duration = Duration::from_secs(5);

fn builder(url: &str) -> PostgresBuilder {
    Postgres::builder(url).expect("a URL")
}

/// Ends all connections to the database. New ones are not held up.
fn end_connections(database: &Database) {
    let end = format!(
        "select count(pg_terminate_backend(pid, 10000)) from pg_stat_activity \
         where datname = '{}' and pid <> pg_backend_pid()",
        database.name()
    );
    database.beside(&end).expect("a superuser");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn whatever_stops_a_node_is_told_once_with_the_reason() {
    // What breaks it, what mends it, and what the reason says, unless there are several. `ROLE` and
    // `DB` are those of the node.
    let cases = [
        (
            "revoke select on tourbillon.timer from ROLE",
            "grant select on tourbillon.timer to ROLE",
            "42501",
        ),
        (
            "revoke usage on schema tourbillon from ROLE",
            "grant usage on schema tourbillon to ROLE",
            "42501",
        ),
        (
            "revoke update on tourbillon.node from ROLE",
            "grant update on tourbillon.node to ROLE",
            "42501",
        ),
        (
            "revoke execute on function tourbillon.claim_1 from public",
            "grant execute on function tourbillon.claim_1 to public",
            "claim_1",
        ),
        (
            "revoke delete on tourbillon.timer from ROLE",
            "grant delete on tourbillon.timer to ROLE",
            "42501",
        ),
        (
            "alter table tourbillon.queue rename to elsewhere",
            "alter table tourbillon.elsewhere rename to queue",
            "42P01",
        ),
        (
            "alter table tourbillon.timer rename column crashes to elsewhere",
            "alter table tourbillon.timer rename column elsewhere to crashes",
            "42703",
        ),
        (
            "alter function tourbillon.settle_1 rename to elsewhere",
            "alter function tourbillon.elsewhere rename to settle_1",
            "settle_1",
        ),
        (
            "alter table tourbillon.timer enable row level security",
            "alter table tourbillon.timer disable row level security",
            "bypassrls",
        ),
        ("alter role ROLE nologin", "alter role ROLE login", ""),
        (
            "alter role ROLE connection limit 0",
            "alter role ROLE connection limit -1",
            "",
        ),
        (
            "alter database DB allow_connections false",
            "alter database DB allow_connections true",
            "",
        ),
        (
            "alter database DB rename to DB_elsewhere",
            "alter database DB_elsewhere rename to DB",
            "",
        ),
    ];
    for case in cases {
        // Beside other work the outage may begin with a slow call, and so with another reason.
        let told = (0..5).any(|_| is_told_once(case));
        assert!(told, "{case:?}");
    }
}

/// Plays one case: what breaks the work, what mends it, and the reason. Whether the reason was
/// told.
#[track_caller]
fn is_told_once((breaks, mends, reason): (&str, &str, &str)) -> bool {
    let database = cluster::database();
    let role = role(&database);
    let of_case = |sql: &str| sql.replace("ROLE", &role).replace("DB", database.name());
    let mut node = Node::start(builder(&database.url_of(&role))).expect("it may work");
    node.schedule(&database);
    node.runs();
    let is_of_connections = !breaks.contains("tourbillon");
    let told = if is_of_connections {
        // Nobody comes between the end of the connections and what breaks new ones.
        let beside = |sql: &str| database.beside(&of_case(sql)).expect("a superuser");
        beside("alter role ROLE nologin");
        end_connections(&database);
        beside(breaks);
        if !breaks.contains("nologin") {
            beside("alter role ROLE login");
        }
        // The end of its connection may be what it has seen first.
        node.goes_down()
    } else {
        node.schedule(&database);
        database.psql(&of_case(breaks)).expect("a superuser");
        // A timer that is scheduled now meets what is broken, unless that refuses it.
        let sql = "select due from tourbillon.schedule('q', 'x', interval '0', '0')";
        drop(database.psql(sql));
        let told = node.goes_down();
        if let Some((_, why)) = &told {
            assert!(why.contains(reason), "{breaks}: {why}");
        }
        told
    };
    let before = node.timers.stats().store_errors;
    wait::until("it fails again and again", || {
        node.timers.stats().store_errors > before + 2
    });
    assert!(node.timers.stats().stopped_work > 0, "{breaks}");
    assert_eq!(node.events.try_recv().ok(), None, "{breaks}");
    match is_of_connections {
        true => database.beside(&of_case(mends)).expect("a superuser"),
        false => database.psql(&of_case(mends)).expect("a superuser"),
    };
    assert_eq!(wait::next(&node.events), DurableEvent::StoreUp, "{breaks}");
    node.schedule(&database);
    node.runs();
    node.has_said_all();
    told.is_some()
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_start_that_cannot_work_is_refused() {
    let cases = [
        (
            "revoke insert on tourbillon.dead from ROLE",
            "insert on tourbillon.dead",
        ),
        (
            "revoke execute on function tourbillon.claim_1 from public",
            "claim_1",
        ),
        (
            "alter function tourbillon.settle_1 rename to elsewhere",
            "settle_1",
        ),
        (
            "alter table tourbillon.timer rename column crashes to elsewhere",
            "crashes",
        ),
        ("drop table tourbillon.queue cascade", "queue"),
        (
            "alter table tourbillon.timer enable row level security",
            "bypassrls",
        ),
    ];
    for (breaks, reason) in cases {
        let database = cluster::database();
        let role = role(&database);
        let breaks = breaks.replace("ROLE", &role);
        database.psql(&breaks).expect("a superuser");
        let error = Node::start(builder(&database.url_of(&role))).map(drop);
        let error = error.expect_err("it can't work");
        assert!(
            matches!(&error, StartError::Store(StoreError::Refused(why)) if why.contains(reason)),
            "{breaks}: {error:?}"
        );
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_settings_of_a_role_and_a_database_stop_nothing() {
    let database = cluster::database();
    let role = role(&database);
    for setting in [
        "default_transaction_read_only = on",
        "default_transaction_isolation = serializable",
        "statement_timeout = 1",
        "lock_timeout = 1",
        "search_path = nowhere",
        "datestyle = 'German'",
        "timezone = 'Asia/Kathmandu'",
        "bytea_output = escape",
        "intervalstyle = sql_standard",
    ] {
        let sql = format!(
            "alter role {role} set {setting}; alter database {} set {setting}",
            database.name()
        );
        database.beside(&sql).expect("a superuser");
    }
    let mut node = Node::start(builder(&database.url_of(&role))).expect("it works");
    let now = Duration::ZERO;
    node.timers
        .schedule("q", "1", now, &1_u64)
        .wait()
        .expect("accepted");
    node.scheduled = 1;
    node.runs();
    node.has_said_all();
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_table_that_somebody_locks_is_an_outage_after_a_second() {
    let database = cluster::database();
    let mut node = Node::start(builder(&database.url())).expect("it works");
    let mut client = database.client();
    let mut transaction = client.transaction().expect("it begins");
    transaction
        .batch_execute("lock table tourbillon.timer in access exclusive mode")
        .expect("it locks");
    // The statement's own limit for locks is a second, too.
    if let Some((_, why)) = node.goes_down() {
        assert!(why.contains("55P03"), "{why}");
    }
    transaction.rollback().expect("it ends");
    assert_eq!(wait::next(&node.events), DurableEvent::StoreUp);
    node.schedule(&database);
    node.runs();
    node.has_said_all();
}

/// A cluster that asks the role `app` for a password.
pub(crate) fn with_passwords() -> (Cluster, Database, String) {
    let cluster = Cluster::start();
    let database = cluster.database();
    let role = role(&database);
    cluster.admit(&format!(
        "host all {role} 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"
    ));
    (cluster, database, role)
}

fn set_password(database: &Database, role: &str, password: &str) {
    let sql = format!("alter role {role} password '{password}'");
    database.psql(&sql).expect("a superuser");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_password_that_was_changed_is_an_outage_and_a_missing_one_is_refused() {
    let (_cluster, database, role) = with_passwords();
    set_password(&database, &role, "one");
    let url = database.url_of(&role);
    for (url, reason) in [
        (url.clone(), "password missing"),
        (url.replace(&role, &format!("{role}:two")), "28P01"),
    ] {
        let error = Postgres::connect(&url)
            .map(drop)
            .expect_err("it is refused");
        assert!(
            matches!(&error, StoreError::Refused(why) if why.contains(reason)),
            "{error:?}"
        );
    }
    let url = url.replace(&role, &format!("{role}:one"));
    let mut node = Node::start(builder(&url)).expect("it works");
    set_password(&database, &role, "two");
    end_connections(&database);
    node.goes_down();
    let before = node.timers.stats().store_errors;
    wait::until("it fails again and again", || {
        node.timers.stats().store_errors > before + 5
    });
    assert_eq!(node.events.try_recv().ok(), None);
    set_password(&database, &role, "one");
    assert_eq!(wait::next(&node.events), DurableEvent::StoreUp);
    node.schedule(&database);
    node.runs();
    node.has_said_all();
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_password_is_asked_for_at_each_connect() {
    let (_cluster, database, role) = with_passwords();
    let current: Arc<Mutex<Option<String>>> = Arc::default();
    let set = |password: Option<&str>| {
        let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
        *current = password.map(ToOwned::to_owned);
    };
    let asking = Arc::clone(&current);
    let ask = move || {
        // A function may use a runtime of its own.
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let current = asking.lock().unwrap_or_else(PoisonError::into_inner);
        runtime.block_on(async { current.clone().ok_or_else(|| "no token".into()) })
    };
    let by_function = || builder(&database.url_of(&role)).password_with(ask.clone());
    let error = Node::start(by_function())
        .map(drop)
        .expect_err("there is none");
    assert!(
        matches!(&error, StartError::Store(StoreError::Unavailable(why)) if why.contains("no token")),
        "{error:?}"
    );
    set(Some("token 1"));
    set_password(&database, &role, "token 1");
    let mut node = Node::start(by_function().listen(true)).expect("it works");
    for number in 2..5 {
        let token = format!("token {number}");
        // The old token is refused from now on.
        set_password(&database, &role, &token);
        set(Some(&token));
        end_connections(&database);
        node.schedule(&database);
        node.runs();
    }
    let shown = format!("{:?}", by_function());
    assert!(!shown.contains("token"), "{shown}");
    let panics =
        builder(&database.url_of(&role)).password_with(|| panic!("{}", kit::quiet::WANTED));
    kit::quiet::hush();
    let error = panics.connect().map(drop).expect_err("it panics");
    assert!(
        error.may_pass() && error.to_string().contains("panicked"),
        "{error}"
    );
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_server_that_has_used_up_its_transaction_numbers_is_an_outage() {
    // The server looks for what its vacuum has to do each second.
    let mut cluster = Cluster::with(&["fsync=off", "autovacuum_naptime=1"]);
    let database = cluster.database();
    let mut node = Node::start(builder(&database.url())).expect("it works");
    let (happened, events) = mpsc::channel();
    let client = Durable::builder(builder(&database.url()).connect().expect("it answers"))
        .on_event(move |event| drop(happened.send(event.clone())))
        .start()
        .expect("it answers");
    let later = Duration::from_secs(3_600);
    client
        .schedule("q", "kept", later, &0)
        .wait()
        .expect("accepted");
    let holder = cluster.use_up_numbers(&database);
    // Its code is one of values, but the value is a good one.
    let refused = client.schedule("q", "k", later, &0).wait();
    assert!(
        matches!(&refused, Err(CallError::Unavailable(why) | CallError::Unknown(why)) if !why.is_empty()),
        "{refused:?}"
    );
    wait::until("it answers that it accepts no writes", || {
        let refused = client.schedule("q", "k", later, &0).wait();
        matches!(&refused, Err(CallError::Unavailable(why)) if why.contains("54000"))
    });
    let many = ["a", "b", "c"].map(|key| client.schedule("q", key, later, &0));
    for one in many {
        let refused = one.wait();
        assert!(
            matches!(&refused, Err(CallError::Unavailable(why)) if why.contains("54000")),
            "{refused:?}"
        );
    }
    // Reads go on.
    assert!(client.get("q", "kept").wait().expect("it reads").is_some());
    let down = wait::next(&events);
    assert!(
        matches!(&down, DurableEvent::StoreDown { work, .. } if *work == StoreWork::Write),
        "{down:?}"
    );
    // The polls succeed again after the restart, and the first beat fails. On a slow machine the
    // beat may fail during the restart. Then its error is that of the restart.
    wait::until("the node says it", || match wait::next(&node.events) {
        DurableEvent::StoreDown { work, error, .. } => {
            work == StoreWork::Beat || error.contains("54000")
        }
        _ => false,
    });
    drop(holder);
    cluster.number_again();
    wait::until("it accepts", || {
        client.schedule("q", "k", later, &0).wait().is_ok()
    });
    assert_eq!(wait::next(&events), DurableEvent::StoreUp);
    assert_eq!(wait::next(&node.events), DurableEvent::StoreUp);
    node.schedule(&database);
    node.runs();
    node.has_said_all();
    drop(client);
    assert_eq!(wait::all(&events), []);
}
