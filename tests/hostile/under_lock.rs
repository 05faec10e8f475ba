//! What guards and futures do when user code drops them while it runs under a lock of a map: their
//! work is put off until the lock is free, and is done before the call returns.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::wait::{next, until};
use kit::wakes::{Wakes, poll};
use kit::ways::{AtDrop, Dropping, WAYS, drop_under_a_lock, in_every_way, map};
use tourbillon::{
    Cancel, Clock, Executor, Handle, Job, Lifecycle, ManualClock, Scheduler, Shutdown, Timer,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn scheduler() -> (Scheduler<u32>, Handle<u32>, ManualClock) {
    let hand = ManualClock::new();
    let builder = Scheduler::<u32>::builder().clock(Clock::manual(&hand));
    let scheduler = builder.build().unwrap();
    let timers = scheduler.handle();
    (scheduler, timers, hand)
}

#[test]
fn a_cancel_guard_cancels_before_the_call_returns() {
    let (_scheduler, timers, _hand) = scheduler();
    let calls = Arc::new(AtomicUsize::new(0));
    in_every_way(
        || {
            // The task is dropped without a lock: its drop may call the scheduler.
            let (own, calls) = (timers.clone(), Arc::clone(&calls));
            let at_drop = AtDrop(Box::new(move || {
                assert!(!own.contains(&7));
                calls.fetch_add(1, Ordering::SeqCst);
            }));
            let timer = timers.schedule(7, HOUR, move |_| {
                let _ = &at_drop;
            });
            Box::new(timers.cancel_on_drop(timer.unwrap().id))
        },
        |way| {
            assert!(timers.is_empty(), "way {way}");
            assert_eq!(calls.load(Ordering::SeqCst), way + 1);
        },
    );
    assert_eq!(timers.stats().cancelled, WAYS as u64);
}

#[test]
fn a_guard_that_is_told_to_cancel_under_a_lock_cancels_all_the_same() {
    let (_scheduler, timers, _hand) = scheduler();
    let timer = timers.schedule(7, HOUR, |_| ()).unwrap();
    let guard = timers.cancel_on_drop(timer.id);
    let map = map();
    let call = || map.update(&Dropping::default(), move |_| guard.cancel());
    let panic = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
    let message = panic.downcast_ref::<&str>().expect("a text");
    assert!(message.contains("run under a lock"), "{message}");
    assert!(timers.is_empty(), "the drop of the guard has cancelled it");
}

#[test]
fn nobody_waits_for_a_shutdown_under_a_lock() {
    let (scheduler, timers, _hand) = scheduler();
    timers.schedule(7, HOUR, |_| ()).unwrap();
    let map = map();
    let closing = scheduler.shutdown(Shutdown::HandBack);
    let wait = || map.update(&Dropping::default(), move |_| closing.wait().is_ok());
    let panic = catch_unwind(AssertUnwindSafe(wait)).unwrap_err();
    let message = panic.downcast_ref::<&str>().expect("a text");
    assert!(message.contains("run under a lock"), "{message}");
    until("it ends", || timers.state() == Lifecycle::Closed);
}

#[test]
fn a_sleep_takes_its_timer_back_and_wakes_nobody() {
    let hand = ManualClock::new();
    let timer = Timer::builder().clock(Clock::manual(&hand));
    let timer = timer.build().unwrap();
    let wakes = Wakes::new();
    in_every_way(
        || {
            let mut sleep = timer.sleep(HOUR);
            assert!(poll(&mut sleep, &wakes).is_pending());
            assert_eq!(timer.stats().pending, 1);
            Box::new(sleep)
        },
        |way| assert_eq!(timer.stats().pending, 0, "way {way}"),
    );
    assert_eq!(timer.stats().cancelled, WAYS as u64);
    assert_eq!(wakes.count(), 0);
}

#[test]
fn a_future_that_waits_for_a_run_gives_up() {
    let (_scheduler, timers, _hand) = scheduler();
    let (release, released) = channel::<()>();
    let (began, begin) = channel();
    timers
        .schedule(7, Duration::ZERO, move |_| {
            began.send(()).unwrap();
            released.recv().unwrap_err();
        })
        .unwrap();
    next(&begin);
    let wakes = Wakes::new();
    in_every_way(
        || {
            let mut waiting = timers.cancel_and_wait(&7);
            assert!(poll(&mut waiting, &wakes).is_pending());
            assert!(timers.schedule(7, HOUR, |_| ()).is_err(), "it waits");
            Box::new(waiting)
        },
        |way| {
            assert!(timers.schedule(7, HOUR, |_| ()).is_ok(), "way {way}");
        },
    );
    drop(release);
}

#[test]
fn a_job_gives_its_tasks_back() {
    struct Queue(Mutex<Sender<Job>>);
    impl Executor for Queue {
        fn execute(&self, job: Job) -> Result<(), Job> {
            (self.0.lock().unwrap().send(job)).map_err(|error| error.0)
        }
    }
    let hand = ManualClock::new();
    let (jobs, queue) = channel();
    let builder = Scheduler::<u32>::builder().clock(Clock::manual(&hand));
    let builder = builder.executor(Queue(Mutex::new(jobs)));
    let scheduler = builder.build().unwrap();
    let timers = scheduler.handle();
    timers.schedule(7, Duration::ZERO, |_| ()).unwrap();
    in_every_way(
        || Box::new(next(&queue)),
        |way| {
            assert_eq!(timers.stats().queued, 0, "way {way}");
            // It comes again with the next tick.
            hand.advance(Duration::from_millis(1));
        },
    );
    next(&queue).run();
    assert_eq!(timers.stats().ran, 1);
}

#[cfg(feature = "tokio")]
#[test]
fn an_async_task_that_its_runtime_drops_is_settled() {
    let (_scheduler, timers, _hand) = scheduler();
    in_every_way(
        || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.build().unwrap();
            let (began, begin) = channel();
            let tasks = timers.on_tokio(runtime.handle().clone());
            tasks
                .schedule(7, Duration::ZERO, async move |firing| {
                    began.send(()).unwrap();
                    firing.cancelled().await;
                })
                .unwrap();
            runtime.block_on(async {
                while begin.try_recv().is_err() {
                    tokio::task::yield_now().await;
                }
            });
            assert_eq!(timers.stats().running, 1);
            Box::new(runtime)
        },
        |way| assert_eq!(timers.stats().running, 0, "way {way}"),
    );
    assert_eq!(timers.stats().ran, WAYS as u64);
}

#[test]
fn owners_close_before_the_call_returns() {
    let handles = RefCell::new(Vec::new());
    in_every_way(
        || {
            let (scheduler, timers, _hand) = scheduler();
            timers.schedule(7, HOUR, |_| ()).unwrap();
            handles.borrow_mut().push(timers);
            Box::new(scheduler)
        },
        |way| {
            let timers = &handles.borrow()[way];
            assert_eq!(timers.state(), Lifecycle::Closed, "way {way}");
            assert_eq!(timers.stats().cancelled, 1);
        },
    );
}

// === while the thread panics ===

#[test]
fn a_panic_under_the_lock_loses_nothing() {
    let (_scheduler, timers, _hand) = scheduler();
    let timer = Timer::new().unwrap();
    let map = map();
    let wakes = Wakes::new();
    for number in 0..3 {
        let armed = timers.schedule(number, HOUR, |_| ()).unwrap();
        let guard = timers.cancel_on_drop(armed.id);
        let mut sleep = timer.sleep(HOUR);
        assert!(poll(&mut sleep, &wakes).is_pending());
        let call = || {
            map.update(&Dropping::default(), move |_| {
                let _dropped_by_the_panic = (guard, sleep);
                panic!("on purpose");
            })
        };
        let panicked = catch_unwind(AssertUnwindSafe(call));
        let message = panicked.unwrap_err();
        assert_eq!(message.downcast_ref(), Some(&"on purpose"));
        assert!(timers.is_empty());
        assert_eq!(timer.stats().pending, 0);
    }
    assert_eq!(timers.stats().cancelled, 3);
    assert_eq!(timer.stats().cancelled, 3);
}

#[test]
fn a_lock_that_is_taken_while_the_thread_panics_loses_nothing() {
    let (_scheduler, timers, _hand) = scheduler();
    let cleared = Arc::new(AtomicUsize::new(0));
    for way in 0..WAYS {
        let armed = timers.schedule(7, HOUR, |_| ()).unwrap();
        let guard = Mutex::new(Some(timers.cancel_on_drop(armed.id)));
        let (timers, cleared) = (timers.clone(), Arc::clone(&cleared));
        let in_unwinding = AtDrop(Box::new(move || {
            let guard = guard.lock().unwrap().take();
            drop_under_a_lock(way, Box::new(guard));
            assert!(matches!(timers.cancel(&7), Cancel::NotFound), "way {way}");
            cleared.fetch_add(1, Ordering::SeqCst);
        }));
        let call = move || {
            let _in_unwinding = in_unwinding;
            panic!("on purpose");
        };
        assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    }
    assert_eq!(cleared.load(Ordering::SeqCst), WAYS);
    until("they are gone", || timers.stats().cancelled == WAYS as u64);
}
