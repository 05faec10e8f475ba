//! Several processes in one test, and those that die.

use std::sync::mpsc::channel;
use std::time::Duration;

use tourbillon_durable::{Due, Durable, StartError};

use crate::support::{HOUR, MINUTE, SECOND, Seen, advance, at, keys, memory, schedule, telling};

#[test]
fn a_process_that_dies_after_the_effect_is_followed_by_another_run() {
    let store = memory();
    let (told, seen) = channel();
    let builder = Durable::builder(store.clone()).handle("q", telling(&told));
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    schedule(&timers, "order:7", MINUTE);
    steps.crash_after_run(&timers);
    advance(&steps, MINUTE);
    assert_eq!(keys(&seen), ["order:7"]);

    let builder = Durable::builder(store).handle("q", telling(&told));
    let other = builder.start_beside(&steps).expect("the store is there");
    // The lease of the dead node is 15 s, and its timer waits for its end.
    advance(&steps, 10 * SECOND);
    assert_eq!(keys(&seen), [""; 0]);
    advance(&steps, 20 * SECOND);
    let runs: Vec<Seen> = seen.try_iter().collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert_eq!((runs[0].crashes, runs[0].due), (1, at(MINUTE)));
    assert!(runs[0].late >= 10 * SECOND, "{runs:?}");
    assert_eq!(other.stats().succeeded, 1);
    assert_eq!(other.counts().wait().map(|counts| counts.len()), Ok(0));
}

#[test]
fn after_a_crash_the_timers_of_a_process_are_those_of_others() {
    let store = memory();
    let (told, seen) = channel();
    let builder = Durable::builder(store.clone()).handle("q", telling(&told));
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    schedule(&timers, "a", HOUR);
    steps.crash(&timers);
    // Nobody is there to run it.
    advance(&steps, 2 * HOUR);
    assert_eq!(keys(&seen), [""; 0]);
    let builder = Durable::builder(store).handle("q", telling(&told));
    let other = builder.start_beside(&steps).expect("the store is there");
    advance(&steps, MINUTE);
    let runs: Vec<Seen> = seen.try_iter().collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert_eq!((runs[0].crashes, runs[0].attempt), (0, 1));
    drop(other);
}

#[test]
fn what_a_dead_process_would_have_run_later_is_run_by_others_when_it_is_due() {
    // The ids of the nodes decide which of them would own the timer.
    for round in 0..12 {
        let store = memory();
        let (told, seen) = channel();
        let builder = || Durable::builder(store.clone()).handle("q", telling(&told));
        let (timers, steps) = builder().start_stepped().expect("the clock is the test's");
        schedule(&timers, "a", 2 * HOUR);
        steps.crash(&timers);
        if round % 2 == 0 {
            // Nobody is there who could observe the dead one.
            advance(&steps, HOUR);
        }
        let other = builder().start_beside(&steps).expect("the store is there");
        advance(&steps, 2 * HOUR);
        let runs: Vec<Seen> = seen.try_iter().collect();
        assert_eq!(runs.len(), 1, "{round}: {runs:?}");
        assert_eq!((runs[0].due, runs[0].late), (at(2 * HOUR), Duration::ZERO));
        drop(other);
    }
}

#[test]
fn processes_may_die_one_after_the_other_each_after_its_run() {
    let store = memory();
    let (told, seen) = channel();
    let builder = || Durable::builder(store.clone()).handle("q", telling(&told));
    let (first, steps) = builder().start_stepped().expect("the clock is the test's");
    schedule(&first, "a", MINUTE);
    steps.crash_after_run(&first);
    advance(&steps, MINUTE);
    let second = builder().start_beside(&steps).expect("the store is there");
    steps.crash_after_run(&second);
    advance(&steps, MINUTE);
    let third = builder().start_beside(&steps).expect("the store is there");
    advance(&steps, MINUTE);
    let crashes: Vec<u32> = seen.try_iter().map(|seen| seen.crashes).collect();
    assert_eq!(crashes, [0, 1, 2]);
    assert_eq!(third.stats().succeeded, 1);
}

#[test]
fn several_processes_run_each_timer_once() {
    let store = memory();
    let (told, seen) = channel();
    let builder = || Durable::builder(store.clone()).handle("q", telling(&told));
    let (timers, steps) = builder().start_stepped().expect("the clock is the test's");
    let others = [(); 2].map(|()| builder().start_beside(&steps).expect("the store is there"));
    // Until each knows of the others.
    schedule(&timers, "first", MINUTE);
    advance(&steps, MINUTE);
    assert_eq!(keys(&seen), ["first"]);
    for key in 0..300 {
        schedule(&timers, &key.to_string(), HOUR);
    }
    advance(&steps, HOUR);
    let mut keys = keys(&seen);
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 300);
    let each = [&timers, &others[0], &others[1]].map(|timers| timers.stats().succeeded);
    assert_eq!(each.iter().sum::<u64>(), 301, "{each:?}");
}

#[test]
fn two_drivers_on_one_store_move_one_clock() {
    let store = memory();
    let (told, seen) = channel();
    let start = || {
        let builder = Durable::builder(store.clone()).handle("q", telling(&told));
        builder.start_stepped().expect("the clock is the test's")
    };
    let ((timers, steps), (others, other_steps)) = (start(), start());
    for round in 1..=4_u32 {
        schedule(&timers, "a", HOUR);
        schedule(&others, "b", HOUR);
        // The other one stands still meanwhile, and does not hold anything up for long.
        let (driver, idle) = match round % 2 {
            0 => (&steps, &other_steps),
            _ => (&other_steps, &steps),
        };
        advance(driver, HOUR + MINUTE);
        let mut ran = keys(&seen);
        ran.sort();
        assert_eq!(ran, ["a", "b"]);
        advance(idle, Duration::ZERO);
        assert_eq!(steps.now().wait(), other_steps.now().wait());
    }
    assert_eq!(timers.stats().succeeded + others.stats().succeeded, 8);
}

#[test]
fn a_stop_and_a_drop_need_no_driver() {
    let (timers, steps, seen) = crate::support::timers();
    schedule(&timers, "a", MINUTE);
    let report = timers.stop(HOUR).wait().expect("it stops");
    assert!(report.has_left);
    // Steps without nodes still move the clock.
    advance(&steps, HOUR);
    assert_eq!(steps.now().wait(), Ok(at(HOUR)));
    assert_eq!(keys(&seen), [""; 0]);
    assert!(timers.schedule("q", "b", MINUTE, &7).wait().is_err());

    let (timers, steps, seen) = crate::support::timers();
    schedule(&timers, "a", Duration::ZERO);
    drop(steps);
    // Without steps the timers stand still, and calls go on.
    assert!(
        timers
            .get("q", "a")
            .wait()
            .is_ok_and(|found| found.is_some())
    );
    assert_eq!(keys(&seen), [""; 0]);
    assert!(
        timers
            .stop(Duration::ZERO)
            .wait()
            .is_ok_and(|report| report.has_left)
    );
}

#[test]
fn a_store_on_the_systems_clock_is_refused() {
    let builder = Durable::builder(tourbillon_durable::Memory::new());
    let refused = builder.handle("q", |_: &Due<u64>| ()).start_stepped();
    let Err(StartError::Store(error)) = refused else {
        panic!("{refused:?}");
    };
    assert!(error.to_string().contains("with_clock"), "{error}");
}
