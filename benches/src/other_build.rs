//! The same program with mimalloc as its allocator: a build of its own, since an allocator is chosen when a
//! program is built. The children of one more system run in it, between those of all others.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::workloads::Workload;

/// What stands behind the name of a system.
pub(crate) const SUFFIX: &str = "+mimalloc";
/// The one that runs so, and where: boxes are allocated there on one thread and freed on others.
const SYSTEM: &str = "tourbillon";
const WORKLOADS: [&str; 2] = ["W4", "W4i"];

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Whether this system does this workload in the other build, too.
pub(crate) fn has(system: &str, workload: &Workload) -> bool {
    system == SYSTEM && WORKLOADS.contains(&workload.name)
}

/// The other program, if it was built.
pub(crate) fn program() -> Option<&'static Path> {
    PROGRAM.get().map(PathBuf::as_path)
}

/// Builds it. It lies in a folder of its own, so that the program that runs is not replaced.
pub(crate) fn prepare() -> io::Result<()> {
    let mut folder = std::env::current_exe()?;
    folder.pop();
    let folder = folder.join("with-mimalloc");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    eprintln!("         builds the program with mimalloc; the first time takes a minute or two");
    let status = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--bin", "benches"])
        .args(["--features", "mimalloc", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .arg("--target-dir")
        .arg(&folder)
        .status()?;
    let program = folder.join("release/benches");
    if !status.success() || !program.is_file() {
        return Err(io::Error::other("its build failed; see above"));
    }
    let _ = PROGRAM.set(program);
    Ok(())
}
