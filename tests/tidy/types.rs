//! Whether a name stands for two types of one package.

use std::collections::BTreeMap;

use crate::source::Source;

/// A name that may stand for several types, and why.
pub(crate) type Homonym = (&'static str, &'static str);

/// The types that a file declares outside of tests, with their lines. Associated types are none:
/// their name belongs to the trait.
fn declared(source: &Source) -> Vec<(String, usize)> {
    let tokens = &source.tokens;
    let mut found = Vec::new();
    let mut braces = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        if token.is("{") {
            braces += 1;
        } else if token.is("}") {
            braces = braces.saturating_sub(1);
        }
        let declares = match token.word() {
            Some("struct" | "enum" | "trait" | "union") => true,
            // An alias stands at the top of its module.
            Some("type") => braces == 0,
            _ => false,
        };
        if !declares || token.test {
            continue;
        }
        if let Some(name) = tokens.get(at + 1).and_then(|next| next.word()) {
            found.push((name.to_owned(), token.line));
        }
    }
    found
}

/// Complaints about names that several types of the package have, and about exceptions that are
/// not needed.
pub(crate) fn complaints(sources: &[&Source], homonyms: &[Homonym]) -> Vec<String> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources {
        for (name, line) in declared(source) {
            let place = format!("{}:{line}", source.path);
            places.entry(name).or_default().push(place);
        }
    }
    let is_allowed = |name: &str| homonyms.iter().any(|(allowed, _)| *allowed == name);
    let mut found: Vec<String> = places
        .iter()
        .filter(|(name, places)| places.len() > 1 && !is_allowed(name))
        .map(|(name, places)| {
            format!(
                "{}: the name `{name}` stands for another type, too: {}; rename one of them",
                places[0],
                places[1..].join(", ")
            )
        })
        .collect();
    for (name, _) in homonyms {
        if places.get(*name).is_none_or(|places| places.len() < 2) {
            found.push(format!(
                "tests/tidy/main.rs: `{name}` stands for one type only: take it from the list"
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)], homonyms: &[Homonym]) -> Vec<String> {
        let sources: Vec<_> = files
            .iter()
            .map(|(path, text)| Source::new(path, text))
            .collect();
        complaints(&sources.iter().collect::<Vec<_>>(), homonyms)
    }

    const TWICE: [(&str, &str); 2] = [
        ("src/a.rs", "struct Place;\ntrait T { type Place; }"),
        ("src/b.rs", "\npub(crate) enum Place { A }"),
    ];

    #[test]
    fn two_types_of_one_name_are_refused() {
        let found = of(&TWICE, &[]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("src/a.rs:1: the name `Place` stands for another type"));
        assert!(found[0].contains("src/b.rs:2"));
        assert_eq!(of(&TWICE, &[("Place", "a reason")]), [""; 0]);
    }

    #[test]
    fn types_of_tests_and_associated_types_do_not_count() {
        let files = [
            ("src/a.rs", "struct Rng;\nimpl I for A { type Item = u8; }"),
            (
                "src/b.rs",
                "#[cfg(test)]\nmod tests {\n struct Rng;\n}\nimpl I for B { type Item = u8; }",
            ),
            ("src/c/tests.rs", "struct Rng;"),
        ];
        assert_eq!(of(&files, &[]), [""; 0]);
    }

    #[test]
    fn an_exception_that_is_not_needed_is_refused() {
        let found = of(&[("src/a.rs", "struct Place;")], &[("Place", "a reason")]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("stands for one type only"));
    }
}
