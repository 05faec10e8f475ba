//! What goes out together: chunks, destinations, what is urgent, and how one that fails is kept
//! from the others.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

use kit::gate::Gate;
use kit::quiet;
use tourbillon_leases::{
    Destination, Fault, LeaseGuard, Leases, LockError, Loss, StoreCall, StoreError,
};

use crate::calls::Calls;
use crate::worlds::{self, LEASE, MS, S, down, log, march, no_fault, threads_of, world, world_of};

fn lock_all(leases: &Leases, count: usize) -> Vec<LeaseGuard> {
    let lock = |n: usize| leases.lock(&n.to_string()).at_once().wait().unwrap();
    (0..count).map(lock).collect()
}

fn all_held(guards: &[LeaseGuard]) -> bool {
    guards.iter().all(LeaseGuard::is_held)
}

#[test]
fn c160_r15_chunks_at_their_edges() {
    for (seed, count) in (0..).zip([1, 2, 99, 100, 101, 199, 200, 201, 1_000]) {
        let world = world(seed);
        let log = log(&world.store, &world.clock, no_fault);
        let guards = lock_all(&world.leases, count);
        // All are due when the process goes on, and so they go out in one pass.
        world.steps.jump_to(world.steps.now() + 13 * S);
        world.steps.advance(S);
        let batches = log.batches();
        let sizes: Vec<_> = batches.iter().map(|(_, names)| names.len()).collect();
        let mut expected = vec![100; count / 100];
        expected.extend((count % 100 > 0).then_some(count % 100));
        assert_eq!(sizes, expected);
        let names: BTreeSet<_> = batches.into_iter().flat_map(|(_, names)| names).collect();
        assert_eq!(names.len(), count);
        assert!(guards.iter().all(|guard| guard.renewals() == 1));
        assert_eq!(world.leases.stats().batches, expected.len() as u64);
    }
}

#[test]
fn r15_when_nothing_is_left_of_a_chunk_nothing_is_sent_and_nothing_ends() {
    for released in [1, 99, 100, 101, 250] {
        let world = world(1);
        let mut guards = lock_all(&world.leases, 251);
        // Released by the first renewal of all: whole chunks behind it are gone.
        let gone = Mutex::new(guards.split_off(251 - released));
        let log = log(&world.store, &world.clock, move |call| {
            if let StoreCall::Renew { .. } = call {
                gone.lock().unwrap().clear();
            }
            Fault::None
        });
        world.steps.jump_to(world.steps.now() + 13 * S);
        world.steps.advance(S);
        assert!(log.batches().iter().all(|(_, names)| !names.is_empty()));
        assert!(all_held(&guards));
        world.steps.advance(3 * LEASE);
        assert!(all_held(&guards));
        // All of them between the moment at which they are due and the pass.
        world.steps.jump_to(world.steps.now() + 13 * S);
        let before = log.batches().len();
        guards.clear();
        world.steps.advance(3 * LEASE);
        assert_eq!(log.batches().len(), before);
        assert_eq!(world.leases.stats().armed, 0);
        let next = world.leases.lock("next").at_once().wait().unwrap();
        world.steps.advance(3 * LEASE);
        assert!(next.renewals() >= 7);
    }
}

#[test]
fn r15_a_chunk_of_which_all_is_lost_is_not_sent() {
    for seed in 0..5 {
        let world = world(seed);
        let (hand, calls) = (world.steps.clock(), AtomicUsize::new(0));
        // The first call of a pass takes longer than all the leases last.
        let log = log(&world.store, &world.clock, move |call| {
            if let StoreCall::Renew { .. } = call
                && calls.fetch_add(1, SeqCst) == 0
            {
                hand.advance(LEASE);
            }
            Fault::None
        });
        let guards = lock_all(&world.leases, 1_000);
        world.steps.jump_to(world.steps.now() + 13 * S);
        world.steps.advance(S);
        let sizes: Vec<_> = log.batches().iter().map(|(_, names)| names.len()).collect();
        assert_eq!(sizes, [100]);
        assert!(!guards.iter().any(LeaseGuard::is_held));
        let next = world.leases.lock("next").at_once().wait().unwrap();
        world.steps.advance(3 * LEASE);
        assert!(next.renewals() >= 7);
    }
}

/// In a thread with a small stack: nothing is done by recursion.
fn on_a_small_stack(test: impl FnOnce() + Send + 'static) {
    let thread = thread::Builder::new().stack_size(128 << 10);
    thread.spawn(test).unwrap().join().unwrap();
}

#[test]
fn c160_r16_r17_a_hundred_thousand_locks() {
    const LOCKS: usize = 100_000;
    on_a_small_stack(|| {
        let world = world_of(1, 16, |builder| builder);
        let store = world.store.clone();
        let guards = Arc::new(Mutex::new(lock_all(&world.leases, LOCKS)));
        let own = Arc::clone(&guards);
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        world.store.inject(move |call| {
            if let StoreCall::Renew { destination, batch } = call {
                count.fetch_add(1, SeqCst);
                assert!((1..=100).contains(&batch.len()));
                assert!(
                    batch
                        .iter()
                        .all(|one| store.destination(one.name) == *destination)
                );
                // Some are given back while the pass is under way, from this batch or another.
                let mut guards = own.lock().unwrap();
                let left = guards.len() - 2;
                guards.truncate(left);
            }
            Fault::None
        });
        // In their own time, then all of them in one pass for each destination.
        world.steps.advance(13 * S);
        let first = calls.load(SeqCst);
        assert!((LOCKS / 100..LOCKS / 25).contains(&first), "{first}");
        world.steps.jump_to(world.steps.now() + 13 * S);
        world.steps.advance(S);
        let guards = guards.lock().unwrap();
        assert!(all_held(&guards));
        assert!(guards.iter().all(|guard| guard.renewals() >= 2));
        let stats = world.leases.stats();
        assert_eq!((stats.failed, stats.lost, stats.sent_alone), (0, 0, 0));
        assert_eq!(stats.kept, guards.len());
        assert_eq!(stats.destinations, 16);
        assert_eq!(guards.len(), LOCKS - 2 * calls.load(SeqCst));
    });
}

#[test]
fn r17_a_pass_of_as_many_calls_as_locks() {
    on_a_small_stack(|| {
        let world = world_of(1, 1, |builder| builder.batch(1));
        let log = log(&world.store, &world.clock, no_fault);
        let guards = lock_all(&world.leases, 20_000);
        world.steps.jump_to(world.steps.now() + 13 * S);
        world.steps.advance(S);
        assert_eq!(log.batches().len(), 20_000);
        assert!(guards.iter().all(|guard| guard.renewals() == 1));
        // Nor when as many fail, and end, at once.
        world.store.inject(worlds::all_down);
        world.steps.jump_to(world.steps.now() + 13 * S);
        world.steps.advance(S / 2);
        assert!(world.leases.stats().failed >= 20_000);
        world.steps.jump_to(world.steps.now() + LEASE);
        assert_eq!(world.leases.stats().lost, 20_000);
        drop(guards);
        world.store.heal();
        world.steps.settle();
        assert_eq!(world.leases.stats().armed, 0);
    });
}

#[test]
fn c160_r14_r16_threads_that_release_while_passes_run() {
    const LOCKS: usize = 8_000;
    let world = threads_of(4, |builder| builder);
    let store = world.store.clone();
    let wrong = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&wrong);
    world.store.inject(move |call| {
        if let StoreCall::Renew { destination, batch } = call {
            let fits = batch
                .iter()
                .all(|one| store.destination(one.name) == *destination);
            count.fetch_add(usize::from(!fits || batch.is_empty()), SeqCst);
        }
        Fault::None
    });
    let mut guards = lock_all(&world.leases, LOCKS);
    let released = guards.split_off(LOCKS / 2);
    let mut parts: Vec<Vec<_>> = (0..3).map(|_| Vec::new()).collect();
    for (at, guard) in released.into_iter().enumerate() {
        parts[at % 3].push(guard);
    }
    // All are due; while the passes go on, three threads give back half of the locks.
    world.hand.advance(13 * S);
    thread::scope(|scope| {
        for part in parts {
            scope.spawn(move || {
                for guard in part {
                    guard.release().wait().unwrap();
                }
            });
        }
        march(&world.hand, S, "all are renewed", || {
            guards.iter().all(|guard| guard.renewals() >= 1)
        });
    });
    assert_eq!(wrong.load(SeqCst), 0);
    assert!(all_held(&guards));
    for n in LOCKS / 2..LOCKS {
        assert_eq!(world.store.holder(&n.to_string()), None);
    }
    world.hand.advance(13 * S);
    march(&world.hand, S, "they are renewed again", || {
        guards.iter().all(|guard| guard.renewals() >= 2)
    });
    let stats = world.leases.stats();
    assert_eq!((stats.kept, stats.failed, stats.lost), (LOCKS / 2, 0, 0));
    drop(guards);
    // A pass that will find nothing may be armed.
    march(&world.hand, S, "nothing is left", || {
        world.leases.stats().armed == 0
    });
}

#[test]
fn r14_what_goes_wrong_in_a_pass_ends_no_series() {
    quiet::hush();
    for seed in 0..5 {
        let world = world_of(seed, 3, |builder| builder.batch(7));
        let count = AtomicUsize::new(0);
        let log = log(&world.store, &world.clock, move |call| {
            if let StoreCall::Renew { .. } = call
                && count.fetch_add(1, SeqCst) % 3 == 1
            {
                panic!("wanted");
            }
            Fault::None
        });
        let guards = lock_all(&world.leases, 60);
        for _ in 0..20 {
            world.steps.advance(10 * S);
            assert!(all_held(&guards));
        }
        let stats = world.leases.stats();
        assert!(stats.failed > 0 && stats.sent_alone > 0, "{stats:?}");
        assert_eq!((stats.lost, stats.kept), (0, 60));
        assert!(guards.iter().all(|guard| guard.renewals() >= 15));
        assert!(log.len() > 300);
    }
}

#[test]
fn r16_every_name_goes_where_it_belongs_whatever_it_is_made_of() {
    let world = world_of(1, 5, |builder| builder);
    let long = "x".repeat(Leases::LONGEST_NAME);
    let names = [
        " ",
        "\0",
        "{a}:b",
        "}{",
        "a b\nc",
        "ä€😀",
        "*",
        "..",
        "%s",
        "null",
        &long,
    ];
    let guards: Vec<_> = names
        .iter()
        .map(|name| world.leases.lock(name).at_once().wait().unwrap())
        .collect();
    let store = world.store.clone();
    world.store.inject(move |call| {
        if let StoreCall::Renew { destination, batch } = call {
            assert!(
                batch
                    .iter()
                    .all(|one| store.destination(one.name) == *destination)
            );
        }
        Fault::None
    });
    world.steps.advance(5 * LEASE);
    assert!(all_held(&guards));
    for (name, guard) in names.iter().zip(&guards) {
        assert_eq!(guard.name(), *name);
        assert!(matches!(
            world.leases.lock(name).at_once().wait(),
            Err(LockError::Held { .. })
        ));
    }
    for guard in guards {
        guard.release().wait().unwrap();
    }
}

#[test]
fn r18_a_store_that_takes_its_time_keeps_up_with_many_locks() {
    for seed in 0..3 {
        let world = world(seed);
        let hand = world.steps.clock();
        let guards = lock_all(&world.leases, 3_000);
        // Each call takes 100 ms: one for each lock would be five minutes for 3,000 of them.
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        world.store.inject(move |call| {
            if let StoreCall::Renew { .. } = call {
                hand.advance(100 * MS);
                count.fetch_add(1, SeqCst);
            }
            Fault::None
        });
        for _ in 0..10 {
            world.steps.advance(10 * S);
            assert!(all_held(&guards));
        }
        let stats = world.leases.stats();
        assert_eq!(stats.lost, 0);
        assert!(calls.load(SeqCst) < 1_500, "{}", calls.load(SeqCst));
    }
}

#[test]
fn r18_each_is_renewed_by_its_own_deadline() {
    // A queue of leases that have time, behind which the short ones would end: a pass of them takes
    // three seconds.
    for seed in 0..5 {
        let world = world_of(seed, 1, |builder| builder.batch(10));
        let hand = world.steps.clock();
        let long = lock_all(&world.leases, 300);
        let short: Vec<_> = (0..5)
            .map(|n| {
                let name = format!("short {n}");
                let guard = world.leases.lock(&name).lease(2 * S).at_once().wait();
                guard.unwrap()
            })
            .collect();
        world.store.inject(move |call| {
            if let StoreCall::Renew { .. } = call {
                hand.advance(100 * MS);
            }
            Fault::None
        });
        for _ in 0..600 {
            world.steps.advance(100 * MS);
            assert!(all_held(&short), "at {:?}", world.steps.now());
        }
        assert!(all_held(&long));
        assert!(long.iter().all(|guard| guard.renewals() >= 4));
    }
}

#[test]
fn r30_a_batch_that_is_refused_as_a_whole_goes_out_one_by_one() {
    for seed in 0..5 {
        let world = world(seed);
        // A proxy in front of a cluster: batches cross slots.
        let log = log(&world.store, &world.clock, |call| match call {
            StoreCall::Renew { batch, .. } if batch.len() > 1 => {
                Fault::Fail(StoreError::Refused("CROSSSLOT".to_owned()))
            }
            _ => Fault::None,
        });
        let guards = lock_all(&world.leases, 250);
        world.steps.advance(5 * LEASE);
        assert!(all_held(&guards));
        let stats = world.leases.stats();
        assert!(stats.sent_alone > 0);
        // A batch that was refused is no attempt of each that failed.
        assert_eq!((stats.failed, stats.lost), (0, 0));
        assert!(
            guards
                .iter()
                .all(|guard| (13..=19).contains(&guard.renewals()))
        );
        let alone = log
            .batches()
            .into_iter()
            .filter(|(_, names)| names.len() == 1);
        assert!(alone.count() >= 250 * 13);
    }
}

#[test]
fn r30_one_that_is_refused_alone_is_no_trouble_for_the_others() {
    let world = world(1);
    world.store.inject(|call| match call {
        StoreCall::Renew { batch, .. } if batch.iter().any(|one| one.name == "7") => {
            Fault::Fail(StoreError::Refused("WRONGTYPE".to_owned()))
        }
        _ => Fault::None,
    });
    let mut guards = lock_all(&world.leases, 150);
    world.steps.advance(5 * LEASE);
    let bad = guards.remove(7);
    assert_eq!(bad.lost().loss(), Some(Loss::Expired));
    assert!(all_held(&guards));
}

#[test]
fn some_of_a_batch_fail_and_the_others_do_not() {
    let world = world(1);
    world.store.inject(|call| match call {
        StoreCall::Renew { batch, .. } => {
            let bad = (0..batch.len()).filter(|at| batch[*at].name.ends_with('3'));
            Fault::Some(bad.collect(), down())
        }
        _ => Fault::None,
    });
    let guards = lock_all(&world.leases, 100);
    world.steps.advance(2 * LEASE);
    for guard in guards {
        assert_eq!(guard.is_held(), !guard.name().ends_with('3'), "{guard:?}");
    }
}

#[test]
fn c158_r25_a_destination_that_fails_costs_only_its_own_locks() {
    for seed in 0..5 {
        let world = world_of(seed, 16, |builder| builder);
        let bad = Destination::new(3);
        world.store.inject(move |call| match call {
            StoreCall::Renew { destination, .. } if *destination == bad => Fault::Fail(down()),
            _ => Fault::None,
        });
        let guards = lock_all(&world.leases, 160);
        let of_bad = |guard: &LeaseGuard| world.store.destination(guard.name()) == bad;
        assert!(guards.iter().any(of_bad));
        // Twenty periods.
        world.steps.advance(200 * S);
        for guard in &guards {
            assert_eq!(guard.is_held(), !of_bad(guard));
            assert!(of_bad(guard) || guard.renewals() >= 16);
        }
    }
}

/// Even if its polls block, which they must not, it has one worker.
#[test]
fn c158_r25_a_destination_that_hangs_costs_only_its_own_locks() {
    let world = threads_of(8, |builder| builder);
    let bad = Destination::new(3);
    let gate = Gate::default();
    let hanging = Arc::new(AtomicUsize::new(0));
    let (at_gate, count) = (gate.clone(), Arc::clone(&hanging));
    world.store.inject(move |call| {
        if let StoreCall::Renew { destination, .. } = call
            && *destination == bad
        {
            count.fetch_add(1, SeqCst);
            at_gate.pass();
        }
        Fault::None
    });
    let guards = lock_all(&world.leases, 80);
    let of_bad = |guard: &LeaseGuard| world.store.destination(guard.name()) == bad;
    let (bad, good): (Vec<_>, Vec<_>) = guards.into_iter().partition(of_bad);
    assert!(!bad.is_empty() && good.len() > 50);
    for renewals in 1..=6 {
        world.hand.advance(12 * S);
        march(&world.hand, S, "those of others are renewed", || {
            good.iter().all(|guard| guard.renewals() >= renewals)
        });
        assert!(all_held(&good));
    }
    gate.crowd(1);
    for guard in &bad {
        assert_eq!(guard.lost().loss(), Some(Loss::Expired));
        assert_eq!(guard.renewals(), 0);
    }
    assert_eq!(hanging.load(SeqCst), 1);
    // What can be done at another destination can be done at this one, when it answers again.
    gate.open();
    world.store.heal();
    drop(bad);
    let names: HashMap<_, _> = (80..200)
        .map(|n| n.to_string())
        .map(|name| (world.store.destination(&name), name))
        .collect();
    let again = world
        .leases
        .lock(&names[&Destination::new(3)])
        .at_once()
        .wait()
        .unwrap();
    for renewals in 1..=2 {
        world.hand.advance(12 * S);
        march(&world.hand, S, "it is renewed", || {
            again.renewals() >= renewals
        });
    }
    drop((again, good));
}

/// A call may take a sixth of the lease: then another one is tried.
#[test]
fn c158_r26_a_call_that_hangs_once_costs_nothing() {
    let world = threads_of(1, |builder| builder);
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    world.store.inject(move |call| match call {
        StoreCall::Renew { .. } if count.fetch_add(1, SeqCst) == 0 => Fault::Hang,
        _ => Fault::None,
    });
    let guards = lock_all(&world.leases, 50);
    world.hand.advance(12 * S);
    march(&world.hand, S, "it hangs", || calls.load(SeqCst) == 1);
    assert!(guards.iter().all(|guard| guard.renewals() == 0));
    let before = world.leases.now();
    march(&world.hand, 6 * S, "all are renewed after it", || {
        guards.iter().all(|guard| guard.renewals() >= 1)
    });
    let took = world.leases.now().since(before);
    assert!(took >= LEASE / 6 - 10 * MS, "{took:?}");
    assert!(world.leases.stats().given_up >= 1);
    assert!(all_held(&guards));
}

#[test]
fn r18_short_leases_beside_long_ones_of_their_destination_are_renewed_in_time() {
    for seed in 0..3 {
        let world = world(seed);
        let _long = lock_all(&world.leases, 20);
        let short: Vec<_> = [50, 100, 200, 300]
            .map(|millis| {
                let name = format!("short {millis}");
                let lock = world.leases.lock(&name).lease(millis * MS).at_once().wait();
                lock.unwrap()
            })
            .into();
        world.steps.advance(60 * S);
        assert!(all_held(&short));
        assert_eq!(world.leases.stats().lost, 0);
    }
}
