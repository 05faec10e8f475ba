//! No argument that is made in any case is a value whose drop does something.
//!
//! `condition.then_some(Guard { .. })` makes the guard although the condition is false, and drops
//! it.

use std::collections::BTreeSet;

use crate::source::{Source, Token};

/// Methods whose argument is made before they decide whether they need it.
const EAGER: [&str; 8] = [
    "then_some",
    "unwrap_or",
    "ok_or",
    "map_or",
    "or",
    "and",
    "xor",
    "get_or_insert",
];

/// The types of a file that have a `Drop`, also those of its tests.
fn dropping(source: &Source) -> impl Iterator<Item = &str> {
    source.tokens.windows(3).filter_map(|three| {
        (three[0].is("Drop") && three[1].is("for"))
            .then(|| three[2].word())
            .flatten()
    })
}

/// The end of the first argument of the call whose parenthesis is at `open`.
fn end_of_argument(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        if ["(", "[", "{"].iter().any(|opens| token.is(opens)) {
            depth += 1;
        } else if [")", "]", "}"].iter().any(|closes| token.is(closes)) {
            depth -= 1;
            if depth == 0 {
                return at;
            }
        } else if depth == 1 && token.is(",") {
            return at;
        }
    }
    tokens.len()
}

pub(crate) fn complaints(sources: &[&Source]) -> Vec<String> {
    let dropping: BTreeSet<&str> = sources.iter().copied().flat_map(dropping).collect();
    let mut found = Vec::new();
    for source in sources {
        let tokens = &source.tokens;
        for at in 2..tokens.len() {
            let method = tokens[at - 1].word().unwrap_or_default();
            if !(tokens[at].is("(") && tokens[at - 2].is(".") && EAGER.contains(&method)) {
                continue;
            }
            let argument = &tokens[at..end_of_argument(tokens, at)];
            for pair in argument.windows(2) {
                let made = pair[0].word().filter(|name| dropping.contains(name));
                let is_made = ["{", "(", "::"].iter().any(|next| pair[1].is(next));
                if let Some(name) = made.filter(|_| is_made) {
                    found.push(format!(
                        "{}:{}: `{method}` makes its `{name}` in any case, and the drop of one \
                         that is not needed does something: make it in a closure or an `if`",
                        source.path, tokens[at].line
                    ));
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eager_guard_is_found_where_it_is_made_in_any_case() {
        for (text, expected) in [
            ("entered().then_some(Guard { engine: self })", 1),
            ("entered()\n    .then_some(Guard::new(self, (1, 2)))", 1),
            ("found.unwrap_or(Guard(1))", 1),
            ("found.map_or(Some(Guard(1)), |x| f(x))", 1),
            ("found.map_or(1, |x| Guard(x))", 0),
            ("entered().then(|| Guard(1))", 0),
            ("entered().then_some(Plain { x: 1 })", 0),
            ("found.unwrap_or(guard)", 0),
            ("fn then_some(x: Guard) {}", 0),
        ] {
            let types = "impl<F: Front> Drop for Guard<'_, F> {}";
            let sources = [Source::new("a.rs", types), Source::new("b.rs", text)];
            assert_eq!(complaints(&sources.each_ref()).len(), expected, "{text}");
        }
    }
}
