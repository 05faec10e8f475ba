//! The Rust files of the working tree and of earlier commits.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::patch::{self, Edit, Files, Patch};
use super::tokens;
use crate::teeth::git;

/// The number of commits that are searched for a version that a patch fits.
const MOST_COMMITS: usize = 300;
/// The likeness at which a file counts as the new path of another file.
const SAME_FILE: f64 = 0.5;
/// The likeness below which a file has only the name of the earlier file.
const OTHER_FILE: f64 = 0.3;

/// The working tree.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    files: Files,
    counts: BTreeMap<String, BTreeMap<String, usize>>,
}

/// A version of the files of a patch that the patch fits.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) whole: Files,
    pub(crate) broken: Files,
    /// The lines and edits of each hunk, in the order of the patch.
    pub(crate) hunks: Vec<(usize, Vec<Edit>)>,
    pub(crate) in_place: bool,
    only: bool,
}

impl Version {
    /// Applies a patch to the files that `read` returns. `None` if it does not fit.
    pub(crate) fn new(patch: &Patch, read: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let mut version = Version {
            whole: Files::new(),
            broken: Files::new(),
            hunks: Vec::new(),
            in_place: true,
            only: true,
        };
        for file in &patch.files {
            let text = read(&file.path)?;
            let fit = patch::fit(&text, &file.hunks)?;
            version.in_place &= fit.in_place;
            version.only &= fit.only;
            let mut edits = Vec::new();
            for (hunk, &at) in file.hunks.iter().zip(&fit.at) {
                version.hunks.push((at, hunk.edits(at)));
                edits.extend(hunk.edits(at));
            }
            let broken = patch::apply(&text, &edits);
            version.broken.insert(file.path.clone(), broken);
            version.whole.insert(file.path.clone(), text);
        }
        Some(version)
    }

    /// Whether no hunk fits another place as well.
    pub(crate) fn is_certain(&self) -> bool {
        self.in_place || self.only
    }
}

impl Tree {
    /// Reads the Rust files of the working tree, except those of xtask.
    pub(crate) fn new(root: &Path) -> Result<Self, String> {
        let mut files = Files::new();
        for file in git::files(root)? {
            let is_rust = file.extension().is_some_and(|extension| extension == "rs");
            let Some(path) = file.to_str().filter(|_| is_rust) else {
                continue;
            };
            if path.starts_with("dev/xtask/") {
                continue;
            }
            let text = fs::read_to_string(root.join(&file));
            let text = text.map_err(|error| format!("{path}: {error}"))?;
            files.insert(path.to_owned(), text);
        }
        let count = |(path, text): (&String, &String)| (path.clone(), count(text));
        Ok(Tree {
            root: root.to_owned(),
            counts: files.iter().map(count).collect(),
            files,
        })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    pub(crate) fn has_word(&self, word: &str) -> bool {
        self.counts.values().any(|counts| counts.contains_key(word))
    }

    /// The file that an earlier file has become: the one at the same path, or, where that is gone
    /// or holds something else, the one that is most like it.
    pub(crate) fn successor(&self, path: &str, old: &str) -> Option<&str> {
        let old = count(old);
        let same = self.counts.get_key_value(path);
        let same = same.map(|(path, counts)| (likeness(&old, counts), &**path));
        if let Some((likeness, path)) = same
            && likeness >= SAME_FILE
        {
            return Some(path);
        }
        let all = self.counts.iter();
        let best = all
            .map(|(path, counts)| (likeness(&old, counts), &**path))
            .max_by(|one, other| one.0.total_cmp(&other.0));
        best.filter(|best| best.0 >= SAME_FILE)
            .or(same.filter(|same| same.0 >= OTHER_FILE))
            .map(|(_, path)| path)
    }

    /// The text of a file at a commit.
    pub(crate) fn show(&self, commit: &str, path: &str) -> Option<String> {
        git::ask(&self.root, &["show", &format!("{commit}:{path}")])
    }

    /// The commit that last changed a file.
    pub(crate) fn last_change(&self, path: &str) -> Option<String> {
        let commit = git::ask(&self.root, &["log", "-1", "--format=%H", "--", path])?;
        let commit = commit.trim();
        (!commit.is_empty()).then(|| commit.to_owned())
    }

    /// The latest committed version that a patch fits, if possible each hunk at one place only.
    pub(crate) fn last_fit(&self, patch: &Patch) -> Option<Version> {
        let most = format!("-n{MOST_COMMITS}");
        // The full history, so that a file is found that one branch moved and another branch
        // changed.
        let mut arguments = vec!["log", &most, "--format=%H", "--full-history", "--"];
        arguments.extend(patch.files.iter().map(|file| &*file.path));
        let log = git::ask(&self.root, &arguments).unwrap_or_default();
        let mut doubtful = None;
        for commit in ["HEAD"].into_iter().chain(log.lines()) {
            match Version::new(patch, |path| self.show(commit, path)) {
                Some(version) if version.is_certain() => return Some(version),
                Some(version) => doubtful = doubtful.or(Some(version)),
                None => {}
            }
        }
        doubtful
    }

    /// The Rust files that contained an identifier at a commit.
    pub(crate) fn files_with(&self, word: &str, commit: &str) -> Vec<String> {
        let arguments = ["grep", "-lwF", "-e", word, commit, "--", "*.rs"];
        let found = git::ask(&self.root, &arguments).unwrap_or_default();
        let path = |line: &str| line.split_once(':').map(|(_, path)| path.to_owned());
        found.lines().filter_map(path).collect()
    }

    /// The paths of tests, like `models::doorbell::rings`, whose function has this name.
    pub(crate) fn tests_named(&self, name: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for (path, text) in &self.files {
            let Some(module) = path
                .strip_prefix("loom-tests/src/")
                .and_then(|path| path.strip_suffix(".rs"))
            else {
                continue;
            };
            let words: Vec<&str> = tokens::words(text).collect();
            if words.windows(2).any(|pair| pair == ["fn", name]) {
                let module = module.strip_suffix("/mod").unwrap_or(module);
                found.insert(format!("{}::{name}", module.replace('/', "::")));
            }
        }
        found
    }
}

fn count(text: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for word in tokens::words(text) {
        *counts.entry(word.to_owned()).or_default() += 1;
    }
    counts
}

/// Returns the likeness of two files, from 0 for no common word to 1 for the same words equally
/// often.
fn likeness(one: &BTreeMap<String, usize>, other: &BTreeMap<String, usize>) -> f64 {
    let common: usize = one
        .iter()
        .map(|(word, count)| *count.min(other.get(word).unwrap_or(&0)))
        .sum();
    let all: usize = one.values().chain(other.values()).sum();
    2.0 * common as f64 / all.max(1) as f64
}
