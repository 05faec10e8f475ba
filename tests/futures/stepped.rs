//! Futures that the test kit runs, in exact virtual time.

use std::cell::RefCell;
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::quiet::hush;
use tokio_stream::StreamExt;
use tourbillon::{
    Expiry, ExpiryMap, Lifecycle, ReceiverLost, Shutdown, SleepError, Time, TimeoutError, Timer,
};

const SECOND: Duration = Duration::from_secs(1);

/// Four attempts without an answer, each with a timeout of 3 s and followed by a pause. Returns
/// when each attempt began.
pub(super) async fn retry(timer: &Timer) -> Vec<Duration> {
    let mut begun = Vec::new();
    for pause in [1, 2, 4, 8] {
        begun.push(timer.now().since(Time::ZERO));
        let answer = timer.timeout(3 * SECOND, pending::<()>()).await;
        assert_eq!(answer, Err(TimeoutError::Elapsed));
        timer.sleep(pause * SECOND).await.unwrap();
    }
    begun
}

#[test]
fn retries_take_exactly_the_sum_of_their_timeouts_and_pauses() {
    for seed in 0..50 {
        let stepped = Timer::builder().build_stepped(seed).unwrap();
        let begun = stepped.run_until(retry(&stepped.timer()));
        assert_eq!(begun, [0, 4, 9, 16].map(|second| second * SECOND));
        assert_eq!(stepped.now(), Time::ZERO + 27 * SECOND, "seed {seed}");
        assert_eq!(stepped.timer().stats().pending, 0);
    }
}

#[test]
fn tasks_and_sleeps_interleave_by_their_deadlines_on_one_thread() {
    let stepped = Timer::builder().build_stepped(7).unwrap();
    let timer = stepped.timer();
    let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
    let thread = std::thread::current().id();
    for second in [4, 2] {
        let (send, timer) = (send.clone(), Arc::clone(&timer));
        let _ = stepped.timer().after(second * SECOND, move || {
            assert_eq!(std::thread::current().id(), thread);
            send.send(timer.now()).unwrap();
        });
    }
    drop(send);
    let times = RefCell::new(Vec::new());
    stepped.run_until(async {
        while let Some(time) = receive.recv().await {
            assert_eq!(timer.now(), time);
            times.borrow_mut().push(time.since(Time::ZERO));
            timer.sleep(SECOND).await.unwrap();
            times.borrow_mut().push(timer.now().since(Time::ZERO));
        }
    });
    assert_eq!(
        times.into_inner(),
        [2, 3, 4, 5].map(|second| second * SECOND)
    );
}

#[test]
fn a_ready_future_takes_no_time_though_timers_are_pending() {
    let stepped = Timer::builder().build_stepped(1).unwrap();
    let timeout = stepped.timer().after(SECOND, || ()).unwrap();
    assert_eq!(stepped.run_until(async { 7 }), 7);
    stepped.run_until(tokio::task::yield_now());
    assert_eq!(stepped.now(), Time::ZERO);
    assert!(!timeout.is_expired());
    stepped.advance(SECOND);
    assert!(timeout.is_expired());
}

#[test]
fn a_future_that_would_wait_forever_panics_after_the_last_deadline() {
    hush();
    let stepped = Timer::builder().build_stepped(1).unwrap();
    let _ = stepped.timer().after(SECOND, || ());
    let run = AssertUnwindSafe(|| stepped.run_until(pending::<()>()));
    let message = *catch_unwind(run).unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("it would wait forever"), "{message}");
    assert_eq!(stepped.now(), Time::ZERO + SECOND);
    // The driver can go on.
    stepped.run_until(stepped.timer().sleep(SECOND)).unwrap();
}

#[test]
fn a_future_can_not_be_run_from_inside_a_task() {
    hush();
    let stepped = std::rc::Rc::new(Timer::builder().build_stepped(1).unwrap());
    thread_local! {
        static DRIVER: RefCell<Option<std::rc::Rc<tourbillon::test_util::SteppedTimer>>> =
            const { RefCell::new(None) };
    }
    DRIVER.set(Some(std::rc::Rc::clone(&stepped)));
    let _ = stepped.timer().after(SECOND, || {
        DRIVER.with_borrow(|driver| driver.as_ref().unwrap().run_until(async {}));
    });
    stepped.advance(SECOND);
    DRIVER.set(None);
    assert_eq!(stepped.timer().stats().panicked, 1);
}

#[test]
fn the_end_of_a_stepped_timer_wakes_its_sleeps_with_an_error() {
    let stepped = Timer::builder().build_stepped(1).unwrap();
    let sleep = stepped.timer().sleep(SECOND);
    let _ = stepped.timer().after(SECOND, || ());
    let report = stepped.shutdown(Shutdown::HandBack);
    assert_eq!(report.handed_back.len(), 1);
    assert_eq!(stepped.run_until(sleep), Err(SleepError::Closed));
    let timer = stepped.timer();
    drop(stepped);
    assert_eq!(timer.state(), Lifecycle::Closed);
}

#[test]
fn a_stepped_timer_is_shut_down_by_its_driver_only() {
    hush();
    let stepped = Timer::builder().build_stepped(1).unwrap();
    let timer = stepped.timer();
    let shut_down = AssertUnwindSafe(|| drop(timer.shutdown(Shutdown::HandBack)));
    assert!(catch_unwind(shut_down).is_err());
    assert_eq!(timer.state(), Lifecycle::Running);
}

#[test]
fn a_stepped_channel_holds_back_what_it_has_no_room_for() {
    for (seed, capacity) in [(1, 0), (2, 1), (3, 7), (4, 1_000)] {
        let (stepped, gone) = ExpiryMap::<u64, ()>::builder()
            .time_to_idle(SECOND)
            .shards(2)
            .build_stepped_channel(seed, capacity)
            .unwrap();
        let map = stepped.map();
        for key in 0..100 {
            map.insert(key, ()).unwrap();
        }
        stepped.advance(SECOND * 9 / 10);
        assert!(gone.is_empty());
        // Time passes also while the channel is full.
        stepped.advance(60 * SECOND);
        assert_eq!(stepped.now(), Time::ZERO + SECOND * 609 / 10);
        assert_eq!(gone.len(), capacity.clamp(1, 100));
        let mut keys = Vec::new();
        while let Ok(expired) = gone.try_recv() {
            assert_eq!(expired.deadline, Time::ZERO + SECOND);
            keys.push(expired.key);
            stepped.settle();
        }
        keys.sort_unstable();
        assert!(keys.into_iter().eq(0..100), "capacity {capacity}");
        assert_eq!((map.len(), map.stats().expired), (0, 100));
    }
}

#[test]
fn a_stepped_channel_without_a_receiver_loses_nothing_silently() {
    let lost = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&lost);
    let (stepped, gone) = ExpiryMap::<u64, ()>::builder()
        .time_to_idle(SECOND)
        .when_receiver_lost(ReceiverLost::Close)
        .on_receiver_lost(move |first| note.lock().unwrap().push(first.key))
        .build_stepped_channel(1, 1)
        .unwrap();
    let map = stepped.map();
    for key in 0..3 {
        map.insert(key, ()).unwrap();
    }
    stepped.advance(SECOND);
    assert_eq!(gone.len(), 1);
    drop(gone);
    stepped.settle();
    assert_eq!(lost.lock().unwrap().len(), 1);
    assert_eq!(map.state(), Lifecycle::Closed);
}

#[test]
fn a_stepped_stream_is_read_in_virtual_time() {
    let (stepped, mut gone) = ExpiryMap::<u32, &str>::builder()
        .time_to_idle(60 * SECOND)
        .build_stepped_stream(1, 0)
        .unwrap();
    let map = stepped.map();
    for key in 0..40 {
        map.entry(key)
            .expiry(Expiry::NEVER.time_to_idle(SECOND * (1 + key / 10)))
            .insert("Ada")
            .unwrap();
    }
    let keys = stepped.run_until(async {
        let mut keys = Vec::new();
        for _ in 0..40 {
            let expired = gone.next().await.expect("the map lives");
            assert_eq!(
                expired.deadline.since(Time::ZERO),
                SECOND * (1 + expired.key / 10)
            );
            keys.push(expired.key / 10);
        }
        keys
    });
    assert!(keys.is_sorted());
    assert_eq!(stepped.now(), Time::ZERO + 4 * SECOND);
    let report = stepped.shutdown(Shutdown::HandBack);
    assert!(report.handed_back.is_empty());
    assert!(stepped.run_until(gone.next()).is_none());
}

#[test]
#[should_panic(expected = "a test drives this map; call `shutdown` of its driver")]
fn a_map_that_a_test_drives_is_not_shut_down_by_itself() {
    let stepped = tourbillon::ExpiryMap::<u32, u32>::builder()
        .build_stepped(1, |_, _| ())
        .unwrap();
    drop(stepped.map().shutdown(tourbillon::Shutdown::HandBack));
}

#[test]
#[should_panic(expected = "a test drives this timer; call `shutdown` of its driver")]
fn a_timer_that_a_test_drives_is_not_shut_down_by_itself() {
    let stepped = tourbillon::Timer::builder().build_stepped(1).unwrap();
    drop(stepped.timer().shutdown(tourbillon::Shutdown::HandBack));
}
