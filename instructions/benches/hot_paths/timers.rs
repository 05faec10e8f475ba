//! Timers without keys. The test kit has none, so the ticker is a thread: it sleeps, since the clock
//! stands still, and the harness counts only the calling thread.

use std::hint::black_box;
use std::time::Duration;

use gungraun::prelude::*;
use tourbillon::{Clock, ManualClock, Timeout, Timer};

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

library_benchmark_group!(
    name = timer,
    benchmarks = [start_and_cancel, start_and_cancel_without_captures]
);
