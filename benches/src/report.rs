//! Figures, as JSON and as a table.

use serde::{Deserialize, Serialize};

use crate::machine::{Machine, Version};
use crate::mode::{Borders, Mode};
use crate::systems;
use crate::view::View;
use crate::wire::{Filled, Reply};
use crate::workloads::{self, Better, Cased, OfRounds, Workload};

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
    /// An ordinary round trip between two cores: the median of the run.
    pub(crate) ping_ns: Option<f64>,
    /// By which round trips the modes are told apart. Not in files of earlier programs, whose rounds have no
    /// mode.
    #[serde(default)]
    pub(crate) borders: Option<Borders>,
    pub(crate) figures: Vec<Figure>,
    /// Points that could not be measured, with the reason.
    pub(crate) failures: Vec<String>,
    /// The points that got fewer rounds than planned, or none, because the time was over.
    #[serde(default)]
    pub(crate) cuts: Vec<String>,
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
    /// Whether its rounds are kept apart by mode. Not in files of earlier programs.
    #[serde(default)]
    pub(crate) by_mode: bool,
    pub(crate) keys: u64,
    pub(crate) system: String,
    pub(crate) metrics: Vec<Metric>,
    /// How much a round did, in the workload's own measure.
    pub(crate) amount: u64,
    pub(crate) rounds: Vec<Round>,
    /// Those that were done again.
    pub(crate) discarded: Vec<Round>,
    /// Rounds that were done again since the mode changed meanwhile.
    #[serde(default)]
    pub(crate) repeated_mixed: u32,
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
    /// The slower one of the round trips before and after.
    pub(crate) ping_ns: Option<f64>,
    /// The two of them.
    #[serde(default)]
    pub(crate) pings_ns: Option<[f64; 2]>,
    /// With more than one thread: in which mode the machine was all the time.
    #[serde(default)]
    pub(crate) mode: Option<Mode>,
    pub(crate) other_cores_busy: Option<f64>,
    pub(crate) disturbed: bool,
    pub(crate) fired: u64,
    /// Timers that ran before they were due, where a workload looks at that.
    #[serde(default)]
    pub(crate) early: u64,
}

impl Round {
    /// With the round trips before and after it, in nanoseconds.
    pub(crate) fn of(reply: Reply, pings_ns: Option<[f64; 2]>, mode: Option<Mode>) -> Self {
        Round {
            figures: reply.figures,
            seconds: reply.seconds,
            ping_ns: pings_ns.map(|[before, after]| before.max(after)),
            pings_ns,
            mode,
            other_cores_busy: reply.others,
            disturbed: reply.disturbed,
            fired: reply.fired,
            early: reply.early,
        }
    }
}

impl Figure {
    pub(crate) fn new(workload: &Workload, case: &Cased, keys: u64, system: &str) -> Self {
        let metrics = workload.metrics.iter().map(|metric| Metric {
            name: metric.name.to_owned(),
            unit: metric.unit.to_owned(),
            less_is_better: metric.better == Better::Less,
            least: metric.of_rounds == OfRounds::Least,
        });
        Figure {
            workload: workload.name.to_owned(),
            case: case.name.clone(),
            threads: case.threads,
            by_mode: case.threads > 1,
            keys,
            system: system.to_owned(),
            metrics: metrics.collect(),
            amount: 0,
            rounds: Vec::new(),
            discarded: Vec::new(),
            repeated_mixed: 0,
            repeated_slow: 0,
            repeated_disturbed: 0,
            kept_disturbed: 0,
            fills: Vec::new(),
        }
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.system.starts_with("tourbillon")
    }

    /// A system without timers is none: its figures are a floor.
    pub(crate) fn is_peer(&self) -> bool {
        !self.is_ours() && !self.is_floor()
    }

    fn is_floor(&self) -> bool {
        systems::is_floor(&self.system)
    }

    /// The number of keys, in words.
    pub(crate) fn size(&self) -> String {
        short(self.keys)
    }
}

/// What the columns mean.
pub(crate) const LEGEND: &str = "\
A figure is the median of the rounds, or the least of them for a maximum, since being preempted alone \
makes some milliseconds (so a maximum can be below a percentile). The ratio says how many times better \
the first system of a point is; below 1 it is behind. Points with several threads have a figure for each mode \
of the machine that was seen. A floor has no timers and fires nothing: it is what the work costs at least, and \
no peer.
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
        lines.extend(self.modes_in_words().map(|words| ("modes", words)));
        for cut in &self.cuts {
            lines.push(("cut", cut.clone()));
        }
        lines.extend(self.skipped.iter().map(|line| ("skipped", line.clone())));
        lines
    }

    /// Which modes the rounds with several threads were in. `None` if no round has one.
    fn modes_in_words(&self) -> Option<String> {
        let borders = self.borders?;
        let split = || self.figures.iter().filter(|figure| figure.threads > 1);
        let count = |mode| split().map(|figure| figure.rounds_in(mode)).sum::<usize>();
        let with_count = |mode: &Mode| format!("{} {}", mode.name(), count(*mode));
        let (seen, unseen): (Vec<Mode>, Vec<Mode>) =
            Mode::ALL.into_iter().partition(|mode| count(*mode) > 0);
        let counts: Vec<String> = seen.iter().map(with_count).collect();
        if counts.is_empty() {
            let unknown = || "rounds with several threads: their modes are unknown".to_owned();
            return split().next().map(|_| unknown());
        }
        let mut words = format!("rounds with several threads: {}", counts.join(", "));
        if let [only] = seen[..] {
            words += &format!(" (only the mode {:?} was seen)", only.name());
        }
        for mode in unseen {
            words += &format!("; never {}", mode.name());
        }
        let mixed: u32 = split().map(|figure| figure.repeated_mixed).sum();
        words += &format!("; {mixed} not counted, since the mode changed meanwhile");
        let without = split().filter(|figure| figure.judged().is_none()).count();
        if without > 0 {
            words += &format!("; {without} figures without a near round");
        }
        Some(format!("{words}; {}", borders.in_words()))
    }

    /// For people: a row per point, metric and system; the systems of a point stand together.
    pub(crate) fn rows(&self, workload: &str) -> Vec<Row> {
        let views: Vec<View<'_>> = self.views(workload).collect();
        let mut rows = Vec::new();
        for (at, lead) in views.iter().enumerate() {
            if views[..at].iter().any(|view| view.is_beside(*lead)) {
                continue;
            }
            for (number, metric) in lead.metrics.iter().enumerate() {
                for (other, view) in views.iter().enumerate().skip(at) {
                    if view.is_beside(*lead) {
                        rows.push(Row::of(*view, *lead, other == at, number, metric));
                    }
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
    fn of(view: View<'_>, lead: View<'_>, leads: bool, number: usize, metric: &Metric) -> Self {
        let (typical, range) = view.spread(number).map_or_else(Default::default, |spread| {
            (
                format!("{} {}", digits(spread.typical), metric.unit),
                format!("{} - {}", digits(spread.min), digits(spread.max)),
            )
        });
        // Who may be early is not late; and a thousandth of nothing is no ratio.
        let early = view.was_early();
        let seen = |view: View<'_>| view.spread(number).is_some_and(|s| s.typical >= 0.005);
        let ratio = lead
            .over(view, number)
            .filter(|_| !leads && !early && seen(lead) && seen(view))
            .map_or(String::new(), |ratio| format!("{ratio:.2}x"));
        let mut point = String::new();
        if leads {
            if view.keys > 0 || !workloads::has_no_keys(&view.workload) {
                point = format!("{}, ", view.size());
            }
            point += &view.case_in_words();
            if !metric.name.is_empty() {
                point += &format!(": {}", metric.name);
            }
        }
        Row {
            point,
            system: if view.is_floor() {
                format!("{} (no timers: a floor)", view.system)
            } else {
                view.system.clone()
            },
            typical,
            range,
            ratio,
            rounds: view.rounds_in_words(),
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

    pub(crate) fn figure(workload: &str, system: &str, value: f64) -> Figure {
        let workload = workloads::find(workload).expect("a workload");
        let case = &workload.cases_with(&[])[0];
        let mut figure = Figure::new(workload, case, 1_000, system);
        figure.rounds.push(Round {
            figures: vec![Some(value); workload.metrics.len()],
            seconds: 1.0,
            ping_ns: None,
            pings_ns: None,
            mode: None,
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
            let ours = figure(workload, "ours", ours);
            let ratio = ours.views()[0].over(peer.views()[0], 0);
            assert!(ratio.is_some_and(|ratio| (ratio - 3.0).abs() < 1e-9));
        }
    }

    pub(crate) fn report(figures: Vec<Figure>) -> Report {
        Report {
            machine: Machine::here(),
            versions: Vec::new(),
            commit: None,
            command: "a command".to_owned(),
            form: "full".to_owned(),
            started_unix: 0,
            seconds: 60.0,
            ping_ns: None,
            borders: Some(Borders::default()),
            figures,
            failures: Vec::new(),
            skipped: Vec::new(),
            cuts: Vec::new(),
        }
    }

    /// A figure with two threads, and a round for each of these modes.
    pub(crate) fn in_modes(workload: &str, system: &str, rounds: &[(Mode, f64)]) -> Figure {
        let mut all = figure(workload, system, 0.0);
        (all.threads, all.case, all.by_mode) = (2, "2 threads".to_owned(), true);
        all.rounds.clear();
        for (mode, value) in rounds {
            let mut round = figure(workload, system, *value).rounds.remove(0);
            round.mode = Some(*mode);
            all.rounds.push(round);
        }
        all
    }

    #[test]
    fn systems_of_different_modes_stand_apart() {
        let (near, far) = (Mode::Near, Mode::Far);
        let mut report = report(vec![
            in_modes("W2", "a", &[(near, 6.0), (far, 2.0), (near, 8.0)]),
            in_modes("W2", "b", &[(far, 1.0), (near, 3.5)]),
        ]);
        let rows = report.rows("W2");
        let cells: Vec<[&str; 4]> = rows
            .iter()
            .map(|row| [&*row.point, &row.system, &row.typical, &row.ratio])
            .collect();
        let expected = [
            ["1 k, 2 threads, near", "a", "7.00 Mops/s", ""],
            ["", "b", "3.50 Mops/s", "2.00x"],
            ["1 k, 2 threads, far", "a", "2.00 Mops/s", ""],
            ["", "b", "1.00 Mops/s", "2.00x"],
        ];
        assert_eq!(cells, expected);
        let words = report.modes_in_words().expect("there are modes");
        assert!(
            words.contains("near 3, far 2; never shared core"),
            "{words}"
        );
        report.figures = vec![in_modes("W2", "a", &[(far, 2.0)])];
        let words = report.modes_in_words().expect("there is one");
        assert!(words.contains("only the mode \"far\" was seen"), "{words}");
        assert!(words.contains("1 figures without a near round"), "{words}");
        report.figures = vec![figure("W2", "a", 1.0)];
        assert_eq!(report.modes_in_words(), None, "a single thread has no mode");
    }

    #[test]
    fn files_of_earlier_programs_are_shown() {
        for file in ["figures.json", "sessions.json"] {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
            let json = std::fs::read_to_string(path).expect("it lies there");
            let report: Report = serde_json::from_str(&json).expect("its form is known");
            assert!(
                report
                    .figures
                    .iter()
                    .all(|figure| figure.views().len() == 1)
            );
        }
    }

    #[test]
    fn modes_are_kept_by_the_json() {
        let figure = in_modes("W2", "a", &[(Mode::Near, 6.0), (Mode::SharedCore, 2.0)]);
        let json = serde_json::to_string(&report(vec![figure])).expect("plain data");
        assert!(json.contains("\"shared-core\""), "{json}");
        let read: Report = serde_json::from_str(&json).expect("what was written");
        let modes: Vec<Option<Mode>> = read.figures[0].rounds.iter().map(|r| r.mode).collect();
        assert_eq!(modes, [Some(Mode::Near), Some(Mode::SharedCore)]);
        assert_eq!(read.borders, Some(Borders::default()));
    }

    #[test]
    fn the_systems_of_a_point_stand_together_in_columns() {
        let mut report = report(vec![figure("W2", "a", 6.0), figure("W2", "b", 2.0)]);
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
