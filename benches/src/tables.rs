//! The tables of targets in documents of the repository: everything between a line that names a table and the
//! line that ends it is made by the program, so that no figure is copied by hand.

use crate::report::Report;
use crate::targets::{self, Found, Standing, Verdict};

/// The lines around a table, as comments of Markdown.
const TARGETS: &str = "<!-- benches: targets -->";
const SUMMARY: &str = "<!-- benches: summary -->";
const MODEL: &str = "<!-- benches: model -->";
const END: &str = "<!-- benches: end -->";

/// Whether a document has places for tables of targets, each with an end.
pub(crate) fn check(document: &str) -> Result<(), String> {
    replaced(
        document,
        &[(TARGETS, String::new()), (SUMMARY, String::new())],
    )
    .map(drop)
}

/// The document with this model in its place.
pub(crate) fn with_model(document: &str, model: String) -> Result<String, String> {
    replaced(document, &[(MODEL, model)])
}

/// The document with the tables of this report.
pub(crate) fn filled(document: &str, report: &Report) -> Result<String, String> {
    let standings = targets::standings(report);
    if standings.is_empty() {
        return Err("the run has no figure of a target, or is no full one".to_owned());
    }
    let tables = [
        (TARGETS, all(report, &standings)),
        (SUMMARY, summary(report, &standings)),
    ];
    replaced(document, &tables)
}

/// The document with each of these texts behind the line that names it.
fn replaced(document: &str, texts: &[(&str, String)]) -> Result<String, String> {
    let mut text = String::new();
    let (mut open, mut count) = (false, 0);
    for line in document.lines() {
        if line.trim() == END {
            if !open && count == 0 {
                return Err(format!("{END} without a beginning"));
            }
            open = false;
        }
        if !open {
            text += line;
            text.push('\n');
        }
        if let Some((_, made)) = texts.iter().find(|(name, _)| *name == line.trim()) {
            if open {
                return Err(format!("a table without {END}"));
            }
            text += made;
            (open, count) = (true, count + 1);
        }
    }
    match (open, count) {
        (true, _) => Err(format!("a table without {END}")),
        (false, 0) => {
            let names: Vec<&str> = texts.iter().map(|(name, _)| *name).collect();
            Err(format!("it has no line {}", names.join(" or ")))
        }
        (false, _) => Ok(text),
    }
}

/// Where the figures are from.
fn origin(report: &Report) -> String {
    let commit = report.commit.as_deref().unwrap_or("unknown");
    // A commit with changes says so.
    let commit = match commit.split_once(' ') {
        Some((hash, rest)) => format!("`{}` {rest}", &hash[..hash.len().min(7)]),
        None => format!("`{}`", &commit[..commit.len().min(7)]),
    };
    format!(
        "Made by `{}` at commit {commit}. {}.",
        report.command,
        report.machine.line()
    )
}

/// Every target.
pub(crate) fn all(report: &Report, standings: &[Standing]) -> String {
    let count = |verdict| standings.iter().filter(|s| s.verdict == verdict).count();
    let mut text = format!(
        "{}\n\n{} met, {} missed, {} not judged, {} not measured.\n\n",
        origin(report),
        count(Verdict::Met),
        count(Verdict::Missed),
        count(Verdict::NotJudged),
        count(Verdict::NotMeasured),
    );
    text += "| | workload | to reach | | today |\n|---|---|---|---|---|\n";
    for standing in standings {
        text += &format!(
            "| {} | {} | {} | {} | {} |\n",
            standing.target.number,
            standing.target.what,
            standing.target.reach.in_words(),
            standing.verdict.name(),
            standing.today(),
        );
    }
    text
}

/// Those that the README quotes, also where a peer is ahead.
fn summary(report: &Report, standings: &[Standing]) -> String {
    let mut text = format!("{}\n\n", origin(report));
    text += "| | tourbillon | best peer | ratio |\n|---|--:|--:|--:|\n";
    let mut ahead = Vec::new();
    for standing in standings.iter().filter(|s| s.target.in_readme) {
        // "W2: touches of .." without the name that only the benchmarks know.
        let what = standing.target.what;
        let what = what.split_once(": ").map_or(what, |(_, what)| what);
        // The worst of ours.
        let compared = standing.found.first().and_then(compared);
        let Some((value, times, other, other_value)) = compared else {
            let why = standing.verdict.name().trim_matches('*');
            text += &format!("| {what} | {why} | | |\n");
            continue;
        };
        let (value, other) = if times < 1.0 {
            ahead.push(format!("{other} in \"{what}\""));
            (value.to_owned(), format!("**{other_value}**, {other}"))
        } else {
            (format!("**{value}**"), format!("{other_value}, {other}"))
        };
        text += &format!("| {what} | {value} | {other} | {times:.2}x |\n");
    }
    if !ahead.is_empty() {
        text += &format!("\nA peer is ahead: {}.\n", ahead.join("; "));
    }
    text
}

fn compared(found: &Found) -> Option<(&str, f64, &str, &str)> {
    let (times, other, value) = found.against.as_ref()?;
    Some((&found.value, *times, other, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{figure, report};

    /// Timeouts of one thread, with the heap ahead if it does so much.
    fn with_heap(heap: f64) -> Report {
        let of = |system, value| {
            let mut figure = figure("W3", system, value);
            figure.keys = 0;
            figure
        };
        let mut report = report(vec![
            of("tourbillon", 11.0),
            of("heap", heap),
            of("tokio-sleep", 1.0),
            of("netty", 2.0),
        ]);
        report.commit = Some("0123456789abcdef with changes".to_owned());
        report
    }

    #[test]
    fn only_what_lies_between_the_lines_is_replaced() {
        let document = format!("# Head\n{TARGETS}\nold\nold\n{END}\ntail\n{SUMMARY}\n{END}\n");
        let once = filled(&document, &with_heap(10.0)).expect("there are places");
        assert!(once.starts_with(&format!(
            "# Head\n{TARGETS}\nMade by `a command` at commit `0123456` with changes."
        )));
        assert!(once.contains(&format!("{END}\ntail\n{SUMMARY}\nMade")));
        assert!(!once.contains("old"));
        assert!(once.contains(
            "| P7 | W3: request timeouts, boxed, 1 thread | 1.1x the best peer | met | 1.10x: 11.0 Mops/s, heap 10.0 Mops/s |"
        ));
        assert!(once.contains("1 met, 0 missed, 0 not judged, "));
        assert_eq!(filled(&once, &with_heap(10.0)), Ok(once), "it stays so");
    }

    #[test]
    fn the_summary_quotes_where_a_peer_is_ahead() {
        let document = format!("{SUMMARY}\n{END}\n");
        let ahead = filled(&document, &with_heap(22.0)).expect("there is a place");
        let row =
            "| request timeouts, boxed, 1 thread | 11.0 Mops/s | **22.0 Mops/s**, heap | 0.50x |";
        assert!(ahead.contains(row), "{ahead}");
        let words = "A peer is ahead: heap in \"request timeouts, boxed, 1 thread\".";
        assert!(ahead.contains(words), "{ahead}");
        let behind = filled(&document, &with_heap(5.5)).expect("there is a place");
        assert!(behind.contains("| **11.0 Mops/s** | 5.50 Mops/s, heap | 2.00x |"));
        assert!(!behind.contains("ahead"), "{behind}");
        // A target that was not measured has a row, too.
        assert!(behind.contains("| not measured | | |"), "{behind}");
    }

    #[test]
    fn a_model_has_a_place_of_its_own() {
        let document = format!("head\n{MODEL}\nold\n{END}\n");
        let text = with_model(&document, "new\n".to_owned());
        assert_eq!(text, Ok(format!("head\n{MODEL}\nnew\n{END}\n")));
        assert!(with_model("head\n", String::new()).is_err());
        assert!(check(&document).is_err());
    }

    #[test]
    fn a_document_without_places_is_refused() {
        assert!(check("text\n").is_err());
        assert!(check(&format!("{TARGETS}\n")).is_err());
        assert!(check(&format!("{END}\n")).is_err());
        assert!(check(&format!("{TARGETS}\n{SUMMARY}\n{END}\n")).is_err());
        assert!(check(&format!("{TARGETS}\n{END}\n")).is_ok());
        let mut quick = with_heap(1.0);
        quick.form = "quick".to_owned();
        assert!(filled(&format!("{TARGETS}\n{END}\n"), &quick).is_err());
    }
}
