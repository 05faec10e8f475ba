//! Figures as rows: the only form in which they are stored, compared, and shown.
//!
//! ```text
//! {"machine":{..},"commit":"..","command":"..",..}               the first line of a file: a run
//! {"workload":"W2","system":"heap",..,"figures":{"":[2.1,2.2]}}  each other line: a row of it
//! ```
//!
//! A row is one system at one point. With several threads, each mode of the machine has a row of
//! its own. So no median and no ratio is over rounds of different modes.

use std::collections::BTreeMap;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::machine::{self, Machine, Version};
use crate::mode::{Borders, Mode};
use crate::systems;
use crate::workload::{Form, Metric, Workload};
use crate::workloads;

/// A run, with everything that its figures depend on.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    pub(crate) machine: Machine,
    pub(crate) versions: Vec<Version>,
    pub(crate) commit: Option<String>,
    pub(crate) command: String,
    pub(crate) form: Form,
    pub(crate) started_unix: u64,
    pub(crate) seconds: f64,
    /// An ordinary round trip between two cores: the median of the run.
    pub(crate) ping_ns: Option<f64>,
    /// By which round trips the modes are told apart. `None` if they are not.
    pub(crate) borders: Option<Borders>,
    /// Points that could not be measured, with the reason.
    pub(crate) failures: Vec<String>,
    /// The points that got fewer rounds than planned, or none, because the time was over.
    pub(crate) cuts: Vec<String>,
    /// Systems that could not be measured, a line each.
    pub(crate) skipped: Vec<String>,
    #[serde(skip)]
    pub(crate) rows: Vec<Row>,
}

/// One system at one point, in one mode of the machine, with all of its rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    pub(crate) workload: &'static Workload,
    pub(crate) case: String,
    pub(crate) threads: usize,
    pub(crate) keys: u64,
    pub(crate) system: String,
    /// How much a round did, in the workload's own measure.
    pub(crate) amount: u64,
    /// `None` where rounds are not kept apart by mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<Mode>,
    /// What each round found out, by the name of the metric. `None` where the platform does not
    /// tell.
    pub(crate) figures: BTreeMap<String, Vec<Option<f64>>>,
    /// Rounds that were done again, since the mode changed meanwhile, since the machine was in its
    /// slow mode, or since others kept it busy. They are in no mode, so the system's first row has
    /// them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) mixed: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) slow: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) disturbed: u64,
    /// Rounds that count although they should have been repeated once more.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) kept_disturbed: u64,
    /// Timers that ran before they were due, where a workload looks at that.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) early: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Serialize for Workload {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name)
    }
}

impl<'de> Deserialize<'de> for &'static Workload {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        let none = || serde::de::Error::custom(format!("no workload is called {name:?}"));
        workloads::find(&name).ok_or_else(none)
    }
}

/// What stands for the rounds, with their least and greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) typical: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    fn of(figures: impl Iterator<Item = f64>, least: bool) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        let typical = if least { min } else { middle };
        Some(Spread { typical, min, max })
    }
}

impl Run {
    /// A run of this program, here and now, without rows yet.
    pub(crate) fn begin(form: Form, versions: Vec<Version>) -> Self {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let profile = ["--release ", ""][usize::from(cfg!(debug_assertions))];
        let command = format!("cargo run {profile}-p benches -- {}", args.join(" "));
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Run {
            machine: Machine::here(),
            versions,
            commit: machine::commit(),
            command: command.trim_end_matches(" -- ").to_owned(),
            form,
            started_unix: since.map_or(0, |since| since.as_secs()),
            ..Run::default()
        }
    }

    /// Whether all points were measured.
    pub(crate) fn outcome(&self) -> io::Result<()> {
        match self.failures.len() {
            0 => Ok(()),
            count => Err(io::Error::other(format!("{count} of the points failed"))),
        }
    }

    /// The text of a file. An error names the line.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        let head = lines.next().unwrap_or_default();
        let mut run: Run = serde_json::from_str(head).map_err(|error| no_row(1, &error))?;
        for (number, line) in (2..).zip(lines) {
            let row: Row = serde_json::from_str(line).map_err(|error| no_row(number, &error))?;
            row.check().map_err(|error| no_row(number, &error))?;
            run.rows.push(row);
        }
        Ok(run)
    }

    /// The text of a file that [`Run::parse`] reads.
    pub(crate) fn text(&self) -> serde_json::Result<String> {
        let rows = self.rows.iter().map(serde_json::to_string);
        let lines = std::iter::once(serde_json::to_string(self)).chain(rows);
        lines.map(|line| Ok(line? + "\n")).collect()
    }

    pub(crate) fn commit(&self) -> &str {
        self.commit.as_deref().unwrap_or("unknown")
    }

    /// The rows of the workload with this name.
    pub(crate) fn of(&self, workload: &str) -> impl Iterator<Item = &Row> {
        let rows = self.rows.iter();
        rows.filter(move |row| row.workload.name == workload)
    }

    /// Whether a system has a row of the mode that targets are judged in, at the point of this row.
    pub(crate) fn judges(&self, row: &Row) -> bool {
        let mut rows = self.of(row.workload.name);
        rows.any(|other| other.is_judged() && other.is_of_the_system_of(row))
    }
}

fn no_row(number: usize, error: &dyn std::fmt::Display) -> String {
    format!("line {number} is no row of figures: {error}")
}

impl Row {
    /// A row without rounds. A case has a name and a number of threads.
    pub(crate) fn new(
        workload: &'static Workload,
        (case, threads): (String, usize),
        keys: u64,
        system: String,
    ) -> Self {
        Row {
            workload,
            case,
            threads,
            keys,
            system,
            amount: 0,
            mode: None,
            figures: BTreeMap::new(),
            mixed: 0,
            slow: 0,
            disturbed: 0,
            kept_disturbed: 0,
            early: 0,
        }
    }

    fn check(&self) -> Result<(), String> {
        let metrics = self.workload.metrics;
        for (name, figures) in &self.figures {
            if !metrics.iter().any(|metric| metric.name == name) {
                return Err(format!("{} has no metric {name:?}", self.workload.name));
            }
            if figures.len() != self.rounds() {
                return Err(format!("the metric {name:?} has a round more or less"));
            }
        }
        Ok(())
    }

    /// What its rounds found out, in the workload's order.
    pub(crate) fn metrics(&self) -> impl Iterator<Item = &'static Metric> {
        let metrics = self.workload.metrics.iter();
        metrics.filter(|metric| self.figures.contains_key(metric.name))
    }

    pub(crate) fn metric(&self, name: &str) -> Option<&'static Metric> {
        self.metrics().find(|metric| metric.name == name)
    }

    pub(crate) fn rounds(&self) -> usize {
        self.figures.values().next().map_or(0, Vec::len)
    }

    /// What the rounds say of this metric.
    pub(crate) fn spread(&self, metric: &Metric) -> Option<Spread> {
        let figures = self.figures.get(metric.name)?;
        Spread::of(figures.iter().flatten().copied(), metric.least)
    }

    /// What the rounds say of the workload's first metric.
    pub(crate) fn first(&self) -> Option<Spread> {
        self.spread(self.workload.metrics.first()?)
    }

    /// How many times better than `other`.
    pub(crate) fn over(&self, other: &Row, metric: &Metric) -> Option<f64> {
        let ratio = self.spread(metric)?.typical / other.spread(metric)?.typical;
        let less = metric.less_is_better;
        Some(if less { 1.0 / ratio } else { ratio }).filter(|ratio| ratio.is_finite())
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.system.starts_with("tourbillon")
    }

    /// Why its system is a floor, if it is one.
    pub(crate) fn floor(&self) -> Option<&'static str> {
        systems::floor(&self.system)
    }

    /// A floor is none.
    pub(crate) fn is_peer(&self) -> bool {
        !self.is_ours() && self.floor().is_none()
    }

    /// Whether targets are judged by its rounds.
    pub(crate) fn is_judged(&self) -> bool {
        matches!(self.mode, None | Some(Mode::Near))
    }

    /// Whether both are of one point, in any mode.
    fn is_at_the_point_of(&self, other: &Row) -> bool {
        let same = (self.workload.name, self.keys) == (other.workload.name, other.keys);
        same && self.case == other.case
    }

    /// Whether both are of one system at one point, in any mode.
    pub(crate) fn is_of_the_system_of(&self, other: &Row) -> bool {
        self.system == other.system && self.is_at_the_point_of(other)
    }

    /// Whether both are of one point and one mode.
    pub(crate) fn is_beside(&self, other: &Row) -> bool {
        self.mode == other.mode && self.is_at_the_point_of(other)
    }

    /// The case, with the mode where rounds are kept apart.
    pub(crate) fn case_in_words(&self) -> String {
        match self.mode {
            Some(mode) => format!("{}, {}", self.case, mode.name()),
            None => self.case.clone(),
        }
    }
}

/// Three digits that count.
pub(crate) fn digits(number: f64) -> String {
    let digits = match number {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{number:.digits$}")
}

/// `10 M` rather than `10000000`.
pub(crate) fn short(keys: u64) -> String {
    match keys {
        0 => "0".to_owned(),
        _ if keys.is_multiple_of(1_000_000) => format!("{} M", keys / 1_000_000),
        _ if keys.is_multiple_of(1_000) => format!("{} k", keys / 1_000),
        _ => keys.to_string(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A row of one round, in which every metric has this value.
    pub(crate) fn row(workload: &str, system: &str, value: f64) -> Row {
        let workload = workloads::find(workload).expect("a workload");
        let case = &workload.cases_with(&[])[0];
        let case = (case.name.clone(), case.threads);
        let keys = if workload.has_no_keys() { 0 } else { 1_000 };
        let figures = workload.metrics.iter();
        let figures = figures.map(|metric| (metric.name.to_owned(), vec![Some(value)]));
        Row {
            figures: figures.collect(),
            ..Row::new(workload, case, keys, system.to_owned())
        }
    }

    pub(crate) fn with_keys(keys: u64, row: Row) -> Row {
        Row { keys, ..row }
    }

    /// Two threads, and a row of these rounds for each mode.
    pub(crate) fn in_modes(workload: &str, system: &str, modes: &[(Mode, &[f64])]) -> Vec<Row> {
        let of_mode = |(mode, rounds): &(Mode, &[f64])| {
            let mut row = row(workload, system, 0.0);
            (row.threads, row.case, row.mode) = (2, "2 threads".to_owned(), Some(*mode));
            for figures in row.figures.values_mut() {
                *figures = rounds.iter().copied().map(Some).collect();
            }
            row
        };
        modes.iter().map(of_mode).collect()
    }

    pub(crate) fn run(rows: Vec<Row>) -> Run {
        Run {
            command: "a command".to_owned(),
            borders: Some(Borders::default()),
            rows,
            ..Run::default()
        }
    }

    #[test]
    fn the_median_is_between_the_others_and_the_least_is_the_least() {
        for (figures, least, expected) in [
            (&[][..], false, None),
            (&[3.0, 1.0, 2.0], false, Some((2.0, 1.0, 3.0))),
            (&[4.0, 1.0, 2.0, 3.0], false, Some((2.5, 1.0, 4.0))),
            (&[3.0, 1.0, 2.0], true, Some((1.0, 1.0, 3.0))),
        ] {
            let found = Spread::of(figures.iter().copied(), least);
            assert_eq!(found.map(|s| (s.typical, s.min, s.max)), expected);
        }
    }

    #[test]
    fn a_ratio_above_one_means_that_the_first_is_better() {
        for (workload, ours, peers) in [("W1k", 100.0, 300.0), ("W2", 6.0, 2.0)] {
            let (ours, peer) = (row(workload, "ours", ours), row(workload, "peer", peers));
            let ratio = ours.over(&peer, &ours.workload.metrics[0]);
            assert!(ratio.is_some_and(|ratio| (ratio - 3.0).abs() < 1e-9));
        }
    }

    #[test]
    fn what_is_no_row_is_refused_with_its_line() {
        let mut early = row("W4", "b", 0.1);
        early.early = 3;
        let good = run(vec![early]).text().expect("plain data");
        let read = Run::parse(&good).expect("what was written");
        assert_eq!(read.text().expect("plain data"), good);
        assert_eq!(read.rows[0].early, 3);
        for (text, words) in [
            (String::new(), "line 1"),
            (format!("{good}\n"), "line 3"),
            (good.replace("\"W4\"", "\"W99\""), "no workload is called"),
            (good.replace("\"p50\"", "\"p49\""), "no metric \"p49\""),
            (good.replacen("[0.1]", "[0.1,1]", 1), "a round more or less"),
            (good.replace("\"keys\"", "\"key\""), "line 2 is no row of"),
            (good.replace("\"keys\"", "\"key\""), "unknown field"),
        ] {
            let error = Run::parse(&text).expect_err(words);
            assert!(error.contains(words), "{error}");
        }
    }
}
