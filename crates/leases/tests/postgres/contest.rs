//! Holders that compete for a lock while their server and its connections fail: no two believe in it
//! at one time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use chaos::servers::postgres::{Cluster, Database, database};
use tourbillon_leases::{Leases, PostgresStore};

use crate::shop::{LIMIT, psql};

/// What a holder knows of its holding.
struct Held {
    token: u64,
    /// After the answer.
    granted: Instant,
    /// Before the last question that was answered by yes.
    last_yes: Instant,
}

/// What the holders of one lock have seen of it.
#[derive(Default)]
struct Seen {
    held: Mutex<Vec<Held>>,
    over: AtomicBool,
}

/// Holds the lock again and again until it is over. Each holder has a store of its own.
fn hold(database: &Database, lease: Duration, rounds: usize, seen: &Seen) {
    let store = PostgresStore::builder(&database.url());
    let store = store.longest_lease(lease).build().unwrap();
    let leases = Leases::builder(store).lease(lease).build().unwrap();
    let mut held = 0;
    while !seen.over.load(SeqCst) && held < rounds {
        let Ok(guard) = leases.lock("contested").within(lease).wait() else {
            continue;
        };
        let granted = Instant::now();
        let mut last_yes = granted;
        for _ in 0..4 {
            let asked = Instant::now();
            if !guard.is_held() {
                break;
            }
            last_yes = asked;
            thread::sleep(Duration::from_micros(300));
        }
        held += 1;
        seen.held.lock().unwrap().push(Held {
            token: guard.token(),
            granted,
            last_yes,
        });
        drop(guard);
    }
}

impl Seen {
    fn grants(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    /// Waits for some more grants.
    fn goes_on(&self) {
        let before = self.grants();
        kit::wait::until("it goes on", || self.grants() >= before + 5);
    }

    #[track_caller]
    fn judge(&self, least: usize) {
        let mut held = self.held.lock().unwrap();
        assert!(held.len() >= least, "{} grants", held.len());
        held.sort_by_key(|held| held.token);
        for pair in held.windows(2) {
            assert!(pair[0].token < pair[1].token, "a token was granted twice");
            let overlap = pair[0].last_yes.checked_duration_since(pair[1].granted);
            assert_eq!(overlap, None, "token {}", pair[1].token);
        }
    }
}

/// Ends the holders, also if the test fails.
struct Over<'a>(&'a Seen);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, SeqCst);
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn holders_that_compete_never_overlap() {
    let database = database();
    let seen = Seen::default();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| hold(&database, LIMIT, 25, &seen));
        }
    });
    seen.judge(100);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn holders_that_compete_while_connections_are_cut_and_the_server_crashes_never_overlap() {
    let mut cluster = Cluster::durable();
    let database = cluster.database();
    let seen = Seen::default();
    let cut = "select pg_terminate_backend(pid) from pg_stat_activity \
               where datname = current_database() and pid <> pg_backend_pid()";
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| hold(&database, Duration::from_secs(3), usize::MAX, &seen));
        }
        let _over = Over(&seen);
        for round in 0..6 {
            seen.goes_on();
            match round % 2 {
                0 => drop(psql(&database, cut)),
                _ => cluster.restart(),
            }
        }
        seen.goes_on();
    });
    seen.judge(30);
}
