//! Locks that nobody waits to be rid of: they are given back in batches, each destination for
//! itself, and the end of a program does not take them along.

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
    BlockingStore, Claim, Destination, Fault, Holding, LeaseGuard, Leases, LockError, MemoryStore,
    Secret, StoreCall, StoreError,
};

use crate::calls::Calls;
use crate::double::StoreDouble;
use crate::worlds::{
    LEASE, Log, MS, S, Seen, all_down, down, log, march, no_fault, threads_of, world, world_of,
};

/// How many locks each call gave back.
fn batches(log: &Log) -> Vec<usize> {
    let size = |seen| match seen {
        Seen::GiveBack(_) => Some(1),
        Seen::GiveBackMany(names) => Some(names.len()),
        _ => None,
    };
    let calls = log.calls().into_iter();
    calls.filter_map(|(_, seen)| size(seen)).collect()
}

fn lock_all(leases: &Leases, names: impl IntoIterator<Item = String>) -> Vec<LeaseGuard> {
    let lock = |name: String| leases.lock(&name).at_once().wait().unwrap();
    names.into_iter().map(lock).collect()
}

fn numbers(upto: usize) -> impl Iterator<Item = String> {
    (0..upto).map(|n| n.to_string())
}

/// Names of a destination.
fn names_of(store: &impl Calls, destination: u64, count: usize) -> Vec<String> {
    let of = |name: &String| store.destination(name) == Destination::new(destination);
    (0..)
        .map(|n: usize| n.to_string())
        .filter(of)
        .take(count)
        .collect()
}

fn held(store: &MemoryStore, names: &[String]) -> usize {
    let held = names.iter().filter(|name| store.holder(name).is_some());
    held.count()
}

/// Calls that hang.
#[derive(Clone)]
struct Hanging(MemoryStore, Arc<AtomicUsize>);

impl Hanging {
    /// Waits until so many calls have begun to hang.
    fn crowd(&self, calls: usize) {
        until("they hang", || self.1.load(SeqCst) >= calls);
    }

    /// Lets them go on.
    fn open(&self) {
        self.0.heal();
    }
}

/// What gives back hangs if `which` says so.
fn hangs(store: &MemoryStore, which: impl Fn(&str) -> bool + Send + Sync + 'static) -> Hanging {
    let hanging = Hanging(store.clone(), Arc::default());
    let count = Arc::clone(&hanging.1);
    store.inject(move |call| {
        let hangs = match call {
            StoreCall::GiveBack { name, .. } => which(name),
            StoreCall::GiveBackMany { batch, .. } => batch.iter().any(|one| which(one.name)),
            _ => false,
        };
        count.fetch_add(usize::from(hangs), SeqCst);
        match hangs {
            true => Fault::Hang,
            false => Fault::None,
        }
    });
    hanging
}

#[test]
fn dropped_guards_are_given_back_in_batches() {
    for seed in 0..5 {
        let world = world(seed);
        let log = log(&world.store, &world.clock, no_fault);
        let guards = lock_all(&world.leases, numbers(250));
        drop(guards);
        let stats = world.leases.stats();
        assert_eq!((stats.releases_queued, stats.released), (250, 0));
        world.steps.settle();
        assert_eq!(batches(&log), [100, 100, 50]);
        let stats = world.leases.stats();
        assert_eq!((stats.releases_queued, stats.released), (0, 250));
        assert_eq!(stats.armed, 0);
        assert!(numbers(250).all(|name| world.store.holder(&name).is_none()));
    }
}

#[test]
fn each_destination_and_length_of_lease_has_batches_of_its_own() {
    for seed in 0..5 {
        let world = world_of(seed, 3, |builder| builder);
        let store = world.store.clone();
        let wrong = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&wrong);
        let log = log(&world.store, &world.clock, move |call| {
            if let StoreCall::GiveBackMany { destination, batch } = call {
                let fits = |one: &Holding<'_>| store.destination(one.name) == *destination;
                count.fetch_add(usize::from(!batch.iter().all(fits)), SeqCst);
            }
            Fault::None
        });
        let mut guards = lock_all(&world.leases, numbers(60));
        guards.extend((60..120).map(|n| {
            let name = n.to_string();
            let short = world.leases.lock(&name).lease(S);
            short.at_once().wait().unwrap()
        }));
        drop(guards);
        world.steps.settle();
        assert_eq!(batches(&log).len(), 6);
        assert_eq!(batches(&log).iter().sum::<usize>(), 120);
        assert_eq!(wrong.load(SeqCst), 0);
    }
}

/// Of a batch, one fails, one was not held any more, and the others are free.
#[test]
fn each_of_a_batch_has_an_answer_of_its_own() {
    for seed in 0..5 {
        let world = world(seed);
        let first = AtomicUsize::new(0);
        let log = log(&world.store, &world.clock, move |call| match call {
            StoreCall::GiveBackMany { .. } if first.fetch_add(1, SeqCst) == 0 => {
                Fault::Some(vec![1, 3], down())
            }
            _ => Fault::None,
        });
        let guards = lock_all(&world.leases, numbers(5));
        // Somebody has taken it away.
        let secret = log.secret("4");
        world.store.release("4", Secret::new(&secret), S).unwrap();
        drop(guards);
        world.steps.settle();
        let stats = world.leases.stats();
        assert_eq!((stats.releases_queued, stats.released), (2, 2));
        let left: Vec<_> = numbers(5)
            .filter(|name| world.store.holder(name).is_some())
            .collect();
        assert_eq!(left, ["1", "3"]);
        world.steps.advance(LEASE / 6);
        // The two of them, together again. The one before was the test's own.
        assert_eq!(batches(&log), [1, 5, 2]);
        let stats = world.leases.stats();
        assert_eq!((stats.releases_queued, stats.released), (0, 4));
        assert_eq!(stats.armed, 0);
    }
}

#[test]
fn a_batch_that_is_refused_or_panics_is_given_back_one_by_one() {
    quiet::hush();
    for (seed, panics) in [(1, false), (2, true)] {
        let world = world(seed);
        let log = log(&world.store, &world.clock, move |call| match call {
            StoreCall::GiveBackMany { .. } if panics => panic!("wanted"),
            StoreCall::GiveBackMany { .. } => {
                Fault::Fail(StoreError::Refused("no batches".to_owned()))
            }
            // Of these, one alone.
            StoreCall::GiveBack { name: "2", .. } if panics => panic!("wanted"),
            StoreCall::GiveBack { name: "2", .. } => Fault::Fail(down()),
            _ => Fault::None,
        });
        drop(lock_all(&world.leases, numbers(5)));
        world.steps.settle();
        assert_eq!(batches(&log), [5, 1, 1, 1, 1, 1]);
        assert_eq!(world.leases.stats().releases_queued, 1);
        assert!(world.store.holder("2").is_some());
        world.store.heal();
        world.steps.advance(LEASE / 6);
        assert_eq!(world.leases.stats().releases_queued, 0);
        assert_eq!(world.store.holder("2"), None);
    }
}

#[test]
fn one_by_one_has_the_time_of_one_call_and_the_rest_comes_later() {
    let world = world(1);
    let hand = world.steps.clock();
    let log = log(&world.store, &world.clock, move |call| match call {
        StoreCall::GiveBackMany { .. } => Fault::Fail(StoreError::Refused("no".to_owned())),
        StoreCall::GiveBack { .. } => {
            hand.advance(S);
            Fault::None
        }
        _ => Fault::None,
    });
    drop(lock_all(&world.leases, numbers(20)));
    world.steps.settle();
    // A sixth of the shortest lease of this lane, 16.384 s, is a bit less than three seconds.
    assert_eq!(batches(&log), [20, 1, 1, 1]);
    assert_eq!(world.leases.stats().releases_queued, 17);
    world.steps.advance(LEASE);
    assert_eq!(world.leases.stats().releases_queued, 0);
}

/// What fails for good is not asked for again, and is not counted any more.
#[test]
fn what_is_refused_alone_is_not_tried_again() {
    let world = world(1);
    let log = log(&world.store, &world.clock, |call| match call {
        StoreCall::Claim(_) => Fault::None,
        _ => Fault::Fail(StoreError::Refused("no".to_owned())),
    });
    drop(lock_all(&world.leases, numbers(3)));
    world.steps.advance(LEASE);
    assert_eq!(batches(&log), [3, 1, 1, 1]);
    let stats = world.leases.stats();
    assert_eq!(
        (stats.releases_queued, stats.released, stats.armed),
        (0, 0, 0)
    );
}

#[test]
fn what_got_no_answer_is_tried_again() {
    let clock = Clock::manual(&ManualClock::new());
    let store = MemoryStore::with_clock(clock.clone());
    let builder = Leases::builder(StoreDouble::of(store.clone()).answers_only(2)).clock(clock);
    let (leases, steps) = builder.build_stepped(1).unwrap();
    drop(lock_all(&leases, numbers(5)));
    steps.settle();
    let stats = leases.stats();
    assert_eq!((stats.releases_queued, stats.released), (3, 2));
    steps.advance(LEASE);
    let stats = leases.stats();
    assert_eq!((stats.releases_queued, stats.released), (0, 5));
    assert!(numbers(5).all(|name| store.holder(&name).is_none()));
}

/// A thread of the store, or of a proxy, executes the acquire when its caller has long given up.
#[test]
fn a_long_lease_is_given_back_for_as_long_as_its_acquire_may_arrive() {
    let lease = 600 * S;
    for after in [100 * S, 199 * S] {
        let world = world(1);
        let sent = AtomicBool::new(false);
        let log = log(&world.store, &world.clock, move |call| match call {
            StoreCall::Claim(_) if !sent.swap(true, SeqCst) => Fault::Fail(down()),
            _ => Fault::None,
        });
        let lock = world.leases.lock("a").lease(lease).at_once();
        assert!(lock.wait().is_err());
        let secret = log.secret("a");
        world.steps.advance(after);
        let claim = Claim::new("a", "it", Secret::new(&secret), lease);
        world.store.acquire(&claim, S).unwrap();
        assert!(world.store.holder("a").is_some());
        world.steps.advance(16 * S);
        assert_eq!(world.store.holder("a"), None);
        world.steps.advance(lease);
        assert_eq!(world.leases.stats().armed, 0);
    }
}

// === destinations that hang ===

#[test]
fn a_destination_that_hangs_delays_no_release_of_another() {
    let world = threads_of(2, |builder| builder.batch(1));
    let [bad, good] = [0, 1].map(|of| names_of(&world.store, of, 8));
    let hanging = bad.clone();
    let gate = hangs(&world.store, move |name| {
        hanging.iter().any(|one| one == name)
    });
    let [bad_guards, good_guards] =
        [&bad, &good].map(|names| lock_all(&world.leases, names.iter().cloned()));
    // More of them than calls used to run at one time for all destinations together.
    drop(bad_guards);
    gate.crowd(1);
    drop(good_guards);
    until("the others are free", || held(&world.store, &good) == 0);
    assert_eq!(held(&world.store, &bad), 8);
    until("their releases are counted", || {
        world.leases.stats().releases_queued == 8
    });
    gate.open();
    until("all are free", || held(&world.store, &bad) == 0);
    until("nothing is queued", || {
        world.leases.stats().releases_queued == 0
    });
}

/// A call that has no answer within its limit keeps those behind it for no longer than that.
#[test]
fn a_call_that_hangs_delays_its_own_destination_until_its_limit() {
    let world = threads_of(1, |builder| builder.batch(1));
    let gate = hangs(&world.store, |name| name == "0");
    let names: Vec<_> = numbers(4).collect();
    let mut guards = lock_all(&world.leases, names.iter().cloned());
    drop(guards.remove(0));
    gate.crowd(1);
    drop(guards);
    assert_eq!(held(&world.store, &names), 4);
    world.hand.advance(LEASE / 6);
    until("those behind it are free", || {
        held(&world.store, &names[1..]) == 0
    });
    until("their releases are counted", || {
        world.leases.stats().releases_queued == 1
    });
    // It is tried again, and the answer is the end of it.
    gate.open();
    march(&world.hand, S, "it is free, too", || {
        held(&world.store, &names) == 0
    });
    until("nothing is left", || {
        let stats = world.leases.stats();
        (stats.releases_queued, stats.armed) == (0, 0)
    });
}

mod awaited {
    use std::task::Poll;

    use super::*;
    use kit::wakes::{Wakes, poll};

    /// More acquires hang than there are threads for calls that are awaited.
    #[test]
    fn a_destination_that_hangs_delays_no_acquire_of_another() {
        // On a real clock, by which workers come.
        let store = MemoryStore::with_destinations(Clock::boottime(), 2);
        let leases = Leases::builder(BlockingStore::new(store.clone()));
        let leases = leases.lease(3_600 * S).build().unwrap();
        let [bad, good] = [0, 1].map(|of| names_of(&store, of, 80));
        let gate = Gate::default();
        let (at_gate, hanging) = (gate.clone(), bad.clone());
        let claims = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&claims);
        store.inject(move |call| {
            if let StoreCall::Claim(claim) = call
                && hanging.iter().any(|name| name == claim.name)
            {
                count.fetch_add(1, SeqCst);
                at_gate.pass();
            }
            Fault::None
        });
        let wakes = Wakes::new();
        let mut waiting: Vec<_> = bad
            .iter()
            .map(|name| Box::pin(leases.lock(name).into_future()))
            .collect();
        for future in &mut waiting {
            assert!(poll(future, &wakes).is_pending());
        }
        until("their threads are used", || gate.waiting() == 64);
        let mut other = Box::pin(leases.lock(&good[0]).at_once().into_future());
        let mut guard = None;
        until("it has its lock", || match poll(&mut other, &wakes) {
            Poll::Ready(answer) => {
                guard = Some(answer.unwrap());
                true
            }
            Poll::Pending => false,
        });
        // And gives it back.
        let mut release = Box::pin(guard.unwrap().release());
        until("it is free", || match poll(&mut release, &wakes) {
            Poll::Ready(answer) => answer.is_ok(),
            Poll::Pending => false,
        });
        // Those that had no thread yet, and are given up, ask for nothing.
        waiting.clear();
        gate.open();
        until("what they were granted is given back", || {
            let stats = leases.stats();
            held(&store, &bad) == 0 && stats.released == 65
        });
        assert_eq!(claims.load(SeqCst), 64);
    }

    /// A drop of a guard that was awaited does not wait, and that of the last leases does.
    #[test]
    fn the_drop_of_the_last_leases_waits_for_what_was_dropped_before() {
        for by_guard in [false, true] {
            let world = threads_of(1, |builder| builder.end_limit(60 * S));
            let gate = hangs(&world.store, |_| true);
            let opener = thread::spawn({
                let gate = gate.clone();
                move || {
                    gate.crowd(1);
                    gate.open();
                }
            });
            let wakes = Wakes::new();
            let guard = {
                let mut acquiring = Box::pin(world.leases.lock("a").into_future());
                let mut guard = None;
                until("it is locked", || match poll(&mut acquiring, &wakes) {
                    Poll::Ready(answer) => {
                        guard = Some(answer.unwrap());
                        true
                    }
                    Poll::Pending => false,
                });
                guard.unwrap()
            };
            let clone = world.leases.clone();
            drop(world.leases);
            if by_guard {
                drop(clone);
                drop(guard);
            } else {
                drop(guard);
                drop(clone);
            }
            // Here the program could end.
            assert_eq!(world.store.holder("a"), None);
            opener.join().unwrap();
        }
    }
}

// === the end ===

#[test]
fn to_close_gives_back_in_batches() {
    let world = world(1);
    let log = log(&world.store, &world.clock, no_fault);
    let guards = lock_all(&world.leases, numbers(250));
    assert_eq!(world.leases.close(S), 250);
    assert_eq!(batches(&log), [100, 100, 50]);
    assert!(numbers(250).all(|name| world.store.holder(&name).is_none()));
    assert_eq!(world.leases.stats().released, 250);
    assert!(guards.iter().all(|guard| !guard.is_held()));
}

/// What was dropped before is given back by the time at which the leases are closed.
#[test]
fn to_close_waits_also_for_what_was_dropped_before() {
    let world = world(1);
    let guards = lock_all(&world.leases, numbers(3));
    drop(guards);
    assert!(world.store.holder("0").is_some());
    assert_eq!(world.leases.close(S), 0);
    assert!(numbers(3).all(|name| world.store.holder(&name).is_none()));
}

#[test]
fn to_close_waits_for_no_destination_longer_than_its_limit() {
    let world = threads_of(2, |builder| builder);
    let [bad, good] = [0, 1].map(|of| names_of(&world.store, of, 150));
    let hanging = bad.clone();
    let gate = hangs(&world.store, move |name| {
        hanging.iter().any(|one| one == name)
    });
    let all = bad.iter().chain(&good).cloned();
    let guards = lock_all(&world.leases, all);
    let (send, closed) = channel();
    let closing = thread::spawn({
        let leases = world.leases.clone();
        move || send.send(leases.close(S)).unwrap()
    });
    gate.crowd(1);
    until("the other one's are free", || {
        held(&world.store, &good) == 0
    });
    assert_eq!(held(&world.store, &bad), 150);
    assert!(closed.try_recv().is_err());
    world.hand.advance(S);
    assert_eq!(wait::next(&closed), 300);
    closing.join().unwrap();
    // It goes on in the background.
    gate.open();
    until("all are free", || held(&world.store, &bad) == 0);
    drop(guards);
}

/// A store that fails has been asked, and is asked again later.
#[test]
fn to_close_waits_for_one_attempt_each() {
    let world = threads_of(1, |builder| builder);
    let guards = lock_all(&world.leases, numbers(250));
    world.store.inject(all_down);
    // The clock stands still.
    assert_eq!(world.leases.close(S), 250);
    assert_eq!(world.leases.stats().releases_queued, 250);
    world.store.heal();
    // The timers of the next attempts may not be armed yet.
    march(&world.hand, S, "all are free", || {
        numbers(250).all(|name| world.store.holder(&name).is_none())
    });
    drop(guards);
}

/// What the last drop does not wait for any more goes on without anybody.
#[test]
fn the_last_drop_waits_no_longer_than_it_may_and_loses_nothing() {
    for limit in [Duration::ZERO, 20 * MS] {
        let world = threads_of(1, |builder| builder.end_limit(limit));
        let gate = hangs(&world.store, |_| true);
        let guards = lock_all(&world.leases, numbers(3));
        drop(guards);
        drop(world.leases);
        assert!(world.store.holder("0").is_some());
        gate.open();
        until("all are free", || {
            numbers(3).all(|name| world.store.holder(&name).is_none())
        });
    }
}

/// Not the drop of one of several, nor of those that hold nothing.
#[test]
fn no_other_drop_waits() {
    let world = threads_of(1, |builder| builder.end_limit(3_600 * S));
    let gate = hangs(&world.store, |_| true);
    let (other, guard) = (
        world.leases.clone(),
        world.leases.lock("b").at_once().wait().unwrap(),
    );
    drop(world.leases.lock("a").at_once().wait().unwrap());
    gate.crowd(1);
    drop(other);
    drop(world.leases);
    assert!(guard.is_held());
    gate.open();
    guard.release().wait().unwrap();
    until("both are free", || {
        ["a", "b"]
            .iter()
            .all(|name| world.store.holder(name).is_none())
    });
    let unused = Leases::builder(MemoryStore::new()).end_limit(3_600 * S);
    drop(unused.build().unwrap());
}

/// An acquire whose answer was lost is given back in the line, too, and counted until the store has
/// said something.
#[test]
fn what_may_have_been_granted_is_counted_until_the_store_has_answered() {
    let world = world(1);
    world.store.inject(|call| match call {
        StoreCall::Claim(_) => Fault::LoseAnswer(down()),
        _ => Fault::Fail(down()),
    });
    for name in numbers(3) {
        let lost = world.leases.lock(&name).at_once().wait();
        assert!(matches!(lost, Err(LockError::Store { .. })), "{lost:?}");
    }
    assert_eq!(world.leases.stats().releases_queued, 3);
    world.steps.advance(S);
    assert_eq!(world.leases.stats().releases_queued, 3);
    world.store.heal();
    world.steps.advance(LEASE / 6);
    let stats = world.leases.stats();
    assert_eq!((stats.releases_queued, stats.released), (0, 3));
    // Nothing may have been granted any more: nobody waits for a grant that may still come.
    assert_eq!(stats.armed, 0);
}
