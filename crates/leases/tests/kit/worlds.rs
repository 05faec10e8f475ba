//! Leases on the embedded store and a manual clock, and a log of what reaches the store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tourbillon::{Clock, ManualClock, Time};
use tourbillon_leases::{
    BlockingStore, Fault, Leases, LeasesBuilder, MemoryStore, Steps, StoreCall, StoreError, What,
};

pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const S: Duration = Duration::from_secs(1);
pub(crate) const MS: Duration = Duration::from_millis(1);

/// What is renewed after a third of it runs out by the local clock a bit before the lease does.
pub(crate) const MARGIN: Duration = Duration::from_millis(302);

/// Leases without threads, and their store.
pub(crate) struct World {
    pub(crate) leases: Leases,
    pub(crate) steps: Steps,
    pub(crate) store: MemoryStore,
    pub(crate) clock: Clock,
}

pub(crate) fn world(seed: u64) -> World {
    world_of(seed, 1, |builder| builder)
}

/// On so many destinations, with options.
pub(crate) fn world_of(
    seed: u64,
    destinations: u64,
    options: impl FnOnce(LeasesBuilder) -> LeasesBuilder,
) -> World {
    let clock = Clock::manual(&ManualClock::new());
    let store = MemoryStore::with_destinations(clock.clone(), destinations);
    let builder = Leases::builder(store.clone()).clock(clock.clone());
    let (leases, steps) = options(builder).build_stepped(seed).unwrap();
    World {
        leases,
        steps,
        store,
        clock,
    }
}

/// Leases with threads, on a clock that only the test moves.
pub(crate) struct Threads {
    pub(crate) leases: Leases,
    pub(crate) hand: ManualClock,
    pub(crate) store: MemoryStore,
}

pub(crate) fn threads() -> Threads {
    threads_of(1, |builder| builder)
}

pub(crate) fn threads_of(
    destinations: u64,
    options: impl FnOnce(LeasesBuilder) -> LeasesBuilder,
) -> Threads {
    let hand = ManualClock::new();
    let clock = Clock::manual(&hand);
    let store = MemoryStore::with_destinations(clock.clone(), destinations);
    let leases = options(Leases::builder(store.clone()).clock(clock));
    Threads {
        leases: leases.build().unwrap(),
        hand,
        store,
    }
}

/// Like [`threads`], on a store whose calls may block: those that are awaited block threads of the
/// store.
#[allow(dead_code, reason = "not all crates of tests await calls that hang")]
pub(crate) fn blocking_threads() -> Threads {
    let hand = ManualClock::new();
    let clock = Clock::manual(&hand);
    let store = MemoryStore::with_clock(clock.clone());
    let builder = Leases::builder(BlockingStore::new(store.clone()));
    Threads {
        leases: builder.clock(clock).build().unwrap(),
        hand,
        store,
    }
}

/// A call that reached the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    Claim(String),
    Resume(String),
    Detach(String),
    ClaimMany(Vec<String>),
    /// Names with their secrets.
    Renew(Vec<(String, String)>),
    GiveBack(String),
    GiveBackMany(Vec<String>),
}

/// Every call that reached the store, with the time.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<(Time, Seen)>>>, Secrets);

/// The last secret of each name that was acquired.
type Secrets = Arc<Mutex<HashMap<String, String>>>;

/// One call, which is written to its log when this is dropped.
struct Entry(Log, Option<(Time, Seen)>);

impl Drop for Entry {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().extend(self.1.take());
    }
}

/// Logs all calls from now on, also those that fail, and asks `fault` what becomes of them.
pub(crate) fn log(
    store: &MemoryStore,
    clock: &Clock,
    fault: impl Fn(&StoreCall<'_>) -> Fault + Send + Sync + 'static,
) -> Log {
    let log = Log::default();
    let (own, clock) = (log.clone(), clock.clone());
    store.inject(move |call| {
        let seen = match call {
            StoreCall::Claim(claim) => {
                let secret = claim.secret.reveal().to_owned();
                own.1.lock().unwrap().insert(claim.name.to_owned(), secret);
                Seen::Claim(claim.name.to_owned())
            }
            StoreCall::Renew { batch, .. } => {
                let each = batch.iter();
                Seen::Renew(
                    each.map(|one| (one.name.into(), one.secret.reveal().into()))
                        .collect(),
                )
            }
            StoreCall::GiveBack { name, .. } => Seen::GiveBack((*name).to_owned()),
            StoreCall::GiveBackMany { batch, .. } => {
                Seen::GiveBackMany(batch.iter().map(|one| one.name.into()).collect())
            }
            StoreCall::ClaimMany { batch, .. } => {
                Seen::ClaimMany(batch.iter().map(|one| one.name.into()).collect())
            }
            StoreCall::Detach(detach) => Seen::Detach(detach.name.to_owned()),
            StoreCall::Resume(resume) => Seen::Resume(resume.name.to_owned()),
            // Comes in the background, when a caller that waited gives up.
            StoreCall::Leave { .. } => return fault(call),
            other => panic!("an unknown call: {other:?}"),
        };
        let entry = Entry(own.clone(), Some((clock.now(), seen)));
        match fault(call) {
            // Written when the store has done it, so that a test may go on once it has seen it.
            Fault::None => Fault::Then(Box::new(move || drop(entry))),
            fault => fault,
        }
    });
    log
}

/// Returns the secret of the next name that is acquired or resumed.
pub(crate) fn next_secret(store: &MemoryStore) -> Arc<OnceLock<String>> {
    let secret = Arc::new(OnceLock::new());
    let own = Arc::clone(&secret);
    store.inject(move |call| {
        let _ = match call {
            StoreCall::Claim(claim) => own.set(claim.secret.reveal().to_owned()),
            StoreCall::Resume(resume) => own.set(resume.secret.reveal().to_owned()),
            _ => Ok(()),
        };
        Fault::None
    });
    secret
}

impl Log {
    pub(crate) fn calls(&self) -> Vec<(Time, Seen)> {
        self.0.lock().unwrap().clone()
    }

    /// The secret with which a name was acquired.
    pub(crate) fn secret(&self, name: &str) -> String {
        self.1.lock().unwrap()[name].clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// The names of each batch of renewals, with the time.
    pub(crate) fn batches(&self) -> Vec<(Time, Vec<String>)> {
        let calls = self.calls().into_iter();
        let batch = |(at, seen)| match seen {
            Seen::Renew(batch) => Some((at, batch.into_iter().map(|one| one.0).collect())),
            _ => None,
        };
        calls.filter_map(batch).collect()
    }

    /// When renewals of a name arrived.
    pub(crate) fn renewals(&self, name: &str) -> Vec<Time> {
        let batches = self.batches().into_iter();
        let with = batches.filter(|(_, batch)| batch.iter().any(|one| one == name));
        with.map(|(at, _)| at).collect()
    }
}

pub(crate) fn down() -> StoreError {
    StoreError::Unavailable("down".to_owned())
}

/// Renewals fail, everything else works.
pub(crate) fn no_renewals(call: &StoreCall<'_>) -> Fault {
    match call {
        StoreCall::Renew { .. } => Fault::Fail(down()),
        _ => Fault::None,
    }
}

pub(crate) fn no_fault(_: &StoreCall<'_>) -> Fault {
    Fault::None
}

pub(crate) fn all_down(_: &StoreCall<'_>) -> Fault {
    Fault::Fail(down())
}

pub(crate) fn is_lost(what: &What) -> bool {
    matches!(what, What::Lost(_))
}

/// Lets the time pass on a clock that several share, all of them at each step.
pub(crate) fn together(all: &[&Steps], by: Duration, step: Duration) {
    let end = all[0].now() + by;
    while all[0].now() < end {
        let next = (all[0].now() + step).min(end);
        for steps in all {
            steps.jump_to(next);
        }
    }
}

/// Moves the clock by small steps until `holds`: fast at first, by so much, and then as slowly as
/// clocks go, so that it does not run away from threads that have much to do.
#[track_caller]
pub(crate) fn march(
    hand: &ManualClock,
    fast: Duration,
    what: &str,
    mut holds: impl FnMut() -> bool,
) {
    let step = Duration::from_millis(10);
    let mut moved = Duration::ZERO;
    let mut looks = 0_u32;
    kit::wait::until(what, || {
        if holds() {
            return true;
        }
        looks += 1;
        if moved < fast || looks.is_multiple_of(100) {
            hand.advance(step);
            moved += step;
        }
        false
    });
}
