//! Calls that are waited for, awaited, or neither.

use std::thread;
use std::time::Duration;

use kit::wait::until;
use kit::wakes::{Wakes, poll};
use tourbillon_leases::{LockError, Loss};

use crate::worlds::{LEASE, S, log, no_fault, threads, world};

#[test]
fn a_call_that_is_dropped_unused_is_not_made_and_a_guard_in_it_is_dropped() {
    let world = world(1);
    let guard = world.leases.lock("a").wait().unwrap();
    let fixed = world
        .leases
        .lock("b")
        .lease(LEASE)
        .not_renewed()
        .wait()
        .unwrap();
    let calls = log(&world.store, &world.clock, no_fault);
    drop(fixed.extend(2 * LEASE));
    drop(world.leases.holder("a"));
    drop(world.leases.lock_all(["c", "d"]).each());
    assert_eq!(calls.len(), 0);
    assert!(guard.is_held() && fixed.is_held());
    drop(guard.release());
    assert_eq!(world.leases.stats().kept, 1);
    world.steps.settle();
    assert_eq!(world.store.holder("a"), None);
    drop(world.leases.release_many([fixed]));
    world.steps.settle();
    assert_eq!(world.store.holder("b"), None);
    assert_eq!(world.leases.stats().released, 2);
}

#[test]
fn a_call_that_was_polled_goes_on_when_it_is_waited_for() {
    let threads = threads();
    let held = threads.leases.lock("a").wait().unwrap();
    let mut lock = threads.leases.lock("a").into_future();
    let wakes = Wakes::new();
    until("it waits", || {
        assert!(poll(&mut lock, &wakes).is_pending());
        threads.leases.stats().waiting == 1
    });
    let waits = thread::spawn(move || lock.wait());
    held.release().wait().unwrap();
    let guard = waits.join().unwrap().unwrap();
    assert!(guard.is_held());
    // One call, whichever way it was made.
    assert_eq!(threads.leases.stats().granted, 2);
}

#[test]
fn an_answer_that_was_stored_blocks_as_its_call_does() {
    let world = world(2);
    let lock = world.leases.lock("a").at_once().into_future();
    let all = world.leases.lock_all(["b", "c"]).into_future();
    let guard = lock.wait().unwrap();
    assert_eq!(all.wait().unwrap().len(), 2);
    let held = world.leases.lock("a").at_once().into_future().wait();
    assert!(matches!(held, Err(LockError::Held { .. })));
    let released = guard.release();
    released.wait().unwrap();
    assert_eq!(world.store.holder("a"), None);
}

#[test]
fn the_last_word_about_the_wait_counts_and_the_other_options_have_no_order() {
    let world = world(3);
    let leases = &world.leases;
    let fixed = leases.lock("a").not_renewed().lease(10 * S);
    let fixed = fixed.within(S).at_once().wait().unwrap();
    let held = leases.lock("a").within(S).at_once().wait();
    assert!(matches!(held, Err(LockError::Held { .. })));
    let late = leases.lock("a").at_once().within(Duration::ZERO).wait();
    assert!(matches!(late, Err(LockError::TimedOut { .. })));
    world.steps.advance(10 * S);
    assert_eq!(fixed.lost().loss(), Some(Loss::Expired));
}

/// A poll that only lets the runtime have its turn makes no call.
#[test]
fn a_call_whose_first_poll_was_too_early_is_made_by_who_waits_for_it() {
    let world = world(4);
    let mut release = world.leases.lock("a").wait().unwrap().release();
    let wakes = Wakes::new();
    let refused = || poll(&mut world.leases.lock("").into_future(), &wakes).is_ready();
    // From one turn of the runtime to the next.
    while refused() {}
    let turns = (0..).take_while(|_| refused()).count();
    assert!((0..turns).all(|_| refused()));
    let calls = log(&world.store, &world.clock, no_fault);
    assert!(poll(&mut release, &wakes).is_pending());
    assert_eq!(calls.len(), 0);
    // On these leases nothing else makes a call.
    release.wait().unwrap();
    assert_eq!(world.store.holder("a"), None);
}
