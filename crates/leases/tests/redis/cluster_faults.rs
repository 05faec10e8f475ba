//! What goes wrong in a cluster: data that are lost, old maps, and nodes that hang.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::Waker;
use std::time::{Duration, Instant};

use kit::wait;
use tourbillon_leases::{Claim, LockPaging, Outcome, RedisStore, Secret, StoreError};

use crate::calls::Calls;

use crate::cluster::{cluster, node};
use crate::cluster_url::{
    LATER, LEASE, LIMIT, Move, Woken, acquire, cluster_with_an_empty_node, granted, names_of,
    release, renew, store_at, unavailable, url,
};
use crate::says::Says;

use chaos::servers::redis::{Server, free_port};

/// The time that is left of a wait after a move.
#[track_caller]
fn waits(store: &RedisStore, name: &str) -> Duration {
    let other = Claim::new(name, "b", Secret::new("b"), LEASE);
    match store.acquire(&other, LIMIT) {
        Err(StoreError::Restarted { wait }) => wait,
        other => panic!("{name}: {other:?}"),
    }
}

/// Moves the slot of a name, whose node has lost all data.
fn lose_and_move(name: &str, from: &Server, to: &Server) {
    assert_eq!(from.cli(&["FLUSHALL"]), "OK");
    let moves = Move::begin(name, from, to);
    moves.end();
}

fn epoch(node: &Server) -> String {
    let info = node.cli(&["CLUSTER", "INFO"]);
    let (_, rest) = info.split_once("cluster_my_epoch:").unwrap();
    rest.split(['\\', '\r', '\n']).next().unwrap().to_owned()
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn what_a_slot_lost_before_it_came_is_waited_for_although_the_epoch_stays() {
    let nodes = cluster();
    let store = store_at(&url(&nodes));
    let (held, own) = (names_of(0, 2), names_of(2, 4));
    granted(&store, &own[0]);
    granted(&store, &held[0]);
    // The node that gets the slot has the greatest epoch, and a good marker.
    lose_and_move(&held[0], &nodes[0], &nodes[2]);
    assert_eq!(epoch(&nodes[2]), "3");
    let left = waits(&store, &held[0]);
    assert!(left > LEASE && left <= LEASE + LATER, "{left:?}");
    // Names in its other slots do not wait, not even if more slots come.
    granted(&store, &own[1]);
    wait::until("some of the wait is over", || {
        waits(&store, &held[0]) < left - Duration::from_secs(2)
    });
    // A call that knows no slots keeps what the marker has of them.
    assert_eq!(store.check(LIMIT), Ok(()));
    granted(&store, &own[2]);
    lose_and_move(&held[1], &nodes[0], &nodes[2]);
    assert!(waits(&store, &held[1]) > left - Duration::from_secs(1));
    // Nor does the one before.
    assert!(waits(&store, &held[0]) < left - Duration::from_secs(2));
    granted(&store, &own[3]);
    for name in &held {
        wait::until("it is granted", || acquire(&store, name, LIMIT).is_ok());
    }
    // A slot that goes and comes back.
    let moves = Move::begin(&held[0], &nodes[2], &nodes[1]);
    moves.keys();
    moves.end();
    lose_and_move(&held[0], &nodes[1], &nodes[2]);
    assert_ne!(epoch(&nodes[2]), "3");
    // A store whose map is of before may tell of the old epoch for some seconds.
    let new = store_at(&url(&nodes[2..]));
    let left = waits(&new, &held[0]);
    assert!(left > LEASE, "{left:?}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_reserved_name_in_a_slot_that_moves_is_granted_at_its_old_node_and_not_at_the_new_one() {
    let nodes = cluster();
    let store = store_at(&url(&nodes));
    let (names, own) = (names_of(0, 2), names_of(1, 2));
    granted(&store, &own[0]);
    let marker = nodes[1].cli(&["KEYS", "*:marker"]);
    let marker = marker.split('"').nth(1).unwrap().to_owned();
    let before = nodes[1].cli(&["GET", &marker]);
    for (name, moves_on) in names.iter().zip([false, true]) {
        // A reservation that is longer than any counts for nobody.
        let (lock, token) = (
            format!("tourbillon:{{{name}}}:lock"),
            format!("tourbillon:{{{name}}}:token"),
        );
        nodes[0].cli(&["HSET", &lock, "next", "x", "since", "1"]);
        nodes[0].cli(&["PEXPIRE", &lock, "600000"]);
        nodes[0].cli(&["SET", &token, "5"]);
        let moves = Move::begin(name, &nodes[0], &nodes[1]);
        if moves_on {
            moves.keys();
            unavailable(acquire(&store, name, LIMIT), "TRYAGAIN");
            assert_eq!(nodes[1].cli(&["GET", &marker]), before);
        } else {
            assert!(granted(&store, name) > 5);
            assert_eq!(nodes[0].cli(&["HEXISTS", &lock, "next"]), "(integer) 0");
            release(&store, name);
        }
    }
    granted(&store, &own[1]);
}

#[test]
fn a_map_that_has_grown_old_is_learned_anew_before_it_is_used() {
    // Nothing is held at one node, and all at the other one.
    let (old, new) = (Says::new(1, ":0\r\n"), Says::new(2, ":1\r\n"));
    *new.master.lock().unwrap() = (2, new.port);
    let store = store_at(&format!("redis-cluster://127.0.0.1:{}/", old.port));
    assert_eq!(renew(&store, "x", LIMIT), Outcome::NotHeld);
    let learned = Instant::now();
    *old.master.lock().unwrap() = (2, new.port);
    wait::until("the map is old", || {
        learned.elapsed() > Duration::from_millis(6_100)
    });
    assert_eq!(old.asked.load(SeqCst), 1);
    assert_eq!(renew(&store, "x", LIMIT), Outcome::Renewed);
    // Whoever asks for all nodes learns the map each time.
    for _ in 0..2 {
        let asked = || old.asked.load(SeqCst) + new.asked.load(SeqCst);
        let (before, begun) = (asked(), Instant::now());
        wait::until("a pause is over", || {
            begun.elapsed() > Duration::from_millis(200)
        });
        let listed = store.list("", &LockPaging::first(1), LIMIT);
        assert!(listed.is_err(), "{listed:?}");
        assert!(asked() > before);
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn an_older_map_is_not_believed_because_time_ran_out() {
    let mut nodes = cluster();
    let stale = Says::new(0, ":0\r\n");
    let seed = format!("://127.0.0.1:{},", stale.port);
    let store = store_at(&url(&nodes).replace("://", &seed));
    wait::until("a real map is known", || {
        acquire(&store, "x", LIMIT).is_ok()
    });
    nodes.iter().for_each(Server::stop);
    let before = stale.asked.load(SeqCst);
    let short = Duration::from_millis(200);
    let fails = || {
        let renewed = renew(&store, "x", short);
        assert!(matches!(renewed, Outcome::Failed(_)), "{renewed:?}");
    };
    // The round in which it was asked is over when it is asked again.
    wait::until("it was asked twice", || {
        fails();
        stale.asked.load(SeqCst) >= before + 2
    });
    fails();
    // If no other one is there, it counts.
    nodes.iter_mut().for_each(Server::kill);
    wait::until("the older map is used", || {
        renew(&store, "x", short) == Outcome::NotHeld
    });
}

#[test]
fn a_node_that_does_not_answer_once_is_asked_again() {
    let node = Says::after(1, 1, ":1\r\n");
    let store = store_at(&format!("redis-cluster://127.0.0.1:{}/", node.port));
    let begun = Instant::now();
    assert_eq!(renew(&store, "x", LIMIT), Outcome::Renewed);
    assert!(begun.elapsed() < LIMIT / 3, "{:?}", begun.elapsed());
    assert_eq!(node.asked.load(SeqCst), 2);
}

#[test]
fn a_map_that_takes_longer_than_any_call_is_learned_all_the_same() {
    let node = Says::new(1, ":1\r\n");
    node.is_slow.store(true, SeqCst);
    let store = store_at(&format!("redis-cluster://127.0.0.1:{}/", node.port));
    let short = Duration::from_millis(100);
    assert!(matches!(renew(&store, "x", short), Outcome::Failed(_)));
    wait::until("the map is known", || {
        renew(&store, "x", short) == Outcome::Renewed
    });
    assert_eq!(node.asked.load(SeqCst), 1);
}

#[test]
fn a_node_that_is_down_for_long_is_not_looked_for_all_the_time() {
    let node = Says::new(1, ":1\r\n");
    *node.master.lock().unwrap() = (1, free_port());
    let store = store_at(&format!("redis-cluster://127.0.0.1:{}/", node.port));
    let begun = Instant::now();
    wait::until("some seconds are over", || {
        let renewed = renew(&store, "x", LIMIT);
        assert!(matches!(renewed, Outcome::Failed(_)), "{renewed:?}");
        begun.elapsed() > Duration::from_secs(4)
    });
    // After 0, 0.1, 0.3, 0.7, 1.5 and 3.1 s.
    let asked = node.asked.load(SeqCst);
    assert!((3..=7).contains(&asked), "{asked}");
}

#[test]
fn an_old_map_is_used_while_nobody_tells_another_one() {
    let node = Says::new(1, ":1\r\n");
    let store = store_at(&format!("redis-cluster://127.0.0.1:{}/", node.port));
    let begun = Instant::now();
    let mut calls = 0;
    wait::until("the map is old", || {
        assert_eq!(renew(&store, "x", LIMIT), Outcome::Renewed);
        node.refuses.store(true, SeqCst);
        calls += 1;
        begun.elapsed() > Duration::from_millis(8_500)
    });
    // For calls, and after 0, 3, 3.2, 3.6, 4.4, 6 and perhaps 9 s.
    let accepted = node.accepted.load(SeqCst);
    assert!(calls > 8 && (4..=8).contains(&accepted), "{accepted}");
}

#[test]
fn a_cluster_that_is_not_there_is_not_asked_all_the_time() {
    // It refuses everything, like a server without a cluster.
    let node = Says::new(1, "");
    *node.master.lock().unwrap() = (1, 0);
    let store = store_at(&format!("redis-cluster://127.0.0.1:{}/", node.port));
    let begun = Instant::now();
    let mut calls = 0;
    wait::until("some seconds are over", || {
        unavailable(acquire(&store, "x", LIMIT), "no node serves slot");
        calls += 1;
        begun.elapsed() > Duration::from_secs(4)
    });
    let accepted = node.accepted.load(SeqCst);
    assert!(calls > 7 && accepted <= 7, "{accepted} for {calls}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_server_that_is_no_node_is_not_asked_all_the_time() {
    let plain = Server::start();
    let store = store_at(&url(std::slice::from_ref(&plain)));
    let begun = Instant::now();
    let mut calls = 0;
    wait::until("some seconds are over", || {
        let refused = acquire(&store, "x", LIMIT);
        assert!(
            matches!(refused, Err(StoreError::Refused(_))),
            "{refused:?}"
        );
        calls += 1;
        begun.elapsed() > Duration::from_secs(4)
    });
    let stats = plain.cli(&["INFO", "COMMANDSTATS"]);
    let (_, rest) = stats.split_once("cmdstat_cluster").unwrap();
    let (_, rest) = rest.split_once("calls=").unwrap();
    let asked: u32 = rest.split(',').next().unwrap().parse().unwrap();
    assert!(calls > 14 && asked <= 14, "{asked} for {calls}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn who_waits_hears_of_releases_soon_although_a_node_hangs_or_leaves() {
    let nodes = cluster();
    let watches = |store: &Arc<RedisStore>| {
        let woken = Arc::new(Woken::default());
        let place = store.watch("x", &Waker::from(Arc::clone(&woken))).unwrap();
        wait::until("it has subscribed", || woken.0.load(SeqCst) == 1);
        place
    };
    nodes[0].stop();
    let begun = Instant::now();
    let _first = watches(&store_at(&url(&nodes)));
    let all = begun.elapsed();
    nodes[0].resume();
    assert!(all < Duration::from_millis(2_500), "{all:?}");
    // A node without slots is no place to stay.
    let empty = node();
    let port = empty.port().to_string();
    nodes[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &port]);
    empty.until(&["CLUSTER", "INFO"], "cluster_known_nodes:4");
    empty.until(&["CLUSTER", "INFO"], "cluster_state:ok");
    let store = store_at(&url(std::slice::from_ref(&empty)));
    let _second = watches(&store);
    empty.until(&["PUBSUB", "CHANNELS"], "released");
    granted(&store, "y");
    wait::until("it listens elsewhere", || {
        !empty.cli(&["PUBSUB", "CHANNELS"]).contains("released")
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn slots_of_nobody_are_reported_and_nodes_without_a_marker_are_listed() {
    let (nodes, empty) = cluster_with_an_empty_node();
    let store = store_at(&url(&nodes));
    let names = names_of(0, 2);
    for name in &names {
        granted(&store, name);
    }
    let moves = Move::begin(&names[0], &nodes[0], &empty);
    moves.keys();
    moves.end();
    wait::until("the map has changed", || {
        let listed = store.list("n", &LockPaging::first(9), LIMIT).unwrap();
        listed.locks.len() == 2 && !nodes[0].cli(&["KEYS", "*"]).contains(&names[0])
    });
    wait::until("the new node is known", || {
        matches!(store.check(LIMIT), Err(StoreError::Unavailable(why))
            if why.contains("can have a marker"))
    });
    for node in nodes.iter().chain([&empty]) {
        node.cli(&["CLUSTER", "DELSLOTS", "16383"]);
    }
    wait::until("all nodes know it", || {
        matches!(store.check(LIMIT), Err(StoreError::Unavailable(why))
            if why.contains("no node serves slot 16383"))
    });
    let listed = store.list("n", &LockPaging::first(9), LIMIT);
    unavailable(listed, "no node serves slot 16383");
}
