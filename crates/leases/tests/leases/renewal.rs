//! What is held is renewed: when, how often, what with, and what not.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use kit::{gate, wait};
use tourbillon::{Scheduler, Time};
use tourbillon_leases::{Fault, Leases, Loss, StoreCall, StoreError, What};

use crate::worlds::{
    self, LEASE, MARGIN, MS, S, down, log, no_fault, no_renewals, world, world_of,
};

#[test]
fn c151_a_lease_is_renewed_for_as_long_as_it_is_held() {
    for seed in 0..10 {
        let world = world(seed);
        let log = log(&world.store, &world.clock, no_fault);
        let guard = world.leases.lock("a").at_once().wait().unwrap();
        for _ in 0..300 {
            world.steps.advance(S);
            assert!(guard.is_held());
            assert!(world.store.holder("a").is_some());
        }
        let renewed = log.renewals("a");
        assert!((27..=33).contains(&renewed.len()), "{}", renewed.len());
        assert_eq!(guard.renewals(), renewed.len() as u64);
        assert_eq!(world.leases.stats().renewed, renewed.len() as u64);
        assert_eq!(world.leases.stats().armed, 1);
        // A third of the lease, a fifth of that more or less, and the wait for others.
        for pair in renewed.windows(2) {
            let gap = pair[1].since(pair[0]);
            assert!(gap >= 8 * S && gap <= 12 * S + 250 * MS, "{gap:?}");
        }
    }
}

#[test]
fn c157_r01_an_attempt_that_fails_is_made_good_before_the_next_would_be_due() {
    for seed in 0..10 {
        let world = world(seed);
        let failed = AtomicUsize::new(0);
        let log = log(&world.store, &world.clock, move |call| match call {
            StoreCall::Renew { .. } if failed.fetch_add(1, SeqCst) == 0 => Fault::Fail(down()),
            _ => Fault::None,
        });
        let guard = world.leases.lock("a").at_once().wait().unwrap();
        world.steps.advance(20 * S);
        let attempts = log.renewals("a");
        let gap = attempts[1].since(attempts[0]);
        assert!(gap < LEASE / 30, "{gap:?}");
        assert!(guard.renewals() >= 1);
        assert_eq!(world.leases.stats().failed, 1);
        assert_eq!(world.leases.stats().lost, 0);
        world.steps.advance(10 * LEASE);
        assert!(guard.is_held());
    }
}

#[test]
fn r01_no_number_of_failures_ends_a_series_before_its_time() {
    for seed in 0..10 {
        let world = world(seed);
        let log = log(&world.store, &world.clock, no_renewals);
        let guard = world.leases.lock("a").at_once().wait().unwrap();
        // Down from the first renewal to the last moment but two seconds.
        let end = guard.remaining();
        assert_eq!(end, LEASE - MARGIN);
        world.steps.advance(end - 2 * S);
        let attempts = log.renewals("a");
        assert!(attempts.len() >= 8, "{attempts:?}");
        // They go on until then: none of them waits for long.
        for pair in attempts.windows(2) {
            assert!(pair[1].since(pair[0]) < LEASE / 6, "{attempts:?}");
        }
        assert!(guard.is_held());
        world.store.heal();
        world.steps.advance(2 * S);
        assert_eq!(guard.renewals(), 1);
        world.steps.advance(10 * LEASE);
        assert!(guard.is_held());
        assert!(guard.renewals() >= 25);
    }
}

#[test]
fn r02_what_a_store_refuses_for_a_while_is_no_last_word() {
    // Whatever the store calls it, only `not held` and the clock are final.
    let busy = || StoreError::Unavailable("BUSY running a script".to_owned());
    let refused = || StoreError::Refused("it can't write now".to_owned());
    let restarted = || StoreError::Restarted { wait: 10 * S };
    for (seed, error) in (0..).zip([busy(), refused(), restarted()]) {
        let world = world(seed);
        let events = world.leases.events(100);
        let (own, count) = (error.clone(), AtomicUsize::new(0));
        // As an answer to the whole batch, and as one of each.
        world.store.inject(move |call| match call {
            StoreCall::Renew { .. } if count.fetch_add(1, SeqCst) % 2 == 0 => {
                Fault::Fail(own.clone())
            }
            StoreCall::Renew { .. } => Fault::Some(vec![0], own.clone()),
            _ => Fault::None,
        });
        let guard = world.leases.lock("a").at_once().wait().unwrap();
        world.steps.advance(25 * S);
        let failed: Vec<_> = events
            .try_iter()
            .filter_map(|event| match event.what {
                What::Failed { error, .. } => Some(error),
                _ => None,
            })
            .collect();
        assert!(failed.len() >= 6, "{failed:?}");
        assert!(failed.iter().all(|failed| *failed == error), "{failed:?}");
        assert!(guard.is_held());
        world.store.heal();
        world.steps.advance(LEASE);
        assert!(guard.is_held(), "{error}");
        assert!(guard.renewals() >= 1);
        guard.release().wait().unwrap();
    }
}

#[test]
fn r12_a_renewal_is_of_everything_that_the_lock_is() {
    // For a store that is asked all the time, the name, its owner and its token last together.
    let world = world(1);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    let holder = (guard.id().owner().to_owned(), guard.token());
    for _ in 0..10 * 60 {
        world.steps.advance(S / 2);
        assert_eq!(world.store.holder("a"), Some(holder.clone()));
    }
    // Each for a full lease: what is left is never less than two thirds, and a bit.
    world.steps.advance(LEASE / 3);
    assert!(guard.remaining() > LEASE / 2);
    world
        .steps
        .jump_to(world.steps.now() + guard.remaining() - MS);
    assert!(world.store.holder("a").is_some());
}

#[test]
fn r13_reentrant_holds_are_renewed_whatever_their_number() {
    let world = world(1);
    let shown = Arc::new(AtomicU32::new(0));
    let show = Arc::clone(&shown);
    world.store.inject(move |call| {
        if let StoreCall::Renew { batch, .. } = call {
            assert_eq!(batch.len(), 1);
            show.store(batch[0].holds, SeqCst);
        }
        Fault::None
    });
    let mut guards = vec![world.leases.lock("a").at_once().wait().unwrap()];
    for holds in 1..=5 {
        world.steps.advance(2 * LEASE);
        assert!(guards.iter().all(tourbillon_leases::LeaseGuard::is_held));
        // It is one series, and the backend is only shown the number.
        assert_eq!(shown.load(SeqCst), holds);
        assert_eq!(world.leases.stats().armed, 1);
        let again = guards[0].again().unwrap();
        guards.push(again);
    }
    while let Some(guard) = guards.pop() {
        world.steps.advance(2 * LEASE);
        assert!(guard.is_held());
        guard.release().wait().unwrap();
    }
    assert_eq!(world.store.holder("a"), None);
}

#[test]
fn c166_r24_a_fixed_lease_is_not_renewed_and_says_so_in_its_name() {
    let world = world(1);
    let log = log(&world.store, &world.clock, no_fault);
    let events = world.leases.events(10);
    let lease = 100 * S;
    let guard = world
        .leases
        .lock("a")
        .lease(lease)
        .not_renewed()
        .at_once()
        .wait();
    let guard = guard.unwrap();
    let margin = lease / 100 + 2 * MS;
    world.steps.advance(lease - margin - MS);
    assert!(guard.is_held());
    world.steps.advance(MS);
    assert!(!guard.is_held());
    assert_eq!(guard.lost().loss(), Some(Loss::Expired));
    // Nor has it told of a risk that somebody chose.
    let told: Vec<_> = events.try_iter().map(|event| event.what).collect();
    assert_eq!(told, [What::Lost(Loss::Expired)]);
    assert!(log.batches().is_empty());
    assert_eq!(world.leases.stats().armed, 0);
}

#[test]
fn c166_r24_a_fixed_lease_that_is_fed_is_not_renewed_either() {
    let world = world(1);
    let log = log(&world.store, &world.clock, no_fault);
    let acquisition = world.leases.lock("a").lease(100 * S).not_renewed();
    let guard = acquisition.fed_every(20 * S).at_once().wait().unwrap();
    for _ in 0..9 {
        world.steps.advance(10 * S);
        assert!(guard.feed());
    }
    world.steps.advance(10 * S);
    assert!(!guard.feed());
    assert_eq!(guard.lost().loss(), Some(Loss::Expired));
    assert!(log.batches().is_empty());
}

#[test]
fn c166_r24_a_lease_of_its_own_length_is_renewed_as_ever() {
    let world = world(1);
    let log = log(&world.store, &world.clock, no_fault);
    // For a failover that can't wait for 30 s.
    let guard = world
        .leases
        .lock("a")
        .lease(3 * S)
        .at_once()
        .wait()
        .unwrap();
    assert!(guard.remaining() < 3 * S);
    world.steps.advance(60 * S);
    assert!(guard.is_held());
    let renewed = log.renewals("a").len();
    assert!((54..=66).contains(&renewed), "{renewed}");
    assert!(world.leases.lock("a").at_once().wait().is_err());
    drop(guard);
}

#[test]
fn r08_what_is_renewed_for_ever_is_told_once_and_shown() {
    let world = world_of(1, 1, |builder| builder.alarm_after(20));
    let events = world.leases.events(1_000);
    let forgotten = world.leases.lock("forgotten").at_once().wait().unwrap();
    let alarms = || -> Vec<_> {
        let alarm = |what| match what {
            What::HeldLong { renewals, .. } => Some(renewals),
            _ => None,
        };
        let events = events.try_iter();
        events
            .filter_map(|event| alarm(event.what).map(|by| (event.key.name().to_owned(), by)))
            .collect()
    };
    while forgotten.renewals() < 19 {
        world.steps.advance(S);
    }
    assert!(alarms().is_empty());
    let young = world.leases.lock("young").at_once().wait().unwrap();
    world.steps.advance(LEASE / 2);
    assert_eq!(alarms(), [("forgotten".to_owned(), 20)]);
    assert_eq!(
        world.leases.stats().most_renewals,
        forgotten.renewals().max(young.renewals())
    );
    world.steps.advance(3 * LEASE);
    assert!(alarms().is_empty());
    // A gauge of what is held: the next oldest follows.
    drop(forgotten);
    assert_eq!(world.leases.stats().most_renewals, young.renewals());
    drop(young);
    assert_eq!(world.leases.stats().most_renewals, 0);
}

#[test]
fn r19_a_renewal_that_begins_late_is_told() {
    let world = world(1);
    let events = world.leases.events(100);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    world.steps.advance(3 * LEASE);
    assert_eq!(world.leases.stats().late, 0);
    assert!(
        !events
            .try_iter()
            .any(|event| matches!(event.what, What::Late { .. }))
    );
    // The process stands still for long, and not for too long.
    let before = world.steps.now();
    let due_at_the_latest = before + guard.remaining() - (LEASE - MARGIN) + 12 * S;
    world.steps.jump_to(before + 17 * S);
    assert!(guard.is_held());
    world.steps.advance(S);
    assert_eq!(world.leases.stats().late, 1);
    let late: Vec<_> = events
        .try_iter()
        .filter_map(|event| match event.what {
            What::Late { by, .. } => Some(by),
            _ => None,
        })
        .collect();
    assert_eq!(late.len(), 1);
    let least = (before + 17 * S).since(due_at_the_latest);
    assert!(
        late[0] >= least.max(LEASE / 6),
        "{late:?}, at least {least:?}"
    );
    // And it was made good.
    assert!(guard.remaining() > 28 * S);
}

/// Renewals have a scheduler of their own: what the application does to its own can't delay them.
#[test]
fn r19_ordinary_timers_and_their_tasks_hold_up_no_renewal() {
    let ordinary = Scheduler::<u32>::builder();
    let ordinary = ordinary
        .shards(1)
        .workers(1)
        .max_running(1)
        .build()
        .unwrap();
    let gate = gate::Gate::default();
    for key in 0..1_000 {
        let gate = gate.clone();
        let armed = ordinary
            .handle()
            .schedule(key, Duration::ZERO, move |_| gate.pass());
        armed.unwrap();
    }
    gate.crowd(1);
    let world = worlds::threads();
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    for renewals in 1..=10 {
        world.hand.advance(12 * S);
        wait::until("its round is over", || world.leases.stats().armed == 2);
        world.hand.advance(250 * MS);
        wait::until("it is renewed", || guard.renewals() >= renewals);
    }
    assert!(guard.is_held());
    gate.open();
}

#[test]
fn c165_r27_locks_of_one_moment_are_not_renewed_in_one_pulse() {
    const LOCKS: usize = 10_000;
    let world = world(7);
    let log = log(&world.store, &world.clock, no_fault);
    let names: Vec<_> = (0..LOCKS).map(|n| n.to_string()).collect();
    let guards: Vec<_> = names
        .iter()
        .map(|name| world.leases.lock(name).at_once().wait().unwrap())
        .collect();
    assert_eq!(world.steps.now(), Time::ZERO);
    for round in 0..3 {
        let before = log.calls().len();
        let begin = world.steps.now();
        world.steps.advance(LEASE / 3);
        let mut pulses: HashMap<u64, usize> = HashMap::new();
        let mut sum = 0;
        for (at, names) in log.batches().split_off(before - LOCKS) {
            // In tenths of a second; the window is two or three of them.
            let tenth = at.since(begin).as_millis() / 100;
            *pulses.entry(tenth.try_into().unwrap()).or_default() += names.len();
            sum += names.len();
            assert!(names.len() <= 100);
        }
        let most = pulses.values().max().unwrap();
        // Due within 4 s in the first round, so 250 in a tenth on the mean, and what is due in 200
        // ms goes out together.
        assert!(*most <= 700, "round {round}: {most} of {sum}");
        assert!(sum >= LOCKS / 3, "round {round}: {sum}");
    }
    assert!(guards.iter().all(|guard| guard.renewals() >= 2));
}

#[test]
fn c170_r27_churn_leaves_one_armed_series_or_none() {
    for seed in 0..2 {
        let world = world(seed);
        let log = log(&world.store, &world.clock, no_fault);
        for cycle in 0..10_000 {
            let guard = world.leases.lock("a").at_once().wait().unwrap();
            if cycle % 3 == 0 {
                world.steps.advance(MS);
            }
            assert_eq!(world.leases.stats().armed, 1);
            if cycle % 2 == 0 {
                guard.release().wait().unwrap();
            } else {
                drop(guard);
                world.steps.settle();
            }
            assert_eq!(world.leases.stats().armed, 0);
        }
        // Nothing of all that is renewed.
        world.steps.advance(3 * LEASE);
        assert!(log.batches().is_empty());
        let guard = world.leases.lock("a").at_once().wait().unwrap();
        let stats = world.leases.stats();
        assert_eq!((stats.armed, stats.kept, stats.destinations), (1, 1, 1));
        world.steps.advance(LEASE);
        assert!((2..=4).contains(&log.batches().len()));
        drop(guard);
    }
}

#[test]
fn c167_r11_each_renews_only_what_is_its_own() {
    let one = world(1);
    let builder = Leases::builder(one.store.clone()).clock(one.clock.clone());
    let (other, other_steps) = builder.build_stepped(2).unwrap();
    let log = log(&one.store, &one.clock, no_fault);
    let a = one.leases.lock("a").at_once().wait().unwrap();
    let b = other.lock("b").at_once().wait().unwrap();
    let zombie = other.lock("zombie").at_once().wait().unwrap();
    worlds::together(&[&one.steps, &other_steps], 5 * LEASE, 100 * MS);
    assert!(a.is_held() && b.is_held());
    let secrets = |name: &str| -> Vec<String> {
        let renewed = log.calls().into_iter().filter_map(|(_, seen)| match seen {
            worlds::Seen::Renew(batch) => Some(batch),
            _ => None,
        });
        let each = renewed.flatten().filter(|(of, _)| of == name);
        each.map(|(_, secret)| secret).collect()
    };
    // Each name is renewed with one secret, its own.
    let (mine, theirs) = (secrets("a"), secrets("b"));
    assert!(mine.len() >= 10 && mine.iter().all(|secret| *secret == mine[0]));
    assert!(theirs.len() >= 10 && theirs.iter().all(|secret| *secret == theirs[0]));
    assert!(mine[0] != theirs[0]);
    // The other one dies. Nobody renews what it held, and it runs out.
    let count = secrets("zombie").len();
    std::mem::forget((b, zombie));
    one.steps.advance(LEASE);
    assert_eq!(secrets("zombie").len(), count);
    assert!(a.is_held());
    assert!(one.leases.lock("zombie").at_once().wait().is_ok());
}
