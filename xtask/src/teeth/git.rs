//! Calls of git.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Git in this folder, also when a hook of git runs us and has set variables for its repository.
pub(crate) fn git(folder: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(folder);
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
        command.env_remove(variable);
    }
    command
}

/// Returns the output of a git command, or `None` if the command fails.
pub(crate) fn ask(folder: &Path, arguments: &[&str]) -> Option<String> {
    let output = git(folder).args(arguments).output().ok()?;
    let text = output.status.success().then_some(output.stdout)?;
    String::from_utf8(text).ok()
}

/// The files that git tracks or would track and that exist in the working tree.
pub(crate) fn files(root: &Path) -> Result<BTreeSet<PathBuf>, String> {
    let list = [
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ];
    let list = ask(root, &list).ok_or("git ls-files failed, or a file's name is not UTF-8")?;
    Ok(list
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(PathBuf::from)
        .filter(|file| root.join(file).is_file())
        .collect())
}
