//! What a process knows of its health: its store, its node, and the timers that wait.

use std::sync::mpsc;

use kit::gate::Gate;
use kit::wait;
use tourbillon_durable::{
    Due, Durable, FindingKind, Health, Impact, Memory, MemoryCall, MemoryFault, StoreError,
};

use super::setup::{HOUR, NOW, SECOND, node, short_node};

fn kinds(health: &Health) -> Vec<FindingKind> {
    health.findings().iter().map(|found| found.kind).collect()
}

/// Waits until a finding of this kind is there. Returns its impact and its detail.
#[track_caller]
fn finds(timers: &Durable, kind: FindingKind) -> (Impact, String) {
    let mut found = None;
    wait::until(&format!("{kind}"), || {
        let health = timers.health();
        let mut findings = health.into_iter();
        found = findings.find(|found| found.kind == kind);
        found.is_some()
    });
    let found = found.expect("it is there");
    assert!(found.since.is_some());
    (found.impact, found.detail)
}

#[track_caller]
fn gets_well(timers: &Durable) {
    wait::until("all is well", || timers.health() == Health::default());
}

fn refused() -> MemoryFault {
    MemoryFault::Fail(StoreError::Refused("no rights".into()))
}

#[test]
fn a_node_is_ready_when_it_has_joined_and_stays_so() {
    let store = Memory::new();
    let (sender, runs) = mpsc::channel();
    let timers = node(&store)
        .handle("q", move |_: &Due<u32>| sender.send(()).unwrap())
        .start()
        .unwrap();
    gets_well(&timers);
    for key in 0..100 {
        timers
            .schedule("q", &key.to_string(), NOW, &0)
            .wait()
            .unwrap();
    }
    for _ in 0..100 {
        wait::next(&runs);
        let health = timers.health();
        assert!(health.is_ready() && health.is_alive(), "{health}");
    }
    timers.stop(SECOND).wait().unwrap();
    assert_eq!(kinds(&timers.health()), [FindingKind::ShutDown]);
    assert!(!timers.health().is_ready() && timers.health().is_alive());
}

#[test]
fn a_node_whose_beats_fail_is_alone() {
    let store = Memory::new();
    let timers = short_node(&store)
        .handle("q", |_: &Due<u32>| ())
        .start()
        .unwrap();
    gets_well(&timers);
    store.inject(|call| match call {
        MemoryCall::Beat(_) => refused(),
        _ => MemoryFault::None,
    });
    let (impact, detail) = finds(&timers, FindingKind::StoreFails);
    assert_eq!(impact, Impact::Warning);
    assert!(
        detail.starts_with("Beat: ") && detail.contains("no rights"),
        "{detail}"
    );
    assert_eq!(finds(&timers, FindingKind::NodeAlone).0, Impact::NotReady);
    assert!(timers.health().is_alive());
    store.heal();
    gets_well(&timers);
}

#[test]
fn a_node_that_cannot_join_is_alone() {
    let store = Memory::new();
    store.inject(|call| match call {
        MemoryCall::Join(new) if !new.queues.is_empty() => MemoryFault::Hang,
        _ => MemoryFault::None,
    });
    let timers = node(&store).handle("q", |_: &Due<u32>| ()).start().unwrap();
    assert_eq!(finds(&timers, FindingKind::NodeAlone).0, Impact::NotReady);
    // A second without an answer.
    let (_, detail) = finds(&timers, FindingKind::StoreFails);
    assert_eq!(detail, "Join: no answer for 1s");
    store.heal();
    gets_well(&timers);
}

#[test]
fn a_timer_that_waits_for_its_claim_is_overdue() {
    let store = Memory::new();
    let gate = Gate::default();
    let own = gate.clone();
    let timers = node(&store)
        .handle("q", move |_: &Due<u32>| own.pass())
        .running(1)
        .start()
        .unwrap();
    for key in ["a", "b"] {
        timers.schedule("q", key, NOW, &0).wait().unwrap();
    }
    let (impact, _) = finds(&timers, FindingKind::Overdue);
    assert_eq!(impact, Impact::Warning);
    let health = timers.health();
    let since = health.findings()[0].since.unwrap();
    assert!(health.is_ready() && since >= SECOND * 5, "{health}");
    gate.open();
    gets_well(&timers);
}

#[test]
fn a_client_knows_its_store_by_the_calls_of_users() {
    let store = Memory::new();
    let timers = Durable::builder(store.clone()).start().unwrap();
    assert_eq!(timers.health(), Health::default());
    store.inject(|_| refused());
    timers.schedule("q", "a", HOUR, &0).wait().unwrap_err();
    let health = timers.health();
    assert_eq!(kinds(&health), [FindingKind::StoreFails]);
    assert!(
        health.findings()[0].detail.starts_with("Write: "),
        "{health}"
    );
    store.heal();
    timers.schedule("q", "a", HOUR, &0).wait().unwrap();
    assert_eq!(timers.health(), Health::default());
}

#[test]
fn health_is_told_within_a_handler() {
    let store = Memory::new();
    let (sender, told) = mpsc::channel();
    let (give, given) = mpsc::channel::<Durable>();
    let given = std::sync::Mutex::new(given);
    let timers = node(&store)
        .handle("q", move |_: &Due<u32>| {
            let timers = given.lock().unwrap().recv().unwrap();
            sender.send(timers.health().is_alive()).unwrap();
        })
        .start()
        .unwrap();
    give.send(timers.clone()).unwrap();
    timers.schedule("q", "a", NOW, &0).wait().unwrap();
    assert!(wait::next(&told));
}
