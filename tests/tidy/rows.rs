//! Which rows of the conformance table are held by a test, listed as not applying, or open.
//!
//! A test holds the rows at the head of its name (`fn c044_..`, also `fn c044_c045_..`) and those
//! in comments that begin with rows (`// c046 c047`). What does not apply stands in a list, one
//! line per row: `66: reason`, or `43 later: reason` for the half of a row that comes with another
//! feature; the other half may have its test.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::source::Source;

/// All rows of the table, and those of them that this crate has to answer for by now.
const KNOWN: RangeInclusive<u16> = 1..=170;
pub(crate) const WANTED: [RangeInclusive<u16>; 1] = [1..=150];

/// A row that stands in the list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) later: bool,
}

/// `c044` at the head of a word or name; the rest follows.
fn row(text: &str) -> Option<(u16, &str)> {
    let digits = text.strip_prefix('c')?;
    let number = digits.get(..3)?;
    let all_digits = number.bytes().all(|byte| byte.is_ascii_digit());
    let rest = &digits[3..];
    let ends = !rest.starts_with(|c: char| c.is_alphanumeric());
    (all_digits && ends).then(|| (number.parse().unwrap_or_default(), rest))
}

/// The rows that a file's tests hold, with the place of each.
pub(crate) fn held(source: &Source) -> Vec<(u16, String)> {
    let mut found = Vec::new();
    // Below src a comment counts only in a module for tests.
    let tests_only = !source.path.starts_with("src/");
    for function in source.functions().iter().filter(|f| f.is_test()) {
        let mut name = function.name.as_str();
        while let Some((number, rest)) = row(name) {
            found.push((number, format!("{}:{}", source.path, function.line)));
            name = rest.trim_start_matches('_');
        }
    }
    for comment in &source.comments {
        if comment.doc || !(tests_only || comment.test) {
            continue;
        }
        let words = comment.text.split([' ', ',']).filter(|w| !w.is_empty());
        for (number, _) in words.map_while(row) {
            found.push((number, format!("{}:{}", source.path, comment.line)));
        }
    }
    found
}

/// Reads the list of rows that do not apply.
pub(crate) fn listed(text: &str) -> Result<BTreeMap<u16, Listed>, String> {
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
        let number = number
            .parse()
            .map_err(|_| fail("not the number of a row"))?;
        if reason.split_whitespace().count() < 3 {
            return Err(fail("that is no reason"));
        }
        if found.insert(number, Listed { later }).is_some() {
            return Err(fail("the row stands in the list already"));
        }
    }
    Ok(found)
}

/// Every wanted row is held by a test, listed, or open, and not two of these.
pub(crate) fn complaints(
    held: &[(u16, String)],
    listed: &BTreeMap<u16, Listed>,
    open: &[u16],
) -> Vec<String> {
    let mut found = Vec::new();
    let places = |number: u16| {
        let places = held.iter().filter(move |(held, _)| *held == number);
        places.map(|(_, place)| place.as_str()).collect::<Vec<_>>()
    };
    let named: BTreeSet<u16> = held.iter().map(|(number, _)| *number).collect();
    for number in named.iter().filter(|number| !KNOWN.contains(number)) {
        found.push(format!("row {number} is unknown: {:?}", places(*number)));
    }
    for (number, entry) in listed {
        if !KNOWN.contains(number) {
            found.push(format!("row {number} of the list is unknown"));
        }
        if named.contains(number) && !entry.later {
            found.push(format!(
                "row {number} is listed as not applying and has a test: {:?}",
                places(*number)
            ));
        }
    }
    let answered = |number: &u16| named.contains(number) || listed.contains_key(number);
    let wanted = || WANTED.into_iter().flatten();
    let missing: Vec<u16> = wanted()
        .filter(|number| !answered(number) && !open.contains(number))
        .collect();
    if let Some(first) = missing.first() {
        found.push(format!(
            "rows {missing:?} have no test (`fn c{first:03}_..` or `// c{first:03}`) and do not \
             stand in tests/conformance/not_applicable.txt"
        ));
    }
    let left: Vec<u16> = wanted()
        .filter(|number| open.contains(number) && !answered(number))
        .collect();
    if left != open {
        let closed: Vec<&u16> = open
            .iter()
            .filter(|number| !left.contains(number))
            .collect();
        found.push(format!(
            "OPEN_ROWS: {closed:?} are open no more (or it is not sorted); make it [{}]",
            by_tens(&left)
        ));
    }
    found
}

/// One line per ten rows, so that two changes rarely meet in one line.
fn by_tens(rows: &[u16]) -> String {
    let mut text = String::new();
    let mut ten = None;
    for row in rows {
        let starts = ten.replace(row / 10) != Some(row / 10);
        text.push_str(if starts { "\n    " } else { " " });
        text.push_str(&format!("{row},"));
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(path: &str, text: &str) -> Vec<u16> {
        let held = held(&Source::new(path, text));
        held.into_iter().map(|(number, _)| number).collect()
    }

    #[test]
    fn a_test_holds_the_rows_of_its_name_and_of_its_comments() {
        let text = "#[test]\nfn c044_twice() {\n    // c046 c047: said.\n    // c048, c049\n    x();\n}\n\
                    #[test]\nfn c050_c051_pairs() {}\n";
        assert_eq!(rows("tests/keys.rs", text), [44, 50, 51, 46, 47, 48, 49]);
        let text = format!("mod a {{}}\n#[cfg(all(test, not(loom)))]\nmod tests {{\n{text}\n}}\n");
        assert_eq!(rows("src/x.rs", &text), [44, 50, 51, 46, 47, 48, 49]);
    }

    #[test]
    fn what_only_looks_like_a_row_is_none() {
        for text in [
            "fn c044_helper() {}",
            "#[test]\nfn c44_short() {}",
            "#[test]\nfn c0441_long() {}",
            "#[test]\nfn see_c044() {}",
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
        let text =
            "# Head.\n\n66: there is no ordered iteration\n43 later: the periodic half of it\n";
        let list = listed(text).unwrap();
        assert_eq!(list[&66], Listed { later: false });
        assert_eq!(list[&43], Listed { later: true });
        for wrong in [
            "66",
            "66: no",
            "x: there is no reason",
            "66 soon: there is no reason",
            "66: there is no reason\n66: there is no reason",
        ] {
            assert!(listed(wrong).is_err(), "{wrong}");
        }
    }

    fn all_but(except: &[u16]) -> Vec<(u16, String)> {
        let wanted = WANTED.into_iter().flatten();
        wanted
            .filter(|number| !except.contains(number))
            .map(|number| (number, "tests/x.rs:1".to_owned()))
            .collect()
    }

    #[test]
    fn every_row_has_one_answer() {
        let list =
            listed("66: there is no ordered iteration\n43 later: the periodic half of it").unwrap();
        assert_eq!(complaints(&all_but(&[66, 7]), &list, &[7]), [""; 0]);
        assert_eq!(complaints(&all_but(&[66, 43]), &list, &[]), [""; 0]);

        let no_answer = complaints(&all_but(&[66, 7]), &list, &[]);
        assert!(
            no_answer.len() == 1 && no_answer[0].contains("fn c007_"),
            "{no_answer:?}"
        );
        let two_answers = complaints(&all_but(&[]), &list, &[]);
        assert!(
            two_answers.len() == 1 && two_answers[0].contains("row 66"),
            "{two_answers:?}"
        );
        let mut unknown = all_but(&[66]);
        unknown.push((171, "tests/x.rs:9".to_owned()));
        assert_eq!(complaints(&unknown, &list, &[]).len(), 1);
        unknown.pop();
        unknown.push((95, "tests/x.rs:9".to_owned()));
        assert_eq!(complaints(&unknown, &list, &[]).len(), 0);
        let foreign =
            listed("66: there is no ordered iteration\n300: there is no such row").unwrap();
        assert_eq!(complaints(&all_but(&[66]), &foreign, &[]).len(), 1);
    }

    #[test]
    fn an_open_row_that_has_its_test_is_open_no_more() {
        let list = BTreeMap::new();
        let shrink = complaints(&all_but(&[8]), &list, &[7, 8]);
        assert!(
            shrink.len() == 1 && shrink[0].contains("[7] are open no more"),
            "{shrink:?}"
        );
        assert!(shrink[0].ends_with("[\n    8,\n]"), "{shrink:?}");
        let unsorted = complaints(&all_but(&[7, 8]), &list, &[8, 7]);
        assert_eq!(unsorted.len(), 1);
        assert_eq!(complaints(&all_but(&[]), &list, &[95]).len(), 1);
    }
}
