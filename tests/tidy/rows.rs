//! Which rows of the tables in `docs/conformance.md` are held by a test, and which do not apply.
//!
//! A line of a table begins with its row: `| c044 | behaviour | seen in |`. A row that does not
//! apply says `**Does not apply:** reason` at the end of a cell.
//!
//! A test holds the rows at the head of its name: `fn c044_..` and `fn r07_..`, also several, as in
//! `fn c158_r25_..`. Rows of the first table can also stand at the beginning of a comment
//! (`// c046 c047`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;

use crate::source::Source;

/// A row of a table, shown as in the document and in the names of tests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Row {
    /// A row of the tables of behaviours.
    Conformance(u16),
    /// A row of the lessons of leases.
    Leases(u16),
}

use Row::{Conformance, Leases};

/// Where the tables are.
pub(crate) const DOCUMENT: &str = "docs/conformance.md";

/// Makes a row of a number.
type Table = fn(u16) -> Row;

/// The rows that the document has to have.
const CONFORMANCE: RangeInclusive<u16> = 1..=173;
const LEASES: RangeInclusive<u16> = 1..=30;

fn wanted() -> impl Iterator<Item = Row> {
    CONFORMANCE.map(Conformance).chain(LEASES.map(Leases))
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Conformance(number) => write!(f, "c{number:03}"),
            Leases(number) => write!(f, "r{number:02}"),
        }
    }
}

/// Whether a row of the document applies. If not, it needs no test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Applies {
    Yes,
    No,
}

/// The words before the reason of a row that does not apply.
const EXEMPT: &str = "**Does not apply:**";

/// Reads `c044` or `r07` at the head of a word or name, and returns the rest as well.
fn row(text: &str) -> Option<(Row, &str)> {
    let tables: [(char, usize, Table); 2] = [('c', 3, Conformance), ('r', 2, Leases)];
    tables.into_iter().find_map(|(letter, length, table)| {
        let digits = text.strip_prefix(letter)?;
        let number = digits.get(..length)?;
        let all_digits = number.bytes().all(|byte| byte.is_ascii_digit());
        let rest = &digits[length..];
        let ends = !rest.starts_with(|c: char| c.is_alphanumeric());
        (all_digits && ends).then(|| (table(number.parse().unwrap_or_default()), rest))
    })
}

/// The rows that the tests of a file hold, each with its place.
pub(crate) fn held(source: &Source) -> Vec<(Row, String)> {
    let mut found = Vec::new();
    // In the sources of a crate a comment counts only in a module for tests.
    let tests_only = !["src/", "crates/leases/src/", "crates/durable/src/"]
        .iter()
        .any(|folder| source.path.starts_with(folder));
    for function in source.functions.iter().filter(|f| f.is_test()) {
        let mut name = function.name.as_str();
        while let Some((row, rest)) = row(name) {
            found.push((row, format!("{}:{}", source.path, function.line)));
            name = rest.trim_start_matches('_');
        }
    }
    for comment in &source.comments {
        if comment.doc || !(tests_only || comment.test) {
            continue;
        }
        let words = comment.text.split([' ', ',']).filter(|w| !w.is_empty());
        let rows = words.map_while(row).map(|(row, _)| row);
        for row in rows.filter(|row| matches!(row, Conformance(_))) {
            found.push((row, format!("{}:{}", source.path, comment.line)));
        }
    }
    found
}

/// Reads the tables of the document.
pub(crate) fn documented(text: &str) -> Result<BTreeMap<Row, Applies>, String> {
    let mut found = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        let Some((row, cells)) = line.strip_prefix("| ").and_then(row) else {
            continue;
        };
        let fail = |what: &str| format!("line {}: row {row} {what}", at + 1);
        // What lies between the bars: nothing before the first and behind the last one.
        let cells: Vec<&str> = cells.split('|').map(str::trim).collect();
        let (["", behaviour @ .., _, ""], false) = (&cells[..], cells.len() < 4) else {
            return Err(fail("is no line of a table"));
        };
        if behaviour.iter().any(|cell| cell.is_empty()) {
            return Err(fail("has an empty cell"));
        }
        let reasons: Vec<&str> = behaviour
            .iter()
            .filter_map(|cell| Some(cell.split_once(EXEMPT)?.1))
            .collect();
        let applies = match reasons[..] {
            [] => Applies::Yes,
            [reason] if reason.split_whitespace().count() >= 3 => Applies::No,
            _ => return Err(fail("needs one reason why it does not apply")),
        };
        let last = found.last_key_value().map(|(last, _)| *last);
        if last.is_some_and(|last| last >= row) {
            return Err(fail("is not in order, or stands there twice"));
        }
        found.insert(row, applies);
    }
    Ok(found)
}

/// Every row is documented, and either has a test or does not apply.
pub(crate) fn complaints(
    held: &[(Row, String)],
    documented: &BTreeMap<Row, Applies>,
) -> Vec<String> {
    let mut found = Vec::new();
    let places = |row: Row| {
        let places = held.iter().filter(move |(held, _)| *held == row);
        places.map(|(_, place)| place.as_str()).collect::<Vec<_>>()
    };
    let known: BTreeSet<Row> = wanted().collect();
    let present: BTreeSet<Row> = documented.keys().copied().collect();
    for row in known.difference(&present) {
        found.push(format!("row {row} is missing in {DOCUMENT}"));
    }
    for row in present.difference(&known) {
        found.push(format!(
            "row {row} of {DOCUMENT} is unknown to tests/tidy/rows.rs"
        ));
    }
    let named: BTreeSet<Row> = held.iter().map(|(row, _)| *row).collect();
    for row in named.difference(&present) {
        found.push(format!(
            "row {row} is not in {DOCUMENT}: {:?}",
            places(*row)
        ));
    }
    for (row, applies) in documented {
        match (applies, named.contains(row)) {
            (Applies::Yes, false) => found.push(format!(
                "row {row} has no test (`fn {row}_..`, or a comment for a row of the first table); \
                 write one, or say in {DOCUMENT} why the row does not apply"
            )),
            (Applies::No, true) => found.push(format!(
                "row {row} does not apply according to {DOCUMENT}, and has a test: {:?}",
                places(*row)
            )),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(path: &str, text: &str) -> Vec<String> {
        let held = held(&Source::new(path, text));
        held.into_iter().map(|(row, _)| row.to_string()).collect()
    }

    #[test]
    fn a_test_holds_the_rows_of_its_name_and_of_its_comments() {
        let text = "#[test]\nfn c044_twice() {\n    // c046 c047: said.\n    // c048, c049\n    x();\n}\n\
                    #[test]\nfn c050_c051_pairs() {}\n";
        let expected = ["c044", "c050", "c051", "c046", "c047", "c048", "c049"];
        assert_eq!(rows("tests/keys.rs", text), expected);
        let text = format!("mod a {{}}\n#[cfg(all(test, not(loom)))]\nmod tests {{\n{text}\n}}\n");
        assert_eq!(rows("src/x.rs", &text), expected);
    }

    #[test]
    fn a_test_holds_the_lessons_of_its_name_only() {
        let text = "#[test]\nfn r07_dead() {\n    // r08: no head of a name.\n    x();\n}\n\
                    #[test]\nfn c158_r25_r30_mixed() {}\n#[test]\nfn r09_c153_mixed() {}\n";
        let expected = ["r07", "c158", "r25", "r30", "r09", "c153"];
        assert_eq!(rows("tests/leases.rs", text), expected);
    }

    #[test]
    fn what_only_looks_like_a_row_is_none() {
        for text in [
            "fn c044_helper() {}",
            "fn r07_helper() {}",
            "#[test]\nfn c44_short() {}",
            "#[test]\nfn c0441_long() {}",
            "#[test]\nfn r7_short() {}",
            "#[test]\nfn r007_long() {}",
            "#[test]\nfn see_c044() {}",
            "#[test]\nfn see_r07() {}",
            "/// c044\nfn f() {}",
            "// as c044 says",
            "let x = \"// c044\";",
        ] {
            assert!(rows("tests/keys.rs", text).is_empty(), "{text}");
        }
        assert!(rows("src/x.rs", "// c044\nfn f() {}").is_empty());
    }

    #[test]
    fn the_tables_are_read() {
        let text = "# Head\n\n| row | behaviour | seen in |\n|---|---|---|\n\
                    | c065 | Iteration shows all timers. | Agrona |\n\
                    | c066 | In order. **Does not apply:** there is no order. | |\n\
                    | r07 | Its thread was dead. | Dropping the guard ends it. | #1 |\n\
                    Row c001 of the text. c002 | too |\n";
        let expected = [
            (Conformance(65), Applies::Yes),
            (Conformance(66), Applies::No),
            (Leases(7), Applies::Yes),
        ];
        assert_eq!(documented(text), Ok(BTreeMap::from(expected)));
        for (wrong, why) in [
            ("| c001", "no line"),
            ("| c001 | |", "no line"),
            ("| c001 | it runs |", "no line"),
            ("| c001 | it runs | Netty", "no line"),
            ("| c001 | | Netty |", "empty cell"),
            ("| r01 | it was lost | | Netty |", "empty cell"),
            ("| c001 | **Does not apply:** no. | |", "reason"),
            ("| c002 | it runs | |\n| c001 | it runs | |", "order"),
            ("| c001 | it runs | |\n| c001 | it runs | |", "twice"),
            ("| r01 | it runs | |\n| c001 | it runs | |", "order"),
        ] {
            let error = documented(wrong).unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }

    /// A test for every row except these.
    fn held_but(except: &[Row]) -> Vec<(Row, String)> {
        wanted()
            .filter(|row| !except.contains(row))
            .map(|row| (row, "tests/x.rs:1".to_owned()))
            .collect()
    }

    /// A document with every row, of which these do not apply.
    fn all_but(exempt: &[Row]) -> BTreeMap<Row, Applies> {
        wanted()
            .map(|row| match exempt.contains(&row) {
                true => (row, Applies::No),
                false => (row, Applies::Yes),
            })
            .collect()
    }

    /// The one complaint.
    fn complaint(held: &[(Row, String)], documented: &BTreeMap<Row, Applies>) -> String {
        let found = complaints(held, documented);
        assert_eq!(found.len(), 1, "{found:?}");
        found.into_iter().next().unwrap()
    }

    #[test]
    fn every_row_has_a_test_or_a_reason() {
        for row in [Conformance(66), Conformance(173), Leases(7), Leases(30)] {
            assert_eq!(complaints(&held_but(&[row]), &all_but(&[row])), [""; 0]);
            let neither = complaint(&held_but(&[row]), &all_but(&[]));
            assert!(
                neither.contains(&format!("row {row} has no test")),
                "{neither}"
            );
            let both = complaint(&held_but(&[]), &all_but(&[row]));
            assert!(
                both.contains(&format!("row {row} does not apply")),
                "{both}"
            );
        }
        let mut twice = held_but(&[]);
        twice.push((Conformance(95), "tests/x.rs:9".to_owned()));
        assert_eq!(complaints(&twice, &all_but(&[])), [""; 0]);
    }

    #[test]
    fn the_document_has_every_row_and_no_other() {
        for row in [Conformance(1), Conformance(173), Leases(30)] {
            let mut document = all_but(&[]);
            document.remove(&row);
            let found = complaints(&held_but(&[row]), &document);
            assert_eq!(found, [format!("row {row} is missing in {DOCUMENT}")]);
        }
        for row in [Conformance(174), Leases(31)] {
            let mut held = held_but(&[]);
            held.push((row, "tests/x.rs:9".to_owned()));
            let named = complaint(&held, &all_but(&[]));
            assert!(named.contains(&format!("row {row} is not in")), "{named}");
            let mut document = all_but(&[]);
            document.insert(row, Applies::No);
            let listed = complaint(&held_but(&[]), &document);
            assert!(listed.contains(&format!("row {row} of")), "{listed}");
        }
    }
}
