//! Brings teeth up to date after a refactoring: merges what a patch changes with what has changed
//! in the tree since.
//!
//! A patch that applies stays as it is. Any other one did apply at the commit that last wrote it.
//! There git makes a commit of the broken tree, and merges it with `HEAD`, as it merges two
//! branches: it follows moved files and changed context. What the merge changes in `HEAD` is the
//! new patch. A renamed item is a conflict, which is named and left to be mended by hand.
//!
//! Nothing of this shows in the tree but the patches: the merge is made of objects alone. What is
//! not committed yet takes no part. Only a run of the teeth shows whether the new patches still
//! break the code as before.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::Tooth;
use super::git;

/// Refreshes these patches in place. Returns whether all of them apply now.
pub(crate) fn run(root: &Path, teeth: &[Tooth]) -> Result<bool, String> {
    let (mut refreshed, mut failed) = (Vec::new(), 0);
    for tooth in teeth {
        match refresh(root, &tooth.name) {
            Ok(false) => {}
            Ok(true) => {
                say!("teeth: refreshed {}", tooth.name);
                refreshed.push(&*tooth.name);
            }
            Err(reason) => {
                failed += 1;
                say!("teeth: CANNOT {}: {reason}", tooth.name);
            }
        }
    }
    let kept = teeth.len() - refreshed.len() - failed;
    say!(
        "teeth: {} refreshed, {kept} as they were, {failed} need a hand",
        refreshed.len()
    );
    if !refreshed.is_empty() {
        say!("teeth: cargo teeth {}", refreshed.join(" "));
    }
    Ok(failed == 0)
}

/// Brings one patch up to date. Returns whether its file was written.
fn refresh(root: &Path, name: &str) -> Result<bool, String> {
    let path = format!("loom-tests/teeth/{name}.patch");
    let text = fs::read_to_string(root.join(&path)).map_err(|error| format!("{path}: {error}"))?;
    if applies(root, &path) {
        return Ok(false);
    }
    let (base, broken) = last_fit(root, &path)?;
    let merged = merge(root, &base, &broken)?;
    let diff = git::ask(root, &["diff", "--no-color", "HEAD", &merged])
        .ok_or("git can't compare the merge with HEAD")?;
    if diff.is_empty() {
        return Err("HEAD has this change already".to_owned());
    }
    fs::write(root.join(&path), with_head(&text, &diff))
        .map_err(|error| format!("{path}: {error}"))?;
    if !applies(root, &path) {
        fs::write(root.join(&path), text).map_err(|error| format!("{path}: {error}"))?;
        return Err("the merge fits HEAD, but not what is changed since".to_owned());
    }
    Ok(true)
}

fn applies(root: &Path, path: &str) -> bool {
    git::ask(root, &["apply", "--check", "--whitespace=nowarn", path]).is_some()
}

/// The latest commit whose patch applies to its own tree, and a commit of that tree after the
/// patch.
fn last_fit(root: &Path, path: &str) -> Result<(String, String), String> {
    let history = git::ask(root, &["log", "--format=%H", "--", path]).unwrap_or_default();
    history
        .lines()
        .find_map(|commit| Some((commit.to_owned(), broken(root, commit, path)?)))
        .ok_or_else(|| format!("no commit of {path} is known at which it applied"))
}

fn broken(root: &Path, commit: &str, path: &str) -> Option<String> {
    let patch = git::ask(root, &["show", &format!("{commit}:{path}")])?;
    // An index of its own beside git's, so that the user's is left alone.
    let index = git::ask(root, &["rev-parse", "--git-path", "teeth.index"])?;
    let with_index = |arguments: &[&str]| {
        let mut command = git::git(root);
        command.args(arguments).env("GIT_INDEX_FILE", index.trim());
        command
    };
    said(&mut with_index(&["read-tree", commit]), "")?;
    let apply = ["apply", "--cached", "--whitespace=nowarn"];
    said(&mut with_index(&apply), &patch)?;
    let tree = said(&mut with_index(&["write-tree"]), "")?;
    let made = ["-c", "user.name=teeth", "-c", "user.email=teeth"];
    let commit = ["commit-tree", tree.trim(), "-p", commit, "-m", path];
    let made = git::ask(root, &[&made[..], &commit[..]].concat())?;
    Some(made.trim().to_owned())
}

/// Merges the broken commit with `HEAD`. Returns the tree, or the files with conflicts.
fn merge(root: &Path, base: &str, broken: &str) -> Result<String, String> {
    let output = git::git(root)
        .args(["merge-tree", "--write-tree", "--name-only", "--no-messages"])
        .args([&format!("--merge-base={base}"), "HEAD", broken])
        .output()
        .map_err(|error| format!("git merge-tree: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines();
    let tree = lines.next().unwrap_or_default().to_owned();
    match output.status.code() {
        Some(0) => Ok(tree),
        Some(1) => Err(format!(
            "conflicts in {}, to be mended by hand",
            lines.collect::<Vec<_>>().join(", ")
        )),
        _ => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// What a command prints, given this input, if it succeeds.
fn said(command: &mut Command, input: &str) -> Option<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    // A command that has ended early has said why by its status.
    let _ = child.stdin.take()?.write_all(input.as_bytes());
    let output = child.wait_with_output().ok()?;
    let text = output.status.success().then_some(output.stdout)?;
    String::from_utf8(text).ok()
}

/// The diff behind the comments of the old patch, without the lines that name git's objects.
fn with_head(old: &str, diff: &str) -> String {
    let head = old
        .lines()
        .take_while(|line| !line.starts_with("--- ") && !line.starts_with("diff "));
    let names_objects = |line: &&str| line.starts_with("diff --git ") || line.starts_with("index ");
    let diff = diff.lines().filter(|line| !names_objects(line));
    head.chain(diff).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const PATCH: &str = "loom-tests/teeth/a.patch";

    /// A repository of its own, which goes with the value.
    struct Repository(PathBuf);

    impl Drop for Repository {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    impl Repository {
        /// One with a source of ten lines and a tooth that changes the fifth.
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("teeth-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            fs::create_dir_all(root.join("src")).unwrap();
            fs::create_dir_all(root.join("loom-tests/teeth")).unwrap();
            let repository = Repository(root);
            assert!(git::ask(&repository.0, &["init", "-q"]).is_some());
            repository.write("src/state.rs", &source("five", "nine"));
            repository.commit();
            repository.write("src/state.rs", &source("broken", "nine"));
            let diff = git::ask(&repository.0, &["diff", "--no-color"]).unwrap();
            repository.write("src/state.rs", &source("five", "nine"));
            repository.write(PATCH, &with_head("# test: models::a::b\n", &diff));
            repository.commit();
            repository
        }

        fn write(&self, path: &str, text: &str) {
            fs::write(self.0.join(path), text).unwrap();
        }

        fn commit(&self) {
            let commit = [
                "-c",
                "user.name=a",
                "-c",
                "user.email=a",
                "commit",
                "-qm",
                "a",
            ];
            assert!(git::ask(&self.0, &["add", "-A"]).is_some());
            assert!(git::ask(&self.0, &commit).is_some());
        }

        fn refresh(&self) -> Result<bool, String> {
            refresh(&self.0, "a")
        }

        fn patch(&self) -> String {
            fs::read_to_string(self.0.join(PATCH)).unwrap()
        }
    }

    fn source(fifth: &str, last: &str) -> String {
        format!("one\ntwo\nthree\nfour\n{fifth}\nsix\nseven\neight\n{last}\n")
    }

    #[test]
    fn a_patch_that_applies_stays() {
        let repository = Repository::new("stays");
        let before = repository.patch();
        assert_eq!(repository.refresh(), Ok(false));
        assert_eq!(repository.patch(), before);
    }

    #[test]
    fn a_patch_follows_a_file_that_moved_and_changed() {
        let repository = Repository::new("moved");
        fs::remove_file(repository.0.join("src/state.rs")).unwrap();
        repository.write("src/elsewhere.rs", &source("five", "nine, renamed"));
        repository.commit();
        assert_eq!(repository.refresh(), Ok(true));
        let patch = repository.patch();
        assert!(patch.starts_with("# test: models::a::b\n--- a/src/elsewhere.rs\n"));
        assert!(patch.contains("\n-five\n+broken\n"));
        assert!(applies(&repository.0, PATCH));
        assert_eq!(repository.refresh(), Ok(false));
    }

    #[test]
    fn a_patch_follows_changed_context() {
        let repository = Repository::new("context");
        let text = source("five", "nine")
            .replace("two\n", "two\nnew\n")
            .replace("seven", "7");
        repository.write("src/state.rs", &text);
        repository.commit();
        assert_eq!(repository.refresh(), Ok(true));
        assert!(applies(&repository.0, PATCH));
    }

    #[test]
    fn what_a_merge_cannot_do_is_said_and_the_patch_stays() {
        let repository = Repository::new("conflict");
        repository.write("src/state.rs", &source("cinq", "nine"));
        repository.commit();
        let before = repository.patch();
        let said = repository.refresh().unwrap_err();
        assert!(said.contains("conflicts in src/state.rs"), "{said}");
        assert_eq!(repository.patch(), before);

        repository.write("src/state.rs", &source("broken", "nine"));
        repository.commit();
        let said = repository.refresh().unwrap_err();
        assert!(said.contains("HEAD has this change"), "{said}");
    }

    #[test]
    fn a_patch_without_a_commit_at_which_it_applied_needs_a_hand() {
        let repository = Repository::new("unknown");
        repository.write("src/state.rs", &source("cinq", "nine"));
        repository.write(PATCH, &repository.patch().replace("five", "fife"));
        repository.commit();
        // The patch of the commit before applied there, and meets a conflict here.
        assert!(repository.refresh().unwrap_err().contains("conflicts"));
        let alone = Repository::new("alone");
        alone.write(
            "loom-tests/teeth/a.patch",
            "# test: a\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
        );
        assert!(git::ask(&alone.0, &["update-ref", "-d", "HEAD"]).is_some());
        let said = alone.refresh().unwrap_err();
        assert!(said.contains("no commit of"), "{said}");
    }
}
