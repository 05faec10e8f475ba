//! Plots of a run, as SVG: made from its rows by the program, so that they show what was measured.
//!
//! A panel has rounds of one mode of the machine only, as all rows have. The mode that targets are
//! judged in stands beside a single thread; the other modes have pictures of their own.

mod bars;
mod canvas;
mod lines;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use bars::{Bar, Bars, Marks};
use canvas::Look;
use lines::{Line, Lines};

use crate::figures::row::{Row, Run, short};
use crate::mode::Mode;
use crate::workload::Form;
use crate::workloads::NONE_IS_LONG;

/// A picture for a file of that name.
#[derive(Debug)]
pub(crate) struct Plot {
    pub(crate) name: String,
    pub(crate) svg: String,
}

/// All plots for which the run has figures.
pub(crate) fn of(run: &Run) -> Vec<Plot> {
    let draw = Draw {
        run,
        looks: Looks::of(run),
        notes: notes(run),
    };
    let mut plots = Vec::new();
    for other_modes in [false, true] {
        plots.extend(draw.by_keys("touch-keys", "Touches of random keys", &["W2"], other_modes));
        plots.extend(draw.touch_by_threads(other_modes));
        let title = "Start a timer and stop it";
        plots.extend(draw.by_keys("pair-keys", title, &["W1", "W1x"], other_modes));
    }
    let bars = [draw.mass(), draw.memory(), draw.lateness()];
    plots.extend(bars.into_iter().flatten());
    plots
}

/// Where the figures are from, in a line.
fn notes(run: &Run) -> String {
    let commit = match &run.commit {
        Some(commit) => commit.chars().take(7).collect(),
        None => "unknown".to_owned(),
    };
    let form = match run.form {
        Form::Full => String::new(),
        form => format!(", {} form", form.name()),
    };
    format!("{}, commit {commit}{form}", run.machine.line())
}

/// The systems of a run: ours by name, so that they look the same in all runs, and the others in
/// its order.
struct Looks<'a> {
    ours: BTreeSet<&'a str>,
    others: Vec<&'a str>,
}

impl<'a> Looks<'a> {
    fn of(run: &'a Run) -> Self {
        let (ours, others): (Vec<&Row>, Vec<&Row>) = run.rows.iter().partition(|row| row.is_ours());
        Looks {
            ours: ours.iter().map(|row| &*row.system).collect(),
            others: once_each(others.iter().map(|row| &*row.system)),
        }
    }

    fn look(&self, row: &Row) -> Look {
        let named = |name: &&str| *name == row.system;
        let number = match row.is_ours() {
            true => self.ours.iter().position(named),
            false => self.others.iter().position(named),
        };
        Look::of(number.unwrap_or(0), row.is_ours())
    }
}

/// Whether a row belongs into a plot of the mode that targets are judged in, or of the other ones.
/// An unknown mode is in neither: those are single rounds of a few systems.
fn is_drawn(row: &Row, other_modes: bool) -> bool {
    row.mode != Some(Mode::Unknown) && row.is_judged() != other_modes
}

struct Draw<'a> {
    run: &'a Run,
    looks: Looks<'a>,
    notes: String,
}

impl<'a> Draw<'a> {
    /// Lines by the number of keys, with a panel for each case and mode.
    fn by_keys(
        &self,
        name: &str,
        title: &str,
        workloads: &[&str],
        other_modes: bool,
    ) -> Option<Plot> {
        let mut panels = Vec::new();
        let mut up = "million touches a second; more is better";
        for workload in workloads {
            let rows = || {
                let rows = self.run.of(workload);
                rows.filter(|row| is_drawn(row, other_modes))
            };
            let which = match workloads {
                [_] => "",
                _ if *workload == "W1" => "by handle, ",
                _ => "by key, ",
            };
            let named = |row: &Row| which.to_owned() + &row.case_in_words();
            for title in once_each(rows().map(named)) {
                let lines = self.lines(rows().filter(|row| named(row) == title), |row| row.keys);
                if !lines.is_empty() {
                    panels.push(lines::Panel { title, lines });
                }
            }
            if rows().any(|row| row.workload.metrics[0].unit == "ns/pair") {
                up = "nanoseconds for a pair; less is better";
            }
        }
        let right = "keys that are pending";
        self.drawn((name, other_modes), title, up, right, short, panels)
    }

    /// Lines by the number of threads, with a panel for each number of keys and each mode. What one
    /// thread does has no mode, and begins all lines.
    fn touch_by_threads(&self, other_modes: bool) -> Option<Plot> {
        let rows = || {
            let rows = self.run.of("W2");
            rows.filter(|row| row.threads == 1 || is_drawn(row, other_modes))
        };
        let keys: BTreeSet<u64> = rows().map(|row| row.keys).collect();
        let mut panels = Vec::new();
        for keys in keys {
            let of_keys = || rows().filter(move |row| row.keys == keys);
            let several = || of_keys().filter(|row| row.threads > 1);
            for mode in once_each(several().map(|row| row.mode)) {
                let of_mode = || several().filter(move |row| row.mode == mode);
                // A system that was not measured in this mode has no line.
                let alone = of_keys().filter(|row| {
                    row.threads == 1 && of_mode().any(|other| other.system == row.system)
                });
                let lines = self.lines(alone.chain(of_mode()), |row| row.threads as u64);
                let mode = mode.map_or(String::new(), |mode| format!(", {}", mode.name()));
                let title = format!("{} keys{mode}", short(keys));
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
        let (suffix, more) = match other_modes {
            true => ("-other-modes", ", in other modes of the machine"),
            false => ("", ""),
        };
        let lines = Lines {
            title: &format!("{title}{more}"),
            notes: &self.notes,
            up,
            right,
            label,
            panels,
        };
        (!lines.panels.is_empty()).then(|| Plot {
            name: format!("{name}{suffix}"),
            svg: lines.svg(),
        })
    }

    /// A line for each system, through its first metric.
    fn lines(&self, rows: impl Iterator<Item = &'a Row>, at: impl Fn(&Row) -> u64) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        for row in rows {
            let Some(spread) = row.first() else {
                continue;
            };
            let point = (at(row), spread.typical);
            match lines.iter_mut().find(|line| line.name == row.system) {
                Some(line) => line.points.push(point),
                None => lines.push(Line {
                    name: row.system.clone(),
                    look: self.looks.look(row),
                    points: vec![point],
                }),
            }
        }
        for line in &mut lines {
            line.points.sort_by_key(|(at, _)| *at);
        }
        lines
    }

    /// A bar for each row by one metric, with a range of others. Without any there is no panel.
    fn panel(
        &self,
        title: String,
        rows: impl Iterator<Item = &'a Row>,
        metric: &str,
        range: Option<(&str, &str)>,
    ) -> Option<bars::Panel> {
        let typical = |row: &Row, name| Some(row.spread(row.metric(name)?)?.typical);
        let bar = |row: &'a Row| {
            let value = typical(row, metric)?;
            let range = range.and_then(|(from, to)| typical(row, from).zip(typical(row, to)));
            Some(Bar {
                name: row.system.clone(),
                look: self.looks.look(row),
                value,
                early: row.early > 0,
                // A maximum is the least of the rounds, so it can be below a percentile.
                range: range.map(|(from, to)| (from, to.max(value))),
            })
        };
        let bars: Vec<Bar> = rows.filter_map(bar).collect();
        (!bars.is_empty()).then_some(bars::Panel { title, bars })
    }

    fn bars(
        &self,
        name: &str,
        (title, unit): (&str, &str),
        (marks, alike): (Marks, bool),
        panels: impl IntoIterator<Item = Option<bars::Panel>>,
    ) -> Option<Plot> {
        let bars = Bars {
            title,
            notes: &self.notes,
            unit,
            marks,
            alike,
            panels: panels.into_iter().flatten().collect(),
        };
        (!bars.panels.is_empty()).then(|| Plot {
            name: name.to_owned(),
            svg: bars.svg(),
        })
    }

    fn mass(&self) -> Option<Plot> {
        let panel = |workload, what: &str, metric, range| {
            let count = self.run.of(workload).next().map_or(0, |row| row.amount);
            let title = format!("{} timers {what}", short(count));
            self.panel(title, self.run.of(workload), metric, range)
        };
        let title = ("Many timers that are due at once", "ms; less is better");
        let range = Some(("p50", "max"));
        let panels = [
            panel("W4i", "at one instant: the last one ran", "last ran", None),
            panel("W4h", "at one instant, by handle", "last ran", None),
            panel("W4", "over 2 s: late, p99 (p50 to max)", "p99", range),
        ];
        self.bars("mass", title, (Marks::Dots, false), panels)
    }

    fn memory(&self) -> Option<Plot> {
        let mut panels = Vec::new();
        for (workload, what) in [("W7", "timers by key"), ("S3", "sessions")] {
            let sizes: BTreeSet<u64> = self.run.of(workload).map(|row| row.keys).collect();
            panels.extend(sizes.into_iter().map(|keys| {
                let of_keys = self.run.of(workload).filter(move |row| row.keys == keys);
                self.panel(format!("{} {what}", short(keys)), of_keys, "", None)
            }));
        }
        let title = ("Memory of an entry", "resident bytes; less is better");
        self.bars("memory", title, (Marks::Bars, true), panels)
    }

    fn lateness(&self) -> Option<Plot> {
        let panel = |title: &str, none_is_long: bool| {
            let rows = self.run.of("W5");
            let of_case = rows.filter(move |row| (row.case == NONE_IS_LONG) == none_is_long);
            self.panel(title.to_owned(), of_case, "p99", Some(("p50", "max")))
        };
        let title = "How late 10,000 timers a second are: p99 (p50 to max)";
        let title = (title, "ms late; less is better");
        let slow = panel("some tasks take 500 ms: the others", false);
        let panels = [panel("no task is slow", true), slow];
        self.bars("lateness", title, (Marks::Dots, true), panels)
    }
}

/// Each of them once, in their order.
fn once_each<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut once = Vec::new();
    for one in all {
        if !once.contains(&one) {
            once.push(one);
        }
    }
    once
}
