//! Futures that are granted a lock, and are not polled for a while.

use std::future::Future;
use std::task::Poll;

use kit::wakes::{Wakes, poll};
use tourbillon_leases::{ElectionRole, LeaseFuture, LeaseGuard, LockError, Loss};

use crate::worlds::{LEASE, Log, MS, S, Seen, World, log, no_fault, world};

const HALF: std::time::Duration = LEASE.checked_div(2).unwrap();

/// Polls once, so that the call is sent, and executes it.
fn begin<F: Future + Unpin>(world: &World, future: &mut F) {
    assert!(poll(future, &Wakes::new()).is_pending());
    world.steps.settle();
}

/// Polls until the future is ready. The clock stands still.
fn finish<F: Future + Unpin>(world: &World, future: &mut F) -> F::Output {
    for _ in 0..100 {
        if let Poll::Ready(answer) = poll(future, &Wakes::new()) {
            return answer;
        }
        world.steps.settle();
    }
    panic!("it waits for the clock, or forever");
}

fn releases(log: &Log) -> Vec<String> {
    let calls = log.calls().into_iter();
    calls
        .flat_map(|(_, seen)| match seen {
            Seen::GiveBack(name) => vec![name],
            Seen::GiveBackMany(names) => names,
            _ => Vec::new(),
        })
        .collect()
}

type Lock = LeaseFuture<Result<LeaseGuard, LockError>>;

/// All calls that await one lock.
fn each(world: &World) -> [Lock; 4] {
    let acquire = || world.leases.lock("a");
    [
        acquire().into_future(),
        acquire().at_once().into_future(),
        acquire().within(S).into_future(),
        acquire().lease(LEASE).not_renewed().into_future(),
    ]
}

#[test]
fn a_grant_that_nobody_takes_is_given_back_after_half_of_its_lease() {
    let world = world(1);
    for mut lock in each(&world) {
        let log = log(&world.store, &world.clock, no_fault);
        begin(&world, &mut lock);
        world.steps.advance(HALF - MS);
        assert!(world.store.holder("a").is_some());
        world.steps.advance(MS);
        world.steps.settle();
        assert_eq!(world.store.holder("a"), None);
        assert_eq!(world.leases.stats().kept, 0);
        // It holds nothing and costs nothing, however long it is kept.
        world.steps.advance(100 * LEASE);
        assert_eq!(releases(&log), ["a"]);
        drop(lock);
        world.steps.settle();
        assert_eq!(releases(&log), ["a"]);
        assert_eq!(world.leases.stats().armed, 0);
    }
}

#[test]
fn a_poll_within_half_of_the_lease_takes_the_grant() {
    let world = world(2);
    for mut lock in each(&world) {
        begin(&world, &mut lock);
        let token = world.store.holder("a").unwrap().1;
        world.steps.advance(HALF - MS);
        let guard = finish(&world, &mut lock).unwrap();
        assert_eq!(guard.token(), token);
        assert!(guard.is_held());
        // Only the timer of the guard is left.
        assert!(world.leases.stats().armed <= 1);
        world.steps.advance(HALF / 2);
        assert!(guard.is_held());
        guard.release().wait().unwrap();
        assert_eq!(world.leases.stats().armed, 0);
    }
}

#[test]
fn a_later_poll_asks_again_and_returns_a_lock_that_is_held() {
    let world = world(3);
    for mut lock in each(&world) {
        begin(&world, &mut lock);
        let token = world.store.holder("a").unwrap().1;
        world.steps.advance(2 * LEASE);
        let log = log(&world.store, &world.clock, no_fault);
        let guard = finish(&world, &mut lock).unwrap();
        assert!(guard.is_held() && guard.token() > token);
        // No release of the first grant reaches the second one.
        world.steps.advance(LEASE / 4);
        assert!(guard.is_held() && releases(&log).is_empty());
        guard.release().wait().unwrap();
        assert_eq!(releases(&log), ["a"]);
    }
}

#[test]
fn a_later_poll_waits_for_whoever_has_the_lock_now() {
    let world = world(4);
    let late = |mut lock: Lock| {
        begin(&world, &mut lock);
        world.steps.advance(HALF);
        world.steps.settle();
        let other = world.leases.lock("a").at_once().wait().unwrap();
        (lock, other)
    };
    let [endless, once, limited, _] = each(&world);
    let (mut endless, other) = late(endless);
    for _ in 0..10 {
        assert!(poll(&mut endless, &Wakes::new()).is_pending());
        world.steps.advance(S);
    }
    other.release().wait().unwrap();
    world.steps.settle();
    let guard = finish(&world, &mut endless).unwrap();
    assert!(guard.is_held());
    guard.release().wait().unwrap();

    let (mut once, other) = late(once);
    let held = finish(&world, &mut once);
    assert!(matches!(held, Err(LockError::Held { .. })), "{held:?}");
    other.release().wait().unwrap();

    // Its time is over, so it asks for the last time.
    let (mut limited, other) = late(limited);
    let held = finish(&world, &mut limited);
    assert!(matches!(held, Err(LockError::TimedOut { .. })), "{held:?}");
    assert!(other.is_held());
}

#[test]
fn a_grant_that_ended_before_the_poll_is_never_handed_out() {
    let world = world(5);
    let acquire = || world.leases.lock("a");
    for (mut lock, loss) in [
        (acquire().fed_every(S).into_future(), Loss::NotFed),
        (acquire().max_hold(S).into_future(), Loss::HeldTooLong),
    ] {
        begin(&world, &mut lock);
        world.steps.advance(S);
        let lost = finish(&world, &mut lock).unwrap_err();
        assert!(
            matches!(lost, LockError::Lost { loss: of, .. } if of == loss),
            "{lost}"
        );
        world.steps.settle();
        assert_eq!(world.store.holder("a"), None);
    }
    // The store has lost it, and the next one is asked for.
    let mut lock = acquire().into_future();
    begin(&world, &mut lock);
    world.store.forget();
    world.steps.advance(LEASE * 2 / 5);
    let guard = finish(&world, &mut lock).unwrap();
    assert!(guard.is_held());
    guard.release().wait().unwrap();
    // Closed leases grant nothing.
    let mut lock = acquire().into_future();
    begin(&world, &mut lock);
    world.leases.close(S);
    let closed = finish(&world, &mut lock);
    assert!(
        matches!(closed, Err(LockError::Closed { .. })),
        "{closed:?}"
    );
}

#[test]
fn many_locks_that_nobody_takes_are_given_back_together() {
    let world = world(6);
    let mut locks = world.leases.lock_all(["a", "", "b"]).each();
    begin(&world, &mut locks);
    let log = log(&world.store, &world.clock, no_fault);
    world.steps.advance(HALF);
    world.steps.settle();
    assert_eq!(releases(&log), ["a", "b"]);
    assert_eq!(world.leases.stats().kept, 0);
    // A later poll asks again, and finds what is free now.
    let other = world.leases.lock("b").at_once().wait().unwrap();
    let answers = finish(&world, &mut locks);
    let held: Vec<bool> = answers
        .iter()
        .map(|answer| answer.as_ref().is_ok_and(LeaseGuard::is_held))
        .collect();
    assert_eq!(held, [true, false, false]);
    assert!(matches!(answers[2], Err(LockError::Held { .. })));
    drop((answers, other));
    world.steps.settle();
    assert_eq!(world.leases.stats().armed, 0);
    // One that the store has lost meanwhile is asked for again, with the others.
    let mut locks = world.leases.lock_all(["a", "b"]).each();
    begin(&world, &mut locks);
    world.store.forget();
    world.steps.advance(LEASE * 2 / 5);
    let answers = finish(&world, &mut locks);
    assert!(answers.iter().flatten().all(LeaseGuard::is_held));
    assert_eq!(answers.iter().flatten().count(), 2);
}

#[test]
fn a_resumed_lock_that_nobody_takes_is_released() {
    let world = world(7);
    for wait in [HALF, LEASE * 2] {
        let ticket = world
            .leases
            .lock("a")
            .at_once()
            .wait()
            .unwrap()
            .detach()
            .wait()
            .unwrap();
        let mut resume = world.leases.resume(&ticket);
        begin(&world, &mut resume);
        world.steps.advance(wait);
        world.steps.settle();
        assert_eq!(world.store.holder("a"), None);
        let lost = finish(&world, &mut resume).unwrap_err();
        assert!(matches!(lost, LockError::Lost { .. }), "{lost}");
    }
    let ticket = world
        .leases
        .lock("a")
        .at_once()
        .wait()
        .unwrap()
        .detach()
        .wait()
        .unwrap();
    let mut resume = world.leases.resume(&ticket);
    begin(&world, &mut resume);
    world.store.forget();
    world.steps.advance(LEASE * 2 / 5);
    let lost = finish(&world, &mut resume).unwrap_err();
    assert!(
        matches!(
            lost,
            LockError::Lost {
                loss: Loss::NotHeld,
                ..
            }
        ),
        "{lost}"
    );
}

#[test]
fn a_candidate_that_nobody_polls_leaves_the_lead_to_others() {
    let world = world(8);
    let sleeper = world.leases.election("a");
    let mut campaign = Box::pin(sleeper.lead());
    begin(&world, &mut campaign);
    world.steps.advance(HALF);
    world.steps.settle();
    // An election is the lock of its name.
    let other = world.leases.lock("a").at_once().wait().unwrap();
    assert!(poll(&mut campaign, &Wakes::new()).is_pending());
    world.steps.settle();
    assert!(poll(&mut campaign, &Wakes::new()).is_pending());
    let token = other.token();
    other.release().wait().unwrap();
    world.steps.settle();
    let term = finish(&world, &mut campaign).unwrap();
    assert!(term.is_leader() && term.token() > token);
}

#[test]
fn a_service_that_nobody_polls_in_time_tries_again() {
    let world = world(8);
    let election = world.leases.election("a").fed_every(S);
    let mut service = Box::pin(election.serve_async(async |_| std::future::pending().await));
    assert!(poll(&mut service, &Wakes::new()).is_pending());
    world.steps.settle();
    assert!(world.store.holder("a").is_some(), "it was granted");
    // Its term was over before it began.
    world.steps.advance(2 * S);
    assert!(poll(&mut service, &Wakes::new()).is_pending());
    world.steps.settle();
    assert_eq!(world.store.holder("a"), None);
    assert_eq!(election.status().role, ElectionRole::Waiting);
    // The first pause is of 60 ms at most.
    world.steps.advance(S / 10);
    assert!(poll(&mut service, &Wakes::new()).is_pending());
    world.steps.settle();
    assert!(poll(&mut service, &Wakes::new()).is_pending());
    assert!(matches!(
        election.status().role,
        ElectionRole::Leading { .. }
    ));
}
