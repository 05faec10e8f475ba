//! `ExpiryMap`: bounds, and how a map ends.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::map::{IDLE, Map, S, at, builder, collecting, fill, keys, take, text};
use kit::wait::until;
use tourbillon::test_util::SteppedMap;
use tourbillon::{
    Clock, Expiry, ExpiryMap, InsertRefusal, Lifecycle, ManualClock, Reason, Removed, Shutdown,
    Time, Touch,
};

#[test]
fn refusals_give_key_and_value_back() {
    let (stepped, _) = collecting(builder().max_pending(2), 1);
    let map = stepped.map();
    fill(&map, [1, 2]);
    let error = map.insert(3, text(3)).unwrap_err();
    assert!(error.to_string().contains("max_pending"));
    assert_eq!(
        (error.key, error.value, error.refusal),
        (3, text(3), InsertRefusal::Full)
    );
    assert_eq!(map.insert(2, "b".into()).unwrap().replaced, Some(text(2)));
    let error = map.entry(3).or_insert_with(|| text(3)).unwrap_err();
    assert_eq!(error.refusal, InsertRefusal::Full);
    assert_eq!(map.remove(&1).value(), Some(text(1)));
    fill(&map, [3]);
    let report = stepped.shutdown(Shutdown::HandBack);
    assert_eq!(report.handed_back.len(), 2);
    let error = map.insert(3, text(3)).unwrap_err();
    assert_eq!(
        (error.key, error.value, error.refusal),
        (3, text(3), InsertRefusal::Closed)
    );
    assert!(error_text(&map).contains("closed"));
    assert_eq!((map.touch(&3), map.len()), (Touch::NotFound, 0));
    assert!(stepped.shutdown(Shutdown::HandBack).already_closed);
}

fn error_text(map: &Map) -> String {
    map.entry(1)
        .insert_if_absent(text(1))
        .unwrap_err()
        .to_string()
}

#[test]
fn a_shutdown_hands_back_drains_or_delivers_at_once() {
    for seed in 1..5 {
        let filled = || {
            let (stepped, gone) = collecting(builder(), seed);
            fill(&stepped.map(), [1, 2]);
            stepped
                .map()
                .entry(3)
                .expiry(Expiry::NEVER)
                .insert(text(3))
                .unwrap();
            (stepped, gone)
        };
        let (stepped, gone) = filled();
        let report = stepped.shutdown(Shutdown::HandBack);
        let mut handed_back: Vec<_> = report
            .handed_back
            .iter()
            .map(|back| (back.key, back.value.clone(), back.deadline))
            .collect();
        handed_back.sort_unstable();
        let expected = [(1, at(60)), (2, at(60)), (3, Time::MAX)];
        assert_eq!(
            handed_back,
            expected.map(|(key, due)| (key, text(key), due))
        );
        assert!(take(&gone).is_empty());

        let (stepped, gone) = filled();
        let report = stepped.shutdown(Shutdown::Drain { limit: 2 * IDLE });
        let left: Vec<_> = report.handed_back.iter().map(|back| back.key).collect();
        assert_eq!((left, keys(&gone)), (vec![3], vec![1, 2]));

        let (stepped, gone) = filled();
        stepped.advance_to(at(59));
        let report = stepped.shutdown(Shutdown::RunNow);
        assert!(report.handed_back.is_empty());
        let expired = take(&gone);
        assert_eq!(expired.len(), 3);
        for expired in expired {
            assert_eq!(
                (expired.reason, expired.lateness),
                (Reason::Shutdown, Duration::ZERO)
            );
        }
        assert_eq!(stepped.map().state(), Lifecycle::Closed);
    }
}

#[test]
fn the_last_clone_closes_the_map_and_what_is_left_is_dropped() {
    let clock = ManualClock::new();
    let value = Arc::new(());
    let map = ExpiryMap::<u32, Arc<()>>::builder()
        .clock(Clock::manual(&clock))
        .build(|_, _| unreachable!("nothing expires"))
        .unwrap();
    let clone = map.clone();
    drop(map);
    clone.insert(1, Arc::clone(&value)).unwrap();
    assert_eq!((clone.state(), clone.len()), (Lifecycle::Running, 1));
    drop(clone);
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn the_map_that_a_handler_keeps_does_not_keep_the_map_open() {
    let clock = ManualClock::new();
    let kept = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&kept);
    let map = builder()
        .clock(Clock::manual(&clock))
        .build(move |map, _| *keep.lock().unwrap() = Some(map.clone()))
        .unwrap();
    fill(&map, [1]);
    clock.advance(IDLE);
    until("the handler runs", || kept.lock().unwrap().is_some());
    drop(map);
    let kept = kept.lock().unwrap().take().unwrap();
    assert_eq!(
        kept.insert(2, text(2)).unwrap_err().refusal,
        InsertRefusal::Closed
    );
    assert!(
        kept.shutdown(Shutdown::HandBack)
            .wait()
            .unwrap()
            .already_closed
    );
}

#[test]
fn a_shutdown_from_inside_the_handler_is_reported_later() {
    let clock = ManualClock::new();
    let report = Arc::new(Mutex::new(None));
    let sent = Arc::clone(&report);
    let map = builder()
        .clock(Clock::manual(&clock))
        .build(move |map, _| {
            let inside = map.shutdown(Shutdown::HandBack).wait().unwrap_err();
            *sent.lock().unwrap() = Some(inside.into_closing());
        })
        .unwrap();
    fill(&map, [1]);
    map.entry(2).expiry(Expiry::NEVER).insert(text(2)).unwrap();
    clock.advance(IDLE);
    until("the handler has shut down", || {
        report.lock().unwrap().is_some()
    });
    let closing = report.lock().unwrap().take().unwrap();
    let report = closing.wait().unwrap();
    assert_eq!(report.handed_back.len(), 1);
    assert_eq!(report.handed_back[0].value, text(2));
}

#[test]
fn every_end_of_an_entry_gives_its_place_back() {
    const PLACES: u32 = 3;
    let full = |map: &Map| {
        // As many as that, and not one more.
        let room = (100..).take_while(|key| map.insert(*key, text(*key)).is_ok());
        let room = room.count();
        assert_eq!(map.clear(), room);
        room
    };
    for seed in 1..5 {
        let (stepped, gone) = collecting(builder().max_pending(PLACES as usize).workers(1), seed);
        let map = stepped.map();
        type Round = fn(&SteppedMap<u32, String>, &Map);
        let rounds: [(&str, Round); 7] = [
            ("delivered", |stepped, _| stepped.advance(IDLE)),
            ("removed", |_, map| {
                for key in 0..PLACES {
                    assert!(map.remove(&key).value().is_some());
                }
            }),
            ("removed when queued", |stepped, map| {
                stepped.clock().advance(IDLE);
                for key in 0..PLACES {
                    assert!(map.remove(&key).value().is_some());
                }
                stepped.settle();
            }),
            ("retained none", |_, map| {
                assert_eq!(map.retain(|_, _| false), 3);
            }),
            ("cleared", |_, map| assert_eq!(map.clear(), 3)),
            ("replaced and delivered", |stepped, map| {
                for key in 0..PLACES {
                    let replaced = map.insert(key, String::new()).unwrap();
                    assert!(replaced.replaced.is_some());
                }
                stepped.advance(IDLE);
            }),
            ("touched and delivered", |stepped, map| {
                stepped.clock().advance(IDLE);
                for key in 0..PLACES {
                    assert!(map.touch(&key).is_alive());
                }
                stepped.settle();
                assert_eq!(map.len(), 3);
                stepped.advance(IDLE);
            }),
        ];
        for (name, round) in rounds {
            fill(&map, 0..PLACES);
            assert!(map.insert(9, text(9)).is_err(), "{name}");
            round(&stepped, &map);
            take(&gone);
            assert_eq!(full(&map), PLACES as usize, "{name}");
            assert!(map.is_empty() && map.stats().balances(), "{name}");
        }
    }
}

#[test]
fn c125_after_the_end_every_call_answers() {
    let clock = ManualClock::new();
    let map = builder()
        .clock(Clock::manual(&clock))
        .build(|_, _| ())
        .unwrap();
    fill(&map, 0..10);
    drop(map.shutdown(Shutdown::HandBack).wait().unwrap());
    let before = map.stats();
    for map in [map.clone(), map] {
        for error in [
            map.insert(1, text(1)).unwrap_err(),
            map.entry(1)
                .expiry(Expiry::NEVER)
                .insert(text(1))
                .unwrap_err(),
            map.entry(1).insert_if_absent(text(1)).unwrap_err(),
            map.entry(1).or_insert_with(|| text(1)).unwrap_err(),
        ] {
            assert_eq!((error.key, error.value), (1, text(1)));
            assert_eq!(error.refusal, InsertRefusal::Closed);
        }
        assert_eq!(map.touch(&1), Touch::NotFound);
        assert_eq!(map.touch_many(&[1, 2]), [Touch::NotFound; 2]);
        assert_eq!(map.set_expiry(&1, Expiry::NEVER), Touch::NotFound);
        assert_eq!((map.get(&1), map.get_and_touch(&1)), (None, None));
        assert_eq!(map.with(&1, String::len), None);
        assert_eq!(map.update(&1, String::clear), None);
        assert_eq!(map.remove(&1), Removed::NotFound);
        assert_eq!((map.contains(&1), map.deadline(&1)), (false, None));
        assert_eq!((map.retain(|_, _| false), map.clear()), (0, 0));
        assert_eq!((map.iter().count(), map.len()), (0, 0));
        assert!(map.is_empty() && map.state() == Lifecycle::Closed);
        assert!(
            map.shutdown(Shutdown::RunNow)
                .wait()
                .unwrap()
                .already_closed
        );
        let stats = map.stats();
        assert_eq!((stats.inserted, stats.handed_back), (10, 10));
        assert_eq!(stats.inserted, before.inserted);
        assert!(stats.balances());
    }
}

/// Handlers have returned when a drain has: not only have their entries been taken.
#[test]
fn a_drain_with_threads_ends_after_its_handlers() {
    // With the limit after their deadline, and before it.
    for (limit, stop, back) in [(2 * IDLE, IDLE, 0), (IDLE / 2, IDLE / 2, 100)] {
        let clock = ManualClock::new();
        let returned = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&returned);
        let map = builder()
            .clock(Clock::manual(&clock))
            .build(move |_, _| {
                std::thread::yield_now();
                count.fetch_add(1, Ordering::SeqCst);
            })
            .unwrap();
        fill(&map, 0..100);
        let report = std::thread::scope(|scope| {
            let ending = scope.spawn(|| map.shutdown(Shutdown::Drain { limit }).wait().unwrap());
            until("it is closing", || map.state() != Lifecycle::Running);
            until("it has ended", || {
                if map.now() < Time::ZERO + stop {
                    clock.advance(S);
                }
                ending.is_finished()
            });
            ending.join().unwrap()
        });
        assert_eq!((report.still_running, report.handed_back.len()), (0, back));
        assert_eq!(returned.load(Ordering::SeqCst), 100 - back);
    }
}
