//! Figures, as JSON and as a table.

use serde::{Deserialize, Serialize};

use crate::machine::{Machine, Version};
use crate::wire::{Filled, Reply};
use crate::workloads::{self, Better, OfRounds, Workload};

/// Everything that a run found out.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) versions: Vec<Version>,
    pub(crate) commit: Option<String>,
    pub(crate) command: String,
    /// Full, quick or smoke.
    pub(crate) form: String,
    pub(crate) started_unix: u64,
    pub(crate) seconds: f64,
    /// An ordinary round trip between two cores: the lower quartile of the run.
    pub(crate) ping_ns: Option<f64>,
    pub(crate) figures: Vec<Figure>,
    /// Points that could not be measured, with the reason.
    pub(crate) failures: Vec<String>,
    /// Systems that could not be measured, a line each.
    #[serde(default)]
    pub(crate) skipped: Vec<String>,
}

/// One system at one point.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) workload: String,
    pub(crate) case: String,
    pub(crate) threads: usize,
    pub(crate) keys: u64,
    pub(crate) system: String,
    pub(crate) metrics: Vec<Metric>,
    /// How much a round did, in the workload's own measure.
    pub(crate) amount: u64,
    pub(crate) rounds: Vec<Round>,
    /// Those that were done again.
    pub(crate) discarded: Vec<Round>,
    /// Rounds that were done again: the machine was in its slow mode, or others kept it busy.
    pub(crate) repeated_slow: u32,
    pub(crate) repeated_disturbed: u32,
    /// Rounds that count although they should have been repeated once more.
    pub(crate) kept_disturbed: u32,
    pub(crate) fills: Vec<Filled>,
}

/// What the figures of a round mean, one after the other.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) unit: String,
    pub(crate) less_is_better: bool,
    /// The least of the rounds stands for them, not the median.
    pub(crate) least: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Round {
    pub(crate) figures: Vec<Option<f64>>,
    pub(crate) seconds: f64,
    pub(crate) ping_ns: Option<f64>,
    pub(crate) other_cores_busy: Option<f64>,
    pub(crate) disturbed: bool,
    pub(crate) fired: u64,
    /// Timers that ran before they were due, where a workload looks at that.
    #[serde(default)]
    pub(crate) early: u64,
}

impl Round {
    pub(crate) fn of(reply: Reply) -> Self {
        Round {
            figures: reply.figures,
            seconds: reply.seconds,
            ping_ns: reply.ping_ns,
            other_cores_busy: reply.others,
            disturbed: reply.disturbed,
            fired: reply.fired,
            early: reply.early,
        }
    }
}

/// What stands for the rounds, with their least and greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) typical: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

fn spread(figures: impl IntoIterator<Item = f64>, least: bool) -> Option<Spread> {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    let middle = sorted.len() / 2;
    let typical = if least {
        min
    } else if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    };
    Some(Spread { typical, min, max })
}

impl Figure {
    pub(crate) fn new(workload: &Workload, case: usize, keys: u64, system: &str) -> Self {
        let metrics = workload.metrics.iter().map(|metric| Metric {
            name: metric.name.to_owned(),
            unit: metric.unit.to_owned(),
            less_is_better: metric.better == Better::Less,
            least: metric.of_rounds == OfRounds::Least,
        });
        Figure {
            workload: workload.name.to_owned(),
            case: workload.cases[case].name.to_owned(),
            threads: workload.cases[case].threads,
            keys,
            system: system.to_owned(),
            metrics: metrics.collect(),
            amount: 0,
            rounds: Vec::new(),
            discarded: Vec::new(),
            repeated_slow: 0,
            repeated_disturbed: 0,
            kept_disturbed: 0,
            fills: Vec::new(),
        }
    }

    /// What the rounds say of the metric with this number.
    pub(crate) fn spread(&self, metric: usize) -> Option<Spread> {
        let figures = self
            .rounds
            .iter()
            .filter_map(|round| *round.figures.get(metric)?);
        spread(figures, self.metrics.get(metric)?.least)
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.system.starts_with("tourbillon")
    }

    /// What the rounds say of the metric with this name, and its unit.
    pub(crate) fn named(&self, metric: &str) -> Option<(Spread, &str)> {
        let number = self.metrics.iter().position(|m| m.name == metric)?;
        Some((self.spread(number)?, &self.metrics[number].unit))
    }

    /// The number of keys, in words.
    pub(crate) fn size(&self) -> String {
        short(self.keys)
    }

    fn is_beside(&self, other: &Figure) -> bool {
        (&self.workload, &self.case, self.keys) == (&other.workload, &other.case, other.keys)
    }

    /// How many times better than `other`.
    pub(crate) fn over(&self, other: &Figure, metric: usize) -> Option<f64> {
        let ratio = self.spread(metric)?.typical / other.spread(metric)?.typical;
        let ratio = if self.metrics[metric].less_is_better {
            1.0 / ratio
        } else {
            ratio
        };
        Some(ratio).filter(|ratio| ratio.is_finite())
    }

    /// The rounds that count, and what had to be repeated.
    fn rounds_in_words(&self) -> String {
        let mut words = self.rounds.len().to_string();
        for (count, what) in [
            (self.repeated_slow, "slow repeated"),
            (self.repeated_disturbed, "disturbed repeated"),
            (self.kept_disturbed, "disturbed kept"),
        ] {
            if count > 0 {
                words += &format!(", {count} {what}");
            }
        }
        let early: u64 = self.rounds.iter().map(|round| round.early).sum();
        if early > 0 {
            words += &format!(", {early} timers early");
        }
        words
    }
}

/// What the columns mean.
pub(crate) const LEGEND: &str = "\
A figure is the median of the rounds, or the least of them for a maximum, since being preempted alone \
makes some milliseconds (so a maximum can be below a percentile). The ratio says how many times better \
the first system of a point is; below 1 it is behind.
";

/// A row of the table, in words.
#[derive(Debug, Default)]
pub(crate) struct Row {
    /// Set in the first row of a point.
    pub(crate) point: String,
    pub(crate) system: String,
    pub(crate) typical: String,
    pub(crate) range: String,
    /// How many times better than this one the first system of the point is.
    pub(crate) ratio: String,
    pub(crate) rounds: String,
}

impl Report {
    /// What was run, where and with what; a line each.
    pub(crate) fn circumstances(&self) -> Vec<(&'static str, String)> {
        let versions: Vec<String> = self
            .versions
            .iter()
            .map(|version| format!("{} {}", version.name, version.version))
            .collect();
        let mut lines = vec![
            ("machine", self.machine.line()),
            ("versions", versions.join(", ")),
        ];
        let commit = self.commit.clone();
        lines.push(("commit", commit.unwrap_or_else(|| "unknown".to_owned())));
        lines.push(("command", self.command.clone()));
        lines.push((
            "form",
            format!("{}, {:.1} min", self.form, self.seconds / 60.0),
        ));
        if let Some(ns) = self.ping_ns {
            lines.push(("ping-pong", format!("core to core and back {ns:.0} ns")));
        }
        lines.extend(self.skipped.iter().map(|line| ("skipped", line.clone())));
        lines
    }

    /// For people: a row per point, metric and system; the systems of a point stand together.
    pub(crate) fn rows(&self, workload: &str) -> Vec<Row> {
        let figures: Vec<&Figure> = self
            .figures
            .iter()
            .filter(|figure| figure.workload == workload)
            .collect();
        let mut rows = Vec::new();
        for lead in &figures {
            let beside: Vec<&&Figure> = figures.iter().filter(|f| f.is_beside(lead)).collect();
            if !std::ptr::eq(*beside[0], *lead) {
                continue;
            }
            for (number, metric) in lead.metrics.iter().enumerate() {
                for figure in &beside {
                    let leads = std::ptr::eq(**figure, *lead);
                    rows.push(Row::of(figure, lead, leads, number, metric));
                }
            }
        }
        rows
    }

    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        for (name, value) in self.circumstances() {
            text += &format!("{name:<9} {value}\n");
        }
        text += LEGEND;
        for workload in workloads::ALL {
            let rows = self.rows(workload.name);
            if rows.is_empty() {
                continue;
            }
            text += &format!("\n{}: {}\n", workload.name, workload.about);
            text += &align(&rows);
        }
        text
    }
}

impl Row {
    fn of(figure: &Figure, lead: &Figure, leads: bool, number: usize, metric: &Metric) -> Self {
        let (typical, range) = figure
            .spread(number)
            .map_or_else(Default::default, |spread| {
                (
                    format!("{} {}", digits(spread.typical), metric.unit),
                    format!("{} - {}", digits(spread.min), digits(spread.max)),
                )
            });
        // Who may be early is not late; and a thousandth of nothing is no ratio.
        let early = figure.rounds.iter().any(|round| round.early > 0);
        let seen = |figure: &Figure| figure.spread(number).is_some_and(|s| s.typical >= 0.005);
        let ratio = lead
            .over(figure, number)
            .filter(|_| !leads && !early && seen(lead) && seen(figure))
            .map_or(String::new(), |ratio| format!("{ratio:.2}x"));
        let mut point = String::new();
        if leads {
            if figure.keys > 0 || !workloads::has_no_keys(&figure.workload) {
                point = format!("{}, ", short(figure.keys));
            }
            point += &figure.case;
            if !metric.name.is_empty() {
                point += &format!(": {}", metric.name);
            }
        }
        Row {
            point,
            system: figure.system.clone(),
            typical,
            range,
            ratio,
            rounds: figure.rounds_in_words(),
        }
    }

    pub(crate) const HEAD: [&'static str; 6] =
        ["", "system", "figure", "min - max", "ratio", "rounds"];

    pub(crate) fn cells(&self) -> [&str; 6] {
        [
            &self.point,
            &self.system,
            &self.typical,
            &self.range,
            &self.ratio,
            &self.rounds,
        ]
    }
}

fn align(rows: &[Row]) -> String {
    let lines: Vec<[&str; 6]> = std::iter::once(Row::HEAD)
        .chain(rows.iter().map(Row::cells))
        .collect();
    let widths: [usize; 6] = std::array::from_fn(|column| {
        let cells = lines.iter().map(|line| line[column].len());
        cells.max().unwrap_or_default()
    });
    let mut text = String::new();
    for line in lines {
        let cells: Vec<String> = line
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Three digits that count.
pub(crate) fn digits(number: f64) -> String {
    let digits = if number >= 100.0 {
        0
    } else if number >= 10.0 {
        1
    } else {
        2
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
    use crate::workloads;

    #[test]
    fn the_median_is_between_the_others_and_the_least_is_the_least() {
        let of = |figures: &[f64], least| spread(figures.iter().copied(), least);
        assert_eq!(of(&[], false), None);
        let odd = of(&[3.0, 1.0, 2.0], false).expect("figures");
        assert_eq!((odd.typical, odd.min, odd.max), (2.0, 1.0, 3.0));
        let even = of(&[4.0, 1.0, 2.0, 3.0], false).expect("figures");
        assert_eq!(even.typical, 2.5);
        let least = of(&[3.0, 1.0, 2.0], true).expect("figures");
        assert_eq!((least.typical, least.max), (1.0, 3.0));
    }

    pub(crate) fn figure(workload: &str, system: &str, value: f64) -> Figure {
        let workload = workloads::find(workload).expect("a workload");
        let mut figure = Figure::new(workload, 0, 1_000, system);
        figure.rounds.push(Round {
            figures: vec![Some(value); workload.metrics.len()],
            seconds: 1.0,
            ping_ns: None,
            other_cores_busy: None,
            disturbed: false,
            fired: 0,
            early: 0,
        });
        figure
    }

    #[test]
    fn a_ratio_above_one_means_that_the_first_is_better() {
        for (workload, ours, peers) in [("W1k", 100.0, 300.0), ("W2", 6.0, 2.0)] {
            let peer = figure(workload, "peer", peers);
            let ratio = figure(workload, "ours", ours).over(&peer, 0);
            assert!(ratio.is_some_and(|ratio| (ratio - 3.0).abs() < 1e-9));
        }
    }

    #[test]
    fn the_systems_of_a_point_stand_together_in_columns() {
        let mut report = Report {
            machine: Machine::here(),
            versions: Vec::new(),
            commit: None,
            command: "a command".to_owned(),
            form: "full".to_owned(),
            failures: Vec::new(),
            skipped: Vec::new(),
            started_unix: 0,
            seconds: 60.0,
            ping_ns: None,
            figures: vec![figure("W2", "a", 6.0), figure("W2", "b", 2.0)],
        };
        let rows = report.rows("W2");
        assert_eq!(rows[0].point, "1 k, 1 thread");
        assert_eq!((&*rows[1].point, &*rows[1].ratio), ("", "3.00x"));
        let text = report.table();
        let at = |text: &str, what| text.lines().find_map(|line| line.find(what));
        assert_eq!(at(&text, "6.00 Mops/s"), at(&text, "2.00 Mops/s"));
        report.figures.clear();
        assert!(report.rows("W2").is_empty());
        assert_eq!(short(10_000_000), "10 M");
        assert_eq!(short(100_000), "100 k");
    }
}
