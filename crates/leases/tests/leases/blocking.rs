//! Stores whose client blocks: which threads they block, and what becomes of their calls.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use kit::gate::Gate;
use kit::wait::until;
use kit::wakes::{Wakes, poll};
use tourbillon::{Clock, ManualClock};
use tourbillon_leases::{
    BlockingStore, Fault, LeaseFuture, LeaseGuard, LeaseStore, Leases, LockError, LockPaging,
    MemoryStore, StoreCall, StoreError,
};

use crate::worlds::{LEASE, MS, S, march};

type Lock = LeaseFuture<Result<LeaseGuard, LockError>>;

/// The awaited calls of one destination that run at one time.
const OF_ONE: usize = 64;

/// Leases on a manual clock, and a store with two destinations whose acquires block at a gate.
struct Hangs {
    hand: ManualClock,
    leases: Leases,
    store: MemoryStore,
    gate: Gate,
    claims: Arc<AtomicUsize>,
    releases: Arc<AtomicUsize>,
}

/// The acquires of this destination hang.
fn hangs(destination: u64) -> Hangs {
    let hand = ManualClock::new();
    let clock = Clock::manual(&hand);
    let store = MemoryStore::with_destinations(clock.clone(), 2);
    let (gate, claims) = (Gate::default(), Arc::new(AtomicUsize::new(0)));
    let (at, count, of) = (gate.clone(), Arc::clone(&claims), store.clone());
    let releases = Arc::new(AtomicUsize::new(0));
    let released = Arc::clone(&releases);
    store.inject(move |call| {
        if let StoreCall::GiveBack { .. } | StoreCall::GiveBackMany { .. } = call {
            released.fetch_add(1, SeqCst);
        }
        if let StoreCall::Claim(claim) = call
            && of.destination(claim.name).get() == destination
        {
            count.fetch_add(1, SeqCst);
            at.pass();
        }
        Fault::None
    });
    let builder = Leases::builder(BlockingStore::new(store.clone()));
    Hangs {
        leases: builder.clock(clock).lease(LEASE).build().unwrap(),
        hand,
        store,
        gate,
        claims,
        releases,
    }
}

impl Hangs {
    /// Returns a name of this destination.
    fn name(&self, destination: u64, number: usize) -> String {
        let names = (0..).map(|at| format!("n{at}"));
        let mut names = names.filter(|name| self.store.destination(name).get() == destination);
        names.nth(number).unwrap()
    }

    /// Begins to acquire `count` names of a destination.
    fn begin(&self, destination: u64, count: usize) -> Vec<Lock> {
        let begin = |number| {
            let name = self.name(destination, number);
            let mut lock = self.leases.lock(&name).at_once().into_future();
            let wakes = Wakes::new();
            assert!(poll(&mut lock, &wakes).is_pending());
            if wakes.count() > 0 {
                // That was a turn for the runtime.
                assert!(poll(&mut lock, &wakes).is_pending());
            }
            lock
        };
        (0..count).map(begin).collect()
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
}

#[test]
fn calls_that_hang_for_one_destination_leave_threads_to_another_one() {
    let hangs = hangs(0);
    let calls = hangs.begin(0, OF_ONE + 2);
    hangs.gate.crowd(OF_ONE);
    let name = hangs.name(1, 0);
    let guard = runtime().block_on(hangs.leases.lock(&name).into_future());
    assert!(guard.unwrap().is_held());
    // Two more wait for their turn, and are not made when nobody wants them.
    assert_eq!(hangs.gate.waiting(), OF_ONE);
    drop(calls);
    hangs.gate.open();
    until("the threads are free", || hangs.gate.waiting() == 0);
    let name = hangs.name(0, OF_ONE + 2);
    let guard = runtime().block_on(hangs.leases.lock(&name).into_future());
    assert!(guard.unwrap().is_held());
    assert_eq!(hangs.claims.load(SeqCst), OF_ONE + 1);
}

#[test]
fn a_call_that_gets_no_thread_within_its_limit_fails_and_is_not_made() {
    let hangs = hangs(0);
    let mut calls = hangs.begin(0, OF_ONE + 1);
    hangs.gate.crowd(OF_ONE);
    hangs.hand.advance(LEASE / 3);
    let Poll::Ready(late) = poll(&mut calls[OF_ONE], &Wakes::new()) else {
        panic!("it waits after its limit");
    };
    let error = late.unwrap_err();
    assert!(
        matches!(
            &error,
            LockError::Store {
                error: StoreError::Unavailable(_),
                ..
            }
        ),
        "{error}"
    );
    drop(calls);
    hangs.gate.open();
    until("the others are made", || hangs.gate.waiting() == 0);
    assert_eq!(hangs.claims.load(SeqCst), OF_ONE);
}

#[test]
fn a_call_whose_limit_is_over_when_a_thread_begins_it_is_not_made() {
    let memory = MemoryStore::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    memory.inject(move |_| {
        count.fetch_add(1, SeqCst);
        Fault::None
    });
    let store = BlockingStore::new(memory);
    let error = runtime().block_on(store.holder_of("a", Duration::ZERO));
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("no thread began the call within 0ns"),
        "{error}"
    );
    assert_eq!(calls.load(SeqCst), 0);
}

#[test]
fn a_call_that_is_dropped_while_it_is_made_gives_back_what_it_was_granted() {
    let hangs = hangs(0);
    let calls = hangs.begin(0, 1);
    hangs.gate.crowd(1);
    let name = hangs.name(0, 0);
    drop(calls);
    until("it is released", || hangs.releases.load(SeqCst) > 0);
    assert_eq!(hangs.store.holder(&name), None);
    // The acquire comes after that release, which has not met it.
    hangs.gate.open();
    until("it is granted", || hangs.store.holder(&name).is_some());
    let began = hangs.leases.now();
    until("it is given back", || {
        hangs.hand.advance(Duration::from_millis(10));
        hangs.store.holder(&name).is_none()
    });
    assert!(
        hangs.leases.now().since(began) < LEASE,
        "it did not run out"
    );
}

/// The thread of each call, by its name.
fn threads_of(store: &MemoryStore) -> Arc<Mutex<Vec<String>>> {
    let threads = Arc::new(Mutex::new(Vec::new()));
    let own = Arc::clone(&threads);
    store.inject(move |_| {
        let name = thread::current().name().unwrap_or_default().to_owned();
        own.lock().unwrap().push(name);
        Fault::None
    });
    threads
}

#[test]
fn calls_that_are_waited_for_block_their_own_thread_and_awaited_ones_do_not() {
    let store = MemoryStore::new();
    let leases = Leases::new(BlockingStore::new(store.clone())).unwrap();
    let threads = threads_of(&store);
    let seen = || std::mem::take(&mut *threads.lock().unwrap());
    let own = thread::current().name().unwrap().to_owned();
    let all = |leases: &Leases| {
        let guard = leases.lock("a").wait().unwrap();
        leases.holder("a").wait().unwrap();
        guard.release().wait().unwrap();
        let both = leases.lock_all(["b", "c"]).wait().unwrap();
        leases.release_many(both).wait();
        let fixed = leases.lock("d").lease(LEASE).not_renewed().wait().unwrap();
        fixed.extend(2 * LEASE).wait().unwrap();
        leases
            .resume(&fixed.detach().wait().unwrap())
            .wait()
            .unwrap()
    };
    let guard = all(&leases);
    assert_eq!(seen(), vec![own; 9]);
    runtime().block_on(async {
        guard.release().await.unwrap();
        leases.lock_all(["b", "c"]).await.unwrap();
        leases.list("", &LockPaging::first(1)).await.unwrap();
    });
    let awaited = seen();
    let of_store = awaited.iter().filter(|name| *name == "tb-store").count();
    // The locks of the guards that were dropped may have been given back by then.
    assert!(of_store >= 3 && of_store == awaited.len(), "{awaited:?}");
    // By a real clock: a busy machine may be late by two seconds.
    let renewed = leases.lock("e").lease(3 * S).wait().unwrap();
    seen();
    until("it is renewed", || renewed.renewals() > 0);
    assert!(seen().iter().all(|name| name == "tb-store"));
}

/// Leases on a store with so many destinations, which blocks where `hangs` says so.
fn gated(
    destinations: u64,
    hangs: impl Fn(&MemoryStore, &StoreCall<'_>) -> bool + Send + Sync + 'static,
) -> Hangs {
    let hand = ManualClock::new();
    let clock = Clock::manual(&hand);
    let store = MemoryStore::with_destinations(clock.clone(), destinations);
    let gate = Gate::default();
    let (at, of) = (gate.clone(), store.clone());
    store.inject(move |call| {
        if hangs(&of, call) {
            at.pass();
        }
        Fault::None
    });
    let builder = Leases::builder(BlockingStore::new(store.clone()));
    Hangs {
        leases: builder.clock(clock).lease(LEASE).build().unwrap(),
        hand,
        store,
        gate,
        claims: Arc::default(),
        releases: Arc::default(),
    }
}

#[test]
fn awaited_calls_that_hang_leave_threads_to_releases_and_renewals() {
    let hangs = gated(4, |store, call| match call {
        StoreCall::Claim(claim) => store.destination(claim.name).get() != 3,
        _ => false,
    });
    let names = [hangs.name(3, 0), hangs.name(3, 1)];
    let [kept, dropped] = names
        .each_ref()
        .map(|name| hangs.leases.lock(name).wait().unwrap());
    let _calls: Vec<_> = (0..3).map(|of| hangs.begin(of, OF_ONE)).collect();
    hangs.gate.crowd(3 * OF_ONE);
    drop(dropped);
    until("it is released", || hangs.store.holder(&names[1]).is_none());
    march(&hangs.hand, 12 * S, "it is renewed", || kept.renewals() > 0);
    hangs.gate.open();
}

#[test]
fn releases_that_hang_take_few_threads() {
    let hangs = gated(2, |store, call| {
        let of = match call {
            StoreCall::GiveBack { name, .. } => store.destination(name),
            StoreCall::GiveBackMany { destination, .. } => *destination,
            _ => return false,
        };
        of.get() == 0
    });
    let names = (0..200).map(|number| hangs.name(0, number));
    let guards: Vec<_> = names
        .map(|name| hangs.leases.lock(&name).wait().unwrap())
        .collect();
    let good = hangs.leases.lock(&hangs.name(1, 0)).wait().unwrap();
    drop(guards);
    // They are tried again and again.
    let long_after = hangs.leases.now() + 40 * S;
    march(&hangs.hand, 40 * S, "the time is over", || {
        hangs.leases.now() >= long_after
    });
    assert_eq!(hangs.gate.waiting(), 3);
    let name = good.id().name().to_owned();
    drop(good);
    until("it is released", || hangs.store.holder(&name).is_none());
    // Awaited calls for that destination have other threads.
    let name = hangs.name(0, 300);
    let guard = runtime().block_on(hangs.leases.lock(&name).into_future());
    assert!(guard.unwrap().is_held());
    assert_eq!(hangs.gate.waiting(), 3);
    hangs.gate.open();
}

#[test]
fn awaited_extensions_that_hang_leave_threads_to_renewals() {
    let hangs = gated(1, |_, call| match call {
        StoreCall::Renew { batch, .. } => batch.iter().all(|one| one.name != "kept"),
        _ => false,
    });
    let kept = hangs.leases.lock("kept").wait().unwrap();
    let fixed: Vec<_> = (0..10)
        .map(|at| {
            let name = at.to_string();
            let lock = hangs.leases.lock(&name).lease(LEASE);
            lock.not_renewed().wait().unwrap()
        })
        .collect();
    let _extensions: Vec<_> = fixed
        .iter()
        .map(|guard| {
            let mut extends = guard.extend(2 * LEASE);
            assert!(poll(&mut extends, &Wakes::new()).is_pending());
            extends
        })
        .collect();
    hangs.gate.crowd(10);
    march(&hangs.hand, 12 * S, "it is renewed", || kept.renewals() > 0);
    hangs.gate.open();
}

#[test]
fn lists_take_few_threads() {
    let store = MemoryStore::new();
    let at = Gate::default();
    let own = at.clone();
    store.inject(move |call| {
        if matches!(call, StoreCall::List { .. }) {
            own.pass();
        }
        Fault::None
    });
    let leases = Leases::new(BlockingStore::new(store)).unwrap();
    let list = |_| {
        let mut list = leases.list("", &LockPaging::first(1));
        assert!(poll(&mut list, &Wakes::new()).is_pending());
        list
    };
    let lists: Vec<_> = (0..5).map(list).collect();
    at.crowd(2);
    let guard = runtime().block_on(leases.lock("a").into_future());
    assert!(guard.unwrap().is_held());
    assert_eq!(at.waiting(), 2);
    at.open();
    for list in lists {
        assert!(list.wait().is_ok());
    }
}

/// So a thread gets all arguments.
#[test]
fn every_call_can_be_awaited_and_does_what_a_blocking_one_does() {
    let store = MemoryStore::new();
    let builder = Leases::builder(BlockingStore::new(store.clone()));
    let leases = builder.holder_data("here").poll(MS).build().unwrap();
    runtime().block_on(async {
        let fixed = leases.lock("a").lease(LEASE).not_renewed();
        let guard = fixed.at_least(LEASE).await.unwrap();
        let holder = leases.holder("a").await.unwrap().unwrap();
        assert_eq!(
            (&*holder.owner, &*holder.data),
            (guard.id().owner(), "here")
        );
        guard.extend(10 * LEASE).await.unwrap();
        assert!(guard.remaining() > 5 * LEASE);
        // It waits, gives up, and is reported to the store.
        let late = leases.lock("a").within(500 * MS).await;
        assert!(matches!(late, Err(LockError::TimedOut { .. })), "{late:?}");
        let token = guard.token();
        let guard = leases.resume(&guard.detach().await.unwrap()).await.unwrap();
        assert_eq!(guard.token(), token);
        let holder = leases.holder("a").await.unwrap().unwrap();
        assert_eq!(
            (&*holder.owner, &*holder.data),
            (guard.id().owner(), "here")
        );
        let page = leases.list("a", &LockPaging::first(9)).await.unwrap();
        assert_eq!((page.locks.len(), &*page.locks[0].name), (1, "a"));
        guard.release().await.unwrap();
        // The rest of its shortest hold.
        let rest = leases.holder("a").await.unwrap().unwrap();
        assert!(rest.owner.ends_with("(released)"), "{}", rest.owner);
        let both = leases.lock_all(["b", "c"]).await.unwrap();
        assert!(leases.release_many(both).await.iter().all(Result::is_ok));
    });
}

#[test]
fn a_panic_of_a_blocking_store_is_a_failure_of_its_call() {
    kit::quiet::hush();
    let store = MemoryStore::new();
    let leases = Leases::new(BlockingStore::new(store.clone())).unwrap();
    store.inject(|call| match call {
        StoreCall::Claim(_) | StoreCall::Holder { .. } => panic!("on purpose"),
        _ => Fault::None,
    });
    let (once, look) =
        runtime().block_on(async { (leases.lock("a").at_once().await, leases.holder("a").await) });
    for error in [once.unwrap_err(), look.unwrap_err()] {
        assert!(error.to_string().contains("on purpose"), "{error}");
    }
    store.heal();
    // Its thread is there for the next one.
    let guard = runtime().block_on(leases.lock("a").into_future());
    assert!(guard.unwrap().is_held());
}

#[test]
fn a_store_that_is_waited_for_after_it_was_polled_is_answered_by_its_thread() {
    let hangs = hangs(0);
    let lock = hangs.begin(0, 1).remove(0);
    hangs.gate.crowd(1);
    thread::scope(|scope| {
        let waits = scope.spawn(|| lock.wait());
        hangs.gate.open();
        assert!(waits.join().unwrap().unwrap().is_held());
    });
    assert_eq!(hangs.claims.load(SeqCst), 1);
}

#[test]
fn it_can_be_printed_and_cloned() {
    let store = BlockingStore::new(MemoryStore::new());
    assert_eq!(
        format!("{:?}", store.clone()),
        "BlockingStore(MemoryStore { names: 0, .. })"
    );
    assert_eq!(store.longest_lease(), Duration::MAX);
}
