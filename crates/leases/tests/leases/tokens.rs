//! Tokens: they grow, the resource refuses stale ones, and they keep no memory.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

use kit::quiet;
use tourbillon::{Clock, ManualClock};
use tourbillon_leases::{
    Acquired, Claim, Fence, Leases, MemoryStore, Outcome, Released, Renewal, Secret,
};

use crate::calls::Calls;
use crate::worlds::{LEASE, MS, S, no_renewals, world};

#[test]
fn c168_tokens_grow_from_holder_to_holder_through_restarts() {
    let world = world(1);
    let builder = Leases::builder(world.store.clone()).clock(world.clock.clone());
    let (other, _steps) = builder.build_stepped(2).unwrap();
    let mut last = 0;
    for round in 0..1_000 {
        let leases = if round % 8 == 0 {
            &other
        } else {
            &world.leases
        };
        let guard = leases.lock("a").at_once().wait().unwrap();
        assert!(guard.token() > last, "round {round}");
        last = guard.token();
        assert_eq!(world.store.holder("a").unwrap().1, last);
        match round % 4 {
            0 => guard.release().wait().unwrap(),
            // It runs out.
            1 => {
                world.store.inject(no_renewals);
                world.steps.advance(LEASE);
                world.store.heal();
                assert!(!guard.is_held());
            }
            // The server restarts without what it knew.
            2 => world.store.forget(),
            _ => {
                // Renewals leave the token as it is.
                world.steps.advance(LEASE / 2);
                assert_eq!(guard.token(), last);
                drop(guard);
                world.steps.settle();
            }
        }
    }
}

#[test]
fn c168_tokens_of_threads_that_take_turns() {
    let leases = Leases::new(MemoryStore::new()).unwrap();
    let last = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let guard = leases.lock("a").wait().unwrap();
                    let token = guard.token();
                    assert!(last.swap(token, SeqCst) < token);
                    guard.release().wait().unwrap();
                }
            });
        }
    });
}

#[test]
fn r23_a_stale_token_is_refused_at_the_resource() {
    let fence = Fence::new();
    let world = world(1);
    let paused = world.leases.lock("a").at_once().wait().unwrap();
    fence.admit(paused.token()).unwrap();
    fence.admit(paused.token()).unwrap();
    world.steps.jump_to(world.steps.now() + LEASE);
    let next = world.leases.lock("a").at_once().wait().unwrap();
    // Whoever comes first: the old one is admitted until the next one has been.
    fence.admit(paused.token()).unwrap();
    fence.admit(next.token()).unwrap();
    let stale = fence.admit(paused.token()).unwrap_err();
    assert_eq!((stale.token, stale.seen), (paused.token(), next.token()));
    let (error, text) = (&stale as &dyn Error, stale.to_string());
    assert!(error.source().is_none());
    assert!(
        text.contains("token 1 is stale") && text.contains("2 has been seen"),
        "{text}"
    );
    // Another name has another fence.
    Fence::default().admit(0).unwrap();
}

#[test]
fn r23_a_fence_admits_none_below_the_greatest_whoever_comes_at_once() {
    let fence = Fence::new();
    let greatest = AtomicU64::new(0);
    thread::scope(|scope| {
        for number in 0..4 {
            let (fence, greatest) = (&fence, &greatest);
            scope.spawn(move || {
                for token in (0..10_000).map(|n| n * 4 + number) {
                    let before = greatest.load(SeqCst);
                    match fence.admit(token) {
                        // What had been admitted before this began is no greater.
                        Ok(()) => {
                            assert!(token >= before);
                            greatest.fetch_max(token, SeqCst);
                        }
                        Err(stale) => assert!(stale.seen > token),
                    }
                }
            });
        }
    });
    assert_eq!(greatest.into_inner(), 39_999);
}

fn names(store: &MemoryStore) -> usize {
    let text = format!("{store:?}");
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn r23_names_that_are_held_no_more_keep_no_memory() {
    let world = world(1);
    for n in 0..10_000 {
        let guard = world.leases.lock(&n.to_string()).at_once().wait().unwrap();
        assert!(names(&world.store) <= 1);
        guard.release().wait().unwrap();
    }
    assert_eq!(names(&world.store), 0);
    // Nor those of holders that died: what has run out is cleaned up with those that come.
    let hand = ManualClock::new();
    let store = MemoryStore::with_clock(Clock::manual(&hand));
    let mut token = 0;
    for n in 0..100_000 {
        let (name, owner) = (format!("name {n}"), format!("owner {n}"));
        let claim = Claim::new(&name, &owner, Secret::new(&owner), S);
        match store.acquire(&claim, S) {
            Ok(Acquired::Granted { token: next, .. }) if next > token => token = next,
            other => panic!("{other:?}"),
        }
        hand.advance(MS);
        // A thousand of them are alive.
        assert!(names(&store) <= 2_100, "{}", names(&store));
    }
}

#[test]
fn the_embedded_store_keeps_what_the_trait_asks_for() {
    let hand = ManualClock::new();
    let store = MemoryStore::with_clock(Clock::manual(&hand));
    let acquire = |name, owner| {
        store
            .acquire(&Claim::new(name, owner, Secret::new(owner), 10 * S), S)
            .unwrap()
    };
    let renew = |each: &[(&str, &str)]| {
        let batch: Vec<_> = each
            .iter()
            .map(|(name, owner)| Renewal::new(name, Secret::new(owner), 10 * S))
            .collect();
        store.renew(store.destination("a"), &batch, S).unwrap()
    };
    assert_eq!(acquire("a", "one"), Acquired::granted(1));
    hand.advance(4 * S);
    assert_eq!(acquire("a", "two"), Acquired::Held { remaining: 6 * S });
    // Once more by the owner that has it: granted, for a full lease, by a greater token.
    assert_eq!(acquire("a", "one"), Acquired::granted(2));
    assert_eq!(acquire("a", "two"), Acquired::Held { remaining: 10 * S });
    assert_eq!(acquire("b", "two"), Acquired::granted(3));
    // In the order of the batch, and nothing but the owner's.
    let outcomes = renew(&[("b", "one"), ("a", "one"), ("c", "one"), ("b", "two")]);
    use Outcome::{NotHeld, Renewed};
    assert_eq!(outcomes, [NotHeld, Renewed, NotHeld, Renewed]);
    assert!(renew(&[]).is_empty());
    assert_eq!(
        store.release("a", Secret::new("two"), S),
        Ok(Released::NotHeld)
    );
    assert_eq!(
        store.release("c", Secret::new("two"), S),
        Ok(Released::NotHeld)
    );
    // To the end of the lease, and no further.
    hand.advance(10 * S - MS);
    assert_eq!(renew(&[("b", "two")]), [Renewed]);
    hand.advance(MS);
    assert_eq!(store.holder("a"), None);
    assert_eq!(renew(&[("a", "one")]), [NotHeld]);
    assert_eq!(
        store.release("a", Secret::new("one"), S),
        Ok(Released::NotHeld)
    );
    assert_eq!(
        store.release("b", Secret::new("two"), S),
        Ok(Released::Released)
    );
    assert_eq!(acquire("b", "three"), Acquired::granted(4));
    assert_eq!(store.holder("b"), Some(("three".to_owned(), 4)));
    assert_eq!(store.longest_lease(), std::time::Duration::MAX);
    // Clones are one store.
    store.clone().forget();
    assert_eq!(store.holder("b"), None);
}

#[test]
fn destinations_are_always_the_same_and_all_are_used() {
    let store = || MemoryStore::with_destinations(Clock::manual(&ManualClock::new()), 7);
    let (one, other) = (store(), store());
    let mut seen = std::collections::BTreeSet::new();
    for n in 0..200 {
        let name = n.to_string();
        assert_eq!(one.destination(&name), other.destination(&name));
        seen.insert(one.destination(&name).get());
    }
    assert_eq!(seen, (0..7).collect());
    let single = MemoryStore::default();
    assert_eq!(single.destination("a"), single.destination("b"));
    quiet::hush();
    let none = quiet::panics(|| MemoryStore::with_destinations(Clock::system(), 0));
    assert!(none.contains("has to have a destination"));
}

#[test]
fn a_fence_goes_on_where_the_one_before_it_ended() {
    let fence = tourbillon_leases::Fence::starting_at(7);
    assert_eq!(fence.admit(6).map_err(|stale| stale.seen), Err(7));
    assert_eq!(fence.admit(7), Ok(()));
}

#[test]
fn a_store_that_is_shared_or_chosen_at_run_time_is_one() {
    let memory = MemoryStore::with_destinations(Clock::system(), 7);
    let shared: std::sync::Arc<dyn tourbillon_leases::LeaseStore> =
        std::sync::Arc::new(memory.clone());
    let boxed: Box<dyn tourbillon_leases::LeaseStore> = Box::new(memory.clone());
    for store in [&shared as &dyn tourbillon_leases::LeaseStore, &boxed] {
        for n in 0..20 {
            let name = n.to_string();
            assert_eq!(store.destination(&name), memory.destination(&name));
        }
        assert_eq!(store.longest_lease(), memory.longest_lease());
        assert!(store.watch("a", std::task::Waker::noop()).is_some());
    }
    let one = tourbillon_leases::Leases::new(shared).unwrap();
    let other = tourbillon_leases::Leases::new(boxed).unwrap();
    let guard = one.lock("a").at_once().wait().unwrap();
    assert!(other.lock("a").at_once().wait().is_err());
    guard.release().wait().unwrap();
    assert!(other.lock("a").at_once().wait().is_ok());
}
