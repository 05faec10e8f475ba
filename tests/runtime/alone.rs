//! A scheduler whose tasks wait while all workers are in tasks of others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use kit::gate::Gate;
use kit::wait::{next, until};

use super::{TICK, scheduler_on, small};
use tourbillon::{Firing, Runtime};

/// Runs five timers of another scheduler while `task` of the first one occupies each worker.
fn five_timers_run_beside(
    runtime: &Runtime,
    busy: usize,
    task: impl Fn() + Clone + Send + 'static,
) {
    let storm = scheduler_on(runtime);
    for key in 0..busy as u32 {
        let task = task.clone();
        let task = move |_: &Firing<'_, u32>| task();
        storm.handle().schedule(key, TICK, task).unwrap();
    }
    until("it is busy", || storm.handle().stats().running > 0);
    let other = scheduler_on(runtime);
    let (tell, told) = channel();
    for key in 0..5 {
        let tell = tell.clone();
        let run = move |_: &Firing<'_, u32>| tell.send(key).unwrap();
        other
            .handle()
            .schedule(key, TICK * (20 + key), run)
            .unwrap();
    }
    for _ in 0..5 {
        next(&told);
    }
    drop(storm);
}

#[test]
fn blocked_tasks_of_another_scheduler_hold_up_nothing() {
    for busy in [1, 10] {
        let runtime = small("blocked").build().unwrap();
        let gate = Gate::default();
        let at_gate = gate.clone();
        five_timers_run_beside(&runtime, busy, move || at_gate.pass());
        gate.open();
    }
}

/// As many as `max_running` allows, on a runtime that grows for them.
#[test]
fn sixty_four_blocked_tasks_of_another_scheduler_hold_up_nothing() {
    let runtime = Runtime::builder().tickers(1).workers(2).build().unwrap();
    let storm = scheduler_on(&runtime);
    let gate = Gate::default();
    for key in 0..100 {
        let gate = gate.clone();
        storm
            .handle()
            .schedule(key, TICK, move |_| gate.pass())
            .unwrap();
    }
    gate.crowd(64);
    let other = scheduler_on(&runtime);
    let (tell, told) = channel();
    for key in 0..20 {
        let tell = tell.clone();
        let run = move |_: &Firing<'_, u32>| tell.send(()).unwrap();
        // At once, and through the wheel.
        other.handle().schedule(key, TICK * (key % 2), run).unwrap();
        next(&told);
    }
    assert_eq!((gate.waiting(), storm.handle().stats().ran), (64, 64));
    gate.open();
    until("all ran", || storm.handle().stats().ran == 100);
}

#[test]
fn computing_tasks_of_another_scheduler_hold_up_nothing() {
    let runtime = small("computes").build().unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&done);
    five_timers_run_beside(&runtime, 10, move || {
        while !over.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    });
    // Above the bound of one, and gone again.
    until("no spare worker is left", || runtime.stats().workers == 1);
    done.store(true, Ordering::SeqCst);
}

/// The scheduler has a worker, which is blocked, and all others compute.
#[test]
fn computing_tasks_hold_up_nothing_behind_a_blocked_one() {
    let runtime = Runtime::builder().name("behind").tickers(1).workers(2);
    let runtime = runtime.build().unwrap();
    let (blocked, computing) = (scheduler_on(&runtime), scheduler_on(&runtime));
    let gate = Gate::default();
    let at_gate = gate.clone();
    let block = move |_: &Firing<'_, u32>| at_gate.pass();
    blocked.handle().schedule(0, TICK, block).unwrap();
    gate.crowd(1);
    let done = Arc::new(AtomicBool::new(false));
    for key in 0..10 {
        let over = Arc::clone(&done);
        let compute = move |_: &Firing<'_, u32>| {
            while !over.load(Ordering::SeqCst) {
                thread::yield_now();
            }
        };
        computing.handle().schedule(key, TICK, compute).unwrap();
    }
    until("it is busy", || computing.handle().stats().running >= 2);
    let (tell, told) = channel();
    for key in 1..10 {
        let tell = tell.clone();
        let run = move |_: &Firing<'_, u32>| tell.send(()).unwrap();
        blocked.handle().schedule(key, TICK, run).unwrap();
        next(&told);
    }
    assert_eq!(gate.waiting(), 1);
    done.store(true, Ordering::SeqCst);
    gate.open();
}

#[test]
fn each_scheduler_gets_a_worker_and_no_more() {
    const SCHEDULERS: usize = 8;
    let runtime = small("each").build().unwrap();
    let gate = Gate::default();
    let schedulers: Vec<_> = (0..SCHEDULERS)
        .map(|_| {
            let scheduler = scheduler_on(&runtime);
            for key in 0..3 {
                let gate = gate.clone();
                scheduler
                    .handle()
                    .schedule(key, TICK, move |_| gate.pass())
                    .unwrap();
            }
            scheduler
        })
        .collect();
    gate.crowd(SCHEDULERS);
    let running = |scheduler: &tourbillon::Scheduler<u32>| scheduler.handle().stats().running;
    assert_eq!(
        schedulers.iter().map(running).collect::<Vec<_>>(),
        [1; SCHEDULERS]
    );
    assert_eq!(runtime.stats().workers, SCHEDULERS);
    gate.open();
    until("all ran", || {
        let ended = |scheduler: &tourbillon::Scheduler<u32>| scheduler.handle().stats().ran == 3;
        schedulers.iter().all(ended)
    });
}

#[test]
fn a_task_may_wait_for_one_of_another_scheduler() {
    let runtime = small("waits").build().unwrap();
    let (one, other) = (scheduler_on(&runtime), scheduler_on(&runtime));
    let (tell, told) = channel();
    let others = other.handle();
    let waits = move |_: &Firing<'_, u32>| {
        let (answer, answered) = channel();
        let answers = move |_: &Firing<'_, u32>| answer.send(7).unwrap();
        others.schedule(1, TICK, answers).unwrap();
        tell.send(answered.recv().unwrap()).unwrap();
    };
    one.handle().schedule(1, TICK, waits).unwrap();
    assert_eq!(next(&told), 7);
}
