//! Which public types and functions have an example in their documentation.

use std::collections::{BTreeMap, BTreeSet};

use syn::{ImplItem, Item};

use crate::public::{Crate, Definition, Function, docs, named, owner};

impl Crate {
    /// The public types and traits without an example, in their docs or in those of their methods.
    pub(crate) fn types_without_example(&self) -> Vec<String> {
        let mut shown = BTreeSet::new();
        let mut missing = BTreeSet::new();
        let public: BTreeSet<Definition> = self.names().into_values().flatten().collect();
        for (path, item) in self.items() {
            match item {
                Item::Impl(block) if block.trait_.is_none() => {
                    let has_example = block.items.iter().any(|item| {
                        matches!(item, ImplItem::Fn(function) if docs(&function.attrs).contains("```"))
                    });
                    shown.extend(owner(block).filter(|_| has_example));
                }
                Item::Struct(_) | Item::Enum(_) | Item::Union(_) | Item::Trait(_) => {
                    if let Some((name, _, attributes)) = named(item)
                        && public.contains(&(path.to_owned(), name.to_string()))
                        && !docs(attributes).contains("```")
                    {
                        missing.insert(name.to_string());
                    }
                }
                _ => {}
            }
        }
        missing.difference(&shown).cloned().collect()
    }

    /// The public functions that no example shows: none in their own docs, nor in those of their
    /// type, its blocks and their files, nor on one of `pages`.
    pub(crate) fn functions_without_example(&self, pages: &[String]) -> Vec<String> {
        let mut around: BTreeMap<String, String> = BTreeMap::new();
        for (path, item) in self.items() {
            let (owner, attributes) = match item {
                Item::Impl(block) => (owner(block), &block.attrs[..]),
                _ => match named(item) {
                    Some((name, _, attributes)) => (Some(name.to_string()), attributes),
                    None => continue,
                },
            };
            if let Some(owner) = owner {
                let code = around.entry(owner).or_default();
                *code += &code_of(&docs(attributes));
                *code += &code_of(&docs(&self.files[path].attrs));
            }
        }
        let pages: String = pages.iter().map(|page| code_of(page)).collect();
        // A function that a type has in several forms, by its arguments, needs one.
        let (mut shown, mut missing) = (BTreeSet::new(), BTreeSet::new());
        for function in self.functions() {
            let around = around.get(&function.owner).map_or("", String::as_str);
            let own = code_of(&function.docs);
            let mut all = [&own, around, &pages].into_iter();
            let found = match all.any(|code| shows(code, &function)) {
                true => &mut shown,
                false => &mut missing,
            };
            found.insert(format!("{}::{}", function.owner, function.name));
        }
        let missing = missing.difference(&shown);
        missing
            .map(|function| format!("{function} has no example"))
            .collect()
    }

    /// The text of the crate's front page.
    pub(crate) fn front_page(&self) -> String {
        let is_root = |path: &&String| path.ends_with("/lib.rs");
        let root = self.files.keys().find(is_root).expect("a crate has a root");
        docs(&self.files[root].attrs)
    }
}

/// What readers see of the Rust code of a page, without comments.
fn code_of(page: &str) -> String {
    let mut code = String::new();
    // The words behind the fence of the open block.
    let mut block: Option<&str> = None;
    for line in page.lines().map(str::trim) {
        if let Some(words) = line.strip_prefix("```") {
            block = block.is_none().then_some(words);
            continue;
        }
        let is_rust = |words: &str| {
            let mut words = words.split(',').filter(|word| !word.is_empty());
            words.all(|word| {
                matches!(
                    word,
                    "rust" | "no_run" | "should_panic" | "standalone_crate"
                )
            })
        };
        let is_shown = line != "#" && !line.starts_with("# ");
        if block.is_some_and(is_rust) && is_shown {
            code += line.split("//").next().unwrap_or_default();
            code.push('\n');
        }
    }
    code
}

/// Whether the code calls a function, names it as a value, or implements it. By its name: the type
/// is known only where the code says it.
fn shows(code: &str, function: &Function) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(&*function.name).any(|(at, name)| {
        let (before, after) = (code[..at].trim_end(), &code[at + name.len()..]);
        if code[..at].ends_with(is_word) || after.starts_with(is_word) {
            return false;
        }
        let is_called = after.starts_with('(') || after.starts_with("::<");
        if let Some(path) = before.strip_suffix("::") {
            let path = without_arguments(path);
            let is_last = is_called || !after.starts_with("::");
            return is_last && (function.is_method || last_word(path) == function.owner);
        }
        match last_word(before) {
            "fn" => true,
            _ if before.ends_with('.') => is_called && function.is_method,
            // A function of a module.
            _ => is_called && !function.is_method && before.ends_with(|c: char| !is_word(c)),
        }
    })
}

/// The path without the generic arguments at its end.
fn without_arguments(path: &str) -> &str {
    if !path.ends_with('>') {
        return path;
    }
    let mut depth = 0;
    for (at, character) in path.char_indices().rev() {
        match character {
            '>' => depth += 1,
            '<' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return path[..at].trim_end_matches("::");
        }
    }
    path
}

fn last_word(text: &str) -> &str {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    &text[text.trim_end_matches(is_word).len()..]
}

#[cfg(test)]
mod tests {
    use crate::public::tests::of;

    #[test]
    fn a_public_type_has_an_example_or_a_method_with_one() {
        let text = "pub mod a;\nstruct Private;\n/// ```\npub struct Shown;\npub enum Bare {}\n\
                    pub struct ByMethod;\nimpl ByMethod {\n/// ```\npub fn get(&self) {} }";
        let files = [
            ("two/lib.rs", text),
            ("two/a.rs", "/// No.\npub trait Bare2 {}"),
        ];
        assert_eq!(
            of("two", "two", &files).types_without_example(),
            ["Bare", "Bare2"]
        );
    }

    /// The functions of a crate without an example.
    fn missing(text: &str, pages: &[&str]) -> Vec<String> {
        let pages: Vec<String> = pages.iter().map(ToString::to_string).collect();
        let found = of("two", "two", &[("two/lib.rs", text)]).functions_without_example(&pages);
        let name = |text: &String| text.split(' ').next().unwrap_or_default().to_owned();
        found.iter().map(name).collect()
    }

    #[test]
    fn a_function_is_shown_in_its_docs_around_it_or_on_a_page() {
        let text = "//! ```\n//! a.by_file();\n//! ```\n/// ```\n/// a.by_type();\n/// ```\n\
                    pub struct A;\n/// ```\n/// a.by_block();\n/// ```\nimpl A {\n\
                    /// ```\n/// a.own();\n/// ```\npub fn own(&self) {}\n\
                    pub fn by_type(&self) {}\npub fn by_block(&self) {}\npub fn by_file(&self) {}\n\
                    pub fn by_page(&self) {}\npub fn bare(&self) {}\nfn private(&self) {}\n\
                    #[doc(hidden)]\npub fn hidden(&self) {} }\n\
                    impl Clone for A { fn clone(&self) -> A { A } }";
        assert_eq!(missing(text, &["```\na.by_page()\n```"]), ["A::bare"]);
    }

    #[test]
    fn what_is_hidden_and_no_rust_shows_nothing() {
        let text = "pub struct A;\nimpl A { pub fn get(&self) {} }";
        let shown = [
            "```\na.get();\n```",
            "```rust,no_run\nlet a = a\n  .get::<u8>();\n```",
            "```standalone_crate\na.get();\n```",
        ];
        for page in shown {
            assert_eq!(missing(text, &[page]), [""; 0], "{page}");
        }
        let not_shown = [
            "a.get();",
            "```text\na.get();\n```",
            "```compile_fail\na.get();\n```",
            "```\n# a.get();\n```",
            "```\n// a.get();\n```",
            "```\na.get;\n```",
            "```\na.get_at(); forget();\n```",
            "```\nuse a::get::B;\n```",
        ];
        for page in not_shown {
            assert_eq!(missing(text, &[page]), ["A::get"], "{page}");
        }
    }

    #[test]
    fn a_function_without_a_receiver_needs_its_type() {
        let text = "pub struct A;\nimpl A { pub fn new() {} }\npub fn free() {}";
        let shown = "```\nA::new(); free();\n```";
        assert_eq!(missing(text, &[shown]), [""; 0]);
        assert_eq!(
            missing(text, &["```\nA::<B<u8>>::new(); a::free();\n```"]),
            ["two::free"]
        );
        let not_shown = "```\nB::new(); a.new(); a.free();\n```";
        assert_eq!(missing(text, &[not_shown]), ["A::new", "two::free"]);
    }

    #[test]
    fn traits_are_shown_by_an_implementation_and_macros_by_their_own_docs() {
        let text = "pub trait T { fn run(&self); fn stop(&self); }\n\
                    macro_rules! m { () => {\n/// ```\n/// a.tick();\n/// ```\n#[must_use]\n\
                    pub fn tick(&self) {}\npub fn bare(&self) {} } }";
        let page = "```\nimpl T for A { fn run(&self) {} }\n```";
        assert_eq!(missing(text, &[page]), ["T::stop", "m!::bare"]);
    }
}
