//! Schedules by the calendar, in virtual time.

use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime};

use tourbillon_durable::{Cron, CronSchedule, Due, Durable, Missed, RetryPolicy};

use crate::support::{HOUR, YEAR, advance, at, memory};

const DAY: Duration = Duration::from_secs(24 * 3_600);

#[test]
fn a_year_of_days_runs_each_day_once() {
    let (told, seen) = channel();
    let builder = Durable::builder(memory())
        .handle("report", move |due: &Due<String>| {
            let told = told.send((due.scheduled_for(), due.lateness()));
            told.expect("the test listens");
        })
        .cron("daily", Cron::new("0 6 * * *", "UTC").unwrap(), "all");
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    advance(&steps, YEAR);
    let days: Vec<_> = seen.try_iter().collect();
    let expected: Vec<_> = (0..365)
        .map(|day| (at(DAY * day + HOUR * 6), Duration::ZERO))
        .collect();
    assert_eq!(days, expected);
    let timer = timers.get("report", "daily").wait().unwrap().unwrap();
    assert_eq!(timer.due, at(YEAR + HOUR * 6));
}

#[test]
fn a_failing_occurrence_is_tried_again_while_the_next_one_waits() {
    let (told, seen) = channel();
    let builder = Durable::builder(memory())
        .handle("report", move |due: &Due<()>| {
            let told = told.send((due.scheduled_for(), due.attempt()));
            told.expect("the test listens");
            match due.attempt() {
                1 | 2 => Err("no printer"),
                _ => Ok(()),
            }
        })
        .retry(RetryPolicy::fixed(HOUR))
        .cron(
            "hourly",
            CronSchedule::new("@hourly", "UTC")
                .unwrap()
                .missed(Missed::All),
            &(),
        );
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    advance(&steps, HOUR * 6);
    // Each occurrence needs two further hours, and those that came meanwhile are made up in turn.
    let of = |hours: [u32; 6]| -> Vec<(SystemTime, u32)> {
        let attempts = [1, 2, 3].into_iter().cycle();
        hours
            .into_iter()
            .map(|hour| at(HOUR * hour))
            .zip(attempts)
            .collect()
    };
    let first: Vec<_> = seen.try_iter().collect();
    assert_eq!(first[..6], of([1, 1, 1, 2, 2, 2]));
    drop((timers, steps));
}

#[test]
fn a_changed_definition_repeats_nothing_after_a_step_back_of_the_clock() {
    let store = memory();
    let (told, seen) = channel();
    let builder = |expression: &str, payload: u64| {
        let told = told.clone();
        Durable::builder(store.clone())
            .handle("report", move |due: &Due<u64>| {
                let told = told.send((due.scheduled_for(), *due.payload()));
                told.expect("the test listens");
            })
            .cron("hourly", Cron::new(expression, "UTC").unwrap(), &payload)
    };
    let (old, steps) = builder("@hourly", 1)
        .start_stepped()
        .expect("the clock is the test's");
    advance(&steps, HOUR * 3);
    steps
        .jump_to(at(HOUR))
        .wait()
        .expect("the clock is the test's");
    let new = builder("@hourly", 2)
        .start_beside(&steps)
        .expect("the store is there");
    advance(&steps, HOUR * 3);
    let newer = builder("*/30 * * * *", 3)
        .start_beside(&steps)
        .expect("the store is there");
    steps
        .jump_to(at(HOUR))
        .wait()
        .expect("the clock is the test's");
    advance(&steps, HOUR * 4);
    let ran: Vec<_> = seen.try_iter().collect();
    let dates: Vec<_> = ran.iter().map(|(date, _)| *date).collect();
    assert!(dates.is_sorted_by(|one, next| one < next), "{ran:?}");
    let payloads: Vec<_> = ran.iter().map(|(_, payload)| *payload).collect();
    assert_eq!(payloads, [1, 1, 1, 2, 3, 3]);
    drop((old, new, newer));
}
