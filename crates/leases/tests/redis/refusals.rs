//! What a server or the store refuses, and how that is said.

use std::time::Duration;

use tourbillon_leases::{
    Acquired, Claim, Destination, LeaseTicket, Leases, LockError, LockPaging, Outcome, RedisStore,
    Renewal, Secret, StoreError,
};

use crate::calls::Calls;

use chaos::servers::redis::Server;

/// Nothing that answers takes so long.
const LIMIT: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(30);

fn at(url: &str) -> RedisStore {
    RedisStore::builder(url).durable().build().unwrap()
}

fn acquire(store: &RedisStore, name: &str) -> Result<Acquired, StoreError> {
    store.acquire(&Claim::new(name, "a:1", Secret::new("a:1"), LEASE), LIMIT)
}

/// The text has all of these words.
#[track_caller]
fn says(error: &StoreError, words: &[&str]) {
    let StoreError::Refused(said) = error else {
        panic!("it is refused: {error:?}");
    };
    for word in words {
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_command_that_is_renamed_is_named() {
    let without = |command| Server::with(&["--save", "", "--rename-command", command, ""]);
    let server = without("PEXPIRE");
    let words = ["PEXPIRE", "rename-command", "docs of `RedisStore`"];
    says(&acquire(&at(&server.url()), "x").unwrap_err(), &words);
    // Also for each item of a batch.
    let store = at(&server.url());
    server.cli(&["HSET", "tourbillon:{x}:lock", "secret", "a:1"]);
    let batch = [Renewal::new("x", Secret::new("a:1"), LEASE)];
    let mut outcomes = store.renew(Destination::default(), &batch, LIMIT).unwrap();
    match outcomes.pop() {
        Some(Outcome::Failed(error)) => says(&error, &words),
        other => panic!("{other:?}"),
    }
    let server = without("EVALSHA");
    let store = at(&server.url());
    let words = ["EVALSHA", "rename-command"];
    says(&acquire(&store, "x").unwrap_err(), &words);
    says(&store.check(LIMIT).unwrap_err(), &words);
    // A server without INFO, as the script sees it.
    let script = format!(
        "local redis = {{pcall = redis.pcall}}\n\
         local pcall = redis.pcall\n\
         redis.pcall = function() return pcall('NONESUCH') end\n{}\n\
         return guard('marker', 1, false, {{0, 0}}, 1, true, -1)",
        include_str!("../../src/redis/guard.lua")
    );
    let said = server.cli(&["EVAL", &script, "0"]);
    for word in ["INFO", "rename-command", "durable"] {
        assert!(said.contains(word), "{said}");
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_command_that_a_user_may_not_call_in_a_script_is_named() {
    let server = Server::start();
    let user = ["ACL", "SETUSER", "locks", "on", ">s3cret", "~*", "&*"];
    let rights = ["+@all", "-@dangerous", "+info", "-hmget"];
    server.cli(&[&user[..], &rights].concat());
    let store = at(&format!(
        "redis://locks:s3cret@127.0.0.1:{}/",
        server.port()
    ));
    let error = acquire(&store, "x").unwrap_err();
    says(&error, &["HMGET", "rights that are needed"]);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_policy_that_may_delete_locks_is_reported_by_a_check() {
    let server = Server::start();
    let store = at(&server.url());
    let set = |policy, memory| {
        server.cli(&["CONFIG", "SET", "maxmemory-policy", policy]);
        server.cli(&["CONFIG", "SET", "maxmemory", memory]);
        store.check(LIMIT)
    };
    for policy in [
        "allkeys-lru",
        "volatile-lru",
        "volatile-ttl",
        "allkeys-random",
    ] {
        // Without a limit of its memory it deletes nothing.
        assert_eq!(set(policy, "0"), Ok(()));
        let error = set(policy, "100mb").unwrap_err();
        assert!(!error.may_pass() && error.to_string().contains("noeviction"));
        let policy = policy.to_owned();
        assert_eq!(error, StoreError::Evicts { policy });
    }
    assert_eq!(set("noeviction", "100mb"), Ok(()));
    // It works all the same.
    assert!(set("allkeys-lru", "100mb").is_err());
    assert!(matches!(acquire(&store, "x"), Ok(Acquired::Granted { .. })));
    // What comes first: a server that grants nothing yet, which passes.
    let new = RedisStore::builder(&server.url()).build().unwrap();
    let answer = new.check(LIMIT);
    assert!(
        matches!(answer, Err(StoreError::Emptied { .. })),
        "{answer:?}"
    );
    // A user who may not ask is not told, and not disturbed.
    let user = ["ACL", "SETUSER", "locks", "on", ">s3cret", "~*", "&*"];
    server.cli(&[&user[..], &["+@all", "-info"]].concat());
    let store = at(&format!(
        "redis://locks:s3cret@127.0.0.1:{}/",
        server.port()
    ));
    assert_eq!(store.check(LIMIT), Ok(()));
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_name_of_any_length_is_sent_or_refused_in_few_words() {
    let server = Server::start();
    let store = at(&server.url());
    let leases = Leases::new(store.clone()).unwrap();
    let longest = "ü".repeat(Leases::LONGEST_NAME / 2);
    let guard = leases.lock(&longest).at_once().wait().unwrap();
    assert_eq!(
        leases
            .list(&longest, &LockPaging::first(9))
            .wait()
            .unwrap()
            .locks[0]
            .name,
        longest
    );
    let ticket = guard.detach().wait().unwrap().to_string();
    let ticket: LeaseTicket = ticket.parse().unwrap();
    leases
        .resume(&ticket)
        .wait()
        .unwrap()
        .release()
        .wait()
        .unwrap();
    // The store refuses it as well, for those who call it themselves.
    let huge = "n".repeat(64 << 20);
    let error = acquire(&store, &huge).unwrap_err();
    says(&error, &["67108864 bytes", "1024"]);
    let error = leases.lock(&huge).at_once().wait().unwrap_err();
    assert!(matches!(error, LockError::LongName { .. }));
    assert!(error.to_string().len() < 300, "{error}");
}
