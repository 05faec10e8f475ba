//! Finds the identifiers that were renamed between two versions of a file.

use std::collections::BTreeMap;

use similar::{Algorithm, DiffOp, capture_diff_slices};

use super::tokens::{self, Kind};

/// Counts how each identifier was kept or replaced in pairs of versions.
#[derive(Debug, Default)]
pub(crate) struct Votes {
    replaced: BTreeMap<String, BTreeMap<String, usize>>,
    kept: BTreeMap<String, usize>,
}

impl Votes {
    /// Compares two versions of a file, token by token.
    pub(crate) fn count(&mut self, old: &str, new: &str) {
        if old == new {
            return;
        }
        let old_code = tokens::code(old);
        let new_code = tokens::code(new);
        let text_of = |text, code: &[tokens::Token]| -> Vec<_> { texts(text, code) };
        let (old_texts, new_texts) = (text_of(old, &old_code), text_of(new, &new_code));
        for op in capture_diff_slices(Algorithm::Patience, &old_texts, &new_texts) {
            match op {
                DiffOp::Equal { old_index, len, .. } => {
                    for at in old_index..old_index + len {
                        if old_code[at].kind == Kind::Word {
                            *self.kept.entry(old_texts[at].to_owned()).or_default() += 1;
                        }
                    }
                }
                DiffOp::Replace {
                    old_index,
                    old_len,
                    new_index,
                    new_len,
                } if old_len == new_len => {
                    for step in 0..old_len {
                        let (from, to) = (old_index + step, new_index + step);
                        let both_words =
                            old_code[from].kind == Kind::Word && new_code[to].kind == Kind::Word;
                        if both_words {
                            self.vote(old_texts[from], new_texts[to]);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn vote(&mut self, old: &str, new: &str) {
        if old == new || is_keyword(old) || is_keyword(new) {
            return;
        }
        let votes = self.replaced.entry(old.to_owned()).or_default();
        *votes.entry(new.to_owned()).or_default() += 1;
    }

    /// Returns the identifiers that were replaced by one other in clearly more places than they
    /// were kept.
    pub(crate) fn decide(&self) -> BTreeMap<String, String> {
        let mut names = BTreeMap::new();
        for (old, votes) in &self.replaced {
            let all: usize = votes.values().sum();
            let Some((new, &most)) = votes.iter().max_by_key(|&(_, votes)| *votes) else {
                continue;
            };
            let kept = self.kept.get(old).copied().unwrap_or_default();
            if most * 2 > all && most > 2 * kept {
                names.insert(old.clone(), new.clone());
            }
        }
        names
    }
}

/// Returns the source text of each token.
pub(crate) fn texts<'a>(text: &'a str, code: &[tokens::Token]) -> Vec<&'a str> {
    code.iter().map(|token| &text[token.span.clone()]).collect()
}

/// Returns whether a word is a keyword that may stand in the place of a name. Replacing a keyword
/// is no renaming.
pub(crate) fn is_keyword(word: &str) -> bool {
    let keywords = [
        "_", "as", "async", "await", "break", "const", "continue", "crate", "dyn", "else", "enum",
        "false", "fn", "for", "if", "impl", "in", "let", "loop", "match", "mod", "move", "mut",
        "pub", "ref", "return", "self", "Self", "static", "struct", "super", "trait", "true",
        "type", "unsafe", "use", "where", "while",
    ];
    keywords.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renames(old: &str, new: &str) -> Vec<(String, String)> {
        let mut votes = Votes::default();
        votes.count(old, new);
        votes.decide().into_iter().collect()
    }

    fn pair(old: &str, new: &str) -> (String, String) {
        (old.to_owned(), new.to_owned())
    }

    #[test]
    fn identifiers_that_change_everywhere_are_renamed() {
        let old = "impl Term { fn f(&self) { self.flights += 1; } } // Term";
        let new = "impl State {\n fn f(&self) {\n // other\n self.in_flight += 1;\n }\n}";
        let expected = [pair("Term", "State"), pair("flights", "in_flight")];
        assert_eq!(renames(old, new), expected);
    }

    #[test]
    fn a_name_that_mostly_stays_and_a_keyword_are_not_renamed() {
        assert!(renames("a.x; b.x; c.x;", "a.x; b.y; c.x;").is_empty());
        assert!(renames("pub(super) fn f();", "pub(crate) fn f();").is_empty());
    }
}
