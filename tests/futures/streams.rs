//! An `ExpiryMap` whose expired entries are a stream.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use kit::gate::Gate;
use kit::quiet;
use kit::runtimes::{eventually, on_all};
use kit::wait::until;
use kit::wakes::{Wakes, poll};
use tokio_stream::{Stream, StreamExt};
use tourbillon::{
    Clock, Expirations, ExpiryMap, InsertRefusal, Lifecycle, ManualClock, Reason, ReceiverLost,
    Shutdown, Touch,
};

const IDLE: Duration = Duration::from_secs(60);

type Map = ExpiryMap<u32, String>;
type Gone = Expirations<u32, String>;

fn with_capacity(capacity: usize) -> (ManualClock, Map, Gone) {
    let clock = ManualClock::new();
    let (map, gone) = Map::builder()
        .time_to_idle(IDLE)
        .clock(Clock::manual(&clock))
        .build_stream(capacity)
        .unwrap();
    (clock, map, gone)
}

fn fill(map: &Map, keys: impl IntoIterator<Item = u32>) {
    for key in keys {
        map.insert(key, key.to_string()).unwrap();
    }
}

#[test]
fn expired_entries_come_each_once_on_every_runtime() {
    for capacity in [0, 1, 7, 5_000] {
        on_all(move || async move {
            let (clock, map, mut gone) = with_capacity(capacity);
            fill(&map, 0..1_000);
            clock.advance(IDLE);
            let mut keys = Vec::new();
            while keys.len() < 1_000 {
                let expired = gone.next().await.expect("the map lives");
                assert_eq!(expired.value, expired.key.to_string());
                assert_eq!(
                    (expired.reason, expired.lateness),
                    (Reason::Idle, Duration::ZERO)
                );
                keys.push(expired.key);
            }
            keys.sort_unstable();
            assert!(keys.into_iter().eq(0..1_000));
            assert!(map.is_empty());
            assert_eq!(gone.size_hint(), (0, None));
        });
    }
}

#[test]
fn a_task_that_waits_is_woken_by_what_expires_and_by_the_end() {
    on_all(|| async {
        let (clock, map, mut gone) = with_capacity(1);
        fill(&map, [7]);
        let wakes = Wakes::new();
        assert!(poll(&mut Box::pin(gone.next()), &wakes).is_pending());
        let reader = tokio::spawn(async move {
            let first = gone.next().await.map(|expired| expired.key);
            (first, gone.next().await.is_none())
        });
        clock.advance(IDLE);
        eventually("it is delivered", || map.stats().expired == 1).await;
        let report = map.shutdown(Shutdown::HandBack).await;
        assert!(report.handed_back.is_empty());
        assert_eq!(reader.await.unwrap(), (Some(7), true));
    });
}

/// While nobody reads, what waits is counted and can be touched.
#[test]
fn what_waits_behind_a_full_stream_can_be_touched() {
    let (clock, map, mut gone) = with_capacity(1);
    fill(&map, 0..10);
    clock.advance(IDLE);
    // One lies in the channel, one is about to be sent, eight wait.
    until("the channel is full", || map.len() == 8);
    let alive: Vec<u32> = (0..10).filter(|key| map.touch(key).is_alive()).collect();
    assert_eq!(alive.len(), 8);
    let wakes = Wakes::new();
    let mut seen = Vec::new();
    until("both have come", || {
        if let Poll::Ready(expired) = poll(&mut Box::pin(gone.next()), &wakes) {
            seen.push(expired.expect("the map lives").key);
        }
        seen.len() == 2
    });
    assert!(seen.iter().all(|key| !alive.contains(key)));
    assert!(alive.iter().all(|key| map.contains(key)));
    assert_eq!(map.touch(&seen[0]), Touch::NotFound);
    assert!(poll(&mut Box::pin(gone.next()), &wakes).is_pending());
}

#[test]
fn the_waker_of_the_last_poll_is_woken_and_a_poll_that_was_dropped_loses_nothing() {
    let (clock, map, mut gone) = with_capacity(4);
    fill(&map, [1]);
    let (first, second) = (Wakes::new(), Wakes::new());
    // Each future is dropped right after its poll.
    assert!(poll(&mut Box::pin(gone.next()), &first).is_pending());
    assert!(poll(&mut Box::pin(gone.next()), &second).is_pending());
    assert_eq!(Arc::strong_count(&first), 1);
    clock.advance(IDLE);
    until("it is woken", || second.count() == 1);
    assert_eq!(first.count(), 0);
    let Poll::Ready(Some(expired)) = poll(&mut Box::pin(gone.next()), &second) else {
        panic!("it was woken");
    };
    assert_eq!(expired.key, 1);
}

#[test]
fn the_last_clone_of_the_map_that_is_dropped_ends_the_stream() {
    on_all(|| async {
        let (clock, map, mut gone) = with_capacity(4);
        fill(&map, [1, 2]);
        clock.advance(IDLE);
        eventually("both are sent", || {
            map.is_empty() && gone.size_hint().0 == 2
        })
        .await;
        fill(&map, [3]);
        drop(map);
        let mut keys = Vec::new();
        while let Some(expired) = gone.next().await {
            keys.push(expired.key);
        }
        keys.sort_unstable();
        assert_eq!(keys, [1, 2], "the third was dropped with the map");
        assert!(gone.next().await.is_none());
    });
}

#[test]
fn a_drain_delivers_at_the_deadlines_and_then_the_stream_ends() {
    on_all(|| async {
        let (clock, map, mut gone) = with_capacity(1);
        fill(&map, 0..3);
        let closing = map.shutdown(Shutdown::Drain { limit: IDLE * 2 });
        let refused = map.insert(9, String::new()).unwrap_err();
        assert_eq!(refused.refusal, InsertRefusal::Closed);
        clock.advance(IDLE);
        let mut count = 0;
        while gone.next().await.is_some() {
            count += 1;
        }
        assert_eq!(count, 3);
        assert!(closing.await.handed_back.is_empty());
    });
}

#[test]
fn a_map_outlives_the_task_that_reads_its_stream() {
    on_all(|| async {
        let clock = ManualClock::new();
        let (report, mut reports) = tokio::sync::mpsc::unbounded_channel();
        let (map, mut gone) = Map::builder()
            .time_to_idle(IDLE)
            .clock(Clock::manual(&clock))
            .on_receiver_lost(move |first| {
                let _ = report.send(first.key);
            })
            .build_stream(1)
            .unwrap();
        fill(&map, [1]);
        let reader = tokio::spawn(async move { gone.next().await.map(|gone| gone.key) });
        clock.advance(IDLE);
        assert_eq!(reader.await.unwrap(), Some(1));
        // The task has ended, and its stream with it.
        fill(&map, 2..7);
        clock.advance(IDLE);
        let first = reports.recv().await.expect("the map lives");
        assert!((2..7).contains(&first));
        eventually("all are dropped", || {
            let stats = map.stats();
            stats.unreceived == 5 && stats.running == 0
        })
        .await;
        assert!(reports.try_recv().is_err(), "one report");
        assert_eq!(map.state(), Lifecycle::Running);
        fill(&map, [8]);
        assert!(map.stats().balances() && map.contains(&8));
    });
}

#[test]
fn a_map_can_be_told_to_close_when_its_stream_is_dropped() {
    let clock = ManualClock::new();
    let (map, gone) = Map::builder()
        .time_to_idle(IDLE)
        .clock(Clock::manual(&clock))
        .when_receiver_lost(ReceiverLost::Close)
        .build_stream(1)
        .unwrap();
    fill(&map, 0..5);
    drop(gone);
    assert_eq!(map.state(), Lifecycle::Running);
    clock.advance(IDLE);
    until("it closes", || map.state() == Lifecycle::Closed);
    let refused = map.insert(1, String::new()).unwrap_err();
    assert_eq!(refused.refusal, InsertRefusal::Closed);
}

#[test]
fn a_stream_can_be_sent_and_says_how_many_wait() {
    fn check<T: Send + Sync + Unpin>(_: &T) {}
    let (_clock, _map, gone) = with_capacity(1);
    check(&gone);
    assert!(format!("{gone:?}").contains("waiting: 0"));
}

/// A stream that is dropped forgets who waited for it.
#[test]
fn a_stream_that_is_dropped_keeps_no_waker() {
    let (_clock, map, mut gone) = with_capacity(1);
    let wakes = Wakes::new();
    assert!(poll(&mut Box::pin(gone.next()), &wakes).is_pending());
    drop(gone);
    assert_eq!(Arc::strong_count(&wakes), 1);
    drop(map);
    assert_eq!(wakes.count(), 0);
}

/// A key whose clone waits at a gate, once it is closed: the second clone is made by the worker
/// between its claim and the delivery.
struct Slow {
    clones: Arc<AtomicUsize>,
    gate: Gate,
}

impl Clone for Slow {
    fn clone(&self) -> Self {
        if self.clones.fetch_add(1, Ordering::SeqCst) == 1 {
            self.gate.pass();
        }
        Slow {
            clones: Arc::clone(&self.clones),
            gate: self.gate.clone(),
        }
    }
}

impl PartialEq for Slow {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Slow {}

impl std::hash::Hash for Slow {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

/// What a worker has taken for delivery is delivered, whatever ends meanwhile.
#[test]
fn what_is_being_delivered_when_the_map_ends_is_not_lost() {
    for end in 0..3 {
        let clock = ManualClock::new();
        let (map, gone) = ExpiryMap::<Slow, u32>::builder()
            .time_to_idle(IDLE)
            .clock(Clock::manual(&clock))
            .build_channel(1)
            .unwrap();
        let gate = Gate::default();
        let key = Slow {
            clones: Arc::default(),
            gate: gate.clone(),
        };
        map.insert(key, 7).unwrap();
        clock.advance(IDLE);
        gate.crowd(1);
        match end {
            0 => drop(map),
            1 => drop(map.shutdown(Shutdown::HandBack)),
            _ => {
                // It outlasts the limit.
                let closing = map.shutdown(Shutdown::HandBack);
                until("the limit passes", || {
                    clock.advance(IDLE);
                    map.state() == Lifecycle::Closed
                });
                assert_eq!(closing.wait().unwrap().still_running, 1);
            }
        }
        gate.open();
        assert_eq!(
            gone.iter().map(|expired| expired.value).sum::<u32>(),
            7,
            "end {end}"
        );
    }
}

/// A waker of the reader's that panics takes nothing of anybody else.
#[test]
fn a_waker_that_panics_does_not_reach_the_map() {
    struct Bad;
    impl Wake for Bad {
        fn wake(self: Arc<Self>) {
            panic!("{}: a waker", quiet::WANTED);
        }
    }
    quiet::hush();
    let bad = Waker::from(Arc::new(Bad));
    let wait = |gone: &mut Gone| {
        let mut next = Box::pin(gone.next());
        let polled = next.as_mut().poll(&mut Context::from_waker(&bad));
        assert!(polled.is_pending());
    };
    let (clock, map, mut gone) = with_capacity(2);
    fill(&map, [1]);
    wait(&mut gone);
    clock.advance(IDLE);
    until("it is delivered", || {
        gone.size_hint().0 == 1 && map.stats().running == 0
    });
    assert_eq!(map.stats().panicked, 0);
    assert!(poll(&mut Box::pin(gone.next()), &Wakes::new()).is_ready());
    fill(&map, 2..5);
    wait(&mut gone);
    let report = map.shutdown(Shutdown::HandBack).wait().unwrap();
    assert_eq!(
        (report.handed_back.len(), report.already_closed),
        (3, false)
    );

    let (_clock, map, mut gone) = with_capacity(2);
    wait(&mut gone);
    drop(map);
    assert!(matches!(
        poll(&mut Box::pin(gone.next()), &Wakes::new()),
        Poll::Ready(None) | Poll::Pending
    ));
}
