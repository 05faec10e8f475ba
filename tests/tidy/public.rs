//! The public names of the published crates, as their sources say them: whether a name means two
//! things, and which functions are another one with a suffix.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, Expr, ExprLit, Ident, ImplItem, Item, Lit, Meta, TraitItem, Type, UseTree,
    Visibility,
};

use crate::source::Source;

/// What a public name is defined as: the file, and the name there.
type Definition = (String, String);

/// A public name that means two things, and why it may.
pub(crate) type Exception = (&'static str, &'static str);

/// Words that make no name of their own: a call that has another one's name and one of these does
/// the same in another way.
const SUFFIXES: &[&str] = &[
    "after", "async", "at", "for", "from", "in", "on", "until", "with", "within",
];

/// A published crate.
pub(crate) struct Crate {
    name: &'static str,
    /// The folder of its sources.
    folder: &'static str,
    files: BTreeMap<String, syn::File>,
}

/// A module of a crate.
#[derive(Clone)]
struct Module<'a> {
    /// From the root of the crate.
    path: Vec<String>,
    file: &'a str,
    /// Where the files of its modules lie.
    folder: String,
    items: &'a [Item],
}

impl Crate {
    pub(crate) fn new(name: &'static str, folder: &'static str, sources: &[&Source]) -> Self {
        let parse = |source: &&Source| {
            let file = syn::parse_file(&source.text);
            let file = file.unwrap_or_else(|error| panic!("{}: {error}", source.path));
            (source.path.clone(), file)
        };
        let files = sources.iter().map(parse).collect();
        Crate {
            name,
            folder,
            files,
        }
    }

    fn root(&self) -> Module<'_> {
        let (file, parsed) = self
            .files
            .get_key_value(&format!("{}/lib.rs", self.folder))
            .unwrap_or_else(|| panic!("{} has no `lib.rs`", self.folder));
        Module {
            path: Vec::new(),
            file,
            folder: self.folder.to_owned(),
            items: &parsed.items,
        }
    }

    /// Finds a module within another one.
    fn module<'a>(&'a self, parent: &Module<'a>, name: &str) -> Option<Module<'a>> {
        let found = parent.items.iter().find_map(|item| match item {
            Item::Mod(module) if module.ident == name => Some(module),
            _ => None,
        })?;
        let folder = format!("{}/{name}", parent.folder);
        let mut path = parent.path.clone();
        path.push(name.to_owned());
        if let Some((_, items)) = &found.content {
            return Some(Module {
                path,
                file: parent.file,
                folder,
                items,
            });
        }
        let places = [format!("{folder}.rs"), format!("{folder}/mod.rs")];
        let (file, parsed) = places
            .iter()
            .find_map(|place| self.files.get_key_value(place))?;
        Some(Module {
            path,
            file,
            folder,
            items: &parsed.items,
        })
    }

    /// Where the name that a path ends with is defined. `None` if that is in another crate.
    fn definition(&self, from: &Module<'_>, path: &[String]) -> Option<Definition> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => return self.definition(&self.root(), rest),
            "self" => return self.definition(from, rest),
            "super" => {
                let mut above = self.root();
                for name in &from.path[..from.path.len().checked_sub(1)?] {
                    above = self.module(&above, name)?;
                }
                return self.definition(&above, rest);
            }
            _ => {}
        }
        if rest.is_empty()
            && from
                .items
                .iter()
                .any(|item| named(item).is_some_and(|(name, ..)| name == first))
        {
            return Some((from.file.to_owned(), first.clone()));
        }
        if let Some(module) = self.module(from, first)
            && !rest.is_empty()
        {
            return self.definition(&module, rest);
        }
        // It was imported.
        for (name, mut target) in from.items.iter().flat_map(imports) {
            if name == *first && target != path {
                target.extend_from_slice(rest);
                return self.definition(from, &target);
            }
        }
        None
    }

    /// The public names of a module and of those in it, by what they are defined as.
    fn exports(&self, module: &Module<'_>, found: &mut BTreeMap<String, BTreeSet<Definition>>) {
        for item in module.items {
            if let Some((name, visibility, attributes)) = named(item)
                && is_public(visibility, attributes)
            {
                let definition = (module.file.to_owned(), name.to_string());
                found
                    .entry(name.to_string())
                    .or_default()
                    .insert(definition);
            }
            match item {
                Item::Mod(inner) if is_public(&inner.vis, &inner.attrs) => {
                    if let Some(inner) = self.module(module, &inner.ident.to_string()) {
                        self.exports(&inner, found);
                    }
                }
                Item::Use(import) if is_public(&import.vis, &import.attrs) => {
                    for (name, target) in imports(item) {
                        if let Some(definition) = self.definition(module, &target) {
                            found.entry(name).or_default().insert(definition);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// All public names, by what they are defined as. A name that another crate defines is not one
    /// of them.
    fn names(&self) -> BTreeMap<String, BTreeSet<Definition>> {
        let mut found = BTreeMap::new();
        self.exports(&self.root(), &mut found);
        found
    }

    /// The public functions of public types, traits and modules, by these. What a macro writes
    /// counts as its own.
    fn functions(&self) -> BTreeMap<String, BTreeSet<String>> {
        let names = self.names();
        let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut add = |owner: &str, name: &Ident| {
            let functions = found.entry(owner.to_owned()).or_default();
            functions.insert(name.to_string());
        };
        let mut pending: Vec<&Item> = self
            .files
            .iter()
            .filter(|(path, _)| !path.contains("/tests/") && !path.ends_with("/tests.rs"))
            .flat_map(|(_, file)| &file.items)
            .collect();
        while let Some(item) = pending.pop() {
            match item {
                Item::Mod(module) if !is_for_tests(&module.attrs) => {
                    pending.extend(module.content.iter().flat_map(|(_, items)| items));
                }
                Item::Impl(block) if block.trait_.is_none() => {
                    let Type::Path(owner) = &*block.self_ty else {
                        continue;
                    };
                    let owner = owner.path.segments.last().map(|last| &last.ident);
                    let Some(owner) = owner.map(Ident::to_string) else {
                        continue;
                    };
                    if !names.contains_key(&owner) || is_for_tests(&block.attrs) {
                        continue;
                    }
                    for item in &block.items {
                        if let ImplItem::Fn(function) = item
                            && is_public(&function.vis, &function.attrs)
                        {
                            add(&owner, &function.sig.ident);
                        }
                    }
                }
                Item::Trait(item) if names.contains_key(&item.ident.to_string()) => {
                    for inner in &item.items {
                        if let TraitItem::Fn(function) = inner {
                            add(&item.ident.to_string(), &function.sig.ident);
                        }
                    }
                }
                Item::Fn(function)
                    if is_public(&function.vis, &function.attrs)
                        && names.contains_key(&function.sig.ident.to_string()) =>
                {
                    add(self.name, &function.sig.ident);
                }
                Item::Macro(item) => {
                    if let Some(name) = &item.ident {
                        for function in public_functions(item.mac.tokens.clone()) {
                            add(&format!("{name}!"), &function);
                        }
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// The public types and traits without an example, in their docs or in those of their methods.
    pub(crate) fn without_example(&self) -> Vec<String> {
        let mut shown = BTreeSet::new();
        let mut missing = BTreeSet::new();
        let files = self.files.iter();
        let mut pending: Vec<(&str, &Item)> = files
            .flat_map(|(path, file)| file.items.iter().map(move |item| (path.as_str(), item)))
            .collect();
        let public: BTreeSet<Definition> = self.names().into_values().flatten().collect();
        while let Some((path, item)) = pending.pop() {
            match item {
                Item::Mod(module) => {
                    let inner = module.content.iter().flat_map(|(_, items)| items);
                    pending.extend(inner.map(|item| (path, item)));
                }
                Item::Impl(block) if block.trait_.is_none() => {
                    if let Type::Path(owner) = &*block.self_ty
                        && let Some(owner) = owner.path.segments.last()
                        && block.items.iter().any(|item| {
                            matches!(item, ImplItem::Fn(function) if has_example(&function.attrs))
                        })
                    {
                        shown.insert(owner.ident.to_string());
                    }
                }
                Item::Struct(_) | Item::Enum(_) | Item::Union(_) | Item::Trait(_) => {
                    if let Some((name, _, attributes)) = named(item)
                        && public.contains(&(path.to_owned(), name.to_string()))
                        && !has_example(attributes)
                    {
                        missing.insert(name.to_string());
                    }
                }
                _ => {}
            }
        }
        missing.difference(&shown).cloned().collect()
    }

    /// How many types, traits and functions are public, and which of these are twins.
    pub(crate) fn summary(&self) -> String {
        let is_type = |name: &&String| {
            name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase)
        };
        let types = self.names().keys().filter(is_type).count();
        let functions: usize = self.functions().values().map(BTreeSet::len).sum();
        let twins = self.twins();
        format!(
            "{}: {types} types, {functions} functions, {} twins: {}",
            self.name,
            twins.len(),
            twins.join(", ")
        )
    }

    /// The public functions that are another one of the same type with a suffix.
    pub(crate) fn twins(&self) -> Vec<String> {
        let mut twins = Vec::new();
        for (owner, functions) in self.functions() {
            for function in &functions {
                let words: Vec<&str> = function.split('_').collect();
                let is_twin = (1..words.len())
                    .filter(|&at| words[at..].iter().all(|word| SUFFIXES.contains(word)))
                    .any(|at| functions.contains(&words[..at].join("_")));
                if is_twin {
                    twins.push(format!("{owner}::{function}"));
                }
            }
        }
        twins
    }
}

/// Complaints about names that mean two things, in one of the crates or in two of them, and about
/// exceptions that are not needed.
pub(crate) fn complaints(crates: &[Crate], exceptions: &[Exception]) -> Vec<String> {
    let mut all: BTreeMap<String, BTreeSet<Definition>> = BTreeMap::new();
    for one in crates {
        for (name, definitions) in one.names() {
            all.entry(name).or_default().extend(definitions);
        }
    }
    let is_allowed = |name: &str| exceptions.iter().any(|(allowed, _)| *allowed == name);
    let mut found: Vec<String> = all
        .iter()
        .filter(|(name, definitions)| definitions.len() > 1 && !is_allowed(name))
        .map(|(name, definitions)| {
            let places: Vec<_> = definitions.iter().map(|(file, _)| file.as_str()).collect();
            let places = places.join(", ");
            format!("the public name `{name}` means several things: {places}; rename all but one")
        })
        .collect();
    for (name, _) in exceptions {
        if all
            .get(*name)
            .is_none_or(|definitions| definitions.len() < 2)
        {
            found.push(format!(
                "tests/tidy/main.rs: the public name `{name}` means one thing: take it from the list"
            ));
        }
    }
    found
}

/// What an item declares, apart from modules and imports.
fn named(item: &Item) -> Option<(&Ident, &Visibility, &[Attribute])> {
    Some(match item {
        Item::Struct(item) => (&item.ident, &item.vis, &item.attrs),
        Item::Enum(item) => (&item.ident, &item.vis, &item.attrs),
        Item::Union(item) => (&item.ident, &item.vis, &item.attrs),
        Item::Trait(item) => (&item.ident, &item.vis, &item.attrs),
        Item::Type(item) => (&item.ident, &item.vis, &item.attrs),
        Item::Fn(item) => (&item.sig.ident, &item.vis, &item.attrs),
        Item::Const(item) => (&item.ident, &item.vis, &item.attrs),
        Item::Static(item) => (&item.ident, &item.vis, &item.attrs),
        _ => return None,
    })
}

/// The names that an import makes, with the paths that they stand for.
fn imports(item: &Item) -> Vec<(String, Vec<String>)> {
    fn read(tree: &UseTree, path: &mut Vec<String>, found: &mut Vec<(String, Vec<String>)>) {
        let mut leaf = |name: &Ident, path: &[String], original: &Ident| {
            let mut target = path.to_vec();
            if original != "self" {
                target.push(original.to_string());
            }
            found.push((name.to_string(), target));
        };
        match tree {
            UseTree::Path(part) => {
                path.push(part.ident.to_string());
                read(&part.tree, path, found);
                path.pop();
            }
            UseTree::Name(name) => leaf(&name.ident, path, &name.ident),
            UseTree::Rename(name) => leaf(&name.rename, path, &name.ident),
            UseTree::Group(group) => {
                for tree in &group.items {
                    read(tree, path, found);
                }
            }
            UseTree::Glob(_) => {}
        }
    }
    let mut found = Vec::new();
    if let Item::Use(import) = item {
        read(&import.tree, &mut Vec::new(), &mut found);
    }
    found
}

/// Whether users see it.
fn is_public(visibility: &Visibility, attributes: &[Attribute]) -> bool {
    let is_hidden = attributes.iter().any(|attribute| {
        attribute.path().is_ident("doc")
            && attribute
                .parse_args::<Ident>()
                .is_ok_and(|word| word == "hidden")
    });
    matches!(visibility, Visibility::Public(_)) && !is_hidden && !is_for_tests(attributes)
}

/// Whether the docs have a block of code.
fn has_example(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::NameValue(doc) if doc.path.is_ident("doc") => {
            matches!(&doc.value, Expr::Lit(ExprLit { lit: Lit::Str(line), .. }) if line.value().contains("```"))
        }
        _ => false,
    })
}

/// Whether only tests compile it.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<Ident>()
                .is_ok_and(|word| word == "test")
    })
}

/// The names behind `pub fn` and its like, in a macro's text.
fn public_functions(tokens: TokenStream) -> Vec<Ident> {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let mut found = Vec::new();
    let mut is_open = false;
    for (at, tree) in trees.iter().enumerate() {
        match tree {
            TokenTree::Group(group) => found.extend(public_functions(group.stream())),
            // `pub(crate)` is no such function.
            TokenTree::Ident(word) if word == "pub" => {
                is_open = matches!(trees.get(at + 1), Some(TokenTree::Ident(_)));
            }
            TokenTree::Ident(word) if word == "fn" => {
                if let (true, Some(TokenTree::Ident(name))) = (is_open, trees.get(at + 1)) {
                    found.push(name.clone());
                }
                is_open = false;
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &'static str, folder: &'static str, files: &[(&str, &str)]) -> Crate {
        let sources: Vec<_> = files
            .iter()
            .map(|(path, text)| Source::new(path, text))
            .collect();
        Crate::new(name, folder, &sources.iter().collect::<Vec<_>>())
    }

    fn one() -> Crate {
        of(
            "one",
            "one",
            &[
                (
                    "one/lib.rs",
                    "mod a;\npub mod b { pub use crate::a::Expired; pub struct Own; }\n\
                     #[doc(hidden)]\npub mod hidden { pub struct Stats; }\n\
                     pub use a::{Alias as Other, Expired, inner::Deep};",
                ),
                (
                    "one/a/mod.rs",
                    "pub(crate) mod inner;\npub struct Expired;\npub struct Alias;\n\
                     struct Private;\nimpl Private { pub fn get(&self) {} pub fn get_at(&self) {} }",
                ),
                (
                    "one/a/inner.rs",
                    "pub struct Deep;\nimpl Deep { pub fn get(&self) {} pub fn get_at(&self) {}\n\
                     fn set(&self) {} pub fn set_in(&self) {}\n\
                     pub async fn get_in_async(&self) {} pub fn get_more(&self) {} }",
                ),
            ],
        )
    }

    #[test]
    fn a_name_that_is_exported_twice_means_one_thing() {
        let names = one().names();
        let names: Vec<_> = names.keys().map(String::as_str).collect();
        assert_eq!(names, ["Deep", "Expired", "Other", "Own"]);
        assert_eq!(complaints(&[one()], &[]), [""; 0]);
    }

    #[test]
    fn a_name_that_two_crates_define_is_refused() {
        let two = |text| of("two", "two", &[("two/lib.rs", text)]);
        let found = complaints(&[one(), two("pub enum Deep {}")], &[]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("`Deep`"));
        assert!(found[0].contains("one/a/inner.rs, two/lib.rs"));
        let allowed = [("Deep", "a reason")];
        assert_eq!(
            complaints(&[one(), two("pub enum Deep {}")], &allowed),
            [""; 0]
        );
        // The other crate's type, what is private, and what is hidden.
        for text in ["pub use one::Deep;", "enum Deep {}", "pub enum Stats {}"] {
            assert_eq!(complaints(&[one(), two(text)], &[]), [""; 0], "{text}");
        }
        assert!(complaints(&[one()], &allowed)[0].contains("means one thing"));
    }

    #[test]
    fn a_public_type_has_an_example_or_a_method_with_one() {
        let text = "pub mod a;\nstruct Private;\n/// ```\npub struct Shown;\npub enum Bare {}\n\
                    pub struct ByMethod;\nimpl ByMethod {\n/// ```\npub fn get(&self) {} }";
        let files = [
            ("two/lib.rs", text),
            ("two/a.rs", "/// No.\npub trait Bare2 {}"),
        ];
        assert_eq!(
            of("two", "two", &files).without_example(),
            ["Bare", "Bare2"]
        );
    }

    #[test]
    fn twins_are_found_on_public_types_alone_and_in_macros() {
        assert_eq!(one().twins(), ["Deep::get_at", "Deep::get_in_async"]);
        let text = "macro_rules! calls { () => { pub fn call(&self) {} pub const fn call_at() {}\n\
                    pub(crate) fn call_in(&self) {} } }";
        let macros = of("two", "two", &[("two/lib.rs", text)]);
        assert_eq!(macros.twins(), ["calls!::call_at"]);
    }
}
