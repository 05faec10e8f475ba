//! Callers that give up, and the reservations that were made for them.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::wait;
use kit::wakes::{Wakes, poll};
use tourbillon::{Clock, ManualClock, Time};
use tourbillon_leases::{
    Acquired, Claim, Fault, Leases, LockError, MemoryStore, Released, Secret, StoreCall,
};

use crate::calls::Calls;
use crate::worlds::{LEASE, MS, S, all_down, threads, threads_of};

/// Notes who gives up.
fn leavers(store: &MemoryStore) -> Arc<Mutex<Vec<String>>> {
    let left = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&left);
    store.inject(move |call| {
        if let StoreCall::Leave { name, .. } = call {
            noted.lock().unwrap().push((*name).to_owned());
        }
        Fault::None
    });
    left
}

#[test]
fn a_caller_that_waited_and_gives_up_is_reported_to_the_store() {
    let world = threads();
    let _guard = world
        .leases
        .lock("a")
        .lease(600 * S)
        .at_once()
        .wait()
        .unwrap();
    let left = leavers(&world.store);
    // Without a wait nothing was noted.
    assert!(world.leases.lock("a").at_once().wait().is_err());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| world.leases.lock("a").within(5 * S).wait());
        wait::until("the wait is over", || {
            world.hand.advance(10 * MS);
            waiting.is_finished()
        });
        assert!(matches!(
            waiting.join().unwrap(),
            Err(LockError::TimedOut { .. })
        ));
    });
    wait::until("it is reported", || !left.lock().unwrap().is_empty());
    assert_eq!(*left.lock().unwrap(), ["a"]);
    // A store that fails changes nothing.
    world.store.inject(all_down);
}

#[test]
fn a_caller_that_gets_the_lock_is_not_reported() {
    let world = threads();
    // Longer than the clock moves here, whatever the renewals do.
    let guard = world
        .leases
        .lock("a")
        .lease(600 * S)
        .at_once()
        .wait()
        .unwrap();
    let left = leavers(&world.store);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| world.leases.lock("a").within(300 * S).wait());
        wait::until("it waits", || world.leases.stats().waiting == 1);
        world.hand.advance(5 * S);
        guard.release().wait().unwrap();
        wait::until("it has the lock", || {
            world.hand.advance(10 * MS);
            waiting.is_finished()
        });
        waiting.join().unwrap().unwrap().release().wait().unwrap();
    });
    // A later call on a worker.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(world.leases.holder("a")).unwrap();
    assert!(left.lock().unwrap().is_empty());
}

#[test]
fn nothing_is_reserved_after_the_last_waiting_caller_has_left() {
    let hand = ManualClock::starting_at(Time::from_nanos(1 << 60));
    let store = MemoryStore::with_clock(Clock::manual(&hand));
    let limit = S;
    let acquire = |claim: Claim<'_>| store.acquire(&claim, limit).unwrap();
    let granted = |answer| matches!(answer, Acquired::Granted { .. });
    let due = || {
        Claim::new("a", "due", Secret::new("due"), LEASE)
            .waiting()
            .waited(50 * MS)
    };
    for (leaves, watched) in [(false, false), (true, false), (true, true)] {
        assert!(granted(acquire(Claim::new(
            "a",
            "first",
            Secret::new("first"),
            LEASE
        ))));
        assert!(!granted(acquire(due())));
        let other = watched.then(|| store.watch("a", std::task::Waker::noop()));
        if leaves {
            store.leave("a", "due", limit).unwrap();
        }
        assert_eq!(
            store.release("a", Secret::new("first"), limit),
            Ok(Released::Released)
        );
        // Others still wait for it, or nobody does.
        let free = leaves && !watched;
        assert_eq!(
            granted(acquire(Claim::new(
                "a",
                "second",
                Secret::new("second"),
                LEASE
            ))),
            free
        );
        drop(other);
        // It may also be released already.
        store.leave("a", "due", limit).unwrap();
        assert!(granted(acquire(Claim::new(
            "a",
            "second",
            Secret::new("second"),
            LEASE
        ))));
        store.release("a", Secret::new("second"), limit).unwrap();
    }
}

/// Those who give up are noted by the workers that also look for followers.
#[test]
fn a_destination_that_hangs_leaves_workers_to_the_followers_of_another_one() {
    let world = threads_of(2, |builder| builder);
    let mut names = (0..).map(|at| format!("n{at}"));
    let mut name = |of| {
        names
            .find(|name| world.store.destination(name).get() == of)
            .unwrap()
    };
    let (bad, good) = (name(0), name(1));
    let _held = world.leases.lock(&bad).wait().unwrap();
    let left = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&left);
    world.store.inject(move |call| match call {
        StoreCall::Leave { .. } => {
            count.fetch_add(1, SeqCst);
            Fault::Hang
        }
        _ => Fault::None,
    });
    for _ in 0..1_000 {
        let mut waits = world.leases.lock(&bad).into_future();
        assert!(poll(&mut waits, &Wakes::new()).is_pending());
    }
    wait::until("as many hang as may", || left.load(SeqCst) == 8);
    let election = world.leases.election(&*good);
    let leaders = election.leaders().unwrap();
    wait::until("it hears", || {
        world.hand.advance(MS);
        leaders.try_recv() == Ok(None)
    });
    assert_eq!(left.load(SeqCst), 8);
    // At their limit they end, and leave their places to others.
    drop((leaders, election));
    wait::until("none is left", || {
        world.hand.advance(10 * MS);
        world.leases.stats().armed <= 1
    });
    wait::until("another one is noted", || {
        let mut waits = world.leases.lock(&bad).into_future();
        assert!(poll(&mut waits, &Wakes::new()).is_pending());
        left.load(SeqCst) > 8
    });
}

#[tokio::test]
async fn a_future_that_is_dropped_leaves_too() {
    let store = MemoryStore::new();
    let leases = Leases::builder(store.clone())
        .poll(10 * MS)
        .build()
        .unwrap();
    let _guard = leases.lock("a").at_once().wait().unwrap();
    let left = leavers(&store);
    let waiting = leases.lock("a").into_future();
    let limit = Duration::from_millis(200);
    assert!(tokio::time::timeout(limit, waiting).await.is_err());
    wait::until("it is reported", || !left.lock().unwrap().is_empty());
}
