use std::panic::{AssertUnwindSafe, catch_unwind};

use super::super::level;
use super::super::slab::NO_ENTRY;
use super::*;

fn tick(n: u64) -> Tick {
    Tick::new(n)
}

fn drain<T>(wheel: &mut Wheel<T>, now: u64) -> Vec<T> {
    let mut values = Vec::new();
    let progress = wheel.advance(tick(now), usize::MAX, |expired| values.push(expired.value));
    assert_eq!((progress.expired, progress.more), (values.len(), false));
    values
}

#[test]
fn c112_a_panic_in_the_callback_loses_only_its_own_value() {
    let mut wheel = Wheel::new();
    let keys: Vec<Key> = (1..=5).map(|n| wheel.insert(tick(10), n)).collect();
    wheel.insert(tick(11), 6);
    let mut seen = Vec::new();
    let result = catch_unwind(AssertUnwindSafe(|| {
        wheel.advance(tick(20), usize::MAX, |expired| {
            assert_ne!(expired.value, 3, "the third one throws");
            seen.push(expired.value);
        })
    }));
    assert!(result.is_err());
    assert_eq!(seen, [1, 2]);
    assert_eq!(wheel.now(), tick(10), "not past what has not expired");
    assert_eq!(wheel.next_wake(), Some(tick(10)));
    assert_eq!(wheel.len(), 3);
    assert_eq!(
        keys.iter().filter(|&&key| wheel.get(key).is_some()).count(),
        2
    );
    assert_eq!(wheel.remove(keys[3]), Some(4));
    assert_eq!(drain(&mut wheel, 20), [5, 6], "in order");
}

#[test]
fn c112_a_panic_at_the_last_value_of_a_slot() {
    let mut wheel = Wheel::new();
    for round in 0..3 {
        wheel.insert(tick(round), ());
        let result = catch_unwind(AssertUnwindSafe(|| {
            wheel.advance(tick(round), 1, |_| panic!("at the last one"))
        }));
        assert!(result.is_err());
        assert!(wheel.is_empty());
        assert_eq!(wheel.next_wake(), None);
    }
}

#[test]
fn c137_a_slot_grows() {
    // As many as a slot keeps room for, and as a chunk of the slab holds, and one more.
    for count in [level::KEPT_CAPACITY, 4_096, 10_000] {
        for due in [3, 100, 1 << 40] {
            let mut wheel = Wheel::new();
            for n in 0..=count {
                wheel.insert(tick(due), n);
            }
            assert_eq!(wheel.len(), count + 1);
            assert_eq!(drain(&mut wheel, due - 1), []);
            let mut values = drain(&mut wheel, due);
            values.sort_unstable();
            assert!(values.into_iter().eq(0..=count));
        }
    }
}

#[test]
fn keys_are_stale_when_their_value_is_gone() {
    let mut wheel = Wheel::new();
    let removed = wheel.insert(tick(5), 'a');
    assert_eq!(wheel.remove(removed), Some('a'));
    let expired = wheel.insert(tick(5), 'b');
    assert_eq!(drain(&mut wheel, 5), ['b']);
    let live = wheel.insert(tick(9), 'c');
    for stale in [removed, expired] {
        assert_ne!(stale, live);
        assert_eq!(wheel.get(stale), None);
        assert_eq!(wheel.get_mut(stale), None);
        assert_eq!(wheel.due(stale), None);
        assert_eq!(wheel.reschedule(stale, tick(1)), None);
        assert_eq!(wheel.remove(stale), None);
    }
    assert_eq!(wheel.get_mut(live), Some(&mut 'c'));
    assert_eq!(Wheel::<char>::new().get(live), None, "of another wheel");
    assert_eq!(format!("{live:?}"), "Key(0#2)");
}

#[test]
fn a_place_whose_generations_are_used_up_is_retired() {
    let mut wheel = Wheel::new();
    let first = wheel.insert(tick(1), 'a');
    wheel.remove(first);
    wheel.store.nodes[0] = Node::Free {
        generation: u32::MAX,
        next: NO_ENTRY,
    };
    let last = wheel.insert(tick(1), 'b');
    assert_eq!(
        last,
        Key {
            id: 0,
            generation: u32::MAX
        }
    );
    assert_eq!(wheel.remove(last), Some('b'));
    let next = wheel.insert(tick(1), 'c');
    assert_eq!(
        next,
        Key {
            id: 1,
            generation: 0
        }
    );
    assert_eq!((wheel.get(first), wheel.get(last)), (None, None));
    assert!(wheel.iter().eq([(next, tick(1), &'c')]));
}

#[test]
fn a_full_wheel_hands_the_value_back() {
    let mut wheel = Wheel::new();
    wheel.store.nodes = Slab::with_capacity_limit(2);
    let key = wheel.insert(tick(1), 'a');
    wheel.insert(tick(1), 'b');
    let full = wheel.try_insert(tick(1), 'c').expect_err("it holds two");
    assert_eq!(
        format!("{full:?}: {full}").split(':').next(),
        Some("FullError(..)")
    );
    assert_eq!(full.into_value(), 'c');
    assert_eq!(wheel.len(), 2);
    wheel.remove(key);
    assert!(wheel.try_insert(tick(1), 'd').is_ok());
}

#[test]
fn debug_needs_nothing_of_the_values() {
    struct Opaque;
    let mut wheel = Wheel::default();
    wheel.insert(tick(9), Opaque);
    let shown = format!("{wheel:?}");
    assert_eq!(
        shown,
        "Wheel { now: Tick(0), len: 1, next_wake: Some(Tick(9)), .. }"
    );
}

#[test]
fn a_budget_of_zero_only_says_whether_there_is_work() {
    let mut wheel = Wheel::new();
    wheel.insert(tick(5), ());
    wheel.insert(tick(500), ());
    assert!(!wheel.advance(tick(4), 0, drop).more);
    assert!(wheel.advance(tick(5), 0, drop).more);
    assert_eq!(drain(&mut wheel, 5).len(), 1);
    assert!(wheel.advance(tick(499), 0, drop).more, "to cascade");
    assert_eq!(wheel.len(), 1);
}

#[test]
fn entries_are_small() {
    assert_eq!(size_of::<Node<u64>>(), 32);
}
