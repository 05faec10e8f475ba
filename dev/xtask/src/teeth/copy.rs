//! The copy of the tree that the teeth break.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::git;

/// A copy of the repository's files at a fixed path, so that all teeth can use the cached builds.
#[derive(Debug)]
pub(crate) struct Copy {
    root: PathBuf,
    tree: PathBuf,
}

impl Copy {
    pub(crate) fn new(root: &Path, tree: &Path) -> Result<Self, String> {
        fs::create_dir_all(tree).map_err(|error| format!("{}: {error}", tree.display()))?;
        let tree = tree
            .canonicalize()
            .map_err(|error| format!("{}: {error}", tree.display()))?;
        Ok(Copy {
            root: root.to_owned(),
            tree,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.tree
    }

    /// Makes the copy equal to the working tree. Writes only the files that differ, since cargo
    /// builds again what has a new modification time.
    pub(crate) fn restore(&self) -> Result<(), String> {
        let wanted = git::files(&self.root)?;
        for file in &wanted {
            let from = self.root.join(file);
            let to = self.tree.join(file);
            let content =
                fs::read(&from).map_err(|error| format!("{}: {error}", file.display()))?;
            if fs::read(&to).is_ok_and(|present| present == content) {
                continue;
            }
            let folder = to.parent().expect("a file lies in a folder");
            fs::create_dir_all(folder)
                .and_then(|()| fs::write(&to, content))
                .map_err(|error| format!("{}: {error}", to.display()))?;
        }
        remove_others(&self.tree, &self.tree, &wanted)
            .map_err(|error| format!("{}: {error}", self.tree.display()))
    }

    /// Applies a patch. The error is the message of git.
    pub(crate) fn apply(&self, patch: &Path) -> Result<(), String> {
        let above = self.tree.parent().expect("the copy lies in a folder");
        // The copy may lie inside the repository. Then git would take the patch's paths for paths
        // outside the current folder, and would skip them silently.
        let output = git::git(&self.tree)
            .args(["apply", "--whitespace=nowarn"])
            .arg(patch)
            .env("GIT_CEILING_DIRECTORIES", above)
            .output()
            .map_err(|error| format!("git apply: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        if self.equals_working_tree()? {
            return Err("the patch changed nothing".to_owned());
        }
        Ok(())
    }

    /// Takes all models but this one out of the copy, until it is restored: what the others need would be
    /// compiled too, in half of the time of a build.
    pub(crate) fn leave_only(&self, model: &str) -> Result<(), String> {
        let file = self.tree.join("loom-tests/src/models/mod.rs");
        let fail = |error: std::io::Error| format!("{}: {error}", file.display());
        let list = fs::read_to_string(&file).map_err(fail)?;
        fs::write(&file, only(&list, model)).map_err(fail)
    }

    fn equals_working_tree(&self) -> Result<bool, String> {
        Ok(git::files(&self.root)?
            .iter()
            .all(|file| fs::read(self.root.join(file)).ok() == fs::read(self.tree.join(file)).ok()))
    }
}

/// The list of the models without the lines `mod name;` of the others.
fn only(list: &str, model: &str) -> String {
    let other = |line: &str| {
        let name = line
            .strip_prefix("mod ")
            .and_then(|rest| rest.strip_suffix(';'));
        name.is_some_and(|name| name != model)
    };
    let lines = list.lines().filter(|line| !other(line));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Removes what an earlier tooth, or an earlier state of the repository, left in the copy.
fn remove_others(
    folder: &Path,
    tree: &Path,
    wanted: &BTreeSet<PathBuf>,
) -> Result<(), std::io::Error> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, tree, wanted)?;
        } else if !path
            .strip_prefix(tree)
            .is_ok_and(|file| wanted.contains(file))
        {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small repository with the copy inside it, in a folder that git ignores.
    struct Repository {
        root: PathBuf,
        copy: Copy,
    }

    impl Repository {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
            fs::create_dir_all(root.join("src")).unwrap();
            fs::write(root.join(".gitignore"), "/target\n").unwrap();
            fs::write(root.join("src/a.rs"), "one\ntwo\nthree\n").unwrap();
            for arguments in [&["init", "-q"][..], &["add", "."]] {
                let done = git::git(&root).args(arguments).output().unwrap();
                assert!(done.status.success(), "{done:?}");
            }
            let copy = Copy::new(&root, &root.join("target/teeth/tree")).unwrap();
            Repository { root, copy }
        }

        fn patch(&self, from: &str, to: &str) -> PathBuf {
            let file = self.root.join("target/a.patch");
            let diff = format!(
                "# test: models::a::b\n# A reason.\n--- a/src/a.rs\n+++ b/src/a.rs\n\
                 @@ -1,3 +1,3 @@\n one\n-{from}\n+{to}\n three\n"
            );
            fs::write(&file, diff).unwrap();
            file
        }

        fn copied(&self) -> String {
            fs::read_to_string(self.copy.path().join("src/a.rs")).unwrap()
        }
    }

    impl Drop for Repository {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.root));
        }
    }

    #[test]
    fn a_patch_breaks_the_copy_and_restore_heals_it() {
        let repository = Repository::new("heals");
        let copy = &repository.copy;
        copy.restore().unwrap();
        let patch = repository.patch("two", "2");
        copy.apply(&patch).unwrap();
        assert_eq!(repository.copied(), "one\n2\nthree\n");
        fs::write(copy.path().join("src/left_over.rs"), "").unwrap();

        copy.restore().unwrap();
        assert_eq!(repository.copied(), "one\ntwo\nthree\n");
        assert!(!copy.path().join("src/left_over.rs").exists());
        assert!(!copy.path().join("target").exists());
    }

    #[test]
    fn the_other_models_are_taken_out_and_restore_brings_them_back() {
        let repository = Repository::new("models");
        let file = "loom-tests/src/models/mod.rs";
        let list = "//! The models.\n\nmod close;\nmod closed;\n\nfn check() {}\n";
        fs::create_dir_all(repository.root.join("loom-tests/src/models")).unwrap();
        fs::write(repository.root.join(file), list).unwrap();
        let copied = || fs::read_to_string(repository.copy.path().join(file)).unwrap();
        repository.copy.restore().unwrap();
        repository.copy.leave_only("close").unwrap();
        assert_eq!(copied(), "//! The models.\n\nmod close;\n\nfn check() {}\n");
        repository.copy.restore().unwrap();
        assert_eq!(copied(), list);
    }

    #[test]
    fn the_copy_follows_the_working_tree_and_equal_files_keep_their_time() {
        let repository = Repository::new("follows");
        let copy = &repository.copy;
        copy.restore().unwrap();
        let time = |file: &str| fs::metadata(copy.path().join(file)).unwrap().modified();
        let before = time(".gitignore").unwrap();
        fs::write(repository.root.join("src/a.rs"), "changed\n").unwrap();
        fs::write(repository.root.join("src/new.rs"), "new\n").unwrap();
        copy.restore().unwrap();
        assert_eq!(repository.copied(), "changed\n");
        assert!(copy.path().join("src/new.rs").exists());
        assert_eq!(time(".gitignore").unwrap(), before);
    }

    #[test]
    fn a_patch_applies_at_other_lines_too() {
        let repository = Repository::new("offset");
        fs::write(
            repository.root.join("src/a.rs"),
            "zero\none\ntwo\nthree\nfour\n",
        )
        .unwrap();
        let copy = &repository.copy;
        copy.restore().unwrap();
        let patch = repository.patch("two", "2");
        let diff = fs::read_to_string(&patch).unwrap();
        fs::write(&patch, diff.replace("-1,3 +1,3", "-3,3 +3,3")).unwrap();
        copy.apply(&patch).unwrap();
        assert_eq!(repository.copied(), "zero\none\n2\nthree\nfour\n");
    }

    #[test]
    fn a_patch_that_does_not_fit_or_changes_nothing_is_an_error() {
        let repository = Repository::new("unfit");
        let copy = &repository.copy;
        copy.restore().unwrap();
        assert!(copy.apply(&repository.patch("zwei", "2")).is_err());
        assert!(copy.apply(&repository.patch("two", "two")).is_err());
    }
}
