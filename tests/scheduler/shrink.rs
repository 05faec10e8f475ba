//! Memory that is given back when somebody asks: what is there goes on, and what is gone stays
//! gone.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use kit::steps::{T, narrow, stepped};
use tourbillon::{Cancel, Clock, ExpiryMap, Firing, ManualClock, Reschedule, Scheduler, Shutdown};

#[test]
fn ids_from_before_find_nothing_and_come_never_again() {
    for scheduler in [narrow(1), stepped(2)] {
        let timers = scheduler.handle();
        let mut given = HashSet::new();
        for _ in 0..3 {
            let mut ids = Vec::new();
            for key in 0..1_000 {
                ids.push(timers.schedule(key, 9 * T, |_| ()).unwrap().id);
            }
            assert!(ids.iter().all(|id| given.insert(*id)), "an id comes back");
            assert_eq!(timers.cancel_all(), 1_000);
            timers.shrink_to_fit();
            for id in ids {
                let by_id = timers.by_id(id);
                assert_eq!(by_id.get(), None);
                assert_eq!(by_id.reschedule(T), Reschedule::NotFound);
                assert_eq!(by_id.cancel(), Cancel::NotFound);
                drop(timers.cancel_on_drop(id));
            }
        }
        assert!(scheduler.advance(100 * T).is_empty());
    }
}

#[test]
fn a_map_keeps_what_is_there_with_its_group_and_deadline() {
    const SECOND: Duration = Duration::from_secs(1);
    let stepped = ExpiryMap::<u64, u64>::builder()
        .time_to_idle(9 * SECOND)
        .groups::<u64>()
        .build_stepped(1, |_, _| ())
        .unwrap();
    let map = stepped.map();
    for key in 0..10_000 {
        map.entry(key).group(&(key / 2)).insert(key).unwrap();
    }
    map.retain(|key, _| key / 2 == 4_321);
    map.shrink_to_fit();
    assert_eq!(map.group_len(&4_321), 2);
    let mut left: Vec<_> = map.iter().collect();
    left.sort_unstable();
    assert_eq!(left, [(8_642, 8_642), (8_643, 8_643)]);
    stepped.advance(5 * SECOND);
    assert_eq!(map.touch_group(&4_321), 2);
    map.shrink_to_fit();
    stepped.advance(8 * SECOND);
    assert_eq!(map.len(), 2);
    stepped.advance(SECOND);
    assert!(map.is_empty());
    map.shrink_to_fit();
    assert_eq!(map.group_len(&4_321), 0);
    map.entry(1).group(&7).insert(1).unwrap();
    assert_eq!((map.get(&1), map.group_len(&7)), (Some(1), 1));
}

#[test]
fn it_may_be_called_during_a_run_and_after_the_end() {
    let scheduler = narrow(3);
    let timers = scheduler.handle();
    let inside = timers.clone();
    let task = move |_: &Firing<'_, u64>| {
        inside.shrink_to_fit();
        inside.schedule(1, T, |_| ()).unwrap();
        inside.shrink_to_fit();
    };
    timers.schedule(1, T, task).unwrap();
    assert_eq!(scheduler.advance(5 * T).len(), 2);
    let report = scheduler.shutdown(Shutdown::HandBack);
    assert!(report.handed_back.is_empty());
    timers.shrink_to_fit();
    assert!(timers.is_empty());
}

/// Everybody arms, moves and cancels while one thread takes the memory away again and again. What
/// was armed has one end, and each call on an id finds its own arming or none.
#[test]
fn it_goes_on_beside_all_other_calls() {
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 300;
    const PEAK: u64 = 20;
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u64>::builder()
        .clock(Clock::manual(&hand))
        .shards(1)
        .stripes(2)
        .workers(2)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let (ran, cancelled) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(0));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let shrinking = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                timers.shrink_to_fit();
                hand.advance(T);
                thread::yield_now();
            }
        });
        let callers = (0..THREADS).map(|thread| {
            let (timers, ran, cancelled) = (&timers, &ran, &cancelled);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let mut ids = Vec::new();
                    for n in 0..PEAK {
                        let key = (round * PEAK + n) * THREADS + thread;
                        let ran = Arc::clone(ran);
                        let task = move |_: &Firing<'_, u64>| {
                            ran.fetch_add(1, Ordering::Relaxed);
                        };
                        let delay = T * (n % 3 * 1_000) as u32;
                        ids.push((key, timers.schedule(key, delay, task).unwrap().id));
                    }
                    for (n, (key, id)) in ids.into_iter().enumerate() {
                        if let Some(info) = timers.by_id(id).get() {
                            assert_eq!(info.id, id);
                        }
                        if n % 4 == 0 {
                            let _ = timers.by_id(id).reschedule(5 * T);
                        }
                        if n % 4 != 1 && timers.by_id(id).cancel().is_cancelled() {
                            cancelled.fetch_add(1, Ordering::Relaxed);
                            assert_eq!(timers.get(&key), None);
                        }
                    }
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        shrinking.join().unwrap();
    });
    let left = timers.cancel_all() as u64;
    scheduler.shutdown(Shutdown::HandBack).wait().unwrap();
    timers.shrink_to_fit();
    let ended = ran.load(Ordering::Relaxed) + cancelled.load(Ordering::Relaxed) + left;
    assert_eq!(ended, THREADS * ROUNDS * PEAK);
    let stats = timers.stats();
    assert_eq!(stats.ran + stats.cancelled, stats.scheduled);
}
