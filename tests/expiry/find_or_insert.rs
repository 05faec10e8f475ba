//! `ExpiryMap`: the calls that find the entry of a key, or insert one.

use std::error::Error;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kit::map::{IDLE, S, at, builder, collecting, fill, keys, text};
use tourbillon::test_util::SteppedMap;
use tourbillon::{
    EntryError, ExpiryMap, ExpiryMapBuilder, Found, GroupedBy, InsertRefusal, Shutdown, Touch,
    Updated,
};

fn exclaim(value: &mut String) -> String {
    value.push('!');
    value.clone()
}

type Grouped = SteppedMap<u32, String, GroupedBy<u8>>;

/// A map with groups that must deliver nothing.
fn grouped(builder: ExpiryMapBuilder<u32, String>, most: usize) -> Grouped {
    let builder = builder.groups::<u8>().max_per_group(most);
    let stepped = builder.build_stepped(1, |_, expired| panic!("{expired:?}"));
    stepped.unwrap()
}

fn never<T>() -> T {
    unreachable!("there is an entry")
}

#[test]
fn a_device_that_comes_back_is_touched_or_inserted() {
    let (stepped, gone) = collecting(builder(), 1);
    let map = stepped.map();
    let call = |make: fn() -> String| {
        map.entry(1)
            .touch_with(exclaim)
            .or_insert_with(make)
            .unwrap()
    };
    let inserted = call(|| "a".into());
    let (deadline, replaced) = (at(60), None);
    assert_eq!(inserted, Updated::Inserted { deadline, replaced });
    assert!(inserted.is_inserted());
    assert_eq!(map.get(&1).as_deref(), Some("a"), "it was not changed");
    stepped.advance(S);
    let deadline = at(61);
    let answer = call(never);
    let touch = Touch::Touched { deadline };
    let result = "a!".to_owned();
    assert_eq!(answer, Updated::Present((touch, result)));
    let touch = Touch::Unchanged { deadline };
    let result = "a!!".to_owned();
    assert_eq!(call(never), Updated::Present((touch, result)));
    stepped.advance(IDLE);
    assert_eq!(keys(&gone), [1]);
    assert!(call(|| "b".into()).is_inserted());
}

#[test]
fn an_entry_whose_lifetime_is_over_is_replaced_by_what_is_made() {
    let stepped = grouped(builder().time_to_live(S), 9);
    let map = stepped.map();
    map.entry(1).group(&7).insert("a".into()).unwrap();
    map.insert(2, "b".into()).unwrap();
    stepped.clock().set(at(1));
    let answer = map
        .entry(1)
        .touch_with(exclaim)
        .no_group()
        .or_insert_with(|| "c".into());
    let replaced = Some("a".to_owned());
    let deadline = at(2);
    assert_eq!(answer, Ok(Updated::Inserted { deadline, replaced }));
    assert_eq!(map.group_of(&1), None);
    let answer = map.entry(2).group(&7).insert_if_absent("d".into()).unwrap();
    assert_eq!(answer.replaced, Some("b".into()));
    assert_eq!(map.group_of(&2), Some(7));
    stepped.settle();
    assert_eq!(map.len(), 2);
}

#[test]
fn a_make_that_fails_inserts_nothing_and_its_error_comes_back() {
    let (stepped, _) = collecting(builder().max_pending(2), 1);
    let map = stepped.map();
    let parse = |key, text: &str| {
        map.entry(key)
            .or_try_insert_with(|| text.parse::<u8>().map(|n| n.to_string()))
    };
    let error = parse(1, "x").unwrap_err();
    assert!(matches!(error, EntryError::Make(_)));
    assert_eq!(
        error.source().unwrap().to_string(),
        "invalid digit found in string"
    );
    assert!(map.is_empty());
    let found = parse(1, "5").unwrap();
    let (value, replaced) = ("5".to_owned(), None);
    let deadline = at(60);
    assert_eq!(
        found,
        Found::Inserted {
            value,
            deadline,
            replaced
        }
    );
    assert_eq!(parse(1, "x"), Ok(Found::Present("5".into())), "not asked");
    fill(&map, [2]);
    let error = parse(3, "6").unwrap_err();
    let source = error.source().unwrap().to_string();
    assert!(source.contains("max_pending"), "{source}");
    assert!(error.to_string().contains("could not be inserted"));
    let EntryError::Insert(error) = error else {
        panic!("{error:?}");
    };
    assert_eq!((error.key, error.value.as_str()), (3, "6"));
    assert_eq!(error.refusal, InsertRefusal::Full);
}

/// The key appears while the value is made: by another call, which is the one that inserts.
#[test]
fn an_entry_that_came_meanwhile_is_found_and_the_own_value_dropped() {
    let stepped = grouped(builder(), 9);
    let map = stepped.map();
    let make = |key| {
        let map = map.clone();
        move || {
            map.entry(key).group(&1).insert(text(key)).unwrap();
            "too late".to_owned()
        }
    };
    let answer = map.entry(1).no_group().or_insert_with(make(1)).unwrap();
    assert_eq!(answer, Found::Present(text(1)));
    let make_2 = make(2);
    let answer = map
        .entry(2)
        .group(&9)
        .or_try_insert_with(|| Ok::<_, ()>(make_2()));
    assert_eq!(answer, Ok(Found::Present(text(2))));
    for (key, answer) in [
        (
            3,
            map.entry(3)
                .touch_with(exclaim)
                .no_group()
                .or_insert_with(make(3)),
        ),
        (
            4,
            map.entry(4)
                .group(&9)
                .touch_with(exclaim)
                .or_insert_with(make(4)),
        ),
    ] {
        let deadline = at(60);
        let touch = Touch::Unchanged { deadline };
        let result = text(key) + "!";
        assert_eq!(answer, Ok(Updated::Present((touch, result))));
    }
    assert_eq!((map.group_len(&1), map.group_len(&9)), (4, 0));
    let stats = map.stats();
    assert_eq!((stats.inserted, stats.replaced), (4, 0));
}

#[test]
fn a_key_that_is_there_is_told_before_a_group_that_is_full() {
    let stepped = grouped(builder(), 1);
    let map = stepped.map();
    map.entry(1).group(&1).insert_if_absent(text(1)).unwrap();
    map.insert(2, text(2)).unwrap();
    let refusal = |group, key| {
        let error = map
            .entry(key)
            .group(&group)
            .insert_if_absent("x".into())
            .unwrap_err();
        assert_eq!((error.key, error.value.as_str()), (key, "x"));
        error.refusal
    };
    assert_eq!(refusal(1, 1), InsertRefusal::Occupied);
    assert_eq!(refusal(1, 2), InsertRefusal::Occupied);
    assert_eq!(refusal(1, 3), InsertRefusal::GroupFull);
    assert_eq!(refusal(2, 1), InsertRefusal::Occupied);
    // Nothing is left behind by the refusals.
    assert_eq!((map.group_len(&1), map.group_len(&2)), (1, 0));
    let error = map
        .entry(3)
        .group(&1)
        .touch_with(exclaim)
        .or_insert_with(|| "x".into());
    assert_eq!(error.unwrap_err().refusal, InsertRefusal::GroupFull);
    let error = map
        .entry(3)
        .group(&1)
        .or_try_insert_with(|| Ok::<_, ()>("x".into()));
    let Err(EntryError::Insert(error)) = error else {
        panic!("{error:?}");
    };
    assert_eq!(error.refusal, InsertRefusal::GroupFull);
    assert_eq!(
        map.entry(2)
            .group(&1)
            .touch_with(exclaim)
            .or_insert_with(never)
            .unwrap(),
        Updated::Present((Touch::Unchanged { deadline: at(60) }, text(2) + "!"))
    );
    assert_eq!(map.group_of(&2), None, "it stays where it is");
    drop(stepped.shutdown(Shutdown::HandBack));
    assert_eq!(refusal(1, 1), InsertRefusal::Closed);
    assert_eq!(refusal(2, 9), InsertRefusal::Closed);
}

/// Entries expire and are removed while devices report. Each message is counted once: by the touch,
/// or by the insertion.
#[test]
fn every_message_is_counted_once_however_touches_and_insertions_meet() {
    const KEYS: u32 = 4;
    const MESSAGES: u32 = 10_000;
    let counted = Arc::new(AtomicU64::new(0));
    let insertions = Arc::new(AtomicUsize::new(0));
    let refused = Arc::new(Mutex::new(Vec::new()));
    let sum = Arc::clone(&counted);
    let map = ExpiryMap::<u32, u64>::builder()
        .time_to_idle(Duration::from_millis(1))
        .groups::<u32>()
        .build(move |_, expired| {
            sum.fetch_add(expired.value, Ordering::Relaxed);
        })
        .unwrap();
    let removed = thread::scope(|scope| {
        let senders: Vec<_> = (0..3)
            .map(|thread| {
                let (map, insertions, refused) = (&map, &insertions, &refused);
                scope.spawn(move || {
                    for message in 0..MESSAGES {
                        let key = (message + thread) % KEYS;
                        let count = |value: &mut u64| *value += 1;
                        let answer = if thread == 0 {
                            map.entry(key)
                                .touch_with(count)
                                .no_group()
                                .or_insert_with(|| 1)
                        } else {
                            map.entry(key)
                                .group(&key)
                                .touch_with(count)
                                .or_insert_with(|| 1)
                        };
                        match answer {
                            Ok(answer) if answer.is_inserted() => {
                                insertions.fetch_add(1, Ordering::Relaxed);
                            }
                            Ok(_) => {}
                            Err(error) => refused.lock().unwrap().push(error),
                        }
                    }
                })
            })
            .collect();
        let mut removed = 0;
        while !senders.iter().all(|sender| sender.is_finished()) {
            for key in 0..KEYS {
                removed += map.remove(&key).value().unwrap_or(0);
            }
        }
        removed
    });
    let report = map.shutdown(Shutdown::HandBack).wait().unwrap();
    let back: u64 = report.handed_back.iter().map(|back| back.value).sum();
    assert!(refused.lock().unwrap().is_empty());
    let all = counted.load(Ordering::Relaxed) + back + removed;
    assert_eq!(all, u64::from(3 * MESSAGES));
    let stats = map.stats();
    assert_eq!(stats.inserted, insertions.load(Ordering::Relaxed) as u64);
    assert_eq!(stats.replaced, 0);
}
