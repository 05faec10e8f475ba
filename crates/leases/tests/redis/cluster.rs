//! The store before a proxy that hides a cluster: it answers as one server, and sends each command
//! to the node that has its key.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use kit::wait;
use redis::{Connection, Parser, Value};
use tourbillon_leases::{
    Acquired, Claim, Destination, Leases, LockPaging, Outcome, RedisStore, Released, Renewal,
    Secret, StoreError,
};

use crate::calls::Calls;

use chaos::servers::redis::Server;

const LIMIT: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(30);
/// The first slot of each node.
const FIRST: [u16; 3] = [0, 5_461, 10_923];

/// Three nodes that know each other. A node that is gone takes only its own slots with it.
pub(crate) fn cluster() -> [Server; 3] {
    let nodes = FIRST.map(|_| node());
    for (node, server) in nodes.iter().enumerate() {
        let epoch = (node + 1).to_string();
        server.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
        let last = FIRST.get(node + 1).map_or(16_383, |next| next - 1);
        let range = [FIRST[node], last].map(|slot| slot.to_string());
        server.cli(&["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]]);
        let port = server.port().to_string();
        nodes[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &port]);
    }
    wait::until("the nodes know each other", || {
        let states = nodes.each_ref().map(|node| node.cli(&["CLUSTER", "INFO"]));
        let ready = |state: &String| {
            state.contains("cluster_state:ok") && state.contains("cluster_known_nodes:3")
        };
        // The epoch of another node comes later than the node.
        let epochs = |node: &Server| {
            let nodes = node.cli(&["CLUSTER", "NODES"]);
            (1..=3).all(|epoch| nodes.contains(&format!(" {epoch} connected")))
        };
        states.iter().all(ready) && nodes.iter().all(epochs)
    });
    nodes
}

/// A node that knows no other one.
pub(crate) fn node() -> Server {
    let whole = ["--cluster-require-full-coverage", "no"];
    Server::with(&[&["--save", "", "--cluster-enabled", "yes"], &whole[..]].concat())
}

/// Hides these nodes behind a port. Its threads end with their connections, the one that accepts
/// with the program.
fn hidden(nodes: &[Server; 3]) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    let ports = nodes.each_ref().map(Server::port);
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || serve(client, ports));
        }
    });
    port
}

fn serve(mut client: TcpStream, ports: [u16; 3]) -> Option<()> {
    let mut nodes: Vec<Connection> = Vec::new();
    for port in ports {
        let node = redis::Client::open(("127.0.0.1", port)).ok()?;
        nodes.push(node.get_connection().ok()?);
    }
    let mut parser = Parser::new();
    let mut answer = Vec::new();
    loop {
        let Ok(Value::Array(words)) = parser.parse_value(&mut client) else {
            return None;
        };
        let words: Vec<Vec<u8>> = words
            .into_iter()
            .map(|word| redis::from_redis_value(word).expect("commands are lists of strings"))
            .collect();
        answer.clear();
        match keys(&words) {
            Some([]) | None => answer.extend_from_slice(b"-ERR unknown command\r\n"),
            Some([key, others @ ..]) => {
                let mut slot = |key: &Vec<u8>| {
                    let mut slot = redis::cmd("CLUSTER");
                    slot.arg("KEYSLOT").arg(key);
                    slot.query::<u16>(&mut nodes[0]).expect("a node answers")
                };
                let first = slot(key);
                if others.iter().all(|key| slot(key) == first) {
                    let node = FIRST
                        .iter()
                        .rposition(|&from| from <= first)
                        .expect("from 0");
                    let node = &mut nodes[node];
                    node.send_packed_command(&redis::pack_command(&words))
                        .ok()?;
                    encode(&node.recv_response().ok()?, &mut answer);
                } else {
                    answer.extend_from_slice(b"-CROSSSLOT not in one slot\r\n");
                }
            }
        }
        client.write_all(&answer).ok()?;
    }
}

/// The keys of a call of a script, which is all that this proxy lets through.
fn keys(words: &[Vec<u8>]) -> Option<&[Vec<u8>]> {
    if !matches!(&words[0][..], b"EVALSHA" | b"EVAL") {
        return None;
    }
    let number: usize = std::str::from_utf8(words.get(2)?).ok()?.parse().ok()?;
    words.get(3..3 + number)
}

fn encode(value: &Value, to: &mut Vec<u8>) {
    match value {
        Value::Int(number) => to.extend_from_slice(format!(":{number}\r\n").as_bytes()),
        Value::Array(parts) => {
            to.extend_from_slice(format!("*{}\r\n", parts.len()).as_bytes());
            parts.iter().for_each(|part| encode(part, to));
        }
        Value::ServerError(error) => {
            let (code, details) = (error.code(), error.details().unwrap_or_default());
            to.extend_from_slice(format!("-{code} {details}\r\n").as_bytes());
        }
        Value::BulkString(bytes) => {
            to.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
            to.extend_from_slice(bytes);
            to.extend_from_slice(b"\r\n");
        }
        other => panic!("no script answers with this: {other:?}"),
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn one_node_of_a_cluster_is_refused_for_each_name() {
    let nodes = cluster();
    for node in &nodes {
        // Also for a name whose slot it has.
        for name in ["a", "b", "c", "d", "e", "f"] {
            let store = RedisStore::builder(&node.url()).durable().build().unwrap();
            let refused = store.acquire(&Claim::new(name, "a:1", Secret::new("a:1"), LEASE), LIMIT);
            let Err(StoreError::Refused(said)) = refused else {
                panic!("{refused:?}");
            };
            for word in [
                "MOVED",
                "one node of a cluster",
                "redis-cluster://",
                "proxy",
            ] {
                assert!(said.contains(word), "{said}");
            }
        }
        let store = RedisStore::open(&node.url()).unwrap();
        assert!(matches!(store.check(LIMIT), Err(StoreError::Refused(_))));
        assert_eq!(node.cli(&["KEYS", "*:lock"]).trim(), "(empty array)");
    }
    // A cluster of one node sends nobody away.
    let alone = Server::with(&["--save", "", "--cluster-enabled", "yes"]);
    let store = RedisStore::builder(&alone.url()).durable().build().unwrap();
    let ask = || store.acquire(&Claim::new("a", "a:1", Secret::new("a:1"), LEASE), LIMIT);
    // Nor one that has no slots yet, which may pass.
    let unready = ask();
    assert!(
        matches!(unready, Err(StoreError::Unavailable(_))),
        "{unready:?}"
    );
    alone.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    wait::until("it has its slots", || ask().is_ok());
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn r16_r30_a_proxy_that_hides_a_cluster_is_like_one_server() {
    let nodes = cluster();
    let url = format!("redis://127.0.0.1:{}/", hidden(&nodes));
    // Each node asks for its own uptime.
    let store = RedisStore::builder(&url)
        .longest_lease(LEASE)
        .durable()
        .build()
        .unwrap();
    let guarded = RedisStore::builder(&url).longest_lease(Duration::from_millis(1));
    let guarded = guarded.build().unwrap();
    let names: Vec<String> = (0..101).map(|at| format!("{{orders}}/{at}")).collect();
    for name in &names {
        let claim = Claim::new(name, "g:1", Secret::new("g:1"), Duration::from_millis(1));
        wait::until("all nodes grant", || match guarded.acquire(&claim, LIMIT) {
            Ok(Acquired::Granted { .. }) => true,
            Err(StoreError::Restarted { .. } | StoreError::Emptied { .. })
            | Ok(Acquired::Held { .. }) => false,
            other => panic!("{other:?}"),
        });
    }
    let mut tokens = BTreeMap::new();
    for name in &names {
        let claim = Claim::new(name, "a:1", Secret::new("a:1"), LEASE);
        wait::until("the short lease is over", || {
            match store.acquire(&claim, LIMIT) {
                Ok(Acquired::Granted { token, .. }) => tokens.insert(name, token).is_none(),
                Ok(Acquired::Held { .. }) => false,
                other => panic!("{other:?}"),
            }
        });
    }
    for node in &nodes {
        assert_ne!(node.cli(&["DBSIZE"]), "(integer) 0", "each node has some");
    }
    let batch: Vec<_> = names
        .iter()
        .map(|name| Renewal::new(name, Secret::new("a:1"), LEASE))
        .collect();
    let renew = || store.renew(Destination::default(), &batch, LIMIT);
    assert_eq!(renew(), Ok(vec![Outcome::Renewed; names.len()]));
    // One of them forgets the scripts: those of its names are sent again, to that node.
    nodes[1].cli(&["SCRIPT", "FLUSH"]);
    assert_eq!(renew(), Ok(vec![Outcome::Renewed; names.len()]));
    for name in &names {
        assert_eq!(
            store.release(name, Secret::new("a:1"), LIMIT),
            Ok(Released::Released)
        );
        let again = store.acquire(&Claim::new(name, "a:2", Secret::new("a:2"), LEASE), LIMIT);
        let Ok(Acquired::Granted { token, .. }) = again else {
            panic!("{name}: {again:?}");
        };
        assert!(token > tokens[name]);
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn of_a_cluster_only_the_node_that_lost_its_data_grants_nothing_for_a_while() {
    let nodes = cluster();
    let url = format!("redis://127.0.0.1:{}/", hidden(&nodes));
    let longest = Duration::from_millis(300);
    let store = RedisStore::builder(&url).longest_lease(longest);
    let store = store.destinations(3).build().unwrap();
    wait::until("all nodes grant", || {
        // Each node is asked for its uptime only with a lock of its own.
        store.check(LIMIT).is_ok()
            && (0..30).all(|at| {
                let name = format!("n{at}");
                let acquired = store.acquire(
                    &Claim::new(&name, "w:1", Secret::new("w:1"), longest),
                    LIMIT,
                );
                matches!(acquired, Ok(Acquired::Granted { .. }))
                    && store.release(&name, Secret::new("w:1"), LIMIT) == Ok(Released::Released)
            })
    });
    let name_of = |node: u64| {
        let mut names = (0..).map(|at| format!("n{at}"));
        let of = |name: &String| store.destination(name) == Destination::new(node);
        names.find(of).expect("names are endless")
    };
    let lost = Instant::now();
    assert_eq!(nodes[1].cli(&["FLUSHALL"]), "OK");
    let mut refused = 0;
    loop {
        // Those of the others go on.
        for node in [0, 2] {
            let name = name_of(node);
            let acquired = store.acquire(
                &Claim::new(&name, "a:1", Secret::new("a:1"), longest),
                LIMIT,
            );
            assert!(
                matches!(acquired, Ok(Acquired::Granted { .. })),
                "{acquired:?}"
            );
        }
        let name = name_of(1);
        match store.acquire(
            &Claim::new(&name, "a:1", Secret::new("a:1"), longest),
            LIMIT,
        ) {
            Ok(Acquired::Granted { .. }) => break,
            Err(StoreError::Emptied { wait, .. }) => {
                assert!(wait <= longest, "{wait:?}");
                refused += 1;
                // What the node had granted is given back.
                let lock = format!("tourbillon:{{{name}}}:lock");
                assert_eq!(nodes[1].cli(&["EXISTS", &lock]), "(integer) 0");
            }
            other => panic!("{other:?}"),
        }
        thread::park_timeout(Duration::from_millis(10));
    }
    assert!(refused > 0 && lost.elapsed() >= longest, "{refused}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn the_locks_of_all_nodes_are_listed_extended_and_handed_over() {
    let nodes = cluster();
    let url = format!("redis://127.0.0.1:{}/", hidden(&nodes));
    for destinations in [3, 16] {
        let store = RedisStore::builder(&url)
            .durable()
            .longest_lease(10 * LEASE);
        let store = store.destinations(destinations).build().unwrap();
        let leases = Leases::new(store).unwrap();
        let names: Vec<String> = (10..40).map(|at| format!("n{at}")).collect();
        let lock = |name: &String| {
            leases
                .lock(name)
                .lease(LEASE)
                .not_renewed()
                .at_once()
                .wait()
        };
        let guards: Vec<_> = names.iter().map(|name| lock(name).unwrap()).collect();
        let listed = |prefix| -> Vec<String> {
            let mut paging = LockPaging::first(100);
            let mut found = std::collections::BTreeSet::new();
            loop {
                let page = leases.list(prefix, &paging).wait().unwrap();
                found.extend(page.locks.into_iter().map(|held| held.name));
                match page.next {
                    Some(next) => paging = next,
                    None => return found.into_iter().collect(),
                }
            }
        };
        assert_eq!(listed("n"), names);
        assert_eq!(listed("n3"), names[20..]);
        let some = leases.list("n", &LockPaging::first(7)).wait().unwrap();
        assert!((1..=7).contains(&some.locks.len()) && some.next.is_some());
        for guard in guards {
            guard.extend(2 * LEASE).wait().unwrap();
            let ticket = guard.detach().wait().unwrap();
            leases
                .resume(&ticket)
                .wait()
                .unwrap()
                .release()
                .wait()
                .unwrap();
        }
        assert_eq!(listed(""), [""; 0]);
        // Each node keeps its own names locked.
        let mut short = Duration::from_millis(300);
        loop {
            let lock = |name: &String| leases.lock(name).at_least(short).at_once().wait();
            let guards: Vec<_> = names[..29].iter().map(|name| lock(name).unwrap()).collect();
            let start = Instant::now();
            let last = lock(&names[29]).unwrap();
            drop((guards, last));
            let again = lock(&names[29]).is_ok();
            let in_time = start.elapsed() < short;
            assert!(!(again && in_time));
            wait::until("all are free", || listed("").is_empty());
            if in_time {
                break;
            }
            // The machine was too busy to see it.
            short *= 2;
        }
    }
}
