//! Full groups of an `ExpiryMap` that evict: which entry goes, how it is delivered, and what calls
//! answer meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kit::drops::{Drops, Mark};
use kit::wait::until;
use tourbillon::test_util::SteppedMap;
use tourbillon::{
    BuildError, Clock, Expired, Expiry, ExpiryMap, ExpiryMapBuilder, GroupFull, GroupedBy,
    GroupedExpiryMap, InsertRefusal, ManualClock, Reason, ReceiverLost, Removed, Shutdown, Time,
    Touch,
};

const S: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(60);
const POLICIES: [GroupFull; 2] = [GroupFull::EvictOldest, GroupFull::EvictLeastRecentlyTouched];

type Builder = ExpiryMapBuilder<u32, u32, GroupedBy<String>>;
type Map = GroupedExpiryMap<u32, u32, String>;
type Stepped = SteppedMap<u32, u32, GroupedBy<String>>;
type Gone = Arc<Mutex<Vec<Expired<u32, u32>>>>;

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

fn builder(most: usize, policy: GroupFull) -> Builder {
    ExpiryMap::builder()
        .time_to_idle(IDLE)
        .stripes(4)
        .shards(2)
        .groups::<String>()
        .max_per_group(most)
        .when_group_full(policy)
}

fn collecting(builder: Builder) -> (Stepped, Map, Gone) {
    let gone = Gone::default();
    let collect = Arc::clone(&gone);
    let stepped = builder
        .build_stepped(1, move |_, expired| collect.lock().unwrap().push(expired))
        .unwrap();
    let map = stepped.map();
    (stepped, map, gone)
}

/// Values are a thousand times their keys.
fn fill(map: &Map, group: &str, keys: impl IntoIterator<Item = u32>) {
    for key in keys {
        let inserted = map.entry(key).group(group).insert(1_000 * key).unwrap();
        assert_eq!(inserted.replaced, None);
    }
}

fn taken(gone: &Gone) -> Vec<(u32, Reason)> {
    let gone = std::mem::take(&mut *gone.lock().unwrap());
    gone.iter().map(|gone| (gone.key, gone.reason)).collect()
}

/// The keys of a group.
fn members(map: &Map, group: &str) -> Vec<u32> {
    let mut keys: Vec<_> = map
        .group_entries(group)
        .into_iter()
        .map(|(key, _)| key)
        .collect();
    keys.sort_unstable();
    assert_eq!(map.group_len(group), keys.len());
    keys
}

/// Ends the loops of other threads, also if the test fails.
struct Over(AtomicBool);

impl Over {
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

struct EndOf<'a>(&'a Over);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

// === which one ===

#[test]
fn c171_the_oldest_entry_makes_room_whatever_was_touched() {
    let (stepped, map, gone) = collecting(builder(3, GroupFull::EvictOldest));
    fill(&map, "a", 1..=3);
    fill(&map, "b", [9]);
    stepped.advance(S);
    assert!(map.touch(&1).is_alive());
    for newest in 4..10 {
        if newest == 9 {
            continue;
        }
        fill(&map, "a", [newest]);
        stepped.settle();
        assert_eq!(taken(&gone), [(newest - 3, Reason::GroupFull)]);
    }
    assert_eq!(members(&map, "a"), [6, 7, 8]);
    assert_eq!(members(&map, "b"), [9]);
    assert!(map.stats().balances());
}

#[test]
fn c171_the_entry_that_was_touched_longest_ago_makes_room() {
    type TouchCall = fn(&Map);
    let touches: [(&str, TouchCall); 8] = [
        ("touch", |map| assert!(map.touch(&1).is_alive())),
        ("touch_at", |map| {
            assert!(map.touch_at(&1, map.now()).is_alive());
        }),
        ("touch_many", |map| {
            assert!(map.touch_many([&1])[0].is_alive());
        }),
        ("get_and_touch", |map| {
            assert_eq!(map.get_and_touch(&1), Some(1_000));
        }),
        ("touch_with", |map| {
            assert!(map.touch_with(&1, |_| ()).0.is_alive());
        }),
        ("set_expiry", |map| {
            assert!(map.set_expiry(&1, Expiry::NEVER).is_alive());
        }),
        ("a toucher", |map| map.toucher().touch(1)),
        ("insert in a group", |map| {
            assert!(map.entry(1).group("a").insert(1_000).is_ok());
        }),
    ];
    let spans: [fn(Builder) -> Builder; 3] = [
        |builder| builder,
        // A touch can't move these deadlines, and counts nevertheless.
        |builder| builder.time_to_idle(Duration::MAX),
        |builder| builder.time_to_live(5 * S),
    ];
    for span in spans {
        for (name, touch) in touches {
            let policy = GroupFull::EvictLeastRecentlyTouched;
            let (stepped, map, gone) = collecting(span(builder(3, policy)));
            fill(&map, "a", 1..=3);
            stepped.advance(S);
            touch(&map);
            stepped.advance(S);
            fill(&map, "a", [4]);
            stepped.settle();
            assert_eq!(taken(&gone), [(2, Reason::GroupFull)], "{name}");
            assert_eq!(members(&map, "a"), [1, 3, 4], "{name}");
        }
    }
}

#[test]
fn reading_an_entry_or_touching_it_at_an_old_time_is_no_touch() {
    let (stepped, map, gone) = collecting(builder(2, GroupFull::EvictLeastRecentlyTouched));
    stepped.advance(S);
    fill(&map, "a", [1]);
    stepped.advance(S);
    fill(&map, "a", [2]);
    stepped.advance(S);
    assert_eq!((map.get(&1), map.contains(&1)), (Some(1_000), true));
    map.update(&1, |value| *value += 1);
    assert!(map.touch_at(&1, at(0)).is_alive());
    fill(&map, "a", [3]);
    stepped.settle();
    assert_eq!(taken(&gone), [(1, Reason::GroupFull)]);
    // Nor does it take back a later one.
    stepped.advance(S);
    assert!(map.touch(&2).is_alive());
    assert!(map.touch_at(&2, at(0)).is_alive());
    fill(&map, "a", [4]);
    stepped.settle();
    assert_eq!(taken(&gone), [(3, Reason::GroupFull)]);
    // As late as there is a time.
    assert!(map.touch_at(&2, Time::MAX).is_alive());
    fill(&map, "a", [5]);
    map.insert(7, 0).unwrap();
    assert!(map.touch_at(&7, Time::MAX).is_alive());
    stepped.settle();
    assert_eq!(taken(&gone), [(4, Reason::GroupFull)]);
    map.set_expiry(&7, Expiry::NEVER.time_to_idle(S));
    stepped.advance(S);
    assert_eq!(taken(&gone), [(7, Reason::Idle)]);
}

#[test]
fn c172_an_entry_that_replaces_one_of_its_group_evicts_nothing_and_is_the_newest() {
    for policy in POLICIES {
        let (stepped, map, gone) = collecting(builder(2, policy));
        fill(&map, "a", [1, 2]);
        assert_eq!(
            map.entry(1).group("a").insert(7).unwrap().replaced,
            Some(1_000)
        );
        stepped.settle();
        assert_eq!(taken(&gone), []);
        map.update(&1, |value| *value = 1_000);
        fill(&map, "a", [3]);
        assert_eq!(members(&map, "a"), [1, 3]);
        // From another group.
        fill(&map, "b", [4]);
        assert_eq!(
            map.entry(4).group("a").insert(4_000).unwrap().replaced,
            Some(4_000)
        );
        assert_eq!(
            (members(&map, "a"), members(&map, "b")),
            (vec![3, 4], vec![])
        );
        // From none.
        map.insert(5, 0).unwrap();
        assert_eq!(map.entry(5).group("a").insert(0).unwrap().replaced, Some(0));
        stepped.settle();
        let reason = Reason::GroupFull;
        assert_eq!(taken(&gone), [(2, reason), (1, reason), (3, reason)]);
        assert!(map.stats().balances());
    }
}

#[test]
fn entries_that_leave_make_room_without_an_eviction() {
    for policy in POLICIES {
        let (stepped, map, gone) = collecting(builder(2, policy));
        for key in 0..1_000 {
            fill(&map, "a", [3 * key, 3 * key + 1]);
            assert!(map.remove(&(3 * key)).value().is_some());
            fill(&map, "a", [3 * key + 2]);
            assert_eq!(map.remove_group("a").len(), 2);
        }
        fill(&map, "a", [1, 2]);
        stepped.advance(IDLE);
        assert_eq!(taken(&gone).len(), 2);
        fill(&map, "a", [1, 2]);
        assert_eq!(map.insert(1, 1_000).unwrap().replaced, Some(1_000));
        fill(&map, "a", [3]);
        stepped.settle();
        assert_eq!(taken(&gone), []);
    }
}

/// More members than one hold of a lock serves.
#[test]
fn a_large_group_evicts_one_for_one() {
    for policy in POLICIES {
        let (stepped, map, gone) = collecting(builder(1_000, policy));
        fill(&map, "a", 0..1_000);
        stepped.advance(S);
        for key in 0..500 {
            assert!(map.touch(&key).is_alive());
        }
        fill(&map, "a", 1_000..1_500);
        stepped.settle();
        let mut keys: Vec<_> = taken(&gone).into_iter().map(|(key, _)| key).collect();
        keys.sort_unstable();
        let first = match policy {
            GroupFull::EvictOldest => 0,
            _ => 500,
        };
        assert_eq!(keys, (first..first + 500).collect::<Vec<_>>());
        assert_eq!((map.group_len("a"), map.len()), (1_000, 1_000));
    }
}

// === the evicted entry ===

#[test]
fn an_evicted_entry_is_dead_until_its_delivery_and_delivered_as_evicted() {
    for policy in POLICIES {
        let (stepped, map, gone) = collecting(builder(1, policy));
        stepped.advance(S);
        let old = map.now();
        fill(&map, "a", [1]);
        stepped.advance(S);
        fill(&map, "a", [2]);
        assert_eq!(map.touch(&1), Touch::Expired);
        // Also for those who have read the clock before.
        assert_eq!(map.touch_at(&1, old), Touch::Expired);
        assert_eq!(map.set_expiry(&1, Expiry::NEVER), Touch::Expired);
        assert_eq!(map.touch_with(&1, |_| ()), (Touch::Expired, None));
        assert_eq!((map.get(&1), map.deadline(&1)), (None, None));
        assert_eq!(map.update(&1, |_| ()), None);
        assert_eq!(map.group_of(&1), None);
        assert_eq!(map.iter().collect::<Vec<_>>(), [(2, 2_000)]);
        assert_eq!(map.touch_group("a"), 1);
        assert_eq!((map.len(), members(&map, "a")), (2, vec![2]));
        assert_eq!(map.retain(|_, _| false), 1, "the other one");
        stepped.advance(S);
        let gone = std::mem::take(&mut *gone.lock().unwrap());
        let [gone] = &gone[..] else {
            panic!("{gone:?}");
        };
        assert_eq!((gone.key, gone.value), (1, 1_000));
        assert_eq!((gone.reason, gone.deadline), (Reason::GroupFull, at(2)));
        assert_eq!(gone.lateness, Duration::ZERO);
        assert_eq!(map.touch(&1), Touch::NotFound);
        let stats = map.stats();
        assert!(stats.balances());
        assert_eq!((stats.expired, stats.evicted), (0, 1));
        assert_eq!((stats.removed, stats.pending), (1, 0));
    }
}

#[test]
fn calls_that_take_an_entry_out_take_an_evicted_one_out_too() {
    type End = fn(&Stepped, &Map);
    let ends: [(&str, End); 6] = [
        ("remove", |_, map| {
            let deadline = at(0);
            assert_eq!(
                map.remove(&1),
                Removed::Removed {
                    value: 1_000,
                    deadline
                }
            );
        }),
        ("insert", |_, map| {
            assert_eq!(map.insert(1, 0).unwrap().replaced, Some(1_000));
            assert!(map.touch(&1).is_alive());
            map.remove(&1);
        }),
        ("insert_if_absent", |_, map| {
            let inserted = map.entry(1).no_group().insert_if_absent(0).unwrap();
            assert_eq!(inserted.replaced, Some(1_000));
            map.remove(&1);
        }),
        ("insert in a group", |_, map| {
            let inserted = map.entry(1).group("a").insert(1_000).unwrap();
            assert_eq!(inserted.replaced, Some(1_000));
            assert_eq!(members(map, "a"), [1]);
            // It has evicted the one that had evicted it.
            assert_eq!(map.remove(&2).value(), Some(2_000));
            map.remove(&1);
        }),
        ("clear", |_, map| assert_eq!(map.clear(), 2)),
        ("shrink, remove", |_, map| {
            map.shrink_to_fit();
            assert!(map.remove(&1).value().is_some());
        }),
    ];
    for policy in POLICIES {
        for (name, end) in ends {
            let (stepped, map, gone) = collecting(builder(1, policy));
            fill(&map, "a", [1, 2]);
            end(&stepped, &map);
            map.remove(&2);
            stepped.settle();
            assert_eq!(taken(&gone), [], "{name}");
            assert_eq!((map.group_len("a"), map.len()), (0, 0), "{name}");
            assert!(map.stats().balances(), "{name}");
        }
    }
}

/// It is handed back, unless its delivery has begun.
#[test]
fn a_shutdown_hands_an_evicted_entry_back_or_delivers_it() {
    let (stepped, map, gone) = collecting(builder(1, GroupFull::EvictOldest).pace(1));
    fill(&map, "a", 0..10);
    let report = stepped.shutdown(Shutdown::HandBack);
    let mut ended: Vec<_> = report.handed_back.iter().map(|back| back.key).collect();
    assert!(ended.len() > 5, "a pace holds most of them back");
    for (key, reason) in taken(&gone) {
        assert_eq!(reason, Reason::GroupFull);
        ended.push(key);
    }
    ended.sort_unstable();
    assert_eq!(ended, (0..10).collect::<Vec<_>>());
    assert_eq!(map.group_len("a"), 0);
    assert!(map.stats().balances());
}

#[test]
fn a_shutdown_delivers_an_evicted_entry_with_its_own_reason() {
    for mode in [Shutdown::RunNow, Shutdown::Drain { limit: S }] {
        let (stepped, map, gone) = collecting(builder(1, GroupFull::EvictOldest));
        fill(&map, "a", [1, 2]);
        stepped.shutdown(mode);
        let expected = match mode {
            Shutdown::RunNow => vec![(1, Reason::GroupFull), (2, Reason::Shutdown)],
            _ => vec![(1, Reason::GroupFull)],
        };
        let mut gone = taken(&gone);
        gone.sort_unstable_by_key(|gone| gone.0);
        assert_eq!(gone, expected);
        assert_eq!(map.group_len("a"), 0);
        assert!(map.stats().balances());
    }
}

#[test]
fn an_entry_that_is_due_already_keeps_its_deadline_and_one_that_is_too_old_its_reason() {
    for policy in POLICIES {
        // Due, and a touch could have saved it.
        let (stepped, map, gone) = collecting(builder(1, policy));
        fill(&map, "a", [1]);
        stepped.clock().set(at(70));
        fill(&map, "a", [2]);
        assert_eq!(map.touch(&1), Touch::Expired);
        stepped.settle();
        assert_eq!(gone.lock().unwrap()[0].deadline, at(60));
        assert_eq!(gone.lock().unwrap()[0].lateness, 10 * S);
        assert_eq!(taken(&gone), [(1, Reason::GroupFull)]);
        // Too old.
        let (stepped, map, gone) = collecting(builder(1, policy).time_to_live(5 * S));
        fill(&map, "a", [1]);
        stepped.clock().set(at(70));
        fill(&map, "a", [2]);
        assert_eq!((members(&map, "a"), map.len()), (vec![2], 2));
        stepped.settle();
        assert_eq!(taken(&gone), [(1, Reason::Lifetime)]);
        assert!(map.stats().balances());
    }
}

#[test]
fn an_entry_without_a_deadline_is_evicted_at_once() {
    for policy in POLICIES {
        let (stepped, map, gone) = collecting(builder(1, policy));
        map.entry(1)
            .group("a")
            .expiry(Expiry::NEVER)
            .insert(1_000)
            .unwrap();
        map.entry(2)
            .group("a")
            .expiry(Expiry::NEVER)
            .insert(2_000)
            .unwrap();
        stepped.settle();
        assert_eq!(taken(&gone), [(1, Reason::GroupFull)]);
        // The newest one may be due at once itself.
        let at_once = Expiry::NEVER.time_to_idle(Duration::ZERO);
        map.entry(3)
            .group("a")
            .expiry(at_once)
            .insert(3_000)
            .unwrap();
        stepped.settle();
        let mut gone = taken(&gone);
        gone.sort_unstable_by_key(|gone| gone.0);
        assert_eq!(gone, [(2, Reason::GroupFull), (3, Reason::Idle)]);
        assert!(map.is_empty());
    }
}

/// A handler has one entry of the key while another one is inserted and evicted: one after the
/// other.
#[test]
fn an_entry_that_waits_for_a_run_of_its_key_is_evicted_and_delivered_after_that() {
    for policy in POLICIES {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&calls);
        let stepped = builder(1, policy)
            .build_stepped(1, move |map: &Map, expired| {
                let round = log.lock().unwrap().len();
                log.lock().unwrap().push((expired.value, expired.reason));
                if round == 0 {
                    // It has left its group, and is no longer counted.
                    map.entry(expired.key).group("a").insert(1).unwrap();
                    assert!(map.touch(&expired.key).is_alive());
                    map.entry(8).group("a").insert(8).unwrap();
                    assert_eq!(map.touch(&expired.key), Touch::Expired);
                    assert_eq!(map.group_len("a"), 1);
                    assert_eq!(log.lock().unwrap().len(), 1);
                }
            })
            .unwrap();
        let map = stepped.map();
        map.entry(7).group("a").insert(0).unwrap();
        stepped.advance(IDLE);
        let expected = [(0, Reason::Idle), (1, Reason::GroupFull)];
        assert_eq!(*calls.lock().unwrap(), expected);
        assert_eq!(members(&map, "a"), [8]);
        assert!(map.stats().balances() && map.stats().panicked == 0);
    }
}

// === refusals ===

#[test]
fn c172_an_insertion_that_is_refused_evicts_nothing() {
    for policy in POLICIES {
        let (stepped, map, gone) = collecting(builder(2, policy).max_pending(2));
        fill(&map, "a", [1, 2]);
        let error = map.entry(3).group("a").insert(9).unwrap_err();
        assert_eq!(
            (error.key, error.value, error.refusal),
            (3, 9, InsertRefusal::Full)
        );
        assert_eq!(members(&map, "a"), [1, 2]);
        stepped.settle();
        assert_eq!(taken(&gone), []);
        assert!(map.touch(&1).is_alive());
        // In its own place it needs no room.
        assert!(map.entry(1).group("a").insert(1_000).is_ok());
        stepped.shutdown(Shutdown::HandBack);
        let error = map.entry(3).group("a").insert(9).unwrap_err();
        assert_eq!(error.refusal, InsertRefusal::Closed);
        assert_eq!(taken(&gone), []);
    }
}

#[test]
fn an_evicted_entry_counts_for_max_pending_until_its_delivery() {
    let (stepped, map, gone) = collecting(builder(1, GroupFull::EvictOldest).max_pending(2));
    fill(&map, "a", [1, 2]);
    let error = map.entry(3).group("a").insert(9).unwrap_err();
    assert_eq!(error.refusal, InsertRefusal::Full);
    assert_eq!(members(&map, "a"), [2]);
    stepped.settle();
    fill(&map, "a", [3]);
    stepped.settle();
    let reason = Reason::GroupFull;
    assert_eq!(taken(&gone), [(1, reason), (2, reason)]);
}

#[test]
fn a_maximum_of_nothing_is_an_error_and_without_one_nothing_is_evicted() {
    for policy in [GroupFull::Refuse, POLICIES[0], POLICIES[1]] {
        let error = builder(0, policy).build(|_, _| ()).unwrap_err();
        assert!(matches!(error, BuildError::MaxPerGroup), "{error}");
        let stepped: Stepped = ExpiryMap::builder()
            .groups::<String>()
            .when_group_full(policy)
            .build_stepped(1, |_, _| unreachable!("nothing is evicted"))
            .unwrap();
        let map = stepped.map();
        fill(&map, "a", 0..1_000);
        stepped.settle();
        assert_eq!(map.group_len("a"), 1_000);
    }
    assert_eq!(GroupFull::default(), GroupFull::Refuse);
}

// === receivers ===

#[test]
fn batches_channels_and_streams_get_evicted_entries() {
    let clock = ManualClock::new();
    let batches = Gone::default();
    let collect = Arc::clone(&batches);
    let map: Map = builder(10, GroupFull::EvictOldest)
        .clock(Clock::manual(&clock))
        .build_batched(4, move |_, batch| collect.lock().unwrap().extend(batch))
        .unwrap();
    fill(&map, "a", 0..110);
    until("all but ten are delivered", || {
        map.stats().evicted == 100 && batches.lock().unwrap().len() == 100
    });
    let mut gone = taken(&batches);
    gone.sort_unstable_by_key(|gone| gone.0);
    assert!(gone.iter().map(|gone| gone.0).eq(0..100));
    assert!(gone.iter().all(|gone| gone.1 == Reason::GroupFull));

    // A channel that is full holds evicted entries back in the map; nothing is lost.
    let (map, expired) = builder(1, GroupFull::EvictOldest)
        .clock(Clock::manual(&clock))
        .build_channel(1)
        .unwrap();
    fill(&map, "a", 0..50);
    assert_eq!(map.group_len("a"), 1);
    // Those that wait are replaced or removed as others.
    until(
        "one is in the channel, and another one is on its way",
        || map.stats().evicted == 2,
    );
    let waiting: Vec<_> = (0..50)
        .filter(|key| map.touch(key) == Touch::Expired)
        .collect();
    let removed = waiting
        .iter()
        .filter(|key| map.remove(key).value().is_some())
        .count();
    assert!(removed >= 47, "{removed}");
    let mut received = 0;
    while received + removed < 49 {
        assert_eq!(expired.recv().unwrap().reason, Reason::GroupFull);
        received += 1;
    }
    until("nothing else is on its way", || map.len() == 1);
    assert!(expired.try_recv().is_err());
    assert!(map.stats().balances());

    // Nobody receives.
    let (map, expired) = builder(1, GroupFull::EvictOldest)
        .clock(Clock::manual(&clock))
        .when_receiver_lost(ReceiverLost::Drop)
        .build_channel(8)
        .unwrap();
    drop(expired);
    fill(&map, "a", 0..50);
    until("all but one are dropped", || map.stats().unreceived == 49);
    assert_eq!(members(&map, "a"), [49]);
}

#[test]
fn a_pace_holds_for_evicted_entries_and_foreign_executors_run_them_without_a_lock() {
    let (stepped, map, gone) = collecting(builder(1, GroupFull::EvictOldest).pace(1_000));
    fill(&map, "a", 0..100);
    stepped.settle();
    assert!(taken(&gone).len() < 20);
    stepped.advance(S);
    assert_eq!(map.len(), 1);
    assert!(map.stats().balances());

    let map: Map = builder(1, GroupFull::EvictOldest)
        .inline()
        .build(|map: &Map, _| {
            // Would panic under a lock.
            assert_eq!(map.group_len("a"), 1);
        })
        .unwrap();
    fill(&map, "a", 0..100);
    until("all but one are delivered", || map.stats().evicted == 99);
    assert_eq!(map.stats().panicked, 0);
}

#[test]
fn the_last_entry_of_a_group_drops_its_name_and_its_order() {
    let drops = Drops::default();
    let values = Arc::new(Mutex::new(Vec::new()));
    let collect = Arc::clone(&values);
    let stepped = ExpiryMap::<u32, Mark>::builder()
        .groups::<u32>()
        .max_per_group(2)
        .when_group_full(GroupFull::EvictOldest)
        .build_stepped(1, move |_, expired| {
            collect.lock().unwrap().push(expired.key);
        })
        .unwrap();
    let map = stepped.map();
    for key in 0..100 {
        let group = key % 7;
        assert!(map.entry(key).group(&group).insert(drops.mark()).is_ok());
    }
    stepped.settle();
    assert_eq!((drops.count(), map.len()), (86, 14));
    for group in 0..7 {
        assert_eq!(map.remove_group(&group).len(), 2);
    }
    map.shrink_to_fit();
    assert_eq!((drops.count(), map.len()), (100, 0));
}

// === threads ===

/// Every insertion ends exactly once: delivered, replaced, removed, or left. Keys and groups are
/// shared by all threads. No group has ever more entries than it may, by any of the calls.
#[test]
fn c173_every_entry_ends_once_when_evictions_race_with_touches_removals_moves_and_expiry() {
    const THREADS: u32 = 4;
    const EACH: u32 = 3_000;
    const MOST: usize = 3;
    for policy in POLICIES {
        // How often each value has ended, by its number.
        let ends: Arc<Vec<AtomicU32>> =
            Arc::new((0..THREADS * EACH).map(|_| AtomicU32::new(0)).collect());
        let (journal, evicted) = (Arc::clone(&ends), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&evicted);
        let map: Map = ExpiryMap::builder()
            .time_to_idle(Duration::from_millis(2))
            .tick(Duration::from_micros(100))
            .groups::<String>()
            .max_per_group(MOST)
            .when_group_full(policy)
            .build(move |_, expired| {
                journal[expired.value as usize].fetch_add(1, Ordering::Relaxed);
                count.fetch_add(
                    usize::from(expired.reason == Reason::GroupFull),
                    Ordering::Relaxed,
                );
            })
            .unwrap();
        let end = |value: u32| ends[value as usize].fetch_add(1, Ordering::Relaxed);
        thread::scope(|scope| {
            for number in 0..THREADS {
                let map = &map;
                scope.spawn(move || {
                    for n in 0..EACH {
                        let key = (7 * n + number) % 40;
                        let group = ["a", "b", "c"][((n / 5 + number) % 3) as usize];
                        let value = number * EACH + n;
                        if let Some(old) =
                            map.entry(key).group(group).insert(value).unwrap().replaced
                        {
                            end(old);
                        }
                        assert!(map.group_len(group) <= MOST);
                        match n % 7 {
                            0 => {
                                for (_, old) in map.remove_group(group) {
                                    end(old);
                                }
                            }
                            1 => assert!(map.touch_group(group) <= MOST),
                            2 => {
                                if let Some(old) = map.remove(&((key + 1) % 40)).value() {
                                    end(old);
                                }
                            }
                            3 => {
                                // The same value once more, in no group.
                                if let Some(old) = map.insert(key, value).unwrap().replaced {
                                    end(old);
                                }
                            }
                            4 => {
                                // A touch that was answered is true: the entry was alive.
                                if let (touch, Some(seen)) = map.touch_with(&key, |value| *value) {
                                    assert!(touch.is_alive());
                                    assert!(seen < THREADS * EACH);
                                }
                            }
                            5 => assert!(map.group_entries(group).len() <= MOST),
                            _ => drop(map.group_of(&key)),
                        }
                    }
                });
            }
        });
        until("all that is left expires", || {
            map.is_empty() && map.stats().running == 0
        });
        // Where `n % 7 == 3`, the value was inserted twice.
        for (value, ended) in ends.iter().enumerate() {
            let inserted = if value as u32 % EACH % 7 == 3 { 2 } else { 1 };
            assert_eq!(ended.load(Ordering::Relaxed), inserted, "value {value}");
        }
        assert!(evicted.load(Ordering::Relaxed) > 0);
        assert_eq!(["a", "b", "c"].map(|group| map.group_len(group)), [0; 3]);
        let stats = map.stats();
        assert!(stats.balances() && stats.panicked == 0);
    }
}

/// A thread touches one session, while others sign in as the same user. If a touch was answered
/// with a deadline, the session was there; once it was answered otherwise, it never comes back.
#[test]
fn c173_a_touch_that_races_with_the_eviction_gets_a_true_answer() {
    for policy in POLICIES {
        for round in 0..200 {
            let clock = ManualClock::new();
            let gone = Gone::default();
            let collect = Arc::clone(&gone);
            let map: Map = builder(2, policy)
                .clock(Clock::manual(&clock))
                .workers(1)
                .build(move |_, expired| collect.lock().unwrap().push(expired))
                .unwrap();
            clock.advance(S);
            fill(&map, "a", [1, 2]);
            let over = Over(AtomicBool::new(false));
            let last = thread::scope(|scope| {
                let toucher = scope.spawn(|| {
                    let mut dead = None;
                    let mut is_last = false;
                    while !is_last {
                        is_last = over.is_set();
                        let touch = map.touch(&1);
                        match dead {
                            None if !touch.is_alive() => dead = Some(touch),
                            None => {}
                            Some(_) => assert!(!touch.is_alive(), "it was dead before"),
                        }
                        if dead.is_some() {
                            assert!(!map.group_entries("a").iter().any(|entry| entry.0 == 1));
                        }
                    }
                    dead
                });
                let end = EndOf(&over);
                for key in 3..5 {
                    clock.advance(S);
                    fill(&map, "a", [key]);
                }
                if policy == GroupFull::EvictLeastRecentlyTouched {
                    // The session is touched all the time, so it may have outlived the others.
                    map.remove(&1);
                }
                drop(end);
                toucher.join().unwrap()
            });
            assert!(last.is_some(), "round {round}");
            until("all is delivered", || map.len() == map.group_len("a"));
            until("the handlers have ended", || map.stats().running == 0);
            let mut ended = BTreeMap::new();
            for gone in gone.lock().unwrap().iter() {
                assert_eq!(gone.reason, Reason::GroupFull);
                *ended.entry(gone.key).or_insert(0) += 1;
            }
            assert!(ended.values().all(|times| *times == 1), "{ended:?}");
            if policy == GroupFull::EvictOldest {
                assert!(ended.keys().eq(&[1, 2]));
                assert_eq!(members(&map, "a"), [3, 4]);
            }
            assert!(map.stats().balances());
        }
    }
}

/// Its touches race with the looks of the insertions.
#[test]
fn an_entry_that_is_touched_all_the_time_is_never_evicted() {
    const MOST: u32 = 8;
    let clock = ManualClock::new();
    let map: Map = builder(MOST as usize, GroupFull::EvictLeastRecentlyTouched)
        .clock(Clock::manual(&clock))
        .build(|_, _| ())
        .unwrap();
    fill(&map, "a", 0..MOST);
    let (granted, inserted) = (AtomicU32::new(0), AtomicU32::new(0));
    let over = Over(AtomicBool::new(false));
    thread::scope(|scope| {
        for number in 0..2 {
            let (map, granted, inserted, over) = (&map, &granted, &inserted, &over);
            scope.spawn(move || {
                let mut key = 10 + number;
                while !over.is_set() {
                    let grant =
                        granted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                            left.checked_sub(1)
                        });
                    if grant.is_ok() {
                        fill(map, "a", [key]);
                        key += 2;
                        inserted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let _end = EndOf(&over);
        for round in 1..=500 {
            // Never more than three insertions after its last touch, in a group of eight.
            granted.store(3, Ordering::Relaxed);
            while inserted.load(Ordering::Relaxed) < 3 * round {
                clock.advance(Duration::from_nanos(1));
                let touch = map.touch(&0);
                assert!(touch.is_alive(), "the most recent one was evicted");
                assert_eq!(map.group_len("a"), MOST as usize);
            }
            clock.advance(Duration::from_nanos(1));
            assert!(map.touch(&0).is_alive());
        }
    });
    until("all are delivered", || map.len() == MOST as usize);
    assert!(map.contains(&0) && map.stats().balances());
}
