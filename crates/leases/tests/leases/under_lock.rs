//! What the types of leases do when user code uses or drops them while it runs under a lock of a
//! map.

use std::future::IntoFuture;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Duration;

use kit::wait::until;
use kit::wakes::{Wakes, poll};
use kit::ways::{Dropping, in_every_way, map};
use tourbillon::ExpiryMap;
use tourbillon_leases::{
    Event, KeepAlive, LeaseGuard, Leases, LockError, MemoryStore, Outcome, What,
};

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn a_lease_guard_gives_its_lock_back() {
    let leases = Leases::new(MemoryStore::new()).unwrap();
    in_every_way(
        // The drop of a guard waits for its release only for a moment.
        || {
            Box::new(
                leases
                    .lock("a")
                    .within(HOUR)
                    .wait()
                    .expect("the one before is given back"),
            )
        },
        |_| {
            until("it is given back", || {
                leases.lock("a").at_once().wait().is_ok()
            });
        },
    );
}

/// Its first poll asks the store, so it waits by timers of the leases.
#[test]
fn a_future_of_a_lock_gives_up() {
    let leases = Leases::new(MemoryStore::new()).unwrap();
    let wakes = Wakes::new();
    let held = leases.lock("a").at_once().wait().unwrap();
    in_every_way(
        || {
            let leases = leases.clone();
            let mut lock = Box::pin(async move { leases.lock("a").await.map(drop) });
            assert!(poll(&mut lock, &wakes).is_pending());
            Box::new(Mutex::new(lock))
        },
        |_| until("nobody waits", || leases.stats().waiting == 0),
    );
    assert!(held.is_held());
    held.release().wait().unwrap();
    assert!(leases.lock("a").at_once().wait().is_ok());
}

/// The look that finds a loss runs under a lock, and the event comes all the same.
#[test]
fn a_loss_that_is_found_under_a_lock_is_told() {
    let (leases, steps) = Leases::builder(MemoryStore::new())
        .build_stepped(1)
        .unwrap();
    let events = leases.events(64);
    let map = ExpiryMap::<u32, LeaseGuard>::builder()
        .time_to_live(HOUR)
        .build(|_, _| ())
        .unwrap();
    let guard = leases
        .lock("a")
        .lease(HOUR)
        .not_renewed()
        .at_once()
        .wait()
        .unwrap();
    assert!(map.insert(1, guard).is_ok());
    // The clock alone: no timer of the leases has looked.
    steps.clock().advance(HOUR);
    assert_eq!(map.with(&1, |guard| guard.is_held()), Some(false));
    steps.advance(Duration::from_millis(1));
    let lost = |event: Event<_>| matches!(event.what, What::Lost(_));
    assert!(events.try_iter().any(lost));
}

/// It panics, since it would have to wait there, and the guard's drop gives the lock back.
#[test]
fn a_release_under_a_lock_loses_nothing() {
    let leases = Leases::new(MemoryStore::new()).unwrap();
    let map = map();
    let guard = leases.lock("a").at_once().wait().unwrap();
    let release = || map.update(&Dropping::default(), |_| guard.release().wait());
    assert!(catch_unwind(AssertUnwindSafe(release)).is_err());
    until("it is given back", || {
        leases.lock("a").at_once().wait().is_ok()
    });
}

/// It would block there, as one that was not polled would.
#[test]
fn a_polled_future_is_not_waited_for_under_a_lock() {
    let leases = Leases::new(MemoryStore::new()).unwrap();
    let map = map();
    let held = leases.lock("a").at_once().wait().unwrap();
    let mut lock = leases.lock("a").into_future();
    assert!(poll(&mut lock, &Wakes::new()).is_pending());
    let wait = || map.update(&Dropping::default(), |_| lock.wait().is_ok());
    assert!(catch_unwind(AssertUnwindSafe(wait)).is_err());
    assert_eq!(leases.stats().waiting, 0);
    assert!(held.is_held());
}

/// Nothing is granted that could not be kept.
#[test]
fn an_acquire_under_a_lock_asks_for_nothing() {
    let store = MemoryStore::new();
    let leases = Leases::new(store.clone()).unwrap();
    let map = map();
    let acquire = || {
        map.update(&Dropping::default(), |_| {
            leases.lock("a").at_once().wait().is_ok()
        })
    };
    assert!(catch_unwind(AssertUnwindSafe(acquire)).is_err());
    assert!(store.holder("a").is_none());
    assert_eq!(leases.stats().releases_queued, 0);
    assert!(leases.lock("a").at_once().wait().is_ok());
}

/// A second panic would end the process, so it fails instead.
#[test]
fn an_acquire_under_a_lock_of_a_panicking_thread_fails() {
    struct Acquires<'a>(&'a Leases, &'a Mutex<Option<LockError>>);

    impl Drop for Acquires<'_> {
        fn drop(&mut self) {
            *self.1.lock().unwrap() = self.0.lock("a").at_once().wait().err();
        }
    }

    let store = MemoryStore::new();
    let leases = Leases::new(store.clone()).unwrap();
    let answer = Mutex::new(None);
    let panics = || {
        map().update(&Dropping::default(), |_| {
            let _acquires = Acquires(&leases, &answer);
            panic!("on purpose");
        })
    };
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    let error = answer.into_inner().unwrap().expect("it fails");
    assert!(error.to_string().contains("nothing was asked"), "{error}");
    assert!(store.holder("a").is_none());
    assert!(leases.lock("a").at_once().wait().is_ok());
}

#[test]
fn what_a_watchdog_keeps_is_kept_no_more() {
    let keep_alive = KeepAlive::<u32>::builder()
        .build(async |batch| Ok(vec![Outcome::Renewed; batch.entries().len()]))
        .unwrap();
    in_every_way(
        || Box::new(keep_alive.keep(1, HOUR).unwrap()),
        |_| assert_eq!(keep_alive.stats().kept, 0),
    );
}

#[test]
fn the_last_leases_wait_for_their_releases_when_the_lock_is_free() {
    let store = MemoryStore::new();
    in_every_way(
        || {
            let leases = Leases::new(store.clone()).unwrap();
            let guard = leases
                .lock("a")
                .at_once()
                .wait()
                .expect("the one before is given back");
            Box::new((guard, leases))
        },
        |_| until("it is given back", || store.holder("a").is_none()),
    );
}
