//! Holders that compete for a lock while leaders are stopped and come back: no two believe in it at one time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use chaos::servers::etcd::Server;
use kit::wait;
use tourbillon_etcd::EtcdStore;
use tourbillon_leases::{Acquired, Claim, Outcome, Renewal, Secret};

use crate::calls::Calls;
use crate::common::{MS, S};

/// What a holder knows of its holding.
struct Held {
    token: u64,
    /// After the answer.
    granted: Instant,
    /// Until when it has believed in the lock.
    ends: Instant,
}

#[derive(Default)]
struct Seen {
    held: Mutex<Vec<Held>>,
    is_over: AtomicBool,
}

/// Takes the lock, renews it some times, and lets it run out, as a process does that dies.
fn hold(store: &EtcdStore, who: usize, seen: &Seen) {
    for number in 0.. {
        if seen.is_over.load(SeqCst) {
            return;
        }
        let secret = format!("{who} {number}");
        let claim = Claim::new("contested", "a", Secret::new(&secret), S);
        let asked = Instant::now();
        let Ok(Acquired::Granted { token, .. }) = store.acquire(&claim, S) else {
            thread::park_timeout(20 * MS);
            continue;
        };
        let granted = Instant::now();
        let mut ends = asked + S;
        let renewal = Renewal::new("contested", Secret::new(&secret), S);
        for _ in 0..12 {
            let asked = Instant::now();
            if asked >= ends {
                break;
            }
            let renewed = store.renew(Default::default(), &[renewal], 300 * MS);
            // An answer that comes too late is one of a lost lock.
            if renewed == Ok(vec![Outcome::Renewed]) && Instant::now() < ends {
                ends = asked + S;
            }
            thread::park_timeout(50 * MS);
        }
        seen.held.lock().unwrap().push(Held {
            token,
            granted,
            ends,
        });
    }
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn holders_that_compete_while_leaders_are_stopped_never_overlap() {
    let servers = Server::three();
    let seen = Seen::default();
    let stores: Vec<_> = servers
        .iter()
        .map(|server| EtcdStore::open(&server.url()).unwrap())
        .collect();
    thread::scope(|scope| {
        // Each is connected to one server alone, so that some ask a leader that was replaced.
        for (who, store) in stores.iter().enumerate() {
            let seen = &seen;
            scope.spawn(move || hold(store, who, seen));
        }
        let grants = || seen.held.lock().unwrap().len();
        for _ in 0..5 {
            let mut leads = None;
            wait::until("one leads", || {
                leads = servers.iter().position(Server::leads);
                leads.is_some()
            });
            let leader = &servers[leads.unwrap()];
            leader.stop();
            // Longer than an election takes.
            thread::sleep(Duration::from_millis(1_300));
            leader.resume();
            let before = grants();
            wait::until("it goes on", || grants() > before);
        }
        seen.is_over.store(true, SeqCst);
    });
    let mut held = seen.held.into_inner().unwrap();
    held.sort_by_key(|held| held.token);
    assert!(held.len() >= 5, "{} grants", held.len());
    for pair in held.windows(2) {
        assert!(pair[0].token < pair[1].token, "a token was granted twice");
        let overlap = pair[0].ends.checked_duration_since(pair[1].granted);
        assert_eq!(overlap, None, "token {}", pair[1].token);
    }
}
