//! `ExpiryMap`: what expires when, and that no value is lost or delivered twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kit::map::{IDLE, LIFE, Map, S, at, builder, collecting, fill, keys, take, text};
use tourbillon::{Expiry, ExpiryMap, Found, Reason, Removed, Time, Touch};

#[test]
fn an_idle_entry_is_delivered_once_at_its_deadline() {
    for seed in 1..5 {
        let (stepped, gone) = collecting(builder(), seed);
        let map = stepped.map();
        fill(&map, [7]);
        assert_eq!(map.deadline(&7), Some(at(60)));
        stepped.advance_to(at(60) - Duration::from_nanos(1));
        assert!(take(&gone).is_empty());
        assert_eq!(map.get(&7), Some(text(7)));
        stepped.advance_to(at(60));
        let expired = take(&gone).pop().expect("it is due");
        assert_eq!((expired.key, expired.value), (7, text(7)));
        assert_eq!(
            (expired.deadline, expired.lateness),
            (at(60), Duration::ZERO)
        );
        assert_eq!(expired.reason, Reason::Idle);
        assert_eq!((map.len(), map.get(&7)), (0, None));
        stepped.advance(1_000 * IDLE);
        assert!(take(&gone).is_empty());
    }
}

#[test]
fn a_touch_starts_the_idle_time_anew() {
    let (stepped, gone) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, [1, 2]);
    for round in 1..=20 {
        stepped.advance(IDLE - S);
        let deadline = stepped.now() + IDLE;
        assert_eq!(map.touch(&1), Touch::Touched { deadline });
        assert_eq!(keys(&gone), if round == 2 { vec![2] } else { vec![] });
    }
    stepped.advance(IDLE);
    assert_eq!(keys(&gone), [1]);
    assert_eq!(map.touch(&1), Touch::NotFound);
}

#[test]
fn the_lifetime_bounds_what_touches_can_do() {
    let (stepped, gone) = collecting(builder().time_to_live(LIFE), 1);
    let map = stepped.map();
    fill(&map, [1]);
    stepped.advance_to(at(40));
    assert_eq!(map.touch(&1), Touch::Touched { deadline: at(100) });
    stepped.advance_to(at(99));
    assert_eq!(map.touch(&1), Touch::Unchanged { deadline: at(100) });
    stepped.advance_to(at(100));
    let expired = take(&gone).pop().expect("its lifetime is over");
    assert_eq!(
        (expired.deadline, expired.reason),
        (at(100), Reason::Lifetime)
    );
}

#[test]
fn each_entry_can_have_an_expiry_of_its_own() {
    let (stepped, gone) = collecting(builder(), 1);
    let map = stepped.map();
    assert_eq!(map.expiry(), Expiry::NEVER.time_to_idle(IDLE));
    for (key, expiry) in [
        (1, Expiry::NEVER.time_to_idle(S)),
        (2, Expiry::NEVER.time_to_live(2 * S)),
        (3, Expiry::NEVER.time_to_idle(9 * S).time_to_live(3 * S)),
        (4, Expiry::NEVER.time_to_idle(4 * S).time_to_live(9 * S)),
        (5, Expiry::NEVER),
        (
            6,
            Expiry::NEVER
                .time_to_idle(Duration::MAX)
                .time_to_live(Duration::MAX),
        ),
        (7, Expiry::NEVER.time_to_idle(Duration::ZERO)),
        (8, Expiry::NEVER.time_to_live(Duration::ZERO)),
    ] {
        map.entry(key).expiry(expiry).insert(text(key)).unwrap();
    }
    stepped.settle();
    assert_eq!(keys(&gone), [7, 8]);
    for second in 1..=4 {
        stepped.advance(S);
        let expired = take(&gone);
        assert_eq!(expired.len(), 1, "in second {second}");
        let reason = match second {
            2 | 3 => Reason::Lifetime,
            _ => Reason::Idle,
        };
        assert_eq!((expired[0].key, expired[0].reason), (second, reason));
    }
    assert_eq!(
        map.touch(&5),
        Touch::Unchanged {
            deadline: Time::MAX
        }
    );
    stepped.advance(Duration::from_secs(400 * 365 * 86_400));
    assert_eq!(map.len(), 2);

    assert_eq!(
        map.set_expiry(&5, Expiry::NEVER.time_to_idle(S)),
        Touch::Touched {
            deadline: stepped.now() + S
        }
    );
    assert_eq!(
        map.set_expiry(&6, Expiry::NEVER.time_to_live(Duration::ZERO)),
        Touch::Touched {
            deadline: stepped.now()
        }
    );
    assert_eq!(map.set_expiry(&9, Expiry::NEVER), Touch::NotFound);
    stepped.settle();
    assert_eq!(keys(&gone), [6]);
    stepped.advance(S);
    assert_eq!(keys(&gone), [5]);
}

#[test]
fn a_touch_by_an_older_clock_takes_nothing_back() {
    let (stepped, gone) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, [1]);
    stepped.advance(10 * S);
    assert_eq!(map.touch(&1), Touch::Touched { deadline: at(70) });
    // As if it had been read before, and the lock were got after.
    stepped.clock().set(at(9));
    assert_eq!(map.touch(&1), Touch::Unchanged { deadline: at(70) });
    assert_eq!(
        map.touch_many(&[1]),
        [Touch::Unchanged { deadline: at(70) }]
    );
    stepped.advance_to(at(69));
    assert!(take(&gone).is_empty());
    stepped.advance_to(at(70));
    assert_eq!(keys(&gone), [1]);
}

#[test]
fn jitter_spreads_what_was_inserted_at_once_and_touches_keep_it() {
    let (stepped, gone) = collecting(Map::builder(), 1);
    let map = stepped.map();
    let expiry = Expiry::NEVER.time_to_idle(30 * S).jitter(10);
    for key in 0..1_000 {
        map.entry(key).expiry(expiry).insert(text(key)).unwrap();
    }
    let due: Vec<_> = (0..1_000).map(|key| map.deadline(&key).unwrap()).collect();
    assert!(due.iter().all(|due| (at(27)..=at(33)).contains(due)));
    let within = |from, to| {
        due.iter()
            .filter(|due| (at(from)..at(to)).contains(*due))
            .count()
    };
    for second in 27..33 {
        let share = within(second, second + 1);
        assert!((100..250).contains(&share), "{share} in second {second}");
    }
    stepped.advance(20 * S);
    for (key, due) in (0..1_000).zip(&due) {
        let deadline = *due + 20 * S;
        assert_eq!(map.touch(&key), Touch::Touched { deadline });
    }
    stepped.advance(40 * S);
    let late = take(&gone)
        .iter()
        .filter(|gone| gone.deadline != due[gone.key as usize] + 20 * S)
        .count();
    assert_eq!((late, map.len()), (0, 0));
}

#[test]
fn a_touch_saves_what_is_due_until_its_delivery_begins() {
    for seed in 1..20 {
        let saved = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&saved);
        // Whichever comes first saves all others, which wait beside it.
        let stepped = builder()
            .workers(1)
            .build_stepped(seed, move |map, expired| {
                let others: Vec<u32> = (1..=5).filter(|key| *key != expired.key).collect();
                let answers = if seed % 2 == 0 {
                    map.touch_many(&others)
                } else {
                    others.iter().map(|key| map.touch(key)).collect()
                };
                let alive = answers.iter().filter(|touch| touch.is_alive()).count();
                count.fetch_add(alive, Ordering::Relaxed);
                assert_eq!(map.touch(&expired.key), Touch::Expired);
            })
            .unwrap();
        let map = stepped.map();
        fill(&map, 1..=5);
        stepped.advance(IDLE);
        assert_eq!((map.len(), saved.load(Ordering::Relaxed)), (4, 4));
        stepped.advance(IDLE - S);
        assert_eq!(map.len(), 4, "saved for a whole idle time");
        let stats = map.stats();
        assert!(stats.balances());
        assert_eq!((stats.expired, stats.panicked), (1, 0));
    }
}

#[test]
fn nobody_finds_an_entry_after_its_lifetime_but_who_takes_it_out() {
    let (stepped, gone) = collecting(builder().time_to_live(LIFE), 1);
    let map = stepped.map();
    fill(&map, 1..=4);
    // Nobody has had the time to deliver anything.
    stepped.clock().set(at(100));
    assert_eq!(map.touch(&1), Touch::Expired);
    assert_eq!((map.get(&1), map.get_and_touch(&1)), (None, None));
    assert_eq!(map.update(&1, |_| ()), None);
    assert_eq!(map.set_expiry(&1, Expiry::NEVER), Touch::Expired);
    assert!(!map.contains(&1) && map.iter().next().is_none());
    assert_eq!(map.retain(|_, _| false), 0, "left to their delivery");
    assert_eq!(map.len(), 4);
    let (value, deadline) = (text(2), at(60));
    assert_eq!(map.remove(&2), Removed::Removed { value, deadline });
    assert_eq!(map.insert(3, "new".into()).unwrap().replaced, Some(text(3)));
    let found = map.entry(4).or_insert_with(|| "new".into()).unwrap();
    let (value, replaced) = ("new".into(), Some(text(4)));
    let deadline = at(160);
    assert_eq!(
        found,
        Found::Inserted {
            value,
            deadline,
            replaced
        }
    );
    stepped.settle();
    assert_eq!(keys(&gone), [1]);
    assert_eq!(map.len(), 2);
}

#[test]
fn an_entry_that_never_expires_is_no_work() {
    let (stepped, gone) = collecting(Map::builder(), 1);
    let map = stepped.map();
    fill(&map, 0..100);
    assert!(!stepped.advance_to_next());
    assert_eq!((stepped.now(), map.len()), (Time::ZERO, 100));
    assert!(take(&gone).is_empty());
}

// === rows of docs/conformance.md ===

#[test]
fn c148_a_touch_that_moves_nothing_is_unchanged() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, [1]);
    assert_eq!(map.touch(&1), Touch::Unchanged { deadline: at(60) });
    stepped.advance(Duration::from_nanos(1));
    let deadline = at(60) + Duration::from_nanos(1);
    assert_eq!(map.touch(&1), Touch::Touched { deadline });
    assert_eq!(map.touch(&1), Touch::Unchanged { deadline });
}

#[test]
fn c149_a_touch_moves_to_a_later_bucket_and_a_removal_tells_the_deadline() {
    let (stepped, gone) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, [1, 2]);
    stepped.advance(30 * S);
    assert_eq!(map.touch(&1), Touch::Touched { deadline: at(90) });
    stepped.advance(31 * S);
    assert_eq!(keys(&gone), [2]);
    let (value, deadline) = (text(1), at(90));
    assert_eq!(map.remove(&1), Removed::Removed { value, deadline });
    assert_eq!(map.remove(&1), Removed::NotFound);
    stepped.advance(IDLE);
    assert!(take(&gone).is_empty());
}

#[test]
fn c150_a_storm_of_sessions_expires_each_once() {
    const SESSIONS: u32 = 50_000;
    let runs: Arc<Vec<AtomicUsize>> =
        Arc::new((0..SESSIONS).map(|_| AtomicUsize::new(0)).collect());
    let counted = Arc::clone(&runs);
    let stepped = ExpiryMap::<u32, u32>::builder()
        .time_to_idle(IDLE)
        .build_stepped(1, move |_, expired| {
            assert_eq!(expired.key, expired.value);
            assert_eq!(expired.lateness, Duration::ZERO);
            counted[expired.key as usize].fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    let map = stepped.map();
    for key in 0..SESSIONS {
        map.insert(key, key).unwrap();
    }
    for _ in 0..10 {
        stepped.advance(S);
        for key in 0..SESSIONS {
            assert!(map.touch(&key).is_alive());
        }
    }
    stepped.advance(IDLE - S);
    assert_eq!(map.len(), SESSIONS as usize);
    stepped.advance(S);
    assert!(map.is_empty());
    assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1));
}
