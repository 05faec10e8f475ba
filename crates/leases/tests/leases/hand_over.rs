//! Locks that are detached in one process and resumed in another.

use std::future::Future;

use tourbillon_leases::{
    Acquired, BlockingStore, Claim, DetachError, Fault, LeaseTicket, Leases, LockError, LockPaging,
    Loss, MemoryStore, Secret, StoreCall, StoreError,
};

use crate::calls::Calls;
use crate::double::StoreDouble;
use crate::tickets;
use crate::worlds::{
    LEASE, S, Seen, World, all_down, down, log, march, next_secret, no_fault, together, world,
};

/// Other leases on the same store.
fn other(world: &World) -> (Leases, tourbillon_leases::Steps) {
    let builder = Leases::builder(world.store.clone()).clock(world.clock.clone());
    builder.build_stepped(77).unwrap()
}

#[test]
fn a_detached_lock_is_resumed_elsewhere_under_the_same_token_and_another_owner() {
    let world = world(1);
    let (others, steps) = other(&world);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    let id = guard.id().clone();
    let log = log(&world.store, &world.clock, no_fault);
    let text = guard.detach().wait().unwrap().to_string();
    assert_eq!((log.len(), world.leases.stats().kept), (1, 0));
    assert_eq!(log.calls()[0].1, Seen::Detach("a".to_owned()));
    // Nothing renews it meanwhile.
    together(&[&world.steps, &steps], LEASE / 2, S);
    assert_eq!(log.len(), 1);
    assert!(matches!(
        others.lock("a").at_once().wait(),
        Err(LockError::Held { .. })
    ));

    let ticket: LeaseTicket = text.parse().unwrap();
    let guard = others.resume(&ticket).wait().unwrap();
    assert_ne!(guard.id().owner(), id.owner());
    assert_eq!(guard.token(), id.token());
    assert_eq!(world.store.holder("a").unwrap().0, guard.id().owner());
    together(&[&world.steps, &steps], 5 * LEASE, S);
    assert!(guard.is_held() && guard.renewals() > 5);
    assert_eq!(world.store.holder("a").unwrap().1, id.token());
    guard.release().wait().unwrap();
    assert_eq!(world.store.holder("a"), None);
}

#[test]
fn a_ticket_that_nobody_uses_ends_with_its_lease() {
    let world = world(2);
    let ticket = world
        .leases
        .lock("a")
        .at_once()
        .wait()
        .unwrap()
        .detach()
        .wait()
        .unwrap();
    world.steps.advance(LEASE);
    assert_eq!(world.store.holder("a"), None);
    let error = world.leases.resume(&ticket).wait().unwrap_err();
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
    let next = world.leases.lock("a").at_once().wait().unwrap();
    assert!(world.leases.resume(&ticket).wait().is_err());
    assert!(next.is_held());
    next.release().wait().unwrap();
}

#[test]
fn only_the_last_guard_that_holds_the_lock_can_be_detached() {
    let world = world(3);
    let outer = world.leases.lock("a").at_once().wait().unwrap();
    let inner = outer.again().unwrap();
    let error = outer.detach().wait().unwrap_err();
    assert!(error.to_string().contains("other guards"), "{error}");
    let DetachError::OtherGuards(outer) = error else {
        panic!("{error}");
    };
    assert!(outer.is_held());
    drop(inner);
    drop(outer.detach().wait().unwrap());

    let lost = world.leases.lock("b").at_once().wait().unwrap();
    world.steps.jump_to(world.steps.now() + LEASE);
    let error = lost.detach().wait().unwrap_err();
    assert!(matches!(error, DetachError::Lost(Loss::Expired)), "{error}");
}

#[test]
fn a_resume_that_fails_may_be_repeated() {
    let world = world(4);
    let ticket = world
        .leases
        .lock("a")
        .at_once()
        .wait()
        .unwrap()
        .detach()
        .wait()
        .unwrap();
    let fails = || {
        let resumed = world.leases.resume(&ticket).wait();
        assert!(matches!(resumed, Err(LockError::Store { .. })));
    };
    world.store.inject(all_down);
    fails();
    // It has the lock, and nobody learns of that.
    world.store.inject(|_| Fault::LoseAnswer(down()));
    fails();
    world.store.heal();
    // Somebody else with the text is too late.
    let copy: LeaseTicket = ticket.to_string().parse().unwrap();
    assert!(matches!(
        world.leases.resume(&copy).wait(),
        Err(LockError::Lost { .. })
    ));
    // An answer that takes longer than the lease is of no use.
    let hand = world.steps.clock();
    world.store.inject(move |call| match call {
        StoreCall::Resume(_) => {
            let hand = hand.clone();
            Fault::Then(Box::new(move || {
                hand.advance(LEASE - S / 10);
            }))
        }
        _ => Fault::None,
    });
    let error = world.leases.resume(&ticket).wait().unwrap_err();
    assert!(error.to_string().contains("run out"), "{error}");
    world.store.inject(|call| match call {
        StoreCall::Resume(_) => panic!("the store panics"),
        _ => Fault::None,
    });
    kit::quiet::hush();
    fails();
    world.store.heal();
    world
        .leases
        .resume(&ticket)
        .wait()
        .unwrap()
        .release()
        .wait()
        .unwrap();
    world.leases.close(S);
    assert!(matches!(
        world.leases.resume(&ticket).wait(),
        Err(LockError::Closed { .. })
    ));
}

#[test]
fn a_detach_that_fails_leaves_the_lock_with_its_guard() {
    let world = world(8);
    let mut guard = world.leases.lock("a").at_once().wait().unwrap();
    let lost_answer = |_: &StoreCall<'_>| Fault::LoseAnswer(down());
    for round in 0..3 {
        match round {
            0 => world.store.inject(all_down),
            1 => world.store.inject(lost_answer),
            _ => world.store.inject(|call| match call {
                StoreCall::Detach(_) => panic!("the store panics"),
                _ => Fault::None,
            }),
        }
        kit::quiet::hush();
        let error = guard.detach().wait().unwrap_err();
        assert!(error.to_string().contains("still held"), "{error}");
        let DetachError::Store(back, StoreError::Unavailable(_)) = error else {
            panic!("{error}");
        };
        guard = back;
        world.store.heal();
        world.steps.advance(2 * LEASE);
        assert!(guard.is_held() && guard.id().holds() == 1);
    }
    // It may be repeated, and a request of an earlier attempt that arrives late changes nothing.
    let ticket = guard.detach().wait().unwrap();
    let guard = world.leases.resume(&ticket).wait().unwrap();
    guard.release().wait().unwrap();
    assert_eq!(world.store.holder("a"), None);
    // The store has given the lock to nobody, and says that it is not held.
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    world.store.forget();
    let error = guard.detach().wait().unwrap_err();
    assert!(matches!(error, DetachError::Lost(Loss::NotHeld)), "{error}");
    assert_eq!(world.leases.stats().kept, 0);
}

#[test]
fn a_store_that_can_not_hand_locks_over_keeps_them() {
    let leases = Leases::new(StoreDouble::of(MemoryStore::new())).unwrap();
    let error = leases
        .lock("a")
        .wait()
        .unwrap()
        .detach()
        .wait()
        .unwrap_err();
    let DetachError::Store(guard, StoreError::Refused(_)) = error else {
        panic!("{error}");
    };
    assert!(guard.is_held());
    guard.release().wait().unwrap();
    let forged = format!("tourbillon-lease-2,{},a", "0".repeat(32));
    let error = leases.resume(&forged.parse().unwrap()).wait().unwrap_err();
    assert!(error.to_string().contains("hand \"a\" over"), "{error}");
}

#[test]
fn nothing_that_is_shown_proves_anything() {
    tickets::nothing_that_is_shown_proves_anything(&MemoryStore::new());
}

#[test]
fn a_ticket_is_of_use_for_its_own_name_alone() {
    tickets::a_ticket_is_of_use_for_its_own_name_alone(&MemoryStore::new());
}

#[test]
fn a_ticket_is_used_by_one_of_many() {
    tickets::a_ticket_is_used_by_one_of_many(&MemoryStore::new());
}

#[test]
fn detach_and_resume_do_what_a_backend_promises() {
    tickets::detach_and_resume_do_what_a_backend_promises(&MemoryStore::new());
}

#[test]
fn no_text_but_that_of_the_ticket_shows_a_secret() {
    let world = world(9);
    let events = world.leases.events(64);
    let secret = next_secret(&world.store);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    let first = secret.get().unwrap().clone();
    assert_eq!(first.len(), 32);
    let mut shown = vec![format!("{guard:?} {:?}", guard.id())];
    let secret = next_secret(&world.store);
    let ticket = guard.detach().wait().unwrap();
    let text = ticket.to_string();
    let fields: Vec<&str> = text.split(',').collect();
    shown.push(format!("{ticket:?}"));
    let guard = world.leases.resume(&ticket).wait().unwrap();
    let second = secret.get().unwrap().clone();
    let secrets = [first.as_str(), second.as_str(), fields[1]];
    assert!(secrets[0] != secrets[1] && secrets[1] != secrets[2] && secrets[0] != secrets[2]);
    shown.push(format!(
        "{:?}",
        world.leases.resume(&ticket).wait().unwrap_err()
    ));
    shown.push(format!("{:?}", world.leases.holder("a").wait().unwrap()));
    shown.push(format!(
        "{:?}",
        world.leases.list("", &LockPaging::first(9)).wait().unwrap()
    ));
    shown.push(format!("{:?} {:?}", world.leases, world.store));
    shown.push(format!(
        "{:?}",
        world.leases.lock("a").at_once().wait().unwrap_err()
    ));
    // What an injected function sees of each call.
    let (calls, seen) = std::sync::mpsc::channel();
    world.store.inject(move |call| {
        calls.send(format!("{call:?}")).unwrap();
        Fault::None
    });
    world.steps.advance(LEASE);
    let guard = guard.detach().wait().unwrap();
    let guard = world.leases.resume(&guard).wait().unwrap();
    guard.release().wait().unwrap();
    drop(world.leases.lock("b").at_once().wait().unwrap());
    world.steps.settle();
    world.store.heal();
    let lost = world.leases.lock("c").at_once().wait().unwrap();
    world.store.forget();
    world.steps.advance(LEASE);
    assert!(!lost.is_held());
    shown.extend(seen.try_iter());
    shown.extend(events.try_iter().map(|event| format!("{event:?}")));
    assert!(shown.len() > 15, "{shown:?}");
    for text in shown {
        for secret in secrets {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

#[test]
fn what_the_store_gives_back_is_checked() {
    for terms in [
        "",
        "2,1,1,1,1,1,",
        "1,1,0,0,0,0,",
        "1,1,18446744073709551616,0,0,0,",
        "1,1,30000000000,0,0,0,x",
        "1,7,30000000000,0,0,0,",
    ] {
        let world = world(10);
        let secret = next_secret(&world.store);
        let guard = world.leases.lock("a").at_once().wait().unwrap();
        let (secret, ticket) = (Secret::new(secret.get().unwrap()), "0".repeat(32));
        let detach = tourbillon_leases::Detach::new("a", secret, Secret::new(&ticket), LEASE)
            .with_terms(terms);
        world.store.detach(&detach, S).unwrap();
        let ticket = format!("tourbillon-lease-2,{ticket},a");
        let error = world
            .leases
            .resume(&ticket.parse().unwrap())
            .wait()
            .unwrap_err();
        assert!(
            matches!(error, LockError::Store { .. } | LockError::TooShort { .. }),
            "{terms}: {error}"
        );
        // Nobody can use it, so it is given back.
        world.steps.settle();
        assert_eq!(world.store.holder("a"), None, "{terms}");
        drop(guard);
    }
    // A rest that is longer than any lease is one lease, and a lease without an end has none.
    let world = world(11);
    let secret = next_secret(&world.store);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    let (secret, ticket) = (Secret::new(secret.get().unwrap()), "0".repeat(32));
    let most = u64::MAX;
    let terms = format!("1,0,30000000000,{most},{most},{most},");
    let detach = tourbillon_leases::Detach::new("a", secret, Secret::new(&ticket), LEASE);
    world.store.detach(&detach.with_terms(&terms), S).unwrap();
    let ticket = format!("tourbillon-lease-2,{ticket},a");
    let resumed = world
        .leases
        .resume(&ticket.parse().unwrap())
        .wait()
        .unwrap();
    resumed.release().wait().unwrap();
    world.steps.advance(30 * S);
    assert_eq!(world.store.holder("a"), None);
    drop(guard);
}

#[test]
fn an_attempt_of_the_holder_before_that_arrives_late_locks_nothing_for_long() {
    let world = world(12);
    // The first attempt is answered by an error, and is executed after everything else.
    let late = std::sync::Arc::new(std::sync::Mutex::new(None));
    let own = std::sync::Arc::clone(&late);
    world.store.inject(move |call| match call {
        StoreCall::Claim(claim) if own.lock().unwrap().is_none() => {
            let claim = (claim.owner.to_owned(), claim.secret.reveal().to_owned());
            *own.lock().unwrap() = Some(claim);
            Fault::Fail(down())
        }
        _ => Fault::None,
    });
    let hand = world.steps.clock();
    let guard = std::thread::scope(|scope| {
        let leases = &world.leases;
        let locks = scope.spawn(move || leases.lock("a").within(LEASE).wait().unwrap());
        march(&hand, S / 10, "it is granted", || locks.is_finished());
        locks.join().unwrap()
    });
    let ticket = guard.detach().wait().unwrap();
    let guard = world.leases.resume(&ticket).wait().unwrap();
    let (owner, secret) = late.lock().unwrap().take().unwrap();
    world.store.heal();
    let claim = Claim::new("a", &owner, Secret::new(&secret), LEASE);
    // While it is held.
    let answer = world.store.acquire(&claim, S).unwrap();
    assert!(matches!(answer, Acquired::Held { .. }));
    guard.release().wait().unwrap();
    // When it is free.
    let answer = world.store.acquire(&claim, S).unwrap();
    assert!(matches!(answer, Acquired::Granted { .. }));
    world.steps.advance(LEASE / 2);
    assert_eq!(world.store.holder("a"), None);
}

#[test]
fn the_options_go_with_the_ticket() {
    let world = world(5);
    let acquire = world.leases.lock("a").lease(LEASE).not_renewed();
    let guard = acquire
        .max_hold(3 * LEASE)
        .fed_every(2 * S)
        .at_once()
        .wait()
        .unwrap();
    let ticket = guard.detach().wait().unwrap();
    world.steps.advance(LEASE / 2);
    let guard = world.leases.resume(&ticket).wait().unwrap();
    world.steps.advance(2 * S);
    assert_eq!(guard.lost().loss(), Some(Loss::NotFed));
    drop(guard);

    // The longest hold: two thirds before, one third after.
    let guard = world
        .leases
        .lock("b")
        .max_hold(3 * LEASE)
        .at_once()
        .wait()
        .unwrap();
    world.steps.advance(2 * LEASE);
    let ticket = guard.detach().wait().unwrap();
    world.steps.advance(LEASE / 2);
    let guard = world.leases.resume(&ticket).wait().unwrap();
    world.steps.advance(LEASE - S);
    assert!(guard.is_held());
    world.steps.advance(S);
    assert_eq!(guard.lost().loss(), Some(Loss::HeldTooLong));

    // A fixed lease is not renewed after the resume either.
    let fixed = world
        .leases
        .lock("c")
        .lease(LEASE)
        .not_renewed()
        .at_once()
        .wait()
        .unwrap();
    let guard = world
        .leases
        .resume(&fixed.detach().wait().unwrap())
        .wait()
        .unwrap();
    guard.extend(2 * LEASE).wait().unwrap();
    world.steps.advance(2 * LEASE);
    assert_eq!(guard.lost().loss(), Some(Loss::Expired));
}

#[test]
fn a_ticket_that_is_used_twice_gives_one_guard() {
    let world = world(6);
    let (others, steps) = other(&world);
    let ticket = world
        .leases
        .lock("a")
        .at_once()
        .wait()
        .unwrap()
        .detach()
        .wait()
        .unwrap();
    let one = world.leases.resume(&ticket).wait().unwrap();
    let two = others.resume(&ticket).wait().unwrap_err();
    let loss = Loss::NotHeld;
    assert!(matches!(two, LockError::Lost { loss: of, .. } if of == loss));
    together(&[&world.steps, &steps], 2 * LEASE, S);
    assert!(one.is_held());
}

#[test]
fn the_shortest_hold_goes_with_the_ticket() {
    let world = world(7);
    let guard = world
        .leases
        .lock("a")
        .at_least(LEASE / 2)
        .at_once()
        .wait()
        .unwrap();
    let ticket = guard.detach().wait().unwrap();
    world
        .leases
        .resume(&ticket)
        .wait()
        .unwrap()
        .release()
        .wait()
        .unwrap();
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
    let guard = before.lock("a").await.unwrap();
    let ticket = guard.detach().await.unwrap();
    drop(before);
    let guard = after.resume(&ticket).await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(store.holder("a"), None);
    assert!(matches!(
        after.resume(&ticket).await,
        Err(LockError::Lost { .. })
    ));
}

#[tokio::test]
async fn a_future_of_a_detach_that_is_dropped_releases_the_lock() {
    let store = MemoryStore::new();
    let leases = Leases::new(BlockingStore::new(store.clone())).unwrap();
    let guard = leases.lock("a").await.unwrap();
    drop(guard.detach());
    kit::wait::until("it is released", || store.holder("a").is_none());
    // While the call is under way.
    let guard = leases.lock("a").await.unwrap();
    let (begun, begins) = std::sync::mpsc::channel();
    let (go_on, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    store.inject(move |call| {
        if matches!(call, StoreCall::Detach(_)) {
            begun.send(()).unwrap();
            let _ = gate.lock().unwrap().recv();
        }
        Fault::None
    });
    let mut detach = Box::pin(guard.detach());
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    assert!(detach.as_mut().poll(&mut context).is_pending());
    begins.recv().unwrap();
    drop(detach);
    kit::wait::until("it is released", || store.holder("a").is_none());
    go_on.send(()).unwrap();
    let guard = leases.lock("a").await.unwrap();
    // Another guard.
    let again = guard.again().unwrap();
    let error = guard.detach().await.unwrap_err();
    assert!(matches!(error, DetachError::OtherGuards(_)), "{error}");
    drop((again, error));
    leases.close(S);
}
