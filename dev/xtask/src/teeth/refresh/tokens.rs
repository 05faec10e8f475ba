//! Rust source as tokens, so that a comparison sees neither line breaks nor comments.

use std::collections::BTreeMap;
use std::ops::Range;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An identifier or a keyword.
    Word,
    /// A literal, a lifetime, or one character of punctuation.
    Other,
    Comment,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    /// The bytes of the source that the token covers.
    pub(crate) span: Range<usize>,
}

/// Splits Rust source into tokens. Source that does not parse is split somehow.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        }
        let (kind, length) = next(&text[at..], first);
        found.push(Token {
            kind,
            span: at..at + length,
        });
        at += length;
    }
    found
}

/// The tokens that the compiler sees.
pub(crate) fn code(text: &str) -> Vec<Token> {
    let mut found = tokens(text);
    found.retain(|token| token.kind != Kind::Comment);
    found
}

/// Replaces whole identifiers outside of comments and strings.
pub(crate) fn rename(text: &str, names: &BTreeMap<String, String>) -> String {
    let mut renamed = String::with_capacity(text.len());
    let mut copied = 0;
    for token in tokens(text) {
        if token.kind != Kind::Word {
            continue;
        }
        if let Some(name) = names.get(&text[token.span.clone()]) {
            renamed.push_str(&text[copied..token.span.start]);
            renamed.push_str(name);
            copied = token.span.end;
        }
    }
    renamed.push_str(&text[copied..]);
    renamed
}

/// The identifiers and keywords of a source.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = tokens(text).into_iter();
    words
        .filter(|token| token.kind == Kind::Word)
        .map(|token| &text[token.span])
}

fn next(rest: &str, first: char) -> (Kind, usize) {
    if rest.starts_with("//") {
        return (Kind::Comment, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (Kind::Comment, block_comment(rest));
    }
    if let Some(length) = literal(rest) {
        return (Kind::Other, length);
    }
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let run = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
    match first {
        '\'' => {
            let name = rest[1..].find(|c| !is_part(c)).unwrap_or(rest.len() - 1);
            (Kind::Other, 1 + name)
        }
        _ if first.is_numeric() => (Kind::Other, run),
        _ if is_part(first) => (Kind::Word, run),
        _ => (Kind::Other, first.len_utf8()),
    }
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// The length of the string or character literal that `rest` begins with.
fn literal(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "r", "b", "c", ""].into_iter().find(|prefix| {
        let after = rest.strip_prefix(prefix);
        after.is_some_and(|after| after.starts_with(['"', '#', '\'']))
    })?;
    let body = &rest[prefix.len()..];
    if prefix.ends_with('r') {
        let hashes = body.len() - body.trim_start_matches('#').len();
        let inside = body[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        let length = inside.find(&end).map_or(inside.len(), |at| at + end.len());
        return Some(prefix.len() + hashes + 1 + length);
    }
    let quote = body.chars().next()?;
    let inside = match (quote, prefix) {
        ('"', _) => &body[1..],
        ('\'', "b" | "") => &body[1..],
        _ => return None,
    };
    if quote == '\'' && !inside.starts_with('\\') {
        // Otherwise it is a lifetime.
        let one = inside.chars().next()?.len_utf8();
        return inside[one..]
            .starts_with('\'')
            .then(|| prefix.len() + 1 + one + 1);
    }
    let mut escaped = false;
    let end = inside.find(|c| {
        let is_end = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        is_end
    });
    Some(prefix.len() + 1 + end.map_or(inside.len(), |end| end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<&str> {
        code(text)
            .into_iter()
            .map(|token| &text[token.span])
            .collect()
    }

    #[test]
    fn comments_and_line_breaks_do_not_matter() {
        let spread = "a.b( // why\n    c, /* x /* y */ z */ d\n)";
        assert_eq!(split(spread), split("a.b(c, d)"));
    }

    #[test]
    fn literals_and_lifetimes_are_one_token_each() {
        let text = r##"'a 'x' '\'' b'c' "a \" // b" r#"x " y"# 12_u8 rest #[cfg]"##;
        let expected = [
            "'a",
            "'x'",
            r"'\''",
            "b'c'",
            r#""a \" // b""#,
            r##"r#"x " y"#"##,
            "12_u8",
            "rest",
            "#",
            "[",
            "cfg",
            "]",
        ];
        assert_eq!(split(text), expected);
    }

    #[test]
    fn an_unfinished_literal_or_comment_ends_with_the_text() {
        for text in ["\"abc", "/* abc", "r#\"abc", "'", "'\\", "\"é\\"] {
            assert_eq!(tokens(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn only_whole_identifiers_in_code_are_renamed() {
        let names = BTreeMap::from([("old".to_owned(), "new".to_owned())]);
        let text = "old.older(\"old\") // old\n+ old";
        assert_eq!(rename(text, &names), "new.older(\"old\") // old\n+ new");
    }
}
