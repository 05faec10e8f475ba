//! `ExpiryMap`: what expires when, what every call answers, and that no value is lost or delivered
//! twice.

#[path = "kit/quiet.rs"]
mod quiet;
#[path = "kit/wait.rs"]
mod wait;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quiet::{WANTED, hush, panics};
use tourbillon::test_util::SteppedMap;
use tourbillon::{
    BuildError, Clock, Expired, Expiry, ExpiryMap, ExpiryMapBuilder, Found, InsertRefusal,
    Inserted, Lifecycle, ManualClock, Reason, Removed, Shutdown, Time, Touch,
};
use wait::until;

const S: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(60);
const LIFE: Duration = Duration::from_secs(100);

type Map = ExpiryMap<u32, String>;
type Gone = Arc<Mutex<Vec<Expired<u32, String>>>>;

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

fn builder() -> ExpiryMapBuilder<u32, String> {
    Map::builder().time_to_idle(IDLE)
}

/// A stepped map whose expired entries are collected.
fn collecting(
    builder: ExpiryMapBuilder<u32, String>,
    seed: u64,
) -> (SteppedMap<u32, String>, Gone) {
    let gone = Gone::default();
    let collect = Arc::clone(&gone);
    let stepped = builder
        .build_stepped(seed, move |_, expired| {
            collect.lock().unwrap().push(expired);
        })
        .unwrap();
    (stepped, gone)
}

fn take(gone: &Gone) -> Vec<Expired<u32, String>> {
    std::mem::take(&mut gone.lock().unwrap())
}

fn keys(gone: &Gone) -> Vec<u32> {
    let mut keys: Vec<_> = take(gone).iter().map(|expired| expired.key).collect();
    keys.sort_unstable();
    keys
}

fn text(key: u32) -> String {
    format!("value {key}")
}

fn fill(map: &Map, keys: impl IntoIterator<Item = u32>) {
    for key in keys {
        assert_eq!(map.insert(key, text(key)).unwrap(), Inserted::New);
    }
}

// === expiry ===

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
        map.insert_with(key, text(key), expiry).unwrap();
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
        map.insert_with(key, text(key), expiry).unwrap();
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
                let others = (1..=5).filter(|key| *key != expired.key);
                let alive = others.filter(|key| map.touch(key).is_alive()).count();
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
        assert_eq!((stats.ran, stats.panicked), (1, 0));
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
    assert_eq!(
        map.insert(3, "new".into()).unwrap(),
        Inserted::Replaced(text(3))
    );
    let found = map.get_or_insert_with(4, || "new".into()).unwrap();
    let (value, replaced) = ("new".into(), Some(text(4)));
    assert_eq!(found, Found::Inserted { value, replaced });
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
                assert_eq!(map.insert(key, "in between".into()).unwrap(), Inserted::New);
                assert_eq!(map.get(&key).as_deref(), Some("in between"));
                assert_eq!(map.update(&key, |value| value.push('!')), Some(()));
                assert_eq!(
                    map.insert(key, next.clone()).unwrap(),
                    Inserted::Replaced("in between!".into())
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
                    assert_eq!(map.insert(key, next).unwrap(), Inserted::New);
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
        assert_eq!((stats.ran, stats.panicked, stats.pending), (6, 0, 0));
        assert!(stats.balances());
    }
}

// === one key ===

#[test]
fn insertions_say_what_they_replaced() {
    let (stepped, gone) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, [1]);
    stepped.advance(S);
    let replaced = map.insert(1, "b".into()).unwrap();
    assert_eq!(replaced.replaced().as_deref(), Some("value 1"));
    assert_eq!(
        map.deadline(&1),
        Some(at(61)),
        "a new entry with its own time"
    );
    let error = map.insert_if_absent(1, "c".into()).unwrap_err();
    assert_eq!((error.key, error.value.as_str()), (1, "c"));
    assert_eq!(error.refusal, InsertRefusal::Occupied);
    map.insert_if_absent(2, "c".into()).unwrap();
    let made = AtomicBool::new(false);
    let make = || {
        made.store(true, Ordering::Relaxed);
        // Without a lock: the map may be asked.
        map.get(&1).unwrap() + "!"
    };
    let found = map.get_or_insert_with(2, make).unwrap();
    assert_eq!(found, Found::Present("c".into()));
    assert!(!made.load(Ordering::Relaxed));
    let found = map.get_or_insert_with(3, make).unwrap();
    assert_eq!(found.into_value(), "b!");
    assert_eq!(map.get(&3).as_deref(), Some("b!"));
    stepped.advance(2 * IDLE);
    assert_eq!(keys(&gone), [1, 2, 3]);
    let stats = map.stats();
    assert_eq!((stats.scheduled, stats.replaced, stats.ran), (4, 1, 3));
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

// === rows of the conformance table ===

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

// === many keys ===

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
    assert_eq!((stats.scheduled, stats.cancelled), (1_000, 1_000));
}

// === hostile code ===

#[test]
fn user_code_under_the_lock_that_calls_the_map_panics_instead_of_hanging() {
    hush();
    type Call = fn(&Map);
    let calls: [(&str, Call); 4] = [
        ("with", |map| {
            map.with(&1, |_| map.len());
        }),
        ("update", |map| {
            map.update(&1, |_| map.touch(&2));
        }),
        ("retain", |map| {
            map.retain(|_, _| map.contains(&2));
        }),
        ("another map", |map| {
            let other = builder().build_stepped(1, |_, _| ()).unwrap();
            map.with(&1, |_| other.map().len());
        }),
    ];
    for (name, call) in calls {
        let (stepped, gone) = collecting(builder(), 1);
        let map = stepped.map();
        fill(&map, [1, 2]);
        let said = panics(|| call(&map));
        assert!(said.contains("called the scheduler"), "{name}: {said}");
        assert_eq!(map.len(), 2, "{name}");
        stepped.advance(IDLE);
        assert_eq!(keys(&gone), [1, 2], "{name}");
    }
}

#[test]
fn user_code_under_the_lock_that_panics_leaves_the_map_whole() {
    hush();
    let (stepped, gone) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, 1..=100);
    let panicking = || panics(|| map.with(&1, |_| panic!("{WANTED}")));
    assert!(panicking().contains(WANTED));
    let half = || {
        map.update(&1, |value| {
            value.push('!');
            panic!("{WANTED}")
        })
    };
    assert!(panics(half).contains(WANTED));
    assert_eq!(
        map.get(&1),
        Some(text(1) + "!"),
        "what it had done stays done"
    );
    let mut left = 50;
    let sieve = || {
        map.retain(|_, _| {
            left -= 1;
            assert!(left > 0, "{WANTED}");
            false
        })
    };
    assert!(panics(sieve).contains(WANTED));
    assert_eq!(map.len(), 51);
    stepped.advance(IDLE);
    assert_eq!(keys(&gone).len(), 51);
    let stats = map.stats();
    assert!(stats.balances());
    assert_eq!((stats.cancelled, stats.ran), (49, 51));
}

#[test]
fn a_panic_of_the_handler_is_told_and_no_other_entry_suffers() {
    hush();
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let gone = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&gone);
    let stepped = builder()
        .on_panic(move |panic| {
            let told = (*panic.key, panic.message.to_owned());
            tell.lock().unwrap().push(told);
        })
        .build_stepped(1, move |_, expired| {
            assert!(expired.key % 10 != 0, "{WANTED} {}", expired.key);
            count.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    fill(&stepped.map(), 1..=20);
    stepped.advance(IDLE);
    assert_eq!(gone.load(Ordering::Relaxed), 18);
    let mut told = told.lock().unwrap().clone();
    told.sort_unstable();
    let texts = [10, 20].map(|key| (key, format!("{WANTED} {key}")));
    assert_eq!(told, texts);
    assert_eq!(stepped.map().stats().panicked, 2);
}

// === bounds and the end ===

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
    assert_eq!(
        map.insert(2, "b".into()).unwrap(),
        Inserted::Replaced(text(2))
    );
    let error = map.get_or_insert_with(3, || text(3)).unwrap_err();
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
    map.insert_if_absent(1, text(1)).unwrap_err().to_string()
}

#[test]
fn a_shutdown_hands_back_drains_or_delivers_at_once() {
    for seed in 1..5 {
        let filled = || {
            let (stepped, gone) = collecting(builder(), seed);
            fill(&stepped.map(), [1, 2]);
            stepped
                .map()
                .insert_with(3, text(3), Expiry::NEVER)
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
    assert!(kept.shutdown(Shutdown::HandBack).unwrap().already_closed);
}

#[test]
fn a_shutdown_from_inside_the_handler_is_reported_later() {
    let clock = ManualClock::new();
    let report = Arc::new(Mutex::new(None));
    let sent = Arc::clone(&report);
    let map = builder()
        .clock(Clock::manual(&clock))
        .build(move |map, _| {
            let ticket = map.shutdown(Shutdown::HandBack).unwrap_err();
            *sent.lock().unwrap() = Some(ticket);
        })
        .unwrap();
    fill(&map, [1]);
    map.insert_with(2, text(2), Expiry::NEVER).unwrap();
    clock.advance(IDLE);
    until("the handler has shut down", || {
        report.lock().unwrap().is_some()
    });
    let report = report.lock().unwrap().take().unwrap().wait();
    assert_eq!(report.handed_back.len(), 1);
    assert_eq!(report.handed_back[0].value, text(2));
}

// === batches ===

#[test]
fn batches_hold_every_expired_entry_once_and_no_more_than_asked_for() {
    for max in [1, 5, 1_000] {
        let clock = ManualClock::new();
        let batches = Arc::new(Mutex::new(Vec::new()));
        let collect = Arc::clone(&batches);
        let map = builder()
            .clock(Clock::manual(&clock))
            .build_batched(max, move |map, batch| {
                // They are out of the map, and their keys are free.
                assert!(batch.iter().all(|expired| map.get(&expired.key).is_none()));
                collect.lock().unwrap().push(batch);
            })
            .unwrap();
        fill(&map, 0..1_000);
        clock.advance(IDLE);
        until("all are delivered", || map.stats().ran == 1_000);
        let report = map.shutdown(Shutdown::HandBack).unwrap();
        assert!(report.handed_back.is_empty());
        let batches = batches.lock().unwrap();
        assert!(batches.iter().all(|batch| (1..=max).contains(&batch.len())));
        assert!(batches.iter().any(|batch| batch.len() >= max.min(2)));
        let mut keys: Vec<_> = batches
            .iter()
            .flatten()
            .map(|expired| expired.key)
            .collect();
        keys.sort_unstable();
        assert!(keys.into_iter().eq(0..1_000));
        let stats = map.stats();
        assert!(stats.balances());
        assert_eq!((stats.panicked, stats.running), (0, 0));
    }
}

#[test]
fn a_batch_of_nothing_is_refused() {
    let error = builder().build_batched(0, |_, _| ()).unwrap_err();
    assert!(matches!(error, BuildError::Batch));
}

#[test]
fn a_batch_that_panics_counts_for_each_entry_and_is_told_once() {
    hush();
    let clock = ManualClock::new();
    let (told, sizes) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(Mutex::new(Vec::new())),
    );
    let (tell, collect) = (Arc::clone(&told), Arc::clone(&sizes));
    let map = builder()
        .clock(Clock::manual(&clock))
        .on_panic(move |panic| {
            assert!(panic.message.contains(WANTED));
            tell.fetch_add(1, Ordering::Relaxed);
        })
        .build_batched(8, move |_, batch| {
            collect.lock().unwrap().push(batch.len());
            panic!("{WANTED}");
        })
        .unwrap();
    fill(&map, 0..100);
    clock.advance(IDLE);
    until("all are settled", || {
        let stats = map.stats();
        stats.ran == 100 && stats.running == 0
    });
    assert_eq!(map.stats().panicked, 100);
    let sizes = sizes.lock().unwrap();
    assert_eq!(told.load(Ordering::Relaxed), sizes.len());
    assert_eq!(sizes.iter().sum::<usize>(), 100);
}
