//! The listener that is called with each entry that leaves a map.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kit::map::{IDLE, S, builder, text};
use kit::quiet::{WANTED, hush};
use kit::wait::until;
use tourbillon::{
    Clock, Expiry, ExpiryMap, ExpiryMapBuilder, GroupFull, Lifecycle, ManualClock, Reason,
    ReceiverLost, Shutdown,
};

type Told = Arc<Mutex<Vec<(u32, String, Reason)>>>;

/// A builder whose listener collects what it is told.
fn listening() -> (ExpiryMapBuilder<u32, String>, Told) {
    let told = Told::default();
    let tell = Arc::clone(&told);
    let builder = builder().on_removal(move |key, value, reason| {
        tell.lock().unwrap().push((*key, value.clone(), reason));
    });
    (builder, told)
}

/// Takes keys and reasons, sorted by key.
fn reasons(told: &Told) -> Vec<(u32, Reason)> {
    let mut told: Vec<_> = std::mem::take(&mut *told.lock().unwrap());
    told.sort_by_key(|told| told.0);
    told.into_iter()
        .map(|(key, _, reason)| (key, reason))
        .collect()
}

#[test]
fn each_way_to_leave_has_its_reason() {
    let (builder, told) = listening();
    let stepped = builder.build_stepped(1, |_, _| ()).unwrap();
    let map = stepped.map();
    let fill = |keys: std::ops::Range<u32>| keys.for_each(|key| drop(map.insert(key, text(key))));
    fill(1..3);
    assert_eq!(map.remove(&1).value(), Some(text(1)));
    assert_eq!(map.insert(2, "new".into()).unwrap().replaced, Some(text(2)));
    let first = std::mem::take(&mut *told.lock().unwrap());
    let expected = [
        (1, text(1), Reason::Removed),
        (2, text(2), Reason::Replaced),
    ];
    assert_eq!(first, expected, "the value is that of the entry that left");
    assert_eq!(map.remove(&1).value(), None);
    assert_eq!(reasons(&told), [], "nothing has left");

    fill(3..6);
    assert_eq!(map.retain(|key, _| *key != 3), 1);
    assert_eq!(reasons(&told), [(3, Reason::Removed)]);
    assert_eq!(map.clear(), 3);
    let cleared = Reason::Cleared;
    assert_eq!(reasons(&told), [(2, cleared), (4, cleared), (5, cleared)]);

    fill(6..7);
    map.entry(7)
        .expiry(Expiry::NEVER.time_to_live(S))
        .insert(text(7))
        .unwrap();
    stepped.advance(IDLE);
    assert_eq!(reasons(&told), [(6, Reason::Idle), (7, Reason::Lifetime)]);

    fill(8..9);
    assert_eq!(stepped.shutdown(Shutdown::HandBack).handed_back.len(), 1);
    assert_eq!(reasons(&told), [(8, Reason::HandedBack)]);
    assert!(map.insert(9, text(9)).is_err());
    assert_eq!(reasons(&told), [], "a refused entry was never in the map");
}

#[test]
fn the_end_of_the_map_has_its_reasons() {
    for (mode, reason) in [
        (Shutdown::RunNow, Reason::Shutdown),
        (Shutdown::Drain { limit: IDLE * 2 }, Reason::Idle),
        (Shutdown::Drain { limit: S }, Reason::HandedBack),
    ] {
        let (builder, told) = listening();
        let stepped = builder.build_stepped(1, |_, _| ()).unwrap();
        stepped.map().insert(1, text(1)).unwrap();
        stepped.shutdown(mode);
        assert_eq!(reasons(&told), [(1, reason)], "{mode:?}");
    }
    let (builder, told) = listening();
    let map = builder.build(|_, _| ()).unwrap();
    map.insert(1, text(1)).unwrap();
    let clone = map.clone();
    drop(map);
    assert_eq!(reasons(&told), []);
    drop(clone);
    assert_eq!(reasons(&told), [(1, Reason::Dropped)]);
}

#[test]
fn an_entry_that_is_over_and_replaced_before_its_delivery_left_for_its_own_reason() {
    let (builder, told) = listening();
    let builder = builder.groups::<String>().max_per_group(1);
    let builder = builder.when_group_full(GroupFull::EvictOldest);
    let stepped = builder.build_stepped(1, |_, _| ()).unwrap();
    let map = stepped.map();
    map.entry(1)
        .expiry(Expiry::NEVER.time_to_live(S))
        .no_group()
        .insert(text(1))
        .unwrap();
    map.entry(2)
        .expiry(Expiry::NEVER.time_to_live(S))
        .no_group()
        .insert(text(2))
        .unwrap();
    stepped.clock().advance(S);
    map.insert(1, "new".into()).unwrap();
    map.entry(2)
        .no_group()
        .insert_if_absent("new".into())
        .unwrap();
    assert_eq!(
        reasons(&told),
        [(1, Reason::Lifetime), (2, Reason::Lifetime)]
    );
    map.entry(3).group("ada").insert(text(3)).unwrap();
    map.entry(4).group("ada").insert(text(4)).unwrap();
    // The third one is evicted, and is replaced while it waits for its delivery.
    map.insert(3, "new".into()).unwrap();
    assert_eq!(reasons(&told), [(3, Reason::GroupFull)]);
    map.entry(5).group("ada").insert(text(5)).unwrap();
    stepped.settle();
    assert_eq!(reasons(&told), [(4, Reason::GroupFull)]);
    assert_eq!(map.remove_group("ada").len(), 1);
    map.entry(6).group("ada").insert(text(6)).unwrap();
    map.entry(6).group("ada").insert("new".into()).unwrap();
    let (removed, replaced) = (Reason::Removed, Reason::Replaced);
    assert_eq!(reasons(&told), [(5, removed), (6, replaced)]);
}

#[test]
fn the_listener_comes_before_the_delivery_of_every_kind() {
    let order = Arc::new(Mutex::new(Vec::new()));
    let tell = |what: &'static str| {
        let order = Arc::clone(&order);
        move || order.lock().unwrap().push(what)
    };
    let (told, handled) = (tell("listener"), tell("handler"));
    let make = |told: Box<dyn Fn() + Send + Sync>| builder().on_removal(move |_, _, _| told());
    let stepped = make(Box::new(told))
        .build_stepped(1, move |_, _| handled())
        .unwrap();
    stepped.map().insert(1, text(1)).unwrap();
    stepped.advance(IDLE);
    assert_eq!(*order.lock().unwrap(), ["listener", "handler"]);

    let hand = ManualClock::new();
    let (builder, told) = listening();
    let batched = builder
        .clock(Clock::manual(&hand))
        .build_batched(8, |_, _| ())
        .unwrap();
    let (builder, told_of_channel) = listening();
    let (sent, gone) = builder
        .clock(Clock::manual(&hand))
        .build_channel(8)
        .unwrap();
    for key in 0..3 {
        batched.insert(key, text(key)).unwrap();
        sent.insert(key, text(key)).unwrap();
    }
    sent.remove(&2);
    hand.advance(IDLE);
    let mut received: Vec<u32> = (0..2).map(|_| gone.recv().unwrap().key).collect();
    received.sort_unstable();
    assert_eq!(received, [0, 1]);
    let idle = Reason::Idle;
    assert_eq!(
        reasons(&told_of_channel),
        [(0, idle), (1, idle), (2, Reason::Removed)]
    );
    until("the batch is handled", || {
        batched.stats().running == 0 && batched.is_empty()
    });
    assert_eq!(reasons(&told), [(0, idle), (1, idle), (2, idle)]);
}

#[test]
fn a_lost_receiver_that_closes_the_map_drops_the_others() {
    let hand = ManualClock::new();
    let (builder, told) = listening();
    let builder = builder
        .clock(Clock::manual(&hand))
        .when_receiver_lost(ReceiverLost::Close);
    let (map, gone) = builder.build_channel(8).unwrap();
    map.insert(1, text(1)).unwrap();
    map.entry(2).expiry(Expiry::NEVER).insert(text(2)).unwrap();
    drop(gone);
    hand.advance(IDLE);
    until("it is closed", || map.state() == Lifecycle::Closed);
    until("both have left", || told.lock().unwrap().len() == 2);
    assert_eq!(reasons(&told), [(1, Reason::Idle), (2, Reason::Dropped)]);
}

#[test]
fn the_listener_may_call_the_map_and_may_panic() {
    hush();
    let own: Arc<Mutex<Option<ExpiryMap<u32, String>>>> = Arc::default();
    let map = Arc::clone(&own);
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let builder = builder().on_removal(move |key, _, reason| {
        counted.fetch_add(1, Ordering::SeqCst);
        let map = map.lock().unwrap().clone().unwrap();
        if reason == Reason::Removed {
            // The key is free already.
            map.insert(*key, "again".into()).unwrap();
        }
        panic!("{WANTED}: in the listener");
    });
    let stepped = builder.build_stepped(1, |_, _| ()).unwrap();
    let map = stepped.map();
    *own.lock().unwrap() = Some(map.clone());
    map.insert(1, text(1)).unwrap();
    assert_eq!(map.remove(&1).value(), Some(text(1)));
    assert_eq!(map.get(&1).as_deref(), Some("again"));
    assert_eq!(
        map.insert(1, text(1)).unwrap().replaced.as_deref(),
        Some("again")
    );
    stepped.advance(IDLE);
    let stats = map.stats();
    assert_eq!(
        (stats.expired, stats.panicked),
        (1, 0),
        "the delivery is another matter"
    );
    map.insert(2, text(2)).unwrap();
    assert_eq!(map.clear(), 1);
    assert_eq!(calls.load(Ordering::SeqCst), 4);
    *own.lock().unwrap() = None;
}

/// Four threads insert, replace and remove; a fifth lets time pass. Each value leaves once.
#[test]
fn however_calls_race_each_entry_leaves_once() {
    const THREADS: u64 = 4;
    const CALLS: u64 = 2_000;
    let hand = ManualClock::new();
    let told: Arc<Mutex<BTreeMap<u64, Reason>>> = Arc::default();
    let tell = Arc::clone(&told);
    let delivered = Arc::new(AtomicU64::new(0));
    let handled = Arc::clone(&delivered);
    let map = ExpiryMap::<u64, u64>::builder()
        .time_to_idle(Duration::from_millis(5))
        .clock(Clock::manual(&hand))
        .groups::<u64>()
        .max_per_group(3)
        .when_group_full(GroupFull::EvictOldest)
        .on_removal(move |_, value, reason| {
            let before = tell.lock().unwrap().insert(*value, reason);
            assert_eq!(before, None, "{value} has left before");
        })
        .build(move |_, _| {
            handled.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let map = &map;
            scope.spawn(move || {
                for call in 0..CALLS {
                    let value = thread * CALLS + call;
                    let key = value.wrapping_mul(0x9e37_79b9) % 16;
                    match call % 4 {
                        0 => drop(map.insert(key, value)),
                        1 => drop(map.entry(key).group(&(key % 4)).insert(value)),
                        2 => drop(map.remove(&key)),
                        _ => drop(map.touch(&key)),
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..500 {
                hand.advance(Duration::from_millis(1));
                thread::yield_now();
            }
        });
    });
    let left = map.len();
    let report = map.shutdown(Shutdown::HandBack).wait().unwrap();
    assert!(report.handed_back.len() <= left);
    let told = told.lock().unwrap();
    let stats = map.stats();
    assert_eq!(
        told.len() as u64,
        stats.inserted,
        "each entry that was accepted"
    );
    let of = |reason| told.values().filter(|told| **told == reason).count() as u64;
    assert_eq!(of(Reason::HandedBack), stats.handed_back);
    assert_eq!(of(Reason::Removed), stats.removed);
    let ended = of(Reason::Idle) + of(Reason::GroupFull) + of(Reason::Replaced);
    assert_eq!(ended, stats.expired + stats.evicted + stats.replaced);
    assert_eq!(
        delivered.load(Ordering::SeqCst),
        stats.expired + stats.evicted
    );
    assert_eq!(stats.panicked, 0);
}
