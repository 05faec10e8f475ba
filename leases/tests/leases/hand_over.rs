//! Locks that are detached in one process and resumed in another.

use tourbillon_leases::{
    DetachError, Fault, LeaseTicket, Leases, LockError, Loss, MemoryStore, StoreCall,
};

use crate::worlds::{LEASE, S, World, all_down, down, log, no_fault, together, world};

/// Other leases on the same store.
fn other(world: &World) -> (Leases, tourbillon_leases::Steps) {
    let builder = Leases::builder(world.store.clone()).clock(world.clock.clone());
    builder.build_stepped(77).unwrap()
}

#[test]
fn a_detached_lock_is_resumed_elsewhere_under_the_same_owner_and_token() {
    let world = world(1);
    let (others, steps) = other(&world);
    let guard = world.leases.try_lock("a").unwrap();
    let id = guard.id().clone();
    let log = log(&world.store, &world.clock, no_fault);
    let text = guard.detach().unwrap().to_string();
    assert_eq!((log.len(), world.leases.stats().kept), (0, 0));
    // Nothing renews it meanwhile.
    together(&[&world.steps, &steps], LEASE / 2, S);
    assert_eq!(log.len(), 0);
    assert!(matches!(others.try_lock("a"), Err(LockError::Held { .. })));

    let ticket: LeaseTicket = text.parse().unwrap();
    let guard = others.resume(&ticket).unwrap();
    assert_eq!(guard.id().owner(), id.owner());
    assert_eq!(guard.fencing_token(), id.token());
    together(&[&world.steps, &steps], 5 * LEASE, S);
    assert!(guard.is_held() && guard.renewals() > 5);
    assert_eq!(world.store.holder("a").unwrap().1, id.token());
    guard.release().unwrap();
    assert_eq!(world.store.holder("a"), None);
}

#[test]
fn a_ticket_that_nobody_uses_ends_with_its_lease() {
    let world = world(2);
    let ticket = world.leases.try_lock("a").unwrap().detach().unwrap();
    world.steps.advance(LEASE);
    assert_eq!(world.store.holder("a"), None);
    let error = world.leases.resume(&ticket).unwrap_err();
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
    // Nor does it touch the lock of the next one.
    let next = world.leases.try_lock("a").unwrap();
    assert!(world.leases.resume(&ticket).is_err());
    assert!(next.is_held());
    next.release().unwrap();
}

#[test]
fn only_the_last_guard_that_holds_the_lock_can_be_detached() {
    let world = world(3);
    let outer = world.leases.try_lock("a").unwrap();
    let inner = world.leases.enter_again(&outer).unwrap();
    let error = outer.detach().unwrap_err();
    assert!(error.to_string().contains("other guards"), "{error}");
    let DetachError::Entered(outer) = error else {
        panic!("{error}");
    };
    assert!(outer.is_held());
    drop(inner);
    drop(outer.detach().unwrap());

    let lost = world.leases.try_lock("b").unwrap();
    world.steps.jump_to(world.steps.now() + LEASE);
    let error = lost.detach().unwrap_err();
    assert!(matches!(error, DetachError::Lost(Loss::Expired)), "{error}");
}

#[test]
fn a_resume_that_fails_may_be_repeated() {
    let world = world(4);
    let ticket = world.leases.try_lock("a").unwrap().detach().unwrap();
    world.store.inject(all_down);
    assert!(matches!(
        world.leases.resume(&ticket),
        Err(LockError::Store { .. })
    ));
    world.store.inject(|_| Fault::Some(vec![0], down()));
    assert!(matches!(
        world.leases.resume(&ticket),
        Err(LockError::Store { .. })
    ));
    world.store.inject(|_| Fault::LoseAnswer(down()));
    assert!(matches!(
        world.leases.resume(&ticket),
        Err(LockError::Store { .. })
    ));
    world.store.heal();
    // An answer that takes longer than the lease is of no use.
    let hand = world.steps.clock();
    world.store.inject(move |call| match call {
        StoreCall::Renew { .. } => {
            let hand = hand.clone();
            Fault::Then(Box::new(move || {
                hand.advance(LEASE - S / 10);
            }))
        }
        _ => Fault::None,
    });
    let error = world.leases.resume(&ticket).unwrap_err();
    assert!(error.to_string().contains("run out"), "{error}");
    world.store.heal();
    world.leases.resume(&ticket).unwrap().release().unwrap();
    world.leases.close(S);
    assert!(matches!(
        world.leases.resume(&ticket),
        Err(LockError::Closed { .. })
    ));
}

#[test]
fn the_options_go_with_the_ticket() {
    let world = world(5);
    let acquire = world.leases.acquire("a").fixed_lease(LEASE);
    let guard = acquire
        .max_hold(3 * LEASE)
        .fed_every(2 * S)
        .try_lock()
        .unwrap();
    let ticket = guard.detach().unwrap();
    world.steps.advance(LEASE / 2);
    let guard = world.leases.resume(&ticket).unwrap();
    world.steps.advance(2 * S);
    assert_eq!(guard.lost().loss(), Some(Loss::NotFed));
    drop(guard);

    // The longest hold: two thirds before, one third after.
    let guard = world
        .leases
        .acquire("b")
        .max_hold(3 * LEASE)
        .try_lock()
        .unwrap();
    world.steps.advance(2 * LEASE);
    let ticket = guard.detach().unwrap();
    world.steps.advance(LEASE / 2);
    let guard = world.leases.resume(&ticket).unwrap();
    world.steps.advance(LEASE - S);
    assert!(guard.is_held());
    world.steps.advance(S);
    assert_eq!(guard.lost().loss(), Some(Loss::HeldTooLong));

    // A fixed lease is not renewed after the resume either.
    let fixed = world
        .leases
        .acquire("c")
        .fixed_lease(LEASE)
        .try_lock()
        .unwrap();
    let guard = world.leases.resume(&fixed.detach().unwrap()).unwrap();
    guard.extend(2 * LEASE).unwrap();
    world.steps.advance(2 * LEASE);
    assert_eq!(guard.lost().loss(), Some(Loss::Expired));
}

#[test]
fn a_ticket_that_is_used_twice_gives_two_guards_and_the_first_release_ends_both() {
    let world = world(6);
    let (others, steps) = other(&world);
    let ticket = world.leases.try_lock("a").unwrap().detach().unwrap();
    let one = world.leases.resume(&ticket).unwrap();
    let two = others.resume(&ticket).unwrap();
    one.release().unwrap();
    together(&[&world.steps, &steps], LEASE / 2, S);
    assert_eq!(two.lost().loss(), Some(Loss::NotHeld));
}

#[test]
fn the_shortest_hold_goes_with_the_ticket() {
    let world = world(7);
    let guard = world
        .leases
        .acquire("a")
        .at_least(LEASE / 2)
        .try_lock()
        .unwrap();
    let ticket = guard.detach().unwrap();
    world.leases.resume(&ticket).unwrap().release().unwrap();
    world.steps.advance(LEASE / 2 - S);
    assert!(world.store.holder("a").is_some());
    world.steps.advance(S);
    assert!(world.store.holder("a").is_none());
}

#[tokio::test]
async fn it_can_be_awaited() {
    let store = MemoryStore::new();
    let before = Leases::new(store.clone()).unwrap();
    let after = Leases::new(store.clone()).unwrap();
    let ticket = before.lock_async("a").await.unwrap().detach().unwrap();
    drop(before);
    let guard = after.resume_async(&ticket).await.unwrap();
    guard.release_async().await.unwrap();
    assert_eq!(store.holder("a"), None);
    assert!(matches!(
        after.resume_async(&ticket).await,
        Err(LockError::Lost { .. })
    ));
}
