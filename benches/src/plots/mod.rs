//! Plots of a report, as SVG: made from the JSON by the program, so that they show what was measured.
//!
//! A panel has rounds of one mode of the machine only, as all figures have. The mode that targets are judged
//! in stands beside a single thread; the other modes have pictures of their own.

mod canvas;
mod lines;
mod rows;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use canvas::Look;
use lines::{Line, Lines};
use rows::{Marks, Row, Rows};

use crate::report::{Report, short};
use crate::view::View;
use crate::workloads::NONE_IS_LONG;

/// A picture for a file of that name.
#[derive(Debug)]
pub(crate) struct Plot {
    pub(crate) name: String,
    pub(crate) svg: String,
}

/// All plots for which the report has figures.
pub(crate) fn of(report: &Report) -> Vec<Plot> {
    let draw = Draw {
        report,
        looks: Looks::of(report),
        notes: notes(report),
    };
    let mut plots = Vec::new();
    for other_modes in [false, true] {
        plots.extend(draw.by_keys("touch-keys", "Touches of random keys", &["W2"], other_modes));
        plots.extend(draw.touch_by_threads(other_modes));
        let title = "Start a timer and stop it";
        plots.extend(draw.by_keys("pair-keys", title, &["W1", "W1k"], other_modes));
    }
    plots.extend(draw.mass());
    plots.extend(draw.memory());
    plots.extend(draw.lateness());
    plots
}

/// Where the figures are from, in a line.
fn notes(report: &Report) -> String {
    let commit = match &report.commit {
        Some(commit) => commit.chars().take(7).collect(),
        None => "unknown".to_owned(),
    };
    let form = match &*report.form {
        "full" => String::new(),
        form => format!(", {form} form"),
    };
    format!("{}, commit {commit}{form}", report.machine.line())
}

/// The systems of a report: ours by name, so that they look the same in all reports, and the others in its
/// order.
struct Looks(Vec<(String, bool)>);

impl Looks {
    fn of(report: &Report) -> Self {
        let mut systems: Vec<(String, bool)> = Vec::new();
        for figure in &report.figures {
            if !systems.iter().any(|(name, _)| *name == figure.system) {
                systems.push((figure.system.clone(), figure.is_ours()));
            }
        }
        systems.sort_by_key(|(name, ours)| if *ours { name.clone() } else { String::new() });
        Looks(systems)
    }

    fn look(&self, view: View<'_>) -> Look {
        let ours = view.is_ours();
        let alike = self.0.iter().filter(|(_, other)| *other == ours);
        let number = alike
            .map(|(name, _)| name)
            .position(|name| name == view.system());
        Look::of(number.unwrap_or(0), ours)
    }
}

struct Draw<'a> {
    report: &'a Report,
    looks: Looks,
    notes: String,
}

impl<'a> Draw<'a> {
    fn views(&self, workload: &str) -> Vec<View<'a>> {
        self.report.views(workload).collect()
    }

    /// Lines by the number of keys, with a panel for each case and mode.
    fn by_keys(
        &self,
        name: &str,
        title: &str,
        workloads: &[&str],
        other_modes: bool,
    ) -> Option<Plot> {
        let mut panels = Vec::new();
        let mut up = String::new();
        for workload in workloads {
            let mut views = self.views(workload);
            views.retain(|view| view.is_drawn(other_modes));
            let named = |view: &View<'_>| match workloads {
                [_] => view.case_in_words(),
                // Which of them it is.
                _ if *workload == "W1" => format!("by handle, {}", view.case_in_words()),
                _ => format!("by key, {}", view.case_in_words()),
            };
            for title in in_order(views.iter().map(named)) {
                let of_panel = views.iter().filter(|view| named(view) == title);
                let lines = self.lines(of_panel.copied(), |view| view.keys);
                if !lines.is_empty() {
                    panels.push(lines::Panel { title, lines });
                }
            }
            if let Some(view) = views.first() {
                up.clone_from(&view.metrics[0].unit);
            }
        }
        let up = match &*up {
            "ns/pair" => "nanoseconds for a pair; less is better",
            _ => "million touches a second; more is better",
        };
        let right = "keys that are pending";
        self.drawn((name, other_modes), title, up, right, short, panels)
    }

    /// Lines by the number of threads, with a panel for each number of keys and each mode. What one thread
    /// does has no mode, and begins all lines.
    fn touch_by_threads(&self, other_modes: bool) -> Option<Plot> {
        let mut views = self.views("W2");
        views.retain(|view| view.threads == 1 || view.is_drawn(other_modes));
        let keys: BTreeSet<u64> = views.iter().map(|view| view.keys).collect();
        let mut panels = Vec::new();
        for keys in keys {
            let of_keys = || views.iter().copied().filter(|view| view.keys == keys);
            let several = || of_keys().filter(|view| view.threads > 1);
            let mode = |view: View<'_>| view.mode_in_words().unwrap_or_default();
            for title in in_order(several().map(mode)) {
                let of_mode = || several().filter(|view| mode(*view) == title);
                // A system that was not measured in this mode has no line.
                let alone = of_keys().filter(|view| {
                    view.threads == 1 && of_mode().any(|other| other.system == view.system)
                });
                let lines = self.lines(alone.chain(of_mode()), |view| view.threads as u64);
                let title = match &*title {
                    "" => format!("{} keys", short(keys)),
                    mode => format!("{} keys, {mode}", short(keys)),
                };
                panels.push(lines::Panel { title, lines });
            }
        }
        let up = "million touches a second; more is better";
        let title = "Touches of random keys by several threads";
        let threads = |threads: u64| threads.to_string();
        let name = ("touch-threads", other_modes);
        self.drawn(name, title, up, "threads", threads, panels)
    }

    fn drawn(
        &self,
        (name, other_modes): (&str, bool),
        title: &str,
        up: &str,
        right: &str,
        label: fn(u64) -> String,
        panels: Vec<lines::Panel>,
    ) -> Option<Plot> {
        if panels.is_empty() {
            return None;
        }
        let (name, title) = match other_modes {
            true => (
                format!("{name}-other-modes"),
                format!("{title}, in other modes of the machine"),
            ),
            false => (name.to_owned(), title.to_owned()),
        };
        let lines = Lines {
            title: &title,
            notes: &self.notes,
            up,
            right,
            label,
            panels,
        };
        let svg = lines.svg();
        Some(Plot { name, svg })
    }

    /// A line for each system, through its first metric.
    fn lines(
        &self,
        views: impl Iterator<Item = View<'a>>,
        at: impl Fn(View<'a>) -> u64,
    ) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        for view in views {
            let Some(spread) = view.spread(0) else {
                continue;
            };
            let point = (at(view), spread.typical);
            match lines.iter_mut().find(|line| line.name == view.system()) {
                Some(line) => line.points.push(point),
                None => lines.push(Line {
                    name: view.system().to_owned(),
                    look: self.looks.look(view),
                    points: vec![point],
                }),
            }
        }
        for line in &mut lines {
            line.points.sort_by_key(|(at, _)| *at);
        }
        lines
    }

    /// Rows of one metric, with a range of others.
    fn rows(
        &self,
        views: impl Iterator<Item = View<'a>>,
        metric: &str,
        range: Option<(&str, &str)>,
    ) -> Vec<Row> {
        let typical = |view: View<'_>, metric| Some(view.named(metric)?.0.typical);
        let row = |view: View<'a>| {
            let value = typical(view, metric)?;
            let range = range.and_then(|(from, to)| typical(view, from).zip(typical(view, to)));
            Some(Row {
                name: view.system().to_owned(),
                look: self.looks.look(view),
                value,
                early: view.was_early(),
                // A maximum is the least of the rounds, so it can be below a percentile.
                range: range.map(|(from, to)| (from, to.max(value))),
            })
        };
        views.filter_map(row).collect()
    }

    fn of_rows(&self, name: &str, rows: &Rows<'_>) -> Option<Plot> {
        let (name, svg) = (name.to_owned(), rows.svg());
        (!rows.panels.is_empty()).then_some(Plot { name, svg })
    }

    fn mass(&self) -> Option<Plot> {
        let mut panels = Vec::new();
        let instant = self.views("W4i");
        let count = instant.first().map_or(0, |view| view.amount);
        panels.extend(panel(
            format!("{} timers at one instant: the last one ran", short(count)),
            self.rows(instant.into_iter(), "last ran", None),
        ));
        let spread = self.views("W4");
        let count = spread.first().map_or(0, |view| view.amount);
        panels.extend(panel(
            format!("{} timers over 2 s: late, p99 (p50 to max)", short(count)),
            self.rows(spread.into_iter(), "p99", Some(("p50", "max"))),
        ));
        let rows = Rows {
            title: "Many timers that are due at once",
            notes: &self.notes,
            unit: "ms; less is better",
            marks: Marks::Dots,
            alike: false,
            panels,
        };
        self.of_rows("mass", &rows)
    }

    fn memory(&self) -> Option<Plot> {
        let mut panels = Vec::new();
        for (workload, what) in [("W7", "timers by key"), ("S3", "sessions")] {
            let views = self.views(workload);
            for keys in views
                .iter()
                .map(|view| view.keys)
                .collect::<BTreeSet<u64>>()
            {
                let of_keys = views.iter().copied().filter(|view| view.keys == keys);
                let title = format!("{} {what}", short(keys));
                panels.extend(panel(title, self.rows(of_keys, "", None)));
            }
        }
        let rows = Rows {
            title: "Memory of an entry",
            notes: &self.notes,
            unit: "resident bytes; less is better",
            marks: Marks::Bars,
            alike: true,
            panels,
        };
        self.of_rows("memory", &rows)
    }

    fn lateness(&self) -> Option<Plot> {
        let views = self.views("W5");
        let mut panels = Vec::new();
        for none in [true, false] {
            let of_case = views
                .iter()
                .copied()
                .filter(|view| (view.case == NONE_IS_LONG) == none);
            let title = match none {
                true => "no task is slow",
                false => "some tasks take 500 ms: the others",
            };
            let rows = self.rows(of_case, "p99", Some(("p50", "max")));
            panels.extend(panel(title.to_owned(), rows));
        }
        let rows = Rows {
            title: "How late 10,000 timers a second are: p99 (p50 to max)",
            notes: &self.notes,
            unit: "ms late; less is better",
            marks: Marks::Dots,
            alike: true,
            panels,
        };
        self.of_rows("lateness", &rows)
    }
}

/// If there is anything in it.
fn panel(title: String, rows: Vec<Row>) -> Option<rows::Panel> {
    (!rows.is_empty()).then_some(rows::Panel { title, rows })
}

/// Each of them once.
fn in_order(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut once = Vec::new();
    for name in names {
        if !once.contains(&name) {
            once.push(name);
        }
    }
    once
}
