//! Schedulers, maps and timers beside a storm: many tasks of another scheduler, all due at once.
//! `STRESS_BUILDS` sets how many are built and dropped beside one.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use kit::drops::Drops;
use kit::wait::{next, until};
use tourbillon::{ExpiryMap, Firing, Runtime, Scheduler, Shutdown, Timer};

use super::load::Load;
use super::{TICK, scheduler_on};

/// Number of timers beside a storm.
const OTHERS: u32 = 5;

/// Has timers run beside a storm of so many tasks. None may wait until the storm has ended, however
/// long its tasks take.
fn timers_run_before_the_end_of_a_storm(tasks: u32, task: fn()) {
    let runtime = Runtime::builder().tickers(1).workers(2).build().unwrap();
    until("timers ran while the storm did", || {
        let (storm, other) = (scheduler_on(&runtime), scheduler_on(&runtime));
        let (begun, over) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (tell, told) = channel();
        // Armed first, so that they are never armed after the storm.
        let due = Instant::now() + TICK * 300;
        for key in 0..OTHERS {
            let (begun, tell) = (Arc::clone(&begun), tell.clone());
            let run = move |_: &Firing<'_, u32>| tell.send(begun.load(Ordering::SeqCst)).unwrap();
            other
                .handle()
                .schedule(key, due + TICK * (5 + key), run)
                .unwrap();
        }
        for key in 0..tasks {
            let (begun, over) = (Arc::clone(&begun), Arc::clone(&over));
            let run = move |_: &Firing<'_, u32>| {
                begun.fetch_add(1, Ordering::SeqCst);
                if !over.load(Ordering::SeqCst) {
                    task();
                }
            };
            storm.handle().schedule(key, due, run).unwrap();
        }
        let begun: Vec<usize> = (0..OTHERS).map(|_| next(&told)).collect();
        over.store(true, Ordering::SeqCst);
        assert!(
            begun.iter().all(|begun| *begun < tasks as usize),
            "after {begun:?} of {tasks}"
        );
        // On a busy machine the storm may have begun later.
        begun.iter().all(|begun| *begun > 0)
    });
}

fn compute(micros: u64) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_micros(micros) {
        black_box(());
    }
}

/// Blocks the worker, which counts as waiting.
fn nap(millis: u64) {
    let (time, begun) = (Duration::from_millis(millis), Instant::now());
    while let Some(left) = time.checked_sub(begun.elapsed()) {
        thread::park_timeout(left);
    }
}

#[test]
fn timers_run_beside_a_storm_of_tasks_that_compute() {
    timers_run_before_the_end_of_a_storm(20_000, || compute(100));
}

#[test]
fn timers_run_beside_a_storm_of_tasks_that_block_briefly() {
    timers_run_before_the_end_of_a_storm(20_000, || nap(1));
}

#[test]
fn timers_run_beside_a_storm_of_tasks_that_block_for_long() {
    timers_run_before_the_end_of_a_storm(2_000, || nap(20));
}

#[test]
fn timers_run_beside_a_storm_of_tiny_tasks() {
    timers_run_before_the_end_of_a_storm(60_000, || compute(1));
}

#[test]
fn many_are_built_and_dropped_beside_a_storm() {
    let builds = std::env::var("STRESS_BUILDS").ok();
    let builds = builds.map_or(3_000, |text| {
        text.parse().expect("STRESS_BUILDS is a number")
    });
    let runtime = Runtime::builder().tickers(2).workers(2).build().unwrap();
    let load = Load::on(&runtime);
    let drops = Drops::default();
    let far = TICK * 1_000_000;
    let mut made = 0;
    for round in 0..builds {
        let mut mark = || {
            made += 1;
            drops.mark()
        };
        // Some have a task that is due, and all have one that is not.
        let (near, late) = (mark(), mark());
        let waits = round % 4 == 0;
        match round % 3 {
            0 => {
                let builder = Scheduler::<u32>::builder().runtime(&runtime).stripes(16);
                let scheduler = builder.build().unwrap();
                let timers = scheduler.handle();
                timers
                    .schedule(1, TICK * (round % 2), move |_| drop(near))
                    .unwrap();
                timers.schedule(2, far, move |_| drop(late)).unwrap();
                if waits {
                    until("it ran", || timers.stats().ran > 0);
                }
            }
            1 => {
                let builder = ExpiryMap::<u32, _>::builder().runtime(&runtime).stripes(16);
                let map = builder.time_to_live(far).build(|_, _| ()).unwrap();
                map.insert(1, near).unwrap();
                map.insert(2, late).unwrap();
                if waits {
                    let report = map.shutdown(Shutdown::RunNow).wait().unwrap();
                    assert!(report.handed_back.is_empty() && map.stats().expired == 2);
                }
            }
            _ => {
                let builder = Timer::builder().runtime(&runtime).stripes(16);
                let timer = builder.build().unwrap();
                let _ = timer.after(TICK * (round % 2), move || drop(near)).unwrap();
                let _ = timer.after(far, move || drop(late)).unwrap();
                if waits {
                    let report = timer.shutdown(Shutdown::HandBack).wait().unwrap();
                    assert!(!report.handed_back.is_empty());
                }
            }
        }
    }
    until("the others are gone", || runtime.stats().instances == 1);
    until("what they had is gone", || drops.count() == made);
    let before = load.ran();
    until("the storm goes on", || load.ran() > before);
    drop(load);
    runtime.shut_down(Duration::from_secs(60)).unwrap();
    assert_eq!(runtime.stats().workers, 0);
}
