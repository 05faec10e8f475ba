//! The rows of a run for people: on a terminal, and in Markdown, made by the program so that no
//! figure is copied by hand.

use super::row::{Row, Run, digits, short};
use super::targets::{Standing, Verdict, standings};
use crate::mode::Mode;
use crate::workload::{Metric, Workload};
use crate::workloads;

/// What the columns mean.
const LEGEND: &str = "\
A figure is the median of the rounds, or the least of them for a maximum, since being preempted alone \
makes some milliseconds (so a maximum can be below a percentile). The ratio says how many times better \
the first system of a point is; below 1 it is behind. Points with several threads have a figure for each mode \
of the machine that was seen. A floor has no timers and fires nothing, or may fire early: it is what the work \
costs at least, and no peer.
";

const HEAD: [&str; 6] = ["", "system", "figure", "min - max", "ratio", "rounds"];

/// A row of figures in words, one for each column of [`HEAD`].
type Cells = [String; 6];

/// A table of Markdown below its head.
pub(super) fn markdown<C: AsRef<[String]>>(
    head: &str,
    rows: impl IntoIterator<Item = C>,
) -> String {
    let rows = rows.into_iter();
    let lines = rows.map(|cells| format!("| {} |\n", cells.as_ref().join(" | ")));
    format!("{head}\n") + &lines.collect::<String>()
}

/// All of a run on a terminal.
pub(super) fn text(run: &Run) -> String {
    let circumstances = circumstances(run).into_iter();
    let mut text: String = circumstances
        .map(|(name, value)| format!("{name:<9} {value}\n"))
        .collect();
    text += LEGEND;
    for (workload, rows) in of_workloads(run) {
        text += &format!("\n{}: {}\n", workload.name, workload.about);
        text += &aligned(rows);
    }
    text
}

/// All of a run in Markdown.
pub(super) fn document(run: &Run) -> String {
    let mut text = String::from(
        "# Figures\n\n\
         Made by the command below, in the tree of the commit below; the figures of every round are in the \
         JSON beside.\n\n",
    );
    text += &format!("{LEGEND}\n{}", listed(run));
    if let Some(targets) = targets(run) {
        text += &format!("\n## Targets\n\n{targets}");
    }
    text + &headed(run, "##")
}

/// The same as a part of a document that says what the columns mean.
pub(super) fn section(run: &Run) -> String {
    listed(run) + &headed(run, "###")
}

fn listed(run: &Run) -> String {
    let failures = run.failures.iter();
    let failures = failures.map(|failure| ("**failed**", failure.clone()));
    let all = circumstances(run).into_iter().chain(failures);
    let lines = all.map(|(name, value)| format!("- {name}: {value}\n"));
    lines.collect()
}

/// A table under a heading for each workload.
fn headed(run: &Run, level: &str) -> String {
    let head = format!("| {} |\n|---|---|--:|--:|--:|---|", HEAD.join(" | "));
    let tables = of_workloads(run).map(|(workload, rows)| {
        let table = markdown(&head, rows);
        format!("\n{level} {}: {}\n\n{table}", workload.name, workload.about)
    });
    tables.collect()
}

/// What was run, where and with what; a line each.
fn circumstances(run: &Run) -> Vec<(&'static str, String)> {
    let versions = run.versions.iter();
    let versions = versions.map(|v| format!("{} {}", v.name, v.version));
    let versions: Vec<String> = versions.collect();
    let form = format!("{}, {:.1} min", run.form.name(), run.seconds / 60.0);
    let mut lines = vec![
        ("machine", run.machine.line()),
        ("versions", versions.join(", ")),
        ("commit", run.commit().to_owned()),
        ("command", run.command.clone()),
        ("form", form),
    ];
    let ping = |ns: f64| ("ping-pong", format!("core to core and back {ns:.0} ns"));
    lines.extend(run.ping_ns.map(ping));
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
    let counted = |mode: &Mode| format!("{} {}", mode.name(), count(*mode));
    let counts: Vec<String> = seen.iter().map(counted).collect();
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
    let tables = workloads::every().map(|workload| {
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
    let floor = row.floor().map(|why| format!(" ({why}: a floor)"));
    let spread = row.spread(metric);
    let typical = spread.map(|s| format!("{} {}", digits(s.typical), metric.unit));
    let range = spread.map(|s| format!("{} - {}", digits(s.min), digits(s.max)));
    // A system that may be early is not late; and a thousandth of nothing is no ratio.
    let seen = |row: &Row| row.spread(metric).is_some_and(|s| s.typical >= 0.005);
    let ratio = lead
        .filter(|lead| row.early == 0 && seen(lead) && seen(row))
        .and_then(|lead| lead.over(row, metric))
        .map(|ratio| format!("{ratio:.2}x"));
    let [typical, range, ratio] = [typical, range, ratio].map(Option::unwrap_or_default);
    let system = row.system.clone() + &floor.unwrap_or_default();
    let rounds = rounds_in_words(row);
    [point, system, typical, range, ratio, rounds]
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
    let lines = rows.iter().map(|cells| {
        let padded = cells.iter().zip(widths);
        let padded = padded.map(|(cell, width)| format!("{cell:<width$}  "));
        padded.collect::<String>().trim_end().to_owned() + "\n"
    });
    lines.collect()
}

/// Where the figures are from.
fn origin(run: &Run) -> String {
    // A commit with changes says so.
    let commit = run.commit();
    let (hash, rest) = commit.split_at(commit.find(' ').unwrap_or(commit.len()));
    let hash = &hash[..hash.len().min(7)];
    let (command, machine) = (&run.command, run.machine.line());
    format!("Made by `{command}` at commit `{hash}`{rest}. {machine}.\n\n")
}

/// Every target, if the run has a figure of one.
pub(super) fn targets(run: &Run) -> Option<String> {
    let standings = standings(run);
    let count = |verdict| standings.iter().filter(|s| s.verdict == verdict).count();
    let (met, missed) = (count(Verdict::Met), count(Verdict::Missed));
    let (open, absent) = (count(Verdict::NotJudged), count(Verdict::NotMeasured));
    let counts =
        format!("{met} met, {missed} missed, {open} not judged, {absent} not measured.\n\n");
    let cells = |standing: &Standing| {
        let target = standing.target;
        let verdict = standing.verdict.name().to_owned();
        let (number, what) = (target.number.clone(), target.what.clone());
        let reach = target.reach.in_words();
        [number, what, reach, verdict, standing.today()]
    };
    let head = "| | workload | to reach | | today |\n|---|---|---|---|---|";
    let table = markdown(head, standings.iter().map(cells));
    (!standings.is_empty()).then(|| origin(run) + &counts + &table)
}

/// Those that the README quotes, also where a peer is ahead.
pub(super) fn summary(run: &Run) -> String {
    let mut text = origin(run) + "| | tourbillon | best peer | ratio |\n|---|--:|--:|--:|\n";
    let mut ahead = Vec::new();
    for standing in standings(run).iter().filter(|s| s.target.quoted) {
        // "W2: touches of .." without the name that only the benchmarks know.
        let what = &*standing.target.what;
        let what = what.split_once(": ").map_or(what, |(_, what)| what);
        // The worst of ours.
        let worst = standing.found.first();
        let compared = worst.and_then(|found| Some((&found.value, found.against.as_ref()?)));
        let Some((value, (times, other, other_value))) = compared else {
            let why = standing.verdict.name().trim_matches('*');
            text += &format!("| {what} | {why} | | |\n");
            continue;
        };
        let cells = if *times < 1.0 {
            ahead.push(format!("{other} in \"{what}\""));
            format!("{value} | **{other_value}**, {other}")
        } else {
            format!("**{value}** | {other_value}, {other}")
        };
        text += &format!("| {what} | {cells} | {times:.2}x |\n");
    }
    if !ahead.is_empty() {
        text += &format!("\nA peer is ahead: {}.\n", ahead.join("; "));
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
        let cells = cells(&rows.iter().collect::<Vec<_>>());
        let cells = cells.iter().map(|cells| [0, 1, 2, 4].map(|at| &*cells[at]));
        let expected = [
            ["1 k, 2 threads, near", "a", "7.00 Mops/s", ""],
            ["", "b", "3.50 Mops/s", "2.00x"],
            ["1 k, 2 threads, far", "a", "2.00 Mops/s", ""],
            ["", "b", "1.00 Mops/s", "2.00x"],
        ];
        assert_eq!(cells.collect::<Vec<_>>(), expected);
        let words = modes_in_words(&run(rows)).expect("there are modes");
        let counted = "near 3, far 2; never shared core; 4 not counted";
        assert!(words.contains(counted), "{words}");
        let far = modes_in_words(&run(in_modes("W2", "a", &[(far, &[2.0])])));
        let words = far.expect("there is one");
        assert!(words.contains("only the mode \"far\" was seen"), "{words}");
        assert!(words.contains("1 figures without a near round"), "{words}");
    }

    #[test]
    fn the_systems_of_a_point_stand_together_in_columns() {
        let mut early = row("W2", "b", 2.0);
        let text_of = |second: &Row| text(&run(vec![row("W2", "a", 6.0), second.clone()]));
        let text = text_of(&early);
        let at = |what| text.lines().find_map(|line| line.find(what));
        assert_eq!(at("6.00 Mops/s"), at("2.00 Mops/s"));
        assert!(text.contains("1 k, 1 thread"), "{text}");
        assert!(text.contains(" 3.00x "), "{text}");
        (early.early, early.slow) = (7, 1);
        let text = text_of(&early);
        let rounds = "1, 1 slow repeated, 7 timers early";
        assert!(text.contains(rounds), "{text}");
        assert!(!text.contains("3.00x"), "early timers are not late: {text}");
    }

    #[test]
    fn the_summary_quotes_where_a_peer_is_ahead() {
        let with_heap = |heap: f64| {
            let rows = [("tourbillon", 11.0), ("heap", heap)].into_iter();
            let rows = rows.chain(["netty", "sharded", "sweep"].map(|peer| (peer, 2.0)));
            let rows = rows.map(|(system, value)| row("W3", system, value));
            let mut run = run(rows.collect());
            run.commit = Some("0123456789abcdef with changes".to_owned());
            summary(&run)
        };
        let ahead = with_heap(22.0);
        for words in [
            "Made by `a command` at commit `0123456` with changes.",
            "| request timeouts, boxed, 1 thread | 11.0 Mops/s | **22.0 Mops/s**, heap | 0.50x |",
            "A peer is ahead: heap in \"request timeouts, boxed, 1 thread\".",
        ] {
            assert!(ahead.contains(words), "{ahead}");
        }
        let behind = with_heap(5.5);
        assert!(behind.contains("| **11.0 Mops/s** | 5.50 Mops/s, heap | 2.00x |"));
        // A target that was not measured has a row, too.
        assert!(behind.contains("| not measured | | |"), "{behind}");
        assert!(!behind.contains("ahead"), "{behind}");
    }
}
