//! Leases in the embedded store.

use std::hint::black_box;
use std::time::Duration;

use gungraun::prelude::*;
use tourbillon::{Clock, ManualClock};
use tourbillon_leases::{Claim, LeaseGuard, Leases, MemoryStore, Secret, Steps};

use crate::calls::Calls as _;
use crate::{KEYS, SEED};

const LEASE: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(1);
const SECRET: Secret<'_> = Secret::new("owner");

struct Kit {
    names: Vec<String>,
    store: MemoryStore,
    leases: Leases,
    steps: Steps,
    guards: Vec<LeaseGuard>,
}

/// The store's tables have grown already.
fn free() -> Kit {
    let mut kit = held();
    kit.guards.clear();
    kit.steps.settle();
    kit
}

fn held() -> Kit {
    let clock = Clock::manual(&ManualClock::new());
    let store = MemoryStore::with_clock(clock.clone());
    let builder = Leases::builder(store.clone()).clock(clock).lease(LEASE);
    let (leases, steps) = builder.build_stepped(SEED).expect("the options are valid");
    let names: Vec<_> = KEYS.map(|key| format!("lease {key:05}")).collect();
    let lock = |name: &String| leases.lock(name).at_once().wait().expect("it is free");
    let guards = names.iter().map(lock).collect();
    Kit {
        names,
        store,
        leases,
        steps,
        guards,
    }
}

#[library_benchmark(setup = free)]
#[bench::per_call()]
fn acquire_and_release(kit: Kit) -> Kit {
    for name in &kit.names {
        let claim = Claim::new(name, "owner", SECRET, LEASE);
        black_box(kit.store.acquire(&claim, LIMIT)).expect("it is free");
        black_box(kit.store.release(name, SECRET, LIMIT)).expect("it is held");
    }
    kit
}

#[library_benchmark(setup = free)]
#[bench::per_call()]
fn lock_and_release(kit: Kit) -> Kit {
    for name in &kit.names {
        let guard = kit.leases.lock(name).at_once().wait().expect("it is free");
        black_box(guard.release().wait()).expect("it was held");
    }
    kit
}

// Each lease is renewed after about a third of it, so once in half of it.
#[library_benchmark(setup = held)]
#[bench::per_call()]
fn renewal(kit: Kit) -> Kit {
    kit.steps.advance(LEASE / 2);
    assert!(kit.guards.iter().all(|guard| guard.renewals() == 1));
    kit
}

library_benchmark_group!(
    name = leases,
    benchmarks = [acquire_and_release, lock_and_release, renewal]
);
