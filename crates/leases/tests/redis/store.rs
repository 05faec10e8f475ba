//! What the store on Redis promises, on real servers.

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use kit::wait;
use tourbillon_leases::{
    Acquired, Claim, Destination, Outcome, RedisStore, Released, Renewal, Secret, StoreError,
};

use crate::calls::Calls;

use chaos::proxy::Proxy;
use chaos::servers::redis::Server;

/// Nothing that answers takes so long.
const LIMIT: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(30);
const S: Duration = Duration::from_secs(1);

/// A store that grants at once.
fn store(server: &Server) -> RedisStore {
    RedisStore::builder(&server.url())
        .durable()
        .build()
        .unwrap()
}

fn acquire(store: &RedisStore, name: &str, owner: &str) -> Result<Acquired, StoreError> {
    store.acquire(&Claim::new(name, owner, Secret::new(owner), LEASE), LIMIT)
}

/// Takes what has to be free.
#[track_caller]
fn granted(store: &RedisStore, name: &str, owner: &str) -> u64 {
    match acquire(store, name, owner) {
        Ok(Acquired::Granted { token, .. }) => token,
        other => panic!("{name} is not granted: {other:?}"),
    }
}

fn renew(store: &RedisStore, batch: &[Renewal<'_>]) -> Vec<Outcome> {
    let outcomes = store.renew(Destination::default(), batch, LIMIT);
    outcomes.expect("the server is there")
}

fn release(store: &RedisStore, name: &str, owner: &str) -> Released {
    store
        .release(name, Secret::new(owner), LIMIT)
        .expect("the server is there")
}

// === one name ===

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_name_is_granted_to_one_renewed_and_given_back() {
    let server = Server::start();
    let (one, other) = (store(&server), store(&server));
    let first = granted(&one, "x", "a:1");
    match acquire(&other, "x", "b:1") {
        Ok(Acquired::Held { remaining }) => {
            assert!(remaining <= LEASE && remaining > LEASE / 2, "{remaining:?}");
        }
        answer => panic!("it is held: {answer:?}"),
    }
    // The same owner, after an answer that was lost.
    let again = granted(&one, "x", "a:1");
    assert!(again > first);
    let mine = Renewal::new("x", Secret::new("a:1"), LEASE);
    let foreign = Renewal::new("x", Secret::new("b:1"), LEASE);
    let unknown = Renewal::new("y", Secret::new("a:1"), LEASE);
    assert_eq!(
        renew(&one, &[mine, foreign, unknown]),
        [Outcome::Renewed, Outcome::NotHeld, Outcome::NotHeld]
    );
    assert_eq!(release(&other, "x", "b:1"), Released::NotHeld);
    assert_eq!(release(&one, "x", "a:1"), Released::Released);
    assert_eq!(release(&one, "x", "a:1"), Released::NotHeld);
    assert_eq!(renew(&one, &[mine]), [Outcome::NotHeld]);
    assert!(granted(&other, "x", "b:2") > again);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_lease_runs_out_and_a_renewal_prolongs_it() {
    let server = Server::start();
    let store = store(&server);
    let mut short = Duration::from_millis(50);
    loop {
        let start = Instant::now();
        let claim = Claim::new("x", "a:1", Secret::new("a:1"), short);
        assert!(matches!(
            store.acquire(&claim, LIMIT),
            Ok(Acquired::Granted { .. })
        ));
        let renewed = renew(&store, &[Renewal::new("x", Secret::new("a:1"), LEASE)]);
        if renewed == [Outcome::Renewed] {
            break;
        }
        // It may have run out before, on a busy machine.
        assert!(start.elapsed() >= short, "{renewed:?}");
        short *= 2;
    }
    let claim = Claim::new("y", "a:2", Secret::new("a:2"), short);
    assert!(matches!(
        store.acquire(&claim, LIMIT),
        Ok(Acquired::Granted { .. })
    ));
    wait::until("the lease runs out", || {
        matches!(acquire(&store, "y", "b:1"), Ok(Acquired::Granted { .. }))
    });
    assert_eq!(
        renew(&store, &[Renewal::new("y", Secret::new("a:2"), LEASE)]),
        [Outcome::NotHeld]
    );
    // As short as the other one was, it would have ended by now.
    assert!(matches!(
        acquire(&store, "x", "b:1"),
        Ok(Acquired::Held { .. })
    ));
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn what_cannot_be_asked_for_is_refused() {
    let server = Server::start();
    let store = store(&server);
    assert_eq!(store.longest_lease(), LEASE);
    for (name, lease) in [
        ("", LEASE),
        ("x", Duration::ZERO),
        ("x", LEASE + Duration::from_nanos(1)),
        ("x", Duration::MAX),
    ] {
        let answer = store.acquire(&Claim::new(name, "a:1", Secret::new("a:1"), lease), LIMIT);
        assert!(matches!(answer, Err(StoreError::Refused(_))), "{answer:?}");
        let outcomes = renew(&store, &[Renewal::new(name, Secret::new("a:1"), lease)]);
        assert!(
            matches!(outcomes[..], [Outcome::Failed(StoreError::Refused(_))]),
            "{outcomes:?}"
        );
    }
    let claim = Claim::new("x", "a:1", Secret::new("a:1"), LEASE);
    let answer = store.acquire(&claim, Duration::ZERO);
    assert!(
        matches!(answer, Err(StoreError::Unavailable(_))),
        "{answer:?}"
    );
    // A millisecond is the shortest, and less is rounded up to it.
    let claim = Claim::new("x", "a:1", Secret::new("a:1"), Duration::from_nanos(1));
    assert!(matches!(
        store.acquire(&claim, Duration::MAX),
        Ok(Acquired::Granted { .. })
    ));
}

// === what is in Redis ===

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn what_is_in_redis_is_what_the_documentation_shows() {
    let server = Server::start();
    let store = store(&server);
    let claim = Claim::new("orders/42", "7c1e:3", Secret::new("7c1e:3"), LEASE);
    let Ok(Acquired::Granted { token, .. }) = store.acquire(&claim, LIMIT) else {
        panic!("it is free");
    };
    let lock = "tourbillon:{orders/42}:lock";
    let shown = |count: &str, waited: &[&str]| {
        let token = token.to_string();
        let fields = [
            "owner", "7c1e:3", "secret", "7c1e:3", "count", count, "token", &token, "lease",
            "30000",
        ];
        let all: Vec<_> = fields.iter().chain(waited).collect();
        let width = all.len().to_string().len();
        let line = |(at, word)| format!("{:>width$}) \"{word}\"", at + 1);
        let lines: Vec<_> = all.iter().enumerate().map(line).collect();
        lines.join("\n")
    };
    assert_eq!(server.cli(&["HGETALL", lock]), shown("1", &[]));
    let mut renewal = Renewal::new("orders/42", Secret::new("7c1e:3"), LEASE);
    renewal.holds = 2;
    assert_eq!(renew(&store, &[renewal]), [Outcome::Renewed]);
    assert_eq!(server.cli(&["HGETALL", lock]), shown("2", &[]));
    let waiting = Claim::new("orders/42", "9b02:1", Secret::new("9b02:1"), LEASE).waiting();
    assert!(matches!(
        store.acquire(&waiting, LIMIT),
        Ok(Acquired::Held { .. })
    ));
    let field = |field| server.cli(&["HGET", lock, field]).replace('"', "");
    let (next, since) = (field("next"), field("since"));
    let waited = shown("2", &["next", &next, "since", &since]);
    assert_eq!(server.cli(&["HGETALL", lock]), waited);
    let keys = server.cli(&["--scan", "--pattern", "tourbillon:*"]);
    let keys: BTreeSet<&str> = keys.lines().collect();
    assert_eq!(
        keys,
        BTreeSet::from([
            "\"tourbillon:{orders/42}:lock\"",
            "\"tourbillon:{orders/42}:token\""
        ])
    );
    let shown = server.cli(&["GET", "tourbillon:{orders/42}:token"]);
    assert_eq!(shown, format!("\"{token}\""));
    assert_eq!(release(&store, "orders/42", "7c1e:3"), Released::Released);
    // It may be reserved for a moment for the caller that waits.
    wait::until("it is free", || {
        server.cli(&["EXISTS", lock]) == "(integer) 0"
    });
}

/// How many milliseconds a key has left.
fn left(server: &Server, key: &str) -> u64 {
    let shown = server.cli(&["PTTL", key]);
    let number = shown.strip_prefix("(integer) ").expect("a number");
    number
        .parse()
        .unwrap_or_else(|_| panic!("{key} has no end: {shown}"))
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn r23_all_keys_end_and_tokens_live_longer_than_a_clock_is_set_back_by() {
    let server = Server::start();
    let plain = store(&server);
    granted(&plain, "x", "a:1");
    assert!(left(&server, "tourbillon:{x}:lock") <= 30_000);
    let default = 25 * 3_600 * 1_000;
    let life = left(&server, "tourbillon:{x}:token");
    assert!((default - 120_000..=default).contains(&life), "{life}");
    // A release leaves the token, and the next grant lets it live as long again.
    assert_eq!(release(&plain, "x", "a:1"), Released::Released);
    assert!(left(&server, "tourbillon:{x}:token") > default - 120_000);
    server.cli(&["PEXPIRE", "tourbillon:{x}:token", "5000"]);
    granted(&plain, "x", "a:2");
    assert!(left(&server, "tourbillon:{x}:token") > default - 120_000);
    let hour = Duration::from_secs(3_600);
    let short = RedisStore::builder(&server.url())
        .prefix("p")
        .durable()
        .token_life(hour)
        .build()
        .unwrap();
    granted(&short, "x", "a:3");
    assert!(left(&server, "p:{x}:token") <= 3_600_000);
    // Twice the longest lease, if that is longer.
    let day = 24 * hour;
    let long = RedisStore::builder(&server.url())
        .prefix("l")
        .durable()
        .longest_lease(day)
        .build()
        .unwrap();
    granted(&long, "x", "a:4");
    let (life, twice) = (left(&server, "l:{x}:token"), 48 * 3_600 * 1_000);
    assert!((twice - 120_000..=twice).contains(&life), "{life}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn r16_the_keys_of_a_name_lie_in_one_slot_whatever_its_characters() {
    let server = Server::cluster();
    let store = store(&server);
    let mut connection = server.connect();
    let long = "n".repeat(1_024);
    let names = [
        "plain",
        "{",
        "}",
        "{}",
        "a{b}c",
        "}{",
        "{a}{b}",
        "a}b",
        "%",
        "%7B",
        "with space",
        "ümläut",
        "\n\"'\\",
        "a:lock",
        "\u{0}",
        &long,
    ];
    let mut before = BTreeSet::new();
    for (at, name) in names.into_iter().enumerate() {
        let owner = format!("a:{at}");
        granted(&store, name, &owner);
        let keys: BTreeSet<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
        let slots: BTreeSet<u16> = keys
            .difference(&before)
            .map(|key| {
                let mut slot = redis::cmd("CLUSTER");
                slot.arg("KEYSLOT").arg(key).query(&mut connection).unwrap()
            })
            .collect();
        assert_eq!(
            keys.len(),
            before.len() + 2,
            "{name:?} is apart from the others"
        );
        assert_eq!(slots.len(), 1, "{name:?}");
        assert_eq!(
            renew(&store, &[Renewal::new(name, Secret::new(&owner), LEASE)]),
            [Outcome::Renewed]
        );
        before = keys;
    }
    for (at, name) in names.into_iter().enumerate() {
        assert_eq!(
            release(&store, name, &format!("a:{at}")),
            Released::Released
        );
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn prefixes_and_databases_are_apart() {
    let server = Server::start();
    let plain = store(&server);
    let prefixed = RedisStore::builder(&server.url()).durable().prefix("p");
    let prefixed = prefixed.build().unwrap();
    let second = format!("{}2", server.url());
    let second = RedisStore::builder(&second).durable().build().unwrap();
    granted(&plain, "x", "a:1");
    granted(&prefixed, "x", "a:2");
    granted(&second, "x", "a:3");
    assert_eq!(
        server.cli(&["-n", "2", "HGET", "tourbillon:{x}:lock", "owner"]),
        "\"a:3\""
    );
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn hosts_may_be_names_and_sockets_paths() {
    let server = Server::start();
    let socket = server.folder().join("socket");
    let with_socket = Server::with(&["--save", "", "--unixsocket", socket.to_str().unwrap()]);
    for (url, server) in [
        (format!("redis://localhost:{}", server.port()), &server),
        (format!("unix://{}", socket.display()), &with_socket),
    ] {
        let store = RedisStore::builder(&url).durable().build().unwrap();
        granted(&store, "x", &url);
        let owner = server.cli(&["HGET", "tourbillon:{x}:lock", "owner"]);
        assert_eq!(owner, format!("\"{url}\""));
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_clock_that_is_set_back_keeps_nobody_waiting_for_longer_than_a_lease() {
    const HOUR_MS: u64 = 3_600_000;
    let server = Server::start();
    let store = store(&server);
    let lock = "tourbillon:{x}:lock";
    // The server keeps the end of a key as a moment: a clock that is set back by an hour leaves it
    // an hour further away.
    let set_back = || {
        let life = (left(&server, lock) + HOUR_MS).to_string();
        assert_eq!(server.cli(&["PEXPIRE", lock, &life]), "(integer) 1");
    };
    let held = |owner: &str| match acquire(&store, "x", owner) {
        Ok(Acquired::Held { remaining }) => remaining,
        other => panic!("it is held: {other:?}"),
    };
    // Of a holder that is dead: the lease that it had, and not the longest that there is. Written
    // by hand, so that it can't run out before the clock is set.
    server.cli(&["HSET", lock, "owner", "a:1", "count", "1", "lease", "300"]);
    server.cli(&["PEXPIRE", lock, &(300 + HOUR_MS).to_string()]);
    assert_eq!(held("b:1"), Duration::from_millis(300));
    wait::until("the lease runs out", || {
        matches!(acquire(&store, "x", "b:1"), Ok(Acquired::Granted { .. }))
    });
    // Of one that lives, with leases of another length meanwhile: nothing is cut that is right.
    for lease in [LEASE / 3, LEASE] {
        assert_eq!(
            renew(&store, &[Renewal::new("x", Secret::new("b:1"), lease)]),
            [Outcome::Renewed]
        );
        set_back();
        assert!(held("c:1") <= lease);
        assert!(left(&server, lock) <= u64::try_from(lease.as_millis()).unwrap());
    }
    assert!(held("c:1") > LEASE / 2);
    assert_eq!(
        renew(&store, &[Renewal::new("x", Secret::new("b:1"), LEASE)]),
        [Outcome::Renewed]
    );
}

/// How many changes the server has counted: each is one entry of the append-only file, and one
/// message to each replica.
fn changes(server: &Server) -> u64 {
    let info: String = redis::cmd("INFO")
        .arg("persistence")
        .query(&mut server.connect())
        .unwrap();
    let mut lines = info.lines();
    let changes = lines.find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
    changes.expect("it is told").parse().expect("a number")
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn waiters_write_one_mark_however_often_they_ask() {
    let server = Server::start();
    let store = store(&server);
    let ask = |owner: &str| {
        let claim = Claim::new("x", owner, Secret::new(owner), LEASE).waiting();
        match store.acquire(&claim, LIMIT) {
            Ok(Acquired::Held { .. }) => changes(&server),
            other => panic!("it is held: {other:?}"),
        }
    };
    granted(&store, "x", "a:1");
    let before = changes(&server);
    for _ in 0..10 {
        for waiter in ["b:1", "c:1"] {
            // Two fields in one write.
            assert_eq!(ask(waiter), before + 2);
        }
    }
    // The mark belongs to the holding. The next one has to be marked anew.
    assert_eq!(release(&store, "x", "a:1"), Released::Released);
    // It is reserved for a moment if the waiting callers have waited for a turn by now.
    wait::until("it is free", || {
        server.cli(&["EXISTS", "tourbillon:{x}:lock"]) == "(integer) 0"
    });
    granted(&store, "x", "a:2");
    let before = changes(&server);
    for _ in 0..10 {
        assert_eq!(ask("b:1"), before + 2);
    }
}

// === batches ===

/// What the system has armed for the connections to a port, and in how many hundredths of a second:
/// `02` is a keepalive.
#[cfg(target_os = "linux")]
fn timers(port: u16) -> Vec<(String, u64)> {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    let to = format!("0100007F:{port:04X}");
    let established = table.lines().filter_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        // Number, own address, the other one, state, queues, timer.
        (words.get(2) == Some(&to.as_str()) && words[3] == "01").then(|| words[5].to_owned())
    });
    let timers = established.map(|timer| {
        let (kind, left) = timer.split_once(':').expect("a kind and a time");
        (
            kind.to_owned(),
            u64::from_str_radix(left, 16).expect("a number"),
        )
    });
    timers.collect()
}

#[test]
#[cfg(target_os = "linux")]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn the_system_asks_after_a_server_that_says_nothing() {
    let server = Server::start();
    let proxy = Proxy::before_redis(server.port());
    let port = proxy.port();
    for (keepalive, most) in [
        (Some(Duration::from_secs(15)), 1_500),
        (Some(Duration::from_millis(3_601_500)), 360_200),
        (None, 0),
    ] {
        let store = RedisStore::builder(&proxy.url())
            .tcp_keepalive(keepalive)
            .durable()
            .build()
            .unwrap();
        assert_eq!(store.check(LIMIT), Ok(()));
        // The other end's word may still be under way.
        wait::until("it is armed, or nothing is", || {
            match (&timers(port)[..], keepalive) {
                ([(kind, left)], Some(_)) => {
                    kind == "02" && *left <= most && *left > most.saturating_sub(6_000).max(1)
                }
                ([(kind, _)], None) => kind == "00",
                _ => false,
            }
        });
        drop(store);
        wait::until("it is closed", || timers(port).is_empty());
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn r15_batches_of_any_size_have_an_outcome_for_each() {
    let server = Server::start();
    let store = store(&server);
    let names: Vec<String> = (0..101).map(|at| format!("n{at}")).collect();
    for name in names.iter().step_by(2) {
        granted(&store, name, "a:1");
    }
    for size in [0, 1, 99, 100, 101] {
        let batch: Vec<_> = names[..size]
            .iter()
            .map(|name| Renewal::new(name, Secret::new("a:1"), LEASE))
            .collect();
        let expected: Vec<_> = (0..size)
            .map(|at| match at % 2 {
                0 => Outcome::Renewed,
                _ => Outcome::NotHeld,
            })
            .collect();
        assert_eq!(renew(&store, &batch), expected, "{size}");
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn r14_r16_one_bad_key_of_a_batch_fails_alone() {
    let server = Server::start();
    let store = store(&server);
    server.cli(&["SET", "tourbillon:{bad}:lock", "1"]);
    let names = ["n0", "n1", "bad", "n3", "n4"];
    for name in names {
        if name != "bad" {
            granted(&store, name, "a:1");
        }
    }
    let batch: Vec<_> = names
        .into_iter()
        .chain([""])
        .map(|name| Renewal::new(name, Secret::new("a:1"), LEASE))
        .collect();
    let outcomes = renew(&store, &batch);
    for (renewal, outcome) in batch.iter().zip(&outcomes) {
        match renewal.name {
            "bad" => assert!(
                matches!(outcome, Outcome::Failed(StoreError::Refused(why)) if why.contains("WRONGTYPE")),
                "{outcome:?}"
            ),
            "" => assert!(matches!(outcome, Outcome::Failed(StoreError::Refused(_)))),
            _ => assert_eq!(*outcome, Outcome::Renewed),
        }
    }
    assert_eq!(outcomes.len(), batch.len());
    for answer in [
        acquire(&store, "bad", "a:1").map(|_| ()),
        store.release("bad", Secret::new("a:1"), LIMIT).map(|_| ()),
    ] {
        assert!(matches!(answer, Err(StoreError::Refused(_))), "{answer:?}");
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn scripts_that_the_server_forgot_are_sent_again_also_within_a_batch() {
    let server = Server::start();
    let store = store(&server);
    for round in 0..3 {
        let owner = format!("a:{round}");
        let names = ["n0", "n1", "n2"];
        for name in names {
            granted(&store, name, &owner);
        }
        server.cli(&["SCRIPT", "FLUSH"]);
        let batch = names.map(|name| Renewal::new(name, Secret::new(&owner), LEASE));
        assert_eq!(
            renew(&store, &batch),
            [Outcome::Renewed, Outcome::Renewed, Outcome::Renewed]
        );
        server.cli(&["SCRIPT", "FLUSH"]);
        for name in names {
            assert_eq!(release(&store, name, &owner), Released::Released);
            server.cli(&["SCRIPT", "FLUSH"]);
        }
    }
}

// === tokens, and restarts ===

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn c168_tokens_strictly_grow_over_restarts_that_forget_everything() {
    let mut server = Server::start();
    let lease = Duration::from_millis(200);
    let store = RedisStore::builder(&server.url())
        .longest_lease(lease)
        .build()
        .unwrap();
    let mut last = 0;
    let mut refused = 0;
    for at in 0..1_000 {
        if at % 250 == 100 {
            server.restart();
        }
        let owner = format!("a:{at}");
        let claim = Claim::new("x", &owner, Secret::new(&owner), lease);
        let (token, start) = loop {
            let start = Instant::now();
            match store.acquire(&claim, LIMIT) {
                Ok(Acquired::Granted { token, .. }) => break (token, start),
                Err(StoreError::Emptied { wait, .. }) => {
                    refused += 1;
                    assert!(wait <= lease, "{wait:?}");
                    thread::park_timeout(wait);
                }
                other => panic!("{other:?}"),
            }
        };
        assert!(token > last, "{at}: {token} after {last}");
        last = token;
        let released = release(&store, "x", &owner);
        // On a busy machine the lease may have run out before.
        let is_over = start.elapsed() >= lease;
        assert!(released == Released::Released || is_over, "{released:?}");
    }
    assert!(refused >= 5, "each start was noticed: {refused}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn tokens_grow_also_while_the_clock_is_behind_the_last_one() {
    let server = Server::start();
    let store = store(&server);
    let ahead = 4_000_000_000_000_000_u64;
    server.cli(&["SET", "tourbillon:{x}:token", &ahead.to_string()]);
    for at in 1..=3 {
        assert_eq!(granted(&store, "x", "a:1"), ahead + at);
    }
    let shown = server.cli(&["HGET", "tourbillon:{x}:lock", "token"]);
    assert_eq!(shown, "\"4000000000000003\"");
    // Otherwise they are the time.
    let now = std::time::SystemTime::now();
    let now = now
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_micros();
    let token = u128::from(granted(&store, "y", "a:2"));
    assert!(token.abs_diff(now) < LIMIT.as_micros(), "{token} {now}");
    // What is no number grants nothing.
    server.cli(&["SET", "tourbillon:{z}:token", "many"]);
    let answer = acquire(&store, "z", "a:3");
    assert!(matches!(answer, Err(StoreError::Refused(_))), "{answer:?}");
    assert_eq!(
        server.cli(&["EXISTS", "tourbillon:{z}:lock"]),
        "(integer) 0"
    );
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn tokens_grow_after_the_clock_was_set_back_by_a_day() {
    const DAY_MS: u64 = 24 * 3_600 * 1_000;
    let server = Server::start();
    let store = store(&server);
    let token_key = "tourbillon:{x}:token";
    // A clock that is set back by a day leaves behind what was written a day ahead: the token, and
    // the end of its key, which the server keeps as a moment.
    let before = granted(&store, "x", "a:1") + DAY_MS * 1_000;
    let life = (left(&server, token_key) + DAY_MS).to_string();
    server.cli(&["SET", token_key, &before.to_string(), "PX", &life]);
    let mut last = before;
    for _ in 0..3 {
        assert_eq!(release(&store, "x", "a:1"), Released::Released);
        let token = granted(&store, "x", "a:1");
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    // The key lives until the clock has passed its token, and from then on the time is greater.
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    let ends = now.as_millis() + u128::from(left(&server, token_key));
    assert!(ends > u128::from(last / 1_000), "{ends} before {last}");
}

/// How long a server has been up for certain, when it is asked for the first grant.
fn first_grant(store: &RedisStore, started: Instant) -> Duration {
    loop {
        match acquire_short(store, "x", "late:1") {
            Ok(Acquired::Granted { .. }) => return started.elapsed(),
            Err(StoreError::Emptied { wait, .. }) => thread::park_timeout(wait),
            other => panic!("{other:?}"),
        }
    }
}

fn acquire_short(store: &RedisStore, name: &str, owner: &str) -> Result<Acquired, StoreError> {
    store.acquire(
        &Claim::new(name, owner, Secret::new(owner), store.longest_lease()),
        LIMIT,
    )
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_server_that_lost_its_data_grants_nothing_while_older_leases_may_be_believed_in() {
    let longest = Duration::from_secs(3);
    let mut server = Server::start();
    let build = |server: &Server| {
        let builder = RedisStore::builder(&server.url()).longest_lease(longest);
        builder.build().unwrap()
    };
    let known = build(&server);
    // A first start is not to be told from a restart.
    wait::until("the first start is long ago", || known.check(LIMIT).is_ok());
    assert!(matches!(
        acquire_short(&known, "x", "a:1"),
        Ok(Acquired::Granted { .. })
    ));
    server.kill();
    let killed = Instant::now();
    server.restart();
    // Who was connected before, and who comes now: what it held is gone, and none gets it.
    let new = build(&server);
    for store in [&known, &new] {
        for _ in 0..2 {
            let answer = acquire_short(store, "x", "b:1");
            let Err(StoreError::Emptied { wait, evicted }) = answer else {
                panic!("nothing is granted yet: {answer:?}");
            };
            assert!(wait <= longest && !evicted, "{wait:?}");
            assert!(matches!(
                store.check(LIMIT),
                Err(StoreError::Emptied { .. })
            ));
        }
    }
    // Only what grants has to wait.
    assert_eq!(release(&known, "x", "a:1"), Released::NotHeld);
    let renewal = Renewal::new("x", Secret::new("a:1"), longest);
    assert_eq!(renew(&known, &[renewal]), [Outcome::NotHeld]);
    assert!(first_grant(&new, killed) >= longest);
    let answer = acquire_short(&known, "x", "c:1");
    assert!(matches!(answer, Ok(Acquired::Held { .. })), "{answer:?}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn of_an_uptime_in_whole_seconds_the_least_is_believed() {
    let server = Server::start();
    let script = format!(
        "{}\nreturn rest_of_uptime(ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]))",
        include_str!("../../src/redis/guard.lua")
    );
    // It may have begun at the end of the second in which it says that it began.
    for (longest, uptime, microseconds, rest) in [
        (30_000_000, 0, 0, 31_000_000),
        (30_000_000, 1, 0, 30_000_000),
        (30_000_000, 30, 999_999, 1),
        (30_000_000, 31, 0, 0),
        (200_000, 1, 199_999, 1),
        (200_000, 1, 200_000, 0),
        (200_000, 1_000_000_000, 0, 0),
    ] {
        let info = format!("uptime_in_seconds:{uptime}");
        let (longest, microseconds) = (longest.to_string(), microseconds.to_string());
        let answer = server.cli(&["EVAL", &script, "0", &info, &longest, &microseconds]);
        let case = format!("{longest} {uptime} {microseconds}");
        assert_eq!(answer, format!("(integer) {rest}"), "{case}");
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn the_marker_says_what_was_lost_whatever_the_clock_does() {
    let server = Server::start();
    // The script on a server that is made up: the run "bb", 1,000 s after the epoch.
    let script = format!(
        "local written
         local function call(command, key, value)
           if command == 'GET' then return ARGV[2] ~= '' and ARGV[2] end
           if command == 'SET' then written = value return end
           if key == 'stats' then return 'evicted_keys:' .. ARGV[3] end
           local run = ARGV[2] ~= '0 0 restarted 30000000' and 'run_id:bb\\n' or ''
           return run .. 'uptime_in_seconds:' .. ARGV[1]
         end
         local redis = {{call = call, pcall = call}}
         {}
         local marker = ARGV[2] ~= 'none' and 'marker' or nil
         local own = tonumber(ARGV[5] or '30000000')
         local wait = guard(marker, own > 0 and own or 30000000, ARGV[4] == '1', {{'1000', '0'}}, own,
           ARGV[6] ~= 'check', tonumber(ARGV[7] or '-1'))
         if wait and wait.err then return wait.err end
         local answer = wait and (wait[1] == 2 and string.format('waits %.0f %d', wait[2], wait[3]) or
           string.format('refused by %.0f', wait[2])) or 'grants'
         return answer .. ', ' .. (written or 'writes nothing')",
        include_str!("../../src/redis/guard.lua")
    );
    let long = "100000";
    for (uptime, marker, evicted, empty, answer) in [
        // No data, whenever it started; and what is no marker.
        (
            long,
            "",
            "0",
            "0",
            "waits 30000000 2, bb 1030000000 empty 30000000",
        ),
        (
            "0",
            "",
            "0",
            "0",
            "waits 30000000 2, bb 1030000000 empty 30000000",
        ),
        (
            long,
            "",
            "7",
            "0",
            "waits 30000000 3, bb 1030000000 evicted 30000000",
        ),
        (long, "", "0", "1", "grants, bb 0 empty 30000000"),
        (
            long,
            "bb 0 ? 30000000",
            "0",
            "0",
            "waits 30000000 2, bb 1030000000 empty 30000000",
        ),
        (
            long,
            "bb 0 not 30000000",
            "0",
            "0",
            "waits 30000000 2, bb 1030000000 empty 30000000",
        ),
        // Those who come later wait for the same moment.
        (
            long,
            "bb 1010000000 empty 30000000",
            "0",
            "0",
            "waits 10000000 2, writes nothing",
        ),
        (
            long,
            "bb 1000000001 evicted 30000000",
            "9",
            "0",
            "waits 1 3, writes nothing",
        ),
        (
            long,
            "bb 1000000000 empty 30000000",
            "0",
            "0",
            "grants, bb 0 empty 30000000",
        ),
        (
            long,
            "bb 0 empty 30000000",
            "0",
            "0",
            "grants, writes nothing",
        ),
        // The clock was set back by an hour: nobody waits for more than the longest lease, and who
        // has nothing to wait for does not.
        (
            long,
            "bb 4600000000 empty 30000000",
            "0",
            "0",
            "waits 30000000 2, bb 1030000000 empty 30000000",
        ),
        (
            "-3600",
            "bb 0 restarted 30000000",
            "0",
            "0",
            "grants, writes nothing",
        ),
        (
            "-3600",
            "aa 0 empty 30000000",
            "0",
            "0",
            "waits 30000000 1, bb 1030000000 restarted 30000000",
        ),
        (
            "-3600",
            "none",
            "0",
            "0",
            "waits 31000000 1, writes nothing",
        ),
        // Another run, with the data of the one before.
        (
            "5",
            "aa 0 empty 30000000",
            "0",
            "0",
            "waits 26000000 1, bb 1026000000 restarted 30000000",
        ),
        (
            "5",
            "aa 0 empty 30000000",
            "0",
            "1",
            "waits 26000000 1, bb 1026000000 restarted 30000000",
        ),
        (
            "0",
            "aa 0 empty 30000000",
            "0",
            "0",
            "waits 30000000 1, bb 1030000000 restarted 30000000",
        ),
        (
            long,
            "aa 0 restarted 30000000",
            "0",
            "0",
            "grants, bb 0 restarted 30000000",
        ),
        // A replica took over while nothing was granted.
        (
            long,
            "aa 1020000000 empty 30000000",
            "0",
            "0",
            "waits 20000000 2, bb 1020000000 empty 30000000",
        ),
        // A server that does not name its run.
        (
            long,
            "0 0 restarted 30000000",
            "0",
            "0",
            "grants, writes nothing",
        ),
        (
            "5",
            "0 0 restarted 30000000",
            "0",
            "0",
            "waits 26000000 1, 0 1026000000 restarted 30000000",
        ),
        // The marker lies elsewhere.
        ("5", "none", "0", "0", "waits 26000000 1, writes nothing"),
        (long, "none", "0", "0", "grants, writes nothing"),
    ] {
        let said = server.cli(&["EVAL", &script, "0", uptime, marker, evicted, empty]);
        let case = format!("{uptime} {marker:?} {evicted} {empty}");
        assert_eq!(said, format!("\"{answer}\""), "{case}");
    }
    // Stores with other longest leases: a smaller one is refused, unless it may be smaller, and a
    // greater one is written. All of them wait for the greatest one.
    for (own, marker, uptime, answer) in [
        (
            "20000000",
            "bb 0 empty 30000000",
            long,
            "refused by 30000000, writes nothing",
        ),
        (
            "20000000",
            "aa 0 empty 30000000",
            "5",
            "refused by 30000000, writes nothing",
        ),
        (
            "30000000",
            "bb 0 empty 20000000",
            long,
            "waits 10000000 2, bb 1010000000 empty 30000000",
        ),
        (
            "30000000",
            "bb 1010000000 empty 20000000",
            long,
            "waits 20000000 2, bb 1020000000 empty 30000000",
        ),
        (
            "30000000",
            "aa 0 empty 20000000",
            "5",
            "waits 26000000 1, bb 1026000000 restarted 30000000",
        ),
        ("0", "bb 0 empty 40000000", long, "grants, writes nothing"),
        (
            "0",
            "aa 0 empty 40000000",
            "5",
            "waits 36000000 1, bb 1036000000 restarted 40000000",
        ),
    ] {
        let said = server.cli(&["EVAL", &script, "0", uptime, marker, "0", "0", own]);
        assert_eq!(said, format!("\"{answer}\""), "{own} {marker:?} {uptime}");
    }
    // A check raises nothing.
    let (own, marker) = ("30000000", "bb 0 empty 20000000");
    let values = [long, marker, "0", "0", own, "check"];
    let said = server.cli(&[&["EVAL", &script, "0"], &values[..]].concat());
    assert_eq!(said, "\"grants, writes nothing\"");
    // Failovers, by the number of the connection. The number of a plain one is -1.
    let failed_over = "waits 40000000 1, bb 1040000000 restarted 30000000 3";
    for (epoch, marker, answer) in [
        ("3", "bb 0 empty 30000000", "grants, bb 0 empty 30000000 3"),
        ("0", "bb 0 empty 30000000", "grants, bb 0 empty 30000000 0"),
        ("0", "bb 0 empty 30000000 0", "grants, writes nothing"),
        ("3", "bb 0 empty 30000000 0", failed_over),
        ("3", "bb 0 empty 30000000 2", failed_over),
        ("3", "aa 0 empty 30000000", failed_over),
        ("3", "aa 0 empty 30000000 3", failed_over),
        ("3", "bb 4600000000 restarted 30000000 3", failed_over),
        (
            "3",
            "bb 1040000000 restarted 30000000 3",
            "waits 40000000 1, writes nothing",
        ),
        (
            "3",
            "bb 999000000 restarted 30000000 3",
            "grants, bb 0 restarted 30000000 3",
        ),
        ("3", "", "waits 40000000 2, bb 1040000000 empty 30000000 3"),
        ("-1", "bb 0 empty 30000000 3", "grants, writes nothing"),
        (
            "-1",
            "aa 0 empty 30000000 3",
            "grants, bb 0 restarted 30000000 3",
        ),
    ] {
        let values = [long, marker, "0", "0", "30000000", "", epoch];
        let said = server.cli(&[&["EVAL", &script, "0"], &values[..]].concat());
        assert_eq!(said, format!("\"{answer}\""), "{epoch} {marker:?}");
    }
    let values = [long, "bb 0 empty 30000000 4", "0", "0", "30000000", "", "3"];
    let said = server.cli(&[&["EVAL", &script, "0"], &values[..]].concat());
    assert!(
        said.contains("READONLY") && said.contains("epoch 4"),
        "{said}"
    );
}

/// With 20 s in one process and 1 s in another, two could believe after a loss that they hold a lock.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_store_that_would_wait_for_too_short_a_time_is_granted_nothing() {
    let server = Server::start();
    let of = |longest| {
        let builder = RedisStore::builder(&server.url()).starts_empty();
        builder.longest_lease(longest * S)
    };
    let (long, short) = (of(20).build().unwrap(), of(1).build().unwrap());
    // Before the other one asks for a lock, it is as good as any. A check of the other one is no such
    // question.
    let own = Claim::new("own", "b:1", Secret::new("b:1"), S);
    for _ in 0..2 {
        let answer = short.acquire(&own, LIMIT);
        assert!(matches!(answer, Ok(Acquired::Granted { .. })), "{answer:?}");
        long.check(LIMIT).unwrap();
    }
    assert!(acquire_short(&long, "x", "a:1").is_ok());
    let refused = |store: &RedisStore, name: &str| {
        let claim = Claim::new(name, "b:2", Secret::new("b:2"), S);
        match store.acquire(&claim, LIMIT) {
            Err(StoreError::Refused(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    let why = refused(&short, "y");
    assert!(why.contains("20s") && why.contains("1s"), "{why}");
    let check = short.check(LIMIT).unwrap_err().to_string();
    assert!(check.contains("longest_lease_changes"), "{check}");
    // A batch, too.
    let batch = ["y", "z"].map(|name| Claim::new(name, "b:2", Secret::new("b:2"), S));
    let answers =
        tourbillon_leases::LeaseStore::acquire(&short, Destination::default(), &batch, LIMIT);
    let answers = crate::calls::wait(answers).unwrap();
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Err(StoreError::Refused(_))))
    );
    // What it holds it keeps, and gives back.
    let renewal = Renewal::new("own", Secret::new("b:1"), S);
    assert_eq!(renew(&short, &[renewal]), [Outcome::Renewed]);
    assert_eq!(
        short.release("own", Secret::new("b:1"), LIMIT),
        Ok(Released::Released)
    );
    // Nothing tells of the other one after a loss, but it is kept in mind.
    server.cli(&["FLUSHALL"]);
    refused(&short, "x");
    assert!(acquire_short(&long, "x", "a:2").is_ok());
    // One that may be smaller is granted, whatever the marker says.
    let changes = of(1).longest_lease_changes().build().unwrap();
    let claim = Claim::new("y", "c:1", Secret::new("c:1"), S);
    assert!(matches!(
        changes.acquire(&claim, LIMIT),
        Ok(Acquired::Granted { .. })
    ));
    refused(&of(1).build().unwrap(), "z");
}

/// A store with a guard, on a server that grants.
fn ready(url: &str, longest: Duration) -> RedisStore {
    let store = RedisStore::builder(url).longest_lease(longest).build();
    let store = store.unwrap();
    wait::until("the server grants", || store.check(LIMIT).is_ok());
    store
}

/// Who asks first finds the marker missing, however late that is on a busy machine.
const SHORT_GUARD: Duration = Duration::from_millis(300);

const MARKER: &str = "tourbillon:{0}:marker";

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn two_that_find_the_data_gone_at_once_both_wait() {
    let longest = SHORT_GUARD;
    let server = Server::start();
    let stores = [0, 1].map(|_| ready(&server.url(), longest));
    for round in 0..3 {
        let lost = Instant::now();
        assert_eq!(server.cli(&["FLUSHALL"]), "OK");
        let begin = Barrier::new(4);
        thread::scope(|scope| {
            for at in 0..4 {
                let (store, begin) = (&stores[at % 2], &begin);
                scope.spawn(move || {
                    let name = format!("n{at}");
                    let owner = format!("{at}:{round}");
                    let mut refused = 0;
                    begin.wait();
                    loop {
                        match acquire_short(store, &name, &owner) {
                            Ok(Acquired::Granted { .. }) => break,
                            Err(StoreError::Emptied { wait, evicted }) => {
                                assert!(wait <= longest && !evicted, "{wait:?}");
                                refused += 1;
                            }
                            other => panic!("{other:?}"),
                        }
                        thread::park_timeout(Duration::from_millis(5));
                    }
                    assert!(refused > 0, "it was granted at once");
                    assert!(lost.elapsed() >= longest, "{:?}", lost.elapsed());
                });
            }
        });
        // What was granted after that time lets the next ones come at once.
        assert!(matches!(
            acquire_short(&stores[0], "later", &format!("l:{round}")),
            Ok(Acquired::Granted { .. })
        ));
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_failover_to_an_empty_server_is_a_loss() {
    let servers = [0, 1].map(|_| Server::start());
    let proxy = Proxy::before_redis(servers[0].port());
    let longest = SHORT_GUARD;
    let store = ready(&proxy.url(), longest);
    assert!(matches!(
        acquire_short(&store, "x", "a:1"),
        Ok(Acquired::Granted { .. })
    ));
    // The other one has been up for as long.
    let before = Instant::now();
    proxy.leads_to(servers[1].port());
    let answer = acquire_short(&store, "x", "b:1");
    assert!(
        matches!(answer, Err(StoreError::Emptied { evicted: false, .. })),
        "{answer:?}"
    );
    assert!(first_grant(&store, before) >= longest);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_marker_that_was_evicted_is_a_loss_and_the_error_says_so() {
    let server = Server::start();
    let store = ready(&server.url(), SHORT_GUARD);
    let before = Instant::now();
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    wait::until("all is evicted", || {
        server.cli(&["SET", "x", "1"]);
        server.cli(&["EXISTS", MARKER]) == "(integer) 0"
    });
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    // Who asks first finds it missing, and begins the wait.
    let first = Instant::now();
    for at in 0..2 {
        let Err(error) = acquire_short(&store, "x", "a:1") else {
            assert!(at > 0 && first.elapsed() >= SHORT_GUARD, "it is granted");
            release(&store, "x", "a:1");
            break;
        };
        assert!(
            matches!(error, StoreError::Emptied { evicted: true, .. }),
            "{error:?}"
        );
        let said = error.to_string();
        assert!(said.contains("maxmemory-policy"), "{said}");
    }
    assert!(first_grant(&store, before) >= SHORT_GUARD);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_server_that_restarted_with_its_data_is_waited_for() {
    let mut server = Server::durable();
    let build = |url: &str| {
        let builder = RedisStore::builder(url).longest_lease(LEASE);
        builder.starts_empty().build().unwrap()
    };
    let store = build(&server.url());
    granted(&store, "x", "a:1");
    server.restart();
    // It has its data, so it does not start empty. Perhaps it lacks the last of them.
    for store in [&store, &build(&server.url())] {
        for answer in [acquire(store, "y", "b:1").map(drop), store.check(LIMIT)] {
            let Err(StoreError::Restarted { wait }) = answer else {
                panic!("nothing is granted yet: {answer:?}");
            };
            assert!(wait <= LEASE, "{wait:?}");
        }
        assert!(matches!(
            acquire(store, "x", "b:1"),
            Ok(Acquired::Held { .. })
        ));
    }
    assert_eq!(release(&store, "x", "a:1"), Released::Released);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_server_that_starts_empty_on_purpose_grants_at_once() {
    let mut server = Server::start();
    let builder = RedisStore::builder(&server.url()).starts_empty();
    let store = builder.build().unwrap();
    for _ in 0..2 {
        assert_eq!(store.check(LIMIT), Ok(()));
        granted(&store, "x", "a:1");
        // What its documentation warns of.
        server.cli(&["FLUSHALL"]);
        granted(&store, "x", "b:1");
        server.restart();
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_check_begins_the_wait_for_all_destinations() {
    let server = Server::start();
    let builder = RedisStore::builder(&server.url()).longest_lease(Duration::from_millis(500));
    let store = builder.destinations(5).build().unwrap();
    let first = store.check(LIMIT);
    assert!(
        matches!(first, Err(StoreError::Emptied { .. })),
        "{first:?}"
    );
    let markers = server.cli(&["--scan", "--pattern", "tourbillon:*:marker"]);
    assert_eq!(markers.lines().count(), 5, "{markers}");
    wait::until("all grant", || store.check(LIMIT).is_ok());
    for at in 0..50 {
        let name = format!("n{at}");
        let answer = acquire_short(&store, &name, "a:1");
        assert!(matches!(answer, Ok(Acquired::Granted { .. })), "{answer:?}");
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_durable_server_grants_at_once_and_has_forgotten_nothing() {
    let mut server = Server::durable();
    let store = store(&server);
    let first = granted(&store, "x", "a:1");
    let free = granted(&store, "y", "a:2");
    assert_eq!(release(&store, "y", "a:2"), Released::Released);
    server.restart();
    assert!(matches!(
        acquire(&store, "x", "b:1"),
        Ok(Acquired::Held { .. })
    ));
    assert!(granted(&store, "y", "b:2") > free);
    assert_eq!(
        renew(&store, &[Renewal::new("x", Secret::new("a:1"), LEASE)]),
        [Outcome::Renewed]
    );
    assert_eq!(release(&store, "x", "a:1"), Released::Released);
    assert!(granted(&store, "x", "b:3") > first);
}
