//! `ExpiryMap::entry`: each option with each finishing call, and how they can be misused.

use std::future::ready;
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use kit::map::{IDLE, Map, S, at, builder, collecting, fill, keys, text};
use kit::quiet::{WANTED, hush, panics};
use kit::wakes::{Wakes, poll};
use tourbillon::{
    Expiry, ExpiryMap, Found, GroupFull, InsertRefusal, Reason, Shutdown, Time, Touch, Updated,
};

fn never<T>() -> T {
    unreachable!("there is an entry")
}

#[test]
fn nothing_happens_before_the_finishing_call() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, [1]);
    stepped.advance(S);
    drop(map.entry(1).touch());
    drop(map.entry(1).update(|_| never::<()>()));
    drop(map.entry(1).touch_with(|_| never::<()>()).at(at(9)));
    drop(map.entry(2).expiry(Expiry::NEVER).at(Time::MAX));
    drop(map.entry(2).or_compute(never::<Result<String, ()>>));
    drop(
        map.entry(2)
            .or_compute(never::<Result<String, ()>>)
            .within(S),
    );
    assert_eq!((map.deadline(&1), map.len()), (Some(at(60)), 1));
    // An entry that is kept is as good as a new one, also under a lock that others take.
    let kept = map.entry(2);
    assert!(format!("{kept:?}").starts_with("Entry"));
    assert_eq!(map.with(&1, |_| drop(map.entry(1))), Some(()));
    stepped.advance(S);
    assert_eq!(kept.insert(text(2)).unwrap().deadline, at(62));
}

#[test]
fn each_call_that_looks_touches_if_it_is_asked_to_and_only_then() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, 0..11);
    stepped.advance(S);
    let found = [
        map.entry(0).or_insert(never_used()).unwrap(),
        map.entry(1).or_insert_with(never).unwrap(),
        map.entry(2)
            .or_try_insert_with(never::<Result<_, ()>>)
            .unwrap(),
        map.entry(3)
            .or_compute(never::<Result<_, ()>>)
            .wait()
            .unwrap(),
        map.entry(4).touch().or_insert(never_used()).unwrap(),
        map.entry(5).touch().or_insert_with(never).unwrap(),
        map.entry(6)
            .touch()
            .or_try_insert_with(never::<Result<_, ()>>)
            .unwrap(),
        map.entry(7)
            .touch()
            .or_compute(never::<Result<_, ()>>)
            .wait()
            .unwrap(),
    ];
    for (key, found) in (0..).zip(found) {
        assert!(!found.is_inserted());
        assert_eq!(found, Found::Present(text(key)));
        let deadline = if key < 4 { at(60) } else { at(61) };
        assert_eq!(map.deadline(&key), Some(deadline), "key {key}");
    }
    let length = |value: &mut String| {
        value.push('!');
        value.len()
    };
    let updated = map.entry(8).update(length).or_insert_with(never);
    assert_eq!(updated, Ok(Updated::Present(8)));
    let touched = map
        .entry(9)
        .touch_with(length)
        .or_try_insert_with(never::<Result<_, ()>>);
    let touch = Touch::Touched { deadline: at(61) };
    assert_eq!(touched, Ok(Updated::Present((touch, 8))));
    assert_eq!(map.deadline(&8), Some(at(60)));
    assert_eq!(map.get(&8), Some(text(8) + "!"));
    // An insertion is none of both.
    let inserted = map
        .entry(20)
        .update(length)
        .or_insert("new".to_owned())
        .unwrap();
    assert!(inserted.is_inserted());
    assert_eq!(map.get(&20).as_deref(), Some("new"), "it was not changed");
    // A task, whose call was made earlier.
    let mut call = Box::pin(
        map.entry(10)
            .touch()
            .or_compute(|| ready(never::<Result<_, ()>>())),
    );
    stepped.advance(S);
    let found = poll(&mut call, &Wakes::new());
    assert_eq!(found, Poll::Ready(Ok(Found::Present(text(10)))));
    assert_eq!(map.deadline(&10), Some(at(62)));
}

fn never_used() -> String {
    "not needed".to_owned()
}

#[test]
fn the_given_time_counts_for_touches_and_for_insertions() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, [1, 2]);
    stepped.advance(10 * S);
    // In the past: an insertion counts from then, and a touch moves nothing back.
    let inserted = map.entry(3).at(at(4)).or_insert_with(never_used).unwrap();
    assert!(matches!(inserted, Found::Inserted { deadline, .. } if deadline == at(64)));
    map.entry(1)
        .touch()
        .at(at(8))
        .or_insert_with(never)
        .unwrap();
    assert_eq!(map.deadline(&1), Some(at(68)));
    let touched = map
        .entry(1)
        .at(at(7))
        .touch_with(|_| ())
        .or_insert_with(never);
    let touch = Touch::Unchanged { deadline: at(68) };
    assert_eq!(touched, Ok(Updated::Present((touch, ()))));
    // In the future.
    map.entry(2)
        .touch()
        .at(at(100))
        .or_insert_with(never)
        .unwrap();
    assert_eq!(map.deadline(&2), Some(at(160)));
    map.entry(4)
        .at(at(100))
        .or_compute(|| Ok::<_, ()>(text(4)))
        .wait()
        .unwrap();
    assert_eq!(map.deadline(&4), Some(at(160)));
    // The last moment of all makes entries that never expire.
    map.entry(5).at(Time::MAX).insert(text(5)).unwrap();
    map.entry(5)
        .at(Time::MAX)
        .touch()
        .or_insert_with(never)
        .unwrap();
    assert_eq!(map.deadline(&5), Some(Time::MAX));
    stepped.advance(IDLE);
    assert!(map.contains(&5));
}

/// A time ahead of the clock does not end a lifetime, and an old one does not prolong it.
#[test]
fn the_clock_decides_whether_a_lifetime_is_over_whatever_time_is_given() {
    let (stepped, _) = collecting(builder().time_to_live(10 * S), 1);
    let map = stepped.map();
    fill(&map, [1]);
    let refused = map
        .entry(1)
        .at(at(1_000))
        .insert_if_absent(text(2))
        .unwrap_err();
    assert_eq!(refused.refusal, InsertRefusal::Occupied);
    assert_eq!(refused.value, text(2));
    stepped.clock().advance(10 * S);
    let inserted = map.entry(1).at(at(1)).insert_if_absent(text(3)).unwrap();
    assert_eq!(inserted.replaced, Some(text(1)));
}

#[test]
fn a_given_time_keeps_the_order_of_a_group() {
    let stepped = ExpiryMap::<u32, u32>::builder()
        .time_to_idle(IDLE)
        .groups::<String>()
        .max_per_group(2)
        .when_group_full(GroupFull::EvictLeastRecentlyTouched)
        .build_stepped(1, |_, _| ())
        .unwrap();
    let map = stepped.map();
    stepped.advance(10 * S);
    for (key, now) in [(1, at(10)), (2, at(3))] {
        map.entry(key).group("a").at(now).insert(0).unwrap();
    }
    stepped.advance(S);
    for (key, evicted) in [(3, 2), (4, 1)] {
        map.entry(key).at(Time::MAX).group("a").insert(0).unwrap();
        assert!(!map.contains(&evicted), "{key} in the place of {evicted}");
        assert_eq!(map.group_len("a"), 2);
    }
    // The keys 3 and 4 were not touched after the present, whatever time was given.
    stepped.advance(S);
    map.entry(5).group("a").insert(0).unwrap();
    assert_eq!((map.contains(&3), map.contains(&4)), (false, true));
}

/// The last moment of all is no mark of an eviction.
#[test]
fn a_touch_at_the_last_moment_evicts_nothing() {
    let (tell, told) = channel();
    let stepped = ExpiryMap::<u32, u32>::builder()
        .groups::<String>()
        .on_removal(move |_, _, reason| tell.send(reason).unwrap())
        .build_stepped(1, |_, _| ())
        .unwrap();
    let map = stepped.map();
    let entry = || map.entry(1).group("a");
    entry().insert(1).unwrap();
    entry().touch().at(Time::MAX).or_insert_with(never).unwrap();
    entry().insert(2).unwrap();
    assert_eq!(told.try_recv(), Ok(Reason::Replaced));
}

#[test]
fn a_zero_expiry_ends_at_once_and_a_huge_one_never() {
    let (stepped, gone) = collecting(builder(), 1);
    let map = stepped.map();
    let zero = Expiry::NEVER.time_to_live(Duration::ZERO);
    let huge = Expiry::NEVER.time_to_live(Duration::MAX);
    let inserted = map
        .entry(1)
        .expiry(zero)
        .or_insert_with(|| text(1))
        .unwrap();
    assert!(matches!(inserted, Found::Inserted { deadline, .. } if deadline == at(0)));
    // It is over already, so the next call does not find it.
    assert!(
        map.entry(1)
            .expiry(zero)
            .or_insert_with(|| text(2))
            .unwrap()
            .is_inserted()
    );
    map.entry(2).expiry(huge).insert(text(2)).unwrap();
    assert_eq!(map.deadline(&2), Some(Time::MAX));
    // The expiry is for insertions: an entry that is there keeps its own.
    map.entry(2)
        .expiry(zero)
        .touch()
        .or_insert_with(never)
        .unwrap();
    stepped.advance(1_000 * IDLE);
    assert_eq!((keys(&gone), map.len()), (vec![1], 1));
}

#[test]
fn a_call_from_a_closure_without_a_lock_for_the_same_key_is_one_of_its_own() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    let inner = || map.entry(1).or_insert_with(|| "inner".to_owned()).unwrap();
    let outer = map.entry(1).or_insert_with(|| {
        assert!(inner().is_inserted());
        "outer".to_owned()
    });
    assert_eq!(outer, Ok(Found::Present("inner".to_owned())));
    map.remove(&1);
    let outer = map
        .entry(1)
        .touch_with(|value| value.push('!'))
        .or_insert_with(|| {
            assert!(inner().is_inserted());
            "outer".to_owned()
        });
    assert!(!outer.unwrap().is_inserted());
    assert_eq!(map.get(&1).as_deref(), Some("inner!"));
}

#[test]
fn a_call_from_a_closure_under_a_lock_panics_and_leaves_the_map_whole() {
    hush();
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, [1]);
    let inner = |map: &Map| drop(map.entry(1).or_insert_with(never));
    let said = panics(|| map.entry(1).update(|_| inner(&map)).or_insert_with(never));
    assert!(said.contains("called the scheduler"), "{said}");
    let said = panics(|| {
        map.entry(1)
            .touch_with(|_| inner(&map))
            .or_insert_with(never)
    });
    assert!(said.contains("called the scheduler"), "{said}");
    stepped.advance(S);
    let half = |value: &mut String| {
        value.push('?');
        panic!("{WANTED}")
    };
    let touch = || map.entry(1).touch_with::<_, ()>(half).or_insert_with(never);
    assert!(panics(touch).contains(WANTED));
    assert_eq!(map.get(&1), Some(text(1) + "?"));
    assert_eq!(map.deadline(&1), Some(at(60)), "it was not touched");
    let make = || map.entry(2).or_insert_with(|| panic!("{WANTED}"));
    assert!(panics(make).contains(WANTED));
    assert_eq!(map.len(), 1);
}

#[test]
fn a_full_map_a_full_group_and_a_closed_map_refuse_and_give_everything_back() {
    let stepped = ExpiryMap::<u32, String>::builder()
        .max_pending(2)
        .groups::<u8>()
        .max_per_group(1)
        .build_stepped(1, |_, _| ())
        .unwrap();
    let map = stepped.map();
    map.entry(1).group(&1).insert(text(1)).unwrap();
    let refusal = |group: Option<u8>, key| {
        let entry = || map.entry(key);
        let value = || text(9);
        let errors = match &group {
            Some(group) => [
                entry().group(group).insert_if_absent(value()).unwrap_err(),
                entry().group(group).or_insert(value()).unwrap_err(),
                entry()
                    .update(|_| ())
                    .group(group)
                    .or_insert(value())
                    .unwrap_err(),
                entry()
                    .touch_with(|_| ())
                    .group(group)
                    .or_insert_with(value)
                    .unwrap_err(),
            ],
            None => [
                entry().no_group().insert_if_absent(value()).unwrap_err(),
                entry().no_group().or_insert(value()).unwrap_err(),
                entry()
                    .no_group()
                    .update(|_| ())
                    .or_insert(value())
                    .unwrap_err(),
                entry()
                    .no_group()
                    .touch_with(|_| ())
                    .or_insert_with(value)
                    .unwrap_err(),
            ],
        };
        let refusals = errors.map(|error| {
            assert_eq!((error.key, error.value), (key, text(9)));
            error.refusal
        });
        assert!(
            refusals.iter().all(|one| *one == refusals[0]),
            "{refusals:?}"
        );
        refusals[0]
    };
    assert_eq!(refusal(Some(1), 2), InsertRefusal::GroupFull);
    map.entry(2).no_group().insert(text(2)).unwrap();
    assert_eq!(refusal(None, 3), InsertRefusal::Full);
    assert_eq!(refusal(Some(2), 3), InsertRefusal::Full);
    // What is there is found in full maps and groups.
    assert!(
        !map.entry(2)
            .group(&1)
            .or_insert_with(never)
            .unwrap()
            .is_inserted()
    );
    drop(stepped.shutdown(Shutdown::HandBack));
    assert_eq!(refusal(None, 3), InsertRefusal::Closed);
    assert_eq!(refusal(Some(1), 3), InsertRefusal::Closed);
}

#[test]
fn of_two_insertions_at_one_time_one_is_found_by_the_other() {
    let map = builder().build(|_, _| ()).unwrap();
    for key in 0..500 {
        let start = Barrier::new(2);
        let call = |own: &str| {
            start.wait();
            map.entry(key).or_insert(own.to_owned()).unwrap()
        };
        let (one, other) = thread::scope(|scope| {
            let other = scope.spawn(|| call("other"));
            (call("one"), other.join().unwrap())
        });
        assert_ne!(one.is_inserted(), other.is_inserted(), "key {key}");
        assert_eq!(one.into_value(), other.into_value());
    }
}
