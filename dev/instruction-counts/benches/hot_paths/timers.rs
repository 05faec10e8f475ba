//! Timers without keys, which the test kit drives.

use std::hint::black_box;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use gungraun::prelude::*;
use tourbillon::test_util::SteppedTimer;
use tourbillon::{Sleep, Timer, TimerBuilder, TimerHandle};

use crate::{KEYS, SEED, delay};

/// The kit is kept, since dropping it closes the timer.
type Kit = (SteppedTimer, Arc<Timer>);

/// One timer is earlier than all others, so that no call would wake a ticker.
fn kit_of(builder: TimerBuilder) -> Kit {
    let kit = builder.build_stepped(SEED).expect("the options are valid");
    let timer = kit.timer();
    let first = timer.after(Duration::from_millis(500), || ());
    // Dropping its handle does not cancel it.
    let _ = first.expect("it is open");
    (kit, timer)
}

/// Tables and slabs have grown already.
fn started() -> Kit {
    let kit = kit_of(Timer::builder().inline());
    let arm = |key| kit.1.after(delay(key), move || _ = black_box(key));
    // All are pending before the first one is cancelled.
    for pending in KEYS.map(arm).collect::<Vec<_>>() {
        pending.expect("it is open").cancel();
    }
    kit
}

#[library_benchmark(setup = started)]
#[bench::per_call()]
fn start_and_cancel(kit: Kit) -> Kit {
    for key in KEYS {
        let timeout = kit.1.after(delay(key), move || _ = black_box(key));
        black_box(timeout.expect("it is open").cancel());
    }
    kit
}

// The task captures nothing.
#[library_benchmark(setup = started)]
#[bench::per_call()]
fn start_and_cancel_without_captures(kit: Kit) -> Kit {
    for key in KEYS {
        let timeout = kit.1.after(delay(key), || _ = black_box(1));
        black_box(timeout.expect("it is open").cancel());
    }
    kit
}

fn pending() -> (Kit, Vec<TimerHandle>) {
    let kit = started();
    let arm = |key| kit.1.after(delay(key), move || _ = black_box(key));
    let timeouts = KEYS.map(|key| arm(key).expect("it is open")).collect();
    (kit, timeouts)
}

#[library_benchmark(setup = pending)]
#[bench::per_call()]
fn reschedule(pending: (Kit, Vec<TimerHandle>)) -> (Kit, Vec<TimerHandle>) {
    for timeout in &pending.1 {
        let _ = black_box(timeout.reschedule(Duration::from_secs(3_600)));
    }
    pending
}

struct Sleeping {
    kit: Kit,
    sleeps: Vec<Sleep>,
}

impl Sleeping {
    fn new() -> Self {
        let mut sleeping = Sleeping {
            kit: kit_of(Timer::builder().workers(1)),
            sleeps: Vec::with_capacity(KEYS.len()),
        };
        // Tables and slabs grow before the calls are counted.
        sleeping.make();
        sleeping.poll();
        sleeping.sleeps.clear();
        sleeping
    }

    fn make(&mut self) {
        for key in KEYS {
            self.sleeps.push(self.kit.1.sleep(delay(key)));
        }
    }

    /// Makes all of them due in one jump, so that the worker claims many at once.
    fn wake(&self) {
        let kit = &self.kit.0;
        kit.jump_to(kit.now() + Duration::from_secs(120));
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

fn woken() -> Sleeping {
    let sleeping = polled();
    sleeping.wake();
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

// What the ticker and a worker do: collect, claim, wake, complete.
#[library_benchmark(setup = polled)]
#[bench::per_call()]
fn sleep_collected_and_woken(sleeping: Sleeping) -> Sleeping {
    sleeping.wake();
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
        reschedule,
        sleep_made,
        sleep_first_poll,
        sleep_poll_that_waits,
        sleep_reset,
        sleep_dropped,
        sleep_collected_and_woken,
        sleep_last_poll_and_drop,
    ]
);
