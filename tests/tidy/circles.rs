//! Whether files import each other in a circle.
//!
//! A file imports the file in which an item is defined, also if it names the item by another file's
//! `pub use`. The `pub use` itself is no import. Neither is what a file takes from the modules that
//! it declares: a parent may use its children, and these may use the parent.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Item, Visibility};

use crate::source::{NamedPath, Source};

/// Files that may import each other, and why.
pub(crate) type Knot = (&'static [&'static str], &'static str);

/// The modules around a file's items, from the top: of `src/shard/mod.rs` it is `[shard]`.
type Module = Vec<String>;

fn module_of(path: &str) -> Module {
    let inner = path.rsplit_once("src/").map_or(path, |(_, inner)| inner);
    let inner = inner.strip_suffix(".rs").unwrap_or(inner);
    let parts = inner.split('/').filter(|part| *part != "mod");
    let parts = parts.filter(|part| *part != "lib");
    parts.map(str::to_owned).collect()
}

struct Tree<'a> {
    files: BTreeMap<Module, &'a Source>,
    /// Per module: the paths of its `pub use`.
    published: BTreeMap<Module, Vec<NamedPath>>,
}

impl<'a> Tree<'a> {
    fn new(sources: &[&'a Source]) -> Self {
        let files: BTreeMap<Module, &Source> = sources
            .iter()
            .map(|source| (module_of(&source.path), *source))
            .collect();
        let published = files
            .iter()
            .map(|(module, source)| (module.clone(), published(source)))
            .collect();
        Tree { files, published }
    }

    /// The module that defines what `path` names. `None`: no module of the crate.
    fn defined_in(&self, from: &Module, path: &NamedPath, depth: usize) -> Option<Module> {
        let supers = path.segments.iter().take_while(|part| *part == "super");
        let climbed = supers.count();
        let first = path.segments.first()?.as_str();
        let (mut module, mut rest) = match first {
            "crate" => (Module::new(), &path.segments[1..]),
            "self" if path.depth == 0 => (from.clone(), &path.segments[1..]),
            // Steps up from a module within the file lead to the file first.
            "super" if climbed < path.depth => return None,
            "super" => {
                let left = from.len().checked_sub(climbed - path.depth)?;
                (from[..left].to_vec(), &path.segments[climbed..])
            }
            _ => {
                let child = [from.as_slice(), &[first.to_owned()]].concat();
                let known = path.depth == 0 && self.files.contains_key(&child);
                known.then(|| (child, &path.segments[1..]))?
            }
        };
        while let Some((next, behind)) = rest.split_first() {
            let child = [module.as_slice(), std::slice::from_ref(next)].concat();
            if !self.files.contains_key(&child) {
                break;
            }
            (module, rest) = (child, behind);
        }
        // Items are published from one module to the next, a few times at most.
        if let Some(item) = rest.first().filter(|_| depth < 8) {
            let mut published = self.published.get(&module).into_iter().flatten();
            if let Some(path) = published.find(|path| path.segments.last() == Some(item))
                && let Some(origin) = self.defined_in(&module, path, depth + 1)
            {
                return Some(origin);
            }
        }
        Some(module)
    }

    /// The files that each file imports.
    fn imports(&self) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
        let mut found = BTreeMap::new();
        for (module, source) in &self.files {
            let published = &self.published[module];
            let paths = source.paths();
            let paths = paths.iter().filter(|path| !path.test);
            let imported = paths
                .filter(|path| !published.contains(path))
                .filter_map(|path| self.defined_in(module, path, 0))
                .filter(|other| other != module && !is_parent(module, other))
                .filter_map(|other| self.files.get(&other))
                .map(|source| source.path.as_str());
            found.insert(source.path.as_str(), imported.collect());
        }
        found
    }
}

fn is_parent(module: &Module, other: &Module) -> bool {
    other
        .split_last()
        .is_some_and(|(_, around)| around == module.as_slice())
}

/// The paths of a file's `pub use` and `pub(crate) use`.
fn published(source: &Source) -> Vec<NamedPath> {
    let items = source.items();
    let uses = items.iter().filter_map(|item| match item {
        Item::Use(item) if !matches!(item.vis, Visibility::Inherited) => {
            Some(item.use_token.span.start().line..=item.semi_token.span.end().line)
        }
        _ => None,
    });
    let lines: BTreeSet<usize> = uses.flatten().collect();
    let mut paths = source.paths();
    paths.retain(|path| lines.contains(&path.line));
    paths
}

/// The files that are left when those that import none of the others, or are imported by none,
/// are taken away again and again.
fn in_circles<'a>(
    imports: &BTreeMap<&'a str, BTreeSet<&'a str>>,
    is_exempt: impl Fn(&str, &str) -> bool,
) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let mut left = imports.clone();
    for (file, imported) in &mut left {
        imported.retain(|other| !is_exempt(file, other));
    }
    loop {
        let importing: BTreeSet<&str> = left
            .iter()
            .filter(|(_, imported)| !imported.is_empty())
            .map(|(file, _)| *file)
            .collect();
        let imported: BTreeSet<&str> = left.values().flatten().copied().collect();
        let count = left.len();
        left.retain(|file, _| importing.contains(file) && imported.contains(file));
        let remaining: BTreeSet<&str> = left.keys().copied().collect();
        for imported in left.values_mut() {
            imported.retain(|other| remaining.contains(other));
        }
        if left.len() == count {
            return left;
        }
    }
}

/// The circles between the files that are not exempt, and the exemptions that are not needed.
pub(crate) fn circles(sources: &[&Source], knots: &[Knot]) -> Vec<String> {
    let imports = Tree::new(sources).imports();
    let is_exempt = |file: &str, other: &str| {
        knots
            .iter()
            .any(|(files, _)| files.contains(&file) && files.contains(&other))
    };
    let mut found: Vec<String> = in_circles(&imports, is_exempt)
        .iter()
        .map(|(file, imported)| format!("{file} is part of a circle, by way of {imported:?}"))
        .collect();
    let circular = in_circles(&imports, |_, _| false);
    for (files, _) in knots {
        let idle = files.iter().filter(|file| !circular.contains_key(*file));
        found.extend(idle.map(|file| format!("KNOTS: {file} is in no circle any more")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(files: &[(&str, &str)], knots: &[Knot]) -> usize {
        let sources: Vec<Source> = files
            .iter()
            .map(|(path, text)| Source::new(path, text))
            .collect();
        circles(&sources.iter().collect::<Vec<_>>(), knots).len()
    }

    #[test]
    fn files_that_import_each_other_are_found() {
        let parent = ("src/a/mod.rs", "mod b; mod c;");
        let b = ("src/a/b.rs", "use super::c::C;");
        let c = ("src/a/c.rs", "fn f() { super::b::g() }");
        assert_eq!(complaints(&[parent, b, ("src/a/c.rs", "")], &[]), 0);
        assert_eq!(complaints(&[parent, b, c], &[]), 2);
        let knot: Knot = (&["src/a/b.rs", "src/a/c.rs"], "they are one type");
        assert_eq!(complaints(&[parent, b, c], &[knot]), 0);
        assert_eq!(complaints(&[parent, b, ("src/a/c.rs", "")], &[knot]), 2);
    }

    #[test]
    fn an_item_is_imported_from_where_it_is_defined() {
        let parent = (
            "src/a/mod.rs",
            "mod b;\nmod c;\npub use b::B;\npub(crate) use c::C;",
        );
        let b = ("src/a/b.rs", "use super::C;");
        assert_eq!(
            complaints(&[parent, b, ("src/a/c.rs", "use crate::a::B;")], &[]),
            2
        );
        let other = ("src/d.rs", "use crate::a::B;");
        assert_eq!(complaints(&[parent, b, ("src/a/c.rs", ""), other], &[]), 0);
    }

    #[test]
    fn a_parent_and_its_children_may_use_each_other() {
        let parent = ("src/a/mod.rs", "mod b;\nuse b::B;\nstruct A;");
        assert_eq!(
            complaints(&[parent, ("src/a/b.rs", "use super::A;")], &[]),
            0
        );
        let test = "mod b;\nmod c;";
        let b = (
            "src/a/b.rs",
            "#[cfg(test)]\nmod tests { use super::super::c::C; }",
        );
        let c = ("src/a/c.rs", "use super::b::B;");
        assert_eq!(complaints(&[("src/a/mod.rs", test), b, c], &[]), 0);
    }
}
