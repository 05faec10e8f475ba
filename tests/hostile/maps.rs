//! An `ExpiryMap` whose keys, values and handlers panic, or call the map where they may and where
//! they must not.

use std::cell::Cell;
use std::future::poll_fn;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use kit::map::{IDLE, Map, S, at, builder, collecting, fill, keys, text};
use kit::quiet::{WANTED, hush, panics};
use kit::wait::until;
use kit::wakes::{Wakes, poll};
use kit::ways::AtDrop;
use tourbillon::test_util::SteppedMap;
use tourbillon::{
    Clock, EntryError, Expiry, ExpiryMap, InsertRefusal, ManualClock, Shutdown, TaskPanic,
};

#[test]
fn user_code_under_the_lock_that_calls_the_map_panics_instead_of_hanging() {
    hush();
    type Call = fn(&Map);
    let calls: [(&str, Call); 6] = [
        ("with", |map| {
            map.with(&1, |_| map.len());
        }),
        ("update", |map| {
            map.update(&1, |_| map.touch(&2));
        }),
        ("touch_with", |map| {
            map.touch_with(&1, |_| map.update(&2, String::clear));
        }),
        ("touch_with, or_insert_with", |map| {
            let touch = |_: &mut String| map.touch(&2);
            let _ = map.entry(1).touch_with(touch).or_insert_with(String::new);
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
    stepped.advance(S);
    let touching = || {
        map.touch_with(&1, |value| {
            value.push('?');
            panic!("{WANTED}")
        })
    };
    assert!(panics(touching).contains(WANTED));
    assert_eq!(map.get(&1), Some(text(1) + "!?"));
    assert_eq!(map.deadline(&1), Some(at(60)), "it was not touched");
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
    assert_eq!((stats.removed, stats.expired), (49, 51));
}

/// What makes a value runs without a lock, so it may call the map, and its panic leaves nothing
/// behind.
#[test]
fn a_value_that_can_not_be_made_leaves_no_trace() {
    hush();
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, [1]);
    let make = || {
        assert_eq!(map.remove(&1).value(), Some(text(1)));
        fill(&map, [1]);
        panic!("{WANTED}")
    };
    let touch = || map.entry(2).touch_with(String::clear).or_insert_with(make);
    assert!(panics(touch).contains(WANTED));
    let get = || map.entry(2).or_try_insert_with(|| Ok::<_, ()>(make()));
    assert!(panics(get).contains(WANTED));
    assert_eq!((map.len(), map.stats().inserted), (1, 3));
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

// === keys whose own code panics ===

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Eq,
    Hash,
    Clone,
}

thread_local! {
    /// What the keys of this thread do next: panic, after they were asked for it so many times.
    static PLAN: Cell<Option<(What, usize)>> = const { Cell::new(None) };
}

fn on(what: What) {
    match PLAN.get() {
        Some((planned, 0)) if planned == what => {
            PLAN.set(None);
            panic!("{WANTED}: a key's deed");
        }
        Some((planned, skip)) if planned == what => PLAN.set(Some((planned, skip - 1))),
        _ => {}
    }
}

#[derive(Debug)]
struct Key(u32);

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        on(What::Eq);
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        on(What::Hash);
        self.0.hash(state);
    }
}

impl Clone for Key {
    fn clone(&self) -> Key {
        on(What::Clone);
        Key(self.0)
    }
}

type Wild = ExpiryMap<Key, String>;

/// Three entries in one stripe, and what is delivered of them.
fn three(seed: u64) -> (SteppedMap<Key, String>, Arc<Mutex<Vec<u32>>>) {
    hush();
    let gone = Arc::new(Mutex::new(Vec::new()));
    let collect = Arc::clone(&gone);
    let stepped = Wild::builder()
        .time_to_idle(IDLE)
        .shards(1)
        .stripes(1)
        .workers(1)
        .build_stepped(seed, move |_, expired| {
            collect.lock().unwrap().push(expired.key.0);
        })
        .unwrap();
    for key in 1..=3 {
        stepped.map().insert(Key(key), text(key)).unwrap();
    }
    (stepped, gone)
}

/// The lock of the computations in progress is held while keys are cloned and compared.
#[test]
fn a_clone_or_eq_that_panics_leaves_the_computations_whole() {
    let (stepped, _) = three(1);
    let map = stepped.map();
    let compute = || Ok::<_, ()>("new".to_owned());
    PLAN.set(Some((What::Clone, 0)));
    assert!(panics(|| map.entry(Key(4)).or_compute(compute).wait()).contains(WANTED));
    let (began, wakes) = (Arc::new(AtomicUsize::new(0)), Wakes::new());
    let count = Arc::clone(&began);
    let mut leads = Box::pin(map.entry(Key(4)).or_compute(|| async move {
        count.fetch_add(1, Ordering::Relaxed);
        std::future::pending::<Result<String, ()>>().await
    }));
    assert!(poll(&mut leads, &wakes).is_pending());
    assert_eq!(began.load(Ordering::Relaxed), 1, "nobody computes already");
    // The first search is that of the map, which compares nothing with an absent key.
    PLAN.set(Some((What::Eq, 0)));
    assert!(panics(|| map.entry(Key(4)).or_compute(compute).wait()).contains(WANTED));
    let mut waits = Box::pin(map.entry(Key(4)).or_compute(|| async { compute() }));
    assert!(poll(&mut waits, &wakes).is_pending());
    drop(leads);
    assert_eq!(wakes.count(), 1, "one waits");
    assert!(poll(&mut waits, &wakes).is_ready());
    assert_eq!(map.get(&Key(4)).as_deref(), Some("new"));
}

/// A caller that computes is polled in a drop, while a panic unwinds under a lock. Its insertion is
/// refused, and that is no answer for the caller that waits.
#[test]
fn a_computation_that_ends_while_its_thread_panics_under_a_lock_lets_the_next_one_try() {
    hush();
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    fill(&map, [1]);
    let (is_done, wakes) = (Arc::new(AtomicBool::new(false)), Wakes::new());
    let mut leads = Box::pin({
        let (map, is_done) = (map.clone(), Arc::clone(&is_done));
        async move {
            let compute = poll_fn(|_| match is_done.load(Ordering::Relaxed) {
                true => Poll::Ready(Ok::<_, ()>(text(2))),
                false => Poll::Pending,
            });
            map.entry(2).or_compute(|| compute).await
        }
    });
    assert!(poll(&mut leads, &wakes).is_pending());
    let mut waits = Box::pin(
        map.entry(2)
            .or_compute(|| async { Ok::<_, ()>("own".to_owned()) }),
    );
    assert!(poll(&mut waits, &wakes).is_pending());
    is_done.store(true, Ordering::Relaxed);
    let leads = Mutex::new(leads);
    let refused = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&refused);
    let at_drop = AtDrop(Box::new(move || {
        let Poll::Ready(Err(EntryError::Insert(error))) =
            poll(&mut *leads.lock().unwrap(), &Wakes::new())
        else {
            panic!("{WANTED}: it was not refused");
        };
        assert_eq!(error.refusal, InsertRefusal::UnderLock);
        count.fetch_add(1, Ordering::Relaxed);
    }));
    let said = panics(|| {
        map.update(&1, |_| {
            let _at_drop = at_drop;
            panic!("{WANTED}")
        })
    });
    assert!(said.contains(WANTED));
    assert_eq!((refused.load(Ordering::Relaxed), wakes.count()), (1, 1));
    let Poll::Ready(Ok(found)) = poll(&mut waits, &wakes) else {
        panic!("it computes");
    };
    assert_eq!(found.into_value(), "own");
}

/// A key whose `Eq` calls the map.
#[derive(Clone)]
struct Asking(Arc<Mutex<Option<ExpiryMap<Asking, u32>>>>);

impl PartialEq for Asking {
    fn eq(&self, _: &Asking) -> bool {
        let map = self.0.lock().unwrap().clone();
        map.is_none_or(|map| map.is_empty())
    }
}

impl Eq for Asking {}

impl Hash for Asking {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[test]
fn an_eq_that_calls_the_map_from_a_computation_panics_instead_of_hanging() {
    hush();
    let map = ExpiryMap::<Asking, u32>::builder()
        .build(|_, _| ())
        .unwrap();
    let key = Asking(Arc::default());
    let compute = std::future::pending::<Result<u32, ()>>;
    let wakes = Wakes::new();
    let mut leads = Box::pin(map.entry(key.clone()).or_compute(compute));
    assert!(poll(&mut leads, &wakes).is_pending());
    *key.0.lock().unwrap() = Some(map.clone());
    let said = panics(|| {
        poll(
            &mut Box::pin(map.entry(key.clone()).or_compute(compute)),
            &wakes,
        )
    });
    assert!(said.contains("called the scheduler"), "{said}");
    *key.0.lock().unwrap_or_else(|poison| poison.into_inner()) = None;
    drop(leads);
    assert_eq!(
        map.entry(key.clone())
            .or_compute(|| Ok::<_, ()>(7))
            .wait()
            .unwrap()
            .into_value(),
        7
    );
}

#[test]
fn an_eq_or_hash_that_panics_changes_nothing() {
    type Call = fn(&Wild);
    let calls: &[(&str, usize, Call)] = &[
        ("insert", 0, |map| {
            drop(map.insert(Key(2), "new".to_owned()));
        }),
        ("insert_if_absent", 0, |map| {
            drop(map.entry(Key(2)).insert_if_absent("new".to_owned()));
        }),
        ("or_insert_with", 0, |map| {
            drop(map.entry(Key(2)).or_insert_with(|| "new".to_owned()));
        }),
        ("or_compute", 0, |map| {
            let _ = map
                .entry(Key(2))
                .or_compute(|| Ok::<_, ()>("new".to_owned()))
                .wait();
        }),
        ("touch_with", 0, |map| {
            let _ = map.touch_with(&Key(2), |value| value.push('!'));
        }),
        ("touch", 0, |map| {
            let _ = map.touch(&Key(2));
        }),
        // Two of three are found before.
        ("touch_many", 2, |map| {
            map.touch_many(&[Key(1), Key(2), Key(3)]);
        }),
        ("insert_many", 2, |map| {
            let keys = [Key(1), Key(2), Key(3)];
            let _ = map.insert_many(keys.map(|key| (key, "new".to_owned())));
        }),
        ("remove_many", 2, |map| {
            map.remove_many(&[Key(1), Key(2), Key(3)]);
        }),
        ("set_expiry", 0, |map| {
            let _ = map.set_expiry(&Key(2), Expiry::NEVER);
        }),
        ("get", 0, |map| drop(map.get(&Key(2)))),
        ("get_and_touch", 0, |map| drop(map.get_and_touch(&Key(2)))),
        ("update", 0, |map| {
            map.update(&Key(2), |value| value.push('!'));
        }),
        ("remove", 0, |map| drop(map.remove(&Key(2)))),
    ];
    for what in [What::Eq, What::Hash] {
        for (name, skip, call) in calls {
            let (stepped, gone) = three(1);
            let map = stepped.map();
            stepped.advance(S);
            PLAN.set(Some((what, *skip)));
            assert!(panics(|| call(&map)).contains(WANTED), "{name} {what:?}");
            assert_eq!(map.len(), 3, "{name}");
            for key in 1..=3 {
                assert_eq!(map.get(&Key(key)), Some(text(key)), "{name}");
                let deadline = map.deadline(&Key(key));
                // Of a batch some may have been touched.
                let whole = deadline == Some(at(60)) || *name == "touch_many";
                assert!(whole, "{name} {what:?} {deadline:?}");
            }
            let stats = map.stats();
            assert!(stats.balances());
            assert_eq!((stats.inserted, stats.pending), (3, 3), "{name}");
            stepped.advance(IDLE);
            gone.lock().unwrap().sort_unstable();
            assert_eq!(*gone.lock().unwrap(), [1, 2, 3], "{name}");
        }
    }
}

/// The entry is dropped undelivered; the others are delivered.
#[test]
fn a_key_that_can_not_be_cloned_costs_its_own_delivery_alone() {
    for seed in 1..10 {
        for skip in 0..3 {
            let (stepped, gone) = three(seed);
            let map = stepped.map();
            stepped.clock().advance(IDLE);
            // One clone is made at the claim, and one for the handler.
            PLAN.set(Some((What::Clone, 2 * skip)));
            stepped.settle();
            assert_eq!(PLAN.take(), None);
            assert_eq!(gone.lock().unwrap().len(), 2);
            let stats = map.stats();
            assert_eq!((stats.expired, stats.panicked, stats.running), (3, 1, 0));
            assert!(map.is_empty() && stats.balances());
            // Its key is as free as any.
            for key in 1..=3 {
                let inserted = map.insert(Key(key), text(key)).unwrap();
                assert_eq!(inserted.replaced, None);
            }
            stepped.advance(IDLE);
            assert_eq!(gone.lock().unwrap().len(), 5);
        }
    }
}

/// Keys are cloned on the threads that deliver.
#[derive(PartialEq, Eq, Hash, Debug)]
struct Bad(u32);

impl Clone for Bad {
    fn clone(&self) -> Bad {
        assert!(!self.0.is_multiple_of(10), "{WANTED}: {}", self.0);
        Bad(self.0)
    }
}

#[test]
fn keys_that_can_not_be_cloned_cost_no_batch_and_no_channel_anything_else() {
    hush();
    let told = Arc::new(AtomicUsize::new(0));
    let tell = |told: &Arc<AtomicUsize>| {
        let told = Arc::clone(told);
        move |panic: &TaskPanic<'_, Bad>| {
            assert!(panic.key.0.is_multiple_of(10) && panic.message.contains(WANTED));
            told.fetch_add(1, Ordering::SeqCst);
        }
    };
    let clock = ManualClock::new();
    let builder = || {
        ExpiryMap::<Bad, Vec<u8>>::builder()
            .time_to_idle(IDLE)
            .clock(Clock::manual(&clock))
            .on_panic(tell(&told))
    };
    let keys = Arc::new(Mutex::new(Vec::new()));
    let collect = Arc::clone(&keys);
    let batched = builder()
        .build_batched(7, move |_, batch| {
            collect
                .lock()
                .unwrap()
                .extend(batch.iter().map(|one| one.key.0));
        })
        .unwrap();
    let (channelled, gone) = builder().build_channel(100).unwrap();
    for map in [&batched, &channelled] {
        for key in 0..100 {
            map.insert(Bad(key), Vec::new()).unwrap();
        }
    }
    clock.advance(IDLE);
    for map in [&batched, &channelled] {
        until("all are settled", || {
            let stats = map.stats();
            stats.expired == 100 && stats.running == 0
        });
        let stats = map.stats();
        assert_eq!(
            (stats.panicked, stats.pending, stats.ticker_panics),
            (10, 0, 0)
        );
        assert!(stats.balances());
    }
    assert_eq!(told.load(Ordering::SeqCst), 20);
    let mut received: Vec<_> = gone.try_iter().map(|expired| expired.key.0).collect();
    let mut keys = std::mem::take(&mut *keys.lock().unwrap());
    received.sort_unstable();
    keys.sort_unstable();
    assert_eq!(received, keys);
    assert!(keys.into_iter().eq((0..100).filter(|key| key % 10 != 0)));
}

/// `Clone` of a value runs under the lock, too.
#[test]
fn a_value_that_can_not_be_cloned_changes_nothing() {
    #[derive(Debug)]
    struct Rigid;
    impl Clone for Rigid {
        fn clone(&self) -> Rigid {
            panic!("{WANTED}: a value's clone");
        }
    }
    hush();
    let stepped = ExpiryMap::<u32, Rigid>::builder()
        .time_to_idle(IDLE)
        .build_stepped(1, |_, _| ())
        .unwrap();
    let map = stepped.map();
    map.insert(1, Rigid).unwrap();
    stepped.advance(S);
    let calls: [&dyn Fn(); 4] = [
        &|| drop(map.get(&1)),
        &|| drop(map.get_and_touch(&1)),
        &|| assert_eq!(map.iter().count(), 0),
        // Before anything is inserted.
        &|| drop(map.entry(2).or_insert_with(|| Rigid)),
    ];
    for call in calls {
        assert!(panics(call).contains(WANTED));
        assert_eq!((map.len(), map.deadline(&1)), (1, Some(at(60))));
    }
    stepped.advance(IDLE);
    assert!(map.is_empty() && map.stats().balances());
}

// === values whose drop calls the map ===

/// A value that inserts another one where it is dropped, and looks around.
struct Echo {
    map: Arc<Mutex<Option<ExpiryMap<u32, Echo>>>>,
    key: u32,
    refused: Arc<AtomicUsize>,
}

/// Values with keys from here on are dropped in silence.
const SILENT: u32 = 1_000;

impl Drop for Echo {
    fn drop(&mut self) {
        if self.key >= SILENT {
            return;
        }
        let map = self.map.lock().unwrap().clone();
        let Some(map) = map else {
            return;
        };
        // Every stripe, and one of them for good.
        let _ = (map.len(), map.stats(), map.touch(&self.key));
        let key = self.key + SILENT;
        let echo = Echo {
            map: Arc::clone(&self.map),
            key,
            refused: Arc::clone(&self.refused),
        };
        if map.insert(key, echo).is_err() {
            self.refused.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn a_values_drop_may_call_the_map_wherever_it_happens() {
    for seed in 1..5 {
        let stepped = ExpiryMap::<u32, Echo>::builder()
            .time_to_idle(IDLE)
            .shards(1)
            .stripes(1)
            .build_stepped(seed, |_, expired| drop(expired))
            .unwrap();
        let map = stepped.map();
        let shared = Arc::new(Mutex::new(Some(stepped.map())));
        let refused = Arc::new(AtomicUsize::new(0));
        let echo = |key| Echo {
            map: Arc::clone(&shared),
            key,
            refused: Arc::clone(&refused),
        };
        let insert = |key| assert!(map.insert(key, echo(key)).is_ok());
        // So many echoes came, and nothing else is left.
        let echoes = |count: usize| {
            assert_eq!(map.len(), count);
            assert_eq!(map.retain(|key, _| *key < SILENT), count);
            assert!(map.is_empty());
        };
        insert(1);
        drop(map.remove(&1));
        echoes(1);
        insert(1);
        drop(map.insert(1, echo(SILENT)));
        echoes_of(&map, &[1, 1 + SILENT]);
        assert_eq!(map.clear(), 2);
        // Refused, and sieved.
        insert(1);
        drop(map.entry(1).insert_if_absent(echo(2)));
        echoes_of(&map, &[1, 2 + SILENT]);
        assert_eq!(map.retain(|_, _| false), 2);
        echoes(1);
        (1..=600).for_each(insert);
        assert_eq!(map.retain(|key, _| key % 2 == 0 || *key >= SILENT), 300);
        assert_eq!(map.len(), 600);
        // Those echo, and the echoes of the others are silent.
        assert_eq!(map.clear(), 600);
        echoes(300);
        // Delivered: dropped by the handler.
        (1..=10).for_each(insert);
        stepped.advance(IDLE);
        echoes(10);
        // In an update.
        insert(1);
        map.update(&1, |value| value.key = SILENT);
        drop(map.remove(&1));
        assert!(map.is_empty());
        // At the end: handed back, or dropped with the driver.
        (1..=10).for_each(insert);
        if seed % 2 == 0 {
            let report = stepped.shutdown(Shutdown::HandBack);
            assert_eq!(report.handed_back.len(), 10);
            drop(report);
        } else {
            drop(stepped);
        }
        assert_eq!(refused.load(Ordering::SeqCst), 10);
        let stats = map.stats();
        assert_eq!((stats.pending, stats.panicked), (0, 0));
        assert!(stats.balances());
        drop(shared.lock().unwrap().take());
    }
}

fn echoes_of(map: &ExpiryMap<u32, Echo>, expected: &[u32]) {
    assert_eq!(map.len(), expected.len());
    for key in expected {
        assert!(map.contains(key), "{key}");
    }
}

#[test]
fn a_values_drop_that_panics_costs_no_other_entry() {
    #[derive(Debug)]
    struct Brittle(bool);
    impl Drop for Brittle {
        fn drop(&mut self) {
            assert!(!self.0, "{WANTED}: in a value's drop");
        }
    }
    hush();
    for seed in 1..5 {
        let stepped = ExpiryMap::<u32, Brittle>::builder()
            .time_to_idle(IDLE)
            .build_stepped(seed, |_, expired| drop(expired))
            .unwrap();
        let map = stepped.map();
        let fill = || {
            for key in 0..20 {
                map.insert(key, Brittle(key == 7)).unwrap();
            }
        };
        // In a handler it is a panic of that delivery.
        fill();
        stepped.advance(IDLE);
        assert_eq!((map.stats().expired, map.stats().panicked), (20, 1));
        // In a call it reaches the caller; what was refused is gone.
        fill();
        assert!(panics(|| map.retain(|key, _| *key != 7)).contains(WANTED));
        assert_eq!(map.clear(), 19);
        fill();
        assert!(panics(|| map.clear()).contains(WANTED));
        assert!(map.is_empty());
        fill();
        assert!(panics(|| drop(map.remove(&7))).contains(WANTED));
        assert_eq!(map.len(), 19);
        assert!(map.stats().balances());
    }
}

/// The last handle of another map, dropped where no call may be made: that map closes all the same.
#[test]
fn a_map_that_is_dropped_under_the_lock_of_another_one_closes() {
    let inner = ExpiryMap::<u32, u32>::builder().build(|_, _| ()).unwrap();
    let dropped = Arc::new(());
    let held = Arc::clone(&dropped);
    let watched = ExpiryMap::<u32, Arc<()>>::builder()
        .build(|_, _| ())
        .unwrap();
    watched.insert(1, held).unwrap();
    type Inner = (ExpiryMap<u32, u32>, ExpiryMap<u32, Arc<()>>);
    let outer = ExpiryMap::<u32, Option<Inner>>::builder()
        .build(|_, _| ())
        .unwrap();
    outer.insert(7, Some((inner, watched))).unwrap();
    outer.update(&7, |value| *value = None).unwrap();
    // What it held is dropped when it is closed.
    until("it is closed", || Arc::strong_count(&dropped) == 1);
    assert_eq!(outer.with(&7, Option::is_none), Some(true));
}

/// A value whose clone panics, behind a key whose drop calls the map.
#[test]
fn what_was_cloned_before_a_clone_panics_is_dropped_without_a_lock() {
    struct Calls {
        number: u32,
        map: Arc<Mutex<Option<ExpiryMap<Calls, Refuses>>>>,
        dropped: Arc<AtomicUsize>,
    }
    impl Clone for Calls {
        fn clone(&self) -> Self {
            Calls {
                number: self.number,
                map: Arc::clone(&self.map),
                dropped: Arc::clone(&self.dropped),
            }
        }
    }
    impl PartialEq for Calls {
        fn eq(&self, other: &Self) -> bool {
            self.number == other.number
        }
    }
    impl Eq for Calls {}
    impl std::hash::Hash for Calls {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            self.number.hash(state);
        }
    }
    impl Drop for Calls {
        fn drop(&mut self) {
            let map = self.map.lock().unwrap().clone();
            if let Some(map) = map {
                // Under a lock this would panic in a panic.
                assert_eq!(map.len(), 1);
                self.dropped.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
    struct Refuses;
    impl Clone for Refuses {
        fn clone(&self) -> Self {
            panic!("{WANTED}: a clone");
        }
    }
    hush();
    let map = ExpiryMap::<Calls, Refuses>::builder()
        .build(|_, _| ())
        .unwrap();
    let (handle, dropped) = (Arc::new(Mutex::new(None)), Arc::default());
    let key = Calls {
        number: 1,
        map: Arc::clone(&handle),
        dropped: Arc::clone(&dropped),
    };
    assert!(map.insert(key, Refuses).is_ok());
    *handle.lock().unwrap() = Some(map.clone());
    assert!(panics(|| map.iter().count()).contains(WANTED));
    *handle.lock().unwrap() = None;
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}
