//! The account of a run. It compares the counters of the engine with those of the program.

use std::fmt;

/// One row of the account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) engine: u64,
    pub(crate) program: u64,
    /// The source of the program's number.
    pub(crate) source: &'static str,
}

/// The account. The first row counts what came in, and the others how it ended.
#[derive(Clone, Debug)]
pub(crate) struct Balance {
    pub(crate) inserted: Row,
    pub(crate) ends: Vec<Row>,
    /// Numbers that must be zero, each with the meaning of another value.
    pub(crate) zeros: Vec<(u64, &'static str)>,
}

impl Balance {
    /// Returns one line for each number that does not balance. It is empty if nothing was lost.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for Row {
            name,
            engine,
            program,
            source,
        } in self.rows()
        {
            if engine != program {
                faults.push(format!(
                    "{name}: the engine says {engine}, {source} {program}"
                ));
            }
        }
        for (who, of) in [
            ("engine", Row::engine as fn(&Row) -> u64),
            ("program", Row::program),
        ] {
            let (inserted, ends) = (of(&self.inserted), self.ends.iter().map(of).sum::<u64>());
            if inserted != ends {
                faults.push(format!(
                    "by the {who} {inserted} were inserted and {ends} ended"
                ));
            }
        }
        let present = self.zeros.iter().filter(|&&(count, _)| count != 0);
        faults.extend(present.map(|(count, meaning)| format!("{count} {meaning}")));
        faults
    }

    fn rows(&self) -> impl Iterator<Item = &Row> {
        std::iter::once(&self.inserted).chain(&self.ends)
    }
}

impl Row {
    fn engine(&self) -> u64 {
        self.engine
    }

    fn program(&self) -> u64 {
        self.program
    }
}

/// The width of the table with its sources.
pub(crate) const WIDE: usize = 76;

/// Shows the table and, under it, `nothing lost` or the faults. The alternate form leaves out the
/// sources, for narrow terminals.
impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:12} {:>15} {:>15}", "sessions", "engine", "program")?;
        for Row {
            name,
            engine,
            program,
            source,
        } in self.rows()
        {
            let (engine, program) = (grouped(*engine), grouped(*program));
            write!(f, "{name:12} {engine:>15} {program:>15}")?;
            if !f.alternate() {
                write!(f, "   {source}")?;
            }
            writeln!(f)?;
        }
        let faults = self.faults();
        if faults.is_empty() {
            return writeln!(f, "nothing lost");
        }
        writeln!(f, "does not balance:")?;
        faults.iter().try_for_each(|fault| writeln!(f, "  {fault}"))
    }
}

/// Formats a number with a comma between thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at != 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, engine: u64, program: u64) -> Row {
        Row {
            name,
            engine,
            program,
            source: "the handlers say",
        }
    }

    fn balanced() -> Balance {
        Balance {
            inserted: row("inserted", 1_234, 1_234),
            ends: vec![row("expired", 1_200, 1_200), row("removed", 34, 34)],
            zeros: vec![(0, "refused")],
        }
    }

    #[test]
    fn a_balanced_account_says_nothing_lost() {
        let text = balanced().to_string();
        assert!(text.contains("expired                1,200           1,200   the handlers say\n"));
        assert!(text.ends_with("\nnothing lost\n"), "{text}");
        let narrow = format!("{:#}", balanced());
        assert!(
            narrow.contains("expired                1,200           1,200\n"),
            "{narrow}"
        );
        assert!(narrow.ends_with("\nnothing lost\n"), "{narrow}");
    }

    #[test]
    fn each_fault_is_named() {
        let mut lost = balanced();
        lost.ends[0].program -= 1;
        lost.zeros[0].0 = 2;
        let faults = [
            "expired: the engine says 1200, the handlers say 1199",
            "by the program 1234 were inserted and 1233 ended",
            "2 refused",
        ];
        assert_eq!(lost.faults(), faults);
        let text = lost.to_string();
        assert!(
            !text.contains("nothing lost") && text.contains("does not balance"),
            "{text}"
        );

        let mut invented = balanced();
        invented.ends[1] = row("removed", 35, 35);
        let faults = [
            "by the engine 1234 were inserted and 1235 ended",
            "by the program 1234 were inserted and 1235 ended",
        ];
        assert_eq!(invented.faults(), faults);
    }

    #[test]
    fn thousands_are_grouped() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }
}
