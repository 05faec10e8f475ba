//! A Rust file as the rules see it: code without comments and strings, cut into tokens; comments
//! by line; and which part of it is compiled for tests only. No parser: enough of the language is
//! known here to not be fooled by a string, a comment or a lifetime.

use std::ops::RangeInclusive;

/// One file of the tree.
#[derive(Debug)]
pub(crate) struct Source {
    /// Its path from the root of the repository, with `/`.
    pub(crate) path: String,
    pub(crate) lines: usize,
    pub(crate) text: String,
    pub(crate) tokens: Vec<Token>,
    pub(crate) comments: Vec<Comment>,
}

/// A token of the code.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) line: usize,
    pub(crate) kind: Kind,
    /// Whether it lies in a module that only tests compile.
    pub(crate) test: bool,
    /// How many modules within the file are open around it.
    pub(crate) depth: usize,
}

/// What a token is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An identifier, keyword or number.
    Word(String),
    /// `::`
    Colons,
    /// Any other character; a string or character literal is its opening quote.
    Char(char),
}

/// One line of a comment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Comment {
    pub(crate) line: usize,
    /// Without the slashes, trimmed.
    pub(crate) text: String,
    /// Whether it is part of the documentation.
    pub(crate) doc: bool,
    /// Whether it lies in a module that only tests compile.
    pub(crate) test: bool,
}

impl Token {
    pub(crate) fn word(&self) -> Option<&str> {
        match &self.kind {
            Kind::Word(word) => Some(word),
            Kind::Colons | Kind::Char(_) => None,
        }
    }

    pub(crate) fn is(&self, text: &str) -> bool {
        match &self.kind {
            Kind::Word(word) => word == text,
            Kind::Colons => text == "::",
            Kind::Char(found) => text.chars().eq([*found]),
        }
    }
}

/// An attribute: the words in it and the line where it begins.
#[derive(Debug)]
pub(crate) struct Attribute {
    pub(crate) line: usize,
    pub(crate) words: Vec<String>,
}

impl Attribute {
    pub(crate) fn has(&self, word: &str) -> bool {
        self.words.iter().any(|found| found == word)
    }
}

/// A function with the attributes that stand before it.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) line: usize,
    pub(crate) name: String,
    pub(crate) attributes: Vec<Attribute>,
}

impl Function {
    pub(crate) fn is_test(&self) -> bool {
        // `tokio::test` and its like too, but not `cfg(test)`.
        self.attributes.iter().any(|attribute| {
            attribute
                .words
                .first()
                .is_some_and(|word| !word.starts_with("cfg"))
                && attribute.words.last().is_some_and(|word| word == "test")
        })
    }
}

/// A path such as `crate::tick::Time`, with groups of a `use` taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NamedPath {
    pub(crate) line: usize,
    pub(crate) segments: Vec<String>,
    pub(crate) test: bool,
    pub(crate) depth: usize,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let (code, mut comments) = separate(text);
        let mut tokens = tokens_of(&code);
        let mut tested = mark_modules(&mut tokens);
        // A module that lies in a file of its own is declared for tests in another file.
        if path.ends_with("/tests.rs") || path.contains("/tests/") {
            tokens.iter_mut().for_each(|token| token.test = true);
            tested.push(1..=usize::MAX);
        }
        for comment in &mut comments {
            comment.test = tested.iter().any(|lines| lines.contains(&comment.line));
        }
        Source {
            path: path.to_owned(),
            lines: text.lines().count(),
            text: text.to_owned(),
            tokens,
            comments,
        }
    }

    /// Every path of the code with at least two segments.
    pub(crate) fn paths(&self) -> Vec<NamedPath> {
        let mut found = Vec::new();
        let mut at = 0;
        while at < self.tokens.len() {
            let starts = self.tokens[at].word().is_some()
                && self.tokens.get(at + 1).is_some_and(|token| token.is("::"));
            let grouped = self.tokens[at].is("use")
                && self.tokens.get(at + 1).is_some_and(|token| token.is("{"));
            if starts {
                at = self.path_at(at, &[], &mut found);
            } else if grouped {
                at = self.group_at(at + 1, &[], &mut found);
            } else {
                at += 1;
            }
        }
        found.retain(|path| path.segments.len() > 1);
        found
    }

    /// Reads one path whose first word is at `at`; the answer is where it ends.
    fn path_at(&self, mut at: usize, before: &[String], found: &mut Vec<NamedPath>) -> usize {
        let mut segments = before.to_vec();
        let first = &self.tokens[at];
        while let Some(token) = self.tokens.get(at) {
            match token.word() {
                Some(word) => segments.push(word.to_owned()),
                None if token.is("{") => return self.group_at(at, &segments, found),
                None if token.is("*") => segments.push("*".to_owned()),
                // `::<` ends the part that names something.
                None => break,
            }
            at += 1;
            if self.tokens.get(at).is_none_or(|token| !token.is("::")) {
                break;
            }
            at += 1;
        }
        found.push(NamedPath {
            line: first.line,
            segments,
            test: first.test,
            depth: first.depth,
        });
        at
    }

    /// Reads the group of a `use` whose brace is at `at`; the answer is where it ends.
    fn group_at(&self, mut at: usize, before: &[String], found: &mut Vec<NamedPath>) -> usize {
        at += 1;
        while let Some(token) = self.tokens.get(at) {
            if token.is("}") {
                return at + 1;
            }
            let renamed = at > 0 && self.tokens[at - 1].is("as");
            if (token.word().is_some() && !token.is("as") && !renamed) || token.is("*") {
                at = self.path_at(at, before, found);
            } else {
                at += 1;
            }
        }
        at
    }

    /// Every attribute, with the place of the token behind it.
    fn attributes(&self) -> Vec<(Attribute, usize)> {
        let mut found = Vec::new();
        let mut at = 0;
        while at < self.tokens.len() {
            let bang = usize::from(self.tokens.get(at + 1).is_some_and(|token| token.is("!")));
            let opens = self.tokens[at].is("#")
                && self
                    .tokens
                    .get(at + 1 + bang)
                    .is_some_and(|token| token.is("["));
            if !opens {
                at += 1;
                continue;
            }
            let line = self.tokens[at].line;
            let start = at + 1 + bang;
            let end = closing(&self.tokens, start);
            let words = self.tokens[start..end].iter().filter_map(Token::word);
            let attribute = Attribute {
                line,
                words: words.map(str::to_owned).collect(),
            };
            found.push((attribute, end + 1));
            at = end + 1;
        }
        found
    }

    /// Every attribute, inner ones too.
    pub(crate) fn all_attributes(&self) -> Vec<Attribute> {
        self.attributes().into_iter().map(|(a, _)| a).collect()
    }

    /// Every function.
    pub(crate) fn functions(&self) -> Vec<Function> {
        let mut attributes = self.attributes().into_iter().peekable();
        let mut pending: Vec<Attribute> = Vec::new();
        let mut found = Vec::new();
        let mut at = 0;
        while at < self.tokens.len() {
            let token = &self.tokens[at];
            if token.is("#") && attributes.peek().is_some_and(|(a, _)| a.line == token.line) {
                let (attribute, behind) = attributes.next().expect("it was looked at");
                pending.push(attribute);
                at = behind;
                continue;
            }
            let name = self.tokens.get(at + 1).and_then(Token::word);
            match (token.is("fn"), name) {
                (true, Some(name)) => found.push(Function {
                    line: token.line,
                    name: name.to_owned(),
                    attributes: std::mem::take(&mut pending),
                }),
                // Whatever ends the item that an attribute belongs to.
                _ if ["{", "}", ";"].iter().any(|end| token.is(end)) => pending.clear(),
                _ => {}
            }
            at += 1;
        }
        found
    }
}

/// The place of the bracket or brace that closes the one at `open`; the end, if none does.
fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        if ["[", "{", "("].iter().any(|opens| token.is(opens)) {
            depth += 1;
        } else if ["]", "}", ")"].iter().any(|closes| token.is(closes)) {
            depth -= 1;
            if depth == 0 {
                return at;
            }
        }
    }
    tokens.len().saturating_sub(1)
}

/// Notes for each token how many modules are open around it and whether one is for tests only. The
/// answer is the lines of those for tests.
fn mark_modules(tokens: &mut [Token]) -> Vec<RangeInclusive<usize>> {
    let mut tested = Vec::new();
    for at in 0..tokens.len() {
        let body = at + 2;
        let opens = tokens[at].is("mod")
            && tokens
                .get(at + 1)
                .is_some_and(|token| token.word().is_some())
            && tokens.get(body).is_some_and(|token| token.is("{"));
        if !opens {
            continue;
        }
        let end = closing(tokens, body);
        let test = is_for_tests(&tokens[..at]);
        for token in &mut tokens[body..=end] {
            token.depth += 1;
            token.test |= test;
        }
        if test {
            tested.push(tokens[at].line..=tokens[end].line);
        }
    }
    tested
}

/// Whether the attributes that end right here hold a `cfg(test)` or `cfg(all(test, ..))`.
fn is_for_tests(before: &[Token]) -> bool {
    let mut end = before.len();
    // `pub(crate)` may stand between.
    while end > 0 && !before[end - 1].is("]") {
        let visibility = ["pub", "(", ")", "crate", "super", "in", "::"];
        if !visibility.iter().any(|part| before[end - 1].is(part)) {
            return false;
        }
        end -= 1;
    }
    let Some(start) = before[..end].iter().rposition(|token| token.is("#")) else {
        return false;
    };
    let words: Vec<&str> = before[start..end].iter().filter_map(Token::word).collect();
    let test = matches!(words[..], ["cfg", "test", ..] | ["cfg", "all", "test", ..]);
    test || is_for_tests(&before[..start])
}

fn tokens_of(code: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut line = 1;
    let mut rest = code.chars().peekable();
    while let Some(c) = rest.next() {
        let kind = match c {
            '\n' => {
                line += 1;
                continue;
            }
            c if c.is_whitespace() => continue,
            c if c.is_alphanumeric() || c == '_' => {
                let mut word = String::from(c);
                while let Some(more) = rest.next_if(|c| c.is_alphanumeric() || *c == '_') {
                    word.push(more);
                }
                Kind::Word(word)
            }
            ':' if rest.next_if_eq(&':').is_some() => Kind::Colons,
            c => Kind::Char(c),
        };
        tokens.push(Token {
            line,
            kind,
            test: false,
            depth: 0,
        });
    }
    tokens
}

/// Takes the comments out of the text and empties its literals; lines stay where they are.
fn separate(text: &str) -> (String, Vec<Comment>) {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::new();
    let mut comments = Vec::new();
    let mut line = 1;
    let mut at = 0;
    while at < chars.len() {
        let two = (chars[at], chars.get(at + 1).copied());
        let end = match two {
            ('/', Some('/')) => {
                let end = line_end(&chars, at);
                note(&mut comments, line, &chars[at..end]);
                end
            }
            ('/', Some('*')) => {
                let end = block_end(&chars, at);
                note(&mut comments, line, &chars[at..end]);
                end
            }
            _ => match literal_end(&chars, at) {
                Some(end) => {
                    code.push('"');
                    end
                }
                None => {
                    code.push(chars[at]);
                    line += usize::from(chars[at] == '\n');
                    at += 1;
                    continue;
                }
            },
        };
        let breaks = chars[at..end].iter().filter(|c| **c == '\n').count();
        code.push(' ');
        code.extend(std::iter::repeat_n('\n', breaks));
        line += breaks;
        at = end;
    }
    (code, comments)
}

fn note(comments: &mut Vec<Comment>, first: usize, chars: &[char]) {
    let text: String = chars.iter().collect();
    let doc = ["///", "//!", "/**", "/*!"]
        .iter()
        .any(|start| text.starts_with(start));
    for (offset, part) in text.lines().enumerate() {
        comments.push(Comment {
            line: first + offset,
            text: part
                .trim_matches(|c: char| c.is_whitespace() || "/*!".contains(c))
                .to_owned(),
            doc,
            test: false,
        });
    }
}

fn line_end(chars: &[char], at: usize) -> usize {
    let length = chars[at..].iter().position(|c| *c == '\n');
    at + length.unwrap_or(chars.len() - at)
}

fn block_end(chars: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                at += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    break;
                }
            }
            _ => at += 1,
        }
    }
    at.min(chars.len())
}

/// Where the string or character literal that begins at `at` ends; `None` if none begins there.
fn literal_end(chars: &[char], at: usize) -> Option<usize> {
    let in_word = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    match chars[at] {
        '"' => Some(quoted_end(chars, at + 1, '"')),
        '\'' => match (chars.get(at + 1), chars.get(at + 2)) {
            (Some('\\'), _) | (_, Some('\'')) => Some(quoted_end(chars, at + 1, '\'')),
            // A lifetime.
            _ => None,
        },
        'r' | 'b' | 'c' if !in_word => {
            let raw = usize::from(chars[at] != 'r' && chars.get(at + 1) == Some(&'r'));
            let start = at + 1 + raw;
            let is_raw = chars[at] == 'r' || raw == 1;
            let hashes = chars[start.min(chars.len())..]
                .iter()
                .take_while(|c| is_raw && **c == '#')
                .count();
            match chars.get(start + hashes) {
                Some('"') if is_raw => Some(raw_end(chars, start + hashes + 1, hashes)),
                Some('"') => Some(quoted_end(chars, start + 1, '"')),
                Some('\'') if chars[at] == 'b' && !is_raw => {
                    Some(quoted_end(chars, start + 1, '\''))
                }
                _ => None,
            }
        }
        _ => None,
    }
}

fn quoted_end(chars: &[char], mut at: usize, quote: char) -> usize {
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            c if c == quote => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

fn raw_end(chars: &[char], mut at: usize, hashes: usize) -> usize {
    while at < chars.len() {
        let closes = chars[at] == '"'
            && chars.len() - at > hashes
            && chars[at + 1..=at + hashes].iter().all(|c| *c == '#');
        if closes {
            return at + 1 + hashes;
        }
        at += 1;
    }
    chars.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let source = Source::new("src/x.rs", text);
        let words = source.tokens.iter().filter_map(Token::word);
        words.map(str::to_owned).collect()
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        let text = r###"
            a("no \" code", 'x', '"', '\'', b'n', b"no", c"no", br"no"); // no
            /* no /* no */ no */ b; r#"no " no"#; r"no\"; d
            fn f<'a>(x: &'a str) {}
        "###;
        assert_eq!(
            words(text),
            ["a", "b", "d", "fn", "f", "a", "x", "a", "str"]
        );
    }

    #[test]
    fn lines_are_kept() {
        let source = Source::new("src/x.rs", "\"a\nb\"\n/* c\n d */ e\n// f\n\ng\n");
        let lines: Vec<_> = source.tokens.iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 4, 7]);
        let comments: Vec<_> = source.comments.iter().map(|c| (c.line, &*c.text)).collect();
        assert_eq!(comments, [(3, "c"), (4, "d"), (5, "f")]);
    }

    #[test]
    fn paths_are_taken_apart() {
        let source = Source::new(
            "src/x.rs",
            "use a::{self, b as q, c::{d, e::*}}; use {f::g, h}; let x = i::j::<k::l>(m); n;",
        );
        let paths: Vec<_> = source
            .paths()
            .into_iter()
            .map(|path| path.segments.join("::"))
            .collect();
        let expected = [
            "a::self",
            "a::b",
            "a::c::d",
            "a::c::e::*",
            "f::g",
            "i::j",
            "k::l",
        ];
        assert_eq!(paths, expected);
    }

    #[test]
    fn what_only_tests_compile_is_marked() {
        let source = Source::new(
            "src/x.rs",
            "mod a { b }\n#[cfg(all(test, not(loom)))]\n#[path = \"y\"]\npub(crate) mod c {\n// d\ne { f }\n}\n// g\nh\n\
             #[cfg(any(test, feature = \"x\"))]\nmod i { j }\n",
        );
        let test: Vec<_> = source
            .tokens
            .iter()
            .filter(|token| token.test)
            .filter_map(Token::word)
            .collect();
        assert_eq!(test, ["e", "f"]);
        let comments: Vec<_> = source.comments.iter().map(|c| (&*c.text, c.test)).collect();
        assert_eq!(comments, [("d", true), ("g", false)]);
        let depth = |word: &str| source.tokens.iter().find(|t| t.is(word)).map(|t| t.depth);
        assert_eq!(depth("b"), Some(1));
        assert_eq!(depth("h"), Some(0));
        let whole = Source::new("src/x/tests.rs", "a // b");
        assert!(whole.tokens[0].test && whole.comments[0].test);
    }

    #[test]
    fn functions_know_their_attributes() {
        let source = Source::new(
            "src/x.rs",
            "#[derive(Debug)]\nstruct A;\nfn b() {}\n#[test]\n#[cfg_attr(c, ignore = \"d\")]\nfn e() {}\n\
             #[tokio::test]\npub async fn f() {}\n#[cfg(test)]\nfn g() {}\n",
        );
        let functions: Vec<_> = source
            .functions()
            .iter()
            .map(|f| (f.name.clone(), f.attributes.len(), f.is_test()))
            .collect();
        let expected = [("b", 0, false), ("e", 2, true), ("f", 1, true)];
        for (name, attributes, test) in expected {
            assert!(
                functions.contains(&(name.to_owned(), attributes, test)),
                "{name}"
            );
        }
    }
}
