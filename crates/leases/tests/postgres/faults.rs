//! Servers that crash, are replaced or promoted, and what stands between them and the store.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use chaos::proxy::{Proxy, Trouble, Way};
use chaos::servers::postgres::{Cluster, Database, database};
use kit::wait;
use tourbillon_leases::{
    Acquired, Claim, Detach, Detached, Holding, Outcome, PostgresStore, PostgresStoreBuilder,
    Released, Renewal, Secret, StoreError,
};

use crate::calls::Calls;
use crate::shop::{
    LEASE, LIMIT, MS, acquire, cut, granted, held, patiently, psql, refused, release, renew, store,
};

const S: Duration = Duration::from_secs(1);

fn builder(database: &Database) -> PostgresStoreBuilder {
    PostgresStore::builder(&database.url())
}

// === servers that fail ===

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_lock_outlives_a_crash_and_nobody_waits_for_the_longest_lease() {
    // Others may lose their last commits. The sessions of the store do not.
    let mut cluster = Cluster::with(&[
        "fsync=off",
        "synchronous_commit=off",
        "wal_writer_delay=10s",
    ]);
    let database = cluster.database();
    let store = store(&database);
    let token = granted(&store, "x", "a:1");
    cluster.restart();
    let mine = Renewal::new("x", Secret::new("a:1"), LEASE);
    let renewed = patiently(|| store.renew(Default::default(), &[mine], LIMIT));
    assert_eq!(renewed, Ok(vec![Outcome::Renewed]));
    let other = patiently(|| acquire(&store, "x", "b:1"));
    assert!(matches!(other, Ok(Acquired::Held { .. })), "{other:?}");
    let holder = store.holder_of("x", LIMIT).unwrap().unwrap();
    assert_eq!(holder.token, token);
    granted(&store, "y", "b:1");
    assert_eq!(store.check(LIMIT), Ok(()));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_standby_that_is_promoted_grants_nothing_for_the_longest_lease() {
    let mut primary = Cluster::durable();
    let database = primary.database();
    let proxy = Proxy::before((Ipv4Addr::LOCALHOST, primary.port()).into(), Duration::ZERO);
    let proxy = proxy.expect("a port is free");
    let builder = || PostgresStore::builder(&database.url_by(proxy.port())).longest_lease(5 * S);
    let (store, durable) = (
        builder().build().unwrap(),
        builder().durable().build().unwrap(),
    );
    let claim = Claim::new("x", "a:1", Secret::new("a:1"), 5 * S);
    // The tables are there before the copy.
    assert_eq!(store.check(LIMIT), Ok(()));
    let standby = Cluster::standby_of(primary.port());
    let since = Instant::now();
    let first = match store.acquire(&claim, LIMIT) {
        Ok(Acquired::Granted { token, .. }) => token,
        answer => panic!("{answer:?}"),
    };
    wait::until("the standby has the lock", || {
        let asked = "select count(*) from pg_stat_replication \
                     where state = 'streaming' and replay_lsn >= pg_current_wal_lsn()";
        primary.psql(asked).as_deref() == Ok("1")
    });
    let before = Instant::now();
    primary.crash();
    standby.promote();
    proxy.leads_to(standby.port());
    // The holder goes on.
    let mine = Renewal::new("x", Secret::new("a:1"), 5 * S);
    let renewed = patiently(|| store.renew(Default::default(), &[mine], LIMIT));
    // It may have run out on a busy machine.
    let is_late = since.elapsed() >= 5 * S;
    assert!(
        renewed == Ok(vec![Outcome::Renewed]) || is_late,
        "{renewed:?}"
    );
    let free = Claim::new("y", "b:1", Secret::new("b:1"), S);
    let answer = patiently(|| store.acquire(&free, LIMIT));
    match answer {
        Err(StoreError::Restarted { wait }) => assert!(wait <= 5 * S, "{wait:?}"),
        // It may have passed on a busy machine.
        Ok(Acquired::Granted { .. }) => assert!(before.elapsed() >= 5 * S),
        answer => panic!("{answer:?}"),
    }
    let answer = patiently(|| durable.acquire(&free, LIMIT));
    assert!(
        matches!(answer, Ok(Acquired::Granted { .. } | Acquired::Held { .. })),
        "{answer:?}"
    );
    let released = release(&store, "x", "a:1");
    assert!(released == Released::Released || is_late, "{released:?}");
    let mut later = 0;
    wait::until("it grants again", || match store.acquire(&claim, LIMIT) {
        Ok(Acquired::Granted { token, .. }) => {
            later = token;
            true
        }
        _ => false,
    });
    assert!(before.elapsed() >= 5 * S);
    assert!(later > first);
    // Once for all: another store does not wait again.
    let other = builder().build().unwrap();
    assert_eq!(patiently(|| other.check(LIMIT)), Ok(()));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn other_tables_grant_nothing_where_a_process_knows_that_some_were_lost() {
    let database = database();
    let store = builder(&database).longest_lease(2 * S).build().unwrap();
    let claim = |owner| Claim::new("x", owner, Secret::new(owner), S);
    let granted = |answer| matches!(answer, Ok(Acquired::Granted { .. }));
    assert!(granted(store.acquire(&claim("a:1"), LIMIT)));
    psql(&database, "drop schema tourbillon_leases cascade");
    // Nobody makes them in the place of a backup.
    let gone = patiently(|| match store.acquire(&claim("a:2"), LIMIT) {
        Err(StoreError::Unavailable(why)) if why.contains("are gone, or another server") => Ok(why),
        other => Err(StoreError::Unavailable(format!("{other:?}"))),
    });
    assert!(gone.is_ok(), "{gone:?}");
    // A program that starts anew does, and has nothing to wait for, as far as it knows.
    let before = Instant::now();
    let other = builder(&database).longest_lease(2 * S).build().unwrap();
    assert_eq!(other.check(LIMIT), Ok(()));
    let answer = patiently(|| store.acquire(&claim("a:3"), LIMIT));
    assert!(
        matches!(answer, Err(StoreError::Restarted { wait }) if wait <= 2 * S)
            || before.elapsed() >= 2 * S,
        "{answer:?}"
    );
    // From now on that holds for all.
    let told = other.check(LIMIT);
    assert!(
        matches!(told, Err(StoreError::Restarted { .. })) || before.elapsed() >= 2 * S,
        "{told:?}"
    );
    wait::until("the time is over", || {
        matches!(
            other.acquire(&claim("a:4"), LIMIT),
            Ok(Acquired::Granted { .. })
        )
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn tables_that_a_dump_restores_grant_nothing_for_the_longest_lease() {
    let database = database();
    let store = builder(&database).longest_lease(2 * S).build().unwrap();
    let claim = |owner| Claim::new("x", owner, Secret::new(owner), S);
    let granted = |answer: &_| matches!(answer, Ok(Acquired::Granted { .. }));
    assert!(granted(&store.acquire(&claim("a:1"), LIMIT)));
    let before = Instant::now();
    // What a dump from before has of `meta`, while a connection is open.
    let restored = format!(
        "create temp table kept as select * from tourbillon_leases.meta; \
         drop schema tourbillon_leases cascade; {} delete from tourbillon_leases.meta; \
         insert into tourbillon_leases.meta select * from kept",
        PostgresStore::tables_sql("tourbillon_leases").unwrap()
    );
    psql(&database, &restored);
    let answer = patiently(|| store.acquire(&claim("a:2"), LIMIT));
    assert!(
        matches!(answer, Err(StoreError::Restarted { wait }) if wait <= 2 * S)
            || before.elapsed() >= 2 * S,
        "{answer:?}"
    );
    wait::until("the time is over", || {
        granted(&store.acquire(&claim("a:3"), LIMIT))
    });
    // Without its row nobody knows what was lost.
    psql(&database, "delete from tourbillon_leases.meta");
    for _ in 0..2 {
        let answer = store.acquire(&Claim::new("y", "a:4", Secret::new("a:4"), S), LIMIT);
        assert!(
            matches!(answer, Err(StoreError::Unavailable(_))),
            "{answer:?}"
        );
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_clock_that_is_set_back_does_not_lengthen_the_wait_after_a_loss() {
    let database = database();
    let store = store(&database);
    granted(&store, "x", "a:1");
    let opens = |when: &str| {
        let set = format!("update tourbillon_leases.meta set opens = now() + interval '{when}'");
        psql(&database, &set);
    };
    opens("1 hour");
    let answer = acquire(&store, "y", "a:1");
    assert!(
        matches!(answer, Err(StoreError::Restarted { wait }) if wait <= LEASE),
        "{answer:?}"
    );
    let rest = "select opens <= now() + interval '30 s' from tourbillon_leases.meta";
    assert_eq!(psql(&database, rest), "t");
    // Once the moment has passed, no clock brings it back.
    opens("-1 s");
    granted(&store, "y", "a:1");
    let forgotten = "select opens is null from tourbillon_leases.meta";
    assert_eq!(psql(&database, forgotten), "t");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_standby_may_be_a_primary_soon() {
    let mut cluster = Cluster::durable();
    let database = cluster.database();
    let store = store(&database);
    granted(&store, "x", "a:1");
    cluster.stand_by();
    wait::until("the standby answers", || {
        let answer = acquire(&store, "y", "a:1");
        match &answer {
            Err(StoreError::Unavailable(why)) => why.contains("is a standby"),
            _ => panic!("{answer:?}"),
        }
    });
    cluster.promote();
    let answer = patiently(|| acquire(&store, "y", "a:1"));
    assert!(
        matches!(answer, Err(StoreError::Restarted { .. })),
        "{answer:?}"
    );
}

// === stores that differ ===

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_store_with_a_smaller_longest_lease_is_refused_once_others_have_a_greater_one() {
    let database = database();
    let small = store(&database);
    granted(&small, "x", "a:1");
    let great = builder(&database).longest_lease(2 * LEASE).build().unwrap();
    granted(&great, "y", "b:1");
    refused(
        &acquire(&small, "z", "a:1"),
        &["60s", "30s", "longest_lease_changes"],
    );
    assert!(matches!(small.check(LIMIT), Err(StoreError::Refused(_))));
    // What it holds goes on.
    let mine = Renewal::new("x", Secret::new("a:1"), LEASE);
    assert_eq!(renew(&small, &[mine]), [Outcome::Renewed]);
    assert_eq!(release(&small, "x", "a:1"), Released::Released);
    let changing = builder(&database).longest_lease_changes().build().unwrap();
    granted(&changing, "z", "c:1");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn tables_of_a_newer_version_are_used_while_they_admit_this_one() {
    let database = database();
    let store = store(&database);
    granted(&store, "x", "a:1");
    psql(&database, "update tourbillon_leases.meta set version = 7");
    cut(&database);
    assert!(patiently(|| acquire(&store, "y", "a:1")).is_ok());
    psql(&database, "update tourbillon_leases.meta set oldest_ok = 7");
    cut(&database);
    let answer = patiently(|| acquire(&store, "z", "a:1"));
    refused(&answer, &["version 7", "newer version"]);
}

// === roles ===

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_role_that_may_not_make_tables_uses_those_of_an_administrator() {
    let database = database();
    let role = format!("app_{}", database.name());
    psql(&database, &format!("create role {role} login"));
    let open = || {
        let builder = PostgresStore::builder(&database.url_of(&role)).schema("shop_locks");
        builder.build().unwrap()
    };
    let store = open();
    refused(
        &acquire(&store, "x", "a:1"),
        &["permission denied", "tables_sql"],
    );
    let sql = PostgresStore::tables_sql("shop_locks").unwrap();
    psql(&database, &sql);
    refused(&acquire(&store, "x", "a:1"), &["usage", "shop_locks"]);
    psql(
        &database,
        &format!("grant usage on schema shop_locks to {role}"),
    );
    refused(
        &acquire(&store, "x", "a:1"),
        &["select, insert, update and delete"],
    );
    psql(
        &database,
        &format!(
            "grant select, insert, update, delete on all tables in schema shop_locks to {role}"
        ),
    );
    granted(&store, "x", "a:1");
    assert_eq!(open().check(LIMIT), Ok(()));
    // Where nobody is to make any.
    let other = builder(&database).create_tables(false).build().unwrap();
    refused(
        &acquire(&other, "x", "a:1"),
        &["no tables", "tourbillon_leases"],
    );
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn programs_that_start_at_one_time_make_the_tables_once() {
    let database = database();
    let tokens: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|at| {
                let database = &database;
                scope.spawn(move || {
                    let store = store(database);
                    granted(&store, &format!("n{at}"), "a:1")
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(tokens.len(), 8);
}

// === the way to the server ===

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_connection_that_is_dead_costs_one_call() {
    let database = database();
    let proxy = Proxy::before(
        (Ipv4Addr::LOCALHOST, database.port()).into(),
        Duration::ZERO,
    );
    let proxy = proxy.expect("a port is free");
    let store = PostgresStore::open(&database.url_by(proxy.port())).unwrap();
    granted(&store, "x", "a:1");
    for way in [Way::Up, Way::Down] {
        let connections = proxy.seen().connections;
        // What has passed is lost with its connection. New ones work.
        proxy.begin(Trouble::Swallow, way);
        let claim = Claim::new("y", "a:1", Secret::new("a:1"), LEASE);
        let start = Instant::now();
        let lost = store.acquire(&claim, 200 * MS);
        assert!(matches!(lost, Err(StoreError::Unavailable(_))), "{lost:?}");
        assert!(start.elapsed() < LIMIT / 2);
        proxy.begin(Trouble::Delay(Duration::ZERO), Way::Both);
        let again = store.acquire(&claim, LIMIT);
        assert!(matches!(again, Ok(Acquired::Granted { .. })), "{again:?}");
        assert_eq!(proxy.seen().connections, connections + 1);
        proxy.end();
        assert_eq!(release(&store, "y", "a:1"), Released::Released);
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_short_limit_does_not_keep_a_connection_from_being_made() {
    let database = database();
    let slow = 20 * MS;
    let proxy = Proxy::before((Ipv4Addr::LOCALHOST, database.port()).into(), slow);
    let proxy = proxy.expect("a port is free");
    let store = PostgresStore::open(&database.url_by(proxy.port())).unwrap();
    let claim = Claim::new("x", "a:1", Secret::new("a:1"), LEASE);
    // To connect takes many answers, and the call itself two.
    let mut limit = 60 * MS;
    wait::until("it is granted", || {
        limit += MS;
        matches!(store.acquire(&claim, limit), Ok(Acquired::Granted { .. }))
    });
    assert_eq!(proxy.seen().connections, 1);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn many_callers_of_a_server_that_is_not_there_fail_at_their_limits() {
    let silent = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    let url = format!("postgres://x@127.0.0.1:{port}/x?connect_timeout=60");
    let store = PostgresStore::open(&url).unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for at in 0..16 {
            let store = &store;
            scope.spawn(move || {
                let name = format!("n{at}");
                let claim = Claim::new(&name, "a:1", Secret::new("a:1"), LEASE);
                let answer = store.acquire(&claim, 100 * MS);
                assert!(matches!(answer, Err(StoreError::Unavailable(_))));
            });
        }
    });
    assert!(start.elapsed() < LIMIT / 2);
    let checked = store.check(100 * MS);
    assert!(matches!(checked, Err(StoreError::Unavailable(_))));
    // The drop waits for nothing either.
    drop(store);
    assert!(start.elapsed() < LIMIT / 2);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_row_that_somebody_has_locked_by_hand_costs_no_other_name_of_a_batch() {
    let database = database();
    let (store, other) = (store(&database), store(&database));
    for name in ["x", "y", "z"] {
        granted(&store, name, "a:1");
    }
    // More than a whole lease is left, as after a clock that was set back.
    let set_back = "update tourbillon_leases.lease set ends = ends + interval '1 hour'";
    psql(&database, set_back);
    let mut client = database.client();
    let mut transaction = client.transaction().unwrap();
    let take = "update tourbillon_leases.lease set secret = null, ends = now() where name = 'x'";
    transaction.batch_execute(take).unwrap();
    let secret = Secret::new("a:1");
    let batch = ["x", "y", "none"].map(|name| Renewal::new(name, secret, LEASE));
    let renewed = renew(&store, &batch);
    let [
        Outcome::Failed(StoreError::Unavailable(why)),
        Outcome::Renewed,
        Outcome::NotHeld,
    ] = &renewed[..]
    else {
        panic!("one of them is locked: {renewed:?}");
    };
    assert!(why.contains("55P03"), "{why}");
    // Callers that wait do not wait for the row either, and are soon told.
    let claim = Claim::new("x", "b:1", Secret::new("b:1"), LEASE).waiting();
    assert!(held(&other, &claim) <= 20 * MS);
    let batch = ["x", "y", "none"].map(|name| Holding::new(name, secret));
    let released = store.release_many(Default::default(), &batch, LIMIT);
    let released = released.unwrap();
    assert!(
        matches!(
            released[..],
            [
                Err(StoreError::Unavailable(_)),
                Ok(Released::Released),
                Ok(Released::NotHeld),
            ]
        ),
        "{released:?}"
    );
    let alone = store.release("x", secret, LIMIT);
    assert!(
        matches!(alone, Err(StoreError::Unavailable(_))),
        "{alone:?}"
    );
    assert_eq!(release(&store, "z", "a:1"), Released::Released);
    transaction.commit().unwrap();
    let mine = Renewal::new("x", secret, LEASE);
    assert_eq!(renew(&store, &[mine]), [Outcome::NotHeld]);
    granted(&other, "x", "b:1");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_commit_that_hangs_keeps_nobody_from_a_release_and_a_durable_store_waits_for_standbys() {
    let cluster = Cluster::durable();
    let database = cluster.database();
    let (holder, other) = (store(&database), store(&database));
    granted(&holder, "x", "a:1");
    held(
        &other,
        &Claim::new("x", "b:1", Secret::new("b:1"), LEASE).waiting(),
    );
    psql(&database, "create table own (n int)");
    let local = format!(
        "alter database {} set synchronous_commit = local",
        database.name()
    );
    psql(&database, &local);
    let standby = |name: &str| {
        let set = format!("alter system set synchronous_standby_names = '{name}'");
        psql(&database, &set);
        psql(&database, "select pg_reload_conf()");
    };
    standby("nobody");
    // It holds the lock of the queue of announcements once the server knows of the standby.
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_over);
    let mut client = database.client();
    let hangs = thread::spawn(move || {
        let commit = "set synchronous_commit = on; \
                      begin; insert into own values (1); notify elsewhere; commit";
        while !ends.load(SeqCst) && client.batch_execute(commit).is_ok() {}
    });
    let hang = |query: &str| {
        let asked = format!(
            "select count(*) from pg_stat_activity where wait_event = 'SyncRep' and query like '%{query}%'"
        );
        wait::until("it hangs", || psql(&database, &asked) != "0");
    };
    hang("elsewhere");
    assert_eq!(release(&holder, "x", "a:1"), Released::Released);
    let claim = Claim::new("y", "c:1", Secret::new("c:1"), LEASE);
    granted(&store(&database), "z", "c:1");
    let durable = builder(&database).durable().build().unwrap();
    let waits = durable.acquire(&claim, S);
    assert!(
        matches!(waits, Err(StoreError::Unavailable(_))),
        "{waits:?}"
    );
    hang("acquire_1");
    is_over.store(true, SeqCst);
    standby("");
    hangs.join().unwrap();
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_server_that_cannot_be_reached_is_not_asked_again_at_once() {
    let server = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = server.local_addr().unwrap().port();
    let seen = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&seen);
    // It ends with the process.
    thread::spawn(move || {
        while server.accept().is_ok() {
            counts.fetch_add(1, SeqCst);
        }
    });
    let store = PostgresStore::open(&format!("postgres://x@127.0.0.1:{port}/x")).unwrap();
    let start = Instant::now();
    for _ in 0..200 {
        let answer = acquire(&store, "x", "a:1");
        assert!(
            matches!(answer, Err(StoreError::Unavailable(_))),
            "{answer:?}"
        );
    }
    // Each attempt begins 50 ms after the end of the one before.
    let most = start.elapsed().as_millis() / 50 + 1;
    assert!(u128::from(seen.load(SeqCst)) <= most);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_call_that_a_stopped_session_carries_out_late_changes_nothing_for_its_holder() {
    let database = database();
    let store = store(&database);
    granted(&store, "x", "a:1");
    let session = "select pid from pg_stat_activity \
                   where datname = current_database() and pid <> pg_backend_pid()";
    let session = psql(&database, session);
    let signal = |signal: &str| {
        let mut kill = Command::new("kill");
        assert!(kill.args([signal, &session]).status().unwrap().success());
    };
    signal("-STOP");
    let claim = Claim::new("y", "a:1", Secret::new("a:1"), LEASE);
    let lost = store.acquire(&claim, 500 * MS);
    assert!(matches!(lost, Err(StoreError::Unavailable(_))), "{lost:?}");
    // A new connection. The call is repeated with the same secret.
    let token = granted(&store, "y", "a:1");
    let detached = Detach::new("y", Secret::new("a:1"), Secret::new("ticket"), LEASE);
    let detached = detached.with_terms("terms");
    let kept = "select token, ticket, terms from tourbillon_leases.lease where name = 'y'";
    assert_eq!(store.detach(&detached, LIMIT), Ok(Detached::Detached));
    signal("-CONT");
    wait::until("the late call is over", || {
        let there = format!("select count(*) from pg_stat_activity where pid = {session}");
        psql(&database, &there) == "0"
    });
    assert_eq!(psql(&database, kept), format!("{token}|ticket|terms"));
    let guard = format!("select tourbillon_leases.guard('y', {token})");
    assert_eq!(psql(&database, &guard), "");
}
