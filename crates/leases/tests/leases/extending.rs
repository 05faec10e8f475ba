//! Fixed leases that are extended.

use std::sync::Arc;
use std::thread;

use kit::gate::Gate;
use kit::wait;
use tourbillon::{Clock, ManualClock};
use tourbillon_leases::{
    Claim, Destination, Fault, Leases, LockError, Loss, MemoryStore, Outcome, Renewal, Secret,
    StoreCall,
};

use crate::calls::Calls;
use crate::double::StoreDouble;
use crate::worlds::{LEASE, MS, S, all_down, down, log, no_fault, threads, world};

#[test]
fn an_extended_lease_lasts_and_then_ends_without_renewals() {
    let world = world(1);
    let guard = world
        .leases
        .lock("a")
        .lease(LEASE)
        .not_renewed()
        .at_once()
        .wait()
        .unwrap();
    let log = log(&world.store, &world.clock, no_fault);
    for _ in 0..5 {
        world.steps.advance(LEASE / 2);
        guard.extend(LEASE).wait().unwrap();
        assert!(guard.remaining() > LEASE - S);
    }
    assert_eq!((guard.renewals(), log.len()), (5, 5));
    // It may be longer than it ever was.
    guard.extend(10 * LEASE).wait().unwrap();
    world.steps.advance(9 * LEASE);
    assert!(guard.is_held());
    assert!(world.store.holder("a").is_some());
    world.steps.advance(LEASE);
    assert_eq!(guard.lost().loss(), Some(Loss::Expired));
    assert_eq!(log.len(), 6);
    assert!(matches!(
        guard.extend(LEASE).wait(),
        Err(LockError::Lost {
            loss: Loss::Expired,
            ..
        })
    ));
    assert_eq!(log.len(), 6);
}

#[test]
fn a_shorter_extension_changes_nothing_and_asks_nobody() {
    let world = world(2);
    let guard = world
        .leases
        .lock("a")
        .lease(LEASE)
        .not_renewed()
        .at_once()
        .wait()
        .unwrap();
    let log = log(&world.store, &world.clock, no_fault);
    let before = guard.remaining();
    guard.extend(LEASE / 2).wait().unwrap();
    guard.extend(MS).wait().unwrap();
    assert_eq!((guard.remaining(), log.len()), (before, 0));
}

#[test]
fn what_can_not_be_extended_is_an_error_and_loses_nothing() {
    let world = world(3);
    let renewed = world.leases.lock("renewed").at_once().wait().unwrap();
    let error = renewed.extend(LEASE).wait().unwrap_err();
    assert!(matches!(error, LockError::Renewed { .. }), "{error}");
    assert!(renewed.is_held());

    let guard = world
        .leases
        .lock("a")
        .lease(LEASE)
        .not_renewed()
        .at_once()
        .wait()
        .unwrap();
    world.steps.advance(LEASE / 2);
    let before = guard.remaining();
    world.store.inject(all_down);
    let error = guard.extend(LEASE).wait().unwrap_err();
    assert!(matches!(error, LockError::Store { .. }), "{error}");
    assert_eq!((guard.remaining(), guard.renewals()), (before, 0));
    // A store that panics, or whose only item fails.
    world.store.inject(|_| {
        kit::quiet::hush();
        panic!("on purpose")
    });
    assert!(matches!(
        guard.extend(LEASE).wait(),
        Err(LockError::Store { .. })
    ));
    world.store.inject(|_| Fault::Some(vec![0], down()));
    assert!(matches!(
        guard.extend(LEASE).wait(),
        Err(LockError::Store { .. })
    ));
    world.store.heal();
    guard.extend(LEASE).wait().unwrap();
    assert!(guard.remaining() > before);
    // Somebody has taken it away.
    world.store.forget();
    let error = guard.extend(2 * LEASE).wait().unwrap_err();
    assert!(
        matches!(
            error,
            LockError::Lost {
                loss: Loss::NotHeld,
                ..
            }
        ),
        "{error}"
    );
    assert!(!guard.is_held());
}

#[test]
fn an_extension_that_comes_after_the_last_guard_renews_nothing() {
    let world = world(6);
    let guard = world.leases.lock("a").lease(LEASE).not_renewed();
    let guard = guard.wait().unwrap();
    let late = guard.extend(2 * LEASE);
    guard.release().wait().unwrap();
    let calls = log(&world.store, &world.clock, no_fault);
    let error = late.wait().unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error:?}");
    assert_eq!(calls.len(), 0);
}

#[test]
fn an_extension_does_not_go_beyond_the_longest_hold() {
    let world = world(4);
    let fixed = world.leases.lock("a").lease(LEASE).not_renewed();
    let guard = fixed.max_hold(LEASE + 5 * S).at_once().wait().unwrap();
    guard.extend(10 * LEASE).wait().unwrap();
    assert_eq!(guard.remaining(), LEASE + 5 * S);
    world.steps.advance(LEASE + 5 * S);
    assert_eq!(guard.lost().loss(), Some(Loss::HeldTooLong));
    // The release is tried for as long as the store may hold it.
    drop(guard);
    world.steps.settle();
    assert_eq!(world.store.holder("a"), None);
}

#[test]
fn a_release_is_tried_for_as_long_as_the_extended_lease_may_last() {
    let world = world(5);
    let guard = world
        .leases
        .lock("a")
        .lease(LEASE)
        .not_renewed()
        .at_once()
        .wait()
        .unwrap();
    guard.extend(100 * LEASE).wait().unwrap();
    world.store.inject(all_down);
    drop(guard);
    world.steps.advance(50 * LEASE);
    assert_eq!(world.leases.stats().releases_queued, 1);
    world.store.heal();
    world.steps.advance(LEASE * 20);
    assert_eq!(world.store.holder("a"), None);
}

#[test]
fn a_request_that_comes_late_does_not_shorten_a_lease() {
    let hand = ManualClock::new();
    let store = MemoryStore::with_clock(Clock::manual(&hand));
    store
        .acquire(&Claim::new("a", "me", Secret::new("me"), 10 * LEASE), S)
        .unwrap();
    let renew = |renewal| store.renew(Destination::default(), &[renewal], S).unwrap();
    let late = Renewal::new("a", Secret::new("me"), LEASE).never_shortening();
    assert_eq!(renew(late), [Outcome::Renewed]);
    let left = |store: &MemoryStore| store.holder_of("a", S).unwrap().unwrap().remaining;
    assert_eq!(left(&store), 10 * LEASE);
    assert_eq!(
        renew(Renewal::new("a", Secret::new("me"), LEASE)),
        [Outcome::Renewed]
    );
    assert_eq!(left(&store), LEASE);
}

#[test]
fn a_second_extension_waits_for_the_first_and_not_longer_than_its_limit() {
    let world = threads();
    let guard = world
        .leases
        .lock("a")
        .lease(LEASE)
        .not_renewed()
        .at_once()
        .wait()
        .unwrap();
    world.hand.advance(LEASE / 2);
    let gate = Gate::default();
    let at_gate = gate.clone();
    world.store.inject(move |call| match call {
        StoreCall::Renew { batch, .. } if batch[0].lease == LEASE => {
            at_gate.pass();
            Fault::None
        }
        _ => Fault::None,
    });
    let guard = Arc::new(guard);
    let first = {
        let guard = Arc::clone(&guard);
        thread::spawn(move || guard.extend(LEASE).wait())
    };
    wait::until("the first one hangs", || gate.waiting() == 1);
    let second = {
        let guard = Arc::clone(&guard);
        thread::spawn(move || guard.extend(2 * LEASE).wait())
    };
    // A sixth of the lease is the limit of the first one.
    wait::until("the second one is through", || {
        world.hand.advance(10 * MS);
        second.is_finished()
    });
    second.join().unwrap().unwrap();
    let remaining = guard.remaining();
    assert!(remaining > LEASE + LEASE / 2);
    gate.open();
    first.join().unwrap().unwrap();
    // The answer of the first one shortens nothing, neither here nor in the store.
    assert!(guard.remaining() > LEASE + LEASE / 2);
    let holder = world.leases.holder("a").wait().unwrap().unwrap();
    assert!(holder.remaining > guard.remaining());
}

#[tokio::test]
async fn it_can_be_awaited() {
    let leases = Leases::new(MemoryStore::new()).unwrap();
    let guard = leases.lock("a").lease(S * 5).not_renewed().await.unwrap();
    guard.extend(LEASE).await.unwrap();
    assert!(guard.remaining() > 20 * S);
    leases.close(S);
    assert!(guard.extend(LEASE).await.is_err());
}

/// Grants leases of a minute at most.
#[test]
fn an_extension_is_no_longer_than_the_store_grants() {
    let store = StoreDouble::of(MemoryStore::new()).grants_at_most(60 * S);
    let leases = Leases::new(store.answers_only(0)).unwrap();
    let guard = leases
        .lock("a")
        .lease(LEASE)
        .not_renewed()
        .at_once()
        .wait()
        .unwrap();
    let error = guard.extend(61 * S).wait().unwrap_err();
    assert!(matches!(error, LockError::TooLong { .. }), "{error}");
    let error = guard.extend(60 * S).wait().unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
}
