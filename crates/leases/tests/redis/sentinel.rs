//! The store on a master that Sentinels watch.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use kit::wait;
use tourbillon_leases::{
    Acquired, Claim, Destination, Leases, Outcome, RedisStore, Renewal, Secret, StoreError,
};

use crate::calls::Calls;

use chaos::servers::redis::{Server, free_port};

/// Nothing that answers takes so long.
const LIMIT: Duration = Duration::from_secs(60);
/// Longer than a failover takes.
const LEASE: Duration = Duration::from_secs(10);
/// By so much a wait after a failover is longer than the longest lease.
const LATER: Duration = Duration::from_secs(10);

fn store(sentinels: &[u16]) -> Arc<RedisStore> {
    let hosts: Vec<_> = sentinels
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    let url = format!("redis-sentinel://{}/shop", hosts.join(","));
    let builder = RedisStore::builder(&url)
        .starts_empty()
        .longest_lease(LEASE);
    Arc::new(builder.build().unwrap())
}

fn acquire(store: &RedisStore, limit: Duration) -> Result<Acquired, StoreError> {
    store.acquire(&Claim::new("x", "a", Secret::new("a"), LEASE), limit)
}

#[track_caller]
fn granted(store: &RedisStore, limit: Duration) {
    let acquired = acquire(store, limit);
    assert!(
        matches!(acquired, Ok(Acquired::Granted { .. })),
        "{acquired:?}"
    );
}

/// A Sentinel that says what a test wants. Ends with the process.
struct Says {
    port: u16,
    answer: Arc<Mutex<String>>,
}

impl Says {
    fn new(master: u16, epoch: u64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let says = Says {
            port: listener.local_addr().unwrap().port(),
            answer: Arc::default(),
        };
        says.now_names(master, epoch);
        let answer = Arc::clone(&says.answer);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let mut words = 0;
                // Each of the three questions ends with the name of the master.
                while words < 3
                    && let Some(Ok(line)) = lines.next()
                {
                    words += usize::from(line == "shop");
                }
                let _ = stream.write_all(answer.lock().unwrap().as_bytes());
                while lines.next().is_some_and(|line| line.is_ok()) {}
            }
        });
        says
    }

    fn now_names(&self, master: u16, epoch: u64) {
        let array = |words: &[&str]| {
            let words = words.iter();
            let words = words.map(|word| format!("${}\r\n{word}\r\n", word.len()));
            let words: Vec<_> = words.collect();
            format!("*{}\r\n{}", words.len(), words.concat())
        };
        let (master, epoch) = (master.to_string(), epoch.to_string());
        let epoch = array(&["name", "shop", "config-epoch", &epoch]);
        let address = array(&["127.0.0.1", &master]);
        *self.answer.lock().unwrap() = format!("{epoch}{address}{epoch}");
    }
}

/// How many connections a server has taken, with that of this question.
fn connections(server: &Server) -> u64 {
    let stats = server.cli(&["INFO", "stats"]);
    let mut lines = stats.lines();
    let line = lines.find_map(|line| line.strip_prefix("total_connections_received:"));
    line.unwrap().trim().parse().unwrap()
}

fn says(master: u16, epoch: u64) -> u16 {
    Says::new(master, epoch).port
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn after_a_failover_renewals_go_on_and_nothing_is_granted_for_the_longest_lease() {
    let mut master = Server::start();
    let replica = master.replica();
    let sentinel = master.sentinel();
    let store = store(&[sentinel.port()]);
    let leases = Leases::builder(Arc::clone(&store))
        .lease(LEASE)
        .build()
        .unwrap();
    let guard = leases.lock("held").wait().unwrap();
    replica.until(&["EXISTS", "tourbillon:{held}:lock"], "1");
    master.kill();
    let killed = Instant::now();
    wait::until("the replica is the master", || {
        replica.cli(&["ROLE"]).contains("\"master\"")
    });
    let before = leases.stats().renewed;
    wait::until("its renewals go on", || leases.stats().renewed > before);
    assert!(guard.is_held());
    let waits = acquire(&store, LIMIT);
    let Err(StoreError::Restarted { wait: left }) = waits else {
        panic!("{waits:?}");
    };
    assert!(left <= LEASE + LATER, "{left:?}");
    let granted = leases.lock("x").within(LIMIT).wait().unwrap();
    assert!(killed.elapsed() >= LEASE + LATER);
    assert!(guard.is_held() && granted.is_held());
    let marker = replica.cli(&["GET", "tourbillon:{0}:marker"]);
    assert!(marker.ends_with(" 1\""), "the first failover: {marker}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_server_that_another_one_has_replaced_grants_nothing() {
    let server = Server::start();
    let store = store(&[says(server.port(), 3)]);
    granted(&store, LIMIT);
    let marker = server.cli(&["GET", "tourbillon:{0}:marker"]);
    let marker = marker.trim_matches('"');
    assert!(marker.ends_with(" 3"), "{marker}");
    server.cli(&[
        "SET",
        "tourbillon:{0}:marker",
        &format!("{} 4", &marker[..marker.len() - 2]),
    ]);
    for _ in 0..3 {
        let before = connections(&server);
        let refused = acquire(&store, LIMIT);
        let Err(StoreError::Unavailable(why)) = refused else {
            panic!("{refused:?}");
        };
        assert!(why.contains("epoch 4 has begun"), "{why}");
        // The next call asks the Sentinels again. One of the connections is that of `connections`.
        assert!(acquire(&store, LIMIT).is_err());
        assert!(connections(&server) > before + 1);
    }
    // A store that knows no epoch is told nothing.
    let plain = RedisStore::builder(&server.url())
        .starts_empty()
        .longest_lease(LEASE)
        .build();
    let plain = Arc::new(plain.unwrap());
    granted(&plain, LIMIT);
    server.cli(&["SET", "tourbillon:{0}:marker", marker]);
    granted(&store, LIMIT);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_greater_epoch_starts_the_wait_on_a_server_that_has_not_restarted() {
    let server = Server::start();
    let first = store(&[says(server.port(), 3)]);
    granted(&first, LIMIT);
    let second = store(&[says(server.port(), 5)]);
    let waits = acquire(&second, LIMIT);
    assert!(
        matches!(waits, Err(StoreError::Restarted { .. })),
        "{waits:?}"
    );
    let stale = acquire(&first, LIMIT);
    assert!(
        matches!(stale, Err(StoreError::Unavailable(_))),
        "{stale:?}"
    );
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn sentinels_that_are_gone_hang_or_know_less_than_others_keep_nobody_from_the_master() {
    let server = Server::start();
    let alive = || says(server.port(), 2);
    let gone = free_port();
    let hangs = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let hangs = hangs
        .local_addr()
        .map(|address| (address.port(), hangs))
        .unwrap();
    granted(&store(&[gone, alive(), alive()]), LIMIT);
    // The majority has answered.
    granted(&store(&[hangs.0, alive(), alive()]), LIMIT);
    // The one that is cut off names a server that was the master before.
    granted(&store(&[says(gone, 1), alive(), alive()]), LIMIT);
    let nobody = acquire(&store(&[gone, hangs.0]), Duration::from_millis(200));
    assert!(
        matches!(nobody, Err(StoreError::Unavailable(_))),
        "{nobody:?}"
    );
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn renewals_move_to_the_new_master_although_the_old_one_answers() {
    let (old, new) = (Server::start(), Server::start());
    let sentinel = Says::new(old.port(), 1);
    let store = store(&[sentinel.port]);
    let renew = || {
        let renewal = [Renewal::new("x", Secret::new("a"), LEASE)];
        let renewed = store.renew(Destination::default(), &renewal, LIMIT);
        renewed.unwrap().remove(0)
    };
    granted(&store, LIMIT);
    assert_eq!(renew(), Outcome::Renewed);
    sentinel.now_names(new.port(), 2);
    // The new one has nothing of it.
    wait::until("renewals have moved", || renew() == Outcome::NotHeld);
    assert_eq!(old.cli(&["EXISTS", "tourbillon:{x}:lock"]), "(integer) 1");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn sentinels_that_count_from_the_beginning_again_cost_one_connection() {
    let server = Server::start();
    let sentinel = Says::new(server.port(), 7);
    let store = store(&[sentinel.port]);
    let renew = || {
        let renewal = [Renewal::new("x", Secret::new("a"), LEASE)];
        store.renew(Destination::default(), &renewal, LIMIT)
    };
    granted(&store, LIMIT);
    assert_eq!(renew(), Ok(vec![Outcome::Renewed]));
    sentinel.now_names(server.port(), 0);
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    assert_eq!(renew(), Ok(vec![Outcome::Renewed]));
    let before = connections(&server);
    for _ in 0..5 {
        assert_eq!(renew(), Ok(vec![Outcome::Renewed]));
    }
    // That of the second question alone.
    assert_eq!(connections(&server), before + 1);
    // What the error says to do.
    assert!(acquire(&store, LIMIT).is_err());
    server.cli(&["DEL", "tourbillon:{0}:marker"]);
    granted(&store, LIMIT);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn another_run_of_a_watched_server_waits_also_if_the_number_is_the_same() {
    let server = Server::start();
    let first = store(&[says(server.port(), 0)]);
    granted(&first, LIMIT);
    let marker = server.cli(&["GET", "tourbillon:{0}:marker"]);
    let marker = marker.trim_matches('"');
    assert!(marker.ends_with(" 0"), "{marker}");
    // As after a failover that Sentinels which were set up anew count as the first.
    let (run, rest) = marker.split_once(' ').unwrap();
    let other: String = run.chars().rev().collect();
    server.cli(&["SET", "tourbillon:{0}:marker", &format!("{other} {rest}")]);
    let waits = acquire(&first, LIMIT);
    let Err(StoreError::Restarted { wait: left }) = waits else {
        panic!("{waits:?}");
    };
    assert!(left > LEASE, "{left:?}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn what_sentinels_refuse_is_told() {
    let master = Server::start();
    let _replica = master.replica();
    let sentinel = master.sentinel();
    let at = |master: &str| {
        let url = format!("redis-sentinel://127.0.0.1:{}/{master}", sentinel.port());
        RedisStore::builder(&url).starts_empty()
    };
    let refused = |builder: tourbillon_leases::RedisStoreBuilder, words: &str| {
        let store = builder.build().unwrap();
        let Err(StoreError::Refused(why)) = store.check(LIMIT) else {
            panic!("{store:?} is not refused");
        };
        assert!(why.contains(words), "{why}");
    };
    refused(at("other"), "does not know this master");
    sentinel.cli(&["ACL", "SETUSER", "default", "resetpass", ">s3cret"]);
    refused(at("shop"), "NOAUTH");
    refused(at("shop").sentinel_login("", "wrong"), "WRONGPASS");
    let store = at("shop")
        .sentinel_login("default", "s3cret")
        .build()
        .unwrap();
    assert_eq!(store.check(LIMIT), Ok(()));
    assert!(!format!("{store:?}").contains("s3cret"));
    // A server is no Sentinel.
    let url = format!("redis-sentinel://127.0.0.1:{}/shop", master.port());
    refused(RedisStore::builder(&url), "unknown command");
}
