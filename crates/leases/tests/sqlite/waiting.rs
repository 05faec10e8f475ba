//! Callers that wait: who wakes them, how often they ask, and whose turn it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use kit::wait;
use rusqlite::TransactionBehavior;
use tourbillon_leases::{Acquired, Claim, Leases, Released, StoreError};

use crate::calls::Calls;
use crate::folder::{Folder, LEASE, LIMIT, MS, claim, granted, held, number, release};

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A caller that has waited.
fn waited<'a>(name: &'a str, owner: &'a str, time: Duration) -> Claim<'a> {
    claim(name, owner).waiting().waited(time)
}

#[test]
fn a_release_wakes_a_caller_of_its_own_store() {
    let folder = Folder::new();
    let (store, other) = (folder.store(), folder.store());
    granted(&store, "x", "a:1");
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let place = store.watch("x", &waker).expect("it announces its own");
    assert_eq!(release(&store, "x", "a:1"), Released::Released);
    assert_eq!(woken.0.load(SeqCst), 1);
    place.looks();
    granted(&other, "x", "b:1");
    assert_eq!(release(&other, "x", "b:1"), Released::Released);
    assert_eq!(woken.0.load(SeqCst), 1);
}

#[test]
fn a_waiting_caller_is_asked_back_soon_and_others_learn_the_whole_rest() {
    let folder = Folder::new();
    let store = folder.store();
    granted(&store, "x", "a:1");
    for (time, interval) in [
        (Duration::ZERO, 10 * MS),
        (160 * MS, 20 * MS),
        (LEASE, 50 * MS),
    ] {
        assert_eq!(held(&store, &waited("x", "b:1", time)), interval);
    }
    assert!(held(&store, &claim("x", "b:1")) > LEASE / 2);
}

#[test]
fn a_release_of_another_store_is_found_long_before_the_usual_interval() {
    let folder = Folder::new();
    let holders = Leases::new(folder.store()).unwrap();
    // Without the answers of the store they would ask in an hour.
    let waiting = Leases::builder(folder.store()).poll(Duration::from_secs(3_600));
    let waiting = waiting.build().unwrap();
    let db = folder.plain();
    for _ in 0..5 {
        let guard = holders.lock("x").wait().unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let guard = waiting.lock("x").within(LIMIT).wait();
                guard.unwrap().release().wait().unwrap();
            });
            let noted = "select count(*) from tourbillon_lease where waiter is not null";
            wait::until("it waits", || number(&db, noted) == 1);
            let start = Instant::now();
            guard.release().wait().unwrap();
            waits.join().unwrap();
            // The lease of a holder would end later, too.
            assert!(start.elapsed() < LEASE / 3);
        });
    }
}

#[test]
fn the_store_whose_caller_has_waited_for_a_turn_gets_the_name_first() {
    let folder = Folder::new();
    let (one, other) = (folder.store(), folder.store());
    // A slow machine may miss a reservation, so there are several.
    let gets_it_first = || {
        granted(&one, "x", "a:1");
        held(&one, &waited("x", "a:2", 30 * MS));
        held(&other, &waited("x", "b:1", 400 * MS));
        // One that has waited for less takes nobody's place.
        held(&one, &waited("x", "a:2", 40 * MS));
        assert_eq!(release(&one, "x", "a:1"), Released::Released);
        assert_eq!(one.holder_of("x", LIMIT), Ok(None));
        let refused = [
            one.acquire(&waited("x", "a:2", 50 * MS), LIMIT).unwrap(),
            // Nor one that is not due.
            other.acquire(&waited("x", "b:2", MS), LIMIT).unwrap(),
        ];
        let granted = other.acquire(&waited("x", "b:1", 410 * MS), LIMIT).unwrap();
        let is_first = refused
            .iter()
            .all(|answer| matches!(answer, Acquired::Held { remaining } if *remaining <= 75 * MS))
            && matches!(granted, Acquired::Granted { .. });
        for (store, owner) in [(&one, "a:2"), (&other, "b:1"), (&other, "b:2")] {
            release(store, "x", owner);
        }
        is_first
    };
    wait::until("the turn is taken", gets_it_first);
}

#[test]
fn a_reservation_ends_by_itself_and_when_its_caller_gives_up() {
    let folder = Folder::new();
    let (one, other) = (folder.store(), folder.store());
    for leaves in [false, true] {
        granted(&one, "x", "a:1");
        held(&other, &waited("x", "b:1", LEASE));
        assert_eq!(release(&one, "x", "a:1"), Released::Released);
        if leaves {
            let waker = Waker::from(Arc::new(Woken::default()));
            let place = other.watch("x", &waker).expect("a place");
            // Another caller of the store waits, so nothing is given up.
            other.leave("x", "b:2", LIMIT).unwrap();
            // Nor is it this store's.
            one.leave("x", "a:1", LIMIT).unwrap();
            drop(place);
            other.leave("x", "b:1", LIMIT).unwrap();
            granted(&one, "x", "a:2");
        } else {
            wait::until("it is over", || {
                matches!(
                    one.acquire(&claim("x", "a:2"), LIMIT),
                    Ok(Acquired::Granted { .. })
                )
            });
        }
        // A wait that was given up before the release reserves nothing.
        held(&other, &waited("x", "b:1", LEASE));
        other.leave("x", "b:1", LIMIT).unwrap();
        assert_eq!(release(&one, "x", "a:2"), Released::Released);
        granted(&one, "x", "a:3");
        assert_eq!(release(&one, "x", "a:3"), Released::Released);
    }
}

/// A turn comes after 20 ms, in which the others get the name about 10 times.
const GRANTS_PER_TURN: usize = 40;

#[test]
fn a_caller_that_asks_right_after_its_release_does_not_keep_others_waiting() {
    let folder = Folder::new();
    let (greedy, patient) = (folder.store(), folder.store());
    let greedy = Leases::new(greedy).unwrap();
    let patient = Leases::new(patient).unwrap();
    let (turns, grants) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let end = 20 * GRANTS_PER_TURN;
    thread::scope(|scope| {
        // Two callers of one process hand the lock to each other.
        for _ in 0..2 {
            scope.spawn(|| {
                while turns.load(SeqCst) < 20 && grants.load(SeqCst) < end {
                    let guard = greedy.lock("x").wait().unwrap();
                    grants.fetch_add(1, SeqCst);
                    // The name is hardly ever free when the other process asks.
                    thread::sleep(2 * MS);
                    guard.release().wait().unwrap();
                }
            });
        }
        while turns.load(SeqCst) < 20 && grants.load(SeqCst) < end {
            let before = grants.load(SeqCst);
            wait::until("the others have it", || grants.load(SeqCst) > before);
            let guard = patient.lock("x").within(LIMIT).wait().unwrap();
            turns.fetch_add(1, SeqCst);
            guard.release().wait().unwrap();
        }
    });
    let (turns, grants) = (turns.into_inner(), grants.into_inner());
    println!("{grants} grants in {turns} turns");
    assert!(grants < end, "{grants} grants in {turns} turns");
}

#[test]
fn a_caller_that_still_waits_waits_for_no_writer() {
    let folder = Folder::new();
    let (store, other, mut user) = (folder.store(), folder.store(), folder.plain());
    granted(&store, "x", "a:1");
    granted(&store, "y", "a:1");
    held(&other, &waited("x", "b:1", 100 * MS));
    let transaction = user.transaction_with_behavior(TransactionBehavior::Immediate);
    let transaction = transaction.unwrap();
    let unavailable = |claim: &Claim<'_>| {
        let answer = other.acquire(claim, 50 * MS);
        let Err(StoreError::Unavailable(why)) = answer else {
            panic!("{answer:?}");
        };
        assert!(why.contains("holds the lock"), "{why}");
    };
    assert_eq!(held(&other, &waited("x", "b:1", 101 * MS)), 101 * MS / 8);
    // Its first wait has to be noted, a name that is free to be granted, and a call may be repeated.
    unavailable(&waited("y", "b:1", 100 * MS));
    unavailable(&waited("z", "b:1", 100 * MS));
    unavailable(&waited("x", "a:1", 100 * MS));
    transaction.rollback().unwrap();
    // It is noted that one waits longer than another.
    held(&store, &waited("x", "c:1", LEASE));
    let noted =
        "select count(distinct waiter) + count(*) from tourbillon_lease where waiter is not null";
    assert_eq!(number(&user, noted), 2);
    assert_eq!(release(&store, "x", "a:1"), Released::Released);
    assert!(matches!(
        other.acquire(&waited("x", "b:1", 150 * MS), LIMIT),
        Ok(Acquired::Held { .. })
    ));
    assert!(matches!(
        store.acquire(&waited("x", "c:1", LEASE), LIMIT),
        Ok(Acquired::Granted { .. })
    ));
}

#[test]
fn calls_can_be_awaited_and_block_no_task() {
    let folder = Folder::new();
    let leases = Leases::new(folder.store()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let guard = leases.lock("x").await.unwrap();
        assert!(leases.holder("x").await.unwrap().is_some());
        guard.release().await.unwrap();
        let guards = leases.lock_all(["a", "b"]).await.unwrap();
        assert_eq!(guards.len(), 2);
    });
}
