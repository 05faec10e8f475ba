//! The store on a cluster, by a URL of its nodes.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, LazyLock};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use kit::wait;
use tourbillon_leases::{
    Acquired, Claim, Destination, Leases, LockPaging, Outcome, RedisStore, Released, Renewal,
    Secret, StoreError,
};

use crate::calls::Calls;
use crate::cluster::{cluster, node};
use crate::says::Says;

use chaos::servers::redis::{Server, free_port};

/// Nothing that answers takes so long.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const LEASE: Duration = Duration::from_secs(10);
/// By so much a wait after a failover is longer than the longest lease.
pub(crate) const LATER: Duration = Duration::from_secs(10);

pub(crate) fn url(nodes: &[Server]) -> String {
    let seeds = nodes
        .iter()
        .map(|node| format!("127.0.0.1:{}", node.port()));
    format!("redis-cluster://{}/", seeds.collect::<Vec<_>>().join(","))
}

pub(crate) fn store_at(url: &str) -> Arc<RedisStore> {
    let builder = RedisStore::builder(url).starts_empty().longest_lease(LEASE);
    Arc::new(builder.build().unwrap())
}

fn slot(name: &str) -> u64 {
    // It takes long to make, longer than a lease when the machine is busy.
    static EACH: LazyLock<RedisStore> = LazyLock::new(|| {
        let each = RedisStore::builder("redis://h/").destinations(16_384);
        each.build().unwrap()
    });
    Calls::destination(&*EACH, name).get()
}

/// The slots of each node.
const SLOTS: [(u16, u16); 3] = [(0, 5_460), (5_461, 10_922), (10_923, 16_383)];

/// The node of these three that has a name's slot at first.
pub(crate) fn home(name: &str) -> usize {
    match slot(name) {
        ..5_461 => 0,
        5_461..10_923 => 1,
        _ => 2,
    }
}

/// Names whose slots this node has.
pub(crate) fn names_of(node: usize, number: usize) -> Vec<String> {
    let names = (0..).map(|at| format!("n{at}"));
    names
        .filter(|name| home(name) == node)
        .take(number)
        .collect()
}

pub(crate) fn acquire(
    store: &RedisStore,
    name: &str,
    limit: Duration,
) -> Result<Acquired, StoreError> {
    store.acquire(&Claim::new(name, "a", Secret::new("a"), LEASE), limit)
}

pub(crate) fn renew(store: &RedisStore, name: &str, limit: Duration) -> Outcome {
    let renewal = [Renewal::new(name, Secret::new("a"), LEASE)];
    let to = Calls::destination(store, name);
    match store.renew(to, &renewal, limit) {
        Ok(mut outcomes) => outcomes.remove(0),
        Err(error) => Outcome::Failed(error),
    }
}

pub(crate) fn release(store: &RedisStore, name: &str) {
    let released = store.release(name, Secret::new("a"), LIMIT);
    assert_eq!(released, Ok(Released::Released), "{name}");
}

#[track_caller]
pub(crate) fn granted(store: &RedisStore, name: &str) -> u64 {
    match acquire(store, name, LIMIT) {
        Ok(Acquired::Granted { token, .. }) => token,
        other => panic!("{name}: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn unavailable<T: std::fmt::Debug>(answer: Result<T, StoreError>, words: &str) {
    match answer {
        Err(StoreError::Unavailable(why)) if why.contains(words) => {}
        other => panic!("{words}: {other:?}"),
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn names_of_all_nodes_are_locked_renewed_listed_and_released() {
    let nodes = cluster();
    let store = store_at(&url(&nodes[1..2]));
    assert_eq!(store.check(LIMIT), Ok(()));
    let names: Vec<String> = (0..300).map(|at| format!("n{at:03}")).collect();
    let mut tokens = BTreeMap::new();
    for name in &names {
        tokens.insert(name, granted(&store, name));
        let other = Claim::new(name, "b", Secret::new("b"), LEASE);
        let held = store.acquire(&other, LIMIT);
        assert!(matches!(held, Ok(Acquired::Held { .. })), "{held:?}");
    }
    for node in &nodes {
        assert_ne!(node.cli(&["DBSIZE"]), "(integer) 0");
        assert_eq!(node.cli(&["SCRIPT", "FLUSH"]), "OK");
    }
    // A batch with names of all nodes, which a destination at a border has.
    let batch: Vec<_> = names
        .iter()
        .map(|name| Renewal::new(name, Secret::new("a"), LEASE))
        .collect();
    let renewed = store.renew(Destination::default(), &batch, LIMIT);
    assert_eq!(renewed, Ok(vec![Outcome::Renewed; names.len()]));
    let holder = store.holder_of(&names[7], LIMIT).unwrap().unwrap();
    assert_eq!((&*holder.owner, holder.token), ("a", tokens[&names[7]]));
    let (mut paging, mut listed) = (LockPaging::first(70), Vec::new());
    loop {
        let page = store.list("n", &paging, LIMIT).unwrap();
        listed.extend(page.locks.into_iter().map(|lock| lock.name));
        match page.next {
            Some(next) => paging = next,
            None => break,
        }
    }
    listed.sort();
    assert_eq!(listed, names);
    for name in &names {
        release(&store, name);
        assert!(granted(&store, name) > tokens[name]);
    }
    // Each node has one marker, with its epoch.
    for (node, epoch) in nodes.iter().zip(1..) {
        let marker = node.cli(&["KEYS", "*:marker"]);
        assert_eq!(marker.lines().count(), 1, "{marker}");
        let key = marker.split('"').nth(1).unwrap();
        let marker = node.cli(&["GET", key]);
        let (first, last) = SLOTS[epoch - 1];
        assert!(
            marker.ends_with(&format!(" {epoch} {first}-{last}\"")),
            "{marker}"
        );
    }
    assert_eq!(store.check(LIMIT), Ok(()));
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn several_locks_of_all_nodes_are_taken_together_and_kept_and_their_releases_are_heard() {
    let nodes = cluster();
    let leases = |nodes| {
        let leases = Leases::builder(store_at(&url(nodes))).lease(LEASE);
        leases.build().unwrap()
    };
    let (first, second) = (leases(&nodes[..]), leases(&nodes[2..]));
    let names: Vec<String> = (0..3).flat_map(|node| names_of(node, 3)).collect();
    let guards = first.lock_all(&names).wait().unwrap();
    assert!(guards.iter().all(|guard| guard.is_held()));
    let tried = second
        .lock_all(&names)
        .within(Duration::from_millis(50))
        .wait();
    assert!(tried.is_err(), "{tried:?}");
    for released in first.release_many(guards).wait() {
        released.unwrap();
    }
    assert_eq!(second.lock_all(&names).wait().unwrap().len(), names.len());
}

/// A replica of the first node of a cluster, in step with it.
pub(crate) fn replica_of(nodes: &[Server; 3]) -> Server {
    let node_of = &nodes[0];
    let (replica, master) = (node(), id(node_of));
    node_of.cli(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    node_of.cli(&["CLUSTER", "MEET", "127.0.0.1", &replica.port().to_string()]);
    // Then it knows all masters.
    replica.until(&["CLUSTER", "INFO"], "cluster_state:ok");
    replica.until(&["CLUSTER", "REPLICATE", &master], "OK");
    replica.until(&["INFO", "replication"], "master_link_status:up");
    for node in nodes {
        node.until(&["CLUSTER", "NODES"], &format!(" slave {master}"));
    }
    replica
}

/// A cluster, and one more node of it, which serves no slots.
pub(crate) fn cluster_with_an_empty_node() -> ([Server; 3], Server) {
    let (nodes, empty) = (cluster(), node());
    let port = empty.port().to_string();
    nodes[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &port]);
    empty.until(&["CLUSTER", "INFO"], "cluster_known_nodes:4");
    empty.until(&["CLUSTER", "INFO"], "cluster_state:ok");
    nodes[0].until(&["CLUSTER", "NODES"], &id(&empty));
    (nodes, empty)
}

/// The identity of a node.
pub(crate) fn id(node: &Server) -> String {
    node.cli(&["CLUSTER", "MYID"]).trim_matches('"').to_owned()
}

/// Moves a slot in steps, as `redis-cli --cluster reshard` does.
pub(crate) struct Move<'a> {
    slot: String,
    from: &'a Server,
    to: &'a Server,
}

impl<'a> Move<'a> {
    pub(crate) fn begin(name: &str, from: &'a Server, to: &'a Server) -> Self {
        let slot = slot(name).to_string();
        let (source, target) = (id(from), id(to));
        to.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]);
        from.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]);
        Move { slot, from, to }
    }

    /// Moves all keys.
    pub(crate) fn keys(&self) {
        let keys = self
            .from
            .cli(&["CLUSTER", "GETKEYSINSLOT", &self.slot, "100"]);
        let port = self.to.port().to_string();
        for key in keys.lines().filter_map(|line| line.split('"').nth(1)) {
            let moved = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
            // A node without slots of its own may not know yet that all slots are served.
            self.from.until(&moved, "OK");
        }
    }

    pub(crate) fn end(self) {
        let target = id(self.to);
        for node in [self.to, self.from] {
            let ended = node.cli(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &target]);
            assert_eq!(ended, "OK");
        }
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn renewals_follow_a_slot_that_moves() {
    let (nodes, empty) = cluster_with_an_empty_node();
    let store = store_at(&url(&nodes));
    // To a node that serves slots, and to one that has none yet.
    for (to, name) in [&nodes[2], &empty].into_iter().zip(names_of(0, 2)) {
        let key = format!("tourbillon:{{{name}}}:lock");
        to.until(&["CLUSTER", "NODES"], &id(&nodes[0]));
        let token = granted(&store, &name);
        let moves = Move::begin(&name, &nodes[0], to);
        assert_eq!(renew(&store, &name, LIMIT), Outcome::Renewed);
        moves.keys();
        let gone = nodes[0].cli(&["EXISTS", &key]);
        assert!(gone.starts_with("(error) ASK"), "{gone}");
        for _ in 0..3 {
            assert_eq!(renew(&store, &name, LIMIT), Outcome::Renewed);
        }
        let holder = store.holder_of(&name, LIMIT).unwrap().unwrap();
        assert_eq!(holder.token, token);
        moves.end();
        for _ in 0..3 {
            assert_eq!(renew(&store, &name, LIMIT), Outcome::Renewed);
        }
        // A batch whose other names stay.
        let other = &names_of(1, 1)[0];
        granted(&store, other);
        let batch = [&name, other].map(|name| Renewal::new(name, Secret::new("a"), LEASE));
        let renewed = store.renew(Destination::default(), &batch, LIMIT);
        assert_eq!(renewed, Ok(vec![Outcome::Renewed; 2]));
        release(&store, &name);
        assert_eq!(to.cli(&["EXISTS", &key]), "(integer) 0");
        release(&store, other);
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_free_name_whose_slot_moves_is_granted_after_the_move_and_the_wait() {
    let nodes = cluster();
    let store = store_at(&url(&nodes));
    let name = &names_of(0, 1)[0];
    granted(&store, &names_of(1, 1)[0]);
    let moves = Move::begin(name, &nodes[0], &nodes[1]);
    unavailable(acquire(&store, name, LIMIT), "TRYAGAIN");
    moves.end();
    // The node has a new epoch: what it took over may have lost something just before.
    let waits = acquire(&store, name, LIMIT);
    let Err(StoreError::Restarted { wait: left }) = waits else {
        panic!("{waits:?}");
    };
    assert!(left > LEASE && left <= LEASE + LATER, "{left:?}");
    wait::until("it is granted", || acquire(&store, name, LIMIT).is_ok());
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_node_that_is_killed_fails_its_own_names_and_waits_after_its_restart() {
    let mut nodes = cluster();
    let store = store_at(&url(&nodes));
    let names: Vec<_> = (0..3).map(|node| names_of(node, 1).remove(0)).collect();
    for name in &names {
        granted(&store, name);
    }
    nodes[1].kill();
    let batch: Vec<_> = names
        .iter()
        .map(|name| Renewal::new(name, Secret::new("a"), LEASE))
        .collect();
    let renewed = store.renew(Destination::default(), &batch, LIMIT).unwrap();
    assert_eq!(renewed[0], Outcome::Renewed);
    assert!(matches!(&renewed[1], Outcome::Failed(error) if error.may_pass()));
    assert_eq!(renewed[2], Outcome::Renewed);
    assert!(matches!(
        store.check(LIMIT),
        Err(StoreError::Unavailable(_))
    ));
    nodes[1].restart();
    let start = Instant::now();
    // It has lost its locks, and its marker. Only a store that takes that for a loss waits.
    let careful = RedisStore::builder(&url(&nodes)).longest_lease(LEASE);
    let careful = careful.build().unwrap();
    wait::until("it serves its slots", || {
        match acquire(&careful, &names[1], LIMIT) {
            Err(StoreError::Emptied { wait, .. }) => {
                assert!(wait <= LEASE + LATER, "{wait:?}");
                true
            }
            Err(StoreError::Unavailable(_)) => false,
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(renew(&store, &names[1], LIMIT), Outcome::NotHeld);
    for name in [&names[0], &names[2]] {
        assert_eq!(renew(&store, name, LIMIT), Outcome::Renewed);
        release(&store, name);
        granted(&careful, name);
    }
    wait::until("it grants again", || {
        acquire(&careful, &names[1], LIMIT).is_ok()
    });
    assert!(start.elapsed() >= LEASE, "{:?}", start.elapsed());
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_node_that_hangs_delays_no_names_of_the_others() {
    let nodes = cluster();
    let store = store_at(&url(&nodes));
    let names: Vec<_> = (0..3).map(|node| names_of(node, 1).remove(0)).collect();
    for name in &names {
        granted(&store, name);
    }
    let short = Duration::from_millis(300);
    nodes[0].stop();
    let batch: Vec<_> = names
        .iter()
        .map(|name| Renewal::new(name, Secret::new("a"), LEASE))
        .collect();
    for _ in 0..3 {
        let begun = Instant::now();
        let renewed = store.renew(Destination::default(), &batch, short).unwrap();
        assert!(matches!(&renewed[0], Outcome::Failed(error) if error.may_pass()));
        assert_eq!(renewed[1..], [Outcome::Renewed, Outcome::Renewed]);
        // Alone they wait for nobody, not even for a part of this limit.
        assert_eq!(renew(&store, &names[1], LIMIT), Outcome::Renewed);
        release(&store, &names[2]);
        granted(&store, &names[2]);
        let all = begun.elapsed();
        assert!(all < Duration::from_secs(2), "{all:?}");
    }
    // Somebody new finds the map all the same.
    let (new, begun) = (store_at(&url(&nodes)), Instant::now());
    assert_eq!(renew(&new, &names[1], LIMIT), Outcome::Renewed);
    let all = begun.elapsed();
    assert!(all < Duration::from_secs(2), "{all:?}");
    nodes[0].resume();
    assert_eq!(renew(&store, &names[0], LIMIT), Outcome::Renewed);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_replica_that_is_promoted_is_renewed_at_and_grants_after_the_wait() {
    let nodes = cluster();
    let replica = replica_of(&nodes);
    let store = store_at(&url(&nodes));
    let names = names_of(0, 2);
    granted(&store, &names[0]);
    let leases = Leases::builder(Arc::clone(&store))
        .lease(LEASE)
        .build()
        .unwrap();
    let kept = &names_of(0, 3)[2];
    let guard = leases.lock(kept).wait().unwrap();
    let key = format!("tourbillon:{{{kept}}}:lock");
    wait::until("it is replicated", || {
        replica.cli(&["DBSIZE"]) == nodes[0].cli(&["DBSIZE"])
    });
    // The masters may not agree at once. After 5 s the attempt is over, and the master goes on.
    let mut begun = None;
    wait::until("it is promoted", || {
        if begun.is_none_or(|begun: Instant| begun.elapsed() > Duration::from_secs(6)) {
            replica.cli(&["CLUSTER", "FAILOVER"]);
            begun = Some(Instant::now());
        }
        // What holds the lock meanwhile. An attempt stops the master.
        let _ = renew(&store, &names[0], Duration::from_secs(1));
        replica.cli(&["ROLE"]).contains("\"master\"")
    });
    assert_eq!(renew(&store, &names[0], LIMIT), Outcome::Renewed);
    assert_eq!(replica.cli(&["EXISTS", &key]), "(integer) 1");
    let waits = acquire(&store, &names[1], LIMIT);
    let Err(StoreError::Restarted { wait: left }) = waits else {
        panic!("{waits:?}");
    };
    assert!(left > LEASE && left <= LEASE + LATER, "{left:?}");
    let before = leases.stats().renewed;
    wait::until("the lock is kept there", || leases.stats().renewed > before);
    assert!(guard.is_held());
    // The node that is no master any more loses its connections. One is that of the question.
    wait::until("its connections are closed", || {
        let clients = nodes[0].cli(&["CLIENT", "LIST", "TYPE", "NORMAL"]);
        clients.matches(" cmd=").count() == 1
    });
    // The others do not wait.
    granted(&store, &names_of(1, 1)[0]);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_seed_that_is_gone_or_hangs_keeps_nobody_from_the_cluster() {
    let nodes = cluster();
    let hangs = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let silent = hangs.local_addr().unwrap().port();
    let (gone, port) = (free_port(), nodes[1].port());
    let at = |ports: &[u16]| {
        let seeds = ports.iter().map(|port| format!("127.0.0.1:{port}"));
        let seeds = seeds.collect::<Vec<_>>().join(",");
        store_at(&format!("redis-cluster://{seeds}/"))
    };
    for seeds in [[gone, port], [silent, port], [port, gone]] {
        let store = at(&seeds);
        let name = &names_of(2, 1)[0];
        granted(&store, name);
        release(&store, name);
    }
    unavailable(at(&[gone]).check(LIMIT), &format!("127.0.0.1:{gone}"));
    let short = Duration::from_millis(200);
    unavailable(at(&[gone, silent]).check(short), "the cluster of");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn what_is_no_cluster_or_has_not_all_slots_is_said() {
    let plain = Server::start();
    let store = store_at(&url(std::slice::from_ref(&plain)));
    for answer in [store.check(LIMIT), acquire(&store, "x", LIMIT).map(|_| ())] {
        let Err(StoreError::Refused(why)) = answer else {
            panic!("{answer:?}");
        };
        assert!(why.contains("no node of a cluster"), "{why}");
        assert!(why.contains("redis://"), "{why}");
    }
    let alone = node();
    let store = store_at(&url(std::slice::from_ref(&alone)));
    unavailable(store.check(LIMIT), "no node serves slot 0");
    unavailable(acquire(&store, "x", LIMIT), "no node serves slot");
    // The slot of this name can have no marker, as 15 of 16.
    let name = &names_of(1, 1)[0];
    alone.cli(&["CLUSTER", "ADDSLOTS", &slot(name).to_string()]);
    wait::until("the map has changed", || {
        matches!(&acquire(&store, name, LIMIT), Err(StoreError::Unavailable(why))
            if why.contains("can have a marker"))
    });
    unavailable(store.check(LIMIT), "no node serves slot 0");
    alone.cli(&["ACL", "SETUSER", "default", "resetpass", ">s3cret"]);
    let new = store_at(&url(std::slice::from_ref(&alone)));
    let Err(StoreError::Refused(why)) = new.check(LIMIT) else {
        panic!("{new:?}");
    };
    assert!(why.contains("NOAUTH"), "{why}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_master_that_stands_still_is_left_for_the_replica_that_takes_over() {
    let nodes = cluster();
    let replica = replica_of(&nodes);
    let store = store_at(&url(&nodes));
    let name = &names_of(0, 1)[0];
    granted(&store, name);
    replica.until(&["EXISTS", "x"], "MOVED");
    wait::until("it is replicated", || {
        replica.cli(&["DBSIZE"]) == nodes[0].cli(&["DBSIZE"])
    });
    nodes[0].stop();
    assert_eq!(replica.cli(&["CLUSTER", "FAILOVER", "TAKEOVER"]), "OK");
    let short = Duration::from_millis(300);
    wait::until("renewals have moved", || {
        renew(&store, name, short) == Outcome::Renewed
    });
    // The epoch of the node has grown, although its marker is that of the old master.
    let other = &names_of(0, 2)[1];
    let waits = acquire(&store, other, LIMIT);
    assert!(
        matches!(waits, Err(StoreError::Restarted { .. })),
        "{waits:?}"
    );
    nodes[0].resume();
    assert_eq!(renew(&store, name, LIMIT), Outcome::Renewed);
}

#[derive(Default)]
pub(crate) struct Woken(pub(crate) AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_release_at_one_node_is_heard_at_another_and_after_the_end_of_that_one() {
    let mut nodes = cluster();
    let (releases, waits) = (store_at(&url(&nodes[1..2])), store_at(&url(&nodes[2..])));
    let name = &names_of(1, 1)[0];
    granted(&releases, name);
    let woken = Arc::new(Woken::default());
    let place = waits.watch(name, &Waker::from(Arc::clone(&woken))).unwrap();
    let times = || woken.0.load(SeqCst);
    let is_heard = |before: usize| {
        place.looks();
        let claim = Claim::new(name, "b", Secret::new("b"), LEASE).waiting();
        let held = waits.acquire(&claim, LIMIT);
        assert!(matches!(held, Ok(Acquired::Held { .. })), "{held:?}");
        release(&releases, name);
        wait::until("the release is heard", || times() > before);
        granted(&releases, name);
    };
    // A subscription wakes, too.
    wait::until("it has subscribed", || times() == 1);
    is_heard(1);
    let hears = |node: &Server| node.cli(&["PUBSUB", "CHANNELS"]).contains("released");
    // At the first node of its URL, which is not that of the name.
    assert!(hears(&nodes[2]) && !hears(&nodes[1]));
    let before = times();
    place.looks();
    nodes[2].kill();
    wait::until("it has subscribed elsewhere", || times() > before);
    is_heard(times());
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_node_whose_marker_moves_away_has_another_one() {
    let nodes = cluster();
    let careful = RedisStore::builder(&url(&nodes)).longest_lease(LEASE);
    let (careful, store) = (careful.build().unwrap(), store_at(&url(&nodes)));
    let names = names_of(1, 3);
    granted(&store, &names[0]);
    let marker = nodes[1].cli(&["KEYS", "*:marker"]);
    let tag = marker.split(['{', '}']).nth(1).unwrap();
    assert_eq!(home(tag), 1);
    let moves = Move::begin(tag, &nodes[1], &nodes[2]);
    granted(&store, &names[1]);
    moves.keys();
    // Its key is away, and its slot not yet.
    unavailable(acquire(&store, &names[2], LIMIT), "do not agree yet");
    assert_eq!(renew(&store, &names[1], LIMIT), Outcome::Renewed);
    let listed = store.list("n", &LockPaging::first(9), LIMIT).unwrap();
    assert_eq!(listed.locks.len(), 2, "{listed:?}");
    moves.end();
    // It looks like a node that has lost its data.
    let waits = acquire(&careful, &names[2], LIMIT);
    assert!(
        matches!(waits, Err(StoreError::Emptied { .. })),
        "{waits:?}"
    );
    let other = nodes[1].cli(&["KEYS", "*:marker"]);
    assert!(other.contains(":marker") && other != marker, "{other}");
    // Now the wait goes on for those, too, who take an empty server for no loss.
    let waits = acquire(&store, &names[2], LIMIT);
    assert!(
        matches!(waits, Err(StoreError::Emptied { .. })),
        "{waits:?}"
    );
    assert!(matches!(
        store.check(LIMIT),
        Err(StoreError::Emptied { .. } | StoreError::Restarted { .. })
    ));
    for name in &names[..2] {
        assert_eq!(renew(&store, name, LIMIT), Outcome::Renewed);
    }
}

#[test]
fn nodes_that_send_a_call_in_a_circle_are_left_after_some_time() {
    let node = Says::new(1, "-MOVED 1 :own\r\n");
    let store = store_at(&format!("redis-cluster://127.0.0.1:{}/", node.port));
    let begun = Instant::now();
    unavailable(acquire(&store, "x", LIMIT), "do not agree yet");
    // Once to have a map, and once for each time that it was sent away.
    let asked = node.asked.load(SeqCst);
    assert!((2..=7).contains(&asked), "{asked}");
    assert!(begun.elapsed() < LIMIT / 4, "{:?}", begun.elapsed());
    let renewed = renew(&store, "x", Duration::from_millis(50));
    let Outcome::Failed(StoreError::Unavailable(_)) = renewed else {
        panic!("{renewed:?}");
    };
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_node_that_knows_only_of_older_failovers_is_not_believed() {
    let nodes = cluster();
    // Nothing is held there.
    let stale = Says::new(0, ":0\r\n");
    let seed = format!("://127.0.0.1:{},", stale.port);
    let store = store_at(&url(&nodes).replace("://", &seed));
    // If it was asked first, its map counts until somebody asks again.
    wait::until("a real map is known", || {
        acquire(&store, "x", LIMIT).is_ok()
    });
    let before = stale.asked.load(SeqCst);
    wait::until("it was asked again", || {
        assert_eq!(renew(&store, "x", LIMIT), Outcome::Renewed);
        stale.asked.load(SeqCst) > before
    });
    for _ in 0..100 {
        assert_eq!(renew(&store, "x", LIMIT), Outcome::Renewed);
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn the_rights_that_are_documented_are_enough() {
    let nodes = cluster();
    let source = include_str!("../../src/redis/mod.rs");
    let documented = |from: &str| -> Vec<String> {
        let (_, rights) = source.split_once(from).unwrap();
        let rights = rights.split('`').next().unwrap().replace("///", "");
        rights.split_whitespace().map(str::to_owned).collect()
    };
    let rights = [
        documented("A user of the server needs\n/// `"),
        documented("the rights below and\n/// `"),
    ];
    let rights = rights.concat();
    assert!(rights.len() > 20, "{rights:?}");
    for node in &nodes {
        let user = ["ACL", "SETUSER", "locks", "on", ">s3cret"];
        let rights: Vec<_> = rights.iter().map(String::as_str).collect();
        assert_eq!(node.cli(&[&user[..], &rights].concat()), "OK");
        node.cli(&["ACL", "SETUSER", "default", "off"]);
    }
    let store = store_at(&url(&nodes).replace("://", "://locks:s3cret@"));
    assert_eq!(store.check(LIMIT), Ok(()));
    for name in (0..3).map(|node| names_of(node, 1).remove(0)) {
        granted(&store, &name);
        assert_eq!(renew(&store, &name, LIMIT), Outcome::Renewed);
        release(&store, &name);
    }
    assert_eq!(
        store
            .list("", &LockPaging::first(9), LIMIT)
            .unwrap()
            .locks
            .len(),
        0
    );
}
