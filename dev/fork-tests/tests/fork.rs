//! Processes that fork while they hold locks.
#![cfg(unix)]

use std::io::Read;
use std::process::{Command, Stdio};

use chaos::servers::postgres::database;
use chaos::servers::redis::Server;

/// Runs the program, which ends by itself whatever happens in the copies.
#[track_caller]
fn forks(arguments: &[&str]) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_fork-tests"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program of this package");
    let mut said = String::new();
    let mut pipe = program.stdout.take().expect("it is piped");
    let read = pipe.read_to_string(&mut said);
    let ended = program.wait();
    assert!(ended.is_ok_and(|status| status.success()), "{said}");
    assert_eq!(
        (read.is_ok(), said.as_str()),
        (true, "60 copies, all as they should be\n")
    );
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_forked_copy_neither_uses_nor_gives_back_what_the_original_holds_on_redis() {
    let server = Server::start();
    forks(&[&server.url()]);
    // What the copies dropped, the original gave back.
    for of in ["held", "fixed"] {
        let keys = server.cli(&["KEYS", &format!("*{of}*:lock")]);
        assert_eq!(keys, "(empty array)");
    }
}

#[cfg(feature = "etcd")]
#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_forked_copy_neither_uses_nor_gives_back_what_the_original_holds_on_etcd() {
    let server = chaos::servers::etcd::Server::start();
    forks(&[&server.url()]);
    // What the copies dropped, the original gave back.
    let store = tourbillon_etcd::EtcdStore::open(&server.url()).expect("the URL is good");
    let leases = tourbillon_leases::Leases::new(store).expect("the options are good");
    let all = leases
        .list("", &tourbillon_leases::LockPaging::first(10_000))
        .wait();
    let names = all
        .expect("the server is there")
        .locks
        .into_iter()
        .map(|held| held.name);
    let kept: Vec<_> = names
        .filter(|name| name.contains("held") || name.contains("fixed"))
        .collect();
    assert_eq!(kept, [""; 0]);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_forked_copy_neither_uses_nor_gives_back_what_the_original_holds_on_postgres() {
    let database = database();
    forks(&[&database.url()]);
    // What the copies dropped, the original gave back.
    let held = "select count(*) from tourbillon_leases.lease \
                where name ~ 'held|fixed' and owner is not null and ends > now()";
    assert_eq!(database.psql(held).as_deref(), Ok("0"));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_forked_copy_neither_uses_nor_ends_what_the_original_has_open_on_postgres() {
    let database = database();
    forks(&["postgres", &database.url()]);
    // None of the copies' drops has left a session behind.
    let others = "select count(*) from pg_stat_activity \
                  where datname = current_database() and pid <> pg_backend_pid()";
    while database.psql(others).as_deref() != Ok("0") {}
}

#[test]
fn in_a_forked_copy_no_call_of_durable_timers_hangs_or_reaches_the_store() {
    forks(&["durable"]);
}

#[test]
fn in_a_forked_copy_no_call_of_a_scheduler_a_timer_or_a_map_hangs_or_says_what_is_not_true() {
    forks(&["core"]);
}

#[test]
fn a_forked_copy_neither_uses_nor_gives_back_what_the_original_holds_in_memory() {
    forks(&["memory"]);
}

#[test]
fn a_forked_copy_neither_uses_nor_gives_back_what_the_original_holds_in_a_sqlite_file() {
    forks(&["sqlite"]);
}

#[test]
fn in_a_forked_copy_in_which_no_thread_starts_no_call_on_what_it_inherited_hangs() {
    forks(&["no-threads"]);
}
