//! The places for tables in documents of the repository: everything between a line that names a
//! table and the line that ends it is made by the program, so that no figure is copied by hand.

use super::targets::{Standing, Verdict, standings};
use crate::figures::row::Run;

/// The lines around a table, as comments of Markdown.
const TARGETS: &str = "<!-- benches: targets -->";
const SUMMARY: &str = "<!-- benches: summary -->";
const MODEL: &str = "<!-- benches: model -->";
const END: &str = "<!-- benches: end -->";

/// Whether a document has places for tables of targets, each with an end.
pub(crate) fn check(document: &str) -> Result<(), String> {
    let none = [TARGETS, SUMMARY].map(|name| (name, String::new()));
    replaced(document, &none).map(drop)
}

/// The document with this model in its place.
pub(crate) fn with_model(document: &str, model: &str) -> Result<String, String> {
    replaced(document, &[(MODEL, model.to_owned())])
}

/// The document with the tables of this run.
pub(crate) fn filled(document: &str, run: &Run) -> Result<String, String> {
    let standings = standings(run);
    if standings.is_empty() {
        return Err("the run has no figure of a target, or is no full one".to_owned());
    }
    let tables = [
        (TARGETS, targets(run, &standings)),
        (SUMMARY, summary(run, &standings)),
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
fn origin(run: &Run) -> String {
    let commit = run.commit.as_deref().unwrap_or("unknown");
    // A commit with changes says so.
    let commit = match commit.split_once(' ') {
        Some((hash, rest)) => format!("`{}` {rest}", &hash[..hash.len().min(7)]),
        None => format!("`{}`", &commit[..commit.len().min(7)]),
    };
    format!(
        "Made by `{}` at commit {commit}. {}.",
        run.command,
        run.machine.line()
    )
}

/// Every target.
pub(super) fn targets(run: &Run, standings: &[Standing]) -> String {
    let count = |verdict| standings.iter().filter(|s| s.verdict == verdict).count();
    let mut text = format!(
        "{}\n\n{} met, {} missed, {} not judged, {} not measured.\n\n",
        origin(run),
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
fn summary(run: &Run, standings: &[Standing]) -> String {
    let mut text = format!("{}\n\n", origin(run));
    text += "| | tourbillon | best peer | ratio |\n|---|--:|--:|--:|\n";
    let mut ahead = Vec::new();
    for standing in standings.iter().filter(|s| s.target.quoted) {
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
        let (value, other) = if *times < 1.0 {
            ahead.push(format!("{other} in \"{what}\""));
            (value.clone(), format!("**{other_value}**, {other}"))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::row::tests::{row, run};
    use crate::workload::Form;

    /// Timeouts of one thread, with the heap ahead if it does so much.
    fn with_heap(heap: f64) -> Run {
        let rows = [
            ("tourbillon", 11.0),
            ("heap", heap),
            ("tokio-sleep", 1.0),
            ("netty", 2.0),
        ];
        let mut run = run(rows.map(|(system, value)| row("W3", system, value)).into());
        run.commit = Some("0123456789abcdef with changes".to_owned());
        run
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
        let model = format!("head\n{MODEL}\nold\n{END}\n");
        let expected = format!("head\n{MODEL}\nnew\n{END}\n");
        assert_eq!(with_model(&model, "new\n"), Ok(expected));
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
    fn a_document_without_places_is_refused() {
        for document in [
            "text\n".to_owned(),
            format!("{TARGETS}\n"),
            format!("{END}\n"),
            format!("{TARGETS}\n{SUMMARY}\n{END}\n"),
            format!("{MODEL}\n{END}\n"),
        ] {
            assert!(check(&document).is_err(), "{document}");
        }
        let document = format!("{TARGETS}\n{END}\n");
        assert!(check(&document).is_ok());
        assert!(with_model(&document, "").is_err());
        let mut quick = with_heap(1.0);
        quick.form = Form::Quick;
        assert!(filled(&document, &quick).is_err());
    }
}
