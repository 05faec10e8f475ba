//! Elections among processes, on a real server: leaders that are killed, stopped, or resign.

use std::collections::BTreeSet;
use std::io::{BufRead, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use kit::wait;
use tourbillon_leases::{Change, Claim, Leases, RedisStore, Secret};

use crate::calls::Calls;

use chaos::servers::redis::Server;

const LEASE: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(60);
/// A lease that does not run out during a test.
const HELD: Duration = Duration::from_secs(30);

/// Where a candidate finds its server.
const URL: &str = "TOURBILLON_ELECTION_SERVER";

/// The resource that leaders write to. It refuses the tokens of former leaders, and counts them by
/// process.
const WRITE: &str = "local last = tonumber(redis.call('LINDEX', 'tokens', -1) or '0')
    local token = tonumber(ARGV[1])
    if token < last then redis.call('HINCRBY', 'stale', ARGV[2], 1) return 0 end
    if token > last then redis.call('RPUSH', 'tokens', ARGV[1]) redis.call('RPUSH', 'leaders', ARGV[2]) end
    redis.call('INCR', 'writes')
    return 1";

fn store(url: &str) -> RedisStore {
    RedisStore::builder(url).durable().build().unwrap()
}

/// A process of the test below: a candidate that leads whenever it can, until its input ends. A
/// line of input makes it resign.
#[test]
fn candidate() {
    let Ok(url) = std::env::var(URL) else {
        return;
    };
    let leases = Leases::builder(store(&url)).lease(LEASE).build().unwrap();
    let election = leases.election("e");
    let resigns = election.clone();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            line.expect("a line");
            resigns.resign();
        }
        std::process::exit(0);
    });
    let client = redis::Client::open(url).expect("a URL");
    let mut connection = client.get_connection().expect("the server is there");
    let own = std::process::id().to_string();
    let write = redis::Script::new(WRITE);
    let served = election.serve(|leadership| {
        while leadership.is_leader() {
            let mut write = write.prepare_invoke();
            write.arg(leadership.token()).arg(&own);
            let written: i32 = write.invoke(&mut connection).expect("the server is there");
            if written == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    served.expect("nothing ends it but the process");
}

/// The candidates, which end with the test.
struct Candidates(Vec<Child>);

impl Candidates {
    fn start(&mut self, server: &Server) {
        let mut test = Command::new(std::env::current_exe().expect("a test has a path"));
        test.args(["--exact", "election::candidate"])
            .env(URL, server.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        self.0.push(test.spawn().expect("it starts"));
    }

    fn of(&mut self, id: u32) -> &mut Child {
        let mut all = self.0.iter_mut();
        all.find(|child| child.id() == id).expect("it was started")
    }
}

impl Drop for Candidates {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The tokens of all terms, and the processes that led.
fn terms(server: &Server) -> Vec<(u64, u32)> {
    let mut connection = server.connect();
    let mut list = |name: &str| -> Vec<u64> {
        let all = redis::cmd("LRANGE").arg(name).arg(0).arg(-1).clone();
        all.query(&mut connection).expect("a list of numbers")
    };
    // In this order, since a term that begins in between is then only left out.
    let tokens = list("tokens");
    let leaders = list("leaders");
    let leaders = leaders
        .into_iter()
        .map(|id| u32::try_from(id).expect("an id"));
    tokens.into_iter().zip(leaders).collect()
}

/// Waits for a term of another process, and returns that process.
fn next_leader(server: &Server, before: Option<u32>) -> u32 {
    let mut leader = None;
    wait::until("another candidate is elected", || {
        leader = terms(server).last().map(|(_, leader)| *leader);
        leader.is_some() && leader != before
    });
    leader.expect("somebody leads")
}

fn signal(id: u32, signal: &str) {
    let sent = Command::new("kill")
        .args([signal, &id.to_string()])
        .status();
    assert!(sent.is_ok_and(|status| status.success()), "kill {signal}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_leader_that_ends_is_replaced() {
    let server = Server::start();
    let mut candidates = Candidates(Vec::new());
    for _ in 0..3 {
        candidates.start(&server);
    }
    let killed = next_leader(&server, None);
    candidates.of(killed).kill().expect("it runs");
    let stopped = next_leader(&server, Some(killed));
    candidates.start(&server);

    signal(stopped, "-STOP");
    let resigned = next_leader(&server, Some(stopped));
    signal(stopped, "-CONT");

    let input = candidates.of(resigned).stdin.as_mut();
    writeln!(input.expect("it is piped"), "resign").expect("it reads");
    next_leader(&server, Some(resigned));

    let terms = terms(&server);
    assert!(
        terms.windows(2).all(|pair| pair[0].0 < pair[1].0),
        "{terms:?}"
    );
    let leaders: BTreeSet<u32> = terms.iter().map(|(_, leader)| *leader).collect();
    assert!(leaders.len() >= 3, "{terms:?}");
    // A leader that was stopped between its check and its write is late with that one write. Nobody
    // else has written as a former leader.
    let mut connection = server.connect();
    let stale: Vec<(u32, u32)> = redis::cmd("HGETALL")
        .arg("stale")
        .query(&mut connection)
        .expect("pairs of numbers");
    let allowed = |(process, count): &(u32, u32)| *process == stopped && *count <= 1;
    assert!(
        stale.iter().all(allowed),
        "{stale:?}, {stopped} was stopped"
    );
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn the_server_tells_who_holds_a_lock() {
    let server = Server::start();
    let store = store(&server.url());
    assert_eq!(store.holder_of("x", LIMIT).unwrap(), None);
    let claim = Claim::new("x", "a:1", Secret::new("a:1"), HELD);
    store.acquire(&claim.waiting(), LIMIT).expect("it is free");
    let holder = store.holder_of("x", LIMIT).unwrap().expect("it is held");
    assert_eq!(holder.owner, "a:1");
    assert!(holder.token > 0);
    assert!(holder.remaining <= HELD && holder.remaining > HELD / 2);
    // A lock that is released and reserved for a waiting caller has no holder.
    let other = Claim::new("x", "b:1", Secret::new("b:1"), HELD)
        .waiting()
        .waited(LEASE);
    store.acquire(&other, LIMIT).expect("an answer");
    store
        .release("x", Secret::new("a:1"), LIMIT)
        .expect("it was held");
    assert_eq!(store.holder_of("x", LIMIT).unwrap(), None);
    // Other kinds of keys are an error.
    server.cli(&["SET", "tourbillon:{y}:lock", "text"]);
    assert!(store.holder_of("y", LIMIT).is_err());
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_password_that_is_wrong_for_a_while_does_not_end_a_candidacy() {
    let server = Server::start();
    let user = ["ACL", "SETUSER", "locks", "on", "~*", "&*", "+@all"];
    server.cli(&[&user[..], &[">other"]].concat());
    let url = format!("redis://locks:s3cret@127.0.0.1:{}/", server.port());
    let leases = Leases::builder(store(&url)).lease(LEASE).build().unwrap();
    let (tell, told) = mpsc::channel();
    let election = leases.election("e").on_change(move |change| {
        let _ = tell.send(change.clone());
    });
    std::thread::scope(|scope| {
        let service = scope.spawn(|| {
            election.serve(|leadership| {
                while leadership.is_leader() {
                    std::thread::sleep(Duration::from_millis(2));
                }
            })
        });
        let failed = wait::next(&told);
        assert!(matches!(failed, Change::Failed { .. }), "{failed}");
        assert!(failed.to_string().contains("WRONGPASS"), "{failed}");
        assert!(election.status().error.is_some());
        server.cli(&["ACL", "SETUSER", "locks", ">s3cret"]);
        let elected = wait::next(&told);
        assert!(matches!(elected, Change::Elected { .. }), "{elected}");
        assert!(election.status().error.is_none());
        election.stop();
        service.join().expect("no panic").expect("it was stopped");
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_follower_hears_who_leads_on_a_server() {
    let server = Server::start();
    let of = |data: &str| {
        let builder = Leases::builder(store(&server.url())).lease(LEASE);
        builder.holder_data(data).build().unwrap()
    };
    let election = of("").election("e");
    let leaders = election.leaders().unwrap();
    assert_eq!(leaders.recv_timeout(LIMIT).unwrap(), None);
    for data in ["first", "second"] {
        let leadership = of(data).election("e").lead().wait().unwrap();
        let leader = leaders.recv_timeout(LIMIT).unwrap().expect("it leads");
        let own = (data, leadership.token());
        assert_eq!((leader.data.as_str(), leader.token), own);
        leadership.end().wait();
        assert_eq!(leaders.recv_timeout(LIMIT).unwrap(), None);
    }
}
