//! What the application hears, in what order, and that it can hold up nothing.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use kit::gate::Gate;
use kit::quiet;
use kit::wait::until;
use kit::wakes::{Wakes, poll};
use tourbillon_leases::{Event, LeaseGuard, LeaseId, Loss, ReleaseError, What};

use crate::worlds::{
    LEASE, MARGIN, MS, S, down, is_lost, march, no_renewals, threads_of, world, world_of,
};

/// What a callback has heard.
type Heard = Arc<Mutex<Vec<Event<LeaseId>>>>;

/// How many renewals it was told of, of everybody or of one.
fn renewed(heard: &Heard, of: Option<&str>) -> u64 {
    let heard = heard.lock().unwrap();
    let told = heard.iter().filter(|event| {
        let of_it = of.is_none_or(|name| event.key.name() == name);
        of_it && matches!(event.what, What::Renewed { .. })
    });
    told.count() as u64
}

fn of(heard: &Heard, name: &str) -> Vec<What> {
    let heard = heard.lock().unwrap();
    let of = heard.iter().filter(|event| event.key.name() == name);
    of.map(|event| event.what.clone()).collect()
}

#[test]
fn r22_what_becomes_of_a_lease_is_told_in_its_order() {
    for seed in 0..5 {
        let heard = Heard::default();
        let own = Arc::clone(&heard);
        let world = world_of(seed, 1, |builder| {
            builder.on_event(move |event| own.lock().unwrap().push(event.clone()))
        });
        let channel = world.leases.events(1_000);
        let guard = world.leases.lock("a").at_once().wait().unwrap();
        world.steps.advance(LEASE / 2);
        let until = world.leases.now() + guard.remaining();
        world.store.inject(no_renewals);
        world.steps.advance(LEASE);
        let events = std::mem::take(&mut *heard.lock().unwrap());
        // Both hear the same.
        assert_eq!(channel.try_iter().collect::<Vec<_>>(), events);
        assert!(events.iter().all(|event| event.key == *guard.id()));
        assert!(events.is_sorted_by_key(|event| event.at));
        let mut events = events.into_iter();
        // Renewed once, at least.
        let first = events.next().unwrap();
        assert!(
            matches!(first.what, What::Renewed { until: then, renewals: 1, .. } if then == until),
            "{first:?}"
        );
        // Failed again and again, and once that it is at risk.
        let (mut failures, mut risks) = (0, 0);
        for event in events.by_ref() {
            let left = until.since(event.at);
            match event.what {
                What::Failed {
                    error,
                    attempts,
                    remaining,
                    ..
                } => {
                    failures += 1;
                    assert_eq!((error, attempts, remaining), (down(), failures, left));
                }
                What::AtRisk { remaining, .. } => {
                    risks += 1;
                    assert_eq!(remaining, left);
                    // With the first look at or after that moment.
                    assert!(left <= LEASE / 3 && left > LEASE / 5, "{left:?}");
                    assert!(failures > 0);
                }
                What::Lost(loss) => {
                    assert_eq!(loss, Loss::Expired);
                    assert!(left.is_zero() && event.at.since(until) <= MS);
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(failures >= 8 && risks == 1, "{failures} {risks}");
        // The loss is the last event of its series, whatever comes.
        world.store.heal();
        world.steps.advance(LEASE);
        assert_eq!(
            guard.release().wait(),
            Err(ReleaseError::Lost(Loss::Expired))
        );
        world.steps.advance(LEASE);
        assert!(events.next().is_none() && heard.lock().unwrap().is_empty());
        assert_eq!(channel.try_iter().count(), 0);
    }
}

#[test]
fn r22_the_risk_is_told_again_when_it_has_passed_and_comes_back() {
    let world = world(1);
    let channel = world.leases.events(1_000);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    for _ in 0..3 {
        world.store.inject(no_renewals);
        while guard.remaining() > 5 * S {
            world.steps.advance(100 * MS);
        }
        world.store.heal();
        world.steps.advance(4 * S);
        let events: Vec<_> = channel.try_iter().collect();
        let risks = events
            .iter()
            .filter(|event| matches!(event.what, What::AtRisk { .. }));
        assert_eq!(risks.count(), 1);
        // After a success attempts are counted anew.
        let first = events.into_iter().find_map(|event| match event.what {
            What::Failed { attempts, .. } => Some(attempts),
            _ => None,
        });
        assert_eq!(first, Some(1));
        assert!(guard.remaining() > LEASE / 2);
    }
}

#[test]
fn r22_c159_a_callback_that_hangs_holds_up_no_renewal_and_nobody_elses_events() {
    let (gate, heard) = (Gate::default(), Heard::default());
    let (at_gate, own) = (gate.clone(), Arc::clone(&heard));
    let world = threads_of(1, |builder| {
        builder.on_event(move |event| {
            if event.key.name() == "hangs" {
                at_gate.pass();
            }
            own.lock().unwrap().push(event.clone());
        })
    });
    let hangs = world.leases.lock("hangs").at_once().wait().unwrap();
    let other = world.leases.lock("other").at_once().wait().unwrap();
    for renewals in 1..=80 {
        world.hand.advance(12 * S);
        march(&world.hand, S, "both are renewed", || {
            hangs.renewals() >= renewals && other.renewals() >= renewals
        });
        // There is another thread for it when the one that hangs has been busy for a while.
        march(&world.hand, S, "the other one's events are told", || {
            renewed(&heard, Some("other")) == other.renewals()
        });
    }
    gate.crowd(1);
    // In this one's mailbox there is room for 64, and one is being told.
    assert!(of(&heard, "hangs").is_empty());
    assert!(world.leases.stats().events_missed >= hangs.renewals() - 65);
    // The loss has room in any case.
    world.hand.advance(LEASE);
    until("both are lost", || {
        !hangs.is_held() && world.leases.stats().lost == 2
    });
    gate.open();
    until("its events are told", || {
        of(&heard, "hangs").last().is_some_and(is_lost)
    });
    let told = of(&heard, "hangs");
    assert_eq!(told.len(), 66);
    // In their order: those that were left out are the later ones.
    let renewals = told.iter().filter_map(|what| match what {
        What::Renewed { renewals, .. } => Some(*renewals),
        _ => None,
    });
    let renewals: Vec<_> = renewals.collect();
    assert!(renewals.len() > 10);
    assert!(renewals.iter().copied().eq(1..=renewals.len() as u64));
    until("the other loss is told", || {
        of(&heard, "other").last().is_some_and(is_lost)
    });
}

#[test]
fn c159_callbacks_may_hang_for_fifteen_and_renewals_go_on_however_many() {
    for hanging in [15, 40] {
        let (gate, heard) = (Gate::default(), Heard::default());
        let (at_gate, own) = (gate.clone(), Arc::clone(&heard));
        let begun = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&begun);
        let world = threads_of(1, |builder| {
            builder.on_event(move |event| {
                if event.key.name() != "other" {
                    count.fetch_add(1, SeqCst);
                    at_gate.pass();
                }
                own.lock().unwrap().push(event.clone());
            })
        });
        let hangs: Vec<_> = (0..hanging)
            .map(|n| world.leases.lock(&n.to_string()).at_once().wait().unwrap())
            .collect();
        world.hand.advance(12 * S);
        march(&world.hand, S, "they are renewed", || {
            hangs.iter().all(|guard| guard.renewals() >= 1)
        });
        // More threads are there when those that hang have been busy for a while.
        march(&world.hand, S, "they hang", || {
            begun.load(SeqCst) == hanging.min(16)
        });
        let other = world.leases.lock("other").at_once().wait().unwrap();
        for renewals in 2..=5 {
            world.hand.advance(12 * S);
            march(&world.hand, S, "all are renewed", || {
                hangs.iter().all(|guard| guard.renewals() >= renewals)
                    && other.renewals() >= renewals - 1
            });
        }
        assert!(hangs.iter().all(LeaseGuard::is_held) && other.is_held());
        if hanging == 15 {
            march(&world.hand, S, "the other one's are told", || {
                renewed(&heard, Some("other")) >= 4
            });
        } else {
            assert!(heard.lock().unwrap().is_empty());
        }
        gate.open();
        until("all are told", || {
            let renewals = hangs.iter().chain([&other]).map(LeaseGuard::renewals);
            renewed(&heard, None) == renewals.sum::<u64>()
        });
    }
}

#[test]
fn c159_r26_a_callback_that_panics_is_called_for_the_next_event() {
    quiet::hush();
    for seed in 0..5 {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let world = world_of(seed, 1, |builder| {
            builder.on_event(move |_| {
                count.fetch_add(1, SeqCst);
                panic!("wanted");
            })
        });
        let guards: Vec<_> = (0..20)
            .map(|n| world.leases.lock(&n.to_string()).at_once().wait().unwrap())
            .collect();
        world.steps.advance(10 * LEASE);
        assert!(guards.iter().all(LeaseGuard::is_held));
        let renewals: u64 = guards.iter().map(LeaseGuard::renewals).sum();
        assert_eq!(calls.load(SeqCst) as u64, renewals);
        assert_eq!(world.leases.stats().events_missed, 0);
        // A lock that is taken later is renewed as well.
        let next = world.leases.lock("next").at_once().wait().unwrap();
        world.steps.advance(LEASE);
        assert!(next.renewals() >= 2);
    }
}

#[test]
fn a_callback_may_ask_and_release_and_close() {
    let slot = Arc::new(Mutex::new(None::<(tourbillon_leases::Leases, LeaseGuard)>));
    let own = Arc::clone(&slot);
    let world = threads_of(1, |builder| {
        builder.on_event(move |event| {
            let Some((leases, guard)) = own.lock().unwrap().take() else {
                return;
            };
            assert!(matches!(event.what, What::Renewed { .. }));
            assert!(leases.stats().kept >= 1);
            let other = leases.lock("other").at_once().wait().unwrap();
            guard.release().wait().unwrap();
            drop(other);
            leases.close(S);
        })
    });
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    *slot.lock().unwrap() = Some((world.leases.clone(), guard));
    world.hand.advance(12 * S);
    march(&world.hand, S, "it is closed", || {
        world.leases.lock("b").at_once().wait().is_err()
    });
    until("all is given back", || {
        world.store.holder("a").is_none() && world.store.holder("other").is_none()
    });
}

#[test]
fn a_channel_that_is_full_misses_and_counts() {
    let world = world(1);
    // At least one has room.
    let small = world.leases.events(0);
    let large = world.leases.events(1_000);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    world.steps.advance(10 * LEASE);
    let renewals = guard.renewals();
    assert!(renewals >= 25);
    assert_eq!(small.len(), 1);
    assert_eq!(large.len() as u64, renewals);
    assert_eq!(world.leases.stats().events_missed, renewals - 1);
    // The first that had room; and there is room again.
    let first = small.try_recv().unwrap();
    assert!(matches!(first.what, What::Renewed { renewals: 1, .. }));
    world.steps.advance(LEASE / 2);
    assert_eq!(small.len(), 1);
    // Who listens no more misses nothing.
    let missed = world.leases.stats().events_missed;
    drop((small, large));
    world.steps.advance(10 * LEASE);
    assert_eq!(world.leases.stats().events_missed, missed);
    // Who begins to listen hears what comes.
    let late = world.leases.events(10);
    assert!(late.is_empty());
    guard.release().wait().unwrap();
    world.steps.advance(LEASE);
    assert!(late.is_empty());
}

#[test]
fn the_loss_is_a_flag_a_channel_and_a_future() {
    for seed in 0..5 {
        let world = world(seed);
        let guard = world.leases.lock("a").at_once().wait().unwrap();
        let (flag, channel, mut future) = (guard.lost(), guard.lost().channel(), guard.lost());
        let wakes = Wakes::new();
        assert!(!flag.is_lost() && flag.loss().is_none());
        assert_eq!(poll(&mut future, &wakes), Poll::Pending);
        world.store.inject(no_renewals);
        world.steps.advance(LEASE - MARGIN - MS);
        assert!(!flag.is_lost() && channel.is_empty());
        assert_eq!(wakes.count(), 0);
        // The flag at the very moment, without anything that runs.
        world.steps.clock().advance(MS);
        assert!(flag.is_lost());
        assert_eq!(flag.loss(), Some(Loss::Expired));
        world.steps.settle();
        assert_eq!(channel.try_recv(), Ok(Loss::Expired));
        assert!(channel.recv().is_err());
        assert_eq!(wakes.count(), 1);
        assert_eq!(poll(&mut future, &wakes), Poll::Ready(Some(Loss::Expired)));
        // Who comes late learns it, too; and a clone is as good.
        assert_eq!(guard.lost().channel().try_recv(), Ok(Loss::Expired));
        assert_eq!(
            poll(&mut flag.clone(), &wakes),
            Poll::Ready(Some(Loss::Expired))
        );
        assert!(format!("{flag:?}").contains("Expired"));
    }
}

#[test]
fn the_channel_and_the_future_are_told_by_the_clock_though_nobody_looks() {
    let world = world(1);
    let guard = world
        .leases
        .lock("a")
        .lease(10 * S)
        .not_renewed()
        .at_once()
        .wait();
    let guard = guard.unwrap();
    let (channel, mut future) = (guard.lost().channel(), guard.lost());
    let wakes = Wakes::new();
    assert!(poll(&mut future, &wakes).is_pending());
    let left = guard.remaining();
    world.steps.advance(left - MS);
    assert!(channel.is_empty() && wakes.count() == 0);
    // With the next tick.
    world.steps.advance(2 * MS);
    assert_eq!((channel.len(), wakes.count()), (1, 1));
}

#[test]
fn what_is_given_up_is_never_lost() {
    let world = world(1);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    let (flag, channel, mut future) = (guard.lost(), guard.lost().channel(), guard.lost());
    let wakes = Wakes::new();
    assert!(poll(&mut future, &wakes).is_pending());
    guard.release().wait().unwrap();
    assert!(channel.recv().is_err());
    assert_eq!(wakes.count(), 1);
    assert_eq!(poll(&mut future, &wakes), Poll::Ready(None));
    world.steps.advance(3 * LEASE);
    assert!(!flag.is_lost());
    assert!(flag.channel().recv().is_err());
}

#[test]
fn a_waker_that_is_replaced_or_gone_is_not_woken() {
    let world = world(1);
    let guard = world
        .leases
        .lock("a")
        .lease(10 * S)
        .not_renewed()
        .at_once()
        .wait();
    let guard = guard.unwrap();
    let (old, new, gone) = (Wakes::new(), Wakes::new(), Wakes::new());
    let (mut future, mut dropped) = (guard.lost(), guard.lost());
    assert!(poll(&mut future, &old).is_pending());
    assert!(poll(&mut future, &new).is_pending());
    assert!(poll(&mut dropped, &gone).is_pending());
    drop(dropped);
    assert_eq!((Arc::strong_count(&old), Arc::strong_count(&gone)), (1, 1));
    world.steps.advance(10 * S);
    assert_eq!((old.count(), new.count(), gone.count()), (0, 1, 0));
}

#[test]
fn what_the_guard_says_fits_together() {
    let world = world_of(1, 1, |builder| builder.instance("worker-3"));
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    let id = guard.id().clone();
    assert_eq!((guard.name(), id.name()), ("a", "a"));
    assert_eq!(guard.token(), id.token());
    assert_eq!(
        world.store.holder("a"),
        Some((id.owner().to_owned(), id.token()))
    );
    assert!(id.owner().starts_with("worker-3-"), "{}", id.owner());
    assert_eq!(guard.remaining(), LEASE - MARGIN);
    for part in ["LeaseGuard", "\"a\"", id.owner(), "remaining: 29.698s"] {
        assert!(format!("{guard:?}").contains(part), "{guard:?}");
    }
    guard.release().wait().unwrap();
    // The next holding of the name is another one.
    let next = world.leases.lock("a").at_once().wait().unwrap();
    assert_ne!(*next.id(), id);
    assert_ne!(next.id().owner(), id.owner());
}
