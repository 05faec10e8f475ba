//! The store on Redis over TLS, and connections to servers that take them and say nothing.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use kit::wait;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use tourbillon_leases::{
    Claim, Leases, LockError, RedisBuildError, RedisStore, RedisStoreBuilder, Secret, StoreError,
};

use crate::calls::Calls;

use chaos::servers::redis::{Server, free_port};

const LEASE: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(60);

/// An authority, and what it has issued.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A name of its own: what it issues would seem to be its own work otherwise.
        let name = "an authority of tests";
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Authority {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// A certificate for a host, and its key, both in PEM.
    fn issue(&self, host: &str, expired: bool) -> (String, String) {
        let mut params = CertificateParams::new([host.to_owned()]).expect("a host");
        if expired {
            params.not_before = date_time_ymd(2_001, 1, 1);
            params.not_after = date_time_ymd(2_002, 1, 1);
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }
}

/// A server that speaks TLS on a second port.
struct Secured {
    server: Server,
    port: u16,
    folder: std::path::PathBuf,
}

impl Secured {
    fn start(authority: &Authority, certified: &(String, String), clients: &str) -> Self {
        Secured::with(authority, certified, clients, &[])
    }

    fn with(
        authority: &Authority,
        (certificate, key): &(String, String),
        clients: &str,
        options: &[&str],
    ) -> Self {
        let port = free_port();
        let folder = std::env::temp_dir().join(format!("tourbillon-tls-{port}"));
        fs::create_dir_all(&folder).expect("a folder");
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).expect("a file");
            path.to_str().expect("a plain path").to_owned()
        };
        let authority = file("ca.crt", &authority.pem);
        let (certificate, key) = (file("own.crt", certificate), file("own.key", key));
        let tls = [
            "--save",
            "",
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &authority,
            "--tls-auth-clients",
            clients,
        ];
        let server = Server::with(&[&tls[..], options].concat());
        Secured {
            server,
            port,
            folder,
        }
    }

    /// A store that does not wait after the start of the server.
    fn store(&self, trusted: &Authority) -> RedisStoreBuilder {
        tls("127.0.0.1", self.port, trusted)
    }
}

impl Drop for Secured {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn tls(host: &str, port: u16, trusted: &Authority) -> RedisStoreBuilder {
    RedisStore::builder(&format!("rediss://{host}:{port}/"))
        .durable()
        .tls_root_certificate_pem(trusted.pem.as_bytes())
}

/// Stands before a server, and can say nothing.
struct Gate {
    port: u16,
    silent: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Gate {
    fn before(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let gate = Gate {
            port: listener.local_addr().expect("it is bound").port(),
            silent: Arc::new(AtomicBool::new(false)),
            streams: Arc::default(),
        };
        let (silent, streams) = (Arc::clone(&gate.silent), Arc::clone(&gate.streams));
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else {
                    continue;
                };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    streams.lock().unwrap().push(from.try_clone().unwrap());
                    let silent = Arc::clone(&silent);
                    thread::spawn(move || pump(from, to, &silent));
                }
            }
        });
        gate
    }

    fn silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::SeqCst);
    }
}

/// What comes while it is silent gets lost.
fn pump(mut from: TcpStream, mut to: TcpStream, silent: &AtomicBool) {
    let mut buffer = [0; 16 * 1_024];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if !silent.load(Ordering::SeqCst) && to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

impl Drop for Gate {
    fn drop(&mut self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

#[track_caller]
fn refused(builder: RedisStoreBuilder, words: &str) {
    let leases = Leases::new(builder.build().expect("the options are good")).unwrap();
    // It does not wait for what will be so again.
    match leases.lock("x").wait() {
        Err(LockError::Store {
            error: StoreError::Refused(why),
            ..
        }) => {
            assert!(why.contains(words), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn locks_are_had_and_released_over_tls_and_waiters_are_woken() {
    let authority = Authority::new();
    let server = Secured::start(&authority, &authority.issue("127.0.0.1", false), "no");
    let [one, other] = [(); 2].map(|()| {
        let store = server.store(&authority).build().unwrap();
        // Nobody asks anew before the time of the test is over: only the release wakes.
        Leases::builder(store).poll(10 * LIMIT).lease(LEASE)
    });
    let (one, other) = (one.build().unwrap(), other.build().unwrap());
    let first = one.lock("x").wait().unwrap();
    let held = other.lock("x").at_once().wait();
    assert!(matches!(held, Err(LockError::Held { .. })), "{held:?}");
    let second = thread::scope(|scope| {
        let waits = scope.spawn(|| other.lock("x").wait());
        let listeners = || server.server.cli(&["CLIENT", "LIST", "TYPE", "pubsub"]);
        wait::until("it listens", || listeners().contains("cmd=subscribe"));
        let marked = || {
            server
                .server
                .cli(&["HEXISTS", "tourbillon:{x}:lock", "next"])
        };
        wait::until("it has asked", || marked() == "(integer) 1");
        let released = first.release().wait();
        assert_eq!(released, Ok(()));
        waits.join().unwrap()
    });
    assert!(second.unwrap().release().wait().is_ok());
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_certificate_that_is_not_accepted_is_refused_at_once() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = Secured::start(&authority, &authority.issue("127.0.0.1", false), "no");
    refused(
        server.store(&stranger),
        "the server's certificate is not accepted",
    );
    refused(
        tls("localhost", server.port, &authority),
        "not valid for name",
    );
    // The system's authorities did not issue it.
    let url = format!("rediss://127.0.0.1:{}/", server.port);
    match RedisStore::builder(&url).durable().build() {
        Ok(store) => {
            let asked = store.check(LIMIT);
            assert!(matches!(asked, Err(StoreError::Refused(_))), "{asked:?}");
        }
        Err(RedisBuildError::Tls(why)) => assert!(why.contains("no root certificates"), "{why}"),
        Err(other) => panic!("{other}"),
    }
    let late = Secured::start(&authority, &authority.issue("127.0.0.1", true), "no");
    refused(late.store(&authority), "expired");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_server_that_asks_for_certificates_gets_the_clients() {
    let authority = Authority::new();
    let server = Secured::start(&authority, &authority.issue("127.0.0.1", false), "yes");
    let (certificate, key) = authority.issue("client", false);
    let known = server
        .store(&authority)
        .tls_client_certificate_pem(certificate.clone(), key)
        .build();
    assert_eq!(known.unwrap().check(LIMIT), Ok(()));
    let unknown = server.store(&authority).build().unwrap();
    // The server may close the connection before its word has been read.
    wait::until("it says why", || match unknown.check(LIMIT) {
        Err(StoreError::Refused(why)) => why.contains("the client's certificate"),
        Err(StoreError::Unavailable(_)) => false,
        other => panic!("{other:?}"),
    });
    let keyless = server.store(&authority);
    let keyless = keyless
        .tls_client_certificate_pem(certificate, "no key")
        .build();
    let error = keyless.unwrap_err().to_string();
    assert!(
        error.contains("the client's private key is no key in PEM"),
        "{error}"
    );
}

#[test]
fn a_listener_that_says_nothing_costs_no_more_than_the_limit() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    let plain = |user: &str| RedisStore::builder(&format!("redis://{user}127.0.0.1:{port}/1"));
    let stores = [
        tls("127.0.0.1", port, &Authority::new()),
        plain(""),
        plain("me:secret@"),
    ];
    for builder in stores {
        let again = builder.clone();
        let leases = Leases::new(builder.build().unwrap()).unwrap();
        let start = Instant::now();
        let waited = thread::scope(|scope| {
            // All of them want one connection.
            let wait = || leases.lock("x").within(Duration::from_secs(1)).wait();
            [(); 4]
                .map(|()| scope.spawn(wait))
                .map(|one| one.join().unwrap())
        });
        for answer in waited {
            match answer {
                Err(LockError::Unanswered { error, .. }) => assert!(error.may_pass()),
                other => panic!("{other:?}"),
            }
        }
        let other = again.build().unwrap();
        let asked = other.acquire(
            &Claim::new("x", "me", Secret::new("me"), LEASE),
            Duration::from_millis(50),
        );
        // The second one on a machine that is too busy to start a thread in that time.
        let late = ["no answer in time", "no thread began the call within 50ms"];
        let error = asked.expect_err("nobody answers").to_string();
        assert!(late.iter().any(|late| error.contains(late)), "{error}");
        // A busy machine has its own delays; without a limit it takes for ever.
        assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn after_a_silence_a_call_is_answered_at_once() {
    let authority = Authority::new();
    let server = Secured::start(&authority, &authority.issue("127.0.0.1", false), "no");
    let gate = Gate::before(server.port);
    let store = tls("127.0.0.1", gate.port, &authority);
    let leases = Leases::new(store.build().unwrap()).unwrap();
    leases.lock("x").wait().unwrap().release().wait().unwrap();
    gate.silent(true);
    thread::scope(|scope| {
        for name in 0..8 {
            let leases = &leases;
            scope.spawn(move || {
                let name = name.to_string();
                let answer = leases.lock(&name).within(Duration::from_millis(500)).wait();
                assert!(
                    matches!(answer, Err(LockError::Unanswered { .. })),
                    "{answer:?}"
                );
            });
        }
    });
    gate.silent(false);
    // At once: no call before has left its connection.
    let guard = leases.lock("y").at_once().wait().unwrap();
    guard.release().wait().unwrap();
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn sentinels_and_their_master_are_asked_over_tls() {
    let authority = Authority::new();
    let master = Secured::start(&authority, &authority.issue("127.0.0.1", false), "no");
    let port = free_port().to_string();
    let file = |name: &str| master.folder.join(name).to_str().unwrap().to_owned();
    let (certificate, key, trusted) = (file("own.crt"), file("own.key"), file("ca.crt"));
    let _sentinel = Server::watching(
        master.port,
        &[
            "--tls-port",
            &port,
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &trusted,
            "--tls-auth-clients",
            "no",
            "--tls-replication",
            "yes",
        ],
    );
    let at = |trusted: &Authority| {
        let url = format!("rediss-sentinel://127.0.0.1:{port}/shop");
        let builder = RedisStore::builder(&url).starts_empty();
        let builder = builder.tls_root_certificate_pem(trusted.pem.clone());
        builder.build().unwrap()
    };
    assert_eq!(at(&authority).check(LIMIT), Ok(()));
    let leases = Leases::new(at(&authority)).unwrap();
    leases.lock("x").wait().unwrap().release().wait().unwrap();
    let refused = at(&Authority::new()).check(LIMIT);
    let Err(StoreError::Refused(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.contains("certificate is not accepted"), "{why}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_cluster_over_tls_names_its_ports_for_tls() {
    let authority = Authority::new();
    let issued = authority.issue("127.0.0.1", false);
    let options = ["--cluster-enabled", "yes", "--tls-cluster", "yes"];
    let node = Secured::with(&authority, &issued, "no", &options);
    node.server.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    node.server.until(&["CLUSTER", "INFO"], "cluster_state:ok");
    let url = format!("rediss-cluster://127.0.0.1:{}/", node.port);
    let store = RedisStore::builder(&url).starts_empty();
    let store = store
        .tls_root_certificate_pem(&*authority.pem)
        .build()
        .unwrap();
    for name in ["a", "b", "c"] {
        let claim = Claim::new(name, "a:1", Secret::new("a:1"), LEASE);
        assert!(store.acquire(&claim, LIMIT).is_ok());
    }
    assert_eq!(store.check(LIMIT), Ok(()));
    let stranger = Authority::new();
    let store = RedisStore::builder(&url).tls_root_certificate_pem(&*stranger.pem);
    let refused = store.build().unwrap().check(LIMIT);
    let Err(StoreError::Refused(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.contains("certificate is not accepted"), "{why}");
}
