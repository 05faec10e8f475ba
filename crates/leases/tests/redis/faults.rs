//! The store on Redis while its server, or what lies between them, does what it should not; and how
//! those who wait hear of releases.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use kit::wait;
use tourbillon_leases::{
    Acquired, Claim, Destination, Leases, LockError, Outcome, RedisStore, Released, Renewal,
    Secret, StoreError, What,
};

use crate::calls::Calls;

use chaos::proxy::{Proxy, Trouble, Way};
use chaos::servers::redis::Server;

/// Nothing that answers takes so long.
const LIMIT: Duration = Duration::from_secs(60);
/// What a call gets that is not to be answered.
const SHORT: Duration = Duration::from_millis(50);
const LEASE: Duration = Duration::from_secs(30);

fn at(url: &str) -> Arc<RedisStore> {
    Arc::new(RedisStore::builder(url).durable().build().unwrap())
}

fn acquire(store: &RedisStore, name: &str, owner: &str) -> Result<Acquired, StoreError> {
    store.acquire(&Claim::new(name, owner, Secret::new(owner), LEASE), LIMIT)
}

#[track_caller]
fn granted(store: &RedisStore, name: &str, owner: &str) -> u64 {
    match acquire(store, name, owner) {
        Ok(Acquired::Granted { token, .. }) => token,
        other => panic!("{name} is not granted: {other:?}"),
    }
}

#[track_caller]
fn unavailable<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> String {
    match answer {
        Err(StoreError::Unavailable(why)) => why,
        other => panic!("it is unavailable: {other:?}"),
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> String {
    match answer {
        Err(StoreError::Refused(why)) => why,
        other => panic!("it is refused: {other:?}"),
    }
}

/// Every kind of call, with a limit, on what `a:1` holds or is to hold.
fn every_call(store: &RedisStore, limit: Duration) -> Vec<Result<(), StoreError>> {
    let renewal = [Renewal::new("held", Secret::new("a:1"), LEASE)];
    vec![
        store
            .acquire(&Claim::new("x", "a:1", Secret::new("a:1"), LEASE), limit)
            .map(|_| ()),
        store
            .renew(Destination::default(), &renewal, limit)
            .map(|_| ()),
        store.release("x", Secret::new("a:1"), limit).map(|_| ()),
        store.check(limit),
    ]
}

/// What a call on another thread comes to: while nothing answers, it has to return by itself.
fn returns<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(call()));
    wait::next(&told)
}

// === limits ===

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_server_that_is_stopped_keeps_no_call_beyond_its_limit() {
    let server = Server::start();
    // One with connections from before, and one that has to connect to a server that says nothing.
    let known = at(&server.url());
    granted(&known, "held", "a:1");
    let new = at(&server.url());
    server.stop();
    for store in [&known, &new] {
        let store = Arc::clone(store);
        for answer in returns(move || every_call(&store, SHORT)) {
            let why = unavailable(answer);
            assert!(
                why.contains("127.0.0.1") && why.contains("in time"),
                "{why}"
            );
        }
    }
    server.resume();
    // What had been sent may have been done.
    for store in [&known, &new] {
        for answer in every_call(store, LIMIT) {
            assert_eq!(answer, Ok(()));
        }
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn paused_clients_and_a_busy_server_keep_no_call_beyond_its_limit() {
    let server = Server::start();
    let store = at(&server.url());
    granted(&store, "held", "a:1");
    let mut other = server.connect();
    let pause: String = redis::cmd("CLIENT")
        .arg(&["PAUSE", "600000", "WRITE"])
        .query(&mut other)
        .unwrap();
    assert_eq!(pause, "OK");
    let paused = Arc::clone(&store);
    for answer in returns(move || every_call(&paused, SHORT)) {
        unavailable(answer);
    }
    let _: String = redis::cmd("CLIENT")
        .arg("UNPAUSE")
        .query(&mut other)
        .unwrap();
    for answer in every_call(&store, LIMIT) {
        assert_eq!(answer, Ok(()));
    }
    // The server sleeps for long enough that all calls end within that time.
    let sleep = redis::cmd("DEBUG")
        .arg(&["SLEEP", "5"])
        .get_packed_command();
    other.send_packed_command(&sleep).unwrap();
    let sleeping = Arc::clone(&store);
    let answers = returns(move || every_call(&sleeping, SHORT));
    let late = answers.iter().filter(|answer| answer.is_err()).count();
    // The first may come before the server reads the other command.
    assert!(late >= answers.len() - 1, "{answers:?}");
    other.recv_response().unwrap();
    for answer in every_call(&store, LIMIT) {
        assert_eq!(answer, Ok(()));
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_server_that_is_not_there_is_named() {
    let mut server = Server::start();
    let store = at(&server.url());
    server.kill();
    for answer in every_call(&store, LIMIT) {
        let why = unavailable(answer);
        assert!(
            why.contains("127.0.0.1") && why.contains("refused"),
            "{why}"
        );
    }
    let nowhere = at("redis://no-such-host.invalid/");
    let why = unavailable(nowhere.check(LIMIT));
    assert!(why.contains("no-such-host.invalid"), "{why}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn any_number_of_callers_share_one_connection_and_holders_another() {
    let server = Server::start();
    let proxy = Proxy::before_redis(server.port());
    let store = at(&proxy.url());
    thread::scope(|scope| {
        for thread in 0..8 {
            let store = &store;
            scope.spawn(move || {
                for at in 0..50 {
                    let owner = format!("{thread}:{at}");
                    granted(store, &owner, &owner);
                    assert_eq!(
                        store.release(&owner, Secret::new(&owner), LIMIT),
                        Ok(Released::Released)
                    );
                }
            });
        }
    });
    assert_eq!(proxy.seen().connections, 2);
    granted(&store, "held", "a:1");
    // What callers wait for holds up no renewal and no release.
    proxy.forget();
    let (tell, told) = mpsc::channel();
    for name in ["x", "y"] {
        let (store, tell) = (Arc::clone(&store), tell.clone());
        thread::spawn(move || tell.send(acquire(&store, name, "a:2")));
    }
    // The renewal's own connection is forgotten, too, and the second one has a new one.
    let renewal = [Renewal::new("held", Secret::new("a:1"), LEASE)];
    unavailable(store.renew(Destination::default(), &renewal, SHORT));
    let outcomes = store.renew(Destination::default(), &renewal, LIMIT);
    assert_eq!(outcomes, Ok(vec![Outcome::Renewed]));
    assert_eq!(
        store.release("held", Secret::new("a:1"), LIMIT),
        Ok(Released::Released)
    );
    assert!(told.try_recv().is_err());
    // The connection was there before, so both calls are sent again.
    proxy.cut();
    for _ in 0..2 {
        let answer = wait::next(&told);
        assert!(matches!(answer, Ok(Acquired::Granted { .. })), "{answer:?}");
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_connection_whose_packets_vanish_costs_one_call() {
    let server = Server::start();
    let proxy = Proxy::before_redis(server.port());
    let store = at(&proxy.url());
    for round in 0..10 {
        let owner = format!("a:{round}");
        granted(&store, "x", &owner);
        proxy.forget();
        let renewal = [Renewal::new("x", Secret::new(&owner), LEASE)];
        let claim = Claim::new("y", &owner, Secret::new(&owner), LEASE);
        unavailable(store.acquire(&claim, SHORT));
        granted(&store, "y", &owner);
        if round > 0 {
            unavailable(store.renew(Destination::default(), &renewal, SHORT));
        }
        let outcomes = store.renew(Destination::default(), &renewal, LIMIT);
        assert_eq!(outcomes, Ok(vec![Outcome::Renewed]));
        for name in ["x", "y"] {
            assert_eq!(
                store.release(name, Secret::new(&owner), LIMIT),
                Ok(Released::Released)
            );
        }
    }
}

// === answers that get lost ===

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn answers_that_come_late_are_not_taken_for_those_to_the_next_call() {
    let server = Server::start();
    let proxy = Proxy::before_redis(server.port());
    let store = at(&proxy.url());
    for round in 0..10 {
        let (a, b) = (format!("a:{round}"), format!("b:{round}"));
        granted(&store, "warm", "w:1");
        proxy.begin(Trouble::Hold, Way::Down);
        unavailable(store.acquire(&Claim::new("a", &a, Secret::new(&a), LEASE), SHORT));
        proxy.end();
        // Another name, another token, and then "not held" beside "held".
        let token = granted(&store, "b", &b);
        assert_eq!(
            server.cli(&["HGET", "tourbillon:{b}:lock", "token"]),
            format!("\"{token}\"")
        );
        assert_eq!(
            store.release("b", Secret::new("nobody"), LIMIT),
            Ok(Released::NotHeld)
        );
        assert_eq!(
            store.release("b", Secret::new(&b), LIMIT),
            Ok(Released::Released)
        );
        wait::until(
            "the acquire without an answer was done all the same",
            || store.release("a", Secret::new(&a), LIMIT) == Ok(Released::Released),
        );
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_connection_that_is_cut_within_the_answers_leaves_nothing_out_of_step() {
    let server = Server::start();
    let proxy = Proxy::before_redis(server.port());
    let store = at(&proxy.url());
    let names = ["n0", "n1", "n2", "n3", "n4", "n5"];
    for name in names.iter().step_by(2) {
        granted(&store, name, "a:1");
    }
    let batch = names.map(|name| Renewal::new(name, Secret::new("a:1"), LEASE));
    let renew = |limit| store.renew(Destination::default(), &batch, limit);
    let expected: Vec<_> = (0..names.len())
        .map(|at| match at % 2 {
            0 => Outcome::Renewed,
            _ => Outcome::NotHeld,
        })
        .collect();
    // The six answers are 24 bytes.
    for bytes in 0..24 {
        assert_eq!(renew(LIMIT), Ok(expected.clone()));
        proxy.begin(Trouble::CutAfter(bytes), Way::Down);
        unavailable(renew(LIMIT));
        proxy.end();
        assert_eq!(renew(LIMIT), Ok(expected.clone()), "after {bytes}");
        proxy.begin(Trouble::Swallow, Way::Down);
        unavailable(renew(SHORT));
        proxy.end();
        assert_eq!(renew(LIMIT), Ok(expected.clone()), "after {bytes}");
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn r28_connections_that_broke_while_idle_cost_no_call() {
    let mut server = Server::durable();
    let proxy = Proxy::before_redis(server.port());
    let store = at(&proxy.url());
    let renewal = [Renewal::new("x", Secret::new("a:1"), LEASE)];
    for restarts in [false, true] {
        let mut breaks = || {
            if restarts {
                server.restart();
            }
            proxy.cut();
        };
        granted(&store, "y", "a:2");
        breaks();
        granted(&store, "x", "a:1");
        breaks();
        let outcomes = store.renew(Destination::default(), &renewal, LIMIT);
        assert_eq!(outcomes, Ok(vec![Outcome::Renewed]));
        breaks();
        assert_eq!(
            store.release("x", Secret::new("a:1"), LIMIT),
            Ok(Released::Released)
        );
        breaks();
        assert_eq!(store.check(LIMIT), Ok(()));
    }
}

// === what passes, and what does not ===

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn r02_what_passes_by_itself_is_unavailable() {
    let server = Server::start();
    let store = at(&server.url());
    granted(&store, "held", "a:1");
    let renewal = [Renewal::new("held", Secret::new("a:1"), LEASE)];
    let renewed = |why: &str| {
        let outcomes = store.renew(Destination::default(), &renewal, LIMIT);
        match outcomes.as_deref() {
            Ok([Outcome::Failed(StoreError::Unavailable(said))]) => {
                assert!(said.contains(why), "{said}");
            }
            other => panic!("{why}: {other:?}"),
        }
    };
    // A script of somebody else.
    server.cli(&["CONFIG", "SET", "busy-reply-threshold", "1"]);
    let mut other = server.connect();
    let endless = redis::cmd("EVAL")
        .arg(&["while true do end", "0"])
        .get_packed_command();
    other.send_packed_command(&endless).unwrap();
    wait::until("the server is busy", || {
        server.cli(&["PING"]).contains("BUSY")
    });
    unavailable(acquire(&store, "x", "a:2"));
    renewed("BUSY");
    assert_eq!(server.cli(&["SCRIPT", "KILL"]), "OK");
    wait::until("the script has ended", || {
        server.cli(&["PING"]).contains("PONG")
    });
    // Its data, which it reads anew.
    server.cli(&["DEBUG", "POPULATE", "200", "filler", "1000"]);
    server.cli(&[
        "CONFIG",
        "SET",
        "loading-process-events-interval-bytes",
        "1024",
    ]);
    server.cli(&["CONFIG", "SET", "key-load-delay", "50000"]);
    let mut other = server.connect();
    let reload = redis::cmd("DEBUG").arg("RELOAD").get_packed_command();
    other.send_packed_command(&reload).unwrap();
    wait::until("it loads", || server.cli(&["GET", "x"]).contains("LOADING"));
    unavailable(acquire(&store, "x", "a:2"));
    renewed("LOADING");
    server.cli(&["CONFIG", "SET", "key-load-delay", "0"]);
    other.recv_response().unwrap();
    // Memory.
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let why = unavailable(acquire(&store, "x", "a:2"));
    assert!(why.contains("OOM"), "{why}");
    // What is held is renewed all the same, also if the count of guards has changed.
    let mut twice = renewal[0];
    twice.holds = 2;
    for renewal in [renewal[0], twice] {
        let outcomes = store.renew(Destination::default(), &[renewal], LIMIT);
        assert_eq!(outcomes, Ok(vec![Outcome::Renewed]));
    }
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    // A failover: the server becomes the replica of another one, which it can't reach.
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let why = unavailable(acquire(&store, "x", "a:2"));
    assert!(why.contains("READONLY"), "{why}");
    renewed("READONLY");
    server.cli(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    unavailable(acquire(&store, "x", "a:2"));
    renewed("MASTERDOWN");
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    let outcomes = store.renew(Destination::default(), &renewal, LIMIT);
    assert_eq!(outcomes, Ok(vec![Outcome::Renewed]));
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn r02_a_cluster_that_is_down_may_pass_and_another_node_is_not_looked_for() {
    let options = ["--save", "", "--cluster-enabled", "yes"];
    let [one, other] = [Server::with(&options), Server::with(&options)];
    let store = at(&one.url());
    let why = unavailable(acquire(&store, "x", "a:1"));
    assert!(why.contains("CLUSTERDOWN"), "{why}");
    one.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "8191"]);
    other.cli(&["CLUSTER", "ADDSLOTSRANGE", "8192", "16383"]);
    let port = other.port().to_string();
    one.cli(&["CLUSTER", "MEET", "127.0.0.1", &port]);
    let names: Vec<String> = (0..20).map(|at| format!("n{at}")).collect();
    wait::until("the nodes know each other", || {
        let states = [&one, &other].map(|node| node.cli(&["CLUSTER", "INFO"]));
        states
            .iter()
            .all(|state| state.contains("cluster_state:ok"))
    });
    // Also a name whose slot it has.
    for name in &names {
        let why = refused(acquire(&store, name, "a:1"));
        assert!(why.contains("MOVED"), "{why}");
    }
    // In a batch each has an outcome of its own.
    let batch: Vec<_> = names
        .iter()
        .map(|name| Renewal::new(name, Secret::new("a:1"), LEASE))
        .collect();
    let outcomes = store.renew(Destination::default(), &batch, LIMIT).unwrap();
    let moved = outcomes.iter().filter(|one| match one {
        Outcome::Failed(StoreError::Refused(why)) => why.contains("MOVED"),
        other => {
            assert_eq!(**other, Outcome::NotHeld);
            false
        }
    });
    assert!((1..20).contains(&moved.count()), "{outcomes:?}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn r02_rights_and_types_are_refused() {
    let server = Server::start();
    let with = |user: &str| {
        let url = format!("redis://{user}@127.0.0.1:{}/0", server.port());
        at(&url)
    };
    // What the documentation names as the least rights.
    let rights = [
        "ACL",
        "SETUSER",
        "locks",
        "on",
        ">s3cret",
        "~tourbillon:*",
        "&tourbillon:released",
        "+eval",
        "+evalsha",
        "+hget",
        "+hset",
        "+hmget",
        "+hdel",
        "+get",
        "+set",
        "+del",
        "+pexpire",
        "+pttl",
        "+time",
        "+info",
        "+publish",
        "+subscribe",
        "+unsubscribe",
        "+punsubscribe",
        "+ping",
        "+select",
    ];
    assert_eq!(server.cli(&rights), "OK");
    let locks = with("locks:s3cret");
    granted(&locks, "x", "a:1");
    assert!(matches!(
        acquire(&locks, "x", "b:1"),
        Ok(Acquired::Held { .. })
    ));
    let renewal = [Renewal::new("x", Secret::new("a:1"), LEASE)];
    let outcomes = locks.renew(Destination::default(), &renewal, LIMIT);
    assert_eq!(outcomes, Ok(vec![Outcome::Renewed]));
    // Also what is reserved is granted.
    assert!(matches!(due(&locks, "x", "b:1"), Acquired::Held { .. }));
    assert_eq!(
        locks.release("x", Secret::new("a:1"), LIMIT),
        Ok(Released::Released)
    );
    assert!(matches!(due(&locks, "x", "b:1"), Acquired::Granted { .. }));
    assert_eq!(
        locks.release("x", Secret::new("b:1"), LIMIT),
        Ok(Released::Released)
    );
    assert!(!format!("{locks:?}").contains("s3cret"), "{locks:?}");
    let why = refused(acquire(&with("locks:wr0ng"), "x", "a:1"));
    assert!(why.contains("WRONGPASS") && !why.contains("wr0ng"), "{why}");
    let (waker, told) = bell();
    let watch = locks.watch("x", &waker);
    subscribed(&server, 1, &told);
    drop(watch);
    server.cli(&["ACL", "SETUSER", "locks", "resetkeys", "~other:*"]);
    let why = refused(acquire(&locks, "x", "a:1"));
    assert!(why.contains("NOPERM"), "{why}");
    server.cli(&["ACL", "SETUSER", "locks", "off"]);
    server.cli(&["ACL", "SETUSER", "default", ">s3cret", "-@all", "+auth"]);
    refused(acquire(&at(&server.url()), "x", "a:1"));
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_user_who_may_not_call_info_is_told_what_to_do() {
    let server = Server::start();
    let url = format!("redis://ops:s3cret@127.0.0.1:{}/0", server.port());
    let guarded = RedisStore::builder(&url).build().unwrap();
    let rights = ["on", ">s3cret", "~*", "&*", "+@all", "-@dangerous"];
    let user: Vec<_> = ["ACL", "SETUSER", "ops"]
        .into_iter()
        .chain(rights)
        .collect();
    assert_eq!(server.cli(&user), "OK");
    for answer in [
        acquire(&guarded, "x", "a:1").map(drop),
        guarded.check(LIMIT),
    ] {
        let why = refused(answer);
        for word in ["NOPERM", "INFO", "+info", "durable"] {
            assert!(why.contains(word), "{word}: {why}");
        }
    }
    // Both ways out.
    granted(&at(&url), "x", "a:1");
    assert_eq!(server.cli(&["ACL", "SETUSER", "ops", "+info"]), "OK");
    let answer = acquire(&guarded, "y", "a:1");
    assert!(
        matches!(answer, Err(StoreError::Emptied { .. })),
        "{answer:?}"
    );
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn r30_a_batch_is_one_round_trip_of_calls_that_name_one_key_each() {
    let server = Server::cluster();
    let proxy = Proxy::before_redis(server.port());
    let store = at(&proxy.url());
    let names: Vec<String> = (0..100).map(|at| format!("n{at}")).collect();
    for name in &names {
        granted(&store, name, "a:1");
    }
    let batch: Vec<_> = names
        .iter()
        .map(|name| Renewal::new(name, Secret::new("a:1"), LEASE))
        .collect();
    let renew = || store.renew(Destination::default(), &batch, LIMIT);
    // The first time the server does not know the script.
    assert_eq!(renew(), Ok(vec![Outcome::Renewed; 100]));
    let _ = proxy.commands();
    let before = proxy.seen().round_trips;
    assert_eq!(renew(), Ok(vec![Outcome::Renewed; 100]));
    assert_eq!(proxy.seen().round_trips - before, 1);
    let commands = proxy.commands();
    assert_eq!(commands.len(), 100);
    for (command, name) in commands.iter().zip(&names) {
        assert_eq!(command[0], "EVALSHA");
        assert_eq!(
            command[2..4],
            ["1".to_owned(), format!("tourbillon:{{{name}}}:lock")]
        );
    }
}

// === who waits ===

/// Tells when it is woken.
struct Bell(Mutex<mpsc::Sender<()>>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let _ = self.0.lock().unwrap().send(());
    }
}

fn bell() -> (Waker, mpsc::Receiver<()>) {
    let (tell, told) = mpsc::channel();
    (Waker::from(Arc::new(Bell(Mutex::new(tell)))), told)
}

/// How many connections listen.
fn listeners(server: &Server) -> usize {
    let shown = server.cli(&["PUBSUB", "NUMSUB", "tourbillon:released"]);
    let number = shown.rsplit_once("(integer) ").expect("a number").1;
    number.parse().expect("a number")
}

/// Waits until the store listens, and has told everybody so.
fn subscribed(server: &Server, listening: usize, told: &mpsc::Receiver<()>) {
    wait::until("the store listens", || listeners(server) == listening);
    wait::next(told);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_release_wakes_who_waits_in_another_process_and_only_if_somebody_does() {
    let server = Server::start();
    let (holder, waiter) = (at(&server.url()), at(&server.url()));
    let mut connection = server.connect();
    let mut heard = connection.as_pubsub();
    heard.subscribe("tourbillon:released").unwrap();
    // Nobody waits: also who asked without waiting does not count.
    granted(&holder, "x", "a:1");
    assert!(matches!(
        acquire(&waiter, "x", "b:1"),
        Ok(Acquired::Held { .. })
    ));
    assert_eq!(
        holder.release("x", Secret::new("a:1"), LIMIT),
        Ok(Released::Released)
    );
    granted(&holder, "x", "a:2");
    let (waker, told) = bell();
    let watch = waiter.watch("x", &waker).expect("it can tell");
    subscribed(&server, 2, &told);
    watch.looks();
    let claim = Claim::new("x", "b:2", Secret::new("b:2"), LEASE).waiting();
    assert!(matches!(
        waiter.acquire(&claim, LIMIT),
        Ok(Acquired::Held { .. })
    ));
    assert_eq!(
        holder.release("x", Secret::new("a:2"), LIMIT),
        Ok(Released::Released)
    );
    wait::next(&told);
    assert!(matches!(
        waiter.acquire(&claim, LIMIT),
        Ok(Acquired::Granted { .. })
    ));
    drop(watch);
    // This is the first that was published at all, though a name was given back before.
    let message = heard
        .get_message()
        .unwrap()
        .get_payload::<String>()
        .unwrap();
    assert!(message.ends_with(" x"), "{message}");
    server.cli(&["PUBLISH", "tourbillon:released", "test mark"]);
    let message = heard
        .get_message()
        .unwrap()
        .get_payload::<String>()
        .unwrap();
    assert_eq!(message, "test mark");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn one_release_wakes_one_of_those_who_wait_in_a_process() {
    let server = Server::start();
    let store = at(&server.url());
    granted(&store, "x", "a:1");
    let bells: Vec<_> = (0..3).map(|_| bell()).collect();
    let watch = |name: &str, at: usize| store.watch(name, &bells[at].0).expect("it can tell");
    let first = watch("x", 0);
    subscribed(&server, 1, &bells[0].1);
    first.looks();
    let _others = [watch("x", 1), watch("y", 2)];
    let claim = Claim::new("x", "a:2", Secret::new("a:2"), LEASE).waiting();
    assert!(matches!(
        store.acquire(&claim, LIMIT),
        Ok(Acquired::Held { .. })
    ));
    assert_eq!(
        store.release("x", Secret::new("a:1"), LIMIT),
        Ok(Released::Released)
    );
    wait::next(&bells[0].1);
    // The message of one's own release is no news: when this one has been heard, that one was.
    server.cli(&["PUBLISH", "tourbillon:released", "other y"]);
    wait::next(&bells[2].1);
    assert!(bells[1].1.try_recv().is_err());
    server.cli(&["PUBLISH", "tourbillon:released", "other x"]);
    wait::next(&bells[1].1);
    assert!(bells[0].1.try_recv().is_err());
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn one_connection_listens_for_all_who_wait_and_ends_when_nobody_does() {
    let server = Server::start();
    let store = at(&server.url());
    let (waker, told) = bell();
    assert_eq!(listeners(&server), 0);
    for round in 0..2 {
        let watches: Vec<_> = (0..100)
            .map(|at| store.watch(&format!("n{at}"), &waker))
            .collect();
        subscribed(&server, 1, &told);
        assert!(format!("{store:?}").contains("listens: true"));
        if round == 0 {
            drop(watches);
            wait::until("nobody listens for nobody", || listeners(&server) == 0);
            wait::until("the task has ended", || {
                format!("{store:?}").contains("listens: false")
            });
        } else {
            drop(store);
            wait::until("it ends with its store", || listeners(&server) == 0);
            drop(watches);
            break;
        }
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn who_waits_looks_again_whenever_releases_may_have_been_missed() {
    let mut server = Server::start();
    let proxy = Proxy::before_redis(server.port());
    let (holder, waiter) = (at(&server.url()), at(&proxy.url()));
    let (waker, told) = bell();
    granted(&holder, "x", "a:1");
    let watch = waiter.watch("x", &waker).expect("it can tell");
    subscribed(&server, 1, &told);
    watch.looks();
    let claim = Claim::new("x", "b:1", Secret::new("b:1"), LEASE).waiting();
    assert!(matches!(
        waiter.acquire(&claim, LIMIT),
        Ok(Acquired::Held { .. })
    ));
    // Cut, and the release comes while it can't listen.
    proxy.begin(Trouble::Cut, Way::Both);
    wait::until("nobody listens", || listeners(&server) == 0);
    assert_eq!(
        holder.release("x", Secret::new("a:1"), LIMIT),
        Ok(Released::Released)
    );
    proxy.end();
    wait::next(&told);
    // On a slow machine it has waited for a turn, and the name is reserved for it.
    assert!(matches!(
        waiter.acquire(&claim.waited(Claim::TURN), LIMIT),
        Ok(Acquired::Granted { .. })
    ));
    // Also when the server is another one afterwards, and when nothing is cut but nothing comes.
    watch.looks();
    server.restart();
    wait::next(&told);
    watch.looks();
    let before = proxy.seen().connections;
    proxy.begin(Trouble::Swallow, Way::Down);
    wait::until("the silence is noticed", || {
        proxy.seen().connections > before
    });
    proxy.end();
    wait::next(&told);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn locks_of_two_processes_are_handed_over_by_the_server() {
    let server = Server::start();
    let build = || {
        let store = RedisStore::builder(&server.url())
            .durable()
            .build()
            .unwrap();
        Leases::new(store).unwrap()
    };
    let (one, other) = (build(), build());
    let mut guard = one.lock("x").at_once().wait().unwrap();
    assert!(matches!(
        other.lock("x").at_once().wait(),
        Err(LockError::Held { .. })
    ));
    for round in 0..5 {
        let (from, to) = if round % 2 == 0 {
            (&one, &other)
        } else {
            (&other, &one)
        };
        let (tell, told) = mpsc::channel();
        let token = guard.token();
        thread::spawn({
            let to = to.clone();
            move || tell.send(to.lock("x").wait())
        });
        wait::until("somebody waits", || {
            server.cli(&["HEXISTS", "tourbillon:{x}:lock", "next"]) == "(integer) 1"
        });
        assert!(guard.is_held());
        guard.release().wait().unwrap();
        guard = wait::next(&told).unwrap();
        assert!(guard.token() > token);
        assert!(matches!(
            from.lock("x").at_once().wait(),
            Err(LockError::Held { .. })
        ));
    }
}

// === waits that are told ===

/// The first event of a wait on `name`, and then the lock, once `mend` has put an end to the
/// trouble.
fn told(url: &str, why: &str, mend: impl FnOnce()) {
    let store = RedisStore::builder(url).durable().build().unwrap();
    let leases = Leases::new(store).unwrap();
    let events = leases.events(1_000);
    let (tell, had) = mpsc::channel();
    thread::spawn({
        let leases = leases.clone();
        move || tell.send(leases.lock("orders/42").wait())
    });
    // On a machine that is very busy a call may be under way just then.
    let mut found = false;
    while !found {
        let event = events.recv_timeout(LIMIT).expect("the wait is told");
        assert_eq!(event.key.name(), "orders/42");
        match event.what {
            What::Waiting {
                since,
                error: Some(error),
                ..
            } => {
                assert!(event.at.since(since) >= Duration::from_secs(1));
                found = error.to_string().contains(why);
            }
            other => panic!("{other:?}"),
        }
    }
    let stats = leases.stats();
    assert_eq!((stats.asked, stats.waiting), (1, 1));
    // With a limit it is an error, which names the lock and is not the one of a lock that is held.
    wait::until("the error says why", || {
        match leases
            .lock("orders/43")
            .within(Duration::from_millis(500))
            .wait()
        {
            Err(error @ LockError::Unanswered { .. }) => {
                let text = error.to_string();
                assert!(text.contains("orders/43"), "{text}");
                text.contains(why)
            }
            other => panic!("{other:?}"),
        }
    });
    mend();
    wait::next(&had).unwrap().release().wait().unwrap();
    let stats = leases.stats();
    assert_eq!((stats.granted, stats.refused, stats.waiting), (1, 0, 0));
    assert!(stats.acquires_failed >= 1);
    assert_eq!(stats.asked, 1 + stats.acquires_failed);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_wait_for_a_port_without_a_server_is_told() {
    let mut server = Server::start();
    let url = server.url();
    server.kill();
    told(&url, "refused", || server.restart());
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_wait_for_a_replica_that_takes_no_writes_is_told() {
    let server = Server::start();
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    told(&server.url(), "READONLY", || {
        server.cli(&["REPLICAOF", "NO", "ONE"]);
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_wait_for_a_full_server_is_told() {
    let server = Server::start();
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    told(&server.url(), "OOM", || {
        server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    });
}

// === turns ===

/// What somebody gets who has waited for so long that it is its turn.
#[track_caller]
fn due(store: &RedisStore, name: &str, owner: &str) -> Acquired {
    due_after(store, name, owner, Duration::from_secs(1))
}

#[track_caller]
fn due_after(store: &RedisStore, name: &str, owner: &str, waited: Duration) -> Acquired {
    let claim = Claim::new(name, owner, Secret::new(owner), LEASE)
        .waiting()
        .waited(waited);
    store.acquire(&claim, LIMIT).unwrap()
}

fn is_held(answer: &Acquired) -> bool {
    matches!(answer, Acquired::Held { .. })
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_release_leaves_the_name_to_the_store_in_which_somebody_has_waited() {
    let server = Server::start();
    let [one, other, third] = [(); 3].map(|()| at(&server.url()));
    let mut round = 0;
    // What is reserved is so for 25 ms of the server's clock. On a machine that is too busy for
    // that nothing is seen, and it is tried again.
    wait::until("everything is seen within a reservation", || {
        round += 1;
        let [a, b, c] = ["a", "b", "c"].map(|who| format!("{who}:{round}"));
        granted(&one, "x", &a);
        assert!(is_held(&due(&other, "x", &b)));
        let start = Instant::now();
        assert_eq!(
            one.release("x", Secret::new(&a), LIMIT),
            Ok(Released::Released)
        );
        let again = acquire(&one, "x", &format!("{a}-again")).unwrap();
        let waits = Claim::new("x", "c:1", Secret::new("c:1"), LEASE).waiting();
        let waits = third.acquire(&waits, LIMIT).unwrap();
        let third_one = due(&third, "x", &c);
        let turn = due(&other, "x", &b);
        let seen = start.elapsed() < Duration::from_millis(20);
        if seen {
            for answer in [again, waits, third_one] {
                let Acquired::Held { remaining } = answer else {
                    panic!("it is reserved: {answer:?}");
                };
                assert!(remaining <= Duration::from_millis(25), "{remaining:?}");
            }
            assert!(!is_held(&turn), "{turn:?}");
            // Those who were refused meanwhile wait, and the next release is announced to them.
            let waited = server.cli(&["HEXISTS", "tourbillon:{x}:lock", "waited"]);
            assert_eq!(waited, "(integer) 1");
            let next = server.cli(&["HEXISTS", "tourbillon:{x}:lock", "next"]);
            assert_eq!(next, "(integer) 0");
        }
        server.cli(&["DEL", "tourbillon:{x}:lock"]);
        seen
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_turn_that_nobody_takes_passes_and_leaves_nothing() {
    let server = Server::start();
    let [one, other] = [(); 2].map(|()| at(&server.url()));
    granted(&one, "x", "a:1");
    assert!(is_held(&due(&other, "x", "b:1")));
    assert_eq!(
        one.release("x", Secret::new("a:1"), LIMIT),
        Ok(Released::Released)
    );
    wait::until("it is free", || {
        !is_held(&acquire(&one, "x", "a:2").unwrap())
    });
    assert_eq!(
        one.release("x", Secret::new("a:2"), LIMIT),
        Ok(Released::Released)
    );
    assert_eq!(
        server.cli(&["EXISTS", "tourbillon:{x}:lock"]),
        "(integer) 0"
    );
    granted(&one, "x", "a:3");
    // One that lasts longer than it should, as after a clock that was set back, is none; nor is one
    // without an end.
    for end in ["3600000", "0"] {
        server.cli(&["DEL", "tourbillon:{x}:lock"]);
        server.cli(&["HSET", "tourbillon:{x}:lock", "next", "nobody"]);
        if end != "0" {
            server.cli(&["PEXPIRE", "tourbillon:{x}:lock", end]);
        }
        granted(&one, "x", "a:4");
        let next = server.cli(&["HEXISTS", "tourbillon:{x}:lock", "next"]);
        assert_eq!(next, "(integer) 0");
    }
    // A full server reserves nothing, or for a moment as ever, and gives back in any case.
    assert!(is_held(&due(&other, "x", "b:2")));
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(
        one.release("x", Secret::new("a:4"), LIMIT),
        Ok(Released::Released)
    );
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    wait::until("it is free", || {
        !is_held(&acquire(&one, "x", "a:5").unwrap())
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn the_store_with_the_longest_wait_is_next() {
    let server = Server::start();
    let [one, other, third] = [(); 3].map(|()| at(&server.url()));
    granted(&one, "x", "a:1");
    let next = || server.cli(&["HGET", "tourbillon:{x}:lock", "next"]);
    assert_eq!(next(), "(nil)");
    let short = Claim::new("x", "b:1", Secret::new("b:1"), LEASE).waiting();
    assert!(is_held(&one.acquire(&short, LIMIT).unwrap()));
    let own = next();
    let seconds = Duration::from_secs;
    assert!(is_held(&due_after(&other, "x", "b:1", seconds(1))));
    let first = next();
    assert!(is_held(&due_after(&third, "x", "c:1", seconds(1_000))));
    let second = next();
    assert!(first != second && second != "(nil)", "{first} {second}");
    assert!(own != first && own != "(nil)", "{own} {first}");
    assert!(is_held(&due_after(&other, "x", "b:1", seconds(2))));
    assert_eq!(next(), second);
}
