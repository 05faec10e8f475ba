//! How long a run may take, and how many rounds of each point fit into that.
//!
//! The number of systems grows with every peer, but a form has to end in its time. So each point
//! has an estimated cost, and where all of them take too long, the points that cost most lose
//! rounds first. The run says so for each of them, and the report keeps it. Estimates are corrected
//! by what the points before took.

use std::time::{Duration, Instant};

use crate::figures::short;
use crate::workload::{Children, Form, Workload};

/// The time of each form. A little is left for the last round and the files.
const TIME: [Option<Duration>; 3] = [
    Some(Duration::from_secs(59 * 60)),
    Some(Duration::from_secs(285)),
    None,
];
/// Rounds are cut down to these numbers, first to the one and then to the other. A median needs
/// three.
const FLOORS: [usize; 2] = [3, 1];
/// Around a round: two ping-pongs, and a look at whether the machine is calm.
const AROUND_A_ROUND: f64 = 0.12;

/// Seconds that a round of one system takes, about.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// However little it does.
    least: f64,
    /// For each unit of the workload's amount.
    per_amount: f64,
    /// For each key; in a workload whose processes are kept, once for all rounds.
    per_key: f64,
}

/// On two cores at 2.5 GHz, as a mean over the systems.
fn cost(workload: &Workload) -> Cost {
    let (least, per_amount, per_key) = match workload.name {
        "W1" | "W1k" | "W1x" => (0.0, 0.4e-6, 0.5e-6),
        "W2" | "W2t" => (0.0, 0.5e-6, 0.5e-6),
        "W3" => (0.2, 1.05e-3, 0.0),
        "W4" => (2.2, 2.2e-6, 0.0),
        "W4i" | "W4h" => (0.2, 2.4e-6, 0.0),
        // Some systems sleep in one task after the other.
        "W5" => (0.2, 1.9e-3, 0.0),
        "W5b" => (0.2, 1.1e-3, 0.0),
        "W6" => (0.1, 1.0e-3, 0.5e-6),
        "W7" => (0.0, 0.0, 0.6e-6),
        "W8" | "W8x" => (0.0, 0.0, 0.6e-6),
        "W9" => (0.1, 1.05e-3, 0.6e-6),
        "churn" => (0.1, 0.0, 0.0),
        "S1" => (0.0, 0.7e-6, 0.7e-6),
        "S2" => (0.0, 2.7e-6, 0.7e-6),
        "S3" => (0.0, 0.0, 0.8e-6),
        "S4" => (0.1, 1.05e-3, 0.0),
        // Not measured yet: most workloads are faster.
        _ => (1.0, 0.0, 1.0e-6),
    };
    Cost {
        least,
        per_amount,
        per_key,
    }
}

/// A workload and how many keys it has, if that is a question.
pub(super) fn point(workload: &Workload, keys: u64) -> String {
    if workload.has_no_keys() {
        workload.name.to_owned()
    } else {
        format!("{} {}", workload.name, short(keys))
    }
}

/// A point of the plan: a workload with one number of keys, in all its cases and with all its
/// systems.
#[derive(Debug)]
pub(super) struct Point {
    pub(super) workload: &'static Workload,
    pub(super) keys: u64,
    /// Of each system and case.
    pub(super) rounds: usize,
    /// Seconds of everything that is done once.
    fills: f64,
    /// Seconds of one round of all systems in all cases.
    round: f64,
}

impl Point {
    pub(super) fn new(
        workload: &'static Workload,
        keys: u64,
        amount: u64,
        systems: usize,
        cases: usize,
        rounds: usize,
    ) -> Self {
        let cost = cost(workload);
        let work = cost.least + cost.per_amount * amount as f64;
        let fill = cost.per_key * keys as f64;
        let systems = systems as f64;
        let round = match workload.children {
            Children::Kept => systems * (work + AROUND_A_ROUND),
            Children::Fresh => systems * (work + fill + AROUND_A_ROUND),
            Children::Together => work + AROUND_A_ROUND,
        };
        let fills = match workload.children {
            Children::Fresh => 0.0,
            Children::Kept | Children::Together => systems * fill,
        };
        // The round before those that count is a quarter of one.
        let warm_up = if workload.warm_up { 0.25 * round } else { 0.0 };
        let cases = cases as f64;
        Point {
            workload,
            keys,
            rounds,
            fills: fills + cases * warm_up,
            round: cases * round,
        }
    }

    /// Returns how many seconds the point takes with `rounds` rounds.
    fn seconds(&self, rounds: usize) -> f64 {
        self.fills + self.round * rounds as f64
    }
}

/// The time of a run, and what it has still to do.
#[derive(Debug)]
pub(super) struct Plan {
    began: Instant,
    /// `None` if it may take as long as it likes.
    time: Option<Duration>,
    /// The next one last.
    left: Vec<Point>,
    /// Seconds of the points that are done, by estimate and by the clock.
    estimated: f64,
    took: f64,
}

impl Plan {
    /// A plan for these points, in their order. `time` in place of the time of the form.
    pub(super) fn new(form: Form, time: Option<Duration>, mut points: Vec<Point>) -> Self {
        points.reverse();
        Plan {
            began: Instant::now(),
            time: time.or(TIME[form as usize]),
            left: points,
            estimated: 0.0,
            took: 0.0,
        }
    }

    /// Without a bound of its time.
    pub(super) fn unbounded(mut self) -> Self {
        self.time = None;
        self
    }

    /// How many times slower than estimated the machine is. One point alone says little.
    fn scale(&self) -> f64 {
        const AS_ESTIMATED: f64 = 20.0;
        let scale = (self.took + AS_ESTIMATED) / (self.estimated + AS_ESTIMATED);
        scale.clamp(0.3, 10.0)
    }

    fn seconds_left(&self) -> Option<f64> {
        let left = self.time?.saturating_sub(self.began.elapsed());
        Some(left.as_secs_f64())
    }

    /// The next point with the rounds that fit, or nothing at the end; and the points for which
    /// there is no time at all.
    pub(super) fn next(&mut self) -> (Option<Point>, Vec<Point>) {
        let mut out = Vec::new();
        if let Some(seconds) = self.seconds_left() {
            let seconds = seconds / self.scale();
            out = fit(&mut self.left, seconds);
        }
        (self.left.pop(), out)
    }

    /// Says what a point took.
    pub(super) fn done(&mut self, point: &Point, rounds: usize, took: Duration) {
        self.estimated += point.seconds(rounds);
        self.took += took.as_secs_f64();
    }

    /// Whether there is time for another `round` of a point that has done so many rounds, without
    /// taking it from the points that come after it.
    pub(super) fn has_time(&self, rounds_done: usize, round: Duration) -> bool {
        let Some(left) = self.seconds_left() else {
            return true;
        };
        // Before a median is possible, others rather lose theirs.
        let floor = FLOORS[usize::from(rounds_done < FLOORS[0])];
        let rest = |point: &Point| point.seconds(point.rounds.min(floor));
        let rest: f64 = self.left.iter().map(rest).sum();
        round.as_secs_f64() + rest * self.scale() <= left
    }

    /// What is left after the current point, with the time that all of it may take.
    pub(super) fn ahead(&self) -> String {
        let seconds: f64 = self.left.iter().map(|p| p.seconds(p.rounds)).sum();
        let count = self.left.len();
        match count {
            0 => "the last point".to_owned(),
            _ => format!(
                "then {count} points, about {}",
                clock(seconds * self.scale())
            ),
        }
    }

    /// The time so far, and the bound.
    pub(super) fn so_far(&self) -> String {
        let now = clock(self.began.elapsed().as_secs_f64());
        match self.time {
            Some(time) => format!("{now} of {}", clock(time.as_secs_f64())),
            None => now,
        }
    }

    /// At the beginning: what there is to do, and how long it may take.
    pub(super) fn in_words(&self) -> String {
        let planned: f64 = self.left.iter().map(|p| p.seconds(p.rounds)).sum();
        let bound = match self.time {
            Some(time) => format!(", {} at most", clock(time.as_secs_f64())),
            None => String::new(),
        };
        let count = self.left.len();
        format!("{count} points, about {} as planned{bound}", clock(planned))
    }
}

/// Cuts rounds down until the points fit into so many seconds: those of the costliest point first,
/// for all points down to three, then down to one. Points that do not fit even then are taken out
/// and returned.
fn fit(points: &mut Vec<Point>, seconds: f64) -> Vec<Point> {
    let total = |points: &[Point]| -> f64 { points.iter().map(|p| p.seconds(p.rounds)).sum() };
    for floor in FLOORS {
        while total(points) > seconds {
            let costliest = points
                .iter_mut()
                .filter(|point| point.rounds > floor)
                .max_by(|a, b| (a.round * a.rounds as f64).total_cmp(&(b.round * b.rounds as f64)));
            let Some(costliest) = costliest else { break };
            costliest.rounds -= 1;
        }
    }
    let mut out = Vec::new();
    while total(points) > seconds && !points.is_empty() {
        let by_cost = |(_, a): &(usize, &Point), (_, b): &(usize, &Point)| {
            a.seconds(a.rounds).total_cmp(&b.seconds(b.rounds))
        };
        let (costliest, _) = points
            .iter()
            .enumerate()
            .max_by(by_cost)
            .expect("one is left");
        out.push(points.remove(costliest));
    }
    out
}

/// Minutes and seconds.
pub(super) fn clock(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systems;
    use crate::workloads::{self, find};

    fn point(workload: &str, systems: usize) -> Point {
        let workload = find(workload).expect("a workload");
        Point::new(
            workload,
            0,
            workload.amount_in(Form::Full),
            systems,
            workload.cases.len(),
            5,
        )
    }

    /// Everything of a form, with so many times the systems.
    fn all(form: Form, times: usize) -> Vec<Point> {
        let mut points = Vec::new();
        for workload in workloads::ALL {
            let serving = systems::ALL
                .iter()
                .filter(|system| system.serves(workload).is_some());
            let count = serving.count() * times;
            for keys in workload.keys_in(form) {
                points.push(Point::new(
                    workload,
                    *keys,
                    workload.amount_in(form),
                    count,
                    workload.cases.len(),
                    5,
                ));
            }
        }
        points
    }

    fn seconds(points: &[Point]) -> f64 {
        points.iter().map(|point| point.seconds(point.rounds)).sum()
    }

    #[test]
    fn every_workload_has_a_cost() {
        for workload in workloads::ALL {
            let cost = cost(workload);
            assert!(
                cost.least != 1.0 || cost.per_key != 1.0e-6,
                "{}",
                workload.name
            );
        }
    }

    #[test]
    fn both_forms_fit_into_their_time() {
        for form in [Form::Full, Form::Quick] {
            let time = TIME[form as usize].expect("it has one").as_secs_f64();
            let mut points = all(form, 1);
            let before = points.len();
            let out = fit(&mut points, time);
            assert!(out.is_empty(), "{form:?}: there is no time for {out:?}");
            assert!(seconds(&points) <= time);
            assert_eq!(points.len(), before);
            // With far too many systems, what is left still fits.
            let mut points = all(form, 20);
            assert!(!fit(&mut points, time).is_empty());
            assert!(!points.is_empty() && seconds(&points) <= time);
        }
    }

    #[test]
    fn the_costliest_loses_rounds_first_and_keeps_three_of_them_as_long_as_it_can() {
        let points = || vec![point("W3", 4), point("churn", 4)];
        let all = seconds(&points());
        let mut cut = points();
        assert!(fit(&mut cut, all).is_empty());
        assert_eq!([cut[0].rounds, cut[1].rounds], [5, 5]);
        assert!(fit(&mut cut, 0.7 * all).is_empty());
        assert_eq!([cut[0].rounds, cut[1].rounds], [3, 5]);
        assert!(fit(&mut cut, 0.3 * all).is_empty());
        assert_eq!([cut[0].rounds, cut[1].rounds], [1, 3]);
        let out = fit(&mut cut, 0.05 * all);
        assert_eq!(out.len(), 1);
        assert_eq!(
            (out[0].workload.name, cut[0].workload.name),
            ("W3", "churn")
        );
    }

    #[test]
    fn a_slow_machine_does_less() {
        let time = Duration::from_secs(300);
        let points = vec![point("W1k", 4), point("W4", 4), point("W4", 4)];
        let mut plan = Plan::new(Form::Full, Some(time), points);
        let mut next = || {
            let (point, out) = plan.next();
            assert!(out.is_empty(), "nothing is left out");
            point.expect("three points")
        };
        let first = next();
        assert_eq!((first.workload.name, first.rounds), ("W1k", 5));
        // Ten times what was estimated.
        let took = Duration::from_secs_f64(10.0 * first.seconds(5));
        plan.done(&first, 5, took);
        let second = plan.next().0.expect("two points");
        assert!(second.rounds < 5, "{second:?}");
        assert!(plan.has_time(1, Duration::from_secs(1)));
        assert!(!plan.has_time(3, time));
        let unbounded = plan.unbounded();
        assert!(unbounded.has_time(3, time));
    }
}
