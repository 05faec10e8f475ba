//! The comparison of two sets of counts.

use std::collections::BTreeSet;
use std::fmt;

use crate::Counts;

/// The part of a stored count by which a path may change, 2 %.
pub const TOLERANCE: f64 = 0.02;

/// The end of the names of paths that read a clock which goes on while they are counted. How often
/// such a clock takes an anchor is up to the machine, so these counts are shown and not judged.
pub(crate) const REAL_TIME: &str = "_in_real_time";

/// The result of a comparison.
#[derive(Clone, PartialEq, Debug)]
pub enum Verdict {
    /// There is no baseline for these versions, so nothing was compared.
    NotJudged {
        /// The versions.
        platform: String,
        /// The measured counts.
        measured: Counts,
    },
    /// Every path was compared.
    Judged(Vec<Row>),
}

/// One path of a comparison.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The name of the path.
    pub name: String,
    /// The stored count.
    pub stored: Option<f64>,
    /// The measured count.
    pub measured: Option<f64>,
    /// The result.
    pub judgement: Judgement,
}

/// The result of comparing one path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judgement {
    /// Within the tolerance.
    Same,
    /// Fewer instructions, beyond the tolerance.
    Fewer,
    /// More instructions, beyond the tolerance.
    More,
    /// The path was measured and is not stored.
    NotStored,
    /// The path is stored and was not measured.
    NotMeasured,
    /// The path depends on real time.
    Shown,
}

impl Verdict {
    /// Compares `measured` with the stored counts of the platform, if there are any.
    #[must_use]
    pub fn of(platform: &str, stored: Option<&Counts>, measured: &Counts) -> Self {
        let Some(stored) = stored else {
            return Verdict::NotJudged {
                platform: platform.to_owned(),
                measured: measured.clone(),
            };
        };
        let names: BTreeSet<_> = stored.0.keys().chain(measured.0.keys()).collect();
        let row = |name: &String| {
            let (stored, measured) = (stored.0.get(name), measured.0.get(name));
            let judgement = match (stored, measured) {
                _ if name.ends_with(REAL_TIME) => Judgement::Shown,
                (None, _) => Judgement::NotStored,
                (_, None) => Judgement::NotMeasured,
                (Some(stored), Some(measured)) if *measured > stored * (1.0 + TOLERANCE) => {
                    Judgement::More
                }
                (Some(stored), Some(measured)) if *measured < stored * (1.0 - TOLERANCE) => {
                    Judgement::Fewer
                }
                (Some(_), Some(_)) => Judgement::Same,
            };
            Row {
                name: name.clone(),
                stored: stored.copied(),
                measured: measured.copied(),
                judgement,
            }
        };
        Verdict::Judged(names.into_iter().map(row).collect())
    }

    /// Whether the gate lets the change pass.
    #[must_use]
    pub fn passes(&self) -> bool {
        let fails = |row: &Row| {
            use Judgement::{More, NotMeasured, NotStored};
            matches!(row.judgement, More | NotStored | NotMeasured)
        };
        match self {
            Verdict::NotJudged { .. } => true,
            Verdict::Judged(rows) => !rows.iter().any(fails),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = match self {
            Verdict::NotJudged { platform, measured } => {
                write!(f, "{measured}")?;
                return writeln!(f, "not judged: no baseline for {platform}");
            }
            Verdict::Judged(rows) => rows,
        };
        let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
        writeln!(
            f,
            "{:width$} {:>11} {:>11} {:>9}",
            "instructions per call", "baseline", "now", "change"
        )?;
        for row in rows {
            writeln!(f, "{row:width$}")?;
        }
        let count = |judgement| rows.iter().filter(|row| row.judgement == judgement).count();
        let fewer = count(Judgement::Fewer);
        if fewer > 0 {
            writeln!(
                f,
                "{fewer} paths take fewer instructions: store them with `cargo run -p instruction-counts -- --store`"
            )?;
        }
        for row in rows.iter().filter(|row| row.judgement == Judgement::More) {
            writeln!(
                f,
                "FAILED: {} takes over {:.0} % more instructions than its baseline",
                row.name,
                TOLERANCE * 100.0
            )?;
        }
        if count(Judgement::NotStored) + count(Judgement::NotMeasured) > 0 {
            writeln!(
                f,
                "FAILED: the paths are not those of the baseline: store it with the commit that changes them"
            )?;
        }
        Ok(())
    }
}

/// The width pads the name.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = f.width().unwrap_or(0);
        let number =
            |number: Option<f64>| number.map_or_else(|| "-".to_owned(), |n| format!("{n:.1}"));
        let change = self.stored.zip(self.measured).map_or_else(
            || "-".to_owned(),
            |(stored, measured)| format!("{:+.2} %", (measured / stored - 1.0) * 100.0),
        );
        let note = match self.judgement {
            Judgement::Same => "",
            Judgement::Fewer => "  fewer",
            Judgement::More => "  MORE",
            Judgement::NotStored => "  NOT STORED",
            Judgement::NotMeasured => "  NOT MEASURED",
            Judgement::Shown => "  in real time, not judged",
        };
        let (stored, measured) = (number(self.stored), number(self.measured));
        write!(
            f,
            "{:width$} {stored:>11} {measured:>11} {change:>9}{note}",
            self.name
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str) -> Counts {
        Counts::from_text(text).unwrap()
    }

    fn judged(stored: &str, measured: &str) -> Verdict {
        Verdict::of("here", Some(&counts(stored)), &counts(measured))
    }

    #[test]
    fn three_percent_more_fails_and_names_the_path() {
        let verdict = judged("a::slow 1000\nb::same 50", "a::slow 1030\nb::same 50");
        assert!(!verdict.passes());
        let text = verdict.to_string();
        assert!(
            text.contains("FAILED: a::slow takes over 2 % more"),
            "{text}"
        );
        assert!(text.contains("+3.00 %  MORE"), "{text}");
        assert!(!text.contains("FAILED: b::same"), "{text}");
    }

    #[test]
    fn one_slow_path_among_faster_ones_fails() {
        assert!(!judged("a 1000\nb 1000\nc 10", "a 500\nb 500\nc 10.3").passes());
    }

    #[test]
    fn two_percent_passes_in_both_directions() {
        for measured in ["a 1020", "a 980", "a 1000"] {
            let verdict = judged("a 1000", measured);
            assert!(verdict.passes());
            assert!(!verdict.to_string().contains("store"));
        }
    }

    #[test]
    fn three_percent_less_passes_and_is_to_be_stored() {
        let verdict = judged("a 1000", "a 970");
        assert!(verdict.passes());
        let text = verdict.to_string();
        assert!(text.contains("-3.00 %  fewer"), "{text}");
        assert!(text.contains("--store"), "{text}");
    }

    #[test]
    fn a_path_that_only_one_side_has_fails() {
        for (stored, measured) in [("a 1\nb 1", "a 1"), ("a 1", "a 1\nb 1")] {
            let verdict = judged(stored, measured);
            assert!(!verdict.passes());
            assert!(verdict.to_string().contains("store it with the commit"));
        }
    }

    #[test]
    fn a_path_in_real_time_is_shown_and_not_judged() {
        for (stored, measured) in [
            ("a 1", "a 1\nx_in_real_time 9"),
            ("x_in_real_time 1\na 1", "a 1"),
        ] {
            let verdict = judged(stored, measured);
            assert!(verdict.passes());
            assert!(verdict.to_string().contains("not judged"));
        }
        assert!(judged("x_in_real_time 1", "x_in_real_time 9").passes());
    }

    #[test]
    fn an_unknown_version_is_not_judged() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("baseline");
        let platform = crate::Platform::from_answers("rustc 0.0.1", "glibc 0.1", "x86_64");
        let baseline = crate::Baseline::new(&folder, &platform);
        let stored = baseline.read().unwrap();
        let verdict = Verdict::of(baseline.name(), stored.as_ref(), &counts("a 1000"));
        assert!(verdict.passes());
        let text = verdict.to_string();
        let last = "not judged: no baseline for rustc-0.0.1-glibc-0.1-x86_64\n";
        assert!(text.ends_with(last), "{text}");
    }
}
