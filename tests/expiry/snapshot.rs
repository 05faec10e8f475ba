//! Snapshots: what survives the way into another process.

use std::time::{Duration, SystemTime};

use kit::map::{IDLE, LIFE, S, at, builder, collecting, fill, keys, take, text};
use proptest::prelude::*;
use tourbillon::test_util::SteppedMap;
use tourbillon::{
    Expiry, ExpiryMap, GroupFull, GroupedBy, InsertError, InsertRefusal, Reason, Restored,
    Shutdown, Snapshot, Time, WallAnchor,
};

const NOON: u64 = 1_800_000_000;

/// Says that `seconds` after the start of the map's clock it is `wall` seconds after noon.
fn anchor(seconds: u64, wall: i64) -> WallAnchor {
    let wall = NOON.checked_add_signed(wall).unwrap();
    let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(wall);
    WallAnchor::new(at(seconds), wall)
}

/// Writes and reads the snapshot in two formats.
fn carried(snapshot: &Snapshot<u32, String>) -> Snapshot<u32, String> {
    let text = serde_json::to_string(snapshot).unwrap();
    let from_text: Snapshot<u32, String> = serde_json::from_str(&text).unwrap();
    let bytes = postcard::to_stdvec(snapshot).unwrap();
    let from_bytes: Snapshot<u32, String> = postcard::from_bytes(&bytes).unwrap();
    assert_eq!(from_text, *snapshot);
    assert_eq!(from_bytes, *snapshot);
    from_bytes
}

fn nothing_refused(restored: &Restored<u32, String>) {
    assert!(restored.refused.is_empty(), "{restored:?}");
}

#[test]
fn entries_go_on_with_the_time_that_they_have_left() {
    let (old, _) = collecting(builder().time_to_live(LIFE), 1);
    let map = old.map();
    fill(&map, [1]);
    map.entry(2).expiry(Expiry::NEVER).insert(text(2)).unwrap();
    old.advance(20 * S);
    map.entry(3)
        .expiry(Expiry::NEVER.time_to_live(30 * S))
        .insert(text(3))
        .unwrap();
    let _ = map.touch(&1);
    old.advance(5 * S);
    let snapshot = map.snapshot_at(&anchor(25, 0));
    assert_eq!((snapshot.len(), snapshot.is_empty()), (3, false));
    assert_eq!(snapshot.taken(), anchor(0, 0).system_time());
    assert_eq!(map.len(), 3, "nothing was taken out");

    // Ten seconds later, in a map with other times whose clock has just started.
    let (new, gone) = collecting(ExpiryMap::builder().time_to_idle(S), 1);
    let map = new.map();
    let restored = map.restore_at(carried(&snapshot), &anchor(0, 10)).unwrap();
    nothing_refused(&restored);
    assert_eq!(
        (restored.inserted, restored.past_due, restored.set_back),
        (3, 0, None)
    );
    // Touched at 20 with 60 s to idle, of which 15 s have passed; a lifetime of 100 s, of which 35
    // s.
    assert_eq!(map.remaining(&1), Some(IDLE - 15 * S));
    assert_eq!(map.remaining(&2), Some(Duration::MAX));
    assert_eq!(map.remaining(&3), Some(15 * S));
    assert_eq!(map.get(&1), Some(text(1)));
    // A touch counts the entry's own time to idle, up to the end of its own lifetime.
    new.advance(14 * S);
    assert!(map.touch(&1).is_alive());
    assert_eq!(map.remaining(&1), Some((LIFE - 35 * S - 14 * S).min(IDLE)));
    new.advance(100 * S);
    let ends: Vec<_> = take(&gone)
        .iter()
        .map(|gone| (gone.key, gone.reason))
        .collect();
    assert_eq!(ends, [(3, Reason::Lifetime), (1, Reason::Lifetime)]);
    assert_eq!(map.len(), 1, "the one that never expires");
}

#[test]
fn entries_that_are_past_due_are_delivered_at_once_for_their_own_reason() {
    let (old, _) = collecting(builder(), 1);
    let map = old.map();
    let idle = map.expiry();
    map.entry(1).expiry(idle).insert(text(1)).unwrap();
    map.entry(2)
        .expiry(idle.time_to_live(30 * S))
        .insert(text(2))
        .unwrap();
    map.entry(3)
        .expiry(idle.time_to_live(3 * IDLE))
        .insert(text(3))
        .unwrap();
    map.entry(4)
        .expiry(idle.time_to_live(IDLE))
        .insert(text(4))
        .unwrap();
    map.entry(5)
        .expiry(idle.time_to_idle(1_000 * S))
        .insert(text(5))
        .unwrap();
    let snapshot = map.snapshot_at(&anchor(0, 0));
    // Both maps are at the start of their clocks, before which there is no time.
    for (seconds, start) in [(500, 0), (500, 700)] {
        let (new, gone) = collecting(builder(), 1);
        let map = new.map();
        new.advance(Duration::from_secs(start));
        let restored = map
            .restore_at(snapshot.clone(), &anchor(start, seconds))
            .unwrap();
        nothing_refused(&restored);
        assert_eq!((restored.inserted, restored.past_due), (5, 4));
        assert!(
            map.get(&2).is_none() && map.get(&4).is_none(),
            "their lifetime is over"
        );
        new.settle();
        let mut ends: Vec<_> = take(&gone)
            .iter()
            .map(|gone| (gone.key, gone.reason))
            .collect();
        ends.sort_unstable_by_key(|end| end.0);
        let (idle, lifetime) = (Reason::Idle, Reason::Lifetime);
        assert_eq!(ends, [(1, idle), (2, lifetime), (3, idle), (4, lifetime)]);
        assert_eq!(map.remaining(&5), Some(500 * S));
    }
}

#[test]
fn a_calendar_that_was_set_back_makes_no_entry_live_longer() {
    let (old, _) = collecting(builder(), 1);
    fill(&old.map(), [1]);
    old.advance(20 * S);
    let snapshot = old.map().snapshot_at(&anchor(20, 0));
    let (new, _) = collecting(builder(), 1);
    let restored = new.map().restore_at(snapshot, &anchor(0, -3_600)).unwrap();
    assert_eq!(restored.set_back, Some(3_600 * S));
    assert_eq!(new.map().remaining(&1), Some(IDLE - 20 * S));
}

#[test]
fn what_is_refused_comes_back() {
    let (old, _) = collecting(builder(), 1);
    let map = old.map();
    for key in 0..5 {
        old.advance(S);
        fill(&map, [key]);
    }
    let snapshot = || map.snapshot_at(&anchor(5, 0));
    let (new, _) = collecting(builder().max_pending(3), 1);
    new.map().insert(1, "newer".into()).unwrap();
    let restored = new.map().restore_at(snapshot(), &anchor(0, 0)).unwrap();
    // Those that expire first are inserted first.
    assert_eq!(restored.inserted, 2);
    let refused = restored
        .refused
        .iter()
        .map(|error| (error.key, error.refusal));
    let full = InsertRefusal::Full;
    let expected = [(1, InsertRefusal::Occupied), (3, full), (4, full)];
    assert_eq!(refused.collect::<Vec<_>>(), expected);
    assert_eq!(restored.refused[1].value, text(3));
    assert_eq!(new.map().get(&1).as_deref(), Some("newer"));

    new.shutdown(Shutdown::HandBack);
    let restored = new.map().restore_at(snapshot(), &anchor(0, 0)).unwrap();
    assert_eq!((restored.inserted, restored.refused.len()), (0, 5));
    assert!(
        restored
            .refused
            .iter()
            .all(|error| error.refusal == InsertRefusal::Closed)
    );
}

/// More entries than one call for many takes, and a bound whose permits lie in blocks in all
/// stripes.
#[test]
fn of_many_entries_those_that_expire_last_are_refused() {
    const COUNT: u64 = 20_000;
    let (old, _) = collecting(builder(), 1);
    let map = old.map();
    for key in 0..COUNT as u32 {
        // In an order that has nothing to do with the keys, each with a deadline of its own.
        let seconds = 1 + u64::from(key) * 7_919 % COUNT;
        let expiry = Expiry::NEVER.time_to_live(seconds as u32 * S);
        map.entry(key).expiry(expiry).insert(text(key)).unwrap();
    }
    for (bound, there) in [(COUNT, 0), (COUNT, 1), (COUNT - 1, 0), (12_000, 3), (3, 0)] {
        let snapshot = map.snapshot_at(&anchor(0, 0));
        let (new, gone) = collecting(builder().stripes(8).max_pending(bound as usize), 1);
        let new_map = new.map();
        // Permits are taken in blocks and given back, so they are unused in all stripes.
        fill(&new_map, 0..3_000.min(bound as u32));
        assert_eq!(new_map.clear(), 3_000.min(bound as usize));
        for other in 0..there {
            new_map.insert(u32::MAX - other, text(7)).unwrap();
        }
        let restored = new_map.restore_at(snapshot, &anchor(0, 0)).unwrap();
        let room = bound - u64::from(there);
        let inserted = COUNT.min(room);
        assert_eq!(restored.inserted as u64, inserted, "{bound}, {there}");
        assert_eq!(restored.refused.len() as u64, COUNT - inserted);
        for refused in &restored.refused {
            let seconds = 1 + u64::from(refused.key) * 7_919 % COUNT;
            assert!(seconds > inserted, "{bound}: {seconds} of {inserted}");
            assert_eq!(refused.refusal, InsertRefusal::Full);
        }
        drop(take(&gone));
    }
}

/// Also if many are past due at the same time, or have a key that is in the map.
#[test]
fn many_entries_are_restored_that_are_past_due_or_occupied() {
    const COUNT: u32 = 10_000;
    let (old, _) = collecting(builder(), 1);
    let map = old.map();
    for key in 0..COUNT {
        let expiry = Expiry::NEVER.time_to_live(if key % 2 == 0 { S } else { 100 * S });
        map.entry(key).expiry(expiry).insert(text(key)).unwrap();
    }
    let snapshot = map.snapshot_at(&anchor(0, 0));
    let (new, gone) = collecting(builder(), 1);
    let map = new.map();
    fill(&map, (0..COUNT).step_by(5));
    let restored = map.restore_at(snapshot, &anchor(0, 10)).unwrap();
    assert_eq!((restored.inserted, restored.past_due), (8_000, 4_000));
    assert_eq!(restored.refused.len(), 2_000);
    let occupied = |refused: &InsertError<u32, String>| {
        refused.key.is_multiple_of(5) && refused.refusal == InsertRefusal::Occupied
    };
    assert!(restored.refused.iter().all(occupied));
    new.settle();
    let gone = take(&gone);
    assert_eq!(gone.len(), 4_000);
    assert!(
        gone.iter()
            .all(|gone| gone.key % 2 == 0 && gone.key % 5 != 0)
    );
    assert!(gone.iter().all(|gone| gone.value == text(gone.key)));
    assert_eq!(map.len(), 6_000);
}

#[test]
fn a_newer_format_is_refused_as_a_whole_and_comes_back() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, [1]);
    let stored = serde_json::to_string(&map.snapshot()).unwrap();
    let newer = stored.replacen("\"format\":1", "\"format\":2", 1);
    assert_ne!(stored, newer);
    let newer: Snapshot<u32, String> = serde_json::from_str(&newer).unwrap();
    let error = map.restore(newer.clone()).unwrap_err();
    assert_eq!(error.snapshot, newer);
    let text = error.to_string();
    assert!(
        text.contains("format 2") && text.contains("newer"),
        "{text}"
    );
    assert!(serde_json::from_str::<Snapshot<u32, String>>("{\"format\":1}").is_err());
}

type Grouped = SteppedMap<u32, String, GroupedBy<String>>;

fn grouped(most: usize, policy: GroupFull) -> Grouped {
    let builder = builder().groups::<String>().max_per_group(most);
    builder
        .when_group_full(policy)
        .build_stepped(1, |_, _| ())
        .unwrap()
}

#[test]
fn groups_are_restored_and_their_limits_hold() {
    let old = grouped(9, GroupFull::Refuse);
    let map = old.map();
    for key in 1..=4 {
        old.advance(S);
        map.entry(key).group("ada").insert(text(key)).unwrap();
    }
    map.entry(5).group("grace").insert(text(5)).unwrap();
    map.insert(6, text(6)).unwrap();
    map.remove(&4);
    let snapshot = map.snapshot_at(&anchor(4, 0));
    let stored = serde_json::to_string(&snapshot).unwrap();
    let snapshot: Snapshot<u32, String, String> = serde_json::from_str(&stored).unwrap();

    let new = grouped(9, GroupFull::Refuse);
    let restored = new
        .map()
        .restore_at(snapshot.clone(), &anchor(0, 0))
        .unwrap();
    assert_eq!(restored.inserted, 5);
    let group = |key: u32| new.map().group_of(&key);
    assert_eq!(group(1).as_deref(), Some("ada"));
    assert_eq!(group(5).as_deref(), Some("grace"));
    assert_eq!((group(6), new.map().len()), (None, 5));
    assert_eq!(new.map().remove_group("ada").len(), 3);

    let new = grouped(2, GroupFull::Refuse);
    let restored = new
        .map()
        .restore_at(snapshot.clone(), &anchor(0, 0))
        .unwrap();
    let refused = restored
        .refused
        .iter()
        .map(|error| (error.key, error.refusal));
    assert_eq!(refused.collect::<Vec<_>>(), [(3, InsertRefusal::GroupFull)]);

    let new = grouped(2, GroupFull::EvictOldest);
    let restored = new.map().restore_at(snapshot, &anchor(0, 0)).unwrap();
    assert_eq!((restored.inserted, restored.refused.len()), (5, 0));
    new.settle();
    let mut members: Vec<_> = new
        .map()
        .group_entries("ada")
        .into_iter()
        .map(|(key, _)| key)
        .collect();
    members.sort_unstable();
    assert_eq!(members, [2, 3], "the one that expires first was evicted");
}

#[test]
fn the_oldest_of_a_group_is_still_the_oldest_after_a_restoration() {
    for (policy, evicted) in [
        (GroupFull::EvictOldest, 1),
        (GroupFull::EvictLeastRecentlyTouched, 2),
    ] {
        let make = || {
            ExpiryMap::<u32, String>::builder()
                .time_to_idle(60 * S)
                .time_to_live(600 * S)
                .groups::<String>()
                .max_per_group(3)
                .when_group_full(policy)
                .build_stepped(1, |_, _| ())
                .unwrap()
        };
        let (old, new) = (make(), make());
        for key in 1..=3 {
            old.advance(S);
            old.map().entry(key).group("ada").insert(text(key)).unwrap();
        }
        old.advance(S);
        // The oldest one is used last.
        assert!(old.map().touch(&1).is_alive());
        let snapshot = old.map().snapshot_at(&anchor(4, 0));
        let restored = new.map().restore_at(snapshot, &anchor(0, 0)).unwrap();
        assert_eq!(restored.inserted, 3);
        new.map().entry(4).group("ada").insert(text(4)).unwrap();
        let gone: Vec<_> = (1..=4)
            .filter(|key| !new.map().touch(key).is_alive())
            .collect();
        assert_eq!(gone, [evicted], "{policy:?}");
    }
}

#[test]
fn a_map_of_the_real_clocks_keeps_its_times() {
    let make = || builder().build(|_, _| ()).unwrap();
    let (old, new) = (make(), make());
    fill(&old, 0..100);
    let snapshot = old.snapshot();
    nothing_refused(&new.restore(snapshot).unwrap());
    for key in 0..100 {
        let left = new.remaining(&key).unwrap();
        // Nobody knows how long this thread stood still meanwhile, but time did not go back.
        assert!(left <= IDLE + S, "{left:?}");
        assert_eq!(new.get(&key), Some(text(key)));
    }
}

#[derive(Clone, Debug)]
struct Saved {
    idle: Option<u64>,
    lifetime: Option<u64>,
    age: u64,
}

fn saved() -> impl Strategy<Value = Saved> {
    let span = || prop_oneof![Just(None), (1..200_u64).prop_map(Some)];
    (span(), span(), 0..100_u64).prop_map(|(idle, lifetime, age)| Saved {
        idle,
        lifetime,
        age,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Each entry has a deadline that only the time by the calendar has moved.
    #[test]
    fn a_restored_map_is_the_one_that_was_saved(
        entries in proptest::collection::vec(saved(), 0..40),
        away in -50..300_i64,
        start in 0..500_u64,
    ) {
        let (old, _) = collecting(builder(), 1);
        let map = old.map();
        let spans = |saved: &Saved| {
            let expiry = Expiry::NEVER;
            let expiry = saved.idle.map_or(expiry, |idle| expiry.time_to_idle(Duration::from_secs(idle)));
            saved.lifetime.map_or(expiry, |end| expiry.time_to_live(Duration::from_secs(end)))
        };
        // The oldest ones first, so that each has its age at 100.
        let mut order: Vec<u32> = (0..entries.len() as u32).collect();
        order.sort_by_key(|key| std::cmp::Reverse(entries[*key as usize].age));
        for key in order {
            let saved = &entries[key as usize];
            old.advance_to(at(100 - saved.age));
            map.entry(key).expiry(spans(saved)).insert(text(key)).unwrap();
        }
        old.advance_to(at(100));
        let before: Vec<(u32, String, Time)> = map.iter().with_deadlines().collect();
        let snapshot = carried(&map.snapshot_at(&anchor(100, 0)));
        prop_assert_eq!(snapshot.len(), before.len());
        let (new, gone) = collecting(builder(), 1);
        new.advance(Duration::from_secs(start));
        let restored = new.map().restore_at(snapshot, &anchor(start, away)).unwrap();
        nothing_refused(&restored);
        prop_assert_eq!(restored.inserted, before.len());
        new.settle();
        let delivered = keys(&gone);
        prop_assert_eq!(restored.past_due, delivered.len());
        let passed = Duration::from_secs(u64::try_from(away).unwrap_or(0));
        for (key, value, deadline) in before {
            let left = match deadline {
                Time::MAX => Some(Duration::MAX),
                deadline => deadline.since(at(100)).checked_sub(passed).filter(|left| !left.is_zero()),
            };
            prop_assert_eq!(new.map().remaining(&key), left);
            prop_assert_eq!(new.map().get(&key), left.map(|_| value));
            prop_assert_eq!(delivered.contains(&key), left.is_none());
        }
    }
}

#[test]
fn a_restoration_by_an_anchor_that_is_ahead_of_the_clock_delivers_nothing_early() {
    let (old, _) = collecting(builder().time_to_live(LIFE), 1);
    fill(&old.map(), 0..100);
    let snapshot = old.map().snapshot_at(&anchor(0, 0));
    let (new, gone) = collecting(builder(), 1);
    let map = new.map();
    // By the anchor, 59 s have passed since the snapshot, and an hour since the start of the map's
    // clock.
    let restored = map
        .restore_at(snapshot.clone(), &anchor(3_600, 59))
        .unwrap();
    nothing_refused(&restored);
    // By this one, the entries are past due at a moment that has not come.
    let restored = map.restore_at(snapshot, &anchor(3_600, 1_000)).unwrap();
    assert_eq!((restored.inserted, restored.refused.len()), (0, 100));
    map.entry(1_000)
        .expiry(Expiry::NEVER.time_to_idle(S))
        .insert(text(1_000))
        .unwrap();
    new.advance(S);
    assert_eq!(keys(&gone), [1_000], "no wheel is ahead of the clock");
    new.advance_to(at(3_601) - Duration::from_nanos(1));
    assert!(keys(&gone).is_empty());
    new.advance_to(at(3_601));
    assert_eq!(keys(&gone).len(), 100);
}

#[test]
fn an_entry_that_was_due_before_an_anchor_that_is_ahead_waits_for_its_deadline() {
    let (old, _) = collecting(builder(), 1);
    fill(&old.map(), [1]);
    let snapshot = old.map().snapshot_at(&anchor(0, 0));
    let (new, gone) = collecting(builder(), 1);
    let restored = new.map().restore_at(snapshot, &anchor(3_600, 100)).unwrap();
    assert_eq!((restored.inserted, restored.past_due), (1, 1));
    new.settle();
    assert!(keys(&gone).is_empty());
    new.advance_to(at(3_560));
    assert_eq!(keys(&gone), [1]);
}
