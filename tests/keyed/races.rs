//! Callers that race with each other and with the runs, on real threads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::wait;
use tourbillon::keyed::{Debounce, Edges, Throttle};
use tourbillon::{Scheduler, Shutdown, Time};

const CALLERS: u64 = 4;
const CALLS: u64 = 2_000;
const KEYS: u64 = 3;

#[test]
fn two_runs_of_a_key_never_start_within_a_window_and_no_value_is_lost() {
    let wait = Duration::from_millis(3);
    for edges in [Edges::Both, Edges::Trailing] {
        let scheduler = Scheduler::<u64>::new().unwrap();
        let handle = scheduler.handle();
        let starts = Arc::new(Mutex::new(HashMap::<u64, Vec<Time>>::new()));
        let sum = Arc::new(AtomicU64::new(0));
        let (noted, summed) = (Arc::clone(&starts), Arc::clone(&sum));
        let throttle = Throttle::builder(&handle, wait)
            .edges(edges)
            .merge(|so_far, more| *so_far += more)
            .build(move |firing, value: u64| {
                let started = firing.deadline() + firing.lateness();
                let mut starts = noted.lock().unwrap();
                starts.entry(*firing.key()).or_default().push(started);
                summed.fetch_add(value, Ordering::SeqCst);
            });
        std::thread::scope(|scope| {
            for caller in 0..CALLERS {
                let throttle = throttle.clone();
                scope.spawn(move || {
                    for call in 0..CALLS {
                        throttle.call((caller + call) % KEYS, 1).unwrap();
                        if call % 64 == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
        wait::until("all values have run", || {
            sum.load(Ordering::SeqCst) == CALLERS * CALLS
        });
        wait::until("all windows are over", || handle.is_empty());
        let starts = starts.lock().unwrap();
        assert_eq!(starts.len() as u64, KEYS);
        let total: usize = starts.values().map(Vec::len).sum();
        assert!((total as u64) < CALLERS * CALLS);
        for starts in starts.values() {
            for pair in starts.windows(2) {
                assert!(pair[1] >= pair[0] + wait, "{pair:?}");
            }
        }
    }
}

#[test]
fn flushes_and_takes_beside_the_calls_leave_every_value_with_one_of_them() {
    let scheduler = Scheduler::<u64>::new().unwrap();
    let handle = scheduler.handle();
    let sum = Arc::new(AtomicU64::new(0));
    let summed = Arc::clone(&sum);
    let debounce = Debounce::builder(&handle, Duration::from_millis(1))
        .max_wait(Duration::from_millis(2))
        .merge(|so_far, more| *so_far += more)
        .build(move |_, value: u64| {
            summed.fetch_add(value, Ordering::SeqCst);
        });
    let taken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (debounce, taken) = (debounce.clone(), &taken);
            scope.spawn(move || {
                for call in 0..CALLS {
                    let key = (caller + call) % KEYS;
                    debounce.call(key, 1).unwrap();
                    if call % 17 == 0 {
                        debounce.flush(&key);
                    }
                    if call % 501 == 0 {
                        let pending = debounce.take_pending().into_iter();
                        let values: u64 = pending.map(|(_, value)| value).sum();
                        taken.fetch_add(values, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    wait::until("every value has run or was taken", || {
        sum.load(Ordering::SeqCst) + taken.load(Ordering::SeqCst) == CALLERS * CALLS
    });
    wait::until("all windows are over", || handle.is_empty());
}

#[test]
fn a_shutdown_beside_calls_and_takes_leaves_every_accepted_value_with_one_of_them() {
    let drain = Shutdown::Drain {
        limit: Duration::from_secs(60),
    };
    for mode in [drain, Shutdown::RunNow, Shutdown::HandBack] {
        let scheduler = Scheduler::<u64>::new().unwrap();
        let (ran, taken, accepted) = (Arc::default(), AtomicU64::new(0), AtomicU64::new(0));
        let summed: Arc<AtomicU64> = Arc::clone(&ran);
        let throttle = Throttle::builder(&scheduler.handle(), Duration::from_millis(1))
            .merge(|so_far, more| *so_far += more)
            .build(move |_, value: u64| {
                summed.fetch_add(value, Ordering::SeqCst);
            });
        let take = |throttle: &Throttle<u64, u64>| {
            let values = throttle.take_pending().into_iter().map(|(_, value)| value);
            taken.fetch_add(values.sum(), Ordering::SeqCst);
        };
        std::thread::scope(|scope| {
            for caller in 0..CALLERS {
                let (throttle, accepted) = (throttle.clone(), &accepted);
                scope.spawn(move || {
                    for call in 0.. {
                        if throttle.call((caller + call) % KEYS, 1).is_err() {
                            break;
                        }
                        accepted.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            wait::until("calls come in", || accepted.load(Ordering::SeqCst) > CALLS);
            take(&throttle);
            let closing = scheduler.shutdown(mode);
            take(&throttle);
            assert_eq!(closing.wait().unwrap().still_running, 0);
        });
        take(&throttle);
        let total = ran.load(Ordering::SeqCst) + taken.load(Ordering::SeqCst);
        assert_eq!(total, accepted.load(Ordering::SeqCst), "{mode:?}");
    }
}
