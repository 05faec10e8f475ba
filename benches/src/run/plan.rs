//! How long a run may take, and what part of that each point has.
//!
//! The number of systems grows with every peer, but a form has to end in its time. So each point
//! has an estimated cost, and of the time that is left the part that this cost is of all that is
//! left. A point that would take longer does fewer rounds, at least one. What a point does not need
//! is there for those after it. The run names each cut, and the report keeps it.

use std::time::{Duration, Instant};

use crate::figures::short;
use crate::workload::{Children, Form, Workload};

/// The time of each form. A little is left for the last round and the files.
const TIME: [Option<Duration>; 3] = [
    Some(Duration::from_secs(59 * 60)),
    Some(Duration::from_secs(285)),
    None,
];
/// Around a round: two ping-pongs, and a look at whether the machine is calm.
const AROUND_A_ROUND: f64 = 0.12;

/// Seconds that a round of one system takes, about: however little it does, for each unit of the
/// workload's amount, and for each key. In a workload whose processes are kept, the last once for
/// all rounds. On two cores at 2.5 GHz, as a mean over the systems.
fn cost(workload: &Workload) -> (f64, f64, f64) {
    match workload.name {
        "W1" | "W1k" | "W1x" => (0.0, 0.4e-6, 0.5e-6),
        "W2" | "W2t" => (0.0, 0.5e-6, 0.5e-6),
        "W3" => (0.2, 1.05e-3, 0.0),
        "W4" => (2.2, 2.2e-6, 0.0),
        "W4i" | "W4h" => (0.2, 2.4e-6, 0.0),
        // Some systems sleep in one task after the other.
        "W5" => (0.2, 1.9e-3, 0.0),
        "W5b" => (0.2, 1.1e-3, 0.0),
        "W6" => (0.1, 1.0e-3, 0.5e-6),
        "W7" | "W8" | "W8x" => (0.0, 0.0, 0.6e-6),
        "W10" | "S5" => (0.0, 0.4e-6, 0.5e-6),
        "W9" => (0.1, 1.05e-3, 0.6e-6),
        "churn" => (0.1, 0.0, 0.0),
        "S1" => (0.0, 0.7e-6, 0.7e-6),
        "S2" => (0.0, 2.7e-6, 0.7e-6),
        "S3" => (0.0, 0.0, 0.8e-6),
        "S4" => (0.1, 1.05e-3, 0.0),
        // Not measured yet: most workloads are faster.
        _ => (1.0, 0.0, 1.0e-6),
    }
}

/// A workload and how many keys it has, if that is a question.
pub(super) fn point(workload: &Workload, keys: u64) -> String {
    match workload.has_no_keys() {
        true => workload.name.to_owned(),
        false => format!("{} {}", workload.name, short(keys)),
    }
}

/// A point of the plan: a workload with one number of keys, in all its cases and with all its
/// systems.
#[derive(Debug)]
pub(super) struct Point {
    pub(super) workload: &'static Workload,
    pub(super) keys: u64,
    /// When it should be done. `None` if it may take as long as it likes.
    pub(super) until: Option<Instant>,
    /// About how many seconds it takes with all of its rounds.
    seconds: f64,
}

impl Point {
    pub(super) fn new(
        workload: &'static Workload,
        keys: u64,
        amount: u64,
        (systems, cases, rounds): (usize, usize, usize),
    ) -> Self {
        let (least, per_amount, per_key) = cost(workload);
        let fill = per_key * keys as f64;
        let round = least + per_amount * amount as f64 + AROUND_A_ROUND;
        let (systems, cases) = (systems as f64, cases as f64);
        // The round before those that count is a quarter of one.
        let rounds = rounds as f64 + if workload.warm_up { 0.25 } else { 0.0 };
        let seconds = match workload.children {
            Children::Kept => systems * (fill + cases * rounds * round),
            Children::Fresh => systems * cases * rounds * (round + fill),
            Children::Together => systems * fill + cases * rounds * round,
        };
        Point {
            workload,
            keys,
            until: None,
            seconds,
        }
    }
}

/// The time of a run, and what it has still to do.
#[derive(Debug)]
pub(super) struct Plan {
    began: Instant,
    /// `None` if it may take as long as it likes.
    time: Option<Duration>,
    /// The next one last.
    pub(super) left: Vec<Point>,
}

impl Plan {
    /// A plan for these points, in their order. `time` in place of the time of the form.
    pub(super) fn new(form: Form, time: Option<Duration>, mut points: Vec<Point>) -> Self {
        points.reverse();
        Plan {
            began: Instant::now(),
            time: time.or(TIME[form as usize]),
            left: points,
        }
    }

    /// Without a bound of its time.
    pub(super) fn unbounded(mut self) -> Self {
        self.time = None;
        self
    }

    /// Seconds of all that is left, about.
    pub(super) fn estimate(&self) -> f64 {
        self.left.iter().map(|point| point.seconds).sum()
    }

    /// The next point with its part of the time, or nothing at the end or when the time is over.
    pub(super) fn next(&mut self) -> Option<Point> {
        let so_far = self.began.elapsed();
        let left = self.time.map(|time| time.saturating_sub(so_far));
        if left == Some(Duration::ZERO) {
            return None;
        }
        let estimate = self.estimate();
        let mut point = self.left.pop()?;
        let part = left.map(|left| left.mul_f64(point.seconds / estimate));
        point.until = part.map(|part| Instant::now() + part);
        Some(point)
    }

    /// The time so far, and the bound.
    pub(super) fn so_far(&self) -> String {
        let now = clock(self.began.elapsed().as_secs_f64());
        let bound = |time: Duration| format!(" of {}", clock(time.as_secs_f64()));
        now + &self.time.map(bound).unwrap_or_default()
    }

    /// What there is to do, and about how long it takes.
    pub(super) fn ahead(&self) -> String {
        let (points, time) = (self.left.len(), clock(self.estimate()));
        format!("{points} points, about {time}")
    }
}

/// Minutes and seconds.
fn clock(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::{self, find};

    #[test]
    fn every_workload_has_a_cost() {
        for workload in workloads::ALL {
            assert_ne!(cost(workload), (1.0, 0.0, 1.0e-6), "{}", workload.name);
        }
    }

    #[test]
    fn a_point_has_the_part_of_the_time_that_it_costs() {
        let of = |name: &str, systems| {
            let workload = find(name).expect("a workload");
            Point::new(workload, 0, workload.amount_in(Form::Full), (systems, 1, 5))
        };
        let time = Duration::from_secs(300);
        let points = || vec![of("W3", 6), of("W3", 2), of("churn", 1)];
        let mut plan = Plan::new(Form::Full, Some(time), points());
        let now = Instant::now();
        let mut part = || Some(plan.next()?.until? - now);
        let first = part().expect("three points");
        assert!(first > time / 2 && first < time * 3 / 4, "{first:?}");
        // What the first one does not need is there for the others.
        let second = part().expect("two points");
        assert!(second > time * 9 / 10 && second <= time, "{second:?}");
        assert!(part().is_some() && part().is_none());
        let mut unbounded = Plan::new(Form::Full, Some(time), points()).unbounded();
        assert!(unbounded.next().is_some_and(|point| point.until.is_none()));
        let mut over = Plan::new(Form::Full, Some(Duration::ZERO), points());
        assert!(over.next().is_none() && over.left.len() == 3);
    }
}
