//! Callers that wait, and what wakes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use chaos::servers::etcd::Server;
use kit::wait;
use tourbillon_etcd::EtcdStore;
use tourbillon_leases::{Acquired, Claim, Leases, Released, Secret, Watch};

use crate::calls::Calls;
use crate::common::{LEASE, LIMIT, S, claim, granted, held, patiently, place, release};

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
    fn of(store: &EtcdStore, name: &str) -> Self {
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

    /// Waits until the store listens, which it says by waking everybody once. For the first caller that waits.
    fn is_heard(&self) {
        wait::until("it listens", || self.times() > 0);
        self.place.looks();
    }
}

fn listens(store: &EtcdStore) -> bool {
    format!("{store:?}").contains("listens: true")
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_release_wakes_one_caller_of_another_store_and_of_the_same() {
    let place = place();
    let (one, other) = (place.store(), place.store());
    // It keeps the watch alive.
    let keeper = Waiting::of(&other, "k");
    keeper.is_heard();
    for holder in [&one, &other] {
        granted(&one, "x", "a:1");
        granted(holder, "y", "a:1");
        let first = Waiting::of(&other, "y");
        let second = Waiting::of(&other, "y");
        let third = Waiting::of(&other, "z");
        let before = (first.times(), second.times(), third.times());
        // Nobody waits for it.
        assert_eq!(release(&one, "x", "a:1"), Released::Released);
        // A put of another lease wakes nobody.
        held(&other, &claim("y", "b:1").waiting());
        assert_eq!(release(holder, "y", "a:1"), Released::Released);
        wait::until("one is woken", || first.times() > before.0);
        granted(&one, "w", "a:1");
        let last = Waiting::of(&other, "w");
        assert_eq!(release(&one, "w", "a:1"), Released::Released);
        wait::until("a later one is woken", || last.times() > 0);
        assert_eq!(
            (first.times(), second.times(), third.times()),
            (before.0 + 1, before.1, before.2)
        );
    }
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn the_end_of_a_lease_wakes_a_caller() {
    let store = place().store();
    let short = Claim::new("x", "a:1", Secret::new("a:1"), 2 * S);
    assert!(matches!(
        store.acquire(&short, LIMIT),
        Ok(Acquired::Granted { .. })
    ));
    let waiting = Waiting::of(&store, "x");
    waiting.is_heard();
    let before = waiting.times();
    wait::until("it is woken", || waiting.times() > before);
    granted(&store, "x", "b:1");
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_waiting_caller_gets_the_lock_long_before_it_would_ask_again() {
    let place = place();
    let holders = Leases::new(place.store()).unwrap();
    let own = place.store();
    // Without announcements they would ask in an hour.
    let waiting = Leases::builder(own.clone()).poll(Duration::from_secs(3_600));
    let waiting = waiting.build().unwrap();
    for _ in 0..5 {
        let guard = holders.lock("x").lease(LEASE).wait().unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let guard = waiting.lock("x").within(LIMIT).wait();
                guard.unwrap().release().wait().unwrap();
            });
            wait::until("it waits", || listens(&own));
            let start = Instant::now();
            guard.release().wait().unwrap();
            waits.join().unwrap();
            // The lease of a holder would end later, too.
            assert!(start.elapsed() < LEASE / 2);
        });
    }
    wait::until("nobody listens any more", || !listens(&own));
    // And again.
    let guard = holders.lock("x").wait().unwrap();
    let again = Waiting::of(&own, "x");
    again.is_heard();
    let before = again.times();
    guard.release().wait().unwrap();
    wait::until("it is woken", || again.times() > before);
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_watch_is_made_anew_after_a_restart_and_the_waiting_callers_ask_again() {
    let mut server = Server::start();
    let (one, other) = [(); 2]
        .map(|()| EtcdStore::open(&server.url()).unwrap())
        .into();
    granted(&one, "x", "a:1");
    let waiting = Waiting::of(&other, "x");
    waiting.is_heard();
    let before = waiting.times();
    server.restart();
    // Something may have been released meanwhile.
    wait::until("it is woken", || waiting.times() > before);
    waiting.place.looks();
    wait::until("it listens again", || listens(&other));
    let before = waiting.times();
    let released = patiently(|| one.release("x", Secret::new("a:1"), LIMIT));
    assert_eq!(released, Ok(Released::Released));
    wait::until("it is woken", || waiting.times() > before);
    // While nothing listens, a release wakes the callers of its own store.
    granted(&one, "y", "a:1");
    let own = Waiting::of(&one, "y");
    own.is_heard();
    server.kill();
    wait::until("nothing listens", || !listens(&one));
    own.place.looks();
    let before = own.times();
    assert!(one.release("y", Secret::new("a:1"), S).is_err());
    wait::until("it is woken", || own.times() > before);
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_waker_that_panics_keeps_nobody_else_from_being_woken() {
    #[derive(Default)]
    struct Panics(Woken);

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            self.0.0.fetch_add(1, SeqCst);
            panic!("on purpose");
        }
    }

    let place = place();
    let (store, other) = (place.store(), place.store());
    let panics = Arc::new(Panics::default());
    let bomb = store.watch("x", &Waker::from(Arc::clone(&panics))).unwrap();
    // Beside it, on both sides, whatever the order is in which they are woken.
    let waiting = ["w", "x", "y"].map(|name| Waiting::of(&store, name));
    wait::until("the watch begins", || {
        waiting.iter().all(|one| one.times() > 0)
    });
    assert!(panics.0.0.load(SeqCst) > 0);
    // A release wakes the bomb, and the watch goes on.
    waiting.iter().for_each(|one| one.place.looks());
    bomb.looks();
    let bombs = panics.0.0.load(SeqCst);
    let before = waiting[2].times();
    for name in ["x", "y"] {
        granted(&other, name, "a:1");
        assert_eq!(release(&other, name, "a:1"), Released::Released);
    }
    wait::until("it is woken", || waiting[2].times() > before);
    assert!(panics.0.0.load(SeqCst) > bombs && listens(&store));
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_watch_that_nobody_needs_ends_also_while_names_are_released() {
    let place = place();
    let (own, other) = (place.store(), place.store());
    let waiting = Waiting::of(&own, "x");
    waiting.is_heard();
    drop(waiting);
    let start = Instant::now();
    while listens(&own) {
        assert!(start.elapsed() < LIMIT, "it still listens");
        granted(&other, "y", "a:1");
        assert_eq!(release(&other, "y", "a:1"), Released::Released);
    }
}
