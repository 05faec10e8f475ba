//! W4, W4i and W4h: mass expiry. Many timers are armed ahead of time; then they come due, spread
//! evenly over two seconds in random order (W4), or all at one instant, by key (W4i) or by handle
//! (W4h).
//!
//! The first is due so late that all are armed by then; a round in which arming took longer is
//! wrong and is done again with twice the time. Lateness counts from the moment that the caller
//! asked for. The CPU time is that of all threads but the producer's, from the end of arming until
//! the last one has run.

use std::io;
use std::time::{Duration, Instant};

use super::kit::lateness_of;
use crate::child::{Child, Measured};
use crate::machine::Used;
use crate::recorder::{
    Lateness, Stamp, expect_stamps, fired_so_far, take_lateness, wait_until_fired,
};
use crate::system::{Handles, Keyed, System, Tasks};
use crate::wire::Request;
use crate::workload::{By, Case, Children, Metric, Workload};
use chaos::random::Random;

pub(super) const SPREAD: Workload = Workload {
    name: "W4",
    about: "lateness of many timers that come due within 2 s",
    metrics: &[
        Metric::less("p50", "ms"),
        Metric::less("p99", "ms"),
        Metric::longest("max", "ms"),
        Metric::less("CPU", "s"),
    ],
    cases: &[Case::of("spread over 2 s", 1)],
    ..INSTANT
};

pub(super) const INSTANT: Workload = Workload {
    name: "W4i",
    about: "how long many timers take that come due at once",
    metrics: &[
        Metric::less("last ran", "ms after it"),
        Metric::less("CPU", "s"),
    ],
    cases: &[Case::of("one instant", 1)],
    // Timers.
    amount: [1_000_000, 100_000, 1_000],
    children: Children::Kept,
    ..Workload::DEFAULT
};

pub(super) const INSTANT_BY_HANDLE: Workload = Workload {
    name: "W4h",
    about: "the same by handle",
    by: By::Handle,
    ..INSTANT
};

const SPAN: Duration = Duration::from_secs(2);
/// Time for arming: this, and this for each timer.
const LEAD: Duration = Duration::from_millis(200);
const LEAD_EACH: Duration = Duration::from_nanos(2_000);
/// So long the last one may be late. A round that takes longer has lost a timer.
const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn serve_spread<S: Keyed>(child: &mut Child) -> io::Result<()> {
    let figures = |lateness: &Lateness, _| lateness.figures(&[500, 990]);
    serve(child, &S::new(Tasks::Short), SPAN, S::start, figures)
}

pub(super) fn serve_instant<S: Keyed>(child: &mut Child) -> io::Result<()> {
    serve_at_once(child, &S::new(Tasks::Short), S::start)
}

pub(super) fn serve_instant_by_handle<S: Handles>(child: &mut Child) -> io::Result<()> {
    // A handle that is dropped lets its timer run.
    let start = |system: &S, key, delay| drop(system.start(key, delay));
    serve_at_once(child, &S::new(Tasks::Short), start)
}

fn serve_at_once<S: System>(
    child: &mut Child,
    system: &S,
    start: impl Fn(&S, u64, Duration),
) -> io::Result<()> {
    let figures = |lateness: &Lateness, instant| vec![Some(lateness.last_ran_after(instant))];
    serve(child, system, Duration::ZERO, start, figures)
}

fn serve<S: System>(
    child: &mut Child,
    system: &S,
    span: Duration,
    start: impl Fn(&S, u64, Duration),
    figures: impl Fn(&Lateness, Instant) -> Vec<Option<f64>>,
) -> io::Result<()> {
    expect_stamps();
    child.filled(|| ())?;
    child.rounds(|request| {
        let mut lead = LEAD + LEAD_EACH * request.amount as u32;
        loop {
            let fired_before = fired_so_far();
            let began = Instant::now();
            let first = began + lead;
            arm(system, request, first, span, &start);
            let in_time = Instant::now() < first;
            let used = Used::now();
            wait_until_fired(fired_before + request.amount, lead + span + LIMIT);
            let cpu = used.cpu_since();
            if !in_time {
                take_lateness();
                lead *= 2;
                continue;
            }
            let lateness = lateness_of::<S>(request.amount);
            let mut figures = figures(&lateness, first);
            figures.push(cpu.map(|cpu| cpu.as_secs_f64()));
            return Measured::since(began, figures);
        }
    })
}

/// Arms all of them, evenly over `span` from `first` on, in random order.
fn arm<S: System>(
    system: &S,
    request: &Request,
    first: Instant,
    span: Duration,
    start: impl Fn(&S, u64, Duration),
) {
    let count = request.amount as u32;
    let mut places: Vec<u32> = (0..count).collect();
    let mut rng = Random::new(request.seed);
    for left in (1..places.len()).rev() {
        places.swap(left, rng.below(left as u64 + 1) as usize);
    }
    system.on_thread(|| {
        for number in places {
            let due = first + span.mul_f64(f64::from(number) / f64::from(count));
            let long = false;
            let key = Stamp { due, long, number }.encode();
            start(system, key, due.saturating_duration_since(Instant::now()));
        }
    });
    system.settle();
}
