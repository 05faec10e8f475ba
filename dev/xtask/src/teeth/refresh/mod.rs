//! Adapts teeth after a refactoring: writes patches anew whose context has changed or moved.
//!
//! A patch that fits the working tree, even at other line numbers, stays as it is. Git applies it,
//! and branches that touch the same patch can be merged. For any other patch the latest commit is
//! searched at which the patch did fit. Then the change from that commit to the working tree is
//! combined with the change that the patch makes:
//!
//! 1. A file that is gone is followed to the file that has most of its identifiers.
//! 2. Identifiers that were renamed since in that file are renamed in the patch. So are identifiers
//!    that are gone from the tree and were renamed in any file.
//! 3. `git merge-file` merges both changes.
//! 4. If there is a conflict, each hunk is moved to the code that is most alike, without comments
//!    and line breaks. The code that the hunk removes must be there; only its names may differ.
//!
//! The result is a patch that applies. Only a run of the teeth shows whether it still breaks the
//! code as before.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::Tooth;
use super::git;
use patch::{FilePatch, Files, Patch};
use place::Change;
use renames::Votes;
use tree::{Tree, Version};

mod patch;
mod place;
mod renames;
#[cfg(test)]
mod tests;
mod tokens;
mod tree;

/// The number of files that are searched for the new name of an identifier.
const MOST_WITNESSES: usize = 8;

/// The result of refreshing a patch.
#[derive(Debug)]
struct Outcome {
    /// The new text. `None` if the patch stays as it was.
    text: Option<String>,
    /// Remarks about the patch for the reader.
    notes: Vec<String>,
}

/// Refreshes these patches in place. Returns whether all could be refreshed.
pub(crate) fn run(root: &Path, teeth: &[Tooth]) -> Result<bool, String> {
    let tree = Tree::new(root)?;
    let mut to_run = Vec::new();
    let mut kept = 0;
    let mut failed = 0;
    for tooth in teeth {
        let name = &tooth.name;
        let path = format!("loom-tests/teeth/{name}.patch");
        let outcome = refresh_file(&tree, &path);
        // A patch whose test is gone needs a hand, even if its diff fits.
        let complaint = missing_test(&tree, &tooth.head.test, &path);
        failed += usize::from(outcome.is_err() || complaint.is_some());
        match outcome {
            Ok(outcome) => {
                let word = if outcome.text.is_some() {
                    to_run.push(&**name);
                    "refreshed"
                } else {
                    kept += 1;
                    "as it was"
                };
                let notes = outcome.notes.iter().map(|note| format!("; {note}"));
                say!("teeth: {word} {name}{}", notes.collect::<String>());
            }
            Err(reason) => say!("teeth: CANNOT {name}: {reason}"),
        }
        if let Some(complaint) = complaint {
            say!("teeth: CANNOT {name}: {complaint}");
        }
    }
    say!(
        "teeth: {} refreshed, {kept} as they were, {failed} need a hand",
        to_run.len()
    );
    if !to_run.is_empty() {
        say!(
            "teeth: whether the refreshed patches are still caught, only a run shows:\n\
             cargo run -q -p xtask -- teeth {}",
            to_run.join(" ")
        );
    }
    Ok(failed == 0)
}

/// Refreshes one patch and writes it if it changed.
fn refresh_file(tree: &Tree, path: &str) -> Result<Outcome, String> {
    let file = tree.root().join(path);
    let fail = |error: std::io::Error| format!("{path}: {error}");
    let text = fs::read_to_string(&file).map_err(fail)?;
    let outcome = refresh(tree, path, &text)?;
    if let Some(new) = &outcome.text {
        fs::write(&file, new).map_err(fail)?;
        let check = ["apply", "--check", "--whitespace=nowarn", path];
        if git::ask(tree.root(), &check).is_none() {
            fs::write(&file, text).map_err(fail)?;
            return Err("git does not apply the refreshed patch".to_owned());
        }
    }
    Ok(outcome)
}

/// Returns the new text of a patch with this text.
fn refresh(tree: &Tree, path: &str, text: &str) -> Result<Outcome, String> {
    let mut patch = patch::parse(text)?;
    let written = tree.last_change(path).unwrap_or_else(|| "HEAD".to_owned());
    let mut notes = Vec::new();
    let is_renamed = rename_gone(tree, &mut patch, &written, &mut notes);

    // A patch that fits the tree at one place only needs no history.
    let current = Version::new(&patch, |path| tree.files().get(path).cloned());
    let broken = match current {
        Some(version) if version.is_certain() => {
            if !is_renamed {
                return Ok(Outcome { text: None, notes });
            }
            version.broken
        }
        other => match tree.last_fit(&patch) {
            Some(old) => follow(tree, &patch, &old, &written, &mut notes)?,
            // The patch fits several places, so the line numbers decide.
            None => match other {
                Some(version) => version.broken,
                None => search(tree, &patch, &mut notes)?,
            },
        },
    };
    // If the broken version equals the tree, the tree already contains the change of the patch.
    let broken: Files = broken
        .into_iter()
        .filter(|(path, text)| tree.files().get(path) != Some(text))
        .collect();
    if broken.is_empty() {
        return Err("the tree contains its change already".to_owned());
    }

    let diff = patch::diff(tree.files(), &broken)?;
    let (old_size, new_size) = (size(text), size(&diff));
    if old_size != new_size {
        notes.push(format!(
            "+{} -{} lines of code, and before +{} -{}: look at it",
            new_size.0, new_size.1, old_size.0, old_size.1
        ));
    }
    notes.dedup();
    let text = format!("{}{diff}", patch.head);
    // Check the result before it is written: the new patch must make exactly the same change.
    let again = patch::parse(&text)?;
    let fits = Version::new(&again, |path| tree.files().get(path).cloned());
    if fits.is_none_or(|version| !version.in_place || version.broken != broken) {
        return Err("the refreshed patch does not make the same change".to_owned());
    }
    Ok(Outcome {
        text: Some(text),
        notes,
    })
}

/// Returns the numbers of added and removed lines, without blank lines and comments.
fn size(diff: &str) -> (usize, usize) {
    let count = |sign: &str, file: &str| {
        let lines = diff.lines().filter(|line| !line.starts_with(file));
        let code = lines.filter_map(|line| line.strip_prefix(sign));
        code.filter(|line| !tokens::code(line).is_empty()).count()
    };
    (count("+", "+++ "), count("-", "--- "))
}

/// Renames the identifiers in the added lines that the tree had when the patch was written and has
/// no more. Returns whether there are any.
fn rename_gone(tree: &Tree, patch: &mut Patch, written: &str, notes: &mut Vec<String>) -> bool {
    let own: Vec<String> = patch.files.iter().map(|file| file.path.clone()).collect();
    let hunks = patch.files.iter().flat_map(|file| &file.hunks);
    let added: String = hunks
        .flat_map(|hunk| hunk.added())
        .flat_map(|line| [line, "\n"])
        .collect();
    let unknown: BTreeSet<&str> = tokens::words(&added)
        .filter(|word| !renames::is_keyword(word) && !tree.has_word(word))
        .collect();
    let mut names = BTreeMap::new();
    for word in unknown {
        // A word that was never in the tree is a name that the patch introduces.
        let mut files = tree.files_with(word, written);
        files.retain(|path| !path.starts_with("dev/xtask/"));
        files.sort_by_key(|path| !own.contains(path));
        files.truncate(MOST_WITNESSES);
        let mut votes = Votes::default();
        let mut was_code = false;
        for path in &files {
            let old = tree.show(written, path).unwrap_or_default();
            was_code |= tokens::words(&old).any(|other| other == word);
            if let Some(successor) = tree.successor(path, &old) {
                votes.count(&old, &tree.files()[successor]);
            }
        }
        // Without a clear majority the word stays, and the reader has to decide.
        if let Some(new) = votes.decide().remove(word) {
            notes.push(format!("{word} is {new} now"));
            names.insert(word.to_owned(), new);
        } else if was_code {
            notes.push(format!(
                "it adds {word}, which is gone from the tree: look at it"
            ));
        }
    }
    for file in &mut patch.files {
        for hunk in &mut file.hunks {
            hunk.rename_added(&names);
        }
    }
    !names.is_empty()
}

/// Carries a patch from an old version of its files to the working tree.
fn follow(
    tree: &Tree,
    patch: &Patch,
    old: &Version,
    written: &str,
    notes: &mut Vec<String>,
) -> Result<Files, String> {
    let mut broken = Files::new();
    let mut changes: BTreeMap<String, Vec<Change>> = BTreeMap::new();
    let mut hunks = old.hunks.iter();
    for file in &patch.files {
        let path = &file.path;
        let whole = &old.whole[path];
        // First follow the file, and rename the identifiers of the patch like those of the file.
        let successor = tree.successor(path, whole);
        let mut names = BTreeMap::new();
        if let Some(successor) = successor {
            if successor != path {
                notes.push(format!("{path} is {successor} now"));
            }
            let new = &tree.files()[successor];
            let first = tree.show(written, path);
            for old in [first.as_deref(), Some(whole)].into_iter().flatten() {
                let mut votes = Votes::default();
                votes.count(old, new);
                names.extend(votes.decide());
            }
        }
        // Then merge both changes. The names are equal on all sides now, so only real changes
        // conflict.
        let base = tokens::rename(whole, &names);
        let theirs = tokens::rename(&old.broken[path], &names);
        let own: Vec<_> = hunks.by_ref().take(file.hunks.len()).collect();
        if let Some(successor) = successor
            && let ours = &tree.files()[successor]
            && let Some(merged) = patch::merge(ours, &base, &theirs)?
            && merged != *ours
            && !broken.contains_key(successor)
        {
            notes.push("merged".to_owned());
            broken.insert(successor.to_owned(), merged);
            continue;
        }
        // After a conflict each hunk is placed alone, perhaps in another file.
        for (hunk, (at, edits)) in file.hunks.iter().zip(own) {
            let lines = *at..at + hunk.old().len();
            let mut edits = edits.clone();
            for line in edits.iter_mut().flat_map(|edit| &mut edit.added) {
                *line = tokens::rename(line, &names);
            }
            let placed = place::transport(&base, &lines, &edits, tree.files(), successor);
            let placed = placed.map_err(|reason| no_place(file, *at, &reason))?;
            notes.push(format!("placed by likeness in {}: look at it", placed.path));
            changes
                .entry(placed.path)
                .or_default()
                .extend(placed.changes);
        }
    }
    apply_changes(tree, broken, changes)
}

/// Finds the places of the hunks of a patch that never fitted any version.
fn search(tree: &Tree, patch: &Patch, notes: &mut Vec<String>) -> Result<Files, String> {
    notes.push("it fits no commit; placed by likeness: look at it".to_owned());
    let mut changes: BTreeMap<String, Vec<Change>> = BTreeMap::new();
    for file in &patch.files {
        for hunk in &file.hunks {
            let old = hunk.old();
            let text: String = old.iter().flat_map(|line| [*line, "\n"]).collect();
            let edits = hunk.edits(0);
            let lines = 0..old.len();
            let expected = tree.files().get_key_value(&file.path);
            let expected = expected.map(|(path, _)| &**path);
            let placed = place::transport(&text, &lines, &edits, tree.files(), expected);
            let placed = placed.map_err(|reason| no_place(file, hunk.start(), &reason))?;
            changes
                .entry(placed.path)
                .or_default()
                .extend(placed.changes);
        }
    }
    apply_changes(tree, Files::new(), changes)
}

fn no_place(file: &FilePatch, at: usize, reason: &str) -> String {
    format!("the hunk at line {} of {}: {reason}", at + 1, file.path)
}

fn apply_changes(
    tree: &Tree,
    mut broken: Files,
    changes: BTreeMap<String, Vec<Change>>,
) -> Result<Files, String> {
    for (path, mut changes) in changes {
        if broken.contains_key(&path) {
            return Err(format!("two of its files are {path} now"));
        }
        changes.sort_by_key(|change| change.span.start);
        if changes
            .windows(2)
            .any(|pair| pair[0].span.end > pair[1].span.start)
        {
            return Err(format!("its changes overlap in {path}"));
        }
        let mut text = tree.files()[&path].clone();
        for change in changes.iter().rev() {
            text.replace_range(change.span.clone(), &change.text);
        }
        broken.insert(path, text);
    }
    Ok(broken)
}

/// Complains about a test that no file of the models contains.
fn missing_test(tree: &Tree, test: &str, patch: &str) -> Option<String> {
    let (module, name) = test.rsplit_once("::")?;
    let same_name = tree.tests_named(name);
    if same_name.contains(test) {
        return None;
    }
    let guess = same_name.into_iter().next().or_else(|| {
        // The same file, perhaps moved, may have the test under another name.
        let written = tree.last_change(patch)?;
        let path = format!("loom-tests/src/{}.rs", module.replace("::", "/"));
        let old = tree.show(&written, &path)?;
        let mut votes = Votes::default();
        votes.count(&old, &tree.files()[tree.successor(&path, &old)?]);
        let name = votes.decide().remove(name)?;
        tree.tests_named(&name).into_iter().next()
    });
    let hint = guess.map_or(String::new(), |guess| {
        format!("; perhaps it is {guess} now")
    });
    Some(format!("its test {test} is gone from loom-tests{hint}"))
}
