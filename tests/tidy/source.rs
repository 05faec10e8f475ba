//! A Rust file as the rules see it: its tokens, also those in macros, by `proc_macro2`; its items,
//! by `syn`; and its comments, which are what lies between the tokens.

use std::ops::RangeInclusive;

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use syn::Item;
use syn::visit::{Visit, visit_item};

/// One file of the tree.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// Its path from the root of the repository, with `/`.
    pub(crate) path: String,
    pub(crate) lines: usize,
    pub(crate) text: String,
    pub(crate) tokens: Vec<Token>,
    pub(crate) comments: Vec<Comment>,
    /// Every attribute, inner ones too.
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) functions: Vec<Function>,
    /// The lines of the modules that only tests compile.
    tested: Vec<RangeInclusive<usize>>,
    /// How much of the text is read, and the line there.
    read: usize,
    line: usize,
}

/// A token of the code: a word, a literal, `::`, or one character.
#[derive(Debug)]
pub(crate) struct Token {
    pub(crate) line: usize,
    text: String,
    /// Whether it lies in a module that only tests compile.
    pub(crate) test: bool,
    /// How many modules within the file are open around it.
    pub(crate) depth: usize,
}

/// One line of a comment.
#[derive(Debug)]
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
    /// The identifier, keyword or number.
    pub(crate) fn word(&self) -> Option<&str> {
        let begins = |c: char| c.is_alphanumeric() || c == '_';
        Some(&*self.text).filter(|text| text.starts_with(begins) && !text.contains(['"', '\'']))
    }

    pub(crate) fn is(&self, text: &str) -> bool {
        self.text == text
    }
}

/// An attribute: the words in it and the line where it begins.
#[derive(Clone, Debug)]
pub(crate) struct Attribute {
    pub(crate) line: usize,
    pub(crate) words: Vec<String>,
}

impl Attribute {
    pub(crate) fn has(&self, word: &str) -> bool {
        self.words.iter().any(|found| found == word)
    }

    /// Whether only tests compile what is behind it.
    fn is_for_tests(&self) -> bool {
        let mut words = self.words.iter().map(String::as_str);
        words.next() == Some("cfg") && words.find(|word| *word != "all") == Some("test")
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
            let (first, last) = (attribute.words.first(), attribute.words.last());
            first.is_some_and(|word| !word.starts_with("cfg"))
                && last.is_some_and(|word| word == "test")
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
        let stream = text.parse::<TokenStream>();
        let stream = stream.unwrap_or_else(|error| panic!("{path} is no Rust: {error}"));
        let mut source = Source {
            path: path.to_owned(),
            lines: text.lines().count(),
            text: text.to_owned(),
            line: 1,
            ..Source::default()
        };
        // A module that lies in a file of its own is declared for tests in another file.
        let test = path.ends_with("/tests.rs") || path.contains("/tests/");
        if test {
            source.tested.push(1..=usize::MAX);
        }
        source.read(stream, test, 0);
        source.pass(text.len(), false);
        let mut comments = std::mem::take(&mut source.comments);
        for comment in &mut comments {
            comment.test = source.is_tested(comment.line);
        }
        Source { comments, ..source }
    }

    /// Reads tokens that have `depth` modules of the file around them.
    fn read(&mut self, stream: TokenStream, test: bool, depth: usize) {
        let trees: Vec<TokenTree> = stream.into_iter().collect();
        let is = |at: usize, text: &str| match trees.get(at) {
            Some(TokenTree::Ident(name)) => name == text,
            Some(TokenTree::Punct(punct)) => text.starts_with(punct.as_char()),
            _ => false,
        };
        // The attributes of the item that comes next.
        let mut pending: Vec<Attribute> = Vec::new();
        for (at, tree) in trees.iter().enumerate() {
            let range = tree.span().byte_range();
            // A comment of the documentation is an attribute here, whose tokens all lie where it
            // lies. The second `:` of a `::` is read with the first.
            if range.start < self.read {
                continue;
            }
            self.pass(range.start, false);
            let text = &self.text[range.clone()];
            if text.starts_with("//") || text.starts_with("/*") {
                self.pass(range.end, true);
                continue;
            }
            if let TokenTree::Group(group) = tree {
                let (open, close) = (group.span_open(), group.span_close());
                let (first, line) = (self.tokens.len(), open.start().line);
                let braces = group.delimiter() == Delimiter::Brace;
                let is_module = braces && at > 1 && is(at - 2, "mod");
                let tests = is_module && pending.iter().any(Attribute::is_for_tests);
                self.push(open, 0, test, depth);
                let inside = depth + usize::from(is_module);
                self.read(group.stream(), test || tests, inside);
                self.pass(close.byte_range().start, false);
                self.push(close, 0, test, depth);
                if tests {
                    self.tested.push(line..=close.end().line);
                }
                let inner = usize::from(at > 1 && is(at - 1, "!"));
                if at > inner && is(at - 1 - inner, "#") {
                    let words = self.tokens[first..].iter().filter_map(Token::word);
                    let words = words.map(str::to_owned).collect();
                    pending.push(Attribute { line, words });
                    self.attributes.extend(pending.last().cloned());
                } else if braces {
                    pending.clear();
                }
                continue;
            }
            match trees.get(at + 1) {
                Some(TokenTree::Ident(name)) if is(at, "fn") => self.functions.push(Function {
                    line: tree.span().start().line,
                    name: name.to_string(),
                    attributes: std::mem::take(&mut pending),
                }),
                _ if is(at, ";") => pending.clear(),
                _ => {}
            }
            let colons = is(at, ":") && self.text[range.end..].starts_with(':');
            self.push(tree.span(), usize::from(colons), test, depth);
        }
    }

    /// Notes the token at this place, with some of the bytes behind it.
    fn push(&mut self, span: Span, more: usize, test: bool, depth: usize) {
        let range = span.byte_range();
        (self.read, self.line) = (range.end + more, span.end().line);
        self.tokens.push(Token {
            line: span.start().line,
            text: self.text[range.start..self.read].to_owned(),
            test,
            depth,
        });
    }

    /// Goes on to the place `to`, past space and comments, and notes the comments line by line.
    fn pass(&mut self, to: usize, doc: bool) {
        let between = &self.text[self.read..to];
        for (offset, part) in between.split('\n').enumerate() {
            let text = part.trim_matches(|c: char| c.is_whitespace() || "/*!".contains(c));
            if !part.trim().is_empty() {
                self.comments.push(Comment {
                    line: self.line + offset,
                    text: text.to_owned(),
                    doc,
                    test: false,
                });
            }
        }
        self.line += between.matches('\n').count();
        self.read = to;
    }

    /// Every item, also within modules and functions. Those that a macro makes are not among them.
    pub(crate) fn items(&self) -> Vec<Item> {
        struct Items(Vec<Item>);
        impl<'ast> Visit<'ast> for Items {
            fn visit_item(&mut self, item: &'ast Item) {
                self.0.push(item.clone());
                visit_item(self, item);
            }
        }
        let file = syn::parse_file(&self.text);
        let file = file.unwrap_or_else(|error| panic!("{}: {error}", self.path));
        let mut items = Items(Vec::new());
        items.visit_file(&file);
        items.0
    }

    /// Whether a line lies in a module that only tests compile.
    pub(crate) fn is_tested(&self, line: usize) -> bool {
        self.tested.iter().any(|lines| lines.contains(&line))
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
            .functions
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
