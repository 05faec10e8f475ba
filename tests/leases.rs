//! Locks on the embedded store: acquired, renewed, lost, given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tourbillon::leases::{
    Fault, Leases, LockError, Loss, MemoryStore, ReleaseError, Steps, StoreCall, StoreError,
};
use tourbillon::{Clock, ManualClock};

const LEASE: Duration = Duration::from_secs(30);

fn stepped(seed: u64) -> (Leases, Steps, MemoryStore) {
    let clock = Clock::manual(&ManualClock::new());
    let store = MemoryStore::with_clock(clock.clone());
    let builder = Leases::builder(store.clone()).clock(clock);
    let (leases, steps) = builder.build_stepped(seed).unwrap();
    (leases, steps, store)
}

/// Counts the renewals that arrive, and says what becomes of them.
fn renewals(
    store: &MemoryStore,
    fault: impl Fn(usize) -> Fault + Send + Sync + 'static,
) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    store.inject(move |call| match call {
        StoreCall::Renew { .. } => fault(counted.fetch_add(1, SeqCst)),
        _ => Fault::None,
    });
    count
}

#[test]
fn c151_a_lease_is_renewed_for_as_long_as_it_is_held() {
    for seed in 0..10 {
        let (leases, steps, store) = stepped(seed);
        let count = renewals(&store, |_| Fault::None);
        let guard = leases.try_lock("a").unwrap();
        for _ in 0..300 {
            steps.advance(Duration::from_secs(1));
            assert!(guard.is_held());
        }
        let renewed = count.load(SeqCst);
        assert!((27..=33).contains(&renewed), "{renewed}");
        assert_eq!(guard.renewals(), renewed as u64);
        assert_eq!(leases.stats().armed, 1);
    }
}

#[test]
fn c152_nothing_is_renewed_after_the_release() {
    let (leases, steps, store) = stepped(1);
    let count = renewals(&store, |_| Fault::None);
    let guard = leases.try_lock("a").unwrap();
    steps.advance(LEASE);
    let before = count.load(SeqCst);
    assert!(before >= 2);
    guard.release().unwrap();
    assert_eq!(leases.stats().armed, 0);
    steps.advance(3 * LEASE);
    assert_eq!(count.load(SeqCst), before);
    assert!(leases.try_lock("a").is_ok());
}

#[test]
fn c157_one_attempt_that_fails_is_made_good_before_the_next_would_be_due() {
    let (leases, steps, store) = stepped(1);
    let count = renewals(&store, |number| match number {
        0 => Fault::Fail(StoreError::Unavailable("cut".into())),
        _ => Fault::None,
    });
    let guard = leases.try_lock("a").unwrap();
    while count.load(SeqCst) == 0 {
        steps.advance(Duration::from_millis(100));
    }
    steps.advance(LEASE / 6);
    assert_eq!(count.load(SeqCst), 2);
    assert_eq!(guard.renewals(), 1);
    steps.advance(LEASE);
    assert!(guard.is_held());
}

#[test]
fn c156_a_store_that_forgets() {
    let (leases, steps, store) = stepped(1);
    let events = leases.events(100);
    let guard = leases.try_lock("a").unwrap();
    store.forget();
    renewals(&store, |_| {
        Fault::Fail(StoreError::Unavailable("down".into()))
    });
    steps.advance(2 * LEASE);
    assert!(!guard.is_held());
    let lost: Vec<_> = events
        .try_iter()
        .filter(|event| matches!(event.what, tourbillon::leases::What::Lost(_)))
        .collect();
    assert_eq!(lost.len(), 1);
    assert_eq!(guard.release(), Err(ReleaseError::Lost(Loss::Expired)));
    store.heal();
    let next = leases.try_lock("a").unwrap();
    steps.advance(10 * LEASE);
    assert!(next.is_held());
    assert!(matches!(leases.try_lock("a"), Err(LockError::Held { .. })));
}
