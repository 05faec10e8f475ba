//! Servers that are silent, restart, or are cut off from each other, and what stands between them and the store.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use chaos::proxy::{Proxy, Trouble, Way};
use chaos::servers::etcd::Server;
use kit::wait;
use tourbillon_etcd::EtcdStore;
use tourbillon_leases::{
    Acquired, Holding, Leases, Outcome, Released, Renewal, Secret, StoreError,
};

use crate::calls::Calls;
use crate::common::{
    LEASE, LIMIT, MS, S, acquire, base64, claim, granted, held, patiently, place, release, renew,
    server,
};

fn open(url: &str) -> EtcdStore {
    EtcdStore::open(url).expect("the URL is good")
}

fn proxy(server: &Server, slow: Duration) -> (Proxy, EtcdStore) {
    let proxy = Proxy::before((Ipv4Addr::LOCALHOST, server.port()).into(), slow);
    let proxy = proxy.expect("a port is free");
    let builder = EtcdStore::builder(&format!("etcd://127.0.0.1:{}", proxy.port()));
    let store = builder.prefix(place().0).build().unwrap();
    (proxy, store)
}

/// The URL of all three.
fn all_of(servers: &[Server]) -> String {
    let hosts: Vec<_> = servers
        .iter()
        .map(|one| format!("127.0.0.1:{}", one.port()))
        .collect();
    format!("etcd://{}", hosts.join(","))
}

fn leader(servers: &[Server]) -> usize {
    let mut leader = None;
    wait::until("one leads", || {
        leader = servers
            .iter()
            .position(|one| one.is_healthy() && one.leads());
        leader.is_some()
    });
    leader.unwrap()
}

// === one server ===

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_lock_outlives_a_crash_of_the_server() {
    let mut server = Server::start();
    let store = open(&server.url());
    let token = granted(&store, "x", "a:1");
    server.restart();
    let mine = Renewal::new("x", Secret::new("a:1"), LEASE);
    let renewed = patiently(|| store.renew(Default::default(), &[mine], LIMIT));
    assert_eq!(renewed, Ok(vec![Outcome::Renewed]));
    let other = patiently(|| acquire(&store, "x", "b:1"));
    assert!(matches!(other, Ok(Acquired::Held { .. })), "{other:?}");
    assert_eq!(store.holder_of("x", LIMIT).unwrap().unwrap().token, token);
    assert!(granted(&store, "y", "b:1") > token);
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn calls_to_a_silent_server_end_at_their_limits_and_later_ones_work() {
    let server = Server::start();
    let store = open(&server.url());
    granted(&store, "x", "a:1");
    server.stop();
    let start = Instant::now();
    let lost = store.acquire(&claim("y", "a:1"), 200 * MS);
    assert!(matches!(lost, Err(StoreError::Unavailable(_))), "{lost:?}");
    let checked = store.check(200 * MS);
    assert!(
        matches!(checked, Err(StoreError::Unavailable(_))),
        "{checked:?}"
    );
    assert!(start.elapsed() < LIMIT / 2);
    // A future that is dropped amid a call.
    let named = ["x"].map(|name| Renewal::new(name, Secret::new("a:1"), LEASE));
    let mut dropped =
        tourbillon_leases::LeaseStore::renew(&store, Default::default(), &named, LIMIT);
    let waker = std::task::Waker::noop();
    assert!(
        dropped
            .as_mut()
            .poll(&mut std::task::Context::from_waker(waker))
            .is_pending()
    );
    drop(dropped);
    server.resume();
    // The lost call may have been carried out. It is repeated with the same secret.
    let again = patiently(|| acquire(&store, "y", "a:1"));
    assert!(matches!(again, Ok(Acquired::Granted { .. })), "{again:?}");
    assert_eq!(renew(&store, &named), [Outcome::Renewed]);
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_connection_that_is_dead_costs_one_call() {
    let (proxy, store) = proxy(server(), Duration::ZERO);
    granted(&store, "x", "a:1");
    for way in [Way::Up, Way::Down] {
        let connections = proxy.seen().connections;
        // The connection of the swallowed call is lost. New connections work.
        proxy.begin(Trouble::Swallow, way);
        let start = Instant::now();
        let lost = store.acquire(&claim("y", "a:1"), 200 * MS);
        assert!(matches!(lost, Err(StoreError::Unavailable(_))), "{lost:?}");
        assert!(start.elapsed() < LIMIT / 2);
        proxy.begin(Trouble::Delay(Duration::ZERO), Way::Both);
        granted(&store, "y", "a:1");
        assert_eq!(proxy.seen().connections, connections + 1);
        proxy.end();
        assert_eq!(release(&store, "y", "a:1"), Released::Released);
    }
    // One that is closed costs one call at most.
    proxy.cut();
    let mine = Renewal::new("x", Secret::new("a:1"), LEASE);
    let renewed = patiently(|| store.renew(Default::default(), &[mine], LIMIT));
    assert_eq!(renewed, Ok(vec![Outcome::Renewed]));
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn answers_that_are_lost_at_any_byte_leave_one_holder_and_the_call_can_be_repeated() {
    let (proxy, store) = proxy(server(), Duration::ZERO);
    // The first connection has what all have: its settings.
    granted(&store, "x", "a:1");
    for bytes in (0..600).step_by(37) {
        let name = format!("n{bytes}");
        proxy.begin(Trouble::CutAfter(bytes), Way::Both);
        let first = store.acquire(&claim(&name, "a:1"), LIMIT);
        proxy.end();
        let again = patiently(|| acquire(&store, &name, "a:1"));
        let Ok(Acquired::Granted { token, .. }) = again else {
            panic!("{first:?}, then {again:?}");
        };
        if let Ok(Acquired::Granted { token: first, .. }) = first {
            assert_eq!(first, token);
        }
        assert!(matches!(
            acquire(&store, &name, "b:1"),
            Ok(Acquired::Held { .. })
        ));
        proxy.begin(Trouble::CutAfter(bytes), Way::Both);
        let first = store.release(&name, Secret::new("a:1"), LIMIT);
        proxy.end();
        let again = patiently(|| store.release(&name, Secret::new("a:1"), LIMIT));
        assert!(again.is_ok(), "{first:?}, then {again:?}");
        granted(&store, &name, "b:1");
    }
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_short_limit_does_not_keep_a_connection_from_being_made() {
    let (proxy, store) = proxy(server(), 20 * MS);
    // A call takes some answers, and so does the connection.
    let mut limit = 20 * MS;
    wait::until("it is granted", || {
        limit += 5 * MS;
        let answer = store.acquire(&claim("x", "a:1"), limit);
        matches!(answer, Ok(Acquired::Granted { .. }))
    });
    // Calls whose connection has answered nothing give it up. Those are few.
    assert!(proxy.seen().connections <= 10, "{:?}", proxy.seen());
}

#[test]
fn many_callers_of_a_server_that_is_not_there_fail_at_their_limits() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    let store = open(&format!("etcd://127.0.0.1:{port}"));
    let start = Instant::now();
    thread::scope(|scope| {
        for at in 0..16 {
            let store = &store;
            scope.spawn(move || {
                let answer = store.acquire(&claim(&format!("n{at}"), "a:1"), 100 * MS);
                assert!(matches!(answer, Err(StoreError::Unavailable(_))));
            });
        }
    });
    let checked = store.check(100 * MS);
    assert!(matches!(checked, Err(StoreError::Unavailable(_))));
    // The drop waits for nothing either.
    drop(store);
    assert!(start.elapsed() < LIMIT / 2);
}

#[test]
fn a_server_that_closes_connections_is_not_asked_again_at_once() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = server.local_addr().unwrap().port();
    let seen = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&seen);
    // It ends with the process.
    thread::spawn(move || {
        while server.accept().is_ok() {
            counts.fetch_add(1, SeqCst);
        }
    });
    let user = EtcdStore::builder(&format!("etcd://127.0.0.1:{port}")).user("a", "b");
    let store = user.build().unwrap();
    let start = Instant::now();
    for _ in 0..200 {
        let answer = acquire(&store, "x", "a:1");
        assert!(
            matches!(answer, Err(StoreError::Unavailable(_))),
            "{answer:?}"
        );
    }
    // The client may connect twice for one attempt, and an attempt begins 50 ms after the end of the one before.
    let most = 2 * (start.elapsed().as_millis() / 50 + 1);
    assert!(u128::from(seen.load(SeqCst)) <= most);
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_server_that_is_full_grants_nothing_and_what_is_held_goes_on() {
    let server = Server::with(&["--quota-backend-bytes", "4000000"]);
    let store = open(&server.url());
    granted(&store, "x", "a:1");
    let value = base64(&[b'v'; 600_000]);
    wait::until("it is full", || {
        let put = format!(r#"{{"key":"{}","value":"{value}"}}"#, base64(b"others"));
        server.post("/v3/kv/put", &put).contains("space exceeded")
    });
    let full = acquire(&store, "y", "a:1");
    let Err(StoreError::Unavailable(why)) = &full else {
        panic!("{full:?}");
    };
    assert!(why.contains("space exceeded"), "{why}");
    let mine = Renewal::new("x", Secret::new("a:1"), LEASE);
    assert_eq!(renew(&store, &[mine]), [Outcome::Renewed]);
    assert!(store.holder_of("x", LIMIT).unwrap().is_some());
    assert_eq!(release(&store, "x", "a:1"), Released::Released);
}

/// The number of changes to keys.
fn revision(server: &Server) -> u64 {
    let answer = server.post("/v3/kv/range", &format!(r#"{{"key":"{}"}}"#, base64(b"-")));
    let number = answer.split_once(r#""revision":""#).expect("it is there").1;
    let number = number.split('"').next().unwrap();
    number.parse().expect("it is a number")
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn an_acquire_whose_answer_is_lost_leaves_the_key_to_its_repetition() {
    let server = Server::start();
    let (proxy, store) = proxy(&server, Duration::ZERO);
    granted(&store, "x", "a:1");
    let mut made = 0;
    for bytes in (0..400).step_by(10) {
        let name = format!("n{bytes}");
        let before = revision(&server);
        proxy.begin(Trouble::CutAfter(bytes), Way::Down);
        let first = store.acquire(&claim(&name, "a:1"), LIMIT);
        proxy.end();
        if first.is_ok() {
            continue;
        }
        // The repetition may be under way already: the end of the lease would take the key from it.
        let changes = revision(&server) - before;
        assert!(changes <= 1, "{bytes}: {first:?}");
        made += changes;
        let again = patiently(|| acquire(&store, &name, "a:1"));
        assert!(matches!(again, Ok(Acquired::Granted { .. })), "{again:?}");
        assert_eq!(revision(&server) - before, 1);
    }
    assert!(made > 0, "no answer was lost");
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_release_that_meets_another_length_of_the_lease_frees_the_name_all_the_same() {
    let place = place();
    let slow = Proxy::before((Ipv4Addr::LOCALHOST, server().port()).into(), 200 * MS).unwrap();
    let builder = EtcdStore::builder(&format!("etcd://127.0.0.1:{}", slow.port()));
    let (store, direct) = (builder.prefix(&*place.0).build().unwrap(), place.store());
    let secret = Secret::new("a:1");
    for (name, rest) in [("x", Duration::ZERO), ("y", LEASE)] {
        granted(&store, name, "a:1");
        let before = slow.seen().bytes_down;
        let released = thread::scope(|scope| {
            let releases = scope.spawn(|| {
                store.release_many(
                    Default::default(),
                    &[Holding::new(name, secret).after(rest)],
                    LIMIT,
                )
            });
            // What the release has read is on its way.
            wait::until("it has read", || slow.seen().bytes_down >= before + 60);
            let late = Renewal::new(name, secret, 2 * LEASE);
            assert_eq!(renew(&direct, &[late]), [Outcome::Renewed]);
            releases.join().unwrap()
        });
        assert_eq!(released, Ok(vec![Ok(Released::Released)]));
        let holder = direct.holder_of(name, LIMIT).unwrap();
        match rest.is_zero() {
            true => assert_eq!(holder, None),
            false => assert_eq!(holder.unwrap().owner, "a:1 (released)"),
        }
    }
}

// === three servers ===

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn the_loss_of_any_one_of_three_servers_loses_no_lock_and_no_caller() {
    let mut servers = Server::three();
    let url = all_of(&servers);
    let stores = [(); 6].map(|()| open(&url));
    let token = granted(&stores[0], "x", "a:1");
    let mine = Renewal::new("x", Secret::new("a:1"), LEASE);
    // The last one is the leader.
    for kill_leader in [false, false, true] {
        let leads = leader(&servers);
        let lost = if kill_leader { leads } else { (leads + 1) % 3 };
        servers[lost].kill();
        for (at, store) in stores.iter().enumerate() {
            let renewed = patiently(|| {
                let renewed = store.renew(Default::default(), &[mine], 5 * S)?;
                match &renewed[0] {
                    Outcome::Failed(error) => Err(error.clone()),
                    _ => Ok(renewed),
                }
            });
            assert_eq!(renewed, Ok(vec![Outcome::Renewed]));
            let other = patiently(|| store.acquire(&claim("x", "b:1"), 5 * S));
            assert!(matches!(other, Ok(Acquired::Held { .. })), "{other:?}");
            let name = format!("n{lost} {kill_leader} {at} {}", leads);
            let free = patiently(|| store.acquire(&claim(&name, "b:1"), 5 * S));
            assert!(
                matches!(free, Ok(Acquired::Granted { token: later, .. }) if later > token),
                "{free:?}"
            );
            release(store, &name, "b:1");
        }
        servers[lost].restart();
    }
    assert_eq!(release(&stores[5], "x", "a:1"), Released::Released);
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn without_a_majority_nothing_is_granted_or_renewed_and_a_silent_server_is_left() {
    let servers = Server::three();
    let store = open(&all_of(&servers));
    granted(&store, "x", "a:1");
    let leads = leader(&servers);
    // A server that is stopped. The others elect a leader, and the store finds one of them.
    servers[leads].stop();
    let mine = Renewal::new("x", Secret::new("a:1"), LEASE);
    let renewed = || {
        let renewed = store.renew(Default::default(), &[mine], S)?;
        match &renewed[0] {
            Outcome::Failed(error) => Err(error.clone()),
            _ => Ok(renewed),
        }
    };
    assert_eq!(patiently(renewed), Ok(vec![Outcome::Renewed]));
    let second = (leads + 1) % 3;
    servers[second].stop();
    let alone = (leads + 2) % 3;
    wait::until("it knows that it is alone", || !servers[alone].is_healthy());
    for _ in 0..4 {
        let free = store.acquire(&claim("y", "a:1"), S);
        assert!(matches!(free, Err(StoreError::Unavailable(_))), "{free:?}");
        assert!(matches!(renewed(), Err(StoreError::Unavailable(_))));
        let checked = store.check(S);
        assert!(
            matches!(checked, Err(StoreError::Unavailable(_))),
            "{checked:?}"
        );
    }
    servers[leads].resume();
    servers[second].resume();
    assert_eq!(patiently(renewed), Ok(vec![Outcome::Renewed]));
    let other = patiently(|| store.acquire(&claim("x", "b:1"), S));
    assert!(matches!(other, Ok(Acquired::Held { .. })), "{other:?}");
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_lock_of_leases_is_held_while_the_leader_is_lost() {
    let mut servers = Server::three();
    let leases = Leases::builder(open(&all_of(&servers)))
        .lease(10 * S)
        .build()
        .unwrap();
    let guard = leases.lock("x").wait().unwrap();
    let leads = leader(&servers);
    servers[leads].kill();
    let renewed = leases.stats().renewed;
    wait::until("it is renewed", || leases.stats().renewed >= renewed + 2);
    assert!(guard.is_held());
    servers[leads].restart();
    held(&open(&servers[leads].url()), &claim("x", "b:1"));
    guard.release().wait().unwrap();
}
