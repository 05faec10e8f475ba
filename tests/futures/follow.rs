//! Drivers that follow the clock of a tokio runtime.

use std::panic::catch_unwind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::quiet::hush;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::time::{Instant, advance, sleep};
use tourbillon::{
    Expiry, ExpiryMap, InsertRefusal, Lifecycle, ReceiverLost, Scheduler, Shutdown, Time, Timer,
};

use super::stepped::retry;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// What happened, and when, by the clock of tokio.
#[derive(Clone)]
struct Log(Instant, Arc<Mutex<Vec<(Duration, &'static str)>>>);

impl Log {
    fn new() -> Self {
        Log(Instant::now(), Arc::default())
    }

    fn note(&self, what: &'static str) {
        self.1.lock().unwrap().push((self.0.elapsed(), what));
    }

    fn of(&self, what: &'static str) -> impl Fn() + Send + Sync + 'static {
        let log = self.clone();
        move || log.note(what)
    }

    #[track_caller]
    fn is(&self, expected: &[(u64, &'static str)]) {
        let expected = expected.iter();
        let expected: Vec<_> = expected
            .map(|(millis, what)| (Duration::from_millis(*millis), *what))
            .collect();
        assert_eq!(*self.1.lock().unwrap(), expected);
    }
}

fn timer(seed: u64) -> Arc<Timer> {
    let stepped = Timer::builder().build_stepped(seed).unwrap();
    let timer = stepped.timer();
    tokio::spawn(stepped.follow_tokio());
    timer
}

fn scheduler(seed: u64) -> tourbillon::Handle<&'static str> {
    let stepped = Scheduler::builder().build_stepped(seed).unwrap();
    let handle = stepped.handle();
    tokio::spawn(stepped.follow_tokio());
    handle
}

#[tokio::test(start_paused = true)]
async fn everything_is_on_one_timeline() {
    for seed in 0..20 {
        let log = Log::new();
        let (timer, timers) = (timer(seed), scheduler(seed));
        let (expired, ran) = (log.of("future or map"), log.of("scheduler"));
        let stepped = ExpiryMap::<u64, ()>::builder()
            .time_to_idle(3 * SECOND)
            .build_stepped(seed, move |_, _| expired())
            .unwrap();
        let map = stepped.map();
        tokio::spawn(stepped.follow_tokio());

        map.insert(1, ()).unwrap();
        timers.schedule("a", 2 * SECOND, move |_| ran()).unwrap();
        let own = log.clone();
        let on_tokio = timers.on_tokio(runtime::Handle::current());
        let future = async move |_| {
            own.note("future or map");
            sleep(SECOND * 3 / 2).await;
            own.note("future's end");
        };
        on_tokio.schedule("b", 4 * SECOND, future).unwrap();
        let _handle = timer.after(6 * SECOND, log.of("task")).unwrap();
        sleep(SECOND).await;
        log.note("tokio");
        assert!(map.touch(&1).is_alive());
        timer.sleep(4 * SECOND).await.unwrap();
        log.note("sleep");
        timer.sleep(2 * SECOND).await.unwrap();
        log.note("last");
        log.is(&[
            (1_000, "tokio"),
            (2_000, "scheduler"),
            (4_000, "future or map"),
            (4_000, "future or map"),
            (5_000, "sleep"),
            (5_500, "future's end"),
            (6_000, "task"),
            (7_000, "last"),
        ]);
    }
}

#[tokio::test(start_paused = true)]
async fn retries_take_exactly_the_sum_of_their_timeouts_and_pauses() {
    let before = Instant::now();
    let timer = timer(1);
    let begun = retry(&timer).await;
    assert_eq!(begun, [0, 4, 9, 16].map(|second| second * SECOND));
    assert_eq!(before.elapsed(), 27 * SECOND);
    assert_eq!(timer.stats().pending, 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_made_due_earlier_by_another_task_or_thread_is_not_slept_through() {
    let log = Log::new();
    let timers = scheduler(1);
    let late = log.of("late");
    timers.schedule("late", HOUR, move |_| late()).unwrap();
    // All tasks wait, with tokio's only timer at the hour.
    sleep(SECOND).await;
    let (handle, early) = (timers.clone(), log.of("early"));
    tokio::spawn(async move { handle.schedule("early", SECOND, move |_| early()) });
    sleep(2 * SECOND).await;
    let (handle, thread) = (timers.clone(), log.of("thread"));
    let arm = move || handle.schedule("thread", SECOND, move |_| thread());
    tokio::task::spawn_blocking(arm).await.unwrap().unwrap();
    sleep(HOUR).await;
    log.is(&[(2_000, "early"), (4_000, "thread"), (3_600_000, "late")]);
}

#[tokio::test(start_paused = true)]
async fn what_is_due_at_once_takes_no_time() {
    let before = Instant::now();
    let timers = scheduler(1);
    // All tickers sleep until something else is due shortly after.
    let soon = Duration::from_millis(1);
    for key in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"] {
        timers.schedule(key, soon, |_| ()).unwrap();
    }
    tokio::task::yield_now().await;
    let (send, done) = oneshot::channel();
    let mut send = Some(send);
    timers
        .schedule("now", Duration::ZERO, move |_| {
            let _ = send.take().unwrap().send(());
        })
        .unwrap();
    done.await.unwrap();
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_jump_of_the_clock_runs_all_that_is_due_in_order() {
    let timer = timer(1);
    let times = Arc::new(Mutex::new(Vec::new()));
    for second in [3, 1, 2, 11] {
        let (now, times) = (Arc::clone(&timer), Arc::clone(&times));
        let note = move || {
            times
                .lock()
                .unwrap()
                .push((second, now.now().since(Time::ZERO)));
        };
        let _ = timer.after(second * SECOND, note).unwrap();
    }
    advance(10 * SECOND).await;
    tokio::task::yield_now().await;
    assert_eq!(
        *times.lock().unwrap(),
        [1, 2, 3].map(|second| (second, 10 * SECOND))
    );
    assert_eq!(timer.stats().pending, 1);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_between_milliseconds_is_late_by_less_than_one() {
    let stepped = Timer::builder()
        .tick(Duration::from_micros(100))
        .build_stepped(1)
        .unwrap();
    let timer = stepped.timer();
    tokio::spawn(stepped.follow_tokio());
    let (send, told) = oneshot::channel();
    let clock = Arc::clone(&timer);
    let _ = timer.after(Duration::from_micros(1_300), move || {
        let _ = send.send(clock.now());
    });
    assert_eq!(told.await.unwrap(), Time::from_nanos(2_000_000));
}

#[tokio::test(start_paused = true)]
async fn every_thread_reads_the_clock_of_the_runtime() {
    let timer = timer(1);
    sleep(SECOND).await;
    assert_eq!(timer.now(), Time::ZERO + SECOND);
    let elsewhere = std::thread::spawn(move || timer.now());
    assert_eq!(elsewhere.join().unwrap(), Time::ZERO + SECOND);
}

#[tokio::test(start_paused = true)]
async fn it_ends_when_the_map_closes_by_itself() {
    let (stepped, gone) = ExpiryMap::<u64, ()>::builder()
        .time_to_idle(SECOND)
        .when_receiver_lost(ReceiverLost::Close)
        .build_stepped_channel(1, 1)
        .unwrap();
    let map = stepped.map();
    let following = tokio::spawn(stepped.follow_tokio());
    map.insert(1, ()).unwrap();
    drop(gone);
    following.await.unwrap();
    assert_eq!(map.state(), Lifecycle::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_can_be_awaited_in_each_mode() {
    let drain = Shutdown::Drain { limit: 3 * SECOND };
    // How many of the entries of 1, 2, 4 and 8 s run, and how long that takes.
    for (mode, runs, takes) in [
        (Shutdown::HandBack, 0, Duration::ZERO),
        (Shutdown::RunNow, 4, Duration::ZERO),
        (drain, 2, 3 * SECOND),
        (Shutdown::Drain { limit: HOUR }, 4, 8 * SECOND),
    ] {
        let handled = Arc::new(Mutex::new(0));
        let count = Arc::clone(&handled);
        let stepped = ExpiryMap::<u64, ()>::builder()
            .build_stepped(1, move |_, _| *count.lock().unwrap() += 1)
            .unwrap();
        let map = stepped.map();
        let following = tokio::spawn(stepped.follow_tokio());
        for seconds in [1, 2, 4, 8] {
            let expiry = Expiry::NEVER.time_to_live(SECOND * seconds);
            map.entry(seconds.into()).expiry(expiry).insert(()).unwrap();
        }
        let before = Instant::now();
        let report = map.shutdown(mode).await;
        assert_eq!(before.elapsed(), takes, "{mode:?}");
        assert_eq!(*handled.lock().unwrap(), runs, "{mode:?}");
        assert_eq!(report.handed_back.len(), 4 - runs);
        assert!(report.still_running == 0 && !report.already_closed);
        assert!(map.shutdown(mode).await.already_closed);
        assert_eq!(map.state(), Lifecycle::Closed);
        following.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_scheduler_can_be_shut_down_as_a_map_can() {
    let drain = Shutdown::Drain { limit: 3 * SECOND };
    for (mode, runs, takes) in [
        (Shutdown::HandBack, 0, Duration::ZERO),
        (Shutdown::RunNow, 4, Duration::ZERO),
        (drain, 2, 3 * SECOND),
        (Shutdown::Drain { limit: HOUR }, 4, 8 * SECOND),
    ] {
        let stepped = Scheduler::<u64>::builder().build_stepped(1).unwrap();
        let (scheduler, timers) = (stepped.scheduler(), stepped.handle());
        let following = tokio::spawn(stepped.follow_tokio());
        for seconds in [1, 2, 4, 8] {
            timers
                .schedule(seconds, SECOND * seconds as u32, |_| ())
                .unwrap();
        }
        let before = Instant::now();
        let report = scheduler.shutdown(mode).await;
        assert_eq!(before.elapsed(), takes, "{mode:?}");
        assert_eq!(timers.stats().ran, runs, "{mode:?}");
        assert_eq!(report.handed_back.len() as u64, 4 - runs);
        assert!(report.still_running == 0 && !report.already_closed);
        assert!(scheduler.shutdown(mode).await.already_closed);
        assert_eq!(timers.state(), Lifecycle::Closed);
        following.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn who_owns_a_scheduler_that_follows_need_not_keep_it() {
    let stepped = Scheduler::<u64>::builder().build_stepped(1).unwrap();
    let timers = stepped.handle();
    drop(stepped.scheduler());
    let following = tokio::spawn(stepped.follow_tokio());
    timers.schedule(1, SECOND, |_| ()).unwrap();
    sleep(2 * SECOND).await;
    assert_eq!(timers.stats().ran, 1);
    following.abort();
    assert!(following.await.unwrap_err().is_cancelled());
    assert_eq!(timers.state(), Lifecycle::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_futures_up_to_its_limit() {
    for (takes, limit, waits, still_running) in [(5, 30, 5, 0), (60, 30, 30, 1)] {
        let stepped = ExpiryMap::<u64, ()>::builder()
            .time_to_idle(SECOND)
            .shutdown_limit(SECOND * limit)
            .build_stepped_on_tokio(1, runtime::Handle::current(), 1, move |_, _| {
                sleep(SECOND * takes)
            })
            .unwrap();
        let map = stepped.map();
        tokio::spawn(stepped.follow_tokio());
        map.insert(1, ()).unwrap();
        sleep(SECOND).await;
        tokio::task::yield_now().await;
        let before = Instant::now();
        let report = map.shutdown(Shutdown::HandBack).await;
        assert_eq!(before.elapsed(), SECOND * waits);
        assert_eq!(report.still_running, still_running);
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_whose_driver_is_dropped_hands_back_what_is_left() {
    let stepped = Timer::builder().build_stepped(1).unwrap();
    let timer = stepped.timer();
    let following = tokio::spawn(stepped.follow_tokio());
    let _handle = timer.after(HOUR, || ()).unwrap();
    tokio::task::yield_now().await;
    let closing = timer.shutdown(Shutdown::Drain { limit: 2 * HOUR });
    following.abort();
    assert!(following.await.unwrap_err().is_cancelled());
    assert_eq!(closing.await.handed_back.len(), 1);
    assert_eq!(timer.state(), Lifecycle::Closed);
    // The other order: the driver's drop has closed the timer.
    let stepped = Timer::builder().build_stepped(1).unwrap();
    let timer = stepped.timer();
    drop(stepped.follow_tokio());
    assert!(timer.shutdown(Shutdown::HandBack).await.already_closed);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_driver_closes_what_it_drove() {
    let stepped = ExpiryMap::<u64, ()>::builder()
        .time_to_idle(SECOND)
        .build_stepped(1, |_, _| ())
        .unwrap();
    let map = stepped.map();
    let following = tokio::spawn(stepped.follow_tokio());
    map.insert(1, ()).unwrap();
    sleep(SECOND / 2).await;
    following.abort();
    assert!(following.await.unwrap_err().is_cancelled());
    assert_eq!(
        map.insert(2, ()).unwrap_err().refusal,
        InsertRefusal::Closed
    );
    assert_eq!(map.state(), Lifecycle::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_full_channel_is_filled_again_when_there_is_room() {
    let (stepped, gone) = ExpiryMap::<u64, ()>::builder()
        .time_to_idle(SECOND)
        .build_stepped_channel(1, 1)
        .unwrap();
    let map = stepped.map();
    tokio::spawn(stepped.follow_tokio());
    for key in 0..50 {
        map.insert(key, ()).unwrap();
    }
    sleep(HOUR).await;
    assert_eq!(gone.len(), 1);
    let mut keys = Vec::new();
    while keys.len() < 50 {
        while let Ok(expired) = gone.try_recv() {
            keys.push(expired.key);
        }
        sleep(SECOND).await;
    }
    keys.sort_unstable();
    assert!(keys.into_iter().eq(0..50));
    assert!(map.is_empty());
}

#[test]
fn a_clock_that_runs_is_followed_on_several_threads() {
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let timer = timer(1);
        let sleeps = (1..50_u32).map(|millis| {
            let timer = Arc::clone(&timer);
            tokio::spawn(async move {
                let slept = timer.sleep(Duration::from_millis(millis.into())).await;
                slept.map(|()| timer.now())
            })
        });
        let sleeps: Vec<_> = sleeps.collect();
        for (millis, asleep) in (1_u64..).zip(sleeps) {
            let end = asleep.await.unwrap().unwrap();
            assert!(end >= Time::from_nanos(millis * 1_000_000));
        }
    });
}

#[test]
fn a_runtime_without_timers_and_no_runtime_say_so() {
    let driver = || Timer::builder().build_stepped(1).unwrap();
    let runtime = runtime::Builder::new_current_thread().build().unwrap();
    let stepped = driver();
    let _handle = stepped.timer().after(SECOND, || ()).unwrap();
    hush();
    let said = runtime.block_on(async { tokio::spawn(stepped.follow_tokio()).await });
    assert!(said.unwrap_err().is_panic());
    assert!(catch_unwind(|| drop(driver().follow_tokio())).is_err());
}
