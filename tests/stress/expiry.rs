//! An `ExpiryMap` on the system's clock and on real threads that touch, remove, replace and look
//! while entries expire: each value has exactly one end, and no answer is a lie. A second for each
//! kind of delivery by default; `STRESS_SECS` for longer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tourbillon::{Expired, ExpiryMap, Found, Reason, Removed, Shutdown, Time, Touch};

use super::{Random, duration};

const IDLE: Duration = Duration::from_millis(3);
const LIFE: Duration = Duration::from_millis(40);
const KEYS: u32 = 64;
const THREADS: u64 = 4;

/// Only a broken map does not do enough until then.
const PATIENCE: Duration = Duration::from_secs(60);

type Map = ExpiryMap<u32, Token>;

/// What became of all values, counted without the map.
#[derive(Default)]
struct Fates {
    made: AtomicU64,
    dropped: AtomicU64,
    delivered: AtomicU64,
    removed: AtomicU64,
    replaced: AtomicU64,
    refused: AtomicU64,
    lies: Mutex<Vec<String>>,
}

impl Fates {
    fn lie(&self, text: String) {
        self.lies.lock().unwrap().push(text);
    }
}

/// What an entry and all clones of its value share.
#[derive(Default)]
struct Life {
    /// Until when a touch said that it lives, at least.
    promised: AtomicU64,
    over: AtomicBool,
}

struct Token {
    life: Arc<Life>,
    /// A clone is no entry.
    fates: Option<Arc<Fates>>,
}

impl Token {
    fn new(fates: &Arc<Fates>) -> Self {
        fates.made.fetch_add(1, Ordering::SeqCst);
        Token {
            life: Arc::default(),
            fates: Some(Arc::clone(fates)),
        }
    }

    /// It is out of the map, in one way only.
    fn ends(&self, how: impl Fn(&Fates) -> &AtomicU64) {
        let fates = self.fates.as_ref().expect("an entry is no clone");
        how(fates).fetch_add(1, Ordering::SeqCst);
        if self.life.over.swap(true, Ordering::SeqCst) {
            fates.lie("a value that ended twice".to_owned());
        }
    }
}

impl Clone for Token {
    fn clone(&self) -> Self {
        Token {
            life: Arc::clone(&self.life),
            fates: None,
        }
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(fates) = &self.fates {
            fates.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn deliver(expired: &Expired<u32, Token>) {
    let token = &expired.value;
    let fates = token.fates.as_ref().expect("an entry is no clone");
    let promised = Time::from_nanos(token.life.promised.load(Ordering::SeqCst));
    if expired.reason == Reason::Idle && expired.deadline < promised {
        fates.lie(format!(
            "touched until {promised:?}, and expired at {:?}",
            expired.deadline
        ));
    }
    token.ends(|fates| &fates.delivered);
}

fn act(map: &Map, fates: &Arc<Fates>, random: &mut Random) {
    let key = random.below(u64::from(KEYS)) as u32;
    match random.below(20) {
        0..8 => {
            // Whose deadline it is can be told only while nobody replaces the entry: so the promise
            // is made to the entry that is seen before and after.
            let before = map.get(&key);
            let Touch::Touched { deadline } = map.touch(&key) else {
                return;
            };
            let after = map.get(&key);
            if let (Some(before), Some(after)) = (before, after)
                && Arc::ptr_eq(&before.life, &after.life)
            {
                after
                    .life
                    .promised
                    .fetch_max(deadline.as_nanos(), Ordering::SeqCst);
            }
        }
        8..12 => match map.insert(key, Token::new(fates)) {
            Ok(inserted) => {
                if let Some(old) = inserted.replaced {
                    old.ends(|fates| &fates.replaced);
                }
            }
            Err(refused) => refused.value.ends(|fates| &fates.refused),
        },
        12..14 => match map.entry(key).insert_if_absent(Token::new(fates)) {
            Ok(inserted) => {
                if let Some(old) = inserted.replaced {
                    old.ends(|fates| &fates.replaced);
                }
            }
            Err(refused) => refused.value.ends(|fates| &fates.refused),
        },
        14..16 => {
            if let Removed::Removed { value, .. } = map.remove(&key) {
                value.ends(|fates| &fates.removed);
            }
        }
        16 => {
            // The one that was made is the entry; what comes back is a clone.
            if let Ok(Found::Inserted { replaced, .. }) =
                map.entry(key).or_insert_with(|| Token::new(fates))
                && let Some(old) = replaced
            {
                old.ends(|fates| &fates.replaced);
            }
        }
        17 => {
            map.touch_many(&[key, (key + 1) % KEYS, (key + 2) % KEYS]);
        }
        18 => {
            map.update(&key, |token| token.life.over.load(Ordering::SeqCst));
        }
        _ => {
            let over = map.with(&key, |token| token.life.over.load(Ordering::SeqCst));
            if over == Some(true) {
                fates.lie("an entry is there after its end".to_owned());
            }
        }
    }
}

/// Stops the threads, also when the one that watches them panics.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// All threads at once for a while, then the end: everything is accounted for.
fn storm(map: &Map, fates: &Arc<Fates>) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let stop = &stop;
            scope.spawn(move || {
                let mut random = Random(seed);
                while !stop.load(Ordering::SeqCst) {
                    act(map, fates, &mut random);
                    // Otherwise nothing is ever left alone for long enough to expire.
                    if random.below(8) == 0 {
                        thread::park_timeout(Duration::from_micros(random.below(400)));
                    }
                }
            });
        }
        let _stops = Stops(&stop);
        let end = map.now() + duration();
        loop {
            thread::park_timeout(Duration::from_millis(5));
            let stats = map.stats();
            assert!(stats.balances());
            // On a busy machine little happens in that time.
            let is_enough = stats.expired > 100 && stats.removed > 100 && stats.replaced > 100;
            if map.now() >= end && is_enough {
                break;
            }
            assert!(map.now() < end + PATIENCE, "too little happens: {stats:?}");
        }
    });
    let report = map.shutdown(Shutdown::HandBack).wait().unwrap();
    assert_eq!(report.still_running, 0);
    let handed_back = report.handed_back.len() as u64;
    drop(report);
    let stats = map.stats();
    assert!(stats.balances() && stats.pending == 0 && stats.panicked == 0);
    assert_eq!(stats.handed_back, handed_back);
}

/// `delivered` counts those that came out, which may be after the map's end.
fn balance(map: &Map, fates: &Fates) {
    let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    assert_eq!(*fates.lies.lock().unwrap(), [""; 0]);
    let stats = map.stats();
    assert_eq!(stats.expired, count(&fates.delivered));
    assert_eq!(stats.removed, count(&fates.removed));
    assert_eq!(stats.replaced, count(&fates.replaced));
    assert_eq!(count(&fates.made), count(&fates.dropped));
}

#[test]
fn to_a_handler_every_value_has_one_end() {
    let fates = Arc::<Fates>::default();
    let map = Map::builder()
        .time_to_idle(IDLE)
        .time_to_live(LIFE)
        .build(|_, expired| deliver(&expired))
        .unwrap();
    storm(&map, &fates);
    balance(&map, &fates);
}

#[test]
fn in_batches_every_value_has_one_end() {
    let fates = Arc::<Fates>::default();
    let map = Map::builder()
        .time_to_idle(IDLE)
        .time_to_live(LIFE)
        .build_batched(8, |_, batch| batch.iter().for_each(deliver))
        .unwrap();
    storm(&map, &fates);
    balance(&map, &fates);
}

#[test]
fn through_a_channel_every_value_has_one_end() {
    let fates = Arc::<Fates>::default();
    let (map, gone) = Map::builder()
        .time_to_idle(IDLE)
        .time_to_live(LIFE)
        .build_channel(4)
        .unwrap();
    let receiver = thread::spawn(move || gone.iter().for_each(|expired| deliver(&expired)));
    storm(&map, &fates);
    receiver.join().unwrap();
    balance(&map, &fates);
}
