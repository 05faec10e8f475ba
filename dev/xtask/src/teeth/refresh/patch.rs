//! Patches as text: reading, applying and writing them.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::tokens;
use crate::teeth::git::git;

/// File contents by path.
pub(crate) type Files = BTreeMap<String, String>;

#[derive(Debug)]
pub(crate) struct Patch {
    /// The comment lines before the diff.
    pub(crate) head: String,
    pub(crate) files: Vec<FilePatch>,
}

#[derive(Debug)]
pub(crate) struct FilePatch {
    pub(crate) path: String,
    pub(crate) hunks: Vec<Hunk>,
}

#[derive(Debug)]
pub(crate) struct Hunk {
    /// The index of the first line of the old side, as the hunk's head says.
    start: usize,
    /// Each line begins with a space, `-` or `+`.
    lines: Vec<String>,
}

/// One run of removed and added lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edit {
    /// The removed lines of the old file. Empty for an insertion.
    pub(crate) removed: Range<usize>,
    pub(crate) added: Vec<String>,
}

impl Hunk {
    /// The lines of the old side.
    pub(crate) fn old(&self) -> Vec<&str> {
        let old = self.lines.iter().filter(|line| !line.starts_with('+'));
        old.map(|line| &line[1..]).collect()
    }

    /// The lines that the hunk adds.
    pub(crate) fn added(&self) -> impl Iterator<Item = &str> {
        let added = self.lines.iter().filter(|line| line.starts_with('+'));
        added.map(|line| &line[1..])
    }

    /// The index of the line that the hunk's head names.
    pub(crate) fn start(&self) -> usize {
        self.start
    }

    /// Renames identifiers in the added lines.
    pub(crate) fn rename_added(&mut self, names: &BTreeMap<String, String>) {
        for line in &mut self.lines {
            if let Some(added) = line.strip_prefix('+') {
                *line = format!("+{}", tokens::rename(added, names));
            }
        }
    }

    /// The edits of the hunk if its first line is at index `at` of the old file.
    pub(crate) fn edits(&self, at: usize) -> Vec<Edit> {
        let mut edits: Vec<Edit> = Vec::new();
        let mut line_number = at;
        let mut is_open = false;
        for line in &self.lines {
            if line.starts_with(' ') {
                line_number += 1;
                is_open = false;
                continue;
            }
            if !is_open {
                is_open = true;
                edits.push(Edit {
                    removed: line_number..line_number,
                    added: Vec::new(),
                });
            }
            let Some(edit) = edits.last_mut() else {
                continue;
            };
            if let Some(added) = line.strip_prefix('+') {
                edit.added.push(added.to_owned());
            } else {
                line_number += 1;
                edit.removed.end = line_number;
            }
        }
        edits
    }
}

/// Reads a patch: comment lines, then unified diffs of existing files.
pub(crate) fn parse(text: &str) -> Result<Patch, String> {
    let mut lines = text.lines().peekable();
    let mut head = String::new();
    while let Some(line) = lines.next_if(|line| line.starts_with('#') || line.is_empty()) {
        head.push_str(line);
        head.push('\n');
    }
    let mut files: Vec<FilePatch> = Vec::new();
    while let Some(line) = lines.next() {
        if let Some(old) = line.strip_prefix("--- ") {
            let new = lines.next().and_then(|line| line.strip_prefix("+++ "));
            let old = old.strip_prefix("a/");
            let (Some(old), Some(new)) = (old, new.and_then(|new| new.strip_prefix("b/"))) else {
                return Err("a file is not named `--- a/..` and `+++ b/..`".to_owned());
            };
            // A tooth changes code in place, so it never moves a file.
            if old != new {
                return Err(format!("it moves {old} to {new}"));
            }
            files.push(FilePatch {
                path: old.to_owned(),
                hunks: Vec::new(),
            });
        } else if let Some(counts) = line.strip_prefix("@@ -") {
            let file = files.last_mut().ok_or("a hunk comes before any file")?;
            let (start, old, new) =
                counts_of(counts).ok_or_else(|| format!("a hunk's head is wrong: {line}"))?;
            let mut left = (old, new);
            let mut hunk = Hunk {
                start: start.saturating_sub(1),
                lines: Vec::new(),
            };
            // The counts in the head decide where the hunk ends: a removed line may begin with
            // `--`.
            while left != (0, 0) {
                // Some tools write an empty line of context without its space.
                let line = match lines.next() {
                    Some("") => " ",
                    Some(line) => line,
                    None => "",
                };
                let (old, new) = match line.chars().next() {
                    Some(' ') => (1, 1),
                    Some('-') => (1, 0),
                    Some('+') => (0, 1),
                    _ => return Err(format!("the hunk at line {start} is cut off")),
                };
                let (Some(left_old), Some(left_new)) =
                    (left.0.checked_sub(old), left.1.checked_sub(new))
                else {
                    return Err(format!("the hunk at line {start} is too long"));
                };
                left = (left_old, left_new);
                hunk.lines.push(line.to_owned());
            }
            file.hunks.push(hunk);
        } else if line.starts_with('\\') {
            return Err("a file without a newline at its end".to_owned());
        }
    }
    Ok(Patch { head, files })
}

/// Start, number of old lines and number of new lines of `12,3 +14,5 @@ ..`.
fn counts_of(text: &str) -> Option<(usize, usize, usize)> {
    let (old, rest) = text.split_once(" +")?;
    let (new, _) = rest.split_once(" @@")?;
    let pair = |text: &str| -> Option<(usize, usize)> {
        let (start, count) = text.split_once(',').unwrap_or((text, "1"));
        Some((start.parse().ok()?, count.parse().ok()?))
    };
    let (start, old) = pair(old)?;
    Some((start, old, pair(new)?.1))
}

/// Where the hunks of a patch fit without any difference.
#[derive(Debug)]
pub(crate) struct Fit {
    /// The first line of each hunk.
    pub(crate) at: Vec<usize>,
    /// Whether each hunk fits at the line that its head names.
    pub(crate) in_place: bool,
    /// Whether each hunk that is not in its place fits at one place only.
    pub(crate) only: bool,
}

/// Finds the place of each hunk: the line in its head or else the nearest one that fits.
pub(crate) fn fit(text: &str, hunks: &[Hunk]) -> Option<Fit> {
    let lines: Vec<&str> = text.lines().collect();
    let mut fit = Fit {
        at: Vec::new(),
        in_place: true,
        only: true,
    };
    let mut from = 0;
    let mut drift = 0_isize;
    for hunk in hunks {
        let old = hunk.old();
        let expected = hunk.start.saturating_add_signed(drift);
        let places: Vec<usize> = (from..=lines.len().checked_sub(old.len())?)
            .filter(|&at| lines[at..at + old.len()] == old)
            .collect();
        let at = *places.iter().min_by_key(|at| at.abs_diff(expected))?;
        if at != hunk.start {
            fit.in_place = false;
            fit.only &= places.len() == 1;
        }
        drift = at.cast_signed() - hunk.start.cast_signed();
        from = at + old.len();
        fit.at.push(at);
    }
    Some(fit)
}

/// Applies edits, which are in the order of their lines.
pub(crate) fn apply<'a>(text: &str, edits: impl IntoIterator<Item = &'a Edit>) -> String {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let mut result = String::new();
    let mut copied = 0;
    for edit in edits {
        result.extend(lines[copied..edit.removed.start].iter().copied());
        for line in &edit.added {
            result.push_str(line);
            result.push('\n');
        }
        copied = edit.removed.end;
    }
    result.extend(lines[copied..].iter().copied());
    result
}

/// A temporary folder that is removed in the end.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Result<Self, String> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("teeth-{}-{}", process::id(), NEXT.fetch_add(1, Relaxed));
        let folder = env::temp_dir().join(name);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Scratch(folder))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, file: &str, text: &str) -> Result<(), String> {
        let path = self.0.join(file);
        let folder = path.parent().unwrap_or(&self.0);
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, text))
            .map_err(|error| format!("{}: {error}", path.display()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Merges the changes from `base` to `theirs` into `ours`. `None` if they conflict.
pub(crate) fn merge(ours: &str, base: &str, theirs: &str) -> Result<Option<String>, String> {
    let scratch = Scratch::new()?;
    for (file, text) in [("ours", ours), ("base", base), ("theirs", theirs)] {
        scratch.write(file, text)?;
    }
    let output = git(scratch.path())
        .args(["merge-file", "-p", "-q", "ours", "base", "theirs"])
        .output()
        .map_err(|error| format!("git merge-file: {error}"))?;
    let text = output.status.success().then_some(output.stdout);
    Ok(text.and_then(|text| String::from_utf8(text).ok()))
}

/// The diff between some files and their broken versions, as git writes it.
pub(crate) fn diff(whole: &Files, broken: &Files) -> Result<String, String> {
    let scratch = Scratch::new()?;
    for (path, text) in broken {
        scratch.write(&format!("a/{path}"), &whole[path])?;
        scratch.write(&format!("b/{path}"), text)?;
    }
    let output = git(scratch.path())
        .args(["-c", "core.quotePath=false", "-c", "core.attributesFile="])
        .args(["diff", "--no-index", "--no-prefix", "--no-color"])
        .args(["--no-ext-diff", "-U3", "--inter-hunk-context=0"])
        .args(["--diff-algorithm=myers", "a", "b"])
        .env("GIT_CEILING_DIRECTORIES", env::temp_dir())
        .output()
        .map_err(|error| format!("git diff: {error}"))?;
    let text = String::from_utf8(output.stdout).map_err(|_| "a file is not UTF-8")?;
    let is_kept = |line: &&str| !line.starts_with("diff --git ") && !line.starts_with("index ");
    Ok(text.split_inclusive('\n').filter(is_kept).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# test: models::a::b\n# why\n--- a/x.rs\n+++ b/x.rs\n\
                        @@ -2,3 +2,4 @@ fn\n b\n-c\n+C\n+CC\n d\n";

    #[test]
    fn a_patch_is_read_and_applied() {
        let patch = parse(TEXT).unwrap();
        assert_eq!(patch.head, "# test: models::a::b\n# why\n");
        let hunks = &patch.files[0].hunks;
        let fit = fit("a\nb\nc\nd\n", hunks).unwrap();
        assert!(fit.in_place);
        let edits = hunks[0].edits(fit.at[0]);
        assert_eq!(apply("a\nb\nc\nd\n", &edits), "a\nb\nC\nCC\nd\n");
    }

    #[test]
    fn a_hunk_fits_at_the_nearest_place() {
        let hunks = parse(TEXT).unwrap().files.remove(0).hunks;
        let moved = fit("a\na\nb\nc\nd\n", &hunks).unwrap();
        assert!(!moved.in_place && moved.only);
        let twice = fit("b\nc\nd\nb\nc\nd\n", &hunks).unwrap();
        assert_eq!(twice.at, [0]);
        assert!(!twice.only);
        assert!(fit("a\nb\nx\nd\n", &hunks).is_none());
        assert!(fit("b\n", &hunks).is_none());
    }

    #[test]
    fn a_patch_that_moves_creates_or_ends_early_is_refused() {
        assert!(parse("--- a/x.rs\n+++ b/y.rs\n").is_err());
        assert!(parse("--- /dev/null\n+++ b/y.rs\n").is_err());
        assert!(parse("--- a/x.rs\n+++ b/x.rs\n@@ -1,2 +1,2 @@\n a\n").is_err());
    }

    #[test]
    fn a_diff_names_its_files_as_git_does() {
        let whole = Files::from([("src/x.rs".to_owned(), "a\nb\n".to_owned())]);
        let broken = Files::from([("src/x.rs".to_owned(), "a\nc\n".to_owned())]);
        let expected = "--- a/src/x.rs\n+++ b/src/x.rs\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n";
        assert_eq!(diff(&whole, &broken).unwrap(), expected);
    }
}
