//! The end of what is on a runtime, and of the runtime.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use kit::gate::Gate;
use kit::wait::{next, until};
use tourbillon::{BuildError, Firing, Runtime, Scheduler, Shutdown};

use super::load::Load;
use super::{TICK, scheduler_on, small};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_shutdown_is_exact_beside_the_load_of_another_scheduler() {
    let runtime = Runtime::builder().tickers(2).workers(2).build().unwrap();
    let load = Load::on(&runtime);
    for round in 0..30 {
        let mode = match round % 3 {
            0 => Shutdown::HandBack,
            1 => Shutdown::RunNow,
            _ => Shutdown::Drain { limit: LONG },
        };
        let scheduler = scheduler_on(&runtime);
        let timers = scheduler.handle();
        let ran = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        for key in 0..50 {
            let ran = Arc::clone(&ran);
            let task = move |_: &Firing<'_, u32>| {
                ran.fetch_add(1, Ordering::SeqCst);
            };
            timers.schedule(key, TICK * (key % 4), task).unwrap();
        }
        let report = scheduler.shutdown(mode).wait().unwrap();
        // Nothing runs after the report.
        let ran = ran.load(Ordering::SeqCst);
        assert_eq!(
            (report.still_running, ran + report.handed_back.len()),
            (0, 50)
        );
        assert!(mode == Shutdown::HandBack || ran == 50);
        assert!(timers.stats().balances());
    }
    let before = load.ran();
    until("the load goes on", || load.ran() > before);
    drop(load);
    until("nobody is on it", || runtime.stats().instances == 0);
}

#[test]
fn a_shutdown_drops_what_its_tasks_hold_before_it_ends() {
    let runtime = Runtime::builder().tickers(2).workers(2).build().unwrap();
    let _load = Load::on(&runtime);
    for _ in 0..50 {
        let held = Arc::new(());
        let (in_task, in_handler) = (Arc::clone(&held), Arc::clone(&held));
        let builder = Scheduler::<u32>::builder().runtime(&runtime);
        let scheduler = builder
            .on_panic(move |_| drop(in_handler.clone()))
            .build()
            .unwrap();
        let task = move |_: &Firing<'_, u32>| drop(in_task);
        scheduler.handle().schedule(1, TICK, task).unwrap();
        scheduler.shutdown(Shutdown::RunNow).wait().unwrap();
        drop(scheduler);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}

#[test]
fn a_task_that_outlasts_the_limit_is_reported_and_holds_up_nobody() {
    let runtime = small("outlasts").build().unwrap();
    let gate = Gate::default();
    let builder = Scheduler::<u32>::builder().runtime(&runtime);
    let stuck = builder.shutdown_limit(TICK).build().unwrap();
    let at_gate = gate.clone();
    stuck
        .handle()
        .schedule(1, TICK, move |_| at_gate.pass())
        .unwrap();
    gate.crowd(1);
    let report = stuck.shutdown(Shutdown::RunNow).wait().unwrap();
    assert_eq!(report.still_running, 1);
    drop(stuck);
    let (tell, told) = channel();
    let other = scheduler_on(&runtime);
    other
        .handle()
        .schedule(1, TICK, move |_| tell.send(()).unwrap())
        .unwrap();
    next(&told);
    drop(other);
    until("only the task is left", || runtime.stats().instances == 0);
    let refused = runtime.shut_down(TICK).unwrap_err();
    assert_eq!(refused.instances, 0);
    assert!(refused.to_string().contains("a task"), "{refused}");
    gate.open();
    runtime.shut_down(LONG).unwrap();
}

#[test]
fn a_task_may_shut_its_own_scheduler_down() {
    let runtime = small("itself").build().unwrap();
    let scheduler = Arc::new(scheduler_on(&runtime));
    let (tell, told) = channel();
    let itself = Arc::clone(&scheduler);
    let task = move |_: &Firing<'_, u32>| {
        drop(itself.shutdown(Shutdown::HandBack));
        tell.send(()).unwrap();
    };
    scheduler.handle().schedule(1, TICK, task).unwrap();
    scheduler.handle().schedule(2, LONG, |_| ()).unwrap();
    next(&told);
    until("it is closed", || {
        scheduler.handle().state() == tourbillon::Lifecycle::Closed
    });
    drop(scheduler);
    until("nobody is on it", || runtime.stats().instances == 0);
}

#[cfg(target_os = "linux")]
#[test]
fn the_threads_end_with_the_last_handle_and_what_was_built() {
    let runtime = Runtime::builder().name("lasts").tickers(2).workers(2);
    let runtime = runtime.build().unwrap();
    let named = || super::threads_named("lasts-").len();
    let scheduler = scheduler_on(&runtime);
    drop((runtime.clone(), runtime));
    let (tell, told) = channel();
    scheduler
        .handle()
        .schedule(1, TICK * 20, move |_| tell.send(()).unwrap())
        .unwrap();
    next(&told);
    until("all have their names", || named() == 4);
    drop(scheduler);
    until("no thread is left", || named() == 0);
}

#[cfg(target_os = "linux")]
#[test]
fn the_last_owner_may_be_a_task() {
    let runtime = Runtime::builder().name("owner").workers(1).build().unwrap();
    let scheduler = scheduler_on(&runtime);
    let (give, given) = channel::<(Runtime, Scheduler<u32>)>();
    let task = move |_: &Firing<'_, u32>| drop(given.recv());
    scheduler.handle().schedule(1, TICK, task).unwrap();
    give.send((runtime, scheduler)).unwrap();
    until("no thread is left", || {
        super::threads_named("owner-").is_empty()
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_runtime_that_is_shut_down_leaves_no_thread_and_takes_nobody() {
    let runtime = Runtime::builder().name("ends").build().unwrap();
    let scheduler = scheduler_on(&runtime);
    for limit in [Duration::ZERO, TICK] {
        let refused = runtime.shut_down(limit).unwrap_err();
        assert_eq!(refused.instances, 1);
        assert!(refused.to_string().contains("shut them down"), "{refused}");
    }
    let refused = Scheduler::<u32>::builder().runtime(&runtime).build();
    assert!(matches!(refused, Err(BuildError::RuntimeEnded)));
    // The scheduler on it still runs its tasks.
    let (tell, told) = channel();
    scheduler
        .handle()
        .schedule(1, TICK, move |_| tell.send(()).unwrap())
        .unwrap();
    next(&told);
    // Two at one time, one of them without a limit.
    let waits = runtime.clone();
    let waits = thread::spawn(move || waits.shut_down(Duration::MAX));
    drop(scheduler);
    runtime.shut_down(LONG).unwrap();
    waits.join().unwrap().unwrap();
    // The kernel may list a thread for a moment after its end.
    until("no thread is left", || {
        super::threads_named("ends-").is_empty()
    });
    runtime.shut_down(Duration::ZERO).unwrap();
    assert_eq!(runtime.stats().workers, 0);
}

#[test]
fn a_task_that_shuts_its_runtime_down_is_told_that_it_waits_for_itself() {
    let runtime = small("waits").build().unwrap();
    let scheduler = scheduler_on(&runtime);
    let (tell, told) = channel();
    let itself = runtime.clone();
    let task = move |_: &Firing<'_, u32>| tell.send(itself.shut_down(TICK)).unwrap();
    scheduler.handle().schedule(1, TICK, task).unwrap();
    assert_eq!(next(&told).unwrap_err().instances, 1);
}
