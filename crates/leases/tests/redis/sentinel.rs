//! The store on a master that Sentinels watch.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kit::wait;
use tourbillon_leases::{Acquired, Claim, Leases, RedisStore, Secret, StoreError};

use crate::calls::Calls;

use chaos::servers::redis::{Server, free_port};

/// Nothing that answers takes so long.
const LIMIT: Duration = Duration::from_secs(60);
/// Longer than a failover takes.
const LEASE: Duration = Duration::from_secs(15);

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

/// Answers as a Sentinel does, and says that this is the master. Ends with the process.
fn says(port: u16, epoch: u64) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let own = listener.local_addr().unwrap().port();
    let fields = [
        "ip",
        "127.0.0.1",
        "port",
        &port.to_string(),
        "config-epoch",
        &epoch.to_string(),
    ]
    .map(|field| format!("${}\r\n{field}\r\n", field.len()));
    let answer = format!("*6\r\n{}", fields.concat());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            // The last word of the question.
            if lines.any(|line| line.is_ok_and(|line| line == "shop")) {
                let _ = stream.write_all(answer.as_bytes());
                while lines.next().is_some_and(|line| line.is_ok()) {}
            }
        }
    });
    own
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
    assert!(left <= LEASE, "{left:?}");
    let granted = leases.lock("x").within(LIMIT).wait().unwrap();
    assert!(killed.elapsed() >= LEASE);
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
    let connected = || server.cli(&["INFO", "stats"]);
    let number = |text: &str| {
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    for _ in 0..3 {
        let before = number(&connected());
        let refused = acquire(&store, LIMIT);
        let Err(StoreError::Unavailable(why)) = refused else {
            panic!("{refused:?}");
        };
        assert!(why.contains("epoch 4 has begun"), "{why}");
        // The next call asks the Sentinels again. Two of the connections are those of `connected`.
        assert!(acquire(&store, LIMIT).is_err());
        assert!(number(&connected()) > before + 1);
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
    granted(&store(&[gone, alive()]), LIMIT);
    // The majority has answered.
    granted(&store(&[hangs.0, alive(), alive()]), LIMIT);
    // That is only half of them, so the other one gets a part of the limit.
    granted(&store(&[hangs.0, alive()]), Duration::from_secs(4));
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
    refused(at("other"), "knows this master");
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
