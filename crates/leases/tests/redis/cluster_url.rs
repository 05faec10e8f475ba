//! The store on a cluster, by a URL of its nodes.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kit::wait;
use tourbillon_leases::{
    Acquired, Claim, Destination, Leases, LockPaging, Outcome, RedisStore, Released, Renewal,
    Secret, StoreError,
};

use crate::calls::Calls;
use crate::cluster::{cluster, node};

use chaos::servers::redis::{Server, free_port};

/// Nothing that answers takes so long.
const LIMIT: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(10);
/// By so much a wait after a failover is longer than the longest lease.
const LATER: Duration = Duration::from_secs(10);

fn url(nodes: &[Server]) -> String {
    let seeds = nodes
        .iter()
        .map(|node| format!("127.0.0.1:{}", node.port()));
    format!("redis-cluster://{}/", seeds.collect::<Vec<_>>().join(","))
}

fn store_at(url: &str) -> Arc<RedisStore> {
    let builder = RedisStore::builder(url).starts_empty().longest_lease(LEASE);
    Arc::new(builder.build().unwrap())
}

fn slot(name: &str) -> u64 {
    let each = RedisStore::builder("redis://h/").destinations(16_384);
    let each = each.build().unwrap();
    Calls::destination(&each, name).get()
}

/// The node of these three that has a name's slot at first.
fn home(name: &str) -> usize {
    match slot(name) {
        ..5_461 => 0,
        5_461..10_923 => 1,
        _ => 2,
    }
}

/// Names whose slots this node has.
fn names_of(node: usize, number: usize) -> Vec<String> {
    let names = (0..).map(|at| format!("n{at}"));
    names
        .filter(|name| home(name) == node)
        .take(number)
        .collect()
}

fn acquire(store: &RedisStore, name: &str, limit: Duration) -> Result<Acquired, StoreError> {
    store.acquire(&Claim::new(name, "a", Secret::new("a"), LEASE), limit)
}

fn renew(store: &RedisStore, name: &str, limit: Duration) -> Outcome {
    let renewal = [Renewal::new(name, Secret::new("a"), LEASE)];
    let to = Calls::destination(store, name);
    match store.renew(to, &renewal, limit) {
        Ok(mut outcomes) => outcomes.remove(0),
        Err(error) => Outcome::Failed(error),
    }
}

fn release(store: &RedisStore, name: &str) {
    let released = store.release(name, Secret::new("a"), LIMIT);
    assert_eq!(released, Ok(Released::Released), "{name}");
}

#[track_caller]
fn granted(store: &RedisStore, name: &str) -> u64 {
    match acquire(store, name, LIMIT) {
        Ok(Acquired::Granted { token }) => token,
        other => panic!("{name}: {other:?}"),
    }
}

#[track_caller]
fn unavailable<T: std::fmt::Debug>(answer: Result<T, StoreError>, words: &str) {
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
        assert!(marker.ends_with(&format!(" {epoch}\"")), "{marker}");
    }
    assert_eq!(store.check(LIMIT), Ok(()));
}
