//! Looks for a `redis-server`, for the programs of a PostgreSQL server, and for `promtool`, which some tests need. The crate's own code does
//! not depend on what is found here.

use std::env;
use std::path::{Path, PathBuf};

#[path = "../durable/build.rs"]
#[expect(dead_code, reason = "its `main` asks for a feature of that crate")]
#[allow(
    clippy::duplicate_mod,
    reason = "who includes this file may have that one, too"
)]
mod durable;

pub(crate) fn main() {
    // Its own file is not named: cargo runs this again when it has built it again. `fork-tests` has it, too, and a file
    // that does not lie in its folder would be missed by each build.
    println!("cargo::rustc-check-cfg=cfg(has_redis_server)");
    println!("cargo::rustc-check-cfg=cfg(has_promtool)");
    let root = env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the manifest's directory");
    if env::var_os("CARGO_FEATURE_REDIS").is_some() {
        look_for("redis-server", "has_redis_server", Path::new(&root));
    }
    durable::look(env::var_os("CARGO_FEATURE_POSTGRES").is_some());
    look_for("promtool", "has_promtool", Path::new(&root));
}

/// The tests with a program are ignored, and shown as that, where it is not installed.
pub(crate) fn look_for(program: &str, cfg: &str, root: &Path) {
    println!("cargo::rerun-if-env-changed=PATH");
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    let program = format!("{program}{}", env::consts::EXE_SUFFIX);
    let mut candidates = folders.iter().map(|folder| folder.join(&program));
    if let Some(found) = candidates.find(|candidate| candidate.is_file()) {
        println!("cargo::rerun-if-changed={}", found.display());
        println!("cargo::rustc-cfg={cfg}");
        return;
    }
    // Whatever is installed changes a folder: the next run looks again.
    for folder in folders {
        if folder.is_absolute() && folder.is_dir() && !root.starts_with(&folder) {
            println!("cargo::rerun-if-changed={}", folder.display());
        }
    }
}
