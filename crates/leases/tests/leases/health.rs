//! Health: renewals at risk, a store that fails, and leases that are closed.

use std::time::Duration;

use kit::quiet::{WANTED, hush};
use kit::wait;
use tourbillon_leases::{FindingKind, Health, Impact, LockError, Outcome, StoreError};
use tourbillon_leases::{KeepAlive, Leases};

use crate::worlds::{LEASE, S, all_down, march, no_renewals, threads, world, world_of};

/// The kinds of all findings, with their impacts.
fn found(health: &Health) -> Vec<(FindingKind, Impact)> {
    let findings = health.findings().iter();
    findings.map(|found| (found.kind, found.impact)).collect()
}

#[test]
fn leases_that_hold_and_renew_are_well() {
    let world = world(1);
    assert_eq!(world.leases.health(), Health::default());
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    for _ in 0..100 {
        world.steps.advance(LEASE / 3);
        assert_eq!(world.leases.health(), Health::default());
    }
    guard.release().wait().unwrap();
    // Somebody else holds it: the store has answered.
    let _held = world.leases.lock("b").at_once().wait().unwrap();
    assert!(world.leases.lock("b").at_once().wait().is_err());
    assert_eq!(world.leases.health(), Health::default());
}

#[test]
fn renewals_that_fail_are_told_until_the_lock_is_renewed() {
    let world = world_of(1, 1, |builder| builder.name("invoices"));
    let _guard = world.leases.lock("a").at_once().wait().unwrap();
    let _fixed = world
        .leases
        .lock("b")
        .lease(LEASE)
        .not_renewed()
        .at_once()
        .wait()
        .unwrap();
    world.store.inject(no_renewals);
    // The first renewal is after 8 to 12 seconds.
    world.steps.advance(13 * S);
    let health = world.leases.health();
    assert_eq!(found(&health), [(FindingKind::StoreFails, Impact::Warning)]);
    let finding = &health.findings()[0];
    assert!(
        health.is_ready() && finding.since.unwrap() <= 5 * S,
        "{health}"
    );
    assert_eq!(finding.source.as_deref(), Some("invoices"));
    assert!(
        finding.detail.starts_with("renewals of 1 keys fail: "),
        "{health}"
    );
    world.steps.advance(10 * S);
    let health = world.leases.health();
    let expected = [
        (FindingKind::StoreFails, Impact::NotReady),
        (FindingKind::RenewalAtRisk, Impact::Warning),
    ];
    assert_eq!(found(&health), expected);
    assert!(health.is_alive() && !health.is_ready());
    assert!(health.findings()[1].since.unwrap() >= 2 * S, "{health}");
    world.store.heal();
    world.steps.advance(3 * S);
    assert_eq!(world.leases.health(), Health::default());
}

#[test]
fn a_lock_that_is_lost_is_no_reason_any_more() {
    let world = world(1);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    world.store.inject(no_renewals);
    world.steps.advance(LEASE);
    assert!(!guard.is_held());
    assert_eq!(world.leases.health(), Health::default());
    // Also if nobody has asked since its end.
    let _guard = world.leases.lock("b").at_once().wait().unwrap();
    world.steps.jump_to(world.steps.now() + LEASE);
    assert_eq!(world.leases.health(), Health::default());
}

#[test]
fn acquires_that_fail_are_told_while_they_are_recent() {
    let world = world(1);
    world.store.inject(all_down);
    let fail = || {
        let refused = world.leases.lock("a").at_once().wait();
        assert!(
            matches!(refused, Err(LockError::Store { .. })),
            "{refused:?}"
        );
    };
    fail();
    let warning = [(FindingKind::StoreFails, Impact::Warning)];
    assert_eq!(found(&world.leases.health()), warning);
    // Time alone makes it no worse, as nobody has asked since.
    world.steps.advance(29 * S);
    assert_eq!(found(&world.leases.health()), warning);
    world.steps.advance(S);
    assert_eq!(world.leases.health(), Health::default());
    fail();
    let health = world.leases.health();
    assert_eq!(
        found(&health),
        [(FindingKind::StoreFails, Impact::NotReady)]
    );
    assert_eq!(health.findings()[0].since, Some(30 * S));
    assert!(health.findings()[0].detail.starts_with("acquires fail: "));
    world.store.heal();
    let _guard = world.leases.lock("a").at_once().wait().unwrap();
    assert_eq!(world.leases.health(), Health::default());
}

#[test]
fn a_store_that_panics_fails() {
    let world = world(1);
    hush();
    world.store.inject(|_| panic!("{WANTED}"));
    assert!(world.leases.lock("a").at_once().wait().is_err());
    let health = world.leases.health();
    let detail = &health.findings()[0].detail;
    assert!(detail.starts_with("acquires fail: "));
    assert!(detail.ends_with(&format!("the store panicked: {WANTED}")));
}

#[test]
fn a_renewal_that_hangs_is_told() {
    let threads = threads();
    let _guard = threads.leases.lock("a").at_once().wait().unwrap();
    let gate = kit::gate::Gate::default();
    let own = gate.clone();
    threads.store.inject(move |call| {
        if matches!(call, tourbillon_leases::StoreCall::Renew { .. }) {
            own.pass();
        }
        tourbillon_leases::Fault::None
    });
    march(&threads.hand, LEASE, "it is told", || {
        let health = threads.leases.health();
        health.to_string().contains("no answer within ")
    });
    gate.open();
    wait::until("the calls return", || gate.waiting() == 0);
}

#[test]
fn leases_that_are_closed_are_not_ready() {
    let world = world(1);
    let election = world.leases.election("e");
    assert_eq!(election.health(), Health::default());
    world.leases.close(Duration::ZERO);
    assert_eq!(
        found(&election.health()),
        [(FindingKind::ShutDown, Impact::NotReady)]
    );
    assert!(election.health().is_alive());
}

#[test]
fn a_keep_alive_tells_of_its_renewals() {
    let (keep_alive, steps) = KeepAlive::<u32>::builder()
        .build_stepped(1, async |batch| {
            let fail = |key: &u32| match key {
                0 => Outcome::Renewed,
                _ => Outcome::Failed(StoreError::Unavailable("no peer".to_owned())),
            };
            Ok(batch.keys().map(fail).collect())
        })
        .unwrap();
    let _kept: Vec<_> = (0..3)
        .map(|key| keep_alive.keep(key, LEASE).unwrap())
        .collect();
    steps.advance(13 * S);
    let health = keep_alive.health();
    assert!(
        health.to_string().contains("renewals of 2 keys fail: "),
        "{health}"
    );
    assert!(health.to_string().contains("no peer"), "{health}");
    keep_alive.close();
    let closed = [(FindingKind::ShutDown, Impact::NotReady)];
    assert_eq!(found(&keep_alive.health()), closed);
}

#[test]
fn leases_that_have_done_nothing_yet_are_well() {
    let leases = Leases::new(tourbillon_leases::MemoryStore::new()).unwrap();
    assert_eq!(leases.health(), Health::default());
}
