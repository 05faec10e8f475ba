//! `ExpiryMap`: what every call answers, for one key, for many, and while the handler runs for a
//! key.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use kit::map::{IDLE, S, at, builder, collecting, fill, keys, take, text};
use tourbillon::{Expiry, ExpiryMap, Found, InsertRefusal, Reason, Removed, Shutdown, Touch};

#[test]
fn insertions_say_what_they_replaced() {
    let (stepped, gone) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, [1]);
    stepped.advance(S);
    let replaced = map.insert(1, "b".into()).unwrap();
    assert_eq!(replaced.replaced.as_deref(), Some("value 1"));
    assert_eq!(
        map.deadline(&1),
        Some(at(61)),
        "a new entry with its own time"
    );
    let error = map.entry(1).insert_if_absent("c".into()).unwrap_err();
    assert_eq!((error.key, error.value.as_str()), (1, "c"));
    assert_eq!(error.refusal, InsertRefusal::Occupied);
    map.entry(2).insert_if_absent("c".into()).unwrap();
    let made = AtomicBool::new(false);
    let make = || {
        made.store(true, Ordering::Relaxed);
        // Without a lock: the map may be asked.
        map.get(&1).unwrap() + "!"
    };
    let found = map.entry(2).or_insert_with(make).unwrap();
    assert_eq!(found, Found::Present("c".into()));
    assert!(!made.load(Ordering::Relaxed));
    let found = map.entry(3).or_insert_with(make).unwrap();
    assert_eq!(found.into_value(), "b!");
    assert_eq!(map.get(&3).as_deref(), Some("b!"));
    stepped.advance(2 * IDLE);
    assert_eq!(keys(&gone), [1, 2, 3]);
    let stats = map.stats();
    assert_eq!((stats.inserted, stats.replaced, stats.expired), (4, 1, 3));
}

#[test]
fn values_are_looked_at_and_changed_in_place() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, [1]);
    stepped.advance(S);
    assert_eq!(map.with(&1, String::len), Some(7));
    assert_eq!(map.update(&1, |value| value.push('!')), Some(()));
    assert_eq!(map.get(&1).as_deref(), Some("value 1!"));
    assert_eq!(map.deadline(&1), Some(at(60)), "none of these is a touch");
    assert_eq!(map.get_and_touch(&1).as_deref(), Some("value 1!"));
    assert_eq!(map.deadline(&1), Some(at(61)));
    assert_eq!(map.with(&2, String::len), None);
    assert_eq!(map.update(&2, String::clear), None);
    assert_eq!((map.get(&2), map.get_and_touch(&2)), (None, None));
}

#[test]
fn a_touch_reads_and_changes_the_value_of_the_entry_that_lives_on() {
    let (stepped, gone) = collecting(builder().time_to_live(2 * IDLE), 1);
    let map = stepped.map();
    fill(&map, [1]);
    let change = |value: &mut String| {
        value.push('!');
        value.len()
    };
    let deadline = at(60);
    let answer = map.touch_with(&1, change);
    assert_eq!(answer, (Touch::Unchanged { deadline }, Some(8)));
    stepped.advance(S);
    let deadline = at(61);
    let answer = map.touch_with(&1, change);
    assert_eq!(answer, (Touch::Touched { deadline }, Some(9)));
    assert_eq!(map.get(&1).as_deref(), Some("value 1!!"));
    assert_eq!(map.touch_with(&2, change), (Touch::NotFound, None));
    // Due, and not delivered yet: the touch saves it.
    stepped.clock().set(at(61));
    let deadline = at(120);
    let answer = map.touch_with(&1, change);
    assert_eq!(answer, (Touch::Touched { deadline }, Some(10)));
    // The lifetime is over, so the closure must not see the value.
    stepped.clock().set(at(120));
    assert_eq!(map.touch_with(&1, change), (Touch::Expired, None));
    stepped.settle();
    let gone = take(&gone);
    assert_eq!((gone.len(), gone[0].value.as_str()), (1, "value 1!!!"));
}

/// Sessions expire and are removed while other threads touch them. Whoever was told that a session
/// lives on has changed it, so the changes add up.
#[test]
fn a_touch_that_is_told_of_an_entry_has_changed_that_entry() {
    const KEYS: u32 = 8;
    const TOUCHES: u64 = 20_000;
    let delivered = Arc::new(AtomicU64::new(0));
    let sum = Arc::clone(&delivered);
    let map = ExpiryMap::<u32, u64>::builder()
        .time_to_idle(Duration::from_millis(1))
        .build(move |_, expired| {
            sum.fetch_add(expired.value, Ordering::Relaxed);
        })
        .unwrap();
    let threads: Vec<_> = (0..2_u32)
        .map(|thread| {
            let map = map.clone();
            thread::spawn(move || {
                let mut changed = 0;
                for round in 0..TOUCHES {
                    let key = (round as u32 + thread) % KEYS;
                    let (touch, result) = map.touch_with(&key, |value| *value += 1);
                    assert_eq!(touch.is_alive(), result.is_some());
                    if touch.is_alive() {
                        changed += 1;
                    } else {
                        // Refused if the other thread was first.
                        let _ = map.entry(key).insert_if_absent(0);
                    }
                }
                changed
            })
        })
        .collect();
    let mut removed = 0;
    while !threads.iter().all(|thread| thread.is_finished()) {
        for key in 0..KEYS {
            removed += map.remove(&key).value().unwrap_or(0);
        }
    }
    let changed: u64 = threads.into_iter().map(|all| all.join().unwrap()).sum();
    let report = map.shutdown(Shutdown::HandBack).wait().unwrap();
    let back: u64 = report.handed_back.iter().map(|back| back.value).sum();
    assert_eq!(delivered.load(Ordering::Relaxed) + back + removed, changed);
}

#[test]
fn a_borrowed_key_will_do() {
    let stepped = ExpiryMap::<String, u8>::builder()
        .build_stepped(1, |_, _| ())
        .unwrap();
    let map = stepped.map();
    map.insert("a".to_owned(), 1).unwrap();
    assert_eq!((map.get("a"), map.contains("b")), (Some(1), false));
    assert!(map.touch("a").is_alive());
    assert_eq!(map.remove("a").value(), Some(1));
}

// === many keys ===

/// One call holds several locks; others take them meanwhile, in the order of their keys.
#[test]
fn many_touches_of_many_threads_don_t_wait_for_each_other_for_ever() {
    const KEYS: u32 = 2_000;
    let map = builder().build(|_, _| ()).unwrap();
    fill(&map, 0..KEYS);
    let (done, ended) = mpsc::channel();
    for thread in 0..4_u32 {
        let (map, done) = (map.clone(), done.clone());
        thread::spawn(move || {
            let mut alive = 0;
            for round in 0..50 {
                let turn = |key: u32| (key * 7 + thread * 500 + round) % KEYS;
                let some: Vec<u32> = (0..600).map(turn).collect();
                alive += (map.touch_many(&some).iter())
                    .filter(|t| t.is_alive())
                    .count();
                alive += usize::from(map.touch(&some[0]).is_alive());
                map.update(&some[1], |value| value.push('!'));
            }
            done.send(alive).unwrap();
        });
    }
    for _ in 0..4 {
        let alive = ended.recv_timeout(Duration::from_secs(60));
        assert_eq!(alive, Ok(50 * 601), "all are there");
    }
}

/// The lines of removed keys are in the way of others.
#[test]
fn many_touches_find_the_keys_that_single_calls_find() {
    let (stepped, _gone) = collecting(builder(), 1);
    let map = stepped.map();
    for round in 0..6 {
        let absent = |key: &u32| key % 5 == round % 5 && !map.contains(key);
        fill(&map, (0..6_000).filter(absent));
        for key in (0..6_000).filter(|key| key % 7 == round) {
            drop(map.remove(&key));
        }
        stepped.advance(S);
        let present: Vec<bool> = (0..6_000).map(|key| map.contains(&key)).collect();
        let all: Vec<u32> = (0..6_000).collect();
        let answers = map.touch_many(&all);
        let deadline = at(61 + u64::from(round));
        for ((key, answer), present) in all.iter().zip(&answers).zip(&present) {
            let expected = match present {
                true => Touch::Touched { deadline },
                false => Touch::NotFound,
            };
            assert_eq!(*answer, expected, "{key}");
            assert_eq!(map.deadline(key), present.then_some(deadline), "{key}");
        }
        assert!(present.contains(&true) && present.contains(&false));
    }
}

#[test]
fn many_touches_answer_in_the_order_of_the_keys() {
    let (stepped, gone) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, (0..1_000).map(|key| 2 * key));
    stepped.advance(S);
    let asked: Vec<u32> = (0..2_000).rev().chain([4]).collect();
    let answers = map.touch_many(&asked);
    let deadline = at(61);
    for (key, answer) in asked.iter().zip(&answers).take(2_000) {
        let expected = match key % 2 {
            0 => Touch::Touched { deadline },
            _ => Touch::NotFound,
        };
        assert_eq!(*answer, expected, "{key}");
    }
    assert_eq!(answers[2_000], Touch::Unchanged { deadline }, "asked twice");
    assert!(map.touch_many([] as [&u32; 0]).is_empty());
    stepped.advance_to(at(60));
    assert!(take(&gone).is_empty());
    stepped.advance_to(at(61));
    assert_eq!(keys(&gone).len(), 1_000);
}

#[test]
fn all_entries_can_be_walked_over_sieved_and_cleared() {
    let (stepped, gone) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, 0..1_000);
    let mut seen: Vec<_> = map.iter().collect();
    seen.sort_unstable();
    assert!(seen.iter().map(|(key, _)| *key).eq(0..1_000));
    assert!(seen.iter().all(|(key, value)| *value == text(*key)));
    let odd = map.retain(|key, value| {
        value.push('!');
        key % 2 == 0
    });
    assert_eq!((odd, map.len()), (500, 500));
    assert!(
        (&map)
            .into_iter()
            .all(|(key, value)| value == text(key) + "!")
    );
    assert_eq!(map.clear(), 500);
    assert!(map.is_empty());
    stepped.advance(2 * IDLE);
    assert!(take(&gone).is_empty());
    let stats = map.stats();
    assert_eq!((stats.inserted, stats.removed), (1_000, 1_000));
}

// === the key while its handler runs ===

#[test]
fn a_key_is_free_while_its_handler_runs() {
    for seed in 1..10 {
        let rounds = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&rounds);
        let stepped = builder()
            .build_stepped(seed, move |map, expired| {
                let round = counted.fetch_add(1, Ordering::Relaxed);
                assert_eq!(expired.value, round.to_string());
                let key = expired.key;
                assert_eq!(map.remove(&key), Removed::Expired);
                let next = (round + 1).to_string();
                assert_eq!(map.insert(key, "in between".into()).unwrap().replaced, None);
                assert_eq!(map.get(&key).as_deref(), Some("in between"));
                assert_eq!(map.update(&key, |value| value.push('!')), Some(()));
                assert_eq!(
                    map.insert(key, next.clone()).unwrap().replaced,
                    Some("in between!".into())
                );
                let deadline = map.now() + IDLE;
                assert_eq!(map.touch(&key), Touch::Unchanged { deadline });
                let deadline = map.now() + 2 * S;
                assert_eq!(
                    map.set_expiry(&key, Expiry::NEVER.time_to_idle(2 * S)),
                    Touch::Touched { deadline }
                );
                if round == 3 {
                    assert_eq!(map.retain(|_, value| *value != next), 1);
                    assert!(!map.contains(&key));
                    assert_eq!(map.insert(key, next).unwrap().replaced, None);
                }
                if round == 5 {
                    let removed = map.remove(&key).value();
                    assert_eq!(removed.as_deref(), Some("6"));
                }
            })
            .unwrap();
        stepped.map().insert(1, "0".into()).unwrap();
        stepped.advance(IDLE);
        assert_eq!(rounds.load(Ordering::Relaxed), 1);
        stepped.advance(2 * S);
        assert_eq!(rounds.load(Ordering::Relaxed), 2);
        stepped.advance(1_000 * IDLE);
        let stats = stepped.map().stats();
        assert_eq!((stats.expired, stats.panicked, stats.pending), (6, 0, 0));
        assert!(stats.balances());
    }
}

/// Insertions and removals of many, in an order that has nothing to do with stripes.
#[test]
fn many_entries_are_inserted_and_removed_as_one_by_one() {
    for seed in 1..5 {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        let builder = builder()
            .stripes(8)
            .on_removal(move |key, value: &String, reason| {
                tell.lock().unwrap().push((*key, value.clone(), reason));
            });
        let (stepped, gone) = collecting(builder, seed);
        let map = stepped.map();
        // Every key comes twice in the first call, and once in the second one.
        let twice = (0..1_000).map(|number| (number * 7 % 500, format!("{number}")));
        for (number, answer) in map.insert_many(twice).into_iter().enumerate() {
            let inserted = answer.unwrap();
            let before = number.checked_sub(500).map(|before| format!("{before}"));
            assert_eq!((inserted.deadline, inserted.replaced), (at(60), before));
        }
        assert_eq!(map.len(), 500);
        stepped.advance(S);
        let again = (0..600).rev().map(|key| (key, text(key)));
        let answers = map.insert_many(again);
        let replaced = answers
            .iter()
            .flatten()
            .filter(|inserted| inserted.replaced.is_some());
        assert_eq!(replaced.count(), 500);
        let replaced = |told: &Vec<(u32, String, Reason)>| {
            assert!(
                told.iter()
                    .all(|(_, _, reason)| *reason == Reason::Replaced)
            );
            told.len()
        };
        assert_eq!(replaced(&told.lock().unwrap()), 1_000);
        told.lock().unwrap().clear();

        let sought: Vec<u32> = (550..650).chain(590..610).collect();
        for (at_, (key, removed)) in sought.iter().zip(map.remove_many(&sought)).enumerate() {
            let expected = if *key < 600 && at_ < 100 {
                Removed::Removed {
                    value: text(*key),
                    deadline: at(61),
                }
            } else {
                Removed::NotFound
            };
            assert_eq!(removed, expected, "{key}");
        }
        assert_eq!((map.len(), told.lock().unwrap().len()), (550, 50));
        stepped.advance(IDLE);
        let mut ended = keys(&gone);
        ended.sort_unstable();
        assert_eq!(ended, (0..550).collect::<Vec<_>>());
        assert!(map.stats().balances());
    }
}

#[test]
fn many_entries_for_a_map_that_is_full_or_closed_come_back() {
    let (stepped, _) = collecting(builder().stripes(8).max_pending(100), 1);
    let map = stepped.map();
    let entries = || (0..300).map(|key| (key, text(key)));
    let mut refused = 0;
    for (key, answer) in map.insert_many(entries()).into_iter().enumerate() {
        let key = key as u32;
        assert_eq!(answer.is_ok(), map.contains(&key));
        if let Err(error) = answer {
            assert_eq!((error.key, error.value), (key, text(key)));
            assert_eq!(error.refusal, InsertRefusal::Full);
            refused += 1;
        }
    }
    assert_eq!((map.len(), refused), (100, 200));
    let _ = stepped.shutdown(Shutdown::HandBack);
    for (key, answer) in map.insert_many(entries()).into_iter().enumerate() {
        let error = answer.unwrap_err();
        assert_eq!((error.key, error.value), (key as u32, text(key as u32)));
        assert_eq!(error.refusal, InsertRefusal::Closed);
    }
    assert_eq!(
        map.remove_many(&[1, 2]),
        [Removed::NotFound, Removed::NotFound]
    );
}
