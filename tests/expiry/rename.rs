//! An entry that gets another key: all that it keeps, what is refused, and what others see
//! meanwhile.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use kit::map::{IDLE, S, at, builder, collecting, fill, keys, take, text};
use kit::quiet::{hush, panics};
use tourbillon::{
    ExpiryMap, GroupFull, InsertRefusal, Reason, Removed, RenameRefusal, Shutdown, Touch,
};

const OCCUPIED: RenameRefusal = RenameRefusal::Insert(InsertRefusal::Occupied);
const CLOSED: RenameRefusal = RenameRefusal::Insert(InsertRefusal::Closed);

#[test]
fn it_keeps_its_value_both_times_and_one_end() {
    // With one stripe both keys share it.
    for (seed, stripes) in [(1, 1), (2, 4), (3, 4), (4, 64)] {
        let (stepped, gone) = collecting(
            builder().shards(1).stripes(stripes).time_to_live(100 * S),
            seed,
        );
        let map = stepped.map();
        fill(&map, [1]);
        stepped.advance(20 * S);
        map.rename(&1, 1_001).unwrap();
        assert_eq!(map.deadline(&1_001), Some(at(60)), "no touch");
        assert_eq!(map.get(&1_001).as_deref(), Some("value 1"));
        assert_eq!((map.get(&1), map.touch(&1)), (None, Touch::NotFound));
        assert_eq!(map.len(), 1);
        stepped.advance(39 * S);
        assert!(map.touch(&1_001).is_alive());
        map.rename(&1_001, 2_001).unwrap();
        assert_eq!(map.deadline(&2_001), Some(at(100)), "the lifetime goes on");
        stepped.advance(41 * S);
        let gone = take(&gone);
        assert_eq!(
            (gone.len(), gone[0].key, gone[0].deadline),
            (1, 2_001, at(100))
        );
        assert_eq!(
            (gone[0].value.as_str(), gone[0].reason),
            ("value 1", Reason::Lifetime)
        );
        let stats = map.stats();
        assert_eq!((stats.inserted, stats.expired, stats.removed), (1, 1, 0));
        assert!(stats.balances() && map.is_empty());
    }
}

#[test]
fn what_is_refused_changes_nothing() {
    let (stepped, gone) = collecting(builder().time_to_live(100 * S), 1);
    let map = stepped.map();
    fill(&map, [1, 2]);
    let error = map.rename(&3, 4).unwrap_err();
    assert_eq!((error.key, error.refusal), (4, RenameRefusal::NotFound));
    assert_eq!(error.to_string(), "there is no entry for the old key");
    let error = map.rename(&1, 2).unwrap_err();
    assert_eq!((error.key, error.into_reason()), (2, OCCUPIED));
    assert_eq!(map.get(&1), Some(text(1)));
    assert_eq!(map.get(&2), Some(text(2)));
    map.rename(&1, 1).unwrap();
    assert_eq!(map.deadline(&1), Some(at(60)));
    // The lifetime is over, and nobody has had the time to deliver.
    map.set_expiry(&2, map.expiry().time_to_idle(1_000 * S));
    stepped.clock().set(at(100));
    assert_eq!(
        map.rename(&1, 3).unwrap_err().refusal,
        RenameRefusal::NotFound
    );
    stepped.settle();
    assert_eq!(keys(&gone), [1, 2]);
    fill(&map, [5]);
    let report = stepped.shutdown(Shutdown::HandBack);
    assert_eq!(report.handed_back.len(), 1);
    assert_eq!(map.rename(&5, 6).unwrap_err().refusal, CLOSED);
}

/// An entry of the new key whose lifetime is over, but which is not delivered, is in nobody's way.
#[test]
fn it_takes_the_place_of_an_entry_that_is_over() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    let options = builder().on_removal(move |key, _, reason| {
        listener.lock().unwrap().push((*key, reason));
    });
    let (stepped, gone) = collecting(options, 1);
    let map = stepped.map();
    fill(&map, [1]);
    let brief = map.expiry().time_to_live(S);
    map.entry(2).expiry(brief).insert("brief".into()).unwrap();
    stepped.clock().set(at(1));
    map.rename(&1, 2).unwrap();
    assert_eq!(
        *told.lock().unwrap(),
        [(2, Reason::Lifetime)],
        "the rename is no end"
    );
    assert_eq!(map.get(&2), Some(text(1)));
    stepped.advance(IDLE);
    assert_eq!(keys(&gone), [2]);
    assert!(map.stats().balances());
}

#[test]
fn who_is_due_is_delivered_under_the_new_key() {
    let (stepped, gone) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, [1, 2]);
    stepped.clock().set(at(60));
    map.rename(&1, 3).unwrap();
    assert!(map.touch(&2).is_alive());
    map.rename(&2, 4).unwrap();
    stepped.settle();
    assert_eq!(keys(&gone), [3]);
    stepped.advance(IDLE);
    assert_eq!(keys(&gone), [4]);
}

/// While the handler runs for a key, the entry is the handler's. One that was inserted since is the
/// map's.
#[test]
fn beside_a_handler_the_new_entry_is_renamed() {
    let (send, began) = mpsc::channel();
    let (go, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let map = ExpiryMap::<u32, u32>::builder()
        .stripes(2)
        .build(move |_, expired| {
            send.send((expired.key, expired.value)).unwrap();
            gate.lock().unwrap().recv().unwrap();
        })
        .unwrap();
    let now = tourbillon::Expiry::NEVER.time_to_idle(Duration::ZERO);
    map.entry(1).expiry(now).insert(10).unwrap();
    assert_eq!(began.recv(), Ok((1, 10)));
    assert_eq!(
        map.rename(&1, 2).unwrap_err().refusal,
        RenameRefusal::NotFound
    );
    // Away from a key that runs.
    map.insert(1, 11).unwrap();
    map.rename(&1, 2).unwrap();
    assert_eq!((map.get(&1), map.get(&2), map.len()), (None, Some(11), 1));
    // And to one. It waits for the end of the run.
    map.rename(&2, 1).unwrap();
    assert_eq!((map.get(&1), map.get(&2), map.len()), (Some(11), None, 1));
    assert!(map.set_expiry(&1, now).is_alive());
    go.send(()).unwrap();
    assert_eq!(began.recv(), Ok((1, 11)));
    go.send(()).unwrap();
    let report = map.shutdown(Shutdown::HandBack).wait().unwrap();
    assert!(report.handed_back.is_empty());
    let stats = map.stats();
    assert_eq!((stats.inserted, stats.expired, stats.removed), (2, 2, 0));
}

/// A bound is as exact after many renames as before, and a full map renames.
#[test]
fn the_bound_counts_it_once() {
    for limit in [1, 50, 20_000] {
        let (stepped, _) = collecting(builder().stripes(8).max_pending(limit), 7);
        let map = stepped.map();
        let limit = limit as u32;
        fill(&map, 0..limit);
        let full = |key| map.insert(key, String::new()).unwrap_err().refusal;
        for round in 0..5 {
            let base = |round: u32| (round % 2) * 1_000_000;
            for key in 0..limit.min(2_000) {
                let (old, new) = (base(round) + key, base(round + 1) + key);
                map.rename(&old, new).unwrap();
                assert_eq!(map.rename(&new, new), Ok(()));
            }
            assert_eq!(full(3_000_000), InsertRefusal::Full);
        }
        // In place of one that is over, and has a permit of its own.
        assert_eq!(map.remove(&1_000_000).value().as_deref(), Some("value 0"));
        let brief = map.expiry().time_to_live(S);
        map.entry(9_000_000)
            .expiry(brief)
            .insert(String::new())
            .unwrap();
        if limit > 1 {
            stepped.clock().set(at(1));
            map.rename(&1_000_001, 9_000_000).unwrap();
            map.insert(9_000_001, String::new()).unwrap();
        }
        assert_eq!(full(3_000_000), InsertRefusal::Full);
        assert_eq!(map.clear(), limit as usize);
        fill(&map, 0..limit);
        assert_eq!(full(3_000_000), InsertRefusal::Full);
    }
}

/// A key whose `Eq` panics on demand. Keys of one rest by 8 look alike to the index.
#[derive(Clone, Debug)]
struct Touchy(u32, Arc<AtomicBool>);

impl PartialEq for Touchy {
    fn eq(&self, other: &Self) -> bool {
        assert!(!self.1.load(Ordering::SeqCst), "wanted");
        self.0 == other.0
    }
}

impl Eq for Touchy {}

impl Hash for Touchy {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0 % 8).hash(state);
    }
}

#[test]
fn a_panic_of_a_key_changes_nothing() {
    hush();
    let armed = Arc::new(AtomicBool::new(false));
    let key = |number| Touchy(number, Arc::clone(&armed));
    let stepped = ExpiryMap::<Touchy, u32>::builder()
        .time_to_idle(IDLE)
        .groups::<u32>()
        .build_stepped(1, |_, _| ())
        .unwrap();
    let map = stepped.map();
    map.entry(key(1)).group(&5).insert(10).unwrap();
    map.insert(key(9), 90).unwrap();
    armed.store(true, Ordering::SeqCst);
    let text = panics(|| {
        let _ = map.rename(&key(1), key(17));
    });
    assert!(text.contains("wanted"), "{text}");
    armed.store(false, Ordering::SeqCst);
    assert_eq!((map.get(&key(1)), map.get(&key(9))), (Some(10), Some(90)));
    assert_eq!((map.len(), map.group_len(&5)), (2, 1));
    map.rename(&key(1), key(17)).unwrap();
    assert_eq!(map.get(&key(17)), Some(10));
    assert_eq!(map.group_of(&key(17)), Some(5));
}

#[test]
fn it_stays_in_its_group_even_if_that_is_full() {
    let stepped = ExpiryMap::<u32, u32>::builder()
        .time_to_idle(IDLE)
        .stripes(4)
        .groups::<u32>()
        .max_per_group(2)
        .build_stepped(1, |_, _| ())
        .unwrap();
    let map = stepped.map();
    map.entry(1).group(&7).insert(10).unwrap();
    map.entry(2).group(&7).insert(20).unwrap();
    for key in 0..100 {
        map.rename(&(10 * key + 1), 10 * (key + 1) + 1).unwrap();
        assert_eq!(
            (map.group_len(&7), map.group_of(&(10 * (key + 1) + 1))),
            (2, Some(7))
        );
    }
    let mut entries = map.group_entries(&7);
    entries.sort_unstable();
    assert_eq!(entries, [(2, 20), (1_001, 10)]);
    let refused = map.entry(3).group(&7).insert(30).unwrap_err();
    assert_eq!(refused.refusal, InsertRefusal::GroupFull);
    assert_eq!(map.touch_group(&7), 2);
    let mut removed = map.remove_group(&7);
    removed.sort_unstable();
    assert_eq!(removed, [(2, 20), (1_001, 10)]);
    assert_eq!(map.group_len(&7), 0);
    assert_eq!(map.remove(&1_001), Removed::NotFound);
}

#[test]
fn its_turn_to_be_evicted_stays() {
    for policy in [GroupFull::EvictOldest, GroupFull::EvictLeastRecentlyTouched] {
        let gone = Arc::new(Mutex::new(Vec::new()));
        let collect = Arc::clone(&gone);
        let stepped = ExpiryMap::<u32, u32>::builder()
            .time_to_idle(IDLE)
            .stripes(4)
            .groups::<u32>()
            .max_per_group(3)
            .when_group_full(policy)
            .build_stepped(1, move |_, expired| {
                collect.lock().unwrap().push(expired.key);
            })
            .unwrap();
        let map = stepped.map();
        for key in [1, 2, 3] {
            map.entry(key).group(&7).insert(key).unwrap();
            stepped.advance(S);
        }
        map.rename(&1, 11).unwrap();
        map.rename(&2, 12).unwrap();
        map.entry(4).group(&7).insert(4).unwrap();
        stepped.settle();
        map.entry(5).group(&7).insert(5).unwrap();
        stepped.settle();
        assert_eq!(*gone.lock().unwrap(), [11, 12]);
        assert_eq!(
            map.rename(&12, 13).unwrap_err().refusal,
            RenameRefusal::NotFound
        );
        assert_eq!(map.group_len(&7), 3);
    }
}

/// Threads that rename in opposite directions neither wait for each other nor lose an entry, and
/// who looks for the old key first finds the entry under one of both.
#[test]
fn at_each_moment_it_has_one_key() {
    const ROUNDS: u32 = 3_000;
    let map = ExpiryMap::<u32, u32>::builder()
        .stripes(2)
        .build(|_, _| ())
        .unwrap();
    for key in 0..4 {
        map.insert(key, key).unwrap();
    }
    let start = Barrier::new(6);
    thread::scope(|scope| {
        for key in 0..4_u32 {
            let (map, start) = (&map, &start);
            scope.spawn(move || {
                start.wait();
                for round in 0..ROUNDS {
                    map.rename(&(key + 4 * round), key + 4 * (round + 1))
                        .unwrap();
                }
            });
        }
        for key in 0..2 {
            let (map, start) = (&map, &start);
            scope.spawn(move || {
                start.wait();
                let mut round = 0;
                // The entry is at the key of this round, or at a later one.
                while round < ROUNDS {
                    if map.with(&(key + 4 * round), |value| *value) != Some(key) {
                        round += 1;
                    }
                }
                assert_eq!(map.with(&(key + 4 * ROUNDS), |value| *value), Some(key));
            });
        }
    });
    let left: BTreeSet<_> = map.iter().collect();
    assert_eq!(left, (0..4).map(|key| (key + 4 * ROUNDS, key)).collect());
    assert!(map.stats().balances());
}

/// Calls for a whole group reach each entry once, whatever keys it has meanwhile. Otherwise a
/// session could outlive the call that signs its user out everywhere.
#[test]
fn calls_for_its_group_do_not_miss_it() {
    const MEMBERS: u32 = 8;
    let map = ExpiryMap::<u32, u32>::builder()
        .stripes(8)
        .groups::<u32>()
        .build(|_, _| ())
        .unwrap();
    let renamed = AtomicUsize::new(0);
    for round in 0..300 {
        for key in 0..MEMBERS {
            map.entry(key).group(&7).insert(key).unwrap();
        }
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let (map, done, renamed) = (&map, &done, &renamed);
            scope.spawn(move || {
                let mut at: Vec<u32> = (0..MEMBERS).collect();
                while !done.load(Ordering::SeqCst) {
                    for key in &mut at {
                        let next = (*key + MEMBERS) % (64 * MEMBERS);
                        if map.rename(key, next).is_ok() {
                            *key = next;
                            renamed.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                }
            });
            let seen: Vec<_> = (0..5)
                .map(|_| {
                    let shown: Vec<_> = map.group_entries(&7);
                    let values: BTreeSet<_> = shown.iter().map(|(_, value)| *value).collect();
                    [shown.len(), values.len(), map.touch_group(&7)]
                })
                .collect();
            let removed = map.remove_group(&7);
            done.store(true, Ordering::SeqCst);
            assert_eq!(seen, [[8; 3]; 5], "round {round}");
            assert_eq!(removed.len(), 8, "round {round}");
        });
        assert!(map.is_empty(), "round {round}");
        assert_eq!(map.group_len(&7), 0);
    }
    assert!(renamed.load(Ordering::SeqCst) > 300);
}
