//! Figures, as JSON and as a table.

use serde::Serialize;

use crate::machine::{Machine, Version};
use crate::wire::{Filled, Reply};
use crate::workloads::{Better, Workload};

/// Everything that a run found out.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) versions: Vec<Version>,
    pub(crate) commit: Option<String>,
    pub(crate) command: String,
    pub(crate) started_unix: u64,
    pub(crate) seconds: f64,
    /// The best round trip between two cores.
    pub(crate) ping_ns: Option<f64>,
    pub(crate) figures: Vec<Figure>,
}

/// One system at one point.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) workload: &'static str,
    pub(crate) case: &'static str,
    pub(crate) threads: usize,
    pub(crate) keys: u64,
    pub(crate) system: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) less_is_better: bool,
    pub(crate) rounds: Vec<Round>,
    /// Rounds that were done again: the machine was in its slow mode, or others kept it busy.
    pub(crate) repeated_slow: u32,
    pub(crate) repeated_disturbed: u32,
    /// Rounds that count although they should have been repeated once more.
    pub(crate) kept_disturbed: u32,
    pub(crate) fills: Vec<Filled>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Round {
    pub(crate) figure: f64,
    pub(crate) seconds: f64,
    pub(crate) ping_ns: Option<f64>,
    pub(crate) other_cores_busy: Option<f64>,
    pub(crate) fired: u64,
}

impl Round {
    pub(crate) fn of(reply: Reply) -> Self {
        Round {
            figure: reply.figure,
            seconds: reply.seconds,
            ping_ns: reply.ping_ns,
            other_cores_busy: reply.others,
            fired: reply.fired,
        }
    }
}

/// Median, least and greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

fn spread(figures: impl IntoIterator<Item = f64>) -> Option<Spread> {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    let middle = sorted.len() / 2;
    let median = if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    };
    Some(Spread { median, min, max })
}

impl Figure {
    pub(crate) fn new(workload: &Workload, case: usize, keys: u64, system: &'static str) -> Self {
        Figure {
            workload: workload.name,
            case: workload.cases[case].name,
            threads: workload.cases[case].threads,
            keys,
            system,
            unit: workload.unit,
            less_is_better: workload.better == Better::Less,
            rounds: Vec::new(),
            repeated_slow: 0,
            repeated_disturbed: 0,
            kept_disturbed: 0,
            fills: Vec::new(),
        }
    }

    fn spread(&self) -> Option<Spread> {
        spread(self.rounds.iter().map(|round| round.figure))
    }

    fn is_beside(&self, other: &Figure) -> bool {
        (self.workload, self.case, self.keys) == (other.workload, other.case, other.keys)
    }

    /// How many times better than `other`.
    fn over(&self, other: &Figure) -> Option<f64> {
        let ratio = self.spread()?.median / other.spread()?.median;
        Some(if self.less_is_better {
            1.0 / ratio
        } else {
            ratio
        })
    }
}

impl Report {
    /// For people: a row per point and system, the systems of a point together, and how many times
    /// better than each of the others the first one is.
    pub(crate) fn table(&self) -> String {
        let mut text = format!("machine  {}\n", self.machine.line());
        let versions: Vec<String> = self
            .versions
            .iter()
            .map(|version| format!("{} {}", version.name, version.version))
            .collect();
        text += &format!("versions {}\n", versions.join(", "));
        if let Some(commit) = &self.commit {
            text += &format!("commit   {commit}\n");
        }
        text += &format!("command  {} ({:.0} s)\n", self.command, self.seconds);
        if let Some(ns) = self.ping_ns {
            text += &format!("core to core and back: {ns:.0} ns at best\n");
        }
        let mut rows = vec![Row::head()];
        for (at, figure) in self.figures.iter().enumerate() {
            let first = self.figures.iter().find(|first| first.is_beside(figure));
            let leads = first.is_none_or(|first| std::ptr::eq(first, figure));
            if at > 0 && leads {
                rows.push(Row::default());
            }
            rows.push(Row::of(figure, first, leads));
        }
        text + &align(&rows)
    }
}

/// The cells of a line.
#[derive(Default)]
struct Row([String; 7]);

impl Row {
    fn head() -> Self {
        Row([
            "workload",
            "keys",
            "system",
            "median",
            "min - max",
            "ratio",
            "rounds",
        ]
        .map(str::to_owned))
    }

    fn of(figure: &Figure, first: Option<&Figure>, leads: bool) -> Self {
        let (median, range) = figure.spread().map_or_else(Default::default, |spread| {
            (
                format!("{} {}", number(spread.median), figure.unit),
                format!("{} - {}", number(spread.min), number(spread.max)),
            )
        });
        let ratio = first
            .filter(|_| !leads)
            .and_then(|first| first.over(figure))
            .map_or(String::new(), |ratio| format!("{ratio:.2}x"));
        let mut rounds = figure.rounds.len().to_string();
        for (count, what) in [
            (figure.repeated_slow, "slow repeated"),
            (figure.repeated_disturbed, "disturbed repeated"),
            (figure.kept_disturbed, "disturbed kept"),
        ] {
            if count > 0 {
                rounds += &format!(", {count} {what}");
            }
        }
        let (workload, keys) = if leads {
            (
                format!("{} {}", figure.workload, figure.case),
                short(figure.keys),
            )
        } else {
            Default::default()
        };
        Row([
            workload,
            keys,
            figure.system.to_owned(),
            median,
            range,
            ratio,
            rounds,
        ])
    }
}

fn align(rows: &[Row]) -> String {
    let widths: [usize; 7] = std::array::from_fn(|column| {
        rows.iter()
            .map(|row| row.0[column].len())
            .max()
            .unwrap_or_default()
    });
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row
            .0
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
fn number(number: f64) -> String {
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
mod tests {
    use super::*;
    use crate::workloads;

    #[test]
    fn the_median_is_between_the_others() {
        let of = |figures: &[f64]| spread(figures.iter().copied());
        assert_eq!(of(&[]), None);
        let odd = of(&[3.0, 1.0, 2.0]).expect("figures");
        assert_eq!((odd.median, odd.min, odd.max), (2.0, 1.0, 3.0));
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]).expect("figures").median, 2.5);
    }

    #[test]
    fn a_ratio_above_one_means_that_the_first_is_better() {
        let figure = |workload: &str, value| {
            let workload = workloads::find(workload).expect("a workload");
            let mut figure = Figure::new(workload, 0, 1, "some");
            figure.rounds.push(Round {
                figure: value,
                seconds: 1.0,
                ping_ns: None,
                other_cores_busy: None,
                fired: 0,
            });
            figure
        };
        for (workload, ours, peers) in [("W1k", 100.0, 300.0), ("W2", 6.0, 2.0)] {
            let ratio = figure(workload, ours).over(&figure(workload, peers));
            assert!(ratio.is_some_and(|ratio| (ratio - 3.0).abs() < 1e-9));
        }
    }

    #[test]
    fn columns_stand_under_each_other() {
        let mut row = Row::default();
        row.0[0] = "a longer cell".to_owned();
        row.0[2] = "x".to_owned();
        let text = align(&[Row::head(), row]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].find("system"), lines[1].find('x'));
        assert_eq!(short(10_000_000), "10 M");
        assert_eq!(short(100_000), "100 k");
    }
}
