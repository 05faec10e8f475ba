//! Locks that stay locked for a while after a short job.

use std::time::Duration;

use tourbillon::Time;
use tourbillon_leases::{
    Destination, Leases, LockError, MemoryStore, Outcome, Released, Renewal, Secret, StoreError,
};

use crate::calls::Calls;
use crate::worlds::{LEASE, MS, S, World, all_down, log, next_secret, no_fault, world};

const LEAST: Duration = Duration::from_secs(20);

/// Lets the time pass until the name is free, and returns when that was.
fn free_at(world: &World) -> Time {
    while world.leases.holder("a").wait().unwrap().is_some() {
        world.steps.advance(100 * MS);
    }
    world.steps.now()
}

#[test]
fn a_short_job_of_ten_nodes_with_different_clocks_runs_once() {
    let world = world(1);
    let nodes: Vec<_> = (0..10)
        .map(|node| {
            let builder = Leases::builder(world.store.clone()).clock(world.clock.clone());
            builder.build_stepped(node).unwrap()
        })
        .collect();
    let mut ran = 0;
    for (leases, steps) in &nodes {
        match leases.lock("a").at_least(LEAST).at_once().wait() {
            Ok(guard) => {
                ran += 1;
                world.steps.advance(5 * MS);
                drop(guard);
                steps.settle();
            }
            Err(LockError::Held { remaining, .. }) => assert!(remaining <= LEAST),
            Err(error) => panic!("{error}"),
        }
        world.steps.advance(S);
    }
    assert_eq!(ran, 1);
}

#[test]
fn the_lock_is_free_when_its_shortest_hold_is_over_however_it_ended() {
    type End = fn(&World, tourbillon_leases::LeaseGuard);
    let ends: [(&str, End); 4] = [
        ("released", |_, guard| guard.release().wait().unwrap()),
        ("dropped", |world, guard| {
            drop(guard);
            world.steps.settle();
        }),
        ("closed", |world, guard| {
            assert_eq!(world.leases.close(S), 1);
            drop(guard);
        }),
        ("dropped while the store was down", |world, guard| {
            world.store.inject(all_down);
            drop(guard);
            world.steps.advance(5 * S);
            world.store.heal();
        }),
    ];
    for (how, end) in ends {
        for job in [Duration::ZERO, 3 * S] {
            let world = world(2);
            let start = world.steps.now();
            let guard = world
                .leases
                .lock("a")
                .at_least(LEAST)
                .at_once()
                .wait()
                .unwrap();
            let owner = guard.id().owner().to_owned();
            world.steps.advance(job);
            end(&world, guard);
            world.steps.advance(6 * S);
            let holder = world.leases.holder("a").wait().unwrap().unwrap();
            assert_eq!(holder.owner, format!("{owner} (released)"), "{how}");
            assert_eq!(free_at(&world), start + LEAST, "{how}");
            assert_eq!(world.leases.stats().releases_queued, 0, "{how}");
        }
    }
}

#[test]
fn a_long_job_is_released_at_once() {
    let world = world(3);
    let guard = world
        .leases
        .lock("a")
        .at_least(LEAST)
        .at_once()
        .wait()
        .unwrap();
    world.steps.advance(LEAST);
    guard.release().wait().unwrap();
    assert_eq!(world.store.holder("a"), None);
    // So is the lock of everybody who asks for nothing.
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    guard.release().wait().unwrap();
    assert_eq!(world.store.holder("a"), None);
}

#[test]
fn a_holder_that_dies_keeps_the_lock_for_its_lease() {
    let world = world(4);
    let guard = world
        .leases
        .lock("a")
        .at_least(LEASE)
        .at_once()
        .wait()
        .unwrap();
    world.store.inject(|call| match call {
        tourbillon_leases::StoreCall::Renew { .. } => tourbillon_leases::Fault::Fail(down()),
        _ => tourbillon_leases::Fault::None,
    });
    world.steps.advance(LEASE - S);
    assert!(world.store.holder("a").is_some());
    drop(guard);
}

fn down() -> StoreError {
    StoreError::Unavailable("down".to_owned())
}

#[test]
fn it_is_no_longer_than_the_lease() {
    let world = world(5);
    let log = log(&world.store, &world.clock, no_fault);
    let least = LEASE + MS;
    let error = world
        .leases
        .lock("a")
        .at_least(least)
        .at_once()
        .wait()
        .unwrap_err();
    assert!(
        matches!(error, LockError::LongerThanLease { .. }),
        "{error}"
    );
    assert_eq!((log.len(), world.leases.stats().asked), (0, 0));
    drop(
        world
            .leases
            .lock("a")
            .lease(least)
            .at_least(least)
            .at_once()
            .wait()
            .unwrap(),
    );
}

#[test]
fn a_renewal_that_comes_late_does_not_lengthen_the_rest() {
    let world = world(6);
    let secret = next_secret(&world.store);
    let guard = world
        .leases
        .lock("a")
        .at_least(LEAST)
        .at_once()
        .wait()
        .unwrap();
    guard.release().wait().unwrap();
    let secret = Secret::new(secret.get().unwrap());
    let late = Renewal::new("a", secret, LEASE);
    let renewed = world.store.renew(Destination::default(), &[late], S);
    assert_eq!(renewed, Ok(vec![Outcome::NotHeld]));
    let again = world.store.release("a", secret, S);
    assert_eq!(again, Ok(Released::NotHeld));
}

#[test]
fn a_waiting_caller_gets_the_lock_when_the_shortest_hold_is_over() {
    let leases = Leases::new(MemoryStore::new()).unwrap();
    let least = 150 * MS;
    let start = std::time::Instant::now();
    let guard = leases.lock("a").at_least(least).at_once().wait().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| leases.lock("a").wait().unwrap());
        kit::wait::until("it waits", || leases.stats().waiting == 1);
        guard.release().wait().unwrap();
        let next = waiting.join().unwrap();
        assert!(start.elapsed() >= least);
        next.release().wait().unwrap();
    });
}
