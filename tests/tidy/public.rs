//! The public names of the published crates, as their sources say them: whether a name means two
//! things, and which functions are another one with a suffix.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::parse::Parser;
use syn::{
    Attribute, Expr, ExprLit, Ident, ImplItem, Item, ItemImpl, Lit, LitStr, Meta, Signature,
    TraitItem, Type, UseTree, Visibility,
};

use crate::source::Source;

/// What a public name is defined as: the file, and the name there.
pub(crate) type Definition = (String, String);

/// A public name that means two things, and why it may.
pub(crate) type Exception = (&'static str, &'static str);

/// Words that make no name of their own: a call that has another one's name and one of these does
/// the same in another way.
const SUFFIXES: &[&str] = &[
    "after", "async", "at", "for", "from", "in", "on", "until", "with", "within",
];

/// A published crate.
pub(crate) struct Crate {
    pub(crate) name: &'static str,
    /// The folder of its sources.
    folder: &'static str,
    pub(crate) files: BTreeMap<String, syn::File>,
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

/// A public function.
pub(crate) struct Function {
    /// The type, trait, macro or crate that it belongs to.
    pub(crate) owner: String,
    pub(crate) name: String,
    pub(crate) is_method: bool,
    pub(crate) docs: String,
}

impl Function {
    fn new(owner: &str, signature: &Signature, attributes: &[Attribute]) -> Self {
        Function {
            owner: owner.to_owned(),
            name: signature.ident.to_string(),
            is_method: signature.receiver().is_some(),
            docs: docs(attributes),
        }
    }
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
    pub(crate) fn names(&self) -> BTreeMap<String, BTreeSet<Definition>> {
        let mut found = BTreeMap::new();
        self.exports(&self.root(), &mut found);
        found
    }

    /// The items of all files, without modules and what only tests compile, each with its file.
    pub(crate) fn items(&self) -> Vec<(&str, &Item)> {
        let mut found = Vec::new();
        let mut pending: Vec<(&str, &Item)> = self
            .files
            .iter()
            .filter(|(path, _)| !path.contains("/tests/") && !path.ends_with("/tests.rs"))
            .flat_map(|(path, file)| file.items.iter().map(move |item| (path.as_str(), item)))
            .collect();
        while let Some((path, item)) = pending.pop() {
            match item {
                Item::Mod(module) if !is_for_tests(&module.attrs) => {
                    let inner = module.content.iter().flat_map(|(_, items)| items);
                    pending.extend(inner.map(|item| (path, item)));
                }
                Item::Mod(_) => {}
                _ => found.push((path, item)),
            }
        }
        found
    }

    /// The public functions of public types, traits and modules. What a macro writes counts as its
    /// own.
    pub(crate) fn functions(&self) -> Vec<Function> {
        let names = self.names();
        let mut found = Vec::new();
        for (_, item) in self.items() {
            match item {
                Item::Impl(block) if block.trait_.is_none() && !is_for_tests(&block.attrs) => {
                    let Some(owner) = owner(block).filter(|owner| names.contains_key(owner)) else {
                        continue;
                    };
                    for item in &block.items {
                        if let ImplItem::Fn(function) = item
                            && is_public(&function.vis, &function.attrs)
                        {
                            found.push(Function::new(&owner, &function.sig, &function.attrs));
                        }
                    }
                }
                Item::Trait(item) if names.contains_key(&item.ident.to_string()) => {
                    for inner in &item.items {
                        if let TraitItem::Fn(function) = inner
                            && is_public(&item.vis, &function.attrs)
                        {
                            let owner = item.ident.to_string();
                            found.push(Function::new(&owner, &function.sig, &function.attrs));
                        }
                    }
                }
                Item::Fn(function)
                    if is_public(&function.vis, &function.attrs)
                        && names.contains_key(&function.sig.ident.to_string()) =>
                {
                    found.push(Function::new(self.name, &function.sig, &function.attrs));
                }
                Item::Macro(item) => {
                    if let Some(name) = &item.ident {
                        let written = public_functions(item.mac.tokens.clone());
                        found.extend(written.into_iter().map(|(function, attributes)| Function {
                            owner: format!("{name}!"),
                            name: function.to_string(),
                            // The macros write methods alone.
                            is_method: true,
                            docs: docs(&attributes),
                        }));
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// The public functions by what they belong to.
    fn by_owner(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for function in self.functions() {
            let functions = found.entry(function.owner).or_default();
            functions.insert(function.name);
        }
        found
    }

    /// How many types, traits and functions are public, and which of these are twins.
    pub(crate) fn summary(&self) -> String {
        let is_type = |name: &&String| {
            name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase)
        };
        let types = self.names().keys().filter(is_type).count();
        let functions: usize = self.by_owner().values().map(BTreeSet::len).sum();
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
        for (owner, functions) in self.by_owner() {
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
pub(crate) fn named(item: &Item) -> Option<(&Ident, &Visibility, &[Attribute])> {
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

/// The type whose functions a block has.
pub(crate) fn owner(block: &ItemImpl) -> Option<String> {
    let Type::Path(owner) = &*block.self_ty else {
        return None;
    };
    owner
        .path
        .segments
        .last()
        .map(|last| last.ident.to_string())
}

/// The text of documentation. Of a line that a macro puts together, its literals.
pub(crate) fn docs(attributes: &[Attribute]) -> String {
    let mut text = String::new();
    for attribute in attributes {
        let Meta::NameValue(doc) = &attribute.meta else {
            continue;
        };
        match &doc.value {
            _ if !doc.path.is_ident("doc") => {}
            Expr::Lit(ExprLit {
                lit: Lit::Str(line),
                ..
            }) => text += &line.value(),
            Expr::Macro(made) if made.mac.path.is_ident("concat") => {
                for tree in made.mac.tokens.clone() {
                    if let Ok(part) = syn::parse2::<LitStr>(tree.into()) {
                        text += &part.value();
                    }
                }
            }
            _ => {}
        }
        text.push('\n');
    }
    text
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

/// The names behind `pub fn` and its like, in a macro's text, with the attributes of each.
fn public_functions(tokens: TokenStream) -> Vec<(Ident, Vec<Attribute>)> {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let mut found = Vec::new();
    let mut is_open = false;
    // Of the item that comes next.
    let mut attributes = Vec::new();
    for (at, tree) in trees.iter().enumerate() {
        match tree {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
                let attribute = trees[at.saturating_sub(1)..=at].iter().cloned().collect();
                attributes.extend(Attribute::parse_outer.parse2(attribute).unwrap_or_default());
            }
            TokenTree::Group(group) => {
                found.extend(public_functions(group.stream()));
                if group.delimiter() == Delimiter::Brace {
                    attributes.clear();
                }
            }
            // `pub(crate)` is no such function.
            TokenTree::Ident(word) if word == "pub" => {
                is_open = matches!(trees.get(at + 1), Some(TokenTree::Ident(_)));
            }
            TokenTree::Ident(word) if word == "fn" => {
                if let (true, Some(TokenTree::Ident(name))) = (is_open, trees.get(at + 1)) {
                    found.push((name.clone(), std::mem::take(&mut attributes)));
                }
                is_open = false;
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn of(name: &'static str, folder: &'static str, files: &[(&str, &str)]) -> Crate {
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
    fn twins_are_found_on_public_types_alone_and_in_macros() {
        assert_eq!(one().twins(), ["Deep::get_at", "Deep::get_in_async"]);
        let text = "macro_rules! calls { () => { pub fn call(&self) {} pub const fn call_at() {}\n\
                    pub(crate) fn call_in(&self) {} } }";
        let macros = of("two", "two", &[("two/lib.rs", text)]);
        assert_eq!(macros.twins(), ["calls!::call_at"]);
    }
}
