//! Calls of git.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns a git command in this folder. It also works in a hook of git, which sets variables for
/// its own repository.
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

/// Returns the files of the working tree that git tracks or would track.
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
