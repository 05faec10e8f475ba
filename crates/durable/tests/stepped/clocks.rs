//! Jumps of the store's clock.

use std::sync::mpsc::channel;
use std::time::Duration;

use tourbillon_durable::{Durable, Late, Memory, WallClock};

use crate::support::{
    HOUR, MINUTE, SECOND, Seen, advance, at, keys, memory, schedule, telling, timers,
};

#[test]
fn after_a_jump_timers_are_late() {
    let (timers, steps, seen) = timers();
    schedule(&timers, "a", MINUTE);
    schedule(&timers, "b", 2 * MINUTE);
    steps
        .jump_to(at(HOUR))
        .wait()
        .expect("the clock is the test's");
    let runs: Vec<Seen> = seen.try_iter().collect();
    let late: Vec<_> = runs.iter().map(|run| (&*run.key, run.late)).collect();
    assert_eq!(late, [("a", 59 * MINUTE), ("b", 58 * MINUTE)]);
}

#[test]
fn what_is_far_too_late_is_given_up() {
    let (told, seen) = channel();
    let builder = Durable::builder(memory())
        .handle("q", telling(&told))
        .late(Late::ExpireAfter(MINUTE));
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    schedule(&timers, "old", SECOND);
    schedule(&timers, "new", HOUR - SECOND);
    steps
        .jump_to(at(HOUR))
        .wait()
        .expect("the clock is the test's");
    assert_eq!(keys(&seen), ["new"]);
    assert_eq!(timers.stats().expired, 1);
}

#[test]
fn a_clock_that_is_set_back_makes_timers_wait_once_more() {
    let (timers, steps, seen) = timers();
    advance(&steps, 2 * HOUR);
    schedule(&timers, "a", HOUR);
    steps
        .jump_to(at(HOUR))
        .wait()
        .expect("the clock is the test's");
    advance(&steps, 2 * HOUR - Duration::from_micros(1));
    assert_eq!(keys(&seen), [""; 0]);
    advance(&steps, Duration::from_micros(1));
    assert_eq!(keys(&seen), ["a"]);
    assert_eq!(steps.now().wait(), Ok(at(3 * HOUR)));
}

#[test]
fn a_clock_that_the_test_moves_by_itself_is_found() {
    let clock = WallClock::manual(at(Duration::ZERO));
    let (told, seen) = channel();
    let builder = Durable::builder(Memory::with_clock(clock.clone())).handle("q", telling(&told));
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    schedule(&timers, "a", HOUR);
    clock.advance(HOUR);
    assert_eq!(keys(&seen), [""; 0]);
    advance(&steps, Duration::ZERO);
    assert_eq!(keys(&seen), ["a"]);
}
