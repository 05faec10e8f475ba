//! Timers without keys. The test kit has none, so the ticker is a thread: it sleeps, since the clock
//! stands still, and the harness counts only the calling thread.

use std::hint::black_box;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use gungraun::prelude::*;
use tourbillon::{Clock, Executor, Job, ManualClock, Sleep, Timeout, Timer};

use crate::{KEYS, STRIPES, delay};

fn started() -> (Timer, Timeout) {
    let clock = Clock::manual(&ManualClock::new());
    let builder = Timer::builder().shards(1).stripes(STRIPES).inline();
    let timer = builder.clock(clock).build().expect("the thread starts");
    // Earlier than all others, so that no call wakes the ticker.
    let first = timer.after(Duration::from_millis(500), || ());
    let first = first.expect("it is open");
    for pending in KEYS.map(|key| timer.after(delay(key), move || _ = black_box(key))) {
        pending.expect("it is open").cancel();
    }
    // Until the ticker sleeps.
    std::thread::sleep(Duration::from_millis(200));
    (timer, first)
}

#[library_benchmark(setup = started)]
#[bench::per_call()]
fn start_and_cancel(timer: (Timer, Timeout)) -> (Timer, Timeout) {
    for key in KEYS {
        let timeout = timer.0.after(delay(key), move || _ = black_box(key));
        black_box(timeout.expect("it is open").cancel());
    }
    timer
}

// The task captures nothing.
#[library_benchmark(setup = started)]
#[bench::per_call()]
fn start_and_cancel_without_captures(timer: (Timer, Timeout)) -> (Timer, Timeout) {
    for key in KEYS {
        let timeout = timer.0.after(delay(key), || _ = black_box(1));
        black_box(timeout.expect("it is open").cancel());
    }
    timer
}

/// Hands the jobs to the thread that is counted. A ticker that collects is `collect_and_run`.
struct Jobs(Sender<Job>);

impl Executor for Jobs {
    fn execute(&self, job: Job) -> Result<(), Job> {
        self.0.send(job).map_err(|refused| refused.0)
    }
}

struct Sleeping {
    timer: Timer,
    clock: ManualClock,
    jobs: Receiver<Job>,
    sleeps: Vec<Sleep>,
}

impl Sleeping {
    fn new() -> Self {
        let clock = ManualClock::new();
        let (sender, jobs) = channel();
        let builder = Timer::builder().shards(1).stripes(STRIPES);
        let builder = builder.executor(Jobs(sender)).clock(Clock::manual(&clock));
        let timer = builder.build().expect("the thread starts");
        let mut sleeping = Sleeping {
            timer,
            clock,
            jobs,
            sleeps: Vec::with_capacity(KEYS.len()),
        };
        // Tables and slabs grow before the calls are counted.
        sleeping.make();
        sleeping.poll();
        sleeping.sleeps.clear();
        // Earlier than all others, so that no call wakes the ticker.
        let first = sleeping.timer.after(Duration::from_millis(500), || ());
        let _ = first.expect("it is open");
        // Until the ticker sleeps.
        std::thread::sleep(Duration::from_millis(200));
        sleeping
    }

    fn make(&mut self) {
        for key in KEYS {
            self.sleeps.push(self.timer.sleep(delay(key)));
        }
    }

    /// Polls all of them with the waker of one task. Returns how many are ready.
    fn poll(&mut self) -> usize {
        let mut context = Context::from_waker(Waker::noop());
        let polls = self
            .sleeps
            .iter_mut()
            .map(|sleep| Pin::new(sleep).poll(&mut context));
        polls.filter(Poll::is_ready).count()
    }
}

fn no_sleeps() -> Sleeping {
    Sleeping::new()
}

fn made() -> Sleeping {
    let mut sleeping = no_sleeps();
    sleeping.make();
    sleeping
}

fn polled() -> Sleeping {
    let mut sleeping = made();
    assert_eq!(sleeping.poll(), 0);
    sleeping
}

/// All are due, and the ticker has collected them.
fn due() -> (Sleeping, Vec<Job>) {
    let sleeping = polled();
    sleeping.clock.advance(Duration::from_secs(120));
    let mut jobs = Vec::new();
    let mut tickets = 0;
    // And the timer that was the first one.
    while tickets < KEYS.len() + 1 {
        let job = sleeping.jobs.recv().expect("the ticker is there");
        tickets += job.len();
        jobs.push(job);
    }
    (sleeping, jobs)
}

fn woken() -> Sleeping {
    let (sleeping, jobs) = due();
    jobs.into_iter().for_each(Job::run);
    sleeping
}

#[library_benchmark(setup = no_sleeps)]
#[bench::per_call()]
fn sleep_made(mut sleeping: Sleeping) -> Sleeping {
    sleeping.make();
    sleeping
}

#[library_benchmark(setup = made)]
#[bench::per_call()]
fn sleep_first_poll(mut sleeping: Sleeping) -> Sleeping {
    assert_eq!(sleeping.poll(), 0);
    sleeping
}

#[library_benchmark(setup = polled)]
#[bench::per_call()]
fn sleep_poll_that_waits(mut sleeping: Sleeping) -> Sleeping {
    assert_eq!(sleeping.poll(), 0);
    sleeping
}

#[library_benchmark(setup = polled)]
#[bench::per_call()]
fn sleep_reset(mut sleeping: Sleeping) -> Sleeping {
    for sleep in &mut sleeping.sleeps {
        sleep.reset(Duration::from_secs(3_600));
    }
    sleeping
}

#[library_benchmark(setup = polled)]
#[bench::per_call()]
fn sleep_dropped(mut sleeping: Sleeping) -> Sleeping {
    sleeping.sleeps.clear();
    sleeping
}

// The part of a worker: claim, wake, complete.
#[library_benchmark(setup = due)]
#[bench::per_call()]
fn sleep_woken((sleeping, jobs): (Sleeping, Vec<Job>)) -> Sleeping {
    jobs.into_iter().for_each(Job::run);
    sleeping
}

#[library_benchmark(setup = woken)]
#[bench::per_call()]
fn sleep_last_poll_and_drop(mut sleeping: Sleeping) -> Sleeping {
    assert_eq!(sleeping.poll(), KEYS.len());
    sleeping.sleeps.clear();
    sleeping
}

library_benchmark_group!(
    name = timer,
    benchmarks = [
        start_and_cancel,
        start_and_cancel_without_captures,
        sleep_made,
        sleep_first_poll,
        sleep_poll_that_waits,
        sleep_reset,
        sleep_dropped,
        sleep_woken,
        sleep_last_poll_and_drop,
    ]
);
