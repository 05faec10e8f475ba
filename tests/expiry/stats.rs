//! The counters of a map, in its own words.

use std::collections::BTreeSet;
use std::time::Duration;

use kit::steps::SEEDS;
use tourbillon::{Expiry, ExpiryMap, Scheduler, Shutdown};

const S: Duration = Duration::from_secs(1);

#[test]
fn each_way_in_and_out_has_its_counter() {
    for seed in SEEDS {
        let stepped = ExpiryMap::<u64, u64>::builder()
            .time_to_idle(10 * S)
            .groups::<String>()
            .max_per_group(2)
            .when_group_full(tourbillon::GroupFull::EvictOldest)
            .build_stepped(seed, |_, _| ())
            .unwrap();
        let map = stepped.map();
        for key in 0..4 {
            map.entry(key).group("a").insert(key).unwrap();
        }
        map.insert(10, 0).unwrap();
        map.insert(10, 1).unwrap();
        map.insert(11, 0).unwrap();
        map.insert(12, 0).unwrap();
        assert!(map.remove(&11).value().is_some());
        assert_eq!(
            map.stats().pending,
            6,
            "two of them are evicted and not delivered"
        );
        stepped.settle();
        let stats = map.stats();
        assert_eq!((stats.inserted, stats.evicted, stats.expired), (8, 2, 0));
        assert_eq!((stats.removed, stats.replaced, stats.pending), (1, 1, 4));
        map.set_expiry(&12, Expiry::NEVER);
        stepped.advance(10 * S);
        let stats = map.stats();
        assert_eq!((stats.expired, stats.evicted, stats.pending), (3, 2, 1));
        let report = stepped.shutdown(Shutdown::HandBack);
        assert_eq!(report.handed_back.len(), 1);
        let stats = map.stats();
        assert_eq!((stats.handed_back, stats.pending), (1, 0));
        assert!(stats.balances());
    }
}

#[test]
fn lookups_count_by_what_they_found() {
    let stepped = ExpiryMap::<u64, u64>::builder()
        .time_to_idle(10 * S)
        .groups::<String>()
        .build_stepped(1, |_, _| ())
        .unwrap();
    let map = stepped.map();
    let counts = || {
        let stats = map.stats();
        (stats.touched, stats.found, stats.missed)
    };
    map.entry(1).group("a").insert(1).unwrap();
    map.entry(2).group("a").insert(2).unwrap();
    assert_eq!(counts(), (0, 0, 0));
    // Touches.
    assert!(map.touch(&1).is_alive() && map.touch_at(&2, map.now()).is_alive());
    assert!(map.touch_with(&1, |_| ()).0.is_alive());
    assert_eq!(map.touch_group("a"), 2);
    assert_eq!(counts(), (5, 0, 0));
    assert_eq!(map.get_and_touch(&1), Some(1));
    map.touch_many([&1, &2, &3]);
    assert_eq!(counts(), (8, 0, 1));
    // Reads.
    assert_eq!((map.get(&1), map.with(&2, |two| *two)), (Some(1), Some(2)));
    assert_eq!(map.update(&1, |one| *one), Some(1));
    assert!(map.contains(&1) && map.deadline(&1).is_some() && map.remaining(&1).is_some());
    assert_eq!(counts(), (8, 6, 1));
    // Misses.
    assert!(!map.touch(&3).is_alive() && !map.touch_at(&3, map.now()).is_alive());
    assert!(!map.touch_with(&3, |_| ()).0.is_alive());
    assert_eq!((map.get(&3), map.update(&3, |_| ())), (None, None));
    assert_eq!(counts(), (8, 6, 6));
    // A lifetime that is over is a miss, before the delivery, too.
    map.entry(4)
        .expiry(Expiry::NEVER.time_to_live(S))
        .no_group()
        .insert(4)
        .unwrap();
    stepped.clock().advance(2 * S);
    assert!(map.get(&4).is_none() && !map.touch(&4).is_alive());
    assert_eq!(counts(), (8, 6, 8));
}

#[test]
fn counts_are_exact_beyond_a_byte_and_beside_other_threads() {
    let map = ExpiryMap::<u64, u64>::builder().build(|_, _| ()).unwrap();
    map.insert(0, 0).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for call in 0..3_000 {
                    map.touch(&0);
                    let _ = map.get(&(call % 3));
                }
            });
        }
    });
    let stats = map.stats();
    assert_eq!(
        (stats.touched, stats.found, stats.missed),
        (12_000, 4_000, 8_000)
    );
}

#[test]
fn the_iterators_have_every_number_under_the_name_of_its_field() {
    /// The fields that hold a number, by the pretty form.
    fn fields(shown: &str) -> BTreeSet<String> {
        let lines = shown.lines().filter_map(|line| line.strip_prefix("    "));
        lines
            .filter_map(|line| line.strip_suffix(',')?.split_once(": "))
            .filter(|(name, value)| {
                !name.starts_with(char::is_whitespace) && value.parse::<u64>().is_ok()
            })
            .map(|(name, _)| name.to_owned())
            .collect()
    }
    let map = ExpiryMap::<u64, u64>::builder().build(|_, _| ()).unwrap();
    map.insert(7, 7).unwrap();
    let stats = map.stats();
    let named: BTreeSet<String> = stats.iter().map(|(name, _)| name.to_owned()).collect();
    assert_eq!(named, fields(&format!("{stats:#?}")));
    assert_eq!(
        stats.iter().find(|(name, _)| *name == "inserted"),
        Some(("inserted", 1))
    );

    let scheduler = Scheduler::<u64>::new().unwrap();
    let stats = scheduler.handle().stats();
    let named: BTreeSet<String> = stats.iter().map(|(name, _)| name.to_owned()).collect();
    assert_eq!(named, fields(&format!("{stats:#?}")));
}
