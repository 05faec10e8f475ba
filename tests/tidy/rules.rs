//! The rules that look at one file at a time. Each answers with its complaints, one line each,
//! beginning with the place.

use syn::{Attribute, Fields, Item, Visibility};

use crate::source::{Source, Token};
use crate::{
    EXHAUSTIVE_ENUMS, FACADE_EXCEPTIONS, GROWING_VARIANTS, LONG_FILES, MAY_BE_IGNORED, PUBLISHED,
    Package,
};

const LONGEST: usize = 600;
/// Files of tests alone are not read from top to bottom.
const LONGEST_TESTS: usize = 1_200;
const ORDERINGS: [&str; 5] = ["Relaxed", "Acquire", "Release", "AcqRel", "SeqCst"];

pub(crate) fn complain(source: &Source, line: usize, what: &str) -> String {
    format!("{}:{line}: {what}", source.path)
}

// === where a file lies ===

/// The package whose sources a file is one of.
pub(crate) fn package_of(path: &str) -> Option<&'static Package> {
    PUBLISHED
        .iter()
        .find(|package| in_package(path, package).is_some())
}

/// The path within a package's folder of sources.
pub(crate) fn in_package<'a>(path: &'a str, package: &Package) -> Option<&'a str> {
    path.strip_prefix(package.sources)?.strip_prefix('/')
}

// === what only the facade may name ===

/// Only `src/sync/` of a package names std's atomics, locks and threads, crossbeam or loom: what
/// names them itself would escape the models.
pub(crate) fn facade(source: &Source) -> Vec<String> {
    let inner = package_of(&source.path).and_then(|package| in_package(&source.path, package));
    if inner.is_some_and(|inner| inner.starts_with("sync/")) {
        return Vec::new();
    }
    let banned = |segments: &[String]| {
        let first = segments[0].as_str();
        let second = segments.get(1).map(String::as_str);
        matches!(
            (first, second),
            (
                "std" | "core" | "alloc",
                Some("sync" | "thread" | "thread_local")
            )
        ) || first == "loom"
            || first.starts_with("crossbeam")
    };
    let allowed = |segments: &[String]| {
        let name = segments.join("::");
        FACADE_EXCEPTIONS
            .iter()
            .any(|(file, path, _)| *file == source.path && *path == name)
    };
    source
        .paths()
        .iter()
        .filter(|path| !path.test && banned(&path.segments) && !allowed(&path.segments))
        .map(|path| {
            let what = format!(
                "only src/sync names `{}`; take it from crate::sync, or it escapes the models",
                path.segments.join("::")
            );
            complain(source, path.line, &what)
        })
        .collect()
}

// === orderings ===

/// Every ordering of an atomic and every fence has a comment on its line or within the four lines
/// above: what it pairs with, or why it need not.
pub(crate) fn orderings(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_use = false;
    for (at, token) in source.tokens.iter().enumerate() {
        in_use = (in_use || token.is("use")) && !token.is(";");
        if in_use || token.test {
            continue;
        }
        let behind = source.tokens.get(at + 1);
        let fence = token.is("fence") && behind.is_some_and(|token| token.is("("));
        if !fence && !ORDERINGS.iter().any(|name| token.is(name)) {
            continue;
        }
        let near = token.line.saturating_sub(4)..=token.line;
        let said = source.comments.iter().any(|comment| {
            near.contains(&comment.line) && comment.text.contains(char::is_alphabetic)
        });
        if !said {
            let what = "an ordering without a comment on its line or within four lines above: say \
                        what it pairs with, or why nothing has to";
            found.push(complain(source, token.line, what));
        }
    }
    // `fence(Ordering::SeqCst)` and `fetch_update(a, b, ..)` are one complaint.
    found.dedup();
    found
}

// === drops ===

/// What panics, as it is called.
const PANICKING: [(&str, &str); 8] = [
    ("unwrap", "("),
    ("expect", "("),
    ("panic", "!"),
    ("unreachable", "!"),
    ("todo", "!"),
    ("assert", "!"),
    ("assert_eq", "!"),
    ("assert_ne", "!"),
];

/// No drop panics by itself: one that runs while a panic leaves its scope would end the process.
pub(crate) fn drops(source: &Source) -> Vec<String> {
    let tokens = &source.tokens;
    let mut found = Vec::new();
    // How many braces are open within the block of a drop, once it has begun.
    let mut open: Option<usize> = None;
    for (at, token) in tokens.iter().enumerate() {
        let is_block = token.is("Drop") && tokens.get(at + 1).is_some_and(|next| next.is("for"));
        match open {
            None if is_block && !token.test => open = Some(0),
            Some(depth) if token.is("{") => open = Some(depth + 1),
            Some(depth) if token.is("}") => open = (depth > 1).then_some(depth - 1),
            Some(_) => {
                let calls = |(name, behind): &&(&str, &str)| {
                    token.is(name) && tokens.get(at + 1).is_some_and(|next| next.is(behind))
                };
                if let Some((name, _)) = PANICKING.iter().find(calls) {
                    let what = format!("`{name}` in a drop, which must not panic");
                    found.push(complain(source, token.line, &what));
                }
            }
            None => {}
        }
    }
    found
}

// === leftovers ===

/// What `build.rs` says if a program is installed that some tests need.
const SERVERS: [&str; 5] = [
    "has_redis_server",
    "has_postgres",
    "has_etcd",
    "has_promtool",
    "has_chromedriver",
];

/// No code that waits to be written, no prints for debugging, no test that is switched off, but for
/// those of Redis, PostgreSQL and promtool where these are not installed, no dead code without a reason.
pub(crate) fn leftovers(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for pair in source.tokens.windows(2) {
        let name = pair[0].word().unwrap_or_default();
        if ["todo", "unimplemented", "dbg"].contains(&name) && pair[1].is("!") {
            found.push(complain(
                source,
                pair[0].line,
                &format!("`{name}!` is left"),
            ));
        }
    }
    // Cut in two, so that this file may be read by its own rule.
    let marks = [
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("TO", "DO"),
    ];
    let words = source
        .tokens
        .iter()
        .filter_map(|t| Some((t.line, t.word()?)));
    let said = source.comments.iter().flat_map(|comment| {
        let words = comment.text.split(|c: char| !c.is_alphanumeric());
        words.map(|word| (comment.line, word))
    });
    for (line, word) in words.chain(said) {
        if marks.contains(&word) {
            found.push(complain(source, line, &format!("`{word}` is left")));
        }
    }
    for attribute in &source.attributes {
        let silences = attribute.has("allow") || attribute.has("expect");
        if silences && attribute.has("dead_code") && !attribute.has("reason") {
            let what = "dead code is allowed without a reason";
            found.push(complain(source, attribute.line, what));
        }
    }
    for function in &source.functions {
        let ignored = function
            .attributes
            .iter()
            .any(|a| a.has("ignore") && !SERVERS.iter().any(|server| a.has(server)));
        let allowed = MAY_BE_IGNORED
            .iter()
            .any(|(file, name)| *file == source.path && *name == function.name);
        if ignored && !allowed {
            let what = format!("the test `{}` is ignored", function.name);
            found.push(complain(source, function.line, &what));
        }
    }
    found
}

// === unsafe ===

/// The places of unsafe code.
pub(crate) fn unsafe_code(source: &Source) -> Vec<String> {
    let tokens = source.tokens.iter();
    tokens
        .filter(|token| token.is("unsafe"))
        .map(|token| complain(source, token.line, "unsafe code"))
        .collect()
}

/// No unsafe code; the crate says so itself, first thing in its root.
pub(crate) fn no_unsafe(source: &Source) -> Vec<String> {
    let mut found = unsafe_code(source);
    let promise = ["#", "!", "[", "forbid", "(", "unsafe_code", ")", "]"];
    let begins = |tokens: &[Token]| {
        tokens.len() >= promise.len() && promise.iter().zip(tokens).all(|(text, t)| t.is(text))
    };
    let inner = package_of(&source.path).and_then(|package| in_package(&source.path, package));
    if inner == Some("lib.rs") && !begins(&source.tokens) {
        let what = "the crate's code has to begin with `#![forbid(unsafe_code)]`";
        found.push(complain(source, 1, what));
    }
    found
}

// === enums that may grow ===

/// A public enum is marked `#[non_exhaustive]`, or the table says why not. Those whose variants may
/// get further fields mark these variants, too.
pub(crate) fn enums_may_grow(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    let is_marked = |attributes: &[Attribute]| {
        let mut paths = attributes.iter().map(Attribute::path);
        paths.any(|path| path.is_ident("non_exhaustive"))
    };
    for item in source.items() {
        let Item::Enum(item) = item else { continue };
        let line = item.enum_token.span.start().line;
        if !matches!(item.vis, Visibility::Public(_)) || source.is_tested(line) {
            continue;
        }
        let name = item.ident.to_string();
        let may_stay = EXHAUSTIVE_ENUMS
            .iter()
            .any(|(file, exhaustive, _)| *file == source.path && *exhaustive == name);
        if may_stay == is_marked(&item.attrs) {
            let what = if may_stay {
                format!("`{name}` is marked: take it out of EXHAUSTIVE_ENUMS")
            } else {
                format!(
                    "`{name}` is not `#[non_exhaustive]`: mark it, or say in EXHAUSTIVE_ENUMS of \
                     tests/tidy/main.rs why it never grows"
                )
            };
            found.push(complain(source, line, &what));
        }
        let growing = item.variants.iter().filter(|variant| {
            GROWING_VARIANTS.contains(&&*name)
                && matches!(variant.fields, Fields::Named(_))
                && !is_marked(&variant.attrs)
        });
        for variant in growing {
            let what = format!("`{name}::{}` is not `#[non_exhaustive]`", variant.ident);
            found.push(complain(source, variant.ident.span().start().line, &what));
        }
    }
    found
}

// === length ===

/// A file says one thing; one that does not fit says two.
pub(crate) fn length(source: &Source) -> Vec<String> {
    let agreed = LONG_FILES.iter().find(|(file, _, _)| *file == source.path);
    let is_test = source.path.ends_with("/tests.rs") || source.path.contains("/tests/");
    let usual = if is_test { LONGEST_TESTS } else { LONGEST };
    let limit = agreed.map_or(usual, |(_, limit, _)| *limit);
    if source.lines <= limit {
        return Vec::new();
    }
    let what = format!(
        "{} lines, more than {limit}: give a part that can be named a file of its own (the tests \
         may go into `{}`)",
        source.lines,
        source
            .path
            .replace("mod.rs", "tests.rs")
            .replace(".rs", "/tests.rs")
    );
    vec![complain(source, limit + 1, &what)]
}

// === the exceptions ===

/// The exceptions that are not needed any more.
pub(crate) fn exceptions(sources: &[&Source]) -> Vec<String> {
    let mut found = Vec::new();
    let file = |path: &str| sources.iter().copied().find(|source| source.path == path);
    for (path, limit, _) in LONG_FILES {
        if file(path).is_none_or(|source| source.lines <= LONGEST) {
            found.push(format!(
                "LONG_FILES: {path} needs no {limit} lines any more"
            ));
        }
    }
    for (path, name, _) in FACADE_EXCEPTIONS {
        let names = |source: &Source| {
            let paths = source.paths();
            paths.iter().any(|path| path.segments.join("::") == *name)
        };
        if !file(path).is_some_and(names) {
            found.push(format!("FACADE_EXCEPTIONS: {path} does not name {name}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(rule: fn(&Source) -> Vec<String>, path: &str, text: &str) -> usize {
        rule(&Source::new(path, text)).len()
    }

    #[test]
    fn only_the_facade_names_what_the_models_replace() {
        for text in [
            "use std::sync::Arc;",
            "use std::{fmt, sync::{Arc, Weak}};",
            "fn f() { core::sync::atomic::fence(x) }",
            "std::thread::yield_now();",
            "use crossbeam_deque::Worker;",
            "use loom::sync::Arc;",
        ] {
            assert!(count(facade, "src/shard/mod.rs", text) > 0, "{text}");
            assert_eq!(count(facade, "src/sync/mod.rs", text), 0, "{text}");
        }
        for text in [
            "use std::fmt; use crate::sync::Arc;",
            "/// use std::sync::Arc;\n// crossbeam_deque::Worker",
            "#[cfg(all(test, not(loom)))] mod tests { use std::sync::Arc; }",
            "#[cfg(not(loom))] fn f() {}",
        ] {
            assert_eq!(count(facade, "src/shard/mod.rs", text), 0, "{text}");
        }
    }

    #[test]
    fn a_drop_does_not_panic() {
        let drop = |code: &str| format!("impl Drop for A {{ fn drop(&mut self) {{ {code} }} }}");
        for code in [
            "a.unwrap();",
            "if a { b.expect(\"c\"); }",
            "panic!();",
            "assert_eq!(a, b);",
        ] {
            let text = drop(code);
            assert_eq!(count(drops, "src/a.rs", &text), 1, "{text}");
            let tested = format!("#[cfg(test)] mod tests {{ {text} }}");
            assert_eq!(count(drops, "src/a.rs", &tested), 0, "{text}");
            assert_eq!(count(drops, "src/a.rs", &text.replace("Drop", "Run")), 0);
        }
        for code in [
            "a.unwrap_or(b);",
            "debug_assert!(a);",
            "match a { B {} => {} }",
        ] {
            let text = drop(code) + "fn f() { a.unwrap(); }";
            assert_eq!(count(drops, "src/a.rs", &text), 0, "{text}");
        }
    }

    #[test]
    fn an_ordering_says_why() {
        for (text, expected) in [
            ("a.load(Ordering::Acquire);", 1),
            ("a.load(Relaxed);", 1),
            ("fence(Ordering::SeqCst);", 1),
            (
                "a.fetch_update(Ordering::Relaxed, Ordering::Relaxed, f);",
                1,
            ),
            ("a.load(Ordering::Acquire); // Pairs with b.", 0),
            (
                "// Pairs with b.\nx\n    .y()\n    .z()\n    .load(Ordering::Acquire);",
                0,
            ),
            ("// Pairs with b.\n\n\n\n\na.load(Ordering::Acquire);", 1),
            ("// ---\na.load(Ordering::Acquire);", 1),
            ("use std::sync::atomic::Ordering::{Acquire, Relaxed};", 0),
            (
                "#[cfg(test)] mod tests { fn f() { a.load(Ordering::Acquire); } }",
                0,
            ),
            ("a.cmp(&b) == Ordering::Less", 0),
        ] {
            assert_eq!(
                count(orderings, "src/shard/mod.rs", text),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn leftovers_are_found() {
        for (text, expected) in [
            ("fn f() { todo!() }", 1),
            ("fn f() { unimplemented!(\"later\") }", 1),
            ("fn f() { dbg!(x); }", 1),
            (concat!("// FIX", "ME: this"), 1),
            (concat!("/// XX", "X"), 1),
            ("#[test]\n#[ignore]\nfn f() {}", 1),
            (
                "#[test]\n#[cfg_attr(slow, ignore = \"slow\")]\nfn f() {}",
                1,
            ),
            (
                "#[test]\n#[cfg_attr(not(has_redis_server), ignore = \"none\")]\nfn f() {}",
                0,
            ),
            (
                "#[test]\n#[cfg_attr(not(has_postgres), ignore = \"none\")]\nfn f() {}",
                0,
            ),
            ("#[allow(dead_code)]\nfn f() {}", 1),
            ("#![allow(dead_code, reason = \"models use a part\")]", 0),
            ("fn todo() { let dbg = 1; }", 0),
            ("// What is to do: `todo!`.\nlet x = \"dbg!(x)\";", 0),
            ("#[allow(clippy::x)]\nfn ignore() {}", 0),
        ] {
            assert_eq!(count(leftovers, "src/x.rs", text), expected, "{text}");
        }
        let (file, test) = MAY_BE_IGNORED[0];
        let allowed = format!("#[test]\n#[ignore = \"no log\"]\nfn {test}() {{}}");
        assert_eq!(count(leftovers, file, &allowed), 0);
        assert_eq!(count(leftovers, "tests/other.rs", &allowed), 1);
    }

    #[test]
    fn unsafe_is_found_and_the_root_forbids_it() {
        assert_eq!(count(no_unsafe, "src/x.rs", "fn f() { unsafe { g() } }"), 1);
        assert_eq!(
            count(no_unsafe, "src/x.rs", "// unsafe\nlet unsafe_code = 1;"),
            0
        );
        let promise = "//! Head.\n#![forbid(unsafe_code)]\nmod a;";
        assert_eq!(count(no_unsafe, "src/lib.rs", promise), 0);
        assert_eq!(count(no_unsafe, "src/lib.rs", "mod a;"), 1);
        assert_eq!(count(no_unsafe, "src/lib.rs", "#![deny(unsafe_code)]"), 1);
        assert_eq!(count(no_unsafe, "src/lib.rs", ""), 1);
    }

    #[test]
    fn enums_that_may_not_grow_are_found() {
        for (text, expected) in [
            ("#[derive(Debug)]\npub enum A { B }", 1),
            ("#[derive(Debug)]\n#[non_exhaustive]\npub enum A { B }", 0),
            (
                "#[non_exhaustive]\n#[must_use = \"x\"]\npub enum A<V> { B(V) }",
                0,
            ),
            ("#[non_exhaustive]\npub struct A;\npub enum B {}", 1),
            ("pub(crate) enum A { B }", 0),
            ("#[cfg(test)] mod tests { pub enum A { B } }", 0),
            (
                "#[non_exhaustive]\npub enum BuildError { A { b: u8 }, C }",
                1,
            ),
            (
                "#[non_exhaustive]\npub enum BuildError { #[non_exhaustive] A { b: u8 }, C(u8), }\n\
                 fn f() { g { h: 1 } }",
                0,
            ),
        ] {
            assert_eq!(count(enums_may_grow, "src/x.rs", text), expected, "{text}");
        }
    }

    #[test]
    fn long_files_are_found() {
        assert_eq!(count(length, "src/x.rs", &"x\n".repeat(600)), 0);
        let long = length(&Source::new("src/x.rs", &"x\n".repeat(601)));
        let tests = "x\n".repeat(1_200);
        assert_eq!(count(length, "src/x/tests.rs", &tests), 0);
        assert_eq!(count(length, "src/x/tests/y.rs", &tests), 0);
        assert!(
            long[0].contains("601 lines") && long[0].contains("src/x/tests.rs"),
            "{long:?}"
        );
    }
}
