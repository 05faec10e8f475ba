//! Releases that nobody waits for, on a real server: a batch is one round trip, a destination that
//! hangs keeps its own connections alone, and a program that ends has given back what it dropped.

use std::collections::HashSet;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use kit::wait;
use tourbillon_leases::{
    Acquired, Claim, Destination, Holding, Leases, RedisStore, Released, Secret, StoreError,
};

use crate::calls::Calls;

use chaos::proxy::{Proxy, Trouble, Way};
use chaos::servers::redis::Server;

/// Nothing that answers takes so long.
const LIMIT: Duration = Duration::from_secs(60);
/// So long that nothing is renewed meanwhile.
const LEASE: Duration = Duration::from_secs(3_600);
const ROUND_TRIP: Duration = Duration::from_millis(10);

fn store(url: &str) -> RedisStore {
    let builder = RedisStore::builder(url).durable().longest_lease(LEASE);
    builder.build().unwrap()
}

#[track_caller]
fn granted(store: &RedisStore, name: &str, owner: &str) {
    let answer = store.acquire(&Claim::new(name, owner, Secret::new(owner), LEASE), LIMIT);
    assert!(
        matches!(answer, Ok(Acquired::Granted { .. })),
        "{name}: {answer:?}"
    );
}

fn exists(server: &Server, name: &str) -> bool {
    let key = format!("tourbillon:{{{name}}}:lock");
    server.cli(&["EXISTS", &key]) == "(integer) 1"
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_batch_of_releases_is_one_round_trip_with_an_answer_for_each() {
    let server = Server::start();
    let proxy = Proxy::before_redis(server.port());
    let store = store(&proxy.url());
    for round in 0..2 {
        for name in ["a", "b", "c"] {
            granted(&store, name, "me");
        }
        server.cli(&["SET", "tourbillon:{d}:lock", "somebody else's"]);
        let woken = Arc::new(Woken::default());
        let place = store.watch("a", &Waker::from(Arc::clone(&woken)));
        let batch = [
            Holding::new("a", Secret::new("me")),
            Holding::new("b", Secret::new("somebody")),
            Holding::new("c", Secret::new("me")),
            Holding::new("d", Secret::new("me")),
            Holding::new("e", Secret::new("me")),
        ];
        let before = proxy.seen().round_trips;
        let answers = store.release_many(Destination::default(), &batch, LIMIT);
        // The listener may have subscribed meanwhile, with one more. The first time the server does
        // not know the script.
        let trips = proxy.seen().round_trips - before;
        assert!(trips <= 2 + usize::from(round == 0), "{trips}");
        let mut answers = answers.expect("the server is there");
        assert!(
            matches!(&answers[3], Err(StoreError::Refused(why)) if why.contains("WRONGTYPE")),
            "{answers:?}"
        );
        let _ = answers.remove(3);
        let (released, not_held) = (Ok(Released::Released), Ok(Released::NotHeld));
        assert_eq!(
            answers,
            [released.clone(), not_held.clone(), released, not_held]
        );
        assert!(!exists(&server, "a") && exists(&server, "b") && !exists(&server, "c"));
        assert!(woken.0.load(SeqCst) > 0);
        drop(place);
        server.cli(&["DEL", "tourbillon:{b}:lock", "tourbillon:{d}:lock"]);
    }
    let answers = store.release_many(Destination::default(), &[], LIMIT);
    assert_eq!(answers, Ok(Vec::new()));
    proxy.begin(Trouble::Cut, Way::Both);
    let lost = store.release_many(
        Destination::default(),
        &[Holding::new("a", Secret::new("me"))],
        LIMIT,
    );
    assert!(matches!(lost, Err(StoreError::Unavailable(_))), "{lost:?}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn to_close_a_thousand_locks_takes_as_many_round_trips_as_there_are_batches() {
    let server = Server::start();
    let proxy = Proxy::before_redis(server.port());
    let leases = Leases::builder(store(&proxy.url()));
    let leases = leases.lease(LEASE).build().unwrap();
    let guards: Vec<_> = (0..1_000)
        .map(|n| leases.lock(&n.to_string()).at_once().wait().unwrap())
        .collect();
    let before = proxy.seen().round_trips;
    assert_eq!(leases.close(LIMIT), 1_000);
    // In the first one the server does not know the script.
    let trips = proxy.seen().round_trips - before;
    // A batch that goes through the proxy in pieces counts more than once if its first answers come
    // back before its last piece.
    assert!((11..=20).contains(&trips), "{trips}");
    assert_eq!(leases.stats().released, 1_000);
    assert_eq!(server.cli(&["--scan", "--pattern", "*:lock"]), "");
    drop(guards);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn dropped_guards_share_round_trips() {
    let server = Server::start();
    let proxy = Proxy::before_redis(server.port());
    let leases = Leases::builder(store(&proxy.url()));
    let leases = leases.lease(LEASE).build().unwrap();
    let guards: Vec<_> = (0..1_000)
        .map(|n| block_on(leases.lock(&n.to_string()).at_once().into_future()).unwrap())
        .collect();
    let before = proxy.seen().round_trips;
    proxy.begin(Trouble::Delay(ROUND_TRIP), Way::Down);
    // None of the drops waits.
    drop(guards);
    wait::until("all are given back", || leases.stats().releases_queued == 0);
    let trips = proxy.seen().round_trips - before;
    assert!(trips < 250, "{trips}");
    assert_eq!(leases.stats().released, 1_000);
    assert_eq!(server.cli(&["--scan", "--pattern", "*:lock"]), "");
}

/// A future on this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(value) => return value,
            std::task::Poll::Pending => thread::park(),
        }
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_destination_that_hangs_keeps_its_own_connections_alone() {
    let server = Server::start();
    let proxy = Proxy::before_redis(server.port());
    let builder = RedisStore::builder(&proxy.url()).durable();
    let store = Arc::new(builder.destinations(2).build().unwrap());
    let lease = Duration::from_secs(30);
    let names: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    let [bad, good] = [0, 1].map(|of| {
        let of = Destination::new(of);
        let here = |name: &&String| store.destination(name) == of;
        names.iter().filter(here).cloned().collect::<Vec<_>>()
    });
    assert!(bad.len() >= 2 && !good.is_empty());
    granted_for(&store, &bad[1], lease);
    // The connection for callers of this destination says nothing any more.
    proxy.forget();
    let (tell, told) = mpsc::channel();
    let hanging = thread::spawn({
        let (store, name) = (Arc::clone(&store), bad[0].clone());
        move || {
            let answer = store.acquire(&Claim::new(&name, "a:1", Secret::new("a:1"), lease), LIMIT);
            tell.send(answer).unwrap();
        }
    });
    granted_for(&store, &good[0], lease);
    assert_eq!(
        store.release(&good[0], Secret::new("a:3"), LIMIT),
        Ok(Released::Released)
    );
    // Nor do releases and renewals of this destination wait behind its callers.
    let batch = [Holding::new(&bad[1], Secret::new("a:3"))];
    let answers = store.release_many(Destination::new(0), &batch, LIMIT);
    assert_eq!(answers, Ok(vec![Ok(Released::Released)]));
    assert!(told.try_recv().is_err());
    proxy.cut();
    let answer = wait::next(&told);
    assert!(matches!(answer, Ok(Acquired::Granted { .. })), "{answer:?}");
    hanging.join().unwrap();
}

fn granted_for(store: &RedisStore, name: &str, lease: Duration) {
    let answer = store.acquire(&Claim::new(name, "a:3", Secret::new("a:3"), lease), LIMIT);
    assert!(matches!(answer, Ok(Acquired::Granted { .. })), "{answer:?}");
}

// === a program that ends ===

/// What tells the program that it is the one that ends.
const URL: &str = "TOURBILLON_TEST_ENDS";

/// The program itself: it ends right after its guard, as `main` does.
#[test]
fn locks_drops_and_ends() {
    let Ok(url) = std::env::var(URL) else {
        return;
    };
    {
        let builder = Leases::builder(store(&url)).lease(LEASE);
        // The default may be too short for a machine that is busy with all other tests.
        let leases = builder.end_limit(LIMIT).build().unwrap();
        let _guard = block_on(leases.lock("a").into_future()).unwrap();
    }
    std::process::exit(7);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_program_that_ends_right_after_its_guard_has_given_the_lock_back() {
    let server = Server::start();
    let proxy = Proxy::before_redis(server.port());
    proxy.begin(Trouble::Delay(ROUND_TRIP), Way::Down);
    for round in 0..20 {
        let ended = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "releases::locks_drops_and_ends"])
            .env(URL, proxy.url())
            .output()
            .unwrap();
        assert_eq!(ended.status.code(), Some(7), "{ended:?}");
        assert!(!exists(&server, "a"), "round {round}");
    }
    let left = server.cli(&["--scan", "--pattern", "tourbillon:*"]);
    let left: HashSet<_> = left.lines().collect();
    assert_eq!(left, HashSet::from(["\"tourbillon:{a}:token\""]));
}
