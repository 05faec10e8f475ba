//! Extended, detached, listed and short holds on Redis servers, and beside processes of an earlier
//! version.

use std::time::Duration;

use kit::wait;
use redis::Value;
use tourbillon_leases::{
    Acquired, Claim, Destination, Holding, Leases, LockError, LockPaging, Outcome, RedisStore,
    Released, Renewal, Secret,
};

use crate::calls::Calls;
use crate::tickets;
use chaos::servers::redis::Server;

const LIMIT: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(30);
const LEAST: Duration = Duration::from_secs(20);

fn store(server: &Server) -> RedisStore {
    let store = RedisStore::builder(&server.url()).longest_lease(10 * LEASE);
    store.durable().build().unwrap()
}

fn release_after(store: &RedisStore, name: &str, owner: &str, rest: Duration) -> Released {
    let batch = [Holding::new(name, Secret::new(owner)).after(rest)];
    let answers = store.release_many(Destination::default(), &batch, LIMIT);
    answers.unwrap().remove(0).unwrap()
}

/// More locks than awaited calls run at one time for a destination.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn many_locks_are_awaited_at_one_time() {
    let server = Server::start();
    let leases = Leases::new(store(&server)).unwrap();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.build().unwrap();
    runtime.block_on(async {
        // Each one is wanted twice.
        let begin = |at: usize| {
            let leases = leases.clone();
            tokio::spawn(async move {
                let guard = leases.lock(&format!("n{}", at / 2)).await.unwrap();
                guard.release().await.unwrap();
            })
        };
        let tasks: Vec<_> = (0..200).map(begin).collect();
        for task in tasks {
            task.await.unwrap();
        }
        let guard = leases.lock("x").not_renewed().await.unwrap();
        guard.extend(2 * LEASE).await.unwrap();
        assert!(guard.remaining() > LEASE);
        let token = guard.token();
        let guard = leases.resume(&guard.detach().await.unwrap()).await.unwrap();
        let holder = leases.holder("x").await.unwrap().unwrap();
        assert_eq!((&*holder.owner, holder.token), (guard.id().owner(), token));
        let page = leases.list("", &LockPaging::first(9)).await.unwrap();
        assert_eq!(page.locks.len(), 1);
        guard.release().await.unwrap();
    });
    assert_eq!(leases.stats().granted, 201);
}

fn remaining(store: &RedisStore, name: &str) -> Duration {
    let holder = store.holder_of(name, LIMIT).unwrap();
    holder.expect("it is held").remaining
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_released_name_stays_locked_for_its_rest() {
    let server = Server::start();
    let store = store(&server);
    let leases = Leases::new(store.clone()).unwrap();
    let guard = leases.lock("x").at_least(LEAST).at_once().wait().unwrap();
    let owner = guard.id().owner().to_owned();
    let secret = field(&server, "x", "secret").unwrap();
    guard.release().wait().unwrap();
    let holder = leases.holder("x").wait().unwrap().unwrap();
    assert_eq!(holder.owner, format!("{owner} (released)"));
    assert!(holder.remaining <= LEAST && holder.remaining > LEAST / 2);
    assert!(matches!(
        leases.lock("x").at_once().wait(),
        Err(LockError::Held { .. })
    ));
    // A renewal and a release that come late change nothing.
    assert_eq!(field(&server, "x", "secret"), None);
    let late = Renewal::new("x", Secret::new(&secret), LEASE);
    let renewed = store.renew(Destination::default(), &[late], LIMIT);
    assert_eq!(renewed, Ok(vec![Outcome::NotHeld]));
    assert_eq!(
        store.release("x", Secret::new(&secret), LIMIT),
        Ok(Released::NotHeld)
    );
    assert!(remaining(&store, "x") <= LEAST);
    // A dropped guard, in the background.
    let least = Duration::from_millis(200);
    drop(leases.lock("y").at_least(least).at_once().wait().unwrap());
    wait::until("it is given back", || leases.stats().releases_queued == 0);
    wait::until("it is free", || {
        leases.holder("y").wait().unwrap().is_none()
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_waiting_caller_is_woken_and_gets_the_name_when_the_rest_is_over() {
    let server = Server::start();
    let (one, other) = (Leases::new(store(&server)), Leases::new(store(&server)));
    let (one, other) = (one.unwrap(), other.unwrap());
    let least = Duration::from_millis(300);
    let start = std::time::Instant::now();
    let guard = one.lock("x").at_least(least).at_once().wait().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| other.lock("x").wait().unwrap());
        wait::until("it waits", || other.stats().waiting == 1);
        guard.release().wait().unwrap();
        let next = waiting.join().unwrap();
        assert!(start.elapsed() >= least);
        next.release().wait().unwrap();
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn an_extension_never_shortens_and_a_repeated_acquire_does_not_either() {
    let server = Server::start();
    let store = store(&server);
    let leases = Leases::new(store.clone()).unwrap();
    let guard = leases
        .lock("x")
        .lease(LEASE)
        .not_renewed()
        .at_once()
        .wait()
        .unwrap();
    guard.extend(5 * LEASE).wait().unwrap();
    assert!(guard.remaining() > 4 * LEASE);
    assert!(remaining(&store, "x") > 4 * LEASE);
    let owner = guard.id().owner().to_owned();
    let secret = field(&server, "x", "secret").unwrap();
    let renew = |renewal| store.renew(Destination::default(), &[renewal], LIMIT);
    let late = Renewal::new("x", Secret::new(&secret), LEASE);
    assert_eq!(renew(late.never_shortening()), Ok(vec![Outcome::Renewed]));
    let again = store.acquire(&Claim::new("x", &owner, Secret::new(&secret), LEASE), LIMIT);
    assert!(matches!(again, Ok(Acquired::Granted { token, .. }) if token > guard.token()));
    assert!(remaining(&store, "x") > 4 * LEASE);
    // A waiting caller cuts a lease to the length that is written.
    let waits = Claim::new("x", "other:1", Secret::new("other:1"), LEASE).waiting();
    assert!(matches!(
        store.acquire(&waits, LIMIT),
        Ok(Acquired::Held { .. })
    ));
    assert!(remaining(&store, "x") > 4 * LEASE);
    // An ordinary renewal sets the length that it says.
    assert_eq!(renew(late), Ok(vec![Outcome::Renewed]));
    assert!(remaining(&store, "x") <= LEASE);
    guard.release().wait().unwrap();
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_detached_lock_is_resumed_by_another_store() {
    let server = Server::start();
    let before = Leases::new(store(&server)).unwrap();
    let guard = before.lock("x").wait().unwrap();
    let token = guard.token();
    let text = guard.detach().wait().unwrap().to_string();
    drop(before);
    let after = Leases::new(store(&server)).unwrap();
    assert!(matches!(
        after.lock("x").at_once().wait(),
        Err(LockError::Held { .. })
    ));
    let ticket = text.parse().unwrap();
    let guard = after.resume(&ticket).wait().unwrap();
    assert_eq!(guard.token(), token);
    guard.release().wait().unwrap();
    assert!(matches!(
        after.resume(&ticket).wait(),
        Err(LockError::Lost { .. })
    ));
    assert_eq!(
        server.cli(&["EXISTS", "tourbillon:{x}:lock"]),
        "(integer) 0"
    );
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn tickets_and_secrets_hold_what_every_store_has_to() {
    let server = Server::start();
    tickets::nothing_that_is_shown_proves_anything(&store(&server));
    tickets::a_ticket_is_of_use_for_its_own_name_alone(&store(&server));
    tickets::a_ticket_is_used_by_one_of_many(&store(&server));
    tickets::detach_and_resume_do_what_a_backend_promises(&store(&server));
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_ticket_for_a_longer_lease_than_the_store_grants_stays_of_use() {
    let server = Server::start();
    let leases = Leases::new(store(&server)).unwrap();
    let guard = leases.lock("x").lease(2 * LEASE).wait().unwrap();
    let ticket = guard.detach().wait().unwrap();
    let short = RedisStore::builder(&server.url()).longest_lease(LEASE);
    let short = Leases::new(short.durable().build().unwrap()).unwrap();
    let error = short.resume(&ticket).wait().unwrap_err();
    assert!(error.to_string().contains("30s at most"), "{error}");
    leases
        .resume(&ticket)
        .wait()
        .unwrap()
        .release()
        .wait()
        .unwrap();
    // What somebody has written by hand into the hash is no ticket.
    let guard = leases.lock("x").wait().unwrap();
    let lock = "tourbillon:{x}:lock";
    server.cli(&["HSET", lock, "ticket", &"0".repeat(32)]);
    let forged = format!("tourbillon-lease-2,{},x", "0".repeat(32));
    let error = leases.resume(&forged.parse().unwrap()).wait().unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error}");
    // Nor does a server without the command say what it was asked.
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = guard.detach().wait().unwrap_err();
    let secret = field(&server, "x", "secret").unwrap();
    assert!(!format!("{error:?}").contains(&secret), "{error:?}");
    assert!(error.to_string().contains("OOM"), "{error}");
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_server_that_quotes_the_call_shows_no_secret() {
    let server = Server::with(&[
        "--rename-command",
        "EVALSHA",
        "",
        "--rename-command",
        "EVAL",
        "",
    ]);
    let store = store(&server);
    let secret = "5b8d1f0a93c24e7796ab30c5d2f81e64";
    let error = store.release("x", Secret::new(secret), LIMIT).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("unknown command"), "{error}");
    assert!(!error.contains(&secret[..8]), "{error}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn the_held_locks_of_a_prefix_are_listed_among_many_other_keys() {
    let server = Server::start();
    let store = store(&server);
    let many = "for i = 1, 5000 do redis.call('SET', 'other' .. i, i) end";
    server.cli(&["EVAL", many, "0"]);
    let leases = Leases::new(store.clone()).unwrap();
    let names = ["a*{x}", "a*{y}", "ab", "a", "b%"];
    let _guards = names.map(|name| leases.lock(name).wait().unwrap());
    let listed = |prefix| all_pages(&leases, prefix, 10);
    assert_eq!(listed("a*"), ["a*{x}", "a*{y}"]);
    assert_eq!(listed("a"), ["a", "a*{x}", "a*{y}", "ab"]);
    assert_eq!(listed(""), ["a", "a*{x}", "a*{y}", "ab", "b%"]);
    let all = LockPaging::first(10);
    let held = leases.list("b", &all).wait().unwrap().locks.remove(0);
    let holder = leases.holder("b%").wait().unwrap().unwrap();
    assert_eq!(
        (&held.holder.owner, held.holder.token),
        (&holder.owner, holder.token)
    );
    // A name that is only reserved has no holder, and one of another type is an error.
    server.cli(&["HSET", "tourbillon:{c}:lock", "next", "1"]);
    assert_eq!(listed("c"), [""; 0]);
    server.cli(&["SET", "tourbillon:{d}:lock", "1"]);
    let error = leases.list("d", &all).wait().unwrap_err();
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    // More names than one round trip asks for.
    for at in 0..250 {
        let claim = format!("e{at}");
        let claim = Claim::new(&claim, "me:1", Secret::new("me:1"), LEASE);
        assert!(store.acquire(&claim, LIMIT).is_ok());
    }
    for limit in [1, 7, 120, 1_000, usize::MAX] {
        assert_eq!(all_pages(&leases, "e", limit).len(), 250);
    }
    assert!(store.list("e", &all, Duration::ZERO).is_err());
    // Places that this store has not made.
    for place in [
        "",
        "x",
        "0",
        "0.x",
        "1.0",
        "0.0 COUNT 1",
        "18446744073709551616.0",
    ] {
        let error = leases
            .list("e", &LockPaging::behind(place, 10))
            .wait()
            .unwrap_err();
        assert!(error.to_string().contains("first page"), "{error}");
    }
}

/// Returns the names of all pages, sorted.
fn all_pages(leases: &Leases, prefix: &str, limit: usize) -> Vec<String> {
    let mut paging = LockPaging::first(limit);
    let mut found = std::collections::BTreeSet::new();
    loop {
        let page = leases.list(prefix, &paging).wait().unwrap();
        // Keys of one row of the server's table come together.
        assert!(page.locks.len() <= limit.max(16));
        found.extend(page.locks.into_iter().map(|held| held.name));
        match page.next {
            Some(next) => paging = next,
            None => return found.into_iter().collect(),
        }
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_page_ends_in_time_whatever_the_number_of_other_keys() {
    let server = Server::start();
    let store = store(&server);
    let many = "for i = 1, 300000 do redis.call('SET', 'other' .. i, i) end";
    server.cli(&["EVAL", many, "0"]);
    let leases = Leases::new(store.clone()).unwrap();
    let _guards = ["a", "b"].map(|name| leases.lock(name).wait().unwrap());
    // The time is too short for all keys, and long enough for some steps.
    let limit = Duration::from_millis(20);
    let mut paging = LockPaging::first(10);
    let (mut pages, mut found) = (0, Vec::new());
    loop {
        // A busy machine may answer no step in time. The page is then asked for again.
        let Ok(page) = store.list("", &paging, limit) else {
            continue;
        };
        pages += 1;
        found.extend(page.locks.into_iter().map(|held| held.name));
        match page.next {
            Some(next) => paging = next,
            None => break,
        }
    }
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, ["a", "b"]);
    assert!(pages > 1, "{pages}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn what_is_held_all_the_time_is_found_while_the_table_grows_and_shrinks() {
    let server = Server::start();
    let store = store(&server);
    let leases = Leases::new(store.clone()).unwrap();
    let names: Vec<String> = (100..200).map(|at| format!("n{at}")).collect();
    let guards: Result<Vec<_>, _> = leases.lock_all(&names).each().wait().into_iter().collect();
    let guards = guards.unwrap();
    let grow = "for i = 1, 30000 do redis.call('SET', 'other' .. i, i) end";
    let shrink = "for i = 1, 30000 do redis.call('DEL', 'other' .. i) end";
    let mut paging = LockPaging::first(7);
    let mut found = std::collections::BTreeSet::new();
    for change in [grow, shrink].into_iter().cycle() {
        let page = leases.list("n", &paging).wait().unwrap();
        found.extend(page.locks.into_iter().map(|held| held.name));
        let Some(next) = page.next else { break };
        paging = next;
        server.cli(&["EVAL", change, "0"]);
    }
    assert!(found.iter().eq(&names));
    drop(guards);
}

/// Returns a field of the hash of a lock.
fn field(server: &Server, name: &str, field: &str) -> Option<String> {
    let mut get = redis::cmd("HGET");
    get.arg(format!("tourbillon:{{{name}}}:lock")).arg(field);
    get.query(&mut server.connect()).unwrap()
}

/// Calls the script with which an earlier version acquires.
pub(crate) fn acquire_before(server: &Server, name: &str, owner: &str, waited: u64) -> Vec<i64> {
    let script = concat!(
        include_str!("../../src/redis/guard.lua"),
        include_str!("acquire_before.lua")
    );
    let key = |last| format!("tourbillon:{{{name}}}:{last}");
    let mut eval = redis::cmd("EVAL");
    eval.arg(script).arg(2).arg(key("lock")).arg(key("token"));
    eval.arg(owner).arg(30_000).arg(90_000_000).arg(0);
    eval.arg(1).arg(0).arg(waited).arg("0123456789abcdef");
    let answer: Value = eval.query(&mut server.connect()).unwrap();
    redis::from_redis_value(answer).unwrap()
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn processes_of_the_earlier_version_share_the_locks() {
    let server = Server::start();
    let store = store(&server);
    // What it has written is read.
    assert_eq!(acquire_before(&server, "x", "old:1", 0)[0], 1);
    let held = store.list("", &LockPaging::first(10), LIMIT).unwrap().locks;
    assert_eq!(held[0].holder.owner, "old:1");
    assert!(matches!(
        store.acquire(
            &Claim::new("x", "new:1", Secret::new("new:1"), LEASE),
            LIMIT
        ),
        Ok(Acquired::Held { .. })
    ));
    // Its owner proves nothing, and the lock is left to it.
    let theirs = Renewal::new("x", Secret::new("old:1"), 5 * LEASE);
    let renewed = store.renew(Destination::default(), &[theirs], LIMIT);
    assert_eq!(renewed, Ok(vec![Outcome::NotHeld]));
    assert_eq!(
        store.release("x", Secret::new("old:1"), LIMIT),
        Ok(Released::NotHeld)
    );
    server.cli(&["DEL", "tourbillon:{x}:lock"]);
    let mine = Claim::new("x", "new:0", Secret::new("new:0"), LEASE);
    assert!(store.acquire(&mine, LIMIT).is_ok());
    let mine = Renewal::new("x", Secret::new("new:0"), 5 * LEASE);
    for renewal in [mine, mine.never_shortening()] {
        let renewed = store.renew(Destination::default(), &[renewal], LIMIT);
        assert_eq!(renewed, Ok(vec![Outcome::Renewed]));
    }
    // It leaves an extended lease as it is, and a rest.
    assert_eq!(acquire_before(&server, "x", "old:2", 0)[0], 0);
    assert!(remaining(&store, "x") > 4 * LEASE);
    assert_eq!(
        release_after(&store, "x", "new:0", LEAST),
        Released::Released
    );
    assert_eq!(acquire_before(&server, "x", "old:2", 50)[0], 0);
    let left = remaining(&store, "x");
    assert!(left <= LEAST && left > LEAST / 2, "{left:?}");
    // Nor does the rest outlast its time with those who wait.
    let rest = Duration::from_millis(50);
    assert!(matches!(
        store.acquire(
            &Claim::new("y", "new:1", Secret::new("new:1"), LEASE),
            LIMIT
        ),
        Ok(Acquired::Granted { .. })
    ));
    assert_eq!(
        release_after(&store, "y", "new:1", rest),
        Released::Released
    );
    wait::until("it is free", || {
        acquire_before(&server, "y", "old:3", 0)[0] == 1
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn many_names_are_granted_by_one_call_with_what_the_holder_says() {
    let server = Server::start();
    let builder = Leases::builder(store(&server)).holder_data("version 7");
    let leases = builder.build().unwrap();
    let held = leases.lock("n7").at_once().wait().unwrap();
    let names: Vec<String> = (0..50).map(|at| format!("n{at}")).collect();
    let answers = leases.lock_all(&names).each().wait();
    for (at, answer) in answers.iter().enumerate() {
        match answer {
            Ok(guard) => assert_eq!(guard.name(), names[at]),
            Err(error) => assert!(
                at == 7 && matches!(error, LockError::Held { .. }),
                "{error}"
            ),
        }
    }
    assert!(answers[7].is_err());
    for name in ["n7", "n8"] {
        assert_eq!(
            leases.holder(name).wait().unwrap().unwrap().data,
            "version 7"
        );
    }
    let listed = leases
        .list("n", &LockPaging::first(100))
        .wait()
        .unwrap()
        .locks;
    assert_eq!(listed.len(), 50);
    assert!(listed.iter().all(|lock| lock.holder.data == "version 7"));
    // A name that is not valid does not disturb the others, and nothing stays for the next holder.
    drop((answers, held));
    let other = Leases::new(store(&server)).unwrap();
    wait::until("they are given back", || {
        other.holder("n8").wait().unwrap().is_none()
    });
    let answers = other.lock_all(["n8", ""]).each().wait();
    assert!(answers[0].is_ok() && matches!(answers[1], Err(LockError::EmptyName)));
    assert_eq!(other.holder("n8").wait().unwrap().unwrap().data, "");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_caller_that_has_waited_for_a_turn_is_first_though_it_asks_no_more() {
    let server = Server::start();
    let (store, other) = (store(&server), Leases::new(store(&server)).unwrap());
    let claim = Claim::new("x", "holder", Secret::new("holder"), LEASE);
    let answer = store.acquire(&claim, LIMIT).unwrap();
    assert!(matches!(answer, Acquired::Granted { .. }));
    let waiting = std::thread::spawn(move || other.lock("x").wait().unwrap().token());
    let field = |field| server.cli(&["HGET", "tourbillon:{x}:lock", field]);
    wait::until("its second claim is noted", || field("since") != "(nil)");
    let next = field("next");
    std::thread::sleep(Claim::TURN);
    // The release, and what it leaves, in one step: the caller may be fast.
    let release = include_str!("../../src/redis/release.lua");
    let script = format!(
        "local function release() {release} end\n\
         return {{release(), redis.call('HGET', KEYS[1], 'next')}}"
    );
    let turn = Claim::TURN.as_millis().to_string();
    let key = "tourbillon:{x}:lock";
    let channel = "tourbillon:released";
    let args = [&script, "1", key, "holder", channel, "0 x", "0", &turn];
    let eval: Vec<_> = ["EVAL"].into_iter().chain(args).collect();
    assert_eq!(server.cli(&eval), format!("1) (integer) 1\n2) {next}"));
    assert!(waiting.join().unwrap() > 1);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn nothing_is_reserved_for_a_store_whose_caller_has_left() {
    let server = Server::start();
    let (one, other) = (store(&server), store(&server));
    let granted = |answer| matches!(answer, Ok(Acquired::Granted { .. }));
    let due = || {
        Claim::new("x", "due", Secret::new("due"), LEASE)
            .waiting()
            .waited(Duration::from_millis(100))
    };
    for leaves in [false, true] {
        let first = Claim::new("x", "first", Secret::new("first"), LEASE);
        wait::until("the reservation is over", || {
            granted(one.acquire(&first, LIMIT))
        });
        assert!(!granted(other.acquire(&due(), LIMIT)));
        let next = || server.cli(&["HGET", "tourbillon:{x}:lock", "next"]);
        assert_ne!(next(), "(nil)");
        if leaves {
            other.leave("x", "due", LIMIT).unwrap();
            assert_eq!(next(), "(nil)");
            // One that never was there.
            other.leave("y", "due", LIMIT).unwrap();
        }
        assert_eq!(
            one.release("x", Secret::new("first"), LIMIT),
            Ok(Released::Released)
        );
    }
    // Also after the release, while the name is reserved.
    assert!(granted(one.acquire(
        &Claim::new("x", "first", Secret::new("first"), LEASE),
        LIMIT
    )));
    assert!(!granted(other.acquire(&due(), LIMIT)));
    assert_eq!(
        one.release("x", Secret::new("first"), LIMIT),
        Ok(Released::Released)
    );
    other.leave("x", "due", LIMIT).unwrap();
    assert_eq!(
        server.cli(&["EXISTS", "tourbillon:{x}:lock"]),
        "(integer) 0"
    );
}
