//! The buffer for the touches of one thread: when they are applied, what comes too late, and what a
//! panic leaves.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::thread;

use kit::map::{IDLE, Map, S, at, builder, collecting, fill, keys};
use kit::quiet::{WANTED, hush, panics};
use tourbillon::test_util::SteppedMap;
use tourbillon::{Clock, ExpiryMap, Lifecycle, ManualClock, Shutdown};

/// The number of touches that fill a buffer.
const FULL: u32 = 1_024;

fn touched(map: &Map, deadline: tourbillon::Time) -> usize {
    map.iter()
        .filter(|(key, _)| map.deadline(key) == Some(deadline))
        .count()
}

// === when the touches are applied ===

#[test]
fn a_flush_applies_the_touches_and_counts_from_its_own_time() {
    let (stepped, gone) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, [1, 2, 3]);
    let mut toucher = map.toucher();
    stepped.advance(10 * S);
    for key in [1, 2, 1, 9] {
        toucher.touch(key);
    }
    assert_eq!(touched(&map, at(60)), 3, "nothing is applied yet");
    stepped.advance(10 * S);
    assert_eq!(toucher.flush(), 3, "key 1 twice, and key 9 is not there");
    assert_eq!(map.deadline(&1), Some(at(80)));
    assert_eq!(map.deadline(&2), Some(at(80)));
    assert_eq!(map.deadline(&3), Some(at(60)));
    stepped.advance(10 * S);
    assert_eq!(toucher.flush(), 0, "each touch is applied once");
    assert_eq!(map.deadline(&1), Some(at(80)));
    stepped.advance_to(at(60));
    assert_eq!(keys(&gone), [3]);
    stepped.advance_to(at(80));
    assert_eq!(keys(&gone), [1, 2]);
}

#[test]
fn a_full_buffer_is_applied_by_the_touch_that_fills_it() {
    let (stepped, _gone) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, 0..3 * FULL);
    let mut toucher = map.toucher();
    for round in 1..=2 {
        stepped.advance(S);
        let deadline = at(60 + u64::from(round));
        let first = (round - 1) * FULL;
        for key in first..first + FULL - 1 {
            toucher.touch(key);
        }
        assert_eq!(touched(&map, deadline), 0);
        toucher.touch(first + FULL - 1);
        assert_eq!(touched(&map, deadline), FULL as usize);
        assert_eq!(toucher.flush(), 0);
    }
    assert_eq!(touched(&map, at(60)), FULL as usize);
}

#[test]
fn a_drop_applies_the_touches() {
    let (stepped, _gone) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, [1, 2]);
    stepped.advance(S);
    let mut toucher = map.toucher();
    toucher.touch(1);
    // On another thread: a toucher may be sent.
    thread::spawn(move || drop(toucher)).join().unwrap();
    assert_eq!(map.deadline(&1), Some(at(61)));
    assert_eq!(map.deadline(&2), Some(at(60)));
}

#[test]
fn an_entry_whose_deadline_comes_before_the_flush_expires_although_it_was_touched() {
    let (stepped, gone) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, [1]);
    let mut toucher = map.toucher();
    stepped.advance(IDLE - S);
    toucher.touch(1);
    stepped.advance(S);
    assert_eq!(keys(&gone), [1]);
    assert_eq!(toucher.flush(), 0);
    assert!(!map.contains(&1));
    // An entry that was inserted after the touch has the same key.
    toucher.touch(1);
    fill(&map, [1]);
    stepped.advance(S);
    assert_eq!(toucher.flush(), 1);
    assert_eq!(map.deadline(&1), Some(at(121)));
}

#[test]
fn touchers_of_several_threads_lose_nothing() {
    const KEYS: u32 = 5_000;
    let hand = ManualClock::new();
    let clocked = builder().clock(Clock::manual(&hand));
    let map = clocked.build(|_, _| ()).unwrap();
    fill(&map, 0..KEYS);
    hand.advance(S);
    let later = map.now() + IDLE;
    thread::scope(|scope| {
        for thread in 0..4 {
            let mut toucher = map.toucher();
            scope.spawn(move || {
                for key in (0..KEYS).filter(|key| key % 4 == thread) {
                    toucher.touch(key);
                }
            });
        }
    });
    for key in 0..KEYS {
        assert_eq!(map.deadline(&key), Some(later), "{key}");
    }
}

// === the end of the map ===

#[test]
fn a_toucher_keeps_its_map_open_as_a_clone_does() {
    let map = builder().build(|_, _| ()).unwrap();
    fill(&map, [1]);
    let mut toucher = map.toucher();
    drop(map);
    toucher.touch(1);
    assert_eq!(toucher.flush(), 1);
}

#[test]
fn after_a_shutdown_touches_find_nothing() {
    let map = builder().build(|_, _| ()).unwrap();
    fill(&map, [1]);
    let mut toucher = map.toucher();
    toucher.touch(1);
    drop(map.shutdown(Shutdown::HandBack).wait().unwrap());
    assert_eq!(map.state(), Lifecycle::Closed);
    assert_eq!(toucher.flush(), 0);
    (0..2 * FULL).for_each(|key| toucher.touch(key));
    toucher.touch(1);
    drop(toucher);
    assert!(map.is_empty());
}

// === under a lock ===

#[test]
fn under_a_lock_a_touch_is_kept_for_later() {
    hush();
    let (stepped, _gone) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, 0..FULL + 2);
    stepped.advance(S);
    let mut toucher = map.toucher();
    map.with(&0, |_| (0..=FULL).for_each(|key| toucher.touch(key)));
    let flush = || map.with(&0, |_| toucher.flush());
    assert!(panics(flush).contains("called the scheduler"));
    assert_eq!(touched(&map, at(61)), 0);
    toucher.touch(FULL + 1);
    assert_eq!(touched(&map, at(61)), FULL as usize + 2, "none is lost");
    stepped.advance(S);
    toucher.touch(0);
    map.update(&0, move |_| drop(toucher));
    assert_eq!(map.deadline(&0), Some(at(62)));
}

// === panics ===

thread_local! {
    /// The call of this thread that panics: `hash` or `eq`, with the number of calls before it.
    static PANICS: Cell<Option<(&'static str, u32)>> = const { Cell::new(None) };
}

fn on(call: &'static str) {
    match PANICS.get() {
        Some((planned, 0)) if planned == call => {
            PANICS.set(None);
            panic!("{WANTED}: {call}");
        }
        Some((planned, before)) if planned == call => PANICS.set(Some((planned, before - 1))),
        _ => {}
    }
}

#[derive(Clone, Debug)]
struct Key(u32);

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        on("eq");
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        on("hash");
        self.0.hash(state);
    }
}

/// Keys 0 to 99, one second old.
fn hundred() -> SteppedMap<Key, ()> {
    hush();
    let builder = ExpiryMap::<Key, ()>::builder().time_to_idle(IDLE);
    let stepped = builder.build_stepped(1, |_, _| ()).unwrap();
    for key in 0..100 {
        stepped.map().insert(Key(key), ()).unwrap();
    }
    stepped.advance(S);
    stepped
}

#[test]
fn a_key_that_panics_leaves_an_empty_buffer_that_goes_on() {
    for call in ["hash", "eq"] {
        let stepped = hundred();
        let map = stepped.map();
        let mut toucher = map.toucher();
        (0..100).for_each(|key| toucher.touch(Key(key)));
        PANICS.set(Some((call, 70)));
        assert!(panics(|| toucher.flush()).contains(WANTED), "{call}");
        assert_eq!(PANICS.get(), None);
        assert_eq!(toucher.flush(), 0, "{call}");
        stepped.advance(S);
        toucher.touch(Key(99));
        assert_eq!(toucher.flush(), 1, "{call}");
        assert_eq!(map.deadline(&Key(99)), Some(at(62)), "{call}");
        // The touch that fills the buffer panics as a flush does.
        let last = FULL - 1;
        (0..last).for_each(|_| toucher.touch(Key(1)));
        PANICS.set(Some((call, 0)));
        assert!(panics(|| toucher.touch(Key(1))).contains(WANTED), "{call}");
        assert_eq!((toucher.flush(), map.len()), (0, 100), "{call}");
    }
}

#[test]
fn a_drop_does_not_panic() {
    for call in ["hash", "eq"] {
        let stepped = hundred();
        let mut toucher = stepped.map().toucher();
        toucher.touch(Key(1));
        PANICS.set(Some((call, 0)));
        drop(toucher);
        assert_eq!(PANICS.get(), None, "{call} has panicked");
    }
}

#[test]
fn a_drop_in_a_panic_applies_the_touches_and_comes_through_another_panic() {
    let stepped = hundred();
    let map = stepped.map();
    for planned in [None, Some(("hash", 0)), Some(("eq", 0))] {
        stepped.advance(S);
        let mut toucher = map.toucher();
        toucher.touch(Key(1));
        let said = panics(|| {
            let _dropped_by_the_panic = toucher;
            PANICS.set(planned);
            panic!("{WANTED}: first");
        });
        assert!(said.contains("first"), "{planned:?}");
        assert_eq!(PANICS.get(), None);
        assert_eq!(map.deadline(&Key(1)), Some(at(62)), "{planned:?}");
    }
}

#[test]
fn a_drop_in_a_panic_under_a_lock_applies_the_touches() {
    let stepped = hundred();
    let map = stepped.map();
    let mut toucher = map.toucher();
    toucher.touch(Key(1));
    let update = || {
        map.update(&Key(1), move |()| {
            let _dropped_by_the_panic = toucher;
            panic!("{WANTED}");
        })
    };
    assert!(panics(update).contains(WANTED));
    assert_eq!(map.deadline(&Key(1)), Some(at(61)));
}
