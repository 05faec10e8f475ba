//! Which rows of the two tables are held by a test, listed as not applying, or open.
//!
//! A test holds the rows at the head of its name: `fn c044_..` those of the conformance table,
//! `fn r07_..` those of the lessons of leases, also several: `fn c158_r25_..`. Of the conformance
//! table a test also holds those in comments that begin with rows (`// c046 c047`). What does not
//! apply stands in a list, one line per row: `66: reason` and `R07: reason`, or `43 later: reason`
//! for the half of a row that comes with another feature; the other half may have its test.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;

use crate::source::Source;

/// A row of a table. Shown as at the head of a name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Row {
    /// Of the conformance table.
    Conformance(u16),
    /// Of the lessons of leases.
    Leases(u16),
}

use Row::{Conformance, Leases};

/// Makes a row of a number.
type Table = fn(u16) -> Row;

/// All rows of the tables, which this crate has to answer for.
const CONFORMANCE: RangeInclusive<u16> = 1..=170;
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

/// A row that stands in the list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) later: bool,
}

/// `c044` or `r07` at the head of a word or name; the rest follows.
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

/// The rows that a file's tests hold, with the place of each.
pub(crate) fn held(source: &Source) -> Vec<(Row, String)> {
    let mut found = Vec::new();
    // Below src a comment counts only in a module for tests.
    let tests_only = !source.path.starts_with("src/");
    for function in source.functions().iter().filter(|f| f.is_test()) {
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

/// Reads the list of rows that do not apply.
pub(crate) fn listed(text: &str) -> Result<BTreeMap<Row, Listed>, String> {
    let mut found = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let fail = |what: &str| format!("line {}: {what}: {line}", at + 1);
        let (head, reason) = line
            .split_once(':')
            .ok_or_else(|| fail("not `NNN: reason`"))?;
        let (number, later) = match head.strip_suffix(" later") {
            Some(number) => (number, true),
            None => (head, false),
        };
        let (number, table): (_, Table) = match number.strip_prefix('R') {
            Some(number) => (number, Leases),
            None => (number, Conformance),
        };
        let number = number
            .parse()
            .map_err(|_| fail("not the number of a row"))?;
        if reason.split_whitespace().count() < 3 {
            return Err(fail("that is no reason"));
        }
        if found.insert(table(number), Listed { later }).is_some() {
            return Err(fail("the row stands in the list already"));
        }
    }
    Ok(found)
}

/// Every row is held by a test, listed, or open, and not two of these.
pub(crate) fn complaints(
    held: &[(Row, String)],
    listed: &BTreeMap<Row, Listed>,
    open: &[Row],
) -> Vec<String> {
    let mut found = Vec::new();
    let places = |row: Row| {
        let places = held.iter().filter(move |(held, _)| *held == row);
        places.map(|(_, place)| place.as_str()).collect::<Vec<_>>()
    };
    let named: BTreeSet<Row> = held.iter().map(|(row, _)| *row).collect();
    let known: BTreeSet<Row> = wanted().collect();
    for row in named.difference(&known) {
        found.push(format!("row {row} is unknown: {:?}", places(*row)));
    }
    for (row, entry) in listed {
        if !known.contains(row) {
            found.push(format!("row {row} of the list is unknown"));
        }
        if named.contains(row) && !entry.later {
            found.push(format!(
                "row {row} is listed as not applying and has a test: {:?}",
                places(*row)
            ));
        }
    }
    let answered = |row: &Row| named.contains(row) || listed.contains_key(row);
    let missing: Vec<String> = wanted()
        .filter(|row| !answered(row) && !open.contains(row))
        .map(|row| row.to_string())
        .collect();
    if !missing.is_empty() {
        found.push(format!(
            "rows [{}] have no test (`fn c044_..` or `// c044`, `fn r07_..`) and do not stand in \
             tests/conformance/not_applicable.txt",
            missing.join(", ")
        ));
    }
    let left: Vec<Row> = wanted()
        .filter(|row| open.contains(row) && !answered(row))
        .collect();
    if left != open {
        let closed: Vec<String> = open
            .iter()
            .filter(|row| !left.contains(row))
            .map(Row::to_string)
            .collect();
        found.push(format!(
            "OPEN_ROWS: [{}] are open no more (or it is not sorted); make it {left:?}",
            closed.join(", ")
        ));
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
    fn the_list_is_read() {
        let text = "# Head.\n\n66: there is no ordered iteration\n43 later: the periodic half of it\n\
                    R07: there are no threads\n7: there is no reason\n";
        let list = listed(text).unwrap();
        assert_eq!(list[&Conformance(66)], Listed { later: false });
        assert_eq!(list[&Conformance(43)], Listed { later: true });
        assert_eq!(list[&Leases(7)], Listed { later: false });
        for wrong in [
            "66",
            "66: no",
            "R07: no",
            "x: there is no reason",
            "Rx: there is no reason",
            "66 soon: there is no reason",
            "66: there is no reason\n66: there is no reason",
            "R7: there is no reason\nR07: there is no reason",
        ] {
            assert!(listed(wrong).is_err(), "{wrong}");
        }
    }

    fn all_but(except: &[Row]) -> Vec<(Row, String)> {
        wanted()
            .filter(|row| !except.contains(row))
            .map(|row| (row, "tests/x.rs:1".to_owned()))
            .collect()
    }

    /// The one complaint.
    fn complaint(held: &[(Row, String)], list: &str, open: &[Row]) -> String {
        let found = complaints(held, &listed(list).unwrap(), open);
        assert_eq!(found.len(), 1, "{found:?}");
        found.into_iter().next().unwrap()
    }

    #[test]
    fn every_row_has_one_answer() {
        let text = "66: there is no ordered iteration\n43 later: the periodic half of it";
        let list = listed(text).unwrap();
        let (c007, c043, c066) = (Conformance(7), Conformance(43), Conformance(66));
        assert_eq!(complaints(&all_but(&[c066, c007]), &list, &[c007]), [""; 0]);
        assert_eq!(complaints(&all_but(&[c066, c043]), &list, &[]), [""; 0]);

        let no_answer = complaint(&all_but(&[c066, c007, Conformance(170)]), text, &[]);
        assert!(no_answer.contains("[c007, c170]"), "{no_answer}");
        let two_answers = complaint(&all_but(&[]), text, &[]);
        assert!(two_answers.contains("row c066"), "{two_answers}");
        let mut unknown = all_but(&[c066]);
        unknown.push((Conformance(171), "tests/x.rs:9".to_owned()));
        assert!(complaint(&unknown, text, &[]).contains("row c171"));
        unknown.pop();
        unknown.push((Conformance(95), "tests/x.rs:9".to_owned()));
        assert_eq!(complaints(&unknown, &list, &[]), [""; 0]);
        let foreign = "66: there is no ordered iteration\n300: there is no such row";
        assert!(complaint(&all_but(&[c066]), foreign, &[]).contains("row c300"));
    }

    #[test]
    fn every_lesson_has_one_answer() {
        let missing = complaint(&all_but(&[Leases(7), Leases(30)]), "", &[]);
        assert!(missing.contains("[r07, r30]"), "{missing}");
        let list = "R07: there are no threads";
        assert!(complaints(&all_but(&[Leases(7)]), &listed(list).unwrap(), &[]).is_empty());
        // Nor is a row of one table that of the other.
        let other = complaint(&all_but(&[Conformance(7), Leases(7)]), list, &[]);
        assert!(other.contains("[c007]"), "{other}");
        let two_answers = complaint(&all_but(&[]), list, &[]);
        assert!(two_answers.contains("row r07"), "{two_answers}");
        let mut unknown = all_but(&[]);
        unknown.push((Leases(31), "tests/x.rs:9".to_owned()));
        assert!(complaint(&unknown, "", &[]).contains("row r31"));
        let foreign = complaint(&all_but(&[]), "R31: there is no such row", &[]);
        assert!(foreign.contains("row r31"));
    }

    #[test]
    fn an_open_row_that_has_its_test_is_open_no_more() {
        let (c007, c008, r08) = (Conformance(7), Conformance(8), Leases(8));
        let shrink = complaint(&all_but(&[c008]), "", &[c007, c008]);
        assert!(shrink.contains("[c007] are open no more"), "{shrink}");
        assert!(shrink.ends_with("[Conformance(8)]"), "{shrink}");
        complaint(&all_but(&[c007, c008]), "", &[c008, c007]);
        complaint(&all_but(&[]), "", &[Conformance(95)]);
        complaint(&all_but(&[]), "", &[r08]);
        assert!(complaints(&all_but(&[c008, r08]), &BTreeMap::new(), &[c008, r08]).is_empty());
    }
}
