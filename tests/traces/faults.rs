//! Warnings of what goes wrong without a task: they come from workers, and never from a ticker.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use kit::gate::Gate;
use kit::traces::{self, Told};
use kit::wait;
use tourbillon::{Executor, Job, Scheduler};

const NOW: Duration = Duration::ZERO;

#[track_caller]
fn told_of(name: &str, text: &str) -> Told {
    let traces = traces::listen();
    let find = || {
        let told = traces.events("name", name).into_iter();
        told.into_iter()
            .find(|told| told.fields["message"].contains(text))
    };
    wait::until("it is told", || find().is_some());
    find().expect("it was there")
}

/// Refuses the first batch.
struct Refuses(AtomicUsize);

impl Executor for Refuses {
    fn execute(&self, job: Job) -> Result<(), Job> {
        // Relaxed: a count.
        match self.0.fetch_add(1, Ordering::Relaxed) {
            0 => Err(job),
            _ => {
                job.run();
                Ok(())
            }
        }
    }
}

#[test]
fn an_executor_that_refuses_is_told_by_a_worker() {
    traces::listen();
    let scheduler = Scheduler::<u8>::builder().name("refuses");
    let scheduler = scheduler
        .executor(Refuses(AtomicUsize::new(0)))
        .own_threads();
    let scheduler = scheduler.build().unwrap();
    let (sender, ran) = mpsc::channel();
    let task = move |_: &tourbillon::Firing<'_, u8>| sender.send(()).unwrap();
    scheduler.handle().schedule(1, NOW, task).unwrap();
    wait::next(&ran);
    let told = told_of("refuses", "has refused or dropped");
    assert_eq!(told.fields["times"], "1");
    assert!(!told.thread.contains("ticker"), "{}", told.thread);
    // The same fault is told once.
    scheduler.handle().schedule(2, NOW, |_| ()).unwrap();
    wait::until("it has run", || scheduler.handle().stats().ran == 2);
    assert_eq!(traces::listen().events("name", "refuses").len(), 1);
}

#[test]
fn tasks_that_wait_since_all_workers_block_are_told_when_one_is_free() {
    traces::listen();
    let scheduler = Scheduler::<u8>::builder()
        .name("saturated")
        .workers(1)
        .max_running(1);
    let scheduler = scheduler.build().unwrap();
    let timers = scheduler.handle();
    let gate = Gate::default();
    let shut = gate.clone();
    timers.schedule(1, NOW, move |_| shut.pass()).unwrap();
    gate.crowd(1);
    timers.schedule(2, NOW, |_| ()).unwrap();
    // A worker that starts slowly has perhaps been counted before.
    wait::until("the pool is at its bound", || timers.stats().saturated > 0);
    let told = || traces::listen().events("name", "saturated");
    let times = || {
        let times = told()
            .into_iter()
            .map(|told| told.fields["times"].parse::<u64>());
        times.sum::<Result<u64, _>>().expect("numbers")
    };
    gate.open();
    wait::until("all is told", || times() == timers.stats().saturated);
    for told in told() {
        assert!(told.fields["message"].contains("as many run as"));
        assert!(!told.thread.contains("ticker"), "{}", told.thread);
    }
}

#[test]
fn a_ticker_that_stalls_is_told() {
    traces::listen();
    let scheduler = Scheduler::<u32>::builder().name("stalled");
    let scheduler = scheduler.shards(1).workers(1).max_running(1);
    let scheduler = Arc::new(scheduler.build().unwrap());
    let timers = scheduler.handle();
    let gate = Gate::default();
    let shut = gate.clone();
    timers.schedule(0, NOW, move |_| shut.pass()).unwrap();
    gate.crowd(1);
    let most = 65_536;
    for key in 1..=most + 1 {
        timers
            .schedule(key, Duration::from_millis(2), |_| ())
            .unwrap();
    }
    wait::until("as many wait as the ticker lets wait", || {
        timers.stats().queued >= u64::from(most)
    });
    // The ticker finds it at its next step.
    timers
        .schedule(most + 2, Duration::from_millis(2), |_| ())
        .unwrap();
    wait::until("the ticker has looked once more", || {
        timers.stats().saturated > 0
    });
    gate.open();
    told_of("stalled", "a ticker has stalled");
    wait::until("all have run", || timers.stats().ran == u64::from(most) + 3);
}
