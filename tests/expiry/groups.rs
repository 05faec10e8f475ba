//! Groups of an `ExpiryMap`: who belongs to which, for how long, and what is done to all of a
//! group.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kit::drops::{Drops, Mark};
use kit::quiet::{WANTED, hush, panics};
use kit::wait::until;
use tourbillon::test_util::SteppedMap;
use tourbillon::{
    BuildError, Clock, Expired, Expiry, ExpiryMap, ExpiryMapBuilder, GroupedBy, GroupedExpiryMap,
    InsertRefusal, ManualClock, Shutdown, Time, Touch,
};

const S: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(60);
const LIFE: Duration = Duration::from_secs(100);

type Builder = ExpiryMapBuilder<u32, u32, GroupedBy<String>>;
type Map = GroupedExpiryMap<u32, u32, String>;
type Stepped = SteppedMap<u32, u32, GroupedBy<String>>;
type Gone = Arc<Mutex<Vec<u32>>>;

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

fn builder() -> Builder {
    ExpiryMap::builder()
        .time_to_idle(IDLE)
        .stripes(4)
        .shards(2)
        .groups::<String>()
}

/// The keys of expired entries are collected.
fn collecting(builder: Builder, seed: u64) -> (Stepped, Gone) {
    let gone = Gone::default();
    let collect = Arc::clone(&gone);
    let stepped = builder
        .build_stepped(seed, move |_, expired| {
            collect.lock().unwrap().push(expired.key);
        })
        .unwrap();
    (stepped, gone)
}

fn keys(gone: &Gone) -> Vec<u32> {
    let mut keys = std::mem::take(&mut *gone.lock().unwrap());
    keys.sort_unstable();
    keys
}

/// Values are a thousand times their keys.
fn fill(map: &Map, group: &str, keys: impl IntoIterator<Item = u32>) {
    for key in keys {
        let inserted = map.entry(key).group(group).insert(1_000 * key).unwrap();
        assert_eq!(inserted.replaced, None);
    }
}

fn sorted(mut entries: Vec<(u32, u32)>) -> Vec<u32> {
    entries.sort_unstable();
    for (key, value) in &entries {
        assert_eq!(*value, 1_000 * key);
    }
    entries.into_iter().map(|(key, _)| key).collect()
}

// === all of a group ===

#[test]
fn a_group_is_counted_shown_touched_and_removed_in_one_call() {
    for seed in 1..5 {
        let (stepped, gone) = collecting(builder(), seed);
        let map = stepped.map();
        // More than what one hold of a lock serves.
        fill(&map, "a", 0..1_000);
        fill(&map, "b", 1_000..1_010);
        for key in 2_000..2_010 {
            map.insert(key, 0).unwrap();
        }
        assert_eq!(
            ["a", "b", "c"].map(|group| map.group_len(group)),
            [1_000, 10, 0]
        );
        assert_eq!(map.group_of(&999).as_deref(), Some("a"));
        assert_eq!(map.group_of(&1_000).as_deref(), Some("b"));
        assert_eq!((map.group_of(&2_000), map.group_of(&9_999)), (None, None));
        assert_eq!(
            sorted(map.group_entries("a")),
            (0..1_000).collect::<Vec<_>>()
        );
        assert!(map.group_entries("c").is_empty());

        stepped.advance_to(at(30));
        assert_eq!(map.touch_group("a"), 1_000);
        assert_eq!(map.touch_group("c"), 0);
        assert_eq!(map.deadline(&7), Some(at(90)));
        assert_eq!(map.deadline(&1_000), Some(at(60)));
        stepped.advance_to(at(60));
        assert_eq!(
            keys(&gone),
            (1_000..1_010).chain(2_000..2_010).collect::<Vec<_>>()
        );
        assert_eq!((map.group_len("b"), map.len()), (0, 1_000));

        assert_eq!(
            sorted(map.remove_group("a")),
            (0..1_000).collect::<Vec<_>>()
        );
        assert_eq!((map.group_len("a"), map.len()), (0, 0));
        assert!(map.remove_group("a").is_empty());
        stepped.advance(IDLE);
        assert!(keys(&gone).is_empty());
        let stats = map.stats();
        assert!(stats.balances());
        assert_eq!((stats.removed, stats.expired), (1_000, 20));
    }
}

#[test]
fn what_is_due_and_waits_is_still_in_its_group_and_can_be_saved_or_removed() {
    let (stepped, gone) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, "a", 0..3);
    fill(&map, "b", 3..6);
    fill(&map, "c", 6..9);
    stepped.clock().set(at(70));
    assert_eq!((map.group_len("a"), map.touch_group("a")), (3, 3));
    assert_eq!(sorted(map.remove_group("b")), [3, 4, 5]);
    stepped.settle();
    assert_eq!(keys(&gone), [6, 7, 8]);
    assert_eq!(["a", "b", "c"].map(|group| map.group_len(group)), [3, 0, 0]);
}

#[test]
fn what_is_too_old_is_counted_until_it_is_delivered_but_not_touched_or_shown() {
    let (stepped, gone) = collecting(builder().time_to_live(LIFE), 1);
    let map = stepped.map();
    fill(&map, "a", 0..3);
    stepped.advance_to(at(50));
    assert_eq!(map.touch_group("a"), 3);
    fill(&map, "a", 3..5);
    stepped.clock().set(at(105));
    assert_eq!((map.group_len("a"), map.touch_group("a")), (5, 2));
    assert_eq!(sorted(map.group_entries("a")), [3, 4]);
    assert_eq!(map.group_of(&0), None);
    assert_eq!(map.group_of(&3).as_deref(), Some("a"));
    stepped.settle();
    assert_eq!(keys(&gone), [0, 1, 2]);
    assert_eq!(map.group_len("a"), 2);
    // As `remove` does, it takes out what is too old, too.
    stepped.clock().set(at(1_000));
    assert_eq!(sorted(map.remove_group("a")), [3, 4]);
    stepped.settle();
    assert!(keys(&gone).is_empty());
}

#[test]
fn a_touch_of_the_group_that_moves_nothing_still_finds_it_alive() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, "a", 0..3);
    let forever = map
        .entry(3)
        .group("a")
        .expiry(Expiry::NEVER)
        .insert(0)
        .unwrap();
    assert_eq!(forever.replaced, None);
    assert_eq!(map.touch_group("a"), 4);
    assert_eq!(map.deadline(&3), Some(Time::MAX));
}

// === belonging ===

#[test]
fn an_entry_leaves_its_group_however_it_ends() {
    type End = fn(&Stepped, &Map);
    let ends: [(&str, End); 15] = [
        ("idle", |stepped, _| stepped.advance(IDLE)),
        ("removed", |_, map| {
            assert_eq!(map.remove(&1).value(), Some(1_000));
        }),
        ("replaced", |_, map| {
            assert_eq!(map.insert(1, 2).unwrap().replaced, Some(1_000));
            assert!(map.contains(&1));
        }),
        ("replaced with an expiry", |_, map| {
            map.entry(1)
                .expiry(Expiry::NEVER)
                .no_group()
                .insert(2)
                .unwrap();
        }),
        ("replaced when too old", |stepped, map| {
            map.set_expiry(&1, Expiry::NEVER.time_to_live(S));
            stepped.clock().set(stepped.now() + S);
            let inserted = map.entry(1).no_group().insert_if_absent(2).unwrap();
            assert_eq!(inserted.replaced, Some(1_000));
        }),
        ("moved", |_, map| {
            let inserted = map.entry(1).group("b").insert(2).unwrap();
            assert_eq!(inserted.replaced, Some(1_000));
            assert_eq!(map.group_len("b"), 1);
            assert_eq!(map.group_of(&1).as_deref(), Some("b"));
            map.remove_group("b");
        }),
        ("sieved", |_, map| assert_eq!(map.retain(|_, _| false), 1)),
        ("cleared", |_, map| assert_eq!(map.clear(), 1)),
        ("removed with its group", |_, map| {
            assert_eq!(map.remove_group("a"), [(1, 1_000)]);
        }),
        ("too old", |stepped, map| {
            map.set_expiry(&1, Expiry::NEVER.time_to_live(S));
            stepped.advance(S);
        }),
        ("handed back", |stepped, _| {
            let report = stepped.shutdown(Shutdown::HandBack);
            assert_eq!(report.handed_back.len(), 1);
        }),
        ("run now", |stepped, _| {
            stepped.shutdown(Shutdown::RunNow);
        }),
        ("drained", |stepped, _| {
            stepped.shutdown(Shutdown::Drain { limit: 2 * IDLE });
        }),
        ("handed back after the limit", |stepped, _| {
            let report = stepped.shutdown(Shutdown::Drain { limit: S });
            assert_eq!(report.handed_back.len(), 1);
        }),
        ("jumped over", |stepped, _| stepped.jump_to(at(9_999))),
    ];
    for (name, end) in ends {
        for others in [0, 2] {
            let (stepped, _) = collecting(builder(), 1);
            let map = stepped.map();
            fill(&map, "a", [1]);
            for key in 2..2 + others {
                // In the group, too, but gone before.
                fill(&map, "a", [key]);
                map.remove(&key);
            }
            assert_eq!(map.group_len("a"), 1, "{name}");
            end(&stepped, &map);
            assert_eq!(map.group_len("a"), 0, "{name}");
            assert_ne!(map.group_of(&1).as_deref(), Some("a"), "{name}");
            assert!(map.remove_group("a").is_empty(), "{name}");
            assert!(map.stats().balances(), "{name}");
        }
    }
}

#[test]
fn an_entry_stays_in_its_group_through_touches_updates_and_refusals() {
    let (stepped, _) = collecting(builder().max_pending(2), 1);
    let map = stepped.map();
    fill(&map, "a", [1]);
    map.insert(2, 0).unwrap();
    stepped.advance(S);
    assert!(matches!(map.touch(&1), Touch::Touched { .. }));
    map.touch_many([&1, &2]);
    map.update(&1, |value| *value += 0);
    map.set_expiry(&1, Expiry::NEVER);
    assert!(map.entry(1).no_group().insert_if_absent(0).is_err());
    assert_eq!(
        map.entry(1)
            .no_group()
            .or_insert_with(|| 0)
            .unwrap()
            .into_value(),
        1_000
    );
    let full = map.entry(3).group("b").insert(0).unwrap_err();
    assert_eq!(full.refusal, InsertRefusal::Full);
    assert_eq!((map.group_len("a"), map.group_len("b")), (1, 0));
    assert_eq!(map.group_of(&1).as_deref(), Some("a"));
    assert_eq!(map.retain(|key, _| *key == 1), 1);
    assert_eq!(sorted(map.remove_group("a")), [1]);
}

#[test]
fn a_handler_finds_that_the_entry_has_left_its_group() {
    for seed in 1..10 {
        let left = Arc::new(AtomicUsize::new(3));
        let count = Arc::clone(&left);
        let stepped = builder()
            .build_stepped(seed, move |map, expired| {
                let left = count.fetch_sub(1, Ordering::Relaxed) - 1;
                assert_eq!(map.group_len("a"), left);
                assert_eq!(map.group_of(&expired.key), None);
                assert!(!sorted(map.group_entries("a")).contains(&expired.key));
            })
            .unwrap();
        let map = stepped.map();
        for key in 1..=3 {
            stepped.advance(S);
            fill(&map, "a", [key]);
        }
        stepped.advance(IDLE);
        assert_eq!(left.load(Ordering::Relaxed), 0);
        assert_eq!(map.stats().panicked, 0);
    }
}

#[test]
fn batches_and_receivers_find_the_same() {
    let clock = ManualClock::new();
    let delivered = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&delivered);
    let map: Map = builder()
        .clock(Clock::manual(&clock))
        .build_batched(16, move |map: &Map, batch| {
            for Expired { key, .. } in &batch {
                assert_eq!(map.group_of(key), None);
            }
            count.fetch_add(batch.len(), Ordering::Relaxed);
            assert!(map.group_len("a") <= 100 - batch.len());
        })
        .unwrap();
    fill(&map, "a", 0..100);
    clock.advance(IDLE);
    until("all are delivered", || {
        delivered.load(Ordering::Relaxed) == 100
    });
    assert_eq!(map.group_len("a"), 0);
    until("they are settled", || {
        map.stats().expired == 100 && map.is_empty()
    });
    assert_eq!(map.stats().panicked, 0);

    let clock = ManualClock::new();
    let (map, expired) = builder()
        .clock(Clock::manual(&clock))
        .build_channel(0)
        .unwrap();
    fill(&map, "a", 0..10);
    clock.advance(IDLE);
    for left in (0..10).rev() {
        let gone = expired.recv().unwrap();
        assert_eq!(map.group_of(&gone.key), None);
        // The next one may be on its way already, and have left.
        let count = map.group_len("a");
        assert!(count == left || count + 1 == left, "{count} of {left}");
    }
}

#[test]
fn what_is_inserted_while_the_handler_runs_is_in_its_group_at_once() {
    for seed in 1..10 {
        let rounds = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&rounds);
        let stepped = builder()
            .max_per_group(2)
            .build_stepped(seed, move |map: &Map, expired| {
                let key = expired.key;
                let round = counted.fetch_add(1, Ordering::Relaxed);
                if round > 0 {
                    return;
                }
                fill(map, "a", [key, 8]);
                assert_eq!(map.group_of(&key).as_deref(), Some("a"));
                assert_eq!(map.touch_group("a"), 2);
                assert!(map.entry(9).group("a").insert(0).is_err());
                // In its own place.
                assert!(map.entry(key).group("a").insert(0).is_ok());
                assert_eq!(map.group_len("a"), 2);
                let mut removed = map.remove_group("a");
                removed.sort_unstable();
                assert_eq!(removed, [(key, 0), (8, 8_000)]);
                assert_eq!((map.group_len("a"), map.contains(&key)), (0, false));
                fill(map, "b", [key]);
                assert_eq!(
                    map.entry(key)
                        .group("a")
                        .insert(1_000 * key)
                        .unwrap()
                        .replaced,
                    Some(1_000 * key)
                );
                assert_eq!((map.group_len("a"), map.group_len("b")), (1, 0));
            })
            .unwrap();
        let map = stepped.map();
        fill(&map, "a", [7]);
        stepped.advance(IDLE);
        assert_eq!(rounds.load(Ordering::Relaxed), 1);
        // When the run has ended, the same id stands for it.
        assert_eq!(map.group_of(&7).as_deref(), Some("a"));
        assert_eq!((map.touch_group("a"), map.group_len("a")), (1, 1));
        assert_eq!(sorted(map.group_entries("a")), [7]);
        stepped.advance(IDLE);
        assert_eq!((rounds.load(Ordering::Relaxed), map.group_len("a")), (2, 0));
        let stats = map.stats();
        assert_eq!((stats.panicked, stats.pending), (0, 0));
        assert!(stats.balances());
    }
}

// === how many ===

#[test]
fn a_full_group_refuses_one_more_and_gives_it_back() {
    let (stepped, _) = collecting(builder().max_per_group(2), 1);
    let map = stepped.map();
    fill(&map, "a", [1, 2]);
    fill(&map, "b", [3]);
    map.insert(4, 0).unwrap();
    for key in [3, 4, 5] {
        let error = map.entry(key).group("a").insert(9).unwrap_err();
        assert_eq!(
            (error.key, error.value, error.refusal),
            (key, 9, InsertRefusal::GroupFull)
        );
        assert!(error.to_string().contains("max_per_group"));
    }
    assert_eq!((map.group_len("a"), map.group_len("b")), (2, 1));
    // What was there stays as it was.
    assert_eq!((map.get(&3), map.get(&4)), (Some(3_000), Some(0)));
    assert_eq!(map.group_of(&3).as_deref(), Some("b"));

    // One that is in the group already is no more, however often.
    for value in 10..20 {
        map.entry(1).group("a").insert(value).unwrap();
        assert_eq!(map.group_len("a"), 2);
    }
    assert_eq!(map.get(&1), Some(19));
    assert!(map.entry(5).group("a").insert(0).is_err());

    // Room is made by whoever leaves.
    map.insert(1, 0).unwrap();
    fill(&map, "a", [5]);
    assert!(map.entry(1).group("a").insert(0).is_err());
    map.entry(5).group("b").insert(5_000).unwrap();
    assert!(map.entry(1).group("b").insert(0).is_err());
    map.entry(1).group("a").insert(1_000).unwrap();
    assert_eq!(map.remove(&2).value(), Some(2_000));
    fill(&map, "a", [6]);
    assert_eq!(sorted(map.remove_group("a")), [1, 6]);
    fill(&map, "a", [7, 8]);
    stepped.advance(IDLE);
    assert_eq!((map.group_len("a"), map.len()), (0, 0));
    fill(&map, "a", [7, 8]);
    assert!(map.stats().balances());
}

#[test]
fn the_bound_holds_for_what_is_due_and_for_what_is_too_old() {
    let (stepped, gone) = collecting(builder().time_to_live(LIFE).max_per_group(1), 1);
    let map = stepped.map();
    fill(&map, "a", [1]);
    stepped.clock().set(at(200));
    assert!(map.entry(2).group("a").insert(0).is_err());
    assert_eq!(
        map.entry(1).group("a").insert(0).unwrap().replaced,
        Some(1_000)
    );
    stepped.settle();
    assert!(keys(&gone).is_empty());
    stepped.clock().set(at(400));
    stepped.settle();
    assert_eq!(keys(&gone), [1]);
    fill(&map, "a", [2]);
}

#[test]
fn a_bound_of_nothing_is_refused() {
    let error = builder().max_per_group(0).build(|_, _| ()).unwrap_err();
    assert!(matches!(error, BuildError::MaxPerGroup), "{error}");
}

#[test]
fn a_closed_map_says_so_also_where_the_group_is_full() {
    for most in [1, 2] {
        let (stepped, _) = collecting(builder().max_per_group(most), 1);
        let map = stepped.map();
        fill(&map, "a", [1]);
        stepped.shutdown(Shutdown::HandBack);
        let error = map.entry(2).group("a").insert(9).unwrap_err();
        assert_eq!(
            (error.key, error.value, error.refusal),
            (2, 9, InsertRefusal::Closed)
        );
        assert_eq!(map.group_len("a"), 0);
        assert_eq!(map.touch_group("a"), 0);
        assert!(map.remove_group("a").is_empty());
    }
    // While it drains, the group is full.
    let full = Arc::new(Mutex::new(None));
    let tell = Arc::clone(&full);
    let stepped = builder()
        .max_per_group(1)
        .build_stepped(1, move |map: &Map, _| {
            let refused = map
                .entry(3)
                .group("a")
                .insert(0)
                .map_err(|error| error.refusal);
            *tell.lock().unwrap() = refused.err();
        })
        .unwrap();
    let map = stepped.map();
    fill(&map, "a", [1]);
    map.entry(2)
        .expiry(Expiry::NEVER.time_to_idle(S))
        .no_group()
        .insert(0)
        .unwrap();
    stepped.shutdown(Shutdown::Drain { limit: S });
    assert_eq!(*full.lock().unwrap(), Some(InsertRefusal::Closed));
}

// === names ===

/// Every hash is the same.
#[derive(Clone, Default)]
struct Same;

struct Nothing;

impl BuildHasher for Same {
    type Hasher = Nothing;

    fn build_hasher(&self) -> Nothing {
        Nothing
    }
}

impl Hasher for Nothing {
    fn write(&mut self, _: &[u8]) {}

    fn finish(&self) -> u64 {
        7
    }
}

#[test]
fn groups_are_told_apart_by_eq_not_by_their_hash() {
    let stepped = ExpiryMap::<u32, u32>::builder()
        .hasher(Same)
        .groups::<u32>()
        .build_stepped(1, |_, _| ())
        .unwrap();
    let map = stepped.map();
    for group in 0..50 {
        for n in 0..=group {
            map.entry(100 * group + n).group(&group).insert(0).unwrap();
        }
    }
    for group in (0..50).step_by(2) {
        let removed = map.remove_group(&group);
        assert_eq!(removed.len(), group as usize + 1);
        assert!(removed.iter().all(|(key, _)| key / 100 == group));
    }
    for group in 0..50 {
        let left = if group % 2 == 0 { 0 } else { group + 1 };
        assert_eq!(map.group_len(&group), left as usize);
        let named = map.group_of(&(100 * group));
        assert_eq!(named, (left > 0).then_some(group));
    }
}

/// A name of which every clone is counted.
struct Team(
    u32,
    Drops,
    #[allow(dead_code, reason = "it counts its drop")] Mark,
);

impl Team {
    fn new(number: u32, drops: &Drops) -> Self {
        Team(number, drops.clone(), drops.mark())
    }
}

impl Clone for Team {
    fn clone(&self) -> Self {
        spring(Op::Clone);
        Team::new(self.0, &self.1)
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        spring(Op::Drop);
    }
}

impl PartialEq for Team {
    fn eq(&self, other: &Self) -> bool {
        spring(Op::Eq);
        self.0 == other.0
    }
}

impl Eq for Team {}

impl Hash for Team {
    fn hash<H: Hasher>(&self, state: &mut H) {
        spring(Op::Hash);
        self.0.hash(state);
    }
}

#[derive(Debug)]
struct Key(u32);

impl Clone for Key {
    fn clone(&self) -> Self {
        spring(Op::KeyClone);
        Key(self.0)
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        spring(Op::KeyEq);
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Op {
    Eq,
    Hash,
    Clone,
    Drop,
    KeyEq,
    KeyClone,
}

type Trap = (Op, Box<dyn Fn()>);

thread_local! {
    static TRAP: RefCell<Option<Trap>> = const { RefCell::new(None) };
}

/// The next such operation of this thread does that, once.
fn set_trap(op: Op, what: impl Fn() + 'static) {
    TRAP.set(Some((op, Box::new(what))));
}

fn spring(op: Op) {
    let trap = TRAP.with(|trap| trap.borrow_mut().take_if(|(set, _)| *set == op));
    if let Some((_, what)) = trap {
        what();
    }
}

type Teams = GroupedExpiryMap<Key, u32, Team>;
type SteppedTeams = SteppedMap<Key, u32, GroupedBy<Team>>;

fn teams() -> SteppedTeams {
    ExpiryMap::builder()
        .time_to_idle(IDLE)
        .stripes(4)
        .shards(2)
        .groups::<Team>()
        .max_per_group(50)
        .build_stepped(1, |_, _| ())
        .unwrap()
}

#[test]
fn a_name_is_cloned_once_and_dropped_with_the_last_entry() {
    let drops = Drops::default();
    let stepped = teams();
    let map = stepped.map();
    let team = Team::new(1, &drops);
    let marks = |map: &Teams| map.group_len(&Team::new(1, &Drops::default()));
    for key in 0..50 {
        map.entry(Key(key)).group(&team).insert(key).unwrap();
    }
    drop(team);
    assert_eq!((drops.count(), marks(&map)), (1, 50));
    map.retain(|key, _| key.0 == 7);
    assert_eq!((drops.count(), marks(&map)), (1, 1));
    map.remove(&Key(7));
    assert_eq!((drops.count(), marks(&map)), (2, 0));
    // Groups come and go by the thousand.
    for number in 0..5_000 {
        let team = Team::new(number, &drops);
        map.entry(Key(number % 10)).group(&team).insert(0).unwrap();
    }
    // Two of each are gone but for the last ten.
    assert_eq!(drops.count(), 2 + 2 * 5_000 - 10);
    drop((map, stepped));
    assert_eq!(drops.count(), 2 + 2 * 5_000);
}

#[test]
fn a_map_that_is_abandoned_drops_its_groups() {
    let drops = Drops::default();
    let clock = ManualClock::new();
    let map = ExpiryMap::<u32, u32>::builder()
        .clock(Clock::manual(&clock))
        .groups::<Team>()
        .build(|_, _| unreachable!("nothing expires"))
        .unwrap();
    for key in 0..100 {
        map.entry(key)
            .group(&Team::new(key % 10, &drops))
            .insert(0)
            .unwrap();
    }
    assert_eq!(drops.count(), 100);
    drop(map);
    assert_eq!(drops.count(), 110);
}

// === hostile code ===

/// A team with three entries, another one with one, and one entry without.
fn three_and_one() -> (SteppedTeams, Teams, [Team; 3]) {
    let stepped = teams();
    let map = stepped.map();
    let drops = Drops::default();
    let teams = [0, 1, 2].map(|number| Team::new(number, &drops));
    for key in 0..3 {
        map.entry(Key(key)).group(&teams[0]).insert(key).unwrap();
    }
    map.entry(Key(3)).group(&teams[1]).insert(3).unwrap();
    map.insert(Key(4), 4).unwrap();
    (stepped, map, teams)
}

type Call = fn(&Teams, &[Team; 3]);

/// Calls under which such an operation runs, under a lock.
const CALLS: [(&str, Op, Call); 12] = [
    ("insert in a group", Op::Eq, |map, teams| {
        let _ = map.entry(Key(9)).group(&teams[0]).insert(9);
    }),
    ("insert in a group, new", Op::Clone, |map, teams| {
        let _ = map.entry(Key(9)).group(&teams[2]).insert(9);
    }),
    ("insert in a group, replacing", Op::KeyEq, |map, teams| {
        let _ = map.entry(Key(1)).group(&teams[0]).insert(9);
    }),
    ("insert in a group, moving", Op::KeyEq, |map, teams| {
        let _ = map.entry(Key(1)).group(&teams[1]).insert(9);
    }),
    (
        "insert in a group, moving to a new one",
        Op::KeyEq,
        |map, teams| {
            let _ = map.entry(Key(1)).group(&teams[2]).insert(9);
        },
    ),
    ("group_len", Op::Eq, |map, teams| {
        let _ = map.group_len(&teams[0]);
    }),
    ("touch_group", Op::Eq, |map, teams| {
        map.touch_group(&teams[0]);
    }),
    ("remove_group", Op::Eq, |map, teams| {
        map.remove_group(&teams[0]);
    }),
    ("group_entries", Op::Eq, |map, teams| {
        let _ = map.group_entries(&teams[0]);
    }),
    ("group_entries", Op::KeyClone, |map, teams| {
        let _ = map.group_entries(&teams[0]);
    }),
    ("group_of", Op::KeyEq, |map, _| {
        let _ = map.group_of(&Key(1));
    }),
    ("group_of", Op::Clone, |map, _| {
        let _ = map.group_of(&Key(1));
    }),
];

fn nothing_has_changed(map: &Teams, teams: &[Team; 3], name: &str) {
    let count = teams.each_ref().map(|team| map.group_len(team));
    assert_eq!(count, [3, 1, 0], "{name}");
    assert_eq!(map.len(), 5, "{name}");
    assert!(map.stats().balances(), "{name}");
    for key in 0..5 {
        let number = map.group_of(&Key(key)).map(|team| team.0);
        assert_eq!(
            number,
            [Some(0), Some(0), Some(0), Some(1), None][key as usize]
        );
        assert_eq!(map.get(&Key(key)), Some(key), "{name}");
    }
}

#[test]
fn a_panic_under_a_groups_lock_changes_nothing() {
    hush();
    for (name, op, call) in CALLS {
        let (stepped, map, teams) = three_and_one();
        set_trap(op, || panic!("{WANTED}"));
        let said = panics(|| call(&map, &teams));
        assert!(said.contains(WANTED), "{name}: {said}");
        nothing_has_changed(&map, &teams, name);
        // And it goes on.
        call(&map, &teams);
        stepped.advance(IDLE);
        assert_eq!(teams.each_ref().map(|team| map.group_len(team)), [0, 0, 0]);
        assert!(map.is_empty() && map.stats().balances(), "{name}");
    }
}

#[test]
fn a_panic_of_a_groups_hash_comes_before_everything() {
    hush();
    let calls: [Call; 5] = [CALLS[0].2, CALLS[5].2, CALLS[6].2, CALLS[7].2, CALLS[8].2];
    for call in calls {
        let (_stepped, map, teams) = three_and_one();
        set_trap(Op::Hash, || panic!("{WANTED}"));
        assert!(panics(|| call(&map, &teams)).contains(WANTED));
        nothing_has_changed(&map, &teams, "hash");
    }
}

#[test]
fn a_call_from_under_a_groups_lock_panics_instead_of_hanging() {
    hush();
    type Nested = fn(&Teams);
    let nested: [(&str, Nested); 6] = [
        ("len", |map| {
            let _ = map.len();
        }),
        ("insert", |map| {
            let _ = map.insert(Key(20), 20);
        }),
        ("remove", |map| {
            map.remove(&Key(0));
        }),
        ("group_len", |map| {
            let _ = map.group_len(&Team::new(0, &Drops::default()));
        }),
        ("remove_group", |map| {
            map.remove_group(&Team::new(0, &Drops::default()));
        }),
        ("insert in a group", |map| {
            let _ = map
                .entry(Key(20))
                .group(&Team::new(5, &Drops::default()))
                .insert(20);
        }),
    ];
    for (name, op, call) in CALLS {
        for (inner, nested) in nested {
            let (_stepped, map, teams) = three_and_one();
            let again = map.clone();
            set_trap(op, move || nested(&again));
            let said = panics(|| call(&map, &teams));
            assert!(
                said.contains("called the scheduler"),
                "{inner} in {name}: {said}"
            );
            nothing_has_changed(&map, &teams, name);
        }
    }
    // From under a stripe's lock.
    let (_stepped, map, teams) = three_and_one();
    let said = panics(|| map.with(&Key(0), |_| map.group_len(&teams[0])));
    assert!(said.contains("called the scheduler"), "{said}");
    let said = panics(|| {
        map.update(&Key(0), |_| {
            map.entry(Key(9)).group(&teams[0]).insert(9).is_ok()
        })
    });
    assert!(said.contains("called the scheduler"), "{said}");
    nothing_has_changed(&map, &teams, "with");
}

#[test]
fn a_drop_of_a_group_may_call_the_map_and_its_panic_is_caught() {
    hush();
    let (_stepped, map, teams) = three_and_one();
    let seen = Arc::new(AtomicUsize::new(99));
    let (see, again) = (Arc::clone(&seen), map.clone());
    set_trap(Op::Drop, move || {
        let team = Team::new(1, &Drops::default());
        see.store(again.group_len(&team), Ordering::Relaxed);
        again.insert(Key(8), 8).unwrap();
    });
    assert_eq!(map.remove(&Key(3)).value(), Some(3));
    assert_eq!(seen.load(Ordering::Relaxed), 0);
    assert_eq!(map.get(&Key(8)), Some(8));

    set_trap(Op::Drop, || panic!("{WANTED}"));
    assert_eq!(map.remove_group(&teams[0]).len(), 3);
    assert!(TRAP.take().is_none(), "it was dropped");
    assert_eq!(map.group_len(&teams[0]), 0);
    assert_eq!(map.len(), 2);
}

#[test]
fn keys_that_can_not_be_cloned_leave_their_group() {
    hush();
    // When it is taken for delivery.
    let (stepped, map, teams) = three_and_one();
    stepped.clock().set(at(60));
    set_trap(Op::KeyClone, || panic!("{WANTED}"));
    stepped.settle();
    assert!(TRAP.take().is_none());
    let stats = map.stats();
    assert_eq!((stats.expired, stats.panicked), (5, 1));
    assert_eq!(teams.each_ref().map(|team| map.group_len(team)), [0, 0, 0]);

    // When it comes back while its key runs.
    let left = Arc::new(AtomicUsize::new(0));
    let tell = Arc::clone(&left);
    let stepped = ExpiryMap::<Key, u32>::builder()
        .groups::<Team>()
        .build_stepped(1, move |map: &Teams, expired| {
            if expired.value > 0 {
                return;
            }
            let team = Team::new(1, &Drops::default());
            map.entry(expired.key).group(&team).insert(1).unwrap();
            map.entry(Key(8)).group(&team).insert(2).unwrap();
            set_trap(Op::KeyClone, || panic!("{WANTED}"));
            let removed = map.remove_group(&team);
            assert!(TRAP.take().is_none());
            assert_eq!(removed, [(Key(8), 2)]);
            tell.store(1 + map.group_len(&team) + map.len(), Ordering::Relaxed);
        })
        .unwrap();
    let map = stepped.map();
    let at_once = Expiry::NEVER.time_to_idle(Duration::ZERO);
    map.entry(Key(7))
        .expiry(at_once)
        .no_group()
        .insert(0)
        .unwrap();
    stepped.settle();
    assert_eq!(left.load(Ordering::Relaxed), 1);
    assert!(map.stats().balances());
}

/// And so have all that the same call took out.
#[test]
fn a_values_drop_finds_that_it_has_left_its_group() {
    struct Leaving(Arc<Mutex<Vec<usize>>>, Option<Values>);
    type Values = GroupedExpiryMap<u32, Leaving, u32>;
    impl Drop for Leaving {
        fn drop(&mut self) {
            if let Some(map) = &self.1 {
                self.0.lock().unwrap().push(map.group_len(&1));
            }
        }
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let stepped = ExpiryMap::<u32, Leaving>::builder()
        .groups::<u32>()
        .shards(1)
        .stripes(1)
        .build_stepped(1, |_, _| ())
        .unwrap();
    let map = stepped.map();
    for key in 0..5 {
        let value = Leaving(Arc::clone(&seen), Some(map.clone()));
        map.entry(key).group(&1).insert(value).unwrap();
    }
    assert_eq!(map.retain(|key, _| *key > 1), 2);
    let first = std::mem::take(&mut *seen.lock().unwrap());
    assert_eq!(first, [3, 3]);
    assert_eq!(map.clear(), 3);
    assert_eq!(*seen.lock().unwrap(), [0, 0, 0]);
}

// === threads ===

#[test]
fn what_is_inserted_before_a_removal_of_the_group_is_gone_and_what_comes_later_stays() {
    const EACH: u32 = 3_000;
    let clock = ManualClock::new();
    let map: Map = builder()
        .clock(Clock::manual(&clock))
        .build(|_, _| unreachable!("nothing expires"))
        .unwrap();
    // Of each inserter: how many insertions have begun, and how many have ended.
    let progress = [0, 1].map(|_| (AtomicU32::new(0), AtomicU32::new(0)));
    let removed = thread::scope(|scope| {
        for (number, (begun, ended)) in (0..).zip(&progress) {
            let map = &map;
            scope.spawn(move || {
                for n in 0..EACH {
                    begun.store(n + 1, Ordering::SeqCst);
                    fill(map, "a", [2 * n + number]);
                    ended.store(n + 1, Ordering::SeqCst);
                }
            });
        }
        let mut removed = BTreeSet::new();
        let mut seen = [0, 0];
        while seen != [EACH, EACH] {
            let before = progress
                .each_ref()
                .map(|(_, ended)| ended.load(Ordering::SeqCst));
            let gone = sorted(map.remove_group("a"));
            let after = progress
                .each_ref()
                .map(|(begun, _)| begun.load(Ordering::SeqCst));
            for key in gone {
                assert!(key / 2 < after[key as usize % 2], "{key} had not begun");
                assert!(removed.insert(key), "{key} came back twice");
            }
            for number in 0..2 {
                for n in seen[number]..before[number] {
                    let key = 2 * n + number as u32;
                    assert!(!map.contains(&key) && removed.contains(&key), "{key}");
                }
            }
            seen = before;
            // Nobody waits for the clock; the others get a chance.
            thread::yield_now();
        }
        removed
    });
    let inserted = progress
        .each_ref()
        .map(|(_, ended)| ended.load(Ordering::SeqCst) as usize);
    assert_eq!(map.group_len("a"), map.len());
    assert_eq!(removed.len() + map.len(), inserted[0] + inserted[1]);
    let left = sorted(map.remove_group("a"));
    assert!(left.iter().all(|key| !removed.contains(key)));
    assert!(map.is_empty() && map.stats().balances());
}

#[test]
fn every_entry_has_one_end_when_removals_of_groups_race_with_expiry_and_moves() {
    const THREADS: u32 = 3;
    const EACH: u32 = 2_000;
    let expired = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&expired);
    let map: Map = ExpiryMap::builder()
        .time_to_idle(Duration::from_micros(300))
        .tick(Duration::from_micros(100))
        .groups::<String>()
        .build(move |_, _| {
            count.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    let ended = thread::scope(|scope| {
        let inserters = (0..THREADS).map(|number| {
            let map = &map;
            scope.spawn(move || {
                let mut ended = 0;
                for n in 0..EACH {
                    // Keys are shared, and move from group to group.
                    let key = n % 50;
                    let group = ["a", "b", "c"][((n / 7 + number) % 3) as usize];
                    let replaced = map.entry(key).group(group).insert(n).unwrap().replaced;
                    ended += usize::from(replaced.is_some());
                    match n % 5 {
                        0 => ended += map.remove_group(group).len(),
                        1 => {
                            map.touch_group(group);
                        }
                        2 => ended += usize::from(map.remove(&key).value().is_some()),
                        3 => assert!(map.group_of(&key).is_none_or(|group| group.len() == 1)),
                        _ => assert!(map.group_len(group) <= 50 + THREADS as usize),
                    }
                }
                ended
            })
        });
        let inserters: Vec<_> = inserters.collect();
        inserters
            .into_iter()
            .map(|inserter| inserter.join().unwrap())
            .sum::<usize>()
    });
    until("all that is left expires", || {
        ended + expired.load(Ordering::Relaxed) == (THREADS * EACH) as usize
    });
    assert_eq!(["a", "b", "c"].map(|group| map.group_len(group)), [0; 3]);
    let stats = map.stats();
    assert!(stats.balances() && stats.pending == 0 && stats.panicked == 0);
}

#[test]
fn no_group_has_more_entries_than_it_may_whoever_inserts() {
    const MOST: usize = 5;
    let clock = ManualClock::new();
    let map: Map = builder()
        .clock(Clock::manual(&clock))
        .max_per_group(MOST)
        .build(|_, _| unreachable!("nothing expires"))
        .unwrap();
    for round in 0..20 {
        let accepted: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|number| {
                    let map = &map;
                    scope.spawn(move || {
                        let mut accepted = 0;
                        for n in 0..20 {
                            let key = 1_000 * round + 100 * number + n;
                            if map.entry(key).group("a").insert(0).is_ok() {
                                accepted += 1;
                                // In its own place, of which the others must not see anything.
                                assert!(map.entry(key).group("a").insert(1).is_ok());
                            }
                            assert!(map.group_len("a") <= MOST);
                        }
                        accepted
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        assert_eq!((accepted, map.group_len("a")), (MOST, MOST));
        assert_eq!(map.remove_group("a").len(), MOST);
    }
}
