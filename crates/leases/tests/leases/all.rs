//! All of several locks: waited for together, or none.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use kit::gate::Gate;
use kit::wakes::{Wakes, poll};
use kit::{quiet, wait};
use tourbillon_leases::{
    Claim, Fault, LeaseFuture, LeaseGuard, Leases, LockError, Loss, MemoryStore, Secret, StoreCall,
    StoreError,
};

use crate::calls::Calls;
use crate::worlds::{
    LEASE, MS, S, Seen, World, blocking_threads, down, log, no_fault, threads, world, world_of,
};

type All = LeaseFuture<Result<Vec<LeaseGuard>, LockError>>;

fn names_of(guards: &[LeaseGuard]) -> Vec<&str> {
    guards.iter().map(LeaseGuard::name).collect()
}

fn held(world: &World, names: &str) -> String {
    let names = names.chars();
    names
        .filter(|name| world.store.holder(&name.to_string()).is_some())
        .collect()
}

/// Polls until nothing happens any more. The clock stands still.
fn go_on(world: &World, all: &mut All) -> Poll<Result<Vec<LeaseGuard>, LockError>> {
    for _ in 0..50 {
        if let ready @ Poll::Ready(_) = poll(all, &Wakes::new()) {
            return ready;
        }
        world.steps.settle();
    }
    Poll::Pending
}

fn finish(world: &World, all: &mut All) -> Result<Vec<LeaseGuard>, LockError> {
    match go_on(world, all) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("it waits"),
    }
}

#[test]
fn all_are_locked_in_one_round_trip_and_have_guards_in_the_order_of_the_names() {
    let world = world(1);
    let log = log(&world.store, &world.clock, no_fault);
    let guards = world.leases.lock_all(["c", "a", "b", "a"]).wait().unwrap();
    assert_eq!(names_of(&guards), ["c", "a", "b", "a"]);
    let calls: Vec<Seen> = log.calls().into_iter().map(|(_, seen)| seen).collect();
    assert_eq!(
        calls,
        [Seen::ClaimMany(["a", "b", "c"].map(str::to_owned).into())]
    );
    // A name that occurs twice is one lock, which goes with its last guard.
    let [c, a, b, again] = <[LeaseGuard; 4]>::try_from(guards).unwrap();
    a.release().wait().unwrap();
    assert_eq!(held(&world, "abc"), "abc");
    for released in world.leases.release_many([c, b, again]).wait() {
        released.unwrap();
    }
    assert_eq!(held(&world, "abc"), "");

    assert!(world.leases.lock_all([""; 0]).wait().unwrap().is_empty());
    let mut none = world.leases.lock_all([""; 0]).into_future();
    assert!(finish(&world, &mut none).unwrap().is_empty());
}

#[test]
fn what_follows_a_lock_that_is_held_is_given_back_together() {
    let world = world(10);
    let _b = world.leases.lock("b").wait().unwrap();
    let log = log(&world.store, &world.clock, no_fault);
    let mut all = world.leases.lock_all(["d", "c", "b", "a"]).into_future();
    assert!(go_on(&world, &mut all).is_pending());
    let calls = log.calls().into_iter().map(|(_, seen)| seen);
    let given_back = Seen::GiveBackMany(["c", "d"].map(str::to_owned).into());
    assert_eq!(calls.filter(|seen| *seen == given_back).count(), 1);
    assert_eq!(held(&world, "abcd"), "ab");
}

#[test]
fn what_can_never_be_locked_is_refused_before_anything_is_asked_for() {
    let world = world_of(2, 3, |builder| builder);
    let log = log(&world.store, &world.clock, no_fault);
    let long = "x".repeat(Leases::LONGEST_NAME + 1);
    for (names, text) in [(["a", ""], "needs a name"), (["a", &long], "1024")] {
        let error = world.leases.lock_all(names).wait().unwrap_err().to_string();
        let mut all = world.leases.lock_all(names).into_future();
        assert_eq!(finish(&world, &mut all).unwrap_err().to_string(), error);
        assert!(error.contains(text), "{error}");
    }
    assert_eq!(log.len(), 0);
    world.leases.close(S);
    let closed = world.leases.lock_all(["a"]).wait();
    assert!(
        matches!(closed, Err(LockError::Closed { .. })),
        "{closed:?}"
    );
    let mut all = world.leases.lock_all(["a"]).into_future();
    assert!(matches!(
        finish(&world, &mut all),
        Err(LockError::Closed { .. })
    ));
}

#[test]
fn a_refusal_ends_it_and_leaves_nothing_locked() {
    let world = world(3);
    world.store.inject(|call| match call {
        StoreCall::ClaimMany { .. } => {
            Fault::Some(vec![1], StoreError::Refused("on purpose".to_owned()))
        }
        _ => Fault::None,
    });
    let error = world.leases.lock_all(["a", "b", "c"]).wait().unwrap_err();
    assert!(
        matches!(&error, LockError::Store { name, .. } if name == "b"),
        "{error}"
    );
    world.steps.settle();
    assert_eq!(held(&world, "abc"), "");
    let mut all = world.leases.lock_all(["a", "b", "c"]).into_future();
    finish(&world, &mut all).unwrap_err();
    world.steps.settle();
    assert_eq!(held(&world, "abc"), "");
}

#[test]
fn at_its_limit_it_says_what_it_waited_for() {
    let world = world(4);
    let b = world.leases.lock("b").wait().unwrap();
    let names = ["a", "b", "c"];
    for limit in [Duration::ZERO, 3 * S] {
        let late = world.leases.lock_all(names).within(limit);
        let mut all = late.into_future();
        let mut answer = go_on(&world, &mut all);
        while answer.is_pending() {
            // The smaller name is kept for that time, the greater one is not.
            assert_eq!(held(&world, "abc"), "ab");
            world.steps.advance(S);
            answer = go_on(&world, &mut all);
        }
        let Poll::Ready(Err(LockError::TimedOut { name, .. })) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(name, "b");
        world.steps.settle();
        assert_eq!(held(&world, "abc"), "b");
    }
    let late = world.leases.lock_all(names).within(Duration::ZERO).wait();
    assert!(matches!(late, Err(LockError::TimedOut { name, .. }) if name == "b"));
    drop(b);
    world.store.inject(|_| Fault::Fail(down()));
    let late = world.leases.lock_all(names).within(Duration::ZERO).wait();
    assert!(matches!(late, Err(LockError::Unanswered { name, .. }) if name == "a"));
}

#[test]
fn its_limit_holds_while_the_store_hangs() {
    let world = blocking_threads();
    let gate = Gate::default();
    let at = gate.clone();
    world.store.inject(move |call| {
        if matches!(call, StoreCall::Claim(_) | StoreCall::ClaimMany { .. }) {
            at.pass();
        }
        Fault::None
    });
    let mut hangs = world.leases.lock("x").into_future();
    assert!(poll(&mut hangs, &Wakes::new()).is_pending());
    gate.crowd(1);
    let wakes = Wakes::new();
    let mut all = world.leases.lock_all(["a", "b"]).within(S).into_future();
    assert!(poll(&mut all, &wakes).is_pending());
    let before = wakes.count();
    world.hand.advance(2 * S);
    wait::until("it is woken", || wakes.count() > before);
    let late = poll(&mut all, &wakes);
    let Poll::Ready(Err(LockError::Unanswered { .. })) = late else {
        panic!("{late:?}");
    };
    drop((all, hangs));
    gate.open();
    wait::until("nothing is left", || {
        world.hand.advance(MS);
        let free = |name| world.store.holder(name).is_none();
        free("a") && free("b") && free("x") && world.leases.stats().armed == 0
    });
}

#[test]
fn its_limit_holds_while_releases_hang() {
    let world = threads();
    let _b = world.leases.lock("b").wait().unwrap();
    let gate = Gate::default();
    let at = gate.clone();
    world.store.inject(move |call| {
        if matches!(
            call,
            StoreCall::GiveBack { .. } | StoreCall::GiveBackMany { .. }
        ) {
            at.pass();
        }
        Fault::None
    });
    thread::scope(|scope| {
        let all = world.leases.lock_all(["a", "b", "c"]).within(S);
        let waits = scope.spawn(|| all.wait());
        // It holds the first one, and has left the last one to the background, which hangs.
        gate.crowd(1);
        wait::until("it has ended", || {
            world.hand.advance(100 * MS);
            waits.is_finished()
        });
        let late = waits.join().unwrap();
        assert!(matches!(late, Err(LockError::TimedOut { .. })), "{late:?}");
        gate.open();
    });
    wait::until("nothing is left", || {
        world.hand.advance(MS);
        world.store.holder("a").is_none() && world.store.holder("c").is_none()
    });
}

/// The second lock is asked for twice, in one poll. Meanwhile the first one would be given back if
/// nobody polled.
#[test]
fn a_thread_that_waits_keeps_what_it_holds_while_the_store_is_slow() {
    let World {
        leases,
        steps,
        store,
        ..
    } = world(9);
    let limit = LEASE / 3;
    let b = Claim::new("b", "other", Secret::new("other"), LEASE);
    store.acquire(&b, limit).unwrap();
    let steps = Arc::new(Mutex::new(steps));
    let (own, of, asks) = (Arc::clone(&steps), store.clone(), AtomicUsize::new(0));
    let first = Arc::new(OnceLock::new());
    let token = Arc::clone(&first);
    store.inject(move |call| {
        if let StoreCall::Claim(_) = call {
            token.get_or_init(|| of.holder("a").unwrap().1);
            own.lock().unwrap().advance(LEASE / 2);
            if asks.fetch_add(1, SeqCst) == 1 {
                of.release("b", Secret::new("other"), limit).unwrap();
            }
        }
        Fault::None
    });
    let guards = leases.lock_all(["a", "b"]).wait().unwrap();
    assert!(guards.iter().all(LeaseGuard::is_held));
    assert_eq!(Some(&guards[0].token()), first.get());
}

#[test]
fn a_store_that_fails_for_a_while_is_waited_for() {
    let world = world(5);
    world.store.inject(|_| Fault::Fail(down()));
    let mut all = world.leases.lock_all(["a", "b"]).into_future();
    assert!(go_on(&world, &mut all).is_pending());
    world.steps.advance(S);
    assert!(go_on(&world, &mut all).is_pending());
    world.store.heal();
    world.steps.advance(S);
    assert_eq!(finish(&world, &mut all).unwrap().len(), 2);
}

#[test]
fn a_lock_that_is_lost_during_the_wait_is_acquired_again() {
    let world = world(6);
    let b = world.leases.lock("b").wait().unwrap();
    let mut all = world.leases.lock_all(["a", "b"]).into_future();
    assert!(go_on(&world, &mut all).is_pending());
    let token = world.store.holder("a").unwrap().1;
    world.store.forget();
    // A renewal finds it.
    world.steps.advance(LEASE / 2);
    assert_eq!(b.lost().loss(), Some(Loss::NotHeld));
    assert!(poll(&mut all, &Wakes::new()).is_pending());
    let guards = finish(&world, &mut all).unwrap();
    assert!(guards.iter().all(LeaseGuard::is_held));
    assert!(guards[0].token() > token);
}

#[test]
fn a_future_that_is_not_polled_gives_back_what_it_holds_and_begins_anew() {
    let world = world(7);
    let b = world.leases.lock("b").wait().unwrap();
    let mut all = world.leases.lock_all(["a", "b"]).into_future();
    assert!(go_on(&world, &mut all).is_pending());
    // It is woken before it is given up.
    let wakes = Wakes::new();
    assert!(poll(&mut all, &wakes).is_pending());
    world.steps.advance(LEASE * 3 / 4 - MS);
    assert!(wakes.count() >= 2);
    assert_eq!(held(&world, "ab"), "ab");
    world.steps.advance(LEASE / 4);
    world.steps.settle();
    assert_eq!(held(&world, "ab"), "b");
    // However long it is kept.
    world.steps.advance(10 * LEASE);
    let a = world.leases.lock("a").wait().unwrap();
    drop(b);
    world.steps.settle();
    assert!(go_on(&world, &mut all).is_pending());
    a.release().wait().unwrap();
    world.steps.settle();
    let guards = finish(&world, &mut all).unwrap();
    assert_eq!(names_of(&guards), ["a", "b"]);
    world.leases.release_many(guards).wait();
    assert_eq!(world.leases.stats().armed, 0);
}

#[test]
fn a_future_that_is_polled_holds_them_for_as_long_as_it_waits() {
    let world = world(8);
    let _b = world.leases.lock("b").wait().unwrap();
    let mut all = world.leases.lock_all(["a", "b"]).into_future();
    assert!(go_on(&world, &mut all).is_pending());
    let token = world.store.holder("a").unwrap().1;
    let wakes = Wakes::new();
    for _ in 0..100 {
        // As a task does: it polls when it was woken, and no earlier.
        let before = wakes.count();
        assert!(poll(&mut all, &wakes).is_pending());
        while wakes.count() == before {
            world.steps.advance(S);
        }
    }
    assert_eq!(world.store.holder("a").unwrap().1, token);
    drop(all);
    world.steps.settle();
    assert_eq!(held(&world, "ab"), "b");
}

#[test]
fn two_that_want_them_in_opposite_orders_both_get_them() {
    const ROUNDS: usize = 40;
    let world = threads();
    let names: Vec<String> = (0..20).map(|at| format!("n{at}")).collect();
    let start = Barrier::new(3);
    let inside = std::sync::atomic::AtomicUsize::new(0);
    let (leases, inside, start) = (&world.leases, &inside, &start);
    let work = |guards: Vec<LeaseGuard>| {
        use std::sync::atomic::Ordering::SeqCst;
        assert_eq!(inside.fetch_add(1, SeqCst), 0);
        thread::yield_now();
        assert_eq!(inside.fetch_sub(1, SeqCst), 1);
        leases.release_many(guards).wait();
    };
    thread::scope(|scope| {
        for reversed in [false, true] {
            let mut names = names.clone();
            scope.spawn(move || {
                if reversed {
                    names.reverse();
                }
                start.wait();
                for _ in 0..ROUNDS {
                    work(leases.lock_all(&names).wait().unwrap());
                }
            });
        }
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.build().unwrap();
        start.wait();
        for _ in 0..ROUNDS {
            work(
                runtime
                    .block_on(leases.lock_all(&names).into_future())
                    .unwrap(),
            );
        }
        wait::until("nothing is held", || leases.stats().kept == 0);
    });
}

#[test]
fn a_panic_of_the_store_is_a_failure_that_is_waited_for() {
    let world = world(9);
    quiet::hush();
    world.store.inject(|call| match call {
        StoreCall::ClaimMany { .. } => panic!("on purpose"),
        _ => Fault::None,
    });
    let late = world
        .leases
        .lock_all(["a", "b"])
        .within(Duration::ZERO)
        .wait();
    assert!(
        matches!(late, Err(LockError::Unanswered { .. })),
        "{late:?}"
    );
    world.store.heal();
    world.steps.settle();
    assert_eq!(world.leases.lock_all(["a", "b"]).wait().unwrap().len(), 2);
}

#[test]
fn it_can_be_printed_and_does_nothing_before_it_is_waited_for() {
    let store = MemoryStore::new();
    let leases = Leases::new(store.clone()).unwrap();
    let all = leases.lock_all(["a"]).within(S);
    assert_eq!(
        format!("{all:?}"),
        "LockAll { names: [\"a\"], within: Some(1s), .. }"
    );
    let future = all.into_future();
    assert_eq!(leases.stats().asked, 0);
    drop(future);
    assert_eq!(store.holder("a"), None);
}
