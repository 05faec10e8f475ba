//! Callers that wait: who wakes them, and whose turn it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use chaos::servers::postgres::{Database, database};
use kit::wait;
use tourbillon_leases::{Acquired, Claim, Leases, PostgresStore, Released, Secret, Watch};

use crate::calls::Calls;
use crate::shop::{LEASE, LIMIT, MS, granted, held, psql, release, store};

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A caller that is told of releases.
struct Waiting {
    woken: Arc<Woken>,
    place: Box<dyn Watch>,
}

impl Waiting {
    fn of(store: &PostgresStore, name: &str) -> Self {
        let woken = Arc::new(Woken::default());
        let place = store.watch(name, &Waker::from(Arc::clone(&woken)));
        Waiting {
            woken,
            place: place.expect("it can announce releases"),
        }
    }

    fn times(&self) -> usize {
        self.woken.0.load(SeqCst)
    }

    /// Waits until the store listens, which it says by waking everybody.
    fn listens(&self) {
        wait::until("it listens", || self.times() > 0);
    }
}

fn claim<'a>(name: &'a str, owner: &'a str, waited: Duration) -> Claim<'a> {
    let claim = Claim::new(name, owner, Secret::new(owner), LEASE);
    claim.waiting().waited(waited)
}

/// How many sessions listen.
fn listeners(database: &Database) -> String {
    psql(
        database,
        "select count(*) from pg_stat_activity \
         where datname = current_database() and query like 'select pg_notify(%'",
    )
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_release_wakes_one_caller_of_another_store_that_has_asked() {
    let database = database();
    let (one, other) = (store(&database), store(&database));
    granted(&one, "x", "a:1");
    granted(&one, "y", "a:1");
    let first = Waiting::of(&other, "x");
    first.listens();
    first.place.looks();
    let second = Waiting::of(&other, "x");
    let before = (first.times(), second.times());
    // Nobody has asked for it, so nothing is announced.
    assert_eq!(release(&one, "y", "a:1"), Released::Released);
    held(&other, &claim("x", "b:1", Duration::ZERO));
    assert_eq!(release(&one, "x", "a:1"), Released::Released);
    wait::until("one is woken", || first.times() > before.0);
    assert_eq!((first.times(), second.times()), (before.0 + 1, before.1));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_waiting_caller_gets_the_lock_long_before_it_would_ask_again() {
    let database = database();
    let holders = Leases::new(store(&database)).unwrap();
    // Without announcements they would ask in an hour.
    let waiting = Leases::builder(store(&database)).poll(Duration::from_secs(3_600));
    let waiting = waiting.build().unwrap();
    for _ in 0..5 {
        let guard = holders.lock("x").wait().unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let guard = waiting.lock("x").within(LIMIT).wait();
                guard.unwrap().release().wait().unwrap();
            });
            wait::until("it waits", || {
                psql(
                    &database,
                    "select count(*) from tourbillon_leases.lease where waiter is not null",
                ) == "1"
            });
            let start = Instant::now();
            guard.release().wait().unwrap();
            waits.join().unwrap();
            // The lease of a holder would end later, too.
            assert!(start.elapsed() < LEASE);
        });
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_store_whose_caller_has_waited_for_a_turn_gets_the_name_first() {
    let database = database();
    let (one, other) = (store(&database), store(&database));
    let first = granted(&one, "x", "a:1");
    held(&other, &claim("x", "b:1", 100 * MS));
    // Of a shorter wait nothing is written, of a longer one it is.
    let noted = |store: &PostgresStore, waited| {
        held(store, &claim("x", "c:1", waited));
        psql(
            &database,
            "select extract(epoch from now() - since) * 1000 from tourbillon_leases.lease",
        )
        .parse::<f64>()
        .unwrap()
    };
    assert!(noted(&one, 10 * MS) >= 100.0);
    assert!(noted(&one, Duration::from_secs(1)) >= 1_000.0);
    held(&other, &claim("x", "b:1", Duration::from_secs(10)));
    assert_eq!(release(&one, "x", "a:1"), Released::Released);
    // It lasts for 25 ms, which a busy machine may take for this. Then it is still no other's.
    let eager = claim("x", "a:2", Duration::ZERO);
    match one.acquire(&eager, LIMIT) {
        Ok(Acquired::Held { remaining }) => assert!(remaining <= 25 * MS, "{remaining:?}"),
        Ok(Acquired::Granted { .. }) => return,
        answer => panic!("{answer:?}"),
    }
    let due = claim("x", "b:1", Duration::from_secs(10));
    let Ok(Acquired::Granted { token, .. }) = other.acquire(&due, LIMIT) else {
        panic!("it is reserved for it, or free by now");
    };
    assert!(token > first);
    // The caller that was refused is told of the next release.
    let waiting = Waiting::of(&one, "x");
    waiting.listens();
    waiting.place.looks();
    let before = waiting.times();
    assert_eq!(release(&other, "x", "b:1"), Released::Released);
    wait::until("it is woken", || waiting.times() > before);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_reservation_ends_by_itself_and_when_nobody_waits_any_more() {
    let database = database();
    let (one, other) = (store(&database), store(&database));
    let waiter = "select waiter is null, announce from tourbillon_leases.lease where name = 'x'";
    granted(&one, "x", "a:1");
    held(&other, &claim("x", "b:1", LEASE));
    // Another one of the same store waits still.
    let place = Waiting::of(&other, "x");
    assert_eq!(other.leave("x", "b:1", LIMIT), Ok(()));
    assert_eq!(psql(&database, waiter), "f|f");
    drop(place);
    assert_eq!(one.leave("x", "b:1", LIMIT), Ok(()));
    assert_eq!(psql(&database, waiter), "f|f");
    assert_eq!(other.leave("x", "b:1", LIMIT), Ok(()));
    // Others who have waited for less are told.
    assert_eq!(psql(&database, waiter), "t|t");
    assert_eq!(release(&one, "x", "a:1"), Released::Released);
    granted(&one, "x", "a:2");
    // The reservation of a caller that has died costs a moment.
    held(&other, &claim("x", "b:1", LEASE));
    assert_eq!(release(&one, "x", "a:2"), Released::Released);
    wait::until("it is free", || {
        let claim = Claim::new("x", "a:3", Secret::new("a:3"), LEASE);
        matches!(one.acquire(&claim, LIMIT), Ok(Acquired::Granted { .. }))
    });
    assert_eq!(psql(&database, waiter), "t|f");
    assert_eq!(other.leave("nobody's", "b:1", LIMIT), Ok(()));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_connection_that_listens_is_made_anew_and_ends_with_the_last_caller() {
    let database = database();
    let (one, other) = (store(&database), store(&database));
    granted(&one, "x", "a:1");
    let waiting = Waiting::of(&other, "x");
    waiting.listens();
    wait::until("it has tested itself", || listeners(&database) == "1");
    let before = waiting.times();
    let cut = "select pg_terminate_backend(pid) from pg_stat_activity \
               where datname = current_database() and query like 'select pg_notify(%'";
    psql(&database, cut);
    // Something may have been announced meanwhile.
    wait::until("it listens again", || waiting.times() > before);
    wait::until("it has tested itself", || listeners(&database) == "1");
    held(&other, &claim("x", "b:1", Duration::ZERO));
    waiting.place.looks();
    let before = waiting.times();
    assert_eq!(release(&one, "x", "a:1"), Released::Released);
    wait::until("it is woken", || waiting.times() > before);
    drop(waiting);
    wait::until("nobody listens", || listeners(&database) == "0");
    // And again.
    let waiting = Waiting::of(&other, "x");
    waiting.listens();
}
