//! `Handle::on_tokio`: tasks that are futures; and what of a handle can be awaited.

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::Poll;
use std::time::Duration;

use kit::quiet;
use kit::runtimes::{eventually, on_all, on_all_in_turn};
use kit::wait;
use kit::wait::until;
use kit::wakes::{Wakes, poll};
use tokio::runtime;
use tokio::sync::{Notify, oneshot};
use tourbillon::{
    AsyncFiring, Cancel, Clock, ExpiryMap, ManualClock, OnTokio, ScheduleError, Scheduler,
    Shutdown, Time, Timer, TimerState, WaitError,
};

const SECOND: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(5);

fn scheduler() -> (ManualClock, Scheduler<u32>) {
    let hand = ManualClock::new();
    let scheduler = Scheduler::builder()
        .workers(1)
        .clock(Clock::manual(&hand))
        .build()
        .unwrap();
    (hand, scheduler)
}

fn here(scheduler: &Scheduler<u32>) -> OnTokio<u32> {
    scheduler.handle().on_tokio(runtime::Handle::current())
}

#[test]
fn a_future_runs_on_the_runtime_when_it_is_due() {
    on_all(|| async {
        let (hand, scheduler) = scheduler();
        let timers = here(&scheduler);
        let (send, told) = oneshot::channel();
        let armed = timers
            .schedule(7, SECOND, async move |firing| {
                tokio::task::yield_now().await;
                let on_runtime = runtime::Handle::try_current().is_ok();
                let told = (*firing.key(), firing.id(), firing.deadline());
                let _ = send.send((told, firing.lateness(), firing.is_cancelled(), on_runtime));
            })
            .unwrap();
        assert_eq!(armed.deadline, Time::ZERO + SECOND);
        hand.advance(SECOND * 2);
        let (told, lateness, cancelled, on_runtime) = told.await.unwrap();
        assert_eq!(told, (7, armed.id, Time::ZERO + SECOND));
        assert_eq!((lateness, cancelled, on_runtime), (SECOND, false, true));
        eventually("its run ends", || !timers.handle().contains(&7)).await;
        assert_eq!(timers.handle().stats().ran, 1);
    });
}

/// One worker starts any number of futures, none of which ends before all run.
#[test]
fn a_single_worker_serves_many_futures_at_once() {
    const MANY: u32 = 500;
    on_all(|| async {
        let scheduler = Scheduler::<u32>::builder()
            .workers(1)
            .max_running(1)
            .build()
            .unwrap();
        let timers = here(&scheduler);
        let barrier = Arc::new(tokio::sync::Barrier::new(MANY as usize + 1));
        for key in 0..MANY {
            let barrier = Arc::clone(&barrier);
            timers
                .schedule(key, Duration::ZERO, async move |_| {
                    barrier.wait().await;
                })
                .unwrap();
        }
        barrier.wait().await;
        let report = scheduler.shutdown(Shutdown::HandBack).await;
        assert_eq!((report.handed_back.len(), report.still_running), (0, 0));
        assert_eq!(timers.handle().stats().ran, u64::from(MANY));
    });
}

#[test]
fn two_runs_of_a_key_never_overlap() {
    on_all(|| async {
        let scheduler = Scheduler::<u32>::builder().build().unwrap();
        let timers = here(&scheduler);
        let inside = Arc::new(AtomicUsize::new(0));
        let (send, mut done) = tokio::sync::mpsc::channel(64);
        for round in 0..20 {
            let (inside, send) = (Arc::clone(&inside), send.clone());
            let armed = timers.schedule(7, Duration::ZERO, async move |_| {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                let _ = send.send(round).await;
            });
            armed.unwrap();
            tokio::task::yield_now().await;
        }
        // The last one is never replaced.
        while done.recv().await != Some(19) {}
        eventually("it ends", || timers.handle().is_empty()).await;
        assert_eq!(timers.handle().stats().panicked, 0);
    });
}

#[test]
fn a_run_that_is_cancelled_is_told_and_its_end_can_be_awaited() {
    on_all(|| async {
        let (_hand, scheduler) = scheduler();
        let timers = here(&scheduler);
        let (send, began) = oneshot::channel();
        timers
            .schedule(7, Duration::ZERO, async move |firing| {
                send.send(()).unwrap();
                while !firing.is_cancelled() {
                    tokio::task::yield_now().await;
                }
            })
            .unwrap();
        began.await.unwrap();
        let state = timers.handle().get(&7).map(|info| info.state);
        assert!(matches!(state, Some(TimerState::Running { .. })));
        let waited = timers.handle().cancel_and_wait(&7).await;
        assert_eq!(waited, Ok(Cancel::Running));
        assert!(!matches!(
            timers.handle().get(&7).map(|info| info.state),
            Some(TimerState::Running { .. })
        ));
    });
}

#[test]
fn while_the_end_is_awaited_the_key_is_closed_and_giving_up_opens_it() {
    on_all(|| async {
        let (_hand, scheduler) = scheduler();
        let timers = here(&scheduler);
        let bell = Arc::new(Notify::new());
        let (send, began) = oneshot::channel();
        let ringer = Arc::clone(&bell);
        timers
            .schedule(7, Duration::ZERO, async move |_| {
                send.send(()).unwrap();
                bell.notified().await;
            })
            .unwrap();
        began.await.unwrap();
        let handle = timers.handle();
        let mut waiting = Box::pin(handle.cancel_and_wait(&7));
        let refused = timers.schedule(7, SECOND, async |_| ()).unwrap_err();
        assert!(matches!(refused, ScheduleError::Closing(_)));
        let wakes = Wakes::new();
        assert!(poll(&mut waiting, &wakes).is_pending());
        assert!(poll(&mut waiting, &wakes).is_pending());
        drop(waiting);
        assert_eq!(Arc::strong_count(&wakes), 1);
        timers.schedule(7, SECOND, async |_| ()).unwrap();
        // A second one takes back what was armed, and waits for the run.
        let waiting = handle.cancel_and_wait(&7);
        ringer.notify_one();
        let answer = waiting.await.unwrap();
        assert!(matches!(answer, Cancel::Cancelled { running: true, .. }));
        assert!(!handle.contains(&7));
        assert_eq!(wakes.count(), 0);
    });
}

#[test]
fn awaiting_needs_no_run_and_a_run_does_not_wait_for_itself() {
    on_all(|| async {
        let (_hand, scheduler) = scheduler();
        let timers = here(&scheduler);
        let handle = timers.handle();
        assert_eq!(handle.cancel_and_wait(&1).await, Ok(Cancel::NotFound));
        timers.schedule(1, SECOND, async |_| ()).unwrap();
        let answer = handle.cancel_and_wait(&1).await.unwrap();
        assert!(matches!(answer, Cancel::Cancelled { running: false, .. }));
        let (send, told) = oneshot::channel();
        timers
            .schedule(7, Duration::ZERO, async move |firing| {
                // After an await it may be on another thread, and is still inside.
                tokio::task::yield_now().await;
                let answer = firing.handle().cancel_and_wait(firing.key()).await;
                let _ = send.send((answer, firing.is_cancelled()));
            })
            .unwrap();
        let told = told.await.unwrap();
        assert_eq!(told, (Err(WaitError::WouldDeadlock), true));
        assert!(WaitError::WouldDeadlock.to_string().contains("limit"));
    });
}

#[test]
fn a_run_can_select_on_its_cancellation() {
    on_all(|| async {
        let (_hand, scheduler) = scheduler();
        let timers = here(&scheduler);
        let (send, mut told) = tokio::sync::mpsc::unbounded_channel();
        let long = async move |firing: AsyncFiring<u32>| {
            let wakes = Wakes::new();
            let mut dropped = firing.cancelled();
            assert!(poll(&mut dropped, &wakes).is_pending());
            drop(dropped);
            assert_eq!(Arc::strong_count(&wakes), 1);
            let mut polled_elsewhere = firing.cancelled();
            assert!(poll(&mut polled_elsewhere, &wakes).is_pending());
            send.send("began").unwrap();
            tokio::select! {
                () = pending() => {}
                () = firing.cancelled() => {}
            }
            assert!(firing.is_cancelled());
            polled_elsewhere.await;
            assert_eq!(wakes.count(), 1);
            // From now on it is ready at once.
            firing.cancelled().await;
            send.send("told").unwrap();
        };
        timers.schedule(7, Duration::ZERO, long).unwrap();
        assert_eq!(told.recv().await, Some("began"));
        let waited = timers.handle().cancel_and_wait(&7).await;
        assert_eq!(waited, Ok(Cancel::Running));
        assert_eq!(told.recv().await, Some("told"));
        assert_eq!(timers.handle().stats().panicked, 0);
    });
}

/// A clone that outlives the run is told of its end; and cancelling what is kept for after a run by
/// its id tells nobody.
#[test]
fn who_watches_a_run_hears_of_its_end() {
    on_all(|| async {
        let (_hand, scheduler) = scheduler();
        let timers = here(&scheduler);
        let (send, began) = oneshot::channel();
        let (release, released) = oneshot::channel::<()>();
        timers
            .schedule(7, Duration::ZERO, async move |firing| {
                send.send(firing.clone()).unwrap();
                let _ = released.await;
            })
            .unwrap();
        let firing = began.await.unwrap();
        let wakes = Wakes::new();
        let mut over = firing.cancelled();
        assert!(poll(&mut over, &wakes).is_pending());
        let kept = timers.schedule(7, SECOND, async |_| ()).unwrap();
        assert!(timers.handle().by_id(kept.id).cancel().is_cancelled());
        assert!(poll(&mut over, &wakes).is_pending());
        assert_eq!(wakes.count(), 0);
        release.send(()).unwrap();
        eventually("it is told", || wakes.count() == 1).await;
        assert!(poll(&mut over, &wakes).is_ready());
        assert!(poll(&mut firing.cancelled(), &wakes).is_ready());
        assert!(!firing.is_cancelled());
        assert_eq!(format!("{over:?}"), "Cancelled(..)");
    });
}

/// A future blocks nobody, so it may wait for another one's run; and a thread in a task may not.
#[test]
fn a_run_can_await_the_end_of_another() {
    on_all(|| async {
        let (_hand, scheduler) = scheduler();
        let timers = here(&scheduler);
        let (send, began) = oneshot::channel();
        timers
            .schedule(7, Duration::ZERO, async move |firing| {
                send.send(()).unwrap();
                while !firing.is_cancelled() {
                    tokio::task::yield_now().await;
                }
            })
            .unwrap();
        began.await.unwrap();
        let (send, told) = oneshot::channel();
        timers
            .schedule(8, Duration::ZERO, async move |firing| {
                let handle = firing.handle();
                let _ = send.send(handle.cancel_and_wait(&7).await);
            })
            .unwrap();
        assert_eq!(told.await.unwrap(), Ok(Cancel::Running));
        // In a task that is a closure nobody can tell which run it is.
        let (send, told) = oneshot::channel();
        let (hold, held) = oneshot::channel::<()>();
        let (begins, begun) = oneshot::channel();
        timers
            .schedule(7, Duration::ZERO, async move |_| {
                begins.send(()).unwrap();
                let _ = held.await;
            })
            .unwrap();
        begun.await.unwrap();
        let ask = move |firing: &tourbillon::Firing<'_, u32>| {
            let mut asked = firing.handle().cancel_and_wait(&7);
            let _ = send.send(poll(&mut asked, &Wakes::new()));
        };
        timers.handle().schedule(9, Duration::ZERO, ask).unwrap();
        let refused = Poll::Ready(Err(WaitError::WouldDeadlock));
        assert_eq!(told.await.unwrap(), refused);
        hold.send(()).unwrap();
    });
}

/// What is told of a panic, and what a future drops, is inside the run, too.
#[test]
fn no_part_of_a_run_waits_for_that_run() {
    struct Waits(
        Option<tourbillon::Handle<u32>>,
        mpsc::Sender<Result<Cancel, WaitError>>,
    );
    impl Drop for Waits {
        fn drop(&mut self) {
            let handle = self.0.take().unwrap();
            self.1.send(handle.cancel_and_wait(&7).wait()).unwrap();
            panic!("{}: in a drop", quiet::WANTED);
        }
    }
    quiet::hush();
    let told = Arc::new(Mutex::new(Vec::new()));
    let (tell, waiter) = (Arc::clone(&told), Arc::new(Mutex::new(None)));
    let handle_of = Arc::clone(&waiter);
    let scheduler = Scheduler::<u32>::builder()
        .on_panic(move |panic| {
            let handle: Option<tourbillon::Handle<u32>> = handle_of.lock().unwrap().clone();
            let waited = handle.unwrap().cancel_and_wait(panic.key).wait();
            tell.lock()
                .unwrap()
                .push((panic.message.to_owned(), waited));
        })
        .build()
        .unwrap();
    *waiter.lock().unwrap() = Some(scheduler.handle());
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    let timers = scheduler.handle().on_tokio(runtime.handle().clone());
    let (send, waited) = mpsc::channel();
    let (begins, began) = mpsc::channel();
    let waits = Waits(Some(scheduler.handle()), send);
    timers
        .schedule(7, Duration::ZERO, async move |_| {
            let _waits = waits;
            begins.send(()).unwrap();
            pending::<()>().await;
        })
        .unwrap();
    wait::next(&began);
    // It drops what it has not finished.
    drop(runtime);
    assert_eq!(wait::next(&waited), Err(WaitError::WouldDeadlock));
    until("its run ends", || !timers.handle().contains(&7));
    let message = format!("{}: in a drop", quiet::WANTED);
    let told = told.lock().unwrap().clone();
    assert_eq!(told, [(message, Err(WaitError::WouldDeadlock))]);
    assert_eq!(timers.handle().stats().panicked, 1);
    *waiter.lock().unwrap() = None;
}

/// A thread that waits is woken by the end of a future, too.
#[test]
fn a_thread_can_wait_for_a_future() {
    on_all_in_turn(|runtime| {
        let (_hand, scheduler) = scheduler();
        let timers = scheduler.handle().on_tokio(runtime.handle().clone());
        let (send, began) = mpsc::channel();
        let (release, released) = oneshot::channel::<()>();
        timers
            .schedule(7, Duration::ZERO, async move |_| {
                send.send(()).unwrap();
                let _ = released.await;
            })
            .unwrap();
        let handle = timers.handle().clone();
        let waiting = std::thread::spawn(move || {
            wait::next(&began);
            let closer = handle.clone();
            std::thread::spawn(move || {
                until("somebody waits", || {
                    matches!(
                        closer.schedule(7, SECOND, |_| ()),
                        Err(ScheduleError::Closing(_))
                    )
                });
                release.send(()).unwrap();
            });
            handle.cancel_and_wait(&7).wait()
        });
        runtime.block_on(async {
            while !waiting.is_finished() {
                tokio::task::yield_now().await;
            }
        });
        let answer = waiting.join().unwrap().unwrap();
        assert!(matches!(
            answer,
            Cancel::Running | Cancel::Cancelled { running: true, .. }
        ));
    });
}

#[test]
fn a_panic_in_a_future_is_counted_and_told_and_the_key_is_free() {
    quiet::hush();
    on_all(|| async {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        let scheduler = Scheduler::<u32>::builder()
            .on_panic(move |panic| {
                let message = panic.message.to_owned();
                tell.lock().unwrap().push((*panic.key, message));
                panic!("{}: in on_panic", quiet::WANTED);
            })
            .build()
            .unwrap();
        let timers = here(&scheduler);
        let make = async |_| {
            tokio::task::yield_now().await;
            panic!("{}: in a future", quiet::WANTED);
        };
        timers.schedule(1, Duration::ZERO, make).unwrap();
        // Before there is a future.
        timers
            .schedule(2, Duration::ZERO, |_| -> std::future::Ready<()> {
                panic!("{}: in the closure", quiet::WANTED)
            })
            .unwrap();
        eventually("both have ended", || {
            let stats = timers.handle().stats();
            stats.panicked == 2 && !timers.handle().contains(&1) && !timers.handle().contains(&2)
        })
        .await;
        let mut told = told.lock().unwrap().clone();
        told.sort();
        assert_eq!(told[0], (1, format!("{}: in a future", quiet::WANTED)));
        assert_eq!(told[1], (2, format!("{}: in the closure", quiet::WANTED)));
    });
}

/// The run ends with its future, whoever ends that, and not before it is gone.
#[test]
fn a_runtime_that_is_gone_ends_its_runs() {
    struct Dropped(mpsc::Sender<()>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
        }
    }
    let (_hand, scheduler) = scheduler();
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    let timers = scheduler.handle().on_tokio(runtime.handle().clone());
    let (send, began) = mpsc::channel();
    let (gone, drops) = mpsc::channel();
    let held = Dropped(gone);
    timers
        .schedule(7, Duration::ZERO, async move |_| {
            let _held = held;
            send.send(()).unwrap();
            pending::<()>().await;
        })
        .unwrap();
    wait::next(&began);
    assert!(timers.handle().contains(&7));
    drop(runtime);
    until("its run ends", || !timers.handle().contains(&7));
    assert!(drops.try_recv().is_ok(), "its future is gone before");
    // A runtime that is gone takes nothing: the run ends at once.
    timers.schedule(8, Duration::ZERO, async |_| ()).unwrap();
    until("it ran, as far as it could", || {
        timers.handle().stats().ran == 2 && !timers.handle().contains(&8)
    });
    let report = scheduler.shutdown(Shutdown::HandBack).wait().unwrap();
    assert_eq!(report.still_running, 0);
}

#[test]
fn shutdown_waits_for_futures_and_counts_what_outlasts_its_limit() {
    on_all(|| async {
        let (hand, scheduler) = scheduler();
        let timers = here(&scheduler);
        let (send, began) = oneshot::channel();
        let (release, released) = oneshot::channel::<()>();
        timers
            .schedule(7, Duration::ZERO, async move |_| {
                send.send(()).unwrap();
                let _ = released.await;
            })
            .unwrap();
        timers.schedule(8, Duration::MAX, async |_| ()).unwrap();
        began.await.unwrap();
        let mut closing = scheduler.shutdown(Shutdown::HandBack);
        let wakes = Wakes::new();
        assert!(poll(&mut closing, &wakes).is_pending());
        assert!(timers.schedule(9, SECOND, async |_| ()).is_err());
        eventually("its limit passes", || {
            hand.advance(SECOND * 31);
            wakes.count() > 0
        })
        .await;
        let Poll::Ready(report) = poll(&mut closing, &wakes) else {
            panic!("it was woken");
        };
        assert_eq!((report.handed_back.len(), report.still_running), (1, 1));
        assert!(scheduler.shutdown(Shutdown::HandBack).await.already_closed);
        // It still ends.
        release.send(()).unwrap();
        while timers.handle().contains(&7) {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn a_shutdown_can_be_awaited_by_all_faces() {
    on_all(|| async {
        let timer = Timer::new().unwrap();
        let _ = timer.after(SECOND * 600, || ()).unwrap();
        let report = timer.shutdown(Shutdown::HandBack).await;
        assert_eq!(report.handed_back.len(), 1);
        assert!(timer.shutdown(Shutdown::HandBack).await.already_closed);

        let map = ExpiryMap::<u32, u32>::builder().build(|_, _| ()).unwrap();
        map.insert(1, 2).unwrap();
        let report = map.shutdown(Shutdown::HandBack).await;
        assert_eq!(report.handed_back.len(), 1);
        assert!(
            map.shutdown(Shutdown::HandBack)
                .wait()
                .unwrap()
                .already_closed
        );
    });
}

/// A task that was handed back and holds a future runs as part of the one around it: it is spawned,
/// and that one ends by itself.
#[test]
fn a_future_that_was_handed_back_can_be_run_by_another_task() {
    on_all(|| async {
        let (_hand, before) = scheduler();
        let (send, told) = oneshot::channel();
        here(&before)
            .schedule(7, SECOND, async move |firing| {
                let _ = send.send(*firing.key());
            })
            .unwrap();
        let mut report = before.shutdown(Shutdown::HandBack).await;
        let task = report.handed_back.remove(0).task;
        let (_hand, after) = scheduler();
        let timers = after.handle();
        timers
            .schedule(8, Duration::ZERO, move |firing| task.run(firing))
            .unwrap();
        assert_eq!(told.await.unwrap(), 8);
        eventually("its run ends", || !timers.contains(&8)).await;
        assert_eq!(timers.stats().ran, 1);
    });
}

#[test]
fn what_is_refused_comes_back() {
    on_all(|| async {
        let (_hand, scheduler) = scheduler();
        let timers = here(&scheduler).clone();
        timers
            .schedule(1, Time::ZERO + SECOND, async |_| ())
            .unwrap();
        let occupied = timers
            .schedule_if_absent(1, SECOND, async |_| ())
            .unwrap_err();
        assert!(matches!(occupied, ScheduleError::Occupied(_)));
        timers.schedule_if_absent(2, SECOND, async |_| ()).unwrap();
        scheduler.shutdown(Shutdown::HandBack).await;
        let closed = timers.schedule(3, MOMENT, async |_| ()).unwrap_err();
        assert!(matches!(closed, ScheduleError::Closed(_)));
        // The very closure.
        let again = closed.into_task();
        assert!(timers.schedule(3, MOMENT, again).is_err());
        assert!(format!("{timers:?}").contains("OnTokio"));
    });
}
