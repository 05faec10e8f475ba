//! W5b: every task blocks, some only briefly. 4,000 timers a second are started, due 10 to 60 ms
//! later, whose tasks sleep for 0.2 ms to 10 ms. How late do they start once the pool has had half
//! a second to grow, and how many workers has it then?
//!
//! Tasks of 10 ms keep 40 workers busy. Tasks of 500 ms would need 2,000, and the pool has at most
//! 64: of those 100 a second are started, which need 50.
//!
//! Timers of the first half second of a round, or of its first half if that is shorter, do not
//! count. Each round is a process of its own: its pool is as small as it begins.

use std::io;
use std::time::{Duration, Instant};

use super::paced::Paced;
use crate::child::{Child, Measured};
use crate::recorder::{expect_stamps, record_from, take_lateness, tasks_take};
use crate::system::{Pooled, Tasks};
use crate::workload::{By, Case, Metric, Workload};

pub(super) const ABOUT: Workload = Workload {
    name: "W5b",
    about: "all tasks block, 4,000 timers/s (100/s of 500 ms): lateness after 500 ms",
    metrics: &[
        Metric::less("p50", "ms"),
        Metric::less("p99", "ms"),
        Metric::longest("max", "ms"),
        Metric::less("workers", ""),
    ],
    cases: &[
        Case::of("tasks of 0.2 ms", 1),
        Case::of("tasks of 0.5 ms", 1),
        Case::of("tasks of 1 ms", 1),
        Case::of("tasks of 1.5 ms", 1),
        Case::of("tasks of 1.9 ms", 1),
        Case::of("tasks of 3 ms", 1),
        Case::of("tasks of 10 ms", 1),
        Case::of("tasks of 500 ms", 1),
    ],
    // Milliseconds.
    amount: [3_000, 1_000, 50],
    by: By::Pool,
    ..Workload::DEFAULT
};

/// By case: how long a task takes, and how many are started in how many steps.
const TASKS: [(Duration, u32, u32); 8] = [
    (Duration::from_micros(200), 4, 1),
    (Duration::from_micros(500), 4, 1),
    (Duration::from_micros(1_000), 4, 1),
    (Duration::from_micros(1_500), 4, 1),
    (Duration::from_micros(1_900), 4, 1),
    (Duration::from_micros(3_000), 4, 1),
    (Duration::from_micros(10_000), 4, 1),
    (Duration::from_millis(500), 1, 10),
];
const _: () = assert!(TASKS.len() == ABOUT.cases.len());

const GROWING: Duration = Duration::from_millis(500);
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn serve<S: Pooled>(child: &mut Child) -> io::Result<()> {
    expect_stamps();
    let system = S::new(Tasks::MayBlock);
    child.filled(|| ())?;
    child.rounds(|request| {
        let (takes, per_step, steps) = TASKS[request.case];
        let paced = Paced {
            per_step,
            step: Paced::TYPICAL.step * steps,
            ..Paced::TYPICAL
        };
        tasks_take(takes);
        let not_counted = GROWING.min(Duration::from_millis(request.amount) / 2);
        record_from(Instant::now() + not_counted);
        let (began, count) = paced.run(&system, request, LIMIT);
        let lateness = take_lateness();
        let early = lateness.early();
        assert!(early.is_zero(), "{} ran one {early:?} too early", S::NAME);
        assert!(lateness.count() <= count, "each fires once");
        let mut figures = lateness.figures(&[500, 990]);
        // Those that came stay for ten seconds.
        figures.push(Some(system.workers() as f64));
        Measured::since(began, figures)
    })
}
