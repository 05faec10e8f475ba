//! The rows of a run for people: on a terminal, and as a document.

use super::store as places;
use super::targets::standings;
use crate::figures::row::{Row, Run, digits, short};
use crate::mode::Mode;
use crate::workload::{Metric, Workload};
use crate::workloads;

/// What the columns mean.
const LEGEND: &str = "\
A figure is the median of the rounds, or the least of them for a maximum, since being preempted alone \
makes some milliseconds (so a maximum can be below a percentile). The ratio says how many times better \
the first system of a point is; below 1 it is behind. Points with several threads have a figure for each mode \
of the machine that was seen. A floor has no timers and fires nothing: it is what the work costs at least, and \
no peer.
";

const HEAD: [&str; 6] = ["", "system", "figure", "min - max", "ratio", "rounds"];

/// A row of figures in words, one for each column of [`HEAD`].
type Cells = [String; 6];

/// All of a run on a terminal.
pub(crate) fn text(run: &Run) -> String {
    let mut text = String::new();
    for (name, value) in circumstances(run) {
        text += &format!("{name:<9} {value}\n");
    }
    text += LEGEND;
    for (workload, rows) in of_workloads(run) {
        text += &format!("\n{}: {}\n", workload.name, workload.about);
        text += &aligned(rows);
    }
    text
}

/// All of a run in Markdown, made by the program so that no figure is copied by hand.
pub(crate) fn document(run: &Run) -> String {
    let mut text = String::from(
        "# Figures\n\n\
         Made by the command below, in the tree of the commit below; the figures of every round are in the \
         JSON beside.\n\n",
    );
    text += LEGEND;
    text.push('\n');
    for (name, value) in circumstances(run) {
        text += &format!("- {name}: {value}\n");
    }
    for failure in &run.failures {
        text += &format!("- **failed**: {failure}\n");
    }
    let standings = standings(run);
    if !standings.is_empty() {
        text += "\n## Targets\n\n";
        text += &places::targets(run, &standings);
    }
    for (workload, rows) in of_workloads(run) {
        text += &format!("\n## {}: {}\n\n", workload.name, workload.about);
        text += &format!("| {} |\n|---|---|--:|--:|--:|---|\n", HEAD.join(" | "));
        for cells in rows {
            text += &format!("| {} |\n", cells.join(" | "));
        }
    }
    text
}

/// What was run, where and with what; a line each.
fn circumstances(run: &Run) -> Vec<(&'static str, String)> {
    let versions = run.versions.iter();
    let versions: Vec<String> = versions
        .map(|version| format!("{} {}", version.name, version.version))
        .collect();
    let commit = run.commit.as_deref().unwrap_or("unknown");
    let mut lines = vec![
        ("machine", run.machine.line()),
        ("versions", versions.join(", ")),
        ("commit", commit.to_owned()),
        ("command", run.command.clone()),
        (
            "form",
            format!("{}, {:.1} min", run.form.name(), run.seconds / 60.0),
        ),
    ];
    if let Some(ns) = run.ping_ns {
        lines.push(("ping-pong", format!("core to core and back {ns:.0} ns")));
    }
    lines.extend(modes_in_words(run).map(|words| ("modes", words)));
    lines.extend(run.cuts.iter().map(|line| ("cut", line.clone())));
    lines.extend(run.skipped.iter().map(|line| ("skipped", line.clone())));
    lines
}

/// Which modes the rounds with several threads were in. `None` if no round has one.
fn modes_in_words(run: &Run) -> Option<String> {
    let borders = run.borders?;
    let split: Vec<&Row> = run.rows.iter().filter(|row| row.threads > 1).collect();
    if split.is_empty() {
        return None;
    }
    let count = |mode| -> usize {
        let of_mode = split.iter().filter(|row| row.mode == Some(mode));
        of_mode.map(|row| row.rounds()).sum()
    };
    let (seen, unseen): (Vec<Mode>, Vec<Mode>) =
        Mode::KNOWN.into_iter().partition(|mode| count(*mode) > 0);
    if seen.is_empty() {
        return Some("rounds with several threads: their modes are unknown".to_owned());
    }
    let counts: Vec<String> = seen
        .iter()
        .map(|mode| format!("{} {}", mode.name(), count(*mode)))
        .collect();
    let mut words = format!("rounds with several threads: {}", counts.join(", "));
    if let [only] = seen[..] {
        words += &format!(" (only the mode {:?} was seen)", only.name());
    }
    for mode in unseen {
        words += &format!("; never {}", mode.name());
    }
    let mixed: u64 = split.iter().map(|row| row.mixed).sum();
    words += &format!("; {mixed} not counted, since the mode changed meanwhile");
    // One for each system and point, whatever the number of its modes.
    let mut without: Vec<&Row> = Vec::new();
    for row in split {
        if !run.judges(row) && !without.iter().any(|other| other.is_of_the_system_of(row)) {
            without.push(row);
        }
    }
    if !without.is_empty() {
        words += &format!("; {} figures without a near round", without.len());
    }
    Some(format!("{words}; {}", borders.in_words()))
}

/// The tables of the workloads that have rows.
fn of_workloads(run: &Run) -> impl Iterator<Item = (&'static Workload, Vec<Cells>)> {
    let tables = workloads::ALL.iter().map(|workload| {
        let rows: Vec<&Row> = run.of(workload.name).collect();
        (workload, cells(&rows))
    });
    tables.filter(|(_, cells)| !cells.is_empty())
}

/// A line for each point, metric and system; the systems of a point stand together.
fn cells(rows: &[&Row]) -> Vec<Cells> {
    let mut lines = Vec::new();
    for (at, lead) in rows.iter().enumerate() {
        if rows[..at].iter().any(|row| row.is_beside(lead)) {
            continue;
        }
        for metric in lead.metrics() {
            lines.push(line(lead, None, metric));
            let others = rows[at + 1..].iter().filter(|row| row.is_beside(lead));
            lines.extend(others.map(|row| line(row, Some(lead), metric)));
        }
    }
    lines
}

/// The first row of a point has no `lead`. All others say how many times better it is.
fn line(row: &Row, lead: Option<&Row>, metric: &Metric) -> Cells {
    let mut point = String::new();
    if lead.is_none() {
        if row.keys > 0 || !row.workload.has_no_keys() {
            point = format!("{}, ", short(row.keys));
        }
        point += &row.case_in_words();
        if !metric.name.is_empty() {
            point += &format!(": {}", metric.name);
        }
    }
    let system = match row.is_floor() {
        true => format!("{} (no timers: a floor)", row.system),
        false => row.system.clone(),
    };
    let (typical, range) = row.spread(metric).map_or_else(Default::default, |spread| {
        (
            format!("{} {}", digits(spread.typical), metric.unit),
            format!("{} - {}", digits(spread.min), digits(spread.max)),
        )
    });
    // A system that may be early is not late; and a thousandth of nothing is no ratio.
    let seen = |row: &Row| row.spread(metric).is_some_and(|s| s.typical >= 0.005);
    let ratio = lead
        .filter(|lead| row.early == 0 && seen(lead) && seen(row))
        .and_then(|lead| lead.over(row, metric))
        .map_or(String::new(), |ratio| format!("{ratio:.2}x"));
    [point, system, typical, range, ratio, rounds_in_words(row)]
}

/// The rounds that count, and what had to be repeated.
fn rounds_in_words(row: &Row) -> String {
    let mut words = row.rounds().to_string();
    for (count, what) in [
        (row.mixed, "mixed repeated"),
        (row.slow, "slow repeated"),
        (row.disturbed, "disturbed repeated"),
        (row.kept_disturbed, "disturbed kept"),
        (row.early, "timers early"),
    ] {
        if count > 0 {
            words += &format!(", {count} {what}");
        }
    }
    words
}

fn aligned(mut rows: Vec<Cells>) -> String {
    rows.insert(0, HEAD.map(str::to_owned));
    let width = |column: usize| rows.iter().map(|cells| cells[column].len()).max();
    let widths: [usize; 6] = std::array::from_fn(|column| width(column).unwrap_or_default());
    let mut text = String::new();
    for cells in rows {
        let padded = cells.iter().zip(widths);
        let padded: Vec<String> = padded
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        text += padded.join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::row::tests::{in_modes, row, run};

    #[test]
    fn systems_of_different_modes_stand_apart() {
        let (near, far) = (Mode::Near, Mode::Far);
        let mut rows = in_modes("W2", "a", &[(near, &[6.0, 8.0]), (far, &[2.0])]);
        rows.extend(in_modes("W2", "b", &[(near, &[3.5]), (far, &[1.0])]));
        rows[0].mixed = 4;
        let run_of = |rows| run(rows);
        let both = run_of(rows.clone());
        let cells = cells(&rows.iter().collect::<Vec<_>>());
        let cells: Vec<[&str; 4]> = cells
            .iter()
            .map(|[point, system, typical, _, ratio, _]| [&**point, system, typical, ratio])
            .collect();
        let expected = [
            ["1 k, 2 threads, near", "a", "7.00 Mops/s", ""],
            ["", "b", "3.50 Mops/s", "2.00x"],
            ["1 k, 2 threads, far", "a", "2.00 Mops/s", ""],
            ["", "b", "1.00 Mops/s", "2.00x"],
        ];
        assert_eq!(cells, expected);
        let words = modes_in_words(&both).expect("there are modes");
        assert!(
            words.contains("near 3, far 2; never shared core; 4 not counted"),
            "{words}"
        );
        let far = run_of(in_modes("W2", "a", &[(far, &[2.0])]));
        let words = modes_in_words(&far).expect("there is one");
        assert!(words.contains("only the mode \"far\" was seen"), "{words}");
        assert!(words.contains("1 figures without a near round"), "{words}");
        let alone = run_of(vec![row("W2", "a", 1.0)]);
        assert_eq!(modes_in_words(&alone), None, "a single thread has no mode");
    }

    #[test]
    fn the_systems_of_a_point_stand_together_in_columns() {
        let mut early = row("W2", "b", 2.0);
        let text_of = |second: &Row| text(&run(vec![row("W2", "a", 6.0), second.clone()]));
        let text = text_of(&early);
        let at = |what| text.lines().find_map(|line| line.find(what));
        assert_eq!(at("6.00 Mops/s"), at("2.00 Mops/s"));
        assert!(
            text.contains("1 k, 1 thread") && text.contains(" 3.00x "),
            "{text}"
        );
        (early.early, early.slow) = (7, 1);
        let text = text_of(&early);
        assert!(
            text.contains("1, 1 slow repeated, 7 timers early"),
            "{text}"
        );
        assert!(!text.contains("3.00x"), "early timers are not late: {text}");
    }
}
