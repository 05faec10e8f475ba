//! Labels of invariants, such as `SLEEP-1`. Each one names its place, is defined once, in bold type
//! in the head of a file, and is cited by its full name.

use std::collections::BTreeMap;

use crate::source::Source;

/// What looks like the place of a label and is something else.
const NAMES: &[&str] = &["CRC", "ISO", "JSR", "RFC", "SHA", "UTF"];

/// A label at one place of the tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Label {
    pub(crate) name: String,
    path: String,
    line: usize,
    /// Whether it stands in bold type in the head of a file.
    defined: bool,
}

/// All labels of a file, in comments, strings and prose.
pub(crate) fn labels(path: &str, text: &str) -> Vec<Label> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let head = line.starts_with("//!");
        for name in names(line) {
            found.push(Label {
                path: path.to_owned(),
                line: at + 1,
                defined: head && line.contains(&format!("**{name}**")),
                name,
            });
        }
    }
    found
}

/// Every `PLACE-1` of a line: at least three capital letters, a hyphen, a number.
fn names(line: &str) -> Vec<String> {
    let words = line.split(|c: char| !c.is_alphanumeric() && !"-_".contains(c));
    words
        .filter(|word| {
            word.split_once('-').is_some_and(|(place, number)| {
                place.len() >= 3
                    && place.bytes().all(|byte| byte.is_ascii_uppercase())
                    && !number.is_empty()
                    && number.bytes().all(|byte| byte.is_ascii_digit())
                    && !NAMES.contains(&place)
            })
        })
        .map(str::to_owned)
        .collect()
}

/// Every label is defined once, and all labels of a place are defined in one file.
pub(crate) fn complaints(labels: &[Label]) -> Vec<String> {
    let mut found = Vec::new();
    let mut definitions: BTreeMap<&str, &Label> = BTreeMap::new();
    let mut places: BTreeMap<&str, &Label> = BTreeMap::new();
    let mut complain = |label: &Label, what: &str| {
        found.push(format!(
            "{}:{}: {} {what}",
            label.path, label.line, label.name
        ));
    };
    for label in labels.iter().filter(|label| label.defined) {
        if let Some(first) = definitions.insert(&label.name, label) {
            let what = format!("is defined in {}:{} already", first.path, first.line);
            complain(label, &what);
        }
        let place = label.name.split('-').next().unwrap_or_default();
        let first = places.entry(place).or_insert(label);
        if first.path != label.path {
            let what = format!("belongs in {}, with {}", first.path, first.name);
            complain(label, &what);
        }
    }
    for label in labels.iter().filter(|label| !label.defined) {
        if !definitions.contains_key(label.name.as_str()) {
            complain(label, "is not defined: no `//! **..**` has it");
        }
    }
    found
}

/// A letter and a digit name no place: refused in comments, and at the beginning of messages.
pub(crate) fn short(source: &Source) -> Vec<String> {
    let is_short = |word: &str| {
        let bytes = word.as_bytes();
        bytes.len() == 2 && bytes[0].is_ascii_uppercase() && bytes[1].is_ascii_digit()
    };
    let in_comments = source.comments.iter().flat_map(|comment| {
        let words = comment.text.split(|c: char| !c.is_alphanumeric());
        words.map(|word| (comment.line, word))
    });
    let in_messages = source.text.lines().enumerate().flat_map(|(at, line)| {
        let opened = line.split('"').skip(1);
        opened.filter_map(move |message| Some((at + 1, message.split(':').next()?)))
    });
    let mut found: Vec<_> = in_comments
        .chain(in_messages)
        .filter(|(_, word)| is_short(word))
        .map(|(line, word)| {
            format!(
                "{}:{line}: `{word}` does not say where it is defined: use a label such as `SLEEP-1`, \
                 or words",
                source.path
            )
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Vec<String> {
        let labels: Vec<_> = files
            .iter()
            .flat_map(|(path, text)| labels(path, text))
            .collect();
        complaints(&labels)
    }

    #[test]
    fn labels_are_found_in_prose_code_and_messages() {
        let text = "//! - **QUEUE-1** One.\n// QUEUE-2, (QUEUE-31).\nassert!(x, \"LEASE-1: no\");\n\
                    // UTF-8, SHA-1, AB-1, QUEUE-1x, QUEUE-, aQUEUE-1, QUEUE_1, QUEUE-1-2, X-QUEUE-1\n\
                    /// **QUEUE-4**, and not in a head.\n";
        let found: Vec<_> = labels("src/x.rs", text)
            .into_iter()
            .map(|label| (label.name, label.line, label.defined))
            .collect();
        let expected = [
            ("QUEUE-1", 1, true),
            ("QUEUE-2", 2, false),
            ("QUEUE-31", 2, false),
            ("LEASE-1", 3, false),
            ("QUEUE-4", 5, false),
        ];
        assert_eq!(
            found,
            expected.map(|(name, line, defined)| (name.to_owned(), line, defined))
        );
    }

    #[test]
    fn a_label_is_defined_once_and_cited_anywhere() {
        let head = "//! - **QUEUE-1** One.\n//! Another. **QUEUE-2**\n// QUEUE-1\n";
        assert_eq!(of(&[("src/x.rs", head), ("DESIGN.md", "QUEUE-2")]), [""; 0]);
        let twice = of(&[("src/x.rs", head), ("src/x.rs", "//! **QUEUE-2** again")]);
        assert_eq!(
            twice,
            ["src/x.rs:1: QUEUE-2 is defined in src/x.rs:2 already"]
        );
        let unknown = of(&[("src/x.rs", head), ("DESIGN.md", "\nQUEUE-3")]);
        assert_eq!(unknown.len(), 1);
        assert!(unknown[0].starts_with("DESIGN.md:2: QUEUE-3 is not defined"));
        let spread = of(&[("src/x.rs", head), ("src/y.rs", "//! **QUEUE-3** Three.")]);
        assert_eq!(
            spread,
            ["src/y.rs:1: QUEUE-3 belongs in src/x.rs, with QUEUE-1"]
        );
    }

    #[test]
    fn a_letter_and_a_digit_are_no_label() {
        let complaints = |text: &str| short(&Source::new("src/x.rs", text)).len();
        for text in [
            "// S1: one.",
            "/// As (S2) says.",
            "//! **T1** One.",
            "assert!(x, \"E3\");",
            "panic!(\"E3: no\");",
        ] {
            assert_eq!(complaints(text), 1, "{text}");
        }
        for text in [
            "fn f<S2>() {}",
            "// F14, STRIPE-1, x1, 10",
            "let s = \"in S1\";",
        ] {
            assert_eq!(complaints(text), 0, "{text}");
        }
    }
}
