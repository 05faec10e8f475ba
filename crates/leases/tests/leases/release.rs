//! What is given back is renewed no more, and free: by a release, by a drop, by the end of it all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use kit::gate::Gate;
use kit::wait::until;
use kit::{quiet, wait};
use tourbillon::{Clock, ManualClock};
use tourbillon_leases::{
    Fault, LeaseGuard, Leases, LockError, Loss, MemoryStore, ReleaseError, StoreCall, StoreError,
    What,
};

use crate::worlds::{LEASE, MS, S, Seen, all_down, down, log, no_fault, threads, world, world_of};

#[test]
fn c152_nothing_is_renewed_after_the_release() {
    for seed in 0..10 {
        let world = world(seed);
        let log = log(&world.store, &world.clock, no_fault);
        let guard = world.leases.lock("a").at_once().wait().unwrap();
        world.steps.advance(LEASE);
        let before = log.batches().len();
        assert!(before >= 2);
        guard.release().wait().unwrap();
        let calls = log.len();
        world.steps.advance(3 * LEASE);
        assert_eq!(log.len(), calls);
        assert_eq!(world.leases.stats().armed, 0);
        assert!(world.leases.lock("a").at_once().wait().is_ok());
    }
}

#[test]
fn c152_nothing_is_renewed_after_a_release_that_found_its_renewal_queued() {
    // At every moment from before the renewal is due until after it was sent.
    for step in 0..200 {
        let world = world(5);
        let log = log(&world.store, &world.clock, no_fault);
        let guard = world.leases.lock("a").at_once().wait().unwrap();
        world.steps.advance(8 * S + step * 25 * MS);
        let sent = log.batches().len();
        guard.release().wait().unwrap();
        assert_eq!(world.store.holder("a"), None);
        world.steps.advance(LEASE);
        assert_eq!(log.batches().len(), sent, "after {step} steps");
        // The pass that was armed finds nothing, and leaves nothing.
        assert_eq!(world.leases.stats().armed, 0);
    }
}

/// Waits at the gate with the first renewal.
fn hanging_renewal(store: &MemoryStore) -> (Gate, Arc<AtomicUsize>) {
    let gate = Gate::default();
    let renewals = Arc::new(AtomicUsize::new(0));
    let (at_gate, count) = (gate.clone(), Arc::clone(&renewals));
    store.inject(move |call| {
        if let StoreCall::Renew { .. } = call {
            count.fetch_add(1, SeqCst);
            at_gate.pass();
        }
        Fault::None
    });
    (gate, renewals)
}

#[test]
fn c152_r09_a_release_waits_for_the_renewal_that_is_under_way() {
    let world = threads();
    let (gate, renewals) = hanging_renewal(&world.store);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    world.hand.advance(12 * S);
    until("its round is over", || world.leases.stats().armed == 2);
    world.hand.advance(250 * MS);
    gate.crowd(1);
    let (send, released) = channel();
    let releasing = thread::spawn(move || {
        let answer = guard.release().wait();
        send.send(answer).unwrap();
    });
    // The store has been asked already; the release returns when nothing is under way any more.
    until("it is given back", || world.store.holder("a").is_none());
    assert!(released.try_recv().is_err());
    gate.open();
    assert_eq!(wait::next(&released), Ok(()));
    releasing.join().unwrap();
    // What was executed after the release has renewed nothing.
    assert_eq!(world.store.holder("a"), None);
    until("all is done", || world.leases.stats().armed == 0);
    world.hand.advance(LEASE);
    assert_eq!(renewals.load(SeqCst), 1);
}

#[test]
fn c152_a_release_waits_no_longer_than_the_limit_of_what_is_under_way() {
    let world = threads();
    let (gate, _) = hanging_renewal(&world.store);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    world.hand.advance(12 * S);
    until("its round is over", || world.leases.stats().armed == 2);
    world.hand.advance(250 * MS);
    gate.crowd(1);
    let (send, released) = channel();
    let releasing = thread::spawn(move || send.send(guard.release().wait()).unwrap());
    until("it is given back", || world.store.holder("a").is_none());
    assert!(released.try_recv().is_err());
    world.hand.advance(LEASE / 6);
    assert_eq!(wait::next(&released), Ok(()));
    releasing.join().unwrap();
    gate.open();
}

/// The answer to an acquire comes when the leases have been closed meanwhile.
#[test]
fn c153_r09_an_acquire_whose_answer_comes_after_the_end_arms_nothing() {
    let world = threads();
    let gate = Gate::default();
    let at_gate = gate.clone();
    world.store.inject(move |call| match call {
        StoreCall::Claim(_) => {
            let gate = at_gate.clone();
            Fault::Then(Box::new(move || gate.pass()))
        }
        _ => Fault::None,
    });
    let leases = world.leases.clone();
    let acquiring = thread::spawn(move || leases.lock("a").at_once().wait().map(drop));
    gate.crowd(1);
    assert!(world.store.holder("a").is_some());
    assert_eq!(world.leases.close(S), 0);
    gate.open();
    assert!(matches!(
        acquiring.join().unwrap(),
        Err(LockError::Closed { .. })
    ));
    assert_eq!(world.leases.stats().kept, 0);
    until("it is given back", || world.store.holder("a").is_none());
    until("nothing is armed", || world.leases.stats().armed == 0);
}

/// The answer to an acquire comes when its lease is over: somebody else may have it.
#[test]
fn c153_r09_an_acquire_whose_answer_comes_too_late_arms_nothing() {
    for seed in 0..5 {
        let world = world(seed);
        let hand = world.steps.clock();
        let log = log(&world.store, &world.clock, move |call| match call {
            StoreCall::Claim(_) => {
                let hand = hand.clone();
                Fault::Then(Box::new(move || {
                    hand.advance(LEASE - 100 * MS);
                }))
            }
            _ => Fault::None,
        });
        let late = world.leases.lock("a").at_once().wait();
        assert!(matches!(
            late,
            Err(LockError::Store {
                error: StoreError::Unavailable(_),
                ..
            })
        ));
        assert_eq!(world.leases.stats().kept, 0);
        // For the store it still is held, and by nobody who would give it back later.
        assert!(world.store.holder("a").is_some());
        world.steps.settle();
        assert_eq!(world.store.holder("a"), None);
        world.steps.advance(3 * LEASE);
        assert!(log.batches().is_empty());
        assert_eq!(world.leases.stats().armed, 0);
    }
}

#[test]
fn r05_an_acquire_whose_answer_is_lost_leaves_the_lock_with_nobody() {
    for seed in 0..5 {
        let world = world(seed);
        let log = log(&world.store, &world.clock, |call| match call {
            StoreCall::Claim(_) => Fault::LoseAnswer(down()),
            _ => Fault::None,
        });
        assert!(matches!(
            world.leases.lock("a").at_once().wait(),
            Err(LockError::Store { .. })
        ));
        assert_eq!(world.leases.stats().kept, 0);
        assert!(world.store.holder("a").is_some());
        world.steps.settle();
        assert_eq!(world.store.holder("a"), None);
        // If that fails, too, it is tried again, and at the latest it is free after one lease.
        world.store.inject(|call| match call {
            StoreCall::Claim(_) => Fault::LoseAnswer(down()),
            StoreCall::GiveBack { .. } => Fault::Fail(down()),
            _ => Fault::None,
        });
        assert!(world.leases.lock("b").at_once().wait().is_err());
        world.steps.advance(S);
        assert!(world.store.holder("b").is_some());
        world.store.heal();
        world.steps.advance(LEASE - S);
        assert_eq!(world.store.holder("b"), None);
        assert!(log.batches().is_empty());
        world.steps.advance(2 * LEASE);
        assert_eq!(world.leases.stats().armed, 0);
    }
}

#[test]
fn r05_what_was_surely_not_granted_is_not_given_back() {
    let world = world(1);
    let refused = [
        StoreError::Refused("no".to_owned()),
        StoreError::Restarted { wait: S },
    ];
    for error in refused {
        let log = log(&world.store, &world.clock, move |_| {
            Fault::Fail(error.clone())
        });
        assert!(world.leases.lock("a").at_once().wait().is_err());
        world.steps.advance(LEASE);
        assert_eq!(log.len(), 1);
    }
}

#[test]
fn r06_a_lock_belongs_to_its_guard_and_to_no_thread() {
    let world = world(1);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    // The thread that has it does not have it again.
    assert!(matches!(
        world.leases.lock("a").at_once().wait(),
        Err(LockError::Held { .. })
    ));
    // Another one gives it back, and the end of the one that acquired it changes nothing.
    let leases = world.leases.clone();
    let other = thread::spawn(move || leases.lock("b").at_once().wait().unwrap());
    let from_there = other.join().unwrap();
    world.steps.advance(3 * LEASE);
    assert!(guard.is_held() && from_there.is_held());
    thread::spawn(move || guard.release().wait().unwrap())
        .join()
        .unwrap();
    assert_eq!(world.store.holder("a"), None);
    from_there.release().wait().unwrap();
    assert_eq!(world.store.holder("b"), None);
}

#[test]
fn c155_a_reentrant_hold_is_renewed_until_its_last_release() {
    let world = world(1);
    let log = log(&world.store, &world.clock, no_fault);
    let outer = world.leases.lock("a").at_once().wait().unwrap();
    let inner = outer.again().unwrap();
    assert_eq!(outer.id().holds(), 2);
    assert_eq!(outer.token(), inner.token());
    outer.release().wait().unwrap();
    assert_eq!(inner.id().holds(), 1);
    let calls = log.len();
    world.steps.advance(3 * LEASE);
    assert!(log.len() >= calls + 8);
    assert!(inner.is_held());
    inner.release().wait().unwrap();
    assert_eq!(world.store.holder("a"), None);
    let calls = log.len();
    world.steps.advance(3 * LEASE);
    assert_eq!(log.len(), calls);
    assert_eq!(world.leases.stats().armed, 0);
}

#[test]
fn r10_entered_often_and_released_as_often_nothing_is_left() {
    for order in 0..4 {
        let world = world(order);
        let log = log(&world.store, &world.clock, no_fault);
        let first = world.leases.lock("a").at_once().wait().unwrap();
        let mut guards: Vec<LeaseGuard> = (0..20).map(|_| first.again().unwrap()).collect();
        guards.insert(usize::try_from(order).unwrap() * 6, first);
        let given_back = || {
            let calls = log.calls();
            let back = calls
                .iter()
                .filter(|(_, seen)| matches!(seen, Seen::GiveBack(_)));
            back.count()
        };
        while let Some(guard) = guards.pop() {
            assert!(guard.is_held());
            assert_eq!(given_back(), 0);
            assert_eq!(guard.id().holds(), guards.len() + 1);
            // By a release and by a drop.
            if guards.len().is_multiple_of(2) {
                guard.release().wait().unwrap();
            } else {
                drop(guard);
            }
        }
        world.steps.settle();
        assert_eq!(given_back(), 1);
        assert_eq!(world.store.holder("a"), None);
        let stats = world.leases.stats();
        assert_eq!((stats.armed, stats.kept, stats.destinations), (0, 0, 0));
    }
}

#[test]
fn r10_threads_that_enter_and_leave_agree_on_the_last_one() {
    let world = threads();
    for _ in 0..200 {
        let guard = world.leases.lock("a").at_once().wait().unwrap();
        thread::scope(|scope| {
            for _ in 0..3 {
                let again = guard.again().unwrap();
                scope.spawn(move || {
                    let more = again.again().unwrap();
                    again.release().wait().unwrap();
                    more.release().wait().unwrap();
                });
            }
            guard.release().wait().unwrap();
        });
        assert_eq!(world.store.holder("a"), None);
        assert_eq!(world.leases.stats().kept, 0);
    }
}

#[test]
fn one_guard_less_knows_of_the_loss_and_gives_nothing_back() {
    let world = world(1);
    let outer = world.leases.lock("a").at_once().wait().unwrap();
    let inner = outer.again().unwrap();
    world.store.inject(all_down);
    world.steps.advance(LEASE);
    assert!(!outer.is_held() && !inner.is_held());
    assert_eq!(
        outer.release().wait(),
        Err(ReleaseError::Lost(Loss::Expired))
    );
    assert!(matches!(
        inner.again(),
        Err(LockError::Lost {
            loss: Loss::Expired,
            ..
        })
    ));
    assert_eq!(
        inner.release().wait(),
        Err(ReleaseError::Lost(Loss::Expired))
    );
}

#[test]
fn a_release_says_what_the_store_says() {
    let world = world(1);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    world.store.forget();
    assert!(guard.is_held());
    assert_eq!(guard.release().wait(), Err(ReleaseError::NotHeld));
    // It was given up by the holder and not lost by it.
    assert_eq!(world.leases.stats().lost, 0);

    let guard = world.leases.lock("a").at_once().wait().unwrap();
    world.store.inject(|call| match call {
        StoreCall::GiveBack { .. } => panic!("wanted"),
        _ => Fault::None,
    });
    quiet::hush();
    let failed = guard.release().wait();
    assert!(
        matches!(&failed, Err(ReleaseError::Store(StoreError::Unavailable(why)))
            if why.contains("wanted")),
        "{failed:?}"
    );
    world.store.heal();
    world.steps.advance(LEASE);
    assert_eq!(world.store.holder("a"), None);
}

#[test]
fn what_a_store_that_fails_was_not_told_it_is_told_later() {
    for (seed, by_drop) in [(1, false), (2, true)] {
        let world = world(seed);
        let guard = world.leases.lock("a").at_once().wait().unwrap();
        let log = log(&world.store, &world.clock, all_down);
        if by_drop {
            drop(guard);
        } else {
            assert_eq!(guard.release().wait(), Err(ReleaseError::Store(down())));
        }
        world.steps.advance(10 * S);
        assert!(log.len() >= 4, "{:?}", log.calls());
        assert!(world.store.holder("a").is_some());
        world.store.heal();
        world.steps.advance(10 * S);
        assert_eq!(world.store.holder("a"), None);
        // It ends with that, and it ends when it has not worked for long enough.
        assert_eq!(world.leases.stats().armed, 0);
        let guard = world.leases.lock("a").at_once().wait().unwrap();
        world.store.inject(all_down);
        drop(guard);
        world.steps.advance(3 * LEASE);
        assert_eq!(world.leases.stats().armed, 0);
    }
}

/// Whatever the leases' own lease is.
#[test]
fn a_long_lease_is_tried_to_be_given_back_for_as_long_as_it_lasts() {
    let world = world(1);
    let guard = world.leases.lock("a").lease(100 * LEASE).at_once().wait();
    world.store.inject(all_down);
    assert!(guard.unwrap().release().wait().is_err());
    world.steps.advance(20 * LEASE);
    assert!(world.store.holder("a").is_some());
    world.store.heal();
    world.steps.advance(70 * LEASE);
    assert_eq!(world.store.holder("a"), None);
    assert_eq!(world.leases.stats().armed, 0);
}

#[test]
fn the_longest_lease_there_is_is_no_problem() {
    let world = world_of(1, 1, |builder| builder.lease(Duration::MAX));
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    world.steps.advance(1_000_000 * LEASE);
    assert!(guard.is_held());
    world.store.inject(all_down);
    assert_eq!(guard.release().wait(), Err(ReleaseError::Store(down())));
    let guard = {
        world.store.heal();
        world.leases.lock("b").at_once().wait().unwrap()
    };
    world.store.inject(all_down);
    drop(guard);
    world.steps.settle();
}

#[test]
fn a_drop_does_not_wait_for_a_store_that_hangs() {
    let world = threads();
    let gate = Gate::default();
    let at_gate = gate.clone();
    world.store.inject(move |call| {
        if let StoreCall::GiveBack { .. } = call {
            at_gate.pass();
        }
        Fault::None
    });
    let guards: Vec<_> = (0..3)
        .map(|n| world.leases.lock(&n.to_string()).at_once().wait().unwrap())
        .collect();
    let (send, dropped) = channel();
    let dropping = thread::spawn(move || {
        for guard in guards {
            drop(guard);
            send.send(()).unwrap();
        }
    });
    // It returns though the store never answers and the leases' clock stands.
    for _ in 0..3 {
        wait::next(&dropped);
    }
    dropping.join().unwrap();
    assert_eq!(world.leases.stats().kept, 0);
    gate.crowd(1);
    assert!(world.store.holder("2").is_some());
    gate.open();
    for name in ["0", "1", "2"] {
        until("it is given back", || world.store.holder(name).is_none());
    }
}

#[test]
fn a_drop_waits_for_a_store_that_answers() {
    let world = threads();
    let mut free = 0;
    for _ in 0..100 {
        drop(world.leases.lock("a").at_once().wait().unwrap());
        free += usize::from(world.store.holder("a").is_none());
        until("it is free", || world.store.holder("a").is_none());
    }
    // For a tenth of a second each, which a machine that is busy elsewhere may use up now and then.
    assert!(free > 50, "{free} of 100");
}

#[test]
fn to_close_is_the_end_of_everything_that_is_held() {
    let world = world(1);
    let events = world.leases.events(100);
    let log = log(&world.store, &world.clock, no_fault);
    let mut guards: Vec<_> = (0..5)
        .map(|n| world.leases.lock(&n.to_string()).at_once().wait().unwrap())
        .collect();
    guards.pop().unwrap().release().wait().unwrap();
    let channel = guards[0].lost().channel();
    assert_eq!(world.leases.close(S), 4);
    assert_eq!(channel.try_recv(), Ok(Loss::Closed));
    assert!(guards.iter().all(|guard| !guard.is_held()));
    let lost = events
        .try_iter()
        .filter(|event| event.what == What::Lost(Loss::Closed));
    assert_eq!(lost.count(), 4);
    for n in 0..5 {
        assert_eq!(world.store.holder(&n.to_string()), None);
    }
    let closed = |answer| matches!(answer, Err(LockError::Closed { .. }));
    assert!(closed(world.leases.lock("9").at_once().wait().map(drop)));
    assert!(closed(world.leases.lock("9").wait().map(drop)));
    assert!(closed(world.leases.lock("9").within(S).wait().map(drop)));
    for guard in guards {
        assert!(matches!(
            guard.again(),
            Err(LockError::Lost {
                loss: Loss::Closed,
                ..
            })
        ));
        assert_eq!(
            guard.release().wait(),
            Err(ReleaseError::Lost(Loss::Closed))
        );
    }
    assert_eq!(world.leases.close(S), 0);
    world.steps.advance(3 * LEASE);
    assert!(log.batches().is_empty());
    assert_eq!(world.leases.stats().armed, 0);
}

#[test]
fn to_close_takes_no_longer_than_its_limit_and_one_call() {
    let world = world_of(1, 1, |builder| builder.batch(1));
    let hand = world.steps.clock();
    let log = log(&world.store, &world.clock, move |call| {
        if let StoreCall::GiveBack { .. } = call {
            hand.advance(S);
        }
        Fault::None
    });
    let guards: Vec<_> = (0..20)
        .map(|n| world.leases.lock(&n.to_string()).at_once().wait().unwrap())
        .collect();
    let claims = log.len();
    // All are lost, and some run out.
    assert_eq!(world.leases.close(3 * S - MS), 20);
    assert_eq!(log.len() - claims, 3);
    assert!(guards.iter().all(|guard| !guard.is_held()));
    let held = (0..20).filter(|n| world.store.holder(&n.to_string()).is_some());
    assert_eq!(held.count(), 17);
}

/// Says when it is dropped.
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// A store, and whether it is gone.
fn mortal() -> (MemoryStore, Arc<AtomicBool>) {
    let gone = Arc::new(AtomicBool::new(false));
    let mark = Gone(Arc::clone(&gone));
    let store = MemoryStore::with_clock(Clock::manual(&ManualClock::new()));
    store.inject(move |_| {
        let _ = &mark;
        Fault::None
    });
    (store, gone)
}

#[test]
fn with_the_last_clone_and_the_last_guard_everything_is_gone() {
    let (store, gone) = mortal();
    let leases = Leases::new(store).unwrap();
    let guard = leases.clone().lock("a").at_once().wait().unwrap();
    let again = guard.again().unwrap();
    let lost = guard.lost();
    drop(leases);
    assert!(guard.is_held());
    guard.release().wait().unwrap();
    assert!(again.is_held());
    again.release().wait().unwrap();
    until("the store is gone", || gone.load(SeqCst));
    assert!(!lost.is_lost());
    // Also when the last guard is dropped, which ends on a worker of what ends.
    let (store, gone) = mortal();
    let leases = Leases::new(store).unwrap();
    let guard = leases.lock("a").at_once().wait().unwrap();
    drop(leases);
    drop(guard);
    until("the store is gone", || gone.load(SeqCst));
}

#[test]
fn guards_of_a_manager_that_is_gone_are_renewed() {
    let world = world(1);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    drop(world.leases);
    world.steps.advance(10 * LEASE);
    assert!(guard.is_held());
    guard.release().wait().unwrap();
    assert_eq!(world.store.holder("a"), None);
}
