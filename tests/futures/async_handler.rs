//! Maps whose handler returns futures, on a tokio runtime.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::quiet::hush;
use kit::runtimes::on_all;
use tokio::runtime::{self, Handle};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep};
use tourbillon::{
    BuildError, Clock, ExpiryMap, Lifecycle, ManualClock, ReceiverLost, Shutdown, Touch,
};

const SECOND: Duration = Duration::from_secs(1);

type Map = ExpiryMap<u32, String>;

fn fill(map: &Map, keys: impl IntoIterator<Item = u32>) {
    for key in keys {
        map.insert(key, key.to_string()).unwrap();
    }
}

#[test]
fn each_entry_is_handled_once_and_not_more_than_the_limit_at_a_time() {
    on_all(|| async {
        let clock = ManualClock::new();
        let (tell, mut told) = mpsc::unbounded_channel();
        let running = Arc::new(AtomicUsize::new(0));
        let map = Map::builder()
            .time_to_idle(SECOND)
            .clock(Clock::manual(&clock))
            .build_on_tokio(Handle::current(), 7, move |map, expired| {
                let (tell, running) = (tell.clone(), Arc::clone(&running));
                async move {
                    let with_this = running.fetch_add(1, Ordering::SeqCst) + 1;
                    tokio::task::yield_now().await;
                    assert!(Handle::try_current().is_ok() && with_this <= 7);
                    running.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(map.touch(&expired.key), Touch::Expired);
                    let _ = tell.send(expired);
                }
            })
            .unwrap();
        fill(&map, 0..1_000);
        clock.advance(SECOND);
        let mut keys = Vec::new();
        while keys.len() < 1_000 {
            let expired = told.recv().await.unwrap();
            assert_eq!(expired.value, expired.key.to_string());
            keys.push(expired.key);
        }
        keys.sort_unstable();
        assert!(keys.into_iter().eq(0..1_000));
        let report = map.shutdown(Shutdown::HandBack).await;
        assert!(report.handed_back.is_empty() && report.still_running == 0);
        assert_eq!((map.stats().expired, map.stats().panicked), (1_000, 0));
    });
}

/// What a test under tokio's paused clock needs: the map, when each entry was handled, and room for
/// futures to end.
struct Paused {
    map: Map,
    begun: Arc<Mutex<Vec<(u32, Duration)>>>,
    ended: Arc<AtomicUsize>,
}

/// Each entry is due after as many seconds as its key says, and takes 10 s.
fn paused(most: usize) -> Paused {
    let (begun, ended) = (Arc::new(Mutex::new(Vec::new())), Arc::default());
    let (note, count, start) = (Arc::clone(&begun), Arc::clone(&ended), Instant::now());
    let stepped = Map::builder()
        .time_to_idle(SECOND)
        .build_stepped_on_tokio(1, Handle::current(), most, move |_, expired| {
            note.lock().unwrap().push((expired.key, start.elapsed()));
            let count: Arc<AtomicUsize> = Arc::clone(&count);
            async move {
                sleep(10 * SECOND).await;
                count.fetch_add(1, Ordering::SeqCst);
            }
        })
        .unwrap();
    let map = stepped.map();
    tokio::spawn(stepped.follow_tokio());
    Paused { map, begun, ended }
}

#[tokio::test(start_paused = true)]
async fn what_has_no_place_waits_in_the_map_and_can_be_removed() {
    let Paused { map, begun, ended } = paused(2);
    fill(&map, 0..5);
    sleep(5 * SECOND).await;
    // Two are under way, and the others are still entries of the map.
    assert_eq!(begun.lock().unwrap().len(), 2);
    let begun_keys: Vec<_> = begun.lock().unwrap().iter().map(|(key, _)| *key).collect();
    let waiting: Vec<_> = (0..5).filter(|key| !begun_keys.contains(key)).collect();
    assert_eq!(map.len(), 3);
    assert!(map.remove(&waiting[0]).value().is_some());
    sleep(60 * SECOND).await;
    let mut times: Vec<_> = begun
        .lock()
        .unwrap()
        .iter()
        .map(|(_, time)| *time)
        .collect();
    times.sort_unstable();
    // A place is taken again in the moment in which it becomes free.
    assert_eq!(times, [1, 1, 11, 11].map(|second| second * SECOND));
    assert_eq!((ended.load(Ordering::SeqCst), map.len()), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn a_key_is_not_handled_twice_at_a_time() {
    let Paused { map, begun, .. } = paused(8);
    fill(&map, [7]);
    sleep(2 * SECOND).await;
    // Due at 3 s, while the first one runs until 11 s.
    fill(&map, [7]);
    sleep(30 * SECOND).await;
    assert_eq!(*begun.lock().unwrap(), [(7, SECOND), (7, 11 * SECOND)]);
}

#[test]
fn a_shutdown_waits_for_the_futures() {
    on_all(|| async {
        let clock = ManualClock::new();
        let (gate, begun) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (wait, tell) = (Arc::clone(&gate), Arc::clone(&begun));
        let map = Map::builder()
            .time_to_idle(SECOND)
            .clock(Clock::manual(&clock))
            .build_on_tokio(Handle::current(), 2, move |_, _| {
                let (wait, tell) = (Arc::clone(&wait), Arc::clone(&tell));
                async move {
                    tell.add_permits(1);
                    let _ = wait.acquire().await.map(|permit| permit.forget());
                }
            })
            .unwrap();
        fill(&map, 0..2);
        clock.advance(SECOND);
        let _ = begun.acquire_many(2).await.unwrap();
        fill(&map, 10..13);
        let mut closing = map.shutdown(Shutdown::HandBack);
        let soon = std::future::poll_fn(|context| {
            std::task::Poll::Ready(std::pin::Pin::new(&mut closing).poll(context).is_pending())
        });
        assert!(soon.await);
        gate.add_permits(2);
        let report = closing.await;
        assert_eq!((report.handed_back.len(), report.still_running), (3, 0));
        assert_eq!(map.stats().expired, 2);
    });
}

#[test]
fn a_panic_of_the_handler_or_of_its_future_is_counted_and_told() {
    hush();
    on_all(|| async {
        let clock = ManualClock::new();
        let (tell, mut told) = mpsc::unbounded_channel();
        let map = Map::builder()
            .time_to_idle(SECOND)
            .clock(Clock::manual(&clock))
            .on_panic(move |panic| {
                let _ = tell.send((*panic.key, panic.message.to_owned()));
            })
            .build_on_tokio(Handle::current(), 1, move |_, expired| {
                assert_ne!(expired.key, 1, "the handler");
                async move {
                    tokio::task::yield_now().await;
                    assert_ne!(expired.key, 2, "the future");
                }
            })
            .unwrap();
        fill(&map, 0..3);
        clock.advance(SECOND);
        let mut panics = [told.recv().await.unwrap(), told.recv().await.unwrap()];
        panics.sort_unstable();
        let expected = [(1, "the handler"), (2, "the future")];
        for ((key, message), (expected_key, part)) in panics.iter().zip(expected) {
            assert_eq!(*key, expected_key);
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(map.shutdown(Shutdown::RunNow).await.still_running, 0);
        assert_eq!(map.stats().panicked, 2);
        assert!(map.stats().balances());
    });
}

#[test]
fn a_runtime_that_has_ended_is_a_lost_receiver() {
    for policy in [ReceiverLost::Drop, ReceiverLost::Close] {
        let clock = ManualClock::new();
        let runtime = runtime::Builder::new_current_thread().build().unwrap();
        let lost = Arc::new(Mutex::new(Vec::new()));
        let (note, handled) = (Arc::clone(&lost), Arc::new(AtomicBool::new(false)));
        let tell = Arc::clone(&handled);
        let map = Map::builder()
            .time_to_idle(SECOND)
            .clock(Clock::manual(&clock))
            .when_receiver_lost(policy)
            .on_receiver_lost(move |first| note.lock().unwrap().push(first.value.clone()))
            .build_on_tokio(runtime.handle().clone(), 1, move |_, _| {
                tell.store(true, Ordering::SeqCst);
                async {}
            })
            .unwrap();
        drop(runtime);
        fill(&map, [1, 2]);
        clock.advance(SECOND);
        kit::wait::until("the first one is reported", || {
            lost.lock().unwrap().len() == 1
        });
        match policy {
            ReceiverLost::Drop => {
                kit::wait::until("both are counted", || map.stats().unreceived == 2);
                assert_eq!(map.state(), Lifecycle::Running);
            }
            _ => kit::wait::until("the map closes", || map.state() == Lifecycle::Closed),
        }
        assert!(!handled.load(Ordering::SeqCst));
        kit::wait::until("all has left", || map.is_empty());
    }
}

#[test]
fn a_runtime_that_ends_ends_the_runs_of_its_futures() {
    let clock = ManualClock::new();
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let map = Map::builder()
        .time_to_idle(SECOND)
        .clock(Clock::manual(&clock))
        .build_on_tokio(runtime.handle().clone(), 2, move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
            std::future::pending()
        })
        .unwrap();
    fill(&map, 0..5);
    clock.advance(SECOND);
    kit::wait::until("two futures wait", || begun.load(Ordering::SeqCst) == 2);
    // One more waits for a place, on the only worker.
    runtime.shutdown_background();
    kit::wait::until("all has left", || map.is_empty());
    let report = map.shutdown(Shutdown::HandBack).wait().unwrap();
    assert_eq!((report.still_running, report.handed_back.len()), (0, 0));
    let stats = map.stats();
    assert_eq!((stats.expired, stats.unreceived), (5, 3));
}

#[test]
fn the_number_of_futures_may_be_unlimited() {
    on_all(|| async {
        let (tell, mut told) = mpsc::unbounded_channel();
        let map = Map::builder()
            .time_to_idle(Duration::from_millis(1))
            .build_on_tokio(Handle::current(), usize::MAX, move |_, expired| {
                let tell = tell.clone();
                async move {
                    let _ = tell.send(expired.key);
                }
            })
            .unwrap();
        fill(&map, 0..100);
        for _ in 0..100 {
            assert!(told.recv().await.is_some());
        }
    });
}

#[test]
fn no_futures_at_all_are_refused() {
    let runtime = runtime::Builder::new_current_thread().build().unwrap();
    let refused = Map::builder().build_on_tokio(runtime.handle().clone(), 0, |_, _| async {});
    assert!(matches!(refused, Err(BuildError::Concurrency)));
}
